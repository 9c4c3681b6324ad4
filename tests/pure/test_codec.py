"""Plans as JSON: what comes back is equal, and nothing else is taken."""

import json
from typing import Any

import pytest

import contract as ct
from contract.descriptors.operations import OperationDescriptor, Padding, PlanPreference
from contract.errors import CacheFileError, InvalidValueError
from contract.plan.steps import Candidate, Plan
from contract.storage.codec import decoded, encoded, is_storable
from tests.plan_cases import contraction, plans


def through_json(value: Any, kind: Any) -> Any:
    return decoded(json.loads(json.dumps(encoded(value, kind))), kind)


def test_every_plan_comes_back_equal() -> None:
    for plan in plans():
        found = through_json(plan, Plan)
        assert found == plan
        assert hash(found) == hash(plan)
        assert str(found) == str(plan)


@pytest.mark.parametrize(
    "preference",
    [
        PlanPreference(),
        PlanPreference(ct.Algo.TTGT, 3, 1 << 70, ((0, 1), (0, 1)), ct.JitMode.DEFAULT),
        PlanPreference(path=False, autotune=ct.AutotuneMode.INCREMENTAL, incremental_count=7),
        PlanPreference(path="greedy", cache_mode=ct.CacheMode.NONE),
    ],
)
def test_preferences_come_back_equal(preference: PlanPreference) -> None:
    assert through_json(preference, PlanPreference) == preference


def test_a_path_that_is_a_function_cannot_be_stored() -> None:
    preference = PlanPreference(path=lambda *_: [(0, 1)])
    assert not is_storable(preference, PlanPreference)
    assert is_storable(PlanPreference(), PlanPreference)
    with pytest.raises(InvalidValueError, match="lambda"):
        encoded(preference, PlanPreference)


@pytest.mark.parametrize("value", [0, -0.0, 0.1, float("nan"), float("-inf"), 1 - 0j, True, 10**40])
def test_the_value_of_a_padding_keeps_its_type_and_sign(value: complex) -> None:
    found = through_json(Padding((1,), (2,), value), Padding)
    assert found == Padding((1,), (2,), value)
    assert type(found.value) is type(value)
    assert repr(found.value) == repr(value)


def test_what_a_class_computes_is_not_written_but_computed_again() -> None:
    operation = contraction("ab,bc->ac", "float16")
    document = encoded(operation, OperationDescriptor)
    assert "rule" not in document["Contraction"]
    assert decoded(document, OperationDescriptor).rule == operation.rule
    document["Contraction"]["rule"] = None
    with pytest.raises(CacheFileError, match=r"At \.Contraction: a Contraction has the fields"):
        decoded(document, OperationDescriptor)


GOOD = {"algo": "GETT", "seconds": 1.5, "reason": "none", "chosen": True, "copying": 0.5}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seconds": True}, r"\.seconds: a finite number .*: it is True"),
        ({"seconds": 1}, r"\.seconds: a finite number .*: it is 1"),
        ({"seconds": float("inf")}, r"\.seconds: a finite number .*: it is inf"),
        ({"seconds": "1.5"}, r"\.seconds: .*: it is '1.5'"),
        ({"chosen": 1}, r"\.chosen: true or false is meant: it is 1"),
        ({"algo": "gett"}, r"\.algo: the name of a Algo is meant: it is 'gett'"),
        ({"algo": ["GETT"]}, r"\.algo: the name of a Algo"),
        ({"reason": None}, r"\.reason: a text is meant: it is None"),
        ({"more": 1}, "has the fields algo, seconds, reason, chosen, copying: it is .*'more'"),
    ],
)
def test_other_values_are_refused_with_their_place(changes: dict[str, Any], reason: str) -> None:
    assert decoded(GOOD, Candidate) == Candidate(ct.Algo.GETT, 1.5, "none", True, 0.5)
    with pytest.raises(CacheFileError, match=reason):
        decoded(GOOD | changes, Candidate)


@pytest.mark.parametrize("value", [None, 3, [], {}, "x", {"algo": "GETT"}])
def test_a_missing_field_or_another_value_is_refused(value: Any) -> None:
    with pytest.raises(CacheFileError, match="At the top: a Candidate has the fields"):
        decoded(value, Candidate)


def _tensor(**changes: Any) -> dict[str, Any]:
    return {"extents": [2, 3], "strides": [1, 2], "dtype": "float64", "alignment": 8} | changes


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (_tensor(extents=[2, True]), r"\.extents\[1\]: an integer .*: it is True"),
        (_tensor(extents=[2, 3.0]), r"\.extents\[1\]: an integer .*: it is 3.0"),
        (_tensor(extents=[2, 10**300]), r"\.extents\[1\]: an integer of at most 300 digits"),
        (_tensor(extents=[2, -3]), "this is no TensorDescriptor .*Extents must not be negative"),
        (_tensor(extents={"0": 2}), r"\.extents: an array is meant"),
        (_tensor(strides=[1]), "this is no TensorDescriptor .*One stride for each extent"),
        (_tensor(strides=5), r"\.strides: one of .* is meant: it is 5"),
        (_tensor(dtype="float65"), "this is no TensorDescriptor .*float65"),
        (_tensor(alignment=3), "power of two"),
    ],
)
def test_descriptors_keep_their_rules(document: dict[str, Any], reason: str) -> None:
    assert decoded(_tensor(), ct.TensorDescriptor) == ct.TensorDescriptor((2, 3))
    with pytest.raises(CacheFileError, match=reason):
        decoded(document, ct.TensorDescriptor)


@pytest.mark.parametrize(
    "value",
    [
        *({"float": "1"}, {"float": 1.0}, {"int": "01"}, {"int": "1_0"}, {"bool": "1"}),
        *({"str": "a"}, {"int": "1", "float": "1.0"}, {"complex": "2"}, {"int": "9" * 5000}, 1, []),
    ],
)
def test_a_number_with_its_type_has_one_form(value: Any) -> None:
    with pytest.raises(CacheFileError, match="number"):
        decoded({"left": [1], "right": [1], "value": value}, Padding)


@pytest.mark.parametrize(
    "value", [{}, {"Gemm": 1, "Gett": 2}, {"Loop": {}}, None, "Gemm", ["Gemm"]]
)
def test_one_of_several_classes_is_named(value: Any) -> None:
    with pytest.raises(CacheFileError, match="one of Contraction, Reduction, ElementwiseOperation"):
        decoded(value, OperationDescriptor)
