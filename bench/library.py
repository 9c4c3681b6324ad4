"""Library: what a contestant can be asked to do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.device import Run
from bench.reference import Path, split
from contract.compute import ComputeType


@dataclass(frozen=True, slots=True)
class Library:
    """``product(text, operands, path)`` and ``copy(text, source, target)`` bind calls to arrays.

    ``pack`` makes a result column-major. ``small`` has the ways to call it at its quickest,
    ``product`` alone where it is None; a library without ``copy`` does not permute. ``allow``
    lets products be as inaccurate as a compute type (None: the default), ImportError where the
    library has no such type; without it products are formed in the data's type.
    """

    product: Callable[[str, Sequence[Any], Path | None], Run]
    pack: Callable[[Any], Any]
    copy: Callable[[str, Any, Any], Run] | None = None
    small: Callable[[str, Sequence[Any]], Mapping[str, Run]] | None = None
    allow: Callable[[ComputeType | None], None] | None = None
    version: str = ""


def axes_of(text: str) -> list[int]:
    """The axes of the source in the order of the target, for "abc->cab"."""
    (source,), target = split(text)
    return [source.index(label) for label in target]
