"""python -m bench.small_calls: a few small calls on the GPU, for a checker to watch.

Extents are around the edges of tiles. The exit status is 1 if a result is wrong.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

import contract
from bench.device import HOST
from bench.gpu import Gpu, gpu
from bench.suites import column_major
from contract.descriptors.compute_types import accumulator, unit_roundoff

Call = Callable[..., Any]
DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
ROUNDINGS = 300  # of the type of sums, in one result
CUBE = ((33, 34, 35),)
CALLS: tuple[tuple[Call, str, tuple[tuple[int, ...], ...]], ...] = (
    (contract.permute, "abc->cab", CUBE),
    (contract.permute, "abc->bac", CUBE),
    (contract.permute, "abc->acb", CUBE),
    (contract.reduce, "abc->b", CUBE),
    (contract.reduce, "abc->ab", CUBE),
    (contract.reduce, "abc->bc", CUBE),
    (contract.reduce, "abc->", CUBE),
    (contract.contract, "ij,jk->ik", ((33, 65), (65, 17))),
    (contract.contract, "abc,kb->ack", ((7, 33, 5), (19, 33))),
    (contract.contract, "dbea,ec->abcd", ((5, 6, 17, 9), (17, 8))),
    (contract.contract, "bij,bjk->bik", ((3, 20, 33), (3, 33, 18))),
    (contract.contract, "a,b->ab", ((33,), (65,))),
    (contract.contract, "ab,ba,a->ab", ((33, 34), (34, 33), (33,))),
)
# Compute types with units or splits of their own, and to what they may round.
COMPUTE = (
    ("float32", "TF32", 2.0**-11),
    ("float32", "3XTF32", 2.0**-22),
    ("float32", "16BF", 2.0**-8),
    ("float32", "16F", 2.0**-11),
    ("float32", "9X16BF", 2.0**-23),
    ("float32", "4X16F", 2.0**-21),
    ("float64", "8XINT8", 2.0**-53),
    ("complex64", "TF32", 2.0**-11),
    ("complex128", "8XINT8", 2.0**-53),
)
PRODUCT = (contract.contract, "dbea,ec->abcd", ((9, 12, 40, 11), (40, 21)))
LARGE = (contract.contract, "ki,kj->ij", ((520, 264), (520, 392)))  # for TMA and wgmma


def main() -> int:
    """Make each call once, and compare it with NumPy in double precision."""
    device = gpu()
    # Without its pool every array ends where its memory ends, so that a checker sees the edge.
    import_module("cupy").cuda.set_allocator(None)
    asked = [(each, dtype, "", unit_roundoff(dtype)) for dtype in DTYPES for each in CALLS]
    asked += [(PRODUCT, *each) for each in COMPUTE]
    asked += [(LARGE, dtype, "", unit_roundoff(dtype)) for dtype in ("float16", "bfloat16")]
    asked += [(LARGE, "float32", "TF32", 2.0**-11)]
    wrong = [
        f"{' '.join((each[0].__name__, each[1], dtype, compute)).rstrip()}: error {size:.1e}"
        for each, dtype, compute, rounding in asked
        if not (size := error(device, *each, dtype, compute)) <= tolerance(dtype, rounding)
    ]
    print("\n".join(wrong) or "right")
    return 1 if wrong else 0


def tolerance(dtype: str, rounding: float) -> float:
    """Of an error relative to the largest result, where inputs and results may be rounded so."""
    return 4 * rounding + ROUNDINGS * unit_roundoff(accumulator(dtype))


def error(
    device: Gpu,
    call: Call,
    text: str,
    shapes: Sequence[Sequence[int]],
    dtype: str,
    compute: str = "",
) -> float:
    """max |found - exact| / max |exact|."""
    rng = np.random.default_rng(0)
    operands = [column_major(rng, shape, dtype) for shape in shapes]
    more = {"compute_type": compute} if compute else {}
    found = HOST.wide(device.numpy(call(text, *map(device.array, operands), **more)))
    exact = np.einsum(text, *map(HOST.wide, operands))
    return float(np.max(np.abs(found - exact)) / np.max(np.abs(exact)))


if __name__ == "__main__":
    sys.exit(main())
