"""What a case is: one call with its arrays, as plain data that can be printed and made smaller."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import ml_dtypes  # noqa: F401  (registers the name bfloat16)
import numpy as np

__all__ = ["NETWORKS", "PLANS", "Case", "Memory", "Tensor", "Verb", "name_of", "result_type"]


class Verb(Enum):
    """What is called; plans are made and run at the level of descriptors."""

    CONTRACT = "contract"
    EINSUM = "einsum"
    EXPRESSION = "contract_expression"
    PLAN = "Handle.plan"
    REDUCE = "reduce"
    REDUCE_PLAN = "Handle.plan of a reduction"
    PERMUTE = "permute"
    BINARY = "elementwise_binary"
    TRINARY = "elementwise_trinary"
    ELEMENTWISE_PLAN = "Handle.plan of elementwise operations"


NETWORKS = Verb.CONTRACT, Verb.EINSUM, Verb.EXPRESSION, Verb.PLAN
PLANS = Verb.PLAN, Verb.REDUCE_PLAN, Verb.ELEMENTWISE_PLAN


@dataclass(frozen=True)
class Tensor:
    """An array to be made: its layout, what it holds, and how it lies between the pages.

    ``strides`` count bytes. ``dtype`` is NumPy's name, ">" before it for the foreign byte order.
    ``slack`` bytes lie between the array and the guard page, so that it is not aligned.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    values: str = "normal"
    seed: int = 0
    slack: int = 0

    @property
    def kind(self) -> np.dtype[Any]:
        return np.dtype(self.dtype.lstrip(">")).newbyteorder(">" if self.dtype[0] == ">" else "=")

    def __str__(self) -> str:
        extents, steps = ",".join(map(str, self.shape)), ",".join(map(str, self.strides))
        slack = f"+{self.slack}" if self.slack else ""
        return f"{self.dtype}[{extents}]:[{steps} B]{slack} {self.values}"


@dataclass(frozen=True)
class Memory:
    """The limits of a call, in bytes."""

    limit: int | None = None
    workspace: int | None = None
    given: bool = False  # the caller brings the workspace of a plan


@dataclass(frozen=True)
class Case:
    """One call. Upper-case labels are written as an ellipsis where ``ellipsis`` has them.

    Operands that are equal in everything are one array. ``constants`` are those that an expression
    is planned with. ``out`` is an array to be made, "c" for the addend, or the number of an
    operand. ``scalars`` are alpha, beta and gamma. ``binary`` are the operators between operands,
    or the reduction's. ``preference`` are arguments of PlanPreference by name.
    """

    verb: Verb
    terms: tuple[str, ...]
    output: str
    operands: tuple[Tensor, ...]
    ellipsis: str = ""
    implicit: bool = False
    interleaved: bool = False
    c: Tensor | None = None
    out: Tensor | str | int | None = None
    scalars: tuple[complex, complex | None, complex] = (1, None, 1)
    operators: tuple[str | None, ...] | None = None
    binary: tuple[str, ...] = ()
    padding: tuple[tuple[int, int], ...] | None = None
    padding_value: complex = 0
    dtype: str | None = None
    order: str = "F"
    optimize: Any = "auto"
    preference: tuple[tuple[str, Any], ...] = ()
    memory: Memory = field(default_factory=Memory)
    slices: tuple[tuple[str, int], ...] | None = None
    compute_type: str | None = None
    constants: tuple[int, ...] = ()
    kernels: str = "numpy"
    threads: int = 1
    checked: bool = False
    calls: int = 1
    at_end: bool = True

    @property
    def text(self) -> str:
        """The expression as it is written."""
        inputs = ",".join(map(self._written, self.terms))
        return inputs if self.implicit else f"{inputs}->{self._written(self.output)}"

    def _written(self, term: str) -> str:
        """The term, with "..." for the longest end of the ellipsis' labels that it has."""
        for at in range(len(self.ellipsis)):
            if self.ellipsis[at:] in term:
                return term.replace(self.ellipsis[at:], "...")
        return term

    @property
    def extents(self) -> dict[str, int]:
        """The extent of each label; extent 1 broadcasts."""
        found: dict[str, int] = {}
        for term, tensor in zip(self.terms, self.operands, strict=True):
            for label, extent in zip(term, tensor.shape, strict=True):
                found[label] = extent if found.get(label, 1) == 1 else found[label]
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the result."""
        extents = self.extents
        shape = [extents[label] for label in self.output]
        pairs = self.padding or ((0, 0),) * len(shape)
        return tuple(left + n + right for n, (left, right) in zip(shape, pairs, strict=True))

    @property
    def common(self) -> np.dtype[Any]:
        """The type that the operands have in common."""
        return result_type(tensor.kind for tensor in self.operands)

    @property
    def result(self) -> np.dtype[Any]:
        """The type of the array that comes out."""
        match self.out:
            case Tensor():
                return self.out.kind
            case "c" if self.c is not None:
                return self.c.kind
            case int():
                return self.operands[self.out].kind
        return self.common if self.dtype is None else np.dtype(self.dtype)

    def __str__(self) -> str:
        """The call, spelled out on one line."""
        parts = [repr(self.text), *map(str, self.operands)]
        parts += [f"{name}={value}" for name, value in self._options() if value is not None]
        return f"{self.verb.value}({', '.join(parts)})"

    def _options(self) -> list[tuple[str, Any]]:
        alpha, beta, gamma = self.scalars
        defaults: list[tuple[str, Any, Any]] = [
            ("interleaved", self.interleaved, False),
            ("op", self.binary, ()),
            ("out", self.out, None),
            ("c", self.c, None),
            ("alpha", alpha, 1),
            ("beta", beta, None),
            ("gamma", gamma, 1),
            ("operators", self.operators, None),
            ("padding", self.padding, None),
            ("padding_value", self.padding_value, 0),
            ("dtype", self.dtype, None),
            ("order", self.order, "F"),
            ("optimize", self.optimize, "auto"),
            ("preference", dict(self.preference), {}),
            ("memory_limit", self.memory.limit, None),
            ("workspace_limit", self.memory.workspace, None),
            ("workspace", "exact" if self.memory.given else None, None),
            ("slices", self.slices, None),
            ("compute_type", self.compute_type, None),
            ("constants", self.constants, ()),
            ("kernels", self.kernels, None),
            ("threads", self.threads, None),
            ("checked", self.checked, False),
            ("calls", self.calls, 1),
        ]
        return [(name, value) for name, value, default in defaults if value != default]


def name_of(dtype: np.dtype[Any]) -> str:
    return str(dtype.name)


def result_type(kinds: Any) -> np.dtype[Any]:
    """NumPy's, and float32 for the two 16-bit types."""
    types = [kind.newbyteorder("=") for kind in kinds]
    try:
        return np.result_type(*types)
    except TypeError:
        names = {kind.name for kind in types}
        if not names <= {"float16", "bfloat16", "float32", "float64", "complex64", "complex128"}:
            raise
        wide = [np.dtype("float32") if kind.itemsize == 2 else kind for kind in types]
        return np.result_type(*wide)
