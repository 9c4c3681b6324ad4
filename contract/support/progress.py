"""A bar for work in many parts: on a terminal, and only if the work takes a while."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from contract.errors import InvalidValueError, NotSupportedError
from contract.support.text import shown

__all__ = ["PATIENCE", "counted", "has_bars", "reporting"]

PATIENCE = 1.0  # seconds before a bar that nobody asked for appears
Part = TypeVar("Part")

# What the caller of a verb wants to see. It is no part of a plan, nor of the key it is found by,
# and threads differ in it: therefore a context variable.
_wanted: ContextVar[bool | None] = ContextVar("progress", default=None)


@contextmanager
def reporting(wanted: bool | None) -> Iterator[None]:
    """The time in which bars are shown (True), never shown (False), or shown after a while."""
    if not isinstance(wanted, bool | None):
        raise InvalidValueError(f"progress is True, False or None: it is {shown(wanted)}.")
    if wanted and _tqdm() is None:
        raise NotSupportedError("progress=True needs tqdm for its bar: pip install tqdm.")
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


@contextmanager
def counted(parts: Iterable[Part], total: int, unit: str) -> Iterator[Iterable[Part]]:
    """The parts, with a bar that counts those that are done; inside, no other bar is shown."""
    wanted = _wanted.get()
    tqdm = None if wanted is False or not sys.stderr.isatty() else _tqdm()
    if tqdm is None:
        yield parts
        return
    delay = 0.0 if wanted else PATIENCE
    with (
        tqdm(total=total, unit=unit, file=sys.stderr, leave=False, delay=delay) as shown,
        reporting(False),
    ):
        yield _each(parts, shown)


def has_bars() -> bool:
    """Whether bars can be shown."""
    return _tqdm() is not None


def _each(parts: Iterable[Part], shown: Any) -> Iterator[Part]:
    for part in parts:
        yield part
        shown.update()


def _tqdm() -> Any:
    """The class that draws bars; None where it is not installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm
