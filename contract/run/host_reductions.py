"""Reductions on the host: blocks of kept and reduced elements, finished while they are in cache.

A block of kept elements is reduced over all blocks of reduced ones, then scaled, added to C and
written. An operand that is converted or transformed is copied into a buffer block by block.
Where few elements are kept, the reduced ones are cut into a fixed number of parts, so that all
threads have work and no bit depends on their number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, prod
from typing import Any

import numpy as np

from contract.layout import fuse, packed_strides
from contract.operators import Operator
from contract.plan import Plan, Reduce
from contract.run.host_kernels import CopyKernel, HostKernels, flatten
from contract.run.host_operators import (
    UFUNCS,
    add_scaled,
    apply_operator,
    spare_elements,
    transformed,
)
from contract.run.host_views import Array, compact_strides, viewer
from contract.run.memory import Cutter, rounded
from contract.run.steps import Memory, Prepared, Scalars, share
from contract.run.workers import Workers

__all__ = ["prepare_reduce"]

SMALL_ELEMENTS = 1 << 13  # one NumPy call is the quickest way
KEPT_ELEMENTS = 1 << 13  # of a block, in which sums stay in cache
LOADED_ELEMENTS = 1 << 14  # of a block that is copied first
JOBS = 16  # for the threads to share, where the sizes allow so many
LONG_PART = 1 << 15  # elements; shorter parts are not worth a thread

Flat = tuple[Array, int]  # memory, and the element at which an operand starts


def prepare_reduce(plan: Plan, step: Reduce, kernels: HostKernels, workers: Workers) -> Prepared:
    """The step as a function; its blocks belong to the handle."""
    if prod(step.extents) <= SMALL_ELEMENTS:
        return _small(plan, step)
    blocked = BlockedReduction(plan, step, kernels)

    def run(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        call = _Call(blocked, slots, scalars)
        cutter = Cutter(memory.tiles)
        partial = cutter.take(blocked.partial_elements, blocked.dtype)
        rest = memory.tiles[cutter.at :]
        share(workers, blocked.jobs, 1, rest, blocked.lane, call.body(partial))
        if blocked.parts > 1:
            call.combine(partial, Cutter(rest))

    partial_bytes = rounded(blocked.partial_elements * blocked.dtype.itemsize)
    lanes = workers.parts(blocked.jobs, 1)
    return Prepared(run, tiles=partial_bytes + lanes * blocked.lane)


def _small(plan: Plan, step: Reduce) -> Prepared:
    """NumPy's own reduction, on the whole operand."""
    source, target, addend = step.source, step.target, step.addend
    kept = step.extents[: step.kept]
    axes = tuple(range(step.kept, len(step.extents)))
    dtype, function = np.dtype(step.dtype), UFUNCS[step.operator]
    read = viewer(plan.slots[source.view.slot].tensor, step.extents, source.view.strides)
    write = viewer(plan.slots[target.slot].tensor, kept, target.strides)
    plus = None
    if addend is not None:
        plus = viewer(plan.slots[addend.view.slot].tensor, kept, addend.view.strides)

    def run(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        with np.errstate(all="ignore"):
            view = transformed(read(slots[source.view.slot]), source.operator, dtype)
            if view.shape != step.extents:
                view = np.broadcast_to(view, step.extents)
            value = function.reduce(view, axis=axes, dtype=dtype)
            if source.scalar is not None and scalars[source.scalar.value] != 1:
                value = np.multiply(value, scalars[source.scalar.value], dtype=dtype)
            if addend is not None and plus is not None and addend.scalar is not None:
                beta = scalars[addend.scalar.value]
                if beta != 0:
                    c = transformed(plus(slots[addend.view.slot]), addend.operator, dtype)
                    value = value + np.multiply(c, beta, dtype=dtype)
            np.copyto(write(slots[target.slot]), value, casting="unsafe")

    size = dtype.itemsize * prod(step.extents)
    return Prepared(run, own=4 * size)


@dataclass(frozen=True, slots=True)
class _Axes:
    """The kept or the reduced dimensions: extents, blocks, and the strides of each operand."""

    extents: tuple[int, ...]
    blocks: tuple[int, ...]
    source: tuple[int, ...]
    target: tuple[int, ...] = ()
    addend: tuple[int, ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """How many blocks there are along each dimension."""
        return tuple(ceil(n / block) for n, block in zip(self.extents, self.blocks, strict=True))

    def block(self, at: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The starts and the extents of a block."""
        starts = []
        for count, block in zip(self.counts, self.blocks, strict=True):
            starts.append(at % count * block)
            at //= count
        sizes = (
            min(block, n - start)
            for n, block, start in zip(self.extents, self.blocks, starts, strict=True)
        )
        return tuple(starts), tuple(sizes)


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The kernels of all blocks with the same extents."""

    load: CopyKernel | None
    loaded: int
    reduce: CopyKernel
    store: CopyKernel
    add: CopyKernel | None
    count: int


class BlockedReduction:
    """A reduction, blocked: ``jobs`` to share, ``lane`` bytes of buffers for each thread.

    Job j is part j % parts of kept block j // parts.
    """

    def __init__(self, plan: Plan, step: Reduce, kernels: HostKernels) -> None:
        self.step = step
        self.family = kernels
        self.dtype = np.dtype(step.dtype)
        self.types = [slot.tensor.dtype for slot in plan.slots]
        source_type = self.types[step.source.view.slot]
        self.loaded = step.source.operator is not Operator.IDENTITY or not kernels.reduces(
            source_type, step.dtype
        )
        self.kept, self.reduced = _blocked(*_axes(step), self.loaded)
        self.chain = prod(self.reduced.counts)
        blocks = prod(self.kept.counts)
        self.parts = min(self.chain, ceil(JOBS / blocks)) if blocks < JOBS // 2 else 1
        self.jobs = blocks * self.parts
        self.block = prod(self.kept.blocks)
        self.partial_elements = self.jobs * self.block if self.parts > 1 else 0
        self.lane = self._lane_bytes()
        self.kernels: Callable[..., _Kernels] = cache(self._kernels)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Elements of the buffers of one thread: loaded, value, further value, spare."""
        step = self.step
        loaded = self.block * prod(self.reduced.blocks) if self.loaded else 0
        spare = spare_elements(step.source.operator, loaded)
        if step.addend is not None:
            spare = max(spare, spare_elements(step.addend.operator, self.block))
        further = self.block if self.chain > self.parts or step.addend is not None else 0
        return loaded, self.block, further, spare

    def _lane_bytes(self) -> int:
        return sum(rounded(size * self.dtype.itemsize) for size in self.sizes)

    def _kernels(self, kept: tuple[int, ...], reduced: tuple[int, ...]) -> _Kernels:
        step, dtype = self.step, self.step.dtype
        source_type = self.types[step.source.view.slot]
        there = (*self.kept.source, *self.reduced.source)
        extents = (*kept, *reduced)
        here = there
        load, loaded = None, 0
        if self.loaded:
            order = sorted(range(len(extents)), key=lambda at: abs(there[at]) or 1 << 62)
            here, loaded = compact_strides(extents, order)
            load = self.family.copy(extents, there, here, source_type, dtype)
            source_type = dtype
        packed, split = packed_strides(kept), len(kept)
        reduce = self.family.reduce(
            kept, here[:split], packed, reduced, here[split:], source_type, dtype, step.operator
        )
        target_type = self.types[step.target.slot]
        store = self.family.copy(kept, packed, self.kept.target, dtype, target_type)
        add = None
        if step.addend is not None:
            addend_type = self.types[step.addend.view.slot]
            add = self.family.copy(kept, self.kept.addend, packed, addend_type, dtype)
        return _Kernels(load, loaded, reduce, store, add, prod(kept))


class _Call:
    """One execution: the operands' memory, the scalars, and the work on blocks."""

    def __init__(self, blocked: BlockedReduction, slots: Sequence[Array], scalars: Scalars) -> None:
        step = blocked.step
        self.blocked = blocked
        self.source = flatten(slots[step.source.view.slot])
        self.target = flatten(slots[step.target.slot])
        self.addend: Flat | None = None
        self.alpha: Any = 1 if step.source.scalar is None else scalars[step.source.scalar.value]
        self.beta: Any = 0
        if step.addend is not None and step.addend.scalar is not None:
            self.beta = scalars[step.addend.scalar.value]
            self.addend = flatten(slots[step.addend.view.slot]) if self.beta != 0 else None

    def body(self, partial: Array) -> Callable[[int, int, Cutter], None]:
        """The jobs begin..end with buffers of their own."""
        blocked = self.blocked

        def run(begin: int, end: int, cutter: Cutter) -> None:
            buffers = [cutter.take(size, blocked.dtype) for size in blocked.sizes]
            with np.errstate(all="ignore"):
                for job in range(begin, end):
                    block, part = divmod(job, blocked.parts)
                    if blocked.parts > 1:
                        place = partial[job * blocked.block : (job + 1) * blocked.block]
                        self._reduce(block, part, [buffers[0], place, *buffers[2:]])
                    else:
                        self._reduce(block, part, buffers)
                        self._finish(block, buffers[1], buffers[2], buffers[3])

        return run

    def combine(self, partial: Array, cutter: Cutter) -> None:
        """Add up the parts of each block, in order."""
        blocked = self.blocked
        function = UFUNCS[blocked.step.operator]
        _, _, further, spare = (cutter.take(size, blocked.dtype) for size in blocked.sizes)
        with np.errstate(all="ignore"):
            for block in range(blocked.jobs // blocked.parts):
                pieces = [
                    partial[job * blocked.block : (job + 1) * blocked.block]
                    for job in range(block * blocked.parts, (block + 1) * blocked.parts)
                ]
                count = prod(blocked.kept.block(block)[1])
                for piece in pieces[1:]:
                    function(pieces[0][:count], piece[:count], out=pieces[0][:count])
                self._finish(block, pieces[0], further, spare)

    def _reduce(self, block: int, part: int, buffers: Sequence[Array]) -> None:
        """The part of the reduced blocks of a kept block that falls to one job."""
        blocked = self.blocked
        loaded, value, further, spare = buffers
        starts, kept = blocked.kept.block(block)
        origin = self.source[1] + _offset(blocked.kept.source, starts)
        first, last = (blocked.chain * at // blocked.parts for at in (part, part + 1))
        for at in range(first, last):
            inner, reduced = blocked.reduced.block(at)
            kernels = blocked.kernels(kept, reduced)
            memory = self.source[0], origin + _offset(blocked.reduced.source, inner)
            if kernels.load is not None:
                kernels.load(*memory, loaded, 0)
                filled = loaded[: kernels.loaded]
                apply_operator(blocked.step.source.operator, filled, spare)
                memory = loaded, 0
            kernels.reduce(*memory, value if at == first else further, 0)
            if at > first:
                one, two = value[: kernels.count], further[: kernels.count]
                UFUNCS[blocked.step.operator](one, two, out=one)

    def _finish(self, block: int, value: Array, further: Array, spare: Array) -> None:
        """D = [alpha *] value [+ beta * op(C)]."""
        blocked = self.blocked
        starts, kept = blocked.kept.block(block)
        kernels = blocked.kernels(kept, blocked.reduced.block(0)[1])
        plus = None
        operator = Operator.IDENTITY
        if self.addend is not None and kernels.add is not None:
            flat, origin = self.addend
            kernels.add(flat, origin + _offset(blocked.kept.addend, starts), further, 0)
            assert blocked.step.addend is not None
            plus, operator = further[: kernels.count], blocked.step.addend.operator
        add_scaled(value[: kernels.count], self.alpha, plus, self.beta, operator, spare)
        flat, origin = self.target
        kernels.store(value, 0, flat, origin + _offset(blocked.kept.target, starts))


def _offset(strides: Sequence[int], starts: Sequence[int]) -> int:
    return sum(stride * start for stride, start in zip(strides, starts, strict=True))


# --- blocks -----------------------------------------------------------------------------------


def _axes(step: Reduce) -> tuple[_Axes, _Axes]:
    """The dimensions, fused, by increasing stride of the source; not yet blocked."""
    kept = _sorted(step, range(step.kept))
    views = [step.source.view.strides, step.target.strides]
    if step.addend is not None:
        views.append(step.addend.view.strides)
    extents, strides = fuse(
        [step.extents[at] for at in kept], *([view[at] for at in kept] for view in views)
    )
    reduced = _sorted(step, range(step.kept, len(step.extents)))
    inner, (inner_strides,) = fuse(
        [step.extents[at] for at in reduced], [step.source.view.strides[at] for at in reduced]
    )
    return _Axes(extents, extents, *strides), _Axes(inner, inner, inner_strides)


def _sorted(step: Reduce, dimensions: Sequence[int]) -> list[int]:
    strides = step.source.view.strides
    return sorted(dimensions, key=lambda at: abs(strides[at]) or 1 << 62)


def _blocked(kept: _Axes, reduced: _Axes, loaded: bool) -> tuple[_Axes, _Axes]:
    """Blocks that fit the cache, enough of them to share."""
    if loaded:
        kept, reduced = _filled(kept, reduced, LOADED_ELEMENTS)
    else:
        kept = _with_blocks(kept, _fill(kept.extents, KEPT_ELEMENTS))
    if prod(kept.counts) >= JOBS // 2:
        return kept, reduced
    if kept.extents and (not reduced.extents or _last(kept) > _last(reduced)):
        kept = _cut(kept, JOBS)
    blocks = prod(kept.counts)
    if blocks < JOBS // 2 and reduced.extents and not loaded:
        work = prod(kept.extents) * prod(reduced.extents)
        reduced = _cut(reduced, min(ceil(JOBS / blocks), max(work // blocks // LONG_PART, 1)))
    return kept, reduced


def _last(axes: _Axes) -> int:
    return abs(axes.source[-1])


def _with_blocks(axes: _Axes, blocks: Sequence[int]) -> _Axes:
    return _Axes(axes.extents, tuple(blocks), axes.source, axes.target, axes.addend)


def _cut(axes: _Axes, most: int) -> _Axes:
    """About ``most`` blocks along the slowest dimension."""
    block = min(axes.blocks[-1], max(ceil(axes.extents[-1] / most), 1))
    return _with_blocks(axes, (*axes.blocks[:-1], block))


def _fill(extents: Sequence[int], room: int) -> list[int]:
    """Inner dimensions first."""
    blocks = []
    for n in extents:
        blocks.append(max(min(n, room), 1))
        room //= max(blocks[-1], 1)
    return blocks


def _filled(kept: _Axes, reduced: _Axes, room: int) -> tuple[_Axes, _Axes]:
    """The same over kept and reduced dimensions together, by the source's strides."""
    strides = (*kept.source, *reduced.source)
    extents = (*kept.extents, *reduced.extents)
    order = sorted(range(len(extents)), key=lambda at: abs(strides[at]) or 1 << 62)
    blocks = [1] * len(extents)
    for at, block in zip(order, _fill([extents[at] for at in order], room), strict=True):
        blocks[at] = block
    split = len(kept.extents)
    return _with_blocks(kept, blocks[:split]), _with_blocks(reduced, blocks[split:])
