"""PlanCache: the plans of a Handle, least recently used last, safe for threads."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from contract.errors import InvalidValueError

__all__ = ["PlanCache"]

Value = TypeVar("Value")


class PlanCache(Generic[Value]):
    """At most ``lines`` values under keys that describe a call: never an address.

    A key holds the expression or its modes, the extents, strides and data types of every
    operand, and every option that shapes the plan.
    """

    def __init__(self, lines: int = 64) -> None:
        _check(lines)
        self._lock = threading.Lock()
        self._lines: OrderedDict[Hashable, Value] = OrderedDict()
        self._capacity = lines
        self.hits = 0
        self.misses = 0
        self.evictions = 0

    def get(self, key: Hashable) -> Value | None:
        """The value under ``key``, now the most recently used; None if there is none."""
        with self._lock:
            value = self._lines.get(key)
            if value is None:
                self.misses += 1
            else:
                self._lines.move_to_end(key)
                self.hits += 1
            return value

    def put(self, key: Hashable, value: Value) -> None:
        """Keep ``value``; the least recently used line goes when all are taken."""
        with self._lock:
            self._lines[key] = value
            self._lines.move_to_end(key)
            self._evict()

    def resize(self, lines: int) -> None:
        """Change the number of lines; the least recently used go first."""
        _check(lines)
        with self._lock:
            self._capacity = lines
            self._evict()

    def clear(self) -> None:
        """Forget every line."""
        with self._lock:
            self._lines.clear()

    def __len__(self) -> int:
        return len(self._lines)

    def _evict(self) -> None:
        while len(self._lines) > self._capacity:
            self._lines.popitem(last=False)
            self.evictions += 1


def _check(lines: int) -> None:
    if not isinstance(lines, int) or lines < 0:
        raise InvalidValueError(f"A plan cache has 0 or more lines: {lines!r} were asked for.")
