"""What a run prints, and what it writes: a table, JSON, a picture."""

import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.measure import Ceilings, Row, geometric_mean

PACKAGES = ("contract", "numpy", "opt_einsum", "numba", "torch", "jax")


def header(rows_of: str, peers: Sequence[str]) -> str:
    """The column titles of a suite."""
    times = "".join(f"{name[:12]:>13}" for name in peers)
    return f"{rows_of:<34}{times}{'ratio':>8}{'bound':>7}{'first':>11}"


def line(row: Row) -> str:
    """One case: seconds of each contestant, the ratio to the best peer, the part of the bound."""
    cells = [
        f"{'WRONG':>13}" if name in row.failed else f"{_seconds(seconds):>13}"
        for name, seconds in row.seconds.items()
    ]
    fraction = "" if row.fraction != row.fraction else f"{row.fraction:.0%}"
    return (
        f"{row.name[:33]:<34}{''.join(cells)}{row.ratio:>7.2f}x{fraction:>7}"
        f"{_seconds(row.first):>11}"
    )


def summary(rows: Sequence[Row]) -> str:
    """The geometric mean of the ratios, the worst case, and what failed."""
    good = [row for row in rows if row.ratio == row.ratio]
    lines = []
    if good:
        worst = min(good, key=lambda row: row.ratio)
        mean = geometric_mean([row.ratio for row in good])
        lines.append(f"geometric mean {mean:.2f}x, worst {worst.ratio:.2f}x ({worst.name})")
    for row in rows:
        lines += [f"FAILED {row.name}: {name}: {why}" for name, why in row.failed.items()]
    return "\n".join(lines)


def write_json(path: Path, suite: str, rows: Sequence[Row], ceilings: Ceilings) -> None:
    """Everything needed to read the numbers later: rows, machine, versions, command, date."""
    content = {
        "suite": suite,
        "command": " ".join(["python", "-m", "bench", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": _cpu(), "cores": len(os.sched_getaffinity(0)), "os": platform.system()},
        "versions": {"python": platform.python_version(), **_versions()},
        "ceilings": {"flops": ceilings.flops, "bandwidth": ceilings.bandwidth},
        "geometric_mean": geometric_mean([r.ratio for r in rows if r.ratio == r.ratio]),
        "rows": [
            {
                "case": row.name,
                "seconds": dict(row.seconds),
                "first_call": row.first,
                "ratio": _number(row.ratio),
                "fraction_of_bound": _number(row.fraction),
                "flops": row.flops,
                "failed": dict(row.failed),
            }
            for row in rows
        ],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def draw(path: Path, suite: str, rows: Sequence[Row]) -> None:
    """Bars: how many times as fast as the best peer, a line at 1."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(max(6.0, 0.3 * len(rows)), 4.0))
    axes.bar(range(len(rows)), [row.ratio for row in rows])
    axes.axhline(1.0, color="black", linewidth=1)
    axes.set_yscale("log")
    axes.set_ylabel("times as fast as the best peer")
    axes.set_title(suite)
    axes.set_xticks(range(len(rows)), [row.name for row in rows], rotation=90, fontsize=6)
    figure.tight_layout()
    figure.savefig(path)


def _number(value: float) -> float | None:
    return None if value != value else value


def _seconds(value: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    names = [part.split(":", 1)[1].strip() for part in text.splitlines() if "model name" in part]
    return names[0] if names else platform.processor()
