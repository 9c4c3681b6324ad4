"""What the library says while it works: levels, lines, a callback, Python's logging.

As cuTENSOR has it, there is one logger in a process, and a Handle hands it the environment that it
read. What the program sets here stays, whatever later handles read. With everything off a call
tests one attribute, ``active``, and formats nothing.
"""

import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from time import strftime
from types import TracebackType
from typing import Any, Protocol

from contract.descriptors.text import call_text
from contract.errors import InvalidValueError, NotSupportedError
from contract.support.config import LogSettings
from contract.support.forks import reentrant_lock
from contract.support.text import shown

__all__ = [
    "LOGGER",
    "UNWATCHED",
    "Level",
    "Logger",
    "Ranges",
    "disable",
    "set_callback",
    "set_file",
    "set_level",
    "set_mask",
    "to_python",
]

UNWATCHED: AbstractContextManager[None] = nullcontext()
PROCESS = "%i"  # in the name of a file


class Level(IntEnum):
    """What a line is about; a logger of one level says what the lower ones say too."""

    ERROR = 1  # calls that were refused or failed
    TRACE = 2  # what calls launch
    HINT = 3  # how a call could be faster
    INFO = 4  # candidates and choices
    API = 5  # calls, before anything of them is checked

    @property
    def bit(self) -> int:
        """Its bit in a mask."""
        return 1 << (self - 1)

    @property
    def tag(self) -> str:
        """Its name in a line."""
        return self.name.capitalize()


Callback = Callable[[Level, str, str], object]  # level, function, message

_PYTHON_LEVELS = {
    Level.ERROR: logging.ERROR,
    Level.TRACE: logging.DEBUG,
    Level.HINT: logging.WARNING,
    Level.INFO: logging.INFO,
    Level.API: logging.DEBUG,
}


class Ranges(Protocol):
    """Named, nested spans of time on a thread, for a profiler."""

    def push(self, name: str) -> object:
        """Open a range."""

    def pop(self) -> object:
        """Close the one opened last."""


class _Lines:
    """Whole lines on a file or on standard output, from any thread and after a fork.

    ``pattern`` names the file, "" standard output. A file is opened at its first line, and emptied
    if the process has not had it open before.
    """

    def __init__(self) -> None:
        self.pattern = ""
        self._path = ""
        self._descriptor: int | None = None  # None: standard output
        self._known: set[str] = set()
        self._lock = reentrant_lock()

    def __call__(self, level: Level, function: str, message: str) -> None:
        now, process = strftime("%Y-%m-%d %H:%M:%S"), str(os.getpid())
        line = f"[{now}][contract][{process}][{level.tag}][{function}] {message}\n"
        with self._lock:
            path = self.pattern.replace(PROCESS, process)
            if path != self._path:
                self._open(path)
            if self._descriptor is None:
                _print(line)
            else:
                os.write(self._descriptor, line.encode(errors="backslashreplace"))

    def _open(self, path: str) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._path, self._descriptor = path, None
        if path:
            first = path not in self._known
            self._known.add(path)
            self._descriptor = _opened(path, os.O_TRUNC if first else 0)


def _opened(path: str, flags: int) -> int | None:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | flags, 0o666)
    except (OSError, ValueError) as error:
        _warn(f"The log goes to standard output, for its file cannot be opened: {error}.")
        return None


def _print(line: str) -> None:
    """To what is standard output now; letters that it has not are escaped."""
    out = sys.stdout
    if out is not None:
        encoding = getattr(out, "encoding", None) or "utf-8"
        out.write(line.encode(encoding, "backslashreplace").decode(encoding))
        out.flush()


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


class _Guarded:
    """A callback that cannot break a call: of what it raises, the first is a warning."""

    def __init__(self, name: str, write: Callback) -> None:
        self._name = name
        self._write = write
        self._failed = False

    def __call__(self, level: Level, function: str, message: str) -> None:
        try:
            self._write(level, function, message)
        except Exception as error:
            if not self._failed:
                self._failed = True
                _warn(f"{self._name} of the log raised {type(error).__name__}: {error}")


class _OfThread(threading.local):
    """What a thread is in the midst of."""

    function: str | None = None  # the verb that was called
    speaking = False  # a line of the log is being written


class Logger:
    """Writes lines of the levels in ``mask``; ``active``: a call has something to say or to mark.

    ``ranges`` are opened around calls and steps where they are not None.
    """

    def __init__(self) -> None:
        self.mask = 0
        self.active = False
        self.ranges: Ranges | None = None
        self._file = _Lines()
        self._lines = _Guarded("The output", self._file)
        self._callback: _Guarded | None = None
        self._thread = _OfThread()
        self._chose_mask = False  # the program did, and handles do no more
        self._chose_lines = False
        self._warned: set[str] = set()

    # --- what the program sets ------------------------------------------------------------

    def set_level(self, level: int) -> None:
        """Log this level and those below it: 0 nothing, 1 Error, 2 Trace, 3 Hint, 4 Info, 5 Api."""
        _require("A level", level, max(Level))
        self.set_mask((1 << level) - 1)

    def set_mask(self, mask: int) -> None:
        """Log exactly these levels: the sum of 1 Error, 2 Trace, 4 Hint, 8 Info, 16 Api."""
        _require("A mask", mask, sum(level.bit for level in Level))
        self._chose_mask = True
        self._update(mask, self.ranges)

    def disable(self) -> None:
        """Log nothing, whatever handles read, until ``set_level`` or ``set_mask``."""
        self.set_mask(0)

    def set_file(self, path: str | os.PathLike[str] | None) -> None:
        """Write lines to a file, in which every %i is the process's number; None: sys.stdout.

        It is emptied when the process first writes to it.
        """
        self._chose_lines = True
        self._file.pattern = "" if path is None else os.fspath(path)
        self._lines = _Guarded("The output", self._file)

    def set_callback(self, callback: Callback | None) -> None:
        """Call ``callback(level, function, message)`` for every line too; None: no more.

        What it calls of this library is not logged.
        """
        self._callback = None if callback is None else _Guarded("The callback", callback)

    def to_python(self, logger: logging.Logger | None = None) -> None:
        """Give records to Python's ``logging`` in place of lines: "contract" if not told which.

        Error is ERROR there, Hint WARNING, Info INFO, Trace and Api are DEBUG. What is given is
        still what ``set_level`` says. ``set_file`` goes back to lines.
        """
        found = logging.getLogger("contract") if logger is None else logger

        def record(level: Level, function: str, message: str) -> None:
            found.log(_PYTHON_LEVELS[level], "[%s][%s] %s", level.tag, function, message)

        self._chose_lines = True
        self._lines = _Guarded("Python's logger", record)

    # --- what a handle sets ---------------------------------------------------------------

    def apply(self, settings: LogSettings, find_ranges: Callable[[], Ranges]) -> None:
        """Obey what a handle read in the environment, where the program has set nothing.

        ``find_ranges`` raises NotSupportedError where there are none.
        """
        if settings.refused:
            self._warn_once(f"Nothing is logged. {settings.refused}")
        if not self._chose_lines:
            self._file.pattern = settings.file
        ranges = self._found(find_ranges) if settings.nvtx else None
        self._update(self.mask if self._chose_mask else settings.mask, ranges)

    def _found(self, find_ranges: Callable[[], Ranges]) -> Ranges | None:
        try:
            return find_ranges()
        except NotSupportedError as error:
            self._warn_once(f"There are no NVTX ranges. {error}")
            return None

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            _warn(message)

    def _update(self, mask: int, ranges: Ranges | None) -> None:
        self.mask, self.ranges = mask, ranges
        self.active = mask != 0 or ranges is not None

    # --- what calls say -------------------------------------------------------------------

    def logs(self, level: Level) -> bool:
        """Whether lines of the level are written."""
        return self.mask & level.bit != 0

    def log(self, level: Level, message: str) -> None:
        """A line of the call that the thread is in the midst of."""
        thread = self._thread
        if thread.speaking or not self.logs(level):
            return
        function, line = thread.function or "contract", " ".join(message.splitlines())
        thread.speaking = True
        try:
            self._lines(level, function, line)
            if self._callback is not None:
                self._callback(level, function, line)
        finally:
            thread.speaking = False

    def call(self, function: str, arguments: Mapping[str, Any]) -> AbstractContextManager[None]:
        """The time of a call: it is logged as it begins, what it raises as it ends.

        ``arguments`` are the verb's, by name. A verb that calls another is one call, with a range
        for each.
        """
        return _Call(self, function, arguments)

    def enter(self, function: str, arguments: Mapping[str, Any]) -> bool:
        """Begin a call; whether it is one of the program."""
        if self._thread.function is not None:
            return False
        self._thread.function = function
        if self.logs(Level.API):
            self.log(Level.API, call_text(arguments))
        return True

    def leave(self, error: BaseException | None) -> None:
        """End a call of the program."""
        if isinstance(error, Exception):
            self.log(Level.ERROR, f"{type(error).__name__}: {error}")
        self._thread.function = None


class _Call(AbstractContextManager[None]):
    """One call of a verb, while it lasts."""

    def __init__(self, logger: Logger, function: str, arguments: Mapping[str, Any]) -> None:
        self._logger = logger
        self._function = function
        self._arguments = arguments
        self._ranges = logger.ranges
        self._is_outermost = False

    def __enter__(self) -> None:
        self._is_outermost = self._logger.enter(self._function, self._arguments)
        if self._ranges is not None:
            self._ranges.push(self._function)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._ranges is not None:
            self._ranges.pop()
        if self._is_outermost:
            self._logger.leave(error)


def _require(name: str, value: Any, most: int) -> None:
    if not isinstance(value, int) or not 0 <= value <= most:
        raise InvalidValueError(f"{name} is an integer from 0 to {most}: it is {shown(value)}.")


# One for the process: lines of all handles go to one place, and programs set it up without any.
LOGGER = Logger()
set_level = LOGGER.set_level
set_mask = LOGGER.set_mask
set_file = LOGGER.set_file
set_callback = LOGGER.set_callback
to_python = LOGGER.to_python
disable = LOGGER.disable
