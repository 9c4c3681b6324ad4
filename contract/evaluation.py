"""Arrays and a request -> the result: plan once, keep the plan, run it."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Any

import numpy as np

from contract.errors import InvalidValueError, UnsupportedTypeError
from contract.fitting import Cuts
from contract.handle import Handle, default_handle, device_handle
from contract.request import Options, Written, call_for
from contract.run.arrays import (
    Array,
    Arrays,
    is_array,
    kind_of,
    require_host_scalar,
    require_one_kind,
)
from contract.run.call import BoundCall, Call
from contract.run.cupy_module import cupy_of, import_cupy
from contract.run.libraries import library_of, numpy_type
from contract.text import shown

__all__ = [
    "array_of",
    "arrays_of",
    "beta_of",
    "bound_call",
    "cuts_of",
    "data_type",
    "evaluate",
    "handle_for",
    "interleaved_arguments",
    "require_expression_first",
    "require_kind",
    "written_arguments",
]


def evaluate(
    handle: Handle,
    written: Written,
    operands: Sequence[Any],
    options: Options,
    out: Any = None,
    c: Any = None,
    scalars: tuple[Any, Any, Any] = (1, 0, 0),
    stream: Any = None,
    by: Callable[[Call], Call] | None = None,
) -> Array:
    """A verb with its options checked and frozen; plans are cached under all of them.

    ``scalars`` are alpha, beta and gamma; with a beta of 0, ``c`` is checked and not read.
    ``by`` makes of the planned call the one that is run.
    """
    with handle.arrays.on(stream):
        bound = bound_call(handle, written, operands, options, out, c, scalars)
        result = (bound if by is None else bound._replace(call=by(bound.call)))()
    return result if out is None else out


def bound_call(
    handle: Handle,
    written: Written,
    operands: Sequence[Any],
    options: Options,
    out: Any = None,
    c: Any = None,
    scalars: tuple[Any, Any, Any] = (1, 0, 0),
) -> BoundCall:
    """What ``evaluate`` calls, on the current device and stream."""
    kind = handle.arrays
    flat = kind.layouts(operands)
    if out is not None:
        _check_output(kind, out)
    if flat is None or not (_is_native(kind, out) and _is_native(kind, c)):
        operands = arrays_of(kind, operands, out, c)
        flat = kind.layouts(operands)
    assert flat is not None  # all are plain, and where they lie is current
    target = None if out is None else kind.as_array(out)  # a subclass has its own shapes
    addend = None if c is None else array_of(kind, "c", c)
    return _bound(handle, written, operands, flat, options, target, addend, scalars)


def _check_output(kind: Arrays, out: Any) -> None:
    if not is_array(out):
        raise UnsupportedTypeError(f"out must be a {kind.kind}: it is a {kind_of(out)}.")
    if _is_native(kind, out) and not kind.is_writeable(out):
        raise InvalidValueError("out is read-only.")


def _is_native(kind: Arrays, x: Any) -> bool:
    """Whether ``x`` is nothing, or of the kind itself and of no library that builds on it."""
    return x is None or (kind.owns(x) and library_of(x) is None)


def _bound(
    handle: Handle,
    written: Written,
    arrays: Sequence[Array],
    flat: Sequence[Any],
    options: Options,
    target: Array | None,
    addend: Array | None,
    scalars: tuple[Any, Any, Any],
) -> BoundCall:
    """The call for plain arrays, whose layouts in a row are ``flat``."""
    unread = addend is not None and scalars[1] == 0
    layout = handle.arrays.layout
    others = (
        None if target is None else layout(target),
        None if addend is None else layout(addend),
    )
    key: Hashable = (written, options, *flat, *others, unread)
    if others == (None, None) and _is_plain(options):
        head = (written, options.order, options.compute_type, options.optimize)
        key = (*head, options.memory_limit, options.preference, options.same, *flat)
    call = handle.plans.find(key)
    if call is None:
        layouts = [layout(x) for x in arrays]
        call = call_for(handle, written, layouts, options, others[0], others[1], runs=True)
        if unread:
            options = _without_operator_of_c(options, len(layouts))
            call = call_for(handle, written, layouts, options, others[0], runs=True)
        handle.plans.remember(call.loaded, key, call)
    return BoundCall(call, arrays, target, None if unread else addend, scalars)


def _is_plain(options: Options) -> bool:
    """Whether ``contract`` looks a call with these options up by itself."""
    beyond = options.operators, options.dtype, options.form, options.slices, options.axes
    return beyond == (None,) * len(beyond)


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


def handle_for(handle: Handle | None, operands: Sequence[Any]) -> Handle:
    """The handle given, or the one that all calls without share on such arrays."""
    if handle is None:
        if operands and type(operands[0]) is np.ndarray:
            return default_handle()
        for x in operands:
            cupy = cupy_of(x)
            if cupy is not None:
                return device_handle(cupy, x.data.device_id)
            library = library_of(x)
            device = None if library is None else library.device(x)
            if device is not None:
                return device_handle(import_cupy(), device)
        return default_handle()
    if not isinstance(handle, Handle):
        raise InvalidValueError(f"handle is a Handle: it is {shown(handle)}.")
    return handle


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
