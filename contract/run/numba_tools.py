"""How functions are compiled with Numba: what every module of compiled kernels shares."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic

from contract.forks import hold_during_forks
from contract.run.apart import apart

__all__ = [
    "LONGEST",
    "LOOP",
    "Pairs",
    "address_for",
    "address_of",
    "advance",
    "after_steps",
    "call_address",
    "call_on_table",
    "compiled",
    "emitted",
    "entry",
    "if_bit",
    "integers",
    "load",
    "prefetch",
    "specialisations",
    "store",
]

hold_during_forks(global_compiler_lock)

REGISTERS = 6  # for the arguments of a function, on x86-64
LOOP = 5  # numbers of a loop: its extent, steps and clips of two operands
LONGEST = 32  # steps of a running value, a power of two: rounding errors grow with them
MOST_LEVELS = 48  # of pairs: as many steps as there can be
WORD = ir.IntType(64)

Function = TypeVar("Function", bound=Callable[..., Any])


_dispatchers: list[Any] = []  # of every function that ``compiled`` has made
_addressed: list[Any] = []  # functions that are called by address, which have to stay


def compiled(function: Function) -> Function:
    """``function`` compiled at its first call, kept on disk, run without the GIL."""
    try:
        dispatcher = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder to keep it in can be written: it is compiled every time
        dispatcher = numba.njit(nogil=True)(function)
    _dispatchers.append(dispatcher)
    return cast(Function, dispatcher)


def address_of(function: Callable[..., None], arguments: int) -> int:
    """Where ``function`` of so many integers lies, compiled now and kept on disk."""
    return address_for(function, types.void(*[types.intp] * arguments))


def address_for(function: Callable[..., None], signature: Any) -> int:
    """Where ``function`` lies, compiled now for these types as C calls it, and kept on disk."""
    function = getattr(function, "py_func", function)
    made = apart(lambda: _called_by_c(function, signature))
    _addressed.append(made)
    return cast(int, made.address)


def _called_by_c(function: Callable[..., None], signature: Any) -> Any:
    try:
        return numba.cfunc(signature, cache=True)(function)
    except RuntimeError:
        return numba.cfunc(signature)(function)


def specialisations() -> int:
    """For how many argument types functions have been compiled, or read from disk, so far."""
    return sum(len(dispatcher.overloads) for dispatcher in _dispatchers) + len(_addressed)


def emitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as a writer of LLVM instructions for compiled code to call."""
    return cast(Callable[..., Any], intrinsic(prefer_literal=True)(function))


def prefetch(builder: Any, address: Any, writes: int, keep: int) -> None:
    """Ask for the line at an address, for the first cache (``keep`` is 3) or the second (2)."""
    byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    data = 1
    hints = (ir.Constant(flag, hint) for hint in (writes, keep, data))
    builder.call(fetch, [builder.inttoptr(address, byte), *hints])


def entry(builder: Any, table: Any, at: Any) -> Any:
    """Entry ``at`` of a table of integers, given by its address."""
    return builder.load(builder.gep(builder.inttoptr(table, table.type.as_pointer()), [at]))


def if_bit(builder: Any, number: Any, bit: int) -> Any:
    """What follows in this context runs where the number has the bit."""
    word = number.type
    return builder.if_then(builder.icmp_unsigned("!=", builder.and_(number, word(bit)), word(0)))


def after_steps(builder: Any, index: Any, number: int) -> Any:
    """What follows in this context runs at the end of every so many steps of a loop."""
    word = index.type
    place = builder.and_(index, word(number - 1))
    return builder.if_then(builder.icmp_unsigned("==", place, word(number - 1)), likely=False)


@emitted
def integers(context: Any, address: Any) -> Any:
    """An address as a pointer to integers."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], codegen.get_value_type(signature.return_type))

    pointer = types.CPointer(types.int64)  # type: ignore[no-untyped-call]
    return pointer(types.intp), write


@emitted
def load(context: Any, table: Any, at: Any) -> Any:
    """Entry ``at`` of a table of integers, given by its address."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return entry(builder, *arguments)

    return types.intp(types.intp, types.intp), write


@emitted
def store(context: Any, table: Any, at: Any, value: Any) -> Any:
    """Write entry ``at`` of a table of integers."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table, at, value = arguments
        place = builder.gep(builder.inttoptr(table, table.type.as_pointer()), [at])
        builder.store(value, place)
        return codegen.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), write


@emitted
def call_address(context: Any, function: Any, arguments: Any) -> Any:
    """Call the function at an address on integers, a few: others would lie on the stack.

    From there they would be moved on several at once, for which the processor waits until all that
    was written before has reached the cache.
    """
    count = len(arguments)
    if count > REGISTERS:
        raise TypeError(f"{count} arguments, {REGISTERS} at most: use call_on_table")

    def write(codegen: Any, builder: Any, signature: Any, given: Any) -> Any:
        function, packed = given
        word = codegen.get_value_type(types.intp)
        kind = ir.FunctionType(ir.VoidType(), [word] * count).as_pointer()
        values = [builder.extract_value(packed, at) for at in range(count)]
        builder.call(builder.inttoptr(function, kind), values)
        return codegen.get_dummy_value()

    words = types.UniTuple(types.intp, count)  # type: ignore[no-untyped-call]
    return types.void(types.intp, words), write


@emitted
def call_on_table(context: Any, function: Any, entries: Any) -> Any:
    """Call the function at an address on the address of a table of integers."""
    count = len(entries)

    def write(codegen: Any, builder: Any, signature: Any, given: Any) -> Any:
        function, packed = given
        word = codegen.get_value_type(types.intp)
        table = cgutils.alloca_once(builder, word, size=count)  # type: ignore[no-untyped-call]
        for at in range(count):
            place = builder.gep(table, [ir.IntType(32)(at)])
            builder.store(builder.extract_value(packed, at), place)
        kind = ir.FunctionType(ir.VoidType(), [word]).as_pointer()
        builder.call(builder.inttoptr(function, kind), [builder.ptrtoint(table, word)])
        return codegen.get_dummy_value()

    words = types.UniTuple(types.intp, count)  # type: ignore[no-untyped-call]
    return types.void(types.intp, words), write


@compiled
def advance(loops: int, begin: int, end: int, index: int, s: int, t: int) -> tuple[int, int]:
    """The offsets of the next visit of loops begin..end; after the last one the first ones.

    ``loops`` and ``index``, where each loop is, are addresses: arrays would be passed on the stack.
    """
    for at in range(begin, end):
        loop = loops + 8 * LOOP * at
        here = load(index, at) + 1
        left = load(loop, 0) - here
        if left > 0:
            store(index, at, here)
            s, t = s + load(loop, 1), t + load(loop, 2)
            if left == 1:
                s, t = s - load(loop, 3), t - load(loop, 4)
            break
        store(index, at, 0)
        s -= (load(loop, 0) - 1) * load(loop, 1) - load(loop, 3)
        t -= (load(loop, 0) - 1) * load(loop, 2) - load(loop, 4)
    return s, t


class Pairs:
    """Writes the combination of values in pairs as they come, so that few roundings add up.

    Level i holds the combination of 2^i of them, or nothing, as the bits of their number say.
    """

    def __init__(self, builder: Any, neutral: Any, combined: Callable[[list[Any]], Any]) -> None:
        self.builder, self.combined = builder, combined
        room = ir.ArrayType(neutral.type, MOST_LEVELS)
        self.levels = cgutils.alloca_once(builder, room)  # type: ignore[no-untyped-call]
        self.value = cgutils.alloca_once(builder, neutral.type)  # type: ignore[no-untyped-call]
        self.count = cgutils.alloca_once(builder, WORD)  # type: ignore[no-untyped-call]
        builder.store(WORD(0), self.count)

    def push(self, values: list[Any]) -> None:
        """Take the combination of some values as the next one."""
        builder, count = self.builder, self.builder.load(self.count)
        builder.store(self.combined(values), self.value)
        builder.store(builder.add(count, WORD(1)), self.count)
        with cgutils.for_range(builder, WORD(MOST_LEVELS), intp=WORD) as level:
            with builder.if_then(builder.not_(self._holds(count, level.index))):
                builder.store(builder.load(self.value), self._place(level.index))
                level.do_break()
            self._join(level.index)

    def total(self, values: list[Any]) -> Any:
        """The combination of all that came, and of these."""
        builder, count = self.builder, self.builder.load(self.count)
        builder.store(self.combined(values), self.value)
        with builder.if_then(builder.icmp_unsigned("!=", count, WORD(0)), likely=False):
            with cgutils.for_range(builder, WORD(MOST_LEVELS), intp=WORD) as level:
                with builder.if_then(self._holds(count, level.index)):
                    self._join(level.index)
        return builder.load(self.value)

    def _holds(self, count: Any, level: Any) -> Any:
        return self.builder.trunc(self.builder.lshr(count, level), ir.IntType(1))

    def _join(self, level: Any) -> None:
        values = [self.builder.load(at) for at in (self._place(level), self.value)]
        self.builder.store(self.combined(values), self.value)

    def _place(self, level: Any) -> Any:
        return self.builder.gep(self.levels, [WORD(0), level], inbounds=True)
