"""Arrays and a request -> the result: plan once, keep the plan, run it."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import numpy as np

from contract.api.request import Options, Written, call_for, operation_for, repeated
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
from contract.errors import InsufficientWorkspaceError, InvalidValueError, UnsupportedTypeError
from contract.execution.bound_plan import UNSCALED, BoundCall, Call
from contract.execution.budget import LackingMemoryError, usable
from contract.execution.executor import Scalars
from contract.logging import LOGGER
from contract.session.handle import Handle
from contract.slices.fitting import Cuts
from contract.support.text import shown

__all__ = [
    "Asked",
    "array_of",
    "arrays_key",
    "arrays_of",
    "beta_of",
    "bound_call",
    "call_key",
    "cuts_of",
    "data_type",
    "evaluate",
    "fitting",
    "interleaved_arguments",
    "is_hashable",
    "number_beta",
    "recalled",
    "remember",
    "require_expression_first",
    "require_kind",
    "written_arguments",
]


NUMBERS = (int, float, complex, np.generic)
OUT, ADDED, UNREAD = 1, 2, 4  # what a key says of arrays beside the operands


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call of a verb is, beside its arrays; ``options`` are checked and frozen.

    ``scalars`` are alpha, beta and gamma; with a beta of 0, C is checked and not read. ``by`` makes
    of the planned call the one that is run. ``head`` are the verb and its options as the caller
    wrote them, for the key of later calls; None: the options.
    """

    handle: Handle
    written: Written
    options: Options
    scalars: Scalars = UNSCALED
    stream: Any = None
    by: Callable[[Call], Call] | None = None
    head: Hashable = None


# --- what calls are found by ----------------------------------------------------------------------


def call_key(
    kind: Arrays,
    written: Any,
    head: Hashable,
    operands: Sequence[Any],
    out: Any = None,
    c: Any = None,
    beta: Any = 0,
) -> Hashable:
    """What a planned call is found by; None where an array is not a plain one.

    It has all that the checks of a call look at, but for scalars, and whether ``out`` may be
    written: a Call looks at these itself.
    """
    if out is None and c is None:  # most calls, which spare a call of Python's
        layouts: Hashable = kind.layouts(operands)
    else:
        layouts = arrays_key(kind, operands, out, c, beta)
    if layouts is None:
        return None
    return written, head, repeated(operands) if len(operands) > 2 else (), layouts


def arrays_key(kind: Arrays, operands: Sequence[Any], out: Any, c: Any, beta: Any) -> Hashable:
    """The layouts of all arrays, and what those beside the operands are for."""
    if out is None and c is None:
        return kind.layouts(operands)
    beside = 0
    if out is not None:
        operands, beside = (*operands, out), OUT
    if c is not None:
        operands, beside = (*operands, c), beside | (UNREAD if beta == 0 else ADDED)
    layouts = kind.layouts(operands)
    return None if layouts is None else (beside, layouts)


# --- calls like earlier ones ----------------------------------------------------------------------


def recalled(
    handle: Handle,
    head: Hashable,
    expression: Any,
    operands: Sequence[Any],
    out: Any = None,
    c: Any = None,
    scalars: Scalars = UNSCALED,
) -> Array | None:
    """The result of a call like an earlier one, whose checks are not repeated; else None."""
    if LOGGER.active:
        return None
    if type(expression) is not str:
        expression, operands = written_arguments(expression, tuple(operands))
    key = call_key(handle.arrays, expression, head, operands, out, c, scalars[1])
    if key is None:
        return None
    try:
        call = handle.plans.find(key)
    except TypeError:  # an option is a list
        call = _found_frozen(handle, key)
    try:
        return None if call is None else call.again(operands, scalars, out, c)
    except LackingMemoryError:
        return None


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
    handle: Handle, call: Call, head: Hashable, text: str, operands: Sequence[Any], out: Any = None
) -> None:
    """Let ``recalled`` find a call on such arrays, without C."""
    key = call_key(handle.arrays, str.__str__(text), frozen(head), operands, out)
    if key is not None and is_hashable(key):
        handle.plans.remember(call.loaded, key, call)


# --- any call -------------------------------------------------------------------------------------


def evaluate(asked: Asked, operands: Sequence[Any], out: Any = None, c: Any = None) -> Array:
    """The result of a call; its plan is kept for calls that ask the same."""
    with asked.handle.arrays.on(asked.stream):
        bound = bound_call(asked, operands, out, c)
        if asked.by is not None:
            bound = bound._replace(call=asked.by(bound.call))
        try:
            result = bound()
        except LackingMemoryError as error:
            result = fitting(asked, bound, error)()
    return result if out is None else out


def bound_call(asked: Asked, operands: Sequence[Any], out: Any = None, c: Any = None) -> BoundCall:
    """What ``evaluate`` calls, on the current device and stream."""
    kind, beta = asked.handle.arrays, asked.scalars[1]
    if out is not None:
        _check_output(kind, out)
    if not (_is_native(kind, out) and _is_native(kind, c)) or kind.layouts(operands) is None:
        operands = arrays_of(kind, operands, out, c)
    target = None if out is None else kind.as_array(out)  # a subclass has its own shapes
    addend = None if c is None else array_of(kind, "c", c)
    head = asked.head if is_hashable(asked.head) else frozen(asked.head)
    if head is None or not is_hashable(head):
        head = asked.options
    key = call_key(kind, asked.written, head, operands, target, addend, beta)
    assert key is not None  # all are plain, and where they lie is current
    call = asked.handle.plans.find(key)
    if call is None:
        call = _planned(asked, operands, target, addend)
        asked.handle.plans.remember(call.loaded, key, call)
    return BoundCall(call, operands, target, None if beta == 0 else addend, asked.scalars)


def fitting(asked: Asked, bound: BoundCall, lacking: LackingMemoryError) -> BoundCall:
    """The call in slices that do with the memory that is free, unless slices are given."""
    if asked.by is not None or asked.options.slices is not None:
        raise lacking
    limited = replace(asked.options, memory_limit=usable(lacking.free))
    try:
        call = _planned(replace(asked, options=limited), bound.inputs, bound.out, bound.addend)
    except InsufficientWorkspaceError as error:
        needed = bound.call.needed_bytes
        raise LackingMemoryError.of(needed, lacking.free, error.sliced) from None
    return bound._replace(call=call)


def _planned(
    asked: Asked, arrays: Sequence[Array], target: Array | None, addend: Array | None
) -> Call:
    """A call for such arrays; a C that is not read is checked all the same."""
    handle, options = asked.handle, asked.options
    layout = handle.arrays.layout
    layouts = [layout(x) for x in arrays]
    out = None if target is None else layout(target)
    c = None if addend is None else layout(addend)
    if c is not None and asked.scalars[1] == 0:
        operation_for(handle.arrays, asked.written, layouts, options, out, c)
        options, c = _without_operator_of_c(options, len(layouts)), None
    return call_for(handle, asked.written, layouts, options, out, c, runs=True)


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
    found: dict[int, Array] = {}  # what is given twice is one array, as keys have it
    for at, x in enumerate(operands):
        if id(x) not in found:
            found[id(x)] = array_of(kind, f"operand {at}", x)
    return [found[id(x)] for x in operands]


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
    known = number_beta(c, beta)
    if known is not None:
        return known
    require_host_scalar("beta", beta)
    if np.ndim(beta):
        raise InvalidValueError(f"beta must be a scalar number: it is {shown(beta)}.")
    if c is None and beta != 0:
        raise InvalidValueError(f"beta is {beta!r}, and there is no c to scale.")
    return 0 if c is None else beta
