"""What packing consists of: elements, runs and squares that are moved into panels.

Complex panels of A keep real and imaginary parts apart, so that a vector holds either; those of B
keep them together, for each part is spread over a vector. ``gap`` bytes lie between parts apart.
"""

from typing import Any

import numpy as np
from numba.core import types

from contract.host.compiled.functions.vector_ir import (
    WORD,
    Tag,
    Vectors,
    Word,
    Writer,
    emitted,
    is_complex,
    part_of,
)
from contract.host.compiled.tile_tables import tile_shape
from contract.host.kernels.protocol import TileShape
from contract.planner.host.tile_blocks import SQUARE

__all__ = [
    "LEFT",
    "RIGHT",
    "clear",
    "grain_width",
    "move",
    "move_run",
    "panel_width",
    "part_size",
    "shape_of",
    "turn",
    "turned_length",
]

LEFT, RIGHT = np.int8(0), np.int16(0)  # panels of A or B: what differs is compiled in


def shape_of(kind: Any) -> TileShape:
    """The register tile for a type."""
    return tile_shape(np.dtype(str(kind)))


def _is_left(side: Any) -> bool:
    return bool(side == types.int8)


def _is_split(side: Any, kind: Any) -> bool:
    """Whether real and imaginary parts lie apart in a panel."""
    return _is_left(side) and is_complex(kind)


def _grain(side: Any, kind: Any) -> int:
    shape = shape_of(kind)
    return shape.lanes if _is_left(side) else shape.grain


@emitted
def panel_width(write: Writer, side: Tag, kind: Tag) -> Word:
    """Rows of a panel of A, or columns of one of B."""
    shape = shape_of(kind)
    return WORD(shape.rows if _is_left(side) else shape.columns)


@emitted
def grain_width(write: Writer, side: Tag, kind: Tag) -> Word:
    """The same of the narrowest panel; others are multiples of it."""
    return WORD(_grain(side, kind))


@emitted
def turned_length(write: Writer, side: Tag, kind: Tag) -> Word:
    """How many elements of a row ``turn`` takes."""
    return WORD(SQUARE // 2 if _is_split(side, kind) else SQUARE)


@emitted
def part_size(write: Writer, side: Tag, kind: Tag) -> Word:
    """Bytes from one row of a panel to the next."""
    return WORD(_parts(write, side, kind, 1).size)


def _parts(write: Writer, side: Any, kind: Any, lanes: int) -> Vectors:
    """Vectors of what lies side by side in a panel."""
    return write.vectors(part_of(kind) if _is_split(side, kind) else kind, lanes)


@emitted
def move(
    write: Writer, side: Tag, source_kind: Tag, kind: Tag, source: Word, to: Word, gap: Word
) -> None:
    """Move one element into a panel, converted."""
    value = write.vectors(kind, 1).converted(*write.loaded(source_kind, source))
    _put(write, side, kind, value, 1, (to, gap))


@emitted
def move_run(write: Writer, side: Tag, kind: Tag, source: Word, to: Word, gap: Word) -> None:
    """Move a grain of contiguous elements into a panel."""
    length = _grain(side, kind)
    _put(write, side, kind, write.vectors(kind, length).load(source), length, (to, gap))


@emitted
def clear(write: Writer, side: Tag, kind: Tag, to: Word, gap: Word) -> None:
    """Write a zero into a panel."""
    _put(write, side, kind, write.vectors(kind, 1).zero(), 1, (to, gap))


def _put(
    write: Writer, side: Any, kind: Any, value: Any, length: int, places: tuple[Any, Any]
) -> None:
    """Write some elements where they, or their real parts, lie side by side."""
    vectors, (to, gap) = _parts(write, side, kind, length), places
    values = [value]
    if _is_split(side, kind):
        values = write.vectors(kind, length).separated(value)
    for part, place in zip(values, (to, write.plus(to, gap)), strict=False):
        vectors.store(part, place)


@emitted
def turn(
    write: Writer,
    side: Tag,
    kind: Tag,
    source: Word,
    rows: Word,
    first: Word,
    second: Word,
    third: Word,
    fourth: Word,
    gap: Word,
) -> None:
    """Contiguous elements from each of four rows become runs of a panel, four elements each.

    ``rows`` is the address of the rows' byte offsets; where parts are split there are two runs
    of each part.
    """
    vectors = _parts(write, side, kind, SQUARE)
    steps = [write.entry(rows, row) for row in range(SQUARE)]
    lines = vectors.transposed([vectors.load(write.plus(source, step)) for step in steps])
    places = [first, second, third, fourth]
    if _is_split(side, kind):
        places = [first, write.plus(first, gap), second, write.plus(second, gap)]
    for line, place in zip(lines, places, strict=True):
        vectors.store(line, place)
