"""Compiled products of matrices of integers and of bits, where they lie."""

from typing import Any

from numba import carray  # type: ignore[attr-defined]
from numba.core import types

from contract.host.compiled.functions.tables import elements, load, size_of
from contract.host.compiled.functions.tools import Code, called, compiled, from_python
from contract.host.compiled.integer_tables import A_K, A_M, D_M, D_N, SPARE, A, B, D, K, M, N
from contract.host.resources.views import Array

__all__ = ["bits", "wrapping"]


@compiled
def _row_of(kind: Any, given: int, m: int) -> Array:
    """The row of results, in place where that is contiguous, of zeros."""
    if load(given, D_N) == size_of(kind):
        row = carray(elements(kind, load(given, D) + m * load(given, D_M)), load(given, N))
    else:
        row = carray(elements(kind, load(given, SPARE)), load(given, N))
    row[:] = 0
    return row


@compiled
def _write_row(kind: Any, given: int, m: int, row: Array) -> None:
    """The row to where it belongs, unless it is there."""
    step, to = load(given, D_N), load(given, D) + m * load(given, D_M)
    if step != size_of(kind):
        for n in range(row.size):
            carray(elements(kind, to + n * step), 1)[0] = row[n]


@called
def multiply_integers(kind: Any, given: int) -> None:
    """d[m,n] = sum_k a[m,k] * b[k,n], wrapping around; b is row-major."""
    a, b, width = load(given, A), load(given, B), load(given, N) * size_of(kind)
    for m in range(load(given, M)):
        row = _row_of(kind, given, m)
        for k in range(load(given, K)):
            place = a + m * load(given, A_M) + k * load(given, A_K)
            factor = carray(elements(kind, place), 1)[0]
            other = carray(elements(kind, b + k * width), row.size)
            for n in range(row.size):
                row[n] += factor * other[n]
        _write_row(kind, given, m, row)


@called
def multiply_bits(kind: Any, given: int) -> None:
    """d[m,n] = or over k of a[m,k] and b[k,n], as bytes 0 and 1."""
    a, b, width = load(given, A), load(given, B), load(given, N) * size_of(kind)
    for m in range(load(given, M)):
        row = _row_of(kind, given, m)
        for k in range(load(given, K)):
            place = a + m * load(given, A_M) + k * load(given, A_K)
            if carray(elements(kind, place), 1)[0]:
                other = carray(elements(kind, b + k * width), row.size)
                for n in range(row.size):
                    row[n] |= other[n]
        _write_row(kind, given, m, row)


def wrapping(width: int) -> Code:
    """Products of integers of so many bytes, signed or not: the bits are the same."""
    return from_python(multiply_integers, types.Integer.from_bitwidth(8 * width, False), types.intp)


def bits() -> Code:
    """Products of bits."""
    return from_python(multiply_bits, types.uint8, types.intp)
