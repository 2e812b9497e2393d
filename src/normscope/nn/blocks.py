"""Small groups, eight at a time, on vectors of eight numbers.

A block is eight groups of c channels that lie side by side: 8c numbers in c vectors. Two steps are all that a norm
needs on top of arithmetic, and both are shuffles that are known once c is:

    totals   c vectors → one vector, the sum over each group
    spread   one vector, a number for each group → c vectors, that number at each channel of its group

so the norm of a block is its formula, and everything between reading and writing stays in registers, if there are
enough. Compilers do not find this in loops over groups of a few channels, which is why those are slow elsewhere.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]

from normscope.nn.vectors import BYTES, INT64, Vector, computed_as, load, store

LANES = 8


class BlockWriter:
    """Writes the instructions for one block of a norm; only eps and the addresses are unknown at compile time."""

    def __init__(self, builder: Any, kind: int, channels: int, project: bool, scale: bool, eps: Vector) -> None:
        self.builder, self.kind, self.channels = builder, kind, channels
        self.project, self.scale, self.eps = project, scale, eps.repeated(LANES)
        self.computed = computed_as(kind)

    def forward(self, x: Any, gain: Any, bias: Any, y: Any) -> Any:
        """Write the outputs; the result is not 0 if a sum of squares overflowed, which makes them wrong."""
        s, _, overflowed = self._steps(x)
        self._store(s * self._load(gain, self.computed) + self._load(bias, self.computed), y, self.kind)
        return overflowed

    def backward(self, x: Any, dy: Any, gain: Any, dx: Any, dgain: Any, dbias: Any) -> Any:
        s, root, overflowed = self._steps(x)
        w = self._load(dy, self.kind)
        self._store(self._load(dbias, self.computed) + w, dbias, self.computed)
        self._store(self._load(dgain, self.computed) + w * s, dgain, self.computed)
        w = w * self._load(gain, self.computed)
        bent = w - w.means() if self.project else w
        if root is not None:
            bent = (bent - s * (w * s).means()) * root
        self._store(bent, dx, self.kind)
        return overflowed

    def _steps(self, x: Any) -> tuple[Block, Block | None, Any]:
        """s, and 1/r at each channel; None if the norm does not scale; and whether a sum of squares overflowed."""
        z = self._load(x, self.kind)
        if self.project:
            z = z - z.means()
        if not self.scale:
            return z, None, ir.Constant(INT64, 0)
        squares = (z * z).totals() * self.eps.like(1 / self.channels)
        root = spread(self.eps.like(1.0) / (squares + self.eps).sqrt(), self.channels)
        return z * root, root, squares.overflowed()

    def _load(self, address: Any, kind: int) -> Block:
        return Block(load(self.builder, self._place(address, kind, j), kind, LANES) for j in range(self.channels))

    def _store(self, block: Block, address: Any, kind: int) -> None:
        for j in range(0, len(block) - 1, 2):  # two at a time: a vector of 16 is rounded as quickly as one of 8
            both = block[j].shuffled(block[j + 1], range(2 * LANES))
            store(both, self._place(address, kind, j), kind)
        if len(block) % 2:
            store(block[-1], self._place(address, kind, len(block) - 1), kind)

    def _place(self, address: Any, kind: int, j: int) -> Any:
        return self.builder.add(address, ir.Constant(INT64, j * LANES * BYTES[kind]))


class Block(list[Vector]):
    """Eight groups of c channels, as c vectors."""

    def __add__(self, other: Block) -> Block:  # type: ignore[override]
        return Block(a + b for a, b in zip(self, other, strict=True))

    def __sub__(self, other: Block) -> Block:
        return Block(a - b for a, b in zip(self, other, strict=True))

    def __mul__(self, other: Block) -> Block:  # type: ignore[override]
        return Block(a * b for a, b in zip(self, other, strict=True))

    def means(self) -> Block:
        """The mean of each group, at each of its channels."""
        return spread(self.totals() * self[0].like(1 / len(self)), len(self))

    def totals(self) -> Vector:
        """The sum over each group."""
        return _totals_by_channel(self) if len(self) < LANES else _totals_by_group(self)


def spread(numbers: Vector, channels: int) -> Block:
    """A number for each group → that number at each channel of its group."""
    places = ([(LANES * j + lane) // channels for lane in range(LANES)] for j in range(channels))
    return Block(numbers.shuffled(numbers, groups) for groups in places)


def _totals_by_channel(block: Block) -> Vector:
    """For c < 8: vectors with one channel of each group are added; before that, neighbours if c is even.

    Of m = 1, 3, 5 or 7 vectors, number mg + k of the sequence lies in another lane for each group g, because m and 8
    have no factor in common: all eight can be picked into one vector before they are put in order.
    """
    vectors, order = list(block), list(range(LANES))  # order[lane] says which of eight numbers in sequence is there
    if len(block) == 4:
        vectors, order = [_fours(*block)], [0, 2, 4, 6, 1, 3, 5, 7]
    elif len(block) % 2 == 0:
        vectors = [_twos(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        order = [0, 1, 4, 5, 2, 3, 6, 7]
    channels = []
    for k in range(len(vectors)):
        places = [divmod(len(vectors) * group + k, LANES) for group in range(LANES)]
        lanes = [order.index(number) for _, number in places]
        picked = vectors[0]
        for j in range(1, len(vectors)):
            here = {lane for lane, (vector, _) in zip(lanes, places, strict=True) if vector == j}
            picked = picked.shuffled(vectors[j], [LANES + lane if lane in here else lane for lane in range(LANES)])
        channels.append(picked.shuffled(picked, lanes))
    return _added(channels)


def _totals_by_group(block: Block) -> Vector:
    """For c ≥ 8: the vectors of each group are added, its last one filled up with zeros; then the lanes of each."""
    groups = []
    for end in range(len(block), (LANES + 1) * len(block), len(block)):
        starts = range(end - len(block), end, LANES)
        groups.append(_added([_stretch(block, start, min(LANES, end - start)) for start in starts]))
    a, b = _fours(*groups[:4]), _fours(*groups[4:])
    return a.shuffled(b, (0, 1, 2, 3, 8, 9, 10, 11)) + a.shuffled(b, (4, 5, 6, 7, 12, 13, 14, 15))


def _twos(a: Vector, b: Vector) -> Vector:
    """Sums of neighbours: those of a in lanes 0, 1, 4, 5, those of b in the others."""
    return a.shuffled(b, (0, 2, 8, 10, 4, 6, 12, 14)) + a.shuffled(b, (1, 3, 9, 11, 5, 7, 13, 15))


def _fours(a: Vector, b: Vector, c: Vector, d: Vector) -> Vector:
    """Sums of the lower halves of a, b, c, d, then of their upper halves."""
    low, high = (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)
    ab, cd = (v.shuffled(w, low) + v.shuffled(w, high) for v, w in ((a, b), (c, d)))
    return ab.shuffled(cd, (0, 1, 8, 9, 4, 5, 12, 13)) + ab.shuffled(cd, (2, 3, 10, 11, 6, 7, 14, 15))


def _stretch(block: Block, start: int, count: int) -> Vector:
    """Up to eight numbers of the sequence, then zeros."""
    j, lane = divmod(start, LANES)
    vector = block[j]
    if lane:
        vector = vector.shuffled(block[min(j + 1, len(block) - 1)], range(lane, lane + LANES))
    if count < LANES:
        vector = vector.shuffled(vector.like(0.0), (*range(count), *range(LANES + count, 2 * LANES)))
    return vector


def _added(vectors: list[Vector]) -> Vector:
    total = vectors[0]
    for vector in vectors[1:]:
        total = total + vector
    return total
