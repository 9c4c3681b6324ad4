// D[l,m,n] = alpha sum_k A[l,m,k] B[l,k,n] + beta opC(C[l,m,n]) on Hopper: TMA reads boxes, wgmma multiplies.
//
// A tile is a box of the loops: ``box`` indices of each m loop, M in all, by those of n, N in all, in steps of boxes
// of the k loops, K in all; boxes of l have one index. What lies beyond a tensor's end is read as zeros, and not
// written. One warp copies the boxes of A and B into a ring of stages; warpgroups multiply a stage while the next
// ones arrive. Blocks are persistent: the copies of a tile begin while the tile before is still written.
//
// A box lies in shared memory as panels: rows of BYTES bytes (32, 64 or 128), swizzled by as much, along the mode that
// is side by side in memory. Only an emulator has run this; what it assumes of the hardware:
//  - a tensor map may list modes in any order of their strides, as long as the first has stride 1;
//  - a map of type TFLOAT32 rounds to nearest on the way to shared memory, ties to even, as seen on 12.0;
//  - panels along m or n are laid out for wgmma as the PTX manual's canonical layouts for its transposed tiles.

namespace contract {

// ---- what a kernel is made for -----------------------------------------------------------------------

// M x N elements of D by GROUPS warpgroups, each with M / GROUPS rows; 128 bytes of k at a step.
template <int M_, int N_, int GROUPS_, int STAGES_>
struct HopperTile {
  static constexpr int M = M_, N = N_, GROUPS = GROUPS_, STAGES = STAGES_;
  static constexpr int MULTIPLIERS = 128 * GROUPS, THREADS = MULTIPLIERS + 128;  // the last warpgroup copies
  static constexpr int UNIT = least(N, 128), UNITS_M = M / GROUPS / 64, UNITS_N = N / UNIT;  // of one wgmma
  static_assert(UNITS_M * GROUPS * 64 == M && UNITS_N * UNIT == N);
};

// The SIDE x K elements of a factor that a step reads, as panels of BYTES bytes along the tile or along k.
template <class T, Along ALONG, int BYTES, int SIDE>
struct Panels {
  using Type = T;
  static constexpr bool BY_K = ALONG == Along::K;
  static constexpr int SIZE = sizeof(T), K = 128 / SIZE, RUN = BYTES / SIZE;
  static constexpr int ROWS = BY_K ? SIDE : K, COUNT = (BY_K ? K : SIDE) / RUN;
  static constexpr int PANEL = ROWS * BYTES, TOTAL = COUNT * PANEL;
  static_assert(COUNT * RUN == (BY_K ? K : SIDE) && PANEL % 1024 == 0);

  // The matrix descriptor of the tile from ``row`` and ``k`` on: where it begins, and how far apart are the repeats
  // of its swizzle pattern: along the tile (leading; unused along k) and from eight rows to the next eight (stride).
  static __device__ unsigned long long descriptor(unsigned stage, int row, int k) {
    const unsigned panel = (BY_K ? k : row) / RUN * PANEL;
    const unsigned start = stage + panel + (BY_K ? row * BYTES + k % RUN * SIZE : k * BYTES);
    constexpr unsigned long long leading = BY_K ? 1 : PANEL / 16, stride = 8 * BYTES / 16;
    constexpr unsigned long long swizzle = BYTES == 128 ? 1 : BYTES == 64 ? 2 : 3;
    return (start & 0x3ffff) >> 4 | leading << 16 | stride << 32 | swizzle << 62;
  }
};

// ---- the kernel ----------------------------------------------------------------------------------------

struct Divisor {
  unsigned extent, magic, shift;
  __device__ unsigned quotient(unsigned n) const { return magic ? __umulhi(n, magic) >> shift : n; }
  __device__ unsigned remainder(unsigned n) const { return n - quotient(n) * extent; }
};

// A loop of the product, cut into boxes. Number n of a tile (of a step, for k) is in box n / before % boxes, and
// index i of a tile's flattened m, n or k is index i >> shift & box - 1 of the box.
struct Axis {
  unsigned extent, box, shift;
  Divisor before, boxes;
  unsigned unused;
  long long d, c;  // strides in elements

  __device__ unsigned first(unsigned number) const { return boxes.remainder(before.quotient(number)) * box; }
  __device__ unsigned inside(unsigned i) const { return i >> shift & (box - 1); }
};

// A mode of a tensor map: its axis, and where in it panel p of a tile begins.
struct MapMode {
  unsigned axis, shift, mask, step;
  __device__ int panel(unsigned p) const { return (p >> shift & mask) * step; }
};

// Which stage is used next, and the parity of that use.
template <int STAGES>
struct Ring {
  unsigned slot = 0, parity = 0;
  __device__ void next() {
    if (++slot == STAGES) slot = 0, parity ^= 1;
  }
};

// WIDTH elements of D are written at once, along n.
template <class Target, class Offset, class TILE, class PA, class PB, class FC, int WIDTH>
struct Hopper {
  using T = typename PA::Type;
  using TC = typename FC::Type;
  static constexpr int AXES = 11, MODES = 5, STAGE = PA::TOTAL + PB::TOTAL;

  struct Arguments {
    TensorMap maps[2];  // of A and B
    const TC *c;
    Target *d;
    float alpha, beta;
    unsigned tiles, steps;
    unsigned axes_m, axes_n, axes_l, axes_k;  // how many of ``axes`` are of each kind, in this order
    MapMode modes[2][MODES];
    Axis axes[AXES];  // one at least stands still
  };

  // The barriers of the ring; where the rows and columns of a tile are in D and C, if they are there.
  struct Shared {
    Barrier full[TILE::STAGES], empty[TILE::STAGES];
    Offset row_d[TILE::M], column_d[TILE::N];
    Offset row_c[FC::present ? TILE::M : 1], column_c[FC::present ? TILE::N : 1];
    int is_row[TILE::M], is_column[TILE::N];
  };

  // ---- copying ---------------------------------------------------------------------------------

  // A warp: each lane knows where one axis is, and copies one panel.
  static __device__ void copy(const Arguments &a, Shared &s, unsigned char *stages, unsigned steps) {
    const unsigned lane = threadIdx.x % 32, factor = lane >= PA::COUNT, panel = lane - factor * PA::COUNT;
    const Axis &axis = a.axes[least(lane, AXES - 1)];
    const bool is_k = lane >= a.axes_m + a.axes_n + a.axes_l;
    const int target = factor ? PA::TOTAL + panel * PB::PANEL : panel * PA::PANEL;
    int from[MODES], source[MODES];
#pragma unroll
    for (int i = 0; i < MODES; ++i) {
      from[i] = a.modes[factor][i].panel(panel);
      source[i] = a.modes[factor][i].axis;
    }
    Ring<TILE::STAGES> ring;
    for (unsigned tile = blockIdx.x; tile < a.tiles; tile += gridDim.x)
      for (unsigned step = 0; step < steps; ++step, ring.next()) {
        const unsigned mine = axis.first(is_k ? step : tile);
        int at[MODES];
#pragma unroll
        for (int i = 0; i < MODES; ++i) at[i] = from[i] + __shfl_sync(~0u, mine, source[i]);
        s.empty[ring.slot].wait(ring.parity ^ 1);
        if (lane == 0) s.full[ring.slot].expect(STAGE);
        __syncwarp();
        if (lane < PA::COUNT + PB::COUNT)
          copy_box(stages + ring.slot * STAGE + target, &a.maps[factor], at, s.full[ring.slot]);
      }
  }

  // ---- multiplying -------------------------------------------------------------------------------

  // A thread's elements of D: of each 64 x UNIT, pairs in rows 8 apart and columns 8 apart.
  struct Sums {
    float of[TILE::UNITS_M][TILE::UNITS_N][TILE::UNIT / 2];

    template <class Body>
    __device__ void each(const Body &body) {
#pragma unroll
      for (int i = 0; i < TILE::UNITS_M; ++i)
#pragma unroll
        for (int j = 0; j < TILE::UNITS_N; ++j)
#pragma unroll
          for (int e = 0; e < TILE::UNIT / 2; ++e) body(of[i][j][e]);
    }
  };

  static __device__ int warpgroup() { return threadIdx.x / 128; }
  static __device__ void meet() { asm volatile("bar.sync 1, %0;" ::"n"(TILE::MULTIPLIERS) : "memory"); }

  static __device__ void multiply(unsigned stage, Sums &sums) {
#pragma unroll
    for (int k = 0; k < PA::K; k += 32 / PA::SIZE)
#pragma unroll
      for (int i = 0; i < TILE::UNITS_M; ++i)
#pragma unroll
        for (int j = 0; j < TILE::UNITS_N; ++j)
          multiply_tiles<T, !PA::BY_K, !PB::BY_K>(
              sums.of[i][j], PA::descriptor(stage, (warpgroup() * TILE::UNITS_M + i) * 64, k),
              PB::descriptor(stage + PA::TOTAL, j * TILE::UNIT, k));
  }

  static __device__ void release(Shared &s, unsigned slot) {
    if (threadIdx.x % 32 == 0) s.empty[slot].arrive();
  }

  // While the products of one step run, those of the next are begun.
  static __device__ void multiply(Shared &s, unsigned stages, unsigned steps, Ring<TILE::STAGES> &ring, Sums &sums) {
    sums.each([](float &x) { x = 0; });
    unsigned before = 0;
    for (unsigned step = 0; step < steps; ++step, ring.next()) {
      s.full[ring.slot].wait(ring.parity);
      fence_products();
      multiply(stages + ring.slot * STAGE, sums);
      commit_products();
      wait_for_products<1>();
      if (step) release(s, before);
      before = ring.slot;
    }
    wait_for_products<0>();
    sums.each([](float &x) { asm volatile("" : "+f"(x)::"memory"); });  // no use of a sum moves above the wait
    if (steps) release(s, before);
  }

  // ---- the epilogue ------------------------------------------------------------------------------

  // Index i of a tile along some axes: its offsets in D and C; false beyond a tensor's end.
  static __device__ bool place(const Axis *axes, unsigned count, unsigned tile, unsigned i, Offset &d, Offset &c) {
    bool there = true;
#pragma unroll 1
    for (const Axis *axis = axes; axis < axes + count; ++axis) {
      const unsigned index = axis->first(tile) + axis->inside(i);
      there = there && index < axis->extent;
      d += (Offset)index * (Offset)axis->d, c += (Offset)index * (Offset)axis->c;
    }
    return there;
  }

  // The offsets of l are part of the rows'.
  static __device__ void tabulate(const Arguments &a, Shared &s, unsigned tile) {
    const Axis *axes_n = a.axes + a.axes_m, *axes_l = axes_n + a.axes_n;
    for (int i = threadIdx.x; i < TILE::M; i += TILE::MULTIPLIERS) {
      Offset d = 0, c = 0;
      s.is_row[i] = place(a.axes, a.axes_m, tile, i, d, c);
      place(axes_l, a.axes_l, tile, 0, d, c);
      s.row_d[i] = d;
      if constexpr (FC::present) s.row_c[i] = c;
    }
    for (int i = threadIdx.x; i < TILE::N; i += TILE::MULTIPLIERS) {
      Offset d = 0, c = 0;
      s.is_column[i] = place(axes_n, a.axes_n, tile, i, d, c);
      s.column_d[i] = d;
      if constexpr (FC::present) s.column_c[i] = c;
    }
  }

  static __device__ void write(const Arguments &a, const Shared &s, const Sums &sums) {
    const Finish<Target, float, FC> finish(a.alpha, a.beta);
    const int t = threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < TILE::UNITS_M; ++i)
#pragma unroll
      for (int j = 0; j < TILE::UNITS_N; ++j)
#pragma unroll
        for (int e = 0; e < TILE::UNIT / 2; e += WIDTH) {
          const int row = (warpgroup() * TILE::UNITS_M + i) * 64 + t / 32 * 16 + t % 32 / 4 + e / 2 % 2 * 8;
          const int column = j * TILE::UNIT + e / 4 * 8 + t % 4 * 2 + e % 2;
          if (!s.is_row[row] || !s.is_column[column]) continue;
          Vector<TC, WIDTH> addend{};
          if constexpr (FC::present)
            if (finish.adds) addend = read_c(a, s, row, column);
          Vector<Target, WIDTH> done;
#pragma unroll
          for (int w = 0; w < WIDTH; ++w) done.at[w] = finish(sums.of[i][j][e + w], addend.at[w]);
          *(Vector<Target, WIDTH> *)(a.d + s.row_d[row] + s.column_d[column]) = done;
        }
  }

  static __device__ Vector<TC, WIDTH> read_c(const Arguments &a, const Shared &s, int row, int column) {
    const TC *from = a.c + s.row_c[row];
    if constexpr (FC::width == WIDTH) {
      return *(const Vector<TC, WIDTH> *)(from + s.column_c[column]);
    } else {
      Vector<TC, WIDTH> read;
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) read.at[w] = from[s.column_c[column + w]];
      return read;
    }
  }

  static __device__ void compute(const Arguments &a, Shared &s, unsigned stages, unsigned steps) {
    Ring<TILE::STAGES> ring;
    Sums sums;
    for (unsigned tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
      meet();  // the tables of the tile before have been read
      tabulate(a, s, tile);
      multiply(s, stages, steps, ring, sums);
      meet();
      write(a, s, sums);
    }
  }

  // A factor alpha of 0 leaves A and B unread.
  static __device__ void run(const Arguments &a) {
    extern __shared__ __align__(1024) unsigned char stages[];
    __shared__ Shared s;
    if (threadIdx.x == 0) {
      for (int i = 0; i < TILE::STAGES; ++i) s.full[i].init(1), s.empty[i].init(TILE::MULTIPLIERS / 32);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const unsigned steps = is_zero(a.alpha) ? 0 : a.steps;
    if (threadIdx.x >= TILE::MULTIPLIERS) {
      if constexpr (TILE::GROUPS == 2) leave_registers<40>();  // of 168: 2 x 232 + 40 = 3 x 168
      if (threadIdx.x < TILE::MULTIPLIERS + 32) copy(a, s, stages, steps);
    } else {
      if constexpr (TILE::GROUPS == 2) take_registers<232>();
      compute(a, s, shared_address(stages), steps);
    }
  }
};

}  // namespace contract
