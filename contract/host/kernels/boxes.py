"""Products by boxes as tables: what a product is, and a call of it.

Compiled code reads entries by the names that they have here; all are integers.
"""

from typing import NamedTuple

__all__ = [
    "APART_COLUMNS",
    "APART_ROWS",
    "BATCHES_A",
    "BATCHES_B",
    "BATCHES_D",
    "BESIDE",
    "COLUMNS_B",
    "COLUMNS_D",
    "PACKED",
    "PLACES",
    "ROWS_A",
    "ROWS_D",
    "STEPS_A",
    "STEPS_B",
    "TABLES",
    "BoxCall",
    "BoxLoop",
    "BoxPlan",
]


class BoxPlan(NamedTuple):
    """How boxes of a product are gone through; the BoxLoops of each kind lie behind it, in turn.

    A thread's memory has panels of A, of B, a tile apart, and TABLES of offsets.
    """

    batches: int  # where their loops begin, in A and B,
    batches_d: int  # in D twice,
    rows: int  # in A and D,
    columns: int  # in B and D,
    steps: int  # in A and B,
    loops: int  # and where they end
    boxes_m: int
    boxes_n: int
    panels_b: int  # bytes before these,
    apart: int  # the tile,
    tables: int  # and the tables
    table_bytes: int
    each_a: int  # bytes of one batch's panels
    each_b: int
    kept: int  # boxes of A
    near: int  # rows before D's next columns
    lane: int  # bytes of a thread's memory
    edges: int  # the address of where shares of all boxes begin and end
    boxes_d: int
    boxes_sum: int  # of k, in a partial sum,
    boxes_k: int  # and in all


class BoxLoop(NamedTuple):
    """A loop that is cut into blocks, and its strides in two operands in bytes."""

    extent: int
    block: int
    one: int
    two: int


class BoxCall(NamedTuple):
    """What threads share: addresses of tables, memory and operands, and how much of a product."""

    plan: int
    room: int  # the threads' memory
    a: int
    b: int
    d: int
    apart_sums: int  # bytes from one partial sum to the next
    alpha: int
    adds: int
    begin: int  # between which boxes of k of each partial sum
    end: int
    kernels: int = 0  # how panels are packed and multiplied, once that is there


# The tables of a thread: columns of the tile apart, places of a box's rows in A, of its columns in
# B, of both in D, of steps along k in A and B, of rows or columns in panels, which grains of them
# lie side by side or how many of D's rows do, rows of the tile apart, and places of a box's batches
# in A, B and D, and which box of A is packed in each place for one.
APART_COLUMNS, ROWS_A, COLUMNS_B, ROWS_D, COLUMNS_D = range(5)
STEPS_A, STEPS_B, PLACES, BESIDE, APART_ROWS = range(5, 10)
BATCHES_A, BATCHES_B, BATCHES_D, PACKED, TABLES = range(10, 15)
