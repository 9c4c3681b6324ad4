"""The expressions and shapes of CuPy's own tests of einsum: values, types and contiguity.

Source: github.com/cupy/cupy, tests/cupy_tests/linalg_tests/test_einsum.py.
"""

from typing import Any

import numpy as np
import pytest

import contract as ct
from tests.corpus.test_einsum import assert_einsum
from tests.devices import Device

UNARY = {
    (2, 3): ("ij", "...", "ji"),
    (3,): ("i->",),
    (3, 3): ("ii->i", "ii"),
    (3, 3, 3): ("jii->ij", "iji->ij", "...ii->...i", "iii->i"),
    (2, 3, 4): ("ijk->jik", "ijk->kij", "ijk->ikj", "kji->ikj", "j...i->i...j"),
    (2, 2, 2, 2): (
        *("ijkj->kij", "ijij->ij", "jiji->ij"),
        *("ii...->...", "i...i->...", "...ii->...", "j...i->..."),
    ),
}  # fmt: skip
SEVERAL = {
    ((2,), (3,)): ("i,j",),
    ((2, 3), (3,)): ("ij,j",),
    ((2, 3), (2,)): ("ij,i",),
    ((2, 3), (3, 4)): ("ij,jk",),
    ((3, 4, 2), (4, 3, 2)): ("ijk, jil -> kl", "ij...,ji...->i..."),
    ((3, 4, 2), (4, 2, 3)): ("i...,...k->ki...",),
    ((2, 3, 2, 4), (3, 2, 2)): ("ijil,jkk->kj",),
    ((2, 4, 2, 3), (3, 2, 4)): ("i...ij,ji...->...j",),
    ((2, 3, 4), (3,)): ("ij...,j...->ij...", "ij...,...j->ij...", "ij...,j->ij..."),
    ((4, 3), (3, 2)): (
        *("ik...,k...->i...", "ik...,...kj->i...j", "...k,kj", "ik,k...->i..."),
    ),
    ((2, 3, 4, 5), (4,)): ("ijkl,k", "...kl,k", "...kl,k..."),
    ((1, 1, 1, 2, 3, 4), (2, 3, 4, 2)): ("...lmn,lmno->...o",),
    ((2, 3), (3, 4), (4, 5)): ("ij,jk,kl",),
    ((2, 4), (2, 3), (2,)): ("ij,ik,i->ijk",),
    ((2, 4), (3, 2), (2,)): ("ij,ki,i->jk",),
    ((2, 3, 4), (2,), (3, 4, 2)): ("i...,i,...i->...i",),
}  # fmt: skip
CALLS = [(text, (shape,)) for shape, texts in UNARY.items() for text in texts]
CALLS += [(text, shapes) for shapes, texts in SEVERAL.items() for text in texts]
TYPES = ("float32", "int32", "complex64")
REFUSED = [
    ("..", (2, 2, 2)),
    ("...i...", (2, 2, 2)),
    ("i...->...i...", (2, 2, 2)),
    ("...->", (2, 2, 2)),
    ("i,j", (2,), (2,), (2,)),
    ("ij", (2,)),
    ("ijk...->...", (2, 3)),
    ("i->i", (2, 3)),
    ("i%", (2,)),
    ("j$", (2,)),
    ("i->&", (2,)),
    ("i->ij", (2,)),
    ("ij->jij", (2, 2)),
    ("ij->i,j", (2, 2)),
    ("ii", (2, 3)),
    ("ii->", (2, 3)),
    ("i-i", (2,)),
    ("i>i", (2,)),
    ("i->->i", (2,)),
    ("i-", (2,)),
]


def numbered(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.arange(1, np.prod(shape) + 1).reshape(shape).astype(dtype)


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_expressions(device: Device, call: Any) -> None:
    text, shapes = call
    for dtype in TYPES:
        operands = [numbered(shape, dtype) for shape in shapes]
        arrays = [device.array(x) for x in operands]
        for _ in range(2):
            found = ct.einsum(text, *arrays)
            assert_einsum(device, (text, *operands), found)
            if len(shapes) < 3 and found.ndim:
                wanted = np.einsum(text, *operands).flags
                assert found.flags.c_contiguous or not wanted.c_contiguous
                assert found.flags.f_contiguous or not wanted.f_contiguous


@pytest.mark.parametrize("dtype", TYPES)
def test_scalars(device: Device, dtype: str) -> None:
    x = numbered((2,), dtype)
    for arguments in ((",i->", 3, x), ("i,->", x, 4)):
        given = [device.array(each) if each is x else each for each in arguments]
        found, wanted = ct.einsum(*given), np.einsum(*arguments)
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(device.numpy(found), wanted)


@pytest.mark.parametrize("call", REFUSED, ids=str)
def test_refusals(device: Device, call: Any) -> None:
    text, *shapes = call
    with pytest.raises(ct.InvalidValueError):
        ct.einsum(text, *(device.array(np.zeros(shape)) for shape in shapes))
