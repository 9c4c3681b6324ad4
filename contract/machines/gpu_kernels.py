"""Legal kernel configurations by architecture, each with the reason it is legal and good."""

from dataclasses import dataclass, replace
from typing import ClassVar

__all__ = [
    "CORE_TILES",
    "ELEMENTWISE",
    "HOPPER_TILES",
    "REDUCE",
    "SLICE_TILES",
    "Arithmetic",
    "CoreTile",
    "ElementwiseRow",
    "HopperTile",
    "ReduceRow",
    "TensorTile",
    "Tile",
    "core_tiles",
    "tensor_tiles",
]


@dataclass(frozen=True, slots=True)
class ElementwiseRow:
    """Tiles of permutations and elementwise operations; reasons are beside the tables."""

    small_side: int  # cells along each side of a tile, cells of up to 4 bytes
    large_side: int  # the same for larger cells
    stream_vectors: int  # vectors a thread moves where nothing is turned
    stream_elements: int  # from so many elements on; below, one vector each fills the card better


# 64 x 64 cells of 4 bytes are 16.6 KB with padding, 32 x 32 of 16 bytes the same: six blocks of
# 256 threads fit the 100 KB that every card leaves, and 16 loads of 16 bytes are in flight in each
# group of four threads. Rows of a tile are 128 bytes or more. From 8.0 on a card has more memory
# in flight to fill, so that a thread that only streams moves four vectors, before it two.
_WIDE = ElementwiseRow(64, 32, 4, 1 << 20)
ELEMENTWISE = {
    60: ElementwiseRow(64, 32, 2, 1 << 20),
    80: _WIDE,
    90: _WIDE,
    100: _WIDE,
}


@dataclass(frozen=True, slots=True)
class ReduceRow:
    """How reductions are shared out; reasons are beside the tables."""

    blocks: int  # of 256 threads, for each multiprocessor
    flight: int  # bytes that a thread loads before it uses the first
    ragged: int  # elements, the same where rows begin or end inside a vector
    split: int  # loads of that size that one block does by itself; more are shared out
    least: int  # of them for each block that shares


# 256 threads with 64 bytes in flight each take 40 to 60 registers, so that four blocks or more are
# resident: 64 KB in flight, above the 25 KB that 4.8 TB/s for 0.7 us ask of each of 132
# multiprocessors. Twice as many blocks even out their ends. A second launch costs as much as
# some eight loads of 16 KB by one block. The ends of ragged rows are loaded one element at a time,
# each guarded: for more than 16 at once (8 on 6.0) registers are spilled.
_RESIDENT = ReduceRow(blocks=8, flight=64, ragged=16, split=8, least=4)
REDUCE = {
    60: ReduceRow(blocks=8, flight=32, ragged=8, split=8, least=4),  # 0.7 TB/s need half of that
    80: _RESIDENT,
    90: _RESIDENT,
    100: _RESIDENT,
}


# ---- products ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CoreTile:
    """A tile of a product by the CUDA cores: what a block computes, how its threads share it.

    ``l`` x ``m`` x ``n`` elements of D in steps of ``k``; a thread has ``thread_m`` x
    ``thread_n`` of them, ``lanes_m`` x ``lanes_n`` threads lie side by side, and ``groups`` of
    threads share the k of a step. ``resident`` blocks fit a multiprocessor beside each other,
    which then does ``efficiency`` of the multiply-adds it could.
    """

    l: int  # noqa: E741 - the loop's name
    m: int
    n: int
    k: int
    thread_m: int
    thread_n: int
    lanes_m: int
    lanes_n: int
    groups: int
    resident: int
    efficiency: float
    reason: str

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.l * self.m * self.n // (self.thread_m * self.thread_n) * self.groups

    def run(self, size: int) -> int:
        """Sums of ``size`` bytes that a thread has side by side along m."""
        return min(self.thread_m, 16 // max(size, 4))


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How tensor cores form products: the ``unit`` of tensor.cuh, with ``k`` k's an instruction.

    ``products`` instructions make one product of operands in parts; ``rate`` names the column of
    Rates that says how fast they are. A multiprocessor issues instructions for no more than
    ``issued`` multiply-adds a clock; by default that is no bound.
    """

    unit: str
    k: int
    products: int
    rate: str
    reason: str
    issued: float = 1e6


@dataclass(frozen=True, slots=True)
class TensorTile:
    """A tile of a product by the tensor cores.

    ``l`` x ``m`` x ``n`` elements of D, shared by ``warps_m`` x ``warps_n`` warps for each l;
    ``stages`` steps of ``k`` are in shared memory. ``resident`` and ``efficiency`` as CoreTile.
    """

    l: int  # noqa: E741 - the loop's name
    m: int
    n: int
    k: int
    warps_m: int
    warps_n: int
    stages: int
    resident: int
    efficiency: float
    reason: str
    arithmetic: Arithmetic

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.l * self.warps_m * self.warps_n

    def run(self, size: int) -> int:
        """Rows of a thread, of any ``size``: which rows of D they are can be chosen.

        More than 4 fragments at once would take the registers of a second block.
        """
        rows = self.m // self.warps_m // 8
        return rows if self.resident == 1 else min(rows, 4)

    @property
    def depth(self) -> int:
        """k's whose offsets are in tables: of steps that a thread each makes the offset of a k."""
        return 2 * self.k * max(self.stages, self.threads // self.k)

    def storage(self, size_a: int, size_b: int) -> int:
        """Bytes of shared memory for the steps."""
        return self.stages * self.l * self.k * (self.m * size_a + self.n * size_b)


Tile = CoreTile | TensorTile


# Tiles of the CUDA cores keep two steps of both factors, with four elements of padding a row, in
# 48 KB of shared memory. Blocks of a thread are as large as 64 to 128 accumulator registers allow.
# ``resident`` is what registers and shared memory allow from 8.0 on.
CORE_TILES = {
    4: (
        CoreTile(1, 128, 128, 16, 8, 8, 8, 4, 1, 2, 0.72, "large"),
        CoreTile(1, 64, 64, 16, 8, 4, 8, 4, 1, 4, 0.60, "medium"),
        CoreTile(1, 32, 32, 32, 4, 4, 8, 4, 2, 6, 0.40, "small"),
        CoreTile(1, 16, 16, 64, 4, 4, 4, 4, 8, 6, 0.22, "small, long k"),
        CoreTile(1, 256, 32, 16, 8, 4, 8, 4, 1, 2, 0.56, "few columns, many rows"),
        CoreTile(1, 32, 256, 16, 4, 8, 4, 8, 1, 2, 0.56, "few rows, many columns"),
        CoreTile(1, 128, 16, 16, 4, 4, 8, 4, 1, 6, 0.43, "few columns"),
        CoreTile(1, 16, 128, 16, 4, 4, 4, 8, 1, 6, 0.43, "few rows"),
        CoreTile(1, 256, 4, 16, 4, 1, 8, 4, 1, 4, 0.16, "matrix times vector"),
        CoreTile(1, 4, 256, 16, 1, 4, 4, 8, 1, 4, 0.16, "vector times matrix"),
        CoreTile(1, 4, 4, 256, 4, 4, 1, 1, 128, 4, 0.24, "dot product"),
        CoreTile(32, 4, 4, 8, 4, 1, 1, 4, 1, 6, 0.16, "many tiny products"),
        CoreTile(16, 8, 8, 8, 4, 2, 2, 4, 1, 5, 0.24, "many tiny products"),
        CoreTile(8, 16, 16, 16, 4, 4, 4, 4, 1, 4, 0.32, "many small products"),
        CoreTile(1, 256, 24, 16, 4, 12, 16, 2, 1, 4, 0.43, "24 columns, many rows"),
    ),
    8: (
        CoreTile(1, 128, 64, 8, 8, 8, 8, 4, 1, 2, 0.68, "large"),
        CoreTile(1, 64, 64, 8, 8, 4, 8, 4, 1, 3, 0.56, "medium"),
        CoreTile(1, 32, 32, 16, 4, 4, 8, 4, 2, 4, 0.40, "small"),
        CoreTile(1, 16, 16, 32, 4, 4, 4, 4, 8, 4, 0.22, "small, long k"),
        CoreTile(1, 256, 32, 8, 8, 8, 8, 4, 1, 2, 0.64, "few columns, many rows"),
        CoreTile(1, 32, 256, 8, 8, 8, 4, 8, 1, 2, 0.64, "few rows, many columns"),
        CoreTile(1, 128, 16, 8, 4, 4, 8, 4, 1, 4, 0.43, "few columns"),
        CoreTile(1, 16, 128, 8, 4, 4, 4, 8, 1, 4, 0.43, "few rows"),
        CoreTile(1, 256, 4, 8, 4, 1, 8, 4, 1, 3, 0.16, "matrix times vector"),
        CoreTile(1, 4, 256, 8, 1, 4, 4, 8, 1, 3, 0.16, "vector times matrix"),
        CoreTile(1, 4, 4, 128, 4, 4, 1, 1, 128, 4, 0.24, "dot product"),
        CoreTile(32, 4, 4, 8, 4, 1, 1, 4, 1, 4, 0.16, "many tiny products"),
        CoreTile(16, 8, 8, 8, 4, 2, 2, 4, 1, 4, 0.24, "many tiny products"),
        CoreTile(8, 16, 16, 8, 4, 4, 4, 4, 1, 4, 0.32, "many small products"),
    ),
    16: (
        CoreTile(1, 64, 64, 8, 4, 4, 8, 4, 1, 2, 0.56, "large"),
        CoreTile(1, 32, 32, 8, 4, 4, 8, 4, 2, 3, 0.48, "small"),
        CoreTile(1, 16, 16, 16, 4, 4, 4, 4, 8, 3, 0.22, "small, long k"),
        CoreTile(1, 64, 16, 8, 4, 2, 8, 4, 1, 4, 0.43, "few columns"),
        CoreTile(1, 16, 64, 8, 2, 4, 4, 8, 1, 4, 0.43, "few rows"),
        CoreTile(1, 128, 4, 8, 4, 1, 8, 4, 1, 3, 0.16, "matrix times vector"),
        CoreTile(1, 4, 128, 8, 1, 4, 4, 8, 1, 3, 0.16, "vector times matrix"),
        CoreTile(1, 4, 4, 64, 4, 4, 1, 1, 64, 4, 0.24, "dot product"),
        CoreTile(16, 4, 4, 8, 4, 1, 1, 4, 1, 4, 0.16, "many tiny products"),
        CoreTile(8, 8, 8, 8, 4, 2, 2, 4, 1, 4, 0.24, "many tiny products"),
        CoreTile(4, 16, 16, 8, 4, 4, 4, 4, 1, 4, 0.32, "many small products"),
    ),
}


def core_tiles(table: int, size: int, factor: int) -> tuple[CoreTile, ...]:
    """The tiles of the CUDA cores for sums of ``size`` bytes, and factors of at least ``factor``.

    Before 8.0, and where factors are narrower than sums, what is read passes through registers,
    which large tiles have for steps of 8 k's.
    """
    found = CORE_TILES[size]
    if (table >= 80 and factor >= size) or size > 4:
        return found
    return tuple(replace(tile, k=8) if tile.m * tile.n > 4096 else tile for tile in found)


# Tiles of the tensor cores: sides, warps, steps in shared memory, blocks beside each other on a
# multiprocessor, efficiency. A warp has 64 accumulator registers, 128 in the largest tile, where
# each fragment that is read is used most; the registers of fragments limit the blocks: parts and
# imaginary parts need more. Three or four steps keep 32 KB and more on their way. Efficiencies of
# one part are of an H100 (matrices of 7248, TCCG); those of parts and of complex numbers are
# lowered as these were.
_SINGLE = (
    (1, 256, 128, (4, 2), 3, 1, 0.54, "large"),
    (1, 128, 128, (2, 4), 4, 2, 0.50, "large, two blocks beside each other"),
    (1, 64, 64, (2, 2), 4, 3, 0.30, "medium"),
    (1, 32, 32, (2, 2), 4, 6, 0.14, "small"),
    (1, 128, 32, (4, 1), 4, 4, 0.25, "few columns"),
    (1, 32, 128, (1, 4), 4, 3, 0.22, "few rows"),
    (8, 16, 16, (1, 1), 2, 3, 0.10, "many tiny products"),
    (4, 32, 32, (1, 2), 2, 3, 0.15, "many small products"),
    (1, 256, 32, (8, 1), 4, 2, 0.25, "few columns, many rows"),
)
_SINGLE_IN_PARTS = (
    (1, 128, 128, (2, 4), 4, 1, 0.52, "large"),
    (1, 64, 64, (2, 2), 4, 2, 0.39, "medium"),
    (1, 32, 32, (2, 2), 4, 4, 0.22, "small"),
    (1, 128, 32, (4, 1), 4, 2, 0.33, "few columns"),
    (1, 32, 128, (1, 4), 4, 2, 0.29, "few rows"),
    (8, 16, 16, (1, 1), 2, 2, 0.15, "many tiny products"),
    (4, 32, 32, (1, 2), 2, 1, 0.24, "many small products"),
)
_DOUBLE = (
    (1, 128, 64, (4, 2), 3, 2, 0.68, "large, two blocks beside each other"),
    (1, 64, 64, (2, 2), 3, 2, 0.65, "medium"),
    (1, 32, 32, (2, 2), 3, 4, 0.36, "small"),
    (1, 128, 16, (4, 1), 3, 3, 0.28, "few columns"),
    (1, 16, 128, (1, 4), 3, 3, 0.28, "few rows"),
    (8, 16, 16, (1, 1), 2, 2, 0.24, "many tiny products"),
    (4, 32, 32, (1, 2), 2, 1, 0.32, "many small products"),
)
_COMPLEX = (
    (1, 128, 64, (4, 2), 3, 1, 0.64, "large"),
    (1, 64, 64, (2, 2), 3, 2, 0.56, "medium"),
    (1, 32, 32, (2, 2), 3, 3, 0.36, "small"),
    (1, 128, 16, (4, 1), 3, 2, 0.36, "few columns"),
    (1, 16, 128, (1, 4), 3, 2, 0.36, "few rows"),
    (8, 16, 16, (1, 1), 2, 1, 0.20, "many tiny products"),
    (4, 32, 32, (1, 2), 2, 1, 0.28, "many small products"),
)
_COMPLEX_IN_PARTS = (
    (1, 64, 64, (2, 4), 3, 1, 0.49, "large"),
    (1, 64, 32, (2, 2), 3, 2, 0.45, "medium"),
    (1, 32, 32, (2, 2), 3, 2, 0.33, "small"),
    (1, 64, 16, (4, 1), 3, 2, 0.29, "few columns"),
    (1, 16, 64, (1, 4), 3, 2, 0.29, "few rows"),
    (8, 16, 16, (1, 1), 2, 1, 0.23, "many tiny products"),
    (4, 32, 32, (1, 2), 2, 1, 0.29, "many small products"),
)
_COMPLEX_DOUBLE = (
    (1, 64, 64, (2, 4), 3, 1, 0.68, "large"),
    (1, 64, 32, (2, 2), 3, 2, 0.60, "medium"),
    (1, 32, 32, (2, 2), 3, 3, 0.44, "small"),
    (1, 64, 16, (4, 1), 3, 3, 0.36, "few columns"),
    (1, 16, 64, (1, 4), 3, 3, 0.36, "few rows"),
    (8, 16, 16, (1, 1), 2, 1, 0.28, "many tiny products"),
    (4, 32, 32, (1, 2), 2, 1, 0.36, "many small products"),
)
# By the type of sums: operands in one part, in several.
_TENSOR_TILES = {
    "float64": (_DOUBLE, _DOUBLE),
    "complex64": (_COMPLEX, _COMPLEX_IN_PARTS),
    "complex128": (_COMPLEX_DOUBLE, _COMPLEX_DOUBLE),
}


def tensor_tiles(arithmetic: Arithmetic, size: int, dtype: str) -> tuple[TensorTile, ...]:
    """The tiles for elements of ``size`` bytes, summed in ``dtype``.

    A step has 64 bytes of each row, 128 where elements have 8 or 16: whole sectors of memory, and
    lines that shared memory reads without conflicts.
    """
    k = max(arithmetic.k, (64 if size <= 4 else 128) // size)
    one, several = _TENSOR_TILES.get(dtype, (_SINGLE, _SINGLE_IN_PARTS))
    converted = size <= 4 and arithmetic.k * size > 32  # registers of what is read, as for parts
    rows = several if converted or arithmetic.products > 1 else one
    return tuple(
        TensorTile(l, m, n, k, *warps, stages, resident, efficiency, reason, arithmetic)
        for l, m, n, warps, stages, resident, efficiency, reason in rows  # noqa: E741
    )


DIGITS = Arithmetic("Digits", 32, 45, "int8", "8-bit slices of float64")

# Most data ask for the products of slices of the orders 0 to 8, which are 45. A sum takes an
# accumulator of 32 bits and one of float64, three registers, so that a warp has 32 x 32 of them,
# 32 x 16 of complex numbers. Three steps of 64 k's are on their way.
SLICE_TILES = {
    "float64": (
        TensorTile(1, 128, 64, 64, 4, 2, 4, 1, 0.60, "large", DIGITS),
        TensorTile(1, 64, 64, 64, 2, 2, 4, 2, 0.50, "medium", DIGITS),
        TensorTile(1, 32, 32, 64, 2, 2, 4, 4, 0.25, "small", DIGITS),
    ),
    "complex128": (
        TensorTile(1, 64, 64, 64, 2, 4, 4, 1, 0.60, "large", DIGITS),
        TensorTile(1, 64, 32, 64, 2, 2, 4, 2, 0.50, "medium", DIGITS),
        TensorTile(1, 32, 16, 64, 2, 2, 4, 4, 0.25, "small", DIGITS),
    ),
}


@dataclass(frozen=True, slots=True)
class HopperTile:
    """A tile of a product by TMA and wgmma: ``m`` x ``n`` elements of D in steps of 128 bytes of k.

    ``groups`` warpgroups multiply, one more copies; ``stages`` steps are in shared memory.
    ``resident`` and ``efficiency`` as CoreTile.
    """

    m: int
    n: int
    groups: int
    stages: int
    resident: int
    efficiency: float
    reason: str

    STEP_BYTES: ClassVar[int] = 128

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.multipliers + 128

    @property
    def multipliers(self) -> int:
        """Threads that multiply."""
        return 128 * self.groups

    def depth(self, size: int) -> int:
        """The k of a step, of elements of ``size`` bytes."""
        return self.STEP_BYTES // size

    @property
    def shared(self) -> int:
        """Bytes of shared memory for the steps."""
        return self.stages * self.stage

    @property
    def stage(self) -> int:
        """Bytes of one step."""
        return self.STEP_BYTES * (self.m + self.n)


# A thread has 128, 64 or 32 accumulator registers. As many steps as fit 227 KB beside the tables,
# or half of it where two blocks are resident, keep copies on their way; of two blocks one
# multiplies while the other writes. On an H100 the large tile took 1.28 ms for a product of 7248 x
# 7240 x 7248 in bfloat16, as the model says for 0.66. The others, which read more for each product,
# are estimated from that.
HOPPER_TILES = (
    HopperTile(128, 256, 2, 4, 1, 0.66, "large"),
    HopperTile(128, 128, 2, 6, 1, 0.50, "medium"),
    HopperTile(64, 128, 1, 4, 2, 0.40, "narrow, two blocks beside each other"),
    HopperTile(64, 64, 1, 6, 2, 0.30, "small"),
)
