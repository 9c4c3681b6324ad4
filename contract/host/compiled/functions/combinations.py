"""Compiled sums and products of two or three operands, element by element, in rows of vectors."""

from typing import Any

import numpy as np
from numba.core import types

from contract.host.compiled.functions.tables import behind, size_of, table
from contract.host.compiled.functions.tools import Code, by_integers, compiled
from contract.host.compiled.functions.vector_ir import (
    WORD,
    Tag,
    Word,
    Writer,
    emitted,
    part_of,
    typed_by,
)
from contract.host.compiled.pass_tables import (
    COMBINED,
    MOST,
    NOTHING,
    PRODUCT,
    SUM,
    CombinedLoop,
    CombinedRow,
)

__all__ = ["combiner"]

VECTOR_BYTES = 64
TYPES: dict[str, Any] = {name: np.dtype(name).type(0) for name in COMBINED}


# --- instructions ---------------------------------------------------------------------------


@emitted
def _combined(
    write: Writer,
    kind: Tag,
    first: Tag,
    second: Tag,
    lines: Tag,
    factors: Any,
    x: Word,
    y: Word,
    z: Word,
    to: Word,
) -> None:
    """A vector at ``to``: the one at x with that at y, then with that at z, each scaled.

    A literal number of lines is 0 where it is one element.
    """
    lanes = 8 * VECTOR_BYTES // kind.bitwidth if lines.literal_value else 1
    vectors = write.vectors(kind, lanes)
    value, *others = (
        write.builder.fmul(
            vectors.load(place), vectors.spread(write.builder.extract_value(factors, at))
        )
        for at, place in enumerate((x, y, z))
    )
    for code, other in zip((first, second), others, strict=True):
        if code.literal_value == SUM:
            value = vectors.sum(value, other)
        elif code.literal_value == PRODUCT:
            value = vectors.product(value, other)
    vectors.store(value, to)


@emitted
def _spread(write: Writer, kind: Tag, source: Word, to: Word) -> None:
    """A vector of the one element at ``source``."""
    vectors = write.vectors(kind, 8 * VECTOR_BYTES // kind.bitwidth)
    vectors.store(vectors.load_spread(source), to)


@typed_by
def _factors(context: Any, kind: Any, table: Any) -> Any:
    """Three real numbers of the precision of ``kind``, from an address."""
    real = part_of(kind)

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[1], codegen.get_value_type(real).as_pointer())
        numbers = [builder.load(builder.gep(place, [WORD(at)])) for at in range(3)]
        return codegen.make_tuple(builder, signature.return_type, numbers)

    return types.UniTuple(real, 3)(kind, types.intp), write  # type: ignore[no-untyped-call]


# --- loops ------------------------------------------------------------------------------------


@compiled
def combine(kind: Any, given: int, one: int, two: int, three: int, to: int, scales: int) -> None:
    """target = ((f1 * one o f2 * two) o f3 * three), row by row; the factors are at ``scales``."""
    row, loops = table(CombinedRow, given), behind(CombinedRow, given, 1)
    factors = _factors(kind, scales)
    vectors = np.empty(MOST * VECTOR_BYTES, np.uint8)
    room = vectors.ctypes.data
    index = np.zeros(row.loops, np.int64)
    while True:
        x = _row_of(kind, row.moves_one, one, room)
        y = _row_of(kind, row.moves_two, two, room + VECTOR_BYTES)
        z = _row_of(kind, row.moves_three, three, room + 2 * VECTOR_BYTES)
        _combine_row(kind, row, factors, x, y, z, to)
        at = 0
        while at < row.loops:
            loop = table(CombinedLoop, behind(CombinedLoop, loops, at))
            index[at] += 1
            again = loop.extent if index[at] == loop.extent else 0
            one, two = one + (1 - again) * loop.one, two + (1 - again) * loop.two
            three, to = three + (1 - again) * loop.three, to + (1 - again) * loop.to
            if again == 0:
                break
            index[at] = 0
            at += 1
        if at == row.loops:
            break
    vectors[:1] = 0  # Numba frees an array after its last use by name


@compiled
def _row_of(kind: Any, moves: int, source: int, room: int) -> int:
    """Where an operand's row is; one element becomes a vector."""
    if moves != 0:
        return source
    _spread(kind, source, room)
    return room


@compiled
def _combine_row(kind: Any, row: Any, factors: Any, x: int, y: int, z: int, to: int) -> None:
    """One row; the operators are compiled in, one after the other."""
    first, second = row.first, row.second
    if second == NOTHING:
        if first == SUM:
            _combine_vectors(kind, SUM, NOTHING, row, factors, x, y, z, to)
        else:
            _combine_vectors(kind, PRODUCT, NOTHING, row, factors, x, y, z, to)
    elif second == SUM:
        if first == SUM:
            _combine_vectors(kind, SUM, SUM, row, factors, x, y, z, to)
        else:
            _combine_vectors(kind, PRODUCT, SUM, row, factors, x, y, z, to)
    elif first == SUM:
        _combine_vectors(kind, SUM, PRODUCT, row, factors, x, y, z, to)
    else:
        _combine_vectors(kind, PRODUCT, PRODUCT, row, factors, x, y, z, to)


@compiled
def _combine_vectors(
    kind: Any,
    first: int,
    second: int,
    row: Any,
    factors: Any,
    x: int,
    y: int,
    z: int,
    to: int,
) -> None:
    size, width = row.bytes, size_of(kind)
    sx, sy, sz = row.moves_one, row.moves_two, row.moves_three
    whole = size - size % VECTOR_BYTES
    for at in range(0, whole, VECTOR_BYTES):
        _combined(kind, first, second, 1, factors, x + sx * at, y + sy * at, z + sz * at, to + at)
    for at in range(whole, size, width):
        _combined(kind, first, second, 0, factors, x + sx * at, y + sy * at, z + sz * at, to + at)


def combiner(dtype: str) -> Code:
    """What combines: its arguments are a table, three operands, the target, the factors."""
    kind = TYPES[dtype]

    def combined(row: int, x: int, y: int, z: int, to: int, factors: int) -> None:
        combine(kind, row, x, y, z, to, factors)

    return by_integers(combined, 6)
