"""What cuBLAS would take for a product, by its shape.

Which kernels cuBLAS has is not published: it is taken to have tiles of a few sizes, to split a long
k where tiles are few, and to reach what an H100 did in large products as tiles of that size can.
"""

from math import ceil
from typing import NamedTuple

from contract.descriptors.compute_types import ComputeType, is_complex, item_size
from contract.machines.gpu import Architecture

__all__ = ["blas_compute", "blas_seconds"]


class _Tile(NamedTuple):
    m: int
    n: int
    efficiency: float


_TILES = (
    _Tile(128, 128, 0.88),
    _Tile(64, 64, 0.80),
    _Tile(32, 32, 0.75),
    _Tile(256, 4, 0.20),
    _Tile(4, 256, 0.20),
)
LEAST_K = 256  # of a part, where k is split

# What a compute type of float32 lets cuBLAS do to an input. float16 is never one of them: it has
# fewer exponents than float32, and 16F promises no overflow; tf32 has as many bits.
_SINGLE = {
    ComputeType.TF32: "32F_FAST_TF32",
    ComputeType.F16: "32F_FAST_TF32",
    ComputeType.BF16: "32F_FAST_16BF",
}
# The column of Rates for each of cuBLAS's types, None: that of the CUDA cores.
_UNITS = {"32F_FAST_TF32": "tf32", "32F_FAST_16BF": "half", "64F": "f64", "32F": None}


def blas_compute(
    factors: str, dtype: str, compute: ComputeType | None, architecture: Architecture
) -> str:
    """cuBLAS's name of how ``factors`` are multiplied and summed in ``dtype``.

    Never less than ``compute`` promises, and no tf32 where the architecture may not use it.
    """
    if dtype in ("float64", "complex128"):
        return "64F"
    if factors in ("float16", "bfloat16") or compute not in _SINGLE:
        return "32F"
    found = _SINGLE[compute]
    if found == "32F_FAST_TF32":
        return found if architecture.tf32 else "32F"
    return found if architecture.rates.half and not is_complex(dtype) else "32F"


def blas_seconds(
    sizes: tuple[int, int, int, int],
    types: tuple[str, str],
    compute: str,
    dtype: str,
    architecture: Architecture,
) -> float:
    """``sizes`` count, m, n, k; ``types`` those of A and B, and of D."""
    count, m, n, k = sizes
    factor, result = map(item_size, types)
    multiplying = min(
        _tile_seconds(sizes, tile, _rate(types[0], compute, dtype, architecture), architecture)
        for tile in _TILES
    )
    moved = count * ((m * k + k * n) * factor + m * n * result)
    begins = architecture.costs.launch + architecture.costs.blas
    streamed = architecture.costs.blas_streamed * architecture.dram
    return begins + max(multiplying, moved / streamed)


def _rate(factors: str, compute: str, dtype: str, architecture: Architecture) -> float:
    """Multiply-adds per clock of a multiprocessor."""
    rates, costs = architecture.rates, architecture.costs
    reached = {"tf32": costs.blas_tf32, "half": costs.blas_half, "f64": costs.blas_f64}
    unit = "half" if factors in ("float16", "bfloat16") else _UNITS[compute]
    tensor = 0.0 if unit is None else reached[unit] * float(getattr(rates, unit))
    return max(tensor / (4 if is_complex(dtype) else 1), costs.blas_core * rates.core(dtype))


def _tile_seconds(
    sizes: tuple[int, int, int, int], tile: _Tile, rate: float, architecture: Architecture
) -> float:
    count, m, n, k = sizes
    tiles = count * ceil(m / tile.m) * ceil(n / tile.n)
    parts = min(max(architecture.multiprocessors // tiles, 1), ceil(k / LEAST_K))
    own = ceil(tiles * parts / architecture.multiprocessors)
    each = tile.m * tile.n * ceil(k / parts) / (rate * tile.efficiency)
    return own * (architecture.costs.blas_tile + each) / architecture.clock
