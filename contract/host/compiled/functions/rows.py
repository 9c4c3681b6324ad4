"""Compiled reductions: rows of elements combined with accumulators, and the loops around them.

The operator and the types are compiled into the former alone, for compiling takes seconds: the
loops call it by its address. Extents, strides and tables come in a plan, one array of integers
that ``reduction_tables`` makes; threads share jobs, which are plans and places in memory.
"""

from typing import Any

import numpy as np
from numba.core import types

from contract.descriptors.operators import BinaryOperator
from contract.host.compiled.functions.row_code import (
    TAGS,
    combine_lanes,
    combine_results,
    combine_run,
    fill,
)
from contract.host.compiled.functions.tables import (
    advance,
    behind,
    call_address,
    elements,
    size_of,
    table,
)
from contract.host.compiled.functions.team import PART_ARGUMENTS
from contract.host.compiled.functions.tools import (
    Code,
    by_integers,
    called,
    compiled,
    from_python,
)
from contract.host.compiled.reduction_tables import (
    CONTIGUOUS,
    FILL,
    FOLD,
    STORE,
    TABULATED,
    JobsCall,
    ReductionJob,
    ReductionPlan,
    RowPass,
)
from contract.host.compiled.visits import Visit

__all__ = ["combined", "part", "reduce_all"]


# --- what depends on types --------------------------------------------------------------------


def combined(operator: str, source: str, target: str) -> Code:
    """What is done with a block of accumulators."""
    tag = TAGS[BinaryOperator[operator]]
    kinds = np.dtype(source).type(0), np.dtype(target).type(0)

    def combine(mode: int, block: int, memory: int, loop: int, what: int, offsets: int) -> None:
        """Addresses, of as many tables as there are registers for.

        FILL: the accumulators of a ReductionPlan with the neutral element. FOLD: those of each
        result made one, the upper half with the lower one again. STORE: as two Visits say, to the
        target. Else rows of a RowPass in the source are combined with them, as a Visit says.
        """
        if mode == FILL:
            fill(tag, kinds[1], block, table(ReductionPlan, what).size)
        elif mode == STORE:
            _store_block(kinds[1], block, memory, table(Visit, loop), table(Visit, what))
        elif mode == FOLD:
            plan, size, at = table(ReductionPlan, what), size_of(kinds[1]), 0
            while plan.steps > 1 and at < plan.size:
                half = plan.phase * plan.steps // 2
                while half >= plan.phase:
                    to = block + at * size
                    combine_run(tag, kinds[1], to, to + half * size, half)
                    half //= 2
                at += plan.phase * plan.steps
        elif mode == CONTIGUOUS or mode == TABULATED:
            combine_lanes(tag, kinds[0], kinds[1], mode, block, memory, loop, what, offsets)
        else:
            combine_results(tag, kinds[0], kinds[1], mode, block, memory, loop, what, offsets)

    return by_integers(combine, 6)


@compiled
def _store_block(kind: Any, block: int, target: int, first: Any, second: Any) -> None:
    """Accumulators to the target."""
    source, to = elements(kind, block), elements(kind, target)
    n, step, to_step = first.extent, first.one, first.two
    for j in range(second.extent):
        a, w = j * second.one, j * second.two
        if step == 1 and to_step == 1:
            for i in range(n):
                to[w + i] = source[a + i]
        else:
            for i in range(n):
                to[w + i * to_step] = source[a + i * step]


# --- the loops around it, for all types -------------------------------------------------------


@compiled
def reduce_blocks(at: int, source: int, target: int) -> None:
    """target = source reduced, one block of accumulators after the other; all are addresses."""
    plan = table(ReductionPlan, at)
    rows, read, loops = plan.rows, plan.read, behind(ReductionPlan, at, 1)
    passes = behind(Visit, loops, plan.visits)
    offsets = behind(RowPass, passes, plan.passes)
    memory = np.empty(plan.size * plan.written, np.uint8)
    block = memory.ctypes.data
    visits = np.zeros(plan.visits, np.int64)
    index = visits.ctypes.data
    s = t = 0
    for _ in range(plan.units):
        call_address(rows, (FILL, block, 0, 0, at, 0))
        for each in range(plan.passes):
            what = behind(RowPass, passes, each)
            _visits(plan, block, source + s * read, loops, what, offsets, index)
        call_address(rows, (FOLD, block, 0, 0, at, 0))
        _store(plan, block, target + t * plan.written, loops, index)
        s, t = advance(loops, 0, plan.outer_end, index, s, t)
    memory[:1], visits[:1] = 0, 0  # Numba frees an array after its last use by name


@compiled
def _count(loops: int, begin: int, end: int) -> int:
    """Visits of loops begin..end."""
    count = 1
    for at in range(begin, end):
        count *= table(Visit, behind(Visit, loops, at)).extent
    return count


@compiled
def _visits(
    plan: Any, block: int, source: int, loops: int, what: int, offsets: int, index: int
) -> None:
    """Combine every row of a pass with its accumulators."""
    rows = table(RowPass, what)
    inner, first, last = behind(Visit, loops, rows.first), rows.first + 1, rows.last
    s, to = rows.shift, 0
    for _ in range(_count(loops, first, last)):
        there, here = source + s * plan.read, block + to * plan.written
        call_address(plan.rows, (rows.mode, here, there, inner, what, offsets))
        s, to = advance(loops, first, last, index, s, to)


@compiled
def _store(plan: Any, block: int, target: int, loops: int, index: int) -> None:
    """Write the results, the loop with the smallest step in the target innermost."""
    begin, end = plan.outer_end, plan.store_end
    inner, second = behind(Visit, loops, begin), behind(Visit, loops, begin + 1)
    w = t = 0
    for _ in range(_count(loops, begin + 2, end)):
        here, there = block + w * plan.written, target + t * plan.written
        call_address(plan.rows, (STORE, here, there, inner, second, 0))
        w, t = advance(loops, begin + 2, end, index, w, t)


# --- jobs for several threads -----------------------------------------------------------------


def _part(given: int, begin: int, end: int, lane: int) -> None:
    """Jobs begin..end."""
    call = table(JobsCall, given)
    for at in range(begin, end):
        job = table(ReductionJob, behind(ReductionJob, call.jobs, at))
        reduce_blocks(job.plan, call.source + job.source, call.target + job.target)


def part() -> Code:
    """What a thread of a team does."""
    return by_integers(_part, PART_ARGUMENTS)


@called
def _reduce(plan: int, source: int, target: int) -> None:
    """All of a plan, by one thread."""
    reduce_blocks(plan, source, target)


def reduce_all() -> Code:
    """What Python calls for all of a plan."""
    return from_python(_reduce, *[types.intp] * 3)
