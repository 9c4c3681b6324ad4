"""What the system lets this process use: cores and memory, whole or in control groups.

Groups of both versions are read as https://docs.kernel.org/admin-guide describes them.
"""

import os
from collections.abc import Iterator
from math import ceil
from pathlib import Path, PurePosixPath

__all__ = ["free_memory", "usable_cores"]

ROOT = Path("/")
UNLIMITED = "max"


def usable_cores(root: Path = ROOT) -> int:
    """Cores this process may run on, and for no more time than its control groups leave it."""
    return max(1, min([_cores(), *map(ceil, _quotas(root))]))


def free_memory(root: Path = ROOT) -> int | None:
    """Bytes that can still be taken in the machine and in the control groups; None: unknown.

    What files were read into memory is given back when somebody needs it.
    """
    machine = _counts(root / "proc/meminfo").get("MemAvailable:")
    kilobytes = [] if machine is None else [machine * 1024]
    return min([*kilobytes, *_memory_left(root)], default=None)


def _cores() -> int:
    """Cores that the process is bound to, or that Python is told of."""
    if hasattr(os, "process_cpu_count"):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Cores' worth of time, of each group that has a limit."""
    for group in _groups("cpu", root):
        new = _words(group / "cpu.max")
        old = _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
        for quota, period in (each for each in (new, old) if len(each) == 2):
            if quota != UNLIMITED and int(quota) > 0:
                yield int(quota) / int(period)


def _memory_left(root: Path) -> Iterator[int]:
    """Bytes below the limit, of each group that has one."""
    for group in _groups("memory", root):
        for most, used, files in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _words(group / most), _words(group / used)
            if limit and usage and limit != [UNLIMITED]:
                kept = _counts(group / "memory.stat").get(files, 0)
                yield max(int(limit[0]) - int(usage[0]) + kept, 0)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of the control groups that this process is in, from its own to the outermost."""
    own = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        own.update({name: path for name in controllers.split(",")})
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, system = line.partition(" - ")
        *_, top, folder = mount.split()[:5]
        kind, _, options = system.split(" ", 2)
        name = {"cgroup2": "", "cgroup": controller}.get(kind)
        if name in own and (kind == "cgroup2" or controller in options.split(",")):
            place = PurePosixPath(own[name])
            inner = place.relative_to(top) if place.is_relative_to(top) else PurePosixPath()
            here = root / folder.lstrip("/")
            yield from (here / each for each in dict.fromkeys((inner, *inner.parents)))


def _counts(path: Path) -> dict[str, int]:
    """The numbers of a file with a name and a number in each line."""
    rows = [line.split() for line in _lines(path)]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


def _words(path: Path) -> list[str]:
    return [word for line in _lines(path) for word in line.split()]


def _lines(path: Path) -> list[str]:
    """The lines of a file; none where it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
