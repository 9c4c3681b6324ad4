"""Tensor maps: what TMA knows of a tensor, encoded by the CUDA driver (12.0 or newer)."""

import ctypes
from collections.abc import Iterable
from typing import Any

from contract.errors import NotSupportedError
from contract.planner.device.launch import MapType, TensorMap

__all__ = ["MAP_BYTES", "encoded", "why_refused"]

MAP_BYTES, MAP_ALIGNMENT = 128, 64
# Names and numbers of cuda.h.
_TYPES = {MapType.BITS16: 1, MapType.TF32: 11}  # CU_TENSOR_MAP_DATA_TYPE_UINT16, _TFLOAT32
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_NO_INTERLEAVE, _PROMOTE_TO_128, _ZEROS_OUTSIDE = 0, 2, 0


def why_refused(library: Any, maps: Iterable[TensorMap], address: int) -> str:
    """What the driver says against maps of tensors at ``address``; empty where it takes all."""
    try:
        for each in maps:
            encoded(library, each, address)
    except NotSupportedError as error:
        return str(error)
    return ""


def encoded(library: Any, tensor_map: TensorMap, address: int) -> bytes:
    """The 128 bytes of a map of the tensor at ``address``."""
    memory = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
    start = -ctypes.addressof(memory) % MAP_ALIGNMENT
    rank = len(tensor_map.extents)
    status = library.cuTensorMapEncodeTiled(
        ctypes.addressof(memory) + start,
        _TYPES[tensor_map.type],
        rank,
        address,
        (ctypes.c_uint64 * rank)(*tensor_map.extents),
        (ctypes.c_uint64 * (rank - 1))(*tensor_map.strides),
        (ctypes.c_uint32 * rank)(*tensor_map.box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        *(_NO_INTERLEAVE, _SWIZZLES[tensor_map.swizzle], _PROMOTE_TO_128, _ZEROS_OUTSIDE),
    )
    if status:
        raise NotSupportedError(
            f"The CUDA driver refuses (error {status}) a map of {tensor_map} at {address:#x}."
        )
    return memory.raw[start : start + MAP_BYTES]
