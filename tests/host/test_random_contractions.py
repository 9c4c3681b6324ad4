"""Random products against brute force: modes of every kind, extents, strides, types, scalars."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import contract as ct
from tests.reference import assert_within_bound, by_loops, extents_of, spread

FLOATS = ("float16", "float32", "float64", "complex64", "complex128")
INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
MEMORY = ("C", "F", "sliced", "reversed", "repeated", "transposed")

HANDLES = {family: ct.Handle(kernels=family) for family in ("numba", "numpy")}


@dataclass(frozen=True)
class Problem:
    terms: tuple[str, str]
    output: str
    extents: dict[str, int]

    @property
    def text(self) -> str:
        return f"{','.join(self.terms)}->{self.output}"


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Two operands with up to two modes of each kind, in any order."""
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    kinds = {
        kind: [next(letters) for _ in range(draw(st.integers(0, most)))]
        for kind, most in (("l", 1), ("m", 2), ("n", 2), ("k", 2), ("only a", 1), ("only b", 1))
    }
    a = kinds["l"] + kinds["m"] + kinds["k"] + kinds["only a"]
    b = kinds["l"] + kinds["n"] + kinds["k"] + kinds["only b"]
    for term in (a, b):
        if term and draw(st.integers(0, 5)) == 0:
            term.append(draw(st.sampled_from(term)))  # a diagonal
    output = draw(st.permutations(kinds["l"] + kinds["m"] + kinds["n"]))
    if output and draw(st.integers(0, 9)) == 0:
        output = [*output, draw(st.sampled_from(output))]
    labels = sorted({*a, *b})
    sizes = st.sampled_from((0, 1, 2, 3, 3, 4, 5, 7)) if len(labels) < 6 else st.integers(1, 3)
    return Problem(
        ("".join(draw(st.permutations(a))), "".join(draw(st.permutations(b)))),
        "".join(output),
        {label: draw(sizes) for label in labels},
    )


def made(rng: np.random.Generator, shape: list[int], dtype: str) -> np.ndarray:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    values = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.standard_normal(shape)
    return np.asarray(values).astype(dtype)


def stored(x: np.ndarray, memory: str) -> np.ndarray:
    """The same values in another memory layout."""
    match memory:
        case "F":
            return np.array(x, order="F")
        case "sliced":
            wide = np.zeros([2 * n + 1 for n in x.shape], x.dtype)
            view = wide[(*(slice(1, 2 * n + 1, 2) for n in x.shape), ...)]
        case "reversed":
            view = np.empty_like(x)[(*(slice(None, None, -1) for _ in x.shape), ...)]
        case "transposed" if x.ndim:
            view = np.empty(x.shape[1:] + x.shape[:1], x.dtype)
            view = np.moveaxis(view, -1, 0)
        case "repeated" if x.ndim and x.shape[0]:
            return np.broadcast_to(x[:1], x.shape)
        case _:
            return np.ascontiguousarray(x).reshape(x.shape)
    view[...] = x
    return view


def operands_of(
    problem: Problem, rng: np.random.Generator, dtypes: tuple[str, str], memory: tuple[str, str]
) -> list[np.ndarray]:
    return [
        stored(made(rng, [problem.extents[x] for x in term], dtype), layout)
        for term, dtype, layout in zip(problem.terms, dtypes, memory, strict=True)
    ]


common = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
layouts = st.tuples(st.sampled_from(MEMORY), st.sampled_from(MEMORY))
seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("family", list(HANDLES))
@common
@given(
    problem=problems(),
    dtypes=st.tuples(st.sampled_from(FLOATS), st.sampled_from(FLOATS)),
    memory=layouts,
    order=st.sampled_from("FCKA"),
    alpha=st.sampled_from((1, 1, 0, -2.5)),
    beta=st.sampled_from((None, 1, 0.5, 0)),
    seed=seeds,
)
def test_floating_products(
    family: str,
    problem: Problem,
    dtypes: tuple[str, str],
    memory: tuple[str, str],
    order: str,
    alpha: float,
    beta: float | None,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    operands = operands_of(problem, rng, dtypes, memory)
    shape = [problem.extents[x] for x in problem.output]
    c = None if beta is None else made(rng, shape, np.result_type(*dtypes).name)
    found = ct.contract(
        problem.text, *operands, alpha=alpha, c=c, beta=beta, order=order, handle=HANDLES[family]
    )
    assert found.dtype == np.result_type(*dtypes)
    assert_within_bound(found, problem.terms, problem.output, operands, alpha, beta or 0, c)
    if order == "F":
        assert found.flags.f_contiguous
    if order == "C":
        assert found.flags.c_contiguous


def wrap(exact: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Exact integers modulo 2^bits, as the type holds them."""
    mask = 2 ** (8 * dtype.itemsize) - 1
    return np.asarray(np.asarray(exact, object) & mask, object).astype(np.uint64).astype(dtype)


@pytest.mark.parametrize("family", list(HANDLES))
@common
@given(
    problem=problems(),
    dtypes=st.tuples(st.sampled_from(INTEGERS), st.sampled_from(INTEGERS)),
    memory=layouts,
    seed=seeds,
)
def test_integer_products_are_exact_and_wrap(
    family: str, problem: Problem, dtypes: tuple[str, str], memory: tuple[str, str], seed: int
) -> None:
    result = np.result_type(*dtypes)
    operands = operands_of(problem, np.random.default_rng(seed), dtypes, memory)
    found = ct.contract(problem.text, *operands, handle=HANDLES[family])
    assert found.dtype == result
    if result.kind == "f":  # int64 and uint64 promote to float64
        assert_within_bound(found, problem.terms, problem.output, operands)
        return
    distinct = "".join(dict.fromkeys(problem.output))
    extents = extents_of(problem.terms, operands)
    exact = by_loops(problem.terms, distinct, operands, extents)
    if result.kind == "b":
        wrapped = exact.astype(bool)
    else:
        wrapped = wrap(exact, result)
    if distinct != problem.output:
        wrapped = spread(wrapped, distinct, problem.output)
    np.testing.assert_array_equal(found, wrapped)


@pytest.mark.parametrize("family", list(HANDLES))
@settings(common, max_examples=40, phases=(Phase.explicit, Phase.generate))
@given(
    problem=problems(),
    memory=layouts,
    dtype=st.sampled_from(("float32", "float64", "complex128", "int64", "float16")),
    scale=st.integers(3, 9),
    addend=st.booleans(),
    seed=seeds,
)
def test_larger_products_take_every_candidate(
    family: str,
    problem: Problem,
    memory: tuple[str, str],
    dtype: str,
    scale: int,
    addend: bool,
    seed: int,
) -> None:
    """Extents that reach the blocked paths, and every plan that was considered."""
    extents = {
        x: max(n, 1) * (scale if len(problem.extents) < 6 else 2)
        for x, n in problem.extents.items()
    }
    while np.prod(list(extents.values()), dtype=float) > 2e6:
        longest = max(extents, key=lambda x: extents[x])
        extents[longest] = max(1, extents[longest] // 2)
    problem = Problem(problem.terms, problem.output, extents)
    rng = np.random.default_rng(seed)
    operands = operands_of(problem, rng, (dtype, dtype), memory)
    c = made(rng, [extents[x] for x in problem.output], dtype) if addend else None
    handle = HANDLES[family]
    seen = 0
    for found in every_candidate(handle, problem.text, operands, c):
        seen += 1
        if dtype == "int64":
            wide = [x.astype(object) for x in operands]
            exact = np.einsum(problem.text, *wide) if not _repeats(problem.output) else None
            if exact is not None:
                exact = exact + (0 if c is None else c.astype(object))
                np.testing.assert_array_equal(found, wrap(exact, np.dtype(dtype)))
        else:
            assert_within_bound(found, problem.terms, problem.output, operands, 1, 1, c)
    assert seen >= 1


def _repeats(output: str) -> bool:
    return len(set(output)) < len(output)


def every_candidate(
    handle: ct.Handle, text: str, operands: list[np.ndarray], c: np.ndarray | None
) -> "list[np.ndarray]":
    """The result of every plan the planner considered, each in a fresh array."""
    from contract.api.request import Options, operation_for

    arrays = handle.arrays
    layouts = [arrays.layout(x) for x in operands]
    addend = None if c is None else arrays.layout(c)
    operation = operation_for(arrays, text, layouts, Options(), None, addend)
    results = []
    for loaded in handle.candidates(operation, ct.PlanPreference()):
        output = loaded.new_output()
        output.fill(7)  # nothing may be left from before
        loaded(operands, output, c, (1, 1, 0))
        results.append(output)
    return results
