// One fiber per CUDA thread: a stack and a way to change to it.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include "fault.h"

#if defined(__x86_64__) && !defined(EMU_UCONTEXT)
// Push what a callee must keep, exchange stack pointers, pop.  swapcontext would also change the
// signal mask, a system call on every switch.
extern "C" __attribute__((visibility("hidden"))) void emu_exchange(void **save, void *load);
asm(".text\n.type emu_exchange,@function\nemu_exchange:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

namespace emu {
struct Fiber { void *pointer; };
static void prepare(Fiber &fiber, char *stack, size_t bytes, void (*entry)()) {
  void **top = (void **)(stack + bytes) - 2;  // 16-byte aligned, then as after a call
  *top = (void *)entry;
  fiber.pointer = top - 6;
}
static void change(Fiber &from, Fiber &to) { emu_exchange(&from.pointer, to.pointer); }
}  // namespace emu
#else
#include <ucontext.h>

namespace emu {
struct Fiber { ucontext_t context; };
static void prepare(Fiber &fiber, char *stack, size_t bytes, void (*entry)()) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
}
static void change(Fiber &from, Fiber &to) { swapcontext(&from.context, &to.context); }
}  // namespace emu
#endif

namespace emu {

constexpr size_t STACK_BYTES = 256 << 10;

// The stacks of a launch, with a page below each that no one may touch.
struct Stacks {
  char *base = nullptr;
  size_t bytes = 0;
  bool open(int count) {
    bytes = count * STACK_BYTES;
    base = (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == (char *)MAP_FAILED) return false;
    for (int i = 0; i < count; ++i) mprotect(base + i * STACK_BYTES, getpagesize(), PROT_NONE);
    return true;
  }
  void close() {
    if (bytes) munmap(base, bytes);
    bytes = 0;
  }
  char *of(int thread) { return base + thread * STACK_BYTES; }
};

}  // namespace emu
