"""What products by tiles need of compiled code: the shape of a tile, and a table of functions."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from contract.execution.compiled_code import Kernel
from contract.host.compiled.linking import Linker
from contract.host.kernels.protocol import BoxKernel, TileShape
from contract.host.resources.views import Array, address
from contract.planner.host.tile_blocks import SQUARE
from contract.support.apart import apart

__all__ = ["multiply_boxes", "tile_shape"]

# The kernels for some types are a table. A row for A and one for B say how they are packed: the
# addresses of functions, then rows of a whole panel and of a grain of it, bytes of an element and
# from one row to the next, rows of a square that are turned, and whether elements are copied as
# they are. The third row has the functions that multiply a tile, and that write four at once.
RUNS, STEPS, SQUARES, ELEMENTS, ZEROS, WHOLE, GRAIN, SIZE, PART, TURNED, PLAIN = range(11)
ENTRIES = PLAIN + 1
MULTIPLY, JOIN_BATCHES = range(2)

BOXES = Kernel("tiles", "part")
THIRDS = 3  # of a tile's columns: a narrower one has one of them, or two


@cache
def _registers() -> tuple[int, int]:
    """Bytes of a vector register of this processor, and how many sums a tile keeps in them."""
    return apart(_asked_registers)


def _asked_registers() -> tuple[int, int]:
    import llvmlite.binding as llvm  # type: ignore[import-untyped]  # some 40 ms

    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 64, 24  # of 32
    if features.get("avx2"):
        return 32, 12  # of 16
    return 16, 12 if llvm.get_default_triple().startswith("x86") else 24


def tile_shape(dtype: np.dtype[Any]) -> TileShape:
    """The tile for a type: a complex sum takes two registers, so its tile has one vector of rows.

    Twelve sums of each vector hide the latency of multiply-adds; more columns than rows of
    vectors, because a row is loaded and a column is an operand from memory.
    """
    vector, sums = _registers()
    real = dtype.itemsize // (2 if dtype.kind == "c" else 1)
    return TileShape(1 if dtype.kind == "c" else 2, vector // real, sums // 2, sums // 2 // THIRDS)


def multiply_boxes(
    a: np.dtype[Any], b: np.dtype[Any], dtype: np.dtype[Any], linker: Linker
) -> BoxKernel:
    """The function for operands of such types."""
    kernels = [*_packers("A", a, dtype), *_packers("B", b, dtype), *_multipliers(dtype)]
    functions = linker.shared(BOXES, *kernels)

    @cache
    def linked() -> tuple[Any, ...]:
        share, boxes, *found = functions()
        table = _table(a, b, dtype, found)
        return share, boxes, table, address(table)

    def run(given: Sequence[int], shares: int, wakes: bool) -> None:
        share, boxes, _, table = linked()
        share(boxes, (table, *given), shares, shares, wakes)

    return run


def _packers(panels: str, source: np.dtype[Any], dtype: np.dtype[Any]) -> list[Kernel]:
    """The functions that pack A, or B: RUNS, STEPS, SQUARES, ELEMENTS, ZEROS."""
    moved = "float64" if (panels, dtype.name) == ("B", "complex64") else dtype.name  # parts stay
    own, both = (panels, moved), (panels, source.name, dtype.name)
    if source == dtype:
        both = panels, moved, moved
    given = {"runs": own, "steps": own, "squares": own, "elements": both, "zeros": own}
    return [Kernel("tiles", name, types) for name, types in given.items()]


def _multipliers(dtype: np.dtype[Any]) -> list[Kernel]:
    """The functions that multiply a tile: MULTIPLY, JOIN_BATCHES."""
    return [Kernel("tiles", name, (dtype.name,)) for name in ("multiplier", "batch_joiner")]


def _table(
    a: np.dtype[Any], b: np.dtype[Any], dtype: np.dtype[Any], functions: Sequence[int]
) -> Array:
    """How A is packed, how B is, and what tiles are multiplied with."""
    shape, size = tile_shape(dtype), dtype.itemsize
    split = 2 if dtype.kind == "c" else 1
    left = (shape.rows, shape.lanes, size, size // split, SQUARE // split, a == dtype)
    right = (shape.columns, shape.grain, size, size, SQUARE, b == dtype)
    packs_a, packs_b, tile = functions[:WHOLE], functions[WHOLE : 2 * WHOLE], functions[2 * WHOLE :]
    rows = (*packs_a, *left), (*packs_b, *right), (*tile, *[0] * (ENTRIES - len(tile)))
    return np.array(rows, np.int64)
