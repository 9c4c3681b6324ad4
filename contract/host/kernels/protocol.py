"""What a family of host kernels offers, and how it sees memory.

A kernel is prepared for extents and strides (in elements) once and called with flat memory and
offsets many times, so that one preparation serves every block of a tensor.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from contract.descriptors.layout import offset_bounds
from contract.descriptors.operators import BinaryOperator
from contract.execution.compiled_code import Kernel
from contract.host.resources.views import Array
from contract.host.resources.workers import Workers

__all__ = [
    "PARALLEL_BYTES",
    "SMALL_ELEMENTS",
    "BoxKernel",
    "CopyKernel",
    "HostKernels",
    "Job",
    "LoopRow",
    "MatmulKernel",
    "PassKernel",
    "ProductKernel",
    "TileShape",
    "TileSource",
    "flatten",
    "strided_view",
]

CopyKernel = Callable[[Array, int, Array, int], None]
Job = tuple[int, int, CopyKernel]  # where it begins in source and target, in elements
ProductKernel = Callable[[Array, int, Array, int, Array, int], None]
MatmulKernel = Callable[[Array, Array, Array], None]
# What a product is, a BoxCall; shares of its boxes; whether threads are woken.
BoxKernel = Callable[[Sequence[int], int, bool], None]
LoopRow = tuple[str, int, tuple[int, int, int]]  # kind, extent, strides in a, b, d

SMALL_ELEMENTS = 1 << 13  # below, NumPy is done before a compiled kernel has its arguments
PARALLEL_BYTES = 1 << 18  # smaller moves are done before a second thread has started


class TileSource(NamedTuple):
    """An operand of a pass over tiles: where it lies, and where its tiles are loaded.

    Strides are in elements, ``buffer`` those in a buffer of ``size`` elements, or None where tiles
    are read in place. Tiles have the dimensions ``held``; along the others they broadcast.
    """

    strides: tuple[int, ...]
    dtype: str
    held: tuple[int, ...]
    buffer: tuple[int, ...] | None
    size: int


class PassKernel(NamedTuple):
    """A pass over tiles by all threads, with ``bytes`` of memory.

    It is run with the addresses of the operands and the target, that of the memory, and a real
    factor of each operand, or None where all are 1.
    """

    run: Callable[[Sequence[int], int, Sequence[float] | None], None]
    bytes: int


class TileShape(NamedTuple):
    """A register tile: ``vectors`` of ``lanes`` rows, and ``columns``, for one type.

    There are narrower ones: of one vector, and of multiples of ``grain`` columns.
    """

    vectors: int
    lanes: int
    columns: int
    grain: int

    @property
    def rows(self) -> int:
        """Rows of a whole tile."""
        return self.vectors * self.lanes


class HostKernels(Protocol):
    """What the host executor asks of a family of kernels."""

    name: str
    workers: Workers

    def copy(
        self,
        extents: Sequence[int],
        source_strides: Sequence[int],
        target_strides: Sequence[int],
        source_dtype: str,
        target_dtype: str,
    ) -> CopyKernel:
        """target[i] = source[i], converted as astype does: (source, offset, target, offset)."""

    def combined(
        self,
        extents: Sequence[int],
        blocks: Sequence[int],
        sources: Sequence[TileSource],
        target_strides: Sequence[int],
        dtype: str,
        operators: Sequence[BinaryOperator],
    ) -> PassKernel | None:
        """target[i] = ((f1 * one o f2 * two) o f3 * three)[i] in tiles; None: NumPy is as good."""

    def reduces(self, source_dtype: str, target_dtype: str) -> bool:
        """Whether ``reduce`` reads the source's type at full speed."""

    def reduce(
        self,
        extents: Sequence[int],
        source_strides: Sequence[int],
        target_strides: Sequence[int],
        reduced_extents: Sequence[int],
        reduced_strides: Sequence[int],
        source_dtype: str,
        target_dtype: str,
        operator: BinaryOperator,
    ) -> CopyKernel:
        """target[i] = operator over r of source[i, r], in the target's type, on one thread."""

    def together(self, jobs: Sequence[Job]) -> CopyKernel:
        """One kernel for the jobs of several such, which the threads share."""

    def matmul(self, dtype: str) -> MatmulKernel:
        """out[l,m,n] = sum_k a[l,m,k] * b[l,k,n] on stacks of matrices: (a, b, out)."""

    def loops(self, dtype: str, table: Sequence[LoopRow]) -> ProductKernel:
        """d = sum over k of a * b on strided memory, nothing packed."""

    def tiles(
        self, a: np.dtype[Any], b: np.dtype[Any], dtype: np.dtype[Any]
    ) -> tuple[TileShape, BoxKernel] | None:
        """How products of such types are multiplied by boxes of packed panels; None: not at all."""

    def for_plan(self) -> "HostKernels":
        """The same kernels, to prepare one plan with."""

    def needs(self) -> frozenset[Kernel]:
        """The compiled functions of all that was prepared for the plan, which is ready to run."""


# --- flat memory --------------------------------------------------------------------------------


def flatten(x: Array) -> tuple[Array, int]:
    """(flat, origin): element i of x is flat[origin + sum(i * stride)]; nothing is copied."""
    if x.flags.c_contiguous:
        return x.reshape(-1), 0
    if x.flags.f_contiguous:
        return x.T.reshape(-1), 0
    steps = x.strides
    # Packed in another order: a transposition and a reshape cost a third of as_strided.
    packed = x.transpose(sorted(range(x.ndim), key=lambda at: -steps[at]))
    if packed.flags.c_contiguous:
        return packed.reshape(-1), 0
    size = x.itemsize
    low, high = offset_bounds(x.shape, [step // size for step in steps])
    lowest = x[tuple(slice(None, None, -1) if step < 0 else slice(None) for step in steps)]
    return np.lib.stride_tricks.as_strided(lowest, (high - low + 1,), (size,)), -low


def strided_view(flat: Array, offset: int, extents: Sequence[int], strides: Sequence[int]) -> Array:
    """The array whose element i is flat[offset + sum(i * strides)]."""
    size = flat.itemsize
    if not flat.dtype.hasobject and flat.flags.c_contiguous:
        steps = [stride * size for stride in strides]
        return np.ndarray(tuple(extents), flat.dtype, flat, offset * size, steps)
    low, _ = offset_bounds(extents, strides)
    up = [abs(stride) * size for stride in strides]
    view = np.lib.stride_tricks.as_strided(flat[offset + low :], tuple(extents), up)
    flips: list[Any] = [slice(None, None, -1 if stride < 0 else 1) for stride in strides]
    return view[(*flips, ...)]  # the Ellipsis keeps rank 0 an array
