// D[i] = op2(op1(alpha opA(A[i]), beta opB(B[i])), gamma opC(C[i])); a permutation is the case of one source.
//
// A block does a tile: TX cells along D's fastest modes by TY cells along the fastest modes of sources that
// lie in another order. A cell is UNIT elements which all of them keep side by side. Sources in D's order are read
// where they are needed; the others are read along their own fastest mode and turned in shared memory, whose rows
// are one word longer than the tile, so that from 4 bytes an element on neither direction meets a bank twice.

namespace contract {

enum class Access {
  NONE,       // no such source
  TILE,       // along its own fastest mode, WIDTH cells at once, through shared memory
  VECTOR,     // along D's fastest mode, a vector at once
  ELEMENT,    // along D's fastest mode, one by one
  BROADCAST,  // one element for a whole vector
};

template <class T, Operator OP, Access ACCESS, int WIDTH = 1>
struct Source {
  using Type = T;
  static constexpr Operator op = OP;
  static constexpr Access access = ACCESS;
  static constexpr int width = WIDTH;
  static constexpr bool present = ACCESS != Access::NONE, tiled = ACCESS == Access::TILE;
};
using NoSource = Source<unsigned char, Operator::IDENTITY, Access::NONE>;

// One side of a tile: loops that lie in it whole, the last of its loops cut in chunks.
struct Side {
  unsigned first, count;  // the whole loops among Arguments::loops
  unsigned chunk, unused;
  long long extent;  // of the loop that is cut
  Loop<4> last;
};

template <class Target, class Compute, class Offset, int TX, int TY, int UNIT, int V, bool PADDED, int RANK,
          BinaryOperator OP1, BinaryOperator OP2, class A, class B, class C>
struct Elementwise {
  static constexpr int THREADS = 256, ELEMENTS = V * UNIT, ITEMS = TX / V * TY / THREADS;
  using Here = Place<Offset, 4, PADDED>;

  // Tensor 0 is D, the sources follow.
  struct Arguments {
    Target *target;
    const void *source[3];
    Compute factor[3];
    Target padding;
    unsigned loops_of_grid, unused;
    Side x, y;
    Loop<4> loops[RANK];  // of the grid: chunks of x, chunks of y, the others; then whole loops of x, of y
  };

  // ---- where things are ---------------------------------------------------------------------

  // Lanes of a warp along a side of ``size`` vectors of ``bytes``: 128 bytes, if the other side has room.
  static __device__ constexpr int lanes(int size, int other, int bytes) {
    int most = 32 < size ? 32 : size;
    int wanted = bytes < 128 ? 128 / bytes : 1;
    if (wanted * other < 32) wanted = 32 / other;
    return wanted < most ? wanted : most;
  }

  struct Corner {
    Here here;
    Offset x, y;  // the first index of the loops that are cut
  };

  static __device__ Corner corner(const Arguments &a) {
    Corner c;
    unsigned i = blockIdx.x;
    const unsigned after_x = quotient(i, a.loops[0]), after_y = quotient(after_x, a.loops[1]);
    c.x = (Offset)(i - after_x * a.loops[0].extent) * a.x.chunk;
    c.y = (Offset)(after_x - after_y * a.loops[1].extent) * a.y.chunk;
    c.here.split(after_y, a.loops + 2, a.loops_of_grid - 2);
    return c;
  }

  static __device__ void move(Here &here, const Arguments &a, const Side &side, Offset start, unsigned i) {
    if (side.count) i = here.split(i, a.loops + side.first, side.count);
    const Offset index = start + (Offset)i;
    here.valid = here.valid && i < side.chunk && index < (Offset)side.extent;
    here.move(side.last, index);
  }

  // The places of a thread's items: they share one side of the tile and are STEP apart along the other.
  template <int STEP>
  struct Line {
    const Arguments &a;
    const Side &side;
    Here here;
    Offset start;
    int first;

    __device__ Here operator()(int item) const {
      Here found = here;
      move(found, a, side, start, first + item * STEP);
      return found;
    }
  };

  template <int STEP>
  static __device__ Line<STEP> along_x(const Arguments &a, const Corner &c, int x, int y) {
    Here here = c.here;
    if constexpr (TY > 1) move(here, a, a.y, c.y, y);
    return {a, a.x, here, c.x, x};
  }
  template <int STEP>
  static __device__ Line<STEP> along_y(const Arguments &a, const Corner &c, int x, int y) {
    Here here = c.here;
    move(here, a, a.x, c.x, x);
    return {a, a.y, here, c.y, y};
  }

  // ---- sources turned in shared memory --------------------------------------------------------

  template <class S>
  struct Tile {
    using Cell = Vector<typename S::Type, UNIT>;
    static constexpr int PITCH = TY + (sizeof(Cell) < 4 ? 4 / sizeof(Cell) : 1);
    static constexpr int BYTES = S::tiled ? (TX * PITCH * (int)sizeof(Cell) + 15) / 16 * 16 : 0;
    static constexpr int WIDTH = S::width, ITEMS = TX * TY / WIDTH / THREADS;
    static constexpr int ROW = lanes(TY / WIDTH, TX, WIDTH * (int)sizeof(Cell));

    static constexpr int WARPS_Y = TY / WIDTH / ROW, STEP = THREADS / 32 / WARPS_Y * (32 / ROW);
    static_assert(!S::tiled || THREADS / 32 % WARPS_Y == 0);

    template <int TENSOR>
    static __device__ void fill(Cell *tile, const Arguments &a, const Corner &c) {
      const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
      const int x = warp / WARPS_Y * (32 / ROW) + lane / ROW, y = (warp % WARPS_Y * ROW + lane % ROW) * WIDTH;
      const Line<STEP> line = along_x<STEP>(a, c, x, y);
      Vector<Cell, WIDTH> cells[ITEMS];
      bool there[ITEMS];
      const typename S::Type *source = (const typename S::Type *)a.source[TENSOR - 1];
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const Here here = line(i);
        there[i] = here.valid && here.inside;
        if (there[i]) cells[i] = *(const Vector<Cell, WIDTH> *)(source + here.at[TENSOR]);
      }
#pragma unroll
      for (int i = 0; i < ITEMS; ++i)
#pragma unroll
        for (int j = 0; j < WIDTH; ++j)
          if (there[i]) tile[(x + i * STEP) * PITCH + y + j] = cells[i].at[j];
    }
  };

  // ---- sources read along D ---------------------------------------------------------------------

  static constexpr int ROW = lanes(TX / V, TY, ELEMENTS * (int)sizeof(Target));
  static constexpr int WARPS_X = TY > 1 ? TX / V / ROW : THREADS / 32;
  static constexpr int STEP = TY > 1 ? THREADS / 32 / WARPS_X * (32 / ROW) : THREADS * V;
  static_assert(THREADS / 32 % WARPS_X == 0);

  static __device__ int x() { return (threadIdx.x / 32 % WARPS_X * ROW + threadIdx.x % 32 % ROW) * V; }
  static __device__ int y() { return threadIdx.x / 32 / WARPS_X * (32 / ROW) + threadIdx.x % 32 / ROW; }

  // The elements of one source that go with a vector of D.
  template <class S, int TENSOR>
  static __device__ Vector<typename S::Type, ELEMENTS> read(const Arguments &a, const Here &here) {
    using T = typename S::Type;
    const T *source = (const T *)a.source[TENSOR - 1] + here.at[TENSOR];
    Vector<T, ELEMENTS> read;
    if constexpr (S::access == Access::VECTOR) {
      read = *(const Vector<T, ELEMENTS> *)source;
    } else if constexpr (S::access == Access::BROADCAST) {
      read.at[0] = *source;
#pragma unroll
      for (int j = 1; j < ELEMENTS; ++j) read.at[j] = read.at[0];
    } else if constexpr (S::access == Access::ELEMENT) {
      const Offset step = UNIT > 1 ? 1 : (Offset)(a.x.count ? a.loops[a.x.first] : a.x.last).stride[TENSOR];
#pragma unroll
      for (int j = 0; j < ELEMENTS; ++j) read.at[j] = source[j * step];
    }
    return read;
  }

  template <class S>
  static __device__ Vector<typename S::Type, ELEMENTS> turned(const typename Tile<S>::Cell *tile, int x, int y) {
    Vector<typename S::Type, ELEMENTS> read;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const typename Tile<S>::Cell cell = tile[(x + j) * Tile<S>::PITCH + y];
#pragma unroll
      for (int k = 0; k < UNIT; ++k) read.at[j * UNIT + k] = cell.at[k];
    }
    return read;
  }

  template <class S>
  static __device__ Compute value(const typename S::Type x, Compute factor) {
    return scaled(apply<S::op>(convert<Compute>(x)), factor);
  }

  // ---- the kernel ---------------------------------------------------------------------------------

  // Every source's part in one value; a factor of 0 leaves its source unread.
  template <int TENSOR, class S>
  struct Reader {
    Vector<typename S::Type, ELEMENTS> direct[S::tiled || !S::present ? 1 : ITEMS];
    typename Tile<S>::Cell *tile;
    bool active;

    __device__ Reader(const Arguments &a, const Corner &c, unsigned char *shared)
        : tile((typename Tile<S>::Cell *)shared), active(S::present && !is_zero(a.factor[TENSOR - 1])) {
      if constexpr (S::tiled)
        if (active) Tile<S>::template fill<TENSOR>(tile, a, c);
    }

    __device__ void read(int item, const Arguments &a, const Here &here) {
      if constexpr (S::present && !S::tiled)
        if (active && here.valid && here.inside) direct[item] = Elementwise::read<S, TENSOR>(a, here);
    }

    __device__ void values(int item, const Arguments &a, Compute (&value)[ELEMENTS]) const {
      Vector<typename S::Type, ELEMENTS> raw;
      if (active) {
        if constexpr (S::tiled) raw = turned<S>(tile, x(), y() + item * STEP);
        else raw = direct[item];
      }
#pragma unroll
      for (int j = 0; j < ELEMENTS; ++j)
        value[j] = active ? Elementwise::value<S>(raw.at[j], a.factor[TENSOR - 1]) : zero<Compute>();
    }
  };

  template <BinaryOperator OP, int TENSOR, class S>
  static __device__ void join(Compute (&value)[ELEMENTS], int item, const Arguments &a, const Reader<TENSOR, S> &reader) {
    Compute other[ELEMENTS];
    reader.values(item, a, other);
#pragma unroll
    for (int j = 0; j < ELEMENTS; ++j) value[j] = combine<OP>(value[j], other[j]);
  }

  static __device__ void run(const Arguments &a) {
    constexpr int SHARED = Tile<A>::BYTES + Tile<B>::BYTES + Tile<C>::BYTES;
    __shared__ alignas(16) unsigned char shared[SHARED ? SHARED : 16];
    const Corner c = corner(a);
    Reader<1, A> one(a, c, shared);
    Reader<2, B> two(a, c, shared + Tile<A>::BYTES);
    Reader<3, C> three(a, c, shared + Tile<A>::BYTES + Tile<B>::BYTES);
    const Line<STEP> line = TY > 1 ? along_y<STEP>(a, c, x(), y()) : along_x<STEP>(a, c, x(), y());
    Here here[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      here[i] = line(i);
      one.read(i, a, here[i]);
      two.read(i, a, here[i]);
      three.read(i, a, here[i]);
    }
    if constexpr (SHARED) __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (!here[i].valid) continue;
      Vector<Target, ELEMENTS> done;
      if (here[i].inside) {
        Compute value[ELEMENTS];
        if constexpr (A::present) one.values(i, a, value);
        else for (int j = 0; j < ELEMENTS; ++j) value[j] = zero<Compute>();
        if constexpr (B::present) join<OP1>(value, i, a, two);
        if constexpr (C::present) join<OP2>(value, i, a, three);
#pragma unroll
        for (int j = 0; j < ELEMENTS; ++j) done.at[j] = convert<Target>(value[j]);
      } else {
#pragma unroll
        for (int j = 0; j < ELEMENTS; ++j) done.at[j] = a.padding;
      }
      *(Vector<Target, ELEMENTS> *)(a.target + here[i].at[0]) = done;
    }
  }
};

}  // namespace contract
