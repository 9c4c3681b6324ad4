"""Compiled products loop by loop: operands are read where they lie, nothing is packed.

Vectors run along one loop, along which operands are contiguous or do not change: a summed one, and
every result is a dot product; or a kept one, and rows of products are added to a row of results,
which stays in cache. Where there is no such loop elements go one by one.
"""

from collections.abc import Sequence
from functools import cache
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from contract.run.host_kernels import LoopRow, ProductKernel
from contract.run.host_views import Array, address
from contract.run.numba_loop_code import add_products, clear_row, dot_product, spread_row
from contract.run.numba_team import PART_ARGUMENTS, Team
from contract.run.numba_tools import address_of, compiled, integers, load
from contract.vector_loops import along_vectors, ways_along

__all__ = ["multiply_loops"]

MOST_SUMMED = 1 << 16  # entries of the tables of offsets
PIECE_BYTES = 1 << 14  # of results that stay in cache while all products are added to them
SHORTEST_PIECE = 1 << 12  # unless there is less
TOGETHER = 4  # rows added at once
PIECES_EACH = 8  # of a loop, so that threads share them evenly
THREAD_WORK = 1 << 15  # multiply-adds worth a thread that is awake,
WAKING_WORK = 1 << 20  # and one that has to be woken
PARTS = 4  # for each thread
SLICE_WORK = 1 << 24  # multiply-adds, between which Python looks for signals
FAR_BYTES = 1 << 19  # of an operand of dot products: larger ones are asked for early,
AHEAD = 1 << 11  # so many bytes

# A product: the loop that is cut in pieces: its extent, its pieces and the bytes of a step in A, B
# and D; the loop that vectors run along: its extent and bytes in A, B and D; how early A and B are
# asked for; bytes of an element; how many offsets and further loops there are. Then come the loops
# (extent, bytes in A, B and D), and the offsets in A and B of all steps of the other sums.
CUT, PIECES, CUT_A, CUT_B, CUT_D = range(5)
COUNT, STEP_A, STEP_B, STEP_D, AHEAD_A, AHEAD_B, SIZE, SUMS, LOOPS, NUMBERS = range(5, 15)
LOOP = 4


class _Loop(NamedTuple):
    """Whether it is summed, its extent, and the strides in A, B and D."""

    summed: bool
    extent: int
    a: int
    b: int
    d: int


def multiply_loops(
    dtype: np.dtype[Any], table: Sequence[LoopRow], team: Team
) -> ProductKernel | None:
    """d = sum over k of a * b by threads of the team; None where the tables would be too long."""
    size = dtype.itemsize
    loops = [_Loop(kind == "k", extent, *steps) for kind, extent, steps in table if extent != 1]
    rows = [(loop.extent, loop.a, loop.b, loop.summed) for loop in loops]
    vectors = loops[along_vectors(rows, dtype.name)[1]] if loops else _Loop(True, 1, 0, 0, 0)
    if prod([loop.extent for loop in loops if loop.summed and loop is not vectors]) > MOST_SUMMED:
        return None
    made = _Product(dtype, loops, vectors)
    parts = made.parts(team)
    wakes = made.work >= WAKING_WORK

    @cache
    def kernel() -> int:
        return made.kernel

    def run(a: Array, a0: int, b: Array, b0: int, d: Array, d0: int) -> None:
        places = address(a) + a0 * size, address(b) + b0 * size, address(d) + d0 * size
        team.run(kernel(), (made.table, *places), made.units, parts, wakes)

    return run


class _Product:
    """The table of a product, and what its threads share."""

    def __init__(self, dtype: np.dtype[Any], loops: Sequence[_Loop], vectors: _Loop) -> None:
        self._dtype, size = dtype, dtype.itemsize
        self.work = prod([loop.extent for loop in loops])
        rest = [loop for loop in loops if loop is not vectors]
        of_a, of_b = (prod([x.extent for x in loops if x[at]]) for at in (2, 3))
        larger = 2 if of_a >= of_b else 3
        rest.sort(key=lambda loop: abs(loop[larger]))
        kept = [loop for loop in rest if not loop.summed]
        self._maker = _dots if vectors.summed else _rows
        self._ways = ways_along(vectors.a, vectors.b)
        cut = vectors
        if vectors.summed:
            cut = kept.pop(0) if kept else _Loop(False, 1, 0, 0, 0)
        others = prod([loop.extent for loop in kept])
        pieces = _pieces(cut.extent, 1 if vectors.summed else SHORTEST_PIECE // size, others, size)
        if vectors.summed:  # each is as long as it is
            short = self.work // max(others * SLICE_WORK, 1)
            pieces = max(pieces, min(short, cut.extent))
        ahead = [AHEAD if each * size > FAR_BYTES else 0 for each in (of_a, of_b)]
        summed = [loop for loop in rest if loop.summed]
        tables = [_offsets([(loop.extent, loop[at] * size) for loop in summed]) for at in (2, 3)]
        if vectors.extent == 0:  # nothing is read
            tables = [_offsets([(0, 0)])] * 2

        def row(loop: _Loop) -> tuple[int, int, int]:
            return loop.a * size, loop.b * size, loop.d * size

        numbers = (
            *(cut.extent, pieces, *row(cut), vectors.extent, *row(vectors), *ahead),
            *(size, tables[0].size, len(kept)),
        )
        rows = [entry for loop in kept for entry in (loop.extent, *row(loop))]
        self.units = pieces * others
        self._entries = np.array([*numbers, *rows, *tables[0], *tables[1]], np.int64)
        self.table = address(self._entries)

    def parts(self, team: Team) -> int:
        """In how many parts it is given to threads."""
        most = min(self.units, max(PARTS * team.workers.threads, self.work // SLICE_WORK))
        return max(min(most, self.work // THREAD_WORK), 1)

    @property
    def kernel(self) -> int:
        """The address of what each thread does, compiled when it is first asked for."""
        return self._maker(self._dtype, *self._ways)


def _pieces(extent: int, shortest: int, others: int, size: int) -> int:
    """In how many pieces a loop is cut: no longer than cache holds, and enough for threads.

    ``others`` times as many units come from further loops; pieces of ``shortest`` are not cut.
    """
    enough = min(PIECES_EACH // max(others, 1), extent // shortest)
    return max(ceil(extent * size / PIECE_BYTES), enough, 1)


def _offsets(rows: Sequence[tuple[int, int]]) -> Array:
    """The offset of every combination of loops, given by extents and steps."""
    offsets = np.zeros(1, np.int64)
    for extent, step in rows:
        offsets = (np.arange(extent, dtype=np.int64)[:, None] * step + offsets).ravel()
    return offsets


# --- compiled ---------------------------------------------------------------------------------


@compiled
def _loops(table: int) -> Array:
    """The further kept loops."""
    return carray(integers(table + 8 * NUMBERS), (load(table, LOOPS), LOOP))


@compiled
def _offsets_at(table: int) -> tuple[int, int]:
    """Where the offsets in A and in B are."""
    at = table + 8 * (NUMBERS + LOOP * load(table, LOOPS))
    return at, at + 8 * load(table, SUMS)


@compiled
def _places(given: int, loops: Array, place: int) -> tuple[int, int, int]:
    """Where A, B and D are at a place of the loops."""
    a, b, d = load(given, 1), load(given, 2), load(given, 3)
    for each in range(loops.shape[0]):
        here, place = place % loops[each, 0], place // loops[each, 0]
        a, b, d = a + here * loops[each, 1], b + here * loops[each, 2], d + here * loops[each, 3]
    return a, b, d


@compiled
def _piece(table: int, piece: int) -> tuple[int, int]:
    """Where a piece of the loop that is cut begins and ends."""
    cut, pieces = load(table, CUT), load(table, PIECES)
    return cut * piece // pieces, cut * (piece + 1) // pieces


@cache
def _dots(dtype: np.dtype[Any], way_a: int, way_b: int) -> int:
    """The address of the function for vectors along a summed loop."""
    kind = dtype.type(0)

    def dots(given: int, begin: int, end: int, lane: int) -> None:
        """Units begin..end, each some dot products along the loop that is cut."""
        table, pieces = load(given, 0), load(load(given, 0), PIECES)
        loops, offsets = _loops(table), _offsets_at(table)
        count, steps = load(table, COUNT), (load(table, STEP_A), load(table, STEP_B))
        ahead = load(table, AHEAD_A), load(table, AHEAD_B)
        for unit in range(begin, end):
            a, b, d = _places(given, loops, unit // pieces)
            first, last = _piece(table, unit % pieces)
            for at in range(first, last):
                operands = a + at * load(table, CUT_A), b + at * load(table, CUT_B)
                to, rows = d + at * load(table, CUT_D), load(table, SUMS)
                dot_product(kind, way_a, way_b, operands, to, count, steps, rows, offsets, ahead)

    return address_of(dots, PART_ARGUMENTS)


@cache
def _rows(dtype: np.dtype[Any], way_a: int, way_b: int) -> int:
    """The address of the function for vectors along a kept loop."""
    kind = dtype.type(0)

    def rows(given: int, begin: int, end: int, lane: int) -> None:
        """Units begin..end, each a piece of a row of results, to which products are added."""
        table, pieces = load(given, 0), load(load(given, 0), PIECES)
        loops, (in_a, in_b) = _loops(table), _offsets_at(table)
        sums, size, step = load(table, SUMS), load(table, SIZE), load(table, STEP_D)
        steps = load(table, STEP_A), load(table, STEP_B)
        longest = load(table, CUT) // pieces + 1
        room = np.empty(0 if step == size else longest * size, np.uint8)
        for unit in range(begin, end):
            a, b, d = _places(given, loops, unit // pieces)
            first, last = _piece(table, unit % pieces)
            operands, count = (a + first * steps[0], b + first * steps[1]), last - first
            d += first * step
            to = d if step == size else room.ctypes.data
            clear_row(kind, to, count)
            for at in range(0, sums - TOGETHER + 1, TOGETHER):
                offsets = in_a + 8 * at, in_b + 8 * at
                add_products(kind, way_a, way_b, TOGETHER, operands, to, count, steps, offsets)
            for at in range(sums // TOGETHER * TOGETHER, sums):
                offsets = in_a + 8 * at, in_b + 8 * at
                add_products(kind, way_a, way_b, 1, operands, to, count, steps, offsets)
            if step != size:
                spread_row(kind, to, d, count, step)
        room[:1] = 0  # Numba frees an array after its last use by name

    return address_of(rows, PART_ARGUMENTS)
