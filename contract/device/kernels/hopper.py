"""Products of 16-bit numbers, and of float32 as tf32 -> launches of the kernels in hopper.cuh."""

from contract.machines.gpu import Architecture
from contract.machines.gpu_tiles import HopperShare
from contract.plan.steps import Gemm, Gett, Plan, Scalar
from contract.planner.device.boxes import AXES, MAP_BYTES, MOST_MODES, BoxedFactor, Cut, boxed, cut
from contract.planner.device.hopper_model import group, scratch
from contract.planner.device.launch import (
    Fields,
    KernelCall,
    MapType,
    Pointer,
    PointerKind,
    TensorMap,
    entry_stub,
)
from contract.planner.device.loops import divisor
from contract.planner.device.names import type_name
from contract.planner.device.problem import C, D, addend_type, held_by

__all__ = ["hopper_calls"]

HEADERS = ("types", "operators", "layout", "factors", "wgmma", "hopper")
ADDERS = 256  # threads of a block that adds parts


def hopper_calls(
    plan: Plan, step: Gett | Gemm, architecture: Architecture, share: HopperShare
) -> tuple[KernelCall, ...]:
    """One launch, or two where parts of k are summed apart."""
    found = cut(boxed(step, held_by(plan, step)), share.tile)
    assert found is not None, "the plan has boxes that TMA reads"
    product = _product(found, share, architecture)
    if share.parts == 1:
        return (product,)
    return product, _add_parts(found, share, architecture)


def _product(found: Cut, share: HopperShare, architecture: Architecture) -> KernelCall:
    tile = found.tile
    at_once = architecture.multiprocessors * tile.resident
    entry = "hopper" if share.parts == 1 else "hopper_parts"
    return KernelCall(
        headers=HEADERS,
        stub=_stub(found, entry, "multiply" if share.parts == 1 else "multiply_parts"),
        entry=entry,
        grid=(min(found.tiles * share.parts, at_once), 1, 1),
        block=(tile.threads, 1, 1),
        arguments=_arguments(found, share, architecture).arguments(),
        reason=found.reason(share),
        shared=tile.shared,
        scratch=scratch(found, share),
        architecture=f"{architecture.capability}a",
    )


def _add_parts(found: Cut, share: HopperShare, architecture: Architecture) -> KernelCall:
    runs = found.tiles * found.tile.m * found.tile.n // found.width
    return KernelCall(
        headers=HEADERS,
        stub=_stub(found, "hopper_add_parts", "add_parts"),
        entry="hopper_add_parts",
        grid=(runs // ADDERS, 1, 1),
        block=(ADDERS, 1, 1),
        arguments=_arguments(found, share, architecture).arguments(),
        reason=f"adds {share.parts} parts in order",
        scratch=scratch(found, share),
        architecture=f"{architecture.capability}a",
    )


def _stub(found: Cut, entry: str, method: str) -> str:
    tile, problem, width = found.tile, found.problem, found.width
    offset = "long long" if problem.is_wide else "int"
    sizes = tile.m, tile.n, tile.groups, tile.stages
    adds = method == "add_parts"
    return entry_stub(
        entry,
        f"{ADDERS}" if adds else f"{tile.threads}, {tile.resident}",
        f"Hopper<{type_name(problem.d.dtype)}, {offset},",
        f"    HopperTile<{', '.join(map(str, sizes))}>,",
        f"    {_panels(found.a, tile.m)},",
        f"    {_panels(found.b, tile.n)},",
        f"    {addend_type(found.turned, min(width, 2))}, {width}>;",
        method=method,
        qualifier="const __grid_constant__",
    )


def _panels(factor: BoxedFactor, side: int) -> str:
    along = "K" if factor.by_k else "TILE"
    width = factor.run * factor.tensor.size
    return f"Panels<{type_name(factor.tensor.dtype)}, Along::{along}, {width}, {side}>"


# --- the arguments ------------------------------------------------------------------------------


def _arguments(found: Cut, share: HopperShare, architecture: Architecture) -> Fields:
    """The struct Arguments of Hopper."""
    fields, problem = Fields(), found.problem
    for factor in (found.a, found.b):
        fields.tensor_map(_tensor_map(factor))
    fields.pointer(problem.c.pointer if problem.c else None)
    fields.pointer(problem.d.pointer)
    fields.pointer(Pointer(PointerKind.SCRATCH) if share.parts > 1 else None)
    fields.scalar(Scalar.ALPHA if problem.scaled else None, problem.dtype)
    fields.scalar(Scalar.BETA if problem.c else None, problem.dtype)
    _put_order(fields, found, share, architecture)
    fields.unsigned(*(len(kind.loops) for kind in found.kinds))
    for factor in (found.a, found.b):
        _put_modes(fields, factor)
    _put_axes(fields, found)
    return fields


def _put_order(fields: Fields, found: Cut, share: HopperShare, architecture: Architecture) -> None:
    """Tiles and their parts, and how tiles follow each other."""
    tiles, steps, rows = found.tiles, found.steps, group(found, architecture)
    fields.unsigned(tiles, *divisor(tiles), tiles * share.parts, steps, share.part_steps(steps))
    m, n = found.m.count, found.n.count
    fields.unsigned(m, m * n, rows, rows * n)


def _tensor_map(factor: BoxedFactor) -> TensorMap:
    modes, size = factor.modes, factor.tensor.size
    missing = (1,) * (MOST_MODES - len(modes))
    steps = tuple(mode.loop.strides[factor.at] * size for mode in modes[1:])
    return TensorMap(
        factor.tensor.pointer,
        MapType.BITS16 if size == 2 else MapType.TF32,
        (*(mode.loop.extent for mode in modes), *missing),
        (*steps, *(MAP_BYTES * each for each in missing)),
        (*(mode.box for mode in modes), *missing),
        factor.run * size,
    )


def _put_modes(fields: Fields, factor: BoxedFactor) -> None:
    """The structs MapMode; a mode that is missing goes with the axis that stands still."""
    before = 1
    for mode in factor.modes:
        step = mode.box if mode.panels > 1 else 0
        fields.unsigned(mode.axis, before.bit_length() - 1, mode.panels - 1, step)
        before *= mode.panels
    for _ in range(MOST_MODES - len(factor.modes)):
        fields.unsigned(AXES, 0, 0, 0)


def _put_axes(fields: Fields, found: Cut) -> None:
    """The structs Axis. Tiles go along m first, then n, then l; steps along k."""
    before = 1
    for kind in found.kinds:
        within, before = 1, 1 if kind is found.k else before
        for loop, side, count in zip(kind.loops, kind.sides, kind.counts, strict=True):
            fields.align(8)
            fields.unsigned(loop.extent, side, within.bit_length() - 1)
            fields.unsigned(before, *divisor(before), count, *divisor(count), 0)
            fields.integers((loop.strides[D], loop.strides[C]))
            within, before = within * side, before * count
    for _ in range(AXES + 1 - len(found.problem.loops)):
        fields.align(8)
        fields.unsigned(1, 0, 0, 1, 0, 0, 1, 0, 0, 0)
        fields.integers((0, 0))
