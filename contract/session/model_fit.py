"""The constants of a machine's model, fitted to what products take on it.

The model predicts the seconds of every candidate of some products; measured, they give the
constants by least squares: of the logarithms of predicted / measured, and of each constant /
built-in, so that a constant that nothing tells about stays as it is (a ridge regression, by Gauss
and Newton's steps).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from contract.descriptors.operations import (
    Algo,
    Contraction,
    Operand,
    OperationDescriptor,
    PlanPreference,
    TensorDescriptor,
)
from contract.machines.constants import RANGE, Fitted, constants, with_constants
from contract.machines.cpu import Cpu
from contract.machines.machine import Machine
from contract.plan.steps import Plan
from contract.planner.planner import make_plan, ranked_plans

__all__ = ["CHECKS", "Method", "fitted", "fitted_to", "method", "predictions"]

STEPS = 4
DIFFERENCE = 0.05  # of logarithms, for derivatives
RIDGE = 0.3  # the weight of a constant's change beside that of one measurement's error
SLOW = 6.0  # times the best prediction: candidates beyond tell nothing about choices
Method = tuple[OperationDescriptor, Algo, str]  # what is computed, and how


def _contraction(text: str, extents: Sequence[int], dtype: str) -> Contraction:
    """Packed column-major tensors, a letter for each mode; extents by the letters' order."""
    *terms, output = text.replace("->", ",").split(",")
    by_mode = dict(zip(sorted({*text} - {*",->"}), extents, strict=True))

    def operand(modes: str) -> Operand:
        shape = tuple(by_mode[mode] for mode in modes)
        return Operand(TensorDescriptor(shape, None, dtype), tuple(modes))

    return Contraction(tuple(map(operand, terms)), operand(output))


PROBES = tuple(
    _contraction(*each)
    for each in (
        ("ik,kj->ij", (16, 16, 16), "float64"),
        ("ik,kj->ij", (40, 40, 40), "float64"),
        ("ik,kj->ij", (40, 40, 40), "float32"),
        ("ik,kj->ij", (512, 512, 512), "float64"),
        ("ik,kj->ij", (512, 512, 512), "float32"),
        ("ik,kj->ij", (256, 256, 256), "complex128"),
        ("ik,kj->ij", (512, 512, 8), "float64"),
        ("ki,kj->ij", (24, 20, 40000), "float64"),
        ("ikl,kjl->ijl", (8, 8, 8, 4096), "float64"),
        ("ikl,kjl->ijl", (64, 64, 64, 32), "float32"),
        ("akb,ckd->acbd", (32, 32, 32, 32, 16), "float64"),
        ("bak,kc->abc", (48, 48, 32, 64), "float64"),
        ("bak,kc->abc", (64, 64, 8, 256), "float32"),
        ("kab,cdk->dbca", (24, 24, 24, 24, 48), "float64"),
        ("akbl,lck->cab", (24, 32, 40, 16, 24), "float64"),
        ("kbla,ck->lcab", (20, 24, 28, 16, 36), "float32"),
        ("xkly,kjl->xlyj", (16, 8, 16, 3, 256), "float64"),
        ("xky,kj->xyj", (16, 256, 3, 512), "float64"),
        ("lka,lkb->abl", (40, 36, 64, 48), "float64"),
    )
)

CHECKS = tuple(
    _contraction(*each)
    for each in (
        ("abk,kc->abc", (40, 56, 72, 96), "float64"),
        ("bka,ck->abc", (72, 40, 48, 120), "float64"),
        ("kab,kc->cab", (48, 64, 40, 160), "float32"),
        ("akb,ckd->dbca", (24, 20, 28, 18, 150), "float64"),
        ("kalb,clk->abc", (48, 36, 64, 24, 20), "float64"),
        ("lak,lkb->lab", (40, 44, 52, 60), "float64"),
        ("akl,kbl->abl", (48, 40, 36, 64), "float32"),
        ("abcd,db->ac", (48, 60, 56, 40), "float64"),
        ("ba,cda->dcb", (96, 88, 12, 40), "float64"),
        ("axk,kyb->xaby", (60, 70, 80, 2, 2), "float64"),
        ("ak,bk->ab", (300, 200, 700), "float32"),
        ("cakb,dk->abdc", (20, 30, 16, 24, 32), "complex128"),
        ("ka,kb->ba", (128, 144, 2000), "float64"),
        ("aib,bja->ij", (40, 44, 70, 66), "float64"),
        ("dca,ecb->abde", (24, 28, 30, 26, 20), "float32"),
        ("abk,ck->cba", (16, 16, 16, 400), "float64"),
    )
)


def method(plan: Plan) -> Method:
    """What a plan of one product computes, and how: the same under every model."""
    chosen = plan.considered[0].chosen
    return plan.operation, chosen.algo, chosen.reason


def fitted(cpu: Cpu, measured: Callable[[Plan], float]) -> Cpu:
    """The processor whose model predicts best what its candidates take: ``measured``, seconds."""
    return fitted_to(cpu, {method(plan): measured(plan) for plan in _probed(cpu)})


def fitted_to(machine: Fitted, times: Mapping[Method, float]) -> Fitted:
    """The machine whose model predicts these seconds best, each method being one of its own.

    A method that it no longer has with other constants counts as it was predicted before.
    """
    names, built_in = zip(*constants(machine).items(), strict=True)
    observed = np.log(list(times.values()))
    operations = list(dict.fromkeys(operation for operation, _, _ in times))
    before = predictions(machine, operations)

    def model(change: NDArray[np.float64]) -> Fitted:
        """The machine with every constant changed by a factor, its logarithm given."""
        values = np.array(built_in) * np.exp(change)
        return with_constants(machine, dict(zip(names, map(float, values), strict=True)))

    def errors(change: NDArray[np.float64]) -> NDArray[np.float64]:
        predicted = predictions(model(change), operations)
        return np.log([predicted.get(each, before[each]) for each in times]) - observed

    change = np.zeros(len(names))
    for _ in range(STEPS):
        now = errors(change)
        nearby = change + DIFFERENCE * np.eye(len(names))
        slopes = np.array([errors(each) - now for each in nearby]).T / DIFFERENCE
        matrix = np.vstack([slopes, RIDGE * np.eye(len(names))])
        target = np.concatenate([now, RIDGE * change])
        change = change - np.linalg.lstsq(matrix, target, rcond=None)[0]
        change = np.clip(change, -np.log(RANGE), np.log(RANGE))
    return model(change)


def _probed(cpu: Cpu) -> Iterator[Plan]:
    """The candidates of the probes, each method once, without those that are far too slow."""
    for operation in PROBES:
        ranked = ranked_plans(operation, PlanPreference(), cpu)
        plans = {method(plan): plan for plan in reversed([*ranked])}
        best = min(plan.seconds for plan in plans.values())
        yield from (plan for plan in plans.values() if plan.seconds < SLOW * best)


def predictions(machine: Machine, operations: Iterable[OperationDescriptor]) -> dict[Method, float]:
    """What the model predicts for every method of some products: of several plans the best."""
    found: dict[Method, float] = {}
    for operation in operations:
        (decision,) = make_plan(operation, machine=machine).considered
        for each in decision.candidates:
            key = operation, each.algo, each.reason
            found[key] = min(each.seconds, found.get(key, inf))
    return found
