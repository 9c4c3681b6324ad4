"""Compiled products loop by loop, as ``loop_tables`` says.

Vectors run along a summed loop, and every result is a dot product; or along a kept one, and rows of
products are added to a row of results.
"""

from typing import Any

import numpy as np

from contract.host.compiled.functions.loop_code import (
    add_products,
    clear_row,
    dot_product,
    spread_row,
)
from contract.host.compiled.functions.tables import behind, table
from contract.host.compiled.functions.team import PART_ARGUMENTS
from contract.host.compiled.functions.tools import Code, by_integers, compiled
from contract.host.compiled.loop_tables import KeptLoop, LoopCall, LoopProduct

__all__ = ["dots", "rows"]

TOGETHER = 4  # rows added at once


@compiled
def _places(call: Any, product: Any, place: int) -> tuple[int, int, int]:
    """Where A, B and D are at a place of the loops."""
    a, b, d = call.a, call.b, call.d
    for each in range(product.kept):
        loop = table(KeptLoop, behind(KeptLoop, product.loops, each))
        here, place = place % loop.extent, place // loop.extent
        a, b, d = a + here * loop.step_a, b + here * loop.step_b, d + here * loop.step_d
    return a, b, d


@compiled
def _piece(product: Any, piece: int) -> tuple[int, int]:
    """Where a piece of the loop that is cut begins and ends."""
    return product.cut * piece // product.pieces, product.cut * (piece + 1) // product.pieces


def dots(dtype: str, way_a: int, way_b: int) -> Code:
    """For vectors along a summed loop."""
    kind = np.dtype(dtype).type(0)

    def dots(given: int, begin: int, end: int, lane: int) -> None:
        """Units begin..end, each some dot products along the loop that is cut."""
        call = table(LoopCall, given)
        product = table(LoopProduct, call.product)
        for unit in range(begin, end):
            a, b, d = _places(call, product, unit // product.pieces)
            first, last = _piece(product, unit % product.pieces)
            for at in range(first, last):
                one, two = a + at * product.cut_a, b + at * product.cut_b
                to = d + at * product.cut_d
                dot_product(kind, way_a, way_b, call.product, one, two, to)

    return by_integers(dots, PART_ARGUMENTS)


def rows(dtype: str, way_a: int, way_b: int) -> Code:
    """For vectors along a kept loop."""
    kind = np.dtype(dtype).type(0)

    def rows(given: int, begin: int, end: int, lane: int) -> None:
        """Units begin..end, each a piece of a row of results, to which products are added."""
        call = table(LoopCall, given)
        at = call.product
        product = table(LoopProduct, at)
        size, step, sums = product.size, product.step_d, product.sums
        whole = sums // TOGETHER * TOGETHER
        longest = product.cut // product.pieces + 1
        room = np.empty(0 if step == size else longest * size, np.uint8)
        for unit in range(begin, end):
            a, b, d = _places(call, product, unit // product.pieces)
            first, last = _piece(product, unit % product.pieces)
            a, b, d = a + first * product.step_a, b + first * product.step_b, d + first * step
            to = d if step == size else room.ctypes.data
            count = last - first
            clear_row(kind, to, count)
            for row in range(0, whole, TOGETHER):
                add_products(kind, way_a, way_b, TOGETHER, at, a, b, to, count, row)
            for row in range(whole, sums):
                add_products(kind, way_a, way_b, 1, at, a, b, to, count, row)
            if step != size:
                spread_row(kind, to, d, count, step)
        room[:1] = 0  # Numba frees an array after its last use by name

    return by_integers(rows, PART_ARGUMENTS)
