"""A file that takes another's place when it is complete: a reader finds one or the other."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not a POSIX system: what a killed process leaves is not told from the rest
    fcntl = None  # type: ignore[assignment]

__all__ = ["UNFINISHED", "replacing"]

UNFINISHED = ".contract-*.tmp"


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """A stream to a new file beside ``path`` that takes its place when all went well.

    Links are followed. The permissions are ``mode``; None: the old file's, or what the umask
    leaves. Nothing is left behind where something went wrong; what a process left that was killed
    is removed. OSError where ``path`` is a device or a pipe, which are not replaced.
    """
    final = Path(os.path.realpath(path))
    _require_replaceable(final)
    for other in final.parent.glob(UNFINISHED):
        _remove_if_left(other)
    temporary, stream = _begun(final.parent)
    try:
        with stream:
            if mode is not None:
                temporary.chmod(mode)  # before anything is in it
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if mode is None and final.exists():
                temporary.chmod(stat.S_IMODE(final.stat().st_mode))
            temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


def _require_replaceable(final: Path) -> None:
    if final.exists() and not (final.is_file() or final.is_dir()):  # a directory: the system says
        raise OSError(errno.EINVAL, "this is not a regular file", str(final))


def _begun(folder: Path) -> tuple[Path, IO[bytes]]:
    """A new file, locked as long as it is open: so others know that somebody writes it."""
    import secrets  # few programs write files

    while True:
        temporary = folder / UNFINISHED.replace("*", secrets.token_hex(8))
        stream = temporary.open("xb")
        if fcntl is None:
            return temporary, stream
        fcntl.flock(stream, fcntl.LOCK_EX)
        if os.fstat(stream.fileno()).st_nlink:
            return temporary, stream
        stream.close()  # removed before it was locked


def _remove_if_left(other: Path) -> None:
    """Remove an unfinished file that nobody writes any more."""
    if fcntl is None:
        return
    with suppress(OSError):  # another user's, or locked, or gone by now
        opened = os.open(other, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            if stat.S_ISREG(os.fstat(opened).st_mode):
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                other.unlink()
        finally:
            os.close(opened)
