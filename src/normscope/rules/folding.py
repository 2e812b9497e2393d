"""What stands out in a folding, in sentences."""

from collections.abc import Iterator

from normscope.results.folding import AFTER_LOOKUP, Folding
from normscope.results.rows import several


def remarks(result: Folding) -> Iterator[str]:
    """What failed first; then what was not done, what was put in place of what, and what is not covered."""
    found = result.certificate
    if found is None:
        yield from _planned(result)
        return
    yield from (f"Failed: {broken}." for broken in found.broken)
    holding = f"{found.identities - len(found.broken)} of" if found.broken else "All"
    same = (
        "" if found.argmax_agreement is None else f"; {found.argmax_agreement:.1%} of rows have the same largest output"
    )
    yield f"{holding} {found.identities} identities of weights hold{same}."
    if not result.changed:
        yield "Nothing could be folded: the model is unchanged."
    if any(norm.centring.what == AFTER_LOOKUP for norm in result.norms):
        yield (
            "Mean, after look-up: everything that writes to the stream is centred but the embedding table; "
            "--rms centres its rows when they are looked up, and then the norm needs no mean."
        )
    for tie in result.tied:
        yield f"{tie.table} is also {tie.head} and stays as it is; --untie copies it (+{tie.bytes:,} bytes)."
    for tie in result.untied:
        yield f"{tie.head} is a copy of {tie.table} now (+{tie.bytes:,} bytes)."
    if result.not_run:
        yield f"The traced call does not use {several(result.not_run)}: what these would read or write is not covered."
    if result.rms:
        yield f"{len(result.replaced)} norms are RMSNorm modules now."
    if result.program is not None:
        takes = ", ".join(f"{name} {shape}" for name, shape in result.program.inputs.items())
        yield f"The program takes {takes}."
        for part in result.program.fixed:
            what = "tokens" if part.axis else "rows"
            yield f"It takes {part.input} with {part.size} {what} only: {part.reason}."
    yield from (f"What {name} looks up is centred." for name in result.centred_look_ups)
    if result.unused_tensors:
        yield f"{several(result.unused_tensors)} skipped: unused by the model."


def _planned(result: Folding) -> Iterator[str]:
    """A fold that was planned, and not done."""
    yield (
        "Planned only, from the graph and the stored tensors: “folded” means that it can be. Nothing was run and "
        "nothing was changed."
    )
    for tie in result.tied:
        yield f"{tie.table} is also {tie.head} and would stay as it is; --untie copies it (+{tie.bytes:,} bytes)."
    if result.not_run:
        yield f"The traced call does not use {several(result.not_run)}: what these would read or write is not covered."
