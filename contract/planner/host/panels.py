"""Products by panels: which operands to pack, how to flatten the loops, how large the blocks.

For every choice of packed operands the loops that one matrix product covers follow from the
strides; the blocks are those the model of the processor finds cheapest.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product as combinations
from math import ceil, prod

from contract.descriptors.compute_types import item_size
from contract.descriptors.operations import Algo
from contract.machines.cpu import Cpu
from contract.plan.products import (
    STRIDE_A,
    STRIDE_B,
    STRIDE_D,
    Option,
    ProductProblem,
    Stride,
    block_rank,
    extent_of,
    is_direct,
    makes_matrix,
    product_step,
    run_length,
)
from contract.plan.steps import Gett, Kind, Loop, Panels

__all__ = ["least_by_panels", "panel_options"]


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


@dataclass(frozen=True, slots=True)
class _Space:
    """A product's loops, in the order in which their blocks are visited, and what it runs on."""

    loops: tuple[Loop, ...]
    visits: tuple[int, ...]
    dtype: str
    cpu: Cpu


def least_by_panels(products: int, dtype: str, cpu: Cpu) -> float:
    """What so many multiply-adds by panels take at least: one block, nothing packed."""
    seconds = cpu.call + cpu.panels + cpu.block + cpu.product
    return seconds + cpu.multiplying(products, dtype)


def panel_options(problem: ProductProblem, loops: tuple[Loop, ...], cpu: Cpu) -> Iterator[Option]:
    """Every choice of packed operands, with the cheapest blocking for each."""
    visits = tuple(sorted(range(len(loops)), key=lambda at: block_rank(loops[at])))
    space = _Space(loops, visits, problem.dtype, cpu)
    for shape in _shapes(problem, loops):
        seconds, blocks = min(
            (_panel_seconds(shape, blocks, space), blocks) for blocks in _blockings(shape, space)
        )
        step = replace(product_step(Gett, problem, loops), blocking=_panels(shape, blocks, loops))
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
    may_a = not is_direct(problem.a, problem.dtype), True
    may_b = not is_direct(problem.b, problem.dtype), True
    may_d = problem.c is not None or problem.d.dtype != problem.dtype, True
    for packs in sorted(set(combinations(may_a, may_b, may_d))):
        pack_a, pack_b, pack_d = packs
        m_chains = _chains(loops, Kind.M, not pack_a, not pack_d)
        n_chains = _chains(loops, Kind.N, not pack_b, not pack_d)
        k_chains = _chains(loops, Kind.K, not pack_a, not pack_b)
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
    loops: tuple[Loop, ...], kind: Kind, direct_first: bool, direct_second: bool
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
        (shape.pack_a or makes_matrix(STRIDE_A, m, k))
        and (shape.pack_b or makes_matrix(STRIDE_B, k, n))
        and (shape.pack_d or makes_matrix(STRIDE_D, m, n))
    )


_BLOCKED_KINDS = ((Kind.BATCH, Kind.M), (Kind.BATCH, Kind.N), (Kind.K,))


def _blockings(shape: _Shape, space: _Space) -> Iterator[tuple[int, ...]]:
    """Block extents worth costing: everything whole, or the loops of some kinds cut to fit."""
    loops = space.loops
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
    for kinds in _BLOCKED_KINDS:
        cut = [at for at, loop in enumerate(loops) if loop.kind in kinds and whole[at] > 1]
        touched = [stride for stride in packed if any(stride(loops[at]) for at in cut)]
        most = _panel_elements(loops, whole, touched)
        for budget in space.cpu.panel_bytes:
            elements = budget // item_size(space.dtype)
            if touched and most > elements:  # else all blocks grow until they are whole
                yield _grow_blocks(shape, space, whole, cut, touched, elements)


def _grow_blocks(
    shape: _Shape,
    space: _Space,
    whole: list[int],
    cut: list[int],
    touched: list[Stride],
    elements: int,
) -> tuple[int, ...]:
    """Double the loops of ``cut`` in turn, nearest in memory first, until panels are full."""
    loops = space.loops
    blocks = [1 if at in cut else size for at, size in enumerate(whole)]
    line = 2 * space.cpu.line // item_size(space.dtype)
    queues = [
        sorted((at for at in cut if stride(loops[at])), key=lambda at: abs(stride(loops[at])))
        for stride in (*touched, *_direct(shape))
    ]
    queues = [queue for queue in queues if queue]
    for queue in queues:  # whole cache lines of every operand come first
        blocks[queue[0]] = min(loops[queue[0]].extent, max(line, blocks[queue[0]]))
    _complete_chains(shape, loops, blocks)
    active = [True] * len(queues)
    while any(active):
        for index, queue in enumerate(queues):
            grown = _doubled(queue, blocks, loops, shape) if active[index] else None
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
    queue: list[int], blocks: list[int], loops: tuple[Loop, ...], shape: _Shape
) -> list[int] | None:
    """Blocks with the first loop of the queue that is not whole doubled; None if all are."""
    at = next((at for at in queue if blocks[at] < loops[at].extent), None)
    if at is None:
        return None
    grown = list(blocks)
    grown[at] = min(2 * blocks[at], loops[at].extent)
    _complete_chains(shape, loops, grown)
    return grown


def _complete_chains(shape: _Shape, loops: tuple[Loop, ...], blocks: list[int]) -> None:
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


def _panel_seconds(shape: _Shape, blocks: tuple[int, ...], space: _Space) -> float:
    """Blocks, packing and unpacking, reading what is not packed, and the matrix products."""
    loops, dtype, cpu = space.loops, space.dtype, space.cpu
    counts = [ceil(loop.extent / block) for loop, block in zip(loops, blocks, strict=True)]
    sizes = [loop.extent / count for loop, count in zip(loops, counts, strict=True)]
    m, n, k, batch = (
        ceil(prod([sizes[at] for at in part])) for part in (shape.m, shape.n, shape.k, shape.batch)
    )
    blocks_count = prod(counts)
    products = cpu.product_seconds(batch, m, n, k, dtype)
    products *= cpu.imbalance(blocks_count, m * n * k)
    seconds = cpu.call + cpu.panels + blocks_count * (cpu.block + products)
    # Every block of k after the first is added to the sum so far.
    blocks_of_k = prod(c for loop, c in zip(loops, counts, strict=True) if loop.kind is Kind.K)
    sums = prod(loop.extent for loop in loops if loop.kind is not Kind.K)
    seconds += (blocks_of_k - 1) * cpu.add_seconds(sums, dtype)
    for stride, packed, pair in (
        (STRIDE_A, shape.pack_a, (shape.m, shape.k)),
        (STRIDE_B, shape.pack_b, (shape.k, shape.n)),
        (STRIDE_D, shape.pack_d, (shape.m, shape.n)),
    ):
        seconds += _operand_seconds(stride, packed, pair, blocks, counts, space)
    return seconds


def _operand_seconds(
    stride: Stride,
    packed: bool,
    pair: tuple[tuple[int, ...], tuple[int, ...]],
    blocks: tuple[int, ...],
    counts: list[int],
    space: _Space,
) -> float:
    loops, dtype = space.loops, space.dtype
    own = [(loop, block) for loop, block in zip(loops, blocks, strict=True) if stride(loop)]
    mine, sizes = [loop for loop, _ in own], [block for _, block in own]
    run = run_length(mine, stride, sizes)
    elements = extent_of(mine) * _times_packed(stride, counts, space)
    if not packed:
        return space.cpu.stream_seconds(elements, run, dtype)
    transposed = bool(mine) and not any(
        chain and abs(stride(loops[chain[0]])) == min(abs(stride(loop)) for loop in mine)
        for chain in pair
    )
    return space.cpu.copy_seconds(elements, run, dtype, transposed, panel=prod(sizes))


def _times_packed(stride: Stride, counts: list[int], space: _Space) -> int:
    """How often an operand is packed: blocks run l, then m and n, then k fastest."""
    loops, order = space.loops, space.visits
    mine = [i for i, at in enumerate(order) if counts[at] > 1 and stride(loops[at])]
    if stride is STRIDE_D or not mine:
        return 1
    return prod(counts[at] for at in order[: mine[-1]] if not stride(loops[at]))
