"""The README's examples run, in order, and do what is said beside them."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contract as ct

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text() if README.exists() else ""
pytestmark = pytest.mark.skipif(not TEXT, reason="the README is not beside an installed package")


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the examples define; a refusal is expected where a comment names the error."""
    found: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.S):
        if re.search(
            r"^import (cupy|torch|jax|opt_einsum|cotengra)|^from (gpu4)?pyscf", block, flags=re.M
        ):
            continue  # tests/emulator or tests/libraries runs it
        refused = re.search(r"^# (\w+Error): (.*?)$", block, flags=re.M)
        if refused is None:
            exec(block, found)
            continue
        with pytest.raises(getattr(ct, refused[1]), match=re.escape(refused[2])):
            exec(block, found)
    return found


def test_the_results_are_what_numpy_gives(names: dict[str, Any]) -> None:
    A, X, Y = names["A"], names["X"], names["Y"]
    np.testing.assert_allclose(names["R"], A.max(axis=(0, 2)))
    padded = np.pad(X.T, ((1, 1), (0, 2)), constant_values=-1)
    np.testing.assert_allclose(names["P"], padded)
    np.testing.assert_allclose(names["E"], A[0] * A[0] + A[0][:, :1])
    np.testing.assert_allclose(
        ct.elementwise_binary("ij,ji->ij", X, Y, op="mul", gamma=0.5), X * 0.5 * Y.T
    )


def test_the_recorded_example(names: dict[str, Any]) -> None:
    A, B, call = names["A"], names["B"], names["call"]
    assert (B[0] == 0).all()
    np.testing.assert_allclose(names["D"], np.einsum("abc,kb->ac", A, B))
    assert call.output is names["D"]


def test_the_descriptor_level_example(names: dict[str, Any]) -> None:
    A1 = names["A1"].astype("f8")
    B1 = names["B1"].reshape(96, 64, 96, order="F").astype("f8")
    wanted = np.einsum("khm,khn->mn", A1, B1)
    np.testing.assert_allclose(names["D1"], wanted, rtol=1e-4)


def test_the_layout_example(names: dict[str, Any]) -> None:
    """What the comments say, read from the README itself."""
    claims = re.findall(r"^(layout\.\w+\(.*?\)|TensorDescriptor\.named\(.*?\)\.strides)  # (.*)$",
                        TEXT, flags=re.M)  # fmt: skip
    assert len(claims) >= 6
    for expression, claim in claims:
        found = eval(expression, dict(names))
        if "True" in claim:
            assert found is True
            continue
        wanted = eval(claim.split(":")[0])
        assert found in (wanted, wanted[-1]) or found[1] == wanted
