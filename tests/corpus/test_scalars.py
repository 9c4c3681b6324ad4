"""alpha, beta and C: values, layouts, in place, and what is not to be read or written."""

from typing import Any

import numpy as np
import pytest

import contract as ct
from tests.corpus.cases import Case, case
from tests.corpus.checks import Scaling, assert_product, operands_of, stored, values
from tests.devices import Device
from tests.reference import assert_bounded, roundoffs, wide

PRODUCT = case("mk,kn->mn", 13, 21, 35)
BATCHED = case("lmk,lkn->nml", 3, 7, 5, 9)
DTYPES = ("float32", "complex128", "float16", "int32")


def scaled(each: Case, dtype: str) -> Case:
    return Case(each.text, each.extents, (dtype, dtype))


def run(device: Device, each: Case, operands: list[np.ndarray], **options: Any) -> Any:
    arrays = [device.array(x) for x in operands]
    return ct.contract(each.text, *arrays, handle=device.handle, **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_alpha_and_beta(device: Device, dtype: str, rng: np.random.Generator) -> None:
    each = scaled(PRODUCT, dtype)
    operands = operands_of(each, rng)
    c = stored(values(rng, each.shape(each.output), dtype), "F")
    complex_ = dtype.startswith("complex")
    for alpha, beta in ((3, 2), (2, 0), (0, 3), (0, 0), (1, 2 - 1j if complex_ else 1)):
        found = run(device, each, operands, alpha=alpha, beta=beta, c=device.array(c))
        assert_product(device.numpy(found), each, operands, Scaling(alpha, beta, c))


@pytest.mark.parametrize("memory", ["C", "sliced", "reversed", "transposed", "repeated"])
@pytest.mark.parametrize("each", [PRODUCT, BATCHED], ids=str)
def test_c_in_another_layout(
    device: Device, each: Case, memory: str, rng: np.random.Generator
) -> None:
    each = scaled(each, "float32")
    operands = operands_of(each, rng)
    c = stored(values(rng, each.shape(each.output), "float32"), memory)
    found = run(device, each, operands, alpha=-1.5, beta=0.5, c=device.array(c))
    assert_product(device.numpy(found), each, operands, Scaling(-1.5, 0.5, c))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_c_is_updated_in_place(device: Device, dtype: str, rng: np.random.Generator) -> None:
    each = scaled(PRODUCT, dtype)
    operands = operands_of(each, rng)
    c = stored(values(rng, each.shape(each.output), dtype), "C")
    d = device.array(c.copy())
    assert run(device, each, operands, alpha=2, beta=-1, c=d, out=d) is d
    assert_product(device.numpy(d), each, operands, Scaling(2, -1, c))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("memory", ["sliced", "reversed", "transposed", "offset"])
def test_out_in_any_layout(
    device: Device, dtype: str, memory: str, rng: np.random.Generator
) -> None:
    each = scaled(PRODUCT, dtype)
    operands = operands_of(each, rng)
    out = device.array(stored(values(rng, each.shape(each.output), dtype), memory))
    assert run(device, each, operands, out=out) is out
    assert_product(device.numpy(out), each, operands)


@pytest.mark.parametrize("text", ["mk,kn->mn", "mk,m->km", "mkn->mn", "mn->nm", "m->mm"])
@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_gaps_of_out_are_not_written(
    device: Device, text: str, dtype: str, rng: np.random.Generator
) -> None:
    each = Case(text, {"m": 9, "k": 8, "n": 6}, (dtype,) * 2)
    operands = operands_of(each, rng)
    m, n = each.shape(each.output)
    whole = device.array(np.full((2 * m + 1, 3 * n + 2), 77, dtype, order="F"))
    out = whole[1 : 2 * m : 2, 1 : 3 * n : 3]
    run(device, each, operands, out=out)
    found = device.numpy(whole)
    assert_product(found[1 : 2 * m : 2, 1 : 3 * n : 3], each, operands)
    found[1 : 2 * m : 2, 1 : 3 * n : 3] = 77
    assert (found == 77).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_scaled_by_zero_is_not_read(
    device: Device, dtype: str, rng: np.random.Generator
) -> None:
    each = scaled(PRODUCT, dtype)
    operands = operands_of(each, rng)
    shape = each.shape(each.output)
    nan = [np.full(x.shape, np.nan, dtype, order="F") for x in operands]
    nans, c = np.full(shape, np.nan, dtype, order="F"), stored(values(rng, shape, dtype), "F")
    found = run(device, each, operands, alpha=2, beta=0, c=device.array(nans))
    assert_product(device.numpy(found), each, operands, Scaling(2))
    out = device.array(nans.copy())
    run(device, each, operands, out=out)
    assert_product(device.numpy(out), each, operands)
    found = device.numpy(run(device, each, nan, alpha=0, beta=0.5, c=device.array(c)))
    assert_bounded(found, 0.5 * wide(c), np.abs(wide(c)), 0, roundoffs(dtype))
    assert (device.numpy(run(device, each, nan, alpha=0)) == 0).all()
    a = device.array(nan[0])
    assert (device.numpy(ct.permute("ab->ba", a, alpha=0, handle=device.handle)) == 0).all()
    assert (device.numpy(ct.reduce("ab->a", a, alpha=0, handle=device.handle)) == 0).all()
    b = values(rng, nan[0].shape, dtype)
    found = ct.elementwise_binary("ab,ab->ab", a, device.array(b), alpha=0, handle=device.handle)
    np.testing.assert_array_equal(device.numpy(found), b)


@pytest.mark.parametrize("alpha", [0, 1])
def test_nothing_is_added_to_nothing(device: Device, alpha: int) -> None:
    """C without elements, its strides those of a view."""
    a, b = (device.array(np.ones(shape, "f4")) for shape in ((0, 2, 3, 4), (4,)))
    c = device.array(np.ones((5, 2, 3), "f4"))[:0]
    options = {"alpha": alpha, "c": c, "handle": device.handle}
    assert ct.contract("abcd,d->abc", a, b, **options).shape == (0, 2, 3)
    assert ct.reduce("abcd->abc", a, **options).shape == (0, 2, 3)


def test_nan_in_operands_arrives(device: Device) -> None:
    x = np.zeros((9, 9), "f4", order="F")
    x[3, 4] = np.nan
    a, b = device.array(x), device.array(np.zeros((9, 9), "f4", order="F"))
    found = device.numpy(ct.contract("mk,kn->mn", a, b, handle=device.handle))
    np.testing.assert_array_equal(np.isnan(found).any(1), np.arange(9) == 3)


@pytest.mark.parametrize("order", "FCK")
def test_order(device: Device, order: str, rng: np.random.Generator) -> None:
    each = scaled(BATCHED, "float32")
    operands = operands_of(each, rng)
    found = run(device, each, operands, order=order)
    assert order == "K" or found.flags[f"{order}_CONTIGUOUS"]
    assert_product(device.numpy(found), each, operands)
