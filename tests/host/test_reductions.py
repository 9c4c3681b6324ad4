"""The compiled reductions against NumPy in higher precision, on strided memory with guards."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import contract as ct
from contract.descriptors.layout import offset_bounds
from contract.descriptors.operators import BinaryOperator
from contract.host.compiled.linking import Linker
from contract.host.compiled.reduction_tables import reduction
from contract.host.kernels.protocol import strided_view

pytest.importorskip("numba")

ADD, MUL, MAX, MIN = BinaryOperator
UFUNCS: dict[BinaryOperator, np.ufunc] = {
    ADD: np.add,
    MUL: np.multiply,
    MAX: np.maximum,
    MIN: np.minimum,
}
PRECISE = {"i": "i8", "u": "u8", "f": "longdouble", "c": "clongdouble"}
GUARD = 77
LINKER = Linker(1, list)  # there is no team

# Compiling takes seconds each: the types that take different paths meet every operator, the
# others one.
REAL = [
    *(("float64", "float64", operator) for operator in BinaryOperator),
    *(("float32", "float32", operator) for operator in (ADD, MAX)),
    *(("int32", "int32", operator) for operator in (ADD, MIN)),
]
OTHERS = [
    ("complex64", "complex64", ADD),
    ("complex128", "complex128", ADD),
    ("complex128", "complex128", MUL),
    ("int8", "int8", ADD),
    ("int16", "int16", MUL),
    ("int64", "int64", MIN),
    ("uint8", "uint8", MAX),
    ("uint16", "uint16", ADD),
    ("uint32", "uint32", MIN),
    ("uint64", "uint64", MAX),
    ("float32", "float64", ADD),
    ("int32", "float64", ADD),
    ("uint32", "float64", ADD),
    ("uint8", "int16", ADD),
    ("float32", "complex64", ADD),
    ("complex64", "complex128", ADD),
    ("float64", "complex128", MUL),
]
every_type = pytest.mark.parametrize(("source", "target", "operator"), REAL + OTHERS)


class Case(NamedTuple):
    """Where a reduction reads and writes."""

    extents: list[int]
    source: list[int]
    target: list[int]
    reduced_extents: list[int]
    reduced: list[int]


def packed(extents: Sequence[int], order: Sequence[int], gap: int) -> list[int]:
    """Strides for an order of the dimensions from fastest to slowest, each with a gap."""
    strides, step = [0] * len(extents), 1
    for at in order:
        strides[at] = step
        step = step * extents[at] + gap
    return strides


sizes = st.sampled_from((1, 2, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24, 31, 33, 64, 65, 100, 130))


@st.composite
def cases(draw: st.DrawFn, most: int = 60_000) -> Case:
    """Kept and reduced dimensions in any order of memory, backwards, broadcast or overlapping."""
    extents = draw(st.lists(sizes, min_size=1, max_size=6))
    while np.prod(extents) > most:
        extents[int(np.argmax(extents))] //= 3
    rank = len(extents)
    strides = packed(extents, draw(st.permutations(range(rank))), draw(st.sampled_from((0, 0, 3))))
    for at in range(rank):
        change = draw(st.sampled_from((1, 1, 1, 1, 1, -1, -1, 0, 2, "window")))
        strides[at] = 1 if change == "window" else strides[at] * change
    reduced = draw(st.lists(st.booleans(), min_size=rank, max_size=rank))
    reduced[draw(st.integers(0, rank - 1))] = True
    kept = [at for at in range(rank) if not reduced[at]]
    gone = [at for at in range(rank) if reduced[at]]
    n = [extents[at] for at in kept]
    target = packed(n, draw(st.permutations(range(len(n)))), draw(st.sampled_from((0, 0, 2))))
    target = [step * draw(st.sampled_from((1, 1, 1, -1))) for step in target]
    return Case(
        n, [strides[at] for at in kept], target,
        [extents[at] for at in gone], [strides[at] for at in gone],
    )  # fmt: skip


def values(rng: np.random.Generator, size: int, dtype: str, operator: BinaryOperator) -> Any:
    """Random elements whose product neither overflows nor vanishes, integers aside."""
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, size, kind, endpoint=True)
    if operator is MUL:
        result = 1 + rng.uniform(-1, 1, size) * 1e-3
        turned = np.exp(1j * rng.uniform(0, 6, size)) if kind.kind == "c" else 1.0
        return (result * turned).astype(kind)
    result = rng.standard_normal(size)
    return (result + 1j * rng.standard_normal(size) if kind.kind == "c" else result).astype(kind)


def run(case: Case, x: Any, target: str, operator: BinaryOperator) -> tuple[Any, Any, Any]:
    """The view that was written, all memory of the target, and the view that was read."""
    n, source, to, gone, reduced = case
    low, _ = offset_bounds([*n, *gone], [*source, *reduced])
    low_t, high_t = offset_bounds(n, to)
    memory = np.full(high_t - low_t + 9, GUARD, target)
    kernel = reduction(n, source, to, gone, reduced, x.dtype.name, target, operator, LINKER)
    assert kernel is not None
    kernel(x, -low, memory, 4 - low_t)
    read = strided_view(x, -low, [*n, *gone], [*source, *reduced])
    return strided_view(memory, 4 - low_t, n, to), memory, read


def memory_of(case: Case) -> int:
    low, high = offset_bounds([*case.extents, *case.reduced_extents], [*case.source, *case.reduced])
    return high - low + 1


def check(case: Case, x: Any, target: str, operator: BinaryOperator) -> None:
    """Right within the error bound, exactly for integers, and nothing else written."""
    written, memory, read = run(case, x, target, operator)
    axes = tuple(range(len(case.extents), read.ndim))
    kind = np.dtype(target)
    touched = np.zeros(memory.shape, bool)
    low_t, _ = offset_bounds(case.extents, case.target)
    strided_view(touched, 4 - low_t, case.extents, case.target)[...] = True
    assert np.all(memory[~touched] == GUARD)
    ufunc = UFUNCS[operator]
    if kind.kind in "iu" or operator in (MAX, MIN):
        expected = ufunc.reduce(read.astype(kind), axis=axes, dtype=kind)
        np.testing.assert_array_equal(written, expected)
        return
    exact = read.astype(PRECISE[kind.kind])
    expected = ufunc.reduce(exact, axis=axes)
    scale = ufunc.reduce(np.abs(exact), axis=axes)
    terms = int(np.prod(case.reduced_extents))
    unit = float(np.finfo(kind).eps) * (3 if operator is MUL and kind.kind == "c" else 1)
    assert np.all(np.abs(written - expected) <= terms * unit * scale)


@every_type
def test_reductions(source: str, target: str, operator: BinaryOperator) -> None:
    """Any order of memory, negative, zero and overlapping strides."""

    @settings(max_examples=80, deadline=None, derandomize=True, database=None)
    @given(cases(), st.integers(0, 99))
    def search(case: Case, seed: int) -> None:
        x = values(np.random.default_rng(seed), memory_of(case), source, operator)
        check(case, x, target, operator)

    search()


LARGE = [
    Case([], [], [], [1_000_003], [1]),
    Case([], [], [], [500_001], [2]),
    Case([3], [1], [1], [300_007], [3]),
    Case([3], [1], [1], [32_773], [3]),
    Case([20], [1], [1], [60_001], [20]),
    Case([300_007], [3], [1], [3], [1]),
    Case([100_003], [1], [1], [11], [100_003]),
    Case([3, 5], [1, 40], [5, 1], [9, 7001], [4, 200]),
    Case([70_001], [9], [1], [9], [1]),
    Case([40_001], [25], [2], [25], [1]),
    Case([300, 3], [1, 300 * 1500], [3, 1], [1500], [300]),
    Case([2, 2, 2, 2, 2, 2, 2, 2], [4**at for at in range(8)], [2**at for at in range(8)],
         [2, 2, 2, 2, 2, 2, 2, 2], [2 * 4**at for at in range(8)]),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int32"])
@pytest.mark.parametrize("case", LARGE, ids=lambda case: f"{case.extents}-{case.reduced_extents}")
def test_large_reductions(case: Case, dtype: str, rng: np.random.Generator) -> None:
    """Tables that end, blocks that overlap, remainders of chunks."""
    check(case, values(rng, memory_of(case), dtype, ADD), dtype, ADD)


SPECIAL = [
    Case([], [], [], [100], [1]),
    Case([], [], [], [7], [1]),
    Case([40], [1], [1], [5], [40]),
    Case([40], [5], [1], [5], [1]),
    Case([3], [1], [1], [50], [3]),
    Case([3], [200], [1], [50], [2]),
]
special = pytest.mark.parametrize("case", SPECIAL, ids=lambda case: f"{case.extents}-{case.source}")


@special
@pytest.mark.parametrize(
    ("dtype", "operator"), [("float64", MAX), ("float64", MIN), ("float32", MAX)]
)
def test_extrema_propagate_nan(case: Case, dtype: str, operator: BinaryOperator) -> None:
    """Wherever the NaN is, and in no other result."""
    size = memory_of(case)
    for at in range(size):
        x = np.arange(size, dtype=dtype)
        x[at] = np.nan
        written, _, read = run(case, x, dtype, operator)
        axes = tuple(range(len(case.extents), read.ndim))
        np.testing.assert_array_equal(written, UFUNCS[operator].reduce(read, axis=axes))


@special
@pytest.mark.parametrize(("dtype", "operator"), [case[1:] for case in REAL if "float" in case[0]])
@pytest.mark.parametrize("value", [np.inf, -np.inf, -0.0, np.nan, 0.0])
def test_special_values(case: Case, dtype: str, operator: BinaryOperator, value: float) -> None:
    """Nothing but this value: the neutral element never shows, not even in the sign of zero.

    NumPy's sum starts from +0 unless told otherwise, ours from the first element.
    """
    x = np.full(memory_of(case), value, dtype)
    written, _, read = run(case, x, dtype, operator)
    axes = tuple(range(len(case.extents), read.ndim))
    start = {"initial": -0.0} if operator is ADD else {}
    expected = UFUNCS[operator].reduce(read, axis=axes, **start)
    np.testing.assert_array_equal(written, expected)
    if not np.isnan(value):
        np.testing.assert_array_equal(np.signbit(written), np.signbit(expected))


@special
@pytest.mark.parametrize("operator", [ADD, MUL])
def test_infinities_meet(case: Case, operator: BinaryOperator) -> None:
    """inf - inf and 0 * inf are NaN, and inf with finite numbers is inf."""
    size = memory_of(case)
    for first, other in ((np.inf, -np.inf), (np.inf, 2.0), (0.0, np.inf), (-np.inf, 1.0)):
        x = np.where(np.arange(size) % 2 == 0, first, other)
        written, _, read = run(case, x, "float64", operator)
        axes = tuple(range(len(case.extents), read.ndim))
        with np.errstate(invalid="ignore"):
            expected = UFUNCS[operator].reduce(read, axis=axes)
        np.testing.assert_array_equal(written, expected)


def test_the_product_of_one_complex_infinity_is_it() -> None:
    x = np.array([complex(np.inf, 2.0), complex(3.0, -np.inf), complex(0.0, -0.0)])
    written, *_ = run(Case([3], [1], [1], [1], [1]), x, "complex128", MUL)
    np.testing.assert_array_equal(written.view(float), x.view(float))


@special
def test_bits_are_reproducible(case: Case, rng: np.random.Generator) -> None:
    """Neither the place in memory nor another call changes the order of summation."""
    x = rng.standard_normal(memory_of(case))
    first = run(case, x, "float64", ADD)[0].tobytes()
    for shift in range(1, 9):
        moved = np.zeros(x.size + shift)[shift:]
        moved[:] = x
        assert run(case, moved, "float64", ADD)[0].tobytes() == first


def test_one_preparation_serves_many_places(rng: np.random.Generator) -> None:
    """Offsets move a prepared kernel over source and target; old values are overwritten."""
    x, target = rng.standard_normal((5, 30, 4)), np.full((5, 4), np.nan)
    kernel = reduction([4], [1], [1], [30], [4], "float64", "float64", ADD, LINKER)
    assert kernel is not None
    for at in range(5):
        kernel(x.reshape(-1), at * 120, target.reshape(-1), at * 4)
    np.testing.assert_allclose(target, x.sum(axis=1))


def test_memory_that_is_read_only_is_read(rng: np.random.Generator) -> None:
    x, target = rng.standard_normal(30), np.zeros(1)
    x.flags.writeable = False
    kernel = reduction([], [], [], [30], [1], "float64", "float64", ADD, LINKER)
    assert kernel is not None
    kernel(x, 0, target, 0)
    np.testing.assert_allclose(target[0], x.sum())


def test_an_empty_target_is_left_alone() -> None:
    kernel = reduction([0, 3], [1, 1], [1, 1], [4], [1], "float64", "float64", ADD, LINKER)
    assert kernel is not None
    kernel(np.zeros(1), 0, np.zeros(0), 0)


@pytest.mark.parametrize(
    ("source", "target", "operator"),
    [
        ("float16", "float16", ADD),
        ("bfloat16", "bfloat16", ADD),
        ("longdouble", "longdouble", ADD),
        ("clongdouble", "clongdouble", ADD),
        ("bool", "int64", ADD),
        ("object", "object", ADD),
        ("float64", "float32", ADD),
        ("complex64", "float64", ADD),
        ("int64", "int32", MAX),
        ("int64", "uint64", ADD),
        ("complex128", "complex128", MAX),
        ("float32", "complex64", MIN),
    ],
)
def test_other_types_are_left_to_numpy(source: str, target: str, operator: BinaryOperator) -> None:
    assert reduction([2], [1], [1], [3], [2], source, target, operator, LINKER) is None


def _tenths(*extents: int, dtype: str = "float32") -> Any:
    return np.full(extents, 0.1, dtype)


TENTHS = 10**7
LONG_SUMS: dict[str, Callable[[], Any]] = {
    "side by side": lambda: ct.contract("i->", _tenths(TENTHS)),
    "backwards": lambda: ct.contract("i->", _tenths(TENTHS)[::-1]),
    "apart": lambda: ct.contract("i->", _tenths(2 * TENTHS)[::2]),
    "in pairs": lambda: ct.contract("ij->j", _tenths(TENTHS, 2))[1],
    "complex": lambda: ct.contract("i->", _tenths(TENTHS, dtype="complex64")).real,
    "products": lambda: ct.contract("i,i->", _tenths(TENTHS), np.ones(TENTHS, "float32")),
    "rows of products": lambda: ct.contract(
        "ij,ij->", _tenths(TENTHS // 50, 51)[:, :50], np.ones((TENTHS // 50, 51), "float32")[:, :50]
    ),
}


@pytest.mark.parametrize("how", LONG_SUMS)
def test_long_sums_lose_no_more_than_numpy(how: str) -> None:
    """Every term has the same rounding error, so that errors of running sums add up."""
    exact = float(np.float32(0.1)) * TENTHS
    assert abs(float(LONG_SUMS[how]()) / exact - 1) < 2e-6


def test_ones_beyond_what_float32_counts() -> None:
    assert ct.contract("i->", np.broadcast_to(np.float32(1), (1 << 31,))) == 1 << 31


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int16"])
def test_no_element_is_lost_between_blocks(dtype: str, rng: np.random.Generator) -> None:
    """Lengths around those of blocks and their pairs; the sums are exact."""
    with ct.Handle(kernels="numba", threads=1) as handle:
        for around in (1 << 10, 1 << 11, 1 << 12, 3 << 12, 1 << 14, 5 << 13, 1 << 16):
            for n in around + rng.integers(-70, 70, 4):
                x = rng.integers(-9, 9, n).astype(dtype)
                y = rng.integers(-9, 9, n).astype(dtype)
                for a, b in ((x, y), (x[::-1], y), (x[::2], y[: x[::2].size])):
                    assert ct.contract("i->", a, handle=handle) == a.astype(dtype).sum(dtype=dtype)
                    assert ct.contract("i,i->", a, b, handle=handle) == (a * b).sum(dtype=dtype)
                if dtype != "complex64":
                    assert ct.reduce("i->", x, op="max", handle=handle) == x.max()
