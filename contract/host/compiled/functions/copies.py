"""Compiled copies of strided memory: the loops that move the blocks of ``copy_tables``."""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray  # type: ignore[attr-defined]
from numba.core import types

from contract.host.compiled.copy_tables import (
    AHEAD,
    ALIGNED_RUN,
    FAR_AHEAD,
    FORESEEN_RUN,
    LANES,
    LINE,
    CopyCall,
    RegionTable,
)
from contract.host.compiled.functions.tables import (
    advance,
    behind,
    call_address,
    integers,
    size_of,
    table,
)
from contract.host.compiled.functions.team import PART_ARGUMENTS
from contract.host.compiled.functions.tools import (
    Code,
    by_integers,
    called,
    compiled,
    from_python,
)
from contract.host.compiled.functions.vector_ir import WORD, Tag, Word, Writer, emitted
from contract.host.compiled.visits import Visit
from contract.host.resources.views import Array

__all__ = ["copy", "element_kernel", "ordered_runs", "part", "runs", "tile_kernel", "turned_runs"]


# --- instructions ---------------------------------------------------------------------------


@emitted
def _convert(write: Writer, kinds: Tag, source: Word, target: Word) -> None:
    """Load a value at one address, convert it, store it at another; aligned or not."""
    builder, codegen = write.builder, write.codegen
    one, two = (codegen.get_value_type(kind) for kind in kinds)  # no vectors: LLVM makes them
    value = builder.load(write.pointer(source, one), align=1)
    value = codegen.cast(builder, value, *kinds)
    builder.store(value, write.pointer(target, two), align=1)


@emitted
def _move(write: Writer, width: Tag, source: Word, target: Word) -> None:
    """Move a literal number of bytes through one register."""
    size = width.literal_value
    word = min(size, 8)
    kind = ir.VectorType(ir.IntType(8 * word), size // word) if size > 8 else ir.IntType(8 * size)
    value = write.builder.load(write.pointer(source, kind), align=1)
    write.builder.store(value, write.pointer(target, kind), align=1)


@emitted
def _pass_line(write: Writer, source: Word, target: Word) -> None:
    """Move a line to where one begins, past the caches."""
    line = write.vectors(types.int64, LINE // 8)
    line.pass_caches(line.load(source), target)


@emitted
def _settle(write: Writer) -> None:
    """Wait until what went past the caches is in memory."""
    write.builder.fence("seq_cst")


@emitted
def _lanes(write: Writer, kind: Tag) -> Word:
    """Rows of a tile of elements of type ``kind``."""
    return WORD(LANES[kind.bitwidth // 8])


@emitted
def _transpose(write: Writer, kind: Tag, source: Word, at: Word, target: Word, to: Word) -> None:
    """target[to[j] + i] = source[at[i] + j] on one tile; ``at`` and ``to`` are addresses."""
    lanes = LANES[kind.bitwidth // 8]
    vectors = write.vectors(kind, lanes)
    steps = [write.entry(at, row) for row in range(lanes)]
    columns = vectors.transposed([vectors.load(write.plus(source, step)) for step in steps])
    for column, value in enumerate(columns):
        vectors.store(value, write.plus(target, write.entry(to, column)))


@emitted
def _fetch_tile(write: Writer, kind: Tag, cache: Tag, source: Word, at: Word) -> None:
    """Ask for the lines a tile will read: its rows lie on pages the processor does not foresee.

    ``cache`` is the literal level that they are brought to, 1 or 2.
    """
    for row in range(LANES[kind.bitwidth // 8]):
        place = write.plus(source, write.entry(at, row))
        write.fetch(place, keep=4 - cache.literal_value)


@emitted
def _fetch_line(write: Writer, address: Word) -> None:
    """Ask for a line that will be written."""
    write.fetch(address, writes=1)


# --- copies ---------------------------------------------------------------------------


@compiled
def _place(loops: int, count: int, unit: int, s: int, t: int) -> tuple[Array, int, int]:
    """A unit's place in the loops, and where that is in source and target."""
    index = np.zeros(count, np.int64)
    for at in range(count):
        loop = table(Visit, behind(Visit, loops, at))
        here = unit % loop.extent
        index[at] = here
        unit //= loop.extent
        last = 1 if here == loop.extent - 1 else 0
        s += here * loop.one - last * loop.clip_one
        t += here * loop.two - last * loop.clip_two
    return index, s, t


@compiled
def _move_run(s: int, t: int, run: int) -> None:
    """``run`` bytes, the last piece overlapping the one before it."""
    if run >= 64:
        for at in range(0, run - 63, 64):
            _move(64, s + at, t + at)
        _move(64, s + run - 64, t + run - 64)
    elif run >= 32:
        _move(32, s, t)
        _move(32, s + run - 32, t + run - 32)
    elif run >= 16:
        _move(16, s, t)
        _move(16, s + run - 16, t + run - 16)
    elif run >= 8:
        _move(8, s, t)
        _move(8, s + run - 8, t + run - 8)
    elif run >= 4:
        _move(4, s, t)
        _move(4, s + run - 4, t + run - 4)
    else:
        for at in range(run):
            _move(1, s + at, t + at)


@compiled
def _tables(given: int) -> tuple[Array, Array, int, int]:
    """The two arrays of a RegionTable, the address of its loops, and how many there are."""
    region, at = table(RegionTable, given), behind(RegionTable, given, 1)
    first, second = region.first, region.second
    one, two = carray(integers(at), first), carray(integers(at + 8 * first), second)
    return one, two, at + 8 * (first + second), region.loops


@compiled
def copy_runs(given: int, s0: int, t0: int, begin: int, end: int) -> None:
    """target = source for units begin..end; a unit is two loops of runs of bytes."""
    first, _, loops, count = _tables(given)
    two, run = first.reshape(2, 3), table(RegionTable, given).run
    index, s, t = _place(loops, count, begin, s0, t0)
    n, si, ti = two[0, 0], two[0, 1], two[0, 2]
    for _unit in range(begin, end):
        for j in range(two[1, 0]):
            a, b = s + j * two[1, 1], t + j * two[1, 2]
            for i in range(n):
                _move_run(a + i * si, b + i * ti, run)
        s, t = advance(loops, 0, count, index.ctypes.data, s, t)
    index[:1] = 0  # Numba frees an array after its last use by name


@compiled
def copy_ordered_runs(given: int, s0: int, t0: int, begin: int, end: int) -> None:
    """The same in memory far away: a unit is one loop of runs, which may pass the caches."""
    first, _, loops, count = _tables(given)
    n, si, ti = first[0], first[1], first[2]
    region = table(RegionTable, given)
    run, passes = region.run, region.pitch
    index, s, t = _place(loops, count, begin, s0, t0)
    for _unit in range(begin, end):
        for i in range(n):
            a, b = s + i * si, t + i * ti
            if passes != 0:
                _pass_run(a, b, run)
                continue
            for at in range(0, run, LINE):
                _fetch_line(b + ti + at)
            _move_aligned(a, b, run)
        s, t = advance(loops, 0, count, index.ctypes.data, s, t)
    index[:1] = 0  # Numba frees an array after its last use by name
    _settle()


@compiled
def _pass_run(s: int, t: int, run: int) -> None:
    """Whole lines of a long run past the caches, its ends as usual."""
    at = -t & (LINE - 1)
    if at > 0:
        _move(64, s, t)
    while at + LINE <= run:
        _pass_line(s + at, t + at)
        at += LINE
    if at < run:
        _move(64, s + run - LINE, t + run - LINE)


@compiled
def copy_elements(kinds: Any, given: int, s0: int, t0: int, begin: int, end: int) -> None:
    """The same with single elements, converted."""
    first, _, loops, count = _tables(given)
    two = first.reshape(2, 3)
    index, s, t = _place(loops, count, begin, s0, t0)
    n, si, ti = two[0, 0], two[0, 1], two[0, 2]
    one, other = size_of(kinds[0]), size_of(kinds[1])
    for _unit in range(begin, end):
        for j in range(two[1, 0]):
            a, b = s + j * two[1, 1], t + j * two[1, 2]
            if si == one and ti == other:
                for i in range(n):
                    _convert(kinds, a + i * one, b + i * other)
            elif ti == other:
                for i in range(n):
                    _convert(kinds, a + i * si, b + i * other)
            else:
                for i in range(n):
                    _convert(kinds, a + i * si, b + i * ti)
        s, t = advance(loops, 0, count, index.ctypes.data, s, t)
    index[:1] = 0  # Numba frees an array after its last use by name


@compiled
def transpose_tiles(kind: Any, given: int, s0: int, t0: int, begin: int, end: int) -> None:
    """The same where source and target have different fastest dimensions.

    A unit is a rectangle: ``at[i]`` bytes on in the source and i elements on in the target, j
    elements on in the source and ``to[j]`` bytes on in the target. With a pitch it is first
    transposed into a buffer of such rows, then written row by row: long runs, page by page.
    """
    at, to, loops, count = _tables(given)
    pitch = table(RegionTable, given).pitch
    index, s, t = _place(loops, count, begin, s0, t0)
    buffer = np.empty(to.size * pitch, np.uint8)
    rows = np.arange(to.size) * pitch
    far = to.size >= FAR_AHEAD * _lanes(kind) and to.size * size_of(kind) < FORESEEN_RUN
    for _ in range(begin, end):
        s1, t1 = advance(loops, 0, count, index.ctypes.data, s, t)
        if pitch == 0:
            _rectangle(kind, s, at, t, to)
        else:
            if far:
                _far_rectangle(kind, s, at, buffer.ctypes.data, rows, s1)
            else:
                _rectangle(kind, s, at, buffer.ctypes.data, rows)
            _write_rows(buffer.ctypes.data, pitch, t, to, at.size * size_of(kind), t1)
        s, t = s1, t1
    index[:1], buffer[:1], rows[:1] = 0, 0, 0  # Numba frees an array after its last use by name


@compiled
def transpose_runs(given: int, s0: int, t0: int, begin: int, end: int) -> None:
    """The same with short runs of bytes for elements."""
    at, to, loops, count = _tables(given)
    region = table(RegionTable, given)
    run, pitch = region.run, region.pitch
    index, s, t = _place(loops, count, begin, s0, t0)
    buffer = np.empty(to.size * pitch, np.uint8)
    for _ in range(begin, end):
        s1, t1 = advance(loops, 0, count, index.ctypes.data, s, t)
        for i in range(at.size):
            if pitch > 0:
                _gather_runs(s + at[i], buffer.ctypes.data + i * run, pitch, to.size, run)
            else:
                for j in range(to.size):
                    _move_run(s + at[i] + j * run, t + i * run + to[j], run)
        if pitch > 0:
            _write_rows(buffer.ctypes.data, pitch, t, to, at.size * run, t1)
        s, t = s1, t1
    index[:1], buffer[:1] = 0, 0  # Numba frees an array after its last use by name


@compiled
def _gather_runs(s: int, t: int, pitch: int, count: int, run: int) -> None:
    for j in range(count):
        _move_run(s + j * run, t + j * pitch, run)


@compiled
def _rectangle(kind: Any, s: int, at: Array, t: int, to: Array) -> None:
    """Tiles that cover a rectangle; the last ones overlap those before them."""
    lanes, width = _lanes(kind), size_of(kind)
    last_i, last_j = at.size - lanes, to.size - lanes
    ats, tos = at.ctypes.data, to.ctypes.data
    for i in range(0, at.size, lanes):
        i0 = min(i, last_i)
        for j in range(0, to.size, lanes):
            next_i, next_j = i0, j + AHEAD * lanes
            if next_j >= to.size:
                next_i, next_j = min(i + lanes, last_i), min(next_j - to.size, last_j)
            _fetch_tile(kind, 1, s + next_j * width, ats + 8 * next_i)
            j0 = min(j, last_j)
            _transpose(kind, s + j0 * width, ats + 8 * i0, t + i0 * width, tos + 8 * j0)


@compiled
def _far_rectangle(kind: Any, s: int, at: Array, t: int, to: Array, following: int) -> None:
    """The same from short runs: lines are asked for earlier, as more than the first cache holds."""
    lanes, width = _lanes(kind), size_of(kind)
    last_i, last_j = at.size - lanes, to.size - lanes
    ats, tos = at.ctypes.data, to.ctypes.data
    for i in range(0, at.size, lanes):
        i0 = min(i, last_i)
        for j in range(0, to.size, lanes):
            base, next_i, next_j = s, i0, j + FAR_AHEAD * lanes
            if next_j >= to.size:
                next_i, next_j = min(i + lanes, last_i), min(next_j - to.size, last_j)
                if i + lanes >= at.size:
                    base, next_i = following, 0
            _fetch_tile(kind, 2, base + next_j * width, ats + 8 * next_i)
            j0 = min(j, last_j)
            _transpose(kind, s + j0 * width, ats + 8 * i0, t + i0 * width, tos + 8 * j0)


@compiled
def _write_rows(s: int, pitch: int, t: int, to: Array, run: int, following: int) -> None:
    """Rows of the buffer to memory, asking early for the lines of the next row.

    ``following`` is where the next buffer will go.
    """
    for j in range(to.size):
        ahead = t + to[j + 1] if j + 1 < to.size else following + to[0]
        for at in range(0, run, LINE):
            _fetch_line(ahead + at)
        if run >= ALIGNED_RUN:
            _fetch_line(ahead + run - 1)
            _move_aligned(s + j * pitch, t + to[j], run)
        else:
            _move_run(s + j * pitch, t + to[j], run)


@compiled
def _move_aligned(s: int, t: int, run: int) -> None:
    """Move at least a line: stores within lines cost half of those that straddle two."""
    last = run - LINE
    _move(64, s, t)
    for at in range(-t & (LINE - 1), last, LINE):
        _move(64, s + at, t + at)
    _move(64, s + last, t + last)


# --- kernels by their addresses -----------------------------------------------------------------

COPY = 5  # integers that a kernel takes


def runs() -> Code:
    """For runs of bytes, in the order of the target."""
    return by_integers(copy_runs, COPY)


def ordered_runs() -> Code:
    """For runs of bytes, in the order of the source."""
    return by_integers(copy_ordered_runs, COPY)


def turned_runs() -> Code:
    """For rectangles of short runs of bytes."""
    return by_integers(transpose_runs, COPY)


def element_kernel(source: str, target: str) -> Code:
    """For single elements, which are converted."""
    kinds = np.dtype(source).type(0), np.dtype(target).type(0)

    def copy(given: int, s: int, t: int, begin: int, end: int) -> None:
        copy_elements(kinds, given, s, t, begin, end)

    return by_integers(copy, COPY)


def tile_kernel(dtype: str) -> Code:
    """For rectangles of elements."""
    kind = np.dtype(dtype).type(0)

    def copy(given: int, s: int, t: int, begin: int, end: int) -> None:
        transpose_tiles(kind, given, s, t, begin, end)

    return by_integers(copy, COPY)


@called
def _copy(kernel: int, region: int, source: int, target: int, units: int) -> None:
    """All units, by one thread."""
    call_address(kernel, (region, source, target, 0, units))


def copy() -> Code:
    """What Python calls for all units."""
    return from_python(_copy, *[types.intp] * 5)


def _part(given: int, begin: int, end: int, lane: int) -> None:
    """Units begin..end of a CopyCall."""
    call = table(CopyCall, given)
    call_address(call.kernel, (call.table, call.source, call.target, begin, end))


def part() -> Code:
    """What a thread of a team does."""
    return by_integers(_part, PART_ARGUMENTS)
