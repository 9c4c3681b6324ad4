"""cuBLAS of the emulator's CuPy: products agree with NumPy, bad calls are refused."""

import itertools
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from .cupy_surface import counters
from .device import KernelFault, Kind

BF16 = ml_dtypes.bfloat16
TYPES = {"f4": 0, "f8": 1, "f2": 2, "i1": 3, "c8": 4, "c16": 5, "i4": 10, "bf": 14}
OPERATIONS = {0: lambda x: x, 1: lambda x: x.T, 2: lambda x: x.conj().T}
# Type of A and B, of C, of alpha and beta; compute type; relative error that it may have.
ROWS = [
    ("f2", "f2", "f2", 64, 4e-3),
    ("i1", "i4", "i4", 72, 0),
    ("bf", "bf", "f4", 68, 1e-2),
    ("f2", "f2", "f4", 68, 1e-3),
    ("i1", "f4", "f4", 68, 1e-6),
    ("bf", "f4", "f4", 68, 1e-6),
    ("f2", "f4", "f4", 69, 1e-6),
    ("f4", "f4", "f4", 68, 1e-6),
    ("c8", "c8", "c8", 68, 1e-6),
    ("f4", "f4", "f4", 77, 2e-3),
    ("c8", "c8", "c8", 74, 2e-3),
    ("f4", "f4", "f4", 75, 2e-2),
    ("f4", "f4", "f4", 78, 1e-6),
    ("f8", "f8", "f8", 70, 1e-14),
    ("c16", "c16", "c16", 71, 1e-14),
]


def _dtype(name: str) -> Any:
    return np.dtype(BF16) if name == "bf" else np.dtype(name)


def _matrix(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> Any:
    dtype = _dtype(name)
    if dtype.kind == "i":
        return rng.integers(-9, 9, shape).astype(dtype)
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape) if dtype.kind == "c" else values).astype(dtype)


def _padded(cupy: ModuleType, host: Any, leading: int) -> Any:
    """A column-major matrix with a leading dimension, in memory whose padding was not written."""
    memory = cupy.empty(leading * (host.shape[1] - 1) + host.shape[0], host.dtype)
    strides = (host.itemsize, leading * host.itemsize)
    view = cupy.lib.stride_tricks.as_strided(memory, host.shape, strides)
    view[...] = cupy.asarray(host)
    return view


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("operations", list(itertools.product(range(3), repeat=2)), ids=str)
def test_products_are_numpys(
    cupy: ModuleType, rng: np.random.Generator, row: Any, operations: tuple[int, int]
) -> None:
    kind, out, scalar, compute, error = row
    m, n, k = 5, 4, 7
    a = _matrix(rng, (m, k) if operations[0] == 0 else (k, m), kind)
    b = _matrix(rng, (k, n) if operations[1] == 0 else (n, k), kind)
    c = _matrix(rng, (m, n), out)
    alpha, beta = np.array(2, _dtype(scalar)), np.array(3, _dtype(scalar))
    x, y, z = (_padded(cupy, each, len(each) + 3) for each in (a, b, c))
    cupy.cuda.cublas.gemmEx(
        *(cupy.cuda.get_cublas_handle(), *operations, m, n, k, alpha.ctypes.data),
        *(x.data.ptr, TYPES[kind], x.shape[0] + 3, y.data.ptr, TYPES[kind], y.shape[0] + 3),
        *(beta.ctypes.data, z.data.ptr, TYPES[out], m + 3, compute, -1),
    )
    wide = np.complex128 if np.dtype(_dtype(kind)).kind == "c" else np.float64
    left, right = (OPERATIONS[o](x.astype(wide)) for o, x in zip(operations, (a, b), strict=True))
    expected = 2 * left @ right + 3 * c.astype(wide)
    scale = 2 * abs(left) @ abs(right) + 3 * abs(c.astype(wide))
    assert (abs(z.get().astype(wide) - expected) <= error * scale).all()


def test_fast_types_do_round(cupy: ModuleType) -> None:
    for compute, kept in ((68, True), (77, False), (74, False), (75, False), (78, True)):
        got = _multiply(cupy, np.full((1, 1), 1 + 2.0**-12, "f4"), np.ones((1, 1), "f4"), compute)
        assert (got[0, 0] != 1) == kept
    cupy.cuda.cublas.setMathMode(cupy.cuda.get_cublas_handle(), 3)
    got = _multiply(cupy, np.full((1, 1), 1 + 2.0**-12, "f4"), np.ones((1, 1), "f4"), 68)
    assert got[0, 0] == 1


@pytest.mark.parametrize(("mode", "expected"), [(0, 2048), (16, 2050)])
def test_parts_of_sums_are_rounded_unless_that_is_forbidden(
    cupy: ModuleType, mode: int, expected: int
) -> None:
    handle, ones = cupy.cuda.get_cublas_handle(), np.ones((4, 1), "f2")
    cupy.cuda.cublas.setMathMode(handle, mode)
    a = np.array([[2048, 0.75, 1, 0]], "f2")  # 2048 + 1 is rounded to even
    x, y, z = cupy.asarray(a), cupy.asarray(ones), cupy.empty((1, 1), "f2")
    one, zero = np.ones((), "f4"), np.zeros((), "f4")
    cupy.cuda.cublas.gemmEx(
        *(handle, 0, 0, 1, 1, 4, one.ctypes.data, x.data.ptr, TYPES["f2"], 1),
        *(y.data.ptr, TYPES["f2"], 4, zero.ctypes.data, z.data.ptr, TYPES["f2"], 1, 68, -1),
    )
    assert z.item() == expected


def _multiply(cupy: ModuleType, a: Any, b: Any, compute: int) -> Any:
    x, y = cupy.asarray(a, order="F"), cupy.asarray(b, order="F")
    (m, k), n = a.shape, b.shape[1]
    z = cupy.empty((m, n), a.dtype, order="F")
    one, zero = np.ones((), a.dtype), np.zeros((), a.dtype)
    kind = TYPES[a.dtype.str[1:]]
    cupy.cuda.cublas.gemmEx(
        *(cupy.cuda.get_cublas_handle(), 0, 0, m, n, k, one.ctypes.data, x.data.ptr, kind, m),
        *(y.data.ptr, kind, k, zero.ctypes.data, z.data.ptr, kind, m, compute, -1),
    )
    return z.get()


def test_strided_batches(cupy: ModuleType, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((3, 5, 4)), rng.standard_normal((4, 2))
    x, y, z = cupy.asarray(a), cupy.asarray(b), cupy.empty((3, 5, 2))
    one, zero = np.array(1.0), np.array(0.0)
    cupy.cuda.cublas.dgemmStridedBatched(
        *(cupy.cuda.get_cublas_handle(), 0, 0, 2, 5, 4, one.ctypes.data, y.data.ptr, 2, 0),
        *(x.data.ptr, 4, 20, zero.ctypes.data, z.data.ptr, 2, 10, 3),
    )
    np.testing.assert_allclose(z.get(), a @ b, rtol=1e-13)
    assert [each.name for each in counters(cupy).products] == ["dgemmStridedBatched"]


def test_matrices_of_a_batch_must_not_overlap_in_c(cupy: ModuleType) -> None:
    x, z = cupy.ones((3, 4)), cupy.empty((3, 4))
    one, zero = np.array(1.0), np.array(0.0)
    cupy.cuda.cublas.dgemmStridedBatched(
        *(cupy.cuda.get_cublas_handle(), 0, 0, 4, 1, 1, one.ctypes.data, x.data.ptr, 4, 4),
        *(x.data.ptr, 1, 1, zero.ctypes.data, z.data.ptr, 4, 3, 3),
    )
    with pytest.raises(KernelFault) as raised:
        z.get()
    assert raised.value.kind is Kind.RACE


class Call:
    """A product that is right, of which a test changes one thing."""

    def __init__(self, cupy: ModuleType) -> None:
        self.cupy = cupy
        self.a, self.b, self.c = cupy.ones((4, 5)), cupy.ones((3, 4)), cupy.ones((3, 5))
        self.scalars = np.array([1.0, 0.0])
        address = self.scalars.ctypes.data
        self.arguments: dict[str, Any] = dict(
            **dict(handle=cupy.cuda.get_cublas_handle(), transa=0, transb=0, m=5, n=3, k=4),
            **dict(alpha=address, A=self.a.data.ptr, Atype=1, lda=5),
            **dict(B=self.b.data.ptr, Btype=1, ldb=4),
            **dict(beta=address + 8, C=self.c.data.ptr, Ctype=1, ldc=5),
            **dict(computeType=70, algo=-1),
        )

    def __call__(self, **changes: Any) -> Any:
        self.cupy.cuda.cublas.gemmEx(**{**self.arguments, **changes})
        return self.c.get()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"handle": 0}, "NOT_INITIALIZED"),
        ({"lda": 4}, "INVALID_VALUE"),
        ({"ldb": 3}, "INVALID_VALUE"),
        ({"ldc": 4}, "INVALID_VALUE"),
        ({"transa": 1, "lda": 3}, "INVALID_VALUE"),
        ({"m": -1}, "INVALID_VALUE"),
        ({"m": 0, "lda": 0}, "INVALID_VALUE"),
        ({"transb": 3}, "INVALID_VALUE"),
        ({"alpha": 0}, "INVALID_VALUE"),
        ({"beta": 0}, "INVALID_VALUE"),
        ({"algo": 50}, "INVALID_VALUE"),
        ({"computeType": 68}, "NOT_SUPPORTED"),
        ({"computeType": 67}, "NOT_SUPPORTED"),
        ({"Ctype": 0}, "NOT_SUPPORTED"),
    ],
)
def test_bad_calls_are_refused(cupy: ModuleType, changes: Any, message: str) -> None:
    with pytest.raises(cupy.cuda.cublas.CUBLASError, match=message):
        Call(cupy)(**changes)


def test_integers_have_the_size_of_c(cupy: ModuleType) -> None:
    for name in ("m", "lda", "computeType"):
        with pytest.raises(OverflowError, match="too large to convert to int"):
            Call(cupy)(**{name: 2**31})


def test_faults_of_memory_come_when_the_host_waits(cupy: ModuleType) -> None:
    call = Call(cupy)
    for changes, kind in (
        ({"k": 5, "ldb": 5}, Kind.BOUNDS),
        ({"lda": 6}, Kind.BOUNDS),
        ({"A": call.a.data.ptr + 4}, Kind.BOUNDS),
        ({"C": call.a.data.ptr}, Kind.RACE),
        ({"B": cupy.empty((3, 4)).data.ptr}, Kind.BOUNDS),  # freed
    ):
        with pytest.raises(KernelFault) as raised:
            call(**changes)
        assert raised.value.kind is kind
    fresh = cupy.empty((3, 4))
    with pytest.raises(KernelFault) as raised:
        call(B=fresh.data.ptr)
    assert raised.value.kind is Kind.UNINITIALISED
    assert (call() == 4).all()


def test_c_is_read_only_with_beta(cupy: ModuleType) -> None:
    call = Call(cupy)
    call.c.fill(np.nan)
    assert (call() == 4).all()
    call.scalars[:] = 0, 2
    assert (call() == 8).all()
    fresh = call.c = cupy.empty((3, 5))
    with pytest.raises(KernelFault, match="gemm C"):
        call(C=fresh.data.ptr)


def test_an_empty_sum_scales_c(cupy: ModuleType) -> None:
    call = Call(cupy)
    assert (call(k=0, lda=5, ldb=1, beta=call.arguments["alpha"]) == 1).all()
    assert (call(k=0, ldb=1) == 0).all()
    counters(cupy).reset()
    assert (call(m=0) == 0).all()
    assert counters(cupy).products == []


def test_scalars_are_read_when_the_call_is_made(cupy: ModuleType) -> None:
    call = Call(cupy)
    cupy.cuda.cublas.gemmEx(**call.arguments)
    call.scalars[0] = 5
    assert (call.c.get() == 4).all()


def test_scalars_lie_where_the_pointer_mode_says(cupy: ModuleType) -> None:
    call, blas = Call(cupy), cupy.cuda.cublas
    scalars = cupy.asarray(np.array([2.0, 0.0]))
    changes = {"alpha": scalars.data.ptr, "beta": scalars.data.ptr + 8}
    with pytest.raises(KernelFault, match="host pointer mode"):
        call(**changes)
    blas.setPointerMode(call.arguments["handle"], blas.CUBLAS_POINTER_MODE_DEVICE)
    assert (call(**changes) == 8).all()
    with pytest.raises(KernelFault, match="outside live memory"):
        call()
    blas.setPointerMode(call.arguments["handle"], blas.CUBLAS_POINTER_MODE_HOST)
    with pytest.raises(KernelFault) as raised:
        call(alpha=call.arguments["alpha"] + 4)
    assert raised.value.kind is Kind.MISALIGNED


def test_products_run_in_the_current_stream(cupy: ModuleType) -> None:
    call, stream = Call(cupy), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        cupy.cuda.cublas.gemmEx(**call.arguments)
    assert cupy.cuda.cublas.getStream(call.arguments["handle"]) == stream.ptr
    assert (call.c.get() == 1).all()  # the null stream does not wait for it
    stream.synchronize()
    assert (call.c.get() == 4).all()


def test_a_handle_belongs_to_a_device(cupy: ModuleType) -> None:
    call = Call(cupy)
    with cupy.cuda.Device(1), pytest.raises(cupy.cuda.cublas.CUBLASError):
        call()
    handle = cupy.cuda.cublas.create()
    cupy.cuda.cublas.destroy(handle)
    with pytest.raises(cupy.cuda.cublas.CUBLASError, match="NOT_INITIALIZED"):
        call(handle=handle)


def test_handles_are_never_mixed_up(cupy: ModuleType) -> None:
    create, destroy = cupy.cuda.cublas.create, cupy.cuda.cublas.destroy
    first, second = create(), create()
    destroy(first)
    third = create()
    destroy(third)
    assert len({first, second, third}) == 3
    assert cupy.cuda.cublas.getMathMode(second) == 0


def test_captures_are_refused(cupy: ModuleType) -> None:
    call, stream = Call(cupy), cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(NotImplementedError, match="stream capture"):
            call()
        stream.end_capture()
