// Indices and strides: loops whose extents and strides travel in the arguments of a kernel.

// Loops over modes: there are few, and often none, so that unrolled they would only be fetched and compiled; where
// extents are constants they become straight code.
#ifdef CONTRACT_BAKED
#define UNROLL_MODES _Pragma("unroll")
#else
#define UNROLL_MODES _Pragma("unroll 1")
#endif

namespace contract {

// The arguments of a kernel, in which CONTRACT_BAKED(words) fills in those it knows from the start.
#ifdef CONTRACT_BAKED
template <class Arguments>
__device__ inline Arguments known(Arguments a) {
  unsigned long long words[sizeof(Arguments) / 8];
  static_assert(sizeof words == sizeof a);
  memcpy(words, &a, sizeof a);
  CONTRACT_BAKED(words)
  memcpy(&a, words, sizeof a);
  return a;
}
#else
template <class Arguments>
__device__ inline const Arguments &known(const Arguments &a) { return a; }
#endif

// One loop over TENSORS tensors. With padding, its indices left <= i < left + inside have a source.
template <int TENSORS>
struct Loop {
  unsigned extent, magic, shift, unused;  // magic and shift divide by the extent
  long long left, inside;
  long long stride[TENSORS];  // in elements
};

// n / d = floor(n magic / 2^(32 + shift)) for n < 2^31; a magic of 0 stands for d = 1.
template <int TENSORS>
__device__ inline unsigned quotient(unsigned n, const Loop<TENSORS> &d) {
  return d.magic ? __umulhi(n, d.magic) >> d.shift : n;
}

// The same for any n, by a loop without padding, whose ``inside`` is its extent in 64 bits.
template <int TENSORS>
__device__ inline unsigned long long quotient(unsigned long long n, const Loop<TENSORS> &d) {
  return (n | d.inside) >> 31 ? n / d.inside : quotient((unsigned)n, d);
}

template <int TENSORS>
__device__ inline unsigned remainder(unsigned n, unsigned quotient, const Loop<TENSORS> &d) {
  return n - quotient * d.extent;
}
template <int TENSORS>
__device__ inline unsigned long long remainder(unsigned long long n, unsigned long long quotient, const Loop<TENSORS> &d) {
  return n - quotient * d.inside;
}

// i = rest extent + index: returns the index and leaves the rest in i.
template <class Index, int TENSORS>
__device__ inline Index split_off(Index &i, const Loop<TENSORS> &loop) {
  const Index rest = quotient(i, loop), index = remainder(i, rest, loop);
  i = rest;
  return index;
}

// The type of flattened indices that go with a type of offsets.
template <class Offset> struct IndexOf { using type = unsigned; };
template <> struct IndexOf<long long> { using type = unsigned long long; };

// The offset of an index in each tensor, whether it is an index at all, and whether it has a source.
template <class Offset, int TENSORS, bool PADDED>
struct Place {
  Offset at[TENSORS] = {};
  bool valid = true, inside = true;

  __device__ void move(const Loop<TENSORS> &loop, Offset index) {
#pragma unroll
    for (int t = 0; t < TENSORS; ++t) at[t] += index * (Offset)loop.stride[t];
    if constexpr (PADDED) inside = inside && index >= loop.left && index - loop.left < loop.inside;
  }

  // Splits ``i`` over loops, the first fastest; returns what is left for the loops that follow.
  __device__ unsigned split(unsigned i, const Loop<TENSORS> *loops, unsigned count) {
    UNROLL_MODES
    for (unsigned at = 0; at < count; ++at) move(loops[at], split_off(i, loops[at]));
    return i;
  }
};

}  // namespace contract
