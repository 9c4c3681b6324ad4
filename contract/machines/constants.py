"""The constants of a machine's model that are fitted to it, by name."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from contract.machines.cpu import Cpu
from contract.machines.gpu import Architecture
from contract.machines.gpu_costs import GpuCosts
from contract.machines.machine import Machine

__all__ = ["RANGE", "Fitted", "constants", "with_constants"]

Fitted = TypeVar("Fitted", Cpu, Architecture)
RANGE = 8.0  # a constant stays within this factor of the built-in one
CONSTANTS = (
    "call",
    "memory_bandwidth",
    "near_bandwidth",
    "jump",
    "far_jump",
    "blas_flops.double",
    "blas_flops.single",
    "repacking_bandwidth",
    "far_packing",
    "product",
    "loop_flops.double",
    "loop_flops.single",
    "cache_bandwidth",
    "shared_cache_bandwidth",
    "transpose_rate",
    "permute_rate",
    "panels",
    "block",
)
OF_TILES = (
    "tiling.call",
    "tiling.tile",
    "tiling.batch",
    "tiling.flops.double",
    "tiling.flops.single",
    "tiling.complex_share",
    "tiling.packed.straight",
    "tiling.packed.turned",
    "tiling.packed.single",
    "tiling.scattered",
)


OF_GPU = (
    "clock",
    "dram",
    "l2",
    *(f"costs.{field.name}" for field in fields(GpuCosts)),
)


def constants(machine: Machine) -> dict[str, float]:
    """The values of the constants that are fitted, those that the machine has."""
    return {name: _value(machine, name) for name in _names(machine)}


def _names(machine: Machine) -> tuple[str, ...]:
    match machine:
        case Architecture():
            return OF_GPU
        case Cpu():
            return CONSTANTS if machine.tiling is None else (*CONSTANTS, *OF_TILES)


def with_constants(machine: Fitted, values: Mapping[str, float]) -> Fitted:
    """The machine with these constants in place of its own."""
    for name, value in values.items():
        machine = _with(machine, name.split("."), value)
    return machine


def _value(machine: Machine, name: str) -> float:
    found: Any = machine
    for part in name.split("."):
        found = getattr(found, part)
    return float(found)


def _with(owner: Any, name: Sequence[str], value: float) -> Any:
    """The dataclass with one of its fields, or of theirs, replaced."""
    first, *rest = name
    return replace(owner, **{first: _with(getattr(owner, first), rest, value) if rest else value})
