"""The functions that common calls need, compiled before they are called."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from contract.descriptors.operations import (
    Contraction,
    ElementwiseOperation,
    Operand,
    OperationDescriptor,
    Reduction,
    TensorDescriptor,
)
from contract.descriptors.operators import BinaryOperator
from contract.execution.compiled_code import Kernel, compiled_code
from contract.host.executor import LoadedPlan
from contract.session.handle import Handle

__all__ = ["COMMON", "Warmth", "common_kernels", "warm_up"]

COMMON = ("float32", "float64", "complex64", "complex128", "int64")
EXTENT = 48  # of a mode: large enough for every kernel to be worth its call
# Modes of the operands and of the result, all column-major: products by tiles, of batches, of a
# matrix and a vector, outer and inner ones.
PRODUCTS = (
    ("abc", "cd", "abd"),
    ("bac", "dcb", "abd"),
    ("abc", "adc", "abd"),
    ("ab", "b", "a"),
    ("ba", "b", "a"),
    ("ab", "cd", "acbd"),
    ("abc", "abc", ""),
)
PERMUTATIONS = (("abc", "cab"), ("abc", "bac"), ("abc", "acb"), ("abcd", "badc"), ("abcd", "acbd"))
SUMS = (("abc", "a"), ("abc", "b"), ("abc", "c"), ("abc", ""))
EXTREMES = (BinaryOperator.MAX, BinaryOperator.MIN)


@dataclass(frozen=True, slots=True)
class Warmth:
    """How many functions were compiled, in how many seconds, and how many were there."""

    compiled: int
    seconds: float
    there: int


def common_kernels(handle: Handle, types: Iterable[str]) -> list[Kernel]:
    """What plans of common operations need, for data of these types."""
    found: dict[Kernel, None] = {}
    for dtype in types:
        for operation in _operations(dtype):
            plan = handle.plan(operation)
            if isinstance(plan, LoadedPlan):
                found.update(dict.fromkeys(sorted(plan.needs, key=str)))
    return list(found)


def warm_up(kernels: Iterable[Kernel]) -> Warmth:
    """Load or compile each."""
    seconds = [compiled_code().compile(kernel) for kernel in kernels]
    took = [each for each in seconds if each is not None]
    return Warmth(len(took), sum(took), len(seconds) - len(took))


def _operations(dtype: str) -> Iterator[OperationDescriptor]:
    def operand(modes: str) -> Operand:
        return Operand(TensorDescriptor((EXTENT,) * len(modes), dtype=dtype), tuple(modes))

    for a, b, d in PRODUCTS:
        yield Contraction((operand(a), operand(b)), operand(d))
    for a, d in PERMUTATIONS:
        yield ElementwiseOperation((operand(a),), operand(d))
    yield ElementwiseOperation(
        (operand("abc"), operand("cab")), operand("abc"), (BinaryOperator.ADD,)
    )
    for a, d in SUMS:
        yield Reduction((operand(a),), operand(d))
        if not dtype.startswith("complex"):
            for operator in EXTREMES:
                yield Reduction((operand(a),), operand(d), operator=operator)
