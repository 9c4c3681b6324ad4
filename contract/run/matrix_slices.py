"""Long products of matrices in slices: between them Python looks for signals.

Where a product is cut depends on its extents alone, so that bits do.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise, product
from math import ceil, prod
from typing import Any

from contract.compute import is_blas_type
from contract.run.host_views import Array

__all__ = ["LOOP_PRODUCTS", "in_slices", "longest_slice", "pieces", "squares"]

# Multiply-adds of a slice, some ten milliseconds by BLAS on one thread, or by loops.
BLAS_PRODUCTS, LOOP_PRODUCTS = 1 << 30, 1 << 24
SHORTEST = 128  # rows or columns of a slice: shorter ones would pack the operands too often

Matmul = Callable[[Array, Array, Array], Any]
Going = Callable[[Iterable[Any]], Iterable[Any]]


def longest_slice(dtype: str) -> int:
    """Multiply-adds of one slice."""
    return BLAS_PRODUCTS if is_blas_type(dtype) else LOOP_PRODUCTS


def in_slices(matmul: Matmul, most: int, going: Going, a: Array, b: Array, out: Array) -> None:
    """matmul(a, b, out) on stacks of matrices, ``most`` multiply-adds at a time.

    ``going`` ends a loop early.
    """
    (m, k), n, stack = a.shape[-2:], out.shape[-1], out.shape[:-2]
    if m * n * k * prod(stack) <= most:
        matmul(a, b, out)
    elif stack:
        together = max(most // (m * n * k * prod(stack[1:])), 1)
        for at in going(range(0, stack[0], together)):
            own = slice(at, at + together)
            one, two = (x if x.shape[0] == 1 else x[own] for x in (a, b))
            if together == 1:
                one, two = one[0], two[0]
                in_slices(matmul, most, going, one, two, out[at])
            else:
                matmul(one, two, out[own])
    else:
        for rows, columns in going(squares(m, n, ceil(m * n * k / most))):
            matmul(a[rows], b[:, columns], out[rows, columns])


def squares(m: int, n: int, count: int) -> list[tuple[slice, slice]]:
    """A matrix in about ``count`` blocks, as square as they get and not too small."""
    side = max((m * n / count) ** 0.5, m / count, n / count, SHORTEST)
    return list(product(pieces(m, ceil(m / side)), pieces(n, ceil(n / side))))


def pieces(extent: int, count: int) -> list[slice]:
    """A range in even pieces, none of them empty."""
    edges = [extent * at // count for at in range(count + 1)]
    return [slice(*pair) for pair in pairwise(edges) if pair[0] < pair[1]]
