"""python -m bench.small_calls: a few small calls on the GPU, for a checker to watch.

Extents are around the edges of tiles. The exit status is 1 if a result is wrong.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

import contract
from bench.gpu import Gpu, gpu
from bench.suites import column_major

Call = Callable[..., Any]
DTYPES = ("float32", "float64", "complex64")
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


def main() -> int:
    """Make each call once, and compare it with NumPy in double precision."""
    device = gpu()
    # Without its pool every array ends where its memory ends, so that a checker sees the edge.
    import_module("cupy").cuda.set_allocator(None)
    found = [(each, dtype, error(device, *each, dtype)) for dtype in DTYPES for each in CALLS]
    wrong = [
        f"{call.__name__} {text} {dtype}: relative error {size:.1e}"
        for (call, text, _), dtype, size in found
        if not size <= 1e3 * np.finfo(dtype).eps
    ]
    print("\n".join(wrong) or "right")
    return 1 if wrong else 0


def error(device: Gpu, call: Call, text: str, shapes: Sequence[Sequence[int]], dtype: str) -> float:
    """max |found - exact| / max |exact|."""
    rng = np.random.default_rng(0)
    operands = [column_major(rng, shape, dtype) for shape in shapes]
    found = device.numpy(call(text, *map(device.array, operands)))
    exact = np.einsum(text, *(x.astype(np.result_type(dtype, "f8")) for x in operands))
    return float(np.max(np.abs(found - exact)) / np.max(np.abs(exact)))


if __name__ == "__main__":
    sys.exit(main())
