"""Compiled sums and products of two or three operands, element by element, in rows of vectors."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types

from contract.operators import BinaryOperator
from contract.run.host_kernels import Combination
from contract.run.host_views import Array
from contract.run.numba_tools import compiled, emitted

__all__ = ["combination"]

VECTOR_BYTES = 64
NOTHING, SUM, PRODUCT = range(3)  # how a second and a third operand come in, if at all
_CODES = {BinaryOperator.ADD: SUM, BinaryOperator.MUL: PRODUCT}
_KINDS: dict[str, Any] = {
    "float32": np.float32(0),
    "float64": np.float64(0),
    "complex64": np.complex64(0),
    "complex128": np.complex128(0),
}


def combination(
    extents: Sequence[int],
    strides: Sequence[Sequence[int]],
    dtype: str,
    operators: Sequence[BinaryOperator],
) -> Combination | None:
    """target[i] = ((one o two) o three)[i], the types all the same; None: not compiled.

    ``strides`` (elements) are those of the operands and, last, of the target. Along the first
    dimension the target is contiguous, and an operand is as well or has one element.
    """
    codes = [_CODES.get(operator, NOTHING) for operator in operators]
    along = [steps[0] for steps in strides] if extents else []
    known = dtype in _KINDS and len(codes) in (1, 2) and NOTHING not in codes
    if not known or along[-1:] != [1] or not {0, 1}.issuperset(along):
        return None
    size = np.dtype(dtype).itemsize
    every = [*strides[:2], strides[-2], strides[-1]]  # of two operands the second once more
    first, second = (*codes, NOTHING)[:2]
    row = np.array([extents[0] * size, *(steps[0] for steps in every)], np.int64)
    outer = [(n, *(size * steps[at] for steps in every)) for at, n in enumerate(extents) if at]
    loops, kind = np.array(outer or [(1, 0, 0, 0, 0)], np.int64), _KINDS[dtype]

    def run(addresses: Sequence[int]) -> None:
        one, two, *_ = addresses
        combine(kind, first, second, row, loops, one, two, addresses[-2], addresses[-1])

    return run


# --- instructions ---------------------------------------------------------------------------


@emitted
def _combined(
    context: Any, kind: Any, first: Any, second: Any, x: Any, y: Any, z: Any, to: Any
) -> Any:
    """A vector at ``to``: the one at x with that at y, then with that at z."""
    write = _Writer(kind, 8 * VECTOR_BYTES // kind.bitwidth, first, second)
    return types.void(kind, first, second, *[types.intp] * 4), write


@emitted
def _combined_one(
    context: Any, kind: Any, first: Any, second: Any, x: Any, y: Any, z: Any, to: Any
) -> Any:
    """The same with one element."""
    return types.void(kind, first, second, *[types.intp] * 4), _Writer(kind, 1, first, second)


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
        *sources, to = (builder.inttoptr(each, self.vector.as_pointer()) for each in arguments[3:])
        value = builder.load(sources[0], align=1)
        for code, source in zip(self.codes, sources[1:], strict=True):
            if code != NOTHING:
                other = builder.load(source, align=1)
                value = (builder.fadd if code == SUM else self._product(builder))(value, other)
        builder.store(value, to, align=1)
        return codegen.get_dummy_value()

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
    element = ir.IntType(kind.bitwidth)

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, to = (builder.inttoptr(each, element.as_pointer()) for each in arguments[1:])
        value = builder.load(source, align=1)
        for at in range(8 * VECTOR_BYTES // kind.bitwidth):
            place = builder.gep(to, [ir.Constant(ir.IntType(64), at)])
            builder.store(value, place, align=1)
        return codegen.get_dummy_value()

    return types.void(kind, types.intp, types.intp), write


@emitted
def _width(context: Any, kind: Any) -> Any:
    """Bytes of an element."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return codegen.get_constant(types.intp, kind.bitwidth // 8)

    return types.intp(kind), write


# --- loops ------------------------------------------------------------------------------------


@compiled
def combine(
    kind: Any,
    first: int,
    second: int,
    row: Array,
    loops: Array,
    one: int,
    two: int,
    three: int,
    to: int,
) -> None:
    """target = ((one o two) o three), row by row.

    ``row`` has the bytes of a row, and for each operand and the target 1 or, where one element is
    the operand's row, 0. ``loops`` have extents and the same steps in bytes, the fastest first.
    """
    vectors = np.empty(3 * VECTOR_BYTES, np.uint8)
    room = vectors.ctypes.data
    index = np.zeros(loops.shape[0], np.int64)
    while True:
        x, y, z = one, two, three
        if row[1] == 0:
            _spread(kind, x, room)
            x = room
        if row[2] == 0:
            _spread(kind, y, room + VECTOR_BYTES)
            y = room + VECTOR_BYTES
        if row[3] == 0:
            _spread(kind, z, room + 2 * VECTOR_BYTES)
            z = room + 2 * VECTOR_BYTES
        _combine_row(kind, first, second, row, x, y, z, to)
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
def _combine_row(
    kind: Any, first: int, second: int, row: Array, x: int, y: int, z: int, to: int
) -> None:
    """One row; the operators are compiled in, one after the other."""
    if second == NOTHING:
        if first == SUM:
            _combine_vectors(kind, SUM, NOTHING, row, x, y, z, to)
        else:
            _combine_vectors(kind, PRODUCT, NOTHING, row, x, y, z, to)
    elif second == SUM:
        if first == SUM:
            _combine_vectors(kind, SUM, SUM, row, x, y, z, to)
        else:
            _combine_vectors(kind, PRODUCT, SUM, row, x, y, z, to)
    elif first == SUM:
        _combine_vectors(kind, SUM, PRODUCT, row, x, y, z, to)
    else:
        _combine_vectors(kind, PRODUCT, PRODUCT, row, x, y, z, to)


@compiled
def _combine_vectors(
    kind: Any, first: int, second: int, row: Array, x: int, y: int, z: int, to: int
) -> None:
    size, width = row[0], _width(kind)
    sx, sy, sz = row[1], row[2], row[3]
    whole = size - size % VECTOR_BYTES
    for at in range(0, whole, VECTOR_BYTES):
        _combined(kind, first, second, x + sx * at, y + sy * at, z + sz * at, to + at)
    for at in range(whole, size, width):
        _combined_one(kind, first, second, x + sx * at, y + sy * at, z + sz * at, to + at)
