"""The host kernels as NumPy calls, blocked so that transpositions use whole cache lines."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice, pairwise
from itertools import product as combinations
from math import prod
from typing import Any

import numpy as np

from contract.descriptors.compute_types import is_blas_type
from contract.descriptors.operators import BinaryOperator
from contract.execution.compiled_code import Kernel
from contract.host.kernels.operators import UFUNCS
from contract.host.kernels.protocol import (
    PARALLEL_BYTES,
    BoxKernel,
    CopyKernel,
    HostKernels,
    Job,
    LoopRow,
    MatmulKernel,
    PassKernel,
    ProductKernel,
    TileShape,
    TileSource,
    strided_view,
)
from contract.host.resources.blas_threads import blas_threads
from contract.host.resources.matrix_slices import LOOP_PRODUCTS, in_slices
from contract.host.resources.numpy_products import einsum, matmul
from contract.host.resources.views import Array
from contract.host.resources.workers import Workers

__all__ = ["NumpyKernels"]

SLICE_ELEMENTS = 1 << 22  # of a copy, between which Python looks for signals
TILE = 64  # elements along each of the two dimensions of a transposing tile


class NumpyKernels:
    """Kernels of NumPy calls, blocked so that transpositions use whole cache lines."""

    name = "numpy"

    def __init__(self, workers: Workers) -> None:
        self.workers = workers

    def for_plan(self) -> HostKernels:
        return self

    def needs(self) -> frozenset[Kernel]:
        return frozenset()

    def copy(
        self,
        extents: Sequence[int],
        source_strides: Sequence[int],
        target_strides: Sequence[int],
        source_dtype: str,
        target_dtype: str,
    ) -> CopyKernel:
        found = cache(lambda: _copy_blocks(extents, source_strides, target_strides))
        large = prod(extents) * np.dtype(target_dtype).itemsize >= PARALLEL_BYTES

        def run(source: Array, source_offset: int, target: Array, target_offset: int) -> None:
            read = strided_view(source, source_offset, extents, source_strides)
            write = strided_view(target, target_offset, extents, target_strides)
            ranges = found()
            if ranges is None:
                _convert(read, write)
                return

            def part(begin: int, end: int) -> None:
                for block in self.workers.going(islice(combinations(*ranges), begin, end)):
                    _convert(read[block], write[block])

            count = prod(map(len, ranges))
            self.workers.map(part, self.workers.split(count, 1 if large else count))

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
        return None

    def reduces(self, source_dtype: str, target_dtype: str) -> bool:
        return True

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
        shape = (*extents, *reduced_extents)
        strides = (*source_strides, *reduced_strides)
        axes = tuple(range(len(extents), len(shape)))
        dtype, function = np.dtype(target_dtype), UFUNCS[operator]

        def run(source: Array, source_offset: int, target: Array, target_offset: int) -> None:
            read = strided_view(source, source_offset, shape, strides)
            write = strided_view(target, target_offset, extents, target_strides)
            function.reduce(read, axis=axes, dtype=dtype, out=write)

        return run

    def together(self, jobs: Sequence[Job]) -> CopyKernel:
        def run(source: Array, source_offset: int, target: Array, target_offset: int) -> None:
            def job(there: int, here: int, kernel: CopyKernel) -> None:
                with np.errstate(all="ignore"):
                    kernel(source, source_offset + there, target, target_offset + here)

            self.workers.map(job, jobs)

        return run

    def matmul(self, dtype: str) -> MatmulKernel:
        matmul = blas_threads().guarded(_matmul) if is_blas_type(dtype) else _matmul
        return in_slices(matmul, dtype, self.workers)

    def tiles(
        self, a: np.dtype[Any], b: np.dtype[Any], dtype: np.dtype[Any]
    ) -> tuple[TileShape, BoxKernel] | None:
        return None

    def loops(self, dtype: str, table: Sequence[LoopRow]) -> ProductKernel:
        of_a, of_b, of_d = (
            [at for at, row in enumerate(table) if row[0] != without] for without in "nmk"
        )
        shapes = [[table[at][1] for at in chosen] for chosen in (of_a, of_b, of_d)]
        strides = [
            [table[at][2][operand] for at in chosen]
            for operand, chosen in enumerate((of_a, of_b, of_d))
        ]

        def run(a: Array, a0: int, b: Array, b0: int, d: Array, d0: int) -> None:
            views = [
                strided_view(flat, offset, shape, steps)
                for flat, offset, shape, steps in zip(
                    (a, b, d), (a0, b0, d0), shapes, strides, strict=True
                )
            ]
            for one, two, out in self.workers.going(pieces(views)):
                einsum(one, of_a, two, of_b, of_d, out=out)

        def pieces(views: list[Array]) -> Iterator[list[Array]]:
            """The views, cut along the longest loop of the result where there is much to do."""
            extent, cut = max((table[at][1], at) for at in of_d) if of_d else (1, -1)
            count = min(max(prod(row[1] for row in table) // LOOP_PRODUCTS, 1), extent)
            if count == 1:
                yield views
                return
            every = of_a, of_b, of_d
            axes = [own.index(cut) if cut in own else None for own in every]
            edges = [extent * at // count for at in range(count + 1)]
            for begin, end in pairwise(edges):
                yield [
                    x if axis is None else x[(*[slice(None)] * axis, slice(begin, end))]
                    for x, axis in zip(views, axes, strict=True)
                ]

        return run


def _convert(source: Array, target: Array) -> None:
    """target = source; what is out of range becomes infinite, without a warning."""
    if source.dtype == target.dtype:
        np.copyto(target, source)
        return
    with np.errstate(all="ignore"):
        np.copyto(target, source, casting="unsafe")


def _matmul(a: Array, b: Array, out: Array) -> None:
    matmul(a, b, out=out)


def _copy_blocks(
    extents: Sequence[int], source_strides: Sequence[int], target_strides: Sequence[int]
) -> list[list[slice]] | None:
    """Each dimension in pieces, where fastest dimensions differ; None where one pass is best.

    Their combinations are blocks. They are more than are worth keeping.
    """
    large = [at for at, extent in enumerate(extents) if extent > 1]
    if not large or prod(extents) < TILE * TILE:
        return None
    fastest_source = min(large, key=lambda at: abs(source_strides[at]) or 1 << 62)
    fastest_target = min(large, key=lambda at: abs(target_strides[at]))
    blocks = list(extents)
    if fastest_source != fastest_target:
        blocks = [1] * len(extents)
        blocks[fastest_source] = blocks[fastest_target] = 2 * TILE
        # Further dimensions join while a block stays in cache: a NumPy call costs microseconds.
        for at in sorted(large, key=lambda at: abs(target_strides[at])):
            if blocks[at] == 1 and prod(blocks) * extents[at] <= 4 * TILE * TILE:
                blocks[at] = extents[at]
    else:
        slowest = max(large, key=lambda at: abs(target_strides[at]))
        blocks[slowest] = -(-extents[slowest] // max(8, prod(extents) // SLICE_ELEMENTS))
    return [
        [slice(start, start + block) for start in range(0, extent, block)]
        for extent, block in zip(extents, blocks, strict=True)
    ]
