"""Plans that may run are told from plans that may not; addresses are counted one by one."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import product as combinations
from random import Random
from typing import Any

import pytest

import contract as ct
from contract.descriptors.operations import Algo
from contract.errors import CacheFileError, InvalidValueError
from contract.execution.verification import verify
from contract.machines.cpu import COMPILED
from contract.machines.gpu import architecture_of
from contract.machines.gpu_kernels import HOPPER_TILES
from contract.machines.gpu_tiles import HopperShare
from contract.plan.steps import (
    Elementwise,
    Gemm,
    Gett,
    Panels,
    Permute,
    Plan,
    Reduce,
    SlotKind,
    Source,
    Step,
    View,
)
from contract.planner.planner import make_plan
from contract.storage.codec import decoded, encoded
from tests.plan_cases import (
    MACHINES,
    another,
    candidates,
    changed,
    contraction,
    numbers,
    operand,
    plans,
)

HOST, GPU = MACHINES[0], architecture_of(90)


# --- an independent reading of plans ------------------------------------------------------------


def addresses(extents: Sequence[int], strides: Sequence[int]) -> set[int]:
    ranges = (range(0, n * s, s) if s else [0][:n] for n, s in zip(extents, strides, strict=True))
    return {sum(each) for each in combinations(*ranges)}


def accesses(plan: Plan, step: Step) -> Iterator[tuple[int, Sequence[int], Sequence[int]]]:
    """The slot, the extents and the strides of each tensor that a step touches, D last."""
    match step:
        case Gemm() | Gett():
            sizes = [loop.extent for loop in step.loops]
            yield step.a, sizes, [loop.a for loop in step.loops]
            yield step.b, sizes, [loop.b for loop in step.loops]
            if step.c is not None:
                yield step.c, sizes, [loop.c for loop in step.loops]
            yield step.d, sizes, [loop.d for loop in step.loops]
        case Permute():
            sizes = list(step.extents)
            yield step.source.view.slot, sizes, step.source.view.strides
            if step.padding is not None:
                sides = zip(step.padding.left, sizes, step.padding.right, strict=True)
                sizes = [sum(each) for each in sides]
            yield step.target.slot, sizes, step.target.strides
        case Elementwise():
            for source in step.sources:
                yield source.view.slot, step.extents, source.view.strides
            yield step.target.slot, step.extents, step.target.strides
        case Reduce():
            kept = step.extents[: step.kept]
            yield step.source.view.slot, step.extents, step.source.view.strides
            if step.addend is not None:
                yield step.addend.view.slot, kept, step.addend.view.strides
            yield step.target.slot, kept, step.target.strides


def stays_inside(plan: Plan) -> bool:
    """Whether steps touch elements of their tensors only, and read what has been written."""
    own = [addresses(slot.tensor.extents, slot.tensor.steps) for slot in plan.slots]
    there = {at for at, s in enumerate(plan.slots) if s.kind in (SlotKind.INPUT, SlotKind.ADDEND)}
    written: dict[int, set[int]] = {at: own[at] for at in there}
    for step in plan.steps:
        *read, (target, *where) = accesses(plan, step)
        if any(not addresses(*x) <= written.get(slot, set()) for slot, *x in read):
            return False
        if target in there or not addresses(*where) <= own[target]:
            return False
        written[target] = written.get(target, set()) | addresses(*where)
    return written.get(plan.output, set()) == own[plan.output] and _fits(plan)


def _fits(plan: Plan) -> bool:
    """Whether temporaries lie in the workspace, apart from each other during every step."""
    for step in plan.steps:
        taken: set[int] = set()
        for slot in {slot for slot, *_ in accesses(plan, step) if plan.offsets[slot] >= 0}:
            begin = plan.offsets[slot]
            here = set(range(begin, begin + plan.slots[slot].bytes))
            if here & taken or max(here, default=0) >= plan.workspace:
                return False
            taken |= here
    return True


# --- plans as they are made, and as they are not ------------------------------------------------


def test_what_is_planned_is_verified() -> None:
    assert {kind.__name__ for kind in (Gemm, Gett, Permute, Elementwise, Reduce)} == {
        type(step).__name__ for plan in plans() for step in plan.steps
    }
    for plan in plans():
        verify(plan)
        assert stays_inside(plan)


def test_a_plan_with_one_number_changed_is_refused_or_stays_inside() -> None:
    rng = Random("one number")
    refused = accepted = 0
    for plan in plans()[::2]:
        document = json.loads(json.dumps(encoded(plan, Plan)))
        places = [at for at in numbers(document) if at[0][0] != "operation"]
        for at, number in rng.sample(places, 8):
            try:
                found = decoded(changed(document, at, another(number, rng)), Plan)
                verify(found)
            except (CacheFileError, InvalidValueError):
                refused += 1
            else:
                assert stays_inside(found), at
                accepted += 1
    assert refused > accepted > 20


def test_an_operation_with_one_number_changed_is_refused() -> None:
    """Unless it means the same, or is the layout of a result whose layout is free."""
    rng = Random("operation")
    for plan in plans()[::4]:
        document = json.loads(json.dumps(encoded(plan, Plan)))
        for at, number in rng.sample(list(numbers(document["operation"])), 4):
            other = changed(document, ("operation", *at), another(number, rng))
            try:
                found = decoded(other, Plan)
                verify(found)
            except (CacheFileError, InvalidValueError):
                continue
            is_free = plan.operation.free_layout and at[1:-1] == ("output", "tensor", "strides")
            assert is_free or found == plan, at


assert COMPILED.tiling is not None
# A machine where nothing but tiles is quick.
BOXES = replace(
    COMPILED, loop_product=0, call=1.0, product=1.0, tiling=replace(COMPILED.tiling, call=0.0)
)

# --- one rule after the other -------------------------------------------------------------------

CHAIN = make_plan(contraction("ab,bc,cm->am"), ct.PlanPreference(algo=Algo.GEMM), HOST)
BLOCKED = next(
    plan
    for plan in candidates(contraction("abk,kc->bca"), HOST)
    if isinstance(plan.steps[0], Gett)
    and isinstance(plan.steps[0].blocking, Panels)
    and not plan.steps[0].blocking.pack_a
)
TILED = make_plan(contraction("abk,kc->bca"), ct.PlanPreference(algo=Algo.GETT), GPU)
REDUCED = next(
    plan for plan in plans() if isinstance(plan.operation, ct.Reduction) and plan.addend is not None
)
COMBINED = next(plan for plan in plans() if plan.inputs == 3 and plan.addend_only is None)


def with_step(plan: Plan, at: int = 0, **changes: Any) -> Plan:
    steps = list(plan.steps)
    steps[at] = replace(steps[at], **changes)
    return replace(plan, steps=tuple(steps))


def with_loop(plan: Plan, kind: str, **changes: Any) -> Plan:
    (at,) = (i for i, loop in enumerate(plan.steps[0].loops) if loop.kind.value == kind)
    loops = list(plan.steps[0].loops)
    loops[at] = loops[at]._replace(**changes)
    return with_step(plan, loops=tuple(loops))


def with_slot(plan: Plan, at: int, **changes: Any) -> Plan:
    slots = list(plan.slots)
    slots[at] = replace(slots[at], tensor=replace(slots[at].tensor, **changes))
    return replace(plan, slots=tuple(slots))


def with_blocking(plan: Plan, **changes: Any) -> Plan:
    return with_step(plan, blocking=replace(plan.steps[0].blocking, **changes))


def with_panels(**changes: Any) -> Plan:
    return with_blocking(BLOCKED, **changes)


BOXED = make_plan(contraction("labk,lkc->lbca"), ct.PlanPreference(kernel_rank=0), BOXES)


def with_tiles(**changes: Any) -> Plan:
    return with_blocking(BOXED, **changes)


def with_share(**changes: Any) -> Plan:
    return with_blocking(TILED, **changes)


LARGE = [
    ct.Operand(ct.TensorDescriptor((2048, 2048), None, "float16", 16), x)
    for x in ("ab", "bc", "ac")
]
WGMMA = make_plan(
    ct.Contraction((LARGE[0], LARGE[1]), LARGE[2]),
    ct.PlanPreference(algo=Algo.GETT),
    architecture_of(90),
)


def with_wgmma(**changes: Any) -> Plan:
    return with_blocking(WGMMA, **changes)


SQUARED = make_plan(contraction("ab,ab->ab"), ct.PlanPreference(algo=Algo.ELEMENTWISE), HOST)
COPY = Permute(Source(View(0, (1, 6))), View(2, (1, 6)), (6, 5), (0, 1), "float64")
PADDED = next(plan for plan in plans() if getattr(plan.operation, "padding", None))
HALF = make_plan(contraction("ab,bc->ac", "float16"), ct.PlanPreference(algo=Algo.GETT), HOST)
ROOTED = make_plan(  # the root of the real factor is taken first
    ct.Contraction(
        (operand("ab", "complex128"), operand("bc", "float64", ct.Operator.SQRT)),
        operand("ac", "complex128"),
    ),
    ct.PlanPreference(algo=Algo.GETT),
    HOST,
)
REFUSED = {
    "slots of other tensors": (with_slot(CHAIN, 0, extents=(6, 6)), "slots of a plan before"),
    "another alignment": (with_slot(CHAIN, 0, alignment=64), "slots of a plan before"),
    "a temporary with gaps": (
        with_slot(CHAIN, 4, strides=(1, 99)),
        "A temporary tensor is packed",
    ),
    "a temporary of objects": (with_slot(CHAIN, 4, dtype="object"), "one of the types"),
    "a step on objects": (with_step(REDUCED, dtype="object"), "computes in one of"),
    "reading what is not there": (with_step(CHAIN, a=4), "reads what is there: it is slot 4"),
    "reading the output": (with_step(CHAIN, a=3), "reads what is there: it is slot 3"),
    "writing an input": (with_step(CHAIN, d=0), "writes the output or a new temporary.*slot 0"),
    "no such slot": (with_step(CHAIN, d=9), "writes the output or a new temporary.*slot 9"),
    "an operand twice": (
        with_step(next(p for p in plans() if p.operation.labels == ("a", "b") and p.steps), b=0),
        "A tensor goes into a result once",
    ),
    "a slot of no caller": (
        replace(CHAIN, slots=(*CHAIN.slots[:4], replace(CHAIN.slots[4], kind=SlotKind.INPUT))),
        "kind of a slot after those of the caller must be",
    ),
    "four sources": (
        with_step(COMBINED, sources=COMBINED.steps[0].sources[:1] * 4),
        "A step combines one to three tensors: it is 4",
    ),
    "a padded result elsewhere": (
        with_step(PADDED, target=View(1, (1, 5, 46))),
        "A padded result must be",
    ),
    "a padded result of other modes": (
        with_step(PADDED, modes=PADDED.steps[0].modes[::-1]),
        "The modes of a padded result must be",
    ),
    "another padding": (
        with_step(PADDED, padding=ct.Padding((1, 0, 2), (0, 3, 1), 0.0)),
        "The padding of a step must be",
    ),
    "a root that is not used": (with_step(ROOTED, 1, b=1), "A temporary is read"),
    "an operand not at all": (replace(SQUARED, steps=(COPY,)), "that go into the output must be"),
    "no output": (replace(CHAIN, steps=CHAIN.steps[:1]), "slots that steps write"),
    "another stride": (with_loop(CHAIN, "m", a=2), "strides in slot 0"),
    "another extent": (with_loop(CHAIN, "m", extent=7), "extent of modes"),
    "a stride in the wrong operand": (with_loop(CHAIN, "m", b=1), "stride of a loop m in b"),
    "a mode twice": (with_loop(CHAIN, "m", modes=(1,), extent=5), "each of 4 modes once"),
    "no such mode": (with_loop(CHAIN, "m", modes=(77,)), "each of 4 modes once: it is 77"),
    "an empty loop": (with_loop(CHAIN, "m", modes=(), extent=1), "modes of 2 or more"),
    "another type": (with_step(CHAIN, dtype="float32"), "computes in one of"),
    "sums in the type of the data": (with_step(HALF, dtype="float16"), "The type of a product"),
    "a copy that stands still": (
        with_step(ROOTED, target=View(3, (0, 1))),
        "A result moves along its modes",
    ),
    "a copy beyond its room": (with_step(ROOTED, target=View(3, (1, 50))), "A temporary of 20 has"),
    "a copy on itself": (with_step(ROOTED, target=View(3, (1, 1))), "writes an element once"),
    "another accuracy": (
        with_step(CHAIN, compute=ct.ComputeType.F32),
        "compute type of a product must be",
    ),
    "an operator BLAS has not": (
        with_step(CHAIN, operator_a=ct.Operator.EXP),
        "operators of a Gemm",
    ),
    "an offset between lines": (replace(CHAIN, offsets=(*CHAIN.offsets[:4], 8)), "multiple of 64"),
    "an offset outside": (replace(CHAIN, offsets=(*CHAIN.offsets[:4], 64)), "bytes of the work"),
    "an offset of an input": (replace(CHAIN, offsets=(0, *CHAIN.offsets[1:])), "offset of slot 0"),
    "too few offsets": (replace(CHAIN, offsets=CHAIN.offsets[:4]), "number of offsets"),
    "a smaller workspace": (replace(CHAIN, workspace=0), "bytes of the workspace"),
    "no decisions": (replace(CHAIN, considered=()), "steps of all decisions"),
    "another result of alpha = 0": (replace(CHAIN, addend_only=None), "What alpha = 0 leaves"),
    "kept too many": (with_step(REDUCED, kept=4), "keeps up to 3 modes: it is 4"),
    "kept too few": (with_step(REDUCED, kept=0), "One mode and one stride"),
    "too many strides": (
        with_step(REDUCED, target=View(1, (1, 1))),
        "One mode and one stride for each extent",
    ),
    "an operator too few": (with_step(COMBINED, operators=()), "operators between the sources"),
    "a block of nothing": (
        with_panels(blocks=(0, *BLOCKED.steps[0].blocking.blocks[1:])),
        "A block has up to",
    ),
    "too few blocks": (with_panels(blocks=()), "number of blocks"),
    "a block that is not contiguous": (
        with_panels(blocks=tuple(max(n - 1, 1) for n in BLOCKED.steps[0].blocking.blocks)),
        "A block of a is contiguous along",
    ),
    "two roles": (with_panels(m=BLOCKED.steps[0].blocking.m * 2), "one role"),
    "no such loop": (with_panels(n=(17,)), "by number"),
    "rows that are columns": (
        with_panels(m=BLOCKED.steps[0].blocking.n, n=BLOCKED.steps[0].blocking.m),
        "of the kind m",
    ),
    "a sum over products": (with_panels(k=(), batch=(0,)), "No sum runs over products"),
    "a loop without a role": (with_panels(m=(), pack_a=True, pack_d=True), "which has no role"),
    "parts that are not packed": (with_panels(splits=2, pack_d=False), "Parts of a sum are packed"),
    "no parts": (with_panels(splits=0), "one part or more"),
    "boxes of nothing": (
        with_tiles(blocks=(0,) * len(BOXED.steps[0].loops)),
        "A block has up to",
    ),
    "too few boxes": (with_tiles(blocks=()), "number of blocks"),
    "boxes beyond a loop": (
        with_tiles(blocks=tuple(loop.extent + 1 for loop in BOXED.steps[0].loops)),
        "A block has up to",
    ),
    "batches along rows": (
        with_tiles(batch=BOXED.steps[0].blocking.m),
        "order of the loops of kind l",
    ),
    "rows along columns": (with_tiles(m=BOXED.steps[0].blocking.n), "order of the loops of kind m"),
    "steps left out": (with_tiles(k=()), "order of the loops of kind k"),
    "a loop twice": (with_tiles(n=BOXED.steps[0].blocking.n * 2), "order of the loops of kind n"),
    "no parts of tiles": (with_tiles(splits=0), "one part or more"),
    "operators in tiles": (
        with_step(BOXED, operator_a=ct.Operator.RELU),
        "operators of A and B in tiles",
    ),
    "a tile of one's own": (
        with_share(tile=replace(TILED.steps[0].blocking.tile, k=512)),
        "as the tables of tiles say",
    ),
    "boxes that no tensor map has": (
        with_step(TILED, blocking=HopperShare(HOPPER_TILES[0])),
        "as TMA and wgmma allow",
    ),
    "a tile that wgmma has not": (
        with_wgmma(tile=replace(HOPPER_TILES[0], n=96)),
        "as TMA and wgmma allow",
    ),
    "parts that are empty": (with_wgmma(parts=1000), "as TMA and wgmma allow"),
    "parts beyond k": (with_share(parts=3), "as the tables of tiles say"),
    "tiles done whole that there are not": (with_share(whole=5), "as the tables of tiles say"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_rule_is_named(name: str) -> None:
    plan, rule = REFUSED[name]
    with pytest.raises(InvalidValueError, match=rule):
        verify(plan)


def test_temporaries_that_are_needed_together_lie_apart() -> None:
    plan = next(plan for plan in plans() if sum(offset >= 0 for offset in plan.offsets) > 1)
    offsets = tuple(min(offset, 0) for offset in plan.offsets)
    with pytest.raises(InvalidValueError, match=r"Temporaries of step \d lie apart"):
        verify(replace(plan, offsets=offsets))


def product(types: str, text: str = "ab,bc->ac", **options: Any) -> ct.Contraction:
    """A product of operands of these types: A, B and D."""
    a, b, d = types.split()
    left, right, output = (x for part in text.split("->") for x in part.split(","))
    inputs = operand(left, a), operand(right, b)
    return ct.Contraction(inputs, operand(output, d), **options)


NO_GEMM = {
    "one stride of 1": ct.Contraction(
        (operand("ab", strides=(2, 12)), operand("bc")), operand("ac")
    ),
    "one loop of m, n and k": product("float64 float64 float64", "abk,kc->bca"),
    "sums in a type of BLAS": product("int32 int32 int32"),
    "The type of B in a Gemm": product("float32 float64 float64"),
    "The type in which a Gemm sums": product("float32 float32 float64", dtype="float64"),
    "A Gemm of float64 writes that": product("float64 float64 float32", dtype="float64"),
}


@pytest.mark.parametrize("rule", NO_GEMM)
def test_a_product_that_blas_does_not_take_is_refused(rule: str) -> None:
    """cuBLAS would read rows of a stride as lying side by side, and other types as its own."""
    plan = make_plan(NO_GEMM[rule], ct.PlanPreference(algo=Algo.GETT), HOST)
    (step,) = plan.steps
    same = {each.name: getattr(step, each.name) for each in fields(Gemm)}
    verify(plan)
    with pytest.raises(InvalidValueError, match=rule):
        verify(replace(plan, steps=(Gemm(**same),)))


def test_c_lies_as_d_in_a_gemm() -> None:
    operation = ct.Contraction(
        (operand("ab"), operand("bc")), operand("ac"), operand("ac", strides=(1, 7))
    )
    plan = make_plan(operation, ct.PlanPreference(algo=Algo.GETT), HOST)
    same = {each.name: getattr(plan.steps[0], each.name) for each in fields(Gemm)}
    with pytest.raises(InvalidValueError, match="The strides of C in a Gemm"):
        verify(replace(plan, steps=(Gemm(**same),)))


def test_a_free_layout_is_packed() -> None:
    plan = next(plan for plan in plans() if plan.operation.free_layout)
    tensor = plan.slots[plan.output].tensor
    apart = tuple(2 * stride for stride in tensor.steps)
    with pytest.raises(InvalidValueError, match="slots of a plan before"):
        verify(with_slot(plan, plan.output, strides=apart))
