"""What a share of a product would take: the clocks of a multiprocessor, the bytes of L2 and DRAM.

The model sees extents, strides and the tables alone, so that a result has the same bits on every
card of an architecture, unless its constants were fitted to that card. It decides between
candidates; ``GpuCosts`` says how well.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from contract.machines.gpu import Architecture
from contract.machines.gpu_kernels import CoreTile, TensorTile, Tile
from contract.machines.gpu_tiles import (
    Access,
    Share,
    Stores,
    Workload,
    rate,
    resident,
    shares,
    tiles,
)

__all__ = ["best_shares", "overlapped", "share", "traffic"]

ACCESSES = 32  # loads or stores of a multiprocessor per clock: it has as many units


def share(work: Workload, gpu: Architecture) -> Share:
    """The share that takes the shortest time."""
    ((_, best),) = best_shares(work, gpu, 1)
    return best


def best_shares(work: Workload, gpu: Architecture, most: int) -> list[tuple[float, Share]]:
    """The ``most`` best tiles, each with its best number of parts, and their seconds.

    Of those that take the same time, that with the least work, what lies beyond the tensors' ends
    counted.
    """
    found = [min(_timed(work, tile, gpu), key=lambda each: each[0]) for tile in tiles(work, gpu)]
    found.sort(key=lambda each: (each[0], each[1].padded(work.extents)))
    return found[:most]


def _timed(work: Workload, tile: Tile, gpu: Architecture) -> Iterator[tuple[float, Share]]:
    costs = _costs(work, tile, gpu)
    for each in shares(work, tile, gpu):
        yield _seconds(costs, work, each, gpu), each


@dataclass(frozen=True, slots=True)
class _Costs:
    """What a tile costs, in how many parts its sums may be made.

    ``step`` and ``result`` are clocks of one block by itself, for one step of k and for D;
    ``l2_bytes`` are those of all blocks, ``written`` what D and C are to DRAM.
    """

    resident: int
    written: float
    step: float
    result: float
    l2_bytes: float


def _costs(work: Workload, tile: Tile, gpu: Architecture) -> _Costs:
    stores = work.stores(tile)
    return _Costs(
        max(1, resident(work, tile, gpu)),
        _written(work, tile, stores, gpu),
        _step_clocks(work, tile, gpu),
        _result_clocks(work, tile, stores, gpu),
        _l2_bytes(work, tile, stores),
    )


def _seconds(costs: _Costs, work: Workload, made: Share, gpu: Architecture) -> float:
    """The launches, the slowest of arithmetic, L2 and DRAM, and what does not hide behind it."""
    tiled = gpu.costs.tiled * gpu.dram
    hidden = gpu.costs.hidden if costs.resident > 1 else gpu.costs.hidden_alone
    seconds = gpu.costs.launch + overlapped(
        hidden,
        _clocks(costs, work, made, gpu) / gpu.clock,
        costs.l2_bytes / gpu.delivered,
        _dram_bytes(costs, work, made, gpu) / tiled,
    )
    if made.parts == 1:
        return seconds
    scratch = made.scratch(work.extents, work.dtype)
    moving = gpu.delivered if scratch < gpu.costs.cached * gpu.l2_bytes else tiled
    adding = max(2 * scratch / moving, made.parts * gpu.costs.part / gpu.clock)
    return seconds + gpu.costs.launch + adding


def overlapped(hidden: float, *needed: float) -> float:
    """The seconds of the slowest unit, and of the others what is not ``hidden`` behind it."""
    longest = max(needed)
    return longest + (1 - hidden) * (sum(needed) - longest)


# --- a multiprocessor -------------------------------------------------------------------------


def _clocks(costs: _Costs, work: Workload, made: Share, gpu: Architecture) -> float:
    """Full waves of whole tiles, then what is left in parts."""
    count, k = made.tiles(work.extents), work.extents.k
    if made.parts == 1:
        return _wave_clocks(costs, made.tile, count, k, gpu)
    clocks = _wave_clocks(costs, made.tile, (count - made.whole) * made.parts, made.part_k, gpu)
    if made.whole:
        clocks += _wave_clocks(costs, made.tile, made.whole, k, gpu)
    return gpu.costs.part_loss * clocks


def _wave_clocks(costs: _Costs, tile: Tile, blocks: int, k: int, gpu: Architecture) -> float:
    """What the busiest multiprocessor takes for its share of ``blocks`` sums over ``k``."""
    own = ceil(blocks / gpu.multiprocessors)
    beside = min(own, costs.resident)
    ahead = tile.stages - 1 if isinstance(tile, TensorTile) else 1  # steps on their way at once
    step = max(gpu.latency / ahead, beside * costs.step)
    return (gpu.costs.block + beside * costs.result + _steps(tile, k) * step) * own / beside


def _steps(tile: Tile, k: int) -> float:
    """Steps over k; the CUDA cores leave out the second half of the last where it is empty."""
    return ceil(2 * k / tile.k) / 2 if isinstance(tile, CoreTile) else ceil(k / tile.k)


def _step_clocks(work: Workload, tile: Tile, gpu: Architecture) -> float:
    """One step of one block: multiplying and issuing loads take turns, while L2 delivers."""
    extents = work.extents
    each = rate(gpu, tile, work.dtype) * tile.efficiency
    multiplying = tile.l * tile.m * tile.n * tile.k / each
    loads, moved = 0.0, 0.0
    for access, side, extent in ((work.a, tile.m, extents.m), (work.b, tile.n, extents.n)):
        elements = min(tile.l, extents.l) * min(side, extent) * min(tile.k, extents.k)
        along = tile.k if access.along_k else side
        width = min(access.width, along)
        loads += elements / width * _instructions(access, width, tile)
        moved += access.moved(elements, along)
    return max(multiplying + loads / ACCESSES, moved / gpu.l2)


def _instructions(access: Access, width: int, tile: Tile) -> int:
    """Accesses of memory and of shared memory for one load of ``width`` elements.

    cp.async is one for both; it moves 4 bytes or more. The CUDA cores store along the tile.
    """
    if isinstance(tile, CoreTile):
        return 1 + (width if access.along_k else 1)
    return 1 if width * access.size >= 4 else 2


def _result_clocks(work: Workload, tile: Tile, stores: Stores, gpu: Architecture) -> float:
    """D, and C where it is added, at the end of a block."""
    extents = work.extents
    elements = min(tile.l, extents.l) * min(tile.m, extents.m) * min(tile.n, extents.n)
    stored = elements * work.d.size * stores.sectors
    clocks = max(elements / stores.width / ACCESSES, stored / gpu.l2)
    if work.c is None:
        return clocks
    loads = elements / min(work.c.width, tile.m) / ACCESSES
    return clocks + max(loads, work.c.moved(elements, tile.m) / gpu.l2)


# --- all multiprocessors ----------------------------------------------------------------------


def traffic(work: Workload, made: Share, gpu: Architecture) -> tuple[float, float]:
    """Bytes between L2 and the multiprocessors, and between DRAM and L2, parts of sums left out."""
    costs = _costs(work, made.tile, gpu)
    return costs.l2_bytes, _dram_bytes(costs, work, made, gpu)


def _l2_bytes(work: Workload, tile: Tile, stores: Stores) -> float:
    """Sectors that go between L2 and the multiprocessors."""
    extents = work.extents
    moved = 0.0
    for access, side, extent, others, other in (
        (work.a, tile.m, extents.m, extents.n, tile.n),
        (work.b, tile.n, extents.n, extents.m, tile.m),
    ):
        elements = extents.l * extent * extents.k * ceil(others / other)
        moved += access.moved(elements, tile.k if access.along_k else side)
    elements = extents.l * extents.m * extents.n
    added = 0.0 if work.c is None else work.c.moved(elements, tile.m)
    return moved + elements * work.d.size * stores.sectors + added


def _written(work: Workload, tile: Tile, stores: Stores, gpu: Architecture) -> float:
    """Bytes of DRAM that D takes, and C: what is stored in parts takes more."""
    costs = gpu.costs
    parts = costs.sectors_left * (stores.sectors - 1) + costs.lines_left * (stores.lines - 1)
    added = 0.0 if work.c is None else work.c.written(tile.m)
    return work.d.written(tile.m) + parts * work.d.bytes + added


def _dram_bytes(costs: _Costs, work: Workload, made: Share, gpu: Architecture) -> float:
    """What has to come from DRAM: tiles go along m, then n; what L2 holds is read once."""
    tiles_m, tiles_n, tiles_l = made.sides(work.extents)
    beside = max(1, gpu.multiprocessors * costs.resident // made.parts)  # tiles at once
    wave_m, wave_n = min(beside, tiles_m), max(1, beside // tiles_m)
    cached = gpu.costs.cached * gpu.l2_bytes * tiles_l
    fits_a = work.a.bytes <= cached
    fits_b = work.b.bytes * min(1, wave_n / tiles_n) <= cached
    moved = costs.written + work.a.bytes * (1 if fits_a else ceil(tiles_n / wave_n))
    return moved + work.b.bytes * (1 if fits_b else ceil(tiles_m / wave_m))
