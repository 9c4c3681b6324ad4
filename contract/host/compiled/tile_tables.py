"""What products by tiles need of compiled code: the shape of a tile, and a table of functions."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from contract.execution.compiled_code import Kernel
from contract.host.compiled.linking import Linker
from contract.host.kernels.protocol import BoxKernel, TileShape
from contract.host.resources.views import Array, address
from contract.planner.host.tile_blocks import SQUARE
from contract.support.apart import apart

__all__ = [
    "THIRDS",
    "JoinCall",
    "Packer",
    "RunsCall",
    "SquaresCall",
    "StepsCall",
    "TileCall",
    "TileKernels",
    "multiply_boxes",
    "tile_shape",
]


class Packer(NamedTuple):
    """How A or B is packed: the addresses of functions, and the sizes of panels."""

    runs: int
    steps: int
    squares: int
    elements: int
    zeros: int
    whole: int  # rows of a panel,
    grain: int  # and those that vectors are made of
    size: int  # bytes of an element,
    part: int  # and from one row to the next
    turned: int  # rows of a square that are turned
    plain: int  # whether elements are copied as they are


class TileKernels(NamedTuple):
    """How A and B are packed, two Packers; what multiplies a tile, and what writes four."""

    pack_a: int
    pack_b: int
    multiply: int
    join_batches: int


class RunsCall(NamedTuple):
    """Grains of rows for all steps along k; addresses are those of tables of offsets."""

    source: int
    along: int
    depth: int
    across: int
    places: int
    beside: int  # which begin 0, 1.. rows earlier, one more than that; or 0
    height: int
    pitch: int
    gap: int


class StepsCall(NamedTuple):
    """Some rows for all steps along k; the rows that come next lie ``following`` bytes further."""

    source: int
    following: int
    rows: int
    high: int
    along: int
    depth: int
    to: int
    pitch: int
    gap: int


class SquaresCall(NamedTuple):
    """Rows for one step, and those ``apart`` from them; ``ahead`` is the next step."""

    source: int
    ahead: int
    across: int
    places: int
    apart: int
    shift: int
    gap: int


class TileCall(NamedTuple):
    """Two panels to be multiplied.

    Only ``high`` rows and ``used`` columns are written; all are if ``runs`` is 0, and then the rows
    of every vector lie side by side.
    """

    high: int
    used: int
    depth: int
    a: int
    b: int
    d: int
    rows: int  # the address of their offsets,
    places: int  # that of the columns',
    runs: int  # and that of how many rows lie side by side from each on
    add: int
    alpha: int  # its address; 0: it is 1


class JoinCall(NamedTuple):
    """The tiles of four batches, ``pitch`` bytes apart, to be written."""

    source: int
    pitch: int
    target: int
    rows: int
    high: int
    columns: int
    used: int
    add: int


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
        tables = _tables(a, b, dtype, found)
        return share, boxes, address(tables[-1]), tables

    def run(given: Sequence[int], shares: int, wakes: bool) -> None:
        share, boxes, kernels, _ = linked()
        share(boxes, (*given[:-1], kernels), shares, shares, wakes)

    return run


def _packers(panels: str, source: np.dtype[Any], dtype: np.dtype[Any]) -> list[Kernel]:
    """The functions of a Packer, in their order."""
    moved = "float64" if (panels, dtype.name) == ("B", "complex64") else dtype.name  # parts stay
    own, both = (panels, moved), (panels, source.name, dtype.name)
    if source == dtype:
        both = panels, moved, moved
    given = {"runs": own, "steps": own, "squares": own, "elements": both, "zeros": own}
    return [Kernel("packing", name, types) for name, types in given.items()]


def _multipliers(dtype: np.dtype[Any]) -> list[Kernel]:
    """The functions that multiply a tile, and that write four at once."""
    return [Kernel("tiles", name, (dtype.name,)) for name in ("multiplier", "batch_joiner")]


def _tables(
    a: np.dtype[Any], b: np.dtype[Any], dtype: np.dtype[Any], functions: Sequence[int]
) -> tuple[Array, Array, Array]:
    """How A is packed, how B is, and the TileKernels."""
    shape, size = tile_shape(dtype), dtype.itemsize
    split = 2 if dtype.kind == "c" else 1
    left = (shape.rows, shape.lanes, size, size // split, SQUARE // split, a == dtype)
    right = (shape.columns, shape.grain, size, size, SQUARE, b == dtype)
    *packs, multiply, join = functions
    half = len(packs) // 2
    one = np.array(Packer._make((*packs[:half], *left)), np.int64)
    two = np.array(Packer._make((*packs[half:], *right)), np.int64)
    kernels = TileKernels(address(one), address(two), multiply, join)
    return one, two, np.array(kernels, np.int64)
