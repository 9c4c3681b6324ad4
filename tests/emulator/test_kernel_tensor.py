"""Products by the tensor cores, launch by launch, against NumPy in higher precision."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product as combinations
from math import ceil, prod
from typing import Any

import numpy as np
import pytest

from contract.descriptors.compute_types import ComputeType, item_size
from contract.descriptors.operators import Operator
from contract.device.kernels.gett import gett_calls
from contract.machines import tensor_cores as known
from contract.machines.gett_model import share
from contract.machines.gpu import ARCHITECTURES, Architecture, architecture_of
from contract.machines.gpu_kernels import Arithmetic, TensorTile, tensor_tiles
from contract.machines.gpu_tiles import Share, resident
from contract.machines.tensor_cores import arithmetic
from contract.planner.device.problem import Problem

from .device import Device, Options, Schedule
from .products import Case, Data, Layout, case, check, modes, workload
from .tensor_cases import HALF, KINDS, WITH_ALL_TILES, Kind, laid_out, tiles

Rng = np.random.Generator
HOPPER = architecture_of(90)
SCHEDULES = (Options(Schedule.RANDOM, seed=5), Options(Schedule.REVERSED))
DIRECTIONS = list(combinations("mk", "nk"))  # what lies side by side in A and in B


def scalars_of(dtype: str) -> tuple[complex, complex, complex]:
    if dtype.startswith("complex"):
        return 2 - 1j, 0.5 + 1j, 0
    return (3, 2, 0) if "int" in dtype else (2.5, -0.5, 0)


def in_parts(tile: TensorTile, k: int, parts: int, whole: int = 0) -> Share:
    part_k = max(1, ceil(ceil(k / parts) / tile.k)) * tile.k
    return Share(tile, max(1, ceil(k / part_k)), part_k, whole)


def run(
    device: Device,
    rng: Rng,
    made: Case,
    tile: TensorTile,
    parts: int = 1,
    whole: int = 0,
    options: Options = SCHEDULES[0],
    architecture: Any = HOPPER,
) -> str:
    """Launch and check; the first launch's stub is returned."""
    k = prod(mode.extent for mode in made.modes if mode.kind == "k")
    chosen = in_parts(tile, k, parts, whole)
    calls = gett_calls(made.plan(), made.step(), architecture, chosen)
    data, scalars = Data(made, rng), scalars_of(made.dtype)
    check(data, data.run(device, calls, scalars, options), scalars)
    return calls[0].stub


# --- every tile -----------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every tile by one arithmetic and two by the others, each in one way; or all in all ways."""
    if metafunc.function is test_every_tile:
        found = list(every_tile(metafunc.config.getoption("--exhaustive")))
        metafunc.parametrize(("kind", "tile", "ways"), found)


def every_tile(exhaustive: bool) -> Iterator[Any]:
    for number, kind in enumerate(KINDS):
        size = max(item_size(kind[1].get(x, kind[2])) for x in "ab")
        ways = [(way, unit) for unit in (16 // size, 2, 1) for way in DIRECTIONS]
        for at, tile in enumerate(tiles(kind)):
            if exhaustive:
                chosen = ways
            elif kind in WITH_ALL_TILES or at in (2, 5):
                narrow = at > 1 and (size >= 4 or at == 3)  # copies by the element compile long
                some = ways if narrow else ways[: len(DIRECTIONS)]
                chosen = [some[(at * 5 + number) % len(some)]]
            else:
                continue
            name = f"{kind[0].unit}-{kind[2]}-{tile.l}x{tile.m}x{tile.n}"
            yield pytest.param(kind, tile, chosen, id=name)


def test_every_tile(
    device: Device, rng: Rng, kind: Kind, tile: TensorTile, ways: list[tuple[Any, int]]
) -> None:
    """One element less and more than a tile, a step and all steps in shared memory."""
    _, types, dtype, compute = kind
    for direction, unit in ways:
        for edge, (deep, options) in zip((-unit, unit), enumerate(SCHEDULES), strict=True):
            sizes = {
                "l": (max(tile.l + edge, 1) if tile.l > 1 else 1 + deep,),
                "m": (max(tile.m + edge, unit),),
                "n": (max(tile.n + edge, unit),),
                "k": ((tile.stages + 1) * tile.k + edge if deep else max(tile.k + edge, unit),),
            }
            shift = 0 if unit > 1 else 1
            made = case(modes(**sizes), dtype, types=types, compute=compute, shift=shift)
            run(device, rng, laid_out(made, direction), tile, options=options)


# --- rows that lie apart --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "row", "rows", "columns", "written"),
    [
        (KINDS[0], 2, (16, 40), 9, "4, 8, 4"),
        (KINDS[0], 2, (16, 40), 57, "4, 4, 4"),
        (KINDS[0], 4, (12, 40), 9, "4, 4, 4"),
        (KINDS[1], 1, (16, 40), 9, "4, 8, 4"),
        (KINDS[4], 1, (24, 48), 9, "4, 8, 2"),
        (KINDS[4], 1, (32, 24), 9, "4, 16, 4"),
        (KINDS[4], 1, (32, 24), 121, "4, 8, 2"),
        (KINDS[4], 0, (16, 48), 9, "8, 16, 4"),
        (KINDS[4], 2, (16, 48), 9, "4, 16, 8"),
        (KINDS[4], 8, (16, 48), 9, "4, 16, 2"),
        (KINDS[9], 0, (8, 24), 9, "2, 8, 4"),
        (KINDS[9], 0, (8, 24), 57, "2, 2, 2"),
        (KINDS[9], 3, (8, 6), 9, "2, 8, 4"),
        (KINDS[9], 5, (4, 6), 9, "2, 4, 4"),
        (KINDS[10], 2, (8, 12), 9, "2, 8, 4"),
    ],
    ids=lambda x: x[0].unit + "-" + x[2] if isinstance(x, tuple) and len(x) == 4 else str(x),
)
def test_rows_of_a_are_not_those_of_d(
    device: Device,
    rng: Rng,
    kind: Kind,
    row: int,
    rows: tuple[int, int],
    columns: int,
    written: str,
) -> None:
    """One mode lies side by side in A and another in D: both are accessed in vectors.

    Of the two, the larger tensor has the longer runs.
    """
    _, types, dtype, compute = kind
    tile = tiles(kind)[row]
    loops = modes(l=(3,), m=(*rows, 3), n=(columns,), k=(tile.k + 9,))
    made = case(loops, dtype, types=types, compute=compute)
    order = {"a": (1, 2, 3, 5, 0), "d": (2, 1, 4, 3, 0), "c": (4, 2, 1, 3, 0)}
    layouts = {name: Layout(x) for name, x in order.items()} | {"b": made.layouts["b"]}
    stub = run(device, rng, replace(made, layouts=layouts), tile)
    assert f"{tile.stages}, {written}>" in stub


# --- sharing the work -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [KINDS[0], KINDS[4], KINDS[9], KINDS[10]], ids=lambda kind: f"{kind[0].unit}-{kind[2]}"
)
def test_parts_of_the_last_tiles(device: Device, rng: Rng, kind: Any) -> None:
    """Some tiles whole, the others in parts; and a second product that finds other sums there."""
    _, types, dtype, compute = kind
    tile = tiles(kind)[2]
    loops = modes(l=(2,), m=(tile.m + 5,), n=(2 * tile.n - 3,), k=(9 * tile.k + 1,))
    made = case(loops, dtype, types=types, compute=compute, first=(3, 2), shift=1)
    for parts, whole in ((3, 0), (4, 5)):
        run(device, rng, made, tile, parts, whole)


def test_blocks_go_on_to_further_tiles(device: Device, rng: Rng) -> None:
    """One multiprocessor: a block does tile after tile in the same shared memory."""
    tile = tiles(KINDS[0])[3]
    alone = replace(HOPPER, multiprocessors=1)
    made = case(modes(m=(200,), n=(90,), k=(70,)), compute=ComputeType.TF32, first=(2, 1))
    (call,) = gett_calls(made.plan(), made.step(), alone, in_parts(tile, 70, 1))
    assert call.grid[0] == tile.resident < 7 * 3
    for options in SCHEDULES:
        run(device, rng, made, tile, architecture=alone, options=options)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[4], KINDS[9]], ids=lambda kind: kind[0].unit)
def test_offsets_of_64_bits(
    device: Device, rng: Rng, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """Those of tensors of more than 2^31 elements."""
    monkeypatch.setattr(Problem, "is_wide", True)
    _, types, dtype, compute = kind
    tile = tiles(kind)[2]
    loops = modes(l=(2,), m=(tile.m + 8, 3), n=(tile.n - 4,), k=(12, 13))
    for first in ((), (4, 3)):
        made = case(loops, dtype, types=types, compute=compute, first=first)
        assert "long long" in run(device, rng, made, tile)


def test_bits_do_not_depend_on_the_schedule(device: Device, rng: Rng) -> None:
    tile = tiles(KINDS[1])[2]
    made = case(modes(m=(33,), n=(40,), k=(300,)), compute=ComputeType.TF32X3, first=(2, 1))
    data = Data(made, rng)
    calls = gett_calls(made.plan(), made.step(), HOPPER, in_parts(tile, 300, 3))
    runs = [data.run(device, calls, (1, 0, 0), Options(schedule)) for schedule in Schedule]
    assert all(run.tobytes() == runs[0].tobytes() for run in runs)


# --- what is summed -------------------------------------------------------------------------------


def test_float16_is_summed_in_float32(device: Device) -> None:
    """70000 ones halved are 35000; in float16 they would be infinite on the way."""
    made = case(modes(m=(1,), n=(1,), k=(70000,)), types=HALF, tensors="abd")
    tile = tiles(KINDS[4])[3]
    data = Data(made, np.random.default_rng(0))
    for name in "ab":
        data.held[name][...] = 1
    for parts in (1, 7):
        calls = gett_calls(made.plan(), made.step(), HOPPER, in_parts(tile, 70000, parts))
        assert data.run(device, calls, (0.5, 0, 0))[0] == 35000


@pytest.mark.parametrize(
    ("compute", "unit"),
    [
        (ComputeType.TF32, known.TF32),
        (ComputeType.F16, known.TF32),
        (ComputeType.BF16, known.BF16),
        (ComputeType.TF32X3, known.TF32X3),
        (ComputeType.F16X4, known.BF16X6),
        (ComputeType.BF16X9, known.BF16X6),
    ],
)
def test_all_of_float32_is_multiplied(
    device: Device, rng: Rng, compute: ComputeType, unit: Arithmetic
) -> None:
    """Every exponent, in factors whose products stay in range; roundings that would overflow."""
    assert arithmetic(("float32",) * 2, "float32", compute, (), HOPPER) == (unit,)
    made = case(modes(m=(32,), n=(40,), k=(64,)), tensors="abd", compute=compute, first=(2, 1))
    data = Data(made, rng)
    exponent = rng.integers(-60, 61, 64)[:, None]  # of each k, the opposite in the other factor
    data.held["a"][...] = rng.uniform(1, 2, (64, 32)) * 2.0**exponent
    data.held["b"][...] = rng.uniform(1, 2, (64, 40)) * 2.0**-exponent
    most = np.finfo("f4").max
    data.held["a"][5, 3], data.held["a"][:, 4], data.held["a"][7, 4] = most, 0, most
    data.held["b"][5], data.held["b"][7] = 2.0**-20, rng.uniform(0.1, 0.9, 40)
    tile = tensor_tiles(unit, 4, "float32")[2]
    calls = gett_calls(made.plan(), made.step(), HOPPER, in_parts(tile, 64, 1))
    check(data, data.run(device, calls, (1, 0, 0)), (1, 0, 0))


@pytest.mark.parametrize("unit", [known.TF32, known.TF32X3, known.BF16X6], ids=lambda x: x.unit)
def test_infinity_stays_infinite(device: Device, rng: Rng, unit: Arithmetic) -> None:
    """Parts of an infinite number are not its remainder, inf - inf."""
    made = case(modes(m=(32,), n=(40,), k=(16,)), tensors="abd", first=(2, 1))
    data = Data(made, rng)
    data.held["a"][...], data.held["b"][...] = 1, 2
    data.held["a"][3, 5], data.held["a"][4, 6], data.held["a"][9, 7] = np.inf, -np.inf, np.nan
    calls = gett_calls(
        made.plan(), made.step(), HOPPER, in_parts(tensor_tiles(unit, 4, "float32")[2], 16, 1)
    )
    found = data.run(device, calls, (1, 0, 0))[: 32 * 40].reshape(32, 40)
    wanted = np.full((32, 40), 32.0)
    wanted[5], wanted[6], wanted[7] = np.inf, -np.inf, np.nan
    np.testing.assert_array_equal(found, wanted)


def test_operators_do_not_touch_what_is_beyond_k(device: Device, rng: Rng) -> None:
    """1 / 0 would be infinite beyond the last k, and conjugation is of a whole number."""
    reciprocal = {"a": Operator.RCP, "b": Operator.ABS}
    for k in (5, 19):
        made = case(
            modes(m=(20,), n=(17,), k=(k,)),
            operators=reciprocal,
            compute=ComputeType.TF32,
            first=(2, 0),
        )
        run(device, rng, made, tiles(KINDS[0])[3])
    conjugate = {"a": Operator.CONJ, "c": Operator.CONJ}
    made = case(modes(m=(20,), n=(17,), k=(19,)), "complex128", operators=conjugate, first=(2, 0))
    run(device, rng, made, tiles(KINDS[13])[2])


# --- shared memory --------------------------------------------------------------------------------

ADDRESSES = """
extern "C" __global__ void addresses(int *out) {
  using namespace contract;
  using Place = Staged<Factor<%s, Operator::IDENTITY, Along::%s, 1>, %d, %d, %d>;
  for (int row = 0; row < %d; ++row)
    for (int k = 0; k < %d; ++k) out[row * %d + k] = Place::at(row, k);
}
"""


@pytest.mark.parametrize(
    ("type_name", "size", "near", "k"),
    [
        ("float", 4, 2, 16),
        ("float", 4, 4, 16),
        ("Half", 2, 2, 32),
        ("signed char", 1, 4, 64),
        ("double", 8, 1, 16),
        ("Complex<float>", 8, 2, 16),
        ("Complex<double>", 16, 1, 8),
    ],
)
@pytest.mark.parametrize("along", ["K", "TILE"])
def test_no_bank_is_met_twice(
    device: Device, type_name: str, size: int, near: int, k: int, along: str
) -> None:
    """The words that each phase of an access reads lie in different banks."""
    rows = 128
    text = ADDRESSES % (type_name, along, rows, k, near, rows, k, k)
    call = gett_calls(*tensor_example())[0]
    source = replace(call, stub=text).source
    memory = device.allocate(rows * k * 4)
    device.load(source, ("-ftz=true",)).launch("addresses", (1,), (1,), [memory.pointer])
    at = memory.download("i4", (rows, k))
    assert sorted(at.ravel()) == list(range(0, rows * k * size, size)), "not a rearrangement"
    for width, lanes in accesses(size, near, along):
        for first in range(0, k, 4 * near):
            for phase in range(0, 32, 128 // width):
                read = [
                    at[row, first + depth] for row, depth in lanes[phase : phase + 128 // width]
                ]
                words = {(start // 4 + word) for start in read for word in range(width // 4)}
                banks = [word % 32 for word in words]
                assert len(banks) == len(set(banks)), (width, first, phase, banks)
    memory.free()


def accesses(size: int, near: int, along: str) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """The bytes of an access, and the row and the k of every lane."""
    if 4 * near * size == 16 and (size == 2 or (size == 1 and along == "K")):
        down = [(lane % 8, 0) if along == "K" else (0, lane % 8) for lane in range(32)]
        yield 16, down  # ldmatrix
    if along == "K" and size >= 4:
        yield min(16, near * size), [(lane // 4, lane % 4 * near) for lane in range(32)]
    if along == "TILE":
        for beside in (1, 2, 4, 8):
            if 4 <= beside * size <= 16 and size > 1:
                yield beside * size, [(lane // 4 * beside, lane % 4 * near) for lane in range(32)]


def tensor_example() -> tuple[Any, ...]:
    made = case(modes(m=(20,), n=(17,), k=(19,)), compute=ComputeType.TF32)
    return made.plan(), made.step(), HOPPER, in_parts(tiles(KINDS[0])[2], 19, 1)


# --- the choice -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("types", "dtype", "compute", "unit"),
    [
        (("float32", "float32"), "float32", ComputeType.F32, None),
        (("float32", "float32"), "float32", ComputeType.TF32, known.TF32),
        (("float16", "float16"), "float32", ComputeType.F16, known.F16),
        (("float16", "float16"), "float32", ComputeType.F32, known.F16),
        (("bfloat16", "bfloat16"), "float32", ComputeType.F32, known.BF16),
        (("float16", "bfloat16"), "float32", ComputeType.F32, None),
        (("float16", "float32"), "float32", ComputeType.F32, None),
        (("float16", "float32"), "float32", ComputeType.TF32, known.TF32),
        (("int8", "int8"), "int8", None, known.INT8),
        (("int8", "int16"), "int16", None, None),
        (("int8", "int8"), "int32", None, known.INT8),
        (("int8", "int8"), "int64", None, None),
        (("uint8", "uint8"), "uint8", None, known.UINT8),
        (("complex64", "complex64"), "complex64", ComputeType.TF32X3, known.TF32X3),
        (("float64", "complex128"), "complex128", ComputeType.F64, known.F64_WIDE),
    ],
)
def test_tensor_cores_serve_what_they_can_keep(
    types: tuple[str, str], dtype: str, compute: ComputeType | None, unit: Arithmetic | None
) -> None:
    found = arithmetic(types, dtype, compute, (Operator.IDENTITY,) * 2, HOPPER)
    assert found == (() if unit is None else (unit,))
    assert arithmetic(types, dtype, compute, (), architecture_of(60)) == ()


def test_operators_with_more_bits_are_not_rounded_to_16() -> None:
    types = ("float16", "float16")
    for operator, there in ((Operator.NEG, True), (Operator.EXP, False)):
        found = arithmetic(types, "float32", ComputeType.F32, (operator, Operator.IDENTITY), HOPPER)
        assert bool(found) is there


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda x: f"sm_{x.capability}")
def test_shares_fit_the_architecture(architecture: Architecture) -> None:
    """Large products by tensor cores where there are any; shared memory is never too small."""
    sides, rates = modes(m=(8192,), n=(8192,), k=(8192,)), architecture.rates
    for unit, size, dtype in ((known.TF32, 4, "float32"), (known.F64, 8, "float64")):
        made = case(sides, dtype, "abd")
        work = replace(workload(made, architecture), arithmetic=(unit,))
        chosen = share(work, architecture)
        tensor, core = (
            (rates.tf32, rates.single) if unit is known.TF32 else (rates.f64, rates.double)
        )
        assert tensor == core or isinstance(chosen.tile, TensorTile) is (tensor > core)
        for tile in tensor_tiles(unit, size, dtype):
            fits = architecture.shared // (tile.storage(size, size) + 1024)
            assert resident(work, tile, architecture) <= min(tile.resident, fits)


def test_the_last_wave_is_shared() -> None:
    """One tile more than the machine has room for would double the time."""
    sides = modes(m=(12 * 256,), n=(11 * 128 + 1,), k=(8192,))
    work = workload(case(sides, tensors="abd", compute=ComputeType.TF32), HOPPER)
    chosen = share(work, HOPPER)
    alone = 132 * resident(work, chosen.tile, HOPPER)
    assert chosen.tiles(work.extents) % alone == 0 or chosen.parts > 1
