"""cupy.cuda.memory: allocations, pointers into them, and the copies they know."""

import ctypes
from typing import Any, Self

import numpy as np

from .driver import Driver
from .elements import Place
from .live import Live
from .work import Task


class OutOfMemoryError(MemoryError):
    """No memory left, on the device or within the pool's limit."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        text = f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes"
        super().__init__(text + (f", limit set to: {limit:,} bytes)." if limit else ")."))


OutOfMemoryError.__module__ = "cupy.cuda.memory"


class BaseMemory:
    """Memory of a device."""

    _driver: Driver
    ptr: int
    size: int
    device_id: int

    def __int__(self) -> int:
        return self.ptr

    @property
    def device(self) -> Any:
        """The device it is on."""
        return self._driver.classes.Device(self.device_id)


class Memory(BaseMemory):
    """Memory straight from the driver, freed with this object."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.device_id = self._driver.device
        self.ptr = 0
        self.ptr = self._driver.allocate(size) if size else 0

    def __del__(self) -> None:
        if self.ptr:
            self._driver.free(self.device_id, self.ptr)


class UnownedMemory(BaseMemory):
    """Memory that another object owns."""

    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        self.ptr, self.size, self._owner = ptr, size, owner
        self.device_id = self._find_device(ptr) if device_id < 0 else device_id

    def _find_device(self, ptr: int) -> int:
        for number, card in enumerate(self._driver.cards):
            if Live((card.memory.live(),)).find(ptr, ptr + 1):
                return number
        raise RuntimeError("UnownedMemory requires explicit device ID for a null pointer.")


class MemoryPointer:
    """An address within memory, which it keeps alive."""

    _driver: Driver

    def __init__(self, mem: BaseMemory, offset: int) -> None:
        assert mem.ptr != 0 or offset == 0
        self.ptr = mem.ptr + offset
        self.device_id = mem.device_id
        self.mem = mem

    def __int__(self) -> int:
        return self.ptr

    @property
    def device(self) -> Any:
        """The device it points to."""
        return self._driver.classes.Device(self.device_id)

    def __add__(self, y: int) -> Self:
        return type(self)(self.mem, self.ptr - self.mem.ptr + y)

    def __sub__(self, offset: int) -> Self:
        return self + -offset

    def copy_from_device(self, src: "MemoryPointer", size: int) -> None:
        """Copy, on the legacy stream, as seen by the host at once."""
        self._refuse_in_capture("synchronous API calls are disallowed")
        self._copy(src, size, 0)
        self._driver.synchronize_stream(0)

    def copy_from_device_async(self, src: "MemoryPointer", size: int, stream: Any = None) -> None:
        """Copy in stream order."""
        self._copy(src, size, self._stream(stream))

    def copy_from_host(self, mem: Any, size: int) -> None:
        """Copy from the host, on the legacy stream."""
        self._refuse_in_capture("synchronous API calls are disallowed")
        self._upload(mem, size, 0)
        self._driver.synchronize_stream(0)

    def copy_from_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        """Copy from the host in stream order; pageable memory is read now."""
        self._refuse_in_capture("H2D transfers are disallowed", stream)
        self._upload(mem, size, self._stream(stream))

    def copy_from(self, mem: Any, size: int) -> None:
        """Copy from a device or the host."""
        if isinstance(mem, MemoryPointer):
            self.copy_from_device(mem, size)
        else:
            self.copy_from_host(mem, size)

    def copy_from_async(self, mem: Any, size: int, stream: Any = None) -> None:
        """Copy from a device or the host in stream order."""
        if isinstance(mem, MemoryPointer):
            self.copy_from_device_async(mem, size, stream)
        else:
            self.copy_from_host_async(mem, size, stream)

    def copy_to_host(self, mem: Any, size: int) -> None:
        """Copy to the host, on the legacy stream."""
        self._refuse_in_capture("synchronous API calls are disallowed")
        self._download(mem, size, 0)

    def copy_to_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        """Copy to pageable memory of the host: done when this returns."""
        self._refuse_in_capture("D2H transfers are disallowed", stream)
        self._download(mem, size, self._stream(stream))

    def memset(self, value: int, size: int) -> None:
        """Fill bytes, on the legacy stream."""
        self._refuse_in_capture("synchronous API calls are disallowed")
        self._fill(value, size, 0)

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        """Fill bytes in stream order."""
        self._fill(value, size, self._stream(stream))

    def _stream(self, stream: Any) -> int:
        found = self._driver.classes.get_current_stream() if stream is None else stream
        pointer: int = found.ptr
        return pointer

    def _refuse_in_capture(self, what: str, stream: Any = None) -> None:
        if self._driver.is_capturing(self._stream(stream)):
            raise RuntimeError(f"the current stream is capturing, so {what}")

    def _place(self, size: int) -> Place:
        return Place(self.ptr, (size,), (1,), np.dtype(np.uint8))

    def _enqueue(self, size: int, stream: int, task: Task) -> None:
        if size > 0:
            self._driver.enqueue(stream, task)

    def _copy(self, src: "MemoryPointer", size: int, stream: int) -> None:
        source, target = src._place(size), self._place(size)

        def copy(live: Live) -> None:
            data, written = source.read(live, "memcpy source")
            target.write(live, "memcpy target", data.copy(), written)

        self._driver.counters.device_copies += 1
        if size > 0:
            self._driver.enqueue_copy(stream, copy, src.device_id)

    def _upload(self, mem: Any, size: int, stream: int) -> None:
        data = np.frombuffer(ctypes.string_at(_address(mem), size), np.uint8)
        target = self._place(size)
        self._driver.counters.to_device += 1
        self._enqueue(size, stream, lambda live: target.write(live, "memcpy target", data))

    def _download(self, mem: Any, size: int, stream: int) -> None:
        source = self._place(size)

        def copy(live: Live) -> None:
            data = np.ascontiguousarray(source.read(live, "memcpy source")[0])
            ctypes.memmove(_address(mem), data.ctypes.data, size)

        self._driver.counters.to_host += 1
        self._enqueue(size, stream, copy)
        self._driver.drain(stream)

    def _fill(self, value: int, size: int, stream: int) -> None:
        target = self._place(size)
        byte = np.uint8(value & 0xFF)
        self._enqueue(size, stream, lambda live: target.write(live, "memset", byte))


def _address(mem: Any) -> int:
    address: int = mem if isinstance(mem, int) else mem.value
    return address
