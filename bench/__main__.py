"""python -m bench SUITE: run a suite, print its table, keep its numbers.

python -m bench candidates: the planner's candidates, predicted and measured.
python -m bench kernels: the GPU's kernels, as the compiler leaves them.
python -m bench fit: the constants of a GPU's model, fitted to its candidates.
python -m bench programs: programs of other libraries, by NumPy and by us.
python -m bench planning: what a first call takes beyond a later one.
python -m bench busy: some of the suites beside busy processes.
python -m bench first: the first calls of fresh processes, and how long they take.
"""

import argparse
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import nan
from operator import attrgetter
from pathlib import Path

from bench import busy, first, fit, kernels, planning, programs
from bench.candidates import PLANS, candidates
from bench.device import HOST, Ceilings, Device
from bench.gpu import gpu
from bench.measure import Facts, Outcome, Row, described, measure
from bench.overheads import OVERHEADS
from bench.peers import OURS, PEERS, Peers, default_peers, find_peers
from bench.report import CONTESTANTS, Run, Table, draw, rates, write_json
from bench.selection import names_in, selected
from bench.suites import SUITES, Choice, Entry
from contract.descriptors.compute_types import ComputeType, Family, rule
from contract.errors import UnsupportedTypeError

DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
QUICK_GFLOP = 0.05  # of a contraction with --quick
QUICK_BYTES = 256 << 20  # of the expressions that users reported
QUICK_CASES = 12
WITHOUT_COMPUTE = ("permute", "overhead")  # suites of calls that are made without one
EVERY_SUITE = {**SUITES, "candidates": candidates}
OWN = {
    "busy": busy.main,
    "first": first.main,
    "fit": fit.main,
    "kernels": kernels.main,
    "planning": planning.main,
    "programs": programs.main,
}
TABLES = {"candidates": PLANS, "overhead": OVERHEADS}  # of suites that have one of their own


def main(argv: Sequence[str] | None = None) -> int:
    """Run one suite; the exit status is 1 if any result was wrong or is missing."""
    arguments = tuple(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in OWN:
        return OWN[arguments[0]](arguments[1:])
    os.environ.setdefault("CONTRACT_COMPILE", "wait")  # what is timed is compiled
    asked = _parser().parse_args(arguments)
    compute = compute_of(asked.suite, asked.dtype, asked.compute)
    device = HOST if asked.device == "host" else gpu(asked.cutensor)
    peers = peers_of(asked, device, compute)
    entries = entries_of(asked, choice_of(asked, device, compute, peers))
    before = ceilings_of("ceilings", asked, device, compute)
    asked_for = (asked.suite, asked.mode, asked.dtype, repeat_of(asked), arguments)
    run = Run(*asked_for, device, before, peers.versions, peers.missing, compute=asked.compute)
    title = f"{asked.suite} {kind_of(asked)} {asked.mode}"
    table = TABLES.get(asked.suite, CONTESTANTS)
    for row in measured(entries, device, before, run.repeat, title, table):
        run = replace(run, rows=(*run.rows, row))
        keep(asked.json, run)
    print(table.summary(run.rows))
    whole = len(run.rows) == len(entries)
    if whole:
        after = ceilings_of("ceilings afterwards", asked, device, compute)
        keep(asked.json, replace(run, after=after))
    if asked.plot and before:
        draw(asked.plot, title, run.rows, before)
    return 0 if whole and not any(row.failures for row in run.rows) else 1


def peers_of(asked: Namespace, device: Device, compute: ComputeType | None) -> Peers:
    """The peers that are named, or the suite's; a line for each that is missing.

    Candidates have none but themselves.
    """
    names = names_in(asked.peers) or default_peers(device.name, asked.suite)
    names = () if asked.suite == "candidates" else names
    found = find_peers(names, device.name, compute, asked.dtype)
    for name, why in found.missing.items():
        print(f"missing: {name}: {why}")
    return found


def choice_of(
    asked: Namespace, device: Device, compute: ComputeType | None, peers: Peers
) -> Choice:
    """What a suite is told; --quick makes its cases smaller."""
    quick = (QUICK_GFLOP, QUICK_BYTES) if asked.quick else (None, None)
    gflop = quick[0] if asked.limit_gflop is None else asked.limit_gflop
    return Choice(peers.found, asked.mode, asked.dtype, compute, gflop, quick[1], device)


def entries_of(asked: Namespace, choice: Choice) -> list[Entry]:
    """The cases of the suite that are asked for."""
    every = EVERY_SUITE[asked.suite](choice)
    entries = selected(every, attrgetter("id"), names_in(asked.cases))
    return thinned(entries) if asked.quick else entries


def ceilings_of(
    when: str, asked: Namespace, device: Device, compute: ComputeType | None
) -> Ceilings | None:
    """Both ceilings, measured now and printed; None where nothing is timed."""
    if asked.check:
        return None
    found = device.ceilings(asked.dtype, compute)
    print(f"{when}: {rates(found, kind_of(asked))}")
    return found


def repeat_of(asked: Namespace) -> int:
    """Samples of each contestant; 0 where nothing is timed."""
    return 0 if asked.check else int(asked.repeat)


def kind_of(asked: Namespace) -> str:
    """The type of the data, and the compute type where one is asked for."""
    return f"{asked.dtype} {asked.compute}".rstrip()


def keep(path: Path | None, run: Run) -> None:
    """Write the numbers so far: a run may be stopped."""
    if path:
        write_json(path, run)


def compute_of(suite: str, dtype: str, name: str) -> ComputeType | None:
    """The compute type of this name; SystemExit where the suite or the data's type has it not."""
    if not name:
        return None
    if suite in WITHOUT_COMPUTE:
        raise SystemExit(f"Compute types are of contractions: {suite} has none.")
    try:
        return rule(Family.CONTRACTION, (dtype, dtype), dtype, ComputeType(name)).compute
    except UnsupportedTypeError as error:
        raise SystemExit(str(error)) from error


def thinned(entries: Sequence[Entry]) -> list[Entry]:
    """Few entries from everywhere in the suite."""
    return list(entries[:: -(-len(entries) // QUICK_CASES)])


def measured(
    entries: Sequence[Entry],
    device: Device,
    found: Ceilings | None,
    repeat: int,
    title: str,
    table: Table = CONTESTANTS,
) -> Iterator[Row]:
    """Each entry made, measured and printed in turn; its operands are freed before the next.

    It ends early where the device is lost.
    """
    for at, entry in enumerate(entries):
        progress(f"{at + 1}/{len(entries)} {entry.id}")
        row = row_of(entry, device, found, repeat)
        progress("")
        if at == 0:
            print(table.header(title, list(row.outcomes)))
        print(table.line(row), flush=True)
        yield row
        if row.failures and device.lost():
            print(f"The device is lost: {len(entries) - at - 1} cases are left out.")
            return
        device.release()


def row_of(entry: Entry, device: Device, found: Ceilings | None, repeat: int) -> Row:
    """The entry's row; an exception outside of the first calls makes it a failed one of ours."""
    try:
        return measure(entry.make(), found, repeat, device)
    except Exception as error:
        return Row(Facts(entry.id), {OURS: Outcome(nan, failure=described(error))}, nan, nan)


def progress(text: str) -> None:
    """One line on a terminal, overwritten by the next; nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r{text:<60}\r", end="", file=sys.stderr, flush=True)


def _repeat(text: str) -> int:
    count = int(text)
    if count < 5:
        raise argparse.ArgumentTypeError("a median takes at least 5 samples")
    return count


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("suite", choices=sorted(EVERY_SUITE))
    parser.add_argument("--device", choices=("host", "gpu"), default="host")
    parser.add_argument(
        "--peers", default="", help="of " + "; ".join(map(",".join, PEERS.values()))
    )
    parser.add_argument("--cutensor", type=Path, help="the folder of libcutensor.so.2")
    parser.add_argument("--cases", default="", help="ids of cases (the first word of their rows)")
    parser.add_argument("--dtype", default="float64", choices=DTYPES)
    parser.add_argument(
        "--compute",
        default="",
        choices=[each.value for each in ComputeType],
        help="minimum accuracy",
    )
    parser.add_argument("--mode", choices=("fixed", "free"), default="fixed")
    parser.add_argument("--repeat", type=_repeat, default=5, help="samples per contestant, >= 5")
    parser.add_argument("--limit-gflop", type=float, help="scale cases down to this")
    parser.add_argument(
        "--quick", action="store_true", help="few and small cases, to see what a change did"
    )
    parser.add_argument(
        "--check", action="store_true", help="results only: nothing is timed, for a busy machine"
    )
    parser.add_argument("--json", type=Path, help="write the numbers")
    parser.add_argument("--plot", type=Path, help="draw the ratios and a roofline (.png, .svg)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
