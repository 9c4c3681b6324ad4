"""What is asked, without arrays: tensors, operands, the operation, and preferences."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import prod
from operator import index, mul
from typing import Any

from contract.descriptors.compute_types import (
    COMPUTE_TYPES,
    ComputeType,
    Family,
    Rule,
    holds,
    is_complex,
    item_size,
    promoted,
    rule,
)
from contract.descriptors.expression import parse_layout
from contract.descriptors.layout import (
    named_layout,
    overlaps,
    packed_strides,
    span,
    vectorised_layout,
)
from contract.descriptors.operators import BinaryOperator, Operator, require, require_binary
from contract.errors import InvalidValueError, UnsupportedTypeError
from contract.support.choices import Choice
from contract.support.memory_size import ADDRESSABLE_BYTES, memory_bytes
from contract.support.text import shown

__all__ = [
    "Algo",
    "AutotuneMode",
    "CacheMode",
    "Contraction",
    "ElementwiseOperation",
    "JitMode",
    "Operand",
    "OperationDescriptor",
    "Padding",
    "PlanPreference",
    "Reduction",
    "TensorDescriptor",
    "WorkspacePreference",
    "frozen",
    "is_integer",
    "require_kind",
]


@dataclass(frozen=True, slots=True)
class TensorDescriptor:
    """T[i0, i1, ...] lies at element sum(i * stride) from the tensor's origin.

    ``extents`` and ``strides`` count elements; ``strides=None`` means packed column-major: the
    first mode has stride 1. Strides may be zero or negative. ``dtype`` is NumPy's name.
    ``alignment`` (bytes) is a power of two that divides the address of the origin; 0: the item
    size. A GPU moves more at once where it is larger.
    """

    extents: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    dtype: str = "float64"
    alignment: int = 0

    def __post_init__(self) -> None:
        extents = _integers("extents", self.extents)
        if extents and min(extents) < 0:
            raise InvalidValueError(f"Extents must not be negative: they are {extents}.")
        alignment = _alignment(self.alignment, self.dtype)
        given = self.strides
        strides = packed_strides(extents) if given is None else _integers("strides", given)
        if len(strides) != len(extents):
            raise InvalidValueError(
                f"One stride for each extent: {len(extents)} extents {extents}, "
                f"{len(strides)} strides {strides}."
            )
        object.__setattr__(self, "extents", extents)
        object.__setattr__(self, "strides", strides)
        object.__setattr__(self, "alignment", alignment)

    @classmethod
    def named(
        cls, layout: str, extents: Mapping[str, int], dtype: str = "float64"
    ) -> "TensorDescriptor":
        """A tensor in a named layout, such as "NHWC" or "NC/32HW32", packed.

        Its modes are those of ``extents`` in that order; in a vectorised layout they are N,
        C/x, (D,) H, W, x.
        """
        if not isinstance(extents, Mapping):
            raise InvalidValueError(
                f"extents has one for each mode by name: it is {shown(extents)}."
            )
        _integers("extents", extents.values())
        modes, group = parse_layout(layout)
        if group:
            _, sizes, strides = vectorised_layout(extents, group)
            return cls(sizes, strides, dtype)
        by_mode = named_layout(modes, extents)
        return cls(tuple(extents.values()), tuple(by_mode[mode] for mode in extents), dtype)

    @property
    def steps(self) -> tuple[int, ...]:
        """The strides in elements, never None."""
        assert self.strides is not None
        return self.strides

    @property
    def packed_bytes(self) -> int:
        """Bytes of a packed tensor of these extents."""
        return prod(self.extents) * item_size(self.dtype)

    def __str__(self) -> str:
        extents = ",".join(map(str, self.extents))
        aligned = "" if self.alignment == item_size(self.dtype) else f"@{self.alignment}"
        return f"{self.dtype}[{extents}]:[{','.join(map(str, self.steps))}]{aligned}"


def _integers(name: str, values: Any) -> tuple[int, ...]:
    try:
        return tuple(map(index, values))
    except TypeError:
        raise InvalidValueError(f"{name} are integers: they are {shown(values)}.") from None


def _alignment(alignment: Any, dtype: str) -> int:
    """The alignment in bytes, where 0 is the item size."""
    size = item_size(dtype)
    if is_integer(alignment) and alignment in (0, size):
        return size
    is_power = is_integer(alignment) and alignment > 0 and not alignment & (alignment - 1)
    if not is_power:
        raise InvalidValueError(
            f"An alignment is a power of two, in bytes: it is {shown(alignment)} for {dtype}."
        )
    return int(alignment)


def is_integer(value: Any) -> bool:
    """Whether it is a number to count with, which a truth value is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_kind(name: str, value: Any, kind: Any) -> None:
    """InvalidValueError unless ``value`` is of a class, or of one of a union of them."""
    if not isinstance(value, kind):
        raise InvalidValueError(
            f"{name} is of type {getattr(kind, '__name__', kind)}: it is {shown(value)}."
        )


def _require_hashable(name: str, value: Any) -> None:
    try:
        hash(value)
    except TypeError:
        raise InvalidValueError(f"{name} is hashable, as keys are: it is {shown(value)}.") from None


FAR_BELOW = ADDRESSABLE_BYTES >> 10  # elements


def _require_addressable(tensor: TensorDescriptor) -> None:
    """InvalidValueError for a tensor that no array can be: offsets are numbers of 64 bits."""
    extents, steps = tensor.extents, tensor.steps
    most = prod([extent or 1 for extent in extents]), sum(map(mul, extents, map(abs, steps)))
    if max(most) < FAR_BELOW:  # for nearly all tensors, and sooner than the exact number
        return
    needed = max(most[0], span(extents, steps)) * item_size(tensor.dtype)
    if needed > ADDRESSABLE_BYTES:
        raise InvalidValueError(
            f"A tensor has at most {ADDRESSABLE_BYTES} bytes: {tensor} has {needed}."
        )


@dataclass(frozen=True, slots=True)
class Operand:
    """op(T) with one mode for each dimension of the tensor; a repeated mode is a diagonal.

    Modes are any hashable labels, such as the letters of a string. An operation numbers them.
    """

    tensor: TensorDescriptor
    modes: tuple[Any, ...]
    operator: Operator = Operator.IDENTITY

    def __post_init__(self) -> None:
        if type(self.tensor) is not TensorDescriptor or type(self.operator) is not Operator:
            require_kind("The tensor of an operand", self.tensor, TensorDescriptor)
            require_kind("The operator of an operand", self.operator, Operator)
        try:
            object.__setattr__(self, "modes", tuple(self.modes))
            hash(self.modes)
        except TypeError:
            raise InvalidValueError(
                f"Modes are hashable labels: they are {shown(self.modes)}."
            ) from None
        if len(self.modes) != len(self.tensor.extents):
            raise InvalidValueError(
                f"One mode for each dimension: {len(self.tensor.extents)} dimensions, "
                f"{len(self.modes)} modes."
            )


@dataclass(frozen=True, slots=True)
class Contraction:
    """D = alpha * op(T1) * op(T2) * ... + beta * op(C), summed over the modes D has not.

    Any number of inputs from one: one input permutes, takes diagonals and reduces. ``compute``
    is the minimum accuracy (None: the default for the types). ``dtype`` is the type whose row
    of the tables governs; empty: the type the operands have in common, which D then has too.
    ``labels`` name the modes once they are numbers. With ``free_layout`` the plan may choose
    D's memory order. ``same`` has for each input the first one that always holds the same
    elements; empty: each holds its own. alpha and beta belong to execution; whether C is read
    stands here.
    """

    inputs: tuple[Operand, ...]
    output: Operand
    addend: Operand | None = None
    labels: tuple[str, ...] = ()
    dtype: str = ""
    compute: ComputeType | None = None
    free_layout: bool = False
    same: tuple[int, ...] = ()
    rule: Rule = field(init=False, compare=False)  # follows from the others

    def __post_init__(self) -> None:
        _freeze(self, "same")
        if not self.inputs:
            raise InvalidValueError("A contraction needs at least one operand.")
        _check_same(self.same, self.inputs)
        _number_modes(self, "addend")
        _find_rule(self, Family.CONTRACTION, self.addend)


def _check_same(same: tuple[int, ...], inputs: tuple[Operand, ...]) -> None:
    if same and len(same) != len(inputs):
        raise InvalidValueError(
            f"same has one number for each input: {len(inputs)} inputs, {len(same)} numbers."
        )
    for at, first in enumerate(same):
        require_kind("The number of an input", first, int)
        if not 0 <= first <= at or inputs[first].tensor != inputs[at].tensor:
            raise InvalidValueError(
                f"An input is the same as an earlier one of its layout and type: input {at} is "
                f"not the same as input {first}."
            )


@dataclass(frozen=True, slots=True)
class Reduction:
    """D = alpha * reduce(op(A)) + beta * op(C): A's modes that D has not are reduced.

    ``operator`` is ADD, MUL, MAX or MIN. The other fields are those of Contraction.
    """

    inputs: tuple[Operand, ...]
    output: Operand
    addend: Operand | None = None
    operator: BinaryOperator = BinaryOperator.ADD
    labels: tuple[str, ...] = ()
    dtype: str = ""
    compute: ComputeType | None = None
    free_layout: bool = False
    rule: Rule = field(init=False, compare=False)  # follows from the others

    def __post_init__(self) -> None:
        _freeze(self)
        if len(self.inputs) != 1:
            raise InvalidValueError(f"A reduction has one operand: it got {len(self.inputs)}.")
        require_kind("The operator of a reduction", self.operator, BinaryOperator)
        _number_modes(self, "addend")
        _require_distinct(self.output)
        _find_rule(self, Family.REDUCTION, self.addend)
        require_binary(self.operator, self.rule.accumulator)


@dataclass(frozen=True, slots=True)
class Padding:
    """``left`` and ``right`` elements of ``value`` around each dimension of a result."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    value: complex = field(default=0, compare=False)
    written: str = field(init=False)  # the value as it is compared: -0.0 is not 0.0, NaN is NaN

    def __post_init__(self) -> None:
        object.__setattr__(self, "left", _integers("Paddings", self.left))
        object.__setattr__(self, "right", _integers("Paddings", self.right))
        object.__setattr__(self, "written", repr(self.value))
        if len(self.left) != len(self.right) or min((*self.left, *self.right), default=0) < 0:
            raise InvalidValueError(
                f"Padding is 0 or more elements on both sides of each dimension: it is "
                f"{self.left} on the left, {self.right} on the right."
            )


@dataclass(frozen=True, slots=True)
class ElementwiseOperation:
    """One to three operands combined element by element; a missing mode broadcasts.

    One: D = alpha * op(A), cuTENSOR's permutation, with optional padding.
    Two: D = opAC(alpha * op(A), gamma * op(C)), its elementwise binary operation.
    Three: D = opABC(opAB(alpha * op(A), beta * op(B)), gamma * op(C)), its trinary one.
    ``operators`` are opAC, or opAB and opABC. The other fields are those of Contraction.
    """

    inputs: tuple[Operand, ...]
    output: Operand
    operators: tuple[BinaryOperator, ...] = ()
    padding: Padding | None = None
    labels: tuple[str, ...] = ()
    dtype: str = ""
    compute: ComputeType | None = None
    free_layout: bool = False
    rule: Rule = field(init=False, compare=False)  # follows from the others

    def __post_init__(self) -> None:
        _freeze(self, "operators")
        if self.padding is not None:
            require_kind("padding", self.padding, Padding)
        if not 1 <= len(self.inputs) <= 3:
            raise InvalidValueError(
                f"An elementwise operation has one to three operands: it got {len(self.inputs)}."
            )
        if len(self.operators) != len(self.inputs) - 1:
            raise InvalidValueError(
                f"One operator between two operands: {len(self.inputs)} operands, "
                f"{len(self.operators)} operators."
            )
        for operator in self.operators:
            require_kind("The operator between operands", operator, BinaryOperator)
        _number_modes(self)
        _check_elementwise(self)
        family = Family.ELEMENTWISE if self.operators else Family.PERMUTATION
        _find_rule(self, family)
        for operator in self.operators:
            require_binary(operator, self.rule.accumulator)

    @property
    def addend(self) -> None:
        """An elementwise operation scales C as one of its inputs."""


OperationDescriptor = Contraction | Reduction | ElementwiseOperation


def _freeze(operation: OperationDescriptor, *more: str) -> None:
    """Sequences among the fields become tuples; InvalidValueError for what is none."""
    for name in ("inputs", "labels", *more):
        value = getattr(operation, name)
        require_kind(name, value, tuple | list)
        object.__setattr__(operation, name, tuple(value))
    texts = *operation.labels, operation.dtype
    if not all([isinstance(text, str) for text in texts]):
        for text in texts:
            require_kind("A label, or a data type,", text, str)


def _number_modes(operation: OperationDescriptor, *more: str) -> None:
    """Replace labels by their numbers in order of appearance, unless that has been done."""
    operands = [*operation.inputs, operation.output]
    operands += [operation.addend] if operation.addend is not None else []
    for operand in operands:
        require_kind("An operand", operand, Operand)
        _require_addressable(operand.tensor)
    if operation.labels:
        _check_numbers(operands, len(operation.labels))
        return
    numbers: dict[Any, int] = {}
    for operand in operation.inputs:
        for mode in operand.modes:
            numbers.setdefault(mode, len(numbers))
    inputs = tuple(_numbered(operand, numbers) for operand in operation.inputs)
    object.__setattr__(operation, "inputs", inputs)
    for name in ("output", *more):
        operand = getattr(operation, name)
        if operand is not None:
            object.__setattr__(operation, name, _numbered(operand, numbers))
    object.__setattr__(operation, "labels", tuple(map(str, numbers)))


def _check_numbers(operands: Iterable[Operand], count: int) -> None:
    for operand in operands:
        for mode in operand.modes:
            if not isinstance(mode, int) or not 0 <= mode < count:
                raise InvalidValueError(f"With labels, modes count them: {mode!r} does not.")


def _numbered(operand: Operand, numbers: Mapping[Any, int]) -> Operand:
    for mode in operand.modes:
        if mode not in numbers:
            raise InvalidValueError(f"Mode {mode!r} of the result is in no operand.")
    return replace(operand, modes=tuple(numbers[mode] for mode in operand.modes))


def _find_rule(
    operation: OperationDescriptor, family: Family, addend: Operand | None = None
) -> None:
    """Set the rule, and refuse types that no row of the tables has."""
    if operation.compute is not None:
        require_kind("The compute type", operation.compute, ComputeType)
    tensor = operation.output.tensor
    if overlaps(tensor.extents, tensor.steps):
        raise InvalidValueError(f"An output must not overlap itself: it is {tensor}.")
    inputs = tuple([operand.tensor.dtype for operand in operation.inputs])
    result = operation.output.tensor.dtype
    given = operation.dtype
    narrows = family in (Family.ELEMENTWISE, Family.PERMUTATION)
    common = given or promoted((*inputs, result) if narrows else inputs)
    if common is None or (not given and not narrows and common != result):
        rows = ", ".join(COMPUTE_TYPES[family])
        raise UnsupportedTypeError(
            f"A {family.value} of {', '.join(inputs)} into {result} is not supported: operands "
            f"have the result's type, one of {rows} or another type alone."
        )
    if addend is not None and not given and addend.tensor.dtype != result:
        raise UnsupportedTypeError(
            f"C has the type of D: they have {addend.tensor.dtype} and {result}."
        )
    found = rule(family, inputs, common, operation.compute)
    object.__setattr__(operation, "rule", found)
    object.__setattr__(operation, "dtype", common)
    object.__setattr__(operation, "compute", found.compute)
    _check_operators(operation, addend)


def _check_operators(operation: OperationDescriptor, addend: Operand | None) -> None:
    """Refuse operators that an operand's type has not; CONJ of a real number is IDENTITY."""
    if any([operand.operator is not Operator.IDENTITY for operand in operation.inputs]):
        _check_inputs(operation)
    if addend is not None:
        require(addend.operator, addend.tensor.dtype, "C")
        object.__setattr__(operation, "addend", _without_idle_conj(addend))
    if operation.output.operator is not Operator.IDENTITY:
        raise InvalidValueError(
            f"The result has no operator: it got {operation.output.operator.name}."
        )


def _check_inputs(operation: OperationDescriptor) -> None:
    inputs = []
    for at, operand in enumerate(operation.inputs):
        require(operand.operator, operand.tensor.dtype, f"operand {at}")
        if operation.dtype == "object":
            require(operand.operator, "object", f"operand {at}")
        inputs.append(_without_idle_conj(operand))
    object.__setattr__(operation, "inputs", tuple(inputs))


def _without_idle_conj(operand: Operand) -> Operand:
    dtype = operand.tensor.dtype
    idle = operand.operator is Operator.CONJ and dtype != "object" and not is_complex(dtype)
    return replace(operand, operator=Operator.IDENTITY) if idle else operand


def _require_distinct(output: Operand) -> None:
    if len(set(output.modes)) < len(output.modes):
        raise InvalidValueError("The modes of the result are distinct; contract writes diagonals.")


def _check_elementwise(operation: ElementwiseOperation) -> None:
    output = operation.output
    _require_distinct(output)
    for at, operand in enumerate(operation.inputs):
        for mode in operand.modes:
            if mode not in output.modes:
                raise InvalidValueError(
                    f"Mode {operation.labels[mode]!r} of operand {at} is not in the result: "
                    "an elementwise operation does not reduce."
                )
    padding = operation.padding
    if padding is not None and operation.operators:
        raise InvalidValueError("Only a permutation of one operand can be padded.")
    if padding is not None and len(padding.left) != len(output.modes):
        raise InvalidValueError(
            f"One pair of padding for each mode of the result: {len(output.modes)} modes, "
            f"{len(padding.left)} pairs."
        )
    if padding is not None and not holds(output.tensor.dtype, padding.value):
        raise InvalidValueError(
            f"The padding's value must be a value of {output.tensor.dtype}: "
            f"it is {shown(padding.value)}."
        )


class Algo(Choice):
    """Shapes of step lists: what a plan is made of."""

    DEFAULT = "default"  # the cheapest by model
    DEFAULT_PATIENT = "default patient"  # the fastest of all, measured when it is planned
    GEMM = "gemm"  # one matrix product, operands used where they lie
    GETT = "gett"  # one product on strided operands, packed panel by panel
    TTGT = "ttgt"  # permutations, a matrix product, a permutation; GEMM where none is needed
    TGETT = "tgett"  # permutations of what is far apart in memory, one product on strided operands
    ELEMENTWISE = "elementwise"  # nothing summed: products of elements
    ONE_PASS = "one pass"  # no product: elements permuted or reduced


class JitMode(Choice):
    """Whether kernels are compiled for one descriptor; the host's kernels never are."""

    NONE = "none"  # a kernel serves all extents of its kind
    DEFAULT = "default"  # extents and strides are constants of the kernel


class AutotuneMode(Choice):
    """Whether calls measure candidates before one of them stays."""

    NONE = "none"
    INCREMENTAL = "incremental"  # each call runs the next candidate, then the fastest stays


class CacheMode(Choice):
    """Whether the plan is kept in the handle's plan cache."""

    NONE = "none"  # neither looked up nor kept
    PEDANTIC = "pedantic"  # found again by exactly the same operation and preference


@dataclass(frozen=True, slots=True)
class PlanPreference:
    """How to plan: the algorithm, the n-th best candidate, limits, and the contraction path.

    ``path`` is what opt_einsum takes as ``optimize``: a name, an explicit path, or an optimizer.
    ``workspace_limit`` (bytes) excludes plans with more workspace, ``memory_limit`` (bytes) those
    that take more beside operands and result all together: the tiles of the host's steps too.
    Limits may be written as "500MiB".
    ``jit_mode`` decides whether kernels are compiled for the extents of the plan. Incremental
    tuning measures ``incremental_count`` candidates.
    """

    algo: Algo = Algo.DEFAULT
    kernel_rank: int = 0
    workspace_limit: int | None = None
    path: Hashable | Any = "auto"
    jit_mode: JitMode = JitMode.NONE
    autotune: AutotuneMode = AutotuneMode.NONE
    incremental_count: int = 4
    cache_mode: CacheMode = CacheMode.PEDANTIC
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        kinds = (("algo", Algo), ("jit_mode", JitMode), ("autotune", AutotuneMode))
        for name, kind in (*kinds, ("cache_mode", CacheMode)):
            if type(getattr(self, name)) is not kind:
                require_kind(name, getattr(self, name), kind)
        if not is_integer(self.incremental_count) or self.incremental_count < 1:
            raise InvalidValueError(
                "incremental_count is an integer of 1 or more: it is "
                f"{shown(self.incremental_count)}."
            )
        if not isinstance(self.path, str):
            object.__setattr__(self, "path", frozen(self.path))
            _require_hashable("path", self.path)
        for name in ("workspace_limit", "memory_limit"):
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, memory_bytes(name, value, _not_known))
        for name in ("kernel_rank", "workspace_limit", "memory_limit"):
            value = getattr(self, name)
            if value is not None and (not is_integer(value) or value < 0):
                raise InvalidValueError(f"{name} is an integer of 0 or more: it is {shown(value)}.")

    @property
    def temporary_limit(self) -> int | None:
        """Bytes that temporary tensors may take by either limit; None without limits."""
        one, other = self.workspace_limit, self.memory_limit
        if one is None or other is None:
            return other if one is None else one
        return min(one, other)


def _not_known() -> None:
    """A preference is not bound to a device: there is no memory to take a share of."""


class WorkspacePreference(Enum):
    """Which plan a workspace is estimated for."""

    MIN = "min"  # the candidate that needs least
    DEFAULT = "default"  # the candidate that is chosen
    MAX = "max"  # the candidate that needs most


def frozen(value: Any) -> Any:
    """Lists as tuples, so that a path, or another option, can be part of a key."""
    return tuple(map(frozen, value)) if isinstance(value, (list, tuple)) else value
