// Products of float64 by the 8-bit tensor cores: sums of all products of slices, each exact.
//
// With 2^p above every element of a row, slice s of the row has its digits of weight 2^(p - 6 - 8 s), each from -128
// to 127: an element is the sum of its digits times their weights. Products of slices s of A and t of B are of the
// order s + t. Those of one order are summed in 32 bits, the orders in float64 from the smallest weight to the
// largest. Slices of both factors lie in memory one after the other, each with k side by side.

namespace contract {

constexpr int EMPTY = -(1 << 20);  // the exponent of a row of zeros

// What the factors need (A, B): ``slices`` until every element is a sum of digits, and in how many powers of 2 the
// elements of a row may lie. ``native``: no slices serve.
struct Need {
  int slices[2], range[2], native, unused;
};

// An 8-bit unit whose sums end in float64.
struct Digits : Int8<signed char> {
  using Sum = double;

  // The sizes of four digits; none is -128 in the first slice.
  static __device__ unsigned sizes(unsigned x) {
    const unsigned negative = (x >> 7 & 0x01010101u) * 0xffu;
    return (x ^ negative) + (negative & 0x01010101u);
  }
};

// x 2^exponent for x = 0 or 2^-250 < |x| < 2^100: rounded once, infinite only where the result is.
__device__ inline double scaled_by_power(double x, int exponent) {
  const int near = least(most(exponent, -700), 700), far = least(most(exponent - near, -1000), 1000);
  return x * __hiloint2double((1023 + near) << 20, 0) * __hiloint2double((1023 + far) << 20, 0);
}

// Pairs of slices of one order, k after k; then the next lower order, until all are done.
struct Pairs {
  int slices_a, slices_b, depth;
  int order, s, k = 0;

  __device__ Pairs(int slices_a, int slices_b, int orders, int depth)
      : slices_a(slices_a), slices_b(slices_b), depth(depth), order(orders - 1) {
    s = first();
  }
  __device__ int first() const { return most(0, order - slices_b + 1); }
  __device__ int t() const { return order - s; }
  __device__ bool done() const { return order < 0; }
  __device__ void advance(int step) {
    k += step;
    if (k < depth) return;
    k = 0;
    if (++s <= order && s < slices_a) return;
    --order;
    s = first();
  }
};

// Rows of a factor are real: of a complex A the real and the imaginary parts, one after the other along k; of a
// complex B the rows that give the real part of the product, and as many that give the imaginary part.
template <class TILE, class UNIT, class COMPUTE, class OFFSET, class FA, class FB>
struct Sliced : TensorCores<TILE, UNIT, COMPUTE, OFFSET, FA, FB> {
  using Base = TensorCores<TILE, UNIT, COMPUTE, OFFSET, FA, FB>;
  using typename Base::CopyA, typename Base::CopyB, typename Base::ReadA, typename Base::ReadB, typename Base::Tile;
  using typename Base::PlaceA, typename Base::PlaceB, typename Base::RowsOfA, typename Base::ColumnsOfB;
  using typename Base::Part;
  using Unit = UNIT;
  using Base::PLANES, Base::TM, Base::TN, Base::sum;
  static constexpr int TABLES = 1;
  static constexpr int MOST_STEPS = (1 << 17) / Tile::K - 1;  // whose products are less than 2^31

  struct Given {
    const int *exponents_a, *exponents_b;
    const Need *need;
    long long slice_a, slice_b, plane_b;  // digits from one slice, or plane, to the next
  };
  struct Stage {
    alignas(128) unsigned char a[PlaceA::BYTES], b[PLANES][PlaceB::BYTES];
  };
  union Storage {
    Stage stages[Tile::STAGES];
    int votes[Tile::WARPS];
    __device__ Storage() {}
  };

  int digits[PLANES][TM][TN][4];  // sums of products of digits

  template <class Work>
  __device__ void multiply(const Work &work, Storage &storage) {
    const Need need = *work.arguments.need;
    const int depth = (int)work.end;
    for (int i = threadIdx.x; i < Tile::K; i += Tile::THREADS) work.shared.k_a[0][i] = work.shared.k_b[0][i] = i;
    __syncthreads();
    CopyA copy_a(work.arguments.a, work.shared.a, [&](int row) { return work.is_row(row); });
    CopyB copy_b(work.arguments.b, work.shared.b, [&](int column) { return work.is_column(column); });

    int orders = least(need.slices[0] + need.slices[1] - 1, orders_of_range(need));
    if (orders > LEAST_ORDERS) {
      clear();
      run<true>(work, storage, copy_a, copy_b, {1, 1, 1, least(depth, MOST_STEPS * Tile::K)}, [](const Pairs &) {});
      orders = least(orders, orders_of_sums(work, storage));
    }

    clear();
    int steps = 0, order = orders - 1;
    double weight = 1.0 / 256;  // of what is summed so far, beside the order that comes
    run<false>(work, storage, copy_a, copy_b, {need.slices[0], need.slices[1], orders, depth}, [&](const Pairs &next) {
      if (++steps < MOST_STEPS && next.order == order) return;
      flush(weight);
      weight = next.order == order ? 1.0 : 1.0 / 256;
      order = next.order;
      steps = 0;
    });
    scale(work);
  }

 private:
  // ---- how many orders are enough ------------------------------------------------------------------
  //
  // With |A| < 2^p and |B| < 2^q in a row and a column, the products of the orders left out are less than
  // 16 2^14 2^(-12 - 8 orders) 2^(p + q) for each k, with 16 slices: at most a quarter of 2^-53 |A| |B| is asked for.

  // |A| >= 2^(p - 1 - range), |B| the same.
  static __device__ int orders_of_range(const Need &need) { return (63 + need.range[0] + need.range[1] + 7) / 8; }

  // The digits of the first slice are at most 2.01 times what they stand for: the sum of |A| |B| is at least a fifth of
  // that of the sizes of their products, in units of 2^(p + q - 12).
  template <class Work>
  __device__ int orders_of_sums(const Work &work, Storage &storage) {
    int smallest = 1 << 30;
    each_place([&](int i, int j, int e, int row, int column) {
      if (!work.is_row(row) || !work.is_column(column)) return;
      if (exponent_a(work, row) == EMPTY || exponent_b(work, column) == EMPTY) return;
      int size = digits[0][i][j][e];
      if constexpr (PLANES == 2) size = most(size, digits[1][i][j][e]);
      smallest = least(smallest, size);
    });
    smallest = __reduce_min_sync(0xffffffffu, smallest);
    if (threadIdx.x % 32 == 0) storage.votes[threadIdx.x / 32] = smallest;
    __syncthreads();
    for (int w = 0; w < Tile::WARPS; ++w) smallest = least(smallest, storage.votes[w]);
    __syncthreads();
    return smallest ? (76 - (31 - __clz(smallest)) + 7) / 8 : 1 << 30;
  }
  static constexpr int LEAST_ORDERS = (76 - 30 + 7) / 8;  // for sums of 31 bits

  // ---- sums of digits --------------------------------------------------------------------------------

  // The products of all ``pairs``, a step at a time; after each, ``body`` gets those that are next.
  template <bool SIZES, class Work, class Body>
  __device__ void run(const Work &work, Storage &storage, CopyA &copy_a, CopyB &copy_b, Pairs pairs, const Body &body) {
    constexpr int AHEAD = Tile::STAGES - 1;
    const auto &given = work.arguments;
    const Part part;
    const ReadA read_a(part.l, part.m);
    const ReadB read_b(part.l, part.n);
    const auto fetch = [&](int slot, const Pairs &at) {
      copy_a.fetch(storage.stages[slot].a, work.shared.k_a[0], Tile::K, at.s * given.slice_a + at.k);
#pragma unroll
      for (int p = 0; p < PLANES; ++p) {
        const long long shift = at.t() * given.slice_b + p * given.plane_b + at.k;
        copy_b.fetch(storage.stages[slot].b[p], work.shared.k_b[0], Tile::K, shift);
      }
    };
    Pairs ahead = pairs;
#pragma unroll 1
    for (int s = 0; s < AHEAD; ++s) {
      if (!ahead.done()) {
        fetch(s, ahead);
        ahead.advance(Tile::K);
      }
      commit_copies();
    }
    for (int slot = 0, next = AHEAD; !pairs.done();) {
      wait_copies<AHEAD - 1>();
      __syncthreads();
      if (!ahead.done()) {
        fetch(next, ahead);
        ahead.advance(Tile::K);
      }
      commit_copies();
      step<SIZES>(storage.stages[slot], read_a, read_b);
      pairs.advance(Tile::K);
      body(pairs);
      next = slot;
      slot = slot + 1 == Tile::STAGES ? 0 : slot + 1;
    }
    wait_copies<0>();
    __syncthreads();
  }

  template <bool SIZES>
  static __device__ typename Unit::Words words(const typename Unit::Words &x) {
    if constexpr (SIZES) return {Unit::sizes(x.at[0]), Unit::sizes(x.at[1])};
    else return x;
  }

  template <bool SIZES>
  __device__ void step(const Stage &stage, const ReadA &read_a, const ReadB &read_b) {
#pragma unroll
    for (int k = 0; k < Tile::K; k += Unit::K)
#pragma unroll
      for (int p = 0; p < PLANES; ++p) {
        ColumnsOfB b;
        Base::template read<false>(stage.b[p], read_b, k, Tile::K, b);
#pragma unroll
        for (int i = 0; i < TM; ++i) {
          RowsOfA a;
          static_assert(ReadA::AT_ONCE == 2);
          read_a.template read<false>(stage.a, 2 * i, k, Tile::K, a);
          const auto upper = words<SIZES>(a[0].at[0][0]), lower = words<SIZES>(a[1].at[0][0]);
#pragma unroll
          for (int j = 0; j < TN; ++j)
            Unit::multiply(digits[p][i][j], upper, lower, words<SIZES>(b[j].at[0][0]));
        }
      }
  }

  __device__ void clear() {
#pragma unroll
    for (int p = 0; p < PLANES; ++p)
      each_place([&](int i, int j, int e, int, int) { digits[p][i][j][e] = 0; });
  }

  // Adds the sums of digits to those of smaller weight.
  __device__ void flush(double weight) {
#pragma unroll
    for (int p = 0; p < PLANES; ++p)
      each_place([&](int i, int j, int e, int, int) {
        sum[p][i][j][e] = fma(sum[p][i][j][e], weight, (double)digits[p][i][j][e]);
        digits[p][i][j][e] = 0;
      });
  }

  template <class Work>
  __device__ void scale(const Work &work) {
    each_place([&](int i, int j, int e, int row, int column) {
      if (!work.is_row(row) || !work.is_column(column)) return;
      const int exponent = exponent_a(work, row) + exponent_b(work, column) - 12;
#pragma unroll
      for (int p = 0; p < PLANES; ++p) sum[p][i][j][e] = scaled_by_power(sum[p][i][j][e], exponent);
    });
  }

  // ---- places ----------------------------------------------------------------------------------------

  // body(i, j, e, row, column) for the thread's sums and where they are in the tile.
  template <class Body>
  __device__ void each_place(const Body &body) const {
    const Part part;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          body(i, j, e, part.row(2 * i + e / 2), part.column(j, e));
  }

  template <class Work>
  static __device__ int exponent_a(const Work &work, int row) {
    const auto at = (work.corner.l + row / Tile::M) * work.arguments.m + work.corner.m + row % Tile::M;
    return work.arguments.exponents_a[at];
  }
  template <class Work>
  static __device__ int exponent_b(const Work &work, int column) {
    const auto at = (work.corner.l + column / Tile::N) * work.arguments.n + work.corner.n + column % Tile::N;
    return work.arguments.exponents_b[at];
  }
};

}  // namespace contract
