"""Every family of kernels as machine code: no spills, registers for the blocks that are counted on,
shared memory within bounds, wide loads and stores where layouts allow them.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import pytest

import contract as ct
from bench.sass import (
    instructions,
    listed,
    loops,
    main_loop,
    narrow_stores,
    wide_stores,
)
from contract.descriptors.compute_types import item_size
from contract.device.kernels.elementwise import elementwise_calls
from contract.device.kernels.gett import gett_calls
from contract.device.kernels.hopper import hopper_calls
from contract.device.kernels.reduce import reduce_calls
from contract.device.kernels.slices import slice_calls
from contract.machines.gpu import Architecture, architecture_of
from contract.machines.gpu_kernels import (
    CORE_TILES,
    HOPPER_TILES,
    SLICE_TILES,
    CoreTile,
    HopperTile,
    TensorTile,
    core_tiles,
)
from contract.machines.gpu_tiles import HopperShare, Share
from contract.machines.tensor_cores import BF16X6, F64, F64_WIDE, TF32
from contract.planner.device.launch import KernelCall
from contract.planner.planner import make_plan

from . import nvrtc
from .device import Device
from .products import case, modes
from .tensor_cases import KINDS, WITH_ALL_TILES, Kind, laid_out, tiles

REGISTERS = 65536  # of a multiprocessor
STATIC_SHARED = 48 << 10  # bytes a block may have everywhere
RESERVED_SHARED = 1 << 10  # bytes that the system takes of each block's
OLDEST = 60  # compute capability
FLAGS = ("-ftz=true",)
Build = Callable[[Architecture], KernelCall]


@dataclass(frozen=True)
class Family:
    """A kernel to compile: blocks that must fit a multiprocessor, PTX that it must have on 9.0."""

    name: str
    build: Build
    resident: int
    wide: tuple[str, ...] = ()


def tensor(dtype: str, *extents: int) -> ct.TensorDescriptor:
    return ct.TensorDescriptor(extents, None, dtype, 16)


def permutation(
    text: str, extents: dict[str, int], source: str, target: str = "", operator: str = "identity"
) -> Build:
    modes, wanted = text.split("->")

    def build(architecture: Architecture) -> KernelCall:
        a = ct.Operand(tensor(source, *(extents[m] for m in modes)), modes, ct.Operator(operator))
        b = ct.Operand(tensor(target or source, *(extents[m] for m in wanted)), wanted)
        plan = make_plan(ct.ElementwiseOperation((a,), b))
        (call,) = elementwise_calls(plan, plan.steps[0], architecture)
        return call

    return build


def trinary(architecture: Architecture) -> KernelCall:
    a = ct.Operand(tensor("float32", 512, 256), "ab")
    b = ct.Operand(tensor("float32", 256, 512), "ba")
    both = ct.BinaryOperator.MUL, ct.BinaryOperator.ADD
    plan = make_plan(ct.ElementwiseOperation((a, b, a), a, both))
    (call,) = elementwise_calls(plan, plan.steps[0], architecture)
    return call


def reduction(text: str, extents: dict[str, int], dtype: str, operator: str = "add") -> Build:
    modes, wanted = text.split("->")

    def build(architecture: Architecture) -> KernelCall:
        a = ct.Operand(tensor(dtype, *(extents[m] for m in modes)), modes)
        d = ct.Operand(tensor(dtype, *(extents[m] for m in wanted)), wanted)
        plan = make_plan(ct.Reduction((a,), d, None, ct.BinaryOperator(operator)))
        return reduce_calls(plan, plan.steps[0], architecture)[0]

    return build


def product(dtype: str, tile: CoreTile) -> Build:
    def build(architecture: Architecture) -> KernelCall:
        a = ct.Operand(tensor(dtype, 64, 32, 64), "abk")
        b = ct.Operand(tensor(dtype, 64, 128), "kc")
        d = ct.Operand(tensor(dtype, 64, 128, 32), "acb")
        preference = ct.PlanPreference(algo=ct.Algo.GETT)
        plan = make_plan(ct.Contraction((a, b), d), preference, architecture_of(90))
        (call,) = gett_calls(plan, plan.steps[0], architecture, Share(tile, 1, 64))
        return call

    return build


def products(dtype: str, size: int, count: int, table: int = 80) -> list[Family]:
    return [
        Family(
            f"product {dtype} {tile.m}x{tile.n}x{tile.k} {tile.reason}",
            product(dtype, tile),
            tile.resident,
        )
        for tile in core_tiles(table, size, item_size(dtype))[:count]
    ]


def tensor_product(
    kind: Kind, tile: TensorTile, direction: tuple[str, str], tensors: str = "abdc"
) -> Build:
    _, types, dtype, compute = kind

    def build(architecture: Architecture) -> KernelCall:
        loops = modes(l=(1,), m=(256,), n=(256,), k=(256,))
        made = laid_out(case(loops, dtype, types=types, compute=compute), direction)
        made = replace(made, layouts={name: made.layouts[name] for name in tensors})
        (call,) = gett_calls(made.plan(), made.step(), architecture, Share(tile, 1, 256))
        return call

    return build


def tensor_products(kind: Kind, rows: slice, directions: Sequence[tuple[str, str]]) -> list[Family]:
    """Tiles of the tensor cores; a step of either factor is copied 16 bytes at once."""
    found = []
    for tile in tiles(kind)[rows]:
        for way in directions:
            name = f"product {kind[2]} {kind[0].unit} {tile.l}x{tile.m}x{tile.n} {''.join(way)}"
            wide = ("cp.async.cg.shared.global.L2::128B", "mma.sync")
            found.append(Family(name, tensor_product(kind, tile, way), tile.resident, wide))
    return found


def slices(dtype: str, tile: TensorTile, entry: int) -> Build:
    def build(architecture: Architecture) -> KernelCall:
        a = ct.Operand(tensor(dtype, 64, 32, 64), "abk")
        b = ct.Operand(tensor(dtype, 64, 128), "kc")
        d = ct.Operand(tensor(dtype, 64, 128, 32), "acb")
        operation = ct.Contraction((a, b), d, compute=ct.ComputeType.INT8X8)
        plan = make_plan(operation, ct.PlanPreference(algo=ct.Algo.GETT), architecture_of(90))
        return slice_calls(plan, plan.steps[0], architecture, tile)[entry]

    return build


MMA = ("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", "cp.async.cg")
SLICES = [
    *(
        Family(f"slices {dtype} {tile.m}x{tile.n}", slices(dtype, tile, 3), tile.resident, MMA)
        for dtype, tiles in SLICE_TILES.items()
        for tile in tiles
    ),
    *(
        Family(f"{name} of {dtype}", slices(dtype, tiles[0], entry), 2)
        for dtype, tiles in SLICE_TILES.items()
        for entry, name in ((1, "needs"), (2, "digits"))
    ),
]
LARGE = {"a": 512, "b": 256, "c": 32}
BOTH = ("ld.global.v4", "st.global.v4")
MOVERS = [
    Family("turn float32", permutation("ab->ba", LARGE, "float32"), 5, BOTH),
    Family("turn float16", permutation("ab->ba", LARGE, "float16"), 5, BOTH),
    Family("turn float64", permutation("ab->ba", LARGE, "float64"), 5, ("ld.global.v2.f64",)),
    Family("turn complex128", permutation("ab->ba", LARGE, "complex128"), 4, ("v2.f64",)),
    Family("turn int8", permutation("abc->cba", LARGE, "int8"), 5, ("ld.global.v4",)),
    Family("copy float32", permutation("abc->acb", LARGE, "float32"), 5, BOTH),
    Family("convert float16", permutation("abc->acb", LARGE, "float16", "float32"), 5, BOTH[1:]),
    Family("tanh float64", permutation("ab->ba", LARGE, "float64", operator="tanh"), 3),
    Family("trinary float32", trinary, 4, BOTH),
    Family("sum rows float32", reduction("ab->b", LARGE, "float32"), 4, BOTH[:1]),
    Family("sum columns float32", reduction("ab->a", LARGE, "float32"), 4, BOTH[:1]),
    Family("sum all float64", reduction("abc->", LARGE, "float64"), 4, ("ld.global.v2.f64",)),
    Family("sum float16", reduction("abc->b", LARGE, "float16"), 4, BOTH[:1]),
    Family("max int32", reduction("abc->c", LARGE, "int32", "max"), 4, BOTH[:1]),
    Family("product complex128", reduction("abc->b", LARGE, "complex128", "mul"), 3),
]
PRODUCTS = [
    *products("float32", 4, 15),
    *products("float64", 8, 15),
    *products("complex64", 8, 2),
    *products("complex128", 16, 2),
    *products("float16", 4, 2),
    *products("int8", 4, 1),
]
# The largest tile of every arithmetic, the second of one for each table; both ways and elsewhere
# in turn.
TENSOR = [
    (90, family)
    for kind in KINDS
    if kind[0] is not F64
    for family in tensor_products(kind, slice(0, 1 + (kind in WITH_ALL_TILES)), [("k", "k")])
]
TENSOR += [
    (capability, family)
    for capability, kind in zip(
        cycle((80, 100)), [kind for kind in KINDS if kind[0] in (TF32, F64, BF16X6)], strict=False
    )
    for family in tensor_products(kind, slice(0, 1), [("m", "n")])
]
ALL_TENSOR = [
    (capability, family)
    for capability in (80, 90)
    for kind in KINDS
    if kind[0] is not (F64 if capability == 90 else F64_WIDE)
    for family in tensor_products(kind, slice(None), [("k", "k"), ("m", "n")])
]
ALL_TENSOR += [(capability, family) for capability in (80, 90, 120) for family in SLICES]
EVERYWHERE = [*MOVERS[:4], *MOVERS[9:11], *PRODUCTS[:2], *PRODUCTS[12:13]]
CASES = [
    *((90, family) for family in (*MOVERS, *PRODUCTS)),
    *zip(cycle((80, 100)), EVERYWHERE, strict=False),
    *((OLDEST, family) for family in (MOVERS[0], MOVERS[9])),
    *((OLDEST, family) for family in products("float32", 4, 6, OLDEST)),
    *TENSOR,
    *((capability, SLICES[0]) for capability in (80, 90, 120)),
    *((90, family) for family in SLICES[-3:]),
]


@pytest.mark.parametrize(
    ("capability", "family"), CASES, ids=[f"sm_{sm} {family.name}" for sm, family in CASES]
)
def test_machine_code(device: Device, capability: int, family: Family) -> None:
    if capability == OLDEST and nvrtc.version() >= (13, 0):
        pytest.skip("CUDA 13 compiles for 7.5 and newer")
    check_machine_code(capability, family)


@pytest.mark.exhaustive
def test_machine_code_of_every_tile(device: Device) -> None:
    """Every tile of the tensor cores, both ways."""
    wrong = []
    for capability, family in ALL_TENSOR:
        try:
            check_machine_code(capability, family)
        except AssertionError as error:
            wrong.append(f"sm_{capability} {family.name}: {error}")
    assert not wrong, "\n".join(wrong)


def check_machine_code(capability: int, family: Family) -> None:
    architecture = architecture_of(capability)
    call = family.build(architecture)
    compiled = nvrtc.compile_cubin(call.source, f"sm_{capability}", FLAGS)
    report = compiled.log
    stack, stores, loads = map(
        int, re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+)", report).groups()
    )
    assert (stores, loads) == (0, 0), report
    assert stack == 0 or "tanh" in family.name, report
    registers = int(re.search(r"Used (\d+) registers", report)[1])
    threads = call.block[0] * call.block[1]
    assert registers * threads * family.resident <= REGISTERS, f"{registers} registers"
    shared = re.search(r"(\d+) bytes smem", report)
    static = int(shared[1]) if shared else 0
    assert static <= STATIC_SHARED
    assert static + call.shared <= architecture.shared - RESERVED_SHARED
    assert len(call.arguments.data) <= 4096
    assert call.stub.strip().count("\n") < 15
    for instruction in family.wide if capability == 90 else ():
        assert instruction in compiled.text, f"no {instruction}"


UNITS = {  # what each arithmetic is to become on 9.0, and how its operands are to arrive
    "F16": {"HMMA", "LDGSTS", "LDSM"},
    "Tf32<1>": {"HMMA", "LDGSTS"},
    "Bf16<3>": {"HMMA", "LDGSTS"},
    "F64<8>": {"DMMA", "LDGSTS"},
    "Int8<signed char>": {"IMMA", "LDGSTS"},
}


@pytest.mark.usefixtures("reads_machine_code")
@pytest.mark.parametrize("unit", UNITS)
def test_units_are_in_the_machine_code(device: Device, unit: str) -> None:
    kind = next(each for each in KINDS if each[0].unit == unit)
    call = tensor_product(kind, tiles(kind)[2], ("m", "n"))(architecture_of(90))
    assert UNITS[unit] <= instructions(nvrtc.compile_cubin(call.source, "sm_90", FLAGS).code)


@pytest.mark.usefixtures("reads_machine_code")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    ("first", "least"), [((0, 1, 2), 0.86), ((3, 2, 1), 0.83)], ids=["along the tile", "along k"]
)
def test_multiply_adds_fill_the_main_loop(
    device: Device, capability: int, first: tuple[int, ...], least: float
) -> None:
    """The next table of k, which one warp makes, is not counted."""
    tile = CORE_TILES[4][0]
    made = case(modes(l=(1,), m=(1024,), n=(1024,), k=(1024,)), first=first)
    (call,) = gett_calls(
        made.plan(), made.step(), architecture_of(capability), Share(tile, 1, 1024)
    )
    code = nvrtc.compile_cubin(call.source, f"sm_{capability}", FLAGS).code
    loop = main_loop(code, "FFMA", seldom="STS")
    assert loop.count("FFMA") == tile.thread_m * tile.thread_n * tile.k
    assert loop.count("LDGSTS") > 0
    assert loop.count("FFMA") / len(loop) >= least


@dataclass(frozen=True)
class Most:
    """Instructions of the largest tile: of a step for 64 of the tensor cores', and to store D.

    ``stores`` are those for 16 bytes of a tile that is inside of D.
    """

    unit: str
    steps: int
    stores: float

    def __str__(self) -> str:
        return self.unit


# As counted in the code of NVRTC 13.0, and some 3 % more for others.
MOST = (
    Most("F16", 255, 12),
    Most("Bf16<1>", 255, 12),
    Most("Tf32<1>", 312, 6),
    Most("Tf32<2>", 250, 6),
    Most("Bf16<3>", 336, 6),
    Most("F64<8>", 420, 3),
)
# Along which A and B lie side by side.
MIXED = [pytest.param(each, marks=pytest.mark.exhaustive) for each in ("mk", "kn")]
DIRECTIONS = ["mn", "kk", *MIXED]
PRODUCTS_OF = {"F64<8>": "DMMA"}  # the instruction of a unit; of the others HMMA


def largest_tile(unit: str, direction: str) -> tuple[TensorTile, nvrtc.Compiled]:
    """The product by the largest tile, without C; its factors have the type that the unit takes."""
    kind = [each for each in KINDS if each[0].unit == unit and each[2].startswith("float")][-1]
    way = direction[0], direction[1]
    tile = tiles(kind)[0]
    call = tensor_product(kind, tile, way, "abd")(architecture_of(90))
    return tile, nvrtc.compile_cubin(call.source, "sm_90", FLAGS)


@pytest.mark.usefixtures("reads_machine_code")
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("most", MOST, ids=str)
def test_largest_tiles_take_few_instructions(device: Device, most: Most, direction: str) -> None:
    """Those that make offsets of k's are counted, too, though most steps jump over them."""
    tile, compiled = largest_tile(most.unit, direction)
    code = compiled.code
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in compiled.log
    product = PRODUCTS_OF.get(most.unit, "HMMA")
    step = next(loop for loop in loops(code) if product in loop)
    taken = 64 * len(step) / step.count(product)
    assert taken <= most.steps, f"{taken} instructions"
    count, written = wide_stores(code)
    assert count / (written / 16) <= most.stores, f"{count} instructions for {written} bytes"
    parts = 0 if product == "DMMA" else tile.m * tile.n // tile.threads  # sums of 4 bytes
    assert narrow_stores(code) == parts


@pytest.mark.parametrize("direction", [("m", "n"), ("m", "k"), ("k", "n"), ("k", "k")])
def test_two_blocks_of_the_large_tile_of_float64(
    device: Device, direction: tuple[str, str]
) -> None:
    kind = next(each for each in KINDS if each[0] is F64_WIDE and each[2] == "float64")
    tile = tiles(kind)[0]
    assert (tile.m, tile.n, tile.resident) == (128, 64, 2)
    check_machine_code(90, Family("float64", tensor_product(kind, tile, direction), 2))


@pytest.mark.usefixtures("reads_machine_code")
def test_wgmma_and_tma_are_in_the_machine_code(device: Device) -> None:
    call = hopper_product(HOPPER_TILES[-1], "float16", "km,kn")
    found = instructions(nvrtc.compile_cubin(call.source, "sm_90a", FLAGS).code)
    assert {"HGMMA", "UTMALDG"} <= found


# --- Hopper -------------------------------------------------------------------------------------

HOPPER_SHARED = 227 << 10  # bytes a block may ask for
LEFT_FOR_EACH = 1 << 10  # bytes of shared memory that a resident block takes beside its own
SHARED_OUT = 168  # registers that setmaxnreg shares out anew: 3 x 168 = 40 + 2 x 232


def hopper_product(tile: HopperTile, dtype: str, modes: str, parts: int = 1) -> KernelCall:
    """The product of A and B whose modes are given, "mk,kn"."""
    a, b = (ct.Operand(tensor(dtype, 4096, 4096), each) for each in modes.split(","))
    compute = ct.ComputeType.TF32 if dtype == "float32" else None
    operation = ct.Contraction((a, b), ct.Operand(tensor(dtype, 4096, 4096), "mn"), compute=compute)
    plan = make_plan(operation, ct.PlanPreference(algo=ct.Algo.GETT), architecture_of(90))
    call, *_ = hopper_calls(plan, plan.steps[0], architecture_of(90), HopperShare(tile, parts))
    return call


@pytest.mark.parametrize("tile", HOPPER_TILES, ids=lambda tile: tile.reason)
@pytest.mark.parametrize(
    ("dtype", "modes"), [("float16", "km,kn"), ("bfloat16", "mk,nk"), ("float32", "km,kn")]
)
@pytest.mark.parametrize("parts", [1, 4])
def test_hopper_machine_code(
    device: Device, tile: HopperTile, dtype: str, modes: str, parts: int
) -> None:
    """No spills, and products that ptxas does not put one after the other."""
    call = hopper_product(tile, dtype, modes, parts)
    compiled = nvrtc.compile_cubin(call.source, "sm_90a", FLAGS)
    report = compiled.log
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in report
    assert "serialized" not in report, report
    registers = int(re.search(r"Used (\d+) registers", report)[1])
    if tile.groups == 2:
        assert registers == SHARED_OUT
    assert registers * tile.threads * tile.resident <= REGISTERS
    shared = call.shared + int(re.search(r"(\d+) bytes smem", report)[1])
    assert shared <= HOPPER_SHARED
    assert (shared + LEFT_FOR_EACH) * tile.resident <= architecture_of(90).shared
    for instruction in ("wgmma.mma_async.sync.aligned.m64n", "cp.async.bulk.tensor.5d"):
        assert instruction in compiled.text


# Instructions for 16 bytes of D: 8 numbers of 16 bits are scaled, 4 pairs packed, 4 sent to another
# lane and 12 chosen; 4 of float32 are scaled, 4 sent and 8 chosen.
FOR_TURNED = {"float16": 44, "float32": 28}


@pytest.mark.usefixtures("reads_machine_code")
@pytest.mark.parametrize("dtype", FOR_TURNED)
@pytest.mark.parametrize("tile", HOPPER_TILES, ids=lambda tile: tile.reason)
def test_hopper_writes_16_bytes_at_once(device: Device, tile: HopperTile, dtype: str) -> None:
    """No narrower store, and few instructions for each."""
    call = hopper_product(tile, dtype, "km,kn")
    found = listed(nvrtc.compile_cubin(call.source, "sm_90a", FLAGS).code)
    stores = [at for at, each in enumerate(found) if each.opcode == "STG"]
    assert {found[at][1].split()[0] for at in stores} == {".E.128"}
    size = 4 if dtype == "float32" else 2
    assert len(stores) == tile.m * tile.n * size // 16 // tile.multipliers
    assert (stores[-1] - stores[0]) / (len(stores) - 1) <= FOR_TURNED[dtype]


def test_sources_are_the_same_for_other_extents() -> None:
    """Extents and strides travel in the arguments: one build serves all extents of a kind."""
    small = permutation("ab->ba", {"a": 128, "b": 256}, "float32")(architecture_of(90))
    large = permutation("ab->ba", {"a": 640, "b": 384}, "float32")(architecture_of(90))
    assert small.source == large.source
    assert small.arguments != large.arguments
