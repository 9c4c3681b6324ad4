"""The model of a GPU fitted to timed candidates: it finds a card that nobody described."""

import json
from collections.abc import Mapping
from math import log, sqrt
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as command
from bench import fit
from bench.work import Work
from contract.descriptors.operations import OperationDescriptor
from contract.machines.constants import with_constants
from contract.machines.gpu import Architecture, architecture_of
from contract.machines.machine import Identity
from contract.planner.planner import make_plan
from contract.session.model_fit import Method
from contract.storage.calibration import calibration_path, read_calibration

BUILT_IN = architecture_of(90)
CARD = with_constants(
    BUILT_IN, {"dram": 0.6 * BUILT_IN.dram, "clock": 0.8 * BUILT_IN.clock, "costs.block": 4000}
)
HERE = Identity("some card", "9.0", 132)
PRODUCTS = [
    ("mk,kn->mn", 4096),
    ("mk,kn->mn", 512),
    ("abk,kc->cab", 200),
    ("kab,ck->acb", 160),
    ("mkp,kpn->mn", 96),
    ("amk,bkn->abmn", 48),
]


def row(text: str, extent: int) -> dict[str, Any]:
    """What the card would take for every candidate of a product, in place of measured seconds."""
    extents = dict.fromkeys(set(text) - set(",->"), extent)
    work = Work("", text, extents, "float32")
    (decision,) = make_plan(work.operation, machine=CARD).considered
    named = {f"rank {at}": each for at, each in enumerate(decision.candidates)}
    named["contract"] = decision.chosen
    return {
        "case": f"{extent} {text}",
        "extents": extents,
        "seconds": {name: each.seconds for name, each in named.items()},
        "predictions": {
            name: {"algo": each.algo.name, "reason": each.reason} for name, each in named.items()
        },
    }


def numbers() -> dict[str, Any]:
    """A file of numbers, as far as it is read."""
    return {
        "dtype": "float32",
        "compute": None,
        "machine": {"gpu": HERE.device, "compute_capability": "9.0", "multiprocessors": 132},
        "rows": [row(text, extent) for text, extent in PRODUCTS],
    }


def fitted_to(folder: Path) -> Architecture | None:
    return read_calibration(calibration_path(folder, HERE), BUILT_IN, HERE)


def test_a_card_is_predicted_from_its_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times do not tell a bandwidth from the share that is reached: predictions must be right."""
    file = tmp_path / "numbers.json"
    file.write_text(json.dumps(numbers()))
    assert command.main(["fit", str(file), "--write", str(tmp_path / "kept")]) == 0
    printed = capsys.readouterr().out
    found = fitted_to(tmp_path / "kept")
    assert found is not None
    assert "left out: fitted / measured" in printed
    every = fit.predictions(found, operations())
    cases = [*fit.timed(numbers(), every.keys())]
    before = fit.predictions(BUILT_IN, operations())
    learnt = [case for case in cases if not case.left_out]
    assert (len(cases), len(learnt)) == (len(PRODUCTS), len(PRODUCTS) * 2 // 3)
    assert all(case.ratio(every) < 1.1 for case in cases)
    assert error(learnt, every) < error(learnt, before) / 3
    assert error(cases, every) < error(cases, before) / 2


def error(cases: list[fit.Timed], predicted: Mapping[Method, float]) -> float:
    """The root mean square of log(predicted / measured)."""
    times = [(predicted[key], x) for case in cases for key, x in case.seconds.items()]
    return sqrt(sum(log(found / x) ** 2 for found, x in times) / len(times))


def operations() -> list[OperationDescriptor]:
    """The products of the file."""
    extents = ((text, dict.fromkeys(set(text) - set(",->"), each)) for text, each in PRODUCTS)
    return [Work("", text, every, "float32").operation for text, every in extents]


def test_files_of_two_cards_are_not_mixed(tmp_path: Path) -> None:
    one, other = numbers(), numbers()
    other["machine"] = other["machine"] | {"gpu": "another card"}
    for at, each in enumerate((one, other)):
        (tmp_path / f"{at}.json").write_text(json.dumps(each))
    with pytest.raises(SystemExit, match="one card"):
        command.main(["fit", *(str(tmp_path / f"{at}.json") for at in range(2))])
