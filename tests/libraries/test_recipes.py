"""The documents' blocks that need other libraries: they run, and do what is said beside them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.documents import README, Block, blocks, run

pytestmark = pytest.mark.skipif(
    not README.exists(), reason="the documents are not beside an installed package"
)
ELSEWHERE = {"cupy", "gpu4pyscf"}  # tests/emulator and tests/corpus have a CuPy
CHECKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "torch": lambda names: names["u"].grad.shape == (4, 5, 6),
    "jax": lambda names: (np.asarray(names["slope"]) == 3).all(),
    "cotengra": lambda names: "engine" in names,
    "pyscf": lambda names: -0.3 < names["energy"] < -0.1,
    "distributed": lambda names: names["client"].status == "closed",
}


def _mine() -> list[Block]:
    return [each for each in blocks() if each.needs and not ELSEWHERE & set(each.needs)]


def test_every_block_is_looked_at() -> None:
    assert {each.needs[0] for each in _mine()} == set(CHECKS)


@pytest.mark.parametrize("needed", CHECKS)
def test_the_recipes(needed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (each for each in _mine() if each.needs[0] == needed)
    for name in block.needs:
        pytest.importorskip(name)
    if needed == "pyscf":
        from pyscf import lib

        monkeypatch.setattr(lib, "einsum", lib.einsum)  # the recipe replaces it
    names: dict[str, Any] = {}
    for before in blocks():  # what was defined so far
        if before == block:
            break
        if not before.needs:
            run(before, names)
    run(block, names)
    assert CHECKS[needed](names)
