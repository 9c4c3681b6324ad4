"""Compiled elementwise passes: tiles are loaded where that is needed, combined, and written."""

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from contract.host.compiled.functions.team import PART_ARGUMENTS
from contract.host.compiled.functions.tools import (
    Code,
    by_integers,
    call_address,
    compiled,
    integers,
    load,
)
from contract.host.compiled.pass_tables import (
    BIT,
    COMBINER,
    COUNT,
    CUTS,
    LANE,
    LOADED,
    NUMBERS,
    OPERANDS,
    STEPS,
)

__all__ = ["part"]


@compiled
def _run_tiles(given: int, begin: int, end: int, lane: int) -> None:
    """Tiles begin..end; given are the addresses of table, buffers, factors, operands, target."""
    table = load(given, 0)
    operands, cuts = load(table, OPERANDS), load(table, CUTS)
    width = STEPS + operands + 1
    loops = carray(integers(table + 8 * NUMBERS), (cuts, width))
    buffers = table + 8 * (NUMBERS + cuts * width)
    shapes, entries = buffers + 8 * operands, LOADED * operands + 1
    room = load(given, 1) + lane * load(table, LANE)
    places = np.empty(3, np.int64)
    for tile in range(begin, end):
        for each in range(3):
            places[each] = load(given, 3 + each)
        to, at, bits = load(given, 6), tile, 0
        for cut in range(cuts):
            count = loops[cut, COUNT]
            here, at = at % count, at // count
            bits |= loops[cut, BIT] if here == count - 1 else 0
            for each in range(operands):
                places[each] += here * loops[cut, STEPS + each]
            to += here * loops[cut, STEPS + operands]
        shape = shapes + 8 * bits * entries
        for each in range(operands):
            copier = load(shape, LOADED * each)
            if copier != 0:
                copied, units = load(shape, LOADED * each + 1), load(shape, LOADED * each + 2)
                buffer = room + load(buffers, each)
                call_address(copier, (copied, places[each], buffer, 0, units))
                places[each] = buffer
        third = places[2] if operands == 3 else places[1]
        combined = load(shape, entries - 1)
        factors = load(given, 2)
        one, two = places[0], places[1]
        call_address(load(table, COMBINER), (combined, one, two, third, to, factors))


def part() -> Code:
    """What a thread of a team does."""
    return by_integers(_run_tiles, PART_ARGUMENTS)
