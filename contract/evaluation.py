"""Arrays and a request -> the result: plan once, keep the plan, run it."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from contract.errors import InvalidValueError, UnsupportedTypeError
from contract.handle import Handle, default_handle
from contract.request import Options, Written, as_array, call_for, layout_of
from contract.run.host_views import Array

__all__ = ["beta_of", "evaluate", "frozen", "handle_or_default", "interleaved_arguments"]


def evaluate(
    handle: Handle,
    written: Written,
    operands: Sequence[Any],
    options: Options,
    out: Any = None,
    c: Any = None,
    scalars: tuple[Any, Any, Any] = (1, 0, 0),
) -> Array:
    """A verb with its options checked and frozen; plans are cached under all of them.

    ``scalars`` are alpha, beta and gamma; with a beta of 0, ``c`` is checked and not read.
    """
    arrays = [as_array(x) for x in operands]
    if out is not None and not isinstance(out, np.ndarray):
        raise UnsupportedTypeError(f"out must be a NumPy array: it is a {type(out).__name__}.")
    if out is not None and not out.flags.writeable:
        raise InvalidValueError("out is read-only.")
    target = None if out is None else np.asarray(out)  # a subclass has its own ideas of shapes
    addend = None if c is None else as_array(c)
    unread = addend is not None and scalars[1] == 0
    layouts = [layout_of(x) for x in arrays]
    others = tuple(None if x is None else layout_of(x) for x in (target, addend))
    key: Hashable = (written, options, *layouts, *others, unread)
    plain = (None, None, None)
    if others == plain[:2] and (options.operators, options.dtype, options.form) == plain:
        flat = [part for layout in layouts for part in layout]
        head = (written, options.order, options.compute_type, options.optimize)
        key = (*head, options.memory_limit, *flat)
    call = handle.plans.get(key)
    if call is None:
        call = call_for(handle, written, layouts, options, *others)
        if unread:
            options = _without_operator_of_c(options, len(layouts))
            call = call_for(handle, written, layouts, options, others[0])
        handle.plans.put(key, call)
    result = call.into(arrays, target, None if unread else addend, scalars)
    return result if out is None else out


def _without_operator_of_c(options: Options, count: int) -> Options:
    operators = options.operators
    return options if operators is None else replace(options, operators=operators[:count])


# --- arguments ------------------------------------------------------------------------------------


def interleaved_arguments(arguments: Sequence[Any]) -> tuple[Written, tuple[Any, ...]]:
    """(array, labels, ..., output labels) -> what was written, and the arrays."""
    operands = tuple(arguments[0 : len(arguments) - 1 : 2])
    if not operands:
        raise InvalidValueError(
            "An expression is a string followed by operands, or operands each followed by its "
            f"labels: a lone {type(arguments[0]).__name__} is neither."
        )
    sublists = tuple(_labels(each) for each in arguments[1::2])
    output = _labels(arguments[-1]) if len(arguments) % 2 else None
    return (sublists, output), operands


def _labels(sublist: Any) -> tuple[Hashable, ...]:
    try:
        labels = tuple(sublist)
        hash(labels)
    except TypeError:
        raise InvalidValueError(
            f"Labels are a sequence of hashables, one for each dimension: {sublist!r} is none."
        ) from None
    return labels


def handle_or_default(handle: Handle | None) -> Handle:
    """The handle given, or the one all calls without share."""
    if handle is None:
        return default_handle()
    if not isinstance(handle, Handle):
        raise InvalidValueError(f"handle is a Handle: it is {handle!r}.")
    return handle


def frozen(value: Any) -> Any:
    """Lists as tuples, so that an option can be part of a key."""
    return tuple(frozen(each) for each in value) if isinstance(value, list | tuple) else value


def beta_of(c: Any, beta: Any) -> Any:
    """beta: 1 where C is given and beta is not, 0 without C."""
    if np.ndim(beta if beta is not None else 1):
        raise InvalidValueError(f"beta must be a scalar number: it is {beta!r}.")
    if c is None:
        if beta is not None and beta != 0:
            raise InvalidValueError(f"beta is {beta!r}, and there is no c to scale.")
        return 0
    return 1 if beta is None else beta
