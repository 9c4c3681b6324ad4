"""Compiled products by tiles: pack boxes of A and B, multiply them in registers, write D.

The way is that of BLIS and TBLIS: boxes of A and B are packed into panels, a row of panels of
A for a register tile's rows, one of B for its columns, straight from strided memory; a tile of D
is summed in vector registers and written straight to strided memory. So nothing is permuted in
memory, and BLAS, which would pack once more, has no part in it.

A kernel addresses bytes. Where places of a box lie is in tables of byte offsets, filled for each
box from the loops' strides.
"""

from typing import Any

import numpy as np

from contract.host.compiled.functions.packing import is_run, pack_batches
from contract.host.compiled.functions.panel_code import LEFT, RIGHT, grain_width, panel_width
from contract.host.compiled.functions.tables import (
    behind,
    call_on_table,
    load,
    size_of,
    store,
    table,
)
from contract.host.compiled.functions.team import PART_ARGUMENTS
from contract.host.compiled.functions.tile_code import join_element, join_square, multiply_tile
from contract.host.compiled.functions.tools import Code, by_integers, compiled
from contract.host.compiled.tile_tables import JoinCall, Packer, TileCall, TileKernels
from contract.host.kernels.boxes import (
    APART_COLUMNS,
    APART_ROWS,
    BATCHES_A,
    BATCHES_B,
    BATCHES_D,
    BESIDE,
    COLUMNS_B,
    COLUMNS_D,
    PACKED,
    PLACES,
    ROWS_A,
    ROWS_D,
    STEPS_A,
    STEPS_B,
    BoxCall,
    BoxLoop,
    BoxPlan,
)
from contract.planner.host.tile_blocks import SQUARE

__all__ = ["batch_joiner", "multiplier", "part"]


# --- what depends on types --------------------------------------------------------------------


def multiplier(dtype: str) -> Code:
    """Multiplies two panels by the narrowest tile that does."""
    kind = np.dtype(dtype).type(0)

    def multiply(given: int) -> None:
        """d = [d +] alpha * a * b for as many rows and columns as a TileCall says."""
        call = table(TileCall, given)
        grain, lanes = grain_width(RIGHT, kind), grain_width(LEFT, kind)
        if panel_width(LEFT, kind) > lanes and call.high > lanes:
            if call.used > 2 * grain:
                multiply_tile(kind, 2, 3, given)
            elif call.used > grain:
                multiply_tile(kind, 2, 2, given)
            else:
                multiply_tile(kind, 2, 1, given)
        elif call.used > 2 * grain:
            multiply_tile(kind, 1, 3, given)
        elif call.used > grain:
            multiply_tile(kind, 1, 2, given)
        else:
            multiply_tile(kind, 1, 1, given)

    return by_integers(multiply, 1)


def batch_joiner(dtype: str) -> Code:
    """Writes the tiles of four batches that are neighbours in D."""
    kind = np.dtype(dtype).type(0)

    def join(given: int) -> None:
        """d[batches, rows, columns] = [d +] the tiles of a JoinCall, squares turned."""
        call = table(JoinCall, given)
        rows, high, size = call.rows, call.high, size_of(kind)
        column_bytes = panel_width(LEFT, kind) * size
        for column in range(call.used):
            here = call.source + column * column_bytes
            there = call.target + load(call.columns, column)
            for row in range(0, high - SQUARE + 1, SQUARE):
                join_square(kind, here + row * size, call.pitch, there, rows + row * 8, call.add)
            for row in range(high // SQUARE * SQUARE, high):
                for batch in range(SQUARE):
                    from_ = here + batch * call.pitch + row * size
                    to = there + load(rows, row) + batch * size
                    join_element(kind, from_, to, call.add)

    return by_integers(join, 1)


# --- boxes ------------------------------------------------------------------------------------


@compiled
def _offsets(loops: int, begin: int, end: int, index: int, first: int, second: int) -> int:
    """How many places box ``index`` of loops begin..end has; their offsets in two operands.

    The offsets go to tables at ``first`` and ``second``.
    """
    store(first, 0, 0)
    store(second, 0, 0)
    count = 1
    for at in range(begin, end):
        loop = table(BoxLoop, behind(BoxLoop, loops, at))
        block = loop.block
        pieces = (loop.extent + block - 1) // block
        start = index % pieces * block
        index //= pieces
        size = min(block, loop.extent - start)
        # The last step first: it is what all others are made of.
        for step in range(size - 1, -1, -1):
            shift_one, shift_two = (start + step) * loop.one, (start + step) * loop.two
            for i in range(count):
                store(first, step * count + i, load(first, i) + shift_one)
                store(second, step * count + i, load(second, i) + shift_two)
        count *= size
    return count


@compiled
def _table(plan: Any, room: int, which: int) -> int:
    """The address of a thread's table of offsets."""
    address: int = room + plan.tables + which * plan.table_bytes
    return address


@compiled
def _place_apart(plan: Any, kernels: Any, room: int) -> None:
    """Fill the tables of the tile apart, which is packed column after column."""
    rows, columns = _table(plan, room, APART_ROWS), _table(plan, room, APART_COLUMNS)
    of_a, of_b = table(Packer, kernels.pack_a), table(Packer, kernels.pack_b)
    for row in range(of_a.whole):
        store(rows, row, row * of_a.size)
    for column in range(of_b.whole):
        store(columns, column, column * of_a.whole * of_a.size)


@compiled
def _multiply_panels(
    plan: Any,
    kernels: Any,
    room: int,
    panels: int,
    d: int,
    number: int,
    height: int,
    width: int,
    depth: int,
    add: int,
    alpha: int,
) -> None:
    """A box of D from packed panels; those of A are at ``panels``.

    The box of A stays in the second-level cache, a panel of B in the first: tiles run along rows,
    but only as far as these are nearer in D than columns. Where batches lie side by side in D the
    tiles of all come one after another, for they share its lines.
    """
    of_a, of_b = table(Packer, kernels.pack_a), table(Packer, kernels.pack_b)
    rows, columns = _table(plan, room, ROWS_D), _table(plan, room, COLUMNS_D)
    runs, batches = _table(plan, room, BESIDE), _table(plan, room, BATCHES_D)
    lanes, size, tall, wide = of_a.grain, of_a.size, of_a.whole, of_b.whole
    together = number if is_run(batches, number, size) else 1
    _measure_runs(rows, height, size, runs)
    for first in range(0, number, together):
        left, right = panels + first * plan.each_a, room + plan.panels_b + first * plan.each_b
        to = d + load(batches, first)
        for begin in range(0, height, plan.near):
            end = min(begin + plan.near, height)
            for j in range(0, width, wide):
                used, places, b = min(wide, width - j), columns + j * 8, right + j * depth * size
                for i in range(begin, end, tall):
                    high, up, a = min(tall, height - i), rows + i * 8, left + i * depth * size
                    lengths = runs + i * 8
                    if together > 1:
                        tile = TileCall(
                            high, used, depth, a, b, to, up, places, lengths, add, alpha
                        )
                        _multiply_batches(plan, kernels, room, together, tile)
                        continue
                    if high % lanes == 0 and used % of_b.grain == 0:
                        if load(lengths, 0) >= lanes and load(lengths, high - lanes) >= lanes:
                            lengths = 0  # whole vectors
                    tile = TileCall(high, used, depth, a, b, to, up, places, lengths, add, alpha)
                    call_on_table(kernels.multiply, tile)


@compiled
def _measure_runs(places: int, count: int, size: int, runs: int) -> None:
    """How many places lie side by side from each on."""
    length = 0
    for at in range(count - 1, -1, -1):
        goes_on = at + 1 < count and load(places, at + 1) - load(places, at) == size
        length = length + 1 if goes_on else 1
        store(runs, at, length)


@compiled
def _multiply_batches(plan: Any, kernels: Any, room: int, together: int, tile: TileCall) -> None:
    """The tiles of batches that lie side by side, summed apart and written four at once.

    ``tile`` is that of the first of them.
    """
    of_a, of_b = table(Packer, kernels.pack_a), table(Packer, kernels.pack_b)
    size, apart = of_a.size, room + plan.apart
    pitch = of_a.whole * of_b.whole * size
    here, across = _table(plan, room, APART_ROWS), _table(plan, room, APART_COLUMNS)
    high, used, depth, a, b, d, rows, columns, runs, add, alpha = tile
    for first in range(0, together, SQUARE):
        count, to = min(SQUARE, together - first), d + first * size
        for at in range(count):
            left, right = a + (first + at) * plan.each_a, b + (first + at) * plan.each_b
            panels = high, used, depth, left, right
            if count == SQUARE:
                one = TileCall(*panels, apart + at * pitch, here, across, 0, 0, alpha)
            else:
                one = TileCall(*panels, to + at * size, rows, columns, runs, add, alpha)
            call_on_table(kernels.multiply, one)
        if count == SQUARE:
            joined = JoinCall(apart, pitch, to, rows, high, columns, used, add)
            call_on_table(kernels.join_batches, joined)


@compiled
def _multiply_boxes(
    call: Any, plan: Any, room: int, d: int, begin: int, end: int, first: int, last: int
) -> None:
    """D = [D +] alpha * A * B for boxes ``begin`` to ``end`` of D and ``first`` to ``last`` of k.

    ``room`` is the address of memory for the panels. Boxes run m fastest, then n, then l.
    """
    loops, panels_b = behind(BoxPlan, call.plan, 1), room + plan.panels_b
    kernels = table(TileKernels, call.kernels)
    of_a, of_b = table(Packer, kernels.pack_a), table(Packer, kernels.pack_b)
    rows_a, rows_d = _table(plan, room, ROWS_A), _table(plan, room, ROWS_D)
    columns_b, columns_d = _table(plan, room, COLUMNS_B), _table(plan, room, COLUMNS_D)
    steps_a, steps_b = _table(plan, room, STEPS_A), _table(plan, room, STEPS_B)
    batches_a, batches_b = _table(plan, room, BATCHES_A), _table(plan, room, BATCHES_B)
    batches_d, packed = _table(plan, room, BATCHES_D), _table(plan, room, PACKED)
    places, beside = _table(plan, room, PLACES), _table(plan, room, BESIDE)
    boxes_m, boxes_n, kept = plan.boxes_m, plan.boxes_n, plan.kept
    _place_apart(plan, kernels, room)
    for slot in range(kept):
        store(packed, slot, -1)
    tabled_n = tabled_k = -1  # the boxes of which there are tables
    width = depth = 0
    at = begin
    while at < end:
        column = at // boxes_m
        stop = min(end, (column + 1) * boxes_m)
        batch = column // boxes_n
        number = _offsets(loops, plan.batches, plan.batches_d, batch, batches_a, batches_b)
        _offsets(loops, plan.batches_d, plan.rows, batch, batches_d, rows_d)
        if tabled_n != column % boxes_n:
            tabled_n = column % boxes_n
            width = _offsets(loops, plan.columns, plan.steps, tabled_n, columns_b, columns_d)
        for box in range(first, last):
            if tabled_k != box:
                tabled_k = box
                depth = _offsets(loops, plan.steps, plan.loops, box, steps_a, steps_b)
            place_b = batches_b, number, columns_b, width, steps_b, depth
            pack_batches(of_b, call.b, place_b, panels_b, plan.each_b, places, beside)
            adds = call.adds if box == first else 1
            for row in range(at - column * boxes_m, stop - column * boxes_m):
                height = _offsets(loops, plan.rows, plan.columns, row, rows_a, rows_d)
                name = (batch * boxes_m + row) * (last - first) + box - first
                slot = name % kept
                panels = room + slot * (plan.panels_b // kept)
                if load(packed, slot) != name:
                    place_a = batches_a, number, rows_a, height, steps_a, depth
                    pack_batches(of_a, call.a, place_a, panels, plan.each_a, places, beside)
                    store(packed, slot, name)
                sizes = number, height, width, depth
                _multiply_panels(plan, kernels, room, panels, d, *sizes, adds, call.alpha)
        at = stop


def _part(given: int, begin: int, end: int, lane: int) -> None:
    """Shares begin..end of the boxes of all partial sums, by one thread."""
    call = table(BoxCall, given)
    plan = table(BoxPlan, call.plan)
    boxes, each = plan.boxes_d, plan.boxes_sum
    at, end = load(plan.edges, begin), load(plan.edges, end)
    while at < end:
        sum_ = at // boxes
        first, left = sum_ * boxes, sum_ * each + call.begin
        stop = min(end, first + boxes)
        right = min(sum_ * each + call.end, plan.boxes_k)
        room, d = call.room + lane * plan.lane, call.d + sum_ * call.apart_sums
        _multiply_boxes(call, plan, room, d, at - first, stop - first, left, right)
        at = stop


def part() -> Code:
    """What a thread of a team does."""
    return by_integers(_part, PART_ARGUMENTS)
