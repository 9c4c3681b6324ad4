"""Memory of the devices: what is allocated, and of that what may be touched at a moment.

A memory pool keeps memory that nobody may use.  So what counts as live are the blocks handed out,
to the byte that was asked for.  Work carries the blocks that were live when it was queued: a block
freed afterwards may still be used by it, as stream order allows.
"""

import bisect
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..device import POISON, Allocation, Device, KernelFault, Kind
from .status import OUT_OF_MEMORY, CUDARuntimeError


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Bytes handed out; ``written`` marks those that were written."""

    pointer: int
    nbytes: int
    bytes: np.ndarray[Any, Any]
    written: np.ndarray[Any, Any]

    def poison(self) -> None:
        """Make the content NaN that was never written."""
        self.bytes[:] = POISON
        self.written[:] = 0


@dataclass(frozen=True, slots=True)
class Live:
    """The blocks of each device at one moment, by address."""

    devices: tuple[tuple[Block, ...], ...]

    def find(self, begin: int, end: int) -> Block | None:
        """The block that holds the bytes [begin, end)."""
        for blocks in self.devices:
            index = bisect.bisect_right(blocks, begin, key=lambda block: block.pointer) - 1
            if index >= 0 and end <= blocks[index].pointer + blocks[index].nbytes:
                return blocks[index]
        return None

    def require(self, begin: int, end: int, what: str) -> Block:
        """The block that holds the bytes [begin, end), or a fault that names them."""
        block = self.find(begin, end)
        if block is None:
            raise KernelFault(
                Kind.BOUNDS, f"{what}: bytes {begin:#x} to {end:#x} are outside live memory"
            )
        return block


@dataclass(slots=True)
class DeviceMemory:
    """The memory of one device, limited to ``total`` bytes."""

    device: Device
    total: int
    allocations: dict[int, Allocation] = field(default_factory=dict)
    blocks: dict[int, Block] = field(default_factory=dict)
    sorted_blocks: tuple[Block, ...] | None = ()

    @property
    def used(self) -> int:
        """Bytes allocated from the driver."""
        return sum(allocation.nbytes for allocation in self.allocations.values())

    def allocate(self, nbytes: int) -> int:
        """Allocate and hand out memory, return its address."""
        if nbytes > self.total - self.used:
            raise CUDARuntimeError(OUT_OF_MEMORY)
        made = self.device.allocate(nbytes)
        self.allocations[made.pointer] = made
        self.open(made.pointer, nbytes)
        return made.pointer

    def free(self, pointer: int) -> None:
        """Give memory back to the driver."""
        self.close(pointer)
        self.allocations.pop(pointer).free()

    def open(self, pointer: int, nbytes: int) -> Block:
        """Hand out bytes of an allocation."""
        held = self._allocation(pointer)
        span = slice(pointer - held.pointer, pointer - held.pointer + nbytes)
        block = Block(pointer, nbytes, held.bytes[span], held.written[span])
        self.blocks[pointer] = block
        self.sorted_blocks = None
        return block

    def close(self, pointer: int) -> None:
        """Take back a block; work queued from now on may not touch it."""
        self.blocks.pop(pointer, None)
        self.sorted_blocks = None

    def live(self) -> tuple[Block, ...]:
        """The blocks handed out, by address."""
        if self.sorted_blocks is None:
            blocks = sorted(self.blocks.values(), key=lambda block: block.pointer)
            self.sorted_blocks = tuple(blocks)
        return self.sorted_blocks

    def _allocation(self, pointer: int) -> Allocation:
        return next(
            held
            for held in self.allocations.values()
            if held.pointer <= pointer < held.pointer + max(held.nbytes, 1)
        )
