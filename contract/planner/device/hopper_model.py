"""What a product in boxes would take: the clocks of wgmma, the bytes of L2 and DRAM.

Seen from the sizes alone, as the model of the other tiles, so that both can be compared.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, isqrt

from contract.machines.gett_model import best_shares, overlapped
from contract.machines.gpu import Architecture
from contract.machines.gpu_tiles import MOST_PARTS, MOST_SCRATCH, HopperShare, Share, Workload
from contract.plan.steps import Product
from contract.planner.device.boxes import Cut, boxed, cuts
from contract.planner.device.problem import Held, problem_of

__all__ = ["GettWay", "best_ways", "group", "hopper_shares", "scratch", "wgmma_traffic"]

LEAST_STEPS = 8  # of a part: more than a ring holds


@dataclass(frozen=True, slots=True)
class GettWay:
    """A way to do a product by one of our own kernels, its predicted seconds, and why."""

    seconds: float
    share: Share | HopperShare
    reason: str


def best_ways(
    step: Product, held: Mapping[int, Held], gpu: Architecture, most: int
) -> list[GettWay]:
    """The ``most`` best tiles on any strides, and every tile of TMA and wgmma that serves.

    Each with its best number of parts, the shortest first.
    """
    work = problem_of(step, held).workload(gpu)
    found = [GettWay(seconds, each, each.reason) for seconds, each in best_shares(work, gpu, most)]
    found += (_best(each, work, gpu) for each in cuts(boxed(step, held), gpu))
    return sorted(found, key=lambda way: way.seconds)


def _best(cut: Cut, work: Workload, gpu: Architecture) -> GettWay:
    seconds, share = min(
        ((_seconds(cut, each, work, gpu), each) for each in hopper_shares(cut, gpu)),
        key=lambda each: (each[0], each[1].parts),
    )
    return GettWay(seconds, share, cut.reason(share))


def hopper_shares(cut: Cut, gpu: Architecture) -> Iterator[HopperShare]:
    """One part; powers of 2 that leave each some steps; as many as fill the machine once."""
    yield HopperShare(cut.tile)
    fill = gpu.multiprocessors * cut.tile.resident // cut.tiles
    powers = (1 << at for at in range(1, MOST_PARTS.bit_length()))
    for parts in sorted({fill, *powers} - {0, 1}):
        share = HopperShare(cut.tile, parts)
        steps = share.part_steps(cut.steps)
        even = (parts - 1) * steps < cut.steps
        if steps >= LEAST_STEPS and even and scratch(cut, share) <= MOST_SCRATCH:
            yield share


def scratch(cut: Cut, share: HopperShare) -> int:
    """Bytes of the parts of sums."""
    return 4 * cut.tiles * share.parts * cut.tile.m * cut.tile.n if share.parts > 1 else 0


def group(cut: Cut, gpu: Architecture) -> int:
    """Tiles along m that blocks do beside each other before they go on along n.

    So many that what all blocks read at once is about as wide as it is high.
    """
    at_once = gpu.multiprocessors * cut.tile.resident
    most = max(1, isqrt(at_once * cut.tile.n // cut.tile.m))
    return ceil(cut.m.count / ceil(cut.m.count / most))


def _seconds(cut: Cut, share: HopperShare, work: Workload, gpu: Architecture) -> float:
    """The launches, the slowest of wgmma, L2 and DRAM, and what does not hide behind it."""
    costs, (l2_bytes, dram_bytes) = gpu.costs, wgmma_traffic(cut, work, gpu)
    seconds = (costs.launch + costs.maps) + overlapped(
        costs.hidden,
        _clocks(cut, share, gpu) / gpu.clock,
        l2_bytes / gpu.delivered,
        dram_bytes / gpu.streamed,
    )
    parts = scratch(cut, share)
    if not parts:
        return seconds
    moving = gpu.delivered if parts < costs.cached * gpu.l2_bytes else gpu.streamed
    return seconds + costs.launch + 2 * parts / moving


def _clocks(cut: Cut, share: HopperShare, gpu: Architecture) -> float:
    """What the busiest multiprocessor takes: a tile is written before the next is multiplied."""
    tile, size = cut.tile, cut.problem.a.size
    rate = (gpu.rates.half if size == 2 else gpu.rates.tf32) * tile.efficiency
    own = ceil(cut.tiles * share.parts / gpu.multiprocessors)
    beside = min(own, tile.resident)
    multiplying = tile.m * tile.n * tile.depth(size) / rate
    step = max(gpu.latency / (tile.stages - 1), beside * multiplying)
    width = cut.width if share.parts == 1 else 2
    writing = beside * gpu.costs.wgmma_store * tile.m * tile.n / width
    each = gpu.costs.wgmma_tile + share.part_steps(cut.steps) * step + writing
    return gpu.costs.block + own / beside * each


def wgmma_traffic(cut: Cut, work: Workload, gpu: Architecture) -> tuple[float, float]:
    """Bytes between L2 and the multiprocessors, and between DRAM and L2, parts of sums left out."""
    return cut.tiles * cut.steps * cut.tile.stage, _dram_bytes(cut, work, gpu)


def _dram_bytes(cut: Cut, work: Workload, gpu: Architecture) -> float:
    """What comes from DRAM: groups of tiles along m go along n; what L2 holds is read once."""
    rows, at_once = group(cut, gpu), gpu.multiprocessors * cut.tile.resident
    cached = gpu.costs.cached * gpu.l2_bytes * cut.l.count
    columns = max(1, at_once // rows)
    results = (work.d,) if work.c is None else (work.d, work.c)
    moved = sum(each.written(cut.n.sides[0]) for each in results)
    # The factors of the work are exchanged: its A has the columns here.
    moved += work.b.bytes * (1 if work.b.bytes <= cached else ceil(cut.n.count / columns))
    again = ceil(cut.m.count / rows)
    return moved + work.a.bytes * (1 if work.a.bytes <= cached else again)
