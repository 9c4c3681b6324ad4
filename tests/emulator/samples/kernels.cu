// Kernels of the sorts the library has, as the emulator's tests run them.

// A strided matrix into another by tiles through shared memory; one struct holds the arguments.
struct Transpose {
  int rows, columns;
  long long from_row, from_column, to_row, to_column;  // strides in elements
};

extern "C" __global__ void transpose(const float *__restrict__ from, float *__restrict__ to, Transpose p) {
  __shared__ float tile[32][33];
  const int row = blockIdx.y * 32, column = blockIdx.x * 32;
  for (int i = threadIdx.y; i < 32; i += 8) {
    const int r = row + i, c = column + threadIdx.x;
    if (r < p.rows && c < p.columns) tile[i][threadIdx.x] = from[r * p.from_row + c * p.from_column];
  }
  __syncthreads();
  for (int i = threadIdx.y; i < 32; i += 8) {
    const int c = column + i, r = row + threadIdx.x;
    if (r < p.rows && c < p.columns) to[c * p.to_row + r * p.to_column] = tile[threadIdx.x][i];
  }
}

// C = A B, row-major, by tiles of 32 x 32 and 16 in k; a thread has 2 x 2 of C.
extern "C" __global__ void __launch_bounds__(256)
gemm_f32(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, int m, int n, int k) {
  __shared__ float left[16][33], right[16][32];
  const int t = threadIdx.x, x = t % 16, y = t / 16, row = blockIdx.y * 32, column = blockIdx.x * 32;
  float sum[2][2] = {};
  for (int start = 0; start < k; start += 16) {
    for (int i = t; i < 512; i += 256) {
      const int r = i / 16, j = i % 16;
      left[j][r] = row + r < m && start + j < k ? a[(row + r) * k + start + j] : 0;
    }
    for (int i = t; i < 512; i += 256) {
      const int j = i / 32, r = i % 32;
      right[j][r] = column + r < n && start + j < k ? b[(start + j) * n + column + r] : 0;
    }
    __syncthreads();
    for (int j = 0; j < 16; ++j)
      for (int i = 0; i < 2; ++i)
        for (int l = 0; l < 2; ++l) sum[i][l] += left[j][y + 16 * i] * right[j][x + 16 * l];
    __syncthreads();
  }
  for (int i = 0; i < 2; ++i)
    for (int l = 0; l < 2; ++l)
      if (row + y + 16 * i < m && column + x + 16 * l < n)
        c[(row + y + 16 * i) * n + column + x + 16 * l] = sum[i][l];
}

// The sum of each block's share, by shuffles within warps and shared memory between them.
extern "C" __global__ void reduce(const float *__restrict__ from, float *__restrict__ to, long long count) {
  __shared__ float warps[32];
  float sum = 0;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x)
    sum += from[i];
  for (int by = 16; by; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0;
  for (int by = 16; by; by /= 2) sum += __shfl_down_sync(0xffffffffu, sum, by);
  if (threadIdx.x == 0) to[blockIdx.x] = sum;
}

// Loops over a rank the compiler does not know: arguments indexed at run time, switch, double.
struct Walk {
  int rank;
  int extent[6];
  long long stride[6];
};

extern "C" __global__ void walk(const double *__restrict__ from, double *__restrict__ to, Walk p, int operation) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  long long offset = 0;
  int rest = i;
  for (int r = 0; r < p.rank; ++r) {
    offset += rest % p.extent[r] * p.stride[r];
    rest /= p.extent[r];
  }
  if (rest) return;
  double x = from[offset];
  switch (operation) {
    case 0: break;
    case 1: x = -x; break;
    case 2: x = sqrt(x); break;
    case 3: x = 1 / x; break;
    case 4: x = exp(x); break;
    case 5: x = sin(x); break;
    case 6: x = log(x); break;
    case 7: x = fabs(x) - floor(x); break;
  }
  to[i] = x;
}

// Complex numbers as pairs, eight- and sixteen-byte accesses, atomics.
extern "C" __global__ void dot_complex(const double2 *__restrict__ a, const double2 *__restrict__ b, double *__restrict__ to, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const double2 x = a[i], y = b[i];
  atomicAdd(to, x.x * y.x - x.y * y.y);
  atomicAdd(to + 1, x.x * y.y + x.y * y.x);
}

// Warps with roles of their own: one fills a buffer, the other empties it, at named barriers.
extern "C" __global__ void relay(const float *__restrict__ from, float *__restrict__ to, int rounds) {
  __shared__ float buffer[2][32];
  const int lane = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    for (int i = 0; i < rounds; ++i) {
      asm volatile("bar.sync %0, 64;" ::"r"(3 + i % 2) : "memory");  // the buffer is free
      buffer[i % 2][31 - lane] = from[32 * i + lane];
      asm volatile("bar.arrive %0, 64;" ::"r"(1 + i % 2) : "memory");  // and full
    }
  } else {
    for (int i = 0; i < 2 && i < rounds; ++i) asm volatile("bar.arrive %0, 64;" ::"r"(3 + i) : "memory");
    for (int i = 0; i < rounds; ++i) {
      asm volatile("bar.sync %0, 64;" ::"r"(1 + i % 2) : "memory");
      to[32 * i + lane] = buffer[i % 2][lane];
      if (i + 2 < rounds) asm volatile("bar.arrive %0, 64;" ::"r"(3 + i % 2) : "memory");
    }
  }
}
