"""The tensors of an operation -> what is done with them, in order, and the temporaries between.

A mode that only one operand has and the output has not is summed before anything else; a mode of
stride 0 is dropped where another operand has it. N operands become pairs along a path. How a pair
is multiplied is left open.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import NamedTuple

from contract.descriptors.compute_types import is_complex, item_size, real_of
from contract.descriptors.layout import diagonal, packed_strides
from contract.descriptors.operations import (
    Algo,
    Contraction,
    ElementwiseOperation,
    Operand,
    OperationDescriptor,
    PlanPreference,
    Reduction,
    TensorDescriptor,
)
from contract.descriptors.operators import BinaryOperator, Operator
from contract.errors import InvalidValueError
from contract.machines.cpu import Cpu
from contract.machines.machine import Machine
from contract.plan.products import Term
from contract.plan.steps import (
    Elementwise,
    PassStep,
    Permute,
    Reduce,
    Scalar,
    Slot,
    SlotKind,
    Source,
    View,
)
from contract.plan.workspace import rounded
from contract.planner.mode_orders import MemoryOrder, mode_orders
from contract.planner.pairs import Twin, scheduled, twins, unformed
from contract.planner.paths import Pair, Path, contraction_path, counted, pairs_along
from contract.planner.validation import Tensors

__all__ = ["Multiply", "Network", "Pass", "Tree", "addend_alone", "is_plain", "network_of"]

# Which scalar belongs to which operand of an elementwise operation.
_SCALARS = {2: (Scalar.ALPHA, Scalar.GAMMA), 3: (Scalar.ALPHA, Scalar.BETA, Scalar.GAMMA)}
_ONCE = "every element read once"


class Pass(NamedTuple):
    """A step of which there is one form, and why it is there."""

    step: PassStep
    reason: str


class Multiply(NamedTuple):
    """d = [alpha *] a * b [+ beta * c], in one of several ways."""

    a: Term
    b: Term
    d: Term
    c: Term | None
    scaled: bool


Task = Pass | Multiply


class Tree(NamedTuple):
    """Products in order, the mode orders of their results, and which repeat an earlier one.

    ``path`` is the order of products as opt_einsum writes it.
    """

    path: Path
    pairs: tuple[Pair, ...]
    orders: tuple[tuple[int, ...], ...]
    same: Mapping[int, Twin]


class Network(NamedTuple):
    """Tasks in order; the first ``given`` of ``slots`` are the operation's, others temporaries."""

    given: int
    slots: tuple[Slot, ...]
    tasks: tuple[Task, ...]
    tree: Tree | None  # None: nothing is multiplied


def network_of(
    operation: OperationDescriptor,
    tensors: Tensors,
    preference: PlanPreference,
    machine: Machine,
    tree: Tree | None = None,
) -> Network:
    """From the inputs to the output; ``tree``: as found before, for a plan of another rank."""
    plain = is_plain(preference)
    far = machine.panel_bytes[-1] if isinstance(machine, Cpu) and plain else None
    limits = _Limits(preference.temporary_limit, far, plain)
    draft = _Draft(tensors, limits, [*tensors.slots], [], tree)
    if 0 not in operation.output.tensor.extents:  # else there is nothing to do
        match operation:
            case ElementwiseOperation():
                _combine(draft, operation)
            case Reduction():
                _reduce(draft, operation)
            case Contraction():
                _products(draft, operation, preference.path)
    return Network(len(tensors.slots), tuple(draft.slots), tuple(draft.tasks), draft.tree)


def is_plain(preference: PlanPreference) -> bool:
    """Whether neither an algorithm nor a rank is asked for."""
    return preference.algo is Algo.DEFAULT and preference.kernel_rank == 0


def addend_alone(operation: OperationDescriptor, output: TensorDescriptor) -> Elementwise:
    """D = beta * op(C), or zeros, where D lies as ``output``; its repeated modes stay apart."""
    slot = len(operation.inputs)
    modes, addend = operation.output.modes, operation.addend
    sources: tuple[Source, ...] = ()
    if addend is not None:
        strides = tuple(addend.tensor.steps[at] for at in _places(addend.modes, modes))
        sources = (Source(View(slot + 1, strides), addend.operator, Scalar.BETA),)
    target, dtype = View(slot, output.steps), operation.rule.accumulator
    return Elementwise(sources, (), target, output.extents, modes, dtype)


def _places(modes: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """The dimension of each wanted mode; a repeated mode takes its dimensions in turn."""
    left = list(enumerate(modes))
    places = []
    for mode in wanted:
        found = next(pair for pair in left if pair[1] == mode)
        left.remove(found)
        places.append(found[0])
    return places


# --- slots and tasks --------------------------------------------------------------------------


class _Limits(NamedTuple):
    """What bears on the tasks.

    Temporaries take at most ``temporary`` bytes. Operands of more than ``far`` bytes may be copied
    to lie along a result. Unless it is ``plain``, every product is formed. None: no bound.
    """

    temporary: int | None
    far: int | None
    plain: bool


@dataclass(slots=True)
class _Draft:
    """A network while it is made; ``tree`` as soon as it is known."""

    tensors: Tensors
    limits: _Limits
    slots: list[Slot]
    tasks: list[Task]
    tree: Tree | None

    def temporary(self, modes: tuple[int, ...], dtype: str) -> Term:
        """A new tensor of its own, its modes given fastest first."""
        term = self.packed(len(self.slots), modes, dtype)
        tensor = TensorDescriptor(self.tensors.extents_of(term), term.strides, dtype)
        self.slots.append(Slot(SlotKind.TEMPORARY, tensor))
        return term

    def packed(self, slot: int, modes: tuple[int, ...], dtype: str) -> Term:
        """A tensor that fills its slot, its modes given fastest first."""
        extents = self.tensors.extents
        return Term(slot, modes, packed_strides([extents[mode] for mode in modes]), dtype)

    def is_free(self, target: Term) -> bool:
        """Whether it is a result whose layout is chosen here."""
        return self.tensors.free and target.slot == self.tensors.target.slot

    def fits(self, modes: Sequence[int]) -> bool:
        """Whether a temporary with these modes is within the limit."""
        limit = self.limits.temporary
        size = self.tensors.elements(modes) * item_size(self.tensors.accumulator)
        return limit is None or rounded(size) <= limit

    def is_far(self, term: Term) -> bool:
        """Whether a term is larger than caches, and a copy of it within the limit."""
        size = self.tensors.elements(term.modes) * item_size(term.dtype)
        far = self.limits.far
        return far is not None and size > far and self.fits(term.modes)

    def add(self, step: PassStep, reason: str = _ONCE) -> None:
        self.tasks.append(Pass(step, reason))

    def lay_out(self, target: Term) -> None:
        """Give a result of free layout the strides that its steps write by."""
        slot, strides = self.slots[target.slot], target.by_mode
        full = tuple(strides.get(mode, 1) for mode in self.tensors.modes)
        self.slots[target.slot] = replace(slot, tensor=replace(slot.tensor, strides=full))

    def laid_out(self, target: Term, order: Sequence[int]) -> Term:
        """The target in memory order ``order`` (fastest first) where its layout is free."""
        if not self.is_free(target):
            return target
        modes = (*order, *(mode for mode in target.modes if mode not in order))
        strides = self.packed(target.slot, modes, target.dtype).by_mode
        target = target._replace(strides=tuple(strides[mode] for mode in target.modes))
        self.lay_out(target)
        return target


# --- one pass ---------------------------------------------------------------------------------


def _combine(draft: _Draft, operation: ElementwiseOperation) -> None:
    """One step, and before it what has operators of a real type."""
    if operation.padding is not None:
        _pad(draft, operation)
        return
    tensors = draft.tensors
    terms: Sequence[Term] = [_in_its_own_type(draft, term) for term in tensors.inputs]
    if len(terms) == 1:
        _pass(draft, terms[0], tensors.target, scaled=True)
        return
    target = draft.laid_out(tensors.target, _shared_order(terms))
    terms = _along(draft, terms, target.fastest_first)
    pairs = zip(terms, _SCALARS[len(terms)], strict=True)
    sources = tuple(term.source(target.modes, scalar) for term, scalar in pairs)
    _elementwise(draft, sources, operation.operators, target, _ONCE)


def _pad(draft: _Draft, operation: ElementwiseOperation) -> None:
    """Every mode stays, for the result may extend any of them."""
    modes = operation.output.modes
    source = _in_its_own_type(draft, _undropped(0, operation.inputs[0]))
    target = _undropped(draft.tensors.target.slot, operation.output)
    extents = tuple(draft.tensors.extents[mode] for mode in modes)
    scaled, view = source.source(modes, Scalar.ALPHA), target.view(modes)
    step = Permute(scaled, view, extents, modes, draft.tensors.accumulator, operation.padding)
    draft.add(step, "every element read once, padding around them")


def _undropped(slot: int, operand: Operand) -> Term:
    """The operand with all its modes, those of extent 1 too."""
    tensor = operand.tensor
    modes, _, strides = diagonal(operand.modes, tensor.extents, tensor.steps)
    return Term(slot, modes, strides, tensor.dtype, operand.operator, tensor.alignment)


def _shared_order(terms: Sequence[Term]) -> list[int]:
    """All modes, fastest first as the largest operand has them."""
    largest = max(terms, key=lambda term: len(term.modes))
    rest = (mode for term in terms for mode in term.fastest_first)
    return list(dict.fromkeys((*largest.fastest_first, *rest)))


def _reduce(draft: _Draft, operation: Reduction) -> None:
    tensors = draft.tensors
    reduced = {mode for mode in operation.inputs[0].modes if mode not in tensors.target.modes}
    ordering = operation.operator in (BinaryOperator.MAX, BinaryOperator.MIN)
    if ordering and 0 in [tensors.extents[mode] for mode in reduced]:
        raise InvalidValueError(
            f"{operation.operator.name} of no elements is not defined: a reduced mode has extent 0."
        )
    (term,) = tensors.inputs
    _pass(draft, term, tensors.target, tensors.addend, True, operator=operation.operator)


def _pass(
    draft: _Draft,
    term: Term,
    target: Term,
    addend: Term | None = None,
    scaled: bool = False,
    dtype: str | None = None,
    operator: BinaryOperator = BinaryOperator.ADD,
) -> None:
    """One operand: permute it, or reduce the modes that the target has not."""
    dtype = draft.tensors.accumulator if dtype is None else dtype
    order = term.fastest_first
    reduced = [mode for mode in order if mode not in target.modes]
    target = draft.laid_out(target, [mode for mode in order if mode in target.modes])
    modes = (*target.modes, *reduced)
    source = term.source(modes, Scalar.ALPHA if scaled else None)
    extents = tuple(draft.tensors.extents[mode] for mode in modes)
    view = target.view(target.modes)
    plus = None if addend is None else addend.source(target.modes, Scalar.BETA)
    step: PassStep
    if reduced:
        kept = len(target.modes)
        step = Reduce(source, view, extents, modes, kept, dtype, operator, plus)
    elif plus is not None:
        add = (BinaryOperator.ADD,)
        step = Elementwise((source, plus), add, view, extents, modes, dtype)
    else:
        step = Permute(source, view, extents, modes, dtype)
    draft.add(step)


def _in_its_own_type(draft: _Draft, term: Term) -> Term:
    """A real operand of a complex operation has its operator applied while it is real."""
    if term.operator is Operator.IDENTITY or is_complex(term.dtype):
        return term
    if not is_complex(draft.tensors.accumulator):
        return term
    result = draft.temporary(term.fastest_first, real_of(draft.tensors.accumulator))
    _pass(draft, term, result, dtype=result.dtype)
    return result


def _elementwise(
    draft: _Draft,
    sources: tuple[Source, ...],
    operators: tuple[BinaryOperator, ...],
    target: Term,
    reason: str,
) -> None:
    view, extents = target.view(target.modes), draft.tensors.extents_of(target)
    step = Elementwise(sources, operators, view, extents, target.modes, draft.tensors.accumulator)
    draft.add(step, reason)


def _along(draft: _Draft, factors: Sequence[Term], order: Sequence[int]) -> Sequence[Term]:
    """The factors of a result without sums, such that they lie across it in one way at most.

    ``order`` has the modes of the result, fastest first. Of others a processor makes copies that
    lie along it: no block that fits a cache would hold whole lines of all.
    """
    modes = chain.from_iterable([term.modes for term in factors])
    if draft.limits.far is None or not {*order}.issuperset(modes):
        return factors
    first = order[0] if order else None
    ways = {term: term.fastest_first[0] for term in factors if first in term.modes}
    across = [mode for term, mode in ways.items() if mode != first and draft.is_far(term)]
    copied = {*across[1:]} - {*across[:1]}
    return [_copied(draft, term, order) if ways.get(term) in copied else term for term in factors]


def _copied(draft: _Draft, term: Term, order: Sequence[int]) -> Term:
    """A copy of a term, its modes in this order."""
    copy = draft.temporary(tuple(mode for mode in order if mode in term.modes), term.dtype)
    _pass(draft, term._replace(operator=Operator.IDENTITY), copy, dtype=term.dtype)
    return copy._replace(operator=term.operator)


# --- products ---------------------------------------------------------------------------------


def _products(draft: _Draft, operation: Contraction, path: Hashable) -> None:
    """The products of the inputs; D's repeated modes are written apart.

    D[i, i] = alpha * (...) + beta * C[i, i] is computed apart so that C may be D; the rest of D is
    beta * C.
    """
    tensors, output = draft.tensors, operation.output
    slots = operation.same or range(len(tensors.inputs))
    pairs = zip(tensors.inputs, slots, strict=True)
    terms = [x if x.slot == slot else x._replace(slot=slot) for x, slot in pairs]
    if 0 in tensors.extents:
        draft.add(addend_alone(operation, output.tensor), "an empty sum is zero")
    elif len(set(output.modes)) == len(output.modes):
        _contract(draft, terms, tensors.target, path)
    else:
        diagonal = draft.temporary(tensors.target.modes, draft.tensors.accumulator)
        _contract(draft, terms, diagonal, path)
        draft.add(addend_alone(operation, output.tensor), "beside a diagonal")
        _pass(draft, diagonal, tensors.target)


def _contract(draft: _Draft, terms: list[Term], target: Term, path: Hashable) -> None:
    """Target = alpha * the product of the terms + beta * C."""
    addend = draft.tensors.addend
    if len(terms) == 1:
        _pass(draft, terms[0], target, addend, scaled=True)
        return
    terms = [_in_its_own_type(draft, term) for term in _without_broadcasts(terms)]
    terms = _reduce_lone_modes(draft, terms, target)
    if draft.tree is None:
        draft.tree = _tree(draft, terms, target, path)
    tree = draft.tree
    nodes, last = _intermediates(draft, terms, tree), tree.pairs[-1]
    if draft.is_free(target):
        target = draft.packed(target.slot, tree.orders[-1], target.dtype)
        draft.lay_out(target)
    factors = _along(draft, nodes[last.left] + nodes[last.right], tree.orders[-1])
    _multiply(draft, factors, target, addend, scaled=True)


def _intermediates(draft: _Draft, terms: list[Term], tree: Tree) -> list[tuple[Term, ...]]:
    """The factors of each operand and result but the last, one unless a result is not formed."""
    skipped = _unformed(draft, terms, tree)
    nodes: list[tuple[Term, ...]] = [(term,) for term in terms]
    for pair, order in zip(tree.pairs[:-1], tree.orders, strict=False):
        node, factors = len(nodes), nodes[pair.left] + nodes[pair.right]
        twin = tree.same.get(node)
        if twin is not None:
            (source,) = nodes[twin.source]
            nodes.append((_renamed(source, twin),))
        elif node in skipped:
            nodes.append(factors)
        else:
            copied = _along(draft, factors, order)
            result = draft.temporary(order, draft.tensors.accumulator)
            _multiply(draft, copied, result)
            nodes.append((result,))
    return nodes


def _renamed(term: Term, twin: Twin) -> Term:
    """The same tensor under the names of its twin."""
    return term._replace(modes=tuple(twin.modes[mode] for mode in term.modes))


def _multiply(
    draft: _Draft,
    factors: Sequence[Term],
    d: Term,
    addend: Term | None = None,
    scaled: bool = False,
) -> None:
    """The product of two factors, or of more where nothing is summed."""
    first, *others = factors
    if len(others) == 1:
        draft.tasks.append(Multiply(first, others[0], d, addend, scaled))
        return
    alpha = Scalar.ALPHA if scaled else None
    sources = first.source(d.modes, alpha), *(term.source(d.modes) for term in others)
    operators = (BinaryOperator.MUL,) * len(others)
    reason = f"{len(factors)} factors element by element, nothing summed"
    _elementwise(draft, sources, operators, d, reason)


def _without_broadcasts(terms: list[Term]) -> list[Term]:
    """Drop a mode of stride 0 from a term while another term still has the mode."""
    if not any([0 in term.strides for term in terms]):
        return terms
    holders = counted(chain.from_iterable([term.modes for term in terms]))
    result = []
    for term in terms:
        if 0 in term.strides:
            strides = {m: s for m, s in term.by_mode.items() if s or holders[m] == 1}
            for mode in term.modes:
                holders[mode] -= mode not in strides
            term = term._replace(modes=tuple(strides), strides=tuple(strides.values()))
        result.append(term)
    return result


def _reduce_lone_modes(draft: _Draft, terms: list[Term], target: Term) -> list[Term]:
    holders = counted(chain.from_iterable([term.modes for term in terms]))
    lone = {mode for mode, count in holders.items() if count == 1} - {*target.modes}
    if not lone:
        return terms
    result = list(terms)
    for index, term in enumerate(terms):
        kept = tuple(mode for mode in term.fastest_first if mode not in lone)
        if len(kept) < len(term.modes) and draft.fits(kept):
            result[index] = draft.temporary(kept, draft.tensors.accumulator)
            _pass(draft, term, result[index])
    return result


# --- the tree of products ---------------------------------------------------------------------


def _tree(draft: _Draft, terms: Sequence[Term], target: Term, path: Hashable) -> Tree:
    """What is multiplied when, and in which orders, such that little memory is alive at once."""
    tensors = draft.tensors
    modes, kept = [frozenset(term.modes) for term in terms], frozenset(target.modes)
    found = contraction_path(modes, kept, tensors.extents, path)
    pairs = pairs_along(modes, kept, tensors.extents, found)
    pairs = scheduled(pairs, len(terms), tensors.elements)
    same = _twins(draft, terms, pairs)
    return Tree(found, pairs, _orders(draft, terms, pairs, target, same), same)


def _unformed(draft: _Draft, terms: Sequence[Term], tree: Tree) -> frozenset[int]:
    """The results that are not formed, unless something particular is asked."""
    is_lone = len(tree.pairs) == 1 or draft.tensors.addend is not None
    if is_lone or tree.same or not draft.limits.plain:
        return frozenset()
    leaves = [frozenset(term.modes) for term in terms]
    return unformed(tree.pairs, leaves, draft.tensors.elements)


def _twins(draft: _Draft, terms: Sequence[Term], pairs: Sequence[Pair]) -> dict[int, Twin]:
    """The products to share, if there are operands alike.

    Under a limit none, for what is shared is kept longer.
    """
    all_differ = len({term.slot for term in terms}) == len(terms)
    if all_differ or draft.limits.temporary is not None:
        return {}
    return twins(pairs, [(_apart_from_modes(term), term.modes) for term in terms])


def _apart_from_modes(term: Term) -> Hashable:
    """What two terms that hold the same elements have in common."""
    return term.slot, term.strides, term.dtype, term.operator


def _orders(
    draft: _Draft,
    terms: Sequence[Term],
    pairs: Sequence[Pair],
    target: Term,
    same: Mapping[int, Twin],
) -> tuple[tuple[int, ...], ...]:
    is_free, extents = draft.is_free(target), draft.tensors.extents
    if len(pairs) == 1 and not is_free:
        return (target.fastest_first,)
    end = None if is_free else _memory_order(target, extents)
    leaves = [_memory_order(term, extents) for term in terms]
    return mode_orders(leaves, pairs, extents, end, same)


def _memory_order(term: Term, extents: Sequence[int]) -> MemoryOrder:
    """The order of a term's modes, and where it is not contiguous."""
    order, strides = term.fastest_first, term.by_mode
    gaps = (
        fast for fast, slow in pairwise(order) if strides[slow] != strides[fast] * extents[fast]
    )
    return MemoryOrder(order, frozenset(gaps))
