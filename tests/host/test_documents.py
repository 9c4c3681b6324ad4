"""The documents' examples run, in order, and do what is said beside them."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import contract as ct
from tests.documents import README, ROOT, blocks, run

pytestmark = pytest.mark.skipif(
    not README.exists(), reason="the documents are not beside an installed package"
)


def test_in_one_process_with_nothing_else_installed() -> None:
    """Blocks that name no package run with what ``pip install '.[host]'`` installs."""
    command = [sys.executable, "-W", "error", "-m", "tests.documents"]
    done = subprocess.run(command, cwd=ROOT, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= 11


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the examples define."""
    found: dict[str, Any] = {}
    for block in blocks():
        if not block.needs:
            run(block, found)
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
    np.testing.assert_allclose(call.output, np.einsum("abc,kb->ac", A, B))


def test_the_descriptor_level_example(names: dict[str, Any]) -> None:
    A1 = names["A1"].astype("f8")
    B1 = names["B1"].reshape(96, 64, 96, order="F").astype("f8")
    wanted = np.einsum("khm,khn->mn", A1, B1)
    np.testing.assert_allclose(names["D1"], wanted, rtol=1e-4)


def test_the_logging_example(names: dict[str, Any]) -> None:
    tag, message = names["lines"][0]
    assert tag == "Trace"
    assert message.startswith("Reduce T1[")
