"""Threads that handlers of signals may fork beside, even while they are started or awaited.

The child has no such thread. ``threading.Thread.start`` would wait for it there for ever.
"""

import _thread
from collections.abc import Callable
from math import inf
from os import getpid
from time import monotonic

__all__ = ["Thread"]

PAUSE = 0.05  # seconds between looks whether this is a child by now


class Thread:
    """Runs a function beside the caller; the end of the process does not wait for it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._process, self._has_ended = getpid(), False
        self._end = _thread.allocate_lock()
        self._end.acquire()
        _thread.start_new_thread(self._run, ())

    def is_alive(self) -> bool:
        """Whether it has not ended, and belongs to this process."""
        return not self._has_ended and self._process == getpid()

    def join(self, seconds: float = inf) -> None:
        """Wait until it is not alive, for so long at most."""
        latest = monotonic() + seconds
        while self.is_alive() and (left := latest - monotonic()) > 0:
            self._end.acquire(timeout=min(left, PAUSE))

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._has_ended = True
            self._end.release()
