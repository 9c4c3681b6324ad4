"""Products by tiles of our own, against sums in higher precision, for every way of packing."""

from dataclasses import replace
from itertools import product as combinations
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import contract as ct
from contract.heuristics import COMPILED
from contract.plan import Gett, Kind
from contract.tile_options import tile_option

numba = pytest.importorskip("numba")

TYPES = ("float32", "float64", "complex64", "complex128")
# A machine where nothing but tiles is quick, with boxes so small that some are many.
TILING = COMPILED.tiling
assert TILING is not None
ONLY = replace(
    COMPILED,
    loop_product=0,
    call=1.0,
    tiling=replace(
        TILING,
        call=0.0,
        column_bytes=72,
        box_bytes=1 << 10,
        far_bytes=1 << 11,
        longest=64,
    ),
)
WHOLE = replace(ONLY, tiling=replace(TILING, call=0.0))


@pytest.fixture(scope="module")
def handles() -> Any:
    """Small boxes with one thread and with three, and whole ones."""
    found = [ct.Handle(threads=threads) for threads in (1, 3, 2)]
    for handle, machine in zip(found, (ONLY, ONLY, WHOLE), strict=True):
        handle.executor.machine = machine  # type: ignore[misc]
    yield found
    for handle in found:
        handle.close()


def operands(rng: Any, shapes: Any, dtypes: Any, orders: Any) -> list[Any]:
    """Random arrays whose dimensions lie in memory in the given orders."""
    made = []
    for shape, dtype, order in zip(shapes, dtypes, orders, strict=True):
        values = rng.standard_normal([shape[at] for at in order])
        if np.dtype(dtype).kind == "c":
            values = values + 1j * rng.standard_normal(values.shape)
        if np.dtype(dtype).kind in "iu":
            values = np.abs(values * 20)
        made.append(values.astype(dtype).transpose(np.argsort(order)))
    return made


def exact(text: str, *arrays: Any) -> Any:
    wide = np.clongdouble if any(x.dtype.kind == "c" for x in arrays) else np.longdouble
    return np.einsum(text, *[x.astype(wide) for x in arrays])


def close(found: Any, text: str, arrays: Any, scale: float = 1.0, added: Any = 0) -> bool:
    """|found - exact| <= 2 (k + 4) eps * sum |a||b|, element by element."""
    terms, output = text.split("->")
    extents = dict(zip(terms.replace(",", ""), [n for x in arrays for n in x.shape], strict=True))
    depth = prod(n for label, n in extents.items() if label not in output)
    bound = scale * np.einsum(text, *[np.abs(x).astype(float) for x in arrays]) + np.abs(added)
    eps = np.finfo(found.dtype).eps
    return bool(
        np.all(
            np.abs(found - scale * exact(text, *arrays) - added) <= 2 * (depth + 4) * eps * bound
        )
    )


def is_tiled(expression: Any) -> bool:
    return any(isinstance(x, Gett) and x.tiles is not None for x in expression.plan.steps)
