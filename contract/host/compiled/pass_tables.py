"""Elementwise passes as tables: tiles are loaded where that is needed, combined, and written.

Threads of a team share the tiles. An operand that is converted or has another fastest dimension
is copied into a buffer tile by tile, the others are read where they lie.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, chain, islice, repeat
from math import prod
from typing import Any, NamedTuple

import numpy as np

from contract.descriptors.layout import fuse
from contract.descriptors.operators import BinaryOperator
from contract.execution.compiled_code import Kernel
from contract.host.compiled.copy_tables import copy_region, is_copied
from contract.host.compiled.linking import Linker
from contract.host.kernels.protocol import PassKernel, TileSource
from contract.host.resources.views import Array, address
from contract.plan.workspace import rounded

__all__ = [
    "COMBINED",
    "MOST",
    "NOTHING",
    "PRODUCT",
    "SUM",
    "CombinedLoop",
    "CombinedRow",
    "PassCall",
    "PassCut",
    "PassShape",
    "PassTable",
    "TileLoad",
    "combined_pass",
]

THREAD_WORK = 1 << 13  # elements worth a thread that is awake,
WAKING_WORK = 1 << 16  # and one that has to be woken
PARTS = 4  # for each thread
SLICE_WORK = 1 << 22  # elements, between which Python looks for signals
NOTHING, SUM, PRODUCT = range(3)  # how a second and a third operand come in, if at all
_CODES = {BinaryOperator.ADD: SUM, BinaryOperator.MUL: PRODUCT}
COMBINED = frozenset({"float32", "float64", "complex64", "complex128"})
MOST = 3  # operands
UNLOADED = 0, 0, 0, 0  # an operand that is read where it lies


class PassTable(NamedTuple):
    """A pass: behind it lie PassCuts, then for every set of bits a PassShape, then MOST TileLoads.

    A bit says of a loop over tiles that it is at its last one, which is shorter.
    """

    operands: int
    cuts: int
    shapes: int
    lane: int  # bytes of a thread's buffers
    combiner: int  # the address of what combines


class PassCut(NamedTuple):
    """A loop over tiles: how many, the bit for the last one, and the bytes from one to the next."""

    tiles: int
    bit: int
    one: int
    two: int
    three: int
    to: int


class PassShape(NamedTuple):
    """Tiles of some shape: the address of the CombinedRow that says how they are combined."""

    row: int


class TileLoad(NamedTuple):
    """How an operand is loaded into its buffer, by a copy of so many units; or not, by 0."""

    copier: int
    table: int
    units: int
    buffer: int  # where it begins


class CombinedRow(NamedTuple):
    """How a tile is combined, row by row; CombinedLoops lie behind it."""

    first: int  # operators
    second: int
    bytes: int  # of a row
    moves_one: int  # 0 where one element is an operand's row, else 1
    moves_two: int
    moves_three: int
    loops: int


class CombinedLoop(NamedTuple):
    """A loop over rows: its extent, and the steps of operands and target in bytes."""

    extent: int
    one: int
    two: int
    three: int
    to: int


class PassCall(NamedTuple):
    """What threads share: addresses of the table, of buffers, real factors, and memory."""

    table: int
    room: int
    factors: int
    one: int
    two: int
    three: int
    to: int


PART = Kernel("passes", "part")


def combined_pass(
    extents: Sequence[int],
    blocks: Sequence[int],
    sources: Sequence[TileSource],
    target: Sequence[int],
    dtype: str,
    operators: Sequence[BinaryOperator],
    linker: Linker,
) -> PassKernel | None:
    """target = ((f1 * one o f2 * two) o f3 * three) in tiles of ``blocks``; None: not compiled.

    Strides are in elements. The factors are real.
    """
    if dtype not in COMBINED or 0 in extents:
        return None
    made = _Pass(extents, blocks, sources, target, np.dtype(dtype), operators)
    if not made.is_compiled:
        return None
    return PassKernel(made.runner(linker), made.lanes(linker.threads) * made.lane)


class _Pass:
    """The table of a pass, and the tables that it refers to by their addresses."""

    def __init__(
        self,
        extents: Sequence[int],
        blocks: Sequence[int],
        sources: Sequence[TileSource],
        target: Sequence[int],
        dtype: np.dtype[Any],
        operators: Sequence[BinaryOperator],
    ) -> None:
        self._blocks, self._sources, self._target = tuple(blocks), sources, target
        self._dtype, self._operators = dtype, operators
        self._tables: list[Array] = []
        self._elements = prod(extents)
        counts = [-(-n // block) for n, block in zip(extents, blocks, strict=True)]
        cuts = [at for at, count in enumerate(counts) if count > 1]
        uneven = [at for at in cuts if extents[at] % self._blocks[at]]
        self._count = prod(counts)
        ends = list(accumulate((self._buffer_bytes(each) for each in sources), initial=0))
        self.lane = ends[-1]
        buffers = ends[:-1]
        shapes: list[PassShape] = []
        loads: list[int | Kernel] = []
        self.is_compiled = True
        for bits in range(1 << len(uneven)):
            sizes = list(self._blocks)
            for bit, at in enumerate(uneven):
                sizes[at] = extents[at] % sizes[at] if bits >> bit & 1 else sizes[at]
            shapes.append(PassShape(self._row(sizes)))
            each = (self._load(*source, sizes) for source in zip(sources, buffers, strict=True))
            loads += chain(*islice(chain(each, repeat(UNLOADED)), MOST))
        bit_of = {at: 1 << bit for bit, at in enumerate(uneven)}
        loops = [PassCut(counts[at], bit_of.get(at, 0), *self._steps(at)) for at in cuts]
        combiner = Kernel("combinations", "combiner", (dtype.name,))
        numbers = len(sources), len(cuts), len(shapes), self.lane, combiner
        entries = [*numbers, *chain(*loops), *chain(*shapes), *loads]
        self._kernels = [(at, x) for at, x in enumerate(entries) if isinstance(x, Kernel)]
        integers = [0 if isinstance(x, Kernel) else x for x in entries]
        self._table = np.array(integers, np.int64)

    def parts(self, threads: int) -> int:
        """How many parts the tiles are given in."""
        many = max(PARTS * threads, self._elements // SLICE_WORK)
        most = min(self._count, many)
        return max(min(most, self._elements // THREAD_WORK), 1)

    def lanes(self, threads: int) -> int:
        """How many threads have a buffer."""
        return min(self.parts(threads), threads)

    def runner(
        self, linker: Linker
    ) -> Callable[[Sequence[int], int, Sequence[float] | None], None]:
        """The function of a PassKernel; it keeps the tables."""
        table, real = address(self._table), np.zeros((), self._dtype).real.dtype
        parts, wakes = self.parts(linker.threads), self._elements >= WAKING_WORK
        ones = np.ones(3, real)
        unscaled = address(ones)
        functions = linker.shared(PART, *(kernel for _, kernel in self._kernels))

        @cache
        def linked() -> tuple[Any, ...]:
            share, part, *found = functions()
            for (at, _), each in zip(self._kernels, found, strict=True):
                self._table[at] = each
            return share, part

        def run(addresses: Sequence[int], room: int, factors: Sequence[float] | None) -> None:
            share, part = linked()
            one, two, *third, to = addresses
            scales = ones if factors is None else np.array([*factors, 1][:3], real)
            scaled = unscaled if factors is None else address(scales)
            # A PassCall, which would take longer to make
            call = table, room, scaled, one, two, third[0] if third else two, to
            share(part, call, self._count, parts, wakes)

        return run

    def _buffer_bytes(self, source: TileSource) -> int:
        return 0 if source.buffer is None else rounded(source.size * self._dtype.itemsize)

    def _steps(self, at: int) -> list[int]:
        """Bytes from one tile to the next along a dimension, in every operand and the target."""
        size = self._blocks[at]
        steps = [each.strides[at] * np.dtype(each.dtype).itemsize for each in self._sources]
        steps += [0] * (MOST - len(steps))
        return [size * step for step in (*steps, self._target[at] * self._dtype.itemsize)]

    def _row(self, extents: Sequence[int]) -> int:
        """How tiles of these extents are combined."""
        strides = [x.strides if x.buffer is None else x.buffer for x in self._sources]
        size = self._dtype.itemsize
        found = _combination(extents, [*strides, self._target], size, self._operators)
        if found is None:
            self.is_compiled = False
            return 0
        self._tables.append(found)
        return address(found)

    def _load(
        self, source: TileSource, buffer: int, extents: Sequence[int]
    ) -> tuple[int | Kernel, int, int, int]:
        """The TileLoad of an operand."""
        if source.buffer is None:
            return UNLOADED
        dtype = np.dtype(source.dtype)
        if not is_copied(dtype, self._dtype):
            self.is_compiled = False
            return UNLOADED
        held = [n if at in source.held else 1 for at, n in enumerate(extents)]
        region, *_ = copy_region(held, source.strides, source.buffer, dtype, self._dtype)
        self._tables.append(region.table)
        return region.kernel, address(region.table), region.units, buffer


def _combination(
    extents: Sequence[int],
    strides: Sequence[Sequence[int]],
    size: int,
    operators: Sequence[BinaryOperator],
) -> Array | None:
    """The table for elements of ``size`` bytes; None where there is no compiled code for it.

    ``strides`` (elements) are those of two or three operands and, last, of the target. Along the
    first dimension the target is contiguous, and an operand is as well or has one element.
    """
    codes = [_CODES.get(operator, NOTHING) for operator in operators]
    if len(codes) not in (1, 2) or NOTHING in codes:
        return None
    is_row = bool(extents) and extents[0] > 1
    extents, every = fuse(extents, *strides[:2], strides[-2], strides[-1])  # two: the second again
    if not is_row:  # of one element
        extents, every = (1, *extents), tuple((1, *steps) for steps in every)
    if every[-1][0] != 1 or not {0, 1}.issuperset(steps[0] for steps in every):
        return None
    outer = [
        CombinedLoop(n, *(size * steps[at] for steps in every))
        for at, n in enumerate(extents)
        if at
    ]
    loops = [loop for loop in outer if loop.extent > 1] or [CombinedLoop(1, 0, 0, 0, 0)]
    first, second, *_ = *codes, NOTHING
    one, two, three = (steps[0] for steps in every[:MOST])
    row = CombinedRow(first, second, extents[0] * size, one, two, three, len(loops))
    return np.array([*row, *chain(*loops)], np.int64)
