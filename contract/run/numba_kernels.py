"""The compiled host kernels: the inner loops as Numba functions, and how they are prepared.

Threads are ours (nogil functions on parts of a loop), for Numba's own threading aborts the
process when two Python threads enter it at once.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import ceil, prod
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
from contract.run.numba_copies import CONVERTED, copy, copy_region, is_copied
from contract.run.numba_copies import part as copy_part
from contract.run.numba_passes import combined_pass
from contract.run.numba_reductions import Reduction, is_reduced, reduction, together
from contract.run.numba_team import Team
from contract.run.numba_tile_code import tile_shape
from contract.run.numba_tiles import multiply_boxes
from contract.run.numba_tools import compiled, specialisations
from contract.run.numpy_kernels import NumpyKernels
from contract.run.workers import Workers

__all__ = ["NumbaKernels"]

MOST_SUMMED = 1 << 16  # entries of the offset tables of a direct product
AXPY_EXTENT = 16  # from here on vectors along d beat sums along k that lie as near
PIECE = 1 << 11  # elements of d that stay in cache while all of k is added to them
SHARED_BYTES = 1 << 16  # of a copy worth a thread that is awake
SHARED_WORK = 1 << 18  # multiply-adds worth a thread
PARTS = 4  # for each thread


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
            return lambda a, b, out: _stacked(multiply_integers, a, b, out)
        if kind == "b":
            return lambda a, b, out: _stacked(
                multiply_bits, a.view(np.uint8), b.view(np.uint8), out.view(np.uint8)
            )
        return super().matmul(dtype)

    def tiles(
        self, a: np.dtype[Any], b: np.dtype[Any], dtype: np.dtype[Any]
    ) -> tuple[TileShape, BoxKernel] | None:
        return tile_shape(dtype), multiply_boxes(a, b, dtype, self.team)

    def loops(self, dtype: str, table: Sequence[LoopRow]) -> ProductKernel:
        summed = [row for row in table if row[0] == "k"]
        if (
            np.dtype(dtype).kind not in "iufc"
            or dtype not in CONVERTED
            or (prod(row[1] for row in summed) > MOST_SUMMED)
        ):
            return super().loops(dtype, table)
        kept = sorted((row for row in table if row[0] != "k"), key=lambda row: abs(row[2][2]))
        kept = kept or [("m", 1, (0, 0, 1))]
        summed = sorted(summed, key=_reach) or [("k", 1, (0, 0, 0))]
        along_sums = kept[0][1] < AXPY_EXTENT or _reach(summed[0]) < _reach(kept[0])
        kernel, inner = multiply_axpy, 0
        if along_sums:
            kernel, inner = multiply_dot, 1
        sums = np.array([(extent, *strides[:2]) for _, extent, strides in summed[:inner]], np.int64)
        sums_a, sums_b = (_offsets(summed[inner:], operand) for operand in (0, 1))
        rows = np.array([(extent, *strides) for _, extent, strides in kept], np.int64)
        pieces = ceil(kept[0][1] / PIECE)
        units = pieces * prod(row[1] for row in kept[1:])
        work = min(kept[0][1], PIECE) * prod(row[1] for row in summed)
        minimum = max(1, SHARED_WORK // work)

        def run(a: Array, a0: int, b: Array, b0: int, d: Array, d0: int) -> None:
            def part(begin: int, end: int) -> None:
                kernel(a, a0, b, b0, d, d0, rows, sums, sums_a, sums_b, pieces, begin, end)

            self.workers.map(part, self.workers.split(units, minimum, PARTS))

        return run


def _reach(row: LoopRow) -> int:
    """How far one step of a loop goes in both operands."""
    return abs(row[2][0]) + abs(row[2][1])


def _offsets(rows: Sequence[LoopRow], operand: int) -> Array:
    """The offset of every combination of the summed loops."""
    offsets = np.zeros(1, np.int64)
    for row in rows:
        steps = np.arange(row[1], dtype=np.int64) * row[2][operand]
        offsets = (steps[:, None] + offsets).ravel()
    return offsets


# --- products ---------------------------------------------------------------------------


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


@compiled
def _unit_offsets(rows: Array, unit: int) -> tuple[int, int, int]:
    """Offsets in a, b and d of one run of the innermost loop."""
    a = b = d = 0
    for at in range(1, rows.shape[0]):
        index = unit % rows[at, 0]
        unit //= rows[at, 0]
        a += index * rows[at, 1]
        b += index * rows[at, 2]
        d += index * rows[at, 3]
    return a, b, d


@compiled
def multiply_dot(
    a: Array,
    a0: int,
    b: Array,
    b0: int,
    d: Array,
    d0: int,
    rows: Array,
    sums: Array,
    sums_a: Array,
    sums_b: Array,
    pieces: int,
    begin: int,
    end: int,
) -> None:
    """d[i] = sum_k a[i + k] * b[i + k] for units begin..end: pieces of the innermost of i.

    ``sums`` has the innermost loop of k, ``sums_a`` and ``sums_b`` the offsets of the others.
    """
    n, ia, ib, id_ = rows[0, 0], rows[0, 1], rows[0, 2], rows[0, 3]
    count, ka, kb = sums[0, 0], sums[0, 1], sums[0, 2]
    for unit in range(begin, end):
        piece = unit % pieces
        oa, ob, od = _unit_offsets(rows, unit // pieces)
        oa, ob, od = oa + a0, ob + b0, od + d0
        for i in range(n * piece // pieces, n * (piece + 1) // pieces):
            # Four sums, for one alone waits for itself.
            one = two = three = four = a.dtype.type(0) * b.dtype.type(0)
            for k in range(sums_a.size):
                x, y = oa + i * ia + sums_a[k], ob + i * ib + sums_b[k]
                for _ in range(count // 4):
                    one += a[np.uint64(x)] * b[np.uint64(y)]
                    two += a[np.uint64(x + ka)] * b[np.uint64(y + kb)]
                    three += a[np.uint64(x + 2 * ka)] * b[np.uint64(y + 2 * kb)]
                    four += a[np.uint64(x + 3 * ka)] * b[np.uint64(y + 3 * kb)]
                    x, y = x + 4 * ka, y + 4 * kb
                for _ in range(count % 4):
                    one += a[np.uint64(x)] * b[np.uint64(y)]
                    x, y = x + ka, y + kb
            d[np.uint64(od + i * id_)] = (one + two) + (three + four)


@compiled
def multiply_axpy(
    a: Array,
    a0: int,
    b: Array,
    b0: int,
    d: Array,
    d0: int,
    rows: Array,
    sums: Array,
    sums_a: Array,
    sums_b: Array,
    pieces: int,
    begin: int,
    end: int,
) -> None:
    """The same, one vector along d for each k; ``sums`` is empty."""
    n, ia, ib, id_ = rows[0, 0], rows[0, 1], rows[0, 2], rows[0, 3]
    for unit in range(begin, end):
        piece = unit % pieces
        oa, ob, od = _unit_offsets(rows, unit // pieces)
        oa, ob, od = oa + a0, ob + b0, od + d0
        first, last = n * piece // pieces, n * (piece + 1) // pieces
        for k in range(sums_a.size):
            ka, kb = oa + sums_a[k], ob + sums_b[k]
            if k == 0:
                for i in range(first, last):
                    d[np.uint64(od + i * id_)] = (
                        a[np.uint64(ka + i * ia)] * b[np.uint64(kb + i * ib)]
                    )
            else:
                for i in range(first, last):
                    d[np.uint64(od + i * id_)] += (
                        a[np.uint64(ka + i * ia)] * b[np.uint64(kb + i * ib)]
                    )
