"""What multiplying by tiles consists of: a register tile, and tiles that are written together."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from contract.host.compiled.functions.panel_code import shape_of
from contract.host.compiled.functions.vector_ir import (
    WORD,
    Tag,
    Vectors,
    Word,
    Writer,
    emitted,
    is_complex,
    part_of,
)
from contract.host.compiled.tile_tables import THIRDS, TileCall
from contract.planner.host.tile_blocks import SQUARE

__all__ = ["join_element", "join_square", "multiply_tile"]

UNROLL = 4


@emitted
def join_element(write: Writer, kind: Tag, source: Word, target: Word, add: Word) -> None:
    """Write an element, or add it to what is there."""
    vectors = write.vectors(kind, 1)
    _join(vectors, vectors.load(source), target, add)


@emitted
def join_square(
    write: Writer, kind: Tag, source: Word, pitch: Word, target: Word, rows: Word, add: Word
) -> None:
    """Four rows of four tiles, ``pitch`` bytes apart, whose elements are neighbours in memory.

    ``rows`` is the address of the rows' byte offsets; elements are written, or added.
    """
    vectors = write.vectors(kind, SQUARE)
    tiles = [write.plus(source, write.builder.mul(pitch, WORD(at))) for at in range(SQUARE)]
    lines = vectors.transposed([vectors.load(tile) for tile in tiles])
    steps = [write.entry(rows, at) for at in range(SQUARE)]
    for line, step in zip(lines, steps, strict=True):
        _join(vectors, line, write.plus(target, step), add)


def _join(vectors: Vectors, value: Any, place: Any, add: Any) -> None:
    """Write a vector, or add it to what is there: new memory must not be read."""
    for adds in vectors.write.ways(add):
        vectors.store(vectors.sum(vectors.load(place), value) if adds else value, place)


@emitted
def multiply_tile(write: Writer, kind: Tag, vectors: Tag, thirds: Tag, given: Word) -> None:
    """d[rows[i] + places[j]] = [d +] alpha * sum_p a[p, i] * b[p, j] on panels.

    ``given`` is the address of a TileCall; the tile has so many vectors of rows, and thirds of a
    whole one's columns.
    """
    whole = shape_of(kind)
    rows = min(vectors.literal_value, whole.vectors)
    call = cast(TileCall, write.entries(given, TileCall))
    tile = _RegisterTile(write, kind, call, rows, thirds.literal_value * whole.columns // THIRDS)
    tile.fetch()
    with write.if_any(call.runs):
        tile.fetch_ends()
    tile.multiply()
    with write.if_any(call.alpha):
        tile.scale()
    for has_runs in write.ways(call.runs):
        for adds in write.ways(call.add):
            (tile.store_runs if has_runs else tile.store)(adds)


class _RegisterTile:
    """Writes the instructions of one register tile; LLVM keeps its sums in registers.

    A sum of complex numbers is two vectors, one of each part.
    """

    def __init__(self, write: Writer, kind: Any, call: TileCall, vectors: int, columns: int):
        self.write, self.builder, self.call = write, write.builder, call
        self.shape = shape_of(kind)  # of a whole tile, as wide as panels are
        self.lanes, self.parts = self.shape.lanes, 1 + is_complex(kind)
        self.vectors = write.vectors(part_of(kind), self.lanes)
        self.size = self.vectors.size
        zero = self.vectors.zero()
        self.sums = [
            [[write.variable(zero) for _ in range(self.parts)] for _ in range(columns)]
            for _ in range(vectors)
        ]
        self.columns_at = [write.entry(call.places, at) for at in range(columns)]
        self.places = [self._across(self._row(at * self.lanes)) for at in range(vectors)]

    def _row(self, at: int | Any) -> Any:
        """Where a row lies."""
        return self.write.plus(self.call.d, self.write.entry(self.call.rows, at))

    def _across(self, row: Any) -> list[Any]:
        """Where a row lies in each column."""
        return [self.write.plus(row, each) for each in self.columns_at]

    def fetch(self) -> None:
        """Ask for the lines that will be written."""
        for columns in self.places:
            for place in columns:
                self.write.fetch(place, self.vectors.bytes * self.parts, writes=1)

    def fetch_ends(self) -> None:
        """The same for vectors whose last row lies elsewhere."""
        for vector in range(len(self.sums)):
            for place in self._across(self._row((vector + 1) * self.lanes - 1)):
                self.write.fetch(place, writes=1)

    def multiply(self) -> None:
        """Add the products of all steps along k to the sums."""
        write, builder, depth = self.write, self.builder, self.call.depth
        whole = builder.sdiv(depth, WORD(UNROLL))
        with write.loop(whole) as loop:
            first = builder.mul(loop.index, WORD(UNROLL))
            for step in range(UNROLL):
                self._step(write.plus(first, step))
        with write.loop(depth, start=builder.mul(whole, WORD(UNROLL))) as loop:
            self._step(loop.index)

    def _step(self, at: Any) -> None:
        """Add the products of one step."""
        write, builder, size = self.write, self.builder, self.size
        here = write.plus(self.call.a, builder.mul(at, WORD(self.shape.rows * self.parts * size)))
        places = (write.plus(here, vector * self.vectors.bytes) for vector in range(self._rows))
        rows = [self.vectors.load(place, align=size) for place in places]
        row_bytes = self.shape.columns * self.parts * size
        there = write.plus(self.call.b, builder.mul(at, WORD(row_bytes)))
        table = write.pointer(there, self.vectors.type.element)
        for column in range(len(self.columns_at)):
            numbers = (WORD(column * self.parts + part) for part in range(self.parts))
            entries = [
                self.vectors.spread(builder.load(builder.gep(table, [at]))) for at in numbers
            ]
            for vector, sums in enumerate(self.sums):
                mine = rows[vector * self.parts : (vector + 1) * self.parts]
                self._accumulate(sums[column], mine, entries)

    @property
    def _rows(self) -> int:
        """Vectors of a step of A."""
        return len(self.sums) * self.parts

    def _accumulate(self, sums: list[Any], left: list[Any], right: list[Any]) -> None:
        """sums += left * right, in parts."""
        builder = self.builder

        def joined(at: int, one: Any, two: Any) -> None:
            builder.store(self.vectors.fused(builder.load(sums[at]), one, two), sums[at])

        joined(0, left[0], right[0])
        if self.parts == 2:
            joined(1, left[0], right[1])
            joined(0, builder.fneg(left[1]), right[1])
            joined(1, left[1], right[0])

    def scale(self) -> None:
        """Multiply the sums by alpha."""
        builder, table = self.builder, self.write.pointer(self.call.alpha, self._number)
        alpha = [
            self.vectors.spread(builder.load(builder.gep(table, [WORD(part)]), align=1))
            for part in range(self.parts)
        ]
        for columns in self.sums:
            for sums in columns:
                values = [builder.load(each) for each in sums]
                for each, value in zip(sums, self._scaled(values, alpha), strict=True):
                    builder.store(value, each)

    @property
    def _number(self) -> Any:
        """LLVM's type of a part of an element."""
        return self.vectors.type.element

    def _scaled(self, values: list[Any], alpha: list[Any]) -> Iterator[Any]:
        builder = self.builder
        if self.parts == 1:
            yield builder.fmul(values[0], alpha[0])
            return
        one, two = values
        yield builder.fsub(builder.fmul(one, alpha[0]), builder.fmul(two, alpha[1]))
        yield builder.fadd(builder.fmul(one, alpha[1]), builder.fmul(two, alpha[0]))

    def store(self, adds: bool) -> None:
        """Write the columns where they lie, contiguous along the rows, or add to what is there.

        New memory must not be read: the system would give it a page twice.
        """
        for column in range(len(self.columns_at)):
            for places, sums in zip(self.places, self.sums, strict=True):
                for at, value in enumerate(self._in_memory(sums[column])):
                    to = self.write.plus(places[column], at * self.vectors.bytes)
                    if adds:
                        value = self.vectors.sum(self.vectors.load(to, self.size), value)
                    self.vectors.store(value, to, self.size)

    def store_runs(self, adds: bool) -> None:
        """The same for rows that lie in runs, the parts of a vector one after the other."""
        write, builder = self.write, self.builder
        for vector in range(len(self.sums)):
            begin = WORD(vector * self.lanes)
            count = write.least(builder.sub(self.call.high, begin), WORD(self.lanes))
            done = write.variable(WORD(0))
            with write.loop(count) as each:
                at = builder.add(begin, each.index)
                with builder.if_then(builder.icmp_signed("==", each.index, builder.load(done))):
                    left = builder.sub(count, each.index)
                    run = write.least(write.entry(self.call.runs, at), left)
                    end = builder.add(each.index, run)
                    builder.store(end, done)
                    bytes_before = builder.mul(each.index, WORD(self.size * self.parts))
                    first = builder.sub(self._row(at), bytes_before)
                    self._store_lanes(adds, self.sums[vector], first, (each.index, end))

    def _store_lanes(
        self, adds: bool, columns: Sequence[list[Any]], first: Any, lanes: tuple[Any, Any]
    ) -> None:
        """Write some lanes of a vector's columns; ``first`` is where its first lane would lie."""
        builder = self.builder
        masks = [self._mask(at, *lanes) for at in range(self.parts)]
        certain = len(columns) - self.shape.grain  # narrower tiles would do for fewer
        for column, place in enumerate(self._across(first)):
            if column <= certain:
                self._store_masked(adds, columns[column], place, masks)
                continue
            with builder.if_then(builder.icmp_signed(">", self.call.used, WORD(column))):
                self._store_masked(adds, columns[column], place, masks)

    def _mask(self, at: int, begin: Any, end: Any) -> Any:
        """Which numbers of a column's vector ``at`` in memory are parts of these lanes."""
        lanes = [(at * self.lanes + each) // self.parts for each in range(self.lanes)]
        return self.vectors.mask(lanes, begin, end)

    def _store_masked(self, adds: bool, sums: list[Any], place: Any, masks: list[Any]) -> None:
        """Write, or add, the numbers that masks say."""
        for at, (value, mask) in enumerate(zip(self._in_memory(sums), masks, strict=True)):
            to = self.write.plus(place, at * self.vectors.bytes)
            if adds:
                before = self.vectors.load_masked(to, mask, value)
                value = self.vectors.sum(before, value)
            self.vectors.store_masked(value, to, mask)

    def _in_memory(self, sums: list[Any]) -> list[Any]:
        """The vectors of rows as they lie in memory: parts in turn."""
        values = [self.builder.load(each) for each in sums]
        return values if self.parts == 1 else self.vectors.interleaved(*values)
