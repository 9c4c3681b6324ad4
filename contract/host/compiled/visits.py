"""Loops over memory as rows of a table, which compiled code goes through one after the other."""

from typing import NamedTuple

__all__ = ["ONCE", "Visit"]


class Visit(NamedTuple):
    """A loop: its extent, and the steps of two operands; the last step is shorter by the clips."""

    extent: int
    one: int
    two: int
    clip_one: int = 0
    clip_two: int = 0


ONCE = Visit(1, 0, 0)  # of one step
