"""The journey of samples through a network of LayerNorms: a line is creased until every class is in one piece."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from normscope.report.pictures import new_figure
from normscope.results.memorized import Memorized

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THREADS = 80  # samples whose paths are drawn as lines; more would hide each other


def journey_picture(result: Memorized) -> "Figure":
    """Where samples are on the line after every layer, and beside it their labels in the order of the line."""
    from matplotlib import colormaps

    where, label = result.journey, np.asarray(result.label_numbers)
    layers, classes = np.arange(len(where)), len(result.classes)
    colours = colormaps["tab10" if classes <= 10 else "turbo"]
    shade = colours(label) if classes <= 10 else colours(label / (classes - 1))
    figure = new_figure(width=11.5, height=min(3.5 + 0.12 * len(where), 9.0))
    line, order = figure.subplots(1, 2, sharey=True)
    if len(label) <= THREADS:
        for path, colour in zip(where.T, shade, strict=True):
            line.plot(path, layers, color=colour, linewidth=0.6, alpha=0.5)
    for number in range(classes):
        mine = where[:, label == number]
        line.plot(
            mine.ravel(),
            np.repeat(layers, mine.shape[1]),
            ".",
            markersize=4 if len(label) <= THREADS else 2,
            color=shade[label == number][0],
            label=str(result.classes[number].label) if classes <= 10 else None,
        )
    line.set(title="samples on the line", xlabel="place, the ends at 0 and 1", ylabel="after LayerNorm number")
    line.invert_yaxis()
    if classes <= 10:
        figure.legend(loc="outside lower center", ncols=classes, title=result.label_column)
    order.imshow(
        shade[_in_order(where)],
        aspect="auto",
        interpolation="nearest",
        extent=(0, len(label), len(where) - 0.5, -0.5),
    )
    order.set(
        title=f"their labels in the order of the line: {result.runs} runs become {classes}",
        xlabel="samples, in order",
    )
    figure.suptitle(
        f"{len(label)} samples memorised by {result.depth} LayerNorm{'s' if result.depth != 1 else ''} "
        f"of width {result.width}, found by {result.method}"
    )
    return figure


def _in_order(where: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each layer, the samples in the order of the line."""
    return np.argsort(where, axis=1, kind="stable")
