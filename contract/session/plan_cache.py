"""PlanCache: the plans of a Handle, bounded by their number and by bytes, safe for threads."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

from contract.errors import InvalidValueError
from contract.support.forks import reentrant_lock

__all__ = ["MOST_BYTES", "MOST_LINES", "Key", "PlanCache", "Statistics"]

MOST_LINES = 4096  # programs that find their paths as they go have thousands of small shapes
MOST_BYTES = 64 << 20
MOST_REQUESTS = 8  # ways to write one request that lead to a line at once
# Measured: a request with a call bound to its layouts, and each of the request's items.
REQUEST_BYTES = 1000
ITEM_BYTES = 100
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Statistics:
    """What became of the lookups: found here, found in a file, planned; and the lines.

    ``hits`` + ``restored`` + ``misses`` is the number of lookups, ``bytes`` an estimate of what
    the lines hold.
    """

    hits: int
    restored: int
    misses: int
    evictions: int
    lines: int
    capacity: int
    bytes: int


class Key(tuple[Hashable, ...]):
    """Parts of a key, hashed once: to hash an operation takes as long as to run a small one."""

    def __init__(self, parts: Iterable[Hashable]) -> None:
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash


@dataclass(slots=True, eq=False)
class _Line(Generic[Value]):
    """A value of so many bytes under its key; ``used`` is larger for lines that were used later."""

    key: Hashable
    value: Value
    used: int
    bytes: int
    requests: list[Hashable] = field(default_factory=list)


class PlanCache(Generic[Value]):
    """At most ``lines`` values under keys that describe an operation: never an address.

    A key is the frozen operation with the preference it was planned by: extents, strides, data
    types, alignments, modes, operators, compute type. A request is the same as its caller wrote
    it, with what was made of the value for it (a call bound to layouts, say): it is found without
    any parsing, and goes with its line. Values take at most ``most_bytes`` together, by what
    ``size_of`` says of each.

    A handler of signals may call in the midst of a change, or break it off, and a fork may end it.
    So ``_keys`` says what there is: the other tables are changed before it, and what they have too
    much is cleared by a later change. So is what ``_bytes`` counts too much.
    """

    def __init__(
        self,
        lines: int = MOST_LINES,
        most_bytes: int = MOST_BYTES,
        size_of: Callable[[Value], int] = lambda value: 0,
    ) -> None:
        _check(lines)
        self._size_of = size_of
        self._lock = reentrant_lock()
        self._lines: dict[int, _Line[Value]] = {}  # by identity of the value
        self._keys: dict[Hashable, _Line[Value]] = {}
        self._requests: dict[Hashable, tuple[_Line[Value], Any]] = {}
        self._capacity, self._most_bytes, self._bytes = lines, most_bytes, 0
        self._oldest: list[tuple[int, _Line[Value]]] = []  # as they were once, the oldest last
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
        file, not planned. The least recently used lines go when there is no room.
        """
        size = self._size_of(value)
        with self._lock:
            self._restored += restored
            self._misses += not restored
            new = _Line(key, value, self._no_hit(), size)
            self._bytes += size
            self._lines[id(value)] = new
            line = self._keys.setdefault(key, new)
            if line is not new:
                self._lines.pop(id(value), None)
                self._lines[id(line.value)] = line
                self._bytes -= size
                line.used = new.used
            self._evict()
            return line.value

    def replace(self, old: Value, new: Value) -> None:
        """Put ``new`` where ``old`` is, if it is still there; requests are forgotten."""
        size = self._size_of(new)
        with self._lock:
            line = self._lines.get(id(old))
            if line is not None:
                found = _Line(line.key, new, line.used, size, line.requests)
                self._bytes += size
                self._lines[id(new)] = self._keys[line.key] = found
                self._bytes -= line.bytes
                self._forget(line)

    def remember(self, value: Value, request: Hashable, made: Any) -> None:
        """Let ``find`` give ``made`` for the request as long as the line of ``value`` lives."""
        with self._lock:
            line = self._lines.get(id(value))
            if line is None or request in self._requests:
                return
            if len(line.requests) == MOST_REQUESTS:
                self._requests.pop(line.requests.pop(0), None)
            else:
                size = _request_bytes(request)
                self._bytes += size
                line.bytes += size
            line.requests.append(request)
            self._requests[request] = (line, made)
            if self._keys.get(line.key) is not line:
                self._forget(line)

    def resize(self, lines: int, most_bytes: int | None = None) -> None:
        """Change the number of lines, and of bytes where given; the least recently used go."""
        _check(lines)
        with self._lock:
            self._capacity = lines
            self._most_bytes = self._most_bytes if most_bytes is None else most_bytes
            self._evict()

    def clear(self) -> None:
        """Forget every line."""
        with self._lock:
            self._lines.clear()
            self._keys.clear()
            self._requests.clear()
            self._oldest.clear()
            self._bytes = 0

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
                self._bytes,
            )

    @property
    def capacity(self) -> int:
        """The number of lines there may be."""
        return self._capacity

    def __len__(self) -> int:
        return len(self._keys)

    def _evict(self) -> None:
        while len(self._keys) > self._capacity or self._bytes > self._most_bytes:
            line = self._least_recent()
            if line is None:
                break
            self._forget(line)
            gone = self._keys.pop(line.key, None)
            if gone is not None:
                self._evictions += 1
                self._bytes -= gone.bytes
        if len(self._lines) > len(self._keys):  # a change was broken off
            self._lines = {id(line.value): line for line in list(self._keys.values())}

    def _least_recent(self) -> _Line[Value] | None:
        """The line that was used longest ago; None if there is none.

        Lines are sorted once for many evictions; those that were used since are passed over.
        """
        while self._keys:
            if not self._oldest:
                self._sort()
            for used, line in self._oldest[-1:]:
                del self._oldest[-1:]
                if line.used == used and self._keys.get(line.key) is line:
                    return line
        return None

    def _sort(self) -> None:
        lines = list(self._keys.values())
        self._bytes = sum(line.bytes for line in lines)
        self._oldest = [(line.used, line) for line in lines]
        self._oldest.sort(key=itemgetter(0), reverse=True)

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


def _request_bytes(request: Hashable) -> int:
    """What a request takes, with what is found by it."""
    return REQUEST_BYTES + ITEM_BYTES * (len(request) if isinstance(request, tuple) else 1)


def _check(lines: int) -> None:
    if not isinstance(lines, int) or lines < 0:
        raise InvalidValueError(f"A plan cache has 0 or more lines: {lines!r} were asked for.")
