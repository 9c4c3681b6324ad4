"""cupy_backends.cuda.libs.cublas: handles, and the products behind gemm, with arguments checked.

Every function sets the handle's stream to the current one, as CuPy's do, which CuPy refuses while
that stream captures. What has no name of CuPy's is cuBLAS itself: it takes any stream, and in a
capture wants a workspace (the real one would allocate there, which not every graph can hold).
"""

import ctypes
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..device import KernelFault, Kind
from .counters import Launch
from .driver import Driver
from .elements import Place
from .live import Live
from .products import (
    COMPUTE_32F,
    DTYPES,
    FAST_TF32,
    SUPPORTED,
    Matrix,
    Product,
    Scalar,
    compute_type,
)
from .status import CUBLASError, CUDARuntimeError, refuse

NOT_INITIALIZED, INVALID_VALUE, NOT_SUPPORTED = 1, 7, 15
HOST, DEVICE = 0, 1
TF32_MATH, WIDE_SUMS = 3, 16
ALIGNMENT, OVERWRITTEN = 256, 0xA5  # of a workspace, in bytes; what a product leaves there
VERSION = 120900

CONSTANTS = {
    "CUBLAS_OP_N": 0,
    "CUBLAS_OP_T": 1,
    "CUBLAS_OP_C": 2,
    "CUBLAS_POINTER_MODE_HOST": HOST,
    "CUBLAS_POINTER_MODE_DEVICE": DEVICE,
    "CUBLAS_GEMM_DEFAULT": -1,
    "CUBLAS_GEMM_DEFAULT_TENSOR_OP": 99,
    "CUBLAS_GEMM_DFALT": -1,
    "CUBLAS_GEMM_DFALT_TENSOR_OP": 99,
    "CUBLAS_DEFAULT_MATH": 0,
    "CUBLAS_TENSOR_OP_MATH": 1,
    "CUBLAS_COMPUTE_16F": 64,
    "CUBLAS_COMPUTE_16F_PEDANTIC": 65,
    "CUBLAS_COMPUTE_32F": 68,
    "CUBLAS_COMPUTE_32F_PEDANTIC": 69,
    "CUBLAS_COMPUTE_32F_FAST_16F": 74,
    "CUBLAS_COMPUTE_32F_FAST_16BF": 75,
    "CUBLAS_COMPUTE_32F_FAST_TF32": 77,
    "CUBLAS_COMPUTE_64F": 70,
    "CUBLAS_COMPUTE_64F_PEDANTIC": 71,
    "CUBLAS_COMPUTE_32I": 72,
    "CUBLAS_COMPUTE_32I_PEDANTIC": 73,
}


@dataclass(slots=True)
class Handle:
    """What a cuBLAS handle holds."""

    device: int
    stream: int = 0
    pointer_mode: int = HOST
    math_mode: int = 0
    workspace: tuple[int, int] | None = None  # address and bytes, until the stream is set


@dataclass(frozen=True, slots=True)
class Using:
    """A product that writes to all of a workspace."""

    product: Product
    workspace: tuple[int, int]

    def __call__(self, live: Live) -> None:
        """Overwrite it, and compute."""
        pointer, size = self.workspace
        place = Place(pointer, (size,), (1,), np.dtype(np.uint8))
        place.write(live, "gemm workspace", OVERWRITTEN)
        self.product(live)


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a product, strided and of any type; those of single ones have batch 1."""

    operations: tuple[int, int]
    extents: tuple[int, int, int]
    alpha: int
    a: tuple[int, int, int, int]  # address, type, leading dimension, stride
    b: tuple[int, int, int, int]
    beta: int
    c: tuple[int, int, int, int]
    batch: int
    compute: int
    algo: int = -1


class Blas:
    """The functions of the module."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._handles: dict[int, Handle] = {}
        self._numbers = itertools.count(0x7E0000000100, 0x100)
        self._local = threading.local()

    def thread_handle(self, device: int) -> int:
        """The handle of this thread on a device."""
        known: dict[int, int] = self._local.__dict__.setdefault("handles", {})
        if device not in known:
            with self._driver.on(device):
                known[device] = self.create()
        return known[device]

    def create(self) -> int:
        """A new handle on the current device, which allocates: not beside any capture."""
        self._driver.refuse_unsafe_call()
        handle = next(self._numbers)
        self._handles[handle] = Handle(self._driver.device)
        return handle

    def destroy(self, handle: int) -> None:
        """Forget a handle."""
        self._of(handle)
        del self._handles[handle]

    def getVersion(self, handle: int) -> int:
        """The version of the library; no handle is needed."""
        return VERSION

    def getPointerMode(self, handle: int) -> int:
        """Where alpha and beta lie."""
        return self._of(handle).pointer_mode

    def setPointerMode(self, handle: int, mode: int) -> None:
        """Say where alpha and beta lie."""
        if mode not in (HOST, DEVICE):
            raise refuse(CUBLASError, INVALID_VALUE, f"pointer mode {mode}")
        self._of(handle).pointer_mode = mode

    def setStream(self, handle: int, stream: int) -> None:
        """Choose the stream, which must not capture."""
        if self._driver.is_capturing(stream):
            raise NotImplementedError(
                "calling cuBLAS API during stream capture is currently unsupported"
            )
        self.set_stream(handle, stream)

    def set_stream(self, handle: int, stream: int) -> None:
        """Choose the stream, and the workspace that cuBLAS has for itself."""
        held = self._of(handle)
        held.stream, held.workspace = stream, None

    def set_workspace(self, handle: int, pointer: int, nbytes: int) -> None:
        """Choose the workspace."""
        _check(pointer % ALIGNMENT == 0, f"workspace {pointer:#x}")
        self._of(handle).workspace = pointer, nbytes

    def getStream(self, handle: int) -> int:
        """The stream of the latest call."""
        return self._of(handle).stream

    def setMathMode(self, handle: int, mode: int) -> None:
        """Allow tensor cores with less accuracy."""
        if mode & ~WIDE_SUMS not in (0, 1, 2, TF32_MATH):
            raise refuse(CUBLASError, INVALID_VALUE, f"math mode {mode}")
        self._of(handle).math_mode = mode

    def getMathMode(self, handle: int) -> int:
        """What setMathMode set."""
        return self._of(handle).math_mode

    def gemmEx(
        self, handle: int, transa: int, transb: int, m: int, n: int, k: int,
        alpha: int, A: int, Atype: int, lda: int, B: int, Btype: int, ldb: int,
        beta: int, C: int, Ctype: int, ldc: int, computeType: int, algo: int,
    ) -> None:  # fmt: skip
        """C = alpha op(A) op(B) + beta C."""
        call = single(
            transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb,
            beta, C, Ctype, ldc, computeType, algo,
        )  # fmt: skip
        self._multiply(handle, "gemmEx", call)

    def gemmStridedBatchedEx(
        self, handle: int, transa: int, transb: int, m: int, n: int, k: int,
        alpha: int, A: int, Atype: int, lda: int, strideA: int,
        B: int, Btype: int, ldb: int, strideB: int,
        beta: int, C: int, Ctype: int, ldc: int, strideC: int,
        batchCount: int, computeType: int, algo: int,
    ) -> None:  # fmt: skip
        """C[i] = alpha op(A[i]) op(B[i]) + beta C[i]."""
        call = strided(
            transa, transb, m, n, k, alpha, A, Atype, lda, strideA, B, Btype, ldb, strideB,
            beta, C, Ctype, ldc, strideC, batchCount, computeType, algo,
        )  # fmt: skip
        self._multiply(handle, "gemmStridedBatchedEx", call)

    def gemm(self, name: str, kind: int, compute: int) -> Callable[..., None]:
        """sgemm, dgemm, cgemm or zgemm."""

        def gemm(
            handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int,
            A: int, lda: int, B: int, ldb: int, beta: int, C: int, ldc: int,
        ) -> None:  # fmt: skip
            """C = alpha op(A) op(B) + beta C."""
            _ints(transa, transb, m, n, k, lda, ldb, ldc)
            call = Call(
                (transa, transb), (m, n, k), alpha, (A, kind, lda, 0), (B, kind, ldb, 0),
                beta, (C, kind, ldc, 0), 1, compute,
            )  # fmt: skip
            self._multiply(handle, name, call)

        return gemm

    def gemm_strided_batched(self, name: str, kind: int, compute: int) -> Callable[..., None]:
        """sgemmStridedBatched and its like."""

        def gemm(
            handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int,
            A: int, lda: int, strideA: int, B: int, ldb: int, strideB: int,
            beta: int, C: int, ldc: int, strideC: int, batchCount: int,
        ) -> None:  # fmt: skip
            """C[i] = alpha op(A[i]) op(B[i]) + beta C[i]."""
            _ints(transa, transb, m, n, k, lda, ldb, ldc, batchCount)
            _ints(strideA, strideB, strideC, bits=64)
            call = Call(
                (transa, transb), (m, n, k), alpha, (A, kind, lda, strideA),
                (B, kind, ldb, strideB), beta, (C, kind, ldc, strideC), batchCount, compute,
            )  # fmt: skip
            self._multiply(handle, name, call)

        return gemm

    def _of(self, handle: int) -> Handle:
        if handle not in self._handles:
            raise refuse(CUBLASError, NOT_INITIALIZED, f"no handle {handle:#x}")
        return self._handles[handle]

    def _multiply(self, handle: int, name: str, call: Call) -> None:
        self.setStream(handle, self._driver.classes.get_current_stream().ptr)
        self.multiply(handle, name, call)

    def multiply(self, handle: int, name: str, call: Call) -> None:
        """Queue a product in the handle's stream, or record it."""
        held = self._of(handle)
        stream, workspace = held.stream, held.workspace
        if not held.device == self._driver.device == self._driver.queue(stream).device:
            raise refuse(CUBLASError, INVALID_VALUE, f"a handle of device {held.device}")
        product = self._product(held, call)
        if 0 in (*call.extents[:2], call.batch):
            return
        if workspace is None and self._driver.is_capturing(stream):
            raise refuse(CUBLASError, NOT_SUPPORTED, "a product without a workspace is captured")
        task = product if workspace is None else Using(product, workspace)
        try:
            self._driver.enqueue(stream, task)
        except CUDARuntimeError as error:
            raise refuse(CUBLASError, 13, str(error)) from error
        used = workspace or (0, 0)
        self._driver.counters.products.append(
            Launch(name, stream, workspace=used, math_mode=held.math_mode)
        )

    def _product(self, handle: Handle, call: Call) -> Product:
        (m, n, k), (opa, opb) = call.extents, call.operations
        compute = compute_type(call.compute)
        types = (call.a[1], call.b[1], call.c[1])
        scalar = SUPPORTED.get(-1 if compute is None else compute, {}).get(types)
        _check(min(m, n, k, call.batch) >= 0, f"extents {call.extents}, batch {call.batch}")
        _check({opa, opb} <= {0, 1, 2}, f"operations {call.operations}")
        _check(call.algo in (*range(-1, 24), *range(99, 116)), f"algorithm {call.algo}")
        if compute is None or scalar is None:
            raise refuse(CUBLASError, NOT_SUPPORTED, f"types {types}, compute {call.compute}")
        a = _matrix("A", call.a, (m, k) if opa == 0 else (k, m), opa)
        b = _matrix("B", call.b, (k, n) if opb == 0 else (n, k), opb)
        c = _matrix("C", call.c, (m, n), 0)
        rounds = handle.math_mode & ~WIDE_SUMS == TF32_MATH
        if rounds and compute == COMPUTE_32F and a.dtype.char in "fF":
            compute = FAST_TF32
        alpha, beta = (
            self._scalar(handle, name, pointer, DTYPES[scalar])
            for name, pointer in (("alpha", call.alpha), ("beta", call.beta))
        )
        narrow = c.dtype.itemsize == 2 and not handle.math_mode & WIDE_SUMS
        return Product(compute, call.batch, a, b, c, alpha, beta, narrow)

    def _scalar(self, handle: Handle, name: str, pointer: int, dtype: np.dtype[Any]) -> Scalar:
        """Read a host scalar now; a vector of two parts is aligned as CUDA declares it."""
        _check(pointer != 0, f"{name} is null")
        alignment = dtype.itemsize
        if pointer % alignment:
            raise KernelFault(
                Kind.MISALIGNED, f"{name} at {pointer:#x} is not aligned to {alignment} bytes"
            )
        if handle.pointer_mode == DEVICE:
            return Scalar(dtype, None, pointer)
        if self._driver.live().find(pointer, pointer + 1) is not None:
            raise KernelFault(Kind.BOUNDS, f"{name} is device memory, in host pointer mode")
        value = np.frombuffer(ctypes.string_at(pointer, dtype.itemsize), dtype)[0]
        return Scalar(dtype, value, pointer)


def single(
    transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, a: int, a_type: int, lda: int, b: int, b_type: int, ldb: int,
    beta: int, c: int, c_type: int, ldc: int, compute: int, algo: int,
) -> Call:  # fmt: skip
    """The arguments of one product."""
    return strided(
        transa, transb, m, n, k, alpha, a, a_type, lda, 0, b, b_type, ldb, 0,
        beta, c, c_type, ldc, 0, 1, compute, algo,
    )  # fmt: skip


def strided(
    transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, a: int, a_type: int, lda: int, a_stride: int,
    b: int, b_type: int, ldb: int, b_stride: int,
    beta: int, c: int, c_type: int, ldc: int, c_stride: int, batch: int, compute: int, algo: int,
) -> Call:  # fmt: skip
    """The arguments of a batch."""
    _ints(transa, transb, m, n, k, a_type, lda, b_type, ldb, c_type, ldc, batch, compute, algo)
    _ints(a_stride, b_stride, c_stride, bits=64)
    return Call(
        (transa, transb), (m, n, k), alpha, (a, a_type, lda, a_stride), (b, b_type, ldb, b_stride),
        beta, (c, c_type, ldc, c_stride), batch, compute, algo,
    )  # fmt: skip


def _matrix(
    name: str, given: tuple[int, int, int, int], extents: tuple[int, int], operation: int
) -> Matrix:
    pointer, kind, leading, stride = given
    rows, columns = extents
    _check(leading >= max(1, rows), f"leading dimension {leading} of {name}, {rows} rows")
    return Matrix(pointer, DTYPES[kind], rows, columns, leading, stride, operation)


def _check(condition: bool, why: str) -> None:
    if not condition:
        raise refuse(CUBLASError, INVALID_VALUE, why)


def _ints(*values: int, bits: int = 32) -> None:
    """Refuse what does not fit a C integer."""
    kind = "int" if bits == 32 else "long long"
    for value in values:
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise OverflowError(f"value too large to convert to {kind}")


def functions(blas: Blas) -> dict[str, Callable[..., Any]]:
    """The functions by their names in the module."""
    names = (
        *("create", "destroy", "getVersion", "getPointerMode", "setPointerMode"),
        *("setStream", "getStream", "setMathMode", "getMathMode"),
        *("gemmEx", "gemmStridedBatchedEx"),
    )
    found: dict[str, Callable[..., Any]] = {name: getattr(blas, name) for name in names}
    for letter, (kind, compute) in {"s": (0, 68), "d": (1, 70), "c": (4, 68), "z": (5, 70)}.items():
        name = f"{letter}gemm"
        found[name] = blas.gemm(name, kind, compute)
        name += "StridedBatched"
        found[name] = blas.gemm_strided_batched(name, kind, compute)
    return found
