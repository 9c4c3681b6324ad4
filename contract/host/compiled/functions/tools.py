"""How functions are compiled with Numba: what every module of compiled kernels shares."""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.sigutils import normalize_signature
from numba.extending import intrinsic

from contract.host.compiled.functions.code_folder import chosen_folder, kept_code, remove_folder
from contract.support.forks import hold_during_forks

__all__ = [
    "LONGEST",
    "LOOP",
    "Code",
    "FromPython",
    "NotKeptError",
    "Pairs",
    "advance",
    "after_steps",
    "by_c",
    "by_integers",
    "call_address",
    "call_on_table",
    "called",
    "chosen_folder",
    "compiled",
    "emitted",
    "entry",
    "from_python",
    "if_bit",
    "integers",
    "kept",
    "load",
    "made",
    "prefetch",
    "remove_folder",
    "store",
]

hold_during_forks(global_compiler_lock)

REGISTERS = 6  # for the arguments of a function, on x86-64
LOOP = 5  # numbers of a loop: its extent, steps and clips of two operands
LONGEST = 32  # steps of a running value, a power of two: rounding errors grow with them
MOST_LEVELS = 48  # of pairs: as many steps as there can be
WORD = ir.IntType(64)

Function = TypeVar("Function", bound=Callable[..., Any])


_OPTIONS: dict[str, Any] = {"error_model": "numpy"}  # nobody would hear of an exception


class ByC(NamedTuple):
    """A function that compiled code calls by its address, as C would."""

    function: Callable[..., None]
    signature: Any


class FromPython(NamedTuple):
    """Functions that Python calls, each with the types of its arguments."""

    functions: tuple[tuple[Any, tuple[Any, ...]], ...]


Code = ByC | FromPython
_kept_alive: list[Any] = []  # functions that are called by address


class NotKeptError(Exception):
    """Nothing on disk has what was asked for."""


def compiled(function: Function) -> Function:
    """``function`` as compiled code calls it, compiled again in every process that compiles."""
    alone: dict[str, Any] = {
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }  # a fifth of the time
    return cast(Function, numba.njit(**_OPTIONS, **alone)(function))


def called(function: Function) -> Function:
    """``function`` as Python calls it, without the GIL; it is kept on disk."""
    dispatcher = numba.njit(**_OPTIONS, nogil=True)(function)
    dispatcher._cache = kept_code(function)
    return cast(Function, dispatcher)


def by_integers(function: Callable[..., None], arguments: int) -> Code:
    """A function of so many integers, by its address."""
    return by_c(function, types.void(*[types.intp] * arguments))


def by_c(function: Callable[..., None], signature: Any) -> Code:
    """A function as C calls it, by its address."""
    return ByC(getattr(function, "py_func", function), signature)


def from_python(function: Callable[..., Any], *kinds: Any) -> Code:
    """A function that is ``called``, for such arguments."""
    return FromPython(((function, kinds),))


def kept(code: Code) -> Any:
    """An address, or functions, as they lie on disk; NotKeptError if they do not."""
    match code:
        case ByC():
            return _address(_KeptFunction, code)
        case FromPython():
            for function, kinds in code.functions:
                if kinds not in function.overloads and not _is_kept(function, kinds):
                    raise NotKeptError
            return made(code)


def made(code: Code) -> Any:
    """The same, compiled now if it has to be, and kept on disk from then on."""
    match code:
        case ByC():
            return _address(CFunc, code)
        case FromPython():
            for function, kinds in code.functions:
                function.compile(kinds)
            return code.functions[0][0]


class _KeptFunction(CFunc):
    """A function that is read from disk and never compiled."""

    def _compile_uncached(self) -> NoReturn:
        raise NotKeptError


def _address(kind: Callable[..., Any], code: ByC) -> int:
    signature = normalize_signature(code.signature)  # type: ignore[no-untyped-call]
    function = kind(code.function, signature, locals={}, options=_OPTIONS)
    function._cache = kept_code(code.function)
    function.compile()
    _kept_alive.append(function)
    return cast(int, function.address)


def _is_kept(function: Any, kinds: tuple[Any, ...]) -> bool:
    return function._cache.load_overload(kinds, function.targetctx) is not None


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
