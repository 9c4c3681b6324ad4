"""What is asked, without arrays: tensors, operands, the operation, and preferences."""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from contract.compute import item_size
from contract.errors import InvalidValueError
from contract.layout import packed_strides
from contract.operators import Operator

__all__ = ["Algo", "Contraction", "Operand", "PlanPreference", "TensorDescriptor"]


@dataclass(frozen=True, slots=True)
class TensorDescriptor:
    """T[i0, i1, ...] lies at element sum(i * stride) from the tensor's origin.

    ``extents`` and ``strides`` count elements; ``strides=None`` means packed column-major: the
    first mode has stride 1. Strides may be zero or negative. ``dtype`` is NumPy's name.
    """

    extents: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    dtype: str = "float64"

    def __post_init__(self) -> None:
        object.__setattr__(self, "extents", tuple(int(extent) for extent in self.extents))
        if any(extent < 0 for extent in self.extents):
            raise InvalidValueError(f"Extents must not be negative: they are {self.extents}.")
        item_size(self.dtype)
        strides = packed_strides(self.extents) if self.strides is None else self.strides
        object.__setattr__(self, "strides", tuple(int(stride) for stride in strides))
        if len(strides) != len(self.extents):
            raise InvalidValueError(
                f"One stride for each extent: {len(self.extents)} extents {self.extents}, "
                f"{len(strides)} strides {self.strides}."
            )

    @property
    def steps(self) -> tuple[int, ...]:
        """The strides in elements, never None."""
        assert self.strides is not None
        return self.strides

    def __str__(self) -> str:
        extents = ",".join(map(str, self.extents))
        return f"{self.dtype}[{extents}]:[{','.join(map(str, self.steps))}]"


@dataclass(frozen=True, slots=True)
class Operand:
    """op(T) with one mode for each dimension of the tensor; a repeated mode is a diagonal."""

    tensor: TensorDescriptor
    modes: tuple[int, ...]
    operator: Operator = Operator.IDENTITY

    def __post_init__(self) -> None:
        if len(self.modes) != len(self.tensor.extents):
            raise InvalidValueError(
                f"One mode for each dimension: {len(self.tensor.extents)} dimensions, "
                f"{len(self.modes)} modes."
            )


@dataclass(frozen=True, slots=True)
class Contraction:
    """D = alpha * op(T1) * op(T2) * ... + beta * C, summed over the modes D has not.

    Any number of inputs from one: one input permutes, takes diagonals and reduces. ``labels``
    are the modes' printed names. Products and sums are formed in ``accumulator``. With
    ``free_layout`` the plan may choose D's memory order. alpha and beta belong to execution;
    whether C is read is structure and stands here.
    """

    inputs: tuple[Operand, ...]
    output: Operand
    addend: Operand | None
    labels: tuple[str, ...]
    accumulator: str
    compute: str | None = None
    free_layout: bool = False

    def __post_init__(self) -> None:
        if not self.inputs:
            raise InvalidValueError("A contraction needs at least one operand.")


class Algo(Enum):
    """Shapes of step lists: what a plan is made of."""

    DEFAULT = "default"  # the cheapest by model
    GEMM = "gemm"  # one matrix product, operands used where they lie
    GETT = "gett"  # one product on strided operands, packed panel by panel
    TTGT = "ttgt"  # permutations, a matrix product, a permutation
    ELEMENTWISE = "elementwise"  # nothing summed: products of elements
    ONE_PASS = "one pass"  # no product: elements permuted or reduced


@dataclass(frozen=True, slots=True)
class PlanPreference:
    """How to plan: the algorithm, the n-th best candidate, limits, and the contraction path.

    ``path`` is what opt_einsum takes as ``optimize``: a name, an explicit path, or an optimizer.
    ``memory_limit`` (bytes) excludes candidates with larger temporaries where others exist.
    """

    algo: Algo = Algo.DEFAULT
    kernel_rank: int = 0
    memory_limit: int | None = None
    path: Hashable | Any = "auto"
