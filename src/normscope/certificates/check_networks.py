"""Check that networks of LayerNorms of width 3 give samples their labels: proven in ball arithmetic, counted in floats.

- exact: the network with these weights, in real arithmetic, gives the right class the highest score. A score that leads
  in balls leads in exact arithmetic; where balls overlap, the precision is raised.
- floats: the same weights in the module's own dtype, every sum in a fixed order, so all machines get the same counts.

Nothing here knows how a network was found.
"""

from collections import deque
from collections.abc import Container, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.balls import Ball, mapped, precision, scaled
from normscope.certificates.network_weights import (
    HIGHEST,
    WIDTH,
    ExactNetwork,
    Layers,
    StoredNetwork,
    layers_of_numbers,
)
from normscope.checks import Floats, quoted
from normscope.progress import Progress, silent

Indices = NDArray[np.int64]
OPEN = -1
GUARD = 40  # extra bits beyond those still correct after a layer
STAGES, COLUMNS = 12, 72  # of the labels along the line that a result shows
SYMBOLS = "ox+#%@&=*~"  # of the classes
CLOSE = 1e-9  # relative difference of margins, which another version of flint may round differently


class Exact(NamedTuple):
    """The class of each sample in real arithmetic."""

    winners: Indices  # the place of the highest score, OPEN where none was shown to be highest
    leads: Floats  # lower bounds on the winner's lead
    bits: int  # precision that was enough for all, or the highest tried


class Figures(NamedTuple):
    """Figures of a network on labelled samples; an entry for each class."""

    samples: list[int]
    certified: list[int]  # samples whose right score is the highest, in real arithmetic
    margins: list[float | None]  # the smallest lead of those
    float_right: list[int]
    bits: int
    stages: list[tuple[int, int, str]]  # LayerNorms so far, runs along the line, the labels in its order


def exact_labels(network: StoredNetwork | ExactNetwork, samples: Floats) -> Exact:
    """The classes that a network gives samples (m, d) in real arithmetic, at rising precision until all are decided."""
    winners, leads = np.full(len(samples), OPEN), np.full(len(samples), np.inf)
    bits = network.first_bits
    while True:
        undecided = np.flatnonzero(winners == OPEN)
        scores = deque(passage(network, samples[undecided], bits), maxlen=1).pop()
        with precision(bits):
            for sample, row in zip(undecided, scores, strict=True):
                winners[sample], leads[sample] = _winner(row)
        if (winners != OPEN).all() or bits >= HIGHEST:
            return Exact(winners, leads, bits)
        bits = min(2 * bits, HIGHEST)


def passage(network: StoredNetwork | ExactNetwork, samples: Floats, bits: int) -> Iterator[list[list[Ball]]]:
    """The output of each Linear for the samples, the scores last. The precision falls with the remaining accuracy."""
    with precision(bits):
        maps, rows = network.maps(), network.entering(samples)
    for affine in maps:
        yield rows
        with precision(bits):
            points = scaled(rows, network.eps)
            rows = mapped(affine, points)
        bits = min(bits, GUARD + max(max(x.rel_accuracy_bits(), y.rel_accuracy_bits()) for x, y in points))
        bits = max(bits, GUARD)
    yield rows


def journey(
    network: StoredNetwork | ExactNetwork, samples: Floats, bits: int, layers: Container[int] | None = None
) -> Iterator[tuple[int, Floats, Indices]]:
    """Places of samples on a line from 0 to 1 after each LayerNorm, or some of them, and their order on it.

    Before a LayerNorm, the place on the line is the ratio of the two coordinates in the plane, which is what the layer
    reads. After the last LayerNorm it is the number of the class with the highest score, plus a little that grows
    with its lead.
    """
    for layer, rows in enumerate(passage(network, samples, bits)):
        if layers is not None and layer not in layers:
            continue
        with precision(bits):
            if layer < network.depth:
                where = [(u / v).mid() for u, v in rows]
            else:
                found = [_winner(row) for row in rows]
                most = max((lead for _, lead in found if np.isfinite(lead)), default=1.0)
                where = [winner + 0.5 * min(lead / most, 1.0) for winner, lead in found]
            order = sorted(range(len(where)), key=where.__getitem__)
            first, last = where[order[0]], where[order[-1]]
            length = last - first if last > first else 1
            yield layer, np.array([float((each - first) / length) for each in where]), np.array(order)


def float_winners(layers: Layers, eps: float, samples: Floats) -> Indices:
    """The classes that the weights give in their own dtype, every sum in a fixed order; OPEN on overflow."""
    kind = layers[0].dtype.type
    with np.errstate(all="ignore"):
        state = samples.astype(kind)
        for place, layer in enumerate(layers):
            if place:
                mean = (state[:, 0] + state[:, 1] + state[:, 2]) / kind(WIDTH)
                away = state - mean[:, None]
                variance = (away[:, 0] ** 2 + away[:, 1] ** 2 + away[:, 2] ** 2) / kind(WIDTH)
                state = away / np.sqrt(variance + kind(eps))[:, None]
            total = np.zeros((len(state), len(layer)), kind)
            for channel in range(state.shape[1]):
                total += state[:, channel, None] * layer[None, :, channel]
            state = total + layer[None, :, -1]
    return np.where(np.isfinite(state).all(axis=1), state.argmax(axis=1), OPEN).astype(np.int64)


def figures(
    layers: Layers, eps: float, exact: ExactNetwork | None, samples: Floats, labels: Indices, classes: int
) -> Figures:
    """All figures of a network: for its exact weights, or for those that the module stores if it has none."""
    network = StoredNetwork(layers, eps) if exact is None else exact
    found, floats = exact_labels(network, samples), float_winners(layers, eps, samples)
    right = found.winners == labels
    each = [labels == number for number in range(classes)]
    return Figures(
        samples=[int(mine.sum()) for mine in each],
        certified=[int((mine & right).sum()) for mine in each],
        margins=[float(found.leads[mine & right].min()) if (mine & right).any() else None for mine in each],
        float_right=[int((mine & (floats == labels)).sum()) for mine in each],
        bits=found.bits,
        stages=_stages(network, samples, labels, found.bits),
    )


def check_memorized(result: Any, progress: Progress = silent, against: Any = None) -> tuple[bool, str]:
    """Whether every sample in a `Memorized` gets its label, and all figures in it are right.

    Where there are exact weights, the module's weights must be the exact ones, rounded.

    Parameters
    ----------
    result
        As it was loaded.
    progress
        Not used: the check is quick.
    against
        A table with the samples and labels that the network should have memorised, as `read_labelled_table` gives it.

    Returns
    -------
    (holds, reason)
        The reason says what was shown, or what is wrong first.
    """
    if against is not None and (fault := _other_samples(result, against)):
        return False, fault
    layers, exact, samples = result.layers, result.exact_network, result.samples.astype(np.float64)
    if exact is not None and not _same_layers(exact.rounded(layers[0].dtype), layers):
        return False, "the weights of the module are not the exact weights of the network, rounded"
    found = figures(layers, result.eps, exact, samples, result.label_numbers, len(result.classes))
    if fault := _wrong_figure(result, found):
        return False, fault
    count = sum(found.samples)
    of, stores = "the weights that the module stores", ""
    if exact is not None:
        of, stores = f"exact weights of {exact.bits} bits", f" stores them rounded to {result.dtype}, and"
    return True, (
        f"all {count:,} samples get their labels, shown with {found.bits} bits for {of}; "
        f"the module{stores} is right on {sum(found.float_right):,} in floats"
    )


def check_shattering(result: Any, progress: Progress = silent) -> tuple[bool, str]:
    """Whether every network in a `Shattering` gives the labels that it is stored for, and all figures in it are right.

    Parameters
    ----------
    result
        As it was loaded.
    progress
        See `normscope.progress`.

    Returns
    -------
    (holds, reason)
        The reason says what was shown, or what is wrong first.
    """
    points, labels = np.array(result.points), all_labels(len(result.points))
    kept = np.flatnonzero(result.numbers.any(axis=1))
    margins, bits, wrong = np.full(len(labels), np.inf), 0, 0
    for labelling in progress(kept.tolist(), "networks"):
        found = shown(result.numbers[labelling], points, labels[labelling])
        if found is None:
            wrong += 1
        else:
            margins[labelling], bits = found.leads.min(), max(bits, found.bits)
    if wrong:
        return False, f"{2 * wrong:,} of {2 * len(kept):,} labellings are not realised by the networks stored for them"
    rows = by_runs(labels, margins)
    said = [(row.runs, row.labellings, row.certified) for row in result.by_runs]
    if said != [row[:3] for row in rows] or not all(
        _same_margin(row.margin, margin) for row, (*_, margin) in zip(result.by_runs, rows, strict=True)
    ):
        return False, "the table of runs does not match the networks"
    if result.bits != bits:
        return False, f"{bits} bits of precision decide all labels, and the result says {result.bits}"
    return True, (
        f"{2 * len(kept):,} of {2 * len(labels):,} labellings of {len(points)} points "
        f"certified for networks of depth {result.depth}"
    )


def shown(numbers: Floats, points: Floats, labels: NDArray[np.int8]) -> Exact | None:
    """The proof in exact arithmetic that a network gives the points these labels; None if it does not.

    Floats must be right as well. The network of the opposite labels has the two rows of the readout exchanged.
    """
    layers, samples = layers_of_numbers(numbers), points[:, None]
    exact = exact_labels(StoredNetwork(layers, 0.0), samples)
    right = (exact.winners == labels).all() and (float_winners(layers, 0.0, samples) == labels).all()
    return exact if right else None


def all_labels(points: int) -> NDArray[np.int8]:
    """Every labelling that gives the last point 0: labelling k gives point i bit i of k.

    >>> all_labels(3).tolist()
    [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]]
    """
    return (np.arange(2 ** (points - 1))[:, None] >> np.arange(points) & 1).astype(np.int8)


def by_runs(labels: NDArray[np.int8], margins: Floats) -> list[tuple[int, int, int, float | None]]:
    """For each number of runs: how many labellings have it, how many of them are certified, the smallest margin.

    labels are half of all labellings, the others are their opposites; a margin is infinite where there is no network.
    """
    runs = 1 + np.count_nonzero(np.diff(labels, axis=1), axis=1)
    rows = []
    for number in range(1, labels.shape[1] + 1):
        these = margins[runs == number]
        certified = int(np.isfinite(these).sum())
        rows.append((number, 2 * len(these), 2 * certified, float(these.min()) if certified else None))
    return rows


def count_runs(labels: NDArray[Any]) -> int:
    """Runs of equal labels in the order given.

    >>> count_runs(np.array([0, 0, 1, 0]))
    3
    """
    return 1 + int(np.count_nonzero(labels[1:] != labels[:-1]))


def _wrong_figure(result: Any, found: Figures) -> str | None:
    """The first wrong figure of a result; None if all are right."""
    count, certified = sum(found.samples), sum(found.certified)
    if certified < count:
        return f"{count - certified:,} of {count:,} samples are not shown to get their labels"
    for number, each in enumerate(result.classes):
        said = (each.samples, each.certified, each.float_right)
        counted = (found.samples[number], found.certified[number], found.float_right[number])
        if said != counted or not _same_margin(each.margin, found.margins[number]):
            return f"the figures of class {number + 1} do not match its samples"
    if result.bits != found.bits:
        return f"{found.bits} bits of precision decide all samples, and the result says {result.bits}"
    if [(each.layer, each.runs, each.labels) for each in result.stages] != found.stages:
        return "the labels along the line are not those of the samples"
    return None


def _other_samples(result: Any, table: Any) -> str | None:
    """The first difference between the samples of a result and those of a table; None if they agree."""
    if table.samples.shape != result.samples.shape:
        (rows, columns), (count, channels) = table.samples.shape, result.samples.shape
        return (
            f"the network was certified on {count} samples of {channels} channels, "
            f"and {table.file} has {rows} of {columns}"
        )
    with np.errstate(over="ignore"):
        moved = (table.samples.astype(result.dtype) != result.samples).any(axis=1)
    renamed = np.array([str(label) for label in result.labels.tolist()]) != np.array(table.labels)
    differ = np.flatnonzero(moved | renamed)
    if not len(differ):
        return None
    what = "another sample" if moved[differ[0]] else f"label {quoted(table.labels[differ[0]])}"
    return (
        f"line {table.lines[differ[0]]} of {table.file} has {what}; "
        f"{len(differ):,} of {len(renamed):,} samples differ from those that were certified"
    )


def _stages(
    network: StoredNetwork | ExactNetwork, samples: Floats, labels: Indices, bits: int
) -> list[tuple[int, int, str]]:
    """Labels in the order of the line, after some of the LayerNorms."""
    chosen = set(np.linspace(0, network.depth, min(STAGES, network.depth + 1)).round().astype(int).tolist())
    stages = []
    for layer, _, order in journey(network, samples, bits, chosen):
        row = labels[order]
        ends = np.linspace(0, len(row), min(COLUMNS, len(row)) + 1).astype(int)
        commonest = [int(np.bincount(row[a:b]).argmax()) for a, b in pairwise(ends)]
        stages.append((layer, count_runs(row), "".join(SYMBOLS[number % len(SYMBOLS)] for number in commonest)))
    return stages


def _winner(row: list[Ball]) -> tuple[int, float]:
    """The index of the score above all others, and a lower bound on its lead."""
    best = max(range(len(row)), key=lambda place: row[place].mid())
    leads = [row[best] - other for place, other in enumerate(row) if place != best]
    if all(lead > 0 for lead in leads):
        return best, min(float(lead.lower()) for lead in leads)
    return OPEN, np.inf


def _same_layers(one: Layers, other: Layers) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True)
    )


def _same_margin(said: float | None, shown: float | None) -> bool:
    if said is None or shown is None:
        return said is shown
    return bool(np.isclose(said, shown, rtol=CLOSE, atol=0.0))
