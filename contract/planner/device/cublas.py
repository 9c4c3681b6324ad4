"""Step Gemm -> calls of cuBLAS, where its matrices and strides are ones that cuBLAS takes."""

from collections.abc import Sequence
from itertools import product as combinations
from typing import NamedTuple

from contract.descriptors.compute_types import item_size
from contract.machines.cublas_model import blas_compute
from contract.machines.gpu import Architecture
from contract.plan.products import STRIDE_A, STRIDE_B, STRIDE_D, Stride, extent_of, first_stride
from contract.plan.steps import Gemm, Kind, Loop, Plan, Scalar
from contract.planner.device.launch import BlasCall, MatrixLayout, Pointer, PointerKind

__all__ = ["blas_calls", "blas_takes"]

MOST_INT = (1 << 31) - 1
MOST_CALLS = 8  # more products than one call enumerates are left to our own kernel


def blas_takes(step: Gemm) -> bool:
    """Whether cuBLAS has the extents and strides: up to 31 bits, in few calls."""
    matrices = _matrices(step)
    inner, outer = _batches(step)
    leading = (matrix.leading for matrix in matrices)
    extents = (step.extent(kind) for kind in (Kind.M, Kind.N, Kind.K))
    return max(*leading, *extents, extent_of(inner)) <= MOST_INT and extent_of(outer) <= MOST_CALLS


def blas_calls(plan: Plan, step: Gemm, architecture: Architecture) -> tuple[BlasCall, ...]:
    """One call for each index of the loops that a strided batch does not cover."""
    a, b, d = _matrices(step)
    sizes = step.extent(Kind.M), step.extent(Kind.N), step.extent(Kind.K)
    slots = step.a, step.b, step.d
    strides = STRIDE_A, STRIDE_B, STRIDE_D
    if d.transposed:  # D^T = B^T A^T
        a, b, d = b.turned(), a.turned(), d.turned()
        sizes = sizes[1], sizes[0], sizes[2]
        slots, strides = (step.b, step.a, step.d), (STRIDE_B, STRIDE_A, STRIDE_D)
    inner, outer = _batches(step)
    dtypes = [plan.slots[slot].tensor.dtype for slot in slots]
    compute = blas_compute(dtypes[0], step.dtype, step.compute, architecture)
    found = []
    for starts in combinations(*(range(loop.extent) for loop in outer)):
        layouts = [
            MatrixLayout(
                Pointer(PointerKind.SLOT, slot, _offset(outer, starts, stride) * item_size(dtype)),
                dtype,
                matrix.leading,
                matrix.transposed,
                first_stride(inner, stride),
            )
            for slot, stride, matrix, dtype in zip(slots, strides, (a, b, d), dtypes, strict=True)
        ]
        found.append(_call(step, sizes, layouts, extent_of(inner), compute))
    return tuple(found)


def _batches(step: Gemm) -> tuple[list[Loop], list[Loop]]:
    """The loop that one call enumerates, the longest, and the others."""
    batch = sorted(_rows(step, Kind.BATCH), key=lambda loop: loop.extent)
    return batch[-1:], batch[:-1]


def _rows(step: Gemm, kind: Kind) -> list[Loop]:
    return [loop for loop in step.loops if loop.kind is kind]


def _matrices(step: Gemm) -> "tuple[_Matrix, _Matrix, _Matrix]":
    """A, B and D."""
    m, n, k = (_rows(step, kind) for kind in (Kind.M, Kind.N, Kind.K))
    return _matrix(m, k, STRIDE_A), _matrix(k, n, STRIDE_B), _matrix(m, n, STRIDE_D)


class _Matrix(NamedTuple):
    """How a matrix lies: column-major with a leading dimension, or the transpose of such."""

    transposed: bool
    leading: int

    def turned(self) -> "_Matrix":
        return _Matrix(not self.transposed, self.leading)


def _matrix(rows: Sequence[Loop], columns: Sequence[Loop], stride: Stride) -> _Matrix:
    """A row or a column may have any stride: it is the leading dimension then."""
    m, n = extent_of(rows), extent_of(columns)
    down, across = first_stride(rows, stride), first_stride(columns, stride)
    if m == 1:
        return _Matrix(False, across if n > 1 else 1)
    if n == 1:
        return _Matrix(False, m) if down == 1 else _Matrix(True, down)
    return _Matrix(False, across) if down == 1 else _Matrix(True, down)


def _offset(loops: Sequence[Loop], starts: Sequence[int], stride: Stride) -> int:
    return sum(stride(loop) * start for loop, start in zip(loops, starts, strict=True))


def _call(
    step: Gemm,
    sizes: tuple[int, int, int],
    layouts: Sequence[MatrixLayout],
    batch: int,
    compute: str,
) -> BlasCall:
    a, b, d = layouts
    alpha = Scalar.ALPHA if step.scaled else None
    beta = None if step.c is None else Scalar.BETA
    return BlasCall(*sizes, a, b, d, batch, step.dtype, compute, alpha, beta)
