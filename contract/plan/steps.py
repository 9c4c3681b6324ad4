"""A plan: frozen steps over numbered slots. No array, pointer, stream or function is inside.

A View is a slot seen through strides and costs nothing; a step moves bytes. There are five
kinds of steps, and every executor, the explainer and the workspace read the same ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from contract.descriptors.compute_types import ComputeType, is_complex
from contract.descriptors.operations import (
    Algo,
    OperationDescriptor,
    Padding,
    PlanPreference,
    TensorDescriptor,
)
from contract.descriptors.operators import BinaryOperator, Operator
from contract.machines.gpu_tiles import HopperShare, Share
from contract.support.choices import Choice
from contract.support.text import Row, aligned, count, ratio, seconds

__all__ = [
    "Blocking",
    "Candidate",
    "Decision",
    "Elementwise",
    "Gemm",
    "Gett",
    "Kind",
    "Loop",
    "Panels",
    "PassStep",
    "Permute",
    "Plan",
    "Product",
    "Reduce",
    "Scalar",
    "Slot",
    "SlotKind",
    "Source",
    "Step",
    "View",
    "lifetimes",
    "modes_text",
    "slot_name",
    "step_bytes",
    "step_flops",
    "step_slots",
    "step_text",
]


class SlotKind(Choice):
    """What a slot holds; the caller gives all but the temporaries."""

    INPUT = "input"
    OUTPUT = "output"
    ADDEND = "addend"
    TEMPORARY = "temporary"


@dataclass(frozen=True, slots=True)
class Slot:
    """One buffer of a plan and the tensor that lies in it."""

    kind: SlotKind
    tensor: TensorDescriptor

    @property
    def bytes(self) -> int:
        """Bytes of the tensor, packed."""
        return self.tensor.packed_bytes


class View(NamedTuple):
    """Slot ``slot`` seen through ``strides`` (elements, one for each dimension of the step)."""

    slot: int
    strides: tuple[int, ...]


class Scalar(Choice):
    """The scalars of an execution; the values are their places in a tuple of them."""

    ALPHA = 0
    BETA = 1
    GAMMA = 2


class Source(NamedTuple):
    """[scalar *] op(view), read by a step; a scalar of 0 means that the view is not read."""

    view: View
    operator: Operator = Operator.IDENTITY
    scalar: Scalar | None = None


@dataclass(frozen=True, slots=True)
class Permute:
    """T[i] = [scalar *] op(S[i]), with conversion of type and layout.

    The operator and the scalar act in ``dtype``. With padding, T has more elements on both
    sides of every dimension: element i of S goes to i + left, and the rest gets the value.
    """

    source: Source
    target: View
    extents: tuple[int, ...]
    modes: tuple[int, ...]
    dtype: str
    padding: Padding | None = None


@dataclass(frozen=True, slots=True)
class Elementwise:
    """T[i] = op_n(... op_1(S_0[i], S_1[i]) ..., S_n[i]) in ``dtype``; stride 0 broadcasts.

    Without sources the step fills T with zeros.
    """

    sources: tuple[Source, ...]
    operators: tuple[BinaryOperator, ...]
    target: View
    extents: tuple[int, ...]
    modes: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Reduce:
    """T[i] = [scalar *] reduce over r of op(S[i, r]) [+ C[i]]; r are the last dimensions.

    The first ``kept`` of ``extents`` belong to T; what is reduced is kept in ``dtype``.
    """

    source: Source
    target: View
    extents: tuple[int, ...]
    modes: tuple[int, ...]
    kept: int
    dtype: str
    operator: BinaryOperator = BinaryOperator.ADD
    addend: Source | None = None


class Kind(Choice):
    """Which operands of a product have a mode: l all, m A and D, n B and D, k A and B."""

    BATCH = "l"
    M = "m"
    N = "n"
    K = "k"


class Loop(NamedTuple):
    """One loop of a product: ``extent`` and the strides in A, B, D and C (elements).

    ``modes`` are the modes fused into the loop, fastest first.
    """

    kind: Kind
    extent: int
    a: int
    b: int
    d: int
    c: int
    modes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Panels:
    """How a Gett is blocked on the host: panels of cache size, packed, multiplied, unpacked.

    ``blocks`` is the extent of a block for each loop of the step. In a block the loops ``m``,
    ``n`` and ``k`` (indices, fastest first) are flattened into the three extents of a matrix
    product and the loops ``batch`` enumerate such products. An operand with its ``pack`` flag
    is copied into a panel; the others are used where they lie. ``splits`` partial sums over
    the blocks of k are kept apart and added in order.
    """

    blocks: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    batch: tuple[int, ...]
    pack_a: bool
    pack_b: bool
    pack_d: bool
    splits: int = 1


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a Gett is blocked on the host: boxes of cache size, packed and multiplied in registers.

    ``blocks`` is the extent of a box for each loop of the step. ``batch``, ``m``, ``n`` and ``k``
    (indices, fastest first) say in which order the places of a box are packed. The boxes along k
    are summed in ``splits`` parts apart, which are added in order. With ``keeps`` all boxes of A
    stay packed while columns change.
    """

    blocks: tuple[int, ...]
    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    splits: int = 1
    keeps: bool = False


Blocking = Panels | Tiles | Share | HopperShare


@dataclass(frozen=True, slots=True)
class Product:
    """D[l,m,n] = [alpha *] sum_k opA(A[l,m,k]) * opB(B[l,k,n]) [+ beta * opC(C[l,m,n])].

    ``a``, ``b``, ``d`` and ``c`` are slots; ``loops`` hold all strides. ``dtype`` is the type
    in which products are formed and summed; with ``compute`` they may be as inaccurate as that.
    """

    a: int
    b: int
    d: int
    loops: tuple[Loop, ...]
    dtype: str
    operator_a: Operator = Operator.IDENTITY
    operator_b: Operator = Operator.IDENTITY
    scaled: bool = False
    c: int | None = None
    operator_c: Operator = Operator.IDENTITY
    compute: ComputeType | None = None

    def extent(self, *kinds: Kind) -> int:
        """The number of index values over all loops of these kinds."""
        return prod([loop.extent for loop in self.loops if loop.kind in kinds])


@dataclass(frozen=True, slots=True)
class Gemm(Product):
    """A product that BLAS does on the operands where they lie: one row each of m, n and k.

    Rows of kind l enumerate matrix products; an operand without the mode has stride 0 there.
    C, where it is added, has D's type and strides, and no operator.
    """


@dataclass(frozen=True, slots=True)
class Gett(Product):
    """A product on arbitrary strides.

    On the host by panels that BLAS multiplies, by tiles of our own, or, without blocking, loop by
    loop; on a GPU by tiles that blocks of threads share.
    """

    blocking: Blocking | None = None


PassStep = Permute | Elementwise | Reduce  # what is done once to every element
Step = PassStep | Gemm | Gett


@dataclass(frozen=True, slots=True)
class Candidate:
    """What was considered for one operation: the algorithm, its predicted seconds, and why.

    ``copying`` of the seconds are spent on permutations.
    """

    algo: Algo
    seconds: float
    reason: str
    chosen: bool
    copying: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """The candidates for one operation of a plan; the chosen one led to ``steps`` of its steps."""

    steps: int
    candidates: tuple[Candidate, ...]

    @property
    def chosen(self) -> Candidate:
        """The candidate that the plan has."""
        return next(each for each in self.candidates if each.chosen)


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps that do ``operation``: slots are inputs, output, addend if one is read, temporaries.

    ``offsets`` place each slot's tensor in the workspace (bytes; -1: the caller gives it).
    ``considered`` has a decision for each operation, in the order of the steps it led to.
    ``addend_only`` is what alpha = 0 leaves of a product or a reduction: D = beta * op(C), or
    zeros, with no input read. ``preference`` is the one it was made by, with the path that was
    found: the same machine makes the same plan from it, without looking for a path.
    """

    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    offsets: tuple[int, ...]
    workspace: int
    operation: OperationDescriptor
    considered: tuple[Decision, ...]
    naive_flops: int
    preference: PlanPreference = field(compare=False)
    addend_only: Elementwise | None = None

    @property
    def inputs(self) -> int:
        """How many operands there are; their slots come first."""
        return len(self.operation.inputs)

    @property
    def labels(self) -> tuple[str, ...]:
        """The printed name of each mode."""
        return self.operation.labels

    @property
    def output(self) -> int:
        """The slot of D."""
        return self.inputs

    @property
    def addend(self) -> int | None:
        """The slot of C, or None where C is not read."""
        after = self.inputs + 1
        is_addend = after < len(self.slots) and self.slots[after].kind is SlotKind.ADDEND
        return after if is_addend else None

    @property
    def flops(self) -> int:
        """Floating-point operations of all steps."""
        return sum(step_flops(step) for step in self.steps)

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written by all steps, each operand of a step counted once."""
        return sum(step_bytes(self, step) for step in self.steps)

    @property
    def seconds(self) -> float:
        """The predicted time of the chosen candidates."""
        return sum(decision.chosen.seconds for decision in self.considered)

    def decided(self) -> Iterator[tuple[range, Decision]]:
        """Each decision with the steps it led to."""
        first = 0
        for decision in self.considered:
            yield range(first, first + decision.steps), decision
            first += decision.steps

    @property
    def peak_bytes(self) -> int:
        """Bytes of the temporary tensors alive together, where they are most."""
        alive = lifetimes(self.slots, self.steps)
        sizes = [0] * len(self.steps)
        for slot, (first, last) in alive.items():
            for at in range(first, last + 1):
                sizes[at] += self.slots[slot].bytes
        return max(sizes, default=0)

    @property
    def largest_intermediate(self) -> int:
        """Elements of the largest temporary tensor; 0 without temporaries."""
        sizes = (prod(s.tensor.extents) for s in self.slots if s.kind is SlotKind.TEMPORARY)
        return max(sizes, default=0)

    def __str__(self) -> str:
        """One row for each step: what it reads and writes, FLOPs, bytes, and its bound."""
        head: Row = ("step", "kind", "reads", "writes", "FLOPs", "bytes", "bound", "candidate")
        rows = [
            head,
            *(_step_row(self, at, each.chosen) for steps, each in self.decided() for at in steps),
        ]
        return "\n".join((_title(self), *aligned(rows), *_totals(self)))


def step_flops(step: Step) -> int:
    """2 per multiply-add of real numbers, 8 of complex ones; 1 per element elsewhere."""
    match step:
        case Gemm() | Gett():
            each = 8 if is_complex(step.dtype) else 2
            return each * prod(loop.extent for loop in step.loops)
        case Elementwise():
            return prod(step.extents) * max(len(step.sources) - 1, 0)
        case Reduce():
            return prod(step.extents)
        case Permute():
            return 0


def step_slots(step: Step) -> Iterator[int]:
    """Every slot the step reads, then the one it writes."""
    match step:
        case Gemm() | Gett():
            yield from (step.a, step.b)
            if step.c is not None:
                yield step.c
            yield step.d
        case Permute() | Elementwise() | Reduce():
            yield from (source.view.slot for source in _sources(step))
            yield step.target.slot


def lifetimes(slots: Sequence[Slot], steps: Sequence[Step]) -> dict[int, tuple[int, int]]:
    """For each temporary slot the step that writes it and the last that reads it."""
    found: dict[int, tuple[int, int]] = {}
    if all([slot.kind is not SlotKind.TEMPORARY for slot in slots]):
        return found
    for at, step in enumerate(steps):
        for slot in step_slots(step):
            if slots[slot].kind is SlotKind.TEMPORARY:
                found[slot] = found.get(slot, (at, at))[0], at
    return found


def step_bytes(plan: Plan, step: Step) -> int:
    """Bytes of the distinct elements that the step reads and writes."""
    return sum(plan.slots[slot].bytes for slot in step_slots(step))


def _sources(step: PassStep) -> tuple[Source, ...]:
    match step:
        case Permute():
            return (step.source,)
        case Elementwise():
            return step.sources
        case Reduce():
            return (step.source,) if step.addend is None else (step.source, step.addend)


def step_text(plan: Plan, step: Step) -> str:
    """``Gemm T0[a=4:1 k=5:4]  T1[k=5:1 b=6:5] -> D[a=4:1 b=6:4]``."""
    reads, writes = _sides(plan, step)
    return f"{_kind(step)} {reads} -> {writes}"


# --- the whole plan ---------------------------------------------------------------------------


def _title(plan: Plan) -> str:
    tensors = [slot.tensor for slot in plan.slots[: plan.inputs]]
    inputs = " x ".join(str(tensor) for tensor in tensors)
    kind = plan.operation.compute
    compute = f", compute {kind.value}" if kind else ""
    return f"{inputs} -> {plan.slots[plan.output].tensor}{compute}"


def _totals(plan: Plan) -> Iterator[str]:
    elements = plan.largest_intermediate
    largest = f"{count(elements)}elements" if elements else "none"
    workspace = f"{count(plan.workspace)}B" if plan.workspace else "none"
    yield (
        f"naive {count(plan.naive_flops)}FLOP, optimised {count(plan.flops)}FLOP "
        f"({ratio(plan.naive_flops, max(plan.flops, 1))}x), {count(plan.moved_bytes)}B moved"
    )
    yield (
        f"largest intermediate: {largest}; workspace: {workspace}; "
        f"predicted {seconds(plan.seconds)}"
    )


# --- one step -----------------------------------------------------------------------------------


def _step_row(plan: Plan, at: int, chosen: Candidate) -> Row:
    step = plan.steps[at]
    flops, moved = step_flops(step), step_bytes(plan, step)
    bound = "compute" if flops > 8 * moved else "memory"
    reads, writes = _sides(plan, step)
    why = f"{chosen.algo.name}: {chosen.reason}"
    return (str(at), _kind(step), reads, writes, count(flops), count(moved), bound, why)


def _kind(step: Step) -> str:
    name = type(step).__name__
    if isinstance(step, Gett):
        ways = {Panels: "panels", type(None): "loops"}
        return f"{name} {ways.get(type(step.blocking), 'tiles')}"
    if isinstance(step, Reduce) and step.operator is not BinaryOperator.ADD:
        return f"{name} {step.operator.value}"
    return name


def _sides(plan: Plan, step: Step) -> tuple[str, str]:
    match step:
        case Gemm() | Gett():
            reads = [_operator(step.operator_a, _loops(plan, step.a, step.loops, "a"))]
            reads.append(_operator(step.operator_b, _loops(plan, step.b, step.loops, "b")))
            if step.c is not None:
                addend = _operator(step.operator_c, _loops(plan, step.c, step.loops, "c"))
                reads.append(f"+ {addend}")
            return "  ".join(reads), _loops(plan, step.d, step.loops, "d")
        case Permute() | Elementwise() | Reduce():
            sources = [_source(plan, each, step) for each in _sources(step)]
            return "  ".join(_joined(sources, step)) or "0", _target(plan, step)


def _joined(sources: list[str], step: PassStep) -> Iterator[str]:
    """The operands with what combines them; a product needs no sign."""
    signs = {BinaryOperator.ADD: "+ ", BinaryOperator.MUL: ""}
    yield from sources[:1]
    operators = step.operators if isinstance(step, Elementwise) else (BinaryOperator.ADD,)
    for operator, source in zip(operators, sources[1:], strict=False):
        yield signs.get(operator, f"{operator.value} ") + source


def _target(plan: Plan, step: PassStep) -> str:
    return _view(plan, step.target, step)


def _source(plan: Plan, source: Source, step: PassStep) -> str:
    return _operator(source.operator, _view(plan, source.view, step))


def _operator(operator: Operator, text: str) -> str:
    return text if operator is Operator.IDENTITY else f"{operator.value}({text})"


def _view(plan: Plan, view: View, step: PassStep) -> str:
    dimensions = zip(step.modes, step.extents, view.strides, strict=False)
    return _named(plan, view.slot, [((mode,), n, stride) for mode, n, stride in dimensions])


def _loops(plan: Plan, slot: int, loops: Sequence[Loop], name: str) -> str:
    dimensions = [(loop.modes, loop.extent, int(getattr(loop, name))) for loop in loops]
    ordered = sorted(dimensions, key=lambda each: abs(each[2]))
    return _named(plan, slot, [each for each in ordered if each[2]])


def _named(plan: Plan, slot: int, dimensions: Sequence[tuple[tuple[int, ...], int, int]]) -> str:
    """``T0[ab=12:1 k=5:12]``: the slot, then each dimension's modes=extent:stride."""
    inside = " ".join(f"{modes_text(plan, modes)}={n}:{stride}" for modes, n, stride in dimensions)
    return f"{slot_name(plan, slot)}[{inside}]"


def slot_name(plan: Plan, slot: int) -> str:
    """T0, T1, ... for operands, D for the result, C for what is added, W0, W1, ... inside."""
    kind = plan.slots[slot].kind
    if kind is SlotKind.INPUT:
        return f"T{slot}"
    given = plan.inputs + 1 + (plan.addend is not None)
    return {SlotKind.OUTPUT: "D", SlotKind.ADDEND: "C"}.get(kind, f"W{slot - given}")


def modes_text(plan: Plan, modes: Sequence[int]) -> str:
    """The labels of modes, run together where each is one character."""
    labels = [plan.labels[mode] for mode in modes]
    return ("" if all(len(label) == 1 for label in labels) else ".").join(labels)
