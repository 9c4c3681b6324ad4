"""Where the same calls are tried: the host, an emulated GPU, a GPU that is there."""

from typing import Any, Protocol

import numpy as np

import contract as ct

Array = Any  # a numpy.ndarray or a cupy.ndarray


class Device(Protocol):
    """A place for arrays, with a handle that computes there."""

    name: str
    handle: ct.Handle

    def array(self, x: np.ndarray) -> Array:
        """``x`` with its strides and the alignment of its address, in memory of the device."""

    def numpy(self, x: Array) -> np.ndarray:
        """The values of an array on the host, once they are there."""


class Host:
    """NumPy arrays."""

    name = "host"

    def __init__(self) -> None:
        self.handle = ct.Handle(threads=2)

    def array(self, x: np.ndarray) -> Array:
        return x

    def numpy(self, x: Array) -> np.ndarray:
        return np.array(x)


class Gpu:
    """CuPy arrays on device 0; every array has an allocation of its own, not a byte larger."""

    def __init__(self, name: str, cupy: Any) -> None:
        self.name = name
        self.cupy = cupy
        self.handle = ct.Handle(device=0)

    def array(self, x: np.ndarray) -> Array:
        low, high = np.lib.array_utils.byte_bounds(x) if x.size else (x.ctypes.data,) * 2
        shift = low % 16
        memory = self._memory(high - low + shift)
        if x.size:
            raw = np.array(_bytes(x, low, high))
            self.cupy.ndarray(raw.shape, np.uint8, memptr=memory + shift).set(raw)
            self.cupy.cuda.runtime.deviceSynchronize()  # any stream may read it from now on
        first = memory + (x.ctypes.data - low + shift)
        return self.cupy.ndarray(x.shape, x.dtype, memptr=first, strides=x.strides)

    def numpy(self, x: Array) -> np.ndarray:
        return np.asarray(x.get())

    def _memory(self, size: int) -> Any:
        cuda = self.cupy.cuda
        return cuda.MemoryPointer(cuda.Memory(max(size, 1)), 0)


def _bytes(x: np.ndarray, low: int, high: int) -> np.ndarray:
    """The memory of an array from its lowest byte to its highest, gaps included."""
    interface = {"data": (low, True), "shape": (high - low,), "typestr": "|u1", "version": 3}
    return np.asarray(_Memory(interface, x))


class _Memory:
    """What NumPy sees as an array: its memory, kept alive by its owner."""

    def __init__(self, interface: dict[str, Any], owner: np.ndarray) -> None:
        self.__array_interface__ = interface
        self.owner = owner
