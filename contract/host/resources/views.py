"""A View of a slot -> a function from the slot's array to the NumPy view, made once per plan."""

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from math import ceil, prod
from operator import attrgetter
from typing import Any

import numpy as np

from contract.descriptors.layout import packed_strides
from contract.descriptors.operations import TensorDescriptor

__all__ = ["Array", "Viewer", "address", "assign", "compact_strides", "slabs", "strided", "viewer"]

SLAB_ELEMENTS = 1 << 23  # between which Python looks for signals

Array = np.ndarray[Any, Any]
Viewer = Callable[[Array], Array]


def _address_asked(x: Array) -> int:
    """Where the first element lies."""
    found: int = x.__array_interface__["data"][0]
    return found


def _address_read(x: Array) -> int:
    """The same from the structure of an array, whose first field it is: PyArray_DATA.

    To ask NumPy takes eight times as long, for it describes the whole array.
    """
    return _Pointer.from_address(id(x) + _HEAD).value or 0


_Pointer, _HEAD = ctypes.c_void_p, object.__basicsize__
_SAMPLE = np.arange(3)[1:]
_is_readable = sys.implementation.name == "cpython" and _address_read(_SAMPLE) == _address_asked(
    _SAMPLE
)
address = _address_read if _is_readable else _address_asked


def viewer(tensor: TensorDescriptor, extents: Sequence[int], strides: Sequence[int]) -> Viewer:
    """x -> y with y[i] = memory of x at sum(i * strides); the cheapest way NumPy has.

    A dimension of stride 0 keeps its extent: where it is summed that is a factor.
    """
    shape, steps = tuple(extents), tuple(strides)
    if (shape, steps) == (tensor.extents, tensor.steps):
        return _same
    if (shape, steps) == (tensor.extents[::-1], tensor.steps[::-1]):
        return _reversed
    axes = _axes(tensor, shape, steps)
    if axes is not None:
        return lambda x: x.transpose(axes)
    return _by_address(tensor, shape, steps)


def _same(x: Array) -> Array:
    return x


_reversed: Viewer = attrgetter("T")


def _axes(
    tensor: TensorDescriptor, shape: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The transposition that makes the view, or None if it takes more than that."""
    own = list(zip(tensor.extents, tensor.steps, strict=True))
    wanted = list(zip(shape, steps, strict=True))
    if sorted(own) != sorted(wanted):
        return None
    axes: list[int] = []
    for each in wanted:
        axes.append(next(at for at, mine in enumerate(own) if mine == each and at not in axes))
    return tuple(axes)


def _by_address(tensor: TensorDescriptor, shape: tuple[int, ...], steps: tuple[int, ...]) -> Viewer:
    dtype = np.dtype(tensor.dtype)
    bytes_ = tuple(step * dtype.itemsize for step in steps)
    if dtype.kind not in "biufc" or 0 in tensor.extents:
        return lambda x: np.lib.stride_tricks.as_strided(x, shape, bytes_)
    if _is_packed(tensor.extents[::-1], tensor.steps[::-1]):
        return lambda x: np.ndarray(shape, dtype, x, 0, bytes_)
    if _is_packed(tensor.extents, tensor.steps):
        return lambda x: np.ndarray(shape, dtype, x.T, 0, bytes_)
    return lambda x: np.lib.stride_tricks.as_strided(x, shape, bytes_)


def _is_packed(extents: Sequence[int], strides: Sequence[int]) -> bool:
    return tuple(strides) == packed_strides(extents)


def strided(
    flat: Array, offset: int, shape: tuple[int, ...], byte_strides: tuple[int, ...]
) -> Array:
    """The view of contiguous 1-D memory that starts at element ``offset``."""
    if flat.dtype.hasobject:  # object memory has no buffer
        return np.lib.stride_tricks.as_strided(flat[offset:], shape, byte_strides)
    return np.ndarray(shape, flat.dtype, flat, offset * flat.itemsize, byte_strides)


def assign(out: Array, value: Any) -> None:
    """out = value, whatever is lost of it; numpy.copyto takes twice as long for a few elements.

    NumPy lets elements of arrays wrap around, and refuses the same numbers alone.
    """
    out[...] = value if out.ndim else np.asarray(value)


def compact_strides(extents: Sequence[int], order: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Packed strides of a panel with dimensions ``order`` fastest first, 0 for those not in it.

    Also returns the number of elements.
    """
    return packed_strides(extents, order), prod(extents[at] for at in order)


def slabs(first: Array, *others: Array) -> Iterator[tuple[Array, ...]]:
    """Arrays of one shape in pieces that do not take long, as the first one lies in memory."""
    if first.size <= SLAB_ELEMENTS:
        yield (first, *others)
        return
    axis = max(range(first.ndim), key=lambda at: abs(first.strides[at]) * (first.shape[at] > 1))
    extent = first.shape[axis]
    count = min(ceil(first.size / SLAB_ELEMENTS), extent)
    for part in range(count):
        own = slice(extent * part // count, extent * (part + 1) // count)
        where = (*[slice(None)] * axis, own)
        yield from slabs(first[where], *(x[where] for x in others))
