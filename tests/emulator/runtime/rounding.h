// Rounding to narrow formats and to integers.
#pragma once
#include <fenv.h>
#include <math.h>

#include "fault.h"

namespace emu {

// How the host rounds from now on.
void set_rounding(Round mode) {
  fesetround(mode == Round::ZERO ? FE_TOWARDZERO : mode == Round::DOWN ? FE_DOWNWARD
             : mode == Round::UP ? FE_UPWARD     : FE_TONEAREST);
}

double round_integer(double x, Round mode) {
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

float round_f32(double x, Round mode) { return (float)round_to(x, 23, -126, 127, mode); }

// f16: 10 bits of fraction, exponents -14 ... 15.
uint16_t to_f16(double x, Round mode) {
  const double value = round_to(x, 10, -14, 15, mode);
  const uint16_t sign = signbit(x) ? 0x8000 : 0;
  if (isnan(value)) return 0x7fff;
  if (isinf(value)) return sign | 0x7c00;
  if (fabs(value) < ldexp(1, -14)) return sign | (uint16_t)ldexp(fabs(value), 24);
  const uint32_t bits = as<uint32_t>((float)fabs(value));
  return sign | (uint16_t)((bits >> 13) - (112 << 10));
}

// bf16 is the upper half of an f32.
uint16_t to_bf16(double x, Round mode) {
  if (isnan(x)) return 0x7fff;
  return (uint16_t)(as<uint32_t>((float)round_to(x, 7, -126, 127, mode)) >> 16);
}

// tf32 lives in 32 bits with the lower 13 clear.
uint32_t to_tf32(float x, Round mode) {
  if (isnan(x)) return 0x7fffffff;
  return as<uint32_t>((float)round_to(x, 10, -126, 127, mode));
}

// Float to integer clamps to the integer's range.  NaN gives 0, or the highest bit alone.
template <class T> T to_integer(double x, Round mode, bool marks_nan) {
  const double rounded = round_integer(x, mode), above = ldexp(1, sizeof(T) * 8 - ((T)-1 < 0));
  const T lowest = (T)-1 < 0 ? (T)((uint64_t)1 << (sizeof(T) * 8 - 1)) : (T)0;
  if (rounded != rounded) return marks_nan ? (T)((uint64_t)1 << (sizeof(T) * 8 - 1)) : (T)0;
  if (rounded >= above) return (T)~lowest;
  return rounded <= (double)lowest ? lowest : (T)rounded;
}

}  // namespace emu
