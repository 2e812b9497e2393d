"""The nearest point of a hull, for tokens of a large table block by block, up to certificates that are checked.

What Wolfe's method leaves unclear is asked again among the few rivals that matter, by QR and then in whole numbers:
weights found among some rivals are weights, and a vector counts if the checker finds that it beats all.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.check_tokens import verdict_of
from normscope.certificates.key_certificates import Ints
from normscope.certificates.token_certificates import NEVER, OPEN, TIED
from normscope.certificates.token_scores import prefers, prefers_reachable
from normscope.checks import Floats
from normscope.separation.coordinates import Whitened, whiten
from normscope.separation.exact_simplex import Budget
from normscope.separation.near_ties import settle
from normscope.separation.nearest_point import INSIDE, SEPARATED, WITNESSED, Cloud, Known, nearest_points
from normscope.separation.passes import EXACT_ENTRIES
from normscope.separation.scores import tiles_of
from normscope.separation.simplex_weights import inside_simplex
from normscope.vocabulary.token_view import View

FEW = 4  # rivals looked at again, over the number of channels
STARTS = 3  # from which a token is asked again if its weights are not right
WITHIN = 1 - 1e-12  # length of a u that is certainly in the unit ball
ROUNDS = 8  # in which those that were missed are taken in


@dataclass(frozen=True, eq=False)
class Weighted:
    """Weights of others that give a token's point, and what they show: NEVER or TIED."""

    indices: Ints
    weights: Floats
    verdict: int


Found = Floats | Weighted | None  # a vector that provably prefers a token, what rules all vectors out, or neither
Block = tuple[
    Ints, Ints
]  # tokens by their number in the table; for each a point to begin with, by its number in the view


def drop_unproven(view: View, tokens: Ints, found: list[Found]) -> list[int]:
    """Take out vectors that do not provably prefer their tokens; returns the places of those."""
    having = [place for place, each in enumerate(found) if isinstance(each, np.ndarray)]
    if not having:
        return []
    vectors = np.array([found[place] for place in having])
    wins = (prefers_reachable if view.reachable else prefers)(view.table, tokens[having], vectors)
    unproven = [place for place, won in zip(having, wins, strict=True) if not won]
    for place in unproven:
        found[place] = None
    return unproven


class NearestPoints:
    """The tokens of a view, made round, to be asked in blocks: what a block finds does not depend on other blocks."""

    def __init__(self, view: View, wins: NDArray[np.bool_]) -> None:
        self._view, self._wins = view, wins
        self._whitened = whiten(view.keys(slice(None)), view.biased)
        self._cloud = _cloud(self._whitened)
        self.squares = np.einsum("ij,ij->i", self._whitened.points, self._whitened.points)

    def ask(self, block: Block) -> list[Found]:
        """What is found about each token of a block."""
        # The last two are large, but zeros take no memory until something is written there, which is for few points.
        count, tiles, witnesses = len(self._wins), np.zeros_like(self._cloud.tiles), np.zeros_like(self._cloud.points)
        self._known = Known(self._wins.copy(), np.zeros(count + 1, np.int64), tiles, witnesses, np.zeros(1, np.int64))
        self._ends: dict[int, tuple[Floats, Ints]] = {}  # where the search for a token ended: direction and support
        tokens, rivals = block
        places = self._view.place(tokens).tolist()
        found = [self._about(place, rival) for place, rival in zip(places, rivals.tolist(), strict=True)]
        for number in drop_unproven(self._view, tokens, found):
            found[number] = self._ask_again(places[number])
        drop_unproven(self._view, tokens, found)
        return found

    def _about(self, token: int, rival: int) -> Found:
        """A vector that may prefer the token, weights that rule out all vectors, or neither."""
        tied: Weighted | None = None
        for start in dict.fromkeys([rival, *self._other_starts(token)]):
            status, direction, support = self._search(token, start)
            self._ends[token] = direction, support
            if status in (SEPARATED, WITNESSED):
                return self._vector(self._whitened.queries(direction[None])[0])
            found = self._weighted(token, support) if status == INSIDE else None
            if found is not None and found.verdict == NEVER:
                return found
            tied = tied or found
        again = self._ask_again(token)
        return tied if again is None or (isinstance(again, Weighted) and again.verdict == TIED and tied) else again

    def _search(self, token: int, start: int) -> tuple[int, Floats, Ints]:
        """Status, direction and support."""
        status, directions, supports = nearest_points(self._cloud, self._known, np.array([token]), np.array([start]))
        return int(status[0]), directions[0], supports[0][supports[0] >= 0]

    def _other_starts(self, token: int) -> list[int]:
        """Where to begin again: another path ends in another simplex, which may be less thin."""
        farthest = np.argpartition(-self.squares, min(STARTS, len(self.squares) - 1))[: STARTS + 1]
        return [int(place) for place in farthest if place != token][:STARTS]

    def _ask_again(self, token: int) -> Found:
        """The same for a near tie, among the rivals that matter."""
        points = self._whitened.points
        if self._view.reachable:  # rows that differ may be the same to all reachable vectors
            twin = self._if_right(token, np.array([nearest_to(points, self.squares, token)]), np.ones(1))
            if twin is not None:
                return twin
        direction, support = self._ends[token]
        # Along the direction that was found, near ties are ahead; without one, it is the nearest that matter.
        ahead = points @ direction if direction.any() else 2 * (points @ points[token]) - self.squares
        ahead[token], ahead[support[support < len(points)]] = -np.inf, np.inf
        few = np.argsort(-ahead, kind="stable")[: min(len(points) - 1, FEW * (points.shape[1] + 1))]
        for _ in range(ROUNDS):
            keys = self._view.keys(np.append(token, few))
            settled = settle(keys, whiten(keys, self._view.biased), 0, Budget(EXACT_ENTRIES))
            if settled is None:
                return None
            if settled.query is None:
                assert settled.indices is not None
                assert settled.weights is not None
                return self._if_right(token, few[settled.indices - 1], settled.weights)
            missed = np.setdiff1d(self._ahead(token, settled.query), few)
            if not len(missed):
                return self._vector(settled.query)
            few = np.append(few, missed[: points.shape[1]])
        return None

    def _ahead(self, token: int, query: Floats) -> Ints:
        """Rivals that a query for the original keys does not put behind the token."""
        mantissa, power = np.frexp(query)
        power = power + self._whitened.exponents
        scaled = np.ldexp(mantissa, power - power.max())
        lead = (self._whitened.centred - self._whitened.centred[token]) @ scaled
        lead[token] = -np.inf
        return np.flatnonzero(lead >= 0)

    def _vector(self, query: Floats) -> Floats:
        vector = query[:-1] if self._view.biased else query
        return np.asarray(vector * (WITHIN / np.linalg.norm(vector))) if self._view.reachable else vector

    def _weighted(self, token: int, support: Ints) -> Weighted | None:
        """Weights inside a simplex."""
        if len(support) != self._whitened.points.shape[1] + 1:
            return None
        inside = inside_simplex(self._whitened, self._view.keys, np.array([token]), support[None])
        named = support < len(self._view)  # not the ray
        weights = inside.weights[0, named]
        return self._if_right(token, support[named], weights / weights.sum())

    def _if_right(self, token: int, indices: Ints, weights: Floats) -> Weighted | None:
        view = self._view
        verdict = verdict_of(view.table, view.reachable, int(view.names[token]), view.names[indices], weights)
        return None if verdict == OPEN else Weighted(view.names[indices], weights, verdict)


def nearest_to(points: Floats, squares: Floats, place: int) -> int:
    """The point nearest to another, given the squares of all."""
    nearness = 2 * (points @ points[place]) - squares
    nearness[place] = -np.inf
    return int(nearness.argmax())


def _cloud(whitened: Whitened) -> Cloud:
    """The points, and the ray if it imposes a condition."""
    points = whitened.points
    ray = np.zeros(points.shape[1]) if whitened.ray is None else whitened.ray
    tiles = tiles_of(points, len(points))
    for array in (points, tiles, ray):  # as workers have them: one and the same compiled code
        array.flags.writeable = False
    return Cloud(points, tiles, ray, whitened.ray is not None, float(whitened.longest))
