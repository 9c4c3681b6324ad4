"""Kernels with their extents as constants: the same numbers, from code without divisions."""

from dataclasses import replace

import numpy as np
import pytest

import contract as ct
from contract.device.kernels.lowering import lower
from contract.machines.gpu import architecture_of
from contract.machines.gpu_kernels import TensorTile
from contract.plan.steps import Gett, Plan
from contract.planner.device.launch import KernelCall
from contract.planner.planner import make_plan

from . import nvrtc
from .device import Device
from .launching import FLAGS, run_call

HOPPER = architecture_of(90)
JIT = ct.PlanPreference(algo=ct.Algo.DEFAULT, jit_mode=ct.JitMode.DEFAULT)


def operand(modes: str, extents: dict[str, int], dtype: str = "float32") -> ct.Operand:
    return ct.Operand(ct.TensorDescriptor([extents[x] for x in modes], None, dtype, 16), modes)


def product(text: str, compute: str, preference: ct.PlanPreference = JIT) -> Plan:
    """By the CUDA cores, or for TF32 by the best tile of the tensor cores."""
    extents = {"a": 20, "b": 7, "c": 33, "k": 5, "q": 9, "n": 12}
    inputs, output = text.split("->")
    a, b = (operand(modes, extents) for modes in inputs.split(","))
    made = ct.Contraction((a, b), operand(output, extents), compute=ct.ComputeType(compute))
    wanted = replace(preference, algo=ct.Algo.GETT)
    plans = (make_plan(made, replace(wanted, kernel_rank=rank), HOPPER) for rank in range(6))
    return next(plan for plan in plans if by_tensor_cores(plan) is (compute == "TF32"))


def by_tensor_cores(plan: Plan) -> bool:
    shares = [step.blocking for step in plan.steps if isinstance(step, Gett)]
    return any(share is not None and isinstance(share.tile, TensorTile) for share in shares)


def permutation(preference: ct.PlanPreference = JIT) -> Plan:
    extents = {"a": 20, "b": 7, "c": 33}
    made = ct.ElementwiseOperation((operand("abc", extents),), operand("cab", extents))
    return make_plan(made, preference, architecture_of(90))


def reduction(preference: ct.PlanPreference = JIT) -> Plan:
    extents = {"a": 20, "b": 7, "c": 33, "k": 5}
    made = ct.Reduction((operand("akcb", extents),), operand("cb", extents))
    return make_plan(made, preference, architecture_of(90))


def found(device: Device, plan: Plan) -> bytes:
    """The result's bytes, for inputs that depend on the plan's shapes only."""
    rng = np.random.default_rng(0)
    sizes = [int(np.prod(slot.tensor.extents)) for slot in plan.slots]
    slots = [device.upload(rng.random(size, "f4")) for size in sizes[: plan.inputs]]
    slots.append(device.allocate(4 * sizes[plan.output]))
    for step in plan.steps:
        calls = lower(plan, step, HOPPER)
        scratch = device.allocate(max(call.scratch for call in calls))  # type: ignore[union-attr]
        for call in calls:
            run_call(device, call, slots, (3, 0, 0), scratch)
        scratch.free()
    made = slots[plan.output].download("f4").tobytes()
    for memory in slots:
        memory.free()
    return bytes(made)


PLANS = {
    "cores": lambda preference: product("akbq,qkcn->cban", "32F", preference),
    "tensor cores": lambda preference: product("akbq,qkcn->cban", "TF32", preference),
    "permutation": permutation,
    "reduction": reduction,
}


@pytest.mark.parametrize("name", PLANS)
def test_the_same_bits(device: Device, name: str) -> None:
    baked, usual = PLANS[name](JIT), PLANS[name](ct.PlanPreference())
    assert found(device, baked) == found(device, usual)
    calls = [lower(plan, plan.steps[0], HOPPER)[0] for plan in (baked, usual)]
    assert "define CONTRACT_BAKED" in code(calls[0])
    assert "define CONTRACT_BAKED" not in code(calls[1])


def code(call: object) -> str:
    assert isinstance(call, KernelCall)
    return call.source


def test_nothing_is_divided_by_a_variable(device: Device) -> None:
    """All that is left of the arguments are pointers and scalars."""
    read = {}
    for preference in (JIT, ct.PlanPreference()):
        plan = product("akbq,qkcn->cban", "32F", preference)
        (call,) = lower(plan, plan.steps[0], HOPPER)
        text = nvrtc.compile_ptx(code(call), "sm_90", FLAGS).text
        read[preference.jit_mode] = text.count("ld.param")
    assert read[ct.JitMode.DEFAULT] <= 8 < read[ct.JitMode.NONE]


def test_another_extent_is_another_kernel() -> None:
    first, second = (
        lower(plan, plan.steps[0], HOPPER)[0]
        for plan in (
            product("akbq,qkcn->cban", "32F"),
            product("akbq,qncb->kna", "32F"),
        )
    )
    assert code(first) != code(second)


def test_the_mode_is_checked() -> None:
    with pytest.raises(ct.InvalidValueError, match="jit_mode"):
        ct.PlanPreference(jit_mode="default")  # type: ignore[arg-type]
