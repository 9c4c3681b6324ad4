"""Every legal row of types and compute types, on adversarial data, within the promised bound.

The bound is componentwise, against extended precision:
|D - ref| <= |alpha| (2 u_in + (k + 2) u_sum) sum|A||B| + 2 u_sum |beta C| + 2 u_out |ref|,
with k summed terms; complex numbers add a factor 4.
"""

import zlib
from collections.abc import Callable

import numpy as np
import pytest

import contract as ct
from tests.corpus.cases import CONVERSIONS
from tests.reference import BITS, assert_bounded, roundoffs, wide

HANDLES = {name: ct.Handle(kernels=name, threads=2) for name in ("numba", "numpy")}
PASSES = (
    "float16 32F 16F",
    "bfloat16 32F 16BF",
    "float32 32F",
    "float64 64F",
    "complex64 32F",
    "complex128 64F",
)
CONTRACTIONS = (
    "float16 32F 16F",
    "bfloat16 32F 16BF",
    "float32 32F TF32 3XTF32 16BF 16F 9X16BF 4X16F",
    "float64 64F 32F 8XINT8",
    "complex64 32F TF32 3XTF32 9X16BF 4X16F",
    "complex128 64F 32F 8XINT8",
)
MIXED = (
    ("float64", "complex128", "complex128", "64F"),
    ("complex128", "float64", "complex128", "64F"),
)
FLAWS = ("plain", "cancelling", "wide")


def rows(table: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(row.split()[0], kind) for row in table for kind in row.split()[1:]]


def seed(*parts: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(parts).encode()))


def data(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, flaw: str) -> np.ndarray:
    """Random signs; pairs that nearly cancel along every axis; or exponents all over the range."""
    x = rng.uniform(0.5, 1, shape) * rng.choice([-1, 1], shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.uniform(-1, 1, shape)
    if flaw == "cancelling" and x.ndim:
        signs = np.resize([1, -1], shape[-1]) * np.resize([1, -1], shape[:1]).reshape(
            -1, *[1] * (x.ndim - 1)
        )
        x = np.abs(x.real) * 0 + signs * (1 + x * 2.0 ** -(BITS[dtype] - 3))
    if flaw == "wide":
        reach = {"float16": 3, "bfloat16": 20, "float32": 20, "complex64": 20}.get(dtype, 30)
        x = x * 2.0 ** rng.integers(-reach, reach, shape)
    return x.astype(dtype)


PRODUCTS = [
    ("ab,bc->ac", {"a": 3, "b": 5, "c": 4}),
    ("abx,bxc->ca", {"a": 17, "b": 9, "c": 23, "x": 11}),
    ("ab,bc->ac", {"a": 66, "b": 300, "c": 70}),
    ("xaby,ybxc->cxa", {"a": 20, "b": 30, "c": 25, "x": 3, "y": 2}),
    ("ab,ab->ab", {"a": 70, "b": 150}),
    ("ab,b->a", {"a": 40, "b": 900}),
    ("a,a->", {"a": 20000}),
]


@pytest.mark.parametrize("flaw", FLAWS)
@pytest.mark.parametrize(("dtype", "kind"), rows(CONTRACTIONS))
def test_contractions(dtype: str, kind: str, flaw: str) -> None:
    for text, extents in PRODUCTS:
        check_contraction(text, extents, (dtype, dtype), dtype, kind, flaw)


@pytest.mark.parametrize("flaw", FLAWS)
@pytest.mark.parametrize("row", MIXED)
def test_mixed_contractions(row: tuple[str, str, str, str], flaw: str) -> None:
    first, second, result, kind = row
    for text, extents in PRODUCTS:
        check_contraction(text, extents, (first, second), result, kind, flaw)


def check_contraction(
    text: str,
    extents: dict[str, int],
    dtypes: tuple[str, str],
    result: str,
    kind: str,
    flaw: str,
) -> None:
    """By the kernels of each family, against one reference."""
    rng = seed(text, extents, dtypes, kind, flaw)
    inputs, output = text.split("->")
    terms = inputs.split(",")
    x, y = (
        data(rng, tuple(extents[label] for label in term), dtype, flaw)
        for term, dtype in zip(terms, dtypes, strict=True)
    )
    c = data(rng, tuple(extents[label] for label in output[::-1]), result, flaw).T
    alpha, beta = 0.75, -1.5
    product = np.einsum(text, wide(x), wide(y))
    size = np.einsum(text, np.abs(wide(x)), np.abs(wide(y)))
    count = int(np.prod([n for label, n in extents.items() if label not in output]))
    u = roundoffs(result, kind)
    added = abs(beta) * np.abs(wide(c))
    options = {"c": c, "alpha": alpha, "beta": beta, "compute_type": kind}
    for handle in HANDLES.values():
        found = ct.contract(text, x, y, **options, handle=handle)
        assert found.dtype == result
        assert_bounded(found, alpha * product + beta * wide(c), abs(alpha) * size, count, u, added)


@pytest.mark.parametrize("family", HANDLES)
@pytest.mark.parametrize(("dtype", "kind"), rows(CONTRACTIONS))
def test_three_operands(dtype: str, kind: str, family: str) -> None:
    rng = seed(dtype, kind)
    x, y, z = (data(rng, (24, 24), dtype, "plain") for _ in range(3))
    found = ct.contract_trinary("ab,bc,cd->da", x, y, z, compute_type=kind, handle=HANDLES[family])
    wanted = (wide(x) @ wide(y) @ wide(z)).T
    size = (np.abs(wide(x)) @ np.abs(wide(y)) @ np.abs(wide(z))).T
    u_in, u_sum = roundoffs(dtype, kind)
    assert_bounded(found, wanted, size, 2 * 24, (2 * u_in, u_sum))


REDUCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add.reduce,
    "mul": np.multiply.reduce,
    "max": np.maximum.reduce,
    "min": np.minimum.reduce,
}


@pytest.mark.parametrize("family", HANDLES)
@pytest.mark.parametrize("flaw", FLAWS)
@pytest.mark.parametrize(("dtype", "kind"), rows(PASSES))
def test_reductions(dtype: str, kind: str, flaw: str, family: str) -> None:
    for text, axes, shape in (
        ("abc->ca", (1,), (5, 6, 3)),
        ("abc->ac", (1,), (40, 90, 33)),
        ("abc->b", (0, 2), (70, 60, 50)),
        ("ab->b", (0,), (9000, 7)),
        ("a->", (0,), (70000,)),
    ):
        rng = seed(text, shape, dtype, kind, flaw)
        x = data(rng, shape, dtype, flaw)
        for op, function in REDUCTIONS.items():
            complex_order = x.dtype.kind == "c" and op in ("max", "min")
            long_product = op == "mul" and (flaw == "wide" or x.size > 1000)
            if complex_order or long_product:
                continue
            found = ct.reduce(text, x, op=op, alpha=0.5, compute_type=kind, handle=HANDLES[family])
            wanted = 0.5 * np.asarray(function(wide(x), axis=axes))
            size = 0.5 * np.asarray(function(np.abs(wide(x)), axis=axes))
            if text == "abc->ca":
                wanted, size = wanted.T, size.T
            terms = int(np.prod([shape[axis] for axis in axes]))
            if op in ("max", "min"):  # nothing is summed: alpha and the result are rounded
                size, terms = np.abs(wanted), -1
            assert_bounded(found, wanted, size, terms, roundoffs(dtype, kind))


@pytest.mark.parametrize("family", HANDLES)
@pytest.mark.parametrize("flaw", FLAWS)
@pytest.mark.parametrize(("dtype", "kind"), rows(PASSES))
@pytest.mark.parametrize("shape", [(3, 4), (230, 310)])
def test_elementwise_and_permutation(
    dtype: str, kind: str, flaw: str, family: str, shape: tuple[int, int]
) -> None:
    rng = seed(shape, dtype, kind, flaw)
    x, y, z = (data(rng, at, dtype, flaw) for at in (shape, shape[::-1], shape))
    handle = HANDLES[family]
    u = roundoffs(dtype, kind)
    # 16F and 16BF have scalars of 16 bits: these are exact.
    alpha, beta, gamma = 0.75, -1.5, 2
    found = ct.permute("ab->ba", x, alpha=alpha, compute_type=kind, handle=handle)
    wanted = alpha * wide(x).T
    assert_bounded(found, wanted, np.abs(wanted), -1, u)
    found = ct.elementwise_binary(
        "ab,ba->ab", x, y, alpha=alpha, gamma=gamma, compute_type=kind, handle=handle
    )
    parts = [alpha * wide(x), gamma * wide(y).T]
    assert_bounded(found, sum(parts), sum(map(np.abs, parts)), 0, u)
    found = ct.elementwise_trinary(
        "ab,ba,ab->ba",
        x,
        y,
        z,
        op_ab="mul",
        alpha=alpha,
        beta=beta,
        gamma=gamma,
        compute_type=kind,
        handle=handle,
    )
    parts = [alpha * beta * wide(x).T * wide(y), gamma * wide(z).T]
    assert_bounded(found, sum(parts), sum(map(np.abs, parts)), 2, u)


@pytest.mark.parametrize("family", HANDLES)
@pytest.mark.parametrize(("source", "target", "kind"), CONVERSIONS)
def test_converting_permutations(source: str, target: str, kind: str, family: str) -> None:
    x = data(seed(source, target), (130, 120), source, "plain")
    found = ct.permute("ab->ba", x, dtype=target, compute_type=kind, handle=HANDLES[family])
    assert found.dtype == target
    assert_bounded(found, wide(x).T, np.abs(wide(x)).T, 0, (0.0, 0.0))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_errors_of_long_sums_grow_like_their_root(dtype: str) -> None:
    """With random signs the error is far below the bound, which is linear in the terms."""
    rng = seed(dtype)
    x, y = (data(rng, (200, 20000), dtype, "plain") for _ in range(2))
    found = ct.contract("ab,ab->a", x, y, out=np.empty(200, "f4" if dtype == "float16" else dtype))
    exact = np.einsum("ab,ab->a", wide(x), wide(y))
    size = np.einsum("ab,ab->a", np.abs(wide(x)), np.abs(wide(y)))
    u = 2.0 ** -BITS["float32" if dtype == "float16" else dtype]
    assert np.max(np.abs(wide(found) - exact) / size) < 4 * np.sqrt(20000) * u


def test_32_bits_are_a_minimum_for_64_bit_data() -> None:
    """Values beyond the range of float32 stay finite: the type computes in itself."""
    x = np.array([1e200, 2.0])
    for kind in ("32F", "64F"):
        found = ct.contract("a,a->a", x, np.array([1e-200, 3.0]), compute_type=kind)
        np.testing.assert_allclose(found, [1, 6], rtol=1e-15)


@pytest.mark.parametrize("family", HANDLES)
def test_halves_do_not_overflow_on_the_way(family: str) -> None:
    """16-bit sums that leave the range of the type and come back are right."""
    x = np.array([6e4, 6e4, -6e4, -5e4] * 50, "f2")
    for kind in ("32F", "16F"):
        found = ct.reduce("a->", x, alpha=0.02, compute_type=kind, handle=HANDLES[family])
        assert float(found) == float(np.float16(0.02 * wide(x).sum()))
        found = ct.contract(
            "a,a->", x, np.ones_like(x), alpha=0.02, compute_type=kind, handle=HANDLES[family]
        )
        assert float(found) == float(np.float16(0.02 * wide(x).sum()))
