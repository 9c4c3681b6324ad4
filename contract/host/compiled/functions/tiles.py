"""Compiled products by tiles: pack boxes of A and B, multiply them in registers, write D.

The way is that of BLIS and TBLIS: boxes of A and B are packed into panels, a row of panels of
A for a register tile's rows, one of B for its columns, straight from strided memory; a tile of D
is summed in vector registers and written straight to strided memory. So nothing is permuted in
memory, and BLAS, which would pack once more, has no part in it.

A kernel addresses bytes. Where places of a box lie is in tables of byte offsets, filled for each
box from the loops' strides.
"""

import numpy as np

from contract.host.compiled.functions.team import PART_ARGUMENTS
from contract.host.compiled.functions.tile_code import (
    LEFT,
    RIGHT,
    clear,
    element_size,
    fetch,
    grain_width,
    join_element,
    join_square,
    move,
    move_run,
    multiply_tile,
    panel_width,
    part_size,
    turn,
    turned_length,
)
from contract.host.compiled.functions.tools import (
    Code,
    by_integers,
    call_address,
    call_on_table,
    compiled,
    load,
    store,
)
from contract.host.compiled.tile_tables import (
    ELEMENTS,
    ENTRIES,
    GRAIN,
    JOIN_BATCHES,
    MULTIPLY,
    PART,
    PLAIN,
    RUNS,
    SIZE,
    SQUARES,
    STEPS,
    TURNED,
    WHOLE,
    ZEROS,
)
from contract.planner.host.tile_blocks import SQUARE

__all__ = ["batch_joiner", "elements", "multiplier", "part", "runs", "squares", "steps", "zeros"]

SIDES = {"A": LEFT, "B": RIGHT}

# A plan of a product: where its loops begin in the table (l in A and B, l in D twice, m in A and
# D, n in B and D, k in A and B) and where they end; boxes; where in the memory of a thread there
# are panels of B, a tile apart and tables of offsets, and the bytes of one; the bytes of one
# batch's panels of A and of B; how many boxes of A are kept; how many rows come before D's next
# columns; then the table of loops, the fastest first: extent, block, and the strides in two
# operands, in bytes.
GROUPS = 5
BOXES_M, BOXES_N, PANELS_B, APART, TABLES_AT, TABLE_BYTES = range(GROUPS + 1, GROUPS + 7)
EACH_A, EACH_B, KEPT, NEAR, NUMBERS = range(GROUPS + 7, GROUPS + 12)
LOOP = 4
# The tables of a thread: columns of the tile apart, places of a box's rows in A, of its columns in
# B, of both in D, of steps along k in A and B, of rows or columns in panels, which grains of them
# lie side by side or how many of D's rows do, rows of the tile apart, and places of a box's batches
# in A, B and D, and which box of A is packed in each place for one.
APART_COLUMNS, ROWS_A, COLUMNS_B, ROWS_D, COLUMNS_D = range(5)
STEPS_A, STEPS_B, PLACES, BESIDE, APART_ROWS = range(5, 10)
BATCHES_A, BATCHES_B, BATCHES_D, PACKED = range(10, 14)
Box = tuple[int, int, int, int, int, int]

ROW = 8 * ENTRIES  # bytes of a row of kernels
EARLY = 128  # rows between asking for lines of A or B and packing them


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
    """Whether every ``apart``-th row from each of a square's rows on lies beside the one before."""
    for each in range(SQUARE):
        for at in range(1, count):
            if load(rows, at * apart + each) - load(rows, each) != at * size:
                return False
    return True


def runs(panels: str, dtype: str) -> Code:
    """Packs grains of rows that lie side by side."""
    side, kind = SIDES[panels], np.dtype(dtype).type(0)

    def runs(given: int) -> None:
        """Grains of rows, those side by side at once: ``beside`` says which begin 0, 1.. earlier.

        It is one more than that, or 0.
        """
        source, along, depth = load(given, 0), load(given, 1), load(given, 2)
        across, places, beside = load(given, 3), load(given, 4), load(given, 5)
        count, pitch, gap = load(given, 6), load(given, 7), load(given, 8)
        grain, early = grain_width(side, kind), max(EARLY // count, 1)
        for at in range(depth):
            here, shift = source + load(along, at), at * pitch
            ahead = source + load(along, min(at + early, depth - 1))
            for row in range(0, count, grain):
                is_run, last = load(beside, row), min(row + grain, count)
                fetch(ahead + load(across, row))
                if is_run != 0:
                    first = row + 1 - is_run
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
        """Some rows for all steps along k: squares where k is contiguous.

        The rows that come next lie ``next_`` bytes further.
        """
        source, next_, rows, high = load(given, 0), load(given, 1), load(given, 2), load(given, 3)
        along, depth, to = load(given, 4), load(given, 5), load(given, 6)
        pitch, gap = load(given, 7), load(given, 8)
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

    return by_integers(steps, 1)


def squares(panels: str, dtype: str) -> Code:
    """Packs rows whose neighbours are further on."""
    side, kind = SIDES[panels], np.dtype(dtype).type(0)

    def squares(given: int) -> None:
        """For one step, rows and those ``apart`` from them, which are their neighbours mostly."""
        source, ahead = load(given, 0), load(given, 1)
        across, places = load(given, 2), load(given, 3)
        apart, shift, gap = load(given, 4), load(given, 5), load(given, 6)
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


def multiplier(dtype: str) -> Code:
    """Multiplies two panels by the narrowest tile that does."""
    kind = np.dtype(dtype).type(0)

    def multiply(given: int) -> None:
        """d = [d +] alpha * a * b for as many rows and columns as ``given`` says first."""
        high, used = load(given, 0), load(given, 1)
        grain, lanes = grain_width(RIGHT, kind), grain_width(LEFT, kind)
        if panel_width(LEFT, kind) > lanes and high > lanes:
            if used > 2 * grain:
                multiply_tile(kind, 2, 3, given)
            elif used > grain:
                multiply_tile(kind, 2, 2, given)
            else:
                multiply_tile(kind, 2, 1, given)
        elif used > 2 * grain:
            multiply_tile(kind, 1, 3, given)
        elif used > grain:
            multiply_tile(kind, 1, 2, given)
        else:
            multiply_tile(kind, 1, 1, given)

    return by_integers(multiply, 1)


def batch_joiner(dtype: str) -> Code:
    """Writes the tiles of four batches that are neighbours in D."""
    kind = np.dtype(dtype).type(0)

    def join(given: int) -> None:
        """d[batches, rows, columns] = [d +] the tiles, ``pitch`` bytes apart, squares turned."""
        source, pitch, target, rows = load(given, 0), load(given, 1), load(given, 2), load(given, 3)
        high, columns, used, add = load(given, 4), load(given, 5), load(given, 6), load(given, 7)
        size = element_size(kind)
        column_bytes = panel_width(LEFT, kind) * size
        for column in range(used):
            here, there = source + column * column_bytes, target + load(columns, column)
            for row in range(0, high - SQUARE + 1, SQUARE):
                join_square(kind, here + row * size, pitch, there, rows + row * 8, add)
            for row in range(high // SQUARE * SQUARE, high):
                for batch in range(SQUARE):
                    from_ = here + batch * pitch + row * size
                    to = there + load(rows, row) + batch * size
                    join_element(kind, from_, to, add)

    return by_integers(join, 1)


# --- packing ----------------------------------------------------------------------------------


@compiled
def _pack(
    pack: int,
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
    grain, size, square, plain = (
        load(pack, GRAIN),
        load(pack, SIZE),
        load(pack, TURNED),
        load(pack, PLAIN) != 0,
    )
    pitch, gap = load(pack, WHOLE) * size, load(pack, WHOLE) * load(pack, PART)
    _lay_out(pack, count, depth, target, places)
    if plain and count >= grain and _is_run(across, grain, size):
        _mark_runs(across, count, grain, size, beside)
        _mark_end(across, count, grain, size, load(pack, WHOLE), beside)
        runs = (source, along, depth, across, places, beside, count, pitch, gap)
        call_on_table(load(pack, RUNS), runs)
    elif plain and depth >= square and _is_run(along, square, size):
        stretch = _stretch(across, count, grain)
        for first in range(0, min(stretch, count), grain):
            for row in range(first, count, stretch):
                high, rows, to = min(grain, count - row), across + row * 8, load(places, row)
                after = row + stretch if row + stretch < count else first + grain
                next_ = load(across, min(after, count - 1)) - load(rows, 0)
                steps = (source, next_, rows, high, along, depth, to, pitch, gap)
                call_on_table(load(pack, STEPS), steps)
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
def _pack_batches(
    pack: int,
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
    size, grain, square = load(pack, SIZE), load(pack, GRAIN), load(pack, TURNED)
    if load(pack, PLAIN) == 0 or number < square or not _is_run(batches, square, size):
        for at in range(number):
            here, there = source + load(batches, at), target + at * each
            _pack(pack, here, across, count, along, depth, there, places, beside)
        return
    pitch, gap = load(pack, WHOLE) * size, load(pack, WHOLE) * load(pack, PART)
    for at in range(number - 1, -1, -1):  # the table of places is the first batch's in the end
        _lay_out(pack, count, depth, target + at * each, places)
    for at in range(depth):
        here = source + load(along, at)
        for row in range(0, count, grain):
            high, rows, to = min(grain, count - row), across + row * 8, load(places, row)
            next_ = load(across, min(row + grain, count - 1)) - load(rows, 0)
            to += at * pitch
            call_on_table(
                load(pack, STEPS), (here, next_, rows, high, batches, number, to, each, gap)
            )


@compiled
def _lay_out(pack: int, count: int, depth: int, target: int, places: int) -> None:
    """Where rows go in their panels, the first step's; the rows that fill a panel are cleared."""
    whole, grain, size, part = (
        load(pack, WHOLE),
        load(pack, GRAIN),
        load(pack, SIZE),
        load(pack, PART),
    )
    for first in range(0, count, whole):
        used, panel = min(whole, count - first), target + first * depth * size
        for row in range(used):
            store(places, first + row, panel + row * part)
        if used % grain != 0:
            filling, to = grain - used % grain, panel + used * part
            call_address(load(pack, ZEROS), (to, filling, depth, whole * size, whole * part))


@compiled
def _mark_runs(places: int, count: int, grain: int, size: int, beside: int) -> None:
    """For each grain of places, whether it lies side by side."""
    for first in range(0, count, grain):
        is_run = first + grain <= count and _is_run(places + first * 8, grain, size)
        store(beside, first, 1 if is_run else 0)


@compiled
def _mark_end(places: int, count: int, grain: int, size: int, whole: int, beside: int) -> None:
    """Whether what is less than a grain is the end of one that lies side by side, in one panel."""
    left = count % grain
    first = count - grain
    if left != 0 and first // whole == (count - left) // whole:
        if _is_run(places + first * 8, grain, size):
            store(beside, count - left, 1 + grain - left)


@compiled
def _pack_steps(
    pack: int, source: int, across: int, count: int, along: int, depth: int, places: int
) -> None:
    """Step after step along k into all panels, for these share lines.

    Where rows have neighbours further on in the table, squares are turned.
    """
    pitch, gap = load(pack, WHOLE) * load(pack, SIZE), load(pack, WHOLE) * load(pack, PART)
    apart = 0
    if load(pack, PLAIN) != 0 and load(pack, WHOLE) % SQUARE == 0:
        apart = _apart(across, count, load(pack, SIZE))
    group = apart * load(pack, TURNED) if apart > 0 else count
    for at in range(depth):
        here, shift = source + load(along, at), at * pitch
        ahead = source + load(along, min(at + 1, depth - 1))
        for base in range(0, count, group):
            rows, there = across + base * 8, places + base * 8
            if apart > 0 and base + group <= count:
                call_on_table(load(pack, SQUARES), (here, ahead, rows, there, apart, shift, gap))
            else:
                left = min(group, count - base)
                call_address(load(pack, ELEMENTS), (here, rows, there, left, shift, gap))


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
def _offsets(loops: int, begin: int, end: int, index: int, first: int, second: int) -> int:
    """How many places box ``index`` of loops begin..end has; their offsets in two operands.

    The offsets go to tables at ``first`` and ``second``.
    """
    store(first, 0, 0)
    store(second, 0, 0)
    count = 1
    for at in range(begin, end):
        loop = loops + 8 * LOOP * at
        extent, block, one, two = load(loop, 0), load(loop, 1), load(loop, 2), load(loop, 3)
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
def _table(plan: int, room: int, which: int) -> int:
    """The address of a thread's table of offsets."""
    address: int = room + load(plan, TABLES_AT) + which * load(plan, TABLE_BYTES)
    return address


@compiled
def _place_apart(plan: int, kernels: int, room: int) -> None:
    """Fill the tables of the tile apart, which is packed column after column."""
    rows, columns = _table(plan, room, APART_ROWS), _table(plan, room, APART_COLUMNS)
    tall, wide, size = load(kernels, WHOLE), load(kernels + 1 * ROW, WHOLE), load(kernels, SIZE)
    for row in range(tall):
        store(rows, row, row * size)
    for column in range(wide):
        store(columns, column, column * tall * size)


@compiled
def _multiply_panels(
    plan: int,
    kernels: int,
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
    rows, columns = _table(plan, room, ROWS_D), _table(plan, room, COLUMNS_D)
    lanes, size = load(kernels, GRAIN), load(kernels, SIZE)
    tall, wide, grain = (
        load(kernels, WHOLE),
        load(kernels + 1 * ROW, WHOLE),
        load(kernels + 1 * ROW, GRAIN),
    )
    runs, batches = _table(plan, room, BESIDE), _table(plan, room, BATCHES_D)
    together = number if _is_run(batches, number, size) else 1
    _measure_runs(rows, height, size, runs)
    for first in range(0, number, together):
        left, right = (
            panels + first * load(plan, EACH_A),
            room + load(plan, PANELS_B) + first * load(plan, EACH_B),
        )
        to = d + load(batches, first)
        for begin in range(0, height, load(plan, NEAR)):
            end = min(begin + load(plan, NEAR), height)
            for j in range(0, width, wide):
                used, places, b = min(wide, width - j), columns + j * 8, right + j * depth * size
                for i in range(begin, end, tall):
                    high, up, a = min(tall, height - i), rows + i * 8, left + i * depth * size
                    if together > 1:
                        tiles = (plan, kernels, room, together)
                        scaled = (add, alpha)
                        _multiply_batches(*tiles, high, used, depth, a, b, to, up, places, *scaled)
                        continue
                    lengths = runs + i * 8
                    if high % lanes == 0 and used % grain == 0:
                        if load(lengths, 0) >= lanes and load(lengths, high - lanes) >= lanes:
                            lengths = 0  # whole vectors
                    tile = (high, used, depth, a, b, to, up, places, lengths, add, alpha)
                    call_on_table(load(kernels + 2 * ROW, MULTIPLY), tile)


@compiled
def _measure_runs(places: int, count: int, size: int, runs: int) -> None:
    """How many places lie side by side from each on."""
    length = 0
    for at in range(count - 1, -1, -1):
        goes_on = at + 1 < count and load(places, at + 1) - load(places, at) == size
        length = length + 1 if goes_on else 1
        store(runs, at, length)


@compiled
def _multiply_batches(
    plan: int,
    kernels: int,
    room: int,
    together: int,
    high: int,
    used: int,
    depth: int,
    a: int,
    b: int,
    d: int,
    rows: int,
    columns: int,
    add: int,
    alpha: int,
) -> None:
    """The tiles of batches that lie side by side, summed apart and written four at once."""
    size, apart = load(kernels, SIZE), room + load(plan, APART)
    pitch = load(kernels, WHOLE) * load(kernels + 1 * ROW, WHOLE) * size
    here, across = _table(plan, room, APART_ROWS), _table(plan, room, APART_COLUMNS)
    runs = _table(plan, room, BESIDE) + rows - _table(plan, room, ROWS_D)
    for first in range(0, together, SQUARE):
        count, to = min(SQUARE, together - first), d + first * size
        for at in range(count):
            left, right = (
                a + (first + at) * load(plan, EACH_A),
                b + (first + at) * load(plan, EACH_B),
            )
            if count == SQUARE:
                place = apart + at * pitch
                tile = (high, used, depth, left, right, place, here, across, 0, 0, alpha)
                call_on_table(load(kernels + 2 * ROW, MULTIPLY), tile)
            else:
                place = to + at * size
                tile = (high, used, depth, left, right, place, rows, columns, runs, add, alpha)
                call_on_table(load(kernels + 2 * ROW, MULTIPLY), tile)
        if count == SQUARE:
            joined = (apart, pitch, to, rows, high, columns, used, add)
            call_on_table(load(kernels + 2 * ROW, JOIN_BATCHES), joined)


# What a product is: the address of its kernels; those of its plan and of where the shares of boxes
# begin and end, and the size of the former; bytes of a thread's memory; boxes of D, boxes of k in a
# partial sum, and all boxes of k; the threads' memory; the addresses of A, B and D, and the bytes
# from one partial sum in D to the next; alpha's address; whether D is added to, and between which
# boxes of k of each partial sum.
KERNELS, PLAN, EDGES, PLAN_SIZE, LANE, BOXES_D, BOXES_SUM, BOXES_K = range(8)
ROOM, A, B, D, APART_SUMS, ALPHA, ADDS, BEGIN, END = range(8, 17)


@compiled
def _multiply_boxes(
    given: int, room: int, d: int, begin: int, end: int, first: int, last: int
) -> None:
    """D = [D +] alpha * A * B for boxes ``begin`` to ``end`` of D and ``first`` to ``last`` of k.

    ``room`` is the address of memory for the panels. Boxes run m fastest, then n, then l.
    """
    plan, kernels, a, b = load(given, PLAN), load(given, KERNELS), load(given, A), load(given, B)
    add, alpha = load(given, ADDS), load(given, ALPHA)
    loops = plan + 8 * NUMBERS
    boxes_m, boxes_n, panels_b = (
        load(plan, BOXES_M),
        load(plan, BOXES_N),
        room + load(plan, PANELS_B),
    )
    rows_a, rows_d = _table(plan, room, ROWS_A), _table(plan, room, ROWS_D)
    columns_b, columns_d = _table(plan, room, COLUMNS_B), _table(plan, room, COLUMNS_D)
    steps_a, steps_b = _table(plan, room, STEPS_A), _table(plan, room, STEPS_B)
    batches_a, batches_b = _table(plan, room, BATCHES_A), _table(plan, room, BATCHES_B)
    batches_d, each_a, each_b = (
        _table(plan, room, BATCHES_D),
        load(plan, EACH_A),
        load(plan, EACH_B),
    )
    places, beside = _table(plan, room, PLACES), _table(plan, room, BESIDE)
    _place_apart(plan, kernels, room)
    packed, kept = _table(plan, room, PACKED), load(plan, KEPT)
    for slot in range(kept):
        store(packed, slot, -1)
    tabled_n = tabled_k = -1  # the boxes of which there are tables
    width = depth = 0
    at = begin
    while at < end:
        column = at // boxes_m
        stop = min(end, (column + 1) * boxes_m)
        batch = column // boxes_n
        number = _offsets(loops, load(plan, 0), load(plan, 1), batch, batches_a, batches_b)
        _offsets(loops, load(plan, 1), load(plan, 2), batch, batches_d, rows_d)
        if tabled_n != column % boxes_n:
            tabled_n = column % boxes_n
            width = _offsets(loops, load(plan, 3), load(plan, 4), tabled_n, columns_b, columns_d)
        for box in range(first, last):
            if tabled_k != box:
                tabled_k = box
                depth = _offsets(loops, load(plan, 4), load(plan, 5), box, steps_a, steps_b)
            of_b = batches_b, number, columns_b, width, steps_b, depth
            _pack_batches(kernels + ROW, b, of_b, panels_b, each_b, places, beside)
            adds = add if box == first else 1
            for row in range(at - column * boxes_m, stop - column * boxes_m):
                height = _offsets(loops, load(plan, 2), load(plan, 3), row, rows_a, rows_d)
                name = (batch * boxes_m + row) * (last - first) + box - first
                slot = name % kept
                panels = room + slot * (load(plan, PANELS_B) // kept)
                if load(packed, slot) != name:
                    of_a = batches_a, number, rows_a, height, steps_a, depth
                    _pack_batches(kernels, a, of_a, panels, each_a, places, beside)
                    store(packed, slot, name)
                sizes = number, height, width, depth
                _multiply_panels(plan, kernels, room, panels, d, *sizes, adds, alpha)
        at = stop


def _part(given: int, begin: int, end: int, lane: int) -> None:
    """Shares begin..end of the boxes of all partial sums, by one thread."""
    room = load(given, ROOM) + lane * load(given, LANE)
    boxes, each = load(given, BOXES_D), load(given, BOXES_SUM)
    at, end = load(load(given, EDGES), begin), load(load(given, EDGES), end)
    while at < end:
        sum_ = at // boxes
        first, left = sum_ * boxes, sum_ * each + load(given, BEGIN)
        stop = min(end, first + boxes)
        right = min(sum_ * each + load(given, END), load(given, BOXES_K))
        d = load(given, D) + sum_ * load(given, APART_SUMS)
        _multiply_boxes(given, room, d, at - first, stop - first, left, right)
        at = stop


def part() -> Code:
    """What a thread of a team does."""
    return by_integers(_part, PART_ARGUMENTS)
