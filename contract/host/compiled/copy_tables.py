"""How a copy of strided memory is blocked: the table that compiled code follows.

Copies address bytes: only the width of an element is compiled, not its type.
"""

from collections.abc import Sequence
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np

from contract.execution.compiled_code import Kernel
from contract.host.compiled.visits import ONCE, Visit
from contract.host.resources.views import Array

__all__ = [
    "AHEAD",
    "ALIGNED_RUN",
    "CONVERTED",
    "FAR_AHEAD",
    "FORESEEN_RUN",
    "LANES",
    "LINE",
    "CopyCall",
    "Region",
    "RegionTable",
    "copy_region",
    "is_copied",
]

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
LANES = {1: 16, 2: 16, 4: 16, 8: 8, 16: 4}
# Types with compiled conversions between them
CONVERTED = frozenset(
    {
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *("float32", "float64", "complex64", "complex128"),
    }
)
NOTHING = np.empty(0, np.int64)


# --- what is compiled ---------------------------------------------------------------------------

COPY = Kernel("copies", "copy")  # all units of a region, by one thread
PART = Kernel("copies", "part")  # some of them, by a thread of a team
RUNS = Kernel("copies", "runs")
ORDERED_RUNS = Kernel("copies", "ordered_runs")
TURNED_RUNS = Kernel("copies", "turned_runs")


def element_kernel(source: np.dtype[Any], target: np.dtype[Any]) -> Kernel:
    """Moves single elements, and converts them."""
    return Kernel("copies", "element_kernel", (source.name, target.name))


def tile_kernel(width: int) -> Kernel:
    """Transposes tiles of elements of ``width`` bytes."""
    return Kernel("copies", "tile_kernel", (_KINDS[width].name,))


# --- how a copy is blocked --------------------------------------------------------------------


class _CopyDim(NamedTuple):
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

    def loop(self, dim: _CopyDim) -> Visit:
        """The outer loop."""
        step_s, step_t = self.block * dim.source, self.block * dim.target
        return Visit(self.pieces, step_s, step_t, self.clip * dim.source, self.clip * dim.target)


class Region(NamedTuple):
    """The innermost part of a copy and the loops around it.

    ``kernel`` is called with the table's address, source, target, first and last unit.
    """

    kernel: Kernel
    table: Array  # what the kernel reads
    units: int
    unit_bytes: int


class RegionTable(NamedTuple):
    """What a kernel reads: its numbers; two arrays and Visits of loops lie behind it."""

    run: int  # bytes that lie side by side
    pitch: int  # bytes of a buffer's row; for ordered runs, whether they pass the caches
    first: int  # the size of an array that says where the elements of one place are,
    second: int  # and of another
    loops: int


class CopyCall(NamedTuple):
    """What threads share: the address of a kernel, its RegionTable, and memory."""

    kernel: int
    table: int
    source: int
    target: int


def _table(run: int, pitch: int, first: Array, second: Array, loops: Array) -> Array:
    numbers = RegionTable(run, pitch, first.size, second.size, len(loops))
    parts = numbers, first.ravel(), second, loops.ravel()
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
) -> tuple[list[_CopyDim], int, int]:
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
        dims.append(_CopyDim(n, s, t))
    return _fused(dims), shift_s, shift_t


def _fused(dims: list[_CopyDim]) -> list[_CopyDim]:
    """Dimensions contiguous in source and target made one, by increasing target stride."""
    result: list[_CopyDim] = []
    for dim in sorted(dims, key=lambda dim: (dim.target, abs(dim.source))):
        if result:
            n, s, t = result[-1]
            if dim.source == s * n and dim.target == t * n:
                result[-1] = _CopyDim(n * dim.extent, s, t)
                continue
        result.append(dim)
    return result


def _loop_table(rows: list[Visit], innermost: Visit | None = None) -> tuple[Array, int]:
    """Outer loops, the innermost first, and how many places they visit."""
    rows = [row for row in rows if row.extent > 1] or [ONCE]

    def nearness(row: Visit) -> int:
        return -1 if row == innermost else _CopyDim(*row[:3]).nearness

    return np.array(sorted(rows, key=nearness), np.int64), prod(row.extent for row in rows)


def _byte_region(dims: list[_CopyDim], width: int) -> Region:
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


def _rectangle_region(dims: list[_CopyDim], width: int) -> Region | None:
    """Rectangles of long runs on both sides, or None where there are no such runs."""
    p = next((dim for dim in dims if dim.source == width), None)
    q = next((dim for dim in dims if dim.target == width), None)
    if p is None or q is None or p is q:
        return None
    staged = width * prod(dim.extent for dim in dims) >= STAGED_BYTES
    lanes = LANES.get(width, 1)
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
        return Region(tile_kernel(width), table, units, size)
    return Region(TURNED_RUNS, table, units, size)


def _staged_blocks(
    dims: list[_CopyDim], p: _CopyDim, q: _CopyDim, width: int
) -> tuple[list[_CopyDim], list[_CopyDim], _Blocks, _Blocks]:
    """The dimensions of long runs in source and target, and the blocks of the last one of each.

    Runs in the target reach about TARGET_RUN, as what is written there is read as well; runs in
    the source take what is left of the buffer.
    """
    lanes, enough = LANES.get(width, 1), TARGET_RUN // width
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
    dims: list[_CopyDim], p: _CopyDim, q: _CopyDim, most: tuple[int, int], share: float
) -> tuple[list[_CopyDim], list[_CopyDim]]:
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


def _last_blocks(chain: list[_CopyDim], most: int, lanes: int) -> _Blocks:
    """Blocks of the last dimension of a run, the others staying whole."""
    inner = prod(dim.extent for dim in chain[:-1])
    return _Blocks.of(chain[-1].extent, max(most // inner, 1), lanes if inner == 1 else 1)


def _offsets_of(chain: list[_CopyDim], block: int, side: int) -> Array:
    """Where each element of a run lies on the other side."""
    offsets = np.zeros(1, np.int64)
    for at, dim in enumerate(chain):
        extent = block if at == len(chain) - 1 else dim.extent
        offsets = (np.arange(extent, dtype=np.int64)[:, None] * dim[side] + offsets).ravel()
    return offsets


def _run_region(dims: list[_CopyDim], run: int, rows: list[Visit]) -> Region:
    """Runs of ``run`` bytes, two loops of them at a time."""
    two, rest = _two_loops(dims, max(REGION_BYTES // run, 1))
    loops, units = _loop_table(rows + rest)
    size = run * int(two[0, 0] * two[1, 0])
    return Region(RUNS, _table(run, 0, two, NOTHING, loops), units, size)


def _ordered_region(first: _CopyDim, dims: list[_CopyDim], width: int) -> Region:
    """Runs along ``first`` in the order of the source, a loop of them or a piece at a time."""
    run = width * first.extent
    passes = run >= PASSING_RUN and run * prod(dim.extent for dim in dims) >= PASSING_BYTES
    pieces = _Blocks.of(first.extent, max(PIECE // width, 1), LINE)
    in_target = any(dim.source == 0 for dim in dims)  # little is read, again and again
    ordered = sorted(dims, key=lambda dim: dim.target if in_target else abs(dim.source))
    rows = [pieces.loop(first)]
    nearest = _CopyDim(1, 0, 0)
    if ordered and pieces.pieces == 1:
        nearest, ordered = ordered[0], ordered[1:]
        blocks = _Blocks.of(nearest.extent, max(ROW_BYTES // run, 1))
        nearest, rows = nearest._replace(extent=blocks.block), [blocks.loop(nearest)]
    run = width * pieces.block
    inner = np.array(nearest, np.int64)
    loops = np.array([*rows, *(_Blocks(dim.extent, 1, 0).loop(dim) for dim in ordered)], np.int64)
    units, size = prod(int(loop[0]) for loop in loops), run * nearest.extent
    table = _table(run, int(passes), inner, NOTHING, loops)
    return Region(ORDERED_RUNS, table, units, size)


def _element_region(dims: list[_CopyDim], kinds: tuple[np.dtype[Any], np.dtype[Any]]) -> Region:
    """Single elements, each loaded, converted and stored."""
    width = kinds[1].itemsize
    two, rest = _two_loops(dims, REGION_BYTES // width)
    loops, units = _loop_table(rest)
    size = width * int(two[0, 0] * two[1, 0])
    return Region(element_kernel(*kinds), _table(0, 0, two, NOTHING, loops), units, size)


def _two_loops(dims: list[_CopyDim], most: int) -> tuple[Array, list[Visit]]:
    """The two innermost loops, blocked, the longer one first, and the loops around them.

    They are the fastest of the target and of the source, so that both use whole lines.
    """
    if not dims:
        return np.array([(1, 0, 0), (1, 0, 0)], np.int64), []
    q = dims[0]
    others = sorted(dims[1:], key=lambda dim: abs(dim.source) or 1 << 62)
    p = others[0] if others else _CopyDim(1, 0, 0)
    same = abs(q.source) <= abs(p.source) or not others
    side = most if same else max(int(most**0.5), most // p.extent)
    q_blocks = _Blocks.of(q.extent, side)
    p_blocks = _Blocks.of(p.extent, max(most // q_blocks.block, 1))
    two = [(q_blocks.block, q.source, q.target), (p_blocks.block, p.source, p.target)]
    if p_blocks.block > 4 * q_blocks.block:
        two.reverse()
    rest = [_Blocks(dim.extent, 1, 0).loop(dim) for dim in dims[1:] if dim is not p]
    return np.array(two, np.int64), [q_blocks.loop(q), p_blocks.loop(p), *rest]
