"""The threads of the host: they share loops whose parts write different memory."""

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from queue import SimpleQueue
from typing import Any, TypeVar

from contract.errors import ExecutionError
from contract.host.resources.blas_threads import MANY, blas_threads
from contract.host.resources.gate import Gate
from contract.host.resources.limits import usable_cores
from contract.support.forks import renew_in_children
from contract.support.thread import Thread

__all__ = ["FORKED", "Workers"]

FORKED = "The process was forked in the midst of this call, which other threads had parts of."

Range = tuple[int, int]
Item = TypeVar("Item")
Part = tuple[Any, ...]  # the arguments of one part of the work


class Workers:
    """Runs a function on parts of a range; usable from many threads at once.

    A caller takes part itself and does what no thread has begun, so it never waits for a free
    thread. Inside a part everything runs inline: work is split once. ``make_room`` is called
    before threads are needed, for some may be staying awake for work of another kind.

    Without a number of ``threads`` there is one for each usable core, ``most`` at most if that is
    not 0, and no more of them take part than BLAS may use at that time. Where BLAS may use more
    than ``most``, somebody has changed the environment since it was loaded, for others.
    """

    def __init__(self, threads: int | None = None, most: int = 0) -> None:
        cores = usable_cores()
        is_late = most < blas_threads().threads < MANY
        self.threads = threads or min(cores, cores if is_late else most or cores)
        self._follows = not threads
        self.make_room: Callable[[], None] | None = None
        self._inside = _Inside()
        self._others = _Others()
        self._crew: _Crew | None = None
        self._works: set[_Work] = set()
        renew_in_children(self)

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

    def now(self) -> int:
        """How many threads may take part now. Work is split all the same, so bits are."""
        return min(self.threads, blas_threads().threads) if self._follows else self.threads

    def map(self, function: Callable[..., None], parts: Sequence[Part]) -> None:
        """Call the function for every part; an exception is raised after all have ended.

        There may be more parts than threads: each thread that is free takes the next one, so a
        thread that is slow or held up gets fewer of them. After an exception nobody takes one.
        """
        if len(parts) == 1 or self.is_inside() or (most := self.now()) == 1:
            for part in self.going(parts):
                function(*part)
            return
        work = _Work(function, deque(parts))
        try:
            self._works.add(work)
            self._call_others(partial(self._help, work), min(most, len(parts)) - 1)
            self._take(work)
        except _BrokenOffError:
            """Another thread has an error."""
        except BaseException:
            work.broken_off = True
            raise
        finally:
            work.gate.close()  # others use memory of this call
            self._works.discard(work)
        if work.errors:
            raise work.errors[0]
        if work.gate.lost:
            raise ExecutionError(FORKED)

    def going(self, items: Iterable[Item]) -> Iterable[Item]:
        """What is to be done in a part, unless the call ends early, for whatever reason."""
        work = self._inside.work
        return items if work is None else _going(work, items)

    def check(self) -> None:
        """End the part that the calling thread does, if any, where the call ends early."""
        work = self._inside.work
        if work is not None and work.broken_off:
            raise _BrokenOffError

    def is_inside(self) -> bool:
        """Whether the calling thread is doing a part."""
        return self._inside.work is not None

    def keep_apart(self) -> None:
        """Keep the other threads off the core that the caller runs on."""
        self._others.keep_apart()

    def start(self, task: Callable[[], None]) -> bool:
        """Give a task to another thread; False where there is none."""
        crew = self._crew
        if crew is None:
            self._crew = crew = _Crew(max(self.threads - 1, 1), self._others.add)
        return crew.give(task)

    def close(self) -> None:
        """End the threads; parts that run are finished first."""
        if self.make_room is not None:
            self.make_room()
        crew, self._crew, self._others = self._crew, None, _Others()
        if crew is not None:
            crew.end()

    def renew(self) -> None:
        """In a child of a fork there are no other threads."""
        self._crew, self._others = None, _Others()
        for work in self._works:
            work.gate.lose()

    def _call_others(self, task: Callable[[], None], most: int) -> None:
        """Give ``task`` to ``most`` other threads."""
        if self.make_room is not None:
            self.make_room()
        self.keep_apart()
        for _ in range(most):
            self.start(task)

    def _help(self, work: "_Work") -> None:
        """Take parts in another thread, unless the caller has left already."""
        if work.gate.enter() != 0:
            return
        try:
            self._take(work)
        except BaseException as error:
            if not work.broken_off:
                work.errors.append(error)
            work.broken_off = True
        finally:
            work.gate.leave()

    def _take(self, work: "_Work") -> None:
        """Run parts, one after the other, until another thread has begun the last one."""
        try:
            self._inside.work = work
            for part in _going(work, _taken(work.left)):
                work.function(*part)
        finally:
            self._inside.work = None


@dataclass(slots=True, eq=False)
class _Work:
    """A call of ``map``, while it lasts; ``broken_off``: nobody wants the rest."""

    function: Callable[..., None]
    left: deque[Part]
    errors: list[BaseException] = field(default_factory=list)
    gate: Gate = field(default_factory=Gate)
    broken_off: bool = False


class _BrokenOffError(Exception):
    """Ends a part of a call that ends early."""


def _going(work: _Work, items: Iterable[Item]) -> Iterator[Item]:
    for item in items:
        if work.broken_off:
            raise _BrokenOffError
        yield item


class _Crew:
    """Threads that wait for tasks, ``most`` of them; they end when nobody can give them any.

    To give a task takes no lock, for a handler of signals may do so at any moment; an executor of
    the standard library takes one. Nothing waits for the threads when the interpreter ends.
    """

    def __init__(self, most: int, begin: Callable[[], None]) -> None:
        self._most, self._begin = most, begin
        self._tasks = SimpleQueue[Callable[[], None] | None]()
        self._threads: list[Thread] = []

    def give(self, task: Callable[[], None]) -> bool:
        """Let a thread do the task; False where no thread can be started."""
        if len(self._threads) < self._most:
            try:
                self._threads.append(Thread(partial(_do_tasks, self._tasks, self._begin)))
            except RuntimeError:  # there are too many, or the interpreter ends
                return False
        self._tasks.put(task)
        return True

    def end(self) -> None:
        """End the threads when each has done its task."""
        self._dismiss()
        for thread in self._threads:
            thread.join()

    def _dismiss(self) -> None:
        for _ in self._threads:
            self._tasks.put(None)

    def __del__(self) -> None:
        self._dismiss()


def _do_tasks(tasks: "SimpleQueue[Callable[[], None] | None]", begin: Callable[[], None]) -> None:
    begin()
    while (task := tasks.get()) is not None:
        task()
        del task  # with what it refers to


class _Inside(threading.local):
    """What a thread is doing a part of."""

    work: _Work | None = None


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
