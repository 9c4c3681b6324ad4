"""Products of matrices of integers and of bits as tables that compiled code follows."""

from collections.abc import Callable
from typing import Any

import numpy as np

from contract.execution.compiled_code import Kernel
from contract.host.compiled.linking import Linker
from contract.host.kernels.protocol import MatmulKernel
from contract.host.resources.views import Array, address

__all__ = ["multiply_integers"]

# A product: where A, B and D are, and a row beside D; bytes from row to row and from column to
# column in A and D; rows and columns of D, and what is summed. B is row-major.
A, B, D, SPARE, A_M, A_K, D_M, D_N, M, N, K = range(11)


def multiply_integers(dtype: str, linker: Linker) -> MatmulKernel:
    """out[l,m,n] = sum_k a[l,m,k] * b[l,k,n], wrapping around, or of bits: (a, b, out)."""
    found = np.dtype(dtype)
    unsigned = np.dtype(f"u{found.itemsize}")
    kernel = Kernel("integers", "wrapping", (found.itemsize,))
    if found.kind == "b":
        kernel = Kernel("integers", "bits")
    linked = linker.functions(kernel)

    def run(a: Array, b: Array, out: Array) -> None:
        (multiply,) = linked()
        _stacked(multiply, unsigned, a, b, out)

    return run


def _stacked(
    multiply: Callable[[Any, int], None], dtype: np.dtype[Any], a: Array, b: Array, out: Array
) -> None:
    """Every matrix product of a stack, written along the output's rows."""
    if abs(out.strides[-2]) < abs(out.strides[-1]):
        a, b, out = b.swapaxes(-1, -2), a.swapaxes(-1, -2), out.swapaxes(-1, -2)
    batch, kind = out.shape[:-2], dtype.type(0)
    a, b = np.broadcast_to(a, batch + a.shape[-2:]), np.broadcast_to(b, batch + b.shape[-2:])
    spare = np.empty(out.shape[-1], dtype)
    for where in np.ndindex(batch):
        one, two, into = a[where], np.ascontiguousarray(b[where]), out[where]
        places = address(one), address(two), address(into), address(spare)
        table = np.array([*places, *one.strides, *into.strides, *into.shape, one.shape[1]])
        multiply(kind, address(table))
