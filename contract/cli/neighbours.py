"""What other processes take of the processor meanwhile: a measured time is worth as much."""

import os
from pathlib import Path
from time import perf_counter, process_time

__all__ = ["Neighbours"]

STATISTICS = Path("/proc/stat")  # Linux: clock ticks of all cores together since the start
WAITING = (3, 4)  # idle, and idle while a disk works; the columns behind steal are counted twice
COLUMNS = 8


class Neighbours:
    """Counts from when it is made."""

    def __init__(self) -> None:
        self._begin = perf_counter()
        self._own = process_time()
        self._all = _busy_seconds()

    def share(self) -> float | None:
        """The part of all cores that others used since; None where the system does not tell.

        A virtual machine's cores that were lent to another one count as used.
        """
        now = _busy_seconds()
        if self._all is None or now is None:
            return None
        others = now - self._all - (process_time() - self._own)
        there = (os.cpu_count() or 1) * (perf_counter() - self._begin)
        return min(max(others / there, 0.0), 1.0)


def _busy_seconds() -> float | None:
    try:
        first = STATISTICS.read_text().split("\n", 1)[0]
    except OSError:
        return None
    ticks = [int(each) for each in first.split()[1 : COLUMNS + 1]]
    busy = sum(count for column, count in enumerate(ticks) if column not in WAITING)
    return busy / os.sysconf("SC_CLK_TCK")
