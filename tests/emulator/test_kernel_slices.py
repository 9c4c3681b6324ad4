"""Products of float64 by 8-bit slices, on data of every kind, against NumPy in higher precision."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.descriptors.compute_types import ComputeType
from contract.descriptors.operators import Operator
from contract.device.kernels import slices
from contract.device.kernels.gett import gett_calls
from contract.device.kernels.jit import baked
from contract.device.kernels.slices import MOST_SLICES, NATIVE_AT, NEED_BYTES, slice_calls
from contract.machines.gpu import ARCHITECTURES, architecture_of
from contract.machines.gpu_kernels import SLICE_TILES, TensorTile
from contract.planner.device.launch import KernelCall

from ..reference import assert_within_bound
from .cupy_surface import counters, installed
from .device import Device, KernelFault, Options, Schedule
from .products import Case, Data, Layout, Mode, case, check, expected, modes

Array = Any
Rng = np.random.Generator
RANDOM = Options(Schedule.RANDOM, seed=5)
NONE = (1, 0, 0)
BOTH = (2.5, -0.5, 0)
HOPPER = architecture_of(90)
PRODUCT = 3  # the launch after those that clear, measure and slice
TINY = replace(SLICE_TILES["float64"][-1], m=32, n=16, warps_m=2, warps_n=1)


def sliced(loops: Sequence[Mode], dtype: str = "float64", **more: Any) -> Case:
    """k is fastest in A and B, m in D; elements are read one at once."""
    kinds = [mode.kind for mode in loops]
    first = kinds.index("k"), kinds.index("m")
    return case(loops, dtype, compute=ComputeType.INT8X8, first=first, shift=1, **more)


class Found:
    """What the device found of the factors: at the word on which the product depends."""

    def __init__(self, scratch: Array, calls: Sequence[KernelCall]) -> None:
        (_, word), *_ = calls[PRODUCT].arguments.pointers
        words = scratch[word.bytes - NATIVE_AT :][:NEED_BYTES].view("i4")
        self.slices, self.range = tuple(words[:2]), tuple(words[2:4])
        self.native = bool(words[4])


def compute(
    device: Device,
    data: Data,
    scalars: Sequence[complex] = NONE,
    tile: TensorTile | None = None,
    options: Options = RANDOM,
    change: Callable[[KernelCall], KernelCall] = lambda call: call,
    natively: bool = False,
) -> tuple[Array, Found]:
    """D's memory, and what was found; float64 has no part in it unless ``natively``."""
    made, found = data.case, []
    calls = slice_calls(made.plan(), made.step(), HOPPER, tile or TINY)
    calls = tuple(map(change, calls if natively else calls[: PRODUCT + 1]))
    memory = data.run(
        device, calls, scalars, options, lambda bytes_: found.append(Found(bytes_, calls))
    )
    return memory, found[0]


def run(device: Device, rng: Rng, made: Case, scalars: Sequence[complex] = BOTH) -> Found:
    data = Data(made, rng)
    memory, found = compute(device, data, scalars)
    check(data, memory, scalars)
    return found


# --- extents, layouts, types --------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (31, 15, 64), (32, 16, 63), (33, 17, 65), (5, 70, 200)], ids=str
)
def test_edges_of_tiles_and_steps(device: Device, rng: Rng, sizes: tuple[int, ...]) -> None:
    m, n, k = sizes
    made = sliced(modes(l=(2,), m=(m,), n=(n,), k=(k,)))
    assert not run(device, rng, made).native


def test_many_modes_in_any_order(device: Device, rng: Rng) -> None:
    """Read two at once along m and n; C lies otherwise than D."""
    loops = modes(l=(3, 2), m=(4, 6), n=(2, 5), k=(7, 3))
    layouts = {
        "a": Layout((2, 6, 0, 3, 7, 1)),
        "b": Layout((4, 7, 5, 6, 1, 0)),
        "d": Layout((2, 0, 5, 4, 3, 1), gap=3),
        "c": Layout((4, 1, 3, 5, 0, 2), negative=(3,)),
    }
    run(device, rng, replace(sliced(loops), layouts=layouts))


@pytest.mark.parametrize(
    "dtype", ["float64", pytest.param("complex128", marks=pytest.mark.exhaustive)]
)
def test_large_tiles(device: Device, rng: Rng, dtype: str) -> None:
    tile = SLICE_TILES[dtype][0]
    data = Data(sliced(modes(m=(tile.m + 3,), n=(tile.n + 2,), k=(100,)), dtype), rng)
    memory, _ = compute(device, data, BOTH, tile)
    check(data, memory, BOTH)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (33, 17, 65), (20, 40, 150)], ids=str)
def test_complex_numbers(device: Device, rng: Rng, sizes: tuple[int, ...]) -> None:
    m, n, k = sizes
    conjugated = {"a": Operator.CONJ, "c": Operator.CONJ}
    made = sliced(modes(l=(2,), m=(m,), n=(n,), k=(k,)), "complex128", operators=conjugated)
    assert not run(device, rng, made, (2 - 1j, 0.5 + 1j, 0)).native


def test_a_real_factor_of_a_complex_product(device: Device, rng: Rng) -> None:
    made = sliced(modes(m=(20,), n=(40,), k=(70,)), "complex128", types={"a": "float64"})
    run(device, rng, made, (2 - 1j, 0.5 + 1j, 0))


def test_operators_and_narrower_types(device: Device, rng: Rng) -> None:
    """1 / 0 would be infinite beyond the last k; float32 has fewer bits, 1 / float32 has not."""
    operators = {"a": Operator.RCP, "b": Operator.ABS, "c": Operator.RELU}
    made = sliced(modes(m=(20,), n=(17,), k=(45,)), operators=operators, types={"b": "float32"})
    found = run(device, rng, made, (2, 3, 0))
    assert found.slices[0] > found.slices[1]
    assert not found.native


# --- data ---------------------------------------------------------------------------------------


def bell(rng: Rng, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape)


def graded(rng: Rng, shape: tuple[int, ...]) -> Array:
    return rng.uniform(0.5, 1, shape) * 2.0 ** -rng.integers(0, 31, shape)


def sparse(rng: Rng, shape: tuple[int, ...]) -> Array:
    """Most sums have a term or none, and it is small beside its row."""
    return graded(rng, shape) * (rng.random(shape) < 0.1)


def positive(rng: Rng, shape: tuple[int, ...]) -> Array:
    return rng.uniform(0, 1, shape)


def cancelling(rng: Rng, shape: tuple[int, ...]) -> Array:
    """Neighbours along k are nearly opposite in B: sums are far smaller than their terms."""
    x = np.repeat(rng.standard_normal((shape[0] // 2, shape[1])), 2, axis=0)
    x[::2] *= -1 + 2.0**-45
    return x


def smooth(rng: Rng, shape: tuple[int, ...]) -> Array:
    """Neighbours along k are equal."""
    return np.repeat(rng.standard_normal((shape[0] // 2, shape[1])), 2, axis=0)


def extreme(rng: Rng, shape: tuple[int, ...]) -> Array:
    """The digits after the first are 127 or -128."""
    digits = rng.choice([127, -128], (6, *shape))
    weights = 2.0 ** (-8.0 * np.arange(1, 7))
    sums = rng.integers(33, 63, shape) + np.tensordot(weights, digits.astype(np.longdouble), 1)
    return (np.floor(sums * 2.0**47) * 2.0**-47).astype("f8")


def whole(rng: Rng, shape: tuple[int, ...]) -> Array:
    return rng.integers(-120, 121, shape).astype("f8")


def apart(rng: Rng, shape: tuple[int, ...]) -> Array:
    """Rows (columns) of their own size each."""
    return rng.standard_normal(shape) * 2.0 ** rng.integers(300, 320, shape[1])


def apart_below(rng: Rng, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape) * 2.0 ** -rng.integers(280, 300, shape[1])


KINDS = [
    (bell, bell, None),
    (graded, graded, (11, 11)),
    (sparse, sparse, None),
    (positive, positive, None),
    (smooth, cancelling, None),
    (extreme, extreme, (7, 7)),
    (graded, extreme, (11, 7)),
    (whole, whole, (2, 2)),
    (apart, apart_below, None),
]


def filled(data: Data, a: Array, b: Array) -> Data:
    """A is given as k x m, B as k x n."""
    data.held["a"][...] = a
    data.held["b"][...] = b
    return data


def needs(x: Array) -> tuple[int, int]:
    """Slices and powers of 2 by the exponents and the lowest bits of columns."""
    mantissa, exponent = np.frexp(x)
    whole_numbers = abs(mantissa * 2.0**53).astype("i8")
    lowest = exponent - 53 + np.log2((whole_numbers & -whole_numbers) + (x == 0)).astype(int)
    highest = np.where(x == 0, -5000, exponent).max(0)
    used = x != 0
    slices = np.where(used, (highest - lowest + 9) // 8, 1).max()
    return int(slices), int(np.where(used, highest - exponent, 0).max())


@pytest.mark.parametrize(("a", "b", "slices"), KINDS, ids=lambda x: getattr(x, "__name__", ""))
@pytest.mark.parametrize("k", [2, 64])
def test_data(device: Device, rng: Rng, k: int, a: Any, b: Any, slices: Any) -> None:
    """As many slices as the data need, and sums within the bound of their terms."""
    made = sliced(modes(m=(33,), n=(34,), k=(k,)), tensors="abd")
    data = filled(Data(made, rng), a(rng, (k, 33)), b(rng, (k, 34)))
    memory, found = compute(device, data)
    check(data, memory, NONE)
    (slices_a, range_a), (slices_b, range_b) = needs(data.held["a"]), needs(data.held["b"])
    assert (found.slices, found.range) == ((slices_a, slices_b), (range_a, range_b))
    assert not found.native
    if slices and k == 64:
        assert found.slices == slices


def test_results_are_rounded_once(device: Device, rng: Rng) -> None:
    """From subnormal inputs, to subnormal results, and up to infinity."""
    made = sliced(modes(m=(33,), n=(34,), k=(1,)), tensors="abd")
    a, b = (np.ldexp(rng.integers(1, 1 << 30, n), -15)[None] for n in (33, 34))
    for sizes in ((-540, -520), (-1060, 500), (500, 500), (-1074, -1074)):
        with np.errstate(all="ignore"):
            data = filled(Data(made, rng), np.ldexp(a, sizes[0]), np.ldexp(b, sizes[1]))
            wanted = expected(data, NONE)[0].astype("f8")
        memory, found = compute(device, data)
        np.testing.assert_array_equal(memory[1 : 1 + wanted.size], wanted.ravel("F"))
        assert not found.native


def test_a_row_of_zeros(device: Device, rng: Rng) -> None:
    made = sliced(modes(m=(33,), n=(34,), k=(64,)), tensors="abd")
    data = filled(Data(made, rng), bell(rng, (64, 33)), bell(rng, (64, 34)))
    data.held["a"][:, 4] = 0
    data.held["b"][:, :] = 0
    memory, found = compute(device, data)
    check(data, memory, NONE)
    assert found.slices[1] == 1
    assert not found.native


# --- what is left to float64 --------------------------------------------------------------------


@pytest.mark.parametrize("where", "ab")
def test_rows_that_span_too_much_are_left_to_float64(device: Device, rng: Rng, where: str) -> None:
    """One element decides whose bits the result has; 2^40 is not yet too much."""
    made = sliced(modes(m=(33,), n=(34,), k=(64,)))
    in_float64 = gett_calls(made.plan(), made.step(), HOPPER)
    for size, native in ((2.0**-40, False), (2.0**-42, True), (2.0**-900, True), (2.0**900, True)):
        data = Data(made, rng)
        for name in "ab":
            data.held[name][...] = np.sign(data.held[name]) * (1 - 2.0**-53)
        data.held[where][1, 2] *= size
        memory, found = compute(device, data, BOTH, natively=True)
        check(data, memory, BOTH)
        assert found.native is native
        assert native == (max(found.slices) > MOST_SLICES)
        alone = data.run(device, in_float64, BOTH) if native else compute(device, data, BOTH)[0]
        assert memory.tobytes() == alone.tobytes()


def test_float64_leaves_alone_what_slices_did(device: Device, rng: Rng) -> None:
    made = sliced(modes(m=(33,), n=(34,), k=(64,)))
    data = Data(made, rng)
    results = [compute(device, data, BOTH, natively=both)[0] for both in (True, False)]
    in_float64 = data.run(device, gett_calls(made.plan(), made.step(), HOPPER), BOTH)
    assert results[0].tobytes() == results[1].tobytes() != in_float64.tobytes()


def test_what_is_not_finite_is_left_to_float64(device: Device, rng: Rng) -> None:
    made = sliced(modes(m=(33,), n=(34,), k=(64,)), tensors="abd")
    for value in (np.nan, np.inf, -np.inf):
        data = Data(made, rng)
        data.held["a"][7, 4] = value
        memory, found = compute(device, data, natively=True)
        rows = memory[1 : 1 + 33 * 34].reshape(34, 33)
        np.testing.assert_array_equal(np.isfinite(rows).all(0), np.arange(33) != 4)
        assert np.isnan(rows[:, 4]).all() == np.isnan(value)
        assert found.native


def test_a_factor_of_zero_reads_nothing(device: Device, rng: Rng) -> None:
    made = sliced(modes(m=(33,), n=(34,), k=(64,)))
    data, wanted = Data(made, rng), Data(made, rng)
    for name in "ab":
        data.flat[name][...] = np.nan
    for name in "dc":
        wanted.flat[name], wanted.view[name] = data.flat[name], data.view[name]
    memory, found = compute(device, data, (0, 2, 0), natively=True)
    check(wanted, memory, (0, 2, 0))
    assert found.native


def test_sums_of_nothing_are_left_to_float64() -> None:
    for sizes in ({"m": (33,), "k": (0,)}, {"m": (0,), "k": (3,)}):
        made = sliced(modes(n=(34,), **sizes))
        calls = slice_calls(made.plan(), made.step(), HOPPER, TINY)
        assert calls == gett_calls(made.plan(), made.step(), HOPPER)


# --- determinism, planted bugs --------------------------------------------------------------------


def test_every_schedule_gives_the_same_bits(device: Device, rng: Rng) -> None:
    data = Data(sliced(modes(m=(33,), n=(34,), k=(200,))), rng)
    results = [compute(device, data, BOTH, options=Options(each))[0] for each in Schedule]
    results.append(compute(device, data, BOTH, options=Options(late=False))[0])
    assert len({result.tobytes() for result in results}) == 1


Change = Callable[[KernelCall], KernelCall]


def computes(device: Device, change: Change, a: Array, b: Array) -> None:
    """The product of A (k x m) and B (k x n) by changed sources."""
    (k, m), (_, n) = a.shape, b.shape
    made = sliced(modes(m=(m,), n=(n,), k=(k,)), tensors="abd")
    data = filled(Data(made, np.random.default_rng(1)), a, b)
    check(data, compute(device, data, change=change)[0], NONE)


def check_ranges(device: Device, change: Change) -> None:
    """Small numbers with large digits: what is known of rows asks for eight orders."""
    x = float(sum(127 * 256**i for i in range(6)) + 32 * 256**6 & -4)
    computes(device, change, np.full((1, 33), x), np.full((1, 34), x))


def check_sums(device: Device, change: Change) -> None:
    """The same for what is known of sums: 64 terms that are small beside the rows' largest."""
    x = 8 + sum(127 * 256.0**-i for i in range(1, 7))
    a, b = np.full((66, 33), x), np.full((66, 34), x)
    a[:2], b[:2] = 0, 0
    a[0], b[1] = 64 - 2.0**-40, 64 - 2.0**-40
    computes(device, change, a, b)


def check_graded(device: Device, change: Change) -> None:
    """Two terms, many of them one: every digit counts."""
    rng = np.random.default_rng(4)
    a, b = (graded(rng, (2, n)) * rng.choice([0, 1], (2, n)) for n in (33, 34))
    computes(device, change, a, b)


def check_steps(device: Device, change: Change) -> None:
    rng = np.random.default_rng(4)
    computes(device, change, bell(rng, (200, 33)), bell(rng, (200, 34)))


def check_long(device: Device, change: Change) -> None:
    """Two products of slices of one order, each of 134400 times 63 * 127: more than 2^31."""
    x = 63.0 * 256 + 127
    computes(device, change, np.full((134400, 2), x), np.full((134400, 3), x))


@pytest.mark.parametrize("check", [check_ranges, check_sums, check_graded, check_steps, check_long])
def test_checks_pass_on_the_kernels_as_they_are(
    device: Device, check: Callable[[Device, Change], None]
) -> None:
    check(device, lambda call: call)


@pytest.mark.exhaustive
def test_sources_that_know_extents(device: Device) -> None:
    check_steps(device, baked)


BUGS = [
    ("need.range[1] + 7) / 8", "need.range[1] - 1) / 8", check_ranges),
    ("__clz(smallest)) + 7) / 8", "__clz(smallest)) - 1) / 8", check_sums),
    ("(9 - below % 8)", "(8 - below % 8)", check_graded),
    ("++steps < MOST_STEPS && next", "next", check_long),
]
MORE_BUGS = [
    ("weight = next.order == order ? 1.0 : 1.0 / 256;", "weight = 1.0 / 256;", check_long),
    ("s < slices_a) return;", "s < slices_a - 1) return;", check_graded),
    ("wait_copies<AHEAD - 1>();\n      __syncthreads();", "", check_steps),
    ("found.lowest + 9) / 8", "found.lowest + 1) / 8", check_graded),
    ("exponent_b(work, column) - 12", "exponent_b(work, column) - 11", check_graded),
]


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [*BUGS, *(pytest.param(*bug, marks=pytest.mark.exhaustive) for bug in MORE_BUGS)],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_planted_bug_is_noticed(
    device: Device, old: str, new: str, check: Callable[[Device, Change], None]
) -> None:
    planted = []

    def change(call: KernelCall) -> KernelCall:
        planted.append(old in call.source)
        return replace(call, headers=(), stub=call.source.replace(old, new))

    with pytest.raises((KernelFault, AssertionError)):
        check(device, change)
    assert any(planted)


# --- the executor, the choice ---------------------------------------------------------------------


def test_a_graph_decides_anew_at_every_replay(
    device: Device, monkeypatch: pytest.MonkeyPatch, rng: Rng
) -> None:
    """Slices, float64, slices: nothing of a replay is left for the next."""
    monkeypatch.setattr(slices, "_choice", lambda *_: TINY)
    x, y = rng.standard_normal((2, 40, 40))
    matrix = ct.TensorDescriptor((40, 40), (40, 1), "float64", 256)
    factors = ct.Operand(matrix, "mk"), ct.Operand(matrix, "kn")
    operation = ct.Contraction(factors, ct.Operand(matrix, "mn"), compute=ComputeType.INT8X8)
    with installed() as cupy, ct.Handle(device=0) as handle:
        a, b, d = cupy.asarray(x), cupy.asarray(y), cupy.zeros((40, 40))
        plan = handle.plan(operation)
        calls = slice_calls(plan.plan, plan.plan.steps[0], HOPPER, TINY)
        workspace = cupy.zeros(plan.required_workspace, "u1")
        cupy.cuda.Device().synchronize()
        with cupy.cuda.Stream(non_blocking=True) as stream:
            stream.begin_capture()
            handle.contract(plan, 1, a, b, 0, None, d, workspace)
            graph = stream.end_capture()
            for value, native in ((1, False), (2.0**-900, True), (4, False)):
                x[3, 5] = value
                a.set(x)
                graph.launch()
                assert Found(workspace.get()[plan.offsets[-1] :], calls).native == native
                assert_within_bound(d.get(), ("mk", "kn"), "mn", (x, y))


def test_a_recorded_call_decides_anew_too(monkeypatch: pytest.MonkeyPatch, rng: Rng) -> None:
    monkeypatch.setattr(slices, "_choice", lambda *_: TINY)
    x, y = rng.standard_normal((2, 40, 40))
    matrix = ct.TensorDescriptor((40, 40), (40, 1), "float64", 256)
    with installed() as cupy, ct.Handle(device=0) as handle:
        a, b = cupy.asarray(x), cupy.asarray(y)
        planned = ct.contract_expression(
            "mk,kn->mn", matrix, matrix, compute_type="8XINT8", order="C", handle=handle
        )
        counters(cupy).reset()
        with planned.capture(a, b) as call:
            assert len(counters(cupy).launches) > 3  # slices, and float64 instead
            for value in (1, 2.0**-900, 4):
                x[3, 5] = value
                a.set(x)
                assert_within_bound(call.replay().get(), ("mk", "kn"), "mn", (x, y))


@pytest.mark.parametrize("dtype", SLICE_TILES)
def test_slices_where_they_gain(dtype: str) -> None:
    """Large products, where float64 is slow; each launch says why."""

    def reasons(capability: int, n: int) -> list[str]:
        made = case(modes(m=(n,), n=(n,), k=(n,)), dtype, compute=ComputeType.INT8X8)
        calls = slice_calls(made.plan(), made.step(), architecture_of(capability))
        return [call.reason for call in calls]

    for architecture in ARCHITECTURES:
        small, large = (reasons(architecture.capability, n) for n in (64, 4096))
        assert "slices of 8 bits do not gain" in small[0] or architecture.capability < 80
        if architecture.capability in (86, 89, 120):
            assert "8-bit slices of float64" in large[3]
            assert "data that slices do not serve" in large[4]
        else:
            assert "8-bit" in large[0] or "slices of 8 bits do not gain" in large[0]
