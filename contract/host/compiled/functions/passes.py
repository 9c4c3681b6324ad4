"""Compiled elementwise passes: tiles are loaded where that is needed, combined, and written."""

import numpy as np

from contract.host.compiled.functions.tables import behind, call_address, table
from contract.host.compiled.functions.team import PART_ARGUMENTS
from contract.host.compiled.functions.tools import Code, by_integers
from contract.host.compiled.pass_tables import (
    MOST,
    PassCall,
    PassCut,
    PassShape,
    PassTable,
    TileLoad,
)

__all__ = ["part"]


def _run_tiles(given: int, begin: int, end: int, lane: int) -> None:
    """Tiles begin..end of a PassCall."""
    call = table(PassCall, given)
    pass_ = table(PassTable, call.table)
    cuts = behind(PassTable, call.table, 1)
    shapes = behind(PassCut, cuts, pass_.cuts)
    loads = behind(PassShape, shapes, pass_.shapes)
    room = call.room + lane * pass_.lane
    places = np.empty(MOST, np.int64)
    for tile in range(begin, end):
        places[0], places[1], places[2] = call.one, call.two, call.three
        to, at, bits = call.to, tile, 0
        for each in range(pass_.cuts):
            cut = table(PassCut, behind(PassCut, cuts, each))
            here, at = at % cut.tiles, at // cut.tiles
            bits |= cut.bit if here == cut.tiles - 1 else 0
            places[0] += here * cut.one
            places[1] += here * cut.two
            places[2] += here * cut.three
            to += here * cut.to
        for each in range(pass_.operands):
            load = table(TileLoad, behind(TileLoad, loads, bits * MOST + each))
            if load.copier != 0:
                buffer = room + load.buffer
                call_address(load.copier, (load.table, places[each], buffer, 0, load.units))
                places[each] = buffer
        third = places[2] if pass_.operands == MOST else places[1]
        row = table(PassShape, behind(PassShape, shapes, bits)).row
        call_address(pass_.combiner, (row, places[0], places[1], third, to, call.factors))


def part() -> Code:
    """What a thread of a team does."""
    return by_integers(_run_tiles, PART_ARGUMENTS)
