"""Operands of the corpus, what is to come out, and the comparison."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  (registers the name bfloat16)
import numpy as np

import contract as ct
from tests.corpus.cases import FLOATS, Case
from tests.devices import Device
from tests.reference import assert_bounded, products, roundoffs, spread, wide

MEMORY = ("F", "C", "sliced", "reversed", "offset", "transposed", "repeated")


def values(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Random numbers of random sign between 1/2 and 1, or the whole range of an integer type."""
    kind = np.dtype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return rng.integers(limits.min, limits.max, shape, kind, endpoint=True)
    x = rng.uniform(0.5, 1, shape) * rng.choice([-1, 1], shape)
    if kind.kind == "c":
        x = x + 1j * rng.uniform(-1, 1, shape)
    return np.asarray(x).astype(kind)


def stored(x: np.ndarray, memory: str) -> np.ndarray:
    """The same values in another layout; what lies between them is NaN, or all ones."""
    match memory:
        case "sliced":
            view = _poisoned([2 * n + 1 for n in x.shape], x.dtype)
            view = view[(*(slice(1, 2 * n + 1, 2) for n in x.shape), ...)]
        case "reversed":
            view = _poisoned(x.shape, x.dtype)[(*(slice(None, None, -1) for _ in x.shape), ...)]
        case "offset":  # one element from where an allocation begins, and rows with a gap
            view = _poisoned([x.size + 1], x.dtype)[1:].reshape(x.shape, order="F")
        case "transposed" if x.ndim:
            view = np.moveaxis(_poisoned(x.shape[1:] + x.shape[:1], x.dtype), -1, 0)
        case "repeated" if x.ndim and x.shape[0]:
            return np.broadcast_to(x[:1], x.shape)
        case "C":
            return np.array(x, order="C")
        case _:
            return np.array(x, order="F")
    view[...] = x
    return view


def _poisoned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    size = int(np.prod(shape)) * dtype.itemsize
    return np.full(size, 0xFF, np.uint8).view(dtype).reshape(shape)


def operands_of(
    case: Case, rng: np.random.Generator, memory: Sequence[str] = ()
) -> list[np.ndarray]:
    """One array for each term, of the case's types, in the layouts named."""
    layouts = (*memory, *("F",) * len(case.terms))
    return [
        stored(values(rng, shape, dtype), layout)
        for shape, dtype, layout in zip(case.shapes, case.dtypes, layouts, strict=False)
    ]


def result_type(dtypes: Sequence[str]) -> np.dtype:
    """NumPy's."""
    return np.result_type(*dtypes)


@dataclass(frozen=True)
class Scaling:
    """alpha, and beta with the C that it scales."""

    alpha: complex = 1
    beta: complex = 0
    c: np.ndarray | None = None


PLAIN = Scaling()


def assert_product(
    found: np.ndarray,
    case: Case,
    operands: Sequence[np.ndarray],
    scaling: Scaling = PLAIN,
    compute: str | None = None,
) -> None:
    """The product of ``operands`` within the bound of its types; integers are exact."""
    if found.dtype.name not in FLOATS:
        wanted = _exact(case, operands, found.dtype, scaling)
        np.testing.assert_array_equal(found, wanted)
        return
    terms, output = case.lower.terms, case.lower.output
    wanted = scaling.alpha * products(terms, output, operands)
    size = abs(scaling.alpha) * products(terms, output, operands, True)
    added: Any = 0.0
    if scaling.c is not None and scaling.beta != 0:
        wanted = wanted + scaling.beta * wide(scaling.c)
        added = abs(scaling.beta) * np.abs(wide(scaling.c))
    u_in, u_sum = roundoffs(found.dtype.name, compute)
    more = max(len(operands) - 2, 0)  # intermediate results are rounded too
    assert_bounded(found, wanted, size, case.summed + 4 * more, ((1 + more) * u_in, u_sum), added)


def _exact(
    case: Case, operands: Sequence[np.ndarray], dtype: np.dtype, scaling: Scaling
) -> np.ndarray:
    """Integers modulo 2^64, then modulo the type's range; bool: or of ands."""
    lower = case.lower
    distinct = "".join(dict.fromkeys(lower.output))
    text = f"{','.join(lower.terms)}->{distinct}"
    total = np.asarray(np.einsum(text, *(x.astype(np.uint64) for x in operands)))
    total = spread(total, distinct, lower.output) if distinct != lower.output else total
    if dtype.kind == "b":
        return total != 0
    total = total * np.uint64(int(scaling.alpha) % 2**64)
    if scaling.c is not None:
        total = total + scaling.c.astype(np.uint64) * np.uint64(int(scaling.beta) % 2**64)
    return total.astype(dtype)


def check(
    device: Device,
    case: Case,
    rng: np.random.Generator,
    memory: Sequence[str] = (),
    compute: str | None = None,
    **options: Any,
) -> None:
    """contract(case) is right, in type and layout too."""
    operands = operands_of(case, rng, memory)
    arrays = [device.array(x) for x in operands]
    found = ct.contract(
        case.text.lower(), *arrays, compute_type=compute, handle=device.handle, **options
    )
    assert found.dtype == result_type(case.dtypes)
    assert found.flags.f_contiguous
    assert_product(device.numpy(found), case, operands, compute=compute)
