"""python -m bench SUITE: run a suite, print its table, keep its numbers."""

import argparse
import os
import sys
from pathlib import Path

from bench.measure import Row, ceilings, measure, measure_short
from bench.peers import DEFAULT, contestants
from bench.report import draw, header, line, summary, write_json
from bench.suites import SHORT, SUITES, Choice


def main(argv: list[str] | None = None) -> int:
    """Run one suite; the exit status is 1 if any result was wrong."""
    options = _parser().parse_args(argv)
    peers = tuple(name for name in options.peers.split(",") if name)
    choice = Choice(
        contestants(peers, options.mode),
        options.dtype,
        options.limit_gflop,
        frozenset(name for name in options.cases.split(",") if name),
    )
    found = ceilings(options.dtype, len(os.sched_getaffinity(0)))
    print(f"{found.flops / 1e9:.1f} GFLOP/s {options.dtype}, {found.bandwidth / 1e9:.1f} GB/s copy")
    rows: list[Row] = []
    for case in SUITES[options.suite](choice):
        if not rows:
            print(header(f"{options.suite} ({options.mode})", list(case.runs)))
        if sys.stderr.isatty():
            print(f"\r{case.name[:60]:<60}\r", end="", file=sys.stderr, flush=True)
        short = options.suite in SHORT
        row = measure_short(case, options.repeat) if short else measure(case, found, options.repeat)
        rows.append(row)
        print(line(row), flush=True)
    print(summary(rows))
    if options.json:
        write_json(options.json, options.suite, rows, found)
    if options.plot:
        draw(options.plot, options.suite, rows)
    return 1 if any(row.failed for row in rows) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--peers", default=",".join(DEFAULT), help="numpy,opt_einsum,torch,...")
    parser.add_argument("--cases", default="", help="names or numbers of cases; all if not given")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--mode", choices=("fixed", "free"), default="fixed")
    parser.add_argument("--repeat", type=int, default=5, help="samples per contestant")
    parser.add_argument("--limit-gflop", type=float, default=8.0, help="scale cases down to this")
    parser.add_argument("--json", type=Path, help="write the numbers")
    parser.add_argument("--plot", type=Path, help="draw the ratios")
    return parser


if __name__ == "__main__":
    sys.exit(main())
