"""python bench/gpu_session.py OUT --part 1: what to do first on a machine with a GPU.

Four parts: 1 small calls, kernels and the corpus on the card; 2 checkers and passes; 3 the
candidates of the planner and a profiler; 4 products beside the peers. For a checkout that is not
installed, on a machine that is lent for a short time. Each task is a process with a limit of time
and a log in FOLDER; what fails or hangs does not stop the rest. OUT has one archive of FOLDER, made
anew after every task and while one runs, so that nothing is lost where the machine goes. A table
comes last.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("/tmp/gpu-session")
ARCHIVE = "session.tar.gz"
REFRESHED = 15.0  # seconds between two archives while a task runs
BENCH = (sys.executable, "-u", "-m", "bench")
WITHOUT_WGMMA = {"CONTRACT_HOPPER": "0"}
# A checkout that nobody fitted to this machine, whose own caches are used by nothing else.
ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "CONTRACT_CALIBRATION": "0"}
DOZEN = tuple(map(str, range(1, 49, 4)))  # of TCCG's 48 contractions
NCU_SECTIONS = (
    *("SpeedOfLight", "SchedulerStats", "WarpStateStats", "MemoryWorkloadAnalysis"),
    *("LaunchStats", "Occupancy", "InstructionStats"),
)


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite with the type of its data, a compute type, what is set for it, and its cases."""

    name: str
    dtype: str
    compute: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    cases: tuple[str, ...] = ()

    @property
    def task(self) -> str:
        """The name of its task."""
        few = f"{len(self.cases)}-cases" if self.cases else ""
        words = (
            self.name,
            self.dtype,
            self.compute,
            "without-wgmma" if self.environment else "",
            few,
        )
        return "-".join(filter(None, words))


TYPES = (("float32", ""), ("float64", ""), ("float32", "TF32"), ("bfloat16", ""))
PASSES = (
    Suite("permute", "float32"),
    Suite("permute", "float64"),
    Suite("reduce", "float32"),
    Suite("elementwise", "float32"),
    Suite("overhead", "float32"),
)
CANDIDATES = tuple(Suite("candidates", *each, cases=DOZEN) for each in TYPES)
PRODUCTS = (
    *(Suite("tccg", *each, cases=DOZEN) for each in TYPES),
    *(Suite("tccg", *each) for each in TYPES),
    Suite("tccg", "float32", "TF32", WITHOUT_WGMMA),
    Suite("tccg", "bfloat16", environment=WITHOUT_WGMMA),
    Suite("random", "float64"),
    Suite("network", "float32"),
    Suite("pain", "float32"),
)
# A suite, a case, the type of its data and a contestant, for the profiler.
PROFILED = (
    ("candidates", "1", "float32", "contract"),
    ("candidates", "31", "float64", "contract"),
    ("candidates", "31", "float32", "contract"),
    ("candidates", "12", "float32", "rank 1"),
    ("candidates", "1", "bfloat16", "contract"),
    ("permute", "10", "float32", "contract"),
    ("reduce", "2", "float32", "contract"),
    ("elementwise", "3", "float32", "contract"),
)


@dataclass(frozen=True, slots=True)
class Task:
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
    """What became of a task."""

    task: Task
    status: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Session:
    """Where logs and numbers are kept, where their archive goes, how long the session may last.

    ``gflop`` scales contractions down; None: as in the data. ``peers`` are the suites', empty: all.
    """

    folder: Path
    out: Path
    gflop: float | None = None
    peers: str = ""
    end: float = float("inf")

    def keep(self) -> None:
        """Write the archive anew; it appears whole."""
        made = self.out / f"{ARCHIVE}.new"
        with tarfile.open(made, "w:gz", compresslevel=3) as archive:
            for each in sorted(self.folder.iterdir()):
                if each.suffix in (".log", ".json"):
                    archive.add(each, each.name)
        made.replace(self.out / ARCHIVE)


def main() -> int:
    """Do every task of a part; the exit status is 1 unless all are well."""
    asked = _parser().parse_intermixed_args()
    end = time.monotonic() + asked.seconds
    session = Session(asked.folder, asked.out, asked.limit_gflop, asked.peers, end)
    for folder in (session.folder, session.out):
        folder.mkdir(parents=True, exist_ok=True)
    if asked.piece:
        print(add_piece(asked.piece, session.folder), flush=True)
    tasks = [each for part in asked.part for each in PARTS[part](session)]
    chosen = [each for each in tasks if any(each.name.startswith(name) for name in asked.tasks)]
    results = []
    for task in chosen:
        results.append(result_of(task, session))
        print(f"{task.name}: {results[-1].status}", flush=True)
        session.keep()
    print(table(results))
    return 0 if all(each.status == "ok" for each in results) else 1


# --- the parts ------------------------------------------------------------------------------------


def on_the_card(session: Session) -> Iterator[Task]:
    """Small calls, every kernel in every direction, the corpus: what is right at all."""
    yield Task("machine", (sys.executable, "-m", "bench.machine"), 60)
    yield Task("calls", (sys.executable, "-m", "bench.small_calls"), 120)
    emulated = sorted((ROOT / "tests" / "emulator").glob("test_*.py"))
    kernels = [each for each in emulated if each.stem.startswith(("test_kernel_", "test_tensor"))]
    probes = [each for each in emulated if each.stem in PROBES]
    yield from pytests("probes", probes, 90)
    yield from pytests("kernels", kernels, 240)
    # The corpus says itself what runs on the emulator alone.
    yield from pytests("corpus", [ROOT / "tests" / "corpus"], 200, leaving_out=())


PROBES = ("test_instructions", "test_conversions", "test_functions", "test_hopper", "test_kernels")
# What tests the emulator itself, and what counts launches of its CuPy.
ONLY_EMULATED = (
    "bug",
    "pipeline",
    "planted",
    "executor",
    "recorded",
    "graph",
    "sheet",
    "counts",
    "files",
    "machine_code",
)


def pytests(
    name: str, paths: Sequence[Path], seconds: float, leaving_out: Sequence[str] = ONLY_EMULATED
) -> Iterator[Task]:
    """Tests on the card on all cores; one that hangs ends its process, not the others."""
    options = ("--device", "gpu", "-q", "-n", "12", "-p", "no:cacheprovider", "--tb=short")
    limits = ("--maxfail=60", "--timeout=60", "--timeout-method=thread")
    others = ("-W", "default", "-o", "filterwarnings=")  # of another NumPy
    chosen = ("-k", " and ".join(f"not {word}" for word in leaving_out)) if leaving_out else ()
    found = [str(each) for each in paths if each.exists()]
    absent = "" if found else "not in this checkout"
    command = (sys.executable, "-m", "pytest", *options, *limits, *others, *chosen, *found)
    yield Task(name, command, seconds, absent=absent)


def checked_passes(session: Session) -> Iterator[Task]:
    """compute-sanitizer's four tools on small calls, then permutations and other passes."""
    tool = shutil.which("compute-sanitizer")
    absent = "" if tool else "no compute-sanitizer"
    calls = (sys.executable, "-m", "bench.small_calls")
    for kind in ("memcheck", "racecheck", "synccheck", "initcheck"):
        command = (tool or "", "--tool", kind, "--error-exitcode", "1", *calls)
        yield Task(kind, command, 150, absent=absent)
    yield from suites(PASSES, session)


def explained(session: Session) -> Iterator[Task]:
    """Why kernels take their time, and how well the model knows it."""
    yield from suites(CANDIDATES, session)
    tool = shutil.which("ncu")
    options = ("--clock-control", "none", "--profile-from-start", "off")
    sections = [word for each in NCU_SECTIONS for word in ("--section", each)]
    for suite, case, dtype, who in PROFILED:
        call = (sys.executable, "-m", "bench.profiled", suite, case, "--dtype", dtype)
        command = (tool or "", *options, *sections, *call, "--contestant", who)
        name = f"ncu-{suite}-{case}-{dtype}"
        yield Task(name, command, 60, absent="" if tool else "no ncu")


def products(session: Session) -> Iterator[Task]:
    """Contractions beside the peers, what matters most first."""
    yield from suites(PRODUCTS, session)


PARTS: Mapping[int, Callable[[Session], Iterator[Task]]] = {
    1: on_the_card,
    2: checked_passes,
    3: explained,
    4: products,
}


def suites(chosen: Sequence[Suite], session: Session) -> Iterator[Task]:
    """A task for each suite, with cuTENSOR among the peers where all of it has come."""
    cutensor = session.folder / "cutensor" / "lib"
    options = ["--device", "gpu"]
    options += ["--cutensor", str(cutensor)] if cutensor.is_dir() else []
    options += ["--limit-gflop", str(session.gflop)] if session.gflop else []
    options += ["--peers", session.peers] if session.peers else []
    for suite in chosen:
        numbers = session.folder / f"{suite.task}.json"
        kind = ("--dtype", suite.dtype, *(("--compute", suite.compute) if suite.compute else ()))
        kind += ("--cases", ",".join(suite.cases)) if suite.cases else ()
        command = (*BENCH, suite.name, *kind, "--json", str(numbers), *options)
        yield Task(suite.task, command, 240, numbers, environment=suite.environment)


# --- cuTENSOR, which is larger than what one call may bring ---------------------------------------


def add_piece(piece: Path, folder: Path) -> str:
    """Keep one piece of cuTENSOR's wheel ("NAME.2-of-4"); the last puts the library together."""
    shutil.copy(piece, folder / piece.name)
    name, _, count = piece.name.partition(".")[2].partition("-of-")
    pieces = sorted(folder.glob(f"*.*-of-{count}"))
    if len(pieces) < int(count):
        return f"piece {name} of {count} of cuTENSOR, {len(pieces)} are here"
    whole = folder / "cutensor.whl"
    with whole.open("wb") as wheel:
        for each in pieces:
            wheel.write(each.read_bytes())
    with zipfile.ZipFile(whole) as archive:
        archive.extractall(folder)
    return f"cuTENSOR is here, of {count} pieces"


# --- running --------------------------------------------------------------------------------------


def result_of(task: Task, session: Session) -> Result:
    """Do a task until it ends, or until its time or the session's is over."""
    limit = min(task.seconds, session.end - time.monotonic())
    if task.absent or limit <= 0:
        return Result(task, task.absent or "left out: no time")
    if task.numbers:
        task.numbers.unlink(missing_ok=True)
    begin = time.monotonic()
    with (session.folder / f"{task.name}.log").open("w") as log_file:
        status = finished(task, limit, log_file, session.keep)
    return Result(task, status, time.monotonic() - begin)


def finished(task: Task, limit: float, log_file: Any, keep: Callable[[], None]) -> str:
    """How a command ended; all of its processes are killed after ``limit`` seconds."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    begun = subprocess.Popen(
        task.command,
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path, **task.environment},
        stdout=log_file,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    end = time.monotonic() + limit
    while (left := end - time.monotonic()) > 0:
        try:
            code = begun.wait(min(left, REFRESHED))
        except subprocess.TimeoutExpired:
            keep()
        else:
            return "ok" if code == 0 else f"exit status {code}"
    os.killpg(begun.pid, signal.SIGKILL)
    begun.wait()
    return f"stopped after {limit:.0f} s"


# --- the table ------------------------------------------------------------------------------------


def table(results: Sequence[Result]) -> str:
    """A line for each task; what a suite wrote counts even where it was stopped.

    Ratios are to the best peer, and ``bound`` is the part of the bound, as a geometric mean;
    ``predicted`` is the geometric mean of predicted / measured seconds of what the planner chose.
    """
    columns = ("seconds", "cases", "ours bad", "mean", "worst", "bound", "predicted")
    head = f"{'task':<32}" + "".join(f"{name:>10}" for name in columns)
    return "\n".join([f"{head}  status", *map(line, results)])


def line(result: Result) -> str:
    """One task."""
    cells = numbers_of(result.task.numbers)
    return f"{result.task.name:<32}{result.seconds:>10.0f}{cells}  {result.status}"


def numbers_of(path: Path | None) -> str:
    """The columns after the seconds; blank without numbers."""
    if path is None or not path.exists():
        return " " * 60
    found = json.loads(path.read_text())
    bad = sum("contract" in row["failed"] for row in found["rows"])
    ratios = (found["geometric_mean"], found["worst"])
    mean, worst = ("-" if ratio is None else f"{ratio:.2f}x" for ratio in ratios)
    bound = found["fraction_geometric_mean"]
    part = "-" if bound is None else f"{bound:.0%}"
    cells = (str(len(found["rows"])), str(bad), mean, worst, part, predicted(found["rows"]))
    return "".join(f"{cell:>10}" for cell in cells)


def predicted(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the planner expected of its choices, beside what they took."""
    logarithms = [
        log(row["predictions"]["contract"]["seconds"] / row["seconds"]["contract"])
        for row in rows
        if row.get("predictions") and row["seconds"].get("contract")
    ]
    return f"{exp(sum(logarithms) / len(logarithms)):.2f}x" if logarithms else "-"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python bench/gpu_session.py", description=__doc__)
    parser.add_argument("out", type=_folder, help="a folder for the archive")
    parser.add_argument("tasks", nargs="*", default=[""], help="beginnings of names: tests tccg")
    parser.add_argument(
        "--part", type=int, nargs="*", choices=sorted(PARTS), default=sorted(PARTS), help="of four"
    )
    parser.add_argument("--folder", type=_folder, default=FOLDER, help="for logs and numbers")
    parser.add_argument("--seconds", type=float, default=570, help="for all tasks together")
    parser.add_argument("--piece", type=Path, help="of cuTENSOR's wheel: NAME.1-of-4 ...")
    parser.add_argument("--peers", default="", help="of the suites: torch,cutensor")
    parser.add_argument("--limit-gflop", type=float, help="scale contractions down to this")
    return parser


def _folder(text: str) -> Path:
    return Path(text).resolve()


if __name__ == "__main__":
    sys.exit(main())
