"""Every unary operator, three to a kernel, some of them in every verb; every binary operator."""

from collections.abc import Callable
from itertools import cycle

import numpy as np
import pytest

import contract as ct
from tests.corpus.checks import values
from tests.devices import Device
from tests.reference import UNARY, assert_bounded, roundoffs, wide

NAMES = tuple(UNARY)
REALS = ("float32", "float64", "float16", "bfloat16")
THREES = [
    ((*NAMES, *NAMES)[at : at + 3], dtype)
    for at, dtype in zip(range(0, len(NAMES), 3), cycle(REALS), strict=False)
]
BINARY: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def inside(rng: np.random.Generator, shape: tuple[int, ...], name: str, dtype: str) -> np.ndarray:
    """Numbers where the operator is defined and no worse conditioned than a few units."""
    low, high = (1.25, 2.0) if name == "acosh" else (0.125, 0.875)
    return rng.uniform(low, high, shape).astype(dtype)


def assert_evaluated(found: np.ndarray, wanted: np.ndarray) -> None:
    """To 16 roundoffs of the type computed in, and the rounding of the result."""
    size = np.maximum(np.abs(wanted), 0.25)
    assert_bounded(found, wanted, size, 14, roundoffs(found.dtype.name))


@pytest.mark.parametrize(("names", "dtype"), THREES)
def test_elementwise(
    device: Device, names: tuple[str, ...], dtype: str, rng: np.random.Generator
) -> None:
    x, y, z = (inside(rng, (33, 7), name, dtype) for name in names)
    found = ct.elementwise_trinary(
        "ab,ab,ab->ab",
        *map(device.array, (x, y, z)),
        op_ab="max",
        operators=names,
        gamma=0.5,
        handle=device.handle,
    )
    f, g, h = (UNARY[name] for name in names)
    assert_evaluated(device.numpy(found), np.maximum(f(wide(x)), g(wide(y))) + 0.5 * h(wide(z)))


@pytest.mark.parametrize(("name", "dtype"), [*zip(NAMES[1::3], cycle(REALS), strict=False)])
def test_permutations(device: Device, name: str, dtype: str, rng: np.random.Generator) -> None:
    x = inside(rng, (33, 7), name, dtype)
    x[0, :3] = np.nan, np.inf, -np.inf
    found = ct.permute("ab->ba", device.array(x), operator=name, handle=device.handle)
    with np.errstate(all="ignore"):
        wanted = UNARY[name](wide(x)).T
    found = device.numpy(found)
    special = np.s_[:3, 0]
    np.testing.assert_array_equal(found[special].astype("f8")[1:], wanted[special].astype("f8")[1:])
    assert np.isnan(found[0, 0])
    assert_evaluated(found[:, 1:], wanted[:, 1:])


@pytest.mark.parametrize(("names", "dtype"), THREES[: len(REALS)])
def test_products(
    device: Device, names: tuple[str, ...], dtype: str, rng: np.random.Generator
) -> None:
    shapes = (9, 11), (11, 5), (5, 9)
    x, y, z = (inside(rng, at, name, dtype) for at, name in zip(shapes, names, strict=True))
    a, b, c = map(device.array, (x, y, np.asfortranarray(z.T)))
    found = ct.contract("mk,kn->mn", a, b, c=c, operators=names, handle=device.handle)
    f, g, h = (UNARY[name] for name in names)
    left, right, added = f(wide(x)), g(wide(y)), h(wide(z).T)
    size = np.abs(left) @ np.abs(right) + np.maximum(np.abs(added), 0.25)
    u = roundoffs(dtype)
    assert_bounded(device.numpy(found), left @ right + added, size, 11 + 32, u)


@pytest.mark.parametrize(("name", "dtype"), [*zip(NAMES[2::4], cycle(REALS), strict=False)])
def test_reductions(device: Device, name: str, dtype: str, rng: np.random.Generator) -> None:
    """The operand's operator and that of C."""
    of_c = NAMES[NAMES.index(name) - 1]
    x, z = inside(rng, (33, 7), name, dtype), inside(rng, (33,), of_c, dtype)
    found = ct.reduce(
        "ab->a",
        device.array(x),
        c=device.array(z),
        beta=0.5,
        operators=(name, of_c),
        handle=device.handle,
    )
    terms, added = UNARY[name](wide(x)), UNARY[of_c](wide(z))
    size = np.maximum(np.abs(terms), 0.25).sum(1) + 0.5 * np.abs(added)
    wanted = terms.sum(1) + 0.5 * added
    assert_bounded(device.numpy(found), wanted, size, 7 + 16, roundoffs(dtype))


def test_conjugates(device: Device, rng: np.random.Generator) -> None:
    x, y = values(rng, (9, 11), "complex64"), values(rng, (11, 5), "complex64")
    a, b, u = device.array(x), device.array(y), roundoffs("complex64")
    found = ct.contract("mk,kn->mn", a, b, operators=("conj", None), handle=device.handle)
    size = np.abs(wide(x)) @ np.abs(wide(y))
    assert_bounded(device.numpy(found), wide(x).conj() @ wide(y), size, 11, u)
    found = ct.permute("ab->ba", a, operator="conj", alpha=1j, handle=device.handle)
    wanted = 1j * wide(x).conj().T
    assert_bounded(device.numpy(found), wanted, np.abs(wanted), 1, u)
    found = ct.reduce("ab->b", a, operators=("conj",), handle=device.handle)
    wanted = wide(x).conj().sum(0)
    assert_bounded(device.numpy(found), wanted, np.abs(wide(x)).sum(0), 9, u)


def test_relu_of_integers(device: Device, rng: np.random.Generator) -> None:
    x = values(rng, (9, 11), "int16")
    found = ct.permute("ab->ba", device.array(x), operator="relu", handle=device.handle)
    np.testing.assert_array_equal(device.numpy(found), np.maximum(x, 0).T)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        *zip(BINARY, ("float16", "complex64", "bfloat16", "float64"), strict=True),
        *zip(BINARY, ("int8", "uint64", "float32", "bool"), strict=True),
    ],
)
def test_binary(device: Device, op: str, dtype: str, rng: np.random.Generator) -> None:
    x, y = values(rng, (13, 20), dtype), values(rng, (20, 13), dtype)
    a, b = device.array(x), device.array(np.asfortranarray(y))
    found = device.numpy(ct.elementwise_binary("ab,ba->ab", a, b, op=op, handle=device.handle))
    if np.dtype(dtype).kind in "iub":
        np.testing.assert_array_equal(found, BINARY[op](x, y.T))
        return
    size = np.abs(wide(x)) + np.abs(wide(y).T)
    assert_bounded(found, BINARY[op](wide(x), wide(y).T), size, 1, roundoffs(dtype))


@pytest.mark.parametrize(("op", "dtype"), [("max", "float32"), ("min", "bfloat16")])
def test_nan_propagates(device: Device, op: str, dtype: str) -> None:
    x = np.ones((40, 3), dtype)
    x[17, 1] = np.nan
    a = device.array(x)
    found = device.numpy(ct.reduce("ab->b", a, op=op, handle=device.handle)).astype("f4")
    np.testing.assert_array_equal(found, [1, np.nan, 1])
    for text in ("ab,b->ab", "b,ab->ab"):
        row = device.array(np.ones(3, dtype))
        pair = (a, row) if text.startswith("ab") else (row, a)
        found = ct.elementwise_binary(text, *pair, op=op, handle=device.handle)
        np.testing.assert_array_equal(device.numpy(found).astype("f4"), x.astype("f4"))
