"""Compiled sums and products of two or three operands, element by element, in rows of vectors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray  # type: ignore[attr-defined]
from numba.core import types

from contract.host.compiled.functions.tools import Code, by_integers, compiled, emitted, integers
from contract.host.compiled.pass_tables import (
    COMBINED,
    FIRST,
    MOVES,
    NOTHING,
    PRODUCT,
    ROW,
    ROW_LOOP,
    ROW_LOOPS,
    ROW_NUMBERS,
    SECOND,
    SUM,
)
from contract.host.resources.views import Array

__all__ = ["combiner"]

VECTOR_BYTES = 64
TYPES: dict[str, Any] = {name: np.dtype(name).type(0) for name in COMBINED}


# --- instructions ---------------------------------------------------------------------------


@emitted
def _combined(
    context: Any, kind: Any, first: Any, second: Any, factors: Any, x: Any, y: Any, z: Any, to: Any
) -> Any:
    """A vector at ``to``: the one at x with that at y, then with that at z, each scaled."""
    write = _Writer(kind, 8 * VECTOR_BYTES // kind.bitwidth, first, second)
    return types.void(kind, first, second, factors, *[types.intp] * 4), write


@emitted
def _combined_one(
    context: Any, kind: Any, first: Any, second: Any, factors: Any, x: Any, y: Any, z: Any, to: Any
) -> Any:
    """The same with one element."""
    write = _Writer(kind, 1, first, second)
    return types.void(kind, first, second, factors, *[types.intp] * 4), write


class _Writer:
    """Writes the instructions that combine ``count`` elements; complex ones are pairs of reals."""

    def __init__(self, kind: Any, count: int, first: Any, second: Any) -> None:
        self.is_complex = kind in types.complex_domain
        real = kind.underlying_float if self.is_complex else kind
        self.real = ir.FloatType() if real is types.float32 else ir.DoubleType()
        self.count = count * (1 + self.is_complex)
        self.vector = ir.VectorType(self.real, self.count)
        self.codes = first.literal_value, second.literal_value

    def __call__(self, codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *sources, to = (builder.inttoptr(each, self.vector.as_pointer()) for each in arguments[4:])
        factors = [builder.extract_value(arguments[3], at) for at in range(len(sources))]
        value = self._scaled(builder, sources[0], factors[0])
        for code, source, factor in zip(self.codes, sources[1:], factors[1:], strict=True):
            if code != NOTHING:
                other = self._scaled(builder, source, factor)
                value = (builder.fadd if code == SUM else self._product(builder))(value, other)
        builder.store(value, to, align=1)
        return codegen.get_dummy_value()

    def _scaled(self, builder: Any, source: Any, factor: Any) -> Any:
        """The vector at ``source`` times a real number in all of its places."""
        nothing = ir.Constant(self.vector, ir.Undefined)
        first = builder.insert_element(nothing, factor, ir.IntType(32)(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self.count), None)
        everywhere = builder.shuffle_vector(first, nothing, zeros)
        return builder.fmul(builder.load(source, align=1), everywhere)

    def _product(self, builder: Any) -> Callable[[Any, Any], Any]:
        return partial(self._complex_product, builder) if self.is_complex else builder.fmul

    def _complex_product(self, builder: Any, one: Any, two: Any) -> Any:
        """re re - im im beside im re + re im."""
        signs = [ir.Constant(self.real, sign) for sign in (-1.0, 1.0)] * (self.count // 2)
        crossed = builder.fmul(
            self._placed(builder, one, (1, 1)), self._placed(builder, two, (1, 0))
        )
        straight = builder.fmul(self._placed(builder, one, (0, 0)), two)
        return builder.fadd(straight, builder.fmul(crossed, ir.Constant(self.vector, signs)))

    def _placed(self, builder: Any, value: Any, parts: tuple[int, int]) -> Any:
        """These two parts of every pair."""
        places = [at + part for at in range(0, self.count, 2) for part in parts]
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.count), places)
        return builder.shuffle_vector(value, value, mask)


@emitted
def _spread(context: Any, kind: Any, source: Any, to: Any) -> Any:
    """A vector of the one element at ``source``."""
    parts = 1 + (kind.bitwidth > 64)  # of an element
    word = ir.IntType(kind.bitwidth // parts)
    element = ir.VectorType(word, parts)
    count = 8 * VECTOR_BYTES // kind.bitwidth

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.load(builder.inttoptr(arguments[1], element.as_pointer()), align=1)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), parts * count), [*range(parts)] * count)
        vector = builder.shuffle_vector(value, value, mask)
        builder.store(vector, builder.inttoptr(arguments[2], vector.type.as_pointer()), align=1)
        return codegen.get_dummy_value()

    return types.void(kind, types.intp, types.intp), write


@emitted
def _width(context: Any, kind: Any) -> Any:
    """Bytes of an element."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return codegen.get_constant(types.intp, kind.bitwidth // 8)

    return types.intp(kind), write


@emitted
def _factors(context: Any, kind: Any, table: Any) -> Any:
    """Three real numbers of the precision of ``kind``, from an address."""
    real = kind.underlying_float if kind in types.complex_domain else kind

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table = builder.inttoptr(arguments[1], codegen.get_value_type(real).as_pointer())
        places = (builder.gep(table, [ir.IntType(64)(at)]) for at in range(3))
        numbers = [builder.load(place) for place in places]
        return codegen.make_tuple(builder, signature.return_type, numbers)

    return types.UniTuple(real, 3)(kind, types.intp), write  # type: ignore[no-untyped-call]


# --- loops ------------------------------------------------------------------------------------


@compiled
def combine(kind: Any, table: int, one: int, two: int, three: int, to: int, given: int) -> None:
    """target = ((f1 * one o f2 * two) o f3 * three), row by row; the factors are at ``given``."""
    row = carray(integers(table), ROW_NUMBERS)
    loops = carray(integers(table + 8 * ROW_NUMBERS), (row[ROW_LOOPS], ROW_LOOP))
    factors = _factors(kind, given)
    vectors = np.empty(3 * VECTOR_BYTES, np.uint8)
    room = vectors.ctypes.data
    index = np.zeros(loops.shape[0], np.int64)
    while True:
        x, y, z = one, two, three
        if row[MOVES] == 0:
            _spread(kind, x, room)
            x = room
        if row[MOVES + 1] == 0:
            _spread(kind, y, room + VECTOR_BYTES)
            y = room + VECTOR_BYTES
        if row[MOVES + 2] == 0:
            _spread(kind, z, room + 2 * VECTOR_BYTES)
            z = room + 2 * VECTOR_BYTES
        _combine_row(kind, row, factors, x, y, z, to)
        at = 0
        while at < loops.shape[0]:
            index[at] += 1
            again = loops[at, 0] if index[at] == loops[at, 0] else 0
            one, two = one + (1 - again) * loops[at, 1], two + (1 - again) * loops[at, 2]
            three, to = three + (1 - again) * loops[at, 3], to + (1 - again) * loops[at, 4]
            if again == 0:
                break
            index[at] = 0
            at += 1
        if at == loops.shape[0]:
            break
    vectors[:1] = 0  # Numba frees an array after its last use by name


@compiled
def _combine_row(kind: Any, row: Array, factors: Any, x: int, y: int, z: int, to: int) -> None:
    """One row; the operators are compiled in, one after the other."""
    first, second = row[FIRST], row[SECOND]
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
    row: Array,
    factors: Any,
    x: int,
    y: int,
    z: int,
    to: int,
) -> None:
    size, width = row[ROW], _width(kind)
    sx, sy, sz = row[MOVES], row[MOVES + 1], row[MOVES + 2]
    whole = size - size % VECTOR_BYTES
    for at in range(0, whole, VECTOR_BYTES):
        _combined(kind, first, second, factors, x + sx * at, y + sy * at, z + sz * at, to + at)
    for at in range(whole, size, width):
        _combined_one(kind, first, second, factors, x + sx * at, y + sy * at, z + sz * at, to + at)


def combiner(dtype: str) -> Code:
    """What combines: its arguments are a table, three operands, the target, the factors."""
    kind = TYPES[dtype]

    def combined(table: int, x: int, y: int, z: int, to: int, factors: int) -> None:
        combine(kind, table, x, y, z, to, factors)

    return by_integers(combined, 6)
