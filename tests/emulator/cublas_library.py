"""The functions of cuBLAS that are called by name, as a library has them."""

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .cupy_surface.blas import Blas, single, strided
from .cupy_surface.status import CUBLASError, CUDARuntimeError
from .device import KernelFault

INTERNAL_ERROR = 14  # CUBLAS_STATUS_INTERNAL_ERROR

_int, _pointer = ctypes.c_int, ctypes.c_void_p
_matrix = _pointer, _int, _int
_strided = *_matrix, ctypes.c_longlong
_first = _pointer, *(_int,) * 5, _pointer


def library(blas: Blas) -> SimpleNamespace:
    """libcublas on the handles of CuPy's module, for the same library is behind both."""

    def version(handle: int, target: Any) -> None:
        target[0] = blas.getVersion(handle)

    def create(target: Any) -> None:
        target[0] = blas.create()

    def gemm(handle: int, *given: int) -> None:
        blas.multiply(handle, "cublasGemmEx", single(*given))

    def batched(handle: int, *given: int) -> None:
        blas.multiply(handle, "cublasGemmStridedBatchedEx", strided(*given))

    return SimpleNamespace(
        cublasGetVersion_v2=_exported(version, _pointer, ctypes.POINTER(_int)),
        cublasCreate_v2=_exported(create, ctypes.POINTER(_pointer)),
        cublasDestroy_v2=_exported(blas.destroy, _pointer),
        cublasSetMathMode=_exported(blas.setMathMode, _pointer, _int),
        cublasSetStream_v2=_exported(blas.set_stream, _pointer, _pointer),
        cublasSetWorkspace_v2=_exported(blas.set_workspace, _pointer, _pointer, ctypes.c_size_t),
        cublasGemmEx=_exported(gemm, *_first, *_matrix, *_matrix, _pointer, *_matrix, *(_int,) * 2),
        cublasGemmStridedBatchedEx=_exported(
            batched, *_first, *_strided, *_strided, _pointer, *_strided, *(_int,) * 3
        ),
    )


def _exported(function: Callable[..., None], *arguments: Any) -> Any:
    """A function of C, which returns a status where Python's raises; null pointers are 0."""

    def call(*given: Any) -> int:
        try:
            function(*(each or 0 for each in given))
        except CUBLASError as error:
            return error.status
        except (CUDARuntimeError, KernelFault):
            return INTERNAL_ERROR
        return 0

    return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(call)
