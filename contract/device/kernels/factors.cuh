// The tensors of a product D = alpha opA(A) opB(B) + beta opC(C), and how a kernel reads them.

namespace contract {

__host__ __device__ constexpr int least(int x, int y) { return x < y ? x : y; }
__host__ __device__ constexpr int most(int x, int y) { return x < y ? y : x; }
// The largest power of 2 up to x, which is 1 or more.
__host__ __device__ constexpr int power_up_to(int x) { return x < 2 ? 1 : 2 * power_up_to(x / 2); }

// The type in which products are added: small integers in 32 bits, whose low bits come out the same.
template <class T> struct Summed { using type = T; };
template <> struct Summed<signed char> { using type = int; };
template <> struct Summed<short> { using type = int; };
template <> struct Summed<unsigned char> { using type = int; };
template <> struct Summed<unsigned short> { using type = int; };

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

// alpha sum + beta op(c); a beta of 0 leaves C unread.
template <class Target, class Compute, class C>
struct Finish {
  Compute alpha, beta;
  bool adds;

  __device__ Finish(Compute alpha, Compute beta) : alpha(alpha), beta(beta), adds(C::present && !is_zero(beta)) {}

  // Where nothing is added. A factor of 1 leaves real numbers as they are without a question.
  __device__ Target operator()(Compute sum) const {
    if constexpr (is_complex<Compute>) return convert<Target>(scaled(sum, alpha));
    else return convert<Target>(multiply(alpha, sum));
  }

  __device__ Target operator()(Compute sum, typename C::Type c) const {
    Compute value = scaled(sum, alpha);
    if (adds) value = add(value, scaled(apply<C::op>(convert<Compute>(c)), beta));
    return convert<Target>(value);
  }
};

// Begins to copy BYTES to shared memory; zeros where there is nothing. L2 fetches the whole line: the next step or a
// block beside has the rest of it, which DRAM gives at less cost than later by itself.
template <int BYTES>
__device__ inline void copy_ahead(unsigned to, const void *from, bool there) {
  const int read = there ? BYTES : 0;
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(read) : "memory");
  else
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(read)
                 : "memory");
}

// Which k's and rows of a factor the threads of a block read: accesses of WIDTH elements, lanes side by side along
// LANES_K and LANES_ROW of them, each thread ITEMS_K x ITEMS_ROW.
template <class F, int ROWS, int K, int THREADS>
struct Accesses {
  static constexpr bool BY_K = F::along == Along::K;
  static constexpr int UNIT_K = BY_K ? F::width : 1, UNIT_ROW = BY_K ? 1 : F::width;
  static constexpr int ALL_K = K / UNIT_K, ALL_ROWS = ROWS / UNIT_ROW;
  static constexpr int ACROSS = BY_K ? least(ALL_K, THREADS) : least(ALL_K, power_up_to(THREADS / ALL_ROWS));
  static constexpr int EVEN_ROWS = THREADS / ACROSS < ALL_ROWS ? ALL_ROWS & -ALL_ROWS : ALL_ROWS;
  static constexpr int DOWN = least(EVEN_ROWS, THREADS / ACROSS);  // threads along k and along the rows
  static constexpr int LANES_K =
      BY_K ? least(ACROSS, most(1, 32 / (int)(F::width * sizeof(typename F::Type)))) : 1;
  static constexpr int LANES_ROW = BY_K ? least(DOWN, 32 / LANES_K) : DOWN;
  static constexpr int ITEMS_K = ALL_K / ACROSS, ITEMS_ROW = ALL_ROWS / DOWN;
  static_assert(ITEMS_K * ACROSS * UNIT_K == K && ITEMS_ROW * DOWN * UNIT_ROW == ROWS);

  int first_k, first_row;
  bool takes_part;

  __device__ Accesses() {
    const int across = LANES_K * LANES_ROW, t = threadIdx.x, rest = t / across;
    first_k = (t % LANES_K + rest % (ACROSS / LANES_K) * LANES_K) * UNIT_K;
    first_row = (t / LANES_K % LANES_ROW + rest / (ACROSS / LANES_K) * LANES_ROW) * UNIT_ROW;
    takes_part = t < ACROSS * DOWN;
  }

  __device__ int k(int item) const { return first_k + item * ACROSS * UNIT_K; }
  __device__ int row(int item) const { return first_row + item * DOWN * UNIT_ROW; }
};

// The rows of a factor that a thread reads: where they are, and whether they are in the tensor.
template <class F, class Offset, int ROWS, int K, int THREADS>
struct FactorRows : Accesses<F, ROWS, K, THREADS> {
  using Access = Accesses<F, ROWS, K, THREADS>;
  using T = typename F::Type;
  using Raw = Vector<T, F::width>;

  const T *origin;
  bool there[Access::ITEMS_ROW];
  Offset offset[Access::ITEMS_ROW];

  // ``valid(row)`` says whether a row is in the tensor; ``rows`` has the offsets of those that are.
  template <class Valid>
  __device__ FactorRows(const T *origin, const Offset *rows, const Valid &valid) : origin(origin) {
#pragma unroll
    for (int i = 0; i < Access::ITEMS_ROW; ++i) {
      there[i] = this->takes_part && valid(this->row(i));
      offset[i] = there[i] ? rows[this->row(i)] : 0;
    }
  }
};

}  // namespace contract
