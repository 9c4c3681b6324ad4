"""Reductions on the host: blocks of kept and reduced elements, finished while they are in cache.

A block of kept elements is reduced over all blocks of reduced ones, then scaled, added to C and
written. An operand that is converted or transformed is copied into a buffer block by block.
Where few elements are kept, the reduced ones are cut into a fixed number of parts, so that all
threads have work and no bit depends on their number.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np

from contract.descriptors.layout import fuse, packed_strides
from contract.descriptors.operators import Operator
from contract.host.kernels.operators import UFUNCS, apply_operator, spare_elements, transforming
from contract.host.kernels.protocol import SMALL_ELEMENTS, CopyKernel, HostKernels, flatten
from contract.host.resources.memory import Cutter
from contract.host.resources.prepared import Memory, Prepared, Scalars, share
from contract.host.resources.views import Array, assign, compact_strides, viewer
from contract.host.resources.workers import Workers
from contract.host.steps.epilogue import Blocks, Finish, Flat, filled, offset
from contract.plan.steps import Plan, Reduce, Source, View
from contract.plan.workspace import rounded

__all__ = ["prepare_reduce"]

KEPT_ELEMENTS = 1 << 13  # of a block, in which sums stay in cache
LOADED_ELEMENTS = 1 << 14  # of a block that is copied first
JOBS = 16  # for the threads to share, where the sizes allow so many
LONG_PART = 1 << 15  # elements; shorter parts are not worth a thread
SLICE_WORK = 1 << 25  # elements, between which Python looks for signals
MOST_JOBS = 1 << 12


def prepare_reduce(plan: Plan, step: Reduce, kernels: HostKernels, workers: Workers) -> Prepared:
    """The step as a function; its blocks belong to the handle."""
    if prod(step.extents) <= SMALL_ELEMENTS:
        return _small(plan, step)
    blocked = BlockedReduction(plan, step, kernels)
    straight = _straight(plan, step, blocked)
    scalar = step.source.scalar

    def run(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        if straight is not None and (scalar is None or scalars[scalar.value] == 1):
            read, write = slots[step.source.view.slot], slots[step.target.slot]
            partial = Cutter(memory.tiles).take(straight.partial, blocked.dtype)
            straight(flatten(read), flatten(write), partial)
            return
        call = _ReductionCall(blocked, slots, scalars)
        cutter = Cutter(memory.tiles)
        partial = cutter.take(blocked.partial_elements, blocked.dtype)
        rest = memory.tiles[cutter.at :]
        share(workers, blocked.jobs, 1, rest, blocked.lane, call.body(partial))
        if blocked.parts > 1:
            call.combine(partial, Cutter(rest))

    needed = 0 if straight is None else straight.partial * blocked.dtype.itemsize

    def direct(inputs: Sequence[Array], out: Array, memory: Array) -> None:
        assert straight is not None
        partial = memory[:needed].view(blocked.dtype)
        straight(flatten(inputs[step.source.view.slot]), flatten(out), partial)

    partial_bytes = rounded(blocked.partial_elements * blocked.dtype.itemsize)
    lanes = workers.parts(blocked.jobs, 1)
    alone = straight is not None and not blocked.dtype.hasobject
    tiles = partial_bytes + lanes * blocked.lane
    return Prepared(run, tiles=tiles, direct=direct if alone else None, direct_bytes=needed)


class _Straight(NamedTuple):
    """A kernel from memory to memory.

    With ``partial`` elements it writes parts of sums there, which ``rest`` adds up.
    """

    first: CopyKernel
    partial: int = 0
    rest: CopyKernel | None = None

    def __call__(self, read: Flat, write: Flat, partial: Array) -> None:
        if self.rest is None:
            self.first(*read, *write)
        else:
            self.first(*read, partial, 0)
            self.rest(partial, 0, *write)


def _straight(plan: Plan, step: Reduce, blocked: "BlockedReduction") -> _Straight | None:
    """The kernels from the source to the target, where nothing comes between."""
    target_type = plan.slots[step.target.slot].tensor.dtype
    if blocked.loaded or step.addend or target_type != step.dtype:
        return None
    if blocked.parts == 1:
        return _whole(blocked)
    # A further kernel for the parts' own type is not worth compiling.
    return _in_parts(blocked) if blocked.source_type == step.dtype else None


def _whole(blocked: "BlockedReduction") -> _Straight:
    """Kept elements in about as many pieces as there are to be jobs."""
    kept, reduced = blocked.kept.extents, blocked.reduced.extents
    work = prod(kept) * prod(reduced)
    grid = Blocks(kept, kept)
    if kept and work >= 2 * LONG_PART:
        grid = _cut(grid, _jobs(work))
    strides = blocked.finish.strides[0]
    kernel = cache(lambda extents: blocked.kernel(extents, reduced, strides))
    jobs = [
        (offset(blocked.kept_strides, starts), offset(strides, starts), kernel(extents))
        for starts, extents in map(grid.block, range(grid.count))
    ]
    return _Straight(blocked.family.together(jobs))


def _in_parts(blocked: "BlockedReduction") -> _Straight:
    """Blocks of kept elements, each in parts that are added up afterwards, in order."""
    size, parts, strides = blocked.kept.size, blocked.parts, blocked.finish.strides[0]
    kernel = cache(lambda kept, reduced: blocked.kernel(kept, reduced, packed_strides(kept)))
    jobs, rest = [], []
    for block, part in np.ndindex(blocked.kept.count, parts):
        starts, kept = blocked.kept.block(block)
        inner, reduced = blocked.reduced.block(part)
        there = offset(blocked.kept_strides, starts) + offset(blocked.reduced_strides, inner)
        jobs.append((there, (block * parts + part) * size, kernel(kept, reduced)))
        if part == 0:
            rest.append((block * parts * size, offset(strides, starts), blocked.added(kept)))
    together = blocked.family.together
    return _Straight(together(jobs), len(jobs) * size, together(rest))


def _small(plan: Plan, step: Reduce) -> Prepared:
    """NumPy's own reduction, on the whole operand."""
    source, target, addend = step.source, step.target, step.addend
    kept = step.extents[: step.kept]
    axes = tuple(range(step.kept, len(step.extents)))
    dtype, function = np.dtype(step.dtype), UFUNCS[step.operator]
    read = viewer(plan.slots[source.view.slot].tensor, step.extents, source.view.strides)
    write = viewer(plan.slots[target.slot].tensor, kept, target.strides)
    reduce, transform = function.reduce, transforming(source.operator, dtype)
    slot, into = source.view.slot, target.slot
    factor = None if source.scalar is None else source.scalar.value
    add = None if addend is None else _small_addend(plan, addend, kept, dtype)
    # Two dimensions and more may be gone through in another order where the result has another.
    in_place = len(kept) < 2 and add is None and plan.slots[into].tensor.dtype == step.dtype
    is_plain = source.operator is Operator.IDENTITY

    def run(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        x = read(slots[slot]) if is_plain else transform(read(slots[slot]))
        if in_place and (factor is None or scalars[factor] == 1):
            reduce(x, axes, dtype, write(slots[into]))
            return
        value = reduce(x, axes, dtype)
        if factor is not None and scalars[factor] != 1:
            value = np.multiply(value, scalars[factor], dtype=dtype)
        if add is not None:
            value = add(value, slots, scalars)
        assign(write(slots[into]), value)

    size = max(prod(step.extents), prod(kept))  # of no elements a result is made all the same
    return Prepared(run, own=4 * size * dtype.itemsize)


def _small_addend(
    plan: Plan, addend: Source, kept: tuple[int, ...], dtype: np.dtype[Any]
) -> Callable[[Array, Sequence[Array], Scalars], Array] | None:
    """(value, slots, scalars) -> value + beta * op(C); C is not read where beta is 0."""
    if addend.scalar is None:
        return None
    slot, factor = addend.view.slot, addend.scalar.value
    read = viewer(plan.slots[slot].tensor, kept, addend.view.strides)
    transform = transforming(addend.operator, dtype)

    def added(value: Array, slots: Sequence[Array], scalars: Scalars) -> Array:
        beta = scalars[factor]
        if beta == 0:
            return value
        return np.asarray(value + np.multiply(transform(read(slots[slot])), beta, dtype=dtype))

    return added


class _Kernels(NamedTuple):
    """The kernels of all blocks with the same extents."""

    load: CopyKernel | None
    loaded: int
    reduce: CopyKernel


class BlockedReduction:
    """A reduction, blocked: ``jobs`` to share, ``lane`` bytes of buffers for each thread.

    Job j is part j % parts of kept block j // parts.
    """

    def __init__(self, plan: Plan, step: Reduce, kernels: HostKernels) -> None:
        self.step = step
        self.family = kernels
        self.dtype = np.dtype(step.dtype)
        self.source_type = plan.slots[step.source.view.slot].tensor.dtype
        views = [step.target] + ([step.addend.view] if step.addend is not None else [])
        kept, (self.kept_strides, *strides) = _fused(
            step, range(step.kept), [step.source.view, *views]
        )
        reduced, (self.reduced_strides,) = _fused(
            step, range(step.kept, len(step.extents)), [step.source.view]
        )
        self.loaded = step.source.operator is not Operator.IDENTITY or not kernels.reduces(
            self.source_type, step.dtype
        )
        self.kept, self.reduced = self._blocked(kept, reduced)
        types = [plan.slots[view.slot].tensor.dtype for view in views]
        operator = Operator.IDENTITY if step.addend is None else step.addend.operator
        self.finish = Finish(kernels, step.dtype, types, strides, operator)
        self.parts = 1
        work = prod(kept) * prod(reduced)
        if self.kept.count < JOBS // 2 and work >= 2 * LONG_PART:
            self.parts = min(self.reduced.count, max(_jobs(work) // self.kept.count, 1))
        self.jobs = self.kept.count * self.parts
        self.partial_elements = self.jobs * self.kept.size if self.parts > 1 else 0
        self.lane = sum(rounded(size * self.dtype.itemsize) for size in self.sizes)
        self.lane += self.finish.bytes(self.kept.size)
        self.kernels: Callable[..., _Kernels] = cache(self._kernels)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Elements of the buffers of one thread: loaded, spare, value, further value."""
        loaded = self.kept.size * self.reduced.size if self.loaded else 0
        spare = spare_elements(self.step.source.operator, loaded)
        further = self.kept.size if self.reduced.count > self.parts else 0
        return loaded, spare, self.kept.size, further

    def _blocked(self, kept: tuple[int, ...], reduced: tuple[int, ...]) -> tuple[Blocks, Blocks]:
        """Blocks that fit the cache, enough of them to share."""
        if self.loaded:
            outer, inner = self._loaded_blocks(kept, reduced)
        else:
            outer, inner = Blocks(kept, filled(kept, KEPT_ELEMENTS)), Blocks(reduced, reduced)
        work = prod(kept) * prod(reduced)
        if outer.count >= JOBS // 2 or work < 2 * LONG_PART:
            return outer, inner
        slowest_kept = abs(self.kept_strides[-1]) if kept else 0
        if kept and (not reduced or slowest_kept > abs(self.reduced_strides[-1])):
            outer = _cut(outer, _jobs(work))
        if outer.count < JOBS // 2 and reduced and not self.loaded:
            inner = _cut(inner, _jobs(work) // outer.count)
        return outer, inner

    def _loaded_blocks(
        self, kept: tuple[int, ...], reduced: tuple[int, ...]
    ) -> tuple[Blocks, Blocks]:
        """Blocks of an operand that is copied first, as it lies in memory."""
        extents, strides = (*kept, *reduced), (*self.kept_strides, *self.reduced_strides)
        order = sorted(range(len(extents)), key=lambda at: abs(strides[at]) or 1 << 62)
        sizes = filled([extents[at] for at in order], LOADED_ELEMENTS)
        by_place = dict(zip(order, sizes, strict=True))
        blocks = tuple(by_place[at] for at in range(len(extents)))
        split = len(kept)
        return Blocks(kept, blocks[:split]), Blocks(reduced, blocks[split:])

    def _kernels(self, kept: tuple[int, ...], reduced: tuple[int, ...]) -> _Kernels:
        packed = packed_strides(kept)
        there = (*self.kept_strides, *self.reduced_strides)
        if not self.loaded:
            return _Kernels(None, 0, self.kernel(kept, reduced, packed))
        extents = (*kept, *reduced)
        order = sorted(range(len(extents)), key=lambda at: abs(there[at]) or 1 << 62)
        here, loaded = compact_strides(extents, order)
        load = self.family.copy(extents, there, here, self.source_type, self.step.dtype)
        return _Kernels(load, loaded, self.kernel(kept, reduced, packed, here))

    def kernel(
        self,
        kept: tuple[int, ...],
        reduced: tuple[int, ...],
        target: Sequence[int],
        loaded: Sequence[int] | None = None,
    ) -> CopyKernel:
        """The reduction of one block into strides ``target``, from memory or as it was loaded."""
        dtype = self.step.dtype
        source = (*self.kept_strides, *self.reduced_strides) if loaded is None else loaded
        return self.family.reduce(
            kept,
            source[: len(kept)],
            target,
            reduced,
            source[len(kept) :],
            self.source_type if loaded is None else dtype,
            dtype,
            self.step.operator,
        )

    def added(self, kept: tuple[int, ...]) -> CopyKernel:
        """The parts of one block combined, from where they lie side by side to the target."""
        dtype = self.step.dtype
        return self.family.reduce(
            kept,
            packed_strides(kept),
            self.finish.strides[0],
            (self.parts,),
            (self.kept.size,),
            dtype,
            dtype,
            self.step.operator,
        )


class _ReductionCall:
    """One execution: the operands' memory, the scalars, and the work on blocks."""

    def __init__(self, blocked: BlockedReduction, slots: Sequence[Array], scalars: Scalars) -> None:
        step = blocked.step
        self.blocked = blocked
        self.source = flatten(slots[step.source.view.slot])
        self.target = flatten(slots[step.target.slot])
        alpha = 1 if step.source.scalar is None else scalars[step.source.scalar.value]
        beta = 0
        self.addend: Flat | None = None
        if step.addend is not None and step.addend.scalar is not None:
            beta = scalars[step.addend.scalar.value]
            self.addend = flatten(slots[step.addend.view.slot]) if beta != 0 else None
        self.factors = alpha, beta

    def body(self, partial: Array) -> Callable[[int, int, Cutter], None]:
        """The jobs begin..end with buffers of their own."""
        blocked, going = self.blocked, self.blocked.family.workers.going

        def run(begin: int, end: int, cutter: Cutter) -> None:
            buffers = [cutter.take(size, blocked.dtype) for size in blocked.sizes]
            rest = blocked.finish.buffers(blocked.kept.size, cutter)
            with np.errstate(all="ignore"):
                for job in going(range(begin, end)):
                    block, part = divmod(job, blocked.parts)
                    if blocked.parts > 1:
                        buffers[2] = self._piece(partial, job)
                    self._reduce(block, part, buffers)
                    if blocked.parts == 1:
                        self._finish(block, buffers[2], rest)

        return run

    def combine(self, partial: Array, cutter: Cutter) -> None:
        """Add up the parts of each block, in order."""
        blocked = self.blocked
        function = UFUNCS[blocked.step.operator]
        rest = blocked.finish.buffers(blocked.kept.size, cutter)
        with np.errstate(all="ignore"):
            for block in range(blocked.kept.count):
                count = prod(blocked.kept.block(block)[1])
                first = block * blocked.parts
                value = self._piece(partial, first)
                for job in range(first + 1, first + blocked.parts):
                    other = self._piece(partial, job)
                    function(value[:count], other[:count], out=value[:count])
                self._finish(block, value, rest)

    def _piece(self, partial: Array, job: int) -> Array:
        size = self.blocked.kept.size
        return partial[job * size : (job + 1) * size]

    def _reduce(self, block: int, part: int, buffers: Sequence[Array]) -> None:
        """The part of the reduced blocks of a kept block that falls to one job."""
        blocked = self.blocked
        loaded, spare, value, further = buffers
        starts, kept = blocked.kept.block(block)
        origin = self.source[1] + offset(blocked.kept_strides, starts)
        first, last = (blocked.reduced.count * at // blocked.parts for at in (part, part + 1))
        for at in blocked.family.workers.going(range(first, last)):
            inner, reduced = blocked.reduced.block(at)
            kernels = blocked.kernels(kept, reduced)
            memory = self.source[0], origin + offset(blocked.reduced_strides, inner)
            if kernels.load is not None:
                kernels.load(*memory, loaded, 0)
                apply_operator(blocked.step.source.operator, loaded[: kernels.loaded], spare)
                memory = loaded, 0
            kernels.reduce(*memory, value if at == first else further, 0)
            if at > first:
                one, two = value[: prod(kept)], further[: prod(kept)]
                UFUNCS[blocked.step.operator](one, two, out=one)

    def _finish(self, block: int, value: Array, buffers: tuple[Array, Array]) -> None:
        place = self.blocked.kept.block(block)
        self.blocked.finish(value, place, self.target, self.addend, self.factors, buffers)


def _fused(
    step: Reduce, dimensions: Sequence[int], views: Sequence[View]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Dimensions by increasing stride of the source, those contiguous in all views made one."""
    strides = step.source.view.strides
    order = sorted(dimensions, key=lambda at: abs(strides[at]) or 1 << 62)
    return fuse(
        [step.extents[at] for at in order], *([view.strides[at] for at in order] for view in views)
    )


def _jobs(work: int) -> int:
    """In how many jobs so many elements are reduced, where the sizes allow so many."""
    return min(max(JOBS, work // SLICE_WORK), work // LONG_PART, MOST_JOBS)


def _cut(blocks: Blocks, most: int) -> Blocks:
    """About ``most`` blocks along the slowest dimension."""
    block = min(blocks.blocks[-1], max(ceil(blocks.extents[-1] / max(most, 1)), 1))
    return Blocks(blocks.extents, (*blocks.blocks[:-1], block))
