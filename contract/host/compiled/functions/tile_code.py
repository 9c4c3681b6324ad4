"""What compiled products by tiles are made of: the shape of a tile, and writers of instructions.

Memory is addressed in bytes. Complex panels of A keep real and imaginary parts apart, so that a
vector holds either; those of B keep them together, for each part is spread over a vector.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types

from contract.host.compiled.functions.tools import emitted, entry, prefetch
from contract.host.compiled.tile_tables import THIRDS, tile_shape
from contract.host.kernels.protocol import TileShape
from contract.planner.host.tile_blocks import SQUARE

__all__ = [
    "LEFT",
    "RIGHT",
    "clear",
    "element_size",
    "fetch",
    "grain_width",
    "join_element",
    "join_square",
    "move",
    "move_run",
    "multiply_tile",
    "panel_width",
    "part_size",
    "turn",
    "turned_length",
]

UNROLL = 4
LINE = 64
ARGUMENTS = 11  # of a tile
LEFT, RIGHT = np.int8(0), np.int16(0)  # panels of A or B: what differs is compiled in


# --- the shape of a tile ----------------------------------------------------------------------


def _shape_of(kind: Any) -> TileShape:
    return tile_shape(np.dtype(str(kind)))


def _is_complex(kind: Any) -> bool:
    return kind in types.complex_domain


def _part(kind: Any) -> Any:
    """The type of a number's parts: the real type of a complex one, else its own."""
    return kind.underlying_float if _is_complex(kind) else kind


# --- instructions -----------------------------------------------------------------------------


def _width(side: Any, kind: Any) -> int:
    shape = _shape_of(kind)
    return shape.rows if _is_left(side) else shape.columns


def _grain(side: Any, kind: Any) -> int:
    shape = _shape_of(kind)
    return shape.lanes if _is_left(side) else shape.grain


def _is_left(side: Any) -> bool:
    """Whether the first argument of an intrinsic says A."""
    return bool(side == types.int8)


def _is_split(side: Any, kind: Any) -> bool:
    """Whether real and imaginary parts lie apart in a panel."""
    return _is_left(side) and _is_complex(kind)


def _constant(value: Any) -> Any:
    """An intrinsic's result: an integer that depends on types only."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return codegen.get_constant(types.intp, value)

    return write


@emitted
def element_size(context: Any, kind: Any) -> Any:
    """Bytes of an element."""
    return types.intp(kind), _constant(kind.bitwidth // 8)


@emitted
def panel_width(context: Any, side: Any, kind: Any) -> Any:
    """Rows of a panel of A, or columns of one of B."""
    return types.intp(side, kind), _constant(_width(side, kind))


@emitted
def grain_width(context: Any, side: Any, kind: Any) -> Any:
    """The same of the narrowest panel; others are multiples of it."""
    return types.intp(side, kind), _constant(_grain(side, kind))


@emitted
def turned_length(context: Any, side: Any, kind: Any) -> Any:
    """How many elements of a row ``turn`` takes."""
    return types.intp(side, kind), _constant(SQUARE // 2 if _is_split(side, kind) else SQUARE)


@emitted
def part_size(context: Any, side: Any, kind: Any) -> Any:
    """Bytes from one row of a panel to the next."""
    one = _part(kind) if _is_split(side, kind) else kind
    return types.intp(side, kind), _constant(one.bitwidth // 8)


@emitted
def move(
    context: Any, side: Any, source_kind: Any, kind: Any, source: Any, to: Any, gap: Any
) -> Any:
    """Move one element into a panel, converted; parts that are split go ``gap`` bytes apart."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, _, at, to, gap = arguments
        made = codegen.get_value_type(source_kind)
        value = builder.load(builder.inttoptr(at, made.as_pointer()), align=1)
        value = codegen.cast(builder, value, source_kind, kind)
        if not _is_split(side, kind):
            place = builder.inttoptr(to, value.type.as_pointer())
            builder.store(value, place, align=1)
            return codegen.get_dummy_value()
        number = codegen.make_complex(builder, kind, value=value)
        for part, place in ((number.real, to), (number.imag, builder.add(to, gap))):
            builder.store(part, builder.inttoptr(place, part.type.as_pointer()), align=1)
        return codegen.get_dummy_value()

    return types.void(side, source_kind, kind, *[types.intp] * 3), write


@emitted
def move_run(context: Any, side: Any, kind: Any, source: Any, to: Any, gap: Any) -> Any:
    """Move a grain of contiguous elements into a panel; parts that are split go ``gap`` apart."""
    length = _grain(side, kind)

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *_, at, to, gap = arguments
        number = codegen.get_value_type(_part(kind))
        parts = 2 if _is_complex(kind) else 1
        whole = ir.VectorType(number, length * parts)
        value = builder.load(builder.inttoptr(at, whole.as_pointer()), align=1)
        if not _is_split(side, kind):
            builder.store(value, builder.inttoptr(to, whole.as_pointer()), align=1)
            return codegen.get_dummy_value()
        for part, place in enumerate((to, builder.add(to, gap))):
            mine = builder.shuffle_vector(value, value, _order(range(part, 2 * length, 2)))
            builder.store(mine, builder.inttoptr(place, mine.type.as_pointer()), align=1)
        return codegen.get_dummy_value()

    return types.void(side, kind, *[types.intp] * 3), write


@emitted
def turn(
    context: Any,
    side: Any,
    kind: Any,
    source: Any,
    rows: Any,
    first: Any,
    second: Any,
    third: Any,
    fourth: Any,
    gap: Any,
) -> Any:
    """Contiguous elements from each of four rows become runs of a panel, four elements each.

    ``rows`` is the address of the rows' byte offsets; where parts are split there are two runs
    of each part, imaginary ones ``gap`` bytes behind real ones.
    """
    split = _is_split(side, kind)
    together = 2 if _is_complex(kind) and not split else 1

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *_, source, rows, first, second, third, fourth, gap = arguments
        word = source.type
        vector = ir.VectorType(codegen.get_value_type(_part(kind)), SQUARE * together)
        steps = [entry(builder, rows, word(row)) for row in range(SQUARE)]
        starts = [builder.inttoptr(builder.add(source, s), vector.as_pointer()) for s in steps]
        lines = _turned(builder, [builder.load(each, align=1) for each in starts], together)
        places = [first, second, third, fourth]
        if split:
            places = [first, builder.add(first, gap), second, builder.add(second, gap)]
        for line, place in zip(lines, places, strict=True):
            builder.store(line, builder.inttoptr(place, vector.as_pointer()), align=1)
        return codegen.get_dummy_value()

    return types.void(side, kind, *[types.intp] * 7), write


@emitted
def fetch(context: Any, address: Any) -> Any:
    """Ask for the line at an address."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        prefetch(builder, arguments[0], writes=0, keep=3)
        return codegen.get_dummy_value()

    return types.void(types.intp), write


def _declared(builder: Any, kind: Any, name: str) -> Any:
    """LLVM's function of that name."""
    return cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]


def _turned(builder: Any, lines: list[Any], together: int) -> list[Any]:
    """A square of four lines transposed; ``together`` numbers make an element."""
    half = SQUARE // 2

    def interleaved(one: Any, two: Any, begin: int) -> Any:
        order = [
            (begin + at // 2 + (at % 2) * SQUARE) * together + piece
            for at in range(SQUARE)
            for piece in range(together)
        ]
        return builder.shuffle_vector(one, two, _order(order))

    for _ in range(2):
        pairs = list(zip(lines[:half], lines[half:], strict=True))
        lines = [interleaved(*pair, begin) for pair in pairs for begin in (0, half)]
    return lines


def _order(numbers: Any) -> Any:
    numbers = list(numbers)
    return ir.Constant(ir.VectorType(ir.IntType(32), len(numbers)), numbers)


@emitted
def clear(context: Any, side: Any, kind: Any, to: Any, gap: Any) -> Any:
    """Write a zero into a panel."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *_, to, gap = arguments
        zero = codegen.get_constant(_part(kind), 0)
        other = gap if _is_split(side, kind) else gap.type(_part(kind).bitwidth // 8)
        for place in [to, builder.add(to, other)][: 2 if _is_complex(kind) else 1]:
            builder.store(zero, builder.inttoptr(place, zero.type.as_pointer()), align=1)
        return codegen.get_dummy_value()

    return types.void(side, kind, types.intp, types.intp), write


@emitted
def join_element(context: Any, kind: Any, source: Any, target: Any, add: Any) -> Any:
    """Write an element, or add it to what is there."""
    parts = 2 if _is_complex(kind) else 1

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, source, target, add = arguments
        vector = ir.VectorType(codegen.get_value_type(_part(kind)), parts)
        value = builder.load(builder.inttoptr(source, vector.as_pointer()), align=1)
        _join(builder, value, builder.inttoptr(target, vector.as_pointer()), add)
        return codegen.get_dummy_value()

    return types.void(kind, *[types.intp] * 3), write


@emitted
def join_square(
    context: Any, kind: Any, source: Any, pitch: Any, target: Any, rows: Any, add: Any
) -> Any:
    """Four rows of four tiles, ``pitch`` bytes apart, whose elements are neighbours in memory.

    ``rows`` is the address of the rows' byte offsets; elements are written, or added.
    """
    together = 2 if _is_complex(kind) else 1

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, source, pitch, target, rows, add = arguments
        word = source.type
        vector = ir.VectorType(codegen.get_value_type(_part(kind)), SQUARE * together)

        def place(base: Any, shift: Any) -> Any:
            return builder.inttoptr(builder.add(base, shift), vector.as_pointer())

        tiles = [place(source, builder.mul(pitch, word(at))) for at in range(SQUARE)]
        lines = _turned(builder, [builder.load(tile, align=1) for tile in tiles], together)
        steps = [entry(builder, rows, word(at)) for at in range(SQUARE)]
        for line, step in zip(lines, steps, strict=True):
            _join(builder, line, place(target, step), add)
        return codegen.get_dummy_value()

    return types.void(kind, *[types.intp] * 5), write


def _join(builder: Any, value: Any, place: Any, add: Any) -> None:
    """Write a vector, or add it to what is there: new memory must not be read."""
    for adds in _ways(builder, add):
        joined = builder.fadd(builder.load(place, align=1), value) if adds else value
        builder.store(joined, place, align=1)


@emitted
def multiply_tile(
    context: Any,
    kind: Any,
    vectors: Any,
    columns: Any,
    given: Any,
) -> Any:
    """d[rows[i] + places[j]] = [d +] alpha * sum_p a[p, i] * b[p, j] on panels.

    ``given`` is the address of a table: (high, used, depth, a, b, d, rows, places, runs, add,
    alpha), addresses mostly. ``alpha`` is 0 where that is 1, ``rows`` and ``places`` are tables of
    byte offsets, and ``runs`` says how many rows lie side by side from each on. Only ``high`` rows
    and ``used`` columns are written; all are if ``runs`` is 0, and then the rows of every vector
    lie side by side.
    """
    # ``columns`` counts thirds of a whole tile's, ``vectors`` halves of a real one's rows.
    widest = _shape_of(kind)
    shape = (
        min(vectors.literal_value, widest.vectors),
        columns.literal_value * widest.columns // THIRDS,
    )

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table = arguments[3]
        high, used, depth, a, b, d, rows, places, runs, add, scalars = (
            entry(builder, table, table.type(at)) for at in range(ARGUMENTS)
        )
        tile = _Tile(codegen, builder, kind, shape)
        tile.place(d, rows, places)
        tile.fetch()
        with builder.if_then(builder.icmp_signed("!=", runs, runs.type(0))):
            tile.fetch_ends(d, rows)
        tile.multiply(depth, a, b)
        with builder.if_then(builder.icmp_signed("!=", scalars, scalars.type(0))):
            tile.scale(scalars)
        with builder.if_else(builder.icmp_signed("==", runs, runs.type(0))) as (then, other):
            with then:
                for adds in _ways(builder, add):
                    tile.store(adds)
            with other:
                for adds in _ways(builder, add):
                    tile.store_runs(adds, (d, rows, runs), high, used)
        return codegen.get_dummy_value()

    return types.void(kind, vectors, columns, types.intp), write


def _ways(builder: Any, add: Any) -> Iterator[bool]:
    """Whether something is added, where code for it shall stand."""
    with builder.if_else(builder.icmp_signed("!=", add, add.type(0))) as (then, other):
        with then:
            yield True
        with other:
            yield False


class _Tile:
    """Writes the instructions of one register tile; LLVM keeps its sums in registers."""

    def __init__(self, codegen: Any, builder: Any, kind: Any, shape: tuple[int, int]) -> None:
        self.builder = builder
        self.vectors, self.columns = shape
        self.shape = _shape_of(kind)  # of a whole tile, as wide as panels are
        self.lanes = self.shape.lanes
        self.parts = 2 if _is_complex(kind) else 1
        self.part = _part(kind)
        self.size = self.part.bitwidth // 8
        self.number = codegen.get_value_type(self.part)
        self.vector = ir.VectorType(self.number, self.lanes)
        zero = ir.Constant(self.vector, [0.0] * self.lanes)
        self.sums = [
            [[self._variable(zero) for _ in range(self.parts)] for _ in range(self.columns)]
            for _ in range(self.vectors)
        ]

    def place(self, d: Any, rows: Any, columns: Any) -> None:
        """Find where the rows of each vector lie in each column."""
        self.columns_at = [entry(self.builder, columns, d.type(at)) for at in range(self.columns)]
        firsts = [
            self.builder.add(d, entry(self.builder, rows, d.type(at * self.lanes)))
            for at in range(self.vectors)
        ]
        self.places = [self._across(first) for first in firsts]

    def _across(self, row: Any) -> list[Any]:
        """Where a row lies in each column."""
        return [self.builder.add(row, each) for each in self.columns_at]

    def fetch(self) -> None:
        """Ask for the lines that will be written."""
        for columns in self.places:
            for place in columns:
                for row in range(0, self.lanes * self.parts * self.size, LINE):
                    line = self.builder.add(place, place.type(row))
                    prefetch(self.builder, line, writes=1, keep=3)

    def fetch_ends(self, d: Any, rows: Any) -> None:
        """The same for vectors whose last row lies elsewhere."""
        for vector in range(self.vectors):
            last = d.type((vector + 1) * self.lanes - 1)
            for place in self._across(self.builder.add(d, entry(self.builder, rows, last))):
                prefetch(self.builder, place, writes=1, keep=3)

    def multiply(self, depth: Any, a: Any, b: Any) -> None:
        """Add the products of all steps along k to the sums."""
        builder, word = self.builder, depth.type
        whole = builder.sdiv(depth, word(UNROLL))
        with cgutils.for_range(builder, whole) as loop:
            first = builder.mul(loop.index, word(UNROLL))
            for step in range(UNROLL):
                self._step(builder.add(first, word(step)), a, b)
        done = builder.mul(whole, word(UNROLL))
        with cgutils.for_range(builder, depth, start=done, intp=word) as loop:
            self._step(loop.index, a, b)

    def scale(self, scalars: Any) -> None:
        """Multiply the sums by alpha."""
        builder = self.builder
        table = builder.inttoptr(scalars, self.number.as_pointer())
        alpha = [
            self._spread(builder.load(builder.gep(table, [scalars.type(part)]), align=1))
            for part in range(self.parts)
        ]
        for sums in self._all_sums():
            values = [builder.load(each) for each in sums]
            for each, value in zip(sums, self._scaled(values, alpha), strict=True):
                builder.store(value, each)

    def store(self, adds: bool) -> None:
        """Write the columns where they lie, contiguous along the rows, or add to what is there.

        New memory must not be read: the system would give it a page twice.
        """
        builder = self.builder
        for column in range(self.columns):
            for places, sums in zip(self.places, self.sums, strict=True):
                values = [builder.load(each) for each in sums[column]]
                for at, value in enumerate(self._interleaved(values)):
                    shift = at * self.lanes * self.size
                    to = builder.add(places[column], places[column].type(shift))
                    to = builder.inttoptr(to, self.vector.as_pointer())
                    if adds:
                        value = builder.fadd(builder.load(to, align=self.size), value)
                    builder.store(value, to, align=self.size)

    def store_runs(self, adds: bool, table: tuple[Any, Any, Any], high: Any, used: Any) -> None:
        """The same for rows that lie in runs, the parts of a vector one after the other.

        ``table`` are the addresses of D, its rows' offsets, and how long runs are.
        """
        d, rows, runs = table
        builder, word = self.builder, d.type
        for vector in range(self.vectors):
            begin = word(vector * self.lanes)
            count = self._least(builder.sub(high, begin), word(self.lanes))
            done = cgutils.alloca_once_value(builder, word(0))  # type: ignore[no-untyped-call]
            with cgutils.for_range(builder, count, intp=word) as each:
                at = builder.add(begin, each.index)
                with builder.if_then(builder.icmp_signed("==", each.index, builder.load(done))):
                    run = self._least(entry(self.builder, runs, at), builder.sub(count, each.index))
                    end = builder.add(each.index, run)
                    builder.store(end, done)
                    bytes_before = builder.mul(each.index, word(self.size * self.parts))
                    first = builder.sub(builder.add(d, entry(self.builder, rows, at)), bytes_before)
                    self._store_lanes(adds, vector, first, (each.index, end), used)

    def _store_lanes(
        self, adds: bool, vector: int, first: Any, lanes: tuple[Any, Any], used: Any
    ) -> None:
        """Write some lanes of a vector's columns; ``first`` is where its first lane would lie."""
        builder = self.builder
        masks = [self._mask(lanes, at) for at in range(self.parts)]
        certain = self.columns - self.shape.grain  # narrower tiles would do for fewer
        for column, place in enumerate(self._across(first)):
            if column <= certain:
                self._store_masked(adds, self.sums[vector][column], place, masks)
                continue
            with builder.if_then(builder.icmp_signed(">", used, used.type(column))):
                self._store_masked(adds, self.sums[vector][column], place, masks)

    def _mask(self, lanes: tuple[Any, Any], at: int) -> Any:
        """Which numbers of a column's vector ``at`` in memory are parts of these lanes."""
        builder, word = self.builder, ir.IntType(32)
        kind = ir.VectorType(word, self.lanes)
        mine = [(at * self.lanes + each) // self.parts for each in range(self.lanes)]
        begin, end = (self._spread(builder.trunc(each, word), kind) for each in lanes)
        number = ir.Constant(kind, mine)
        return builder.and_(
            builder.icmp_signed(">=", number, begin), builder.icmp_signed("<", number, end)
        )

    def _store_masked(self, adds: bool, sums: list[Any], place: Any, masks: list[Any]) -> None:
        """Write, or add, the numbers that masks say."""
        builder, word = self.builder, ir.IntType(32)
        align, name = word(self.size), f"v{self.lanes}f{8 * self.size}.p0"
        values = self._interleaved([builder.load(each) for each in sums])
        for at, (value, mask) in enumerate(zip(values, masks, strict=True)):
            to = builder.add(place, place.type(at * self.lanes * self.size))
            to = builder.inttoptr(to, self.vector.as_pointer())
            if adds:
                kinds = [to.type, word, mask.type, self.vector]
                read = ir.FunctionType(self.vector, kinds)
                load = _declared(builder, read, f"llvm.masked.load.{name}")
                value = builder.fadd(builder.call(load, [to, align, mask, value]), value)
            written = ir.FunctionType(ir.VoidType(), [self.vector, to.type, word, mask.type])
            store = _declared(builder, written, f"llvm.masked.store.{name}")
            builder.call(store, [value, to, align, mask])

    def _least(self, one: Any, two: Any) -> Any:
        return self.builder.select(self.builder.icmp_signed("<", one, two), one, two)

    def _step(self, at: Any, a: Any, b: Any) -> None:
        builder, word, size = self.builder, at.type, self.size
        rows = self.shape.rows * self.parts
        here = builder.add(a, builder.mul(at, word(rows * size)))
        factors = []
        for vector in range(self.vectors * self.parts):
            place = builder.add(here, word(vector * self.lanes * size))
            place = builder.inttoptr(place, self.vector.as_pointer())
            factors.append(builder.load(place, align=size))
        there = builder.add(b, builder.mul(at, word(self.shape.columns * self.parts * size)))
        table = builder.inttoptr(there, self.number.as_pointer())
        for column in range(self.columns):
            entries = [
                self._spread(builder.load(builder.gep(table, [word(column * self.parts + part)])))
                for part in range(self.parts)
            ]
            for vector in range(self.vectors):
                mine = factors[vector * self.parts : (vector + 1) * self.parts]
                self._accumulate(self.sums[vector][column], mine, entries)

    def _accumulate(self, sums: list[Any], left: list[Any], right: list[Any]) -> None:
        """sums += left * right, in parts."""
        builder = self.builder

        def joined(at: int, one: Any, two: Any) -> None:
            builder.store(self._multiply_add(one, two, builder.load(sums[at])), sums[at])

        joined(0, left[0], right[0])
        if self.parts == 2:
            joined(1, left[0], right[1])
            joined(0, builder.fneg(left[1]), right[1])
            joined(1, left[1], right[0])

    def _scaled(self, values: list[Any], alpha: list[Any]) -> Iterator[Any]:
        builder = self.builder
        if self.parts == 1:
            yield builder.fmul(values[0], alpha[0])
            return
        one, two = values
        yield builder.fsub(builder.fmul(one, alpha[0]), builder.fmul(two, alpha[1]))
        yield builder.fadd(builder.fmul(one, alpha[1]), builder.fmul(two, alpha[0]))

    def _interleaved(self, values: list[Any]) -> list[Any]:
        """The vectors of rows as they lie in memory."""
        if self.parts == 1:
            return values
        one, two = values
        half = self.lanes // 2
        return [
            self.builder.shuffle_vector(
                one,
                two,
                _order(begin + at // 2 + (at % 2) * self.lanes for at in range(self.lanes)),
            )
            for begin in (0, half)
        ]

    def _multiply_add(self, one: Any, two: Any, sum_: Any) -> Any:
        builder = self.builder
        name = f"llvm.fma.v{self.lanes}f{8 * self.size}"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        fma = _declared(builder, kind, name)
        return builder.call(fma, [one, two, sum_])

    def _spread(self, value: Any, kind: Any = None) -> Any:
        """A number in every lane, of a vector of sums if no other is given."""
        builder = self.builder
        empty = ir.Constant(kind or self.vector, ir.Undefined)
        one = builder.insert_element(empty, value, ir.IntType(32)(0))
        return builder.shuffle_vector(one, empty, _order([0] * self.lanes))

    def _all_sums(self) -> Iterator[list[Any]]:
        for columns in self.sums:
            yield from columns

    def _variable(self, value: Any) -> Any:
        variable = cgutils.alloca_once(self.builder, self.vector)  # type: ignore[no-untyped-call]
        self.builder.store(value, variable)
        return variable
