"""The constants of a processor's model that are fitted to a machine, by name."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from contract.machines.cpu import Cpu

__all__ = ["RANGE", "constants", "with_constants"]

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


def constants(cpu: Cpu) -> dict[str, float]:
    """The values of the constants that are fitted, those that the processor has."""
    names = CONSTANTS if cpu.tiling is None else (*CONSTANTS, *OF_TILES)
    return {name: _value(cpu, name) for name in names}


def with_constants(cpu: Cpu, values: Mapping[str, float]) -> Cpu:
    """The processor with these constants in place of its own."""
    for name, value in values.items():
        cpu = _with(cpu, name.split("."), value)
    return cpu


def _value(cpu: Cpu, name: str) -> float:
    found: Any = cpu
    for part in name.split("."):
        found = getattr(found, part)
    return float(found)


def _with(owner: Any, name: Sequence[str], value: float) -> Any:
    """The dataclass with one of its fields, or of theirs, replaced."""
    first, *rest = name
    return replace(owner, **{first: _with(getattr(owner, first), rest, value) if rest else value})
