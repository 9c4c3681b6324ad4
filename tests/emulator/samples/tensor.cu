// A tensor-core product with a pipeline of copies, and its planted bugs, one kernel each.

__device__ __forceinline__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy16(void *to, const void *from, bool inside) {
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

__device__ __forceinline__ unsigned tf32(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

__device__ __forceinline__ void mma(float *d, const unsigned *a, const unsigned *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

enum Bug {
  NO_BUG, NO_BARRIER_BEFORE_USE, NO_BARRIER_BEFORE_REFILL, WAIT_TOO_LATE, NO_WAIT, WRONG_FRAGMENT, NO_ROW_GUARD,
  NO_K_GUARD, NO_STORE_GUARD, MISALIGNED_COPY, ODD_PITCH, STAGE_OVERRUN, BARRIER_IN_HALF
};

// C = A B^T with A m x k and B n x k: tiles of 32 x 32 x 16, four warps of 16 x 16, two stages.
template <int BUG> __device__ __forceinline__ void
product(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, int m, int n, int k) {
  extern __shared__ __align__(16) float stages[];
  constexpr int PITCH = BUG == ODD_PITCH ? 19 : 20, HALF = 32 * PITCH, STAGE = 2 * HALF;
  const int t = threadIdx.x, lane = t % 32, warp_row = t / 32 % 2 * 16, warp_column = t / 64 * 16;
  const int row = blockIdx.y * 32, column = blockIdx.x * 32, steps = (k + 15) / 16;
  float sum[2][4] = {};
  auto load = [&](int step, int stage) {
    const int r = t / 4, j = t % 4 * 4;
    const bool in_k = BUG == NO_K_GUARD || step * 16 + j < k;
    const bool in_a = in_k && (BUG == NO_ROW_GUARD || row + r < m), in_b = in_k && column + r < n;
    float *to = stages + stage * STAGE + r * PITCH + j + (BUG == MISALIGNED_COPY);
    copy16(to, in_a ? a + (row + r) * k + step * 16 + j : a, in_a);
    copy16(to + HALF, in_b ? b + (column + r) * k + step * 16 + j : b, in_b);
  };
  load(0, 0);
  commit();
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) load(step + 1, BUG == STAGE_OVERRUN ? (step + 1) % 3 : (step + 1) % 2);
    commit();
    if (BUG != NO_WAIT) wait<BUG == WAIT_TOO_LATE ? 2 : 1>();
    if (BUG == BARRIER_IN_HALF) { if (lane < 16) __syncthreads(); }
    else if (BUG != NO_BARRIER_BEFORE_USE) __syncthreads();
    const float *left = stages + step % 2 * STAGE, *right = left + HALF;
#pragma unroll
    for (int j = 0; j < 16; j += 8) {
      unsigned x[4], y[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int down = BUG == WRONG_FRAGMENT ? i / 2 : i % 2, across = BUG == WRONG_FRAGMENT ? i % 2 : i / 2;
        x[i] = tf32(left[(warp_row + lane / 4 + 8 * down) * PITCH + j + lane % 4 + 4 * across]);
      }
#pragma unroll
      for (int l = 0; l < 2; ++l) {
#pragma unroll
        for (int i = 0; i < 2; ++i) y[i] = tf32(right[(warp_column + 8 * l + lane / 4) * PITCH + j + lane % 4 + 4 * i]);
        mma(sum[l], x, y);
      }
    }
    if (BUG != NO_BARRIER_BEFORE_REFILL) __syncthreads();
  }
#pragma unroll
  for (int l = 0; l < 2; ++l)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + warp_row + lane / 4 + 8 * (i / 2), s = column + warp_column + 8 * l + lane % 4 * 2 + i % 2;
      if ((BUG == NO_STORE_GUARD || r < m) && s < n) c[r * n + s] = sum[l][i];
    }
}

#define KERNEL(name, bug)                                                                                   \
  extern "C" __global__ void __launch_bounds__(128) name(const float *a, const float *b, float *c, int m, int n, int k) { \
    product<bug>(a, b, c, m, n, k);                                                                         \
  }
KERNEL(right, NO_BUG)
KERNEL(no_barrier_before_use, NO_BARRIER_BEFORE_USE)
KERNEL(no_barrier_before_refill, NO_BARRIER_BEFORE_REFILL)
KERNEL(wait_too_late, WAIT_TOO_LATE)
KERNEL(no_wait, NO_WAIT)
KERNEL(wrong_fragment, WRONG_FRAGMENT)
KERNEL(no_row_guard, NO_ROW_GUARD)
KERNEL(no_k_guard, NO_K_GUARD)
KERNEL(no_store_guard, NO_STORE_GUARD)
KERNEL(misaligned_copy, MISALIGNED_COPY)
KERNEL(odd_pitch, ODD_PITCH)
KERNEL(stage_overrun, STAGE_OVERRUN)
KERNEL(barrier_in_half, BARRIER_IN_HALF)
