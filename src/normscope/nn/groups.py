"""One group of 32 channels or more, a stretch of 32 at a time.

Where 32 does not divide the number of channels, the last stretch begins earlier and has some channels in common with
the one before it. What is stored for them is the same both times; in sums they count once.

Going forward, a group is written while the first sum of the one that follows is made: so memory is read and written all
the time, as in a copy, instead of first reading a group and then writing it. Going backward there are
four rounds over a group, and those that find all of it in the nearest cache prefetch what the next ones need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils

from normscope.nn.vectors import BYTES, INT32, INT64, Vector, computed_as, load, number_type, store

STRETCH = 32  # channels: enough sums side by side to hide how long an addition takes
LINE = 64  # bytes of a cache line on most machines

Term = Callable[["Stretch"], Vector]
Act = Callable[["Stretch"], None]


class GroupWriter:
    """Writes the instructions for one group of a norm; its number of channels is known at run time."""

    def __init__(self, builder: Any, kind: int, channels: Any, project: bool, scale: bool, eps: Vector) -> None:
        self.builder, self.kind, self.channels = builder, kind, channels
        self.project, self.scale, self.eps = project, scale, eps.repeated(STRETCH)
        self.computed = computed_as(kind)
        self.number = number_type(kind)
        count = Vector(builder, builder.sitofp(channels, self.number))
        self.share = count.like(1.0) / count

    def first(self, x: Any) -> Any:
        """The first sum that a group needs, of its values or, if it does not project, of their squares."""
        return self._total(self._summand(x)).value

    def forward(self, x: Any, following: Any, gain: Any, bias: Any, y: Any, first: Any) -> tuple[Any, Any]:
        """Write one group, whose first sum is known; return the first sum of the following group, computed meanwhile.

        Also return a number that is not 0 if the sum of squares overflowed, which makes the outputs wrong.
        """
        known = Vector(self.builder, first)
        mean = self._spread(known) if self.project else None
        squares = self._total(self._squared(x, mean)) if self.project else known
        root = self._root(squares)

        def write(stretch: Stretch) -> None:
            out = self._step(stretch, x, mean, root) * stretch.load(gain, self.computed)
            stretch.store(out + stretch.load(bias, self.computed), y, self.kind)

        return self._total(self._summand(following), write).value, self._overflowed(squares)

    def backward(self, x: Any, dy: Any, gain: Any, dx: Any, dgain: Any, dbias: Any) -> Any:
        def announce(stretch: Stretch) -> None:
            stretch.announce(dy, self.kind)
            stretch.announce(dx, self.kind, to_write=True)

        mean = self._spread(self._total(self._summand(x))) if self.project else None
        squares = self._total(self._squared(x, mean), announce)
        root = self._root(squares)

        def steps(stretch: Stretch) -> Vector:
            return self._step(stretch, x, mean, root)

        def weighted(stretch: Stretch) -> Vector:
            return stretch.load(dy, self.kind) * stretch.load(gain, self.computed)

        def add(stretch: Stretch) -> None:
            w = stretch.once(stretch.load(dy, self.kind))
            stretch.store(stretch.load(dbias, self.computed) + w, dbias, self.computed)
            stretch.store(stretch.load(dgain, self.computed) + w * steps(stretch), dgain, self.computed)

        sums = self._totals((weighted, lambda stretch: weighted(stretch) * steps(stretch)), add)
        shift, pull = (self._spread(total) for total in sums)

        def write(stretch: Stretch) -> None:
            bent = weighted(stretch) - shift if self.project else weighted(stretch)
            if root is not None:
                bent = (bent - steps(stretch) * pull) * root
            stretch.store(bent, dx, self.kind)
            stretch.later(self.channels).announce(x, self.kind)

        self._each(write)
        return self._overflowed(squares)

    def _summand(self, x: Any) -> Term:
        """The terms of the first sum."""
        return (lambda stretch: stretch.load(x, self.kind)) if self.project else self._squared(x, None)

    def _squared(self, x: Any, mean: Vector | None) -> Term:
        def squared(stretch: Stretch) -> Vector:
            projected = self._step(stretch, x, mean, None)
            return projected * projected

        return squared

    def _root(self, squares: Vector) -> Vector | None:
        """1/r, from the sum of squares; None if the norm does not scale."""
        return self.eps.like(1.0) / (self._spread(squares) + self.eps).sqrt() if self.scale else None

    def _overflowed(self, squares: Vector) -> Any:
        return squares.overflowed() if self.scale else ir.Constant(INT64, 0)

    def _step(self, stretch: Stretch, x: Any, mean: Vector | None, root: Vector | None) -> Vector:
        """s on a stretch."""
        values = stretch.load(x, self.kind)
        projected = values if mean is None else values - mean
        return projected if root is None else projected * root

    def _spread(self, total: Vector) -> Vector:
        """A mean, from the sum, in each lane."""
        return (total * self.share).repeated(STRETCH)

    def _total(self, term: Term, before: Act | None = None) -> Vector:
        return self._totals((term,), before)[0]

    def _totals(self, terms: Sequence[Term], before: Act | None) -> list[Vector]:
        """Sums over all channels, one number each; `before` runs on each stretch before it is added."""
        zeros = ir.Constant(ir.VectorType(self.number, STRETCH), [0.0] * STRETCH)
        totals = [cgutils.alloca_once_value(self.builder, zeros) for _ in terms]  # type: ignore[no-untyped-call]

        def add(stretch: Stretch) -> None:
            if before is not None:
                before(stretch)
            for total, term in zip(totals, terms, strict=True):
                so_far = Vector(self.builder, self.builder.load(total))
                self.builder.store((so_far + stretch.once(term(stretch))).value, total)

        self._each(add)
        return [Vector(self.builder, self.builder.load(total)).total() for total in totals]

    def _each(self, act: Act) -> None:
        zero, length = ir.Constant(INT64, 0), ir.Constant(INT64, STRETCH)
        rest = self.builder.srem(self.channels, length)
        whole = self.builder.sub(self.channels, rest)
        with cgutils.for_range_slice(self.builder, zero, whole, length, INT64) as (start, _):
            act(Stretch(self.builder, start, None))
        with self.builder.if_then(self.builder.icmp_signed("!=", rest, zero)):
            seen = Vector(self.builder, self.builder.trunc(self.builder.sub(length, rest), INT32)).repeated(STRETCH)
            lanes = ir.Constant(seen.value.type, list(range(STRETCH)))
            new = self.builder.icmp_signed(">=", lanes, seen.value)
            act(Stretch(self.builder, self.builder.sub(self.channels, length), new))


class Stretch:
    """Consecutive channels of a group; `new` marks those that no other stretch has, None if all are new."""

    def __init__(self, builder: Any, start: Any, new: Any) -> None:
        self.builder, self.start, self.new = builder, start, new

    def load(self, address: Any, kind: int) -> Vector:
        return load(self.builder, self._place(address, kind), kind, STRETCH)

    def store(self, vector: Vector, address: Any, kind: int) -> None:
        store(vector, self._place(address, kind), kind)

    def once(self, vector: Vector) -> Vector:
        """The vector, with zeros for channels that another stretch has too."""
        if self.new is None:
            return vector
        return Vector(self.builder, self.builder.select(self.new, vector.value, vector.like(0.0).value))

    def later(self, channels: Any) -> Stretch:
        """The same stretch of the group that follows."""
        return Stretch(self.builder, self.builder.add(self.start, channels), self.new)

    def announce(self, address: Any, kind: int, to_write: bool = False) -> None:
        """Prefetch: this is needed soon, and is fetched during computations on numbers already loaded."""
        byte = ir.IntType(8).as_pointer()
        hint = ir.FunctionType(ir.VoidType(), [byte, INT32, INT32, INT32])
        prefetch = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            self.builder.module, hint, "llvm.prefetch.p0"
        )
        soon = [ir.Constant(INT32, flag) for flag in (int(to_write), 3, 1)]  # 3: keep in the nearest cache, 1: as data
        for line in range(0, STRETCH * BYTES[kind], LINE):
            place = self.builder.add(self._place(address, kind), ir.Constant(INT64, line))
            self.builder.call(prefetch, [self.builder.inttoptr(place, byte), *soon])

    def _place(self, address: Any, kind: int) -> Any:
        return self.builder.add(address, self.builder.mul(self.start, ir.Constant(INT64, BYTES[kind])))
