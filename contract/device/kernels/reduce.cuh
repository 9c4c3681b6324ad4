// D[i] = alpha reduce_r op(A[i, r]) + beta opC(C[i]); also one part of it, left in scratch memory for a second launch.
//
// The bits of a thread's number are, from the lowest: reduced, kept, reduced, kept. Neighbouring lanes thus lie side by
// side in A, whichever of its modes is the fastest. A thread reduces every R-th vector of its part of r, UNROLL of them
// in flight; what the R threads of a result found is combined by shuffles, then through shared memory.
//
// The order is fixed. With n values for each result in P parts and V values in a vector, |sum - exact| is at most
// (n / (P R V UNROLL) + log2(V UNROLL) + log2(R) + P) u sum|x|, where V counts only for vectors along r and the second
// launch divides P again as it did n.

namespace contract {

enum class Reading {
  ELEMENT,  // one by one
  KEPT,     // vectors along the fastest kept mode: each element belongs to another result
  REDUCED,  // vectors along the fastest reduced mode
  RAGGED,   // the same where rows begin or end inside a vector
};

// The value of the lane whose number differs in ``bit``.
template <class T>
__device__ inline T of_partner(T x, int bit) {
  constexpr int WORDS = (sizeof(T) + 3) / 4;
  union Words {
    unsigned word[WORDS];
    T value;
  } words;
  words.word[WORDS - 1] = 0;
  words.value = x;
#pragma unroll
  for (int i = 0; i < WORDS; ++i) words.word[i] = __shfl_xor_sync(0xffffffffu, words.word[i], bit);
  return words.value;
}

template <class Source, class Compute, class Target, class Addend, class Offset, class Index, Operator OP, Operator OPC,
          BinaryOperator BY, Reading READING, int V, int UNROLL, int RANK>
struct Reduce {
  static constexpr int THREADS = 256, RESULTS = READING == Reading::KEPT ? V : 1;

  // Tensors of the loops: A, D, C. Kept loops come first, one at least, then reduced ones, each side's fastest first;
  // the one along which vectors lie counts them.
  struct Arguments {
    const Source *source;
    Target *target;
    const Addend *addend;
    Compute alpha, beta;
    long long kept, reduced;              // vectors
    long long part, part_target;          // vectors of a part, and the offset in D from part to part
    long long row;                        // elements of a ragged row
    long long target_step, addend_step;   // between the results of a vector
    unsigned low_reduced, low_kept, high_reduced, high_kept;  // how many bits of a thread's number
    unsigned kept_loops, reduced_loops;
    unsigned partial;  // nothing but the reduction is done
    unsigned wide;     // the results of a vector are written at once
    Loop<3> loops[RANK];
  };

  // A product with the complex number 1 is no operation: it would make NaN of infinite parts.
  static __device__ Compute combine(Compute x, Compute y) {
    if constexpr (BY == BinaryOperator::MUL && is_complex<Compute>) return is_one(x) ? y : scaled(x, y);
    else return contract::combine<BY>(x, y);
  }

  // ---- where things are ---------------------------------------------------------------------

  struct Thread {
    Index kept, reduced;
    unsigned partners;  // the bits of a thread's number that are reduced

    __device__ Thread(const Arguments &a) {
      const unsigned t = threadIdx.x, above = t >> (a.low_reduced + a.low_kept);
      const unsigned low = (1u << a.low_reduced) - 1, high = (1u << a.high_reduced) - 1;
      reduced = (t & low) | (above & high) << a.low_reduced;
      kept = (t >> a.low_reduced & ((1u << a.low_kept) - 1)) | above >> a.high_reduced << a.low_kept;
      kept += ((Index)blockIdx.y * gridDim.x + blockIdx.x) << (a.low_kept + a.high_kept);
      partners = low | high << (a.low_reduced + a.low_kept);
    }
  };

  static __device__ Place<Offset, 3, false> place(const Arguments &a, Index kept) {
    Place<Offset, 3, false> here;
    const unsigned last = a.kept_loops - 1;
    UNROLL_MODES
    for (unsigned at = 0; at < last; ++at) here.move(a.loops[at], (Offset)split_off(kept, a.loops[at]));
    here.move(a.loops[last], (Offset)kept);
    return here;
  }

  // The offsets of several vectors, and their numbers in their rows; the loops' constants are read once for all.
  struct Vectors {
    Offset offset[UNROLL] = {}, number[UNROLL];

    __device__ Vectors(const Arguments &a, Index (&i)[UNROLL]) {
      const Loop<3> *loops = a.loops + a.kept_loops;
      const unsigned last = a.reduced_loops - 1;
      UNROLL_MODES
      for (unsigned at = 0; at < last; ++at)
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) move(u, at, loops[at], split_off(i[u], loops[at]));
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) move(u, last, loops[last], i[u]);
    }

    __device__ void move(int u, unsigned at, const Loop<3> &loop, Index index) {
      offset[u] += (Offset)index * (Offset)loop.stride[0];
      if (READING == Reading::RAGGED && at == 0) number[u] = (Offset)index;
    }
  };

  // ---- reading ------------------------------------------------------------------------------------

  // A vector of A; element j belongs to the reduction where bit j of ``there`` is set.
  struct Piece {
    static constexpr unsigned ALL = (1u << V) - 1;
    Vector<Source, V> raw;
    unsigned there;

    __device__ void read(const Arguments &a, const Source *source, Offset number, bool wanted) {
      there = wanted ? ALL : 0;
      if constexpr (READING == Reading::RAGGED) ragged(a, source, number);
      else raw = *(const Vector<Source, V> *)source;
    }

    // The vectors of a row begin at multiples of their size, the first of them at or before the row.
    __device__ void ragged(const Arguments &a, const Source *source, Offset number) {
      const int before = (int)((unsigned long long)source / sizeof(Source) % V);
      const Offset left = (Offset)a.row - number * V + before;
      if (number == 0) there &= ALL << before;
      if (left < V) there &= left < 0 ? 0 : (1u << left) - 1;
      const Source *begin = source - before;
      if (there == ALL) {
        raw = *(const Vector<Source, V> *)begin;
      } else {
#pragma unroll
        for (int j = 0; j < V; ++j)
          if (there >> j & 1) raw.at[j] = begin[j];
      }
    }

    __device__ Compute value(int j) const {
      const bool counts = READING == Reading::RAGGED ? there >> j & 1 : there != 0;
      return counts ? apply<OP>(convert<Compute>(raw.at[j])) : neutral<BY, Compute>();
    }
  };

  // ---- the stages ---------------------------------------------------------------------------------

  // What this thread finds in its part; UNROLL vectors are combined in pairs before they join the rest. Where fewer
  // are left, the last one is read again and counts for nothing: no load then depends on a branch.
  static __device__ void gather(const Arguments &a, const Source *source, Index reduced, Compute (&found)[V]) {
    const unsigned lanes = a.low_reduced + a.high_reduced;
    const Index begin = blockIdx.z * (Index)a.part, left = (Index)a.reduced - begin;
    const Index end = begin + (left < (Index)a.part ? left : (Index)a.part);
    for (Index i = begin + reduced; i < end; i += (Index)UNROLL << lanes) {
      Index at[UNROLL];
      bool there[UNROLL];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        at[u] = i + ((Index)u << lanes);
        there[u] = at[u] < end;
        if (!there[u]) at[u] = end - 1;
      }
      const Vectors vectors(a, at);
      Piece piece[UNROLL];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) piece[u].read(a, source + vectors.offset[u], vectors.number[u], there[u]);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        Compute sum[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) sum[u] = piece[u].value(j);
        fold(sum);
        found[j] = combine(found[j], sum[0]);
      }
    }
  }

  // x[0] = the combination of all, in pairs.
  template <int N>
  static __device__ void fold(Compute (&x)[N]) {
#pragma unroll
    for (int half = N / 2; half; half /= 2)
#pragma unroll
      for (int i = 0; i < half; ++i) x[i] = combine(x[i], x[i + half]);
  }

  // Combines the values of all threads that work on the same results; those with no reduced bit set have them.
  static __device__ void join(Compute (&value)[RESULTS], unsigned partners) {
    __shared__ alignas(16) unsigned char shared[sizeof(Compute) * RESULTS * THREADS];
#pragma unroll
    for (int bit = 1; bit < 32; bit *= 2)
      if (partners & bit)
#pragma unroll
        for (int j = 0; j < RESULTS; ++j) value[j] = combine(value[j], of_partner(value[j], bit));
    if (partners < 32) return;  // the same for all threads
    Compute *held = (Compute *)shared;
#pragma unroll
    for (int j = 0; j < RESULTS; ++j) held[j * THREADS + threadIdx.x] = value[j];
    __syncthreads();
    if (threadIdx.x & partners) return;
    for (unsigned warp = 32; warp < THREADS; warp += 32)
      if (!(warp & ~partners))
#pragma unroll
        for (int j = 0; j < RESULTS; ++j) value[j] = combine(value[j], held[j * THREADS + threadIdx.x + warp]);
  }

  static __device__ void finish(const Arguments &a, const Place<Offset, 3, false> &here, Compute (&value)[RESULTS]) {
    Vector<Target, RESULTS> done;
    const bool added = !is_zero(a.beta);
#pragma unroll
    for (int j = 0; j < RESULTS; ++j) {
      Compute y = value[j];
      if (!a.partial) y = is_zero(a.alpha) ? zero<Compute>() : scaled(y, a.alpha);
      if (added) {
        const Addend c = a.addend[here.at[2] + j * (Offset)a.addend_step];
        y = add(y, scaled(apply<OPC>(convert<Compute>(c)), a.beta));
      }
      done.at[j] = convert<Target>(y);
    }
    Target *target = a.target + here.at[1] + blockIdx.z * (Offset)a.part_target;
    if (a.wide) {
      *(Vector<Target, RESULTS> *)target = done;
    } else {
#pragma unroll
      for (int j = 0; j < RESULTS; ++j) target[j * (Offset)a.target_step] = done.at[j];
    }
  }

  static __device__ void run(const Arguments &a) {
    const Thread thread(a);
    const bool there = thread.kept < (Index)a.kept;
    Place<Offset, 3, false> here;
    if (there) here = place(a, thread.kept);
    Compute found[V];
#pragma unroll
    for (int j = 0; j < V; ++j) found[j] = neutral<BY, Compute>();
    if (there && !is_zero(a.alpha)) gather(a, a.source + here.at[0], thread.reduced, found);
    if constexpr (RESULTS == 1) fold(found);
    Compute value[RESULTS];
#pragma unroll
    for (int j = 0; j < RESULTS; ++j) value[j] = found[j];
    join(value, thread.partners);
    if (there && !(threadIdx.x & thread.partners)) finish(a, here, value);
  }
};

}  // namespace contract
