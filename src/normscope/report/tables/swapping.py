"""What became of every norm of a model whose norms were swapped."""

from normscope.report.norm_columns import _table
from normscope.rewrite.swapping import Swapping


def swapping_html(result: Swapping) -> str:
    """A table of the norms, every string from the model escaped."""
    headings = [
        ("norm", "module path"),
        ("what", "what it was and what it is, or that it was kept"),
        ("note", "what else is different, or why it was kept"),
    ]
    return _table(f"Norms of {type(result.model).__name__}", headings, result.rows)
