"""The tile of a product and the number of parts of k: the cheapest by a small model.

The model counts clocks of the busiest multiprocessor. It sees extents and the tables alone, so that
a result has the same bits on every card of an architecture.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod

from contract.compute import item_size
from contract.kernels.configurations import GETT, GETT_TILES, Architecture, GettRow, GettTile

__all__ = ["Extents", "Share", "share"]

MOST_PARTS = 1024
MOST_SCRATCH = 1 << 28  # bytes of parts
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
class Share:
    """Which tile a block does, and in how many parts of ``part_k`` the sum over k is made."""

    tile: GettTile
    parts: int
    part_k: int

    @property
    def reason(self) -> str:
        """Why, in words."""
        tile = self.tile
        batch = f"{tile.l} x " if tile.l > 1 else ""
        parts = f", k in {self.parts} parts to fill the machine" if self.parts > 1 else ""
        return f"{tile.reason}: tiles of {batch}{tile.m} x {tile.n}, k by {tile.k}{parts}"


def share(extents: Extents, dtype: str, architecture: Architecture) -> Share:
    """The share with the fewest clocks; of those that cost the same, that with the least work."""
    shares = (
        made for tile in GETT_TILES[_summed_size(dtype)] for made in _shares(extents, tile, dtype)
    )
    return min(
        shares,
        key=lambda made: (_clocks(extents, made, dtype, architecture), _work(extents, made)),
    )


def _summed_size(dtype: str) -> int:
    """Bytes of what is summed; small integers are summed in 32 bits."""
    return max(item_size(dtype), 4)


def _shares(extents: Extents, tile: GettTile, dtype: str) -> Iterator[Share]:
    """One part, and all powers of 2 that leave each some steps and fit the scratch memory."""
    yield Share(tile, 1, max(extents.k, 1))
    parts = 2
    while parts <= MOST_PARTS:
        part_k = ceil(ceil(extents.k / parts) / tile.k) * tile.k
        count = ceil(extents.k / part_k) if part_k else 1
        size = count * extents.l * extents.m * extents.n * item_size(dtype)
        if part_k < 4 * tile.k or count < 2 or size > MOST_SCRATCH:
            return
        yield Share(tile, count, part_k)
        parts *= 2


def _work(extents: Extents, share: Share) -> int:
    """Multiply-adds of all blocks, those beyond the tensors' ends too."""
    tile = share.tile
    return _blocks(extents, share) * tile.l * tile.m * tile.n * ceil(share.part_k / tile.k) * tile.k


def _blocks(extents: Extents, share: Share) -> int:
    tile = share.tile
    sides = zip((extents.l, extents.m, extents.n), (tile.l, tile.m, tile.n), strict=True)
    return share.parts * prod(ceil(extent / side) for extent, side in sides)


def _clocks(extents: Extents, share: Share, dtype: str, architecture: Architecture) -> float:
    row, tile = GETT[architecture.table], share.tile
    own = ceil(_blocks(extents, share) / architecture.multiprocessors)  # blocks of the busiest
    beside = min(own, tile.resident)
    work = beside * _step_clocks(extents, tile, dtype, row)
    clocks = row.block + ceil(share.part_k / tile.k) * max(row.step, work)
    clocks *= own / beside
    if share.parts == 1:
        return clocks
    return PART_LOSS * clocks + _part_clocks(extents, share, dtype, row, architecture)


def _step_clocks(extents: Extents, tile: GettTile, dtype: str, row: GettRow) -> float:
    """What one step of one block takes of a multiprocessor: arithmetic or reading."""
    rates = {"int64": 0.1, "uint64": 0.1, "float64": 0.5, "complex64": 0.25, "complex128": 0.125}
    rate = row.multiply_adds * rates.get(dtype, 1.0) * tile.efficiency
    rows = min(tile.m, extents.m) + min(tile.n, extents.n)
    read = min(tile.l, extents.l) * rows * min(tile.k, extents.k) * item_size(dtype)
    return max(tile.l * tile.m * tile.n * tile.k / rate, read / row.bytes)


def _part_clocks(
    extents: Extents, share: Share, dtype: str, row: GettRow, architecture: Architecture
) -> float:
    """Writing and reading the parts, and the second launch."""
    moved = 2 * share.parts * extents.l * extents.m * extents.n * item_size(dtype)
    streamed = moved / (row.bytes * architecture.multiprocessors)
    return row.launch + max(streamed, share.parts * PART_CLOCKS)
