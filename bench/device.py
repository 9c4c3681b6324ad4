"""Where a suite runs: arrays, clocks, how large the work is, ceilings. Here the host."""

import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import nan
from typing import Any, Protocol

import numpy as np

from contract.descriptors.compute_types import ComputeType, accumulator
from contract.host.resources.limits import usable_cores
from contract.host.resources.processor import processor_name

Array = np.ndarray[Any, Any]
Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """FLOP/s of the library's matrix product, bytes/s (read + written) of a large copy.

    The product is of the data's type and as accurate as the compute type, where the library has
    a way to form it that is quicker than its own.
    """

    flops: float
    bandwidth: float

    def bound(self, flops: float, bytes: float) -> float:
        """The least seconds: max(FLOPs / peak, bytes / bandwidth); NaN where both are 0."""
        return max(flops / self.flops, bytes / self.bandwidth) or nan


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the work is.

    Contractions are scaled down to ``gflop`` (1e9 FLOPs), expressions until operands and four
    results fit ``memory`` bytes, permuted tensors to ``permuted`` bytes (None: as in the data);
    the extents of reductions and elementwise products are multiplied by ``growth``.
    """

    gflop: float
    memory: int
    permuted: int | None
    growth: float


class Device(Protocol):
    """What measuring needs of the place where it measures.

    ``handle`` is the contract.Handle to plan for, None for the default one. With ``batched``
    every sample is a batch of calls, else only those of short calls are.
    """

    name: str
    handle: Any
    batched: bool
    sizes: Sizes

    def array(self, x: Array) -> Any:
        """``x`` with its strides, in memory of the device."""

    def numpy(self, x: Any) -> Array:
        """A result on the host, column-major if it was."""

    def wide(self, x: Any) -> Any:
        """An array of the device, or a result of a peer, in double precision.

        What comes out computes where the device can do it: operators, ``abs``, ``max``, ``mean``
        and ``clip`` apply to it, and so does opt_einsum.
        """

    def is_packed(self, x: Any) -> bool:
        """Whether a result is column-major without gaps."""

    def wait(self) -> None:
        """Return when all work is done."""

    def clock(self, run: Run, count: int) -> float:
        """Seconds of one call: the mean over ``count`` calls in a row, until they are done."""

    def call_clock(self, run: Run, count: int) -> float:
        """Seconds until one call returns, done or not."""

    def copier(self, source: Any, target: Any) -> Run:
        """The device's quickest copy of one-dimensional memory."""

    def copies(self, size: int) -> int:
        """How many copies of ``size`` bytes to take in turn, so that no cache holds them all."""

    def release(self) -> None:
        """Give unused memory back, before the next case."""

    def lost(self) -> bool:
        """Whether an error has left the device unusable for this process."""

    def ceilings(self, dtype: str, compute: ComputeType | None = None) -> Ceilings:
        """Both ceilings, measured now: the best of five of each."""

    def about(self) -> dict[str, Any]:
        """The machine, for those who read the numbers later."""

    def versions(self) -> dict[str, str]:
        """The versions of the device's libraries."""


# --- the host -------------------------------------------------------------------------------------


class Host:
    """NumPy arrays and the host's clock."""

    name = "host"
    handle = None
    batched = False
    sizes = Sizes(gflop=8.0, memory=4 << 30, permuted=64 << 20, growth=1.0)

    def array(self, x: Array) -> Array:
        return x

    def numpy(self, x: Any) -> Array:
        return np.asarray(x)

    def wide(self, x: Any) -> Array:
        return np.asarray(x, np.complex128 if np.iscomplexobj(x) else np.float64)

    def is_packed(self, x: Any) -> bool:
        return bool(np.asarray(x).flags.f_contiguous)

    def wait(self) -> None:
        """A call that has returned is done."""

    def clock(self, run: Run, count: int) -> float:
        return host_seconds(run, count)

    def call_clock(self, run: Run, count: int) -> float:
        return host_seconds(run, count)

    def copier(self, source: Array, target: Array) -> Run:
        return copier(source, target, usable_cores())

    def copies(self, size: int) -> int:
        return 1

    def release(self) -> None:
        """The allocator does it."""

    def lost(self) -> bool:
        return False

    def ceilings(self, dtype: str, compute: ComputeType | None = None) -> Ceilings:
        """BLAS has no 16-bit types and no compute types: they are computed as more here."""
        return Ceilings(
            product_rate(accumulator(dtype), 1536), copy_rate(usable_cores(), 128 << 20)
        )

    def about(self) -> dict[str, Any]:
        """CPU model, usable cores, system."""
        return {"cpu": processor_name(), "cores": usable_cores(), "os": platform.platform()}

    def versions(self) -> dict[str, str]:
        return {}


HOST = Host()


def host_seconds(run: Run, count: int) -> float:
    """Seconds of one call on the host's clock: the mean over ``count`` calls in a row."""
    each = range(count)
    begin = time.perf_counter()
    for _ in each:
        run()
    return (time.perf_counter() - begin) / count


def product_rate(dtype: str, n: int) -> float:
    """Real FLOP/s of the library's n x n matrix product."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, (n, n)).astype(dtype) for _ in range(2))
    return product_flops(dtype, n) / min(host_seconds(lambda: np.matmul(a, b), 1) for _ in range(5))


def product_flops(dtype: str, n: int) -> int:
    """Real FLOPs of an n x n matrix product."""
    return (8 if np.dtype(dtype).kind == "c" else 2) * n**3


def copy_rate(threads: int, size: int) -> float:
    """Bytes/s (read + written) of a copy of ``size`` bytes shared by ``threads``."""
    source, target = np.ones(size // 8), np.zeros(size // 8)
    copy = copier(source, target, threads)
    return 2 * source.nbytes / min(host_seconds(copy, 1) for _ in range(5))


def copier(source: Array, target: Array, threads: int) -> Run:
    """A copy shared by ``threads``, which end with it."""
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    pool = ThreadPoolExecutor(threads)

    def copy() -> Array:
        for each in [pool.submit(np.copyto, theirs, mine) for mine, theirs in parts]:
            each.result()
        return target

    return copy
