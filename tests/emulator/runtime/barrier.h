// bar.sync, bar.arrive and bar.red: the sixteen barriers of a block.
#pragma once
#include "memory.h"

namespace emu {

struct Barrier {
  int expected, line;               // expected: 0 for all live threads
  std::vector<int> arrived, waiting;
  Knowledge knowledge;              // of those that arrived, for a barrier of part of the block
  int votes;
};
static Barrier barriers[16];

static void reset_barriers() {
  for (Barrier &b : barriers) {
    b.expected = b.votes = 0;
    b.arrived.clear(), b.waiting.clear(), b.knowledge.clear();
  }
}

// An aligned barrier is for the warp as a whole: no lane may have left or be elsewhere.
static void check_warp_together(int id) {
  const Warp &warp = warps[current->warp];
  if (warp.exited) fail(DIVERGENCE, "lanes %#x of the warp have exited and never reach this barrier", warp.exited);
  for (int lane = 0; lane < WARP; ++lane) {
    const int other = current->warp * WARP + lane;
    if (other >= thread_count || !threads[other].aligned) continue;
    if (threads[other].barrier != id || threads[other].line != here)
      fail(DIVERGENCE, "thread %d of the same warp waits at another barrier (PTX line %d)", other, threads[other].line);
  }
}

// `last` keeps running; all others that wait are woken.
static void open_barrier(Barrier &b, int last, bool reduce_and, bool popcount) {
  const int voters = b.arrived.size();
  if (!b.expected) join_block();
  const int result = popcount ? b.votes : reduce_and ? b.votes == voters : b.votes > 0;
  if (last >= 0) b.waiting.push_back(last);
  for (int thread : b.waiting) {
    if (b.expected) acquire_from(b.knowledge, thread);
    threads[thread].reduced = result;
    threads[thread].barrier = -1, threads[thread].aligned = false;
    if (thread != last) wake(thread);
  }
  b.arrived.clear(), b.waiting.clear(), b.knowledge.clear();
  b.expected = b.votes = 0;
}

static Barrier &arrive(uint32_t id, int count, bool vote) {
  if (id >= 16) fail(PROTOCOL, "barrier %u: there are 16", id);
  if (count % WARP) fail(PROTOCOL, "barrier %u for %d threads, not whole warps", id, count);
  Barrier &b = barriers[id];
  if (b.arrived.empty()) b.expected = count, b.line = here;
  if (b.expected != count)
    fail(PROTOCOL, "barrier %u for %d threads, others arrived for %d", id, count, b.expected);
  if (!count && b.line != here)
    fail(DIVERGENCE, "other threads of the block wait at another barrier (PTX line %d)", b.line);
  b.arrived.push_back(current->index);
  b.votes += vote;
  if (count) release_to(b.knowledge, current->index);
  return b;
}

static bool complete(const Barrier &b) { return (int)b.arrived.size() == (b.expected ? b.expected : live_count); }

int barrier_sync(uint32_t id, int count, bool aligned, bool vote, Vote kind) {
  if (aligned) check_warp_together(id);
  Barrier &b = arrive(id, count, vote);
  current->barrier = id, current->aligned = aligned, current->line = here;
  if (complete(b)) {
    open_barrier(b, current->index, kind == VOTE_AND, kind == VOTE_COUNT);
  } else {
    b.waiting.push_back(current->index);
    wait("a barrier");
  }
  return current->reduced;
}

void barrier_arrive(uint32_t id, int count) {
  Barrier &b = arrive(id, count, false);
  if (complete(b)) open_barrier(b, -1, false, false);
}

// A thread that exits no longer counts; its warp must not wait for it.
static void leave_barriers() {
  const Warp &warp = warps[current->warp];
  for (int lane = 0; lane < WARP; ++lane) {
    const int other = current->warp * WARP + lane;
    if (other < thread_count && threads[other].aligned && threads[other].barrier >= 0) {
      here = threads[other].line;
      fail(DIVERGENCE, "exits while thread %d of its warp waits at a barrier (lanes %#x are live)", other, warp.live);
    }
  }
  for (Barrier &b : barriers)
    if (!b.arrived.empty() && !b.expected && complete(b)) open_barrier(b, -1, false, false);
}

}  // namespace emu
