"""What compiled products loop by loop are made of: writers of instructions on vectors of elements.

A vector of complex numbers holds their parts in turn, as memory does.
"""

from collections.abc import Iterator
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types

from contract.host.compiled.functions.tools import (
    LONGEST,
    Pairs,
    after_steps,
    emitted,
    entry,
    if_bit,
    prefetch,
)
from contract.planner.host.vector_loops import SPREAD, STRIDED, UNIT, VECTOR_BYTES

__all__ = ["add_products", "clear_row", "dot_product", "spread_row"]

LINE = 64
SUMS = 4  # of a dot product: one alone waits for itself
PAIR = types.UniTuple(types.intp, 2)  # type: ignore[no-untyped-call]


@emitted
def dot_product(
    context: Any,
    kind: Any,
    way_a: Any,
    way_b: Any,
    operands: Any,
    d: Any,
    count: Any,
    steps: Any,
    rows: Any,
    offsets: Any,
    ahead: Any,
) -> Any:
    """d = sum over ``rows`` rows of sum_i a[i] * b[i], i < count.

    Pairs are of A and B: their addresses, the bytes of a step, tables that say how many bytes each
    row is from the first, and how many bytes before it is read memory is asked for, 0: never.
    """

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ways = way_a.literal_value, way_b.literal_value
        *_, operands, d, count, steps, rows, offsets, ahead = arguments
        steps, ahead = _pair(builder, steps), _pair(builder, ahead)
        whole, word = _Vectors(codegen, builder, kind, _lanes(kind, ways)), count.type
        sums = [whole.variable() for _ in range(SUMS)]
        pairs = Pairs(builder, whole.zero(), whole.total)
        with cgutils.for_range(builder, rows, intp=rows.type) as row:
            starts = _starts(builder, operands, offsets, row.index)
            run = _Run(whole, ways, starts, steps)
            groups = builder.udiv(count, word(SUMS * whole.lanes))
            with cgutils.for_range(builder, groups, intp=word) as group:
                first = builder.mul(group.index, word(SUMS * whole.lanes))
                for at, sum_ in enumerate(sums):
                    place = builder.add(first, word(at * whole.lanes))
                    run.ask(place, ahead)
                    whole.accumulate(sum_, *run.factors(place))
                with after_steps(builder, group.index, LONGEST):
                    pairs.push(whole.taken(sums))
            done = builder.mul(groups, word(SUMS))
            vectors = builder.udiv(count, word(whole.lanes))
            with cgutils.for_range(builder, builder.sub(vectors, done), intp=word) as each:
                place = builder.mul(builder.add(done, each.index), word(whole.lanes))
                whole.accumulate(sums[0], *run.factors(place))
            for piece in whole.halves():
                with if_bit(builder, count, piece.lanes):
                    place = builder.and_(count, word(-2 * piece.lanes))
                    mine = _Run(piece, ways, starts, steps)
                    value = whole.widened(piece, piece.products([mine.factors(place)]))
                    builder.store(whole.sum(builder.load(sums[-1]), value), sums[-1])
            with after_steps(builder, row.index, LONGEST):
                pairs.push(whole.taken(sums))
        value = pairs.total([builder.load(each) for each in sums])
        vectors = whole
        for piece in whole.halves():
            value, vectors = piece.total(vectors.split(value)), piece
        vectors.store(value, d)
        return codegen.get_dummy_value()

    word = types.intp
    words = PAIR, word, word, PAIR, word, PAIR, PAIR
    return types.void(kind, way_a, way_b, *words), write


@emitted
def add_products(
    context: Any,
    kind: Any,
    way_a: Any,
    way_b: Any,
    together: Any,
    operands: Any,
    d: Any,
    count: Any,
    steps: Any,
    offsets: Any,
) -> Any:
    """d[i] += sum over a literal number of rows of a[i] * b[i], i < count; d is contiguous.

    Pairs are of A and B: their addresses, the bytes of a step, and tables that say how many bytes
    each row is from the first.
    """

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ways = way_a.literal_value, way_b.literal_value
        *_, operands, d, count, steps, offsets = arguments
        steps = _pair(builder, steps)
        whole = _Vectors(codegen, builder, kind, _lanes(kind, ways))
        word = count.type
        starts = [
            _starts(builder, operands, offsets, word(at)) for at in range(together.literal_value)
        ]

        def add(vectors: "_Vectors", runs: list["_Run"], at: Any) -> None:
            place = builder.add(d, builder.mul(at, word(vectors.size)))
            value = vectors.products([run.factors(at) for run in runs])
            vectors.store(vectors.sum(vectors.load(place), value), place)

        def runs(vectors: "_Vectors") -> list["_Run"]:
            return [_Run(vectors, ways, each, steps) for each in starts]

        mine = runs(whole)
        with cgutils.for_range(builder, builder.udiv(count, word(whole.lanes)), intp=word) as each:
            at = builder.mul(each.index, word(whole.lanes))
            add(whole, mine, at)
        for piece in whole.halves():
            with if_bit(builder, count, piece.lanes):
                add(piece, runs(piece), builder.and_(count, word(-2 * piece.lanes)))
        return codegen.get_dummy_value()

    words = PAIR, types.intp, types.intp, PAIR, PAIR
    return types.void(kind, way_a, way_b, together, *words), write


@emitted
def clear_row(context: Any, kind: Any, to: Any, count: Any) -> Any:
    """Zeros, side by side."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, to, count = arguments
        one = _Vectors(codegen, builder, kind, 1)
        with cgutils.for_range(builder, count, intp=count.type) as each:
            one.store(one.zero(), builder.add(to, builder.mul(each.index, count.type(one.size))))
        return codegen.get_dummy_value()

    return types.void(kind, types.intp, types.intp), write


@emitted
def spread_row(context: Any, kind: Any, source: Any, target: Any, count: Any, step: Any) -> Any:
    """Contiguous elements to places ``step`` bytes apart."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, source, target, count, step = arguments
        one = _Vectors(codegen, builder, kind, 1)
        with cgutils.for_range(builder, count, intp=count.type) as each:
            value = one.load(builder.add(source, builder.mul(each.index, count.type(one.size))))
            one.store(value, builder.add(target, builder.mul(each.index, step)))
        return codegen.get_dummy_value()

    return types.void(kind, *[types.intp] * 4), write


def _pair(builder: Any, packed: Any) -> list[Any]:
    """The values of a pair."""
    return [builder.extract_value(packed, at) for at in range(2)]


def _starts(builder: Any, operands: Any, offsets: Any, row: Any) -> list[Any]:
    """Where a row of each operand begins."""
    pairs = zip(_pair(builder, operands), _pair(builder, offsets), strict=True)
    return [builder.add(operand, entry(builder, table, row)) for operand, table in pairs]


def _lanes(kind: Any, ways: tuple[int, int]) -> int:
    """Elements of a vector: of a line, or one."""
    return 1 if STRIDED in ways else 8 * VECTOR_BYTES // int(kind.bitwidth)


class _Vectors:
    """Writes arithmetic on vectors of some elements."""

    def __init__(self, codegen: Any, builder: Any, kind: Any, lanes: int) -> None:
        self.codegen, self.builder, self.kind, self.lanes = codegen, builder, kind, lanes
        self.parts = 2 if kind in types.complex_domain else 1
        self.part = kind.underlying_float if self.parts == 2 else kind
        self.exact = isinstance(kind, types.Integer)
        self.size = kind.bitwidth // 8
        number = codegen.get_value_type(self.part)
        self.vector = ir.VectorType(number, lanes * self.parts)
        self.element = ir.VectorType(number, self.parts)

    def halves(self) -> Iterator["_Vectors"]:
        """Vectors of half as many elements, of a quarter, ... of one."""
        lanes = self.lanes // 2
        while lanes:
            yield _Vectors(self.codegen, self.builder, self.kind, lanes)
            lanes //= 2

    def zero(self) -> Any:
        """A vector of zeros."""
        number = self.codegen.get_constant(self.part, 0)
        return ir.Constant(self.vector, [number] * (self.lanes * self.parts))

    def variable(self) -> Any:
        """A variable for a vector, zero at first."""
        variable = cgutils.alloca_once(self.builder, self.vector)  # type: ignore[no-untyped-call]
        self.builder.store(self.zero(), variable)
        return variable

    def taken(self, variables: list[Any]) -> list[Any]:
        """What variables hold, which are zero afterwards."""
        values = [self.builder.load(each) for each in variables]
        for each in variables:
            self.builder.store(self.zero(), each)
        return values

    def widened(self, other: "_Vectors", value: Any) -> Any:
        """A shorter vector, and zeros."""
        count = other.lanes * other.parts
        rest = [count] * (self.lanes * self.parts - count)
        return self._shuffled(value, [*range(count), *rest], other.zero())

    def load(self, address: Any) -> Any:
        place = self.builder.inttoptr(address, self.vector.as_pointer())
        return self.builder.load(place, align=1)

    def store(self, value: Any, address: Any) -> None:
        place = self.builder.inttoptr(address, self.vector.as_pointer())
        self.builder.store(value, place, align=1)

    def spread(self, address: Any) -> Any:
        """One element in all lanes."""
        place = self.builder.inttoptr(address, self.element.as_pointer())
        value = self.builder.load(place, align=1)
        return self._shuffled(value, list(range(self.parts)) * self.lanes)

    def split(self, value: Any) -> list[Any]:
        """The lower and the upper half of a vector."""
        half = self.lanes * self.parts // 2
        return [self._shuffled(value, range(at, at + half)) for at in (0, half)]

    def sum(self, one: Any, two: Any) -> Any:
        if self.exact:
            return self.builder.add(one, two)
        return self.builder.fadd(one, two, flags=("contract",))

    def total(self, values: list[Any]) -> Any:
        """The sum of vectors, pairs of neighbours first."""
        while len(values) > 1:
            pairs = [values[at : at + 2] for at in range(0, len(values), 2)]
            values = [self.sum(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        return values[0]

    def accumulate(self, variable: Any, one: Any, two: Any) -> None:
        """variable += one * two"""
        self.builder.store(self._added(self.builder.load(variable), one, two), variable)

    def products(self, factors: list[tuple[Any, Any]]) -> Any:
        """The sum of the products of pairs."""
        (one, two), *others = factors
        value = self._product(one, two)
        for one, two in others:
            value = self._added(value, one, two)
        return value

    def _added(self, value: Any, one: Any, two: Any) -> Any:
        """value + one * two"""
        if self.parts == 1:
            return self.sum(value, self._multiplied(one, two))
        for pair in self._parts(one, two):
            value = self.sum(value, self._multiplied(*pair))
        return value

    def _product(self, one: Any, two: Any) -> Any:
        if self.parts == 1:
            return self._multiplied(one, two)
        first, second = self._parts(one, two)
        return self.sum(self._multiplied(*first), self._multiplied(*second))

    def _multiplied(self, one: Any, two: Any) -> Any:
        if self.exact:
            return self.builder.mul(one, two)
        return self.builder.fmul(one, two, flags=("contract",))

    def _parts(self, one: Any, two: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """The factors whose products sum up to a complex product: (x, re y), (i x, im y)."""
        builder, count = self.builder, self.lanes * self.parts
        real = self._shuffled(two, [at // 2 * 2 for at in range(count)])
        imaginary = self._shuffled(two, [at // 2 * 2 + 1 for at in range(count)])
        signs = [self.codegen.get_constant(self.part, at % 2 * 2 - 1) for at in range(count)]
        signed = builder.fmul(imaginary, ir.Constant(self.vector, signs))
        turned = self._shuffled(one, [at ^ 1 for at in range(count)])
        return (one, real), (turned, signed)

    def _shuffled(self, value: Any, order: Any, other: Any = None) -> Any:
        order = list(order)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order)
        return self.builder.shuffle_vector(value, value if other is None else other, mask)


class _Run:
    """Two operands along a row, each contiguous, the same throughout, or strided."""

    def __init__(
        self,
        vectors: _Vectors,
        ways: tuple[int, int],
        starts: list[Any],
        steps: list[Any],
    ) -> None:
        self.vectors, self.ways, self.starts, self.steps = vectors, ways, starts, steps
        pairs = zip(ways, starts, strict=True)
        self.spread = [vectors.spread(start) if way == SPREAD else None for way, start in pairs]

    def ask(self, at: Any, ahead: list[Any]) -> None:
        """Ask for what lies so many bytes after a place; 0: for nothing."""
        vectors = self.vectors
        builder = vectors.builder
        for way, start, distance in zip(self.ways, self.starts, ahead, strict=True):
            if way != UNIT:
                continue
            with builder.if_then(builder.icmp_signed("!=", distance, distance.type(0))):
                here = builder.add(start, builder.mul(at, at.type(vectors.size)))
                there = builder.add(here, distance)
                for line in range(0, vectors.lanes * vectors.size, LINE):
                    prefetch(builder, builder.add(there, at.type(line)), writes=0, keep=3)

    def factors(self, at: Any) -> tuple[Any, Any]:
        """The vectors at a place."""
        one, two = (self._factor(which, at) for which in range(2))
        return one, two

    def _factor(self, which: int, at: Any) -> Any:
        builder = self.vectors.builder
        if self.spread[which] is not None:
            return self.spread[which]
        step = self.steps[which]
        if self.ways[which] == UNIT:
            step = at.type(self.vectors.size)
        return self.vectors.load(builder.add(self.starts[which], builder.mul(at, step)))
