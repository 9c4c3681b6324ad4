"""Products by tiles: boxes that our own compiled kernels pack and multiply, and what they cost."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, prod

from contract.descriptors.compute_types import is_complex, item_size
from contract.descriptors.operations import Algo
from contract.descriptors.operators import Operator
from contract.machines.cpu import Cpu, Lie, Tiling
from contract.plan.products import (
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
from contract.plan.steps import Gett, Kind, Loop, Tiles
from contract.planner.host.tile_blocks import SQUARE, blocks_of, whole

__all__ = ["PACKED", "TILED", "least_by_tiles", "packs_as_it_lies", "tile_options"]

# What is multiplied and written, and what is converted to it while it is packed.
TILED = frozenset({"float32", "float64", "complex64", "complex128"})
PACKED = TILED | {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}

DEPTHS = 1, 2, 4, 8  # times as many boxes along k
CERTAIN = 1.05  # times what shallower boxes cost, for fewer along k are the rule
# Whether all of A stays packed, and what is said of it.
WAYS = (False, "boxes packed in cache, our tiles"), (True, "A packed once, our tiles")
SUM_SHARE = 4  # all sums apart are that many times smaller than what is read


def least_by_tiles(products: int, dtype: str, cpu: Cpu) -> float:
    """What so many multiply-adds by tiles take at least: whole tiles, nothing read or written."""
    tiling = cpu.tiling
    return inf if tiling is None else tiling.call + _multiplying(products, dtype, tiling)


def _multiplying(products: int, dtype: str, tiling: Tiling) -> float:
    each, share = (8, tiling.complex_share) if is_complex(dtype) else (2, 1.0)
    return each * products / (share * tiling.flops.of(dtype))


def tile_options(problem: ProductProblem, cpu: Cpu) -> list[Option]:
    """The product by tiles; where all of A fits a cache also with that packed once.

    Empty where the kernels lack a type or an operator.
    """
    tiling = cpu.tiling
    if tiling is None or not _is_tiled(problem):
        return []
    turned = _turned(problem)
    loops = loop_table(turned)
    product = product_step(Gett, turned, loops)
    found = []
    for keeps, reason in WAYS:
        depths = _depths(loops, problem.dtype, cpu, tiling, keeps)
        steps = [replace(product, blocking=tiles) for tiles in depths]
        if steps:
            costs = [(_Cost(step, cpu, tiling).seconds, step) for step in steps]
            deepest, best = costs[0], min(costs, key=lambda cost: cost[0])
            seconds, step = best if best[0] * CERTAIN <= deepest[0] else deepest
            found.append(Option(Algo.GETT, seconds, reason, (step,), problem.d))
    return found


def _depths(
    loops: Sequence[Loop], dtype: str, cpu: Cpu, tiling: Tiling, keeps: bool
) -> Iterator[Tiles]:
    """Boxes as deep as caches allow, and shallower ones that have room for longer runs.

    These go through D more often, which must therefore stay in cache. With ``keeps`` there are
    none where all of A does not fit, or is packed once anyway.
    """
    known: set[tuple[int, ...]] = set()
    own = tiling.keeping() if keeps else tiling
    of_d = extent_of([loop for loop in loops if loop.kind is not Kind.K]) * item_size(dtype)
    for pieces in DEPTHS if of_d <= cpu.panel_bytes[-1] else DEPTHS[:1]:
        tiles = _tiles(loops, dtype, own, pieces)
        if keeps and not _keeps(tiles, loops, dtype, tiling):
            continue
        if tiles.blocks not in known:
            known.add(tiles.blocks)
            yield replace(tiles, keeps=keeps)


def _keeps(tiles: Tiles, loops: Sequence[Loop], dtype: str, tiling: Tiling) -> bool:
    """Whether all of A fits, and would be packed again for other columns."""
    batches = prod(tiles.blocks[at] for at in tiles.batch)
    of_a = batches * extent_of([loop for loop in loops if loop.kind in (Kind.M, Kind.K)])
    fits = of_a * item_size(dtype) <= tiling.kept_bytes
    return fits and _boxes(loops, tiles.blocks)[Kind.N] > 1


def _is_tiled(problem: ProductProblem) -> bool:
    a, b = problem.a, problem.b
    plain = a.operator is b.operator is Operator.IDENTITY
    types = {a.dtype, b.dtype} <= PACKED and problem.d.dtype == problem.dtype in TILED
    return plain and types


def _turned(problem: ProductProblem) -> ProductProblem:
    """The operands in the order in which D, its batches aside, is fastest along a loop of m."""
    a, b = problem.a, problem.b
    own = (x for x in problem.d.fastest_first if (x in a.modes) != (x in b.modes))
    fastest = next((mode for mode in own if problem.extents[mode] > 1), None)
    return problem if fastest is None or fastest in a.modes else problem._replace(a=b, b=a)


def _tiles(loops: Sequence[Loop], dtype: str, tiling: Tiling, pieces: int) -> Tiles:
    """Boxes, and the order of their places.

    Rows follow D, so that tiles are written as they are. Columns follow D as well, unless more is
    read of B, side by side.
    """
    blocks = blocks_of(loops, dtype, tiling, pieces)
    batch, m, n, k = ([at for at, x in enumerate(loops) if x.kind is y] for y in Kind)
    by_a = _is_fastest(k, loops, STRIDE_A) or len(m) >= len(n)

    def along(group: Sequence[int], stride: Stride) -> tuple[int, ...]:
        return tuple(sorted(group, key=lambda at: abs(stride(loops[at]))))

    reads, writes = (extent_of([loops[at] for at in group]) for group in (k, m))
    by_b = reads > writes and _is_fastest(n, loops, STRIDE_B)
    rows, columns = along(m, STRIDE_D), along(n, STRIDE_B if by_b else STRIDE_D)
    steps = along(k, STRIDE_A if by_a else STRIDE_B)
    together = tuple(sorted(batch, key=lambda at: -blocks[at]))
    return Tiles(blocks, together, rows, columns, steps, _splits(loops, blocks, tiling))


def _is_fastest(group: Sequence[int], loops: Sequence[Loop], stride: Stride) -> bool:
    """Whether an operand's fastest loop is one of the group."""
    own = [at for at, loop in enumerate(loops) if stride(loop)]
    return bool(own) and min(own, key=lambda at: abs(stride(loops[at]))) in group


def _splits(loops: Sequence[Loop], blocks: Sequence[int], tiling: Tiling) -> int:
    """Sums apart where blocks along k are all there is to share among threads."""
    boxes = _boxes(loops, blocks)
    if boxes[Kind.BATCH] * boxes[Kind.M] * boxes[Kind.N] >= tiling.few:
        return 1
    splits = min(tiling.splits, boxes[Kind.K])
    of_a, of_b, of_d = (
        extent_of([loop for loop in loops if stride(loop)])
        for stride in (STRIDE_A, STRIDE_B, STRIDE_D)
    )
    return splits if splits * of_d * SUM_SHARE <= of_a + of_b else 1


def _boxes(loops: Sequence[Loop], blocks: Sequence[int]) -> dict[Kind, int]:
    """The number of boxes along the loops of each kind."""
    boxes = dict.fromkeys(Kind, 1)
    for loop, block in zip(loops, blocks, strict=True):
        boxes[loop.kind] *= ceil(loop.extent / block)
    return boxes


# --- what it costs ----------------------------------------------------------------------------


def _lie(stride: Stride, step: Gett, tiles: Tiles, across: Sequence[int]) -> Lie:
    """How an operand lies to the panels it is packed into, or to the tiles it is written from."""
    loops = step.loops
    own = [at for at, loop in enumerate(loops) if stride(loop) and loop.extent > 1]
    fastest = min(own, key=lambda at: abs(stride(loops[at])), default=None)
    if fastest is None:
        return Lie.STRAIGHT
    if tiles.blocks[fastest] < SQUARE:
        return Lie.SINGLE
    if fastest in (*across[:1], *tiles.k[:1]):
        return Lie.STRAIGHT
    return Lie.TURNED if fastest in (*across, *tiles.batch) else Lie.SINGLE


def packs_as_it_lies(step: Gett) -> bool:
    """Whether both operands are packed in the order in which they lie."""
    tiles = step.blocking
    assert isinstance(tiles, Tiles)
    sides = ((STRIDE_A, tiles.m), (STRIDE_B, tiles.n))
    return all(_lie(stride, step, tiles, order) is Lie.STRAIGHT for stride, order in sides)


@dataclass(frozen=True, slots=True)
class _Cost:
    """What a product by tiles takes on a processor."""

    step: Gett
    cpu: Cpu
    tiling: Tiling

    @property
    def tiles(self) -> Tiles:
        assert isinstance(self.step.blocking, Tiles)
        return self.step.blocking

    @property
    def seconds(self) -> float:
        """Products of whole tiles, packing A and B, and writing D."""
        boxes, tiling = _boxes(self.step.loops, self.tiles.blocks), self.tiling
        lanes, grain = tiling.rows(self.step.dtype) // 2, tiling.columns // 3
        packings = boxes[Kind.N]
        if self.tiles.keeps:
            packings = min(packings, tiling.keepers)
        packing = self._packing(STRIDE_A, self.tiles.m, lanes) * packings
        packing += self._packing(STRIDE_B, self.tiles.n, grain)
        batches = self.step.extent(Kind.BATCH) * prod(
            boxes[each] for each in (Kind.M, Kind.N, Kind.K)
        )
        seconds = tiling.call + batches * tiling.batch
        return seconds + self._products(boxes) + packing + self._writing(boxes)

    def _products(self, boxes: Mapping[Kind, int]) -> float:
        """The products of all boxes, each rounded up to narrow tiles."""
        step, tiling = self.step, self.tiling
        places = dict.fromkeys(Kind, 1)
        for loop, block in zip(step.loops, self.tiles.blocks, strict=True):
            places[loop.kind] *= block
        tall, wide = tiling.rows(step.dtype), tiling.columns
        rows = whole(places[Kind.M], tall // 2) * boxes[Kind.M]
        columns = whole(places[Kind.N], wide // 3) * boxes[Kind.N]
        elements = rows * columns * step.extent(Kind.BATCH)
        products = elements * step.extent(Kind.K)
        count = elements * boxes[Kind.K] / (tall * wide)
        return _multiplying(products, step.dtype, tiling) + count * tiling.tile

    def _packing(self, stride: Stride, across: Sequence[int], grain: int) -> float:
        """Reading an operand once, into panels of these loops, filled up to whole grains."""
        elements, run = self._lines(stride)
        rate = self.tiling.packed.rate(_lie(stride, self.step, self.tiles, across))
        places = prod(self.tiles.blocks[at] for at in across)
        packed = elements * whole(places, grain) / places
        return self.cpu.stream_seconds(elements, run, self.step.dtype) + packed / rate

    def _writing(self, boxes: Mapping[Kind, int]) -> float:
        """Writing D, once more for each further box along k."""
        dtype, tiling = self.step.dtype, self.tiling
        elements, run = self._lines(STRIDE_D)
        seconds = 2 * self.cpu.stream_seconds(elements, run, dtype, writes=True)
        if _lie(STRIDE_D, self.step, self.tiles, self.tiles.m) is Lie.TURNED:
            seconds += elements / tiling.packed.turned
        elif run < tiling.rows(dtype) // 2:
            seconds += elements / tiling.scattered
        return seconds * boxes[Kind.K]

    def _lines(self, stride: Stride) -> tuple[int, int]:
        """The elements of an operand, and how many of a box lie in a row."""
        pairs = zip(self.step.loops, self.tiles.blocks, strict=True)
        own = {loop: block for loop, block in pairs if stride(loop)}
        return extent_of([*own]), run_length([*own], stride, [*own.values()])
