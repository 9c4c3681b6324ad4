"""Runs a contraction slice by slice: on views of the operands, summed in a fixed order."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from contract.arrays.protocol import Array, Arrays
from contract.descriptors.operations import Contraction, PlanPreference
from contract.execution.executor import Loaded, Scalars
from contract.logging import Ranges
from contract.plan.steps import Plan, step_text
from contract.slices.search import Chunked, Region, Slicing, regions
from contract.support.progress import counted

__all__ = ["Piece", "SlicedPlan", "Sums", "part"]


@dataclass(frozen=True, slots=True)
class Piece:
    """The plans for slices of the same extents.

    ``first``: D = alpha * slice + beta * C. ``further``: D = alpha * slice + D. ``last`` moves D
    to its place in the result if it was summed apart.
    """

    first: Loaded
    further: Loaded | None = None
    last: Loaded | None = None

    @property
    def plans(self) -> tuple[Loaded, ...]:
        """Those that there are."""
        return tuple(each for each in (self.first, self.further, self.last) if each is not None)

    def changed(self, change: Callable[[Loaded], Loaded]) -> "Piece":
        """The same with every plan changed."""
        further, last = self.further, self.last
        return Piece(
            change(self.first),
            None if further is None else change(further),
            None if last is None else change(last),
        )


@dataclass(frozen=True, slots=True)
class Sums:
    """Adds up slices into the parts of a result, each part in the order of its slices.

    ``pieces`` are found by the elements of each cut mode. What is summed apart, in the type of
    sums, lies in ``apart``, which is as large as the largest part.
    """

    operation: Contraction
    chunks: tuple[Chunked, ...]
    pieces: Mapping[tuple[int, ...], Piece]
    apart: Callable[[], Array] | None

    def changed(self, change: Callable[[Loaded], Loaded]) -> "Sums":
        """The same with every plan changed."""
        pieces = {lengths: piece.changed(change) for lengths, piece in self.pieces.items()}
        return replace(self, pieces=pieces)

    def __call__(
        self,
        slices: Iterable[Sequence[Array]],
        output: Array,
        addend: Array | None,
        scalars: Scalars,
        workspace: Array | None,
    ) -> None:
        """Read every slice's operands in turn; beta * C is added with the first of each part."""
        one = np.dtype(self.operation.rule.scalar).type(1)
        memory = None if self.apart is None else self.apart()
        modes = self.operation.output.modes
        c_modes = () if self.operation.addend is None else self.operation.addend.modes
        for region, operands in zip(regions(self.chunks), slices, strict=True):
            piece = self.pieces[tuple(length for _, _, length in region)]
            target = part(output, modes, region)
            into = target if memory is None else part(memory, modes, _from_zero(region))
            if self._is_first(region):
                c = None if addend is None else part(addend, c_modes, region)
                piece.first(operands, into, c, scalars, workspace)
            elif piece.further is not None:
                piece.further(operands, into, into, (scalars[0], one, 0), workspace)
            if piece.last is not None and self._is_last(region):
                piece.last((into,), target, None, (one, 0, 0), workspace)

    def _is_first(self, region: Region) -> bool:
        return all(first == 0 for mode, first, _ in region if self._is_summed(mode))

    def _is_last(self, region: Region) -> bool:
        return all(
            first + length == each.extent
            for (mode, first, length), each in zip(region, self.chunks, strict=True)
            if self._is_summed(mode)
        )

    def _is_summed(self, mode: int) -> bool:
        return mode not in self.operation.output.modes


@dataclass(frozen=True, slots=True, repr=False)
class SlicedPlan(Loaded):
    """A contraction in slices, which run one after the other.

    ``plan`` is that of the whole operation: it says what the operands and the result are, and
    never runs. Slices were planned by ``preference``.
    """

    plan: Plan
    slicing: Slicing
    sums: Sums
    preference: PlanPreference
    arrays: Arrays
    new_output: Callable[[], Array]
    new_workspace: Callable[[], Array]
    required_workspace: int
    tile_bytes: int
    own_bytes: int
    reads_addend: bool
    product: None = None
    measured: float | None = None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plan of a full slice, then the others."""
        return tuple(each.plan for piece in self.sums.pieces.values() for each in piece.plans)

    @property
    def in_place(self) -> frozenset[int]:
        """None: slices that follow read the inputs again."""
        return frozenset()

    @property
    def seconds(self) -> float:
        """The predicted time of all slices, as if each were full."""
        return self.slicing.count * self.plans[0].seconds

    @property
    def flops(self) -> int:
        """Floating-point operations of all slices, as if each were full."""
        return self.slicing.count * self.plans[0].flops

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written by all slices, as if each were full."""
        return self.slicing.count * self.plans[0].moved_bytes

    @property
    def notes(self) -> tuple[str, ...]:
        """What is sliced, and what it changes."""
        return (str(self.slicing),)

    def __str__(self) -> str:
        return "\n".join((*self.notes, str(self.plans[0])))

    def __call__(
        self,
        inputs: Sequence[Array],
        output: Array,
        addend: Array | None,
        scalars: Scalars,
        workspace: Array | None = None,
    ) -> None:
        """Run every slice; the result is the same whoever runs it, bit for bit."""
        if workspace is None and self.required_workspace:
            workspace = self.new_workspace()  # once: new memory costs a page fault for every 4 KiB
        with counted(self._slices(inputs), self.slicing.count, "slice") as slices:
            self.sums(slices, output, addend, scalars, workspace)

    def recordable(self) -> "SlicedPlan":
        sums = self.sums.changed(lambda each: each.recordable())
        plans = (each for piece in sums.pieces.values() for each in piece.plans)
        return replace(self, sums=sums, required_workspace=max(x.required_workspace for x in plans))

    def trace(
        self, inputs: Sequence[Array], output: Array, addend: Array | None, scalars: Scalars
    ) -> Iterator[str]:
        """What is sliced, and the steps of a full slice."""
        yield str(self.slicing)
        plan = self.plans[0]
        yield from (step_text(plan, step) for step in plan.steps)

    def ranged(self, ranges: Ranges) -> "SlicedPlan":
        return replace(self, sums=self.sums.changed(lambda each: each.ranged(ranges)))

    def _slices(self, inputs: Sequence[Array]) -> Iterator[list[Array]]:
        operands = self.plan.operation.inputs
        for region in regions(self.slicing.chunks):
            yield [
                part(x, operand.modes, region) for x, operand in zip(inputs, operands, strict=True)
            ]


def part(x: Array, modes: Sequence[int], region: Region) -> Array:
    """The view of ``x`` in a slice; extent 1 broadcasts, and so it stays."""
    ranges = {mode: slice(first, first + length) for mode, first, length in region}
    whole = slice(None)
    index = tuple(
        ranges.get(mode, whole) if extent != 1 else whole
        for mode, extent in zip(modes, x.shape, strict=True)
    )
    return x[index] if index else x


def _from_zero(region: Region) -> Region:
    return tuple((mode, 0, length) for mode, _, length in region)
