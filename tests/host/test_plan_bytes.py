"""What the plan cache says that its lines hold, beside what Python has allocated for them."""

import gc
import tracemalloc

import numpy as np
import pytest

import contract as ct

CALLS = 24
EXPRESSIONS = {
    "ij,jk->ik": 30,
    "abc,kb->ac": 9,
    "abc->cba": 12,
    "abc->b": 20,
    "abcd,dcef->abef": 7,
    "abef,efij->abij": 14,
    "ab,bc,cd->ad": 40,
    "abc,bcd,de,ea->": 9,
}


def operands(text: str, first: int, number: int) -> list[np.ndarray]:
    """Arrays of extents that no other number has."""
    terms = text.split("->")[0].split(",")
    extents = {mode: first + at for at, mode in enumerate(sorted(set("".join(terms)) - {","}))}
    extents[terms[0][0]] += 7 * number
    return [np.ones([extents[mode] for mode in term]) for term in terms]


@pytest.mark.parametrize("kernels", ["numpy", "auto"])
@pytest.mark.parametrize("text", EXPRESSIONS)
def test_the_bytes_of_lines_are_about_what_they_take(text: str, kernels: str) -> None:
    with ct.Handle(kernels=kernels, threads=1) as handle:
        first = EXPRESSIONS[text]
        calls = [operands(text, first, number) for number in range(CALLS)]
        for each in calls:  # kernels are compiled and loaded
            ct.contract(text, *each, handle=handle)
        handle.plans.clear()
        gc.collect()
        tracemalloc.start()
        for each in calls:
            ct.contract(text, *each, handle=handle)
        handle.executor.pool.clear()  # type: ignore[attr-defined]
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        counted = handle.plans.statistics
        assert counted.lines == CALLS
        assert 0.5 < counted.bytes / taken < 2, (counted.bytes // CALLS, taken // CALLS)
