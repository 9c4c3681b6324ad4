"""Handle, descriptors, plans and execution: the level that cuTENSOR's users know."""

import itertools
import json
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import contract as ct
from contract.planner.planner import make_plan

CORPUS = json.loads((Path(__file__).parents[2] / "bench" / "data" / "tccg48.json").read_text())


@pytest.fixture(params=["numba", "numpy"])
def handle(request: pytest.FixtureRequest) -> Iterator[ct.Handle]:
    with ct.Handle(kernels=request.param, threads=2) as made:
        yield made


def tensor(*extents: int, dtype: str = "float64") -> ct.TensorDescriptor:
    return ct.TensorDescriptor(extents, dtype=dtype)


def product(dtype: str = "float64", with_c: bool = True) -> ct.Contraction:
    """D[m,u,n] = sum_k A[m,k] B[k,n,u] + C[m,u,n]."""
    d = ct.Operand(tensor(30, 7, 20, dtype=dtype), "mun")
    inputs = (
        ct.Operand(tensor(30, 40, dtype=dtype), "mk"),
        ct.Operand(tensor(40, 20, 7, dtype=dtype), "knu"),
    )
    return ct.Contraction(inputs, d, d if with_c else None)


def fortran(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return np.asfortranarray(rng.random(shape))


def test_a_contraction_step_by_step(handle: ct.Handle, rng: np.random.Generator) -> None:
    operation = product()
    preference = ct.PlanPreference(algo=ct.Algo.DEFAULT)
    estimate = handle.estimate_workspace(operation, preference, ct.WorkspacePreference.DEFAULT)
    plan = handle.plan(operation, ct.PlanPreference(workspace_limit=estimate))
    assert plan.required_workspace <= estimate
    assert plan.scalar_type == "float64"
    multiplied, size = 2 * 30 * 7 * 20 * 40, 30 * 7 * 20
    assert multiplied <= plan.flops <= multiplied + size
    assert plan.moved_bytes >= 8 * (30 * 40 + 40 * 20 * 7 + 2 * size)
    a, b, c = fortran(rng, 30, 40), fortran(rng, 40, 20, 7), fortran(rng, 30, 7, 20)
    wanted = 1.5 * np.einsum("mk,knu->mun", a, b) - 2 * c
    workspace = np.empty(plan.required_workspace + 64, np.uint8)
    d = np.full_like(c, np.nan)
    handle.contract(plan, 1.5, a, b, -2, c, d, workspace)
    np.testing.assert_allclose(d, wanted, rtol=1e-12)
    handle.contract(plan, 1.5, a, b, -2, c, c)  # C is D
    np.testing.assert_allclose(c, wanted, rtol=1e-12)


def test_executions_of_a_plan_are_told_apart(handle: ct.Handle, rng: np.random.Generator) -> None:
    """Whatever came before: other scalars, arrays, layouts, results in an operand, refusals."""
    plan = handle.plan(product())
    a, b, c = fortran(rng, 30, 40), fortran(rng, 40, 20, 7), fortran(rng, 30, 7, 20)
    others = fortran(rng, 30, 40), np.asfortranarray(b[::-1, ::-1, ::-1])
    padded = fortran(rng, 31, 7, 20)[1:]
    for x, y, alpha, beta, addend in [
        (a, b, 1.0, 0.0, None),
        (a, b, 1, -2, c),
        (*others, 2.5, 0, c),
        (a, b, 1.0, 1.0, c),
        (a.reshape(-1, order="F"), b, 1.0, 0.0, None),  # raw memory
        (*others, np.float64(0.5), 0.5, c),
    ]:
        for _ in range(2):
            d = np.full_like(c, np.nan)
            handle.contract(plan, alpha, x, y, beta, addend, d)
            whole = np.reshape(x, (30, 40), order="F")
            wanted = alpha * np.einsum("mk,knu->mun", whole, y)
            wanted += beta * c if addend is not None else 0
            np.testing.assert_allclose(d, wanted, rtol=1e-12)
    for _ in range(2):
        d = c.copy(order="F")
        handle.contract(plan, 1.0, a, b, 1.0, d, d)
        np.testing.assert_allclose(d, np.einsum("mk,knu->mun", a, b) + c, rtol=1e-12)
        with pytest.raises(ct.InvalidValueError, match="strides"):
            handle.contract(plan, 1.0, a, b, 0.0, None, padded)
        with pytest.raises(ct.InvalidValueError, match="C is None"):
            handle.contract(plan, 1.0, a, b, 1.0, None, d)
        with pytest.raises(ct.InvalidValueError, match="Reduction"):
            handle.reduce(plan, 1.0, a, 0.0, None, d)
    d.flags.writeable = False
    with pytest.raises(ct.InvalidValueError, match="read-only"):
        handle.contract(plan, 1.0, a, b, 0.0, None, d)


def test_a_c_that_is_not_read(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """With beta = 0 a plan that has C runs without it, however often, and its NaN stay out."""
    monkeypatch.setenv("CONTRACT_CHECK", "1")
    with ct.Handle(kernels="numpy") as handle:
        a, c = fortran(rng, 13, 7), np.full((13, 7), np.nan, order="F")
        of_a, of_d = ct.Operand(tensor(13, 7), "ab"), ct.Operand(tensor(13, 7), "ab")
        plan = handle.plan(ct.Reduction((of_a,), of_d, of_d))
        for _ in range(3):
            d = np.empty_like(c)
            handle.reduce(plan, 1.0, a, 0.0, c, d)
            np.testing.assert_allclose(d, a, rtol=1e-15)


def test_raw_memory_is_seen_through_the_descriptor(
    handle: ct.Handle, rng: np.random.Generator
) -> None:
    plan = handle.plan(product(with_c=False))
    a, b, d = rng.random(1200), rng.random(6000), np.zeros(4200)
    handle.contract(plan, 1, a, b, 0, None, d)
    wanted = np.einsum("mk,knu->mun", a.reshape(30, 40, order="F"),
                       b[:5600].reshape(40, 20, 7, order="F"))  # fmt: skip
    np.testing.assert_allclose(d.reshape(30, 7, 20, order="F"), wanted, rtol=1e-12)


def test_raw_memory_is_no_smaller_than_the_tensor(handle: ct.Handle) -> None:
    """One-dimensional, contiguous, in native byte order, and the tensor starts where it does."""
    row = ct.Operand(ct.TensorDescriptor((2, 3), (1, 4)), "ab")
    packed = ct.Operand(tensor(2, 3), "ab")
    plan = handle.plan(ct.ElementwiseOperation((row,), packed))
    d = np.zeros((2, 3), order="F")
    handle.permute(plan, 1, np.arange(10.0), d)
    np.testing.assert_array_equal(d, [[0, 4, 8], [1, 5, 9]])
    d[...] = 7
    for refused in (np.arange(9.0), np.arange(20.0)[::2], np.arange(10.0).reshape(2, 5)):
        with pytest.raises(ct.InvalidValueError, match="Operand 0 was planned as"):
            handle.permute(plan, 1, refused, d)
    with pytest.raises(ct.UnsupportedTypeError, match=">f8"):
        handle.permute(plan, 1, np.arange(10.0).astype(">f8"), d)
    backwards = ct.Operand(ct.TensorDescriptor((2, 3), (-3, 1)), "ab")
    plan = handle.plan(ct.ElementwiseOperation((backwards,), packed))
    with pytest.raises(ct.InvalidValueError, match="Operand 0 was planned as"):
        handle.permute(plan, 1, np.arange(10.0), d)
    assert (d == 7).all()
    memory = np.arange(6.0).reshape(2, 3)
    handle.permute(plan, 1, memory[::-1], d)
    np.testing.assert_array_equal(d, memory[::-1])


def test_null_c_with_beta_zero(handle: ct.Handle, rng: np.random.Generator) -> None:
    plan = handle.plan(product())
    a, b, d = fortran(rng, 30, 40), fortran(rng, 40, 20, 7), np.empty((30, 7, 20), order="F")
    handle.contract(plan, 1, a, b, 0, None, d)
    np.testing.assert_allclose(d, np.einsum("mk,knu->mun", a, b), rtol=1e-12)
    d[...] = np.nan
    handle.contract(plan, 1, a, b, 0, None, d)
    np.testing.assert_allclose(d, np.einsum("mk,knu->mun", a, b), rtol=1e-12)
    d[...] = np.nan
    handle.contract(plan, 0, a, b, 0, d, d)
    assert (d == 0).all()
    with pytest.raises(ct.InvalidValueError, match="C is None"):
        handle.contract(plan, 1, a, b, 1, None, d)


@pytest.mark.parametrize("size", [5, 40])
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_what_lay_in_the_result_is_not_read(handle: ct.Handle, dtype: str, size: int) -> None:
    """With beta = 0 and no C, whatever the plan; the result was NaN."""
    square = ct.Operand(tensor(size, size, dtype=dtype), "ab")
    row = ct.Operand(tensor(size, dtype=dtype), "a")
    cube = ct.Operand(tensor(size, size, size, dtype=dtype), "abc")
    x, y = np.ones((size,) * 3, dtype, order="F"), np.ones((size, size), dtype, order="F")
    for output in (row, square):
        d = np.full((size,) * len(output.modes), np.nan, dtype, order="F")
        handle.reduce(handle.plan(ct.Reduction((cube,), output, output)), 1, x, 0, None, d)
        assert (d == size ** (3 - d.ndim)).all()
        for algo in (ct.Algo.DEFAULT, ct.Algo.GETT):
            operation = ct.Contraction((cube, square), output, output)
            plan = handle.plan(operation, ct.PlanPreference(algo=algo))
            d[...] = np.nan
            handle.contract(plan, 1, x, y, 0, None, d)
            assert (d == size ** (3 - d.ndim)).all()


def test_c_may_have_its_modes_in_another_order(handle: ct.Handle, rng: np.random.Generator) -> None:
    """Also where nothing but C is read."""
    a, c = fortran(rng, 4, 3), fortran(rng, 5, 4)
    operation = ct.Contraction(
        (ct.Operand(tensor(4, 3), "mk"), ct.Operand(tensor(3, 5), "kn")),
        ct.Operand(tensor(4, 5), "mn"),
        ct.Operand(tensor(5, 4), "nm"),
    )
    plan, b = handle.plan(operation), fortran(rng, 3, 5)
    for alpha in (0, 2):
        d = np.empty((4, 5), order="F")
        handle.contract(plan, alpha, a, b, 3, c, d)
        np.testing.assert_allclose(d, alpha * (a @ b) + 3 * c.T, rtol=1e-12)


def test_the_other_operations(handle: ct.Handle, rng: np.random.Generator) -> None:
    a, b, c = fortran(rng, 60, 50), fortran(rng, 50, 60), fortran(rng, 60, 50)
    wide, tall = ct.Operand(tensor(60, 50), "ab"), ct.Operand(tensor(50, 60), "ba")
    row = ct.Operand(tensor(60), "a")
    d, e, r = np.empty_like(a), np.empty_like(b), np.empty(60)

    permutation = handle.plan(ct.ElementwiseOperation((wide,), tall))
    handle.permute(permutation, 2, a, e)
    np.testing.assert_array_equal(e, 2 * a.T)

    padded = ct.Operand(tensor(53, 60), "ba")
    padding = ct.Padding((1, 0), (2, 0), 9.0)
    plan = handle.plan(ct.ElementwiseOperation((wide,), padded, padding=padding))
    out = np.empty((53, 60), order="F")
    handle.permute(plan, 1, a, out)
    np.testing.assert_array_equal(out, np.pad(a.T, ((1, 2), (0, 0)), constant_values=9))

    operators = ct.BinaryOperator.MUL, ct.BinaryOperator.MAX
    binary = handle.plan(ct.ElementwiseOperation((tall, wide), wide, operators[1:]))
    handle.elementwise_binary(binary, 1, b, 0.5, c, d)
    np.testing.assert_array_equal(d, np.maximum(b.T, 0.5 * c))

    trinary = handle.plan(ct.ElementwiseOperation((wide, tall, row), wide, operators))
    handle.elementwise_trinary(trinary, 2, a, 3, b, 1, np.ones(60), d)
    np.testing.assert_allclose(d, np.maximum(6 * a * b.T, 1), rtol=1e-15)

    reduction = handle.plan(ct.Reduction((wide,), row, row, ct.BinaryOperator.MAX))
    handle.reduce(reduction, 1, a, 2, c[:, 0].copy(), r)
    np.testing.assert_allclose(r, a.max(axis=1) + 2 * c[:, 0], rtol=1e-15)

    three = ct.Contraction(
        (wide, ct.Operand(tensor(50, 60), "bc"), ct.Operand(tensor(60, 50), "cd")),
        ct.Operand(tensor(50, 60), "da"),
        ct.Operand(tensor(60, 50), "ad"),
    )
    plan = handle.plan(three)
    handle.contract_trinary(plan, 1, a, b, c, -1, a, e)
    np.testing.assert_allclose(e, (a @ b @ c - a).T, rtol=1e-12)


def test_operators_and_conjugates(handle: ct.Handle, rng: np.random.Generator) -> None:
    dtype, conj = "complex128", ct.Operator.CONJ
    a = np.asfortranarray(rng.random((40, 30)) + 1j * rng.random((40, 30)))
    b = np.asfortranarray(rng.random((30, 20)) + 1j * rng.random((30, 20)))
    c = np.asfortranarray(rng.random((40, 20)) + 1j * rng.random((40, 20)))
    operation = ct.Contraction(
        (
            ct.Operand(tensor(40, 30, dtype=dtype), "mk", conj),
            ct.Operand(tensor(30, 20, dtype=dtype), "kn"),
        ),
        ct.Operand(tensor(40, 20, dtype=dtype), "mn"),
        ct.Operand(tensor(40, 20, dtype=dtype), "mn", conj),
    )
    d = np.empty_like(c)
    plan = handle.plan(operation)
    assert plan.scalar_type == dtype
    handle.contract(plan, 1j, a, b, 2 - 1j, c, d)
    np.testing.assert_allclose(d, 1j * (a.conj() @ b) + (2 - 1j) * c.conj(), rtol=1e-12)


# --- workspace ----------------------------------------------------------------------------------


def corpus() -> Iterator[tuple[str, dict[str, int]]]:
    """The contractions of the TCCG list with extents small enough to try every candidate."""
    for case in CORPUS["cases"]:
        labels = sorted(set(case["einsum"]) - set(",->"))
        yield case["einsum"], {x: 4 + at % 5 for at, x in enumerate(labels)}


def described(text: str, extents: dict[str, int], with_c: bool = True) -> ct.Contraction:
    terms, output = text.split("->")
    operands = [
        ct.Operand(tensor(*(extents[x] for x in term)), term)
        for term in (*terms.split(","), output)
    ]
    return ct.Contraction(tuple(operands[:-1]), operands[-1], operands[-1] if with_c else None)


@pytest.mark.parametrize(("text", "extents"), list(corpus()))
def test_every_candidate_is_right_in_any_workspace(text: str, extents: dict[str, int]) -> None:
    rng = np.random.default_rng(len(text))
    operation = described(text, extents)
    terms, output = text.split("->")
    a, b = (fortran(rng, *(extents[x] for x in term)) for term in terms.split(","))
    c = fortran(rng, *(extents[x] for x in output))
    wanted = 2 * np.einsum(text, a, b) + c
    with ct.Handle(threads=2) as handle:
        ranks = 0
        for rank in itertools.count():
            try:
                plan = handle.plan(operation, ct.PlanPreference(kernel_rank=rank))
            except ct.NotSupportedError:
                break
            ranks += 1
            workspace = np.full(plan.required_workspace + 64, 255, np.uint8)
            d = np.full_like(c, np.nan)
            handle.contract(plan, 2, a, b, 1, c, d, workspace)
            np.testing.assert_allclose(d, wanted, rtol=1e-11)
        assert ranks >= 2
        kinds = ct.WorkspacePreference
        low, usual, high = (
            handle.estimate_workspace(operation, None, kind)
            for kind in (kinds.MIN, kinds.DEFAULT, kinds.MAX)
        )
        assert low <= usual <= high
        assert low == 0
        assert handle.plan(operation, ct.PlanPreference(workspace_limit=0)).required_workspace == 0


def test_a_limit_chooses_another_plan_or_is_refused() -> None:
    with ct.Handle(threads=2) as handle:
        lone = described("abx,bc->ac", {"a": 30, "b": 40, "c": 50, "x": 6})
        assert handle.plan(lone).required_workspace > 0
        plan = handle.plan(lone, ct.PlanPreference(workspace_limit=0))
        assert plan.required_workspace == 0
        rng = np.random.default_rng(0)
        a, b = fortran(rng, 30, 40, 6), fortran(rng, 40, 50)
        d = np.zeros((30, 50), order="F")
        handle.contract(plan, 1, a, b, 0, None, d)
        np.testing.assert_allclose(d, a.sum(axis=2) @ b, rtol=1e-12)
        chain = described("ab,bc,cd->ad", dict.fromkeys("abcd", 30))
        needed = handle.estimate_workspace(chain, None, ct.WorkspacePreference.MIN)
        with pytest.raises(
            ct.InsufficientWorkspaceError, match=f"{needed} bytes .* {needed - 1} bytes"
        ):
            handle.plan(chain, ct.PlanPreference(workspace_limit=needed - 1))
        handle.plan(chain, ct.PlanPreference(workspace_limit=needed))


@pytest.mark.parametrize("text", ["abx,bc->ac", "acd,dbc->ab"])
def test_a_limit_that_is_just_enough_changes_nothing(text: str) -> None:
    """A sum before the product, a permutation before it."""
    labels = sorted(set(text) - set(",->"))
    operation = described(text, dict(zip(labels, (8, 10, 11, 12), strict=True)), with_c=False)
    with ct.Handle(threads=1) as handle:
        plan = handle.plan(operation)
        needed = plan.required_workspace
        assert needed > 0
        assert len(plan.plan.steps) == 2
        same = handle.plan(operation, ct.PlanPreference(workspace_limit=needed))
        assert same.plan.steps == plan.plan.steps
        less = handle.plan(operation, ct.PlanPreference(workspace_limit=needed - 1))
        assert less.required_workspace < needed


BLOCKED = [
    ("xay,xby->ab", {"a": 30, "b": 30, "x": 40, "y": 50}),  # sums of many blocks, in parts
    ("deca,be->abcd", {"a": 17, "b": 18, "c": 19, "d": 20, "e": 21}),  # blocks of a batch
    ("kxa,bky->abxy", {"k": 5000, "x": 5, "a": 6, "b": 7, "y": 8}),
    ("ab,ab->a", {"a": 130, "b": 140}),  # loop by loop
    ("abx,bx->ab", {"a": 130, "b": 140, "x": 3}),
    ("bda,dc,ea->ebc", {"a": 9, "b": 10, "c": 11, "d": 12, "e": 13}),  # an intermediate
]


@pytest.mark.parametrize("with_c", [False, True])
@pytest.mark.parametrize(("text", "extents"), BLOCKED)
def test_every_candidate_for_products_in_blocks(
    text: str, extents: dict[str, int], with_c: bool, handle: ct.Handle, rng: np.random.Generator
) -> None:
    """Scalars act once, beside the workspace nothing is touched, and where beta is 0 D is not read.

    With C, it has an operator that needs memory beside it, and the operands have one as well.
    """
    operation = described(text, extents, with_c)
    if operation.addend is not None:
        addend = replace(operation.addend, operator=ct.Operator.SWISH)
        inputs = tuple(replace(x, operator=ct.Operator.SQRT) for x in operation.inputs)
        operation = replace(operation, inputs=inputs, addend=addend)
    terms, output = text.split("->")
    operands = [fortran(rng, *(extents[x] for x in term)) for term in terms.split(",")]
    c = fortran(rng, *(extents[x] for x in output))
    seen = [np.sqrt(x) for x in operands] if with_c else operands
    product, more = 3 * np.einsum(text, *seen, optimize=True), 2 * c / (1 + np.exp(-c))
    run = handle.contract if len(operands) == 2 else handle.contract_trinary
    for plan in handle.candidates(operation, ct.PlanPreference()):
        end = plan.required_workspace + 64
        memory = np.full(end + (1 << 17), 0xA5, np.uint8)
        memory = memory[-memory.ctypes.data % 64 :]
        workspace = memory[: end - 64]
        d = np.full_like(c, np.nan)
        run(plan, 3, *operands, 0, None, d, workspace)
        np.testing.assert_allclose(d, product, rtol=1e-11)
        if with_c:
            run(plan, 3, *operands, 2, c, d, workspace)
            np.testing.assert_allclose(d, product + more, rtol=1e-11)
        assert (memory[end - 64 :] == 0xA5).all()


def test_a_panel_that_threads_share_is_packed_once(rng: np.random.Generator) -> None:
    """Blocks of unequal extents read the same panel of B: packing it twice would be a race."""
    text, extents = "deca,be->abcd", {"a": 17, "b": 18, "c": 19, "d": 20, "e": 21}
    operation = described(text, extents, False)
    root = ct.Operator.SQRT
    operation = replace(
        operation, inputs=tuple(replace(x, operator=root) for x in operation.inputs)
    )
    a, b = (fortran(rng, *(extents[x] for x in term)) for term in ("deca", "be"))
    wanted = np.einsum(text, np.sqrt(a), np.sqrt(b), optimize=True)
    with ct.Handle(threads=2) as handle:
        for plan in handle.candidates(operation, ct.PlanPreference()):
            for _ in range(60):
                d = np.full_like(wanted, np.nan, order="F")
                handle.contract(plan, 1, a, b, 0, None, d)
                np.testing.assert_allclose(d, wanted, rtol=1e-12)


def test_the_last_candidate_is_the_last() -> None:
    operation = described("dca,bd->abc", {"a": 40, "b": 24, "c": 30, "d": 40})
    with ct.Handle(threads=1) as handle:
        (decision,) = make_plan(operation, machine=handle.executor.machine).considered
        row = decision.candidates
        handle.plan(operation, ct.PlanPreference(kernel_rank=len(row) - 1))
        with pytest.raises(ct.NotSupportedError, match=f"kernel_rank {len(row)} does not exist"):
            handle.plan(operation, ct.PlanPreference(kernel_rank=len(row)))


def test_a_workspace_is_used_from_the_first_line_on() -> None:
    with ct.Handle(threads=1) as handle:
        plan = handle.plan(described("ab,bc,cd->ad", dict.fromkeys("abcd", 30)))
        needed, a = plan.required_workspace, np.eye(30, order="F")
        memory = np.zeros(needed + 192, np.uint8)
        memory = memory[-memory.ctypes.data % 64 :]
        for start, size, fits in ((0, needed, True), (1, needed + 63, True),
                                  (0, needed - 1, False), (1, needed + 62, False)):  # fmt: skip
            memory[...] = 0xA5
            d = np.full_like(a, 7)
            arguments = plan, 1, a, a, a, 0, None, d, memory[start : start + size]
            if fits:
                handle.contract_trinary(*arguments)
                np.testing.assert_array_equal(d, a)
                used = np.flatnonzero(memory != 0xA5)
                assert used[0] >= 64 * start
                assert used[-1] < start + size
                continue
            with pytest.raises(ct.InsufficientWorkspaceError, match=f"needs {needed} bytes"):
                handle.contract_trinary(*arguments)
            assert (d == 7).all()


def test_a_limit_between_two_plans_takes_the_smaller() -> None:
    """What temporaries take is rounded to lines, and there may be more than one."""
    with ct.Handle(threads=1) as handle:
        one = described("abx,bc->ac", {"a": 9, "b": 10, "c": 11, "x": 12})
        two = described("abx,bcy->ac", {"a": 8, "b": 8, "c": 8, "x": 12, "y": 5})
        for operation, limits in ((one, (719, 720, 767)), (two, (511, 512, 1023))):
            for limit in limits:
                plan = handle.plan(operation, ct.PlanPreference(workspace_limit=limit))
                assert plan.required_workspace <= limit


def test_too_small_a_workspace_is_refused_with_both_numbers() -> None:
    with ct.Handle(threads=1) as handle:
        chain = described("ab,bc,cd->ad", dict.fromkeys("abcd", 30))
        plan = handle.plan(chain)
        a = np.ones((30, 30), order="F")
        d = np.full_like(a, 7)
        with pytest.raises(ct.InsufficientWorkspaceError, match=f"{plan.required_workspace} bytes"):
            handle.contract_trinary(plan, 1, a, a, a, 0, None, d, np.empty(100, np.uint8))
        assert (d == 7).all()


def test_execution_allocates_no_more_than_was_estimated() -> None:
    """With the caller's workspace nothing is allocated but the handle's tiles."""
    for text, extents in list(corpus())[::6]:
        extents = {label: 5 * n for label, n in extents.items()} if len(extents) < 6 else extents
        operation = described(text, extents)
        terms, output = text.split("->")
        a, b = (np.ones([extents[x] for x in term], order="F") for term in terms.split(","))
        d = np.ones([extents[x] for x in output], order="F")
        with ct.Handle(threads=2) as handle:
            plan = handle.plan(operation)
            workspace = np.empty(plan.required_workspace + 64, np.uint8)
            handle.contract(plan, 1, a, b, 1, d, d, workspace)  # compiles, makes threads
            handle.executor.pool.clear()
            tracemalloc.start()
            handle.contract(plan, 1, a, b, 1, d, d, workspace)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak <= plan.tile_bytes + plan.own_bytes + 60_000


# --- what is refused ------------------------------------------------------------------------------


def test_arrays_that_do_not_fit_are_refused(handle: ct.Handle) -> None:
    plan = handle.plan(product(with_c=False))
    a, b, d = np.ones((30, 40), order="F"), np.ones((40, 20, 7), order="F"), np.empty(4200)
    cases = [
        ((a.astype("f4"), b, None, d), ct.UnsupportedTypeError, "Operand 0 was planned as float64"),
        ((np.ones((30, 40)), b, None, d), ct.InvalidValueError, "Operand 0"),
        ((a, b[:, :3], None, d), ct.InvalidValueError, "Operand 1"),
        ((a, b, None, d[:4000]), ct.InvalidValueError, "The result"),
        ((a, list(b), None, d), ct.UnsupportedTypeError, "list"),
        ((a, b, None, np.broadcast_to(d, (4200,))), ct.InvalidValueError, "read-only"),
    ]
    for (x, y, c, out), error, message in cases:
        with pytest.raises(error, match=message):
            handle.contract(plan, 1, x, y, 0, c, out)
    with pytest.raises(ct.InvalidValueError, match="reads no C"):
        handle.contract(plan, 1, a, b, 1, d, d)
    with pytest.raises(ct.InvalidValueError, match="alpha must be real"):
        handle.contract(plan, 1j, a, b, 0, None, d)
    with pytest.raises(ct.InvalidValueError, match="Contraction with 2 operands"):
        handle.reduce(plan, 1, a, 0, None, d)


def test_descriptors_check_types_and_modes() -> None:
    single, double = tensor(3, 4, dtype="float32"), tensor(4, 5)
    out = ct.Operand(tensor(3, 5), "mn")
    with pytest.raises(ct.UnsupportedTypeError, match="float32, float64 into float32"):
        ct.Contraction(
            (ct.Operand(single, "mk"), ct.Operand(double, "kn")),
            ct.Operand(tensor(3, 5, dtype="float32"), "mn"),
        )
    ct.Contraction((ct.Operand(single, "mk"), ct.Operand(double, "kn")), out)
    with pytest.raises(ct.InvalidValueError, match="'z' of the result is in no operand"):
        ct.Contraction((ct.Operand(double, "kn"),), ct.Operand(tensor(3, 5), "zn"))
    with pytest.raises(ct.InvalidValueError, match="One mode for each dimension"):
        ct.Operand(double, "k")
    with pytest.raises(ct.UnsupportedTypeError, match="EXP is not defined for operand 0"):
        ct.Contraction(
            (ct.Operand(tensor(3, dtype="complex64"), "m", ct.Operator.EXP),),
            ct.Operand(tensor(3, dtype="complex64"), "m"),
        )
    with pytest.raises(ct.UnsupportedTypeError, match="C has the type of D"):
        ct.Contraction((ct.Operand(double, "kn"),), ct.Operand(double, "kn"),
                       ct.Operand(tensor(4, 5, dtype="float32"), "kn"))  # fmt: skip
    with pytest.raises(ct.UnsupportedTypeError, match="supported: 64F, 32F, 8XINT8"):
        ct.Contraction((ct.Operand(double, "kn"),), ct.Operand(double, "kn"),
                       compute=ct.ComputeType.TF32)  # fmt: skip
    with pytest.raises(ct.InvalidValueError, match="between two operands"):
        ct.ElementwiseOperation((ct.Operand(double, "kn"),) * 2, ct.Operand(double, "kn"))
    with pytest.raises(ct.InvalidValueError, match="The result has no operator"):
        ct.Contraction((ct.Operand(double, "kn"),), ct.Operand(double, "kn", ct.Operator.EXP))


def test_descriptors_check_padding() -> None:
    for left, right in (((-1, 0), (0, 0)), ((0, 0), (0, -1)), ((0, 0), (0,))):
        with pytest.raises(ct.InvalidValueError, match="0 or more elements on both sides"):
            ct.Padding(left, right)
    x = ct.Operand(tensor(4, 5), "ab")
    with pytest.raises(ct.InvalidValueError, match="2 modes, 1 pairs"):
        ct.ElementwiseOperation((x,), x, padding=ct.Padding((0,), (0,)))
    with pytest.raises(ct.InvalidValueError, match="2 modes, 3 pairs"):
        ct.ElementwiseOperation((x,), x, padding=ct.Padding((0, 0, 0), (0, 0, 0)))
    with pytest.raises(ct.InvalidValueError, match="Only a permutation"):
        ct.ElementwiseOperation((x, x), x, (ct.BinaryOperator.ADD,), ct.Padding((0, 0), (0, 0)))


def test_descriptors_count_operands() -> None:
    x = ct.Operand(tensor(4, 5), "ab")
    for inputs in ((), (x, x)):
        with pytest.raises(ct.InvalidValueError, match=f"one operand: it got {len(inputs)}"):
            ct.Reduction(inputs, x)
    for inputs in ((), (x,) * 4):
        with pytest.raises(ct.InvalidValueError, match=f"it got {len(inputs)}"):
            ct.ElementwiseOperation(inputs, x, (ct.BinaryOperator.ADD,) * 3)
    with pytest.raises(ct.InvalidValueError, match="at least one operand"):
        ct.Contraction((), x)


def test_c_has_the_modes_and_the_extents_of_the_result(handle: ct.Handle) -> None:
    a, d = ct.Operand(tensor(4, 5, 3), "abx"), ct.Operand(tensor(4, 5), "ab")
    for c, message in (
        (ct.Operand(tensor(4, 6), "ab"), "addend C has extent 6 for mode 'b'"),
        (ct.Operand(tensor(4), "a"), "has the modes of the output: a, b"),
        (ct.Operand(tensor(4, 5, 3), "abx"), "has the modes of the output: a, b"),
    ):
        for kind in (ct.Contraction, ct.Reduction):
            with pytest.raises(ct.InvalidValueError, match=message):
                handle.plan(kind((a,), d, c))


def test_a_real_product_computed_in_complex_numbers_has_the_default_alone() -> None:
    inputs = ct.Operand(tensor(4), "a"), ct.Operand(tensor(4), "a")
    d = ct.Operand(tensor(4, dtype="complex128"), "a")
    kinds = ct.ComputeType
    assert ct.Contraction(inputs, d, dtype="complex128").compute is kinds.F64
    with pytest.raises(ct.UnsupportedTypeError, match="supported: 64F"):
        ct.Contraction(inputs, d, dtype="complex128", compute=kinds.F32)


def test_errors_have_cutensors_statuses() -> None:
    statuses = {
        ct.InvalidValueError: "INVALID_VALUE",
        ct.UnsupportedTypeError: "NOT_SUPPORTED",
        ct.NotSupportedError: "NOT_SUPPORTED",
        ct.InsufficientWorkspaceError: "INSUFFICIENT_WORKSPACE",
        ct.ArchMismatchError: "ARCH_MISMATCH",
        ct.CacheFileError: "IO_ERROR",
        ct.ExecutionError: "EXECUTION_FAILED",
    }
    for error, status in statuses.items():
        assert error("x").status == status
        assert issubclass(error, ct.ContractError)


# --- threads ------------------------------------------------------------------------------------


def test_one_plan_from_many_threads(handle: ct.Handle) -> None:
    plan = handle.plan(product())
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(20):
                a, b, c = fortran(rng, 30, 40), fortran(rng, 40, 20, 7), fortran(rng, 30, 7, 20)
                d = np.empty_like(c)
                handle.contract(plan, 1, a, b, 1, c, d)
                np.testing.assert_allclose(d, np.einsum("mk,knu->mun", a, b) + c, rtol=1e-12)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
