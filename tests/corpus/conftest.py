"""The devices of the corpus; one that is missing skips its tests, unless it was asked for."""

import os
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.devices import Device, Gpu, Host
from tests.emulator import nvrtc
from tests.emulator.build import CompilerMissing, compiler
from tests.emulator.cupy_surface.surface import importable, make_cupy
from tests.emulator.device import Options, Schedule

DEVICES = {None: ("host", "emulated"), "all": ("host", "emulated", "gpu")}
KINDS = {"device": ("host", "emulated", "gpu"), "gpu": ("emulated", "gpu"), "fake": ("emulated",)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test takes ``device``, or ``gpu``: one with CuPy arrays, or ``fake``: one that counts."""
    asked = metafunc.config.getoption("--device")
    names = DEVICES.get(asked, (asked,))
    for fixture, kinds in KINDS.items():
        if fixture in metafunc.fixturenames:
            found = [_parameter(name) for name in names if name in kinds]
            nowhere = pytest.param(None, marks=pytest.mark.skip(f"runs on {' or '.join(kinds)}"))
            metafunc.parametrize(fixture, found or [nowhere], indirect=True)


def _parameter(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.gpu if name == "gpu" else ())


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """The host or a GPU."""
    if request.param == "host":
        yield request.getfixturevalue("host")
    elif request.param == "gpu":
        yield request.getfixturevalue("present_gpu")
    else:
        yield from _emulated(request)


gpu = fake = device


def _emulated(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Work is done as late as CUDA allows; in half of the tests threads run in random order."""
    found: Gpu = request.getfixturevalue("emulated_gpu")
    seed = zlib.crc32(request.node.nodeid.encode())
    schedule = Schedule.RANDOM if seed % 2 else Schedule.IN_ORDER
    found.cupy._driver.options = Options(schedule=schedule, seed=seed)
    with importable(found.cupy):
        yield found
        found.cupy.cuda.runtime.deviceSynchronize()


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    """NumPy on this machine."""
    made = Host()
    yield made
    made.handle.close()


@pytest.fixture(scope="session")
def emulated_gpu() -> Gpu:
    """CuPy on the emulator: its kernels are loaded once in a session."""
    try:
        compiler()
        nvrtc.library()
    except (CompilerMissing, nvrtc.NvrtcMissing) as missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(missing))
    cupy = make_cupy()
    with importable(cupy):
        return Gpu("emulated", cupy)


@pytest.fixture(scope="session")
def present_gpu(request: pytest.FixtureRequest) -> Gpu:
    """CuPy on device 0."""
    missing = pytest.fail if request.config.getoption("--device") == "gpu" else pytest.skip
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except ImportError as error:
        missing(f"CuPy cannot be imported: {error}")
    except cupy.cuda.runtime.CUDARuntimeError as error:
        missing(f"CuPy finds no GPU: {error}")
    return Gpu("gpu", cupy)
