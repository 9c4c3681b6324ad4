"""CUDA graphs: the memory that they write to at every replay, and a call recorded as one."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import finalize

from contract.arrays.protocol import Array, Recordable
from contract.device.driver import unhindered
from contract.errors import InvalidValueError
from contract.logging import LOGGER, Level

__all__ = ["CapturedMemory", "Graph"]


class CapturedMemory:
    """What captured calls allocated, theirs until it is released: a replay writes to it again.

    It comes from CuPy's allocator, for ``stream``; None: for the current one. Two calls never
    have the same memory.
    """

    def __init__(self, cupy: Any, stream: Any = None) -> None:
        self._cupy = cupy
        self._stream = stream
        self._lock = threading.Lock()
        self._pointers: list[Any] = []

    @property
    def bytes(self) -> int:
        """As the allocator rounds them."""
        with self._lock:
            return sum(int(pointer.mem.size) for pointer in self._pointers)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """The time in which all that this thread allocates is kept; no capture forbids it."""
        allocate = partial(self._kept, self._cupy.cuda.get_allocator())
        with unhindered(), self._cupy.cuda.using_allocator(allocate):
            yield

    def release(self) -> None:
        """Let the allocator have it again; no graph that uses it may be replayed any more."""
        with self._lock:
            self._pointers.clear()

    def _kept(self, allocate: Callable[[int], Any], size: int) -> Any:
        if self._stream is None:
            pointer = allocate(size)
        else:
            with self._stream:
                pointer = allocate(size)
        with self._lock:
            self._pointers.append(pointer)
        return pointer


class Graph:
    """A call recorded as a CUDA graph, with memory of its own; nothing runs before a replay.

    The memory comes from the pool of the current stream. A replay in another stream waits for
    what that stream did before the recording, for it may have used the memory.
    """

    def __init__(self, cupy: Any, call: Recordable) -> None:
        home = cupy.cuda.get_current_stream()
        if home.is_capturing():
            raise InvalidValueError(
                f"A call is recorded where nothing else is: {home!r} is capturing."
            )
        memory = CapturedMemory(cupy, home)
        self._cupy = cupy
        self._lock = threading.Lock()
        self._memory = memory
        self.output, self._graph = _recorded(cupy, call, memory)
        self._ready = home.record()
        self._done = cupy.cuda.Event(disable_timing=True)
        self._end = finalize(self, _release, self._done, memory)
        self._end.atexit = False

    @property
    def bytes(self) -> int:
        return self._memory.bytes

    def replay(self) -> None:
        """Put the graph into the current stream."""
        stream = self._cupy.cuda.get_current_stream()
        if stream.is_capturing():
            raise InvalidValueError(
                f"A graph is replayed, not captured again: {stream!r} is capturing."
            )
        if LOGGER.active:
            LOGGER.log(Level.TRACE, f"graph stream={int(stream.ptr):#x}")
        with self._lock:
            stream.wait_event(self._ready)
            self._graph.launch(stream)
            self._done.record(stream)

    def close(self) -> None:
        """Wait for the last replay and give the memory back."""
        self._end()


def _recorded(cupy: Any, call: Recordable, memory: CapturedMemory) -> tuple[Array, Any]:
    """The result's array and the graph."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with memory.keeping(), stream:
        stream.begin_capture()
        try:
            output = call.perform()
        except BaseException:
            with suppress(cupy.cuda.runtime.CUDARuntimeError):  # the first error is the cause
                stream.end_capture()
            raise
        return output, stream.end_capture()


def _release(done: Any, memory: CapturedMemory) -> None:
    """The pool may hand the memory out as soon as it has it: a replay must have ended."""
    with unhindered():
        done.synchronize()
    memory.release()
