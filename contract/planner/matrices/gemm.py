"""Products as whole matrix products: Gemm on operands where they lie, and TTGT.

TTGT permutes operands until they are matrices, multiplies, and permutes the result. What these
steps cost is the machine's to say.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from itertools import takewhile
from operator import attrgetter

from contract.descriptors.compute_types import is_blas_type
from contract.descriptors.operators import Operator
from contract.plan.products import (
    STRIDE_A,
    STRIDE_B,
    STRIDE_D,
    ProductProblem,
    Stride,
    is_direct,
    loop_table,
    makes_matrix,
    product_step,
)
from contract.plan.steps import Gemm, Kind, Loop, Step
from contract.planner.matrices.ttgt import Orders, Permuted, is_flat_matrix, matrix_orders, permuted

__all__ = ["Blas", "Transposed", "Way", "gemms", "transposed", "ways", "why_gemm", "why_transposed"]


@dataclass(frozen=True, slots=True)
class Blas:
    """What a machine's BLAS takes: C where it lies as D does, and A and B of 16 bits."""

    adds: bool
    halves: bool

    def factors(self, problem: ProductProblem) -> str | None:
        """The type in which A and B are multiplied; None where BLAS cannot form the sums."""
        a, b = problem.a, problem.b
        if not is_blas_type(problem.dtype):
            return None
        is_plain = a.operator is b.operator is Operator.IDENTITY
        half = a.dtype in ("float16", "bfloat16") and a.dtype == b.dtype and is_plain
        return a.dtype if half and self.halves and problem.dtype == "float32" else problem.dtype


def gemms(problem: ProductProblem, loops: tuple[Loop, ...], blas: Blas) -> Iterator[Gemm]:
    """Products whose strides BLAS takes; further loops of m and n enumerate products."""
    k = [loop for loop in loops if loop.kind is Kind.K]
    factors = blas.factors(problem)
    if len(k) > 1 or factors is None or not _all_direct(problem, factors):
        return
    if problem.c is not None and not (blas.adds and _lies_like_d(problem, loops)):
        return
    for m, n in combinations(_rows(loops, Kind.M), _rows(loops, Kind.N)):
        if _is_gemm(m, n, k):
            chosen = (*m, *n, *k)
            taken = {loop.modes for loop in chosen}
            others = [loop for loop in loops if loop.modes not in taken]
            batch = tuple([loop._replace(kind=Kind.BATCH) for loop in others])
            yield product_step(Gemm, problem, (*_outermost_last(batch), *chosen))


def why_gemm(step: Gemm) -> str:
    count = step.extent(Kind.BATCH)
    several = any(loop.kind is Kind.BATCH for loop in step.loops)
    return f"BLAS, no copies, {count} products" if several else "BLAS, no copies"


def _rows(loops: tuple[Loop, ...], kind: Kind) -> list[tuple[Loop, ...]]:
    """Each loop of a kind alone, or the empty row where there is none."""
    return [(loop,) for loop in loops if loop.kind is kind] or [()]


def _outermost_last(loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
    return tuple(sorted(loops, key=lambda loop: abs(loop.d)))


def _all_direct(problem: ProductProblem, factors: str) -> bool:
    return (
        is_direct(problem.a, factors)
        and is_direct(problem.b, factors)
        and problem.d.dtype in (factors, problem.dtype)
    )


def _lies_like_d(problem: ProductProblem, loops: tuple[Loop, ...]) -> bool:
    """Whether C has D's type and strides: it may be D, or is copied there first."""
    c = problem.c
    return c is not None and is_direct(c, problem.d.dtype) and all(x.c == x.d for x in loops)


def _is_gemm(m: Sequence[Loop], n: Sequence[Loop], k: Sequence[Loop]) -> bool:
    """Whether all three matrices of one product are BLAS matrices."""
    return (
        makes_matrix(STRIDE_A, m, k)
        and makes_matrix(STRIDE_B, k, n)
        and makes_matrix(STRIDE_D, m, n)
    )


# --- TTGT -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transposed:
    """Permutations that make matrices, the product of these, and the permutation to D."""

    packing: Permuted
    gemm: Gemm

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, in order."""
        return (*self.packing.before, self.gemm, *self.packing.after)


@dataclass(frozen=True, slots=True)
class Way:
    """The loops of the matrices' rows and columns in order, and the operands copied for that.

    A copy of A or B is in the type ``factors``, one of D in the product's.
    """

    orders: Orders
    copied: tuple[Stride, ...]
    factors: str


def ways(problem: ProductProblem, loops: tuple[Loop, ...], blas: Blas) -> list[Way]:
    """Every order of rows and columns; none where BLAS has no such sums.

    Where nothing is to be permuted the product is one of ``gemms``.
    """
    factors = blas.factors(problem)
    if factors is None:
        return []
    every = (Way(x, _no_matrices(problem, x, factors), factors) for x in matrix_orders(loops))
    return list(takewhile(attrgetter("copied"), every))


def transposed(problem: ProductProblem, loops: tuple[Loop, ...], way: Way) -> Transposed:
    """The product in this way."""
    packing = permuted(problem, way.orders, way.copied, way.factors)
    table = loop_table(packing.inner, [loop.modes for loop in loops])  # runs, which copies keep
    batch = tuple([loop for loop in table if loop.kind is Kind.BATCH])
    rest = [loop for loop in table if loop.kind is not Kind.BATCH]
    return Transposed(packing, product_step(Gemm, packing.inner, (*_outermost_last(batch), *rest)))


def why_transposed(packing: Permuted) -> str:
    count = len(packing.temporaries)
    return f"{count} tensor{'s' * (count != 1)} permuted"


def _no_matrices(problem: ProductProblem, orders: Orders, factors: str) -> tuple[Stride, ...]:
    """The operands that BLAS cannot use where they lie."""
    m, n, k = orders[Kind.M], orders[Kind.N], orders[Kind.K]
    direct_d = problem.c is None and problem.d.dtype in (factors, problem.dtype)
    matrices = (
        (STRIDE_A, is_direct(problem.a, factors), m, k),
        (STRIDE_B, is_direct(problem.b, factors), k, n),
        (STRIDE_D, direct_d, m, n),
    )
    found = [
        stride
        for stride, direct, rows, columns in matrices
        if not (direct and is_flat_matrix(stride, rows, columns))
    ]
    return tuple(found)
