"""Products on permuted copies: operands in the order of a matrix, and the way back to D."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from itertools import product as combinations

from contract.descriptors.compute_types import accumulator
from contract.descriptors.operations import TensorDescriptor
from contract.descriptors.operators import BinaryOperator, Operator
from contract.plan.products import (
    STRIDE_A,
    STRIDE_B,
    STRIDE_D,
    ProductProblem,
    Stride,
    Term,
    makes_matrix,
)
from contract.plan.steps import Elementwise, Kind, Loop, Permute, Scalar, Step, View

__all__ = ["Orders", "Permuted", "is_flat_matrix", "matrix_orders", "orders_of", "permuted"]

Orders = Mapping[Kind, tuple[Loop, ...]]  # the loops of each kind, the fastest first


@dataclass(frozen=True, slots=True)
class Permuted:
    """``before`` makes copies, ``inner`` is the problem on them, ``after`` makes D."""

    before: tuple[Step, ...]
    inner: ProductProblem
    after: tuple[Step, ...]
    temporaries: tuple[TensorDescriptor, ...]


def matrix_orders(loops: tuple[Loop, ...]) -> Iterator[Orders]:
    """The loops of each kind in the order in which one of the two tensors that have it does.

    Where both have the same order there is one.
    """
    choices = {
        Kind.M: (STRIDE_A, STRIDE_D),
        Kind.N: (STRIDE_B, STRIDE_D),
        Kind.K: (STRIDE_A, STRIDE_B),
        Kind.BATCH: (STRIDE_D,),
    }
    orders = [_different(loops, kind, strides) for kind, strides in choices.items()]
    for each in combinations(*orders):
        yield dict(zip(choices, each, strict=True))


def orders_of(loops: tuple[Loop, ...], m: Stride, n: Stride, k: Stride) -> Orders:
    """The loops of each kind by the stride given for it, those of batches by that of D."""
    strides = {Kind.M: m, Kind.N: n, Kind.K: k, Kind.BATCH: STRIDE_D}
    return {kind: _sorted(loops, kind, stride) for kind, stride in strides.items()}


def _different(
    loops: Iterable[Loop], kind: Kind, strides: Iterable[Stride]
) -> list[tuple[Loop, ...]]:
    """The different orders of the loops of a kind by these strides."""
    own = [loop for loop in loops if loop.kind is kind]
    if len(own) < 2:
        return [tuple(own)]
    return list(dict.fromkeys([_sorted(own, kind, stride) for stride in strides]))


def _sorted(loops: Iterable[Loop], kind: Kind, stride: Stride) -> tuple[Loop, ...]:
    own = [loop for loop in loops if loop.kind is kind]
    return tuple(sorted(own, key=lambda x: abs(stride(x))))


def permuted(
    problem: ProductProblem,
    orders: Orders,
    copied: Collection[Stride],
    factors: str | None = None,
) -> Permuted:
    """The problem with copies of the operands ``copied``.

    Copies of A and B are in the type ``factors``, their operators applied; None: as they are.
    """
    packing = _Packing(problem, problem.next_slot)
    m, n, k, batch = (orders[kind] for kind in (Kind.M, Kind.N, Kind.K, Kind.BATCH))
    a, b, d, c = problem.a, problem.b, problem.d, problem.c
    if STRIDE_A in copied:
        a = packing.operand(a, STRIDE_A, m, k, batch, factors)
    if STRIDE_B in copied:
        b = packing.operand(b, STRIDE_B, k, n, batch, factors)
    if STRIDE_D in copied:
        d, c = packing.result(m, n, batch), None
    scaled = problem.scaled and d is problem.d
    next_slot = problem.next_slot + len(packing.temporaries)
    inner = problem._replace(a=a, b=b, d=d, c=c, scaled=scaled, next_slot=next_slot)
    return Permuted(tuple(packing.before), inner, tuple(packing.after), tuple(packing.temporaries))


class _Packing:
    """Collects copies, the steps that make them, and the temporaries they lie in."""

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
        factors: str | None,
    ) -> Term:
        """A copy of ``term`` as a matrix."""
        # The stride-1 loop stays fastest: such a copy moves rows instead of transposing.
        inner, outer = rows, columns
        if columns and (not rows or abs(stride(columns[0])) < abs(stride(rows[0]))):
            inner, outer = columns, rows
        packed = self._temporary((*inner, *outer, *batch), factors or term.dtype)
        if factors is not None:
            self.before.append(self._copy(term, packed, self.problem.dtype))
            return packed
        plain = term._replace(operator=Operator.IDENTITY)
        self.before.append(self._copy(plain, packed, accumulator(term.dtype)))
        return packed._replace(operator=term.operator)

    def result(
        self, rows: tuple[Loop, ...], columns: tuple[Loop, ...], batch: tuple[Loop, ...]
    ) -> Term:
        """A matrix to permute D from."""
        packed = self._temporary((*rows, *columns, *batch), self.problem.dtype)
        self.after.append(self._last(packed))
        return packed

    def _last(self, packed: Term) -> Step:
        """The permutation from the packed product to D, scaled and added to C."""
        problem, alpha = self.problem, Scalar.ALPHA if self.problem.scaled else None
        copy = self._copy(packed, problem.d, problem.dtype, alpha)
        if problem.c is None:
            return copy
        sources = copy.source, problem.c.source(copy.modes, Scalar.BETA)
        add = (BinaryOperator.ADD,)
        return Elementwise(sources, add, copy.target, copy.extents, copy.modes, copy.dtype)

    def _temporary(self, loops: tuple[Loop, ...], dtype: str) -> Term:
        modes = tuple(mode for loop in loops for mode in loop.modes)
        extents = tuple([self.problem.extents[mode] for mode in modes])
        tensor = TensorDescriptor(extents, None, dtype)
        self.temporaries.append(tensor)
        slot = self.next_slot + len(self.temporaries) - 1
        return Term(slot, modes, tensor.steps, dtype)

    def _copy(
        self, source: Term, target: Term, dtype: str, scalar: Scalar | None = None
    ) -> Permute:
        modes = target.modes
        extents = tuple([self.problem.extents[mode] for mode in modes])
        view = View(target.slot, target.strides)
        return Permute(source.source(modes, scalar), view, extents, modes, dtype)


# --- what is a matrix already -----------------------------------------------------------------


def is_flat_matrix(stride: Stride, rows: tuple[Loop, ...], columns: tuple[Loop, ...]) -> bool:
    """Whether rows and columns are each one loop of the operand, and together a matrix."""
    flat = _is_flat(stride, rows) and _is_flat(stride, columns)
    return flat and makes_matrix(stride, rows, columns)


def _is_flat(stride: Stride, loops: tuple[Loop, ...]) -> bool:
    pairs = pairwise(loops)
    return all([stride(outer) == stride(inner) * inner.extent for inner, outer in pairs])
