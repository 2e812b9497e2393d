"""Check the files of a rewritten model: every tensor is what its claims give from the original's, rounded once.

    gain, bias of a norm      (g)/t,  (b − s)/t           t: g, or 1 where it is 0;  s: b, its mean, or 0
    reader of a norm          W·diag(t),  c + f·W·s
    writer of a stream        W − its mean
    turned, at another scale  WQ along an axis,  2^k·W
    any other tensor          the same bits

Claims are names, axes and whole numbers; all values come from the files. Checked in float64, a part of one tensor at
a time, without the code that decided and computed: |stored − expected| is at most half a unit in the last place. With
inputs, both models are run on them in float64 too, and their outputs may differ by what rounding explains.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from normscope.certificates.check_fold import (
    ALGEBRA,
    LARGEST_DIFFERENCE,
    MORE_THAN_ROUNDING,
    Identity,
    Promise,
    Scaling,
    Taken,
    TakenBy,
    Turning,
)
from normscope.checks import Floats
from normscope.progress import Progress, silent

BLOCK = 2**22  # numbers that are looked at at a time
Part = tuple[slice, ...]  # of a tensor
DIGITS = {"float64": (53, -1074), "float32": (24, -149), "bfloat16": (8, -133), "float16": (11, -24)}  # and least power


@dataclass(frozen=True)
class TakenOver:
    """What the readers of a norm took over from it."""

    norm: str
    gain: str | None  # where the norm stores its gain
    bias: str | None
    adds_one: bool  # the gain is 1 + w for the stored w
    takes_gain: bool
    takes_bias: Literal["all", "mean", "nothing"]
    readers: tuple[TakenBy, ...]


@dataclass(frozen=True)
class Turned:
    """An axis of a tensor that was multiplied by an orthogonal matrix."""

    tensor: str
    axis: int
    matrix: str


@dataclass(frozen=True)
class Claims:
    """What was done to the tensors of a model, each by the first of its names; others are unchanged."""

    centred: dict[str, int] = field(default_factory=dict)  # tensor → the axis that lost its mean
    taken: tuple[TakenOver, ...] = ()
    turned: tuple[Turned, ...] = ()
    matrices: tuple[str, ...] = ()  # the streams that were turned, in the order of the file of their matrices
    keep_ones: tuple[str, ...] = ()  # matrices of streams whose mean a norm subtracts
    exponents: dict[str, int] = field(default_factory=dict)  # tensor → k of 2^k
    gains_less_one: tuple[str, ...] = ()  # tensors w of which 1 + w is the gain of a norm
    settings: dict[str, int] = field(default_factory=dict)  # number of the configuration → k of 2^k

    @classmethod
    def of(cls, promise: Promise, turning: Turning | None, scaling: Scaling, settings: Mapping[str, int]) -> "Claims":
        """The claims of rewrites that followed one another."""
        turned = () if turning is None else tuple(
            Turned(tensor, axis, matrix) for tensor, axes in turning.axes.items() for axis, matrix in axes
        )  # fmt: skip
        return cls(
            dict(promise.centred),
            tuple(map(_taken_over, promise.taken)),
            turned,
            () if turning is None else tuple(turning.matrices),
            () if turning is None else tuple(sorted(turning.keep_ones)),
            dict(scaling.exponents),
            tuple(sorted(scaling.gains_less_one)),
            dict(settings),
        )

    def changed(self) -> frozenset[str]:
        """The tensors that may have new values."""
        own = {name for taken in self.taken for name in (taken.gain, taken.bias)}
        readers = [reader for taken in self.taken for reader in taken.readers]
        own |= {name for reader in readers for name in (reader.weight, reader.bias)}
        named = {*self.centred, *self.exponents, *(turned.tensor for turned in self.turned)}
        return frozenset(name for name in own | named if name is not None)


class Run(NamedTuple):
    """Outputs of both models in float64, relative to the largest value of an output."""

    inputs: str
    apart: float  # the largest difference between both
    rounding: float  # how far rounding moves those of the original


class Files(Protocol):
    """The tensors of a model before and after, read from files, and what else they say."""

    names: tuple[str, ...]  # one of each tensor
    original: str
    matrices: Sequence[Floats]
    settings: tuple[Mapping[str, Any], Mapping[str, Any]]  # of the configuration, before and after

    def shape(self, name: str) -> tuple[int, ...]: ...

    def before(self, name: str, part: Part = ()) -> Floats: ...

    def after(self, name: str, part: Part = ()) -> Floats: ...

    def same(self, name: str) -> bool: ...

    def dtype(self, name: str) -> str: ...

    def run(self, progress: Progress) -> Run | None: ...  # None if there is nothing to run both on


def comparisons(claims: Claims, files: Files) -> Iterator[Identity]:
    """Every tensor and setting compared with what the claims say of it, in words, and whether it is so."""
    changed, tensors = claims.changed(), _Expected(claims, files)
    yield "every tensor that is said to change is there", changed <= set(files.names)
    there = len(files.matrices) == len(claims.matrices) and {turned.matrix for turned in claims.turned} <= set(
        claims.matrices
    )
    yield "every matrix of a rotation is there", there
    if not there:
        return
    for name, matrix in tensors.matrices.items():
        one = np.eye(len(matrix))
        yield f"the matrix of {name} is orthogonal", _within(matrix @ matrix.T, one, ALGEBRA)
        if name in claims.keep_ones:
            yield f"the matrix of {name} keeps the vector of ones", _within(matrix.sum(axis=1), one[0] * 0 + 1, ALGEBRA)
    for name in files.names:
        if name not in changed:
            yield f"{name} is unchanged", files.same(name)
            continue
        right = all(_rounded_once(tensors, name, part) for part in tensors.parts(name))
        yield f"{name} is what it should be, rounded once", right
    for taken in claims.taken:
        if taken.gain is not None and taken.takes_gain and not {taken.gain} & claims.exponents.keys():
            added = 1.0 if taken.adds_one else 0.0
            ones = np.where(files.before(taken.gain) + added == 0, 0.0, 1.0)
            yield f"the gain of {taken.norm} is 1, or still 0", bool((files.after(taken.gain) + added == ones).all())
    yield from _of_settings(claims, *files.settings)


def check(result: Any, *, against: Files, progress: Progress = silent) -> tuple[bool, str]:
    """Check the files of a folding against those of the original; what they prove, or what is wrong first."""
    found = list(progress(comparisons(result.claims, against), "comparing tensors"))
    broken = [words for words, holds in found if not holds]
    if broken:
        return False, f"failed: {broken[0]}" + (f", and {len(broken) - 1} more" if len(broken) > 1 else "")
    changed = len(result.claims.changed())
    tensors = (
        f"{changed} tensors are those of {against.original}, rewritten as folding.json says and rounded once; "
        f"{len(against.names) - changed} have the same bits"
    )
    run = against.run(progress)
    if run is None:
        return True, f"{tensors}. Neither model was run: --text FILE runs both in float64 and compares their outputs"
    apart = (
        f"in float64, on {run.inputs}, outputs differ by {run.apart:.1e}, where rounding explains {run.rounding:.1e}"
    )
    holds = run.apart <= LARGEST_DIFFERENCE + MORE_THAN_ROUNDING * run.rounding
    return holds, f"{tensors}; {apart}" if holds else f"failed: {apart}; {tensors}"


def _rounded_once(tensors: "_Expected", name: str, part: Part) -> bool:
    expected, size = tensors(name, part)
    room = _half_a_unit(expected, tensors.files.dtype(name)) + ALGEBRA * size
    return _within(tensors.files.after(name, part), expected, room)


class _Expected:
    """What every tensor should be, and the largest number that goes into it."""

    def __init__(self, claims: Claims, files: Files) -> None:
        self._claims, self.files = claims, files
        self.matrices = dict(zip(claims.matrices, files.matrices, strict=False))
        self._own = {name: taken for taken in claims.taken for name in (taken.gain, taken.bias) if name is not None}
        self._weights = {reader.weight: (taken, reader) for taken in claims.taken for reader in taken.readers}
        self._biases = {
            reader.bias: (taken, reader)
            for taken in claims.taken
            for reader in taken.readers
            if reader.bias is not None
        }

    def parts(self, name: str) -> Iterator[Part]:
        """Parts of a tensor that are rewritten independently of each other."""
        joined = {turned.axis for turned in self._claims.turned if turned.tensor == name}
        joined |= {self._claims.centred[name]} if name in self._claims.centred else set()
        joined |= {self._weights[name][1].axis} if name in self._weights else set()
        single = name in self._own or name in self._biases
        yield from _blocks(self.files.shape(name), set() if single else joined, whole=single)

    def __call__(self, name: str, part: Part) -> tuple[Floats, float]:
        values = self.files.before(name, part)
        size = _size(values)
        if name in self._own:
            taken = self._own[name]
            gain, shift = self._moved(taken)
            if name == taken.gain:
                one = 1.0 if taken.adds_one else 0.0
                values = (values + one) / gain.reshape(values.shape) - one
            else:
                values = (values - shift.reshape(values.shape)) / gain.reshape(values.shape)
        if name in self._weights:
            taken, reader = self._weights[name]
            shape = [-1 if axis == reader.axis else 1 for axis in range(values.ndim)]
            values = values * self._moved(taken)[0].reshape(shape)
        if name in self._biases:
            taken, reader = self._biases[name]
            shift, largest = self._through(reader, self._moved(taken)[1])
            values = values + reader.factor * shift.reshape(values.shape)
            size = max(size, abs(reader.factor) * largest)
        if name in self._claims.centred:
            size = max(size, _size(values))
            values = values - values.mean(axis=self._claims.centred[name], keepdims=True)
        for turned in self._claims.turned:
            if turned.tensor == name:
                matrix = self.matrices[turned.matrix]
                values = np.moveaxis(np.tensordot(values, matrix, ([turned.axis], [0])), -1, turned.axis)
        size = max(size, _size(values))
        if name in self._claims.exponents:
            one = 1.0 if name in self._claims.gains_less_one else 0.0
            values = np.ldexp(values + one, self._claims.exponents[name]) - one
            size = max(np.ldexp(size, self._claims.exponents[name]), one)
        return values, size

    def _through(self, reader: TakenBy, shift: Floats) -> tuple[Floats, float]:
        """What a reader makes of a vector, and the size of the sums that it takes for that."""
        made, largest, axis = [], 0.0, reader.axis
        for part in _blocks(self.files.shape(reader.weight), {axis}):
            weight = np.moveaxis(self.files.before(reader.weight, part), axis, -1)
            made.append(weight @ shift)
            largest = max(largest, _size(np.abs(weight) @ np.abs(shift)))
        return np.concatenate(made, axis=0), largest

    def _moved(self, taken: TakenOver) -> tuple[Floats, Floats]:
        """The gain and the bias that readers take over, from the stored ones."""
        own = [None if name is None else self.files.before(name).reshape(-1) for name in (taken.gain, taken.bias)]
        axis = next((reader.axis for reader in taken.readers), 0)
        width = next((len(part) for part in own if part is not None), 0)
        width = width or self.files.shape(taken.readers[0].weight)[axis]
        gain, bias = np.ones(width), np.zeros(width)
        if own[0] is not None and taken.takes_gain:
            gain = own[0] + (1.0 if taken.adds_one else 0.0)
            gain = np.where(gain == 0, 1.0, gain)
        if own[1] is not None and taken.takes_bias != "nothing":
            bias = own[1] if taken.takes_bias == "all" else np.full(width, own[1].mean())
        return gain, bias


def _taken_over(taken: Taken) -> TakenOver:
    takes_gain = bool((taken.gain != 1).any())
    constant = not takes_gain and bool((taken.bias == taken.bias[0]).all())  # then all of it, or its mean, is the same
    takes_bias: Literal["all", "mean", "nothing"] = "mean" if constant else "all"
    if not taken.bias.any():
        takes_bias = "nothing"
    return TakenOver(
        taken.norm, taken.gain_tensor, taken.bias_tensor, taken.adds_one, takes_gain, takes_bias, taken.readers
    )


def _of_settings(claims: Claims, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Identity]:
    for name, exponent in claims.settings.items():
        old, new = before.get(name), after.get(name)
        right = isinstance(old, float) and isinstance(new, float) and new == np.ldexp(old, exponent)
        yield f"{name} is 2^{exponent} times what it was", right
    others = [name for name in (*before, *after) if name not in claims.settings and before.get(name) != after.get(name)]
    yield f"every other setting is the same{''.join(f' ({name} is not)' for name in others[:1])}", not others


def _blocks(shape: tuple[int, ...], joined: set[int], *, whole: bool = False) -> Iterator[Part]:
    """Parts of a tensor, cut along its first axis that is not joined; the whole tensor if there is none."""
    axis = next((axis for axis in range(len(shape)) if axis not in joined), None)
    if axis is None or whole:
        yield ()
        return
    step = max(1, BLOCK // max(1, math.prod(shape) // max(1, shape[axis])))
    for start in range(0, shape[axis], step):
        yield (*(slice(None) for _ in range(axis)), slice(start, start + step))


def _half_a_unit(values: Floats, dtype: str) -> Floats:
    """Half of the distance between the numbers of a type beside each value."""
    digits, least = DIGITS[dtype]
    powers = np.maximum(np.frexp(values)[1] - digits, least)
    half: Floats = np.ldexp(1.0, powers - 1)
    return half


def _within(values: Floats, expected: Floats, room: Floats | float) -> bool:
    return values.shape == expected.shape and bool((np.abs(values - expected) <= room).all())


def _size(values: Floats) -> float:
    return float(np.abs(values).max(initial=0.0))
