"""The panels of one norm: where its outputs lie, their share on each axis, gains, out of reach, turning."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from normscope.checks import Floats
from normscope.report.gain_panels import MOST, NEEDS_TEXT, gain_panel, reach_panel, turning_panel
from normscope.report.marks import (
    Pair,
    Panel,
    Plane,
    PlaneAxis,
    Shares,
    Strip,
    packed_floats,
    packed_shares,
    packed_units,
)
from normscope.results.inspection import Axes, LandedSample, Landing, NormGeometry
from normscope.rules.norm_kinds import UNBOUNDED
from normscope.rules.prose import count, number, percent, quoted_token

PLANES = ("Longest", "Flattest", "Most used")
NAMED = 3  # axes with a label


def norm_panels(norm: NormGeometry, steps: Sequence[float]) -> Iterator[Panel]:
    """All panels of a norm; `steps` are those of all norms, to compare with."""
    yield _surface(norm)
    if norm.axes is not None and norm.axes.lengths is not None and len(norm.axes.lengths):
        yield _budget(norm, norm.axes.lengths)
    if norm.found.gain is not None and len(norm.found.gain):
        yield gain_panel(norm, norm.found.gain)
    if norm.gains is not None:
        yield reach_panel(norm, norm.gains, norm.axes)
    yield turning_panel(norm, steps)


def _sample(norm: NormGeometry) -> LandedSample | None:
    return None if norm.landing is None else norm.landing.sample


def _surface(norm: NormGeometry) -> Panel:
    """Where outputs lie: pictures in three planes, and the distance to the surface."""
    common: dict[str, Any] = {
        "id": "surface",
        "section": "norm",
        "norm": norm.name,
        "paper": "riechers",
        "formula": "y = b + √N·G·u with |u| ≤ 1, and u ⊥ 1 where the norm subtracts the mean. "
        "Distance to the surface: 1 − |u| = 1 − σ/√(σ² + eps).",
    }
    if norm.kind == "unknown":
        reason = norm.found.problem or "no reason given"
        return Panel(title="What this layer computes is not known", see=f"It fits no kind of norm: {reason}.", **common)
    if norm.kind in UNBOUNDED or norm.axes is None:
        why = "It does not scale" if norm.kind in UNBOUNDED else "All its outputs are one point"
        return Panel(title="There is no surface", see=f"{why}, so there is no ellipsoid to draw.", **common)
    dimension, sample = norm.dimension or 0, _sample(norm)
    plane = _plane(norm, norm.axes, sample)
    marks = () if plane is None else (plane,)
    if sample is None or sample.distances is None or norm.landing is None:
        title = f"Every output lies on or in an ellipsoid of {count(dimension, 'dimension')}, whatever the input"
        see = "The outline of that ellipsoid in the plane of two axes. Where the outputs of a text lie, a text shows."
        return Panel(title=title, see=see, marks=marks, command=NEEDS_TEXT, **common)
    tokens, missing = len(sample.distances), max(dimension - 2, 0)
    see = (
        f"Left: the true distance of {tokens:,} inputs from the center, over all {count(dimension, 'dimension')}; the "
        "direction is that in the plane of two axes. Right: the shadow of the same outputs on that plane. They look as "
        f"if they were inside, but what is missing is in the {_axes(missing)} that "
        f"{'is' if missing == 1 else 'are'} not drawn."
    )
    strip = Strip(
        "distance to the surface, log scale: the surface itself would be infinitely far to the left",
        1e-9,
        1.0,
        dots=packed_shares(np.maximum(sample.distances, 1e-9)),
        percent=True,
        first="≤ 10⁻⁷%",
        last="center",
    )
    grouped = (
        f"Its outputs fill a product of {norm.found.groups} ellipsoids, one per group; the outline is that of all axes "
        "together, and lies inside it."
    )
    notes = (grouped,) if norm.found.groups is not None and norm.found.groups > 1 else ()
    title = _distance_title(norm.landing, sample.distances)
    return Panel(title=title, see=see, marks=(*marks, strip), notes=notes, **common)


def _distance_title(landing: Landing, distances: Floats) -> str:
    farthest, tokens = float(distances.max()), len(distances)
    what = "Every output for this text" if tokens >= landing.inputs else f"All {tokens:,} sampled outputs"
    verb = "lies" if what.startswith("Every") else "lie"
    if farthest == 0:
        return f"{what} {verb} exactly on the surface"
    if farthest <= 1e-3:
        return f"{what} {verb} on the surface, to 1 part in {_parts(1 / farthest)}"
    median = float(np.median(distances))
    return f"Outputs lie inside: {percent(median)} below the surface in the median, {percent(farthest)} at most"


def _parts(value: float) -> str:
    """
    >>> _parts(3.7e6), _parts(52000.0), _parts(1e15)
    ('3.7 million', '52,000', '1·10¹⁵')
    """
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if size <= value < 1000 * size:
            return f"{value / size:.3g} {word}"
    return number(float(f"{value:.2g}"))


def _axes(many: int) -> str:
    return "1 axis" if many == 1 else f"{many:,} axes"


def _axis_name(sample: LandedSample | None, rank: int, dimension: int) -> str:
    if sample is None or sample.axis_channels is None or sample.axis_weights is None:
        return {0: "longest axis", 1: "second longest", dimension - 1: "shortest axis"}.get(rank, f"axis {rank}")
    channel = f"channel {sample.axis_channels[rank]}"
    return channel if sample.axis_weights[rank] > 0.9 else f"axis {rank} (near {channel})"


def _plane(norm: NormGeometry, axes: Axes, sample: LandedSample | None) -> Plane | None:
    lengths = axes.lengths
    if lengths is None or len(lengths) < 2:
        return None
    dimension = len(lengths)

    def axis(rank: int) -> PlaneAxis:
        return PlaneAxis(_axis_name(sample, rank, dimension), float(lengths[rank]), f"±{number(float(lengths[rank]))}")

    if sample is None or sample.planes is None or sample.plane_axes is None or sample.distances is None:
        outlines = (Pair("Longest", (axis(0), axis(1))), Pair("Flattest", (axis(dimension - 2), axis(dimension - 1))))
        return Plane(outlines[: 2 if dimension > 2 else 1])
    single = (norm.found.groups or 1) == 1
    even = float(np.sqrt(1 - 0.05 ** (2 / (dimension - 2)))) if dimension > 2 and single else None
    labels = _labelled(norm, sample)
    pairs = tuple(
        Pair(
            name,
            (axis(int(sample.plane_axes[2 * at])), axis(int(sample.plane_axes[2 * at + 1]))),
            _beyond(np.hypot(*sample.planes[:, 2 * at : 2 * at + 2].T), even),
            labels,
        )
        for at, name in enumerate(PLANES)
    )
    points, distances = packed_units(sample.planes), packed_shares(sample.distances)
    return Plane(pairs, points, distances, len(sample.distances), even)


def _labelled(norm: NormGeometry, sample: LandedSample) -> tuple[tuple[int, str], ...]:
    """The point with the largest input, with its token where it is known."""
    largest = None if norm.landing is None else norm.landing.largest
    if largest is None or largest.token is None:
        return ()
    place = f"token {largest.token.position}"
    text = largest.token.text
    return ((int(sample.peaks.argmax()), place if text is None else f"{quoted_token(text)}, {place}"),)


def _beyond(radius: Floats, even: float | None) -> str:
    if even is None:
        return ""
    outside, total = int(np.count_nonzero(radius > even)), len(radius)
    part = "None" if not outside else "All" if outside == total else f"{outside:,}"
    news = " These two axes get more than their share." if outside > 0.1 * total else ""
    return (
        f"{part} of {total:,} inputs {'is' if outside == 1 else 'are'} outside the dashed line; "
        f"of points spread evenly over the surface, 5% would be.{news}"
    )


def _budget(norm: NormGeometry, lengths: Floats) -> Panel:
    """The share of outputs on each axis."""
    sample, dimension = _sample(norm), len(lengths)
    common: dict[str, Any] = {
        "id": "budget",
        "section": "norm",
        "norm": norm.name,
        "paper": "riechers",
        "formula": "share of axis i: uᵢ² = ((y − b)·axisᵢ / lengthᵢ)², and Σ uᵢ² = |u|² ≤ 1. Axes used: (Σs)²/Σs².",
    }
    thinned = dimension > MOST
    note = (f"Drawn with {MOST} steps; a step shows the largest of its axes.",) if thinned else ()
    reach = packed_floats(_thinned(lengths, thinned))
    if sample is None or sample.shares is None:
        title = f"Its {_axes(dimension)} reach from {number(float(lengths[-1]))} to "
        title += number(float(lengths[0]))
        many = norm.landing is not None and norm.axes is not None and norm.kind not in UNBOUNDED
        why = "It has too many axes to take the share of each." if many else "The share of each, a text shows."
        command = "" if many else NEEDS_TEXT
        mark = Shares(reach, (), (), axes=dimension)
        see = f"How far each axis reaches, longest first. {why}"
        return Panel(title=title, see=see, marks=(mark,), notes=note, command=command, **common)
    median, high, largest = sample.shares.T
    top, even = int(median.argmax()), 1 / dimension
    name = _axis_name(sample, top, dimension)
    used = norm.landing.axes_used if norm.landing else None
    title = f"Of {_axes(dimension)}, {name} has the largest share of a median token: {percent(float(median[top]))}"
    see = (
        "Above: how far each axis reaches, longest first. Below: the share of a token’s squared length that lies on "
        "the axis; lengths are taken from the center, on each axis in units of its reach. On the surface, all shares "
        f"of a token add up to 1; even shares would be {percent(even)} each."
    )
    if used is not None:
        see += f" A median token is as narrow as {number(used.median)} even shares."
    named = list(dict.fromkeys([top, *np.argsort(-largest)[:NAMED].tolist()]))[:NAMED]
    labels = tuple(f"{_axis_name(sample, rank, dimension)}, {percent(float(largest[rank]))}" for rank in named)
    places = tuple(int(rank * MOST / dimension) if thinned else int(rank) for rank in named)
    mark = Shares(
        reach,
        labels,
        places,
        packed_shares(_thinned(median, thinned)),
        packed_shares(_thinned(high, thinned)),
        packed_shares(_thinned(largest, thinned)),
        even,
        dimension,
    )
    return Panel(title=title, see=see, marks=(mark,), notes=note, **common)


def _thinned(values: Floats, thinned: bool) -> Floats:
    """The largest of each of MOST runs, or all."""
    if not thinned:
        return values
    return np.array([part.max() for part in np.array_split(values, MOST)])
