"""Arguments of a call as text for the log: tensors by type, extents and strides.

No value makes it raise, and none is read: of an array only the description is looked at.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from itertools import islice
from numbers import Number
from typing import Any

from contract.descriptors.operations import (
    Contraction,
    ElementwiseOperation,
    OperationDescriptor,
    PlanPreference,
    Reduction,
    TensorDescriptor,
)

__all__ = ["call_text", "notation", "operation_text", "value_text"]

MOST_ITEMS = 32  # of a sequence
MOST_LETTERS = 200  # of the representation of any other object
MOST_NESTING = 3  # sequences in sequences

_NOT_SHOWN = {"self", "handle", "expression", "operands"}  # or shown otherwise
_SHORT = {
    **{f"{kind}{bits}": f"{kind[0]}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"f{bits}" for bits in (16, 32, 64, 96, 128)},
    **{f"complex{bits}": f"c{bits}" for bits in (64, 128, 192, 256)},
    "bfloat16": "bf16",
}


def call_text(arguments: Mapping[str, Any]) -> str:
    """``expr=abc,kb->ac operands=[f32[4,8,12]:[1,4,32],...]``; what is None was not given."""
    rest = {name: value for name, value in arguments.items() if name not in _NOT_SHOWN}
    given = ((name, x) for name, x in {**_notation(arguments), **rest}.items() if x is not None)
    return " ".join(f"{name}={_named(value)}" for name, value in given)


def _notation(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The expression and its operands, or both in turn where labels stand between arrays."""
    operands = arguments.get("operands", ())
    if "expression" in arguments:
        operands = (arguments["expression"], *operands)
    if operands and isinstance(operands[0], str):
        return {"expr": operands[0], "operands": operands[1:]}
    return {"operands": operands or None}


def value_text(value: Any, nesting: int = MOST_NESTING) -> str:
    """One argument; an object that cannot be described has the name of its class."""
    try:
        return _text(value, nesting)
    except Exception:  # whatever a foreign object's attributes raise: the call itself says it
        return f"<{type(value).__name__}>"


def operation_text(operation: OperationDescriptor) -> str:
    """``Contraction abc,kb->ac f32[4,8,12]:[1,4,32],f32[7,8]:[1,7]->f32[4,12]:[1,4]``."""
    operands = (*operation.inputs, operation.output)
    described = _arrow([value_text(operand.tensor) for operand in operands])
    return f"{type(operation).__name__} {notation(operation)} {described}"


def notation(operation: OperationDescriptor) -> str:
    """``abc,kb->ac``: the operands' labels, then the result's."""
    operands = (*operation.inputs, operation.output)
    return _arrow([_modes_text(operand.modes, operation.labels) for operand in operands])


def _arrow(texts: Sequence[str]) -> str:
    return f"{','.join(texts[:-1])}->{texts[-1]}"


def _modes_text(modes: tuple[int, ...], labels: tuple[str, ...]) -> str:
    names = [labels[mode] for mode in modes]
    return ("" if all(len(name) == 1 for name in names) else ".").join(names)


def _named(value: Any) -> str:
    """A string that is an argument by itself needs no quotation marks."""
    return value if type(value) is str and value.isprintable() else value_text(value)


def _text(value: Any, nesting: int) -> str:
    match value:
        case None | bool() | Number():
            return str(value)
        case Enum():
            return value.name
        case type():
            return value.__name__
        case TensorDescriptor():
            return _tensor(value.dtype, value.extents, map(str, value.steps))
        case Contraction() | Reduction() | ElementwiseOperation():
            return operation_text(value)
        case PlanPreference():
            return _preference(value)
        case list() | tuple():
            return f"[{','.join(_items(value, nesting))}]"
    if hasattr(value, "shape") and hasattr(value, "strides") and hasattr(value, "dtype"):
        return _tensor(value.dtype.name, value.shape, _steps(value))
    return _shortened(repr(value))


def _items(values: Any, nesting: int) -> Iterator[str]:
    if not nesting:
        yield "..."
        return
    for value in islice(values, MOST_ITEMS):
        yield value_text(value, nesting - 1)
    if len(values) > MOST_ITEMS:
        yield f"... {len(values) - MOST_ITEMS} more"


def _tensor(dtype: str, extents: tuple[int, ...], strides: Iterator[str]) -> str:
    return f"{_SHORT.get(dtype, dtype)}[{','.join(map(str, extents))}]:[{','.join(strides)}]"


def _steps(x: Any) -> Iterator[str]:
    """An array's strides in elements; those that are no multiple of the item size in bytes."""
    size = x.dtype.itemsize
    for stride in x.strides:
        yield f"{stride}B" if not size or stride % size else str(stride // size)


def _preference(preference: PlanPreference) -> str:
    """What differs from the defaults."""
    values = ((each, getattr(preference, each.name)) for each in fields(preference))
    chosen = [f"{each.name}={value_text(v)}" for each, v in values if v != each.default]
    return f"[{','.join(chosen)}]"


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}..."
