"""tensordot and transpose as NumPy has them, and opt_einsum on top of them."""

from typing import Any

import numpy as np
import opt_einsum
import pytest

import contract as ct


@pytest.mark.parametrize(
    "axes", [0, 1, 2, ([1, 2], [1, 0]), ((-1,), (0,)), (2, 0), ((2, 1), (1, -3)), ([], [])]
)
def test_tensordot_is_numpy_s(axes: Any, rng: np.random.Generator) -> None:
    a, b = rng.random((4, 3, 3)), rng.random((3, 3, 5))
    np.testing.assert_allclose(ct.tensordot(a, b, axes), np.tensordot(a, b, axes))


def test_tensordot_takes_sequences() -> None:
    assert ct.tensordot([1, 2], [3, 4], 1) == 11


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        (([0], [0]), "axis 0 of a has 4, axis 0 of b has 3"),
        (([1, 2], [0]), "2 axes of a, 1 of b"),
        (([1, 1], [0, 1]), "Axes are different"),
        (([3], [0]), "from -3 to 2"),
    ],
)
def test_tensordot_refuses(axes: Any, said: str) -> None:
    a, b = np.ones((4, 3, 3)), np.ones((3, 3, 5))
    with pytest.raises(ct.InvalidValueError, match=said):
        ct.tensordot(a, b, axes)


def test_transpose_is_a_view(rng: np.random.Generator) -> None:
    a = rng.random((2, 3, 4))
    for axes in (None, (1, 0, 2), (-1, 0, 1)):
        found = ct.transpose(a, axes)
        assert np.shares_memory(found, a)
        np.testing.assert_array_equal(found, np.transpose(a, axes))


def test_opt_einsum_calls_this_engine(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def tensordot(*given: Any, **options: Any) -> Any:
        calls.append(options)
        return ct.tensordot(*given, **options)

    monkeypatch.setitem(
        opt_einsum.backends.dispatch._cached_funcs, ("tensordot", "contract"), tensordot
    )
    operands = [rng.random(shape) for shape in ((6, 7, 8), (8, 7, 5), (5, 6, 4))]
    for text in ("abc,cbd,dae->e", "abc,cbd,dae->a", "abc,cbd,dae->"):
        found = opt_einsum.contract(text, *operands, backend="contract")
        np.testing.assert_allclose(found, np.einsum(text, *operands, optimize=True))
    assert calls
