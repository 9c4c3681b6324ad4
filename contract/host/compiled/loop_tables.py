"""Products loop by loop: operands are read where they lie, nothing is packed.

Vectors run along one loop, along which operands are contiguous or do not change: a summed one, and
every result is a dot product; or a kept one, and rows of products are added to a row of results,
which stays in cache. Where there is no such loop elements go one by one.
"""

from collections.abc import Sequence
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np

from contract.execution.compiled_code import Kernel
from contract.host.compiled.linking import Linker
from contract.host.kernels.protocol import LoopRow, ProductKernel
from contract.host.resources.views import Array, address
from contract.planner.host.vector_loops import along_vectors, ways_along

__all__ = ["KeptLoop", "LoopCall", "LoopProduct", "multiply_loops"]

MOST_SUMMED = 1 << 16  # entries of the tables of offsets
PIECE_BYTES = 1 << 14  # of results that stay in cache while all products are added to them
SHORTEST_PIECE = 1 << 12  # unless there is less
PIECES_EACH = 8  # of a loop, so that threads share them evenly
THREAD_WORK = 1 << 15  # multiply-adds worth a thread that is awake,
WAKING_WORK = 1 << 20  # and one that has to be woken
PARTS = 4  # for each thread
SLICE_WORK = 1 << 24  # multiply-adds, between which Python looks for signals
FAR_BYTES = 1 << 19  # of an operand of dot products: larger ones are asked for early,
AHEAD = 1 << 11  # so many bytes


class LoopProduct(NamedTuple):
    """What compiled code reads: extents and steps in bytes, and addresses of further tables."""

    cut: int  # the extent of the loop that is cut,
    pieces: int  # in so many pieces
    cut_a: int
    cut_b: int
    cut_d: int
    length: int  # of the loop that vectors run along
    step_a: int
    step_b: int
    step_d: int
    ahead_a: int  # so early it is asked for, or 0
    ahead_b: int
    size: int  # of an element
    sums: int  # steps of the other sums; their offsets:
    offsets_a: int
    offsets_b: int
    kept: int  # further loops; the first KeptLoop of them:
    loops: int


class KeptLoop(NamedTuple):
    """A further kept loop."""

    extent: int
    step_a: int
    step_b: int
    step_d: int


class LoopCall(NamedTuple):
    """What threads share: a LoopProduct, and where its operands are."""

    product: int
    a: int
    b: int
    d: int


class _Loop(NamedTuple):
    """Whether it is summed, its extent, and the strides in A, B and D."""

    summed: bool
    extent: int
    a: int
    b: int
    d: int


def multiply_loops(
    dtype: np.dtype[Any], table: Sequence[LoopRow], linker: Linker
) -> ProductKernel | None:
    """d = sum over k of a * b by threads of the team; None where the tables would be too long."""
    size = dtype.itemsize
    loops = [_Loop(kind == "k", extent, *steps) for kind, extent, steps in table if extent != 1]
    rows = [(loop.extent, loop.a, loop.b, loop.summed) for loop in loops]
    vectors = loops[along_vectors(rows, dtype.name)[1]] if loops else _Loop(True, 1, 0, 0, 0)
    if prod([loop.extent for loop in loops if loop.summed and loop is not vectors]) > MOST_SUMMED:
        return None
    made = _Product(dtype, loops, vectors)
    parts = made.parts(linker.threads)
    wakes = made.work >= WAKING_WORK
    linked = linker.shared(made.kernel)

    def run(a: Array, a0: int, b: Array, b0: int, d: Array, d0: int) -> None:
        share, kernel = linked()
        places = address(a) + a0 * size, address(b) + b0 * size, address(d) + d0 * size
        call = made.table, *places  # a LoopCall, which would take longer to make
        share(kernel, call, made.units, parts, wakes)

    return run


class _Product:
    """The table of a product, and what its threads share."""

    def __init__(self, dtype: np.dtype[Any], loops: Sequence[_Loop], vectors: _Loop) -> None:
        self._dtype, size = dtype, dtype.itemsize
        self.work = prod([loop.extent for loop in loops])
        rest = [loop for loop in loops if loop is not vectors]
        of_a, of_b = (prod([x.extent for x in loops if x[at]]) for at in (2, 3))
        larger = 2 if of_a >= of_b else 3
        rest.sort(key=lambda loop: abs(loop[larger]))
        kept = [loop for loop in rest if not loop.summed]
        self._name = "dots" if vectors.summed else "rows"
        self._ways = ways_along(vectors.a, vectors.b)
        cut = vectors
        if vectors.summed:
            cut = kept.pop(0) if kept else _Loop(False, 1, 0, 0, 0)
        others = prod([loop.extent for loop in kept])
        pieces = _pieces(cut.extent, 1 if vectors.summed else SHORTEST_PIECE // size, others, size)
        if vectors.summed:  # each is as long as it is
            short = self.work // max(others * SLICE_WORK, 1)
            pieces = max(pieces, min(short, cut.extent))
        ahead = [AHEAD if each * size > FAR_BYTES else 0 for each in (of_a, of_b)]
        summed = [loop for loop in rest if loop.summed]
        tables = [_offsets([(loop.extent, loop[at] * size) for loop in summed]) for at in (2, 3)]
        if vectors.extent == 0:  # nothing is read
            tables = [_offsets([(0, 0)])] * 2

        def steps(loop: _Loop) -> tuple[int, int, int]:
            return loop.a * size, loop.b * size, loop.d * size

        further = np.array([KeptLoop(loop.extent, *steps(loop)) for loop in kept], np.int64)
        in_a, in_b = tables
        numbers = LoopProduct(
            *(cut.extent, pieces, *steps(cut), vectors.extent, *steps(vectors)),
            *(ahead[0], ahead[1], size, in_a.size, address(in_a), address(in_b)),
            *(len(kept), address(further)),
        )
        self.units = pieces * others
        self._entries = np.array(numbers, np.int64), further, *tables
        self.table = address(self._entries[0])

    def parts(self, threads: int) -> int:
        """In how many parts it is given to threads."""
        most = min(self.units, max(PARTS * threads, self.work // SLICE_WORK))
        return max(min(most, self.work // THREAD_WORK), 1)

    @property
    def kernel(self) -> Kernel:
        """What each thread does."""
        return Kernel("loops", self._name, (self._dtype.name, *self._ways))


def _pieces(extent: int, shortest: int, others: int, size: int) -> int:
    """In how many pieces a loop is cut: no longer than cache holds, and enough for threads.

    ``others`` times as many units come from further loops; pieces of ``shortest`` are not cut.
    """
    enough = min(PIECES_EACH // max(others, 1), extent // shortest)
    return max(ceil(extent * size / PIECE_BYTES), enough, 1)


def _offsets(rows: Sequence[tuple[int, int]]) -> Array:
    """The offset of every combination of loops, given by extents and steps."""
    offsets = np.zeros(1, np.int64)
    for extent, step in rows:
        offsets = (np.arange(extent, dtype=np.int64)[:, None] * step + offsets).ravel()
    return offsets
