"""Verdicts on all tokens of a table, and their proofs, as plain arrays.

    can win   a hidden vector prefers the token to all others: one that is stored, or the token's own direction
    never     weights of other tokens show that no hidden vector does
    tied      the same, but the token equals another one, or its weights hold only up to rounding
    open      nothing has been shown yet

Own directions suffice for almost all tokens, so a few arrays represent all of their vectors: with axes A, variances v
and a center, the own direction of token i with power p is

    q = A·v⁻ᵖ·Aᵀ(xᵢ − center)      with x = w where any hidden vector counts: q is the hidden vector;
                                   with x = √N·ΠGw where only reachable ones count: u = q/|q|
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats
from normscope.errors import InputError

OPEN, WINS, NEVER, TIED = 0, 1, 2, 3
WORDS = {OPEN: "open", WINS: "can win", NEVER: "never", TIED: "tied"}
POWERS = (0.75, 0.5, 1.0, 0.25)  # of an own direction, best first


@dataclass(frozen=True, eq=False)
class Frame:
    """Principal axes of a set of points: center, axes and variances."""

    center: Floats  # (N,)
    axes: Floats  # (N, r)
    variances: Floats  # (r,)


@dataclass(frozen=True, eq=False)
class TokenCertificates:
    """Certificates for one set of hidden vectors. Arrays of a wrong dtype, shape or range are refused.

    The weights of `weight_tokens[a]` are entries starts[a] to starts[a + 1] of `indices` and `weights`.
    """

    verdict: NDArray[np.int8]  # (V,)
    power: Floats  # (V,): of the token's own direction; 0 if its certificate is another
    query_tokens: Ints
    queries: Floats  # (len(query_tokens), N): hidden vectors, or the u of reachable ones
    weight_tokens: Ints
    starts: Ints
    indices: Ints
    weights: Floats
    frame: Frame | None = None  # None where no own direction is used

    def __post_init__(self) -> None:
        fault = next(_form_faults(self), None)
        if fault is not None:
            raise InputError(fault)

    def count(self, verdict: int) -> int:
        return int(np.count_nonzero(self.verdict == verdict))

    def weighted(self) -> Iterator[tuple[int, Ints, Floats]]:
        """Each token that has weights, with the tokens they apply to and the weights."""
        for token, (start, stop) in zip(self.weight_tokens.tolist(), pairwise(self.starts.tolist()), strict=True):
            yield token, self.indices[start:stop], self.weights[start:stop]

    @property
    def with_vector(self) -> NDArray[np.bool_]:
        """Whether each token has a vector here, stored or its own direction."""
        found = self.power != 0
        found[self.query_tokens] = True
        return np.asarray(found)

    @property
    def with_weights(self) -> NDArray[np.bool_]:
        """Whether each token has weights here."""
        return np.isin(np.arange(len(self.verdict)), self.weight_tokens)


DTYPES = dict.fromkeys(("query_tokens", "weight_tokens", "starts", "indices"), "int64") | {"verdict": "int8"}
MATRICES = ("queries", "axes")


def _form_faults(found: TokenCertificates) -> Iterator[str]:
    """Errors, most basic first: later checks rely on earlier ones, so only the first is meaningful."""
    yield from _array_faults(found)
    yield from _number_faults(found)
    frame = found.frame
    if (frame is not None) != found.power.any():
        yield "center, axes and variances must be there if, and only if, own directions are used"
    if frame is not None and (
        frame.axes.shape != (len(frame.center), len(frame.variances))
        or not frame.axes.size
        or not (frame.variances > 0).all()
    ):
        yield "axes must have an entry for each of the center, and each a positive variance"
    several = np.flatnonzero(found.with_vector & found.with_weights)
    several = np.append(several, found.query_tokens[found.power[found.query_tokens] != 0])
    if len(several):
        yield f"token {several[0]} must have one certificate, got more"


def _array_faults(found: TokenCertificates) -> Iterator[str]:
    for part in (found, found.frame):
        for name in [] if part is None else [each.name for each in fields(part) if each.name != "frame"]:
            array, kind, axes = getattr(part, name), DTYPES.get(name, "float64"), 2 if name in MATRICES else 1
            got = str(array.dtype) if isinstance(array, np.ndarray) else type(array).__name__
            if got != kind:
                yield f"array {name} must be of {kind}, got {got}"
            elif not np.isfinite(array).all():
                yield f"array {name} must be finite"
            elif array.ndim != axes:
                yield f"array {name} must have {axes} axes, got shape {array.shape}"


def _number_faults(found: TokenCertificates) -> Iterator[str]:
    count, starts = len(found.verdict), found.starts
    if not np.isin(found.verdict, list(WORDS)).all():
        yield f"verdicts must be numbers from {min(WORDS)} to {max(WORDS)}"
    if found.power.shape != (count,) or not np.isin(found.power[found.power != 0], POWERS).all():
        yield f"there must be a power for each token: 0, or one of {', '.join(map(str, POWERS))}"
    for name in ("query_tokens", "weight_tokens", "indices"):
        numbers = getattr(found, name)
        if ((numbers < 0) | (numbers >= count)).any():
            yield f"{name} must be numbers of tokens, below {count}"
        if name != "indices" and (np.diff(numbers) <= 0).any():
            yield f"{name} must be in ascending order"
    if len(found.queries) != len(found.query_tokens):
        yield f"there must be a vector for each of {len(found.query_tokens)} tokens, got {len(found.queries)}"
    if len(starts) != len(found.weight_tokens) + 1 or found.indices.shape != found.weights.shape:
        yield "there must be weights with their tokens for each of weight_tokens"
    elif starts[0] != 0 or starts[-1] != len(found.weights) or (np.diff(starts) < 1).any():
        yield "starts must divide the weights among weight_tokens"
