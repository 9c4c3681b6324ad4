"""Products of 16-bit numbers, and of float32 as tf32 -> one launch of the kernel in hopper.cuh.

A tile is a box of the loops. TMA copies the boxes of A and B from where the tensors lie, so each
needs a loop of stride 1, strides of whole 16 bytes in all others, and no more than five loops.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from contract.compute import ComputeType
from contract.kernels.architectures import Architecture
from contract.kernels.call import Fields, KernelCall, MapType, TensorMap, entry_stub
from contract.kernels.configurations import HOPPER_TILES, HopperTile
from contract.kernels.loops import NARROW, Dimension, divisor
from contract.kernels.names import type_name
from contract.kernels.product import (
    A,
    B,
    C,
    D,
    Problem,
    Tensor,
    addend_type,
    by_stride,
    exchanged,
    held_by,
    oriented,
    vector_width,
)
from contract.operators import Operator
from contract.plan import Gemm, Gett, Plan, Scalar

__all__ = ["hopper_calls"]

HEADERS = ("types", "operators", "layout", "factors", "wgmma", "hopper")
CAPABILITY = 90  # of the one architecture that has wgmma
STEP_BYTES = 128  # of k
LEAST_RUN = 32  # bytes side by side: the narrowest swizzle
MOST_MODES = 5  # of a tensor map
MAP_BYTES = 16  # addresses and strides are multiples of it
MOST_STRIDE = 1 << 40  # bytes
AXES = 2 * MOST_MODES  # loops of the product; one more stands still
LEAST_INSIDE = 5 / 8  # of the boxes' products: mma.sync, whose tiles fit any loops, is as fast then
# Compute types that let float32 be rounded to tf32, or to less.
ROUNDING = (ComputeType.TF32, ComputeType.F16, ComputeType.BF16)


def hopper_calls(
    plan: Plan, step: Gett | Gemm, architecture: Architecture, chosen: HopperTile | None = None
) -> tuple[KernelCall, ...] | None:
    """One launch, none where D has no elements; None where the kernel does not serve the product.

    ``chosen`` is the tile; None: the one that takes the fewest clocks, where the product is
    large enough to gain.
    """
    # D is written in pairs along n, so that the mode in which it lies side by side is B's.
    problem = exchanged(oriented(step, held_by(plan, step)))
    extents = problem.extents
    if 0 in (extents.l, extents.m, extents.n):
        return ()
    if architecture.capability != CAPABILITY or not _has_units(problem, architecture):
        return None
    tiles = HOPPER_TILES if chosen is None else (chosen,)
    found = [cut for tile in tiles if (cut := _cut(problem, tile)) is not None]
    best = min(found, key=lambda cut: cut.clocks(architecture), default=None)
    if best is None or (chosen is None and not _gains(best, architecture)):
        return None
    return (_call(best, architecture),)


def _has_units(problem: Problem, architecture: Architecture) -> bool:
    """Whether wgmma multiplies such elements, as they are and summed in float32."""
    a, b = problem.a, problem.b
    halves = a.dtype in ("float16", "bfloat16")
    rounds = problem.compute in ROUNDING and architecture.tf32
    return (
        a.dtype == b.dtype
        and problem.dtype == "float32"
        and (halves or (a.dtype == "float32" and rounds))
        and a.operator is b.operator is Operator.IDENTITY
    )


# --- the boxes ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Loops of one kind cut into boxes of ``sides`` indices each, all powers of two.

    ``axis`` is the number of the first loop among those of the product.
    """

    axis: int
    loops: tuple[Dimension, ...]
    sides: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Boxes along each loop."""
        return _counts(self.loops, self.sides)

    @property
    def count(self) -> int:
        return prod(self.counts)


def _counts(loops: Sequence[Dimension], sides: Sequence[int]) -> tuple[int, ...]:
    return tuple(ceil(loop.extent / side) for loop, side in zip(loops, sides, strict=True))


@dataclass(frozen=True, slots=True)
class _Mode:
    """A mode of a tensor map: the loop, its axis, its box, and the panels of a tile along it."""

    axis: int
    loop: Dimension
    box: int
    panels: int = 1


@dataclass(frozen=True, slots=True)
class _Factor:
    """A or B in boxes: side by side in memory along the first loop of ``along``."""

    at: int
    tensor: Tensor
    by_k: bool
    along: _Boxes
    across: _Boxes
    batch: _Boxes

    @property
    def run(self) -> int:
        """Elements side by side in shared memory."""
        return min(STEP_BYTES // self.tensor.size, self.along.sides[0])

    @property
    def modes(self) -> tuple[_Mode, ...]:
        """The nearest first: rows of a panel, then what its rows are, then what panels are."""
        first, *rest = _modes(self.along)
        panels = (_Mode(each.axis, each.loop, 1, each.box) for each in rest)
        batch = (each for each in _modes(self.batch) if each.loop.strides[self.at])
        nearest = _Mode(first.axis, first.loop, self.run, first.box // self.run)
        return (nearest, *_modes(self.across), *panels, *batch)

    @property
    def is_mapped(self) -> bool:
        """Whether there is a tensor map of it."""
        steps = [each.loop.strides[self.at] * self.tensor.size for each in self.modes[1:]]
        return (
            len(self.modes) <= MOST_MODES
            and self.tensor.alignment % MAP_BYTES == 0
            and all(0 < step < MOST_STRIDE and step % MAP_BYTES == 0 for step in steps)
        )


def _modes(boxes: _Boxes) -> Iterator[_Mode]:
    for at, (loop, side) in enumerate(zip(boxes.loops, boxes.sides, strict=True)):
        yield _Mode(boxes.axis + at, loop, side)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A product cut into boxes."""

    problem: Problem
    tile: HopperTile
    m: _Boxes
    n: _Boxes
    l: _Boxes  # noqa: E741 - the loop's name
    k: _Boxes
    a: _Factor
    b: _Factor

    @property
    def tiles(self) -> int:
        return self.m.count * self.n.count * self.l.count

    @property
    def inside(self) -> float:
        """Which part of the boxes' products are of elements that there are."""
        done = self.tile.m * self.tile.n * (STEP_BYTES // self.problem.a.size)
        wanted = prod(loop.extent for loop in self.problem.loops)
        return wanted / (self.tiles * self.k.count * done)

    @property
    def kinds(self) -> tuple[_Boxes, ...]:
        """The order in which the kernel has the loops."""
        return self.m, self.n, self.l, self.k

    def clocks(self, architecture: Architecture) -> float:
        """Waves of blocks times what one takes, in some unit."""
        tile = self.tile
        waves = ceil(self.tiles / (architecture.multiprocessors * tile.resident))
        return waves * tile.resident * tile.m * tile.n / tile.efficiency


def _cut(problem: Problem, tile: HopperTile) -> _Cut | None:
    """The product in boxes of a tile; None where TMA or wgmma cannot read them."""
    a_k, b_k = (_side_by_side(problem.k, tensor) for tensor in (A, B))
    a_m, b_n = _side_by_side(problem.m, A), _side_by_side(problem.n, B)
    least, step = LEAST_RUN // problem.a.size, STEP_BYTES // problem.a.size
    axis_n, axis_l = len(problem.m), len(problem.m) + len(problem.n)
    m = _boxes(0, _led(problem.m, D, a_m), tile.m, 1 if a_k else least)
    n = _boxes(axis_n, _led(problem.n, D, b_n), tile.n, 1 if b_k else least)
    l = _Boxes(axis_l, problem.l, (1,) * len(problem.l))  # noqa: E741 - the loop's name
    k_first = a_k or b_k
    k = _boxes(
        *(axis_l + len(problem.l), _led(problem.k, A, k_first), step, least if k_first else 1)
    )
    if m is None or n is None or k is None:
        return None
    a = _Factor(A, problem.a, a_k is not None, *((k, m) if a_k else (m, k)), l)
    b = _Factor(B, problem.b, b_k is not None, *((k, n) if b_k else (n, k)), l)
    cut = _Cut(problem, tile, m, n, l, k, a, b)
    return cut if _is_legal(cut) else None


def _is_legal(cut: _Cut) -> bool:
    """Whether both factors are mapped, k lies alike in them, and the kernel counts so far."""
    a, b, loops = cut.a, cut.b, cut.problem.loops
    transposes = a.tensor.size == 2  # tiles of 32-bit elements wgmma reads along k only
    return (
        a.is_mapped
        and b.is_mapped
        and all(each.along.loops[0].strides[each.at] == 1 for each in (a, b))
        and (transposes or (a.by_k and b.by_k))
        and len(loops) <= AXES
        and max(cut.tiles, cut.k.count, *(loop.extent for loop in loops)) < NARROW
    )


def _gains(cut: _Cut, architecture: Architecture) -> bool:
    """Whether half of the machine has work, for longer than a ring takes to fill, mostly inside.

    Else blocks begin and end more than they multiply.
    """
    return (
        2 * cut.tiles >= architecture.multiprocessors
        and cut.k.count >= 2 * cut.tile.stages
        and cut.inside >= LEAST_INSIDE
    )


def _side_by_side(loops: Sequence[Dimension], tensor: int) -> Dimension | None:
    """The loop along which elements of a tensor lie side by side."""
    return next((loop for loop in loops if loop.strides[tensor] == 1), None)


def _led(
    loops: Sequence[Dimension], tensor: int, leader: Dimension | None
) -> tuple[Dimension, ...]:
    """The leader first, the others as near as they are in a tensor."""
    first = () if leader is None else (leader,)
    return (*first, *(loop for loop in by_stride(loops, tensor) if loop is not leader))


def _boxes(axis: int, loops: tuple[Dimension, ...], size: int, least: int) -> _Boxes | None:
    """Boxes of ``size`` indices, as few as can be; of those the longest along the first loops.

    The first side is ``least`` or more. None without loops.
    """
    if not loops:
        return None
    sides = min(
        (shape for shape in _shapes(len(loops), size) if shape[0] >= least),
        key=lambda shape: (prod(_counts(loops, shape)), [-side for side in shape]),
    )
    return _Boxes(axis, loops, sides)


def _shapes(loops: int, size: int) -> Iterator[tuple[int, ...]]:
    """The boxes of ``size`` indices whose sides are powers of two."""
    if loops == 1:
        yield (size,)
        return
    side = 1
    while side <= size:
        yield from ((side, *rest) for rest in _shapes(loops - 1, size // side))
        side *= 2


# --- the launch ---------------------------------------------------------------------------------


def _call(cut: _Cut, architecture: Architecture) -> KernelCall:
    tile = cut.tile
    blocks = min(cut.tiles, architecture.multiprocessors * tile.resident)
    return KernelCall(
        headers=HEADERS,
        stub=_stub(cut),
        entry="hopper",
        grid=(blocks, 1, 1),
        block=(tile.threads, 1, 1),
        arguments=_arguments(cut).arguments(),
        reason=f"TMA and wgmma, {tile.reason}: tiles of {_shape(cut.m)} x {_shape(cut.n)}, "
        f"k by {_shape(cut.k)}, {cut.inside:.0%} of them inside",
        shared=tile.shared,
        architecture=f"{CAPABILITY}a",
    )


def _shape(boxes: _Boxes) -> str:
    sides = ".".join(map(str, boxes.sides))
    return sides if len(boxes.sides) == 1 else f"({sides})"


def _stub(cut: _Cut) -> str:
    tile, problem = cut.tile, cut.problem
    turned = exchanged(replace(problem, m=cut.m.loops, n=cut.n.loops))  # n is written as m there
    width = vector_width(turned, turned.d, D, turned.m, min(2, cut.n.sides[0]))
    offset = "long long" if problem.is_wide else "int"
    sizes = tile.m, tile.n, tile.groups, tile.stages
    return entry_stub(
        "hopper",
        f"{tile.threads}, {tile.resident}",
        f"Hopper<{type_name(problem.d.dtype)}, {offset},",
        f"    HopperTile<{', '.join(map(str, sizes))}>,",
        f"    {_panels(cut.a, tile.m)},",
        f"    {_panels(cut.b, tile.n)},",
        f"    {addend_type(turned, width)}, {width}>;",
        qualifier="const __grid_constant__",
    )


def _panels(factor: _Factor, side: int) -> str:
    along = "K" if factor.by_k else "TILE"
    width = factor.run * factor.tensor.size
    return f"Panels<{type_name(factor.tensor.dtype)}, Along::{along}, {width}, {side}>"


# --- the arguments ------------------------------------------------------------------------------


def _arguments(cut: _Cut) -> Fields:
    """The struct Arguments of Hopper."""
    fields, problem = Fields(), cut.problem
    for factor in (cut.a, cut.b):
        fields.tensor_map(_tensor_map(factor))
    fields.pointer(problem.c.pointer if problem.c else None)
    fields.pointer(problem.d.pointer)
    fields.scalar(Scalar.ALPHA if problem.scaled else None, problem.dtype)
    fields.scalar(Scalar.BETA if problem.c else None, problem.dtype)
    fields.unsigned(cut.tiles, cut.k.count, *(len(kind.loops) for kind in cut.kinds))
    for factor in (cut.a, cut.b):
        _put_modes(fields, factor)
    _put_axes(fields, cut)
    return fields


def _tensor_map(factor: _Factor) -> TensorMap:
    modes, size = factor.modes, factor.tensor.size
    missing = (1,) * (MOST_MODES - len(modes))
    steps = tuple(mode.loop.strides[factor.at] * size for mode in modes[1:])
    return TensorMap(
        factor.tensor.pointer,
        MapType.BITS16 if size == 2 else MapType.TF32,
        (*(mode.loop.extent for mode in modes), *missing),
        (*steps, *(MAP_BYTES * each for each in missing)),
        (*(mode.box for mode in modes), *missing),
        factor.run * size,
    )


def _put_modes(fields: Fields, factor: _Factor) -> None:
    """The structs MapMode; a mode that is missing goes with the axis that stands still."""
    before = 1
    for mode in factor.modes:
        step = mode.box if mode.panels > 1 else 0
        fields.unsigned(mode.axis, before.bit_length() - 1, mode.panels - 1, step)
        before *= mode.panels
    for _ in range(MOST_MODES - len(factor.modes)):
        fields.unsigned(AXES, 0, 0, 0)


def _put_axes(fields: Fields, cut: _Cut) -> None:
    """The structs Axis. Tiles go along m first, then n, then l; steps along k."""
    before = 1
    for kind in cut.kinds:
        within, before = 1, 1 if kind is cut.k else before
        for loop, side, count in zip(kind.loops, kind.sides, kind.counts, strict=True):
            fields.align(8)
            fields.unsigned(loop.extent, side, within.bit_length() - 1)
            fields.unsigned(before, *divisor(before), count, *divisor(count), 0)
            fields.integers((loop.strides[D], loop.strides[C]))
            within, before = within * side, before * count
    for _ in range(AXES + 1 - len(cut.problem.loops)):
        fields.align(8)
        fields.unsigned(1, 0, 0, 1, 0, 0, 1, 0, 0, 0)
        fields.integers((0, 0))
