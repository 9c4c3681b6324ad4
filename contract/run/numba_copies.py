"""Compiled copies of strided memory: how a copy is blocked, and the loops that move its blocks.

Copies address bytes: only the width of an element is compiled, not its type.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray  # type: ignore[attr-defined]
from numba.core import types

from contract.run.host_views import Array
from contract.run.numba_team import PART_ARGUMENTS
from contract.run.numba_tools import (
    LOOP,
    address_of,
    advance,
    call_address,
    compiled,
    emitted,
    integers,
    load,
    prefetch,
)

__all__ = ["CONVERTED", "Region", "copy", "copy_region", "is_copied", "part"]

LINE = 64
# Blocks of a copy, bytes. Memory is read and written at full speed in runs of about a quarter of
# a page; shorter runs each wait for a line and, without huge pages, for a page's address.
# Measured on a Cascade Lake with 1 MiB of second-level cache, which holds a staged block.
SOURCE_RUN = 256
STAGED_BLOCK = 1 << 18
LONGEST_RUN = 1 << 12
TARGET_RUN = 1024
SHORTEST_COUNTED = 768  # shorter target runs leave no more of the buffer to the source
SOURCE_SHARE = 0.5  # of the target's run that is enough for the source's
STAGED_BYTES = 1 << 22  # smaller targets stay in cache, where staging only adds work
LONGEST_ELEMENT = 256  # longer runs are copied one by one
AHEAD = 2  # tiles between asking for lines and reading them
FAR_AHEAD = 4  # the same where source runs are shorter than the processor foresees
FORESEEN_RUN = 900
ALIGNED_RUN = 512
# Runs contiguous on both sides that are copied in the order of the source, long ones in pieces. In
# shorter ones lines are written half, and wait for the rest too long. Measured on a Zen 5.
ORDERED_RUN = 96
PIECE = 1 << 16
# Runs that are worth writing past the caches, in targets that caches do not hold: what is written
# is then not read before.
PASSING_RUN = 30 * LINE
PASSING_BYTES = 1 << 24
ROW_BYTES = 1 << 13  # of a contiguous run copied as one
REGION_BYTES = 1 << 12  # of the two innermost loops of other copies


# The type that is copied for a width, and how many of them a row of a tile holds: a whole line
# where the registers suffice for a square of such rows.
_KINDS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
    16: np.dtype(np.complex128),
}
_LANES = {1: 16, 2: 16, 4: 16, 8: 8, 16: 4}
# Types with compiled conversions between them
CONVERTED = frozenset(
    {
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *("float32", "float64", "complex64", "complex128"),
    }
)
NOTHING = np.empty(0, np.int64)


# --- how a copy is blocked --------------------------------------------------------------------


class _Dim(NamedTuple):
    """One loop: extent and the bytes a step moves in source and target."""

    extent: int
    source: int
    target: int

    @property
    def nearness(self) -> int:
        """The nearer a loop is in either memory, the further inside it runs."""
        return min(abs(self.source) or 1 << 62, abs(self.target))


class _Blocks(NamedTuple):
    """Loops of ``pieces`` blocks of ``block`` steps; the last one starts ``clip`` steps early."""

    pieces: int
    block: int
    clip: int

    @classmethod
    def of(cls, extent: int, most: int, grain: int = 1) -> "_Blocks":
        """Blocks of about equal size, at most ``most`` long, multiples of ``grain``."""
        block = ceil(extent / ceil(extent / max(most, 1)))
        block = min(ceil(block / grain) * grain, extent)
        count = ceil(extent / block)
        return cls(count, block, count * block - extent)

    def loop(self, dim: _Dim) -> tuple[int, ...]:
        """The row of the table of outer loops."""
        step_s, step_t = self.block * dim.source, self.block * dim.target
        return self.pieces, step_s, step_t, self.clip * dim.source, self.clip * dim.target


class Region(NamedTuple):
    """The innermost part of a copy and the loops around it.

    The kernel is compiled for ``kinds`` of elements, if it depends on them, when it is asked for.
    """

    maker: Callable[..., int]
    kinds: tuple[np.dtype[Any], ...]
    table: Array  # what the kernel reads
    units: int
    unit_bytes: int

    @property
    def kernel(self) -> int:
        """The address of a function: the table's address, source, target, first and last unit."""
        return self.maker(*self.kinds)


# A table: the bytes of a run, those of a buffer's row or whether runs pass the caches, the sizes of
# two arrays that say where the elements of one place are, the number of loops; then these arrays
# and loops.
RUN, PITCH, FIRST, SECOND, LOOPS = range(5)
PASSES = PITCH
NUMBERS = 5


def _table(run: int, pitch: int, first: Array, second: Array, loops: Array) -> Array:
    parts = (run, pitch, first.size, second.size, len(loops)), first.ravel(), second, loops.ravel()
    return np.concatenate([np.asarray(part, np.int64) for part in parts])


def is_copied(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether there is a compiled copy; conversions that NumPy warns about are NumPy's."""
    if source == target:
        return source.itemsize in _KINDS and not source.hasobject
    if source.name not in CONVERTED or target.name not in CONVERTED:
        return False
    return "iufc".index(source.kind.replace("u", "i")) <= "iufc".index(
        target.kind.replace("u", "i")
    )


def copy_region(
    extents: Sequence[int],
    source: Sequence[int],
    target: Sequence[int],
    one: np.dtype[Any],
    two: np.dtype[Any],
) -> tuple[Region, int, int]:
    """How to copy from type ``one`` to ``two``, and bytes to add to the two offsets."""
    dims, shift_s, shift_t = _dims(extents, source, target, (one.itemsize, two.itemsize))
    if one == two:
        return _byte_region(dims, one.itemsize), shift_s, shift_t
    return _element_region(dims, (one, two)), shift_s, shift_t


def _dims(
    extents: Sequence[int], source: Sequence[int], target: Sequence[int], sizes: tuple[int, int]
) -> tuple[list[_Dim], int, int]:
    """Loops in bytes by increasing target stride, all positive there, and the two start shifts."""
    dims = []
    shift_s = shift_t = 0
    for n, s, t in zip(extents, source, target, strict=True):
        if n == 1:
            continue
        s, t = int(s) * sizes[0], int(t) * sizes[1]
        if t < 0:
            shift_s, shift_t = shift_s + s * (n - 1), shift_t + t * (n - 1)
            s, t = -s, -t
        dims.append(_Dim(n, s, t))
    return _fused(dims), shift_s, shift_t


def _fused(dims: list[_Dim]) -> list[_Dim]:
    """Dimensions contiguous in source and target made one, by increasing target stride."""
    result: list[_Dim] = []
    for dim in sorted(dims, key=lambda dim: (dim.target, abs(dim.source))):
        if result:
            n, s, t = result[-1]
            if dim.source == s * n and dim.target == t * n:
                result[-1] = _Dim(n * dim.extent, s, t)
                continue
        result.append(dim)
    return result


def _loop_table(
    rows: list[tuple[int, ...]], innermost: tuple[int, ...] | None = None
) -> tuple[Array, int]:
    """Outer loops, the innermost first, and how many places they visit."""
    rows = [row for row in rows if row[0] > 1] or [(1, 0, 0, 0, 0)]

    def nearness(row: tuple[int, ...]) -> int:
        return -1 if row == innermost else _Dim(*row[:3]).nearness

    return np.array(sorted(rows, key=nearness), np.int64), prod(row[0] for row in rows)


def _byte_region(dims: list[_Dim], width: int) -> Region:
    """The best way to copy elements of ``width`` bytes."""
    size = width * prod(dim.extent for dim in dims)
    if dims and dims[0].source == dims[0].target == width:
        first, dims = dims[0], dims[1:]
        if width * first.extent >= ORDERED_RUN and size >= STAGED_BYTES:
            return _ordered_region(first, dims, width)
        blocks = _Blocks.of(first.extent, max(ROW_BYTES // width, 1))
        width *= blocks.block
        if blocks.pieces > 1 or width > LONGEST_ELEMENT:
            return _run_region(dims, width, [blocks.loop(first)])
    if (region := _rectangle_region(dims, width)) is not None:
        return region
    if width in _KINDS:
        return _element_region(dims, (_KINDS[width], _KINDS[width]))
    return _run_region(dims, width, [])


def _rectangle_region(dims: list[_Dim], width: int) -> Region | None:
    """Rectangles of long runs on both sides, or None where there are no such runs."""
    p = next((dim for dim in dims if dim.source == width), None)
    q = next((dim for dim in dims if dim.target == width), None)
    if p is None or q is None or p is q:
        return None
    staged = width * prod(dim.extent for dim in dims) >= STAGED_BYTES
    lanes = _LANES.get(width, 1)
    if staged:
        ps, qs, p_blocks, q_blocks = _staged_blocks(dims, p, q, width)
    else:
        most_p, most_q = SOURCE_RUN // width, TARGET_RUN // width
        ps, qs = _runs(dims, p, q, (most_p, most_q), most_p / most_q)
        p_blocks, q_blocks = _last_blocks(ps, most_p, lanes), _last_blocks(qs, most_q, lanes)
    to, at = _offsets_of(ps, p_blocks.block, 2), _offsets_of(qs, q_blocks.block, 1)
    if min(to.size, at.size) < lanes:
        return None
    rest = [_Blocks(dim.extent, 1, 0).loop(dim) for dim in dims if dim not in (*ps, *qs)]
    # The ends of long runs in the target share lines: the next run is written while they are near,
    # except where the runs of the source lie closer together.
    q_loop = q_blocks.loop(qs[-1])
    innermost = q_loop if staged and abs(q.source) >= p.target else None
    loops, units = _loop_table([p_blocks.loop(ps[-1]), q_loop, *rest], innermost)
    # An odd number of lines between its rows spreads the buffer over the sets of the cache.
    pitch = (at.size * width // LINE + 1 | 1) * LINE if staged else 0
    size = to.size * at.size * width
    table = _table(width, pitch, at, to, loops)
    if width in _KINDS:
        return Region(_tile_kernel, (_KINDS[width],), table, units, size)
    return Region(_turned_run_kernel, (), table, units, size)


def _staged_blocks(
    dims: list[_Dim], p: _Dim, q: _Dim, width: int
) -> tuple[list[_Dim], list[_Dim], _Blocks, _Blocks]:
    """The dimensions of long runs in source and target, and the blocks of the last one of each.

    Runs in the target reach about TARGET_RUN, as what is written there is read as well; runs in
    the source take what is left of the buffer.
    """
    lanes, enough = _LANES.get(width, 1), TARGET_RUN // width
    most = STAGED_BLOCK // TARGET_RUN
    ps, qs = _runs(dims, p, q, (min(most, LONGEST_RUN // width), enough), SOURCE_SHARE)
    inner, extent = prod(dim.extent for dim in qs[:-1]), qs[-1].extent
    steps = ceil(0.9 * enough / inner)
    if extent <= 1.5 * steps:  # halves would be shorter than that is longer
        steps = extent
    q_blocks = _Blocks.of(extent, steps, lanes if inner == 1 else 1)
    run = inner * q_blocks.block * width
    most = STAGED_BLOCK // max(run, SHORTEST_COUNTED)
    return ps, qs, _last_blocks(ps, min(most, LONGEST_RUN // width), lanes), q_blocks


def _runs(
    dims: list[_Dim], p: _Dim, q: _Dim, most: tuple[int, int], share: float
) -> tuple[list[_Dim], list[_Dim]]:
    """``p`` and ``q``, each with the dimensions that continue it in source or target memory.

    Dimensions are added until a run is ``most`` long. One that could continue both goes to the
    source where its run is shorter than ``share`` of the target's.
    """
    ps, qs = [p], [q]
    while True:
        size_p, size_q = prod(dim.extent for dim in ps), prod(dim.extent for dim in qs)
        rest = [dim for dim in dims if dim not in (*ps, *qs)]
        next_p = [dim for dim in rest if dim.source == p.source * size_p and size_p < most[0]]
        next_q = [dim for dim in rest if dim.target == q.target * size_q and size_q < most[1]]
        if next_p and (not next_q or size_p <= size_q * share):
            ps.append(next_p[0])
        elif next_q:
            qs.append(next_q[0])
        else:
            return ps, qs


def _last_blocks(chain: list[_Dim], most: int, lanes: int) -> _Blocks:
    """Blocks of the last dimension of a run, the others staying whole."""
    inner = prod(dim.extent for dim in chain[:-1])
    return _Blocks.of(chain[-1].extent, max(most // inner, 1), lanes if inner == 1 else 1)


def _offsets_of(chain: list[_Dim], block: int, side: int) -> Array:
    """Where each element of a run lies on the other side."""
    offsets = np.zeros(1, np.int64)
    for at, dim in enumerate(chain):
        extent = block if at == len(chain) - 1 else dim.extent
        offsets = (np.arange(extent, dtype=np.int64)[:, None] * dim[side] + offsets).ravel()
    return offsets


def _run_region(dims: list[_Dim], run: int, rows: list[tuple[int, ...]]) -> Region:
    """Runs of ``run`` bytes, two loops of them at a time."""
    two, rest = _two_loops(dims, max(REGION_BYTES // run, 1))
    loops, units = _loop_table(rows + rest)
    size = run * int(two[0, 0] * two[1, 0])
    return Region(_run_kernel, (), _table(run, 0, two, NOTHING, loops), units, size)


def _ordered_region(first: _Dim, dims: list[_Dim], width: int) -> Region:
    """Runs along ``first`` in the order of the source, a loop of them or a piece at a time."""
    run = width * first.extent
    passes = run >= PASSING_RUN and run * prod(dim.extent for dim in dims) >= PASSING_BYTES
    pieces = _Blocks.of(first.extent, max(PIECE // width, 1), LINE)
    in_target = any(dim.source == 0 for dim in dims)  # little is read, again and again
    ordered = sorted(dims, key=lambda dim: dim.target if in_target else abs(dim.source))
    rows = [pieces.loop(first)]
    nearest = _Dim(1, 0, 0)
    if ordered and pieces.pieces == 1:
        nearest, ordered = ordered[0], ordered[1:]
        blocks = _Blocks.of(nearest.extent, max(ROW_BYTES // run, 1))
        nearest, rows = nearest._replace(extent=blocks.block), [blocks.loop(nearest)]
    run = width * pieces.block
    inner = np.array(nearest, np.int64)
    loops = np.array([*rows, *(_Blocks(dim.extent, 1, 0).loop(dim) for dim in ordered)], np.int64)
    units, size = prod(int(loop[0]) for loop in loops), run * nearest.extent
    table = _table(run, int(passes), inner, NOTHING, loops)
    return Region(_ordered_run_kernel, (), table, units, size)


def _element_region(dims: list[_Dim], kinds: tuple[np.dtype[Any], np.dtype[Any]]) -> Region:
    """Single elements, each loaded, converted and stored."""
    width = kinds[1].itemsize
    two, rest = _two_loops(dims, REGION_BYTES // width)
    loops, units = _loop_table(rest)
    size = width * int(two[0, 0] * two[1, 0])
    return Region(_element_kernel, kinds, _table(0, 0, two, NOTHING, loops), units, size)


def _two_loops(dims: list[_Dim], most: int) -> tuple[Array, list[tuple[int, ...]]]:
    """The two innermost loops, blocked, the longer one first, and the loops around them.

    They are the fastest of the target and of the source, so that both use whole lines.
    """
    if not dims:
        return np.array([(1, 0, 0), (1, 0, 0)], np.int64), []
    q = dims[0]
    others = sorted(dims[1:], key=lambda dim: abs(dim.source) or 1 << 62)
    p = others[0] if others else _Dim(1, 0, 0)
    same = abs(q.source) <= abs(p.source) or not others
    side = most if same else max(int(most**0.5), most // p.extent)
    q_blocks = _Blocks.of(q.extent, side)
    p_blocks = _Blocks.of(p.extent, max(most // q_blocks.block, 1))
    two = [(q_blocks.block, q.source, q.target), (p_blocks.block, p.source, p.target)]
    if p_blocks.block > 4 * q_blocks.block:
        two.reverse()
    rest = [_Blocks(dim.extent, 1, 0).loop(dim) for dim in dims[1:] if dim is not p]
    return np.array(two, np.int64), [q_blocks.loop(q), p_blocks.loop(p), *rest]


# --- instructions ---------------------------------------------------------------------------


@emitted
def _convert(context: Any, kinds: Any, source: Any, target: Any) -> Any:
    """Load a value at one address, convert it, store it at another; aligned or not."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one, two = (codegen.get_value_type(kind) for kind in kinds)
        value = builder.load(builder.inttoptr(arguments[1], one.as_pointer()), align=1)
        value = codegen.cast(builder, value, kinds[0], kinds[1])
        builder.store(value, builder.inttoptr(arguments[2], two.as_pointer()), align=1)
        return codegen.get_dummy_value()

    return types.void(kinds, types.intp, types.intp), write


@emitted
def _move(context: Any, width: Any, source: Any, target: Any) -> Any:
    """Move a literal number of bytes through one register."""
    size = width.literal_value

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element: Any = ir.IntType(8 * size)
        if size > 8:
            element = ir.VectorType(ir.IntType(64), size // 8)
        origin = builder.inttoptr(arguments[1], element.as_pointer())
        place = builder.inttoptr(arguments[2], element.as_pointer())
        builder.store(builder.load(origin, align=1), place, align=1)
        return codegen.get_dummy_value()

    return types.void(width, types.intp, types.intp), write


@emitted
def _pass_line(context: Any, source: Any, target: Any) -> Any:
    """Move a line to where one begins, past the caches."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line = ir.VectorType(ir.IntType(64), LINE // 8)
        origin, place = (builder.inttoptr(each, line.as_pointer()) for each in arguments)
        stored = builder.store(builder.load(origin, align=1), place, align=LINE)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
        return codegen.get_dummy_value()

    return types.void(types.intp, types.intp), write


@emitted
def _settle(context: Any) -> Any:
    """Wait until what went past the caches is in memory."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return codegen.get_dummy_value()

    return types.void(), write


@emitted
def _size(context: Any, kind: Any) -> Any:
    """Bytes of an element of type ``kind``."""
    return _constant(kind, kind.bitwidth // 8)


@emitted
def _lanes(context: Any, kind: Any) -> Any:
    """Rows of a tile of elements of type ``kind``."""
    return _constant(kind, _LANES[kind.bitwidth // 8])


def _constant(kind: Any, value: int) -> Any:
    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return codegen.get_constant(types.intp, value)

    return types.intp(kind), write


@emitted
def _transpose(context: Any, kind: Any, source: Any, at: Any, target: Any, to: Any) -> Any:
    """target[to[j] + i] = source[at[i] + j] on one tile; ``at`` and ``to`` are addresses.

    log2(lanes) rounds of interleaving row i with row i + lanes/2 transpose a square.
    """
    width = kind.bitwidth // 8
    lanes = _LANES[width]
    pieces = max(1, width // 8)  # LLVM shuffles elements of up to 8 bytes
    vector = ir.VectorType(ir.IntType(8 * width // pieces), lanes * pieces)

    def places(builder: Any, base: Any, offsets: Any) -> list[Any]:
        word = ir.IntType(64)
        table = builder.inttoptr(offsets, word.as_pointer())
        steps = [builder.gep(table, [ir.Constant(word, i)]) for i in range(lanes)]
        sums = [builder.add(base, builder.load(step)) for step in steps]
        return [builder.inttoptr(each, vector.as_pointer()) for each in sums]

    def interleaved(builder: Any, one: Any, two: Any, begin: int) -> Any:
        order = [
            (at // 2 + begin + (at % 2) * lanes) * pieces + piece
            for at in range(lanes)
            for piece in range(pieces)
        ]
        mask = ir.Constant(ir.VectorType(ir.IntType(32), lanes * pieces), order)
        return builder.shuffle_vector(one, two, mask)

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, s, at, t, to = arguments
        half = lanes // 2
        rows = [builder.load(place, align=1) for place in places(builder, s, at)]
        for _ in range(lanes.bit_length() - 1):
            pairs = list(zip(rows[:half], rows[half:], strict=True))
            rows = [interleaved(builder, *pair, begin) for pair in pairs for begin in (0, half)]
        for row, place in zip(rows, places(builder, t, to), strict=True):
            builder.store(row, place, align=1)
        return codegen.get_dummy_value()

    return types.void(kind, *[types.intp] * 4), write


@emitted
def _fetch_tile(context: Any, kind: Any, cache: Any, source: Any, at: Any) -> Any:
    """Ask for the lines a tile will read: its rows lie on pages the processor does not foresee.

    ``cache`` is the literal level that they are brought to, 1 or 2.
    """
    lanes = _LANES[kind.bitwidth // 8]
    keep = 4 - cache.literal_value

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        table = builder.inttoptr(arguments[3], word.as_pointer())
        for i in range(lanes):
            step = builder.load(builder.gep(table, [ir.Constant(word, i)]))
            prefetch(builder, builder.add(arguments[2], step), writes=0, keep=keep)
        return codegen.get_dummy_value()

    return types.void(kind, cache, types.intp, types.intp), write


@emitted
def _fetch_line(context: Any, address: Any) -> Any:
    """Ask for a line that will be written."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        prefetch(builder, arguments[0], writes=1, keep=3)
        return codegen.get_dummy_value()

    return types.void(types.intp), write


# --- copies ---------------------------------------------------------------------------


@compiled
def _place(loops: int, count: int, unit: int, s: int, t: int) -> tuple[Array, int, int]:
    """A unit's place in the loops, and where that is in source and target."""
    index = np.zeros(count, np.int64)
    for at in range(count):
        loop = loops + 8 * LOOP * at
        index[at] = unit % load(loop, 0)
        unit //= load(loop, 0)
        last = 1 if index[at] == load(loop, 0) - 1 else 0
        s += index[at] * load(loop, 1) - last * load(loop, 3)
        t += index[at] * load(loop, 2) - last * load(loop, 4)
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
def _tables(table: int) -> tuple[Array, Array, int, int]:
    """The two arrays of a table, the address of its loops, and how many there are."""
    first, second = load(table, FIRST), load(table, SECOND)
    at = table + 8 * NUMBERS
    one, two = carray(integers(at), first), carray(integers(at + 8 * first), second)
    return one, two, at + 8 * (first + second), load(table, LOOPS)


@compiled
def copy_runs(table: int, s0: int, t0: int, begin: int, end: int) -> None:
    """target = source for units begin..end; a unit is two loops of runs of bytes."""
    first, _, loops, count = _tables(table)
    two, run = first.reshape(2, 3), load(table, RUN)
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
def copy_ordered_runs(table: int, s0: int, t0: int, begin: int, end: int) -> None:
    """The same in memory far away: a unit is one loop of runs, which may pass the caches."""
    first, _, loops, count = _tables(table)
    n, si, ti = first[0], first[1], first[2]
    run, passes = load(table, RUN), load(table, PASSES)
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
def copy_elements(kinds: Any, table: int, s0: int, t0: int, begin: int, end: int) -> None:
    """The same with single elements, converted."""
    first, _, loops, count = _tables(table)
    two = first.reshape(2, 3)
    index, s, t = _place(loops, count, begin, s0, t0)
    n, si, ti = two[0, 0], two[0, 1], two[0, 2]
    one, other = _size(kinds[0]), _size(kinds[1])
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
def transpose_tiles(kind: Any, table: int, s0: int, t0: int, begin: int, end: int) -> None:
    """The same where source and target have different fastest dimensions.

    A unit is a rectangle: ``at[i]`` bytes on in the source and i elements on in the target, j
    elements on in the source and ``to[j]`` bytes on in the target. With a pitch it is first
    transposed into a buffer of such rows, then written row by row: long runs, page by page.
    """
    at, to, loops, count = _tables(table)
    pitch = load(table, PITCH)
    index, s, t = _place(loops, count, begin, s0, t0)
    buffer = np.empty(to.size * pitch, np.uint8)
    rows = np.arange(to.size) * pitch
    far = to.size >= FAR_AHEAD * _lanes(kind) and to.size * _size(kind) < FORESEEN_RUN
    for _ in range(begin, end):
        s1, t1 = advance(loops, 0, count, index.ctypes.data, s, t)
        if pitch == 0:
            _rectangle(kind, s, at, t, to)
        else:
            if far:
                _far_rectangle(kind, s, at, buffer.ctypes.data, rows, s1)
            else:
                _rectangle(kind, s, at, buffer.ctypes.data, rows)
            _write_rows(buffer.ctypes.data, pitch, t, to, at.size * _size(kind), t1)
        s, t = s1, t1
    index[:1], buffer[:1], rows[:1] = 0, 0, 0  # Numba frees an array after its last use by name


@compiled
def transpose_runs(table: int, s0: int, t0: int, begin: int, end: int) -> None:
    """The same with short runs of bytes for elements."""
    at, to, loops, count = _tables(table)
    run, pitch = load(table, RUN), load(table, PITCH)
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
    lanes, width = _lanes(kind), _size(kind)
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
    lanes, width = _lanes(kind), _size(kind)
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


@cache
def _run_kernel() -> int:
    return address_of(copy_runs, COPY)


@cache
def _ordered_run_kernel() -> int:
    return address_of(copy_ordered_runs, COPY)


@cache
def _turned_run_kernel() -> int:
    return address_of(transpose_runs, COPY)


@cache
def _element_kernel(source: np.dtype[Any], target: np.dtype[Any]) -> int:
    kinds = source.type(0), target.type(0)

    def copy(table: int, s: int, t: int, begin: int, end: int) -> None:
        copy_elements(kinds, table, s, t, begin, end)

    return address_of(copy, COPY)


@cache
def _tile_kernel(dtype: np.dtype[Any]) -> int:
    kind = dtype.type(0)

    def copy(table: int, s: int, t: int, begin: int, end: int) -> None:
        transpose_tiles(kind, table, s, t, begin, end)

    return address_of(copy, COPY)


@compiled
def copy(kernel: int, table: int, source: int, target: int, units: int) -> None:
    """All units, by one thread."""
    call_address(kernel, (table, source, target, 0, units))


def _part(given: int, begin: int, end: int, lane: int) -> None:
    """Units begin..end; given are the kernel, its table, source and target."""
    kernel, table, source, target = load(given, 0), load(given, 1), load(given, 2), load(given, 3)
    call_address(kernel, (table, source, target, begin, end))


@cache
def part() -> int:
    """The address of what a thread of a team does."""
    return address_of(_part, PART_ARGUMENTS)
