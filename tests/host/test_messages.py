"""What users get wrong most, and what they read: names and types, never the elements of arrays."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.planner.paths import PATH_NAMES, is_path_name
from contract.support.text import shown

A, B, LARGE = np.ones((3, 4)), np.ones((4, 5)), np.ones((50, 50))
PRODUCT = "ij,jk->ik"


class Sparse:
    """What NumPy takes for one object, though it has dimensions: scipy's and symmray's arrays."""

    shape = (3, 4)

    def __mul__(self, other: Any) -> Any:
        return NotImplemented


WRONG = [None, {"a": 1}, {1, 2}, Sparse(), object(), "ab", b"ab", (x for x in A)]


@pytest.mark.parametrize("x", WRONG, ids=lambda x: type(x).__name__)
def test_operands_of_a_wrong_kind_are_named_by_their_type(x: Any) -> None:
    planned = ct.contract_expression(PRODUCT, A.shape, B.shape)
    calls: list[Callable[[], Any]] = [
        lambda: ct.contract(PRODUCT, A, x),
        lambda: ct.einsum(PRODUCT, A, x),
        lambda: ct.elementwise_binary("ij,ij->ij", A, x),
        lambda: planned(A, x),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"operand 1 is of type {type(x).__name__}"):
            call()
    for refused in (lambda: ct.permute("ij->ji", x), lambda: ct.reduce("ij->j", x)):
        with pytest.raises(ValueError, match=f"operand 0 is of type {type(x).__name__}"):
            refused()
    if x is not None:
        with pytest.raises(ValueError, match=f"c is of type {type(x).__name__}"):
            ct.contract(PRODUCT, A, B, c=x)


def test_numbers_and_objects_that_multiply_are_operands() -> None:
    for x in (2, 2.0, 2j, True, np.float32(2), np.array(2), [2, 2, 2], range(3)):
        assert ct.einsum("...->...", x) is not None
    assert ct.einsum(",->", Decimal(2), Decimal(3)) == 6


@pytest.mark.parametrize(
    "call",
    [
        lambda: ct.contract(A, B, PRODUCT),
        lambda: ct.contract(A, "ij->ji"),
        lambda: ct.einsum(A, B, PRODUCT),
        lambda: ct.contract_expression((3, 4), (4, 5), PRODUCT),
        lambda: ct.reduce(A, "ij->j"),
        lambda: ct.contract([A, B], "ij,jk"),
    ],
)
def test_operands_before_the_expression(call: Callable[[], Any]) -> None:
    with pytest.raises(ct.InvalidValueError, match="The expression comes before the operands"):
        call()


@pytest.mark.parametrize("verb", [ct.contract, ct.einsum])
def test_operands_in_a_list(verb: Callable[..., Any]) -> None:
    for given in ([A, B], (A, B), [LARGE, LARGE]):
        with pytest.raises(ct.InvalidValueError, match="given one by one, not in a list"):
            verb(PRODUCT, given)


def test_names_of_paths_are_listed() -> None:
    assert all(map(is_path_name, PATH_NAMES))
    with pytest.raises(ct.InvalidValueError, match=r"one of auto, .*greedy.*: it is 'fastest'"):
        ct.contract("ij,jk,kl->il", A, B, B.T, optimize="fastest")
    with pytest.raises(KeyError, match=r"known are auto, .*greedy"):
        ct.einsum("ij,jk,kl->il", A, B, B.T, optimize="fastest")


OPTIONS = (
    *("order", "alpha", "beta", "operators", "optimize", "preference", "handle", "compute_type"),
    *("memory_limit", "slices", "executor", "progress", "dtype", "stream"),
)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("value", [LARGE, [LARGE], (LARGE, LARGE)], ids=["array", "list", "pair"])
def test_arrays_are_never_written_out(name: str, value: Any) -> None:
    options = {name: value, **({"c": np.ones((3, 5))} if name == "beta" else {})}
    with pytest.raises((ct.ContractError, TypeError, ValueError)) as raised:
        ct.contract(PRODUCT, A, B, **options)
    assert "1., 1." not in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    "call",
    [
        lambda: ct.contract(A, LARGE, B, [1, 2]),
        lambda: ct.einsum(A, LARGE, B, [1, 2]),
        lambda: ct.einsum(PRODUCT, A, B, optimize=LARGE),
        lambda: ct.einsum(PRODUCT, A, B, optimize=[LARGE]),
        lambda: ct.contract_expression(PRODUCT, A, (4, 5), constants=[LARGE]),
        lambda: ct.permute("ij->ji", A, padding=LARGE),
        lambda: ct.permute("ij->ji", A, operator=LARGE),
        lambda: ct.reduce("ij->j", A, op=LARGE),
        lambda: ct.tensordot(A, B, LARGE),
        lambda: ct.TensorDescriptor(LARGE),
        lambda: ct.TensorDescriptor((3, 4), dtype=LARGE),
        lambda: ct.Handle(device=LARGE),
        lambda: ct.Handle(threads=LARGE),
        lambda: ct.convert_layout(A, LARGE, "NCHW"),
    ],
)
def test_nor_are_they_elsewhere(call: Callable[[], Any]) -> None:
    with pytest.raises(ct.ContractError, match=r"of shape \(50, 50\)"):
        call()


def test_values_in_messages() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown("x" * 200) == f"'{'x' * 79}..."
    assert shown([1, (LARGE,), "a"]) == "[1, (ndarray of shape (50, 50),), 'a']"
    assert shown(list(range(9))) == "[0, 1, 2, 3, 4, 5, ...]"
    assert shown(Broken()) == "Broken"


def test_no_message_names_an_index_under_our_name() -> None:
    """The name on PyPI is not ours: what is missing is named by itself."""
    package = Path(ct.__file__).parent
    for path in (*package.rglob("*.py"), *package.rglob("*.md"), package.parent / "README.md"):
        text = path.read_text() if path.exists() else ""
        assert "pip install contract" not in text
        assert "'contract[" not in text
