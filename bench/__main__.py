"""python -m bench SUITE: run a suite, print its table, keep its numbers."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.measure import Ceilings, Row, ceilings, measure
from bench.peers import DEFAULT
from bench.report import Run, draw, header, line, rates, summary, write_json
from bench.suites import SUITES, Choice, Entry

DTYPES = ("float32", "float64", "complex64", "complex128")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one suite; the exit status is 1 if any result was wrong."""
    arguments = tuple(sys.argv[1:] if argv is None else argv)
    asked = _parser().parse_args(arguments)
    choice = Choice(_names(asked.peers), asked.mode, asked.dtype, asked.limit_gflop)
    entries = chosen(SUITES[asked.suite](choice), _names(asked.cases))
    threads = len(os.sched_getaffinity(0))
    before = ceilings(asked.dtype, threads)
    print(f"ceilings: {rates(before, asked.dtype)}")
    title = f"{asked.suite} {asked.dtype} {asked.mode}"
    rows = tuple(measured(entries, before, asked.repeat, title))
    after = ceilings(asked.dtype, threads)
    print(summary(rows))
    print(f"ceilings afterwards: {rates(after, asked.dtype)}")
    if asked.json:
        fixed = (asked.suite, asked.mode, asked.dtype, asked.repeat, arguments)
        write_json(asked.json, Run(*fixed, rows, before, after))
    if asked.plot:
        draw(asked.plot, title, rows)
    return 1 if any(row.failures for row in rows) else 0


def chosen(entries: Sequence[Entry], ids: Sequence[str]) -> list[Entry]:
    """The entries with these ids, all where none is named; SystemExit for an unknown id."""
    known = [entry.id for entry in entries]
    unknown = sorted(set(ids) - set(known))
    if unknown:
        raise SystemExit(f"Unknown cases {', '.join(unknown)}: known are {', '.join(known)}.")
    return [entry for entry in entries if not ids or entry.id in ids]


def measured(entries: Sequence[Entry], found: Ceilings, repeat: int, title: str) -> Iterator[Row]:
    """Each entry made, measured and printed in turn; its operands are freed before the next."""
    for at, entry in enumerate(entries):
        progress(f"{at + 1}/{len(entries)} {entry.id}")
        row = measure(entry.make(), found, repeat)
        progress("")
        if at == 0:
            print(header(title, list(row.outcomes)))
        print(line(row), flush=True)
        yield row


def progress(text: str) -> None:
    """One line on a terminal, overwritten by the next; nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r{text:<60}\r", end="", file=sys.stderr, flush=True)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _repeat(text: str) -> int:
    count = int(text)
    if count < 5:
        raise argparse.ArgumentTypeError("a median takes at least 5 samples")
    return count


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--peers", default=",".join(DEFAULT), help="of numpy,opt_einsum,torch,...")
    parser.add_argument("--cases", default="", help="ids of cases (the first word of their rows)")
    parser.add_argument("--dtype", default="float64", choices=DTYPES)
    parser.add_argument("--mode", choices=("fixed", "free"), default="fixed")
    parser.add_argument("--repeat", type=_repeat, default=5, help="samples per contestant, >= 5")
    parser.add_argument("--limit-gflop", type=float, default=8.0, help="scale cases down to this")
    parser.add_argument("--json", type=Path, help="write the numbers")
    parser.add_argument("--plot", type=Path, help="draw the ratios")
    return parser


if __name__ == "__main__":
    sys.exit(main())
