"""An operation -> a plan that is ready to run: looked up, made as a file says, or measured."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice

from contract.arrays.protocol import Arrays
from contract.descriptors.operations import (
    Algo,
    AutotuneMode,
    CacheMode,
    OperationDescriptor,
    PlanPreference,
    WorkspacePreference,
)
from contract.descriptors.text import operation_text
from contract.errors import (
    InsufficientWorkspaceError,
    InvalidValueError,
    NotSupportedError,
    UnsupportedTypeError,
)
from contract.execution.executor import Executor, Footprint, Loaded, footprint
from contract.logging import LOGGER, Level
from contract.plan.steps import Plan
from contract.planner.planner import ranked_plans
from contract.session.plan_cache import Key, PlanCache
from contract.session.stored_plans import KeptPlans
from contract.session.switching_plan import SwitchingPlan
from contract.session.tuned_plan import TunedPlan, measured_fastest
from contract.storage.plans import Record, plan_digest
from contract.support.memory_size import ADDRESSABLE_BYTES
from contract.support.text import shown

__all__ = ["Planning"]


class Planning:
    """The plans of one executor: in the cache ``plans``, on disk as ``kept``, or new."""

    def __init__(self, executor: Executor, plans: PlanCache[Loaded], kept: KeptPlans) -> None:
        self.plans = plans
        self.kept = kept
        self._executor = executor
        self._arrays: Arrays = executor.arrays

    @cached_property
    def _meanwhile(self) -> "Planning | None":
        """Plans that need nothing compiled; None where there is nothing to wait for."""
        stand_in = self._executor.stand_in
        if stand_in is None:
            return None
        return Planning(stand_in, PlanCache(0), KeptPlans(stand_in, None))

    def plan(self, operation: OperationDescriptor, preference: PlanPreference) -> Loaded:
        """From the plan cache, from a file, or new."""
        if preference.cache_mode is CacheMode.NONE:
            return self._planned(operation, preference)
        key = Key((operation, preference))
        found = self.plans.get(key)
        if found is not None:
            return found
        restored = self._restored(operation, preference)
        if restored is not None:
            return self.plans.put(key, restored, restored=True)
        planned = self.plans.put(key, self._planned(operation, preference))
        if planned.decided:
            self.kept.add(preference, planned)
        return planned

    def candidates(
        self, operation: OperationDescriptor, preference: PlanPreference
    ) -> Iterator[Loaded]:
        """Plans within the limits by increasing predicted time, from ``kernel_rank`` on."""
        for loaded in self._candidates(operation, preference):
            yield self._running(loaded, preference)

    def _candidates(
        self, operation: OperationDescriptor, preference: PlanPreference
    ) -> Iterator[Loaded]:
        """The same, which wait for what is not compiled yet."""
        lacking: list[Footprint] = []
        found = False
        for plan in self._ranked(operation, preference):
            if self._is_within_limits(plan, preference):
                found = True
                yield self._load(plan)
            else:
                lacking.append(footprint(self._executor, plan))
        if not found:
            raise _insufficient(lacking, preference)

    def workspace(
        self, operation: OperationDescriptor, preference: PlanPreference, kind: WorkspacePreference
    ) -> int:
        """Bytes of workspace: of the chosen plan, or of the candidate with least or most."""
        if kind is WorkspacePreference.DEFAULT:
            return self.plan(operation, preference).required_workspace
        if kind is WorkspacePreference.MAX:
            plans = self._by_rank(operation, preference)
            return max(footprint(self._executor, plan).workspace for plan in plans)
        plans = self._by_rank(operation, replace(preference, workspace_limit=0))
        return min(footprint(self._executor, plan).workspace for plan in plans)

    # --- which candidate --------------------------------------------------------------------

    def _planned(self, operation: OperationDescriptor, preference: PlanPreference) -> Loaded:
        """A new plan, of which the log says what there is to say."""
        loaded = self._chosen(operation, preference)
        if LOGGER.active:
            from contract.explain.report import report  # few programs log

            plan, needed = loaded.plan, loaded.required_workspace
            report(LOGGER, plan, self._executor.machine, needed, loaded.reasons)
        return loaded

    def _chosen(self, operation: OperationDescriptor, preference: PlanPreference) -> Loaded:
        """The best candidate; several to be tuned where the preference asks for that."""
        if preference.algo is Algo.DEFAULT_PATIENT:
            return self._fastest(self._candidates(operation, preference))
        candidates = self.candidates(operation, preference)
        first = next(candidates)
        if preference.autotune is AutotuneMode.NONE:
            return first
        same = (each for each in candidates if _answers_like(each, first))
        chosen = first, *islice(same, preference.incremental_count - 1)
        if len(chosen) == 1:
            return first
        return TunedPlan(chosen, self._executor, partial(self._settle, preference))

    def _fastest(self, candidates: Iterator[Loaded]) -> Loaded:
        with self._arrays.on(None):
            if self._arrays.capturing():
                return next(candidates)
            best, seconds = measured_fastest(list(candidates), self._executor)
        return self._load(best.plan, min(seconds))

    def _running(self, loaded: Loaded, preference: PlanPreference) -> Loaded:
        """The plan, or one that another stands in for while what it needs is compiled."""
        if self._meanwhile is None:
            return loaded
        needs = self._executor.missing(loaded)
        if not needs:
            return loaded
        operation, plain = _like(loaded.plan), _plain(loaded.plan, preference)
        try:
            stand_in = next(self._meanwhile.candidates(operation, plain))
        except InsufficientWorkspaceError:  # but within the limits there is a plan: it has to wait
            return loaded
        return SwitchingPlan(loaded, stand_in, needs, self.plans.replace)

    def _settle(
        self, preference: PlanPreference, tuned: Loaded, best: Loaded, seconds: float
    ) -> None:
        """The tuned plan has become one: it takes the other's line."""
        settled = self._load(best.plan, seconds)
        self.plans.replace(tuned, settled)
        self.kept.add(preference, settled)
        if LOGGER.logs(Level.INFO):
            from contract.explain.report import tuning_text

            LOGGER.log(Level.INFO, tuning_text(tuned.plans, best.plan, seconds))

    # --- which there are ----------------------------------------------------------------------

    def _ranked(self, operation: OperationDescriptor, preference: PlanPreference) -> Iterator[Plan]:
        """Candidates by rank; where there are limits, then others without temporaries."""
        seen = []
        for plan in self._by_rank(operation, preference):
            seen.append(plan)
            yield plan
        if preference.temporary_limit:
            frugal = self._by_rank(operation, replace(preference, workspace_limit=0))
            yield from (plan for plan in frugal if plan not in seen)

    def _by_rank(
        self, operation: OperationDescriptor, preference: PlanPreference
    ) -> Iterator[Plan]:
        _require_types(operation, self._arrays)
        return ranked_plans(operation, preference, self._executor.machine, every=LOGGER.active)

    def _restored(
        self, operation: OperationDescriptor, preference: PlanPreference
    ) -> Loaded | None:
        """The plan that a file has, if it is within the limits here."""
        record = self.kept.find(operation, preference)
        plan = None if record is None else self._made_again(record)
        if record is None or plan is None or not self._is_within_limits(plan, preference):
            return None
        if LOGGER.logs(Level.INFO):
            LOGGER.log(Level.INFO, f"from a file: {operation_text(operation)}")
        return self._running(self._load(plan, record.seconds), preference)

    def _made_again(self, record: Record) -> Plan | None:
        """The plan that a record was made of; None where it is planned otherwise here."""
        try:
            plan = next(self._by_rank(record.operation, record.decided))
        except (InvalidValueError, NotSupportedError) as error:  # no such path or rank
            LOGGER.log(Level.HINT, f"a plan on disk is not used: {error}")
            return None
        if plan_digest(plan) == record.digest:
            return plan
        LOGGER.log(Level.HINT, "a plan on disk is not used: the model decides otherwise by now")
        return None

    def _load(self, plan: Plan, measured: float | None = None) -> Loaded:
        with self._arrays.on(None):
            return self._executor.load(plan, measured)

    def _is_within_limits(self, plan: Plan, preference: PlanPreference) -> bool:
        if preference.temporary_limit is None:
            return plan.workspace <= ADDRESSABLE_BYTES
        limits = preference.workspace_limit, preference.memory_limit
        needed = footprint(self._executor, plan)
        return all(limit is None or n <= limit for n, limit in zip(needed, limits, strict=True))


def _insufficient(
    lacking: Sequence[Footprint], preference: PlanPreference
) -> InsufficientWorkspaceError:
    """Why none of the plans with these footprints is within the limits."""
    least = min(needed.workspace for needed in lacking)
    limit = preference.workspace_limit
    if limit is not None and least > limit:
        return InsufficientWorkspaceError(
            f"The operation needs {least} bytes of workspace, workspace_limit is {limit} bytes.",
            least,
        )
    if least > ADDRESSABLE_BYTES:
        return InsufficientWorkspaceError(
            f"The operation needs {least} bytes of workspace, addresses count "
            f"{ADDRESSABLE_BYTES} bytes.",
            least,
        )
    least = min(needed.total for needed in lacking)
    return InsufficientWorkspaceError(
        f"The operation needs {least} bytes beside operands and result, memory_limit is "
        f"{preference.memory_limit} bytes.",
        least,
    )


def _like(plan: Plan) -> OperationDescriptor:
    """The plan's operation with the layout of the result that the plan has chosen."""
    output = replace(plan.operation.output, tensor=plan.slots[plan.output].tensor)
    return replace(plan.operation, output=output, free_layout=False)


def _plain(plan: Plan, preference: PlanPreference) -> PlanPreference:
    """The limits that are asked for and the plan's path, and whatever algorithm is best."""
    default = PlanPreference(path=plan.preference.path)
    limits = preference.workspace_limit, preference.memory_limit
    return replace(default, workspace_limit=limits[0], memory_limit=limits[1])


def _answers_like(one: Loaded, other: Loaded) -> bool:
    """Whether two plans make results of the same layout."""
    results = [each.plan.slots[each.plan.output].tensor for each in (one, other)]
    return results[0] == results[1]


def _require_types(operation: OperationDescriptor, arrays: Arrays) -> None:
    """UnsupportedTypeError for a data type that arrays of the kind cannot have."""
    operands = [*operation.inputs, operation.output]
    operands += [] if operation.addend is None else [operation.addend]
    for dtype in (operation.dtype, *[operand.tensor.dtype for operand in operands]):
        if dtype not in arrays.types:
            raise UnsupportedTypeError(
                f"Data type {shown(dtype)} is not one of a {arrays.kind}; supported are "
                f"{', '.join(sorted(arrays.types))}."
            )
