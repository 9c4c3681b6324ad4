"""contract and contract_expression: layouts, scalars, operators, limits, refusals, threads."""

import tracemalloc
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import contract as ct
from contract.api import request
from contract.descriptors.expression import Notation
from contract.host import executor as host
from contract.host.resources.prepared import Prepared
from contract.plan.steps import Elementwise, Plan
from tests.reference import UNARY, assert_within_bound

A, B = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)


# --- layouts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "strides"), [("F", (8, 16)), ("C", (32, 8)), ("A", (32, 8))])
def test_order_of_the_result(order: str, strides: tuple[int, int]) -> None:
    found = ct.contract("ij,jk->ik", A, B, order=order)
    assert found.strides == strides
    np.testing.assert_allclose(found, A @ B)


@pytest.mark.parametrize("order", ["f", "c", "a", "k"])
def test_order_in_small_letters(order: str) -> None:
    expression = ct.contract_expression("ij,jk->ik", A, B, order=order)
    for found, wanted in (
        (ct.contract("ij,jk->ik", A, B, order=order), A @ B),
        (ct.contract("ij,jk->ik", A, B, order=order), A @ B),
        (expression(), A @ B),
        (ct.permute("ij->ji", A, order=order), A.T),
        (ct.reduce("ij->i", A, order=order), A.sum(1)),
        (ct.elementwise_binary("ij,ij->ij", A, A, order=order), 2 * A),
    ):
        if order != "k":
            assert found.flags.f_contiguous or order != "f"
            assert found.flags.c_contiguous or order == "f"
        np.testing.assert_allclose(found, wanted)


@pytest.mark.parametrize("dtype", ["float32", "f8", np.complex128, np.dtype(">f8")])
def test_the_type_of_the_result(dtype: Any) -> None:
    for _ in range(2):
        found = ct.contract("ij,jk->ik", A, B, dtype=dtype)
        assert found.dtype == np.dtype(dtype).newbyteorder("=")
        np.testing.assert_allclose(found, A @ B)
    assert ct.contract("ij,jk->ik", A, B).dtype == np.float64


def test_sums_in_a_wider_type() -> None:
    x = np.full(1000, 100, "i1")
    assert ct.contract("i,i->", x, x, dtype="i8") == 10_000_000
    assert ct.contract_trinary("i,i,i->", x, x, x, dtype="i8") == 1_000_000_000


def test_types_that_cannot_hold_the_result() -> None:
    with pytest.raises(TypeError, match=r"dtype float64 cannot hold .* complex128"):
        ct.contract("ij,jk->ik", A, B * 1j, dtype="f8")
    with pytest.raises(TypeError, match="dtype is a NumPy data type: it is 'nonsense'"):
        ct.contract("ij,jk->ik", A, B, dtype="nonsense")


def test_order_a_follows_column_major_operands() -> None:
    found = ct.contract("ij,jk->ik", np.asfortranarray(A), np.asfortranarray(B), order="A")
    assert found.flags.f_contiguous
    column, row = np.ones((3, 1)), np.ones((1, 4))  # strides of extent 1 mean nothing
    assert ct.contract("ij,jk->ik", column, row, order="A").flags.f_contiguous
    column, row = np.ones((3, 2)), np.ones((2, 4))
    assert ct.contract("ij,jk->ik", column, row, order="A").flags.c_contiguous


def test_cheapest_order_is_packed_in_some_order(rng: np.random.Generator) -> None:
    x, y = rng.random((9, 8, 7, 6)), rng.random((7, 9, 5))
    found = ct.contract("abcd,cae->bed", x, y, order="K")
    assert sorted(found.strides)[0] == 8
    assert np.prod(found.shape) * 8 == max(
        n * s for n, s in zip(found.shape, found.strides, strict=True)
    )
    np.testing.assert_allclose(found, np.einsum("abcd,cae->bed", x, y))


@pytest.mark.parametrize("size", [4, 60])
def test_out_of_any_layout(size: int, handle: ct.Handle, rng: np.random.Generator) -> None:
    x, y = rng.random((size, size, 3)), rng.random((size, 3, size))
    wanted = np.einsum("abc,bcd->da", x, y)
    wide = np.zeros((2 * size, 2 * size))
    raw = np.zeros(size * size * 8 + 1, np.uint8)[1:].view("f8").reshape(size, size)
    for out in (
        np.zeros((size, size)),
        np.zeros((size, size), order="F"),
        wide[::2, ::2],
        wide[::-2, 1::2],
        raw,
        np.zeros((size, size), ">f8"),
        np.zeros((size, size), "f4"),
        np.zeros((size, size), "c16"),
    ):
        assert ct.contract("abc,bcd->da", x, y, out=out, handle=handle) is out
        np.testing.assert_allclose(out, wanted, rtol=1e-6)


@pytest.mark.parametrize("size", [5, 80])
def test_out_that_overlaps_an_input_is_right(size: int, handle: ct.Handle) -> None:
    memory = np.random.default_rng(3).random(3 * size * size)
    for offset in (0, 1, size, size * size - 3):
        data = memory.copy()
        x = data[: size * size].reshape(size, size)
        out = data[offset : offset + size * size].reshape(size, size)
        for text, other in (("ij,jk->ik", x.copy()), ("ij,kj->ki", x), ("ij,ij->ji", x)):
            data[:] = memory
            wanted = np.einsum(text, x.copy(), other.copy())
            ct.contract(text, x, other, out=out, handle=handle)
            np.testing.assert_allclose(out, wanted)


@pytest.mark.parametrize("kind", range(5))
def test_apart_outputs_keep_their_strides(kind: int, handle: ct.Handle) -> None:
    """An output that is computed apart is addressed through the caller's strides."""
    memory = np.zeros((12, 12, 12, 12, 3))
    out = [
        memory[::-1, :, :, ::-1, 0],
        memory[..., 1].transpose(3, 1, 0, 2)[:10, :, :10],
        memory[::2, ::2, ::-2, :5, 2],
        memory[:, :, ::3, ::-1, 0].T,
        memory[2:9, 3:, 4:, :2, 1],
    ][kind]
    first = np.random.default_rng(1).random((*out.shape[:2], 6, 5))
    memory[...] = np.random.default_rng(2).random(memory.shape)
    second = memory[-6:, -5:, : out.shape[2], : out.shape[3], 0]  # overlaps out's bounds
    wanted = np.einsum("abcd,cdef->abef", first, second)
    before = memory.copy()
    ct.contract("abcd,cdef->abef", first, second, out=out, handle=handle)
    np.testing.assert_allclose(out, wanted)
    out[...] = 0
    changed = memory != before
    out[...] = 1
    assert (memory[changed] == 1).all(), "something beside out was written"


# --- scalars and C ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 50])
@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,jk->ki", "ij,ij->ij", "ij,jk->i", "ij->ji"])
def test_scalars_with_c_in_any_layout(
    text: str, size: int, handle: ct.Handle, rng: np.random.Generator
) -> None:
    operands = [rng.random((size, size)) for _ in text.split("->")[0].split(",")]
    product = np.einsum(text, *operands)
    for c in (rng.random(product.shape), np.asfortranarray(rng.random(product.shape[::-1]).T)):
        found = ct.contract(text, *operands, alpha=2.5, beta=-0.5, c=c, handle=handle)
        np.testing.assert_allclose(found, 2.5 * product - 0.5 * c)
        aliased = c.copy()
        ct.contract(text, *operands, c=aliased, out=aliased, handle=handle)
        np.testing.assert_allclose(aliased, product + c)
    square = rng.random((size, size))
    if product.ndim == 2:
        transposed = square.copy()
        ct.contract(text, *operands, c=transposed.T, out=transposed, handle=handle)
        np.testing.assert_allclose(transposed, product + square.T)


@pytest.mark.parametrize("still", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_c_that_stands_still_along_modes(
    still: tuple[int, ...], handle: ct.Handle, rng: np.random.Generator
) -> None:
    """A bias, repeated by a stride of 0, is added by every candidate."""
    shape = (7, 40, 30)
    a, b = rng.integers(-2, 3, (7, 40, 50)), rng.integers(-2, 3, (7, 50, 30))
    bias = rng.integers(-2, 3, [1 if at in still else n for at, n in enumerate(shape)])
    for dtype in ("float64", "float16"):
        operands = a.astype(dtype), b.astype(dtype)
        c, rank = np.broadcast_to(bias.astype(dtype), shape), 0
        with suppress(ct.NotSupportedError):
            for rank in count():
                preference = ct.PlanPreference(kernel_rank=rank)
                found = ct.contract(
                    "lmk,lkn->lmn", *operands, c=c, preference=preference, handle=handle
                )
                np.testing.assert_array_equal(found, a @ b + bias)
        assert rank > 1


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,ij->ij", "ij->j", "ij->ji", "ii->i", "i,j->ij"])
def test_zero_scalars_beat_nan(text: str, handle: ct.Handle) -> None:
    ranks = [len(term) for term in text.split("->")[0].split(",")]
    nans = [np.full((40,) * rank, np.nan) for rank in ranks]
    shape = np.einsum(text, *nans).shape
    c = np.ones(shape)
    np.testing.assert_array_equal(
        ct.contract(text, *nans, alpha=0, c=c, beta=3, handle=handle), 3 * c
    )
    np.testing.assert_array_equal(ct.contract(text, *nans, alpha=0, handle=handle), 0 * c)
    ones = [np.ones((40,) * rank) for rank in ranks]
    wanted = np.einsum(text, *ones)
    found = ct.contract(text, *ones, c=np.full(shape, np.nan), beta=0, handle=handle)
    np.testing.assert_array_equal(found, wanted)
    poisoned = ct.contract(text, *ones, c=np.full(shape, np.nan), handle=handle)
    assert np.isnan(poisoned).all()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_scalars_reach_every_product_of_a_batch(threads: int, rng: np.random.Generator) -> None:
    x, y = rng.random((16, 90, 95)), rng.random((16, 95, 80))
    with ct.Handle(threads=threads) as handle:
        found = ct.contract("lab,lbc->lac", x, y, alpha=-2, order="C", handle=handle)
    np.testing.assert_allclose(found, -2 * (x @ y), rtol=1e-12)


def test_c_in_memory_no_descriptor_has(handle: ct.Handle, rng: np.random.Generator) -> None:
    x, y, values = (rng.random((120, 120)) for _ in range(3))
    records = np.zeros((120, 120), np.dtype([("head", "i2"), ("value", "f8")]))
    records["value"] = values
    for c in (values.astype(">f8"), records["value"], values.astype("f4")):
        for text, operands in (("ij,jk->ik", (x, y)), ("ij->ji", (x,))):
            wanted = np.einsum(text, *operands) + 2 * c
            found = ct.contract(text, *operands, c=c, beta=2, handle=handle)
            np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_zero_in_a_tensor_does_not_beat_nan() -> None:
    assert np.isnan(ct.contract("i,i->", np.zeros(3), np.full(3, np.nan)))


def test_written_diagonal_with_scalars() -> None:
    x, c = np.array([1.0, 2.0]), np.ones((2, 2))
    np.testing.assert_array_equal(ct.contract("i->ii", x), np.diag(x))
    np.testing.assert_array_equal(
        ct.contract("i->ii", x, alpha=2, c=c, beta=3), 2 * np.diag(x) + 3 * c
    )
    ct.contract("i->ii", x, alpha=2, c=c, beta=3, out=c)
    np.testing.assert_array_equal(c, [[5, 3], [3, 7]])


# --- operators and types ------------------------------------------------------------------------

REFERENCES = {**UNARY, "acosh": lambda x: np.arccosh(x + 1), "conj": np.conj}


def test_every_operator_has_a_reference() -> None:
    assert set(REFERENCES) == {operator.value for operator in ct.Operator}


@pytest.mark.parametrize("size", [3, 45])
@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_operators(name: str, size: int, handle: ct.Handle, rng: np.random.Generator) -> None:
    x = rng.uniform(0.1, 0.9, (size, size))
    shifted = x + 1 if name == "acosh" else x
    y = rng.random((size, size))
    for text in ("ij,jk->ik", "ij,ij->ij", "ij,jk->k"):
        found = ct.contract(text, shifted, y, operators=(name, None), handle=handle)
        wanted = np.einsum(text, REFERENCES[name](x.astype(np.longdouble)), y)
        np.testing.assert_allclose(found, wanted.astype(float), rtol=1e-12)
    alone = ct.contract("ij->ji", shifted.astype("f2"), operators=(name,), handle=handle)
    wide = REFERENCES[name](x.astype("f2").astype("f8"))
    if name != "acosh":  # x + 1 is rounded to float16 there
        np.testing.assert_allclose(alone, wide.T, rtol=2**-10)


@pytest.mark.parametrize("name", ["sigmoid", "swish", "soft_plus", "mish", "soft_sign"])
def test_operators_do_not_overflow(name: str) -> None:
    x = np.array([-np.inf, -1e308, -800.0, 0.0, 800.0, 1e308, np.inf, np.nan])
    limits = {
        "sigmoid": [0, 0, 0, 0.5, 1, 1, 1],
        "swish": [0, 0, 0, 0, 800, 1e308, np.inf],
        "soft_plus": [0, 0, 0, np.log(2), 800, 1e308, np.inf],
        "mish": [0, 0, 0, 0, 800, 1e308, np.inf],
        "soft_sign": [-1, -1, -800 / 801, 0, 800 / 801, 1, 1],
    }[name]
    found = ct.contract("i->i", x, operators=(name,))
    np.testing.assert_allclose(found[:-1], limits, rtol=1e-15, atol=1e-300)
    assert np.isnan(found[-1])


@pytest.mark.parametrize("name", ["sigmoid", "swish", "soft_plus", "mish", "soft_sign"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_operators_of_several_steps_are_accurate_everywhere(
    name: str, dtype: str, handle: ct.Handle
) -> None:
    """To a few roundoffs, also where the result is tiny, on both sides of 0."""
    reach = {"f4": 80, "f8": 700}[dtype]
    x = np.linspace(0, 1, 10_001) ** 4 * reach
    x = np.concatenate([-x, x]).astype(dtype)
    wanted = REFERENCES[name](x.astype(np.longdouble))
    found = ct.contract("i->i", x, operators=(name,), handle=handle)
    np.testing.assert_allclose(found, wanted, rtol=8 * np.finfo(dtype).eps)


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize("name", ["relu", "abs", "neg", "sqrt", "exp", "ceil", "floor", "sin"])
def test_operators_let_nan_through(name: str, size: int, handle: ct.Handle) -> None:
    x = np.full(size, np.nan)
    assert np.isnan(ct.contract("i->i", x, operators=(name,), handle=handle)).all()


def test_objects_are_conjugated() -> None:
    x = np.array([1j, 2, 3 - 1j], object)
    found = ct.contract("i->i", x, operators=("conj",))
    np.testing.assert_array_equal(found, np.array([-1j, 2, 3 + 1j], object))


@pytest.mark.parametrize("size", [4, 60])
def test_operators_of_halves_are_not_rounded_before_the_product(
    size: int, handle: ct.Handle, rng: np.random.Generator
) -> None:
    """A real float16 operand of a complex product: its operator is applied in float32."""
    x = rng.uniform(1, 2, (size, size)).astype("f2")
    y = (rng.random((size, size)) + 1j * rng.random((size, size))).astype("c8")
    found = ct.contract("ij,jk->ik", x, y, operators=("sqrt", None), handle=handle)
    assert found.dtype == np.complex64
    np.testing.assert_allclose(found, np.sqrt(x.astype("f8")) @ y, rtol=1e-5)


def test_operators_of_real_operands_stay_real(handle: ct.Handle) -> None:
    x, y = np.array([-1.0, 4.0, 2.5]), np.ones(3, complex)
    found = ct.contract("i,i->i", x, y, operators=("sqrt", None), handle=handle)
    np.testing.assert_array_equal(found, [np.nan, 2, np.sqrt(2.5)])
    floors = ct.contract("i,i->i", x, y, operators=("floor", None), handle=handle)
    np.testing.assert_array_equal(floors, [-1, 4, 2])
    bits = np.array([True, False])
    np.testing.assert_array_equal(ct.contract("i->i", bits, operators=("conj",)), bits)


@pytest.mark.parametrize("size", [3, 200])
def test_bool_with_c(size: int, handle: ct.Handle) -> None:
    x, c = np.eye(size, dtype=bool), np.ones((size, size), bool)
    np.testing.assert_array_equal(ct.contract("ij,jk->ik", x, x, c=c, handle=handle), c)
    np.testing.assert_array_equal(ct.contract("ij->ji", x, c=~c, handle=handle), x)


def test_out_may_be_a_subclass(handle: ct.Handle, rng: np.random.Generator) -> None:
    x = rng.random((200, 200))
    for function in (ct.einsum, lambda *a, out: ct.contract(*a, out=out, handle=handle)):
        out = np.ma.zeros((200, 200))
        assert function("ij->ji", x, out=out) is out
        np.testing.assert_array_equal(np.asarray(out), x.T)


def test_conj_of_complex_operands(handle: ct.Handle, rng: np.random.Generator) -> None:
    x = rng.random((30, 40)) + 1j * rng.random((30, 40))
    y = rng.random((40, 50)) + 1j * rng.random((40, 50))
    found = ct.contract("ij,jk->ik", x, y, operators=("conj", None), handle=handle)
    np.testing.assert_allclose(found, x.conj() @ y)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_accumulate_in_float32(dtype: str, handle: ct.Handle) -> None:
    kind = np.dtype(dtype)
    ones = np.ones(70000, kind)
    half = np.full(70000, 0.5, kind)
    found = ct.contract("i,i->", ones, half, handle=handle)
    assert found.dtype == kind
    assert float(found) == float(np.float32(35000).astype(kind))
    total = ct.contract("i->", half, handle=handle)
    assert float(total) == float(np.float32(35000).astype(kind))


@pytest.mark.parametrize("size", [3, 40])
def test_bfloat16(size: int, handle: ct.Handle, rng: np.random.Generator) -> None:
    x, y = (rng.standard_normal((size, size)).astype(ml_dtypes.bfloat16) for _ in range(2))
    for text in ("ij,jk->ik", "ij,ij->ji", "ij,jk->k"):
        found = ct.contract(text, x, y, handle=handle)
        assert found.dtype == ml_dtypes.bfloat16
        terms, output = text.split("->")
        assert_within_bound(found, terms.split(","), output, [x, y])


def test_mixed_types_promote_as_numpy_does(handle: ct.Handle, rng: np.random.Generator) -> None:
    for one, two in (("f8", "c16"), ("f4", "f8"), ("i4", "f4"), ("?", "i2"), ("f2", "c8")):
        x, y = (rng.integers(0, 2, (40, 40)).astype(kind) for kind in (one, two))
        found = ct.contract("ij,jk->ik", x, y, handle=handle)
        assert found.dtype == np.result_type(x, y)
        np.testing.assert_allclose(found, np.einsum("ij,jk->ik", x, y), rtol=1e-3)


# --- notation -----------------------------------------------------------------------------------


def test_white_space_anywhere() -> None:
    np.testing.assert_allclose(ct.contract(" i\tj ,\n j k->i k", A, B), A @ B)


def test_more_dimensions_than_numpy_has() -> None:
    ones = [np.ones((1,) * 33)] * 2
    with pytest.raises(ct.InvalidValueError, match="at most 64 dimensions: the result has 66"):
        ct.contract(ones[0], range(33), ones[1], range(33, 66), range(66))


def test_scalars_act_in_the_type_of_the_product() -> None:
    x, wide = np.array([100], "i1"), np.zeros(1, "i8")
    assert ct.contract("i->i", x, alpha=2, out=wide) == -56
    assert ct.contract("i,->i", x, np.int8(1), alpha=2, out=wide) == -56


def test_hashable_and_unicode_labels() -> None:
    found = ct.contract(A, ["row", ("bond", 1)], B, [("bond", 1), 3.5], ["row", 3.5])
    np.testing.assert_allclose(found, A @ B)
    np.testing.assert_allclose(ct.contract("éß,ßü->éü", A, B), A @ B)
    implied = ct.contract(A, ["b", "a"], B, ["a", "c"])
    np.testing.assert_allclose(implied, A @ B)


def test_a_hundred_operands_and_two_hundred_labels(rng: np.random.Generator) -> None:
    matrices = [rng.random((2, 2, 1)) for _ in range(100)]
    arguments: list[Any] = []
    for at, matrix in enumerate(matrices):
        arguments += [matrix, [("bond", at), ("bond", at + 1), ("free", at)]]
    output = [("bond", 0), ("bond", 100)]
    wanted = np.linalg.multi_dot([matrix[:, :, 0] for matrix in matrices])
    np.testing.assert_allclose(ct.contract(*arguments, output), wanted, rtol=1e-10)


# --- limits and refusals ------------------------------------------------------------------------


def test_memory_limit_is_kept_before_anything_is_allocated() -> None:
    out = np.full((2, 4), 7.0)
    with pytest.raises(ct.InsufficientWorkspaceError, match=r"needs 64 bytes.*limit is 10 bytes"):
        ct.contract("ij,jk->ik", A, B, memory_limit=10)
    chain = [np.ones((100, 100), order=order) for order in "FCF"]
    with pytest.raises(MemoryError, match="bytes"):
        ct.contract("ij,jk,kl->il", *chain, memory_limit=10, out=np.empty((100, 100)))
    ct.contract("ij,jk->ik", A, B, memory_limit=64)
    ct.contract("ij,jk->ik", A, B, memory_limit=0, out=out)
    np.testing.assert_allclose(out, A @ B)


@pytest.mark.parametrize(
    ("text", "operands", "options"),
    [
        ("i->", (np.ones(10**5),), {"operators": ["exp"]}),
        ("i->", (np.ones(10**5, ">f8"),), {}),
        ("ij,jk->ik", (np.ones((300, 300), "f4"), np.ones((300, 300))), {}),
        ("ij,kj->ki", (np.ones((300, 300)), np.ones((300, 300))), {"alpha": 2}),
        ("ijk,jkl->il", (np.ones((40, 40, 40)), np.ones((40, 40, 40), "f2")), {}),
        ("ij,jk,kl->il", (np.ones((90, 90)), np.ones((90, 90)), np.ones((90, 90))), {}),
        ("ij,ji->ij", (np.ones((300, 300)), np.ones((300, 300))), {}),
    ],
)
def test_no_call_allocates_more_than_it_estimates(
    text: str, operands: tuple[Any, ...], options: dict[str, Any]
) -> None:
    with ct.Handle(threads=2) as handle:
        ct.contract(text, *operands, handle=handle, **options)  # plans, compiles
        _, call = next(iter(handle.plans._requests.values()))
        tracemalloc.start()
        ct.contract(text, *operands, handle=handle, **options)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak <= call.needed_bytes + 100_000, f"{peak} bytes at the peak"


@pytest.mark.parametrize("steps", [(1, 0), (0, 64), (-160, 1), (400, 1), (800, 2)])
@pytest.mark.parametrize(
    ("text", "rows", "others"),
    [("ki,k->i", 60, (60,)), ("k,ki->i", 60, (60,)), ("ki,kj->ij", 16, (16, 4))],
)
def test_what_numpy_copies_for_a_small_product_is_counted(
    text: str, rows: int, others: tuple[int, ...], steps: tuple[int, int]
) -> None:
    """numpy.dot copies matrices with gaps, with steps of 0 and backwards."""
    memory = np.arange(1.0, 100_000.0)
    strides = [8 * n for n in steps]
    matrix = np.lib.stride_tricks.as_strided(memory[20_000:], (rows, 160), strides)
    other = np.ones(others)
    operands = (other, matrix) if text.startswith("k,") else (matrix, other)
    c = np.ones(np.einsum(text, *operands).shape)
    with ct.Handle(kernels="numpy", threads=1) as handle:
        ct.contract(text, *operands, c=c, handle=handle)
        _, call = next(iter(handle.plans._requests.values()))
        tracemalloc.start()
        result = ct.contract(text, *operands, c=c, handle=handle)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    np.testing.assert_allclose(result, np.einsum(text, *operands) + 1, rtol=1e-13)
    assert peak <= call.needed_bytes + 4000, f"{peak} bytes at the peak"  # views are objects, too


def test_a_small_intermediate_in_another_order_is_counted() -> None:
    """NumPy combines two operands in their order, in an array of its own, and turns that."""
    x, c = np.ones((64, 16), order="F"), np.ones(16)
    with ct.Handle(kernels="numpy", threads=1) as handle:
        ct.contract("ab,ab,ab->b", x, x, x, c=c, alpha=1.5, handle=handle)
        _, call = next(iter(handle.plans._requests.values()))
        tracemalloc.start()
        ct.contract("ab,ab,ab->b", x, x, x, c=c, alpha=1.5, handle=handle)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    pooled = call.loaded.required_workspace  # memory that the second call finds there
    assert x.nbytes <= peak <= call.needed_bytes - pooled + 4000


def test_an_overlapping_out_counts_against_the_limit() -> None:
    x = np.ones((50, 50))
    with pytest.raises(ct.InsufficientWorkspaceError, match="20000 bytes"):
        ct.contract("ij,jk->ik", x, x, out=x, memory_limit=100)
    assert (x == 1).all()


def test_more_than_the_machine_has_is_refused() -> None:
    huge = np.broadcast_to(np.float64(1), (1 << 20,))
    with pytest.raises(ct.InsufficientWorkspaceError, match="bytes are free"):
        ct.contract("i,j->ij", huge, huge)
    foreign = np.broadcast_to(np.array(1, ">f8"), (1 << 45,))  # a result of 8 bytes, and a copy
    with pytest.raises(ct.InsufficientWorkspaceError, match="bytes are free"):
        ct.contract("i->", foreign)


REFUSALS: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    (("ij,jk", A, A), {}, ct.InvalidValueError, "mode 'j': operand 0 has 3, operand 1 has 2"),
    (("ijk", A), {}, ct.InvalidValueError, "operand 0 has 2 dimensions and 3 labels"),
    (("ij,jk", A), {}, ct.InvalidValueError, "2 terms, 1 operands"),
    (("i$", A), {}, ct.InvalidValueError, r"\$"),
    (("ij->z", A), {}, ct.InvalidValueError, "'z'"),
    (("ij,jk", A, B), {"order": "X"}, ct.InvalidValueError, "'X'"),
    (("ij,jk", A, B), {"beta": 2}, ct.InvalidValueError, "no c"),
    (("ij,jk", A, B), {"c": np.ones(3)}, ct.InvalidValueError, r"\(3,\).*\(2, 4\)"),
    (("ij,jk", A, B), {"c": np.ones(3), "beta": 0}, ct.InvalidValueError, r"\(3,\)"),
    (("ij,jk", A, B), {"c": np.ones((2, 4), complex)}, ct.UnsupportedTypeError, "be added"),
    (("ij->ij", A > 1), {"alpha": 2}, ct.InvalidValueError, "alpha must be a value of bool"),
    (
        ("i->i", A[0] + 0j),
        {"out": np.ones(3, ml_dtypes.bfloat16)},
        ct.UnsupportedTypeError,
        "bfloat16",
    ),
    (("ij,jk", A, B), {"alpha": 1j}, ct.InvalidValueError, "real"),
    (("ij,jk", A, B), {"alpha": 1 - 1j}, ct.InvalidValueError, "real"),
    (("ij,jk", A, B), {"alpha": "x"}, ct.InvalidValueError, "scalar"),
    (("ij,jk", A, B), {"alpha": [1, 2]}, ct.InvalidValueError, "scalar"),
    (("ij,jk", A, B), {"alpha": None}, ct.InvalidValueError, "None"),
    (("ij,jk", A, B), {"alpha": 10**400}, ct.InvalidValueError, "float64"),
    (("ij,jk", A, B), {"alpha": object()}, ct.InvalidValueError, "float64"),
    (("ij,jk", A.astype(int), B.astype(int)), {"alpha": 2**70}, ct.InvalidValueError, "int64"),
    (("i,i->i", A[0], A[0]), {"c": A[0], "beta": A[0]}, ct.InvalidValueError, "scalar"),
    (("ij,jk", A.astype(int), B.astype(int)), {"alpha": 0.5}, ct.InvalidValueError, "int64"),
    (("ij,jk", A, B), {"out": np.ones(3)}, ct.InvalidValueError, r"\(3,\)"),
    (("ij,jk", A, B), {"out": [1]}, ct.UnsupportedTypeError, "list"),
    (("ij,jk", A, B), {"out": np.ones((2, 4), int)}, ct.UnsupportedTypeError, "int64.*float64"),
    (("ij,jk", A, B), {"operators": ("conj",)}, ct.InvalidValueError, "2 operands, 1 operators"),
    (("ij,jk", A, B), {"operators": ("x", None)}, ct.InvalidValueError, "'x'.*sqrt"),
    (("ij,jk", A + 0j, B), {"operators": ("sqrt", None)}, ct.UnsupportedTypeError, "operand 0"),
    (("ij,jk", A, B), {"compute_type": "16F"}, ct.UnsupportedTypeError, "64F, 32F, 8XINT8"),
    (("ij,jk", A, B), {"compute_type": "7F"}, ct.InvalidValueError, "'7F'"),
    (("ij,jk,kl", A, B, B.T), {"optimize": "nonsense"}, ct.InvalidValueError, "'nonsense'"),
    (("ij,jk,kl", A, B, B.T), {"optimize": [(0, 5)]}, ct.InvalidValueError, r"\(0, 5\)"),
    (("ij,jk", A, B), {"memory_limit": -1}, ct.InvalidValueError, "-1"),
    (("ij,jk", A, B), {"memory_limit": "much"}, ct.InvalidValueError, "'much'"),
    (("i", np.array(["x"])), {}, ct.UnsupportedTypeError, "str"),
    (("i", np.ones(2, object)), {"compute_type": "32F"}, TypeError, "computes in itself"),
    (("ij,jk", A, B), {"optimize": "nonsense"}, ct.InvalidValueError, "'nonsense'"),
    (("ij,jk", A, B), {"optimize": 3.5}, ct.InvalidValueError, "3.5"),
    (("ij,jk", A, B), {"optimize": [(0, "x")]}, ct.InvalidValueError, "groups"),
    (("ij,jk", A, B), {"compute_type": [1]}, ct.InvalidValueError, "compute_type"),
    (("ij,jk", A, B), {"operators": 3}, ct.InvalidValueError, "operators"),
    (("ij,jk", A, B), {"operators": [{}, None]}, ct.InvalidValueError, "operators"),
    (("ij,jk", A, B), {"handle": 3}, ct.InvalidValueError, "handle"),
    ((A, [[], 1], [1]), {}, ct.InvalidValueError, "hashable"),
    ((3.0,), {}, ct.InvalidValueError, "float"),
    ((A, 3), {}, ct.InvalidValueError, "3"),
]


@pytest.mark.parametrize("case", range(len(REFUSALS)))
def test_refusals_name_the_rule_and_the_values(case: int) -> None:
    arguments, options, kind, text = REFUSALS[case]
    with pytest.raises(kind, match=text):
        ct.contract(*arguments, **options)
    if "out" not in options and len(arguments) == 3:
        out = np.full((2, 4), 7.0)
        with pytest.raises(kind):
            ct.contract(*arguments, **options, out=out)
        assert (out == 7).all(), "out is untouched by a refused call"


def test_an_output_may_not_overlap_itself_or_be_read_only() -> None:
    twice = np.lib.stride_tricks.as_strided(np.zeros(4), (2, 4), (0, 8))
    with pytest.raises(ct.InvalidValueError, match="overlap itself"):
        ct.contract("ij,jk->ik", A, B, out=twice)
    foreign = np.lib.stride_tricks.as_strided(np.zeros(4, ">f8"), (2, 4), (0, 8))
    with pytest.raises(ct.InvalidValueError, match="overlap itself"):
        ct.contract("ij,jk->ik", A, B, out=foreign)
    frozen = np.zeros((2, 4))
    frozen.flags.writeable = False
    with pytest.raises(ct.InvalidValueError, match="read-only"):
        ct.contract("ij,jk->ik", A, B, out=frozen)


# --- expressions --------------------------------------------------------------------------------


def test_expression_object(rng: np.random.Generator) -> None:
    product = ct.contract_expression("ij,jk->ik", (2, 3), (3, 4))
    np.testing.assert_allclose(product(np.asfortranarray(A), np.asfortranarray(B)), A @ B)
    np.testing.assert_allclose(product(A, B), A @ B)  # another memory order
    c = rng.random((2, 4))
    np.testing.assert_allclose(product(A, B, c=c, alpha=2, beta=3), 2 * (A @ B) + 3 * c)
    out = np.empty((2, 4))
    assert product(A, B, out=out) is out
    assert "Gemm" in str(product)
    assert "candidates" in product.explain()
    with pytest.raises(ct.UnsupportedTypeError, match="nonsense"):
        ct.contract_expression("i->", (3,), dtype="nonsense")
    with pytest.raises(ct.InvalidValueError, match="constants"):
        ct.contract_expression("i->", (3,), constants=3)
    for operands, kind, text in (
        ((A,), ct.InvalidValueError, "2 operands: 1"),
        ((A, B.T), ct.InvalidValueError, r"\(3, 4\).*\(4, 3\)"),
        ((A, B.astype("f4")), ct.UnsupportedTypeError, "float64.*float32"),
    ):
        with pytest.raises(kind, match=text):
            product(*operands)


def test_expression_from_descriptors_and_constants() -> None:
    row_major = ct.TensorDescriptor((3, 4), (4, 1))
    product = ct.contract_expression("ij,jk->ik", A, row_major, constants=[0])
    np.testing.assert_allclose(product(B), A @ B)
    single = ct.contract_expression("ij,jk->ik", (2, 3), (3, 4), dtype="float32", order="C")
    assert single(A.astype("f4"), B.astype("f4")).dtype == np.float32
    with pytest.raises(ct.InvalidValueError, match="Constant 1"):
        ct.contract_expression("ij,jk->ik", A, (3, 4), constants=[1])
    with pytest.raises(ct.InvalidValueError, match="shape"):
        ct.contract_expression("ij,jk->ik", A, 3.5)


# --- the plan cache and threads -----------------------------------------------------------------


def test_a_cached_call_neither_parses_nor_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    with ct.Handle() as handle:
        first = ct.contract("ij,jk->ki", A, B, handle=handle)

        def refuse(*_: Any) -> None:
            raise AssertionError("a cached call came here")

        for name in ("parse", "operation_for", "call_for"):
            monkeypatch.setattr(request, name, refuse)
        np.testing.assert_array_equal(ct.contract("ij,jk->ki", A, B, handle=handle), first)
        assert handle.plans.statistics.hits == 1


def test_a_text_is_parsed_once_for_all_extents(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = request.parse

    def noted(text: str, count: int | None = None) -> Notation:
        parsed.append(text)
        return parse(text, count)

    monkeypatch.setattr(request, "parse", noted)
    with ct.Handle() as handle:
        for n in range(2, 7):
            found = ct.contract("uvw,xv->wux", np.ones((n, 3, 2)), np.ones((n, 3)), handle=handle)
            assert found.shape == (2, n, n)
        assert handle.plans.statistics.misses == 5
    assert parsed == ["uvw,xv->wux"]


def test_steps_that_few_calls_run_are_prepared_by_the_first_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared: list[object] = []
    prepare = host.prepare_elementwise

    def noted(plan: Plan, step: Elementwise, *more: Any) -> Prepared:
        prepared.append(step)
        return prepare(plan, step, *more)

    monkeypatch.setattr(host, "prepare_elementwise", noted)
    monkeypatch.setenv("CONTRACT_CHECK", "0")
    with ct.Handle() as handle:
        call = partial(ct.contract, "ij,jk->ik", A, B, handle=handle)
        np.testing.assert_allclose(call(), A @ B)
        assert not prepared
        for _ in range(2):
            np.testing.assert_array_equal(call(alpha=0), np.zeros((2, 4)))
        assert len(prepared) == 1


def test_every_option_is_part_of_the_key(handle: ct.Handle, rng: np.random.Generator) -> None:
    """Calls that differ in one thing only, in every order of two."""
    x = rng.random((7, 7))
    row = rng.random(7)
    half = row.astype("f4")
    calls: list[tuple[dict[str, Any], np.ndarray]] = [
        ({}, x @ row),
        ({"operators": ("exp", None)}, np.exp(x) @ row),
        ({"operators": (None, "exp")}, x @ np.exp(row)),
        ({"c": row}, x @ row + row),
        ({"c": row * np.nan, "beta": 0}, x @ row),
        ({"c": row, "operators": (None, None, "exp")}, x @ row + np.exp(row)),
        ({"c": row * np.nan, "beta": 0, "operators": (None, None, "exp")}, x @ row),
        ({"c": half}, x @ row + half),
        ({"out": np.empty(7)}, x @ row),
        ({"out": np.empty(14)[::2]}, x @ row),
        ({"out": np.empty(7, "f4")}, x @ row),
        ({"order": "C"}, x @ row),
        ({"alpha": 3}, 3 * x @ row),
    ]
    for first in calls:
        for second in calls:
            handle.plans.clear()
            for options, wanted in (first, second, first):
                found = ct.contract("ij,j->i", x, row, **options, handle=handle)
                np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_limits_and_orders_are_part_of_the_key(handle: ct.Handle) -> None:
    for _ in range(2):
        for order in "FCFKAC":
            found = ct.contract("ij,kj->ik", A, A, order=order, handle=handle)
            if order != "K":
                assert found.flags["F_CONTIGUOUS" if order == "F" else "C_CONTIGUOUS"]
        with pytest.raises(ct.InsufficientWorkspaceError, match="limit is 10"):
            ct.contract("ij,kj->ik", A, A, memory_limit=10, handle=handle)


def test_the_compute_type_is_part_of_the_key(handle: ct.Handle) -> None:
    row = A[0] / 3
    for _ in range(2):
        for kind in (None, "64F", "32F"):
            found = ct.contract("i,i->", row, row, compute_type=kind, handle=handle)
            np.testing.assert_allclose(found, row @ row)
        with pytest.raises(ct.UnsupportedTypeError, match="16F is not supported for float64"):
            ct.contract("i,i->", row, row, compute_type="16F", handle=handle)
        assert len(handle.plans) == 2, "64F is the default"


def test_a_disabled_cache_plans_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTENSOR_DISABLE_PLAN_CACHE", "1")
    with ct.Handle() as handle:
        for _ in range(3):
            np.testing.assert_allclose(ct.contract("ij,jk->ik", A, B, handle=handle), A @ B)
        assert len(handle.plans) == 0


def test_the_lines_of_a_cache_are_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    with ct.Handle() as handle:
        assert handle.plans.capacity == 4096
    monkeypatch.setenv("CONTRACT_CACHE_LINES", "3")
    with ct.Handle() as handle, ct.Handle(cache_lines=2) as other:
        assert (handle.plans.capacity, other.plans.capacity) == (3, 2)
        for count in range(2, 8):
            ct.contract("i,i->", np.ones(count), np.ones(count), handle=handle)
        assert len(handle.plans) == 3


def test_the_number_of_threads_does_not_change_a_bit(rng: np.random.Generator) -> None:
    x, y = rng.random((24, 30, 28, 10)), rng.random((28, 9, 24, 11))
    z = rng.random((3, 200_000))
    cases = [
        ("abcd,cea->bde", (x, y[..., 0])),
        ("abcd,ceaf->bdef", (x, y)),
        ("abcd->dbca", (x,)),
        ("abcd->b", (x,)),
        ("ai,bi->ab", (z, z)),
        ("ai->", (z,)),
    ]
    for text, operands in cases:
        results = []
        for threads in (1, 2, 5):
            with ct.Handle(threads=threads) as handle:
                results.append(ct.contract(text, *operands, handle=handle))
        for other in results[1:]:
            np.testing.assert_array_equal(results[0], other)
