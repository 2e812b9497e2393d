"""What became of every norm of a folded model, and how far both models are apart."""

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from normscope.report.norm_columns import _table
from normscope.report.tables.shared import escape, new_table, tables
from normscope.rewrite.results import AFTER_LOOKUP, KEPT, Folding

CAPTION = (
    "centring, folded: its input has mean zero now; after look-up: it would have, were rows centred there, "
    "as --rms does; affine, folded: its gain is 1 now"
)


@tables.register
def _(result: Folding) -> list[RenderableType]:
    verdicts = new_table(f"Norms of {result.name}", CAPTION, "norm", "kind", "centring", "affine")
    for verdict in result.verdicts:
        names = escape(verdict.norm or "(the model)"), verdict.kind
        verdicts.add_row(*names, verdict.centring.what, verdict.affine.what)
    kept = new_table("Kept", "", "what", "of", "because")
    for (what, reason), norms in _kept(result).items():
        others = f" and {len(norms) - 1} others" if len(norms) > 1 else ""
        kept.add_row(what, escape(norms[0] or "(the model)") + others, escape(reason))
    parts: list[RenderableType] = [verdicts, *([kept] if kept.rows else []), _certificate(result)]
    return parts + [Text(f"• {sentence}") for sentence in _sentences(result)]


def folding_html(result: Folding) -> str:
    """A table of the norms, every string from the model escaped."""
    headings = [
        ("norm", "module path"),
        ("kind", "which member of the family"),
        ("folded", "what the weights around it do for it now"),
        ("kept", "what it still does itself, and why"),
    ]
    rows = [
        (verdict.norm, verdict.kind, result.folded.get(verdict.norm), result.kept.get(verdict.norm))
        for verdict in result.verdicts
    ]
    return _table(repr(result), headings, rows)


def _kept(result: Folding) -> dict[tuple[str, str], list[str]]:
    """By what was kept and why: the norms of which it was."""
    kept: dict[tuple[str, str], list[str]] = {}
    for verdict in result.verdicts:
        for what, decision in (("mean", verdict.centring), ("affine", verdict.affine)):
            if decision.what in (KEPT, AFTER_LOOKUP):
                kept.setdefault((what, decision.reason), []).append(verdict.norm)
    return kept


def _certificate(result: Folding) -> Table:
    found = result.certificate
    table = new_table(f"Folded against original, on {found.inputs}", "relative to the largest output", "what")
    table.add_column("measured", justify="right")
    stored = "written file, read back" if found.read_back else "folded weights as stored, not yet written"
    table.add_row(f"in float64: folded weights before rounding to {found.dtype}", f"{found.rewrite_difference:.1e}")
    table.add_row(f"in float64: {stored} ({found.dtype})", f"{found.written_difference:.1e}")
    table.add_row("in float64: original, its weights rounded once more", f"{found.rounding_difference:.1e}")
    table.add_row(f"both in {found.dtype}", f"{found.difference:.1e}")
    table.add_row(f"rounding error of the original in {found.dtype}", f"{found.original_error:.1e}")
    table.add_row(f"rounding error of the folded model in {found.dtype}", f"{found.folded_error:.1e}")
    if found.argmax_agreement is not None:
        table.add_row("rows with the same largest output", f"{found.argmax_agreement:.1%}")
    table.add_row("identities of weights that hold", f"{found.identities - len(found.broken)} of {found.identities}")
    return table


def _sentences(result: Folding) -> list[str]:
    words = []
    if not result.changed:
        words.append("Nothing could be folded: the model is unchanged.")
    words += [
        f"{tie.table} is also {tie.head} and stays as it is; --untie copies it (+{tie.bytes:,} bytes)."
        for tie in result.tied
    ]
    words += [f"{tie.head} is a copy of {tie.table} now (+{tie.bytes:,} bytes)." for tie in result.untied]
    if result.not_run:
        names = f"{result.not_run[0]} and {len(result.not_run) - 1} others" if result.not_run[1:] else result.not_run[0]
        words.append(f"The traced call does not use {names}: what these would read or write is not covered.")
    if result.rms:
        words.append(f"{len(result.replaced)} norms are RMSNorm modules now.")
    if result.program is not None:
        takes = ", ".join(f"{name} {shape}" for name, shape in result.program.inputs.items())
        words.append(f"The program takes {takes}.")
        words += [
            f"It takes {part.input} with {part.size} {'tokens' if part.axis else 'rows'} only: {part.reason}."
            for part in result.program.fixed
        ]
    words += [f"What {name} looks up is centred." for name in result.centred_look_ups]
    if result.left_out:
        words.append(
            f"{len(result.left_out)} tensors are no part of the model, such as {result.left_out[0]}: left out."
        )
    words += [f"Not so: {broken}." for broken in result.certificate.broken]
    return words
