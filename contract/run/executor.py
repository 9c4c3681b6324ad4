"""What an executor is, and what it makes of a plan: the same for the host and for a device."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from contract.candidates import Machine
from contract.plan import Plan
from contract.run.arrays import Array, Arrays

__all__ = ["Executor", "Loaded", "Scalars"]

Scalars = tuple[Any, Any, Any]  # alpha, beta, gamma


class Loaded(ABC):
    """A plan ready to run on arrays of one kind.

    ``required_workspace`` (bytes) holds what grows with the tensors; a caller may give it.
    ``tile_bytes`` of scratch memory are the executor's, ``own_bytes`` are allocated by steps
    themselves. ``new_output`` makes the result array. ``product`` is there where a call on
    plain operands, with alpha = 1 and without C, has a shorter way to the result.
    """

    __slots__ = ()

    plan: Plan
    arrays: Arrays
    required_workspace: int
    tile_bytes: int
    own_bytes: int
    reads_addend: bool
    new_output: Callable[[], Array]
    product: Callable[[Sequence[Array]], Array] | None

    @property
    def scalar_type(self) -> str:
        """The data type of alpha, beta and gamma."""
        return self.plan.operation.rule.scalar

    @property
    def flops(self) -> int:
        """Floating-point operations of all steps."""
        return self.plan.flops

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written by all steps."""
        return self.plan.moved_bytes

    def __str__(self) -> str:
        return str(self.plan)

    @abstractmethod
    def __call__(
        self,
        inputs: Sequence[Array],
        output: Array,
        addend: Array | None,
        scalars: Scalars,
        workspace: Array | None = None,
    ) -> None:
        """Run every step; with alpha = 0 a product or a reduction reads no input.

        ``workspace`` are bytes that start at a line; None: the executor's memory.
        """


class Executor(Protocol):
    """Prepares plans for one machine: its arrays, and what the planner knows about it."""

    @property
    def arrays(self) -> Arrays: ...
    @property
    def machine(self) -> Machine: ...

    def load(self, plan: Plan) -> Loaded:
        """Prepare every step of ``plan``."""

    def workspace(self, plan: Plan) -> int:
        """The bytes that ``plan`` would need, loaded."""

    def close(self) -> None:
        """Give back what the executor holds."""
