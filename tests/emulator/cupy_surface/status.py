"""Errors of the CUDA runtime, the driver and cuBLAS, named and numbered as CuPy's are."""

RUNTIME = {
    1: ("cudaErrorInvalidValue", "invalid argument"),
    2: ("cudaErrorMemoryAllocation", "out of memory"),
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    400: ("cudaErrorInvalidResourceHandle", "invalid resource handle"),
    401: ("cudaErrorIllegalState", "the operation cannot be performed in the present state"),
    600: ("cudaErrorNotReady", "device not ready"),
    900: (
        "cudaErrorStreamCaptureUnsupported",
        "operation not permitted when stream is capturing",
    ),
    901: (
        "cudaErrorStreamCaptureInvalidated",
        "operation failed due to a previous error during capture",
    ),
    902: (
        "cudaErrorStreamCaptureMerge",
        "operation would result in a merge of separate capture sequences",
    ),
    903: (
        "cudaErrorStreamCaptureUnmatched",
        "capture was not ended in the same stream as it began",
    ),
    904: ("cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"),
    905: (
        "cudaErrorStreamCaptureIsolation",
        "dependency created on uncaptured work in another stream",
    ),
    906: (
        "cudaErrorStreamCaptureImplicit",
        "operation would make the legacy stream depend on a capturing blocking stream",
    ),
    907: (
        "cudaErrorCapturedEvent",
        "operation not permitted on an event last recorded in a capturing stream",
    ),
    908: (
        "cudaErrorStreamCaptureWrongThread",
        "attempt to terminate a thread-local capture sequence from another thread",
    ),
}
DRIVER = {
    1: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    400: ("CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"),
    500: ("CUDA_ERROR_NOT_FOUND", "named symbol not found"),
}
BLAS = {
    0: "CUBLAS_STATUS_SUCCESS",
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH",
    11: "CUBLAS_STATUS_MAPPING_ERROR",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
    16: "CUBLAS_STATUS_LICENSE_ERROR",
}

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
INVALID_DEVICE = 101
INVALID_HANDLE = 400
ILLEGAL_STATE = 401
NOT_FOUND = 500
NOT_READY = 600
CAPTURE_UNSUPPORTED = 900
CAPTURE_INVALIDATED = 901
CAPTURE_MERGE = 902
CAPTURE_UNMATCHED = 903
CAPTURE_UNJOINED = 904
CAPTURE_ISOLATION = 905
CAPTURE_IMPLICIT = 906
CAPTURED_EVENT = 907
CAPTURE_WRONG_THREAD = 908


class CUDARuntimeError(RuntimeError):
    """What a function of the CUDA runtime returned."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__("{}: {}".format(*RUNTIME[status]))


class CUDADriverError(RuntimeError):
    """What a function of the CUDA driver returned."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__("{}: {}".format(*DRIVER[status]))


class CUBLASError(RuntimeError):
    """What a function of cuBLAS returned."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(BLAS[status])


CUDARuntimeError.__module__ = "cupy_backends.cuda.api.runtime"
CUDADriverError.__module__ = "cupy_backends.cuda.api.driver"
CUBLASError.__module__ = "cupy_backends.cuda.libs.cublas"


def refuse(error: type[RuntimeError], status: int, why: str) -> RuntimeError:
    """An error as CuPy raises it, with a note that says what was wrong."""
    made = error(status)
    made.add_note(why)
    return made
