"""Steps Gett, and Gemm where BLAS does not serve -> launches of the kernels in gett.cuh."""

from dataclasses import dataclass, replace
from math import ceil

from contract.device.kernels.condition import Condition, begun, conditional_stub, headers
from contract.errors import NotSupportedError
from contract.machines.gett_model import share
from contract.machines.gpu import Architecture
from contract.machines.gpu_kernels import CoreTile, TensorTile
from contract.machines.gpu_tiles import Share, resident
from contract.plan.steps import Gemm, Gett, Plan, Scalar
from contract.planner.device.launch import Arguments, KernelCall, Pointer, PointerKind
from contract.planner.device.loops import capacity, put_loop
from contract.planner.device.names import type_name
from contract.planner.device.problem import (
    NOTHING,
    A,
    B,
    Problem,
    addend_type,
    factor_type,
    held_by,
    problem_of,
    written,
)

__all__ = ["MainLoop", "gett_calls", "multiply", "tensor_tile"]

HEADERS = ("types", "operators", "layout", "factors")
MOST_BLOCKS = 1 << 30  # along x; the second dimension of the grid has the rest
STATIC_SHARED = 48 << 10  # bytes of shared memory that a kernel has without asking


@dataclass(frozen=True, slots=True)
class MainLoop:
    """How a block multiplies: the C++ type up to its factors, and the header that has it.

    Beyond what a kernel has without asking, ``storage`` bytes of shared memory hold steps of the
    factors and ``tables`` offsets stand beside them. ``given`` are arguments of its own.
    """

    name: str
    headers: tuple[str, ...]
    storage: int
    tables: int
    given: tuple[Pointer | int, ...] = ()


def gett_calls(
    plan: Plan,
    step: Gett | Gemm,
    architecture: Architecture,
    chosen: Share | None = None,
    condition: Condition | None = None,
) -> tuple[KernelCall, ...]:
    """One launch, or two where parts of k are summed apart; none where D has no elements.

    ``chosen`` is how the work is shared among blocks; None: the cheapest by the model.
    """
    problem = problem_of(step, held_by(plan, step))
    extents = problem.extents
    if 0 in (extents.l, extents.m, extents.n):
        return ()
    chosen = share(problem.workload(architecture), architecture) if chosen is None else chosen
    main = _main(problem, chosen)
    product = multiply(problem, chosen, main, architecture, condition)
    if chosen.parts == 1:
        return (product,)
    return product, _add_parts(problem, chosen, main, condition)


# --- the launches -----------------------------------------------------------------------------


def multiply(
    problem: Problem,
    chosen: Share,
    main: MainLoop,
    architecture: Architecture,
    condition: Condition | None = None,
) -> KernelCall:
    """The launch that multiplies."""
    items = chosen.items(problem.extents)
    return KernelCall(
        headers=_headers(main, condition),
        stub=_stub(problem, chosen, main, "multiply", condition),
        entry="multiply",
        grid=_grid(min(items, _at_once(problem, chosen, architecture))),
        block=(chosen.tile.threads, 1, 1),
        arguments=_arguments(problem, chosen, main, condition),
        reason=chosen.reason,
        shared=_shared(problem, main),
        scratch=chosen.scratch(problem.extents, problem.dtype),
    )


def _at_once(problem: Problem, chosen: Share, architecture: Architecture) -> int:
    """Blocks that go on from tile to tile; those of the CUDA cores do one and make room."""
    if isinstance(chosen.tile, CoreTile):
        return chosen.items(problem.extents)
    work = problem.workload(architecture)
    return max(1, resident(work, chosen.tile, architecture)) * architecture.multiprocessors


def _add_parts(
    problem: Problem, chosen: Share, main: MainLoop, condition: Condition | None
) -> KernelCall:
    return KernelCall(
        headers=_headers(main, condition),
        stub=_stub(problem, chosen, main, "add_parts", condition),
        entry="add_parts",
        grid=_grid(chosen.tiles(problem.extents) - chosen.whole),
        block=(chosen.tile.threads, 1, 1),
        arguments=_arguments(problem, chosen, main, condition),
        reason=f"adds {chosen.parts} parts in order",
        shared=_shared(problem, main),
        scratch=chosen.scratch(problem.extents, problem.dtype),
    )


def _grid(blocks: int) -> tuple[int, int, int]:
    across = min(blocks, MOST_BLOCKS)
    down = ceil(blocks / across)
    if down >= 1 << 16:
        raise NotSupportedError(
            f"A launch has at most {MOST_BLOCKS << 16} blocks: the product takes {blocks}."
        )
    return across, down, 1


def _shared(problem: Problem, main: MainLoop) -> int:
    """Bytes of shared memory to ask for; 0 where the kernel's own suffice."""
    size = main.storage + (8 if problem.is_wide else 4) * main.tables + 64
    return size if size > STATIC_SHARED else 0


# --- the source -------------------------------------------------------------------------------


def _headers(main: MainLoop, condition: Condition | None) -> tuple[str, ...]:
    return (*HEADERS, *main.headers, "gett", *headers(condition))


def _stub(
    problem: Problem, chosen: Share, main: MainLoop, entry: str, condition: Condition | None
) -> str:
    tile = chosen.tile
    width = written(problem, tile).width
    return conditional_stub(
        condition,
        entry,
        f"{tile.threads}, {tile.resident}",
        f"Gett<{type_name(problem.d.dtype)}, {capacity(len(problem.loops))},",
        f"    {main.name},",
        f"        {factor_type(problem, A, tile.m, tile.k)},",
        f"        {factor_type(problem, B, tile.n, tile.k)}>,",
        f"    {addend_type(problem, width)}, {width}, {_shared(problem, main)}>;",
        method=entry,
    )


def _main(problem: Problem, chosen: Share) -> MainLoop:
    types = f"{type_name(problem.dtype)}, {'long long' if problem.is_wide else 'int'}"
    match chosen.tile:
        case CoreTile() as tile:
            shape = (tile.l, tile.m, tile.n, tile.k, tile.thread_m, tile.thread_n)
            lanes = (tile.lanes_m, tile.lanes_n, tile.groups)
            name = f"Cores<CoreTile<{', '.join(map(str, (*shape, *lanes)))}>, {types}"
            return MainLoop(name, ("cores",), 0, 0)
        case TensorTile() as tile:
            storage = tile.storage(problem.a.size, problem.b.size)
            tables = 3 * tile.l * (tile.m + tile.n) + 2 * tile.depth
            name = f"TensorCores<{tensor_tile(problem, tile)}, {tile.arithmetic.unit}, {types}"
            return MainLoop(name, ("tensor",), storage, tables)


def tensor_tile(problem: Problem, tile: TensorTile) -> str:
    """The type TensorTile, with the rows that its threads have."""
    sides = (tile.l, tile.m, tile.n, tile.k, tile.warps_m, tile.warps_n, tile.stages)
    rows = written(problem, tile)
    return f"TensorTile<{', '.join(map(str, (*sides, rows.width, rows.apart, rows.lanes)))}>"


# --- the arguments ----------------------------------------------------------------------------


def _arguments(
    problem: Problem, chosen: Share, main: MainLoop, condition: Condition | None
) -> Arguments:
    """The struct Arguments of Gett."""
    fields, extents = begun(condition), problem.extents
    for given in main.given:
        fields.integers((given,)) if isinstance(given, int) else fields.pointer(given)
    for tensor in (problem.a, problem.b, problem.c, problem.d):
        fields.pointer(None if tensor is None else tensor.pointer)
    fields.pointer(Pointer(PointerKind.SCRATCH) if chosen.parts > 1 else None)
    fields.scalar(Scalar.ALPHA if problem.scaled else None, problem.dtype)
    fields.scalar(Scalar.BETA if problem.c else None, problem.dtype)
    fields.unsigned(*map(len, (problem.l, problem.m, problem.n, problem.k)))
    fields.integers((extents.l, extents.m, extents.n, extents.k))
    tiles = chosen.tiles(extents)
    whole = tiles if chosen.parts == 1 else chosen.whole
    fields.integers((tiles, whole, chosen.items(extents), chosen.part_k))
    for count in (*chosen.sides(extents), chosen.parts):
        put_loop(fields, replace(NOTHING, extent=count, inside=count))
    loops = problem.loops
    for loop in (*loops, *[NOTHING] * (capacity(len(loops)) - len(loops))):
        put_loop(fields, loop)
    return fields.arguments()
