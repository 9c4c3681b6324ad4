"""What is counted of kernels without running them: instructions in phases, sectors, wavefronts."""

import json
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import contract as ct
from bench import __main__ as command
from bench.clocks import Machine, launches, unit_of
from bench.counted import Case, as_json, lines_of
from bench.phases import class_of, path, phases
from bench.sass import Code, Instruction, parsed
from bench.sectors import LINE, SECTOR, conflicts, lanes_along, touched
from bench.work import Work
from contract.device.kernels.elementwise import Tiling, elementwise_calls, tiling
from contract.device.kernels.gett import gett_calls
from contract.machines.gpu import architecture_of
from contract.machines.gpu_kernels import CoreTile, TensorTile
from contract.machines.gpu_tiles import Share, tiles
from contract.plan.steps import Gett, Plan
from contract.planner.device.problem import held_by, problem_of
from contract.planner.planner import make_plan

from . import nvrtc
from .device import Device

HOPPER = architecture_of(90)


pytestmark = pytest.mark.usefixtures("reads_machine_code")


# --- instructions -----------------------------------------------------------------------------


def code(*lines: str) -> Code:
    """Opcodes with operands; "@" marks what a predicate guards, "x:" a label."""
    found: list[Instruction] = []
    labels = {}
    for line in lines:
        if line.endswith(":"):
            labels[f".L_x_{line[:-1]}"] = len(found)
            continue
        opcode, _, after = line.removeprefix("@").partition(" ")
        target = f" `(.L_x_{after})" if opcode == "BRA" else f" {after}"
        found.append(Instruction(opcode, target, line.startswith("@")))
    return Code(found, labels)


BRANCHING = code("MOV", "@BRA 1", "FADD", "FADD", "BRA 2", "1:", "LDS", "2:", "STG", "EXIT")


def test_paths_are_the_longest_and_the_shortest() -> None:
    assert path(BRANCHING, 0, 6, max) == [0, 1, 2, 3, 4]
    assert path(BRANCHING, 0, 6, min) == [0, 1, 5]


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("HMMA", "tensor"),
        ("FFMA", "float"),
        ("IMAD", "multiply"),
        ("IADD3", "integer"),
        ("LDGSTS", "memory"),
        ("LDSM", "shared"),
        ("LDGDEPBAR", "control"),
        ("ULDC", "constant"),
        ("UIADD3", "uniform"),
        ("F2FP", "convert"),
        ("MUFU", "special"),
        ("DFMA", "double"),
    ],
)
def test_classes(opcode: str, kind: str) -> None:
    assert class_of(opcode) == kind


def large(dtype: str, kind: type) -> tuple[Plan, Gett, CoreTile | TensorTile]:
    """A matrix product, and its first tile of a kind."""
    work = Work("", "mk,kn->mn", dict.fromkeys("mkn", 2048), dtype)
    plan = make_plan(work.operation, ct.PlanPreference(algo=ct.Algo.GETT), HOPPER.without_wgmma())
    (step,) = plan.steps
    assert isinstance(step, Gett)
    asked = problem_of(step, held_by(plan, step)).workload(HOPPER)
    return plan, step, next(each for each in tiles(asked, HOPPER) if isinstance(each, kind))


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("float32", CoreTile), ("bfloat16", TensorTile), ("float64", TensorTile)],
)
def test_a_step_has_the_products_of_its_tile(dtype: str, kind: type) -> None:
    plan, step, tile = large(dtype, kind)
    problem = problem_of(step, held_by(plan, step))
    (call,) = gett_calls(plan, step, HOPPER, Share(tile, 1, 2048))
    lines = parsed(nvrtc.compile_cubin(call.source, "sm_90", ("-ftz=true",)).code)
    unit, each = unit_of(problem, tile)
    stored = tile.m * tile.n * problem.d.size // tile.threads
    found = phases(lines, unit, each, stored)
    name = "tensor" if kind is TensorTile else "float"
    assert each <= found.step[name] < 1.1 * each
    assert found.step["memory"] > 0 < found.step["shared"]
    assert found.stores["memory"] == pytest.approx(stored / 16, rel=1)
    assert 100 < sum(found.before.values()) < 2000
    assert not found.before["tensor"]
    assert not found.after["tensor"]


def test_a_product_is_bound_by_what_it_needs_most() -> None:
    machine = Machine(HOPPER, HOPPER.streamed)
    square = Work("", "mk,kn->mn", dict.fromkeys("mkn", 4096), "float32")
    (line,) = lines_of(Case(square, {("GETT", reason_of(square)): 1e-3}), machine, every=True)
    assert line.longest.binding == "float + shared"
    (kept,) = json.loads(json.dumps(as_json(line)))["launches"]
    assert kept["phases"]["step"]["float"] >= 1024  # of a step of 16 by a thread of 8 x 8
    assert line.seconds > max(line.units.values()) > 0.7 * line.bound
    copy = make_plan(
        Work("", "ab->ba", {"a": 4096, "b": 4096}, "float32").operation, machine=HOPPER
    )
    (moved,) = launches(copy, machine)
    assert moved.binding == "DRAM"
    assert moved.sectors == 1


def reason_of(work: Work) -> str:
    """Of the Gett that the planner likes best."""
    plan = make_plan(work.operation, ct.PlanPreference(algo=ct.Algo.GETT), HOPPER)
    return plan.considered[0].chosen.reason


# --- sectors ----------------------------------------------------------------------------------

LANES = """
template <class> struct Parts;
template <class T, class C, class O, int TX, int TY, int U, int V, bool P, int R, BinaryOperator X,
          BinaryOperator Y, class A, class B, class D>
struct Parts<Elementwise<T, C, O, TX, TY, U, V, P, R, X, Y, A, B, D>> { using First = A; };

extern "C" __global__ void lanes(int *out) {
  using Turned = Config::Tile<Parts<Config>::First>;
  out[0] = Config::ROW, out[1] = Turned::ROW, out[2] = Turned::PITCH;
}
"""
TURNED = [
    ("ab->ba", {"a": 96, "b": 132}, "float32"),
    ("abc->cba", {"a": 20, "b": 9, "c": 36}, "float64"),
    ("abc->bca", {"a": 15, "b": 24, "c": 7}, "float16"),
    ("abc->acb", {"a": 4, "b": 33, "c": 50}, "float32"),
]


def tiled(text: str, extents: dict[str, int], dtype: str) -> tuple[Plan, Tiling]:
    plan = make_plan(Work("", text, extents, dtype).operation, machine=HOPPER)
    return plan, tiling(plan, plan.steps[0], HOPPER)


@pytest.mark.parametrize(("text", "extents", "dtype"), TURNED[:3])
def test_lanes_are_the_kernels(
    device: Device, text: str, extents: dict[str, int], dtype: str
) -> None:
    plan, made = tiled(text, extents, dtype)
    (call,) = elementwise_calls(plan, plan.steps[0], HOPPER)
    memory = device.allocate(12)
    device.load(call.source + LANES, ("-ftz=true",)).launch("lanes", (1,), (1,), [memory.pointer])
    size, width = np.dtype(dtype).itemsize, made.access[0][1]
    assert memory.download("i4", (3,)).tolist() == [
        lanes_along(made.width // made.vector, made.height, made.vector * size),
        lanes_along(made.height // width, made.width, width * size),
        made.height + max(4 // size, 1),
    ]
    memory.free()


def brute(made: Tiling, tensor: int, size: int, unit: int) -> int:
    """Sectors of every access of every tile, one element after the other."""
    along_x = tensor == 0 or made.access[tensor - 1][0] != "TILE"
    width = made.vector if along_x else made.access[tensor - 1][1]
    sides = (made.x, made.y) if along_x else (made.y, made.x)
    length, other = (made.width, made.height) if along_x else (made.height, made.width)
    row = lanes_along(length // width, other, width * size * made.unit)
    found: set[tuple[int, ...]] = set()
    places = [{}, {}]
    for at, side in enumerate(sides):
        loops = (*side.whole, side.last)
        for index in product(*(range(each.extent) for each in loops)):
            chunk, last = divmod(index[-1], side.chunk)
            inner = last
            for each, i in reversed(list(zip(side.whole, index, strict=False))):
                inner = inner * each.extent + i
            offset = sum(i * each.strides[tensor] for i, each in zip(index, loops, strict=True))
            places[at][(*index,)] = chunk, inner, offset
    for rest in product(*(range(each.extent) for each in made.rest)):
        base = sum(i * each.strides[tensor] for i, each in zip(rest, made.rest, strict=True))
        for (c1, i1, o1), (c2, i2, o2) in product(places[0].values(), places[1].values()):
            access = i1 // width // row, i2 // (32 // row)
            byte = (base + o1 + o2) * size * made.unit // made.unit
            found.add((*rest, c1, c2, *access, byte // unit))
    return len(found)


@pytest.mark.parametrize(("text", "extents", "dtype"), TURNED)
@pytest.mark.parametrize("unit", [SECTOR, LINE])
def test_sectors_are_counted_one_by_one(
    text: str, extents: dict[str, int], dtype: str, unit: int
) -> None:
    _, made = tiled(text, extents, dtype)
    size = np.dtype(dtype).itemsize
    for tensor in (0, 1):
        assert touched(made, tensor, size, unit).count == brute(made, tensor, size, unit)


def test_permutations_touch_few_sectors() -> None:
    """HPTT's 57: 1.05 of the least in the mean, 1.3 at most."""
    ratios = []
    data = Path(command.__file__).parent / "data" / "permutations.json"
    for each in json.loads(data.read_text())["cases"]:
        _, made = tiled(each["expr"], each["extents"], "float32")
        both = [touched(made, tensor, 4) for tensor in (0, 1)]
        ratios.append(sum(x.count for x in both) / sum(x.least for x in both))
    assert np.exp(np.mean(np.log(ratios))) <= 1.05
    assert max(ratios) <= 1.3


def test_conflicts_in_shared_memory() -> None:
    lanes = np.arange(32, dtype=np.int64)
    assert conflicts(lanes[None] * 4, 4).tolist() == [1]
    assert conflicts(lanes[None] * 4 * 33, 4).tolist() == [1]
    assert conflicts(lanes[None] * 4 * 32, 4).tolist() == [32]
    assert conflicts(lanes[None] * 0, 4).tolist() == [1]  # all read one word
    assert conflicts(lanes[None] * 2 * 64, 2).tolist() == [32]
    assert conflicts(lanes[None] * 8, 8).tolist() == [2]  # by halves of a warp
    assert conflicts(lanes[None] * 16, 16).tolist() == [4]


# --- the command ------------------------------------------------------------------------------


def test_a_suite_is_printed_beside_what_was_measured(tmp_path: Path, capsys) -> None:
    target = tmp_path / "counted.json"
    assert command.main(["kernels", "--cases", "reduce", "--json", str(target)]) == 0
    printed = capsys.readouterr().out
    found = json.loads(target.read_text(), parse_constant=pytest.fail)["lines"]
    assert [each["case"] for each in found] == list("01234567")
    assert "of the bound: " in printed
    for each in found:
        assert each["seconds"] > each["bound"] > 0
        assert each["launches"][0]["kernel"]["blocks"] > 1
    row = {"case": "0 ab->ba", "extents": {"a": 4096, "b": 4096}, "predictions": {}}
    numbers = {
        "dtype": "float32",
        "compute": None,
        "ceilings": {"bandwidth": 3e12},
        "rows": [row | {"seconds": {"contract": 5e-5}}],
    }
    target.write_text(json.dumps(numbers))
    assert command.main(["kernels", "--measured", str(target)]) == 0
    printed = capsys.readouterr().out
    assert "50.0 us" in printed or "50 us" in printed
    assert "counted / measured 0.9" in printed
    assert Counter(printed.split())["DRAM"] == 2
