"""Arrays for tensor descriptors: what a caller gives for a planned operand."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from contract.descriptors import TensorDescriptor
from contract.errors import InsufficientWorkspaceError, InvalidValueError, UnsupportedTypeError
from contract.layout import offset_bounds
from contract.run.host_views import Array
from contract.workspace import ALIGNMENT

__all__ = ["bind", "bind_workspace"]


def bind(tensor: TensorDescriptor, array: Any, name: str, written: bool = False) -> Array:
    """The tensor's elements in ``array``, which has its extents and strides or is raw memory.

    Raw memory is one-dimensional, contiguous and of the tensor's type; the tensor starts at its
    first element.
    """
    if not isinstance(array, np.ndarray):
        raise UnsupportedTypeError(f"{name} must be a NumPy array: it is a {type(array).__name__}.")
    x = np.asarray(array)
    if x.dtype.name != tensor.dtype or not x.dtype.isnative:
        raise UnsupportedTypeError(f"{name} was planned as {tensor}: the array is {x.dtype}.")
    if written and not x.flags.writeable:
        raise InvalidValueError(f"{name} is read-only.")
    if x.shape == tensor.extents and _has_strides(x, tensor.steps):
        return x
    low, high = offset_bounds(tensor.extents, tensor.steps)
    if x.ndim == 1 and x.flags.c_contiguous and low == 0 and x.size > high:
        steps = [step * x.itemsize for step in tensor.steps]
        return np.lib.stride_tricks.as_strided(x, tensor.extents, steps)
    raise InvalidValueError(
        f"{name} was planned as {tensor}: the array has shape {x.shape} and strides "
        f"{x.strides} bytes."
    )


def _has_strides(x: Array, steps: Sequence[int]) -> bool:
    return x.size == 0 or all(
        n == 1 or stride == step * x.itemsize
        for n, stride, step in zip(x.shape, x.strides, steps, strict=True)
    )


def bind_workspace(workspace: Any, required: int) -> Array | None:
    """The caller's bytes from the first line on; None where the handle's memory is used."""
    if workspace is None:
        return None
    if (
        not isinstance(workspace, np.ndarray)
        or not workspace.flags.c_contiguous
        or not workspace.flags.writeable
        or workspace.dtype.hasobject
    ):
        raise InvalidValueError("A workspace is a contiguous, writeable NumPy array of numbers.")
    memory: Array = workspace.reshape(-1).view(np.uint8)
    start = -memory.ctypes.data % ALIGNMENT if required else 0
    if memory.size - start < required:
        raise InsufficientWorkspaceError(
            f"The plan needs {required} bytes of workspace from a multiple of {ALIGNMENT} on; "
            f"{memory.size - start} bytes are given."
        )
    return memory[start:]
