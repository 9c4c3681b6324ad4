"""permute, reduce, elementwise_binary, elementwise_trinary, contract_trinary on arrays."""

import itertools
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import contract as ct
from tests.fuzz.guard import GuardedMemory, NumpyMemory

HANDLES = {name: ct.Handle(kernels=name, threads=2) for name in ("numba", "numpy")}
families = pytest.mark.parametrize("family", list(HANDLES))
common = settings(max_examples=120, deadline=None, derandomize=True)
FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
BINARY = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
A, B = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Random numbers near 1 of any supported type."""
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 7, shape).astype(dtype)
    x = rng.uniform(0.5, 1.5, shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.uniform(-1, 1, shape)
    return x.astype(dtype)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


def roundoff(dtype: str) -> float:
    bits = {"float16": 11, "bfloat16": 8, "float32": 24, "complex64": 24}
    return 2.0 ** -bits.get(dtype, 53)


def assert_close(found: np.ndarray, wanted: np.ndarray, scale: float = 16) -> None:
    """Equal to a few roundoffs of the result's type and of what 16-bit types compute in."""
    u = roundoff(found.dtype.name)
    if found.dtype.kind in "iu":
        np.testing.assert_array_equal(found, wanted)
        return
    assert found.shape == wanted.shape
    error = np.abs(wide(found) - wide(wanted))
    assert np.all(error <= scale * u * np.maximum(np.abs(wide(wanted)), 0.25)), error.max()


def spread(x: np.ndarray, term: str, output: str) -> np.ndarray:
    """``x`` with a dimension for each label of the output, 1 where it has none."""
    distinct = "".join(dict.fromkeys(term))
    x = np.einsum(f"{term}->{distinct}", x)
    order = [distinct.index(label) for label in output if label in distinct]
    shape = [x.shape[distinct.index(label)] if label in distinct else 1 for label in output]
    return x.transpose(order).reshape(shape)


# --- permute --------------------------------------------------------------------------------------


@families
@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("size", [5, 37])
def test_permute_converts(family: str, source: str, target: str, size: int) -> None:
    rng = np.random.default_rng(size)
    x = values(rng, (size, size - 1, size + 2), source)
    if np.dtype(source).kind == "c" and np.dtype(target).kind != "c":
        with pytest.raises(ct.UnsupportedTypeError):
            ct.permute("abc->cab", x, dtype=target, handle=HANDLES[family])
        return
    for alpha in (1, 2.5):
        found = ct.permute("abc->cab", x, dtype=target, alpha=alpha, handle=HANDLES[family])
        assert found.dtype == target
        assert found.flags.f_contiguous
        assert_close(found, (alpha * wide(x)).transpose(2, 0, 1))


@families
@common
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 2)), max_size=4),
    st.integers(0, 10),
    st.sampled_from(("float32", "int16", "complex128")),
    st.booleans(),
)
def test_padding_is_numpys(
    family: str, dims: list[tuple[int, int, int]], seed: int, dtype: str, scaled: bool
) -> None:
    rng = np.random.default_rng(seed)
    labels = "abcd"[: len(dims)]
    order = rng.permutation(len(dims))
    x = values(rng, tuple(n for n, _, _ in dims), dtype)
    pairs = [dims[at][1:] for at in order]
    output = "".join(labels[at] for at in order)
    alpha = 3 if scaled else 1
    found = ct.permute(
        f"{labels}->{output}",
        x,
        alpha=alpha,
        padding=pairs,
        padding_value=7,
        handle=HANDLES[family],
    )
    inner = alpha * x.transpose(order)
    wanted = np.pad(inner, pairs, constant_values=7) if dims else inner
    assert_close(found, wanted)


@families
def test_padding_of_large_tensors_and_operators(family: str) -> None:
    x = np.random.default_rng(1).uniform(1, 2, (90, 70, 3)).astype("f4")
    found = ct.permute(
        "abc->bca",
        x,
        operator="log",
        alpha=-1,
        padding=((3, 0), (0, 1), (2, 5)),
        padding_value=np.nan,
        dtype="f8",
        handle=HANDLES[family],
    )
    wanted = np.pad(
        -np.log(x.astype("f8")).transpose(1, 2, 0),
        ((3, 0), (0, 1), (2, 5)),
        constant_values=np.nan,
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_padding_has_the_type_of_the_result() -> None:
    x = np.ones(1, "f4")
    for value, dtype in ((2j, "c8"), (0.1, "f8")):
        out = np.empty(3, dtype)
        ct.permute("a->a", x, padding=((1, 1),), padding_value=value, out=out)
        np.testing.assert_array_equal(out, np.array([value, 1, value], dtype))


@families
def test_permute_of_any_view(family: str) -> None:
    memory = np.random.default_rng(2).random((9, 40, 41, 6))
    raw = np.zeros(40 * 41 * 8 + 1, np.uint8)[1:].view("f8").reshape(40, 41)
    raw[...] = memory[3, :, :, 2]
    for x in (
        memory[3, :, :, 2],
        memory[3, ::-1, ::2, 2],
        np.broadcast_to(memory[3, :, :1, 2], (40, 41)),
        np.lib.stride_tricks.as_strided(memory, (40, 50), (8, 16)),
        raw,
        memory[3, :, :, 2].astype(">f8"),
    ):
        for out in (None, np.empty(x.T.shape), np.empty((2 * x.shape[1], x.shape[0]))[::-2]):
            found = ct.permute("ab->ba", x, out=out, handle=HANDLES[family])
            assert out is None or found is out
            np.testing.assert_array_equal(found, x.T)
    square = memory[3, :, :40, 2]
    np.testing.assert_array_equal(
        ct.permute("aa->a", square, handle=HANDLES[family]), square.diagonal()
    )


# --- reduce ---------------------------------------------------------------------------------------


@st.composite
def reductions(draw: st.DrawFn) -> tuple[tuple[int, ...], str, str]:
    """Extents, the term, the output."""
    extents = draw(st.lists(st.sampled_from((1, 2, 3, 5, 17, 40)), min_size=1, max_size=4))
    labels = "abcd"[: len(extents)]
    kept = draw(st.permutations(labels))
    return tuple(extents), labels, "".join(kept[: draw(st.integers(0, len(labels)))])


@families
@common
@given(
    reductions(),
    st.sampled_from(tuple(BINARY)),
    st.sampled_from((*FLOATS, "int32", "uint8")),
    st.booleans(),
    st.integers(0, 99),
)
def test_reduce(
    family: str,
    case: tuple[tuple[int, ...], str, str],
    op: str,
    dtype: str,
    with_c: bool,
    seed: int,
) -> None:
    extents, term, output = case
    rng = np.random.default_rng(seed)
    x = values(rng, extents, dtype)
    if op == "mul":
        x = x[tuple(slice(0, 3) for _ in extents)]
    if np.dtype(dtype).kind == "c" and op in ("max", "min"):
        with pytest.raises(ct.UnsupportedTypeError, match="no order"):
            ct.reduce(f"{term}->{output}", x, op=op, handle=HANDLES[family])
        return
    moved = np.moveaxis(x, [term.index(label) for label in output], range(len(output)))
    axes = tuple(range(len(output), len(term)))
    exact = x.dtype if x.dtype.kind in "iu" else wide(x).dtype
    wanted = np.asarray(BINARY[op].reduce(moved, axis=axes, dtype=exact))
    if not with_c:
        assert_close(ct.reduce(f"{term}->{output}", x, op=op, handle=HANDLES[family]), wanted, 4096)
        return
    c = values(rng, wanted.shape, dtype)
    found = ct.reduce(f"{term}->{output}", x, op=op, c=c, alpha=2, beta=3, handle=HANDLES[family])
    with np.errstate(over="ignore"):
        assert_close(found, (2 * wanted + 3 * c.astype(exact)).astype(exact), 4096)


@families
@pytest.mark.parametrize("text", ["ab->a", "ab->b", "ab->", "abc->b", "abc->ca", "abcd->db"])
@pytest.mark.parametrize("op", BINARY)
def test_reduce_large_with_operators(family: str, text: str, op: str) -> None:
    rng = np.random.default_rng(3)
    shape = {2: (700, 300), 3: (70, 60, 50), 4: (30, 20, 17, 19)}[text.index("-")]
    x = rng.uniform(0.9, 1.1, shape) if op != "mul" else rng.uniform(0.9999, 1.0001, shape)
    term, output = text.split("->")
    axes = tuple(at for at, label in enumerate(term) if label not in output)
    cases = [("f8", None), ("f8", ("exp", "neg")), ("f2", ("sqrt", None)), ("f4", None)]
    for dtype, operators in cases:
        y = x.astype(dtype)
        z = wide(y)
        if operators is not None:
            z = {"exp": np.exp, "sqrt": np.sqrt}[operators[0]](z)
        if op == "mul" and operators == ("exp", "neg"):
            continue  # e^400 is out of range
        wanted = np.asarray(BINARY[op].reduce(z, axis=axes))
        kept = [label for label in term if label in output]
        wanted = wanted.transpose([kept.index(label) for label in output])
        c = rng.random(wanted.shape).astype(dtype)
        options = {"op": op, "c": c, "alpha": 0.25, "beta": -2, "operators": operators}
        found = ct.reduce(text, y, **options, handle=HANDLES[family])
        sign = -1 if operators == ("exp", "neg") else 1
        wanted = 0.25 * wanted - 2 * sign * wide(c)
        tolerance = {"f2": 2e-3, "f4": 2e-3, "f8": 1e-11}[dtype]
        np.testing.assert_allclose(
            found.astype("f8"), wanted.astype("f8"), rtol=tolerance, atol=tolerance
        )


@families
@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("operator", [None, "sqrt"])
def test_reduce_in_parts(family: str, operator: str | None, op: str) -> None:
    """Few kept elements of long sums: every part counts, the last and the shorter ones too."""
    rng = np.random.default_rng(17)
    for text, shape in (("ab->a", (3, 200_003)), ("ab->b", (200_003, 3)), ("abc->b", (70, 5, 900))):
        x = 1 + rng.uniform(-1e-6, 1e-6, shape)
        axes = tuple(at for at, label in enumerate(text.split("-")[0]) if label not in text[-1])
        seen = x if operator is None else np.sqrt(x)
        wanted = BINARY[op].reduce(seen, axis=axes)
        c = rng.random(wanted.shape)
        found = ct.reduce(
            text, x, op=op, c=c, alpha=2, operators=(operator,), handle=HANDLES[family]
        )
        np.testing.assert_allclose(found, 2 * wanted + c, rtol=1e-9 if op in ("add", "mul") else 0)


@families
@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("size", [7, 300])
@pytest.mark.parametrize("text", ["ab->a", "ab->b", "ab->"])
def test_nan_propagates(family: str, op: str, size: int, text: str) -> None:
    x = np.ones((size, size), "f4")
    x[size // 2, size - 2] = np.nan
    with np.errstate(invalid="ignore"):
        axes = {"ab->a": 1, "ab->b": 0, "ab->": None}[text]
        wanted = BINARY[op].reduce(x, axis=axes)
    np.testing.assert_array_equal(ct.reduce(text, x, op=op, handle=HANDLES[family]), wanted)


def test_reductions_of_nothing() -> None:
    x = np.empty((3, 0))
    np.testing.assert_array_equal(ct.reduce("ab->a", x), np.zeros(3))
    np.testing.assert_array_equal(ct.reduce("ab->a", x, op="mul", alpha=2), np.full(3, 2.0))
    np.testing.assert_array_equal(
        ct.reduce("ab->a", x, op="mul", c=np.ones(3), beta=5), np.full(3, 6.0)
    )
    assert ct.reduce("ab->b", x, op="max").shape == (0,)
    for op in ("max", "min"):
        with pytest.raises(ct.InvalidValueError, match="no elements"):
            ct.reduce("ab->a", x, op=op)


@families
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_pairs_of_kept_elements(family: str, dtype: str) -> None:
    """Two kept elements side by side, before a long reduced mode."""
    rng = np.random.default_rng(14)
    x = 1 + 1e-4 * rng.random((2, 5000))
    if dtype[0] == "c":
        x = np.exp(1j * x)
    x = np.asfortranarray(x.astype(dtype))
    handle = HANDLES[family]
    for op, function in (("add", np.add), ("mul", np.multiply)):
        found = ct.reduce("ab->a", x, op=op, handle=handle)
        exact = x.dtype if dtype == "i4" else wide(x).dtype
        wanted = function.reduce(x, axis=1, dtype=exact)
        np.testing.assert_allclose(
            found, wanted.astype(dtype), rtol=1e-2 if dtype == "f4" else 2e-3
        )
    y = rng.random((6000, 2))
    found = ct.contract("ka,a->a", y, np.array([1, 1j]), handle=handle)
    np.testing.assert_allclose(found, y.sum(axis=0) * [1, 1j])


# --- elementwise ----------------------------------------------------------------------------------


@st.composite
def combinations(draw: st.DrawFn) -> tuple[dict[str, int], list[str], str]:
    """Extents, a term for each of three operands, and the output with every label."""
    count = draw(st.integers(0, 4))
    extents = {label: draw(st.sampled_from((1, 2, 3, 7, 33))) for label in "abcd"[:count]}
    terms = []
    for _ in range(3):
        order = draw(st.permutations(list(extents)))
        terms.append("".join(order[: draw(st.integers(0, count))]))
    output = "".join(draw(st.permutations(sorted(set("".join(terms))))))
    return extents, terms, output


@families
@common
@given(
    combinations(),
    st.sampled_from(tuple(BINARY)),
    st.sampled_from(tuple(BINARY)),
    st.sampled_from((*FLOATS, "int32")),
    st.tuples(*[st.sampled_from((0, 1, -2))] * 3),
    st.integers(2, 3),
    st.integers(0, 99),
)
def test_elementwise(
    family: str,
    case: tuple[dict[str, int], list[str], str],
    first: str,
    second: str,
    dtype: str,
    scalars: tuple[int, int, int],
    count: int,
    seed: int,
) -> None:
    extents, terms, output = case
    if count == 2:
        terms = [terms[0], terms[2]]
        output = "".join(label for label in output if label in "".join(terms))
    if np.dtype(dtype).kind == "c":
        first, second = ("add", "mul") if first in ("max", "min") else ("mul", "add")
    rng = np.random.default_rng(seed)
    operands = [values(rng, tuple(extents[x] for x in term), dtype) for term in terms]
    seen = [spread(wide(x) if x.dtype.kind in "fcV" else x, t, output)
            for x, t in zip(operands, terms, strict=True)]  # fmt: skip
    text = f"{','.join(terms)}->{output}"
    alpha, beta, gamma = scalars
    if count == 2:
        wanted = BINARY[first](alpha * seen[0], gamma * seen[1])
        found = ct.elementwise_binary(
            text, *operands, op=first, alpha=alpha, gamma=gamma, handle=HANDLES[family]
        )
    else:
        inner = BINARY[first](alpha * seen[0], beta * seen[1])
        wanted = BINARY[second](inner, gamma * seen[2])
        found = ct.elementwise_trinary(
            text,
            *operands,
            op_ab=first,
            op_abc=second,
            alpha=alpha,
            beta=beta,
            gamma=gamma,
            handle=HANDLES[family],
        )
    assert_close(found, wanted.reshape(found.shape), 64)


@families
@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("abc,abc->abc", ((90, 80, 7), (90, 80, 7))),
        ("abc,cba->abc", ((90, 80, 7), (7, 80, 90))),
        ("ab,b->ba", ((400, 300), (300,))),
        ("a,b->ab", ((400,), (300,))),
        ("abcd,bd->dcab", ((3, 60, 5, 40), (60, 40))),
        ("aab,ba->ba", ((60, 60, 70), (70, 60))),
    ],
)
def test_large_elementwise(family: str, text: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    rng = np.random.default_rng(5)
    first, second, output = text.replace("->", ",").split(",")
    for dtype in ("f8", "f2", "c8"):
        x, y = (values(rng, shape, dtype) for shape in shapes)
        found = ct.elementwise_binary(
            text, x, y, op="mul", alpha=2, gamma=-1, order="C", handle=HANDLES[family]
        )
        wanted = -2 * spread(wide(x), first, output) * spread(wide(y), second, output)
        assert found.flags.c_contiguous
        assert_close(found, np.broadcast_to(wanted, found.shape))


@families
def test_each_operand_has_its_operator(family: str) -> None:
    """Whichever of them needs memory beside it."""
    rng = np.random.default_rng(12)
    x, y, z = (rng.uniform(0.5, 1.5, (150, 160)) for _ in range(3))
    functions = {
        None: lambda v: v,
        "swish": lambda v: v / (1 + np.exp(-v)),
        "log": np.log,
        "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    }
    for names in itertools.permutations(functions, 3):
        one, two, three = (functions[name] for name in names)
        with ct.Handle(kernels=family, threads=2) as handle:  # whose memory is new
            found = ct.elementwise_trinary(
                "ab,ba,ab->ba",
                x,
                y.T,
                z,
                operators=names,
                op_ab="mul",
                beta=-2,
                order="C",
                handle=handle,
            )
        wanted = -2 * one(x) * two(y) + three(z)
        np.testing.assert_allclose(found, wanted.T, rtol=1e-13, atol=1e-13)


@families
@pytest.mark.parametrize("size", [3, 200])
def test_halves_combined_do_not_overflow_on_the_way(family: str, size: int) -> None:
    x = np.full((size, size), 300, "f2")
    c = np.full((size, size), -60000, "f2")
    found = ct.elementwise_trinary("ab,ba,ab->ab", x, x, c, op_ab="mul", handle=HANDLES[family])
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, np.full((size, size), 30000, "f2"))


@families
@pytest.mark.parametrize("size", [5, 300])
@pytest.mark.parametrize("op", BINARY)
def test_reduce_into_another_type(family: str, size: int, op: str) -> None:
    x = values(np.random.default_rng(13), (size, size), "f4")
    for text, axis in (("ab->a", 1), ("ab->b", 0), ("ab->", None)):
        y = x[: size if op != "mul" else 5, : size if op != "mul" else 5]
        wanted = np.asarray(BINARY[op].reduce(wide(y), axis=axis))
        for dtype in ("f8", "f2", "f4"):
            out = np.zeros(wanted.shape, dtype)
            if wanted.max() < 6e4 or dtype != "f2":
                ct.reduce(text, y, op=op, out=out, handle=HANDLES[family])
                np.testing.assert_allclose(out, wanted.astype(dtype), rtol=1e-3)


def test_mixed_types_of_the_tables() -> None:
    rng = np.random.default_rng(6)
    for wider, narrower in (("f4", "f2"), ("f8", "f4"), ("c16", "c8")):
        x, c = values(rng, (40, 30), wider), values(rng, (30, 40), narrower)
        found = ct.elementwise_binary("ab,ba->ab", x, c, op="mul", dtype=narrower)
        assert found.dtype == narrower
        assert_close(found, wide(x) * wide(c).T)
        out = np.empty((40, 30), narrower)
        assert ct.elementwise_binary("ab,ba->ab", x, c, op="mul", out=out) is out
        assert_close(out, wide(x) * wide(c).T)


def test_real_operands_of_complex_operations_are_transformed_as_reals() -> None:
    rng = np.random.default_rng(12)
    for size in (5, 200):
        x, c = rng.uniform(-2, 2, (size, size)), rng.random((size, size)) + 1j
        for name, function in (("ceil", np.ceil), ("abs", np.abs)):
            found = ct.elementwise_binary("ab,ba->ab", x, c, operators=(name, "conj"), alpha=2)
            np.testing.assert_allclose(found, 2 * function(x) + c.conj().T)
        found = ct.permute("ab->ba", x, operator="floor", dtype="c16", alpha=1j)
        np.testing.assert_allclose(found, 1j * np.floor(x).T)
    with pytest.raises(ct.UnsupportedTypeError, match="in the type of the result"):
        ct.contract("ab,bc->ac", c, c, c=x, operators=(None, None, "ceil"))


def test_halves_of_both_kinds_meet_in_float32() -> None:
    x, y = np.full(3, 3, "f2"), np.full(3, 0.5, ml_dtypes.bfloat16)
    for found in (
        ct.contract("a,a->a", x, y),
        ct.elementwise_binary("a,a->a", x, y, op="mul"),
    ):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, np.full(3, 1.5))


@families
@pytest.mark.parametrize("shape", [(3, 4), (200, 300)])
def test_in_place(family: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(7)
    x, c = rng.random(shape), rng.random(shape)
    wanted = np.maximum(2 * x, c)
    out = c.copy()
    ct.elementwise_binary("ab,ab->ab", x, out, op="max", alpha=2, out=out, handle=HANDLES[family])
    np.testing.assert_array_equal(out, wanted)
    out = x.copy()
    ct.elementwise_binary("ab,ab->ab", out, c, op="max", alpha=2, out=out, handle=HANDLES[family])
    np.testing.assert_array_equal(out, wanted)
    out = x.copy()
    ct.elementwise_trinary(
        "ab,ab,ab->ab", out, c, out, op_ab="mul", out=out, handle=HANDLES[family]
    )
    np.testing.assert_allclose(out, x * c + x, rtol=1e-15)
    square = rng.random((shape[0], shape[0]))
    out = square.copy()
    ct.elementwise_binary("ba,ab->ab", out, out, out=out, handle=HANDLES[family])
    np.testing.assert_allclose(out, square + square.T, rtol=1e-15)
    out = square.copy()
    ct.permute("ab->ba", out, out=out, handle=HANDLES[family])
    np.testing.assert_array_equal(out, square.T)
    ct.permute("ab->ab", out, alpha=3, out=out, handle=HANDLES[family])
    np.testing.assert_array_equal(out, 3 * square.T)


@families
@pytest.mark.parametrize("size", [4, 700])
@pytest.mark.parametrize("shift", [-5, -1, 1, 5])
def test_out_that_lies_beside_an_operand(family: str, size: int, shift: int) -> None:
    """Memory that is shared but shifted is read before it is written."""
    memory = np.random.default_rng(14).random(size * size + 10)
    other = np.random.default_rng(15).random((size, size))
    handle = HANDLES[family]
    for call in (
        lambda x, out: ct.permute("ab->ab", x, alpha=3, out=out, handle=handle),
        lambda x, out: ct.permute("ab->ab", x, out=out, handle=handle),
        lambda x, out: ct.elementwise_binary("ab,ab->ab", x, other, op="mul", out=out,
                                             handle=handle),
        lambda x, out: ct.reduce("abc->ab", x[..., None], c=other, out=out, handle=handle),
    ):  # fmt: skip
        data = memory.copy()
        x, out = (data[at:][: size * size].reshape(size, size) for at in (5, 5 + shift))
        wanted = call(x.copy(), np.empty((size, size)))
        call(x, out)
        np.testing.assert_array_equal(out, wanted)


@families
@pytest.mark.parametrize("text", ["ab->ab", "ab,bc->ac", "ab,ab->ab", "abx->ab"])
def test_c_that_is_the_result_transposed(family: str, text: str) -> None:
    rng = np.random.default_rng(16)
    terms, _ = text.split("->")
    operands = [rng.random((400, 400, 2)[: len(term)]) for term in terms.split(",")]
    out = rng.random((400, 400))
    wanted = np.einsum(text, *operands) + 2 * out.T
    ct.contract(text, *operands, c=out.T, beta=2, out=out, handle=HANDLES[family])
    np.testing.assert_allclose(out, wanted, rtol=1e-12)


# --- scalars ----------------------------------------------------------------------------------


@families
@pytest.mark.parametrize("scalars", [(2, -0.5, 3), (1j, 1, -2j), (1, 2 + 1j, 1)])
@pytest.mark.parametrize("size", [3, 120])
def test_scalars_of_three_operands(
    family: str, size: int, scalars: tuple[complex, ...], rng: np.random.Generator
) -> None:
    """alpha * A + beta * B^T and that times gamma * C, real scalars and complex ones."""
    a, b, c = (rng.standard_normal((size, size)) + 1j * rng.random((size, size)) for _ in range(3))
    alpha, beta, gamma = scalars
    found = ct.elementwise_trinary(
        "ab,ba,b->ab",
        *(a, b, c[0]),
        op_abc="mul",
        alpha=alpha,
        beta=beta,
        gamma=gamma,
        handle=HANDLES[family],
    )
    np.testing.assert_allclose(found, (alpha * a + beta * b.T) * (gamma * c[0]), rtol=1e-13)


@families
@pytest.mark.parametrize("extents", [(2,) * 17, (3, 2, 5, 2, 3, 2, 7, 2, 2, 3, 2, 2)])
def test_operands_of_many_modes(
    family: str, extents: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Each in an order of its own: nothing fuses, and tiles are cut along many modes."""
    labels = "abcdefghijklmnopq"[: len(extents)]
    size = dict(zip(labels, extents, strict=True))
    orders = ["".join(rng.permutation(list(labels))) for _ in range(3)]
    a, b = (rng.standard_normal([size[x] for x in order]) for order in orders[:2])
    text = f"{orders[0]},{orders[1]}->{orders[2]}"
    found = ct.contract(text, a, b, handle=HANDLES[family])
    np.testing.assert_allclose(found, np.einsum(text, a, b), rtol=1e-15)


@families
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("size", [3, 120])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8"])
def test_zero_scalars_beat_nan_everywhere(family: str, bad: float, size: int, dtype: str) -> None:
    handle = HANDLES[family]
    x, ones = np.full((size, size), bad, dtype), np.ones((size, size), dtype)
    zeros = np.zeros_like(ones)
    checks = [
        (ct.permute("ab->ba", x, alpha=0, handle=handle), zeros),
        (ct.permute("ab->ba", x, alpha=0, dtype="c16", handle=handle), zeros),
        (ct.reduce("ab->b", x, alpha=0, handle=handle), zeros[0]),
        (ct.reduce("ab->b", x, alpha=0, c=ones[0], beta=2, handle=handle), 2 * ones[0]),
        (ct.reduce("ab->b", ones, c=x[0], beta=0, handle=handle), size * ones[0]),
        (ct.elementwise_binary("ab,ba->ab", x, ones, alpha=0, handle=handle), ones),
        (ct.elementwise_binary("ab,ba->ab", ones, x, gamma=0, handle=handle), ones),
        (ct.elementwise_binary("ab,b->ab", ones, x[0], op="mul", gamma=0, handle=handle), zeros),
        (ct.contract("ab,bc->ac", x, ones, alpha=0, c=ones, beta=3, handle=handle), 3 * ones),
        (ct.contract("ab,bc->ac", ones, ones, c=x, beta=0, handle=handle), size * ones),
    ]
    for scalars in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        operands = [x if scalar == 0 else ones for scalar in scalars]
        alpha, beta, gamma = scalars
        checks.append(
            (
                ct.elementwise_trinary(
                    "ab,ba,ab->ab",
                    *operands,
                    alpha=alpha,
                    beta=beta,
                    gamma=gamma,
                    handle=handle,
                ),
                2 * ones,
            )
        )
    for found, wanted in checks:
        np.testing.assert_array_equal(found, wanted)


def test_scalars_that_are_not_zero_let_nan_through() -> None:
    x = np.full((3, 3), np.nan)
    assert np.isnan(ct.permute("ab->ba", x, alpha=1e-300)).all()
    assert np.isnan(ct.elementwise_binary("ab,ab->ab", x, 0 * A[:1, :1] + np.ones((3, 3)))).all()


def test_scalar_types_follow_the_compute_type() -> None:
    x = np.ones(3, "f2")
    third = np.float16(1 / 3)
    with pytest.raises(ct.UnsupportedTypeError, match="supported: 32F"):
        ct.permute("a->a", x, alpha=1 / 3, compute_type="16F", dtype="f4")
    found = ct.elementwise_binary("a,a->a", x, x, alpha=1 / 3, gamma=0, compute_type="16F")
    np.testing.assert_array_equal(found, np.full(3, third))


# --- contraction with C, three operands -------------------------------------------------------


@families
@pytest.mark.parametrize("size", [4, 50])
@pytest.mark.parametrize("text", ["ab,bc->ac", "abx,cbx->ca", "ab,ab->ab", "ab->b", "ab,c->cab"])
def test_operator_on_c(family: str, size: int, text: str) -> None:
    rng = np.random.default_rng(8)
    term_list, _ = text.split("->")
    extents = dict.fromkeys("abc", size) | {"x": 3}
    operands = [rng.random([extents[label] for label in term]) for term in term_list.split(",")]
    product = np.einsum(text, *operands)
    c = rng.uniform(0.5, 1, product.shape[::-1]).T
    operators = [None] * len(operands)
    for name, function in (("log", np.log), ("swish", lambda v: v / (1 + np.exp(-v)))):
        found = ct.contract(
            text, *operands, c=c, beta=-2, operators=[*operators, name], handle=HANDLES[family]
        )
        np.testing.assert_allclose(found, product - 2 * function(c), rtol=1e-11)
        out = c.copy()
        ct.contract(
            text, *operands, c=out, out=out, operators=[*operators, name], handle=HANDLES[family]
        )
        np.testing.assert_allclose(out, product + function(c), rtol=1e-11)
    imaginary = product + 1j * c
    found = ct.contract(
        text, operands[0] + 0j, *operands[1:], c=imaginary, operators=[*operators, "conj"]
    )
    np.testing.assert_allclose(found, product + imaginary.conj(), rtol=1e-11)


@families
def test_contract_trinary(family: str) -> None:
    rng = np.random.default_rng(9)
    x, y, z = rng.random((20, 30)), rng.random((30, 40)), rng.random((40, 10))
    d = rng.random((10, 20))
    found = ct.contract_trinary(
        "ab,bc,cd->da", x, y, z, d=d, alpha=2, beta=-1, handle=HANDLES[family]
    )
    np.testing.assert_allclose(found, (2 * x @ y @ z).T - d, rtol=1e-12)
    found = ct.contract_trinary(x, [0, 1], y, [1, 2], z, [2, 3], [3, 0], handle=HANDLES[family])
    np.testing.assert_allclose(found, (x @ y @ z).T, rtol=1e-12)
    with pytest.raises(ct.InvalidValueError, match="three operands"):
        ct.contract_trinary("ab,bc->ac", x, y)


def test_labels_of_any_kind() -> None:
    found = ct.permute(A, ["x", ("y", 1)], [("y", 1), "x"])
    np.testing.assert_array_equal(found, A.T)
    np.testing.assert_array_equal(ct.reduce(A, [0, 1], [1], op="max"), A.max(axis=0))
    np.testing.assert_array_equal(ct.elementwise_binary(A, "ab", A.T, "ba", "ab"), 2 * A)
    np.testing.assert_array_equal(ct.permute("...a->a...", A), A.T)


# --- arithmetic ---------------------------------------------------------------------------------


@families
@pytest.mark.parametrize("size", [5, 30000])
def test_ieee_values(family: str, size: int) -> None:
    handle = HANDLES[family]
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1.0, -1.0])
    x = np.resize(special, size)
    copied = ct.permute("a->a", x, handle=handle)
    np.testing.assert_array_equal(copied.view("u8"), x.view("u8"))
    negative = ct.permute("a->a", x, operator="neg", handle=handle)
    np.testing.assert_array_equal(np.signbit(negative), ~np.signbit(x))
    y = np.roll(x, 3)
    with np.errstate(all="ignore"):
        for op, function in BINARY.items():
            found = ct.elementwise_binary("a,a->a", x, y, op=op, handle=handle)
            np.testing.assert_array_equal(found, function(x, y))
        np.testing.assert_array_equal(ct.permute("a->a", x, operator="rcp", handle=handle), 1 / x)


@families
@pytest.mark.parametrize(
    ("dtype", "size"), [("i1", 9), ("u1", 9), ("i4", 9), ("u8", 9), ("i1", 20000)]
)
def test_integers_wrap(family: str, dtype: str, size: int) -> None:
    rng = np.random.default_rng(10)
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, (2, size), dtype, endpoint=True)
    handle = HANDLES[family]
    with np.errstate(over="ignore"):
        for op, function in BINARY.items():
            np.testing.assert_array_equal(
                ct.reduce("ab->b", x, op=op, handle=handle), function.reduce(x, dtype=dtype)
            )
            np.testing.assert_array_equal(
                ct.reduce("ab->a", x, op=op, handle=handle), function.reduce(x, 1, dtype=dtype)
            )
            np.testing.assert_array_equal(
                ct.elementwise_binary("b,b->b", x[0], x[1], op=op, alpha=3, handle=handle),
                function(x[0] * np.array(3, dtype), x[1]),
            )
    relu = ct.permute("ab->ba", x, operator="relu", handle=handle)
    np.testing.assert_array_equal(relu, np.maximum(x, 0).T)


def test_long_sums_of_halves_round_once() -> None:
    for dtype in ("float16", ml_dtypes.bfloat16):
        ones = np.ones(70000, dtype)
        for handle in HANDLES.values():
            assert float(ct.reduce("a->", ones, alpha=0.5, handle=handle)) == float(
                np.asarray(35000).astype(dtype)
            )
            assert float(ct.contract("a,a->", ones, ones, alpha=0.5, handle=handle)) == float(
                np.asarray(35000).astype(dtype)
            )
    ones = np.ones(70000, "f2")
    assert ct.reduce("a->", ones) == np.inf
    assert ct.contract("a,a->", ones, ones) == np.inf
    assert ct.contract("a,a->", ones, ones, out=np.zeros((), "f4")) == 70000


@pytest.mark.parametrize("kernels", ["numba", "numpy"])
def test_bits_do_not_depend_on_threads(kernels: str) -> None:
    rng = np.random.default_rng(11)
    x, y = rng.random((300, 40, 31)), rng.random((31, 300, 40))
    runs = []
    for threads in (1, 2, 3, 7):
        with ct.Handle(kernels=kernels, threads=threads) as handle:
            runs.append(
                [
                    ct.reduce("abc->", x, handle=handle),
                    ct.reduce("abc->c", x, op="mul", operators=("tanh",), handle=handle),
                    ct.reduce("abc->a", x, handle=handle),
                    ct.reduce("abc->b", x.astype("f2"), handle=handle),
                    ct.elementwise_binary("abc,cab->cba", x, y, op="mul", handle=handle),
                    ct.permute("abc->cba", x, operator="mish", handle=handle),
                    ct.contract("abc,cad->bd", x, y, c=np.ones((40, 40)), handle=handle),
                    ct.contract("abc,cab->", x, y, handle=handle),
                ]
            )
    for other in runs[1:]:
        for one, two in zip(runs[0], other, strict=True):
            assert one.tobytes() == two.tobytes()


# --- refusals -----------------------------------------------------------------------------------

REFUSED: list[tuple[Any, tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    (ct.permute, ("ab->a", A), {}, ct.InvalidValueError, "not in the result"),
    (ct.permute, ("ab->aab", A), {}, ct.InvalidValueError, "distinct"),
    (ct.permute, ("ab->abc", A), {}, ct.InvalidValueError, "'c'"),
    (ct.permute, ("ab,b->ab", A, A), {}, ct.InvalidValueError, "1 operands"),
    (ct.permute, ("ab->ba", A), {"padding": ((1, 2),)}, ct.InvalidValueError, "2 modes, 1 pairs"),
    (ct.permute, ("ab->ba", A), {"padding": ((1, -2), (0, 0))}, ct.InvalidValueError, "-2"),
    (ct.permute, ("ab->ba", A), {"padding": 3}, ct.InvalidValueError, "pair"),
    (ct.permute, ("ab->ba", A), {"padding": ((0, 0),) * 2, "padding_value": 1j},
     ct.InvalidValueError, "padding_value must be real"),
    (ct.permute, ("ab->ba", A), {"alpha": 1j}, ct.InvalidValueError, "alpha must be real"),
    (ct.permute, ("ab->ba", A), {"operator": "cube"}, ct.InvalidValueError, "'cube'"),
    (ct.permute, ("ab->ba", A + 0j), {"operator": "exp"}, ct.UnsupportedTypeError, "operand 0"),
    (ct.permute, ("ab->ba", A), {"dtype": "i4"}, ct.UnsupportedTypeError, "int32"),
    (ct.permute, ("ab->ba", A.astype(ml_dtypes.bfloat16)), {"dtype": "i4"},
     ct.UnsupportedTypeError, "int32"),
    (ct.permute, ("ab->ba", A + 0j), {"dtype": ml_dtypes.bfloat16},
     ct.UnsupportedTypeError, "bfloat16"),
    (ct.permute, ("ab->ba", A), {"dtype": "nonsense"}, ct.UnsupportedTypeError, "nonsense"),
    (ct.permute, ("ab->ba", A), {"compute_type": "TF32"}, ct.UnsupportedTypeError, ": 64F"),
    (ct.permute, ("ab->ba", A), {"out": np.empty((2, 3))}, ct.InvalidValueError, r"\(3, 2\)"),
    (ct.reduce, ("ab->b", A), {"op": "mean"}, ct.InvalidValueError, "'mean'"),
    (ct.reduce, ("ab->b", A), {"beta": 2}, ct.InvalidValueError, "no c"),
    (ct.reduce, ("ab->b", A), {"c": np.ones(4)}, ct.InvalidValueError, "c has shape"),
    (ct.reduce, ("ab->b", A + 0j), {"op": "max"}, ct.UnsupportedTypeError, "MAX"),
    (ct.reduce, ("ab->b", A), {"operators": ("exp", "exp")}, ct.InvalidValueError, "2 operators"),
    (ct.reduce, ("ab->b", A, A), {}, ct.InvalidValueError, "1 operands"),
    (ct.elementwise_binary, ("ab,bc->ab", A, B), {}, ct.InvalidValueError, "'c' of operand 1"),
    (ct.elementwise_binary, ("ab,ab->ab", A, B), {}, ct.InvalidValueError, "mode 'a'"),
    (ct.elementwise_binary, ("ab,ab->ab", A, A), {"op": "pow"}, ct.InvalidValueError, "'pow'"),
    (ct.elementwise_binary, ("ab,ab->ab", A, A), {"operators": ("exp",)},
     ct.InvalidValueError, "1 operators"),
    (ct.elementwise_binary, ("ab,ab->ab", A, A), {"gamma": "x"}, ct.InvalidValueError, "gamma"),
    (ct.elementwise_binary, ("ab,ab->ab", A + 0j, A), {"op": "min"}, ct.UnsupportedTypeError, "M"),
    (ct.elementwise_trinary, ("ab,ab->ab", A, A), {}, ct.InvalidValueError, "3 operands"),
    (ct.elementwise_trinary, ("ab,ab,ab->ab", A, A, A), {"memory_limit": 3},
     ct.InsufficientWorkspaceError, "limit is 3"),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0].__name__}-{case[4]}")
def test_refusals_name_the_rule(
    case: tuple[Any, tuple[Any, ...], dict[str, Any], type[Exception], str],
) -> None:
    verb, arguments, options, error, message = case
    with pytest.raises(error, match=message) as caught:
        verb(*arguments, **options)
    assert isinstance(caught.value, ct.ContractError)
    assert caught.value.status


def test_a_refused_call_writes_nothing() -> None:
    out = np.full((3, 2), 5.0)
    with pytest.raises(ct.ContractError):
        ct.permute("ab->ba", A, alpha=1j, out=out)
    with pytest.raises(ct.ContractError):
        ct.elementwise_binary("ab,ab->ba", A, A, op="pow", out=out)
    assert (out == 5).all()


# --- memory -------------------------------------------------------------------------------------

LARGE = np.random.default_rng(13).random((300, 20, 50))
ALLOCATING: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (ct.permute, ("abc->cba", LARGE), {}),
    (ct.permute, ("abc->cba", LARGE), {"operator": "mish", "alpha": 2}),
    (ct.permute, ("abc->bac", LARGE), {"padding": ((1, 2),) * 3, "dtype": "f2"}),
    (ct.permute, ("abc->cba", LARGE.astype(">f8")), {}),
    (ct.permute, ("abc->cba", LARGE), {"operator": "abs", "dtype": "c16"}),
    (ct.reduce, ("abc->", LARGE), {"op": "max"}),
    (ct.reduce, ("abc->ca", LARGE), {"alpha": 3, "operators": ("sigmoid",)}),
    (ct.reduce, ("abc->b", LARGE.astype("f2")), {"c": np.ones(20, "f2"), "beta": 2}),
    (ct.reduce, ("abc->ab", LARGE), {"c": np.ones((300, 20)), "operators": ("exp", "swish")}),
    (ct.elementwise_binary, ("abc,cab->bca", LARGE, LARGE.transpose(2, 0, 1).copy()), {}),
    (ct.elementwise_binary, ("abc,b->abc", LARGE, LARGE[0, :, 0].astype("f4")), {"gamma": 3}),
    (ct.elementwise_trinary, ("abc,c,ab->abc", LARGE, LARGE[0, 0], LARGE[:, :, 0]),
     {"operators": ("soft_sign", None, "log"), "op_ab": "mul", "beta": 2}),
    (ct.permute, ("ab->ba", A), {"operator": "swish", "alpha": 3}),
    (ct.elementwise_trinary, ("ab,ab,b->ab", A, A, A[0]), {"operators": ("mish",) * 3}),
    (ct.contract, ("abc,abd->cd", LARGE, LARGE), {"operators": ("mish", "tanh")}),
    (ct.contract, ("abc,dbc->ad", LARGE, LARGE.astype("f4")), {"operators": ("relu", None)}),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(ALLOCATING)))
def test_no_call_allocates_more_than_it_estimates(case: int) -> None:
    verb, arguments, options = ALLOCATING[case]
    with ct.Handle(threads=2) as handle:
        verb(*arguments, handle=handle, **options)  # plans and compiles
        _, call = next(iter(handle.plans._requests.values()))
        handle.executor.pool.clear()
        tracemalloc.start()
        verb(*arguments, handle=handle, **options)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    small = 60_000  # Python's own objects, and NumPy's buffers for conversions
    assert peak <= call.needed_bytes + small, f"{peak} bytes at the peak, {call.needed_bytes}"


def test_a_result_of_the_common_type() -> None:
    """NumPy finds no type for these three beside a fourth that is their common one."""
    x, y = np.ones(3, "complex128"), np.ones(3, "int64")
    out = np.zeros(3, "complex128")
    brain = np.ones((), "bfloat16")
    ct.elementwise_trinary("a,,a->a", x, brain, y, out=out)
    np.testing.assert_array_equal(out, 3)


def test_products_of_nothing_keep_to_the_limit(handle: ct.Handle) -> None:
    x, out = np.ones((2, 7, 0, 8)), np.ones((2, 7, 8))
    with pytest.raises(ct.InsufficientWorkspaceError):
        ct.reduce("abcd->abd", x, op="mul", out=out, memory_limit=out.nbytes, handle=handle)
    limit = 4 * out.nbytes
    ct.reduce("abcd->abd", x, op="mul", out=out, alpha=3, memory_limit=limit, handle=handle)
    assert (out == 3).all()


@pytest.mark.parametrize("count", [1, 2])
def test_conversions_of_small_operands_keep_to_the_limit(handle: ct.Handle, count: int) -> None:
    """NumPy converts a small operand as a whole."""
    operands, text = [np.ones(100, "float16")] * count, ",".join("a" * count) + "->a"
    verb = ct.permute if count == 1 else ct.elementwise_binary
    memory = GuardedMemory()
    for limit in range(200, 3000, 100):
        try:
            verb(text, *operands, alpha=2, memory_limit=limit, handle=handle)
        except ct.InsufficientWorkspaceError:
            continue
        with NumpyMemory(memory).guarded():
            verb(text, *operands, alpha=2, memory_limit=limit, handle=handle)
        break
    assert 600 < memory.peak <= limit + 64  # with the scalars


@pytest.mark.parametrize("terms", ["i,i->", "i->"])
def test_a_lone_integer_wraps_around(handle: ct.Handle, terms: str) -> None:
    """NumPy refuses to store such a number, which is no array."""
    operands = [np.full(3, 100)] * (1 + terms.count(","))
    out = np.zeros((), "int8")
    ct.contract(terms, *operands, out=out, handle=handle)
    assert out == np.array(3 * 100 ** len(operands)).astype("int8")
