"""The kernel of products, launch by launch, against NumPy in higher precision."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod

import numpy as np
import pytest

from contract.descriptors.compute_types import item_size
from contract.descriptors.operators import Operator
from contract.device.kernels.gett import gett_calls
from contract.machines.gett_model import share
from contract.machines.gpu import ARCHITECTURES, architecture_of
from contract.machines.gpu_kernels import CORE_TILES, CoreTile
from contract.machines.gpu_tiles import Extents, Share

from . import nvrtc
from .device import Device, Options, Schedule
from .launching import run_call
from .products import HAVE, Case, Data, Layout, case, check, modes, workload

Rng = np.random.Generator
HOPPER = architecture_of(90)
RANDOM = Options(Schedule.RANDOM, seed=5)
NONE = (1, 0, 0)
BOTH = (2.5, -0.5, 0)
LARGE, MEDIUM, SMALL, DEEP, *_, GEMV, VECMAT, DOT, TINY4, TINY8, _, _ = CORE_TILES[4]
PAIR, QUAD = CORE_TILES[8][2], CORE_TILES[16][1]


def shared(tile: CoreTile, k: int, parts: int = 1) -> Share:
    part_k = max(1, ceil(ceil(k / parts) / tile.k)) * tile.k
    return Share(tile, max(1, ceil(k / part_k)), part_k)


def run(
    device: Device,
    rng: Rng,
    made: Case,
    scalars: Sequence[complex] = BOTH,
    tile: CoreTile | None = None,
    parts: int = 1,
    options: Options = RANDOM,
) -> str:
    """Launch and check; the first launch's stub is returned."""
    k = prod(mode.extent for mode in made.modes if mode.kind == "k")
    chosen = None if tile is None else shared(tile, k, parts)
    calls = gett_calls(made.plan(), made.step(), HOPPER, chosen)
    data = Data(made, rng)
    check(data, data.run(device, calls, scalars, options), scalars)
    return calls[0].stub


# --- edges of tiles and steps -------------------------------------------------------------------


def around(side: int, rng: Rng) -> int:
    return int(rng.choice([1, side - 1, side, side + 1, 2 * side + 3]))


@pytest.mark.parametrize("tile", CORE_TILES[4], ids=lambda tile: f"{tile.l}x{tile.m}x{tile.n}")
def test_edges_of_every_tile(device: Device, rng: Rng, tile: CoreTile) -> None:
    """One element at once, along k in A and n in B."""
    for _ in range(4):
        sizes = {
            "l": (around(max(tile.l, 2), rng),),
            "m": (min(around(tile.m, rng), 140),),
            "n": (min(max(around(tile.n, rng), 2), 140),),
            "k": (min(max(around(tile.k, rng), 2), 260),),
        }
        made = case(modes(**sizes), first=(3, 2), shift=1)
        stub = run(device, rng, made, tile=tile)
        assert "TILE, 1>" in stub or "K, 1>" in stub


@pytest.mark.parametrize("options", [Options(schedule) for schedule in Schedule], ids=str)
def test_every_schedule(device: Device, rng: Rng, options: Options) -> None:
    """Five steps, so that both stages and both tables of offsets are used again."""
    for tile in (MEDIUM, SMALL):
        made = case(modes(l=(2,), m=(33,), n=(40,), k=(4 * tile.k + 5,)), first=(3, 2), shift=1)
        run(device, rng, made, tile=tile, options=options)


@pytest.mark.parametrize("first", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)], ids=str)
def test_vectors_in_every_direction(device: Device, rng: Rng, first: tuple[int, ...]) -> None:
    """The fastest mode decides how each factor is read; D is written along m or n."""
    for sizes in ((64, 68, 20), (4, 72, 36), (132, 4, 12)):
        m, n, k = sizes
        made = case(modes(m=(m,), n=(n,), k=(k,)), first=first)
        stub = run(device, rng, made, tile=SMALL)
        assert stub.count(", 4>") == 3 + (stub.count("Addend<float, Operator::IDENTITY, 4>, 4>"))


@pytest.mark.usefixtures("device")  # its compiler
@pytest.mark.skipif(nvrtc.version() >= (13, 0), reason="CUDA 13 compiles for 7.5 and newer")
def test_steps_through_registers_where_there_is_no_cp_async(rng: Rng) -> None:
    for made in (
        case(modes(m=(33,), n=(40,), k=(4 * SMALL.k + 5,)), first=(2, 1), shift=1),
        case(modes(m=(64,), n=(68,), k=(SMALL.k + 4,)), first=(2, 1, 0)),
    ):
        run(Device("sm_60"), rng, made, tile=SMALL)


# --- loops --------------------------------------------------------------------------------------


def random_case(rng: Rng) -> Case:
    """Any number of modes, in any order in each tensor, reversed, still, with gaps."""
    counts = {"l": (0, 1, 2), "m": (0, 1, 2, 3), "n": (0, 1, 2), "k": (0, 1, 2, 3)}
    sizes = {
        kind: rng.choice([1, 2, 3, 4, 5, 7, 8, 11], rng.choice(some)).tolist()
        for kind, some in counts.items()
    }
    loops, layouts = modes(**sizes), {}
    for name in "abdc":
        own = [at for at, mode in enumerate(loops) if mode.kind in HAVE[name]]
        own = rng.permutation(own).tolist()
        still = tuple(at for at in own if name in "ab" and rng.random() < 0.15)
        negative = tuple(at for at in own if rng.random() < 0.15)
        gap, step, shift = rng.choice([0, 0, 3]), rng.choice([1, 1, 2]), rng.choice([0, 1])
        layouts[name] = Layout(tuple(own), int(gap), int(step), negative, still, int(shift))
    return Case(loops, layouts, dict.fromkeys("abdc", "float32"), "float32", aligned=False)


@pytest.mark.parametrize("seed", range(40))
def test_any_loops(device: Device, rng: Rng, seed: int) -> None:
    """Widths are cut to 1 (by the alignment), so that few kernels are built."""
    made = random_case(rng)
    scalars = [(2.5, -0.5, 0), (1, 1, 0), (0, 2, 0), (3, 0, 0)][seed % 4]
    run(device, rng, made, scalars, tile=SMALL)


def test_modes_that_want_to_be_first_are_cut(device: Device, rng: Rng) -> None:
    """A and D, and A and B, are nearest in different modes of one kind."""
    loops = modes(m=(24, 16), n=(5,), k=(16, 40))
    made = case(loops)
    layouts = {
        "a": Layout((0, 1, 3, 4)),
        "b": Layout((3, 4, 2)),
        "d": Layout((1, 0, 2)),
    }
    run(device, rng, replace(made, layouts=layouts), NONE, tile=SMALL)
    layouts |= {"a": Layout((3, 4, 0, 1)), "b": Layout((4, 3, 2))}
    run(device, rng, replace(made, layouts=layouts), NONE, tile=SMALL)


def test_twenty_modes(device: Device, rng: Rng) -> None:
    loops = modes(l=(2,) * 3, m=(2,) * 5, n=(2,) * 5, k=(2,) * 7)
    layouts = {}
    for name in "abdc":
        own = [at for at, mode in enumerate(loops) if mode.kind in HAVE[name]]
        layouts[name] = Layout(tuple(rng.permutation(own).tolist()))
    stub = run(device, rng, replace(case(loops), layouts=layouts), tile=SMALL)
    assert "float, 24," in stub


def test_a_batch_mode_that_one_factor_lacks_is_a_row(device: Device, rng: Rng) -> None:
    made = case(modes(l=(6, 3), m=(5,), n=(7,), k=(9,)))
    layouts = made.layouts | {
        "b": replace(made.layouts["b"], still=(0,)),
        "a": replace(made.layouts["a"], still=(1,)),
    }
    run(device, rng, replace(made, layouts=layouts), tile=SMALL)


# --- what is not read ---------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 3])
def test_a_factor_of_zero_reads_nothing(device: Device, rng: Rng, parts: int) -> None:
    made = case(modes(m=(33,), n=(35,), k=(100,)), first=(2, 1), shift=1)
    for scalars, nothing in (((0, 2, 0), "ab"), ((3, 0, 0), "c"), ((0, 0, 0), "abc")):
        data = Data(made, rng)
        wanted = Data(made, rng)
        for name in nothing:
            wanted.held[name][...] = 0
            data.flat[name][...] = np.nan
        for name in set("abc") - set(nothing):
            wanted.held[name][...] = data.held[name]
        wanted.flat["d"] = data.flat["d"]
        calls = gett_calls(made.plan(), made.step(), HOPPER, shared(SMALL, 100, parts))
        assert len(calls) == (1 if parts == 1 else 2)
        check(wanted, data.run(device, calls, scalars, RANDOM), scalars)


def test_not_a_number_is_kept(device: Device, rng: Rng) -> None:
    made = case(modes(m=(33,), n=(35,), k=(100,)), first=(2, 1), shift=1)
    data = Data(made, rng)
    data.held["a"][7, 4] = np.nan  # k = 7, m = 4
    calls = gett_calls(made.plan(), made.step(), HOPPER, shared(SMALL, 100))
    memory = data.run(device, calls, (1, 0, 0))
    found = memory[1 : 1 + 33 * 35].reshape(33, 35)
    np.testing.assert_array_equal(np.isnan(found).all(1), np.arange(33) == 4)
    assert np.isnan(found).sum() == 35


def test_a_sum_of_nothing_is_zero(device: Device, rng: Rng) -> None:
    made = case(modes(m=(33,), n=(35,), k=(0,)), first=(2, 1), shift=1)
    run(device, rng, made, (3, 2, 0), tile=SMALL)


def test_a_result_without_elements_launches_nothing() -> None:
    for sizes in ({"m": (0,), "n": (4,)}, {"m": (4,), "n": (0,)}, {"l": (0,), "m": (4,)}):
        made = case(modes(**sizes, k=(5,)))
        assert gett_calls(made.plan(), made.step(), HOPPER) == ()


# --- parts of k ---------------------------------------------------------------------------------


def test_parts_are_added_in_order(device: Device, rng: Rng) -> None:
    for parts in (2, 5, 11):
        made = case(modes(l=(3,), m=(33,), n=(5,), k=(350,)), first=(3, 2), shift=1)
        run(device, rng, made, tile=SMALL, parts=parts)
    loops = modes(l=(3,), m=(8, 5), n=(5,), k=(350,))
    made = case(loops, first=(4, 3))
    layouts = made.layouts | {"d": Layout((1, 3, 2, 0), gap=3), "c": Layout((3, 2, 0, 1))}
    run(device, rng, replace(made, layouts=layouts, aligned=False), tile=SMALL, parts=4)


# --- types --------------------------------------------------------------------------------------

TYPES = [
    ("float64", PAIR, {}),
    ("float64", CORE_TILES[8][4], {}),
    ("complex64", CORE_TILES[8][5], {}),
    ("complex128", QUAD, {}),
    ("int8", SMALL, {}),
    ("uint16", SMALL, {}),
    ("float32", SMALL, dict.fromkeys("abdc", "float16")),
    ("float32", DEEP, dict.fromkeys("abdc", "bfloat16")),
    ("complex64", PAIR, {"a": "float32"}),
    ("float64", PAIR, {"a": "int32", "b": "float32", "d": "float32", "c": "float16"}),
]


@pytest.mark.parametrize(("dtype", "tile", "types"), TYPES, ids=lambda x: str(x)[:30])
def test_every_size_of_type(
    device: Device, rng: Rng, dtype: str, tile: CoreTile, types: dict[str, str]
) -> None:
    """Vectors as wide as they go; sums of integers wrap around."""
    whole = np.dtype(dtype).kind in "iu"
    scalars = (3, 2, 0) if whole else BOTH
    if dtype.startswith("complex"):
        scalars = (2 - 1j, 0.5 + 1j, 0)
    for m, n, k in ((48, 32, 32), (80, 16, 48)):
        made = case(modes(m=(m,), n=(n,), k=(k,)), dtype, first=(2, 0), types=types)
        stub = run(device, rng, made, scalars, tile=tile)
        most = min(16 // item_size(made.types["a"]), tile.k)
        assert f"Along::K, {most}>" in stub


@pytest.mark.parametrize(
    ("dtype", "a", "b", "c"),
    [
        ("float32", Operator.RCP, Operator.ABS, Operator.RELU),
        ("complex64", Operator.CONJ, Operator.IDENTITY, Operator.CONJ),
        ("int32", Operator.RELU, Operator.CONJ, Operator.RELU),
    ],
)
def test_operators(
    device: Device, rng: Rng, dtype: str, a: Operator, b: Operator, c: Operator
) -> None:
    """1 / 0 would be infinite beyond the last k."""
    tile = CORE_TILES[max(item_size(dtype), 4)][2]
    for k in (2, 31, 45):
        made = case(
            modes(m=(20,), n=(17,), k=(k,)),
            dtype,
            operators={"a": a, "b": b, "c": c},
            first=(2, 0),
            shift=1,
        )
        run(device, rng, made, (2, 3, 0), tile=tile)


# --- far offsets, many elements -----------------------------------------------------------------


def test_offsets_beyond_31_bits(device: Device, rng: Rng) -> None:
    """Rows of A lie 2^31 elements apart; only the pages that are touched exist."""
    made = case(modes(m=(3,), n=(5,), k=(40,)), "int8", "abd", types={"a": "int8"})
    step = made.step()
    far = 2**31 + 64
    loops = tuple(x._replace(a=far if x.kind.value == "m" else bool(x.a)) for x in step.loops)
    (call,) = gett_calls(made.plan(), replace(step, loops=loops), HOPPER)
    assert "long long" in call.stub
    a, b = rng.integers(-128, 128, (3, 40), "i1"), rng.integers(-128, 128, (40, 5), "i1")
    memory = device.sparse(3 * far)
    for row in range(3):
        memory.upload(a[row], row * far)
    slots = [memory, device.upload(b), device.allocate(15)]
    run_call(device, call, slots, (1, 0, 0))
    np.testing.assert_array_equal(slots[2].download("i1", (5, 3)).T, a @ b)
    for each in slots:
        each.free()


def test_more_indices_than_31_bits_are_counted_in_64() -> None:
    made = case(modes(m=(2**33 + 8,), k=(3,)), "int8", "abd")
    (call,) = gett_calls(made.plan(), made.step(), HOPPER)
    assert "long long" in call.stub
    assert call.grid[0] * call.grid[1] >= (2**33 + 8) // 256


# --- the choice ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extents", "tiles", "parts"),
    [
        (Extents(1, 4096, 4096, 4096), (LARGE,), False),
        (Extents(1, 1, 1, 10**7), (DOT,), True),
        (Extents(10**5, 4, 4, 4), (TINY4,), False),
        (Extents(10**5, 8, 8, 8), (TINY8,), False),
        (Extents(1, 10**6, 1, 100), (GEMV,), False),
        (Extents(1, 4, 10**6, 100), (VECMAT,), False),
        (Extents(1, 64, 64, 10**5), (MEDIUM, SMALL, DEEP), True),
    ],
)
def test_tiles_fit_the_shape(extents: Extents, tiles: tuple[CoreTile, ...], parts: bool) -> None:
    """Large tiles for large products, long ones for vectors; parts where blocks are too few."""
    sizes = {"l": extents.l, "m": extents.m, "n": extents.n, "k": extents.k}
    made = case(modes(**{kind: (n,) for kind, n in sizes.items()}), tensors="abd", first=(3,))
    for architecture in ARCHITECTURES:
        work = workload(made, architecture)
        assert work.extents == extents
        chosen = share(work, architecture)
        assert chosen.tile.reason in {tile.reason for tile in tiles}
        assert (chosen.parts > 1) is parts
        assert (chosen.parts - 1) * chosen.part_k < extents.k <= chosen.parts * chosen.part_k
