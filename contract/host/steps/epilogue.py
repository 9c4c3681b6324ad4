"""The end of a sum on the host: D = alpha * value + beta * op(C), block by block, in cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, prod
from typing import Any

import numpy as np

from contract.descriptors.layout import packed_strides
from contract.descriptors.operators import Operator
from contract.host.kernels.operators import add_scaled, spare_elements
from contract.host.kernels.protocol import CopyKernel, HostKernels
from contract.host.resources.memory import Cutter
from contract.host.resources.views import Array
from contract.plan.workspace import rounded

__all__ = ["Blocks", "Finish", "Flat", "filled", "offset"]

Flat = tuple[Array, int]  # memory, and the element at which an operand starts


def offset(strides: Sequence[int], starts: Sequence[int]) -> int:
    """How far the element ``starts`` lies from the first."""
    return sum(stride * start for stride, start in zip(strides, starts, strict=True))


def filled(extents: Sequence[int], room: int) -> tuple[int, ...]:
    """A block of at most ``room`` elements, the first dimensions whole before the next begin."""
    blocks = []
    for n in extents:
        blocks.append(max(min(n, room), 1))
        room //= blocks[-1]
    return tuple(blocks)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Dimensions cut into blocks; block 0 starts at 0 and is as large as any."""

    extents: tuple[int, ...]
    blocks: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """How many blocks there are along each dimension."""
        return tuple(ceil(n / block) for n, block in zip(self.extents, self.blocks, strict=True))

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return prod(self.counts)

    @property
    def size(self) -> int:
        """Elements of the largest block."""
        return prod(self.blocks)

    def block(self, at: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The starts and the extents of a block; the first dimension runs fastest."""
        starts, sizes = [], []
        for n, block in zip(self.extents, self.blocks, strict=True):
            at, here = divmod(at, ceil(n / block))
            starts.append(here * block)
            sizes.append(min(block, n - here * block))
        return tuple(starts), tuple(sizes)


class Finish:
    """Scales blocks of values, packed in the order of their dimensions, adds C, writes D.

    ``types`` and ``strides`` are those of D and, where it is read, of C.
    """

    def __init__(
        self,
        kernels: HostKernels,
        dtype: str,
        types: Sequence[str],
        strides: Sequence[Sequence[int]],
        operator: Operator = Operator.IDENTITY,
    ) -> None:
        self.kernels = kernels
        self.dtype = dtype
        self.types = types
        self.strides = strides
        self.operator = operator
        self.copies: Callable[[tuple[int, ...]], list[CopyKernel]] = cache(self._copies)

    def _copies(self, extents: tuple[int, ...]) -> list[CopyKernel]:
        """Writing a block of D, and reading one of C."""
        packed, copy = packed_strides(extents), self.kernels.copy
        found = [copy(extents, packed, self.strides[0], self.dtype, self.types[0])]
        if len(self.types) > 1:
            found.append(copy(extents, self.strides[1], packed, self.types[1], self.dtype))
        return found

    def sizes(self, block: int) -> tuple[int, int]:
        """Elements of C and beside it that blocks of ``block`` elements need."""
        if len(self.types) == 1:
            return 0, 0
        return block, spare_elements(self.operator, block)

    def bytes(self, block: int) -> int:
        """Bytes of the same."""
        return sum(rounded(size * np.dtype(self.dtype).itemsize) for size in self.sizes(block))

    def buffers(self, block: int, cutter: Cutter) -> tuple[Array, Array]:
        """The same as arrays."""
        one, two = (cutter.take(size, np.dtype(self.dtype)) for size in self.sizes(block))
        return one, two

    def __call__(
        self,
        value: Array,
        place: tuple[Sequence[int], tuple[int, ...]],
        target: Flat,
        addend: Flat | None,
        factors: tuple[Any, Any],
        buffers: tuple[Array, Array],
    ) -> None:
        """One block at ``place`` (starts, extents); ``factors`` are alpha and beta."""
        starts, extents = place
        copies, count = self.copies(extents), prod(extents)
        plus = None
        if addend is not None:
            plus = buffers[0][:count]
            copies[1](addend[0], addend[1] + offset(self.strides[1], starts), plus, 0)
        add_scaled(value[:count], factors[0], plus, factors[1], self.operator, buffers[1])
        copies[0](value, 0, target[0], target[1] + offset(self.strides[0], starts))
