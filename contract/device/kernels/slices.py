"""Products of float64 by the 8-bit tensor cores: as many slices of 8 bits as the data need.

Rows of A and columns of B are written as sums of slices that have every digit of every element.
The product is the sum of all products of two slices, each exact; only what is below the roundoff
of sum |A| |B| is left out. Data that are not finite, or whose rows span more powers of 2 than
MOST_SLICES hold, are left to the kernels of float64: what the device finds decides, nobody waits.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, prod

from contract.descriptors.compute_types import is_complex, item_size
from contract.device.kernels.condition import Condition, begun, conditional_stub, headers
from contract.device.kernels.gett import HEADERS, MainLoop, gett_calls, multiply, tensor_tile
from contract.machines.gett_model import best_shares
from contract.machines.gpu import Architecture
from contract.machines.gpu_kernels import SLICE_TILES, TensorTile
from contract.machines.gpu_tiles import Share
from contract.plan.steps import Gemm, Gett, Plan, Scalar
from contract.planner.device.launch import Arguments, KernelCall, Pointer, PointerKind
from contract.planner.device.loops import Dimension, capacity, put_loop
from contract.planner.device.names import type_name
from contract.planner.device.problem import (
    NOTHING,
    A,
    B,
    Problem,
    Tensor,
    factor_type,
    held_by,
    problem_of,
)

__all__ = ["MOST_SLICES", "Room", "slice_calls", "slices_gain", "why_not_sliced"]

MOST_SLICES = 12  # of a factor; the rows of float64 may then span 2^40
ROWS, STEP, THREADS = 32, 64, 256  # of a Panel: rows of a block, k's of a step
PASSES = 3  # launches before the product
GAIN = 1.5  # how much faster slices must be: the model is rough
MOST_SCRATCH = 1 << 33  # bytes
NEED_BYTES, NATIVE_AT = 24, 16  # the struct Need, and where its word ``native`` is


@dataclass(frozen=True, slots=True)
class Room:
    """Where scratch memory has the slices: sizes in digits, which are bytes.

    A row of A has ``depth`` digits in each slice: k's, padded, twice where numbers are complex;
    B has as many in each of its ``planes``. ``parts`` bytes are those that the kernels of float64
    need: they have the memory of the slices when they are to run.
    """

    rows: int
    columns: int
    depth: int
    planes: int
    parts: int

    @classmethod
    def of(cls, problem: Problem, parts: int) -> "Room":
        extents, halves = problem.extents, 2 if is_complex(problem.dtype) else 1
        depth = halves * ceil(extents.k / STEP) * STEP
        return cls(extents.l * extents.m, extents.l * extents.n, depth, halves, parts)

    @property
    def terms(self) -> int:
        """0 where there is nothing to multiply."""
        return self.rows * self.columns * self.depth

    @property
    def slice_a(self) -> int:
        return self.rows * self.depth

    @property
    def slice_b(self) -> int:
        return self.columns * self.depth

    @property
    def plane_b(self) -> int:
        return MOST_SLICES * self.slice_b

    @property
    def digits_a(self) -> Pointer:
        return Pointer(PointerKind.SCRATCH)

    @property
    def digits_b(self) -> Pointer:
        return _after(self.digits_a, MOST_SLICES * self.slice_a)

    @property
    def need(self) -> Pointer:
        """The struct Need."""
        end = _after(self.digits_b, self.planes * self.plane_b)
        return replace(end, bytes=max(end.bytes, -(-self.parts // 256) * 256))

    @property
    def exponents_a(self) -> Pointer:
        return _after(self.need, NEED_BYTES)

    @property
    def exponents_b(self) -> Pointer:
        return _after(self.exponents_a, 4 * self.rows)

    @property
    def bytes(self) -> int:
        return self.exponents_b.bytes + 4 * self.columns

    def when(self, native: bool) -> Condition:
        """Whether the device found that slices do not serve."""
        return Condition(replace(self.need, bytes=self.need.bytes + NATIVE_AT), int(native))


def _after(pointer: Pointer, size: int) -> Pointer:
    """The next multiple of 256 bytes after ``size``: digits are read 16 at once."""
    return replace(pointer, bytes=-(-(pointer.bytes + size) // 256) * 256)


def slice_calls(
    plan: Plan, step: Gett | Gemm, architecture: Architecture, chosen: TensorTile | None = None
) -> tuple[KernelCall, ...]:
    """Passes over A and B, the product of their slices, and that of float64 for other data.

    Where slices do not serve or gain, the kernels of float64 alone. ``chosen`` is the tile that
    multiplies slices; None: the best by the model.
    """
    problem = problem_of(step, held_by(plan, step))
    blocking = step.blocking if isinstance(step, Gett) else None
    share = blocking if isinstance(blocking, Share) else None
    alone = gett_calls(plan, step, architecture, share)
    room = Room.of(problem, max((call.scratch for call in alone), default=0))
    if not room.terms:
        return alone
    choice = _choice(problem, room, architecture) if chosen is None else chosen
    if isinstance(choice, str):
        return _because(choice, alone)
    instead = gett_calls(plan, step, architecture, share, room.when(native=True))
    calls = (
        *_passes(problem, room),
        _product(problem, room, choice, architecture),
        *_because("for data that slices do not serve", instead),
    )
    return tuple(replace(call, scratch=room.bytes) for call in calls)


def slices_gain(plan: Plan, step: Gett | Gemm, architecture: Architecture) -> bool:
    """Whether slices take less time than float64 does, by the model."""
    return why_not_sliced(plan, step, architecture) is None


def why_not_sliced(plan: Plan, step: Gett | Gemm, architecture: Architecture) -> str | None:
    """Why float64 serves better than slices; None where it does not."""
    problem = problem_of(step, held_by(plan, step))
    room = Room.of(problem, 0)
    if not room.terms:
        return "there is nothing to sum"
    choice = _choice(problem, room, architecture)
    return choice if isinstance(choice, str) else None


def _because(reason: str, calls: Iterable[KernelCall]) -> tuple[KernelCall, ...]:
    return tuple(replace(call, reason=f"{call.reason}; {reason}") for call in calls)


# --- the choice -------------------------------------------------------------------------------


def _choice(problem: Problem, room: Room, architecture: Architecture) -> TensorTile | str:
    """The tile that takes the shortest time, or why float64 is better."""
    if problem.dtype not in SLICE_TILES:
        return f"slices are not made of {problem.dtype}"
    if not architecture.rates.int8:
        return "the architecture has no 8-bit tensor cores"
    if room.bytes > MOST_SCRATCH:
        return f"slices of 8 bits would take {room.bytes} bytes of workspace"
    tiles = SLICE_TILES[problem.dtype]
    seconds = {tile: _seconds(problem, room, tile, architecture) for tile in tiles}
    best = min(tiles, key=seconds.__getitem__)
    ((native, _),) = best_shares(problem.workload(architecture), architecture, 1)
    if GAIN * seconds[best] < native:
        return best
    return f"slices of 8 bits do not gain enough: {seconds[best] / native:.1f} times as long"


def _seconds(problem: Problem, room: Room, tile: TensorTile, architecture: Architecture) -> float:
    """Launches, passes over memory, and products by the busiest multiprocessor."""
    count = Share(tile, 1, room.depth).tiles(problem.extents)
    waves = ceil(count / architecture.multiprocessors)
    terms = tile.l * tile.m * tile.n * room.depth * room.planes * tile.arithmetic.products
    rate = architecture.rates.tensor(tile.arithmetic.rate) * tile.efficiency * architecture.clock
    read = room.depth * (room.rows + room.columns) * item_size(problem.dtype)
    written = MOST_SLICES * (room.slice_a + room.planes * room.slice_b)
    passing = (2 * read + written) / architecture.streamed
    return (PASSES + 1) * architecture.costs.launch + passing + waves * terms / rate


# --- the passes -------------------------------------------------------------------------------


def _passes(problem: Problem, room: Room) -> Iterable[KernelCall]:
    panels = ceil(room.rows / ROWS) + ceil(room.columns / ROWS)
    yield _pass(problem, room, "clear", 1, 1, "begins with nothing known of the factors")
    yield _pass(problem, room, "measure", panels, THREADS, "finds how many slices the factors need")
    yield _pass(
        problem, room, "slice", panels, THREADS, "writes their digits", room.when(native=False)
    )


def _pass(
    problem: Problem,
    room: Room,
    entry: str,
    blocks: int,
    threads: int,
    reason: str,
    condition: Condition | None = None,
) -> KernelCall:
    return KernelCall(
        headers=(
            *HEADERS,
            *("cores", "tensor", "gett", "slices", "slicing"),
            *headers(condition),
        ),
        stub=conditional_stub(
            condition,
            entry,
            str(threads),
            f"Slicing<{capacity(len(problem.loops))},",
            f"    {_panel(problem, A)},",
            f"    {_panel(problem, B)}>;",
            method=entry,
        ),
        entry=entry,
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        arguments=_arguments(problem, room, condition),
        reason=reason,
    )


def _panel(problem: Problem, at: int) -> str:
    types = f"{type_name(problem.dtype)}, {'long long' if problem.is_wide else 'int'}"
    factor = factor_type(problem, at, ROWS, STEP)
    return f"Panel<{factor}, {types}, {'A' if at == A else 'B'}, {MOST_SLICES}>"


def _arguments(problem: Problem, room: Room, condition: Condition | None) -> Arguments:
    """The struct Arguments of Slicing."""
    fields, extents = begun(condition), problem.extents
    for pointer in (problem.a.pointer, room.exponents_a, room.digits_a):
        fields.pointer(pointer)
    fields.integers((room.slice_a, 0))
    for pointer in (problem.b.pointer, room.exponents_b, room.digits_b):
        fields.pointer(pointer)
    fields.integers((room.slice_b, room.plane_b))
    fields.pointer(room.need)
    fields.scalar(Scalar.ALPHA if problem.scaled else None, problem.dtype)
    fields.unsigned(*map(len, (problem.l, problem.m, problem.n, problem.k)))
    fields.integers((extents.l, extents.m, extents.n, extents.k, ceil(room.rows / ROWS)))
    for side in (extents.m, extents.n):
        put_loop(fields, replace(NOTHING, extent=side, inside=side))
    loops = problem.loops
    for loop in (*loops, *[NOTHING] * (capacity(len(loops)) - len(loops))):
        put_loop(fields, loop)
    return fields.arguments()


# --- the product ------------------------------------------------------------------------------


def _product(
    problem: Problem, room: Room, tile: TensorTile, architecture: Architecture
) -> KernelCall:
    """A product of matrices of digits, whose rows lie one after the other."""
    packed = _packed(problem, room)
    types = f"{type_name(packed.dtype)}, {'long long' if packed.is_wide else 'int'}"
    main = MainLoop(
        name=f"Sliced<{tensor_tile(packed, tile)}, {tile.arithmetic.unit}, {types}",
        headers=("tensor", "slices"),
        storage=tile.storage(1, room.planes),
        tables=3 * tile.l * (tile.m + tile.n) + 2 * tile.k,
        given=(
            *(room.exponents_a, room.exponents_b, room.need),
            *(room.slice_a, room.slice_b, room.plane_b),
        ),
    )
    return multiply(packed, Share(tile, 1, room.depth), main, architecture, room.when(native=False))


def _packed(problem: Problem, room: Room) -> Problem:
    """The same product of digits in scratch memory, every k of a row side by side."""
    extents, depth = problem.extents, room.depth
    return replace(
        problem,
        a=Tensor(room.digits_a, "int8", 256),
        b=Tensor(room.digits_b, "int8", 256),
        l=_lying(problem.l, extents.m * depth, extents.n * depth),
        m=_lying(problem.m, depth, 0),
        n=_lying(problem.n, 0, depth),
        k=(Dimension(depth, (0, 1, 1, 0)),),
    )


def _lying(loops: Iterable[Dimension], step_a: int, step_b: int) -> tuple[Dimension, ...]:
    """The loops with other steps in A and B: those of their flattened index."""
    done: list[Dimension] = []
    for loop in loops:
        d, _, _, c = loop.strides
        before = prod(each.extent for each in done)
        done.append(replace(loop, strides=(d, step_a * before, step_b * before, c)))
    return tuple(done)
