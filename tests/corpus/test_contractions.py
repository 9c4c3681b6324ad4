"""Contractions of every form: expressions, tile edges, TCCG, random ones."""

import numpy as np
import pytest

from tests.corpus.cases import (
    AT_EDGES,
    EXPRESSIONS,
    MANY_MODES,
    MATRICES,
    Case,
    random_products,
    rotated,
    tccg,
)
from tests.corpus.checks import MEMORY, check
from tests.devices import Device

REAL = ("float32", "float64", "complex64")


def listed(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=str)


@listed([*rotated(MATRICES, ("int32",)), *rotated(MATRICES, REAL)])
def test_matrix_products(device: Device, case: Case, rng: np.random.Generator) -> None:
    check(device, case, rng)


@listed(rotated(EXPRESSIONS, ("float32",)))
def test_expressions(device: Device, case: Case, rng: np.random.Generator) -> None:
    check(device, case, rng)


@listed(rotated(MANY_MODES, ("float32",)))
def test_many_modes(device: Device, case: Case, rng: np.random.Generator) -> None:
    check(device, case, rng)


@listed(rotated(tccg(), ("float32",)))
def test_tccg(device: Device, case: Case, rng: np.random.Generator) -> None:
    check(device, case, rng)


@listed(rotated(list(random_products(2026, 40)), ("float32",)))
def test_random_products(device: Device, case: Case, rng: np.random.Generator) -> None:
    memory = rng.choice(MEMORY, 2)
    check(device, case, rng, memory)


@listed(rotated(AT_EDGES, ("int32",)))
def test_extents_at_the_edges_of_tiles(
    device: Device, case: Case, rng: np.random.Generator
) -> None:
    check(device, case, rng)
