"""The gradient of a product, against differences of the product itself."""

import numpy as np
import pytest

from contract.arrays.gradients import GIVEN, gradient
from contract.descriptors.expression import Expression, parse
from contract.descriptors.operators import Operator
from contract.errors import NotSupportedError
from tests.reference import UNARY

FUNCTIONS = {**UNARY, "conj": np.conj}
REAL = (Operator.NEG, Operator.EXP, Operator.LOG, Operator.RCP)
WAVES = (Operator.SIN, Operator.COS, Operator.SINH, Operator.COSH)
CASES = [
    ("ij,jk->ik", [(2, 3), (3, 2)]),
    ("ij,jk,kl->il", [(2, 3), (3, 2), (2, 1)]),
    ("ii->i", [(3, 3)]),
    ("i->ii", [(3,)]),
    ("ii,i->", [(2, 2), (2,)]),
    ("ij->j", [(2, 3)]),
    ("ij,jk->", [(2, 3), (3, 2)]),
    ("ij,ij->ij", [(1, 3), (2, 3)]),
    ("ij,ij->", [(1, 1), (2, 3)]),
    ("ii,ij->j", [(1, 1), (3, 2)]),
    ("iij,ij->i", [(2, 2, 3), (1, 1)]),
    ("...i,i->...", [(2, 1, 3), (3,)]),
    (",i->i", [(), (2,)]),
]


def product(expression: Expression, arrays: list[np.ndarray], functions: list[str]) -> np.ndarray:
    """D by sums over all indices, extent 1 broadcast."""
    extents: dict[int, int] = {}
    for modes, x in zip(expression.inputs, arrays, strict=True):
        for mode, n in zip(modes, x.shape, strict=True):
            extents[mode] = n if n != 1 else extents.get(mode, 1)
    result = np.zeros([extents[mode] for mode in expression.output], complex)
    factors = [FUNCTIONS[name](x) for name, x in zip(functions, arrays, strict=True)]
    for index in np.ndindex(*extents.values()):
        at = dict(zip(extents, index, strict=True))
        value = 1
        for modes, x in zip(expression.inputs, factors, strict=True):
            value = (
                value * x[tuple(at[m] if n > 1 else 0 for m, n in zip(modes, x.shape, strict=True))]
            )
        result[tuple(at[m] for m in expression.output)] += value
    return result


def differences(
    expression: Expression, arrays: list[np.ndarray], functions: list[str], at: int, g: np.ndarray
) -> np.ndarray:
    """d Re sum(conj(G) D) / dx + i d/dy for every element x + iy of operand ``at``."""

    def value(x: np.ndarray) -> float:
        changed = [*arrays[:at], x, *arrays[at + 1 :]]
        return float(np.sum(np.conj(g) * product(expression, changed, functions)).real)

    found = np.zeros(arrays[at].shape, complex)
    step = 1e-6
    for index in np.ndindex(found.shape):
        for unit in (1, 1j) if np.iscomplexobj(arrays[at]) else (1,):
            moved = np.zeros_like(arrays[at])
            moved[index] = unit * step
            slope = (value(arrays[at] + moved) - value(arrays[at] - moved)) / (2 * step)
            found[index] += unit * slope
    return found


def assert_gradients(
    text: str,
    arrays: list[np.ndarray],
    operators: list[Operator],
    conjugates: bool,
    rng: np.random.Generator,
) -> None:
    shapes = [x.shape for x in arrays]
    expression = parse(text).resolve([len(shape) for shape in shapes])
    functions = [each.value for each in operators]
    result = product(expression, arrays, functions)
    g = rng.random(result.shape) + 1j * rng.random(result.shape)
    for at, x in enumerate(arrays):
        found = gradient(expression, shapes, operators, at, conjugates)
        cotangent = g if conjugates else np.conj(g)
        factors = [cotangent if f.tensor == GIVEN else arrays[f.tensor] for f in found.factors]
        terms = (*(f.modes for f in found.factors), found.ones)
        names = [*(f.operator.value for f in found.factors), "identity"]
        labels = tuple(map(str, range(1 + max((m for t in terms for m in t), default=0))))
        computed = found.scale * product(
            Expression(terms, found.output, labels), [*factors, np.ones(found.extents)], names
        )
        wanted = differences(expression, arrays, functions, at, g)
        computed = computed if np.iscomplexobj(x) else computed.real
        assert computed.shape == x.shape
        np.testing.assert_allclose(computed if conjugates else np.conj(computed), wanted, atol=1e-7)


@pytest.mark.parametrize(("text", "shapes"), CASES)
def test_of_real_operands(
    text: str, shapes: list[tuple[int, ...]], rng: np.random.Generator
) -> None:
    arrays = [rng.random(shape) for shape in shapes]
    assert_gradients(text, arrays, [Operator.IDENTITY] * len(arrays), True, rng)


@pytest.mark.parametrize("conjugates", [True, False])
@pytest.mark.parametrize("first", [Operator.IDENTITY, Operator.CONJ])
@pytest.mark.parametrize(("text", "shapes"), [CASES[1], CASES[4], CASES[10]])
def test_of_complex_operands(
    text: str,
    shapes: list[tuple[int, ...]],
    first: Operator,
    conjugates: bool,
    rng: np.random.Generator,
) -> None:
    """In the conjugate derivative, or in the derivative itself of the conjugate cotangent."""
    arrays = [rng.random(shape) + 1j * rng.random(shape) for shape in shapes]
    operators = [first, *[Operator.CONJ, Operator.IDENTITY][: len(arrays) - 1]]
    assert_gradients(text, arrays, operators, conjugates, rng)


@pytest.mark.parametrize("operator", [*REAL, *WAVES])
def test_through_operators(operator: Operator, rng: np.random.Generator) -> None:
    arrays = [0.5 + rng.random((2, 3)), 0.5 + rng.random((3,))]
    assert_gradients("ij,j->i", arrays, [operator, Operator.SIN], True, rng)


def test_an_operator_without_a_gradient_is_named() -> None:
    expression = parse("ij->i").resolve([2])
    with pytest.raises(NotSupportedError, match="operand 0 has TANH"):
        gradient(expression, [(2, 3)], [Operator.TANH], 0, True)
