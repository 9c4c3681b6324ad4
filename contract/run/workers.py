"""The threads of the host: they share loops whose parts write different memory."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise

__all__ = ["Workers"]

Range = tuple[int, int]
Part = tuple[int, ...]  # the arguments of one part of the work


def usable_cores() -> int:
    """Cores this process may run on, where the system says; else all cores."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """Runs a function on parts of a range; usable from many threads at once.

    A caller takes part itself and takes back parts that no thread has begun, so it never waits
    for a free thread. Inside a part everything runs inline: work is split once.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or usable_cores()
        self._inside = threading.local()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def split(self, total: int, minimum: int) -> list[Range]:
        """At most one range for each thread, none below ``minimum`` unless it is the only one."""
        if self.threads == 1 or getattr(self._inside, "flag", False):
            return [(0, total)]
        parts = self.parts(total, minimum)
        edges = [total * part // parts for part in range(parts + 1)]
        return list(pairwise(edges))

    def parts(self, total: int, minimum: int) -> int:
        """How many ranges ``split`` gives at most."""
        return max(1, min(self.threads, total // max(minimum, 1)))

    def map(self, function: Callable[..., None], ranges: Sequence[Part]) -> None:
        """Call the function for every part; the first exception is raised after all have ended."""
        if len(ranges) == 1:
            function(*ranges[0])
            return
        futures, rest = self._submitted(function, ranges[1:])
        errors: list[BaseException] = []
        self._collect(partial(self._run, function, ranges[0]), errors)
        for future, each in zip(futures, ranges[1:], strict=False):
            self._collect(partial(self._finish, future, function, each), errors)
        for each in rest:
            self._collect(partial(self._run, function, each), errors)
        if errors:
            raise errors[0]

    def _submitted(
        self, function: Callable[..., None], parts: Sequence[Part]
    ) -> tuple[list["Future[None]"], Sequence[Part]]:
        """Parts given to the threads, and those left because another thread ends them now."""
        pool, futures = self._executor(), []
        for at, each in enumerate(parts):
            try:
                futures.append(pool.submit(self._run, function, each))
            except RuntimeError:
                return futures, parts[at:]
        return futures, ()

    def close(self) -> None:
        """End the threads; parts that run are finished first."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(max(self.threads - 1, 1), "contract")
            return self._pool

    def _run(self, function: Callable[..., None], part: Part) -> None:
        self._inside.flag = True
        try:
            function(*part)
        finally:
            self._inside.flag = False

    def _finish(self, future: "Future[None]", function: Callable[..., None], part: Part) -> None:
        if future.cancel():
            self._run(function, part)
        else:
            future.result()

    @staticmethod
    def _collect(action: Callable[[], None], errors: list[BaseException]) -> None:
        try:
            action()
        except BaseException as error:
            errors.append(error)
