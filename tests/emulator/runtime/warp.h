// Operations of a warp: lanes meet, the last to come does the work for all.
#pragma once
#include "floating.h"
#include "memory.h"

namespace emu {

// Wait until every lane of `mask` has come with the same operation, then run `perform` once over
// the requests (indexed by lane).  `operation` is the opcode's number, or the PTX line where all
// lanes must be at the same instruction.
template <class R, class F> static void meet(int operation, uint32_t mask, R &mine, F perform) {
  Warp &warp = warps[current->warp];
  if (!(mask >> current->lane & 1)) fail(LANES, "the calling lane %d is not in the mask %#x", current->lane, mask);
  if (mask & ~warp.live)
    fail(LANES, "the mask %#x names lanes that have exited or do not exist (%#x)", mask, mask & ~warp.live);
  for (uint32_t rest = mask & warp.waiting; rest; rest &= rest - 1) {
    const Call &call = warp.calls[__builtin_ctz(rest)];
    if (call.operation != operation || call.mask != mask)
      fail(LANES, "lane %d waits at another operation of the warp or with another mask (%#x, here %#x)",
           __builtin_ctz(rest), call.mask, mask);
  }
  warp.waiting |= 1u << current->lane;
  warp.calls[current->lane] = {mask, operation, &mine};
  if ((warp.waiting & mask) != mask) return wait("an operation of the warp");
  warp.waiting &= ~mask;
  R *requests[WARP] = {};
  for (uint32_t rest = mask; rest; rest &= rest - 1)
    requests[__builtin_ctz(rest)] = (R *)warp.calls[__builtin_ctz(rest)].request;
  perform(requests);
  for (uint32_t rest = mask & ~(1u << current->lane); rest; rest &= rest - 1)
    wake(current->warp * WARP + __builtin_ctz(rest));
}

// A thread that exits cannot come to an operation that names it.
static void leave_warp() {
  Warp &warp = warps[current->warp];
  warp.live &= ~(1u << current->lane);
  warp.exited |= 1u << current->lane;
  for (uint32_t rest = warp.waiting; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (!(warp.calls[lane].mask >> current->lane & 1)) continue;
    here = threads[current->warp * WARP + lane].line;
    fail(LANES, "exits while lane %d waits for it at an operation of the warp", lane);
  }
}

// __syncwarp is the one operation of a warp that orders its memory accesses.
void sync_warp(uint32_t mask) {
  struct None {} none;
  meet(1, mask, none, [=](None **) {
    Knowledge all;
    const int first = current->warp * WARP;
    for (uint32_t rest = mask; rest; rest &= rest - 1) release_to(all, first + __builtin_ctz(rest));
    for (uint32_t rest = mask; rest; rest &= rest - 1) acquire_from(all, first + __builtin_ctz(rest));
  });
}

struct Shuffled { uint32_t value, selector, bounds; bool inside; uint32_t result; };

// PTX's own formula: `bounds` holds the segment mask (bits 8-12) and the clamp (bits 0-4).
static int shuffle_source(Shuffle mode, int lane, uint32_t selector, uint32_t bounds, bool &inside) {
  const int segment = bounds >> 8 & 31, clamp = bounds & 31, by = selector & 31;
  const int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
  const int wanted = mode == Shuffle::UP          ? lane - by
                     : mode == Shuffle::DOWN      ? lane + by
                     : mode == Shuffle::BUTTERFLY ? lane ^ by
                                                  : first | (by & ~segment);
  inside = mode == Shuffle::UP ? wanted >= last : wanted <= last;
  return inside ? wanted : lane;
}

uint32_t shuffle(Shuffle mode, uint32_t value, uint32_t selector, uint32_t bounds, uint32_t mask, bool &inside) {
  Shuffled mine = {value, selector, bounds, false, 0};
  meet(10 + (int)mode, mask, mine, [=](Shuffled **lanes) {
    for (int lane = 0; lane < WARP; ++lane) {
      if (!lanes[lane]) continue;
      Shuffled &each = *lanes[lane];
      const int source = shuffle_source(mode, lane, each.selector, each.bounds, each.inside);
      if (!lanes[source])
        fail(LANES, "lane %d shuffles from lane %d, which is not in the mask %#x", lane, source, mask);
      each.result = lanes[source]->value;
    }
  });
  inside = mine.inside;
  return mine.result;
}

template <class T> struct Asked { T value; uint32_t result; };

uint32_t ballot(bool vote, uint32_t mask) {
  Asked<bool> mine = {vote, 0};
  meet(20, mask, mine, [=](Asked<bool> **lanes) {
    uint32_t votes = 0;
    for (int lane = 0; lane < WARP; ++lane) votes |= (uint32_t)(lanes[lane] && lanes[lane]->value) << lane;
    for (int lane = 0; lane < WARP; ++lane)
      if (lanes[lane]) lanes[lane]->result = votes;
  });
  return mine.result;
}

// The lanes with the same value; `all`: the whole mask, or nothing.
template <class T> uint32_t match(T value, uint32_t mask, bool all) {
  Asked<T> mine = {value, 0};
  meet(21 + all, mask, mine, [=](Asked<T> **lanes) {
    for (int lane = 0; lane < WARP; ++lane)
      for (int other = 0; lanes[lane] && other < WARP; ++other)
        lanes[lane]->result |= (uint32_t)(lanes[other] && lanes[other]->value == lanes[lane]->value) << other;
  });
  return all && mine.result != mask ? 0 : mine.result;
}

// redux.sync: fold the lanes' values.
template <class T> T reduce_warp(T value, uint32_t mask, T (*fold)(T, T)) {
  struct Folded { T value, result; } mine = {value, 0};
  meet(23, mask, mine, [=](Folded **lanes) {
    const int first = __builtin_ctz(mask);
    T all = lanes[first]->value;
    for (int lane = first + 1; lane < WARP; ++lane)
      if (lanes[lane]) all = fold(all, lanes[lane]->value);
    for (int lane = first; lane < WARP; ++lane)
      if (lanes[lane]) lanes[lane]->result = all;
  });
  return mine.result;
}

// ldmatrix: lane 8i + r gives the address of row r of the i-th 8 x 8 matrix of 16-bit elements.
struct Rows { uint64_t address; uint32_t registers[4]; };

void load_matrices(int count, bool transposed, uint64_t address, uint32_t *registers) {
  Rows mine = {address, {}};
  meet(-here, ~0u, mine, [=](Rows **lanes) {
    for (int i = 0; i < count; ++i) {
      uint16_t matrix[8][8];
      for (int row = 0; row < 8; ++row) memcpy(matrix[row], shared_read<16>(lanes[8 * i + row]->address), 16);
      for (int lane = 0; lane < WARP; ++lane) {
        const int row = lane / 4, column = lane % 4 * 2;
        const uint32_t low = transposed ? matrix[column][row] : matrix[row][column];
        const uint32_t high = transposed ? matrix[column + 1][row] : matrix[row][column + 1];
        lanes[lane]->registers[i] = low | high << 16;
      }
    }
  });
  memcpy(registers, mine.registers, sizeof mine.registers);
}

}  // namespace emu
