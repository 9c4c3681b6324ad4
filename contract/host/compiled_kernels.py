"""The compiled host kernels: tables that functions compiled by Numba follow.

Threads are ours (nogil functions on parts of a loop), for Numba's own threading aborts the
process when two Python threads enter it at once.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from typing import Any

import numpy as np

from contract.descriptors.operators import BinaryOperator
from contract.execution.compiled_code import Kernel, compiled_code
from contract.host.compiled.copy_tables import (
    CONVERTED,
    COPY,
    PART,
    CopyCall,
    Region,
    copy_region,
    is_copied,
)
from contract.host.compiled.integer_tables import multiply_integers
from contract.host.compiled.linking import Linker
from contract.host.compiled.loop_tables import multiply_loops
from contract.host.compiled.pass_tables import combined_pass
from contract.host.compiled.reduction_tables import ReductionKernel, is_reduced, reduction, together
from contract.host.compiled.tile_tables import multiply_boxes, tile_shape
from contract.host.kernels.numpy_kernels import NumpyKernels
from contract.host.kernels.protocol import (
    PARALLEL_BYTES,
    BoxKernel,
    CopyKernel,
    Job,
    LoopRow,
    MatmulKernel,
    PassKernel,
    ProductKernel,
    TileShape,
    TileSource,
)
from contract.host.resources.matrix_slices import in_slices
from contract.host.resources.views import Array, address
from contract.host.resources.workers import Workers
from contract.support.apart import apart

__all__ = ["CompiledKernels"]

SHARED_BYTES = 1 << 16  # of a copy worth a thread that is awake
SLICE_BYTES = 1 << 25  # of a copy, between which Python looks for signals

Run = Callable[..., None]


class CompiledKernels(NumpyKernels):
    """Compiled copies, reductions and products; types that Numba lacks stay with NumPy.

    ``needs`` are the functions of what was prepared for one plan. Without ``waits`` kernels that
    are prepared when the plan runs are NumPy's until theirs are there.
    """

    name = "numba"

    def __init__(self, workers: Workers, waits: bool = True) -> None:
        super().__init__(workers)
        self.team = _LazyTeam(workers)
        self._waits = waits
        self._noted: set[Kernel] | None = None  # None: the plan runs

    def for_plan(self) -> "CompiledKernels":
        found = copy(self)
        found._noted = set()
        return found

    def needs(self) -> frozenset[Kernel]:
        noted, self._noted = self._noted, None
        return frozenset(noted or ())

    def copy(
        self,
        extents: Sequence[int],
        source_strides: Sequence[int],
        target_strides: Sequence[int],
        source_dtype: str,
        target_dtype: str,
    ) -> CopyKernel:
        given = extents, source_strides, target_strides
        one, two = np.dtype(source_dtype), np.dtype(target_dtype)
        of_numpy = super().copy

        def plain() -> CopyKernel:
            return of_numpy(*given, source_dtype, target_dtype)

        if not is_copied(one, two) or 0 in extents:
            return plain()
        region, *shifts = copy_region(*given, one, two)
        linker = self._linker()
        run = _mover(region, (one.itemsize, two.itemsize), shifts, self._parts(region), linker)
        return self._usable(linker.needs, run, plain)

    def _parts(self, region: Region) -> int:
        """How many parts a copy is given in."""
        units, size = region.units, region.unit_bytes
        parts = self.workers.parts(units, max(1, SHARED_BYTES // size))
        return max(parts, min(units, units * size // SLICE_BYTES))

    def combined(
        self,
        extents: Sequence[int],
        blocks: Sequence[int],
        sources: Sequence[TileSource],
        target_strides: Sequence[int],
        dtype: str,
        operators: Sequence[BinaryOperator],
    ) -> PassKernel | None:
        linker = self._linker()
        given = extents, blocks, sources, target_strides, dtype, operators
        found = combined_pass(*given, linker)
        self._note(linker.needs)
        return found

    def reduces(self, source_dtype: str, target_dtype: str) -> bool:
        return source_dtype == target_dtype or is_reduced(source_dtype, target_dtype)

    def reduce(
        self,
        extents: Sequence[int],
        source_strides: Sequence[int],
        target_strides: Sequence[int],
        reduced_extents: Sequence[int],
        reduced_strides: Sequence[int],
        source_dtype: str,
        target_dtype: str,
        operator: BinaryOperator,
    ) -> CopyKernel:
        kept = extents, source_strides, target_strides
        given = *kept, reduced_extents, reduced_strides, source_dtype, target_dtype, operator
        plain, linker = partial(super().reduce, *given), self._linker()
        found = reduction(*given, linker)
        return plain() if found is None else self._usable(linker.needs, found, plain)

    def together(self, jobs: Sequence[Job]) -> CopyKernel:
        known = [(at, to, job) for at, to, job in jobs if isinstance(job, ReductionKernel)]
        plain, linker = partial(super().together, jobs), self._linker()
        if len(known) < len(jobs):
            return plain()
        return self._usable(linker.needs, together(known, linker), plain)

    def matmul(self, dtype: str) -> MatmulKernel:
        if np.dtype(dtype).kind not in "iub":
            return super().matmul(dtype)
        linker = self._linker()
        run = in_slices(multiply_integers(dtype, linker), dtype, self.workers)
        return self._usable(linker.needs, run, partial(super().matmul, dtype))

    def tiles(
        self, a: np.dtype[Any], b: np.dtype[Any], dtype: np.dtype[Any]
    ) -> tuple[TileShape, BoxKernel] | None:
        linker = self._linker()
        found = multiply_boxes(a, b, dtype, linker)
        self._note(linker.needs)
        return tile_shape(dtype), found

    def loops(self, dtype: str, table: Sequence[LoopRow]) -> ProductKernel:
        plain, linker = partial(super().loops, dtype, table), self._linker()
        if dtype not in CONVERTED:
            return plain()
        found = multiply_loops(np.dtype(dtype), table, linker)
        return plain() if found is None else self._usable(linker.needs, found, plain)

    def _linker(self) -> Linker:
        return Linker(self.workers.threads, self.team)

    def _note(self, needs: Iterable[Kernel]) -> None:
        if self._noted is not None:
            self._noted.update(needs)

    def _usable(self, needs: Iterable[Kernel], run: Run, plain: Callable[[], Run]) -> Run:
        """``run``; if nobody has noted its needs and would wait, NumPy's kernel until they are."""
        self._note(needs)
        if self._noted is not None or self._waits or compiled_code().has(needs):
            return run
        return _Either(frozenset(needs), run, plain())


def _mover(
    region: Region, sizes: Sequence[int], shifts: Sequence[int], parts: int, linker: Linker
) -> CopyKernel:
    """Copies what the region says, whose table it keeps, between elements of two sizes."""
    (size_s, size_t), (shift_s, shift_t) = sizes, shifts
    at, wakes = address(region.table), region.units * region.unit_bytes >= 2 * PARALLEL_BYTES
    alone = parts == 1
    find = partial(linker.functions, COPY) if alone else partial(linker.shared, PART)
    linked = find(region.kernel)

    def run(source: Array, source_offset: int, target: Array, target_offset: int) -> None:
        s = address(source) + source_offset * size_s + shift_s
        t = address(target) + target_offset * size_t + shift_t
        if alone:
            move, kernel = linked()
            move(kernel, at, s, t, region.units)
        else:
            share, part, kernel = linked()
            share(part, CopyCall(kernel, at, s, t), region.units, parts, wakes)

    return run


class _Either:
    """``run`` once its needs are there, until then ``plain``."""

    def __init__(self, needs: frozenset[Kernel], run: Run, plain: Run) -> None:
        self._needs, self._run, self._plain = needs, run, plain

    def __call__(self, *given: Any) -> None:
        if compiled_code().has(self._needs):
            self._run(*given)
        else:
            compiled_code().wish(self._needs, self)
            self._plain(*given)

    def told(self, is_there: bool) -> None:
        """Every call looks by itself."""


class _LazyTeam:
    """The threads that share compiled work, made when there is some."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._team: Any = None

    def __call__(self) -> Any:
        if self._team is None:
            apart(self._make)
        return self._team

    def _make(self) -> None:
        from contract.host.compiled.functions.team import Team  # which imports Numba

        if self._team is None:  # another thread may have been quicker
            self._team = Team(self._workers)
