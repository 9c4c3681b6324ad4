"""Our functions in the place of NumPy's: nothing calls itself, and NumPy's own tests pass."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import contract

ROOT = Path(contract.__file__).parents[1]
REPLACED = """
import sys
import numpy as np
import contract as ct

def product(a, b, out=None, **options):
    return ct.contract("ij,jk->ik", a, b, out=out, order="C")

np.einsum, np.einsum_path = ct.einsum, ct.einsum_path
np.tensordot, np.transpose = ct.tensordot, ct.transpose
np.matmul = np.dot = np.inner = product
sys.setrecursionlimit(400)

def filled(*shape, dtype="float64"):
    return np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(dtype)
"""

# One call for each verb, each kind of step and each family of kernels.
CALLS = """
with ct.Handle(kernels=FAMILY) as handle:
    for dtype in ("float16", "float32", "float64", "complex128", "int64", "bool", "object"):
        for n in (1, 2, 5, 40):
            a, b = filled(n, n, dtype=dtype), filled(n, n, dtype=dtype)
            t = filled(n, n, n, dtype=dtype) if n < 40 else a[None]
            every = {"handle": handle}
            if dtype != "object":
                for text in ("ij,jk->ik", "ij,jk->i", "ij,ij->ij", "ij,kl->", "ij,ij->"):
                    ct.contract(text, a, b, **every)
                    ct.contract(text, a, b, alpha=1, beta=0, order="C", **every)
                ct.contract("ij,jk,kl->il", a, b, a, **every)
                ct.contract("aij,jk->aik", t, b, **every)
                ct.contract("aij,ajk->ik", t, t, **every)
                ct.contract_expression("ij,jk->ik", a, b, **every)()
                ct.contract("ij,jk->ik", a, b, out=np.zeros_like(a), **every)
                ct.contract("ij,jk->ik", a, b, alpha=1, beta=1, c=a, **every)
                ct.permute("ij->ji", a, **every)
                ct.reduce("ij->j", a, **every)
                ct.elementwise_binary("ij,ji->ij", a, b, op="mul", **every)
                ct.elementwise_trinary("ij,ji,j->ij", a, b, a[0], op_ab="mul", **every)
            for optimize in (False, True):
                np.einsum("ij,jk", a, b, optimize=optimize)
                np.einsum("ij,jk,kl", a, b, a, optimize=optimize)
                np.einsum("ij->j", a, optimize=optimize)
                np.einsum("ij->ji", a, optimize=optimize)
            np.einsum_path("ij,jk,kl", a, b, a)
            np.tensordot(a, b, 1)
            np.transpose(a)
    x = filled(3, 3)
    assert (np.einsum("ij,jk", x, x) == [[30, 36, 42], [66, 81, 96], [102, 126, 150]]).all()
"""


PLUGIN = """
import numpy as np
import contract

np.einsum, np.einsum_path = contract.einsum, contract.einsum_path

def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.originalname not in {different}]
"""
NUMPY_TESTS = "numpy._core.tests.test_einsum"
DIFFERENT = {  # tests of NumPy's that are not ours to pass, each with the reason
    "test_einsum_sorting_behavior": "reads the text beside a path, which is our table of steps",
    "test_subscript_range": "wants labels beyond 51 refused: there may be any number here",
    "test_memory_contraints": "limits the elements of intermediates: paths are opt_einsum's here",
    "test_long_paths": "wants NumPy's paths",
    "test_edge_paths": "wants NumPy's paths",
    "test_path_type_input": "wants NumPy's greedy path",
}


def in_child(program: str) -> None:
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("family", ["numba", "numpy"])
def test_nothing_calls_itself(family: str) -> None:
    in_child(f"{REPLACED}\nFAMILY = {family!r}\n{CALLS}")


def test_the_tests_of_numpy(tmp_path: Path) -> None:
    """NumPy's own tests of einsum, from the NumPy that is installed, on ours."""
    (tmp_path / "ours_for_numpys.py").write_text(PLUGIN.format(different=set(DIFFERENT)))
    command = [sys.executable, "-m", "pytest", "-p", "ours_for_numpys", "-p", "no:cacheprovider"]
    command += ["-c", os.devnull, "-q", "--pyargs", NUMPY_TESTS]
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        timeout=600,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 60, done.stdout
