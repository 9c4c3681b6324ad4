"""The emulator's module against the real CuPy, where that is installed: names and signatures."""

import importlib
import inspect
import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from .cupy_surface import make_cupy

MODULES = (
    *("cupy", "cupy.lib.stride_tricks", "cupy.cuda", "cupy.cuda.runtime", "cupy.cuda.memory"),
    *("cupy.cuda.stream", "cupy.cuda.device", "cupy.cuda.function", "cupy.cuda.graph"),
    *("cupy.cuda.compiler", "cupy_backends.cuda.api.runtime", "cupy_backends.cuda.api.driver"),
    *("cupy_backends.cuda.libs.cublas", "cupy_backends.cuda.libs.nvrtc"),
    "cupy_backends.cuda.libs.nvtx",
)


@pytest.fixture(params=MODULES)
def pair(request: pytest.FixtureRequest) -> tuple[ModuleType, ModuleType]:
    """A module of the emulator and the real one."""
    pytest.importorskip("cupy")
    real = pytest.importorskip(request.param, exc_type=ImportError)
    return make_cupy()._modules[request.param], real


def test_public_names_and_values_are_real(pair: tuple[ModuleType, ModuleType]) -> None:
    emulated, real = pair
    for name in _public(emulated):
        assert hasattr(real, name), name
        value = getattr(emulated, name)
        if isinstance(value, int):
            assert value == getattr(real, name), name


def test_signatures_are_real(pair: tuple[ModuleType, ModuleType]) -> None:
    emulated, real = pair
    for name in _public(emulated):
        ours, theirs = getattr(emulated, name), getattr(real, name)
        if inspect.isclass(ours) and not _is_numpy(ours):
            _compare_class(ours, theirs)
        elif callable(ours) and not _is_numpy(ours):
            assert _parameters(ours) == _parameters(theirs), name


def test_strictness_is_real() -> None:
    """What needs no device behaves as in CuPy."""
    real = pytest.importorskip("cupy")
    emulated = make_cupy()
    for array in (emulated.ndarray, real.ndarray):
        assert array.__module__ == "cupy"
        assert array.__hash__ is None
    for made in (emulated, real):
        flags = {name for name in dir(made.ndarray) if "writeable" in name}
        assert not flags
        assert made.result_type(np.float32, np.int64) == np.float64
        assert made.can_cast(np.int32, np.float32) is np.can_cast(np.int32, np.float32)
    status = importlib.import_module("cupy.cuda.runtime").CUDARuntimeError
    for code in (1, 2, 101, 400, 401, 600, *range(900, 909)):
        ours = emulated.cuda.runtime.CUDARuntimeError(code)
        assert str(ours) == str(status(code))


def _public(owner: Any) -> list[str]:
    """The names without those of modules, which CuPy imports when they are asked for."""
    names = (name for name in dir(owner) if not name.startswith("_"))
    return [name for name in names if type(getattr(owner, name, None)) is not ModuleType]


def _is_numpy(thing: Any) -> bool:
    return (getattr(thing, "__module__", "") or "").startswith(("numpy", "ml_dtypes"))


def _compare_class(ours: type, theirs: Any) -> None:
    for name in _public(ours):
        assert hasattr(theirs, name), (ours.__name__, name)
        method = inspect.getattr_static(ours, name)
        if inspect.isfunction(method):
            expected = _parameters(getattr(theirs, name))
            assert _parameters(method) == expected, (ours.__name__, name)


def _parameters(function: Any) -> list[str]:
    """The names of the parameters, from the signature or as Cython writes it in the docstring."""
    try:
        names = list(inspect.signature(function).parameters)
    except ValueError:
        line = (function.__doc__ or "").splitlines()[0]
        inside = re.search(r"\((.*)\)", line)
        assert inside is not None, line
        pieces = [piece.split("=")[0].split() for piece in inside[1].split(",")]
        names = [piece[-1] for piece in pieces if piece and piece[-1] not in ("*", "/")]
    return [name.lstrip("*") for name in names if name not in ("self", "args", "kwargs")]
