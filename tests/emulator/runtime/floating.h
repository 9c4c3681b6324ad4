// Floating-point instructions of PTX: functions, conversions, minima, flushing.
#pragma once
#include "bits.h"

namespace emu {

// <math.h> alone takes longer to read than a kernel.
#define EMU_FUNCTION(name)                                             \
  EMU_INLINE float name(float x) { return __builtin_##name##f(x); }    \
  EMU_INLINE double name(double x) { return __builtin_##name(x); }
EMU_FUNCTION(fabs)
EMU_FUNCTION(sqrt)
EMU_FUNCTION(exp2)
EMU_FUNCTION(log2)
EMU_FUNCTION(sin)
EMU_FUNCTION(cos)
EMU_FUNCTION(tanh)
#undef EMU_FUNCTION
EMU_INLINE float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
EMU_INLINE double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
EMU_INLINE float copysign(float x, float y) { return __builtin_copysignf(x, y); }
EMU_INLINE double copysign(double x, double y) { return __builtin_copysign(x, y); }
template <class T> EMU_INLINE bool is_nan(T x) { return x != x; }
template <class T> EMU_INLINE bool is_infinite(T x) { return __builtin_isinf(x); }
template <class T> EMU_INLINE bool is_finite(T x) { return __builtin_isfinite(x); }
template <class T> EMU_INLINE bool is_normal(T x) { return __builtin_isnormal(x); }
template <class T> EMU_INLINE bool is_subnormal(T x) { return x != 0 && is_finite(x) && !is_normal(x); }

// f(x, y, z) rounded as said; volatile keeps the compiler from computing it before or after.
template <class T, class F> EMU_INLINE T directed(Round mode, T x, T y, T z, F f) {
  volatile T a = x, b = y, c = z;
  set_rounding(mode);
  volatile T result = f(a, b, c);
  set_rounding(Round::NEAREST);
  return result;
}

EMU_INLINE float to_f32(double x, Round mode) {
  return mode == Round::NEAREST ? (float)x : round_f32(x, mode);
}

EMU_INLINE float from_f16(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
  if (rest >= 0x0f800000) return as<float>(sign | 0x7f800000 | rest);  // infinity or NaN
  return as<float>(sign | as<uint32_t>(as<float>(rest) * 0x1p112f));
}

EMU_INLINE float from_bf16(uint16_t h) { return as<float>((uint32_t)h << 16); }

EMU_INLINE float flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.f, x) : x; }
EMU_INLINE double flush(double x) { return x; }  // .ftz is about f32

template <class T> EMU_INLINE T clamp_unit(T x) { return x > 0 ? x < 1 ? x : 1 : 0; }  // NaN gives 0

// fmin and fmax ignore a NaN operand; the .NaN forms pass it on.  -0 is below +0 in both.
template <class T> EMU_INLINE T minimum(T x, T y) { return x == y ? (__builtin_signbit(x) ? x : y) : x < y || y != y ? x : y; }
template <class T> EMU_INLINE T maximum(T x, T y) { return x == y ? (__builtin_signbit(x) ? y : x) : x > y || y != y ? x : y; }
template <class T> EMU_INLINE T minimum_nan(T x, T y) { return x != x ? x : y != y ? y : minimum(x, y); }
template <class T> EMU_INLINE T maximum_nan(T x, T y) { return x != x ? x : y != y ? y : maximum(x, y); }

// Integer to narrower integer with .sat.
template <class T> static T saturate(__int128 x) {
  const __int128 lowest = (T)-1 < 0 ? -((__int128)1 << (sizeof(T) * 8 - 1)) : 0;
  const __int128 highest = ((__int128)1 << (sizeof(T) * 8 - ((T)-1 < 0))) - 1;
  return (T)(x < lowest ? lowest : x > highest ? highest : x);
}

// Two halves in one register: apply f to each pair of lanes.
template <class F> EMU_INLINE uint32_t each_f16(uint32_t a, uint32_t b, uint32_t c, F f) {
  const uint32_t low = to_f16(f(from_f16(a), from_f16(b), from_f16(c)));
  return low | (uint32_t)to_f16(f(from_f16(a >> 16), from_f16(b >> 16), from_f16(c >> 16))) << 16;
}
template <class F> EMU_INLINE uint32_t each_bf16(uint32_t a, uint32_t b, uint32_t c, F f) {
  const uint32_t low = to_bf16(f(from_bf16(a), from_bf16(b), from_bf16(c)));
  return low | (uint32_t)to_bf16(f(from_bf16(a >> 16), from_bf16(b >> 16), from_bf16(c >> 16))) << 16;
}

}  // namespace emu
