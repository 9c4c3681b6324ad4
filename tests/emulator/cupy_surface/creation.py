"""Functions of the module cupy: arrays from shapes and from NumPy, and questions about arrays."""

import math
from types import ModuleType
from typing import Any

import numpy as np

from .arrays import copy_elements, ndarray
from .driver import Driver
from .elements import byte_range


class Functions:
    """The functions, bound to a driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.module: ModuleType | None = None

    @property
    def _array(self) -> Any:
        return self._driver.classes.ndarray

    def empty(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        """An array that was not written."""
        return self._array(shape, dtype, order=order)

    def empty_like(
        self,
        prototype: Any,
        dtype: Any = None,
        order: str = "K",
        subok: Any = None,
        shape: Any = None,
    ) -> Any:
        """An unwritten array of another's shape and type."""
        if subok is not None:
            raise TypeError("subok is not supported yet")
        like: Any = np.empty_like(prototype._place.shadow(), dtype, order=order, shape=shape)
        return self._array(like.shape, like.dtype, None, like.strides)

    def zeros(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        """An array of zeros."""
        made = self._array(shape, dtype, order=order)
        made.data.memset_async(0, made.nbytes)
        return made

    def zeros_like(
        self, a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
    ) -> Any:
        """Zeros of another array's shape and type."""
        made = self.empty_like(a, dtype, order, subok, shape)
        made.data.memset_async(0, made.nbytes)
        return made

    def ones(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        """An array of ones."""
        return self.full(shape, 1, np.dtype(dtype), order)

    def full(self, shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> Any:
        """An array of one value."""
        kind = np.array(fill_value).dtype if dtype is None else dtype
        made = self._array(shape, kind, order=order)
        made.fill(fill_value)
        return made

    def arange(self, start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
        """Evenly spaced values."""
        first, last = (0, start) if stop is None else (start, stop)
        size = max(math.ceil((last - first) / step), 0)
        values = (first + step * np.arange(size)).astype(
            np.arange(start, stop, step).dtype if dtype is None else dtype
        )
        made = self._array((size,), values.dtype)
        place = made._place
        self._driver.counters.elementwise += 1
        made._enqueue(lambda live: place.write(live, "arange", values))
        return made

    def array(
        self,
        obj: Any,
        dtype: Any = None,
        copy: Any = True,
        order: str | None = "K",
        subok: bool = False,
        ndmin: int = 0,
        *,
        blocking: bool = False,
    ) -> Any:
        """A copy of a device array, or of what NumPy takes for an array, on this device."""
        if subok:
            raise NotImplementedError
        if isinstance(obj, ndarray):
            return self._from_device(obj, dtype, copy, order or "K", ndmin)
        host: Any = np.array(obj, dtype=dtype, ndmin=ndmin)
        wanted = order.upper() if order else "K"
        if wanted in "KA":
            wanted = "F" if isinstance(obj, np.ndarray) and obj.flags.fnc else "C"
        made = self._array(host.shape, host.dtype, order=wanted)
        if host.ndim == 0:
            made.fill(host)
        elif made.size:
            made.set(host)
        if blocking:
            self._driver.classes.get_current_stream().synchronize()
        return made

    def _from_device(self, obj: Any, dtype: Any, copy: Any, order: str, ndmin: int) -> Any:
        kind = obj.dtype if dtype is None else dtype
        here = obj.data.device_id == self._driver.device
        source = obj if here else obj.copy(order)
        made = source.astype(kind, order, copy=bool(copy) and here)
        return made.reshape((1,) * (ndmin - made.ndim) + made.shape) if ndmin > made.ndim else made

    def asarray(
        self,
        a: Any,
        dtype: Any = None,
        order: Any = None,
        *,
        copy: Any = None,
        blocking: bool = False,
    ) -> Any:
        """The array itself where it is one of that type and order, else a copy."""
        made = self.array(a, dtype, copy, order, blocking=blocking)
        if copy is False and made is not a:
            raise ValueError("Unable to avoid copy while creating an array as requested.")
        return made

    def ascontiguousarray(self, a: Any, dtype: Any = None) -> Any:
        """The array in row-major order, with one dimension at least."""
        made = a.astype(a.dtype if dtype is None else dtype, "C", copy=False)
        return made.reshape(1) if made.ndim == 0 else made

    def asfortranarray(self, a: Any, dtype: Any = None) -> Any:
        """The array in column-major order, with one dimension at least."""
        made = a.astype(a.dtype if dtype is None else dtype, "F", copy=False)
        return made.reshape(1) if made.ndim == 0 else made

    def asnumpy(
        self,
        a: Any,
        stream: Any = None,
        order: str = "C",
        out: Any = None,
        *,
        blocking: bool = True,
    ) -> Any:
        """A copy on the host."""
        if isinstance(a, ndarray):
            return a.get(stream=stream, order=order, out=out, blocking=blocking)
        host = np.asarray(a, order=order)
        if out is None:
            return host
        out[...] = host
        return out

    def copyto(self, dst: Any, src: Any, casting: Any = "same_kind", where: Any = None) -> None:
        """Copy elements, broadcast, where the casting rule allows it."""
        if where is not None:
            raise NotImplementedError("the emulator copies without a mask")
        if isinstance(src, np.ndarray) and src.size != 1:
            raise ValueError("non-scalar numpy.ndarray cannot be used for copyto")
        if not isinstance(src, ndarray):
            np.copyto(np.empty((), dst.dtype), np.asarray(src).reshape(()), casting=casting)
            dst.fill(np.asarray(src).reshape(()))
        elif not np.can_cast(src.dtype, dst.dtype, casting):
            raise TypeError(f"Cannot cast {src.dtype} to {dst.dtype} in {casting} casting mode")
        elif dst.size:
            self._copy_arrays(dst, src)

    def _copy_arrays(self, dst: Any, src: Any) -> None:
        same = dst.shape == src.shape and dst.strides == src.strides and dst.dtype == src.dtype
        if same and dst.flags.forc:
            dst.data.copy_from_device_async(src.data, src.nbytes)
        elif src.data.device_id == dst.data.device_id:
            copy_elements(src, dst)
        else:
            raise NotImplementedError("the emulator copies packed arrays between devices")

    def may_share_memory(self, a: Any, b: Any, max_work: Any = None) -> bool:
        """Whether the byte ranges of two arrays of one allocation overlap."""
        if max_work is not None:
            raise NotImplementedError("Only supported for `max_work` is `None`")
        first, second = a.data.mem, b.data.mem
        if first.ptr != second.ptr or a.data.device_id != b.data.device_id:
            return False
        (begin, end), (low, high) = _range(a), _range(b)
        return bool(a.size and b.size) and begin < high and low < end

    def shares_memory(self, a: Any, b: Any, max_work: Any = None) -> bool:
        """Whether two arrays have an element in common; CuPy runs kernels and waits for them."""
        if a is b and a.size:
            return True
        if max_work == "MAY_SHARE_BOUNDS":
            return self.may_share_memory(a, b)
        self._driver.classes.get_current_stream().synchronize()
        return bool(np.shares_memory(a._place.shadow(), b._place.shadow()))

    def result_type(self, *arrays_and_dtypes: Any) -> Any:
        """The type that NumPy's promotion gives."""
        return np.result_type(*(_type_of(each) for each in arrays_and_dtypes))

    def can_cast(self, from_: Any, to: Any, casting: Any = "safe") -> bool:
        """Whether a casting rule allows a conversion."""
        return bool(np.can_cast(_type_of(from_), to, casting))

    def as_strided(self, x: Any, shape: Any = None, strides: Any = None) -> Any:
        """The memory of an array with another shape and strides."""
        extents = x.shape if shape is None else tuple(shape)
        steps = x.strides if strides is None else tuple(strides)
        return self._array(shape=extents, dtype=x.dtype, memptr=x.data, strides=steps)

    def broadcast_to(self, array: Any, shape: Any) -> Any:
        """The array with another shape, by strides of 0."""
        return array._view(np.broadcast_to(array._place.shadow(), shape))

    def get_array_module(self, *args: Any) -> Any:
        """The module cupy where a device array is among the arguments, else numpy."""
        return self.module if any(isinstance(each, ndarray) for each in args) else np


def _range(a: Any) -> tuple[int, int]:
    begin, end = byte_range(a.shape, a.strides, a.itemsize)
    return a.data.ptr + begin, a.data.ptr + end


def _type_of(each: Any) -> Any:
    return each.dtype if isinstance(each, ndarray) else each
