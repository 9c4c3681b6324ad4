"""Elementwise passes as tables: tiles are loaded where that is needed, combined, and written.

Threads of a team share the tiles. An operand that is converted or has another fastest dimension
is copied into a buffer tile by tile, the others are read where they lie.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from contract.descriptors.layout import fuse
from contract.descriptors.operators import BinaryOperator
from contract.execution.compiled_code import Kernel
from contract.host.compiled.copy_tables import copy_region, is_copied
from contract.host.compiled.linking import Linker
from contract.host.kernels.protocol import PassKernel, TileSource
from contract.host.resources.views import Array, address
from contract.plan.workspace import rounded

__all__ = ["combined_pass"]

THREAD_WORK = 1 << 13  # elements worth a thread that is awake,
WAKING_WORK = 1 << 16  # and one that has to be woken
PARTS = 4  # for each thread
SLICE_WORK = 1 << 22  # elements, between which Python looks for signals
# A pass: operands, loops over tiles, bytes of a thread's buffers, and the address of what combines.
OPERANDS, CUTS, LANE, COMBINER, NUMBERS = range(5)
# Then come the loops: how many tiles there are, a bit for the last one if it is shorter, and the
# bytes from one to the next in each operand and the target; where the buffer of each operand
# begins; and, for every set of such bits, what loads each operand (its address, or 0, its table
# and units) and the table of what combines them.
COUNT, BIT, STEPS = range(3)
LOADED = 3  # entries
NOTHING, SUM, PRODUCT = range(3)  # how a second and a third operand come in, if at all
_CODES = {BinaryOperator.ADD: SUM, BinaryOperator.MUL: PRODUCT}
COMBINED = frozenset({"float32", "float64", "complex64", "complex128"})
# What combines a tile: the two operators, the bytes of a row, for each operand 1 or, where one
# element is its row, 0, and the number of loops; then their extents and the steps of operands and
# target.
FIRST, SECOND, ROW, MOVES, ROW_LOOPS, ROW_NUMBERS, ROW_LOOP = 0, 1, 2, 3, 6, 7, 5

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
        shapes: list[int | Kernel] = []
        self.is_compiled = True
        for bits in range(1 << len(uneven)):
            sizes = list(self._blocks)
            for bit, at in enumerate(uneven):
                sizes[at] = extents[at] % sizes[at] if bits >> bit & 1 else sizes[at]
            shapes += self._shape(sizes)
        bit_of = {at: 1 << bit for bit, at in enumerate(uneven)}
        loops = [(counts[at], bit_of.get(at, 0), *self._steps(at)) for at in cuts]
        combiner = Kernel("combinations", "combiner", (dtype.name,))
        numbers = len(sources), len(cuts), self.lane, combiner
        entries = [*numbers, *np.ravel(loops), *ends[:-1], *shapes]
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
            given = table, room, scaled, one, two, third[0] if third else two, to
            share(part, given, self._count, parts, wakes)

        return run

    def _buffer_bytes(self, source: TileSource) -> int:
        return 0 if source.buffer is None else rounded(source.size * self._dtype.itemsize)

    def _steps(self, at: int) -> list[int]:
        """Bytes from one tile to the next along a dimension, in every operand and the target."""
        size = self._blocks[at]
        steps = [each.strides[at] * np.dtype(each.dtype).itemsize for each in self._sources]
        return [size * step for step in (*steps, self._target[at] * self._dtype.itemsize)]

    def _shape(self, extents: Sequence[int]) -> list[int | Kernel]:
        """How tiles of these extents are loaded and combined."""
        entries: list[int | Kernel] = []
        strides = []
        for source in self._sources:
            strides.append(source.strides if source.buffer is None else source.buffer)
            entries += self._load(source, extents)
        found = _combination(
            extents, [*strides, self._target], self._dtype.itemsize, self._operators
        )
        if found is None:
            self.is_compiled = False
            return entries
        self._tables.append(found)
        return [*entries, address(found)]

    def _load(self, source: TileSource, extents: Sequence[int]) -> tuple[int | Kernel, int, int]:
        """What copies a tile into its buffer."""
        if source.buffer is None:
            return 0, 0, 0
        dtype = np.dtype(source.dtype)
        if not is_copied(dtype, self._dtype):
            self.is_compiled = False
            return 0, 0, 0
        held = [n if at in source.held else 1 for at, n in enumerate(extents)]
        region, *_ = copy_region(held, source.strides, source.buffer, dtype, self._dtype)
        self._tables.append(region.table)
        return region.kernel, address(region.table), region.units


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
    numbers = [*(*codes, NOTHING)[:2], extents[0] * size, *(steps[0] for steps in every[:3])]
    outer = [(n, *(size * steps[at] for steps in every)) for at, n in enumerate(extents) if at]
    loops = [loop for loop in outer if loop[0] > 1] or [(1, 0, 0, 0, 0)]
    return np.array([*numbers, len(loops), *np.ravel(loops)], np.int64)
