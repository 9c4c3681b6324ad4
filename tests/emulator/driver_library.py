"""The functions of the CUDA driver that are called by name, as a library has them."""

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from .tensor_map import TENSOR_MAP

SUCCESS, INVALID_VALUE = 0, 1  # CUresult
ITEMS = {1: 2, 11: 4}  # bytes of CU_TENSOR_MAP_DATA_TYPE_UINT16 and _TFLOAT32
ROUNDED = 11
WIDTHS = {0: 16 * 256, 1: 32, 2: 64, 3: 128}  # bytes that a row may have, by swizzle

_Words, _Longs = ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint64)


@ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p),
    *(_Longs, _Longs, _Words, _Words, *(ctypes.c_int,) * 4),
)
def _encode(
    target: int,
    kind: int,
    rank: int,
    address: int,
    extents: Any,
    strides: Any,
    box: Any,
    steps: Any,
    interleave: int,
    swizzle: int,
    promotion: int,
    fill: int,
) -> int:
    """By the rules of the driver's manual; what TMA could do and nobody needs is refused too."""
    item = ITEMS.get(kind, 0)
    fine = (
        item
        and 1 <= rank <= 5
        and target % 64 == 0
        and address % 16 == 0
        and all(0 < extents[i] <= 1 << 32 and 0 < box[i] <= 256 for i in range(rank))
        and all(0 < strides[i] < 1 << 40 and strides[i] % 16 == 0 for i in range(rank - 1))
        and all(steps[i] == 1 for i in range(rank))
        and box[0] * item % 16 == 0
        and box[0] * item <= WIDTHS.get(swizzle, 0)
        and (interleave, fill) == (0, 0)
        and 0 <= promotion <= 3
    )
    if not fine:
        return INVALID_VALUE
    made = np.zeros((), TENSOR_MAP)
    made["magic"], made["base"] = 0x50414D524F534E54, address
    made["extent"][:rank], made["stride"][: rank - 1] = extents[:rank], strides[: rank - 1]
    made["box"][:rank] = box[:rank]
    made["rank"], made["item"], made["swizzle"] = rank, item, swizzle
    made["rounds"] = kind == ROUNDED
    ctypes.memmove(target, made.tobytes(), made.nbytes)
    return SUCCESS


LIBRARY = SimpleNamespace(cuTensorMapEncodeTiled=_encode)
_EXCHANGE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
_CAPTURE_INFO = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_uint64)
)


def library(
    exchange_mode: Callable[[int], int], capture_number: Callable[[int], int]
) -> SimpleNamespace:
    """libcuda, where the functions given exchange a thread's capture mode and number captures."""

    def exchange(mode: Any) -> int:
        if mode[0] not in range(3):
            return INVALID_VALUE
        mode[0] = exchange_mode(mode[0])
        return SUCCESS

    def capture_info(stream: int | None, status: Any, number: Any) -> int:
        number[0] = capture_number(stream or 0)
        status[0] = int(number[0] > 0)
        return SUCCESS

    return SimpleNamespace(
        **vars(LIBRARY),
        cuThreadExchangeStreamCaptureMode=_EXCHANGE(exchange),
        cuStreamGetCaptureInfo=_CAPTURE_INFO(capture_info),
    )
