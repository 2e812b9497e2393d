"""How well classes come apart before and after every norm."""

from rich.console import RenderableType
from rich.text import Text

from normscope.report.tables.shared import escape, new_table, tables
from normscope.studies.separability import Separability

CAPTION = (
    "each input is one sample, the mean over its positions; SSR: share of the scatter that is within classes, 0 is "
    "perfectly clustered; LSSR: the least SSR that any linear map reaches; trivial: 0 whatever the labels are"
)


@tables.register
def _(result: Separability) -> list[RenderableType]:
    title = f"{result.samples} inputs of {result.classes} classes at the norms of {result.model}"
    table = new_table(title, CAPTION, "norm", "kind")
    for heading in ("rank before", "after", "SSR before", "after", "LSSR before", "after"):
        table.add_column(heading, justify="right")
    for norm in result.norms:
        sides = (norm.before, norm.after)
        table.add_row(
            escape(norm.name or "(the model)"),
            norm.kind,
            *("–" if side is None else str(side.rank) for side in sides),
            *("–" if side is None else f"{side.ssr:.4g}" for side in sides),
            *("–" if side is None else "trivial" if side.trivial else f"{side.lssr:.4g}" for side in sides),
        )
    return [table, *(Text(f"• {sentence}") for sentence in _words(result))]


def _words(result: Separability) -> list[str]:
    """Whether LSSR says anything, and where it changes most."""
    words = []
    trivial = [norm for norm in result.norms if norm.trivial]
    if trivial:
        enough = max(norm.size for norm in trivial) + result.classes
        words.append(
            f"LSSR is trivially 0 at {len(trivial)} of {len(result.norms)} norms: {result.samples} inputs are too few "
            f"for it to say anything there; {enough} are enough."
        )
    changes = {norm.name: norm.change for norm in result.norms if norm.change is not None}
    if changes:
        lower = sum(change < 0 for change in changes.values())
        most = min(changes, key=lambda name: changes[name])
        where = f", {most} the most: by {-changes[most]:.3g}" if lower else ""
        words.append(f"{lower} of {len(changes)} norms lower LSSR{where}.")
    return words
