"""Plans with changed numbers on the host: refused, or they compute the same in their arrays."""

import json
from random import Random

import numpy as np
import pytest

from contract.descriptors.layout import offset_bounds, span
from contract.descriptors.operations import TensorDescriptor
from contract.errors import CacheFileError, InvalidValueError
from contract.execution.verification import verify
from contract.host.executor import HostExecutor
from contract.host.kernels.protocol import strided_view
from contract.plan.steps import Plan
from contract.plan.workspace import ALIGNMENT
from contract.storage.codec import decoded, encoded
from tests.plan_cases import MACHINES, another, candidates, changed, numbers, operations

GUARD = 4096  # elements before and behind every array
CANARY = 77  # in all of them: a number of every type


class Guarded:
    """An array for a tensor in the middle of memory that is not to be touched."""

    def __init__(self, tensor):
        low, _ = offset_bounds(tensor.extents, tensor.steps)
        self.place = GUARD - low, tensor.extents, tensor.steps
        self.memory = np.full(span(tensor.extents, tensor.steps) + 2 * GUARD, CANARY, tensor.dtype)
        self.array = strided_view(self.memory, *self.place)

    def is_intact(self):
        inside = np.zeros(self.memory.shape, bool)
        strided_view(inside, *self.place)[...] = True
        return (self.memory[~inside] == CANARY).all()


def filled(tensor, rng):
    found = Guarded(tensor)
    found.array[...] = rng.integers(1, 5, tensor.extents)
    return found


def result(executor, plan):
    """D for numbers that depend on the operation alone, and whether nothing else was written."""
    rng = np.random.default_rng(3)
    loaded = executor.load(plan)
    given = [filled(slot.tensor, rng) for slot in plan.slots[: plan.inputs]]
    output = Guarded(plan.slots[plan.output].tensor)
    addend = None if plan.addend is None else filled(plan.slots[plan.addend].tensor, rng)
    before = [each.memory.copy() for each in given]
    bytes_ = Guarded(TensorDescriptor((loaded.required_workspace + ALIGNMENT,), None, "uint8"))
    workspace = bytes_.array[-bytes_.array.ctypes.data % ALIGNMENT :][: loaded.required_workspace]
    c = None if addend is None else addend.array
    loaded([each.array for each in given], output.array, c, (2, 3, 1), workspace)
    untouched = all(np.array_equal(x.memory, old) for x, old in zip(given, before, strict=True))
    others = [output, bytes_] if addend is None else [output, bytes_, addend]
    return output.array, untouched and all(each.is_intact() for each in others)


@pytest.fixture(scope="module")
def executor():
    made = HostExecutor("numpy", 2)
    yield made
    made.close()


def test_a_plan_with_one_number_changed_is_refused_or_computes_the_same(executor):
    rng = Random("one number, computed")
    accepted = 0
    for plan in (plan for each in operations() for plan in candidates(each, MACHINES[0])):
        wanted, intact = result(executor, plan)
        assert intact
        document = json.loads(json.dumps(encoded(plan, Plan)))
        of_steps = [at for at in numbers(document) if at[0][0] in ("steps", "offsets", "slots")]
        for at, number in rng.sample(of_steps, min(len(of_steps), 12)):
            try:
                found = decoded(changed(document, at, another(number, rng)), Plan)
                verify(found)
            except (CacheFileError, InvalidValueError):
                continue
            computed, intact = result(executor, found)
            assert intact, at
            np.testing.assert_allclose(computed, wanted, rtol=1e-3, err_msg=str(at))
            accepted += 1
    assert accepted > 10
