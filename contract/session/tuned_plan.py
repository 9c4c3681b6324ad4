"""Plans for one operation that are tried call by call until the fastest is known."""

from collections.abc import Callable, Iterator, Sequence
from math import inf

import numpy as np

from contract.arrays.protocol import Array, require_free
from contract.execution.executor import Executor, Loaded, Measurement, Scalars, observed
from contract.logging import LOGGER, Level, Ranges
from contract.plan.steps import Plan
from contract.session.tuning import Tuning, fastest
from contract.support.forks import reentrant_lock

__all__ = ["TunedPlan", "measured_fastest"]

UNTIMED = "tuning: no call is measured while a graph is recorded; the best plan known runs"
Settled = Callable[["TunedPlan", Loaded, float], None]


class TunedPlan(Loaded):
    """Candidates for one operation: each call runs the next one, then the fastest stays.

    All make results in the same layout. A call that reads no operand (alpha = 0) tells nothing
    and is not measured; one that a graph records cannot be. Whatever had to be compiled or loaded
    in a call does not count either, nor what another plan stood in for: that candidate has another
    turn. ``settled`` hears of the
    choice once.
    """

    __slots__ = (
        "_executor",
        "_lock",
        "_pending",
        "_settled",
        "_tuning",
        "arrays",
        "candidates",
        "measured",
        "new_output",
        "own_bytes",
        "plan",
        "product",
        "reads_addend",
        "required_workspace",
        "tile_bytes",
    )

    def __init__(self, candidates: Sequence[Loaded], executor: Executor, settled: Settled) -> None:
        first = candidates[0]
        self.candidates = tuple(candidates)
        self.plan = first.plan
        self.arrays = first.arrays
        self.reads_addend = first.reads_addend
        self.new_output = first.new_output
        self.product = None
        self.measured = None
        self.required_workspace = max(each.required_workspace for each in candidates)
        self.tile_bytes = max(each.tile_bytes for each in candidates)
        self.own_bytes = max(each.own_bytes for each in candidates)
        self._executor = executor
        self._settled = settled
        self._tuning = Tuning(len(candidates))
        self._lock = reentrant_lock()
        self._pending: list[tuple[int, Measurement]] = []

    @property
    def plans(self) -> tuple[Plan, ...]:
        return tuple(each.plan for each in self.candidates)

    @property
    def settled(self) -> bool:
        """Whether the choice is made."""
        return self._tuning.settled

    @property
    def decided(self) -> bool:
        return self.settled

    @property
    def best(self) -> Loaded:
        """The fastest candidate as far as is known; the model's choice at first."""
        return self.candidates[self._tuning.best]

    @property
    def seconds(self) -> tuple[float | None, ...]:
        """The measured time of each candidate; None where there is none yet."""
        return self._tuning.seconds

    def recordable(self) -> Loaded:
        """The best candidate so far: what a graph holds stays as it is."""
        if not self.settled:
            LOGGER.log(Level.HINT, UNTIMED)
        return self.best.recordable()

    def __call__(
        self,
        inputs: Sequence[Array],
        output: Array,
        addend: Array | None,
        scalars: Scalars,
        workspace: Array | None = None,
    ) -> None:
        at = None
        if not self._tuning.settled and scalars[0] != 0 and not self.arrays.capturing():
            self._collect()
            at = self._tuning.next()
        plan = self.best if at is None else self.candidates[at]
        if LOGGER.active:
            plan = observed(plan, inputs, output, addend, scalars)
        if at is None:
            plan(inputs, output, addend, scalars, workspace)
        else:
            self._measure(at, lambda: plan(inputs, output, addend, scalars, workspace))

    def trace(
        self, inputs: Sequence[Array], output: Array, addend: Array | None, scalars: Scalars
    ) -> Iterator[str]:
        """What is not known of a call before it has a candidate."""
        if not self.settled:
            known = sum(each is not None for each in self.seconds)
            yield f"{known} of {len(self.candidates)} candidates measured"

    def ranged(self, ranges: Ranges) -> Loaded:
        return self

    def _measure(self, at: int, run: Callable[[], None]) -> None:
        before = self._executor.preparations()
        try:
            measurement = self._executor.timed(run)
        except Exception:
            self._record(at, inf)
            raise
        if self._executor.preparations() != before or not self.candidates[at].settled:
            self._tuning.again(at)
            return
        with self._lock:
            self._pending.append((at, measurement))
        self._collect()

    def _collect(self) -> None:
        """Note the times that are known by now."""
        with self._lock:
            pending, self._pending = self._pending, []
        for at, measurement in pending:
            seconds = measurement.seconds()
            if seconds is not None:
                self._record(at, seconds)
                continue
            with self._lock:
                self._pending.append((at, measurement))

    def _record(self, at: int, seconds: float) -> None:
        if self._tuning.record(at, seconds):
            best = self._tuning.best
            self._settled(self, self.candidates[best], self._tuning.seconds[best] or 0.0)


def measured_fastest(
    candidates: Sequence[Loaded], executor: Executor
) -> tuple[Loaded, tuple[float, ...]]:
    """The fastest candidate on operands of ones, and the seconds of each; waits for a device.

    InsufficientWorkspaceError where there is no memory for such operands.
    """
    plan = candidates[0].plan
    given = plan.slots[: plan.inputs + 1 + (plan.addend is not None)]
    needed = sum(slot.bytes for slot in given) + max(x.required_workspace for x in candidates)
    require_free(executor.arrays, needed, "operands of its own, on which candidates are measured")
    inputs = [executor.allocate(slot.tensor) for slot in plan.slots[: plan.inputs]]
    addend = None if plan.addend is None else executor.allocate(plan.slots[plan.addend].tensor)
    for array in (*inputs, *([] if addend is None else [addend])):
        array[...] = 1

    one = np.dtype(candidates[0].scalar_type).type(1)

    def measure(at: int) -> float:
        each = candidates[at]
        output = each.new_output()
        timed = executor.timed(lambda: each(inputs, output, addend, (one, one, one)))
        return timed.wait()

    best, seconds = fastest(len(candidates), measure)
    return candidates[best], seconds
