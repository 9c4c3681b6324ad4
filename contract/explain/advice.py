"""A plan -> how its operation could be faster: advice with the numbers it rests on.

cuTENSOR's performance guidelines as questions to a plan. The times are the model's, which also
says whether a tensor is large enough to care.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from contract.descriptors.compute_types import ComputeType, is_complex, item_size
from contract.descriptors.layout import fuse
from contract.descriptors.operations import AutotuneMode, Contraction
from contract.machines.cpu import Cpu
from contract.machines.gpu import Architecture
from contract.machines.machine import Machine
from contract.plan.products import STRIDE_A, STRIDE_B, STRIDE_C, STRIDE_D
from contract.plan.steps import (
    Candidate,
    Decision,
    Elementwise,
    Gemm,
    Gett,
    Permute,
    Plan,
    Reduce,
    Slot,
    SlotKind,
    Step,
    View,
    modes_text,
    slot_name,
)
from contract.planner.planner import make_plan
from contract.support.text import seconds

__all__ = ["Advice", "Subject", "advise"]

DEVICE_LINE = 128  # bytes that a GPU's memory moves together
WIDEST_ACCESS = 16  # bytes that one of its threads loads at once
CLOSE = 1.2  # times of candidates that the model is not trusted to tell apart
MANY = 3  # such candidates, the chosen one included
GAIN = 1.1  # what a change must be predicted to gain


class Subject(Enum):
    """What advice is about."""

    PERMUTATIONS = "permutations"
    FASTEST_MODE = "fastest mode"
    GAPS = "gaps"
    BATCH = "batched modes"
    ALIGNMENT = "alignment"
    TF32 = "TF32"
    TUNING = "tuning"


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to change: what is slow, by how much, and what to do about it."""

    subject: Subject
    text: str

    def __str__(self) -> str:
        return f"{self.subject.value}: {self.text}"


def advise(plan: Plan, machine: Machine) -> tuple[Advice, ...]:
    """What could be changed so that the operation takes less time; most often nothing."""
    return tuple(dict.fromkeys(_advice(plan, machine)))


def _advice(plan: Plan, machine: Machine) -> Iterator[Advice]:
    for steps, decision in plan.decided():
        yield from _about_permutations(plan, steps, decision.chosen)
        yield from _about_tuning(decision, machine)
    large = {at for at, slot in enumerate(plan.slots) if _is_large(slot, machine)}
    for at in sorted(large):
        yield from _about_gaps(plan, at)
        yield from _about_batches(plan, at)
    for step in plan.steps:
        for walk in _walks(step):
            if walk.slot in large:
                yield from _about_runs(plan, walk, machine)
    if isinstance(machine, Architecture):
        yield from _about_alignment(plan)
        yield from _about_tf32(plan, machine)


def _is_large(slot: Slot, machine: Machine) -> bool:
    """Whether the tensor is the caller's, and reading it takes longer than beginning to."""
    if slot.kind is SlotKind.TEMPORARY:
        return False
    return machine.pass_seconds(slot.bytes) > 2 * machine.pass_seconds(0)


# --- the operation as a whole -----------------------------------------------------------------


def _about_permutations(plan: Plan, numbers: range, chosen: Candidate) -> Iterator[Advice]:
    """Copies that take longer than the product they are made for."""
    copying, product = chosen.copying, chosen.seconds - chosen.copying
    steps = [plan.steps[at] for at in numbers]
    copies = [step for step in steps if isinstance(step, Permute | Elementwise)]
    orders = [_better_order(plan, step) for step in copies if _outside(plan, step) is not None]
    if copying > product and orders:
        yield Advice(
            Subject.PERMUTATIONS,
            f"of a predicted {seconds(chosen.seconds)} permutations take "
            f"{seconds(copying)}, the product {seconds(product)}: {'; '.join(orders)}",
        )


def _outside(plan: Plan, step: Permute | Elementwise) -> View | None:
    """The caller's tensor of a copy; None where both are temporaries."""
    views = _views(step)
    given = (each for each in views if plan.slots[each.slot].kind is not SlotKind.TEMPORARY)
    return next(given, None)


def _better_order(plan: Plan, step: Permute | Elementwise) -> str:
    """How the caller's tensor of a copy should lie so that there is none."""
    given = _outside(plan, step)
    assert given is not None
    inside = next(each for each in _views(step) if each is not given)
    order = sorted(range(len(step.modes)), key=lambda at: abs(inside.strides[at]))
    modes = modes_text(plan, [step.modes[at] for at in order])
    return f"store {slot_name(plan, given.slot)} with modes {modes}, the fastest first"


def _views(step: Permute | Elementwise) -> tuple[View, View]:
    """What a copy reads (without C, where that is added) and writes."""
    source = step.source if isinstance(step, Permute) else step.sources[0]
    return source.view, step.target


def _about_tuning(decision: Decision, machine: Machine) -> Iterator[Advice]:
    """Candidates that only a measurement tells apart."""
    best = decision.chosen.seconds
    close = sum(each.seconds <= CLOSE * best for each in decision.candidates)
    if close >= MANY and best > 2 * machine.pass_seconds(0):
        yield Advice(
            Subject.TUNING,
            f"{close} of {len(decision.candidates)} candidates are predicted within "
            f"{CLOSE - 1:.0%} of {seconds(best)}: measure them, with "
            f"PlanPreference(autotune=AutotuneMode.{AutotuneMode.INCREMENTAL.name})",
        )


def _about_tf32(plan: Plan, gpu: Architecture) -> Iterator[Advice]:
    """float32 that need not be exact to the last bit."""
    operation = plan.operation
    if not isinstance(operation, Contraction) or operation.compute is not ComputeType.F32:
        return
    kinds = {is_complex(operand.tensor.dtype) for operand in operation.inputs}
    if operation.dtype not in ("float32", "complex64") or len(kinds) > 1 or not gpu.tf32:
        return
    rounded = make_plan(replace(operation, compute=ComputeType.TF32), machine=gpu)
    if plan.seconds > GAIN * rounded.seconds:
        yield Advice(
            Subject.TF32,
            f"32F takes {seconds(plan.seconds)}, TF32 {seconds(rounded.seconds)} (predicted): "
            'if inputs of 11 bits serve, ask for compute_type="TF32"',
        )


# --- how tensors lie --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Walk:
    """How a step goes over a tensor: extents and strides (elements), the fastest first."""

    slot: int
    dimensions: tuple[tuple[int, int], ...]


def _walks(step: Step) -> Iterator[_Walk]:
    match step:
        case Gemm() | Gett():
            strides = {STRIDE_A: step.a, STRIDE_B: step.b, STRIDE_D: step.d, STRIDE_C: step.c}
            for stride, slot in strides.items():
                if slot is not None:
                    loops = ((x.extent, stride(x)) for x in step.loops)
                    yield _walk(slot, loops)
        case Permute() | Elementwise():
            sources = (step.source,) if isinstance(step, Permute) else step.sources
            yield from _fused_walks(step.extents, [*(x.view for x in sources), step.target])
        case Reduce():
            yield from _fused_walks(step.extents, [step.source.view])


def _fused_walks(extents: Sequence[int], views: Sequence[View]) -> Iterator[_Walk]:
    sizes, strides = fuse(extents, *(view.strides for view in views))
    for view, steps in zip(views, strides, strict=True):
        yield _walk(view.slot, zip(sizes, steps, strict=True))


def _walk(slot: int, dimensions: Iterable[tuple[int, int]]) -> _Walk:
    moved = [each for each in dimensions if each[0] > 1 and each[1]]
    return _Walk(slot, tuple(sorted(moved, key=lambda each: abs(each[1]))))


def _about_runs(plan: Plan, walk: _Walk, machine: Machine) -> Iterator[Advice]:
    """Lines of memory of which an access uses a part."""
    size = item_size(plan.slots[walk.slot].tensor.dtype)
    line = machine.line if isinstance(machine, Cpu) else DEVICE_LINE
    if len(walk.dimensions) < 2:
        return
    extent, stride = walk.dimensions[0]
    if abs(stride) == 1 and extent * size < line:
        yield Advice(
            Subject.FASTEST_MODE,
            f"{slot_name(plan, walk.slot)} is met in runs of {extent} elements, {extent * size} of "
            f"the {line} bytes that move together: make the longest mode that all tensors share "
            "the fastest",
        )


def _about_batches(plan: Plan, at: int) -> Iterator[Advice]:
    """Modes of all operands and the result that are faster than those of the matrices."""
    operation = plan.operation
    if not isinstance(operation, Contraction) or len(operation.inputs) < 2:
        return
    operands = (*operation.inputs, operation.output)
    shared = set.intersection(*(set(operand.modes) for operand in operands))
    operand = operation.addend if at == plan.addend else operands[at]
    assert operand is not None
    strides = {
        mode: abs(n) for mode, n in zip(operand.modes, plan.slots[at].tensor.steps, strict=True)
    }
    fastest = min(shared, key=strides.__getitem__, default=None)
    slowest = max(set(strides) - shared, key=strides.__getitem__, default=None)
    if fastest is not None and slowest is not None and strides[fastest] < strides[slowest]:
        yield Advice(
            Subject.BATCH,
            f"{slot_name(plan, at)} has stride {strides[fastest]} for the batched mode "
            f"{modes_text(plan, [fastest])}, {strides[slowest]} for mode "
            f"{modes_text(plan, [slowest])} of its matrices: store batched modes slowest",
        )


def _about_gaps(plan: Plan, slot: int) -> Iterator[Advice]:
    """Elements that lie apart from one another."""
    tensor = plan.slots[slot].tensor
    nearest = min(
        (abs(s) for n, s in zip(tensor.extents, tensor.steps, strict=True) if n > 1), default=1
    )
    if nearest > 1:
        yield Advice(
            Subject.GAPS,
            f"no elements of {slot_name(plan, slot)} lie closer than {nearest} to each other, so "
            f"that up to {nearest} times its {plan.slots[slot].bytes} bytes are moved: use a "
            "packed copy more than once",
        )


def _about_alignment(plan: Plan) -> Iterator[Advice]:
    """Addresses that forbid the widest accesses."""
    for at, slot in enumerate(plan.slots):
        alignment = slot.tensor.alignment
        if slot.kind is SlotKind.TEMPORARY or slot.bytes < WIDEST_ACCESS:
            continue
        if alignment < WIDEST_ACCESS:
            yield Advice(
                Subject.ALIGNMENT,
                f"{slot_name(plan, at)} is aligned to {alignment} bytes, and accesses of "
                f"{WIDEST_ACCESS} need that: begin it at a multiple of {WIDEST_ACCESS}, and say "
                f"so with TensorDescriptor(alignment={WIDEST_ACCESS})",
            )
