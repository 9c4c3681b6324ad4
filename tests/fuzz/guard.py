"""Memory between two pages that nobody may touch: an access beyond it kills the process.

NumPy's arrays are made in such memory inside of ``numpy_guarded`` (NumPy's own hook for memory,
NEP 49), and a handle's buffers through a ``GuardedPool`` in the place of its ``MemoryPool``.
"""

import ctypes
import mmap
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy._core import _multiarray_umath

from contract.execution.quiet import QUIET
from contract.host.resources.memory import NOTHING, MemoryPool
from contract.plan.workspace import ALIGNMENT

PAGE = mmap.PAGESIZE
READ_WRITE, NONE = mmap.PROT_READ | mmap.PROT_WRITE, 0
FRESH = 0xFF  # NaN in every floating-point type
CANARY = 0xA5
KEPT_BYTES = 1 << 25  # of freed memory that stays forbidden before its addresses are used again

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
_libc.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class GuardedMemory:
    """Blocks of memory with a forbidden page before and behind; fresh ones hold no zeros.

    A block lies directly before the page behind it (``at_end``) or directly behind the page before
    it. What its pages hold beside it is checked when it is given back: ``damaged`` counts blocks
    where something was written there. ``live`` bytes are in use, ``peak`` were at most.
    """

    def __init__(self) -> None:
        self.at_end = True
        self.damaged = 0
        self.live = self.peak = 0
        self._pages: dict[int, tuple[int, int, int]] = {}  # address: size, first page, their bytes
        self._freed: deque[tuple[int, int]] = deque()
        self._freed_bytes = 0

    def take(self, size: int, alignment: int = 1, slack: int = 0) -> int:
        """The address of ``size`` bytes, ``slack`` away from the page; 0 if there are none."""
        inside = -(-(size + slack + alignment) // PAGE) * PAGE
        mapped = _libc.mmap(
            None, inside + 2 * PAGE, NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0
        )
        if mapped is None or mapped == ctypes.c_void_p(-1).value:
            return 0
        first, end = mapped + PAGE, mapped + PAGE + inside
        if _libc.mprotect(first, inside, READ_WRITE):
            return 0
        ctypes.memset(first, CANARY, inside)
        address = (end - size) // alignment * alignment - slack if self.at_end else first + slack
        ctypes.memset(address, FRESH, size)
        self._pages[address] = size, first, inside
        self.live += size
        self.peak = max(self.peak, self.live)
        return address

    def free(self, address: int) -> None:
        """Check what lies around the block and forbid it."""
        size, first, inside = self._pages.pop(address)
        self.live -= size
        before, behind = address - first, first + inside - address - size
        whole = ctypes.string_at(first, before) + ctypes.string_at(address + size, behind)
        self.damaged += whole != bytes([CANARY]) * (before + behind)
        _libc.mprotect(first, inside, NONE)
        self._freed.append((first - PAGE, inside + 2 * PAGE))
        self._freed_bytes += inside
        while self._freed_bytes > KEPT_BYTES:
            start, length = self._freed.popleft()
            self._freed_bytes -= length - 2 * PAGE
            _libc.munmap(start, length)

    def size(self, address: int) -> int:
        """The bytes of a block."""
        return self._pages[address][0]

    def array(self, size: int, alignment: int = 1, slack: int = 0) -> np.ndarray:
        """A block as an array of bytes, given back when nothing refers to it."""
        address = self.take(size, alignment, slack)
        if not address:
            raise MemoryError(size)
        block = (ctypes.c_ubyte * size).from_address(address)
        weakref.finalize(block, self.free, address).atexit = False
        return np.frombuffer(block, np.uint8)


class GuardedPool(MemoryPool):
    """A pool that keeps nothing: each request gets a block of exactly its size."""

    def __init__(self, memory: GuardedMemory) -> None:
        super().__init__()
        self._memory = memory

    def take(self, size: int) -> np.ndarray:
        return self._memory.array(size, ALIGNMENT) if size else NOTHING

    lend = take

    def give(self, memory: np.ndarray) -> None:
        """It is freed when nothing refers to it."""


# --- NumPy's own memory ---------------------------------------------------------------------------

_MALLOC = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
_CALLOC = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_REALLOC = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_FREE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t)
SET_HANDLER = 304  # of NumPy's table of functions for C
CAPSULE = b"mem_handler"  # NumPy's name for what it takes

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


class _Handler(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("ctx", ctypes.c_void_p),
        ("malloc", _MALLOC),
        ("calloc", _CALLOC),
        ("realloc", _REALLOC),
        ("free", ctypes.c_void_p),
    )


class NumpyMemory:
    """NumPy's way to memory, led to ``memory``.

    An array may end while an exception is on its way, when no Python may run. So NumPy's free(ctx,
    address, size) is Py_AddPendingCall(function, argument), which puts ``_free`` off.
    """

    def __init__(self, memory: GuardedMemory) -> None:
        self._memory = memory
        functions = _MALLOC(self._malloc), _CALLOC(self._calloc), _REALLOC(self._realloc)
        self._free_later = _FREE(self._free)
        free, put_off = (
            ctypes.cast(each, ctypes.c_void_p)
            for each in (self._free_later, ctypes.pythonapi.Py_AddPendingCall)
        )
        self._handler = _Handler(b"guarded", 1, free, *functions, put_off)
        self._capsule = _new_capsule(ctypes.addressof(self._handler), CAPSULE, None)
        self._set_to = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(_numpy_function())
        # Arrays end late, even after modules: whom they call then is never taken away.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """New arrays of this thread lie between guard pages."""
        before, inside = self._set_to(self._capsule), QUIET.run(self._set_to, self._capsule)
        try:
            yield
        finally:
            self._set_to(before)
            QUIET.run(self._set_to, inside)

    def _malloc(self, _: int, size: int) -> int:
        return self._memory.take(size)

    def _calloc(self, _: int, count: int, size: int) -> int:
        address = self._memory.take(count * size)
        if address:
            ctypes.memset(address, 0, count * size)
        return address

    def _realloc(self, _: int, address: int, size: int) -> int:
        made = self._memory.take(size)
        if made and address:
            ctypes.memmove(made, address, min(size, self._memory.size(address)))
            self._memory.free(address)
        return made

    def _free(self, address: int) -> int:
        if address:
            self._memory.free(address)
        return 0


def _numpy_function() -> int:
    """The address of PyDataMem_SetHandler."""
    table = _get_pointer(_multiarray_umath._ARRAY_API, None)
    return ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[SET_HANDLER]
