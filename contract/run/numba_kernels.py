"""The compiled host kernels: the inner loops as Numba functions, and how they are prepared.

Threads are ours (nogil functions on parts of a loop), for Numba's own threading aborts the
process when two Python threads enter it at once.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from contract.operators import BinaryOperator
from contract.run.host_kernels import (
    PARALLEL_BYTES,
    BoxKernel,
    CopyKernel,
    Job,
    LoopRow,
    MatmulKernel,
    PassKernel,
    ProductKernel,
    TileShape,
    TileSource,
)
from contract.run.host_views import Array, address
from contract.run.matrix_slices import in_slices
from contract.run.numba_copies import CONVERTED, copy, copy_region, is_copied
from contract.run.numba_copies import part as copy_part
from contract.run.numba_loops import multiply_loops
from contract.run.numba_passes import combined_pass
from contract.run.numba_reductions import Reduction, is_reduced, reduction, together
from contract.run.numba_team import Team
from contract.run.numba_tile_code import tile_shape
from contract.run.numba_tiles import multiply_boxes
from contract.run.numba_tools import compiled, specialisations
from contract.run.numpy_kernels import NumpyKernels
from contract.run.workers import Workers

__all__ = ["NumbaKernels"]

SHARED_BYTES = 1 << 16  # of a copy worth a thread that is awake
SLICE_BYTES = 1 << 25  # of a copy, between which Python looks for signals


class NumbaKernels(NumpyKernels):
    """Compiled copies, reductions and products; types that Numba lacks stay with NumPy."""

    name = "numba"

    def __init__(self, workers: Workers) -> None:
        super().__init__(workers)
        self.team = Team(workers)

    def specialisations(self) -> int:
        return specialisations()

    def copy(
        self,
        extents: Sequence[int],
        source_strides: Sequence[int],
        target_strides: Sequence[int],
        source_dtype: str,
        target_dtype: str,
    ) -> CopyKernel:
        one, two = np.dtype(source_dtype), np.dtype(target_dtype)
        if not is_copied(one, two) or 0 in extents:
            return super().copy(extents, source_strides, target_strides, source_dtype, target_dtype)
        region, shift_s, shift_t = copy_region(extents, source_strides, target_strides, one, two)
        table, units, size_s, size_t = region.table, region.units, one.itemsize, two.itemsize
        parts = self.workers.parts(units, max(1, SHARED_BYTES // region.unit_bytes))
        parts = max(parts, min(units, units * region.unit_bytes // SLICE_BYTES))
        wakes, team = units * region.unit_bytes >= 2 * PARALLEL_BYTES, self.team
        at = table.ctypes.data

        @cache
        def kernel() -> int:
            return region.kernel

        def run(source: Array, source_offset: int, target: Array, target_offset: int) -> None:
            s = address(source) + source_offset * size_s + shift_s
            t = address(target) + target_offset * size_t + shift_t
            if parts == 1:
                copy(kernel(), at, s, t, units)
            else:
                team.run(copy_part(), (kernel(), at, s, t), units, parts, wakes)

        return run

    def combined(
        self,
        extents: Sequence[int],
        blocks: Sequence[int],
        sources: Sequence[TileSource],
        target_strides: Sequence[int],
        dtype: str,
        operators: Sequence[BinaryOperator],
    ) -> PassKernel | None:
        given = extents, blocks, sources, target_strides, dtype, operators
        return combined_pass(*given, self.team)

    def reduces(self, source_dtype: str, target_dtype: str) -> bool:
        return source_dtype == target_dtype or is_reduced(source_dtype, target_dtype)

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
        kept = extents, source_strides, target_strides
        reduced = reduced_extents, reduced_strides
        types = source_dtype, target_dtype
        found = reduction(*kept, *reduced, *types, operator)
        return super().reduce(*kept, *reduced, *types, operator) if found is None else found

    def together(self, jobs: Sequence[Job]) -> CopyKernel:
        known = [(at, to, job) for at, to, job in jobs if isinstance(job, Reduction)]
        return together(known, self.team) if len(known) == len(jobs) else super().together(jobs)

    def matmul(self, dtype: str) -> MatmulKernel:
        kind = np.dtype(dtype).kind
        if kind in "iu":
            return in_slices(partial(_stacked, multiply_integers), dtype, self.workers)
        if kind == "b":
            return in_slices(_multiply_bits, dtype, self.workers)
        return super().matmul(dtype)

    def tiles(
        self, a: np.dtype[Any], b: np.dtype[Any], dtype: np.dtype[Any]
    ) -> tuple[TileShape, BoxKernel] | None:
        return tile_shape(dtype), multiply_boxes(a, b, dtype, self.team)

    def loops(self, dtype: str, table: Sequence[LoopRow]) -> ProductKernel:
        found = multiply_loops(np.dtype(dtype), table, self.team) if dtype in CONVERTED else None
        return super().loops(dtype, table) if found is None else found


# --- products ---------------------------------------------------------------------------


def _multiply_bits(a: Array, b: Array, out: Array) -> None:
    _stacked(multiply_bits, a.view(np.uint8), b.view(np.uint8), out.view(np.uint8))


def _stacked(kernel: Callable[..., None], a: Array, b: Array, out: Array) -> None:
    """Every matrix product of a stack, written along the output's rows."""
    if abs(out.strides[-2]) < abs(out.strides[-1]):
        a, b, out = b.swapaxes(-1, -2), a.swapaxes(-1, -2), out.swapaxes(-1, -2)
    batch = out.shape[:-2]
    a, b = np.broadcast_to(a, batch + a.shape[-2:]), np.broadcast_to(b, batch + b.shape[-2:])
    for where in np.ndindex(batch):
        kernel(a[where], np.ascontiguousarray(b[where]), out[where])


@compiled
def multiply_integers(a: Array, b: Array, out: Array) -> None:
    """out[m,n] = sum_k a[m,k] * b[k,n], wrapping around; b is row-major."""
    for m in range(out.shape[0]):
        out[m, :] = 0
        row = out[m]
        for k in range(b.shape[0]):
            factor = a[m, k]
            for n in range(b.shape[1]):
                row[n] += factor * b[k, n]


@compiled
def multiply_bits(a: Array, b: Array, out: Array) -> None:
    """out[m,n] = or over k of a[m,k] and b[k,n], as bytes 0 and 1."""
    for m in range(out.shape[0]):
        out[m, :] = 0
        row = out[m]
        for k in range(b.shape[0]):
            if a[m, k]:
                for n in range(b.shape[1]):
                    row[n] |= b[k, n]
