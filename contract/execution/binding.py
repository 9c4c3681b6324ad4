"""Arrays for tensor descriptors: what a caller gives for a planned operand."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from contract.arrays.protocol import Array, Arrays, is_array, kind_of
from contract.descriptors.layout import offset_bounds
from contract.descriptors.operations import TensorDescriptor
from contract.errors import InsufficientWorkspaceError, InvalidValueError, UnsupportedTypeError
from contract.plan.workspace import ALIGNMENT

__all__ = ["aligned", "bind", "bind_workspace"]


def bind(
    arrays: Arrays, tensor: TensorDescriptor, array: Any, name: str, written: bool = False
) -> Array:
    """The tensor's elements in ``array``, which has its extents and strides or is raw memory.

    Raw memory is one-dimensional, contiguous and of the tensor's type; the tensor starts at its
    first element. On a device its address has the tensor's alignment.
    """
    x = _owned(arrays, array, name)
    if x.dtype.name != tensor.dtype or not x.dtype.isnative:
        raise UnsupportedTypeError(f"{name} was planned as {tensor}: the array is {x.dtype}.")
    if written and not arrays.is_writeable(x):
        raise InvalidValueError(f"{name} is read-only.")
    if arrays.alignment_matters:
        _require_alignment(tensor, arrays.address(x), name)
    if x.shape == tensor.extents and _has_strides(x, tensor.steps):
        return x
    low, high = offset_bounds(tensor.extents, tensor.steps)
    if x.ndim == 1 and x.flags.c_contiguous and low == 0 and x.size > high:
        steps = [step * x.itemsize for step in tensor.steps]
        return arrays.as_strided(x, tensor.extents, steps)
    raise InvalidValueError(
        f"{name} was planned as {tensor}: the array has shape {x.shape} and strides "
        f"{x.strides} bytes."
    )


def _owned(arrays: Arrays, array: Any, name: str) -> Array:
    """The array itself, of the base class; errors name both kinds."""
    if is_array(array) and arrays.owns(array):
        return arrays.as_array(array)
    error = InvalidValueError if is_array(array) else UnsupportedTypeError
    raise error(f"{name} must be a {arrays.kind}: it is a {kind_of(array)}.")


def _require_alignment(tensor: TensorDescriptor, address: int, name: str) -> None:
    if address % tensor.alignment:
        raise InvalidValueError(
            f"{name} was planned with an alignment of {tensor.alignment} bytes: its address is a "
            f"multiple of {address & -address} bytes."
        )


def _has_strides(x: Array, steps: Sequence[int]) -> bool:
    return x.size == 0 or all(
        n == 1 or stride == step * x.itemsize
        for n, stride, step in zip(x.shape, x.strides, steps, strict=True)
    )


def bind_workspace(arrays: Arrays, workspace: Any, required: int) -> Array | None:
    """The caller's bytes from the first line on; None where the handle's memory is used."""
    if workspace is None:
        return None
    if (
        not is_array(workspace)
        or not arrays.owns(workspace)
        or not workspace.flags.c_contiguous
        or not arrays.is_writeable(workspace)
        or workspace.dtype.hasobject
    ):
        raise InvalidValueError(
            f"A workspace is a contiguous, writeable {arrays.kind} of numbers: it is a "
            f"{kind_of(workspace)}."
        )
    memory = workspace.reshape(-1).view(np.uint8)
    found = aligned(arrays, memory) if required else memory
    if found.size < required:
        raise InsufficientWorkspaceError(
            f"The plan needs {required} bytes of workspace from a multiple of {ALIGNMENT} on; "
            f"{found.size} bytes are given."
        )
    return found


def aligned(arrays: Arrays, memory: Array) -> Array:
    """The bytes from the first line on."""
    return memory[-arrays.address(memory) % ALIGNMENT :]
