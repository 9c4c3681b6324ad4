"""Where Numba keeps compiled code: its own choice of a folder, else one of this process alone."""

from collections.abc import Callable
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from numba.core import config

__all__ = ["chosen_folder", "with_folder"]

_CONFIG: Any = config  # made of the environment, and again when that changes
Result = TypeVar("Result")


def with_folder(enable: Callable[[], Result]) -> Result:
    """What ``enable`` returns, which lets Numba choose a folder for a function.

    Where it finds none that can be written, the temporary one is its choice.
    """
    try:
        return enable()
    except RuntimeError:
        before = _CONFIG.CACHE_DIR
        _CONFIG.CACHE_DIR = _temporary().name
        try:
            return enable()
        finally:
            _CONFIG.CACHE_DIR = before


def chosen_folder() -> str | None:
    """The temporary folder, if Numba has found no other."""
    return _temporary().name if _temporary.cache_info().currsize else None


@cache
def _temporary() -> TemporaryDirectory[str]:
    """Nobody else may read it, and it goes with the process."""
    return TemporaryDirectory(prefix="contract-")
