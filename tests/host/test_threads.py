"""One handle, many threads: a cache too small for their calls, and everything changing at once."""

import gc
import os
import random
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

import contract as ct
from contract.host.kernels import numpy_kernels
from contract.host.resources import workers
from contract.host.resources.blas_threads import BlasThreads, blas_threads
from contract.host.steps import products as host_products

CALLS, THREADS = 600, 8
TUNED = ct.PlanPreference(autotune=ct.AutotuneMode.INCREMENTAL)


@dataclass(frozen=True)
class Asked:
    """A call and its result, found by NumPy."""

    call: Callable[..., np.ndarray]
    wanted: np.ndarray

    def is_right(self, **options: Any) -> bool:
        return np.allclose(self.call(**options), self.wanted, rtol=1e-10, atol=1e-10)


def asked(rng: np.random.Generator) -> list[Asked]:
    """Contractions, permutations, reductions and sums of three sizes."""
    found = []
    for n in (3, 8, 40):
        x, y, z = (rng.standard_normal((n, n)) for _ in range(3))
        for text in ("ij,jk->ik", "ij,kj->ki", "ij,ij->i", "ii,i...->...", "ij,jk,kl->li"):
            arrays = (x, y, z)[: text.count(",") + 1]
            found.append(Asked(_contraction(text, arrays), np.einsum(text, *arrays)))
        found.append(Asked(_verb(ct.permute, "ij->ji", x, alpha=2), 2 * x.T))
        found.append(Asked(_verb(ct.reduce, "ij->j", x, op="max"), x.max(0)))
        found.append(Asked(_verb(ct.elementwise_binary, "ji,ij->ij", x, y), x.T + y))
    return found


def _contraction(text: str, arrays: Sequence[np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda **options: ct.contract(text, *arrays, **options)


def _verb(verb: Callable[..., Any], text: str, *arrays: Any, **own: Any) -> Callable[..., Any]:
    def call(preference: Any = None, **options: Any) -> Any:
        return verb(text, *arrays, **own, **options)

    return call


def _at(calls: Sequence[Asked], turn: int) -> Sequence[Asked]:
    """The five calls that are made now; they change slowly, or most of the time were planning."""
    first = turn // 25 % (len(calls) - 4)
    return calls[first : first + 5]


def in_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run ``work`` for 0..count-1 at once; the first error is raised."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a thread waits for ever"
    if errors:
        raise errors[0]


def test_many_threads_share_a_handle_with_a_small_cache(rng: np.random.Generator) -> None:
    calls = asked(rng)
    with ct.Handle(cache_lines=4, threads=2) as handle:

        def work(number: int) -> None:
            chosen = random.Random(number)
            for turn in range(CALLS):
                assert chosen.choice(_at(calls, turn)).is_right(handle=handle)

        in_threads(work)
        counted = handle.plans.statistics
        assert counted.lines <= 4
        assert counted.hits + counted.misses == THREADS * CALLS
        assert counted.evictions > 100


def test_the_memory_of_a_small_cache_is_bounded(rng: np.random.Generator) -> None:
    calls = asked(rng)
    with ct.Handle(cache_lines=4, threads=1) as handle:
        for each in calls:
            each.is_right(handle=handle)
        gc.collect()
        tracemalloc.start()
        for each in calls * 3:
            each.is_right(handle=handle)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert held < 400_000, f"{held} bytes after {3 * len(calls)} calls"


def test_a_handle_stays_right_while_everything_changes(
    rng: np.random.Generator, tmp_path: Any
) -> None:
    """Resizing, clearing, tuning, and plans written and read, beside calls."""
    calls = asked(rng)
    path = tmp_path / "plans.json"
    done = threading.Event()
    with ct.Handle(cache_lines=4, threads=2) as handle:
        handle.write_plans(path)

        def disturb(number: int) -> None:
            chosen = random.Random(number)
            while not done.is_set():
                handle.plans.resize(chosen.randrange(1, 9))
                handle.write_plans(path)
                handle.read_plans(path)
                if chosen.random() < 0.1:
                    handle.plans.clear()

        def work(number: int) -> None:
            if number >= THREADS:
                disturb(number)
                return
            chosen = random.Random(number)
            try:
                for turn in range(CALLS // 4):
                    preference = TUNED if chosen.random() < 0.5 else None
                    asking = chosen.choice(_at(calls, turn))
                    assert asking.is_right(handle=handle, preference=preference)
            finally:
                running.remove(number)
                if not running:
                    done.set()

        running = set(range(THREADS))
        in_threads(work, THREADS + 1)
    assert ct.Handle().read_plans(path) >= 0


def test_addresses_that_are_used_again_do_not_matter() -> None:
    """Arrays come and go, others of other shapes, strides and types lie where they were."""
    chosen = random.Random(5)
    addresses: set[int] = set()
    again = 0
    with ct.Handle(cache_lines=8) as handle:
        for turn in range(600):
            rows, columns = chosen.choice([(4, 6), (6, 4), (3, 8), (8, 3), (2, 12), (24, 1)])
            dtype = chosen.choice(["f8", "f4", "i8", "c8"])
            x = (np.arange(24 * 2) + turn).astype(dtype)[:: chosen.choice((1, 2))][:24]
            x = x.reshape(rows, columns, order=chosen.choice("CF"))
            again += x.ctypes.data in addresses
            addresses.add(x.ctypes.data)
            found = ct.contract("ij,kj->ik", x, x, handle=handle)
            np.testing.assert_allclose(found, x @ x.T, rtol=1e-5)
            del x, found
    assert again > 100, "the addresses were new: nothing was tried"


@pytest.mark.parametrize("count", [1, 3])
def test_expressions_are_shared_by_threads(count: int, rng: np.random.Generator) -> None:
    arrays = [rng.standard_normal((12, 12)) for _ in range(count)]
    text = ",".join("ab bc cd".split()[:count]) + "->a"
    wanted = np.einsum(text, *arrays)
    planned = ct.contract_expression(text, *(x.shape for x in arrays), preference=TUNED)

    def work(number: int) -> None:
        for _ in range(100):
            np.testing.assert_allclose(planned(*arrays, alpha=number), number * wanted)

    in_threads(work)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="threads have no cores to choose")
def test_other_threads_leave_the_callers_core_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a thread is woken on the caller's core, both do their work one after the other."""
    allowed = os.sched_getaffinity(0)
    meeting = threading.Barrier(2, timeout=60)
    found: dict[str, set[int]] = {}

    def part(number: int) -> None:
        meeting.wait()  # each thread has one of the two parts
        found[threading.current_thread().name] = os.sched_getaffinity(0)

    team = workers.Workers(2)
    team.map(part, [(0,), (1,)])  # which starts the thread
    for core in sorted(allowed):
        monkeypatch.setattr(workers, "_current_core", lambda core=core: core)
        found.clear()
        team.map(part, [(0,), (1,)])
        (other,) = found.keys() - {threading.current_thread().name}
        assert found[other] == (allowed - {core} or allowed)
        assert found[threading.current_thread().name] == allowed
    team.close()
    monkeypatch.setattr(workers, "_current_core", None)
    team.map(part, [(0,), (1,)])  # another thread, and a system that tells no cores
    team.close()


def put_for_matmul(function: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever matrices are multiplied on the host, the function is called instead."""
    for module in (host_products, numpy_kernels):
        monkeypatch.setattr(module, "matmul", function)


@pytest.mark.parametrize("extents", [(160, 140, 100), (40, 900, 70), (2000, 8, 150)])
@pytest.mark.parametrize("threads", [1, 2, 6])
def test_products_between_other_steps_are_shared_by_our_threads(
    extents: tuple[int, int, int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TTGT: BLAS is called for blocks of D, which cover it, and each of them once."""
    a, b, k = extents
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, k, a, 2)), rng.standard_normal((k, 4, b))
    written: list[tuple[int, ...]] = []
    matmul = np.matmul

    def counted(one: Any, two: Any, out: Any) -> None:
        written.append(out.shape)
        matmul(one, two, out)

    put_for_matmul(counted, monkeypatch)
    preference = ct.PlanPreference(algo=ct.Algo.TTGT)
    with ct.Handle(threads=threads) as handle:
        found = ct.contract("ikaj,klb->jblia", x, y, alpha=2, preference=preference, handle=handle)
    np.testing.assert_allclose(found, 2 * np.einsum("ikaj,klb->jblia", x, y), rtol=1e-9, atol=1e-9)
    assert sum(rows * columns for *_, rows, columns in written) == found.size
    assert len(written) >= threads


@pytest.mark.parametrize(
    ("text", "dtype", "extents", "waits"),
    [
        ("ij,jk->ik", "float64", (4, 4, 4), False),
        ("ij,jk->ik", "float64", (40, 40, 40), True),
        ("ij,j->i", "complex64", (40, 40), False),
        ("ij,j->i", "complex64", (64, 65), True),  # OpenBLAS has its threads from 4096 products on
    ],
)
def test_forks_wait_for_blas_where_it_may_have_threads(
    text: str, dtype: str, extents: tuple[int, ...], waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded: list[Callable[..., Any]] = []

    def remembered(self: BlasThreads, function: Callable[..., Any]) -> Callable[..., Any]:
        guarded.append(function)
        return function

    monkeypatch.setattr(BlasThreads, "guarded", remembered)
    sizes = dict(zip("ijk", extents, strict=False))
    xs = [np.ones([sizes[x] for x in term], dtype) for term in text.partition("->")[0].split(",")]
    with ct.Handle(kernels="numpy") as handle:
        ct.contract(text, *xs, handle=handle)
    assert bool(guarded) == waits


class HeldUp:
    """np.matmul in two threads: the other one's first product lasts until the caller did most."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.caller = threading.get_ident()
        self.begun, self.left = threading.Event(), threading.Event()
        self.matmul = np.matmul
        self.settings = set[int]()  # of BLAS

    def __call__(self, one: Any, two: Any, out: Any) -> None:
        self.settings |= {each["num_threads"] for each in threadpool_info()}
        if threading.get_ident() != self.caller:
            self.begun.set()
            assert self.left.wait(60), "a thread leaves its products to nobody"
        else:
            assert self.begun.wait(60), "no other thread begins"
            self.done += 1
            if self.done > 0.6 * self.total:
                self.left.set()
        self.matmul(one, two, out)


@pytest.mark.parametrize(
    ("text", "shapes", "algo"),
    [
        ("ceda,dbe->cba", ((32, 32, 32, 32), (32, 32, 32)), ct.Algo.GETT),
        ("abcdk,bkn->ancdb", ((16, 40, 8, 40, 48), (40, 48, 48)), ct.Algo.GETT),
        ("bij,bjk->bik", ((24, 80, 80), (24, 80, 80)), ct.Algo.DEFAULT),
        ("ikaj,klb->jblia", ((2, 300, 160, 2), (300, 4, 140)), ct.Algo.TTGT),
    ],
)
def test_products_of_a_thread_that_is_held_up_are_left_to_the_others(
    text: str, shapes: Sequence[tuple[int, ...]], algo: ct.Algo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Panels in one block and in several, a batch, matrices between permutations."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape) for shape in shapes)
    preference = ct.PlanPreference(algo=algo)
    matmul, products = np.matmul, list[int]()

    def counted(one: Any, two: Any, out: Any) -> None:
        products.append(out.size)
        matmul(one, two, out)

    put_for_matmul(lambda *given, **named: now[0](*given, **named), monkeypatch)
    now: list[Callable[..., None]] = [counted]
    with ct.Handle(threads=2, kernels="numpy") as handle:
        wanted = ct.contract(text, x, y, preference=preference, handle=handle)
        held_up = HeldUp(len(products))
        held_up.matmul = matmul
        now[0] = held_up
        found = ct.contract(text, x, y, preference=preference, handle=handle)
    np.testing.assert_array_equal(found, wanted)
    assert len(products) >= 4
    assert held_up.done > 0.6 * held_up.total
    assert held_up.settings == {1}


def test_blas_is_held_to_one_thread_by_any_thread() -> None:
    """threadpoolctl alone would listen to one thread of the process."""
    found: list[int] = []

    def ask() -> None:
        found.extend(
            each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"
        )

    for _ in range(2):
        caller = threading.Thread(target=lambda: blas_threads().alone(ask))
        caller.start()
        caller.join()
    assert found
    assert set(found) == {1}


def test_calls_with_the_threads_of_blas_and_without_never_meet() -> None:
    """Its number of threads belongs to the process, and shows in the last bits."""
    inside: list[str] = []
    met: list[bool] = []

    def stay(name: str, other: str) -> None:
        inside.append(name)
        met.append(other in inside)
        time.sleep(1e-4)
        met.append(other in inside)
        inside.remove(name)

    blas = BlasThreads()
    blas.exceeds = False
    shared = blas.shared(lambda: stay("shared", "alone"))

    def call(at: int) -> None:
        for turn in range(60):
            if (turn + at) % 3:
                blas.alone(lambda: stay("alone", "shared"))
            else:
                shared()

    callers = [threading.Thread(target=call, args=(at,)) for at in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join(60)
        assert not each.is_alive()
    assert len(met) == 480
    assert not any(met)
