"""python -m bench busy: what ours and NumPy take beside other busy processes.

Every case is timed on a quiet machine and beside each number of processes that take all the time
they get. A contestant with threads on all cores is then slowed down at least to its fair share.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from time import perf_counter, sleep

from bench.device import Run
from bench.measure import SETTLED, geometric_mean
from bench.peers import OURS, find_peers
from bench.report import seconds_text
from bench.selection import names_in, selected
from bench.suites import SUITES, Choice, Entry
from contract.host.resources.limits import usable_cores

SUITES_TIMED = "tccg,random,permute,reduce,network"
GFLOP = 0.4  # of a contraction: some ten milliseconds
ROUND_SECONDS, ROUND_CALLS = 0.2, 3  # of each contestant in each round, at least
NOISE = 1.25  # in a ratio of two slow-downs
# It ends with its parent, whatever becomes of that.
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(1000))"


@dataclass(frozen=True, slots=True)
class Slowed:
    """Seconds of a call of ours and of NumPy's, by the number of busy processes."""

    name: str
    seconds: Mapping[int, Mapping[str, float]]

    def slowed(self, who: str, busy: int) -> float:
        """How many times as long as on a quiet machine a contestant takes."""
        return self.seconds[busy][who] / self.seconds[0][who]

    def is_hurt(self, busy: int) -> bool:
        """Whether we are slowed down more than NumPy is, and than threads on all cores are."""
        fair = 1 + busy / usable_cores()
        return self.slowed(OURS, busy) > NOISE * max(self.slowed("numpy", busy), fair)


def main(argv: Sequence[str]) -> int:
    """Time the suites that are asked for; the exit status is 0."""
    asked = _parser().parse_args(argv)
    counts = sorted({0, *map(int, names_in(asked.busy))})
    choice = Choice(find_peers(("numpy",), "host").found, gflop=asked.limit_gflop)
    rows = []
    with processes(counts[-1]) as others:
        for suite in names_in(asked.suites):
            every = selected(SUITES[suite](choice), attrgetter("id"), names_in(asked.cases))
            for entry in every[:: 1 if asked.cases else -(-len(every) // asked.few)]:
                row = timed(suite, entry, counts, others, asked.rounds)
                rows.append(row)
                print(line(row), flush=True)
    print(summary(rows, counts[1:]))
    return 0


@contextmanager
def processes(count: int) -> Iterator[list[int]]:
    """The ids of so many processes, which are stopped."""
    command = [sys.executable, "-c", BUSY, str(os.getpid())]
    started = [subprocess.Popen(command) for _ in range(count)]
    try:
        for each in started:
            each.send_signal(signal.SIGSTOP)
        yield [each.pid for each in started]
    finally:
        for each in started:
            each.kill()
            each.wait()


@contextmanager
def running(others: Sequence[int]) -> Iterator[None]:
    """These processes go on meanwhile."""
    for each in others:
        os.kill(each, signal.SIGCONT)
    try:
        yield
    finally:
        for each in others:
            os.kill(each, signal.SIGSTOP)


def timed(
    suite: str, entry: Entry, counts: Sequence[int], others: Sequence[int], rounds: int
) -> Slowed:
    """The median of the rounds, in which everything takes turns."""
    case = entry.make()
    runs = {name: case.runs[name] for name in (OURS, "numpy")}
    for run in runs.values():
        run()
    found = {count: {name: list[float]() for name in runs} for count in counts}
    for _ in range(rounds):
        for count in counts:
            with running(others[:count]):
                for name, run in runs.items():
                    found[count][name].append(seconds_of(run))
    return Slowed(
        f"{suite} {case.facts.name}",
        {at: {name: median(each) for name, each in of.items()} for at, of in found.items()},
    )


def seconds_of(run: Run) -> float:
    """The mean of some calls, one after the other, when all threads of the last ones sleep."""
    sleep(SETTLED)
    run()
    calls, begin = 0, perf_counter()
    while calls < ROUND_CALLS or perf_counter() - begin < ROUND_SECONDS:
        run()
        calls += 1
    return (perf_counter() - begin) / calls


def line(row: Slowed) -> str:
    """Times of both, and how they are slowed down."""
    cells = [
        f"{count}: {seconds_text(of[OURS])} {seconds_text(of['numpy'])}"
        + (f" {row.slowed(OURS, count):.1f}x {row.slowed('numpy', count):.1f}x" if count else "")
        + (" HURT" if count and row.is_hurt(count) else "")
        for count, of in row.seconds.items()
    ]
    return f"{row.name[:40]:<40} " + "  ".join(cells)


def summary(rows: Sequence[Slowed], counts: Sequence[int]) -> str:
    """For each number of busy processes the means, and how many cases are hurt."""
    return "\n".join(
        f"beside {count}: ours {geometric_mean([row.slowed(OURS, count) for row in rows]):.2f}x, "
        f"numpy {geometric_mean([row.slowed('numpy', count) for row in rows]):.2f}x; hurt "
        f"{sum(row.is_hurt(count) for row in rows)} of {len(rows)}"
        for count in counts
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench busy", description=__doc__)
    parser.add_argument("--busy", default="0,1,2", help="numbers of busy processes")
    parser.add_argument("--suites", default=SUITES_TIMED, help=f"by default {SUITES_TIMED}")
    parser.add_argument("--cases", default="", help="ids of cases")
    parser.add_argument("--few", type=int, default=12, help="cases of a suite at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit-gflop", type=float, default=GFLOP)
    return parser
