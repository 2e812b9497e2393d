"""The queries that a head can produce: the image of a norm's ellipsoid under the map to its queries."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from normscope.checks import Floats
from normscope.geometry import Ellipsoid
from normscope.models.query_maps import AffineMap, HeadMaps, NoMapError
from normscope.norm import Norm
from normscope.results.inventory import FoundNorm
from normscope.studies.equal_attention import EqualQuery, equal_query, reach_along


@dataclass(frozen=True, eq=False)
class HeadRun:
    """What one head did on one sequence of a real run."""

    layer: str
    head: int
    key_head: int
    sharing: tuple[int, ...]  # the heads that read the same keys
    row: int  # the sequence, in its batch
    outputs: Mapping[str, Tensor]  # of all norms
    query: Floats  # (Tq, D)
    key: Floats  # (Tk, D)
    positions: NDArray[np.int64]  # of its keys, padding left out

    @property
    def last_key(self) -> int:
        return int(self.positions[-1])

    @property
    def last_query(self) -> int:
        return self.last_key if len(self.query) == len(self.key) else len(self.query) - 1

    @property
    def queries(self) -> Floats:
        """The queries at the positions of the keys; all queries if they belong to another sequence."""
        return self.query[self.positions] if len(self.query) == len(self.key) else self.query


class ReachableQueries:
    """The reachable queries of heads, from norms and weights, at the last position of a sequence."""

    def __init__(self, maps: HeadMaps, norms: Mapping[str, FoundNorm]) -> None:
        self._maps, self._norms = maps, norms
        self._ellipsoids: dict[tuple[str, int], tuple[AffineMap, Ellipsoid]] = {}  # by layer and head, the last of each
        self._directions: dict[tuple[str, int], tuple[AffineMap, tuple[Floats, float]]] = {}

    def ellipsoid(self, run: HeadRun) -> Ellipsoid:
        """All queries that the head can produce."""
        seen = run.query[run.last_query]
        found = self._maps.map(run.layer, "query", run.head, run.outputs, run.row, run.last_query, seen)
        key = (run.layer, run.head)
        if key not in self._ellipsoids or self._ellipsoids[key][0] is not found:
            self._ellipsoids[key] = found, self._image(found)
        return self._ellipsoids[key][1]

    def equal(self, run: HeadRun) -> EqualQuery:
        """The query that comes closest to scoring all keys equally."""
        seen = run.key[run.last_key]
        found = self._maps.map(run.layer, "key", run.sharing[0], run.outputs, run.row, run.last_key, seen)
        key = (run.layer, run.sharing[0])
        if key not in self._directions or self._directions[key][0] is not found:
            self._directions[key] = found, self._direction(found)
        direction, angle = self._directions[key][1]
        everywhere = self._maps.serves_all(found, run.outputs, run.row, run.key[: run.last_key + 1])
        try:
            return EqualQuery(direction, angle, reach_along(self.ellipsoid(run), direction), everywhere)
        except NoMapError as reason:
            return EqualQuery(direction, angle, None, everywhere, f"which queries can be made: {reason}")

    def _image(self, found: AffineMap) -> Ellipsoid:
        norm = self._norm(found)
        if not norm.scales:
            raise NoMapError(f"{found.norm} does not scale, so queries have no bound")
        image = norm.ellipsoid.through(found.matrix, found.shift)
        if not isinstance(image, Ellipsoid):
            raise NoMapError(f"{found.norm} has {norm.groups} groups, so queries fill a sum of ellipsoids, not one")
        return image

    def _direction(self, found: AffineMap) -> tuple[Floats, float]:
        dead = self._norm(found).ellipsoid.dead_directions
        if not dead.shape[1]:
            raise NoMapError(f"{found.norm} does not project, so no query scores all its outputs alike")
        return equal_query(found.matrix, dead)

    def _norm(self, found: AffineMap) -> Norm:
        known = self._norms[found.norm]
        if known.obstacle is not None:
            raise NoMapError(f"{found.norm}: {known.obstacle}")
        if known.norm is None or known.axis != -1 or known.size != found.matrix.shape[1]:
            raise NoMapError(f"{found.norm} does not normalize the last axis of its output as a whole")
        return known.norm
