"""The BLAS that NumPy calls: held to one thread while our own threads call it, and its kernels."""

import ctypes
from collections.abc import Callable, Iterator
from functools import cache, partial
from threading import get_ident
from time import sleep
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

from contract.host.resources.limits import usable_cores
from contract.support.forks import hold_during_forks, reentrant_lock, renew_in_children

__all__ = ["MANY", "BlasThreads", "blas_threads"]

PAUSE = 1e-4  # seconds between looks at who is inside
MOST_PAUSES = 1 << 10  # in which a call that wants no threads lets others begin
MANY = 1 << 12  # threads: no machine has as many cores
# As distributions of OpenBLAS call a function: with wide integers or not, NumPy's with a prefix.
OPENBLAS = [
    f"{prefix}openblas_{{}}_num_threads{suffix}"
    for prefix in ("scipy_", "")
    for suffix in ("64_", "_64", "")
]
Result = TypeVar("Result")


class BlasThreads:
    """One thread per BLAS call inside ``alone``, the caller's setting outside.

    The first of concurrent callers lowers the setting, the last restores it. A fork waits for
    every guarded call: OpenBLAS ends its threads before one, for which whoever uses them waits for
    ever, and so does the fork.
    """

    def __init__(self) -> None:
        self._lock = reentrant_lock()
        self._libraries = ThreadpoolController().select(user_api="blas").lib_controllers
        self._callers: dict[object, int] = {}  # of ``alone``, with their threads
        self._saved: list[int] = []  # what is to be restored, if anything
        self._inside: dict[int, int] = {}  # by thread, 1 while it calls
        self._shared: dict[int, int] = {}  # by thread, 1 while BLAS has threads of its own for it
        self._waiting: dict[int, int] = {}  # by thread, 1 while others are to have no threads
        self._apart: dict[int, int] = {}  # by thread, how many of its callers want none
        self._forking = 0  # the thread that does
        self._sets = [_setter(each) for each in self._libraries]
        self._asks = dict(_asks(self._libraries))
        asks = list(self._asks.values())
        self._ask = asks[0] if len(asks) == 1 else partial(_most, asks)
        self.exceeds = MANY > self.threads > usable_cores()
        renew_in_children(self)
        hold_during_forks(self)

    @property
    def threads(self) -> int:
        """How many its callers let it use, which is asked in no time; MANY where it is not known.

        ``exceeds`` says that it began with more than the system gives time to.
        """
        saved = self._saved
        return max([saved[at] for at in self._asks], default=MANY) if saved else self._ask()

    def alone(self, work: Callable[[], Result]) -> Result:
        """``work()``, in which every BLAS call of this process runs on the thread that calls it.

        It begins when calls that have BLAS's threads have ended, and such calls wait for its end.
        """
        thread = get_ident()
        before = self._apart.get(thread, 0)
        try:
            self._apart[thread] = before + 1
            return self._lowered(work, thread, waits=not before)
        finally:
            self._apart[thread] = before

    def _lowered(self, work: Callable[[], Result], thread: int, waits: bool) -> Result:
        """``work()`` with the setting lowered; ``waits``: for calls of others that have threads."""
        caller = object()
        try:
            if waits:
                self._give_way()
            self._callers[caller] = thread
            while waits and _any_other(self._shared, thread):
                sleep(PAUSE)
            self._lower()
            return work()
        finally:
            self._callers.pop(caller, None)
            self._restore()

    def guarded(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """A function that calls BLAS, made one for whose calls forks wait.

        Such a call changes no setting: a fork waits for its end, and changes wait for the fork.
        """
        inside = self._inside

        def call(*arguments: Any) -> Result:
            thread = get_ident()
            before = inside.get(thread, 0)  # not 0 in a handler of signals
            try:
                inside[thread] = 1
                if self._forking:
                    self._wait(thread, before)
                return function(*arguments)
            finally:
                inside[thread] = before

        if self.exceeds:
            return lambda *arguments: self.alone(partial(call, *arguments))
        return call

    def shared(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """A function that calls BLAS with its own threads, as many as it has without ``alone``.

        How many it has may show in the last bits of a result.
        """
        if self.exceeds:
            return function
        shared, apart = self._shared, self._apart

        def call(*arguments: Any) -> Result:
            thread = get_ident()
            if apart.get(thread) or shared.get(thread):  # the latter in a handler of signals
                return function(*arguments)
            try:
                shared[thread] = 1
                while (self._callers or self._saved) and not self._lock._is_owned():
                    self._stand_back(thread)  # if it is ours, others wait for our handler to end
                return function(*arguments)
            finally:
                shared[thread] = 0

        return call

    def _stand_back(self, thread: int) -> None:
        """Let those begin and end who want BLAS without threads."""
        try:
            self._waiting[thread] = 1
            self._shared[thread] = 0
            sleep(PAUSE)
            if not self._callers:
                self._restore()  # a handler of signals may have broken off the last one's
            self._shared[thread] = 1
        finally:
            self._waiting[thread] = 0

    def _give_way(self) -> None:
        """Let calls begin that wait for threads, so that neither kind waits for ever."""
        for _ in range(MOST_PAUSES):
            if not any(list(self._waiting.values())) or not self._callers:
                return
            sleep(PAUSE)

    @property
    def kernels(self) -> str:
        """The processors whose kernels it uses, as OpenBLAS and BLIS tell: "Haswell"; else ""."""
        found = (getattr(library, "architecture", None) for library in self._libraries)
        return " ".join(sorted({name for name in found if name}))

    # --- forks ----------------------------------------------------------------------------

    def acquire(self) -> None:
        """Wait for the calls of other threads, and let them begin none, nor change settings."""
        self._lock.acquire()
        thread = self._forking = get_ident()
        while _any_other(self._inside, thread):
            sleep(PAUSE)

    def release(self) -> None:
        """Let others call again."""
        self._forking = 0
        self._lock.release()

    def _wait(self, thread: int, before: int) -> None:
        """Stay outside while another thread forks."""
        while self._forking not in (0, thread):
            self._inside[thread] = before
            sleep(PAUSE)
            self._inside[thread] = 1

    def renew(self) -> None:
        """In a child nobody else calls; a call amid which a handler forked goes on as it was."""
        thread = get_ident()
        self._callers = {each: at for each, at in self._callers.items() if at == thread}
        for tables in (self._inside, self._shared, self._waiting, self._apart):
            for other in tables.keys() - {thread}:
                del tables[other]
        self._restore()

    # --- the setting ----------------------------------------------------------------------

    # Amid each of these a handler of signals may fork, or call ``alone``, or break it off. The next
    # call mends what was broken off.

    def _lower(self) -> None:
        """One thread, for a caller who is in ``_callers``, so that nobody restores meanwhile.

        A handler may lower it while it is read. What the handler saved counts then.
        """
        with self._lock:
            found = self._saved or [each.get_num_threads() for each in self._libraries]
            self._saved = list(self._saved or found)
            for set_threads in self._sets:
                set_threads(1)

    def _restore(self) -> None:
        """What was before, unless there are callers.

        What is saved is forgotten when all is restored, unless a handler has lowered it since.
        """
        with self._lock:
            saved = self._saved
            if saved and not self._callers:
                for set_threads, threads in zip(self._sets, saved, strict=True):
                    set_threads(threads)
                if self._saved is saved:
                    self._saved = []


def _any_other(calling: dict[int, int], thread: int) -> bool:
    """Whether another thread is calling."""
    return any([number and each != thread for each, number in list(calling.items())])


def _most(asks: list[Callable[[], int]]) -> int:
    return max([ask() for ask in asks], default=MANY)


def _asks(libraries: list[Any]) -> Iterator[tuple[int, Callable[[], int]]]:
    """Where the libraries are that have threads unless told otherwise, and what tells how many.

    OpenBLAS's own function takes a tenth of the time that threadpoolctl does.
    """
    for at, library in enumerate(libraries):
        layer = getattr(library, "threading_layer", "")
        if library.internal_api not in ("openblas", "mkl") or layer == "disabled":
            continue
        found = None
        if layer == "pthreads":
            found = _openblas(ctypes.PyDLL(library.filepath), "get")  # which keeps Python's lock
        yield at, found or library.get_num_threads


def _setter(library: Any) -> Callable[[int], Any]:
    """What sets the number of threads, from whichever thread it is called.

    From 3.8 on threadpoolctl does nothing for OpenBLAS in any thread but the first that called it.
    """
    found = None
    if library.internal_api == "openblas" and library.threading_layer == "pthreads":
        found = _openblas(ctypes.CDLL(library.filepath), "set")
    return found or library.set_num_threads


def _openblas(library: Any, verb: str) -> Callable[..., Any] | None:
    names = [each.format(verb) for each in OPENBLAS]
    return next((getattr(library, name) for name in names if hasattr(library, name)), None)


@cache
def blas_threads() -> BlasThreads:
    """The one instance: the number of BLAS threads belongs to the process, not to a Handle."""
    return BlasThreads()
