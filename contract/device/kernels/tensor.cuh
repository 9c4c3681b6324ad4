// The main loop of a product by the tensor cores: mma.sync on operands that cp.async brings as they are.
//
// Operands stay in shared memory in their own type and direction, several steps of K k's ahead. What a fragment needs,
// the operator, the conversion, the parts of a split type, is done when a warp reads it.

namespace contract {

// ---- units: sums of a 16 x 8 tile += A B over K k's ------------------------------------------------
//
// With g = lane / 4 and t = lane % 4 a thread holds rows g and g + 8 of A and column g of B, PER k's of each, and the
// sums of these rows in columns 2 t and 2 t + 1. Of the k's NEAR lie side by side, from NEAR t on, and the next NEAR
// 4 NEAR further. The instructions number the k's in an order of their own; a sum does not depend on it as long as A
// and B agree. ``Words`` are the k's of one row or column.

__device__ inline unsigned bits_of(Half lower, Half upper) { return lower.bits | (unsigned)upper.bits << 16; }
__device__ inline unsigned bits_of(BFloat16 lower, BFloat16 upper) { return lower.bits | (unsigned)upper.bits << 16; }

// ``split`` takes elements apart as they come: what is not finite, or is rounded to infinity, gives sums that are not
// finite. Units that are GUARDED have a ``guarded`` split besides, for tiles with such sums. It says whether all it saw
// is finite; what is not is its first part alone: times a smaller part that is zero it would be NaN, so that
// ``bounded`` takes its place there.

__device__ inline bool is_finite(float x) { return fabsf(x) < __uint_as_float(0x7f800000); }

// float32 as PARTS of tf32: 11 bits each. What is beyond the largest tf32 is cut by the guarded split. The units cut
// what a part has beyond its 11 bits.
template <int PARTS_>
struct Tf32 {
  using Sum = float;
  using Exact = void;  // the type of elements that are fragments as they are
  using Words = Vector<unsigned, 2>;
  static constexpr int K = 8, PER = 2, NEAR = 2, PARTS = PARTS_;
  static constexpr bool GUARDED = true;

  static __device__ unsigned nearest(float x) {
    unsigned y;
#if __CUDA_ARCH__ >= 900
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
#else
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
#endif
    return y;
  }

  static __device__ void split(const float (&x)[PER], Words (&parts)[PARTS]) {
#pragma unroll
    for (int e = 0; e < PER; ++e) {
      float rest = x[e];
#pragma unroll
      for (int p = 0; p < PARTS; ++p) {
        parts[p].at[e] = nearest(rest);
        rest -= __uint_as_float(parts[p].at[e]);
      }
    }
  }

  // Half of the last bit added; the sum with 0 makes every NaN a quiet one, whose first bits say so.
  static __device__ unsigned rounded(float x) {
    const unsigned bits = __float_as_uint(x + 0.0f);
    return fabsf(x) < __uint_as_float(0x7f7ff000) ? bits + 0x1000 : bits;
  }

  static __device__ bool guarded(const float (&x)[PER], Words (&parts)[PARTS]) {
    bool finite = true;
#pragma unroll
    for (int e = 0; e < PER; ++e) {
      float rest = x[e];
      parts[0].at[e] = rounded(rest);
#pragma unroll
      for (int p = 1; p < PARTS; ++p) {
        parts[p - 1].at[e] &= 0xffffe000;
        rest = is_finite(x[e]) ? rest - __uint_as_float(parts[p - 1].at[e]) : 0.0f;
        parts[p].at[e] = rounded(rest);
        finite = finite && is_finite(x[e]);
      }
    }
    return finite;
  }

  static __device__ Words bounded(const Words &x) {
    Words y;
#pragma unroll
    for (int e = 0; e < PER; ++e) y.at[e] = (x.at[e] & 0x7fffffff) < 0x7f800000 ? x.at[e] : 0;
    return y;
  }

  static __device__ void multiply(float (&d)[4], const Words &a, const Words &below, const Words &b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.at[0]), "r"(below.at[0]), "r"(a.at[1]), "r"(below.at[1]), "r"(b.at[0]), "r"(b.at[1]));
  }

  static __device__ Words negative(const Words &x) { return {x.at[0] ^ 0x80000000u, x.at[1] ^ 0x80000000u}; }
};

// float16 as it is.
struct F16 {
  using Sum = float;
  using Exact = Half;
  using Words = Vector<unsigned, 2>;
  static constexpr int K = 16, PER = 4, NEAR = 4, PARTS = 1;
  static constexpr bool GUARDED = false;

  static __device__ void split(const float (&x)[PER], Words (&parts)[PARTS]) {
#pragma unroll
    for (int w = 0; w < 2; ++w) parts[0].at[w] = bits_of(convert<Half>(x[2 * w]), convert<Half>(x[2 * w + 1]));
  }

  static __device__ void multiply(float (&d)[4], const Words &a, const Words &below, const Words &b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.at[0]), "r"(below.at[0]), "r"(a.at[1]), "r"(below.at[1]), "r"(b.at[0]), "r"(b.at[1]));
  }
};

// float32 as PARTS of bfloat16, 8 bits each, or bfloat16 as it is. The first part of what is beyond the largest
// bfloat16 is cut by the guarded split.
template <int PARTS_>
struct Bf16 {
  using Sum = float;
  using Exact = BFloat16;
  using Words = Vector<unsigned, 2>;
  static constexpr int K = 16, PER = 4, NEAR = 4, PARTS = PARTS_;
  static constexpr bool GUARDED = true;

  static __device__ void split(const float (&x)[PER], Words (&parts)[PARTS]) {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      float lower = x[2 * w], upper = x[2 * w + 1];
#pragma unroll
      for (int p = 0; p < PARTS; ++p) {
        unsigned &both = parts[p].at[w];
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(upper), "f"(lower));
        lower -= __uint_as_float(both << 16);
        upper -= __uint_as_float(both & 0xffff0000);
      }
    }
  }

  static __device__ BFloat16 part(float &rest) {
    BFloat16 y = convert<BFloat16>(rest);
    if (fabsf(rest) >= __uint_as_float(0x7f7f8000) && is_finite(rest)) y.bits = __float_as_uint(rest) >> 16;
    rest = is_finite(rest) ? rest - widened(y) : 0.0f;
    return y;
  }

  static __device__ bool guarded(const float (&x)[PER], Words (&parts)[PARTS]) {
    bool finite = true;
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      float lower = x[2 * w], upper = x[2 * w + 1];
      finite = finite && is_finite(lower) && is_finite(upper);
#pragma unroll
      for (int p = 0; p < PARTS; ++p) {
        const BFloat16 low = part(lower);
        parts[p].at[w] = bits_of(low, part(upper));
      }
    }
    return finite;
  }

  static __device__ Words bounded(const Words &x) {
    Words y;
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const unsigned lower = x.at[w] & 0xffff, upper = x.at[w] & 0xffff0000;
      y.at[w] = ((lower & 0x7fff) < 0x7f80 ? lower : 0) | ((upper & 0x7fffffff) < 0x7f800000 ? upper : 0);
    }
    return y;
  }

  static __device__ void multiply(float (&d)[4], const Words &a, const Words &below, const Words &b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.at[0]), "r"(below.at[0]), "r"(a.at[1]), "r"(below.at[1]), "r"(b.at[0]), "r"(b.at[1]));
  }

  static __device__ Words negative(const Words &x) { return {x.at[0] ^ 0x80008000u, x.at[1] ^ 0x80008000u}; }
};

// 8-bit integers, signed or not, summed in 32 bits.
template <class T>
struct Int8 {
  using Sum = int;
  using Exact = T;
  using Words = Vector<unsigned, 2>;
  static constexpr int K = 32, PER = 8, NEAR = 8, PARTS = 1;
  static constexpr bool GUARDED = false;

  template <class Integer>
  static __device__ void split(const Integer (&x)[PER], Words (&parts)[PARTS]) {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      parts[0].at[w] = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) parts[0].at[w] |= (unsigned)(unsigned char)x[4 * w + e] << 8 * e;
    }
  }

  static __device__ void multiply(int (&d)[4], const Words &a, const Words &below, const Words &b) {
    if constexpr (is_same<T, signed char>)
      asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
          : "r"(a.at[0]), "r"(below.at[0]), "r"(a.at[1]), "r"(below.at[1]), "r"(b.at[0]), "r"(b.at[1]));
    else
      asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
          : "r"(a.at[0]), "r"(below.at[0]), "r"(a.at[1]), "r"(below.at[1]), "r"(b.at[0]), "r"(b.at[1]));
  }
};

// float64: K of 8 where the card has the instruction (9.0 and later), else of 4.
template <int K_>
struct F64 {
  using Sum = double;
  using Exact = double;
  using Words = Vector<double, K_ / 4>;
  static constexpr int K = K_, PER = K / 4, NEAR = 1, PARTS = 1;
  static constexpr bool GUARDED = false;

  static __device__ void split(const double (&x)[PER], Words (&parts)[PARTS]) {
#pragma unroll
    for (int e = 0; e < PER; ++e) parts[0].at[e] = x[e];
  }

  static __device__ void multiply(double (&d)[4], const Words &a, const Words &below, const Words &b) {
    if constexpr (K == 8) {
      asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
          : "d"(a.at[0]), "d"(below.at[0]), "d"(a.at[1]), "d"(below.at[1]), "d"(b.at[0]), "d"(b.at[1]));
    } else {
      eight(d[0], d[1], a, b);
      eight(d[2], d[3], below, b);
    }
  }

  static __device__ void eight(double &first, double &second, const Words &a, const Words &b) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(first), "+d"(second)
        : "d"(a.at[0]), "d"(b.at[0]));
  }

  static __device__ Words negative(const Words &x) {
    Words y;
#pragma unroll
    for (int e = 0; e < PER; ++e) y.at[e] = -x.at[e];
    return y;
  }
};

// ---- a tile ----------------------------------------------------------------------------------------

// L x M x N elements of D; WARPS_M x WARPS_N warps for each of the L; STAGES steps of K k's in shared memory. A thread
// has RUN rows that lie side by side in D: they are APART rows of the tile from each other. Of the rows between two of
// them LANES are in lanes beside each other.
template <int L_, int M_, int N_, int K_, int WARPS_M_, int WARPS_N_, int STAGES_, int RUN_ = 1, int APART_ = 1,
          int LANES_ = 1>
struct TensorTile {
  static constexpr int L = L_, M = M_, N = N_, K = K_, WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, STAGES = STAGES_;
  static constexpr int RUN = RUN_, APART = APART_, LANES = LANES_;
  static constexpr int ROWS = L * M, COLUMNS = L * N, WARPS = L * WARPS_M * WARPS_N, THREADS = 32 * WARPS;
  static constexpr int WARP_M = M / WARPS_M, WARP_N = N / WARPS_N;
  static_assert(WARP_M % 16 == 0 && WARP_N % 8 == 0 && STAGES >= 2);
};

// Which rows of a tile (or columns: "rows" of B) WARPS warps have. Fragment f of a warp is eight rows, one for each
// g = lane / 4; RUN fragments in a row have rows APART from each other. All numbers are powers of 2, so that a row is
// its bits in another order: those of g, f and the warp can be placed one by one.
template <int SIDE_, int WARPS, int RUN_, int APART_, int LANES>
struct Order {
  static constexpr int SIDE = SIDE_, RUN = RUN_, APART = APART_, FRAGMENTS = SIDE / WARPS / 8;
  static constexpr int BLOCKS = 8 / LANES, TURNS = APART / LANES;
  static_assert(FRAGMENTS % RUN == 0 && APART % LANES == 0 && SIDE % (BLOCKS * RUN * APART) == 0);

  // The row of lanes g in a fragment, numbered through all warps.
  static __host__ __device__ constexpr int row(int fragment, int g) {
    const int run = fragment / RUN, turn = run % TURNS;
    return ((run / TURNS * BLOCKS + g / LANES) * RUN + fragment % RUN) * APART + turn * LANES + g % LANES;
  }
  // Where a row is when fragments lie one after the other.
  static __host__ __device__ constexpr int place(int row) {
    const int block = row / APART / RUN, turn = row % APART / LANES;
    const int run = block / BLOCKS * TURNS + turn;
    return (run * RUN + row / APART % RUN) * 8 + block % BLOCKS * LANES + row % LANES;
  }
};

// ---- a factor in shared memory -----------------------------------------------------------------------

__device__ inline unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

// One step of a factor: lines along k, of rows in the order of fragments, or lines along the tile. The 16-byte chunks
// of a line change places so that the lanes of one access, eight rows by four times NEAR k's, meet every bank once.
template <class F, int ROWS, int K, int NEAR>
struct Staged {
  using T = typename F::Type;
  static constexpr bool BY_K = F::along == Along::K;
  static constexpr int SIZE = sizeof(T), LINE = (BY_K ? K : ROWS) * SIZE, BYTES = ROWS * K * SIZE;
  static constexpr int CHUNKS = least(8, LINE / 16);
  static constexpr int BESIDE = most(1, 128 / LINE);           // lines in all 32 banks
  static constexpr int TAKEN = most(1, 4 * NEAR * SIZE / 16);  // chunks of a row that one access reads
  static_assert(LINE % 16 == 0);

  static __host__ __device__ constexpr int chunk(int line) {
    if (!BY_K) return (line / NEAR % 4 * 2 + line % 2) % CHUNKS;
    if (TAKEN >= 8) return line % 2 % CHUNKS;
    return line / BESIDE * TAKEN % CHUNKS;
  }
  static __host__ __device__ constexpr int at(int row, int k) {
    const int line = BY_K ? row : k, byte = (BY_K ? k : row) * SIZE;
    return line * LINE + (byte ^ chunk(line) * 16);
  }
  // at(row + more_rows, k + more_k) = (at(row, k) ^ near) + far, where these have bits that row and k have not.
  static __host__ __device__ constexpr int near(int more_rows, int more_k) { return at(more_rows, more_k) % 128; }
  static __host__ __device__ constexpr int far(int more_rows, int more_k) {
    return at(more_rows, more_k) - near(more_rows, more_k);
  }
};

// Copies steps of a factor from memory, WIDTH elements at once: without registers where an access has 4 bytes or more.
template <class F, class Place, class Order, class Offset, int ROWS, int K, int THREADS>
struct Copier : Accesses<F, ROWS, K, THREADS> {
  using Access = Accesses<F, ROWS, K, THREADS>;
  using T = typename F::Type;
  using Raw = Vector<T, F::width>;
  using Access::ITEMS_K, Access::ITEMS_ROW, Access::BY_K, Access::UNIT_K, Access::UNIT_ROW;
  static constexpr int BYTES = sizeof(Raw);
  static constexpr bool DIRECT = BYTES >= 4;

  const T *from[ITEMS_ROW];
  bool there[ITEMS_ROW];
  int to;
  Raw raw[DIRECT ? 1 : ITEMS_ROW][DIRECT ? 1 : ITEMS_K];

  // ``rows`` has the offsets of all rows of the tile; those that are not ``valid`` are zeros that nobody reads: all
  // blocks would ask for the same lines of L2.
  template <class Valid>
  __device__ Copier(const T *origin, const Offset *rows, const Valid &valid)
      : to(Place::at(line(this->first_row), this->first_k)) {
#pragma unroll
    for (int i = 0; i < ITEMS_ROW; ++i) {
      there[i] = this->takes_part && valid(this->row(i));
      from[i] = there[i] ? origin + rows[this->row(i)] : origin;
    }
  }

  // Begins to copy a step with ``left`` k's left; zeros beyond them.
  template <class Index>
  __device__ void fetch(unsigned char *stage, const Offset *offsets, Index left, long long shift = 0) {
    if (!this->takes_part) return;
    const unsigned target = shared_address(stage);
#pragma unroll
    for (int j = 0; j < ITEMS_K; ++j) {
      const bool inside = this->k(j) < left;
      const Offset offset = offsets[this->k(j)];
#pragma unroll
      for (int i = 0; i < ITEMS_ROW; ++i) {
        const T *source = from[i] + offset + shift;
        if constexpr (DIRECT) {
          copy_ahead<BYTES>(target + item(i, j), source, inside && there[i]);
        } else {
          raw[i][j] = Raw{};
          if (inside && there[i]) raw[i][j] = *(const Raw *)source;
        }
      }
    }
  }

  // What went through registers.
  __device__ void put(unsigned char *stage) const {
    if constexpr (!DIRECT) {
      if (!this->takes_part) return;
#pragma unroll
      for (int j = 0; j < ITEMS_K; ++j)
#pragma unroll
        for (int i = 0; i < ITEMS_ROW; ++i) *(Raw *)(stage + item(i, j)) = raw[i][j];
    }
  }

 private:
  static __host__ __device__ constexpr int line(int row) {
    return BY_K ? row / Order::SIDE * Order::SIDE + Order::place(row % Order::SIDE) : row;
  }
  __device__ int item(int i, int j) const {
    const int more_lines = line(i * Access::DOWN * UNIT_ROW), more_k = j * Access::ACROSS * UNIT_K;
    return (to ^ Place::near(more_lines, more_k)) + Place::far(more_lines, more_k);
  }
};

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int YOUNGEST>
__device__ inline void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(YOUNGEST) : "memory"); }

// Fragments of a factor: planes of a complex number, parts of a split one. ROWS_FIRST: registers of ldmatrix are
// those of two fragments in turn, as the instruction wants them of A.
template <class F, class Unit, class Compute, class Place, class Order, int NEAR, bool ROWS_FIRST>
struct Reader {
  using T = typename F::Type;
  using Words = typename Unit::Words;
  static constexpr int PER = Unit::PER, PARTS = Unit::PARTS, PLANES = is_complex<T> ? 2 : 1, SIZE = sizeof(T);
  static constexpr bool BY_K = Place::BY_K;
  static constexpr bool EXACT = is_same<T, typename Unit::Exact> && F::op == Operator::IDENTITY;
  // ldmatrix reads eight rows of 16 bytes, or turns eight k's of 16-bit elements.
  static constexpr bool ROWS_OF_16 = BY_K && NEAR * SIZE == 4 && (EXACT || is_same<T, float>);
  static constexpr bool MATRICES = ROWS_OF_16 || (EXACT && !BY_K && SIZE == 2 && Order::row(0, 7) == 7);
  static constexpr int BESIDE = BY_K || Order::APART > 1 ? 1 : least(Order::RUN, 16 / SIZE);  // rows in one access
  static constexpr int LEAST = Order::FRAGMENTS % 2 ? 1 : 2, AT_ONCE = MATRICES ? LEAST : most(LEAST, BESIDE);
  using Real = typename RealOf<Compute>::type;

  struct Fragments {
    Words at[PLANES][PARTS];
    bool finite = true;
  };

  int first;  // of what the thread reads

  // Fragments from the first one of a warp on, of number ``l`` of the tile.
  __device__ Reader(int l, int warp) {
    const int lane = threadIdx.x % 32, fragment = warp * Order::FRAGMENTS;
    if constexpr (MATRICES) {
      const int matrix = lane / 8, upper = ROWS_FIRST ? matrix / 2 : matrix % 2;
      const int mine = fragment + (ROWS_FIRST ? matrix % 2 : matrix / 2) % LEAST;
      const int k = upper * 4 * NEAR;
      if constexpr (BY_K) first = Place::at(l * Order::SIDE + mine * 8 + lane % 8, k);
      else first = Place::at(l * Order::SIDE + Order::row(mine, 0), k + lane % 8);
    } else {
      const int g = lane / 4, row = BY_K ? fragment * 8 + g : Order::row(fragment, g);
      first = Place::at(l * Order::SIDE + row, lane % 4 * NEAR);
    }
    first = kept(first);
  }

  // AT_ONCE fragments from ``fragment`` on, k's from ``k`` on, of which ``left`` are in the tensor.
  template <bool GUARDED>
  __device__ void read(const unsigned char *stage, int fragment, int k, int left, Fragments *f) const {
    if constexpr (MATRICES) {
      matrices<GUARDED>(stage, fragment, k, left, f);
    } else {
#pragma unroll
      for (int c = 0; c < AT_ONCE; c += BESIDE) {
        if constexpr (EXACT && BESIDE % 2 == 0 && SIZE == 2) {
          interleaved(stage, fragment + c, k, f + c);
        } else if constexpr (EXACT && SIZE == 2) {
          paired(stage, fragment + c, k, f[c]);
        } else {
          T x[BESIDE][PER];
          raw(stage, fragment + c, k, x);
#pragma unroll
          for (int b = 0; b < BESIDE; ++b) split<GUARDED>(x[b], k, left, f[c + b]);
        }
      }
    }
  }

 private:
  // k number ``e`` of a thread, from its first one on.
  static __device__ constexpr int depth(int e) { return e / NEAR * 4 * NEAR + e % NEAR; }

  // The k is not always known from the start; what is known is one number.
  __device__ const unsigned char *at(const unsigned char *stage, int fragment, int k, int depth = 0) const {
    const int rows = BY_K ? fragment * 8 : Order::row(fragment, 0);
    const int near = first ^ Place::near(0, k) ^ Place::near(rows, depth);
    return stage + Place::far(0, k) + (near + Place::far(rows, depth));
  }

  __device__ void raw(const unsigned char *stage, int fragment, int k, T (&x)[BESIDE][PER]) const {
    constexpr int WIDTH = BY_K ? least(NEAR, 16 / SIZE) : 1;
#pragma unroll
    for (int e = 0; e < PER; e += WIDTH) {
      const auto v = *(const Vector<T, BESIDE * WIDTH> *)at(stage, fragment, k, depth(e));
#pragma unroll
      for (int i = 0; i < BESIDE * WIDTH; ++i) x[i / WIDTH][e + i % WIDTH] = v.at[i];
    }
  }

  // The k's of a row, two in a word.
  __device__ void paired(const unsigned char *stage, int fragment, int k, Fragments &f) const {
    T x[1][PER];
    raw(stage, fragment, k, x);
#pragma unroll
    for (int w = 0; w < PER / 2; ++w) f.at[0][0].at[w] = bits_of(x[0][2 * w], x[0][2 * w + 1]);
  }

  // The k's of two rows side by side, out of words that hold both.
  __device__ void interleaved(const unsigned char *stage, int fragment, int k, Fragments *f) const {
    using Both = Vector<unsigned, BESIDE / 2>;
#pragma unroll
    for (int w = 0; w < PER / 2; ++w) {
      const Both even = *(const Both *)at(stage, fragment, k, depth(2 * w));
      const Both odd = *(const Both *)at(stage, fragment, k, depth(2 * w + 1));
#pragma unroll
      for (int b = 0; b < BESIDE / 2; ++b) {
        f[2 * b].at[0][0].at[w] = __byte_perm(even.at[b], odd.at[b], 0x5410);
        f[2 * b + 1].at[0][0].at[w] = __byte_perm(even.at[b], odd.at[b], 0x7632);
      }
    }
  }

  template <bool GUARDED>
  static __device__ void split(const T (&x)[PER], int k, int left, Fragments &f) {
    Real planes[PLANES][PER];
#pragma unroll
    for (int e = 0; e < PER; ++e) {
      const auto value = apply<F::op>(convert<typename WithReal<T, Real>::type>(x[e]));
      const bool inside = F::op == Operator::IDENTITY || k + (int)threadIdx.x % 4 * NEAR + depth(e) < left;
      if constexpr (PLANES == 2) {
        planes[0][e] = inside ? value.re : 0;
        planes[1][e] = inside ? value.im : 0;
      } else {
        planes[0][e] = inside ? value : zero<Real>();
      }
    }
#pragma unroll
    for (int p = 0; p < PLANES; ++p) {
      if constexpr (GUARDED) f.finite = Unit::guarded(planes[p], f.at[p]) && f.finite;
      else Unit::split(planes[p], f.at[p]);
    }
  }

  template <bool GUARDED>
  __device__ void matrices(const unsigned char *stage, int fragment, int k, int left, Fragments *f) const {
    const unsigned from = shared_address(at(stage, fragment, k));
    unsigned x[AT_ONCE][2];
    if constexpr (AT_ONCE == 1) two(from, x[0][0], x[0][1]);
    else if constexpr (ROWS_FIRST) four(from, x[0][0], x[1][0], x[0][1], x[1][1]);
    else four(from, x[0][0], x[0][1], x[1][0], x[1][1]);
#pragma unroll
    for (int c = 0; c < AT_ONCE; ++c) {
      if constexpr (EXACT) {
        f[c].at[0][0] = {x[c][0], x[c][1]};
      } else {
        const T values[PER] = {__uint_as_float(x[c][0]), __uint_as_float(x[c][1])};
        split<GUARDED>(values, k, left, f[c]);
      }
    }
  }

  static __device__ void four(unsigned from, unsigned &w, unsigned &x, unsigned &y, unsigned &z) {
    if constexpr (BY_K)
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(w), "=r"(x), "=r"(y), "=r"(z)
                   : "r"(from)
                   : "memory");
    else
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(w), "=r"(x), "=r"(y), "=r"(z)
                   : "r"(from)
                   : "memory");
  }

  static __device__ void two(unsigned from, unsigned &x, unsigned &y) {
    if constexpr (BY_K)
      asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                   : "=r"(x), "=r"(y)
                   : "r"(from)
                   : "memory");
    else
      asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                   : "=r"(x), "=r"(y)
                   : "r"(from)
                   : "memory");
  }
};

// ---- the main loop -----------------------------------------------------------------------------------

template <class TILE, class UNIT, class COMPUTE, class OFFSET, class FA, class FB>
struct TensorCores {
  using Tile = TILE;
  using Unit = UNIT;
  using Compute = COMPUTE;
  using Offset = OFFSET;
  using TA = typename FA::Type;
  using TB = typename FB::Type;
  using Index = typename IndexOf<Offset>::type;
  using Sum = typename Summed<Compute>::type;
  using Partial = typename Unit::Sum;
  static constexpr int PLANES = is_complex<Compute> ? 2 : 1, OWNERS = Tile::THREADS, APART = Tile::APART;
  static constexpr int TM = Tile::WARP_M / 16, TN = Tile::WARP_N / 8;
  static_assert(Tile::K % Unit::K == 0);
  // Products of float64 take so long that other warps hide the reads between them; the registers to read ahead are
  // those of a second block.
  static constexpr int UNROLLED = sizeof(Partial) == 8 ? 1 : Tile::K / Unit::K;

  // Where the k's of a row have 32 bytes, ldmatrix can read them: in its order.
  static constexpr bool BY_MATRICES = sizeof(TA) == sizeof(TB) && Unit::PER * sizeof(TA) == 8 && sizeof(TA) <= 4;
  static constexpr int NEAR = BY_MATRICES ? 4 / (int)sizeof(TA) : Unit::NEAR;
  // Columns beside each other are read at once where their elements become several parts, in other registers.
  static constexpr bool COLUMNS_BESIDE = FB::along == Along::TILE && sizeof(TB) >= 4 && Unit::PARTS > 1;
  static constexpr int COLUMN_RUN = COLUMNS_BESIDE ? least(TN, most(1, 16 / (int)sizeof(TB))) : 1;
  using Rows = Order<Tile::M, Tile::WARPS_M, Tile::RUN, Tile::APART, Tile::LANES>;
  using Columns = Order<Tile::N, Tile::WARPS_N, COLUMN_RUN, 1, 1>;
  using PlaceA = Staged<FA, Tile::ROWS, Tile::K, NEAR>;
  using PlaceB = Staged<FB, Tile::COLUMNS, Tile::K, NEAR>;
  using CopyA = Copier<FA, PlaceA, Rows, Offset, Tile::ROWS, Tile::K, Tile::THREADS>;
  using CopyB = Copier<FB, PlaceB, Columns, Offset, Tile::COLUMNS, Tile::K, Tile::THREADS>;
  using ReadA = Reader<FA, Unit, Compute, PlaceA, Rows, NEAR, true>;
  using ReadB = Reader<FB, Unit, Compute, PlaceB, Columns, NEAR, false>;
  using RowsOfA = typename ReadA::Fragments[ReadA::AT_ONCE];
  using ColumnsOfB = typename ReadB::Fragments[TN];

  // Offsets of the k's of two times CHUNK steps: while one half is read the other is made.
  static constexpr int CHUNK = most(Tile::STAGES, Tile::THREADS / Tile::K), TABLES = 2 * CHUNK;

  struct Stage {
    alignas(128) unsigned char a[PlaceA::BYTES], b[PlaceB::BYTES];
  };
  struct Storage {
    Stage stages[Tile::STAGES];
    __device__ Storage() {}
  };

  struct Given {};  // arguments beside the factors

  Partial sum[PLANES][TM][TN][4];

  __device__ TensorCores() {
    each([](Partial &x, int) { x = 0; });
  }

  template <class Body>
  __device__ void each(const Body &body) {
#pragma unroll
    for (int p = 0; p < PLANES; ++p)
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) body(sum[p][i][j][e], ((p * TM + i) * TN + j) * 4 + e);
  }

  // Which part of the tile a thread has.
  struct Part {
    unsigned thread = threadIdx.x;
    int warp = thread / 32, lane = thread % 32;
    int l = warp / (Tile::WARPS_M * Tile::WARPS_N);
    int m = warp % Tile::WARPS_M, n = warp / Tile::WARPS_M % Tile::WARPS_N;

    // The row of a fragment, and the column of sums j, e.
    __device__ int row(int fragment) const {
      return l * Tile::M + Rows::row(m * Rows::FRAGMENTS, lane / 4) + Rows::row(fragment, 0);
    }
    __device__ int column(int j, int e) const {
      return l * Tile::N + Columns::row(n * Columns::FRAGMENTS, lane % 4 * 2) + Columns::row(j, e % 2);
    }
  };

  // body(row, column, sums) for WIDTH sums side by side in D; ``row_at`` and ``column_at`` say what is known of the
  // first row and of the column.
  template <int WIDTH, class RowAt, class ColumnAt, class Body>
  __device__ void each_run(const RowAt &row_at, const ColumnAt &column_at, const Body &body) const {
    static_assert(WIDTH == Tile::RUN);
    constexpr int RUNS = Rows::FRAGMENTS / WIDTH;
    const Part part{kept(threadIdx.x)};
    decltype(row_at(0)) rows[RUNS];
#pragma unroll
    for (int u = 0; u < RUNS; ++u) rows[u] = row_at(part.row(u * WIDTH));
#pragma unroll
    for (int j = 0; j < TN; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const auto there = column_at(part.column(j, e));
#pragma unroll
        for (int u = 0; u < RUNS; ++u) {
          Vector<Sum, WIDTH> run;
#pragma unroll
          for (int w = 0; w < WIDTH; ++w) run.at[w] = total((u * WIDTH + w) / 2, j, (u * WIDTH + w) % 2 * 2 + e);
          body(rows[u], there, run);
        }
      }
  }

  // Sums that are not finite may be the split's fault, where elements are converted: they are formed again.
  template <class Work>
  __device__ void multiply(const Work &work, Storage &storage) {
    run<false>(work, storage);
    if constexpr (Unit::GUARDED && !(ReadA::EXACT && ReadB::EXACT)) {
      float zero = 0;  // NaN after a sum that is not finite
      each([&](float x, int) { zero = fmaf(x, 0, zero); });
      if (!__syncthreads_or(zero != 0)) return;
      each([](float &x, int) { x = 0; });
      run<true>(work, storage);
    }
  }

  template <bool GUARDED>
  static __device__ void read(const unsigned char *stage, const ReadB &reader, int k, int left, ColumnsOfB &b) {
#pragma unroll
    for (int j = 0; j < TN; j += ReadB::AT_ONCE) reader.template read<GUARDED>(stage, j, k, left, b + j);
  }

 private:
  template <bool GUARDED, class Work>
  __device__ void run(const Work &work, Storage &storage) {
    constexpr int AHEAD = Tile::STAGES - 1;
    work.tabulate_k(0, work.begin, CHUNK);
    __syncthreads();
    CopyA copy_a(work.arguments.a, work.shared.a, [&](int row) { return work.is_row(row); });
    CopyB copy_b(work.arguments.b, work.shared.b, [&](int column) { return work.is_column(column); });
    const Part part;
    const ReadA read_a(part.l, part.m);
    const ReadB read_b(part.l, part.n);
    const auto fetch = [&](int slot, int table, Index left) {
      copy_a.fetch(storage.stages[slot].a, work.shared.k_a[table], left);
      copy_b.fetch(storage.stages[slot].b, work.shared.k_b[table], left);
    };
    const auto put = [&](int slot) {
      copy_a.put(storage.stages[slot].a);
      copy_b.put(storage.stages[slot].b);
    };
    Index left = work.end - work.begin;  // k's from the step on that is multiplied
#pragma unroll 1
    for (int s = 0; s < AHEAD; ++s) {
      if (s * Tile::K < left) {
        fetch(s, s, left - s * Tile::K);
        put(s);
      }
      commit_copies();
    }
#pragma unroll 1
    for (int slot = 0, table = AHEAD; left;) {
      wait_copies<AHEAD - 1>();
      __syncthreads();
      const int next = slot ? slot - 1 : AHEAD;
      const bool more = left > AHEAD * Tile::K;
      if (more) fetch(next, table, left - AHEAD * Tile::K);
      commit_copies();
      if ((table == AHEAD || table == AHEAD + CHUNK) && left > CHUNK * Tile::K)
        work.tabulate_k(table == AHEAD ? CHUNK : 0, work.end - left + CHUNK * Tile::K, CHUNK);
      const int here = left < Tile::K ? (int)left : Tile::K;
      step<GUARDED>(storage.stages[slot], read_a, read_b, here);
      if (more) put(next);
      left -= here;
      slot = slot == AHEAD ? 0 : slot + 1;
      table = table + 1 == TABLES ? 0 : table + 1;
    }
  }

  __device__ Sum total(int i, int j, int e) const {
    if constexpr (PLANES == 2) return {sum[0][i][j][e], sum[1][i][j][e]};
    else return sum[0][i][j][e];
  }

  // ``left`` k's of the step are in the tensor.
  template <bool GUARDED>
  __device__ void step(const Stage &stage, const ReadA &read_a, const ReadB &read_b, int left) {
#pragma unroll UNROLLED
    for (int k = 0; k < Tile::K; k += Unit::K) {
      ColumnsOfB b;
      read<GUARDED>(stage.b, read_b, k, left, b);
#pragma unroll
      for (int f = 0; f < Rows::FRAGMENTS; f += ReadA::AT_ONCE) {
        RowsOfA a;
        read_a.template read<GUARDED>(stage.a, f, k, left, a);
        const bool finite = !GUARDED || Unit::PARTS == 1 || all_finite(a, b);
        if constexpr (GUARDED) if (!finite) bound(a, b);
#pragma unroll
        for (int order = Unit::PARTS - 1; order > 0; --order) multiply_parts(f, order, a, b);
        if (!finite) {
          read<GUARDED>(stage.b, read_b, k, left, b);
          read_a.template read<GUARDED>(stage.a, f, k, left, a);
        }
        multiply_parts(f, 0, a, b);
      }
    }
  }

  // Whether parts may be multiplied as they are.
  static __device__ bool all_finite(const RowsOfA &a, const ColumnsOfB &b) {
    bool finite = true;
#pragma unroll
    for (int f = 0; f < ReadA::AT_ONCE; ++f) finite = finite && a[f].finite;
#pragma unroll
    for (int j = 0; j < TN; ++j) finite = finite && b[j].finite;
    return __all_sync(~0u, finite);
  }

  // Takes what is not finite out of the first parts.
  static __device__ void bound(RowsOfA &a, ColumnsOfB &b) {
#pragma unroll
    for (int x = 0; x < ReadA::PLANES; ++x)
#pragma unroll
      for (int f = 0; f < ReadA::AT_ONCE; ++f) a[f].at[x][0] = Unit::bounded(a[f].at[x][0]);
#pragma unroll
    for (int y = 0; y < ReadB::PLANES; ++y)
#pragma unroll
      for (int j = 0; j < TN; ++j) b[j].at[y][0] = Unit::bounded(b[j].at[y][0]);
  }

  // The products of parts p and q with p + q = order, of fragment ``first`` and the following; planes multiply as
  // complex numbers do. Orders come from the last, whose products are the smallest; those beyond are below the roundoff
  // of sums.
  __device__ void multiply_parts(int first, int order, const RowsOfA &a, const ColumnsOfB &b) {
#pragma unroll
    for (int f = 0; f < ReadA::AT_ONCE; f += 2)
#pragma unroll
      for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int p = 0; p <= order; ++p)
#pragma unroll
          for (int x = 0; x < ReadA::PLANES; ++x)
#pragma unroll
            for (int y = 0; y < ReadB::PLANES; ++y) {
              auto upper = a[f].at[x][p], lower = a[f + 1].at[x][p];
              if constexpr (ReadA::PLANES == 2 && ReadB::PLANES == 2)
                if (x == 1 && y == 1) upper = Unit::negative(upper), lower = Unit::negative(lower);
              auto &total = sum[PLANES == 2 ? (x + y) % 2 : 0][(first + f) / 2][j];
              Unit::multiply(total, upper, lower, b[j].at[y][order - p]);
            }
  }
};

}  // namespace contract
