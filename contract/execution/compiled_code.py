"""Compiled functions by name: those of this process, those on disk, and how others come to be.

Numba takes seconds for a function, and keeps it on disk. Who has to have one waits. Who has not
goes on without, and hears of it: a thread loads what is on disk, and lets another process compile
the rest, for Numba holds Python's lock while it compiles.
"""

import atexit
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from time import perf_counter
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from contract.logging import LOGGER, Level
from contract.support.apart import apart
from contract.support.forks import reentrant_lock, renew_in_children
from contract.support.thread import Thread

__all__ = ["CompiledCode", "Kernel", "Waiting", "compiled_code"]

FUNCTIONS = "contract.host.compiled.functions"  # found by name: nothing here imports Numba
TOOLS = f"{FUNCTIONS}.tools"
DELAY = 0.2  # seconds before anything is loaded: a short program ends before
CLOSING = 2.0  # seconds that the end of a process waits for what is being loaded
SILENCE = 1.0  # seconds that somebody at a terminal waits without a word


class Kernel(NamedTuple):
    """A compiled function: what describes it in a module of FUNCTIONS, and for which types.

    Its value is an address, or what Python calls.
    """

    module: str
    name: str
    types: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return f"{self.module}.{self.name}({', '.join(map(str, self.types))})"


class Waiting(Protocol):
    """Somebody who can do without compiled functions for a while."""

    def told(self, is_there: bool) -> None:
        """They are there now, or never will be; it is said once, in another thread."""


class CompiledCode:
    """The compiled functions of this process; usable from many threads at once."""

    def __init__(self) -> None:
        self._lock = reentrant_lock()
        self._values: dict[Kernel, Any] = {}
        self._failed: set[Kernel] = set()
        self._wanted: dict[Kernel, None] = {}  # in the order of the wishes
        self._waiting: WeakKeyDictionary[Waiting, frozenset[Kernel]] = WeakKeyDictionary()
        self._thread: Thread | None = None
        self._process: Any = None
        self._closing = threading.Event()
        renew_in_children(self)
        atexit.register(self.close)

    def __len__(self) -> int:
        """How many functions have been compiled or loaded."""
        return len(self._values)

    def has(self, kernels: Iterable[Kernel]) -> bool:
        """Whether all of them are there."""
        return self._values.keys() >= set(kernels)

    def lacks(self, kernels: Iterable[Kernel]) -> bool:
        """Whether one of them will never be there."""
        return not self._failed.isdisjoint(kernels)

    # --- with waiting -------------------------------------------------------------------------

    def get(self, kernel: Kernel) -> Any:
        """The function, loaded or compiled now if it has to be."""
        if kernel not in self._values:
            with _said_on_a_terminal(kernel):
                self.compile(kernel)
        return self._values[kernel]

    def compile(self, kernel: Kernel) -> float | None:
        """Load it, or compile it now; how many seconds that took, None where it was there."""
        return apart(lambda: self._compiled(kernel))

    def _compiled(self, kernel: Kernel) -> float | None:
        if self._loaded(kernel):
            return None
        begin = perf_counter()
        self._values[kernel] = _tools().made(_code(kernel))
        seconds = perf_counter() - begin
        _log(kernel, seconds)
        return seconds

    def _loaded(self, kernel: Kernel) -> bool:
        """Whether it is there now; it is read from disk if that has it."""
        if kernel not in self._values:
            tools = _tools()
            try:
                self._values[kernel] = tools.kept(_code(kernel))
            except tools.NotKeptError:
                return False
        return True

    # --- beside others ------------------------------------------------------------------------

    def wish(self, kernels: frozenset[Kernel], waiting: Waiting) -> None:
        """Load or compile them beside the caller, who is told unless he is gone by then."""
        with self._lock:
            if waiting not in self._waiting:
                self._waiting[waiting] = kernels
                self._wanted.update(dict.fromkeys(kernels))
            self._begin()

    def wait(self) -> None:
        """Until every wish has come true, or never will."""
        while self._waiting or self._wanted:
            with self._lock:
                self._begin()
                thread = self._thread
            if thread is None:  # none can be started
                return
            thread.join()

    def _begin(self) -> None:
        """See to it that a thread works."""
        is_alive = self._thread is not None and self._thread.is_alive()
        if not is_alive and not self._closing.is_set():
            with suppress(RuntimeError):  # there are too many, or the interpreter ends
                self._thread = Thread(self._work)

    def _work(self) -> None:
        """Until nobody wishes for anything any more."""
        self._closing.wait(DELAY)
        while self._goes_on():
            with self._lock:
                wanted = [x for x in self._wanted if not self._is_decided(x)]
            try:
                self._provide(wanted)
            except Exception as error:  # Numba may be of any version, and damaged
                self._give_up(wanted, f"{type(error).__name__}: {error}")
            self._tell()

    def _goes_on(self) -> bool:
        """Whether there is something to do; if not, another wish has to begin a thread."""
        with self._lock:
            if self._closing.is_set() or not (self._waiting or self._wanted):
                self._thread = None
            return self._thread is not None

    def _is_decided(self, kernel: Kernel) -> bool:
        """Whether it is there, or never will be."""
        return kernel in self._values or kernel in self._failed

    def _provide(self, wanted: list[Kernel]) -> None:
        """What is on disk at once, then the rest."""
        missing = [kernel for kernel in wanted if not self._load(kernel)]
        self._tell()
        if missing and not self._closing.is_set():
            self._let_compile(missing)

    def _load(self, kernel: Kernel) -> bool:
        return not self._closing.is_set() and apart(lambda: self._loaded(kernel))

    def _let_compile(self, kernels: list[Kernel]) -> None:
        """Let another process compile them."""
        from contract.execution.compiler_process import CompilerProcess  # few programs compile

        self._process = CompilerProcess(kernels, _tools().chosen_folder())
        for at, seconds in self._process.compiled():
            if self._load(kernels[at]) and seconds is not None:
                _log(kernels[at], seconds)
            self._tell()
        self._give_up(kernels, self._process.problem)

    def _give_up(self, kernels: list[Kernel], problem: str) -> None:
        """What is still not there is not asked for again."""
        failed = [kernel for kernel in kernels if kernel not in self._values]
        if failed and not self._closing.is_set():
            self._failed.update(failed)
            names = ", ".join(map(str, failed))
            LOGGER.log(Level.ERROR, f"NumPy is used, for this was not compiled: {names}: {problem}")

    def _tell(self) -> None:
        """Tell those whose wishes have come true, or cannot."""
        with self._lock:
            for kernel in list(self._wanted):
                if self._is_decided(kernel):
                    del self._wanted[kernel]
            done = [x for x in self._waiting.items() if self.has(x[1]) or self.lacks(x[1])]
            for waiting, _ in done:
                del self._waiting[waiting]
        for waiting, kernels in done:
            waiting.told(self.has(kernels))

    # --- processes ----------------------------------------------------------------------------

    def renew(self) -> None:
        """In a child of fork() neither the thread nor the compiler is ours."""
        if self._process is not None:
            self._process.forget()
        self._thread = self._process = None
        self._closing = threading.Event()

    def close(self) -> None:
        """End the compiler and the thread, before the interpreter takes its libraries away."""
        self._closing.set()
        if self._process is not None:
            self._process.end()
        if self._thread is not None:
            self._thread.join(CLOSING)
        if TOOLS in sys.modules:
            _tools().remove_folder()


@cache
def compiled_code() -> CompiledCode:
    """That of this process."""
    return CompiledCode()


def _code(kernel: Kernel) -> Any:
    """What describes a function to Numba."""
    module = import_module(f"{FUNCTIONS}.{kernel.module}")
    return getattr(module, kernel.name)(*kernel.types)


def _tools() -> Any:
    """What loads and compiles; Numba takes a quarter of a second to import."""
    return import_module(TOOLS)


def _log(kernel: Kernel, seconds: float) -> None:
    if LOGGER.logs(Level.INFO):
        LOGGER.log(Level.INFO, f"compiled {kernel} in {seconds:.2f} s")


@contextmanager
def _said_on_a_terminal(kernel: Kernel) -> Iterator[None]:
    """The time in which a kernel is compiled: somebody who waits hears why."""
    if not sys.stderr.isatty():
        yield
        return
    text = f"contract: compiling {kernel}, once on this machine ..."
    timer = threading.Timer(SILENCE, print, (text,), {"file": sys.stderr})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
