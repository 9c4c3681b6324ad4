"""The README's recipes run, in order."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text() if README.exists() else ""
SECTION = TEXT.partition("## With other libraries")[2].partition("\n## ")[0]
pytestmark = pytest.mark.skipif(not TEXT, reason="the README is not beside an installed package")


def test_the_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "jax", "cotengra", "quimb", "pyscf"):
        pytest.importorskip(name)
    from pyscf import lib

    monkeypatch.setattr(lib, "einsum", lib.einsum)  # the recipe replaces it
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", SECTION, flags=re.S)
    runnable = [each for each in blocks if "gpu4pyscf" not in each]
    assert len(runnable) == 5
    for block in runnable:
        exec(block, names)
    assert lib.einsum.__code__.co_filename == "<string>"
    assert names["A"].grad.shape == (4, 5, 6)
    np.testing.assert_allclose(names["slope"], np.full((3, 4), 3.0))
    assert -0.3 < names["energy"] < -0.1
