"""Elementwise passes, compiled: tiles are loaded where that is needed, combined, and written.

Threads of a team share the tiles. An operand that is converted or has another fastest dimension
is copied into a buffer tile by tile, the others are read where they lie.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from contract.operators import BinaryOperator
from contract.run.host_kernels import PassKernel, TileSource
from contract.run.host_views import Array, address
from contract.run.numba_combinations import COMBINED, combination, combiner
from contract.run.numba_copies import copy_region, is_copied
from contract.run.numba_team import PART_ARGUMENTS, Team
from contract.run.numba_tools import address_of, call_address, compiled, integers, load
from contract.workspace import rounded

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


def combined_pass(
    extents: Sequence[int],
    blocks: Sequence[int],
    sources: Sequence[TileSource],
    target: Sequence[int],
    dtype: str,
    operators: Sequence[BinaryOperator],
    team: Team,
) -> PassKernel | None:
    """target = ((f1 * one o f2 * two) o f3 * three) in tiles of ``blocks``; None: not compiled.

    Strides are in elements. The factors are real.
    """
    if dtype not in COMBINED or 0 in extents:
        return None
    made = _Pass(extents, blocks, sources, target, np.dtype(dtype), operators)
    return PassKernel(made.runner(team), made.lanes(team) * made.lane) if made.is_compiled else None


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
        shapes: list[int] = []
        self.is_compiled = True
        for bits in range(1 << len(uneven)):
            sizes = list(self._blocks)
            for bit, at in enumerate(uneven):
                sizes[at] = extents[at] % sizes[at] if bits >> bit & 1 else sizes[at]
            shapes += self._shape(sizes)
        bit_of = {at: 1 << bit for bit, at in enumerate(uneven)}
        loops = [(counts[at], bit_of.get(at, 0), *self._steps(at)) for at in cuts]
        code = combiner(dtype.name) if self.is_compiled else 0
        numbers = len(sources), len(cuts), self.lane, code
        self._table = np.array([*numbers, *np.ravel(loops), *ends[:-1], *shapes], np.int64)

    def parts(self, team: Team) -> int:
        """How many parts the tiles are given in."""
        many = max(PARTS * team.workers.threads, self._elements // SLICE_WORK)
        most = min(self._count, many)
        return max(min(most, self._elements // THREAD_WORK), 1)

    def lanes(self, team: Team) -> int:
        """How many threads have a buffer."""
        return min(self.parts(team), team.workers.threads)

    def runner(self, team: Team) -> Callable[[Sequence[int], int, Sequence[float] | None], None]:
        """The function of a PassKernel; it keeps the tables."""
        table, real = address(self._table), np.zeros((), self._dtype).real.dtype
        parts, wakes, ones = self.parts(team), self._elements >= WAKING_WORK, np.ones(3, real)
        unscaled = address(ones)

        def run(addresses: Sequence[int], room: int, factors: Sequence[float] | None) -> None:
            one, two, *third, to = addresses
            scales = ones if factors is None else np.array([*factors, 1][:3], real)
            scaled = unscaled if factors is None else address(scales)
            given = table, room, scaled, one, two, third[0] if third else two, to
            team.run(_part_address(), given, self._count, parts, wakes)

        return run

    def _buffer_bytes(self, source: TileSource) -> int:
        return 0 if source.buffer is None else rounded(source.size * self._dtype.itemsize)

    def _steps(self, at: int) -> list[int]:
        """Bytes from one tile to the next along a dimension, in every operand and the target."""
        size = self._blocks[at]
        steps = [each.strides[at] * np.dtype(each.dtype).itemsize for each in self._sources]
        return [size * step for step in (*steps, self._target[at] * self._dtype.itemsize)]

    def _shape(self, extents: Sequence[int]) -> list[int]:
        """How tiles of these extents are loaded and combined."""
        entries: list[int] = []
        strides = []
        for source in self._sources:
            strides.append(source.strides if source.buffer is None else source.buffer)
            entries += self._load(source, extents)
        found = combination(
            extents, [*strides, self._target], self._dtype.itemsize, self._operators
        )
        if found is None:
            self.is_compiled = False
            return entries
        self._tables.append(found)
        return [*entries, address(found)]

    def _load(self, source: TileSource, extents: Sequence[int]) -> tuple[int, int, int]:
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


# --- tiles ------------------------------------------------------------------------------------


@compiled
def _run_tiles(given: int, begin: int, end: int, lane: int) -> None:
    """Tiles begin..end; given are the addresses of table, buffers, factors, operands, target."""
    table = load(given, 0)
    operands, cuts = load(table, OPERANDS), load(table, CUTS)
    width = STEPS + operands + 1
    loops = carray(integers(table + 8 * NUMBERS), (cuts, width))
    buffers = table + 8 * (NUMBERS + cuts * width)
    shapes, entries = buffers + 8 * operands, LOADED * operands + 1
    room = load(given, 1) + lane * load(table, LANE)
    places = np.empty(3, np.int64)
    for tile in range(begin, end):
        for each in range(3):
            places[each] = load(given, 3 + each)
        to, at, bits = load(given, 6), tile, 0
        for cut in range(cuts):
            count = loops[cut, COUNT]
            here, at = at % count, at // count
            bits |= loops[cut, BIT] if here == count - 1 else 0
            for each in range(operands):
                places[each] += here * loops[cut, STEPS + each]
            to += here * loops[cut, STEPS + operands]
        shape = shapes + 8 * bits * entries
        for each in range(operands):
            copier = load(shape, LOADED * each)
            if copier != 0:
                copied, units = load(shape, LOADED * each + 1), load(shape, LOADED * each + 2)
                buffer = room + load(buffers, each)
                call_address(copier, (copied, places[each], buffer, 0, units))
                places[each] = buffer
        third = places[2] if operands == 3 else places[1]
        combined = load(shape, entries - 1)
        factors = load(given, 2)
        one, two = places[0], places[1]
        call_address(load(table, COMBINER), (combined, one, two, third, to, factors))


@cache
def _part_address() -> int:
    return address_of(_run_tiles, PART_ARGUMENTS)
