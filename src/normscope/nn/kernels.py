"""Rows of numbers through a norm and back, compiled: one pass over memory, the rest in registers and the nearest cache.

    forward    s = (x − m)/r,    y = gain·s + bias                      m, r: mean and root of each group
    backward   w = gain·dy,      dx = (w − mean(w) − s·mean(w·s))/r     dgain = Σ dy·s,  dbias = Σ dy  (over rows)

The backward pass recomputes m and r from x, which it has to read anyway: only x is kept from the forward pass.
Groups of up to 32 channels go eight at a time (`blocks`), larger ones one by one (`groups`).
"""

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from inspect import getsource
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from normscope.compiled import compiled
from normscope.nn import blocks, groups, vectors
from normscope.nn.blocks import LANES, BlockWriter
from normscope.nn.groups import GroupWriter
from normscope.nn.vectors import BYTES, FLOAT64, Vector, computed_as

LARGEST_IN_BLOCKS = 32  # channels of a group; a larger one fills vectors by itself


def together(channels: int) -> int:
    """How many groups are processed at a time: gain, bias and their sums must have room for a multiple of that."""
    return LANES if channels <= LARGEST_IN_BLOCKS else 1


def passes(kind: int, channels: int, project: bool, scale: bool) -> tuple[Any, Any]:
    """The compiled forward and backward passes over rows, for groups of this many channels.

        forward(x, gain, bias, y, start, stop, groups, channels, eps, spare)
        backward(x, dy, gain, dx, dgain, dbias, start, stop, groups, channels, eps, spare)

    work on rows start to stop, and return a number that is not 0 if a sum of squares overflowed: then some of what they
    wrote is finite and wrong. Arrays are given by their addresses: x, y and their gradients as they are stored, gain,
    bias and the sums dgain and dbias, which are added to, in the dtype of the computation. `spare` is room for 3
    times the channels that are processed together, as they are stored.
    """
    if channels <= LARGEST_IN_BLOCKS:
        return _passes_in_blocks(kind, channels, project, scale)
    return _passes_one_by_one(kind, project, scale)


@cache
def _passes_in_blocks(kind: int, block: int, project: bool, scale: bool) -> tuple[Any, Any]:
    """For groups of a number of channels that is known to the compiler; the last ones of a row, if fewer than a block,
    by way of the spare room."""
    stored, computed = BYTES[kind], BYTES[computed_as(kind)]

    def forward(x, gain, bias, y, start, stop, groups, channels, eps, spare):  # type: ignore[no-untyped-def]
        overflowed, rest, out = 0, groups % LANES * channels * stored, spare + LANES * channels * stored
        for row in range(start, stop):
            for group in range(0, groups, LANES):
                at, i = (row * groups + group) * channels * stored, group * channels * computed
                whole = group + LANES <= groups
                if not whole:
                    copy(x + at, spare, rest)
                source, target = (x + at, y + at) if whole else (spare, out)
                overflowed |= block_forward(source, gain + i, bias + i, target, eps, kind, block, project, scale)
                if not whole:
                    copy(out, y + at, rest)
        return overflowed

    def backward(  # type: ignore[no-untyped-def]
        x, dy, gain, dx, dgain, dbias, start, stop, groups, channels, eps, spare
    ):
        overflowed, rest, room = 0, groups % LANES * channels * stored, LANES * channels * stored
        for row in range(start, stop):
            for group in range(0, groups, LANES):
                at, i = (row * groups + group) * channels * stored, group * channels * computed
                whole = group + LANES <= groups
                if not whole:
                    copy(x + at, spare, rest)
                    copy(dy + at, spare + room, rest)
                source, w = (x + at, dy + at) if whole else (spare, spare + room)
                target = dx + at if whole else spare + 2 * room
                overflowed |= block_backward(
                    source, w, gain + i, target, dgain + i, dbias + i, eps, kind, block, project, scale
                )
                if not whole:
                    copy(target, dx + at, rest)
        return overflowed

    return _for_addresses(forward, backward)


@cache
def _passes_one_by_one(kind: int, project: bool, scale: bool) -> tuple[Any, Any]:
    """For groups of any number of channels that fills a vector."""
    stored, computed = BYTES[kind], BYTES[computed_as(kind)]

    def forward(x, gain, bias, y, start, stop, groups, channels, eps, spare):  # type: ignore[no-untyped-def]
        overflowed = 0
        if start == stop:
            return overflowed
        size, last = channels * stored, (stop * groups - 1) * channels * stored
        first = first_sum(x + start * groups * size, channels, eps, kind, project, scale)
        for row in range(start, stop):
            for group in range(groups):
                at, i = (row * groups + group) * size, group * channels * computed
                following = x + min(at + size, last)
                first, beyond = group_forward(
                    x + at, following, gain + i, bias + i, y + at, first, channels, eps, kind, project, scale
                )
                overflowed |= beyond
        return overflowed

    def backward(  # type: ignore[no-untyped-def]
        x, dy, gain, dx, dgain, dbias, start, stop, groups, channels, eps, spare
    ):
        overflowed = 0
        for row in range(start, stop):
            for group in range(groups):
                at, i = (row * groups + group) * channels * stored, group * channels * computed
                overflowed |= group_backward(
                    x + at, dy + at, gain + i, dx + at, dgain + i, dbias + i, channels, eps, kind, project, scale
                )
        return overflowed

    return _for_addresses(forward, backward)


def _for_addresses(*functions: Any) -> tuple[Any, Any]:
    """Both passes compiled, forward with four arrays, backward with six."""
    done = []
    for function, arrays in zip(functions, (4, 6), strict=True):
        function.__qualname__ += _edition()
        done.append(compiled(function))
        done[-1].compile((types.intp,) * (arrays + 4) + (types.float64, types.intp))
    return done[0], done[1]


@cache
def _edition() -> str:
    """A digest of the files that write instructions: numba's cache on disk depends on the name and modification time of
    this file alone, and would miss a change in those."""
    return sha256("".join(getsource(file) for file in (blocks, groups, vectors)).encode()).hexdigest()[:16]


def instructions(function: Callable[..., Any]) -> Any:
    """A function that writes instructions into its caller; compile-time constants are passed as such."""
    return intrinsic(prefer_literal=True)(function)


@instructions
def block_forward(typing, x, gain, bias, y, eps, kind, block, project, scale):  # type: ignore[no-untyped-def]
    """Eight small groups; the last four arguments are known when this is compiled."""

    def write(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        *addresses, eps, _, _, _, _ = arguments
        return _block_writer(builder, eps, kind, block, project, scale).forward(*addresses)

    return types.int64(*(types.intp,) * 4, types.float64, kind, block, project, scale), write


@instructions
def block_backward(  # type: ignore[no-untyped-def]
    typing, x, dy, gain, dx, dgain, dbias, eps, kind, block, project, scale
):
    def write(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        *addresses, eps, _, _, _, _ = arguments
        return _block_writer(builder, eps, kind, block, project, scale).backward(*addresses)

    return types.int64(*(types.intp,) * 6, types.float64, kind, block, project, scale), write


@instructions
def first_sum(typing, x, channels, eps, kind, project, scale):  # type: ignore[no-untyped-def]
    """The first sum of one large group; the last three arguments are known when this is compiled."""

    def write(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        x, channels, eps, _, _, _ = arguments
        return _group_writer(builder, channels, eps, kind, project, scale).first(x)

    return _number(kind)(types.intp, types.intp, types.float64, kind, project, scale), write


@instructions
def group_forward(  # type: ignore[no-untyped-def]
    typing, x, following, gain, bias, y, first, channels, eps, kind, project, scale
):
    def write(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        *given, channels, eps, _, _, _ = arguments
        answers = _group_writer(builder, channels, eps, kind, project, scale).forward(*given)
        return context.make_tuple(builder, signature.return_type, answers)

    number = _number(kind)
    both = types.Tuple((number, types.int64))  # type: ignore[no-untyped-call]
    return both(*(types.intp,) * 5, number, types.intp, types.float64, kind, project, scale), write


@instructions
def group_backward(  # type: ignore[no-untyped-def]
    typing, x, dy, gain, dx, dgain, dbias, channels, eps, kind, project, scale
):
    def write(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        *addresses, channels, eps, _, _, _ = arguments
        return _group_writer(builder, channels, eps, kind, project, scale).backward(*addresses)

    return types.int64(*(types.intp,) * 7, types.float64, kind, project, scale), write


@instructions
def copy(typing, source, target, count):  # type: ignore[no-untyped-def]
    """Some bytes from one address to another."""

    def write(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        byte = ir.IntType(8).as_pointer()
        source, target = (builder.inttoptr(address, byte) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), write


def _block_writer(builder: Any, eps: Any, *known: Any) -> BlockWriter:
    kind, block, project, scale = (value.literal_value for value in known)
    return BlockWriter(builder, kind, block, project, scale, _as_number(builder, eps, kind))


def _group_writer(builder: Any, channels: Any, eps: Any, *known: Any) -> GroupWriter:
    kind, project, scale = (value.literal_value for value in known)
    return GroupWriter(builder, kind, channels, project, scale, _as_number(builder, eps, kind))


def _as_number(builder: Any, eps: Any, kind: int) -> Vector:
    return Vector(builder, eps if kind == FLOAT64 else builder.fptrunc(eps, ir.FloatType()))


def _number(kind: Any) -> Any:
    """The type of the computation, as numba calls it."""
    return types.float64 if kind.literal_value == FLOAT64 else types.float32
