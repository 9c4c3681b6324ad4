"""The bytes that a call may take: what it is allowed is asked once, before it is planned.

What runs asks nobody for another plan: it says what it lacks, and has done nothing yet.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from contract.arrays.protocol import Layout, is_describable
from contract.descriptors.compute_types import item_size
from contract.descriptors.layout import span
from contract.descriptors.operations import OperationDescriptor, TensorDescriptor
from contract.errors import InsufficientWorkspaceError

__all__ = [
    "Budget",
    "LackingMemoryError",
    "copied_bytes",
    "fixed_bytes",
    "spanned_bytes",
    "usable",
]


class Budget(NamedTuple):
    """At most ``limit`` bytes for result, copies and workspace together; None: no limit.

    ``fixed`` of them are needed whatever the plan.
    """

    limit: int | None = None
    fixed: int = 0

    def left(self, beside: int | None) -> int | None:
        """What there is for the plan, or the plan's own limit ``beside`` if that is less."""
        if self.limit is None:
            return beside
        left = max(self.limit - self.fixed, 0)
        return left if beside is None else min(left, beside)

    def require(self, needed: int) -> None:
        """InsufficientWorkspaceError if a call may not take so many bytes."""
        if self.limit is not None and needed > self.limit:
            raise self.over(needed)

    def over(self, needed: int, sliced: int | None = None) -> InsufficientWorkspaceError:
        """A call needs so many bytes, or ``sliced`` in slices: both are too many."""
        in_slices = "" if sliced is None else f", {sliced} bytes in the smallest slices found"
        return InsufficientWorkspaceError(
            f"The call needs {needed} bytes for its result and workspace{in_slices}; memory_limit "
            f"is {self.limit} bytes.",
            needed,
            sliced,
        )


class LackingMemoryError(InsufficientWorkspaceError):
    """Fewer bytes, ``free``, are free than a call takes; nothing has been done."""

    free = 0

    @classmethod
    def of(cls, needed: int, free: int, sliced: int | None = None) -> "LackingMemoryError":
        """A call needs so many bytes, or ``sliced`` in slices where these were sought."""
        in_slices = f", {sliced} bytes in slices" if sliced else ""
        error = cls(
            f"The call needs {needed} bytes for its result and workspace{in_slices}; {free} bytes "
            "are free.",
            needed,
            sliced,
        )
        error.free = free
        return error


def usable(free: int) -> int:
    """What is left for others is an eighth; few different values, for plans are kept by them."""
    step = 1 << max(free.bit_length() - 4, 0)
    return (free - free // 8) // step * step


def fixed_bytes(
    operation: OperationDescriptor,
    copied: Sequence[int],
    out: Layout | None,
    addend: Layout | None,
) -> int:
    """What a call allocates whatever its plan: a new result, copies of what is not describable."""
    needed = spanned_bytes(operation.output.tensor) if out is None else 0
    return needed + copied_bytes(operation, copied, addend)


def copied_bytes(
    operation: OperationDescriptor, copied: Sequence[int], addend: Layout | None
) -> int:
    """The bytes of operands that are copied, and of C if it is."""
    needed = sum([operation.inputs[at].tensor.packed_bytes for at in copied])
    if addend is not None and not is_describable(addend):
        needed += prod(addend.shape) * addend.dtype.itemsize
    return needed


def spanned_bytes(tensor: TensorDescriptor) -> int:
    """What a new array of the tensor's strides takes; a result that is made apart has those."""
    return span(tensor.extents, tensor.steps) * item_size(tensor.dtype)
