"""Handle: one device or the host; its executor, plan cache, settings and memory."""

import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache, partial
from operator import index, is_
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from contract.arrays.cupy_module import cupy_of, import_cupy
from contract.arrays.libraries import library_of
from contract.arrays.protocol import Arrays, require_host_scalar
from contract.descriptors.operations import (
    Contraction,
    ElementwiseOperation,
    OperationDescriptor,
    PlanPreference,
    Reduction,
    WorkspacePreference,
    is_integer,
    require_kind,
)
from contract.device.nvtx import nvtx_ranges
from contract.errors import CacheFileError, InvalidValueError, NotSupportedError
from contract.execution.binding import bind, bind_workspace
from contract.execution.bound_plan import Call
from contract.execution.executor import Executor, Loaded, held_bytes
from contract.host.executor import HostExecutor
from contract.logging import LOGGER, UNWATCHED
from contract.machines.constants import Fitted
from contract.machines.machine import Identity
from contract.session.lookup import Planning
from contract.session.plan_cache import PlanCache
from contract.session.stored_plans import KeptPlans
from contract.support.config import Settings
from contract.support.text import shown

__all__ = ["Handle", "default_handle", "device_handle", "handle_for"]

MOST_CALLS = 256  # executions that a handle remembers, by plan and layouts
NUMBERS = frozenset((int, float, complex))


class Handle:
    """Plans and runs operations on the host or on a GPU; usable from many threads at once.

    ``device`` is the number of a GPU, or a cupy.cuda.Device; None: the host. ``kernels`` ("auto",
    "numba" or "numpy"), ``threads`` and ``compile`` ("background": NumPy's kernels run while others
    are compiled; "wait") are the host's. They and ``cache_lines``, the bound of the plan cache,
    override the environment, which is read once, here. ``preference`` is that of every plan made
    without one.

    NotSupportedError without CuPy or a GPU.
    """

    def __init__(
        self,
        device: Any = None,
        kernels: str | None = None,
        threads: int | None = None,
        cache_lines: int | None = None,
        preference: PlanPreference | None = None,
        compile: str | None = None,
    ) -> None:
        if preference is not None:
            require_kind("preference", preference, PlanPreference)
        self.settings = Settings.from_environment()
        LOGGER.apply(self.settings.logging, nvtx_ranges)
        self.executor: Executor
        if device is None:
            self.executor = _host_executor(self.settings, kernels, threads, compile)
        else:
            given = {"kernels": kernels, "threads": threads, "compile": compile}
            self.executor = _device_executor(self.settings, device, given)
        self.arrays = self.executor.arrays
        self.preference = PlanPreference() if preference is None else preference
        lines, directory = 0, None
        if self.settings.plan_cache:
            lines = self.settings.cache_lines if cache_lines is None else cache_lines
            directory = self.settings.cache_directory
        self.plans: PlanCache[Loaded] = PlanCache(lines, size_of=held_bytes)
        self._kept = KeptPlans(self.executor, directory)
        self._planning = Planning(self.executor, self.plans, self._kept)
        self._calls: dict[Hashable, Call] = {}  # of plans on arrays that need no view

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
        asked = {"operation": operation, "preference": preference} if LOGGER.active else {}
        with LOGGER.call("Handle.plan", asked) if LOGGER.active else UNWATCHED:
            return self._planning.plan(*self._asked(operation, preference))

    def candidates(
        self, operation: OperationDescriptor, preference: PlanPreference
    ) -> Iterator[Loaded]:
        """Plans by increasing predicted time, from ``kernel_rank`` on; only that one if not 0.

        Those that need more than the limits allow are left out.
        """
        return self._planning.candidates(*self._asked(operation, preference))

    def estimate_workspace(
        self,
        operation: OperationDescriptor,
        preference: PlanPreference | None = None,
        kind: WorkspacePreference = WorkspacePreference.DEFAULT,
    ) -> int:
        """Bytes of workspace: of the chosen plan, or of the candidate with least or most."""
        asked = (
            {"operation": operation, "preference": preference, "kind": kind}
            if LOGGER.active
            else {}
        )
        with LOGGER.call("Handle.estimate_workspace", asked) if LOGGER.active else UNWATCHED:
            require_kind("kind", kind, WorkspacePreference)
            return self._planning.workspace(*self._asked(operation, preference), kind)

    def _asked(
        self, operation: OperationDescriptor, preference: PlanPreference | None
    ) -> tuple[OperationDescriptor, PlanPreference]:
        """The operation, and how to plan it: as the caller prefers, or the handle."""
        require_kind("An operation", operation, OperationDescriptor)
        chosen = self.preference if preference is None else preference
        require_kind("preference", chosen, PlanPreference)
        return operation, chosen

    # --- plans on disk ----------------------------------------------------------------------

    def write_plans(self, path: str | PathLike[str]) -> int:
        """Write the plan cache to a file, whole or not at all, and return how many plans it has.

        Plans that are still being tuned, those by a path that is a function, and how slices are
        put together are left out.
        CacheFileError for what the system refuses.
        """
        plans = [(preference, loaded) for (_, preference), loaded in self.plans.items()]
        return self._kept.write(_path(path), plans)

    def read_plans(self, path: str | PathLike[str]) -> int:
        """Take plans from a file when they are asked for; the number of those it has.

        CacheFileError says why a file is refused: it was made by another version or for another
        device, or it is damaged; nothing is taken from it then.
        """
        return self._kept.read(_path(path))

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
        asked: dict[str, Any] = {}
        if LOGGER.active:
            asked = {"plan": plan, "operands": inputs, "addend": addend, "output": output}
            asked |= {"scalars": scalars, "workspace": workspace, "stream": stream}
        key = None
        if stream is workspace is None and not LOGGER.active:
            key = self._key(name, plan, (*inputs, output), addend, scalars)
            call = self._calls.get(key)
            if call is not None:
                call.again(inputs, scalars, output, None if scalars[1] == 0 else addend)
                return
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
        bound = (*operands, target, addend if c is None else c)
        reads_all = c is not None or not plan.reads_addend
        if plan.settled and reads_all and all(map(is_, bound, (*inputs, output, addend))):
            self._keep(key, call)

    def _key(
        self, name: str, plan: Any, arrays: Sequence[Any], addend: Any, scalars: tuple[Any, ...]
    ) -> Hashable:
        """What tells executions apart; None where an argument is not a plain one."""
        if not all(type(each) in NUMBERS for each in scalars):
            return None
        layouts = self.arrays.layouts(arrays if addend is None else (*arrays, addend))
        beside = addend is None, scalars[1] == 0
        return None if layouts is None else (name, id(plan), beside, layouts)

    def _keep(self, key: Hashable, call: Call) -> None:
        """Let the next execution on such arrays begin at once; the call keeps its plan alive."""
        if key is not None:
            if len(self._calls) >= MOST_CALLS:
                self._calls.clear()
            self._calls[key] = call

    @property
    def captured_bytes(self) -> int:
        """Memory on the device that calls in captures of CUDA graphs took, results included."""
        return self.arrays.captured_bytes

    def release_captured(self) -> None:
        """Give that memory back: no graph with these calls is replayed any more."""
        self.arrays.release_captured()

    def close(self) -> None:
        """Stop the threads and forget every plan; the handle must not be used afterwards."""
        self._kept.save()
        self.plans.clear()
        self._calls.clear()
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


def _host_executor(
    settings: Settings, kernels: str | None, threads: int | None, compile: str | None
) -> HostExecutor:
    family = settings.kernels if kernels is None else kernels
    if not isinstance(family, str) or family not in ("auto", "numba", "numpy"):
        raise InvalidValueError(f"kernels is 'auto', 'numba' or 'numpy': it is {shown(family)}.")
    threads = settings.threads if threads is None else threads
    if not is_integer(threads) or threads < 0:
        raise InvalidValueError(f"threads is an integer of 0 or more: it is {shown(threads)}.")
    mode = settings.compile if compile is None else compile
    if not isinstance(mode, str) or mode not in ("background", "wait"):
        raise InvalidValueError(f"compile is 'background' or 'wait': it is {shown(mode)}.")
    fitted = partial(_fitted, settings)
    found = settings.check, mode == "wait", settings.most_threads
    return HostExecutor(family, threads, fitted, *found)


def _fitted(settings: Settings, built_in: Fitted, identity: Identity) -> Fitted:
    """The model with the constants that were fitted to this machine, if they were."""
    directory = settings.calibration_directory()
    if directory is None:
        return built_in
    from contract.storage.calibration import calibration_path, read_calibration  # once a process

    try:
        found = read_calibration(calibration_path(directory, identity), built_in, identity)
    except CacheFileError as error:
        warnings.warn(f"The built-in model is used: {error}", RuntimeWarning, stacklevel=2)
        return built_in
    return built_in if found is None else found


def _device_executor(settings: Settings, device: Any, given: Mapping[str, Any]) -> Executor:
    for name, value in given.items():
        if value is not None:
            raise InvalidValueError(
                f"{name} is a setting of the host: it is {shown(value)} for device {device!r}."
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
    from contract.device.executor import DeviceExecutor  # the host alone loads no kernels

    allowed = {"wgmma": settings.hopper, "tf32": settings.tf32}
    fitted = partial(_fitted, settings)
    return DeviceExecutor(cupy, number, **allowed, fitted=fitted, check=settings.check)


def _path(path: Any) -> Path:
    if not isinstance(path, str | PathLike):
        raise InvalidValueError(f"path is the name of a file: it is {shown(path)}.")
    return Path(path)


def _device_number(device: Any) -> int:
    try:
        return index(getattr(device, "id", device))
    except TypeError:
        raise InvalidValueError(
            f"device is None, the number of a GPU or a cupy.cuda.Device: it is {shown(device)}."
        ) from None


def _require_fitting(
    plan: Any, arrays: Arrays, kind: type[OperationDescriptor], count: int
) -> None:
    """InvalidValueError unless the plan is for the handle's arrays and for such a call."""
    if not isinstance(plan, Loaded):
        raise InvalidValueError(f"A plan is what handle.plan returns: it is {shown(plan)}.")
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


def handle_for(handle: Handle | None, operands: Sequence[Any]) -> Handle:
    """The handle given, or the one that all calls without share on such arrays."""
    if handle is None:
        if operands and type(operands[0]) is np.ndarray:
            return default_handle()
        for x in operands:
            cupy = cupy_of(x)
            if cupy is not None:
                return device_handle(cupy, x.data.device_id)
            library = library_of(x)
            device = None if library is None else library.device(x)
            if device is not None:
                return device_handle(import_cupy(), device)
        return default_handle()
    if not isinstance(handle, Handle):
        raise InvalidValueError(f"handle is a Handle: it is {shown(handle)}.")
    return handle
