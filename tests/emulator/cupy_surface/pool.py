"""cupy.cuda.MemoryPool: freed memory is kept for the stream that allocated it, split and merged."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import status
from .driver import PER_THREAD, Driver
from .memory import BaseMemory, MemoryPointer, OutOfMemoryError
from .status import CUDARuntimeError

UNIT = 512  # CuPy rounds sizes up to this


class Chunk:
    """A piece of an allocation; pieces of one allocation know their neighbours."""

    __slots__ = ("arena", "mem", "next", "offset", "previous", "size")

    def __init__(self, mem: BaseMemory, offset: int, size: int, arena: "list[Chunk]") -> None:
        self.mem, self.offset, self.size, self.arena = mem, offset, size, arena
        self.previous: Chunk | None = None
        self.next: Chunk | None = None

    @property
    def whole(self) -> bool:
        """Whether the allocation is in one piece."""
        return self.previous is None and self.next is None

    def split(self, size: int) -> "Chunk | None":
        """Keep ``size`` bytes and return the rest."""
        if self.size == size:
            return None
        rest = Chunk(self.mem, self.offset + size, self.size - size, self.arena)
        rest.previous, rest.next = self, self.next
        if self.next is not None:
            self.next.previous = rest
        self.next, self.size = rest, size
        return rest

    def absorb(self) -> None:
        """Take the following piece in."""
        assert self.next is not None
        self.size += self.next.size
        self.next = self.next.next
        if self.next is not None:
            self.next.previous = self


class PooledMemory(BaseMemory):
    """A chunk in use; it goes back to its pool with this object."""

    def __init__(self, chunk: Chunk, pool: "SingleDeviceMemoryPool") -> None:
        self._chunk, self.pool = chunk, pool
        self.ptr = chunk.mem.ptr + chunk.offset
        self.size = chunk.size
        self.device_id = chunk.mem.device_id

    def free(self) -> None:
        """Return the chunk to the pool."""
        if self.ptr:
            pointer, self.ptr = self.ptr, 0
            self.pool.free(self._chunk, pointer)

    def __del__(self) -> None:
        self.free()


class SingleDeviceMemoryPool:
    """The chunks of one device, in one arena per stream."""

    def __init__(self, driver: Driver, allocator: Callable[[int], MemoryPointer]) -> None:
        self._driver = driver
        self._device = driver.device
        self._allocator = allocator
        self._arenas: dict[Any, list[Chunk]] = {}
        self._used = 0
        self._total = 0
        self._limit = 0
        self._choosing = False
        self._late: list[tuple[Chunk, int]] = []  # freed by the garbage collector amid a choice
        # Held here, or the collector of a cycle would free the memory of what it brings back.
        self._lent: set[Chunk] = set()

    def malloc(self, size: int) -> MemoryPointer:
        """Memory for the current stream: a free chunk of it that fits best, else from the driver.

        Memory used before becomes NaN again, in the order of the current stream.
        """
        classes = self._driver.classes
        if size == 0:
            empty: MemoryPointer = classes.MemoryPointer(classes.Memory(0), 0)
            return empty
        with self._driver.lock:
            self._choosing = True
            try:
                chunk = self._reuse(-(-size // UNIT) * UNIT, size)
            finally:
                self._choosing = False
            self._used += chunk.size
            self._lent.add(chunk)
            self._free_late()
        made: MemoryPointer = classes.MemoryPointer(classes.PooledMemory(chunk, self), 0)
        return made

    def free(self, chunk: Chunk, pointer: int) -> None:
        """Take a chunk back."""
        with self._driver.lock:
            self._late.append((chunk, pointer))
            if not self._choosing:
                self._free_late()

    def _free_late(self) -> None:
        while self._late:
            chunk, pointer = self._late.pop()
            self._driver.cards[self._device].memory.close(pointer)
            self._used -= chunk.size
            self._lent.discard(chunk)
            self._insert(chunk)

    def free_all_blocks(self, stream: Any = None) -> None:
        """Free what is whole, of one stream or all."""
        with self._driver.lock:
            chosen = [stream.ptr] if stream is not None else list(self._arenas)
            for arena in (self._arenas.get(key, []) for key in chosen):
                self._total -= sum(chunk.size for chunk in arena if chunk.whole)
                arena[:] = [chunk for chunk in arena if not chunk.whole]

    def n_free_blocks(self) -> int:
        """The number of free chunks."""
        return sum(map(len, self._arenas.values()))

    def used_bytes(self) -> int:
        """Bytes in use."""
        return self._used

    def free_bytes(self) -> int:
        """Bytes that are kept and not used."""
        return self._total - self._used

    def total_bytes(self) -> int:
        """Bytes taken from the driver."""
        return self._total

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Bound the bytes taken from the driver; 0 is no bound."""
        if size is not None and fraction is not None:
            raise ValueError("size and fraction cannot be specified at one time")
        if fraction is not None:
            size = int(fraction * self._driver.cards[self._device].memory.total)
        self._limit = size or 0

    def get_limit(self) -> int:
        """The bound, 0 without."""
        return self._limit

    def _reuse(self, rounded: int, size: int) -> Chunk:
        arena = self._arenas.setdefault(self._stream(), [])
        memory = self._driver.card.memory
        fitting = [chunk for chunk in arena if chunk.size >= rounded]
        if not fitting:
            chunk = Chunk(self._from_driver(rounded), 0, rounded, arena)
            memory.close(chunk.mem.ptr)
            memory.open(chunk.mem.ptr, size)
            return chunk
        chunk = min(fitting, key=lambda each: each.size)
        arena.remove(chunk)
        rest = chunk.split(rounded)
        if rest is not None:
            arena.append(rest)
        block = memory.open(chunk.mem.ptr + chunk.offset, size)
        self._driver.enqueue(self._current(), lambda live: block.poison())
        return chunk

    def _insert(self, chunk: Chunk) -> None:
        """Put a chunk into its arena, merged with free neighbours."""
        while chunk.next is not None and chunk.next in chunk.arena:
            chunk.arena.remove(chunk.next)
            chunk.absorb()
        while chunk.previous is not None and chunk.previous in chunk.arena:
            chunk = chunk.previous
            chunk.arena.remove(chunk)
            chunk.absorb()
        chunk.arena.append(chunk)

    def _from_driver(self, size: int) -> BaseMemory:
        for attempt in (lambda: None, self.free_all_blocks, self._collect):
            attempt()
            if self._limit and self._total + size > self._limit:
                continue
            try:
                memory = self._allocator(size).mem
            except CUDARuntimeError as error:
                if error.status != status.OUT_OF_MEMORY:
                    raise
                continue
            self._total += size
            return memory
        raise OutOfMemoryError(size, self._total, self._limit)

    def _collect(self) -> None:
        gc.collect()
        self._free_late()
        self.free_all_blocks()

    def _current(self) -> int:
        pointer: int = self._driver.classes.get_current_stream().ptr
        return pointer

    def _stream(self) -> Any:
        """What identifies an arena: the stream, and for per-thread streams the thread."""
        pointer = self._current()
        return id(self._driver.queue(pointer)) if pointer == PER_THREAD else pointer


class MemoryPool:
    """A pool of each device."""

    _driver: Driver

    def __init__(self, allocator: Callable[[int], MemoryPointer] | None = None) -> None:
        chosen = self._driver.classes.raw_malloc if allocator is None else allocator
        self._pools = []
        for number in range(len(self._driver.cards)):
            with self._driver.on(number):
                self._pools.append(SingleDeviceMemoryPool(self._driver, chosen))

    def malloc(self, size: int) -> MemoryPointer:
        """Memory on the current device for the current stream."""
        return self._pool.malloc(size)

    def free_all_blocks(self, stream: Any = None) -> None:
        """Give free memory of the current device back to the driver."""
        self._pool.free_all_blocks(stream)

    def n_free_blocks(self) -> int:
        """The number of free chunks."""
        return self._pool.n_free_blocks()

    def used_bytes(self) -> int:
        """Bytes in use."""
        return self._pool.used_bytes()

    def free_bytes(self) -> int:
        """Bytes that are kept and not used."""
        return self._pool.free_bytes()

    def total_bytes(self) -> int:
        """Bytes taken from the driver."""
        return self._pool.total_bytes()

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Bound the bytes taken from the driver on the current device."""
        self._pool.set_limit(size, fraction)

    def get_limit(self) -> int:
        """The bound on the current device, 0 without."""
        return self._pool.get_limit()

    @property
    def _pool(self) -> SingleDeviceMemoryPool:
        return self._pools[self._driver.device]


class Allocator:
    """The allocator of cupy.cuda.alloc: a pool's, until another is set."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._allocator: Callable[[int], MemoryPointer] = driver.classes.raw_malloc
        self._local = threading.local()

    def alloc(self, size: int) -> MemoryPointer:
        """Memory from the current allocator."""
        return self.get_allocator()(size)

    def set_allocator(self, allocator: Callable[[int], MemoryPointer] | None = None) -> None:
        """Allocate through a function from now on; None: without a pool."""
        if self._of_thread is not None:
            raise ValueError(
                "Can't change the global allocator inside `using_allocator` context manager"
            )
        self._allocator = self._driver.classes.raw_malloc if allocator is None else allocator

    def get_allocator(self) -> Callable[[int], MemoryPointer]:
        """The current allocator."""
        return self._allocator if self._of_thread is None else self._of_thread

    @contextmanager
    def using_allocator(
        self, allocator: Callable[[int], MemoryPointer] | None = None
    ) -> Iterator[None]:
        """Let this thread allocate through a function for a while; None: without a pool."""
        before = self._of_thread
        self._local.allocator = self._driver.classes.raw_malloc if allocator is None else allocator
        try:
            yield
        finally:
            self._local.allocator = before

    @property
    def _of_thread(self) -> Callable[[int], MemoryPointer] | None:
        return getattr(self._local, "allocator", None)
