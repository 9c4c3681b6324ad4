// D[l,m,n] = alpha sum_k A[l,m,k] B[l,k,n] + beta opC(C[l,m,n]) on Hopper: TMA reads boxes, wgmma multiplies.
//
// A tile is a box of the loops: ``box`` indices of each m loop, M in all, by those of n, N in all, in steps of boxes
// of the k loops, K in all; boxes of l have one index. What lies beyond a tensor's end is read as zeros, and not
// written. One warp copies the boxes of A and B into a ring of stages; warpgroups multiply a stage while the next
// ones arrive. Blocks are persistent: the copies of a tile begin while the tile before is still written. Where tiles
// are few, an item of work is a part of a tile's sum: another kernel adds the parts in order.
//
// A box lies in shared memory as panels: rows of BYTES bytes (32, 64 or 128), swizzled by as much, along the mode that
// is side by side in memory. What this assumes of the hardware, as an H100 confirmed:
//  - a tensor map may list modes in any order of their strides, as long as the first has stride 1;
//  - a map of type TFLOAT32 rounds to nearest on the way to shared memory, ties to even;
//  - panels along m or n are laid out for wgmma as the PTX manual's canonical layouts for its transposed tiles.

namespace contract {

// ---- what a kernel is made for -----------------------------------------------------------------------

// M x N elements of D by GROUPS warpgroups, each with M / GROUPS rows; 128 bytes of k at a step.
template <int M_, int N_, int GROUPS_, int STAGES_>
struct HopperTile {
  static constexpr int M = M_, N = N_, GROUPS = GROUPS_, STAGES = STAGES_;
  static constexpr int MULTIPLIERS = 128 * GROUPS, THREADS = MULTIPLIERS + 128;  // the last warpgroup copies
  static constexpr int UNITS = M / GROUPS / 64;  // of one wgmma, which has all columns
  static_assert(UNITS * GROUPS * 64 == M);
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

// Turns LANES x LANES values of whole words among as many lanes side by side: value p of a lane goes to lane p.
template <int LANES, class Value>
__device__ inline void turn(Value (&values)[LANES], int lane) {
  constexpr int WORDS = sizeof(Value) / 4;
  unsigned words[LANES][WORDS];
  memcpy(words, values, sizeof values);
#pragma unroll
  for (int bit = 1; bit < LANES; bit *= 2)
#pragma unroll
    for (int p = 0; p < LANES; ++p)
#pragma unroll
      for (int w = 0; w < WORDS; ++w)
        if (!(p & bit)) {
          unsigned &low = words[p][w], &high = words[p | bit][w];
          const unsigned got = __shfl_xor_sync(~0u, lane & bit ? low : high, bit);
          low = lane & bit ? got : low, high = lane & bit ? high : got;
        }
  memcpy(values, words, sizeof values);
}

// WIDTH elements of D are written at once, along n.
template <class Target, class Offset, class TILE, class PA, class PB, class FC, int WIDTH>
struct Hopper {
  using T = typename PA::Type;
  using TC = typename FC::Type;
  static constexpr int AXES = 11, MODES = 5, STAGE = PA::TOTAL + PB::TOTAL;
  static constexpr int LANES = most(1, WIDTH / 2);  // that turn pairs into what one of them writes
  static constexpr int TILE_SUMS = TILE::M * TILE::N, ADDERS = 256, ADDED = TILE_SUMS / (ADDERS * WIDTH);

  struct Arguments {
    TensorMap maps[2];  // of A and B
    const TC *c;
    Target *d;
    float *parts;  // sums of the items of work, row by row
    float alpha, beta;
    Divisor tiles;  // an item is a tile, or a part of one: all tiles, then their next parts
    unsigned items, steps, part_steps;
    unsigned tiles_m, tiles_mn, group, group_tiles;  // of one l: tiles along m, all; those of a group along m
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

  // ---- the order of work -----------------------------------------------------------------------

  // Which tile comes as number n: of one l, groups along m go along n, so that blocks share what they read.
  static __device__ unsigned tile_of(const Arguments &a, unsigned number) {
    const unsigned l = number / a.tiles_mn, n = number - l * a.tiles_mn;
    const unsigned first = n / a.group_tiles * a.group, inside = n % a.group_tiles;
    const unsigned rows = a.tiles_m - first < a.group ? a.tiles_m - first : a.group;
    return first + inside % rows + inside / rows * a.tiles_m + l * a.tiles_mn;
  }

  // A tile and its steps of k, begin <= step < end. A factor alpha of 0 leaves A and B unread.
  struct Work {
    unsigned tile, begin, end;

    __device__ Work(const Arguments &a, unsigned item) {
      const unsigned part = a.tiles.quotient(item), steps = is_zero(a.alpha) ? 0 : a.steps;
      tile = tile_of(a, item - part * a.tiles.extent);
      begin = part * a.part_steps;
      end = begin + a.part_steps < steps ? begin + a.part_steps : steps;
    }
  };

  // ---- copying ---------------------------------------------------------------------------------

  // A warp: each lane knows where one axis is, and copies one panel.
  static __device__ void copy(const Arguments &a, Shared &s, unsigned char *stages) {
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
    for (unsigned item = blockIdx.x; item < a.items; item += gridDim.x) {
      const Work work(a, item);
      for (unsigned step = work.begin; step < work.end; ++step, ring.next()) {
        const unsigned mine = axis.first(is_k ? step : work.tile);
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
  }

  // ---- multiplying -------------------------------------------------------------------------------

  // A thread's elements of D: of each 64 x N, pairs in rows 8 apart and columns 8 apart.
  struct Sums {
    float of[TILE::UNITS][TILE::N / 2];

    template <class Body>
    __device__ void each(const Body &body) {
#pragma unroll
      for (int i = 0; i < TILE::UNITS; ++i)
#pragma unroll
        for (int e = 0; e < TILE::N / 2; ++e) body(of[i][e]);
    }
  };

  static __device__ int warpgroup() { return threadIdx.x / 128; }
  static __device__ void meet() { asm volatile("bar.sync 1, %0;" ::"n"(TILE::MULTIPLIERS) : "memory"); }

  static __device__ void multiply(unsigned stage, Sums &sums) {
#pragma unroll
    for (int k = 0; k < PA::K; k += 32 / PA::SIZE)
#pragma unroll
      for (int i = 0; i < TILE::UNITS; ++i)
        multiply_tiles<T, !PA::BY_K, !PB::BY_K>(
            sums.of[i], PA::descriptor(stage, (warpgroup() * TILE::UNITS + i) * 64, k),
            PB::descriptor(stage + PA::TOTAL, 0, k));
  }

  static __device__ void release(Shared &s, unsigned slot) {
    if (threadIdx.x % 32 == 0) s.empty[slot].arrive();
  }

  // While the products of one step run, those of the next are begun.
  static __device__ void multiply(Shared &s, unsigned stages, const Work &work, Ring<TILE::STAGES> &ring, Sums &sums) {
    sums.each([](float &x) { x = 0; });
    unsigned before = 0;
    for (unsigned step = work.begin; step < work.end; ++step, ring.next()) {
      s.full[ring.slot].wait(ring.parity);
      fence_products();
      multiply(stages + ring.slot * STAGE, sums);
      commit_products();
      wait_for_products<1>();
      if (step != work.begin) release(s, before);
      before = ring.slot;
    }
    wait_for_products<0>();
    sums.each([](float &x) { asm volatile("" : "+f"(x)::"memory"); });  // no use of a sum moves above the wait
    if (work.begin < work.end) release(s, before);
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

  // Body(row, sums): of the pairs that a thread has in the row, number i is in columns 8 i and on.
  template <class Body>
  static __device__ void each_row(Sums &sums, const Body &body) {
    const int t = threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < TILE::UNITS; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        body((warpgroup() * TILE::UNITS + i) * 64 + t / 32 * 16 + t % 32 / 4 + half * 8, sums.of[i] + half * 2);
  }

  static __device__ void write(const Arguments &a, const Shared &s, Sums &sums) {
    const Finish<Target, float, FC> finish(a.alpha, a.beta);
    const int lane = threadIdx.x % 4, turned = lane % LANES * 8 + lane / LANES * LANES * 2;
    each_row(sums, [&](int row, const float *sum) {
      Target *to = a.d + s.row_d[row];
      const bool there = s.is_row[row];
#pragma unroll
      for (int i = 0; i < TILE::N / 8; i += LANES) {
        Vector<Target, 2> pairs[LANES];
#pragma unroll
        for (int p = 0; p < LANES; ++p)
          pairs[p] = finished(a, s, finish, there, row, (i + p) * 8 + lane * 2, sum + (i + p) * 4);
        turn(pairs, lane);
        if (there) put(to, s, i * 8 + turned, pairs);
      }
    });
  }

  // A run of D, or a pair that does not lie side by side.
  static __device__ void put(Target *row, const Shared &s, int column, const Vector<Target, 2> (&pairs)[LANES]) {
    Vector<Target, WIDTH> run;
#pragma unroll
    for (int at = 0; at < 2 * LANES; at += WIDTH) {
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) run.at[w] = pairs[(at + w) / 2].at[(at + w) % 2];
      if (s.is_column[column + at]) *(Vector<Target, WIDTH> *)(row + s.column_d[column + at]) = run;
    }
  }

  template <class Finishing>
  static __device__ Vector<Target, 2> finished(const Arguments &a, const Shared &s, const Finishing &finish, bool there,
                                               int row, int column, const float *sum) {
    if constexpr (!FC::present) return {finish(sum[0]), finish(sum[1])};
    else {
      Vector<TC, 2> addend{};
      if (finish.adds && there) addend = read_c(s, a.c + s.row_c[row], column);
      return {finish(sum[0], addend.at[0]), finish(sum[1], addend.at[1])};
    }
  }

  static __device__ Vector<TC, 2> read_c(const Shared &s, const TC *row, int column) {
    Vector<TC, 2> read{};
    if constexpr (FC::width == 2) {
      if (s.is_column[column]) read = *(const Vector<TC, 2> *)(row + s.column_c[column]);
    } else {
#pragma unroll
      for (int w = 0; w < 2; ++w)
        if (s.is_column[column + w]) read.at[w] = row[s.column_c[column + w]];
    }
    return read;
  }

  // ---- parts -----------------------------------------------------------------------------------

  static __device__ void keep(const Arguments &a, unsigned item, Sums &sums) {
    float *kept = a.parts + (long long)item * TILE_SUMS;
    const int lane = threadIdx.x % 4;
    each_row(sums, [&](int row, const float *sum) {
#pragma unroll
      for (int i = 0; i < TILE::N / 8; ++i)
        *(Vector<float, 2> *)(kept + row * TILE::N + i * 8 + lane * 2) = {sum[i * 4], sum[i * 4 + 1]};
    });
  }

  // Each thread has a run of D. D = alpha (the parts in order) + beta op(C).
  static __device__ void add_parts(const Arguments &a) {
    const unsigned number = blockIdx.x / ADDED, tile = tile_of(a, number);
    const int at = (blockIdx.x % ADDED * ADDERS + threadIdx.x) * WIDTH;
    const Axis *axes_n = a.axes + a.axes_m;
    Offset d = 0, c = 0;
    if (!place(a.axes, a.axes_m, tile, at / TILE::N, d, c)) return;
    if (!place(axes_n, a.axes_n, tile, at % TILE::N, d, c)) return;
    place(axes_n + a.axes_n, a.axes_l, tile, 0, d, c);
    float sum[WIDTH] = {};
    for (unsigned item = number; item < (is_zero(a.alpha) ? 0 : a.items); item += a.tiles.extent) {
      const Vector<float, WIDTH> part = *(const Vector<float, WIDTH> *)(a.parts + (long long)item * TILE_SUMS + at);
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) sum[w] += part.at[w];
    }
    const Finish<Target, float, FC> finish(a.alpha, a.beta);
    Vector<Target, WIDTH> run;
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      TC addend{};
      if constexpr (FC::present)
        if (finish.adds) addend = a.c[c + w * (Offset)axes_n->c];
      run.at[w] = finish(sum[w], addend);
    }
    *(Vector<Target, WIDTH> *)(a.d + d) = run;
  }

  // ---- a block ---------------------------------------------------------------------------------

  template <bool IN_PARTS>
  static __device__ void compute(const Arguments &a, Shared &s, unsigned stages) {
    Ring<TILE::STAGES> ring;
    Sums sums;
    for (unsigned item = blockIdx.x; item < a.items; item += gridDim.x) {
      const Work work(a, item);
      if constexpr (!IN_PARTS) {
        meet();  // the tables of the tile before have been read
        tabulate(a, s, work.tile);
      }
      multiply(s, stages, work, ring, sums);
      if constexpr (IN_PARTS) {
        keep(a, item, sums);
      } else {
        meet();
        write(a, s, sums);
      }
    }
  }

  static __device__ void multiply(const Arguments &a) { run<false>(a); }
  static __device__ void multiply_parts(const Arguments &a) { run<true>(a); }

 private:
  template <bool IN_PARTS>
  static __device__ void run(const Arguments &a) {
    extern __shared__ __align__(1024) unsigned char stages[];
    __shared__ Shared s;
    if (threadIdx.x == 0) {
      for (int i = 0; i < TILE::STAGES; ++i) s.full[i].init(1), s.empty[i].init(TILE::MULTIPLIERS / 32);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= TILE::MULTIPLIERS) {
      if constexpr (TILE::GROUPS == 2) leave_registers<40>();  // of 168: 2 x 232 + 40 = 3 x 168
      if (threadIdx.x < TILE::MULTIPLIERS + 32) copy(a, s, stages);
    } else {
      if constexpr (TILE::GROUPS == 2) take_registers<232>();
      compute<IN_PARTS>(a, s, shared_address(stages));
    }
  }
};

}  // namespace contract
