"""A plan that another one stands in for, while what it needs is compiled."""

from collections.abc import Callable, Iterator, Sequence

from contract.arrays.protocol import Array
from contract.execution.compiled_code import Kernel, compiled_code
from contract.execution.executor import Loaded, Scalars
from contract.logging import Ranges
from contract.plan.steps import Plan

__all__ = ["SwitchingPlan"]

WAITING = "not compiled yet: another plan by NumPy's kernels stands in for this one"


class SwitchingPlan(Loaded):
    """``own`` once what it needs is there, until then ``stand_in``, which gives the same layout.

    Nothing is compiled before the first call. ``settled`` hears once which of the two stays.
    """

    __slots__ = (
        "__weakref__",
        "_needs",
        "_own",
        "_ready",
        "_settled",
        "_stand_in",
        "arrays",
        "measured",
        "new_output",
        "own_bytes",
        "plan",
        "product",
        "reads_addend",
        "required_workspace",
        "tile_bytes",
    )

    def __init__(
        self,
        own: Loaded,
        stand_in: Loaded,
        needs: frozenset[Kernel],
        settled: Callable[[Loaded, Loaded], None],
    ) -> None:
        self._own, self._stand_in, self._needs, self._settled = own, stand_in, needs, settled
        self._ready: Loaded | None = None
        self.plan = own.plan
        self.arrays = own.arrays
        self.reads_addend = own.reads_addend
        self.new_output = own.new_output
        self.product = None
        self.measured = own.measured
        both = own, stand_in
        self.required_workspace = max(each.required_workspace for each in both)
        self.tile_bytes = 0
        total = max(x.required_workspace + x.tile_bytes + x.own_bytes for x in both)
        self.own_bytes = total - self.required_workspace

    @property
    def settled(self) -> bool:
        """Whether one of the two stays."""
        return self._ready is not None

    @property
    def plans(self) -> tuple[Plan, ...]:
        ready = self._ready
        return (self.plan, self._stand_in.plan) if ready is None else (ready.plan,)

    @property
    def notes(self) -> tuple[str, ...]:
        return () if self.settled else (WAITING,)

    @property
    def reasons(self) -> tuple[str, ...]:
        return self._own.reasons

    @property
    def current(self) -> Loaded:
        """What a call runs now."""
        return self._stand_in if self._ready is None else self._ready

    def __call__(
        self,
        inputs: Sequence[Array],
        output: Array,
        addend: Array | None,
        scalars: Scalars,
        workspace: Array | None = None,
    ) -> None:
        if self._ready is None:
            compiled_code().wish(self._needs, self)
        self.current(inputs, output, addend, scalars, workspace)

    def trace(
        self, inputs: Sequence[Array], output: Array, addend: Array | None, scalars: Scalars
    ) -> Iterator[str]:
        return self.current.trace(inputs, output, addend, scalars)

    def ranged(self, ranges: Ranges) -> Loaded:
        return self.current.ranged(ranges)

    def told(self, is_there: bool) -> None:
        """Take what stays, and say so."""
        self._ready = self._own if is_there else self._stand_in
        self._settled(self, self._ready)
