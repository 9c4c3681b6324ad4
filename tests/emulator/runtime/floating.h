// Floating-point instructions of PTX: rounding to narrow formats, conversions, minima, flushing.
#pragma once
#include <math.h>

#include "bits.h"

namespace emu {

enum class Round { NEAREST, ZERO, DOWN, UP, AWAY };  // AWAY: to nearest, ties away from zero

static double round_integer(double x, Round mode) {
  switch (mode) {
    case Round::ZERO: return trunc(x);
    case Round::DOWN: return floor(x);
    case Round::UP: return ceil(x);
    case Round::AWAY: return round(x);
    default: return nearbyint(x);
  }
}

// Round to `fraction` bits after the leading one, exponents from `lowest` to `highest`.
static double round_to(double x, int fraction, int lowest, int highest, Round mode) {
  if (x == 0 || !isfinite(x)) return x;
  const int exponent = ilogb(x), unit = (exponent < lowest ? lowest : exponent) - fraction;
  const double rounded = copysign(ldexp(round_integer(ldexp(x, -unit), mode), unit), x);
  if (fabs(rounded) < ldexp(1, highest + 1)) return rounded;
  const bool towards_zero = mode == Round::ZERO || (mode == Round::DOWN && x > 0) || (mode == Round::UP && x < 0);
  return copysign(towards_zero ? ldexp(2 - ldexp(1, -fraction), highest) : INFINITY, x);
}

EMU_INLINE float to_f32(double x, Round mode) {
  return mode == Round::NEAREST ? (float)x : (float)round_to(x, 23, -126, 127, mode);
}

// f16: 10 bits of fraction, exponents -14 ... 15.
static uint16_t to_f16(double x, Round mode = Round::NEAREST) {
  const double value = round_to(x, 10, -14, 15, mode);
  const uint16_t sign = signbit(x) ? 0x8000 : 0;
  if (isnan(value)) return 0x7fff;
  if (isinf(value)) return sign | 0x7c00;
  if (fabs(value) < ldexp(1, -14)) return sign | (uint16_t)ldexp(fabs(value), 24);
  const uint32_t bits = as<uint32_t>((float)fabs(value));
  return sign | (uint16_t)((bits >> 13) - (112 << 10));
}

EMU_INLINE float from_f16(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
  if (rest >= 0x0f800000) return as<float>(sign | 0x7f800000 | rest);  // infinity or NaN
  return as<float>(sign | as<uint32_t>(as<float>(rest) * 0x1p112f));
}

// bf16 is the upper half of an f32.
static uint16_t to_bf16(double x, Round mode = Round::NEAREST) {
  if (isnan(x)) return 0x7fff;
  return (uint16_t)(as<uint32_t>((float)round_to(x, 7, -126, 127, mode)) >> 16);
}

EMU_INLINE float from_bf16(uint16_t h) { return as<float>((uint32_t)h << 16); }

// tf32 lives in 32 bits with the lower 13 clear.
static uint32_t to_tf32(float x, Round mode) {
  if (isnan(x)) return 0x7fffffff;
  return as<uint32_t>((float)round_to(x, 10, -126, 127, mode));
}

EMU_INLINE float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
EMU_INLINE double flush(double x) { return x; }  // .ftz is about f32

template <class T> EMU_INLINE T clamp_unit(T x) { return x > 0 ? x < 1 ? x : 1 : 0; }  // NaN gives 0

// fmin and fmax ignore a NaN operand; the .NaN forms pass it on.  -0 is below +0 in both.
template <class T> EMU_INLINE T minimum(T x, T y) { return x == y ? (signbit(x) ? x : y) : x < y || y != y ? x : y; }
template <class T> EMU_INLINE T maximum(T x, T y) { return x == y ? (signbit(x) ? y : x) : x > y || y != y ? x : y; }
template <class T> EMU_INLINE T minimum_nan(T x, T y) { return x != x ? x : y != y ? y : minimum(x, y); }
template <class T> EMU_INLINE T maximum_nan(T x, T y) { return x != x ? x : y != y ? y : maximum(x, y); }

// Float to integer clamps to the integer's range, and NaN gives 0 (as the card does).
template <class T> static T to_integer(double x, Round mode) {
  const double rounded = round_integer(x, mode), above = ldexp(1, sizeof(T) * 8 - ((T)-1 < 0));
  const T lowest = (T)-1 < 0 ? (T)((uint64_t)1 << (sizeof(T) * 8 - 1)) : (T)0;
  if (rounded != rounded) return 0;
  if (rounded >= above) return (T)~lowest;
  return rounded <= (double)lowest ? lowest : (T)rounded;
}

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
