"""Advice on operations: each kind where it is due, and none where it is not."""

import re
from typing import Any

import pytest

from contract.descriptors.compute_types import ComputeType
from contract.descriptors.operations import (
    Algo,
    Contraction,
    ElementwiseOperation,
    Operand,
    TensorDescriptor,
)
from contract.explain.advice import Advice, Subject, advise
from contract.explain.report import information, tuning_text
from contract.machines.cpu import HOST
from contract.machines.gpu import architecture_of
from contract.plan.steps import Plan
from contract.planner.planner import PlanPreference, make_plan

SM60, SM90 = architecture_of(60), architecture_of(90)


def tensor(*extents: int, **options: Any) -> TensorDescriptor:
    return TensorDescriptor(extents, **{"dtype": "float32", "alignment": 16, **options})


def product(text: str, *tensors: TensorDescriptor, **options: Any) -> Contraction:
    (*inputs, output) = text.replace("->", ",").split(",")
    operands = [Operand(t, modes) for t, modes in zip(tensors, inputs, strict=False)]
    return Contraction(tuple(operands), Operand(tensors[-1], output), **options)


def permutation(source: TensorDescriptor, target: TensorDescriptor, text: str) -> Any:
    before, after = text.split("->")
    return ElementwiseOperation((Operand(source, before),), Operand(target, after))


def about(plan: Plan, machine: Any, subject: Subject) -> list[str]:
    return [each.text for each in advise(plan, machine) if each.subject is subject]


SQUARE = tensor(4096, 4096)
GOOD = product("mk,kn->mn", SQUARE, SQUARE, SQUARE, compute=ComputeType.TF32)


def test_nothing_is_wrong_with_a_matrix_product() -> None:
    few = {Subject.TUNING}  # candidates may be close whatever the operands
    for machine in (HOST, SM90):
        assert {each.subject for each in advise(make_plan(GOOD, None, machine), machine)} <= few


@pytest.mark.parametrize("machine", [HOST, SM90], ids=["host", "9.0"])
def test_permutations_that_cost_more_than_the_product(machine: Any) -> None:
    """Eight multiply-adds for an element of D, which is copied because b and c change places."""
    operation = product("abk,kcd->acbd", tensor(64, 64, 8), tensor(8, 64, 64), tensor(*[64] * 4))
    plan = make_plan(operation, PlanPreference(algo=Algo.TTGT), machine)
    (text,) = about(plan, machine, Subject.PERMUTATIONS)
    number = r"[\d.]+ \w+"
    times = f"of a predicted {number} permutations take {number}, the product {number}"
    assert re.match(f"{times}: store D with modes abcd, the fastest first", text), text
    thick = product(
        *("abk,kcd->acbd", tensor(64, 64, 4096), tensor(4096, 64, 64), tensor(64, 64, 64, 64))
    )
    plan = make_plan(thick, PlanPreference(algo=Algo.TTGT), machine)
    assert not about(plan, machine, Subject.PERMUTATIONS)


@pytest.mark.parametrize(("machine", "line"), [(HOST, 64), (SM90, 128)], ids=["host", "9.0"])
def test_a_fastest_mode_that_is_too_short(machine: Any, line: int) -> None:
    def plan(short: int) -> Plan:
        source, target = tensor(short, 5000, 2000), tensor(5000, short, 2000)
        return make_plan(permutation(source, target, "abc->bac"), None, machine)

    (text,) = about(plan(line // 8), machine, Subject.FASTEST_MODE)
    assert text.startswith(f"T0 is met in runs of {line // 8} elements, {line // 2} of the {line}")
    assert not about(plan(line // 4), machine, Subject.FASTEST_MODE)


def test_gaps() -> None:
    apart = tensor(4000, 4000, strides=(3, 12000))
    close = tensor(4000, 4000, strides=(1, 12000))
    target = tensor(4000, 4000)
    (text,) = about(make_plan(permutation(apart, target, "ab->ab")), HOST, Subject.GAPS)
    assert "T0 lie closer than 3 to each other" in text
    assert "64000000 bytes" in text
    assert not about(make_plan(permutation(close, target, "ab->ab")), HOST, Subject.GAPS)


@pytest.mark.parametrize("machine", [HOST, SM90], ids=["host", "9.0"])
def test_batched_modes(machine: Any) -> None:
    slow = product("mkl,knl->mnl", *[tensor(512, 512, 64)] * 3)
    fast = product("lmk,knl->mnl", tensor(64, 512, 512), *[tensor(512, 512, 64)] * 2)
    (text,) = about(make_plan(fast, None, machine), machine, Subject.BATCH)
    assert text.startswith("T0 has stride 1 for the batched mode l, 32768 for mode k of its matric")
    assert not about(make_plan(slow, None, machine), machine, Subject.BATCH)


def test_alignment() -> None:
    odd = product("mk,kn->mn", SQUARE, tensor(4096, 4096, alignment=4), SQUARE)
    (text,) = about(make_plan(odd, None, SM90), SM90, Subject.ALIGNMENT)
    assert text.startswith("T1 is aligned to 4 bytes, and accesses of 16 need")
    assert not about(make_plan(odd), HOST, Subject.ALIGNMENT)


def test_tf32() -> None:
    exact = product("mk,kn->mn", *[SQUARE] * 3)
    (text,) = about(make_plan(exact, None, SM90), SM90, Subject.TF32)
    times = re.match(r"32F takes ([\d.]+) ms, TF32 ([\d.]+) (?:ms|us) \(predicted\)", text)
    assert times, text
    forbidden = SM90.without_tf32()
    for machine in (SM60, forbidden):
        assert not about(make_plan(exact, None, machine), machine, Subject.TF32)
    assert not about(make_plan(exact), HOST, Subject.TF32)
    small = product("mk,kn->mn", *[tensor(8, 8)] * 3)
    assert not about(make_plan(small, None, SM90), SM90, Subject.TF32)


def test_candidates_worth_measuring() -> None:
    large = product("mk,kn->mn", *[tensor(500, 500)] * 3)
    plan = make_plan(large, None, SM90)
    best = plan.seconds
    close = sum(each.seconds <= 1.2 * best for each in plan.considered[0].candidates)
    texts = about(plan, SM90, Subject.TUNING)
    assert close >= 3
    assert texts[0].startswith(
        f"{close} of {len(plan.considered[0].candidates)} candidates are predicted"
    )
    for other in (GOOD, product("mk,kn->mn", *[tensor(8, 8)] * 3)):
        assert not about(make_plan(other, None, SM90), SM90, Subject.TUNING)


def test_advice_is_printed_with_its_subject() -> None:
    assert str(Advice(Subject.TF32, "so much")) == "TF32: so much"


# --- information --------------------------------------------------------------------------------


def lines(operation: Any, machine: Any, **preference: Any) -> list[str]:
    plan = make_plan(operation, PlanPreference(**preference), machine)
    return list(information(plan, machine, 77, ("a tile",)))


def test_every_candidate_has_a_line() -> None:
    plan = make_plan(GOOD, None, SM90)
    first, *rest = lines(GOOD, SM90)
    assert first.startswith("planned Contraction mk,kn->mn f32[4096,4096]:[1,4096],")
    assert first.endswith("workspace 77 bytes")
    assert sum(": chosen " in line for line in rest) == 1
    assert (
        sum(": candidate " in line for line in rest)
        == min(len(plan.considered[0].candidates), 12) - 1
    )
    assert "kernel: a tile" in rest


DOUBLE = tensor(256, 256, dtype="float64")


@pytest.mark.parametrize(
    ("compute", "each", "machine", "algo", "why"),
    [
        (ComputeType.TF32, SQUARE, HOST, Algo.GEMM, "TF32 computes in float32: the host has no"),
        (ComputeType.TF32, SQUARE, SM60, Algo.GETT, "no tensor cores of compute capability 6.0"),
        (ComputeType.TF32, SQUARE, SM60, Algo.GEMM, "cuBLAS computes 32F"),
        (ComputeType.TF32, SQUARE, SM90, Algo.GETT, None),
        (ComputeType.TF32, SQUARE, SM90, Algo.GEMM, None),
        (ComputeType.TF32X3, SQUARE, SM90, Algo.GEMM, "3XTF32 computes in float32: cuBLAS"),
        (ComputeType.F32, SQUARE, SM90, Algo.GEMM, None),
        (ComputeType.INT8X8, DOUBLE, SM60, Algo.GEMM, "the architecture has no 8-bit tensor cores"),
        (ComputeType.INT8X8, DOUBLE, SM90, Algo.GETT, "slices of 8 bits do not gain enough"),
    ],
)
def test_a_unit_that_is_not_used_has_a_reason(
    compute: ComputeType, each: TensorDescriptor, machine: Any, algo: Algo, why: str | None
) -> None:
    operation = product("mk,kn->mn", each, each, each, compute=compute)
    found = [line for line in lines(operation, machine, algo=algo) if " computes in " in line]
    assert len(found) == (why is not None)
    assert all(str(why) in line for line in found)


def test_what_tuning_found() -> None:
    plans = [make_plan(GOOD, PlanPreference(kernel_rank=rank), SM90) for rank in range(2)]
    text = tuning_text(plans, plans[1], 1e-3)
    assert text.startswith("tuned: candidate 2 of 2 stays, 1 ms, ")
