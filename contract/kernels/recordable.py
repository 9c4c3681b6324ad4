"""A plan -> the same plan for a CUDA graph: CuPy calls no cuBLAS while a stream captures."""

from dataclasses import fields, replace

from contract.descriptors import Algo
from contract.kernels.architectures import Architecture
from contract.kernels.gett_model import best_shares
from contract.kernels.product import held_by, problem_of
from contract.plan import Candidate, Gemm, Gett, Plan, Product, Step

__all__ = ["recordable"]


def recordable(plan: Plan, gpu: Architecture) -> Plan:
    """The steps of ``plan`` on the same slots, each Gemm as the Gett that is best by the model."""
    made = [_recordable(plan, *each, gpu) for each in zip(plan.steps, plan.considered, strict=True)]
    steps, considered = zip(*made, strict=True) if made else ((), ())
    return replace(plan, steps=steps, considered=considered)


def _recordable(
    plan: Plan, step: Step, candidates: tuple[Candidate, ...], gpu: Architecture
) -> tuple[Step, tuple[Candidate, ...]]:
    if not isinstance(step, Gemm):
        return step, candidates
    work = problem_of(step, held_by(plan, step)).workload(gpu)
    ((seconds, share),) = best_shares(work, gpu, 1)
    product = {each.name: getattr(step, each.name) for each in fields(Product)}
    reason = f"{share.reason}, for no cuBLAS is captured"
    chosen = Candidate(Algo.GETT, seconds, reason, chosen=True)
    others = (replace(each, chosen=False) for each in candidates)
    return Gett(**product, share=share), (chosen, *others)
