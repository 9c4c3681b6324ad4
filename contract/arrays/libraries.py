"""Arrays of libraries that build on NumPy's or CuPy's memory: which library an array is of.

A library is known by the types of its arrays: nothing is imported that the caller has not.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np

__all__ = [
    "ArrayLibrary",
    "Transformable",
    "library_among",
    "library_of",
    "loaded_libraries",
    "numpy_type",
]

Tensor = Any  # a torch.Tensor, a jax.Array or a tracer of one
LIBRARIES = {"torch": "torch", "jax": "jax", "jaxlib": "jax"}  # by the package of an array's type


Stored = tuple[str, Any, Any, Any]


class Transformable(Protocol):
    """A function of tensors: its derivatives, the same for a batch, and what a graph keeps."""

    def value(self, tensors: Sequence[Tensor]) -> Tensor:
        """The result, of whose making the library keeps no record."""

    def native_value(self, tensors: Sequence[Tensor]) -> Any:
        """The same as an array of NumPy's or CuPy's."""

    def result_form(self, tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and type of the result; reads no element."""

    def gradient(self, at: int, cotangent: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """What the cotangent of the result contributes to that of the tensor ``at``."""

    def tangent(self, tangents: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> Tensor:
        """The tangent of the result; None: that of a tensor that does not change."""

    def batched(
        self, tensors: Sequence[Tensor], axes: Sequence[int | None], size: int
    ) -> "tuple[Transformable, list[Tensor], int]":
        """A function of all in a batch, its tensors, and the axis of the batch in its result."""

    def stored(self, tensors: Sequence[Tensor]) -> Stored:
        """A text and three numbers, from which ``read`` makes the function again."""


Apply = Callable[[Transformable, Sequence[Tensor]], Tensor]


class ArrayLibrary(Protocol):
    """One library's arrays, seen as NumPy's on the host or CuPy's on a GPU.

    ``conjugates``: gradients are made of the conjugate derivative, as in torch. ``converts``: NumPy
    arrays beside its own become such. ``order`` is the layout of results; None: what the caller
    asks.
    """

    @property
    def conjugates(self) -> bool: ...
    @property
    def converts(self) -> bool: ...
    @property
    def order(self) -> str | None: ...

    def owns(self, x: Any) -> bool:
        """Whether ``x`` is an array of the library."""

    def kind_of(self, x: Tensor) -> str:
        """What messages call ``x``."""

    def device(self, x: Tensor) -> int | None:
        """The number of the GPU that the elements are on; None: the host."""

    def dtype(self, x: Tensor) -> np.dtype[Any]:
        """The type of the elements."""

    def numpy_type(self, dtype: Any) -> Any:
        """NumPy's name of one of the library's data types."""

    def native(self, x: Tensor) -> Any:
        """The elements where they lie, of an array that the library is not ``watching``."""

    def require_plain(self, x: Tensor) -> None:
        """NotSupportedError where the elements are not what ``x`` says, or all of it."""

    def resolved(self, x: Tensor) -> tuple[Tensor, bool]:
        """An array with elements, and whether ``x`` stands for the conjugates of these."""

    def wrapped(self, array: Any) -> Tensor:
        """A native array as one of the library."""

    def converted(self, x: Any) -> Tensor:
        """A number, a nested sequence or a NumPy array as an array of the library."""

    def stream(self, stream: Any, device: int | None) -> Any:
        """The CuPy stream for a call: the given one's, or the library's current one."""

    def watching(self, tensors: Sequence[Tensor]) -> Apply | None:
        """How the library computes a function of tensors of which it wants to know more.

        It differentiates, batches, or puts the call into a graph. None: it needs the value alone.
        """

    def prepare(self, kind: Any) -> None:
        """Let graphs that hold functions of the class ``kind`` be loaded and run."""

    def ones(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Ones of the type and on the device of ``like``."""

    def transposed(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        """``x`` with its axes in another order."""

    def repeated(self, x: Tensor, size: int) -> Tensor:
        """``x`` so many times, along a new first axis."""

    def is_column_major(self, x: Tensor) -> bool:
        """Whether elements follow each other with the first axis fastest."""

    def cast(self, x: Tensor, like: Tensor) -> Tensor:
        """``x`` in the type of ``like``; its real part where that is real."""


def library_of(x: Any) -> ArrayLibrary | None:
    """The library whose array ``x`` is; None for NumPy's, CuPy's and what is no array."""
    kind: type = type(x)
    if kind is np.ndarray:
        return None
    library = _library_of_class(kind)
    return library if library is not None and library.owns(x) else None


def library_among(arrays: Sequence[Any]) -> ArrayLibrary | None:
    """The library of the first array that is of one."""
    for x in arrays:
        library = library_of(x)
        if library is not None:
            return library
    return None


def loaded_libraries() -> list[ArrayLibrary]:
    """Those that the caller has imported by now."""
    return [_opened(name) for name in ("torch", "jax") if name in sys.modules]


def numpy_type(dtype: Any) -> Any:
    """A library's data type as numpy.dtype takes it; anything else as it is."""
    kind: type = type(dtype)
    library = _library_of_class(kind)
    return dtype if library is None else library.numpy_type(dtype)


@cache
def _library_of_class(kind: type) -> ArrayLibrary | None:
    for each in kind.__mro__:
        name = LIBRARIES.get(each.__module__.split(".")[0])
        if name in sys.modules:
            return _opened(name)
    return None


@cache
def _opened(name: str) -> ArrayLibrary:
    if name == "torch":
        from contract.arrays.torch_tensors import TorchLibrary

        return TorchLibrary(sys.modules[name])
    from contract.arrays.jax_arrays import JaxLibrary

    return JaxLibrary(sys.modules[name])
