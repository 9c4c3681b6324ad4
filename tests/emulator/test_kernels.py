"""Kernels of the sorts the library has, compared with NumPy on every schedule."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from .device import Device, Module, Options

Sample = Callable[[str], Module]

TRANSPOSE = np.dtype([("rows", "i4"), ("columns", "i4"), ("strides", "i8", 4)])
WALK = np.dtype([("rank", "i4"), ("extent", "i4", 6), ("pad", "i4"), ("stride", "i8", 6)])


@pytest.fixture
def kernels(sample: Sample) -> Module:
    """samples/kernels.cu."""
    return sample("kernels.cu")


def test_transpose_with_struct_argument(
    device: Device, kernels: Module, options: Options, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((45, 70), "f4")
    to = device.allocate(x.nbytes)
    arguments = np.array((45, 70, (70, 1, 45, 1)), TRANSPOSE)
    kernels.launch("transpose", (3, 2), (32, 8), [device.upload(x), to, arguments], 0, options)
    np.testing.assert_array_equal(to.download("f4", (70, 45)), x.T)


def test_tiled_product(
    device: Device, kernels: Module, options: Options, rng: np.random.Generator
) -> None:
    m, n, k = 50, 33, 40
    a, b = rng.standard_normal((m, k), "f4"), rng.standard_normal((k, n), "f4")
    c = device.allocate(4 * m * n)
    arguments = [device.upload(a), device.upload(b), c, m, n, k]
    kernels.launch("gemm_f32", (2, 2), (256,), arguments, 0, options)
    np.testing.assert_allclose(c.download("f4", (m, n)), a @ b, atol=1e-4)


def test_reduction_by_shuffles(
    device: Device, kernels: Module, options: Options, rng: np.random.Generator
) -> None:
    x = rng.standard_normal(5000, "f4")
    partial, total = device.allocate(16), device.allocate(4)
    kernels.launch("reduce", (4,), (96,), [device.upload(x), partial, x.size], 0, options)
    kernels.launch("reduce", (1,), (32,), [partial, total, 4], 0, options)
    np.testing.assert_allclose(total.download("f4"), x.sum(dtype="f8"), rtol=1e-4, atol=1e-3)


def test_named_barriers_between_warps(
    device: Device, kernels: Module, options: Options, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((7, 32), "f4")
    to = device.allocate(x.nbytes)
    kernels.launch("relay", (1,), (64,), [device.upload(x), to, 7], 0, options)
    np.testing.assert_array_equal(to.download("f4", (7, 32)), x[:, ::-1])


FUNCTIONS: list[Callable[[Any], Any]] = [
    lambda x: x,
    lambda x: -x,
    np.sqrt,
    lambda x: 1 / x,
    np.exp,
    np.sin,
    np.log,
    lambda x: abs(x) - np.floor(x),
]


@pytest.mark.parametrize("operation", range(len(FUNCTIONS)))
def test_loops_over_modes_and_functions(
    device: Device, kernels: Module, operation: int, rng: np.random.Generator
) -> None:
    x = rng.random((3, 4, 5)) * 30 + 0.1
    if FUNCTIONS[operation] is np.sin:
        x[0, 0, 0] = 1e9  # takes the function NVRTC leaves out of line
    to = device.allocate(x.nbytes)
    strides = (1, 5, 20, 0, 0, 0)  # the last mode first
    arguments = np.array((3, (5, 4, 3, 1, 1, 1), 0, strides), WALK)
    parameters = [device.upload(x), to, arguments, operation]
    kernels.launch("walk", (2,), (32,), parameters)
    np.testing.assert_allclose(to.download("f8", x.shape), FUNCTIONS[operation](x), rtol=1e-14)


def test_complex_pairs_and_atomics(
    device: Device, kernels: Module, options: Options, rng: np.random.Generator
) -> None:
    # Whole numbers: atomics add in any order.
    x, y = (rng.integers(-9, 10, 50) + 1j * rng.integers(-9, 10, 50) for _ in range(2))
    to = device.upload(np.zeros(2))
    arguments = [device.upload(x), device.upload(y), to, 50]
    kernels.launch("dot_complex", (2,), (32,), arguments, 0, options)
    assert to.download("c16")[0] == x @ y


WARP = """
extern "C" __global__ void warp(const int *from, unsigned *to) {
  const int lane = threadIdx.x, x = from[lane];
  unsigned r[12];
  r[0] = __shfl_up_sync(~0u, x, 3);
  r[1] = __shfl_down_sync(~0u, x, 5, 16);
  r[2] = __shfl_xor_sync(~0u, x, 9);
  r[3] = __shfl_sync(~0u, x, lane * 7, 8);
  r[4] = __ballot_sync(~0u, x > 4);
  r[5] = __any_sync(~0u, x > 8) + 2 * __all_sync(~0u, x >= 0) + 4 * __any_sync(~0u, x > 9);
  r[6] = __match_any_sync(~0u, x);
  int whole;
  r[7] = __match_all_sync(~0u, x, &whole) + whole;
  r[8] = __reduce_add_sync(~0u, x);
  r[9] = __reduce_max_sync(~0u, x);
  r[10] = __popc(__activemask());
  r[11] = lane < 16 ? __shfl_xor_sync(0xffffu, x, 1) : __shfl_xor_sync(0xffff0000u, x, 2);
  for (int i = 0; i < 12; ++i) to[12 * lane + i] = r[i];
}
"""


def test_operations_of_a_warp(device: Device, options: Options, rng: np.random.Generator) -> None:
    x = rng.integers(0, 10, 32).astype("i4")
    x[0] = 9
    to, lane = device.allocate(4 * 32 * 12), np.arange(32)
    device.load(WARP).launch("warp", (1,), (32,), [device.upload(x), to], 0, options)
    got = to.download("u4", (32, 12))
    down = np.where(lane % 16 + 5 < 16, np.minimum(lane + 5, 31), lane)
    expected = [
        x[np.where(lane >= 3, lane - 3, lane)],
        x[down],
        x[lane ^ 9],
        x[lane // 8 * 8 + lane * 7 % 8],
        np.full(32, ((x > 4) << lane).sum()),
        np.full(32, 3),
        [((x == each) << lane).sum() for each in x],
        np.zeros(32),
        np.full(32, x.sum()),
        np.full(32, x.max()),
        np.full(32, 32),
        np.where(lane < 16, x[lane ^ 1], x[lane ^ 2]),
    ]
    np.testing.assert_array_equal(got, np.array(expected).T)
