"""torch tensors on a GPU: CuPy's arrays on torch's stream.

A small torch stands in for the real one: its tensors hand over the emulator's arrays where
the real ones hand over DLPack capsules.
"""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.arrays.torch_tensors import TYPES

from .cupy_surface import make_cupy
from .cupy_surface.surface import counters, importable


class Tensor:
    """What the library asks of a dense torch tensor, over an array of either kind."""

    __module__ = "torch"
    requires_grad = False
    layout = "strided"

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape, self.dtype = array.shape, f"torch.{array.dtype.name}"
        on_gpu = not isinstance(array, np.ndarray)
        number = array.data.device_id if on_gpu else None
        self.device = SimpleNamespace(type="cuda" if on_gpu else "cpu", index=number)

    def is_conj(self) -> bool:
        return False

    is_neg = is_conj

    def numpy(self) -> np.ndarray:
        return self.array


class Keys:
    """Dispatch keys: a tensor here has none that torch's transforms would add."""

    @staticmethod
    def from_raw_repr(value: int) -> "Keys":
        return Keys()

    def add(self, key: str) -> "Keys":
        return self

    __or__ = add

    def raw_repr(self) -> int:
        return 0


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with the names that the library uses."""
    made = ModuleType("torch")
    names: dict[str, Any] = {name: f"torch.{name}" for name in TYPES}
    made.__dict__.update(
        **names,
        Tensor=Tensor,
        strided="strided",
        _C=SimpleNamespace(
            DispatchKeySet=Keys,
            _dispatch_keys=lambda x: Keys(),
            _dispatch_tls_local_include_set=Keys,
            _parse_dispatch_key=str,
        ),
        autograd=SimpleNamespace(
            function=SimpleNamespace(_SingleLevelFunction=object),
            forward_ad=SimpleNamespace(_current_level=-1),
        ),
        is_grad_enabled=lambda: True,
        from_dlpack=Tensor,
        from_numpy=Tensor,
    )
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


@pytest.fixture
def cupy(torch: ModuleType) -> Iterator[ModuleType]:
    """An emulated CuPy, and torch's current stream on its device."""
    made = make_cupy()
    made.__dict__["from_dlpack"] = lambda tensor: tensor.array
    with importable(made):
        stream = made.cuda.Stream(non_blocking=True)
        current = SimpleNamespace(cuda_stream=stream.ptr, owner=stream)
        torch.__dict__["cuda"] = SimpleNamespace(current_stream=lambda device: current)
        yield made
        made.cuda.runtime.deviceSynchronize()


def on_gpu(cupy: ModuleType, x: np.ndarray) -> Tensor:
    array = cupy.ndarray(x.shape, x.dtype, order="F")
    array.set(np.asfortranarray(x))
    cupy.cuda.runtime.deviceSynchronize()
    return Tensor(array)


def test_calls_run_on_torch_s_stream(
    cupy: ModuleType, torch: ModuleType, rng: np.random.Generator
) -> None:
    x, y = rng.random((9, 7), np.float32), rng.random((7, 5), np.float32)
    a, b = on_gpu(cupy, x), on_gpu(cupy, y)
    counted = counters(cupy)
    other = cupy.cuda.Stream(non_blocking=True)
    given = SimpleNamespace(cuda_stream=other.ptr)
    planned = ct.contract_expression("mk,kn->nm", x.shape, y.shape, dtype="float32")
    for stream, pointer in ((None, torch.cuda.current_stream(0).cuda_stream), (given, other.ptr)):
        counted.reset()
        for found in (
            ct.contract("mk,kn->nm", a, b, stream=stream),
            ct.einsum("mk,kn->nm", a, b, stream=stream),
            planned(a, b, stream=stream),
        ):
            cupy.cuda.runtime.deviceSynchronize()
            assert type(found) is Tensor
            np.testing.assert_allclose(found.array.get(), (x @ y).T, rtol=1e-5)
        queued = {each.stream for each in (*counted.launches, *counted.products)}
        assert queued == {pointer}


def test_out_is_written_in_place(cupy: ModuleType, rng: np.random.Generator) -> None:
    x = rng.random((6, 5), np.float32)
    a, out = on_gpu(cupy, x), on_gpu(cupy, np.zeros((5, 6), np.float32))
    assert ct.permute("ab->ba", a, alpha=3, out=out) is out
    cupy.cuda.runtime.deviceSynchronize()
    np.testing.assert_allclose(out.array.get(), 3 * x.T, rtol=1e-6)


def test_devices_and_kinds_do_not_mix(cupy: ModuleType) -> None:
    x = np.eye(3, dtype=np.float32)
    a = on_gpu(cupy, x)
    for stranger in (Tensor(x), a.array, x):
        for pair in ((a, stranger), (stranger, a)):
            with pytest.raises(ct.InvalidValueError, match="one kind"):
                ct.contract("ij,jk->ik", *pair)
