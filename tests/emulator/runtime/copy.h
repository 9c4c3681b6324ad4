// cp.async: copies from global to shared memory that land at once or as late as they may.
#pragma once
#include "memory.h"

namespace emu {

static void land(const Copy &copy, const char *data) {
  memcpy(shared_data + copy.target, data, copy.read);
  memset(shared_data + copy.target + copy.read, 0, copy.bytes - copy.read);
}

template <int N> static void check_source(uint64_t source, int read) {
  if (source & (N - 1))
    fail(MISALIGNED, "cp.async of %d bytes from %#llx", N, (unsigned long long)(source & 0xffffff));
  if (read < 0 || read > N) fail(PROTOCOL, "cp.async of %d bytes reads %d", N, read);
  const Range *range = read ? &range_of(source, read, "cp.async") : nullptr;
  if (!range || !range->written || !request->strict) return;
  for (int i = 0; i < read; ++i)
    if (!range->written[source - range->begin + i]) fail(UNINITIALISED, "cp.async from memory never written");
}

// From here to the wait the target belongs to the copy: any access to it is an error.
template <int N> void copy_async(uint64_t target, uint64_t source, int read) {
  check_source<N>(source, read);
  const uint32_t offset = (uint32_t)(target & ~SHARED);
  shared_write<N>(target);
  for (uint32_t i = cell_at(offset); i <= cell_at(offset + N - 1); ++i) cells[i].copying = true;
  const Copy copy = {offset, source, N, read};
  if (!request->late) land(copy, (const char *)source);
  current->open.push_back(copy);
}

void commit_copies() {
  current->groups.push_back(std::move(current->open));
  current->open.clear();
}

static void finish(const Copy &copy) {
  if (request->late) land(copy, (const char *)copy.source);
  for (uint32_t i = cell_at(copy.target); i <= cell_at(copy.target + copy.bytes - 1); ++i) {
    cells[i].copying = false;
    cells[i].write_epoch = own[current->index];
  }
}

// All but the `pending` youngest groups are done.
void wait_copies(uint32_t pending) {
  auto &groups = current->groups;
  const size_t finished = groups.size() > pending ? groups.size() - pending : 0;
  for (size_t i = 0; i < finished; ++i)
    for (const Copy &copy : groups[i]) finish(copy);
  groups.erase(groups.begin(), groups.begin() + finished);
}

void wait_all_copies() {
  commit_copies();
  wait_copies(0);
}

}  // namespace emu
