"""Compiled products by tiles: pack boxes of A and B, multiply them in registers, write D.

The way is that of BLIS and TBLIS: boxes of A and B are packed into panels, a row of panels of
A for a register tile's rows, one of B for its columns, straight from strided memory; a tile of D
is summed in vector registers and written straight to strided memory. So nothing is permuted in
memory, and BLAS, which would pack once more, has no part in it.

A kernel addresses bytes. Where places of a box lie is in tables of byte offsets, filled for each
box from the loops' strides.
"""

from functools import cache
from typing import Any

import numpy as np

from contract.run.host_kernels import BoxKernel
from contract.run.host_views import Array
from contract.run.numba_tile_code import (
    LEFT,
    RIGHT,
    call_address,
    clear,
    element_size,
    fetch,
    grain_width,
    join_run,
    load,
    move,
    move_run,
    multiply_tile,
    panel_width,
    part_size,
    store,
    tile_shape,
    turn,
    turned_length,
)
from contract.run.numba_tools import address_of, compiled
from contract.tile_options import SQUARE

__all__ = ["multiply_boxes"]

# A plan of a product: where its loops begin in the table (l in A and B, l in D twice, m in A and
# D, n in B and D, k in A and B) and where they end; boxes; where in the memory of a thread there
# are panels of B, a tile apart and tables of offsets, and the bytes of one; then the table of
# loops, the fastest first: extent, block, and the strides in two operands, in bytes.
GROUPS = 5
BOXES_M, BOXES_N, PANELS_B, APART, TABLES_AT, TABLE_BYTES = range(GROUPS + 1, GROUPS + 7)
NUMBERS, LOOP = GROUPS + 7, 4
# The tables of a thread: columns of the tile apart, places of a box's rows in A, of its columns in
# B, of both in D, of steps along k in A and B, of rows or columns in panels, which grains of rows
# lie side by side, and rows of the tile apart.
APART_COLUMNS, ROWS_A, COLUMNS_B, ROWS_D, COLUMNS_D = range(5)
STEPS_A, STEPS_B, PLACES, BESIDE, APART_ROWS = range(5, 10)
# The kernels for some types are a table. A row for A and one for B say how they are packed: the
# addresses of functions, then rows of a whole panel and of a grain of it, bytes of an element and
# from one row to the next, rows of a square that are turned, and whether elements are copied as
# they are. The third row has the functions that multiply a tile and that write one.
RUNS, STEPS, SQUARES, ELEMENTS, ZEROS, WHOLE, GRAIN, SIZE, PART, TURNED, PLAIN = range(11)
ENTRIES = PLAIN + 1
MULTIPLY, JOIN = range(2)


# --- what depends on types --------------------------------------------------------------------
# Functions of integers alone, called by address: the loops around them are compiled once for all
# types. ``gap`` bytes lie between the parts of a number where these are split.


@compiled
def _is_run(offsets: int, count: int, size: int) -> bool:
    """Whether the first places of a table lie side by side."""
    before = load(offsets, 0)
    for at in range(1, count):
        here = load(offsets, at)
        if here - before != size:
            return False
        before = here
    return True


@compiled
def _are_apart(rows: int, apart: int, count: int, size: int) -> bool:
    """Whether every ``apart``-th of these rows lies beside the one before."""
    for at in range(1, count):
        if load(rows, at * apart) - load(rows, 0) != at * size:
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
        grain = grain_width(side, kind)
        for row in range(0, count, grain):
            if load(beside, row) != 0:
                fetch(ahead + load(across, row))
                start = source + load(across, row)
                move_run(side, kind, start, load(places, row) + shift, gap)
                continue
            for each in range(row, min(row + grain, count)):
                from_ = source + load(across, each)
                move(side, kind, kind, from_, load(places, each) + shift, gap)

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
        part, size, square = part_size(side, kind), element_size(kind), turned_length(side, kind)
        turned = high // SQUARE * SQUARE
        at = 0
        while at < depth:
            count, done = 1, 0
            if at + square <= depth and _is_run(along + at * 8, square, size):
                count, done = square, turned
                for row in range(0, turned, SQUARE):
                    one = to + at * pitch + row * part
                    two, three, four = one + pitch, one + 2 * pitch, one + 3 * pitch
                    here = source + load(along, at)
                    for each in range(row, row + SQUARE):
                        fetch(here + next_ + load(rows, each))
                    turn(side, kind, here, rows + row * 8, one, two, three, four, gap)
            for step in range(at, at + count):
                here, place = source + load(along, step), to + step * pitch
                for row in range(done, high):
                    from_ = here + load(rows, row)
                    move(side, kind, kind, from_, place + row * part, gap)
            at += count

    return address_of(steps, 9)


def _squares(side: Any, kind: Any) -> int:
    """Packs rows whose neighbours are further on."""

    def squares(
        source: int, ahead: int, across: int, places: int, apart: int, shift: int, gap: int
    ) -> None:
        """For one step, rows and those ``apart`` from them, which are their neighbours mostly."""
        size, square = element_size(kind), turned_length(side, kind)
        for row in range(0, apart, SQUARE):
            rows, there = across + row * 8, places + row * 8
            for each in range(SQUARE):
                fetch(ahead + load(rows, each))
            if _are_apart(rows, apart, square, size):
                one, two = load(there, 0) + shift, load(there, apart) + shift
                three, four = one, two
                if square == SQUARE:
                    three = load(there, 2 * apart) + shift
                    four = load(there, 3 * apart) + shift
                turn(side, kind, source, rows, one, two, three, four, gap)
                continue
            for neighbour in range(square):
                for each in range(neighbour * apart, neighbour * apart + SQUARE):
                    from_ = source + load(rows, each)
                    move(side, kind, kind, from_, load(there, each) + shift, gap)

    return address_of(squares, 7)


def _elements(side: Any, source_kind: Any, kind: Any) -> int:
    """Packs rows from anywhere."""

    def elements(source: int, across: int, places: int, count: int, shift: int, gap: int) -> None:
        """Rows from anywhere, for one step along k."""
        for row in range(count):
            from_ = source + load(across, row)
            move(side, source_kind, kind, from_, load(places, row) + shift, gap)

    return address_of(elements, 6)


def _zeros(side: Any, kind: Any) -> int:
    """Packs rows that fill a panel."""

    def zeros(to: int, count: int, depth: int, pitch: int, gap: int) -> None:
        """Rows that fill a panel."""
        part = part_size(side, kind)
        for at in range(depth):
            for row in range(count):
                clear(side, kind, to + at * pitch + row * part, gap)

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
        grain, lanes = grain_width(RIGHT, kind), grain_width(LEFT, kind)
        if panel_width(LEFT, kind) > lanes and high > lanes:
            if used > 2 * grain:
                multiply_tile(kind, 2, 3, depth, a, b, d, rows, places, add, alpha)
            elif used > grain:
                multiply_tile(kind, 2, 2, depth, a, b, d, rows, places, add, alpha)
            else:
                multiply_tile(kind, 2, 1, depth, a, b, d, rows, places, add, alpha)
        elif used > 2 * grain:
            multiply_tile(kind, 1, 3, depth, a, b, d, rows, places, add, alpha)
        elif used > grain:
            multiply_tile(kind, 1, 2, depth, a, b, d, rows, places, add, alpha)
        else:
            multiply_tile(kind, 1, 1, depth, a, b, d, rows, places, add, alpha)

    return address_of(multiply, 10)


@cache
def _joiner(dtype: np.dtype[Any]) -> int:
    """The address of a function that writes a tile to places that are not contiguous."""
    kind = dtype.type(0)

    def join(
        source: int, target: int, rows: int, high: int, columns: int, used: int, add: int
    ) -> None:
        """d[rows, columns] = [d +] the tile at ``source``, four rows at once where they do."""
        size = element_size(kind)
        pitch = panel_width(LEFT, kind) * size
        for row in range(0, high, SQUARE):
            four = row + SQUARE <= high and _is_run(rows + row * 8, SQUARE, size)
            for column in range(used):
                here, there = source + column * pitch, target + load(columns, column)
                if four:
                    join_run(kind, SQUARE, here + row * size, there + load(rows, row), add)
                    continue
                for each in range(row, min(row + SQUARE, high)):
                    join_run(kind, 1, here + each * size, there + load(rows, each), add)

    return address_of(join, 7)


# --- packing ----------------------------------------------------------------------------------


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
            store(places, first + row, panel + row * part)
        if used % grain != 0:
            filling = grain - used % grain
            call_address(pack[ZEROS], (panel + used * part, filling, depth, pitch, gap))
    if plain and count >= grain and _is_run(across, grain, size):
        _mark_runs(across, count, grain, size, beside)
        for at in range(depth):
            here, ahead = source + load(along, at), source + load(along, min(at + 1, depth - 1))
            call_address(pack[RUNS], (here, ahead, across, places, beside, count, at * pitch, gap))
    elif plain and depth >= square and _is_run(along, square, size):
        for row in range(0, count, grain):
            high, rows, to = min(grain, count - row), across + row * 8, load(places, row)
            next_ = load(across, min(row + grain, count - 1)) - load(rows, 0)
            call_address(pack[STEPS], (source, next_, rows, high, along, depth, to, pitch, gap))
    else:
        _pack_steps(pack, source, across, count, along, depth, places)


@compiled
def _mark_runs(places: int, count: int, grain: int, size: int, beside: int) -> None:
    """For each grain of places, whether it lies side by side."""
    for first in range(0, count, grain):
        is_run = first + grain <= count and _is_run(places + first * 8, grain, size)
        store(beside, first, 1 if is_run else 0)


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
        here, shift = source + load(along, at), at * pitch
        ahead = source + load(along, min(at + 1, depth - 1))
        for base in range(0, count, group):
            rows, there = across + base * 8, places + base * 8
            if apart > 0 and base + group <= count:
                call_address(pack[SQUARES], (here, ahead, rows, there, apart, shift, gap))
            else:
                left = min(group, count - base)
                call_address(pack[ELEMENTS], (here, rows, there, left, shift, gap))


@compiled
def _apart(across: int, count: int, size: int) -> int:
    """How many rows lie between two that are neighbours in memory; 0 if squares do not fit."""
    first = load(across, 0)
    for row in range(1, count):
        if load(across, row) - first == size:
            return row if row % SQUARE == 0 else 0
    return 0


# --- boxes ------------------------------------------------------------------------------------


@compiled
def _offsets(table: Array, begin: int, end: int, index: int, first: int, second: int) -> int:
    """How many places box ``index`` of loops begin..end has; their offsets in two operands.

    The offsets go to tables at ``first`` and ``second``.
    """
    store(first, 0, 0)
    store(second, 0, 0)
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
                store(first, step * count + i, load(first, i) + shift_one)
                store(second, step * count + i, load(second, i) + shift_two)
        count *= size
    return count


@compiled
def _table(plan: Array, room: int, which: int) -> int:
    """The address of a thread's table of offsets."""
    address: int = room + plan[TABLES_AT] + which * plan[TABLE_BYTES]
    return address


@compiled
def _place_apart(plan: Array, kernels: Array, room: int) -> None:
    """Fill the tables of the tile apart, which is packed column after column."""
    rows, columns = _table(plan, room, APART_ROWS), _table(plan, room, APART_COLUMNS)
    tall, wide, size = kernels[0, WHOLE], kernels[1, WHOLE], kernels[0, SIZE]
    for row in range(tall):
        store(rows, row, row * size)
    for column in range(wide):
        store(columns, column, column * tall * size)


@compiled
def _multiply_panels(
    plan: Array,
    kernels: Array,
    room: int,
    d: int,
    height: int,
    width: int,
    depth: int,
    add: int,
    alpha: int,
) -> None:
    """A box of D from packed panels; tiles that are not contiguous are summed apart first.

    The box of A stays in the second-level cache, a panel of B in the first.
    """
    a, b, apart = room, room + plan[PANELS_B], room + plan[APART]
    rows, columns = _table(plan, room, ROWS_D), _table(plan, room, COLUMNS_D)
    apart_rows, apart_columns = _table(plan, room, APART_ROWS), _table(plan, room, APART_COLUMNS)
    multiply, join, size = kernels[2, MULTIPLY], kernels[2, JOIN], kernels[0, SIZE]
    tall, lanes = kernels[0, WHOLE], kernels[0, GRAIN]
    wide, grain = kernels[1, WHOLE], kernels[1, GRAIN]
    beside = _table(plan, room, BESIDE)
    _mark_runs(rows, height, lanes, size, beside)
    for j in range(0, width, wide):
        used, right, places = min(wide, width - j), b + j * depth * size, columns + j * 8
        for i in range(0, height, tall):
            high, left, up = min(tall, height - i), a + i * depth * size, rows + i * 8
            whole = used % grain == 0 and load(beside, i) != 0
            if whole and (high <= lanes or load(beside, i + lanes) != 0):
                call_address(multiply, (high, used, depth, left, right, d, up, places, add, alpha))
            else:
                tile = (high, used, depth, left, right, apart, apart_rows, apart_columns, 0, alpha)
                call_address(multiply, tile)
                call_address(join, (apart, d, up, high, places, used, add))


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
    loops = plan[NUMBERS:].reshape(-1, LOOP)
    boxes_m, boxes_n, panels_b = plan[BOXES_M], plan[BOXES_N], room + plan[PANELS_B]
    rows_a, rows_d = _table(plan, room, ROWS_A), _table(plan, room, ROWS_D)
    columns_b, columns_d = _table(plan, room, COLUMNS_B), _table(plan, room, COLUMNS_D)
    steps_a, steps_b = _table(plan, room, STEPS_A), _table(plan, room, STEPS_B)
    places, beside = _table(plan, room, PLACES), _table(plan, room, BESIDE)
    _place_apart(plan, kernels, room)
    packed = -1
    at = begin
    while at < end:
        column = at // boxes_m
        stop = min(end, (column + 1) * boxes_m)
        batch = column // boxes_n
        _offsets(loops, plan[0], plan[1], batch, rows_a, columns_b)
        here_a, here_b = a + load(rows_a, 0), b + load(columns_b, 0)
        _offsets(loops, plan[1], plan[2], batch, rows_d, columns_d)
        here_d = d + load(rows_d, 0)
        width = _offsets(loops, plan[3], plan[4], column % boxes_n, columns_b, columns_d)
        for box in range(first, last):
            depth = _offsets(loops, plan[4], plan[5], box, steps_a, steps_b)
            _pack(kernels[1], here_b, columns_b, width, steps_b, depth, panels_b, places, beside)
            adds = add if box == first else 1
            for row in range(at - column * boxes_m, stop - column * boxes_m):
                height = _offsets(loops, plan[2], plan[3], row, rows_a, rows_d)
                name = (batch * boxes_m + row) * (last - first) + box - first
                if name != packed:
                    _pack(kernels[0], here_a, rows_a, height, steps_a, depth, room, places, beside)
                    packed = name
                _multiply_panels(plan, kernels, room, here_d, height, width, depth, adds, alpha)
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
