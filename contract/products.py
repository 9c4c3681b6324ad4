"""One pairwise product -> its candidates: ways to run it, as steps, each with a predicted cost.

Everything here is arithmetic on tables of loops. The ways are those of the literature: Gemm
(operands used where they lie), Gett by panels or loop by loop, TTGT (permute, multiply,
permute), and element by element where nothing is summed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product as combinations
from math import ceil, prod
from operator import attrgetter

from contract.compute import is_blas_type, item_size
from contract.descriptors import Algo, TensorDescriptor
from contract.heuristics import Machine
from contract.layout import packed_strides
from contract.operators import Operator
from contract.plan import (
    Elementwise,
    Gemm,
    Gett,
    Kind,
    Loop,
    Panels,
    Permute,
    Product,
    Source,
    Step,
    View,
)

__all__ = ["Option", "ProductProblem", "Term", "loop_table", "options"]

Stride = Callable[[Loop], int]
STRIDE_A: Stride = attrgetter("a")
STRIDE_B: Stride = attrgetter("b")
STRIDE_D: Stride = attrgetter("d")
STRIDE_C: Stride = attrgetter("c")


@dataclass(frozen=True, slots=True)
class Term:
    """A tensor in the course of planning: a slot, its distinct modes and their strides."""

    slot: int
    modes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    operator: Operator = Operator.IDENTITY

    def stride(self, mode: int) -> int:
        """The stride of ``mode``, 0 where the term does not have it."""
        return self.strides[self.modes.index(mode)] if mode in self.modes else 0

    @property
    def fastest_first(self) -> tuple[int, ...]:
        """The modes by increasing absolute stride."""
        return tuple(sorted(self.modes, key=lambda mode: abs(self.stride(mode))))


@dataclass(frozen=True, slots=True)
class ProductProblem:
    """d = [alpha *] a * b [+ beta * c], formed in ``dtype``; new slots count from ``next_slot``."""

    a: Term
    b: Term
    d: Term
    c: Term | None
    extents: tuple[int, ...]
    dtype: str
    scaled: bool
    next_slot: int


@dataclass(frozen=True, slots=True)
class Option:
    """Steps that solve a problem, the temporaries they need, and what the model predicts."""

    algo: Algo
    seconds: float
    reason: str
    steps: tuple[Step, ...]
    d: Term
    temporaries: tuple[TensorDescriptor, ...] = ()

    @property
    def temporary_bytes(self) -> int:
        """Bytes of all temporaries."""
        return sum(prod(t.extents) * item_size(t.dtype) for t in self.temporaries)


def options(problem: ProductProblem, machine: Machine) -> list[Option]:
    """Every way to solve ``problem`` that the machine has, unordered, at least one."""
    loops = loop_table(problem)
    found = [loop_option(problem, loops, machine)]
    found += elementwise_options(problem, loops, machine)
    found += gemm_options(problem, loops, machine)
    if prod(loop.extent for loop in loops) > machine.loop_product:
        found += panel_options(problem, loops, machine)
    if is_blas_type(problem.dtype):
        found += transposed_options(problem, loops, machine)
    return found


# --- the table of loops -------------------------------------------------------------------


def loop_table(problem: ProductProblem) -> tuple[Loop, ...]:
    """One loop for each mode of a product, modes contiguous in every operand fused."""
    a, b, d = problem.a, problem.b, problem.d
    modes = dict.fromkeys((*d.modes, *a.modes, *b.modes))
    return fused(
        Loop(
            _kind(mode in a.modes, mode in b.modes, mode in d.modes),
            problem.extents[mode],
            a.stride(mode),
            b.stride(mode),
            d.stride(mode),
            problem.c.stride(mode) if problem.c else 0,
            (mode,),
        )
        for mode in modes
    )


def _kind(in_a: bool, in_b: bool, in_d: bool) -> Kind:
    match (in_a, in_b, in_d):
        case (True, True, True):
            return Kind.BATCH
        case (True, False, True):
            return Kind.M
        case (False, True, True):
            return Kind.N
        case (True, True, False):
            return Kind.K
    raise AssertionError("a mode of one operand alone is reduced before the product")


def fused(loops: Iterator[Loop]) -> tuple[Loop, ...]:
    """The same iteration space with every fusable pair of loops made one."""
    rest = list(loops)
    done: list[Loop] = []
    while rest:
        inner = rest.pop()
        outer = next((each for each in rest + done if _follows(each, inner)), None)
        if outer is None:
            done.append(inner)
            continue
        (rest if outer in rest else done).remove(outer)
        modes = inner.modes + outer.modes
        rest.append(replace(inner, extent=inner.extent * outer.extent, modes=modes))
    return tuple(sorted(done, key=lambda loop: (loop.kind.value, abs(loop.d), abs(loop.a))))


def _follows(outer: Loop, inner: Loop) -> bool:
    """Whether a step of ``outer`` continues where ``inner`` ends, in every operand."""
    return outer.kind is inner.kind and all(
        stride(outer) == stride(inner) * inner.extent
        for stride in (STRIDE_A, STRIDE_B, STRIDE_D, STRIDE_C)
    )


# --- Gemm: operands used where they lie ---------------------------------------------------


def gemm_options(
    problem: ProductProblem, loops: tuple[Loop, ...], machine: Machine
) -> Iterator[Option]:
    """Products whose strides BLAS takes; further loops of m and n enumerate products."""
    k = [loop for loop in loops if loop.kind is Kind.K]
    if len(k) > 1 or not _all_direct(problem) or not is_blas_type(problem.dtype):
        return
    for m, n in combinations(_rows(loops, Kind.M), _rows(loops, Kind.N)):
        chosen = (*m, *n, *k)
        batch = tuple(
            replace(loop, kind=Kind.BATCH) for loop in loops if all(loop is not x for x in chosen)
        )
        table = (*_outermost_last(batch), *chosen)
        if _is_gemm(m, n, k):
            step = _product(Gemm, problem, table)
            yield Option(Algo.GEMM, _gemm_seconds(step, machine), _why_gemm(batch), (step,), problem.d)


def _rows(loops: tuple[Loop, ...], kind: Kind) -> list[tuple[Loop, ...]]:
    """Each loop of a kind alone, or the empty row where there is none."""
    return [(loop,) for loop in loops if loop.kind is kind] or [()]


def _outermost_last(loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
    return tuple(sorted(loops, key=lambda loop: abs(loop.d)))


def _why_gemm(batch: tuple[Loop, ...]) -> str:
    count = prod(loop.extent for loop in batch)
    return f"BLAS, no copies, {count} products" if batch else "BLAS, no copies"


def _all_direct(problem: ProductProblem) -> bool:
    return (
        problem.c is None
        and _is_direct(problem.a, problem.dtype)
        and _is_direct(problem.b, problem.dtype)
        and problem.d.dtype == problem.dtype
    )


def _is_direct(term: Term, dtype: str) -> bool:
    """Whether a product in ``dtype`` can read the term without converting it."""
    return term.dtype == dtype and term.operator is Operator.IDENTITY


def _is_gemm(m: Sequence[Loop], n: Sequence[Loop], k: Sequence[Loop]) -> bool:
    """Whether all three matrices of one product are BLAS matrices."""
    return (
        is_matrix(_extent(m), _first(m, STRIDE_A), _extent(k), _first(k, STRIDE_A))
        and is_matrix(_extent(k), _first(k, STRIDE_B), _extent(n), _first(n, STRIDE_B))
        and is_matrix(_extent(m), _first(m, STRIDE_D), _extent(n), _first(n, STRIDE_D))
    )


def is_matrix(rows: int, row_stride: int, columns: int, column_stride: int) -> bool:
    """Whether BLAS takes the matrix: one stride is 1, the other at least the extent beside it."""
    if rows == 1 or columns == 1:
        return (rows == 1 or row_stride > 0) and (columns == 1 or column_stride > 0)
    return (row_stride == 1 and column_stride >= rows) or (
        column_stride == 1 and row_stride >= columns
    )


def _extent(loops: Sequence[Loop]) -> int:
    return prod(loop.extent for loop in loops)


def _first(loops: Sequence[Loop], stride: Stride) -> int:
    return stride(loops[0]) if loops else 0


def _gemm_seconds(step: Product, machine: Machine) -> float:
    m, n, k = step.extent(Kind.M), step.extent(Kind.N), step.extent(Kind.K)
    count = step.extent(Kind.BATCH)
    seconds = machine.call + machine.product_seconds(count, m, n, k, step.dtype)
    for stride in (STRIDE_A, STRIDE_B, STRIDE_D):
        own = [loop for loop in step.loops if stride(loop)]
        seconds += machine.stream_seconds(_extent(own), _run(own, stride), step.dtype)
    return seconds


def _run(loops: Sequence[Loop], stride: Stride, blocks: Sequence[int] | None = None) -> int:
    """How many elements lie in a row when the loops run over their blocks."""
    sizes = [loop.extent for loop in loops] if blocks is None else list(blocks)
    run = 1
    for loop, size in sorted(zip(loops, sizes, strict=True), key=lambda p: abs(stride(p[0]))):
        if abs(stride(loop)) != run:
            break
        run *= size
        if size < loop.extent:
            break
    return run


def _product(
    kind: type[Gemm] | type[Gett], problem: ProductProblem, loops: tuple[Loop, ...]
) -> Gemm | Gett:
    return kind(
        a=problem.a.slot,
        b=problem.b.slot,
        d=problem.d.slot,
        loops=loops,
        dtype=problem.dtype,
        operator_a=problem.a.operator,
        operator_b=problem.b.operator,
        scaled=problem.scaled,
        c=problem.c.slot if problem.c else None,
    )


# --- Gett loop by loop --------------------------------------------------------------------


def loop_option(problem: ProductProblem, loops: tuple[Loop, ...], machine: Machine) -> Option:
    """No packing at all: right for any strides, and the quickest way for small products."""
    step = _product(Gett, problem, loops)
    work = 2 * prod(loop.extent for loop in loops)
    seconds = 2 * machine.call + work / machine.loop_flops
    for stride in (STRIDE_A, STRIDE_B, STRIDE_D):
        own = [loop for loop in loops if stride(loop)]
        seconds += machine.stream_seconds(_extent(own), _run(own, stride), step.dtype)
    return Option(Algo.GETT, seconds, "loop by loop, nothing packed", (step,), problem.d)


# --- element by element -------------------------------------------------------------------


def elementwise_options(
    problem: ProductProblem, loops: tuple[Loop, ...], machine: Machine
) -> Iterator[Option]:
    """Nothing is summed: d = a * b with broadcast strides."""
    if any(loop.kind is Kind.K for loop in loops):
        return
    d = problem.d
    extents = tuple(problem.extents[mode] for mode in d.modes)
    sources = tuple(
        Source(View(term.slot, tuple(map(term.stride, d.modes))), term.operator)
        for term in (problem.a, problem.b)
    )
    step = Elementwise(
        sources,
        View(d.slot, d.strides),
        extents,
        d.modes,
        problem.dtype,
        problem.scaled,
        View(problem.c.slot, tuple(map(problem.c.stride, d.modes))) if problem.c else None,
    )
    seconds = machine.call + prod(extents) / (2 * machine.transpose_rate)
    for stride in (STRIDE_A, STRIDE_B, STRIDE_D):
        own = [loop for loop in loops if stride(loop)]
        seconds += machine.stream_seconds(_extent(own), machine.line, problem.dtype)
    yield Option(Algo.ELEMENTWISE, seconds, "element by element, nothing summed", (step,), d)


# --- Gett by panels -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shape:
    """Which operands are packed, and which loops make the extents of a matrix product.

    ``outer_k`` are loops of k that no matrix product covers: they are blocked to 1.
    """

    pack_a: bool
    pack_b: bool
    pack_d: bool
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    batch: tuple[int, ...]
    outer_k: tuple[int, ...]

    def chains(self) -> Iterator[tuple[int, ...]]:
        """The flattened loops an operand that is not packed has to hold contiguously."""
        if not (self.pack_a and self.pack_d):
            yield self.m
        if not (self.pack_b and self.pack_d):
            yield self.n
        if not (self.pack_a and self.pack_b):
            yield self.k


def panel_options(
    problem: ProductProblem, loops: tuple[Loop, ...], machine: Machine
) -> Iterator[Option]:
    """Every choice of packed operands, with the cheapest blocking for each."""
    for shape in _shapes(problem, loops):
        blockings = _blockings(shape, loops, problem, machine)
        seconds, blocks = min(
            (_panel_seconds(shape, blocks, loops, problem, machine), blocks)
            for blocks in blockings
        )
        step = replace(
            _product(Gett, problem, loops), panels=_panels(shape, blocks, loops)
        )
        packed = "".join(
            name
            for name, flag in zip("ABD", (shape.pack_a, shape.pack_b, shape.pack_d), strict=True)
            if flag
        )
        reason = f"panels of {packed or 'nothing'} packed in cache"
        yield Option(Algo.GETT, seconds, reason, (step,), problem.d)


def _panels(shape: _Shape, blocks: tuple[int, ...], loops: tuple[Loop, ...]) -> Panels:
    blocks_of_k, blocks_of_d = (
        prod(
            ceil(loop.extent / block)
            for loop, block in zip(loops, blocks, strict=True)
            if (loop.kind is Kind.K) is summed
        )
        for summed in (True, False)
    )
    # Partial sums give the threads work where blocks of k are all there is; their number is
    # fixed by the plan so that the order of summation does not depend on the threads.
    splits = min(8, blocks_of_k) if blocks_of_d < 8 else 1
    return Panels(
        blocks,
        shape.m,
        shape.n,
        shape.k,
        shape.batch,
        shape.pack_a,
        shape.pack_b,
        shape.pack_d or splits > 1,
        splits,
    )


def _shapes(problem: ProductProblem, loops: tuple[Loop, ...]) -> Iterator[_Shape]:
    may_a = not _is_direct(problem.a, problem.dtype), True
    may_b = not _is_direct(problem.b, problem.dtype), True
    may_d = problem.c is not None or problem.d.dtype != problem.dtype, True
    for packs in sorted(set(combinations(may_a, may_b, may_d))):
        pack_a, pack_b, pack_d = packs
        m_chains = _chains(problem, loops, Kind.M, not pack_a, not pack_d)
        n_chains = _chains(problem, loops, Kind.N, not pack_b, not pack_d)
        k_chains = _chains(problem, loops, Kind.K, not pack_a, not pack_b)
        for m, n, k in combinations(m_chains, n_chains, k_chains):
            shape = _shape(packs, m, n, k, loops)
            if _is_legal(shape, loops):
                yield shape


def _shape(
    packs: tuple[bool, bool, bool],
    m: tuple[int, ...],
    n: tuple[int, ...],
    k: tuple[int, ...],
    loops: tuple[Loop, ...],
) -> _Shape:
    left = [at for at in range(len(loops)) if at not in (*m, *n, *k)]
    batch = tuple(at for at in left if loops[at].kind is not Kind.K)
    outer_k = tuple(at for at in left if loops[at].kind is Kind.K)
    return _Shape(*packs, m, n, k, batch, outer_k)


_OPERANDS = {
    Kind.M: (STRIDE_A, STRIDE_D),
    Kind.N: (STRIDE_B, STRIDE_D),
    Kind.K: (STRIDE_A, STRIDE_B),
}


def _chains(
    problem: ProductProblem,
    loops: tuple[Loop, ...],
    kind: Kind,
    direct_first: bool,
    direct_second: bool,
) -> list[tuple[int, ...]]:
    """Sequences of loops of one kind that are one loop in each operand used where it lies."""
    members = [at for at, loop in enumerate(loops) if loop.kind is kind]
    first, second = _OPERANDS[kind]
    direct = [s for s, use in ((first, direct_first), (second, direct_second)) if use]
    if not members:
        return [()]
    if not direct:
        key = _packing_order(loops, kind)
        return [tuple(sorted(members, key=lambda at: abs(key(loops[at]))))]
    grown = [_grow_chain(start, members, loops, direct) for start in members]
    return [
        chain
        for chain in dict.fromkeys(grown)
        if not any(chain != other and set(chain) < set(other) for other in grown)
    ]


def _packing_order(loops: tuple[Loop, ...], kind: Kind) -> Stride:
    """Where both operands are packed, the smaller one is transposed on the way."""
    size = {
        each: prod(loop.extent for loop in loops if loop.kind is each)
        for each in (Kind.M, Kind.N, Kind.K)
    }
    first, second = _OPERANDS[kind]
    only_first = {Kind.M: Kind.K, Kind.N: Kind.K, Kind.K: Kind.M}[kind]
    only_second = {Kind.M: Kind.N, Kind.N: Kind.M, Kind.K: Kind.N}[kind]
    return first if size[only_first] >= size[only_second] else second


def _grow_chain(
    start: int, members: list[int], loops: tuple[Loop, ...], direct: list[Stride]
) -> tuple[int, ...]:
    chain = [start]
    while True:
        last = loops[chain[-1]]
        following = next(
            (
                at
                for at in members
                if at not in chain
                and all(stride(loops[at]) == stride(last) * last.extent for stride in direct)
            ),
            None,
        )
        if following is None:
            return tuple(chain)
        chain.append(following)


def _is_legal(shape: _Shape, loops: tuple[Loop, ...]) -> bool:
    m, n, k = ([loops[at] for at in chain] for chain in (shape.m, shape.n, shape.k))
    return (
        (
            shape.pack_a
            or is_matrix(_extent(m), _first(m, STRIDE_A), _extent(k), _first(k, STRIDE_A))
        )
        and (
            shape.pack_b
            or is_matrix(_extent(k), _first(k, STRIDE_B), _extent(n), _first(n, STRIDE_B))
        )
        and (
            shape.pack_d
            or is_matrix(_extent(m), _first(m, STRIDE_D), _extent(n), _first(n, STRIDE_D))
        )
    )


_BLOCKED_KINDS = (
    (),
    (Kind.BATCH, Kind.M),
    (Kind.BATCH, Kind.N),
    (Kind.K,),
)


def _blockings(
    shape: _Shape, loops: tuple[Loop, ...], problem: ProductProblem, machine: Machine
) -> Iterator[tuple[int, ...]]:
    """Block extents worth costing: everything whole, or the loops of some kinds cut to fit."""
    whole = [1 if at in shape.outer_k else loop.extent for at, loop in enumerate(loops)]
    yield tuple(whole)
    packed = [
        stride
        for stride, flag in zip(
            (STRIDE_A, STRIDE_B, STRIDE_D),
            (shape.pack_a, shape.pack_b, shape.pack_d),
            strict=True,
        )
        if flag
    ]
    for kinds in _BLOCKED_KINDS[1:]:
        cut = [at for at, loop in enumerate(loops) if loop.kind in kinds and whole[at] > 1]
        touched = [stride for stride in packed if any(stride(loops[at]) for at in cut)]
        if touched:
            for budget in machine.panel_bytes:
                elements = budget // item_size(problem.dtype)
                yield _grow_blocks(shape, loops, whole, cut, touched, elements, machine, problem)


def _grow_blocks(
    shape: _Shape,
    loops: tuple[Loop, ...],
    whole: list[int],
    cut: list[int],
    touched: list[Stride],
    elements: int,
    machine: Machine,
    problem: ProductProblem,
) -> tuple[int, ...]:
    """Double the loops of ``cut`` in turn, nearest in memory first, until panels are full."""
    blocks = [1 if at in cut else size for at, size in enumerate(whole)]
    line = 2 * machine.line // item_size(problem.dtype)
    queues = [
        sorted((at for at in cut if stride(loops[at])), key=lambda at: abs(stride(loops[at])))
        for stride in (*touched, *_direct(shape))
    ]
    queues = [queue for queue in queues if queue]
    for queue in queues:  # whole cache lines of every operand come first
        blocks[queue[0]] = min(loops[queue[0]].extent, max(line, blocks[queue[0]]))
    _complete_chains(shape, loops, blocks, cut)
    active = [True] * len(queues)
    while any(active):
        for index, queue in enumerate(queues):
            grown = _doubled(queue, blocks, loops, shape, cut) if active[index] else None
            if grown is None or _panel_elements(loops, grown, touched) > elements:
                active[index] = False
            else:
                blocks = grown
    return tuple(blocks)


def _direct(shape: _Shape) -> Iterator[Stride]:
    if not shape.pack_a:
        yield STRIDE_A
    if not shape.pack_b:
        yield STRIDE_B
    if not shape.pack_d:
        yield STRIDE_D


def _doubled(
    queue: list[int],
    blocks: list[int],
    loops: tuple[Loop, ...],
    shape: _Shape,
    cut: list[int],
) -> list[int] | None:
    """Blocks with the first loop of the queue that is not whole doubled; None if all are."""
    at = next((at for at in queue if blocks[at] < loops[at].extent), None)
    if at is None:
        return None
    grown = list(blocks)
    grown[at] = min(2 * blocks[at], loops[at].extent)
    _complete_chains(shape, loops, grown, cut)
    return grown


def _complete_chains(
    shape: _Shape, loops: tuple[Loop, ...], blocks: list[int], cut: list[int]
) -> None:
    """A chain used where it lies is one loop only if all but its last part are whole."""
    for chain in shape.chains():
        last = max((i for i, at in enumerate(chain) if blocks[at] > 1), default=0)
        for at in chain[:last]:
            blocks[at] = loops[at].extent


def _panel_elements(loops: tuple[Loop, ...], blocks: list[int], touched: list[Stride]) -> int:
    return sum(
        prod(block for loop, block in zip(loops, blocks, strict=True) if stride(loop))
        for stride in touched
    )


def _panel_seconds(
    shape: _Shape,
    blocks: tuple[int, ...],
    loops: tuple[Loop, ...],
    problem: ProductProblem,
    machine: Machine,
) -> float:
    """Blocks, packing and unpacking, reading what is not packed, and the matrix products."""
    counts = [ceil(loop.extent / block) for loop, block in zip(loops, blocks, strict=True)]
    sizes = [loop.extent / count for loop, count in zip(loops, counts, strict=True)]
    m, n, k, batch = (
        ceil(prod(sizes[at] for at in part)) for part in (shape.m, shape.n, shape.k, shape.batch)
    )
    blocks_count = prod(counts)
    products = machine.product_seconds(batch, m, n, k, problem.dtype)
    products *= machine.imbalance(blocks_count, m * n * k)
    seconds = machine.call + blocks_count * (machine.block + products)
    for stride, packed, pair in (
        (STRIDE_A, shape.pack_a, (shape.m, shape.k)),
        (STRIDE_B, shape.pack_b, (shape.k, shape.n)),
        (STRIDE_D, shape.pack_d, (shape.m, shape.n)),
    ):
        seconds += _operand_seconds(stride, packed, pair, blocks, counts, loops, problem, machine)
    return seconds


def _operand_seconds(
    stride: Stride,
    packed: bool,
    pair: tuple[tuple[int, ...], tuple[int, ...]],
    blocks: tuple[int, ...],
    counts: list[int],
    loops: tuple[Loop, ...],
    problem: ProductProblem,
    machine: Machine,
) -> float:
    own = [(loop, block) for loop, block in zip(loops, blocks, strict=True) if stride(loop)]
    mine, sizes = [loop for loop, _ in own], [block for _, block in own]
    run = _run(mine, stride, sizes)
    elements = _extent(mine) * _times_packed(stride, counts, loops)
    if not packed:
        return machine.stream_seconds(elements, run, problem.dtype)
    transposed = bool(mine) and not any(
        chain and abs(stride(loops[chain[0]])) == min(abs(stride(loop)) for loop in mine)
        for chain in pair
    )
    return machine.copy_seconds(elements, run, problem.dtype, transposed, panel=prod(sizes))


def _times_packed(stride: Stride, counts: list[int], loops: tuple[Loop, ...]) -> int:
    """How often an operand is packed: blocks run l, then m and n, then k fastest."""
    order = sorted(range(len(loops)), key=lambda at: block_rank(loops[at]))
    mine = [i for i, at in enumerate(order) if stride(loops[at]) and counts[at] > 1]
    if stride is STRIDE_D or not mine:
        return 1
    return prod(counts[at] for at in order[: mine[-1]] if not stride(loops[at]))


def block_rank(loop: Loop) -> int:
    """The order in which blocks are visited: l outermost, k innermost."""
    return {Kind.BATCH: 0, Kind.M: 1, Kind.N: 2, Kind.K: 3}[loop.kind]


# --- TTGT: permute, multiply, permute -----------------------------------------------------


def transposed_options(
    problem: ProductProblem, loops: tuple[Loop, ...], machine: Machine
) -> list[Option]:
    """The whole-tensor way with the fewest bytes permuted."""
    layouts = combinations((STRIDE_A, STRIDE_D), (STRIDE_B, STRIDE_D), (STRIDE_A, STRIDE_B))
    found = [_transposed(problem, loops, machine, *layout) for layout in layouts]
    return [min(found, key=lambda option: (option.temporary_bytes, option.seconds))]


def _transposed(
    problem: ProductProblem,
    loops: tuple[Loop, ...],
    machine: Machine,
    order_m: Stride,
    order_n: Stride,
    order_k: Stride,
) -> Option:
    groups = {
        Kind.M: _sorted(loops, Kind.M, order_m),
        Kind.N: _sorted(loops, Kind.N, order_n),
        Kind.K: _sorted(loops, Kind.K, order_k),
        Kind.BATCH: _sorted(loops, Kind.BATCH, STRIDE_D),
    }
    packing = _Packing(problem, problem.next_slot)
    a = packing.operand(problem.a, STRIDE_A, groups[Kind.M], groups[Kind.K], groups[Kind.BATCH])
    b = packing.operand(problem.b, STRIDE_B, groups[Kind.K], groups[Kind.N], groups[Kind.BATCH])
    d = packing.result(groups[Kind.M], groups[Kind.N], groups[Kind.BATCH])
    inner = replace(
        problem, a=a, b=b, d=d, c=None, scaled=problem.scaled and d is problem.d
    )
    step = _product(Gemm, inner, _outermost_last_table(loop_table(inner)))
    seconds = _gemm_seconds(step, machine) + sum(
        machine.call + machine.copy_seconds(prod(t.extents), 64, t.dtype, True, prod(t.extents)) * 2
        for t in packing.temporaries
    )
    count = len(packing.temporaries)
    reason = f"{count} tensor{'s' * (count != 1)} permuted, one Gemm"
    steps = (*packing.before, step, *packing.after)
    return Option(Algo.TTGT, seconds, reason, steps, problem.d, tuple(packing.temporaries))


def _outermost_last_table(loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
    batch = tuple(loop for loop in loops if loop.kind is Kind.BATCH)
    rest = tuple(loop for loop in loops if loop.kind is not Kind.BATCH)
    return (*_outermost_last(batch), *rest)


def _sorted(loops: tuple[Loop, ...], kind: Kind, stride: Stride) -> tuple[Loop, ...]:
    return tuple(
        sorted((loop for loop in loops if loop.kind is kind), key=lambda x: abs(stride(x)))
    )


class _Packing:
    """Collects the permutations that make every operand of a product a matrix."""

    def __init__(self, problem: ProductProblem, next_slot: int) -> None:
        self.problem = problem
        self.next_slot = next_slot
        self.before: list[Step] = []
        self.after: list[Step] = []
        self.temporaries: list[TensorDescriptor] = []

    def operand(
        self,
        term: Term,
        stride: Stride,
        rows: tuple[Loop, ...],
        columns: tuple[Loop, ...],
        batch: tuple[Loop, ...],
    ) -> Term:
        """``term`` itself where it is a matrix already, else a permuted copy of it."""
        if _is_direct(term, self.problem.dtype) and _is_flat_matrix(stride, rows, columns):
            return term
        # The stride-1 loop stays fastest: such a copy moves rows instead of transposing.
        inner, outer = rows, columns
        if columns and (not rows or abs(stride(columns[0])) < abs(stride(rows[0]))):
            inner, outer = columns, rows
        packed = self._temporary((*inner, *outer, *batch))
        self.before.append(self._copy(term, packed, term.operator))
        return packed

    def result(
        self, rows: tuple[Loop, ...], columns: tuple[Loop, ...], batch: tuple[Loop, ...]
    ) -> Term:
        """The output itself where the product can write it, else a matrix to permute from."""
        problem = self.problem
        direct = problem.c is None and problem.d.dtype == problem.dtype
        if direct and _is_flat_matrix(STRIDE_D, rows, columns):
            return problem.d
        packed = self._temporary((*rows, *columns, *batch))
        last = self._copy(packed, problem.d, Operator.IDENTITY)
        addend = problem.c and View(
            problem.c.slot, tuple(map(problem.c.stride, problem.d.modes))
        )
        self.after.append(replace(last, scaled=problem.scaled, addend=addend))
        return packed

    def _temporary(self, loops: tuple[Loop, ...]) -> Term:
        modes = tuple(mode for loop in loops for mode in loop.modes)
        extents = tuple(self.problem.extents[mode] for mode in modes)
        tensor = TensorDescriptor(extents, None, self.problem.dtype)
        self.temporaries.append(tensor)
        slot = self.next_slot + len(self.temporaries) - 1
        return Term(slot, modes, packed_strides(extents), self.problem.dtype)

    def _copy(self, source: Term, target: Term, operator: Operator) -> Permute:
        return Permute(
            Source(View(source.slot, tuple(map(source.stride, target.modes))), operator),
            View(target.slot, target.strides),
            tuple(self.problem.extents[mode] for mode in target.modes),
            target.modes,
        )


def _is_flat_matrix(stride: Stride, rows: tuple[Loop, ...], columns: tuple[Loop, ...]) -> bool:
    """Whether rows and columns are each one loop of the operand, and together a matrix."""
    return (
        _is_flat(stride, rows)
        and _is_flat(stride, columns)
        and is_matrix(
            _extent(rows), _first(rows, stride), _extent(columns), _first(columns, stride)
        )
    )


def _is_flat(stride: Stride, loops: tuple[Loop, ...]) -> bool:
    return all(
        stride(outer) == stride(inner) * inner.extent
        for inner, outer in zip(loops, loops[1:], strict=False)
    )
