"""A plan as a tree: tensors, what each is made of and what that costs, and where to draw them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from contract.plan.steps import (
    Decision,
    Elementwise,
    Gemm,
    Gett,
    Permute,
    Plan,
    Reduce,
    Step,
    modes_text,
    slot_name,
    step_bytes,
    step_flops,
    step_slots,
)

__all__ = ["Node", "contraction_tree"]


@dataclass(frozen=True, slots=True)
class Node:
    """A tensor of a plan, and the operation that makes it of the nodes ``parts``.

    ``flops``, ``moved`` (bytes) and predicted ``seconds`` are those of that operation alone.
    Operands stand in a row, ``x`` = 0, 1, ...; a result is above the middle of its parts, ``y``
    operations away from the operands.
    """

    name: str
    modes: str
    elements: int
    parts: tuple[int, ...] = ()
    algorithm: str = ""
    flops: int = 0
    moved: int = 0
    seconds: float = 0.0
    x: float = 0.0
    y: int = 0


def contraction_tree(plan: Plan) -> tuple[Node, ...]:
    """The operands, then the result of every operation, the plan's result last."""
    slots = [*range(plan.inputs), *([] if plan.addend is None else [plan.addend])]
    numbers = {slot: at for at, slot in enumerate(slots)}
    nodes = [_leaf(plan, slot) for slot in slots]
    for steps, decision in plan.decided():
        made = [plan.steps[at] for at in steps]
        *_, result = step_slots(made[-1])
        node = _result(plan, made, decision, [numbers[slot] for slot in _read(made)])
        if result in numbers:  # another part of the same tensor
            at = numbers[result]
            nodes[at] = _together(nodes[at], node)
        else:
            numbers[result] = len(nodes)
            nodes.append(node)
    return tuple(_placed(nodes))


def _leaf(plan: Plan, slot: int) -> Node:
    """An operand, or C."""
    operation = plan.operation
    operand = operation.inputs[slot] if slot < plan.inputs else operation.addend
    assert operand is not None
    name, modes = slot_name(plan, slot), modes_text(plan, operand.modes)
    return Node(name, modes, prod(operand.tensor.extents))


def _result(plan: Plan, steps: Sequence[Step], decision: Decision, parts: Sequence[int]) -> Node:
    *_, slot = step_slots(steps[-1])
    return Node(
        slot_name(plan, slot),
        modes_text(plan, _written_modes(steps[-1])),
        prod(plan.slots[slot].tensor.extents),
        tuple(parts),
        decision.chosen.algo.name,
        sum(map(step_flops, steps)),
        sum(step_bytes(plan, step) for step in steps),
        decision.chosen.seconds,
    )


def _together(one: Node, other: Node) -> Node:
    return replace(
        one,
        parts=tuple(dict.fromkeys((*one.parts, *other.parts))),
        flops=one.flops + other.flops,
        moved=one.moved + other.moved,
        seconds=one.seconds + other.seconds,
    )


def _read(steps: Sequence[Step]) -> list[int]:
    """The slots that the steps read and did not write before; each once."""
    found: dict[int, None] = {}
    written: set[int] = set()
    for step in steps:
        *read, target = step_slots(step)
        found |= dict.fromkeys(slot for slot in read if slot not in written)
        written.add(target)
    return list(found)


def _written_modes(step: Step) -> tuple[int, ...]:
    match step:
        case Gemm() | Gett():
            own = sorted((loop for loop in step.loops if loop.d), key=lambda loop: abs(loop.d))
            return tuple(mode for loop in own for mode in loop.modes)
        case Reduce():
            return step.modes[: step.kept]
        case Permute() | Elementwise():
            return step.modes


def _placed(nodes: Sequence[Node]) -> Iterator[Node]:
    """Operands from left to right as the last result needs them, so that few lines cross."""
    columns = {at: x for x, at in enumerate(_leaves(nodes))}
    places: dict[int, tuple[float, int]] = {}
    for at, node in enumerate(nodes):
        if node.parts:
            xs, ys = zip(*(places[part] for part in node.parts), strict=True)
            places[at] = sum(xs) / len(xs), 1 + max(ys)
        else:
            places[at] = float(columns.get(at, len(columns))), 0
        yield replace(node, x=places[at][0], y=places[at][1])


def _leaves(nodes: Sequence[Node]) -> Mapping[int, None]:
    """The numbers of the operands, in the order in which they are met below the last result."""
    found: dict[int, None] = {}
    waiting, seen = [len(nodes) - 1], set[int]()
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        if nodes[at].parts:
            waiting += reversed(nodes[at].parts)
        else:
            found[at] = None
    return found
