"""Slot lifetimes -> offsets in one buffer."""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ALIGNMENT", "Lifetime", "place", "rounded"]

ALIGNMENT = 64  # bytes; a cache line, and the widest vector load of the host


class Lifetime(NamedTuple):
    """``bytes`` are needed from step ``first`` (which writes them) to step ``last``."""

    bytes: int
    first: int
    last: int


def place(lifetimes: Sequence[Lifetime]) -> tuple[tuple[int, ...], int]:
    """Offsets such that no two buffers alive at the same step overlap, and the size of all.

    The largest buffers are placed first, each at the lowest offset where it fits.
    """
    if not lifetimes:
        return (), 0
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for index in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i].bytes):
        offsets[index] = _lowest_gap(lifetimes, offsets, placed, index)
        placed.append(index)
    size = max(o + rounded(t.bytes) for o, t in zip(offsets, lifetimes, strict=True))
    return tuple(offsets), size


def _lowest_gap(
    lifetimes: Sequence[Lifetime], offsets: Sequence[int], placed: Sequence[int], index: int
) -> int:
    need = lifetimes[index]
    neighbours = sorted(
        (offsets[i], offsets[i] + rounded(lifetimes[i].bytes))
        for i in placed
        if lifetimes[i].first <= need.last and need.first <= lifetimes[i].last
    )
    offset = 0
    for begin, end in neighbours:
        if offset + rounded(need.bytes) <= begin:
            break
        offset = max(offset, end)
    return offset


def rounded(size: int) -> int:
    """``size`` bytes and what fills the last line."""
    return -(-size // ALIGNMENT) * ALIGNMENT
