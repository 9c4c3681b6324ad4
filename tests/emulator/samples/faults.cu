// Small kernels with one mistake each, for one block of 64 threads.

extern "C" __global__ void fine(const float *from, float *to) { to[threadIdx.x] = from[threadIdx.x]; }

extern "C" __global__ void overrun(const float *from, float *to) { to[threadIdx.x + 1] = from[threadIdx.x]; }

extern "C" __global__ void misaligned(const float *from, float *to) {
  *(float2 *)(to + 2 * (threadIdx.x / 2)) = *(const float2 *)(from + threadIdx.x % 2);
}

extern "C" __global__ void shared_overrun(const float *from, float *to) {
  __shared__ float tile[64];
  tile[threadIdx.x + 1] = from[threadIdx.x];
  __syncthreads();
  to[threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ void no_barrier(const float *from, float *to) {
  __shared__ float tile[64];
  tile[threadIdx.x] = from[threadIdx.x];
  to[threadIdx.x] = tile[63 - threadIdx.x];
}

extern "C" __global__ void both_write(const float *from, float *to) {
  __shared__ float tile[64];
  tile[threadIdx.x / 2] = from[threadIdx.x];
  __syncthreads();
  to[threadIdx.x] = tile[threadIdx.x / 2];
}

extern "C" __global__ void no_warp_sync(const float *from, float *to) {
  __shared__ float tile[64];
  tile[threadIdx.x] = from[threadIdx.x];
  to[threadIdx.x] = tile[threadIdx.x ^ 1];
}

extern "C" __global__ void with_warp_sync(const float *from, float *to) {
  __shared__ float tile[64];
  tile[threadIdx.x] = from[threadIdx.x];
  __syncwarp();
  to[threadIdx.x] = tile[threadIdx.x ^ 1];
}

extern "C" __global__ void warp_sync_across_warps(const float *from, float *to) {
  __shared__ float tile[64];
  tile[threadIdx.x] = from[threadIdx.x];
  __syncwarp();
  to[threadIdx.x] = tile[threadIdx.x ^ 32];
}

extern "C" __global__ void divergent_barrier(const float *from, float *to) {
  float x = from[threadIdx.x];
  if (x > 20) __syncthreads();
  to[threadIdx.x] = x;
}

extern "C" __global__ void two_barriers(const float *from, float *to) {
  float x = from[threadIdx.x];
  if (threadIdx.x < 32) { __syncthreads(); x += 1; } else { asm volatile("bar.sync 0;"); x *= 2; }
  to[threadIdx.x] = x;
}

extern "C" __global__ void exit_before_barrier(const float *from, float *to) {
  if (threadIdx.x % 32 == 5) return;
  __syncthreads();
  to[threadIdx.x] = from[threadIdx.x];
}

extern "C" __global__ void waits_alone(const float *from, float *to) {
  if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;");
  to[threadIdx.x] = from[threadIdx.x];
}

extern "C" __global__ void missing_lane(const float *from, float *to) {
  float x = from[threadIdx.x];
  if (threadIdx.x % 32 != 7) x += __shfl_xor_sync(0xffffffffu, x, 1);
  to[threadIdx.x] = x;
}

extern "C" __global__ void outside_mask(const float *from, float *to) {
  float x = from[threadIdx.x];
  if (threadIdx.x % 32 < 16) x += __shfl_down_sync(0xffffu, x, 8);
  to[threadIdx.x] = x;
}

extern "C" __global__ void not_in_mask(const float *from, float *to) {
  to[threadIdx.x] = __shfl_sync(0xfffffffeu, from[threadIdx.x], 3);
}

extern "C" __global__ void reads_fresh_shared(const float *from, float *to) {
  __shared__ float tile[64];
  if (threadIdx.x < 60) tile[threadIdx.x] = from[threadIdx.x];
  __syncthreads();
  to[threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ void reads_fresh_global(const float *from, float *to) { to[threadIdx.x] += from[threadIdx.x]; }

extern "C" __global__ void copy_race(const float *from, float *to) {
  __shared__ float tile[64];
  const unsigned at = (unsigned)__cvta_generic_to_shared(tile + threadIdx.x);
  tile[63 - threadIdx.x] = 1;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from + threadIdx.x) : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  to[threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ void copy_no_wait(const float *from, float *to) {
  __shared__ float tile[64];
  const unsigned at = (unsigned)__cvta_generic_to_shared(tile + threadIdx.x);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from + threadIdx.x) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  __syncthreads();
  to[threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ void atomics(const float *from, float *to) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 1);
  __syncthreads();
  to[threadIdx.x] = from[threadIdx.x] + count;
}

extern "C" __global__ void plain_among_atomics(const float *from, float *to) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 1);
  to[threadIdx.x] = from[threadIdx.x] + count;
}

extern "C" __global__ void traps(const float *from, float *to) {
  if (from[threadIdx.x] == 40) __trap();
  to[threadIdx.x] = 1;
}

extern "C" __global__ void dynamic(const float *from, float *to) {
  extern __shared__ float tile[];
  tile[threadIdx.x] = from[threadIdx.x];
  to[threadIdx.x] = tile[threadIdx.x];
}
