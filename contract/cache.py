"""PlanCache: the plans of a Handle, least recently used last, safe for threads."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import Any, Generic, TypeVar

from contract.errors import InvalidValueError
from contract.forks import reentrant_lock

__all__ = ["PlanCache", "Statistics"]

MOST_REQUESTS = 8  # ways to write one request that lead to a line at once
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Statistics:
    """What became of the lookups: found here, found in a file, planned; and the lines.

    ``hits`` + ``restored`` + ``misses`` is the number of lookups.
    """

    hits: int
    restored: int
    misses: int
    evictions: int
    lines: int
    capacity: int


@dataclass(slots=True, eq=False)
class _Line(Generic[Value]):
    """A value under its key; ``used`` is larger for lines that were used later."""

    key: Hashable
    value: Value
    used: int
    requests: list[Hashable] = field(default_factory=list)


class PlanCache(Generic[Value]):
    """At most ``lines`` values under keys that describe an operation: never an address.

    A key is the frozen operation with the preference it was planned by: extents, strides, data
    types, alignments, modes, operators, compute type. A request is the same as its caller wrote
    it, with what was made of the value for it (a call bound to layouts, say): it is found without
    any parsing, and goes with its line.

    A handler of signals may call in the midst of a change, or break it off, and a fork may end it.
    So ``_keys`` says what there is: the other tables are changed before it, and what they have too
    much is cleared by a later change.
    """

    def __init__(self, lines: int = 64) -> None:
        _check(lines)
        self._lock = reentrant_lock()
        self._lines: dict[int, _Line[Value]] = {}  # by identity of the value
        self._keys: dict[Hashable, _Line[Value]] = {}
        self._requests: dict[Hashable, tuple[_Line[Value], Any]] = {}
        self._capacity = lines
        self._uses = count()  # every hit takes a number, and so does whatever is no hit
        self._no_hits = self._restored = self._misses = self._evictions = 0

    # --- lookups --------------------------------------------------------------------------

    def find(self, request: Hashable) -> Any | None:
        """What ``remember`` was given for the request; its line is now the most recently used.

        No lock is taken: a line that another thread evicts meanwhile is used once more.
        """
        found = self._requests.get(request)
        if found is None:
            return None
        found[0].used = next(self._uses)
        return found[1]

    def get(self, key: Hashable) -> Value | None:
        """The value under ``key``, now the most recently used; None if there is none."""
        line = self._keys.get(key)
        if line is None:
            return None
        line.used = next(self._uses)
        return line.value

    # --- changes --------------------------------------------------------------------------

    def put(self, key: Hashable, value: Value, restored: bool = False) -> Value:
        """Keep a ``value`` that ``get`` did not find, and return what is kept from now on.

        That is another thread's value where it came first. ``restored``: it was read from a
        file, not planned. The least recently used line goes when all are taken.
        """
        with self._lock:
            self._restored += restored
            self._misses += not restored
            new = _Line(key, value, self._no_hit())
            self._lines[id(value)] = new
            line = self._keys.setdefault(key, new)
            if line is not new:
                self._lines.pop(id(value), None)
                self._lines[id(line.value)] = line
                line.used = new.used
            self._evict()
            return line.value

    def replace(self, old: Value, new: Value) -> None:
        """Put ``new`` where ``old`` is, if it is still there; requests are forgotten."""
        with self._lock:
            line = self._lines.get(id(old))
            if line is not None:
                found = _Line(line.key, new, line.used, line.requests)
                self._lines[id(new)] = self._keys[line.key] = found
                self._forget(line)

    def remember(self, value: Value, request: Hashable, made: Any) -> None:
        """Let ``find`` give ``made`` for the request as long as the line of ``value`` lives."""
        with self._lock:
            line = self._lines.get(id(value))
            if line is None or request in self._requests:
                return
            if len(line.requests) == MOST_REQUESTS:
                self._requests.pop(line.requests.pop(0), None)
            line.requests.append(request)
            self._requests[request] = (line, made)
            if self._keys.get(line.key) is not line:
                self._forget(line)

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
            self._keys.clear()
            self._requests.clear()

    # --- what there is --------------------------------------------------------------------

    def items(self) -> list[tuple[Any, Value]]:
        """Every key with its value, the least recently used first."""
        with self._lock:
            lines = sorted(self._keys.values(), key=attrgetter("used"))
            return [(line.key, line.value) for line in lines]

    @property
    def statistics(self) -> Statistics:
        """Counts since the cache was made."""
        with self._lock:
            return Statistics(
                self._no_hit() - self._no_hits + 1,
                self._restored,
                self._misses,
                self._evictions,
                len(self._keys),
                self._capacity,
            )

    @property
    def capacity(self) -> int:
        """The number of lines there may be."""
        return self._capacity

    def __len__(self) -> int:
        return len(self._keys)

    def _evict(self) -> None:
        while len(self._keys) > self._capacity:
            line = min(self._keys.values(), key=attrgetter("used"))
            self._forget(line)
            self._evictions += self._keys.pop(line.key, None) is not None
        if len(self._lines) > len(self._keys):  # a change was broken off
            self._lines = {id(line.value): line for line in list(self._keys.values())}

    def _no_hit(self) -> int:
        """The next number, for something that does not count as a hit."""
        self._no_hits += 1
        return next(self._uses)

    def _forget(self, line: _Line[Value]) -> None:
        """Leave nothing that leads to the line beside its key."""
        while line.requests:
            self._requests.pop(line.requests[0], None)
            line.requests.pop(0)
        self._lines.pop(id(line.value), None)


def _check(lines: int) -> None:
    if not isinstance(lines, int) or lines < 0:
        raise InvalidValueError(f"A plan cache has 0 or more lines: {lines!r} were asked for.")
