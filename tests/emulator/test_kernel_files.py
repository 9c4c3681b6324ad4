"""Compiled kernels: kept on disk from process to process, unloaded when a handle is closed."""

import gc
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.device import modules as kernel_modules
from contract.logging import LOGGER

from .cupy_surface import counters, installed
from .device import Device


@pytest.fixture
def cupy(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """An emulated GPU, and a folder for what is compiled."""
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "0")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "kernels"))
    with installed(devices=1) as made:
        yield made


def permuted(cupy: ModuleType) -> int:
    """A permutation on a handle of its own, which is closed; how many kernels it compiled."""
    before = counters(cupy).compilations
    x = np.arange(60, dtype="f4").reshape(3, 4, 5)
    with ct.Handle(device=0) as handle:
        found = ct.permute("abc->cab", cupy.asarray(x), handle=handle)
        np.testing.assert_array_equal(found.get(), x.transpose(2, 0, 1))
    return counters(cupy).compilations - before


def test_what_was_compiled_is_found_again(cupy: ModuleType, tmp_path: Path) -> None:
    assert permuted(cupy) == 1
    (path,) = (tmp_path / "kernels").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert permuted(cupy) == 0


@pytest.mark.parametrize("damage", [b"", b"x" * 40])
def test_a_damaged_file_is_made_anew(cupy: ModuleType, tmp_path: Path, damage: bytes) -> None:
    permuted(cupy)
    (path,) = (tmp_path / "kernels").iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage or whole[:-1])
    assert permuted(cupy) == 1
    assert path.read_bytes() == whole


def test_a_disk_that_refuses_costs_time_alone(
    cupy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(LOGGER, "log", lambda level, message: lines.append(message))
    (tmp_path / "kernels").write_text("no folder")
    assert [permuted(cupy), permuted(cupy)] == [1, 1]
    assert any("a compiled kernel is not read" in line for line in lines)
    assert any("a compiled kernel is not kept" in line for line in lines)


def test_nothing_is_written_where_cupy_writes_nothing(
    cupy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    assert [permuted(cupy), permuted(cupy)] == [1, 1]
    assert not (tmp_path / "kernels").exists()


def test_a_handle_that_is_closed_unloads_its_kernels(cupy: ModuleType) -> None:
    loaded: Any = cupy._driver.classes.loaded_modules
    x = cupy.asarray(np.ones((4, 5), "f4"))
    handle = ct.Handle(device=0)
    ct.permute("ab->ba", x, handle=handle)
    cupy.cuda.Device().synchronize()
    assert len(loaded) == 1
    handle.close()
    gc.collect()
    assert len(loaded) == 0


@pytest.mark.parametrize(
    ("capability", "architecture", "target"),
    [
        ("90", None, "sm_90"),
        ("90", "90a", "sm_90a"),
        ("88", None, "compute_86"),
        ("130", None, "compute_90"),
    ],
)
def test_a_device_that_nvrtc_does_not_know_gets_ptx(
    capability: str, architecture: str | None, target: str
) -> None:
    cuda = SimpleNamespace(
        nvrtc=SimpleNamespace(getSupportedArchs=lambda: (75, 80, 86, 90)),
        Device=lambda: SimpleNamespace(compute_capability=capability),
    )
    assert kernel_modules._target(SimpleNamespace(cuda=cuda), architecture) == target


def test_a_device_that_nvrtc_no_longer_knows_is_refused() -> None:
    cuda = SimpleNamespace(
        nvrtc=SimpleNamespace(getSupportedArchs=lambda: (75, 80)),
        Device=lambda: SimpleNamespace(compute_capability="60"),
    )
    with pytest.raises(ct.NotSupportedError, match=r"no GPU of 6\.0"):
        kernel_modules._target(SimpleNamespace(cuda=cuda), None)
