"""A request: notation, layouts and options -> a Call, planned and loaded once, then cached.

The key of a cached Call is the request as the caller wrote it: expression, options, and the
shape, strides and type of every array. A hit parses nothing and builds no strings.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import numpy as np

from contract.compute import ComputeType, accumulator, is_complex, item_size, resolve, scalar_type
from contract.descriptors import Contraction, Operand, PlanPreference, TensorDescriptor
from contract.errors import (
    InsufficientWorkspaceError,
    InvalidValueError,
    NotSupportedError,
    UnsupportedTypeError,
)
from contract.expression import Expression, interleaved, mode_extents, parse
from contract.handle import Handle
from contract.layout import overlaps, packed_strides
from contract.operators import Operator, require, unary
from contract.run.call import Call, check_output_type, describe, is_describable
from contract.run.host_views import Array

__all__ = [
    "Layout",
    "Options",
    "Written",
    "as_array",
    "call_for",
    "layout_of",
    "layouts_of",
    "operation_for",
    "resolve_notation",
]

MOST_DIMENSIONS = 64  # NumPy's limit; plans have none
Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
Layout = tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any]]  # shape, byte strides, type
Written = str | tuple[tuple[tuple[Hashable, ...], ...], tuple[Hashable, ...] | None]


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may ask beyond the expression; the fields are ``contract``'s arguments.

    ``dtype`` is the type of products and sums (and of a result made here); None: NumPy's
    result type of the operands. ``casting`` is the rule by which ``out`` may have another type.
    """

    order: str = "F"
    compute_type: ComputeType | str | None = None
    operators: tuple[Operator | str | None, ...] | None = None
    optimize: Hashable = "auto"
    memory_limit: int | None = None
    dtype: np.dtype[Any] | None = None
    casting: Casting = "same_kind"

    def __post_init__(self) -> None:
        self._check_types()
        if self.order not in ("F", "C", "K", "A"):
            raise InvalidValueError(f"order is one of 'F', 'C', 'K', 'A': it is {self.order!r}.")
        limit = self.memory_limit
        if limit is not None and (not isinstance(limit, int) or limit < 0):
            raise InvalidValueError(f"memory_limit is a number of bytes: it is {limit!r}.")

    def _check_types(self) -> None:
        if not isinstance(self.compute_type, ComputeType | str | None):
            raise InvalidValueError(
                f"compute_type is a ComputeType or its name: it is {self.compute_type!r}."
            )
        operators = () if self.operators is None else self.operators
        if not isinstance(operators, tuple) or not all(
            isinstance(each, Operator | str | None) for each in operators
        ):
            raise InvalidValueError(
                f"operators is a sequence of operators, their names or None: it is {operators!r}."
            )

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
                f"Unknown compute type {self.compute_type!r}; known are {names}."
            ) from None


def as_array(x: Any) -> Array:
    """``x`` as a base-class ndarray."""
    return x if type(x) is np.ndarray else np.asarray(x)


def layout_of(x: Array) -> Layout:
    """Shape, strides in bytes, and type."""
    return x.shape, x.strides, x.dtype


def layouts_of(arrays: Sequence[Any]) -> list[Any] | None:
    """Shape, strides, type of every array in a row; None if one is no plain NumPy array."""
    layouts: list[Any] = []
    for x in arrays:
        if type(x) is not np.ndarray:
            return None
        layouts += (x.shape, x.strides, x.dtype)
    return layouts


def call_for(
    handle: Handle,
    written: Written,
    layouts: Sequence[Layout],
    options: Options,
    out: Layout | None = None,
    addend: Layout | None = None,
) -> Call:
    """Plan and load the request; nothing is allocated for operands or results."""
    operation = operation_for(written, layouts, options, out, addend)
    copied = tuple(
        at for at, (_, strides, dtype) in enumerate(layouts) if not is_describable(dtype, strides)
    )
    smallest: int | None = None
    for rank in count():
        preference = PlanPreference(
            kernel_rank=rank, memory_limit=options.memory_limit, path=options.optimize
        )
        try:
            plan = handle.plan(operation, preference)
        except NotSupportedError:
            break
        loaded = handle.executor.load(plan)
        call = Call(loaded, copied, scalar_type(operation.accumulator), options.memory_limit)
        needed = call.needed_bytes - (call.fresh_bytes if out else 0)
        if options.memory_limit is None or needed <= options.memory_limit:
            return call
        smallest = needed if smallest is None else min(smallest, needed)
    raise InsufficientWorkspaceError(
        f"The call needs {smallest} bytes for its result and workspace, memory_limit is "
        f"{options.memory_limit} bytes."
    )


def resolve_notation(written: Written, shapes: Sequence[tuple[int, ...]]) -> Expression:
    """What was written, as modes of operands of these shapes."""
    if isinstance(written, str):
        notation = parse(written, len(shapes))
    else:
        notation = interleaved(*written)
    return notation.resolve([len(shape) for shape in shapes])


def operation_for(
    written: Written,
    layouts: Sequence[Layout],
    options: Options,
    out: Layout | None = None,
    addend: Layout | None = None,
) -> Contraction:
    """What the request asks for, as a descriptor."""
    shapes = [shape for shape, _, _ in layouts]
    expression = resolve_notation(written, shapes)
    extents = mode_extents(expression.inputs, shapes, expression.labels)
    inputs = _inputs(expression, layouts, options.operators)
    result = _result_type(layouts) if options.dtype is None else options.dtype
    item_size(result.name)
    shape = tuple(extents[mode] for mode in expression.output)
    if len(shape) > MOST_DIMENSIONS:
        raise InvalidValueError(
            f"A NumPy array has at most {MOST_DIMENSIONS} dimensions: the result has {len(shape)}."
        )
    compute = resolve(tuple(op.tensor.dtype for op in inputs), result.name, options.compute)
    return Contraction(
        inputs=inputs,
        output=Operand(_output_tensor(shape, result, layouts, options, out), expression.output),
        addend=None if addend is None else _addend(expression, shape, result, addend),
        labels=expression.labels,
        accumulator=accumulator(result.name),
        compute=compute,
        free_layout=out is None and options.order == "K" and _is_distinct(expression.output),
    )


def _is_distinct(modes: Sequence[int]) -> bool:
    return len(set(modes)) == len(modes)


def _inputs(
    expression: Expression,
    layouts: Sequence[Layout],
    operators: tuple[Operator | str | None, ...] | None,
) -> tuple[Operand, ...]:
    chosen = (None,) * len(layouts) if operators is None else operators
    if len(chosen) != len(layouts):
        raise InvalidValueError(
            f"One operator for each operand: {len(layouts)} operands, {len(chosen)} operators."
        )
    inputs = []
    for at, (layout, modes, name) in enumerate(
        zip(layouts, expression.inputs, chosen, strict=True)
    ):
        tensor, operator = describe(*layout), unary(name)
        require(operator, tensor.dtype, at)
        if operator is Operator.CONJ and tensor.dtype != "object" and not is_complex(tensor.dtype):
            operator = Operator.IDENTITY
        inputs.append(Operand(tensor, modes, operator))
    return tuple(inputs)


def _result_type(layouts: Sequence[Layout]) -> np.dtype[Any]:
    types = [dtype for _, _, dtype in layouts]
    try:
        return np.result_type(*types)
    except TypeError:
        names = ", ".join(dtype.name for dtype in types)
        raise UnsupportedTypeError(f"NumPy has no common type for {names}.") from None


def _output_tensor(
    shape: tuple[int, ...],
    result: np.dtype[Any],
    layouts: Sequence[Layout],
    options: Options,
    out: Layout | None,
) -> TensorDescriptor:
    if out is None:
        return TensorDescriptor(shape, _output_strides(shape, layouts, options.order), result.name)
    out_shape, strides, dtype = out
    if out_shape != shape:
        raise InvalidValueError(f"out has shape {out_shape}, the result has shape {shape}.")
    check_output_type(result, dtype, options.casting)
    tensor = describe(*out)
    if overlaps((*out_shape, dtype.itemsize), (*strides, 1)):
        raise InvalidValueError(
            f"An output must not overlap itself: out has shape {out_shape} and strides "
            f"{strides} bytes."
        )
    return tensor


def _output_strides(
    shape: tuple[int, ...], layouts: Sequence[Layout], order: str
) -> tuple[int, ...]:
    if order == "C" or (order == "A" and not all(_is_column_major(each) for each in layouts)):
        return packed_strides(shape[::-1])[::-1]
    return packed_strides(shape)


def _is_column_major(layout: Layout) -> bool:
    shape, strides, dtype = layout
    packed = packed_strides(shape)
    return all(
        extent == 1 or stride == step * dtype.itemsize
        for extent, stride, step in zip(shape, strides, packed, strict=True)
    )


def _addend(
    expression: Expression, shape: tuple[int, ...], result: np.dtype[Any], layout: Layout
) -> Operand:
    c_shape, _, dtype = layout
    if c_shape != shape:
        raise InvalidValueError(f"c has shape {c_shape}, the result has shape {shape}.")
    if not np.can_cast(dtype, result, "same_kind"):
        raise UnsupportedTypeError(
            f"c of type {dtype.name} cannot be added to a result of type {result.name}."
        )
    return Operand(describe(*layout), expression.output)
