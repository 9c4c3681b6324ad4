"""Long steps are cut in slices: the same results, and an end where a call is broken off."""

import threading
import time
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.host.kernels import numpy_kernels
from contract.host.resources import matrix_slices
from contract.host.resources import views as host_views
from contract.host.resources.matrix_slices import in_slices
from contract.host.resources.views import slabs
from contract.host.resources.workers import Workers
from contract.host.steps import reductions as host_reductions
from contract.host.steps import tiles as host_tiles


@pytest.mark.parametrize("dtype", ["float32", "complex128", "int64", "bool"])
@pytest.mark.parametrize("stack", [(), (5,), (2, 7), (3, 1, 4)])
@pytest.mark.parametrize("most", [2, 300, 5000, 100_000])
def test_products_of_matrices(
    dtype: str, stack: tuple[int, ...], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix_slices, "longest_slice", lambda dtype: most)
    monkeypatch.setattr(matrix_slices, "SHORTEST", 3)
    rng, calls = np.random.default_rng(most), list[tuple[int, ...]]()
    a = rng.integers(-9, 9, (*stack, 13, 9)).astype(dtype)
    b = rng.integers(-9, 9, (*([1] * len(stack)), 9, 11)).astype(dtype)
    out = np.zeros((*stack, 13, 11), dtype)

    def matmul(one: Any, two: Any, into: Any) -> None:
        calls.append(into.shape)
        assert not into.any(), "written twice"
        np.matmul(one, two, into)

    workers = Workers(3)
    in_slices(matmul, dtype, workers)(a, b, out)
    np.testing.assert_array_equal(out, a @ b)
    assert sum(int(np.prod(shape)) for shape in calls) == out.size
    products = out.size * 9
    assert len(calls) == 1 if products <= most else len(calls) > 1
    workers.close()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_slabs_cover_an_array(order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_views, "SLAB_ELEMENTS", 10)
    x = np.zeros((2, 33, 7)).transpose(order)[::-1]
    y = np.broadcast_to(np.arange(7).reshape([7 if at == 2 else 1 for at in order]), x.shape)
    sizes = []
    for one, two in slabs(x, y):
        one += two + 1
        sizes.append(one.size)
    np.testing.assert_array_equal(x, y + 1)
    assert max(sizes) <= 10
    assert len(list(slabs(x[:0]))) == len(list(slabs(np.zeros(())))) == 1


TEXTS = ("abc,cbd->da", "abc,dbc->da", "abc,cbd->bda", "abc,abc->", "abc,ac->b")


@pytest.mark.parametrize("kernels", ["numba", "numpy"])
@pytest.mark.parametrize("dtype", ["float64", "int64", "bool"])
def test_shares_change_no_bit(
    kernels: str, dtype: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of products, wherever they are cut."""
    sizes = dict(zip("abcd", (40, 30, 50, 60), strict=True))
    given = {
        text: [
            (10 * rng.standard_normal([sizes[mode] for mode in term])).astype(dtype)
            for term in text.partition("->")[0].split(",")
        ]
        for text in TEXTS
    }

    def found() -> list[bytes]:
        with ct.Handle(kernels=kernels, threads=3) as handle:
            calls = (ct.contract(text, *x, handle=handle) for text, x in given.items())
            return [np.asarray(each).tobytes() for each in calls]

    wanted = found()
    monkeypatch.setattr(host_tiles, "SHARE_WORK", 1 << 12)
    monkeypatch.setattr(numpy_kernels, "LOOP_PRODUCTS", 1 << 10)
    monkeypatch.setattr(host_views, "SLAB_ELEMENTS", 100)
    assert found() == wanted


@pytest.mark.parametrize("scalars", [{}, {"alpha": 3, "beta": -2}])
def test_deep_sums_by_tiles_go_in_rounds(
    scalars: dict[str, Any], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = rng.standard_normal((40, 30, 900)), rng.standard_normal((900, 20, 30))
    if scalars:
        scalars = scalars | {"c": rng.standard_normal((30, 30, 40, 20))}
    preference = ct.PlanPreference(algo=ct.Algo.GETT)
    rounds, prepared = [], host_tiles.TileProduct._rounds

    def counted(product: host_tiles.TileProduct) -> Any:
        found = prepared(product)
        rounds.append(len(found))
        return found

    monkeypatch.setattr(host_tiles.TileProduct, "_rounds", counted)
    results = []
    for work in (host_tiles.SHARE_WORK, 1 << 12):
        monkeypatch.setattr(host_tiles, "SHARE_WORK", work)
        with ct.Handle(kernels="numba", threads=3, preference=preference) as handle:
            results.append(ct.contract("aib,bjc->icaj", a, b, handle=handle, **scalars))
    np.testing.assert_array_equal(*results)
    assert rounds[0] == 1 < rounds[-1]


@pytest.mark.parametrize("kernels", ["numba", "numpy"])
@pytest.mark.parametrize("text", ["abc->", "abc->b", "abc->ca", "abc->c"])
def test_reductions_in_many_jobs(
    kernels: str, text: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_reductions, "LONG_PART", 1 << 8)
    monkeypatch.setattr(host_reductions, "SLICE_WORK", 1 << 9)
    x = rng.integers(-9, 9, (70, 40, 50)).astype("f8")
    for operators in ((), ("abs",)):
        value = np.abs(x) if operators else x
        with ct.Handle(kernels=kernels, threads=3) as handle:
            options: dict[str, Any] = {"operators": operators} if operators else {}
            found = ct.reduce(text, x, handle=handle, **options)
        np.testing.assert_array_equal(found, np.einsum(text, value))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_other_threads_end_when_a_call_does(error: type[BaseException]) -> None:
    """In the midst of their parts; afterwards nobody is inside of one."""
    workers, begun, steps = Workers(3), threading.Barrier(3, timeout=60), [0, 0, 0]

    def part(number: int) -> None:
        begun.wait()
        if number == 1:
            raise error
        for _ in workers.going(range(1 << 40)):
            steps[number] += 1
            time.sleep(1e-4)

    with pytest.raises(error):
        workers.map(part, [(number,) for number in range(3)])
    assert not workers.is_inside()
    done = list(steps)
    time.sleep(0.01)
    assert steps == done
    workers.map(lambda number: steps.append(number), [(0,), (1,)])
    assert sorted(steps[3:]) == [0, 1]
    workers.close()
