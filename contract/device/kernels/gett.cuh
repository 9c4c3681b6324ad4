// D[l,m,n] = alpha sum_k opA(A[l,m,k]) opB(B[l,k,n]) + beta opC(C[l,m,n]) on any strides.
//
// The loops of a kind are flattened into one index. A block does a tile of L x M x N elements of D; MAIN multiplies
// it, K of the k at a step. Where things are stands in tables in shared memory: the offsets of the tile's rows (l, m)
// and columns (l, n), made once a tile, and those of the k of a step. The first ``whole`` tiles are summed at once;
// of the others each item of work sums a part of the k, and a second kernel adds the parts in order.

namespace contract {

enum Tensor { D, A, B, C };  // the order of strides in a loop

// Where index ``i`` of some loops, the first fastest, is in each tensor.
template <class Offset>
__device__ inline Place<Offset, 4, false> place(typename IndexOf<Offset>::type i, const Loop<4> *loops, unsigned count) {
  Place<Offset, 4, false> here;
  UNROLL_MODES
  for (unsigned at = 0; at < count; ++at) here.move(loops[at], split_off(i, loops[at]));
  return here;
}

// WIDTH elements of D are written at once, MAIN::APART rows of a tile from each other. Shared memory is static, or
// SHARED bytes given at the launch.
template <class Target, int RANK, class MAIN, class FC, int WIDTH, int SHARED>
struct Gett {
  using Tile = typename MAIN::Tile;
  using Compute = typename MAIN::Compute;
  using Offset = typename MAIN::Offset;
  using Sum = typename MAIN::Sum;
  using Partial = typename MAIN::Partial;
  using TC = typename FC::Type;
  using Index = typename IndexOf<Offset>::type;
  using Here = Place<Offset, 4, false>;
  static constexpr int TILE_PARTIALS = Tile::L * Tile::M * Tile::N * (int)(sizeof(Sum) / sizeof(Partial));

  struct Arguments : MAIN::Given {
    const typename MAIN::TA *a;
    const typename MAIN::TB *b;
    const TC *c;
    Target *d;
    Partial *parts;  // of the tiles done in parts: tile by tile, part by part, as the threads have them
    Compute alpha, beta;
    unsigned loops_l, loops_m, loops_n, loops_k;  // how many of ``loops`` are of each kind, in this order
    long long l, m, n, k;                         // their flattened extents
    long long tiles, whole, items, part_k;        // items of work: tiles done whole, then parts of ``part_k``
    Loop<4> tiles_of[3];                          // tiles along m, n, l
    Loop<4> parts_of;                             // the parts of a tile
    Loop<4> loops[RANK];
  };

  struct Corner {
    Index l, m, n;
  };

  struct Shared {
    typename MAIN::Storage storage;
    Offset a[Tile::ROWS], row_d[Tile::ROWS], row_c[FC::present ? Tile::ROWS : 1];
    Offset b[Tile::COLUMNS], column_d[Tile::COLUMNS], column_c[FC::present ? Tile::COLUMNS : 1];
    Offset k_a[MAIN::TABLES][Tile::K], k_b[MAIN::TABLES][Tile::K];
  };

  // ---- one tile --------------------------------------------------------------------------------

  // A tile and the k to be summed, begin <= k < end.
  struct Work {
    const Arguments &arguments;
    Shared &shared;
    Index begin, end;
    Corner corner;
    int l, m, n;  // how much of the tile is in the tensor

    __device__ Work(const Arguments &a, Shared &s, Index item) : arguments(a), shared(s), begin(0), end(a.k) {
      Index tile = item;
      if (item >= a.whole) {
        tile -= a.whole;
        begin = split_off(tile, a.parts_of) * a.part_k;
        tile += a.whole;
        end = begin + a.part_k < a.k ? begin + a.part_k : a.k;
      }
      corner.m = split_off(tile, a.tiles_of[0]) * Tile::M;
      corner.n = split_off(tile, a.tiles_of[1]) * Tile::N;
      corner.l = tile * Tile::L;
      l = inside<Tile::L>(a.l - corner.l), m = inside<Tile::M>(a.m - corner.m), n = inside<Tile::N>(a.n - corner.n);
    }

    template <int SIDE>
    static __device__ int inside(long long left) { return left < SIDE ? (int)left : SIDE; }
    __device__ bool is_inside() const { return l == Tile::L && m == Tile::M && n == Tile::N; }
    __device__ bool is_row(int row) const { return row / Tile::M < l && row % Tile::M < m; }
    __device__ bool is_column(int column) const { return column / Tile::N < l && column % Tile::N < n; }

    // The offsets of l are part of the rows' in D and C. Rows beyond the tensor are read where the first one is: what
    // comes of them is not written.
    __device__ void tabulate() const {
      const Arguments &a = arguments;
      Shared &s = shared;
      for (int i = threadIdx.x; i < Tile::ROWS; i += Tile::THREADS) {
        const bool there = is_row(i);
        const Here batch = place<Offset>(corner.l + (there ? i / Tile::M : 0), a.loops, a.loops_l);
        const Here here = place<Offset>(corner.m + (there ? i % Tile::M : 0), a.loops + a.loops_l, a.loops_m);
        s.a[i] = batch.at[A] + here.at[A], s.row_d[i] = batch.at[D] + here.at[D];
        if constexpr (FC::present) s.row_c[i] = batch.at[C] + here.at[C];
      }
      for (int i = threadIdx.x; i < Tile::COLUMNS; i += Tile::THREADS) {
        const bool there = is_column(i);
        const Here batch = place<Offset>(corner.l + (there ? i / Tile::N : 0), a.loops, a.loops_l);
        const Here here =
            place<Offset>(corner.n + (there ? i % Tile::N : 0), a.loops + a.loops_l + a.loops_m, a.loops_n);
        s.b[i] = batch.at[B] + here.at[B], s.column_d[i] = here.at[D];
        if constexpr (FC::present) s.column_c[i] = here.at[C];
      }
    }

    // The offsets of the k's of ``steps`` steps from ``first`` on, into the tables from ``slot`` on; 0 beyond the last.
    __device__ void tabulate_k(int slot, Index first, int steps = 1) const {
      const Arguments &a = arguments;
      for (int i = threadIdx.x; i < steps * Tile::K; i += Tile::THREADS) {
        Here here;
        if (first + i < end) here = place<Offset>(first + i, a.loops + a.loops_l + a.loops_m + a.loops_n, a.loops_k);
        shared.k_a[slot][i] = here.at[A], shared.k_b[slot][i] = here.at[B];
      }
    }

    __device__ void write(const MAIN &main) const {
      const Finish<Target, Compute, FC> finish(arguments.alpha, arguments.beta);
      if (finish.adds) write<true>(main, finish, false);
      else if (is_inside()) write<false>(main, finish, true);
      else write<false>(main, finish, false);
    }

   private:
    struct Row {
      Target *d;
      int number;
      bool there;
    };
    struct Column {
      Offset d;
      int number;
      bool there;
    };

    // ``whole``: no row and no column is beyond the tensor.
    template <bool ADDS, class Finishing>
    __device__ void write(const MAIN &main, const Finishing &finish, bool whole) const {
      main.template each_run<WIDTH>(
          [&](int row) { return Row{kept(arguments.d + shared.row_d[row]), row, whole || is_row(row)}; },
          [&](int column) { return Column{shared.column_d[column], column, whole || is_column(column)}; },
          [&](const Row &row, const Column &column, const Vector<Sum, WIDTH> &sums) {
            if (!row.there || !column.there) return;
            Vector<Target, WIDTH> done;
            if constexpr (ADDS && FC::present) {
              const Vector<TC, WIDTH> addend = read_c(row.number, column.number);
#pragma unroll
              for (int e = 0; e < WIDTH; ++e) done.at[e] = finish(convert<Compute>(sums.at[e]), addend.at[e]);
            } else {
#pragma unroll
              for (int e = 0; e < WIDTH; ++e) done.at[e] = finish(convert<Compute>(sums.at[e]));
            }
            *(Vector<Target, WIDTH> *)(row.d + column.d) = done;
          });
    }

    __device__ Vector<TC, WIDTH> read_c(int row, int column) const {
      const TC *from = arguments.c + shared.column_c[column];
      if constexpr (FC::width == WIDTH) {
        return *(const Vector<TC, WIDTH> *)(from + shared.row_c[row]);
      } else {
        Vector<TC, WIDTH> read;
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) read.at[e] = from[shared.row_c[row + e * MAIN::APART]];
        return read;
      }
    }
  };

  // ---- the kernels ---------------------------------------------------------------------------------

  static __device__ Shared &memory() {
    if constexpr (SHARED > 0) {
      static_assert(sizeof(Shared) <= SHARED);
      extern __shared__ __align__(128) unsigned char given[];
      return *(Shared *)given;
    } else {
      __shared__ Shared own;
      return own;
    }
  }

  static __device__ Index block() { return blockIdx.x + (Index)gridDim.x * blockIdx.y; }

  static __device__ Partial *part(const Arguments &a, Index number) {
    return a.parts + (long long)number * TILE_PARTIALS + threadIdx.x;
  }

  // A factor alpha of 0 leaves A and B unread. What is known of a tile is found once more for its end: meanwhile it
  // would take registers.
  static __device__ void multiply(const Arguments &a) {
    Shared &s = memory();
    const bool multiplies = !is_zero(a.alpha);
    for (Index item = block(); item < a.items; item += (Index)gridDim.x * gridDim.y) {
      if (item >= a.whole && !multiplies) return;
      const Work work(a, s, item);
      MAIN main;
      work.tabulate();
      if (multiplies) main.multiply(work, s.storage);
      else __syncthreads();
      item = kept(item);
      if (item < a.whole) Work(a, s, item).write(main);
      else if (threadIdx.x < MAIN::OWNERS)
        main.each([&](Partial &x, int at) { part(a, item - a.whole)[at * MAIN::OWNERS] = x; });
      __syncthreads();
    }
  }

  // A block for each tile done in parts: D = alpha (the parts in order) + beta op(C).
  static __device__ void add_parts(const Arguments &a) {
    Shared &s = memory();
    const Index tile = block();
    if (a.whole + tile >= a.tiles) return;
    const Work work(a, s, a.whole + tile * a.parts_of.extent);
    MAIN main;
    work.tabulate();
    if (!is_zero(a.alpha) && threadIdx.x < MAIN::OWNERS)
      for (unsigned p = 0; p < a.parts_of.extent; ++p)
        main.each([&](Partial &x, int at) { x = add(x, part(a, tile * a.parts_of.extent + p)[at * MAIN::OWNERS]); });
    __syncthreads();
    work.write(main);
  }
};

}  // namespace contract
