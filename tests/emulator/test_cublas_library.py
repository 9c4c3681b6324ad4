"""cuBLAS by ctypes: the emulator's library as CuPy's module has it, and CuPy's own where it is."""

import ctypes
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from contract.device.cublas_library import CublasLibrary
from contract.errors import ExecutionError

from .cupy_surface import counters
from .cupy_surface.surface import importable

F64, COMPUTE = 1, 70


@pytest.fixture
def library(cupy: ModuleType) -> Iterator[CublasLibrary]:
    """What is found from the module of an emulated CuPy."""
    with importable(cupy):
        yield CublasLibrary(cupy.cuda.cublas)


class Product:
    """C = 2 A B in cuBLAS's order, on a stream of its own."""

    def __init__(self, cupy: ModuleType) -> None:
        self.a, self.b, self.c = cupy.ones((4, 5)), cupy.ones((3, 4)), cupy.zeros((3, 5))
        self.workspace = cupy.empty(1 << 20, np.uint8)
        cupy.cuda.Device().synchronize()
        self.scalars = np.array([2.0, 0.0])
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def __call__(self, library: CublasLibrary, handle: int) -> None:
        address = self.scalars.ctypes.data
        library.gemmEx(
            *(handle, 0, 0, 5, 3, 4, address, self.a.data.ptr, F64, 5, self.b.data.ptr, F64, 4),
            *(address + 8, self.c.data.ptr, F64, 5, COMPUTE, -1),
        )

    def value(self) -> Any:
        self.stream.synchronize()
        return self.c.get()


def test_a_product_runs_in_the_stream_of_its_handle(
    cupy: ModuleType, library: CublasLibrary
) -> None:
    product, handle = Product(cupy), library.create()
    library.setStream(handle, product.stream.ptr)
    library.setMathMode(handle, 16)
    product(library, handle)
    (found,) = counters(cupy).products
    assert (found.name, found.stream, found.math_mode) == ("cublasGemmEx", product.stream.ptr, 16)
    assert found.workspace == (0, 0)
    product.scalars[0] = 5  # read when the call is made
    assert (product.value() == 8).all()


def test_a_batch_has_strides(cupy: ModuleType, library: CublasLibrary) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.random((3, 5, 4)), rng.random((3, 4, 2))
    a, b, c, scalars = cupy.asarray(x), cupy.asarray(y), cupy.empty((3, 5, 2)), np.array([1.0, 0])
    at = scalars.ctypes.data
    library.gemmStridedBatchedEx(
        *(library.create(), 0, 0, 2, 5, 4, at, b.data.ptr, F64, 2, 8, a.data.ptr, F64, 4, 20),
        *(at + 8, c.data.ptr, F64, 2, 10, 3, COMPUTE, -1),
    )
    np.testing.assert_allclose(c.get(), x @ y, rtol=1e-13)


def test_a_workspace_lasts_until_the_stream_is_set(
    cupy: ModuleType, library: CublasLibrary
) -> None:
    product, handle = Product(cupy), library.create()
    chosen = product.workspace.data.ptr, product.workspace.nbytes
    for _ in range(2):
        library.setStream(handle, product.stream.ptr)
        product(library, handle)
        library.setWorkspace(handle, *chosen)
        product(library, handle)
    assert [each.workspace for each in counters(cupy).products] == [(0, 0), chosen] * 2
    assert (product.value() == 8).all()
    assert (product.workspace.get() == 0xA5).all()


def test_a_capture_takes_products_with_a_workspace(
    cupy: ModuleType, library: CublasLibrary
) -> None:
    product, handle = Product(cupy), library.create()
    product.stream.begin_capture()
    library.setStream(handle, product.stream.ptr)
    with pytest.raises(ExecutionError, match=r"cublasGemmEx of cuBLAS fails \(status 15\)"):
        product(library, handle)
    library.setWorkspace(handle, product.workspace.data.ptr, product.workspace.nbytes)
    product(library, handle)
    graph = product.stream.end_capture()
    assert (product.c.get() == 0).all()
    graph.launch(product.stream)
    assert (product.value() == 8).all()


def test_what_cublas_refuses(cupy: ModuleType, library: CublasLibrary) -> None:
    product, handle = Product(cupy), library.create()
    with pytest.raises(ExecutionError, match=r"cublasSetWorkspace_v2 .* 7"):
        library.setWorkspace(handle, product.workspace.data.ptr + 128, 4096)
    library.destroy(handle)
    with pytest.raises(ExecutionError, match=r"cublasGemmEx .* 1\)"):
        product(library, handle)
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.begin_capture(0)
    with pytest.raises(ExecutionError, match="cublasCreate_v2"):
        library.create()  # it would allocate


class Found(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def test_the_real_library_is_the_one_that_cupy_is_linked_to() -> None:
    """Whatever else is there; it takes no GPU to find it."""
    pytest.importorskip("cupy")
    from cupy_backends.cuda.libs import cublas

    assert CublasLibrary(cublas)
    found = Found()
    function = ctypes.cast(ctypes.CDLL(cublas.__file__).cublasGemmEx, ctypes.c_void_p)
    assert ctypes.CDLL(None).dladdr(function, ctypes.byref(found))
    assert b"libcublas.so" in found.file
    assert found.name == b"cublasGemmEx"
