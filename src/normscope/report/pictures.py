"""Pictures for papers, slides and the README: matplotlib figures, drawn without a display."""

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.benchmarks.axes import AxesBenchmark
from normscope.checks import Floats
from normscope.geometry import Ellipsoid
from normscope.norm import Norm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 400
SURFACE, AXES, POINTS = "#4c72b0", "#c44e52", "#333333"


def geometry_picture(norms: Mapping[str, Norm], chosen: str) -> "Figure":
    """The ellipsoid of the chosen norm in its three longest axes, beside the semi-axes of the other bounded norms."""
    figure = _new_figure(width=11.5, height=4.8)
    draw_ellipsoid(figure.add_subplot(1, 2, 1, projection="3d"), norms[chosen], chosen)
    others = {name: norm.ellipsoid for name, norm in norms.items() if name != chosen}
    lengths = figure.add_subplot(1, 2, 2)
    draw_lengths(lengths, others)
    lengths.yaxis.tick_right()
    lengths.yaxis.set_label_position("right")
    return figure


def draw_ellipsoid(ax: Any, norm: Norm, name: str) -> None:
    """The ellipsoid of a norm cut by its three longest axes, with the outputs for random inputs seen along them."""
    ellipsoid = norm.ellipsoid
    if ellipsoid.dimension < 3 or not ellipsoid.bounded:
        raise ValueError(f"a picture in three axes needs a bounded set of dimension 3 or more, got {ellipsoid!r}")
    lengths = ellipsoid.lengths[:3]
    around, down = np.meshgrid(np.linspace(0, 2 * np.pi, 61), np.linspace(0, np.pi, 31))
    ball = np.stack([np.cos(around) * np.sin(down), np.sin(around) * np.sin(down), np.cos(down)])  # (3, 31, 61)
    surface = ball * lengths[:, None, None]
    ax.plot_surface(*surface, color=SURFACE, alpha=0.12, linewidth=0)
    ax.plot_wireframe(*surface, color=SURFACE, alpha=0.15, linewidth=0.5, rcount=13, ccount=13)
    inputs = np.random.default_rng(0).standard_normal((SAMPLES, norm.size))
    seen = (norm(inputs) - ellipsoid.center) @ ellipsoid.axes(3)
    ax.scatter(*seen.T, s=6, color=POINTS, alpha=0.7, linewidth=0, label=f"outputs for {SAMPLES} Gaussian inputs")
    for i, length in enumerate(lengths):
        ends = np.zeros((3, 2))
        ends[i] = -length, length
        ax.plot(*ends, color=AXES, linewidth=1.5, label="semi-axes, with their lengths" if i == 0 else None)
        ax.text(*(1.1 * ends[:, 1]), f"{length:.3g}", color=AXES)
    ax.set_title(f"{name}: {norm.kind}, {norm.size} channels, dimension {ellipsoid.dimension}")
    ax.set(xlabel="axis 1", ylabel="axis 2", zlabel="axis 3", aspect="equal")
    ax.legend(loc="upper left", fontsize=8)


def draw_lengths(ax: Any, ellipsoids: Mapping[str, Ellipsoid]) -> None:
    """All semi-axes in descending order, one line for each bounded ellipsoid."""
    styles = cycle(("-", "--", "-.", ":"))
    for name, ellipsoid in ellipsoids.items():
        if ellipsoid.bounded and ellipsoid.dimension:
            order = np.arange(1, ellipsoid.dimension + 1)
            ax.plot(order, ellipsoid.lengths, next(styles), label=name, linewidth=1.4)
    ax.set(title="All semi-axes of each norm", xlabel="axis, longest first")
    ax.set(ylabel="length (units of the output)", yscale="log")
    ax.grid(alpha=0.3)
    ax.legend(fontsize=8, loc="lower left")


def growth_picture(result: AxesBenchmark) -> "Figure":
    """Time for all semi-axes against N, with the dense solver where it was run."""
    figure = _new_figure(width=6.5, height=4.5)
    ax = figure.add_subplot()
    sizes = [point.size for point in result.growth]
    ax.loglog(sizes, [point.distinct_seconds for point in result.growth], "o-", label="normscope, all gains distinct")
    ax.loglog(sizes, [point.bfloat16_seconds for point in result.growth], "s-", label="normscope, bfloat16 gains")
    dense = [row for row in result.comparisons if row.quantity == "lengths"]
    ax.loglog([row.size for row in dense], [row.dense_seconds for row in dense], "^--", label="torch.linalg.eigvalsh")
    linear: Floats = np.array(sizes, dtype=float) * result.growth[0].distinct_seconds / sizes[0]
    ax.loglog(sizes, linear, ":", color="grey", label="∝ N")
    ax.set(title="All semi-axis lengths of a LayerNorm", xlabel="channels N", ylabel="CPU time (s), one thread")
    ax.grid(alpha=0.3, which="both")
    ax.legend(fontsize=8)
    return figure


def _new_figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure  # not pyplot: no display, no global state

    return Figure(figsize=(width, height), dpi=150, layout="constrained")
