"""Ways to share a product among blocks: which tile, and how many parts of the sum over k."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, prod
from typing import NamedTuple

from contract.descriptors.compute_types import is_complex, item_size
from contract.machines.gpu import Architecture
from contract.machines.gpu_kernels import (
    Arithmetic,
    CoreTile,
    HopperTile,
    TensorTile,
    Tile,
    core_tiles,
    tensor_tiles,
)

__all__ = [
    "MOST_PARTS",
    "MOST_SCRATCH",
    "MOST_SIDE",
    "Access",
    "Extents",
    "HopperShare",
    "Share",
    "Stores",
    "Workload",
    "rate",
    "resident",
    "shares",
    "tiles",
]

MOST_PARTS = 1024
MOST_SCRATCH = 1 << 28  # bytes of parts
LEAST_STEPS = 4  # of a part
MOST_SIDE = 256  # of a tile, and k's of a step


@dataclass(frozen=True, slots=True)
class Extents:
    """The flattened extents of a product."""

    l: int  # noqa: E741 - the loop's name
    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class Access:
    """How blocks reach a tensor of the product in memory.

    Elements have ``size`` bytes; ``width`` of them go into one access at most, along k or along
    the tile. ``inflation[i]`` are the bytes of sectors moved for each byte used, where a block
    takes 2^i indices in that direction, ``lines[i]`` those of lines that a tile of so many rows
    writes in part, for results. ``bytes`` are those of all sectors that hold elements.
    """

    size: int
    width: int
    along_k: bool
    inflation: tuple[float, ...]
    lines: tuple[float, ...]
    bytes: int

    def moved(self, elements: int, side: int) -> float:
        """Bytes of the sectors of ``elements``, ``side`` of them in the direction of accesses."""
        return elements * self.size * self.inflation[_power(side)]

    def written(self, side: int) -> float:
        """Bytes of DRAM for all elements of a result, which tiles of ``side`` rows write.

        Lines are written by several tiles where a tile has parts of them only.
        """
        return self.bytes * self.lines[_power(side)]


def _power(side: int) -> int:
    return min(side, MOST_SIDE).bit_length() - 1


class Stores(NamedTuple):
    """How the warps of a block store D: ``width`` elements of a thread at once.

    A store of a warp touches ``sectors`` bytes of sectors for each byte, and ``lines`` of lines.
    """

    width: int
    sectors: float
    lines: float


@dataclass(frozen=True, slots=True)
class Workload:
    """What a product asks of a machine: extents, accesses, and the arithmetic that may serve.

    ``stores`` says how D is stored where blocks do a tile. ``dtype`` is the type of sums. The CUDA
    cores always serve.
    """

    extents: Extents
    a: Access
    b: Access
    d: Access
    stores: Callable[[Tile], Stores]
    c: Access | None
    dtype: str
    arithmetic: tuple[Arithmetic, ...] = ()


@dataclass(frozen=True, slots=True)
class Share:
    """Which tile a block does, and in how many parts of ``part_k`` the sum over k is made.

    The first ``whole`` tiles are summed at once even where there are parts: they fill the
    multiprocessors evenly, and only the rest is split.
    """

    tile: Tile
    parts: int
    part_k: int
    whole: int = 0

    def sides(self, extents: Extents) -> tuple[int, int, int]:
        """Tiles along m, n and l."""
        tile = self.tile
        return ceil(extents.m / tile.m), ceil(extents.n / tile.n), ceil(extents.l / tile.l)

    def tiles(self, extents: Extents) -> int:
        """All tiles of D."""
        return prod(self.sides(extents))

    def items(self, extents: Extents) -> int:
        """Pieces of work: tiles done whole, and parts of the others."""
        count = self.tiles(extents)
        return count if self.parts == 1 else self.whole + (count - self.whole) * self.parts

    def padded(self, extents: Extents) -> int:
        """Multiply-adds of all blocks, those beyond the tensors' ends too."""
        tile = self.tile
        steps = ceil(extents.k / tile.k)
        return self.tiles(extents) * tile.l * tile.m * tile.n * steps * tile.k

    def scratch(self, extents: Extents, dtype: str) -> int:
        """Bytes of the parts of sums of ``dtype``."""
        tile = self.tile
        split = self.items(extents) - self.whole if self.parts > 1 else 0
        return split * tile.l * tile.m * tile.n * max(item_size(dtype), 4)

    @property
    def reason(self) -> str:
        """Why, in words."""
        tile = self.tile
        batch = f"{tile.l} x " if tile.l > 1 else ""
        unit = tile.arithmetic.reason if isinstance(tile, TensorTile) else "CUDA cores"
        few = f" of the tiles after {self.whole}" if self.whole else ""
        parts = f", k{few} in {self.parts} parts to fill the machine" if self.parts > 1 else ""
        return f"{tile.reason}, {unit}: tiles of {batch}{tile.m} x {tile.n}, k by {tile.k}{parts}"


@dataclass(frozen=True, slots=True)
class HopperShare:
    """Which tile of TMA and wgmma a block does, and in how many parts the sum over k is made."""

    tile: HopperTile
    parts: int = 1

    def part_steps(self, steps: int) -> int:
        """Steps of a part; the last may have fewer."""
        return ceil(steps / self.parts)


def resident(work: Workload, tile: Tile, architecture: Architecture) -> int:
    """Blocks that a multiprocessor has beside each other; 0 where not one fits."""
    if isinstance(tile, CoreTile):
        return tile.resident
    size = tile.storage(work.a.size, work.b.size)
    tables = 32 * tile.l * (tile.m + tile.n) + 16 * tile.depth
    return min(tile.resident, architecture.shared // (size + tables + 1024))


def rate(architecture: Architecture, tile: Tile, dtype: str) -> float:
    """Multiply-adds of ``dtype`` per clock of a multiprocessor."""
    if isinstance(tile, CoreTile):
        return architecture.rates.core(dtype)
    arithmetic = tile.arithmetic
    real = 4 if is_complex(dtype) else 1
    peak = architecture.rates.tensor(arithmetic.rate) / arithmetic.products
    return min(peak, arithmetic.issued) / real


def tiles(work: Workload, architecture: Architecture) -> Iterator[Tile]:
    """Every tile that serves."""
    narrowest, size = sorted((work.a.size, work.b.size))
    yield from core_tiles(architecture.table, max(item_size(work.dtype), 4), narrowest)
    for arithmetic in work.arithmetic:
        for tile in tensor_tiles(arithmetic, size, work.dtype):
            if rate(architecture, tile, work.dtype) and resident(work, tile, architecture):
                yield tile


def shares(work: Workload, tile: Tile, architecture: Architecture) -> Iterator[Share]:
    """The ways to part the sums of a tile.

    One part; powers of 2 that leave each some steps and fit the scratch memory; as many as run at
    once; and as many as there is room for beside the tiles of full waves.
    """
    extents = work.extents
    whole = Share(tile, 1, max(extents.k, 1))
    yield whole
    count = whole.tiles(extents)
    parts = 2
    while parts <= MOST_PARTS:
        made = _in_parts(work, tile, parts, 0)
        if made is None:
            break
        yield made
        parts *= 2
    at_once = architecture.multiprocessors * resident(work, tile, architecture)
    rest = count % at_once
    if rest and at_once // rest > 1:
        made = _in_parts(work, tile, min(at_once // rest, MOST_PARTS), count - rest)
        if made is not None:
            yield made


def _in_parts(work: Workload, tile: Tile, parts: int, whole: int) -> Share | None:
    """At most ``parts`` parts of as many steps; None where they would be too small or too large."""
    extents = work.extents
    part_k = ceil(ceil(extents.k / parts) / tile.k) * tile.k
    count = ceil(extents.k / part_k) if part_k else 1
    made = Share(tile, count, part_k, whole)
    if (
        part_k < LEAST_STEPS * tile.k
        or count < 2
        or made.scratch(extents, work.dtype) > MOST_SCRATCH
    ):
        return None
    return made
