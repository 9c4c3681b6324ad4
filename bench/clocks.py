"""What a launch needs of every unit of a GPU, counted in its machine code and its addresses.

Instructions are those of the phases of bench.phases, trips follow from the shape, bytes of products
from the planner's model, those of passes from bench.sectors. Rates are nominal, no constant is
fitted. Two rules are what an H100 showed and not counts: units that multiply wait for shared memory
(``busy``), and lanes of the CUDA cores that ask for the same share its wavefronts (BROADCAST).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod

from bench.nvrtc import Usage, compiled, usage_in
from bench.occupancy import resident as blocks_of
from bench.phases import READS, WAVEFRONTS, WGMMA, Phases, instructions, phases, reading, straight
from bench.sass import Code, parsed
from bench.sectors import LINE, SECTOR, touched, wavefronts
from contract.descriptors.compute_types import is_complex, item_size
from contract.device.kernels.elementwise import Tiling, tiling
from contract.device.kernels.lowering import lower
from contract.machines.cublas_model import blas_seconds
from contract.machines.gett_model import overlapped, traffic
from contract.machines.gpu import Architecture
from contract.machines.gpu_kernels import CoreTile, TensorTile, Tile
from contract.machines.gpu_tiles import HopperShare, Share, rate
from contract.plan.steps import (
    Elementwise,
    Gett,
    Permute,
    Plan,
    Reduce,
    Source,
    Step,
    step_bytes,
)
from contract.planner.device.boxes import boxed, cut
from contract.planner.device.hopper_model import wgmma_traffic
from contract.planner.device.launch import BlasCall, DeviceCall, KernelCall
from contract.planner.device.problem import Problem, held_by, problem_of

__all__ = ["UNITS", "Needs", "Resident", "launches"]

# Warps' instructions that a multiprocessor begins in a clock, by class, from 8.0 on (CUDA C++
# programming guide, arithmetic instructions); of wavefronts and of all instructions as well.
ISSUED = 4
PER_CLOCK = {"integer": 2, "multiply": 2, "convert": 2, "special": 0.5}
BROADCAST = 0.5  # of the wavefronts by which tiles of the CUDA cores read: lanes ask for the same
UNITS = ("issue", "tensor", "float", "double", "integer", "shared", "L2", "DRAM")
AHEAD = 1  # steps that blocks of the CUDA cores have on their way
WARPS_OF_A_PASS = 8  # of a block that permutes
# The instruction that multiplies, by the tensor cores' rate (else HMMA) and by the type of sums.
TENSOR = {"f64": "DMMA", "int8": "IMMA"}
CORES = {"float64": "DFMA", "complex128": "DFMA", "float32": "FFMA", "complex64": "FFMA"}


@dataclass(frozen=True, slots=True)
class Resident:
    """A kernel as it is compiled, and how many of its blocks a multiprocessor holds."""

    code: Code
    usage: Usage
    blocks: int


@dataclass(frozen=True, slots=True)
class Needs:
    """What a launch needs: the seconds of each unit, were it alone, and those of the launch.

    ``phases`` is None for kernels without a main loop, ``kernel`` for those of cuBLAS. ``sectors``
    are those of all tensors, in those that their bytes have at least; None where not counted.
    """

    entry: str
    seconds: float
    units: Mapping[str, float]
    kernel: Resident | None = None
    phases: Phases | None = None
    sectors: float | None = None

    @property
    def binding(self) -> str:
        """What takes longest: a unit, or the two of which one waits for the other."""
        if not self.units:
            return "cuBLAS"
        unit = multiplier(self.units)
        both = {f"{unit} + shared": self.units.get(unit, 0.0) + self.units.get("shared", 0.0)}
        every = {**self.units, **(both if self.phases else {})}
        return max(every, key=every.__getitem__)


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU, the bytes a second that a copy moves on it, and its kernels by their sources."""

    gpu: Architecture
    copied: float
    resident: dict[str, Resident] = field(default_factory=dict)


def launches(plan: Plan, machine: Machine) -> list[Needs]:
    """All launches of a plan, in order."""
    return [
        needs(plan, step, at, call, machine)
        for step in plan.steps
        for at, call in enumerate(lower(plan, step, machine.gpu))
    ]


def needs(plan: Plan, step: Step, at: int, call: DeviceCall, machine: Machine) -> Needs:
    """One launch, the ``at``-th of its step."""
    if isinstance(call, BlasCall):
        return by_cublas(call, machine)
    if at:
        return adding(call, machine)
    match step:
        case Permute() | Elementwise():
            return moving(plan, step, call, machine)
        case Reduce():
            return reducing(plan, step, call, machine)
        case Gett(blocking=Share() as share):
            return multiplying(plan, step, share, call, machine)
        case Gett(blocking=HopperShare() as share):
            return by_wgmma(plan, step, share, call, machine)
    raise ValueError(f"{step} is not by our own kernels")


# --- units ------------------------------------------------------------------------------------


def clocks(found: Mapping[str, float], warps: float, gpu: Architecture) -> dict[str, float]:
    """The clocks of a multiprocessor in which each unit does the instructions of so many warps."""
    rates = {"float": gpu.rates.single / 32, "double": gpu.rates.double / 32, **PER_CLOCK}
    each = {name: warps * found.get(name, 0) / per for name, per in rates.items()}
    return {
        "issue": warps * instructions(Counter(found)) / ISSUED,
        "float": max(each["float"], each["multiply"]),
        "double": each["double"],
        "integer": max(each["integer"] + each["convert"], each["special"]),
        "shared": warps * found.get(WAVEFRONTS, 0),
    }


def busy(found: Mapping[str, float]) -> float:
    """The clocks in which units that work beside each other are done.

    Those that multiply wait for what is read from shared memory. On an H100 both took turns, by
    every tile of 23, however many blocks were resident: their clocks add up.
    """
    multiplying = found.get(multiplier(found), 0.0) + found["shared"]
    return max(found["issue"], found["integer"], multiplying)


def multiplier(found: Mapping[str, float]) -> str:
    """The unit that multiplies."""
    return max(("tensor", "float", "double"), key=lambda unit: found.get(unit, 0.0))


def summed(*parts: tuple[float, Mapping[str, float]]) -> dict[str, float]:
    """The clocks of several phases, each so many times."""
    return {
        unit: sum(times * each.get(unit, 0.0) for times, each in parts)
        for unit in dict.fromkeys(unit for _, each in parts for unit in each)
    }


def resident(call: KernelCall, machine: Machine) -> Resident:
    """The kernel of a launch; each source is compiled once."""
    target = call.architecture or str(machine.gpu.capability)
    if call.source not in machine.resident:
        made = compiled(call.source, target)
        used = usage_in(made.log)
        blocks = blocks_of(used, prod(call.block), call.shared, machine.gpu)
        machine.resident[call.source] = Resident(parsed(made.code), used, blocks)
    return machine.resident[call.source]


# --- products ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tiles:
    """What the busiest multiprocessor does: ``own`` tiles of some steps, ``beside`` at once.

    ``around`` and ``step`` are the clocks of each unit before and after the steps, and in each. A
    step takes ``latency`` clocks at least, and each tile ``begins`` with so many.
    """

    own: int
    beside: int
    steps: int
    around: Mapping[str, float]
    step: Mapping[str, float]
    latency: float
    begins: float

    @property
    def clocks(self) -> float:
        """From the first block's beginning to the last one's end."""
        step = max(self.latency, self.beside * busy(self.step))
        each = self.begins + self.beside * busy(self.around) + self.steps * step
        return self.own / self.beside * each

    @property
    def units(self) -> dict[str, float]:
        """The clocks in which each unit is busy."""
        return summed((self.own, self.around), (self.own * self.steps, self.step))


def product(
    call: KernelCall,
    machine: Machine,
    tiles: Tiles,
    moved: tuple[float, float],
    counted: Phases,
) -> Needs:
    """The launch of a product that moves so many bytes of L2 and of DRAM."""
    gpu, (l2, dram) = machine.gpu, moved
    units = {unit: each / gpu.clock for unit, each in tiles.units.items()}
    units |= {"L2": l2 / gpu.delivered, "DRAM": dram / machine.copied}
    kernel = resident(call, machine)
    hidden = gpu.costs.hidden if kernel.blocks > 1 else gpu.costs.hidden_alone
    seconds = gpu.costs.launch + overlapped(
        hidden, tiles.clocks / gpu.clock, units["L2"], units["DRAM"]
    )
    return Needs(call.entry, seconds, units, kernel, counted)


def multiplying(plan: Plan, step: Gett, share: Share, call: KernelCall, machine: Machine) -> Needs:
    """A product by mma.sync or the CUDA cores."""
    gpu, tile = machine.gpu, share.tile
    problem = problem_of(step, held_by(plan, step))
    work, kernel = problem.workload(gpu), resident(call, machine)
    warps, tensor = tile.threads // 32, isinstance(tile, TensorTile)
    stored = tile.l * tile.m * tile.n * problem.d.size / tile.threads
    counted = phases(kernel.code, *unit_of(problem, tile), stored)
    if not tensor:
        counted.step[WAVEFRONTS] -= (1 - BROADCAST) * counted.step[READS]
    in_step = summed(
        (1, clocks(counted.step, warps, gpu)),
        (seldom_share(tile), clocks(counted.seldom, warps, gpu)),
        (tensor, {"tensor": multiply_adds(tile) / rate(gpu, tile, problem.dtype)}),
    )
    own = ceil(share.items(work.extents) / gpu.multiprocessors)
    tiles = Tiles(
        own,
        max(1, min(own, kernel.blocks)),
        ceil(min(share.part_k, work.extents.k) / tile.k),
        clocks(counted.before + counted.after, warps, gpu),
        in_step,
        gpu.latency / (tile.stages - 1 if tensor else AHEAD),
        gpu.costs.block,
    )
    l2, dram = traffic(work, share, gpu)
    return product(call, machine, tiles, (l2, dram + call.scratch), counted)


def multiply_adds(tile: Tile) -> int:
    """Of a step of a tile."""
    return tile.l * tile.m * tile.n * tile.k


def unit_of(problem: Problem, tile: Tile) -> tuple[str, float]:
    """The instruction that multiplies, and how many of them a warp has in a step."""
    real = 4 if is_complex(problem.dtype) else 1
    each_warp = real * multiply_adds(tile) / (tile.threads // 32)
    if isinstance(tile, CoreTile):
        return CORES.get(problem.dtype, "IMAD"), each_warp / 32
    arithmetic = tile.arithmetic
    rows = 8 if arithmetic.unit == "F64<4>" else 16
    name = TENSOR.get(arithmetic.rate, "HMMA")
    return name, each_warp * arithmetic.products / (rows * 8 * arithmetic.k)


def seldom_share(tile: Tile) -> float:
    """Which part of all warps and steps makes the tables of k."""
    if isinstance(tile, CoreTile):
        return min(1.0, tile.k / tile.threads)
    return 2 * tile.k / tile.depth


def by_wgmma(
    plan: Plan, step: Gett, share: HopperShare, call: KernelCall, machine: Machine
) -> Needs:
    """A product by TMA and wgmma: a warpgroup has 64 rows of a tile, 32 bytes of k at a time."""
    gpu, tile, held = machine.gpu, share.tile, held_by(plan, step)
    found, kernel = cut(boxed(step, held), tile), resident(call, machine)
    assert found is not None, "the plan has boxes that TMA reads"
    size, warps = found.problem.a.size, tile.multipliers // 32
    products = tile.m / (64 * tile.groups) * tile.STEP_BYTES / 32
    stored = tile.m * tile.n * found.problem.d.size / tile.multipliers
    counted = phases(kernel.code, WGMMA, products, stored)
    peak = gpu.rates.half if size == 2 else gpu.rates.tf32
    own = ceil(found.tiles * share.parts / gpu.multiprocessors)
    tiles = Tiles(
        own,
        max(1, min(own, kernel.blocks)),
        share.part_steps(found.steps),
        clocks(counted.before + counted.after, warps, gpu),
        clocks(counted.step, warps, gpu) | {"tensor": tile.m * tile.n * tile.depth(size) / peak},
        gpu.latency / (tile.stages - 1),
        gpu.costs.wgmma_tile,
    )
    l2, dram = wgmma_traffic(found, problem_of(step, held).workload(gpu), gpu)
    return product(call, machine, tiles, (l2, dram + call.scratch), counted)


def adding(call: KernelCall, machine: Machine) -> Needs:
    """Parts of results, read once; the results are small beside them."""
    gpu = machine.gpu
    cached = call.scratch < gpu.costs.cached * gpu.l2_bytes
    dram = 0.0 if cached else call.scratch / machine.copied
    units = {"L2": call.scratch / gpu.delivered, "DRAM": dram}
    return Needs(call.entry, gpu.costs.launch + max(units.values()), units)


def by_cublas(call: BlasCall, machine: Machine) -> Needs:
    """A product by cuBLAS, as the planner's model has it: its code is not seen."""
    sizes, types = (call.batch, call.m, call.n, call.k), (call.a.dtype, call.d.dtype)
    gpu = replace(machine.gpu, dram=machine.copied / machine.gpu.costs.streamed)
    return Needs(call.name, blas_seconds(sizes, types, call.compute, call.dtype, gpu), {})


# --- passes over memory -----------------------------------------------------------------------


def moving(plan: Plan, step: Permute | Elementwise, call: KernelCall, machine: Machine) -> Needs:
    """A permutation or an elementwise operation: every warp goes the longest way once."""
    gpu, moved = machine.gpu, step_bytes(plan, step)
    made = tiling(plan, step, gpu)
    slots = (step.target.slot, *(each.view.slot for each in sources_of(step)))
    sizes = [item_size(plan.slots[slot].tensor.dtype) for slot in slots]
    sectors = sum(touched(made, at, size).count for at, size in enumerate(sizes))
    blocks = prod(call.grid) / gpu.multiprocessors
    units = clocks(straight(resident(call, machine).code), blocks * WARPS_OF_A_PASS, gpu)
    units["shared"] += (
        blocks * conflicts(made, sizes) + scattered(made, sizes) / gpu.multiprocessors
    )
    return passing(call, machine, units, moved, SECTOR * sectors / moved)


def conflicts(made: Tiling, sizes: Sequence[int]) -> int:
    """Wavefronts of a tile's sources in shared memory beyond the least."""
    turned = (at for at, (kind, _) in enumerate(made.access, 1) if kind == "TILE")
    both = (wavefronts(made, at, sizes[at]) for at in turned)
    return sum(done - least for done, least in both)


def scattered(made: Tiling, sizes: Sequence[int]) -> float:
    """Lines that accesses touch beyond the least; L1 looks one up in a clock."""
    every = [touched(made, at, size, LINE) for at, size in enumerate(sizes)]
    return sum(max(each.count - each.least, 0) for each in every)


def sources_of(step: Permute | Elementwise) -> Sequence[Source]:
    """What a step reads."""
    return (step.source,) if isinstance(step, Permute) else step.sources


def reducing(plan: Plan, step: Reduce, call: KernelCall, machine: Machine) -> Needs:
    """A reduction: as many rounds of the loop that reads as its bytes ask for."""
    moved = step_bytes(plan, step)
    code = resident(call, machine).code
    found, read = reading(code)
    warps = moved / (32 * read) / machine.gpu.multiprocessors
    return passing(call, machine, clocks(found, warps, machine.gpu), moved, 1.0)


def passing(
    call: KernelCall, machine: Machine, busy: Mapping[str, float], moved: int, sectors: float
) -> Needs:
    """A launch that moves bytes once, ``sectors`` times as many between L2 and its blocks."""
    gpu = machine.gpu
    units = {unit: each / gpu.clock for unit, each in busy.items()}
    units |= {"L2": sectors * moved / gpu.delivered, "DRAM": moved / machine.copied}
    seconds = gpu.costs.launch + max(units.values())
    return Needs(call.entry, seconds, units, resident(call, machine), None, sectors)
