"""Sentences on how well classes separate at the norms of a model."""

from collections.abc import Iterator

from normscope.results.class_scatter import ClassScatter


def remarks(result: ClassScatter) -> Iterator[str]:
    """Whether LSSR says anything, and where it changes most."""
    trivial = [norm for norm in result.norms if norm.trivial]
    if trivial:
        enough = max(norm.size for norm in trivial) + result.classes
        yield (
            f"LSSR is trivially 0 at {len(trivial)} of {len(result.norms)} norms: {result.samples} inputs are too few "
            f"for it to say anything there; {enough} are enough."
        )
    changes = {norm.name: norm.change for norm in result.norms if norm.change is not None}
    if changes:
        lower = sum(change < 0 for change in changes.values())
        most = min(changes, key=lambda name: changes[name])
        where = f", {most} the most: by {-changes[most]:.3g}" if lower else ""
        yield f"{lower} of {len(changes)} norms lower LSSR{where}."
