// Which accesses of one actor come before which of another: vector clocks.
//
// Actors are the threads and what works beside them: each warp's share of a wgmma, and the copies
// each mbarrier counts (TMA).  A thread counts its own releases.  What it knows of
// another actor is the larger of what a barrier of the whole block told everyone (base) and what it
// learnt otherwise (its row, made only when a barrier of part of the block, a warp or an mbarrier
// is used).  A second clock tells which generic writes a proxy fence has shown to wgmma and TMA.
#pragma once
#include <algorithm>

#include "scheduler.h"

namespace emu {

using Epoch = uint32_t;
using Clock = std::vector<Epoch>;

constexpr int WARPS = MAX_THREADS / WARP, MBARRIERS = 64;
constexpr int MAX_ACTORS = MAX_THREADS + WARPS + MBARRIERS;

struct Knowledge {
  Clock order, fenced;
  void clear() { order.clear(), fenced.clear(); }
};

static int actor_count;
static Epoch own[MAX_ACTORS], base[MAX_ACTORS];
static Clock rows[MAX_THREADS];
static const Epoch *row[MAX_THREADS];  // of rows, or null: nothing beyond base
static Clock fenced[MAX_THREADS], fenced_base;
static bool fences_used;
static uint32_t joins;  // barriers of the whole block so far

static int warp_actor(int thread) { return thread_count + thread / WARP; }
static int mbarrier_actor(int index) { return thread_count + WARPS + index; }

static void reset_clocks() {
  actor_count = thread_count + WARPS + MBARRIERS;
  std::fill_n(own, actor_count, 1);
  std::fill_n(base, actor_count, 0);
  std::fill_n(row, thread_count, nullptr);
  for (Clock &clock : fenced) clock.clear();
  fenced_base.assign(actor_count, 0);
  fences_used = false;
  joins = 0;
}

EMU_INLINE Epoch known(int thread, int actor) {
  if (thread == actor) return own[actor];
  const Epoch told = base[actor];
  return row[thread] && row[thread][actor] > told ? row[thread][actor] : told;
}

static Epoch known_fenced(int thread, int actor) {
  const Epoch told = fenced_base[actor];
  return fenced[thread].empty() ? told : std::max(told, fenced[thread][actor]);
}

static void raise(Clock &clock, const Clock &by) {
  if (by.empty()) return;
  clock.resize(actor_count);
  for (int i = 0; i < actor_count; ++i) clock[i] = std::max(clock[i], by[i]);
}

// A barrier of every live thread.
static void join_block() {
  ++joins;
  for (int i = 0; i < thread_count; ++i)
    for (int actor = thread_count; row[i] && actor < actor_count; ++actor)
      base[actor] = std::max(base[actor], row[i][actor]);
  for (int i = 0; i < thread_count; ++i) base[i] = own[i]++, row[i] = nullptr;
  for (int i = 0; fences_used && i < thread_count; ++i) {
    raise(fenced_base, fenced[i]);
    fenced[i].clear();
  }
}

// What `thread` knows flows into `knowledge`; its later accesses do not.
static void release_to(Knowledge &knowledge, int thread) {
  knowledge.order.resize(actor_count);
  for (int i = 0; i < actor_count; ++i) knowledge.order[i] = std::max(knowledge.order[i], known(thread, i));
  raise(knowledge.fenced, fenced[thread]);
  ++own[thread];
}

// The clock of what a thread learnt, ready to be raised.
static Clock &learn(int thread) {
  if (!row[thread]) rows[thread].assign(actor_count, 0);
  row[thread] = rows[thread].data();
  return rows[thread];
}

static void acquire_from(const Knowledge &knowledge, int thread) {
  if (knowledge.order.empty()) return;
  raise(learn(thread), knowledge.order);
  raise(fenced[thread], knowledge.fenced);
}

// fence.proxy.async: what the thread knows of by now can be read by wgmma and TMA.
void fence_proxy() {
  const int me = current->index;
  fences_used = true;
  fenced[me].resize(actor_count);
  for (int i = 0; i < actor_count; ++i) fenced[me][i] = std::max(fenced[me][i], known(me, i));
  ++own[me];
}

}  // namespace emu
