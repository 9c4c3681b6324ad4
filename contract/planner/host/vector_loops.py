"""The loop that vectors run along in products loop by loop, and what that costs.

Along it each operand is contiguous or does not change. Where one of them is strided elements go one
by one.
"""

from collections.abc import Iterable

from contract.descriptors.compute_types import is_complex, item_size

__all__ = [
    "SPREAD",
    "STRIDED",
    "UNIT",
    "VECTOR_BYTES",
    "along_vectors",
    "vectors_each",
    "ways_along",
]

VECTOR_BYTES = 64
VISIT = 8  # what one row costs besides its vectors, in vectors,
TOTAL = 4  # adding up the vectors of a dot product,
SINGLE = 4  # an element that goes alone,
COMPLEX = 3  # and a vector of complex numbers, which are turned and multiplied twice
UNIT, SPREAD, STRIDED = range(3)  # how an operand lies along vectors


def ways_along(a: int, b: int) -> tuple[int, int]:
    """How two operands lie along a loop with these strides, in elements."""
    one, two = ({1: UNIT, 0: SPREAD}.get(stride, STRIDED) for stride in (a, b))
    return (STRIDED, STRIDED) if STRIDED in (one, two) else (one, two)


def along_vectors(loops: Iterable[tuple[int, int, int, bool]], dtype: str) -> tuple[float, int]:
    """What ``vectors_each`` is along the loop where it is least, and which loop that is.

    Loops are given by extent, strides in A and B in elements, and whether they are summed.
    """
    costs = (vectors_each(*loop, dtype) for loop in loops)
    return min((cost, at) for at, cost in enumerate(costs))


def vectors_each(extent: int, a: int, b: int, is_summed: bool, dtype: str) -> float:
    """Vectors of real numbers multiplied for each element of rows along a loop, or as long."""
    whole, left = divmod(extent, VECTOR_BYTES // item_size(dtype))
    vectors = whole + left.bit_count()
    if STRIDED in ways_along(a, b):
        vectors = extent * SINGLE
    if is_complex(dtype):
        vectors *= COMPLEX
    return (vectors + VISIT + (TOTAL if is_summed else 0)) / max(extent, 1)
