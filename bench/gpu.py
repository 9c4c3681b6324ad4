"""A GPU through CuPy: arrays that exceed its cache, CUDA events for a clock, its ceilings."""

import ctypes
import os
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from math import ceil, inf
from pathlib import Path
from typing import Any

import numpy as np

import contract
from bench.device import HOST, Array, Ceilings, Run, Sizes, host_seconds, product_flops
from bench.reference import distinct
from contract.descriptors.compute_types import ComputeType, accumulator

CUTENSOR_LIBRARIES = ("libcutensor.so.2", "libcutensorMg.so.2")  # CuPy's binding needs both
COPIES = 256
PRODUCT_EXTENT = 8192
COPY_BYTES = 2 << 30
WARM_UPS = 3
# How cuBLAS forms products of float32 for a compute type; for the others as for its default.
QUICKER = {
    ComputeType.TF32: "CUBLAS_COMPUTE_32F_FAST_TF32",
    ComputeType.F16: "CUBLAS_COMPUTE_32F_FAST_16F",
    ComputeType.BF16: "CUBLAS_COMPUTE_32F_FAST_16BF",
}
MATRIX_TYPES = {
    "float16": "CUDA_R_16F",
    "bfloat16": "CUDA_R_16BF",
    "float32": "CUDA_R_32F",
    "float64": "CUDA_R_64F",
    "complex64": "CUDA_C_32F",
    "complex128": "CUDA_C_64F",
}


class Gpu:
    """CuPy arrays on the current device; ``sizes`` as in the data, limited by free memory."""

    name = "gpu"
    batched = True

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._torch = torch_there()
        self._device = cupy.cuda.Device()
        self._properties = cupy.cuda.runtime.getDeviceProperties(self._device.id)
        self.handle = contract.Handle(device=self._device.id)
        self.sizes = full_sizes(self._device.mem_info[0])

    def array(self, x: Array) -> Any:
        base = self._cupy.asarray(distinct(x))
        if base.shape == x.shape:
            return base
        return self._cupy.lib.stride_tricks.as_strided(base, x.shape, x.strides)

    def numpy(self, x: Any) -> Array:
        found: Array = self._cupy.asarray(x).get(order="A")
        return found

    def wide(self, x: Any) -> Any:
        """On the GPU where PyTorch is there to compute with it, else on the host."""
        torch = self._torch
        if torch is None:
            return HOST.wide(x if isinstance(x, np.ndarray | np.generic) else self.numpy(x))
        found = x if isinstance(x, torch.Tensor) else tensor_of(torch, x)
        return found.to(torch.complex128 if found.is_complex() else torch.float64)

    def is_packed(self, x: Any) -> bool:
        if self._torch is not None and isinstance(x, self._torch.Tensor):
            return bool(x.permute(list(range(x.ndim))[::-1]).is_contiguous())
        return bool(x.flags.f_contiguous)

    def wait(self) -> None:
        self._device.synchronize()

    def clock(self, run: Run, count: int) -> float:
        cuda = self._cupy.cuda
        begin, end = cuda.Event(), cuda.Event()
        begin.record()
        for _ in range(count):
            run()
        end.record()
        end.synchronize()
        return float(cuda.get_elapsed_time(begin, end)) / 1e3 / count

    def call_clock(self, run: Run, count: int) -> float:
        spent = host_seconds(run, count)
        self.wait()
        return spent

    def copier(self, source: Any, target: Any) -> Run:
        return partial(self._cupy.copyto, target, source)

    def copies(self, size: int) -> int:
        """Together at least four times the L2 cache, but no more than COPIES or than memory has."""
        cache: int = self._properties["l2CacheSize"]
        wanted = min(ceil(4 * cache / max(size, 1)), COPIES)
        return max(1, min(wanted, self.sizes.memory // max(size, 1)))

    def release(self) -> None:
        self._cupy.get_default_memory_pool().free_all_blocks()
        if self._torch is not None:
            self._torch.cuda.empty_cache()

    def lost(self) -> bool:
        try:
            self.wait()
        except self._cupy.cuda.runtime.CUDARuntimeError:
            return True
        return False

    def ceilings(self, dtype: str, compute: ComputeType | None = None) -> Ceilings:
        product = self._product_rate(dtype, compute, PRODUCT_EXTENT)
        found = Ceilings(product, self._copy_rate(COPY_BYTES))
        self.release()
        return found

    def about(self) -> dict[str, Any]:
        """The GPU, what of CuPy's environment changes its speed, and the host it is in."""
        found, names = self._properties, ("CUPY_ACCELERATORS", "CUPY_TF32")
        return {
            "gpu": found["name"].decode(),
            "compute_capability": f"{found['major']}.{found['minor']}",
            "multiprocessors": found["multiProcessorCount"],
            "l2_bytes": found["l2CacheSize"],
            "memory_bytes": found["totalGlobalMem"],
            "environment": {name: os.environ[name] for name in names if name in os.environ},
            **HOST.about(),
        }

    def versions(self) -> dict[str, str]:
        """CuPy, CUDA's driver and runtime (1000 * major + 10 * minor), cuBLAS."""
        cupy = self._cupy
        return {
            "cupy": cupy.__version__,
            "cuda_driver": str(cupy.cuda.runtime.driverGetVersion()),
            "cuda_runtime": str(cupy.cuda.runtime.runtimeGetVersion()),
            "cublas": str(cupy.cuda.cublas.getVersion(self._device.cublas_handle)),
        }

    def _product_rate(self, dtype: str, compute: ComputeType | None, n: int) -> float:
        """Real FLOP/s of cuBLAS's n x n matrix product."""
        from cupy_backends.cuda.libs import cublas

        a, b = (self._random((n, n), dtype, seed) for seed in range(2))
        d = self._cupy.empty((n, n), dtype)
        kind = getattr(self._cupy.cuda.runtime, MATRIX_TYPES[dtype])
        scalars = np.array([1, 0], accumulator(dtype))
        one, zero = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
        formed = getattr(cublas, products_of(dtype, compute))

        def multiply() -> None:
            cublas.gemmEx(
                *(self._device.cublas_handle, cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_N, n, n, n),
                *(one, a.data.ptr, kind, n, b.data.ptr, kind, n),
                *(zero, d.data.ptr, kind, n, formed, cublas.CUBLAS_GEMM_DEFAULT),
            )

        return product_flops(dtype, n) / self._best(multiply)

    def _copy_rate(self, size: int) -> float:
        """Bytes/s (read + written) of a copy of ``size`` bytes, less where memory is short."""
        fits = min(size, self._device.mem_info[0] // 8)
        source = self._random((fits // 8,), "float64", 2)
        target = self._cupy.empty_like(source)
        moved = 2 * int(source.nbytes)
        return moved / self._best(self.copier(source, target))

    def _best(self, run: Run) -> float:
        self.clock(run, WARM_UPS)
        return min(self.clock(run, 1) for _ in range(5))

    def _random(self, shape: Sequence[int], dtype: str, seed: int) -> Any:
        """Random numbers, a block of them repeated."""
        values = np.random.default_rng(seed).uniform(-1, 1, 1 << 20)
        block = values.view("c16") if np.dtype(dtype).kind == "c" else values
        return self._cupy.asarray(np.resize(block.astype(dtype), tuple(shape)))


def torch_there() -> Any:
    """PyTorch where it is installed and sees a GPU, else None."""
    try:
        torch = import_module("torch")
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def tensor_of(torch: Any, x: Any) -> Any:
    """A CuPy array's memory; bfloat16 as integers, for DLPack may not know it."""
    if x.dtype == "bfloat16":
        return torch.from_dlpack(x.view("int16")).view(torch.bfloat16)
    return torch.from_dlpack(x)


def products_of(dtype: str, compute: ComputeType | None) -> str:
    """The name of how cuBLAS forms products: 16-bit numbers are always summed in float32."""
    if compute in QUICKER and dtype in ("float32", "complex64"):
        return QUICKER[compute]
    double = dtype in ("float64", "complex128")
    return "CUBLAS_COMPUTE_64F" if double else "CUBLAS_COMPUTE_32F"


def full_sizes(free: int) -> Sizes:
    """The data's own sizes for a GPU with ``free`` bytes; the host checks what fits 24 GiB."""
    return Sizes(gflop=inf, memory=min(free // 4, 24 << 30), permuted=None, growth=2.0)


def gpu(cutensor: Path | None = None) -> Gpu:
    """The current GPU, with cuTENSOR's libraries loaded from a folder if one is named.

    SystemExit without CuPy or a GPU.
    """
    try:
        cupy = import_module("cupy")
    except ImportError as error:
        raise SystemExit(f"--device gpu needs CuPy: {error}.") from error
    if not cupy.cuda.is_available():
        raise SystemExit("--device gpu needs a GPU: CuPy finds none.")
    if cutensor:
        load_cutensor(cutensor)
    return Gpu(cupy)


def load_cutensor(folder: Path) -> None:
    """Load cuTENSOR's libraries for CuPy's binding to find; SystemExit where they are not."""
    from cupy_backends.cuda.libs import cublas  # noqa: F401  (cuTENSOR may need what it loads)

    for name in CUTENSOR_LIBRARIES:
        try:
            ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise SystemExit(f"--cutensor is the folder of {name}: {error}.") from error
