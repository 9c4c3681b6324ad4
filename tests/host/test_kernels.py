"""The host kernels of both families against plain NumPy, prepared once and called on blocks."""

import ctypes
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import contract as ct
from contract.descriptors.operators import BinaryOperator
from contract.host import executor as host
from contract.host.compiled import copy_tables, pass_tables
from contract.host.compiled.linking import Linker
from contract.host.executor import HostExecutor
from contract.host.kernel_families import load_kernels
from contract.host.kernels.protocol import HostKernels, TileSource, flatten, strided_view
from contract.host.resources import memory as memory_module
from contract.host.resources.blas_threads import BlasThreads, blas_threads
from contract.host.resources.memory import KEPT_BYTES, Cutter, MemoryPool
from contract.host.resources.workers import Workers
from contract.machines.cpu import COMPILED, NARROW_BLAS, Cpu

WORKERS = Workers(3)
FAMILIES = {family: load_kernels(family, WORKERS) for family in ("numba", "numpy")}
TYPES = ("bool", "int8", "uint16", "int32", "int64", "float16", "float32", "float64", "complex64",
         "complex128", "bfloat16", "longdouble")  # fmt: skip

common = settings(max_examples=120, deadline=None, derandomize=True)
families = pytest.mark.parametrize("kernels", FAMILIES.values(), ids=list(FAMILIES))
# Extents around the edges of tiles and strips, and small ones that must not waste lines.
sizes = st.sampled_from((1, 2, 3, 5, 17, 31, 63, 64, 65, 129))


@st.composite
def permutations(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    extents = draw(st.lists(sizes, min_size=1, max_size=4))
    while np.prod(extents) > 300_000:
        extents[int(np.argmax(extents))] //= 2
    axes = draw(st.permutations(range(len(extents))))
    signs = [draw(st.sampled_from((1, 1, 1, -1, 0))) for _ in extents]
    return extents, list(axes), signs


@families
@common
@given(permutations(), st.sampled_from(TYPES), st.integers(0, 5))
def test_copies(
    kernels: HostKernels, case: tuple[list[int], list[int], list[int]], dtype: str, shift: int
) -> None:
    """target[i] = source[i], bit for bit, nothing else written."""
    extents, axes, signs = case
    kind = np.dtype(dtype)
    rng = np.random.default_rng(int(np.prod(extents)))
    source = rng.integers(0, 2, [2 * n for n in extents]).astype(kind)
    view = source[tuple(slice(None, None, 2) for _ in extents)].transpose(axes)
    view = view[tuple(slice(None, None, -1) if sign < 0 else slice(None) for sign in signs)]
    view = np.broadcast_to(
        view[tuple(slice(0, 1) if s == 0 else slice(None) for s in signs)], view.shape
    )
    target = np.zeros([n + 1 for n in view.shape[::-1]], kind).T
    inside = target[tuple(slice(1, None) for _ in view.shape)]
    flat, origin = flatten(view)
    into, start = flatten(target)
    offset = sum(s // kind.itemsize for s in target.strides)
    strides = [[s // kind.itemsize for s in x.strides] for x in (view, inside)]
    run = kernels.copy(view.shape, *strides, kind.name, kind.name)
    run(flat, origin, into, start + offset)
    np.testing.assert_array_equal(inside.astype("c16"), view.astype("c16"))
    inside[...] = 0
    assert not target.any(), "elements outside the block were written"


@pytest.mark.parametrize(
    ("staged", "passing"),
    [(0, 1 << 62), (1 << 62, 1 << 62), (0, 0)],
    ids=["far", "near", "past the caches"],
)
@common
@given(
    st.lists(st.sampled_from((1, 2, 3, 5, 16, 31, 33, 65, 130, 700, 1100)), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.sampled_from(("int8", "uint16", "float32", "float64", "complex128")),
    st.tuples(st.integers(0, 70), st.integers(0, 70)),
)
def test_copies_of_memory_that_is_not_aligned(
    staged: int,
    passing: int,
    extents: list[int],
    random: Any,
    dtype: str,
    shifts: tuple[int, int],
) -> None:
    """Every way to copy, as if the target were large or small; bytes around it stay as they are."""
    while np.prod(extents) > 300_000:
        extents[int(np.argmax(extents))] //= 2
    axes = random.sample(range(len(extents)), len(extents))
    count, kind = int(np.prod(extents)), np.dtype(dtype)
    raw = np.random.default_rng(count).integers(0, 256, count * kind.itemsize + 70, np.uint8)
    source = raw[shifts[0] :][: count * kind.itemsize].view(kind)
    guarded = np.full(count * kind.itemsize + 160, 0xA5, np.uint8)
    inside = slice(shifts[1] + 8, shifts[1] + 8 + count * kind.itemsize)
    view = source.reshape(extents).transpose(axes)
    strides = [step // kind.itemsize for step in view.strides]
    packed = [int(np.prod(view.shape[at + 1 :])) for at in range(view.ndim)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_tables, "STAGED_BYTES", staged)
        patch.setattr(copy_tables, "PASSING_BYTES", passing)
        patch.setattr(copy_tables, "PASSING_RUN", 64)
        run = FAMILIES["numba"].copy(view.shape, strides, packed, dtype, dtype)
    run(source, 0, guarded[inside].view(kind), 0)
    wanted = np.ascontiguousarray(view).reshape(-1).view(np.uint8)
    np.testing.assert_array_equal(guarded[inside], wanted)
    guarded[inside] = 0xA5
    assert (guarded == 0xA5).all()


@pytest.mark.parametrize(
    "extents", [(1 << 21,), (3, 700_000), (640, 51, 67), (1031, 1033), (9, 411, 1207)]
)
def test_large_copies(extents: tuple[int, ...]) -> None:
    """Targets beyond the cache, which are copied in another way, by all threads."""
    source = np.random.default_rng(0).random(extents, np.float32)
    for axes in itertools.permutations(range(len(extents))):
        for sign in (1, -1):
            view = source[::sign].transpose(axes)
            target = np.zeros(view.shape, np.float32)
            flat, origin = flatten(view)
            steps = [[step // 4 for step in x.strides] for x in (view, target)]
            run = FAMILIES["numba"].copy(view.shape, *steps, "float32", "float32")
            run(flat, origin, target.reshape(-1), 0)
            np.testing.assert_array_equal(target, view)


@families
@pytest.mark.parametrize("target", ["float32", "float64", "complex128", "int64", "float16"])
@pytest.mark.parametrize("source", ["bool", "int32", "float16", "bfloat16", "float32", "float64"])
def test_converting_copies(kernels: HostKernels, source: str, target: str) -> None:
    x = np.arange(70 * 90).reshape(70, 90) % 120
    x = x.astype(np.dtype(source))
    y = np.empty((90, 70), np.dtype(target))
    kernels.copy((70, 90), (90, 1), (1, 70), source, target)(x.reshape(-1), 0, y.reshape(-1), 0)
    np.testing.assert_array_equal(y, x.T.astype(np.dtype(target)))


@families
def test_copies_keep_the_payload_of_nans(kernels: HostKernels) -> None:
    bits = np.arange(100 * 80, dtype=np.uint64) | np.uint64(0x7FF8000000000000)
    x, y = bits.view("f8"), np.empty(8000)
    kernels.copy((100, 80), (80, 1), (1, 100), "float64", "float64")(x, 0, y, 0)
    np.testing.assert_array_equal(y.view("u8").reshape(80, 100), bits.reshape(100, 80).T)


@families
@common
@given(permutations(), st.integers(0, 4), st.sampled_from(("float64", "float32", "int32", "bool")))
def test_reductions(
    kernels: HostKernels, case: tuple[list[int], list[int], list[int]], kept: int, dtype: str
) -> None:
    extents, axes, _ = case
    kept = min(kept, len(extents))
    rng = np.random.default_rng(int(np.sum(extents)))
    x = rng.integers(0, 9, extents).astype(dtype).transpose(axes)
    strides = [s // x.itemsize for s in x.strides]
    wanted = np.add.reduce(x, axis=tuple(range(kept, x.ndim)), dtype=x.dtype)
    found = np.empty(x.shape[:kept], dtype, order="F")
    steps = [s // x.itemsize for s in found.strides]
    run = kernels.reduce(
        x.shape[:kept],
        strides[:kept],
        steps,
        x.shape[kept:],
        strides[kept:],
        dtype,
        dtype,
        BinaryOperator.ADD,
    )
    flat, origin = flatten(x)
    run(flat, origin, *flatten(found))
    np.testing.assert_array_equal(found, wanted)


@families
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float64", "longdouble", "object"])
@pytest.mark.parametrize("transposed", [False, True])
def test_stacks_of_matrix_products(
    kernels: HostKernels, dtype: str, transposed: bool, rng: np.random.Generator
) -> None:
    a = rng.integers(0, 3, (4, 9, 17)).astype(dtype)
    b = rng.integers(0, 3, (1, 17, 13)).astype(dtype)
    out = np.empty((4, 13, 9), dtype).swapaxes(1, 2) if transposed else np.empty((4, 9, 13), dtype)
    if transposed:
        a = np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2)
    kernels.matmul(dtype)(a, b, out)
    np.testing.assert_array_equal(out, np.matmul(a, b))


@families
@common
@given(
    st.lists(st.tuples(st.sampled_from("lmnk"), st.sampled_from((1, 2, 3, 8, 17, 40))), max_size=5),
    st.sampled_from(("float64", "complex64", "int32", "bool")),
)
def test_direct_products(kernels: HostKernels, loops: list[tuple[str, int]], dtype: str) -> None:
    while np.prod([n for _, n in loops]) > 100_000:
        loops = loops[1:]
    rng = np.random.default_rng(len(loops))
    of = [[at for at, (kind, _) in enumerate(loops) if kind != lacks] for lacks in "nmk"]
    arrays = [rng.integers(0, 3, [loops[at][1] for at in chosen]).astype(dtype) for chosen in of]
    a, b, d = arrays
    table: list[Any] = []
    for at, (kind, extent) in enumerate(loops):
        strides = tuple(
            x.strides[chosen.index(at)] // x.itemsize if at in chosen else 0
            for x, chosen in zip(arrays, of, strict=True)
        )
        table.append((kind, extent, strides))
    wanted = np.einsum(a, of[0], b, of[1], of[2])
    kernels.loops(dtype, table)(*flatten(a), *flatten(b), *flatten(d))
    np.testing.assert_array_equal(d, wanted)


@families
@pytest.mark.parametrize("dtype", ["float32", "complex128", "int16"])
@pytest.mark.parametrize("layout", ["F", "C"])
@pytest.mark.parametrize("shape", [(7, 5000), (41, 2049), (1030, 18), (3, 4100)])
def test_sums_of_rows_and_of_columns(
    kernels: HostKernels, shape: tuple[int, int], layout: Literal["F", "C"], dtype: str
) -> None:
    """D[g] = sum_j A[j, g] B[j, g]: along memory and across it, in pieces, four sums at a time."""
    rng = np.random.default_rng(shape)
    a, b = (np.asarray(rng.integers(-3, 4, shape), dtype, order=layout) for _ in range(2))
    d = np.full(shape[1], 99, dtype)
    strides = [step // a.itemsize for step in a.strides]
    table = [
        ("l", shape[1], (strides[1], strides[1], 1)),
        ("k", shape[0], (strides[0],) * 2 + (0,)),
    ]
    kernels.loops(dtype, table)(*flatten(a), *flatten(b), d, 0)
    np.testing.assert_array_equal(d, np.sum(a * b, axis=0, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("operators", [("+",), ("*",), *itertools.product("+*", repeat=2)])
@pytest.mark.parametrize("held", ["ab,ab,ab", "b,ab,a", "a,b,ab", "ab,a,b", "b,b,ab", ",ab,"])
def test_combined_rows(dtype: str, operators: tuple[str, ...], held: str) -> None:
    """Rows of 1 to 2 vectors and a rest, each operand with some of two dimensions, the target
    with gaps that stay as they are, in three tiles, the last of one row; scaled or not."""
    rng = np.random.default_rng(3)
    signs = {"+": BinaryOperator.ADD, "*": BinaryOperator.MUL}
    ufuncs = {"+": np.add, "*": np.multiply}
    for n in (1, 7, 16, 37):
        shapes = [[n if x == "a" else 5 for x in each] for each in held.split(",")]
        terms = held.split(",")[: len(operators) + 1]
        operands = [np.asfortranarray(_numbers(rng, shape, dtype)) for shape in shapes]
        operands = operands[: len(terms)]
        strides = [
            tuple(x.strides[each.index(y)] // x.itemsize if y in each else 0 for y in "ab")
            for x, each in zip(operands, terms, strict=True)
        ]
        if n == 1:  # a dimension without steps
            strides = [
                (1 if "a" in each else 0, step)
                for each, (_, step) in zip(terms, strides, strict=True)
            ]
        memory = np.full(5 * (n + 3), 99, dtype)
        kernels = load_kernels("numba", Workers(1))
        sources = [TileSource(steps, dtype, (0, 1), None, 0) for steps in strides]
        signs_of = [signs[x] for x in operators]
        made = kernels.combined((n, 5), (n, 2), sources, (1, n + 3), dtype, signs_of)
        assert made is not None
        factors = None if n == 7 else [2.0, -3.0, 0.5][: len(terms)]
        made.run([x.ctypes.data for x in (*operands, memory)], 0, factors)
        views = [
            x.reshape([k if y in each else 1 for y, k in (("a", n), ("b", 5))], order="F")
            for x, each in zip(operands, terms, strict=True)
        ]
        if factors is not None:
            views = [np.asarray(x * f, dtype) for x, f in zip(views, factors, strict=True)]
        wanted = views[0]
        for sign, view in zip(operators, views[1:], strict=True):
            wanted = ufuncs[sign](wanted, view)
        found = memory.reshape(5, n + 3).T
        np.testing.assert_array_equal(found[:n], np.broadcast_to(wanted, (n, 5)))
        np.testing.assert_array_equal(found[n:], 99)


class OneByOne:
    """A team whose lanes take turns."""

    workers, parts = Workers(3), 0

    def run(self, function: int, given: list[int], total: int, parts: int, wakes: bool) -> None:
        table, self.parts = np.array(given, np.int64), parts
        part = ctypes.CFUNCTYPE(None, *[ctypes.c_ssize_t] * 4)(function)
        for at in range(parts):
            part(table.ctypes.data, total * at // parts, total * (at + 1) // parts, at % 3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("blocks", [(29, 23, 5), (16, 23, 2), (10, 10, 1), (28, 22, 4)])
def test_loaded_tiles(
    dtype: str, blocks: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D[i,j,l] = A[j,i,l] B[i,l] (real, of another precision) + C[l], all but C loaded.

    The last tiles are shorter, along one, two or three dimensions, some by all but one. Three
    lanes have buffers of their own.
    """
    monkeypatch.setattr(pass_tables, "THREAD_WORK", 64)
    rng = np.random.default_rng(4)
    extents, team = (29, 23, 5), OneByOne()
    a, c = (np.asfortranarray(_numbers(rng, shape, dtype)) for shape in ([23, 29, 5], [5]))
    other = "float32" if dtype[-2:] in ("64", "28") and dtype != "complex64" else "int16"
    b = np.asfortranarray(rng.integers(-9, 10, (29, 5)).astype(other))
    out = np.full(extents, 99, dtype, order="F")
    p, q, r = blocks
    sources = [
        TileSource((23, 1, 23 * 29), dtype, (0, 1, 2), (1, p, p * q), p * q * r),
        TileSource((1, 0, 29), other, (0, 2), (1, 0, p), p * r),
        TileSource((0, 0, 1), dtype, (2,), None, 0),
    ]
    operators = [BinaryOperator.MUL, BinaryOperator.ADD]
    target = (1, 29, 29 * 23)
    made = pass_tables.combined_pass(
        extents, blocks, sources, target, dtype, operators, Linker(3, lambda: team)
    )
    assert made is not None
    memory = np.zeros(made.bytes, np.uint8)
    places = [x.ctypes.data for x in (a, b, c, out)]
    made.run(places, memory.ctypes.data, [1.0, 2.0, -1.0])
    assert all(lane.any() for lane in np.split(memory, min(team.parts, 3)))
    np.testing.assert_array_equal(out, a.swapaxes(0, 1) * 2 * b[:, None, :] - c)


def _numbers(rng: np.random.Generator, shape: list[int], dtype: str) -> Any:
    real = rng.integers(-9, 10, shape)
    return (real + 1j * rng.integers(-9, 10, shape) if dtype[0] == "c" else real).astype(dtype)


def test_flat_memory_sees_every_element(rng: np.random.Generator) -> None:
    x = rng.random((6, 7, 8))
    for view in (
        x,
        x.T,
        x[::-1],
        x[::2, ::-3],
        x[:, :0],
        np.broadcast_to(x[0], (3, 7, 8)),
        x[0, 0, 0:1],
    ):
        flat, origin = flatten(view)
        assert flat.ndim == 1
        assert np.shares_memory(flat, x) or not view.size
        strides = [s // 8 for s in view.strides]
        np.testing.assert_array_equal(strided_view(flat, origin, view.shape, strides), view)


def test_workers_share_a_range_and_raise_what_fails() -> None:
    workers = Workers(4)
    seen: list[int] = []
    workers.map(lambda begin, end: seen.extend(range(begin, end)), workers.split(103, 5))
    assert sorted(seen) == list(range(103))
    assert workers.split(103, 60) == [(0, 103)]

    def fail(begin: int, end: int) -> None:
        if begin:
            raise KeyError(begin)

    with pytest.raises(KeyError):
        workers.map(fail, workers.split(100, 1))
    workers.close()


def test_free_workers_take_the_parts_of_those_held_up() -> None:
    """One part ends only after all others have: the other thread does them."""
    workers, done = Workers(2), threading.Semaphore(0)

    def part(number: int) -> None:
        if number == 0:
            assert all(done.acquire(timeout=30) for _ in range(9))
        else:
            done.release()

    workers.map(part, [(number,) for number in range(10)])
    workers.close()


def test_workers_do_not_wait_for_each_other() -> None:
    """Nested and concurrent use ends: a caller takes back what no thread has begun."""
    workers = Workers(2)

    def nested(begin: int, end: int) -> None:
        workers.map(lambda a, b: None, workers.split(10, 1))

    threads = [
        threading.Thread(target=lambda: workers.map(nested, workers.split(50, 1))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    workers.close()


@pytest.mark.parametrize(
    ("kernels", "wide", "model"),
    [
        ("Haswell", True, NARROW_BLAS),
        ("Zen", True, NARROW_BLAS),
        ("SkylakeX", True, COMPILED),
        ("Haswell", False, COMPILED),
        ("", True, COMPILED),
    ],
)
def test_the_model_knows_the_kernels_of_blas(
    kernels: str, wide: bool, model: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlasThreads, "kernels", kernels)
    monkeypatch.setattr(host, "has_wide_vectors", lambda: wide)
    executor = HostExecutor("numba")
    assert executor.built_in is executor.machine is model
    assert executor.identity.capability.endswith(f"BLAS {kernels}".strip())


def test_the_kernels_of_blas_have_a_name() -> None:
    """What OpenBLAS calls itself where it is NumPy's: one word, or none of another BLAS."""
    assert len(blas_threads().kernels.split()) <= 1


# --- memory of calls ----------------------------------------------------------------------------


def test_the_pool_gives_a_buffer_to_one_call_at_a_time() -> None:
    pool = MemoryPool()
    first, second = pool.take(1000), pool.take(1000)
    pool.give(first)
    pool.give(second)
    taken = [pool.take(900) for _ in range(3)]
    for one, other in itertools.combinations(taken, 2):
        assert not np.shares_memory(one, other)
    assert sum(np.shares_memory(one, old) for one in taken for old in (first, second)) == 2
    pool.give(first)
    pool.clear()
    assert not np.shares_memory(pool.take(1000), first)


def test_the_pool_gives_lines_and_enough_of_them() -> None:
    pool = MemoryPool()
    for size in (1, 63, 64, 65, 1000, 4097):
        kept = [pool.take(size) for _ in range(3)]
        for memory in kept:
            assert memory.ctypes.data % 64 == 0
            assert memory.size >= size
            pool.give(memory)
    pool = MemoryPool()
    pool.give(pool.take(0))
    assert not pool._free, "nothing is not kept"


def test_what_is_lent_comes_back_when_nothing_refers_to_it() -> None:
    """An array in it, a view of that and a view of the view each keep it."""
    pool = MemoryPool()
    x: Any = np.ndarray((3, 40), np.float32, pool.lend(480), 0, (4, 12))
    first = x.ctypes.data
    for smaller in (lambda x: x[1:], lambda x: x.T[:, 1], lambda x: memoryview(x)[3:]):
        x = smaller(x)
        assert pool.lend(480).ctypes.data != first
    assert np.shares_memory(pool.take(480), np.asarray(x)) is False
    del x
    assert pool.lend(40).ctypes.data != first, "much more than is asked for would lie idle"
    assert pool.lend(470).ctypes.data == first


def test_memory_comes_back_in_the_midst_of_anything() -> None:
    """At each line of the pool that runs in turn: Python may end an array, or run a handler."""
    for at in range(1, 60):
        pool = MemoryPool()
        lent, kept = [pool.lend(480)], [pool.take(size) for size in (500, 700, 900)]
        for each in kept:
            pool.give(each)

        def handler(pool: MemoryPool = pool, lent: list[Any] = lent) -> None:
            lent.clear()
            pool.give(pool.take(600))

        with at_line(memory_module.__file__, at, handler):
            taken = [pool.lend(480), pool.take(800), pool.take(480), pool.lend(2000)]
            pool.give(taken[1])
        assert all(x.size >= size for x, size in zip(taken, (480, 800, 480, 2000), strict=True))
        places = [x.ctypes.data for x in (taken[0], *taken[2:])]
        assert len(set(places)) == 3
        free = [x.ctypes.data for x in pool._free.values()]
        assert len(set(free)) == len(free) <= 6
        assert not {*free, *(x.ctypes.data for x in pool._last)} & set(places)


@contextmanager
def at_line(path: str, at: int, call: Callable[[], None]) -> Iterator[None]:
    """A time in which something is called before the ``at``-th line of a file that runs."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != path:
            return None
        lines += event == "line"
        if lines == at:
            lines += 1
            call()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def test_large_results_lie_in_memory_of_earlier_ones() -> None:
    n = 1 << 21
    a, b = np.ones((n, 2)), np.array([2.0, 3.0])
    with ct.Handle() as handle:
        result = ct.contract("ab,b->ab", a, b, handle=handle)
        place, row = result.ctypes.data, result[:, 1]
        del result
        other = ct.contract("ab,b->ab", a, -b, handle=handle)
        assert not np.shares_memory(other, row)
        assert (row == 3).all()
        del row
        again = ct.contract("ab,b->ab", a, b, handle=handle)
        assert again.ctypes.data == place
        assert (other == -b).all()
    assert (again == b).all(), "of a handle that is closed"


def test_the_pool_keeps_no_more_than_it_may() -> None:
    pool = MemoryPool()
    pool.give(np.empty(KEPT_BYTES + 1, np.uint8))
    assert pool.take(1).size == 1
    half = [np.empty(KEPT_BYTES // 2, np.uint8) for _ in range(3)]
    for memory in half:
        pool.give(memory)
    taken = [pool.take(KEPT_BYTES // 2) for _ in half]
    assert sum(np.shares_memory(one, old) for one in taken for old in half) == 2


@pytest.mark.parametrize("text", ["ab->", "ab,ab->ab", "ab,bc->ac", "ab,ba->"])
def test_buffers_may_be_larger_by_any_number_of_bytes(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryPool, "take", lambda self, size: np.empty(size + 1, np.uint8))
    x = np.ones((800, 800))
    operands = [x] * (text.count(",") + 1)
    for _ in range(2):  # the second call is the shorter one
        found = ct.contract(text, *operands)
        np.testing.assert_allclose(found, np.einsum(text, *operands, optimize=True))


def test_what_is_cut_from_a_buffer_lies_apart_on_lines() -> None:
    memory = MemoryPool().take(1 << 12)
    cutter = Cutter(memory)
    pieces = [cutter.take(n, np.dtype(kind)) for n, kind in ((3, "f8"), (1, "i1"), (5, "c16"))]
    for piece in pieces:
        assert piece.ctypes.data % 64 == 0
        assert np.shares_memory(piece, memory)
    for one, other in itertools.combinations(pieces, 2):
        assert not np.shares_memory(one, other)
    objects = cutter.take(3, np.dtype(object))
    assert not np.shares_memory(objects, memory)
