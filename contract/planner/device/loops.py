"""Loops over several tensors, and how a kernel divides by their extents."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from contract.descriptors.layout import offset_bounds
from contract.errors import NotSupportedError
from contract.planner.device.launch import Fields

__all__ = ["Dimension", "capacity", "divisor", "fused", "needs_wide_offsets", "put_loop"]

NARROW = 1 << 30  # offsets below this, and a tile beyond them, fit 31 bits
_CAPACITIES = (8, 24, 56)  # more loops do not fit the 4096 bytes of arguments; no tensor has them


@dataclass(frozen=True, slots=True)
class Dimension:
    """``extent`` indices and the stride of each tensor (elements).

    The indices from ``left`` on, ``inside`` of them, have a source: all, but for padding.
    """

    extent: int
    strides: tuple[int, ...]
    left: int = 0
    inside: int = -1

    def __post_init__(self) -> None:
        if self.inside < 0:
            object.__setattr__(self, "inside", self.extent)

    @property
    def padded(self) -> bool:
        """Whether some indices have no source."""
        return self.inside != self.extent


def fused(dimensions: Iterable[Dimension]) -> list[Dimension]:
    """The same indices in fewer dimensions, by increasing stride of the first tensor.

    Extent 1 vanishes; a dimension joins another where it continues it in every tensor.
    """
    done: list[Dimension] = []
    for each in sorted(dimensions, key=lambda d: (abs(d.strides[0]), d.extent)):
        if each.extent == 1 and not each.padded:
            continue
        if done and _continues(each, done[-1]):
            extent = done[-1].extent * each.extent
            done[-1] = replace(done[-1], extent=extent, inside=extent)
        else:
            done.append(each)
    return done


def _continues(outer: Dimension, inner: Dimension) -> bool:
    return not (outer.padded or inner.padded) and all(
        far == near * inner.extent for far, near in zip(outer.strides, inner.strides, strict=True)
    )


def needs_wide_offsets(dimensions: Sequence[Dimension]) -> bool:
    """Whether an offset or a count of indices does not fit 31 bits."""
    extents = [each.extent for each in dimensions]
    if prod(extents) >= NARROW:
        return True
    by_tensor = zip(*(each.strides for each in dimensions), strict=True)
    bounds = (offset_bounds(extents, strides) for strides in by_tensor)
    return any(high - low >= NARROW for low, high in bounds)


def capacity(loops: int) -> int:
    """Room for that many loops in an argument struct; few sizes, so that few kernels are built."""
    if loops > _CAPACITIES[-1]:
        raise NotSupportedError(
            f"A kernel has at most {_CAPACITIES[-1]} loops that do not fuse: this needs {loops}."
        )
    return next(size for size in _CAPACITIES if loops <= size)


def divisor(extent: int) -> tuple[int, int]:
    """magic and shift with n // extent == (n * magic) >> (32 + shift) for 0 <= n < 2^31.

    A magic of 0 stands for an extent of 1, or one that nothing is divided by: 2^31 and more.
    """
    if not 2 <= extent < 1 << 31:
        return 0, 0
    bits = (extent - 1).bit_length()
    return -(-(1 << (31 + bits)) // extent), bits - 1


def put_loop(fields: Fields, loop: Dimension) -> None:
    """The struct Loop of layout.cuh."""
    magic, shift = divisor(loop.extent)
    fields.align(8)
    fields.unsigned(min(loop.extent, (1 << 32) - 1), magic, shift, 0)
    fields.integers((loop.left, loop.inside, *loop.strides))
