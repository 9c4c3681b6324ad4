"""Bad input of every kind gets the library's own error, and odd input that is good works."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract import layout

A, S, ONE = np.arange(6.0).reshape(2, 3), np.arange(9.0).reshape(3, 3), np.ones(1)
Tensor = ct.TensorDescriptor
V = ct.Operand(Tensor((3,)), "a")
W = ct.Operand(Tensor((4,)), "a")
BYTE, LONGER = (ct.Operand(Tensor((n,), dtype="int8"), "a") for n in (3, 4))


def padded(value: Any = 0, pairs: Any = ((1, 1),)) -> Any:
    return ct.permute("a->a", ONE, padding=pairs, padding_value=value)


REFUSED: list[Callable[[], Any]] = [
    lambda: ct.reduce("ij->ii", S),
    lambda: padded([2]),
    lambda: padded("x"),
    lambda: padded(None),
    lambda: padded(pairs=((np.inf, 0),)),
    lambda: padded(pairs=((1.5, 0),)),
    lambda: ct.contract("ij->i", A, beta=np.array([1, 2])),
    lambda: ct.contract("ij->i", A, optimize={}),
    lambda: ct.contract("ij->i", A, optimize={1}),
    lambda: ct.permute("ij->ji", A, dtype="i4,,x"),
    lambda: ct.permute("ij->ji", A, dtype={"names": ["a"]}),
    lambda: ct.Handle(threads="2"),
    lambda: ct.Handle(cache_lines="x"),
    lambda: layout.overlaps((2, 3), (1,)),
    lambda: ct.convert_layout(np.ones((1, 4, 2, 2)), None, "NCHW"),
    lambda: ct.convert_layout(np.ones((1, 4, 2, 2, 3)), "NC/4HW4", "NCHW"),
    lambda: ct.contract_trinary("a,a,a->a", A[0], A[0], A[0], c=A[0]),
    lambda: ct.elementwise_binary("a,a->a", ONE.astype(object), ONE, operators=(None, "exp")),
    lambda: Tensor(3),
    lambda: Tensor((1.5,)),
    lambda: Tensor((3,), dtype=[]),
    lambda: ct.PlanPreference(kernel_rank=-1),
    lambda: ct.PlanPreference(algo="gemm"),
    lambda: ct.PlanPreference(workspace_limit="x"),
    lambda: ct.Contraction((V,), V, compute="32F"),
    lambda: ct.Contraction((V,), V, labels=("a", "b")),
    lambda: ct.Contraction(("a",), V),
    lambda: ct.Contraction((V,), ct.Operand(Tensor((3,), (0,)), "a")),
    lambda: ct.Reduction((V,), V, operator="max"),
    lambda: ct.Reduction((V, V), V),
    lambda: ct.Operand(Tensor((3,)), "a", "exp"),
    lambda: ct.Operand(Tensor((3,)), [[1]]),
    lambda: ct.Operand((3,), "a"),
    lambda: ct.ElementwiseOperation((V, V), V, ("add",)),
    lambda: ct.ElementwiseOperation((V,), W, padding=ct.Padding((1,), (0,), 1j)),
    lambda: ct.ElementwiseOperation((V,), W, padding=ct.Padding((1,), (0,), "x")),
    lambda: ct.ElementwiseOperation((BYTE,), LONGER, padding=ct.Padding((1,), (0,), 300)),
    lambda: ct.ElementwiseOperation((BYTE,), LONGER, padding=ct.Padding((1,), (0,), 0.5)),
    lambda: ct.Padding((1.5,), (0,)),
    lambda: ct.Handle().contract(None, 1, A[0], A[0], 0, None, A[0]),
    lambda: Tensor.named("NCHW", None),
    lambda: Tensor.named("NCHW", dict.fromkeys("NCHW")),
    lambda: Tensor.named(ONE, dict.fromkeys("NCHW", 1)),
    lambda: Tensor((3,), alignment=np.ones(2)),
    lambda: ct.Contraction(5, V),
    lambda: ct.Contraction((V,), V, labels=5),
    lambda: ct.Contraction((V,), V, labels=(None,)),
    lambda: ct.Contraction((V,), V, dtype=5),
    lambda: ct.Contraction((V,), V, same=None),
    lambda: ct.Contraction((V,), V, same=("x",)),
    lambda: ct.Reduction(None, V),
    lambda: ct.ElementwiseOperation(None, V),
    lambda: ct.ElementwiseOperation((V, V), V, None),
    lambda: ct.ElementwiseOperation((V,), V, padding=5),
    lambda: ct.PlanPreference(path={}),
    lambda: ct.PlanPreference(kernel_rank=True),
    lambda: ct.PlanPreference(memory_limit=True),
    lambda: ct.PlanPreference(incremental_count=True),
    lambda: ct.Handle(preference=5),
    lambda: ct.Handle(threads=True),
    lambda: ct.Handle(kernels=np.ones(2)),
    lambda: ct.Handle(compile="later"),
    lambda: ct.Handle().plan(None),
    lambda: ct.Handle().plan(ct.Contraction((V,), V), 5),
    lambda: ct.Handle().estimate_workspace(None),
    lambda: ct.Handle().estimate_workspace(ct.Contraction((V,), V), None, "min"),
    lambda: ct.Handle().candidates(ct.Contraction((V,), V), 5),
    lambda: ct.Handle().write_plans(5),
    lambda: ct.Handle().read_plans(5),
    lambda: ct.contract("ij->i", A, order=np.ones(2)),
    lambda: ct.contract("ij->i", A, memory_limit="200%"),
    lambda: ct.contract("ij->i", A, memory_limit="100.1%"),
    lambda: ct.contract("ij->i", A, memory_limit=True),
    lambda: ct.contract("ij->i", A, progress="x"),
    lambda: ct.contract_expression("ij->i", (2, 3), progress="x"),
    lambda: ct.contract_expression("ij->i", (2, 3), constants=np.array("ab")),
    lambda: ct.tensordot(S, S, None),
    lambda: ct.tensordot(S, S, "x"),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_refused(case: int) -> None:
    with pytest.raises(ct.ContractError) as caught:
        REFUSED[case]()
    assert len(str(caught.value)) > 20


def test_execution_refuses_what_does_not_fit_the_plan() -> None:
    with ct.Handle() as handle:
        plan = handle.plan(ct.Contraction((V, V), V))
        x, out = np.ones(3), np.full(3, 7.0)
        for arguments in (
            (plan, 1, x, x, 1, None, out),
            (plan, 1, x, x, [0], None, out),
            (plan, 1, x, x, 0, None, out, np.empty(3, object)),
            (plan, 1, x, x, 0, None, out, np.frombuffer(bytes(300), np.uint8)),
            (plan, 1, x, x, 0, None, out, out),
            (plan, 1, x, x, 0, None, out, x),
        ):
            with pytest.raises(ct.ContractError):
                handle.contract(*arguments)
        assert (out == 7).all()


def test_what_is_copied_counts_against_the_limit() -> None:
    n = 60
    x, c = np.ones((n, n)), np.ones((n, n))
    size = 8 * n * n
    raw = np.zeros(size + 1, np.uint8)[1:].view("f8").reshape(n, n)
    out = np.empty((n, n), order="F")
    ct.contract("ab,bc->ac", x, x, out=out, memory_limit=size // 2)
    with pytest.raises(ct.InsufficientWorkspaceError):
        ct.contract("ab,bc->ac", raw, x, out=out, memory_limit=size // 2)
    with pytest.raises(ct.InsufficientWorkspaceError):
        ct.contract("ab->ab", x, c=c.astype(">f8"), out=out, memory_limit=size // 2)


def test_integers_are_combined_in_the_wider_type_and_wrap() -> None:
    x = np.array([2**60 + 1, 2**63 + 5], np.uint64)
    found = ct.elementwise_binary("i,i->i", x, x, op="max", dtype="int64")
    np.testing.assert_array_equal(found, x.view(np.int64))
    found = ct.permute("i->i", np.array([70000, 3]), alpha=3, dtype="int16")
    np.testing.assert_array_equal(found, (np.array([70000, 3]) * 3).astype(np.int16))
    found = ct.elementwise_binary("i,i->i", np.array([2**30], "i4"), np.array([3], "i4"),
                                  op="mul", dtype="int64")  # fmt: skip
    assert found[0] == 3 * 2**30


def test_zeros_of_both_signs_and_nan_pad_as_written() -> None:
    assert not np.signbit(padded(0.0)).any()
    assert np.signbit(padded(-0.0)).tolist() == [True, False, True]
    with ct.Handle() as handle:
        for _ in range(3):
            found = ct.permute("a->a", ONE, padding=((1, 0),), padding_value=np.nan, handle=handle)
            assert np.isnan(found[0])
        assert len(handle.plans) == 1
    np.testing.assert_array_equal(padded(np.array(2.0)), [2, 1, 2])


@pytest.mark.parametrize("kernels", ["numba", "numpy"])
def test_results_without_elements(kernels: str) -> None:
    with ct.Handle(kernels=kernels) as handle:
        assert ct.reduce("abc->ca", np.ones((5, 6, 0)), handle=handle).shape == (0, 5)
        assert ct.permute("bac->cba", np.ones((0, 2, 47)), handle=handle).shape == (47, 0, 2)
        assert ct.contract("ab,bc->ca", np.ones((0, 2)), np.ones((2, 3)), handle=handle).shape == (
            3,
            0,
        )
        for name in ("sigmoid", "swish", "soft_plus", "mish", "soft_sign"):
            found = ct.reduce("ab->a", np.empty((3, 0)), operators=(name,), handle=handle)
            np.testing.assert_array_equal(found, np.zeros(3))


@pytest.mark.parametrize("kernels", ["numba", "numpy"])
def test_no_warning_where_a_conversion_overflows(kernels: str) -> None:
    """Infinities are results; pytest turns warnings into errors."""
    with ct.Handle(kernels=kernels, threads=2) as handle:
        for n in (5, 300):
            for x, dtype in (
                (np.full((n, n), 1e10), "f2"),
                (np.full((n, n), 1e300, np.longdouble), "f4"),
                (np.full((n, n), 1e300), ">f4"),
            ):
                out = np.empty((n, n), dtype)
                assert np.isinf(ct.permute("ij->ji", x, out=out, handle=handle)).all()


@pytest.mark.parametrize("text", ["abc->ca", "abc,bd->cad", "abc,bd->bcad"])
def test_the_cheapest_layout_with_alpha_zero(text: str) -> None:
    """What alpha = 0 leaves has the layout that the plan chose."""
    rng = np.random.default_rng(1)
    shapes = {"a": 4, "b": 5, "c": 6, "d": 3}
    terms, output = text.split("->")
    operands = [rng.random([shapes[x] for x in term]) for term in terms.split(",")]
    c = rng.random([shapes[x] for x in output])
    found = ct.contract(text, *operands, order="K", alpha=0, c=c, beta=2)
    np.testing.assert_array_equal(found, 2 * c)
    found = ct.contract(text, *operands, order="K", c=c, beta=2)
    np.testing.assert_allclose(found, np.einsum(text, *operands) + 2 * c)


def test_a_path_may_be_a_list() -> None:
    """It is a tuple from then on, as keys need it."""
    preference = ct.PlanPreference(path=[(0, 1), [0, 1]])
    assert preference == ct.PlanPreference(path=((0, 1), (0, 1)))
    assert hash(preference) == hash(ct.PlanPreference(path=((0, 1), (0, 1))))
    assert ct.contract("ij,j,j->", A, A[0], A[0], preference=preference) == (A * A[0] ** 2).sum()


class Text(str):
    """A string that calls itself something else."""

    def __str__(self) -> str:
        return "?"


@pytest.mark.parametrize("kind", [np.str_, Text])
def test_expressions_in_strings_of_other_classes(kind: Callable[[str], Any]) -> None:
    for _ in range(2):
        np.testing.assert_array_equal(ct.contract(kind("ij,kj->ik"), A, A), A @ A.T)
        np.testing.assert_array_equal(ct.einsum(kind("ij,kj->ik"), A, A), A @ A.T)
    np.testing.assert_array_equal(
        ct.contract(kind("ij,kj->ik"), A, A, alpha=2, order="C"), A @ A.T * 2
    )
    np.testing.assert_array_equal(
        ct.contract_trinary(kind("i,i,i->i"), *A[:, :1].T, A[:, 0], A[:, 0]), A[:, 0] ** 3
    )
    np.testing.assert_array_equal(
        ct.contract_expression(kind("ij,kj->ik"), (2, 3), (2, 3))(A, A), A @ A.T
    )
    np.testing.assert_array_equal(ct.permute(kind("ij->ji"), A), A.T)
    np.testing.assert_array_equal(ct.reduce(kind("ij->i"), A), A.sum(1))
    np.testing.assert_array_equal(ct.elementwise_binary(kind("ij,ij->ij"), A, A), 2 * A)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,jk->ki", "ij,ij->ij", "ij,j->i", "ij,jk,kl->il"])
def test_infinities_and_nan_are_results_without_warnings(text: str, dtype: str) -> None:
    with np.errstate(all="ignore"):
        shapes = [(3,) * len(term) for term in text.partition("->")[0].split(",")]
    for values in ((np.inf, 0), (np.finfo(dtype).max, 9), (np.nan, 1)):
        xs = [np.full(shape, values[at % 2], dtype) for at, shape in enumerate(shapes)]
        for _ in range(2):
            assert not np.isfinite(ct.einsum(text, *xs)).any()
            assert not np.isfinite(ct.contract(text, *xs)).any()
            assert not np.isfinite(ct.contract(text, *xs, order="K")).any()
    assert np.geterr()["invalid"] == "warn"


@pytest.mark.parametrize("operator", ["swish", "mish"])
@pytest.mark.parametrize(
    ("dtype", "wide", "first"), [("float32", "float64", 80), ("float64", "longdouble", 710)]
)
def test_results_far_below_zero(operator: str, dtype: str, wide: str, first: int) -> None:
    """exp(-|x|) is subnormal before x * exp(-|x|) is."""
    x = -np.linspace(first, first + 23, 4001).astype(dtype)
    e = np.exp(x.astype(wide))
    factor = e / (1 + e) if operator == "swish" else e * (e + 2) / (e * (e + 2) + 2)
    expected = x * factor
    found = ct.permute("i->i", x, operator=operator)
    normal = np.abs(expected) >= np.finfo(dtype).tiny
    assert normal.any()
    assert not normal.all()
    error = np.abs(found - expected)
    assert (error[normal] <= 64 * np.finfo(dtype).eps * np.abs(expected[normal])).all()
    assert (
        error
        <= 4 * np.finfo(dtype).smallest_subnormal + 64 * np.finfo(dtype).eps * np.abs(expected)
    ).all()
    limits = ct.permute("i->i", np.array([-np.inf, np.inf, np.nan, 0], dtype), operator=operator)
    np.testing.assert_array_equal(limits, np.array([0, np.inf, np.nan, 0], dtype))
