"""Memory of a call: one buffer, kept by the handle between calls, cut into the arrays it needs."""

from collections import deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from contract.errors import InsufficientWorkspaceError
from contract.host.resources.views import Array
from contract.plan.workspace import ALIGNMENT, rounded

__all__ = ["NOTHING", "Cutter", "MemoryPool"]

NOTHING = np.empty(0, np.uint8)
KEPT_BYTES = 1 << 28  # beyond this, memory goes back to the system after a call
HANDY_BYTES = 1 << 22  # of a buffer that lies ready for the next call
SPARE = 16  # of what is lent, at most this part remains unused


class MemoryPool:
    """Buffers for one call at a time each; usable from many threads at once.

    New memory costs a page fault for every 4 KiB: reused memory does not. There is no lock, for
    Python may end an array, or run a handler of signals, in the midst of anything. Every change is
    one operation on a container, after which nothing is owed.
    """

    def __init__(self) -> None:
        self._last = deque[Array](maxlen=1)  # most often the right one
        self._free: dict[int, Array] = {}  # by identity

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
        self._keep(last)
        return self._taken(size, None)

    def lend(self, size: int) -> Array:
        """``size`` bytes that start at a line, and come back when nothing refers to them."""
        memory = self._taken(size, size + size // SPARE)
        # An array refers to what its memory is a view of, if it is of another type than that.
        lent = memory[:size].view(_Lent).view(_Lent)
        lent.returned = partial(self._keep, memory)
        return lent

    def give(self, memory: Array) -> None:
        """Keep a buffer for the next call, unless enough is kept; the smallest go first.

        Nobody uses it any more: what a call leaves that was broken off is not given.
        """
        if memory.size == 0:
            return
        if memory.size <= HANDY_BYTES and not self._last:
            self._last.append(memory)
            return
        self._keep(memory)

    def clear(self) -> None:
        """Give everything back to the system."""
        self._last.clear()
        self._free.clear()

    def _taken(self, size: int, most: int | None) -> Array:
        """The smallest buffer of ``size`` to ``most`` bytes, or a new one."""
        fitting = [x for x in list(self._free.values()) if size <= x.size <= (most or x.size)]
        for each in sorted(fitting, key=attrgetter("size")):
            if self._free.pop(id(each), None) is not None:  # else somebody was quicker
                return each
        try:
            memory = np.empty(size + ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise InsufficientWorkspaceError(
                f"The system refuses {size} bytes of memory: {error}", size
            ) from None
        return memory[-memory.ctypes.data % ALIGNMENT :][:size]

    def _keep(self, memory: Array) -> None:
        if memory.size > KEPT_BYTES:
            return
        self._free[id(memory)] = memory
        kept = sorted(list(self._free.values()), key=attrgetter("size"))
        excess = sum(x.size for x in kept) - KEPT_BYTES
        for each in kept:
            if excess <= 0:
                return
            self._free.pop(id(each), None)
            excess -= each.size


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
