"""Compiled products by tiles: pack boxes of A and B, multiply them in registers, write D.

The way is that of BLIS and TBLIS: boxes of A and B are packed into panels, a row of panels of
A for a register tile's rows, one of B for its columns, straight from strided memory; a tile of D
is summed in vector registers and written straight to strided memory. So nothing is permuted in
memory, and BLAS, which would pack once more, has no part in it.

A kernel addresses bytes. Where places of a box lie is in tables of byte offsets, filled for each
box from the loops' strides. Complex panels of A keep real and imaginary parts apart, so that a
vector holds either; those of B keep them together, for each part is spread over a vector.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from contract.run.host_kernels import BoxKernel, TileShape
from contract.run.host_views import Array
from contract.run.numba_tools import address_of, compiled, emitted, prefetch
from contract.tile_options import SQUARE

__all__ = ["multiply_boxes", "tile_shape"]

# A plan of a product: where its loops begin in the table (l in A and B, l in D twice, m in A and
# D, n in B and D, k in A and B) and where they end; boxes; where in the memory of a thread there
# are panels of B, a tile apart and tables of offsets, and the bytes of one; then the table of
# loops, the fastest first: extent, block, and the strides in two operands, in bytes.
GROUPS = 5
BOXES_M, BOXES_N, PANELS_B, APART, TABLES_AT, TABLE_BYTES = range(GROUPS + 1, GROUPS + 7)
NUMBERS, LOOP = GROUPS + 7, 4
THIRDS = 3  # of a tile's columns: a narrower one has one of them, or two
UNROLL = 4
LINE = 64
# The kernels for some types are a table. A row for A and one for B say how they are packed: the
# addresses of functions, then rows of a whole panel and of a grain of it, bytes of an element and
# from one row to the next, rows of a square that are turned, and whether elements are copied as
# they are. The third row has the functions that multiply a tile and that write one.
RUNS, STEPS, SQUARES, ELEMENTS, ZEROS, WHOLE, GRAIN, SIZE, PART, TURNED, PLAIN = range(11)
ENTRIES = PLAIN + 1
MULTIPLY, JOIN = range(2)
LEFT, RIGHT = np.int8(0), np.int16(0)  # panels of A or B: what differs is compiled in


# --- the shape of a tile ----------------------------------------------------------------------


def _registers() -> tuple[int, int]:
    """Bytes of a vector register of this processor, and how many sums a tile keeps in them."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 64, 24  # of 32
    if features.get("avx2"):
        return 32, 12  # of 16
    return 16, 12 if llvm.get_default_triple().startswith("x86") else 24


_VECTOR_BYTES, _SUMS = _registers()


def tile_shape(dtype: np.dtype[Any]) -> TileShape:
    """The tile for a type: a complex sum takes two registers, so its tile has one vector of rows.

    Twelve sums of each vector hide the latency of multiply-adds; more columns than rows of
    vectors, because a row is loaded and a column is an operand from memory.
    """
    real = dtype.itemsize // (2 if dtype.kind == "c" else 1)
    return TileShape(
        1 if dtype.kind == "c" else 2, _VECTOR_BYTES // real, _SUMS // 2, _SUMS // 2 // THIRDS
    )


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
def _size(context: Any, kind: Any) -> Any:
    """Bytes of an element."""
    return types.intp(kind), _constant(kind.bitwidth // 8)


@emitted
def _widest(context: Any, side: Any, kind: Any) -> Any:
    """Rows of a panel of A, or columns of one of B."""
    return types.intp(side, kind), _constant(_width(side, kind))


@emitted
def _narrowest(context: Any, side: Any, kind: Any) -> Any:
    """The same of the narrowest panel; others are multiples of it."""
    return types.intp(side, kind), _constant(_grain(side, kind))


@emitted
def _contiguous(context: Any, side: Any, kind: Any) -> Any:
    """How many elements of a row ``_turn`` takes."""
    return types.intp(side, kind), _constant(SQUARE // 2 if _is_split(side, kind) else SQUARE)


@emitted
def _part_size(context: Any, side: Any, kind: Any) -> Any:
    """Bytes from one row of a panel to the next."""
    one = _part(kind) if _is_split(side, kind) else kind
    return types.intp(side, kind), _constant(one.bitwidth // 8)


@emitted
def _word(context: Any, table: Any, at: Any) -> Any:
    """Entry ``at`` of a table of integers, given by its address."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table, at = arguments
        return builder.load(builder.gep(builder.inttoptr(table, table.type.as_pointer()), [at]))

    return types.intp(types.intp, types.intp), write


@emitted
def _put(context: Any, table: Any, at: Any, value: Any) -> Any:
    """Write entry ``at`` of a table of integers."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table, at, value = arguments
        place = builder.gep(builder.inttoptr(table, table.type.as_pointer()), [at])
        builder.store(value, place)
        return codegen.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), write


@emitted
def _move(
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
def _move_run(context: Any, side: Any, kind: Any, source: Any, to: Any, gap: Any) -> Any:
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
def _turn(
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
        table = builder.inttoptr(rows, word.as_pointer())
        steps = [builder.load(builder.gep(table, [word(row)])) for row in range(SQUARE)]
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
def _fetch(context: Any, address: Any) -> Any:
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
def _clear(context: Any, side: Any, kind: Any, to: Any, gap: Any) -> Any:
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
def _join(context: Any, kind: Any, count: Any, source: Any, target: Any, add: Any) -> Any:
    """Write a literal number of contiguous elements, or add them to what is there."""
    parts = count.literal_value * (2 if _is_complex(kind) else 1)

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *_, source, target, add = arguments
        vector = ir.VectorType(codegen.get_value_type(_part(kind)), parts)
        value = builder.load(builder.inttoptr(source, vector.as_pointer()), align=1)
        place = builder.inttoptr(target, vector.as_pointer())
        with builder.if_else(builder.icmp_signed("!=", add, add.type(0))) as (then, other):
            with then:
                old = builder.load(place, align=1)
                builder.store(builder.fadd(old, value), place, align=1)
            with other:
                builder.store(value, place, align=1)
        return codegen.get_dummy_value()

    return types.void(kind, count, *[types.intp] * 3), write


@emitted
def _multiply_tile(
    context: Any,
    kind: Any,
    vectors: Any,
    columns: Any,
    depth: Any,
    a: Any,
    b: Any,
    d: Any,
    rows: Any,
    places: Any,
    add: Any,
    scalars: Any,
) -> Any:
    """d[rows[i] + places[j]] = [d +] alpha * sum_p a[p, i] * b[p, j] on panels.

    All are addresses; ``scalars`` is alpha's, or 0 where alpha is 1. ``rows`` and ``places`` are
    tables of byte offsets, of which the rows of a vector lie side by side.
    """
    # ``columns`` counts thirds of a whole tile's, ``vectors`` halves of a real one's rows.
    widest = _shape_of(kind)
    shape = (
        min(vectors.literal_value, widest.vectors),
        columns.literal_value * widest.columns // THIRDS,
    )

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *_, depth, a, b, d, rows, places, add, scalars = arguments
        tile = _Tile(codegen, builder, kind, shape)
        tile.place(d, rows, places)
        tile.fetch()
        tile.multiply(depth, a, b)
        with builder.if_then(builder.icmp_signed("!=", scalars, scalars.type(0))):
            tile.scale(scalars)
        with builder.if_else(builder.icmp_signed("!=", add, add.type(0))) as (then, other):
            with then:
                tile.store(adds=True)
            with other:
                tile.store(adds=False)
        return codegen.get_dummy_value()

    return types.void(kind, vectors, columns, *[types.intp] * 8), write


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
        builder, word = self.builder, d.type

        def entry(table: Any, at: int) -> Any:
            entries = builder.inttoptr(table, word.as_pointer())
            return builder.load(builder.gep(entries, [word(at)]))

        firsts = [builder.add(d, entry(rows, at * self.lanes)) for at in range(self.vectors)]
        across = [entry(columns, at) for at in range(self.columns)]
        self.places = [[builder.add(first, each) for each in across] for first in firsts]

    def fetch(self) -> None:
        """Ask for the lines that will be written."""
        for columns in self.places:
            for place in columns:
                for row in range(0, self.lanes * self.parts * self.size, LINE):
                    line = self.builder.add(place, place.type(row))
                    prefetch(self.builder, line, writes=1, keep=3)

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

    def _spread(self, value: Any) -> Any:
        """A number in every lane."""
        builder = self.builder
        empty = ir.Constant(self.vector, ir.Undefined)
        one = builder.insert_element(empty, value, ir.IntType(32)(0))
        return builder.shuffle_vector(one, empty, _order([0] * self.lanes))

    def _all_sums(self) -> Iterator[list[Any]]:
        for columns in self.sums:
            yield from columns

    def _variable(self, value: Any) -> Any:
        variable = cgutils.alloca_once(self.builder, self.vector)  # type: ignore[no-untyped-call]
        self.builder.store(value, variable)
        return variable


# --- what depends on types --------------------------------------------------------------------
# Functions of integers alone, called by address: the loops around them are compiled once for all
# types. ``gap`` bytes lie between the parts of a number where these are split.


@compiled
def _is_run(offsets: int, count: int, size: int) -> bool:
    """Whether the first places of a table lie side by side."""
    before = _word(offsets, 0)
    for at in range(1, count):
        here = _word(offsets, at)
        if here - before != size:
            return False
        before = here
    return True


@compiled
def _are_apart(rows: int, apart: int, count: int, size: int) -> bool:
    """Whether every ``apart``-th of these rows lies beside the one before."""
    for at in range(1, count):
        if _word(rows, at * apart) - _word(rows, 0) != at * size:
            return False
    return True


@cache
def _packers(is_left: bool, source_dtype: np.dtype[Any], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """The addresses of the functions that pack A, or B: RUNS, STEPS, SQUARES, ELEMENTS, ZEROS."""
    side, source_kind, kind = LEFT if is_left else RIGHT, source_dtype.type(0), dtype.type(0)
    return (
        _runs(side, kind),
        _steps(side, kind),
        _squares(side, kind),
        _elements(side, source_kind, kind),
        _zeros(side, kind),
    )


def _runs(side: Any, kind: Any) -> int:
    """Packs grains of rows that lie side by side."""

    def runs(
        source: int,
        ahead: int,
        across: int,
        places: int,
        beside: int,
        count: int,
        shift: int,
        gap: int,
    ) -> None:
        """For one step, grains of rows; those side by side, as ``beside`` says, at once."""
        grain = _narrowest(side, kind)
        for row in range(0, count, grain):
            if _word(beside, row) != 0:
                _fetch(ahead + _word(across, row))
                start = source + _word(across, row)
                _move_run(side, kind, start, _word(places, row) + shift, gap)
                continue
            for each in range(row, min(row + grain, count)):
                from_ = source + _word(across, each)
                _move(side, kind, kind, from_, _word(places, each) + shift, gap)

    return address_of(runs, 8)


def _steps(side: Any, kind: Any) -> int:
    """Packs rows along which k is contiguous."""

    def steps(
        source: int,
        next_: int,
        rows: int,
        high: int,
        along: int,
        depth: int,
        to: int,
        pitch: int,
        gap: int,
    ) -> None:
        """Some rows for all steps along k: squares where k is contiguous.

        The rows that come next lie ``next_`` bytes further.
        """
        part, size, square = _part_size(side, kind), _size(kind), _contiguous(side, kind)
        turned = high // SQUARE * SQUARE
        at = 0
        while at < depth:
            count, done = 1, 0
            if at + square <= depth and _is_run(along + at * 8, square, size):
                count, done = square, turned
                for row in range(0, turned, SQUARE):
                    one = to + at * pitch + row * part
                    two, three, four = one + pitch, one + 2 * pitch, one + 3 * pitch
                    here = source + _word(along, at)
                    for each in range(row, row + SQUARE):
                        _fetch(here + next_ + _word(rows, each))
                    _turn(side, kind, here, rows + row * 8, one, two, three, four, gap)
            for step in range(at, at + count):
                here, place = source + _word(along, step), to + step * pitch
                for row in range(done, high):
                    from_ = here + _word(rows, row)
                    _move(side, kind, kind, from_, place + row * part, gap)
            at += count

    return address_of(steps, 9)


def _squares(side: Any, kind: Any) -> int:
    """Packs rows whose neighbours are further on."""

    def squares(
        source: int, ahead: int, across: int, places: int, apart: int, shift: int, gap: int
    ) -> None:
        """For one step, rows and those ``apart`` from them, which are their neighbours mostly."""
        size, square = _size(kind), _contiguous(side, kind)
        for row in range(0, apart, SQUARE):
            rows, there = across + row * 8, places + row * 8
            for each in range(SQUARE):
                _fetch(ahead + _word(rows, each))
            if _are_apart(rows, apart, square, size):
                one, two = _word(there, 0) + shift, _word(there, apart) + shift
                three, four = one, two
                if square == SQUARE:
                    three = _word(there, 2 * apart) + shift
                    four = _word(there, 3 * apart) + shift
                _turn(side, kind, source, rows, one, two, three, four, gap)
                continue
            for neighbour in range(square):
                for each in range(neighbour * apart, neighbour * apart + SQUARE):
                    from_ = source + _word(rows, each)
                    _move(side, kind, kind, from_, _word(there, each) + shift, gap)

    return address_of(squares, 7)


def _elements(side: Any, source_kind: Any, kind: Any) -> int:
    """Packs rows from anywhere."""

    def elements(source: int, across: int, places: int, count: int, shift: int, gap: int) -> None:
        """Rows from anywhere, for one step along k."""
        for row in range(count):
            from_ = source + _word(across, row)
            _move(side, source_kind, kind, from_, _word(places, row) + shift, gap)

    return address_of(elements, 6)


def _zeros(side: Any, kind: Any) -> int:
    """Packs rows that fill a panel."""

    def zeros(to: int, count: int, depth: int, pitch: int, gap: int) -> None:
        """Rows that fill a panel."""
        part = _part_size(side, kind)
        for at in range(depth):
            for row in range(count):
                _clear(side, kind, to + at * pitch + row * part, gap)

    return address_of(zeros, 5)


@cache
def _multiplier(dtype: np.dtype[Any]) -> int:
    """The address of a function that multiplies two panels, of the narrowest tile that does."""
    kind = dtype.type(0)

    def multiply(
        high: int,
        used: int,
        depth: int,
        a: int,
        b: int,
        d: int,
        rows: int,
        places: int,
        add: int,
        alpha: int,
    ) -> None:
        """d = [d +] alpha * a * b for ``high`` rows and ``used`` columns."""
        grain, lanes = _narrowest(RIGHT, kind), _narrowest(LEFT, kind)
        if _widest(LEFT, kind) > lanes and high > lanes:
            if used > 2 * grain:
                _multiply_tile(kind, 2, 3, depth, a, b, d, rows, places, add, alpha)
            elif used > grain:
                _multiply_tile(kind, 2, 2, depth, a, b, d, rows, places, add, alpha)
            else:
                _multiply_tile(kind, 2, 1, depth, a, b, d, rows, places, add, alpha)
        elif used > 2 * grain:
            _multiply_tile(kind, 1, 3, depth, a, b, d, rows, places, add, alpha)
        elif used > grain:
            _multiply_tile(kind, 1, 2, depth, a, b, d, rows, places, add, alpha)
        else:
            _multiply_tile(kind, 1, 1, depth, a, b, d, rows, places, add, alpha)

    return address_of(multiply, 10)


@cache
def _joiner(dtype: np.dtype[Any]) -> int:
    """The address of a function that writes a tile to places that are not contiguous."""
    kind = dtype.type(0)

    def join(
        source: int, target: int, rows: int, high: int, columns: int, used: int, add: int
    ) -> None:
        """d[rows, columns] = [d +] the tile at ``source``, four rows at once where they do."""
        size = _size(kind)
        pitch = _widest(LEFT, kind) * size
        for row in range(0, high, SQUARE):
            four = row + SQUARE <= high and _is_run(rows + row * 8, SQUARE, size)
            for column in range(used):
                here, there = source + column * pitch, target + _word(columns, column)
                if four:
                    _join(kind, SQUARE, here + row * size, there + _word(rows, row), add)
                    continue
                for each in range(row, min(row + SQUARE, high)):
                    _join(kind, 1, here + each * size, there + _word(rows, each), add)

    return address_of(join, 7)


# --- packing ----------------------------------------------------------------------------------


@emitted
def _call(context: Any, function: Any, arguments: Any) -> Any:
    """Call the function at an address on integers."""
    count = len(arguments)

    def write(codegen: Any, builder: Any, signature: Any, given: Any) -> Any:
        function, packed = given
        word = codegen.get_value_type(types.intp)
        kind = ir.FunctionType(ir.VoidType(), [word] * count).as_pointer()
        values = [builder.extract_value(packed, at) for at in range(count)]
        builder.call(builder.inttoptr(function, kind), values)
        return codegen.get_dummy_value()

    integers = types.UniTuple(types.intp, count)  # type: ignore[no-untyped-call]
    return types.void(types.intp, integers), write


@compiled
def _pack(
    pack: Array,
    source: int,
    across: int,
    count: int,
    along: int,
    depth: int,
    target: int,
    places: int,
    beside: int,
) -> None:
    """Panels of a tile's rows or columns, one step along k after the other.

    ``across`` and ``along`` are tables of ``count`` rows or columns and ``depth`` steps; where
    the rows of the first step go is written to the table ``places``, which grains of rows lie side
    by side to ``beside``.
    """
    whole, grain, size, part = pack[WHOLE], pack[GRAIN], pack[SIZE], pack[PART]
    square, plain = pack[TURNED], pack[PLAIN] != 0
    pitch, gap = whole * size, whole * part
    for first in range(0, count, whole):
        used, panel = min(whole, count - first), target + first * depth * size
        for row in range(used):
            _put(places, first + row, panel + row * part)
        if used % grain != 0:
            filling = grain - used % grain
            _call(pack[ZEROS], (panel + used * part, filling, depth, pitch, gap))
    if plain and count >= grain and _is_run(across, grain, size):
        _mark_runs(across, count, grain, size, beside)
        for at in range(depth):
            here, ahead = source + _word(along, at), source + _word(along, min(at + 1, depth - 1))
            _call(pack[RUNS], (here, ahead, across, places, beside, count, at * pitch, gap))
    elif plain and depth >= square and _is_run(along, square, size):
        for row in range(0, count, grain):
            high, rows, to = min(grain, count - row), across + row * 8, _word(places, row)
            next_ = _word(across, min(row + grain, count - 1)) - _word(rows, 0)
            _call(pack[STEPS], (source, next_, rows, high, along, depth, to, pitch, gap))
    else:
        _pack_steps(pack, source, across, count, along, depth, places)


@compiled
def _mark_runs(places: int, count: int, grain: int, size: int, beside: int) -> None:
    """For each grain of places, whether it lies side by side."""
    for first in range(0, count, grain):
        is_run = first + grain <= count and _is_run(places + first * 8, grain, size)
        _put(beside, first, 1 if is_run else 0)


@compiled
def _pack_steps(
    pack: Array, source: int, across: int, count: int, along: int, depth: int, places: int
) -> None:
    """Step after step along k into all panels, for these share lines.

    Where rows have neighbours further on in the table, squares are turned.
    """
    pitch, gap = pack[WHOLE] * pack[SIZE], pack[WHOLE] * pack[PART]
    apart = 0
    if pack[PLAIN] != 0 and pack[WHOLE] % SQUARE == 0:
        apart = _apart(across, count, pack[SIZE])
    group = apart * pack[TURNED] if apart > 0 else count
    for at in range(depth):
        here, shift = source + _word(along, at), at * pitch
        ahead = source + _word(along, min(at + 1, depth - 1))
        for base in range(0, count, group):
            rows, there = across + base * 8, places + base * 8
            if apart > 0 and base + group <= count:
                _call(pack[SQUARES], (here, ahead, rows, there, apart, shift, gap))
            else:
                left = min(group, count - base)
                _call(pack[ELEMENTS], (here, rows, there, left, shift, gap))


@compiled
def _apart(across: int, count: int, size: int) -> int:
    """How many rows lie between two that are neighbours in memory; 0 if squares do not fit."""
    first = _word(across, 0)
    for row in range(1, count):
        if _word(across, row) - first == size:
            return row if row % SQUARE == 0 else 0
    return 0


# --- boxes ------------------------------------------------------------------------------------


@compiled
def _offsets(table: Array, begin: int, end: int, index: int, first: int, second: int) -> int:
    """How many places box ``index`` of loops begin..end has; their offsets in two operands.

    The offsets go to tables at ``first`` and ``second``.
    """
    _put(first, 0, 0)
    _put(second, 0, 0)
    count = 1
    for at in range(begin, end):
        extent, block, one, two = table[at, 0], table[at, 1], table[at, 2], table[at, 3]
        pieces = (extent + block - 1) // block
        start = index % pieces * block
        index //= pieces
        size = min(block, extent - start)
        # The last step first: it is what all others are made of.
        for step in range(size - 1, -1, -1):
            shift_one, shift_two = (start + step) * one, (start + step) * two
            for i in range(count):
                _put(first, step * count + i, _word(first, i) + shift_one)
                _put(second, step * count + i, _word(second, i) + shift_two)
        count *= size
    return count


@compiled
def _multiply_panels(
    kernels: Array,
    a: int,
    b: int,
    depth: int,
    d: int,
    rows: int,
    height: int,
    columns: int,
    width: int,
    add: int,
    alpha: int,
    beside: int,
    apart: int,
    apart_rows: int,
    apart_columns: int,
) -> None:
    """A box of D from packed panels; tiles that are not contiguous are summed apart first.

    The box of A stays in the second-level cache, a panel of B in the first.
    """
    multiply, join, size = kernels[2, MULTIPLY], kernels[2, JOIN], kernels[0, SIZE]
    tall, lanes = kernels[0, WHOLE], kernels[0, GRAIN]
    wide, grain = kernels[1, WHOLE], kernels[1, GRAIN]
    for j in range(0, width, wide):
        used, right, places = min(wide, width - j), b + j * depth * size, columns + j * 8
        for i in range(0, height, tall):
            high, left, up = min(tall, height - i), a + i * depth * size, rows + i * 8
            whole = used % grain == 0 and _word(beside, i) != 0
            if whole and (high <= lanes or _word(beside, i + lanes) != 0):
                _call(multiply, (high, used, depth, left, right, d, up, places, add, alpha))
            else:
                tile = (high, used, depth, left, right, apart, apart_rows, apart_columns, 0, alpha)
                _call(multiply, tile)
                _call(join, (apart, d, up, high, places, used, add))


@compiled
def _multiply_boxes(
    plan: Array,
    kernels: Array,
    a: int,
    b: int,
    d: int,
    add: int,
    alpha: int,
    room: int,
    begin: int,
    end: int,
    first: int,
    last: int,
) -> None:
    """D = [D +] alpha * A * B for boxes ``begin`` to ``end`` of D and ``first`` to ``last`` of k.

    ``a``, ``b``, ``d`` are addresses, ``alpha`` that of the scalar (0: it is 1), ``room`` that of
    memory for the panels. Boxes run m fastest, then n, then l.
    """
    table = plan[NUMBERS:].reshape(-1, LOOP)
    boxes_m, boxes_n, panels_b = plan[BOXES_M], plan[BOXES_N], room + plan[PANELS_B]
    apart, tables, each = room + plan[APART], room + plan[TABLES_AT], plan[TABLE_BYTES]
    for column in range(kernels[1, WHOLE]):
        _put(tables, column, column * kernels[0, WHOLE] * kernels[0, SIZE])
    from_a, from_b, rows = tables + each, tables + 2 * each, tables + 3 * each
    columns, steps_a, steps_b = tables + 4 * each, tables + 5 * each, tables + 6 * each
    places, beside, apart_rows = tables + 7 * each, tables + 8 * each, tables + 9 * each
    for row in range(kernels[0, WHOLE]):
        _put(apart_rows, row, row * kernels[0, SIZE])
    packed = -1
    at = begin
    while at < end:
        column = at // boxes_m
        stop = min(end, (column + 1) * boxes_m)
        batch = column // boxes_n
        _offsets(table, plan[0], plan[1], batch, from_a, from_b)
        here_a, here_b = a + _word(from_a, 0), b + _word(from_b, 0)
        _offsets(table, plan[1], plan[2], batch, rows, columns)
        here_d = d + _word(rows, 0)
        width = _offsets(table, plan[3], plan[4], column % boxes_n, from_b, columns)
        for box in range(first, last):
            depth = _offsets(table, plan[4], plan[5], box, steps_a, steps_b)
            _pack(kernels[1], here_b, from_b, width, steps_b, depth, panels_b, places, beside)
            for row in range(at - column * boxes_m, stop - column * boxes_m):
                height = _offsets(table, plan[2], plan[3], row, from_a, rows)
                name = (batch * boxes_m + row) * (last - first) + box - first
                if name != packed:
                    _pack(kernels[0], here_a, from_a, height, steps_a, depth, room, places, beside)
                    packed = name
                _mark_runs(rows, height, kernels[0, GRAIN], kernels[0, SIZE], beside)
                _multiply_panels(
                    kernels,
                    room,
                    panels_b,
                    depth,
                    here_d,
                    rows,
                    height,
                    columns,
                    width,
                    add if box == first else 1,
                    alpha,
                    beside,
                    apart,
                    apart_rows,
                    tables,
                )
        at = stop


def multiply_boxes(a: np.dtype[Any], b: np.dtype[Any], dtype: np.dtype[Any]) -> BoxKernel:
    """The function for operands of such types; what it needs is compiled when it is called."""

    @cache
    def kernels() -> Array:
        return _kernels(a, b, dtype)

    def run(plan: Array, *arguments: int) -> None:
        _multiply_boxes(plan, kernels(), *arguments)

    return run


def _kernels(a: np.dtype[Any], b: np.dtype[Any], dtype: np.dtype[Any]) -> Array:
    """What is compiled for types: how A is packed, how B is, and what tiles are multiplied with."""
    shape, size = tile_shape(dtype), dtype.itemsize
    split = 2 if dtype.kind == "c" else 1
    left = (shape.rows, shape.lanes, size, size // split, SQUARE // split, a == dtype)
    right = (shape.columns, shape.grain, size, size, SQUARE, b == dtype)
    tile = _multiplier(dtype), _joiner(dtype)
    rows = (
        (*_packers(True, a, dtype), *left),
        (*_packers(False, b, dtype), *right),
        (*tile, *[0] * (ENTRIES - len(tile))),
    )
    return np.array(rows, np.int64)
