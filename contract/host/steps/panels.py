"""A blocked product on the host: pack panels, multiply them with BLAS, unpack the result.

Blocks run in cache: a block of A and of B is copied into a panel (converted, its operator
applied) or used where it lies, the panels are multiplied, and the block of D is scaled, added
to C and written. Blocks are spread over our threads, one BLAS thread each. The order of every
sum is fixed by the plan, so the number of threads does not change a bit.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property, partial
from itertools import product as combinations
from math import ceil, prod
from typing import Any, Literal, NamedTuple

import numpy as np

from contract.descriptors.compute_types import is_blas_type
from contract.descriptors.layout import packed_strides
from contract.descriptors.operators import Operator
from contract.host.kernels.operators import add_scaled, apply_operator, spare_elements
from contract.host.kernels.protocol import CopyKernel, HostKernels, flatten
from contract.host.resources.blas_threads import blas_threads
from contract.host.resources.matrix_slices import share_product
from contract.host.resources.memory import Cutter
from contract.host.resources.prepared import Memory, Prepared, Scalars, product_work, share
from contract.host.resources.views import Array, compact_strides, strided
from contract.host.resources.workers import Workers
from contract.plan.products import block_rank
from contract.plan.steps import Gett, Kind, Loop, Panels, Plan
from contract.plan.workspace import rounded

__all__ = ["prepare_panels"]

Name = Literal["a", "b", "d", "c"]

PARTS = 4  # for each thread
THREAD_WORK = 1 << 23  # of steps.product_work, worth a thread that has to be woken


class _PanelBlock(NamedTuple):
    """One block: its extents, and the element offset of each operand."""

    extents: tuple[int, ...]
    a: int
    b: int
    d: int
    c: int


Chain = tuple[_PanelBlock, ...]  # blocks along k, summed one after the other


class _PanelSide(NamedTuple):
    """How one operand of the blocks of one shape becomes a stack of matrices.

    ``pack`` copies between memory and a panel of ``elements``; None: used where it lies.
    ``shape`` and ``byte_strides`` show the panel, or the memory, as matrices.
    """

    pack: CopyKernel | None
    elements: int
    shape: tuple[int, ...]
    byte_strides: tuple[int, ...]

    def matrices(self, flat: Array, offset: int) -> Array:
        """The stack of matrices in ``flat`` that starts at element ``offset``."""
        return strided(flat, offset, self.shape, self.byte_strides)


class _Variant(NamedTuple):
    """The sides of all blocks with the same extents."""

    a: _PanelSide
    b: _PanelSide
    d: _PanelSide
    c: _PanelSide | None


class _Memory(NamedTuple):
    """One operand of a call as flat memory, and the element at which it starts."""

    flat: Array
    origin: int


class _PanelReader:
    """Matrices of one input, block by block; a panel is packed again only when it changes."""

    def __init__(self, memory: _Memory, operator: Operator, panel: Array, spare: Array) -> None:
        self.memory = memory
        self.operator = operator
        self.panel = panel
        self.spare = spare
        self.packed: tuple[int, _PanelSide] | None = None

    def matrices(self, side: _PanelSide, offset: int) -> Array:
        if side.pack is None:
            return side.matrices(self.memory.flat, self.memory.origin + offset)
        if self.packed is None or self.packed[0] != offset or self.packed[1] is not side:
            side.pack(self.memory.flat, self.memory.origin + offset, self.panel, 0)
            apply_operator(self.operator, self.panel[: side.elements], self.spare)
            self.packed = (offset, side)
        return side.matrices(self.panel, 0)

    def twin(self, panel: Array, spare: Array) -> "_PanelReader":
        """A reader for another thread; what is packed already is read by both."""
        if self.packed is None:
            return _PanelReader(self.memory, self.operator, panel, spare)
        found = _PanelReader(self.memory, self.operator, self.panel, spare)
        found.packed = self.packed
        return found


class _PanelLane(NamedTuple):
    """What one thread works in: readers of A and B, and panels."""

    a: _PanelReader
    b: _PanelReader
    sum: Array
    further: Array
    addend: Array
    spare: Array


def prepare_panels(plan: Plan, step: Gett, kernels: HostKernels, workers: Workers) -> Prepared:
    """The step as a function; its panels are workspace."""
    product = _PanelProduct(plan, step, kernels, workers)
    return Prepared(product, product.workspace, own=product.own_bytes)


class _PanelProduct:
    """A Gett with panels, prepared once: blocks, kernels, and the shape of every panel."""

    def __init__(self, plan: Plan, step: Gett, kernels: HostKernels, workers: Workers) -> None:
        assert isinstance(step.blocking, Panels)
        self.step = step
        self.panels = step.blocking
        self.kernels = kernels
        self.workers = workers
        self.dtype = np.dtype(step.dtype)
        self.types = [slot.tensor.dtype for slot in plan.slots]
        counts = {kind: _count(step.loops, self.panels, kind) for kind in Kind}
        self.each = ceil(counts[Kind.K] / self.panels.splits)  # blocks along k of a chain
        self.parts = ceil(counts[Kind.K] / self.each)
        self.jobs = counts[Kind.BATCH] * counts[Kind.M] * counts[Kind.N] * self.parts
        matmul = kernels.matmul(step.dtype)
        # A lone block is shared by our threads, several are so already.
        is_alone = self.jobs == 1 and is_blas_type(step.dtype)
        self.matmul = partial(share_product, matmul, workers) if is_alone else matmul
        self.minimum = ceil(THREAD_WORK * self.jobs / max(product_work(step), 1))
        shapes = combinations(*map(_sizes, step.loops, self.panels.blocks))
        self.side: Callable[[Name, tuple[int, ...]], _PanelSide] = cache(self._side)
        self.variants = {extents: self._variant(extents) for extents in sorted(shapes)}
        self.size_a, self.size_b, self.size_d = (
            max(getattr(variant, name).elements for variant in self.variants.values())
            for name in ("a", "b", "d")
        )
        self.whole_a = self.panels.pack_a and _is_whole(step, "a")
        self.whole_b = self.panels.pack_b and _is_whole(step, "b")

    @cached_property
    def sums(self) -> tuple[tuple[Chain, ...], ...]:
        """For each block of D the chains that add up to it; found when they are first needed."""
        return tuple(_sums(self.step.loops, self.panels, self.each))

    def __call__(self, arrays: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        """Run the product on the plan's arrays."""
        step, sums, jobs = self.step, self.sums, self.jobs
        alpha, beta, _ = scalars
        target = _Memory(*flatten(arrays[step.d]))
        addend = None if step.c is None or beta == 0 else _memory(arrays[step.c])
        cutter = Cutter(memory.workspace)
        a, b = self._inputs(arrays, cutter)
        parts = self._partial_sums(cutter)

        def run(begin: int, end: int, cutter: Cutter) -> None:
            lane = self._lane(a, b, cutter)
            with np.errstate(all="ignore"):
                for job in self.workers.going(range(begin, end)):
                    at, part = divmod(job, self.parts)
                    chain = sums[at][part]
                    if parts is None:
                        self._sum(chain, lane, lane.sum, target)
                        self._finish(chain[0], lane, lane.sum, target, addend, alpha, beta)
                    else:
                        self._sum(chain, lane, parts[at][part], target)

        rest = memory.workspace[cutter.at :]
        if jobs > 1:
            lanes = self.workers, jobs, self.minimum, rest, self.lane_bytes
            blas_threads().alone(lambda: share(*lanes, run, PARTS))
        else:
            run(0, 1, Cutter(rest))
        if parts is not None:
            lane = self._lane(a, b, Cutter(rest))
            for sum_, panels in zip(sums, parts, strict=True):
                used = self._variant_of(sum_[0][0]).d.elements
                for panel in panels[1:]:
                    np.add(panels[0][:used], panel[:used], out=panels[0][:used])
                self._finish(sum_[0][0], lane, panels[0], target, addend, alpha, beta)

    # --- memory ---------------------------------------------------------------------------

    @property
    def workspace(self) -> int:
        """Bytes of panels that one call needs."""
        lanes = self.workers.parts(self.jobs, self.minimum) * self.lane_bytes
        shared = [self.size_a] * self.whole_a + [self.size_b] * self.whole_b
        shared += [self.size_d] * (self.jobs if self.panels.splits > 1 else 0)
        return lanes + self._bytes(shared)

    @property
    def own_bytes(self) -> int:
        """Bytes of the copy of B that products of integers make in each thread."""
        if self.dtype.kind not in "iub":
            return 0
        block = max(prod(variant.b.shape) for variant in self.variants.values())
        return self.workers.parts(self.jobs, self.minimum) * block * self.dtype.itemsize

    @cached_property
    def lane_sizes(self) -> tuple[int, int, int, int, int, int]:
        """Elements of the panels of A, B, D, a further D, C, and what operators need beside."""
        step = self.step
        own_a, own_b = self.size_a * (not self.whole_a), self.size_b * (not self.whole_b)
        block_d = max(prod(variant.d.shape) for variant in self.variants.values())
        size_c = self.size_d if step.c is not None else 0
        spare = max(
            spare_elements(step.operator_a, self.size_a),
            spare_elements(step.operator_b, self.size_b),
            spare_elements(step.operator_c, size_c),
        )
        return own_a, own_b, self.size_d, block_d * (self.each > 1), size_c, spare

    @cached_property
    def lane_bytes(self) -> int:
        """Bytes of the memory of one thread."""
        return self._bytes(self.lane_sizes)

    def _bytes(self, sizes: Iterable[int]) -> int:
        return sum(rounded(size * self.dtype.itemsize) for size in sizes)

    def _lane(self, a: _PanelReader, b: _PanelReader, cutter: Cutter) -> _PanelLane:
        own_a, own_b, *rest = (cutter.take(size, self.dtype) for size in self.lane_sizes)
        sum_, further, addend, spare = rest
        return _PanelLane(a.twin(own_a, spare), b.twin(own_b, spare), sum_, further, addend, spare)

    def _inputs(self, arrays: Sequence[Array], cutter: Cutter) -> tuple[_PanelReader, _PanelReader]:
        """The inputs; an input that every block reads whole is packed here, once."""
        step, dtype = self.step, self.dtype
        # What operators need beside lies in the threads' memory, which is free yet.
        sizes = [self.size_a] * self.whole_a + [self.size_b] * self.whole_b
        panels = [cutter.take(size, dtype) for size in sizes]
        *others, beside = self.lane_sizes
        spare = Cutter(cutter.memory, cutter.at + self._bytes(others)).take(beside, dtype)
        a = _PanelReader(_memory(arrays[step.a]), step.operator_a, spare[:0], spare)
        b = _PanelReader(_memory(arrays[step.b]), step.operator_b, spare[:0], spare)
        first = next(iter(self.variants.values()))
        if self.whole_a:
            a.panel = panels[0]
            a.matrices(first.a, 0)
        if self.whole_b:
            b.panel = panels[-1]
            b.matrices(first.b, 0)
        return a, b

    def _partial_sums(self, cutter: Cutter) -> list[list[Array]] | None:
        if self.panels.splits == 1:
            return None
        return [[cutter.take(self.size_d, self.dtype) for _ in sum_] for sum_ in self.sums]

    # --- preparation ----------------------------------------------------------------------

    def _variant(self, extents: tuple[int, ...]) -> _Variant:
        """Blocks that differ in loops an operand has not share its side, and so its panel."""

        def side(name: Name) -> _PanelSide:
            strides, (rows, columns) = _strides(self.step.loops, _like(name)), self._groups(name)
            own = (*rows, *columns, *(at for at in self.panels.batch if strides[at]))
            return self.side(name, tuple(n if at in own else 1 for at, n in enumerate(extents)))

        return _Variant(side("a"), side("b"), side("d"), None if self.step.c is None else side("c"))

    def _groups(self, name: Name) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The loops that make the rows and the columns of an operand's matrices."""
        panels = self.panels
        return {"a": (panels.m, panels.k), "b": (panels.k, panels.n)}.get(
            name, (panels.m, panels.n)
        )

    def _side(self, name: Name, extents: tuple[int, ...]) -> _PanelSide:
        step, panels = self.step, self.panels
        slot, pack = {
            "a": (step.a, panels.pack_a),
            "b": (step.b, panels.pack_b),
            "d": (step.d, panels.pack_d),
            "c": (step.c, True),
        }[name]
        assert slot is not None
        groups, memory = self._groups(name), _strides(step.loops, name)
        if not pack:
            return self._show(None, 0, extents, groups, memory)
        like = _strides(self.step.loops, _like(name))
        order = _panel_order(self.panels, groups, like)
        strides, elements = compact_strides(extents, order)
        ordered = [extents[at] for at in order]
        panel, own = [strides[at] for at in order], [memory[at] for at in order]
        there, here = self.types[slot], self.step.dtype
        kernel = (
            self.kernels.copy(ordered, panel, own, here, there)
            if name == "d"
            else self.kernels.copy(ordered, own, panel, there, here)
        )
        return self._show(kernel, elements, extents, groups, strides)

    def _show(
        self,
        kernel: CopyKernel | None,
        elements: int,
        extents: tuple[int, ...],
        groups: tuple[tuple[int, ...], tuple[int, ...]],
        strides: Sequence[int],
    ) -> _PanelSide:
        """Batch dimensions, outermost first, then the rows and columns of a matrix."""
        batch = [at for at in reversed(self.panels.batch) if self.panels.blocks[at] > 1]
        shape = [extents[at] if strides[at] else 1 for at in batch]
        steps = [strides[at] for at in batch]
        for group in groups:
            shape.append(prod(extents[at] for at in group))
            steps.append(strides[group[0]] if group else 0)
        size = self.dtype.itemsize
        return _PanelSide(kernel, elements, tuple(shape), tuple(step * size for step in steps))

    # --- one call -------------------------------------------------------------------------

    def _sum(self, chain: Chain, lane: _PanelLane, panel: Array, target: _Memory) -> None:
        """The sum over one chain of blocks, in ``panel`` or where D lies."""
        for block in self.workers.going(chain):
            variant = self._variant_of(block)
            left, right = lane.a.matrices(variant.a, block.a), lane.b.matrices(variant.b, block.b)
            d = self._result(variant.d, block, panel, target)
            if block is chain[0]:
                self.matmul(left, right, d)
                continue
            rest = strided(lane.further, 0, d.shape, _packed_like(d))
            self.matmul(left, right, rest)
            np.add(d, rest, out=d)

    def _variant_of(self, block: _PanelBlock) -> _Variant:
        return self.variants[block.extents]

    def _result(self, side: _PanelSide, block: _PanelBlock, panel: Array, target: _Memory) -> Array:
        if side.pack is None:
            return side.matrices(target.flat, target.origin + block.d)
        return side.matrices(panel, 0)

    def _finish(
        self,
        block: _PanelBlock,
        lane: _PanelLane,
        panel: Array,
        target: _Memory,
        addend: _Memory | None,
        alpha: Any,
        beta: Any,
    ) -> None:
        """D = [alpha *] sum [+ beta * op(C)], while the block is in cache."""
        variant = self._variant_of(block)
        side = variant.d
        factor = alpha if self.step.scaled else 1
        with np.errstate(all="ignore"):
            if side.pack is None:
                if factor != 1:
                    whole = self._result(side, block, panel, target)
                    np.multiply(whole, factor, out=whole, dtype=self.dtype, casting="unsafe")
                return
            plus = None
            if addend is not None and variant.c is not None and variant.c.pack is not None:
                plus = lane.addend[: variant.c.elements]
                variant.c.pack(addend.flat, addend.origin + block.c, plus, 0)
            value = panel[: side.elements]
            add_scaled(value, factor, plus, beta, self.step.operator_c, lane.spare)
            side.pack(panel, 0, target.flat, target.origin + block.d)


def _packed_like(x: Array) -> tuple[int, ...]:
    """Strides in bytes of a packed array with the memory order of ``x``."""
    order = sorted(range(x.ndim), key=lambda at: abs(x.strides[at]))
    return tuple(stride * x.itemsize for stride in packed_strides(x.shape, order))


def _memory(array: Array) -> _Memory:
    """Flat memory of an input; compiled kernels and BLAS want it aligned."""
    flat, origin = flatten(array)
    return _Memory(flat if flat.flags.aligned else flat.copy(), origin)


def _like(name: Name) -> Name:
    """The operand whose loops a panel has: C is added to the panel of D, along every loop of it."""
    return "d" if name == "c" else name


def _strides(loops: Sequence[Loop], name: Name) -> tuple[int, ...]:
    return tuple(int(getattr(loop, name)) for loop in loops)


def _panel_order(
    panels: Panels, groups: tuple[tuple[int, ...], tuple[int, ...]], memory: Sequence[int]
) -> tuple[int, ...]:
    """Loops of a panel, fastest first: the group with the loop fastest in memory comes first.

    So packing moves rows wherever it can, and BLAS takes either order.
    """
    nearest = [min((abs(memory[at]) for at in group), default=1 << 62) for group in groups]
    first, second = groups if nearest[0] <= nearest[1] else groups[::-1]
    return (*first, *second, *(at for at in panels.batch if memory[at]))


def _is_whole(step: Gett, name: Literal["a", "b"]) -> bool:
    """Whether every block reads the same panel of the operand."""
    panels = step.blocking
    assert isinstance(panels, Panels)
    foreign = Kind.N if name == "a" else Kind.M
    return all(
        block == loop.extent
        or loop.kind is foreign
        or (at in panels.batch and getattr(loop, name) == 0)
        for at, (loop, block) in enumerate(zip(step.loops, panels.blocks, strict=True))
    )


def _count(loops: Sequence[Loop], panels: Panels, kind: Kind) -> int:
    """How many blocks there are along the loops of a kind."""
    pairs = zip(loops, panels.blocks, strict=True)
    return prod(ceil(loop.extent / block) for loop, block in pairs if loop.kind is kind)


def _sizes(loop: Loop, block: int) -> list[int]:
    """The extents of blocks along a loop: of the last one, if it is smaller, and of the others."""
    rest = loop.extent % block
    return ([rest] if rest else []) + ([block] if loop.extent >= block else [])


def _sums(loops: Sequence[Loop], panels: Panels, each: int) -> Iterator[tuple[Chain, ...]]:
    """For each block of D the chains of ``each`` blocks along k that add up to it."""
    outer = [at for at, loop in enumerate(loops) if loop.kind is not Kind.K]
    outer.sort(key=lambda at: (block_rank(loops[at]), -abs(loops[at].d)))
    inner = [at for at, loop in enumerate(loops) if loop.kind is Kind.K]
    inner.sort(key=lambda at: -abs(loops[at].a))
    for where in _parts(outer, loops, panels):
        chain = [_block({**where, **along}, loops) for along in _parts(inner, loops, panels)]
        yield tuple(tuple(chain[at : at + each]) for at in range(0, len(chain), each))


def _parts(
    chosen: Sequence[int], loops: Sequence[Loop], panels: Panels
) -> Iterator[dict[int, tuple[int, int]]]:
    """Every combination of (start, extent) of the chosen loops' blocks, the last one fastest."""
    ranges = [
        [
            (start, min(panels.blocks[at], loops[at].extent - start))
            for start in range(0, loops[at].extent, panels.blocks[at])
        ]
        for at in chosen
    ]
    for parts in combinations(*ranges):
        yield dict(zip(chosen, parts, strict=True))


def _block(parts: dict[int, tuple[int, int]], loops: Sequence[Loop]) -> _PanelBlock:
    def offset(name: Name) -> int:
        return sum(parts[at][0] * int(getattr(loop, name)) for at, loop in enumerate(loops))

    extents = tuple(parts[at][1] for at in range(len(loops)))
    return _PanelBlock(extents, offset("a"), offset("b"), offset("d"), offset("c"))
