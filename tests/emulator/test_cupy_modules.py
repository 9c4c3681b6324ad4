"""Kernels through the emulator's CuPy: compilation, arguments, limits and faults."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from .cupy_surface import counters, installed
from .device import KernelFault, Kind
from .nvrtc import compile_ptx

SOURCE = """
struct Pair { double x; int y; };
extern "C" __global__ void gather(double *to, signed char a, float b, Pair c, bool d, long long e) {
  to[0] = a; to[1] = b; to[2] = c.x; to[3] = c.y; to[4] = d; to[5] = e;
}
extern "C" __global__ void tiny(float *x) { x[threadIdx.x] *= 0.5f; }
extern "C" __global__ void add_one(const float *x, float *y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + 1;
}
extern "C" __global__ void dynamic(float *x) {
  extern __shared__ float shared[];
  shared[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void fixed(float *x) {
  __shared__ float shared[1024];
  shared[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}
"""
PAIR = np.dtype([("x", "f8"), ("y", "i4")], align=True)


@pytest.fixture
def module(kernels: ModuleType) -> Any:
    """The kernels above."""
    return kernels.RawModule(code=SOURCE)


def test_arguments_of_every_kind(kernels: ModuleType, module: Any) -> None:
    to, gather = kernels.empty(6), module.get_function("gather")
    expected = [-3, 0.5, 2.5, -7, 1, -(2**40)]
    pair = np.array((2.5, -7), PAIR)
    for given in (pair, pair.reshape(1), pair[()]):
        gather((1,), (1,), (to, np.int8(-3), np.float32(0.5), given, True, -(2**40)))
        assert to.get().tolist() == expected
    gather((1,), (1,), (to.data, -3, np.array(0.5, "f4"), pair, np.bool_(1), np.int64(-(2**40))))
    assert to.get().tolist() == expected
    assert counters(kernels).launches[-1].parameter_bytes == 48


@pytest.mark.parametrize(
    ("position", "value", "error"),
    [
        (0, np.zeros(6), TypeError),  # a host array for a pointer
        (1, 1000, KernelFault),
        (2, 0.5, KernelFault),  # a Python float is a double
        (3, np.zeros(2, PAIR), TypeError),
        (3, b"0123456789abcdef", TypeError),
        (4, 1.0, KernelFault),
        (5, np.int32(1), KernelFault),
        (5, [1], TypeError),
    ],
)
def test_arguments_that_do_not_fit(
    kernels: ModuleType, module: Any, position: int, value: Any, error: type
) -> None:
    arguments: list[Any] = [
        *(kernels.empty(6), np.int8(1), np.float32(1), np.zeros((), PAIR), True, 1)
    ]
    arguments[position] = value
    with pytest.raises(error):
        module.get_function("gather")((1,), (1,), tuple(arguments))


def test_grids_and_blocks_are_tuples_and_at_least_one(kernels: ModuleType, module: Any) -> None:
    x, tiny = kernels.ones(1, "f4"), module.get_function("tiny")
    tiny((0,), (1, 0), (x,))
    assert x.item() == 0.5
    assert counters(kernels).launches[0].grid == (1, 1, 1)
    with pytest.raises(TypeError, match="expected tuple, got list"):
        tiny([1], (1,), (x,))
    with pytest.raises(TypeError, match="expected tuple, got int"):
        tiny((1,), 32, (x,))


@pytest.mark.parametrize(
    ("grid", "block", "shared"),
    [((1, 65536), (1,), 0), ((1,), (1025,), 0), ((1,), (1, 1, 65), 0), ((1,), (1,), 49153)],
)
def test_bad_configurations_are_refused_when_queued(
    kernels: ModuleType, module: Any, grid: Any, block: Any, shared: int
) -> None:
    error = kernels.cuda.driver.CUDADriverError
    with pytest.raises(error, match="CUDA_ERROR_INVALID_VALUE"):
        module.get_function("tiny")(grid, block, (kernels.ones(1, "f4"),), shared_mem=shared)
    assert counters(kernels).launches == []


def test_shared_memory_beyond_48_kilobytes_is_asked_for(kernels: ModuleType, module: Any) -> None:
    x, kernel = kernels.arange(64, dtype="f4"), module.get_function("dynamic")
    assert kernel.max_dynamic_shared_size_bytes == 48 << 10
    kernel.max_dynamic_shared_size_bytes = 100 << 10
    kernel((1,), (64,), (x,), shared_mem=100 << 10)
    assert x.get()[0] == 63
    with pytest.raises(kernels.cuda.driver.CUDADriverError):
        kernel.max_dynamic_shared_size_bytes = 228 << 10
    with kernels.cuda.Device(1):
        assert kernel.max_dynamic_shared_size_bytes == 48 << 10  # each device has its own
    assert module.get_function("fixed").max_dynamic_shared_size_bytes == 44 << 10
    assert module.get_function("fixed").shared_size_bytes == 4096


def test_faults_come_when_the_host_waits(kernels: ModuleType, module: Any) -> None:
    x, y = kernels.ones(30, "f4"), kernels.empty(32, "f4")
    module.get_function("add_one")((1,), (32,), (x, y, 32))
    with pytest.raises(KernelFault, match="add_one") as raised:
        y.get()
    assert raised.value.kind is Kind.BOUNDS


def test_launches_are_ordered_by_streams(kernels: ModuleType, module: Any) -> None:
    add_one = module.get_function("add_one")
    one, other = (kernels.cuda.Stream(non_blocking=True) for _ in range(2))
    x, y = kernels.zeros(32, "f4"), kernels.empty(32, "f4")
    kernels.cuda.Device().synchronize()
    add_one((1,), (32,), (x, y, 32), stream=one)
    with other:
        add_one((1,), (32,), (y, x, 32))
        with pytest.raises(KernelFault) as raised:
            other.synchronize()
    assert raised.value.kind is Kind.UNINITIALISED
    add_one((1,), (32,), (x, y, 32), stream=one)
    other.wait_event(one.record())
    add_one((1,), (32,), (y, x, 32), stream=other)
    other.synchronize()
    assert (x.get() == 2).all()


def test_freed_memory_and_other_devices_are_out_of_reach(kernels: ModuleType, module: Any) -> None:
    add_one, y = module.get_function("add_one"), kernels.empty(32, "f4")
    x = kernels.zeros(32, "f4")
    pointer = np.uint64(x.data.ptr)
    del x
    add_one((1,), (32,), (pointer, y, 32))
    with pytest.raises(KernelFault):
        y.get()
    with kernels.cuda.Device(1):
        far = kernels.zeros(32, "f4")
        with pytest.raises(kernels.cuda.driver.CUDADriverError, match="INVALID_HANDLE"):
            add_one((1,), (32,), (far, far, 32), stream=_stream_of(kernels, 0))
        kernels.cuda.Device().synchronize()
    add_one((1,), (32,), (far, y, 32))
    with pytest.raises(KernelFault) as raised:
        y.get()
    assert raised.value.kind is Kind.BOUNDS


def test_copies_of_memory_that_was_not_written_stay_unwritten(
    kernels: ModuleType, module: Any
) -> None:
    add_one, y = module.get_function("add_one"), kernels.empty(32, "f4")
    fresh, moved = kernels.empty((4, 8), "f4"), kernels.empty(32, "f4")
    kernels.copyto(moved, y)
    for x in (fresh.T.copy(), moved):
        add_one((1,), (32,), (x, y, 32))
        with pytest.raises(KernelFault) as raised:
            y.get()
        assert raised.value.kind is Kind.UNINITIALISED


def test_a_source_is_compiled_once(kernels: ModuleType) -> None:
    for _ in range(2):
        kernels.RawModule(code=SOURCE).get_function("tiny")
    kernels.RawKernel(SOURCE, "tiny").compile()
    assert counters(kernels).compilations == 1
    with kernels.cuda.Device(1):
        kernels.RawModule(code=SOURCE).get_function("tiny")
    assert counters(kernels).compilations == 2


def test_compilation_is_cupys(kernels: ModuleType) -> None:
    with pytest.raises(kernels.cuda.compiler.CompileException, match="undefined"):
        kernels.RawModule(code="__global__ void k() { x = 1; }").get_function("k")
    with pytest.raises(kernels.cuda.driver.CUDADriverError, match="named symbol not found"):
        kernels.RawModule(code=SOURCE).get_function("absent")
    with pytest.raises(TypeError, match="expected tuple, got list"):
        kernels.RawModule(code=SOURCE, options=["-DX"])
    with pytest.raises(TypeError, match="Exactly one"):
        kernels.RawModule()
    x = kernels.full(1, 1.5e-38, "f4")  # half of it is subnormal: flushed, as CuPy compiles
    options = ("-std=c++17", "-DUNUSED")
    kernels.RawModule(code=SOURCE, options=options).get_function("tiny")((1,), (1,), (x,))
    assert x.item() == 0


def test_ptxas_reports(kernels: ModuleType, module: Any) -> None:
    kernel = module.get_function("add_one")
    assert 4 <= kernel.num_regs <= 32
    assert kernel.local_size_bytes == 0
    assert kernel.max_threads_per_block == 1024


def test_ptx_is_loaded_from_files_and_bytes(kernels: ModuleType, tmp_path: Path) -> None:
    text = compile_ptx(SOURCE).ptx
    path = tmp_path / "kernels.ptx"
    path.write_bytes(text)
    module = kernels.cuda.Module()
    module.load(text)
    for kernel in (
        module.get_function("tiny"),
        kernels.RawModule(path=str(path)).get_function("tiny"),
    ):
        x = kernels.ones(4, "f4")
        kernel((1,), (4,), (x,))
        assert (x.get() == 0.5).all()


def test_nothing_is_loaded_beside_a_capture(kernels: ModuleType) -> None:
    stream = kernels.cuda.Stream(non_blocking=True)
    stream.begin_capture(kernels.cuda.runtime.streamCaptureModeGlobal)
    with pytest.raises(kernels.cuda.runtime.CUDARuntimeError, match="CaptureUnsupported"):
        kernels.RawModule(code=SOURCE).get_function("tiny")


def test_installed_replaces_cupy_for_a_while() -> None:
    before = {name: module for name, module in sys.modules.items() if name.startswith("cupy")}
    with installed(arch="sm_80", devices=1) as expected:
        import cupy
        from cupy.cuda import cublas
        from cupy_backends.cuda.api.runtime import CUDARuntimeError

        assert cupy is expected
        assert cublas.CUBLAS_COMPUTE_32F == 68
        assert cupy.cuda.Device(0).compute_capability == "80"
        assert cupy.cuda.Device(0).attributes["MaxSharedMemoryPerBlockOptin"] == 163 << 10
        with pytest.raises(CUDARuntimeError):
            cupy.cuda.Device(1).use()
    after = {name: module for name, module in sys.modules.items() if name.startswith("cupy")}
    assert after == before


def _stream_of(cupy: ModuleType, device: int) -> Any:
    with cupy.cuda.Device(device):
        return cupy.cuda.Stream(non_blocking=True)


def test_programs_for_an_architecture_of_their_own(kernels: ModuleType) -> None:
    nvrtc, options = kernels.cuda.nvrtc, ("--std=c++17", "-arch=sm_90a")
    program = nvrtc.createProgram(SOURCE, "kernels.cu", (), ())
    nvrtc.compileProgram(program, options)
    module = kernels.cuda.function.Module()
    module.load(nvrtc.getCUBIN(program))
    nvrtc.destroyProgram(program)
    x, dynamic = kernels.asarray(np.arange(5, dtype="f4")), module.get_function("dynamic")
    dynamic((1,), (5,), (x,), shared_mem=20)
    assert x.get().tolist() == [4, 3, 2, 1, 0]
    most, driver = 100 << 10, kernels.cuda.driver
    with pytest.raises(driver.CUDADriverError, match="INVALID_VALUE"):
        dynamic((1,), (5,), (x,), shared_mem=most)
    attribute = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.funcSetAttribute(dynamic.ptr, attribute, most)
    dynamic((1,), (5,), (x,), shared_mem=most)
    assert x.get().tolist() == [0, 1, 2, 3, 4]


def test_a_program_that_is_refused_has_a_log(kernels: ModuleType) -> None:
    nvrtc = kernels.cuda.nvrtc
    program = nvrtc.createProgram("__global__ void k() { x = 1; }", "kernels.cu", (), ())
    with pytest.raises(nvrtc.NVRTCError, match="COMPILATION"):
        nvrtc.compileProgram(program, ("-arch=sm_90a",))
    assert "undefined" in nvrtc.getProgramLog(program)
