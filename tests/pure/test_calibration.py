"""The fitted model: it predicts what was measured, and comes back from its file or is refused."""

import json
from pathlib import Path

import pytest

from contract.descriptors.compute_types import ComputeType
from contract.descriptors.operations import (
    Contraction,
    Operand,
    PlanPreference,
    TensorDescriptor,
)
from contract.descriptors.operations import OperationDescriptor as Operation
from contract.errors import CacheFileError
from contract.machines.constants import RANGE, Fitted, constants, with_constants
from contract.machines.cpu import COMPILED, HOST, Cpu
from contract.machines.gpu import Architecture, architecture_of
from contract.machines.machine import Identity, Machine
from contract.plan.steps import Plan
from contract.planner.planner import make_plan, ranked_plans
from contract.session.model_fit import CHECKS, fitted, method
from contract.storage.calibration import calibration_path, read_calibration, write_calibration

HERE = Identity("some processor", "x86_64, numba", 2)
FACTORS = (1.5, 0.7, 2.0, 0.6, 1.3)


def hidden(cpu: Fitted) -> Fitted:
    """A machine whose constants all differ from the built-in ones."""
    values = constants(cpu).items()
    return with_constants(
        cpu, {name: value * FACTORS[at % 5] for at, (name, value) in enumerate(values)}
    )


def predictions(cpu: Cpu, like: Cpu) -> dict[object, float]:
    """What ``cpu`` predicts for the leading candidates that ``like`` has for the checks."""
    found: dict[object, float] = {}
    for operation in CHECKS:
        leading = method(next(ranked_plans(operation, PlanPreference(), like)))
        for plan in ranked_plans(operation, PlanPreference(), cpu):
            if method(plan) == leading:
                found.setdefault(leading, plan.seconds)
    return found


def test_the_fitted_model_predicts_a_machine_it_has_not_seen() -> None:
    machine, built_in = hidden(COMPILED), COMPILED

    def measured(plan: Plan) -> float:
        every = ranked_plans(plan.operation, PlanPreference(), machine)
        return next(each.seconds for each in every if method(each) == method(plan))

    found = predictions(fitted(built_in, measured), machine)
    before, wanted = predictions(built_in, machine), predictions(machine, machine)
    errors = [max(found[each] / wanted[each], wanted[each] / found[each]) for each in wanted]
    at_first = [max(before[each] / wanted[each], wanted[each] / before[each]) for each in wanted]
    assert len(wanted) == len(CHECKS)
    assert max(errors) < 1.25 < max(at_first)


def test_a_machine_as_the_model_has_it_changes_nothing() -> None:
    found = constants(fitted(COMPILED, lambda plan: plan.seconds))
    assert found == pytest.approx(constants(COMPILED), rel=1e-3)


def test_no_constant_leaves_its_range() -> None:
    found = constants(fitted(HOST, lambda plan: 1000 * plan.seconds))
    for name, value in constants(HOST).items():
        assert value / RANGE * 0.999 <= found[name] <= value * RANGE * 1.001


@pytest.mark.parametrize("machine", [COMPILED, architecture_of(90)], ids=["host", "gpu"])
def test_a_file_gives_the_fitted_model_back(tmp_path: Path, machine: Machine) -> None:
    path = calibration_path(tmp_path / "new", HERE)
    assert read_calibration(path, machine, HERE) is None
    write_calibration(path, hidden(machine), HERE)
    assert read_calibration(path, machine, HERE) == hidden(machine) != machine
    assert path.stat().st_mode & 0o077 == 0
    other = Identity("another processor", HERE.capability, 2)
    assert calibration_path(tmp_path, other) != calibration_path(tmp_path, HERE)


HOPPER = architecture_of(90)
SINGLE, DOUBLE, HALF = "float32", "float64", "bfloat16"
TF32 = ComputeType.TF32


def contraction(
    text: str, extent: int, dtype: str, compute: ComputeType | None = None
) -> Operation:
    """Packed tensors whose modes all have one extent."""
    *terms, output = text.replace("->", ",").split(",")

    def operand(modes: str) -> Operand:
        return Operand(TensorDescriptor((extent,) * len(modes), None, dtype, 16), tuple(modes))

    return Contraction(tuple(map(operand, terms)), operand(output), compute=compute)


# Bound by launches, arithmetic, L2, memory; scattered results; long sums; cuBLAS's units.
ASKED = (
    contraction("mk,kn->mn", 16, SINGLE),
    contraction("mk,kn->mn", 2048, SINGLE),
    *(contraction("mk,kn->mn", 8192, dtype) for dtype in (SINGLE, DOUBLE, HALF)),
    contraction("mk,kn->mn", 8192, SINGLE, TF32),
    contraction("mpk,kn->mpn", 256, HALF),
    contraction("mpk,qkn->nmqp", 48, HALF),
    contraction("mkpq,kpqn->mn", 64, DOUBLE),
)


def every_prediction(gpu: Architecture) -> list[float]:
    """The seconds of all candidates."""
    return [
        each.seconds
        for operation in ASKED
        for each in make_plan(operation, machine=gpu).considered[0].candidates
    ]


@pytest.mark.parametrize("name", constants(HOPPER))
def test_every_constant_of_a_gpu_tells_in_predictions(name: str) -> None:
    changed = with_constants(HOPPER, {name: constants(HOPPER)[name] * 0.3})
    assert sorted(every_prediction(changed)) != sorted(every_prediction(HOPPER))


def test_files_of_others_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    path = calibration_path(tmp_path, HERE)
    write_calibration(path, hidden(COMPILED), HERE)
    good = json.loads(path.read_text())
    first, *rest = good["constants"]
    refused = {
        "another machine": good | {"identity": good["identity"] | {"units": 64}},
        "another library version": good | {"version": "0"},
        "damaged: the constants are": good | {"constants": rest},
        f"damaged: {first['name']} is 1e-30": good
        | {"constants": [first | {"value": 1e-30}, *rest]},
        "has the fields": {"version": good["version"]},
        "a finite number": good | {"constants": [first | {"value": "1"}, *rest]},
    }
    for reason, document in refused.items():
        path.write_text(json.dumps(document))
        with pytest.raises(CacheFileError, match=reason):
            read_calibration(path, COMPILED, HERE)
    path.write_text("{")
    with pytest.raises(CacheFileError, match="not JSON"):
        read_calibration(path, COMPILED, HERE)
