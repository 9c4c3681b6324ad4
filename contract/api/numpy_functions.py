"""tensordot and transpose with NumPy's signatures: what other engines ask of a backend.

opt_einsum, cotengra and autoray look for them beside einsum in the module ``contract``.
"""

from collections.abc import Sequence
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np

from contract.api.contraction import contract
from contract.api.evaluation import is_hashable
from contract.api.whole import whole
from contract.arrays.libraries import library_of
from contract.arrays.protocol import Array, is_overridden
from contract.descriptors.operations import frozen
from contract.errors import InvalidValueError
from contract.host.resources.numpy_products import tensordot as numpy_tensordot
from contract.support.text import shown

__all__ = ["tensordot", "transpose"]

FIRST_LABEL = 0xC0  # letters from there on are enough for any two arrays


@whole
def tensordot(a: Any, b: Any, axes: Any = 2) -> Array:
    """The sum over ``axes`` of a and of b: the other axes of a, then those of b.

    ``axes`` is a pair of axes or of sequences of them, or a number: the last ones of a and the
    first ones of b, in order. The layout of the result is the cheapest. What NumPy would hand on
    to the class of a or b (dask, sparse), goes there.

    Raises InvalidValueError (a ValueError) unless each axis of a has a partner of its extent.
    Source: numpy.tensordot.
    """
    if is_overridden(a) or is_overridden(b):
        found: Array = numpy_tensordot(a, b, axes)
        return found
    axes = axes if type(axes) is int else frozen(axes)
    is_plain = type(a) is np.ndarray and type(b) is np.ndarray and is_hashable(axes)
    find = _notation if is_plain else _notation.__wrapped__
    return contract(find(np.shape(a), np.shape(b), axes), a, b, order="K")


@lru_cache(maxsize=1024, typed=True)  # a function of its arguments, longer than small products
def _notation(a: tuple[int, ...], b: tuple[int, ...], axes: Any) -> str:
    """The expression of arrays of these shapes, once the axes are found to be right."""
    ranks = len(a), len(b)
    summed = [_axes(each, rank) for each, rank in zip(_pair(axes, ranks[0]), ranks, strict=True)]
    if len(summed[0]) != len(summed[1]):
        raise InvalidValueError(
            f"Each axis of a is summed with one of b: {len(summed[0])} axes of a, "
            f"{len(summed[1])} of b."
        )
    left = [chr(FIRST_LABEL + at) for at in range(ranks[0])]
    right = [chr(FIRST_LABEL + ranks[0] + at) for at in range(ranks[1])]
    for at, partner in zip(*summed, strict=True):
        _require_equal(a[at], b[partner], at, partner)
        right[partner] = left[at]
    output = [x for at, x in enumerate(left) if at not in summed[0]]
    output += [x for at, x in enumerate(right) if at not in summed[1]]
    return f"{''.join(left)},{''.join(right)}->{''.join(output)}"


def transpose(a: Any, axes: Sequence[int] | None = None) -> Array:
    """A view of ``a`` with its axes in another order; reversed if none is given."""
    library = library_of(a)
    if library is not None:
        order = range(len(a.shape))[::-1] if axes is None else _axes(axes, len(a.shape))
        return library.transposed(a, tuple(order))
    return (a if hasattr(a, "transpose") else np.asarray(a)).transpose(axes)


def _pair(axes: Any, rank: int) -> tuple[Any, Any]:
    try:
        count = index(axes)
    except TypeError:
        if not isinstance(axes, Sequence | np.ndarray) or len(axes) != 2:
            raise InvalidValueError(
                f"axes is a number of axes, or a pair of axes: it is {shown(axes)}."
            ) from None
        first, second = axes
        return first, second
    return range(rank - count, rank), range(count)


def _axes(axes: Any, rank: int) -> list[int]:
    """Axes counted from the first one; InvalidValueError if one is not there or comes twice."""
    given = [index(each) for each in (axes if np.iterable(axes) else (axes,))]
    found = [each + rank if each < 0 else each for each in given]
    if len(set(found)) < len(found) or not all(0 <= each < rank for each in found):
        raise InvalidValueError(
            f"Axes are different and from {-rank} to {rank - 1}: they are {given}."
        )
    return found


def _require_equal(extent: int, other: int, at: int, partner: int) -> None:
    if extent != other:
        raise InvalidValueError(
            f"Axes summed together have one extent: axis {at} of a has {extent}, axis {partner} "
            f"of b has {other}."
        )
