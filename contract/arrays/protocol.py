"""What the verbs need to know of arrays: the seam between NumPy on the host and CuPy on a GPU."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import ml_dtypes  # noqa: F401  (registers the name bfloat16)
import numpy as np

from contract.arrays.cupy_module import cupy_of
from contract.arrays.libraries import library_of
from contract.errors import InsufficientWorkspaceError, InvalidValueError

__all__ = [
    "LARGE_BYTES",
    "Array",
    "Arrays",
    "Layout",
    "Recordable",
    "Recording",
    "is_array",
    "is_describable",
    "is_overridden",
    "kind_of",
    "require_free",
    "require_host_scalar",
    "require_one_kind",
    "type_name",
]

LARGE_BYTES = 1 << 28  # a call that needs less is not worth asking the operating system about
Array = Any  # a numpy.ndarray or a cupy.ndarray: what comes in decides what goes out


class Layout(NamedTuple):
    """All that planning has to know of an array; strides and alignment in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    alignment: int


@lru_cache(maxsize=64)
def type_name(dtype: np.dtype[Any]) -> str:
    """NumPy's name of a data type, which NumPy puts together anew every time."""
    return dtype.name


class Recordable(Protocol):
    """A call with its arrays and scalars, of which a graph can hold every step."""

    @property
    def out(self) -> Array | None:
        """Where the result goes; None: to a new array."""

    def new_output(self) -> Array:
        """An array for the result."""

    def perform(self, out: Array | None = None) -> Array:
        """The result in ``out``, else where the call has it."""


class Recording(Protocol):
    """A recorded call: every replay writes to ``output``; ``bytes`` are the recording's own."""

    @property
    def output(self) -> Array: ...
    @property
    def bytes(self) -> int: ...

    def replay(self) -> None:
        """Repeat the call, on a device in the current stream."""

    def close(self) -> None:
        """Give the memory back, once no replay uses it."""


class Arrays(Protocol):
    """One kind of arrays in one memory: NumPy's, or CuPy's on one device.

    ``kind`` is what messages call one of them, ``device`` the number of the GPU (None: the
    host), ``types`` are the names of their data types.
    ``alignment_matters``: whether kernels rely on the alignment that descriptors state.
    ``default_casting`` is the rule by which einsum converts operands to ``dtype``.
    """

    @property
    def kind(self) -> str: ...
    @property
    def device(self) -> int | None: ...
    @property
    def types(self) -> frozenset[str]: ...
    @property
    def alignment_matters(self) -> bool: ...
    @property
    def default_casting(self) -> str: ...

    def owns(self, x: Any) -> bool:
        """Whether ``as_array`` takes ``x``."""

    def as_array(self, x: Any) -> Array:
        """``x`` as an array of the base class."""

    def from_host(self, x: Any) -> Any:
        """What einsum does with an operand that is no array on a device: this kind of array."""

    def layouts(self, arrays: Sequence[Any]) -> tuple[Any, ...] | None:
        """The layouts of all arrays in a row, as part of a key.

        None if one of them is no plain array of this kind, or where another device is current.
        """

    def flat(self, layouts: Sequence[Layout]) -> tuple[Any, ...]:
        """What ``layouts`` gives for arrays that have these."""

    def layout(self, x: Array) -> Layout:
        """Shape, strides, type and alignment."""

    def new_alignment(self, dtype: np.dtype[Any]) -> int:
        """The alignment that new arrays have, in bytes, as a Layout counts it."""

    def address(self, x: Array) -> int:
        """Where the first element lies."""

    def is_aligned(self, x: Array) -> bool:
        """Whether elements can be accessed where they lie."""

    def is_writeable(self, x: Array) -> bool:
        """Whether elements may be changed."""

    def may_share(self, one: Array, other: Array) -> bool:
        """Whether the ranges of addresses of two arrays overlap."""

    def as_strided(self, x: Array, shape: Sequence[int], strides: Sequence[int]) -> Array:
        """The memory of ``x`` from its first element on, with other extents and byte strides."""

    def native_copy(self, x: Array) -> Array:
        """A column-major copy that a descriptor can express."""

    def copy_into(self, target: Array, source: Array) -> None:
        """target = source, converted and broadcast; they share no memory."""

    def available_bytes(self) -> int | None:
        """Memory that can be had; None where the system does not say."""

    def capturing(self) -> bool:
        """Whether the current stream records a graph: nothing runs, nothing may be waited for."""

    @property
    def captured_bytes(self) -> int:
        """Bytes that calls in captures allocated."""

    def keeping(self) -> AbstractContextManager[Any]:
        """The time in which what a call in a capture allocates is kept for the graph."""

    def release_captured(self) -> None:
        """Give the memory of such calls back: their graphs are not replayed any more."""

    def record(self, call: Recordable) -> Recording:
        """Record a call, on a device as a CUDA graph; it is not run."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """The time in which the device and the stream are current; None: the current stream."""


def is_array(x: Any) -> bool:
    """Whether ``x`` is an array of any kind."""
    return isinstance(x, np.ndarray) or cupy_of(x) is not None or library_of(x) is not None


def is_overridden(x: Any) -> bool:
    """Whether NumPy would hand its functions on to the class of ``x``, which we do not know."""
    override = getattr(type(x), "__array_function__", None)
    return override not in (None, np.ndarray.__array_function__) and cupy_of(x) is None


def kind_of(x: Any) -> str:
    """What messages call ``x``."""
    if cupy_of(x) is not None:
        return f"CuPy array on device {x.data.device_id}"
    library = library_of(x)
    if library is not None:
        return library.kind_of(x)
    return "NumPy array" if isinstance(x, np.ndarray) else type(x).__name__


def is_describable(layout: Layout) -> bool:
    """Whether a descriptor can express the array: native bytes, whole elements apart."""
    _, strides, dtype, alignment = layout
    size = dtype.itemsize
    return dtype.isnative and not alignment % size and not any([step % size for step in strides])


def require_free(arrays: Arrays, needed: int, purpose: str) -> None:
    """InsufficientWorkspaceError where there are not so many bytes for the purpose."""
    free = arrays.available_bytes() if needed > LARGE_BYTES else None
    if free is not None and needed > free:
        raise InsufficientWorkspaceError(
            f"The call needs {needed} bytes for {purpose}; {free} bytes are free.", needed
        )


def require_one_kind(arrays: Arrays, named: Sequence[tuple[str, Any]]) -> None:
    """InvalidValueError unless all arrays are of this kind and of one library.

    The names are for the message.
    """
    owned = [(name, x) for name, x in named if is_array(x) and arrays.owns(x)]
    library = library_of(owned[0][1]) if owned else None
    strangers = [
        (name, x)
        for name, x in named
        if not arrays.owns(x) or (is_array(x) and library_of(x) is not library)
    ]
    if not strangers:
        return
    name, x = strangers[0]
    if not owned:
        raise InvalidValueError(
            f"A handle takes arrays of its own kind, here {arrays.kind}s: {name} is a {kind_of(x)}."
        )
    known, y = owned[0]
    raise InvalidValueError(
        f"All arrays of a call are of one kind and on one device: {known} is a {kind_of(y)}, "
        f"{name} is a {kind_of(x)}."
    )


def require_host_scalar(name: str, value: Any) -> None:
    """InvalidValueError for a scalar on a device: to read it, the host would have to wait.

    So for arrays of libraries: they may be on a device, and a gradient would be lost.
    """
    if value is None or type(value) in (int, float, complex):
        return
    if cupy_of(value) is not None:
        raise InvalidValueError(
            f"{name} must be a number on the host: it is a {kind_of(value)}, and reading it "
            "would synchronise with the device."
        )
    library = library_of(value)
    if library is not None:
        raise InvalidValueError(
            f"{name} must be a number: it is a {library.kind_of(value)}. Scalars with gradients "
            "are operands without modes."
        )
