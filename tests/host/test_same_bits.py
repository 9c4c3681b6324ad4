"""The same call gives the same bits: the first one and later ones, a new result and a given one."""

import subprocess
import sys

import numpy as np
import pytest

from contract import Handle, contract, contract_expression, einsum


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that are checked run in steps, the first time and later."""
    monkeypatch.setenv("CONTRACT_CHECK", "0")


SMALL = {
    "ba,a,a->b": ((3, 7), (7,), (7,)),
    "abcd,cdb->c": ((3, 2, 13, 13), (13, 13, 2)),
    "bcc,ca->a": ((9, 6, 6), (6, 7)),
    "b,c->b": ((9,), (5,)),
    "ab,bc->ac": ((5, 6), (6, 7)),
    "abc,bd->dac": ((3, 4, 5), (4, 6)),
    "aecd,afcd->ce": ((7, 1, 9, 1), (7, 5, 9, 1)),  # NumPy gives extents 1 any strides
    "eaf,cead->eaf": ((7, 1, 3), (4, 7, 1, 3)),
    ",dabc,c->ad": ((), (4, 1, 13, 7), (7,)),
}


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("text", SMALL)
@pytest.mark.parametrize("order", ["F", "C"])
def test_first_and_later_calls(
    handle: Handle, text: str, dtype: str, order: str, rng: np.random.Generator
) -> None:
    operands = [np.asarray(rng.standard_normal(shape)).astype(dtype) for shape in SMALL[text]]
    first = contract(text, *operands, order=order, handle=handle)
    into = np.full_like(first, np.nan)
    planned = contract_expression(text, *operands, order=order, handle=handle)
    for other in (
        contract(text, *operands, order=order, handle=handle),
        contract(text, *operands, order=order, handle=handle, out=into),
        planned(),
        planned(out=np.full_like(first, np.nan)),
    ):
        assert other.flags.f_contiguous == first.flags.f_contiguous
        np.testing.assert_array_equal(other, first)


def test_scaled_sums_warn_of_nothing(handle: Handle) -> None:
    x, y = np.full((3, 4), 1e300), np.ones(4)
    for _ in range(2):
        assert np.isinf(contract("ab,b->a", x, y, alpha=1e9, handle=handle)).all()


def test_a_result_that_is_an_operand(handle: Handle, rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((2, 4, 4))
    wanted = x @ y
    assert contract("ab,bc->ac", x, y, out=x, order="C", handle=handle) is x
    np.testing.assert_allclose(x, wanted)


EMPTY = """
import numpy as np
from contract import contract
from tests.fuzz.guard import GuardedMemory, NumpyMemory
with NumpyMemory(GuardedMemory()).guarded():
    for order in "FFCC":
        found = contract("cb,ac->acb", np.ones((4, 0)), np.ones((9, 4)), order=order)
        assert found.shape == (9, 4, 0)
        del found
"""


def test_results_without_elements() -> None:
    """numpy.einsum accesses memory behind such results, so nobody may call it."""
    done = subprocess.run([sys.executable, "-c", EMPTY], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _drawn(rng: np.random.Generator) -> tuple[str, list[np.ndarray]]:
    """A small expression; extents of 1 are frequent, and operands lie in memory in any way."""
    extents = dict(zip("abcdef", rng.choice([1, 2, 3, 5, 7, 13], 6), strict=True))
    terms = ["".join(rng.permutation(list(extents))[: rng.integers(0, 5)]) for _ in range(3)]
    terms = terms[: rng.integers(1, 4)]
    operands = []
    for term in terms:
        axes = rng.permutation(len(term))
        shape = np.array([extents[x] for x in term], int)
        x = np.asarray(rng.standard_normal(shape[axes]).transpose(np.argsort(axes)))
        operands.append(x[(slice(None, None, -1),) * int(rng.integers(0, x.ndim + 1))])
    labels = sorted(set("".join(terms)))
    output = "".join(rng.permutation(labels)[: rng.integers(0, 5)])
    return f"{','.join(terms)}->{output}", operands


@pytest.mark.parametrize("order", "FCKA")
def test_any_expression(handle: Handle, order: str, rng: np.random.Generator) -> None:
    for _ in range(60):
        text, operands = _drawn(rng)
        first = contract(text, *operands, order=order, handle=handle)
        new = contract(text, *operands, order=order, handle=handle)
        into = np.full_like(first, np.nan)
        contract(text, *operands, order=order, handle=handle, out=into)
        assert first.tobytes("A") == new.tobytes("A"), text
        assert first.tobytes("C") == into.tobytes("C"), text


def test_einsum(rng: np.random.Generator) -> None:
    for _ in range(200):
        text, operands = _drawn(rng)
        first = np.array(einsum(text, *operands))
        into = np.full_like(first, np.nan)
        einsum(text, *operands, out=into)
        assert first.tobytes("C") == np.asarray(einsum(text, *operands)).tobytes("C"), text
        assert first.tobytes("C") == into.tobytes("C"), text
