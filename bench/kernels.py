"""python -m bench kernels: a sheet of the GPU's kernels, made without a GPU.

For representative work: the kernel and its tile, what the compiler makes of it, how many blocks a
multiprocessor holds, the bytes its blocks move, and what the model expects. Nothing is run.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil, prod
from operator import attrgetter
from pathlib import Path
from typing import Any

from bench.counted import SUITES, run
from bench.nvrtc import NvrtcError, Usage, library, usage
from bench.occupancy import resident
from bench.selection import names_in, selected
from bench.work import Work, peak
from contract import (
    Algo,
    ComputeType,
    PlanPreference,
)
from contract.device.kernels.lowering import lower
from contract.machines.gpu import ARCHITECTURES, Architecture, architecture_of
from contract.machines.gpu_kernels import HopperTile, Tile
from contract.machines.gpu_tiles import HopperShare, Share
from contract.plan.steps import Gett, step_bytes, step_flops
from contract.planner.device.boxes import boxed
from contract.planner.device.launch import KernelCall
from contract.planner.device.problem import Problem, held_by, problem_of
from contract.planner.planner import make_plan
from contract.support.text import Row, aligned, seconds
from contract.support.text import count as counted

AnyTile = Tile | HopperTile


def _square(dtype: str, compute: str = "", side: int = 4096) -> Work:
    kind = ComputeType(compute) if compute else None
    name = f"square-{dtype}-{compute}".rstrip("-")
    return Work(name, "mk,kn->mn", dict.fromkeys("mkn", side), dtype, kind)


WORKS = (
    _square("float32"),
    _square("float64"),
    _square("float32", "TF32"),
    _square("float32", "3XTF32"),
    _square("float32", "9X16BF"),
    _square("float16"),
    _square("bfloat16"),
    _square("int8"),
    _square("complex64", "TF32"),
    _square("complex128", side=2048),
    Work("along-k-TF32", "km,kn->mn", dict.fromkeys("mkn", 4096), "float32", ComputeType.TF32),
    Work("skinny-float32", "mk,kn->mn", {"m": 1 << 18, "k": 256, "n": 16}, "float32"),
    Work("long-k-float32", "km,kn->mn", {"m": 64, "k": 1 << 18, "n": 64}, "float32"),
    Work("tiny-float32", "mkl,knl->mnl", {"m": 8, "k": 8, "n": 8, "l": 1 << 16}, "float32"),
    *(
        Work(f"permute-{dtype}", "abc->cba", dict.fromkeys("abc", 512), dtype)
        for dtype in ("int8", "float16", "float32", "float64", "complex128")
    ),
    Work("reduce-float32", "abc->b", dict.fromkeys("abc", 512), "float32"),
)


# --- what is known of a kernel ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel on a multiprocessor: ``usage`` is None where there is no compiler.

    ``shared`` is the dynamic shared memory of a block (bytes), ``blocks`` of which are resident.
    """

    entry: str
    reason: str
    grid: int
    threads: int
    shared: int
    usage: Usage | None
    blocks: int | None

    @property
    def warps(self) -> int | None:
        """Warps on a multiprocessor."""
        return None if self.blocks is None else self.blocks * ceil(self.threads / 32)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes between blocks and memory, and the least: every element read or written once."""

    read: int
    written: int
    least: int


@dataclass(frozen=True, slots=True)
class Sheet:
    """What is known of the work without running it.

    ``seconds`` are those of the model, ``bound`` those of the least bytes at the bandwidth of
    memory or of the operations at the peak of the units that do them, whichever is more.
    """

    name: str
    tile: str
    launches: tuple[Launch, ...]
    traffic: Traffic
    flops: int
    seconds: float
    bound: float

    @property
    def intensity(self) -> float:
        """Operations for each byte that blocks move."""
        return self.flops / (self.traffic.read + self.traffic.written)

    @property
    def fraction(self) -> float:
        """The part of the bound that the model expects."""
        return self.bound / self.seconds


# --- from the work to its sheet ---------------------------------------------------------------


def sheet_of(work: Work, architecture: Architecture, compiles: bool) -> Sheet:
    """The sheet of the plan that the model prefers of those by our own kernels.

    ``compiles``: whether there is a compiler.
    """
    plan = make_plan(work.operation, PlanPreference(algo=Algo.GETT), architecture)
    (step,) = plan.steps
    calls = [call for call in lower(plan, step, architecture) if isinstance(call, KernelCall)]
    launches = tuple(launch_of(call, architecture, compiles) for call in calls)
    flops, least = step_flops(step), step_bytes(plan, step)
    if isinstance(step, Gett):
        assert isinstance(step.blocking, Share | HopperShare)
        tile = step.blocking.tile
        held = held_by(plan, step)
        problem = (boxed if isinstance(tile, HopperTile) else problem_of)(step, held)
        traffic = tile_traffic(problem, tile, calls[0].scratch, least)
        shape = f"{tile.m}x{tile.n}"
        arithmetic = flops / peak(problem.workload(architecture), architecture)
    else:
        written = plan.slots[plan.output].bytes
        traffic = Traffic(least - written, written, least)
        shape, arithmetic = "", 0.0
    bound = max(arithmetic, least / architecture.dram)
    return Sheet(work.name, shape, launches, traffic, flops, plan.seconds, bound)


def launch_of(call: KernelCall, architecture: Architecture, compiles: bool) -> Launch:
    """One kernel as it is compiled."""
    threads = prod(call.block)
    target = call.architecture or str(architecture.capability)
    found = usage(call.source, target) if compiles else None
    blocks = None if found is None else resident(found, threads, call.shared, architecture)
    return Launch(call.entry, call.reason, prod(call.grid), threads, call.shared, found, blocks)


def tile_traffic(problem: Problem, tile: AnyTile, scratch: int, least: int) -> Traffic:
    """What blocks move: A once for each column of tiles, B once for each row, D, parts of sums."""
    e = problem.extents
    read_a = e.l * e.m * e.k * ceil(e.n / tile.n) * problem.a.size
    read_b = e.l * e.k * e.n * ceil(e.m / tile.m) * problem.b.size
    return Traffic(read_a + read_b + scratch, e.l * e.m * e.n * problem.d.size + scratch, least)


# --- the table --------------------------------------------------------------------------------

HEAD: Row = (
    *("work", "launch", "tile", "registers", "spills", "shared", "blocks", "warps"),
    *("read", "written", "least", "FLOP", "FLOP/B", "predicted", "of bound"),
)


def rows_of(sheet: Sheet) -> Iterator[Row]:
    """A row for each launch; what is known of all together stands in the first."""
    traffic = sheet.traffic
    moved = (f"{counted(each)}B" for each in (traffic.read, traffic.written, traffic.least))
    predicted = seconds(sheet.seconds), f"{sheet.fraction:.0%}"
    work = (*moved, counted(sheet.flops), f"{sheet.intensity:.3g}", *predicted)
    for at, launch in enumerate(sheet.launches):
        name, tile = ("", "") if at else (sheet.name, sheet.tile)
        yield (name, launch.entry, tile, *_resources(launch), *(("",) * len(work) if at else work))


def _resources(launch: Launch) -> tuple[str, ...]:
    used = launch.usage
    if used is None:
        return "-", "-", f"-+{launch.shared}", "-", "-"
    shared = f"{used.shared}+{launch.shared}"
    return tuple(map(str, (used.registers, used.spills, shared, launch.blocks, launch.warps)))


def as_json(sheet: Sheet) -> dict[str, Any]:
    """Everything in the table, and the reasons of the launches."""
    launches = [{**asdict(each), "warps": each.warps} for each in sheet.launches]
    derived = {"intensity": sheet.intensity, "fraction_of_bound": sheet.fraction}
    return {**asdict(sheet), "launches": launches, **derived}


# --- the command ------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Print the sheets of the chosen work; the exit status is 1 if a kernel does not compile."""
    asked = _parser().parse_args(arguments)
    architecture = architecture_of(asked.capability)
    missing = why_missing()
    if missing:
        print(f"registers, spills, static shared memory and blocks are not known: {missing}")
    if asked.measured or asked.cases in SUITES:
        return run(asked, architecture)
    sheets, failed = [], {}
    for work in selected(WORKS, attrgetter("name"), names_in(asked.cases)):
        try:
            sheets.append(sheet_of(work, architecture, not missing))
        except NvrtcError as error:
            failed[work.name] = str(error)
    print("\n".join(aligned([HEAD, *(row for sheet in sheets for row in rows_of(sheet))])))
    for name, why in failed.items():
        print(f"FAILED {name}: {why}")
    if asked.json:
        found = {
            "capability": asked.capability,
            "compiler": missing or "nvrtc",
            "failed": failed,
            "sheets": [as_json(sheet) for sheet in sheets],
        }
        asked.json.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
    return 1 if failed else 0


def why_missing() -> str:
    """Why there is no compiler; empty where there is one."""
    try:
        library()
    except NvrtcError as error:
        return str(error)
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench kernels", description=__doc__)
    known = [each.capability for each in ARCHITECTURES]
    parser.add_argument(
        "--capability", type=int, default=90, choices=known, help="10 major + minor"
    )
    suites = ", ".join(SUITES)
    parser.add_argument(
        "--cases", default="", help=f"names of work (the first column), or a suite: {suites}"
    )
    parser.add_argument("--dtype", default="float32", help="of a suite")
    parser.add_argument("--compute", default="", help="the compute type of a suite: TF32, say")
    parser.add_argument("--every", action="store_true", help="every candidate of a suite")
    parser.add_argument("--measured", type=Path, help="a suite's numbers, to be held against them")
    parser.add_argument("--json", type=Path, help="write the numbers")
    return parser
