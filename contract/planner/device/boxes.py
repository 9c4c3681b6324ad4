"""A product as boxes of its loops, which TMA copies to shared memory and wgmma multiplies.

A tile is a box of the loops. TMA copies the boxes of A and B from where the tensors lie, so each
needs a loop of stride 1, strides of whole 16 bytes in all others, and no more than five loops.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from contract.descriptors.compute_types import ComputeType
from contract.descriptors.operators import Operator
from contract.machines.gpu import Architecture
from contract.machines.gpu_kernels import HOPPER_TILES, HopperTile
from contract.machines.gpu_tiles import HopperShare
from contract.plan.steps import Product
from contract.planner.device.loops import NARROW, Dimension
from contract.planner.device.problem import (
    A,
    B,
    D,
    Held,
    Problem,
    Tensor,
    by_stride,
    exchanged,
    oriented,
    vector_width,
)

__all__ = ["AXES", "MAP_BYTES", "MOST_MODES", "BoxedFactor", "Boxes", "Cut", "boxed", "cut", "cuts"]

LEAST_RUN = 32  # bytes side by side: the narrowest swizzle
MOST_MODES = 5  # of a tensor map
MAP_BYTES = 16  # addresses and strides are multiples of it
MOST_STRIDE = 1 << 40  # bytes
AXES = 2 * MOST_MODES  # loops of the product; one more stands still
VECTOR_BYTES = 16  # of D that a thread writes at once
# Compute types that let float32 be rounded to tf32, or to less.
ROUNDING = (ComputeType.TF32, ComputeType.F16, ComputeType.BF16)


def boxed(step: Product, held: Mapping[int, Held]) -> Problem:
    """The product as boxes are cut from it.

    D is written in runs along n, so that the mode in which it lies side by side is B's.
    """
    return exchanged(oriented(step, held))


def cuts(problem: Problem, architecture: Architecture) -> Iterator["Cut"]:
    """The product in boxes of every tile that serves."""
    if 0 in _sizes(problem) or not _has_units(problem, architecture):
        return
    for tile in HOPPER_TILES:
        found = cut(problem, tile)
        if found is not None:
            yield found


def _sizes(problem: Problem) -> list[int]:
    return [loop.extent for loop in problem.loops]


def _has_units(problem: Problem, architecture: Architecture) -> bool:
    """Whether wgmma multiplies such elements, as they are and summed in float32."""
    a, b = problem.a, problem.b
    halves = a.dtype in ("float16", "bfloat16")
    rounds = problem.compute in ROUNDING and architecture.tf32
    return (
        architecture.wgmma
        and a.dtype == b.dtype
        and problem.dtype == "float32"
        and (halves or (a.dtype == "float32" and rounds))
        and a.operator is b.operator is Operator.IDENTITY
    )


@dataclass(frozen=True, slots=True)
class Boxes:
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

    def __str__(self) -> str:
        sides = ".".join(map(str, self.sides))
        return sides if len(self.sides) == 1 else f"({sides})"


def _counts(loops: Sequence[Dimension], sides: Sequence[int]) -> tuple[int, ...]:
    return tuple(ceil(loop.extent / side) for loop, side in zip(loops, sides, strict=True))


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode of a tensor map: the loop, its axis, its box, and the panels of a tile along it."""

    axis: int
    loop: Dimension
    box: int
    panels: int = 1


@dataclass(frozen=True, slots=True)
class BoxedFactor:
    """A or B in boxes: side by side in memory along the first loop of ``along``."""

    at: int
    tensor: Tensor
    by_k: bool
    along: Boxes
    across: Boxes
    batch: Boxes

    @property
    def run(self) -> int:
        """Elements side by side in shared memory."""
        return min(HopperTile.STEP_BYTES // self.tensor.size, self.along.sides[0])

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The nearest first: rows of a panel, then what its rows are, then what panels are."""
        first, *rest = _modes(self.along)
        panels = (Mode(each.axis, each.loop, 1, each.box) for each in rest)
        batch = (each for each in _modes(self.batch) if each.loop.strides[self.at])
        nearest = Mode(first.axis, first.loop, self.run, first.box // self.run)
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


def _modes(boxes: Boxes) -> Iterator[Mode]:
    for at, (loop, side) in enumerate(zip(boxes.loops, boxes.sides, strict=True)):
        yield Mode(boxes.axis + at, loop, side)


@dataclass(frozen=True, slots=True)
class Cut:
    """A product cut into boxes."""

    problem: Problem
    tile: HopperTile
    m: Boxes
    n: Boxes
    l: Boxes  # noqa: E741 - the loop's name
    k: Boxes
    a: BoxedFactor
    b: BoxedFactor

    @property
    def tiles(self) -> int:
        return self.m.count * self.n.count * self.l.count

    @property
    def steps(self) -> int:
        """Steps of k that a tile takes."""
        return self.k.count

    @property
    def inside(self) -> float:
        """Which part of the boxes' products are of elements that there are."""
        done = self.tile.m * self.tile.n * self.tile.depth(self.problem.a.size)
        return prod(_sizes(self.problem)) / (self.tiles * self.steps * done)

    @property
    def kinds(self) -> tuple[Boxes, ...]:
        """The order in which the kernel has the loops."""
        return self.m, self.n, self.l, self.k

    @property
    def turned(self) -> Problem:
        """The product with n, in the boxes' order, written as m: as the other kernels write D."""
        return exchanged(replace(self.problem, m=self.m.loops, n=self.n.loops))

    @property
    def width(self) -> int:
        """Elements of D side by side that one access writes."""
        turned = self.turned
        most = min(VECTOR_BYTES // turned.d.size, self.n.sides[0])
        return vector_width(turned, turned.d, D, turned.m, most)

    def reason(self, share: HopperShare) -> str:
        """Why, in words."""
        parts = f", k in {share.parts} parts to fill the machine" if share.parts > 1 else ""
        return (
            f"{self.tile.reason}, TMA and wgmma: tiles of {self.m} x {self.n}, k by {self.k}, "
            f"{self.inside:.0%} of them inside{parts}"
        )


def cut(problem: Problem, tile: HopperTile) -> Cut | None:
    """The product in boxes of a tile; None where TMA or wgmma cannot read them."""
    a_k, b_k = (_side_by_side(problem.k, tensor) for tensor in (A, B))
    a_m, b_n = _side_by_side(problem.m, A), _side_by_side(problem.n, B)
    if (a_k or a_m) is None or (b_k or b_n) is None or not _is_alike(problem, a_k, b_k):
        return None
    least, step = LEAST_RUN // problem.a.size, tile.depth(problem.a.size)
    axis_n, axis_l = len(problem.m), len(problem.m) + len(problem.n)
    m = _boxes(0, _led(problem.m, D, a_m), tile.m, 1 if a_k else least)
    n = _boxes(axis_n, _led(problem.n, D, b_n), tile.n, 1 if b_k else least)
    l = Boxes(axis_l, problem.l, (1,) * len(problem.l))  # noqa: E741 - the loop's name
    k_first = a_k or b_k
    loops_k, first = _led(problem.k, A, k_first), least if k_first else 1
    k = _boxes(axis_l + len(problem.l), loops_k, step, first)
    if m is None or n is None or k is None:
        return None
    a = BoxedFactor(A, problem.a, a_k is not None, *((k, m) if a_k else (m, k)), l)
    b = BoxedFactor(B, problem.b, b_k is not None, *((k, n) if b_k else (n, k)), l)
    found = Cut(problem, tile, m, n, l, k, a, b)
    return found if _is_legal(found) else None


def _is_alike(problem: Problem, a_k: Dimension | None, b_k: Dimension | None) -> bool:
    """Whether k lies alike in both factors; 32-bit elements wgmma reads along k only."""
    both = a_k is not None and a_k is b_k
    return both or (problem.a.size == 2 and (a_k is None or b_k is None))


def _is_legal(found: Cut) -> bool:
    """Whether both factors are mapped, and the kernel counts so far."""
    return (
        found.a.is_mapped
        and found.b.is_mapped
        and len(found.problem.loops) <= AXES
        and max(found.tiles, found.steps, *_sizes(found.problem)) < NARROW
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


def _boxes(axis: int, loops: tuple[Dimension, ...], size: int, least: int) -> Boxes | None:
    """Boxes of ``size`` indices, as few as can be; of those the longest along the first loops.

    The first side is ``least`` or more. None without loops.
    """
    if not loops:
        return None
    sides = min(
        (shape for shape in _shapes(len(loops), size) if shape[0] >= least),
        key=lambda shape: (prod(_counts(loops, shape)), [-side for side in shape]),
    )
    return Boxes(axis, loops, sides)


def _shapes(loops: int, size: int) -> Iterator[tuple[int, ...]]:
    """The boxes of ``size`` indices whose sides are powers of two."""
    if loops == 1:
        yield (size,)
        return
    side = 1
    while side <= size:
        yield from ((side, *rest) for rest in _shapes(loops - 1, size // side))
        side *= 2
