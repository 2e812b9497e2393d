"""Sentences on a network that has memorised samples."""

from collections.abc import Iterator

from normscope.results.memorized import Memorized

SYMBOLS, NAMED = "ox+#%@&=*~", 10


def remarks(result: Memorized) -> Iterator[str]:
    """Its depth, what was certified for which weights, and how it was found."""
    least = (
        ""
        if result.least_depth is None
        else f", and no network that reads this line has fewer than {result.least_depth}"
    )
    yield f"{_counted(result.depth)} of width {result.width}: projection merge needs up to {result.paper_depth}{least}."
    of = "the weights that the module stores"
    if result.exact_network is not None:
        of = f"exact weights of {result.weight_bits} bits, which the module holds rounded to {result.dtype}"
    margin = "" if result.margin is None else f"; the right score leads by {result.margin:.2g} or more"
    yield (
        f"{result.certified} of {result.count} samples are certified in exact arithmetic ({result.bits} bits), "
        f"for {of}{margin}."
    )
    yield f"Run in {result.dtype}, the module is right on {result.float_right} of {result.count} samples."
    spent = "" if result.seconds is None else f", in {result.seconds:.1f} s of CPU time"
    yield f"Found by {result.method}, from {result.runs} runs of equal labels along a line{spent}."
    names = zip(SYMBOLS, (each.label for each in result.classes[:NAMED]), strict=False)
    more = ", …" if len(result.classes) > NAMED else ""
    yield f"Along the line, {', '.join(f'{symbol} is {label}' for symbol, label in names)}{more}."


def _counted(norms: int) -> str:
    return f"{norms} LayerNorm" + "s" * (norms != 1)
