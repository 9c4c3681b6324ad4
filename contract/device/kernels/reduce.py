"""Step Reduce -> one launch of the kernel in reduce.cuh, or two where the result is small.

With two, blocks share the reduced indices of a result and leave parts of it in scratch memory;
the second launch reduces those. How many parts depends on the shape and the architecture alone,
so that a result has the same bits every time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd, prod

from contract.descriptors.compute_types import is_complex, item_size
from contract.descriptors.layout import fuse, offset_bounds, packed_strides
from contract.descriptors.operators import BinaryOperator, Operator
from contract.errors import NotSupportedError
from contract.machines.gpu import Architecture
from contract.machines.gpu_kernels import REDUCE, ReduceRow
from contract.plan.steps import Plan, Reduce, Scalar, SlotKind, Source
from contract.planner.device.launch import Fields, KernelCall, Pointer, PointerKind, entry_stub
from contract.planner.device.loops import Dimension, capacity, put_loop
from contract.planner.device.names import binary_name, operator_name, type_name

__all__ = ["reduce_calls"]

THREADS_BITS, WARP_BITS = 8, 5
VECTOR_BYTES = 16
VALUE_BYTES = 64  # of the values of a vector: they stay in registers, and in 16 KB for a block
LONG_ROW = 4  # vectors; in shorter ragged rows most vectors are not whole
RAGGED_ELEMENTS = 8  # of a vector whose elements may have to be loaded one by one
MOST_UNROLL = 8  # vectors in flight: their addresses take registers too
LONG_LANE = 16  # vectors for a thread, from which on a row is worth more than one warp
SCATTERED = 1 << 10  # results; parts of more are stored result beside result
NARROW = 1 << 30  # counts and offsets below this, and what is added to them, fit 31 bits
MOST_BLOCKS = (1 << 31) - 1, 65535
MOST_LOOPS = 56  # what the 4096 bytes of arguments hold; tensors in memory have fewer
# Operators of a few instructions; others would fill the instruction cache with copies.
CHEAP = frozenset({Operator.IDENTITY, Operator.CONJ, Operator.ABS, Operator.NEG, Operator.RELU})


def reduce_calls(plan: Plan, step: Reduce, architecture: Architecture) -> tuple[KernelCall, ...]:
    """One or two launches; none where the result has no elements."""
    if 0 in step.extents[: step.kept]:
        return ()
    problem, row = _problem(plan, step), REDUCE[architecture.table]
    blocks = row.blocks * architecture.multiprocessors
    shape = _shape(problem, row, blocks)
    parts = _parts(shape, row, blocks)
    if parts == 1:
        return (_launch(problem, shape, 1),)
    first, second, scratch = _halves(problem, parts)
    calls = (
        _launch(first, _shape(first, row, blocks), parts),
        _launch(second, _shape(second, row, blocks), 1),
    )
    return tuple(replace(call, scratch=scratch) for call in calls)


# --- the step, fastest dimensions first ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Where a tensor begins, and what the address there is a multiple of (bytes)."""

    pointer: Pointer
    dtype: str
    alignment: int
    operator: Operator = Operator.IDENTITY
    scalar: Scalar | None = None


@dataclass(frozen=True, slots=True)
class _Problem:
    """D = alpha reduce(A) + beta C; strides of dimensions are those in A, D, C.

    ``partial`` leaves alpha out; ``part`` is then the offset in D from part to part.
    """

    source: _Tensor
    target: _Tensor
    addend: _Tensor | None
    kept: tuple[Dimension, ...]
    reduced: tuple[Dimension, ...]
    operator: BinaryOperator
    dtype: str
    partial: bool = False
    part: int = 0


def _problem(plan: Plan, step: Reduce) -> _Problem:
    views = [step.source.view, step.target]
    views += [step.target if step.addend is None else step.addend.view]
    by_view = zip(*(view.strides[: step.kept] for view in views), strict=True)
    kept = [Dimension(n, row) for n, row in zip(step.extents, by_view, strict=False)]
    last = zip(step.extents[step.kept :], step.source.view.strides[step.kept :], strict=True)
    reduced = [Dimension(n, (stride, 0, 0)) for n, stride in last]
    origins = [_origin(kept + reduced, tensor) for tensor in range(3)]
    return _Problem(
        _tensor(plan, step.source, origins[0]),
        _tensor(plan, Source(step.target), origins[1]),
        None if step.addend is None else _tensor(plan, step.addend, origins[2]),
        _ordered(kept),
        _ordered(reduced),
        step.operator,
        step.dtype,
    )


def _origin(dimensions: Iterable[Dimension], tensor: int) -> int:
    """The offset of the first element once A's negative strides are run through backwards."""
    turned = [each for each in dimensions if each.strides[0] < 0]
    return sum((each.extent - 1) * each.strides[tensor] for each in turned if each.extent)


def _tensor(plan: Plan, source: Source, origin: int) -> _Tensor:
    slot = plan.slots[source.view.slot]
    dtype, begin = slot.tensor.dtype, origin * item_size(slot.tensor.dtype)
    placed = slot.kind is SlotKind.TEMPORARY  # in workspace, at multiples of 64 bytes or more
    alignment = gcd(VECTOR_BYTES if placed else slot.tensor.alignment, begin, VECTOR_BYTES)
    pointer = Pointer(PointerKind.SLOT, source.view.slot, begin)
    return _Tensor(pointer, dtype, alignment, source.operator, source.scalar)


def _ordered(dimensions: Iterable[Dimension]) -> tuple[Dimension, ...]:
    """The same elements by increasing stride in A, none negative, what is contiguous made one.

    Without any dimension there is one of extent 1.
    """
    forward = sorted(map(_forward, dimensions), key=_distance)
    if any(each.extent == 0 for each in forward):
        return (Dimension(0, (1, 0, 0)),)
    by_tensor = zip(*(each.strides for each in forward), strict=True)
    extents, strides = fuse([each.extent for each in forward], *by_tensor)
    rows = zip(*strides, strict=True)
    found = tuple(Dimension(n, row) for n, row in zip(extents, rows, strict=True))
    return found or (Dimension(1, (0, 0, 0)),)


def _forward(dimension: Dimension) -> Dimension:
    sign = -1 if dimension.strides[0] < 0 else 1
    return replace(dimension, strides=tuple(sign * each for each in dimension.strides))


def _distance(dimension: Dimension) -> tuple[bool, int, int]:
    """Strides of 0 come last: nothing new is read along them."""
    along, target, _ = dimension.strides
    return along == 0, along, abs(target)


def _count(dimensions: Iterable[Dimension]) -> int:
    return prod(each.extent for each in dimensions)


def _halves(problem: _Problem, parts: int) -> tuple[_Problem, _Problem, int]:
    """The problem in parts, the reduction of the parts, and the bytes of memory between them."""
    results = _count(problem.kept)
    near, far = (1, _rounded(results)) if results > SCATTERED else (_rounded(parts), 1)
    between = [near * each for each in packed_strides([each.extent for each in problem.kept])]
    scratch = _Tensor(Pointer(PointerKind.SCRATCH), problem.dtype, VECTOR_BYTES)
    written = [
        replace(each, strides=(each.strides[0], stride, 0))
        for each, stride in zip(problem.kept, between, strict=True)
    ]
    read = [
        replace(each, strides=(stride, *each.strides[1:]))
        for each, stride in zip(problem.kept, between, strict=True)
    ]
    first = replace(
        problem, target=scratch, addend=None, kept=tuple(written), partial=True, part=far
    )
    second = replace(
        problem,
        source=replace(scratch, scalar=problem.source.scalar),
        kept=tuple(read),
        reduced=(Dimension(parts, (far, 0, 0)),),
    )
    elements = _rounded(results) * parts if near == 1 else results * near
    return first, second, elements * item_size(problem.dtype)


def _rounded(elements: int) -> int:
    """A multiple of every vector."""
    return ceil(elements / VECTOR_BYTES) * VECTOR_BYTES


# --- how it is read and shared out --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shape:
    """How A is read, and the dimensions counted in vectors of ``width`` elements.

    ``bits`` of a thread's number, from the lowest: reduced, kept, reduced, kept. ``row`` is the
    extent of a ragged row in elements.
    """

    reading: str
    width: int
    unroll: int
    kept: tuple[Dimension, ...]
    reduced: tuple[Dimension, ...]
    bits: tuple[int, int, int, int]
    row: int

    @property
    def tiles(self) -> int:
        """Blocks for all results."""
        return ceil(_count(self.kept) / (1 << self.bits[1] + self.bits[3]))

    @property
    def batch(self) -> int:
        """Vectors that the threads of a result have in flight."""
        return self.unroll << self.bits[0] + self.bits[2]


def _shape(problem: _Problem, row: ReduceRow, blocks: int) -> _Shape:
    reading, width = _reading(problem)
    kept, reduced, length = problem.kept, problem.reduced, 0
    if reading == "KEPT":
        kept = (_in_vectors(kept[0], width), *kept[1:])
    elif reading == "REDUCED":
        reduced = (_in_vectors(reduced[0], width), *reduced[1:])
    elif reading == "RAGGED":
        length = reduced[0].extent
        touched = ceil((length + width - 1) / width)  # wherever in a vector the row begins
        reduced = (Dimension(touched, (width, 0, 0)), *reduced[1:])
    bits = _bits(kept, reduced, blocks)
    unroll = _unroll(problem, row, reading, width)
    if _count(reduced) <= 1 << bits[0] + bits[2]:
        unroll = 1
    return _Shape(reading, width, unroll, kept, reduced, bits, length)


def _unroll(problem: _Problem, row: ReduceRow, reading: str, width: int) -> int:
    """How many vectors a thread has in flight."""
    if problem.source.operator not in CHEAP:
        return 1
    if reading == "RAGGED":
        return max(row.ragged // width, 1)
    return min(row.flight // (width * item_size(problem.source.dtype)), MOST_UNROLL)


def _in_vectors(dimension: Dimension, width: int) -> Dimension:
    strides = tuple(width * stride for stride in dimension.strides)
    return Dimension(dimension.extent // width, strides)


def _reading(problem: _Problem) -> tuple[str, int]:
    """How vectors of A lie, and how many elements each has."""
    sizes = item_size(problem.source.dtype), item_size(problem.dtype)
    most = min(VECTOR_BYTES // sizes[0], VALUE_BYTES // sizes[1])
    ragged = min(most, RAGGED_ELEMENTS)
    if problem.reduced[0].strides[0] == 1:
        width = _widest(problem, problem.reduced[0], most)
        if width < ragged and problem.reduced[0].extent >= LONG_ROW * ragged:
            return "RAGGED", ragged
        if width > 1:
            return "REDUCED", width
    if problem.kept[0].strides[0] == 1:
        width = _widest(problem, problem.kept[0], most)
        if width > 1:
            return "KEPT", width
    return "ELEMENT", 1


def _widest(problem: _Problem, along: Dimension, most: int) -> int:
    """The most elements of A, 1, 2, 4, ..., that lie dense and aligned all along a dimension."""
    others = [each for each in (*problem.kept, *problem.reduced) if each is not along]
    numbers = [along.extent, *(each.strides[0] for each in others)]
    return gcd(most, problem.source.alignment // item_size(problem.source.dtype), *numbers)


def _bits(
    kept: Sequence[Dimension], reduced: Sequence[Dimension], blocks: int
) -> tuple[int, int, int, int]:
    """Lanes of a warp follow A's fastest dimensions; its warps go where they are needed."""
    bits, at = [0, 0, 0, 0], 0
    for dimension in sorted((*kept, *reduced), key=_distance):
        is_kept = int(any(dimension is each for each in kept))
        free = WARP_BITS - sum(bits)
        for _ in range(min(free, (dimension.extent - 1).bit_length() if dimension.extent else 0)):
            at = _add(bits, at, is_kept)
    while sum(bits) < WARP_BITS:
        at = _add(bits, at, 1)
    while sum(bits) < THREADS_BITS:
        at = _add(bits, at, 0 if _wants_reduced(bits, kept, reduced, blocks) else 1)
    return bits[0], bits[1], bits[2], bits[3]


def _add(bits: list[int], at: int, is_kept: int) -> int:
    """One more bit for a side; the fields alternate, beginning with a reduced one."""
    if at % 2 != is_kept and at < 3:
        at += 1
    bits[at if at % 2 == is_kept else at - 1] += 1
    return at


def _wants_reduced(
    bits: Sequence[int], kept: Sequence[Dimension], reduced: Sequence[Dimension], blocks: int
) -> bool:
    """Whether the next warp helps with the same results: they are few, or their rows long."""
    lanes, results = 1 << bits[0] + bits[2], 1 << bits[1] + bits[3]
    if _count(reduced) <= lanes:
        return False
    few = results >= _count(kept) or ceil(_count(kept) / results) < blocks
    return few or (bits[0] > 0 and _count(reduced) > LONG_LANE * lanes)


def _parts(shape: _Shape, row: ReduceRow, blocks: int) -> int:
    """How many blocks share the reduced indices of a result."""
    batches = ceil(_count(shape.reduced) / shape.batch)
    if batches <= row.split:
        return 1
    wanted = max(min(blocks // shape.tiles, batches // row.least), 1)
    return ceil(batches / ceil(batches / wanted))


# --- the launch ---------------------------------------------------------------------------------


def _launch(problem: _Problem, shape: _Shape, parts: int) -> KernelCall:
    loops = len(shape.kept) + len(shape.reduced)
    if loops > MOST_LOOPS:
        raise NotSupportedError(
            f"A reduction on a GPU has at most {MOST_LOOPS} loops that do not fuse: it has {loops}."
        )
    columns = min(shape.tiles, MOST_BLOCKS[0])
    rows = ceil(shape.tiles / columns)
    if rows > MOST_BLOCKS[1]:
        raise NotSupportedError(
            f"A launch has at most {MOST_BLOCKS[0]} x {MOST_BLOCKS[1]} blocks: "
            f"the result takes {shape.tiles}."
        )
    return KernelCall(
        headers=("types", "operators", "layout", "reduce"),
        stub=_stub(problem, shape, parts),
        entry="reduce",
        grid=(columns, rows, parts),
        block=(1 << THREADS_BITS, 1, 1),
        arguments=_arguments(problem, shape, parts).arguments(),
        reason=_reason(shape, parts),
    )


def _reason(shape: _Shape, parts: int) -> str:
    lanes, results = 1 << shape.bits[0] + shape.bits[2], 1 << shape.bits[1] + shape.bits[3]
    along = {"KEPT": "along kept modes", "ELEMENT": "where nothing lies dense"}
    return (
        f"reads {shape.width} at once {along.get(shape.reading, 'along reduced modes')}; "
        f"{lanes} threads for each of {results} results, {parts} parts"
    )


def _stub(problem: _Problem, shape: _Shape, parts: int) -> str:
    addend = problem.target if problem.addend is None else problem.addend
    added = Operator.IDENTITY if problem.addend is None else problem.addend.operator
    types = problem.source.dtype, problem.dtype, problem.target.dtype, addend.dtype
    counts = _count(shape.kept), _count(shape.reduced)
    index = "unsigned long long" if max(counts) >= NARROW else "unsigned"
    offset = "long long" if _has_wide_offsets(problem, parts) else "int"
    operators = (_operator(each, problem.dtype) for each in (problem.source.operator, added))
    room = capacity(len(shape.kept) + len(shape.reduced))
    return entry_stub(
        "reduce",
        str(1 << THREADS_BITS),
        f"Reduce<{', '.join(map(type_name, types))}, {offset}, {index},",
        f"    {', '.join(operators)}, {binary_name(problem.operator)},",
        f"    Reading::{shape.reading}, {shape.width}, {shape.unroll}, {room}>;",
    )


def _operator(operator: Operator, dtype: str) -> str:
    real = operator is Operator.CONJ and not is_complex(dtype)
    return operator_name(Operator.IDENTITY if real else operator)


def _has_wide_offsets(problem: _Problem, parts: int) -> bool:
    dimensions = (*problem.kept, *problem.reduced, Dimension(parts, (0, problem.part, 0)))
    extents = [each.extent for each in dimensions]
    by_tensor = zip(*(each.strides for each in dimensions), strict=True)
    bounds = (offset_bounds(extents, strides) for strides in by_tensor)
    return any(high - low >= NARROW for low, high in bounds)


def _arguments(problem: _Problem, shape: _Shape, parts: int) -> Fields:
    """The struct Arguments of reduce.cuh."""
    fields, addend = Fields(), problem.addend
    fields.pointer(problem.source.pointer)
    fields.pointer(problem.target.pointer)
    fields.pointer(None if addend is None else addend.pointer)
    fields.scalar(problem.source.scalar, problem.dtype)
    if addend is None:
        fields.value(problem.dtype, 0)
    else:
        fields.scalar(addend.scalar, problem.dtype)
    kept, reduced = _count(shape.kept), _count(shape.reduced)
    part = ceil(ceil(reduced / shape.batch) / parts) * shape.batch
    steps = problem.kept[0].strides[1:]  # of the results of a vector
    fields.integers((kept, reduced, part, problem.part, shape.row, *steps))
    fields.unsigned(*shape.bits, len(shape.kept), len(shape.reduced))
    fields.unsigned(problem.partial, _writes_vectors(problem, shape))
    room = capacity(len(shape.kept) + len(shape.reduced))
    for loop in (*shape.kept, *shape.reduced):
        put_loop(fields, loop)
    for _ in range(room - len(shape.kept) - len(shape.reduced)):
        put_loop(fields, Dimension(1, (0, 0, 0)))
    return fields


def _writes_vectors(problem: _Problem, shape: _Shape) -> bool:
    """Whether the results of a vector lie dense and aligned in D."""
    if shape.reading != "KEPT":
        return False
    bytes_ = min(shape.width * item_size(problem.target.dtype), VECTOR_BYTES)
    others = [each.strides[1] for each in problem.kept[1:]]
    return (
        problem.kept[0].strides[1] == 1
        and problem.target.alignment % bytes_ == 0
        and all(stride % shape.width == 0 for stride in (*others, problem.part))
    )
