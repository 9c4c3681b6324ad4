"""How work grows with extents, in the words of an explanation."""

import pytest

import contract as ct
from contract.explain.scaling import scaling_of, step_modes
from contract.explain.table import explain
from contract.planner.planner import make_plan
from tests.plan_cases import operand

AMPLITUDES = {"a": 24, "b": 24, "e": 24, "f": 24, "i": 8, "j": 8}


def plan(text, extents, **options):
    left, right = text.split("->")
    inputs = tuple(operand(term, extents=extents) for term in left.split(","))
    return make_plan(ct.Contraction(inputs, operand(right, extents=extents), **options))


def test_modes_of_equal_extents_share_a_symbol():
    scaling = scaling_of(plan("abef,efij->abij", AMPLITUDES))
    assert str(scaling) == "a = b = e = f = 24, i = j = 8"
    assert scaling.of(range(6)) == "O(a^4 i^2)"
    assert scaling.of([0]) == "O(a)"


def test_modes_of_extent_one_do_not_count():
    scaling = scaling_of(plan("ao,ob->ab", {"a": 3, "b": 3}))
    assert str(scaling) == "a = b = 3"
    assert scaling.of(range(3)) == "O(a^2)"
    assert scaling.of([1]) == "O(1)"


def test_every_product_has_its_own_scaling():
    """The order of products makes O(a^4) of O(a^4 i): both are shown."""
    found = plan("ai,ib,bi->a", {"a": 9, "b": 9, "i": 5})
    scaling = scaling_of(found)
    assert {scaling.of(step_modes(step)) for step in found.steps} == {"O(a i)"}
    text = explain(found)
    assert "one loop nest  O(a^2 i)" in text


@pytest.mark.parametrize("measured", [None, 2e-3])
def test_a_measured_time_stands_below_the_predicted_one(measured):
    found = plan("abef,efij->abij", AMPLITUDES)
    rows = [line.split() for line in explain(found, measured).splitlines()[2:6]]
    assert rows[1][1:5] == ["O(a^4", "i^2)", "42.5", "MFLOP"]
    assert rows[1][-1] == "predicted"
    if measured is not None:
        assert rows[2] == "all 42.5 MFLOP 2 ms 21.2 GFLOP/s measured".split()


def test_no_intermediate_is_said_so():
    assert "largest intermediate: none; workspace: none;" in str(plan("ab,bc->ac", {"c": 9}))
