"""A pytest plugin for other libraries' tests: NumPy's einsum timed, or ours in its place.

pytest -p tests.libraries.counted_einsum --einsum ours --einsum-report FILE --pyargs tensorly
"""

import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import contract


class Counted:
    """An einsum that counts its calls and their seconds; those inside of others count once."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0
        self.seconds = 0.0
        self._depth = 0

    def __call__(self, *given: Any, **options: Any) -> Any:
        begin = perf_counter()
        self._depth += 1
        try:
            return self.function(*given, **options)
        finally:
            self._depth -= 1
            if not self._depth:
                self.calls += 1
                self.seconds += perf_counter() - begin


class Report:
    """What became of every test, written when all have run."""

    def __init__(self, einsum: Counted, path: Path) -> None:
        self._einsum = einsum
        self._path = path
        self._outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        worst = self._outcomes.get(report.nodeid, "passed")
        if worst == "passed":
            self._outcomes[report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        found = {"calls": self._einsum.calls, "seconds": self._einsum.seconds}
        self._path.write_text(json.dumps({**found, "outcomes": self._outcomes}))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--einsum", choices=("ours", "numpy"), default="ours")
    parser.addoption("--einsum-report", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    own = config.getoption("--einsum") == "ours"
    einsum = Counted(contract.einsum if own else np.einsum)
    np.einsum = einsum  # type: ignore[assignment]
    config.pluginmanager.register(Report(einsum, config.getoption("--einsum-report")))
