"""Vectors in the ellipsoid that prefer a token, for tokens of a large table block by block, by the exact method."""

import numpy as np

from normscope.certificates.check_tokens import verdict_of
from normscope.certificates.key_certificates import Ints
from normscope.certificates.token_certificates import OPEN, Frame
from normscope.checks import Floats
from normscope.separation.ellipsoid_queries import REACHABLE, UNREACHABLE, Rivals, reach
from normscope.separation.scores import tiles_of
from normscope.vocabulary.nearest_token import WITHIN, Block, Found, Weighted, drop_unproven, nearest_to
from normscope.vocabulary.token_directions import coordinate_map, scale_of
from normscope.vocabulary.token_view import View


class InEllipsoid:
    """The tokens of a view as reachable vectors see them, to be asked in blocks."""

    def __init__(self, view: View, frame: Frame, passed: View) -> None:
        """The same tokens twice: `passed` is the view whose rows are passed over, and may read a clock."""
        self._view, self._axes, self._seen = view, frame.axes, _seen(passed, frame)
        self.squares = np.einsum("ij,ij->i", self._seen.points, self._seen.points)

    def ask(self, block: Block) -> list[Found]:
        """What is found about each token of a block."""
        tokens, rivals = block
        found = [self._about(token, rival) for token, rival in zip(tokens.tolist(), rivals.tolist(), strict=True)]
        drop_unproven(self._view, tokens, found)
        return found

    def _about(self, token: int, rival: int) -> Found:
        place = int(self._view.place(token))
        status, y, supports, weights = reach(self._seen, np.array([place]), np.array([rival]))
        if status[0] == REACHABLE:
            return np.asarray(WITHIN * (self._axes @ y[0]))
        if status[0] == UNREACHABLE:
            used = supports[0] >= 0
            shares = weights[0][used] / weights[0][used].sum()
            return weighted_if_right(self._view, token, self._view.names[supports[0][used]], shares)
        nearest = nearest_to(self._seen.points, self.squares, place)
        return weighted_if_right(self._view, token, self._view.names[[nearest]], np.ones(1))


def weighted_if_right(view: View, token: int, indices: Ints, weights: Floats) -> Weighted | None:
    """Weights of other tokens, if they show that a token never wins or is tied."""
    verdict = verdict_of(view.table, view.reachable, token, indices, weights)
    return None if verdict == OPEN else Weighted(indices, weights, verdict)


def _seen(view: View, frame: Frame) -> Rivals:
    """Points as reachable vectors see them, turned to the axes of the frame, in units of its scale."""
    heights = np.zeros(len(view)) if view.heights is None else view.heights / scale_of(frame)
    points = np.empty((len(view), frame.axes.shape[1]))
    both = np.empty((len(view), frame.axes.shape[1] + 1), np.float32)
    turn = coordinate_map(frame, 0.0)
    for part in view.parts():
        points[part] = (view.points(part) - frame.center) @ turn
        both[part, :-1], both[part, -1] = points[part], heights[part]
    squares = np.einsum("ij,ij->i", points, points) + heights**2
    tiles = tiles_of(both, len(both))
    for array in (points, heights, tiles):  # as workers have them: one and the same compiled code
        array.flags.writeable = False
    return Rivals(points, heights, tiles, float(np.sqrt(squares.max())))
