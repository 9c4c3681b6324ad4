"""A plan -> the same plan without cuBLAS, for a CUDA graph that cannot have it."""

from dataclasses import fields, replace

from contract.descriptors.operations import Algo
from contract.machines.gpu import Architecture
from contract.plan.steps import Candidate, Decision, Gemm, Gett, Plan, Product, Step, step_bytes
from contract.planner.device.hopper_model import best_ways
from contract.planner.device.problem import held_by

__all__ = ["recordable"]


def recordable(plan: Plan, gpu: Architecture) -> Plan:
    """The steps of ``plan`` on the same slots, each Gemm as the Gett that is best by the model."""
    seconds: dict[int, float] = {}
    steps = list(plan.steps)
    for at, step in enumerate(plan.steps):
        if isinstance(step, Gemm):
            steps[at], seconds[at] = _as_gett(plan, step, gpu)
    decisions = [
        _decided_again(plan, decision, range_, seconds, gpu)
        if seconds.keys() & range_
        else decision
        for range_, decision in plan.decided()
    ]
    return replace(plan, steps=tuple(steps), considered=tuple(decisions))


def _as_gett(plan: Plan, step: Gemm, gpu: Architecture) -> tuple[Gett, float]:
    """The same product in tiles, and its predicted seconds."""
    best, *_ = best_ways(step, held_by(plan, step), gpu, 1)
    product = {each.name: getattr(step, each.name) for each in fields(Product)}
    return Gett(**product, blocking=best.share), best.seconds


def _decided_again(
    plan: Plan, decision: Decision, steps: range, seconds: dict[int, float], gpu: Architecture
) -> Decision:
    """The decision for steps of which some are made of tiles now, in ``seconds``."""

    def predicted(at: int, step: Step) -> float:
        return seconds[at] if at in seconds else gpu.pass_seconds(step_bytes(plan, step))

    total = sum(predicted(at, plan.steps[at]) for at in steps)
    algo = Algo.GETT if len(steps) == 1 else Algo.TGETT
    reason = f"{decision.chosen.reason}: by tiles, for no cuBLAS is captured"
    others = (replace(each, chosen=False) for each in decision.candidates)
    return Decision(len(steps), (Candidate(algo, total, reason, chosen=True), *others))
