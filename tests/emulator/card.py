"""A card that is there, with the interface of the emulated Device: the same tests on real units.

pytest tests/emulator --device gpu

Memory is mirrored on the host: a launch copies all of it to the card, runs, and copies it back. It
runs twice, on different bytes where nothing was written, which tells what a kernel writes and that
it writes the same bits. Guards around each allocation are checked. A launch that breaks the CUDA
context ends the process, for nothing after it could be trusted; pytest-xdist starts another.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from contract.device.driver import driver_library

from . import ptx
from .device import (
    DEFAULT_SHARED,
    GUARD,
    LARGEST_SHARED,
    POISON,
    KernelFault,
    Kind,
    Options,
    argument_bytes,
)
from .library import Source, to_ptx

OTHER = 0x7F  # another poison: NaN or a huge number
BROKEN = 3  # exit status of a process whose CUDA context is broken

Array = np.ndarray[Any, Any]


class Allocation:
    """Bytes of the card with a guard on each side, and their mirror on the host.

    ``written`` marks the bytes that were uploaded, and those that a launch changed.
    """

    def __init__(self, card: "Card", nbytes: int) -> None:
        self.nbytes = nbytes
        self._card = card
        self._store = np.full(nbytes + 2 * GUARD, POISON, np.uint8)
        self.bytes = self._store[GUARD : GUARD + nbytes]
        self.written = np.zeros(nbytes, np.uint8)
        self._memory = card.memory(self._store.size)
        self.pointer = int(self._memory.data.ptr) + GUARD

    def upload(self, array: Array, offset: int = 0) -> None:
        """Copy an array's bytes (in C order) here."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.bytes[offset : offset + data.size] = data
        self.written[offset : offset + data.size] = 1

    def download(self, dtype: Any = np.uint8, shape: Any = -1) -> Array:
        """A copy of the contents."""
        copied: Array = self.bytes.view(dtype).reshape(shape).copy()
        return copied

    def free(self) -> None:
        """Give the memory back."""
        self._card.forget(self)

    def push(self, poison: int) -> None:
        """The mirror to the card, ``poison`` where nothing was written."""
        held = self._store.copy()
        held[GUARD:-GUARD][self.written == 0] = poison
        self._memory.set(held)

    def pulled(self) -> Array:
        """The card's bytes; KernelFault where a guard was written to."""
        found: Array = self._memory.get()
        if not ((found[:GUARD] == POISON).all() and (found[-GUARD:] == POISON).all()):
            raise KernelFault(Kind.BOUNDS, f"written beside an allocation of {self.nbytes} bytes")
        return found[GUARD:-GUARD]

    def settle(self, first: Array, second: Array) -> None:
        """Keep what two launches left, on either poison; KernelFault where they differ."""
        fresh = self.written == 0
        untouched = fresh & (first == POISON) & (second == OTHER)
        if (first != second)[~untouched].any():
            raise KernelFault(Kind.RACE, "two launches wrote different bits")
        self.written[~untouched] = 1
        self.bytes[:] = first


class LargeAllocation:
    """Memory without a mirror: uploads and slices of ``bytes`` are copied at once."""

    def __init__(self, card: "Card", nbytes: int) -> None:
        self.nbytes = nbytes
        self._memory = card.memory(nbytes)
        self.pointer = int(self._memory.data.ptr)

    @property
    def bytes(self) -> "LargeAllocation":
        """This memory, to be sliced."""
        return self

    def __getitem__(self, part: slice) -> Array:
        found: Array = self._memory[part].get()
        return found

    def upload(self, array: Array, offset: int = 0) -> None:
        """Copy an array's bytes (in C order) here."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._memory[offset : offset + data.size].set(data)

    def free(self) -> None:
        """The memory goes back with the last reference to it."""


class Card:
    """The first GPU."""

    def __init__(self, arch: str = "sm_90") -> None:
        import cupy

        self.arch = arch
        self.cupy = cupy
        self.runtime = cupy.cuda.runtime
        self.driver = driver_library()
        self.opt_in_shared = LARGEST_SHARED
        self._allocations: dict[int, Allocation] = {}

    def memory(self, nbytes: int) -> Any:
        """An allocation of its own, as an array of bytes."""
        cuda = self.cupy.cuda
        first = cuda.MemoryPointer(cuda.Memory(max(nbytes, 1)), 0)
        return self.cupy.ndarray((nbytes,), np.uint8, memptr=first)

    def allocate(self, nbytes: int) -> Allocation:
        """Fresh memory, 256-byte aligned, that holds NaN."""
        made = Allocation(self, nbytes)
        self._allocations[made.pointer] = made
        return made

    def sparse(self, nbytes: int) -> LargeAllocation:
        """More memory than tests usually take."""
        return LargeAllocation(self, nbytes)

    def upload(self, array: Array) -> Allocation:
        """Memory with a copy of an array."""
        made = self.allocate(array.nbytes)
        made.upload(array)
        return made

    def forget(self, allocation: Allocation) -> None:
        """No longer copy an allocation to and fro."""
        del self._allocations[allocation.pointer]

    def load(self, source: str, options: Sequence[str] = ()) -> "Module":
        """Compile CUDA C++."""
        return self.load_ptx(to_ptx(Source(source, self.arch, tuple(options))))

    def load_ptx(self, text: str) -> "Module":
        """Load PTX, which the driver compiles."""
        return Module(self, text)

    def run(self, name: str, launch: Callable[[], None]) -> None:
        """Launch twice and take the memory back."""
        held = list(self._allocations.values())
        first = self._launched(name, launch, held, POISON)
        second = self._launched(name, launch, held, OTHER)
        for each, one, other in zip(held, first, second, strict=True):
            each.settle(one, other)

    def _launched(
        self, name: str, launch: Callable[[], None], held: Sequence[Allocation], poison: int
    ) -> list[Array]:
        """What a launch leaves; a broken context ends the process."""
        for each in held:
            each.push(poison)
        try:
            launch()
            self.runtime.deviceSynchronize()
        except self.runtime.CUDARuntimeError as error:
            print(f"{name}: {error}", flush=True)
            os._exit(BROKEN)
        return [each.pulled() for each in held]


class Module:
    """The kernels of one PTX module."""

    def __init__(self, card: Card, text: str) -> None:
        self.ptx = text
        self._card = card
        self._entries = {entry.name: entry for entry in ptx.parse(text).entries}
        self._module = card.cupy.cuda.function.Module()
        self._module.load(text.encode())

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the entries."""
        return tuple(self._entries)

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Iterable[Any],
        shared: int = 0,
        options: Options | None = None,
        shared_limit: int = DEFAULT_SHARED,
    ) -> None:
        """Run a kernel to its end; a card has no ``options``."""
        card, parameters = self._card, self._entries[name].parameters
        kernel = self._module.get_function(name)
        if shared_limit > DEFAULT_SHARED:
            driver = card.cupy.cuda.driver
            attribute = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver.funcSetAttribute(kernel.ptr, attribute, shared_limit)
        given = [
            _argument(argument, parameter)
            for argument, parameter in zip(arguments, parameters, strict=True)
        ]
        card.run(name, lambda: kernel(tuple(grid), tuple(block), given, shared_mem=shared))


def _argument(argument: Any, parameter: ptx.Variable) -> Array:
    """The bytes of an argument as CuPy takes a struct."""
    if isinstance(argument, Allocation | LargeAllocation):
        data = argument.pointer.to_bytes(8, "little")
    else:
        data = argument_bytes(argument, parameter)
    return np.ndarray((), f"V{len(data)}", bytearray(data))
