// What a translated kernel sees of the engine: no header of the standard library, so that a module
// compiles in a moment.  The definitions are in the headers named; engine.cpp compiles them once.
#pragma once
#include <stdint.h>

#define EMU_INLINE static inline __attribute__((always_inline))

namespace emu {

// A module: its kernels, and its variables in global and constant memory.
struct Kernel { const char *name; void (*body)(); uint32_t static_shared, local_bytes; };
struct Variable { const void *begin, *end; };
struct Module {
  const Kernel *kernels;
  const Variable *variables;
  uint32_t variable_count, cell_bytes;  // cell: the narrowest access to shared memory, 1, 2 or 4 bytes
};

extern int here;          // PTX line of the checked instruction that runs
[[noreturn]] void trap();

// scheduler.h: the special registers; axis 0, 1, 2 is x, y, z
uint32_t tid(int axis);
uint32_t ctaid(int axis);
uint32_t ntid(int axis);
uint32_t nctaid(int axis);
uint32_t laneid();
uint32_t warpid();
uint32_t nwarpid();
uint32_t launched_lanes();
uint32_t dynamic_smem_size();
uint32_t total_smem_size();

// memory.h: the host's address of N bytes, after all checks
enum Access { READ, WRITE, ATOMIC };
template <int N> const char *global_read(uint64_t address);
template <int N> const char *shared_read(uint64_t address);
template <int N> const char *local_read(uint64_t address);
template <int N> const char *param_read(uint64_t address);
template <int N> const char *const_read(uint64_t address);
template <int N> const char *generic_read(uint64_t address);
template <int N> char *global_write(uint64_t address);
template <int N> char *shared_write(uint64_t address);
template <int N> char *local_write(uint64_t address);
template <int N> char *generic_write(uint64_t address);
template <int N> char *global_atomic(uint64_t address);
template <int N> char *shared_atomic(uint64_t address);
template <int N> char *generic_atomic(uint64_t address);
uint64_t untag(uint64_t address, uint64_t tag);
constexpr uint64_t SHARED = 1ull << 56, LOCAL = 2ull << 56, PARAM = 3ull << 56;

// barrier.h
enum Vote { NO_VOTE, VOTE_OR, VOTE_AND, VOTE_COUNT };
int barrier_sync(uint32_t id, int count, bool aligned, bool vote = false, Vote kind = NO_VOTE);
void barrier_arrive(uint32_t id, int count);

// warp.h
enum class Shuffle { UP, DOWN, BUTTERFLY, INDEX };
void sync_warp(uint32_t mask);
uint32_t shuffle(Shuffle mode, uint32_t value, uint32_t selector, uint32_t bounds, uint32_t mask, bool &inside);
uint32_t ballot(bool vote, uint32_t mask);
template <class T> uint32_t match(T value, uint32_t mask, bool all);
template <class T> T reduce_warp(T value, uint32_t mask, T (*fold)(T, T));
void load_matrices(int count, bool transposed, uint64_t address, uint32_t *registers);

// mma.h: the registers of one lane
struct Tf32 { using Register = uint32_t; };
struct F16 { using Register = uint32_t; };
struct Bf16 { using Register = uint32_t; };
struct S8 { using Register = uint32_t; };
struct U8 { using Register = uint32_t; };
struct F64 { using Register = double; };
template <class A, class B, class C, int RA, int RB, int RC> struct Fragments {
  typename A::Register a[RA];
  typename B::Register b[RB];
  C c[RC];
};
template <class A, class B, class C, int RA, int RB, int RC> void mma(Fragments<A, B, C, RA, RB, RC> &mine);

// copy.h
template <int N> void copy_async(uint64_t target, uint64_t source, int read);
void commit_copies();
void wait_copies(uint32_t pending);
void wait_all_copies();

// mbarrier.h
void mbarrier_init(uint64_t address, int count);
void mbarrier_check(uint64_t address);
uint64_t mbarrier_arrive(uint64_t address, int count, uint32_t bytes);
void mbarrier_expect(uint64_t address, uint32_t bytes);
bool mbarrier_wait(uint64_t address, uint32_t parity);
void fence_proxy();
void tma_load(uint64_t target, uint64_t map_address, const int *at, int rank, uint64_t address);

// wgmma.h
struct SharedTile { uint64_t descriptor; bool transposed; };
template <class T>
void wgmma(float *registers, int columns, const uint32_t *rows, SharedTile left, SharedTile right, bool keep, float scale);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(uint32_t pending);
void change_registers(uint32_t count);
float settled(float x);

// rounding.h
enum class Round { NEAREST, ZERO, DOWN, UP, AWAY };  // AWAY: to nearest, ties away from zero
void set_rounding(Round mode);
double round_integer(double x, Round mode);
float round_f32(double x, Round mode);
uint16_t to_f16(double x, Round mode = Round::NEAREST);
uint16_t to_bf16(double x, Round mode = Round::NEAREST);
uint32_t to_tf32(float x, Round mode);
template <class T> T to_integer(double x, Round mode, bool marks_nan);

}  // namespace emu

#include "bits.h"
#include "floating.h"
