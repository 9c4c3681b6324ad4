"""Requests as texts: they come back as they were, and say what cannot be kept."""

import numpy as np
import pytest

from contract.api.request import Combination, Options, Reducing, Written
from contract.api.request_text import request_of, text_of
from contract.descriptors.compute_types import ComputeType
from contract.descriptors.operations import Algo, PlanPreference
from contract.descriptors.operators import BinaryOperator, Operator
from contract.errors import NotSupportedError

INTERLEAVED: Written = (((0, 1), (1, 2)), (0, 2))


@pytest.mark.parametrize("written", ["ij,jk->ik", "...i->...", INTERLEAVED, (((),), ())])
@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(order="C", compute_type=ComputeType.TF32, casting="unsafe", memory_limit="2GB"),
        Options(optimize=((0, 1), (0, 1)), memory_limit=100, slices=(("i", 3), (1, None))),
        Options(operators=(Operator.CONJ, Operator.IDENTITY), dtype=np.dtype("float32")),
        Options(preference=PlanPreference(algo=Algo.GETT, workspace_limit=10), optimize=False),
        Options(form=Reducing(BinaryOperator.MAX)),
        Options(form=Combination((), ((1, 2), (0, 0)), 3 - 1j)),
        Options(form=Combination((BinaryOperator.MUL, BinaryOperator.ADD))),
    ],
)
def test_a_request_comes_back(written: Written, options: Options) -> None:
    assert request_of(text_of(written, options)) == (written, options)


def test_names_are_read() -> None:
    named = Options(compute_type="TF32", operators=("conj", None))
    meant = Options(compute_type=ComputeType.TF32, operators=(Operator.CONJ, Operator.IDENTITY))
    assert request_of(text_of("i,i", named)) == ("i,i", meant)


def test_the_text_has_what_was_asked_for() -> None:
    assert text_of("ij,jk->ik", Options()) == '{"expression": "ij,jk->ik"}'
    assert text_of("ij->i", Options(order="C")) == '{"expression": "ij->i", "order": "C"}'


def test_what_only_this_process_knows() -> None:
    with pytest.raises(NotSupportedError, match="cannot hold the optimize"):
        text_of("i,i", Options(optimize=lambda *_: [(0, 1)]))
