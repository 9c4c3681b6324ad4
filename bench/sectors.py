"""The sectors of memory and the wavefronts of shared memory that a permutation's warps touch.

Exact for every tile: where a tile begins within a sector, and where it ends at a tensor's end, are
all that tells tiles apart, and so each kind of tile is counted once.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from contract.device.kernels.elementwise import Side, Tiling

__all__ = ["LINE", "SECTOR", "Touched", "touched", "wavefronts"]

SECTOR, LINE = 32, 128  # bytes
WARP = 32  # lanes
BANKS, WORD = 32, 4  # of shared memory, bytes of each
Offsets = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Touched:
    """Of one tensor: sectors or lines that accesses touch, and the least for its elements."""

    count: int
    least: float


def touched(tiling: Tiling, tensor: int, size: int, unit: int = SECTOR) -> Touched:
    """Of tensor 0, the result, or a source, with elements of ``size`` bytes."""
    tiles = kinds_of_tiles(tiling, tensor, size, unit)
    found = sum(
        count * touched_by(tiling, tensor, size, unit, begin, sides)
        for (begin, *sides), count in tiles.items()
    )
    loops = (*tiling.x.whole, *tiling.y.whole, tiling.x.last, tiling.y.last, *tiling.rest)
    elements = tiling.unit * prod(each.extent for each in loops if each.strides[tensor])
    return Touched(found, elements * size / unit)


def kinds_of_tiles(tiling: Tiling, tensor: int, size: int, unit: int) -> Counter[tuple[int, ...]]:
    """How many tiles begin so many bytes into a sector, with so many indices of both last loops."""
    found: Counter[tuple[int, ...]] = Counter({(0,): 1})
    for each in tiling.rest:
        steps = Counter(at * each.strides[tensor] * size % unit for at in range(each.extent))
        found = _sums(found, Counter({(step,): n for step, n in steps.items()}), unit)
    for side in (tiling.x, tiling.y):
        steps = Counter(
            (
                at * side.chunk * side.last.strides[tensor] * size % unit,
                min(side.chunk, side.last.extent - at * side.chunk),
            )
            for at in range(side.chunks)
        )
        found = _sums(found, steps, unit)
    return found


def _sums(
    first: Counter[tuple[int, ...]], second: Counter[tuple[int, ...]], unit: int
) -> Counter[tuple[int, ...]]:
    """Places of both together, with what else is known of them."""
    found: Counter[tuple[int, ...]] = Counter()
    for ((a, *before), n), ((b, *after), m) in product(first.items(), second.items()):
        found[((a + b) % unit, *before, *after)] += n * m
    return found


def touched_by(
    tiling: Tiling, tensor: int, size: int, unit: int, begin: int, sides: Sequence[int]
) -> int:
    """The sectors of all accesses of a tile, those of one access counted once."""
    x, y = (
        places(side, length, each, tensor)
        for side, length, each in zip(
            (tiling.x, tiling.y), (tiling.width, tiling.height), sides, strict=True
        )
    )
    found = 0
    for bytes_, lanes in accesses(tiling, tensor, size, x, y):
        starts = begin + lanes * size
        used = np.concatenate(
            [np.where(lanes < 0, -1, (starts + at) // unit) for at in range(0, bytes_, unit)],
            axis=1,
        )
        used.sort(axis=1)
        fresh = np.diff(used, axis=1, prepend=-1) != 0
        found += int((fresh & (used >= 0)).sum())
    return found


def places(side: Side, length: int, indices: int, tensor: int) -> Offsets:
    """The offsets of a side's cells; below 0 for cells beyond it."""
    at = np.arange(length)
    offsets = np.zeros(length, np.int64)
    for each in side.whole:
        offsets += at % each.extent * each.strides[tensor]
        at = at // each.extent
    offsets += at * side.last.strides[tensor]
    return np.where(at < indices, offsets, np.int64(-1) << 40)


def accesses(
    tiling: Tiling, tensor: int, size: int, x: Offsets, y: Offsets
) -> Iterator[tuple[int, Offsets]]:
    """Bytes of a lane, and the offsets of a warp's lanes for every access, row by row."""
    kind, width = ("VECTOR", 1) if tensor == 0 else tiling.access[tensor - 1]
    unit = tiling.unit
    if kind == "TILE":
        row = lanes_along(tiling.height // width, tiling.width, width * unit * size)
        yield width * unit * size, in_warps(y[::width], x, row)
        return
    vector = tiling.vector
    row = lanes_along(tiling.width // vector, tiling.height, vector * unit * size)
    if kind == "VECTOR":
        yield vector * unit * size, in_warps(x[::vector], y, row)
        return
    for at in range(vector if kind == "ELEMENT" else 1):
        yield size, in_warps(x[at::vector], y, row)


def lanes_along(length: int, other: int, size: int) -> int:
    """Lanes of a warp along a side of vectors of ``size`` bytes: 128 bytes, if others have room."""
    wanted = max(128 // size, 1)
    if wanted * other < WARP:
        wanted = WARP // other
    return min(wanted, length, WARP)


def in_warps(along: Offsets, across: Offsets, row: int) -> Offsets:
    """The sums of both, those of a warp in a row: ``row`` along the one, the rest across."""
    lanes = along.reshape(-1, 1, 1, row) + across.reshape(1, -1, WARP // row, 1)
    return lanes.reshape(-1, WARP)


# --- shared memory ----------------------------------------------------------------------------


def wavefronts(tiling: Tiling, tensor: int, size: int) -> tuple[int, int]:
    """Of a source turned in shared memory, for a tile: wavefronts, and the least for its cells."""
    cell, width = size * tiling.unit, tiling.access[tensor - 1][1]
    pitch = tiling.height + max(WORD // cell, 1)
    x, y = np.arange(tiling.width) * pitch, np.arange(tiling.height)
    filled = lanes_along(tiling.height // width, tiling.width, width * cell)
    read = lanes_along(tiling.width // tiling.vector, tiling.height, tiling.vector * cell)
    every = [
        *(in_warps(y[at::width], x, filled) for at in range(width)),
        *(in_warps(x[at :: tiling.vector], y, read) for at in range(tiling.vector)),
    ]
    done = sum(int(conflicts(lanes * cell, cell).sum()) for lanes in every)
    return done, sum(len(lanes) * max(cell // WORD, 1) for lanes in every)


def conflicts(addresses: Offsets, size: int) -> Offsets:
    """Wavefronts of each access of a warp: the most words that lanes want of one bank.

    Cells of 8 and 16 bytes are moved by halves and quarters of a warp.
    """
    passes = max(size // WORD, 1)
    lanes = addresses.reshape(len(addresses) * passes, WARP // passes)
    words = np.concatenate([lanes // WORD + at for at in range(passes)], axis=1)
    words.sort(axis=1)
    fresh = np.diff(words, axis=1, prepend=-1) != 0
    found = np.zeros((len(words), BANKS), np.int64)
    rows = np.broadcast_to(np.arange(len(words))[:, None], words.shape)
    np.add.at(found, (rows[fresh], words[fresh] % BANKS), 1)
    return found.max(axis=1).reshape(len(addresses), passes).sum(axis=1)
