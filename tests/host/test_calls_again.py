"""Calls like earlier ones: found as their caller wrote them, and still refused where they must."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.api import contraction as api
from contract.api import einsum as numpy_einsum
from contract.api import elementwise
from contract.errors import InvalidValueError

rng = np.random.default_rng(22)
A, B, C = (rng.standard_normal((4, 4)) for _ in range(3))
HALF = rng.integers(-3, 3, (4, 4)).astype("float16")
T = rng.standard_normal((3, 3, 3))
OUT = np.empty((4, 4), order="F")
PRODUCT = ct.contract_expression("ij,jk->ik", (4, 4), (4, 4))

CALLS: dict[str, tuple[Callable[[], Any], Any]] = {
    "plain": (lambda: ct.contract("ij,jk->ik", A, B), A @ B),
    "labels": (lambda: ct.contract(A, ["i", "j"], B, ["j", "k"], ["i", "k"]), A @ B),
    "alpha": (lambda: ct.contract("ij,jk->ik", A, B, alpha=2.5), 2.5 * (A @ B)),
    "c": (lambda: ct.contract("ij,jk->ik", A, B, c=C), A @ B + C),
    "beta": (lambda: ct.contract("ij,jk->ik", A, B, c=C, beta=0.5), A @ B + C / 2),
    "unread": (lambda: ct.contract("ij,jk->ik", A, B, c=C, beta=0), A @ B),
    "out": (lambda: ct.contract("ij,jk->ik", A, B, out=OUT), A @ B),
    "out and c": (lambda: ct.contract("ij,jk->ik", A, B, out=OUT, c=C), A @ B + C),
    "operators": (lambda: ct.contract("ij,jk->ik", A, B, operators=("neg", "abs")), -A @ abs(B)),
    "half": (lambda: ct.contract("ij,jk->ik", HALF, HALF, c=HALF, alpha=2), 2 * HALF @ HALF + HALF),
    "batch": (lambda: ct.contract("ijk,ikl->ijl", T, T, c=T), np.matmul(T, T) + T),
    "a list": (lambda: ct.contract("ij,jk->ik", A, B, operators=["neg", None]), -A @ B),
    "order": (lambda: ct.contract("ij,jk->ik", A, B, order="C"), A @ B),
    "three": (lambda: ct.contract("ij,jk,kl->il", A, B, C), A @ B @ C),
    "one thrice": (lambda: ct.contract("ij,jk,kl->il", A, A, A), A @ A @ A),
    "path": (lambda: ct.contract("ij,jk,kl->il", A, B, C, optimize=[(1, 2), (0, 1)]), A @ B @ C),
    "permute": (lambda: ct.permute("ij->ji", A), A.T),
    "scaled permute": (lambda: ct.permute("ij->ji", A, alpha=3.0, operator="neg"), -3 * A.T),
    "typed permute": (lambda: ct.permute("ij->ji", A, dtype="float32"), A.T.astype("f4")),
    "relu": (lambda: ct.contract("ij,jk", A, B, operators=("relu", None)), np.maximum(A, 0) @ B),
    "reduce": (lambda: ct.reduce("ij->i", A), A.sum(1)),
    "largest": (lambda: ct.reduce("ij->i", A, op="max", alpha=2), 2 * A.max(1)),
    "reduce to c": (lambda: ct.reduce("ij->i", A, c=C[0], beta=3), A.sum(1) + 3 * C[0]),
    "binary": (lambda: ct.elementwise_binary("ij,ji->ij", A, B), A + B.T),
    "gamma": (lambda: ct.elementwise_binary("ij,ij->ij", A, B, op="mul", gamma=2), 2 * A * B),
    "trinary": (lambda: ct.elementwise_trinary("ij,ij,ij->ij", A, A, A, beta=2), 4 * A),
    "einsum": (lambda: ct.einsum("ij,jk->ik", A, B), A @ B),
    "einsum to out": (lambda: ct.einsum("ij,jk->ik", A, B, out=OUT), A @ B),
    "typed einsum": (
        lambda: ct.einsum("ij,jk->ik", A, B, dtype="float32", casting="same_kind"),
        A.astype("f4") @ B.astype("f4"),
    ),
    "einsum by a path": (
        lambda: ct.einsum("ij,jk,kl", A, B, C, optimize=["einsum_path", (1, 2), (0, 1)]),
        A @ B @ C,
    ),
    "trace": (lambda: ct.einsum("ii->", A), np.trace(A)),
    "tensordot": (lambda: ct.tensordot(A, B, 1), A @ B),
    "row-major": (lambda: PRODUCT(A, B), A @ B),
    "expression to out": (lambda: PRODUCT(A, B, out=OUT), A @ B),
    "expression with c": (lambda: PRODUCT(A, B, c=C, beta=2.0), A @ B + 2 * C),
}


def refuse(*arguments: Any, **named: Any) -> Any:
    raise AssertionError("looked at again")


@pytest.mark.parametrize("name", CALLS)
def test_what_was_checked_once_is_not_checked_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, wanted = CALLS[name]
    first = call().copy(order="K")
    np.testing.assert_allclose(first, wanted, rtol=1e-5)
    for module in (api, elementwise, numpy_einsum):
        monkeypatch.setattr(module, "Options", refuse)
        monkeypatch.setattr(module, "evaluate", refuse)
    again = call()
    assert again.tobytes("A") == first.tobytes("A")
    assert (again.dtype, again.strides) == (first.dtype, first.strides)


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("value", [np.ones(2), "x", 1j])
def test_scalars_are_checked_in_every_call(name: str, value: Any) -> None:
    ct.contract("ij,jk->ik", A, B, c=C)
    ct.contract("ij,jk->ik", A, B, c=C, alpha=2.0, beta=2.0)
    with pytest.raises(InvalidValueError, match=name):
        ct.contract("ij,jk->ik", A, B, c=C, **{name: value})
    PRODUCT(A, B, c=C)
    with pytest.raises(InvalidValueError, match=name):
        PRODUCT(A, B, c=C, **{name: value})


@pytest.mark.parametrize("text", ["ij->ji", "ij->ij", "ii->i", "i...->...i"])
def test_views_are_views_in_every_call(text: str) -> None:
    x = A.copy()
    for _ in range(2):
        view = ct.einsum(text, x)
        assert view.base is x
        np.testing.assert_array_equal(view, np.einsum(text, x))
        with pytest.raises(InvalidValueError):
            ct.einsum("ij->jj", x)
        with pytest.raises(InvalidValueError):
            ct.einsum("ii->i", x[:2])


def test_beta_needs_a_c_in_every_call() -> None:
    for _ in range(2):
        ct.contract("ij,jk->ik", A, B)
        PRODUCT(A, B)
        for verb in (PRODUCT, lambda *xs, **given: ct.contract("ij,jk->ik", *xs, **given)):
            with pytest.raises(InvalidValueError, match="there is no c"):
                verb(A, B, beta=2)


def test_where_the_result_goes_is_looked_at_in_every_call() -> None:
    for order in ("F", "C"):
        out = np.empty((4, 4), order=order)
        ct.contract("ij,jk->ik", A, B, out=out)
        PRODUCT(A, B, out=out)
        out.flags.writeable = False
        for verb in (PRODUCT, lambda *xs, **given: ct.contract("ij,jk->ik", *xs, **given)):
            with pytest.raises(InvalidValueError, match="read-only"):
                verb(A, B, out=out)
    x = A.copy()
    for _ in range(2):
        x[...] = A
        assert ct.contract("ij,jk->ik", x, B, out=x) is x
        np.testing.assert_allclose(x, A @ B)


def test_an_expression_takes_what_it_was_planned_for_however_often_others_are_contracted() -> None:
    x = np.ones((5, 5))
    for _ in range(2):
        ct.contract("ij,jk->ik", x, x)
        PRODUCT(A, B)
        with pytest.raises(InvalidValueError, match="was planned with shape"):
            PRODUCT(x, x)
        with pytest.raises(TypeError, match="was planned with type"):
            PRODUCT(A.astype("f4"), B.astype("f4"))


def test_an_array_that_is_given_twice_as_another_class_is_planned_as_two() -> None:
    """Only a call with one array may reuse its products."""

    class Sub(np.ndarray):
        pass

    x, y, z = (rng.standard_normal((5, 5)) for _ in range(3))
    same = x.view(Sub)
    text = "ab,ac,bd->cd"
    np.testing.assert_allclose(
        ct.contract(text, same, same, same), np.einsum(text, x, x, x), rtol=1e-12
    )
    np.testing.assert_allclose(ct.contract(text, x, y, z), np.einsum(text, x, y, z), rtol=1e-12)


def test_expressions_remember_no_more_than_a_few_layouts() -> None:
    memory = np.arange(1000.0)
    product = ct.contract_expression("i,i->", (4,), (4,))
    for step in range(1, 60):
        x = memory[: 4 * step : step]
        np.testing.assert_allclose(product(x, x), (x * x).sum())
    assert len(product._known) == api.MOST_KNOWN


@pytest.mark.parametrize("c", [C, C.astype(">f8"), np.broadcast_to(C[0], C.shape)])
def test_a_c_that_is_not_read_is_checked_and_not_planned(c: Any) -> None:
    with ct.Handle() as handle:
        found = ct.contract("ij,jk->ik", A, B, c=c, beta=0, handle=handle)
        np.testing.assert_allclose(found, A @ B)
        assert handle.plans.statistics.misses == 1
        ct.contract("ij,jk->ik", A, B, handle=handle)
        assert handle.plans.statistics.misses == 1
        with pytest.raises(InvalidValueError, match="c has shape"):
            ct.contract("ij,jk->ik", A, B, c=c[1:], beta=0, handle=handle)


def test_a_list_given_thrice_is_not_taken_for_three_arrays() -> None:
    with ct.Handle() as handle:
        one = A.tolist()
        for x, y, z in ((one, one, one), (A, B, C), (A, A, A), (A, B, C), (one, one, one)):
            found = ct.contract("ij,jk,kl->il", x, y, z, handle=handle)
            expected = np.asarray(x) @ np.asarray(y) @ np.asarray(z)
            np.testing.assert_allclose(found, expected)
