"""The engine inside of opt_einsum, cotengra and quimb."""

from collections.abc import Callable
from typing import Any

import numpy as np
import opt_einsum
import pytest

import contract as ct

TEXT = "abc,cbd,dae->e"
SHAPES = (6, 7, 8), (8, 7, 5), (5, 6, 4)


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *given: Any, **options: Any) -> Any:
        self.calls += 1
        return self.function(*given, **options)


@pytest.fixture
def operands(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.standard_normal(shape) for shape in SHAPES]


@pytest.fixture
def engine() -> tuple[Counted, Counted]:
    """einsum and tensordot."""
    return Counted(ct.einsum), Counted(ct.tensordot)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_opt_einsum_on_tensors(library: str, operands: list[np.ndarray]) -> None:
    module = pytest.importorskip("torch" if library == "torch" else "jax.numpy")
    tensors = [module.asarray(x) for x in operands]
    found = opt_einsum.contract(TEXT, *tensors, backend="contract")
    assert type(found) is type(tensors[0])
    wanted = np.einsum(TEXT, *(np.asarray(x) for x in tensors), optimize=True)
    scale = 1e-12 if str(found.dtype).endswith("64") else 1e-3
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=scale, atol=scale)


def test_cotengra(operands: list[np.ndarray], engine: tuple[Counted, Counted]) -> None:
    cotengra = pytest.importorskip("cotengra")
    wanted = np.einsum(TEXT, *operands, optimize=True)
    found = cotengra.einsum(TEXT, *operands, implementation=engine)
    assert sum(each.calls for each in engine) == 2
    np.testing.assert_allclose(found, wanted)
    np.testing.assert_allclose(cotengra.einsum(TEXT, *operands, backend="contract"), wanted)


def test_quimb(engine: tuple[Counted, Counted]) -> None:
    quimb = pytest.importorskip("quimb.tensor")
    state = quimb.MPS_rand_state(12, 8, seed=1)
    norm = (state.H & state).contract(all, implementation=engine)
    assert sum(each.calls for each in engine) >= 23
    assert norm == pytest.approx(state.H @ state, rel=1e-12)
    with quimb.contract_backend("contract"):
        assert (state.H & state).contract(all) == pytest.approx(norm, rel=1e-12)
