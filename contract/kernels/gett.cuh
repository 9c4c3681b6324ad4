// D[l,m,n] = alpha sum_k opA(A[l,m,k]) opB(B[l,k,n]) + beta opC(C[l,m,n]) on any strides, by CUDA cores.
//
// The loops of a kind are flattened into one index. A block does a tile of L x M x N elements of D, K of the k at a
// step. While it multiplies one step out of shared memory it reads the next into registers. Where things are stands
// in tables in shared memory: the offsets of the tile's rows (l, m) and columns (l, n), made once, and those of the
// k of a step, made two steps ahead. With parts, the block sums a part of all k only, and a second kernel
// adds the parts in order.

namespace contract {

__host__ __device__ constexpr int least(int x, int y) { return x < y ? x : y; }
__host__ __device__ constexpr int most(int x, int y) { return x < y ? y : x; }

// The type in which products are added: small integers in 32 bits, whose low bits come out the same.
template <class T> struct Summed { using type = T; };
template <> struct Summed<signed char> { using type = int; };
template <> struct Summed<short> { using type = int; };
template <> struct Summed<unsigned char> { using type = int; };
template <> struct Summed<unsigned short> { using type = int; };

// ---- what a kernel is made for -----------------------------------------------------------------

// L x M x N elements of D by GROUPS groups of threads, which share the k of a step. A thread has TM x TN elements;
// LM x LN threads side by side make the smallest rectangle of a tile.
template <int L_, int M_, int N_, int K_, int TM_, int TN_, int LM_, int LN_, int GROUPS_>
struct Tile {
  static constexpr int L = L_, M = M_, N = N_, K = K_, TM = TM_, TN = TN_, LM = LM_, LN = LN_, GROUPS = GROUPS_;
  static constexpr int ROWS = L * M, COLUMNS = L * N;
  static constexpr int CELLS_M = M / (LM * TM), CELLS_N = N / (LN * TN);
  static constexpr int GROUP = L * CELLS_M * CELLS_N * LM * LN, THREADS = GROUP * GROUPS;
  static_assert(CELLS_M * LM * TM == M && CELLS_N * LN * TN == N && K % GROUPS == 0);
};

// Whether a factor lies side by side along the tile (A: m, B: n) or along k.
enum class Along { TILE, K };

// A or B, read WIDTH elements at once.
template <class T, Operator OP, Along ALONG, int WIDTH>
struct Factor {
  using Type = T;
  static constexpr Operator op = OP;
  static constexpr Along along = ALONG;
  static constexpr int width = WIDTH;
};

// C, read as wide as D is written if WIDTH is more than 1; WIDTH 0: there is no C.
template <class T, Operator OP, int WIDTH>
struct Addend {
  using Type = T;
  static constexpr Operator op = OP;
  static constexpr int width = WIDTH;
  static constexpr bool present = WIDTH > 0;
};

// ---- reading a factor ----------------------------------------------------------------------------

// Moves K x ROWS elements of a factor from memory to registers, and from there, converted, to shared memory, where
// element (k, row) is at k PITCH + row. Lanes cover 32 bytes along k, so that with the pitch's four elements of
// padding the stores that turn a factor meet no bank twice.
template <class F, class Compute, class Sum, class Offset, int ROWS, int K, int THREADS>
struct Loader {
  using T = typename F::Type;
  using Raw = Vector<T, F::width>;
  static constexpr int PITCH = ROWS + most(4, 16 / (int)sizeof(Sum)), BYTES = K * PITCH * (int)sizeof(Sum);
  static constexpr bool BY_K = F::along == Along::K;
  static constexpr int UNIT_K = BY_K ? F::width : 1, UNIT_ROW = BY_K ? 1 : F::width;
  static constexpr int ALL_K = K / UNIT_K, ALL_ROWS = ROWS / UNIT_ROW;  // accesses
  static constexpr int ACROSS = BY_K ? least(ALL_K, THREADS) : least(ALL_K, most(1, THREADS / ALL_ROWS));
  static constexpr int DOWN = least(ALL_ROWS, THREADS / ACROSS);  // threads along k and along the rows
  static constexpr int LANES_K = BY_K ? least(ACROSS, most(1, 32 / (int)sizeof(Raw))) : 1;
  static constexpr int LANES_ROW = BY_K ? least(DOWN, 32 / LANES_K) : DOWN;
  static constexpr int ITEMS_K = ALL_K / ACROSS, ITEMS_ROW = ALL_ROWS / DOWN;
  static_assert(ITEMS_K * ACROSS * UNIT_K == K && ITEMS_ROW * DOWN * UNIT_ROW == ROWS);

  const T *origin;
  int first_k, first_row;
  bool there[ITEMS_ROW];
  Offset row[ITEMS_ROW];
  Raw raw[ITEMS_ROW][ITEMS_K];

  __device__ int k(int item) const { return first_k + item * ACROSS * UNIT_K; }

  // ``valid(row)`` says whether a row is in the tensor; ``rows`` has the offsets of those that are.
  template <class Valid>
  __device__ Loader(const T *origin, const Offset *rows, const Valid &valid) : origin(origin) {
    const int across = LANES_K * LANES_ROW, t = threadIdx.x, rest = t / across;
    first_k = (t % LANES_K + rest % (ACROSS / LANES_K) * LANES_K) * UNIT_K;
    first_row = (t / LANES_K % LANES_ROW + rest / (ACROSS / LANES_K) * LANES_ROW) * UNIT_ROW;
#pragma unroll
    for (int i = 0; i < ITEMS_ROW; ++i) {
      const int at = first_row + i * DOWN * UNIT_ROW;
      there[i] = t < ACROSS * DOWN && valid(at);
      row[i] = there[i] ? rows[at] : 0;
    }
  }

  // Begins to read a step with ``left`` k's left.
  template <class Index>
  __device__ void fetch(const Offset *offsets, Index left) {
#pragma unroll
    for (int j = 0; j < ITEMS_K; ++j) {
      const bool inside = k(j) < left;
      const Offset offset = inside ? offsets[k(j)] : 0;
#pragma unroll
      for (int i = 0; i < ITEMS_ROW; ++i) {
        raw[i][j] = Raw{};
        if (there[i] && inside) raw[i][j] = *(const Raw *)(origin + row[i] + offset);
      }
    }
  }

  // Zero beyond the last k.
  template <class Index>
  __device__ void put(Sum *stage, Index left) const {
    if (threadIdx.x >= ACROSS * DOWN) return;
#pragma unroll
    for (int j = 0; j < ITEMS_K; ++j)
#pragma unroll
      for (int i = 0; i < ITEMS_ROW; ++i) {
        Vector<Sum, F::width> values;
#pragma unroll
        for (int e = 0; e < F::width; ++e) {
          values.at[e] = convert<Sum>(apply<F::op>(convert<Compute>(raw[i][j].at[e])));
          if (F::op != Operator::IDENTITY && k(j) >= left) values.at[e] = zero<Sum>();
        }
        Sum *to = stage + k(j) * PITCH + first_row + i * DOWN * UNIT_ROW;
        if constexpr (BY_K) {
#pragma unroll
          for (int e = 0; e < F::width; ++e) to[e * PITCH] = values.at[e];
        } else {
          *(Vector<Sum, F::width> *)to = values;
        }
      }
  }
};

// ---- multiplying -----------------------------------------------------------------------------------

// A thread's TM x TN elements of a tile: runs of RUN_M x RUN_N, which one access moves, LM x LN runs apart, so that
// lanes side by side read 16 bytes side by side.
template <class Tile, class Sum>
struct Block {
  static constexpr int TM = Tile::TM, TN = Tile::TN;
  static constexpr int RUN_M = least(TM, 16 / (int)sizeof(Sum)), RUN_N = least(TN, 16 / (int)sizeof(Sum));
  int group, l, first_m, first_n;
  Sum sum[TM][TN];

  __device__ Block() {
    const int t = threadIdx.x % Tile::GROUP, cell = t / (Tile::LM * Tile::LN);
    group = threadIdx.x / Tile::GROUP;
    l = cell / (Tile::CELLS_M * Tile::CELLS_N);
    first_m = cell % Tile::CELLS_M * Tile::LM * TM + t % Tile::LM * RUN_M;
    first_n = cell / Tile::CELLS_M % Tile::CELLS_N * Tile::LN * TN + t / Tile::LM % Tile::LN * RUN_N;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) sum[i][j] = zero<Sum>();
  }

  __device__ int m(int i) const { return first_m + i / RUN_M * Tile::LM * RUN_M + i % RUN_M; }
  __device__ int n(int j) const { return first_n + j / RUN_N * Tile::LN * RUN_N + j % RUN_N; }

  template <int COUNT, int RUN, int APART>
  static __device__ void read(const Sum *from, Sum (&to)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i += RUN) {
      const Vector<Sum, RUN> run = *(const Vector<Sum, RUN> *)(from + i * APART);
#pragma unroll
      for (int e = 0; e < RUN; ++e) to[i + e] = run.at[e];
    }
  }

  // 128 multiply-adds in a row hide the reads; more would keep so many reads ahead that registers run out.
  static constexpr int WORDS = TM * TN * (int)sizeof(Sum) / (is_complex<Sum> ? 2 : 4);
  static constexpr int UNROLLED = least(8, most(1, 128 / WORDS));

  // sum += a b for the k of one step; each group of threads takes its share of them.
  template <int PITCH_A, int PITCH_B>
  __device__ void multiply(const Sum *a, const Sum *b) {
    a += l * Tile::M + first_m, b += l * Tile::N + first_n;
#pragma unroll UNROLLED
    for (int step = 0; step < Tile::K / Tile::GROUPS; ++step) {
      const int k = step * Tile::GROUPS + group;
      Sum x[TM], y[TN];
      read<TM, RUN_M, Tile::LM>(a + k * PITCH_A, x);
      read<TN, RUN_N, Tile::LN>(b + k * PITCH_B, y);
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) sum[i][j] = multiply_add(x[i], y[j], sum[i][j]);
    }
  }

  // Adds the groups' sums, by halves, into that of group 0.
  static constexpr int EXCHANGE_BYTES = Tile::GROUPS / 2 * Tile::GROUP * TM * TN * (int)sizeof(Sum);
  __device__ void join(Sum *exchange) {
    for (int half = Tile::GROUPS / 2; half; half /= 2) {
      const int giver = threadIdx.x - half * Tile::GROUP;
      if (group >= half && group < 2 * half) each([&](Sum &x, int at) { exchange[at * Tile::THREADS / 2 + giver] = x; });
      __syncthreads();
      if (group < half) each([&](Sum &x, int at) { x = add(x, exchange[at * Tile::THREADS / 2 + threadIdx.x]); });
      __syncthreads();
    }
  }

  template <class Body>
  __device__ void each(const Body &body) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) body(sum[i][j], i * TN + j);
  }
};

// ---- finishing ---------------------------------------------------------------------------------------

// alpha sum + beta op(c); a beta of 0 leaves C unread.
template <class Target, class Compute, class C>
struct Finish {
  Compute alpha, beta;
  bool adds;

  __device__ Finish(Compute alpha, Compute beta) : alpha(alpha), beta(beta), adds(C::present && !is_zero(beta)) {}

  __device__ Target operator()(Compute sum, typename C::Type c) const {
    Compute value = scaled(sum, alpha);
    if (adds) value = add(value, scaled(apply<C::op>(convert<Compute>(c)), beta));
    return convert<Target>(value);
  }
};

// ---- the kernel ----------------------------------------------------------------------------------------

enum Tensor { D, A, B, C };  // the order of strides in a loop

// Where index ``i`` of some loops, the first fastest, is in each tensor. Not unrolled: tables are made rarely.
template <class Offset>
__device__ inline Place<Offset, 4, false> place(typename IndexOf<Offset>::type i, const Loop<4> *loops, unsigned count) {
  Place<Offset, 4, false> here;
#pragma unroll 1
  for (unsigned at = 0; at < count; ++at) here.move(loops[at], split_off(i, loops[at]));
  return here;
}

// WIDTH elements of D are written at once, along m.
template <class Target, class Compute, class Offset, int RANK, class TILE, class FA, class FB, class FC, int WIDTH>
struct Gett {
  using Sum = typename Summed<Compute>::type;
  using TA = typename FA::Type;
  using TB = typename FB::Type;
  using TC = typename FC::Type;
  using Index = typename IndexOf<Offset>::type;
  using Here = Place<Offset, 4, false>;
  using LoadA = Loader<FA, Compute, Sum, Offset, TILE::ROWS, TILE::K, TILE::THREADS>;
  using LoadB = Loader<FB, Compute, Sum, Offset, TILE::COLUMNS, TILE::K, TILE::THREADS>;
  using Sums = Block<TILE, Sum>;
  static constexpr int STAGE = LoadA::BYTES + LoadB::BYTES;

  struct Arguments {
    const TA *a;
    const TB *b;
    const TC *c;
    Target *d;
    Compute alpha, beta;
    unsigned loops_l, loops_m, loops_n, loops_k;  // how many of ``loops`` are of each kind, in this order
    long long l, m, n, k;                         // their flattened extents
    long long tiles, part_k, part_d;              // tiles of all parts; the k and the elements of one part
    unsigned partial, unused;                     // 1: what is written are sums, not yet scaled
    Loop<4> tiles_of[3];                          // tiles along m, n, l
    Loop<4> loops[RANK];
  };

  struct Corner {
    Index l, m, n, part;
  };

  struct Shared {
    alignas(16) unsigned char stages[most(2 * STAGE, Sums::EXCHANGE_BYTES)];
    Offset a[TILE::ROWS], row_d[TILE::ROWS], row_c[FC::present ? TILE::ROWS : 1];
    Offset b[TILE::COLUMNS], column_d[TILE::COLUMNS], column_c[FC::present ? TILE::COLUMNS : 1];
    Offset k_a[2][TILE::K], k_b[2][TILE::K];
  };

  static __device__ Corner corner(const Arguments &a, Index tile) {
    Corner c;
    c.m = split_off(tile, a.tiles_of[0]) * TILE::M;
    c.n = split_off(tile, a.tiles_of[1]) * TILE::N;
    c.l = split_off(tile, a.tiles_of[2]) * TILE::L;
    c.part = tile;
    return c;
  }

  // ---- tables --------------------------------------------------------------------------------

  static __device__ bool is_row(const Arguments &a, const Corner &c, int row) {
    return c.l + row / TILE::M < a.l && c.m + row % TILE::M < a.m;
  }
  static __device__ bool is_column(const Arguments &a, const Corner &c, int column) {
    return c.l + column / TILE::N < a.l && c.n + column % TILE::N < a.n;
  }


  // The offsets of l are part of the rows' in D and C.
  static __device__ void tabulate(const Arguments &a, const Corner &c, Shared &s) {
    for (int i = threadIdx.x; i < TILE::ROWS; i += TILE::THREADS) {
      if (!is_row(a, c, i)) continue;
      const Here batch = place<Offset>(c.l + i / TILE::M, a.loops, a.loops_l);
      const Here here = place<Offset>(c.m + i % TILE::M, a.loops + a.loops_l, a.loops_m);
      s.a[i] = batch.at[A] + here.at[A], s.row_d[i] = batch.at[D] + here.at[D];
      if constexpr (FC::present) s.row_c[i] = batch.at[C] + here.at[C];
    }
    for (int i = threadIdx.x; i < TILE::COLUMNS; i += TILE::THREADS) {
      if (!is_column(a, c, i)) continue;
      const Here batch = place<Offset>(c.l + i / TILE::N, a.loops, a.loops_l);
      const Here here = place<Offset>(c.n + i % TILE::N, a.loops + a.loops_l + a.loops_m, a.loops_n);
      s.b[i] = batch.at[B] + here.at[B], s.column_d[i] = here.at[D];
      if constexpr (FC::present) s.column_c[i] = here.at[C];
    }
  }

  static __device__ void tabulate_k(const Arguments &a, Shared &s, int slot, Index first, Index end) {
    for (int i = threadIdx.x; i < TILE::K; i += TILE::THREADS) {
      if (first + i >= end) break;
      const Here here = place<Offset>(first + i, a.loops + a.loops_l + a.loops_m + a.loops_n, a.loops_k);
      s.k_a[slot][i] = here.at[A], s.k_b[slot][i] = here.at[B];
    }
  }

  // ---- the main loop -----------------------------------------------------------------------------

  static __device__ Sum *stage(Shared &s, int slot) { return (Sum *)(s.stages + slot * STAGE); }
  static __device__ Sum *stage_b(Shared &s, int slot) { return (Sum *)(s.stages + slot * STAGE + LoadA::BYTES); }

  // sums = the tile's products over begin <= k < end.
  static __device__ void multiply(const Arguments &a, const Corner &c, Shared &s, Index begin, Index end, Sums &sums) {
    tabulate_k(a, s, 0, begin, end);
    tabulate_k(a, s, 1, begin + TILE::K, end);
    __syncthreads();
    LoadA load_a(a.a, s.a, [&](int row) { return is_row(a, c, row); });
    LoadB load_b(a.b, s.b, [&](int column) { return is_column(a, c, column); });
    load_a.fetch(s.k_a[0], end - begin);
    load_b.fetch(s.k_b[0], end - begin);
    load_a.put(stage(s, 0), end - begin);
    load_b.put(stage_b(s, 0), end - begin);
    __syncthreads();
    for (int slot = 0; begin < end; slot ^= 1) {
      const Index next = begin + TILE::K;
      if (next < end) {
        load_a.fetch(s.k_a[slot ^ 1], end - next);
        load_b.fetch(s.k_b[slot ^ 1], end - next);
        tabulate_k(a, s, slot, next + TILE::K, end);
      }
      sums.template multiply<LoadA::PITCH, LoadB::PITCH>(stage(s, slot), stage_b(s, slot));
      if (next < end) {
        load_a.put(stage(s, slot ^ 1), end - next);
        load_b.put(stage_b(s, slot ^ 1), end - next);
      }
      __syncthreads();
      begin = next;
    }
    sums.join((Sum *)s.stages);
  }

  // ---- the epilogue --------------------------------------------------------------------------------

  static __device__ void write(const Arguments &a, const Corner &c, const Shared &s, const Sums &sums) {
    const Finish<Target, Compute, FC> finish(a.partial ? one<Compute>() : a.alpha, a.beta);
    Target *d = a.d + (long long)c.part * a.part_d;
    if (sums.group || c.l + sums.l >= a.l) return;
#pragma unroll
    for (int j = 0; j < TILE::TN; ++j) {
      if (c.n + sums.n(j) >= a.n) continue;
      const int column = sums.l * TILE::N + sums.n(j);
#pragma unroll
      for (int i = 0; i < TILE::TM; i += WIDTH) {
        if (c.m + sums.m(i) >= a.m) continue;
        const int row = sums.l * TILE::M + sums.m(i);
        Vector<TC, WIDTH> addend{};
        if constexpr (FC::present)
          if (finish.adds) addend = read_c(a, s, row, column);
        Vector<Target, WIDTH> done;
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) done.at[e] = finish(convert<Compute>(sums.sum[i + e][j]), addend.at[e]);
        *(Vector<Target, WIDTH> *)(d + s.row_d[row] + s.column_d[column]) = done;
      }
    }
  }

  static __device__ Vector<TC, WIDTH> read_c(const Arguments &a, const Shared &s, int row, int column) {
    const TC *from = a.c + s.column_c[column];
    if constexpr (FC::width == WIDTH) return *(const Vector<TC, WIDTH> *)(from + s.row_c[row]);
    Vector<TC, WIDTH> read;
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) read.at[e] = from[s.row_c[row + e]];
    return read;
  }

  // A factor alpha of 0 leaves A and B unread.
  static __device__ void run(const Arguments &a) {
    static_assert(WIDTH <= Sums::RUN_M);
    __shared__ Shared s;
    const Index tile = blockIdx.x + (Index)gridDim.x * blockIdx.y;
    const bool multiplies = !is_zero(a.alpha);
    if (tile >= a.tiles || (a.partial && !multiplies)) return;
    const Corner c = corner(a, tile);
    const Index begin = c.part * a.part_k, end = begin + a.part_k < a.k ? begin + a.part_k : a.k;
    Sums sums;
    tabulate(a, c, s);
    if (multiplies) multiply(a, c, s, begin, end, sums);
    else __syncthreads();
    write(a, c, s, sums);
  }
};

// ---- adding the parts --------------------------------------------------------------------------------

// D[i] = alpha sum_p P[p][i] + beta op(C[i]), the parts p in order; P is packed in the order of the loops.
template <class Target, class Compute, class Offset, int RANK, class FC>
struct GettParts {
  static constexpr int THREADS = 256;
  using Index = typename IndexOf<Offset>::type;

  struct Arguments {
    const Compute *parts;
    const typename FC::Type *c;
    Target *d;
    Compute alpha, beta;
    long long elements;
    unsigned count, loops_count;
    Loop<4> loops[RANK];
  };

  static __device__ Compute sum(const Arguments &a, Index i) {
    Compute total = a.parts[i];
#pragma unroll 8
    for (unsigned p = 1; p < a.count; ++p) total = add(total, a.parts[p * a.elements + i]);
    return total;
  }

  static __device__ void run(const Arguments &a) {
    const Index i = blockIdx.x * (Index)THREADS + threadIdx.x;
    if (i >= a.elements) return;
    const auto here = place<Offset>(i, a.loops, a.loops_count);
    const Finish<Target, Compute, FC> finish(a.alpha, a.beta);
    typename FC::Type c{};
    if (finish.adds) c = a.c[here.at[C]];
    a.d[here.at[D]] = finish(is_zero(a.alpha) ? zero<Compute>() : sum(a, i), c);
  }
};

}  // namespace contract
