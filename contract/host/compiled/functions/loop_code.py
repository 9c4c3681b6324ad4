"""What compiled products loop by loop are made of: dot products, and rows of products."""

from typing import Any, cast

from contract.host.compiled.functions.vector_ir import (
    LONGEST,
    WORD,
    Pairs,
    Tag,
    Vectors,
    Word,
    Writer,
    emitted,
)
from contract.host.compiled.loop_tables import LoopProduct
from contract.planner.host.vector_loops import SPREAD, STRIDED, UNIT, VECTOR_BYTES

__all__ = ["add_products", "clear_row", "dot_product", "spread_row"]

SUMS = 4  # of a dot product: one alone waits for itself


@emitted
def dot_product(
    write: Writer, kind: Tag, way_a: Tag, way_b: Tag, product: Word, a: Word, b: Word, d: Word
) -> None:
    """d = sum over all rows of sum_i a[i] * b[i], for a LoopProduct at the address ``product``."""
    ways = way_a.literal_value, way_b.literal_value
    given = cast(LoopProduct, write.entries(product, LoopProduct))
    dot = _Dot(write.vectors(kind, _lanes(kind, ways), fuses=True), given)
    with write.loop(given.sums) as row:
        starts = _starts(write, given, (a, b), row.index)
        dot.add(_Run(dot.vectors, ways, given, starts))
        dot.push_last(row.index)
    dot.store(d)


class _Dot:
    """Writes a dot product: some sums that take turns, and the pairs that they go into."""

    def __init__(self, vectors: Vectors, given: LoopProduct) -> None:
        self.vectors, self.write, self.given = vectors, vectors.write, given
        self.sums = [self.write.variable(vectors.zero()) for _ in range(SUMS)]
        self.pairs = Pairs(self.write, vectors.zero(), vectors.sum)

    def add(self, run: "_Run") -> None:
        """Add the products along a row: groups of vectors, vectors, and what is less."""
        vectors, builder, count = self.vectors, self.write.builder, self.given.length
        groups = builder.udiv(count, WORD(SUMS * vectors.lanes))
        with self.write.loop(groups) as group:
            first = builder.mul(group.index, WORD(SUMS * vectors.lanes))
            for at, sum_ in enumerate(self.sums):
                place = self.write.plus(first, at * vectors.lanes)
                run.fetch(place)
                vectors.accumulate(sum_, *run.factors(place))
            self.push_last(group.index)
        done = builder.mul(groups, WORD(SUMS))
        left = builder.sub(builder.udiv(count, WORD(vectors.lanes)), done)
        with self.write.loop(left) as each:
            place = builder.mul(builder.add(done, each.index), WORD(vectors.lanes))
            vectors.accumulate(self.sums[0], *run.factors(place))
        for piece in vectors.halves():
            with self.write.if_bit(count, piece.lanes):
                place = builder.and_(count, WORD(-2 * piece.lanes))
                value = vectors.widened(piece, piece.product(*run.of(piece).factors(place)))
                builder.store(vectors.sum(builder.load(self.sums[-1]), value), self.sums[-1])

    def push_last(self, index: Any) -> None:
        """The sums become part of the pairs after so many steps."""
        with self.write.if_last(index, LONGEST):
            self.pairs.push(self.vectors.taken(self.sums))

    def store(self, d: Any) -> None:
        """Write the sum of everything."""
        value = self.pairs.total([self.write.builder.load(each) for each in self.sums])
        vectors = self.vectors
        for piece in vectors.halves():
            value, vectors = piece.sum(*vectors.split(value)), piece
        vectors.store(value, d)


@emitted
def add_products(
    write: Writer,
    kind: Tag,
    way_a: Tag,
    way_b: Tag,
    together: Tag,
    product: Word,
    a: Word,
    b: Word,
    d: Word,
    count: Word,
    first: Word,
) -> None:
    """d[i] += sum over rows from ``first`` on of a[i] * b[i], i < count; d is contiguous.

    There is a literal number of rows, of a LoopProduct at the address ``product``.
    """
    ways = way_a.literal_value, way_b.literal_value
    given = cast(LoopProduct, write.entries(product, LoopProduct))
    whole, builder = write.vectors(kind, _lanes(kind, ways), fuses=True), write.builder
    rows = [write.plus(first, at) for at in range(together.literal_value)]
    runs = [_Run(whole, ways, given, _starts(write, given, (a, b), row)) for row in rows]

    def add(vectors: Vectors, runs: list["_Run"], at: Any) -> None:
        place = write.plus(d, builder.mul(at, WORD(vectors.size)))
        value = vectors.products([run.factors(at) for run in runs])
        vectors.store(vectors.sum(vectors.load(place), value), place)

    with write.loop(builder.udiv(count, WORD(whole.lanes))) as each:
        add(whole, runs, builder.mul(each.index, WORD(whole.lanes)))
    for piece in whole.halves():
        with write.if_bit(count, piece.lanes):
            mine = [run.of(piece) for run in runs]
            add(piece, mine, builder.and_(count, WORD(-2 * piece.lanes)))


@emitted
def clear_row(write: Writer, kind: Tag, to: Word, count: Word) -> None:
    """Zeros, side by side."""
    one = write.vectors(kind, 1)
    with write.loop(count) as each:
        one.store(one.zero(), write.plus(to, write.builder.mul(each.index, WORD(one.size))))


@emitted
def spread_row(
    write: Writer, kind: Tag, source: Word, target: Word, count: Word, step: Word
) -> None:
    """Contiguous elements to places ``step`` bytes apart."""
    one, builder = write.vectors(kind, 1), write.builder
    with write.loop(count) as each:
        value = one.load(write.plus(source, builder.mul(each.index, WORD(one.size))))
        one.store(value, write.plus(target, builder.mul(each.index, step)))


def _starts(write: Writer, given: LoopProduct, operands: tuple[Any, Any], row: Any) -> list[Any]:
    """Where a row of each operand begins."""
    pairs = zip(operands, (given.offsets_a, given.offsets_b), strict=True)
    return [write.plus(operand, write.entry(offsets, row)) for operand, offsets in pairs]


def _lanes(kind: Any, ways: tuple[int, int]) -> int:
    """Elements of a vector: of a line, or one."""
    return 1 if STRIDED in ways else 8 * VECTOR_BYTES // int(kind.bitwidth)


class _Run:
    """Two operands along a row, each contiguous, the same throughout, or strided."""

    def __init__(
        self, vectors: Vectors, ways: tuple[int, int], given: LoopProduct, starts: list[Any]
    ) -> None:
        self.vectors, self.write, self.ways = vectors, vectors.write, ways
        self.given, self.starts = given, starts
        pairs = zip(ways, starts, strict=True)
        self.same = [vectors.load_spread(at) if way == SPREAD else None for way, at in pairs]

    def of(self, vectors: Vectors) -> "_Run":
        """The same by other vectors."""
        return _Run(vectors, self.ways, self.given, self.starts)

    def fetch(self, at: Any) -> None:
        """Ask for what lies so many bytes after a place; 0: for nothing."""
        distances = self.given.ahead_a, self.given.ahead_b
        for way, start, distance in zip(self.ways, self.starts, distances, strict=True):
            if way == UNIT:
                with self.write.if_any(distance):
                    here = self._place(start, at, WORD(self.vectors.size))
                    self.write.fetch(self.write.plus(here, distance), self.vectors.bytes)

    def factors(self, at: Any) -> tuple[Any, Any]:
        """The vectors at a place."""
        return self._factor(0, at), self._factor(1, at)

    def _factor(self, which: int, at: Any) -> Any:
        if self.same[which] is not None:
            return self.same[which]
        is_unit = self.ways[which] == UNIT
        step = (self.given.step_a, self.given.step_b)[which]
        step = WORD(self.vectors.size) if is_unit else step
        return self.vectors.load(self._place(self.starts[which], at, step))

    def _place(self, start: Any, at: Any, step: Any) -> Any:
        return self.write.plus(start, self.write.builder.mul(at, step))
