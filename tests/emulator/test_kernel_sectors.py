"""How many sectors of memory the accesses of a warp touch, by the kernels' own numbering of rows.

A warp reads A and stores D in as many sectors of 32 bytes as lie under its lanes. What it stores in
part of a sector takes longer than sectors that it stores whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

import contract as ct
from bench.expressions import ALIGNMENT, packed_operands
from contract.descriptors.compute_types import ComputeType
from contract.device.kernels.gett import gett_calls
from contract.machines.gett_model import share
from contract.machines.gpu import architecture_of
from contract.machines.gpu_kernels import CoreTile, TensorTile, Tile
from contract.machines.gpu_tiles import Share, resident, tiles
from contract.plan.steps import Gett, Plan
from contract.planner.device.loops import Dimension
from contract.planner.device.problem import A, B, D, Problem, held_by, problem_of
from contract.planner.planner import make_plan

from .device import Device

HOPPER = architecture_of(90)
SECTOR = 32
TURNED = {"e": 48, "f": 36, "b": 36, "a": 48, "d": 36, "c": 24}
RAGGED = {"e": 480, "f": 20, "g": 24, "a": 24, "d": 20, "b": 20, "c": 20}

ACCESSES = """
template <class> struct Parts;
template <class Target, int RANK, class MAIN, class FC, int WIDTH, int SHARED>
struct Parts<Gett<Target, RANK, MAIN, FC, WIDTH, SHARED>> {
  using Main = MAIN;
  using Run = Vector<typename MAIN::Sum, WIDTH>;
  static constexpr int width = WIDTH;
};
using Main = Parts<Config>::Main;
using Run = Parts<Config>::Run;

extern "C" __global__ void stores(int *out) {
  Main main;
  out += 3 * threadIdx.x;
  const auto itself = [](int index) { return index; };
  main.each_run<Parts<Config>::width>(itself, itself, [&](int row, int column, const Run &) {
    out[0] = Parts<Config>::width, out[1] = row, out[2] = column;
    out += 3 * Main::Tile::THREADS;
  });
}

extern "C" __global__ void loads(int *out) {
  const Main::%s::Access access;
  out += 3 * threadIdx.x;
  for (int j = 0; j < access.ITEMS_K; ++j)
    for (int i = 0; i < access.ITEMS_ROW; ++i, out += 3 * Main::Tile::THREADS)
      out[0] = access.UNIT_ROW * access.takes_part, out[1] = access.row(i), out[2] = access.k(j);
}
"""


@dataclass(frozen=True)
class Product:
    """A contraction of packed column-major tensors, planned as one Gett."""

    text: str
    extents: dict[str, int]
    dtype: str
    compute: ComputeType | None = None

    def plan(self) -> tuple[Plan, Gett, Problem]:
        operands = packed_operands(self.text, self.extents, self.dtype, ALIGNMENT)
        operation = ct.Contraction(*operands, compute=self.compute)
        plan = make_plan(operation, ct.PlanPreference(algo=ct.Algo.GETT), HOPPER)
        (step,) = plan.steps
        assert isinstance(step, Gett)
        return plan, step, problem_of(step, held_by(plan, step))


def accesses(device: Device, made: Product, tile: Tile, entry: str) -> Iterator[np.ndarray]:
    """Of each access of a warp: elements (0: none), the row, and the column or k, by lanes."""
    plan, step, problem = made.plan()
    call = gett_calls(plan, step, HOPPER, Share(tile, 1, problem.extents.k))[0]
    loader = "LoadA" if isinstance(tile, CoreTile) else "CopyA"
    source = call.source + ACCESSES % loader
    most = tile.l * tile.m * max(tile.n, tile.k) // tile.threads + 1
    memory = device.allocate(4 * 3 * tile.threads * most)
    memory.upload(np.zeros(3 * tile.threads * most, "i4"))
    device.load(source, ("-ftz=true",)).launch(entry, (1,), (tile.threads,), [memory.pointer])
    found = memory.download("i4", (most, tile.threads // 32, 32, 3))
    memory.free()
    return (warp for warp in found.reshape(-1, 32, 3) if warp[:, 0].any())


def offset(loops: Sequence[Dimension], index: int, tensor: int) -> int:
    """Where an index of flattened loops is."""
    found = 0
    for loop in loops:
        index, own = divmod(index, loop.extent)
        found += own * loop.strides[tensor]
    return found


def touched(
    warps: Iterator[np.ndarray], problem: Problem, tensor: int, inner: Sequence[Dimension]
) -> tuple[float, int]:
    """Bytes of sectors for each byte of all accesses, and how many sectors are used in part."""
    size = (problem.d if tensor == D else problem.a).size
    used = sectors = partly = 0
    for warp in warps:
        counts: dict[int, int] = {}
        for width, row, other in warp[warp[:, 0] > 0].tolist():
            first = offset(problem.m, row, tensor) + offset(inner, other, tensor)
            for at in range(first * size, (first + width) * size, size):
                counts[at // SECTOR] = counts.get(at // SECTOR, 0) + size
        used += sum(counts.values())
        sectors += len(counts)
        partly += sum(count < SECTOR for count in counts.values())
    return sectors * SECTOR / used, partly


def tile_of(made: Product, kind: type[Tile], m: int, n: int) -> Tile:
    work = made.plan()[2].workload(HOPPER)
    return next(x for x in tiles(work, HOPPER) if isinstance(x, kind) and (x.m, x.n) == (m, n))


TF32 = ComputeType.TF32
# Both tensors lie side by side along another mode; the columns of D do not follow its rows. The
# last number: the bytes that a warp stores in sectors it does not fill, for each byte of D.
BOXES = [
    (Product("efbad,cf->abcde", TURNED, "float32"), CoreTile, 256, 24, 1),
    (Product("efbad,cf->abcde", TURNED, "float32"), CoreTile, 256, 32, 2),
    (Product("efbad,cf->abcde", TURNED, "float32"), CoreTile, 128, 128, 2),
    (Product("efbad,cf->abcde", TURNED, "float32"), CoreTile, 64, 64, 2),
    (Product("efbad,cf->abcde", TURNED, "float64"), CoreTile, 256, 32, 2),
    (Product("efbad,cf->abcde", TURNED, "float32", TF32), TensorTile, 128, 32, 1),
    (Product("efbad,cf->abcde", TURNED, "float32", TF32), TensorTile, 256, 128, 1),
    (Product("efbad,cf->abcde", TURNED, "bfloat16"), TensorTile, 256, 32, 1),
    (Product("efbad,cf->abcde", TURNED, "bfloat16"), TensorTile, 256, 128, 1),
    (Product("efbad,cf->abcde", TURNED, "float64"), TensorTile, 128, 64, 1),
    (Product("efga,gdbc->abcdef", RAGGED, "float32"), CoreTile, 128, 128, 1),
    (Product("efga,gdbc->abcdef", RAGGED, "float64"), TensorTile, 128, 64, 1),
]


@pytest.mark.parametrize(
    ("made", "kind", "m", "n", "sectors"),
    BOXES,
    ids=lambda x: f"{x.text} {x.dtype}" if isinstance(x, Product) else getattr(x, "__name__", x),
)
def test_what_boxes_store_and_load_is_counted(
    device: Device, made: Product, kind: type[Tile], m: int, n: int, sectors: int
) -> None:
    """Sectors of D that a warp stores, and of A that it loads at once, 128 bytes in wide accesses.

    Where A is larger than D it is read once.
    """
    problem = made.plan()[2]
    tile = tile_of(made, kind, m, n)
    work = problem.workload(HOPPER)
    stored, partly = touched(accesses(device, made, tile, "stores"), problem, D, problem.n)
    assert stored == work.stores(tile).sectors == sectors
    assert (partly > 0) == (sectors > 1)
    loads = list(accesses(device, made, tile, "loads"))
    width = 16 // problem.a.size
    assert {each for warp in loads for each in warp[:, 0]} <= {0, width}
    at_once = (part for warp in loads for part in np.split(warp, 4))
    loaded, _ = touched(at_once, problem, A, problem.k)
    assert loaded <= (1 if made.extents is TURNED else 2)
    assert loaded == pytest.approx(work.a.moved(1, tile.m) / problem.a.size, rel=0.15)


def test_half_sectors_are_counted(device: Device) -> None:
    """Of many k, eight rows of 16 bits are turned at once: four of D lie beside each other."""
    made = Product("efbad,cf->abcde", TURNED | {"f": 1024}, "bfloat16")
    tile = tile_of(made, TensorTile, 128, 128)
    problem = made.plan()[2]
    stored, _ = touched(accesses(device, made, tile, "stores"), problem, D, problem.n)
    assert stored == problem.workload(HOPPER).stores(tile).sectors == 4


@pytest.mark.parametrize(
    ("text", "dtype"),
    [("gdac,efgb->abcdef", "float32"), ("gdac,efgb->abcdef", "bfloat16")],
)
def test_columns_go_on_where_rows_end_inside_a_line(text: str, dtype: str) -> None:
    """The lines that a tile of 128 x 128 writes of D: most of them whole."""
    problem = Product(text, RAGGED, dtype).plan()[2]
    written: dict[int, int] = {}
    for column in range(128):
        for row in range(128):
            at = offset(problem.m, row, D) + offset(problem.n, column, D)
            line = at * problem.d.size // 128
            written[line] = written.get(line, 0) + problem.d.size
    assert sum(count == 128 for count in written.values()) > 0.7 * len(written)


def test_the_larger_factor_is_read_along_its_own_k() -> None:
    """A has 5 rows and B 49 columns, each with another k nearest: B's lies first."""
    extents = {"d": 4, "f": 42, "a": 7, "b": 5, "c": 95, "e": 49}
    problem = Product("dfabc,fdeac->be", extents, "float64").plan()[2]
    assert problem.k[0].strides[B] == 1
    assert problem.workload(HOPPER).b.width == 2
    alike = Product("dfabc,fdeac->be", extents | {"b": 40}, "float64").plan()[2]
    assert [each.extent for each in alike.k[:2]] == [2, 6]


def test_every_thread_copies_for_four_rows(device: Device) -> None:
    made = Product("ka,kb->ab", {"k": 4096, "a": 4, "b": 4}, "float32")
    tile = tile_of(made, CoreTile, 4, 4)
    warps = list(accesses(device, made, tile, "loads"))
    assert all((warp[:, 0] > 0).all() for warp in warps)
    assert sum(warp.shape[0] for warp in warps) >= tile.threads


def test_parts_fill_the_machine_once() -> None:
    """25 tiles of D and a long k: as many parts as run at once, not the next power of 2."""
    made = Product("acd,dbc->ab", {"a": 312, "c": 296, "d": 312, "b": 296}, "float64")
    work = made.plan()[2].workload(HOPPER)
    chosen = share(work, HOPPER)
    at_once = HOPPER.multiprocessors * resident(work, chosen.tile, HOPPER)
    assert 0.9 * at_once < chosen.items(work.extents) <= at_once


def test_24_columns_have_a_tile() -> None:
    made = Product("bda,dc->abc", {"a": 312, "b": 312, "c": 24, "d": 312}, "float32")
    assert share(made.plan()[2].workload(HOPPER), HOPPER).tile.n == 24
