"""Vectors of numbers; arithmetic on them writes LLVM instructions.

These are LLVM's instructions for vectors, which exist on every processor: numba turns them into those of the machine it
runs on. Numbers are stored as float32, float64, bfloat16 or float16. The last two are computed in float32 and
rounded when they are stored, to the nearest, ties to even, by operations on whole numbers that every processor has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils

FLOAT32, FLOAT64, BFLOAT16, FLOAT16 = range(4)  # how numbers are stored
BYTES = (4, 8, 2, 2)
INT16, INT32, INT64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
ROUNDING = ("reassoc", "contract", "nsz")  # as in `compiled`
INFINITY = 0x7F800000  # as the bits of a float32


class Vector:
    """Several numbers, or one, and the builder that writes the operations on them."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def __add__(self, other: Vector) -> Vector:
        return Vector(self.builder, self.builder.fadd(self.value, other.value, flags=ROUNDING))

    def __sub__(self, other: Vector) -> Vector:
        return Vector(self.builder, self.builder.fsub(self.value, other.value, flags=ROUNDING))

    def __mul__(self, other: Vector) -> Vector:
        return Vector(self.builder, self.builder.fmul(self.value, other.value, flags=ROUNDING))

    def __truediv__(self, other: Vector) -> Vector:
        return Vector(self.builder, self.builder.fdiv(self.value, other.value))

    def like(self, number: float) -> Vector:
        """A compile-time constant in each lane."""
        kind = self.value.type
        known = [number] * kind.count if isinstance(kind, ir.VectorType) else number
        return Vector(self.builder, ir.Constant(kind, known))

    def sqrt(self) -> Vector:
        return Vector(self.builder, _call(self.builder, "llvm.sqrt", self.value.type, [self.value]))

    def overflowed(self) -> Any:
        """A whole number: 0 unless +∞ is in one of the lanes, or is the number."""
        flags = self.builder.fcmp_ordered("==", self.value, self.like(math.inf).value)
        if isinstance(self.value.type, ir.VectorType):
            flags = self.builder.bitcast(flags, ir.IntType(self.value.type.count))
        return self.builder.zext(flags, INT64)

    def shuffled(self, other: Vector, lanes: Sequence[int]) -> Vector:
        """The numbers in some lanes; the lanes of the other vector are numbered after those of this one."""
        chosen = ir.Constant(ir.VectorType(INT32, len(lanes)), list(lanes))
        return Vector(self.builder, self.builder.shuffle_vector(self.value, other.value, chosen))

    def total(self) -> Vector:
        """The sum over all lanes, one number."""
        number = self.value.type.element
        zero = ir.Constant(number, 0.0)
        return Vector(self.builder, _call(self.builder, "llvm.vector.reduce.fadd", number, [zero, self.value]))

    def repeated(self, lanes: int) -> Vector:
        """One number, in each lane."""
        undefined = ir.Constant(ir.VectorType(self.value.type, lanes), ir.Undefined)
        first = Vector(self.builder, self.builder.insert_element(undefined, self.value, ir.Constant(INT32, 0)))
        return first.shuffled(first, [0] * lanes)


def computed_as(kind: int) -> int:
    return FLOAT64 if kind == FLOAT64 else FLOAT32


def number_type(kind: int) -> Any:
    """The type of the computation."""
    return ir.DoubleType() if kind == FLOAT64 else ir.FloatType()


def load(builder: Any, address: Any, kind: int, lanes: int) -> Vector:
    stored = INT16 if kind in (BFLOAT16, FLOAT16) else number_type(kind)
    place = builder.inttoptr(address, ir.VectorType(stored, lanes).as_pointer())
    value = builder.load(place, align=BYTES[kind])  # of one number: rows begin anywhere
    if kind == BFLOAT16:
        value = _from_bfloat16(builder, value)
    elif kind == FLOAT16:
        value = _from_float16(builder, value)
    return Vector(builder, value)


def store(vector: Vector, address: Any, kind: int) -> None:
    builder, value = vector.builder, vector.value
    if kind == BFLOAT16:
        value = _to_bfloat16(builder, value)
    elif kind == FLOAT16:
        value = _to_float16(builder, value)
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=BYTES[kind])


def _from_bfloat16(builder: Any, bits: Any) -> Any:
    whole = builder.zext(bits, ir.VectorType(INT32, bits.type.count))
    return _as_floats(builder, builder.shl(whole, _same(whole, 16)))


def _to_bfloat16(builder: Any, value: Any) -> Any:
    whole = _as_bits(builder, value)
    last = builder.and_(builder.lshr(whole, _same(whole, 16)), _same(whole, 1))
    rounded = builder.add(builder.add(whole, last), _same(whole, 0x7FFF))
    # NaN could be rounded to a number: all of its bits are set instead
    not_a_number = builder.sext(builder.fcmp_unordered("uno", value, value), whole.type)
    rounded = builder.lshr(builder.or_(rounded, not_a_number), _same(whole, 16))
    return builder.trunc(rounded, ir.VectorType(INT16, whole.type.count))


def _from_float16(builder: Any, bits: Any) -> Any:
    whole = builder.zext(bits, ir.VectorType(INT32, bits.type.count))
    size = builder.shl(builder.and_(whole, _same(whole, 0x7FFF)), _same(whole, 13))
    # The exponent is off by 112, also that of numbers below 2⁻¹⁴, which have no leading 1.
    floats = _as_floats(builder, size)
    finite = builder.fmul(floats, ir.Constant(floats.type, [2.0**112] * floats.type.count))
    infinite = builder.icmp_unsigned(">=", size, _same(whole, 0x7C00 << 13))
    size = builder.select(infinite, builder.or_(size, _same(whole, INFINITY)), _as_bits(builder, finite))
    sign = builder.shl(builder.and_(whole, _same(whole, 0x8000)), _same(whole, 16))
    return _as_floats(builder, builder.or_(size, sign))


def _to_float16(builder: Any, value: Any) -> Any:
    whole = _as_bits(builder, value)
    size = builder.and_(whole, _same(whole, 0x7FFFFFFF))
    last = builder.and_(builder.lshr(size, _same(whole, 13)), _same(whole, 1))
    usual = builder.sub(builder.add(builder.add(size, last), _same(whole, 0x0FFF)), _same(whole, 112 << 23))
    half = builder.lshr(usual, _same(whole, 13))
    # Beside 0.5 the last bit of a float32 is worth the smallest number of float16: the sum rounds.
    beside = builder.fadd(_as_floats(builder, size), ir.Constant(value.type, [0.5] * value.type.count))
    small = builder.sub(_as_bits(builder, beside), _same(whole, 0x3F000000))
    half = builder.select(builder.icmp_unsigned("<", size, _same(whole, 0x38800000)), small, half)
    half = builder.select(builder.icmp_unsigned(">=", size, _same(whole, 0x47800000)), _same(whole, 0x7C00), half)
    half = builder.select(builder.icmp_unsigned(">", size, _same(whole, INFINITY)), _same(whole, 0x7E00), half)
    sign = builder.and_(builder.lshr(whole, _same(whole, 16)), _same(whole, 0x8000))
    return builder.trunc(builder.or_(half, sign), ir.VectorType(INT16, whole.type.count))


def _as_bits(builder: Any, value: Any) -> Any:
    return builder.bitcast(value, ir.VectorType(INT32, value.type.count))


def _as_floats(builder: Any, whole: Any) -> Any:
    return builder.bitcast(whole, ir.VectorType(ir.FloatType(), whole.type.count))


def _same(whole: Any, number: int) -> Any:
    return ir.Constant(whole.type, [number] * whole.type.count)


def _call(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """One of LLVM's own functions, which are named after the last type they take."""
    taken = arguments[-1].type
    lanes, number = (f"v{taken.count}", taken.element) if isinstance(taken, ir.VectorType) else ("", taken)
    bits = 32 if isinstance(number, ir.FloatType) else 64
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
        builder.module, kind, f"{name}.{lanes}f{bits}"
    )
    return builder.call(function, arguments, fastmath=ROUNDING)
