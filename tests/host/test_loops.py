"""Products loop by loop, compiled: against sums in higher precision, for every way of lying."""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import contract as ct
from contract.host.compiled_kernels import CompiledKernels
from contract.host.kernels.protocol import LoopRow
from contract.host.resources.workers import Workers
from contract.machines.cpu import COMPILED
from contract.planner.host.vector_loops import vectors_each
from contract.planner.planner import ranked_plans

pytest.importorskip("numba")

Array = np.ndarray[Any, Any]
KERNELS = {threads: CompiledKernels(Workers(threads)) for threads in (1, 3)}
TYPES = ("float64", "float32", "complex128", "complex64", "int8", "uint16", "int64")
WIDE = {"f": np.longdouble, "c": np.clongdouble, "i": np.int64, "u": np.uint64}


def values(rng: np.random.Generator, size: int, dtype: str) -> Array:
    kind = np.dtype(dtype).kind
    if kind in "iu":
        return rng.integers(0, 100, size).astype(dtype)
    made = rng.standard_normal(size)
    return (made + 1j * rng.standard_normal(size) if kind == "c" else made).astype(dtype)


def memory(table: Sequence[LoopRow], operand: int) -> tuple[int, int]:
    """Where element 0 of an operand is, and how much memory it lies in."""
    reaches = [(extent - 1) * steps[operand] for _, extent, steps in table if extent]
    origin = sum(-reach for reach in reaches if reach < 0)
    return origin, origin + sum(reach for reach in reaches if reach > 0) + 1


def check(table: Sequence[LoopRow], dtype: str, threads: int) -> None:
    """One product; what is not of D keeps its value."""
    rng = np.random.default_rng(len(table))
    (a0, size_a), (b0, size_b), (d0, size_d) = (memory(table, operand) for operand in range(3))
    a, b = values(rng, size_a, dtype), values(rng, size_b, dtype)
    d = np.full(size_d + 2, 77, dtype)
    wide = WIDE[np.dtype(dtype).kind]
    expected, bound = d.astype(wide), np.zeros(d.size)
    places = list(product(*(range(extent) for _, extent, _ in table)))
    at = np.array(places, np.int64).reshape(len(places), len(table))
    in_a, in_b, in_d = (
        origin + at @ np.array([steps[operand] for *_, steps in table], np.int64)
        for operand, origin in ((0, a0), (1, b0), (2, d0 + 1))
    )
    kept = list(product(*(range(n if kind != "k" else 1) for kind, n, _ in table)))
    of_d = np.array(kept, np.int64).reshape(len(kept), len(table))
    expected[d0 + 1 + of_d @ np.array([steps[2] for *_, steps in table], np.int64)] = 0
    products = a.astype(wide)[in_a] * b.astype(wide)[in_b]
    np.add.at(expected, in_d, products)
    np.add.at(bound, in_d, np.abs(products).astype(float))
    KERNELS[threads].loops(dtype, table)(a, a0, b, b0, d, d0 + 1)
    if np.dtype(dtype).kind in "iu":
        np.testing.assert_array_equal(d, expected.astype(dtype))
        return
    summed = prod(n for kind, n, _ in table if kind == "k")
    error = np.abs(d.astype(wide) - expected).astype(float)
    assert np.all(error <= (summed + 4) * np.finfo(dtype).eps * bound)


@st.composite
def tables(draw: st.DrawFn) -> list[LoopRow]:
    """Loops of any kind; each operand packed in an order of its own, with gaps and backwards."""
    kinds = draw(st.lists(st.sampled_from("lmnk"), min_size=0, max_size=5))
    extents = [draw(st.sampled_from((0, 1, 2, 3, 5, 8, 9, 17, 33))) for _ in kinds]
    while prod(extents) > 40_000:
        extents[extents.index(max(extents))] = 2
    columns = []
    for without in "nmk":
        own = [at for at, kind in enumerate(kinds) if kind != without]
        steps, next_ = [0] * len(kinds), draw(st.sampled_from((1, 1, 1, 2)))
        for at in draw(st.permutations(own)):
            steps[at] = next_ * draw(st.sampled_from((1, 1, 1, -1)))
            next_ = next_ * max(extents[at], 1) + draw(st.sampled_from((0, 0, 1)))
        columns.append(steps)
    steps = zip(*columns, strict=True)
    return [(kind, n, each) for kind, n, each in zip(kinds, extents, steps, strict=True)]


@pytest.mark.parametrize("dtype", TYPES)
@settings(max_examples=60, deadline=None)
@given(table=tables(), threads=st.sampled_from((1, 3)))
def test_any_loops(dtype: str, table: list[LoopRow], threads: int) -> None:
    check(table, dtype, threads)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("threads", [1, 3])
def test_long_rows_in_pieces(dtype: str, threads: int) -> None:
    """Rows longer than what stays in cache, contiguous in D or not; dot products of many steps."""
    n = 5003
    check([("m", n, (1, 0, 1)), ("k", 6, (n, 1, 0))], dtype, threads)
    check([("m", n, (1, 0, 3)), ("k", 5, (n, 1, 0))], dtype, threads)
    check([("l", n, (1, 1, 1)), ("k", 3, (n, n, 0))], dtype, threads)
    check([("k", 4 * n, (1, 1, 0)), ("m", 3, (4 * n, 0, 1))], dtype, threads)


def test_sums_too_long_for_tables() -> None:
    """Three strided sums: their offsets would be more than a table holds."""
    rng = np.random.default_rng(1)
    table: list[LoopRow] = [
        ("k", 50, (2, 7500, 0)),
        ("k", 50, (100, 150, 0)),
        ("k", 50, (5000, 3, 0)),
    ]
    a, b, d = rng.random(250_000), rng.random(400_000), np.zeros(1)
    KERNELS[3].loops("float64", table)(a, 0, b, 0, d, 0)
    x = a.reshape(50, 50, 50, 2)[..., 0]
    y = np.lib.stride_tricks.as_strided(b, (50, 50, 50), (24, 1200, 60000))
    np.testing.assert_allclose(d[0], np.sum(x * y), rtol=1e-12)


def test_values_that_are_not_finite_stay_where_they_are() -> None:
    """What fills a vector up has no part in a result."""
    a, b = np.ones((5, 13)), np.ones((13, 7))
    a[2, 12], b[3, 6] = np.nan, np.inf
    table: list[LoopRow] = [("m", 5, (13, 0, 7)), ("k", 13, (1, 7, 0)), ("n", 7, (0, 1, 1))]
    d = np.zeros((5, 7))
    KERNELS[1].loops("float64", table)(a.ravel(), 0, b.ravel(), 0, d.ravel(), 0)
    np.testing.assert_array_equal(d, a @ b)


def test_small_products_of_a_long_batch_go_loop_by_loop() -> None:
    """They are worth no packing, as long as vectors run along the batch."""
    text, extents = "gij,gj->gi", {"g": 3000, "i": 20, "j": 20}
    rng = np.random.default_rng(2)
    a, b = (np.asfortranarray(rng.random([extents[x] for x in term])) for term in ("gij", "gj"))
    np.testing.assert_allclose(ct.contract(text, a, b), np.einsum(text, a, b), rtol=1e-12)


def test_complex_products_cost_several_real_ones() -> None:
    """The model's seconds for a long batch of small products, in memory that is near."""
    found = []
    for dtype in ("float64", "complex128"):
        modes = {"g": 3000, "i": 8, "j": 8, "k": 8}
        operands = [
            ct.Operand(ct.TensorDescriptor([modes[x] for x in term], None, dtype), tuple(term))
            for term in ("gij", "gjk", "gik")
        ]
        operation = ct.Contraction(tuple(operands[:2]), operands[2])
        plans = ranked_plans(operation, ct.PlanPreference(), COMPILED)
        looped = (plan for plan in plans if "loop by loop" in str(plan.considered[0].chosen.reason))
        found.append(next(looped).seconds)
    assert 3 < found[1] / found[0] < 12


def test_what_vectors_cost() -> None:
    """Long contiguous rows cost least; a strided row costs more than one with a rest."""
    long, short = (vectors_each(n, 1, 0, False, "float64") for n in (4096, 9))
    assert 1 / 8 < long < short < vectors_each(9, 2, 0, False, "float64")
    assert vectors_each(64, 1, 1, True, "int8") > vectors_each(64, 1, 1, False, "int8")
