"""The loop that vectors run along in products loop by loop, and what that costs.

Along it each operand is contiguous or does not change. Where one of them is strided elements go one
by one.
"""

__all__ = ["SPREAD", "STRIDED", "UNIT", "VECTOR_BYTES", "vectors_each", "ways_along"]

VECTOR_BYTES = 64
VISIT = 8  # what one row costs besides its vectors, in vectors,
TOTAL = 4  # adding up the vectors of a dot product,
SINGLE = 4  # and an element that goes alone
UNIT, SPREAD, STRIDED = range(3)  # how an operand lies along vectors


def ways_along(a: int, b: int) -> tuple[int, int]:
    """How two operands lie along a loop with these strides, in elements."""
    one, two = ({1: UNIT, 0: SPREAD}.get(stride, STRIDED) for stride in (a, b))
    return (STRIDED, STRIDED) if STRIDED in (one, two) else (one, two)


def vectors_each(extent: int, a: int, b: int, is_summed: bool, size: int) -> float:
    """Vectors for each element of rows along a loop; elements have ``size`` bytes."""
    whole, left = divmod(extent, VECTOR_BYTES // size)
    vectors = whole + left.bit_count()
    if STRIDED in ways_along(a, b):
        vectors = extent * SINGLE
    return (vectors + VISIT + (TOTAL if is_summed else 0)) / max(extent, 1)
