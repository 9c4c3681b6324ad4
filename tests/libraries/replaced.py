"""Other libraries' own tests with NumPy's einsum replaced by ours: nothing may break.

    pip install '.[replaced]' && python -m tests.libraries.replaced [library ...]

Each library's tests run twice, with NumPy's einsum and with ours, and those that pass with the
first alone are named. The seconds are those inside of einsum.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

__all__ = ["LIBRARIES", "main"]

ROOT = Path(__file__).parents[2]
RAN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)  # else tests are missing
# The modules whose tests come to einsum, directly or through what they test.
LIBRARIES = {
    "tensorly": ("tensorly",),
    "einops": ("einops.tests.test_einsum", "einops.tests.test_examples"),
    "sparse": ("sparse.numba_backend.tests.test_einsum", "sparse.numba_backend.tests.test_dot"),
    "xarray": ("xarray.tests.test_computation", "xarray.tests.test_variable"),
    "scipy": (
        "scipy.integrate.tests.test_bvp",
        "scipy.linalg.tests.test_decomp",
        "scipy.linalg.tests.test_matfuncs",
        "scipy.spatial.tests.test_spherical_voronoi",
        "scipy.spatial.transform.tests.test_rotation_spline",
        "scipy.optimize.tests.test_lbfgsb_hessinv",
    ),
    "sklearn": (
        "sklearn.decomposition.tests.test_fastica",
        "sklearn.gaussian_process.tests",
        "sklearn.linear_model.tests.test_linear_loss",
        "sklearn.utils.tests.test_extmath",
    ),
    "qutip": (
        "qutip.tests.core.test_brtools",
        "qutip.tests.core.test_ptrace",
        "qutip.tests.core.test_tensor",
    ),
    "statsmodels": (
        "statsmodels.stats.tests.test_diagnostic",
        "statsmodels.stats.tests.test_corrpsd",
        "statsmodels.regression.tests.test_dimred",
        "statsmodels.regression.tests.test_regression",
        "statsmodels.duration.tests.test_phreg",
    ),
    "dask": ("dask.array.tests.test_routines", "dask.array.tests.test_gufunc"),
}


@dataclass(frozen=True, slots=True)
class Run:
    """What the tests of one library did with one einsum."""

    calls: int
    seconds: float
    outcomes: dict[str, str]

    @property
    def passed(self) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome == "passed"}


def main(names: list[str]) -> int:
    """Run the libraries that are named, or all; 1 where a test passes with NumPy's alone."""
    broken: list[str] = []
    print(f"{'library':<12} {'passed':>7} {'calls':>7} {'numpy':>9} {'ours':>9}  ratio")
    for name in names or LIBRARIES:
        theirs, ours = (_run(LIBRARIES[name], einsum) for einsum in ("numpy", "ours"))
        broken += sorted(theirs.passed - ours.passed)
        ratio = ours.seconds / theirs.seconds if theirs.seconds else 1.0
        print(
            f"{name:<12} {len(ours.passed):>7} {ours.calls:>7} {theirs.seconds:>7.3f} s "
            f"{ours.seconds:>7.3f} s  {ratio:.2f}",
            flush=True,
        )
    print("\n".join(("passed with NumPy's einsum alone:", *broken)) if broken else "none broken")
    return int(bool(broken))


def _run(modules: tuple[str, ...], einsum: str) -> Run:
    """The tests in a process of their own, which knows nothing of this project's settings.

    So it runs in another folder, for pytest reads the settings of the folder that it runs in.
    """
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", "-q", "--rootdir", folder, "-c", "/dev/null"]
        command += ["-p", "tests.libraries.counted_einsum", "-p", "no:cacheprovider"]
        command += ["--einsum", einsum, "--einsum-report", str(report), "--pyargs", *modules]
        path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
        environment = {**os.environ, "EINOPS_TEST_BACKENDS": "numpy", "PYTHONPATH": path}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
        if done.returncode not in RAN or not report.exists():
            raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}")
        return Run(**json.loads(report.read_text()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
