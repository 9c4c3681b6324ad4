"""Products by tiles on the host: the plan of a compiled kernel, its memory, and its threads."""

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np

from contract.host.kernels.boxes import TABLES, BoxCall, BoxLoop, BoxPlan
from contract.host.kernels.protocol import BoxKernel, HostKernels, TileShape, strided_view
from contract.host.resources.memory import Cutter
from contract.host.resources.prepared import Memory, Prepared, Scalars, product_work
from contract.host.resources.views import Array, address, compact_strides, slabs
from contract.host.resources.workers import Workers
from contract.plan.steps import Gett, Kind, Loop, Plan, Tiles
from contract.plan.workspace import rounded
from contract.planner.host.tile_blocks import SQUARE

__all__ = ["TileProduct", "prepare_tiles"]

THREAD_WORK = 1 << 20  # of steps.product_work, worth a thread that is awake,
WAKING_WORK = 1 << 21  # and one that has to be woken
# Of a share, some ten milliseconds: between shares Python looks for signals. A box of results goes
# as deep into its sum at a time that several boxes are a share.
SHARE_WORK = 1 << 31
BOXES_SHARE = 4
LINE = 64
NEAR_BYTES = 1 << 15  # of a panel of A and one of B that both stay in the first-level cache
MANY_BOXES = 1 << 12  # for each thread: the last ones, which are smaller, count for little
KEPT_BYTES = 1 << 24  # of boxes of A that all threads keep packed


class _TileLane(NamedTuple):
    """Bytes of one thread's memory: panels of A and of B, a tile that lies apart, and tables.

    ``a`` and ``b`` are those of one batch's panels, ``kept`` boxes of A have panels of their own.
    """

    batches: int
    kept: int
    a: int
    b: int
    apart: int
    table: int

    @property
    def bytes(self) -> int:
        return rounded(self.tables_at + TABLES * self.table)

    @property
    def b_at(self) -> int:
        """Where the panels of B begin,"""
        return self.batches * self.kept * self.a

    @property
    def apart_at(self) -> int:
        """the tile that lies apart,"""
        return self.b_at + self.batches * self.b

    @property
    def tables_at(self) -> int:
        """and the tables."""
        return self.apart_at + self.apart


def prepare_tiles(
    plan: Plan, step: Gett, kernels: HostKernels, workers: Workers, fill: Prepared | None
) -> Prepared | None:
    """The step as a function; ``fill`` writes D = beta * op(C) where C is added.

    None where the kernels have no tiles.
    """
    a, b = (np.dtype(plan.slots[slot].tensor.dtype) for slot in (step.a, step.b))
    found = kernels.tiles(a, b, np.dtype(step.dtype))
    if found is None:
        return None
    product = TileProduct(step, (a, b), *found, workers, fill)
    if product.sums == 1 and fill is None:
        size = product.workspace
        return Prepared(product, size, direct=product.direct, direct_bytes=size)
    return Prepared(product, product.workspace, 0 if fill is None else fill.tiles)


class TileProduct:
    """A Gett by tiles, prepared once: the kernel and its plan."""

    def __init__(
        self,
        step: Gett,
        types: tuple[np.dtype[Any], np.dtype[Any]],
        shape: TileShape,
        multiply: BoxKernel,
        workers: Workers,
        fill: Prepared | None,
    ) -> None:
        assert isinstance(step.blocking, Tiles)
        self.step, self.tiles, self.workers = step, step.blocking, workers
        self.dtype = np.dtype(step.dtype)
        self.shape, self.multiply = shape, multiply
        self.fill = fill
        self.sizes = (types[0].itemsize, types[1].itemsize, self.dtype.itemsize)
        self.loops = {kind: _ordered(step, kind) for kind in Kind}
        boxes_k = prod(map(_pieces, self.loops[Kind.K]))
        self.each = ceil(boxes_k / self.tiles.splits)  # boxes along k of a partial sum
        self.sums = ceil(boxes_k / self.each)
        if self.sums == 1:
            self.loops[Kind.M] = _even(self.loops, workers.threads)
        self.boxes = {kind: prod(map(_pieces, rows)) for kind, rows in self.loops.items()}
        self.total = prod(self.boxes[kind] for kind in (Kind.BATCH, Kind.M, Kind.N))
        self.places = {kind: prod(block for _, block in rows) for kind, rows in self.loops.items()}
        self.lane = self._lane()
        self.work = product_work(step)
        self.wakes = self.work >= WAKING_WORK
        self.minimum = ceil(THREAD_WORK * self.total * self.sums / max(self.work, 1))
        self.rounds = self._rounds()
        self.edges = self._edges()
        self.packed, self.count = self._packed_strides()
        strides = self.packed if self.sums > 1 else [loop.d for loop in step.loops]
        self.plan = self._plan(strides)
        self.at = address(self.plan)

    def __call__(self, arrays: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        """Run the product on the plan's arrays."""
        step = self.step
        out = arrays[step.d]
        adds = self._filled(arrays, scalars, memory)
        alpha = None
        if step.scaled and scalars[0] != 1:
            alpha = np.array(scalars[0]).astype(self.dtype)
        a, b = address(arrays[step.a]), address(arrays[step.b])
        factor = 0 if alpha is None else address(alpha)
        cutter = Cutter(memory.workspace)
        if self.sums == 1:
            self._multiply((a, b, address(out), 0, factor), adds, cutter)
            return
        sums = cutter.take(self.count * self.sums, self.dtype).reshape(self.sums, -1)
        self._multiply((a, b, address(sums), sums.strides[0], factor), False, cutter)
        for further in sums[1:]:
            for piece, other in slabs(sums[0], further):
                piece += other
        self._write(sums[0], out, adds)

    def direct(self, inputs: Sequence[Array], out: Array, memory: Array) -> None:
        """The product in a new array, where that takes nothing but the kernel."""
        a, b = address(inputs[self.step.a]), address(inputs[self.step.b])
        room, d = address(memory), address(out)
        for adds, begin, end in self.rounds:
            call = BoxCall(self.at, room, a, b, d, 0, 0, adds, begin, end)
            self.multiply(call, self.edges.size - 1, self.wakes)

    def _multiply(self, given: tuple[int, int, int, int, int], adds: bool, cutter: Cutter) -> None:
        """Every partial sum of all boxes, shared by the threads."""
        room = address(cutter.memory) + cutter.at
        for further, begin, end in self.rounds:
            call = BoxCall(self.at, room, *given, int(adds or further), begin, end)
            self.multiply(call, self.edges.size - 1, self.wakes)

    def _filled(self, arrays: Sequence[Array], scalars: Scalars, memory: Memory) -> bool:
        """Whether D holds beta * op(C) now, to which the product is added."""
        if self.fill is None or scalars[1] == 0:
            return False
        self.fill.run(arrays, scalars, memory)
        return True

    def _write(self, value: Array, out: Array, adds: bool) -> None:
        """D = [D +] the packed sum."""
        loops = self.step.loops
        own = [at for at, loop in enumerate(loops) if loop.kind is not Kind.K]
        extents = [loops[at].extent for at in own]
        source = strided_view(value, 0, extents, [self.packed[at] for at in own])
        size = self.dtype.itemsize
        target = np.lib.stride_tricks.as_strided(
            out, extents, [loops[at].d * size for at in own], writeable=True
        )
        for into, piece in slabs(target, source):
            if adds:
                into += piece
            else:
                into[...] = piece

    # --- preparation --------------------------------------------------------------------------

    @property
    def workspace(self) -> int:
        """Bytes of panels and partial sums."""
        sums = self.sums * self.count * self.dtype.itemsize if self.sums > 1 else 0
        lanes = self.workers.parts(self.total * self.sums, self.minimum)
        return rounded(sums) + lanes * self.lane.bytes

    def _rounds(self) -> list[tuple[int, int, int]]:
        """Whether D is added to, and between which boxes along k of each partial sum.

        The order in which anything is added does not depend on it.
        """
        box = self.work // max(self.total * self.sums, 1)
        count = min(max(ceil(box * BOXES_SHARE / SHARE_WORK), 1), self.each)
        edges = [self.each * at // count for at in range(count + 1)]
        return [(int(begin > 0), begin, end) for begin, end in pairwise(edges)]

    def _edges(self) -> Array:
        """Where the threads' shares of all boxes begin and end: equal work, not equal numbers.

        Of many boxes equal numbers are equal work.
        """
        boxes = self.total * self.sums
        parts = self.workers.parts(boxes, self.minimum)
        parts = max(parts, min(boxes, self.work // len(self.rounds) // SHARE_WORK))
        if parts == 1 or boxes > MANY_BOXES * parts:
            return np.array([boxes * part // parts for part in range(parts + 1)], np.int64)
        batch, n, m = (_sizes(self.loops[kind]) for kind in (Kind.BATCH, Kind.N, Kind.M))
        of_d = (batch[:, None, None] * n[:, None] * m).ravel()
        done = np.cumsum(self._depths()[:, None] * of_d)
        shares = done[-1] * np.arange(1, parts) / parts
        nearest = np.searchsorted(done + done[0] / 2, shares) + 1
        return np.array([0, *nearest, done.size], np.int64)

    def _depths(self) -> Array:
        """What an element of each partial sum takes, compared with the others."""
        if self.sums == 1 or self.each > MANY_BOXES:
            return np.ones(self.sums)
        k = _sizes(self.loops[Kind.K])
        return np.add.reduceat(k, range(0, k.size, self.each))

    def _lane(self) -> _TileLane:
        size, shape = self.dtype.itemsize, self.shape
        depth = self.places[Kind.K] * size
        rows = ceil(self.places[Kind.M] / shape.rows) * shape.rows
        columns = ceil(self.places[Kind.N] / shape.columns) * shape.columns
        apart = min(self.places[Kind.BATCH], SQUARE) * shape.rows * shape.columns * size
        a, b = _spread(rows * depth), _spread(columns * depth)
        kept = self._kept(a * self.places[Kind.BATCH])
        table = 8 * max(*self.places.values(), shape.rows, shape.columns, kept)
        return _TileLane(self.places[Kind.BATCH], kept, a, b, rounded(apart), table)

    def _kept(self, size: int) -> int:
        """How many boxes of A, ``size`` bytes each, a thread keeps packed."""
        boxes = self.boxes[Kind.M] * self.each
        fits = size * boxes * self.workers.threads <= KEPT_BYTES
        return boxes if self.tiles.keeps and fits else 1

    def _packed_strides(self) -> tuple[tuple[int, ...], int]:
        """D's strides in memory of its own, and its elements."""
        loops = self.step.loops
        own = [at for at, loop in enumerate(loops) if loop.kind is not Kind.K]
        own.sort(key=lambda at: abs(loops[at].d))
        return compact_strides([loop.extent for loop in loops], own)

    def _plan(self, strides: Sequence[int]) -> Array:
        """What the kernel reads: a BoxPlan, and its loops."""
        of_d = {id(loop): step for loop, step in zip(self.step.loops, strides, strict=True)}
        rows: list[BoxLoop] = []
        ends = []
        for kind, operands in _GROUPS:
            for loop, block in self.loops[kind]:
                moved = loop.a, loop.b, of_d[id(loop)]
                one, two = (moved[at] * self.sizes[at] for at in operands)
                rows.append(BoxLoop(loop.extent, block, one, two))
            ends.append(len(rows))
        lane, boxes = self.lane, self.boxes
        batches_d, m, n, k, end = ends
        plan = BoxPlan(
            batches=0,
            batches_d=batches_d,
            rows=m,
            columns=n,
            steps=k,
            loops=end,
            boxes_m=boxes[Kind.M],
            boxes_n=boxes[Kind.N],
            panels_b=lane.b_at,
            apart=lane.apart_at,
            tables=lane.tables_at,
            table_bytes=lane.table,
            each_a=lane.a,
            each_b=lane.b,
            kept=lane.kept,
            near=self._near(of_d),
            lane=lane.bytes,
            edges=address(self.edges),
            boxes_d=self.total,
            boxes_sum=self.each,
            boxes_k=boxes[Kind.K],
        )
        return np.array([*plan, *chain(*rows)], np.int64)

    def _near(self, of_d: Mapping[int, int]) -> int:
        """How many rows come before a step along columns in D: those that lie nearer there.

        All of them where panels are too large for the first-level cache.
        """
        column = min((abs(of_d[id(loop)]) for loop, n in self.loops[Kind.N] if n > 1), default=0)
        shape, rows = self.shape, self.places[Kind.M]
        panels = (shape.rows + shape.columns) * self.places[Kind.K] * self.dtype.itemsize
        if column == 0 or panels > NEAR_BYTES:
            return rows
        near = prod([n for loop, n in self.loops[Kind.M] if abs(of_d[id(loop)]) < column])
        return near if near == rows else max(near // shape.rows, 1) * shape.rows


# The groups of loops that a kernel goes through, and in which two of A, B and D it is their places.
_GROUPS = (
    (Kind.BATCH, (0, 1)),
    (Kind.BATCH, (2, 2)),
    (Kind.M, (0, 2)),
    (Kind.N, (1, 2)),
    (Kind.K, (0, 1)),
)


def _ordered(step: Gett, kind: Kind) -> list[tuple[Loop, int]]:
    """The loops of a kind with their blocks, in the order of their places."""
    tiles = step.blocking
    assert isinstance(tiles, Tiles)
    order = {Kind.M: tiles.m, Kind.N: tiles.n, Kind.K: tiles.k, Kind.BATCH: tiles.batch}[kind]
    return [(step.loops[at], tiles.blocks[at]) for at in order]


def _even(loops: Mapping[Kind, Sequence[tuple[Loop, int]]], threads: int) -> list[tuple[Loop, int]]:
    """The rows in boxes whose number is a multiple of the threads, where they are few.

    No bit of a result depends on it: that is a matter of the boxes along k.
    """
    rows = list(loops[Kind.M])
    total = prod(_pieces(row) for kind in (Kind.BATCH, Kind.M, Kind.N) for row in loops[kind])
    if total % threads == 0 or total > 8 * threads:
        return rows
    for at, (loop, block) in reversed(list(enumerate(rows))):
        pieces = _pieces((loop, block))
        for count in range(pieces, min(2 * pieces + threads, loop.extent + 1)):
            smaller = ceil(loop.extent / count)
            even = ceil(loop.extent / smaller) == count and total // pieces * count % threads == 0
            if even:
                return [*rows[:at], (loop, smaller), *rows[at + 1 :]]
    return rows


def _sizes(rows: Sequence[tuple[Loop, int]]) -> Array:
    """The places of every box along these loops, the first of which is the fastest."""
    sizes = np.ones(1)
    for loop, block in rows:
        pieces = np.minimum(block, loop.extent - np.arange(0, loop.extent, block))
        sizes = (pieces[:, None] * sizes).ravel()
    return sizes


def _pieces(row: tuple[Loop, int]) -> int:
    loop, block = row
    return ceil(loop.extent / block)


def _spread(size: int) -> int:
    """Bytes between panels: an odd number of cache lines, so that they do not share its sets."""
    return rounded(size) + LINE
