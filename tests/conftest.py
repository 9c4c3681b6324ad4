"""Fixtures every test shares: a seeded generator, and a handle for each family of kernels."""

import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from contract import Handle


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name only."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(params=["numba", "numpy"])
def handle(request: pytest.FixtureRequest) -> Iterator[Handle]:
    """A handle for each family of host kernels."""
    with Handle(kernels=request.param) as made:
        yield made
