"""One pairwise product: its operands, its table of loops, and what makes a matrix for BLAS.

The modules that find ways to run a product (host_options, device_options, and those of tiles,
panels and matrices) share these tables; everything here is arithmetic on plain integers.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import auto
from itertools import count
from math import prod
from operator import attrgetter
from typing import NamedTuple, TypeVar, assert_never

from contract.descriptors.compute_types import ComputeType
from contract.descriptors.operations import Algo, TensorDescriptor
from contract.descriptors.operators import BinaryOperator, Operator
from contract.plan.steps import (
    Elementwise,
    Gemm,
    Gett,
    Kind,
    Loop,
    PassStep,
    Permute,
    Reduce,
    Scalar,
    Source,
    Step,
    View,
)
from contract.plan.workspace import ALIGNMENT
from contract.support.choices import Choice

__all__ = [
    "STRIDE_A",
    "STRIDE_B",
    "STRIDE_C",
    "STRIDE_D",
    "Option",
    "ProductProblem",
    "Search",
    "Stride",
    "Term",
    "block_rank",
    "elementwise_step",
    "extent_of",
    "extents_of",
    "first_stride",
    "has_lone_sum",
    "is_direct",
    "is_matrix",
    "likeness",
    "loop_table",
    "makes_matrix",
    "named",
    "product_step",
    "renumbered",
    "run_length",
]

Stride = Callable[[Loop], int]
ProductStep = TypeVar("ProductStep", Gemm, Gett)
_EXTENT: Callable[[Loop], int] = attrgetter("extent")
STRIDE_A: Stride = attrgetter("a")
STRIDE_B: Stride = attrgetter("b")
STRIDE_D: Stride = attrgetter("d")
STRIDE_C: Stride = attrgetter("c")


class Term(NamedTuple):
    """A tensor in the course of planning: a slot, its distinct modes and their strides.

    Its address is a multiple of ``alignment`` bytes: that of a temporary if nothing else is said.
    """

    slot: int
    modes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    operator: Operator = Operator.IDENTITY
    alignment: int = ALIGNMENT

    def view(self, modes: Iterable[int]) -> View:
        """The term seen through dimensions ``modes``, of stride 0 where it has not the mode."""
        strides = self.by_mode
        return View(self.slot, tuple([strides.get(mode, 0) for mode in modes]))

    def source(self, modes: Iterable[int], scalar: Scalar | None = None) -> Source:
        """The same with the term's operator, scaled where a scalar is given."""
        return Source(self.view(modes), self.operator, scalar)

    @property
    def fastest_first(self) -> tuple[int, ...]:
        """The modes by increasing absolute stride."""
        steps = map(abs, self.strides)
        ordered = sorted(zip(steps, count(), self.modes, strict=False))
        return tuple([mode for _, _, mode in ordered])

    @property
    def apart_from_names(self) -> tuple[Hashable, ...]:
        """All but the slot and the modes."""
        return self.strides, self.dtype, self.operator, self.alignment

    @property
    def by_mode(self) -> dict[int, int]:
        """The stride of each mode."""
        return dict(zip(self.modes, self.strides, strict=True))


class ProductProblem(NamedTuple):
    """d = [alpha *] a * b [+ beta * c], formed in ``dtype``; new slots count from ``next_slot``.

    ``scaled`` says whether alpha belongs to this product; its d is then the result. ``compute``
    is the least accuracy asked for; None: that of ``dtype``.
    """

    a: Term
    b: Term
    d: Term
    c: Term | None
    extents: tuple[int, ...]
    dtype: str
    scaled: bool
    next_slot: int
    compute: ComputeType | None = None

    @property
    def terms(self) -> tuple[Term, ...]:
        """A, B, D, and C where there is one."""
        three = self.a, self.b, self.d
        return three if self.c is None else (*three, self.c)


class Search(Choice):
    """Which ways to do a product are looked for."""

    ALL = auto()
    WINNER = auto()  # not those that are certain to take longer than others
    BRIEF = auto()  # nor those that most often do


class Option(NamedTuple):
    """Steps that solve a problem, the temporaries they need, and what the model predicts.

    ``copying`` of the seconds are spent on permutations.
    """

    algo: Algo
    seconds: float
    reason: str
    steps: tuple[Step, ...]
    d: Term
    temporaries: tuple[TensorDescriptor, ...] = ()
    copying: float = 0.0

    @property
    def temporary_bytes(self) -> int:
        """Bytes of all temporaries."""
        return sum(tensor.packed_bytes for tensor in self.temporaries)


@dataclass(frozen=True, slots=True)
class _Names:
    """What slots and modes of a product are called in another one; further slots are ``later``."""

    slots: Mapping[int, int]
    modes: Mapping[int, int]
    later: int

    def slot(self, slot: int) -> int:
        """The slot there."""
        return self.slots.get(slot, slot + self.later)

    def named(self, step: Step) -> Step:
        """The step on the slots and modes there."""
        match step:
            case Gemm() | Gett():
                loops = tuple(map(self._loop, step.loops))
                c = None if step.c is None else self.slot(step.c)
                a, b, d = self.slot(step.a), self.slot(step.b), self.slot(step.d)
                return replace(step, a=a, b=b, d=d, c=c, loops=loops)
            case Elementwise() | Permute() | Reduce():
                return self.pass_named(step)
        assert_never(step)

    def pass_named(self, step: PassStep) -> PassStep:
        """The same of a step that is no product."""
        target, modes = self._view(step.target), self._modes(step.modes)
        if isinstance(step, Elementwise):
            sources = tuple(map(self._source, step.sources))
            return replace(step, target=target, modes=modes, sources=sources)
        source = self._source(step.source)
        if isinstance(step, Permute):
            return replace(step, target=target, modes=modes, source=source)
        addend = None if step.addend is None else self._source(step.addend)
        return replace(step, target=target, modes=modes, source=source, addend=addend)

    def _loop(self, loop: Loop) -> Loop:
        modes = self._modes(loop.modes)
        return Loop(loop.kind, loop.extent, loop.a, loop.b, loop.d, loop.c, modes)

    def _source(self, source: Source) -> Source:
        return Source(self._view(source.view), source.operator, source.scalar)

    def _view(self, view: View) -> View:
        return View(self.slot(view.slot), view.strides)

    def _modes(self, modes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([self.modes[mode] for mode in modes])


def likeness(problem: ProductProblem) -> Hashable:
    """Equal for products that differ in nothing but the numbers of their slots and modes."""
    terms = problem.terms
    slots = _counted([term.slot for term in terms])
    modes = _counted([mode for term in terms for mode in term.modes])
    tensors = [
        (slots[term.slot], tuple([modes[mode] for mode in term.modes]), *term.apart_from_names)
        for term in terms
    ]
    extents = tuple([problem.extents[mode] for mode in modes])
    return (*tensors, extents, problem.dtype, problem.scaled, problem.compute)


def _counted(values: Iterable[int]) -> dict[int, int]:
    """The distinct values, each with its number in order of appearance."""
    return {value: at for at, value in enumerate(dict.fromkeys(values))}


def named(
    steps: tuple[Step, ...], problem: ProductProblem, other: ProductProblem
) -> tuple[Step, ...]:
    """Steps that solve a problem, on the slots and modes of another like it."""
    if problem is other:
        return steps
    slots, modes = dict[int, int](), dict[int, int]()
    for here, there in zip(problem.terms, other.terms, strict=True):
        slots[here.slot] = there.slot
        modes |= zip(here.modes, there.modes, strict=True)
    names = _Names(slots, modes, other.next_slot - problem.next_slot)
    return tuple(map(names.named, steps))


def renumbered(step: PassStep, slots: Mapping[int, int]) -> PassStep:
    """The step on other slots where ``slots`` has them."""
    modes = {mode: mode for mode in step.modes}
    return _Names(slots, modes, 0).pass_named(step)


# --- the table of loops -----------------------------------------------------------------------


def loop_table(
    problem: ProductProblem, runs: Iterable[tuple[int, ...]] | None = None
) -> tuple[Loop, ...]:
    """One loop for each mode of a product, modes contiguous in every operand fused.

    ``runs`` are modes, fastest first, that are known to be contiguous; None: each is by itself.
    """
    a, b, d = problem.a.by_mode, problem.b.by_mode, problem.d.by_mode
    c = {} if problem.c is None else problem.c.by_mode
    extents = problem.extents
    loops = []
    for modes in [(mode,) for mode in {**d, **a, **b}] if runs is None else runs:
        fast = modes[0]
        kind = _KINDS.get((fast in a, fast in b, fast in d), Kind.K)
        extent = extents[fast] if len(modes) == 1 else prod([extents[mode] for mode in modes])
        strides = a.get(fast, 0), b.get(fast, 0), d.get(fast, 0), c.get(fast, 0)
        loops.append(Loop(kind, extent, *strides, modes))
    loops.sort(key=_reach, reverse=True)
    return tuple(sorted(_fused(loops), key=_place))


def _reach(loop: Loop) -> int:
    _, _, a, b, d, c, _ = loop
    return abs(a) + abs(b) + abs(d) + abs(c)


def _place(loop: Loop) -> tuple[int, int, int]:
    return _RANKS[loop.kind], abs(loop.d), abs(loop.a)


# By whether A, B and D have the mode. One of a single operand is of kind k too: the other has
# stride 0 there.
_KINDS = {
    (True, True, True): Kind.BATCH,
    (True, False, True): Kind.M,
    (False, True, True): Kind.N,
}


_RANKS = {Kind.K: 0, Kind.BATCH: 1, Kind.M: 2, Kind.N: 3}


def _fused(loops: Iterable[Loop]) -> list[Loop]:
    """The same iteration space with every fusable pair of loops made one.

    Loops come by falling strides: where one continues another it has its own continuation by the
    time the other looks for it.
    """
    found: dict[tuple[Kind, int, int, int, int], list[Loop]] = {}
    for inner in loops:
        kind, n, a, b, d, c, modes = inner
        outer = found.get((kind, n * a, n * b, n * d, n * c))
        if outer:
            joined = outer.pop(0)
            inner = Loop(kind, n * joined.extent, a, b, d, c, modes + joined.modes)
        found.setdefault((kind, a, b, d, c), []).append(inner)
    return [loop for alike in found.values() for loop in alike]


def has_lone_sum(loops: Iterable[Loop]) -> bool:
    """Whether some mode is summed over that one operand has not."""
    return any([loop.kind is Kind.K and not (loop.a and loop.b) for loop in loops])


# --- matrices ---------------------------------------------------------------------------------


def is_direct(term: Term, dtype: str) -> bool:
    """Whether a product in ``dtype`` can read the term without converting it."""
    return term.dtype == dtype and term.operator is Operator.IDENTITY


def is_matrix(rows: int, row_stride: int, columns: int, column_stride: int) -> bool:
    """Whether BLAS takes the matrix: one stride is 1, the other at least the extent beside it."""
    if rows == 1 or columns == 1:
        return (rows == 1 or row_stride > 0) and (columns == 1 or column_stride > 0)
    return (row_stride == 1 and column_stride >= rows) or (
        column_stride == 1 and row_stride >= columns
    )


def makes_matrix(stride: Stride, rows: Sequence[Loop], columns: Sequence[Loop]) -> bool:
    """Whether BLAS takes an operand where it lies; rows and columns are each one loop of it."""
    return is_matrix(
        extent_of(rows),
        first_stride(rows, stride),
        extent_of(columns),
        first_stride(columns, stride),
    )


def extent_of(loops: Sequence[Loop]) -> int:
    """The number of index values of the loops together."""
    return prod(map(_EXTENT, loops))


def extents_of(loops: Iterable[Loop]) -> dict[Kind, int]:
    """The number of index values of the loops of each kind."""
    found = {Kind.BATCH: 1, Kind.M: 1, Kind.N: 1, Kind.K: 1}
    for loop in loops:
        found[loop.kind] *= loop.extent
    return found


def first_stride(loops: Sequence[Loop], stride: Stride) -> int:
    """The stride of the fastest loop, 0 without loops."""
    return stride(loops[0]) if loops else 0


def run_length(loops: Sequence[Loop], stride: Stride, blocks: Sequence[int] | None = None) -> int:
    """How many elements lie in a row when the loops run over their blocks."""
    sizes = list(map(_EXTENT, loops)) if blocks is None else blocks
    steps = list(map(abs, map(stride, loops)))
    run = 1
    while run in steps:
        at = steps.index(run)
        steps[at], run = 0, run * sizes[at]
        if sizes[at] < loops[at].extent:
            break
    return run


def product_step(
    kind: type[ProductStep], problem: ProductProblem, loops: tuple[Loop, ...]
) -> ProductStep:
    return kind(
        a=problem.a.slot,
        b=problem.b.slot,
        d=problem.d.slot,
        loops=loops,
        dtype=problem.dtype,
        operator_a=problem.a.operator,
        operator_b=problem.b.operator,
        scaled=problem.scaled,
        c=problem.c.slot if problem.c else None,
        operator_c=problem.c.operator if problem.c else Operator.IDENTITY,
        compute=problem.compute,
    )


def elementwise_step(problem: ProductProblem) -> Elementwise:
    """d = a * b [+ c] where nothing is summed: broadcast strides."""
    modes = problem.d.modes
    alpha = Scalar.ALPHA if problem.scaled else None
    sources = [problem.a.source(modes, alpha), problem.b.source(modes)]
    if problem.c is not None:
        sources.append(problem.c.source(modes, Scalar.BETA))
    return Elementwise(
        tuple(sources),
        (BinaryOperator.MUL, BinaryOperator.ADD)[: len(sources) - 1],
        problem.d.view(modes),
        tuple([problem.extents[mode] for mode in modes]),
        modes,
        problem.dtype,
    )


def block_rank(loop: Loop) -> int:
    """The order in which blocks are visited: l outermost, k innermost."""
    return {Kind.BATCH: 0, Kind.M: 1, Kind.N: 2, Kind.K: 3}[loop.kind]
