"""Products under limits from none to plenty: right, or refused, by both families of kernels."""

import numpy as np
import pytest

import contract as ct
from tests.corpus.cases import Case
from tests.corpus.checks import assert_product, operands_of
from tests.fuzz.guard import GuardedMemory, NumpyMemory

LONE = ("xab,b->ba", "abx,b->ab", "xab,ab->ab", "axb,bc->ca", "xab,Xb->ab", "xab,aby->ba")
NETWORKS = ("c,cba,b,bc->cb", ",bca,ac,ac->ca", "xab,b,ab->ba", "xab,by,zb->ab")


@pytest.mark.parametrize("text", [*LONE, *NETWORKS])
@pytest.mark.parametrize("memory", "CF")
def test_every_limit(handle: ct.Handle, text: str, memory: str, rng: np.random.Generator) -> None:
    """A mode that is in one operand alone has room for a sum of its own, or has not."""
    labels = dict.fromkeys(x for x in text.lower() if x.isalpha())
    extents = dict(zip(labels, (7, 6, 5, 8, 3), strict=False))
    each = Case(text, extents, ("float64",) * len(text.split(",")))
    operands = operands_of(each, rng, memory * len(each.terms))
    done = 0
    for limit in range(0, 3000, 100):
        for order in "FK":
            try:
                found = ct.contract(
                    each.lower.text, *operands, order=order, memory_limit=limit, handle=handle
                )
            except ct.InsufficientWorkspaceError:
                continue
            assert_product(found, each, operands)
            done += 1
    assert done > 20


def test_a_result_apart_takes_what_its_strides_span(handle: ct.Handle) -> None:
    """``out`` is not aligned, so the result is made elsewhere, with the same strides."""
    x, y = np.ones((3, 4)), np.ones((4, 5))
    memory = np.zeros(8 * 15 * 10 + 1, np.uint8)
    out = np.ndarray((3, 5), np.float64, memory, 1, (80, 240))
    with pytest.raises(ct.InsufficientWorkspaceError):
        ct.contract("ab,bc->ac", x, y, out=out, memory_limit=1000, handle=handle)
    assert not out.any()
    ct.contract("ab,bc->ac", x, y, out=out, memory_limit=2000, handle=handle)
    assert (out == 4).all()


def test_copies_of_unaligned_operands_come_beside_the_result(handle: ct.Handle) -> None:
    memory = np.zeros(8 * 6 * 7 + 1, np.uint8)
    x, y = np.ones((5, 6)), np.ndarray((6, 7), np.float64, memory, 1)
    y[...] = 2
    aligned, bytes_of_result = y.copy(), 5 * 7 * 8
    for alpha in (1, 1, 3):
        limited = {"memory_limit": bytes_of_result + y.nbytes - 8, "alpha": alpha, "handle": handle}
        found = ct.contract("ab,bc->ac", x, aligned, **limited)
        assert (found == 12 * alpha).all()
        with pytest.raises(ct.InsufficientWorkspaceError):
            ct.contract("ab,bc->ac", x, y, **limited)
        found = ct.contract("ab,bc->ac", x, y, **(limited | {"memory_limit": 2000}))
        assert (found == 12 * alpha).all()


def test_scaled_results_with_gaps_keep_to_the_limit(handle: ct.Handle) -> None:
    """NumPy copies such a result when it is scaled in place."""
    x, y = np.ones((2, 3)), np.ones((3, 13, 22))
    rows = np.zeros((22, 27))[::-1, :26]
    out = np.lib.stride_tricks.as_strided(rows, (2, 13, 22), (104, 8, -216))
    memory = GuardedMemory()
    for limit in range(0, 3 * out.nbytes, 100):
        try:
            ct.contract("ab,bcd->acd", x, y, out=out, alpha=2, memory_limit=limit, handle=handle)
        except ct.InsufficientWorkspaceError:
            continue
        with NumpyMemory(memory).guarded():
            ct.contract("ab,bcd->acd", x, y, out=out, alpha=2, memory_limit=limit, handle=handle)
        break
    assert memory.peak <= limit + 64
    assert (out == 6).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_slices_of_a_diagonal_keep_what_c_has_beside_it(handle: ct.Handle, dtype: str) -> None:
    """Results of 16 bits are summed apart, and moved to their place with all that C gave them."""
    x, c = np.ones((6, 3), dtype), np.full((3, 3), 5, dtype)
    found = ct.contract("ab,ab->bb", x, x, c=c, slices={"a": 3}, handle=handle)
    np.testing.assert_array_equal(found.astype(float), 5 + 6 * np.eye(3))
