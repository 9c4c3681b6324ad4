"""What a prepared step is: a function, the memory it needs, and how parts share both."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from contract.descriptors.compute_types import is_complex
from contract.execution.executor import Scalars
from contract.host.resources.memory import Cutter
from contract.host.resources.views import Array
from contract.host.resources.workers import Workers
from contract.plan.steps import Gett, Kind

__all__ = ["Direct", "Memory", "Prepared", "Run", "Scalars", "later", "product_work", "share"]


ELEMENT_WORK = 32  # operations that take as long as packing or writing an element


class Memory(NamedTuple):
    """What a step may use: workspace as planned, and the handle's own memory for tiles."""

    workspace: Array
    tiles: Array


Run = Callable[[Sequence[Array], Scalars, Memory], None]
Direct = Callable[[Sequence[Array], Array, Array], None]  # inputs, a new output, memory


class Prepared(NamedTuple):
    """A step ready to run: ``run(slots, scalars, memory)`` with so many bytes of memory.

    ``tiles`` are bounded whatever the tensors' sizes, ``workspace`` is not. ``own`` are the
    bytes that small steps and NumPy's loops allocate themselves. ``direct``, with
    ``direct_bytes`` of memory, is a plan of this step alone, unscaled and without C, in one call;
    None where there is none that is quicker.
    """

    run: Run
    workspace: int = 0
    tiles: int = 0
    own: int = 0
    direct: Direct | None = None
    direct_bytes: int = 0


def later(make: Callable[[], Run]) -> Run:
    """What ``make`` makes when it is first called: for steps that most plans never run."""
    made: list[Run] = []

    def run(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        if not made:
            made.append(make())
        made[0](slots, scalars, memory)

    return run


def product_work(step: Gett) -> int:
    """What a product takes, in floating-point operations."""
    flops = 2 * step.extent(*Kind) * (4 if is_complex(step.dtype) else 1)
    operands = ((Kind.M, Kind.K), (Kind.K, Kind.N), (Kind.M, Kind.N))
    moved = sum(step.extent(Kind.BATCH, *kinds) for kinds in operands)
    return flops + ELEMENT_WORK * moved


def share(
    workers: Workers,
    total: int,
    minimum: int,
    memory: Array,
    lane: int,
    body: Callable[[int, int, Cutter], None],
    each: int = 1,
) -> None:
    """body(begin, end, memory of its own) on parts of range(total), ``each`` for every thread.

    Parts that run at the same time have ``lane`` bytes of memory each.
    """
    ranges = workers.split(total, minimum, each)
    if len(ranges) == 1:
        body(0, total, Cutter(memory))
        return
    lanes = deque(range(workers.parts(total, minimum)))

    def part(begin: int, end: int) -> None:
        mine = lanes.popleft()
        try:
            body(begin, end, Cutter(memory, mine * lane))
        finally:
            lanes.append(mine)

    workers.map(part, ranges)
