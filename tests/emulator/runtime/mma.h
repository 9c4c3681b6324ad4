// mma.sync: products of small matrices whose elements are spread over the lanes of a warp.
//
// With P elements in a register, g = lane / 4 and t = lane % 4, every shape has one layout:
//   A: register r, element s is row g + 8 (r % 2), column t P + s + 4 P (r / 2)
//   B: register r, element s is row t P + s + 4 P r, column g
//   C: register r is row g + 8 (r / 2), column 2 t + r % 2
#pragma once
#include "warp.h"

namespace emu {

// How an element is read from its register, and how many a register holds.
static float element(Tf32, uint32_t x, int) { return as<float>(x & 0xffffe000); }
static float element(F16, uint32_t x, int s) { return from_f16(x >> 16 * s); }
static float element(Bf16, uint32_t x, int s) { return from_bf16(x >> 16 * s); }
static int32_t element(S8, uint32_t x, int s) { return (int8_t)(x >> 8 * s); }
static int32_t element(U8, uint32_t x, int s) { return (uint8_t)(x >> 8 * s); }
static double element(F64, double x, int) { return x; }
template <class T> constexpr int PACKED = 1;
template <> constexpr int PACKED<F16> = 2;
template <> constexpr int PACKED<Bf16> = 2;
template <> constexpr int PACKED<S8> = 4;
template <> constexpr int PACKED<U8> = 4;

template <class A, class B, class C, int RA, int RB, int RC>
static void multiply_fragments(Fragments<A, B, C, RA, RB, RC> **lanes) {
  constexpr int P = PACKED<A>, M = RC == 2 ? 8 : 16, N = 8, K = 4 * P * RB;
  static_assert(RA * 4 * P * 8 == M * K && PACKED<A> == PACKED<B>, "a shape of mma.sync");
  C left[M][K], right[K][N];
  for (int lane = 0; lane < WARP; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int s = 0; s < P; ++s) {
      for (int r = 0; r < RA; ++r) {
        // An A of 8 rows has one register a column block.
        const int row = M == 8 ? g : g + 8 * (r % 2), block = M == 8 ? r : r / 2;
        left[row][t * P + s + 4 * P * block] = element(A(), lanes[lane]->a[r], s);
      }
      for (int r = 0; r < RB; ++r) right[t * P + s + 4 * P * r][g] = element(B(), lanes[lane]->b[r], s);
    }
  }
  for (int lane = 0; lane < WARP; ++lane)
    for (int r = 0; r < RC; ++r) {
      C sum = lanes[lane]->c[r];
      for (int k = 0; k < K; ++k) sum += left[lane / 4 + 8 * (r / 2)][k] * right[k][lane % 4 * 2 + r % 2];
      lanes[lane]->c[r] = sum;
    }
}

template <class A, class B, class C, int RA, int RB, int RC> void mma(Fragments<A, B, C, RA, RB, RC> &mine) {
  meet(-here, ~0u, mine, multiply_fragments<A, B, C, RA, RB, RC>);
}

}  // namespace emu
