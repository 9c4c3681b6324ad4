"""python -m bench kernels --cases tccg: what suites need of every unit of a GPU, counted.

Nothing is run. Of each case the chosen candidate, or all: its instructions in phases, the time of
every unit, what is predicted, and which part that is of max(FLOPs / peak, bytes / bandwidth). With
numbers of a measurement their cases are taken, and the measured seconds stand beside.
"""

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import exp, inf, log
from pathlib import Path
from typing import Any

from bench.clocks import UNITS, Machine, Needs, launches
from bench.phases import instructions
from bench.suites import DATA, PRODUCTS, REDUCTIONS, Choice, tccg_works
from bench.work import Work, bound
from contract import ComputeType, PlanPreference
from contract.machines.gpu import Architecture
from contract.plan.steps import Plan
from contract.planner.planner import ranked_plans
from contract.support.text import Row, aligned, seconds

__all__ = ["SUITES", "run"]

GROWTH = 2  # of the extents of passes on a GPU
NEAR = 0.2  # predicted within


# --- the cases --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """Work, and the seconds that were measured of its candidates, by algorithm and reason."""

    work: Work
    measured: Mapping[tuple[str, str], float] | None = None
    chosen: float | None = None


def tccg(dtype: str, compute: ComputeType | None) -> Iterator[Work]:
    """The 48 contractions, in full."""
    for each in tccg_works(Choice(dtype=dtype, gflop=inf)):
        yield Work(each.name.split()[0], each.text, dict(each.extents), dtype, compute)


def permute(dtype: str, compute: ComputeType | None) -> Iterator[Work]:
    """The 57 permutations."""
    cases = json.loads((DATA / "permutations.json").read_text())["cases"]
    for at, each in enumerate(cases):
        yield Work(str(at), each["expr"], each["extents"], dtype)


def reduce(dtype: str, compute: ComputeType | None) -> Iterator[Work]:
    """The sums."""
    return listed(REDUCTIONS, dtype)


def elementwise(dtype: str, compute: ComputeType | None) -> Iterator[Work]:
    """The products without sums."""
    return listed(PRODUCTS, dtype)


def listed(table: Sequence[tuple[str, tuple[int, ...]]], dtype: str) -> Iterator[Work]:
    """Expressions whose labels, sorted, have the given extents times a factor."""
    for at, (text, shape) in enumerate(table):
        labels = sorted(set(text) - set(",->"))
        extents = {label: GROWTH * n for label, n in zip(labels, shape, strict=True)}
        yield Work(str(at), text, extents, dtype)


SUITES = {"tccg": tccg, "permute": permute, "reduce": reduce, "elementwise": elementwise}


def measured_cases(numbers: Mapping[str, Any]) -> Iterator[Case]:
    """The cases of a file of numbers, with what was measured of us."""
    compute = ComputeType(numbers["compute"]) if numbers["compute"] else None
    for row in numbers["rows"]:
        name, text = row["case"].split()[:2]
        taken = row["seconds"]
        every = {
            (each["algo"], each["reason"]): taken[contestant]
            for contestant, each in row["predictions"].items()
            if taken[contestant]
        }
        work = Work(name, text, row["extents"], numbers["dtype"], compute)
        yield Case(work, every or None, taken["contract"])


# --- what is predicted of them ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """A candidate of a case. ``planner`` are the seconds that the planner expects."""

    case: str
    text: str
    algo: str
    reason: str
    launches: tuple[Needs, ...]
    planner: float
    bound: float
    measured: float | None

    @property
    def seconds(self) -> float:
        """Of all launches."""
        return sum(each.seconds for each in self.launches)

    @property
    def longest(self) -> Needs:
        """The launch that takes longest."""
        return max(self.launches, key=lambda each: each.seconds)

    @property
    def units(self) -> dict[str, float]:
        """The seconds of each unit in all launches."""
        return {unit: sum(x.units.get(unit, 0.0) for x in self.launches) for unit in UNITS}


def lines_of(case: Case, machine: Machine, every: bool) -> Iterator[Line]:
    """The chosen candidate; all of them where that is asked for or was measured."""
    plans = ranked_plans(case.work.operation, PlanPreference(), machine.gpu)
    seen: set[tuple[str, str]] = set()
    for rank, plan in enumerate(plans):
        key = way(plan)
        if case.measured is not None and (key in seen or key not in case.measured):
            continue
        seen.add(key)
        if rank and not every and case.measured is None:
            return
        taken = case.chosen if case.measured is None else case.measured[key]
        work = case.work
        found = tuple(launches(plan, machine))
        least = bound(work, machine.gpu, machine.copied)
        yield Line(work.name, work.text, *key, found, plan.seconds, least, taken)


def way(plan: Plan) -> tuple[str, str]:
    """The algorithm of a plan of one operation, and why; empty where there is no choice."""
    if not plan.considered:
        return "", ""
    chosen = plan.considered[0].chosen
    return chosen.algo.name, chosen.reason


# --- the table --------------------------------------------------------------------------------

HEAD: Row = (
    *("case", "expression", "algorithm", "kernel", "registers", "blocks"),
    *("before", "step", "after", "sectors", *UNITS),
    *("binds", "predicted", "planner", "of bound", "measured", "ratio", "why"),
)


def cells(line: Line) -> Row:
    """What of its longest launch is counted, then of all launches what is predicted."""
    longest = line.longest
    kernel, counted = longest.kernel, longest.phases
    resources = ("-", "-") if kernel is None else (kernel.usage.registers, kernel.blocks)
    phases = (
        ("", "", "")
        if counted is None
        else tuple(f"{instructions(x):.0f}" for x in (counted.before, counted.step, counted.after))
    )
    sectors = "" if longest.sectors is None else f"{longest.sectors:.3f}"
    taken = ("", "")
    if line.measured is not None:
        taken = seconds(line.measured), f"{line.seconds / line.measured:.2f}"
    return (
        *(line.case, line.text, line.algo, longest.entry, *map(str, resources)),
        *(*phases, sectors, *(f"{1e6 * each:.0f}" for each in line.units.values())),
        *(longest.binding, seconds(line.seconds), seconds(line.planner)),
        *(f"{line.bound / line.seconds:.0%}", *taken, line.reason),
    )


def summary(lines: Sequence[Line]) -> Iterator[str]:
    """The part of the bound; and how predictions lie to what was measured, by algorithm."""
    parts = [line.bound / line.seconds for line in lines]
    yield f"of the bound: {mean(parts):.0%} in the geometric mean, least {min(parts):.0%}"
    for algo in dict.fromkeys(line.algo for line in lines):
        own = [line for line in lines if line.algo == algo and line.measured]
        for name, of in (("counted", "seconds"), ("planner", "planner")):
            ratios = [getattr(line, of) / line.measured for line in own]
            if ratios:
                yield f"{algo or 'all'}: {spread(name, ratios)}"


def spread(name: str, ratios: Sequence[float]) -> str:
    """Predicted / measured, in words."""
    middle = mean(ratios)
    deviation = exp((sum(log(x / middle) ** 2 for x in ratios) / len(ratios)) ** 0.5)
    near = sum(abs(x - 1) <= NEAR for x in ratios)
    return (
        f"{name} / measured {middle:.2f} in the geometric mean, spread {deviation:.2f}, "
        f"{min(ratios):.2f} to {max(ratios):.2f}, {near} of {len(ratios)} within {NEAR:.0%}"
    )


def mean(numbers: Iterable[float]) -> float:
    """The geometric mean."""
    logarithms = [log(each) for each in numbers]
    return exp(sum(logarithms) / len(logarithms))


def as_json(line: Line) -> dict[str, Any]:
    """Everything that is counted, but for the machine code."""
    return {
        **{name: getattr(line, name) for name in ("case", "text", "algo", "reason")},
        **{name: getattr(line, name) for name in ("seconds", "planner", "bound", "measured")},
        "launches": [_launch(each) for each in line.launches],
    }


def _launch(each: Needs) -> dict[str, Any]:
    kernel, counted = each.kernel, each.phases
    return {
        **{name: getattr(each, name) for name in ("entry", "seconds", "sectors", "binding")},
        "units": dict(each.units),
        "kernel": kernel and {**asdict(kernel.usage), "blocks": kernel.blocks},
        "phases": counted
        and {each.name: dict(getattr(counted, each.name)) for each in fields(counted)},
    }


# --- the command ------------------------------------------------------------------------------


def run(asked: Namespace, gpu: Architecture) -> int:
    """Print a line for each case, and keep the numbers."""
    compute = ComputeType(asked.compute) if asked.compute else None
    if asked.measured:
        numbers = json.loads(Path(asked.measured).read_text())
        cases = list(measured_cases(numbers))
        machine = Machine(gpu, numbers["ceilings"]["bandwidth"])
    else:
        cases = [Case(work) for work in SUITES[asked.cases](asked.dtype, compute)]
        machine = Machine(gpu, gpu.streamed)
    lines = [line for case in cases for line in lines_of(case, machine, asked.every)]
    print("\n".join(aligned([HEAD, *map(cells, lines)])))
    print("\n".join(summary(lines)))
    if asked.json:
        found = {"capability": gpu.capability, "lines": [as_json(line) for line in lines]}
        asked.json.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
    return 0
