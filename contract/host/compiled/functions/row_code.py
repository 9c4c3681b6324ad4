"""What compiled reductions consist of: rows of elements combined with accumulators."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
from numba.core import types

from contract.descriptors.operators import BinaryOperator
from contract.host.compiled.functions.vector_ir import (
    LONGEST,
    WORD,
    Pairs,
    Tag,
    Vectors,
    Word,
    Writer,
    emitted,
    is_complex,
    reduced,
)
from contract.host.compiled.reduction_tables import (
    CONTIGUOUS,
    STRIDED,
    VECTOR_BYTES,
    WHOLE,
    RowPass,
)
from contract.host.compiled.visits import Visit

__all__ = [
    "TAGS",
    "combine_lanes",
    "combine_results",
    "combine_run",
    "fill",
]

CONTIGUOUS_GROUP = 4  # rows combined at once
TABULATED_GROUP = 8
RUNNING = 4  # values of a row that take turns: one alone waits for itself

# The type of an operator's tag is compiled in, and unlike a closure it lets code be kept on disk.
TAGS: dict[BinaryOperator, Any] = {
    BinaryOperator.ADD: np.int8(0),
    BinaryOperator.MUL: np.int16(0),
    BinaryOperator.MAX: np.int32(0),
    BinaryOperator.MIN: np.int64(0),
}
_OPERATORS = {
    types.int8: BinaryOperator.ADD,
    types.int16: BinaryOperator.MUL,
    types.int32: BinaryOperator.MAX,
    types.int64: BinaryOperator.MIN,
}


# --- operators --------------------------------------------------------------------------------


def _neutral(vectors: Vectors, operator: BinaryOperator) -> Any:
    """The value that changes nothing: for sums -0, which unlike +0 keeps the sign of -0."""
    if operator is BinaryOperator.ADD:
        return vectors.constant([0 if vectors.exact else -0.0])
    if operator is BinaryOperator.MUL:
        return vectors.constant([1, 0][: vectors.parts])
    if operator is BinaryOperator.MAX:
        return vectors.constant([vectors.kind.minval if vectors.exact else -np.inf])
    return vectors.constant([vectors.kind.maxval if vectors.exact else np.inf])


def _combined(vectors: Vectors, operator: BinaryOperator, one: Any, two: Any) -> Any:
    """Two vectors combined; NaN is kept."""
    if operator is BinaryOperator.ADD:
        return vectors.sum(one, two)
    if operator is BinaryOperator.MUL:
        return (_complex_product if vectors.parts == 2 else Vectors.product)(vectors, one, two)
    builder, sign = vectors.builder, ">" if operator is BinaryOperator.MAX else "<"
    if vectors.exact:
        compare = builder.icmp_signed if vectors.kind.signed else builder.icmp_unsigned
        return builder.select(compare(sign, one, two), one, two)
    # The processor's maximum is its second operand where either is NaN: right for ``two``.
    best = builder.select(builder.fcmp_ordered(sign, one, two), one, two)
    return builder.select(builder.fcmp_unordered("uno", one, one), one, best)


def _complex_product(vectors: Vectors, one: Any, two: Any) -> Any:
    """The product with exactly 1 left out, which would make NaN of infinities."""
    builder, result = vectors.builder, vectors.product(one, two)
    for factor, other in ((two, one), (one, two)):
        is_same = builder.fcmp_ordered("==", factor, vectors.constant([1, 0]))
        is_one = builder.and_(is_same, vectors.swapped(is_same))
        result = builder.select(is_one, other, result)
    return result


class _Rows:
    """Writes the combination of neighbouring elements of rows with neighbouring accumulators.

    Rows and accumulators are given by addresses, places in them in elements.
    """

    def __init__(self, write: Writer, tag: Any, source: Any, kind: Any, block: Any) -> None:
        self.write, self.builder, self.operator = write, write.builder, _OPERATORS[tag]
        self.source, self.kind, self.block = source, kind, block
        self.vectors = write.vectors(kind, 8 * VECTOR_BYTES // int(kind.bitwidth))
        # Complex numbers of a row are combined one by one.
        self.running = self.vectors.of(1) if is_complex(kind) else self.vectors

    def combined(self, vectors: Vectors) -> Callable[[Any, Any], Any]:
        """What combines two vectors."""
        return lambda one, two: _combined(vectors, self.operator, one, two)

    def neutral(self) -> Any:
        """The neutral element in every lane."""
        return _neutral(self.vectors, self.operator)

    def elements(self, vectors: Vectors, row: Any, at: Any) -> Any:
        """Neighbouring elements of a row, converted."""
        read = self.write.vectors(self.source, vectors.lanes)
        place = self.write.plus(row, self.builder.mul(at, WORD(read.size)))
        return vectors.converted(read, read.load(place))

    def combine(self, vectors: Vectors, rows: list[Any], at: Any, source_at: Any) -> None:
        """The rows first: accumulators are waited for, rows are not."""
        values = [self.elements(vectors, row, source_at) for row in rows]
        self.join(vectors, at, reduced(values, self.combined(vectors)))

    def join(self, vectors: Vectors, at: Any, value: Any) -> None:
        """Combine a value with its accumulators."""
        place = self.write.plus(self.block, self.builder.mul(at, WORD(vectors.size)))
        vectors.store(_combined(vectors, self.operator, vectors.load(place), value), place)

    def fetch(self, row: Any, at: Any, lanes: int, ahead: Any) -> None:
        """Ask for the lines ``ahead`` bytes beyond these elements of a row."""
        if not is_complex(self.kind):
            size = self.source.bitwidth // 8
            place = self.write.plus(row, self.builder.mul(at, WORD(size)))
            self.write.fetch(self.write.plus(place, ahead), lanes * size)

    def groups(self, source: Any, table: Any, range_: tuple[Any, Any], most: int) -> Iterator[Any]:
        """For each size of a group of rows these rows, where code for it shall stand.

        Their offsets in elements are a table's entries in a range. Accumulators are loaded and
        stored once for a group.
        """
        write, builder, (begin, end) = self.write, self.builder, range_
        size = WORD(self.source.bitwidth // 8)

        def rows(first: Any, count: int) -> list[Any]:
            offsets = [write.entry(table, write.plus(first, at)) for at in range(count)]
            return [write.plus(source, builder.mul(offset, size)) for offset in offsets]

        count = builder.sub(end, begin)
        with write.loop(builder.udiv(count, WORD(most))) as loop:
            yield rows(write.plus(begin, builder.mul(loop.index, WORD(most))), most)
        left = builder.urem(count, WORD(most))
        for few in range(1, most):
            with builder.if_then(builder.icmp_unsigned("==", left, WORD(few))):
                yield rows(builder.sub(end, WORD(few)), few)

    def join_vectors(self, rows: list[Any], length: Any, ahead: Any = None) -> None:
        """Combine neighbouring elements of rows with neighbouring accumulators."""
        builder, lanes = self.builder, self.vectors.lanes
        with self.write.loop(builder.udiv(length, WORD(lanes))) as loop:
            at = builder.mul(loop.index, WORD(lanes))
            for row in rows if ahead is not None else ():
                self.fetch(row, at, lanes, ahead)
            self.combine(self.vectors, rows, at, at)
        for piece in self.vectors.halves():
            with self.write.if_bit(length, piece.lanes):
                at = builder.and_(length, WORD(-2 * piece.lanes))
                self.combine(piece, rows, at, at)

    def join_elements(self, rows: list[Any], length: Any, offsets: Any) -> None:
        """The same where offsets[i] says how far element i of a row is from the first."""
        one = self.vectors.of(1)
        with self.write.loop(length) as loop:
            self.combine(one, rows, loop.index, self.write.entry(offsets, loop.index))

    def whole(self, row: Any, total: Any, vectors: Vectors, stride: Any, ahead: Any = None) -> Any:
        """One vector of all whole vectors of a row, four of them at a time.

        Running values take so many steps only: what they have come to is combined in pairs.
        """
        builder, write, lanes = self.builder, self.write, vectors.lanes
        neutral, combined = _neutral(vectors, self.operator), self.combined(vectors)
        places = [write.variable(neutral) for _ in range(RUNNING)]
        pairs = Pairs(write, neutral, combined)

        def join(place: Any, at: Any) -> None:
            value = self.elements(vectors, row, builder.mul(at, stride))
            builder.store(combined(builder.load(place), value), place)

        turns = builder.udiv(total, WORD(RUNNING * lanes))
        with write.loop(turns) as loop:
            at = builder.mul(loop.index, WORD(RUNNING * lanes))
            if ahead is not None:
                self.fetch(row, at, RUNNING * lanes, ahead)
            for which, place in enumerate(places):
                join(place, write.plus(at, which * lanes))
            with write.if_last(loop.index, LONGEST):
                pairs.push([builder.load(place) for place in places])
                for place in places:
                    builder.store(neutral, place)
        begin, end = builder.mul(turns, WORD(RUNNING)), builder.udiv(total, WORD(lanes))
        with write.loop(builder.sub(end, begin)) as loop:
            join(places[0], builder.mul(builder.add(begin, loop.index), WORD(lanes)))
        return pairs.total([builder.load(place) for place in places])

    def phases(self, row: Any, length: Any, ahead: Any, count: int) -> None:
        """Combine a row with so many neighbouring accumulators in turn."""
        builder, write, vectors = self.builder, self.write, self.running
        if vectors.lanes < count:
            return  # never planned
        value = self.whole(row, length, vectors, WORD(1), ahead)
        for piece in vectors.halves():  # the rest joins while the lanes are halved
            if piece.lanes < count:
                break
            combined = self.combined(piece)
            place = write.variable(combined(*vectors.split(value)))
            with write.if_bit(length, piece.lanes):
                rest = self.elements(piece, row, builder.and_(length, WORD(-2 * piece.lanes)))
                builder.store(combined(builder.load(place), rest), place)
            value, vectors = builder.load(place), piece
        self.join(vectors, WORD(0), value)

    def strided(self, row: Any, length: Any, stride: Any) -> None:
        """Combine a row of single elements with an accumulator."""
        one = self.vectors.of(1)
        self.join(one, WORD(0), self.whole(row, length, one, stride))


# --- what compiled code calls -----------------------------------------------------------------
# ``tag`` is the operator; ``loop`` is the address of a Visit, ``what`` that of a RowPass.


@emitted
def fill(write: Writer, tag: Tag, kind: Tag, block: Word, count: Word) -> None:
    """The neutral element in so many accumulators."""
    rows, builder = _Rows(write, tag, kind, kind, block), write.builder
    one, vectors = rows.vectors.of(1), rows.vectors
    whole = builder.and_(count, WORD(-vectors.lanes))
    with write.loop(builder.udiv(count, WORD(vectors.lanes))) as loop:
        place = write.plus(block, builder.mul(loop.index, WORD(vectors.bytes)))
        vectors.store(rows.neutral(), place)
    with write.loop(count, start=whole) as loop:
        place = write.plus(block, builder.mul(loop.index, WORD(one.size)))
        one.store(_neutral(one, rows.operator), place)


@emitted
def combine_run(
    write: Writer, tag: Tag, kind: Tag, block: Word, source: Word, length: Word
) -> None:
    """block[i] = it combined with source[i] for all i < length."""
    _Rows(write, tag, kind, kind, block).join_vectors([source], length)


@emitted
def combine_lanes(
    write: Writer,
    tag: Tag,
    source_kind: Tag,
    kind: Tag,
    mode: Word,
    block: Word,
    source: Word,
    loop: Word,
    what: Word,
    offsets: Word,
) -> None:
    """Rows with an accumulator for each element: contiguous ones, or of tabulated elements.

    There is one place in the code for both lengths of rows.
    """
    visit, builder = cast(Visit, write.entries(loop, Visit)), write.builder
    rows_of = cast(RowPass, write.entries(what, RowPass))
    with write.loop(visit.extent) as each:
        step, here = _step(write, tag, source_kind, kind, visit, (block, source), each.index)
        has_tail = builder.icmp_signed(">", rows_of.tail, WORD(0))
        with write.loop(builder.select(has_tail, WORD(2), WORD(1))) as part:
            is_tail = builder.icmp_unsigned("!=", part.index, WORD(0))
            length, begin, end = (
                builder.select(is_tail, *pair)
                for pair in (
                    (rows_of.tail, rows_of.length),
                    (rows_of.end, rows_of.begin),
                    (rows_of.tail_end, rows_of.end),
                )
            )
            for is_contiguous in write.cases(mode, CONTIGUOUS):
                most = CONTIGUOUS_GROUP if is_contiguous else TABULATED_GROUP
                for rows in step.groups(here, offsets, (begin, end), most):
                    if is_contiguous:
                        step.join_vectors(rows, length, rows_of.ahead)
                    else:
                        step.join_elements(rows, length, offsets)


@emitted
def combine_results(
    write: Writer,
    tag: Tag,
    source_kind: Tag,
    kind: Tag,
    mode: Word,
    block: Word,
    source: Word,
    loop: Word,
    what: Word,
    offsets: Word,
) -> None:
    """Rows with one accumulator, of contiguous elements or of others, or with two in turn."""
    visit, builder = cast(Visit, write.entries(loop, Visit)), write.builder
    rows_of = cast(RowPass, write.entries(what, RowPass))
    with write.loop(visit.extent) as each:
        step, here = _step(write, tag, source_kind, kind, visit, (block, source), each.index)
        with write.loop(rows_of.end, start=rows_of.begin) as at:
            size = WORD(source_kind.bitwidth // 8)
            row = write.plus(here, builder.mul(write.entry(offsets, at.index), size))
            for is_strided in write.cases(mode, STRIDED):
                if is_strided:
                    step.strided(row, rows_of.length, write.entry(offsets, 1))
                    continue
                for is_whole in write.cases(mode, WHOLE):
                    step.phases(row, rows_of.length, rows_of.ahead, 1 if is_whole else 2)


def _step(
    write: Writer,
    tag: Any,
    source_kind: Any,
    kind: Any,
    visit: Visit,
    places: tuple[Any, Any],
    at: Any,
) -> tuple[_Rows, Any]:
    """The accumulators at a step of a loop, and where its rows begin."""
    builder, (block, source) = write.builder, places
    read, written = (WORD(each.bitwidth // 8) for each in (source_kind, kind))
    to = builder.mul(builder.mul(at, visit.two), written)
    moved = builder.mul(builder.mul(at, visit.one), read)
    rows = _Rows(write, tag, source_kind, kind, write.plus(block, to))
    return rows, write.plus(source, moved)
