"""The tile of a product and the number of parts of k: the cheapest by a small model.

The model counts clocks of the busiest multiprocessor. It sees extents and the tables alone, so that
a result has the same bits on every card of an architecture.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod

from contract.compute import is_complex, item_size
from contract.kernels.configurations import (
    CORE_TILES,
    GETT,
    Architecture,
    Arithmetic,
    CoreTile,
    GettRow,
    TensorTile,
    Tile,
    tensor_tiles,
)

__all__ = ["Extents", "Share", "Workload", "resident", "share", "shares"]

MOST_PARTS = 1024
MOST_SCRATCH = 1 << 28  # bytes of parts
LEAST_STEPS = 4  # of a part
PART_LOSS = 1.1  # parts must gain this much: they take memory, and the model is rough
PART_CLOCKS = 100  # to add one part to a sum, several being read at once


@dataclass(frozen=True, slots=True)
class Extents:
    """The flattened extents of a product."""

    l: int  # noqa: E741 - the loop's name
    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class Workload:
    """What a product asks of a machine: extents, types, and the arithmetic that may serve.

    ``size_a`` and ``size_b`` are bytes of an element in memory, ``dtype`` is the type of sums. The
    CUDA cores always serve.
    """

    extents: Extents
    size_a: int
    size_b: int
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
        tiles = self.tiles(extents)
        return tiles if self.parts == 1 else self.whole + (tiles - self.whole) * self.parts

    @property
    def reason(self) -> str:
        """Why, in words."""
        tile = self.tile
        batch = f"{tile.l} x " if tile.l > 1 else ""
        unit = f", {tile.arithmetic.reason}" if isinstance(tile, TensorTile) else ""
        few = f" of the tiles after {self.whole}" if self.whole else ""
        parts = f", k{few} in {self.parts} parts to fill the machine" if self.parts > 1 else ""
        return f"{tile.reason}{unit}: tiles of {batch}{tile.m} x {tile.n}, k by {tile.k}{parts}"


def share(work: Workload, architecture: Architecture) -> Share:
    """The share with the fewest clocks; of those that cost the same, that with the least work."""
    found = shares(work, architecture)
    return min(found, key=lambda each: (each[0], _padded_work(work.extents, each[1])))[1]


def shares(work: Workload, architecture: Architecture) -> list[tuple[float, Share]]:
    """Every legal share with its clocks."""
    return [
        (_clocks(work, each, architecture), each)
        for tile in _tiles(work, architecture)
        for each in _shares(work, tile, architecture)
    ]


def resident(work: Workload, tile: Tile, architecture: Architecture) -> int:
    """Blocks that a multiprocessor has beside each other; 0 where not one fits."""
    if isinstance(tile, CoreTile):
        return tile.resident
    size = tile.storage(work.size_a, work.size_b, work.dtype)
    tables = 32 * tile.l * (tile.m + tile.n)
    return min(tile.resident, architecture.shared // (size + tables + 1024))


def _tiles(work: Workload, architecture: Architecture) -> Iterator[Tile]:
    yield from CORE_TILES[max(item_size(work.dtype), 4)]
    row = GETT[architecture.capability]
    size = max(work.size_a, work.size_b)
    for arithmetic in work.arithmetic:
        for tile in tensor_tiles(arithmetic, size, work.dtype):
            if _rate(row, tile, work.dtype) and resident(work, tile, architecture):
                yield tile


def _shares(work: Workload, tile: Tile, architecture: Architecture) -> Iterator[Share]:
    """One part; powers of 2 that leave each some steps and fit the scratch memory; and as many
    as there is room for beside the tiles of full waves."""
    extents = work.extents
    whole = Share(tile, 1, max(extents.k, 1))
    yield whole
    tiles = whole.tiles(extents)
    parts = 2
    while parts <= MOST_PARTS:
        made = _in_parts(work, tile, parts, 0)
        if made is None:
            break
        yield made
        parts *= 2
    at_once = architecture.multiprocessors * resident(work, tile, architecture)
    rest = tiles % at_once
    if tiles > at_once and rest and at_once // rest > 1:
        made = _in_parts(work, tile, at_once // rest, tiles - rest)
        if made is not None:
            yield made


def _in_parts(work: Workload, tile: Tile, parts: int, whole: int) -> Share | None:
    """At most ``parts`` parts of as many steps; None where they would be too small or too large."""
    extents = work.extents
    part_k = ceil(ceil(extents.k / parts) / tile.k) * tile.k
    count = ceil(extents.k / part_k) if part_k else 1
    made = Share(tile, count, part_k, whole)
    if part_k < LEAST_STEPS * tile.k or count < 2 or _scratch(work, made) > MOST_SCRATCH:
        return None
    return made


def _scratch(work: Workload, made: Share) -> int:
    tile = made.tile
    split = (made.tiles(work.extents) - made.whole) * made.parts
    return split * tile.l * tile.m * tile.n * max(item_size(work.dtype), 4)


def _padded_work(extents: Extents, made: Share) -> int:
    """Multiply-adds of all blocks, those beyond the tensors' ends too."""
    tile = made.tile
    return made.tiles(extents) * tile.l * tile.m * tile.n * ceil(extents.k / tile.k) * tile.k


# --- clocks -----------------------------------------------------------------------------------


def _clocks(work: Workload, made: Share, architecture: Architecture) -> float:
    """Full waves of whole tiles, then what is left; and the parts' second launch."""
    row, extents = GETT[architecture.capability], work.extents
    if made.parts == 1:
        return _wave_clocks(work, made.tile, made.tiles(extents), extents.k, architecture)
    split = made.items(extents) - made.whole
    clocks = _wave_clocks(work, made.tile, split, made.part_k, architecture)
    if made.whole:
        clocks += _wave_clocks(work, made.tile, made.whole, extents.k, architecture)
    moved = 2 * _scratch(work, made) / (row.bytes * architecture.multiprocessors)
    return PART_LOSS * clocks + row.launch + max(moved, made.parts * PART_CLOCKS)


def _wave_clocks(
    work: Workload, tile: Tile, blocks: int, k: int, architecture: Architecture
) -> float:
    """What the busiest multiprocessor takes for its share of ``blocks`` sums over ``k``."""
    row = GETT[architecture.capability]
    own = ceil(blocks / architecture.multiprocessors)
    beside = max(1, min(own, resident(work, tile, architecture)))
    step = beside * _step_clocks(work, tile, row)
    return (row.block + ceil(k / tile.k) * max(row.step / _ahead(tile), step)) * own / beside


def _ahead(tile: Tile) -> int:
    """Steps that are on their way at once."""
    return tile.stages - 1 if isinstance(tile, TensorTile) else 1


def _step_clocks(work: Workload, tile: Tile, row: GettRow) -> float:
    """What one step of one block takes of a multiprocessor: arithmetic or reading."""
    extents = work.extents
    rows = min(tile.m, extents.m) * work.size_a + min(tile.n, extents.n) * work.size_b
    read = min(tile.l, extents.l) * rows * min(tile.k, extents.k)
    done = tile.l * tile.m * tile.n * tile.k / (_rate(row, tile, work.dtype) * tile.efficiency)
    return max(done, read / row.bytes)


def _rate(row: GettRow, tile: Tile, dtype: str) -> float:
    """Multiply-adds of ``dtype`` per clock of a multiprocessor."""
    real = 4 if is_complex(dtype) else 1
    if isinstance(tile, TensorTile):
        arithmetic = tile.arithmetic
        return float(getattr(row, arithmetic.rate)) / arithmetic.products / real
    if dtype in ("int64", "uint64"):
        return row.single / 10  # in several instructions of 32 bits
    return (row.double if dtype in ("float64", "complex128") else row.single) / real
