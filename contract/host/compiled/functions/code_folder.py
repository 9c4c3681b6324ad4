"""Where Numba keeps compiled code, and what it is found by.

The folder is Numba's choice, or one of this process alone where none can be written.
"""

import os
from collections.abc import Callable
from functools import cache
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from numba.core import config
from numba.core.caching import FunctionCache

from contract.support import sources

__all__ = ["chosen_folder", "kept_code", "remove_folder"]

_CONFIG: Any = config  # made of the environment, and again when that changes
# What the code of a function depends on beside its own file, of which Numba itself knows.
WRITERS = ("host/compiled", "host/kernels", "planner/host")


class _KeptCode(FunctionCache):
    """Numba's files for a function; another version of this library finds nothing in them."""

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        known = super()._index_key(sig, codegen)  # type: ignore[no-untyped-call]
        return (*known, _fingerprint())


def kept_code(function: Callable[..., Any]) -> Any:
    """The files that keep a function."""
    try:
        return _KeptCode(function)  # type: ignore[no-untyped-call]
    except RuntimeError:  # Numba finds no folder
        before = _CONFIG.CACHE_DIR
        _CONFIG.CACHE_DIR, _ = _temporary()
        try:
            return _KeptCode(function)  # type: ignore[no-untyped-call]
        finally:
            _CONFIG.CACHE_DIR = before


def chosen_folder() -> str | None:
    """The temporary folder, if Numba has found no other."""
    return _temporary()[0] if _temporary.cache_info().currsize else None


def remove_folder() -> None:
    """At the end of the process, if it is the one that made the temporary folder."""
    if _temporary.cache_info().currsize and _temporary()[1] == os.getpid():
        rmtree(_temporary()[0], ignore_errors=True)


@cache
def _temporary() -> tuple[str, int]:
    """A folder that nobody else may read, and whose it is."""
    return mkdtemp(prefix="contract-"), os.getpid()


@cache
def _fingerprint() -> str:
    """A digest of all sources that compiled code is made of."""
    return sources.digest(WRITERS)
