"""Handle: one device, here the host; its executor, plan cache, settings and memory."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, count
from types import TracebackType
from typing import Any

import numpy as np

from contract.cache import PlanCache
from contract.config import Settings
from contract.descriptors import (
    Contraction,
    ElementwiseOperation,
    OperationDescriptor,
    PlanPreference,
    Reduction,
    WorkspacePreference,
)
from contract.errors import InsufficientWorkspaceError, InvalidValueError, NotSupportedError
from contract.planner import make_plan
from contract.run.binding import bind, bind_workspace
from contract.run.call import Call
from contract.run.host import HostExecutor, LoadedPlan

__all__ = ["Handle", "default_handle"]


class Handle:
    """Plans and runs operations on the host; usable from many threads at once.

    ``kernels`` ("auto", "numba" or "numpy") and ``threads`` override the environment, which is
    read once, here. ``cache_lines`` bounds the plan cache.
    """

    def __init__(
        self, kernels: str | None = None, threads: int | None = None, cache_lines: int = 64
    ) -> None:
        self.settings = Settings.from_environment()
        family = self.settings.kernels if kernels is None else kernels
        if family not in ("auto", "numba", "numpy"):
            raise InvalidValueError(f"kernels is 'auto', 'numba' or 'numpy': it is {family!r}.")
        threads = self.settings.threads if threads is None else threads
        if not isinstance(threads, int) or threads < 0:
            raise InvalidValueError(f"threads is an integer of 0 or more: it is {threads!r}.")
        self.executor = HostExecutor(family, threads)
        self.plans: PlanCache[Call] = PlanCache(cache_lines if self.settings.plan_cache else 0)

    # --- planning -------------------------------------------------------------------------

    def plan(
        self, operation: OperationDescriptor, preference: PlanPreference | None = None
    ) -> LoadedPlan:
        """The plan for ``operation``, ready to run: the best candidate within the limit.

        InsufficientWorkspaceError if every candidate needs more than ``workspace_limit``,
        NotSupportedError if the preferred algorithm or rank does not exist.
        """
        preference = PlanPreference() if preference is None else preference
        limit = preference.workspace_limit
        smallest: int | None = None
        frugal = replace(preference, workspace_limit=0)
        found = self.candidates(operation, preference)
        for plan in chain(found, self.candidates(operation, frugal) if limit else ()):
            needed = plan.required_workspace
            if limit is None or needed <= limit:
                return plan
            smallest = needed if smallest is None else min(smallest, needed)
        raise InsufficientWorkspaceError(
            f"The operation needs {smallest} bytes of workspace, workspace_limit is {limit} bytes."
        )

    def candidates(
        self, operation: OperationDescriptor, preference: PlanPreference
    ) -> Iterator[LoadedPlan]:
        """Plans by increasing predicted time, from ``kernel_rank`` on; only that one if not 0."""
        yield self.executor.load(make_plan(operation, preference))
        for rank in count(1) if preference.kernel_rank == 0 else ():
            try:
                plan = make_plan(operation, replace(preference, kernel_rank=rank))
            except NotSupportedError:
                return
            yield self.executor.load(plan)

    def estimate_workspace(
        self,
        operation: OperationDescriptor,
        preference: PlanPreference | None = None,
        kind: WorkspacePreference = WorkspacePreference.DEFAULT,
    ) -> int:
        """Bytes of workspace: of the chosen plan, or of the candidate with least or most."""
        preference = PlanPreference() if preference is None else preference
        if kind is WorkspacePreference.DEFAULT:
            return self.plan(operation, preference).required_workspace
        found = self.candidates(operation, preference)
        if kind is WorkspacePreference.MAX:
            return max(plan.required_workspace for plan in found)
        frugal = self.candidates(operation, replace(preference, workspace_limit=0))
        return min(plan.required_workspace for plan in frugal)

    # --- execution, with cuTENSOR's order of arguments ----------------------------------------

    def contract(
        self,
        plan: LoadedPlan,
        alpha: complex,
        a: Any,
        b: Any,
        beta: complex,
        c: Any,
        d: Any,
        workspace: Any = None,
    ) -> None:
        """D = alpha * op(A) * op(B) + beta * op(C); C may be None where beta is 0."""
        self._run(plan, Contraction, (a, b), c, d, (alpha, beta, 0), workspace)

    def contract_trinary(
        self,
        plan: LoadedPlan,
        alpha: complex,
        a: Any,
        b: Any,
        c: Any,
        beta: complex,
        d: Any,
        e: Any,
        workspace: Any = None,
    ) -> None:
        """E = alpha * op(A) * op(B) * op(C) + beta * op(D); D may be None where beta is 0."""
        self._run(plan, Contraction, (a, b, c), d, e, (alpha, beta, 0), workspace)

    def reduce(
        self,
        plan: LoadedPlan,
        alpha: complex,
        a: Any,
        beta: complex,
        c: Any,
        d: Any,
        workspace: Any = None,
    ) -> None:
        """D = alpha * reduce(op(A)) + beta * op(C); C may be None where beta is 0."""
        self._run(plan, Reduction, (a,), c, d, (alpha, beta, 0), workspace)

    def permute(self, plan: LoadedPlan, alpha: complex, a: Any, b: Any) -> None:
        """B = alpha * op(A)."""
        self._run(plan, ElementwiseOperation, (a,), None, b, (alpha, 0, 0))

    def elementwise_binary(
        self, plan: LoadedPlan, alpha: complex, a: Any, gamma: complex, c: Any, d: Any
    ) -> None:
        """D = opAC(alpha * op(A), gamma * op(C))."""
        self._run(plan, ElementwiseOperation, (a, c), None, d, (alpha, 0, gamma))

    def elementwise_trinary(
        self,
        plan: LoadedPlan,
        alpha: complex,
        a: Any,
        beta: complex,
        b: Any,
        gamma: complex,
        c: Any,
        d: Any,
    ) -> None:
        """D = opABC(opAB(alpha * op(A), beta * op(B)), gamma * op(C))."""
        self._run(plan, ElementwiseOperation, (a, b, c), None, d, (alpha, beta, gamma))

    def _run(
        self,
        plan: LoadedPlan,
        kind: type[OperationDescriptor],
        inputs: Sequence[Any],
        addend: Any,
        output: Any,
        scalars: tuple[Any, Any, Any],
        workspace: Any = None,
    ) -> None:
        if not isinstance(plan, LoadedPlan):
            raise InvalidValueError(f"A plan is what handle.plan returns: it is {plan!r}.")
        operation, slots = plan.plan.operation, plan.plan.slots
        if not isinstance(operation, kind) or len(inputs) != len(operation.inputs):
            raise InvalidValueError(
                f"The plan is for a {type(operation).__name__} with {len(operation.inputs)} "
                f"operands, the call for a {kind.__name__} with {len(inputs)}."
            )
        arrays = [
            bind(slot.tensor, x, f"Operand {at}")
            for at, (slot, x) in enumerate(zip(slots, inputs, strict=False))
        ]
        target = bind(slots[plan.plan.output].tensor, output, "The result", written=True)
        given = bind_workspace(workspace, plan.required_workspace)
        c = _bound_addend(plan, addend, scalars[1])
        operands = [*arrays, target, *([] if c is None else [c])]
        if given is not None and any(np.may_share_memory(given, x) for x in operands):
            raise InvalidValueError("A workspace shares no memory with an operand.")
        Call(plan).into(arrays, target, c, scalars, given)

    def close(self) -> None:
        """Stop the threads and forget every plan; the handle must not be used afterwards."""
        self.plans.clear()
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


def _bound_addend(plan: LoadedPlan, addend: Any, beta: Any) -> Any:
    """C where it is read, None where it is not."""
    at = plan.plan.addend
    if at is None:
        elementwise = isinstance(plan.plan.operation, ElementwiseOperation)
        if not elementwise and (np.ndim(beta) or beta != 0):
            raise InvalidValueError(f"The plan reads no C, and beta is {beta!r}, not 0.")
        return None
    if addend is None and beta != 0:
        raise InvalidValueError(f"C is None, and beta is {beta!r}, not 0.")
    return None if beta == 0 else bind(plan.plan.slots[at].tensor, addend, "C")


@cache
def default_handle() -> Handle:
    """The handle of calls that name none; made at the first such call."""
    return Handle()
