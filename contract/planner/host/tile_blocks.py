"""The boxes of products by tiles: the block of every loop, for caches, lines and threads.

The blocks follow from the strides: boxes are as deep as a panel of B fits the first-level cache,
as high as the box of A fits the second, and hold whole lines of all operands. Nothing is
searched, so planning a product takes no time to speak of.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from contract.descriptors.compute_types import item_size
from contract.machines.cpu import Tiling
from contract.plan.products import STRIDE_A, STRIDE_B, STRIDE_D, Stride, extent_of, run_length
from contract.plan.steps import Kind, Loop

__all__ = ["SQUARE", "blocks_of", "whole"]

SQUARE = 4  # elements that the kernels turn in registers
TALL, WIDE = 4, 8  # tiles of rows and of columns that a box has at least, if it can


def blocks_of(
    loops: Sequence[Loop], dtype: str, tiling: Tiling, pieces: int = 1
) -> tuple[int, ...]:
    """The extent of a box along each loop: batches first, then steps, rows and columns.

    Boxes of a few ``pieces`` of the steps have room for longer rows and columns.
    """
    size, rows, columns = item_size(dtype), tiling.rows(dtype), tiling.columns
    line = tiling.line // size
    groups = {kind: [loop for loop in loops if loop.kind is kind] for kind in Kind}
    m, n, k = (extent_of(groups[x]) for x in (Kind.M, Kind.N, Kind.K))
    blocks: dict[Loop, int] = {}

    def side(one: Stride, weight: int, grain: int) -> _Side:
        nearest, run = _run(one, loops, blocks)
        return _Side(one, weight, ceil(grain / run), nearest * run)

    def a(weight: int) -> _Side:
        return side(STRIDE_A, weight, line)

    def b(weight: int) -> _Side:
        return side(STRIDE_B, weight, line)

    def d(weight: int, grain: int) -> _Side:
        return side(STRIDE_D, 2 * weight, grain)

    blocks |= _batches(groups[Kind.BATCH], (a(m * k), b(k * n), d(m * n, line)), line)
    together = prod(blocks.values())
    least = together * min(m, TALL * rows), together * min(n, WIDE * columns)
    most = tiling.column_bytes, tiling.box_bytes // least[0], tiling.far_bytes // least[1]
    deepest = max(min(most) // size, 1)
    if _are_crossed(groups[Kind.M], a(k), d(n, rows)):
        deepest = max(deepest // 2, 1)  # a box has room for long runs of both
    deepest = max(deepest // pieces, 1)
    steps = _grown(groups[Kind.K], (a(n), b(m)), deepest)
    step_bytes = prod(steps.values()) * size * together
    height = min(max(tiling.box_bytes // step_bytes, rows), tiling.longest, m)
    width = min(max(tiling.far_bytes // step_bytes, columns), tiling.longest, n)
    boxes = prod(ceil(loop.extent / block) for loop, block in blocks.items())
    boxes *= ceil(m / height) * ceil(n / width)
    height, width = _shared((m, n), (height, width), (rows, columns), tiling.boxes / boxes)
    blocks |= steps
    blocks |= _grown(groups[Kind.M], (d(n, rows), a(k)), height)
    blocks |= _grown(groups[Kind.N], (d(m, SQUARE), b(k)), width)
    return tuple(blocks[loop] for loop in loops)


@dataclass(frozen=True, slots=True)
class _Side:
    """An operand as it is read or written along loops of one kind.

    ``weight`` are its elements in proportion to the other side's; ``grain`` places along its
    fastest loop come before all else; ``beside`` is the stride of what lies beside the places that
    a box has already.
    """

    stride: Stride
    weight: int
    grain: int
    beside: int

    def queue(self, loops: Sequence[Loop]) -> list[Loop]:
        """The loops, nearest in memory first."""
        return sorted(loops, key=lambda loop: abs(self.stride(loop)) or 1 << 62)

    def visits(self, loops: Sequence[Loop], blocks: Mapping[Loop, int]) -> float:
        """How often memory is gone to: the elements over those that lie in a row."""
        run = 1
        for loop in self.queue(loops):
            if abs(self.stride(loop)) != self.beside * run:
                break
            run *= blocks[loop]
            if blocks[loop] < loop.extent:
                break
        return self.weight / run if run > 1 else 0.0


def _run(stride: Stride, loops: Sequence[Loop], blocks: Mapping[Loop, int]) -> tuple[int, int]:
    """An operand's smallest stride, and how many of these blocks' places lie in a row so."""
    nearest = min((abs(stride(loop)) for loop in loops if stride(loop)), default=0)
    return nearest, run_length([*blocks], stride, [*blocks.values()])


def _batches(loops: Sequence[Loop], sides: Sequence[_Side], most: int) -> dict[Loop, int]:
    """Blocks of at most about ``most`` batches: those that lie side by side in an operand."""
    blocks = dict.fromkeys(loops, 1)
    for side in sorted(sides, key=lambda side: -side.weight):
        beside = side.beside
        for loop in side.queue(loops):
            if abs(side.stride(loop)) != beside:
                break
            free = max(most * blocks[loop] // prod(blocks.values()), blocks[loop])
            blocks[loop] = _even(loop.extent, min(loop.extent, free), SQUARE)
            beside *= loop.extent
    return blocks


def _shared(
    extents: tuple[int, int],
    limits: tuple[int, int],
    tile: tuple[int, int],
    missing: float,
) -> tuple[int, int]:
    """Rows and columns of boxes, ``missing`` times as many, but of several tiles each.

    All are rows and columns: of the product, of the largest box, of a tile.
    """
    (m, n), (height, width) = extents, limits
    if missing <= 1:
        return height, width
    if m >= n or m > 16 * tile[0]:
        pieces = ceil(m / height) * missing
        return max(whole(m / pieces, tile[0]), min(m, TALL * tile[0])), width
    pieces = ceil(n / width) * missing
    # A is packed for each box of columns.
    return height, max(whole(n / pieces, tile[1]), min(width, WIDE * tile[1]))


def whole(extent: float, grain: int) -> int:
    """The least multiple of the grain that is no less."""
    return ceil(extent / grain) * grain


def _are_crossed(rows: Sequence[Loop], one: _Side, two: _Side) -> bool:
    """Whether both operands are fastest along loops of the rows, but not along the same."""
    firsts = [side.queue(rows)[0] for side in (one, two)] if rows else []
    fastest = [
        abs(side.stride(x)) == side.beside for side, x in zip((one, two), firsts, strict=False)
    ]
    return len(firsts) == 2 and firsts[0] is not firsts[1] and all(fastest)


def _grown(loops: Sequence[Loop], sides: Sequence[_Side], most: int) -> dict[Loop, int]:
    """Blocks of about ``most`` places, with long runs in the memory that is gone to most.

    Blocks that are not whole are multiples of the sides' grains, or of a square turned in
    registers.
    """
    if extent_of(loops) <= most * 5 // 4:
        return {loop: loop.extent for loop in loops}
    blocks = dict.fromkeys(loops, 1)
    grain = dict.fromkeys(loops, SQUARE)
    for side in sides:
        first = side.queue(loops)[0]
        if abs(side.stride(first)) != side.beside:
            continue
        free = most * blocks[first] // prod(blocks.values())
        blocks[first] = max(blocks[first], min(first.extent, side.grain, free))
        grain[first] = max(grain[first], side.grain // 2)
    while _grow(loops, sides, blocks, most):
        pass
    return {loop: _even(loop.extent, blocks[loop], grain[loop]) for loop in loops}


def _grow(
    loops: Sequence[Loop], sides: Sequence[_Side], blocks: dict[Loop, int], most: int
) -> bool:
    """Double one block where it saves most; False if nothing fits."""
    for side in sorted(sides, key=lambda side: -side.visits(loops, blocks)):
        loop = next((x for x in side.queue(loops) if blocks[x] < x.extent), None)
        if loop is None:
            continue
        block = blocks[loop]
        wanted = min(2 * block, loop.extent, most * block // prod(blocks.values()))
        if wanted > block:
            blocks[loop] = wanted
            return True
    return False


def _even(extent: int, block: int, grain: int) -> int:
    """Blocks of about equal extent, multiples of the grain where they are longer."""
    even = ceil(extent / ceil(extent / block))
    return even if even < grain else min(whole(even, grain), extent)
