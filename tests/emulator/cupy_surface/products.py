"""Matrix products as cuBLAS defines them: which types go together, and NumPy on device memory."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ..device import KernelFault, Kind
from .elements import Place
from .live import Live

Array = np.ndarray[Any, Any]

# cudaDataType_t.
R_32F, R_64F, R_16F, R_8I, C_32F, C_64F, C_8I, R_32I, R_16BF = 0, 1, 2, 3, 4, 5, 7, 10, 14
DTYPES: dict[int, np.dtype[Any]] = {
    R_32F: np.dtype(np.float32),
    R_64F: np.dtype(np.float64),
    R_16F: np.dtype(np.float16),
    R_8I: np.dtype(np.int8),
    C_32F: np.dtype(np.complex64),
    C_64F: np.dtype(np.complex128),
    R_32I: np.dtype(np.int32),
    R_16BF: np.dtype(ml_dtypes.bfloat16),
}

# cublasComputeType_t.
COMPUTE_16F, COMPUTE_32F, COMPUTE_64F, COMPUTE_32I = 64, 68, 70, 72
FAST_16F, FAST_16BF, FAST_TF32, EMULATED_16BFX9 = 74, 75, 77, 78
PEDANTIC = {65: COMPUTE_16F, 69: COMPUTE_32F, 71: COMPUTE_64F, 73: COMPUTE_32I}
# CuPy passes a cudaDataType_t below 64 to the older function of the same name.
OLDER = {
    R_16F: COMPUTE_16F,
    R_32F: COMPUTE_32F,
    C_32F: COMPUTE_32F,
    R_64F: COMPUTE_64F,
    C_64F: COMPUTE_64F,
    R_32I: COMPUTE_32I,
}
_SINGLE = {(R_32F, R_32F, R_32F): R_32F, (C_32F, C_32F, C_32F): C_32F}
# For a compute type: types of A, B and C, and the type of alpha and beta (as in cublasGemmEx).
SUPPORTED: dict[int, dict[tuple[int, int, int], int]] = {
    COMPUTE_16F: {(R_16F, R_16F, R_16F): R_16F},
    COMPUTE_32I: {(R_8I, R_8I, R_32I): R_32I},
    COMPUTE_32F: {
        (R_16BF, R_16BF, R_16BF): R_32F,
        (R_16F, R_16F, R_16F): R_32F,
        (R_8I, R_8I, R_32F): R_32F,
        (R_16BF, R_16BF, R_32F): R_32F,
        (R_16F, R_16F, R_32F): R_32F,
        **_SINGLE,
    },
    FAST_16F: _SINGLE,
    FAST_16BF: _SINGLE,
    FAST_TF32: _SINGLE,
    EMULATED_16BFX9: _SINGLE,
    COMPUTE_64F: {(R_64F, R_64F, R_64F): R_64F, (C_64F, C_64F, C_64F): C_64F},
}
_WORK = {COMPUTE_64F: np.float64, COMPUTE_32I: np.int64}


def compute_type(code: int) -> int | None:
    """The compute type without the pedantic variants, None for an unknown one."""
    code = OLDER.get(code, code) if code < COMPUTE_16F else PEDANTIC.get(code, code)
    return code if code in SUPPORTED else None


@dataclass(frozen=True, slots=True)
class Matrix:
    """Column-major matrices of a batch: what is stored, and how it enters the product."""

    pointer: int
    dtype: np.dtype[Any]
    rows: int
    columns: int
    leading: int
    stride: int
    operation: int = 0

    def place(self, batch: int) -> Place:
        """The stored elements: batch, column, row."""
        size = self.dtype.itemsize
        return Place(
            self.pointer,
            (batch, self.columns, self.rows),
            (self.stride * size, self.leading * size, size),
            self.dtype,
        )

    def factor(self, stored: Array) -> Array:
        """op(A) of each stored matrix."""
        match self.operation:
            case 0:
                return stored.swapaxes(1, 2)
            case 1:
                return stored
        return stored.conj()


@dataclass(frozen=True, slots=True)
class Scalar:
    """alpha or beta: its value, or in device pointer mode where it lies."""

    dtype: np.dtype[Any]
    value: Any
    pointer: int

    def read(self, live: Live) -> Any:
        """The value now."""
        if self.value is not None:
            return self.value
        return Place(self.pointer, (), (), self.dtype).require(live, "scalar").copy()[()]


@dataclass(frozen=True, slots=True)
class Product:
    """C = alpha op(A) op(B) + beta C for each of a batch.

    ``narrow``: parts of sums may be rounded to the type of C, and are.
    """

    compute: int
    batch: int
    a: Matrix
    b: Matrix
    c: Matrix
    alpha: Scalar
    beta: Scalar
    narrow: bool = False

    def __call__(self, live: Live) -> None:
        """Compute; C is read only where beta is not zero, A and B even where alpha is."""
        alpha, beta = self.alpha.read(live), self.beta.read(live)
        target = self.c.place(self.batch)
        self._refuse_overlap(target)
        total = self._sum(live, alpha)
        if beta != 0:
            total = total + beta * self._wide(target.require(live, "gemm C"))
        with np.errstate(all="ignore"):
            target.write(live, "gemm C", total.astype(self.c.dtype))

    def _sum(self, live: Live, alpha: Any) -> Any:
        """alpha op(A) op(B) as stored, with the columns of C as rows."""
        inner = self.a.columns if self.a.operation == 0 else self.a.rows
        if inner == 0:
            return np.zeros((self.batch, self.c.columns, self.c.rows), self._dtype)
        left, right = (
            each.factor(self._rounded(each.place(self.batch).require(live, f"gemm {name}")))
            for name, each in (("A", self.a), ("B", self.b))
        )
        with np.errstate(all="ignore"):
            product = self._multiplied(left, right).swapaxes(1, 2)
            if self.compute == COMPUTE_16F:
                product = product.astype(np.float16).astype(np.float32)
            return self._wide(alpha) * product

    def _multiplied(self, left: Any, right: Any) -> Any:
        """left right; in two parts of k where sums may be narrow."""
        if not self.narrow:
            return np.matmul(left, right)
        half = left.shape[2] // 2
        first = np.matmul(left[:, :, :half], right[:, :half]).astype(self.c.dtype)
        second = np.matmul(left[:, :, half:], right[:, half:]).astype(self.c.dtype)
        return self._wide(first + second)

    @property
    def _dtype(self) -> np.dtype[Any]:
        real = np.dtype(_WORK.get(self.compute, np.float32))
        return np.result_type(real, np.complex64) if self.a.dtype.kind == "c" else real

    def _wide(self, values: Any) -> Any:
        return np.asarray(values).astype(self._dtype)

    def _rounded(self, values: Array) -> Any:
        """Inputs as the fast compute types may round them, in the type that accumulates."""
        wide = self._wide(values)
        match self.compute:
            case 77:
                return _each_part(wide, _tf32)
            case 74:
                return _each_part(wide, lambda x: x.astype(np.float16).astype(np.float32))
            case 75:
                return _each_part(wide, lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float32))
        return wide

    def _refuse_overlap(self, target: Place) -> None:
        """C may share no element with A or B, nor its matrices with one another."""
        shadow = target.shadow()
        for name, each in (("A", self.a), ("B", self.b)):
            if np.shares_memory(shadow, each.place(self.batch).shadow()):
                raise KernelFault(Kind.RACE, f"gemm C overlaps {name}")
        if self.batch > 1 and abs(self.c.stride) < self.c.rows:
            raise KernelFault(Kind.RACE, f"gemm: matrices of C overlap, stride {self.c.stride}")


def _each_part(values: Array, change: Any) -> Array:
    """Apply a function of float32 to the real and imaginary parts."""
    with np.errstate(all="ignore"):
        changed: Array = change(np.ascontiguousarray(values).view(np.float32))
    return changed.view(values.dtype)


def _tf32(values: Array) -> Array:
    """Round to 10 bits of fraction, ties away from zero; infinities and NaN stay."""
    bits = values.view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)
