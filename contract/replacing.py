"""A file that takes another's place when it is complete: a reader finds one or the other."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """A stream to a new file beside ``path`` that takes its place when all went well.

    Links are followed. The permissions are ``mode``; None: the old file's, or what the umask
    leaves. Nothing is left behind where something went wrong.
    """
    final = Path(os.path.realpath(path))
    temporary = final.with_name(f".contract-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as stream:
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
