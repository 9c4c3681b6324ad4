"""What an executor is, and what it makes of a plan: the same for the host and for a device."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from math import ceil, prod
from typing import Any, NamedTuple, ParamSpec, Protocol

from contract.arrays.protocol import Array, Arrays
from contract.descriptors.operations import TensorDescriptor
from contract.descriptors.text import operation_text
from contract.execution.compiled_code import Kernel
from contract.logging import LOGGER, Level, Ranges
from contract.machines.machine import Identity, Machine
from contract.plan.steps import Elementwise, Gemm, Gett, Panels, Permute, Plan, Source, Step
from contract.support.memory_size import ADDRESSABLE_BYTES

__all__ = [
    "Executor",
    "Footprint",
    "Loaded",
    "Measurement",
    "Scalars",
    "Straight",
    "footprint",
    "held_bytes",
    "inside_range",
    "observed",
]

# Measured: what Python's objects take of a plan with its operation, of each of its slots, steps and
# candidates, of kernels for more than a few elements, of each shape that blocks of panels have, and
# of each such block.
PLAN_BYTES = 3000
SLOT_BYTES = 500
STEP_BYTES = 2000
CANDIDATE_BYTES = 300
KERNEL_BYTES = 12000
FEW_ELEMENTS = 1 << 12
SHAPE_BYTES = 10000
BLOCK_BYTES = 300
Scalars = tuple[Any, Any, Any]  # alpha, beta, gamma
Straight = Callable[[Sequence[Array], Scalars], None]  # of all arrays, the result after the inputs
Given = ParamSpec("Given")


class Loaded(ABC):
    """A plan ready to run on arrays of one kind.

    ``required_workspace`` (bytes) holds what grows with the tensors; a caller may give it.
    ``tile_bytes`` of scratch memory are the executor's, ``own_bytes`` are allocated by steps
    themselves. ``new_output`` makes the result array. ``product`` is there where a call on
    plain operands, with alpha = 1 and without C, has a shorter way to the result. ``measured``
    are the seconds of a call, where candidates were compared.
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
    measured: float | None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Every plan that a call may run."""
        return (self.plan,)

    @property
    def settled(self) -> bool:
        """Whether every call runs the same plan from now on."""
        return True

    @property
    def decided(self) -> bool:
        """Whether ``plan`` is the one that stays."""
        return True

    @property
    def in_place(self) -> frozenset[int]:
        """The inputs that may be the output: each element of D needs only that same element."""
        return frozenset.intersection(*map(_in_place, self.plans))

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to say before the plans are printed."""
        return ()

    @property
    def scalar_type(self) -> str:
        """The data type of alpha, beta and gamma."""
        return self.plan.operation.rule.scalar

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the kernels are what they are, where steps do not say it."""
        return ()

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

    def straight(self) -> Straight | None:
        """The plan as one function, where nothing is logged; None where there is more to do."""
        return None

    def recordable(self) -> "Loaded":
        """The same plan in launches that a graph can hold, each."""
        return self

    def __repr__(self) -> str:
        return f"<plan of {operation_text(self.plan.operation)}>"

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

    @abstractmethod
    def trace(
        self, inputs: Sequence[Array], output: Array, addend: Array | None, scalars: Scalars
    ) -> Iterator[str]:
        """What such a call runs, a line for each step or launch."""

    @abstractmethod
    def ranged(self, ranges: Ranges) -> "Loaded":
        """The same with every step or launch inside of a range."""


def observed(
    loaded: Loaded,
    inputs: Sequence[Array],
    output: Array,
    addend: Array | None,
    scalars: Scalars,
) -> Loaded:
    """The plan for one such call, which is logged; its steps are inside of ranges if there are."""
    if LOGGER.logs(Level.TRACE):
        for line in loaded.trace(inputs, output, addend, scalars):
            LOGGER.log(Level.TRACE, line)
    return loaded if LOGGER.ranges is None else loaded.ranged(LOGGER.ranges)


def inside_range(ranges: Ranges, name: str, run: Callable[Given, None]) -> Callable[Given, None]:
    """``run`` between the beginning and the end of a range."""

    def ranged(*arguments: Given.args, **named: Given.kwargs) -> None:
        ranges.push(name)
        try:
            run(*arguments, **named)
        finally:
            ranges.pop()

    return ranged


def _in_place(plan: Plan) -> frozenset[int]:
    """The inputs whose elements are read before the same element of D is written."""
    match plan.steps:
        case (Permute(padding=None) as only,):
            sources: tuple[Source, ...] = (only.source,)
        case (Elementwise() as only,):
            sources = only.sources
        case _:
            return frozenset()
    return frozenset(
        source.view.slot for source in sources if source.view.strides == only.target.strides
    )


def held_bytes(loaded: Loaded) -> int:
    """An estimate of what a loaded plan keeps in memory between calls, workspace left out."""
    return sum(map(_plan_bytes, loaded.plans))


def _plan_bytes(plan: Plan) -> int:
    candidates = sum(len(decision.candidates) for decision in plan.considered)
    described = PLAN_BYTES + SLOT_BYTES * len(plan.slots) + CANDIDATE_BYTES * candidates
    return described + sum(map(_step_bytes, plan.steps))


def _step_bytes(step: Step) -> int:
    if isinstance(step, Gemm) or _points(step) <= FEW_ELEMENTS:
        return STEP_BYTES
    if not isinstance(step, Gett) or not isinstance(step.blocking, Panels):
        return STEP_BYTES + KERNEL_BYTES
    sizes = [(loop.extent, n) for loop, n in zip(step.loops, step.blocking.blocks, strict=True)]
    shapes = prod(1 + bool(extent % n) for extent, n in sizes)
    return STEP_BYTES + SHAPE_BYTES * shapes + BLOCK_BYTES * prod(ceil(x / n) for x, n in sizes)


def _points(step: Step) -> int:
    """How often a step does what it does."""
    if isinstance(step, Gemm | Gett):
        return prod([loop.extent for loop in step.loops])
    return prod(step.extents)


class Footprint(NamedTuple):
    """Bytes that a plan takes beside operands and result: its workspace, and all together."""

    workspace: int
    total: int


class Measurement(Protocol):
    """The time of some work."""

    def seconds(self) -> float | None:
        """The time; None while the work is not done."""

    def wait(self) -> float:
        """The time, when the work is done."""


class Executor(Protocol):
    """Prepares plans for one machine: its arrays, and what the planner knows about it.

    ``identity`` is what plans on disk are good for.
    """

    @property
    def arrays(self) -> Arrays: ...
    @property
    def machine(self) -> Machine: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def stand_in(self) -> "Executor | None":
        """Runs plans while others are compiled; None where every plan is ready at once."""

    def missing(self, loaded: Loaded) -> frozenset[Kernel]:
        """What a plan needs, if some of that is not there yet."""

    def load(self, plan: Plan, measured: float | None = None) -> Loaded:
        """Prepare every step of ``plan``, which is known to take ``measured`` seconds."""

    def footprint(self, plan: Plan) -> Footprint:
        """The bytes that ``plan`` would need, loaded."""

    def allocate(self, tensor: TensorDescriptor) -> Array:
        """An uninitialised array with the tensor's extents and strides."""

    def timed(self, work: Callable[[], None]) -> Measurement:
        """Do the work (on the current stream) and measure how long it takes."""

    def preparations(self) -> int:
        """How many things have been compiled or loaded so far.

        A call in which the number grew took longer than the next one will.
        """

    def close(self) -> None:
        """Give back what the executor holds."""


def footprint(executor: Executor, plan: Plan) -> Footprint:
    """The bytes that a plan would take; one beyond all addresses is not prepared."""
    if plan.workspace > ADDRESSABLE_BYTES:
        return Footprint(plan.workspace, plan.workspace)
    with executor.arrays.on(None):
        return executor.footprint(plan)
