"""Products as whole matrix products: Gemm on operands where they lie, and TTGT.

TTGT permutes operands until they are matrices, multiplies, and permutes the result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from itertools import product as combinations
from math import prod

from contract.compute import is_blas_type
from contract.descriptors import Algo, TensorDescriptor
from contract.heuristics import Machine
from contract.layout import packed_strides
from contract.operators import BinaryOperator
from contract.plan import Elementwise, Gemm, Kind, Loop, Permute, Product, Scalar, Step
from contract.products import (
    STRIDE_A,
    STRIDE_B,
    STRIDE_C,
    STRIDE_D,
    Option,
    ProductProblem,
    Stride,
    Term,
    extent_of,
    first_stride,
    is_direct,
    is_matrix,
    loop_table,
    product_step,
    run_length,
)

__all__ = ["gemm_options", "transposed_options"]


def gemm_options(
    problem: ProductProblem, loops: tuple[Loop, ...], machine: Machine
) -> Iterator[Option]:
    """Products whose strides BLAS takes; further loops of m and n enumerate products."""
    k = [loop for loop in loops if loop.kind is Kind.K]
    if len(k) > 1 or not _all_direct(problem) or not is_blas_type(problem.dtype):
        return
    if problem.c is not None and not (machine.blas_adds and _lies_like_d(problem, loops)):
        return
    for m, n in combinations(_rows(loops, Kind.M), _rows(loops, Kind.N)):
        chosen = (*m, *n, *k)
        batch = tuple(
            replace(loop, kind=Kind.BATCH) for loop in loops if all(loop is not x for x in chosen)
        )
        table = (*outermost_last(batch), *chosen)
        if _is_gemm(m, n, k):
            step = product_step(Gemm, problem, table)
            yield Option(
                Algo.GEMM, gemm_seconds(step, machine), _why_gemm(batch), (step,), problem.d
            )


def _rows(loops: tuple[Loop, ...], kind: Kind) -> list[tuple[Loop, ...]]:
    """Each loop of a kind alone, or the empty row where there is none."""
    return [(loop,) for loop in loops if loop.kind is kind] or [()]


def outermost_last(loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
    return tuple(sorted(loops, key=lambda loop: abs(loop.d)))


def _why_gemm(batch: tuple[Loop, ...]) -> str:
    count = prod(loop.extent for loop in batch)
    return f"BLAS, no copies, {count} products" if batch else "BLAS, no copies"


def _all_direct(problem: ProductProblem) -> bool:
    return (
        is_direct(problem.a, problem.dtype)
        and is_direct(problem.b, problem.dtype)
        and problem.d.dtype == problem.dtype
    )


def _lies_like_d(problem: ProductProblem, loops: tuple[Loop, ...]) -> bool:
    """Whether C has D's type and strides: it may be D, or is copied there first."""
    c = problem.c
    return c is not None and is_direct(c, problem.dtype) and all(x.c == x.d for x in loops)


def _is_gemm(m: Sequence[Loop], n: Sequence[Loop], k: Sequence[Loop]) -> bool:
    """Whether all three matrices of one product are BLAS matrices."""
    return (
        is_matrix(extent_of(m), first_stride(m, STRIDE_A), extent_of(k), first_stride(k, STRIDE_A))
        and is_matrix(
            extent_of(k), first_stride(k, STRIDE_B), extent_of(n), first_stride(n, STRIDE_B)
        )
        and is_matrix(
            extent_of(m), first_stride(m, STRIDE_D), extent_of(n), first_stride(n, STRIDE_D)
        )
    )


def gemm_seconds(step: Product, machine: Machine) -> float:
    m, n, k = step.extent(Kind.M), step.extent(Kind.N), step.extent(Kind.K)
    count = step.extent(Kind.BATCH)
    seconds = machine.call + machine.product_seconds(count, m, n, k, step.dtype)
    for stride in (STRIDE_A, STRIDE_B, STRIDE_D, *[STRIDE_C] * (step.c is not None)):
        own = [loop for loop in step.loops if stride(loop)]
        seconds += machine.stream_seconds(extent_of(own), run_length(own, stride), step.dtype)
    return seconds


# --- TTGT -------------------------------------------------------------------------------------


def transposed_options(
    problem: ProductProblem, loops: tuple[Loop, ...], machine: Machine
) -> list[Option]:
    """The whole-tensor way with the fewest bytes permuted."""
    layouts = combinations((STRIDE_A, STRIDE_D), (STRIDE_B, STRIDE_D), (STRIDE_A, STRIDE_B))
    found = [_transposed(problem, loops, machine, *layout) for layout in layouts]
    return [min(found, key=lambda option: (option.temporary_bytes, option.seconds))]


def _transposed(
    problem: ProductProblem,
    loops: tuple[Loop, ...],
    machine: Machine,
    order_m: Stride,
    order_n: Stride,
    order_k: Stride,
) -> Option:
    groups = {
        Kind.M: _sorted(loops, Kind.M, order_m),
        Kind.N: _sorted(loops, Kind.N, order_n),
        Kind.K: _sorted(loops, Kind.K, order_k),
        Kind.BATCH: _sorted(loops, Kind.BATCH, STRIDE_D),
    }
    packing = _Packing(problem, problem.next_slot)
    a = packing.operand(problem.a, STRIDE_A, groups[Kind.M], groups[Kind.K], groups[Kind.BATCH])
    b = packing.operand(problem.b, STRIDE_B, groups[Kind.K], groups[Kind.N], groups[Kind.BATCH])
    d = packing.result(groups[Kind.M], groups[Kind.N], groups[Kind.BATCH])
    inner = replace(problem, a=a, b=b, d=d, c=None, scaled=problem.scaled and d is problem.d)
    step = product_step(Gemm, inner, _outermost_last_table(loop_table(inner)))
    seconds = gemm_seconds(step, machine) + sum(
        machine.call + machine.copy_seconds(prod(t.extents), 64, t.dtype, True, prod(t.extents)) * 2
        for t in packing.temporaries
    )
    count = len(packing.temporaries)
    reason = f"{count} tensor{'s' * (count != 1)} permuted, one Gemm"
    steps = (*packing.before, step, *packing.after)
    return Option(Algo.TTGT, seconds, reason, steps, problem.d, tuple(packing.temporaries))


def _outermost_last_table(loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
    batch = tuple(loop for loop in loops if loop.kind is Kind.BATCH)
    rest = tuple(loop for loop in loops if loop.kind is not Kind.BATCH)
    return (*outermost_last(batch), *rest)


def _sorted(loops: tuple[Loop, ...], kind: Kind, stride: Stride) -> tuple[Loop, ...]:
    return tuple(
        sorted((loop for loop in loops if loop.kind is kind), key=lambda x: abs(stride(x)))
    )


class _Packing:
    """Collects the permutations that make every operand of a product a matrix."""

    def __init__(self, problem: ProductProblem, next_slot: int) -> None:
        self.problem = problem
        self.next_slot = next_slot
        self.before: list[Step] = []
        self.after: list[Step] = []
        self.temporaries: list[TensorDescriptor] = []

    def operand(
        self,
        term: Term,
        stride: Stride,
        rows: tuple[Loop, ...],
        columns: tuple[Loop, ...],
        batch: tuple[Loop, ...],
    ) -> Term:
        """``term`` itself where it is a matrix already, else a permuted copy of it."""
        if is_direct(term, self.problem.dtype) and _is_flat_matrix(stride, rows, columns):
            return term
        # The stride-1 loop stays fastest: such a copy moves rows instead of transposing.
        inner, outer = rows, columns
        if columns and (not rows or abs(stride(columns[0])) < abs(stride(rows[0]))):
            inner, outer = columns, rows
        packed = self._temporary((*inner, *outer, *batch))
        self.before.append(self._copy(term, packed))
        return packed

    def result(
        self, rows: tuple[Loop, ...], columns: tuple[Loop, ...], batch: tuple[Loop, ...]
    ) -> Term:
        """The output itself where the product can write it, else a matrix to permute from."""
        problem = self.problem
        direct = problem.c is None and problem.d.dtype == problem.dtype
        if direct and _is_flat_matrix(STRIDE_D, rows, columns):
            return problem.d
        packed = self._temporary((*rows, *columns, *batch))
        self.after.append(self._last(packed))
        return packed

    def _last(self, packed: Term) -> Step:
        """The permutation from the packed product to D, scaled and added to C."""
        problem = self.problem
        alpha = Scalar.ALPHA if problem.scaled else None
        copy = self._copy(packed, problem.d)
        source = replace(copy.source, scalar=alpha)
        if problem.c is None:
            return replace(copy, source=source)
        addend = problem.c.source(copy.modes, Scalar.BETA)
        add = (BinaryOperator.ADD,)
        return Elementwise((source, addend), add, copy.target, copy.extents, copy.modes, copy.dtype)

    def _temporary(self, loops: tuple[Loop, ...]) -> Term:
        modes = tuple(mode for loop in loops for mode in loop.modes)
        extents = tuple(self.problem.extents[mode] for mode in modes)
        tensor = TensorDescriptor(extents, None, self.problem.dtype)
        self.temporaries.append(tensor)
        slot = self.next_slot + len(self.temporaries) - 1
        return Term(slot, modes, packed_strides(extents), self.problem.dtype)

    def _copy(self, source: Term, target: Term) -> Permute:
        modes = target.modes
        extents = tuple(self.problem.extents[mode] for mode in modes)
        dtype = self.problem.dtype
        return Permute(source.source(modes), target.view(modes), extents, modes, dtype)


def _is_flat_matrix(stride: Stride, rows: tuple[Loop, ...], columns: tuple[Loop, ...]) -> bool:
    """Whether rows and columns are each one loop of the operand, and together a matrix."""
    return (
        _is_flat(stride, rows)
        and _is_flat(stride, columns)
        and is_matrix(
            extent_of(rows),
            first_stride(rows, stride),
            extent_of(columns),
            first_stride(columns, stride),
        )
    )


def _is_flat(stride: Stride, loops: tuple[Loop, ...]) -> bool:
    return all(stride(outer) == stride(inner) * inner.extent for inner, outer in pairwise(loops))
