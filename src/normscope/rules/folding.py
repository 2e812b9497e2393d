"""A rule on what can be folded; and what became of it, in sentences."""

from collections.abc import Iterator

from normscope.results.folding import (
    AFTER_LOOKUP,
    FOLDED,
    NOTHING,
    RESCALED,
    ROTATED,
    Folding,
    TensorCertificate,
)
from normscope.results.rows import several
from normscope.rules.prose import number, part
from normscope.rules.rule import Outcome, Skipped, found, rule


@rule("NS301", "foldable")
def foldable(result: Folding) -> Outcome:
    """Gains, biases or means of norms can be folded into the layers around them.

    The folded model computes the same function with norms that have less to do: gain 1, bias 0, and no mean where
    everything that writes its input is centred. `check` folds and certifies small models; of larger ones it decides
    from the graph and the stored tensors, and `fold` certifies what it writes.

    What to do: `normscope fold MODEL -o FOLDER`, before you quantise or compile the model.
    """
    if not result.norms:
        return Skipped("the model has no norm that could be folded")
    gains = [verdict for verdict in result.norms if verdict.affine.what == FOLDED]
    means = [verdict for verdict in result.norms if verdict.centring.what in (FOLDED, AFTER_LOOKUP)]
    waiting = {verdict.centring.reason for verdict in result.norms if verdict.centring.what == AFTER_LOOKUP}
    kept = [each for each in result.reasons if each.part != "mean" or each.reason not in waiting]  # --rms folds those
    reasons = "; ".join(f"{each.part} of {several(each.norms)}: {each.reason}" for each in kept[:2])
    if not gains and not means:
        return f"Nothing can be folded. {reasons}".rstrip(". ") + "."
    if result.holds is False:
        return Skipped("the certificate of the folded model does not hold")
    parts = [f"the gains of {part(gains, result.norms)}"] if gains else []
    look_ups = " --rms" if any(verdict.centring.what == AFTER_LOOKUP for verdict in means) else ""
    parts += [f"the means of {part(means, result.norms)}{' (with --rms)' if look_ups else ''}"] if means else []
    evidence = "Decided from the graph and the stored tensors; folding runs both models and certifies it."
    if result.certificate is not None:
        difference = result.certificate.rewrite_difference or 0.0  # it holds, so there is one
        evidence = (
            f"All {result.certificate.identities:,} identities of weights hold; in float64 both models differ by "
            f"{number(difference)} of the largest output."
        )
    return [
        found(
            "note",
            "proved for all inputs" if result.certificate is not None else "planned from the graph",
            "folding",
            title=f"{' and '.join(parts).capitalize()} can be folded into the layers around them.",
            evidence=evidence + (f" Kept: {reasons}." if reasons else ""),
            why="The folded model is the same function, and its norms have less to do.",
            do=f"normscope fold MODEL -o FOLDER{look_ups}",
            sites=tuple(verdict.norm for verdict in result.norms if verdict in gains or verdict in means),
            norms=tuple(verdict.norm for verdict in result.norms if verdict in gains or verdict in means),
            figure=(len(gains), None),
        )
    ]


def remarks(result: Folding) -> Iterator[str]:
    """What failed first; then what was not done, what was put in place of what, and what is not covered."""
    found = result.certificate
    if result.tensors is not None:
        yield from _by_tensors(result, result.tensors)
        return
    if found is None:
        yield from _planned(result)
        return
    yield from (f"Failed: {broken}." for broken in found.broken)
    holding = f"{found.identities - len(found.broken)} of" if found.broken else "All"
    same = (
        "" if found.argmax_agreement is None else f"; {found.argmax_agreement:.1%} of rows have the same largest output"
    )
    yield f"{holding} {found.identities} identities of weights hold{same}."
    yield from _counted(result)
    if found.folded_error is None and found.rewrite_difference is not None:
        whose = "both models" if found.original_error is None else "the folded model"
        yield f"In {found.dtype}, outputs of {whose} are not finite on these inputs."
    if not result.changed:
        what = "had to be, or could be, rescaled" if result.streams else "could be folded"
        yield f"Nothing {what}: the model is unchanged."
    if result.gain_rounding is not None:
        yield f"Gains stored as 1 + w lose digits at another scale: by {number(result.gain_rounding)} of their size."
    if any(norm.centring.what == AFTER_LOOKUP for norm in result.norms):
        yield (
            "Mean, after look-up: everything that writes to the stream is centred but the embedding table; "
            "--rms centres its rows when they are looked up, and then the norm needs no mean."
        )
    for tie in result.tied:
        yield f"{tie.table} is also {tie.head} and stays as it is; --untie copies it (+{tie.bytes:,} bytes)."
    for tie in result.untied:
        yield f"{tie.head} is a copy of {tie.table} now (+{tie.bytes:,} bytes)."
    yield from _not_covered(result)
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


def _not_covered(result: Folding) -> Iterator[str]:
    """What the traced call does not show."""
    if not result.not_run:
        return
    yield f"The traced call does not use {several(result.not_run)}: what these would read or write is not covered."
    if any(stream.what in (RESCALED, ROTATED) for stream in result.streams):
        yield "Streams have changed, so an input that needs these, such as an image, can give something else now."


def _planned(result: Folding) -> Iterator[str]:
    """A fold that was planned, and not done."""
    yield (
        "Planned only, from the graph and the stored tensors: “folded” means that it can be. Nothing was run and "
        "nothing was changed."
    )
    for tie in result.tied:
        yield f"{tie.table} is also {tie.head} and would stay as it is; --untie copies it (+{tie.bytes:,} bytes)."
    yield from _not_covered(result)


def _by_tensors(result: Folding, found: TensorCertificate) -> Iterator[str]:
    """A fold from files to files."""
    yield from (f"Failed: {broken}." for broken in found.broken)
    if not found.broken:
        yield (
            f"Each of {found.tensors:,} tensors of the written files is what it should be, rounded once, or has the "
            "same bits as before."
        )
    yield (
        "Nothing was run. `normscope verify FOLDER --text FILE` runs the original and the folded model in float64, one "
        "tensor at a time, and compares them."
    )
    if not result.changed:
        yield "Nothing could be folded: the tensors are unchanged."
    for tie in result.tied:
        yield f"{tie.table} is also {tie.head} and stays as it is; with a run, --untie copies it ({tie.bytes:,} bytes)."
    yield from _not_covered(result)
    if result.unused_tensors:
        yield f"{several(result.unused_tensors)} skipped: unused by the model."


def _counted(result: Folding) -> Iterator[str]:
    """How many of the norms that have a gain, and of those that subtract a mean, were folded."""
    gains, means = (
        [decision.what for decision in decisions if decision.what != NOTHING]
        for decisions in ([norm.affine for norm in result.norms], [norm.centring for norm in result.norms])
    )
    if FOLDED in gains or FOLDED in means:
        of_means = f", and the mean of {means.count(FOLDED)} of {len(means)}" if means else ""
        yield f"Gain and bias of {gains.count(FOLDED)} of {len(gains)} norms are folded{of_means}."
