"""Functions of the CUDA driver (12.0 or newer) that CuPy does not have, called by their names."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from contract.errors import ExecutionError, NotSupportedError

__all__ = ["capture_number", "driver_library", "unhindered"]

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED of cuda.h
_ENCODE_ARGUMENTS = (
    ctypes.c_void_p,  # the map
    ctypes.c_int,
    ctypes.c_uint32,  # the number of modes
    ctypes.c_void_p,  # the tensor
    ctypes.POINTER(ctypes.c_uint64),  # extents
    ctypes.POINTER(ctypes.c_uint64),  # strides
    ctypes.POINTER(ctypes.c_uint32),  # box
    ctypes.POINTER(ctypes.c_uint32),  # steps inside the box
    *(ctypes.c_int,) * 4,
)


def driver_library() -> Any:
    """The CUDA driver; NotSupportedError where there is none, or one that is older."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
        library.cuTensorMapEncodeTiled.argtypes = _ENCODE_ARGUMENTS
    except (OSError, AttributeError) as error:
        raise NotSupportedError(f"A CUDA driver of 12.0 or newer is needed: {error}.") from error
    return library


@contextmanager
def unhindered() -> Iterator[None]:
    """The time in which this thread may allocate and load kernels beside any capture.

    By default CUDA forbids that to every thread while one captures in global mode, and to the
    thread that captures unless its mode is relaxed; what is forbidden ends the capture.
    """
    exchange = driver_library().cuThreadExchangeStreamCaptureMode
    mode = ctypes.c_int(_RELAXED)
    _check(exchange(ctypes.byref(mode)), "a thread's capture mode")
    try:
        yield
    finally:
        _check(exchange(ctypes.byref(mode)), "a thread's capture mode")


def capture_number(stream: int) -> int:
    """The number of the capture that the stream takes part in; no later one has the same."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    found = ctypes.byref(status), ctypes.byref(number)
    _check(
        driver_library().cuStreamGetCaptureInfo(ctypes.c_void_p(stream), *found),
        "the number of a capture",
    )
    return number.value


def _check(status: int, what: str) -> None:
    if status:
        raise ExecutionError(f"The CUDA driver refuses (error {status}) {what}.")
