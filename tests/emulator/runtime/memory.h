// Checked access to every space: bounds, alignment, whether written, and races in shared memory.
//
// Generic addresses of shared, local and parameter space carry a tag in their highest byte, which
// no host address has; global addresses are the host's.
#pragma once
#include "clocks.h"

namespace emu {

// ---- global ----

static std::vector<Range> module_ranges;  // the variables of the module that runs
static const Range *last_range;

[[noreturn]] __attribute__((noinline)) static void outside(uint64_t address, int bytes, const char *access) {
  const Range *below = nullptr;
  for (uint32_t i = 0; i < request->ranges; ++i)
    if (request->range[i].begin <= address) below = &request->range[i];
  if (!below)
    fail(BOUNDS, "%s of %d bytes at %#llx, below all allocations", access, bytes, (unsigned long long)address);
  fail(BOUNDS, "%s of %d bytes at byte %lld of an allocation of %llu", access, bytes,
       (long long)(address - below->begin), (unsigned long long)(below->end - below->begin));
}

static const Range &range_of(uint64_t address, int bytes, const char *access) {
  if (last_range && address >= last_range->begin && address + bytes <= last_range->end) return *last_range;
  for (uint32_t i = 0; i < request->ranges; ++i) {
    const Range &range = request->range[i];
    if (address >= range.begin && address + bytes <= range.end) return *(last_range = &range);
  }
  for (const Range &range : module_ranges)
    if (address >= range.begin && address + bytes <= range.end) return *(last_range = &range);
  if (address >> 56) fail(BOUNDS, "%s of global memory with the address of another space", access);
  outside(address, bytes, access);
}

template <int N> EMU_INLINE bool all_written(const uint8_t *marks) {
  static const uint8_t ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  return !memcmp(marks, ones, N);
}

template <int N> EMU_INLINE void check_aligned(uint64_t address, const char *what) {
  if (address & (N - 1))
    fail(MISALIGNED, "%s of %d bytes at %#llx", what, N, (unsigned long long)(address & 0xffffff));
}

template <int N> const char *global_read(uint64_t address) {
  check_aligned<N>(address, "global read");
  const Range &range = range_of(address, N, "read");
  if (range.written && request->strict && !all_written<N>(range.written + (address - range.begin)))
    fail(UNINITIALISED, "read of %d bytes at byte %llu of an allocation, never written", N,
         (unsigned long long)(address - range.begin));
  return (const char *)address;
}

template <int N> char *global_write(uint64_t address) {
  check_aligned<N>(address, "global write");
  const Range &range = range_of(address, N, "write");
  if (range.written) memset(range.written + (address - range.begin), 1, N);
  return (char *)address;
}

// ---- shared ----

// Who last wrote and read some bytes.  Many readers are kept in a vector of their epochs.
struct Cell {
  Epoch write_epoch, read_epoch;
  uint32_t read_joins;       // at the last read; UNORDERED once wgmma or TMA read, which no barrier orders
  int16_t writer, reader;
  uint16_t readers;          // number + 1 of a set of readers, 0 for none
  bool atomic, copying;      // copying: the target of a cp.async not yet waited for
};
constexpr uint32_t UNORDERED = ~0u;
constexpr Cell FRESH = {0, 0, 0, -1, -1, 0, false, false};
EMU_INLINE uint32_t cell_at(uint32_t offset) { return offset >> cell_shift; }
EMU_INLINE uint32_t byte_of(uint32_t cell) { return cell << cell_shift; }

static std::vector<char> shared_store;
static std::vector<uint8_t> shared_marks;
static std::vector<Cell> cell_store;
// The pointers are what accesses use: at -O1 a vector's operator[] is a call.
static char *shared_data;        // of shared_store, aligned to 1 KB as tiles of TMA need
static uint8_t *shared_written;  // of shared_marks
static Cell *cells;              // of cell_store

// Sets of readers: the epoch in which each thread last read, 0 for never.
static std::vector<Epoch> read_store;
static std::vector<uint16_t> free_read_sets;
static uint32_t read_set_count;
static Epoch *read_sets;         // of read_store, actor_count each

static void open_shared(uint32_t bytes) {
  shared_bytes = bytes;
  shared_store.resize(bytes + 1024);
  shared_data = (char *)(((uintptr_t)shared_store.data() + 1023) & ~(uintptr_t)1023);
}

// Every block starts with shared memory that holds NaN and that no one wrote.
static void reset_shared() {
  memset(shared_data, 0xff, shared_bytes);
  shared_marks.assign(shared_bytes + 16, 0);
  cell_store.assign(cell_at(shared_bytes) + 1, FRESH);
  shared_written = shared_marks.data(), cells = cell_store.data();
  read_set_count = 0;
  free_read_sets.clear();
}

[[noreturn]] static void race(const char *what, uint32_t offset, int actor) {
  const int extra = actor - thread_count;
  if (extra >= WARPS)
    fail(RACE, "%s shared byte %u, the TMA copies of an mbarrier, with no wait between", what, offset);
  if (extra >= 0) fail(RACE, "%s shared byte %u, wgmma of warp %d, with no wait between", what, offset, extra);
  fail(RACE, "%s shared byte %u, thread %d, with no barrier between", what, offset, actor);
}

EMU_INLINE Epoch *read_set(uint16_t number) { return read_sets + (size_t)(number - 1) * actor_count; }

// An empty set, or 0 when there are too many (the cell then forgets a reader).
static uint16_t take_read_set() {
  uint16_t taken = 0;
  if (!free_read_sets.empty()) {
    taken = free_read_sets.back();
    free_read_sets.pop_back();
  } else if (read_set_count < UINT16_MAX) {
    taken = ++read_set_count;
    if (read_store.size() < (size_t)taken * actor_count) read_store.resize((size_t)taken * actor_count * 2);
    read_sets = read_store.data();
  }
  if (taken) memset(read_set(taken), 0, actor_count * sizeof(Epoch));
  return taken;
}

__attribute__((noinline)) static void second_reader(Cell &cell, int reader) {
  const uint16_t set = take_read_set();
  if (!set) return;
  read_set(set)[cell.reader] = cell.read_epoch;
  read_set(set)[reader] = own[reader];
  cell.readers = set;
}

// The current thread's knowledge counts; the access is `actor`'s, itself or what it set to work.
EMU_INLINE void note_read(Cell &cell, uint32_t offset, int actor) {
  const int me = current->index;
  if (cell.copying)
    fail(UNFINISHED, "read of shared byte %u before the cp.async of thread %d was waited for", offset, cell.writer);
  if (cell.writer >= 0 && known(me, cell.writer) < cell.write_epoch)
    race("read of what another thread wrote,", offset, cell.writer);
  cell.read_joins = actor < thread_count ? greatest(cell.read_joins, joins) : UNORDERED;
  if (cell.readers) {
    read_set(cell.readers)[actor] = own[actor];
  } else if (cell.reader < 0 || known(me, cell.reader) >= cell.read_epoch) {
    cell.reader = actor, cell.read_epoch = own[actor];
  } else {
    second_reader(cell, actor);
  }
}

static void note_write(Cell &cell, uint32_t offset, Access access, int actor) {
  const int me = current->index;
  if (cell.copying)
    fail(UNFINISHED, "write of shared byte %u before the cp.async of thread %d was waited for", offset, cell.writer);
  const bool both_atomic = access == ATOMIC && cell.atomic;
  if (cell.writer >= 0 && !both_atomic && known(me, cell.writer) < cell.write_epoch)
    race("write over what another thread wrote,", offset, cell.writer);
  if (cell.reader >= 0 && known(me, cell.reader) < cell.read_epoch)
    race("write over what another thread reads,", offset, cell.reader);
  if (cell.readers) {
    const Epoch *set = read_set(cell.readers);
    // A barrier of the block since the last read told everyone.
    for (int i = 0; cell.read_joins >= joins && i < actor_count; ++i)
      if (set[i] && known(me, i) < set[i]) race("write over what another thread reads,", offset, i);
    free_read_sets.push_back(cell.readers);
  }
  cell = {own[actor], 0, 0, (int16_t)actor, -1, 0, access == ATOMIC, false};
}

EMU_INLINE void note_shared(uint32_t offset, int bytes, Access access) {
  uint32_t i = cell_at(offset);
  const uint32_t end = i + ((uint32_t)bytes >> cell_shift);
  do {
    if (access == READ) note_read(cells[i], byte_of(i), current->index);
    else note_write(cells[i], byte_of(i), access, current->index);
  } while (++i < end);
}

EMU_INLINE void check_shared(uint64_t offset, int bytes, const char *access) {
  if (offset + bytes > shared_bytes || offset > shared_bytes)
    fail(BOUNDS, "%s of %d bytes at byte %lld of %u bytes of shared memory", access, bytes, (long long)offset, shared_bytes);
}

// Not the end yet: see suspicion in fault.h.
__attribute__((noinline)) static void suspect(uint32_t offset, int bytes) {
  if (suspicion.kind) return;
  suspicion.kind = UNINITIALISED, suspicion.line = here;
  locate(suspicion);
  snprintf(suspicion.text, sizeof suspicion.text, "read of %d bytes at byte %u of shared memory, never written", bytes, offset);
}

template <int N> const char *shared_read(uint64_t address) {
  const uint64_t offset = address & ~SHARED;
  check_shared(offset, N, "read");
  check_aligned<N>(offset, "shared read");
  note_shared(offset, N, READ);
  if (request->strict && !all_written<N>(&shared_written[offset])) suspect((uint32_t)offset, N);
  return shared_data + offset;
}

template <int N> EMU_INLINE char *change_shared(uint64_t address, Access access) {
  const uint64_t offset = address & ~SHARED;
  check_shared(offset, N, "write");
  check_aligned<N>(offset, "shared write");
  note_shared(offset, N, access);
  memset(&shared_written[offset], 1, N);
  return shared_data + offset;
}
template <int N> char *shared_write(uint64_t address) { return change_shared<N>(address, WRITE); }

// ---- local, parameters, generic ----

template <int N> static char *local_access(uint64_t address) {
  const uint64_t offset = address & ~LOCAL;
  if (offset + N > kernel->local_bytes || offset > kernel->local_bytes)
    fail(BOUNDS, "access of %d bytes at byte %lld of %u bytes of local memory", N, (long long)offset, kernel->local_bytes);
  check_aligned<N>(offset, "local access");
  return current->local + offset;
}
template <int N> const char *local_read(uint64_t address) { return local_access<N>(address); }
template <int N> char *local_write(uint64_t address) { return local_access<N>(address); }

template <int N> const char *param_read(uint64_t address) {
  const uint64_t offset = address & ~PARAM;
  if (offset + N > request->parameter_bytes || offset > request->parameter_bytes)
    fail(BOUNDS, "read of %d bytes at byte %lld of %u bytes of parameters", N, (long long)offset, request->parameter_bytes);
  return request->parameters + offset;
}

template <int N> const char *const_read(uint64_t address) { return global_read<N>(address); }

template <int N> const char *generic_read(uint64_t address) {
  switch (address & (255ull << 56)) {
    case SHARED: return shared_read<N>(address);
    case LOCAL: return local_read<N>(address);
    case PARAM: return param_read<N>(address);
    default: return global_read<N>(address);
  }
}
template <int N> char *generic_write(uint64_t address) {
  switch (address & (255ull << 56)) {
    case SHARED: return shared_write<N>(address);
    case LOCAL: return local_write<N>(address);
    default: return global_write<N>(address);
  }
}

// A generic address must be in the space it is converted to; tag 0 is global.
uint64_t untag(uint64_t address, uint64_t tag) {
  if (address && (address & (255ull << 56)) != tag)
    fail(BOUNDS, "%#llx converted to a space it is not in", (unsigned long long)address);
  return address & ~tag;
}

// An atomic needs what it changes to have been written before.
template <int N> char *global_atomic(uint64_t address) {
  global_read<N>(address);
  return global_write<N>(address);
}
template <int N> char *shared_atomic(uint64_t address) {
  const uint64_t offset = address & ~SHARED;
  check_shared(offset, N, "atomic");
  if (request->strict && !all_written<N>(&shared_written[offset])) suspect((uint32_t)offset, N);
  return change_shared<N>(address, ATOMIC);
}
template <int N> char *generic_atomic(uint64_t address) {
  return (address & (255ull << 56)) == SHARED ? shared_atomic<N>(address) : global_atomic<N>(address);
}

}  // namespace emu
