"""An operation -> its plan: the handle's, or in slices where memory is limited or modes are cut."""

from collections.abc import Hashable

from contract.descriptors.operations import Contraction, OperationDescriptor, PlanPreference
from contract.errors import InvalidValueError
from contract.execution.executor import Loaded
from contract.session.handle import Handle

__all__ = ["Cuts", "fitting_plan"]

Cuts = tuple[tuple[Hashable, int | None], ...]  # labels of modes, and numbers of their chunks


def fitting_plan(
    handle: Handle,
    operation: OperationDescriptor,
    preference: PlanPreference,
    cuts: Cuts | None = None,
) -> Loaded:
    """The handle's plan for the operation; a contraction in slices if that needs too much memory.

    ``cuts`` are slices that a caller wants, whatever memory there is.

    InsufficientWorkspaceError, with the least bytes of both ways, if neither fits.
    """
    if cuts is not None and not isinstance(operation, Contraction):
        raise InvalidValueError("Only a contraction is sliced.")
    if not isinstance(operation, Contraction) or (cuts is None and preference.memory_limit is None):
        return handle.plan(operation, preference)
    from contract.slices.fitted_plans import fitted_plan  # few calls are limited

    return fitted_plan(handle, operation, preference, cuts)
