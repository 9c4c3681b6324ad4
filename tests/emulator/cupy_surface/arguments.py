"""The bytes of a kernel's argument, by CuPy's rules and no more kindly."""

from typing import Any

import numpy as np

from ..device import KernelFault, Kind
from ..ptx import Variable
from .arrays import ndarray
from .memory import MemoryPointer


def argument_bytes(argument: Any, parameter: Variable, what: str) -> bytes:
    """The bytes for a parameter; a size that does not fit is a fault, where CUDA would misread.

    A Python integer has 64 bits and serves every integer parameter that holds its value.
    """
    if type(argument) is int and parameter.type[0] != "f" and parameter.size < 8:
        return _narrow(argument, parameter, what)
    data = _given_bytes(argument)
    if len(data) != parameter.size:
        raise KernelFault(Kind.LAUNCH, f"{what} has {len(data)} bytes, not {parameter.size}")
    return data


def _narrow(argument: int, parameter: Variable, what: str) -> bytes:
    """The low bytes of a 64-bit integer."""
    bits = 8 * parameter.size
    if not -(1 << bits - 1) <= argument < 1 << bits:
        raise KernelFault(Kind.LAUNCH, f"{what} is {argument}, too large for {bits} bits")
    return (argument % (1 << bits)).to_bytes(parameter.size, "little")


def _given_bytes(argument: Any) -> bytes:
    match argument:
        case None:
            return bytes(8)
        case ndarray():
            return int(argument.data.ptr).to_bytes(8, "little")
        case MemoryPointer():
            return int(argument.ptr).to_bytes(8, "little")
        case np.ndarray():
            return _by_value(argument)
        case np.generic():
            return argument.tobytes()
        case bool():
            return np.bool_(argument).tobytes()
        case int():
            return np.array(argument, np.int64 if argument < 1 << 63 else np.uint64).tobytes()
        case float() | complex():
            return np.array(argument).tobytes()
    raise TypeError(f"Unsupported type {type(argument)}")


def _by_value(argument: np.ndarray[Any, Any]) -> bytes:
    if argument.size != 1:
        raise TypeError(
            f"You are trying to pass a numpy.ndarray of shape {argument.shape} as a kernel "
            "parameter. Only numpy.ndarrays of size one can be passed by value. If you meant to "
            "pass a pointer to __global__ memory, you need to pass a cupy.ndarray instead."
        )
    return argument.tobytes()
