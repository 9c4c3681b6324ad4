"""Products by tiles of our own, against sums in higher precision, for every way of packing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations, product
from math import ceil, prod
from string import ascii_lowercase
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.host.executor import HostExecutor
from contract.host.steps.tiles import TileProduct
from contract.machines.cpu import COMPILED, Cpu, Tiling
from contract.plan.steps import Gett, Kind, Plan, Tiles
from contract.planner.planner import make_plan

pytest.importorskip("numba")

Array = np.ndarray[Any, Any]
TYPES = ("float32", "float64", "complex64", "complex128")
assert COMPILED.tiling is not None
TILING: Tiling = COMPILED.tiling
# Machines where nothing but tiles is quick: with boxes so small that there are many, and whole.
WHOLE = replace(COMPILED, loop_product=0, call=1.0, tiling=replace(TILING, call=0.0))
CUT = replace(
    WHOLE,
    tiling=replace(TILING, column_bytes=144, box_bytes=1 << 12, far_bytes=1 << 13, longest=64),
)


def seeded(name: str) -> np.random.Generator:
    """A generator of numbers for the test of this name."""
    return np.random.default_rng(list(name.encode()))


@dataclass(frozen=True)
class Engine:
    """A handle whose plans are for a machine of the tests."""

    name: str
    machine: Cpu
    threads: int

    def handle(self) -> ct.Handle:
        made = ct.Handle(threads=self.threads)
        made.executor.machine = self.machine  # type: ignore[misc]
        return made


ENGINES = (Engine("cut", CUT, 1), Engine("shared", CUT, 3), Engine("whole", WHOLE, 2))


@pytest.fixture(scope="module", params=ENGINES, ids=lambda engine: engine.name)
def handle(request: pytest.FixtureRequest) -> Iterator[ct.Handle]:
    with request.param.handle() as made:
        yield made


def array(rng: np.random.Generator, extents: Sequence[int], dtype: str) -> Array:
    """Random numbers whose dimensions lie in memory in any order, some of them backwards."""
    order = rng.permutation(len(extents))
    values = rng.standard_normal([extents[at] for at in order])
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(values.shape)
    if np.dtype(dtype).kind in "iu":
        values = np.abs(values * 20)
    made = values.astype(dtype).transpose(np.argsort(order))
    steps = [slice(None, None, int(rng.choice([1, 1, 1, -1]))) for _ in extents]
    return made[(*steps, ...)]  # the Ellipsis keeps rank 0 an array


@dataclass(frozen=True)
class Drawn:
    """A random product: its text and its operands, the result's memory among them."""

    text: str
    a: Array
    b: Array
    c: Array
    out: Array


def drawn(rng: np.random.Generator, types: tuple[str, str, str]) -> Drawn:
    counts = rng.integers(0, 3), rng.integers(0, 4), rng.integers(0, 4), rng.integers(1, 4)
    letters = iter(ascii_lowercase)
    batch, m, n, k = ([next(letters) for _ in range(count)] for count in counts)
    sizes = [1, 2, 3, 4, 5, 8, 12, 13] if sum(counts) > 6 else [1, 3, 4, 8, 16, 17, 24, 33]
    extents = {x: int(rng.choice(sizes)) for x in (*batch, *m, *n, *k)}
    while prod(extents.values()) > 1 << 18:
        largest = max(extents, key=lambda x: extents[x])
        extents[largest] = ceil(extents[largest] / 2)
    terms = [rng.permutation([*batch, *group]).tolist() for group in (m + k, n + k, m + n)]
    a, b, out = (
        array(rng, [extents[x] for x in term], dtype)
        for term, dtype in zip(terms, types, strict=True)
    )
    c = array(rng, out.shape, types[2])
    text = "{},{}->{}".format(*("".join(term) for term in terms))
    return Drawn(text, a, b, c, out)


def wide(x: Array) -> Array:
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


def check(found: Array, work: Drawn, alpha: Any = 1, beta: Any = 0) -> None:
    """|found - exact| <= (k + 4) eps (|alpha| sum |a||b| + |beta c|), element by element.

    Sums of k products and some operations more, each off by eps / 2; twice that for complex ones.
    """
    exact = alpha * np.einsum(work.text, wide(work.a), wide(work.b)) + beta * wide(work.c)
    sizes = [np.abs(x).astype(np.float64) for x in (work.a, work.b, work.c)]
    bound = abs(alpha) * np.einsum(work.text, sizes[0], sizes[1]) + abs(beta) * sizes[2]
    terms, output = work.text.split("->")
    extents = dict(zip(terms.split(",")[0], work.a.shape, strict=True))
    depth = prod(n for label, n in extents.items() if label not in output)
    error = np.abs(found - exact)
    assert np.all(error <= (depth + 4) * np.finfo(found.dtype).eps * bound), work.text


def tiles_of(plan: Plan) -> Tiles | None:
    return next(
        (x.blocking for x in plan.steps if isinstance(x, Gett) and isinstance(x.blocking, Tiles)),
        None,
    )


def used_tiles(handle: ct.Handle) -> int:
    """How many of the plans that the handle keeps have tiles."""
    return sum(tiles_of(loaded.plan) is not None for _, loaded in handle.plans.items())


@pytest.mark.parametrize("dtype", TYPES)
def test_random_products(handle: ct.Handle, dtype: str) -> None:
    rng = seeded(f"tiles {dtype}")
    handle.plans.clear()
    for _ in range(25):
        work = drawn(rng, (dtype, dtype, dtype))
        found = ct.contract(work.text, work.a, work.b, out=work.out, handle=handle)
        assert found is work.out
        check(found, work)
    assert used_tiles(handle) > 20


@pytest.mark.parametrize("dtype", TYPES)
def test_scalars_and_addends(handle: ct.Handle, dtype: str) -> None:
    """D = alpha * A * B + beta * C, C in another order of memory, or D itself."""
    rng = seeded(f"scalars {dtype}")
    alpha, beta = (0.5 - 2j, 1.5j) if dtype.startswith("complex") else (-1.5, 0.25)
    for _ in range(10):
        work = drawn(rng, (dtype, dtype, dtype))
        given = {"alpha": alpha, "handle": handle}
        text, a, b = work.text, work.a, work.b
        check(ct.contract(text, a, b, out=work.out, **given), work, alpha)
        found = ct.contract(text, a, b, c=work.c, beta=beta, out=work.out, **given)
        check(found, work, alpha, beta)
        into = work.c.copy(order="K")
        check(ct.contract(text, a, b, c=into, beta=beta, out=into, **given), work, alpha, beta)


@pytest.mark.parametrize(
    "types",
    [
        ("float32", "float64", "float64"),
        ("float64", "complex128", "complex128"),
        ("complex64", "float32", "complex64"),
        ("int32", "float64", "float64"),
        ("uint8", "float32", "float32"),
    ],
    ids="-".join,
)
def test_types_are_converted_while_they_are_packed(
    handle: ct.Handle, types: tuple[str, str, str]
) -> None:
    rng = seeded(f"mixed {types}")
    for _ in range(8):
        work = drawn(rng, types)
        check(ct.contract(work.text, work.a, work.b, out=work.out, handle=handle), work)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_every_order_of_memory(handle: ct.Handle, dtype: str) -> None:
    """Two modes of each kind, every order of A: rows, steps or neither contiguous."""
    rng = seeded(f"orders {dtype}")
    extents = {"a": 20, "b": 8, "c": 12, "d": 3, "k": 8, "l": 7}
    for term in permutations("abkl"):
        text = f"{''.join(term)},kclb->abc"
        shape = [extents[x] for x in term]
        a = np.asfortranarray(array(rng, shape, dtype))
        b = np.asfortranarray(array(rng, [8, 12, 7, 8], dtype))
        c = np.zeros((20, 8, 12), dtype, order="F")
        work = Drawn(text, a, b, c, np.empty_like(c))
        check(ct.contract(text, a, b, out=work.out, handle=handle), work)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("extents", [(3, 5), (18, 2), (8, 3)])
def test_batches_that_lie_side_by_side(
    handle: ct.Handle, extents: tuple[int, int], dtype: str
) -> None:
    """Batches fastest in some of A, B and D: boxes hold several, in the order in which they lie."""
    rng = seeded(f"batches {extents} {dtype}")
    sizes = {"x": extents[0], "y": extents[1], "a": 21, "b": 5, "c": 14, "k": 9}
    for spread in product((False, True), repeat=3):
        pairs = zip(("akb", "kc", "cab"), spread, strict=True)
        terms = [f"xy{own}" if first else f"{own}yx" for own, first in pairs]
        a, b, out = (
            np.asfortranarray(array(rng, [sizes[x] for x in term], dtype)) for term in terms
        )
        text = "{},{}->{}".format(*terms)
        work = Drawn(text, a, b, array(rng, out.shape, dtype), out)
        check(ct.contract(text, a, b, out=out, handle=handle), work)
        check(ct.contract(text, a, b, c=work.c, beta=2, out=out, handle=handle), work, 1, 2)
        tiles = tiles_of(plan_of(text, work, WHOLE))
        assert tiles is not None
        together = prod(tiles.blocks[at] for at in tiles.batch)
        assert together == 1 if not any(spread) else together > 1


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_of_d_in_runs_of_any_length(handle: ct.Handle, dtype: str) -> None:
    """Vectors of rows end where they like: in the middle of one, or of a row of D, or nowhere."""
    rng = seeded(f"runs {dtype}")
    for run in (*range(1, 26), 31, 33, 40):
        a, b = (np.asfortranarray(array(rng, n, dtype)) for n in ((run, 7, 9), (9, 14)))
        for text in ("abk,kc->abc", "abk,kc->acb", "abk,kc->cab"):
            found = ct.contract(text, a, b, handle=handle)
            expected = np.einsum(text, wide(a), wide(b))
            bound = np.einsum(text, np.abs(a), np.abs(b))
            assert np.all(np.abs(found - expected) <= 12 * np.finfo(dtype).eps * bound)


def test_sums_of_many_steps_are_shared_in_parts() -> None:
    """Few results of long sums: parts of k apart, the same bits with any number of threads."""
    rng = seeded("parts")
    a, b = np.asfortranarray(rng.random((5, 40000))), np.asfortranarray(rng.random((40000, 7)))
    results = []
    for threads in (1, 2, 5):
        with replace(ENGINES[2], threads=threads).handle() as handle:
            results.append(ct.contract("ik,kj->ij", a, b, handle=handle))
            tiles = [tiles_of(loaded.plan) for _, loaded in handle.plans.items()]
            c = ct.contract("ik,kj->ij", a, b, c=results[0], beta=2, handle=handle)
        np.testing.assert_allclose(c, 3 * results[0], rtol=1e-12)
    assert [each.splits for each in tiles if each is not None][:1] == [TILING.splits]
    np.testing.assert_allclose(results[0], wide(a) @ wide(b), rtol=1e-13)
    assert all(np.array_equal(results[0], each) for each in results[1:])


def test_the_number_of_threads_changes_no_bit() -> None:
    rng = seeded("threads")
    works = [drawn(rng, ("float32", "float32", "float32")) for _ in range(12)]
    results = []
    for threads in (1, 4):
        with replace(ENGINES[0], threads=threads).handle() as handle:
            results.append([ct.contract(x.text, x.a, x.b, handle=handle) for x in works])
    for one, two in zip(*results, strict=True):
        assert np.array_equal(one, two)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("most", [0, 1 << 30])
def test_boxes_of_a_stay_packed(threads: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits whether they do or not; where threads have no memory for it they do not."""
    monkeypatch.setattr("contract.host.steps.tiles.KEPT_BYTES", most)
    rng = seeded("kept")
    executor = HostExecutor(threads=threads)
    kept = 0
    for splits in (1, 3) * 60:
        work = drawn(rng, ("float64", "float64", "float64"))
        plan = plan_of(work.text, work, CUT)
        step = next(iter(plan.steps), None)
        if (
            len(plan.steps) != 1
            or not isinstance(step, Gett)
            or not isinstance(step.blocking, Tiles)
        ):
            continue
        inputs = [np.asfortranarray(x) for x in (work.a, work.b)]
        results = []
        for keeps in (False, True):
            tiles = replace(step.blocking, keeps=keeps, splits=splits)
            loaded = executor.load(replace(plan, steps=(replace(step, blocking=tiles),)))
            found = np.full(work.out.shape, np.nan, order="F")
            loaded(inputs, found, None, (1, 0, 0))
            check(found, work)
            results.append(found)
        assert np.array_equal(*results)
        (part,) = loaded.parts
        made = part.prepared.run
        if isinstance(made, TileProduct):
            boxes = made.boxes[Kind.M] * made.each
            assert made.lane.kept == (boxes if most else 1)
            kept += boxes > 1 and made.boxes[Kind.N] > 1
    assert kept > 2


def test_nothing_outside_of_d_is_written(handle: ct.Handle) -> None:
    """A result in the middle of larger memory: what lies around keeps its value."""
    rng = seeded("around")
    a, b = rng.random((37, 29)), rng.random((29, 23))
    for axis in (0, 1):
        memory = np.full((2 * 37 + 3, 23 + 4) if axis else (37 + 4, 2 * 23 + 3), 7.5)
        out = memory[1 : 1 + 2 * 37 : 2, 2:-2] if axis else memory[2:-2, 1 : 1 + 2 * 23 : 2]
        ct.contract("ik,kj->ij", a, b, out=out, handle=handle)
        np.testing.assert_allclose(out, a @ b)
        out[...] = 7.5
        assert np.all(memory == 7.5)


def test_values_that_are_not_finite_stay_in_their_rows(handle: ct.Handle) -> None:
    a, b = np.ones((33, 30)), np.ones((30, 26))
    a[5, 7], b[3, 11] = np.nan, np.inf
    found = ct.contract("ik,kj->ij", a, b, handle=handle)
    expected = a @ b
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))


# --- planning ---------------------------------------------------------------------------------


def test_boxes_keep_to_the_caches_and_cover_the_loops() -> None:
    rng = seeded("boxes")
    for _ in range(60):
        work = drawn(rng, ("float64", "float64", "float64"))
        step = next(iter(plan_of(work.text, work, WHOLE).steps), None)
        if not isinstance(step, Gett) or not isinstance(step.blocking, Tiles):
            continue
        tiles = step.blocking
        places = {kind: 1 for kind in Kind}
        for loop, block in zip(step.loops, tiles.blocks, strict=True):
            assert 1 <= block <= loop.extent
            places[loop.kind] *= block
        assert places[Kind.BATCH] <= 1.5 * TILING.line // 8
        orders = (*tiles.batch, *tiles.m, *tiles.n, *tiles.k)
        assert sorted(orders) == [*range(len(step.loops))]
        own = [loop for loop in step.loops if loop.kind is not Kind.BATCH]
        fastest = min((abs(loop.d) for loop in own if loop.d), default=0)
        rows = [abs(step.loops[at].d) for at in tiles.m]
        assert rows == sorted(rows)
        assert (
            not rows
            or rows[0] == fastest
            or fastest not in (abs(step.loops[at].d) for at in tiles.n)
        )


def test_boxes_have_long_runs_of_what_is_written_and_read() -> None:
    """Of D, where A is as good in short ones; of A by shallow boxes, where D stays in cache."""
    text = "degc,gfab->abcdef"
    blocks = packed_blocks(text, {**dict.fromkeys("adg", 20), **dict.fromkeys("bcef", 12)})
    assert blocks["ab"] == 240
    blocks = packed_blocks("bda,dc->abc", {"a": 248, "b": 248, "c": 16, "d": 248})
    assert blocks["b"] >= 96
    assert blocks["d"] < 100


def test_a_stays_packed_where_it_fits() -> None:
    """All of A has 2 MiB, then 32: too much for the cache that cores share."""
    assert packed_tiles("ij,jg->ig", {"i": 512, "j": 512, "g": 4096}).keeps
    assert not packed_tiles("ij,jg->ig", {"i": 2048, "j": 2048, "g": 4096}).keeps
    assert not packed_tiles("ij,jg->ig", {"i": 512, "j": 512, "g": 96}).keeps  # one box of columns


def packed_blocks(text: str, extents: Mapping[str, int]) -> dict[str, int]:
    """The block of each loop, by its modes, where all tensors are packed and column-major."""
    plan = packed_plan(text, extents)
    labels = plan.operation.labels
    (step,) = plan.steps
    assert isinstance(step, Gett)
    names = ["".join(str(labels[mode]) for mode in loop.modes) for loop in step.loops]
    assert isinstance(step.blocking, Tiles)
    return dict(zip(names, step.blocking.blocks, strict=True))


def packed_tiles(text: str, extents: Mapping[str, int]) -> Tiles:
    found = tiles_of(packed_plan(text, extents, WHOLE))
    assert found is not None
    return found


def packed_plan(text: str, extents: Mapping[str, int], machine: Cpu = COMPILED) -> Plan:
    *terms, output = text.replace("->", ",").split(",")
    operands = [
        ct.Operand(ct.TensorDescriptor([extents[x] for x in term], None, "float64"), tuple(term))
        for term in (*terms, output)
    ]
    return make_plan(ct.Contraction(tuple(operands[:2]), operands[2]), machine=machine)


def plan_of(text: str, work: Drawn, machine: Cpu) -> Plan:
    terms, output = text.split("->")
    first, second = terms.split(",")
    operands = [
        ct.Operand(ct.TensorDescriptor(x.shape, None, x.dtype.name), tuple(term))
        for x, term in ((work.a, first), (work.b, second), (work.out, output))
    ]
    operation = ct.Contraction(tuple(operands[:2]), operands[2])
    return make_plan(operation, ct.PlanPreference(), machine)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_shares_of_boxes_are_equal_work(threads: int) -> None:
    """All boxes once, in order; no thread has more than its share and a box."""
    rng = seeded("shares")
    executor = HostExecutor(threads=threads)
    shared = 0
    for _ in range(40):
        work = drawn(rng, ("float64", "float64", "float64"))
        plan = plan_of(work.text, work, CUT)
        step = next(iter(plan.steps), None)
        if (
            len(plan.steps) != 1
            or not isinstance(step, Gett)
            or not isinstance(step.blocking, Tiles)
        ):
            continue
        (part,) = executor.load(plan).parts
        product_ = part.prepared.run
        if not isinstance(product_, TileProduct):  # a small one
            continue
        sizes = boxes_of(product_)
        edges = product_.edges.tolist()
        assert edges[0] == 0
        assert edges[-1] == len(sizes)
        assert edges == sorted(edges)
        shares = [sum(sizes[begin:end]) for begin, end in pairwise(edges)]
        assert max(shares) <= sum(sizes) / len(shares) + max(sizes)
        shared += len(shares) > 1
    assert shared > 5


def test_smaller_boxes_count_less() -> None:
    """16 and 3 of 19 columns: halves of the boxes would be five sixths of the work."""
    shapes = (19, 2, 108, 7), (246, 2, 7), (0,), (246, 108, 19)
    plan = plan_of("acbd,ecd->eba", Drawn("", *map(np.zeros, shapes)), WHOLE)
    (part,) = HostExecutor(threads=2).load(plan).parts
    assert isinstance(part.prepared.run, TileProduct)
    sizes, (_, middle, _) = boxes_of(part.prepared.run), part.prepared.run.edges
    assert abs(sum(sizes[:middle]) / sum(sizes) - 0.5) < 0.1


def boxes_of(made: TileProduct) -> list[int]:
    """The multiply-adds of every box of every partial sum, counted one by one."""

    def blocks(kind: Kind) -> list[int]:
        pieces = [
            [min(block, loop.extent - at) for at in range(0, loop.extent, block)]
            for loop, block in reversed(made.loops[kind])
        ]
        return [prod(each) for each in product(*pieces)]

    k = blocks(Kind.K)
    depths = [sum(k[at : at + made.each]) for at in range(0, len(k), made.each)]
    of_d = product(blocks(Kind.BATCH), blocks(Kind.N), blocks(Kind.M))
    return [prod(each) * depth for depth, each in product(depths, list(of_d))]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_rows_whose_neighbours_are_some_rows_on_at_first(
    rng: np.random.Generator, dtype: str
) -> None:
    """Row 32 lies beside row 0, as 33 beside 1, but where e begins again row 62 not beside 30."""
    memory = rng.standard_normal(800).astype(np.empty(0, dtype).real.dtype).view(dtype)[:400]
    extents, steps = (13, 4, 31, 8, 7), (-2, 2, -1, 2, 2)
    strides = [step * memory.itemsize for step in steps]
    a = np.lib.stride_tricks.as_strided(memory[200:], extents, strides)
    b = np.asfortranarray(memory[:52].reshape(4, 13))
    with ct.Handle(kernels="numba") as handle:
        found = ct.contract("bc,cbedf->edf", b, a, handle=handle)
    exact = np.einsum("bc,cbedf->edf", b.astype("c16"), a.astype("c16"))
    np.testing.assert_allclose(found, exact, atol=1e3 * np.finfo(dtype).eps)
