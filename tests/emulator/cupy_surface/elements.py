"""Elements of device memory, seen through shape and strides, with every byte checked."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..device import KernelFault, Kind
from .live import Live

Array = np.ndarray[Any, Any]


def byte_range(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """The bytes [begin, end) that elements occupy, counted from the first element's address."""
    if 0 in shape:
        return 0, 0
    steps = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    return sum(min(step, 0) for step in steps), itemsize + sum(max(step, 0) for step in steps)


@dataclass(frozen=True, slots=True)
class Place:
    """Where elements lie in device memory."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    def shadow(self) -> Array:
        """A NumPy array on the same addresses: for the algebra of layouts, never to be read."""
        begin, end = byte_range(self.shape, self.strides, self.dtype.itemsize)
        source: Any = bytearray(1)
        if end > begin:
            source = _bytes_at(self.pointer + begin, end - begin)
        return np.ndarray(self.shape, self.dtype, source, -begin, self.strides)

    def read(self, live: Live, what: str) -> tuple[Array, Array]:
        """The elements, and for each whether it was written."""
        data, marks = self._views(live, what)
        return data, marks.all(-1)

    def require(self, live: Live, what: str) -> Array:
        """The elements, of which all must have been written."""
        data, written = self.read(live, what)
        if not written.all():
            where = tuple(int(i) for i in np.argwhere(~written)[0])
            raise KernelFault(Kind.UNINITIALISED, f"{what}: element {where} was never written")
        return data

    def write(self, live: Live, what: str, values: Any, written: Any = True) -> None:
        """Store values, broadcast and converted as NumPy does."""
        data, marks = self._views(live, what)
        with np.errstate(all="ignore"):
            np.copyto(data, _real(values, self.dtype), casting="unsafe")
        marks[...] = np.asarray(written)[..., None]

    def _views(self, live: Live, what: str) -> tuple[Array, Array]:
        size = self.dtype.itemsize
        begin, end = byte_range(self.shape, self.strides, size)
        if begin == end:
            return np.empty(self.shape, self.dtype), np.ones((*self.shape, size), np.uint8)
        block = live.require(self.pointer + begin, self.pointer + end, what)
        if self.pointer % natural_alignment(self.dtype):
            raise KernelFault(Kind.MISALIGNED, f"{what}: address {self.pointer:#x}")
        start = self.pointer - block.pointer
        shape, strides = (*self.shape, size), (*self.strides, 1)
        return (
            np.ndarray(self.shape, self.dtype, block.bytes, start, self.strides),
            np.ndarray(shape, np.uint8, block.written, start, strides),
        )


def natural_alignment(dtype: np.dtype[Any]) -> int:
    """The bytes of which an address must be a multiple: those of a number of the type."""
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.alignment


def _bytes_at(pointer: int, nbytes: int) -> Any:
    return (ctypes.c_char * nbytes).from_address(pointer)


def _real(values: Any, dtype: np.dtype[Any]) -> Any:
    """Complex values without their imaginary part where the target has none."""
    return values.real if np.iscomplexobj(values) and dtype.kind not in "cb" else values
