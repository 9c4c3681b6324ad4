"""A request: notation, layouts and options -> a Call, planned and loaded once, then cached.

The key of a cached Call is the request as the caller wrote it: expression, options, and the
shape, strides and type (on a device the alignment too) of every array. A hit parses nothing and
builds no strings.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import NoneType
from typing import Any, Literal

import numpy as np

from contract.arrays.protocol import (
    Arrays,
    Layout,
    is_describable,
    require_free,
    require_host_scalar,
    type_name,
)
from contract.descriptors.compute_types import ComputeType, is_complex, item_size, promoted
from contract.descriptors.expression import Expression, interleaved, mode_extents, parse
from contract.descriptors.layout import overlaps, packed_strides
from contract.descriptors.operations import (
    AutotuneMode,
    CacheMode,
    Contraction,
    ElementwiseOperation,
    Operand,
    OperationDescriptor,
    Padding,
    PlanPreference,
    Reduction,
    TensorDescriptor,
)
from contract.descriptors.operators import BinaryOperator, Operator, unary
from contract.errors import InsufficientWorkspaceError, InvalidValueError, UnsupportedTypeError
from contract.execution.bound_plan import (
    Call,
    check_output_type,
    describe,
    is_castable,
    scalar_in,
)
from contract.execution.budget import Budget, fixed_bytes, usable
from contract.execution.executor import Loaded
from contract.session.handle import Handle
from contract.slices.fitting import Cuts, fitting_plan
from contract.support.memory_size import ADDRESSABLE_BYTES, memory_amount, memory_bytes
from contract.support.text import shown

__all__ = [
    "Combination",
    "Options",
    "Reducing",
    "Written",
    "call_for",
    "common_type",
    "operation_for",
    "path_of",
    "repeated",
    "resolve_notation",
]

MOST_DIMENSIONS = 64  # NumPy's limit and CuPy's; plans have none
Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
Written = str | tuple[tuple[tuple[Hashable, ...], ...], tuple[Hashable, ...] | None]


@dataclass(frozen=True, slots=True)
class Reducing:
    """The operands are reduced by ``operator``, not multiplied."""

    operator: BinaryOperator


@dataclass(frozen=True, slots=True)
class Combination:
    """The operands are combined element by element; a single one may be padded.

    ``padding`` has a pair of counts for each mode of the result.
    """

    operators: tuple[BinaryOperator, ...]
    padding: tuple[tuple[int, int], ...] | None = None
    padding_value: complex = field(default=0, compare=False)
    written: str = field(init=False)  # the value as it is compared: -0.0 is not 0.0, NaN is NaN

    def __post_init__(self) -> None:
        require_host_scalar("padding_value", self.padding_value)
        if np.ndim(self.padding_value):
            raise InvalidValueError(
                f"padding_value must be a scalar number: it is {shown(self.padding_value)}."
            )
        written = "" if self.padding is None else repr(self.padding_value)
        object.__setattr__(self, "written", written)


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may ask beyond the expression; the fields are the verbs' arguments.

    ``dtype`` is the type of products and sums (and of a result made here); None: NumPy's
    result type of the operands. ``casting`` is the rule by which ``out`` may have another type.
    ``axes`` are those of a new result, fastest first, where ``order`` does not say it.
    ``form`` says what is asked where that is not a contraction. ``same`` has for each operand the
    first that is the same array; empty where all differ. ``slices`` are (label, number of chunks),
    one for each mode to slice.
    """

    order: str = "F"
    compute_type: ComputeType | str | None = None
    operators: tuple[Operator | str | None, ...] | None = None
    optimize: Hashable = "auto"
    memory_limit: int | str | None = None
    preference: PlanPreference | None = None
    dtype: np.dtype[Any] | None = None
    casting: Casting = "same_kind"
    form: Reducing | Combination | None = None
    same: tuple[int, ...] = ()
    slices: Cuts | None = None
    axes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        self._check_types()
        if not isinstance(self.order, str) or self.layout not in ("F", "C", "K", "A"):
            raise InvalidValueError(
                f"order is one of 'F', 'C', 'K', 'A': it is {shown(self.order)}."
            )
        try:
            hash(self.optimize)
        except TypeError:
            raise InvalidValueError(
                f"optimize is a name, a path or an optimizer: it is {shown(self.optimize)}."
            ) from None
        if not isinstance(self.preference, (PlanPreference, NoneType)):
            raise InvalidValueError(
                f"preference is a PlanPreference: it is {shown(self.preference)}."
            )
        if self.memory_limit is not None:
            memory_amount("memory_limit", self.memory_limit)

    def _check_types(self) -> None:
        if not isinstance(self.compute_type, (ComputeType, str, NoneType)):
            raise InvalidValueError(
                f"compute_type is a ComputeType or its name: it is {shown(self.compute_type)}."
            )
        operators = () if self.operators is None else self.operators
        if not isinstance(operators, tuple) or not all(
            isinstance(each, (Operator, str, NoneType)) for each in operators
        ):
            raise InvalidValueError(
                "operators is a sequence of operators, their names or None: it is "
                f"{shown(operators)}."
            )

    @property
    def layout(self) -> str:
        """The order, whichever letters it was written with."""
        return self.order.upper()

    @property
    def compute(self) -> ComputeType | None:
        """The compute type asked for; its name is accepted as well."""
        if self.compute_type is None or isinstance(self.compute_type, ComputeType):
            return self.compute_type
        try:
            return ComputeType(self.compute_type)
        except ValueError:
            names = ", ".join(each.value for each in ComputeType)
            raise InvalidValueError(
                f"Unknown compute type {shown(self.compute_type)}; known are {names}."
            ) from None


def call_for(
    handle: Handle,
    written: Written,
    layouts: Sequence[Layout],
    options: Options,
    out: Layout | None = None,
    addend: Layout | None = None,
    runs: bool = False,
) -> Call:
    """Plan and load the request; nothing is allocated for operands or results.

    What needs more memory than there may be, or than there are addresses, is planned in slices
    where that can be done. A call that ``runs`` at once is refused before it is planned where
    memory lacks whatever the plan.
    """
    operation = operation_for(handle.arrays, written, layouts, options, out, addend)
    copied = tuple([at for at, layout in enumerate(layouts) if not is_describable(layout)])
    fixed = fixed_bytes(operation, copied, out, addend)
    if runs:
        require_free(handle.arrays, fixed, "its result and copies of operands")
    limit = memory_bytes("memory_limit", options.memory_limit, handle.arrays.available_bytes)
    budget = Budget(limit, fixed)
    try:
        loaded = _plan_within(handle, operation, options, budget)
    except InsufficientWorkspaceError as error:
        free = handle.arrays.available_bytes()
        if free is None or (error.needed or 0) <= ADDRESSABLE_BYTES:
            raise
        budget = Budget(usable(free), fixed)
        loaded = _plan_within(handle, operation, options, budget)
    return Call(loaded, copied, budget, out, addend)


def _plan_within(
    handle: Handle, operation: OperationDescriptor, options: Options, budget: Budget
) -> Loaded:
    """The plan, in slices where it has to be or shall be."""
    preference = _preference(handle, options, budget)
    try:
        loaded = fitting_plan(handle, operation, preference, options.slices)
    except InsufficientWorkspaceError as error:
        if budget.limit is None:
            raise
        sliced = None if error.sliced is None else budget.fixed + error.sliced
        raise budget.over(budget.fixed + (error.needed or 0), sliced) from None
    budget.require(budget.fixed)
    return loaded


def _preference(handle: Handle, options: Options, budget: Budget) -> PlanPreference:
    """The caller's preference, or the handle's, under the limit of the call.

    What is not kept between calls cannot be tuned by them.
    """
    given = handle.preference if options.preference is None else options.preference
    kept = handle.plans.capacity and given.cache_mode is not CacheMode.NONE
    autotune = given.autotune if kept else AutotuneMode.NONE
    path = path_of(handle, options)
    limit = budget.left(given.memory_limit)
    if (path, limit, autotune) == (given.path, given.memory_limit, given.autotune):
        return given
    return replace(given, path=path, memory_limit=limit, autotune=autotune)


def path_of(handle: Handle, options: Options) -> Hashable:
    """The path asked for by the call, else by its preference, else by the handle's."""
    given = handle.preference if options.preference is None else options.preference
    return given.path if options.optimize == "auto" else options.optimize


def resolve_notation(written: Written, shapes: Sequence[tuple[int, ...]]) -> Expression:
    """What was written, as modes of operands of these shapes."""
    return _resolved(written, tuple(map(len, shapes)))


@lru_cache(maxsize=1024)  # a function of its arguments alone; programs write few texts often
def _resolved(written: Written, ranks: tuple[int, ...]) -> Expression:
    if isinstance(written, str):
        return parse(written, len(ranks)).resolve(ranks)
    return interleaved(*written).resolve(ranks)


def operation_for(
    arrays: Arrays,
    written: Written,
    layouts: Sequence[Layout],
    options: Options,
    out: Layout | None = None,
    addend: Layout | None = None,
) -> OperationDescriptor:
    """What the request asks for, as a descriptor."""
    shapes = [layout.shape for layout in layouts]
    expression = resolve_notation(written, shapes)
    extents = mode_extents(expression.inputs, shapes, expression.labels)
    shape = tuple([extents[mode] for mode in expression.output])
    if len(shape) > MOST_DIMENSIONS:
        raise InvalidValueError(
            f"An array has at most {MOST_DIMENSIONS} dimensions: the result has {len(shape)}."
        )
    operators = _operators(options.operators, len(layouts), addend is not None)
    terms = zip(layouts, expression.inputs, operators, strict=False)
    inputs = tuple([Operand(describe(x), modes, operator) for x, modes, operator in terms])
    dtype = _type_of_result(layouts, options)
    item_size(type_name(dtype))
    is_fixed = out is not None or options.layout != "K" or options.axes is not None
    free = not is_fixed and _is_distinct(expression.output)
    if isinstance(options.form, Combination):
        padding = _padding(options.form, dtype if out is None else out.dtype, len(shape))
        result = Operand(
            _output_tensor(arrays, _padded(shape, padding), dtype, layouts, options, out),
            expression.output,
        )
        return ElementwiseOperation(
            inputs,
            result,
            options.form.operators,
            padding,
            expression.labels,
            _computing_type(layouts, np.dtype(result.tensor.dtype)).name,
            options.compute,
            free and padding is None,
        )
    result = Operand(_output_tensor(arrays, shape, dtype, layouts, options, out), expression.output)
    c = None if addend is None else _addend(result, dtype, addend, operators[-1])
    common = (expression.labels, type_name(dtype), options.compute, free)
    if isinstance(options.form, Reducing):
        return Reduction(inputs, result, c, options.form.operator, *common)
    return Contraction(inputs, result, c, *common, options.same)


def _type_of_result(layouts: Sequence[Layout], options: Options) -> np.dtype[Any]:
    """The operands' common type, or the one asked for if they may be cast to it."""
    common, asked = _common_type(layouts), options.dtype
    if asked is None:
        return common
    if not is_castable(common.newbyteorder("="), asked, options.casting):
        raise UnsupportedTypeError(
            f"dtype {asked.name} cannot hold what operands of type {common.name} give, by rule "
            f"{options.casting!r}."
        )
    return asked


def _padding(form: Combination, dtype: np.dtype[Any], count: int) -> Padding | None:
    """The padding with its value in the result's type."""
    if form.padding is None:
        return None
    if len(form.padding) != count:
        raise InvalidValueError(
            f"One pair of padding for each mode of the result: {count} modes, "
            f"{len(form.padding)} pairs."
        )
    value = scalar_in(dtype, "padding_value", form.padding_value)
    left, right = (tuple(pair[side] for pair in form.padding) for side in (0, 1))
    # Plans hold numbers of Python, which are the same in every process.
    return Padding(left, right, value.item() if isinstance(value, np.generic) else value)


def _padded(shape: tuple[int, ...], padding: Padding | None) -> tuple[int, ...]:
    if padding is None:
        return shape
    return tuple(
        left + n + right for left, n, right in zip(padding.left, shape, padding.right, strict=True)
    )


def _is_distinct(modes: Sequence[int]) -> bool:
    return len(set(modes)) == len(modes)


def _operators(
    chosen: tuple[Operator | str | None, ...] | None, count: int, with_c: bool
) -> tuple[Operator, ...]:
    """One operator for each operand, then one for C."""
    if chosen is None:
        return (Operator.IDENTITY,) * (count + 1)
    if len(chosen) != count and not (with_c and len(chosen) == count + 1):
        raise InvalidValueError(
            f"One operator for each operand{', and one for c at most' * with_c}: {count} operands, "
            f"{len(chosen)} operators."
        )
    return (*map(unary, chosen), Operator.IDENTITY)[: count + 1]


def repeated(operands: Sequence[Any]) -> tuple[int, ...]:
    """For each operand the first that is the same object; empty where all differ.

    Of two operands there are no products to be shared, so nobody asks.
    """
    if len(operands) < 3 or len(set(map(id, operands))) == len(operands):
        return ()
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(x), at) for at, x in enumerate(operands))


def _common_type(layouts: Sequence[Layout]) -> np.dtype[Any]:
    return common_type(layout.dtype for layout in layouts)


def common_type(dtypes: Iterable[np.dtype[Any]]) -> np.dtype[Any]:
    """NumPy's, and float32 for float16 and bfloat16; UnsupportedTypeError if there is none."""
    types = list(dtypes)
    try:
        return np.result_type(*types)
    except TypeError:
        common = promoted(dtype.name for dtype in types)  # of float16 and bfloat16
    if common is None:
        names = ", ".join(dtype.name for dtype in types)
        raise UnsupportedTypeError(f"There is no common type for {names}.")
    return np.dtype(common)


def _computing_type(layouts: Sequence[Layout], result: np.dtype[Any]) -> np.dtype[Any]:
    """The type elements are combined in: the operands' and the result's common type.

    Integers are combined in the wider of both, and wrap around when they are stored.
    """
    common = _common_type(layouts)
    if common.kind in "iu" and result.kind in "iu":
        return common if common.itemsize >= result.itemsize else result
    return common_type((common, result))


def _output_tensor(
    arrays: Arrays,
    shape: tuple[int, ...],
    result: np.dtype[Any],
    layouts: Sequence[Layout],
    options: Options,
    out: Layout | None,
) -> TensorDescriptor:
    if out is None:
        strides = _output_strides(shape, layouts, options)
        return TensorDescriptor(shape, strides, type_name(result), arrays.new_alignment(result))
    out_shape, out_strides, dtype, _ = out
    if out_shape != shape:
        raise InvalidValueError(f"out has shape {out_shape}, the result has shape {shape}.")
    check_output_type(result, dtype, options.casting)
    tensor = describe(out)
    if overlaps((*out_shape, dtype.itemsize), (*out_strides, 1)):
        raise InvalidValueError(
            f"An output must not overlap itself: out has shape {out_shape} and strides "
            f"{out_strides} bytes."
        )
    return tensor


def _output_strides(
    shape: tuple[int, ...], layouts: Sequence[Layout], options: Options
) -> tuple[int, ...]:
    if options.axes is not None:
        return packed_strides(shape, options.axes)
    order = options.layout
    if order == "C" or (order == "A" and not all(_is_column_major(each) for each in layouts)):
        return packed_strides(shape[::-1])[::-1]
    return packed_strides(shape)


def _is_column_major(layout: Layout) -> bool:
    shape, strides, dtype, _ = layout
    packed = packed_strides(shape)
    return all(
        extent == 1 or stride == step * dtype.itemsize
        for extent, stride, step in zip(shape, strides, packed, strict=True)
    )


def _addend(result: Operand, dtype: np.dtype[Any], layout: Layout, operator: Operator) -> Operand:
    shape, c_type = layout.shape, layout.dtype
    if shape != result.tensor.extents:
        raise InvalidValueError(
            f"c has shape {shape}, the result has shape {result.tensor.extents}."
        )
    if not np.can_cast(c_type, dtype, "same_kind"):
        raise UnsupportedTypeError(
            f"c of type {c_type.name} cannot be added to a result of type {dtype.name}."
        )
    if operator is not Operator.IDENTITY and is_complex(dtype.name) != is_complex(c_type.name):
        raise UnsupportedTypeError(
            f"Operator {operator.name} acts on c in the type of the result, {dtype.name}: c is "
            f"{c_type.name}."
        )
    return Operand(describe(layout), result.modes, operator)
