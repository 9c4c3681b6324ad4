"""Products by tiles: the boxes that our own compiled kernels pack and multiply.

The blocks of the loops follow from the strides: boxes are as deep as a panel of B fits the
first-level cache, as high as the box of A fits the second, and hold whole lines of all
operands. Nothing is searched, so planning a product takes no time to speak of.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from contract.compute import is_complex, item_size
from contract.descriptors import Algo
from contract.heuristics import Cpu, Lie, Tiling
from contract.operators import Operator
from contract.plan import Gett, Kind, Loop, Tiles
from contract.products import (
    STRIDE_A,
    STRIDE_B,
    STRIDE_D,
    Option,
    ProductProblem,
    Stride,
    extent_of,
    loop_table,
    product_step,
    run_length,
)

__all__ = ["PACKED", "SQUARE", "TILED", "packs_as_it_lies", "tile_option"]

# What is multiplied and written, and what is converted to it while it is packed.
TILED = frozenset({"float32", "float64", "complex64", "complex128"})
PACKED = TILED | {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}

SQUARE = 4  # elements that the kernels turn in registers


def tile_option(problem: ProductProblem, cpu: Cpu) -> Option | None:
    """The product by tiles, None where the kernels lack a type or an operator."""
    tiling = cpu.tiling
    if tiling is None or not _is_tiled(problem):
        return None
    turned = _turned(problem)
    loops = loop_table(turned)
    tiles = _tiles(loops, problem.dtype, tiling)
    step = replace(product_step(Gett, turned, loops), tiles=tiles)
    seconds = _seconds(step, tiles, cpu, tiling)
    return Option(Algo.GETT, seconds, "boxes packed in cache, our tiles", (step,), problem.d)


def _is_tiled(problem: ProductProblem) -> bool:
    a, b = problem.a, problem.b
    plain = a.operator is b.operator is Operator.IDENTITY
    types = {a.dtype, b.dtype} <= PACKED and problem.d.dtype == problem.dtype in TILED
    return plain and types


def _turned(problem: ProductProblem) -> ProductProblem:
    """The operands in the order in which D is fastest along a loop of m."""
    fastest = next((mode for mode in problem.d.fastest_first if problem.extents[mode] > 1), None)
    if fastest is None or fastest in problem.a.modes:
        return problem
    return replace(problem, a=problem.b, b=problem.a)


def _tiles(loops: Sequence[Loop], dtype: str, tiling: Tiling) -> Tiles:
    """Boxes, and the order of their places.

    Rows follow D, so that tiles are written as they are. Columns follow D as well, unless more is
    read of B, side by side.
    """
    blocks = _blocks(loops, dtype, tiling)
    m, n, k = ([at for at, x in enumerate(loops) if x.kind is y] for y in (Kind.M, Kind.N, Kind.K))
    by_a = _is_fastest(k, loops, STRIDE_A) or len(m) >= len(n)

    def along(group: Sequence[int], stride: Stride) -> tuple[int, ...]:
        return tuple(sorted(group, key=lambda at: abs(stride(loops[at]))))

    reads, writes = (extent_of([loops[at] for at in group]) for group in (k, m))
    by_b = reads > writes and _is_fastest(n, loops, STRIDE_B)
    rows, columns = along(m, STRIDE_D), along(n, STRIDE_B if by_b else STRIDE_D)
    steps = along(k, STRIDE_A if by_a else STRIDE_B)
    return Tiles(blocks, rows, columns, steps, _splits(loops, blocks, tiling))


def _is_fastest(group: Sequence[int], loops: Sequence[Loop], stride: Stride) -> bool:
    """Whether an operand's fastest loop is one of the group."""
    own = [at for at, loop in enumerate(loops) if stride(loop)]
    return bool(own) and min(own, key=lambda at: abs(stride(loops[at]))) in group


# --- boxes ------------------------------------------------------------------------------------


def _blocks(loops: Sequence[Loop], dtype: str, tiling: Tiling) -> tuple[int, ...]:
    """The extent of a box along each loop."""
    size, rows, columns = item_size(dtype), tiling.rows(dtype), tiling.columns
    line = tiling.line // size
    groups = {kind: [loop for loop in loops if loop.kind is kind] for kind in Kind}
    m, n, k, batch = (extent_of(groups[x]) for x in (Kind.M, Kind.N, Kind.K, Kind.BATCH))

    def side(one: Stride, weight: int, grain: int) -> _Side:
        return _Side(one, weight, grain, min((abs(one(x)) for x in loops if one(x)), default=0))

    a, b = side(STRIDE_A, n, line), side(STRIDE_B, m, line)
    reads, writes = side(STRIDE_A, k, line), side(STRIDE_D, 2 * n, rows)
    deepest = max(tiling.column_bytes // size, 1)
    if _are_crossed(groups[Kind.M], reads, writes):
        deepest = max(deepest // 2, 1)  # a box has room for long runs of both
    along = _grown(groups[Kind.K], (a, b), deepest)
    step_bytes = prod(along) * size
    limits = tiling.box_bytes // step_bytes, tiling.far_bytes // step_bytes
    height, width = _shared(
        (m, n),
        (min(max(limits[0], rows), tiling.longest), min(max(limits[1], columns), tiling.longest)),
        (rows, columns),
        batch,
        tiling.boxes,
    )
    across = {
        Kind.K: along,
        Kind.M: _grown(groups[Kind.M], (writes, reads), height),
        Kind.N: _grown(
            groups[Kind.N], (side(STRIDE_D, 2 * m, SQUARE), side(STRIDE_B, k, line)), width
        ),
    }
    each = {kind: iter(blocks) for kind, blocks in across.items()}
    return tuple(1 if loop.kind is Kind.BATCH else next(each[loop.kind]) for loop in loops)


@dataclass(frozen=True, slots=True)
class _Side:
    """An operand as it is read or written along loops of one kind.

    ``weight`` are its elements in proportion to the other side's; ``grain`` places along its
    fastest loop come before all else; ``fastest`` is its smallest stride along any loop.
    """

    stride: Stride
    weight: int
    grain: int
    fastest: int

    def queue(self, loops: Sequence[Loop]) -> list[Loop]:
        """The loops, nearest in memory first."""
        return sorted(loops, key=lambda loop: abs(self.stride(loop)) or 1 << 62)

    def visits(self, loops: Sequence[Loop], blocks: dict[int, int]) -> float:
        """How often memory is gone to: the elements over those that lie in a row."""
        run = 1
        for loop in self.queue(loops):
            if abs(self.stride(loop)) != self.fastest * run:
                break
            run *= blocks[id(loop)]
            if blocks[id(loop)] < loop.extent:
                break
        return self.weight / run if run > 1 else 0.0


def _shared(
    extents: tuple[int, int],
    limits: tuple[int, int],
    tile: tuple[int, int],
    batch: int,
    wanted: int,
) -> tuple[int, int]:
    """Boxes small enough that there are some for every thread, but of several tiles."""
    m, n = extents
    height, width = min(limits[0], m), min(limits[1], n)
    missing = wanted / (batch * ceil(m / height) * ceil(n / width))
    if missing <= 1:
        return height, width
    if m >= n or m > 16 * tile[0]:
        pieces = ceil(m / height) * missing
        return max(_whole(m / pieces, tile[0]), min(m, 4 * tile[0])), width
    pieces = ceil(n / width) * missing
    # A is packed for each box of columns.
    return height, max(_whole(n / pieces, tile[1]), min(width, 8 * tile[1]))


def _whole(extent: float, grain: int) -> int:
    return ceil(extent / grain) * grain


def _are_crossed(rows: Sequence[Loop], one: _Side, two: _Side) -> bool:
    """Whether both operands are fastest along loops of the rows, but not along the same."""
    firsts = [side.queue(rows)[0] for side in (one, two)] if rows else []
    fastest = [
        abs(side.stride(x)) == side.fastest for side, x in zip((one, two), firsts, strict=False)
    ]
    return len(firsts) == 2 and firsts[0] is not firsts[1] and all(fastest)


def _grown(loops: Sequence[Loop], sides: Sequence[_Side], most: int) -> tuple[int, ...]:
    """Blocks of about ``most`` places, with long runs in the memory that is gone to most.

    Blocks that are not whole are multiples of the sides' grains, or of a square turned in
    registers.
    """
    if extent_of(loops) <= most * 5 // 4:
        return tuple(loop.extent for loop in loops)
    blocks = {id(loop): 1 for loop in loops}
    grain = {id(loop): SQUARE for loop in loops}
    for side in sides:
        first = side.queue(loops)[0]
        if abs(side.stride(first)) != side.fastest:
            continue
        free = most * blocks[id(first)] // prod(blocks.values())
        blocks[id(first)] = max(blocks[id(first)], min(first.extent, side.grain, free))
        grain[id(first)] = max(grain[id(first)], side.grain // 2)
    while _grow(loops, sides, blocks, most):
        pass
    return tuple(_even(x.extent, blocks[id(x)], grain[id(x)]) for x in loops)


def _grow(loops: Sequence[Loop], sides: Sequence[_Side], blocks: dict[int, int], most: int) -> bool:
    """Double one block where it saves most; False if nothing fits."""
    for side in sorted(sides, key=lambda side: -side.visits(loops, blocks)):
        loop = next((x for x in side.queue(loops) if blocks[id(x)] < x.extent), None)
        if loop is None:
            continue
        block = blocks[id(loop)]
        wanted = min(2 * block, loop.extent, most * block // prod(blocks.values()))
        if wanted > block:
            blocks[id(loop)] = wanted
            return True
    return False


def _even(extent: int, block: int, grain: int) -> int:
    """Blocks of about equal extent, multiples of the grain where they are longer."""
    even = ceil(extent / ceil(extent / block))
    return even if even < grain else min(_whole(even, grain), extent)


def _splits(loops: Sequence[Loop], blocks: Sequence[int], tiling: Tiling) -> int:
    """Sums apart where blocks along k are all there is to share among threads."""
    boxes = _boxes(loops, blocks)
    if boxes[Kind.BATCH] * boxes[Kind.M] * boxes[Kind.N] >= tiling.few:
        return 1
    return min(tiling.splits, boxes[Kind.K]) if boxes[Kind.K] >= tiling.splits else 1


def _boxes(loops: Sequence[Loop], blocks: Sequence[int]) -> dict[Kind, int]:
    """The number of boxes along the loops of each kind."""
    boxes = dict.fromkeys(Kind, 1)
    for loop, block in zip(loops, blocks, strict=True):
        boxes[loop.kind] *= ceil(loop.extent / block)
    return boxes


# --- what it costs ----------------------------------------------------------------------------


def _lie(stride: Stride, loops: Sequence[Loop], across: Sequence[int], along: Sequence[int]) -> Lie:
    """How an operand lies to the panels it is packed into."""
    own = [at for at, loop in enumerate(loops) if stride(loop) and loop.extent > 1]
    fastest = min(own, key=lambda at: abs(stride(loops[at])), default=None)
    if fastest is None:
        return Lie.STRAIGHT
    if fastest in (*across[:1], *along[:1]):
        return Lie.STRAIGHT if loops[fastest].extent >= SQUARE else Lie.SINGLE
    return Lie.TURNED if fastest in across else Lie.SINGLE


def packs_as_it_lies(step: Gett) -> bool:
    """Whether both operands are packed in the order in which they lie."""
    tiles = step.tiles
    assert tiles is not None
    sides = ((STRIDE_A, tiles.m), (STRIDE_B, tiles.n))
    return all(_lie(stride, step.loops, order, tiles.k) is Lie.STRAIGHT for stride, order in sides)


def _seconds(step: Gett, tiles: Tiles, cpu: Cpu, tiling: Tiling) -> float:
    """Products of whole tiles, packing A and B, reading memory, and writing D."""
    loops, dtype, size = step.loops, step.dtype, item_size(step.dtype)
    boxes = _boxes(loops, tiles.blocks)
    places = dict.fromkeys(Kind, 1)
    for loop, block in zip(loops, tiles.blocks, strict=True):
        places[loop.kind] *= block
    rows = _whole(places[Kind.M], tiling.rows(dtype) // 2) * boxes[Kind.M]
    columns = _whole(places[Kind.N], tiling.columns // 3) * boxes[Kind.N]
    each, share = (8, tiling.complex_share) if is_complex(dtype) else (2, 1.0)
    batch = step.extent(Kind.BATCH)
    products = each * rows * columns * step.extent(Kind.K) * batch
    count = rows * columns * batch * boxes[Kind.K] / (tiling.rows(dtype) * tiling.columns)
    seconds = tiling.call + products / (share * tiling.flops.of(dtype)) + count * tiling.tile
    for stride, times, order in ((STRIDE_A, boxes[Kind.N], tiles.m), (STRIDE_B, 1, tiles.n)):
        own = [
            (loop, block) for loop, block in zip(loops, tiles.blocks, strict=True) if stride(loop)
        ]
        mine, blocks = [loop for loop, _ in own], [block for _, block in own]
        run = run_length(mine, stride, blocks)
        elements = extent_of(mine) * times
        seconds += cpu.stream_seconds(elements, run, dtype)
        seconds += elements / tiling.packed.rate(_lie(stride, loops, order, tiles.k))
    out = [
        (loop, block)
        for loop, block in zip(loops, tiles.blocks, strict=True)
        if loop.kind is not Kind.K
    ]
    run = run_length([loop for loop, _ in out], STRIDE_D, [block for _, block in out])
    elements = extent_of([loop for loop, _ in out])
    writes = cpu.stream_seconds(2 * elements, run, dtype)
    if run < tiling.rows(dtype) // 2:
        writes += elements / tiling.scattered
    near = elements * size <= cpu.panel_bytes[-1]
    return seconds + writes * (1 if near else boxes[Kind.K])
