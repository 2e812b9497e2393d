"""Results that do not describe themselves yet as tables of plain HTML."""

from collections.abc import Sequence
from html import escape
from math import isfinite

from normscope.studies.separability import Separability

Value = str | int | float | None


def separability_html(result: Separability) -> str:
    """A table of the norms, with SSR and LSSR before and after each; LSSR that is trivially 0 is left out."""
    headings = [
        ("norm", "module path, as in the checkpoint"),
        ("kind", "which member of the family it is"),
        ("SSR before", "share of the scatter of its inputs that is within classes"),
        ("SSR after", "the same of its outputs"),
        ("LSSR before", "the least SSR that a linear map of its inputs reaches"),
        ("LSSR after", "the same of its outputs"),
    ]
    rows: list[list[Value]] = []
    for norm in result.norms:
        sides = (norm.before, norm.after)
        shares = [None if side is None else side.ssr for side in sides]
        least = [None if side is None or side.trivial else side.lssr for side in sides]
        rows.append([norm.name, norm.kind, *shares, *least])
    caption = f"{result.samples} inputs of {result.classes} classes at the norms of {result.model}"
    return _table(caption, headings, rows)


def _table(caption: str, headings: Sequence[tuple[str, str]], rows: Sequence[Sequence[Value]]) -> str:
    head = "".join(f'<th scope="col" title="{escape(meaning)}">{escape(name)}</th>' for name, meaning in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(shown(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    start = f"<table><caption>{escape(caption)}</caption>"
    return f"{start}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"


def shown(value: Value) -> str:
    """A cell as a reader sees it.

    >>> shown(None), shown(1e-05), shown(768), shown(2.718281828)
    ('–', '1e-05', '768', '2.718')
    """
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
