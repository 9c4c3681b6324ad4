"""What a case is to give: brute force in extended precision with an error bound, or exactly.

Floating-point results are Estimates: values in extended precision and how far a right result may
be from them, by the bound in the reference and 16 roundoffs for each unary operator. Integers are
computed modulo 2^64, or in the type that they are combined in, and have no error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tests.fuzz.cases import NETWORKS, Case, Verb, name_of, result_type
from tests.reference import SMALLEST, UNARY, spread, wide

__all__ = ["Estimate", "expected"]

BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53, "complex64": 24,
        "complex128": 53, "float128": 62, "complex256": 62}  # fmt: skip
OPERATOR = 16  # roundoffs of a unary operator


@dataclass(frozen=True)
class Estimate:
    """Numbers and their largest errors."""

    value: np.ndarray
    error: np.ndarray

    def rounded(self, dtype: np.dtype[Any]) -> "Estimate":
        """Stored in a type."""
        more = 2 * roundoff(dtype) * np.abs(self.value) + SMALLEST.get(name_of(dtype), 1e-300)
        return Estimate(self.value, self.error + more)

    def difference(self, found: np.ndarray) -> float:
        """The largest error of an array, as a multiple of what is allowed."""
        if found.size == 0:
            return 0.0
        with np.errstate(all="ignore"):
            error = np.abs(wide(found) - self.value)
            ratio = np.where(error <= self.error, 0, error / np.maximum(self.error, 1e-4000))
        beyond = np.abs(self.value) + self.error > largest(found.dtype)
        return float(np.max(np.where(beyond, 0, np.where(np.isnan(ratio), np.inf, ratio))))


def largest(dtype: np.dtype[Any]) -> Any:
    """Beyond it a result may be infinite."""
    if dtype.name == "bfloat16":
        return 3e38
    return np.finfo(dtype).max


def roundoff(dtype: np.dtype[Any]) -> float:
    return 2.0 ** -BITS[name_of(dtype)]


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype("float32") if dtype.itemsize == 2 and dtype.kind in "fV" else dtype


def is_exact(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biuO"


def expected(case: Case, operands: Sequence[np.ndarray], c: np.ndarray | None) -> Any:
    """An Estimate, or an array of exact values."""
    exact = is_exact(_computing(case))
    with np.errstate(all="ignore"):
        if case.verb in NETWORKS:
            return (_exact_network if exact else _network)(case, operands, c)
        if case.verb in (Verb.REDUCE, Verb.REDUCE_PLAN):
            return (_exact_reduction if exact else _reduction)(case, operands[0], c)
        return (_exact_elements if exact else _elements)(case, operands)


def _computing(case: Case) -> np.dtype[Any]:
    """The type that products, sums or combinations are made in."""
    if case.verb in (*NETWORKS, Verb.REDUCE, Verb.REDUCE_PLAN):
        wanted = case.common if case.dtype is None else np.dtype(case.dtype)
        if case.verb is Verb.EINSUM and case.out is not None and case.dtype is None:
            wanted = result_type((wanted, case.result))
        return accumulator(wanted)
    kinds, result = case.common, case.result.newbyteorder("=")
    if kinds.kind in "iu" and result.kind in "iu":
        return kinds if kinds.itemsize >= result.itemsize else result
    return accumulator(result_type((kinds, result)))


# --- operands -------------------------------------------------------------------------------------


def _operator(case: Case, at: int) -> str:
    names = case.operators or ()
    return (names[at] if at < len(names) else None) or "identity"


def applied(name: str, x: np.ndarray) -> np.ndarray:
    """The operator of exact numbers."""
    if name == "conj":
        return np.conj(x)
    return np.asarray(UNARY[name](x))


def _estimate(case: Case, at: int, x: np.ndarray, scalar: complex = 1) -> Estimate:
    """scalar * op(x), of the element x[...] where it lies; zero where the scalar is zero."""
    if scalar == 0:
        return Estimate(np.zeros(x.shape, np.longdouble), np.zeros(x.shape, np.longdouble))
    value = scalar * applied(_operator(case, at), wide(x))
    u, steps = roundoff(_computing(case)), OPERATOR if _operator(case, at) != "identity" else 2
    floor = 0.25 * (_operator(case, at) not in ("identity", "conj", "neg", "relu", "abs"))
    return Estimate(value, steps * u * np.maximum(np.abs(value), floor * abs(scalar)))


def _squeezed(term: str, x: np.ndarray, extents: dict[str, int]) -> tuple[str, np.ndarray]:
    """Without dimensions of extent 1 that broadcast."""
    kept = [at for at, label in enumerate(term) if x.shape[at] == extents[label]]
    index = tuple(slice(None) if at in kept else 0 for at in range(x.ndim))
    return "".join(term[at] for at in kept), np.asarray(x[index], x.dtype)


def _summed(case: Case, operands: Sequence[np.ndarray]) -> np.ndarray:
    """The product summed over the modes that the output has not, by numpy.einsum."""
    extents = case.extents
    pairs = [_squeezed(term, x, extents) for term, x in zip(case.terms, operands, strict=True)]
    present = {label for term, _ in pairs for label in term}
    distinct = "".join(dict.fromkeys(case.output))
    shown = "".join(label for label in distinct if label in present)
    if 0 in extents.values():  # numpy.einsum writes to results without elements
        return np.zeros(case.shape, np.result_type(*operands))
    text = ",".join(term for term, _ in pairs) + "->" + shown
    several = len(pairs) > 2 and not any(x.dtype.hasobject for _, x in pairs)
    found = np.asarray(np.einsum(text, *[x for _, x in pairs], optimize=several))
    return found if distinct == case.output else spread(found, distinct, case.output)


# --- contractions ---------------------------------------------------------------------------------


def _terms(case: Case) -> float:
    """How many products are summed for one element."""
    return prod(float(n) for label, n in case.extents.items() if label not in case.output)


def _network(case: Case, operands: Sequence[np.ndarray], c: np.ndarray | None) -> Estimate:
    alpha = case.scalars[0]
    dtype, shape = _computing(case), case.shape
    u = roundoff(dtype)
    value, error = np.zeros(shape, np.clongdouble), np.zeros(shape, np.longdouble)
    if alpha != 0:
        estimates = [_estimate(case, at, x) for at, x in enumerate(operands)]
        value = alpha * _summed(case, [x.value for x in estimates])
        size = abs(alpha) * _summed(case, [np.abs(x.value) + x.error / (64 * u) for x in estimates])
        used = sum(name not in (None, "identity", "conj") for name in case.operators or ())
        error = (_terms(case) + 2 * len(operands) + 2 * OPERATOR * used + 2) * u * size
    value, error = _with_addend(case, value, error, c)
    factor = 4 if dtype.kind == "c" else 1
    return Estimate(value, factor * error).rounded(_stored(case)).rounded(case.result)


def _stored(case: Case) -> np.dtype[Any]:
    return case.common


def _with_addend(case: Case, value: Any, error: Any, c: np.ndarray | None) -> tuple[Any, Any]:
    beta = 1 if case.scalars[1] is None else case.scalars[1]
    if c is None or beta == 0:
        return value, error
    added = _estimate(case, len(case.operands), c, beta)
    return value + added.value, error + 2 * added.error


def _exact_network(case: Case, operands: Sequence[np.ndarray], c: np.ndarray | None) -> np.ndarray:
    dtype = _computing(case)
    values = [_exact_operand(case, at, x) for at, x in enumerate(operands)]
    found = _scalar(case.scalars[0], dtype) * _summed(case, values)
    beta = 1 if case.scalars[1] is None else case.scalars[1]
    if c is not None:
        found = found + _scalar(beta, dtype) * _exact_operand(case, len(operands), c)
    return np.asarray(found).astype(dtype).astype(case.result)


def _exact_operand(case: Case, at: int, x: np.ndarray) -> np.ndarray:
    """Modulo 2^64; objects as Python's integers, truth values as 0 and 1."""
    x = np.maximum(x, 0) if _operator(case, at) == "relu" else x
    return x.astype(object if x.dtype.hasobject else np.int64)


def _scalar(value: Any, dtype: np.dtype[Any]) -> Any:
    return int(value) if dtype.hasobject else np.int64(int(value))


# --- reductions -----------------------------------------------------------------------------------

_FOLDS = {"add": np.sum, "mul": np.prod, "max": np.max, "min": np.min}


def _folded(case: Case, x: np.ndarray, name: str) -> np.ndarray:
    """The operand's diagonal, reduced and in the output's order."""
    term, labels = case.terms[0], list(dict.fromkeys(case.terms[0]))
    numbers = [labels.index(label) for label in term]
    taken = np.asarray(np.einsum(x, numbers, list(range(len(labels)))), x.dtype)
    axes = tuple(at for at, label in enumerate(labels) if label not in case.output)
    folded = np.asarray(_FOLDS[name](taken, axis=axes)) if axes else taken
    left = [label for label in labels if label in case.output]
    return folded.transpose([left.index(label) for label in case.output])


def _reduction(case: Case, x: np.ndarray, c: np.ndarray | None) -> Estimate:
    alpha, name = case.scalars[0], case.binary[0]
    u, shape = roundoff(_computing(case)), case.shape
    value, error = np.zeros(shape, np.clongdouble), np.zeros(shape, np.longdouble)
    if alpha != 0:
        each = _estimate(case, 0, x)
        value = alpha * _folded(case, each.value, name)
        error = abs(alpha) * _error_of_fold(case, each, name) + 2 * u * np.abs(value)
    value, error = _with_addend(case, value, error, c)
    factor = 4 if _computing(case).kind == "c" else 1
    return Estimate(value, factor * error).rounded(case.common).rounded(case.result)


def _error_of_fold(case: Case, each: Estimate, name: str) -> np.ndarray:
    u, k = roundoff(_computing(case)), _terms(case)
    match name:
        case "add":
            return _folded(case, each.error + (k + 2) * u * np.abs(each.value), name)
        case "mul":
            worst = np.nan_to_num(each.error / np.abs(each.value))
            relative = _folded(case, worst + 2 * u, "add") + 2 * u
            return np.expm1(relative) * np.abs(_folded(case, each.value, name))
    return _folded(case, each.error, "max")


def _exact_reduction(case: Case, x: np.ndarray, c: np.ndarray | None) -> np.ndarray:
    dtype, name = _computing(case), case.binary[0]
    found = _folded(case, _exact_operand(case, 0, x), name)
    if dtype == np.uint64 and name in ("max", "min"):
        found = _folded(case, x, name).astype(np.int64)
    found = _scalar(case.scalars[0], dtype) * found
    beta = 1 if case.scalars[1] is None else case.scalars[1]
    if c is not None:
        found = found + _scalar(beta, dtype) * _exact_operand(case, 1, c)
    return np.asarray(found).astype(dtype).astype(case.result)


# --- elementwise ----------------------------------------------------------------------------------


def _scalars(case: Case) -> tuple[complex, ...]:
    alpha, beta, gamma = case.scalars
    every = {1: (alpha,), 2: (alpha, gamma), 3: (alpha, 1 if beta is None else beta, gamma)}
    return every[len(case.operands)]


def _spread(case: Case, at: int, x: np.ndarray) -> np.ndarray:
    """The operand's diagonal with the output's dimensions, those that it lacks of extent 1."""
    term, labels = case.terms[at], list(dict.fromkeys(case.terms[at]))
    numbers = [labels.index(label) for label in term]
    taken = np.asarray(np.einsum(x, numbers, list(range(len(labels)))), x.dtype)
    found = taken.transpose([labels.index(label) for label in case.output if label in labels])
    index = tuple(slice(None) if label in labels else None for label in case.output)
    return found[index]


def _combined(name: str, x: Estimate, y: Estimate, u: float) -> Estimate:
    match name:
        case "add":
            value, error = x.value + y.value, x.error + y.error
        case "mul":
            value = x.value * y.value
            error = np.abs(x.value) * y.error + np.abs(y.value) * x.error + x.error * y.error
        case _:
            value = (np.maximum if name == "max" else np.minimum)(x.value, y.value)
            error = np.maximum(x.error, y.error)
    return Estimate(value, error + 4 * u * np.abs(value))


def _elements(case: Case, operands: Sequence[np.ndarray]) -> Estimate:
    u = roundoff(_computing(case))
    every = [
        _estimate(case, at, _spread(case, at, x), scalar)
        for at, (x, scalar) in enumerate(zip(operands, _scalars(case), strict=True))
    ]
    found = every[0]
    for name, each in zip(case.binary, every[1:], strict=True):
        found = _combined(name, found, each, u)
    factor = 4 if _computing(case).kind == "c" else 1
    value, error = (np.broadcast_to(x, _inner(case)) for x in (found.value, found.error))
    padded = Estimate(_padded(case, value, case.padding_value), _padded(case, factor * error, 0))
    return padded.rounded(case.result)


def _inner(case: Case) -> tuple[int, ...]:
    extents = case.extents
    return tuple(extents[label] for label in case.output)


def _padded(case: Case, x: np.ndarray, value: Any) -> np.ndarray:
    if case.padding is None:
        return x
    return np.pad(x, case.padding, constant_values=value) if case.padding else x


def _exact_elements(case: Case, operands: Sequence[np.ndarray]) -> np.ndarray:
    dtype = _computing(case)
    every = []
    for at, (x, scalar) in enumerate(zip(operands, _scalars(case), strict=True)):
        x = _spread(case, at, x)
        x = np.maximum(x, 0) if _operator(case, at) == "relu" else x
        every.append(np.asarray(np.asarray(x).astype(dtype) * np.asarray(scalar).astype(dtype)))
    found = every[0]
    ufuncs = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    for name, x in zip(case.binary, every[1:], strict=True):
        found = ufuncs[name](found, x)
    return _padded(case, np.broadcast_to(found, _inner(case)), case.padding_value).astype(
        case.result
    )
