"""What a run prints, and what it writes: a table, JSON, a picture."""

import json
import platform
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from typing import Any

import threadpoolctl

import contract
from bench.device import Ceilings, Device
from bench.measure import Outcome, Row, geometric_mean

PACKAGES = ("numpy", "opt_einsum", "numba", "ml_dtypes", "torch", "jax", "pytblis")


@dataclass(frozen=True, slots=True)
class Run:
    """A run: what was asked for, where, the peers, its rows, the ceilings before and after them.

    ``compute`` is the compute type, empty for the default of the data's type. ``peers`` has
    versions that only a peer knows, ``missing`` says why a peer is. ``after`` is None for a run
    that did not get there.
    """

    suite: str
    mode: str
    dtype: str
    repeat: int
    arguments: tuple[str, ...]
    device: Device
    before: Ceilings
    peers: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    after: Ceilings | None = None
    compute: str = ""


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Table:
    """How rows are printed: the column titles for a title and contestants, and a row's line."""

    header: Callable[[str, Sequence[str]], str]
    line: Callable[[Row], str]


def header(title: str, contestants: Sequence[str]) -> str:
    """The column titles of a suite."""
    times = "".join(f"{name[:13]:>14}" for name in contestants)
    return f"{title:<34}{times}{'ratio':>9}{'bound':>7}{'first':>10}"


def line(row: Row) -> str:
    """Median of each contestant, ratio to the best peer, part of the bound, our first call."""
    cells = "".join(f"{_cell(outcome):>14}" for outcome in row.outcomes.values())
    ratio, fraction = ratio_text(row.ratio), fraction_text(row.fraction)
    first = seconds_text(next(iter(row.outcomes.values())).first)
    note = f"  {row.facts.note}" if row.facts.note else ""
    return f"{row.name[:33]:<34}{cells}{ratio:>9}{fraction:>7}{first:>10}{note}"


CONTESTANTS = Table(header, line)


def summary(rows: Sequence[Row]) -> str:
    """Geometric means of ratio and part of the bound, the worst case, and what failed."""
    good = [row for row in rows if isfinite(row.ratio)]
    bounded = [row.fraction for row in rows if isfinite(row.fraction)]
    lines = []
    if good:
        worst = min(good, key=lambda row: row.ratio)
        mean = geometric_mean([row.ratio for row in good])
        lines.append(
            f"geometric mean {mean:.2f}x over {len(good)} of {len(rows)} cases, "
            f"worst {worst.ratio:.2f}x ({worst.name})"
        )
    if bounded:
        lines.append(f"part of the bound, geometric mean {geometric_mean(bounded):.0%}")
    for row in rows:
        lines += [f"FAILED {row.name}: {name}: {why}" for name, why in row.failures.items()]
    return "\n".join(lines)


def rates(found: Ceilings, kind: str) -> str:
    """Both ceilings in words; ``kind`` is the type, and the compute type."""
    return f"{found.flops / 1e9:.1f} GFLOP/s {kind}, {found.bandwidth / 1e9:.1f} GB/s copy"


def _cell(outcome: Outcome) -> str:
    return "FAILED" if outcome.failure else seconds_text(outcome.seconds)


def ratio_text(value: float) -> str:
    """A ratio, "-" for none."""
    return f"{value:.2f}x" if isfinite(value) else "-"


def fraction_text(value: float) -> str:
    """A part in percent, "-" for none."""
    return f"{value:.0%}" if isfinite(value) else "-"


def seconds_text(value: float) -> str:
    """Seconds in the unit that suits them, "-" for none."""
    if not isfinite(value):
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


# --- JSON -----------------------------------------------------------------------------------------


def write_json(path: Path, run: Run) -> None:
    """Everything needed to read the numbers later: rows, machine, versions, command, date."""
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(json.dumps(as_json(run), indent=1, allow_nan=False) + "\n")
    unfinished.replace(path)


def as_json(run: Run) -> dict[str, Any]:
    """The run in plain types; what is not known is null, never NaN."""
    good = [row.ratio for row in run.rows if isfinite(row.ratio)]
    bounded = [row.fraction for row in run.rows if isfinite(row.fraction)]
    return {
        "suite": run.suite,
        "mode": run.mode,
        "dtype": run.dtype,
        "compute": run.compute or None,
        "repeat": run.repeat,
        "command": shlex.join(["python", "-m", "bench", *run.arguments]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": run.device.name,
        "machine": run.device.about(),
        "versions": versions(run.device) | dict(run.peers),
        "missing": dict(run.missing),
        "ceilings": asdict(run.before),
        "ceilings_after": run.after and asdict(run.after),
        "geometric_mean": _number(geometric_mean(good)),
        "worst": _number(min(good, default=float("nan"))),
        "fraction_geometric_mean": _number(geometric_mean(bounded)),
        "rows": [_row(row) for row in run.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "case": row.name,
        "note": row.facts.note,
        "extents": dict(row.facts.extents),
        "flops": row.facts.flops,
        "bytes": row.facts.bytes,
        "bound": _number(row.bound),
        "tolerance": _number(row.tolerance),
        "seconds": {name: _number(each.seconds) for name, each in row.outcomes.items()},
        "samples": {name: list(each.samples) for name, each in row.outcomes.items()},
        "first_call": {name: _number(each.first) for name, each in row.outcomes.items()},
        "error": {name: _number(each.error) for name, each in row.outcomes.items()},
        "ratio": _number(row.ratio),
        "ratios": {name: _number(ratio) for name, ratio in row.ratios.items()},
        "fraction_of_bound": _number(row.fraction),
        "failed": dict(row.failures),
        "predictions": {name: asdict(each) for name, each in row.predictions.items()},
    }


def _number(value: float) -> float | None:
    return value if isfinite(value) else None


def versions(device: Device) -> dict[str, str]:
    """Python, ours, each package that is installed, NumPy's BLAS, the device's libraries."""
    found = {"python": platform.python_version(), "contract": contract.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    for library in threadpoolctl.threadpool_info():
        if library["user_api"] == "blas":
            parts = (library["internal_api"], library["version"], library.get("architecture"))
            found["blas"] = " ".join(str(part) for part in parts if part)
    return found | device.versions()


# --- the picture ----------------------------------------------------------------------------------


def draw(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Bars of the ratio to the best peer, a line at 1; below it the part of the bound."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(6.0, 2.0 + 0.25 * len(rows)), 6.0), layout="constrained")
    ratio, fraction = figure.subplots(2, sharex=True)
    ratio.set_title(title)
    _bars(ratio, [row.ratio for row in rows], "times as fast as the best peer")
    ratio.set_yscale("log")
    _bars(fraction, [row.fraction for row in rows], "part of the bound")
    fraction.set_xticks(range(len(rows)), [row.name[:33] for row in rows])
    fraction.tick_params(axis="x", rotation=90, labelsize=6)
    figure.savefig(path, dpi=120)


def _bars(axes: Any, values: Sequence[float], label: str) -> None:
    axes.bar(range(len(values)), [value if isfinite(value) else 0.0 for value in values])
    axes.axhline(1.0, color="black", linewidth=1)
    axes.set_ylabel(label)
