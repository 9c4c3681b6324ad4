"""Memory of a call: one buffer, kept by the handle between calls, cut into the arrays it needs."""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from contract.errors import InsufficientWorkspaceError
from contract.run.host_views import Array
from contract.workspace import ALIGNMENT, rounded

__all__ = ["NOTHING", "Cutter", "MemoryPool"]

NOTHING = np.empty(0, np.uint8)
KEPT_BYTES = 1 << 28  # beyond this, memory goes back to the system after a call
HANDY_BYTES = 1 << 22  # of a buffer that lies ready for the next call
SPARE = 16  # of what is lent, at most this part remains unused


class MemoryPool:
    """Buffers for one call at a time each; usable from many threads at once.

    New memory costs a page fault for every 4 KiB: reused memory does not.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = deque[Array](maxlen=1)  # given back, taken without a lock
        self._free: list[Array] = []
        self._kept = 0

    def take(self, size: int) -> Array:
        """At least ``size`` bytes that start at a line."""
        if size == 0:
            return NOTHING
        try:
            last = self._last.pop()
        except IndexError:
            return self._taken(size, None)
        if last.size >= size:
            return last
        with self._lock:
            self._keep(last)
        return self._taken(size, None)

    def lend(self, size: int) -> Array:
        """``size`` bytes that start at a line, and come back when nothing refers to them."""
        memory = self._taken(size, size + size // SPARE)
        # An array refers to what its memory is a view of, if it is of another type than that.
        lent = memory[:size].view(_Lent).view(_Lent)
        lent.returned = partial(self._come_back, memory)
        return lent

    def give(self, memory: Array) -> None:
        """Keep a buffer for the next call, unless enough is kept; the smallest go first."""
        if memory.size == 0:
            return
        if memory.size <= HANDY_BYTES and not self._last:
            self._last.append(memory)
            return
        with self._lock:
            self._keep(memory)

    def clear(self) -> None:
        """Give everything back to the system."""
        with self._lock:
            self._last.clear()
            self._free.clear()
            self._kept = 0

    def _taken(self, size: int, most: int | None) -> Array:
        """The smallest buffer of ``size`` to ``most`` bytes, or a new one."""
        with self._lock:
            fitting = [at for at, x in enumerate(self._free) if size <= x.size <= (most or x.size)]
            if fitting:
                found = self._free.pop(min(fitting, key=lambda at: self._free[at].size))
                self._kept -= found.size
                return found
        try:
            memory = np.empty(size + ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise InsufficientWorkspaceError(
                f"The system refuses {size} bytes of memory: {error}", size
            ) from None
        return memory[-memory.ctypes.data % ALIGNMENT :][:size]

    def _come_back(self, memory: Array) -> None:
        """Keep what was lent. Python may call this anywhere, so it waits for nobody."""
        if self._lock.acquire(blocking=False):
            try:
                self._keep(memory)
            finally:
                self._lock.release()

    def _keep(self, memory: Array) -> None:
        if memory.size > KEPT_BYTES:
            return
        self._free.append(memory)
        self._free.sort(key=lambda x: x.size)
        self._kept += memory.size
        while self._kept > KEPT_BYTES:
            self._kept -= self._free.pop(0).size


class _Lent(Array):
    """Memory that goes back to its pool at its end."""

    returned: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.returned is not None:
            self.returned()


class Cutter:
    """Cuts arrays from a buffer, one after the other."""

    __slots__ = ("at", "memory")

    def __init__(self, memory: Array, at: int = 0) -> None:
        self.memory = memory
        self.at = at

    def take(self, count: int, dtype: np.dtype[Any]) -> Array:
        """``count`` contiguous elements; Python objects, which have no buffer, lie apart."""
        if dtype.hasobject:
            return np.empty(count, dtype)
        found: Array = np.ndarray((count,), dtype, self.memory, self.at)
        self.at += rounded(count * dtype.itemsize)
        return found
