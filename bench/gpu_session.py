"""python bench/gpu_session.py OUT: tests, checkers and suites on a machine with a GPU.

For a checkout that is not installed. Each part is a process of its own, with a limit of time and
a log in OUT; what fails or hangs does not stop the rest. One table comes last.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BENCH = (sys.executable, "-u", "-m", "bench")
HOPPER = {"CONTRACT_HOPPER": "1"}
DOZEN = tuple(map(str, range(1, 49, 4)))  # of TCCG's 48 contractions


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite with the type of its data, a compute type, what is set for it, and its cases."""

    name: str
    dtype: str
    compute: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    cases: tuple[str, ...] = ()

    @property
    def part(self) -> str:
        """The name of its part."""
        words = (self.name, self.dtype, self.compute, "hopper" if self.environment else "")
        return "-".join(filter(None, words))


SUITES = (
    Suite("permute", "float32"),
    Suite("tccg", "float32"),
    Suite("tccg", "float64"),
    Suite("tccg", "float32", "TF32"),
    Suite("tccg", "bfloat16"),
    Suite("tccg", "float32", "TF32", HOPPER),
    Suite("tccg", "bfloat16", environment=HOPPER),
    Suite("tccg", "float16", environment=HOPPER),
    Suite("candidates", "float32", cases=DOZEN),
    Suite("candidates", "float64", cases=DOZEN),
    Suite("candidates", "float32", "TF32", cases=DOZEN),
    Suite("reduce", "float32"),
    Suite("elementwise", "float32"),
    Suite("overhead", "float32"),
    Suite("random", "float64"),
    Suite("pain", "float32"),
    Suite("permute", "float64"),
    Suite("network", "float32"),
)


@dataclass(frozen=True, slots=True)
class Part:
    """A command with the most seconds it may take; ``numbers`` is the JSON that it writes.

    ``absent`` says why it cannot run here, ``environment`` is set for it alone.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    numbers: Path | None = None
    absent: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a part."""

    part: Part
    status: str
    seconds: float = 0.0


def main() -> int:
    """Run every part that is asked for; the exit status is 1 unless all are well."""
    asked = _parser().parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    parts = [*tests(), *checkers(), *suites(asked.out, asked.cutensor, asked.limit_gflop)]
    chosen = [part for part in parts if any(part.name.startswith(each) for each in asked.parts)]
    end = time.monotonic() + asked.seconds
    results = []
    for part in chosen:
        results.append(result_of(part, asked.out, end))
        print(f"{part.name}: {results[-1].status}", flush=True)
    print(table(results))
    return 0 if all(each.status == "ok" for each in results) else 1


# --- the parts ------------------------------------------------------------------------------------


def tests() -> Iterator[Part]:
    """The corpus on the GPU, where this checkout has one."""
    corpus = ROOT / "tests" / "corpus"
    known = "--device" in (ROOT / "tests" / "conftest.py").read_text()
    absent = "" if known and corpus.is_dir() else "no tests/corpus with --device"
    options = ("--device", "gpu", "-q", "-p", "no:cacheprovider", "--maxfail=40")
    command = (sys.executable, "-m", "pytest", *options, str(corpus))
    yield Part("tests", command, 240, absent=absent)


def checkers() -> Iterator[Part]:
    """A few small calls under compute-sanitizer, where it is."""
    tool = shutil.which("compute-sanitizer")
    absent = "" if tool else "no compute-sanitizer"
    calls = (sys.executable, "-m", "bench.small_calls")
    yield Part("calls", calls, 120)
    for kind in ("memcheck", "racecheck"):
        command = (tool or "", "--tool", kind, "--error-exitcode", "1", *calls)
        yield Part(kind, command, 180, absent=absent)


def suites(out: Path, cutensor: Path | None, gflop: float | None) -> Iterator[Part]:
    """The suites, what matters most first."""
    options = ["--device", "gpu"]
    options += ["--cutensor", str(cutensor)] if cutensor else []
    options += ["--limit-gflop", str(gflop)] if gflop else []
    for suite in SUITES:
        numbers = out / f"{suite.part}.json"
        kind = ("--dtype", suite.dtype, *(("--compute", suite.compute) if suite.compute else ()))
        kind += ("--cases", ",".join(suite.cases)) if suite.cases else ()
        command = (*BENCH, suite.name, *kind, "--json", str(numbers), *options)
        yield Part(suite.part, command, 240, numbers, environment=suite.environment)


# --- running --------------------------------------------------------------------------------------


def result_of(part: Part, out: Path, end: float) -> Result:
    """Run a part until it ends, or until its time or the session's is over."""
    limit = min(part.seconds, end - time.monotonic())
    if part.absent or limit <= 0:
        return Result(part, part.absent or "left out: no time")
    if part.numbers:
        part.numbers.unlink(missing_ok=True)
    begin = time.monotonic()
    with (out / f"{part.name}.log").open("w") as log:
        status = finished(part.command, limit, log, part.environment)
    return Result(part, status, time.monotonic() - begin)


def finished(command: Sequence[str], limit: float, log: Any, own: Mapping[str, str]) -> str:
    """How a command ended; all of its processes are killed after ``limit`` seconds."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **own}
    begun = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        code = begun.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(begun.pid, signal.SIGKILL)
        begun.wait()
        return f"stopped after {limit:.0f} s"
    return "ok" if code == 0 else f"exit status {code}"


# --- the table ------------------------------------------------------------------------------------


def table(results: Sequence[Result]) -> str:
    """A line for each part; what a suite wrote counts even where it was stopped."""
    head = (
        f"{'part':<28}{'seconds':>8}{'cases':>7}{'ours bad':>9}{'mean':>8}{'worst':>8}{'bound':>7}"
    )
    return "\n".join([f"{head}  status", *map(line, results)])


def line(result: Result) -> str:
    """Ratios are to the best peer; the part of the bound is a geometric mean."""
    cells = numbers_of(result.part.numbers)
    return f"{result.part.name:<28}{result.seconds:>8.0f}{cells}  {result.status}"


def numbers_of(path: Path | None) -> str:
    """Cases, our failures, mean and worst ratio, part of the bound; blank without numbers."""
    if path is None or not path.exists():
        return " " * 39
    found = json.loads(path.read_text())
    bad = sum("contract" in row["failed"] for row in found["rows"])
    ratios = (found["geometric_mean"], found["worst"])
    mean, worst = ("-" if ratio is None else f"{ratio:.2f}x" for ratio in ratios)
    bound = found["fraction_geometric_mean"]
    part = "-" if bound is None else f"{bound:.0%}"
    return f"{len(found['rows']):>7}{bad:>9}{mean:>8}{worst:>8}{part:>7}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python bench/gpu_session.py", description=__doc__)
    parser.add_argument("out", type=lambda text: Path(text).resolve(), help="a folder")
    parser.add_argument("parts", nargs="*", default=[""], help="beginnings of names: tests tccg")
    parser.add_argument("--seconds", type=float, default=570, help="for all parts together")
    parser.add_argument("--cutensor", type=Path, help="the folder of libcutensor.so.2")
    parser.add_argument("--limit-gflop", type=float, help="scale contractions down to this")
    return parser


if __name__ == "__main__":
    sys.exit(main())
