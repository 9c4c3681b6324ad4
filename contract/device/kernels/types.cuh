// Types of elements, conversions between them, and arithmetic in the type of computation.

namespace contract {

struct Half { unsigned short bits; };      // IEEE binary16
struct BFloat16 { unsigned short bits; };  // the upper half of a binary32
struct Bool { unsigned char value; };      // 0 or 1

template <class Real>
struct alignas(2 * sizeof(Real)) Complex {
  Real re, im;
};

template <class T> struct IsComplex { static constexpr bool value = false; };
template <class Real> struct IsComplex<Complex<Real>> { static constexpr bool value = true; };
template <class T, class U> struct IsSame { static constexpr bool value = false; };
template <class T> struct IsSame<T, T> { static constexpr bool value = true; };
template <class T, class U> constexpr bool is_same = IsSame<T, U>::value;
template <class T> constexpr bool is_complex = IsComplex<T>::value;
template <class T> struct RealOf { using type = T; };
template <class Real> struct RealOf<Complex<Real>> { using type = Real; };
// A real or complex number, as T is, of a type of real numbers.
template <class T, class Real> struct WithReal { using type = Real; };
template <class Old, class Real> struct WithReal<Complex<Old>, Real> { using type = Complex<Real>; };
template <class T> constexpr bool is_float = is_same<T, float> || is_same<T, double>;

// ---- 16-bit floating-point types: computed in float ------------------------------------------

__device__ inline float widened(Half x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ inline float widened(BFloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }

__device__ inline void narrow(Half &y, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
__device__ inline void narrow(Half &y, double x) { asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y.bits) : "d"(x)); }
__device__ inline void narrow(BFloat16 &y, float x) {
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
  const unsigned bits = __float_as_uint(x);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  y.bits = nan ? 0x7fff : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;  // to nearest, ties to even
#endif
}

// ---- conversion --------------------------------------------------------------------------------

// y = x in another type; rounds to nearest, integers wrap around, anything but 0 is true.
template <class To, class From>
__device__ inline To convert(From x) {
  if constexpr (is_same<To, From>) {
    return x;
  } else if constexpr (is_same<From, Bool>) {
    return convert<To>((int)x.value);
  } else if constexpr (is_same<From, Half> || is_same<From, BFloat16>) {
    return convert<To>(widened(x));
  } else if constexpr (is_complex<From>) {
    if constexpr (is_complex<To>) {
      return {convert<decltype(To::re)>(x.re), convert<decltype(To::re)>(x.im)};
    } else if constexpr (is_same<To, Bool>) {
      return {x.re != 0 || x.im != 0};
    } else {
      return convert<To>(x.re);
    }
  } else if constexpr (is_complex<To>) {
    return {convert<decltype(To::re)>(x), 0};
  } else if constexpr (is_same<To, Bool>) {
    return {x != 0};
  } else if constexpr (is_same<To, Half> && is_same<From, double>) {
    Half y;
    narrow(y, x);
    return y;
  } else if constexpr (is_same<To, Half> || is_same<To, BFloat16>) {
    To y;
    narrow(y, (float)x);
    return y;
  } else {
    return (To)x;
  }
}

// ---- arithmetic in the type of computation -------------------------------------------------------

// Products and sums of bool are "and" and "or", those of integers wrap around.
template <class T> struct Unsigned { using type = T; };
template <> struct Unsigned<signed char> { using type = unsigned; };
template <> struct Unsigned<short> { using type = unsigned; };
template <> struct Unsigned<unsigned short> { using type = unsigned; };
template <> struct Unsigned<int> { using type = unsigned; };
template <> struct Unsigned<long long> { using type = unsigned long long; };

template <class T>
__device__ inline T add(T x, T y) {
  if constexpr (is_same<T, Bool>) return {(unsigned char)(x.value | y.value)};
  else if constexpr (is_complex<T>) return {x.re + y.re, x.im + y.im};
  else return (T)((typename Unsigned<T>::type)x + (typename Unsigned<T>::type)y);
}

template <class T>
__device__ inline T multiply(T x, T y) {
  if constexpr (is_same<T, Bool>) return {(unsigned char)(x.value & y.value)};
  else if constexpr (is_complex<T>) return {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
  else return (T)((typename Unsigned<T>::type)x * (typename Unsigned<T>::type)y);
}

// sum + x y, in one rounding for real floating-point types.
template <class T>
__device__ inline T multiply_add(T x, T y, T sum) {
  if constexpr (is_same<T, float>) return fmaf(x, y, sum);
  else if constexpr (is_same<T, double>) return fma(x, y, sum);
  else if constexpr (is_complex<T>)
    return {multiply_add(-x.im, y.im, multiply_add(x.re, y.re, sum.re)),
            multiply_add(x.im, y.re, multiply_add(x.re, y.im, sum.im))};
  else return add(multiply(x, y), sum);
}

template <class T> __device__ inline T zero() { return convert<T>(0); }
template <class T> __device__ inline T one() { return convert<T>(1); }
template <class T> __device__ inline bool is_zero(T x) { return !convert<Bool>(x).value; }
template <class T>
__device__ inline bool is_one(T x) {
  if constexpr (is_complex<T>) return x.re == 1 && x.im == 0;
  else if constexpr (is_same<T, Bool>) return x.value == 1;
  else return x == 1;
}

// factor x; a factor of 1 leaves inf and NaN parts of complex numbers as they are.
template <class T>
__device__ inline T scaled(T x, T factor) {
  return is_one(factor) ? x : multiply(factor, x);
}

// The same in a register from here on: the compiler would rather form it again for each use.
template <class T>
__device__ inline T *kept(T *in_memory) {
  auto x = __cvta_generic_to_global(in_memory);
  asm volatile("" : "+l"(x));
  return (T *)__cvta_global_to_generic(x);
}
__device__ inline int kept(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
__device__ inline unsigned kept(unsigned x) { return (unsigned)kept((int)x); }
__device__ inline unsigned long long kept(unsigned long long x) {
  asm volatile("" : "+l"(x));
  return x;
}

// ---- vectors -------------------------------------------------------------------------------------

// N elements that one access moves.
template <class T, int N>
struct alignas(N * sizeof(T) <= 16 ? N * sizeof(T) : 16) Vector {
  T at[N];
};

}  // namespace contract
