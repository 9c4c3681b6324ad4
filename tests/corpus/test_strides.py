"""Contractions of arrays as they lie: strides of every kind, odd addresses, overlapping windows."""

import numpy as np
import pytest

import contract as ct
from tests.corpus.cases import Case, case
from tests.corpus.checks import MEMORY, assert_product, check, stored, values
from tests.devices import Device

PRODUCT = case("lmk,kln->nml", 3, 11, 15, 21)


@pytest.mark.parametrize("memory", MEMORY)
def test_operands_of_any_memory(device: Device, memory: str, rng: np.random.Generator) -> None:
    each = Case(PRODUCT.text, PRODUCT.extents, ("float32", "float32"))
    check(device, each, rng, (memory, "F"))
    check(device, each, rng, ("C", memory))


def unaligned(x: np.ndarray) -> np.ndarray:
    """The same values one byte from where elements may lie."""
    memory = np.empty(x.nbytes + 1, np.uint8)
    view = np.ndarray(x.shape, x.dtype, memory.data, 1)
    view[...] = x
    return view


def test_operands_at_odd_addresses(device: Device, rng: np.random.Generator) -> None:
    x, y = values(rng, (9, 8), "float32"), values(rng, (8, 7), "float32")
    each = Case("mk,kn->mn", {"m": 9, "k": 8, "n": 7}, ("float32",) * 2)
    a, b = device.array(unaligned(x)), device.array(y)
    found = ct.contract(each.text, a, b, handle=device.handle)
    assert_product(device.numpy(found), each, [x, y])
    out = device.array(unaligned(np.zeros((9, 7), "f4")))
    ct.contract(each.text, a, b, out=out, handle=device.handle)
    assert_product(device.numpy(out), each, [x, y])


def test_windows_may_overlap(device: Device, rng: np.random.Generator) -> None:
    """A convolution: w strides over x."""
    x, y = values(rng, (300,), "float32"), values(rng, (16, 5), "float32")
    windows = np.lib.stride_tricks.sliding_window_view(x, 16)
    each = Case("wk,kn->wn", {"w": 285, "k": 16, "n": 5}, ("float32",) * 2)
    found = ct.contract(each.text, device.array(windows), device.array(y), handle=device.handle)
    assert_product(device.numpy(found), each, [windows, y])


def test_a_diagonal_view(device: Device, rng: np.random.Generator) -> None:
    x = stored(values(rng, (20, 20, 3), "float32"), "F")
    diagonal = np.lib.stride_tricks.as_strided(
        x, (20, 3), (x.strides[0] + x.strides[1], x.strides[2])
    )
    y = values(rng, (20,), "float32")
    each = Case("ia,i->a", {"i": 20, "a": 3}, ("float32",) * 2)
    found = ct.contract(each.text, device.array(diagonal), device.array(y), handle=device.handle)
    assert_product(device.numpy(found), each, [diagonal, y])
    each = Case("iia,i->a", {"i": 20, "a": 3}, ("float32",) * 2)
    found = ct.contract(each.text, device.array(x), device.array(y), handle=device.handle)
    assert_product(device.numpy(found), each, [x, y])
