"""Elementwise steps and permutations on the host, tile by tile.

A tile of every operand stays in cache: an operand that is converted, transformed or transposed
is copied into a buffer in the target's order, the others are used where they lie; then NumPy
combines them, and the last operation writes the tile of the target.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np

from contract.descriptors.compute_types import item_size
from contract.descriptors.layout import fuse
from contract.descriptors.operations import TensorDescriptor
from contract.descriptors.operators import Operator
from contract.host.kernels.operators import UFUNCS, apply_operator, spare_elements, transforming
from contract.host.kernels.protocol import (
    SMALL_ELEMENTS,
    CopyKernel,
    HostKernels,
    PassKernel,
    TileSource,
    flatten,
)
from contract.host.resources.memory import Cutter
from contract.host.resources.prepared import Direct, Memory, Prepared, Run, Scalars, share
from contract.host.resources.views import (
    Array,
    address,
    assign,
    compact_strides,
    slabs,
    strided,
    viewer,
)
from contract.host.resources.workers import Workers
from contract.host.steps.epilogue import Blocks, Flat, offset
from contract.plan.steps import Elementwise, Permute, Plan, Scalar, Source
from contract.plan.workspace import rounded

__all__ = ["TilePass", "prepare_elementwise", "prepare_permute", "small_pass_bytes"]

BUFFERED_BYTES = 1 << 20  # of all buffers of a tile: the cache of a core
PLAIN_BYTES = 1 << 21  # of one operand's tile where nothing is buffered: only calls cost
COMPILED_BYTES = 1 << 19  # of all buffers of a tile in a compiled pass,
LEAST_BYTES = 1 << 14  # and of one operand's tile, however few there are
SHARED_BYTES = 1 << 17  # of one operand's tile, however few tiles there are
TILES = 8  # so many at least, so that threads share them evenly
LINE_BYTES = 64
LINE_ELEMENTS = 128  # of a tile along the fastest dimension of every operand
SHORT_RUN = 16  # elements; NumPy's loops cost as much as so many elements
PARALLEL_TILES = 2  # fewer are done before a second thread has started
PARTS = 4  # for each thread
NUMPY_BUFFER = 1 << 13  # elements that NumPy's loops may buffer of each operand


def prepare_elementwise(
    plan: Plan, step: Elementwise, kernels: HostKernels, workers: Workers
) -> Prepared:
    """The step as a function; its tiles belong to the handle."""
    if prod(step.extents) <= SMALL_ELEMENTS:
        return _small(plan, step)
    tiles = TilePass([slot.tensor.dtype for slot in plan.slots], step, kernels)
    count = workers.parts(tiles.count, PARALLEL_TILES)
    compiled, every = tiles.compiled(), tiles.slots

    def run(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        if compiled is not None:
            factors = tiles.factors(scalars)
            if _are_compiled(factors):
                places = [address(slots[at]) for at in every]
                compiled.run(places, address(memory.tiles), [each.real for each in factors])
                return
        total, body = tiles.bound(slots, scalars)
        share(workers, total, PARALLEL_TILES, memory.tiles, tiles.bytes, body, PARTS)

    buffers = count * 3 * NUMPY_BUFFER * tiles.dtype.itemsize
    needed = max(count * tiles.bytes, 0 if compiled is None else compiled.bytes)
    if compiled is not None and all(map(_is_plain_input, step.sources)):
        direct = _direct(compiled, tiles.slots[:-1])
        return Prepared(run, 0, needed, buffers, direct, compiled.bytes)
    return Prepared(run, tiles=needed, own=buffers)


def _is_plain_input(source: Source) -> bool:
    """Whether a source is an operand of a product, with no scalar of its own, not a C."""
    return source.scalar in (None, Scalar.ALPHA)


def _are_compiled(factors: Sequence[Any]) -> bool:
    """Whether compiled code scales by these; what is scaled by zero is not even read."""
    return all(each != 0 and each.imag == 0 for each in factors)


def _direct(compiled: PassKernel, slots: Sequence[int]) -> Direct:
    """The pass in a new array, nothing scaled."""

    def combined(inputs: Sequence[Array], out: Array, memory: Array) -> None:
        places = [address(inputs[at]) for at in slots]
        compiled.run([*places, address(out)], address(memory), None)

    return combined


def _small(plan: Plan, step: Elementwise) -> Prepared:
    """NumPy on whole operands: for a few elements calls are all."""
    target = plan.slots[step.target.slot].tensor
    write, into = viewer(target, step.extents, step.target.strides), step.target.slot
    reads = [_small_reader(plan, source, step.extents, step.dtype) for source in step.sources]
    combine = _small_combination(plan, step)

    def run(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        combine([read(slots, scalars) for read in reads], write(slots[into]))

    return Prepared(run, own=small_pass_bytes(plan, step))


def small_pass_bytes(plan: Plan, step: Elementwise) -> int:
    """What NumPy allocates for a small step, beside what it is given."""
    arrays = max(len(step.operators) - 1, 0) + sum(map(_small_arrays, step.sources))
    arrays += _is_apart(plan, step)
    arrays += sum([dtype != step.dtype for dtype in _types(plan, step)])
    return arrays * prod(step.extents) * item_size(step.dtype)


def _is_apart(plan: Plan, step: Elementwise) -> bool:
    """Whether two operands in one order are combined in theirs, which is not the result's."""
    orders = {source.view.strides for source in step.sources}
    is_plain = len(step.operators) == 1 and set(_types(plan, step)) == {step.dtype}
    return is_plain and len(orders) == 1 and step.target.strides not in orders


def _types(plan: Plan, step: Elementwise) -> list[str]:
    """The data types of the target and the sources."""
    views = [step.target, *(source.view for source in step.sources)]
    return [plan.slots[view.slot].tensor.dtype for view in views]


def _small_combination(plan: Plan, step: Elementwise) -> Callable[[list[Array], Array], None]:
    """(values, out): combine them, and store the result."""
    dtype = np.dtype(step.dtype)
    functions = [UFUNCS[operator] for operator in step.operators]
    converts = {"dtype": dtype, "casting": "unsafe"}
    if set(_types(plan, step)) == {step.dtype}:
        converts = {}  # NumPy takes longer where it is told
    apart = _is_apart(plan, step)

    def store(values: list[Array], out: Array) -> None:
        if values:
            assign(out, values[0])
        else:
            out[...] = 0

    def of_two(values: list[Array], out: Array) -> None:
        if apart:
            out[...] = function(values[0], values[1])
        else:
            function(values[0], values[1], out=out, **converts)

    def of_three(values: list[Array], out: Array) -> None:
        found = np.empty(step.extents, dtype)
        function(values[0], values[1], out=found, **converts)
        last(found, values[2], out=out, **converts)

    match functions:
        case []:
            return store
        case [function]:
            return of_two
        case [function, last]:
            return of_three
    raise AssertionError("at most three operands are combined")


def _small_arrays(source: Source) -> int:
    """How many arrays of the step's extents a small operand takes, beside its conversion."""
    applied = source.operator is not Operator.IDENTITY
    return (source.scalar is not None) + applied * (1 + spare_elements(source.operator, 1))


def _small_reader(
    plan: Plan, source: Source, extents: tuple[int, ...], name: str
) -> Callable[[Sequence[Array], Scalars], Array]:
    """scalar * op(view); what is scaled by zero is not read."""
    read = viewer(plan.slots[source.view.slot].tensor, extents, source.view.strides)
    slot, dtype = source.view.slot, np.dtype(name)
    apply = transforming(source.operator, dtype)
    if source.scalar is None:
        return lambda slots, scalars: apply(read(slots[slot]))
    scalar, is_plain = source.scalar.value, source.operator is Operator.IDENTITY

    def scaled(slots: Sequence[Array], scalars: Scalars) -> Array:
        factor = scalars[scalar]
        if factor == 0:
            return np.zeros((), dtype)
        value = read(slots[slot]) if is_plain else apply(read(slots[slot]))
        if factor == 1:
            return value
        return np.asarray(np.multiply(value, factor, dtype=dtype, casting="unsafe"))

    return scaled


def prepare_permute(plan: Plan, step: Permute, kernels: HostKernels, workers: Workers) -> Prepared:
    """A plain copy where nothing is computed, else one pass over tiles; padding around it."""
    if step.padding is not None:
        return _padded(plan, step, kernels, workers)
    general = prepare_elementwise(
        plan,
        Elementwise((step.source,), (), step.target, step.extents, step.modes, step.dtype),
        kernels,
        workers,
    )
    run = general.run
    if step.source.operator is Operator.IDENTITY:
        run = _plain_or(run, step.source.scalar, _copy(plan, step, kernels))
    return Prepared(run, tiles=general.tiles, own=general.own)


def _plain_or(general: Run, scalar: Scalar | None, copy: Run) -> Run:
    if scalar is None:
        return copy
    at = scalar.value

    def run(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        (copy if scalars[at] == 1 else general)(slots, scalars, memory)

    return run


def _copy(plan: Plan, step: Permute, kernels: HostKernels) -> Run:
    """The source copied to the target in one go."""
    source, target = step.source.view, step.target
    tensors = [plan.slots[view.slot].tensor for view in (source, target)]
    if prod(step.extents) <= SMALL_ELEMENTS:
        read = viewer(tensors[0], step.extents, source.strides)
        write = viewer(tensors[1], step.extents, target.strides)

        def run_small(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
            write(slots[target.slot])[...] = read(slots[source.slot])

        return run_small
    kernel = kernels.copy(
        step.extents, source.strides, target.strides, tensors[0].dtype, tensors[1].dtype
    )

    def run(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        kernel(*flatten(slots[source.slot]), *flatten(slots[target.slot]))

    return run


def _padded(plan: Plan, step: Permute, kernels: HostKernels, workers: Workers) -> Prepared:
    """Slabs of the padding's value around the interior, which is permuted like any tensor."""
    padding, target = step.padding, step.target
    assert padding is not None
    pairs = list(zip(padding.left, step.extents, padding.right, strict=True))
    tensor = plan.slots[target.slot].tensor
    write = viewer(tensor, [left + n + right for left, n, right in pairs], target.strides)
    outside: list[tuple[Any, ...]] = []
    inside: tuple[Any, ...] = ()
    for left, n, _ in pairs:
        outside += [(*inside, slice(0, left)), (*inside, slice(left + n, None))]
        inside = (*inside, slice(left, left + n))
    interior = TensorDescriptor(step.extents, target.strides, tensor.dtype)
    slots = list(plan.slots)
    slots[target.slot] = replace(slots[target.slot], tensor=interior)
    inner = replace(plan, slots=tuple(slots))
    fill = prepare_permute(inner, replace(step, padding=None), kernels, workers)

    def run(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        whole = write(slots[target.slot])
        for around in outside:
            for (piece,) in slabs(whole[around]):
                piece[...] = padding.value
        arrays = list(slots)
        arrays[target.slot] = whole[(*inside, ...)]  # the Ellipsis keeps rank 0 an array
        fill.run(arrays, scalars, memory)

    return Prepared(run, tiles=fill.tiles, own=fill.own)


class _Operand(NamedTuple):
    """One source of a pass: its strides along the fused dimensions, and what happens to it."""

    slot: int
    strides: tuple[int, ...]
    dtype: str
    operator: Operator
    scalar: int | None
    loaded: bool  # copied into a buffer first
    held: tuple[int, ...]  # the dimensions its tiles have; the others broadcast

    @property
    def buffered(self) -> bool:
        """Whether its tiles need a buffer of their own."""
        return self.loaded or self.scalar is not None


@dataclass(frozen=True, slots=True)
class _PassExtents:
    """How an operand's tile of certain extents is read: shapes and strides in bytes."""

    shape: tuple[int, ...]
    memory: tuple[int, ...]
    buffer: tuple[int, ...]
    count: int
    load: CopyKernel | None


class _Shapes(NamedTuple):
    """The tiles of all sources and of the target."""

    sources: Sequence[_PassExtents]
    target: _PassExtents


class TilePass:
    """An elementwise step, blocked: ``count`` tiles, ``bytes`` of buffers for each thread.

    ``types`` are the data types of the slots.
    """

    def __init__(self, types: Sequence[str], step: Elementwise, kernels: HostKernels) -> None:
        self.types = types
        self.step = step
        self.kernels = kernels
        self.dtype = np.dtype(step.dtype)
        self.functions = [UFUNCS[operator] for operator in step.operators]
        order = sorted(range(len(step.extents)), key=lambda at: abs(step.target.strides[at]))
        views = [step.target, *(source.view for source in step.sources)]
        self.extents, strides = fuse(
            [step.extents[at] for at in order],
            *([view.strides[at] for at in order] for view in views),
        )
        self.target = strides[0]
        self.sources = [
            self._operand(source, steps)
            for source, steps in zip(step.sources, strides[1:], strict=True)
        ]
        buffers = sum(source.loaded for source in self.sources) + (len(self.sources) > 2)
        lined = [self.target, *(source.strides for source in self.sources if source.loaded)]
        self.blocks = _blocks(self.extents, lined, self._room(BUFFERED_BYTES // max(buffers, 1)))
        self.grid = Blocks(self.extents, self.blocks)
        self.count = self.grid.count
        self.plain_grid: Blocks | None = None
        if not buffers:
            larger = _blocks(self.extents, lined, self._room(PLAIN_BYTES))
            self.plain_grid = Blocks(self.extents, larger)
        self.bytes = self._buffer_bytes()
        self.shapes: Callable[[tuple[int, ...]], _Shapes] = cache(self._shapes)

    def _room(self, most: int) -> int:
        """Elements of a tile of ``most`` bytes, fewer where threads would have too few tiles."""
        whole = prod(self.extents) * self.dtype.itemsize
        return max(min(most, whole // TILES), SHARED_BYTES) // self.dtype.itemsize

    def _operand(self, source: Source, strides: tuple[int, ...]) -> _Operand:
        dtype = self.types[source.view.slot]
        scalar = None if source.scalar is None else source.scalar.value
        held = tuple(at for at, stride in enumerate(strides) if stride)
        spread = bool(self.extents) and 0 not in held and self.extents[0] < SHORT_RUN
        if spread:  # rows too short to broadcast one by one
            inner = next((at for at in held if prod(self.extents[:at]) >= SHORT_RUN), len(strides))
            held = tuple(range(inner)) + tuple(at for at in held if at >= inner)
        loaded = (
            dtype != self.step.dtype
            or source.operator is not Operator.IDENTITY
            or spread
            or not _runs_along(self.extents, self.target, strides)
        )
        return _Operand(source.view.slot, strides, dtype, source.operator, scalar, loaded, held)

    def _buffer_bytes(self) -> int:
        """Buffers of the operands that have one, of sums of two, and of operators."""
        needed, spare = 0, 0
        for source in self.sources:
            _, size = _panel(self.blocks, source.held, self.dtype)
            needed += rounded(size * self.dtype.itemsize) * source.buffered
            spare = max(spare, spare_elements(source.operator, size))
        needed += rounded(spare * self.dtype.itemsize)
        if len(self.sources) > 2:
            needed += rounded(prod(self.blocks) * self.dtype.itemsize)
        return needed

    def _shapes(self, extents: tuple[int, ...]) -> _Shapes:
        """How the tiles of these extents are read, written, and combined."""
        shapes = [self._shape(source, extents) for source in self.sources]
        dtype = np.dtype(self.types[self.step.target.slot])
        written = tuple(stride * dtype.itemsize for stride in self.target)
        target = _PassExtents(extents, written, (), prod(extents), None)
        return _Shapes(shapes, target)

    def _shape(self, source: _Operand, extents: tuple[int, ...]) -> _PassExtents:
        shape = tuple(n if at in source.held else 1 for at, n in enumerate(extents))
        panel, count = _panel(extents, source.held, self.dtype)
        size, itemsize = np.dtype(source.dtype).itemsize, self.dtype.itemsize
        kernel = None
        if source.loaded:
            kernel = self.kernels.copy(shape, source.strides, panel, source.dtype, self.step.dtype)
        return _PassExtents(
            shape,
            tuple(stride * size for stride in source.strides),
            tuple(stride * itemsize for stride in panel),
            count,
            kernel,
        )

    def compiled(self) -> PassKernel | None:
        """The whole pass as compiled code, where the family has it."""
        types = [self.types[source.slot] for source in self.sources]
        is_plain = all(source.operator is Operator.IDENTITY for source in self.sources)
        if not is_plain or self.types[self.step.target.slot] != self.step.dtype:
            return None
        lined = [self.target, *(source.strides for source in self.sources if source.loaded)]
        whole = prod(self.extents) * self.dtype.itemsize
        most = COMPILED_BYTES // max(sum(source.loaded for source in self.sources), 1)
        size = max(min(most, whole // TILES), LEAST_BYTES)
        blocks = _blocks(self.extents, lined, size // self.dtype.itemsize)
        blocks = tuple(
            ceil(n / ceil(n / most)) for n, most in zip(self.extents, blocks, strict=True)
        )
        sources = [
            TileSource(
                source.strides,
                dtype,
                source.held,
                *(_panel(blocks, source.held, self.dtype) if source.loaded else (None, 0)),
            )
            for source, dtype in zip(self.sources, types, strict=True)
        ]
        given = self.extents, blocks, sources, self.target, self.step.dtype
        return self.kernels.combined(*given, self.step.operators)

    # --- one call -------------------------------------------------------------------------

    @property
    def slots(self) -> list[int]:
        """Of the sources, then of the target."""
        return [*(source.slot for source in self.sources), self.step.target.slot]

    def factors(self, scalars: Scalars) -> list[Any]:
        """What each source is scaled by."""
        return [1 if each.scalar is None else scalars[each.scalar] for each in self.sources]

    def bound(
        self, slots: Sequence[Array], scalars: Scalars
    ) -> tuple[int, Callable[[int, int, Cutter], None]]:
        """How many tiles there are, and body(begin, end, memory) for some of them."""
        memories = [flatten(slots[source.slot]) for source in self.sources]
        target = flatten(slots[self.step.target.slot])
        factors = self.factors(scalars)
        grid = self.grid
        if self.plain_grid is not None and all(factor == 1 for factor in factors):
            grid = self.plain_grid

        def body(begin: int, end: int, cutter: Cutter) -> None:
            tiles = _Tiles(self, memories, factors, cutter)
            with np.errstate(all="ignore"):
                for at in self.kernels.workers.going(range(begin, end)):
                    tiles.run(*grid.block(at), target)

        return grid.count, body


class _Tiles:
    """The buffers of one thread, and what it does with each tile."""

    def __init__(
        self,
        tiles: TilePass,
        memories: Sequence[Flat],
        factors: Sequence[Any],
        cutter: Cutter,
    ) -> None:
        self.tiles = tiles
        self.memories = memories
        self.factors = factors
        dtype, blocks = tiles.dtype, tiles.blocks
        sizes = [_panel(blocks, source.held, dtype)[1] for source in tiles.sources]
        self.buffers = [
            cutter.take(size, dtype) if source.buffered else None
            for source, size in zip(tiles.sources, sizes, strict=True)
        ]
        spares = [
            spare_elements(source.operator, size)
            for source, size in zip(tiles.sources, sizes, strict=True)
        ]
        self.spare = cutter.take(max(spares, default=0), dtype)
        self.sum = cutter.take(prod(blocks) if len(sizes) > 2 else 0, dtype)
        self.zero = np.zeros((), dtype)

    def run(self, starts: Sequence[int], extents: tuple[int, ...], target: Flat) -> None:
        """Combine one tile of every source into a tile of the target."""
        tiles = self.tiles
        shapes = tiles.shapes(extents)
        out = _at(target, tiles.target, starts, shapes.target)
        if not self.memories:
            out[...] = 0
            return
        values = (self._value(at, shape, starts) for at, shape in enumerate(shapes.sources))
        found = next(values)
        if len(self.memories) == 1:
            np.copyto(out, found, casting="unsafe")
            return
        for at, (function, value) in enumerate(zip(tiles.functions, values, strict=True), 1):
            into = out
            if at < len(tiles.functions):
                into = self.sum[: shapes.target.count].reshape(extents, order="F")
            function(found, value, out=into, dtype=tiles.dtype, casting="unsafe")
            found = into

    def _value(self, at: int, shape: _PassExtents, starts: Sequence[int]) -> Array:
        """scalar * op(tile); what is scaled by zero is not read."""
        source, factor = self.tiles.sources[at], self.factors[at]
        if factor == 0:
            return self.zero
        buffer = self.buffers[at]
        if shape.load is None:
            value = _at(self.memories[at], source.strides, starts, shape)
        else:
            assert buffer is not None
            flat, origin = self.memories[at]
            shape.load(flat, origin + offset(source.strides, starts), buffer, 0)
            apply_operator(source.operator, buffer[: shape.count], self.spare)
            value = strided(buffer, 0, shape.shape, shape.buffer)
        if factor == 1:
            return value
        assert buffer is not None
        scaled = strided(buffer, 0, shape.shape, shape.buffer)
        np.multiply(value, factor, out=scaled, dtype=self.tiles.dtype, casting="unsafe")
        return scaled


def _panel(
    extents: tuple[int, ...], held: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[tuple[int, ...], int]:
    """Strides and size of a buffer with dimensions ``held``.

    An odd number of lines from row to row spreads them over the sets of the cache.
    """
    line = max(LINE_BYTES // dtype.itemsize, 1)
    if len(held) < 2 or extents[held[0]] < 4 * line:
        return compact_strides(extents, held)
    row = (ceil(extents[held[0]] / line) | 1) * line
    return compact_strides([row if at == held[0] else n for at, n in enumerate(extents)], held)


def _at(memory: Flat, strides: Sequence[int], starts: Sequence[int], shape: _PassExtents) -> Array:
    flat, origin = memory
    return strided(flat, origin + offset(strides, starts), shape.shape, shape.memory)


def _runs_along(extents: Sequence[int], target: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether NumPy walks the operand in long runs when it walks the target in order."""
    if not extents:
        return True
    moving = [(abs(stride), at) for at, stride in enumerate(strides) if stride]
    if not moving or strides[0] == 0:
        return True
    first, _ = fuse(extents, target, strides)
    return min(moving)[1] == 0 and (first[0] >= SHORT_RUN or len(first) == 1)


def _blocks(
    extents: tuple[int, ...], strides: Sequence[Sequence[int]], room: int
) -> tuple[int, ...]:
    """A tile of about ``room`` elements: lines of every operand, then inner dimensions first."""
    lines = set()
    for steps in strides:
        moving = [(abs(step), at) for at, step in enumerate(steps) if step]
        if moving:
            lines.add(min(moving)[1])
    most = LINE_ELEMENTS
    while most > SHORT_RUN and prod(min(extents[at], most) for at in lines) > room:
        most -= SHORT_RUN
    blocks = [min(n, most) if at in lines else min(n, 1) for at, n in enumerate(extents)]
    for at, n in enumerate(extents):
        others = max(prod(blocks) // max(blocks[at], 1), 1)
        blocks[at] = max(blocks[at], min(n, room // others))
    return tuple(max(block, 1) for block in blocks)
