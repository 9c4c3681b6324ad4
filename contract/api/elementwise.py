"""cuTENSOR's operations beside the contraction, on arrays: permute, reduce, combine elements."""

from collections.abc import Sequence
from operator import index
from typing import Any

from contract.api.evaluation import (
    Asked,
    beta_of,
    data_type,
    number_beta,
    recalled,
    written_arguments,
)
from contract.api.interop import evaluate
from contract.api.request import Combination, Options, Reducing, Written
from contract.api.whole import whole
from contract.arrays.protocol import Array
from contract.descriptors.compute_types import ComputeType
from contract.descriptors.operations import frozen
from contract.descriptors.operators import BinaryOperator, Operator, binary
from contract.errors import InvalidValueError
from contract.logging import LOGGER, UNWATCHED
from contract.session.handle import Handle, handle_for
from contract.support.text import shown

__all__ = ["elementwise_binary", "elementwise_trinary", "permute", "reduce"]


@whole
def permute(
    expression: Any,
    *operands: Any,
    out: Array | None = None,
    alpha: complex = 1,
    operator: Operator | str | None = None,
    padding: Sequence[tuple[int, int]] | None = None,
    padding_value: complex = 0,
    dtype: Any = None,
    order: str = "F",
    compute_type: ComputeType | str | None = None,
    memory_limit: int | str | None = None,
    handle: Handle | None = None,
    stream: Any = None,
) -> Array:
    """B = alpha * op(A) with the modes of A in another order, type or layout, and padding.

    ``permute("abc->cab", A)``. A mode repeated in A takes its diagonal; every mode of A is in
    B. ``dtype`` (or ``out``) converts. ``padding`` has a pair (left, right) for each mode of B:
    so many elements of ``padding_value`` on both sides. With alpha = 0, A is not read.

    Raises InvalidValueError (a ValueError) and UnsupportedTypeError (a TypeError).
    Source: cuTENSOR's permutation and its padding attributes.
    """
    handle = handle_for(handle, operands if type(expression) is str else (expression, *operands))
    scalars = alpha, 0, 0
    head = None
    if padding is None and stream is None:
        head = "permute", operator, padding_value, dtype, order, compute_type, memory_limit
        found = recalled(handle, head, expression, operands, out, None, scalars)
        if found is not None:
            return found
    with (
        LOGGER.call(
            "permute",
            {
                "expression": expression,
                "operands": operands,
                "out": out,
                "alpha": alpha,
                "operator": operator,
                "padding": padding,
                "padding_value": padding_value,
                "dtype": dtype,
                "order": order,
                "compute_type": compute_type,
                "memory_limit": memory_limit,
                "stream": stream,
            },
        )
        if LOGGER.active
        else UNWATCHED
    ):
        written, arrays = _asked(expression, operands, 1)
        form = Combination((), None if padding is None else _pairs(padding), padding_value)
        options = Options(
            order,
            compute_type,
            (operator,),
            memory_limit=memory_limit,
            dtype=data_type(dtype),
            form=form,
        )
        asked = Asked(handle, written, options, scalars, stream, head=head)
        return evaluate(asked, arrays, out)


@whole
def reduce(
    expression: Any,
    *operands: Any,
    op: BinaryOperator | str = "add",
    out: Array | None = None,
    c: Any = None,
    alpha: complex = 1,
    beta: complex | None = None,
    operators: Sequence[Operator | str | None] | None = None,
    order: str = "F",
    compute_type: ComputeType | str | None = None,
    memory_limit: int | str | None = None,
    handle: Handle | None = None,
    stream: Any = None,
) -> Array:
    """D = alpha * reduce(op(A)) + beta * op(C), over the modes of A that D has not.

    ``reduce("abc->b", A, op="max")``; ``op`` is "add", "mul", "max" or "min". MAX and MIN
    propagate NaN. An empty sum is 0, an empty product 1; MAX and MIN of nothing are refused.
    ``operators`` has a unary operator for A, and may have one for C. Scalars and C as in
    ``contract``. 16-bit types are reduced in float32 and rounded once.

    Raises InvalidValueError (a ValueError) and UnsupportedTypeError (a TypeError).
    Source: cuTENSOR's reduction.
    """
    handle = handle_for(handle, operands if type(expression) is str else (expression, *operands))
    head = "reduce", op, operators, order, compute_type, memory_limit
    factor = number_beta(c, beta)
    if factor is not None and stream is None:
        found = recalled(handle, head, expression, operands, out, c, (alpha, factor, 0))
        if found is not None:
            return found
    with (
        LOGGER.call(
            "reduce",
            {
                "expression": expression,
                "operands": operands,
                "op": op,
                "out": out,
                "c": c,
                "alpha": alpha,
                "beta": beta,
                "operators": operators,
                "order": order,
                "compute_type": compute_type,
                "memory_limit": memory_limit,
                "stream": stream,
            },
        )
        if LOGGER.active
        else UNWATCHED
    ):
        written, arrays = _asked(expression, operands, 1)
        form = Reducing(binary(op))
        options = Options(
            order, compute_type, frozen(operators), memory_limit=memory_limit, form=form
        )
        scalars = alpha, beta_of(c, beta), 0
        asked = Asked(handle, written, options, scalars, stream, head=head)
        return evaluate(asked, arrays, out, c)


@whole
def elementwise_binary(
    expression: Any,
    *operands: Any,
    op: BinaryOperator | str = "add",
    out: Array | None = None,
    alpha: complex = 1,
    gamma: complex = 1,
    operators: Sequence[Operator | str | None] | None = None,
    dtype: Any = None,
    order: str = "F",
    compute_type: ComputeType | str | None = None,
    memory_limit: int | str | None = None,
    handle: Handle | None = None,
    stream: Any = None,
) -> Array:
    """D = opAC(alpha * op(A), gamma * op(C)), element by element; ``op`` is opAC.

    ``elementwise_binary("ba,ab->ab", A, C, op="max")``. A mode that an operand has not
    broadcasts. ``out`` may be A or C where that has D's modes in D's order. An operand scaled
    by 0 is not read and counts as 0. ``operators`` has a unary operator for each operand.

    Raises InvalidValueError (a ValueError) and UnsupportedTypeError (a TypeError).
    Source: cuTENSOR's elementwise binary operation.
    """
    handle = handle_for(handle, operands if type(expression) is str else (expression, *operands))
    scalars = alpha, 0, gamma
    head = "binary", op, operators, dtype, order, compute_type, memory_limit
    found = None
    if stream is None:
        found = recalled(handle, head, expression, operands, out, None, scalars)
    if found is not None:
        return found
    with (
        LOGGER.call(
            "elementwise_binary",
            {
                "expression": expression,
                "operands": operands,
                "op": op,
                "out": out,
                "alpha": alpha,
                "gamma": gamma,
                "operators": operators,
                "dtype": dtype,
                "order": order,
                "compute_type": compute_type,
                "memory_limit": memory_limit,
                "stream": stream,
            },
        )
        if LOGGER.active
        else UNWATCHED
    ):
        written, arrays = _asked(expression, operands, 2)
        options = Options(
            order,
            compute_type,
            frozen(operators),
            memory_limit=memory_limit,
            dtype=data_type(dtype),
            form=Combination((binary(op),)),
        )
        asked = Asked(handle, written, options, scalars, stream, head=head)
        return evaluate(asked, arrays, out)


@whole
def elementwise_trinary(
    expression: Any,
    *operands: Any,
    op_ab: BinaryOperator | str = "add",
    op_abc: BinaryOperator | str = "add",
    out: Array | None = None,
    alpha: complex = 1,
    beta: complex = 1,
    gamma: complex = 1,
    operators: Sequence[Operator | str | None] | None = None,
    dtype: Any = None,
    order: str = "F",
    compute_type: ComputeType | str | None = None,
    memory_limit: int | str | None = None,
    handle: Handle | None = None,
    stream: Any = None,
) -> Array:
    """D = opABC(opAB(alpha * op(A), beta * op(B)), gamma * op(C)), element by element.

    ``elementwise_trinary("ab,ba,a->ab", A, B, C, op_ab="mul")``; the rest is as in
    ``elementwise_binary``.

    Raises InvalidValueError (a ValueError) and UnsupportedTypeError (a TypeError).
    Source: cuTENSOR's elementwise trinary operation.
    """
    handle = handle_for(handle, operands if type(expression) is str else (expression, *operands))
    scalars = alpha, beta, gamma
    head = "trinary", op_ab, op_abc, operators, dtype, order, compute_type, memory_limit
    found = None
    if stream is None:
        found = recalled(handle, head, expression, operands, out, None, scalars)
    if found is not None:
        return found
    with (
        LOGGER.call(
            "elementwise_trinary",
            {
                "expression": expression,
                "operands": operands,
                "op_ab": op_ab,
                "op_abc": op_abc,
                "out": out,
                "alpha": alpha,
                "beta": beta,
                "gamma": gamma,
                "operators": operators,
                "dtype": dtype,
                "order": order,
                "compute_type": compute_type,
                "memory_limit": memory_limit,
                "stream": stream,
            },
        )
        if LOGGER.active
        else UNWATCHED
    ):
        written, arrays = _asked(expression, operands, 3)
        options = Options(
            order,
            compute_type,
            frozen(operators),
            memory_limit=memory_limit,
            dtype=data_type(dtype),
            form=Combination((binary(op_ab), binary(op_abc))),
        )
        asked = Asked(handle, written, options, scalars, stream, head=head)
        return evaluate(asked, arrays, out)


def _asked(
    expression: Any, operands: tuple[Any, ...], count: int
) -> tuple[Written, tuple[Any, ...]]:
    """What was written, in either form, and its ``count`` operands."""
    written, arrays = written_arguments(expression, operands)
    if len(arrays) != count:
        raise InvalidValueError(f"The operation takes {count} operands: it got {len(arrays)}.")
    return written, arrays


def _pairs(padding: Any) -> tuple[tuple[int, int], ...]:
    try:
        pairs = tuple((index(left), index(right)) for left, right in padding)
    except (TypeError, ValueError):
        raise InvalidValueError(
            f"padding is a pair (left, right) for each mode of the result: it is {shown(padding)}."
        ) from None
    return pairs
