"""Points that networks of LayerNorms shatter: for every labelling of them there is a network that realises it.

A network of L LayerNorms of width 3 changes its label at most 2^L times along a line: the readout is zero at two places
of the last circle at most, and each layer doubles the places that a direction may come from. So 2^L + 1 points of a
line are the most that can be shattered. The paper guarantees L + 2 [1].

The search begins with the labelling that changes from point to point, for which `shatter_fit` has a network. All others
are fitted from networks of labellings that differ in one point, in the order of their distance from that first one.
Labellings still without a network are tried again, with numbers and leads varied at random.

Labelling k gives point i bit i of k as its label. The 2^(M − 1) that give the last point 0 are stored: the others are
their opposites, whose networks have the two rows of the readout exchanged.

[1] Ni et al., On the Nonlinearity of Layer Normalization, ICML 2024.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from normscope.capacity.plane_scaling import module_of
from normscope.capacity.shatter_fit import LAYER, READOUT, creased_points, creasing_numbers, fitted, other_labels
from normscope.certificates.check_networks import all_labels, by_runs, shown
from normscope.certificates.network_weights import layers_of_numbers
from normscope.checks import Floats, as_count, frozen, quoted
from normscope.errors import InputError
from normscope.files import require_writable, write_atomically
from normscope.progress import Progress, silent
from normscope.results.result import ENDINGS, load
from normscope.results.shattering import DEEPEST, MOST, Runs, Shattering

if TYPE_CHECKING:
    from torch import nn

USUAL = 17  # default number of points, where the depth allows for more
PASSES = 20
LEAD, LEADS = 0.2, (0.01, 0.5)  # target lead of fitted networks: in the first pass, and in later ones
ENOUGH = 1e-3  # a lead that is large enough to keep
STEPS = 60
STARTS, MORE_STARTS = 6, 2  # for each labelling in the first pass, and more in each later one
VARIED, VARIATION = 0.7, (1e-3, 1e-1)  # share of starts that are varied in later passes, and by how much
KEEP = 20.0  # seconds between two saves


def shatter(
    depth: int,
    points: int | None = None,
    *,
    seed: int = 0,
    resume: str | PathLike[str] | None = None,
    progress: Progress = silent,
) -> Shattering:
    """Points of a line and, for every labelling of them, a certified network of LayerNorms of width 3.

    Parameters
    ----------
    depth
        LayerNorms of each network, L.
    points
        How many points, up to 2^L + 1 and 20; by default 2^L + 1, the most there can be, up to 17.
    seed
        Random seed of the search.
    resume
        A .safetensors file that the result is saved to, every 20 seconds; if it exists, the search resumes from it,
        after every network in it has been checked again.
    progress
        Called with the labellings and a description; see `normscope.progress`.

    Returns
    -------
    Shattering
        The points, and a network for each certified labelling.

    >>> shatter(2)
    Shattering(5 points shattered at depth 2: 32 of 32 labellings certified)
    """
    started = time.process_time()
    depth, seed = as_count(depth, "depth", 1), as_count(seed, "seed", 0)
    if depth > DEEPEST:
        raise InputError(
            f"depth must be {DEEPEST} or less, got {quoted(depth)}: depth {_creases(MOST)} is enough for {MOST} points"
        )
    chosen = _points(depth, min(2**depth + 1, USUAL) if points is None else as_count(points, "points", 2))
    networks, target = Networks.none_yet(depth, seed, chosen), None if resume is None else Path(resume)
    if target is not None:
        require_writable(target, force=True, endings=ENDINGS)
        if target.exists():
            _take_over(networks, _saved(target, networks), progress)
    try:
        for _ in _search(networks, progress):
            if target is not None:
                write_atomically(networks.result(None).to_bytes(), target)
    finally:
        if target is not None:
            write_atomically(networks.result(None).to_bytes(), target)
    return networks.result(round(time.process_time() - started, 3))


@dataclass(eq=False)
class Networks:
    """The network found for each labelling, and how often it was searched for."""

    depth: int
    seed: int
    points: Floats  # (M,), ascending
    labels: NDArray[np.int8]  # (2^(M − 1), M)
    numbers: Floats  # (2^(M − 1), 6·depth + 3), as in `shatter_fit`
    certified: NDArray[np.bool_]
    margins: Floats  # of the certificates: the smallest lead of a right score; infinite where there is no network
    bits: int  # of precision that are enough for all of them
    tried: NDArray[np.int64]  # number of attempts

    @classmethod
    def none_yet(cls, depth: int, seed: int, points: Floats) -> "Networks":
        count = 2 ** (len(points) - 1)
        return cls(
            depth,
            seed,
            points,
            labels=all_labels(len(points)),
            numbers=np.zeros((count, LAYER * depth + READOUT)),
            certified=np.zeros(count, bool),
            margins=np.full(count, np.inf),
            bits=0,
            tried=np.zeros(count, np.int64),
        )

    def add(self, labelling: int, numbers: Floats) -> bool:
        """Keep a network for a labelling if it can be certified; return whether it was."""
        found = shown(numbers, self.points, self.labels[labelling])
        if found is None:
            return False
        self.numbers[labelling], self.margins[labelling] = numbers, found.leads.min()
        self.bits = max(self.bits, found.bits)
        self.certified[labelling] = True
        return True

    def near(self, labelling: int) -> list[Floats]:
        """Numbers of the networks known for labellings that differ in one point."""
        last = len(self.points) - 1
        nearest = [labelling ^ 1 << point for point in range(last)]
        found = [self.numbers[other] for other in nearest if self.certified[other]]
        opposite = labelling ^ (1 << last) - 1  # differs in all points but the last
        return [*found, other_labels(self.numbers[opposite])] if self.certified[opposite] else found

    def result(self, seconds: float | None) -> Shattering:
        """The networks so far as a result, to save or return."""
        finished = bool(self.certified.all())
        return Shattering(
            depth=self.depth,
            seed=None if finished else self.seed,
            points=tuple(self.points.tolist()),
            bits=self.bits,
            by_runs=tuple(Runs(*row) for row in by_runs(self.labels, self.margins)),
            numbers=frozen(np.where(self.certified[:, None], self.numbers, 0.0)),
            tried=None if finished else self.tried.copy(),
            seconds=seconds,
        )


def network_of(numbers: Floats, *, exchanged: bool = False) -> "nn.Sequential":
    """Linear, LayerNorm(3), …, Linear in float64: label 1 where the second score is the higher one.

    exchanged: the same with the two rows of the readout exchanged, which is the network of the opposite labels.
    """
    *layers, readout = layers_of_numbers(numbers)
    return module_of([*layers, readout[::-1] if exchanged else readout], 0.0)


def _saved(path: Path, wanted: Networks) -> Shattering:
    """A result that was saved for this depth and these points, and for this seed unless all networks are found."""
    saved = load(path)
    if not isinstance(saved, Shattering):
        raise InputError(f"{path} must be a result of normscope shatter to be resumed, got a {saved.kind}")
    same = saved.depth == wanted.depth and saved.points == tuple(wanted.points.tolist())
    if not same or saved.seed not in (None, wanted.seed):
        found_by = "" if saved.seed is None else f" and seed {saved.seed}"
        raise InputError(
            f"{path} must be about {len(wanted.points)} points, depth {wanted.depth} and seed {wanted.seed} to be "
            f"resumed, got {len(saved.points)} points, depth {saved.depth}{found_by}: choose another name"
        )
    return saved


def _take_over(networks: Networks, saved: Shattering, progress: Progress) -> None:
    """Certify the saved networks again; labellings whose network can't be certified are searched again."""
    assert saved.numbers is not None
    if saved.tried is not None:
        networks.tried[:] = saved.tried
    for labelling in progress(np.flatnonzero(saved.numbers.any(axis=1)).tolist(), "checking the file"):
        if not networks.add(labelling, saved.numbers[labelling].copy()):
            networks.tried[labelling] = 0


def _points(depth: int, count: int) -> Floats:
    if count > MOST:
        raise InputError(f"points must be {MOST} or fewer, got {quoted(count)}: each labelling needs a network")
    if count > 2**depth + 1:
        raise InputError(
            f"points must be {2**depth + 1} or fewer at depth {depth}, got {count}: "
            "the label changes at most 2^depth times along a line"
        )
    return frozen(creased_points(_creases(count))[:count])


def _creases(points: int) -> int:
    """The least n with 2ⁿ + 1 points."""
    return (points - 2).bit_length()


def _search(networks: Networks, progress: Progress) -> Iterator[None]:
    """Search for the missing networks; yields every 20 seconds so that the state is saved."""
    order, due = _order(networks), time.monotonic() + KEEP
    for passed in range(PASSES):
        left = order[~networks.certified[order] & (networks.tried[order] <= passed)]
        for labelling in progress(left.tolist(), f"labellings, pass {passed + 1}") if len(left) else ():
            _look_for(networks, labelling, passed)
            if time.monotonic() > due:
                yield
                due = time.monotonic() + KEEP


def _order(networks: Networks) -> NDArray[np.int64]:
    """Labellings by the number of points in which they, or their opposites, differ from the one that alternates."""
    count = len(networks.points)
    differ = (networks.labels != np.arange(count) % 2).sum(axis=1)
    return np.argsort(np.minimum(differ, count - differ), kind="stable")


def _look_for(networks: Networks, labelling: int, passed: int) -> None:
    """Fit networks to a labelling until one is certified."""
    signs = 2.0 * networks.labels[labelling] - 1.0
    random = np.random.default_rng([networks.seed, passed, labelling])
    starts = networks.near(labelling)
    random.shuffle(starts)
    if passed == 0 and not networks.certified.any():
        creasing = creasing_numbers(networks.depth, _creases(len(signs)))
        starts = [creasing, other_labels(creasing)]
    for near in starts[: STARTS + MORE_STARTS * passed]:
        start, lead = near, LEAD
        if passed:
            lead = np.exp(random.uniform(*np.log(LEADS)))
            size = np.exp(random.uniform(*np.log(VARIATION))) if random.random() < VARIED else 0.0
            start = near + size * random.normal(size=near.shape)
        numbers, most = fitted(start, networks.depth, networks.points, signs, lead, ENOUGH, STEPS)
        if most > ENOUGH and networks.add(labelling, numbers):
            break
    networks.tried[labelling] = passed + 1
