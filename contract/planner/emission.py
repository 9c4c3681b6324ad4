"""Tasks -> steps: passes as they are, products by the candidate that is chosen for them."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, assert_never

from contract.descriptors.operations import Algo, PlanPreference
from contract.errors import NotSupportedError
from contract.machines.machine import Machine
from contract.plan.products import (
    Option,
    ProductProblem,
    Search,
    Term,
    likeness,
    named,
    renumbered,
)
from contract.plan.steps import Candidate, Decision, Slot, SlotKind, Step, step_slots
from contract.planner.candidates import options
from contract.planner.network import Multiply, Network, Pass
from contract.planner.validation import Tensors

__all__ = ["Choice", "Emitted", "Ways", "emitted"]

Ways = dict[Hashable, tuple[ProductProblem, list[Option]]]  # to do products, by their likeness


class Choice(NamedTuple):
    """Which ways to do a product are looked for on a machine, and which is taken.

    ``known`` are those of products before; None: no product comes twice.
    """

    machine: Machine
    preference: PlanPreference
    search: Search
    known: Ways | None

    def of(self, problem: ProductProblem) -> tuple[ProductProblem, list[Option]]:
        """The ways to do a product like this one by increasing time; networks have many alike."""
        if self.known is None:
            return problem, self._sought(problem)
        key = likeness(problem), self.search
        if key not in self.known:
            self.known[key] = problem, self._sought(problem)
        return self.known[key]

    def _sought(self, problem: ProductProblem) -> list[Option]:
        found = options(problem, self.machine, self.search)
        found.sort(key=attrgetter("seconds"))
        return found

    def usable(self, found: list[Option]) -> list[Option]:
        """Those of the preferred algorithm and within the limits, if any are."""
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
        return usable


@dataclass(slots=True)
class Emitted:
    """Slots, steps, and what was considered for each task.

    ``candidates`` is the most that any product has, of the preferred algorithm. ``numbers`` are the
    slots here of the network's temporaries: candidates have temporaries of their own between them.
    """

    slots: list[Slot]
    steps: list[Step] = field(default_factory=list)
    considered: list[Decision] = field(default_factory=list)
    candidates: int = 1
    numbers: dict[int, int] = field(default_factory=dict)

    def place(self, slot: int, network: Network) -> None:
        """Give what is written its slot, if it is a temporary, and those that come before it."""
        first = network.given + len(self.numbers)
        for at in range(first, slot + 1):
            self.numbers[at] = len(self.slots)
            self.slots.append(network.slots[at])

    @property
    def is_renumbered(self) -> bool:
        """Whether a temporary has another slot here."""
        return any([there != here for there, here in self.numbers.items()])


def emitted(network: Network, tensors: Tensors, choice: Choice) -> Emitted:
    """The steps of all tasks.

    NotSupportedError if no product has a candidate of the preferred algorithm and rank.
    """
    found = Emitted([*network.slots[: network.given]])
    for task in network.tasks:
        match task:
            case Pass():
                found.place(task.step.target.slot, network)
                _emit_pass(found, task, choice.machine)
            case Multiply():
                found.place(task.d.slot, network)
                _emit_product(found, task, tensors, choice)
            case _:
                assert_never(task)
    rank = choice.preference.kernel_rank
    if rank >= found.candidates:
        raise NotSupportedError(
            f"kernel_rank {rank} does not exist: there are {found.candidates} candidates."
        )
    return found


def _emit_pass(found: Emitted, task: Pass, machine: Machine) -> None:
    step = task.step
    if found.is_renumbered:
        step = renumbered(step, found.numbers)
    moved = sum([found.slots[slot].bytes for slot in step_slots(step)])
    only = Candidate(Algo.ONE_PASS, machine.pass_seconds(moved), task.reason, chosen=True)
    found.steps.append(step)
    found.considered.append(Decision(1, (only,)))


def _emit_product(found: Emitted, task: Multiply, tensors: Tensors, choice: Choice) -> None:
    a, b, d, c, scaled = task
    if found.is_renumbered:
        a, b, d = (_in_slot(term, found.numbers) for term in (a, b, d))
    problem = ProductProblem(
        *(a, b, d, c, tensors.extents, tensors.accumulator),
        *(scaled, len(found.slots), tensors.compute),
    )
    like, ways = choice.of(problem)
    usable = choice.usable(ways)
    chosen = usable[min(choice.preference.kernel_rank, len(usable) - 1)]
    found.candidates = max(found.candidates, len(usable))
    found.slots += [Slot(SlotKind.TEMPORARY, tensor) for tensor in chosen.temporaries]
    found.steps += named(chosen.steps, like, problem)
    row = [Candidate(x.algo, x.seconds, x.reason, x is chosen, x.copying) for x in ways]
    found.considered.append(Decision(len(chosen.steps), tuple(row)))


def _in_slot(term: Term, numbers: Mapping[int, int]) -> Term:
    slot = numbers.get(term.slot, term.slot)
    return term if term.slot == slot else term._replace(slot=slot)
