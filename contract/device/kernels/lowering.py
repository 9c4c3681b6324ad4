"""Steps -> launches: what each step of a plan becomes on a GPU."""

from dataclasses import replace
from typing import assert_never

from contract.descriptors.compute_types import ComputeType
from contract.descriptors.operations import JitMode
from contract.device.kernels.elementwise import elementwise_calls
from contract.device.kernels.gett import gett_calls
from contract.device.kernels.hopper import hopper_calls
from contract.device.kernels.jit import baked
from contract.device.kernels.reduce import reduce_calls
from contract.device.kernels.slices import slice_calls, slices_gain
from contract.machines.gpu import Architecture
from contract.machines.gpu_tiles import HopperShare, Share
from contract.plan.steps import (
    Elementwise,
    Gemm,
    Gett,
    Kind,
    Permute,
    Plan,
    Reduce,
    Source,
    Step,
    View,
)
from contract.planner.device.cublas import blas_calls
from contract.planner.device.launch import DeviceCall, KernelCall

__all__ = ["lower"]


def lower(plan: Plan, step: Step, architecture: Architecture) -> tuple[DeviceCall, ...]:
    """The launches that do one step, in order; none where there is nothing to write."""
    calls = _calls(plan, step, architecture)
    if plan.preference.jit_mode is JitMode.NONE:
        return calls
    return tuple(baked(call) if isinstance(call, KernelCall) else call for call in calls)


def _calls(plan: Plan, step: Step, architecture: Architecture) -> tuple[DeviceCall, ...]:
    match step:
        case Gemm(compute=ComputeType.INT8X8) if slices_gain(plan, step, architecture):
            return slice_calls(plan, step, architecture)
        case Gemm():
            before = _addend_in_place(plan, step, architecture)
            return (*before, *blas_calls(plan, step, architecture))
        case Gett(compute=ComputeType.INT8X8):
            return slice_calls(plan, step, architecture)
        case Gett():
            return _product(plan, step, architecture)
        case Permute() | Elementwise():
            return elementwise_calls(plan, step, architecture)
        case Reduce():
            return reduce_calls(plan, step, architecture)
    assert_never(step)


def _product(plan: Plan, step: Gett, architecture: Architecture) -> tuple[KernelCall, ...]:
    if isinstance(step.blocking, HopperShare):
        return hopper_calls(plan, step, architecture, step.blocking)
    share = step.blocking if isinstance(step.blocking, Share) else None
    return gett_calls(plan, step, architecture, share)


def _addend_in_place(plan: Plan, step: Gemm, architecture: Architecture) -> list[KernelCall]:
    """C copied to where D lies, for cuBLAS adds to what is there; nothing where C is D."""
    if step.c is None:
        return []
    own = [loop for loop in step.loops if loop.kind is not Kind.K]
    strides = tuple(loop.d for loop in own)
    copy = Permute(
        Source(View(step.c, strides)),
        View(step.d, strides),
        tuple(loop.extent for loop in own),
        tuple(range(len(own))),
        step.dtype,
    )
    calls = elementwise_calls(plan, copy, architecture)
    return [replace(call, unless_same=(step.c, step.d)) for call in calls]
