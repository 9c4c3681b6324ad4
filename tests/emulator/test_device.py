"""Argument packing, launch limits, compilation and the cache of builds."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from . import build, nvrtc
from .build import cached
from .device import Device, KernelFault, Kind, Module
from .library import Source, library, prebuild

SOURCE = """
struct Pair { double x; int y; };
extern "C" __global__ void __launch_bounds__(64)
gather(double *to, signed char a, float b, Pair c, bool d, long long e) {
  to[0] = a; to[1] = b; to[2] = c.x; to[3] = c.y; to[4] = d; to[5] = e;
}
struct Large { int values[1024]; };
extern "C" __global__ void large(Large x, int *to) { to[threadIdx.x] = x.values[threadIdx.x]; }
struct Largest { int values[1022]; };
extern "C" __global__ void largest(Largest x, int *to) { to[threadIdx.x] = x.values[threadIdx.x]; }
extern "C" __global__ void where(int *to) {
  const int row = blockIdx.y + gridDim.y * blockIdx.z;
  if (threadIdx.x + threadIdx.y == 0) to[blockIdx.x + gridDim.x * row] = blockDim.x * blockDim.y;
}
"""


@pytest.fixture(scope="module")
def module(device: Device) -> Module:
    """The kernels above."""
    return device.load(SOURCE)


def test_arguments_reach_the_kernel(device: Device, module: Module) -> None:
    to = device.allocate(48)
    pair = np.array((2.5, -7), np.dtype([("x", "f8"), ("y", "i4")], align=True))
    module.launch("gather", (1,), (1,), [to, -3, 0.5, pair, True, -(2**40)])
    assert to.download("f8").tolist() == [-3, 0.5, 2.5, -7, 1, -(2**40)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([np.uint64(0)], "takes 6 arguments"),
        ([np.uint64(0), np.int32(1), 0.5, np.zeros(2), True, 1], "argument 1 has 4 bytes, not 1"),
    ],
)
def test_wrong_arguments(module: Module, arguments: list[object], message: str) -> None:
    with pytest.raises(KernelFault, match=message):
        module.launch("gather", (1,), (1,), arguments)


def test_parameters_end_at_four_kilobytes(device: Device, module: Module) -> None:
    to = device.allocate(1022 * 4)
    x = np.arange(1024, dtype="i4")
    module.launch("largest", (1,), (1022,), [x[:1022], to])
    np.testing.assert_array_equal(to.download("i4"), x[:1022])
    with pytest.raises(KernelFault, match="over 4096 bytes"):
        module.launch("large", (1,), (1,), [x, to])


def test_grid_and_block_reach_the_kernel(device: Device, module: Module) -> None:
    to = device.allocate(4 * 24)
    module.launch("where", (2, 3, 4), (5, 7), [to])
    assert to.download("i4").tolist() == [35] * 24


@pytest.mark.parametrize(
    ("name", "grid", "block"),
    [
        ("where", (0,), (1,)),
        ("where", (1, 65536), (1,)),
        ("where", (1,), (1025,)),
        ("where", (1,), (32, 33)),
        ("where", (1,), (1, 1, 65)),
        ("gather", (1,), (65,)),
        ("absent", (1,), (1,)),
    ],
)
def test_launch_limits(
    device: Device, module: Module, name: str, grid: tuple[int, ...], block: tuple[int, ...]
) -> None:
    arguments = [np.uint64(0)] if name == "where" else [np.uint64(0), 0, 0, np.zeros(2), True, 1]
    with pytest.raises(KernelFault) as raised:
        module.launch(name, grid, block, arguments)
    assert raised.value.kind is Kind.LAUNCH


def test_static_shared_memory_is_limited(device: Device) -> None:
    text = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k() { .shared .align 16 .b8 big[49168]; ret; }"""
    with pytest.raises(KernelFault, match="static shared"):
        device.load_ptx(text).launch("k", (1,), (1,), [])


def test_builds_are_cached_by_content(module: Module) -> None:
    built = library(module.ptx)
    made = built.stat().st_mtime_ns
    assert library(module.ptx) == built
    assert built.stat().st_mtime_ns == made
    assert library(module.ptx + "\n") != built


def test_prebuilt_sources_are_found(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = os.getpid()  # not in the cache from an earlier run
    texts = [
        f'extern "C" __global__ void k(long long *to) {{ *to = {seed + i}; }}' for i in range(3)
    ]
    prebuild([Source(text) for text in texts])
    made = []
    monkeypatch.setattr(build, "_make", lambda target, make: made.append(target))
    for i, text in enumerate(texts):
        to = device.allocate(8)
        device.load(text).launch("k", (1,), (1,), [to])
        assert to.download("i8")[0] == seed + i
    assert made == []


def test_prebuilding_reports_what_fails(device: Device) -> None:
    with pytest.raises(nvrtc.CompileError, match="undefined"):
        prebuild([Source("__global__ void k() { x = 1; }")])


def test_a_file_is_made_once(tmp_path: Path) -> None:
    name, made = f"{tmp_path.name}-{os.getpid()}.txt", []

    def make(target: Path) -> None:
        made.append(target)
        time.sleep(0.05)
        target.write_text("whole")

    with ThreadPoolExecutor(4) as pool:
        files = [pool.submit(cached, name, make) for _ in range(8)]
    assert {file.result().read_text() for file in files} == {"whole"}
    assert len(made) == 1
    files[0].result().unlink()


def test_nvrtc_reports_errors_and_registers(device: Device) -> None:
    with pytest.raises(nvrtc.CompileError, match="undefined"):
        nvrtc.compile_ptx("__global__ void k() { x = 1; }")
    compiled = nvrtc.compile_cubin(SOURCE, "sm_80")
    assert "Used" in compiled.log
    assert "registers" in compiled.log
    assert compiled.code[:4] == b"\x7fELF"
