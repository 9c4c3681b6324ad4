"""What the log says of a plan when it is made: candidates, the choice, its memory, and advice."""

from collections.abc import Iterator, Sequence

from contract.descriptors.compute_types import ComputeType
from contract.descriptors.text import operation_text
from contract.device.kernels.slices import why_not_sliced
from contract.explain.advice import advise
from contract.logging import Level, Logger
from contract.machines.cublas_model import blas_compute
from contract.machines.gpu import Architecture
from contract.machines.machine import Machine
from contract.machines.tensor_cores import arithmetic
from contract.plan.steps import Gemm, Gett, Plan
from contract.support.text import numbers, seconds

__all__ = ["information", "report", "tuning_text"]

MOST_CANDIDATES = 12  # lines of them for one product
_HALVES = ("float16", "bfloat16")  # exact in every compute type that they have


def report(
    logger: Logger, plan: Plan, machine: Machine, workspace: int, reasons: Sequence[str]
) -> None:
    """Log what there is to say about a new plan.

    It needs ``workspace`` bytes, and ``reasons`` say why its kernels are what they are.
    """
    if logger.logs(Level.INFO):
        for line in information(plan, machine, workspace, reasons):
            logger.log(Level.INFO, line)
    if logger.logs(Level.HINT):
        for advice in advise(plan, machine):
            logger.log(Level.HINT, str(advice))


def information(
    plan: Plan, machine: Machine, workspace: int, reasons: Sequence[str]
) -> Iterator[str]:
    """The plan in one line, the candidates of each product in a line each, the units."""
    steps, predicted = len(plan.steps), seconds(plan.seconds)
    yield (
        f"planned {operation_text(plan.operation)}: {steps} steps, predicted {predicted}, "
        f"workspace {workspace} bytes"
    )
    yield from _candidates(plan)
    yield from (f"kernel: {reason}" for reason in reasons)
    yield from _units(plan, machine)


def _candidates(plan: Plan) -> Iterator[str]:
    for steps, decision in plan.decided():
        name, candidates = f"step {numbers(steps)}", decision.candidates
        for candidate in candidates[:MOST_CANDIDATES]:
            mark = "chosen" if candidate.chosen else "candidate"
            what = f"{candidate.algo.name} {seconds(candidate.seconds)}: {candidate.reason}"
            yield f"{name}: {mark} {what}"
        if len(candidates) > MOST_CANDIDATES:
            yield f"{name}: {len(candidates) - MOST_CANDIDATES} more candidates"


# --- units --------------------------------------------------------------------------------------


def _units(plan: Plan, machine: Machine) -> Iterator[str]:
    """Where a compute type is served by the native type, and why."""
    compute = plan.operation.compute
    if compute in (None, ComputeType.F32, ComputeType.F64):
        return
    for step in plan.steps:
        if isinstance(step, Gemm | Gett):
            why = _why_native(plan, step, machine)
            if why is not None:
                yield f"{step.compute and step.compute.value} computes in {step.dtype}: {why}"


def _why_native(plan: Plan, step: Gemm | Gett, machine: Machine) -> str | None:
    """Why no unit of the compute type forms this product; None where one does."""
    if not isinstance(machine, Architecture):
        return "the host has no other unit"
    if step.compute is ComputeType.INT8X8:
        return why_not_sliced(plan, step, machine)
    if isinstance(step, Gemm):
        factors = plan.slots[step.a].tensor.dtype
        name = blas_compute(factors, step.dtype, step.compute, machine)
        is_native = name in ("32F", "64F") and factors not in _HALVES
        return f"cuBLAS computes {name}" if is_native else None
    types = [plan.slots[slot].tensor.dtype for slot in (step.a, step.b)]
    operators = step.operator_a, step.operator_b
    if arithmetic(types, step.dtype, step.compute, operators, machine):
        return None
    major, minor = divmod(machine.capability, 10)
    return f"no tensor cores of compute capability {major}.{minor} serve it"


def tuning_text(candidates: Sequence[Plan], best: Plan, measured: float) -> str:
    """Which of the candidates of an operation turned out to be the fastest."""
    at = candidates.index(best) + 1
    predicted = f"{seconds(best.seconds)} were predicted"
    return f"tuned: candidate {at} of {len(candidates)} stays, {seconds(measured)}, {predicted}"
