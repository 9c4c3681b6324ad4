"""Operation -> Plan: pairs in order, the candidates of each, the choice, the workspace.

Planning is pure arithmetic on descriptors. A mode that only one operand has and the output has
not is summed before anything else; a mode of stride 0 is dropped where another operand has it;
modes of extent 1 do not take part.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, pairwise
from math import prod
from operator import attrgetter

from contract.descriptors.compute_types import is_complex, item_size, real_of
from contract.descriptors.expression import mode_extents
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
from contract.errors import InvalidValueError, NotSupportedError
from contract.machines.cpu import HOST, Cpu
from contract.machines.machine import Machine
from contract.plan.products import Option, ProductProblem, Search, Term, likeness, named
from contract.plan.steps import (
    Candidate,
    Decision,
    Elementwise,
    Permute,
    Plan,
    Reduce,
    Scalar,
    Slot,
    SlotKind,
    Source,
    Step,
    View,
    lifetimes,
    step_slots,
)
from contract.plan.workspace import Lifetime, place, rounded
from contract.planner.candidates import options
from contract.planner.network import MemoryOrder, Twin, mode_orders, scheduled, twins, unformed
from contract.planner.paths import Pair, Path, contraction_path, counted, pairs_along

__all__ = ["addend_alone", "make_plan", "operation_extents", "ranked_plans"]

# Which scalar belongs to which operand of an elementwise operation.
_SCALARS = {2: (Scalar.ALPHA, Scalar.GAMMA), 3: (Scalar.ALPHA, Scalar.BETA, Scalar.GAMMA)}


@dataclass(frozen=True, slots=True)
class _Network:
    """Products in order, the mode orders of their results, and which repeat an earlier one.

    ``path`` is the order of products as opt_einsum writes it.
    """

    path: Path
    pairs: tuple[Pair, ...]
    orders: tuple[tuple[int, ...], ...]
    same: Mapping[int, Twin]


@dataclass(slots=True)
class _Known:
    """What the plans of one operation have in common, whatever their rank.

    ``options`` are those of one product of each kind, by its likeness and by the search for them.
    """

    every: bool = True  # way to do a lone product is looked for, even if it is certain to lose
    network: _Network | None = None
    options: dict[Hashable, tuple[ProductProblem, list[Option]]] = field(default_factory=dict)


def make_plan(
    operation: OperationDescriptor,
    preference: PlanPreference | None = None,
    machine: Machine = HOST,
) -> Plan:
    """The plan for ``operation``: the ``kernel_rank``-th cheapest candidate by the model.

    Raises InvalidValueError for extents that do not fit, NotSupportedError if the preferred
    algorithm or rank does not exist.
    """
    preference = PlanPreference() if preference is None else preference
    return _made(operation, preference, machine, _Known())


def ranked_plans(
    operation: OperationDescriptor,
    preference: PlanPreference,
    machine: Machine,
    every: bool = True,
) -> Iterator[Plan]:
    """Plans by increasing predicted time, from ``kernel_rank`` on; only that one if not 0.

    Without ``every`` the first one does not tell of candidates that are certain to lose.
    """
    known = _Known(every)
    yield _made(operation, preference, machine, known)
    for rank in count(1) if preference.kernel_rank == 0 else ():
        try:
            plan = _made(operation, replace(preference, kernel_rank=rank), machine, known)
        except NotSupportedError:
            return
        yield plan


def _made(
    operation: OperationDescriptor, preference: PlanPreference, machine: Machine, known: _Known
) -> Plan:
    builder = _Builder(operation, preference, machine, known)
    builder.build()
    return builder.finish()


def operation_extents(operation: OperationDescriptor) -> tuple[int, ...]:
    """The extent of every mode; results must have exactly these, and the padding around them."""
    inputs, output = operation.inputs, operation.output
    extents = mode_extents(
        [operand.modes for operand in inputs],
        [operand.tensor.extents for operand in inputs],
        operation.labels,
    )
    wanted = [extents[mode] for mode in output.modes]
    if isinstance(operation, ElementwiseOperation) and operation.padding is not None:
        padding = operation.padding
        wanted = [
            left + n + right
            for left, n, right in zip(padding.left, wanted, padding.right, strict=True)
        ]
    _check_result("The output", output, wanted, operation.labels)
    if operation.addend is not None:
        c = operation.addend
        _check_result("The addend C", c, [extents[mode] for mode in c.modes], operation.labels)
        if set(c.modes) != set(output.modes):
            names = ", ".join(operation.labels[mode] for mode in output.modes)
            raise InvalidValueError(f"The addend C has the modes of the output: {names}.")
    return extents


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


def _check_result(
    name: str, operand: Operand, extents: Sequence[int], labels: Sequence[str]
) -> None:
    if operand.tensor.extents == tuple(extents):
        return
    for mode, extent, wanted in zip(operand.modes, operand.tensor.extents, extents, strict=True):
        if extent != wanted:
            raise InvalidValueError(
                f"{name} has extent {extent} for mode {labels[mode]!r}; the operands give {wanted}."
            )


def _term(slot: int, operand: Operand, extents: Sequence[int]) -> Term:
    """Repeated modes merged (their strides add), modes without effect on addresses dropped."""
    strides: dict[int, int] = {}
    tensor = operand.tensor
    for mode, extent, stride in zip(operand.modes, tensor.extents, tensor.steps, strict=True):
        if extent != 1 and extents[mode] != 1:
            strides[mode] = strides.get(mode, 0) + stride
    return Term(slot, tuple(strides), tuple(strides.values()), *_kind(operand))


def _kind(operand: Operand) -> tuple[str, Operator, int]:
    """What a term has beside its modes: the type, the operator and the alignment."""
    return operand.tensor.dtype, operand.operator, operand.tensor.alignment


def _undropped(slot: int, operand: Operand) -> Term:
    """The operand with all its modes, those of extent 1 too."""
    tensor = operand.tensor
    modes, _, strides = diagonal(operand.modes, tensor.extents, tensor.steps)
    return Term(slot, modes, strides, *_kind(operand))


def _shared_order(terms: Sequence[Term]) -> list[int]:
    """All modes, fastest first as the largest operand has them."""
    largest = max(terms, key=lambda term: len(term.modes))
    rest = (mode for term in terms for mode in term.fastest_first)
    return list(dict.fromkeys((*largest.fastest_first, *rest)))


def _places(modes: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """The dimension of each wanted mode; a repeated mode takes its dimensions in turn."""
    left = list(enumerate(modes))
    places = []
    for mode in wanted:
        found = next(pair for pair in left if pair[1] == mode)
        left.remove(found)
        places.append(found[0])
    return places


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
            term = replace(term, modes=tuple(strides), strides=tuple(strides.values()))
        result.append(term)
    return result


class _Builder:
    """Steps, temporaries and candidates of one plan while it is being made."""

    def __init__(
        self,
        operation: OperationDescriptor,
        preference: PlanPreference,
        machine: Machine,
        known: _Known,
    ) -> None:
        self.operation = operation
        self.preference = preference
        self.machine = machine
        self.extents = operation_extents(operation)
        self.count = len(operation.inputs)
        modes = operation.output.modes
        self.free_layout = operation.free_layout and len(set(modes)) == len(modes)
        self.slots = [Slot(SlotKind.INPUT, operand.tensor) for operand in operation.inputs]
        self.slots.append(Slot(SlotKind.OUTPUT, operation.output.tensor))
        self.addend: Term | None = None
        if operation.addend is not None:
            self.slots.append(Slot(SlotKind.ADDEND, operation.addend.tensor))
            self.addend = _term(self.count + 1, operation.addend, self.extents)
        self.target = _term(self.count, operation.output, self.extents)
        self.accumulator = operation.rule.accumulator
        self.steps: list[Step] = []
        self.considered: list[Decision] = []
        self.known = known
        self.most_candidates = 1  # over all products, of the preferred algorithm

    # --- the whole operation --------------------------------------------------------------

    def build(self) -> None:
        """Append the steps from the inputs to the output."""
        operation = self.operation
        if 0 in operation.output.tensor.extents:
            return  # a result without elements
        terms = [_term(i, op, self.extents) for i, op in enumerate(operation.inputs)]
        match operation:
            case ElementwiseOperation():
                self._elementwise(operation, terms)
            case Reduction():
                self._reduction(operation, terms[0])
            case Contraction():
                slots = operation.same or tuple(range(self.count))
                terms = [_in_slot(each, at) for each, at in zip(terms, slots, strict=True)]
                self._contraction(terms, set(self.target.modes))

    def finish(self) -> Plan:
        """Place the temporaries and freeze everything."""
        if self.preference.kernel_rank >= self.most_candidates:
            raise NotSupportedError(
                f"kernel_rank {self.preference.kernel_rank} does not exist: "
                f"there are {self.most_candidates} candidates."
            )
        offsets, workspace = self._place()
        return Plan(
            slots=tuple(self.slots),
            steps=tuple(self.steps),
            offsets=offsets,
            workspace=workspace,
            operation=self.operation,
            considered=tuple(self.considered),
            naive_flops=self._naive_flops(),
            addend_only=None if self._is_elementwise() else self._addend_alone(),
            preference=self._found_preference(),
        )

    def _found_preference(self) -> PlanPreference:
        """The preference with the path that was found, where one was looked for."""
        network = self.known.network
        if network is None or self.count <= 2:
            return self.preference
        return replace(self.preference, path=network.path)

    def _addend_alone(self) -> Elementwise:
        return addend_alone(self.operation, self.slots[self.count].tensor)

    def _is_elementwise(self) -> bool:
        return isinstance(self.operation, ElementwiseOperation)

    def _naive_flops(self) -> int:
        """Operations of the single loop nest over all modes."""
        factors = len(self.operation.inputs)
        summed = len(self.target.modes) < len(self.extents) - self.extents.count(1)
        each = max(factors - 1 + summed, 1)
        return prod(self.extents) * each * (4 if is_complex(self.accumulator) else 1)

    def _place(self) -> tuple[tuple[int, ...], int]:
        alive = lifetimes(self.slots, self.steps)
        placed, size = place([Lifetime(self.slots[i].bytes, *span) for i, span in alive.items()])
        offsets = [-1] * len(self.slots)
        for slot, offset in zip(alive, placed, strict=True):
            offsets[slot] = offset
        return tuple(offsets), size

    # --- the kinds of operations ------------------------------------------------------------

    def _contraction(self, terms: list[Term], needed: set[int]) -> None:
        if 0 in self.extents:
            self._add(self._addend_alone(), "an empty sum is zero")
        elif len(set(self.operation.output.modes)) < len(self.operation.output.modes):
            # D[i, i] = alpha * (...) + beta * C[i, i], computed apart so that C may be D; the
            # rest of D is beta * C.
            diagonal = self._temporary(self.target.modes, self.accumulator)
            self._contract(terms, needed, diagonal, self.addend, scaled=True)
            self._add(self._addend_alone(), "beside a diagonal")
            self._single(diagonal, self.target, None, scaled=False)
        else:
            self._contract(terms, needed, self.target, self.addend, scaled=True)

    def _reduction(self, operation: Reduction, term: Term) -> None:
        reduced = {mode for mode in operation.inputs[0].modes if mode not in self.target.modes}
        ordering = operation.operator in (BinaryOperator.MAX, BinaryOperator.MIN)
        if ordering and 0 in [self.extents[mode] for mode in reduced]:
            raise InvalidValueError(
                f"{operation.operator.name} of no elements is not defined: a reduced mode has "
                "extent 0."
            )
        self._single(term, self.target, self.addend, scaled=True, operator=operation.operator)

    def _elementwise(self, operation: ElementwiseOperation, terms: list[Term]) -> None:
        """One step; with padding every mode stays, for the result may extend any of them."""
        if operation.padding is not None:
            modes = operation.output.modes
            source = self._in_its_own_type(_undropped(0, operation.inputs[0]))
            target = _undropped(self.count, operation.output)
            extents = tuple(self.extents[mode] for mode in modes)
            self._add(
                Permute(
                    source.source(modes, Scalar.ALPHA),
                    target.view(modes),
                    extents,
                    modes,
                    self.accumulator,
                    operation.padding,
                ),
                "every element read once, padding around them",
            )
            return
        terms = [self._in_its_own_type(term) for term in terms]
        if len(terms) == 1:
            self._single(terms[0], self.target, None, scaled=True)
            return
        target = self._laid_out(self.target, _shared_order(terms))
        terms = [*self._along(terms, target)]
        scalars = _SCALARS[len(terms)]
        step = Elementwise(
            tuple(
                term.source(target.modes, scalar)
                for term, scalar in zip(terms, scalars, strict=True)
            ),
            operation.operators,
            target.view(target.modes),
            self._extents_of(target),
            target.modes,
            self.accumulator,
        )
        self._add(step, "every element read once")

    # --- parts ----------------------------------------------------------------------------

    def _contract(
        self,
        terms: list[Term],
        needed: set[int],
        target: Term,
        addend: Term | None,
        scaled: bool,
    ) -> None:
        if len(terms) == 1:
            self._single(terms[0], target, addend, scaled)
            return
        terms = [self._in_its_own_type(term) for term in _without_broadcasts(terms)]
        terms = self._reduce_lone_modes(terms, needed)
        network = self._network(terms, needed, target)
        unformed = self._unformed(terms, network, addend)
        # The factors of each operand and result, one but of a result that is not formed.
        nodes: list[tuple[Term, ...]] = [(term,) for term in terms]
        for pair, order in zip(network.pairs[:-1], network.orders, strict=False):
            node, factors = len(nodes), nodes[pair.left] + nodes[pair.right]
            twin = network.same.get(node)
            if twin is not None:
                (source,) = nodes[twin.source]
                nodes.append((_renamed(source, twin),))
            elif node in unformed:
                nodes.append(factors)
            else:
                intermediate = self._packed(len(self.slots), order, self.accumulator)
                nodes.append((self._multiplied(factors, intermediate),))
        if self._is_free(target):
            target = self._packed(target.slot, network.orders[-1], target.dtype)
        pair = network.pairs[-1]
        self._multiplied(nodes[pair.left] + nodes[pair.right], target, addend, scaled)

    def _unformed(
        self, terms: Sequence[Term], network: _Network, addend: Term | None
    ) -> frozenset[int]:
        """The results that are not formed, unless something particular is asked."""
        if len(network.pairs) == 1 or network.same or addend is not None or not self._is_plain():
            return frozenset()
        leaves = [frozenset(term.modes) for term in terms]
        return unformed(network.pairs, leaves, self._elements)

    def _network(self, terms: Sequence[Term], needed: set[int], target: Term) -> _Network:
        """What is multiplied when, and in which orders; found once for plans of all ranks."""
        if self.known.network is None:
            path, pairs = self._pairs(terms, needed)
            same = self._twins(terms, pairs)
            orders = self._mode_orders(terms, pairs, target, same)
            self.known.network = _Network(path, pairs, orders, same)
        return self.known.network

    def _pairs(self, terms: Sequence[Term], needed: set[int]) -> tuple[Path, tuple[Pair, ...]]:
        """The path, and its products in an order that keeps little memory alive."""
        modes, kept = [frozenset(term.modes) for term in terms], frozenset(needed)
        path = contraction_path(modes, kept, self.extents, self.preference.path)
        pairs = pairs_along(modes, kept, self.extents, path)
        return path, scheduled(pairs, len(terms), self._elements)

    def _twins(self, terms: Sequence[Term], pairs: Sequence[Pair]) -> dict[int, Twin]:
        """The products to share, if there are operands alike.

        Under a limit none, for what is shared is kept longer.
        """
        all_differ = len({term.slot for term in terms}) == len(terms)
        if all_differ or self.preference.temporary_limit is not None:
            return {}
        return twins(pairs, [(_apart_from_modes(term), term.modes) for term in terms])

    def _mode_orders(
        self,
        terms: Sequence[Term],
        pairs: Sequence[Pair],
        target: Term,
        same: Mapping[int, Twin],
    ) -> tuple[tuple[int, ...], ...]:
        if len(pairs) == 1 and not self._is_free(target):
            return (target.fastest_first,)
        end = None if self._is_free(target) else self._layout(target)
        return mode_orders([self._layout(term) for term in terms], pairs, self.extents, end, same)

    def _layout(self, term: Term) -> MemoryOrder:
        """The order of a term's modes, and where it is not contiguous."""
        order, strides, extents = term.fastest_first, term.by_mode, self.extents
        gaps = (
            fast for fast, slow in pairwise(order) if strides[slow] != strides[fast] * extents[fast]
        )
        return MemoryOrder(order, frozenset(gaps))

    def _is_free(self, target: Term) -> bool:
        return target.slot == self.count and self.free_layout

    def _single(
        self,
        term: Term,
        target: Term,
        addend: Term | None,
        scaled: bool,
        dtype: str | None = None,
        operator: BinaryOperator = BinaryOperator.ADD,
    ) -> None:
        """One operand: permute it, or reduce the modes that the output has not."""
        dtype = self.accumulator if dtype is None else dtype
        reduced = [mode for mode in term.fastest_first if mode not in target.modes]
        target = self._laid_out(target, [m for m in term.fastest_first if m in target.modes])
        modes = (*target.modes, *reduced)
        source = term.source(modes, Scalar.ALPHA if scaled else None)
        extents = tuple(self.extents[mode] for mode in modes)
        view = target.view(target.modes)
        plus = None if addend is None else addend.source(target.modes, Scalar.BETA)
        step: Permute | Elementwise | Reduce
        if reduced:
            kept = len(target.modes)
            step = Reduce(source, view, extents, modes, kept, dtype, operator, plus)
        elif plus is not None:
            add = (BinaryOperator.ADD,)
            step = Elementwise((source, plus), add, view, extents, modes, dtype)
        else:
            step = Permute(source, view, extents, modes, dtype)
        self._add(step, "every element read once")

    def _in_its_own_type(self, term: Term) -> Term:
        """A real operand of a complex operation has its operator applied while it is real."""
        if term.operator is Operator.IDENTITY or is_complex(term.dtype):
            return term
        if not is_complex(self.accumulator):
            return term
        result = self._temporary(term.fastest_first, real_of(self.accumulator))
        self._single(term, result, None, scaled=False, dtype=result.dtype)
        return result

    def _reduce_lone_modes(self, terms: list[Term], needed: set[int]) -> list[Term]:
        holders = counted(chain.from_iterable([term.modes for term in terms]))
        lone = {mode for mode, count in holders.items() if count == 1} - needed
        if not lone:
            return terms
        result = list(terms)
        for index, term in enumerate(terms):
            kept = tuple(mode for mode in term.fastest_first if mode not in lone)
            if len(kept) < len(term.modes) and self._fits(kept):
                reduced = self._temporary(kept, self.accumulator)
                self._single(term, reduced, None, scaled=False)
                result[index] = reduced
        return result

    def _fits(self, modes: Sequence[int]) -> bool:
        """Whether a temporary with these modes is within the workspace limit."""
        limit = self.preference.temporary_limit
        size = self._elements(modes) * item_size(self.accumulator)
        return limit is None or rounded(size) <= limit

    def _multiplied(
        self,
        factors: tuple[Term, ...],
        d: Term,
        addend: Term | None = None,
        scaled: bool = False,
    ) -> Term:
        """The product of two factors, or of more where nothing is summed."""
        first, *others = self._along(factors, d)
        if len(others) == 1:
            return self._product(first, others[0], d, addend, scaled)
        alpha = Scalar.ALPHA if scaled else None
        sources = first.source(d.modes, alpha), *(term.source(d.modes) for term in others)
        operators = (BinaryOperator.MUL,) * len(others)
        extents, view = self._extents_of(d), d.view(d.modes)
        self._place_result(d)
        step = Elementwise(sources, operators, view, extents, d.modes, self.accumulator)
        self._add(step, f"{len(factors)} factors element by element, nothing summed")
        return d

    def _along(self, factors: Sequence[Term], d: Term) -> Sequence[Term]:
        """The factors of a result without sums, such that they lie across it in one way at most.

        Of others a processor makes copies that lie along it: no block that fits a cache would hold
        whole lines of all.
        """
        modes = {mode for term in factors for mode in term.modes}
        if modes != set(d.modes) or not isinstance(self.machine, Cpu) or not self._is_plain():
            return factors
        first = d.fastest_first[0] if d.modes else None
        ways = {term: term.fastest_first[0] for term in factors if first in term.modes}
        across = [mode for term, mode in ways.items() if mode != first and self._is_far(term)]
        copied = {*across[1:]} - {*across[:1]}
        return [self._copied(term, d) if ways.get(term) in copied else term for term in factors]

    def _is_far(self, term: Term) -> bool:
        """Whether a term is larger than caches, and a copy of it within the limits."""
        assert isinstance(self.machine, Cpu)
        size = self._elements(term.modes) * item_size(term.dtype)
        return size > self.machine.panel_bytes[-1] and self._fits(term.modes)

    def _copied(self, term: Term, like: Term) -> Term:
        """A copy of a term, its modes in another's order."""
        order = tuple(mode for mode in like.fastest_first if mode in term.modes)
        copy = self._temporary(order, term.dtype)
        plain = replace(term, operator=Operator.IDENTITY)
        self._single(plain, copy, None, scaled=False, dtype=term.dtype)
        return replace(copy, operator=term.operator)

    def _product(self, a: Term, b: Term, d: Term, addend: Term | None, scaled: bool) -> Term:
        """The steps of one product; ``d`` becomes a temporary, or the layout of a free output."""
        temporary = d.slot == len(self.slots)
        problem = ProductProblem(
            *(a, b, d, addend, self.extents, self.accumulator),
            *(scaled, len(self.slots) + temporary),
            compute=self.operation.rule.compute,
        )
        like, found = self._options(problem)
        chosen = self._choose(found)
        self._place_result(d)
        self.slots += [Slot(SlotKind.TEMPORARY, tensor) for tensor in chosen.temporaries]
        row = [
            Candidate(each.algo, each.seconds, each.reason, each is chosen, each.copying)
            for each in found
        ]
        self.steps += named(chosen.steps, like, problem)
        self.considered.append(Decision(len(chosen.steps), tuple(row)))
        return d

    def _place_result(self, d: Term) -> None:
        """A slot for a temporary; its layout for a result whose layout is free."""
        if d.slot == len(self.slots):
            self._temporary_like(d)
        elif self._is_free(d):
            self._lay_out(d)

    def _options(self, problem: ProductProblem) -> tuple[ProductProblem, list[Option]]:
        """The ways to do a product like this one by increasing time; networks have many alike."""
        search, known = self._search(), self.known.options
        is_alone = self.count == 2 and self.preference.kernel_rank == 0
        key = None if is_alone else likeness(problem), search
        if key not in known:
            found = options(problem, self.machine, search)
            found.sort(key=attrgetter("seconds"))
            known[key] = problem, found
        return known[key]

    def _search(self) -> Search:
        """Only the winner matters unless something particular is asked, in networks most of all."""
        if not self._is_plain() or self.preference.temporary_limit is not None:
            return Search.ALL
        if self.count > 2:
            return Search.BRIEF
        return Search.ALL if self.known.every else Search.WINNER

    def _is_plain(self) -> bool:
        """Whether neither an algorithm nor a rank is asked for."""
        return self.preference.algo is Algo.DEFAULT and self.preference.kernel_rank == 0

    def _choose(self, found: list[Option]) -> Option:
        wanted = self.preference.algo
        any_algo = wanted in (Algo.DEFAULT, Algo.DEFAULT_PATIENT)
        usable = [each for each in found if any_algo or each.algo is wanted]
        if wanted is Algo.TTGT and not usable:  # nothing is to be permuted
            usable = [each for each in found if each.algo is Algo.GEMM]
        limit = self.preference.temporary_limit
        if limit is not None:
            usable = [each for each in usable if each.temporary_bytes <= limit] or usable
        if not usable:
            raise NotSupportedError(f"No candidate of algorithm {wanted.name} exists.")
        self.most_candidates = max(self.most_candidates, len(usable))
        return usable[min(self.preference.kernel_rank, len(usable) - 1)]

    # --- slots and steps ------------------------------------------------------------------

    def _laid_out(self, target: Term, order: Sequence[int]) -> Term:
        """The target in memory order ``order`` (fastest first) where its layout is free."""
        if not self._is_free(target):
            return target
        modes = (*order, *(mode for mode in target.modes if mode not in order))
        strides = self._packed(target.slot, modes, target.dtype).by_mode
        target = replace(target, strides=tuple(strides[mode] for mode in target.modes))
        self._lay_out(target)
        return target

    def _lay_out(self, target: Term) -> None:
        """Give a result of free layout the strides that its steps write by."""
        slot, strides = self.slots[target.slot], target.by_mode
        full = tuple(strides.get(mode, 1) for mode in self.operation.output.modes)
        self.slots[target.slot] = replace(slot, tensor=replace(slot.tensor, strides=full))

    def _temporary(self, modes: tuple[int, ...], dtype: str) -> Term:
        return self._temporary_like(self._packed(len(self.slots), modes, dtype))

    def _packed(self, slot: int, modes: tuple[int, ...], dtype: str) -> Term:
        """A tensor of its own in a slot, its modes given fastest first."""
        return Term(slot, modes, packed_strides([self.extents[m] for m in modes]), dtype)

    def _temporary_like(self, term: Term) -> Term:
        tensor = TensorDescriptor(self._extents_of(term), term.strides, term.dtype)
        self.slots.append(Slot(SlotKind.TEMPORARY, tensor))
        return term

    def _elements(self, modes: Iterable[int]) -> int:
        return prod([self.extents[mode] for mode in modes])

    def _extents_of(self, term: Term) -> tuple[int, ...]:
        return tuple([self.extents[mode] for mode in term.modes])

    def _add(self, step: Permute | Reduce | Elementwise, reason: str) -> None:
        moved = sum(self.slots[slot].bytes for slot in step_slots(step))
        seconds = self.machine.pass_seconds(moved)
        self.steps.append(step)
        only = Candidate(Algo.ONE_PASS, seconds, reason, chosen=True)
        self.considered.append(Decision(1, (only,)))


def _in_slot(term: Term, slot: int) -> Term:
    return term if term.slot == slot else replace(term, slot=slot)


def _apart_from_modes(term: Term) -> Hashable:
    """What two terms that hold the same elements have in common."""
    return term.slot, term.strides, term.dtype, term.operator


def _renamed(term: Term, twin: Twin) -> Term:
    """The same tensor under the names of its twin."""
    return replace(term, modes=tuple(twin.modes[mode] for mode in term.modes))
