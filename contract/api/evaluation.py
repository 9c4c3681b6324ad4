"""Arrays and a request -> the result: plan once, keep the plan, run it."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Any

import numpy as np

from contract.api.request import Options, Written, call_for, repeated
from contract.arrays.libraries import library_of, numpy_type
from contract.arrays.protocol import (
    Array,
    Arrays,
    is_array,
    kind_of,
    require_host_scalar,
    require_one_kind,
)
from contract.descriptors.operations import frozen
from contract.errors import InvalidValueError, UnsupportedTypeError
from contract.execution.bound_plan import BoundCall, Call
from contract.execution.executor import Scalars
from contract.logging import LOGGER
from contract.session.handle import Handle
from contract.slices.fitted_plans import Cuts
from contract.support.text import shown

__all__ = [
    "array_of",
    "arrays_of",
    "beta_of",
    "bound_call",
    "cuts_of",
    "data_type",
    "evaluate",
    "interleaved_arguments",
    "is_hashable",
    "number_beta",
    "recalled",
    "remember",
    "require_expression_first",
    "require_kind",
    "with_others",
    "written_arguments",
]


Asked = Hashable  # a verb with its options, as the caller wrote them
NUMBERS = (int, float, complex, np.generic)
OUT, ADDED, UNREAD = 1, 2, 4  # what a key says of arrays beside the operands


# --- calls like earlier ones ----------------------------------------------------------------------


def recalled(
    handle: Handle,
    asked: Asked,
    expression: Any,
    operands: Sequence[Any],
    out: Any = None,
    c: Any = None,
    scalars: Scalars = (1, 0, 0),
    stream: Any = None,
) -> Array | None:
    """The result of a call like an earlier one, whose checks are not repeated; else None.

    Its key has all that they look at, but for scalars and ``out``, which a Call looks at itself.
    """
    if stream is not None or LOGGER.active:
        return None
    written = expression
    if type(expression) is not str:
        written, operands = written_arguments(expression, tuple(operands))
    arrays, beside = operands, 0
    if out is not None or c is not None:
        arrays, beside = with_others(operands, out, c, scalars[1])
    layouts = handle.arrays.layouts(arrays)
    if layouts is None:
        return None
    same = repeated(operands) if len(operands) > 2 else ()
    key = written, asked, same, beside, layouts
    try:
        call = handle.plans.find(key)
    except TypeError:  # an option is a list
        call = _found_frozen(handle, key)
    return None if call is None else call.again(operands, scalars, out, c)


def with_others(operands: Sequence[Any], out: Any, c: Any, beta: Any) -> tuple[Sequence[Any], int]:
    """The operands with ``out`` and C, of which a key has the layouts, too; and which there are."""
    beside = 0
    if out is not None:
        operands, beside = (*operands, out), OUT
    if c is not None:
        operands, beside = (*operands, c), beside | (UNREAD if beta == 0 else ADDED)
    return operands, beside


def _found_frozen(handle: Handle, key: Hashable) -> Call | None:
    """The call that is kept under a key, whose lists count as tuples."""
    key = frozen(key)
    found: Call | None = handle.plans.find(key) if is_hashable(key) else None
    return found


def is_hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


def remember(
    handle: Handle, call: Call, asked: Asked, text: str, operands: Sequence[Any], out: Any = None
) -> None:
    """Let ``recalled`` find a call on such arrays, without C."""
    arrays, beside = with_others(operands, out, None, 0)
    layouts = handle.arrays.layouts(arrays)
    key = str.__str__(text), frozen(asked), repeated(operands), beside, layouts
    if layouts is not None and is_hashable(key):
        handle.plans.remember(call.loaded, key, call)


# --- any call -------------------------------------------------------------------------------------


def evaluate(
    handle: Handle,
    written: Written,
    operands: Sequence[Any],
    options: Options,
    out: Any = None,
    c: Any = None,
    scalars: Scalars = (1, 0, 0),
    stream: Any = None,
    by: Callable[[Call], Call] | None = None,
    asked: Asked = None,
) -> Array:
    """A verb with its options checked and frozen; its plan is kept for calls that ask the same.

    ``scalars`` are alpha, beta and gamma; with a beta of 0, ``c`` is checked and not read.
    ``by`` makes of the planned call the one that is run.
    """
    with handle.arrays.on(stream):
        bound = bound_call(handle, written, operands, options, out, c, scalars, asked)
        result = (bound if by is None else bound._replace(call=by(bound.call)))()
    return result if out is None else out


def bound_call(
    handle: Handle,
    written: Written,
    operands: Sequence[Any],
    options: Options,
    out: Any = None,
    c: Any = None,
    scalars: Scalars = (1, 0, 0),
    asked: Asked = None,
) -> BoundCall:
    """What ``evaluate`` calls, on the current device and stream."""
    kind, same = handle.arrays, repeated(operands)
    if out is not None:
        _check_output(kind, out)
    if not (_is_native(kind, out) and _is_native(kind, c)) or kind.layouts(operands) is None:
        operands = arrays_of(kind, operands, out, c)
    target = None if out is None else kind.as_array(out)  # a subclass has its own shapes
    addend = None if c is None else array_of(kind, "c", c)
    if not is_hashable(asked):
        asked = frozen(asked)
    if asked is None or not is_hashable(asked):
        asked = options
    arrays, beside = with_others(operands, target, addend, scalars[1])
    layouts = kind.layouts(arrays)
    assert layouts is not None  # all are plain, and where they lie is current
    unread = bool(beside & UNREAD)
    key = written, asked, same, beside, layouts
    call = handle.plans.find(key)
    if call is None:
        call = _planned(handle, written, operands, options, target, addend, unread)
        handle.plans.remember(call.loaded, key, call)
    return BoundCall(call, operands, target, None if unread else addend, scalars)


def _planned(
    handle: Handle,
    written: Written,
    arrays: Sequence[Array],
    options: Options,
    target: Array | None,
    addend: Array | None,
    unread: bool,
) -> Call:
    """A call for such arrays; a C that is not read is checked all the same."""
    layout = handle.arrays.layout
    layouts = [layout(x) for x in arrays]
    out = None if target is None else layout(target)
    c = None if addend is None else layout(addend)
    call = call_for(handle, written, layouts, options, out, c, runs=True)
    if not unread:
        return call
    options = _without_operator_of_c(options, len(layouts))
    return call_for(handle, written, layouts, options, out, runs=True)


def _check_output(kind: Arrays, out: Any) -> None:
    if not is_array(out):
        raise UnsupportedTypeError(f"out must be a {kind.kind}: it is a {kind_of(out)}.")
    if _is_native(kind, out) and not kind.is_writeable(out):
        raise InvalidValueError("out is read-only.")


def _is_native(kind: Arrays, x: Any) -> bool:
    """Whether ``x`` is nothing, or of the kind itself and of no library that builds on it."""
    return x is None or (kind.owns(x) and library_of(x) is None)


def _without_operator_of_c(options: Options, count: int) -> Options:
    operators = options.operators
    return options if operators is None else replace(options, operators=operators[:count])


# --- arguments ------------------------------------------------------------------------------------


def written_arguments(
    expression: Any, operands: tuple[Any, ...]
) -> tuple[Written, tuple[Any, ...]]:
    """What was written, and the arrays, in either form."""
    if isinstance(expression, str):
        return str.__str__(expression), operands  # the text alone of numpy.str_, as keys have it
    return interleaved_arguments((expression, *operands))


def interleaved_arguments(arguments: Sequence[Any]) -> tuple[Written, tuple[Any, ...]]:
    """(array, labels, ..., output labels) -> what was written, and the arrays."""
    require_expression_first(arguments)
    operands = tuple(arguments[0 : len(arguments) - 1 : 2])
    if not operands:
        raise InvalidValueError(
            "An expression is a string followed by operands, or operands each followed by its "
            f"labels: a lone {type(arguments[0]).__name__} is neither."
        )
    sublists = tuple(_labels(each) for each in arguments[1::2])
    output = _labels(arguments[-1]) if len(arguments) % 2 else None
    return (sublists, output), operands


def require_expression_first(arguments: Sequence[Any]) -> None:
    """InvalidValueError if a text with terms stands where labels of one operand do."""
    for at, x in enumerate(arguments):
        if isinstance(x, str) and ("->" in x or "," in x):
            raise InvalidValueError(
                f"The expression comes before the operands: {shown(x)} is argument {at + 1}."
            )


def _labels(sublist: Any) -> tuple[Hashable, ...]:
    try:
        labels = tuple(sublist)
        hash(labels)
    except TypeError:
        raise InvalidValueError(
            f"Labels are a sequence of hashables, one for each dimension: {shown(sublist)} is none."
        ) from None
    return labels


def arrays_of(kind: Arrays, operands: Sequence[Any], out: Any = None, c: Any = None) -> list[Array]:
    """The operands as arrays; InvalidValueError if one, ``out`` or ``c`` is of another kind."""
    require_kind(kind, operands, out, c)
    return [array_of(kind, f"operand {at}", x) for at, x in enumerate(operands)]


def array_of(kind: Arrays, name: str, x: Any) -> Array:
    """``x`` as an array; InvalidValueError with its type where it is nothing to multiply."""
    found = kind.as_array(x)
    if not (found.ndim or is_array(x) or _is_number(x, found)):
        raise InvalidValueError(
            f"Operands are arrays, numbers and nested sequences of numbers: {name} is of type "
            f"{type(x).__qualname__}, of the module {type(x).__module__}."
        )
    return found


def _is_number(x: Any, found: Array) -> bool:
    """Whether what NumPy takes for one element is one, not text, a container or a tensor."""
    is_whole = found.dtype.kind not in "SU" and not getattr(x, "shape", ())
    return is_whole and (hasattr(type(x), "__mul__") or hasattr(type(x), "__array__"))


def require_kind(kind: Arrays, operands: Sequence[Any], out: Any = None, c: Any = None) -> None:
    """InvalidValueError if an operand, ``out`` or ``c`` is of another kind than the others."""
    given = [(f"operand {at}", x) for at, x in enumerate(operands)]
    given += [(name, x) for name, x in (("out", out), ("c", c)) if x is not None]
    require_one_kind(kind, given)


def data_type(dtype: Any) -> np.dtype[Any] | None:
    """What a caller wrote for ``dtype``, in native bytes."""
    if dtype is None:
        return None
    try:
        found: np.dtype[Any] = np.dtype(numpy_type(dtype)).newbyteorder("=")
    except (TypeError, ValueError, SyntaxError):
        raise UnsupportedTypeError(f"dtype is a NumPy data type: it is {shown(dtype)}.") from None
    return found


def cuts_of(slices: Any) -> Cuts | None:
    """What a caller wrote for ``slices``, as part of a key."""
    if slices is None:
        return None
    try:
        pairs = slices.items() if isinstance(slices, Mapping) else [(x, None) for x in slices]
        cuts = tuple((label, parts if parts is None else index(parts)) for label, parts in pairs)
        hash(cuts)
    except TypeError:
        raise InvalidValueError(
            "slices are modes, or a mapping from modes to numbers of chunks: they are "
            f"{shown(slices)}."
        ) from None
    return cuts


def number_beta(c: Any, beta: Any) -> Any:
    """``beta_of`` where nothing has to be looked at; None where something has."""
    if beta is None:
        return 0 if c is None else 1
    return beta if c is not None and isinstance(beta, NUMBERS) else None


def beta_of(c: Any, beta: Any) -> Any:
    """beta: 1 where C is given and beta is not, 0 without C."""
    require_host_scalar("beta", beta)
    if np.ndim(beta if beta is not None else 1):
        raise InvalidValueError(f"beta must be a scalar number: it is {shown(beta)}.")
    if c is None:
        if beta is not None and beta != 0:
            raise InvalidValueError(f"beta is {beta!r}, and there is no c to scale.")
        return 0
    return 1 if beta is None else beta
