// A product by TMA, mbarriers and wgmma, and its planted bugs, one kernel each.

struct __align__(64) TensorMap { char bytes[128]; };

__device__ __forceinline__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

// K-major tile of rows of 128 bytes, 128-byte swizzle, eight rows in 1024 bytes.
__device__ __forceinline__ unsigned long long descriptor(unsigned address) {
  return (unsigned long long)(address >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

__device__ __forceinline__ void wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
      ::"r"(barrier), "r"(parity) : "memory");
}

__device__ __forceinline__ void load(unsigned to, const TensorMap *map, int x, int y, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
      ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void multiply(float (&d)[16], unsigned long long a, unsigned long long b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(a), "l"(b));
}

enum Bug {
  NO_BUG, NO_FENCE_AFTER_INIT, NO_BARRIER_AFTER_INIT, NO_MBARRIER_WAIT, WRONG_PARITY, TOO_FEW_BYTES, NO_WGMMA_FENCE,
  NO_WGMMA_WAIT, NO_BARRIER_BEFORE_REFILL, NO_PROXY_FENCE, WRONG_SWIZZLE
};

// C = A B^T, f16 in and f32 out: tiles of 64 x 32 x 64 by one warpgroup, two stages.  B's first
// stage is scaled in shared memory, so that it is written through the generic proxy.
template <int BUG> __device__ __forceinline__ void
product(const TensorMap &map_a, const TensorMap &map_b, float *c, int m, int n, int k) {
  extern __shared__ __align__(1024) unsigned char stages[];
  __shared__ __align__(8) unsigned long long full[2];
  constexpr int A = 64 * 128, STAGE = A + 32 * 128;
  const int t = threadIdx.x, steps = (k + 63) / 64;
  if (t == 0) {
    for (int s = 0; s < 2; ++s) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(full + s)) : "memory");
    if (BUG != NO_FENCE_AFTER_INIT) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (BUG != NO_BARRIER_AFTER_INIT) __syncthreads();
  auto fill = [&](int step) {
    const unsigned to = shared_address(stages) + step % 2 * STAGE, barrier = shared_address(full + step % 2);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(barrier), "r"(BUG == TOO_FEW_BYTES ? A : STAGE) : "memory");
    load(to, &map_a, step * 64, blockIdx.y * 64, barrier);
    load(to + A, &map_b, step * 64, blockIdx.x * 32, barrier);
  };
  float sum[16] = {};
  if (t == 0)
    for (int s = 0; s < 2 && s < steps; ++s) fill(s);
  for (int step = 0; step < steps; ++step) {
    const unsigned left = shared_address(stages) + step % 2 * STAGE;
    const int parity = step / 2 % 2;
    if (BUG != NO_MBARRIER_WAIT) wait(shared_address(full + step % 2), BUG == WRONG_PARITY ? !parity : parity);
    if (step == 0) {
      unsigned short *b = (unsigned short *)(stages + A);
      for (int i = t; i < 32 * 64; i += 128) b[i] ^= 0x8000;  // the sign
      if (BUG != NO_PROXY_FENCE) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      __syncthreads();
    }
    if (BUG != NO_WGMMA_FENCE) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      unsigned long long a = descriptor(left + 32 * j), b = descriptor(left + A + 32 * j);
      if (BUG == WRONG_SWIZZLE) a ^= 3ull << 62;
      multiply(sum, a, b);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    if (BUG != NO_WGMMA_WAIT) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (BUG != NO_BARRIER_BEFORE_REFILL) __syncthreads();
    if (t == 0 && step + 2 < steps) fill(step + 2);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int r = blockIdx.y * 64 + t / 32 * 16 + t % 32 / 4 + 8 * (i / 2 % 2);
    const int s = blockIdx.x * 32 + t % 4 * 2 + i % 2 + 8 * (i / 4);
    if (r < m && s < n) c[r * n + s] = sum[i];
  }
}

#define KERNEL(name, bug)                                                                                        \
  extern "C" __global__ void __launch_bounds__(128)                                                              \
  name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float *c, int m, int n, int k) { \
    product<bug>(a, b, c, m, n, k);                                                                              \
  }
KERNEL(right, NO_BUG)
KERNEL(no_fence_after_init, NO_FENCE_AFTER_INIT)
KERNEL(no_barrier_after_init, NO_BARRIER_AFTER_INIT)
KERNEL(no_mbarrier_wait, NO_MBARRIER_WAIT)
KERNEL(wrong_parity, WRONG_PARITY)
KERNEL(too_few_bytes, TOO_FEW_BYTES)
KERNEL(no_wgmma_fence, NO_WGMMA_FENCE)
KERNEL(no_wgmma_wait, NO_WGMMA_WAIT)
KERNEL(no_barrier_before_refill, NO_BARRIER_BEFORE_REFILL)
KERNEL(no_proxy_fence, NO_PROXY_FENCE)
KERNEL(wrong_swizzle, WRONG_SWIZZLE)

// C (64 x 32) = A B, one wgmma on tiles whose bytes and descriptors are given (the address left out).
template <int TRANSPOSED_A, int TRANSPOSED_B> __device__ __forceinline__ void
single(const uint4 *a, const uint4 *b, float *c, unsigned long long descriptor_a, unsigned long long descriptor_b) {
  extern __shared__ __align__(1024) unsigned char stages[];
  constexpr int BYTES = 8192;  // for each tile
  for (int i = threadIdx.x; i < BYTES / 16; i += 128) {
    ((uint4 *)stages)[i] = a[i];
    ((uint4 *)(stages + BYTES))[i] = b[i];
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const unsigned long long start = shared_address(stages) >> 4;
  float d[16] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, 1, 1, 1, %18, %19;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(descriptor_a | start), "l"(descriptor_b | (start + BYTES / 16)), "n"(TRANSPOSED_A), "n"(TRANSPOSED_B));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    asm volatile("" : "+f"(d[i])::"memory");
    const int r = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * (i / 2 % 2);
    c[r * 32 + threadIdx.x % 4 * 2 + i % 2 + 8 * (i / 4)] = d[i];
  }
}

#define SINGLE(name, transposed_a, transposed_b)                                                              \
  extern "C" __global__ void __launch_bounds__(128)                                                           \
  name(const uint4 *a, const uint4 *b, float *c, unsigned long long descriptor_a, unsigned long long descriptor_b) { \
    single<transposed_a, transposed_b>(a, b, c, descriptor_a, descriptor_b);                                  \
  }
SINGLE(single_kk, 0, 0)
SINGLE(single_mk, 1, 0)
SINGLE(single_kn, 0, 1)
SINGLE(single_mn, 1, 1)
