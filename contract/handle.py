"""Handle: one device or the host; its executor, plan cache, settings and memory."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import count, islice
from operator import index
from os import PathLike
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any
from weakref import finalize

import numpy as np

from contract.cache import PlanCache
from contract.call_text import operation_text
from contract.codec import is_storable
from contract.config import Settings
from contract.descriptors import (
    Algo,
    AutotuneMode,
    CacheMode,
    Contraction,
    ElementwiseOperation,
    OperationDescriptor,
    PlanPreference,
    Reduction,
    WorkspacePreference,
)
from contract.errors import (
    CacheFileError,
    InsufficientWorkspaceError,
    InvalidValueError,
    NotSupportedError,
    UnsupportedTypeError,
)
from contract.information import report, tuning_text
from contract.logging import LOGGER, UNWATCHED, Level
from contract.nvtx import nvtx_ranges
from contract.plan import Plan
from contract.plan_files import PlanStore, Record, read_plans, store_path, write_plans
from contract.planner import make_plan
from contract.run.arrays import Arrays, require_host_scalar
from contract.run.binding import bind, bind_workspace
from contract.run.call import Call
from contract.run.cupy_module import import_cupy
from contract.run.executor import Executor, Footprint, Loaded
from contract.run.host import HostExecutor
from contract.run.tuned import TunedPlan, measured_fastest

__all__ = ["Handle", "default_handle", "device_handle"]

SECONDS_BETWEEN_SAVES = 60.0  # of plans on disk: a process that is killed loses no more


class Handle:
    """Plans and runs operations on the host or on a GPU; usable from many threads at once.

    ``device`` is the number of a GPU, or a cupy.cuda.Device; None: the host. ``kernels`` ("auto",
    "numba" or "numpy") and ``threads`` are the host's and override the environment, which is
    read once, here. ``cache_lines`` bounds the plan cache, ``preference`` is that of every plan
    made without one.

    NotSupportedError without CuPy or a GPU.
    """

    def __init__(
        self,
        device: Any = None,
        kernels: str | None = None,
        threads: int | None = None,
        cache_lines: int = 64,
        preference: PlanPreference | None = None,
    ) -> None:
        self.settings = Settings.from_environment()
        LOGGER.apply(self.settings.logging, nvtx_ranges)
        self.executor: Executor
        if device is None:
            self.executor = _host_executor(self.settings, kernels, threads)
        else:
            self.executor = _device_executor(self.settings, device, kernels, threads)
        self.arrays = self.executor.arrays
        self.preference = PlanPreference() if preference is None else preference
        self.plans: PlanCache[Loaded] = PlanCache(cache_lines if self.settings.plan_cache else 0)
        self.store: PlanStore | None = None
        self._read: dict[tuple[OperationDescriptor, PlanPreference], Record] = {}
        self._stored_at = monotonic()
        directory = self.settings.cache_directory
        if directory is not None and self.settings.plan_cache:
            identity = self.executor.identity
            self.store = PlanStore(store_path(directory, identity), identity)
            finalize(self, _save, self.store)

    # --- planning -------------------------------------------------------------------------

    def plan(
        self, operation: OperationDescriptor, preference: PlanPreference | None = None
    ) -> Loaded:
        """The plan for ``operation``, ready to run: the best candidate within the limits.

        It comes from the plan cache where it is there. With incremental tuning it is several
        candidates at first, of which each execution tries the next; Algo.DEFAULT_PATIENT
        measures all of them here, on arrays of its own.

        InsufficientWorkspaceError if every candidate needs more than ``workspace_limit`` or
        ``memory_limit``, NotSupportedError if the preferred algorithm or rank does not exist.
        """
        with LOGGER.call("Handle.plan", locals()) if LOGGER.active else UNWATCHED:
            return self._plan(operation, self.preference if preference is None else preference)

    def _plan(self, operation: OperationDescriptor, preference: PlanPreference) -> Loaded:
        """From the plan cache, from a file, or new."""
        if preference.cache_mode is CacheMode.NONE:
            return self._planned(operation, preference)
        key = operation, preference
        found = self.plans.get(key)
        if found is not None:
            return found
        restored = self._restored(operation, preference)
        if restored is not None:
            return self.plans.put(key, restored, restored=True)
        planned = self.plans.put(key, self._planned(operation, preference))
        if planned.settled:
            self._store(preference, planned)
        return planned

    def candidates(
        self, operation: OperationDescriptor, preference: PlanPreference
    ) -> Iterator[Loaded]:
        """Plans by increasing predicted time, from ``kernel_rank`` on; only that one if not 0.

        Those that need more than the limits allow are left out.
        """
        lacking: list[Footprint] = []
        found = False
        for plan in self._ranked(operation, preference):
            if self._is_within_limits(plan, preference):
                found = True
                yield self._load(plan)
            else:
                lacking.append(self._footprint(plan))
        if not found:
            raise _insufficient(lacking, preference)

    def _planned(self, operation: OperationDescriptor, preference: PlanPreference) -> Loaded:
        """A new plan, of which the log says what there is to say."""
        loaded = self._chosen(operation, preference)
        if LOGGER.active:
            plan, needed = loaded.plan, loaded.required_workspace
            report(LOGGER, plan, self.executor.machine, needed, loaded.reasons)
        return loaded

    def _chosen(self, operation: OperationDescriptor, preference: PlanPreference) -> Loaded:
        """The best candidate; several to be tuned where the preference asks for that."""
        candidates = self.candidates(operation, preference)
        if preference.algo is Algo.DEFAULT_PATIENT:
            return self._fastest(candidates)
        first = next(candidates)
        if preference.autotune is AutotuneMode.NONE:
            return first
        same = (each for each in candidates if _answers_like(each, first))
        chosen = first, *islice(same, preference.incremental_count - 1)
        if len(chosen) == 1:
            return first
        return TunedPlan(chosen, self.executor, partial(self._settle, preference))

    def _fastest(self, candidates: Iterator[Loaded]) -> Loaded:
        with self.arrays.on(None):
            if self.arrays.capturing():
                return next(candidates)
            best, seconds = measured_fastest(list(candidates), self.executor)
        return self._load(best.plan, min(seconds))

    def _settle(
        self, preference: PlanPreference, tuned: Loaded, best: Loaded, seconds: float
    ) -> None:
        """The tuned plan has become one: it takes the other's line."""
        settled = self._load(best.plan, seconds)
        self.plans.replace(tuned, settled)
        self._store(preference, settled)
        if LOGGER.logs(Level.INFO):
            LOGGER.log(Level.INFO, tuning_text(tuned.plans, best.plan, seconds))

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
        _require_types(operation, self.arrays)
        yield make_plan(operation, preference, self.executor.machine)
        for rank in count(1) if preference.kernel_rank == 0 else ():
            try:
                plan = make_plan(
                    operation, replace(preference, kernel_rank=rank), self.executor.machine
                )
            except NotSupportedError:
                return
            yield plan

    def _footprint(self, plan: Plan) -> Footprint:
        with self.arrays.on(None):
            return self.executor.footprint(plan)

    def _load(self, plan: Plan, measured: float | None = None) -> Loaded:
        with self.arrays.on(None):
            return self.executor.load(plan, measured)

    def estimate_workspace(
        self,
        operation: OperationDescriptor,
        preference: PlanPreference | None = None,
        kind: WorkspacePreference = WorkspacePreference.DEFAULT,
    ) -> int:
        """Bytes of workspace: of the chosen plan, or of the candidate with least or most."""
        asked = locals()
        with LOGGER.call("Handle.estimate_workspace", asked) if LOGGER.active else UNWATCHED:
            preference = self.preference if preference is None else preference
            if kind is WorkspacePreference.DEFAULT:
                return self.plan(operation, preference).required_workspace
            if kind is WorkspacePreference.MAX:
                plans = self._by_rank(operation, preference)
                return max(self._footprint(plan).workspace for plan in plans)
            plans = self._by_rank(operation, replace(preference, workspace_limit=0))
            return min(self._footprint(plan).workspace for plan in plans)

    # --- plans on disk ----------------------------------------------------------------------

    def write_plans(self, path: str | PathLike[str]) -> int:
        """Write the plan cache to a file, whole or not at all, and return how many plans it has.

        Plans that are still being tuned, those by a path that is a function, and how slices are
        put together are left out.
        CacheFileError for what the system refuses.
        """
        records = [
            Record(preference, loaded.plan, loaded.measured)
            for (_, preference), loaded in self.plans.items()
            if loaded.settled
            and loaded.plans == (loaded.plan,)
            and is_storable(preference, PlanPreference)
        ]
        write_plans(Path(path), records, self.executor.identity)
        return len(records)

    def read_plans(self, path: str | PathLike[str]) -> int:
        """Take plans from a file when they are asked for; the number of those it has.

        CacheFileError says why a file is refused: it was made by another version or for another
        device, or it is damaged; nothing is taken from it then.
        """
        records = read_plans(Path(path), self.executor.identity)
        self._read = {(each.operation, each.preference): each for each in records}
        return len(records)

    def _restored(
        self, operation: OperationDescriptor, preference: PlanPreference
    ) -> Loaded | None:
        """The plan that a file has, if it is within the limits here."""
        record = self._read.get((operation, preference))
        if record is None and self.store is not None:
            record = self.store.find(operation, preference)
            if self.store.refused is not None:
                LOGGER.log(Level.HINT, f"plans on disk are not used: {self.store.refused}")
        if record is None or not self._is_within_limits(record.plan, preference):
            return None
        if LOGGER.logs(Level.INFO):
            LOGGER.log(Level.INFO, f"from a file: {operation_text(operation)}")
        return self._load(record.plan, record.seconds)

    def _is_within_limits(self, plan: Plan, preference: PlanPreference) -> bool:
        if preference.temporary_limit is None:
            return True
        return _fits(self._footprint(plan), preference)

    def _store(self, preference: PlanPreference, planned: Loaded) -> None:
        """Keep a new plan for later processes, written now and then and at the end."""
        if self.store is None:
            return
        self.store.add(Record(preference, planned.plan, planned.measured))
        if monotonic() - self._stored_at > SECONDS_BETWEEN_SAVES:
            self._stored_at = monotonic()
            _save(self.store)

    # --- execution, with cuTENSOR's order of arguments ----------------------------------------

    def contract(
        self,
        plan: Loaded,
        alpha: complex,
        a: Any,
        b: Any,
        beta: complex,
        c: Any,
        d: Any,
        workspace: Any = None,
        stream: Any = None,
    ) -> None:
        """D = alpha * op(A) * op(B) + beta * op(C); C may be None where beta is 0."""
        self._run("contract", plan, Contraction, (a, b), c, d, (alpha, beta, 0), workspace, stream)

    def contract_trinary(
        self,
        plan: Loaded,
        alpha: complex,
        a: Any,
        b: Any,
        c: Any,
        beta: complex,
        d: Any,
        e: Any,
        workspace: Any = None,
        stream: Any = None,
    ) -> None:
        """E = alpha * op(A) * op(B) * op(C) + beta * op(D); D may be None where beta is 0."""
        self._run(
            "contract_trinary",
            plan,
            Contraction,
            (a, b, c),
            d,
            e,
            (alpha, beta, 0),
            workspace,
            stream,
        )

    def reduce(
        self,
        plan: Loaded,
        alpha: complex,
        a: Any,
        beta: complex,
        c: Any,
        d: Any,
        workspace: Any = None,
        stream: Any = None,
    ) -> None:
        """D = alpha * reduce(op(A)) + beta * op(C); C may be None where beta is 0."""
        self._run("reduce", plan, Reduction, (a,), c, d, (alpha, beta, 0), workspace, stream)

    def permute(self, plan: Loaded, alpha: complex, a: Any, b: Any, stream: Any = None) -> None:
        """B = alpha * op(A)."""
        self._run("permute", plan, ElementwiseOperation, (a,), None, b, (alpha, 0, 0), None, stream)

    def elementwise_binary(
        self,
        plan: Loaded,
        alpha: complex,
        a: Any,
        gamma: complex,
        c: Any,
        d: Any,
        stream: Any = None,
    ) -> None:
        """D = opAC(alpha * op(A), gamma * op(C))."""
        self._run(
            "elementwise_binary",
            plan,
            ElementwiseOperation,
            (a, c),
            None,
            d,
            (alpha, 0, gamma),
            None,
            stream,
        )

    def elementwise_trinary(
        self,
        plan: Loaded,
        alpha: complex,
        a: Any,
        beta: complex,
        b: Any,
        gamma: complex,
        c: Any,
        d: Any,
        stream: Any = None,
    ) -> None:
        """D = opABC(opAB(alpha * op(A), beta * op(B)), gamma * op(C))."""
        scalars = alpha, beta, gamma
        self._run(
            "elementwise_trinary",
            plan,
            ElementwiseOperation,
            (a, b, c),
            None,
            d,
            scalars,
            None,
            stream,
        )

    def _run(
        self,
        name: str,
        plan: Loaded,
        kind: type[OperationDescriptor],
        inputs: Sequence[Any],
        addend: Any,
        output: Any,
        scalars: tuple[Any, Any, Any],
        workspace: Any,
        stream: Any,
    ) -> None:
        asked = {"plan": plan, "operands": inputs, "addend": addend, "output": output}
        asked |= {"scalars": scalars, "workspace": workspace, "stream": stream}
        with LOGGER.call(f"Handle.{name}", asked) if LOGGER.active else UNWATCHED:
            _require_fitting(plan, self.arrays, kind, len(inputs))
            arrays, slots = self.arrays, plan.plan.slots
            operands = [
                bind(arrays, slot.tensor, x, f"Operand {at}")
                for at, (slot, x) in enumerate(zip(slots, inputs, strict=False))
            ]
            target = bind(
                arrays, slots[plan.plan.output].tensor, output, "The result", written=True
            )
            given = bind_workspace(arrays, workspace, plan.required_workspace)
            c = _bound_addend(plan, addend, scalars[1])
            every = [*operands, target, *([] if c is None else [c])]
            if given is not None and any(arrays.may_share(given, x) for x in every):
                raise InvalidValueError("A workspace shares no memory with an operand.")
            with arrays.on(stream):
                of_c = None if c is None else arrays.layout(c)
                call = Call(plan, out=arrays.layout(target), addend=of_c)
                call.into(operands, target, c, scalars, given)

    @property
    def captured_bytes(self) -> int:
        """Memory on the device that calls in captures of CUDA graphs took, results included."""
        return self.arrays.captured_bytes

    def release_captured(self) -> None:
        """Give that memory back: no graph with these calls is replayed any more."""
        self.arrays.release_captured()

    def close(self) -> None:
        """Stop the threads and forget every plan; the handle must not be used afterwards."""
        if self.store is not None:
            _save(self.store)
        self.plans.clear()
        self.release_captured()
        self.executor.close()

    def __enter__(self) -> "Handle":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _save(store: PlanStore) -> None:
    """Write what was planned; a folder that cannot be written is no reason to stop."""
    try:
        store.save()
    except CacheFileError as error:
        warnings.warn(f"Plans are not kept on disk: {error}", RuntimeWarning, stacklevel=2)


def _fits(needed: Footprint, preference: PlanPreference) -> bool:
    limits = preference.workspace_limit, preference.memory_limit
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
    least = min(needed.total for needed in lacking)
    return InsufficientWorkspaceError(
        f"The operation needs {least} bytes beside operands and result, memory_limit is "
        f"{preference.memory_limit} bytes.",
        least,
    )


def _answers_like(one: Loaded, other: Loaded) -> bool:
    """Whether two plans make results of the same layout."""
    results = [each.plan.slots[each.plan.output].tensor for each in (one, other)]
    return results[0] == results[1]


def _host_executor(settings: Settings, kernels: str | None, threads: int | None) -> HostExecutor:
    family = settings.kernels if kernels is None else kernels
    if family not in ("auto", "numba", "numpy"):
        raise InvalidValueError(f"kernels is 'auto', 'numba' or 'numpy': it is {family!r}.")
    threads = settings.threads if threads is None else threads
    if not isinstance(threads, int) or threads < 0:
        raise InvalidValueError(f"threads is an integer of 0 or more: it is {threads!r}.")
    return HostExecutor(family, threads)


def _device_executor(settings: Settings, device: Any, kernels: Any, threads: Any) -> Executor:
    for name, value in (("kernels", kernels), ("threads", threads)):
        if value is not None:
            raise InvalidValueError(
                f"{name} is a setting of the host: it is {value!r} for device {device!r}."
            )
    number = _device_number(device)
    cupy = import_cupy()
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise NotSupportedError(f"CuPy finds no GPU: {error}.") from error
    if not 0 <= number < count:
        raise InvalidValueError(f"device is a number below {count}, that of GPUs: it is {number}.")
    return _open(cupy, number, settings)


def _open(cupy: Any, number: int, settings: Settings) -> Executor:
    from contract.run.device import DeviceExecutor  # the host alone loads no kernels

    return DeviceExecutor(cupy, number, hopper=settings.hopper, tf32=settings.tf32)


def _device_number(device: Any) -> int:
    try:
        return index(getattr(device, "id", device))
    except TypeError:
        raise InvalidValueError(
            f"device is None, the number of a GPU or a cupy.cuda.Device: it is {device!r}."
        ) from None


def _require_types(operation: OperationDescriptor, arrays: Arrays) -> None:
    """UnsupportedTypeError for a data type that arrays of the kind cannot have."""
    operands = [*operation.inputs, operation.output]
    operands += [] if operation.addend is None else [operation.addend]
    for dtype in (operation.dtype, *(operand.tensor.dtype for operand in operands)):
        if dtype not in arrays.types:
            raise UnsupportedTypeError(
                f"Data type {dtype!r} is not one of a {arrays.kind}; supported are "
                f"{', '.join(sorted(arrays.types))}."
            )


def _require_fitting(
    plan: Any, arrays: Arrays, kind: type[OperationDescriptor], count: int
) -> None:
    """InvalidValueError unless the plan is for the handle's arrays and for such a call."""
    if not isinstance(plan, Loaded):
        raise InvalidValueError(f"A plan is what handle.plan returns: it is {plan!r}.")
    if plan.arrays.kind != arrays.kind:
        raise InvalidValueError(
            f"A plan runs where it was made: it takes {plan.arrays.kind}s, the handle "
            f"{arrays.kind}s."
        )
    operation = plan.plan.operation
    if not isinstance(operation, kind) or len(operation.inputs) != count:
        raise InvalidValueError(
            f"The plan is for a {type(operation).__name__} with {len(operation.inputs)} "
            f"operands, the call for a {kind.__name__} with {count}."
        )


def _bound_addend(plan: Loaded, addend: Any, beta: Any) -> Any:
    """C where it is read, None where it is not."""
    require_host_scalar("beta", beta)
    at = plan.plan.addend
    if at is None:
        elementwise = isinstance(plan.plan.operation, ElementwiseOperation)
        if not elementwise and (np.ndim(beta) or beta != 0):
            raise InvalidValueError(f"The plan reads no C, and beta is {beta!r}, not 0.")
        return None
    if addend is None and beta != 0:
        raise InvalidValueError(f"C is None, and beta is {beta!r}, not 0.")
    return None if beta == 0 else bind(plan.arrays, plan.plan.slots[at].tensor, addend, "C")


@cache
def default_handle(device: int | None = None) -> Handle:
    """The handle of calls that name none, on NumPy arrays or on CuPy's of a device.

    It is made at the first such call.
    """
    return Handle() if device is None else device_handle(import_cupy(), device)


@cache
def device_handle(cupy: Any, device: int) -> Handle:
    """The handle of calls that name none on arrays of one device of the module ``cupy``."""
    return Handle(device)
