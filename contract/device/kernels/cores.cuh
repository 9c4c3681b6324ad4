// The main loop of a product by the CUDA cores, for every type.
//
// While a block multiplies one step of K k's out of shared memory the next is on its way: by cp.async from 8.0 on where
// elements are multiplied as they are, else through registers.

namespace contract {

// L x M x N elements of D by GROUPS groups of threads, which share the k of a step. A thread has TM x TN elements;
// LM x LN threads side by side make the smallest rectangle of a tile.
template <int L_, int M_, int N_, int K_, int TM_, int TN_, int LM_, int LN_, int GROUPS_>
struct CoreTile {
  static constexpr int L = L_, M = M_, N = N_, K = K_, TM = TM_, TN = TN_, LM = LM_, LN = LN_, GROUPS = GROUPS_;
  static constexpr int ROWS = L * M, COLUMNS = L * N;
  static constexpr int CELLS_M = M / (LM * TM), CELLS_N = N / (LN * TN);
  static constexpr int GROUP = L * CELLS_M * CELLS_N * LM * LN, THREADS = GROUP * GROUPS;
  static_assert(CELLS_M * LM * TM == M && CELLS_N * LN * TN == N && K % GROUPS == 0);
};

// ---- reading a factor ----------------------------------------------------------------------------

// In shared memory element (k, row) of a step is at k PITCH + row. Lanes cover 32 bytes along k, so that with the
// pitch's four elements of padding the stores that turn a factor meet no bank twice.
template <class Sum, int ROWS>
constexpr int PITCH = ROWS + most(4, 16 / (int)sizeof(Sum));

// Moves K x ROWS elements of a factor from memory to registers, and from there, converted, to shared memory.
template <class F, class Compute, class Sum, class Offset, int ROWS, int K, int THREADS>
struct Converter : FactorRows<F, Offset, ROWS, K, THREADS> {
  using Rows = FactorRows<F, Offset, ROWS, K, THREADS>;
  using typename Rows::Raw;
  using Rows::ITEMS_K, Rows::ITEMS_ROW, Rows::FactorRows;

  Raw raw[ITEMS_ROW][ITEMS_K];

  // Begins to read a step with ``left`` k's left.
  template <class Index>
  __device__ void fetch(const Offset *offsets, Index left, Sum *) {
#pragma unroll
    for (int j = 0; j < ITEMS_K; ++j) {
      const bool inside = this->k(j) < left;
      const Offset offset = inside ? offsets[this->k(j)] : 0;
#pragma unroll
      for (int i = 0; i < ITEMS_ROW; ++i) {
        raw[i][j] = Raw{};
        if (this->there[i] && inside) raw[i][j] = *(const Raw *)(this->origin + (this->offset[i] + offset));
      }
    }
  }

  // Zero beyond the last k.
  template <class Index>
  __device__ void put(Sum *stage, Index left) const {
    if (!this->takes_part) return;
#pragma unroll
    for (int j = 0; j < ITEMS_K; ++j)
#pragma unroll
      for (int i = 0; i < ITEMS_ROW; ++i) {
        Vector<Sum, F::width> values;
#pragma unroll
        for (int e = 0; e < F::width; ++e) {
          values.at[e] = convert<Sum>(apply<F::op>(convert<Compute>(raw[i][j].at[e])));
          if (F::op != Operator::IDENTITY && this->k(j) >= left) values.at[e] = zero<Sum>();
        }
        Sum *to = stage + this->k(j) * PITCH<Sum, ROWS> + this->row(i);
        if constexpr (Rows::BY_K) {
#pragma unroll
          for (int e = 0; e < F::width; ++e) to[e * PITCH<Sum, ROWS>] = values.at[e];
        } else {
          *(Vector<Sum, F::width> *)to = values;
        }
      }
  }
};

// A factor as cp.async moves it: along k one element at once, which lands where it is turned to, 32 bytes by lanes side
// by side. The threads of a block cover ONCE k's with each of their rows: as many as give all of them work.
template <class F>
using Copied = Factor<typename F::Type, F::op, F::along, F::along == Along::K ? 1 : F::width>;
template <class F, int ROWS, int K, int THREADS>
constexpr int ONCE =
    F::along == Along::K ? least(K, most(32 / (int)sizeof(typename F::Type), power_up_to(THREADS / ROWS))) : K;

// The same for elements that stay as they are, straight to shared memory. Zero beyond the last k and for rows beyond the
// tensor: if all blocks read the same place instead, one part of L2 would serve them all.
template <class F, class Sum, class Offset, int ROWS, int K, int THREADS>
struct CoreCopier : FactorRows<Copied<F>, Offset, ROWS, ONCE<F, ROWS, K, THREADS>, THREADS> {
  static constexpr int AT_ONCE = ONCE<F, ROWS, K, THREADS>;
  using Rows = FactorRows<Copied<F>, Offset, ROWS, AT_ONCE, THREADS>;
  using Rows::ITEMS_K, Rows::ITEMS_ROW, Rows::FactorRows;
  static constexpr int BYTES = sizeof(typename Rows::Raw);

  template <class Index>
  __device__ void fetch(const Offset *offsets, Index left, Sum *stage) {
    if (!this->takes_part) return;
    const unsigned first = (unsigned)__cvta_generic_to_shared(stage + this->k(0) * PITCH<Sum, ROWS> + this->row(0));
#pragma unroll
    for (int j = 0; j < K / AT_ONCE * ITEMS_K; ++j) {
      const int k = this->k(j % ITEMS_K) + j / ITEMS_K * AT_ONCE;
      const bool inside = k < left;
      const Offset offset = inside ? offsets[k] : 0;
#pragma unroll
      for (int i = 0; i < ITEMS_ROW; ++i) {
        const int apart = (k - this->k(0)) * PITCH<Sum, ROWS> + this->row(i) - this->row(0);
        copy_ahead<BYTES>(
            first + apart * (int)sizeof(Sum), this->origin + (this->offset[i] + offset), inside && this->there[i]);
      }
    }
  }

  template <class Index>
  __device__ void put(Sum *, Index) const {
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
};

template <bool YES, class Then, class Else> struct Choice { using type = Then; };
template <class Then, class Else> struct Choice<false, Then, Else> { using type = Else; };

#if __CUDA_ARCH__ >= 800
constexpr bool HAS_CP_ASYNC = true;
#else
constexpr bool HAS_CP_ASYNC = false;
#endif

template <class F, class Compute, class Sum, class Offset, int ROWS, int K, int THREADS>
using Loader = typename Choice<
    HAS_CP_ASYNC && is_same<typename F::Type, Sum> && F::op == Operator::IDENTITY && sizeof(Sum) >= 4,
    CoreCopier<F, Sum, Offset, ROWS, K, THREADS>, Converter<F, Compute, Sum, Offset, ROWS, K, THREADS>>::type;

// ---- the main loop ---------------------------------------------------------------------------------

// A thread's TM x TN elements of a tile: runs of RUN_M x RUN_N, which one access moves, LM x LN runs apart, so that
// lanes side by side read 16 bytes side by side.
template <class TILE, class COMPUTE, class OFFSET, class FA, class FB>
struct Cores {
  using Tile = TILE;
  using Compute = COMPUTE;
  using Offset = OFFSET;
  using TA = typename FA::Type;
  using TB = typename FB::Type;
  using Index = typename IndexOf<Offset>::type;
  using Sum = typename Summed<Compute>::type;
  using Partial = Sum;
  using LoadA = Loader<FA, Compute, Sum, Offset, Tile::ROWS, Tile::K, Tile::THREADS>;
  using LoadB = Loader<FB, Compute, Sum, Offset, Tile::COLUMNS, Tile::K, Tile::THREADS>;
  static constexpr int TM = Tile::TM, TN = Tile::TN;
  static constexpr int RUN_M = least(TM, 16 / (int)sizeof(Sum)), RUN_N = least(TN, 16 / (int)sizeof(Sum));
  static constexpr int OWNERS = Tile::GROUP, TABLES = 2;  // threads that have sums in the end; tables of k
  static constexpr int APART = 1;                         // rows of a tile between neighbours in D

  static constexpr int PITCH_A = PITCH<Sum, Tile::ROWS>, PITCH_B = PITCH<Sum, Tile::COLUMNS>;

  struct Stage {
    alignas(16) Sum a[Tile::K * PITCH_A];
    alignas(16) Sum b[Tile::K * PITCH_B];
    __device__ Stage() {}
  };
  union Storage {
    Stage stages[2];
    Sum exchange[most(1, Tile::GROUPS / 2 * Tile::GROUP * TM * TN)];
    __device__ Storage() {}
  };

  struct Given {};  // arguments beside the factors

  int group, l, first_m, first_n;
  Sum sum[TM][TN];

  __device__ Cores() {
    const int t = threadIdx.x % Tile::GROUP, cell = t / (Tile::LM * Tile::LN);
    group = Tile::GROUPS > 1 ? threadIdx.x / Tile::GROUP : 0;
    l = Tile::L > 1 ? cell / (Tile::CELLS_M * Tile::CELLS_N) : 0;
    first_m = cell % Tile::CELLS_M * Tile::LM * TM + t % Tile::LM * RUN_M;
    first_n = cell / Tile::CELLS_M % Tile::CELLS_N * Tile::LN * TN + t / Tile::LM % Tile::LN * RUN_N;
    each([](Sum &x, int) { x = zero<Sum>(); });
  }

  __device__ int m(int i) const { return first_m + i / RUN_M * Tile::LM * RUN_M + i % RUN_M; }
  __device__ int n(int j) const { return first_n + j / RUN_N * Tile::LN * RUN_N + j % RUN_N; }

  template <class Body>
  __device__ void each(const Body &body) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) body(sum[i][j], i * TN + j);
  }

  // body(row, column, sums) for WIDTH sums side by side along m, for all that the thread has; ``row_at`` and
  // ``column_at`` say what is known of the first row and of the column.
  template <int WIDTH, class RowAt, class ColumnAt, class Body>
  __device__ void each_run(const RowAt &row_at, const ColumnAt &column_at, const Body &body) const {
    static_assert(WIDTH <= RUN_M);
    if (group) return;
    decltype(column_at(0)) columns[TN];
#pragma unroll
    for (int j = 0; j < TN; ++j) columns[j] = column_at(l * Tile::N + n(j));
#pragma unroll
    for (int i = 0; i < TM; i += WIDTH) {
      const auto row = row_at(l * Tile::M + m(i));
#pragma unroll
      for (int j = 0; j < TN; ++j) {
        Vector<Sum, WIDTH> run;
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) run.at[e] = sum[i + e][j];
        body(row, columns[j], run);
      }
    }
  }

  // The products of all k of the work; the sums are those of group 0.
  template <class Work>
  __device__ void multiply(const Work &work, Storage &storage) {
    Index left = work.end - work.begin;
    work.tabulate_k(0, work.begin);
    work.tabulate_k(1, work.begin + Tile::K);
    __syncthreads();
    LoadA load_a(work.arguments.a, work.shared.a, [&](int row) { return work.is_row(row); });
    LoadB load_b(work.arguments.b, work.shared.b, [&](int column) { return work.is_column(column); });
    const auto fetch = [&](int slot) {
      load_a.fetch(work.shared.k_a[slot], left, storage.stages[slot].a);
      load_b.fetch(work.shared.k_b[slot], left, storage.stages[slot].b);
    };
    const auto put = [&](int slot) {
      load_a.put(storage.stages[slot].a, left);
      load_b.put(storage.stages[slot].b, left);
    };
    fetch(0);
    put(0);
    __syncthreads();
    Index at = work.begin;
    for (int slot = 0; at < work.end; slot ^= 1, at += Tile::K) {
      const bool more = left > Tile::K;
      if (more) {
        left -= Tile::K;
        fetch(slot ^ 1);
        work.tabulate_k(slot, at + 2 * Tile::K);
      }
      step(storage.stages[slot].a, storage.stages[slot].b, more || left > Tile::K / 2);
      if (more) put(slot ^ 1);
      __syncthreads();
    }
    join(storage.exchange);
  }

 private:
  template <int COUNT, int RUN, int APART>
  static __device__ void read(const Sum *from, Sum (&to)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i += RUN) {
      const Vector<Sum, RUN> run = *(const Vector<Sum, RUN> *)(from + i * APART);
#pragma unroll
      for (int e = 0; e < RUN; ++e) to[i + e] = run.at[e];
    }
  }

  // Each group of threads has COUNT of a step's k's. How many are straight code: all, unless reads so far ahead take more
  // registers than there are.
  static constexpr int COUNT = Tile::K / Tile::GROUPS, HALF = most(1, COUNT / 2);
  static constexpr int UNROLLED = sizeof(Sum) > 8 ? 1 : HAS_CP_ASYNC ? HALF : 2;

  // sum += a b for the k of one step. The second half is left out where there are not so many k's.
  __device__ void step(const Sum *a, const Sum *b, bool whole) {
    a += group * PITCH_A + l * Tile::M + first_m, b += group * PITCH_B + l * Tile::N + first_n;
    multiply_half(a, b);
    if (HALF < COUNT && whole)
      multiply_half(a + HALF * Tile::GROUPS * PITCH_A, b + HALF * Tile::GROUPS * PITCH_B);
  }

  __device__ void multiply_half(const Sum *a, const Sum *b) {
#pragma unroll UNROLLED
    for (int k = 0; k < HALF; ++k) {
      Sum x[TM], y[TN];
      read<TM, RUN_M, Tile::LM>(a + k * Tile::GROUPS * PITCH_A, x);
      read<TN, RUN_N, Tile::LN>(b + k * Tile::GROUPS * PITCH_B, y);
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) sum[i][j] = multiply_add(x[i], y[j], sum[i][j]);
    }
  }

  // Adds the groups' sums, by halves, into that of group 0.
  __device__ void join(Sum *exchange) {
    for (int half = Tile::GROUPS / 2; half; half /= 2) {
      const int giver = threadIdx.x - half * Tile::GROUP;
      if (group >= half && group < 2 * half) each([&](Sum &x, int at) { exchange[at * Tile::THREADS / 2 + giver] = x; });
      __syncthreads();
      if (group < half) each([&](Sum &x, int at) { x = add(x, exchange[at * Tile::THREADS / 2 + threadIdx.x]); });
      __syncthreads();
    }
  }
};

}  // namespace contract
