"""A picture of how the time for all semi-axes grows."""

from typing import TYPE_CHECKING

import numpy as np

from normscope.checks import Floats
from normscope.report.pictures import new_figure
from normscope_lab.bench.axes_bench import AxesBenchmark

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def growth_picture(result: AxesBenchmark) -> "Figure":
    """Time for all semi-axes against N, with the dense solver where it was run."""
    figure = new_figure(width=6.5, height=4.5)
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
