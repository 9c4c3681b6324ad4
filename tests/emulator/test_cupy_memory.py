"""Memory of the emulator's CuPy: the pool's reuse by stream, limits, and memory that is gone."""

import gc
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from .cupy_surface import counters, make_cupy
from .device import KernelFault


def test_freed_memory_is_reused_on_its_stream_only(cupy: ModuleType) -> None:
    pool, stream = cupy.get_default_memory_pool(), cupy.cuda.Stream(non_blocking=True)
    first = cupy.empty(100).data.ptr
    assert cupy.empty(100).data.ptr == first
    with stream:
        assert cupy.empty(100).data.ptr != first
    assert counters(cupy).driver_allocations == 2
    assert (pool.used_bytes(), pool.total_bytes(), pool.n_free_blocks()) == (0, 2048, 2)
    pool.free_all_blocks(stream)
    assert (pool.total_bytes(), counters(cupy).driver_frees) == (1024, 1)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_blocks_are_split_and_merged(cupy: ModuleType, order: tuple[int, ...]) -> None:
    pool = cupy.get_default_memory_pool()
    start = cupy.empty(512).data.ptr
    parts = {i: cupy.empty(128) for i in range(4)}
    assert [part.data.ptr - start for part in parts.values()] == [0, 1024, 2048, 3072]
    assert pool.used_bytes() == 4096
    pool.free_all_blocks()
    assert pool.total_bytes() == 4096
    for i in order:
        del parts[i]
    assert pool.n_free_blocks() == 1
    assert cupy.empty(512).data.ptr == start
    assert counters(cupy).driver_allocations == 1


def test_the_smallest_block_that_fits_is_reused(cupy: ModuleType) -> None:
    held = [cupy.empty(64 * blocks) for blocks in (4, 2, 8)]
    wanted = held[1].data.ptr
    held.clear()
    assert cupy.empty(100).data.ptr == wanted


def test_reused_memory_is_new(cupy: ModuleType) -> None:
    """What a block held before is gone, in stream order."""
    x = cupy.ones(100)
    pointer = x.data.ptr
    del x
    y = cupy.empty(100)
    assert y.data.ptr == pointer
    assert np.isnan(y.get()).all()


def test_work_queued_before_a_free_may_use_the_memory(cupy: ModuleType) -> None:
    x, y = cupy.ones(100), cupy.empty(100)
    cupy.copyto(y, x)
    del x
    z = cupy.zeros(100)
    assert (y.get() == 1).all()
    assert (z.get() == 0).all()


def test_memory_of_the_pool_is_no_memory(cupy: ModuleType) -> None:
    x = cupy.ones(100)
    stale = cupy.ndarray((100,), float, cupy.cuda.MemoryPointer(_raw(cupy, x), 0))
    stale.copy().get()
    del x
    with pytest.raises(KernelFault, match="outside live memory"):
        stale.copy().get()


def test_memory_ends_where_it_was_asked_to(cupy: ModuleType) -> None:
    """The pool rounds sizes up; nobody may use the rest."""
    for _ in range(2):  # from the driver, then from the pool
        memory = cupy.cuda.alloc(100)
        assert memory.mem.size == 512
        cupy.ndarray((100,), np.int8, memory).fill(0)
        cupy.ndarray((101,), np.int8, memory).fill(0)
        with pytest.raises(KernelFault, match="outside live memory"):
            cupy.cuda.Device().synchronize()
        del memory
    assert counters(cupy).driver_allocations == 1


def test_allocating_for_another_stream_than_the_user_shows(cupy: ModuleType) -> None:
    """The block is cleared when its own stream comes to it, after the other wrote."""
    one, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with one:
        del_me = cupy.ones(100)
        del del_me
        x = cupy.empty(100)
    with other:
        x.fill(1)
    other.synchronize()
    one.synchronize()
    assert np.isnan(x.get()).all()


def test_the_device_runs_out_of_memory() -> None:
    cupy = make_cupy(memory=1 << 20)
    assert cupy.cuda.Device(0).mem_info == (1 << 20, 1 << 20)
    held = cupy.empty(768 << 10, np.int8)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="allocating 524,288 bytes"):
        cupy.empty(512 << 10, np.int8)
    with cupy.cuda.Device(1):
        assert cupy.empty(512 << 10, np.int8).size
    del held
    assert cupy.empty(1 << 20, np.int8).size  # what the pool kept was freed for it
    assert cupy.cuda.runtime.memGetInfo()[0] == 0


def test_the_pool_has_a_limit(cupy: ModuleType) -> None:
    pool = cupy.get_default_memory_pool()
    pool.set_limit(size=4096)
    held = cupy.empty(512)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="limit set to: 4,096 bytes"):
        cupy.empty(1)
    assert held.nbytes == pool.get_limit()


def test_another_allocator(cupy: ModuleType) -> None:
    cupy.cuda.set_allocator(None)
    count = counters(cupy)
    x = cupy.empty(10)
    assert isinstance(x.data.mem, cupy.cuda.Memory)
    del x
    assert (count.driver_allocations, count.driver_frees) == (1, 1)
    pool = cupy.cuda.MemoryPool()
    cupy.cuda.set_allocator(pool.malloc)
    held = cupy.empty(10)
    assert pool.used_bytes() == 512
    assert held.size == 10


def test_an_allocator_of_a_thread(cupy: ModuleType) -> None:
    asked = []

    def allocate(size: int) -> Any:
        asked.append(size)
        return before(size)

    before = cupy.cuda.get_allocator()
    with cupy.cuda.using_allocator(allocate):
        assert cupy.cuda.get_allocator() is allocate
        assert cupy.empty(10, "f4").size == 10
        with ThreadPoolExecutor(1) as other:
            other.submit(cupy.empty, 5).result()
        with pytest.raises(ValueError, match="Can't change the global allocator"):
            cupy.cuda.set_allocator(None)
    assert cupy.cuda.alloc(3).mem.size == 512
    assert asked == [40]


def test_pointers_copy_and_fill(cupy: ModuleType) -> None:
    memory, host = cupy.cuda.alloc(16), np.arange(4, dtype=np.int32)
    memory.copy_from(host.ctypes.data, 16)
    (memory + 4).memset_async(0, 8)
    other = cupy.cuda.alloc(16)
    other.copy_from_async(memory, 16)
    back = np.empty(4, np.int32)
    other.copy_to_host(back.ctypes.data, 16)
    assert back.tolist() == [0, 0, 0, 3]
    with pytest.raises(KernelFault, match="outside live memory"):
        (memory + 4).copy_to_host(back.ctypes.data, 16)


def test_copies_that_are_not_asynchronous_wait(cupy: ModuleType) -> None:
    memory, other = cupy.cuda.alloc(8), cupy.cuda.alloc(8)
    for copy in (
        lambda: memory.copy_from(np.zeros(1).ctypes.data, 8),
        lambda: other.copy_from(memory, 8),
    ):
        counters(cupy).reset()
        copy()
        assert counters(cupy).synchronisations == 1
        assert cupy.cuda.Stream.null.done


def _raw(cupy: ModuleType, x: object) -> object:
    """Memory at an array's address that does not keep it alive."""
    return cupy.cuda.UnownedMemory(x.data.ptr, 800, None)  # type: ignore[attr-defined]


def test_memory_in_a_cycle_goes_back_to_the_pool(cupy: ModuleType) -> None:
    """The collector ends an array, its memory and what that came from in any order."""
    cycle: list[Any] = [cupy.zeros(64, "float32")]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert (cupy.zeros(64, "float32").get() == 0).all()
