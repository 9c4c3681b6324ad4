"""Arrays on the host: NumPy's, and whatever numpy.asarray takes."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any

import numpy as np
from numpy import ndarray

from contract.arrays.cupy_module import cupy_of
from contract.arrays.libraries import library_of
from contract.arrays.protocol import Array, Layout, Recordable, Recording
from contract.descriptors.compute_types import DATA_TYPES
from contract.errors import InvalidValueError
from contract.execution.quiet import quietly
from contract.host.resources.limits import free_memory
from contract.host.resources.views import slabs
from contract.support.text import shown

__all__ = ["HostArrays"]

NOTHING_TO_DO = nullcontext()


class HostArrays:
    """NumPy arrays; the methods are those of ``Arrays``.

    The alignment of a layout is the item size, whatever the address: the host's kernels read
    elements wherever they lie, and keys of calls do not hold addresses.
    """

    kind = "NumPy array"
    device = None
    types = DATA_TYPES
    alignment_matters = False
    default_casting = "safe"  # numpy.einsum's

    def owns(self, x: Any) -> bool:
        if type(x) is np.ndarray:
            return True
        library = library_of(x)
        return cupy_of(x) is None and (library is None or library.device(x) is None)

    def as_array(self, x: Any) -> Array:
        if type(x) is np.ndarray:
            return x
        library = library_of(x)
        if library is not None:
            library.require_plain(x)
            return library.native(x)
        try:
            return np.asarray(x)
        except ValueError as error:  # nested sequences of different lengths
            raise InvalidValueError(
                f"A {type(x).__name__} is an operand only where it is an array: {error} Operands "
                "are given one by one, not in a list."
            ) from None

    def from_host(self, x: Any) -> Any:
        return x

    def layouts(self, arrays: Sequence[Any]) -> tuple[Any, ...] | None:
        if len(arrays) == 2:  # most often, and every call comes here
            a, b = arrays
            if type(a) is ndarray and type(b) is ndarray:
                return a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype
            return None
        layouts: list[Any] = []
        for x in arrays:
            if type(x) is not ndarray:
                return None
            layouts += (x.shape, x.strides, x.dtype)
        return tuple(layouts)

    def flat(self, layouts: Sequence[Layout]) -> tuple[Any, ...]:
        return tuple([part for layout in layouts for part in layout[:3]])

    def layout(self, x: Array) -> Layout:
        return Layout(x.shape, x.strides, x.dtype, x.dtype.itemsize)

    def new_alignment(self, dtype: np.dtype[Any]) -> int:
        return dtype.itemsize

    def address(self, x: Array) -> int:
        return int(x.ctypes.data)

    is_aligned = staticmethod(attrgetter("flags.aligned"))
    is_writeable = staticmethod(attrgetter("flags.writeable"))

    def may_share(self, one: Array, other: Array) -> bool:
        """Memory has one owner; to compare the ranges of addresses takes longer than to see it."""
        if one is not other and one.flags.owndata and other.flags.owndata:
            return False
        return np.may_share_memory(one, other)

    def as_strided(self, x: Array, shape: Sequence[int], strides: Sequence[int]) -> Array:
        return np.lib.stride_tricks.as_strided(x, shape, strides)

    def native_copy(self, x: Array) -> Array:
        copied = np.empty(x.shape, x.dtype.newbyteorder("="), order="F")
        self.copy_into(copied, x)
        return copied

    def copy_into(self, target: Array, source: Array) -> None:
        for into, piece in slabs(target, source):
            quietly(np.copyto, into, piece, casting="unsafe")

    def available_bytes(self) -> int | None:
        return free_memory()

    def capturing(self) -> bool:
        return False

    @property
    def captured_bytes(self) -> int:
        return 0

    def keeping(self) -> AbstractContextManager[Any]:
        return NOTHING_TO_DO

    def release_captured(self) -> None:
        """Nothing is captured on the host."""

    def record(self, call: Recordable) -> Recording:
        return _Repeated(call)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        if stream is not None:
            raise InvalidValueError(f"The host has no streams: stream is {shown(stream)}.")
        return NOTHING_TO_DO


class _Repeated:
    """A call that is made again and again; it takes and gives back its memory each time."""

    def __init__(self, call: Recordable) -> None:
        self._call = call
        self.output = call.new_output() if call.out is None else call.out
        self.bytes = self.output.nbytes if call.out is None else 0

    def replay(self) -> None:
        self._call.perform(self.output)

    def close(self) -> None:
        """The array is whoever's holds it."""
