// What can go wrong in a launch, and what Python is told about it.
#pragma once
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

namespace emu {

constexpr int MAX_THREADS = 1024, WARP = 32;

// The order is that of Kind in device.py.
enum Kind : int32_t {
  NONE, LAUNCH, BOUNDS, MISALIGNED, RACE, UNINITIALISED, DIVERGENCE, LANES, DEADLOCK, UNFINISHED, TRAP, PROTOCOL, PROXY
};

struct Fault {
  int32_t kind, line;
  uint32_t block[3], thread[3];
  char text[480];
};

static Fault fault;
// A read of shared memory no one wrote may be the first sign of a race, so the block goes on to see.
static Fault suspicion;
int here;

[[noreturn]] static void abandon();  // leave the launch: see scheduler.h

[[noreturn]] __attribute__((format(printf, 2, 3), cold, noinline)) static void fail(Kind kind, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(fault.text, sizeof fault.text, format, arguments);
  va_end(arguments);
  fault.kind = kind;
  fault.line = here;
  abandon();
}

void trap() { fail(TRAP, "trap"); }

}  // namespace emu
