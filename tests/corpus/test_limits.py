"""Without room for temporaries: a mode of one operand alone is summed by the product itself."""

import numpy as np
import pytest

import contract as ct
from tests.corpus.cases import Case, case
from tests.corpus.checks import assert_product, operands_of, stored, values
from tests.devices import Device

NO_TEMPORARIES = ct.PlanPreference(workspace_limit=0)
LONE = [
    case("xab,b->ba", 5, 9, 13),
    case("abx,b->ab", 5, 4, 6),
    case("xab,Xb->ab", 4, 6, 9),  # alone, for it broadcasts
    case("axb,bc->ca", 6, 5, 7, 8),
]


def contracted(
    device: Device, each: Case, operands: list[np.ndarray], preference: ct.PlanPreference
) -> np.ndarray:
    arrays = [device.array(x) for x in operands]
    found = ct.contract(
        each.lower.text, *arrays, order="K", preference=preference, handle=device.handle
    )
    return device.numpy(found)


@pytest.mark.parametrize("each", LONE, ids=str)
def test_a_result_in_the_cheapest_layout(
    device: Device, each: Case, rng: np.random.Generator
) -> None:
    each = Case(each.text, each.extents, ("float32",) * 2)
    operands = operands_of(each, rng, "CC")
    assert_product(contracted(device, each, operands, NO_TEMPORARIES), each, operands)


@pytest.mark.parametrize("each", [case("c,d->d", 5, 3), case("i,i->", 9)], ids=str)
def test_a_sum_along_which_nothing_moves(
    device: Device, each: Case, rng: np.random.Generator
) -> None:
    """A stride of 0 in every operand that has the mode: its extent is a factor."""
    each = Case(each.text, each.extents, ("float32",) * 2)
    moving = stored(values(rng, each.shapes[1], "float32"), "F")
    still = stored(values(rng, each.shapes[0], "float32"), "repeated")
    for other in (moving, still) if each.shapes[0] == each.shapes[1] else (moving,):
        operands = [still, other]
        assert_product(contracted(device, each, operands, NO_TEMPORARIES), each, operands)


def test_a_network(device: Device, rng: np.random.Generator) -> None:
    """Room for one result between, which has not the mode that is summed on the way."""
    each = Case("c,cba,b,bc->cb", {"c": 3, "b": 2, "a": 8}, ("float32",) * 4)
    operands = operands_of(each, rng, "CCCC")
    preference = ct.PlanPreference(memory_limit=500)
    assert_product(contracted(device, each, operands, preference), each, operands)
