"""Pictures for papers, slides and the README: matplotlib figures, drawn without a display."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.checks import Floats
from normscope.errors import InputError
from normscope.results.inspection import Inspection, NormGeometry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUTLINE = 256  # values of a curve that are drawn
NAMED = 12  # lines that a legend can name; beyond, colour shows the depth
SURFACE, AXES, POINTS = "#4c72b0", "#c44e52", "#333333"


def geometry_picture(inspection: Inspection) -> "Figure":
    """The ellipsoid of the first norm with three axes, with its outputs if a text was run, beside all semi-axes."""
    drawable = [norm for norm in inspection.norms if norm.axes is not None and (norm.dimension or 0) >= 3]
    if not drawable:
        raise InputError(
            "a picture needs a norm whose outputs fill a bounded set of dimension 3 or more, and there is none"
        )
    figure = new_figure(width=11.5, height=4.8)
    draw_ellipsoid(figure.add_subplot(1, 2, 1, projection="3d"), drawable[0])
    lengths = figure.add_subplot(1, 2, 2)
    draw_lengths(lengths, drawable)
    lengths.yaxis.tick_right()
    lengths.yaxis.set_label_position("right")
    return figure


def draw_ellipsoid(ax: Any, norm: NormGeometry) -> None:
    """The ellipsoid of a norm cut by its three longest axes, with its outputs for a text seen along them."""
    from matplotlib.ticker import MaxNLocator

    longest = _lengths(norm)[:3]
    points = None if norm.landing is None else norm.landing.points
    around, down = np.meshgrid(np.linspace(0, 2 * np.pi, 61), np.linspace(0, np.pi, 31))
    ball = np.stack([np.cos(around) * np.sin(down), np.sin(around) * np.sin(down), np.cos(down)])  # (3, 31, 61)
    surface = ball * longest[:, None, None]
    ax.plot_surface(*surface, color=SURFACE, alpha=0.12, linewidth=0)
    ax.plot_wireframe(*surface, color=SURFACE, alpha=0.15, linewidth=0.5, rcount=13, ccount=13)
    if points is not None:
        name = f"outputs for {len(points)} tokens, seen along the axes"
        ax.scatter(*points.T, s=6, color=POINTS, alpha=0.7, linewidth=0, label=name)
    for i, length in enumerate(longest):
        ends = np.zeros((3, 2))
        ends[i] = -length, length
        ax.plot(*ends, color=AXES, linewidth=1.5, label="semi-axes, with their lengths" if i == 0 else None)
        ax.text(*(1.1 * ends[:, 1]), f"{length:.3g}", color=AXES)
    ax.set_title(f"{norm.name}\n{norm.kind}, the three longest of {norm.dimension} axes", fontsize=10)
    ax.set(xlabel="axis 1", ylabel="axis 2", zlabel="axis 3 (units of the output)", aspect="equal")
    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.set_major_locator(MaxNLocator(4))  # more would overlap where axes meet
    ax.legend(loc="upper left", fontsize=8)


def draw_lengths(ax: Any, norms: Sequence[NormGeometry]) -> None:
    """All semi-axes in descending order, one line for each norm, coloured by depth."""
    from matplotlib import colormaps

    colours = colormaps["viridis"](np.linspace(0, 0.95, len(norms)))
    for norm, colour in zip(norms, colours, strict=True):
        lengths = outline(_lengths(norm))
        rank = np.linspace(1, norm.dimension or 1, len(lengths))
        ax.plot(rank, lengths, color=colour, linewidth=1.3, label=norm.name if len(norms) <= NAMED else None)
    ax.set_title(f"All semi-axes of {len(norms)} norms\nfirst to last from dark to light", fontsize=10)
    ax.set(xlabel="axis, longest first")
    ax.set(ylabel="length (units of the output)", yscale="log")
    ax.grid(alpha=0.3)
    if len(norms) <= NAMED:
        ax.legend(fontsize=7, loc="lower left")


def outline(ordered: Floats) -> Floats:
    """At most OUTLINE values of a sorted array, evenly spaced in rank, ends included.

    >>> outline(np.arange(1000.0))[[0, 1, -1]]
    array([  0.,   4., 999.])
    """
    if len(ordered) <= OUTLINE:
        return ordered
    ranks = np.linspace(0, len(ordered) - 1, OUTLINE).round().astype(np.intp)
    return np.take(ordered, ranks)


def _lengths(norm: NormGeometry) -> Floats:
    if norm.axes is None or norm.axes.lengths is None or len(norm.axes.lengths) < 3:
        raise InputError(f"{norm.name} must fill a bounded set of dimension 3 or more, got {norm.dimension}")
    return norm.axes.lengths


def as_label(name: str, longest: int = 40) -> str:
    """A name as text that is not taken for a formula, its end kept where it is too long."""
    shown = name if len(name) <= longest else f"…{name[1 - longest :]}"
    return shown.replace("$", r"\$")


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of a size in inches, laid out so that nothing overlaps."""
    from matplotlib.figure import Figure  # not pyplot: no display, no global state

    return Figure(figsize=(width, height), dpi=150, layout="constrained")
