"""Check what a fold promises about stored tensors: identities that need no inputs.

    centred W′                Π W′ = W′,  and W − W′ is its mean
    reader of a norm          Π W′diag(g′) = Π W diag(g),   Π(f·W′b′ + c′) = Π(f·W b + c)       Π only if W′ is centred
    the norm itself           g′ is 1, or still 0

Checked in float64 on the tensors before and after, looked up by name, without the code that computed them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from normscope.checks import Floats

ALGEBRA = 1e-11  # relative to the largest number that goes into an identity
LARGEST_DIFFERENCE = 1e-9  # in float64, relative to the largest value of an output
MORE_THAN_ROUNDING = 10  # times the rounding error of the original: tolerance for stored weights

BLOCK = 2**16  # numbers that are compared at a time: they stay in the cache

Stored = Callable[[str], Floats]  # a stored tensor by its name
Identity = tuple[str, bool]  # in words, and whether it holds


@dataclass(frozen=True)
class TakenBy:
    """A linear layer that takes over the gain and bias of the norm that it reads."""

    layer: str
    weight: str
    axis: int  # of the weight, along its inputs; the weight is a matrix, or a stack of them
    bias: str | None  # the tensor that takes W·s, a row for each matrix of a stack; None if s is 0
    factor: float  # between the norm and the layer


@dataclass(frozen=True, eq=False)
class Taken:
    """The gain and bias that all readers of a norm take over from it."""

    norm: str
    gain: Floats  # t: 1 where the norm keeps its own
    bias: Floats  # s
    readers: tuple[TakenBy, ...]
    gain_tensor: str | None  # where the norm stores its own gain
    bias_tensor: str | None
    adds_one: bool  # whether its gain is 1 + w for the stored w

    def gain_in(self, stored: Stored) -> Floats:
        """The gain of the norm, as it is stored."""
        if self.gain_tensor is None:
            return np.ones_like(self.gain)
        return stored(self.gain_tensor).reshape(-1) + (1.0 if self.adds_one else 0.0)

    def bias_in(self, stored: Stored) -> Floats:
        """The bias of the norm, as it is stored."""
        return np.zeros_like(self.bias) if self.bias_tensor is None else stored(self.bias_tensor).reshape(-1)


@dataclass(frozen=True)
class Promise:
    """What must be true of the stored tensors of a folded model, each by the first of its names."""

    centred: Mapping[str, int]  # tensor → the axis over which its mean becomes zero
    taken: tuple[Taken, ...]


@dataclass(frozen=True)
class Scaling:
    """Powers of two in a model: tensors become 2^k times what they were."""

    exponents: Mapping[str, int]  # k by the first name of a tensor; others are unchanged
    gains_less_one: frozenset[str]  # tensors w of which 1 + w is the gain of a norm
    outputs: Mapping[str, int]  # k by norm: its output is 2^k times what it was


@dataclass(frozen=True, eq=False)
class Turning:
    """Orthogonal matrices in a model: tensors are contracted with them along some axes."""

    matrices: Mapping[str, Floats]  # by stream
    keep_ones: frozenset[str]  # streams whose mean a norm subtracts
    axes: Mapping[str, tuple[tuple[int, str], ...]]  # by the first name of a tensor: axes, and the streams along them
    outputs: Mapping[str, str]  # by norm: the stream that its output turns with


def identities(promise: Promise, before: Stored, after: Stored) -> Iterator[Identity]:
    """Every identity between stored tensors that a fold promises, in words, and whether it holds.

    >>> weights = np.array([[1.0, 5.0], [3.0, 3.0]])
    >>> dict(identities(Promise({"W": 0}, ()), lambda name: weights, lambda name: weights - weights.mean(axis=0)))
    {'W has mean zero over its outputs': True, 'W has lost nothing but its mean': True}
    """
    readers = [reader for taken in promise.taken for reader in taken.readers]
    otherwise_changed = {reader.weight for reader in readers} | {reader.bias for reader in readers}
    for name, axis in promise.centred.items():
        old, new = before(name), after(name)
        yield f"{name} has mean zero over its outputs", _small(new.mean(axis=axis), old, new)
        if name not in otherwise_changed:
            lost = old - new
            yield f"{name} has lost nothing but its mean", _small(lost - lost.mean(axis=axis, keepdims=True), old)
    for taken in promise.taken:
        if (taken.gain != 1).any():
            ones = np.where(taken.gain_in(before) == 0, 0.0, 1.0)
            yield f"the gain of {taken.norm} is 1, or still 0", bool((taken.gain_in(after) == ones).all())
        for reader in taken.readers:
            yield from _of_reader(taken, reader, reader.weight in promise.centred, before, after)


def scaling_identities(scaling: Scaling, before: Stored, after: Stored) -> Iterator[Identity]:
    """Every tensor that was scaled is its power of two times what it was, to the last bit where it is stored as it is.

    >>> scaling = Scaling({"W": -3}, frozenset(), {})
    >>> dict(scaling_identities(scaling, lambda name: np.array([8.0, 0.1]), lambda name: np.array([1.0, 0.0125])))
    {'W is 2^-3 times what it was': True}
    """
    for name, exponent in scaling.exponents.items():
        old, new = before(name), after(name)
        if name in scaling.gains_less_one:
            same = _small(new + 1 - np.ldexp(old + 1, exponent), np.ldexp(old, exponent), np.ones(1))
        else:
            same = bool((new == np.ldexp(old, exponent)).all())
        yield f"{name} is 2^{exponent} times what it was", same


def turning_identities(turning: Turning, before: Stored, after: Stored) -> Iterator[Identity]:
    """Every matrix is orthogonal and keeps what it must, and every tensor that was turned is what it was, turned back.

    >>> half = np.array([[1.0, -1.0], [1.0, 1.0]]) / np.sqrt(2)
    >>> turning = Turning({"x": half}, frozenset(), {"W": ((1, "x"),)}, {})
    >>> dict(turning_identities(turning, lambda name: np.eye(2), lambda name: half))
    {'the matrix of x is orthogonal': True, 'W turned back is what it was': True}
    """
    for stream, matrix in turning.matrices.items():
        one = np.eye(len(matrix))
        yield f"the matrix of {stream} is orthogonal", _small(matrix @ matrix.T - one, one)
        if stream in turning.keep_ones:
            yield f"the matrix of {stream} keeps the vector of ones", _small(matrix.sum(axis=1) - 1, one)
    for name, axes in turning.axes.items():
        old, new = before(name), after(name)
        for axis, stream in axes:
            new = np.moveaxis(np.tensordot(new, turning.matrices[stream], ([axis], [1])), -1, axis)
        yield f"{name} turned back is what it was", _small(new - old, old)


def _of_reader(taken: Taken, reader: TakenBy, centred: bool, before: Stored, after: Stored) -> Iterator[Identity]:
    """A layer maps the norm's z to the same output as before, up to its mean if it writes a centred stream."""
    weights: list[Floats] = []
    gains: list[Floats] = []
    shifts: list[Floats] = []
    sizes: list[Floats] = []
    for stored in (before, after):
        weight = np.moveaxis(stored(reader.weight), reader.axis, -1)  # (outputs, inputs), or (experts, outputs, inputs)
        shift = reader.factor * taken.bias_in(stored)
        own = np.zeros(weight.shape[:-1]) if reader.bias is None else stored(reader.bias).reshape(weight.shape[:-1])
        weights.append(weight)
        gains.append(taken.gain_in(stored))
        shifts.append(weight @ shift + own if shift.any() else own)
        sizes += [np.abs(weight) @ np.abs(shift) if shift.any() else np.zeros(weight.shape[:-1]), own]
    same = _equal_products(weights, gains)  # often to the last bit, which is quick to see
    if not same:
        products = [weight * gain for weight, gain in zip(weights, gains, strict=True)]
        same = _small(_apart(products, -2 if centred else None), *products)
    yield f"{reader.layer} has taken over the gain of {taken.norm}", same
    yield (
        f"{reader.layer} has taken over the bias of {taken.norm}",
        _small(_apart(shifts, -1 if centred else None), *sizes),
    )


def _equal_products(weights: list[Floats], gains: list[Floats]) -> bool:
    """Whether two matrices with scaled columns are equal to the last bit; NaN equals nothing."""
    plain = [bool((gain == 1).all()) for gain in gains]
    step = max(1, BLOCK * len(weights[0]) // max(1, weights[0].size))
    for at in range(0, len(weights[0]), step):
        rows = (weight[at : at + step] for weight in weights)
        one, other = (part if ones else part * gain for part, gain, ones in zip(rows, gains, plain, strict=True))
        if not np.array_equal(one, other):
            return False
    return True


def _apart(pair: list[Floats], axis: int | None) -> Floats:
    """The difference, without its mean along an axis."""
    difference: Floats = pair[1] - pair[0]
    return difference if axis is None else difference - difference.mean(axis=axis, keepdims=True)


def _small(values: Floats, *beside: Floats) -> bool:
    return _size(values) <= ALGEBRA * max(map(_size, beside))


def _size(values: Floats) -> float:
    """The largest |value|; NaN if there is one."""
    return max(float(values.max()), -float(values.min()))
