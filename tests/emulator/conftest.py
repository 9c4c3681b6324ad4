"""Fixtures of the emulator's tests.

They skip, with the reason, where the tools are missing, and fail where CI is set.
"""

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from bench.sass import DisassemblerMissing, disassembler

from . import nvrtc
from .build import CompilerMissing, compiler
from .card import Card
from .cupy_surface import make_cupy
from .device import Device, Module, Options, Schedule

SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Device | Card:
    """An emulated sm_90, where a C++ compiler and NVRTC are found; with --device gpu a real one."""
    if request.config.getoption("--device") == "gpu":
        return Card("sm_90")
    try:
        compiler()
        nvrtc.library()
    except (CompilerMissing, nvrtc.NvrtcMissing) as missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(missing))
    return Device("sm_90")


@pytest.fixture(scope="session")
def sample(device: Device) -> Callable[[str], Module]:
    """Load a file of samples/, once per session."""
    loaded: dict[str, Module] = {}

    def load(name: str) -> Module:
        if name not in loaded:
            loaded[name] = device.load((SAMPLES / name).read_text())
        return loaded[name]

    return load


@pytest.fixture(params=[(s, late) for s in Schedule for late in (True, False)], ids=str)
def options(request: pytest.FixtureRequest) -> Options:
    """Every schedule, with copies that land late and at once."""
    schedule, late = request.param
    return Options(schedule=schedule, late=late)


@pytest.fixture
def cupy() -> ModuleType:
    """A module like CuPy with two fresh devices; no compiler is needed."""
    return make_cupy(memory=64 << 20)


@pytest.fixture
def kernels(device: Device, cupy: ModuleType) -> ModuleType:
    """The same, where kernels can be compiled."""
    return cupy


@pytest.fixture(scope="session")
def reads_machine_code() -> None:
    """Skips without a disassembler; where tests are run for everyone, they fail."""
    try:
        disassembler()
    except DisassemblerMissing as missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(missing))
