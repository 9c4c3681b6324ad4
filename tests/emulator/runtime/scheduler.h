// Threads, warps and blocks: who runs, who waits, and what a launch knows.
#pragma once
#include <vector>

#include "fiber.h"

namespace emu {

struct Range { uint64_t begin, end; uint8_t *written; };  // written: one byte per byte, or null

// Filled in by device.py; the fields and their order are those of its _Request.
struct Request {
  uint32_t kernel, grid[3], block[3], dynamic_shared;
  int32_t schedule, late, strict;
  uint32_t seed;
  const char *parameters;
  uint32_t parameter_bytes, ranges;
  const Range *range;
};

enum Schedule { IN_ORDER, REVERSED, RANDOM };

struct Copy { uint32_t target; uint64_t source; int bytes, read; };  // one cp.async

// wgmma whose results a thread has not waited for.  Until it does, each accumulator register holds a
// token, a NaN with the number of its entry here.
struct Accumulator { float value; int pending; };
struct Products {
  std::vector<Accumulator> accumulators;
  std::vector<int> open;                  // products not yet committed
  std::vector<std::vector<int>> groups;
  bool fenced;                            // wgmma.fence since the last wait
  void clear() { accumulators.clear(), open.clear(), groups.clear(), fenced = false; }
};

struct Thread {
  Fiber fiber;
  uint32_t x, y, z;
  int index, warp, lane, line;
  bool done, aligned;        // aligned: waits at a barrier that all lanes of its warp must reach
  const char *waits;         // what for, or null
  int barrier, reduced;      // which barrier; what bar.red gave
  char *local;
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> open;    // cp.async not yet committed
  Products products;
};

// A lane's call of a warp operation, kept on its own stack until the other lanes are there.
struct Call { uint32_t mask; int operation; void *request; };
struct Warp { uint32_t live, exited, waiting; Call calls[WARP]; };

static const Request *request;
static const Kernel *kernel;
static Thread threads[MAX_THREADS], *current;
static Warp warps[MAX_THREADS / WARP];
static int thread_count, live_count;
static uint32_t block_index[3];
static Stacks stacks;
static Fiber host;
static uint64_t random_state;
static uint32_t cell_shift;  // log2 of the module's cell_bytes
static uint32_t shared_bytes;

uint32_t tid(int axis) { return axis == 0 ? current->x : axis == 1 ? current->y : current->z; }
uint32_t ctaid(int axis) { return block_index[axis]; }
uint32_t ntid(int axis) { return request->block[axis]; }
uint32_t nctaid(int axis) { return request->grid[axis]; }
uint32_t laneid() { return current->lane; }
uint32_t warpid() { return current->warp; }
uint32_t nwarpid() { return (thread_count + WARP - 1) / WARP; }
uint32_t launched_lanes() { return warps[current->warp].live | warps[current->warp].exited; }
uint32_t dynamic_smem_size() { return request->dynamic_shared; }
uint32_t total_smem_size() { return shared_bytes; }

static uint32_t random_below(uint32_t bound) {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return (uint32_t)((random_state >> 33) % bound);
}

// Threads that can run.  In order takes the one that waits longest, reversed the last to come.
struct Ready {
  int ring[MAX_THREADS], head, count;
  int &at(int i) { return ring[(head + i) % MAX_THREADS]; }
  void push(int thread) { at(count++) = thread; }
  int pop() {
    if (request->schedule == REVERSED) return at(--count);
    if (request->schedule == RANDOM) {
      const int chosen = random_below(count), thread = at(chosen);
      at(chosen) = at(0);
      at(0) = thread;
    }
    const int thread = at(0);
    head = (head + 1) % MAX_THREADS;
    --count;
    return thread;
  }
};
static Ready ready;

static void locate(Fault &found) {
  memcpy(found.block, block_index, sizeof found.block);
  found.thread[0] = current->x, found.thread[1] = current->y, found.thread[2] = current->z;
}

// Faults that garbage from memory can lead to.
static bool follows_from_garbage(int32_t kind) {
  return kind == BOUNDS || kind == MISALIGNED || kind == TRAP || kind == PROTOCOL;
}

[[noreturn]] static void abandon() {
  locate(fault);
  if (suspicion.kind && follows_from_garbage(fault.kind)) fault = suspicion;
  Fiber lost;
  change(lost, host);
  abort();
}

// Everyone waits: say what for.
[[noreturn]] static void deadlock() {
  int waiting = 0, at_warp = 0, at_barrier = 0;
  const Thread *first = nullptr, *other = nullptr;
  for (int i = 0; i < thread_count; ++i) {
    const Thread &t = threads[i];
    if (t.done || !t.waits) continue;
    ++waiting, at_warp += warps[t.warp].waiting >> t.lane & 1, at_barrier += t.barrier >= 0;
    if (!first) first = &t;
    if (t.line != first->line && !other) other = &t;
  }
  const Kind kind = at_warp ? LANES : at_barrier ? DIVERGENCE : DEADLOCK;
  current = (Thread *)first;
  here = first->line;
  char more[120] = "";
  if (other) snprintf(more, sizeof more, "; thread %d at %s (PTX line %d)", other->index, other->waits, other->line);
  fail(kind, "deadlock: %d of %d threads wait, thread %d at %s%s; %d have exited", waiting, thread_count, first->index,
       first->waits, more, thread_count - live_count);
}

static void run_next() {
  Thread *before = current;
  if (!ready.count) deadlock();
  current = &threads[ready.pop()];
  if (current == before) return;
  Fiber lost;
  change(before ? before->fiber : lost, current->fiber);
}

// Stop until someone wakes this thread.
static void wait(const char *reason) {
  current->waits = reason;
  current->line = here;
  run_next();
  current->waits = nullptr;
  here = current->line;
}

static void wake(int thread) { ready.push(thread); }

}  // namespace emu
