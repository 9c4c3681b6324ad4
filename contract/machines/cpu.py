"""What the planner knows about the host: rates, overheads, cache budgets, each with its reason.

The model decides between candidates; it does not predict wall-clock times of a given machine.
It deliberately ignores the number of threads, so that a plan, and with it every bit of a
result, does not depend on it.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import assert_never

from contract.descriptors.compute_types import is_blas_type, is_complex, item_size

__all__ = ["COMPILED", "HOST", "NARROW_BLAS", "Cpu", "CpuRates", "Lie", "Packing", "Tiling"]


@dataclass(frozen=True, slots=True)
class CpuRates:
    """Floating-point operations per second, by the width of real numbers."""

    double: float
    single: float

    def of(self, dtype: str) -> float:
        """The rate of a data type; types of neither width count as single."""
        return self.double if dtype in ("float64", "complex128") else self.single


class Lie(Enum):
    """How an operand lies to the panels it is packed into."""

    STRAIGHT = auto()  # fastest along the panels, or across them
    TURNED = auto()  # in squares, in registers
    SINGLE = auto()  # element by element


@dataclass(frozen=True, slots=True)
class Packing:
    """Elements packed per second, by the way in which they lie."""

    straight: float
    turned: float
    single: float

    def rate(self, lie: Lie) -> float:
        """The rate for operands that lie so."""
        match lie:
            case Lie.STRAIGHT:
                return self.straight
            case Lie.TURNED:
                return self.turned
            case Lie.SINGLE:
                return self.single
        assert_never(lie)


@dataclass(frozen=True, slots=True)
class Tiling:
    """Boxes and rates of products by tiles, all threads together."""

    flops: CpuRates  # of whole tiles, panels in cache
    complex_share: float  # of these rates, what tiles of complex numbers reach
    packed: Packing
    scattered: float  # elements of D written one by one, per second
    call: float  # seconds: one product, its tables and its threads
    tile: float  # seconds: one register tile beside its products
    batch: float  # seconds: one product of a batch, its boxes' panels and tables
    row_bytes: int  # of a register tile; complex tiles have half as many rows as their reals
    columns: int  # of a register tile
    column_bytes: int  # of one column of a panel of B: twelve stay in the first-level cache
    box_bytes: int  # of a box of A, which stays in the second-level cache
    far_bytes: int  # of a box of B: larger ones are read from memory again for each box of A
    kept_bytes: int  # of all boxes of A, where they stay packed in the cache all cores share,
    keepers: int  # which is by each of so many threads
    line: int  # bytes that move together, with the line that is fetched beside it
    longest: int  # places along one side of a box
    boxes: int  # of D, so that threads share them evenly
    few: int  # boxes of D that are too few to share,
    splits: int  # where k is then summed in so many parts

    def rows(self, dtype: str) -> int:
        """Rows of a register tile."""
        return self.row_bytes // item_size(dtype)

    def keeping(self) -> "Tiling":
        """The same where all of A stays packed: boxes may then be deeper."""
        return replace(self, column_bytes=2 * self.column_bytes)


@dataclass(frozen=True, slots=True)
class Cpu:
    """Rates per second and overheads in seconds of a processor, its memory and its BLAS."""

    blas_flops: CpuRates  # matrix products
    plain_flops: float  # products of types that BLAS has not
    loop_flops: CpuRates  # loop by loop, nothing packed
    vector_loops: bool  # whether these are of vectors, and the rates those of full ones
    memory_bandwidth: float  # bytes read and written
    near_bandwidth: float  # the same of an operand that fits the cache all cores share
    repacking_bandwidth: float  # bytes that BLAS packs once more, inside the cache of one core
    far_packing: float  # elements that BLAS packs whole: of the factor with D's slower mode
    cache_bandwidth: float  # bytes read and written inside the cache of one core
    shared_cache_bandwidth: float  # the same inside the cache all cores share
    transpose_rate: float  # elements moved between two different stride-1 modes
    permute_rate: float  # the same where whole tensors are copied, beside reading and writing
    call: float  # one call of a step from Python
    panels: float  # one Gett by panels: its memory and its kernels' arguments
    block: float  # one block of a Gett: packing, a product, unpacking
    product: float  # one matrix product inside a batch
    line: int  # bytes that move together; shorter runs waste the rest
    jump: float  # seconds: going on elsewhere in the cache all cores share, once a run,
    far_jump: float  # and in memory
    core_cache: int  # bytes of cache of one core
    panel_bytes: tuple[int, ...]  # sizes of packed panels worth trying; the last fits the cache
    loop_product: int  # multiply-adds up to which packing is not considered
    shared_product: int  # multiply-adds below which BLAS gains nothing from its threads
    idle_factor: float  # what a lone block of such products costs, the other threads idle
    uneven_blocks: float  # blocks lost, in effect, where threads share few of them
    tiling: Tiling | None = None  # None: without compiled kernels

    def pass_seconds(self, moved: int) -> float:
        """One step that reads and writes ``moved`` bytes once."""
        return self.call + moved / self.memory_bandwidth

    def flops(self, dtype: str) -> float:
        """Floating-point operations per second of matrix products in ``dtype``."""
        return self.blas_flops.of(dtype) if is_blas_type(dtype) else self.plain_flops

    def multiplying(self, products: int, dtype: str) -> float:
        """So many multiply-adds by BLAS."""
        return (8 if is_complex(dtype) else 2) * products / self.flops(dtype)

    def product_seconds(self, count: int, m: int, n: int, k: int, dtype: str) -> float:
        """``count`` products of an m x k by a k x n matrix, operands in cache.

        BLAS repacks its operands in every call: that is what makes thin products slow.
        """
        size = item_size(dtype)
        repacked = (m + n) * k * size / self.repacking_bandwidth
        written = m * n * size / self.cache_bandwidth
        multiplied = self.multiplying(m * n * k, dtype)
        return count * (self.product + multiplied + repacked + written)

    def stream_seconds(self, elements: int, run: int, dtype: str, writes: bool = False) -> float:
        """Reading or writing ``elements`` in memory, in runs of ``run`` contiguous ones.

        Nothing waits for what is written, nor for what shares a line with what was read before.
        """
        size, line = item_size(dtype), self.line
        asked, together = elements * size, (run or 1) * size
        moved = asked * min(line / together, line / size) if together < line else asked
        jumps = elements / (run or 1)
        if writes or asked <= self.panel_bytes[-1]:
            return moved / self._bandwidth(asked) + jumps * self.jump
        far = min(jumps, asked / line)
        return moved / self._bandwidth(asked) + far * self.far_jump + (jumps - far) * self.jump

    def _bandwidth(self, size: int) -> float:
        near = size <= self.panel_bytes[-1]
        return self.near_bandwidth if near else self.memory_bandwidth

    def permute_seconds(self, elements: int, dtype: str) -> float:
        """Copying a tensor in memory in another order of its modes."""
        moved = 2 * elements * item_size(dtype)
        return self.pass_seconds(moved) + elements / self.permute_rate

    def copy_seconds(
        self, elements: int, run: int, dtype: str, transposed: bool, panel: int
    ) -> float:
        """Copying between memory and panels of ``panel`` elements, which a product touches too."""
        moved = 2 * elements * item_size(dtype) / self._panel_rate(panel * item_size(dtype))
        shuffled = elements / self.transpose_rate if transposed else 0.0
        return self.stream_seconds(elements, run, dtype) + moved + shuffled

    def add_seconds(self, elements: int, dtype: str) -> float:
        """Adding a partial sum to another: two reads and a write."""
        moved = 3 * elements * item_size(dtype)
        return moved / self._panel_rate(elements * item_size(dtype))

    def imbalance(self, blocks: int, product: int) -> float:
        """What threads that wait cost: a lone block has BLAS's threads, if its product is large."""
        if blocks == 1:
            return 1.0 if product >= self.shared_product else self.idle_factor
        return 1.0 + self.uneven_blocks / blocks

    def _panel_rate(self, panel_bytes: int) -> float:
        if panel_bytes <= self.core_cache:
            return self.cache_bandwidth
        if panel_bytes <= self.panel_bytes[-1]:
            return self.shared_cache_bandwidth
        return self.memory_bandwidth


HOST = Cpu(
    blas_flops=CpuRates(80e9, 160e9),  # two AVX-512 cores; only the ratio to the bandwidths matters
    plain_flops=4e9,
    loop_flops=CpuRates(1.5e9, 1.5e9),
    vector_loops=False,
    memory_bandwidth=12e9,
    near_bandwidth=12e9,
    repacking_bandwidth=25e9,
    far_packing=4.7e9,
    cache_bandwidth=47e9,
    shared_cache_bandwidth=30e9,
    transpose_rate=2.0e9,
    permute_rate=0.5e9,
    call=4e-6,
    panels=45e-6,
    block=12e-6,
    product=0.4e-6,
    line=64,
    jump=1e-9,
    far_jump=1e-9,
    core_cache=1 << 20,
    panel_bytes=(1 << 19, 1 << 21, 1 << 23),
    loop_product=1 << 12,
    shared_product=1 << 22,
    idle_factor=1.7,
    uneven_blocks=2.0,
)

# With compiled kernels, on two AVX-512 cores: fitted as ``python -m contract calibrate`` does it,
# to its products and others, drawn at random; some then set by hand, where that chose better among
# them. The rates of large products are measured; loops over modes of extent 2 and 3 run slower.
COMPILED = replace(
    HOST,
    blas_flops=CpuRates(215e9, 450e9),
    loop_flops=CpuRates(60e9, 120e9),
    vector_loops=True,
    memory_bandwidth=45e9,
    near_bandwidth=210e9,
    repacking_bandwidth=45e9,
    far_packing=7.0e9,
    cache_bandwidth=47e9,
    shared_cache_bandwidth=46e9,
    transpose_rate=9.3e9,
    permute_rate=4.0e9,
    call=2.3e-6,
    panels=11e-6,
    block=6.2e-6,
    product=73e-9,
    jump=0.15e-9,
    far_jump=4e-9,
    tiling=Tiling(
        flops=CpuRates(215e9, 450e9),
        complex_share=1.0,
        packed=Packing(6.3e9, 7.9e9, 3.2e9),
        scattered=13e9,
        call=8e-6,
        tile=0.8e-9,
        batch=110e-9,
        row_bytes=128,
        columns=12,
        column_bytes=1 << 11,
        box_bytes=1 << 19,
        far_bytes=1 << 20,
        kept_bytes=1 << 23,
        keepers=2,
        line=128,
        longest=1 << 13,
        boxes=8,
        few=4,
        splits=8,
    ),
)

# The same where BLAS has no kernels for vectors of 512 bits, as OpenBLAS on processors newer than
# it is. Measured.
NARROW_BLAS = replace(COMPILED, blas_flops=CpuRates(122e9, 245e9))
