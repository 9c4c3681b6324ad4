"""The vector IR: functions that write LLVM instructions for compiled kernels.

Such a function is ``emitted``. Its Writer writes what all kernels share; Vectors are elements of
one type in a register, complex ones with their parts in turn, as memory holds them. Addresses are
integers, in bytes, and memory need not be aligned.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from inspect import signature
from typing import Annotated, Any, cast

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = [
    "LINE",
    "LONGEST",
    "WORD",
    "Pairs",
    "Tag",
    "Vectors",
    "Word",
    "Words",
    "Writer",
    "emitted",
    "is_complex",
    "part_of",
    "reduced",
    "typed_by",
]

LINE = 64
LONGEST = 32  # steps of a running value, a power of two: rounding errors grow with them
MOST_LEVELS = 48  # of pairs: as many steps as there can be
WORD = ir.IntType(64)
LANE = ir.IntType(32)  # numbers a place in a vector
NEAREST = 3  # of the caches that memory can be asked into, as LLVM counts them

# How the arguments of an emitted function are annotated
Tag = Annotated[Any, "of which the type alone is used"]
Word = Annotated[Any, "an integer, an address mostly"]
Words = Annotated[Any, "a tuple of integers"]


def emitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as instructions that compiled code calls.

    It is called with a Writer, the types of arguments that are Tags, and the values of others. It
    returns a Word if it is annotated so, else nothing.
    """
    _, *marks = (each.annotation for each in signature(function).parameters.values())
    gives = types.intp if signature(function).return_annotation is Word else types.void

    @wraps(function)
    def typed(context: Any, *given: Any) -> Any:
        kinds = [
            types.intp if mark is Word else kind for mark, kind in zip(marks, given, strict=True)
        ]

        def write(codegen: Any, builder: Any, _: Any, values: Any) -> Any:
            writer, each = Writer(codegen, builder), zip(marks, kinds, values, strict=True)
            found = function(writer, *(writer.argument(*one) for one in each))
            return codegen.get_dummy_value() if gives is types.void else found

        return gives(*kinds), write

    return typed_by(typed)


def typed_by(function: Callable[..., Any]) -> Callable[..., Any]:
    """What Numba calls to type a call, and to have its instructions written."""
    return cast(Callable[..., Any], intrinsic(prefer_literal=True)(function))


def is_complex(kind: Any) -> bool:
    """Whether elements have two parts."""
    return kind in types.complex_domain


def part_of(kind: Any) -> Any:
    """The type of an element's parts: the real type of a complex one, else its own."""
    return kind.underlying_float if is_complex(kind) else kind


class Writer:
    """Writes instructions where a call of an emitted function stands."""

    def __init__(self, codegen: Any, builder: Any) -> None:
        self.codegen, self.builder = codegen, builder

    def argument(self, mark: Any, kind: Any, value: Any) -> Any:
        """What an emitted function is given for an argument that is annotated so."""
        if mark is Tag:
            return kind
        if mark is not Words:
            return value
        pairs = ((self.builder.extract_value(value, at), each) for at, each in enumerate(kind))
        return [self.codegen.cast(self.builder, one, each, types.intp) for one, each in pairs]

    def vectors(self, kind: Any, lanes: int, fuses: bool = False) -> "Vectors":
        """Vectors of so many elements."""
        return Vectors(self, kind, lanes, fuses)

    def loaded(self, kind: Any, address: Any) -> tuple["Vectors", Any]:
        """One element, as a vector."""
        one = self.vectors(kind, 1)
        return one, one.load(address)

    def pointer(self, address: Any, kind: Any) -> Any:
        """An address as a pointer to a value."""
        return self.builder.inttoptr(address, kind.as_pointer())

    def entry(self, table: Any, at: int | Any) -> Any:
        """Entry ``at`` of a table of integers."""
        at = WORD(at) if isinstance(at, int) else at
        return self.builder.load(self.builder.gep(self.pointer(table, WORD), [at]))

    def entries(self, table: Any, fields: Any) -> Any:
        """All entries of a table that is declared as these fields."""
        return fields(*(self.entry(table, at) for at in range(len(fields._fields))))

    def plus(self, address: Any, distance: int | Any) -> Any:
        """The address so many bytes further on."""
        distance = WORD(distance) if isinstance(distance, int) else distance
        return self.builder.add(address, distance)

    def least(self, one: Any, two: Any) -> Any:
        """The smaller one of two words."""
        return self.builder.select(self.builder.icmp_signed("<", one, two), one, two)

    def fetch(self, address: Any, size: int = 1, writes: int = 0, keep: int = NEAREST) -> None:
        """Ask for the lines of so many bytes."""
        byte, hint = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, hint, hint, hint])
        ask = self.builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        is_data = 1
        for at in range(0, size, LINE):
            line = self.builder.inttoptr(self.plus(address, at), byte)
            self.builder.call(ask, [line, *(hint(each) for each in (writes, keep, is_data))])

    def call(self, name: str, result: Any, arguments: Sequence[Any]) -> Any:
        """What an intrinsic function of LLVM returns."""
        kind = ir.FunctionType(result, [each.type for each in arguments])
        found = cgutils.get_or_insert_function(self.builder.module, kind, name)  # type: ignore[no-untyped-call]
        return self.builder.call(found, arguments)

    def variable(self, value: Any) -> Any:
        """A variable with this value at first; LLVM keeps it in a register."""
        made = cgutils.alloca_once(self.builder, value.type)  # type: ignore[no-untyped-call]
        self.builder.store(value, made)
        return made

    # --- what runs when: contexts, for code that shall stand there ------------------------------

    def loop(self, count: Any, start: Any = None) -> AbstractContextManager[Any]:
        """From ``start`` or 0 on; the context has the ``index``."""
        return cast(
            AbstractContextManager[Any],
            cgutils.for_range(self.builder, count, start=start, intp=WORD),
        )

    def if_any(self, word: Any) -> AbstractContextManager[Any]:
        """Where a word is not 0."""
        return cast(AbstractContextManager[Any], self.builder.if_then(self._is_any(word)))

    def if_bit(self, word: Any, bit: int) -> AbstractContextManager[Any]:
        """Where a word has this bit."""
        return self.if_any(self.builder.and_(word, WORD(bit)))

    def if_last(self, index: Any, steps: int) -> AbstractContextManager[Any]:
        """At the end of every so many steps of a loop, a power of two."""
        place = self.builder.and_(index, WORD(steps - 1))
        is_last = self.builder.icmp_unsigned("==", place, WORD(steps - 1))
        return cast(AbstractContextManager[Any], self.builder.if_then(is_last, likely=False))

    def ways(self, flag: Any) -> Iterator[bool]:
        """Whether a word is not 0, where code for either shall stand."""
        return self._either(self._is_any(flag))

    def cases(self, word: Any, number: int) -> Iterator[bool]:
        """Whether a word is a number, where code for either shall stand."""
        return self._either(self.builder.icmp_unsigned("==", word, WORD(number)))

    def _either(self, bit: Any) -> Iterator[bool]:
        with self.builder.if_else(bit) as (then, other):
            with then:
                yield True
            with other:
                yield False

    def _is_any(self, word: Any) -> Any:
        return self.builder.icmp_unsigned("!=", word, WORD(0))


class Vectors:
    """Writes arithmetic on vectors of ``lanes`` elements; with ``fuses`` sums take up products."""

    def __init__(self, write: Writer, kind: Any, lanes: int, fuses: bool = False) -> None:
        self.write, self.builder, self.kind, self.lanes = write, write.builder, kind, lanes
        self.part, self.parts = part_of(kind), 1 + is_complex(kind)
        self.exact = isinstance(kind, types.Integer)
        self.flags = ("contract",) if fuses else ()
        self.count = lanes * self.parts  # of numbers
        self.size = kind.bitwidth // 8  # of an element, in bytes
        self.bytes = lanes * self.size
        self.type = ir.VectorType(write.codegen.get_value_type(self.part), self.count)

    def of(self, lanes: int) -> "Vectors":
        """Vectors of another number of the same elements."""
        return Vectors(self.write, self.kind, lanes, bool(self.flags))

    def halves(self) -> Iterator["Vectors"]:
        """Vectors of half as many elements, of a quarter, ... of one."""
        lanes = self.lanes // 2
        while lanes:
            yield self.of(lanes)
            lanes //= 2

    # --- values -----------------------------------------------------------------------------

    def constant(self, numbers: Iterable[Any]) -> Any:
        """A vector of these numbers, which are repeated as needed."""
        codegen, numbers = self.write.codegen, list(numbers)
        made = [codegen.get_constant(self.part, number) for number in numbers]
        return ir.Constant(self.type, made * (self.count // len(made)))

    def zero(self) -> Any:
        return self.constant([0])

    def taken(self, variables: Iterable[Any]) -> list[Any]:
        """What variables hold, which are zero afterwards."""
        values = [self.builder.load(each) for each in variables]
        for each in variables:
            self.builder.store(self.zero(), each)
        return values

    def spread(self, number: Any) -> Any:
        """A number in all places."""
        nothing = ir.Constant(self.type, ir.Undefined)
        return self.shuffled(self.builder.insert_element(nothing, number, LANE(0)), [0])

    # --- memory -----------------------------------------------------------------------------

    def load(self, address: Any, align: int = 1) -> Any:
        return self.builder.load(self.write.pointer(address, self.type), align=align)

    def store(self, value: Any, address: Any, align: int = 1) -> None:
        self.builder.store(value, self.write.pointer(address, self.type), align=align)

    def pass_caches(self, value: Any, address: Any) -> None:
        """Write a whole line to where one begins, past the caches."""
        stored = self.builder.store(value, self.write.pointer(address, self.type), align=LINE)
        hint = self.builder.module.add_metadata([ir.IntType(32)(1)])
        stored.set_metadata("nontemporal", hint)

    def load_spread(self, address: Any) -> Any:
        """One element in all lanes."""
        return self.shuffled(self.of(1).load(address), range(self.parts))

    def load_masked(self, address: Any, mask: Any, otherwise: Any) -> Any:
        """The numbers that a mask says; elsewhere there are those of another vector."""
        place = self.write.pointer(address, self.type)
        align = ir.IntType(32)(self.part.bitwidth // 8)
        name = f"llvm.masked.load.{self._name}.p0"
        return self.write.call(name, self.type, [place, align, mask, otherwise])

    def store_masked(self, value: Any, address: Any, mask: Any) -> None:
        """Write the numbers that a mask says."""
        place = self.write.pointer(address, self.type)
        align = ir.IntType(32)(self.part.bitwidth // 8)
        name = f"llvm.masked.store.{self._name}.p0"
        self.write.call(name, ir.VoidType(), [value, place, align, mask])

    def mask(self, lanes: Sequence[int], begin: Any, end: Any) -> Any:
        """For each number whether its lane, which is given, is in range(begin, end)."""
        kind = ir.VectorType(LANE, len(lanes))
        given, zeros = ir.Constant(kind, list(lanes)), ir.Constant(kind, None)

        def spread(word: Any) -> Any:
            one = self.builder.insert_element(zeros, self.builder.trunc(word, LANE), LANE(0))
            return self.builder.shuffle_vector(one, zeros, zeros)

        is_late = self.builder.icmp_signed(">=", given, spread(begin))
        return self.builder.and_(is_late, self.builder.icmp_signed("<", given, spread(end)))

    @property
    def _name(self) -> str:
        """What LLVM calls the type."""
        return f"v{self.count}{'i' if self.exact else 'f'}{self.part.bitwidth}"

    # --- order ------------------------------------------------------------------------------

    def shuffled(self, value: Any, order: Iterable[int], other: Any = None) -> Any:
        """The numbers of a vector, and of another one behind it, in a repeated order."""
        order = list(order)
        return self._placed(value, order * (self.count // len(order)), other)

    def _placed(self, value: Any, order: list[int], other: Any = None) -> Any:
        mask = ir.Constant(ir.VectorType(LANE, len(order)), order)
        return self.builder.shuffle_vector(value, value if other is None else other, mask)

    def split(self, value: Any) -> list[Any]:
        """The lower and the upper half of a vector."""
        half = self.count // 2
        return [self._placed(value, [*range(at, at + half)]) for at in (0, half)]

    def widened(self, other: "Vectors", value: Any) -> Any:
        """A shorter vector, and zeros."""
        rest = [other.count] * (self.count - other.count)
        return self._placed(value, [*range(other.count), *rest], other.zero())

    def separated(self, value: Any) -> list[Any]:
        """Every second number from the first one on, and the others."""
        return [self._placed(value, [*range(at, self.count, 2)]) for at in (0, 1)]

    def swapped(self, value: Any) -> Any:
        """The parts of every complex number swapped."""
        return self._placed(value, [at ^ 1 for at in range(self.count)])

    def interleaved(self, one: Any, two: Any) -> list[Any]:
        """The elements of two vectors in turn, as two vectors."""
        lanes = [at // 2 + at % 2 * self.lanes for at in range(2 * self.lanes)]
        order = [lane * self.parts + part for lane in lanes for part in range(self.parts)]
        half = self.count
        return [self._placed(one, order[at : at + half], two) for at in (0, half)]

    def transposed(self, rows: list[Any]) -> list[Any]:
        """The columns of a square: each round interleaves row i with row i + half as many."""
        half = self.lanes // 2
        for _ in range(self.lanes.bit_length() - 1):
            pairs = zip(rows[:half], rows[half:], strict=True)
            rows = [each for pair in pairs for each in self.interleaved(*pair)]
        return rows

    def converted(self, source: "Vectors", value: Any) -> Any:
        """A vector of as many elements of another type."""
        real = self.write.vectors(self.part, source.count)
        value = real._cast(source, value)
        if source.parts == self.parts:
            return value
        order = [at // 2 + at % 2 * real.count for at in range(self.count)]
        return self._placed(value, order, real.zero())

    def _cast(self, source: "Vectors", value: Any) -> Any:
        """The same for numbers."""
        one, two, builder = source.part, self.part, self.builder
        if one == two:
            return value
        if not source.exact:
            return (builder.fpext if one < two else builder.fptrunc)(value, self.type)
        if not self.exact:
            return (builder.sitofp if one.signed else builder.uitofp)(value, self.type)
        if one.bitwidth >= two.bitwidth:
            return builder.trunc(value, self.type) if one.bitwidth > two.bitwidth else value
        return (builder.sext if one.signed else builder.zext)(value, self.type)

    # --- arithmetic -------------------------------------------------------------------------

    def sum(self, one: Any, two: Any) -> Any:
        if self.exact:
            return self.builder.add(one, two)
        return self.builder.fadd(one, two, flags=self.flags)

    def product(self, one: Any, two: Any) -> Any:
        if self.parts == 1:
            return self._multiplied(one, two)
        first, second = self._factors(one, two)
        return self.sum(self._multiplied(*first), self._multiplied(*second))

    def added(self, value: Any, one: Any, two: Any) -> Any:
        """value + one * two, a sum for each part."""
        if self.parts == 1:
            return self.sum(value, self._multiplied(one, two))
        for pair in self._factors(one, two):
            value = self.sum(value, self._multiplied(*pair))
        return value

    def fused(self, value: Any, one: Any, two: Any) -> Any:
        """value + one * two of real numbers, rounded once."""
        return self.write.call(f"llvm.fma.{self._name}", self.type, [one, two, value])

    def accumulate(self, variable: Any, one: Any, two: Any) -> None:
        """variable += one * two"""
        self.builder.store(self.added(self.builder.load(variable), one, two), variable)

    def products(self, factors: Iterable[tuple[Any, Any]]) -> Any:
        """The sum of the products of pairs."""
        first, *others = factors
        value = self.product(*first)
        for pair in others:
            value = self.added(value, *pair)
        return value

    def _multiplied(self, one: Any, two: Any) -> Any:
        if self.exact:
            return self.builder.mul(one, two)
        return self.builder.fmul(one, two, flags=self.flags)

    def _factors(self, one: Any, two: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Those whose products sum up to a complex product: (x, re y), (i x, im y)."""
        places = range(self.count)
        real = self._placed(two, [at // 2 * 2 for at in places])
        imaginary = self._placed(two, [at // 2 * 2 + 1 for at in places])
        signed = self.builder.fmul(imaginary, self.constant([-1, 1]))
        return (one, real), (self.swapped(one), signed)


def reduced(values: list[Any], combined: Callable[[Any, Any], Any]) -> Any:
    """Values combined, pairs of neighbours first."""
    while len(values) > 1:
        pairs = [values[at : at + 2] for at in range(0, len(values), 2)]
        values = [combined(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return values[0]


class Pairs:
    """Writes the combination of values in pairs as they come, so that few roundings add up.

    Level i holds the combination of 2^i of them, or nothing, as the bits of their number say.
    """

    def __init__(self, write: Writer, neutral: Any, combined: Callable[[Any, Any], Any]) -> None:
        self.write, self.builder, self.combined = write, write.builder, combined
        room = ir.ArrayType(neutral.type, MOST_LEVELS)
        self.levels = cgutils.alloca_once(self.builder, room)  # type: ignore[no-untyped-call]
        self.value = cgutils.alloca_once(self.builder, neutral.type)  # type: ignore[no-untyped-call]
        self.count = write.variable(WORD(0))

    def push(self, values: list[Any]) -> None:
        """Take the combination of some values as the next one."""
        builder, count = self.builder, self.builder.load(self.count)
        builder.store(reduced(values, self.combined), self.value)
        builder.store(builder.add(count, WORD(1)), self.count)
        with self.write.loop(WORD(MOST_LEVELS)) as level:
            with builder.if_then(builder.not_(self._holds(count, level.index))):
                builder.store(builder.load(self.value), self._place(level.index))
                level.do_break()
            self._join(level.index)

    def total(self, values: list[Any]) -> Any:
        """The combination of all that came, and of these."""
        builder, count = self.builder, self.builder.load(self.count)
        builder.store(reduced(values, self.combined), self.value)
        with builder.if_then(builder.icmp_unsigned("!=", count, WORD(0)), likely=False):
            with self.write.loop(WORD(MOST_LEVELS)) as level:
                with builder.if_then(self._holds(count, level.index)):
                    self._join(level.index)
        return builder.load(self.value)

    def _holds(self, count: Any, level: Any) -> Any:
        return self.builder.trunc(self.builder.lshr(count, level), ir.IntType(1))

    def _join(self, level: Any) -> None:
        one, two = (self.builder.load(at) for at in (self._place(level), self.value))
        self.builder.store(self.combined(one, two), self.value)

    def _place(self, level: Any) -> Any:
        return self.builder.gep(self.levels, [WORD(0), level], inbounds=True)
