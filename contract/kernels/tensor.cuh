// The main loop of a product by the tensor cores: mma.sync on operands that cp.async brings as they are.
//
// Operands stay in shared memory in their own type and direction, several steps of K k's ahead. What a fragment needs,
// the operator, the conversion, the parts of a split type, is done when a warp reads it.

namespace contract {

// ---- units: sums of a 16 x 8 tile += A B over K k's ------------------------------------------------
//
// With g = lane / 4 and t = lane % 4 a thread holds rows g and g + 8 of A and column g of B, of both the k's from
// PER t on, and the sums of these rows in columns 2 t and 2 t + 1. The instructions number the k's in another order;
// a sum does not depend on it as long as A and B agree. ``Words`` are the k's of one row or column.

__device__ inline unsigned bits_of(Half lower, Half upper) { return lower.bits | (unsigned)upper.bits << 16; }
__device__ inline unsigned bits_of(BFloat16 lower, BFloat16 upper) { return lower.bits | (unsigned)upper.bits << 16; }

// ``split`` says whether all it saw is finite. What is not is its first part alone: times a smaller part that is zero
// it would be NaN, so that ``bounded`` takes its place there.

__device__ inline bool is_finite(float x) { return fabsf(x) < __uint_as_float(0x7f800000); }

// float32 as PARTS of tf32: 11 bits each. What is beyond the largest tf32 is cut instead of rounded to infinity. The
// units cut what a part has beyond its 11 bits.
template <int PARTS_>
struct Tf32 {
  using Sum = float;
  using Exact = void;  // the type of elements that are fragments as they are
  using Words = Vector<unsigned, 2>;
  static constexpr int K = 8, PER = 2, PARTS = PARTS_;

  // Half of the last bit added; the sum with 0 makes every NaN a quiet one, whose first bits say so.
  static __device__ unsigned rounded(float x) {
    const unsigned bits = __float_as_uint(x + 0.0f);
    return fabsf(x) < __uint_as_float(0x7f7ff000) ? bits + 0x1000 : bits;
  }

  static __device__ bool split(const float (&x)[PER], Words (&parts)[PARTS]) {
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
  static constexpr int K = 16, PER = 4, PARTS = 1;

  static __device__ bool split(const float (&x)[PER], Words (&parts)[PARTS]) {
#pragma unroll
    for (int w = 0; w < 2; ++w) parts[0].at[w] = bits_of(convert<Half>(x[2 * w]), convert<Half>(x[2 * w + 1]));
    return true;
  }

  static __device__ void multiply(float (&d)[4], const Words &a, const Words &below, const Words &b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.at[0]), "r"(below.at[0]), "r"(a.at[1]), "r"(below.at[1]), "r"(b.at[0]), "r"(b.at[1]));
  }
};

// float32 as PARTS of bfloat16, 8 bits each, or bfloat16 as it is. The first part of what is beyond the largest
// bfloat16 is cut instead of rounded to infinity.
template <int PARTS_>
struct Bf16 {
  using Sum = float;
  using Exact = BFloat16;
  using Words = Vector<unsigned, 2>;
  static constexpr int K = 16, PER = 4, PARTS = PARTS_;

  static __device__ BFloat16 part(float &rest) {
    BFloat16 y = convert<BFloat16>(rest);
    if (fabsf(rest) >= __uint_as_float(0x7f7f8000) && is_finite(rest)) y.bits = __float_as_uint(rest) >> 16;
    rest = is_finite(rest) ? rest - widened(y) : 0.0f;
    return y;
  }

  static __device__ bool split(const float (&x)[PER], Words (&parts)[PARTS]) {
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
  static constexpr int K = 32, PER = 8, PARTS = 1;

  template <class Integer>
  static __device__ bool split(const Integer (&x)[PER], Words (&parts)[PARTS]) {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      parts[0].at[w] = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) parts[0].at[w] |= (unsigned)(unsigned char)x[4 * w + e] << 8 * e;
    }
    return true;
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
  static constexpr int K = K_, PER = K / 4, PARTS = 1;

  static __device__ bool split(const double (&x)[PER], Words (&parts)[PARTS]) {
#pragma unroll
    for (int e = 0; e < PER; ++e) parts[0].at[e] = x[e];
    return true;
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

// L x M x N elements of D; WARPS_M x WARPS_N warps for each of the L; STAGES steps of K k's in shared memory.
template <int L_, int M_, int N_, int K_, int WARPS_M_, int WARPS_N_, int STAGES_>
struct TensorTile {
  static constexpr int L = L_, M = M_, N = N_, K = K_, WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, STAGES = STAGES_;
  static constexpr int ROWS = L * M, COLUMNS = L * N, WARPS = L * WARPS_M * WARPS_N, THREADS = 32 * WARPS;
  static constexpr int WARP_M = M / WARPS_M, WARP_N = N / WARPS_N;
  static_assert(WARP_M % 16 == 0 && WARP_N % 8 == 0 && STAGES >= 2);
};

// ---- a factor in shared memory -----------------------------------------------------------------------

__device__ inline unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

// One step of a factor: lines along k or along the tile, as in memory. The 16-byte chunks of a line change places so
// that the lanes of one access, eight rows by four times PER k's, meet every bank once.
template <class F, class Unit, int ROWS, int K>
struct Staged {
  using T = typename F::Type;
  static constexpr bool BY_K = F::along == Along::K;
  static constexpr int SIZE = sizeof(T), LINE = (BY_K ? K : ROWS) * SIZE, BYTES = ROWS * K * SIZE;
  static constexpr int CHUNKS = least(8, LINE / 16), PER = Unit::PER;
  static constexpr int BESIDE = most(1, 128 / LINE);           // lines in all 32 banks
  static constexpr int TAKEN = most(1, 4 * PER * SIZE / 16);   // chunks of a row that one access reads
  static_assert(LINE % 16 == 0);

  static __device__ int chunk(int line) {
    if constexpr (!BY_K) return (line / PER % 4 * 2 + line % 2) % CHUNKS;
    else if constexpr (TAKEN >= 8) return line % 2 % CHUNKS;
    else return line / BESIDE * TAKEN % CHUNKS;
  }
  static __device__ int at(int row, int k) {
    const int line = BY_K ? row : k, byte = (BY_K ? k : row) * SIZE;
    return line * LINE + (byte ^ chunk(line) * 16);
  }
};

// Copies steps of a factor from memory, WIDTH elements at once: without registers where an access has 4 bytes or more.
template <class F, class Unit, class Offset, int ROWS, int K, int THREADS>
struct Copier : FactorRows<F, Offset, ROWS, K, THREADS> {
  using Rows = FactorRows<F, Offset, ROWS, K, THREADS>;
  using Place = Staged<F, Unit, ROWS, K>;
  using typename Rows::T, typename Rows::Raw;
  using Rows::ITEMS_K, Rows::ITEMS_ROW, Rows::FactorRows;
  static constexpr int BYTES = sizeof(Raw);
  static constexpr bool DIRECT = BYTES >= 4;

  Raw raw[DIRECT ? 1 : ITEMS_ROW][DIRECT ? 1 : ITEMS_K];

  // Begins to copy a step with ``left`` k's left; zeros beyond them and beyond the tensor.
  template <class Index>
  __device__ void fetch(unsigned char *stage, const Offset *offsets, Index left) {
    if (!this->takes_part) return;
#pragma unroll
    for (int j = 0; j < ITEMS_K; ++j) {
      const bool inside = this->k(j) < left;
      const Offset offset = inside ? offsets[this->k(j)] : 0;
#pragma unroll
      for (int i = 0; i < ITEMS_ROW; ++i) {
        const bool valid = this->there[i] && inside;
        const T *from = valid ? this->origin + this->offset[i] + offset : this->origin;
        if constexpr (DIRECT) {
          copy(shared_address(stage + Place::at(this->row(i), this->k(j))), from, valid ? BYTES : 0);
        } else {
          raw[i][j] = Raw{};
          if (valid) raw[i][j] = *(const Raw *)from;
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
        for (int i = 0; i < ITEMS_ROW; ++i) *(Raw *)(stage + Place::at(this->row(i), this->k(j))) = raw[i][j];
    }
  }

 private:
  static __device__ void copy(unsigned to, const void *from, int bytes) {
    if constexpr (BYTES == 16)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
    else
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(bytes) : "memory");
  }
};

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int YOUNGEST>
__device__ inline void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(YOUNGEST) : "memory"); }

// The fragments of COUNT times eight rows of a factor: planes of a complex number, parts of a split one.
template <class F, class Unit, class Compute, int ROWS, int K>
struct Reader {
  using Place = Staged<F, Unit, ROWS, K>;
  using T = typename F::Type;
  using Words = typename Unit::Words;
  static constexpr int PER = Unit::PER, PARTS = Unit::PARTS, PLANES = is_complex<T> ? 2 : 1;
  static constexpr bool EXACT = is_same<T, typename Unit::Exact> && F::op == Operator::IDENTITY;
  static constexpr bool TURNS = EXACT && sizeof(T) == 2 && !Place::BY_K;
  using Real = typename RealOf<Compute>::type;

  struct Fragments {
    Words at[PLANES][PARTS];
    bool finite = true;
  };

  // Rows from ``row`` on, k's from ``k`` on, of which ``left`` are in the tensor.
  template <int COUNT>
  static __device__ void read(const unsigned char *stage, int row, int k, int left, Fragments (&f)[COUNT]) {
    if constexpr (TURNS) {
      static_assert(COUNT == 1 || COUNT == 2);
      turned<COUNT>(stage, row, k, f);
    } else {
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int c = 0; c < COUNT; ++c) one(stage, row + 8 * c + lane / 4, k + lane % 4 * PER, left, f[c]);
    }
  }

 private:
  static __device__ void raw(const unsigned char *stage, int row, int k, T (&x)[PER]) {
    constexpr int WIDTH = Place::BY_K ? least(PER, 16 / (int)sizeof(T)) : 1;
#pragma unroll
    for (int e = 0; e < PER; e += WIDTH) {
      const auto v = *(const Vector<T, WIDTH> *)(stage + Place::at(row, k + e));
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) x[e + i] = v.at[i];
    }
  }

  static __device__ void one(const unsigned char *stage, int row, int k, int left, Fragments &f) {
    if constexpr (EXACT && Place::BY_K && sizeof(T) < 8) {
      f.at[0][0] = *(const Words *)(stage + Place::at(row, k));
    } else {
      T x[PER];
      raw(stage, row, k, x);
      Real planes[PLANES][PER];
#pragma unroll
      for (int e = 0; e < PER; ++e) {
        const auto value = apply<F::op>(convert<typename WithReal<T, Real>::type>(x[e]));
        const bool inside = F::op == Operator::IDENTITY || k + e < left;
        if constexpr (PLANES == 2) {
          planes[0][e] = inside ? value.re : 0;
          planes[1][e] = inside ? value.im : 0;
        } else {
          planes[0][e] = inside ? value : zero<Real>();
        }
      }
#pragma unroll
      for (int p = 0; p < PLANES; ++p) f.finite = Unit::split(planes[p], f.at[p]) && f.finite;
    }
  }

  // ldmatrix turns 16-bit elements on the way; its rows are the k's in the order of Words.
  template <int COUNT>
  static __device__ void turned(const unsigned char *stage, int row, int k, Fragments (&f)[COUNT]) {
    const int lane = threadIdx.x % 32, line = lane / 2 % 4 * 4 + lane / 8 % 2 * 2 + lane % 2;
    const unsigned from = shared_address(stage + Place::at(row + (COUNT == 2 ? lane / 16 * 8 : 0), k + line));
    unsigned(&first)[2] = f[0].at[0][0].at;
    if constexpr (COUNT == 2) {
      unsigned(&second)[2] = f[1].at[0][0].at;
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(first[0]), "=r"(first[1]), "=r"(second[0]), "=r"(second[1])
                   : "r"(from)
                   : "memory");
    } else {
      asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                   : "=r"(first[0]), "=r"(first[1])
                   : "r"(from)
                   : "memory");
    }
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
  using CopyA = Copier<FA, Unit, Offset, Tile::ROWS, Tile::K, Tile::THREADS>;
  using CopyB = Copier<FB, Unit, Offset, Tile::COLUMNS, Tile::K, Tile::THREADS>;
  using ReadA = Reader<FA, Unit, Compute, Tile::ROWS, Tile::K>;
  using ReadB = Reader<FB, Unit, Compute, Tile::COLUMNS, Tile::K>;
  static constexpr int PLANES = is_complex<Compute> ? 2 : 1, TABLES = Tile::STAGES, OWNERS = Tile::THREADS;
  static constexpr int TM = Tile::WARP_M / 16, TN = Tile::WARP_N / 8, PAIR = TN % 2 ? 1 : 2;
  static constexpr int PITCH = Tile::WARP_M + 16 / (int)sizeof(Sum);  // eight columns of a warp, on their way to D
  static_assert(Tile::K % Unit::K == 0);

  using ColumnsOfB = typename ReadB::Fragments[TN / PAIR][PAIR];
  using RowsOfA = typename ReadA::Fragments[2];

  struct Stage {
    alignas(128) unsigned char a[CopyA::Place::BYTES], b[CopyB::Place::BYTES];
  };
  union Storage {
    Stage stages[Tile::STAGES];
    Sum exchange[Tile::WARPS][8 * PITCH];
    __device__ Storage() {}
  };

  struct Given {};  // arguments beside the factors

  int warp, l, first_m, first_n;
  Partial sum[PLANES][TM][TN][4];

  __device__ TensorCores() {
    warp = threadIdx.x / 32;
    l = warp / (Tile::WARPS_M * Tile::WARPS_N);
    first_m = warp % Tile::WARPS_M * Tile::WARP_M;
    first_n = warp / Tile::WARPS_M % Tile::WARPS_N * Tile::WARP_N;
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

  // body(l, m, n, sums) for WIDTH sums side by side along m, turned in shared memory eight columns at a time.
  template <int WIDTH, class Body>
  __device__ void each_run(Storage &storage, const Body &body) const {
    Sum *exchange = storage.exchange[warp];
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < TN; ++j) {
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          exchange[(2 * t + e % 2) * PITCH + i * 16 + e / 2 * 8 + g] = total(i, j, e);
      __syncwarp();
#pragma unroll 1
      for (int at = lane * WIDTH; at < 8 * Tile::WARP_M; at += 32 * WIDTH) {
        const int column = at / Tile::WARP_M, row = at % Tile::WARP_M;
        const auto run = *(const Vector<Sum, WIDTH> *)(exchange + column * PITCH + row);
        body(l, first_m + row, first_n + j * 8 + column, run);
      }
      __syncwarp();
    }
  }

  template <class Work>
  __device__ void multiply(const Work &work, Storage &storage) {
    constexpr int AHEAD = Tile::STAGES - 1;
#pragma unroll 1
    for (int s = 0; s < Tile::STAGES; ++s) work.tabulate_k(s, work.begin + s * Tile::K);
    __syncthreads();
    CopyA copy_a(work.arguments.a, work.shared.a, [&](int row) { return work.is_row(row); });
    CopyB copy_b(work.arguments.b, work.shared.b, [&](int column) { return work.is_column(column); });
    const auto fetch = [&](int slot, Index left) {
      copy_a.fetch(storage.stages[slot].a, work.shared.k_a[slot], left);
      copy_b.fetch(storage.stages[slot].b, work.shared.k_b[slot], left);
    };
    const auto put = [&](int slot) {
      copy_a.put(storage.stages[slot].a);
      copy_b.put(storage.stages[slot].b);
    };
    Index at = work.begin, ahead = work.begin;
#pragma unroll 1
    for (int s = 0; s < AHEAD; ++s, ahead += Tile::K) {
      if (ahead < work.end) {
        fetch(s, work.end - ahead);
        put(s);
      }
      commit_copies();
    }
    for (int slot = 0, next = AHEAD; at < work.end; at += Tile::K, ahead += Tile::K) {
      wait_copies<AHEAD - 1>();
      __syncthreads();
      const bool more = ahead < work.end;
      if (more) fetch(next, work.end - ahead);
      commit_copies();
      work.tabulate_k(slot, ahead + Tile::K);
      const Index left = work.end - at;
      step(storage.stages[slot], left < Tile::K ? (int)left : Tile::K);
      if (more) put(next);
      next = slot;
      slot = slot + 1 == Tile::STAGES ? 0 : slot + 1;
    }
    wait_copies<0>();
    __syncthreads();
  }

 private:
  __device__ Sum total(int i, int j, int e) const {
    if constexpr (PLANES == 2) return {sum[0][i][j][e], sum[1][i][j][e]};
    else return sum[0][i][j][e];
  }

  // ``left`` k's of the step are in the tensor.
  __device__ void step(const Stage &stage, int left) {
#pragma unroll
    for (int k = 0; k < Tile::K; k += Unit::K) {
      ColumnsOfB b;
      read(stage, k, left, b);
#pragma unroll
      for (int i = 0; i < TM; ++i) {
        RowsOfA a;
        read(stage, k, left, i, a);
        if constexpr (Unit::PARTS > 1) {
          const bool finite = all_finite(a, b);
          if (!finite) bound(a, b);
#pragma unroll
          for (int order = Unit::PARTS - 1; order > 0; --order) multiply_parts(i, order, a, b);
          if (!finite) read(stage, k, left, b), read(stage, k, left, i, a);
        }
        multiply_parts(i, 0, a, b);
      }
    }
  }

  __device__ void read(const Stage &stage, int k, int left, int i, RowsOfA &a) const {
    ReadA::read(stage.a, l * Tile::M + first_m + i * 16, k, left, a);
  }
  __device__ void read(const Stage &stage, int k, int left, ColumnsOfB &b) const {
#pragma unroll
    for (int j = 0; j < TN / PAIR; ++j) ReadB::read(stage.b, l * Tile::N + first_n + j * PAIR * 8, k, left, b[j]);
  }

  // Whether parts may be multiplied as they are.
  static __device__ bool all_finite(const RowsOfA &a, const ColumnsOfB &b) {
    bool finite = a[0].finite && a[1].finite;
#pragma unroll
    for (int j = 0; j < TN; ++j) finite = finite && b[j / PAIR][j % PAIR].finite;
    return __all_sync(~0u, finite);
  }

  // Takes what is not finite out of the first parts.
  static __device__ void bound(RowsOfA &a, ColumnsOfB &b) {
#pragma unroll
    for (int x = 0; x < ReadA::PLANES; ++x)
#pragma unroll
      for (int e = 0; e < 2; ++e) a[e].at[x][0] = Unit::bounded(a[e].at[x][0]);
#pragma unroll
    for (int y = 0; y < ReadB::PLANES; ++y)
#pragma unroll
      for (int j = 0; j < TN; ++j) b[j / PAIR][j % PAIR].at[y][0] = Unit::bounded(b[j / PAIR][j % PAIR].at[y][0]);
  }

  // The products of parts p and q with p + q = order; planes multiply as complex numbers do. Orders come from the
  // last, whose products are the smallest; those beyond are below the roundoff of sums.
  __device__ void multiply_parts(int i, int order, const RowsOfA &a, const ColumnsOfB &b) {
#pragma unroll
    for (int j = 0; j < TN; ++j)
#pragma unroll
      for (int p = 0; p <= order; ++p)
#pragma unroll
        for (int x = 0; x < ReadA::PLANES; ++x)
#pragma unroll
          for (int y = 0; y < ReadB::PLANES; ++y) {
            auto upper = a[0].at[x][p], lower = a[1].at[x][p];
            if constexpr (ReadA::PLANES == 2 && ReadB::PLANES == 2)
              if (x == 1 && y == 1) upper = Unit::negative(upper), lower = Unit::negative(lower);
            const auto &right = b[j / PAIR][j % PAIR].at[y][order - p];
            Unit::multiply(sum[PLANES == 2 ? (x + y) % 2 : 0][i][j], upper, lower, right);
          }
  }
};

}  // namespace contract
