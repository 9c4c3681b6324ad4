"""Products of matrices in slices, which our threads share: each calls BLAS on its own thread.

BLAS's threads wait for each other several times in every product, and for the next one for a tenth
of a second, all the while taking a core each. Beside another busy process each of these meetings
may cost a time slice of the system. Of our slices each thread takes the next when it is free.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from math import ceil, prod
from typing import Any

import numpy as np

from contract.descriptors.compute_types import is_blas_type, is_complex, item_size
from contract.host.resources.blas_threads import blas_threads
from contract.host.resources.views import Array
from contract.host.resources.workers import Workers

__all__ = ["LOOP_PRODUCTS", "SHARED_PRODUCTS", "in_slices", "longest_slice", "share_product"]

# Multiply-adds that take some ten milliseconds: by BLAS, times the bytes of a number, and by loops
# without it.
BLAS_PRODUCTS, LOOP_PRODUCTS = 1 << 34, 1 << 24
SHORTEST = 128  # rows or columns of a slice: shorter ones would pack the operands too often
# Multiply-adds that are worth waking a thread, and of a slice.
SHARED_PRODUCTS, SLICE_PRODUCTS = 1 << 22, 1 << 21
FEWEST_OF_BLAS = 1 << 12  # multiply-adds for which BLAS may have threads
# Slices for each thread; a matrix has fewer, for its factors are packed in each.
STACK_SLICES, MATRIX_SLICES = 4, 2

Matmul = Callable[[Array, Array, Array], Any]


def share_product(matmul: Matmul, workers: Workers, a: Array, b: Array, out: Array) -> None:
    """matmul(a, b, out) on stacks of matrices by all threads, with one BLAS thread each.

    How many threads BLAS has may show in the last bits, and other callers change it at any time.
    """
    products = out.size * a.shape[-1]
    each = MATRIX_SLICES if prod(out.shape[:-2]) == 1 else STACK_SLICES
    if products < FEWEST_OF_BLAS:
        matmul(a, b, out)
    elif products < SHARED_PRODUCTS or workers.threads == 1 or workers.is_inside():
        blas_threads().alone(partial(matmul, a, b, out))
    else:
        most = max(ceil(products / (each * workers.threads)), SLICE_PRODUCTS)
        slices = _slices(a, b, out, most)
        blas_threads().alone(partial(workers.map, partial(_slice, matmul), slices))


def in_slices(matmul: Matmul, dtype: str, workers: Workers) -> Matmul:
    """matmul(a, b, out), where it is long slice by slice: between them signals are seen.

    Where it is cut depends on its extents alone, so that bits do.
    """
    is_blas, most = is_blas_type(dtype), longest_slice(dtype)

    def run(a: Array, b: Array, out: Array) -> None:
        if out.size * a.shape[-1] <= most:
            matmul(a, b, out)
            return
        shared = partial(workers.map, partial(_slice, matmul), _slices(a, b, out, most // 2))
        if is_blas:
            blas_threads().alone(shared)
        else:
            shared()

    return run


def longest_slice(dtype: str) -> int:
    """Multiply-adds that are not cut."""
    if not is_blas_type(dtype):
        return LOOP_PRODUCTS
    return BLAS_PRODUCTS // item_size(dtype) // (2 if is_complex(dtype) else 1)


def _slice(matmul: Matmul, a: Array, b: Array, out: Array) -> None:
    with np.errstate(all="ignore"):  # a thread has settings of its own
        matmul(a, b, out)


def _slices(a: Array, b: Array, out: Array, most: int) -> list[tuple[Array, Array, Array]]:
    """The operands and results of slices of about ``most`` multiply-adds."""
    (m, k), n, stack = a.shape[-2:], out.shape[-1], out.shape[:-2]
    if not stack:
        return [
            (a[rows], b[:, columns], out[rows, columns])
            for rows, columns in _squares(m, n, ceil(m * n * k / most))
        ]
    together = most // (m * n * k * prod(stack[1:]))
    found: list[tuple[Array, Array, Array]] = []
    for at in range(0, stack[0], max(together, 1)):
        own = slice(at, at + together) if together > 0 else at
        whole = slice(None) if together > 0 else 0
        one, two = (x[whole if x.shape[0] == 1 else own] for x in (a, b))
        found += [(one, two, out[own])] if together > 0 else _slices(one, two, out[own], most)
    return found


def _squares(m: int, n: int, count: int) -> list[tuple[slice, slice]]:
    """A matrix in about ``count`` blocks, as square as they get and not too small."""
    side = max((m * n / count) ** 0.5, m / count, n / count, SHORTEST)
    return list(product(_pieces(m, ceil(m / side)), _pieces(n, ceil(n / side))))


def _pieces(extent: int, count: int) -> list[slice]:
    """A range in even pieces, none of them empty."""
    edges = [extent * at // count for at in range(count + 1)]
    return [slice(*pair) for pair in pairwise(edges) if pair[0] < pair[1]]
