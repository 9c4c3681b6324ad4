"""A gate around memory that several threads use, which one of them closes when it wants to leave.

Python runs handlers of signals between any two instructions of its main thread, and they may raise.
To close a gate is one call into C, which they cannot break off.
"""

import ctypes
from collections.abc import Callable
from functools import partial
from time import sleep
from typing import Any

__all__ = ["Gate"]

LOCK_BYTES = 256  # a pthread_rwlock_t is smaller
PAUSE = 1e-4  # seconds between looks, where the system has no such locks


def _functions() -> list[Any]:
    """What enters, leaves and closes, given the address of a lock; then what makes one."""
    names = "tryrdlock", "unlock", "wrlock", "init"
    try:
        library = ctypes.CDLL(None)
        found = [getattr(library, f"pthread_rwlock_{name}") for name in names]
    except (AttributeError, OSError, TypeError):  # another system than POSIX
        return []
    for function in found:
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p][: 1 + (function is found[3])]
    return found


_system = _functions()


class Gate:
    """``enter`` returns 0 while the gate is open; whoever got in calls ``leave`` in the end.

    ``close`` lets nobody in any more, and returns when all have left. ``lost`` says that a fork
    left them in another process.
    """

    def __init__(self) -> None:
        self.lost = False
        self.enter: Callable[[], int]
        self.leave: Callable[[], Any]
        self.close: Callable[[], Any]
        if _system:
            self._lock = ctypes.create_string_buffer(LOCK_BYTES)
            at = ctypes.addressof(self._lock)
            *calls, make = _system
            make(at, None)
            self.enter, self.leave, self.close = (partial(call, at) for call in calls)
        else:
            self._inside: list[int] = []
            self._open = True
            self.enter, self.leave, self.close = self._enter, self._inside.pop, self._close

    def lose(self) -> None:
        """Let nobody in and wait for nobody: the threads inside are in the parent's process."""
        self.lost = True
        self.close, self.enter = int, _refuse

    def _enter(self) -> int:
        self._inside.append(0)
        return 0 if self._open else 1 + self._inside.pop()

    def _close(self) -> None:
        self._open = False
        while self._inside:
            sleep(PAUSE)


def _refuse() -> int:
    return 1
