"""An operation -> its tensors as terms: extents that agree, repeated modes merged, slots numbered.

A mode of extent 1 takes no part: it moves no address.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from contract.descriptors.compute_types import ComputeType
from contract.descriptors.expression import mode_extents
from contract.descriptors.operations import ElementwiseOperation, Operand, OperationDescriptor
from contract.errors import InvalidValueError
from contract.plan.products import Term
from contract.plan.steps import Slot, SlotKind

__all__ = ["Tensors", "operation_extents", "validated"]


class Tensors(NamedTuple):
    """The tensors of an operation in the order of their slots: operands, result, C if there is one.

    ``extents`` has every mode's, ``modes`` has one for each dimension of the result. With ``free``
    the plan chooses the memory order of the result. Sums are kept in ``accumulator``; with
    ``compute`` they may be as inaccurate as that.
    """

    extents: tuple[int, ...]
    inputs: tuple[Term, ...]
    target: Term
    modes: tuple[int, ...]
    addend: Term | None
    slots: tuple[Slot, ...]
    free: bool
    accumulator: str
    compute: ComputeType | None

    def elements(self, modes: Iterable[int]) -> int:
        """The elements of a tensor with these modes."""
        return prod([self.extents[mode] for mode in modes])

    def extents_of(self, term: Term) -> tuple[int, ...]:
        """The extents of a term's modes."""
        return tuple([self.extents[mode] for mode in term.modes])


def validated(operation: OperationDescriptor) -> Tensors:
    """The operation's tensors.

    InvalidValueError for extents that do not fit.
    """
    extents = operation_extents(operation)
    inputs, output, addend = operation.inputs, operation.output, operation.addend
    count = len(inputs)
    slots = [Slot(SlotKind.INPUT, operand.tensor) for operand in inputs]
    slots.append(Slot(SlotKind.OUTPUT, output.tensor))
    if addend is not None:
        slots.append(Slot(SlotKind.ADDEND, addend.tensor))
    return Tensors(
        extents,
        tuple([_term(at, operand, extents) for at, operand in enumerate(inputs)]),
        _term(count, output, extents),
        output.modes,
        None if addend is None else _term(count + 1, addend, extents),
        tuple(slots),
        operation.free_layout and len(set(output.modes)) == len(output.modes),
        operation.rule.accumulator,
        operation.rule.compute,
    )


def operation_extents(operation: OperationDescriptor) -> tuple[int, ...]:
    """The extent of every mode; results must have exactly these, and the padding around them."""
    inputs, output = operation.inputs, operation.output
    extents = mode_extents(
        [operand.modes for operand in inputs],
        [operand.tensor.extents for operand in inputs],
        operation.labels,
    )
    wanted = [extents[mode] for mode in output.modes]
    if isinstance(operation, ElementwiseOperation) and operation.padding is not None:
        padding = operation.padding
        wanted = [
            left + n + right
            for left, n, right in zip(padding.left, wanted, padding.right, strict=True)
        ]
    _check_result("The output", output, wanted, operation.labels)
    if operation.addend is not None:
        c = operation.addend
        _check_result("The addend C", c, [extents[mode] for mode in c.modes], operation.labels)
        if set(c.modes) != set(output.modes):
            names = ", ".join(operation.labels[mode] for mode in output.modes)
            raise InvalidValueError(f"The addend C has the modes of the output: {names}.")
    return extents


def _check_result(
    name: str, operand: Operand, extents: Sequence[int], labels: Sequence[str]
) -> None:
    if operand.tensor.extents == tuple(extents):
        return
    for mode, extent, wanted in zip(operand.modes, operand.tensor.extents, extents, strict=True):
        if extent != wanted:
            raise InvalidValueError(
                f"{name} has extent {extent} for mode {labels[mode]!r}; the operands give {wanted}."
            )


def _term(slot: int, operand: Operand, extents: Sequence[int]) -> Term:
    """Repeated modes merged (their strides add), modes without effect on addresses dropped."""
    strides: dict[int, int] = {}
    tensor = operand.tensor
    for mode, extent, stride in zip(operand.modes, tensor.extents, tensor.steps, strict=True):
        if extent != 1 and extents[mode] != 1:
            strides[mode] = strides.get(mode, 0) + stride
    modes, steps = tuple(strides), tuple(strides.values())
    return Term(slot, modes, steps, tensor.dtype, operand.operator, tensor.alignment)
