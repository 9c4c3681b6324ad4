"""Arrays on one GPU: CuPy's. Nothing here waits for the device."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np

from contract.arrays.libraries import library_of
from contract.arrays.protocol import Array, Layout, Recordable, Recording, is_describable
from contract.descriptors.layout import offset_bounds
from contract.device.graphs import CapturedMemory, Graph
from contract.errors import InvalidValueError
from contract.support.text import shown

__all__ = ["DeviceArrays"]

WIDEST_ACCESS = 16  # bytes that one thread loads or stores at once
NOTHING_TO_DO = nullcontext()
_bounds = lru_cache(4096)(offset_bounds)  # every call asks, of few layouts
TYPES = frozenset(
    (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    )
)


class DeviceArrays:
    """CuPy arrays on device ``device``; the methods are those of ``Arrays``.

    The alignment of a layout is the largest power of two up to 16 that divides the address:
    kernels choose by it how many elements they access at once.
    """

    types = TYPES
    alignment_matters = True
    default_casting = "unsafe"  # cupy.einsum knows no rule

    def __init__(self, cupy: Any, device: int) -> None:
        self.kind = f"CuPy array on device {device}"
        self.device = device
        self._cupy = cupy
        self._plain = cupy.ndarray
        self._current_device = cupy.cuda.runtime.getDevice
        self._captured = CapturedMemory(cupy)

    def owns(self, x: Any) -> bool:
        if isinstance(x, self._plain):
            return bool(x.data.device_id == self.device)
        library = library_of(x)
        return library is not None and library.device(x) == self.device

    def as_array(self, x: Any) -> Array:
        if type(x) is self._plain:
            return x
        library = library_of(x)
        if library is not None:
            library.require_plain(x)
            return library.native(x)
        return self._strided(x, x.shape, x.strides, x.dtype)

    def from_host(self, x: Any) -> Any:
        return x if isinstance(x, self._plain) else self._cupy.asarray(x)

    def layouts(self, arrays: Sequence[Any]) -> tuple[Any, ...] | None:
        plain, device = self._plain, self.device
        if self._current_device() != device:
            return None
        layouts: list[Any] = []
        for x in arrays:
            if type(x) is not plain:
                return None
            memory = x.data
            if memory.device_id != device:
                return None
            layouts += (x.shape, x.strides, x.dtype, _alignment(memory.ptr))
        return tuple(layouts)

    def flat(self, layouts: Sequence[Layout]) -> tuple[Any, ...]:
        return tuple([part for layout in layouts for part in layout])

    def layout(self, x: Array) -> Layout:
        return Layout(x.shape, x.strides, x.dtype, _alignment(x.data.ptr))

    def new_alignment(self, dtype: np.dtype[Any]) -> int:
        return WIDEST_ACCESS

    def address(self, x: Array) -> int:
        return int(x.data.ptr)

    def is_aligned(self, x: Array) -> bool:
        return True  # the layout tells: at another address an array is not describable

    def is_writeable(self, x: Array) -> bool:
        return True

    def may_share(self, one: Array, other: Array) -> bool:
        if not (one.size and other.size):
            return False
        (low, high), (start, end) = _addresses(one), _addresses(other)
        return bool(low < end and start < high)

    def as_strided(self, x: Array, shape: Sequence[int], strides: Sequence[int]) -> Array:
        return self._strided(x, shape, strides, x.dtype)

    def native_copy(self, x: Array) -> Array:
        copy = self._plain(x.shape, x.dtype, order="F")
        self._bytes(copy)[...] = self._bytes(x)
        return copy

    def copy_into(self, target: Array, source: Array) -> None:
        if is_describable(self.layout(target)):
            target[...] = source
        else:
            whole = self._plain(target.shape, target.dtype)
            whole[...] = source
            self._bytes(target)[...] = self._bytes(whole)

    def available_bytes(self) -> int | None:
        free, _ = self._cupy.cuda.runtime.memGetInfo()
        return int(free + self._cupy.get_default_memory_pool().free_bytes())

    def capturing(self) -> bool:
        return bool(self._cupy.cuda.get_current_stream().is_capturing())

    @property
    def captured_bytes(self) -> int:
        return self._captured.bytes

    def keeping(self) -> AbstractContextManager[Any]:
        return self._captured.keeping()

    def release_captured(self) -> None:
        self._captured.release()

    def record(self, call: Recordable) -> Recording:
        return Graph(self._cupy, call)

    def stream_pointer(self) -> int:
        """The current stream's address; 0: the default one."""
        return int(self._cupy.cuda.get_current_stream().ptr)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        if stream is None and self._current_device() == self.device:
            return NOTHING_TO_DO
        if stream is not None and getattr(stream, "device_id", None) not in (-1, self.device):
            raise InvalidValueError(
                f"stream is a CuPy stream of device {self.device}: it is {shown(stream)}."
            )
        return self._entered(stream)

    @contextmanager
    def _entered(self, stream: Any) -> Iterator[None]:
        with self._cupy.cuda.Device(self.device), NOTHING_TO_DO if stream is None else stream:
            yield

    def _strided(self, x: Array, shape: Any, strides: Any, dtype: Any) -> Array:
        return self._plain(tuple(shape), dtype, memptr=x.data, strides=tuple(strides))

    def _bytes(self, x: Array) -> Array:
        """The bytes of every element along one more dimension: they have no alignment."""
        shape, strides = (*x.shape, x.dtype.itemsize), (*x.strides, 1)
        return self._strided(x, shape, strides, np.dtype(np.uint8))


def _alignment(address: int) -> int:
    """The largest power of two up to the widest access that divides the address."""
    found = address | WIDEST_ACCESS
    return found & -found


def _addresses(x: Array) -> tuple[int, int]:
    """The first byte of an array that is not empty, and the one behind its last."""
    low, high = _bounds(x.shape, x.strides)
    return x.data.ptr + low, x.data.ptr + high + x.dtype.itemsize
