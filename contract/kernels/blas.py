"""Step Gemm -> calls of cuBLAS, where its matrices and strides are ones that cuBLAS takes."""

from collections.abc import Sequence
from itertools import product as combinations
from typing import NamedTuple

from contract.compute import item_size
from contract.kernels.call import BlasCall, MatrixLayout, Memory, Pointer
from contract.plan import Gemm, Kind, Loop, Scalar
from contract.products import STRIDE_A, STRIDE_B, STRIDE_D, Stride, extent_of, first_stride

__all__ = ["blas_calls"]

MOST_INT = (1 << 31) - 1
MOST_CALLS = 8  # more products than one call enumerates are left to our own kernel
_COMPUTE = {"float32": "32F", "complex64": "32F", "float64": "64F", "complex128": "64F"}


def blas_calls(step: Gemm) -> tuple[BlasCall, ...] | None:
    """One call for each index of the loops that a strided batch does not cover.

    None where cuBLAS does not take the step: extents or strides beyond 32 bits, too many loops.
    """
    rows = {kind: [loop for loop in step.loops if loop.kind is kind] for kind in Kind}
    m, n, k = rows[Kind.M], rows[Kind.N], rows[Kind.K]
    a, b, d = _matrix(m, k, STRIDE_A), _matrix(k, n, STRIDE_B), _matrix(m, n, STRIDE_D)
    sizes = extent_of(m), extent_of(n), extent_of(k)
    slots = step.a, step.b, step.d
    strides = STRIDE_A, STRIDE_B, STRIDE_D
    if d.transposed:  # D^T = B^T A^T
        a, b, d = b.turned(), a.turned(), d.turned()
        sizes = sizes[1], sizes[0], sizes[2]
        slots, strides = (step.b, step.a, step.d), (STRIDE_B, STRIDE_A, STRIDE_D)
    batch = sorted(rows[Kind.BATCH], key=lambda loop: loop.extent)
    inner, outer = batch[-1:], batch[:-1]
    numbers = (*sizes, a.leading, b.leading, d.leading, extent_of(inner))
    if max(numbers) > MOST_INT or extent_of(outer) > MOST_CALLS:
        return None
    found = []
    for starts in combinations(*(range(loop.extent) for loop in outer)):
        layouts = [
            MatrixLayout(
                Pointer(Memory.SLOT, slot, _offset(outer, starts, stride) * item_size(step.dtype)),
                matrix.leading,
                matrix.transposed,
                first_stride(inner, stride),
            )
            for slot, stride, matrix in zip(slots, strides, (a, b, d), strict=True)
        ]
        found.append(_call(step, sizes, layouts, extent_of(inner)))
    return tuple(found)


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
    step: Gemm, sizes: tuple[int, int, int], layouts: Sequence[MatrixLayout], batch: int
) -> BlasCall:
    a, b, d = layouts
    alpha = Scalar.ALPHA if step.scaled else None
    beta = None if step.c is None else Scalar.BETA
    return BlasCall(*sizes, a, b, d, batch, step.dtype, _COMPUTE[step.dtype], alpha, beta)
