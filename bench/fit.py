"""python -m bench fit FILES: the constants of a GPU's model, fitted to candidates timed on it.

FILES are numbers of `python -m bench candidates --device gpu --json FILE`. Every third case is left
out of the fit: what both models would choose there says whether the fitted one is better. With
--write DIR its constants go where the planner finds them (CONTRACT_CALIBRATION).
"""

import argparse
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.counted import mean, measured_cases, spread
from contract.descriptors.operations import OperationDescriptor
from contract.machines.constants import constants
from contract.machines.gpu import Architecture, architecture_of
from contract.machines.machine import Identity
from contract.session.model_fit import Method, fitted_to, predictions
from contract.storage.calibration import calibration_path, write_calibration
from contract.support.text import aligned

LEFT_OUT = 3  # every third case, by its place in a file


@dataclass(frozen=True, slots=True)
class Timed:
    """A product of a file, the seconds of its candidates, and whether it is left out of the fit."""

    name: str
    operation: OperationDescriptor
    seconds: Mapping[Method, float]
    left_out: bool

    def of_both(self, before: Mapping[Method, float], after: Mapping[Method, float]) -> "Timed":
        """With the candidates alone that both models have: parts of sums depend on constants."""
        both = {k: x for k, x in self.seconds.items() if k in before and k in after}
        return replace(self, seconds=both)

    def ratio(self, predicted: Mapping[Method, float]) -> float:
        """The time of what is predicted to be quickest, in that of the quickest."""
        return self.seconds[self.choice(predicted)] / min(self.seconds.values())

    def choice(self, predicted: Mapping[Method, float]) -> Method:
        """What is predicted to be quickest, of what was measured."""
        return min(self.seconds, key=predicted.__getitem__)


def timed(numbers: Mapping[str, Any], known: Collection[Method]) -> Iterator[Timed]:
    """The products of a file with two candidates or more that the planner still has."""
    for at, case in enumerate(measured_cases(numbers)):
        operation = case.work.operation
        every = {
            key: seconds
            for (algo, reason), seconds in (case.measured or {}).items()
            for key in known
            if key[0] == operation and (key[1].name, key[2]) == (algo, reason)
        }
        if len(every) > 1:
            name = f"{case.work.name} {numbers['dtype']} {numbers['compute'] or ''}".strip()
            yield Timed(name, operation, every, at % LEFT_OUT == LEFT_OUT - 1)


def main(arguments: Sequence[str]) -> int:
    """Print both models, and what they would choose; the exit status is 1 if the fit is worse."""
    asked = _parser().parse_args(arguments)
    files = [json.loads(each.read_text()) for each in asked.files]
    card, *others = {card_of(each) for each in files}
    if others:
        raise SystemExit(f"The numbers are not of one card: {card}, {others[0]}.")
    built_in = architecture_of(int(card.capability.replace(".", "")))
    operations = [case.work.operation for each in files for case in measured_cases(each)]
    before = predictions(built_in, operations)
    cases = [case for each in files for case in timed(each, before.keys())]
    learnt = [case for case in cases if not case.left_out]
    machine = fitted_to(built_in, {k: s for case in learnt for k, s in case.seconds.items()})
    after = predictions(machine, operations)
    cases = [case.of_both(before, after) for case in cases]
    print("\n".join(aligned([("constant", "built in", "fitted"), *rows(built_in, machine)])))
    print("\n".join(report(cases, before, after)))
    kept = [case for case in cases if case.left_out]
    better = lost(kept, after) <= lost(kept, before)
    if asked.write and better:
        path = calibration_path(asked.write, card)
        write_calibration(path, machine, card)
        print(f"kept in {path}")
    return 0 if better else 1


def card_of(numbers: Mapping[str, Any]) -> Identity:
    """The card on which a file was measured."""
    machine = numbers["machine"]
    return Identity(machine["gpu"], machine["compute_capability"], machine["multiprocessors"])


# --- what is printed --------------------------------------------------------------------------


def rows(before: Architecture, after: Architecture) -> Iterator[tuple[str, str, str]]:
    """Every constant of both models."""
    found = constants(after)
    for name, value in constants(before).items():
        yield name, f"{value:.4g}", f"{found[name]:.4g}"


def report(
    cases: Sequence[Timed], before: Mapping[Method, float], after: Mapping[Method, float]
) -> Iterator[str]:
    """What both models choose, in the cases that were fitted to and in the others."""
    for what, some in (
        ("fitted to", [case for case in cases if not case.left_out]),
        ("left out", [case for case in cases if case.left_out]),
    ):
        for name, predicted in (("built in", before), ("fitted", after)):
            every = [predicted[k] / x for case in some for k, x in case.seconds.items()]
            yield f"{what}: {spread(name, every)}"
            worst = max(case.ratio(predicted) for case in some) - 1
            slower = f"{lost(some, predicted):.1%} slower than the best, worst {worst:.0%}"
            yield f"  chosen in {len(some)} cases {slower}"
    for case in cases:
        old, new = case.choice(before), case.choice(after)
        if old != new:
            gain = case.seconds[old] / case.seconds[new]
            yield f"{case.name}: {text(old)} -> {text(new)}: {gain:.2f} times as fast"


def text(of: Method) -> str:
    """A candidate in words."""
    return f"{of[1].name} {of[2]}"


def lost(cases: Iterable[Timed], predicted: Mapping[Method, float]) -> float:
    """By how much what is chosen is slower than the best, in the geometric mean."""
    return mean(case.ratio(predicted) for case in cases) - 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench fit", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="numbers of candidates on one card")
    parser.add_argument("--write", type=Path, help="the folder of fitted models")
    return parser
