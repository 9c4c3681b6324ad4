// mbarrier, and the TMA copies that complete on one.  sm_90.
#pragma once
#include "memory.h"

namespace emu {

// A tensor map as device.py writes it, in place of what cuTensorMapEncodeTiled would.
struct TensorMap {
  uint64_t magic, base, extent[5], stride[4];  // strides in bytes, of all modes but the first
  uint32_t box[5];
  uint8_t rank, item, swizzle, rounds;         // swizzle: 0 none, 1, 2, 3: 32, 64, 128 bytes; rounds: f32 to tf32
  uint8_t rest[16];
};
constexpr uint64_t TENSOR_MAP = 0x50414d524f534e54ull;

struct Bulk { TensorMap map; int at[5]; uint32_t target; };

struct Mbarrier {
  uint32_t offset;
  int expected, pending, writer;  // writer: the thread that initialised it
  Epoch written;
  int64_t bytes;                  // still to come in this phase
  uint32_t phase;
  Knowledge arriving, completed;
  std::vector<int> waiting;
  std::vector<Bulk> queue;        // copies that have not landed
};
static std::vector<Mbarrier> mbarriers;

static void reset_mbarriers() { mbarriers.clear(); }

static Mbarrier &mbarrier_at(uint64_t address) {
  for (Mbarrier &each : mbarriers) {
    if (each.offset != (address & ~SHARED)) continue;
    if (known(current->index, each.writer) < each.written)
      race("use of an mbarrier initialised at", each.offset, each.writer);
    return each;
  }
  fail(PROTOCOL, "no mbarrier was initialised at shared byte %u", (uint32_t)address);
}

void mbarrier_check(uint64_t address) { mbarrier_at(address); }

void mbarrier_init(uint64_t address, int count) {
  shared_write<8>(address);
  if (count < 1) fail(PROTOCOL, "an mbarrier for %d arrivals", count);
  if (mbarriers.size() == MBARRIERS) fail(PROTOCOL, "more than %d mbarriers", MBARRIERS);
  Mbarrier made = {};
  made.offset = address & ~SHARED, made.expected = made.pending = count;
  made.writer = current->index, made.written = own[current->index];
  mbarriers.push_back(made);
}

static void complete_phase(Mbarrier &b) {
  if (b.pending || b.bytes) return;
  const int actor = mbarrier_actor(&b - mbarriers.data());
  b.arriving.order.resize(actor_count);
  b.arriving.order[actor] = own[actor]++;
  raise(b.completed.order, b.arriving.order);
  raise(b.completed.fenced, b.arriving.fenced);
  b.arriving.clear();
  b.pending = b.expected, ++b.phase;
  for (int thread : b.waiting) wake(thread);
  b.waiting.clear();
}

static uint64_t swizzled(uint64_t address, int swizzle) {
  const int mask = swizzle == 3 ? 7 : swizzle == 2 ? 3 : swizzle;
  return address ^ (address >> 7 & mask) << 4;
}

// Call f(shared offset, source or 0) for every element of a box; elements outside are zero.
template <class F> static void each_element(const Bulk &copy, F f) {
  const TensorMap &map = copy.map;
  uint64_t count = 1;
  for (int d = 0; d < map.rank; ++d) count *= map.box[d];
  for (uint64_t e = 0; e < count; ++e) {
    uint64_t rest = e, source = map.base;
    bool inside = true;
    for (int d = 0; d < map.rank; ++d) {
      const int64_t i = (int64_t)(rest % map.box[d]) + copy.at[d];
      rest /= map.box[d];
      inside &= i >= 0 && (uint64_t)i < map.extent[d];
      source += i * (d ? map.stride[d - 1] : map.item);
    }
    f(swizzled(copy.target + e * map.item, map.swizzle), inside ? source : 0);
  }
}

// To nearest, ties to even; infinity and NaN as they are.
static void round_to_tf32(char *p) {
  const uint32_t bits = get<uint32_t>(p);
  if ((~bits & 0x7f800000) == 0) return;
  const uint32_t rounded = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
  memcpy(p, &rounded, sizeof rounded);
}

static void land(Mbarrier &b, const Bulk &copy) {
  each_element(copy, [&](uint32_t to, uint64_t from) {
    if (from) memcpy(shared_data + to, (const char *)from, copy.map.item);
    else memset(shared_data + to, 0, copy.map.item);
    if (copy.map.rounds) round_to_tf32(shared_data + to);
    memset(shared_written + to, 1, copy.map.item);
    b.bytes -= copy.map.item;
  });
}

static void land_all(Mbarrier &b) {
  for (const Bulk &copy : b.queue) land(b, copy);
  if (b.queue.empty()) return;
  b.queue.clear();
  complete_phase(b);
}

uint64_t mbarrier_arrive(uint64_t address, int count, uint32_t bytes) {
  shared_atomic<8>(address);
  Mbarrier &b = mbarrier_at(address);
  if (count > b.pending) fail(PROTOCOL, "%d arrivals at an mbarrier that waits for %d", count, b.pending);
  const uint64_t state = b.phase;
  b.bytes += bytes;
  release_to(b.arriving, current->index);
  b.pending -= count;
  complete_phase(b);
  return state;
}

void mbarrier_expect(uint64_t address, uint32_t bytes) {
  shared_atomic<8>(address);
  mbarrier_at(address).bytes += bytes;
}

// Wait until the phase with this parity is over.  A test that would fail waits too: threads that
// poll would never let the others run.
bool mbarrier_wait(uint64_t address, uint32_t parity) {
  shared_atomic<8>(address);
  const int index = &mbarrier_at(address) - mbarriers.data();
  if ((mbarriers[index].phase & 1) == parity) land_all(mbarriers[index]);
  while ((mbarriers[index].phase & 1) == parity) {
    mbarriers[index].waiting.push_back(current->index);
    wait("an mbarrier");
  }
  acquire_from(mbarriers[index].completed, current->index);
  return true;
}

// What a generic write left must have been fenced before wgmma or TMA touch it.
static void check_proxy(int writer, Epoch epoch, uint32_t offset) {
  if (writer >= 0 && writer < thread_count && known_fenced(current->index, writer) < epoch)
    fail(PROXY, "shared byte %u, written by thread %d, with no fence.proxy.async since", offset, writer);
}

static TensorMap read_map(uint64_t address) {
  TensorMap map;
  for (int i = 0; i < 8; ++i) memcpy((char *)&map + 16 * i, generic_read<16>(address + 16 * i), 16);
  if (map.magic != TENSOR_MAP) fail(PROTOCOL, "not a tensor map");
  return map;
}

void tma_load(uint64_t target, uint64_t map_address, const int *at, int rank, uint64_t address) {
  Bulk copy = {read_map(map_address), {}, (uint32_t)(target & ~SHARED)};
  const uint32_t align = copy.map.swizzle ? 128u << copy.map.swizzle : 128;
  if (copy.map.rank != rank) fail(PROTOCOL, "TMA of %d modes with a map of %d", rank, copy.map.rank);
  if (copy.target % align) fail(MISALIGNED, "TMA to shared byte %u, not a multiple of %u", copy.target, align);
  std::copy_n(at, rank, copy.at);
  shared_atomic<8>(address);
  Mbarrier &b = mbarrier_at(address);
  check_proxy(b.writer, b.written, b.offset);
  const int actor = mbarrier_actor(&b - mbarriers.data());
  each_element(copy, [&](uint32_t to, uint64_t from) {
    check_shared(to, copy.map.item, "TMA");
    if (from) range_of(from, copy.map.item, "TMA");
    Cell &cell = cells[cell_at(to)];
    if (to != byte_of(cell_at(to))) return;
    check_proxy(cell.writer, cell.write_epoch, to);
    note_write(cell, to, WRITE, actor);
  });
  b.queue.push_back(copy);
  if (!request->late || !b.waiting.empty()) land_all(b);
}

}  // namespace emu
