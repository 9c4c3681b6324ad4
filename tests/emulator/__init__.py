"""Run CUDA kernels on the CPU: NVRTC's PTX, translated to C++ with one fiber per CUDA thread.

    nvrtc      CUDA C++ to PTX or machine code
    ptx        PTX text to frozen values
    opcodes/   the whitelist of instructions, and the C++ each becomes
    translate  a module to C++ on the runtime
    runtime/   fibers, schedules, checked memory, races, barriers, warps, tensor cores
    build      C++ to a shared library linked to the engine, and the cache
    library    all of these in a row, for one source or many at once
    device     memory, modules and launches: what tests use
    driver_library  functions of the CUDA driver's library

It is stricter than a GPU: accesses out of bounds or misaligned, memory read before it was written,
races in shared memory, copies and products not waited for, missing proxy fences, divergent
barriers, missing lanes and deadlocks are errors that name the kernel, the block, the thread and
the line.  It cannot see what ptxas does, weak memory order, races between blocks (they run one
after the other) and through global memory, or how tensor cores round.
"""
