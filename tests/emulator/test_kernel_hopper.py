"""The kernel of products by TMA and wgmma, against NumPy in higher precision."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.compute import ComputeType
from contract.handle import Handle
from contract.kernels import hopper
from contract.kernels.architectures import architecture_of
from contract.kernels.call import KernelCall, MapType, Memory, Pointer, TensorMap
from contract.kernels.configurations import HOPPER_TILES, HopperTile
from contract.kernels.hopper import hopper_calls
from contract.kernels.jit import baked
from contract.kernels.lower import lower
from contract.logging import LOGGER
from contract.operators import Operator
from contract.run import device as device_executor
from contract.run.driver_library import driver_library
from contract.run.kernel_modules import load_kernel
from contract.run.tensor_maps import encoded

from .cupy_surface import counters, installed
from .device import Device, Options, Schedule
from .driver_library import LIBRARY
from .products import Case, Data, Layout, case, check, modes

Rng = np.random.Generator
HOPPER = architecture_of(90)
LARGE, MEDIUM, SMALL = HOPPER_TILES
RANDOM = Options(Schedule.RANDOM, seed=5)
NONE = (1, 0, 0)
BOTH = (2.5, -0.5, 0)
HALF = dict.fromkeys("abdc", "float16")
STEPS = 64 * SMALL.stages + 40  # k: the ring goes round, and the last step is cut


def halves(first: Sequence[int] = (2, 0), tensors: str = "abdc", **extents: Any) -> Case:
    return case(modes(**extents), tensors=tensors, first=first, types=HALF)


def laid(made: Case, **orders: Sequence[int]) -> Case:
    """The case with tensors whose modes lie in these orders, the fastest first."""
    return replace(made, layouts={name: Layout(tuple(order)) for name, order in orders.items()})


def lowered(made: Case, tile: HopperTile | None = SMALL) -> tuple[KernelCall, ...] | None:
    return hopper_calls(made.plan(), made.step(), HOPPER, tile)


def run(
    device: Device,
    rng: Rng,
    made: Case,
    scalars: Sequence[complex] = BOTH,
    tile: HopperTile = SMALL,
    options: Options = RANDOM,
    blocks: int = 3,
) -> str:
    """Launch on few blocks, so that they go on from tile to tile, and check; the stub."""
    (call,) = lowered(made, tile) or ()
    call = replace(call, grid=(min(blocks, call.grid[0]), 1, 1))
    data = Data(made, rng)
    check(data, data.run(device, [call], scalars, options), scalars)
    return call.stub


# --- tiles and steps ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(64, 64, 64), (65, 62, 8), (2, 130, 72), (200, 2, STEPS), (63, 66, 2 * STEPS)],
)
def test_edges_of_tiles_and_steps(device: Device, rng: Rng, m: int, n: int, k: int) -> None:
    run(device, rng, halves(m=(m,), n=(n,), k=(k,)))


def test_every_schedule(device: Device, rng: Rng, options: Options) -> None:
    """Six tiles on one block."""
    run(device, rng, halves(m=(130,), n=(100,), k=(STEPS,)), options=options, blocks=1)


@pytest.mark.parametrize("tile", [LARGE, MEDIUM], ids=lambda tile: tile.reason)
def test_two_warpgroups_multiply(device: Device, rng: Rng, tile: HopperTile) -> None:
    made = halves(m=(tile.m + 70,), n=(tile.n + 40,), k=(64 * tile.stages + 72,))
    run(device, rng, made, tile=tile, blocks=2)


# --- directions and boxes -------------------------------------------------------------------------


DIRECTIONS = [
    ("float16", (0, 2), (1, 2)),
    ("float16", (0, 2), (2, 1)),
    ("float16", (2, 0), (1, 2)),
    ("bfloat16", (2, 0), (2, 1)),
]


@pytest.mark.parametrize(("dtype", "a", "b"), DIRECTIONS, ids=str)
def test_both_directions_of_both_factors(
    device: Device, rng: Rng, dtype: str, a: Sequence[int], b: Sequence[int]
) -> None:
    made = case(modes(m=(104,), n=(72,), k=(136,)), types=dict.fromkeys("abdc", dtype))
    stub = run(device, rng, laid(made, a=a, b=b, d=(0, 1), c=(1, 0)))
    assert stub.count("Along::TILE") == (a[0] == 0) + (b[0] == 1)


# Modes by kind, then orders of A, B, D, C, and what stands in the stub.
BOXES = {
    "k in panels of 32 bytes, five modes": (
        {"l": (2,), "m": (16, 5), "n": (24, 3), "k": (16, 6)},
        ((5, 2, 6, 1, 0), (3, 5, 6, 4, 0), (4, 2, 3, 1, 0), (1, 2, 3, 4, 0)),
        ("Along::K, 32,", "Along::TILE, 64,"),
    ),
    "m and n in panels of 32 bytes": (
        {"l": (2,), "m": (16, 5), "n": (16, 6), "k": (16, 3)},
        ((1, 5, 6, 2, 0), (3, 6, 4, 5, 0), (1, 4, 2, 3, 0), (1, 2, 3, 4, 0)),
        ("Along::TILE, 32,",),
    ),
    "k in panels of 64 bytes, in both": (
        {"m": (8, 9), "n": (3, 24), "k": (32, 5)},
        ((4, 5, 0, 1), (4, 2, 3, 5), (0, 3, 2, 1), (3, 1, 0, 2)),
        ("Along::K, 64,",),
    ),
    "a batch that B lacks is of m": (
        {"l": (3,), "m": (40,), "n": (48,), "k": (72,)},
        ((3, 1, 0), (3, 2), (1, 2, 0), (1, 2, 0)),
        (),
    ),
    "batches": (
        {"l": (3, 2), "m": (40,), "n": (48,), "k": (72,)},
        ((4, 0, 2, 1), (0, 4, 1, 3)[::-1], (2, 0, 3, 1), (3, 0, 2, 1)),
        (),
    ),
}


@pytest.mark.parametrize("name", BOXES)
def test_boxes_of_several_modes(device: Device, rng: Rng, name: str) -> None:
    extents, orders, expected = BOXES[name]
    loops = modes(**extents)
    layouts = {each: Layout(order) for each, order in zip("abdc", orders, strict=True)}
    made = replace(case(loops, types=HALF), layouts=layouts)
    stub = run(device, rng, made)
    for part in expected:
        assert part in stub


def test_boxes_fit_the_extents() -> None:
    """24 x 48 in boxes of 64: 8 x 8 leave nothing out, 16 x 4 would a quarter."""
    loops = modes(m=(48, 24), n=(64,), k=(64,))
    made = laid(case(loops, types=HALF), a=(3, 0, 1), b=(3, 2), d=(2, 1, 0), c=(2, 1, 0))
    (call,) = lowered(made) or ()
    assert "(8.8) x 64" in call.reason
    assert "100% of them inside" in call.reason


# --- types and scalars ----------------------------------------------------------------------------


def rounded_to_tf32(x: Any) -> Any:
    """To nearest, ties to even, 10 bits after the leading one."""
    scale = 2.0 ** (10 - np.floor(np.log2(np.abs(x.astype("f8")))))
    return np.rint(x.astype("f8") * scale) / scale


def test_float32_is_rounded_to_tf32(device: Device, rng: Rng) -> None:
    """To nearest: no further from the product of rounded numbers than float32 sums are."""
    loops = modes(m=(100,), n=(72,), k=(200,))
    made = case(loops, tensors="abd", first=(2, 0), compute=ComputeType.TF32)
    (call,) = lowered(made) or ()
    data = Data(made, rng)
    memory = data.run(device, [call], NONE, RANDOM)
    check(data, memory, NONE)
    a, b = (rounded_to_tf32(data.held[name]) for name in "ab")
    wanted, sizes = np.einsum("km,kn->mn", a, b), np.einsum("km,kn->mn", abs(a), abs(b))
    got = memory[: wanted.size].reshape(wanted.T.shape).T
    assert (abs(got - wanted) <= 200 * 2.0**-24 * sizes).all()


def test_types_and_operators_of_d_and_c(device: Device, rng: Rng) -> None:
    types = {"a": "bfloat16", "b": "bfloat16", "d": "float32", "c": "float16"}
    loops = modes(m=(100,), n=(72,), k=(72,))
    made = case(loops, types=types, operators={"c": Operator.RELU}, first=(2, 0), shift=8)
    for scalars in ((2, 3, 0), (1, 0, 0), (0, 1, 0)):
        run(device, rng, made, scalars)


def test_a_factor_of_zero_reads_nothing(device: Device, rng: Rng) -> None:
    made = halves(m=(100,), n=(72,), k=(72,))
    for scalars, nothing in (((0, 2, 0), "ab"), ((3, 0, 0), "c")):
        data, wanted = Data(made, rng), Data(made, rng)
        for name in "abc":
            wanted.held[name][...] = 0 if name in nothing else data.held[name]
        for name in nothing:
            data.flat[name][...] = np.nan
        wanted.flat["d"] = data.flat["d"]
        check(wanted, data.run(device, lowered(made) or (), scalars, RANDOM), scalars)


def test_zeros_beyond_the_end_do_not_meet_infinity(device: Device, rng: Rng) -> None:
    """Rows of zeros beyond m times an infinite k give NaN only where nothing is written."""
    made = halves(m=(40,), n=(72,), k=(72,), tensors="abd")
    data = Data(made, rng)
    data.held["b"][5, 7] = np.inf
    memory = data.run(device, lowered(made) or (), NONE, RANDOM)
    found = memory[: 40 * 72].reshape(72, 40)
    np.testing.assert_array_equal(np.isinf(found).all(1), np.arange(72) == 7)
    assert np.isfinite(np.delete(found, 7, 0)).all()


# --- what it does not serve -----------------------------------------------------------------------

PLAIN = halves(m=(128,), n=(128,), k=(128,))
REFUSED = {
    "an operator on A": replace(PLAIN, operators={"a": Operator.NEG}),
    "addresses of two bytes": replace(PLAIN, aligned=False),
    "a stride of 130 elements": replace(
        PLAIN, layouts=PLAIN.layouts | {"a": Layout((2, 0), gap=2)}
    ),
    "a stride that is negative": replace(
        PLAIN, layouts=PLAIN.layouts | {"b": Layout((2, 1), negative=(1,))}
    ),
    "no elements side by side": replace(
        PLAIN, layouts=PLAIN.layouts | {"a": Layout((2, 0), step=2)}
    ),
    "a sum over what A has not": replace(
        PLAIN, layouts=PLAIN.layouts | {"a": Layout((2, 0), still=(2,))}
    ),
    "A and B along different k": laid(
        case(modes(m=(64,), n=(64,), k=(16, 16)), types=HALF),
        a=(2, 3, 0),
        b=(3, 2, 1),
        d=(0, 1),
        c=(0, 1),
    ),
    "types that differ": replace(PLAIN, types=HALF | {"b": "bfloat16"}),
    "float32 as it is": case(modes(m=(64,), n=(64,), k=(64,)), first=(2, 0)),
    "float32 in parts": case(
        modes(m=(64,), n=(64,), k=(64,)), first=(2, 0), compute=ComputeType.TF32X3
    ),
    "tf32 along m": case(modes(m=(64,), n=(64,), k=(64,)), compute=ComputeType.TF32),
    "no m": halves(m=(), n=(64,), k=(64,), first=(1,)),
    "no k": halves(m=(64,), n=(64,), k=(0,)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_does_not_serve_is_left_to_others(name: str) -> None:
    assert lowered(PLAIN)
    assert lowered(REFUSED[name]) is None


def test_six_modes_are_one_too_many() -> None:
    """A has two loops of m and three of k that do not fuse, and with a batch six."""
    loops = modes(l=(2,), m=(8, 8), n=(64,), k=(16, 2, 2))
    orders = {"a": (4, 1, 5, 2, 6), "b": (4, 3, 6, 5), "d": (2, 3, 1), "c": (2, 3, 1)}
    five = laid(case(loops[1:], types=HALF), **{x: [at - 1 for at in y] for x, y in orders.items()})
    assert lowered(five)
    batched = laid(case(loops, types=HALF), **{x: (*y, 0) for x, y in orders.items()})
    assert lowered(batched) is None


def test_only_hopper_has_wgmma() -> None:
    for capability in (80, 89, 100, 120):
        architecture = architecture_of(capability)
        assert hopper_calls(PLAIN.plan(), PLAIN.step(), architecture, SMALL) is None


def test_small_products_and_boxes_half_empty_gain_nothing() -> None:
    (call,) = lowered(halves(m=(4096,), n=(4096,), k=(4096,)), None) or ()
    assert "large: tiles of 128 x 256" in call.reason
    assert call.grid == (HOPPER.multiprocessors, 1, 1)
    for few in ({"m": (256,)}, {"k": (256,)}):
        assert lowered(halves(**({"m": (4096,), "n": (512,), "k": (4096,)} | few)), None) is None
    for k, gains in ((16, True), (8, False)):  # no box has less than 16 along it
        loops = modes(m=(4096,), n=(4096,), k=(k, 70))
        orders = {"a": (2, 0, 3), "b": (2, 3, 1), "d": (0, 1), "c": (0, 1)}
        assert (lowered(laid(case(loops, types=HALF), **orders), None) is not None) is gains


# --- the executor ---------------------------------------------------------------------------------


@pytest.fixture
def handle(device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, Handle]]:
    """A handle of an emulated GPU where the kernel is asked for, and all products gain."""
    monkeypatch.setenv("CONTRACT_HOPPER", "1")
    monkeypatch.setattr(hopper, "_gains", lambda *_: True)
    with installed(memory=64 << 20) as cupy:
        yield cupy, Handle(device=0)


def operand(x: Any, modes: str) -> ct.Operand:
    strides = tuple(stride // x.itemsize for stride in x.strides)
    return ct.Operand(ct.TensorDescriptor(x.shape, strides, x.dtype.name, 128), modes)


def test_the_executor_fills_in_maps_for_every_address(
    handle: tuple[ModuleType, Handle], rng: Rng, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And encodes each only once."""
    cupy, own = handle
    encodings: list[int] = []

    def counting(library: Any, tensor_map: TensorMap, address: int) -> bytes:
        encodings.append(address)
        return encoded(library, tensor_map, address)

    monkeypatch.setattr(device_executor, "encoded", counting)
    pairs = [(rng.random((80, 72), "f4"), rng.random((96, 72), "f4")) for _ in range(2)]
    uploaded = [tuple(cupy.asarray(x.astype("f2")) for x in pair) for pair in pairs]
    out = cupy.ndarray((80, 96), "f2")
    inputs = operand(uploaded[0][0], "mk"), operand(uploaded[0][1], "nk")
    plan = own.plan(
        ct.Contraction(inputs, operand(out, "mn")), ct.PlanPreference(algo=ct.Algo.GETT)
    )
    assert "TMA and wgmma" in plan.reasons[0]
    for at in (0, 1, 0, 1):
        own.contract(plan, 1.0, *uploaded[at], 0, None, out)
        a, b = (x.astype("f2").astype("f4") for x in pairs[at])
        np.testing.assert_allclose(cupy.asnumpy(out), a @ b.T, rtol=2e-3)
    assert len(encodings) == 4
    assert counters(cupy).launches[-1].shared > 48 << 10


def test_a_map_the_driver_refuses_leaves_the_product_to_others(
    handle: tuple[ModuleType, Handle], rng: Rng, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known when the plan is made, and said."""
    cupy, own = handle
    refused = lambda *_: 1  # noqa: E731 - CUDA_ERROR_INVALID_VALUE
    monkeypatch.setattr(driver_library(), "cuTensorMapEncodeTiled", refused)
    lines: list[str] = []
    monkeypatch.setattr(LOGGER, "log", lambda level, message: lines.append(message))
    x, y = (cupy.asarray(rng.random((96, 72)).astype("f2")) for _ in range(2))
    out = cupy.ndarray((96, 96), "f2")
    wanted = ct.Contraction((operand(x, "mk"), operand(y, "nk")), operand(out, "mn"))
    plan = own.plan(wanted, ct.PlanPreference(algo=ct.Algo.GETT))
    assert "float16 tensor cores" in plan.reasons[0]
    assert any("no TMA, mma.sync instead: The CUDA driver refuses (error 1)" in x for x in lines)
    own.contract(plan, 1.0, x, y, 0, None, out)
    expected = x.get().astype("f4") @ y.get().astype("f4").T
    np.testing.assert_allclose(out.get(), expected, rtol=2e-3)


def test_it_is_used_where_it_is_asked_for_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "_gains", lambda *_: True)
    plan: Any = PLAIN.plan()
    plan.preference = ct.PlanPreference()
    for asked, entry in (({}, "multiply"), ({"hopper": True}, "hopper")):
        (call,) = lower(plan, PLAIN.step(), HOPPER, **asked)
        assert call.entry == entry


def test_what_tma_reads_stays_among_the_arguments() -> None:
    """JitMode.DEFAULT copies arguments that it fills with constants; a map must not move."""
    (call,) = lowered(PLAIN) or ()
    assert baked(call) == call


def test_no_driver_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", missing)
    with pytest.raises(ct.NotSupportedError, match=r"CUDA driver of 12\.0"):
        driver_library()


def test_a_map_the_driver_refuses_is_an_error() -> None:
    made = TensorMap(Pointer(Memory.SLOT), MapType.BITS16, (64, 8), (128,), (64, 8), 128)
    assert len(encoded(LIBRARY, made, 4096)) == 128
    for wrong, address in (
        (made, 4098),
        (replace(made, strides=(130,)), 4096),
        (replace(made, box=(128, 8)), 4096),
        (replace(made, box=(64, 512)), 4096),
    ):
        with pytest.raises(ct.NotSupportedError, match="refuses"):
            encoded(LIBRARY, wrong, address)


def test_a_source_that_is_refused_is_an_error_with_its_log(
    handle: tuple[ModuleType, Handle],
) -> None:
    cupy, _ = handle
    (call,) = lowered(PLAIN) or ()
    with pytest.raises(cupy.cuda.compiler.CompileException, match="undefined"):
        load_kernel(cupy, replace(call, stub="__global__ void hopper() { x = 1; }"))
