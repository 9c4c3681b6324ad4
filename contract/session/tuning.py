"""Which of several candidates is the fastest: found in the course of calls, or all at once.

Nothing here runs a plan: whoever runs one says how long it took.
"""

from collections.abc import Callable
from math import inf

from contract.support.forks import reentrant_lock

__all__ = ["Tuning", "fastest"]

REPETITIONS = 3  # the least of so many measurements counts, after one that does not


class Tuning:
    """The state of incremental tuning over candidates 0..count-1; safe for many threads.

    Each call asks for the ``next`` candidate and ``record``s its time; when every one has a
    time, the ``best`` is settled. Before that the best is the fastest so far, at first the
    candidate that the model prefers.
    """

    def __init__(self, count: int) -> None:
        self._lock = reentrant_lock()
        self._count = count
        self._turns = [0] * count
        self._seconds: dict[int, float] = {}

    def next(self) -> int | None:
        """The candidate without a time that had the fewest turns; None when all have one.

        Nothing is kept of who asks, for a call may be broken off at any moment.
        """
        with self._lock:
            left = [at for at in range(self._count) if at not in self._seconds]
            if not left:
                return None
            found = min(left, key=self._turns.__getitem__)
            self._turns[found] += 1
            return found

    def record(self, candidate: int, seconds: float) -> bool:
        """Note a time; True for the one that settles the choice. A failure takes inf seconds."""
        with self._lock:
            if self.settled:
                return False
            self._seconds[candidate] = seconds
            return self.settled

    def again(self, candidate: int) -> None:
        """Measure the candidate once more: its time held something else beside its work."""
        with self._lock:
            self._turns[candidate] -= 1

    @property
    def settled(self) -> bool:
        """Whether every candidate has a time."""
        return len(self._seconds) == self._count

    @property
    def best(self) -> int:
        """The fastest candidate so far; the first one of equals, and where none has a time."""
        with self._lock:
            return min(self._seconds, key=lambda at: (self._seconds[at], at), default=0)

    @property
    def seconds(self) -> tuple[float | None, ...]:
        """The time of each candidate, as far as it is known."""
        with self._lock:
            return tuple(self._seconds.get(at) for at in range(self._count))


def fastest(count: int, measure: Callable[[int], float]) -> tuple[int, tuple[float, ...]]:
    """The candidate of the least time, and the time of each: the least of several, interleaved.

    The first measurement of each, cold, does not count.
    """
    times = [inf] * count
    for at in range(count):
        measure(at)
    for _ in range(REPETITIONS):
        for at in range(count):
            times[at] = min(times[at], measure(at))
    return min(range(count), key=times.__getitem__), tuple(times)
