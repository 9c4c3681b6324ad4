"""What a run prints, and what it writes: a table, JSON, a picture."""

import json
import platform
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
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

PACKAGES = ("numpy", "opt_einsum", "numba", "ml_dtypes", "torch", "jax", "pytblis", "cotengra")
LONG = 20  # rows of a suite whose WORST are listed once more
WORST = 10
FEW = 8  # modes whose extents are written beside a case


@dataclass(frozen=True, slots=True)
class Run:
    """A run: what was asked for, where, the peers, its rows, the ceilings before and after them.

    ``compute`` is the compute type, empty for the default of the data's type. ``peers`` has
    versions that only a peer knows, ``missing`` says why a peer is. ``before`` is None for a run
    without a clock, ``after`` for one that did not get there, too.
    """

    suite: str
    mode: str
    dtype: str
    repeat: int
    arguments: tuple[str, ...]
    device: Device
    before: Ceilings | None
    peers: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    after: Ceilings | None = None
    compute: str = ""


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Table:
    """How rows are printed: column titles for a title and contestants, a row's line, the end."""

    header: Callable[[str, Sequence[str]], str]
    line: Callable[[Row], str]
    summary: Callable[[Sequence[Row]], str]


def header(title: str, contestants: Sequence[str]) -> str:
    """The column titles of a suite."""
    times = "".join(f"{name[:13]:>14}" for name in contestants)
    return f"{title:<34}{times}{'ratio':>9}{'bound':>7}{'first':>10}"


def line(row: Row) -> str:
    """Median of each contestant, ratio to the best peer, part of the bound, our first call."""
    cells = "".join(f"{outcome_text(outcome):>14}" for outcome in row.outcomes.values())
    ratio, fraction = ratio_text(row.ratio), fraction_text(row.fraction)
    first = seconds_text(next(iter(row.outcomes.values())).first)
    note = f"  {row.facts.note}" if row.facts.note else ""
    return f"{row.name[:33]:<34}{cells}{ratio:>9}{fraction:>7}{first:>10}{note}"


def summary(rows: Sequence[Row]) -> str:
    """Means, the worst cases, what failed, how many cases are right."""
    failures = [
        f"FAILED {row.name}: {who}: {why}" for row in rows for who, why in row.failures.items()
    ]
    right = sum(not row.failures for row in rows)
    lines = [*compared(rows), *bounded(rows), *worst(rows), *failures]
    return "\n".join([*lines, f"every result is right in {right} of {len(rows)} cases"])


def compared(rows: Sequence[Row]) -> Iterator[str]:
    """The geometric mean of the ratios to the best peer, and the worst."""
    good = [row for row in rows if isfinite(row.ratio)]
    if good:
        mean = geometric_mean([row.ratio for row in good])
        last = min(good, key=lambda row: row.ratio)
        yield (
            f"geometric mean {mean:.2f}x over {len(good)} of {len(rows)} cases, "
            f"worst {last.ratio:.2f}x ({last.name})"
        )


def bounded(rows: Sequence[Row]) -> Iterator[str]:
    """The geometric mean of the parts of the bound."""
    parts = [row.fraction for row in rows if isfinite(row.fraction)]
    if parts:
        yield f"part of the bound, geometric mean {geometric_mean(parts):.0%}"


def worst(rows: Sequence[Row]) -> Iterator[str]:
    """The WORST cases of a suite with more than LONG, with extents, best peer and notes."""
    good = sorted((row for row in rows if isfinite(row.ratio)), key=lambda row: row.ratio)
    if len(good) > LONG:
        yield f"the worst {WORST}:"
        for row in good[:WORST]:
            times = f"{seconds_text(row.ours)}, {row.best_peer} {seconds_text(row.best)}"
            yield f"  {ratio_text(row.ratio)} {row.name}: {times}{extents_text(row.facts.extents)}"


def extents_text(extents: Mapping[str, int]) -> str:
    """Extents of a case with few modes."""
    few = 0 < len(extents) <= FEW
    return "; " + " ".join(f"{label}={n}" for label, n in extents.items()) if few else ""


CONTESTANTS = Table(header, line, summary)


def rates(found: Ceilings, kind: str) -> str:
    """Both ceilings in words; ``kind`` is the type, and the compute type."""
    return f"{found.flops / 1e9:.1f} GFLOP/s {kind}, {found.bandwidth / 1e9:.1f} GB/s copy"


def outcome_text(outcome: Outcome) -> str:
    """Seconds, "right" where nothing was timed, or FAILED."""
    if outcome.failure:
        return "FAILED"
    return seconds_text(outcome.seconds) if outcome.samples else "right"


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
    unfinished.write_text(in_lines(as_json(run)))
    unfinished.replace(path)


def in_lines(found: Mapping[str, Any]) -> str:
    """JSON with one line for each entry, and for each row of the last."""
    head = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in found if name != "rows"]
    rows = ",\n".join(json.dumps(row, allow_nan=False) for row in found["rows"])
    return "{" + ",\n".join([*head, f'"rows": [\n{rows}\n]']) + "}\n"


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
        "ceilings": _ceilings(run.before),
        "ceilings_after": _ceilings(run.after),
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
        "spread": {name: _spread(each.samples) for name, each in row.outcomes.items()},
        "first_call": {name: _number(each.first) for name, each in row.outcomes.items()},
        "error": {name: _number(each.error) for name, each in row.outcomes.items()},
        "ratio": _number(row.ratio),
        "ratios": {name: _number(ratio) for name, ratio in row.ratios.items()},
        "fraction_of_bound": _number(row.fraction),
        "failed": dict(row.failures),
        "predictions": {name: asdict(each) for name, each in row.predictions.items()},
    }


def _ceilings(found: Ceilings | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)


def _number(value: float) -> float | None:
    """With five digits, more than any clock is worth."""
    return float(f"{value:.5g}") if isfinite(value) else None


def _spread(samples: Sequence[float]) -> tuple[float | None, ...]:
    """The least and the most of them; nothing of none."""
    return (_number(min(samples)), _number(max(samples))) if samples else ()


def versions(device: Device) -> dict[str, str]:
    """Python, ours, each package that is installed, every pool of threads, the device's libraries.

    SciPy, which peers import, brings a BLAS beside NumPy's.
    """
    found = {"python": platform.python_version(), "contract": contract.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    pools = threadpoolctl.threadpool_info()
    for api in sorted({pool["user_api"] for pool in pools}):
        found[api] = "; ".join(pool_text(pool) for pool in pools if pool["user_api"] == api)
    return found | device.versions()


def pool_text(pool: Mapping[str, Any]) -> str:
    """A library with threads of its own: its name, version, architecture, how many."""
    parts = (pool["internal_api"], pool["version"], pool.get("architecture"))
    return f"{' '.join(str(part) for part in parts if part)}, {pool['num_threads']} threads"


# --- the picture ----------------------------------------------------------------------------------


def draw(path: Path, title: str, rows: Sequence[Row], ceilings: Ceilings) -> None:
    """Bars of the ratio to the best peer, a line at 1; below it the part of the bound; a roofline.

    The roofline is left out where no row has both FLOPs and bytes.
    """
    from matplotlib.figure import Figure

    placed = [row for row in rows if row.facts.flops and row.facts.bytes]
    width = max(6.0, 2.0 + 0.25 * len(rows))
    layout, widths = [["ratio"], ["fraction"]], [width]
    if placed:
        layout, widths = [[*each, "roofline"] for each in layout], [width, 7.0]
    figure = Figure(figsize=(sum(widths), 7.0), layout="constrained")
    panels = figure.subplot_mosaic(layout, width_ratios=widths)
    figure.suptitle(title)
    _bars(panels["ratio"], [row.ratio for row in rows], "times as fast as the best peer", 1.0)
    panels["ratio"].set_yscale("log")
    panels["ratio"].tick_params(labelbottom=False)
    _bars(panels["fraction"], [row.fraction for row in rows], "part of the bound")
    panels["fraction"].set_xticks(range(len(rows)), [row.name[:33] for row in rows])
    panels["fraction"].tick_params(axis="x", rotation=90, labelsize=6)
    if placed:
        _roofline(panels["roofline"], placed, ceilings)
    figure.savefig(path, dpi=120)


def _bars(axes: Any, values: Sequence[float], label: str, base: float = 0.0) -> None:
    """A bar from ``base`` to each value that is known."""
    heights = [value - base if isfinite(value) else 0.0 for value in values]
    axes.bar(range(len(values)), heights, bottom=base)
    axes.axhline(1.0, color="black", linewidth=1)
    axes.set_ylabel(label)
    axes.set_xlim(-1, len(values))


def _roofline(axes: Any, rows: Sequence[Row], ceilings: Ceilings) -> None:
    """FLOP/s over FLOPs per byte, ours and the best peer's, under both ceilings."""
    facts = [row.facts for row in rows]
    intensity = [each.flops / each.bytes for each in facts]
    ridge = ceilings.flops / ceilings.bandwidth
    ends = [min(*intensity, ridge) / 2, ridge, max(*intensity, ridge) * 2]
    roof = [min(ceilings.flops, x * ceilings.bandwidth) for x in ends]
    ours = [row.facts.flops / row.ours for row in rows]
    best = [row.facts.flops / row.best for row in rows]
    axes.vlines(intensity, best, ours, color="lightgray", linewidth=1, zorder=0)
    axes.scatter(intensity, best, marker="x", color="tab:orange", label="best peer")
    axes.scatter(intensity, ours, marker="o", color="tab:blue", s=16, label="ours")
    axes.plot(ends, roof, color="black", label=rates(ceilings, "product"))
    axes.set(xscale="log", yscale="log", xlabel="FLOPs per byte", ylabel="FLOP/s")
    axes.legend()
