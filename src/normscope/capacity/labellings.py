"""Points that networks of LayerNorms shatter: for every labelling of them there is a network that realises it.

A network of L LayerNorms of width 3 changes its label at most 2^L times along a line: the readout is zero at two places
of the last circle at most, and each layer doubles the places that a direction may come from. So 2^L + 1 points of a
line are the most that can be shattered. L + 2 are promised [1].

The search begins with the labelling that changes from point to point, for which `equal_creases` has a network. All others
are fitted from networks of labellings that differ in one point, in the order of their distance from that first one.
What is left is tried again from there, with numbers and leads varied at random.

[1] Ni et al., On the Nonlinearity of Layer Normalization, ICML 2024.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscope.capacity.equal_creases import creased_points, creasing_numbers, other_labels
from normscope.capacity.scaling_layer import WIDTH
from normscope.capacity.shatter_fit import fitted
from normscope.capacity.shatter_state import (
    MOST,
    Networks,
    exchanged,
    load_networks,
    network_of,
    read_networks,
    require_networks,
)
from normscope.checks import Floats, as_count, frozen, quoted
from normscope.errors import InputError

if TYPE_CHECKING:
    from torch import nn

SCHEMA_VERSION = 1
USUAL = 17  # points without being asked, where the depth would allow for more
DEEPEST = 64  # layers
PASSES = 20
LEAD, LEADS = 0.2, (0.01, 0.5)  # that is wanted of fitted networks: in the first pass, and in later ones
ENOUGH = 1e-3  # a lead that is kept
STEPS = 60
STARTS, MORE_STARTS = 6, 2  # for each labelling in the first pass, and more in each later one
VARIED, VARIATION = 0.7, (1e-3, 1e-1)  # share of starts that are varied in later passes, and by how much
KEEP = 20.0  # seconds between two writings of the state

Progress = Callable[[Iterable[Any], str], Iterable[Any]]


@dataclass(frozen=True)
class Runs:
    """The labellings that fall into so many runs of equal labels along the line."""

    runs: int
    labellings: int
    certified: int
    margin: float | None  # no right score of their networks leads by less; None if nothing is certified


@dataclass(frozen=True, repr=False, eq=False)
class Shattering:
    """Points, and for each certified labelling of them a network of so many LayerNorms."""

    depth: int
    seed: int
    points: Floats  # (M,)
    by_runs: tuple[Runs, ...]
    precision: int  # bits that were enough for all certificates
    seconds: float  # CPU time of this run
    networks: Networks = field(repr=False)

    @property
    def labellings(self) -> int:
        return sum(row.labellings for row in self.by_runs)

    @property
    def certified(self) -> int:
        """Labellings that are realised, shown in exact arithmetic; the float module is right as well."""
        return sum(row.certified for row in self.by_runs)

    @property
    def shatters(self) -> bool:
        return bool(self.networks.certified.all())

    @property
    def margin(self) -> float | None:
        """No right score of any network leads by less."""
        return min((row.margin for row in self.by_runs if row.margin is not None), default=None)

    @property
    def promised(self) -> int:
        """Points that the paper shows to be shattered."""
        return self.depth + 2

    @property
    def bound(self) -> int:
        """Points of a line beyond which nothing of this depth shatters."""
        return int(2**self.depth + 1)

    @property
    def open(self) -> list[str]:
        """Labellings without a network, a digit for each point."""
        rows = self.networks.labels[~self.networks.certified]
        return ["".join(map(str, row)) for both in (rows, 1 - rows) for row in both.tolist()]

    def network(self, labels: ArrayLike) -> "nn.Sequential":
        """The network for a labelling, 0 or 1 for each point; its second score is the higher one where the label is 1.

        It takes points as a column, (n, 1), in float64.
        """
        given = np.asarray(labels)
        if given.shape != self.points.shape or not np.isin(given, (0, 1)).all():
            raise InputError(f"labels must be 0 or 1 for each of {len(self.points)} points, got {labels!r}")
        last = int(given[-1])
        labelling = int((given.astype(np.int64) != last) @ (1 << np.arange(len(given))))
        if not self.networks.certified[labelling]:
            raise InputError("labels must be certified to have a network, but none was found for these")
        network = network_of(self.networks.numbers[labelling])
        return exchanged(network) if last else network

    def to_dict(self) -> dict[str, Any]:
        """Exactly what `normscope shatter --json` prints; schema: normscope/schemas/shatter.json."""
        return {
            "schema_version": SCHEMA_VERSION,
            "depth": self.depth,
            "width": WIDTH,
            "seed": self.seed,
            "points": self.points.tolist(),
            "labellings": self.labellings,
            "certified": self.certified,
            "shatters": self.shatters,
            "promised": self.promised,
            "bound": self.bound,
            "margin": self.margin,
            "precision": self.precision,
            "seconds": self.seconds,
            "by_runs": [vars(row) for row in self.by_runs],
            "open": self.open,
        }

    def __repr__(self) -> str:
        verdict = "shattered" if self.shatters else "not shown to be shattered"
        counts = f"{self.certified:,} of {self.labellings:,} labellings certified"
        return f"Shattering({len(self.points)} points {verdict} at depth {self.depth}: {counts})"


def shatter(
    depth: int,
    points: int | None = None,
    *,
    seed: int = 0,
    state: str | PathLike[str] | None = None,
    progress: Progress = lambda things, _: things,
) -> Shattering:
    """Points of a line and, for every labelling of them, a certified network of so many LayerNorms of width 3.

    Without a number of points: 2^L + 1, the most there can be, up to 17. With a state, a file ending in .npz, networks
    are kept there; the same call goes on from it, after every network in it has been checked again.

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
    networks, target = Networks.none_yet(depth, seed, chosen), None if state is None else Path(state)
    if target is not None:
        require_networks(target)
        if target.exists():
            networks = load_networks(target, depth, seed, chosen)
            _check_again(networks, progress)
    try:
        for _ in _search(networks, progress):
            if target is not None:
                networks.save(target)
    finally:
        if target is not None:
            networks.save(target)
    return _result(networks, time.process_time() - started)


def verify_shattering(path: str | PathLike[str], *, progress: Progress = lambda things, _: things) -> tuple[bool, str]:
    """Whether every network in a state of `shatter` does what it is said to do, in exact arithmetic; and why not."""
    try:
        networks = read_networks(Path(path))
    except ValueError as error:
        return False, str(error)
    said = int(networks.certified.sum())
    _check_again(networks, progress)
    shown = int(networks.certified.sum())
    if shown < said:
        return False, f"{2 * (said - shown):,} of {2 * said:,} labellings are not given by the networks kept for them"
    every = 2 * len(networks.certified)
    return True, (
        f"{2 * shown:,} of {every:,} labellings of {len(networks.points)} points "
        f"certified for networks of depth {networks.depth}"
    )


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


def _check_again(networks: Networks, progress: Progress) -> None:
    """Certify what a file says to be certified; what can't be is looked for again."""
    said = np.flatnonzero(networks.certified)
    networks.certified[:] = False
    for labelling in progress(said.tolist(), "Checking what the state holds"):
        if not networks.add(labelling, networks.numbers[labelling].copy()):
            networks.tried[labelling] = 0  # and its numbers are not kept


def _search(networks: Networks, progress: Progress) -> Iterator[None]:
    """Look for the networks that there are none of; yields now and then, when it is time to keep what there is."""
    order, due = _order(networks), time.monotonic() + KEEP
    for passed in range(PASSES):
        left = order[~networks.certified[order] & (networks.tried[order] <= passed)]
        for labelling in progress(left.tolist(), f"Labellings, pass {passed + 1}") if len(left) else ():
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


def _result(networks: Networks, seconds: float) -> Shattering:
    runs = 1 + np.count_nonzero(np.diff(networks.labels, axis=1), axis=1)
    rows = []
    for number in range(1, len(networks.points) + 1):
        these = runs == number
        shown = these & networks.certified
        margin = float(networks.margins[shown].min()) if shown.any() else None
        rows.append(Runs(number, 2 * int(these.sum()), 2 * int(shown.sum()), margin))
    return Shattering(
        depth=networks.depth,
        seed=networks.seed,
        points=networks.points,
        by_runs=tuple(rows),
        precision=int(networks.bits.max()),
        seconds=round(seconds, 3),
        networks=networks,
    )
