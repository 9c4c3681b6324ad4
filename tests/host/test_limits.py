"""Products under limits from none to plenty: right, or refused, by both families of kernels."""

import numpy as np
import pytest

import contract as ct
from tests.corpus.cases import Case
from tests.corpus.checks import assert_product, operands_of

LONE = ("xab,b->ba", "abx,b->ab", "xab,ab->ab", "axb,bc->ca", "xab,Xb->ab", "xab,aby->ba")
NETWORKS = ("c,cba,b,bc->cb", ",bca,ac,ac->ca", "xab,b,ab->ba", "xab,by,zb->ab")


@pytest.mark.parametrize("text", [*LONE, *NETWORKS])
@pytest.mark.parametrize("memory", "CF")
def test_every_limit(handle: ct.Handle, text: str, memory: str, rng: np.random.Generator) -> None:
    """A mode that is in one operand alone has room for a sum of its own, or has not."""
    labels = dict.fromkeys(x for x in text.lower() if x.isalpha())
    extents = dict(zip(labels, (7, 6, 5, 8, 3), strict=False))
    each = Case(text, extents, ("float64",) * len(text.split(",")))
    operands = operands_of(each, rng, memory * len(each.terms))
    done = 0
    for limit in range(0, 3000, 100):
        for order in "FK":
            try:
                found = ct.contract(
                    each.lower.text, *operands, order=order, memory_limit=limit, handle=handle
                )
            except ct.InsufficientWorkspaceError:
                continue
            assert_product(found, each, operands)
            done += 1
    assert done > 20
