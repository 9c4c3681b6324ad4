"""cupy.ndarray: shape, strides and type over device memory; work on elements is queued."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from .driver import Driver
from .elements import Place, byte_range
from .live import Live

if TYPE_CHECKING:
    from .memory import MemoryPointer

_KINDS = "?bhilqBHILQefdFD"
_REFUSED = (
    "Implicit conversion to a NumPy array is not allowed. "
    "Please use `.get()` to construct a NumPy array explicitly."
)


class Flags:
    """The layout of an array; CuPy knows these three only."""

    def __init__(self, c_contiguous: bool, f_contiguous: bool, owndata: bool) -> None:
        self.c_contiguous = c_contiguous
        self.f_contiguous = f_contiguous
        self.owndata = owndata

    @property
    def fnc(self) -> bool:
        """Column-major and not row-major."""
        return self.f_contiguous and not self.c_contiguous

    @property
    def forc(self) -> bool:
        """Row-major or column-major."""
        return self.f_contiguous or self.c_contiguous

    def __getitem__(self, name: str) -> bool:
        if name not in ("C_CONTIGUOUS", "F_CONTIGUOUS", "OWNDATA"):
            raise KeyError(f"{name} is not defined for cupy.ndarray.flags")
        found: bool = getattr(self, name.lower())
        return found


def supported(dtype: Any) -> np.dtype[Any]:
    """A type that device arrays may have."""
    made = np.dtype(dtype)
    known = made.char in _KINDS or made == ml_dtypes.bfloat16
    plain = made.kind == "V" and made.subdtype is None and made.itemsize and not made.hasobject
    if made.byteorder == ">" or not (known or plain):
        raise ValueError(f"Unsupported dtype {made}")
    return made


class ndarray:
    """An array on a device."""

    _driver: Driver
    data: MemoryPointer
    base: ndarray | None
    __array_priority__ = 100
    __hash__ = None

    def __init__(
        self,
        shape: Any,
        dtype: Any = float,
        memptr: MemoryPointer | None = None,
        strides: Any = None,
        order: str | None = "C",
    ) -> None:
        self._shape = _extents(shape)
        self._dtype = supported(dtype) if memptr is None else np.dtype(dtype)
        self._strides = self._given_strides(strides, order or "C")
        self.base = None
        self.data = self._allocate(strides) if memptr is None else memptr

    def _given_strides(self, strides: Any, order: str) -> tuple[int, ...]:
        if order.upper() not in ("C", "F"):
            raise TypeError("order not understood")
        if strides is None:
            return packed_strides(self._shape, self._dtype.itemsize, order.upper())
        if len(strides) != len(self._shape):
            raise ValueError("strides must have the same length as shape")
        return tuple(int(stride) for stride in strides)

    def _allocate(self, strides: Any) -> MemoryPointer:
        size = self._dtype.itemsize
        begin, end = byte_range(self._shape, self._strides, size)
        if strides is not None and begin:
            raise ValueError("ndarray() with strides currently does not allow negative strides")
        if end > self.size * size:
            raise ValueError(
                f"ndarray() with strides must stay withing a contiguous size of "
                f"{self.size * size} but got {end}."
            )
        made: MemoryPointer = self._driver.classes.alloc(end)
        return made

    # Layout.

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self._shape

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides in bytes."""
        return self._strides

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """The number of extents."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self._dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def flags(self) -> Flags:
        """How it lies in memory."""
        flags = self._place.shadow().flags
        return Flags(flags.c_contiguous, flags.f_contiguous, self.base is None)

    @property
    def device(self) -> Any:
        """The device it is on."""
        return self.data.device

    @property
    def T(self) -> ndarray:
        """The array with its extents reversed."""
        return self if self.ndim < 2 else self._view(self._place.shadow().T)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self._dtype.str,
            "descr": self._dtype.descr,
            "stream": self._driver.classes.get_current_stream().ptr or 1,
            "version": 3,
            "strides": None if self.flags.c_contiguous else self.strides,
            "data": (self.data.ptr if self.size else 0, False),
        }

    @property
    def _place(self) -> Place:
        return Place(self.data.ptr, self._shape, self._strides, self._dtype)

    # Views.

    def _view(self, shadow: np.ndarray[Any, Any]) -> ndarray:
        """The array whose layout NumPy found on the same addresses."""
        offset = shadow.ctypes.data - self.data.ptr if shadow.size and self.size else 0
        made = type(self)(shadow.shape, shadow.dtype, self.data + offset, shadow.strides)
        made.base = self if self.base is None else self.base
        return made

    def __getitem__(self, slices: Any) -> ndarray:
        keys = slices if isinstance(slices, tuple) else (slices,)
        for key in keys:
            if not (key is None or key is ... or isinstance(key, int | np.integer | slice)):
                raise NotImplementedError(f"the emulator has no advanced indexing: {key!r}")
        # With an ellipsis NumPy returns a view of one element, not its value.
        whole = keys if any(key is ... for key in keys) else (*keys, ...)
        return self._view(self._place.shadow()[whole])

    def transpose(self, *axes: Any) -> ndarray:
        """The array with its extents permuted."""
        return self._view(self._place.shadow().transpose(*axes))

    def swapaxes(self, axis1: int, axis2: int) -> ndarray:
        """The array with two extents exchanged."""
        return self._view(self._place.shadow().swapaxes(axis1, axis2))

    def squeeze(self, axis: Any = None) -> ndarray:
        """The array without extents of one."""
        return self._view(self._place.shadow().squeeze(axis))

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> ndarray:
        """The elements in another shape: a view where the layout allows it."""
        wanted = shape[0] if len(shape) == 1 else shape
        try:
            return self._view(self._place.shadow().reshape(wanted, order=order, copy=False))
        except ValueError:
            if copy is False or self.size != np.empty(self.shape, "?").reshape(wanted).size:
                raise
        return self.copy(order).reshape(*shape, order=order)

    def ravel(self, order: str = "C") -> ndarray:
        """The elements in one dimension."""
        return self.reshape(-1, order=order)

    def view(self, dtype: Any = None, type: Any = None) -> ndarray:
        """The same bytes, as another type."""
        shadow = self._place.shadow()
        return self._view(shadow if dtype is None else shadow.view(np.dtype(dtype)))

    # Elements, on the device.

    def fill(self, value: Any) -> None:
        """Fill with a scalar, in stream order."""
        if isinstance(value, ndarray):
            if value.shape != ():
                raise ValueError("non-scalar cupy.ndarray cannot be used for fill")
            copy_elements(value, self)
            return
        scalar = np.asarray(value, dtype=self._dtype)
        if scalar.shape != ():
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        place, fixed = self._place, scalar.copy()
        self._driver.counters.elementwise += 1
        self._enqueue(lambda live: place.write(live, "fill", fixed))

    def __setitem__(self, slices: Any, value: Any) -> None:
        target = self[slices]
        if not isinstance(value, ndarray):
            target.fill(value)  # as CuPy, this refuses NumPy arrays that are not scalars
        elif target._place != value._place:
            copy_elements(value, target)

    def astype(
        self,
        dtype: Any,
        order: str | None = "K",
        casting: Any = None,
        subok: Any = None,
        copy: bool = True,
    ) -> ndarray:
        """A copy of another type or order, or the array itself where nothing is to be done."""
        if casting is not None or subok is not None:
            raise TypeError("casting is not supported yet")
        shadow = self._place.shadow()
        target = supported(dtype)
        if not copy and target == self._dtype and _has_order(self.flags, order or "K"):
            return self
        likewise: Any = np.empty_like(shadow, target, order=order or "K")
        made = type(self)(self.shape, target, None, likewise.strides)
        if self.size:
            copy_elements(self, made)
        return made

    def copy(self, order: str = "C") -> ndarray:
        """A copy on the current device."""
        if self.size == 0 or self.data.device_id == self._driver.device:
            return self.astype(self._dtype, order)
        with self._driver.on(self.data.device_id):
            source = self.astype(self._dtype, order, copy=False)
        if not source.flags.forc:
            raise NotImplementedError("CuPy cannot copy non-contiguous array between devices.")
        made = type(self)(source.shape, source.dtype, None, source.strides)
        made.data.copy_from_device_async(source.data, source.nbytes)
        return made

    def _enqueue(self, task: Any) -> None:
        self._driver.enqueue(self._driver.classes.get_current_stream().ptr, task)

    # Elements, from and to the host.

    def get(
        self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True
    ) -> np.ndarray[Any, Any]:
        """A copy on the host, once the stream is done."""
        chosen = self._driver.classes.get_current_stream() if stream is None else stream
        if out is None:
            wanted = ("F" if self.flags.fnc else "C") if order.upper() == "A" else order.upper()
            host: Any = np.empty(self.shape, self._dtype, order=wanted)
        else:
            host, wanted = out, self._order_of(out)
        if self.size == 0:
            return host
        with self._driver.on(self.data.device_id):
            source = self
            if not _has_order(self.flags, wanted):
                with chosen:
                    source = self.copy(wanted)
            source.data.copy_to_host_async(host.ctypes.data, source.nbytes, chosen)
            if blocking:
                chosen.synchronize()
        return host

    def _order_of(self, out: Any) -> str:
        if not isinstance(out, np.ndarray):
            raise TypeError("Only numpy.ndarray can be obtained fromcupy.ndarray")
        if out.dtype != self._dtype:
            raise TypeError(f"{out.dtype} array cannot be obtained from {self._dtype} array")
        if out.shape != self.shape:
            raise ValueError(
                f"Shape mismatch. Expected shape: {self.shape}, actual shape: {out.shape}"
            )
        if not out.flags.forc:
            raise RuntimeError("`out` cannot be specified when copying to non-contiguous ndarray")
        return "C" if out.flags.c_contiguous else "F"

    def set(self, arr: np.ndarray[Any, Any], stream: Any = None) -> None:
        """Copy a NumPy array of the same shape and type here, in stream order."""
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if self._dtype != arr.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self._dtype} array")
        if self.shape != arr.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        flags = self.flags
        if not flags.forc:
            raise RuntimeError("Cannot set to non-contiguous array")
        host = np.asarray(arr, order="C" if flags.c_contiguous else "F")
        with self._driver.on(self.data.device_id):
            self.data.copy_from_host_async(host.ctypes.data, self.nbytes, stream)

    def item(self) -> Any:
        """The only element, as a Python scalar."""
        if self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self.get().item()

    def tolist(self) -> Any:
        """The elements in lists."""
        return self.get().tolist()

    # What NumPy and Python ask of an array.

    def __array__(self, dtype: Any = None) -> Any:
        raise TypeError(_REFUSED)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return NotImplemented

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's functions are CuPy's of the same name, where the emulator has them."""
        found = getattr(self._driver.classes.functions, func.__name__, None)
        return NotImplemented if found is None else found(*args, **kwargs)

    def __eq__(self, other: object) -> Any:
        raise NotImplementedError("the emulator has no comparison of arrays")

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of unsized object")
        return self._shape[0]

    def __iter__(self) -> Iterator[ndarray]:
        if not self._shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self._shape[0]))

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(
                "The truth value of an array with more than one element is "
                "ambiguous. Use a.any() or a.all()"
            )
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __complex__(self) -> complex:
        return complex(self.get())

    def __repr__(self) -> str:
        return repr(self.get())


def packed_strides(shape: tuple[int, ...], itemsize: int, order: str) -> tuple[int, ...]:
    """The strides in bytes of a row-major or column-major array."""
    found, step = [], itemsize
    for extent in shape if order == "F" else reversed(shape):
        found.append(step)
        step *= max(extent, 1)
    return tuple(found if order == "F" else reversed(found))


def copy_elements(source: ndarray, target: ndarray) -> None:
    """target = source, broadcast and converted, in the order of the current stream."""
    for each in (source, target):
        if each.data.device_id != target._driver.device:
            raise ValueError(
                "Array device must be same as the current device: array device = "
                f"{each.data.device_id} while current = {target._driver.device}"
            )
    read, write = source._place, target._place
    np.broadcast_to(read.shadow(), write.shape)

    def copy(live: Live) -> None:
        values, written = read.read(live, "elementwise source")
        write.write(live, "elementwise target", values.copy(), written.copy())

    target._driver.counters.elementwise += 1
    target._enqueue(copy)


def _extents(shape: Any) -> tuple[int, ...]:
    extents = tuple(int(n) for n in shape) if np.iterable(shape) else (int(shape),)
    if any(extent < 0 for extent in extents):
        raise ValueError("Negative dimensions are not allowed")
    return extents


def _has_order(flags: Flags, order: str) -> bool:
    have = {"C": flags.c_contiguous, "F": flags.f_contiguous, "A": flags.forc, "K": True}
    return have[order.upper()]
