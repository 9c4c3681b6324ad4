"""How reductions over strided memory are blocked: sums, products, maxima and minima.

A block of accumulators that stays in cache is filled with the neutral element, rows of source
elements are combined with it in the order of memory, and the results are written at the end.
Where too few kept elements lie side by side, a row also takes several steps of a reduced
dimension; each step has accumulators of its own, which are combined at the end.
The order of combination depends on extents, strides and types alone, so that bits do.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np

from contract.descriptors.operators import BinaryOperator
from contract.execution.compiled_code import Kernel
from contract.host.compiled.linking import Linker
from contract.host.compiled.visits import ONCE, Visit
from contract.host.kernels.protocol import CopyKernel
from contract.host.resources.views import Array, address

__all__ = [
    "CONTIGUOUS",
    "FILL",
    "FOLD",
    "PAIRS",
    "STORE",
    "STRIDED",
    "TABULATED",
    "VECTOR_BYTES",
    "WHOLE",
    "JobsCall",
    "ReductionJob",
    "ReductionKernel",
    "ReductionPlan",
    "RowPass",
    "is_reduced",
    "reduction",
    "together",
]

REDUCE_BLOCKS = Kernel("rows", "reduce_all")
PART = Kernel("rows", "part")
VECTOR_BYTES = 64
# Rows of an accumulator for each element, or rows with one accumulator, or two in turn
TABULATED, CONTIGUOUS, STRIDED, WHOLE, PAIRS = range(5)
THREAD_WORK = 1 << 14  # elements worth a thread that is awake,
WAKING_WORK = 1 << 17  # and one that has to be woken

FILL, FOLD, STORE = range(5, 8)  # what is done with accumulators beside combining rows

BLOCK_BYTES = 1 << 14  # of accumulators: half the first-level cache
TABLE_LANES = 512  # elements of a row that is not contiguous: its cache lines serve many rows
TABLE_ROWS = 64
MOST_ROWS = 1 << 10  # in one table
SHORT_ROW = 16  # contiguous elements worth vectors of their own
LONG_RUN = 24  # elements worth a combination of their own
WIDE_ROW = 64  # contiguous elements that need no further lanes
SHORT_RUN = 64  # contiguous elements worth a combination of lanes at their end
# Memory of so many bytes side by side is asked for so early: the processor itself does not go on
# to the next page, and loses the way among several rows.
ASKED_BYTES, AHEAD = 1 << 14, 1 << 11

_REAL = frozenset(
    {
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *("float32", "float64"),
    }
)
_COMPLEX = frozenset({"complex64", "complex128"})


class ReductionPlan(NamedTuple):
    """What compiled code follows; Visits, RowPasses and offsets of lanes and rows lie behind."""

    rows: int  # the address of the code that combines rows
    read: int  # bytes of an element,
    written: int  # and of an accumulator
    size: int  # accumulators of a block
    units: int  # blocks
    phase: int  # results side by side,
    steps: int  # and accumulators of each
    outer_end: int  # where the loops around blocks end,
    store_end: int  # and those over results
    visits: int
    passes: int


class RowPass(NamedTuple):
    """Rows that are combined with a block; of offsets and loops the first and last are said."""

    shift: int
    mode: int
    length: int  # of a row,
    tail: int  # and of shorter ones
    begin: int
    end: int
    tail_end: int
    first: int  # loop of its visits
    last: int
    ahead: int  # bytes that memory is asked for before it is read


class ReductionJob(NamedTuple):
    """A plan, and its places in source and target in bytes."""

    plan: int
    source: int
    target: int


class JobsCall(NamedTuple):
    """What threads share: some jobs, and memory."""

    jobs: int
    source: int
    target: int


def reduction(
    extents: Sequence[int],
    source_strides: Sequence[int],
    target_strides: Sequence[int],
    reduced_extents: Sequence[int],
    reduced_strides: Sequence[int],
    source_dtype: str,
    target_dtype: str,
    operator: BinaryOperator,
    linker: Linker,
) -> "ReductionKernel | CopyKernel | None":
    """target[i] = operator over r of source[i, r], in the target's type; None: not compiled.

    Strides are in elements.
    """
    ordered = operator in (BinaryOperator.MAX, BinaryOperator.MIN)
    if not is_reduced(source_dtype, target_dtype) or (ordered and target_dtype in _COMPLEX):
        return None
    if 0 in extents:
        return _nothing
    one, two = np.dtype(source_dtype), np.dtype(target_dtype)
    kept = list(zip(extents, source_strides, target_strides, strict=True))
    reduced = list(zip(reduced_extents, reduced_strides, strict=True))
    sizes = one.itemsize, two.itemsize
    if operator is BinaryOperator.ADD and one.kind == "c":  # real, imaginary side by side
        kept = [(2, 1, 1), *((n, 2 * s, 2 * t) for n, s, t in kept)]
        reduced = [(n, 2 * s) for n, s in reduced]
        one, two = (np.dtype(f"f{dtype.itemsize // 2}") for dtype in (one, two))
    dims, shift_s, shift_t = _dims(kept, reduced)
    plan = _plan(dims, one, two)
    shifts = shift_s * one.itemsize, shift_t * two.itemsize
    rows = Kernel("rows", "combined", (operator.name, one.name, two.name))
    elements = prod(extents) * prod(reduced_extents)
    return ReductionKernel(plan, elements, sizes, shifts, linker.functions(REDUCE_BLOCKS, rows))


class ReductionKernel:
    """A compiled kernel: (source, offset, target, offset).

    It overwrites the target, runs in the calling thread without the GIL, and does not check the
    types of its memory.
    """

    def __init__(
        self,
        plan: Array,
        elements: int,
        sizes: tuple[int, int],
        shifts: tuple[int, int],
        functions: Callable[[], tuple[Any, ...]],
    ) -> None:
        self.plan, self.elements = plan, elements
        self.at = address(plan)
        self.sizes, self._shifts = sizes, shifts  # bytes
        self._functions = functions
        self.linked: Callable[[], Callable[[int, int, int], None]] = cache(self._linked)

    def __call__(
        self, source: Array, source_offset: int, target: Array, target_offset: int
    ) -> None:
        s, t = self._places(source_offset, target_offset)
        self.linked()(self.at, address(source) + s, address(target) + t)

    def _linked(self) -> Callable[[int, int, int], None]:
        """What follows the plan, which knows from now on what is compiled for its types."""
        run, self.plan[ReductionPlan._fields.index("rows")] = self._functions()
        found: Callable[[int, int, int], None] = run
        return found

    def job(self, source_offset: int, target_offset: int) -> ReductionJob:
        """The plan at offsets in elements."""
        return ReductionJob(self.at, *self._places(source_offset, target_offset))

    def _places(self, source_offset: int, target_offset: int) -> tuple[int, int]:
        """Where it begins in bytes."""
        (size_s, size_t), (shift_s, shift_t) = self.sizes, self._shifts
        return source_offset * size_s + shift_s, target_offset * size_t + shift_t


def together(jobs: Sequence[tuple[int, int, ReductionKernel]], linker: Linker) -> CopyKernel:
    """One kernel for jobs, (places in source and target, kernel), that the threads share."""
    table = np.array([kernel.job(*places) for *places, kernel in jobs], np.int64)
    kernels = [kernel for *_, kernel in jobs]
    work, at = sum(kernel.elements for kernel in kernels), address(table)
    parts, wakes = max(min(len(jobs), work // THREAD_WORK), 1), work >= WAKING_WORK
    functions = linker.shared(PART)

    @cache
    def linked() -> tuple[Any, ...]:
        for kernel in kernels:
            kernel.linked()
        return functions()

    def run(source: Array, source_offset: int, target: Array, target_offset: int) -> None:
        size_s, size_t = kernels[0].sizes  # which also keeps the kernels, whose plans are read
        s = address(source) + source_offset * size_s
        t = address(target) + target_offset * size_t
        share, part = linked()
        share(part, JobsCall(at, s, t), table.shape[0], parts, wakes)

    return run


def is_reduced(source: str, target: str) -> bool:
    """Whether there is compiled code that reads one type and sums in the other."""
    known = _REAL | _COMPLEX
    return source in known and target in known and np.can_cast(source, target, "safe")


def _nothing(source: Array, source_offset: int, target: Array, target_offset: int) -> None:
    """The kernel of a target without elements."""


# --- how a reduction is blocked ---------------------------------------------------------------


class _ReducedDim(NamedTuple):
    """One loop: extent, steps in source and target; a reduced one has no target."""

    extent: int
    source: int
    target: int | None


class _Choice(NamedTuple):
    """What a row of lanes and the rows of one table consist of, as positions of dimensions."""

    lanes: list[int]  # kept
    rows: list[int]  # reduced
    widened: int | None = None  # reduced, of which a row takes several steps
    whole: int | None = None  # reduced, and all of a row
    most_lanes: int = TABLE_LANES
    most_rows: int = MOST_ROWS


class _Row(NamedTuple):
    """The elements that are combined at once, and the accumulators of one result."""

    mode: int
    length: int
    offsets: Array  # of its elements, unless they are contiguous
    phase: int  # results side by side
    steps: int  # accumulators of each


class _Split(NamedTuple):
    """A reduced dimension as ``steps`` of ``source`` each, and a rest of ``tail`` lanes."""

    steps: int
    source: int
    tail: int


class _RowGroup(NamedTuple):
    """Rows that one visit combines, and how often: chunks of a split dimension."""

    shift: int
    rows: Array
    tail: int  # elements of the shorter rows
    tail_rows: Array
    chunks: int
    chunk_step: int


class _Accumulators:
    """The accumulators: which part of the kept dimensions they hold, and the loops around it."""

    def __init__(self) -> None:
        self.size = 1
        self.stores: list[Visit] = []
        self.outer: list[Visit] = []

    def hold(self, dim: _ReducedDim, most: int) -> tuple[int, int, int]:
        """Hold as much of ``dim`` as ``most`` allows: extent, steps in source and accumulators.

        Blocks are about equal; the last one overlaps the one before it.
        """
        n, s, t = dim.extent, dim.source, dim.target or 0
        block = ceil(n / ceil(n / max(most // self.size, 1)))
        count = ceil(n / block)
        clip = count * block - n
        self.outer.append(Visit(count, block * s, block * t, clip * s, clip * t))
        self.stores.append(Visit(block, self.size, t))
        held = block, s, self.size
        self.size *= block
        return held


def _dims(
    kept: Sequence[tuple[int, int, int]], reduced: Sequence[tuple[int, int]]
) -> tuple[list[_ReducedDim], int, int]:
    """Fused loops in the order of source memory, none backwards there, and the start's shifts."""
    dims: list[_ReducedDim] = [_ReducedDim(*map(int, row)) for row in kept]
    dims += [_ReducedDim(int(n), int(s), None) for n, s in reduced]
    dims = [dim for dim in dims if dim.extent > 1]
    back = [dim for dim in dims if dim.source < 0]
    shift_s = sum(dim.source * (dim.extent - 1) for dim in back)
    shift_t = sum((dim.target or 0) * (dim.extent - 1) for dim in back)
    forward = [dim if dim.source >= 0 else _reversed(dim) for dim in dims]
    fused = [
        *_fused([dim for dim in forward if dim.target is not None]),
        *_fused([dim for dim in forward if dim.target is None]),
    ]
    return sorted(fused, key=lambda dim: dim.source or 1 << 62), shift_s, shift_t


def _reversed(dim: _ReducedDim) -> _ReducedDim:
    return _ReducedDim(dim.extent, -dim.source, None if dim.target is None else -dim.target)


def _fused(dims: list[_ReducedDim]) -> list[_ReducedDim]:
    """Dimensions that continue each other made one."""
    result: list[_ReducedDim] = []
    for dim in sorted(dims, key=lambda dim: (dim.source, dim.target or 0)):
        if result:
            n, s, t = result[-1]
            if dim.source == s * n and dim.target == (None if t is None else t * n):
                result[-1] = _ReducedDim(n * dim.extent, s, t)
                continue
        result.append(dim)
    return result


def _choose(dims: list[_ReducedDim], most: int, pairs: bool) -> _Choice:
    """The rows: contiguous where those are long enough, else of tabulated elements."""
    if dims and dims[0].target is None and dims[0].extent >= LONG_RUN:
        return _Choice([], _reduced_from(dims, 1), whole=0)
    if pairs and len(dims) > 1 and dims[0][:2] == (2, 1) and dims[1].target is None:
        if dims[0].target is not None and dims[1].source == 2 and dims[1].extent >= LONG_RUN // 2:
            return _Choice([0], _reduced_from(dims, 2), whole=1)
    chain, run = _chain(dims)
    if len(chain) < len(dims) and run < WIDE_ROW:
        n, s, t = dims[len(chain)]
        if t is None and s == run and n >= 4 and n * run >= SHORT_RUN:
            return _Choice(chain, [], widened=len(chain))
    if run >= SHORT_ROW:
        return _Choice(chain, _reduced_from(dims, len(chain)), most_lanes=most)
    return _choose_tabulated(dims)


def _chain(dims: list[_ReducedDim]) -> tuple[list[int], int]:
    """The kept dimensions that are contiguous together, and how many elements they have."""
    run, chain = 1, []
    for at, dim in enumerate(dims):
        if dim.target is None or dim.source != run:
            break
        chain.append(at)
        run *= dim.extent
    return chain, run


def _reduced_from(dims: list[_ReducedDim], begin: int) -> list[int]:
    """Reduced dimensions from one position on to the next kept one, or enough for a table."""
    rows: list[int] = []
    for at in range(begin, len(dims)):
        if dims[at].target is not None or prod(dims[row].extent for row in rows) >= MOST_ROWS:
            break
        rows.append(at)
    return rows


def _choose_tabulated(dims: list[_ReducedDim]) -> _Choice:
    """Lanes and rows from the innermost dimensions; reduced ones too where few are kept."""
    kept = [at for at, dim in enumerate(dims) if dim.target is not None]
    reduced = [at for at, dim in enumerate(dims) if dim.target is None]
    rows = list(_enough(dims, reduced, TABLE_ROWS))
    if prod(dims[at].extent for at in kept) < SHORT_ROW:
        longest = max(reduced, key=lambda at: dims[at].extent, default=0)
        widened = next((at for at in reduced if dims[at].extent >= WIDE_ROW), longest)
        if widened in reduced and dims[widened].extent >= SHORT_ROW:
            rows = [at for at in rows if at < widened]  # each a short dimension
            return _Choice(kept, rows, widened=widened)
    return _Choice(list(_enough(dims, kept, TABLE_LANES)), rows, most_rows=TABLE_ROWS)


def _enough(dims: list[_ReducedDim], chosen: list[int], most: int) -> Iterator[int]:
    """The first of ``chosen`` until they have ``most`` elements."""
    size = 1
    for at in chosen:
        if size >= most:
            return
        yield at
        size *= dims[at].extent


def _plan(dims: list[_ReducedDim], one: np.dtype[Any], two: np.dtype[Any]) -> Array:
    """What compiled code follows: its loops, its passes, and offsets of lanes and rows.

    The address of what is compiled for these types is not known yet.
    """
    most = BLOCK_BYTES // two.itemsize
    choice = _choose(dims, most, pairs=two.kind != "c")  # complex numbers have no vectors
    block = _Accumulators()
    lanes = _offsets([block.hold(dims[at], choice.most_lanes) for at in choice.lanes])
    rows = [(dims[at].extent, dims[at].source) for at in choice.rows]
    row = _Row(TABULATED, lanes.size, lanes, lanes.size, 1)
    split = _Split(*rows.pop(), 0) if rows and choice.widened is None else _Split(1, 0, 0)
    if choice.widened is not None:
        row, split = _widened(dims[choice.widened], lanes, two.itemsize)
        block.size *= row.steps
    if choice.whole is not None:
        row = _whole_row(dims[choice.whole], lanes.size)
    elif np.array_equal(row.offsets, np.arange(row.length)):
        row = row._replace(mode=CONTIGUOUS, offsets=lanes[:0])
    middle = [
        Visit(dim.extent, dim.source, 0) if dim.target is None else Visit(*block.hold(dim, most))
        for at, dim in enumerate(dims)
        if at not in (*choice.lanes, choice.widened, choice.whole, *choice.rows)
    ]
    passes = list(_passes(_offsets(rows), split, choice.most_rows))
    ahead = AHEAD if _side_by_side(dims) * one.itemsize >= ASKED_BYTES else 0
    return _packed((one.itemsize, two.itemsize), block, row, passes, middle, ahead)


def _side_by_side(dims: list[_ReducedDim]) -> int:
    """How many elements are read that are contiguous in memory, in whatever order."""
    size = 1
    for dim in dims:
        if dim.source != size:
            break
        size *= dim.extent
    return size


def _whole_row(dim: _ReducedDim, phase: int) -> _Row:
    """The row of everything in ``dim``, for as many accumulators as ``phase`` says."""
    mode = PAIRS if phase == 2 else WHOLE if dim.source == 1 else STRIDED
    return _Row(mode, dim.extent * phase, np.array([0, dim.source], np.int64), phase, 1)


def _widened(dim: _ReducedDim, lanes: Array, itemsize: int) -> tuple[_Row, _Split]:
    """The row of several steps of ``dim``, and how often they go into it."""
    most = 8 * VECTOR_BYTES // itemsize
    aim = min(most, max(dim.extent * lanes.size // 4, 8))
    steps = 1 << max(min(aim // lanes.size, dim.extent).bit_length() - 1, 0)
    split = _Split(dim.extent // steps, steps * dim.source, dim.extent % steps * lanes.size)
    offsets = (np.arange(steps, dtype=np.int64)[:, None] * dim.source + lanes).ravel()
    return _Row(TABULATED, offsets.size, offsets, lanes.size, steps), split


def _offsets(loops: Sequence[tuple[int, ...]]) -> Array:
    """The source offset of every combination of loops of (extent, step, ...), first fastest."""
    offsets = np.zeros(1, np.int64)
    for loop in loops:
        offsets = (np.arange(loop[0], dtype=np.int64)[:, None] * loop[1] + offsets).ravel()
    return offsets


def _passes(inner: Array, split: _Split, most: int) -> Iterator[_RowGroup]:
    """Full chunks of the split dimension, then what is left of it."""
    chunk = max(most // inner.size, 1)
    chunks, left = divmod(split.steps, chunk)
    none = inner[:0]
    if chunks:
        rows = (np.arange(chunk, dtype=np.int64)[:, None] * split.source + inner).ravel()
        yield _RowGroup(0, rows, 0, none, chunks, chunk * split.source)
    if left or split.tail:
        rows = (np.arange(left, dtype=np.int64)[:, None] * split.source + inner).ravel()
        tail = inner + left * split.source if split.tail else none
        yield _RowGroup(chunks * chunk * split.source, rows, split.tail, tail, 1, 0)


def _packed(
    sizes: tuple[int, int],
    block: _Accumulators,
    row: _Row,
    passes: list[_RowGroup],
    middle: Sequence[Visit],
    ahead: int,
) -> Array:
    """Everything in one table, for arguments cost time: numbers, loops, passes, offsets.

    ``sizes`` are the bytes of elements that are read and written.
    """
    loops = _ordered(block.outer, "one")
    units, outer_end = prod(loop.extent for loop in loops), len(loops)
    stores = _ordered(_fused_stores(block.stores), "two")
    loops += stores if len(stores) > 1 else [*stores, ONCE]
    store_end = len(loops)
    table, offsets, begin = [], [row.offsets], row.offsets.size
    for each in passes:
        visits = _ordered([*middle, Visit(each.chunks, each.chunk_step, 0)], "one")
        end = begin + each.rows.size
        tail_end = end + each.tail_rows.size
        where = (begin, end, tail_end, len(loops), len(loops) + len(visits))
        table.append(RowPass(each.shift, row.mode, row.length, each.tail, *where, ahead))
        loops += visits
        offsets += [each.rows, each.tail_rows]
        begin = tail_end
    folds, ends = (row.phase, row.steps), (outer_end, store_end)
    counts = len(loops), len(table)
    plan = ReductionPlan(0, *sizes, block.size, units, *folds, *ends, *counts)
    parts = [np.array(part, np.int64).ravel() for part in (plan, loops, table)]
    return np.concatenate([*parts, *offsets])


def _fused_stores(stores: list[Visit]) -> list[Visit]:
    """Loops over the accumulators, those contiguous there and in the target made one."""
    result: list[Visit] = []
    for store in (each for each in stores if each.extent > 1):
        if result:
            n, step, target, *_ = result[-1]
            if (store.one, store.two) == (n * step, n * target):
                result[-1] = Visit(n * store.extent, step, target)
                continue
        result.append(store)
    return result


def _ordered(loops: list[Visit], operand: str) -> list[Visit]:
    """Loops of more than one step, or one, that with the smallest step innermost (first)."""
    long = [loop for loop in loops if loop.extent > 1] or [ONCE]
    return sorted(long, key=lambda loop: abs(getattr(loop, operand)) or 1 << 62)
