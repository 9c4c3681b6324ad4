"""The threads of the host: they share loops whose parts write different memory."""

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

__all__ = ["Workers", "usable_cores"]

Range = tuple[int, int]
Part = tuple[Any, ...]  # the arguments of one part of the work


def usable_cores() -> int:
    """Cores this process may run on, where the system says; else all cores."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """Runs a function on parts of a range; usable from many threads at once.

    A caller takes part itself and does what no thread has begun, so it never waits for a free
    thread. Inside a part everything runs inline: work is split once. ``make_room`` is called
    before threads are needed, for some may be staying awake for work of another kind.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or usable_cores()
        self.make_room: Callable[[], None] | None = None
        self._inside = _Inside()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._others = _Others()

    def split(self, total: int, minimum: int, each: int = 1) -> list[Range]:
        """At most ``each`` ranges for a thread, none below ``minimum`` unless it is the only one.

        With several, a thread that is held up leaves some to the others.
        """
        if self.threads == 1 or self.is_inside():
            return [(0, total)]
        parts = max(1, min(each * self.threads, total // max(minimum, 1)))
        edges = [total * part // parts for part in range(parts + 1)]
        return list(pairwise(edges))

    def parts(self, total: int, minimum: int) -> int:
        """How many ranges of ``split`` run at the same time at most."""
        return max(1, min(self.threads, total // max(minimum, 1)))

    def map(self, function: Callable[..., None], parts: Sequence[Part]) -> None:
        """Call the function for every part; the first exception is raised after all have ended.

        There may be more parts than threads: each thread that is free takes the next one, so a
        thread that is slow or held up gets fewer of them.
        """
        if len(parts) == 1:
            function(*parts[0])
            return
        left, errors = deque(parts), list[BaseException]()
        futures = self._submitted(partial(self._take, function, left, errors), len(parts) - 1)
        self._take(function, left, errors)
        for future in futures:
            if not future.cancel():
                future.result()
        if errors:
            raise errors[0]

    def is_inside(self) -> bool:
        """Whether the calling thread is doing a part."""
        return self._inside.flag

    def keep_apart(self) -> None:
        """Keep the other threads off the core that the caller runs on."""
        self._others.keep_apart()

    def start(self, work: Callable[[], None]) -> "Future[None] | None":
        """Give ``work`` to another thread; None while they are ended."""
        with suppress(RuntimeError):
            return self._executor().submit(work)
        return None

    def _submitted(self, work: Callable[[], None], most: int) -> list["Future[None]"]:
        """``work`` given to other threads, to none inside a part."""
        if self.is_inside():
            return []
        if self.make_room is not None:
            self.make_room()
        self.keep_apart()
        given = (self.start(work) for _ in range(min(most, self.threads - 1)))
        return [future for future in given if future is not None]

    def close(self) -> None:
        """End the threads; parts that run are finished first."""
        if self.make_room is not None:
            self.make_room()
        with self._lock:
            pool, self._pool, self._others = self._pool, None, _Others()
        if pool is not None:
            pool.shutdown()

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                count = max(self.threads - 1, 1)
                self._pool = ThreadPoolExecutor(count, "contract", self._others.add)
            return self._pool

    def _take(
        self, function: Callable[..., None], left: deque[Part], errors: list[BaseException]
    ) -> None:
        """Run parts, one after the other, until another thread has begun the last one."""
        before = self.is_inside()
        self._inside.flag = True
        for part in _taken(left):
            try:
                function(*part)
            except BaseException as error:
                errors.append(error)
        self._inside.flag = before


class _Inside(threading.local):
    """Whether a thread is doing a part."""

    flag = False


class _Others:
    """The threads beside a caller's, kept off the core that it runs on, where the system allows it.

    A system may wake a thread on the core of the one that wakes it; there it would wait until the
    caller has done half of the work alone.
    """

    def __init__(self) -> None:
        self._threads: list[int] = []
        self._avoided: int | None = None  # the core

    def add(self) -> None:
        """The calling thread is one of them from now on."""
        self._threads.append(threading.get_native_id())
        self._avoided = None

    def keep_apart(self) -> None:
        """Let them run on any core but the caller's."""
        if _current_core is None or not self._threads:
            return
        core = _current_core()
        if core == self._avoided:
            return
        free = os.sched_getaffinity(0) - {core}
        for thread in self._threads if free else ():
            with suppress(OSError):  # it has ended, or may not be moved
                os.sched_setaffinity(thread, free)
        self._avoided = core


def _system_call() -> Callable[[], int] | None:
    """What tells the number of the core that the caller runs on."""
    try:
        found: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu
    except (AttributeError, OSError, TypeError):  # another system than Linux
        return None
    return found if hasattr(os, "sched_setaffinity") else None


_current_core = _system_call()


def _taken(left: deque[Part]) -> Iterator[Part]:
    """What is left, each part for one of the threads that ask."""
    while left:
        try:
            yield left.popleft()
        except IndexError:  # another thread was quicker
            return
