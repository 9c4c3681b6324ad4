// Integer instructions of PTX, and reinterpretation of register bits.
#pragma once
#include "kernel.h"

namespace emu {

template <class To, class From> EMU_INLINE To as(From from) {
  return __builtin_bit_cast(To, from);
}

template <class T> EMU_INLINE T get(const char *from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <class T> EMU_INLINE void put(char *to, T value) { __builtin_memcpy(to, &value, sizeof value); }

template <class T> EMU_INLINE T least(T x, T y) { return y < x ? y : x; }
template <class T> EMU_INLINE T greatest(T x, T y) { return x < y ? y : x; }

// Shift counts of the register's width and above give 0 or the sign.
template <class T> EMU_INLINE T shift_left(T x, uint32_t n) { return n >= sizeof(T) * 8 ? 0 : (T)(x << n); }
template <class T> EMU_INLINE T shift_right(T x, uint32_t n) {
  const uint32_t last = sizeof(T) * 8 - 1;
  if (n > last) return x < 0 ? (T)-1 : (T)0;
  return (T)(x >> n);
}

// The card gives all ones for a division by zero; PTX leaves it unspecified.
// Dividing the lowest integer by -1 would stop the host.
template <class T> EMU_INLINE bool minus_one(T y) { return (T)-1 < 0 && y == (T)-1; }
template <class T> EMU_INLINE T divide(T x, T y) {
  if (y == 0) return (T)-1;
  return minus_one(y) ? (T)(0 - x) : (T)(x / y);
}
template <class T> EMU_INLINE T remainder(T x, T y) {
  if (y == 0) return x;
  return minus_one(y) ? (T)0 : (T)(x % y);
}

template <class T> EMU_INLINE T mul_hi(T x, T y) {
  if constexpr ((T)-1 < 0) return (T)(((__int128)x * y) >> (sizeof(T) * 8));
  else return (T)(((unsigned __int128)x * y) >> (sizeof(T) * 8));
}

// Saturating signed addition, the one form of .sat that PTX has for integers.
EMU_INLINE int32_t saturate_s32(int64_t x) {
  return x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : (int32_t)x;
}

template <class T> static T bit_field_extract(T x, uint32_t position, uint32_t length) {
  const uint32_t bits = sizeof(T) * 8;
  position &= 255, length &= 255;
  if (!length) return 0;
  if (position >= bits) return x < 0 ? (T)-1 : (T)0;
  if (position + length >= bits) return (T)(x >> position);
  return (T)((T)(x << (bits - position - length)) >> (bits - length));
}

template <class T> static T bit_field_insert(T field, T into, uint32_t position, uint32_t length) {
  const uint32_t bits = sizeof(T) * 8;
  position &= 255, length &= 255;
  if (position >= bits || !length) return into;
  const T ones = length >= bits ? ~(T)0 : (T)(((T)1 << length) - 1), mask = (T)(ones << position);
  return (T)((into & ~mask) | ((field << position) & mask));
}

static uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = (uint64_t)high << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t choice = selector >> (4 * i) & 15;
    uint32_t byte = bytes >> (8 * (choice & 7)) & 255;
    if (choice & 8) byte = byte & 128 ? 255 : 0;  // replicate the sign
    result |= byte << (8 * i);
  }
  return result;
}

// Any function of three bits: bit (4a + 2b + c) of the table.
EMU_INLINE uint32_t logic3(uint32_t a, uint32_t b, uint32_t c, int table) {
  uint32_t result = 0;
  for (int i = 0; i < 8; ++i)
    if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return result;
}

EMU_INLINE uint32_t funnel_left(uint32_t low, uint32_t high, uint32_t n) {
  return (uint32_t)(((uint64_t)high << 32 | low) << n >> 32);
}
EMU_INLINE uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t n) {
  const uint64_t both = (uint64_t)high << 32 | low;
  return n >= 32 ? high : (uint32_t)(both >> n);
}

template <class T> EMU_INLINE uint32_t leading_zeros(T x) {
  return x ? __builtin_clzll((uint64_t)x) - (64 - sizeof(T) * 8) : sizeof(T) * 8;
}

template <class T> static T reverse_bits(T x) {
  T result = 0;
  for (unsigned i = 0; i < sizeof(T) * 8; ++i) result = (T)(result << 1 | (x >> i & 1));
  return result;
}

// Position of the highest bit that differs from the sign; all ones where there is none.
template <class T> static uint32_t highest_bit(T x) {
  for (int i = sizeof(T) * 8 - 1; i >= 0; --i)
    if ((x >> i & 1) != (x < 0)) return i;
  return ~0u;
}

// By how much to shift left to bring it to the top.
template <class T> static uint32_t highest_bit_shift(T x) {
  const uint32_t at = highest_bit(x);
  return at == ~0u ? at : sizeof(T) * 8 - 1 - at;
}

template <class A, class B> static uint32_t dot_bytes(uint32_t a, uint32_t b, uint32_t c) {
  for (int i = 0; i < 4; ++i) c += (uint32_t)((A)(a >> 8 * i) * (B)(b >> 8 * i));
  return c;
}

}  // namespace emu
