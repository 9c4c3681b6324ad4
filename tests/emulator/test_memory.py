"""Spaces, hints, atomics, block-wide votes and copies of every width."""

from typing import Any

import numpy as np
import pytest

from .device import Device, KernelFault, Kind, Module, Options

SOURCE = """
__constant__ int table[4] = {10, 20, 30, 40};
__device__ int counter = 5;

extern "C" __global__ void spaces(const int *from, int *to, int turn) {
  int local[8];
  for (int i = 0; i < 8; ++i) local[(i + turn) % 8] = from[8 * threadIdx.x + i];
  int sum = 0;
  for (int i = 0; i < 4; ++i) sum += table[(turn + i) & 3] * local[(i * turn) & 7];
  to[threadIdx.x] = sum + *(volatile int *)&counter;
}

extern "C" __global__ void narrow(const unsigned char *from, unsigned char *to) {
  __shared__ unsigned char bytes[64];
  bytes[threadIdx.x] = from[threadIdx.x];
  __syncthreads();
  to[threadIdx.x] = bytes[63 - threadIdx.x];
}

extern "C" __global__ void hints(const float *from, float *to) {
  float x, y, z, w;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "l"(from + 4 * threadIdx.x));
  asm volatile("st.global.cs.v2.f32 [%0], {%1, %2};" ::"l"(to + 2 * threadIdx.x), "f"(x + y), "f"(z + w));
}

extern "C" __global__ void votes(const int *from, int *to) {
  const bool odd = from[threadIdx.x] & 1;
  to[3 * threadIdx.x] = __syncthreads_or(odd);
  to[3 * threadIdx.x + 1] = __syncthreads_and(odd);
  to[3 * threadIdx.x + 2] = __syncthreads_count(odd);
}

extern "C" __global__ void atomics(const int *from, unsigned *to, double *sum) {
  const int x = from[threadIdx.x];
  atomicAdd(to, x);
  atomicMin((int *)to + 1, x);
  atomicMax((int *)to + 2, x);
  atomicAnd(to + 3, x);
  atomicOr(to + 4, x);
  atomicXor(to + 5, x);
  atomicInc(to + 6, 9);
  atomicCAS(to + 7, 0u, threadIdx.x + 1);
  atomicAdd((unsigned long long *)(to + 8), 1ull << 33);
  atomicAdd(sum, 0.5);
}

template <int N> __device__ void copy(const char *from, char *to, int bytes) {
  __shared__ __align__(16) char buffer[64 * N];
  char *mine = buffer + N * threadIdx.x;
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
               ::"r"((unsigned)__cvta_generic_to_shared(mine)), "l"(from + N * threadIdx.x), "n"(N), "r"(bytes) : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  for (int i = 0; i < N; ++i) to[N * threadIdx.x + i] = buffer[N * (threadIdx.x ^ 1) + i];
}
extern "C" __global__ void copy4(const char *from, char *to, int bytes) { copy<4>(from, to, bytes); }
extern "C" __global__ void copy8(const char *from, char *to, int bytes) { copy<8>(from, to, bytes); }
extern "C" __global__ void copy16(const char *from, char *to, int bytes) { copy<16>(from, to, bytes); }
"""  # noqa: E501

WIDE = """.version 8.0
.target sm_90
.address_size 64
.visible .entry multiply(.param .u64 from, .param .u64 to) {
  .reg .b64 %a<3>; .reg .b32 %x<4>; .reg .b32 %r<4>;
  ld.param.u64 %a1, [from]; ld.param.u64 %a2, [to];
  ld.global.v4.u32 {%x0, %x1, %x2, %x3}, [%a1];
  add.cc.u32 %r0, %x0, %x2; addc.u32 %r1, %x1, %x3;
  sub.cc.u32 %r2, %x0, %x2; subc.u32 %r3, %x1, %x3;
  st.global.v4.u32 [%a2], {%r0, %r1, %r2, %r3};
  mul.lo.u32 %r0, %x0, %x1; mul.hi.u32 %r1, %x0, %x1;
  mad.lo.cc.u32 %r0, %x2, %x3, %r0; madc.hi.u32 %r1, %x2, %x3, %r1;
  st.global.v2.u32 [%a2+16], {%r0, %r1};
  ret;
}"""


@pytest.fixture(scope="module")
def module(device: Device) -> Module:
    """The kernels above."""
    return device.load(SOURCE)


def run(device: Device, module: Module, name: str, x: Any, to: Any, *rest: Any) -> Any:
    """Launch with 64 threads; the contents of ``to`` afterwards."""
    memory = device.upload(to)
    module.launch(name, (1,), (64,), [device.upload(x), memory, *rest])
    return memory.download(to.dtype)


def test_constant_local_and_module_memory(
    device: Device, module: Module, rng: np.random.Generator
) -> None:
    x = rng.integers(0, 9, (64, 8)).astype("i4")
    got = run(device, module, "spaces", x, np.zeros(64, "i4"), 3)
    local = np.roll(x, 3, axis=1)
    expected = sum([40, 10, 20, 30][i] * local[:, i * 3 % 8] for i in range(4))
    np.testing.assert_array_equal(got, expected + 5)


def test_bytes_in_one_word_are_no_race(device: Device, module: Module) -> None:
    x = np.arange(64, dtype="u1")
    np.testing.assert_array_equal(run(device, module, "narrow", x, np.zeros_like(x)), x[::-1])


def test_cache_hints_change_nothing(
    device: Device, module: Module, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((128, 2), "f4")
    np.testing.assert_array_equal(
        run(device, module, "hints", x, np.zeros(128, "f4")), x[:, 0] + x[:, 1]
    )


@pytest.mark.parametrize("x", [np.arange(64), np.zeros(64), np.ones(64)])
def test_votes_of_the_block(device: Device, module: Module, x: Any) -> None:
    odd = x.astype("i4") % 2
    got = run(device, module, "votes", x.astype("i4"), np.zeros(192, "i4")).reshape(64, 3)
    np.testing.assert_array_equal(got, [[odd.any(), odd.all(), odd.sum()]] * 64)


def test_atomics(device: Device, module: Module, rng: np.random.Generator) -> None:
    x = rng.integers(-1000, 1000, 64).astype("i4")
    start = np.array([7, 0, 0, 0xFFFFFFFF, 0, 0, 0, 0, 0, 0], "u4")
    total = device.upload(np.zeros(1))
    got = run(device, module, "atomics", x, start, total).view("i4").tolist()
    bits = [f.reduce(x) for f in (np.bitwise_and, np.bitwise_or, np.bitwise_xor)]
    expected = [7 + x.sum(), min(x.min(), 0), max(x.max(), 0), *bits, 64 % 10]
    assert got[:7] == expected
    assert got[7] in range(1, 65)
    assert got[8:] == [0, 128]
    assert total.download("f8")[0] == 32


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("late", [True, False])
def test_copies_fill_with_zeros(
    device: Device, module: Module, rng: np.random.Generator, width: int, late: bool
) -> None:
    x = rng.integers(1, 100, (64, width)).astype("u1")
    to = device.allocate(x.nbytes)
    arguments = [device.upload(x), to, width - 3]
    module.launch(f"copy{width}", (1,), (64,), arguments, options=Options(late=late))
    expected = x[np.arange(64) ^ 1].copy()
    expected[:, width - 3 :] = 0
    np.testing.assert_array_equal(to.download("u1", x.shape), expected)


def test_carries_join_words(device: Device) -> None:
    x = np.array([0xFFFFFFF0, 3, 0x20, 5], "u4")
    to = device.allocate(24)
    device.load_ptx(WIDE).launch("multiply", (1,), (1,), [device.upload(x), to])
    left, right = (int(pair[0]) | int(pair[1]) << 32 for pair in (x[:2], x[2:]))
    product = int(x[0]) * int(x[1]) + int(x[2]) * int(x[3])
    assert to.download("u8").tolist() == [left + right, (left - right) % 2**64, product]


def test_memory_is_freed_once(device: Device) -> None:
    memory = device.allocate(4)
    memory.free()
    with pytest.raises(KernelFault) as raised:
        memory.free()
    assert raised.value.kind is Kind.BOUNDS
