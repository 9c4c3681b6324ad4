"""Explicit expressions in letters: their operands on packed tensors, and their FLOPs."""

from collections.abc import Mapping
from math import prod

from bench.reference import split
from contract import Operand, TensorDescriptor

ALIGNMENT = 16  # bytes, of the arrays of every device


def packed_operands(
    text: str, extents: Mapping[str, int], dtype: str, alignment: int = 0
) -> tuple[tuple[Operand, ...], Operand]:
    """The inputs and the output on packed column-major tensors of one type."""
    terms, output = split(text)

    def operand(labels: str) -> Operand:
        shape = tuple(extents[label] for label in labels)
        return Operand(TensorDescriptor(shape, None, dtype, alignment), tuple(labels))

    return tuple(map(operand, terms)), operand(output)


def flops_of(extents: Mapping[str, int]) -> float:
    """2 * product of all extents: the FLOPs of a product of two real operands."""
    return 2.0 * prod(extents.values())
