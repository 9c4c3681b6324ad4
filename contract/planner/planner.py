"""Operation -> Plan: its tensors, the network of what is done with them, the steps of that.

Planning is pure arithmetic on descriptors.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from math import prod

from contract.descriptors.compute_types import is_complex
from contract.descriptors.operations import (
    ElementwiseOperation,
    OperationDescriptor,
    PlanPreference,
)
from contract.errors import NotSupportedError
from contract.machines.cpu import HOST
from contract.machines.machine import Machine
from contract.plan.products import Search
from contract.plan.steps import Plan, lifetimes
from contract.plan.workspace import Lifetime, place
from contract.planner.emission import Choice, Emitted, Ways, emitted
from contract.planner.network import Network, Tree, addend_alone, is_plain, network_of
from contract.planner.validation import Tensors, validated

__all__ = ["make_plan", "ranked_plans"]


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
    return _Planner(operation, machine).plan(preference)


def ranked_plans(
    operation: OperationDescriptor,
    preference: PlanPreference,
    machine: Machine,
    every: bool = True,
) -> Iterator[Plan]:
    """Plans by increasing predicted time, from ``kernel_rank`` on; only that one if not 0.

    Without ``every`` the first one does not tell of candidates that are certain to lose.
    """
    planner = _Planner(operation, machine, every)
    yield planner.plan(preference)
    for rank in count(1) if preference.kernel_rank == 0 else ():
        try:
            plan = planner.plan(replace(preference, kernel_rank=rank))
        except NotSupportedError:
            return
        yield plan


class _Planner:
    """Makes the plans of one operation; what they have in common is found once."""

    def __init__(
        self, operation: OperationDescriptor, machine: Machine, every: bool = True
    ) -> None:
        self.operation, self.machine, self.every = operation, machine, every
        self.tensors = validated(operation)
        self._tree: Tree | None = None
        self._ways: Ways = {}

    def plan(self, preference: PlanPreference) -> Plan:
        """The plan by the preference's algorithm, rank and limits."""
        network = network_of(self.operation, self.tensors, preference, self.machine, self._tree)
        self._tree = network.tree
        return _assembled(
            self.operation,
            self.tensors,
            _with_path(preference, network),
            emitted(network, self.tensors, self._choice(preference)),
        )

    def _choice(self, preference: PlanPreference) -> Choice:
        """Only the winner matters unless something particular is asked, in networks most of all."""
        count = len(self.tensors.inputs)
        search = Search.ALL
        if is_plain(preference) and preference.temporary_limit is None:
            search = Search.BRIEF if count > 2 else Search.ALL if self.every else Search.WINNER
        is_lone = count == 2 and preference.kernel_rank == 0
        return Choice(self.machine, preference, search, None if is_lone else self._ways)


def _with_path(preference: PlanPreference, network: Network) -> PlanPreference:
    """The preference with the path that was found, where one was looked for."""
    if network.tree is None or len(network.tree.pairs) < 2:
        return preference
    return replace(preference, path=network.tree.path)


def _assembled(
    operation: OperationDescriptor, tensors: Tensors, preference: PlanPreference, found: Emitted
) -> Plan:
    """Place the temporaries and freeze everything."""
    offsets, workspace = _placed(found)
    is_elementwise = isinstance(operation, ElementwiseOperation)
    output = found.slots[tensors.target.slot].tensor
    return Plan(
        slots=tuple(found.slots),
        steps=tuple(found.steps),
        offsets=offsets,
        workspace=workspace,
        operation=operation,
        considered=tuple(found.considered),
        naive_flops=_naive_flops(tensors),
        addend_only=None if is_elementwise else addend_alone(operation, output),
        preference=preference,
    )


def _placed(found: Emitted) -> tuple[tuple[int, ...], int]:
    alive = lifetimes(found.slots, found.steps)
    offsets = [-1] * len(found.slots)
    placed, size = place([Lifetime(found.slots[i].bytes, *span) for i, span in alive.items()])
    for slot, offset in zip(alive, placed, strict=True):
        offsets[slot] = offset
    return tuple(offsets), size


def _naive_flops(tensors: Tensors) -> int:
    """Operations of the single loop nest over all modes."""
    extents = tensors.extents
    summed = len(tensors.target.modes) < len(extents) - extents.count(1)
    each = max(len(tensors.inputs) - 1 + summed, 1)
    return prod(extents) * each * (4 if is_complex(tensors.accumulator) else 1)
