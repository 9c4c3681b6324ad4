"""Whether a plan may run: every step stays inside its tensors, and they are the operation's.

A plan that was planned here may; one that was read from a file has to show it. The rules are
about modes: a tensor has one stride for each of its modes, and every step that touches the tensor
must have exactly these strides, over the modes' extents. So no step leaves a tensor, whatever else
a file may say.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import prod
from operator import mul
from typing import Any, assert_never

from contract.descriptors.compute_types import accumulator, is_blas_type, real_of
from contract.descriptors.layout import is_packed, offset_bounds, overlaps
from contract.descriptors.operations import (
    Contraction,
    ElementwiseOperation,
    Operand,
    TensorDescriptor,
)
from contract.descriptors.operators import Operator
from contract.errors import ExecutionError, InvalidValueError
from contract.machines.gpu import ARCHITECTURES
from contract.machines.gpu_tiles import HopperShare, Share, shares, tiles
from contract.plan.products import STRIDE_A, STRIDE_B, STRIDE_D, Stride, extent_of, is_matrix
from contract.plan.steps import (
    Elementwise,
    Gemm,
    Gett,
    Kind,
    Loop,
    Panels,
    Permute,
    Plan,
    Reduce,
    Slot,
    SlotKind,
    Source,
    Step,
    Tiles,
    View,
    step_slots,
)
from contract.plan.workspace import ALIGNMENT, rounded
from contract.planner.device.boxes import boxed, cuts
from contract.planner.device.hopper_model import hopper_shares
from contract.planner.device.problem import held_by, problem_of
from contract.planner.host.tiles import PACKED, TILED
from contract.planner.network import addend_alone
from contract.planner.validation import operation_extents

__all__ = ["check_plan", "verify"]

MOST_SOURCES = 3  # of an elementwise step
GIVEN = (SlotKind.INPUT, SlotKind.ADDEND)  # what the caller has filled

Strides = Mapping[int, int]  # by mode; only modes along which a tensor moves


def verify(plan: Plan) -> None:
    """InvalidValueError, with the rule and both values, unless running the plan is safe.

    Safe: the slots hold the operation's tensors, every step reads what has been written and
    writes what it may, nothing outside the tensors is touched, temporaries lie in the workspace
    and apart from each other while both are needed. Every operand of the caller enters once.
    """
    _check_slots(plan)
    extents = operation_extents(plan.operation)
    memory = _Tensors(plan, extents)
    for step in plan.steps:
        memory.follow(step)
    memory.check_used()
    _check_workspace(plan)
    _check_decisions(plan)
    _equal("What alpha = 0 leaves", plan.addend_only, _alone(plan))


def check_plan(plan: Plan) -> None:
    """ExecutionError where a step would leave its tensors, with the rule that it breaks."""
    try:
        verify(plan)
    except InvalidValueError as error:
        raise ExecutionError(f"The plan is not safe to run. {error}\n{plan}") from error


def _equal(rule: str, found: Any, expected: Any) -> None:
    """``rule`` names what must be ``expected``."""
    if found != expected:
        raise InvalidValueError(f"{rule} must be {expected!s:.200}: it is {found!s:.200}.")


def _require(condition: bool, rule: str, *found: Any) -> None:
    if not condition:
        values = ", ".join(f"{value!s:.200}" for value in found)
        raise InvalidValueError(f"{rule}: it is {values}.")


def _alone(plan: Plan) -> Elementwise | None:
    """What alpha = 0 leaves of a product or a reduction."""
    if isinstance(plan.operation, ElementwiseOperation):
        return None
    return addend_alone(plan.operation, plan.slots[plan.output].tensor)


# --- slots ------------------------------------------------------------------------------------


def _check_slots(plan: Plan) -> None:
    """The caller's tensors in order, then temporaries; each type is one of the operation's."""
    operation = plan.operation
    given = [Slot(SlotKind.INPUT, operand.tensor) for operand in operation.inputs]
    given.append(Slot(SlotKind.OUTPUT, _output(plan)))
    if operation.addend is not None:
        given.append(Slot(SlotKind.ADDEND, operation.addend.tensor))
    _equal("The slots of a plan before the temporaries", plan.slots[: len(given)], tuple(given))
    types = _types(plan)
    for slot in plan.slots[len(given) :]:
        tensor = slot.tensor
        _equal("The kind of a slot after those of the caller", slot.kind, SlotKind.TEMPORARY)
        _require(_is_compact(tensor), "A temporary tensor is packed, its strides above 0", tensor)
        _require(tensor.dtype in types, f"A temporary has one of the types {types}", tensor)


def _output(plan: Plan) -> TensorDescriptor:
    """The operation's; where its layout is free, any packed one of the same extents."""
    tensor = plan.operation.output.tensor
    if not plan.operation.free_layout or len(plan.slots) <= plan.output:
        return tensor
    chosen = plan.slots[plan.output].tensor
    return replace(tensor, strides=chosen.strides) if _is_compact(chosen) else tensor


def _is_compact(tensor: TensorDescriptor) -> bool:
    if 0 in tensor.extents:
        return True  # nothing lies anywhere
    return is_packed(tensor.extents, tensor.steps) and min(tensor.steps, default=1) > 0


def _types(plan: Plan) -> tuple[str, ...]:
    """The types in which a plan may compute and keep what is between."""
    operation = plan.operation
    common = operation.rule.accumulator
    found = {common, real_of(common)}
    for slot in plan.slots[: plan.inputs + 1 + (operation.addend is not None)]:
        found |= {slot.tensor.dtype, accumulator(slot.tensor.dtype)}
    return tuple(sorted(found))


def _strides_of(operand: Operand, tensor: TensorDescriptor) -> Strides:
    """The stride of every mode along which the tensor moves: a diagonal's strides add."""
    found: dict[int, int] = {}
    for mode, extent, stride in zip(operand.modes, tensor.extents, tensor.steps, strict=True):
        if extent != 1:
            found[mode] = found.get(mode, 0) + stride
    return _moving(found)


def _moving(strides: Mapping[int, int]) -> Strides:
    return {mode: stride for mode, stride in strides.items() if stride}


# --- steps ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Axis:
    """Some modes in a row, fastest first, over which a step runs with one stride."""

    modes: tuple[int, ...]
    extent: int
    stride: int


class _Tensors:
    """What lies in each slot while the steps are followed.

    ``held`` are the strides of its modes, ``made_of`` the caller's slots that went into it.
    """

    def __init__(self, plan: Plan, extents: tuple[int, ...]) -> None:
        self.plan = plan
        self.extents = extents
        self.types = _types(plan)
        self.alone = _alone(plan)
        operation = plan.operation
        self.held = {
            at: _strides_of(operand, plan.slots[at].tensor)
            for at, operand in enumerate(operation.inputs)
        }
        self.target = _strides_of(operation.output, plan.slots[plan.output].tensor)
        if operation.addend is not None:
            self.held[plan.output + 1] = _strides_of(operation.addend, operation.addend.tensor)
        self.made_of = {at: [at] for at in self.held}
        self.shared = operation.same if isinstance(operation, Contraction) else ()
        self.views: dict[int, list[Strides]] = {}  # of each shared slot, one for each operand
        for at, slot in enumerate(self.shared):
            self.views.setdefault(slot, []).append(self.held[at])
        entering = [at for at, slot in enumerate(plan.slots) if slot.kind in GIVEN]
        self.entering = Counter([*self.shared, *entering[len(self.shared) :]])
        self.read: set[int] = set()
        self.written: set[int] = set()

    def follow(self, step: Step) -> None:
        """Check what the step reads and writes; then its target holds something."""
        *read, target = step_slots(step)
        for slot in read:
            _require(slot in self.held, "A step reads what is there", f"slot {slot}")
        is_free = target not in self.held and self.plan.output <= target < len(self.plan.slots)
        _require(is_free, "A step writes the output or a new temporary", f"slot {target}")
        _require(step.dtype in self.types, f"A step computes in one of {self.types}", step.dtype)
        if step != self.alone:
            self._check(step)
            self._mix(read, target)
        self.read.update(read)
        self.written.add(target)

    def _mix(self, read: Sequence[int], target: int) -> None:
        """What is read goes into the target, once for each operand; into the output everything."""
        mixed = sorted(each for slot in read for each in self.made_of[slot])
        _require(Counter(mixed) <= self.entering, "A tensor goes into a result once", mixed)
        if target == self.plan.output:
            _equal("The slots that go into the output", mixed, sorted(self.entering.elements()))
        self.made_of[target] = mixed

    def check_used(self) -> None:
        """The output, if it has elements, and every temporary is written; these are read."""
        empty = 0 in self.plan.slots[self.plan.output].tensor.extents
        first = self.plan.output + empty
        wanted = [at for at in range(first, len(self.plan.slots)) if not self._is_addend(at)]
        _equal("The slots that steps write", sorted(self.written), wanted)
        unread = self.written - self.read - {self.plan.output}
        _require(not unread, "A temporary is read", unread)

    def _is_addend(self, slot: int) -> bool:
        return self.plan.slots[slot].kind is SlotKind.ADDEND

    def _check(self, step: Step) -> None:
        match step:
            case Gemm() | Gett():
                self._product(step)
            case Permute(padding=None):
                self._reads(step.source, step.modes, step.extents)
                self._writes(step.target, step.modes, step.extents)
            case Permute():
                self._padded(step)
            case Elementwise():
                self._elementwise(step)
            case Reduce():
                self._reduce(step)
            case _:
                assert_never(step)

    # --- passes ---------------------------------------------------------------------------

    def _padded(self, step: Permute) -> None:
        """The result is the whole output, its modes in order."""
        operation = self.plan.operation
        padding = operation.padding if isinstance(operation, ElementwiseOperation) else None
        _equal("The padding of a step", step.padding, padding)
        _equal("The modes of a padded result", step.modes, operation.output.modes)
        tensor = self.plan.slots[self.plan.output].tensor
        _equal("A padded result", step.target, View(self.plan.output, tensor.steps))
        self._reads(step.source, step.modes, step.extents)

    def _elementwise(self, step: Elementwise) -> None:
        count = len(step.sources)
        _require(1 <= count <= MOST_SOURCES, "A step combines one to three tensors", count)
        _equal("The operators between the sources", len(step.operators), count - 1)
        for source in step.sources:
            self._reads(source, step.modes, step.extents)
        self._writes(step.target, step.modes, step.extents)

    def _reduce(self, step: Reduce) -> None:
        rank = len(step.extents)
        _require(0 <= step.kept <= rank, f"A step keeps up to {rank} modes", step.kept)
        kept = step.modes[: step.kept], step.extents[: step.kept]
        self._reads(step.source, step.modes, step.extents)
        if step.addend is not None:
            self._reads(step.addend, *kept)
        self._writes(step.target, *kept)

    def _reads(self, source: Source, modes: Sequence[int], extents: Sequence[int]) -> None:
        self._sees(source.view.slot, self._axes(modes, extents, source.view.strides))

    def _writes(self, view: View, modes: Sequence[int], extents: Sequence[int]) -> None:
        self._fills(view.slot, self._axes(modes, extents, view.strides))

    def _axes(
        self, modes: Sequence[int], extents: Sequence[int], strides: Sequence[int]
    ) -> list[_Axis]:
        """One for each mode of a pass."""
        counts = len(modes), len(extents), len(strides)
        _require(len(set(counts)) == 1, "One mode and one stride for each extent", counts)
        rows = zip(modes, extents, strides, strict=True)
        return [_Axis((mode,), extent, stride) for mode, extent, stride in rows]

    # --- products -------------------------------------------------------------------------

    def _product(self, step: Gemm | Gett) -> None:
        rule = self.plan.operation.rule
        _equal("The type of a product", step.dtype, rule.accumulator)
        _equal("The compute type of a product", step.compute, rule.compute)
        for loop in step.loops:
            _check_loop(loop)
        self._sees(step.a, _along(step.loops, "a"))
        self._sees(step.b, _along(step.loops, "b"))
        if step.c is not None:
            self._sees(step.c, _along(step.loops, "c"))
        kept = [loop for loop in step.loops if loop.kind is not Kind.K]
        self._fills(step.d, _along(kept, "d"))
        if isinstance(step, Gemm):
            _check_gemm(self.plan, step)
        else:
            _check_gett(self.plan, step)

    # --- one tensor -----------------------------------------------------------------------

    def _sees(self, slot: int, axes: Iterable[_Axis]) -> None:
        """The step runs over the tensor's modes with their strides.

        What several operands share is seen under the modes of each: so many, of such extents, or
        as the diagonal that one of them takes.
        """
        seen, held = self._by_mode(axes), self.held[slot]
        views = self.views.get(slot, [held]) if self.shared else []
        if self._moves(seen) not in map(self._moves, views):
            _equal(f"The strides in slot {slot}", seen, held)

    def _moves(self, strides: Strides) -> list[tuple[int, int]]:
        return sorted((self.extents[mode], stride) for mode, stride in strides.items())

    def _fills(self, slot: int, axes: Sequence[_Axis]) -> None:
        """The same for what is written; a temporary gets its strides here."""
        strides = self._by_mode(axes)
        still = {x for axis in axes for x in axis.modes if self.extents[x] != 1} - strides.keys()
        empty = any(axis.extent == 0 for axis in axes)
        _require(empty or not still, "A result moves along its modes", still)
        if slot == self.plan.output:
            _equal("The strides in the output", strides, self.target)
            return
        sizes, steps = [self.extents[mode] for mode in strides], list(strides.values())
        room = prod(self.plan.slots[slot].tensor.extents)
        low, high = offset_bounds(sizes, steps)
        _require(low == 0 and high < max(room, 1), f"A temporary of {room} has", (low, high))
        _require(not overlaps(sizes, steps), "A step writes an element once", strides)
        self.held[slot] = strides

    def _by_mode(self, axes: Iterable[_Axis]) -> Strides:
        """The stride of every mode; a mode occurs once and has its extent."""
        found: dict[int, int] = {}
        for axis in axes:
            for mode in axis.modes:
                known = 0 <= mode < len(self.extents) and mode not in found
                _require(known, f"A step has each of {len(self.extents)} modes once", mode)
                found[mode] = 0
            sizes = [self.extents[mode] for mode in axis.modes]
            _equal(f"The extent of modes {axis.modes}", axis.extent, prod(sizes))
            before = accumulate(sizes[:-1], mul, initial=axis.stride)
            found |= {
                mode: stride if size != 1 else 0
                for mode, size, stride in zip(axis.modes, sizes, before, strict=True)
            }
        return _moving(found)


# --- products ---------------------------------------------------------------------------------

# The operands that have no mode of the kind.
_ABSENT = {Kind.BATCH: (), Kind.M: ("b",), Kind.N: ("a",), Kind.K: ("d", "c")}


def _check_loop(loop: Loop) -> None:
    _require(loop.extent > 1 and bool(loop.modes), "A loop runs over modes of 2 or more", loop)
    for name in _ABSENT[loop.kind]:
        _equal(f"The stride of a loop {loop.kind.value} in {name}", getattr(loop, name), 0)


def _along(loops: Iterable[Loop], name: str) -> list[_Axis]:
    return [_Axis(loop.modes, loop.extent, getattr(loop, name)) for loop in loops]


def _dtype(plan: Plan, slot: int) -> str:
    return plan.slots[slot].tensor.dtype


def _check_gemm(plan: Plan, step: Gemm) -> None:
    """Matrices that BLAS takes as they are, in types that it multiplies."""
    m, n, k = ([loop for loop in step.loops if loop.kind is x] for x in (Kind.M, Kind.N, Kind.K))
    rows = len(m), len(n), len(k)
    _require(max(rows) <= 1, "A Gemm has one loop of m, n and k at most", rows)
    for stride, down, across in ((STRIDE_A, m, k), (STRIDE_B, k, n), (STRIDE_D, m, n)):
        _check_matrix(down, across, stride)
    a, b, d = (_dtype(plan, slot) for slot in (step.a, step.b, step.d))
    _require(is_blas_type(step.dtype), "A Gemm sums in a type of BLAS", step.dtype)
    _equal("The type of B in a Gemm", b, a)
    _equal("The type in which a Gemm sums", step.dtype, accumulator(a))
    _require(d in (a, step.dtype), f"A Gemm of {a} writes that or {step.dtype}", d)
    operators = {step.operator_a, step.operator_b, step.operator_c}
    _equal("The operators of a Gemm", operators, {Operator.IDENTITY})
    if step.c is not None:
        _equal("The type of C in a Gemm", _dtype(plan, step.c), d)
        strides = [loop.c for loop in step.loops]
        _equal("The strides of C in a Gemm", strides, [loop.d for loop in step.loops])


def _check_matrix(rows: Sequence[Loop], columns: Sequence[Loop], stride: Stride) -> None:
    down, across = (stride(loops[0]) if loops else 0 for loops in (rows, columns))
    m, n = extent_of(rows), extent_of(columns)
    legal = is_matrix(m, down, n, across)
    _require(legal, "BLAS takes matrices with one stride of 1", f"{m} x {n}:{down},{across}")


def _check_gett(plan: Plan, step: Gett) -> None:
    match step.blocking:
        case Tiles() as tiled:
            _check_tiles(plan, step, tiled)
        case Panels() as panels:
            _check_panels(plan, step, panels)
        case Share() as share:
            _check_share(plan, step, share)
        case HopperShare() as share:
            _check_hopper_share(plan, step, share)


def _check_share(plan: Plan, step: Gett, share: Share) -> None:
    """One that the tables have for some architecture."""
    problem = problem_of(step, held_by(plan, step))
    for architecture in ARCHITECTURES:
        work = problem.workload(architecture)
        if share.tile in tiles(work, architecture):
            if share in shares(work, share.tile, architecture):
                return
    raise InvalidValueError(f"A product is shared as the tables of tiles say: it is {share}.")


def _check_hopper_share(plan: Plan, step: Gett, share: HopperShare) -> None:
    """One of a tile whose boxes TMA and wgmma read, on some architecture."""
    problem = boxed(step, held_by(plan, step))
    for architecture in ARCHITECTURES:
        for cut in cuts(problem, architecture):
            if share in hopper_shares(cut, architecture):
                return
    raise InvalidValueError(f"A product is shared as TMA and wgmma allow: it is {share}.")


def _check_tiles(plan: Plan, step: Gett, tiles: Tiles) -> None:
    """Types that the kernels have; boxes inside the loops, every loop in its kind's order."""
    types = tuple(_dtype(plan, slot) for slot in (step.a, step.b, step.d))
    legal = set(types[:2]) <= PACKED and types[2] == step.dtype in TILED
    _require(legal, "Tiles have types that are packed and multiplied", (*types, step.dtype))
    operators = {step.operator_a, step.operator_b}
    _equal("The operators of A and B in tiles", operators, {Operator.IDENTITY})
    _check_blocks(step.loops, tiles.blocks)
    _require(tiles.splits >= 1, "A sum has one part or more", tiles.splits)
    for kind, order in zip(Kind, (tiles.batch, tiles.m, tiles.n, tiles.k), strict=True):
        own = [at for at, loop in enumerate(step.loops) if loop.kind is kind]
        _equal(f"The order of the loops of kind {kind.value}", sorted(order), own)


def _check_blocks(loops: Sequence[Loop], blocks: Sequence[int]) -> None:
    _equal("The number of blocks", len(blocks), len(loops))
    for loop, block in zip(loops, blocks, strict=True):
        _require(1 <= block <= loop.extent, f"A block has up to {loop.extent} indices", block)


def _check_panels(plan: Plan, step: Gett, panels: Panels) -> None:
    """Blocks inside the loops; every loop has one role; what is not packed is a matrix."""
    loops, blocks = step.loops, panels.blocks
    _check_blocks(loops, blocks)
    _check_roles(loops, panels)
    _require(panels.splits >= 1, "A sum has one part or more", panels.splits)
    _require(panels.splits == 1 or panels.pack_d, "Parts of a sum are packed", panels.pack_d)
    m, n, k = panels.m, panels.n, panels.k
    plain_a, plain_b = (
        _dtype(plan, slot) == step.dtype and operator is Operator.IDENTITY
        for slot, operator in ((step.a, step.operator_a), (step.b, step.operator_b))
    )
    plain_d = _dtype(plan, step.d) == step.dtype and step.c is None
    for name, packed, is_plain, chains in (
        ("a", panels.pack_a, plain_a, (m, k)),
        ("b", panels.pack_b, plain_b, (k, n)),
        ("d", panels.pack_d, plain_d, (m, n)),
    ):
        _require(packed or is_plain, f"A block of {name} that is converted is packed", packed)
        for chain in chains if not packed else ():
            _check_chain(loops, blocks, chain, name)


def _check_roles(loops: Sequence[Loop], panels: Panels) -> None:
    """Every loop is one of a matrix product, of many such, or runs one by one."""
    roles = (*panels.m, *panels.n, *panels.k, *panels.batch)
    in_range = all(0 <= at < len(loops) for at in roles)
    _require(in_range, f"Panels name {len(loops)} loops by number", roles)
    _require(len(set(roles)) == len(roles), "A loop has one role in a panel", roles)
    for kind, chosen in ((Kind.M, panels.m), (Kind.N, panels.n), (Kind.K, panels.k)):
        kinds = {loops[at].kind for at in chosen}
        _require(kinds <= {kind}, f"Loops {chosen} are of the kind {kind.value}", kinds)
    summed = [at for at in panels.batch if loops[at].kind is Kind.K]
    _require(not summed, "No sum runs over products of a batch", summed)
    for at in set(range(len(loops))) - set(roles):
        _equal(f"The block of loop {at}, which has no role", panels.blocks[at], 1)


def _check_chain(
    loops: Sequence[Loop], blocks: Sequence[int], chain: Sequence[int], name: str
) -> None:
    """Loops used as one where they lie: contiguous, and whole before the next begins."""
    cut = [at for at in chain if blocks[at] < loops[at].extent]
    inside = all(blocks[at] == 1 for first in cut[:1] for at in _after(chain, first))
    _require(inside, f"A block of {name} is contiguous along {chain}", blocks)
    for inner, outer in pairwise(chain):
        stride = getattr(loops[inner], name) * loops[inner].extent
        _equal(f"The stride of {name} in loop {outer}", getattr(loops[outer], name), stride)


def _after(chain: Sequence[int], at: int) -> Sequence[int]:
    found = list(chain)
    return found[found.index(at) + 1 :]


# --- workspace --------------------------------------------------------------------------------


def _check_workspace(plan: Plan) -> None:
    """Temporaries at lines of the workspace, apart while both are needed; the caller's nowhere."""
    _equal("The number of offsets", len(plan.offsets), len(plan.slots))
    lives = _lives(plan)
    for at, offset in enumerate(plan.offsets):
        if at not in lives:
            _equal(f"The offset of slot {at}", offset, -1)
        else:
            legal = offset >= 0 and offset % ALIGNMENT == 0
            _require(legal, f"A temporary begins at a multiple of {ALIGNMENT}", offset)
    for at in range(len(plan.steps)):
        places = sorted(_place(plan, slot) for slot, life in lives.items() if at in life)
        for (_, end), (begin, _) in pairwise(places):
            _require(end <= begin, f"Temporaries of step {at} lie apart", places)
    ends = (_place(plan, at)[1] for at in lives)
    _equal("The bytes of the workspace", plan.workspace, max(ends, default=0))


def _place(plan: Plan, slot: int) -> tuple[int, int]:
    """Where a temporary begins and ends."""
    begin = plan.offsets[slot]
    return begin, begin + rounded(plan.slots[slot].bytes)


def _lives(plan: Plan) -> dict[int, range]:
    """The steps from the first to the last that uses each temporary."""
    found: dict[int, range] = {}
    for at, step in enumerate(plan.steps):
        for slot in step_slots(step):
            if plan.slots[slot].kind is SlotKind.TEMPORARY:
                first = found[slot].start if slot in found else at
                found[slot] = range(first, at + 1)
    return found


def _check_decisions(plan: Plan) -> None:
    """Each step belongs to a decision, in which one candidate was chosen."""
    steps = sum(decision.steps for decision in plan.considered)
    _equal("The steps of all decisions", steps, len(plan.steps))
    for decision in plan.considered:
        _require(decision.steps >= 1, "A decision led to a step", decision.steps)
        chosen = sum(each.chosen for each in decision.candidates)
        _equal("The candidates chosen for an operation", chosen, 1)
