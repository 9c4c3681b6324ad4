"""Plans, operations and preferences <-> JSON values, as the types of their fields say.

A dataclass becomes an object of its fields; where a field may hold one of several classes, an
object with the class's name around it. Fields that a class computes itself are not written: they
are computed again. A tuple becomes an array, a member of an enum its name. Decoding takes nothing
else: an unknown or missing field, another type, a number out of range is a CacheFileError that
says where in the document it stands.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from contract.descriptors.operations import Operand, PlanPreference
from contract.errors import CacheFileError, ContractError, InvalidValueError

__all__ = ["decoded", "encoded", "is_storable"]

Where = tuple[str | int, ...]  # the fields and places on the way to a value

MOST_INTEGER = 10**300  # a float holds it; the counts of a large network go far beyond 64 bits

# Fields whose class takes more than what is stored: an operation numbers its modes, and an
# optimizer, which may be any function, has no name to be found by.
_STORED: Mapping[tuple[type, str], Any] = {
    (Operand, "modes"): tuple[int, ...],
    (PlanPreference, "path"): bool | str | tuple[tuple[int, ...], ...],
}


@dataclass(frozen=True, slots=True)
class _Codec:
    """How values of one type are written and read; ``takes`` tells them from others."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any, Where], Any]
    takes: Callable[[Any], bool]


def encoded(value: Any, kind: Any) -> Any:
    """``value`` as what json.dumps writes; InvalidValueError where it cannot be stored."""
    return _codec(kind).encode(value)


def decoded(value: Any, kind: Any) -> Any:
    """What ``encoded`` was given, equal to it; CacheFileError for anything it does not write."""
    return _codec(kind).decode(value, ())


def is_storable(value: Any, kind: Any) -> bool:
    """Whether ``encoded`` takes the value: a path that is a function, for one, it does not."""
    try:
        encoded(value, kind)
    except InvalidValueError:
        return False
    return True


def _refused(where: Where, rule: str, value: Any) -> CacheFileError:
    place = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in where)
    return CacheFileError(f"At {place or 'the top'}: {rule}: it is {value!r:.80}.")


@cache
def _codec(kind: Any) -> _Codec:
    """The codec of a type; a type is met once in a plan's fields, its values often."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if get_origin(kind) in (Union, UnionType):
        return _one_of(get_args(kind))
    if get_origin(kind) is tuple:
        return _tuple_of(get_args(kind))
    if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields")):
        return _object_of(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member_of(kind)
    raise NotImplementedError(f"No JSON form of {kind!r}.")


# --- numbers and texts --------------------------------------------------------------------------


def _plain(kind: type, rule: str, is_legal: Callable[[Any], bool]) -> _Codec:
    def takes(value: Any) -> bool:
        return type(value) is kind and is_legal(value)

    def encode(value: Any) -> Any:
        if not takes(value):
            raise InvalidValueError(f"{rule[0].upper()}{rule[1:]}: it is {value!r}.")
        return value

    def decode(value: Any, where: Where) -> Any:
        if not takes(value):
            raise _refused(where, rule, value)
        return value

    return _Codec(encode, decode, takes)


def _real() -> _Codec:
    """Finite; an integer is written as the real number it is."""
    plain = _plain(float, "a finite number with a point or an exponent is meant", isfinite)

    def encode(value: Any) -> Any:
        return plain.encode(float(value) if type(value) is int else value)

    return _Codec(encode, plain.decode, plain.takes)


def _number() -> _Codec:
    """Any number of Python, NaN and infinity too: {its type: its representation}."""
    kinds: Mapping[str, type] = {kind.__name__: kind for kind in (int, float, complex)}
    truths = {"True": True, "False": False}

    def parsed(name: str, text: str) -> Any:
        return truths[text] if name == "bool" else kinds[name](text)

    def takes(value: Any) -> bool:
        return type(value) is bool or type(value) in kinds.values()

    def encode(value: Any) -> Any:
        if not takes(value):
            raise InvalidValueError(f"A number of Python is meant: it is {value!r}.")
        return {type(value).__name__: repr(value)}

    def decode(value: Any, where: Where) -> Any:
        match value:
            case dict() if len(value) == 1:
                ((name, text),) = value.items()
            case _:
                raise _refused(where, "one number with its type is meant", value)
        try:
            number = parsed(name, text)
        except (KeyError, TypeError, ValueError):
            raise _refused(where, "a number with its type is meant", value) from None
        if repr(number) != text:
            raise _refused(where, f"a number is written as {number!r}", value)
        return number

    return _Codec(encode, decode, takes)


def _is_text(text: str) -> bool:
    """Whether all of it can be written: JSON may have one half of a pair of surrogates."""
    return text.isascii() or text.encode(errors="ignore").decode() == text


_PLAIN: Mapping[Any, _Codec] = {
    NoneType: _plain(NoneType, "null is meant", lambda value: True),
    bool: _plain(bool, "true or false is meant", lambda value: True),
    int: _plain(int, "an integer of at most 300 digits is meant", lambda x: abs(x) < MOST_INTEGER),
    str: _plain(str, "a text is meant", _is_text),
    float: _real(),
    complex: _number(),
}


# --- what is made of them -----------------------------------------------------------------------


def _member_of(kind: type[Enum]) -> _Codec:
    members = kind.__members__

    def encode(value: Any) -> str:
        if not isinstance(value, kind):
            raise InvalidValueError(f"A {kind.__name__} is meant: it is {value!r}.")
        return value.name

    def decode(value: Any, where: Where) -> Any:
        if type(value) is not str or value not in members:
            raise _refused(where, f"the name of a {kind.__name__} is meant", value)
        return members[value]

    return _Codec(encode, decode, lambda value: isinstance(value, kind))


def _tuple_of(kinds: tuple[Any, ...]) -> _Codec:
    """A tuple of any length of one type."""
    (kind, _) = kinds
    item = _codec(kind)

    def encode(value: Any) -> Any:
        if not isinstance(value, tuple):
            raise InvalidValueError(f"A tuple is meant: it is {value!r}.")
        return [item.encode(each) for each in value]

    def decode(value: Any, where: Where) -> Any:
        if type(value) is not list:
            raise _refused(where, "an array is meant", value)
        return tuple(item.decode(each, (*where, at)) for at, each in enumerate(value))

    return _Codec(encode, decode, lambda value: isinstance(value, tuple))


def _object_of(kind: Any) -> _Codec:
    hints = get_type_hints(kind)
    is_named_tuple = issubclass(kind, tuple)
    given = kind._fields if is_named_tuple else [each.name for each in fields(kind) if each.init]
    codecs = {name: _codec(_STORED.get((kind, name), hints[name])) for name in given}

    def encode(value: Any) -> Any:
        if type(value) is not kind:
            raise InvalidValueError(f"A {kind.__name__} is meant: it is {value!r}.")
        return {name: codec.encode(getattr(value, name)) for name, codec in codecs.items()}

    def decode(value: Any, where: Where) -> Any:
        if type(value) is not dict or value.keys() != codecs.keys():
            rule = f"a {kind.__name__} has the fields {', '.join(codecs)}"
            raise _refused(where, rule, list(value) if isinstance(value, dict) else value)
        parts = {name: codecs[name].decode(value[name], (*where, name)) for name in codecs}
        try:
            return kind(**parts)
        except ContractError as error:
            raise _refused(where, f"this is no {kind.__name__} ({error})", value) from error

    return _Codec(encode, decode, lambda value: type(value) is kind)


def _one_of(kinds: tuple[Any, ...]) -> _Codec:
    """One of several types, told apart by their JSON form; classes by their name around it."""
    codecs = [_codec(kind) for kind in kinds]
    names = [getattr(kind, "__name__", str(kind)) for kind in kinds]
    classes = dict(zip(names, codecs, strict=True))
    named = sum(map(is_dataclass, kinds)) > 1

    def encode(value: Any) -> Any:
        for kind, name, codec in zip(kinds, names, codecs, strict=True):
            if codec.takes(value):
                made = codec.encode(value)
                return {name: made} if named and is_dataclass(kind) else made
        raise InvalidValueError(f"One of {', '.join(classes)} is meant: it is {value!r}.")

    def decode(value: Any, where: Where) -> Any:
        if named and type(value) is dict:
            ((name, inside),) = value.items() if len(value) == 1 else [("", None)]
            if name not in classes:
                raise _refused(where, f"one of {', '.join(classes)} is meant", list(value))
            return classes[name].decode(inside, (*where, name))
        for kind, codec in zip(kinds, codecs, strict=True):
            if _is_form_of(kind, value):
                return codec.decode(value, where)
        raise _refused(where, f"one of {', '.join(classes)} is meant", value)

    return _Codec(encode, decode, lambda value: any(codec.takes(value) for codec in codecs))


_SAME = frozenset({NoneType, bool, int, float, str})  # in Python and in JSON


def _is_form_of(kind: Any, value: Any) -> bool:
    """Whether the JSON value looks like the type: what is wrong inside is the codec's to say."""
    if get_origin(kind) is tuple:
        return type(value) is list
    if isinstance(kind, type) and issubclass(kind, Enum):
        return type(value) is str
    return type(value) is (kind if kind in _SAME else dict)
