// Run the blocks of a launch one after the other.
#pragma once
#include "barrier.h"
#include "copy.h"
#include "wgmma.h"

namespace emu {

static void fiber_main() {
  alignas(16) char frame[16384];
  std::vector<char> large;
  char *local = frame;
  if (kernel->local_bytes > sizeof frame) {
    large.resize(kernel->local_bytes + 16);
    local = (char *)(((uintptr_t)large.data() + 15) & ~(uintptr_t)15);
  }
  memset(local, 0xff, kernel->local_bytes);
  current->local = local;
  kernel->body();
  std::vector<char>().swap(large);
  current->done = true;
  --live_count;
  leave_warp();
  leave_barriers();
  if (live_count) run_next();
  current = nullptr;
  Fiber lost;
  change(lost, host);
}

static void start_thread(int index) {
  const uint32_t *block = request->block;
  Thread &thread = threads[index];
  thread.x = index % block[0], thread.y = index / block[0] % block[1], thread.z = index / (block[0] * block[1]);
  thread.index = index, thread.warp = index / WARP, thread.lane = index % WARP;
  thread.done = thread.aligned = false;
  thread.line = 0, thread.waits = nullptr, thread.barrier = -1;
  thread.groups.clear(), thread.open.clear(), thread.products.clear();
  prepare(thread.fiber, stacks.of(index), STACK_BYTES, fiber_main);
  ready.push(index);
}

static void run_block(uint32_t x, uint32_t y, uint32_t z) {
  block_index[0] = x, block_index[1] = y, block_index[2] = z;
  live_count = thread_count;
  ready.head = ready.count = 0;
  reset_clocks();
  reset_shared();
  reset_barriers();
  reset_mbarriers();
  reset_products();
  for (int w = 0; w * WARP < thread_count; ++w) {
    const int lanes = std::min(WARP, thread_count - w * WARP);
    warps[w].live = lanes == WARP ? ~0u : (1u << lanes) - 1;
    warps[w].exited = warps[w].waiting = 0;
  }
  for (int i = 0; i < thread_count; ++i) start_thread(i);
  current = &threads[ready.pop()];
  change(host, current->fiber);
  if (!fault.kind) fault = suspicion;
}

static void run_grid() {
  for (uint32_t z = 0; z < request->grid[2]; ++z)
    for (uint32_t y = 0; y < request->grid[1]; ++y)
      for (uint32_t x = 0; x < request->grid[0] && !fault.kind; ++x) run_block(x, y, z);
}

static void open_module(const Module *module) {
  cell_shift = __builtin_ctz(module->cell_bytes);
  module_ranges.clear();
  for (uint32_t i = 0; i < module->variable_count; ++i) {
    const Variable &variable = module->variables[i];
    module_ranges.push_back({(uint64_t)variable.begin, (uint64_t)variable.end, nullptr});
  }
}

// All state is set here, so that a launch after a failed one starts clean.
static int launch(const Request *given, const Module *module, Fault *report) {
  memset(&fault, 0, sizeof fault);
  memset(&suspicion, 0, sizeof suspicion);
  request = given, kernel = &module->kernels[given->kernel], current = nullptr, last_range = nullptr, here = 0;
  random_state = given->seed * 2862933555777941757ull + 3037000493ull;
  thread_count = given->block[0] * given->block[1] * given->block[2];
  open_module(module);
  open_shared(kernel->static_shared + given->dynamic_shared);
  if (stacks.open(thread_count)) {
    run_grid();
    stacks.close();
  } else {
    fault.kind = LAUNCH;
    snprintf(fault.text, sizeof fault.text, "no memory for the stacks of %d threads", thread_count);
  }
  *report = fault;
  return fault.kind;
}

}  // namespace emu
