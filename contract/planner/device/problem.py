"""A product as the kernels see it: four tensors over flattened loops, and how each is accessed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, gcd, prod
from typing import NamedTuple

from contract.descriptors.compute_types import ComputeType, is_complex, item_size
from contract.descriptors.layout import offset_bounds
from contract.descriptors.operators import Operator
from contract.machines.gpu import Architecture
from contract.machines.gpu_kernels import CoreTile, TensorTile, Tile
from contract.machines.gpu_tiles import MOST_SIDE, Access, Extents, Stores, Workload
from contract.machines.tensor_cores import arithmetic
from contract.plan.steps import Kind, Loop, Plan, Product, SlotKind
from contract.planner.device.launch import Pointer, PointerKind
from contract.planner.device.loops import NARROW, Dimension, fused
from contract.planner.device.names import operator_name, type_name

__all__ = [
    "NOTHING",
    "A",
    "B",
    "C",
    "D",
    "Held",
    "Problem",
    "Tensor",
    "Written",
    "addend_type",
    "by_stride",
    "exchanged",
    "factor_type",
    "held_by",
    "oriented",
    "problem_of",
    "vector_width",
    "written",
]

D, A, B, C = range(4)  # the order of strides in a loop
Leader = tuple[int, int]  # a tensor that lies side by side along a loop, and its item size
Chunks = tuple[list[int], list[int]]  # of two loops, the best first
VECTOR_BYTES = 16
SECTOR_BYTES = 32  # what memory moves at least: shorter runs waste the rest
LINE_BYTES = 128  # what DRAM writes at once
IN_PARTS = 0.4  # of what is left of a line: what it costs to write whole sectors of it alone
LEAST_COLUMNS = 16  # of a tile that is not for the smallest products
MANY_K = 1024  # a sector of D in parts takes as long as this many multiply-adds of 16 bits
WARP = 32
MOST_CHUNK = 32  # indices; a loop without a divisor up to here is not cut
LEAST_RUN = 8  # elements of a factor side by side, where D's run is cut, too
NOTHING = Dimension(1, (0, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the product; ``alignment`` is what its address is a multiple of (bytes)."""

    pointer: Pointer
    dtype: str
    alignment: int
    operator: Operator = Operator.IDENTITY

    @property
    def size(self) -> int:
        return item_size(self.dtype)


@dataclass(frozen=True, slots=True)
class Problem:
    """D = [alpha *] A B [+ beta * op(C)]; loops of a kind are flattened, the first fastest."""

    d: Tensor
    a: Tensor
    b: Tensor
    c: Tensor | None
    l: tuple[Dimension, ...]  # noqa: E741 - the loop's name
    m: tuple[Dimension, ...]
    n: tuple[Dimension, ...]
    k: tuple[Dimension, ...]
    dtype: str
    scaled: bool
    compute: ComputeType | None = None

    @property
    def loops(self) -> tuple[Dimension, ...]:
        return (*self.l, *self.m, *self.n, *self.k)

    @property
    def extents(self) -> Extents:
        return Extents(*(prod(d.extent for d in x) for x in (self.l, self.m, self.n, self.k)))

    def workload(self, architecture: Architecture) -> Workload:
        """What the product asks of a machine."""
        a, b, c = self.a, self.b, self.c
        return Workload(
            self.extents,
            a=_factor_access(self, a, A, self.m),
            b=_factor_access(self, b, B, self.n),
            d=_access(self, self.d, D, self.m),
            stores=partial(_stores, self),
            c=None if c is None else _access(self, c, C, self.m),
            dtype=self.dtype,
            arithmetic=arithmetic(
                (a.dtype, b.dtype),
                self.dtype,
                self.compute,
                (a.operator, b.operator),
                architecture,
            ),
        )

    @property
    def is_wide(self) -> bool:
        """Whether an offset or a flattened index does not fit 31 bits."""
        if any(count >= NARROW for count in _counts(self.extents)):
            return True
        sizes = [each.extent for each in self.loops]
        bounds = (offset_bounds(sizes, [d.strides[t] for d in self.loops]) for t in (D, A, B, C))
        return any(high - low >= NARROW for low, high in bounds)


def _counts(extents: Extents) -> tuple[int, ...]:
    """The flattened extents, and how many elements D has."""
    l, m, n, k = extents.l, extents.m, extents.n, extents.k  # noqa: E741
    return l, m, n, k, l * m * n


class Held(NamedTuple):
    """What a slot holds: the data type, and what its address is a multiple of (bytes)."""

    dtype: str
    alignment: int


def held_by(plan: Plan, step: Product) -> dict[int, Held]:
    """What the slots of a step hold; temporaries begin where every access is aligned."""
    found = {}
    for slot in (step.a, step.b, step.d, *(() if step.c is None else (step.c,))):
        held = plan.slots[slot]
        placed = held.kind is SlotKind.TEMPORARY
        alignment = VECTOR_BYTES if placed else held.tensor.alignment
        found[slot] = Held(held.tensor.dtype, alignment)
    return found


def problem_of(step: Product, held: Mapping[int, Held]) -> Problem:
    """The product of a step, its loops in the order in which a kernel does best to run them."""
    return _ordered(oriented(step, held))


def oriented(step: Product, held: Mapping[int, Held]) -> Problem:
    """The product of a step: A has the mode in which elements of D lie side by side.

    D is written along it.
    """
    by_kind: dict[Kind, list[Dimension]] = {kind: [] for kind in Kind}
    for loop in step.loops:
        by_kind[_kind(loop)].append(Dimension(loop.extent, (loop.d, loop.a, loop.b, loop.c)))
    l, m, n = (tuple(fused(by_kind[kind])) for kind in (Kind.BATCH, Kind.M, Kind.N))  # noqa: E741
    addend = None if step.c is None else _tensor(held, step.c, step.operator_c, step.dtype)
    problem = Problem(
        d=_tensor(held, step.d, Operator.IDENTITY, step.dtype),
        a=_tensor(held, step.a, step.operator_a, step.dtype),
        b=_tensor(held, step.b, step.operator_b, step.dtype),
        c=addend,
        l=l,
        m=m,
        n=n,
        k=tuple(each for each in by_kind[Kind.K] if each.extent != 1),
        dtype=step.dtype,
        scaled=step.scaled,
        compute=step.compute,
    )
    return exchanged(problem) if _nearest(n, D) < _nearest(m, D) else problem


def _kind(loop: Loop) -> Kind:
    """A batch loop that one factor lacks belongs to the rows or columns of the other."""
    if loop.kind is not Kind.BATCH or bool(loop.a) == bool(loop.b):
        return loop.kind
    return Kind.M if loop.a else Kind.N


def _tensor(held: Mapping[int, Held], slot: int, operator: Operator, dtype: str) -> Tensor:
    conjugates = operator is Operator.CONJ and not is_complex(dtype)
    return Tensor(
        Pointer(PointerKind.SLOT, slot), *held[slot], Operator.IDENTITY if conjugates else operator
    )


def exchanged(problem: Problem) -> Problem:
    """The same with the factors, and m and n, exchanged."""
    l, m, n, k = (  # noqa: E741
        tuple(replace(each, strides=_swapped(each.strides)) for each in loops)
        for loops in (problem.l, problem.n, problem.m, problem.k)
    )
    return replace(problem, a=problem.b, b=problem.a, l=l, m=m, n=n, k=k)


def _swapped(strides: Sequence[int]) -> tuple[int, ...]:
    return strides[D], strides[B], strides[A], strides[C]


# --- the order of loops -----------------------------------------------------------------------


def _nearest(loops: Iterable[Dimension], tensor: int) -> float:
    """The smallest step of a tensor along these loops."""
    steps = (abs(each.strides[tensor]) for each in loops if each.strides[tensor])
    return min(steps, default=float("inf"))


def _ordered(problem: Problem) -> Problem:
    """Every tensor's nearest loops first; where two want to be, both are cut and interleaved.

    Where D is larger than a factor its runs are as long as can be, else factor and D share.
    """
    a_first = _nearest(problem.m, A) <= _nearest(problem.k, A)
    b_first = _nearest(problem.n, B) <= _nearest(problem.k, B)
    a, b, d = (A, problem.a.size), (B, problem.b.size), (D, problem.d.size)
    m, n, k = problem.extents.m, problem.extents.n, problem.extents.k
    above_a, above_b = n * d[1] >= k * a[1], m * d[1] >= k * b[1]
    joins = not b_first or (above_b and _ends_in_a_line(problem))
    inner = by_stride(problem.k, B, A) if n > m else by_stride(problem.k, A, B)
    leaders = _leaders_of_k(problem, [a] * (not a_first), [b] * (not b_first))
    return replace(
        problem,
        m=_led(problem.m, [a] * a_first + [d], _long_results if above_a else _whole_sectors),
        n=_led(problem.n, [b] * b_first + [d] * joins, _long_results),
        k=_led(inner, leaders, _short_runs),
    )


def _ends_in_a_line(problem: Problem) -> bool:
    """Whether rows that lie side by side in D end inside a line of it, within a tile."""
    run = 1
    for each in by_stride(problem.m, D):
        if abs(each.strides[D]) != run:
            break
        run *= each.extent
    return run <= MOST_SIDE and run * problem.d.size % LINE_BYTES > 0


def _leaders_of_k(problem: Problem, a: Sequence[Leader], b: Sequence[Leader]) -> list[Leader]:
    """The factors that lie side by side along k; one that is much smaller gives way.

    What it is read for each element used, a sector, is still less than the other factor.
    """
    m, n = problem.extents.m, problem.extents.n
    if a and b and m * SECTOR_BYTES <= n * problem.b.size:
        return list(b)
    if a and b and n * SECTOR_BYTES <= m * problem.a.size:
        return list(a)
    return [*a, *b]


def by_stride(loops: Sequence[Dimension], *tensors: int) -> tuple[Dimension, ...]:
    return tuple(sorted(loops, key=lambda each: [abs(each.strides[t]) for t in tensors]))


def _led(
    loops: tuple[Dimension, ...],
    leaders: Sequence[Leader],
    chunks_of: Callable[[int, int], Chunks],
) -> tuple[Dimension, ...]:
    """The loops nearest in the leaders first; of two, chunks are taken in turn."""
    first = list(dict.fromkeys(_leader(loops, tensor) for tensor, _ in leaders if loops))
    rest = tuple(each for each in loops if each not in first)
    if len(first) < 2:
        return (*first, *rest)
    (_, size), (_, other) = leaders
    cut = (_cut(loop, each) for loop, each in zip(first, chunks_of(size, other), strict=True))
    inner, outer = zip(*cut, strict=True)
    return tuple(each for each in (*inner, *outer) if each.extent > 1) + rest


def _leader(loops: Iterable[Dimension], tensor: int) -> Dimension:
    """The loop with the smallest step of the tensor; one in which it stands still comes last."""
    return min(loops, key=lambda each: (not each.strides[tensor], abs(each.strides[tensor])))


# Two loops are cut into chunks that are taken in turn. An access of a warp goes on beyond the
# second loop's chunk, but it moves LINE_BYTES at once: what lies further apart reads a sector
# twice. What is best was measured on an H100.


def _long_results(factor: int, result: int) -> Chunks:
    """Where most of the bytes are D's: its runs are the longest, the factor's a vector."""
    return _powers(factor, VECTOR_BYTES // factor), _chunks(result, longest=True)


def _whole_sectors(factor: int, result: int) -> Chunks:
    """Where most are the factor's: whole sectors of both."""
    run, least = max(LEAST_RUN, SECTOR_BYTES // factor), 2 * SECTOR_BYTES // result
    return _powers(factor, run), sorted(_chunks(result), key=lambda n: n < least)


def _short_runs(first: int, second: int) -> Chunks:
    """Two factors along k, of which a step has few: a vector and a sector."""
    return _powers(first, VECTOR_BYTES // first), _chunks(second)


def _powers(size: int, wanted: int) -> list[int]:
    """The chunk ``wanted``, sectors, a vector, and what there is.

    They are powers of 2, for so many rows are between neighbours of the other tensor.
    """
    sector = max(1, SECTOR_BYTES // size)
    powers = [n for n in range(sector, MOST_CHUNK + 1) if n & (n - 1) == 0]
    return [max(1, wanted), *powers, max(1, VECTOR_BYTES // size), *_chunks(size)]


def _chunks(size: int, longest: bool = False) -> list[int]:
    """Chunks of a sector or more, those of whole vectors first: the shortest or ``longest``."""
    sector, vector = max(1, SECTOR_BYTES // size), max(1, VECTOR_BYTES // size)
    chunks = sorted(range(sector, MOST_CHUNK + 1), reverse=longest)
    return sorted(chunks, key=lambda n: n % vector > 0)


def _cut(loop: Dimension, chunks: Iterable[int]) -> tuple[Dimension, Dimension]:
    """The loop as two, the inner one the first of ``chunks`` that serves; whole where none does."""
    inner = next((n for n in chunks if loop.extent % n == 0), loop.extent)
    outer = loop.extent // inner
    far = tuple(stride * inner for stride in loop.strides)
    return Dimension(inner, loop.strides), Dimension(outer, far)


# --- accesses ---------------------------------------------------------------------------------


def vector_width(
    problem: Problem, tensor: Tensor, at: int, along: Sequence[Dimension], most: int
) -> int:
    """Elements side by side along the first of the loops ``along`` that one access may move."""
    first = along[0] if along else NOTHING
    if first.strides[at] != 1:
        return 1
    others = [each.strides[at] for each in problem.loops if each is not first]
    width = min(most, VECTOR_BYTES // tensor.size)
    while width > 1 and not (
        first.extent % width == 0
        and all(stride % width == 0 for stride in others)
        and tensor.alignment % (width * tensor.size) == 0
    ):
        width //= 2
    return width


def _factor_access(problem: Problem, tensor: Tensor, at: int, loops: Sequence[Dimension]) -> Access:
    """A or B, read along the tile or along k."""
    return _access(problem, tensor, at, loops if _is_along_tile(problem, at, loops) else problem.k)


def _is_along_tile(problem: Problem, at: int, loops: Sequence[Dimension]) -> bool:
    return _nearest(loops, at) <= _nearest(problem.k, at)


def _access(problem: Problem, tensor: Tensor, at: int, along: Sequence[Dimension]) -> Access:
    width = vector_width(problem, tensor, at, along, VECTOR_BYTES)
    lanes = min(WARP * width, LINE_BYTES // tensor.size)  # elements that move at once
    own = [each for each in problem.loops if each.strides[at]]
    sides = [1 << i for i in range(MOST_SIDE.bit_length())]
    elements = prod(each.extent for each in own)
    return Access(
        tensor.size,
        width,
        along is problem.k,
        tuple(_inflation(tensor, at, own, _first(along, min(side, lanes))) for side in sides),
        tuple(_lines(tensor, at, own, _taken(problem, side)) for side in sides if at in (D, C)),
        round(elements * tensor.size * _inflation(tensor, at, own, own)),
    )


def _first(loops: Iterable[Dimension], count: int) -> list[Dimension]:
    """The first ``count`` indices of flattened loops, as loops."""
    found = []
    for each in loops:
        found.append(Dimension(min(each.extent, count), each.strides))
        count = ceil(count / max(each.extent, 1))
        if count == 1:
            break
    return found


def _taken(problem: Problem, rows: int) -> list[Dimension]:
    """What a tile of so many rows has of D: of its columns a few."""
    return [*_first(problem.m, rows), *_first(problem.n, LEAST_COLUMNS)]


def _lines(tensor: Tensor, at: int, own: Sequence[Dimension], taken: Sequence[Dimension]) -> float:
    """Bytes of lines for each byte of D that a tile writes; lines of whole sectors cost less.

    Measured on an H100: parts of sectors take as long as the whole line.
    """
    lines = _inflation(tensor, at, own, taken, LINE_BYTES)
    if _inflation(tensor, at, own, taken) > 1:
        return lines
    return 1 + IN_PARTS * (lines - 1)


def _inflation(
    tensor: Tensor,
    at: int,
    own: Sequence[Dimension],
    taken: Sequence[Dimension],
    unit: int = SECTOR_BYTES,
) -> float:
    """Bytes of sectors for each byte of the indices ``taken`` of a tensor's ``own`` loops.

    They lie in runs; a run begins at any multiple of what the strides beyond it have in common. A
    sector has ``unit`` bytes.
    """
    size, near = tensor.size, max(1, unit // tensor.size)
    run, step = 1, near
    for each in by_stride([x for x in taken if x.strides[at] and x.extent > 1], at):
        stride = abs(each.strides[at])
        if stride != run:
            step = min(step, max(stride // run, 1))
            break
        run *= each.extent
    far = (each.strides[at] * size for each in own if abs(each.strides[at]) >= run)
    used = run * size
    begins = gcd(unit, *far)
    moved = ceil(used / begins) * begins + unit - begins
    return min(moved / used, step)


def factor_type(problem: Problem, at: int, rows: int, k: int) -> str:
    """The type Factor of A or B: how ``rows`` rows or columns of ``k`` k's are read."""
    tensor, loops = (problem.a, problem.m) if at == A else (problem.b, problem.n)
    by_tile = _is_along_tile(problem, at, loops)
    along, most = (loops, rows) if by_tile else (problem.k, k)
    width = vector_width(problem, tensor, at, along, most)
    return (
        f"Factor<{type_name(tensor.dtype)}, {operator_name(tensor.operator)}, "
        f"Along::{'TILE' if by_tile else 'K'}, {width}>"
    )


@dataclass(frozen=True, slots=True)
class Written:
    """How a thread writes D: ``width`` elements at once, ``apart`` rows of the tile between them.

    Of the rows between, ``lanes`` are in lanes side by side.
    """

    width: int
    apart: int = 1
    lanes: int = 1


def written(problem: Problem, tile: Tile) -> Written:
    """Elements of D side by side where a thread has them, as rows or ``apart`` rows from another.

    Rows are apart where those of A lie side by side first, a power of 2 of them, and D's next.
    """
    most, m, d = _rows_beside(problem, tile), problem.m, problem.d
    width = vector_width(problem, d, D, m, most)
    apart = m[0].extent if m else 1
    if width > 1 or len(m) < 2 or isinstance(tile, CoreTile) or apart & (apart - 1):
        return Written(width)
    most = tile.run(item_size(problem.dtype))
    width = vector_width(problem, d, D, m[1:], max(1, min(most, tile.m // apart)))
    return Written(width, apart, _lanes(problem, tile, width, apart)) if width > 1 else Written(1)


def _stores(problem: Problem, tile: Tile) -> Stores:
    rows = written(problem, tile)
    own = [each for each in problem.loops if each.strides[D]]
    taken = _stored(problem, tile, rows)
    moved = (_inflation(problem.d, D, own, taken, unit) for unit in (SECTOR_BYTES, LINE_BYTES))
    return Stores(rows.width, *moved)


def _stored(problem: Problem, tile: Tile, rows: Written) -> list[Dimension]:
    """The rows of one store of a warp, ``lanes`` threads along m, as loops."""
    if isinstance(tile, TensorTile):
        lanes = 8 // rows.lanes if rows.apart > 1 else 8
        inner = _first(problem.m[:1], rows.lanes) if rows.apart > 1 else []
        return [*inner, *_first(problem.m[len(inner) :], lanes * rows.width)]
    run = tile.run(item_size(problem.dtype))
    found = _first(problem.m, tile.lanes_m * run)
    if rows.width == run or not found:
        return found
    far = tuple(stride * run for stride in found[0].strides)  # from lane to lane
    beside = Dimension(min(rows.width, found[0].extent), found[0].strides)
    return [beside, Dimension(ceil(found[0].extent / run), far), *found[1:]]


def _rows_beside(problem: Problem, tile: Tile) -> int:
    """Rows of a thread that may lie side by side in D.

    Rows of A that lie side by side are read at once: where they are rounded in their registers,
    two of them are those that one instruction wants together.
    """
    most = tile.run(item_size(problem.dtype))
    if isinstance(tile, CoreTile) or not _is_along_tile(problem, A, problem.m):
        return most
    rounded = problem.a.size == 4 and tile.arithmetic.products == 1
    return min(most, 2) if rounded else most


def _lanes(problem: Problem, tile: Tile, width: int, apart: int) -> int:
    """Rows of A side by side among eight lanes: the others complete sectors of D.

    Eight 16-bit elements are turned at once on their way to the fragments, which is worth more
    than sectors where there are many k.
    """
    if problem.a.size == 2 and problem.extents.k >= MANY_K:
        return min(apart, 8)
    sector = SECTOR_BYTES // (width * problem.d.size)
    return min(apart, 8 // max(1, min(sector, tile.m // (width * apart))))


def addend_type(problem: Problem, width: int) -> str:
    """The type Addend of C: read as wide as D is written where it can be."""
    c = problem.c
    if c is None:
        return "Addend<unsigned char, Operator::IDENTITY, 0>"
    wide = width * c.size <= VECTOR_BYTES and vector_width(problem, c, C, problem.m, width) == width
    return f"Addend<{type_name(c.dtype)}, {operator_name(c.operator)}, {width if wide else 1}>"
