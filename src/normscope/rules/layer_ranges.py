"""What stands out in ranges, in sentences."""

from collections.abc import Iterator

from normscope.results.layer_ranges import LayerRanges, TensorRange
from normscope.results.rows import path_text, several


def remarks(result: LayerRanges) -> Iterator[str]:
    """The verdict on the limit; which tensors it is about; what is not covered; which inputs; what the text used."""
    yield f"{result.limit.sentence}."
    rows = [*result.layers, *result.tensors, *result.others]
    for row in [row for row in rows if row.verdict in ("reached", "not excluded", "too close to call")][:5]:
        yield _beyond(result, row)
    unbounded = [row for row in result.layers if not row.bounded]
    reasons: dict[str, list[str]] = {}
    for row in unbounded:
        reasons.setdefault(row.why or "", []).append(row.layer)
    for why, layers in reasons.items():
        yield f"Unbounded because of {why}: {several(tuple(layers))}."
    if not unbounded and result.layers:
        yield f"All {len(result.layers)} linear layers are bounded, whatever the input."
    if result.sizes is not None:
        yield f"{result.sizes}."
    used = [row for row in (*result.layers, *result.tensors) if row.used is not None]
    if used:
        most = max(used, key=lambda row: row.used or 0.0)
        yield (
            f"On the text, {path_text(most.layer)} ({most.what}) comes nearest to its bound: {most.used:.2f} of it; "
            f"the median over {len(used)} tensors is {sorted(row.used or 0.0 for row in used)[len(used) // 2]:.2f}."
        )


def _beyond(result: LayerRanges, row: TensorRange) -> str:
    where = f"{path_text(row.layer)} ({row.what}, channel {row.channel})"
    text = "" if row.observed is None else f"; on the text it stays within {row.observed:.4g}"
    if row.verdict == "reached":
        return f"{where} passes {result.limit.largest:g} for an input of {row.norm}: {row.reached:.6g}{text}."
    close = "is too close to call" if row.verdict == "too close to call" else "is not excluded"
    reached = "" if row.reached is None else f", reached {row.reached:.6g}"
    return f"{where} {close}: bound {row.bound:.6g}{reached}{text}."
