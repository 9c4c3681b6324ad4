"""How one handle's plans were decided, on disk: taken from files, kept for later processes."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from weakref import finalize

from contract.descriptors.operations import Algo, AutotuneMode, OperationDescriptor, PlanPreference
from contract.errors import CacheFileError
from contract.execution.executor import Executor, Loaded
from contract.logging import LOGGER, Level
from contract.planner.paths import is_searched
from contract.storage.codec import is_storable
from contract.storage.plans import PlanStore, Record, read_plans, store_path, write_plans

__all__ = ["KeptPlans"]

SECONDS_BETWEEN_SAVES = 60.0  # a process that is killed loses no more


class KeptPlans:
    """What files have for one executor; ``directory`` has the one that all processes share.

    That is written now and then, and at the end of the process at the latest; None: there is none.
    It has what took long to decide: orders of products that were searched, and measured plans.
    """

    def __init__(self, executor: Executor, directory: Path | None) -> None:
        self._executor = executor
        self._read: dict[tuple[OperationDescriptor, PlanPreference], Record] = {}
        self._saved_at = monotonic()
        self._store: PlanStore | None = None
        if directory is not None:
            identity = executor.identity
            self._store = PlanStore(store_path(directory, identity), identity)
            finalize(self, _save, self._store)

    def find(self, operation: OperationDescriptor, preference: PlanPreference) -> Record | None:
        """The record of a plan for the operation that was asked for with the preference."""
        record = self._read.get((operation, preference)) if self._read else None
        if record is None and self._store is not None and _takes_long(operation, preference):
            record = self._store.find(operation, preference)
            if self._store.refused is not None:
                LOGGER.log(Level.HINT, f"plans on disk are not used: {self._store.refused}")
        return record

    def add(self, preference: PlanPreference, planned: Loaded) -> None:
        """Keep a new plan for later processes."""
        if self._store is None or not _takes_long(planned.plan.operation, preference):
            return
        self._store.add(Record.of(preference, planned.plan, planned.measured))
        if monotonic() - self._saved_at > SECONDS_BETWEEN_SAVES:
            self._saved_at = monotonic()
            _save(self._store)

    def save(self) -> None:
        """Write what was added since the last time."""
        if self._store is not None:
            _save(self._store)

    def write(self, path: Path, plans: Iterable[tuple[PlanPreference, Loaded]]) -> int:
        """Write those plans that are decided, whole and storable to a file; their number."""
        decided = [
            Record.of(preference, loaded.plan, loaded.measured)
            for preference, loaded in plans
            if loaded.decided and loaded.plans[0] == loaded.plan
        ]
        records = [each for each in decided if is_storable(each, Record)]
        write_plans(path, records, self._executor.identity)
        return len(records)

    def read(self, path: Path) -> int:
        """Let ``find`` know the plans of a file, in place of the last one's; their number."""
        records = read_plans(path, self._executor.identity)
        self._read = {(each.operation, each.preference): each for each in records}
        return len(records)


def _takes_long(operation: OperationDescriptor, preference: PlanPreference) -> bool:
    """Whether an order of products is searched, or candidates are measured."""
    if preference.algo is Algo.DEFAULT_PATIENT or preference.autotune is not AutotuneMode.NONE:
        return True
    return is_searched(len(operation.inputs), preference.path)


def _save(store: PlanStore) -> None:
    """Write what was planned; a folder that cannot be written is no reason to stop."""
    try:
        store.save()
    except CacheFileError as error:
        warnings.warn(f"Plans are not kept on disk: {error}", RuntimeWarning, stacklevel=2)
