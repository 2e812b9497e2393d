"""`normscope.capacity.shatter`: points of a line, and a network of LayerNorms for every labelling of them."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

from normscope.certificates.check_networks import all_labels
from normscope.certificates.network_weights import WIDTH
from normscope.checks import quoted
from normscope.errors import InputError
from normscope.results.describe import NOT_IN_JSON, Column, Table
from normscope.results.memorized import Array
from normscope.results.result import Result, named

DEEPEST, MOST = 64, 20  # layers, points


@dataclass(frozen=True)
class Runs:
    """The labellings that fall into this number of runs of equal labels along the line."""

    runs: Annotated[int, Column("runs of labels", "Runs of equal labels along the line.")]
    labellings: Annotated[int, Column("labellings", "Labellings with this number of runs.", ",")]
    certified: Annotated[int, Column("certified", "Labellings for which a network was certified.", ",")]
    margin: Annotated[float | None, Column("least margin", "No right score of their networks leads by less.", ".2g")]


@dataclass(frozen=True, repr=False)
class Shattering(
    Result,
    kind="shattering",
    schema_version=2,
    checked_by="normscope.certificates.check_networks:check_shattering",
    remarked_by="normscope.rules.shattering:remarks",
):
    """Points, and for each certified labelling of them a network of the given depth; see `network`."""

    depth: int  # number of LayerNorms in every network
    seed: int | None  # of an unfinished search, needed to resume it; None if every labelling has a network
    points: tuple[float, ...]  # ascending
    bits: int  # precision that was enough for all certificates
    by_runs: Annotated[tuple[Runs, ...], Table("{0.title}")]
    numbers: Array = field(
        default=None, repr=False, compare=False
    )  # (2^(points − 1), 6·depth + 3): a row for each labelling that gives the last point 0
    tried: Array = field(
        default=None, repr=False, compare=False
    )  # number of attempts for each; None if every labelling has a network
    seconds: Annotated[float | None, NOT_IN_JSON] = field(default=None, compare=False)  # CPU time; not saved

    def __post_init__(self) -> None:
        if not 1 <= self.depth <= DEEPEST or not 2 <= len(self.points) <= MOST:
            raise InputError(f"there must be 1 to {DEEPEST} layers and 2 to {MOST} points")
        if not np.isfinite(self.points).all() or not (np.diff(self.points) > 0).all():
            raise InputError("points must be finite and ascending")
        shape = (2 ** (len(self.points) - 1), 6 * self.depth + 3)
        numbers = self.numbers
        if numbers is None or numbers.shape != shape or numbers.dtype != np.float64:
            raise InputError(f"numbers must be float64 of shape {shape}: a network for every labelling of the points")
        if not np.isfinite(numbers).all():
            raise InputError("numbers must be finite")
        if self.tried is not None and (self.tried.shape != shape[:1] or self.tried.dtype != np.int64):
            raise InputError(f"tried must be int64 of shape {shape[:1]}")
        if not (self.shatters == (self.seed is None) == (self.tried is None)):
            raise InputError("seed and tried must be there if, and only if, networks are missing")
        if self.seed is not None and self.seed < 0:
            raise InputError(f"seed must be 0 or more, got {quoted(self.seed)}")

    @property
    def width(self) -> int:
        """Channels of every LayerNorm."""
        return WIDTH

    @property
    def labellings(self) -> int:
        return sum(row.labellings for row in self.by_runs)

    @property
    def certified(self) -> int:
        """Labellings proven to be realised in exact arithmetic; floats are right as well."""
        return sum(row.certified for row in self.by_runs)

    @property
    def shatters(self) -> bool:
        """Whether every labelling has a network."""
        assert self.numbers is not None
        return bool(self.numbers.any(axis=1).all())

    @property
    def margin(self) -> float | None:
        """The smallest lead of a right score of any network."""
        return min((row.margin for row in self.by_runs if row.margin is not None), default=None)

    @property
    def promised(self) -> int:
        """Number of points that the paper proves to be shattered."""
        return self.depth + 2

    @property
    def bound(self) -> int:
        """The most points of a line that a network of this depth can shatter."""
        return int(2**self.depth + 1)

    @property
    def open(self) -> tuple[str, ...]:
        """Labellings without a network, a digit for each point."""
        assert self.numbers is not None
        rows = all_labels(len(self.points))[~self.numbers.any(axis=1)]
        return tuple("".join(map(str, row)) for both in (rows, 1 - rows) for row in both.tolist())

    @property
    def holds(self) -> bool:
        """Whether every stored network was certified; `shatters` says whether all labellings have one."""
        assert self.numbers is not None
        return self.certified == 2 * int(self.numbers.any(axis=1).sum())

    def network(self, labels: ArrayLike) -> Any:
        """The network for a labelling, as a torch module.

        Parameters
        ----------
        labels
            0 or 1 for each point.

        Returns
        -------
        nn.Sequential
            It takes points as a column, (n, 1), in float64; its second score is higher where the label is 1.
        """
        given = np.asarray(labels)
        if given.shape != (len(self.points),) or not np.isin(given, (0, 1)).all():
            raise InputError(f"labels must be 0 or 1 for each of {len(self.points)} points, got {labels!r}")
        last = int(given[-1])
        labelling = int((given.astype(np.int64) != last) @ (1 << np.arange(len(given))))
        assert self.numbers is not None
        if not self.numbers[labelling].any():
            raise InputError("labels must have a certified network, but none was found for these")
        return named("normscope.capacity.labellings:network_of")(self.numbers[labelling], exchanged=bool(last))

    @cached_property
    def title(self) -> str:
        """Title of the table."""
        return f"{len(self.points)} points, depth {self.depth}"

    def __repr__(self) -> str:
        verdict = "shattered" if self.shatters else "not shown to be shattered"
        counts = f"{self.certified:,} of {self.labellings:,} labellings certified"
        return f"Shattering({len(self.points)} points {verdict} at depth {self.depth}: {counts})"
