"""Arrays of the emulator's CuPy: layouts agree with NumPy's, refusals with CuPy's."""

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from .cupy_surface import counters, make_cupy
from .device import KernelFault, Kind

KEYS: list[Any] = [
    1,
    -1,
    ...,
    None,
    np.int64(2),
    slice(None, None, -1),
    (slice(1, 3), None, ..., 2),
    (slice(None), slice(5, 0, -2), -1),
    (1, 2, 3),
    (slice(3, 3),),
]
VIEWS = {
    "transpose": lambda x: x.transpose(2, 0, 1),
    "T": lambda x: x.T,
    "swapaxes": lambda x: x.swapaxes(0, 2),
    "reshape": lambda x: x.reshape(6, -1),
    "reshape F": lambda x: x.reshape((5, 4, 6), order="F"),
    "reshape of T": lambda x: x.T.reshape(4, 30),
    "ravel": lambda x: x[:, ::2].ravel(),
    "view": lambda x: x.view(np.int32),
    "narrow view": lambda x: x.view(np.int16),
    "astype": lambda x: x.T.astype(np.float64),
    "copy": lambda x: x.T.copy(),
    "copy F": lambda x: x.copy("F"),
    "copy K": lambda x: x.transpose(1, 0, 2).copy("K"),
    "squeeze": lambda x: x[:1].squeeze(),
}


def _agree(x: Any, expected: Any) -> None:
    assert (x.shape, x.dtype) == (expected.shape, expected.dtype)
    if x.size:
        assert x.strides == expected.strides
    assert x.flags.c_contiguous == expected.flags.c_contiguous
    assert x.flags.f_contiguous == expected.flags.f_contiguous
    np.testing.assert_array_equal(x.get(), expected)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing_is_numpys(cupy: ModuleType, key: Any) -> None:
    host = np.arange(120, dtype=np.float32).reshape(4, 6, 5)
    x = cupy.asarray(host)[key]
    _agree(x, np.asarray(host[key]))
    assert x.base is not None
    assert not x.flags.owndata


@pytest.mark.parametrize("name", VIEWS)
def test_layouts_are_numpys(cupy: ModuleType, name: str) -> None:
    host = np.arange(120, dtype=np.float32).reshape(4, 6, 5)
    _agree(VIEWS[name](cupy.asarray(host)), VIEWS[name](host))


@pytest.mark.parametrize("order", ["C", "F", "K", "A"])
def test_asarray_keeps_what_it_can(cupy: ModuleType, order: str) -> None:
    host = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    _agree(cupy.asarray(host, order=order), np.asarray(host, order=order))  # type: ignore[call-overload]
    x = cupy.asarray(host)
    assert cupy.asarray(x) is x
    assert cupy.array(x) is not x
    assert cupy.asarray(x, copy=False) is x
    for needed in ((x, np.int8), (host, None)):
        with pytest.raises(ValueError, match="avoid copy"):
            cupy.asarray(*needed, copy=False)
    assert cupy.asfortranarray(x) is x
    _agree(cupy.ascontiguousarray(x), np.ascontiguousarray(host))


def test_bfloat16_and_structures_are_supported_and_objects_are_not(cupy: ModuleType) -> None:
    x = cupy.asarray(np.array([1.5, 2], ml_dtypes.bfloat16))
    assert x.dtype == ml_dtypes.bfloat16
    assert x[::-1].astype(np.float32).get().tolist() == [2, 1.5]
    assert cupy.zeros(3, np.dtype([("x", "f8"), ("y", "i4")])).itemsize == 12
    for dtype in (object, np.longdouble, "U3", ">f4"):
        with pytest.raises(ValueError, match="Unsupported dtype"):
            cupy.empty(3, dtype)


def test_elements_are_assigned(cupy: ModuleType) -> None:
    host = np.zeros((3, 4), np.float32)
    x = cupy.asarray(host)
    for target in (host, x):
        target[1] = 5
        target[:, ::2] = target[:, 1::2]
        target[...][2] = np.float64(0.1)
    np.testing.assert_array_equal(x.get(), host)
    with pytest.raises(ValueError, match="non-scalar"):
        x[0] = np.ones(4, np.float32)


def test_functions_make_what_numpy_makes(cupy: ModuleType) -> None:
    _agree(cupy.arange(2, 11, 3), np.arange(2, 11, 3))
    _agree(cupy.arange(5, dtype=np.float32), np.arange(5, dtype=np.float32))
    _agree(cupy.ones((2, 3), np.int8, "F"), np.ones((2, 3), np.int8, "F"))
    _agree(cupy.full((2,), 2.5), np.full((2,), 2.5))
    _agree(cupy.zeros_like(cupy.ones((2, 3), order="F")), np.zeros((2, 3), order="F"))
    target = cupy.zeros((2, 3), np.float32)
    cupy.copyto(target, cupy.arange(3), casting="unsafe")
    _agree(target, np.broadcast_to(np.arange(3, dtype="f4"), (2, 3)).copy())
    with pytest.raises(TypeError, match="Cannot cast"):
        cupy.copyto(cupy.zeros(3, np.int32), cupy.ones(3))


def test_overlap_is_told(cupy: ModuleType) -> None:
    x, y = cupy.arange(10), cupy.arange(10)
    assert cupy.may_share_memory(x[:6], x[5:])
    assert cupy.may_share_memory(x[::2], x[1::2])
    assert not cupy.shares_memory(x[::2], x[1::2])
    assert not cupy.may_share_memory(x[:5], x[5:])
    assert not np.may_share_memory(x, y)  # NumPy asks the array


def test_implicit_conversion_is_refused(cupy: ModuleType) -> None:
    x = cupy.ones(3)
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(x)
    with pytest.raises(TypeError):
        np.add(x, x)
    with pytest.raises(AttributeError):
        x.flags.writeable  # noqa: B018
    with pytest.raises(AttributeError):
        x.ctypes  # noqa: B018
    with pytest.raises(ValueError, match="size 1"):
        x.item()
    assert x[1].item() == 1


def test_set_and_get_check_what_they_are_given(cupy: ModuleType) -> None:
    x = cupy.empty((2, 3), np.float32)
    x.set(np.ones((2, 3), np.float32, "F"))
    out = np.zeros((2, 3), np.float32, "F")
    assert x.get(out=out) is out
    assert out.all()
    with pytest.raises(TypeError, match="cannot be set"):
        x.set(np.ones((2, 3)))
    with pytest.raises(RuntimeError, match="non-contiguous"):
        x[:, ::2].set(np.ones((2, 2), np.float32))
    with pytest.raises(TypeError, match="obtained"):
        x.get(out=np.zeros((2, 3)))


def test_views_of_raw_memory_are_checked_when_used(cupy: ModuleType) -> None:
    x = cupy.arange(12, dtype=np.float32)
    windows = cupy.lib.stride_tricks.as_strided(x, (9, 4), (4, 4))
    assert windows.get()[8].tolist() == [8, 9, 10, 11]
    beyond = cupy.lib.stride_tricks.as_strided(x, (10, 4), (4, 4))
    with pytest.raises(KernelFault) as raised:
        beyond.copy().get()
    assert raised.value.kind is Kind.BOUNDS
    odd = cupy.ndarray((2,), np.float32, x.data + 2)
    with pytest.raises(KernelFault) as raised:
        odd[::-1].copy().get()
    assert raised.value.kind is Kind.MISALIGNED


def test_arrays_belong_to_a_device(cupy: ModuleType) -> None:
    x = cupy.arange(3)
    with cupy.cuda.Device(1):
        y = cupy.arange(3)
        assert (x.device.id, y.device.id) == (0, 1)
        with pytest.raises(ValueError, match="must be same as the current device"):
            y[...] = x[::-1]
        moved = x.copy()
        assert moved.device.id == 1
    assert moved.get().tolist() == [0, 1, 2]
    assert not cupy.may_share_memory(x, moved)


def test_an_empty_array_has_no_memory(cupy: ModuleType) -> None:
    x = cupy.empty((3, 0))
    assert x.data.ptr == 0
    assert x.get().shape == (3, 0)
    assert x.T[..., None].shape == (0, 3, 1)
    assert cupy.asarray(np.ones((0, 2))).size == 0


def test_copies_and_waits_are_counted(cupy: ModuleType) -> None:
    count = counters(cupy)
    x = cupy.asarray(np.ones(3))
    assert (count.to_device, count.to_host, count.synchronisations) == (1, 0, 0)
    x.get()
    assert (count.to_host, count.synchronisations) == (1, 1)
    count.reset()
    y = x.T.reshape(3, 1)[::-1]
    y.fill(2)
    assert (count.to_device, count.to_host, count.synchronisations) == (0, 0, 0)
    assert count.elementwise == 1


def test_modules_are_apart() -> None:
    one, other = make_cupy(), make_cupy()
    assert not isinstance(one.ones(2), other.ndarray)
    assert type(one.ones(2)).__module__ == "cupy"


def test_copies_between_devices_are_ordered_in_null_streams_only(cupy: ModuleType) -> None:
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        with cupy.cuda.Device(1):
            target = cupy.empty(3)
        with stream:
            x = cupy.ones(3)
        with cupy.cuda.Device(1):
            cupy.copyto(target, x)
            assert (target.get() == 1).all() == (stream.ptr == 0)
