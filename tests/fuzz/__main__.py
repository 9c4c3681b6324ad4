"""python -m tests.fuzz: random calls, and every finding as a line that reproduces it."""

import argparse
import sys
import time
from collections import Counter

from tests.fuzz.campaign import FINDINGS, Finding, judgements, shrunk
from tests.fuzz.draw import Wishes

PROGRESS = 20  # seconds


def main() -> int:
    """The number of findings is what it prints last; the exit status says whether there are any."""
    asked = _arguments()
    kernels = (asked.kernels,) if asked.kernels else Wishes().kernels
    wishes = Wishes(asked.limits, kernels, asked.large)
    numbers = range(asked.first, asked.first + asked.cases)
    counts: Counter[str] = Counter()
    begin = said = time.monotonic()
    for found in judgements(numbers, asked.seed, wishes):
        counts[found.verdict] += 1
        if found.verdict in FINDINGS:
            _report(found, asked, wishes)
        if time.monotonic() - said > PROGRESS:
            said = time.monotonic()
            print(f"{counts.total()} of {asked.cases} in {said - begin:.0f} s: {_summary(counts)}")
    print(f"{counts.total()} cases of seed {asked.seed}: {_summary(counts)}")
    return int(any(counts[verdict] for verdict in FINDINGS))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of all cases")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--limits", action="store_true", help="limits of memory and workspace")
    parser.add_argument("--kernels", choices=("numba", "numpy"), help="default: both")
    parser.add_argument("--large", action="store_true", help="operands large enough for kernels")
    parser.add_argument("--shrink", action="store_true", help="look for smaller cases")
    return parser.parse_args()


def _summary(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())


def _report(found: Finding, asked: argparse.Namespace, wishes: Wishes) -> None:
    options = " --limits" * asked.limits
    options += " --large" * asked.large
    options += f" --kernels {asked.kernels}" if asked.kernels else ""
    case = found.case(asked.seed, wishes)
    print(f"{found.verdict}: {found.message}")
    print(f"  python -m tests.fuzz --seed {asked.seed} --first {found.item} --cases 1{options}")
    print(f"  {case}", flush=True)
    if asked.shrink:
        small = shrunk(case)
        print(f"  smaller: {small.verdict}: {small.message}\n  {small.case(0, wishes)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
