"""Check that a hidden vector prefers a token to all others: products with the whole table, with a rounding bound.

Single precision first (unit roundoff s = 2⁻²⁴). Rows are centred at their mean m, which changes all scores alike, and
rows and vectors are scaled by powers of two, so that no entry exceeds 1. A vector x and a row y = w − m (with a bias as
one more channel, n in all) are rounded to single precision, each entry by a share of s, or by τ = 2⁻¹²⁶ where it is
tiny. With the n products added in any order, the error of a score is at most

    γ·|x|·max|y| + o·|y| + 8nτ,     γ = (n + 4)s/(1 − (n + 4)s)

where o bounds how far the entries of x are from those of an output of the norm, if x must be one. A token that leads by
more than twice that wins. All others are scored again in double precision (unit roundoff 2⁻⁵³), with an error up to

    Σₖ ((n + 3)·2⁻⁵³·|hₖ| + oₖ)·maxⱼ|wⱼₖ| + 2⁻⁵²·max|c| + n·2⁻¹⁰⁶⁰

and rivals within this bound of the token are scored in exact fractions. A lead that is neither above the bound
nor above 0 in fractions does not count. No search code is imported.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Ints
from normscope.certificates.token_certificates import Frame
from normscope.certificates.token_table import UNIT, Outputs, Table
from normscope.checks import Floats
from normscope.errors import InputError

Flags = NDArray[np.bool_]
SINGLE, TINY, TINIER = 2.0**-24, 2.0**-126, 2.0**-1060
SAFE = 1.01  # covers the rounding of the bounds themselves
MANY = 4096  # vectors in single precision
FEW = 256  # vectors in double precision
MOST_NEAR = 64  # with more rivals within rounding of a token, it counts as not proven


def prefers(table: Table, tokens: Ints, vectors: Floats) -> Flags:
    """Whether each hidden vector (m, N) provably prefers its token to all others.

    >>> table = Table(np.array([[0.0], [1.0], [3.0]], np.float32))
    >>> prefers(table, np.array([2, 1]), np.array([[1.0], [1.0]]))
    array([ True, False])
    """
    return _in_doubles(table, tokens, vectors, np.zeros_like(vectors), by_row=False)


def prefers_reachable(table: Table, tokens: Ints, u: Floats) -> Flags:
    """Whether the outputs of the norm for each u (m, N) prefer its token to all others, and |u| ≤ 1."""
    vectors, off, inside = _reached(outputs_of(table), u)
    inside[inside] = _in_doubles(table, tokens[inside], vectors[inside], off[inside], by_row=False)
    return inside


def outputs_of(table: Table) -> Outputs:
    """The outputs of the norm before a table."""
    if table.outputs is None:
        raise InputError("reachable vectors need a table with the outputs of a norm, got a table without")
    return table.outputs


@dataclass(frozen=True, eq=False)
class OwnDirectionCheck:
    """The own directions of tokens, as `token_certificates` defines them, scored against the whole table.

    Where any hidden vector is allowed, a direction in which the token leads by its row alone counts: a vector long
    enough makes up for any bias. Rivals of the same row and a lower bias are then behind in any case.
    """

    table: Table
    frame: Frame
    reachable: bool

    def wins(self, power: float, tokens: Ints) -> Flags:
        """Whether each token wins along its own direction of that power."""
        vectors = self._vectors(power, tokens)
        off, possible = np.zeros_like(vectors), np.asarray(np.isfinite(vectors).all(axis=1))
        if self.reachable:
            vectors, off, possible = _reached(outputs_of(self.table), vectors)
        shown = self._scorer.wins(tokens, vectors, off) & possible
        again = np.flatnonzero(possible & ~shown)
        by_row = not self.reachable
        shown[again] = _in_doubles(self.table, tokens[again], vectors[again], off[again], by_row=by_row)
        return shown

    def _vectors(self, power: float, tokens: Ints) -> Floats:
        """Hidden vectors, or the u of reachable ones, of length just below 1: (m, N). They need no proof."""
        points, frame = self.table.doubles(tokens), self.frame
        if self.reachable:
            points = outputs_of(self.table).pull(points)
        with np.errstate(all="ignore"):  # overflow is not finite, and wins nothing
            relative = (frame.variances / frame.variances.max()) ** -power
            along = ((points - frame.center) @ frame.axes * relative) @ frame.axes.T
            lengths = np.linalg.norm(along, axis=1, keepdims=True)
            return np.asarray(along * ((1 - 1e-12) / np.where(lengths > 0, lengths, 1.0)))

    @cached_property
    def _scorer(self) -> "_Singles":
        return _Singles(self.table, with_bias=self.reachable)


def _reached(outputs: Outputs, u: Floats) -> tuple[Floats, Floats, Flags]:
    """The outputs for each u, bounds on the error of their entries, and whether |u| ≤ 1 for certain."""
    size = len(outputs.gain)
    with np.errstate(all="ignore"):
        inside = np.asarray(np.einsum("ij,ij->i", u, u) <= 1 - 2 * (size + 2) * UNIT)
        mean = np.abs(u).mean(axis=1, keepdims=True) if outputs.projects else 0.0
        off = (size + 8) * UNIT * np.abs(outputs.reach) * (np.abs(u) + mean) + 2 * UNIT * np.abs(outputs.center)
        return outputs.at(u), off + np.where(outputs.reach != 0, TINIER, 0.0), inside


@dataclass(frozen=True, eq=False)
class _Singles:
    """A table in single precision, centred and scaled, made in parts each time it is needed."""

    table: Table
    with_bias: bool

    def wins(self, tokens: Ints, vectors: Floats, off: Floats) -> Flags:
        """Whether each vector (m, N) prefers its token by more than the bound."""
        with np.errstate(all="ignore"):  # values that are not finite win nothing
            asked, spare = self._asked(vectors, off)
            doubt = self._gamma * np.linalg.norm(asked, axis=1) + spare
            doubt = SAFE * (doubt * self._longest + 8 * asked.shape[1] * TINY)
            singles = asked.astype(np.float32)
            own, best, line = np.full(len(tokens), np.nan), np.full(len(tokens), -np.inf), np.arange(len(tokens))
            for part in self.table.parts():
                scores = singles @ self._rows(part).T
                here = (tokens >= part.start) & (tokens < part.stop)
                itself = line[here], tokens[here] - part.start
                own[here], scores[itself] = scores[itself], -np.inf
                best = np.maximum(best, scores.max(axis=1))
            return np.asarray(own - best > 2 * SAFE * doubt)

    def _asked(self, vectors: Floats, off: Floats) -> tuple[Floats, Floats]:
        """Vectors scaled to entries of at most 1, with 1 for the bias as last entry; and |off|."""
        entries = np.column_stack([vectors, np.ones(len(vectors))]) if self._biased else vectors
        powers = -np.frexp(np.abs(entries).max(axis=1, keepdims=True))[1]
        return np.ldexp(entries, powers), np.linalg.norm(np.ldexp(off, powers), axis=1)

    def _rows(self, part: slice) -> NDArray[np.float32]:
        return (self._centred(part) * self._scale).astype(np.float32)

    def _centred(self, part: slice) -> Floats:
        rows = self.table.keys(part) if self._biased else self.table.doubles(part)
        rows -= self._center
        return rows

    @property
    def _biased(self) -> bool:
        return self.with_bias and self.table.bias is not None

    @property
    def _gamma(self) -> float:
        """γ; with too many products for it, nothing is proven."""
        share = (self.table.channels + self._biased + 4) * SINGLE
        return share / (1 - share) if share < 1 else np.inf

    @cached_property
    def _center(self) -> Floats:
        rows = (self.table.keys(part) if self._biased else self.table.doubles(part) for part in self.table.parts())
        return np.asarray(sum(block.sum(axis=0) for block in rows) / len(self.table))

    @cached_property
    def _scale(self) -> float:
        """The power of two that brings all entries to 1 or below."""
        return float(np.ldexp(1.0, -max(np.frexp(np.abs(self._centred(part)).max())[1] for part in self.table.parts())))

    @cached_property
    def _longest(self) -> float:
        """The length of the longest row."""
        parts = (self._centred(part) * self._scale for part in self.table.parts())
        return float(SAFE * max(np.linalg.norm(rows, axis=1).max() for rows in parts))


def _in_doubles(table: Table, tokens: Ints, vectors: Floats, off: Floats, *, by_row: bool) -> Flags:
    """Whether each vector, with entries known up to `off`, provably scores its token above all others.

    By row: biases count only between equal rows. Rivals within rounding are rescored exactly, unless the vector
    itself is only known up to rounding.
    """
    wins, bias = np.zeros(len(tokens), bool), None if by_row else table.bias
    for start in range(0, len(tokens), FEW):
        part = slice(start, start + FEW)
        some, asked = tokens[part], vectors[part]
        with np.errstate(all="ignore"):
            own = np.einsum("ij,ij->i", table.doubles(some), asked) + (0.0 if bias is None else bias[some])
            best = np.full(len(some), -np.inf)
            for _, scores in _scores(table, some, asked, bias):
                best = np.maximum(best, scores.max(axis=1))
            doubt = ((table.channels + 3) * UNIT * np.abs(asked) + off[part]) @ table.widest + table.channels * TINIER
            doubt += 0.0 if bias is None else 2 * UNIT * np.abs(bias).max()
            wins[part] = own - best > 2 * SAFE * doubt
            close = (np.abs(own - best) <= 2 * SAFE * doubt) & ~off[part].any(axis=1)
        for a in np.flatnonzero(close & np.isfinite(doubt)):
            near = [
                first + np.flatnonzero(own[a] - scores[0] <= 4 * SAFE * doubt[a])
                for first, scores in _scores(table, some[[a]], asked[[a]], bias)
            ]
            wins[start + a] = _exactly(table, int(some[a]), np.concatenate(near), asked[a], by_row)
    return wins


def _scores(table: Table, tokens: Ints, vectors: Floats, bias: Floats | None) -> Iterator[tuple[int, Floats]]:
    """Scores of a block of rivals at a time, with the number of the first: (m, block); −∞ for the token itself."""
    line = np.arange(len(tokens))
    for part in table.parts():
        scores = vectors @ table.doubles(part).T
        scores += 0.0 if bias is None else bias[part]
        here = (tokens >= part.start) & (tokens < part.stop)
        scores[line[here], tokens[here] - part.start] = -np.inf
        yield part.start, scores


def _exactly(table: Table, token: int, near: Ints, vector: Floats, by_row: bool) -> bool:
    """Whether a vector prefers a token to rivals, without rounding."""
    if by_row and table.bias is not None:  # equal rows of a lower bias are behind
        lower = (table.rows[near] == table.rows[token]).all(axis=1) & (table.bias[near] < table.bias[token])
        near = near[~lower]
    if len(near) > MOST_NEAR:
        return False
    weights = [Fraction(entry) for entry in vector.tolist()]

    def score(number: int) -> Fraction:
        row = table.doubles(np.array([number]))[0].tolist()
        added = Fraction(0) if by_row or table.bias is None else Fraction(float(table.bias[number]))
        return sum((Fraction(entry) * weight for entry, weight in zip(row, weights, strict=True)), added)

    own = score(token)
    return all(own > score(rival) for rival in near.tolist())
