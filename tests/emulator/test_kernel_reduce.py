"""The reduction kernel against NumPy in higher precision, on strided memory with guards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from contract.descriptors.layout import offset_bounds
from contract.descriptors.operations import PlanPreference, TensorDescriptor
from contract.descriptors.operators import BinaryOperator, Operator
from contract.device.kernels import reduce
from contract.machines.gpu import architecture_of
from contract.plan.steps import Plan, Scalar, Slot, SlotKind, Source, View
from contract.plan.steps import Reduce as Step
from contract.planner.device.launch import KernelCall

from .. import reference
from . import nvrtc
from .device import Allocation, Device, Options, Schedule
from .launching import run_call

Array = np.ndarray[Any, Any]
ADD, MUL, MAX, MIN = BinaryOperator
UFUNCS = {ADD: np.add, MUL: np.multiply, MAX: np.maximum, MIN: np.minimum}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)  # its import gives the type its name
WIDE = {"i": "i8", "u": "u8", "f": "longdouble", "c": "clongdouble", "b": "?"}
IN_ORDER = Options(schedule=Schedule.IN_ORDER)
RANDOM = Options(schedule=Schedule.RANDOM)


@dataclass(frozen=True)
class Case:
    """A reduction: its step, and where its tensors begin (elements) in their allocations."""

    extents: tuple[int, ...]
    kept: int
    strides: tuple[int, ...]
    target: tuple[int, ...]
    addend: tuple[int, ...] | None = None
    types: tuple[str, str, str] = ("float32", "float32", "float32")
    by: BinaryOperator = ADD
    operators: tuple[Operator, Operator] = (Operator.IDENTITY, Operator.IDENTITY)
    scalars: tuple[complex, complex] = (1, 0)
    skew: int = 0
    alignment: int = 256

    @property
    def result(self) -> tuple[int, ...]:
        return self.extents[: self.kept]

    def plan(self) -> tuple[Plan, Step]:
        """A plan of one step."""
        source, compute, target = self.types
        given = [(SlotKind.INPUT, self.extents, self.strides, source)]
        given.append((SlotKind.OUTPUT, self.result, self.target, target))
        if self.addend is not None:
            given.append((SlotKind.ADDEND, self.result, self.addend, target))
        slots = tuple(
            Slot(kind, TensorDescriptor(n, strides, dtype, self._aligned(kind, strides, dtype)))
            for kind, n, strides, dtype in given
        )
        plus = None
        if self.addend is not None:
            plus = Source(View(2, self.addend), self.operators[1], Scalar.BETA)
        alpha = Source(View(0, self.strides), self.operators[0], Scalar.ALPHA)
        modes = tuple(range(len(self.extents)))
        written = View(1, self.target)
        step = Step(alpha, written, self.extents, modes, self.kept, compute, self.by, plus)
        unused: Any = None
        return Plan(slots, (step,), (-1,) * len(slots), 0, unused, (), 0, PlanPreference()), step

    def _aligned(self, kind: SlotKind, strides: Sequence[int], dtype: str) -> int:
        if kind is SlotKind.INPUT:
            return self.alignment
        begins_there = all(stride >= 0 for stride in strides)
        return 256 if begins_there else np.dtype(dtype).itemsize

    def calls(self, capability: int = 90) -> tuple[KernelCall, ...]:
        return reduce.reduce_calls(*self.plan(), architecture_of(capability))


def values(rng: np.random.Generator, count: int, dtype: str) -> Array:
    kind = np.dtype(dtype)
    if kind.kind in "biu":
        return rng.integers(0, 2 if kind.kind == "b" else 100, count).astype(kind)
    if kind.kind == "c":
        return (rng.standard_normal(count) + 1j * rng.standard_normal(count)).astype(kind)
    return rng.standard_normal(count).astype(kind)


class Memory:
    """A tensor in an allocation that ends where the tensor does; the gaps hold what nothing is."""

    def __init__(
        self,
        device: Device,
        extents: Sequence[int],
        strides: Sequence[int],
        dtype: str,
        skew: int = 0,
    ) -> None:
        low, high = offset_bounds(extents, strides)
        self.device, self.extents, self.strides = device, tuple(extents), tuple(strides)
        self.dtype, self.skew = np.dtype(dtype), skew
        self.origin = skew - low
        self.elements = high - low + 1 + skew
        self.held = device.allocate(self.elements * self.dtype.itemsize)

    @property
    def view(self) -> Array:
        whole = self.held.bytes.view(self.dtype)[self.origin :]
        steps = [stride * self.dtype.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(whole, self.extents, steps)

    @property
    def marks(self) -> Array:
        """Which bytes of which element were written."""
        size = self.dtype.itemsize
        steps = [*(stride * size for stride in self.strides), 1]
        whole = self.held.written[self.origin * size :]
        return np.lib.stride_tricks.as_strided(whole, (*self.extents, size), steps)

    def fill(self, rng: np.random.Generator) -> None:
        """Values everywhere but in the gaps."""
        self.view[...] = values(rng, prod(self.extents), self.dtype.name).reshape(self.extents)
        self.marks[...] = 1


def run(
    device: Device, case: Case, rng: np.random.Generator, options: Options = IN_ORDER
) -> tuple[Array, Array, Array | None]:
    """The operands and what the launches leave."""
    source = Memory(device, case.extents, case.strides, case.types[0], case.skew)
    target = Memory(device, case.result, case.target, case.types[2])
    held = [source, target]
    if case.addend is not None:
        held.append(Memory(device, case.result, case.addend, case.types[2]))
    if case.scalars[0] != 0:
        source.fill(rng)
    if case.addend is not None and case.scalars[1] != 0:
        held[2].fill(rng)
    launch(device, case, held, options)
    addend = held[2].view.copy() if case.addend is not None else None
    found = source.view.copy(), target.view.copy(), addend
    untouched(target)
    for each in held:
        each.held.free()
    return found


def launch(device: Device, case: Case, held: Sequence[Memory], options: Options) -> None:
    calls = case.calls()
    scratch = device.allocate(max((call.scratch for call in calls), default=0))
    slots: list[Allocation] = [each.held for each in held]
    offsets = [each.origin * each.dtype.itemsize for each in held]
    for call in calls:
        run_call(device, call, slots, (*case.scalars, 0), scratch, options, offsets)
    scratch.free()


def untouched(target: Memory) -> None:
    """All of the target was written, and nothing between its elements."""
    assert target.marks.all()
    assert target.held.written.sum() == target.marks.size


UNARY = {
    Operator.IDENTITY: lambda x: x,
    Operator.CONJ: np.conj,
    Operator.EXP: np.exp,
    Operator.RELU: lambda x: np.maximum(x, 0),
}


def check(case: Case, source: Array, found: Array, addend: Array | None) -> None:
    """|D - ref| <= |alpha| (k + 2) u sum|A| + 2 u |beta C| + 2 u_out |ref|, componentwise.

    Of a long sum less is allowed than that: the loss of some 64 terms in a row.
    """
    wide = WIDE[np.dtype(case.types[1]).kind]
    axes = tuple(range(case.kept, len(case.extents)))
    k, u = prod(case.extents[case.kept :]), reference.UNIT_ROUNDOFF.get(case.types[1], 0.0)
    out = reference.UNIT_ROUNDOFF.get(case.types[2], 0.0)
    alpha, beta = case.scalars
    expected, bound = np.zeros(case.result, wide), np.zeros(case.result, "longdouble")
    if alpha != 0:
        read = UNARY[case.operators[0]](source.astype(wide))
        reduced = UFUNCS[case.by].reduce(read, axis=axes)
        expected = reduced * np.asarray(alpha).astype(wide) if alpha != 1 else reduced
        size = np.abs(read).sum(axis=axes) if case.by is ADD else np.abs(reduced)
        depth = {ADD: min(k, 64), MUL: k}  # threads, pairs and parts keep sums short
        rounded = depth.get(case.by, 0) + 2
        bound = abs(alpha) * rounded * u * size
    if addend is not None and beta != 0:
        plus = UNARY[case.operators[1]](addend.astype(wide)) * np.asarray(beta).astype(wide)
        expected, bound = expected + plus, bound + 2 * u * np.abs(plus)
    if np.dtype(case.types[2]).kind in "biu":
        np.testing.assert_array_equal(found, expected.astype(found.dtype))
        return
    bound = (4 if "complex" in case.types[1] else 1) * (bound + 2 * out * np.abs(expected))
    missing = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found.astype(wide)), missing)
    worse = (np.abs(found.astype(wide) - expected) > bound + 1e-37) & ~missing
    assert not worse.any(), (case, found[worse][:5], expected[worse][:5])


def try_case(
    device: Device, case: Case, rng: np.random.Generator, options: Options = IN_ORDER
) -> None:
    check(case, *run(device, case, rng, options))


# --- any layout -----------------------------------------------------------------------------------

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33, 64, 67, 128, 131, 256, 257, 520, 1031)
EVEN = (4, 8, 12, 24, 36, 64, 68, 128, 132, 256, 516, 1036)
MOST = 30_000


def packed(rng: np.random.Generator, extents: Sequence[int], gaps: Sequence[int]) -> list[int]:
    """Strides in a random order of the dimensions, now and then with gaps."""
    strides, step = [0] * len(extents), 1
    for at in rng.permutation(len(extents)):
        strides[at] = step
        step = step * extents[at] + int(rng.choice(gaps))
    return strides


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    extents: list[int] = []
    for _ in range(rng.integers(1, 6)):
        room = max(MOST // prod(extents), 4)
        sizes = EVEN if seed % 3 == 0 else EXTENTS  # where vectors fit, or anything
        extents.append(int(rng.choice([n for n in sizes if n <= room])))
    kept = int(rng.integers(0, len(extents)))
    scale = int(rng.choice([1, 1, 1, 1, 3])) if seed % 3 else 1
    gaps = (0, 0, 4, 8, 1) if seed % 3 else (0, 4, 8)
    strides = [scale * each for each in packed(rng, extents, gaps)]
    for at in range(len(strides)):
        strides[at] *= int(rng.choice([1, 1, 1, 1, 1, -1, 0] if seed % 2 else [1]))
    skew = int(rng.choice([0, 0, 1, 2])) if seed % 3 else int(rng.choice([0, 0, 0, 0, 2]))
    case = Case(
        tuple(extents),
        kept,
        tuple(strides),
        tuple(packed(rng, extents[:kept], (0, 0, 1))),
        tuple(packed(rng, extents[:kept], (0, 0, 1))) if seed % 5 else None,
        scalars=(complex(rng.choice([1, 1, -0.5])).real, float(rng.choice([0, 1, 2.5]))),
    )
    return replace(case, skew=skew, alignment=alignment(case, skew))


def alignment(case: Case, skew: int) -> int:
    """What the origin is a multiple of, at most a vector."""
    low, _ = offset_bounds(case.extents, case.strides)
    size = np.dtype(case.types[0]).itemsize
    at = (skew - low) * size
    return min(at & -at, 16) if at else 16


SEEDS = range(180)


@pytest.mark.parametrize("part", range(12))
def test_any_layout(device: Device, part: int) -> None:
    for seed in SEEDS[part::12]:
        print(f"seed {seed}")
        rng = np.random.default_rng(seed)
        try_case(device, random_case(seed), rng, RANDOM if seed % 4 == 0 else IN_ORDER)


def test_layouts_meet_every_way_of_reading() -> None:
    stubs = {call.stub for seed in SEEDS for call in random_case(seed).calls()}
    for reading in ("ELEMENT, 1", "KEPT, 2", "KEPT, 4", "REDUCED, 2", "REDUCED, 4", "RAGGED, 4"):
        assert any(f"Reading::{reading}" in stub for stub in stubs), reading


def test_counts_and_offsets_beyond_31_bits(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code for large problems, on small ones."""
    monkeypatch.setattr(reduce, "NARROW", 2)
    built = ("KEPT, 4, 4", "RAGGED, 4, 4")
    cases = [case for case in map(random_case, SEEDS) if reads(case, built)]
    for seed, case in enumerate(cases[:20]):
        try_case(device, case, np.random.default_rng(seed))


def reads(case: Case, ways: Sequence[str]) -> bool:
    """Whether all launches are on large numbers and read in one of these ways."""
    return all(
        "long long, unsigned long long" in call.stub
        and any(f"Reading::{way}" in call.stub for way in ways)
        for call in case.calls()
    )


# --- types, operators -----------------------------------------------------------------------------

ROWS = Case((37, 96), 1, (96, 1), (1,), (1,), scalars=(-0.5, 2.0))
RAGGED = Case((19, 131), 1, (131, 1), (1,), (-1,), scalars=(2.0, 1.0))
KEPT = Case((4, 48, 29), 2, (48 * 29, 1, 48), (48, 1), (48, 1), scalars=(1.5, -1.0))
TYPED = [
    replace(KEPT, types=("float16", "float32", "float16")),
    replace(RAGGED, types=(BFLOAT16.name, "float32", BFLOAT16.name)),
    replace(ROWS, types=("float16", "float32", "float32"), by=MAX),
    replace(ROWS, types=("float64", "float64", "float64"), by=MUL),
    replace(
        KEPT,
        types=("complex64", "complex64", "complex64"),
        operators=(Operator.CONJ, Operator.CONJ),
        scalars=(1 - 2j, 0.5j),
    ),
    replace(ROWS, types=("complex128", "complex128", "complex128"), by=MUL, scalars=(1j, 0)),
    replace(KEPT, types=("int8", "int8", "int8"), scalars=(3, 2)),
    replace(ROWS, types=("uint8", "uint8", "uint8"), by=MAX, scalars=(1, 0)),
    replace(KEPT, types=("int16", "int64", "int64"), by=MUL, scalars=(1, 1)),
    replace(ROWS, types=("bool", "bool", "bool"), scalars=(1, 0)),
    replace(RAGGED, operators=(Operator.EXP, Operator.RELU)),
]


@pytest.mark.parametrize("case", TYPED, ids=lambda c: f"{c.types[0]}-{c.by.value}")
def test_types_and_operators(device: Device, case: Case, rng: np.random.Generator) -> None:
    try_case(device, replace(case, alignment=16), rng)


@pytest.mark.parametrize("by", [MAX, MIN])
def test_the_order_propagates_nan(device: Device, by: BinaryOperator) -> None:
    """NaN wins wherever it stands; infinities of one sign are their own extremum."""
    case = Case((6, 40), 1, (40, 1), (1,), by=by, alignment=16)
    source = Memory(device, case.extents, case.strides, "float32")
    target = Memory(device, case.result, case.target, "float32")
    source.fill(np.random.default_rng(0))
    source.view[0, 0] = source.view[1, 39] = source.view[2, 17] = np.nan
    source.view[3], source.view[4] = np.inf, -np.inf
    launch(device, case, [source, target], IN_ORDER)
    np.testing.assert_array_equal(target.view, UFUNCS[by].reduce(source.view, axis=1))


def test_products_keep_infinite_parts(device: Device) -> None:
    case = replace(ROWS, addend=None, types=("complex128",) * 3, by=MUL, scalars=(1, 0))
    source = Memory(device, case.extents, case.strides, "complex128")
    target = Memory(device, case.result, case.target, "complex128")
    source.fill(np.random.default_rng(0))
    source.view[:] = 1
    source.view[1, 1] = complex(np.inf, 2)
    launch(device, case, [source, target], IN_ORDER)
    np.testing.assert_array_equal(target.view, source.view[:, 1])


# --- scalars of zero, nothing to reduce -----------------------------------------------------------


@pytest.mark.parametrize("case", [ROWS, KEPT, RAGGED])
@pytest.mark.parametrize("scalars", [(0.0, 0.0), (0.0, 2.0), (1.0, 0.0)])
def test_what_a_scalar_of_zero_scales_is_not_read(
    device: Device, case: Case, scalars: tuple[float, float], rng: np.random.Generator
) -> None:
    """It holds NaN that nothing wrote: reading it is an error."""
    try_case(device, replace(case, scalars=scalars, alignment=16), rng)


@pytest.mark.parametrize(("by", "value"), [(ADD, 0.0), (MUL, 2.0)])
def test_nothing_to_reduce(device: Device, by: BinaryOperator, value: float) -> None:
    case = Case((5, 0, 3), 1, (1, 5, 5), (2,), by=by, scalars=(2.0, 0.0))
    target = Memory(device, case.result, case.target, "float32")
    launch(device, case, [Memory(device, (1,), (1,), "float32"), target], IN_ORDER)
    np.testing.assert_array_equal(target.view, value)


def test_no_results_take_no_launch() -> None:
    assert Case((0, 5), 1, (5, 1), (1,)).calls() == ()


# --- two launches ---------------------------------------------------------------------------------

SPLIT = [
    Case((100_003,), 0, (1,), (), (), scalars=(3.0, -2.0), skew=3, alignment=4),
    Case((100_003,), 0, (1,), (), (), ("int32",) * 3, MIN, scalars=(-3, 2), skew=1, alignment=4),
    Case((1100, 650), 1, (1, 1100), (2,), (1,), scalars=(0.5, 1.0), alignment=16),
    Case((3, 80_001), 1, (80_001, 1), (1,), types=("float16", "float32", "float16"), alignment=2),
]


@pytest.mark.parametrize("case", SPLIT, ids=str)
def test_parts_in_scratch_memory(device: Device, case: Case, rng: np.random.Generator) -> None:
    assert len(case.calls()) == 2
    try_case(device, case, rng, RANDOM)


def test_parts_of_what_is_not_read(device: Device, rng: np.random.Generator) -> None:
    try_case(device, replace(SPLIT[0], scalars=(0.0, 2.0)), rng)


def test_the_bits_do_not_depend_on_the_schedule(device: Device) -> None:
    runs = [
        run(device, SPLIT[2], np.random.default_rng(1), Options(schedule=schedule, seed=seed))[1]
        for schedule, seed in ((Schedule.IN_ORDER, 0), (Schedule.REVERSED, 1), (Schedule.RANDOM, 2))
    ]
    assert runs[0].tobytes() == runs[1].tobytes() == runs[2].tobytes()


def test_long_sums_are_accurate(device: Device) -> None:
    """In pairs and parts, 100003 float32 numbers of one sign lose no more than a few bits."""
    case = replace(SPLIT[0], addend=None, scalars=(1.0, 0.0))
    source = Memory(device, case.extents, case.strides, "float32", case.skew)
    source.fill(np.random.default_rng(0))
    source.view[:] = np.abs(source.view)
    target = Memory(device, (), (), "float32")
    launch(device, case, [source, target], IN_ORDER)
    exact = source.view.sum(dtype="longdouble")
    assert abs(target.view - exact) < 16 * 2.0**-24 * exact


# --- what the compiler makes of it ----------------------------------------------------------------


COMPILED = [KEPT, replace(RAGGED, types=("float16", "float32", "float16"))]


@pytest.mark.parametrize("case", COMPILED, ids=["kept", "ragged"])
@pytest.mark.parametrize("capability", [60, 80, 90, 100])
def test_machine_code_keeps_values_in_registers(
    device: Device, case: Case, capability: int
) -> None:
    """No spills, and loads of 16 bytes."""
    (call,) = replace(case, alignment=16).calls(capability)
    compiled = nvrtc.compile_cubin(call.source, f"sm_{capability}", ["-ftz=true"])
    assert "0 bytes spill stores, 0 bytes spill loads" in compiled.log
    assert "0 bytes stack frame" in compiled.log
    assert "ld.global.v4" in compiled.text
    assert ".local" not in compiled.text
