"""Compiled packing: boxes of A and B from strided memory into panels.

Functions of integers alone, called by address, depend on types: the loops around them are compiled
once for all. Where places of a box lie is in tables of byte offsets.
"""

from typing import Any

import numpy as np

from contract.host.compiled.functions.panel_code import (
    LEFT,
    RIGHT,
    clear,
    grain_width,
    move,
    move_run,
    part_size,
    turn,
    turned_length,
)
from contract.host.compiled.functions.tables import (
    call_address,
    call_on_table,
    fetch,
    load,
    size_of,
    store,
    table,
)
from contract.host.compiled.functions.tools import Code, by_integers, compiled
from contract.host.compiled.tile_tables import RunsCall, SquaresCall, StepsCall
from contract.planner.host.tile_blocks import SQUARE

__all__ = ["elements", "is_run", "pack_batches", "runs", "squares", "steps", "zeros"]

SIDES = {"A": LEFT, "B": RIGHT}
EARLY = 128  # rows between asking for lines of A or B and packing them
Box = tuple[int, int, int, int, int, int]


@compiled
def is_run(offsets: int, count: int, size: int) -> bool:
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
    """Whether every ``apart``-th row from each of a square's rows on lies beside the one before."""
    for each in range(SQUARE):
        for at in range(1, count):
            if load(rows, at * apart + each) - load(rows, each) != at * size:
                return False
    return True


# --- what depends on types --------------------------------------------------------------------


def runs(panels: str, dtype: str) -> Code:
    """Packs grains of rows that lie side by side."""
    side, kind = SIDES[panels], np.dtype(dtype).type(0)

    def runs(given: int) -> None:
        """Grains of rows, those side by side at once."""
        call = table(RunsCall, given)
        across, places, count, gap = call.across, call.places, call.height, call.gap
        grain, early = grain_width(side, kind), max(EARLY // count, 1)
        for at in range(call.depth):
            here, shift = call.source + load(call.along, at), at * call.pitch
            ahead = call.source + load(call.along, min(at + early, call.depth - 1))
            for row in range(0, count, grain):
                begins, last = load(call.beside, row), min(row + grain, count)
                fetch(ahead + load(across, row))
                if begins != 0:
                    first = row + 1 - begins
                    start = here + load(across, first)
                    move_run(side, kind, start, load(places, first) + shift, gap)
                    continue
                for each in range(row, last):
                    from_ = here + load(across, each)
                    move(side, kind, kind, from_, load(places, each) + shift, gap)

    return by_integers(runs, 1)


def steps(panels: str, dtype: str) -> Code:
    """Packs rows along which k is contiguous."""
    side, kind = SIDES[panels], np.dtype(dtype).type(0)

    def steps(given: int) -> None:
        """Some rows for all steps along k: squares where k is contiguous."""
        call = table(StepsCall, given)
        source, rows, high, depth = call.source, call.rows, call.high, call.depth
        along, to, pitch, gap = call.along, call.to, call.pitch, call.gap
        part, size, square = part_size(side, kind), size_of(kind), turned_length(side, kind)
        turned = high // SQUARE * SQUARE
        at = 0
        while at < depth:
            count, done = 1, 0
            if at + square <= depth and is_run(along + at * 8, square, size):
                count, done = square, turned
                for row in range(0, turned, SQUARE):
                    one = to + at * pitch + row * part
                    two, three, four = one + pitch, one + 2 * pitch, one + 3 * pitch
                    here = source + load(along, at)
                    for each in range(row, row + SQUARE):
                        fetch(here + call.following + load(rows, each))
                    turn(side, kind, here, rows + row * 8, one, two, three, four, gap)
            for step in range(at, at + count):
                here, place = source + load(along, step), to + step * pitch
                for row in range(done, high):
                    from_ = here + load(rows, row)
                    move(side, kind, kind, from_, place + row * part, gap)
            at += count

    return by_integers(steps, 1)


def squares(panels: str, dtype: str) -> Code:
    """Packs rows whose neighbours are further on."""
    side, kind = SIDES[panels], np.dtype(dtype).type(0)

    def squares(given: int) -> None:
        """For one step, rows and those ``apart`` from them, which are their neighbours mostly."""
        call = table(SquaresCall, given)
        source, apart, shift, gap = call.source, call.apart, call.shift, call.gap
        size, square = size_of(kind), turned_length(side, kind)
        for row in range(0, apart, SQUARE):
            rows, there = call.across + row * 8, call.places + row * 8
            for each in range(SQUARE):
                fetch(call.ahead + load(rows, each))
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

    return by_integers(squares, 1)


def elements(panels: str, source: str, dtype: str) -> Code:
    """Packs rows from anywhere."""
    side, kind = SIDES[panels], np.dtype(dtype).type(0)
    source_kind = np.dtype(source).type(0)

    def elements(source: int, across: int, places: int, count: int, shift: int, gap: int) -> None:
        """Rows from anywhere, for one step along k."""
        for row in range(count):
            from_ = source + load(across, row)
            move(side, source_kind, kind, from_, load(places, row) + shift, gap)

    return by_integers(elements, 6)


def zeros(panels: str, dtype: str) -> Code:
    """Packs rows that fill a panel."""
    side, kind = SIDES[panels], np.dtype(dtype).type(0)

    def zeros(to: int, count: int, depth: int, pitch: int, gap: int) -> None:
        """Rows that fill a panel."""
        part = part_size(side, kind)
        for at in range(depth):
            for row in range(count):
                clear(side, kind, to + at * pitch + row * part, gap)

    return by_integers(zeros, 5)


# --- which of them packs what -----------------------------------------------------------------


@compiled
def _pack(
    pack: Any,
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
    grain, size = pack.grain, pack.size
    pitch, gap = pack.whole * size, pack.whole * pack.part
    _lay_out(pack, count, depth, target, places)
    if pack.plain != 0 and count >= grain and is_run(across, grain, size):
        _mark_runs(across, count, grain, size, beside)
        _mark_end(across, count, grain, size, pack.whole, beside)
        runs = RunsCall(source, along, depth, across, places, beside, count, pitch, gap)
        call_on_table(pack.runs, runs)
    elif pack.plain != 0 and depth >= pack.turned and is_run(along, pack.turned, size):
        stretch = _stretch(across, count, grain)
        for first in range(0, min(stretch, count), grain):
            for row in range(first, count, stretch):
                high, rows, to = min(grain, count - row), across + row * 8, load(places, row)
                after = row + stretch if row + stretch < count else first + grain
                next_ = load(across, min(after, count - 1)) - load(rows, 0)
                steps = StepsCall(source, next_, rows, high, along, depth, to, pitch, gap)
                call_on_table(pack.steps, steps)
    else:
        _pack_steps(pack, source, across, count, along, depth, places)


@compiled
def _stretch(across: int, count: int, grain: int) -> int:
    """How many rows lie between two that are near in memory; all, if grains do not fit."""
    first, found, nearest = load(across, 0), 0, 0
    for row in range(1, count):
        distance = abs(load(across, row) - first)
        if found == 0 or distance < nearest:
            found, nearest = row, distance
    return found if found > 1 and found % grain == 0 else count


@compiled
def pack_batches(
    pack: Any,
    source: int,
    box: Box,
    target: int,
    each: int,
    places: int,
    beside: int,
) -> None:
    """The panels of every batch of a box, ``each`` bytes apart.

    ``box`` has the tables of its batches, rows or columns, and steps, each with its length. Where
    batches lie side by side squares of them and of rows are turned, so that lines are read once
    for all batches.
    """
    batches, number, across, count, along, depth = box
    size, grain, square = pack.size, pack.grain, pack.turned
    if pack.plain == 0 or number < square or not is_run(batches, square, size):
        for at in range(number):
            here, there = source + load(batches, at), target + at * each
            _pack(pack, here, across, count, along, depth, there, places, beside)
        return
    pitch, gap = pack.whole * size, pack.whole * pack.part
    for at in range(number - 1, -1, -1):  # the table of places is the first batch's in the end
        _lay_out(pack, count, depth, target + at * each, places)
    for at in range(depth):
        here = source + load(along, at)
        for row in range(0, count, grain):
            high, rows, to = min(grain, count - row), across + row * 8, load(places, row)
            next_ = load(across, min(row + grain, count - 1)) - load(rows, 0)
            to += at * pitch
            steps = StepsCall(here, next_, rows, high, batches, number, to, each, gap)
            call_on_table(pack.steps, steps)


@compiled
def _lay_out(pack: Any, count: int, depth: int, target: int, places: int) -> None:
    """Where rows go in their panels, the first step's; the rows that fill a panel are cleared."""
    whole, grain, size, part = pack.whole, pack.grain, pack.size, pack.part
    for first in range(0, count, whole):
        used, panel = min(whole, count - first), target + first * depth * size
        for row in range(used):
            store(places, first + row, panel + row * part)
        if used % grain != 0:
            filling, to = grain - used % grain, panel + used * part
            call_address(pack.zeros, (to, filling, depth, whole * size, whole * part))


@compiled
def _mark_runs(places: int, count: int, grain: int, size: int, beside: int) -> None:
    """For each grain of places, whether it lies side by side."""
    for first in range(0, count, grain):
        begins = first + grain <= count and is_run(places + first * 8, grain, size)
        store(beside, first, 1 if begins else 0)


@compiled
def _mark_end(places: int, count: int, grain: int, size: int, whole: int, beside: int) -> None:
    """Whether what is less than a grain is the end of one that lies side by side, in one panel."""
    left = count % grain
    first = count - grain
    if left != 0 and first // whole == (count - left) // whole:
        if is_run(places + first * 8, grain, size):
            store(beside, count - left, 1 + grain - left)


@compiled
def _pack_steps(
    pack: Any, source: int, across: int, count: int, along: int, depth: int, places: int
) -> None:
    """Step after step along k into all panels, for these share lines.

    Where rows have neighbours further on in the table, squares are turned.
    """
    pitch, gap = pack.whole * pack.size, pack.whole * pack.part
    apart = 0
    if pack.plain != 0 and pack.whole % SQUARE == 0:
        apart = _apart(across, count, pack.size)
    group = apart * pack.turned if apart > 0 else count
    for at in range(depth):
        here, shift = source + load(along, at), at * pitch
        ahead = source + load(along, min(at + 1, depth - 1))
        for base in range(0, count, group):
            rows, there = across + base * 8, places + base * 8
            if apart > 0 and base + group <= count:
                squares = SquaresCall(here, ahead, rows, there, apart, shift, gap)
                call_on_table(pack.squares, squares)
            else:
                left = min(group, count - base)
                call_address(pack.elements, (here, rows, there, left, shift, gap))


@compiled
def _apart(across: int, count: int, size: int) -> int:
    """How many rows lie between two that are neighbours in memory; 0 if squares do not fit."""
    first = load(across, 0)
    for row in range(1, count):
        if load(across, row) - first == size:
            return row if row % SQUARE == 0 else 0
    return 0
