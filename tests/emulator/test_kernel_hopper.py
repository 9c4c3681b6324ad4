"""The kernel of products by TMA and wgmma, against NumPy in higher precision."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.descriptors.compute_types import ComputeType
from contract.descriptors.operators import Operator
from contract.device import executor as device_executor
from contract.device.driver import driver_library
from contract.device.kernels.hopper import hopper_calls
from contract.device.kernels.jit import baked
from contract.device.modules import load_kernel
from contract.device.tensor_maps import encoded
from contract.execution.executor import Loaded
from contract.logging import LOGGER
from contract.machines.gpu import ARCHITECTURES, Architecture, architecture_of
from contract.machines.gpu_kernels import HOPPER_TILES, HopperTile
from contract.machines.gpu_tiles import HopperShare
from contract.plan.steps import Gett
from contract.planner.device.boxes import boxed, cuts
from contract.planner.device.hopper_model import group
from contract.planner.device.launch import KernelCall, MapType, Pointer, PointerKind, TensorMap
from contract.planner.device.problem import held_by
from contract.session.handle import Handle

from .cupy_surface import counters, installed
from .device import Device, Options, Schedule
from .driver_library import LIBRARY
from .products import Case, Data, Layout, case, check, modes

Rng = np.random.Generator
HOPPER = architecture_of(90)
LARGE, MEDIUM, NARROW, SMALL = HOPPER_TILES
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


def lowered(
    made: Case, tile: HopperTile = SMALL, parts: int = 1, gpu: Architecture = HOPPER
) -> tuple[KernelCall, ...] | None:
    """The launches; None where the kernel does not serve the product."""
    plan, step = made.plan(), made.step()
    if all(each.tile != tile for each in cuts(boxed(step, held_by(plan, step)), gpu)):
        return None
    return hopper_calls(plan, step, gpu, HopperShare(tile, parts))


def run(
    device: Device,
    rng: Rng,
    made: Case,
    scalars: Sequence[complex] = BOTH,
    tile: HopperTile = SMALL,
    options: Options = RANDOM,
    blocks: int = 3,
    parts: int = 1,
) -> str:
    """Launch on few blocks, so that they go on from tile to tile, and check; the stub."""
    first, *rest = lowered(made, tile, parts) or ()
    first = replace(first, grid=(min(blocks, first.grid[0]), 1, 1))
    data = Data(made, rng)
    check(data, data.run(device, [first, *rest], scalars, options), scalars)
    return first.stub


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


@pytest.mark.parametrize("tile", [LARGE, MEDIUM, NARROW], ids=lambda tile: tile.reason)
def test_tiles_that_are_larger(device: Device, rng: Rng, tile: HopperTile) -> None:
    made = halves(m=(tile.m + 70,), n=(tile.n + 40,), k=(64 * tile.stages + 72,))
    run(device, rng, made, tile=tile, blocks=2)


# --- directions and boxes -------------------------------------------------------------------------


DIRECTIONS = [
    ("float16", (0, 2), (1, 2)),
    ("float16", (0, 2), (2, 1)),
    ("float16", (2, 0), (1, 2)),
    ("bfloat16", (2, 0), (2, 1)),
]


@pytest.mark.parametrize("tile", HOPPER_TILES, ids=lambda tile: tile.reason)
@pytest.mark.parametrize(("dtype", "a", "b"), DIRECTIONS, ids=str)
def test_both_directions_of_both_factors(
    device: Device, rng: Rng, dtype: str, a: Sequence[int], b: Sequence[int], tile: HopperTile
) -> None:
    made = case(modes(m=(104,), n=(72,), k=(136,)), types=dict.fromkeys("abdc", dtype))
    stub = run(device, rng, laid(made, a=a, b=b, d=(0, 1), c=(1, 0)), tile=tile)
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


@pytest.mark.parametrize("tile", [SMALL, LARGE], ids=lambda tile: tile.reason)
@pytest.mark.parametrize("name", BOXES)
def test_boxes_of_several_modes(device: Device, rng: Rng, name: str, tile: HopperTile) -> None:
    extents, orders, expected = BOXES[name]
    loops = modes(**extents)
    layouts = {each: Layout(order) for each, order in zip("abdc", orders, strict=True)}
    made = replace(case(loops, types=HALF), layouts=layouts)
    stub = run(device, rng, made, tile=tile)
    for part in expected if tile == SMALL else ():
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


@pytest.mark.parametrize("tile", HOPPER_TILES, ids=lambda tile: tile.reason)
def test_float32_is_rounded_to_tf32(device: Device, rng: Rng, tile: HopperTile) -> None:
    """To nearest: no further from the product of rounded numbers than float32 sums are."""
    loops = modes(m=(100,), n=(72,), k=(200,))
    made = case(loops, tensors="abd", first=(2, 0), compute=ComputeType.TF32)
    (call,) = lowered(made, tile) or ()
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
    for architecture in ARCHITECTURES:
        assert (lowered(PLAIN, gpu=architecture) is not None) is (architecture.capability == 90)
    assert lowered(PLAIN, gpu=HOPPER.without_wgmma()) is None


# --- parts of k, and the order of tiles -----------------------------------------------------------


@pytest.mark.parametrize(("m", "n", "k", "parts"), [(65, 130, STEPS, 2), (40, 72, 64 * 23 + 8, 5)])
def test_parts_of_k_are_added(device: Device, rng: Rng, m: int, n: int, k: int, parts: int) -> None:
    """The last part has fewer steps than the others, and the last step less of k."""
    made = halves(m=(m,), n=(n,), k=(k,))
    run(device, rng, made, parts=parts)
    run(device, rng, replace(made, types=HALF | {"d": "float32"}), NONE, parts=parts)


def test_parts_of_several_tiles_of_a_batch(device: Device, rng: Rng) -> None:
    """By two warpgroups, D element by element, C turned."""
    made = case(modes(l=(2,), m=(136,), n=(130,), k=(64, 9)), types=HALF)
    made = laid(made, a=(3, 4, 1, 0), b=(3, 4, 2, 0), d=(0, 1, 2), c=(2, 0, 1))
    stub = run(device, rng, made, tile=MEDIUM, parts=3)
    assert stub.rstrip().split("\n")[-4].endswith(", 1>;")


def test_parts_are_added_in_order(device: Device, rng: Rng) -> None:
    """The same bits whatever block comes first."""
    made = halves(m=(70,), n=(72,), k=(64 * 20,), tensors="abd")
    data, calls = Data(made, rng), lowered(made, parts=4)
    assert calls is not None
    found = {
        data.run(device, calls, NONE, Options(Schedule.RANDOM, seed=seed)).tobytes()
        for seed in range(3)
    }
    assert len(found) == 1


def test_parts_of_nothing_are_not_read(device: Device, rng: Rng) -> None:
    """Where alpha is 0 D is beta C, whatever A and B are."""
    data = Data(halves(m=(70,), n=(72,), k=(64 * 20,)), rng)
    for name in "ab":
        data.flat[name][...] = np.nan
    wanted = Data(data.case, rng)
    wanted.flat["d"], wanted.view["c"] = data.flat["d"], data.view["c"]
    for name in "ab":
        wanted.held[name][...] = 0
    calls = lowered(data.case, parts=4) or ()
    check(wanted, data.run(device, calls, (0, 2, 0), RANDOM), (0, 2, 0))


@pytest.mark.parametrize("tiles", [(5, 3), (3, 5), (1, 7), (8, 8)], ids=str)
def test_every_tile_is_done_in_groups(device: Device, rng: Rng, tiles: tuple[int, int]) -> None:
    """Eight blocks at once: groups of two or three tiles along m, the last with fewer."""
    few = replace(HOPPER, multiprocessors=4)
    m, n = (64 * count - 20 for count in tiles)
    made = case(modes(l=(2,), m=(m,), n=(n,), k=(8,)), types=HALF, first=(3, 0))
    (call,) = lowered(made, gpu=few) or ()
    assert call.grid == (8, 1, 1)
    data = Data(made, rng)
    check(data, data.run(device, [call], BOTH, RANDOM), BOTH)


def test_blocks_beside_each_other_share_what_they_read() -> None:
    """Of 57 x 29 tiles 132 are done at once: as 15 x 9 they read least."""
    made = halves(m=(7248,), n=(7240,), k=(7248,))
    plan, step = made.plan(), made.step()
    (large, *_) = cuts(boxed(step, held_by(plan, step)), HOPPER)
    assert large.tile == LARGE
    assert group(large, HOPPER) == 15
    assert group(large, replace(HOPPER, multiprocessors=1)) == 1


# --- how D is written -----------------------------------------------------------------------------

# The type of D, its extents, and the elements that a thread writes at once.
WIDTHS = [
    ("float16", (96,), 8),
    ("float16", (100,), 4),
    ("bfloat16", (98,), 2),
    ("float16", (97,), 1),
    ("float16", (4, 24), 4),
    ("float32", (96,), 4),
    ("float32", (98,), 2),
    ("float32", (97,), 1),
]


@pytest.mark.parametrize(("dtype", "extents", "width"), WIDTHS, ids=str)
def test_runs_of_d_are_written_at_once(
    device: Device, rng: Rng, dtype: str, extents: tuple[int, ...], width: int
) -> None:
    """16 bytes where they lie side by side; pairs of four lanes are turned for them."""
    kind = "float16" if dtype == "float32" else dtype
    loops = modes(m=(100,), n=extents, k=(72,))
    types = {"a": kind, "b": kind, "d": dtype, "c": dtype}
    columns = range(1, 1 + len(extents))
    k = 1 + len(extents)
    made = laid(
        case(loops, types=types), a=(k, 0), b=(k, *columns), d=(*columns, 0), c=(*columns, 0)
    )
    if len(extents) > 1:  # the second loop of n does not go on where the first one ends
        made = replace(made, layouts=made.layouts | {"d": Layout((*columns, 0), gap=8)})
    for tile in (SMALL, NARROW, LARGE):
        assert f", {width}>;" in run(device, rng, made, tile=tile)
    assert f", {width}>;" in run(device, rng, made, parts=1, scalars=NONE)


def test_c_may_be_d(device: Device, rng: Rng) -> None:
    """Other lanes write an element than read it, never before."""
    made = halves(m=(100,), n=(96,), k=(72,))
    for parts in (1, 2):
        long = replace(made, modes=modes(m=(100,), n=(96,), k=(72 if parts == 1 else 64 * 16,)))
        calls = [in_place(call) for call in lowered(long, parts=parts) or ()]
        data = Data(long, rng)
        data.view["c"] = data.view["d"]
        check(data, data.run(device, calls, BOTH, RANDOM), BOTH)


def in_place(call: KernelCall) -> KernelCall:
    """The launch with D where C is read."""
    at_d, at_c = Pointer(PointerKind.SLOT, 2), Pointer(PointerKind.SLOT, 3)
    pointers = tuple(
        (offset, at_d if pointer == at_c else pointer)
        for offset, pointer in call.arguments.pointers
    )
    return replace(call, arguments=replace(call.arguments, pointers=pointers))


# --- the executor ---------------------------------------------------------------------------------


@pytest.fixture
def handle(device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, Handle]]:
    """A handle of an emulated GPU that checks its plans."""
    monkeypatch.setenv("CONTRACT_CHECK", "1")
    with installed(memory=64 << 20) as cupy:
        yield cupy, Handle(device=0)


def operand(x: Any, modes: str) -> ct.Operand:
    strides = tuple(stride // x.itemsize for stride in x.strides)
    return ct.Operand(ct.TensorDescriptor(x.shape, strides, x.dtype.name, 128), modes)


def planned(own: Handle, wanted: ct.Contraction, word: str = "TMA and wgmma") -> Loaded:
    """The first plan, by rank, for whose reason ``word`` stands."""
    for rank in count():
        plan = own.plan(wanted, ct.PlanPreference(algo=ct.Algo.GETT, kernel_rank=rank))
        if word in plan.plan.considered[0].chosen.reason:
            return plan
    raise AssertionError


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
    plan = planned(own, ct.Contraction(inputs, operand(out, "mn")))
    assert plan.reasons == (plan.plan.considered[0].chosen.reason,)
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
    plan = planned(own, wanted)
    assert "float16 tensor cores" in plan.reasons[0]
    assert any("no TMA, mma.sync instead: The CUDA driver refuses (error 1)" in x for x in lines)
    own.contract(plan, 1.0, x, y, 0, None, out)
    expected = x.get().astype("f4") @ y.get().astype("f4").T
    np.testing.assert_allclose(out.get(), expected, rtol=2e-3)


def test_parts_run_in_the_workspace(handle: tuple[ModuleType, Handle], rng: Rng) -> None:
    """Few tiles and a long k: the plan has parts, with their own workspace."""
    cupy, own = handle
    pair = [rng.random((64, 4096), "f4").astype("f2") for _ in range(2)]
    x, y = map(cupy.asarray, pair)
    out = cupy.ndarray((64, 64), "f2")
    wanted = ct.Contraction((operand(x, "mk"), operand(y, "nk")), operand(out, "mn"))
    plan = planned(own, wanted)
    (step,) = plan.plan.steps
    assert isinstance(step, Gett)
    assert isinstance(step.blocking, HopperShare)
    assert step.blocking.parts > 1
    assert plan.required_workspace >= 4 * 64 * 64 * step.blocking.parts
    own.contract(plan, 1.0, x, y, 0, None, out)
    expected = pair[0].astype("f4") @ pair[1].astype("f4").T
    np.testing.assert_allclose(out.get(), expected, rtol=2e-3)


def test_it_may_be_forbidden(
    handle: tuple[ModuleType, Handle], rng: Rng, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then no candidate has it, and plans are kept apart."""
    cupy, allowed = handle
    monkeypatch.setenv("CONTRACT_HOPPER", "0")
    forbidden = Handle(device=0)
    x, y = (cupy.asarray(rng.random((512, 512)).astype("f2")) for _ in range(2))
    out = cupy.ndarray((512, 512), "f2")
    wanted = ct.Contraction((operand(x, "mk"), operand(y, "nk")), operand(out, "mn"))
    for own, there in ((allowed, True), (forbidden, False)):
        reasons = [each.reason for each in own.plan(wanted).plan.considered[0].candidates]
        assert any("TMA and wgmma" in reason for reason in reasons) is there
    first, second = (own.executor.identity for own in (allowed, forbidden))
    assert second.capability == f"{first.capability} without wgmma"


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
    made = TensorMap(Pointer(PointerKind.SLOT), MapType.BITS16, (64, 8), (128,), (64, 8), 128)
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
