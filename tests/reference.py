"""Independent references: loops over every index, exact or in higher precision, and the bound.

Nothing here calls the library, and only ``products`` calls numpy.einsum.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53, "complex64": 24,
        "complex128": 53}  # fmt: skip
UNIT_ROUNDOFF = {dtype: 2.0**-bits for dtype, bits in BITS.items()}
# What an input may be rounded to, and in what sums are kept at least.
INPUT_BITS = {"TF32": 11, "16F": 11, "16BF": 8, "3XTF32": 21, "4X16F": 22, "9X16BF": 24, "32F": 24}
SUM_BITS = {"64F": 53, "8XINT8": 53}
# Below, numbers are a few multiples of the smallest one; a GPU's 32-bit units flush them to zero.
SMALLEST = {
    "float16": 2.0**-24,
    "bfloat16": 2.0**-126,
    "float32": 2.0**-126,
    "complex64": 2.0**-126,
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


def wide(x: np.ndarray) -> np.ndarray:
    """The same numbers in extended precision."""
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


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
    exact = [np.abs(wide(x)) if absolute else wide(x) for x in operands]
    distinct = "".join(dict.fromkeys(output))
    found = np.asarray(np.einsum(f"{','.join(terms)}->{distinct}", *exact))
    return found if distinct == output else spread(found, distinct, output)


def spread(values: np.ndarray, labels: str, output: str) -> np.ndarray:
    """``values`` on the diagonal of repeated output labels, zeros elsewhere."""
    extent = dict(zip(labels, values.shape, strict=True))
    result = np.zeros([extent[x] for x in output], values.dtype)
    for index in np.ndindex(values.shape):
        at = dict(zip(labels, index, strict=True))
        result[tuple(at[x] for x in output)] = values[index]
    return result


def roundoffs(dtype: str, compute: str | None = None) -> tuple[float, float]:
    """u_in and u_sum of a compute type; 16-bit data under 32F is summed in 24 bits."""
    own = BITS[dtype]
    if compute is None:
        compute = "64F" if own == 53 else "32F"
    u_in = 2.0 ** -INPUT_BITS[compute] if INPUT_BITS.get(compute, own) < own else 0.0
    return u_in, 2.0 ** -SUM_BITS.get(compute, 24)


def assert_bounded(
    found: np.ndarray,
    wanted: np.ndarray,
    magnitude: np.ndarray,
    terms: float,
    u: tuple[float, float],
    added: np.ndarray | float = 0.0,
) -> None:
    """|D - ref| <= (2 u_in + (k + 2) u_sum) magnitude + 2 u_sum added + 2 u_out |ref|.

    ``magnitude`` is the sum of absolute values of the k summed ``terms``, ``added`` is |beta C|,
    ``u`` are u_in and u_sum; complex numbers add a factor 4.
    """
    assert found.shape == wanted.shape
    factor = 4 if found.dtype.kind == "c" else 1
    bound = (2 * u[0] + (terms + 2) * u[1]) * magnitude + 2 * u[1] * added
    bound = factor * (bound + 2 * UNIT_ROUNDOFF[found.dtype.name] * np.abs(wanted))
    error = np.abs(wide(found) - wanted)
    limit = bound + SMALLEST.get(found.dtype.name, 0.0)
    assert np.all(error <= limit), f"largest error / bound {np.max(error / limit)}"


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
    assert found.shape == reference.shape
    smallest = np.finfo(np.float32 if name == "bfloat16" else found.dtype).smallest_subnormal
    error = np.abs(wide(found) - reference)
    assert np.all(error <= factor * bound + smallest), (
        f"largest error / bound: {np.nanmax(error / (factor * bound + smallest))}"
    )
