"""Compiled code that combines rows of elements with accumulators, and the loops around it.

The operator and the types are compiled into the former alone, for compiling takes seconds: the
loops call it by its address. Extents, strides and tables come in a plan, one array of integers
that ``reduction_tables`` makes; threads share jobs, which are plans and places in memory.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray  # type: ignore[attr-defined]
from numba.core import cgutils, types
from numba.np.numpy_support import from_dtype

from contract.descriptors.operators import BinaryOperator
from contract.host.compiled.functions.team import PART_ARGUMENTS
from contract.host.compiled.functions.tools import (
    LONGEST,
    LOOP,
    Code,
    Pairs,
    advance,
    after_steps,
    by_c,
    by_integers,
    called,
    compiled,
    emitted,
    from_python,
    if_bit,
    integers,
    load,
    prefetch,
)
from contract.host.compiled.reduction_tables import (
    CONTIGUOUS,
    JOB,
    LOOPS,
    NUMBERS,
    OUTER_END,
    PAIRS,
    PASS,
    PASSES,
    PHASE,
    READ,
    ROWS,
    SIZE,
    STEPS,
    STORE_END,
    STRIDED,
    UNITS,
    VECTOR_BYTES,
    WHOLE,
    WRITTEN,
)
from contract.host.resources.views import Array

__all__ = ["combined", "part", "reduce_all"]

CONTIGUOUS_GROUP = 4  # rows combined at once
TABULATED_GROUP = 8
LINE = 64
FILL, FOLD, STORE = range(5, 8)  # what is done with accumulators beside combining rows

# The type of the kernel's first argument names the operator: a type is compiled in, and unlike
# a closure it lets the code be kept on disk.
TAGS: dict[BinaryOperator, Any] = {
    BinaryOperator.ADD: np.int8(0),
    BinaryOperator.MUL: np.int16(0),
    BinaryOperator.MAX: np.int32(0),
    BinaryOperator.MIN: np.int64(0),
}
_OPERATORS = {
    types.int8: BinaryOperator.ADD,
    types.int16: BinaryOperator.MUL,
    types.int32: BinaryOperator.MAX,
    types.int64: BinaryOperator.MIN,
}


@emitted
def _neutral(context: Any, tag: Any, block: Any) -> Any:
    """The value that changes nothing: for sums -0, which unlike +0 keeps the sign of -0."""
    kind, operator = block.dtype, _OPERATORS[tag]

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _neutral_constant(codegen, builder, operator, kind)

    return kind(tag, block), write


def _neutral_constant(codegen: Any, builder: Any, operator: BinaryOperator, kind: Any) -> Any:
    if kind not in types.complex_domain:
        return codegen.get_constant(kind, _neutral_value(operator, kind))
    value = _neutral_value(operator, kind.underlying_float)
    made = codegen.make_complex(builder, kind)
    made.real = codegen.get_constant(kind.underlying_float, value)
    made.imag = codegen.get_constant(kind.underlying_float, value if value == 0 else 0.0)
    return made._getvalue()


def _neutral_value(operator: BinaryOperator, kind: Any) -> Any:
    exact = isinstance(kind, types.Integer)
    if operator is BinaryOperator.ADD:
        return 0 if exact else -0.0
    if operator is BinaryOperator.MUL:
        return 1
    if operator is BinaryOperator.MAX:
        return kind.minval if exact else -np.inf
    return kind.maxval if exact else np.inf


@emitted
def _combine_run(
    context: Any, tag: Any, block: Any, to: Any, source: Any, start: Any, length: Any
) -> Any:
    """block[to + i] = it combined with source[start + i] for all i < length."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        step = _Step(codegen, builder, signature, arguments)
        _vectors_joined(step, [step.row(arguments[4])], arguments[5])
        return codegen.get_dummy_value()

    return types.void(tag, block, types.intp, source, types.intp, types.intp), write


@emitted
def _combine_rows(
    context: Any,
    tag: Any,
    block: Any,
    to: Any,
    source: Any,
    start: Any,
    length: Any,
    offsets: Any,
    begin: Any,
    end: Any,
    ahead: Any,
) -> Any:
    """The same for the rows at start + offsets[j], begin <= j < end.

    Memory is asked for ``ahead`` bytes before it is read.
    """

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        step = _Step(codegen, builder, signature, arguments)
        for rows in _groups_of_rows(step, CONTIGUOUS_GROUP):
            _vectors_joined(step, rows, arguments[5], arguments[9])
        return codegen.get_dummy_value()

    words = [types.intp] * 2
    return types.void(tag, block, types.intp, source, *words, offsets, *words, types.intp), write


@emitted
def _combine_tabulated(
    context: Any,
    tag: Any,
    block: Any,
    to: Any,
    source: Any,
    start: Any,
    length: Any,
    offsets: Any,
    begin: Any,
    end: Any,
) -> Any:
    """The same where offsets[i] says how far element i of a row is from the first."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        step = _Step(codegen, builder, signature, arguments)
        table = arguments[6]
        for rows in _groups_of_rows(step, TABULATED_GROUP):
            with cgutils.for_range(builder, arguments[5], intp=arguments[5].type) as loop:
                offset = builder.load(builder.gep(table, [loop.index]))
                step.combine(rows, loop.index, offset, 1)
        return codegen.get_dummy_value()

    words = [types.intp] * 2
    return types.void(tag, block, types.intp, source, *words, offsets, *words), write


def _groups_of_rows(step: "_Step", most: int) -> Iterator[list[Any]]:
    """For each size of a group of rows the pointers to its rows, where code for it shall stand.

    Accumulators are loaded and stored once for a group.
    """
    builder = step.builder
    start, table, begin, end = (step.arguments[at] for at in (4, 6, 7, 8))
    word = begin.type

    def pointers(first: Any, size: int) -> list[Any]:
        places = [builder.gep(table, [builder.add(first, word(at))]) for at in range(size)]
        return [step.row(builder.add(start, builder.load(place))) for place in places]

    count = builder.sub(end, begin)
    with cgutils.for_range(builder, builder.udiv(count, word(most)), intp=word) as loop:
        yield pointers(builder.add(begin, builder.mul(loop.index, word(most))), most)
    left = builder.urem(count, word(most))
    for size in range(1, most):
        with builder.if_then(builder.icmp_unsigned("==", left, word(size))):
            yield pointers(builder.sub(end, word(size)), size)


def _vectors_joined(step: "_Step", rows: list[Any], length: Any, ahead: Any = None) -> None:
    """Combine neighbouring elements of rows with neighbouring accumulators."""
    builder, word, lanes = step.builder, length.type, _vector_lanes(step.kind)
    with cgutils.for_range(builder, builder.udiv(length, word(lanes)), intp=word) as loop:
        at = builder.mul(loop.index, word(lanes))
        for row in rows:
            step.ask(ahead, row, at, lanes)
        step.combine(rows, at, at, lanes)
    width = lanes // 2
    while width:  # the rest in halves, quarters, ... of a vector
        with if_bit(builder, length, width):
            at = builder.and_(length, word(-2 * width))
            step.combine(rows, at, at, width)
        width //= 2


@emitted
def _combine_whole(
    context: Any,
    tag: Any,
    block: Any,
    to: Any,
    source: Any,
    start: Any,
    length: Any,
    ahead: Any,
) -> Any:
    """block[to] = it combined with source[start + i] for all i < length."""
    return types.void(tag, block, *_run_of(source)), _writer_of_whole_rows(1)


@emitted
def _combine_pairs(
    context: Any,
    tag: Any,
    block: Any,
    to: Any,
    source: Any,
    start: Any,
    length: Any,
    ahead: Any,
) -> Any:
    """block[to + i % 2] = it combined with source[start + i] for all i < length, an even number."""
    return types.void(tag, block, *_run_of(source)), _writer_of_whole_rows(2)


def _run_of(source: Any) -> tuple[Any, ...]:
    """The types of: place in the block, source, start, length, whether to ask ahead."""
    return types.intp, source, types.intp, types.intp, types.intp


def _writer_of_whole_rows(phase: int) -> Callable[..., Any]:
    """What writes the combination of a row with ``phase`` neighbouring accumulators in turn."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        step = _Step(codegen, builder, signature, arguments)
        lanes = _vector_lanes(step.kind)
        if lanes < phase:
            return codegen.get_dummy_value()  # never planned: complex numbers have no vectors
        total, row = arguments[5], step.row(arguments[4])
        value = _vectors_combined(step, row, total, lanes, ahead=arguments[6])
        width, word = lanes // 2, total.type
        while width >= phase:  # the rest joins while the lanes are halved
            (place,) = _places(step, [step.combined(step.halves(value, 2 * width))])
            with if_bit(builder, total, width):
                rest = step.element(row, builder.and_(total, word(-2 * width)), width)
                builder.store(step.combined([builder.load(place), rest]), place)
            value = builder.load(place)
            width //= 2
        step.join(word(0), value, phase)
        return codegen.get_dummy_value()

    return write


@emitted
def _combine_strided(
    context: Any,
    tag: Any,
    block: Any,
    to: Any,
    source: Any,
    start: Any,
    length: Any,
    stride: Any,
) -> Any:
    """The same with source[start + i * stride]."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        step = _Step(codegen, builder, signature, arguments)
        row = step.row(arguments[4])
        value = _vectors_combined(step, row, arguments[5], 1, stride=arguments[6])
        step.join(arguments[5].type(0), value, 1)
        return codegen.get_dummy_value()

    return types.void(tag, block, types.intp, source, *[types.intp] * 3), write


def _vectors_combined(
    step: "_Step", row: Any, total: Any, lanes: int, stride: Any = None, ahead: Any = None
) -> Any:
    """One vector of all whole vectors of a row, four of them at a time.

    Running values take so many steps only: what they have come to is combined in pairs.
    """
    builder, word = step.builder, total.type
    places = _places(step, [step.neutral(lanes)] * 4)
    pairs = Pairs(builder, step.neutral(lanes), step.combined)

    def join(place: Any, at: Any) -> None:
        at = at if stride is None else builder.mul(at, stride)
        value = step.element(row, at, lanes)
        builder.store(step.combined([builder.load(place), value]), place)

    fours = builder.udiv(total, word(4 * lanes))
    with cgutils.for_range(builder, fours, intp=word) as loop:
        at = builder.mul(loop.index, word(4 * lanes))
        step.ask(ahead, row, at, 4 * lanes)
        for which, place in enumerate(places):
            join(place, builder.add(at, word(which * lanes)))
        with after_steps(builder, loop.index, LONGEST):
            pairs.push([builder.load(place) for place in places])
            for place in places:
                builder.store(step.neutral(lanes), place)
    begin, end = builder.mul(fours, word(4)), builder.udiv(total, word(lanes))
    with cgutils.for_range(builder, builder.sub(end, begin), intp=word) as loop:
        join(places[0], builder.mul(builder.add(begin, loop.index), word(lanes)))
    return pairs.total([builder.load(place) for place in places])


def _places(step: "_Step", values: list[Any]) -> list[Any]:
    """Variables with these values."""
    places: list[Any] = []
    for value in values:
        places.append(cgutils.alloca_once(step.builder, value.type))  # type: ignore[no-untyped-call]
    for place, value in zip(places, values, strict=True):
        step.builder.store(value, place)
    return places


def _vector_lanes(kind: Any) -> int:
    """Elements of a vector; complex ones go one by one."""
    return 1 if kind in types.complex_domain else 8 * VECTOR_BYTES // int(kind.bitwidth)


class _Step:
    """Writes the combination of some neighbouring elements of rows with their accumulators."""

    def __init__(self, codegen: Any, builder: Any, signature: Any, arguments: Any) -> None:
        tag, block, _, source, *_ = signature.args
        self.codegen, self.builder = codegen, builder
        self.operator, self.kind, self.source_kind = _OPERATORS[tag], block.dtype, source.dtype
        self.block = builder.gep(arguments[1], [arguments[2]])
        self.source = arguments[3]
        self.signature, self.arguments = signature, arguments

    def row(self, start: Any) -> Any:
        """The pointer to an element of the source."""
        return self.builder.gep(self.source, [start])

    def combine(self, rows: list[Any], at: Any, source_at: Any, lanes: int) -> None:
        """The rows first: accumulators are waited for, rows are not."""
        value = self.combined([self.element(row, source_at, lanes) for row in rows])
        self.join(at, value, lanes)

    def ask(self, ahead: Any, row: Any, at: Any, lanes: int) -> None:
        """Ask for the lines ``ahead`` bytes beyond these lanes of a row."""
        if ahead is None or self.kind in types.complex_domain:
            return
        builder, word = self.builder, ahead.type
        address = builder.add(builder.ptrtoint(builder.gep(row, [at]), word), ahead)
        for line in range(0, lanes * self.source_kind.bitwidth // 8, LINE):
            prefetch(builder, builder.add(address, word(line)), writes=0, keep=3)

    def join(self, at: Any, value: Any, lanes: int) -> None:
        """Combine a value with its accumulators."""
        new = self.combined([self._load(self.block, at, self.kind, lanes), value])
        self.builder.store(new, *self._place(self.block, at, self.kind, lanes))

    def element(self, row: Any, at: Any, lanes: int) -> Any:
        """Some neighbouring elements of a row, converted."""
        return self._converted(self._load(row, at, self.source_kind, lanes), lanes)

    def combined(self, values: list[Any]) -> Any:
        """Pairs of neighbours made one until one is left."""
        while len(values) > 1:
            pairs = [values[at : at + 2] for at in range(0, len(values), 2)]
            values = [self._pair(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        return values[0]

    def _pair(self, one: Any, two: Any) -> Any:
        return _combined(self.builder, self.operator, self.kind, one, two)

    def neutral(self, lanes: int) -> Any:
        """The neutral element in every lane."""
        value = _neutral_constant(self.codegen, self.builder, self.operator, self.kind)
        return (
            ir.Constant(ir.VectorType(value.type, lanes), [value] * lanes) if lanes > 1 else value
        )

    def halves(self, vector: Any, lanes: int) -> list[Any]:
        """The lower and the upper lanes of a vector."""
        if lanes == 2:
            return [self.builder.extract_element(vector, ir.IntType(32)(at)) for at in (0, 1)]
        half = lanes // 2
        words = ir.VectorType(ir.IntType(32), half)
        masks = [ir.Constant(words, list(range(at, at + half))) for at in (0, half)]
        return [self.builder.shuffle_vector(vector, vector, mask) for mask in masks]

    def _load(self, base: Any, at: Any, kind: Any, lanes: int) -> Any:
        pointer, alignment = self._place(base, at, kind, lanes)
        return self.builder.load(pointer, align=alignment)

    def _place(self, base: Any, at: Any, kind: Any, lanes: int) -> tuple[Any, int]:
        """The pointer to a vector, and what its address is a multiple of."""
        pointer = self.builder.gep(base, [at])
        if lanes > 1:
            vector = _vector(self.codegen, kind, lanes)
            pointer = self.builder.bitcast(pointer, vector.as_pointer())
        parts = 2 if kind in types.complex_domain else 1
        return pointer, kind.bitwidth // 8 // parts

    def _converted(self, value: Any, lanes: int) -> Any:
        one, two, builder = self.source_kind, self.kind, self.builder
        if one == two:
            return value
        if lanes == 1:
            return self.codegen.cast(builder, value, one, two)
        vector = _vector(self.codegen, two, lanes)
        if isinstance(one, types.Float):
            return builder.fpext(value, vector)
        if isinstance(two, types.Float):
            return (builder.sitofp if one.signed else builder.uitofp)(value, vector)
        return (builder.sext if one.signed else builder.zext)(value, vector)


def _vector(codegen: Any, kind: Any, lanes: int) -> Any:
    return ir.VectorType(codegen.get_value_type(kind), lanes)


def _combined(builder: Any, operator: BinaryOperator, kind: Any, one: Any, two: Any) -> Any:
    """Scalars or vectors combined."""
    if kind in types.complex_domain:
        return _combined_complex(builder, operator, one, two)
    exact = isinstance(kind, types.Integer)
    if operator is BinaryOperator.ADD:
        return (builder.add if exact else builder.fadd)(one, two)
    if operator is BinaryOperator.MUL:
        return (builder.mul if exact else builder.fmul)(one, two)
    sign = ">" if operator is BinaryOperator.MAX else "<"
    if exact:
        compare = builder.icmp_signed if kind.signed else builder.icmp_unsigned
        return builder.select(compare(sign, one, two), one, two)
    # The processor's maximum is its second operand where either is NaN: right for ``two``.
    best = builder.select(builder.fcmp_ordered(sign, one, two), one, two)
    return builder.select(builder.fcmp_unordered("uno", one, one), one, best)


def _combined_complex(builder: Any, operator: BinaryOperator, one: Any, two: Any) -> Any:
    """The sum, or the product with exactly 1 left out, which would make NaN of infinities."""
    a, b = (builder.extract_value(one, part) for part in (0, 1))
    c, d = (builder.extract_value(two, part) for part in (0, 1))
    if operator is BinaryOperator.ADD:
        real, imaginary = builder.fadd(a, c), builder.fadd(b, d)
    else:
        real = builder.fsub(builder.fmul(a, c), builder.fmul(b, d))
        imaginary = builder.fadd(builder.fmul(a, d), builder.fmul(b, c))
        for (x, y), (u, v) in (((c, d), (a, b)), ((a, b), (c, d))):
            is_one = builder.and_(
                builder.fcmp_ordered("==", x, x.type(1.0)),
                builder.fcmp_ordered("==", y, y.type(0.0)),
            )
            real, imaginary = builder.select(is_one, u, real), builder.select(is_one, v, imaginary)
    result = builder.insert_value(one, real, 0)
    return builder.insert_value(result, imaginary, 1)


# --- the kernel -----------------------------------------------------------------------------


def combined(operator: str, source: str, target: str) -> Code:
    """What is compiled for an operator and two types: ``combine``."""
    kinds = from_dtype(np.dtype(source)), from_dtype(np.dtype(target)), types.int64
    one, two, table = (types.CPointer(kind) for kind in kinds)  # type: ignore[no-untyped-call]
    tag = from_dtype(TAGS[BinaryOperator[operator]].dtype)
    words = [types.intp] * 4
    return by_c(combine, types.void(tag, two, one, two, *words, table, table))


def combine(
    tag: Any,
    block: Any,
    source: Any,
    target: Any,
    mode: int,
    n: int,
    step: int,
    to_step: int,
    what: Any,
    offsets: Any,
) -> None:
    """What depends on the types: one job for accumulators at ``block``; the others are addresses.

    FILL: n of them with the neutral element. FOLD: ``to_step`` lanes of ``step`` accumulators
    made one, the upper half with the lower one again, for all n. STORE: n of them to the target,
    as often as a second loop says.
    Else every row of a pass is combined with them, n times. All is in one function, as what Numba
    inlines it compiles twice.
    """
    if mode == FILL:
        neutral = _neutral(tag, block)
        for i in range(n):
            block[i] = neutral
        return
    if mode == FOLD:
        at = 0
        while to_step > 1 and at < n:
            half = step * to_step // 2
            while half >= step:
                _combine_run(tag, block, at, block, at + half, half)
                half //= 2
            at += step * to_step
        return
    if mode == STORE:
        for j in range(what[0]):
            a, w = j * what[1], j * what[2]
            if step == 1 and to_step == 1:
                for i in range(n):
                    target[w + i] = block[a + i]
            else:
                for i in range(n):
                    target[w + i * to_step] = block[a + i * step]
        return
    count, tail, begin, end, tail_end, ahead = what[2], what[3], what[4], what[5], what[6], what[9]
    if mode == WHOLE:
        for i in range(n):
            for at in range(begin, end):
                a = i * step + offsets[at]
                _combine_whole(tag, block, i * to_step, source, a, count, ahead)
    elif mode == PAIRS:
        for i in range(n):
            for at in range(begin, end):
                a = i * step + offsets[at]
                _combine_pairs(tag, block, i * to_step, source, a, count, ahead)
    elif mode == STRIDED:
        for i in range(n):
            for at in range(begin, end):
                a = i * step + offsets[at]
                _combine_strided(tag, block, i * to_step, source, a, count, offsets[1])
    else:
        for i in range(n):
            a, w, length, low, high = i * step, i * to_step, count, begin, end
            for _part in range(2 if tail > 0 else 1):  # one place in the code for both lengths
                if mode == CONTIGUOUS:
                    _combine_rows(tag, block, w, source, a, length, offsets, low, high, ahead)
                else:
                    _combine_tabulated(tag, block, w, source, a, length, offsets, low, high)
                length, low, high = tail, end, tail_end


# --- the loops around it, for all types -------------------------------------------------------


@emitted
def _call(
    context: Any,
    rows: Any,
    block: Any,
    source: Any,
    target: Any,
    mode: Any,
    n: Any,
    step: Any,
    to_step: Any,
    what: Any,
    offsets: Any,
) -> Any:
    """``combine``, compiled for some types, at the address ``rows``."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, pointer = ir.IntType(64), ir.IntType(8).as_pointer()
        kinds = [word, *[pointer] * 3, *[word] * 4, *[pointer] * 2]
        function = ir.FunctionType(ir.VoidType(), kinds).as_pointer()
        tag = word(0)  # only its type says something
        given = [tag, *arguments[1:]]
        values = [
            builder.inttoptr(value, kind) if kind == pointer else value
            for value, kind in zip(given, kinds, strict=True)
        ]
        builder.call(builder.inttoptr(arguments[0], function), values)
        return codegen.get_dummy_value()

    return types.void(*[types.intp] * 10), write


@compiled
def reduce_blocks(plan: int, source: int, target: int) -> None:
    """target = source reduced, one block of accumulators after the other; all are addresses."""
    given = carray(integers(plan), NUMBERS)
    rows, one, two, size = given[ROWS], given[READ], given[WRITTEN], given[SIZE]
    phase, steps = given[PHASE], given[STEPS]
    outer_end, store_end, loop_count = given[OUTER_END], given[STORE_END], given[LOOPS]
    loops = plan + 8 * NUMBERS
    at = loops + 8 * LOOP * loop_count
    passes = carray(integers(at), (given[PASSES], PASS))
    offsets = at + 8 * PASS * given[PASSES]
    memory = np.empty(size * two, np.uint8)
    block = memory.ctypes.data
    visits = np.zeros(loop_count, np.int64)
    index = visits.ctypes.data
    s = t = 0
    for _ in range(given[UNITS]):
        _call(rows, block, 0, 0, FILL, size, 0, 0, 0, 0)
        for each in range(given[PASSES]):
            first = source + (s + passes[each, 0]) * one
            _visits(rows, block, two, first, one, loops, passes[each], offsets, index)
        _call(rows, block, 0, 0, FOLD, size, phase, steps, 0, 0)
        _store(rows, block, target + t * two, two, loops, outer_end, store_end, index)
        s, t = advance(loops, 0, outer_end, index, s, t)
    memory[:1], visits[:1] = 0, 0  # Numba frees an array after its last use by name


@compiled
def _count(loops: int, begin: int, end: int) -> int:
    """Visits of loops begin..end."""
    count = 1
    for at in range(begin, end):
        count *= load(loops + 8 * LOOP * at, 0)
    return count


@compiled
def _visits(
    rows: int,
    block: int,
    two: int,
    source: int,
    one: int,
    loops: int,
    what: Array,
    offsets: int,
    index: int,
) -> None:
    """Combine every row of a pass with its accumulators."""
    s = to = 0
    first, end, where = what[7], what[8], what.ctypes.data
    loop = loops + 8 * LOOP * first
    n, step, to_step = load(loop, 0), load(loop, 1), load(loop, 2)
    for _ in range(_count(loops, first + 1, end)):
        there, here = source + s * one, block + to * two
        _call(rows, here, there, 0, what[1], n, step, to_step, where, offsets)
        s, to = advance(loops, first + 1, end, index, s, to)


@compiled
def _store(
    rows: int,
    block: int,
    target: int,
    two: int,
    loops: int,
    begin: int,
    end: int,
    index: int,
) -> None:
    """Write the results, the loop with the smallest step in the target innermost."""
    loop, second = loops + 8 * LOOP * begin, loops + 8 * LOOP * (begin + 1)
    n, step, to_step = load(loop, 0), load(loop, 1), load(loop, 2)
    w = t = 0
    for _ in range(_count(loops, begin + 2, end)):
        _call(rows, block + w * two, 0, target + t * two, STORE, n, step, to_step, second, 0)
        w, t = advance(loops, begin + 2, end, index, w, t)


# --- jobs for several threads -----------------------------------------------------------------


def _part(given: int, begin: int, end: int, lane: int) -> None:
    """Jobs begin..end; given are the addresses of their table, source and target."""
    source, target = load(given, 1), load(given, 2)
    for at in range(begin, end):
        job = load(given, 0) + 8 * JOB * at
        reduce_blocks(load(job, 0), source + load(job, 1), target + load(job, 2))


def part() -> Code:
    """What a thread of a team does."""
    return by_integers(_part, PART_ARGUMENTS)


@called
def _reduce(plan: int, source: int, target: int) -> None:
    """All of a plan, by one thread."""
    reduce_blocks(plan, source, target)


def reduce_all() -> Code:
    """What Python calls for all of a plan."""
    return from_python(_reduce, *[types.intp] * 3)
