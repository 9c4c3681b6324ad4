"""Steps Gett, and Gemm where BLAS does not serve -> launches of the kernels in gett.cuh."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from contract.compute import is_complex, item_size
from contract.errors import NotSupportedError
from contract.kernels.call import Fields, KernelCall, Memory, Pointer
from contract.kernels.configurations import Architecture
from contract.kernels.gett_tiles import Extents, Share, share
from contract.kernels.loops import NARROW, Dimension, capacity, fused, put_loop
from contract.kernels.names import operator_name, type_name
from contract.layout import offset_bounds, packed_strides
from contract.operators import Operator
from contract.plan import Gemm, Gett, Kind, Loop, Plan, Scalar, SlotKind

__all__ = ["gett_calls"]

D, A, B, C = range(4)  # the order of strides in a loop
HEADERS = ("types", "operators", "layout", "gett")
VECTOR_BYTES = 16
SECTOR_BYTES = 32  # what memory moves at least: shorter runs waste the rest
MOST_CHUNK = 32  # indices; a loop without a divisor up to here is not cut
MOST_BLOCKS = 1 << 30  # along x; the second dimension of the grid has the rest
SUM_THREADS = 256
_NOTHING = Dimension(1, (0, 0, 0, 0))


def gett_calls(
    plan: Plan, step: Gett | Gemm, architecture: Architecture, chosen: Share | None = None
) -> tuple[KernelCall, ...]:
    """One launch, or two where parts of k are summed apart; none where D has no elements.

    ``chosen`` is how the work is shared among blocks; None: the cheapest by the model.
    """
    problem = _problem(plan, step)
    extents = problem.extents
    if 0 in (extents.l, extents.m, extents.n):
        return ()
    chosen = share(extents, problem.dtype, architecture) if chosen is None else chosen
    ordered = _ordered(problem)
    if chosen.parts == 1:
        return (_product(ordered, chosen, 0),)
    partial, scratch = _partial(ordered, chosen)
    return _product(partial, chosen, scratch), _sum(ordered, chosen, scratch)


# --- the problem ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor of the product; ``alignment`` is what its address is a multiple of (bytes)."""

    pointer: Pointer
    dtype: str
    alignment: int
    operator: Operator = Operator.IDENTITY

    @property
    def size(self) -> int:
        return item_size(self.dtype)


@dataclass(frozen=True, slots=True)
class _Problem:
    """D = [alpha *] A B [+ beta * op(C)]; loops of a kind are flattened, the first fastest."""

    d: _Tensor
    a: _Tensor
    b: _Tensor
    c: _Tensor | None
    l: tuple[Dimension, ...]  # noqa: E741 - the loop's name
    m: tuple[Dimension, ...]
    n: tuple[Dimension, ...]
    k: tuple[Dimension, ...]
    dtype: str
    scaled: bool
    partial: bool = False

    @property
    def loops(self) -> tuple[Dimension, ...]:
        return (*self.l, *self.m, *self.n, *self.k)

    @property
    def extents(self) -> Extents:
        return Extents(*(prod(d.extent for d in x) for x in (self.l, self.m, self.n, self.k)))

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


def _problem(plan: Plan, step: Gett | Gemm) -> _Problem:
    """A has the mode in which elements of D lie side by side: D is written along it."""
    by_kind: dict[Kind, list[Dimension]] = {kind: [] for kind in Kind}
    for loop in step.loops:
        by_kind[_kind(loop)].append(Dimension(loop.extent, (loop.d, loop.a, loop.b, loop.c)))
    l, m, n = (tuple(fused(by_kind[kind])) for kind in (Kind.BATCH, Kind.M, Kind.N))  # noqa: E741
    addend = None if step.c is None else _tensor(plan, step.c, step.operator_c, step.dtype)
    problem = _Problem(
        d=_tensor(plan, step.d, Operator.IDENTITY, step.dtype),
        a=_tensor(plan, step.a, step.operator_a, step.dtype),
        b=_tensor(plan, step.b, step.operator_b, step.dtype),
        c=addend,
        l=l,
        m=m,
        n=n,
        k=tuple(each for each in by_kind[Kind.K] if each.extent != 1),
        dtype=step.dtype,
        scaled=step.scaled,
    )
    return _exchanged(problem) if _nearest(n, D) < _nearest(m, D) else problem


def _kind(loop: Loop) -> Kind:
    """A batch loop that one factor lacks belongs to the rows or columns of the other."""
    if loop.kind is not Kind.BATCH or bool(loop.a) == bool(loop.b):
        return loop.kind
    return Kind.M if loop.a else Kind.N


def _tensor(plan: Plan, slot: int, operator: Operator, dtype: str) -> _Tensor:
    held = plan.slots[slot]
    placed = held.kind is SlotKind.TEMPORARY
    conjugates = operator is Operator.CONJ and not is_complex(dtype)
    return _Tensor(
        Pointer(Memory.SLOT, slot),
        held.tensor.dtype,
        VECTOR_BYTES if placed else held.tensor.alignment,
        Operator.IDENTITY if conjugates else operator,
    )


def _exchanged(problem: _Problem) -> _Problem:
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


def _ordered(problem: _Problem) -> _Problem:
    """Every tensor's nearest loops first; where two want to be, both are cut and interleaved."""
    a_first = _nearest(problem.m, A) <= _nearest(problem.k, A)
    b_first = _nearest(problem.n, B) <= _nearest(problem.k, B)
    rows = [(A, problem.a.size)] * a_first + [(D, problem.d.size)]
    columns = [(B, problem.b.size)] * b_first
    depth = [(A, problem.a.size)] * (not a_first) + [(B, problem.b.size)] * (not b_first)
    return replace(
        problem,
        m=_led(problem.m, rows),
        n=_led(problem.n, columns),
        k=_led(_by_stride(problem.k, A, B), depth),
    )


def _by_stride(loops: Sequence[Dimension], *tensors: int) -> tuple[Dimension, ...]:
    return tuple(sorted(loops, key=lambda each: [abs(each.strides[t]) for t in tensors]))


def _led(loops: tuple[Dimension, ...], leaders: Sequence[tuple[int, int]]) -> tuple[Dimension, ...]:
    """The loops nearest in the leaders (tensor, item size) first."""
    first = list(dict.fromkeys(_leader(loops, tensor) for tensor, _ in leaders if loops))
    rest = tuple(each for each in loops if each not in first)
    if len(first) < 2:
        return (*first, *rest)
    cut = [_cut(each, size) for each, (_, size) in zip(first, leaders, strict=True)]
    inner, outer = zip(*cut, strict=True)
    return tuple(each for each in (*inner, *outer) if each.extent > 1) + rest


def _leader(loops: Iterable[Dimension], tensor: int) -> Dimension:
    """The loop with the smallest step of the tensor; one in which it stands still comes last."""
    return min(loops, key=lambda each: (not each.strides[tensor], abs(each.strides[tensor])))


def _cut(loop: Dimension, size: int) -> tuple[Dimension, Dimension]:
    """The loop as two, the inner one of a sector or more; whole where no divisor serves."""
    least = SECTOR_BYTES // size
    divisors = (n for n in range(least, MOST_CHUNK + 1) if loop.extent % n == 0)
    inner = next(divisors, loop.extent)
    outer = loop.extent // inner
    far = tuple(stride * inner for stride in loop.strides)
    return Dimension(inner, loop.strides), Dimension(outer, far)


# --- accesses ---------------------------------------------------------------------------------


def _width(
    problem: _Problem, tensor: _Tensor, at: int, along: Sequence[Dimension], most: int
) -> int:
    """Elements side by side along the first of the loops ``along`` that one access may move."""
    first = along[0] if along else _NOTHING
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


def _factor(problem: _Problem, at: int, chosen: Share) -> str:
    """The type Factor of A or B: how it is read."""
    tile = chosen.tile
    tensor, loops, side = (
        (problem.a, problem.m, tile.m) if at == A else (problem.b, problem.n, tile.n)
    )
    by_tile = _nearest(loops, at) <= _nearest(problem.k, at)
    along, most = (loops, side) if by_tile else (problem.k, tile.k)
    width = _width(problem, tensor, at, along, most)
    return (
        f"Factor<{type_name(tensor.dtype)}, {operator_name(tensor.operator)}, "
        f"Along::{'TILE' if by_tile else 'K'}, {width}>"
    )


def _written(problem: _Problem, chosen: Share) -> int:
    """Elements of D written at once: side by side in the registers of a thread."""
    run = min(chosen.tile.thread_m, VECTOR_BYTES // max(item_size(problem.dtype), 4))
    return _width(problem, problem.d, D, problem.m, run)


def _addend(problem: _Problem, width: int) -> str:
    """The type Addend of C: read as wide as D is written where it can be."""
    c = problem.c
    if c is None:
        return "Addend<unsigned char, Operator::IDENTITY, 0>"
    wide = width * c.size <= VECTOR_BYTES and _width(problem, c, C, problem.m, width) == width
    return f"Addend<{type_name(c.dtype)}, {operator_name(c.operator)}, {width if wide else 1}>"


# --- the launches -----------------------------------------------------------------------------


def _product(problem: _Problem, chosen: Share, scratch: int) -> KernelCall:
    tiles = _tiles(problem.extents, chosen)
    blocks = prod(tiles) * chosen.parts
    across = min(blocks, MOST_BLOCKS)
    down = ceil(blocks / across)
    if down >= 1 << 16:
        raise NotSupportedError(
            f"A launch has at most {MOST_BLOCKS << 16} blocks: the product takes {blocks}."
        )
    return KernelCall(
        headers=HEADERS,
        stub=_stub(problem, chosen),
        entry="gett",
        grid=(across, down, 1),
        block=(chosen.tile.threads, 1, 1),
        arguments=_arguments(problem, chosen, tiles).arguments(),
        reason=chosen.reason,
        scratch=scratch,
    )


def _tiles(extents: Extents, chosen: Share) -> tuple[int, int, int]:
    """Tiles along m, n and l."""
    tile = chosen.tile
    return ceil(extents.m / tile.m), ceil(extents.n / tile.n), ceil(extents.l / tile.l)


def _stub(problem: _Problem, chosen: Share) -> str:
    tile, width = chosen.tile, _written(problem, chosen)
    shape = (tile.l, tile.m, tile.n, tile.k, tile.thread_m, tile.thread_n)
    lanes = (tile.lanes_m, tile.lanes_n, tile.groups)
    return _kernel(
        "gett",
        tile.threads,
        f"Gett<{_common(problem)},",
        f"    Tile<{', '.join(map(str, (*shape, *lanes)))}>,",
        f"    {_factor(problem, A, chosen)},",
        f"    {_factor(problem, B, chosen)},",
        f"    {_addend(problem, width)}, {width}>",
    )


def _common(problem: _Problem) -> str:
    offset = "long long" if problem.is_wide else "int"
    types = f"{type_name(problem.d.dtype)}, {type_name(problem.dtype)}"
    return f"{types}, {offset}, {capacity(len(problem.loops))}"


def _kernel(entry: str, threads: int, *config: str) -> str:
    return "\n".join(
        (
            "using namespace contract;",
            "using Config =",
            *config[:-1],
            f"{config[-1]};",
            f'extern "C" __global__ void __launch_bounds__({threads}) '
            f"{entry}(const Config::Arguments a) {{",
            "  Config::run(a);",
            "}",
            "",
        )
    )


def _arguments(problem: _Problem, chosen: Share, tiles: Sequence[int]) -> Fields:
    """The struct Arguments of Gett."""
    fields, extents = Fields(), problem.extents
    for tensor in (problem.a, problem.b, problem.c, problem.d):
        fields.pointer(None if tensor is None else tensor.pointer)
    _put_scalars(fields, problem)
    fields.unsigned(*map(len, (problem.l, problem.m, problem.n, problem.k)))
    fields.integers((extents.l, extents.m, extents.n, extents.k))
    results = extents.l * extents.m * extents.n if problem.partial else 0
    fields.integers((prod(tiles) * chosen.parts, chosen.part_k, results))
    fields.unsigned(problem.partial, 0)
    for count in tiles:
        put_loop(fields, replace(_NOTHING, extent=count, inside=count))
    _put_loops(fields, problem.loops)
    return fields


def _put_scalars(fields: Fields, problem: _Problem) -> None:
    fields.scalar(Scalar.ALPHA if problem.scaled else None, problem.dtype)
    fields.scalar(Scalar.BETA if problem.c else None, problem.dtype)


def _put_loops(fields: Fields, loops: Sequence[Dimension]) -> None:
    for loop in loops:
        put_loop(fields, loop)
    for _ in range(capacity(len(loops)) - len(loops)):
        put_loop(fields, _NOTHING)


# --- parts of k -------------------------------------------------------------------------------


def _partial(problem: _Problem, chosen: Share) -> tuple[_Problem, int]:
    """The product that writes the parts packed, in D's order, and how many bytes they take."""
    results = _results(problem)
    packed = packed_strides([each.extent for each in results])
    steps = dict(zip(results, packed, strict=True))
    l, m, n = (  # noqa: E741
        tuple(replace(each, strides=(steps[each], *each.strides[A:C], 0)) for each in loops)
        for loops in (problem.l, problem.m, problem.n)
    )
    size = item_size(problem.dtype)
    scratch = _Tensor(Pointer(Memory.SCRATCH), problem.dtype, VECTOR_BYTES)
    count = prod(each.extent for each in results)
    made = replace(problem, d=scratch, c=None, l=l, m=m, n=n, partial=True)
    return made, chosen.parts * count * size


def _results(problem: _Problem) -> tuple[Dimension, ...]:
    """The loops of D, fastest first."""
    return _by_stride((*problem.l, *problem.m, *problem.n), D)


def _sum(problem: _Problem, chosen: Share, scratch: int) -> KernelCall:
    results = replace(problem, l=_results(problem), m=(), n=(), k=())
    elements = results.extents.l
    return KernelCall(
        headers=HEADERS,
        stub=_kernel(
            "gett_parts",
            SUM_THREADS,
            f"GettParts<{_common(results)},",
            f"    {_addend(results, 1)}>",
        ),
        entry="gett_parts",
        grid=(ceil(elements / SUM_THREADS), 1, 1),
        block=(SUM_THREADS, 1, 1),
        arguments=_sum_arguments(results, chosen, elements).arguments(),
        reason=f"adds {chosen.parts} parts in order",
        scratch=scratch,
    )


def _sum_arguments(results: _Problem, chosen: Share, elements: int) -> Fields:
    """The struct Arguments of GettParts."""
    fields = Fields()
    fields.pointer(Pointer(Memory.SCRATCH))
    for tensor in (results.c, results.d):
        fields.pointer(None if tensor is None else tensor.pointer)
    _put_scalars(fields, results)
    fields.integers((elements,))
    fields.unsigned(chosen.parts, len(results.l))
    _put_loops(fields, results.l)
    return fields
