"""Work for a GPU: an expression, the operation that it is, and the least time for it."""

from dataclasses import dataclass

from bench.expressions import ALIGNMENT, packed_operands
from contract import (
    Algo,
    BinaryOperator,
    ComputeType,
    Contraction,
    ElementwiseOperation,
    PlanPreference,
    Reduction,
)
from contract.descriptors.compute_types import is_complex
from contract.descriptors.operations import OperationDescriptor
from contract.machines.gpu import Architecture
from contract.machines.gpu_tiles import Workload
from contract.plan.steps import Gett, step_bytes, step_flops
from contract.planner.device.problem import held_by, problem_of
from contract.planner.planner import make_plan


@dataclass(frozen=True, slots=True)
class Work:
    """An expression of up to three operands of one type, with the extents of its labels."""

    name: str
    text: str
    extents: dict[str, int]
    dtype: str
    compute: ComputeType | None = None

    @property
    def operation(self) -> OperationDescriptor:
        """The operation on packed column-major tensors."""
        inputs, d = packed_operands(self.text, self.extents, self.dtype, ALIGNMENT)
        if len(inputs) == 2:
            return Contraction(inputs, d, compute=self.compute)
        if len(inputs) == 3:
            return ElementwiseOperation(inputs, d, (BinaryOperator.MUL, BinaryOperator.MUL))
        kind = ElementwiseOperation if len(d.modes) == len(inputs[0].modes) else Reduction
        return kind(inputs, d)


def bound(work: Work, gpu: Architecture, bandwidth: float) -> float:
    """max(FLOPs / peak, bytes / bandwidth) in seconds."""
    operation = work.operation
    fused = PlanPreference(algo=Algo.GETT if isinstance(operation, Contraction) else Algo.DEFAULT)
    plan = make_plan(operation, fused, gpu)
    (step,) = plan.steps
    least = step_bytes(plan, step) / bandwidth
    if not isinstance(step, Gett):
        return least
    asked = problem_of(step, held_by(plan, step)).workload(gpu)
    return max(least, step_flops(step) / peak(asked, gpu))


def peak(work: Workload, architecture: Architecture) -> float:
    """Operations a second of the quickest units that may do the work."""
    rates, parts = architecture.rates, 4 if is_complex(work.dtype) else 1
    tensor = (getattr(rates, each.rate) / each.products / parts for each in work.arithmetic)
    multiply_adds: float = max([rates.core(work.dtype), *tensor])
    return 2 * parts * multiply_adds * architecture.multiprocessors * architecture.clock
