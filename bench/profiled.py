"""python -m bench.profiled SUITE CASE: one call of a case on the GPU, for a profiler to watch.

The profiler is told to begin after a first call, and to end after the second:
ncu --profile-from-start off python -m bench.profiled candidates 31 --contestant "rank 1"
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any

from bench.__main__ import DTYPES, EVERY_SUITE, compute_of
from bench.device import Run
from bench.gpu import Gpu, gpu
from bench.peers import OURS
from bench.selection import selected
from bench.suites import Choice


def main(argv: Sequence[str] | None = None) -> int:
    """Make the case, call one contestant twice."""
    asked = _parser().parse_args(argv)
    device = gpu()
    compute = compute_of(asked.suite, asked.dtype, asked.compute)
    choice = Choice({}, "fixed", asked.dtype, compute, asked.limit_gflop, None, device)
    (entry,) = selected(EVERY_SUITE[asked.suite](choice), attrgetter("id"), (asked.case,))
    watched(device, entry.make().runs[asked.contestant], import_module("cupy").cuda.profiler)
    return 0


def watched(device: Gpu, run: Run, profiler: Any) -> None:
    """A first call that nobody watches, and a second."""
    run()
    device.wait()
    profiler.start()
    run()
    device.wait()
    profiler.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.profiled", description=__doc__)
    parser.add_argument("suite", choices=sorted(EVERY_SUITE))
    parser.add_argument("case", help="the id of a case")
    parser.add_argument("--contestant", default=OURS, help="ours, or of candidates: rank 1 ...")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--compute", default="", help="minimum accuracy")
    parser.add_argument("--limit-gflop", type=float, help="scale the case down to this")
    return parser


if __name__ == "__main__":
    sys.exit(main())
