// The factors of a product in slices: what every row needs, then its digits.

namespace contract {

// x = mantissa 2^(exponent - 53), 2^52 <= |mantissa| < 2^53 or 0.
struct Scaled {
  long long mantissa;
  int exponent;
  bool finite;

  __device__ explicit Scaled(double x) {
    const long long bits = __double_as_longlong(x), fraction = bits & 0xfffffffffffff;
    const int field = (int)(bits >> 52) & 0x7ff;
    const long long size = field ? fraction | 1ll << 52 : fraction;
    const int shift = __clzll(size) - 11;
    exponent = most(field, 1) - 1022 - shift;
    mantissa = bits < 0 ? -(size << shift) : size << shift;
    finite = field != 0x7ff;
  }

  __device__ int lowest() const { return exponent - 54 + __ffsll(mantissa); }  // of its bits

  // Its eight digits in a row of an exponent, the last in the last byte; ``first`` is the slice of the first.
  __device__ unsigned long long digits(int row_exponent, int &first) const {
    constexpr unsigned long long HALVES = 0x8080808080808080ull;
    const int below = row_exponent - exponent;
    first = below / 8;
    return ((unsigned long long)mantissa << (9 - below % 8)) + HALVES ^ HALVES;
  }
};

// ROWS rows of a factor, of which a block reads K k's at a step.
template <class F, class COMPUTE, class OFFSET, Tensor WHICH, int MOST_SLICES>
struct Panel {
  using T = typename F::Type;
  using Compute = COMPUTE;
  using Offset = OFFSET;
  using Index = typename IndexOf<Offset>::type;
  static constexpr int ROWS = 32, K = 64, THREADS = 256, WARPS = THREADS / 32;
  using Load = Converter<F, Compute, Compute, Offset, ROWS, K, THREADS>;
  static constexpr bool COMPLEX = is_complex<Compute>;
  static constexpr int SIDE = WHICH == B;  // in Need
  static constexpr int PLANES = COMPLEX && WHICH == B ? 2 : 1, HALVES = COMPLEX ? 2 : 1;
  static_assert(MOST_SLICES <= 16);

  // What is known of the elements of a row: the exponents of the largest and the smallest, and of the lowest bit.
  struct Extremes {
    int highest = EMPTY, smallest = 1 << 20, lowest = 1 << 20, finite = true;

    __device__ void include(const Extremes &x) {
      highest = most(highest, x.highest);
      smallest = least(smallest, x.smallest);
      lowest = least(lowest, x.lowest);
      finite = finite && x.finite;
    }
    __device__ void include(double x) {
      const Scaled scaled(x);
      if (scaled.mantissa) include({scaled.exponent, scaled.exponent, scaled.lowest(), scaled.finite});
    }
    // A small part beside a large one need not be known better than the number is.
    __device__ void include(Complex<double> x) {
      Extremes both;
      both.include(x.re);
      both.include(x.im);
      both.smallest = both.highest == EMPTY ? both.smallest : both.highest;
      both.lowest = most(both.lowest, both.highest - 53);
      include(both);
    }
  };

  struct Target {
    const T *origin;
    int *exponents;
    signed char *slices;
    long long slice, plane;  // digits from one to the next
  };
  struct Shared {
    alignas(16) Compute stage[K * PITCH<Compute, ROWS>];
    Offset rows[ROWS], k[K];
    Extremes found[WARPS][ROWS];
  };

  template <class Arguments>
  static __device__ void measure(const Arguments &a, const Target &target, Index panel, Shared &s, Need *need) {
    const int row = threadIdx.x % ROWS, warp = threadIdx.x / 32;
    const Index at = panel * ROWS + row;
    Extremes found;
    each_step(a, target, panel, s, [&](Index) {
      if (at >= rows(a)) return;
      for (int k = warp; k < K; k += WARPS) found.include(element(s, row, k));
    });
    s.found[warp][row] = found;
    __syncthreads();
    if (warp) return;
    for (int w = 1; w < WARPS; ++w) found.include(s.found[w][row]);
    const bool empty = found.highest == EMPTY;
    if (at < rows(a)) target.exponents[at] = found.highest;
    const int slices = __reduce_max_sync(~0u, empty ? 1 : (found.highest - found.lowest + 9) / 8);
    const int range = __reduce_max_sync(~0u, empty ? 0 : found.highest - found.smallest);
    if (!found.finite || slices > MOST_SLICES) need->native = 1;
    if (threadIdx.x) return;
    atomicMax(&need->slices[SIDE], slices);
    atomicMax(&need->range[SIDE], range);
  }

  // Eight digits of each slice at a time.
  template <class Arguments>
  static __device__ void slice(const Arguments &a, const Target &target, Index panel, Shared &s, int slices) {
    const int row = threadIdx.x % ROWS, eight = threadIdx.x / ROWS * 8;
    const Index at = panel * ROWS + row;
    const int exponent = at < rows(a) ? target.exponents[at] : EMPTY;
    const long long half = (a.k + K - 1) / K * K;
    each_step(a, target, panel, s, [&](Index first) {
      if (at >= rows(a)) return;
#pragma unroll
      for (int part = 0; part < PLANES * HALVES; ++part) {
        const int plane = part / HALVES, at_half = part % HALVES;
        unsigned long long digits[8];
        int begin[8];
#pragma unroll
        for (int e = 0; e < 8; ++e)
          digits[e] = Scaled(real(element(s, row, eight + e), plane, at_half)).digits(exponent, begin[e]);
        signed char *to = target.slices + plane * target.plane + at * HALVES * half + at_half * half + first + eight;
        for (int n = 0; n < slices; ++n) {
          Vector<unsigned char, 8> eight_digits;
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            const int byte = begin[e] + 7 - n;
            eight_digits.at[e] = (unsigned)byte < 8 ? digits[e] >> 8 * byte : 0;
          }
          *(Vector<unsigned char, 8> *)(to + n * target.slice) = eight_digits;
        }
      }
    });
  }

 private:
  template <class Arguments>
  static __device__ Index rows(const Arguments &a) {
    return a.l * (WHICH == A ? a.m : a.n);
  }

  static __device__ Compute element(const Shared &s, int row, int k) {
    return s.stage[k * PITCH<Compute, ROWS> + row];
  }

  // The half of a row in a plane: (re, im) of A meets (re, -im) and (im, re) of B.
  static __device__ double real(Compute x, int plane, int half) {
    if constexpr (!COMPLEX) return x;
    else if (plane == half) return x.re;
    else return WHICH == B && plane == 0 ? -x.im : x.im;
  }

  // body(first) for every step, once its elements are in shared memory.
  template <class Arguments, class Body>
  static __device__ void each_step(const Arguments &a, const Target &target, Index panel, Shared &s, const Body &body) {
    const unsigned before = a.loops_l + (WHICH == A ? 0 : a.loops_m);
    for (int i = threadIdx.x; i < ROWS; i += THREADS) {
      Index at = panel * ROWS + i;
      if (at >= rows(a)) break;
      const Index inner = split_off(at, a.sides[SIDE]);
      s.rows[i] = place<Offset>(at, a.loops, a.loops_l).at[WHICH] +
                  place<Offset>(inner, a.loops + before, WHICH == A ? a.loops_m : a.loops_n).at[WHICH];
    }
    __syncthreads();
    Load load(target.origin, s.rows, [&](int row) { return panel * ROWS + row < rows(a); });
    for (Index first = 0; first < a.k; first += K) {
      for (int i = threadIdx.x; i < K; i += THREADS)
        if (first + i < a.k)
          s.k[i] = place<Offset>(first + i, a.loops + a.loops_l + a.loops_m + a.loops_n, a.loops_k).at[WHICH];
      __syncthreads();
      load.fetch(s.k, (Index)(a.k - first), s.stage);
      load.put(s.stage, (Index)(a.k - first));
      __syncthreads();
      body(first);
    }
  }
};

// The first panels are those of A, the others of B. An alpha of 0 leaves both unread.
template <int RANK, class FACTOR_A, class FACTOR_B>
struct Slicing {
  using Index = typename FACTOR_A::Index;

  struct Arguments {
    typename FACTOR_A::Target a;
    typename FACTOR_B::Target b;
    Need *need;
    typename FACTOR_A::Compute alpha;
    unsigned loops_l, loops_m, loops_n, loops_k;
    long long l, m, n, k, panels_a;
    Loop<4> sides[2];  // m and n
    Loop<4> loops[RANK];
  };

  static __device__ void clear(const Arguments &a) { *a.need = {{0, 0}, {0, 0}, is_zero(a.alpha), 0}; }

  static __device__ void measure(const Arguments &a) {
    if (is_zero(a.alpha)) return;
    Shared &s = memory();
    const Index panel = blockIdx.x;
    if (panel < a.panels_a) FACTOR_A::measure(a, a.a, panel, s.a, a.need);
    else FACTOR_B::measure(a, a.b, panel - a.panels_a, s.b, a.need);
  }

  static __device__ void slice(const Arguments &a) {
    Shared &s = memory();
    const Index panel = blockIdx.x;
    if (panel < a.panels_a) FACTOR_A::slice(a, a.a, panel, s.a, a.need->slices[0]);
    else FACTOR_B::slice(a, a.b, panel - a.panels_a, s.b, a.need->slices[1]);
  }

 private:
  union Shared {
    typename FACTOR_A::Shared a;
    typename FACTOR_B::Shared b;
    __device__ Shared() {}
  };
  static __device__ Shared &memory() {
    __shared__ Shared own;
    return own;
  }
};

}  // namespace contract
