"""What every test shares: a seeded generator, a handle for each family of kernels, --device."""

import os
import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from contract import Handle

os.environ["CONTRACT_CALIBRATION"] = "0"  # whoever develops may have fitted the model
os.environ["CONTRACT_CHECK"] = "1"
os.environ["CONTRACT_COMPILE"] = "wait"  # compiled kernels are what is tested
os.environ["CUPY_CACHE_IN_MEMORY"] = "1"  # kernels of the emulator are none for a GPU


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the corpus runs, and how much is tried."""
    parser.addoption(
        "--device",
        choices=("host", "emulated", "gpu", "all"),
        help="where tests/corpus runs: host, emulated, gpu or all (default: host and emulated)",
    )
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="tiles of kernels in every direction and width, not in one each (an hour)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked exhaustive unless it is asked for."""
    if not config.getoption("--exhaustive"):
        items[:] = [item for item in items if item.get_closest_marker("exhaustive") is None]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name only."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(params=["numba", "numpy"])
def handle(request: pytest.FixtureRequest) -> Iterator[Handle]:
    """A handle for each family of host kernels."""
    with Handle(kernels=request.param) as made:
        yield made
