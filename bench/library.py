"""Library: what a contestant can be asked to do."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Any

import opt_einsum

from bench.device import Run
from bench.reference import Path, split
from contract.descriptors.compute_types import ComputeType


@dataclass(frozen=True, slots=True)
class Library:
    """``product(text, operands, path)`` and ``copy(text, source, target)`` bind calls to arrays.

    ``pack`` makes a result column-major. ``small`` has the ways to call it at its quickest,
    ``product`` alone where it is None; a library without ``copy`` does not permute. ``allow``
    lets products be as inaccurate as a compute type (None: the default), ImportError where the
    library has no such type; without it products are formed in the data's type. ``dtypes`` are the
    types of data that it takes, empty for all.
    """

    product: Callable[[str, Sequence[Any], Path | None], Run]
    pack: Callable[[Any], Any]
    copy: Callable[[str, Any, Any], Run] | None = None
    small: Callable[[str, Sequence[Any]], Mapping[str, Run]] | None = None
    allow: Callable[[ComputeType | None], None] | None = None
    version: str = ""
    dtypes: Collection[str] = ()


def axes_of(text: str) -> list[int]:
    """The axes of the source in the order of the target, for "abc->cab"."""
    (source,), target = split(text)
    return [source.index(label) for label in target]


def packed(x: Any) -> Any:
    """A NumPy or CuPy array, column-major without gaps: a copy where it is not."""
    return x.astype(x.dtype, order="F", copy=False)


def along(call: Callable[..., Any], text: str, operands: Sequence[Any], path: Path | None) -> Run:
    """The steps of a path, for a library that takes none, or letters only; all at once for None."""
    if path is None:
        return lambda: call(text, *operands)
    shapes = [tuple(x.shape) for x in operands]
    found = opt_einsum.contract_path(text, *shapes, shapes=True, optimize=path)[1]
    steps = [(in_letters(step[2]), step[0]) for step in found.contraction_list]

    def run() -> Any:
        held = list(operands)
        for step, places in steps:
            held.append(call(step, *[held.pop(at) for at in places]))
        return held[0]

    return run


def in_letters(text: str) -> str:
    """The expression with other labels: the first letters, in the order in which they appear."""
    labels = (label for label in dict.fromkeys(text) if label not in ",->")
    return text.translate(dict(zip(map(ord, labels), ascii_letters, strict=False)))
