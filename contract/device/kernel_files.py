"""Compiled kernels on disk, beside CuPy's own and by the same environment variables."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from contract.logging import LOGGER, Level
from contract.storage.files import PRIVATE
from contract.support.atomic_file import replacing
from contract.support.config import kernel_directory

__all__ = ["kept"]

DIGEST_BYTES = 32  # a file begins with the digest of what follows


def kept(name: str, make: Callable[[], bytes]) -> bytes:
    """The content of a file; where it is missing or damaged it is made, and written for later.

    A disk that cannot be read or written to costs time, no more.
    """
    directory = kernel_directory()
    if directory is None:
        return make()
    path = directory / name
    content = _read(path)
    if content is None:
        content = make()
        _write(path, content)
    return content


def _read(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        LOGGER.log(Level.HINT, f"a compiled kernel is not read: {error}")
        return None
    digest, content = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == digest else None


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, PRIVATE) as stream:
            stream.write(hashlib.sha256(content).digest() + content)
    except OSError as error:
        LOGGER.log(Level.HINT, f"a compiled kernel is not kept: {error}")
