"""Every type, mixed ones, and every compute type of the tables."""

from collections.abc import Sequence

import numpy as np
import pytest

import contract as ct
from tests.corpus.cases import (
    CONTRACTIONS,
    CONVERSIONS,
    MIXED,
    MIXED_ELEMENTWISE,
    PASSES,
    TYPES,
    Case,
    case,
)
from tests.corpus.checks import check, values
from tests.devices import Device
from tests.reference import assert_bounded, roundoffs, wide

PRODUCT = case("mk,kn->nm", 13, 300, 21)
REDUCERS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def typed(each: Case, *dtypes: str) -> Case:
    return Case(each.text, each.extents, (dtypes * 2)[:2])


def rows(table: dict[str, Sequence[str]]) -> list[tuple[str, str]]:
    return [(dtype, kind) for dtype, kinds in table.items() for kind in kinds]


@pytest.mark.parametrize("dtype", TYPES)
def test_products_of_every_type(device: Device, dtype: str, rng: np.random.Generator) -> None:
    check(device, typed(PRODUCT, dtype), rng)


@pytest.mark.parametrize("dtypes", MIXED, ids="-".join)
def test_products_of_mixed_types(
    device: Device, dtypes: tuple[str, str], rng: np.random.Generator
) -> None:
    check(device, typed(PRODUCT, *dtypes), rng)


@pytest.mark.parametrize("dtypes", MIXED_ELEMENTWISE, ids="-".join)
def test_sums_of_mixed_types(
    device: Device, dtypes: tuple[str, str], rng: np.random.Generator
) -> None:
    x, y = values(rng, (13, 20), dtypes[0]), values(rng, (13, 20), dtypes[1])
    arrays = device.array(x), device.array(y)
    found = ct.elementwise_binary("ab,ab->ab", *arrays, handle=device.handle)
    common = np.result_type(*dtypes)
    assert found.dtype == common
    if common.kind in "iu":
        wanted = x.astype(common) + y.astype(common)
        np.testing.assert_array_equal(device.numpy(found), wanted)
        return
    size = np.abs(wide(x)) + np.abs(wide(y))
    assert_bounded(device.numpy(found), wide(x) + wide(y), size, 1, roundoffs(common.name))


@pytest.mark.parametrize(("dtype", "kind"), rows(CONTRACTIONS))
def test_compute_types_of_products(
    device: Device, dtype: str, kind: str, rng: np.random.Generator
) -> None:
    check(device, typed(PRODUCT, dtype), rng, compute=kind)


@pytest.mark.parametrize(("dtype", "kind"), rows(PASSES))
def test_compute_types_of_passes(
    device: Device, dtype: str, kind: str, rng: np.random.Generator
) -> None:
    x, y = (values(rng, (40, 31), dtype) for _ in range(2))
    options = {"compute_type": kind, "handle": device.handle}
    a, b = device.array(x), device.array(y)
    u = roundoffs(dtype, kind)
    found = device.numpy(ct.reduce("ab->b", a, alpha=0.5, **options))
    wanted, size = (0.5 * each.sum(0) for each in (wide(x), np.abs(wide(x))))
    assert_bounded(found, wanted, size, 40, u)
    found = device.numpy(ct.permute("ab->ba", a, alpha=0.75, **options))
    assert_bounded(found, 0.75 * wide(x).T, 0.75 * np.abs(wide(x)).T, 0, u)
    found = device.numpy(ct.elementwise_binary("ab,ab->ab", a, b, gamma=-1.5, **options))
    size = np.abs(wide(x)) + 1.5 * np.abs(wide(y))
    assert_bounded(found, wide(x) - 1.5 * wide(y), size, 1, u)


@pytest.mark.parametrize(("source", "target", "kind"), CONVERSIONS)
def test_converting_permutations(
    device: Device, source: str, target: str, kind: str, rng: np.random.Generator
) -> None:
    x = values(rng, (33, 50), source)
    found = ct.permute(
        "ab->ba", device.array(x), dtype=target, compute_type=kind, handle=device.handle
    )
    assert found.dtype == target
    assert_bounded(device.numpy(found), wide(x).T, np.abs(wide(x)).T, 0, (0.0, 0.0))


@pytest.mark.parametrize("dtype", ["int8", "bool", "uint16", "int64", "complex128"])
def test_permutations_move_bits(device: Device, dtype: str, rng: np.random.Generator) -> None:
    x = values(rng, (9, 17, 5), dtype)
    found = ct.permute("abc->cab", device.array(x), handle=device.handle)
    np.testing.assert_array_equal(device.numpy(found), x.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        ("int8", "add"),
        ("uint16", "mul"),
        ("int64", "max"),
        ("uint64", "min"),
        ("bool", "add"),
        ("uint8", "max"),
        ("int32", "mul"),
    ],
)
def test_reductions_of_integers(
    device: Device, dtype: str, op: str, rng: np.random.Generator
) -> None:
    x = values(rng, (7, 40, 5), dtype)
    found = ct.reduce("abc->ac", device.array(x), op=op, handle=device.handle)
    wanted = REDUCERS[op].reduce(x, axis=1, dtype=dtype)
    np.testing.assert_array_equal(device.numpy(found), wanted)


def test_a_sum_of_halves_is_rounded_once(device: Device) -> None:
    """70000 ones, times 0.5: the sum is beyond the largest float16, the result is not."""
    ones = device.array(np.ones(70000, "f2"))
    for found in (
        ct.contract("a,a->", ones, ones, alpha=0.5, handle=device.handle),
        ct.reduce("a->", ones, alpha=0.5, handle=device.handle),
    ):
        assert device.numpy(found) == np.float16(35000)
