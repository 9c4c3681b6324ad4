"""Arrays of a case: made in guarded memory, and looked at again after the call."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tests.fuzz.cases import Tensor
from tests.fuzz.guard import GuardedMemory

__all__ = ["Made", "bounds", "made"]


@dataclass(frozen=True)
class Made:
    """An array, the memory that it lies in, and the bytes that were there before the call."""

    array: np.ndarray
    block: np.ndarray
    before: bytes

    @property
    def now(self) -> bytes:
        return self.block.tobytes()

    def is_unchanged(self) -> bool:
        """Whether every byte is what it was."""
        return self.now == self.before

    def is_unchanged_between(self) -> bool:
        """Whether the bytes that belong to no element are what they were."""
        array, size = self.array, self.array.itemsize
        inside = np.zeros(self.block.size, bool)
        offset = array.ctypes.data - self.block.ctypes.data if array.size else 0
        shape, strides = (*array.shape, size), (*array.strides, 1)
        if array.size:
            np.ndarray(shape, bool, inside, offset, strides)[...] = True
        before = np.frombuffer(self.before, np.uint8)
        return bool(np.array_equal(before[~inside], self.block[~inside]))


def bounds(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """The lowest and the highest offset of an element, in the strides' unit."""
    reach = [step * (extent - 1) for extent, step in zip(shape, strides, strict=True)]
    return sum(min(x, 0) for x in reach), sum(max(x, 0) for x in reach)


def made(tensor: Tensor, memory: GuardedMemory) -> Made:
    """The array of a description, with its values."""
    dtype = tensor.kind
    if dtype.hasobject:
        return _of_objects(tensor)
    low, high = bounds(tensor.shape, tensor.strides) if prod(tensor.shape) else (0, 0)
    size = high - low + dtype.itemsize if prod(tensor.shape) else 0
    block = memory.array(max(size, 1), slack=tensor.slack)
    view = np.ndarray(tensor.shape, dtype, block if size else block[:0], -low, tensor.strides)
    if tensor.values != "fresh":
        view[...] = values(tensor)
    return Made(view, block, block.tobytes())


def _of_objects(tensor: Tensor) -> Made:
    view = np.asarray(np.random.default_rng(tensor.seed).integers(-9, 10, tensor.shape))
    return Made(view.astype(object), np.empty(0, np.uint8), b"")


def values(tensor: Tensor) -> np.ndarray:
    """What the tensor holds, before it is cast to its type."""
    rng, dtype, shape = np.random.default_rng(tensor.seed), tensor.kind, tensor.shape
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return _integers(rng, tensor)
    found = _real(rng, tensor)
    if dtype.kind == "c" and tensor.values == "near one":
        found = found * np.exp(1j * rng.uniform(0, 2 * np.pi, shape))
    elif dtype.kind == "c":
        found = found + 1j * _real(rng, tensor)
    return np.asarray(found).astype(dtype.newbyteorder("="))


def _integers(rng: np.random.Generator, tensor: Tensor) -> np.ndarray:
    limits = np.iinfo(tensor.kind)
    if tensor.values == "small":
        return rng.integers(max(limits.min, -8), 9, tensor.shape)
    kind = tensor.kind.newbyteorder("=")
    return rng.integers(limits.min, limits.max, tensor.shape, kind, endpoint=True)


RANGES = {"inside": (0.125, 0.875), "above": (1.25, 2.0), "near one": (0.9, 1.1)}


def _real(rng: np.random.Generator, tensor: Tensor) -> Any:
    if tensor.values in ("nan", "fresh"):
        return np.full(tensor.shape, np.nan)
    if tensor.values in RANGES:
        return rng.uniform(*RANGES[tensor.values], tensor.shape)
    return rng.standard_normal(tensor.shape)
