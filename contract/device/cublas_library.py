"""Handles of cuBLAS, and the library by ctypes: CuPy calls none of it while a stream captures."""

import ctypes
from collections import OrderedDict
from functools import partial
from threading import get_ident
from typing import Any

from contract.device.driver import capture_number, unhindered
from contract.errors import ExecutionError, NotSupportedError

__all__ = ["CublasLibrary", "GraphHandle", "StreamHandles"]

MOST_HANDLES = 16  # for streams; each has a workspace on the device
PER_THREAD = 2  # cudaStreamPerThread: a stream of each thread
# CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION, for which CuPy has no name: parts of sums are
# never rounded to 16 bits, as they are by default where D has such a type.
WIDE_SUMS = 16

_Int, _Pointer = ctypes.c_int, ctypes.c_void_p
_FIRST = _Pointer, *(_Int,) * 5, _Pointer  # the handle, operations, extents, alpha
_MATRIX = _Pointer, _Int, _Int  # address, type, leading dimension
_MATRICES = *_MATRIX, ctypes.c_longlong
_ARGUMENTS = {
    "cublasGetVersion_v2": (_Pointer, ctypes.POINTER(_Int)),
    "cublasCreate_v2": (ctypes.POINTER(_Pointer),),
    "cublasDestroy_v2": (_Pointer,),
    "cublasSetMathMode": (_Pointer, _Int),
    "cublasSetStream_v2": (_Pointer, _Pointer),
    "cublasSetWorkspace_v2": (_Pointer, _Pointer, ctypes.c_size_t),
    "cublasGemmEx": (*_FIRST, *_MATRIX, *_MATRIX, _Pointer, *_MATRIX, *(_Int,) * 2),
    "cublasGemmStridedBatchedEx": (
        *(*_FIRST, *_MATRICES, *_MATRICES, _Pointer, *_MATRICES, *(_Int,) * 3),
    ),
}


class CublasLibrary:
    """The functions of CuPy's module ``cublas`` that products need, by the same names.

    They are looked up from that module as its linker does it, so they are those of the library
    that CuPy calls, whatever others the process has. NotSupportedError where they are not found, or
    are of another version.
    """

    def __init__(self, cublas: Any) -> None:
        found = _functions(cublas)
        version = _Int()
        found["cublasGetVersion_v2"](None, ctypes.byref(version))
        known = cublas.getVersion(0)  # no handle is needed
        if version.value != known:
            raise NotSupportedError(f"ctypes finds cuBLAS {version.value}, CuPy calls {known}.")
        self._create = found["cublasCreate_v2"]
        self.destroy = found["cublasDestroy_v2"]
        self.setMathMode = found["cublasSetMathMode"]
        self.setStream = found["cublasSetStream_v2"]
        self.setWorkspace = found["cublasSetWorkspace_v2"]
        self.gemmEx = found["cublasGemmEx"]
        self.gemmStridedBatchedEx = found["cublasGemmStridedBatchedEx"]

    def create(self) -> int:
        """A new handle on the current device."""
        handle = _Pointer()
        self._create(ctypes.byref(handle))
        assert handle.value is not None
        return handle.value


def _functions(cublas: Any) -> dict[str, Any]:
    """By their names in C; each raises ExecutionError where cuBLAS returns a failure."""
    try:
        library = ctypes.CDLL(cublas.__file__)
        found = {name: getattr(library, name) for name in _ARGUMENTS}
    except (OSError, AttributeError) as error:
        raise NotSupportedError(f"ctypes does not find CuPy's cuBLAS: {error}.") from error
    for name, function in found.items():
        function.argtypes, function.errcheck = _ARGUMENTS[name], partial(_check, name)
    return found


def _check(name: str, status: int, *call: Any) -> int:
    if status:
        raise ExecutionError(f"{name} of cuBLAS fails (status {status}).")
    return status


class StreamHandles:
    """cuBLAS handles of our own: their settings are ours, whatever the program sets on CuPy's.

    Each stream has one, for cuBLAS promises the same bits only where streams share no handle. The
    least recently used goes to a new stream when there are ``MOST_HANDLES``.
    """

    def __init__(self, cupy: Any, cublas: Any) -> None:
        self._cuda = cupy.cuda
        self._cublas = cublas
        self._of_streams: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._latest: tuple[int, int] | None = None

    def current(self) -> int:
        """The handle of the current stream."""
        stream = self._cuda.get_current_stream().ptr
        key = stream, get_ident() if stream == PER_THREAD else 0
        if key != self._latest:
            handle = self._of_streams.pop(key, None)
            self._of_streams[key] = self._another() if handle is None else handle
            self._latest = key
        return self._of_streams[key]

    def close(self) -> None:
        """Give the handles back, which waits for the device."""
        for handle in self._of_streams.values():
            self._cublas.destroy(handle)
        self._of_streams.clear()
        self._latest = None

    def _another(self) -> int:
        if len(self._of_streams) == MOST_HANDLES:
            return self._of_streams.popitem(last=False)[1]
        return _new_handle(self._cublas)


class GraphHandle:
    """A cuBLAS handle for all captures: every call sets its stream and its workspace.

    A graph writes to the workspace at every launch, and two may run at once. So each capture has
    one for each of its streams, in the memory that captured calls keep. With ``workspace`` bytes,
    those of a handle outside of captures, cuBLAS chooses as it does there.
    """

    def __init__(self, cupy: Any, library: CublasLibrary, workspace: int) -> None:
        self._cuda = cupy.cuda
        self._library = library
        self._bytes = workspace
        self._handle: int | None = _new_handle(library)
        self._workspaces: dict[tuple[int, int], tuple[int, int]] = {}  # by stream, of one capture

    def current(self) -> int:
        """The handle, for the current stream, which captures."""
        if self._handle is None:
            self._handle = _new_handle(self._library)
        stream = self._cuda.get_current_stream().ptr
        workspace = self._workspace(stream)
        self._library.setStream(self._handle, stream)  # which takes the workspace away
        self._library.setWorkspace(self._handle, workspace, self._bytes)
        return self._handle

    def close(self) -> None:
        """Give the handle back, which waits for the device."""
        handle, self._handle = self._handle, None
        self._workspaces.clear()
        if handle is not None:
            self._library.destroy(handle)

    def _workspace(self, stream: int) -> int:
        key = stream, get_ident() if stream == PER_THREAD else 0
        capture = capture_number(stream)
        known, address = self._workspaces.get(key, (None, 0))
        if known != capture:
            address = self._cuda.alloc(self._bytes).ptr
            self._workspaces[key] = capture, address
        return address


def _new_handle(library: Any) -> int:
    """A handle of ``library``, CuPy's module or ours, that sums as we promise."""
    with unhindered():
        handle: int = library.create()
        library.setMathMode(handle, WIDE_SUMS)
    return handle
