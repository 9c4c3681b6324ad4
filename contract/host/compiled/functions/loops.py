"""Compiled products loop by loop, as ``loop_tables`` says.

Vectors run along a summed loop, and every result is a dot product; or along a kept one, and rows of
products are added to a row of results.
"""

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from contract.host.compiled.functions.loop_code import (
    add_products,
    clear_row,
    dot_product,
    spread_row,
)
from contract.host.compiled.functions.team import PART_ARGUMENTS
from contract.host.compiled.functions.tools import Code, by_integers, compiled, integers, load
from contract.host.compiled.loop_tables import (
    AHEAD_A,
    AHEAD_B,
    COUNT,
    CUT,
    CUT_A,
    CUT_B,
    CUT_D,
    LOOP,
    LOOPS,
    NUMBERS,
    PIECES,
    SIZE,
    STEP_A,
    STEP_B,
    STEP_D,
    SUMS,
)
from contract.host.resources.views import Array

__all__ = ["dots", "rows"]

TOGETHER = 4  # rows added at once


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


def dots(dtype: str, way_a: int, way_b: int) -> Code:
    """For vectors along a summed loop."""
    kind = np.dtype(dtype).type(0)

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

    return by_integers(dots, PART_ARGUMENTS)


def rows(dtype: str, way_a: int, way_b: int) -> Code:
    """For vectors along a kept loop."""
    kind = np.dtype(dtype).type(0)

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

    return by_integers(rows, PART_ARGUMENTS)
