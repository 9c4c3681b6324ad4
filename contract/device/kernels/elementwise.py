"""Steps Permute and Elementwise -> a launch of the kernel in elementwise.cuh.

The fastest dimension of the target and, where a source lies in another order, the fastest one of
that source span a tile; further small dimensions join them until the tile is full.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from contract.descriptors.compute_types import item_size
from contract.descriptors.operators import BinaryOperator, Operator
from contract.errors import NotSupportedError
from contract.machines.gpu import Architecture
from contract.machines.gpu_kernels import ELEMENTWISE
from contract.plan.steps import Elementwise, Permute, Plan, Scalar, SlotKind, Source
from contract.planner.device.launch import Fields, KernelCall, Pointer, PointerKind, entry_stub
from contract.planner.device.loops import Dimension, capacity, fused, needs_wide_offsets, put_loop
from contract.planner.device.names import binary_name, operator_name, type_name

__all__ = ["Tiling", "elementwise_calls", "tiling"]

THREADS = 256
VECTOR_BYTES = 16
SECTOR_BYTES = 32  # what memory moves at least: shorter runs waste the rest
MOST_TILES = (1 << 31) - 1
MOST_SOURCES = 3


def elementwise_calls(
    plan: Plan, step: Permute | Elementwise, architecture: Architecture
) -> tuple[KernelCall, ...]:
    """One launch; none where the result has no elements."""
    problem = _problem(plan, step)
    if any(each.extent == 0 for each in problem.dimensions):
        return ()
    return (_launch(problem, _tile(problem, architecture)),)


def tiling(plan: Plan, step: Permute | Elementwise, architecture: Architecture) -> "Tiling":
    """How the launch cuts the result into tiles."""
    return _tile(_problem(plan, step), architecture)


# --- the step over common dimensions ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A slot as the step sees it; ``alignment`` is what its address is a multiple of (bytes)."""

    slot: int
    dtype: str
    alignment: int
    operator: Operator = Operator.IDENTITY
    scalar: Scalar | None = None
    offset: int = 0  # bytes from the slot's start to what index 0 would be

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return item_size(self.dtype)


@dataclass(frozen=True, slots=True)
class _Problem:
    """The target (tensor 0) and the sources over dimensions, the target's fastest first."""

    tensors: tuple[_Tensor, ...]
    operators: tuple[BinaryOperator, ...]
    dimensions: tuple[Dimension, ...]
    dtype: str
    padding: complex

    @property
    def sources(self) -> range:
        """The numbers of the sources among the tensors."""
        return range(1, len(self.tensors))


def _problem(plan: Plan, step: Permute | Elementwise) -> _Problem:
    sources = (step.source,) if isinstance(step, Permute) else step.sources
    operators = () if isinstance(step, Permute) else step.operators
    by_tensor = [view.strides for view in (step.target, *(source.view for source in sources))]
    dimensions = [
        Dimension(n, strides)
        for n, strides in zip(step.extents, zip(*by_tensor, strict=True), strict=True)
    ]
    tensors = [_tensor(plan, step.target.slot), *(_source(plan, each) for each in sources)]
    padding: complex = 0
    if isinstance(step, Permute) and step.padding is not None:
        pairs = zip(dimensions, step.padding.left, step.padding.right, strict=True)
        dimensions = [_padded(each, left, right) for each, left, right in pairs]
        before = sum(each.left * each.strides[1] for each in dimensions)
        tensors[1] = replace(tensors[1], offset=-before * tensors[1].size)
        padding = step.padding.value
    return _Problem(tuple(tensors), operators, tuple(fused(dimensions)), step.dtype, padding)


def _padded(dimension: Dimension, left: int, right: int) -> Dimension:
    inside = dimension.extent
    return Dimension(left + inside + right, dimension.strides, left, inside)


def _tensor(plan: Plan, slot: int) -> _Tensor:
    held = plan.slots[slot]
    placed = held.kind is SlotKind.TEMPORARY  # in workspace, at multiples of 64 bytes or more
    return _Tensor(slot, held.tensor.dtype, VECTOR_BYTES if placed else held.tensor.alignment)


def _source(plan: Plan, source: Source) -> _Tensor:
    made = _tensor(plan, source.view.slot)
    return replace(made, operator=source.operator, scalar=source.scalar)


# --- the tile -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Side:
    """Dimensions along one side of a tile: all lie in it whole but the last, cut in chunks."""

    whole: tuple[Dimension, ...]
    last: Dimension
    chunk: int

    @property
    def chunks(self) -> int:
        """How many tiles there are along this side."""
        return ceil(self.last.extent / self.chunk)


@dataclass(frozen=True, slots=True)
class Tiling:
    """A tile of ``width`` x ``height`` cells of ``unit`` elements, and how sources are read.

    ``vector`` cells are written at once. ``access`` is how each source is read, with the number
    of cells that one access loads.
    """

    width: int
    height: int
    unit: int
    vector: int
    access: tuple[tuple[str, int], ...]
    x: Side
    y: Side
    rest: tuple[Dimension, ...]
    reason: str


def _tile(problem: _Problem, architecture: Architecture) -> Tiling:
    row = ELEMENTWISE[architecture.table]
    unit, dimensions = _cells(problem)
    turned = _turned(problem, dimensions, unit)
    vector = 1 if unit > 1 else _vector(problem, dimensions, turned)
    if turned:
        y = _fastest(dimensions, turned[0])
        widths = {at: 1 if unit > 1 else _widest(problem, dimensions, at, y) for at in turned}
        small = problem.tensors[0].size * unit <= 4 and max(vector, *widths.values()) > 1
        side = row.small_side if small else row.large_side
        most = side * side // THREADS  # cells of the tile for each thread
        widths = {at: min(width, most) for at, width in widths.items()}
        steps = vector, max(widths.values())
        x_side, y_side, rest = _sides(dimensions, y, turned[0], side, steps)
        reason = f"turned through a {side} x {side} tile"
        sizes = side, side
    else:
        widths = {}
        large = prod(each.extent for each in dimensions) >= row.stream_elements
        length = THREADS * vector * (row.stream_vectors if large else 1)
        x_side, y_side, rest = _sides(dimensions, None, 0, length, (vector, 1))
        reason, sizes = "every source in the result's order", (length, 1)
    access = tuple(
        ("TILE", widths[at]) if at in widths else (_along(problem, dimensions, at, unit, vector), 1)
        for at in problem.sources
    )
    return Tiling(*sizes, unit, vector, access, x_side, y_side, rest, reason)


def _cells(problem: _Problem) -> tuple[int, tuple[Dimension, ...]]:
    """How many elements every tensor keeps side by side, if moving them singly wastes memory."""
    dimensions = problem.dimensions
    if len(dimensions) < 3 or not problem.sources:
        return 1, dimensions
    first, rest = dimensions[0], dimensions[1:]
    unit, size = first.extent, max(tensor.size for tensor in problem.tensors)
    together = (
        unit in (2, 4, 8)
        and unit * size <= VECTOR_BYTES
        and not first.padded
        and all(stride == 1 for stride in first.strides)
        and all(stride % unit == 0 for each in rest for stride in each.strides)
        and all(tensor.alignment >= unit * tensor.size for tensor in problem.tensors)
    )
    return (unit, rest) if together and _turned(problem, rest, unit) else (1, dimensions)


def _fastest(dimensions: Sequence[Dimension], tensor: int) -> Dimension:
    """The dimension with the smallest stride that is not 0; the first one if there is none."""
    moving = [each for each in dimensions if each.strides[tensor]]
    return min(moving, key=lambda each: abs(each.strides[tensor]), default=dimensions[0])


def _turned(problem: _Problem, dimensions: Sequence[Dimension], unit: int) -> tuple[int, ...]:
    """The sources to read along another dimension than the target's, all along the same one.

    Where the largest of them has no dense dimension, turning gains nothing.
    """
    if not dimensions:
        return ()
    others = [at for at in problem.sources if _is_turned(problem, dimensions, at, unit)]
    if not others:
        return ()
    largest = max(others, key=lambda at: _footprint(dimensions, at))
    along = _fastest(dimensions, largest)
    same = [at for at in others if at != largest and _fastest(dimensions, at) is along]
    return (largest, *same)


def _is_turned(problem: _Problem, dimensions: Sequence[Dimension], tensor: int, unit: int) -> bool:
    along, first = _fastest(dimensions, tensor), dimensions[0].strides[tensor]
    run = SECTOR_BYTES // problem.tensors[tensor].size
    return 0 != abs(first) > abs(along.strides[tensor]) and abs(along.strides[tensor]) < run * unit


def _footprint(dimensions: Iterable[Dimension], tensor: int) -> int:
    return prod(each.extent for each in dimensions if each.strides[tensor])


def _vector(problem: _Problem, dimensions: Sequence[Dimension], turned: Sequence[int]) -> int:
    """Elements of the target written at once; what is read along with them sets a limit too."""
    if not dimensions:
        return 1
    limit = _widest(problem, dimensions, 0, dimensions[0])
    for at in problem.sources:
        if at not in turned and dimensions[0].strides[at] == 1:
            limit = min(limit, VECTOR_BYTES // problem.tensors[at].size)
    return limit


def _widest(
    problem: _Problem, dimensions: Sequence[Dimension], tensor: int, along: Dimension
) -> int:
    """The most elements one access may move along a dimension: 1, 2, 4, ... of 16 bytes."""
    width = VECTOR_BYTES // problem.tensors[tensor].size
    while width > 1 and not _is_legal(problem, dimensions, tensor, along, width):
        width //= 2
    return max(width, 1)


def _is_legal(
    problem: _Problem,
    dimensions: Sequence[Dimension],
    tensor: int,
    along: Dimension,
    width: int,
) -> bool:
    """Whether vectors along a dimension lie dense, end where it ends, and are aligned."""
    held = problem.tensors[tensor]
    others = [each.strides[tensor] for each in dimensions if each is not along]
    ends = (along.extent, along.left, along.inside)
    return (
        along.strides[tensor] == 1
        and all(number % width == 0 for number in (*ends, *others))
        and held.alignment >= min(width * held.size, VECTOR_BYTES)
    )


def _along(
    problem: _Problem, dimensions: Sequence[Dimension], tensor: int, unit: int, vector: int
) -> str:
    """How a source that is not turned is read."""
    if unit > 1:
        return "VECTOR"  # cells lie side by side in every tensor
    if not dimensions or dimensions[0].strides[tensor] == 0:
        return "BROADCAST"
    legal = _is_legal(problem, dimensions, tensor, dimensions[0], vector)
    return "VECTOR" if legal else "ELEMENT"


_NOTHING = Dimension(1, (0,) * (1 + MOST_SOURCES))


def _sides(
    dimensions: Sequence[Dimension],
    y: Dimension | None,
    source: int,
    size: int,
    steps: tuple[int, int],
) -> tuple[Side, Side, tuple[Dimension, ...]]:
    """The sides of a tile of ``size`` cells each, and the dimensions left to the grid.

    Small dimensions are merged: x takes them as the target has them, y as the source has them.
    """
    if not dimensions:
        return Side((), _NOTHING, 1), Side((), _NOTHING, 1), ()
    sides = [dimensions[0]], [] if y is None else [y]
    free = [each for each in dimensions if each not in (dimensions[0], y)]
    nearest = sorted(free, key=lambda each: _distance(each, source))
    growing = True
    while growing:
        growing = False
        for side, order in zip(sides, (free, nearest), strict=True):
            if side and order and 2 * prod(each.extent for each in side) <= size:
                side.append(order[0])
                for each in (free, nearest):
                    each.remove(side[-1])
                growing = True
    x_side, y_side = (_side(side, size, step) for side, step in zip(sides, steps, strict=True))
    return x_side, y_side, tuple(free)


def _distance(dimension: Dimension, source: int) -> tuple[bool, int]:
    stride = dimension.strides[source]
    return stride == 0, abs(stride)


def _side(dimensions: Sequence[Dimension], size: int, step: int) -> Side:
    """Chunks of nearly equal length, a multiple of ``step`` where vectors lie along them."""
    if not dimensions:
        return Side((), _NOTHING, 1)
    *whole, last = dimensions
    most = size // prod(each.extent for each in whole)
    chunk = ceil(last.extent / ceil(last.extent / most))
    if not whole:
        chunk = ceil(chunk / step) * step
    return Side(tuple(whole), last, chunk)


# --- the launch -----------------------------------------------------------------------------------


def _launch(problem: _Problem, tile: Tiling) -> KernelCall:
    loops = (*_grid(tile), *tile.x.whole, *tile.y.whole)
    tiles = prod(each.extent for each in _grid(tile))
    if tiles > MOST_TILES:
        raise NotSupportedError(
            f"A launch has at most {MOST_TILES} blocks: the result takes {tiles} tiles."
        )
    room = capacity(len(loops))
    return KernelCall(
        headers=("types", "operators", "layout", "elementwise"),
        stub=_stub(problem, tile, room),
        entry="elementwise",
        grid=(tiles, 1, 1),
        block=(THREADS, 1, 1),
        arguments=_arguments(problem, tile, loops, room).arguments(),
        reason=tile.reason,
    )


def _grid(tile: Tiling) -> tuple[Dimension, ...]:
    """Chunks along x, chunks along y, everything else."""
    chunks = (replace(_NOTHING, extent=n, inside=n) for n in (tile.x.chunks, tile.y.chunks))
    return (*chunks, *tile.rest)


def _stub(problem: _Problem, tile: Tiling, room: int) -> str:
    wide = needs_wide_offsets(problem.dimensions)
    padded = any(each.padded for each in problem.dimensions)
    operators = [*problem.operators, *[BinaryOperator.ADD] * (2 - len(problem.operators))]
    sources = [
        f"Source<{type_name(held.dtype)}, {operator_name(held.operator)}, "
        f"Access::{access}, {width}>"
        for held, (access, width) in zip(problem.tensors[1:], tile.access, strict=True)
    ]
    sources += ["NoSource"] * (MOST_SOURCES - len(sources))
    target, compute = type_name(problem.tensors[0].dtype), type_name(problem.dtype)
    return entry_stub(
        "elementwise",
        str(THREADS),
        f"Elementwise<{target}, {compute}, {'long long' if wide else 'int'},",
        f"    {tile.width}, {tile.height}, {tile.unit}, {tile.vector}, "
        f"{str(padded).lower()}, {room},",
        f"    {', '.join(map(binary_name, operators))},",
        f"    {', '.join(sources)}>;",
    )


def _arguments(problem: _Problem, tile: Tiling, loops: Sequence[Dimension], room: int) -> Fields:
    """The struct Arguments of elementwise.cuh."""
    fields, absent = Fields(), MOST_SOURCES - len(problem.sources)
    for held in problem.tensors:
        fields.pointer(Pointer(PointerKind.SLOT, held.slot, held.offset))
    for _ in range(absent):
        fields.pointer(None)
    for held in problem.tensors[1:]:
        fields.scalar(held.scalar, problem.dtype)
    for _ in range(absent):
        fields.value(problem.dtype, 1)
    fields.value(problem.tensors[0].dtype, problem.padding)
    grid = len(_grid(tile))
    fields.unsigned(grid, 0)
    _put_side(fields, tile.x, grid)
    _put_side(fields, tile.y, grid + len(tile.x.whole))
    for loop in loops:
        put_loop(fields, _with_every_stride(loop))
    for _ in range(room - len(loops)):
        put_loop(fields, _NOTHING)
    return fields


def _put_side(fields: Fields, side: Side, first: int) -> None:
    fields.align(8)
    fields.unsigned(first, len(side.whole), side.chunk, 0)
    fields.integers((side.last.extent,))
    put_loop(fields, _with_every_stride(side.last))


def _with_every_stride(loop: Dimension) -> Dimension:
    absent = 1 + MOST_SOURCES - len(loop.strides)
    return replace(loop, strides=(*loop.strides, *[0] * absent))
