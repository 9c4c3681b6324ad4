"""CONTRACT_CHECK: a plan that would leave its tensors does not run, nor one on other arrays."""

from dataclasses import replace

import numpy as np
import pytest

import contract as ct
from contract.host.executor import HostExecutor
from contract.plan.steps import Plan
from contract.planner.planner import make_plan
from tests.corpus.cases import case
from tests.corpus.checks import operands_of

PRODUCT = case("abc,cd->dab", 3, 5, 4, 6)
ONE = 1, 0, 0


@pytest.fixture
def executor() -> HostExecutor:
    return HostExecutor("numpy", 1, check=True)


def plan_of(output: ct.TensorDescriptor) -> Plan:
    a, b = (ct.TensorDescriptor(shape, None, "float64") for shape in ((3, 5, 4), (4, 6)))
    inputs = ct.Operand(a, "abc"), ct.Operand(b, "cd")
    return make_plan(ct.Contraction(inputs, ct.Operand(output, "dab")))


def test_every_handle_of_these_tests_checks() -> None:
    with ct.Handle() as handle:
        assert handle.settings.check


def test_a_result_in_other_memory_than_steps_write(executor: HostExecutor) -> None:
    plan = plan_of(ct.TensorDescriptor((6, 3, 5), None, "float64"))
    smaller = ct.TensorDescriptor((6, 3, 5), (1, 6, 17), "float64")
    slots = list(plan.slots)
    slots[plan.output] = replace(slots[plan.output], tensor=smaller)
    with pytest.raises(ct.ExecutionError, match="not safe to run"):
        executor.load(replace(plan, slots=tuple(slots)))


def test_arrays_that_were_not_planned(executor: HostExecutor, rng: np.random.Generator) -> None:
    plan = plan_of(ct.TensorDescriptor((6, 3, 5), None, "float64"))
    loaded = executor.load(plan)
    a, b = operands_of(replace(PRODUCT, dtypes=("float64",) * 2), rng)
    loaded((a, b), loaded.new_output(), None, ONE)
    others = [
        (np.ascontiguousarray(a), loaded.new_output()),
        (a.astype("float32"), loaded.new_output()),
        (a[:2], loaded.new_output()),
        (a, np.empty((6, 3, 4), order="F")),
    ]
    for left, out in others:
        with pytest.raises(ct.ExecutionError, match="was planned as float64"):
            loaded((left, b), out, None, ONE)


def test_c_that_is_not_given(rng: np.random.Generator) -> None:
    """A plan with C in another layout than D runs without C where beta is 0."""
    a, b = (ct.TensorDescriptor(shape, None, "float64") for shape in ((3, 4), (4, 5)))
    c, d = (ct.TensorDescriptor((3, 5), strides, "float64") for strides in ((5, 1), (1, 3)))
    operation = ct.Contraction(
        (ct.Operand(a, "mk"), ct.Operand(b, "kn")), ct.Operand(d, "mn"), ct.Operand(c, "mn")
    )
    x, y = (np.asfortranarray(rng.random(each.extents)) for each in (a, b))
    with ct.Handle() as handle:
        found = np.empty((3, 5), order="F")
        handle.contract(handle.plan(operation), 1, x, y, 0, None, found)
        np.testing.assert_allclose(found, x @ y)
        handle.contract(handle.plan(operation), 1, x, y, 1, np.ones((3, 5)), found)
        np.testing.assert_allclose(found, x @ y + 1)


def test_one_array_and_its_diagonal(handle: ct.Handle, rng: np.random.Generator) -> None:
    x, y = rng.random((6, 6)), rng.random(6)
    found = ct.contract("b,ab,aa->b", y, x, x, handle=handle)
    np.testing.assert_allclose(found, y * (np.diag(x) @ x))


def test_padding_around_nothing(handle: ct.Handle) -> None:
    x, padding = np.ones((0, 6, 2)), ((5, 6), (0, 0), (1, 2))
    options = {"operator": "relu", "dtype": "complex128", "padding": padding}
    found = ct.permute("abc->abc", x, handle=handle, **options)
    np.testing.assert_array_equal(found, np.zeros((11, 6, 5)))
