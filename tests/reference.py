"""Independent references: loops over every index, exact or in higher precision, and the bound.

Nothing here calls the library, and only ``products`` calls numpy.einsum.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

UNIT_ROUNDOFF = {
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float32": 2.0**-24,
    "float64": 2.0**-53,
    "complex64": 2.0**-24,
    "complex128": 2.0**-53,
}
ACCUMULATOR = {"float16": "float32", "bfloat16": "float32"}


def _decay(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.abs(x))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, _decay(x), 1) / (1 + _decay(x))


def _soft_plus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(_decay(x))


def _tending_to_zero(x: np.ndarray, factor: np.ndarray) -> np.ndarray:
    return np.where(np.isneginf(x), 0, x * factor)


# Unary operators of real numbers, as they are to be in exact arithmetic; apply to wide types.
UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda x: x,
    "sqrt": np.sqrt,
    "relu": lambda x: np.maximum(x, 0),
    "rcp": lambda x: 1 / x,
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
    "abs": np.abs,
    "neg": np.negative,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "floor": np.floor,
    "mish": lambda x: _tending_to_zero(x, np.tanh(_soft_plus(x))),
    "swish": lambda x: _tending_to_zero(x, _sigmoid(x)),
    "soft_plus": _soft_plus,
    "soft_sign": lambda x: np.where(np.isinf(x), np.sign(x), x / (1 + np.abs(x))),
}


def extents_of(terms: Sequence[str], operands: Sequence[np.ndarray]) -> dict[str, int]:
    """The extent of each label; extent 1 broadcasts."""
    extents: dict[str, int] = {}
    for term, operand in zip(terms, operands, strict=True):
        for label, extent in zip(term, operand.shape, strict=True):
            extents[label] = max(extents.get(label, 1), extent) if extent else 0
    return extents


def by_loops(
    terms: Sequence[str], output: str, operands: Sequence[np.ndarray], extents: Mapping[str, int]
) -> np.ndarray:
    """Sum over every combination of all labels, in Python numbers: exact for integers."""
    labels = list(extents)
    result = np.zeros([extents[label] for label in output], object)
    for index in itertools.product(*(range(extents[label]) for label in labels)):
        at = dict(zip(labels, index, strict=True))
        value = 1
        for term, operand in zip(terms, operands, strict=True):
            where = tuple(0 if n == 1 else at[x] for x, n in zip(term, operand.shape, strict=True))
            value = value * operand[where].item()
        result[tuple(at[label] for label in output)] += value
    return result


def products(
    terms: Sequence[str], output: str, operands: Sequence[np.ndarray], absolute: bool = False
) -> np.ndarray:
    """The same by numpy.einsum in extended precision (of absolute values if asked)."""
    wide = [x.astype(np.clongdouble if np.iscomplexobj(x) else np.longdouble) for x in operands]
    if absolute:
        wide = [np.abs(x) for x in wide]
    distinct = "".join(dict.fromkeys(output))
    found = np.asarray(np.einsum(f"{','.join(terms)}->{distinct}", *wide))
    return found if distinct == output else spread(found, distinct, output)


def spread(values: np.ndarray, labels: str, output: str) -> np.ndarray:
    """``values`` on the diagonal of repeated output labels, zeros elsewhere."""
    extent = dict(zip(labels, values.shape, strict=True))
    result = np.zeros([extent[x] for x in output], values.dtype)
    for index in np.ndindex(values.shape):
        at = dict(zip(labels, index, strict=True))
        result[tuple(at[x] for x in output)] = values[index]
    return result


def assert_within_bound(
    found: np.ndarray,
    terms: Sequence[str],
    output: str,
    operands: Sequence[np.ndarray],
    alpha: complex = 1,
    beta: complex = 0,
    c: np.ndarray | None = None,
) -> None:
    """|D - ref| <= |alpha| (k + 2N) u sum|A||B|... + 2 u |beta C| + 2 u_out |ref|, componentwise.

    k is the number of summed terms, N the number of operands, u the accumulator's unit
    roundoff; complex numbers add a factor 4.
    """
    name = found.dtype.name
    u = UNIT_ROUNDOFF[ACCUMULATOR.get(name, name)]
    extents = extents_of(terms, operands)
    summed = np.prod([n for label, n in extents.items() if label not in output], dtype=float)
    reference = alpha * products(terms, output, operands)
    bound = abs(alpha) * (summed + 2 * len(operands)) * u * products(terms, output, operands, True)
    if c is not None:
        reference = reference + beta * c.astype(np.clongdouble)
        bound = bound + 2 * u * abs(beta) * np.abs(c.astype(np.clongdouble))
    bound = bound + 2 * UNIT_ROUNDOFF[name] * np.abs(reference)
    factor = 4 if np.iscomplexobj(found) else 1
    wide = found.astype(np.clongdouble)
    assert found.shape == reference.shape
    smallest = np.finfo(np.float32 if name == "bfloat16" else found.dtype).smallest_subnormal
    error = np.abs(wide - reference)
    assert np.all(error <= factor * bound + smallest), (
        f"largest error / bound: {np.nanmax(error / (factor * bound + smallest))}"
    )
