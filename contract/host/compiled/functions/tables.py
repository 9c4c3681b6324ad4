"""Memory as compiled functions see it: tables of integers, read by the names of their entries.

A table is declared once, as a NamedTuple: Python packs one into an array of integers, compiled code
reads ``table(Fields, address).entry``, and further entries may follow.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.np.numpy_support import from_dtype

from contract.host.compiled.functions.tools import compiled
from contract.host.compiled.functions.vector_ir import (
    WORD,
    Tag,
    Word,
    Words,
    Writer,
    emitted,
    typed_by,
)
from contract.host.compiled.visits import Visit

__all__ = [
    "advance",
    "behind",
    "call_address",
    "call_on_table",
    "elements",
    "fetch",
    "integers",
    "load",
    "size_of",
    "store",
    "table",
]

REGISTERS = 6  # for the arguments of a function, on x86-64


@typed_by
def table(context: Any, fields: Any, address: Any) -> Any:
    """The table at an address whose entries have the names of ``fields``, a NamedTuple."""
    names = fields.instance_class._fields
    record: Any = from_dtype(np.dtype([(name, np.int64) for name in names]))

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[1], codegen.get_value_type(record))

    return record(fields, types.intp), write


@typed_by
def elements(context: Any, kind: Any, address: Any) -> Any:
    """An address as a pointer to elements of the type of ``kind``."""
    pointer: Any = types.CPointer(kind)  # type: ignore[no-untyped-call]

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[1], codegen.get_value_type(pointer))

    return pointer(kind, types.intp), write


@compiled
def integers(address: int) -> Any:
    """An address as a pointer to integers."""
    return elements(np.int64(0), address)


@emitted
def behind(write: Writer, fields: Tag, address: Word, rows: Word) -> Word:
    """Where so many tables of such fields end."""
    size = 8 * len(fields.instance_class._fields)
    return write.plus(address, write.builder.mul(rows, WORD(size)))


@emitted
def load(write: Writer, table: Word, at: Word) -> Word:
    """Entry ``at`` of a table of integers, given by its address."""
    return write.entry(table, at)


@emitted
def store(write: Writer, table: Word, at: Word, value: Word) -> None:
    """Write entry ``at`` of a table of integers."""
    write.builder.store(value, write.builder.gep(write.pointer(table, WORD), [at]))


@emitted
def size_of(write: Writer, kind: Tag) -> Word:
    """Bytes of an element."""
    return WORD(kind.bitwidth // 8)


@emitted
def fetch(write: Writer, address: Word) -> None:
    """Ask for the line at an address, to read it."""
    write.fetch(address)


@emitted
def call_address(write: Writer, function: Word, arguments: Words) -> None:
    """Call the function at an address on integers, a few: others would lie on the stack.

    From there they would be moved on several at once, for which the processor waits until all that
    was written before has reached the cache.
    """
    if len(arguments) > REGISTERS:
        raise TypeError(f"{len(arguments)} arguments, {REGISTERS} at most: use call_on_table")
    kind = ir.FunctionType(ir.VoidType(), [WORD] * len(arguments))
    write.builder.call(write.pointer(function, kind), arguments)


@emitted
def call_on_table(write: Writer, function: Word, entries: Words) -> None:
    """Call the function at an address on the address of a table of integers."""
    builder = write.builder
    made = cgutils.alloca_once(builder, WORD, size=len(entries))  # type: ignore[no-untyped-call]
    for at, entry in enumerate(entries):
        builder.store(entry, builder.gep(made, [WORD(at)]))
    kind = ir.FunctionType(ir.VoidType(), [WORD])
    builder.call(write.pointer(function, kind), [builder.ptrtoint(made, WORD)])


@compiled
def advance(loops: int, begin: int, end: int, index: int, s: int, t: int) -> tuple[int, int]:
    """The offsets of the next visit of loops begin..end; after the last one the first ones.

    ``loops``, a table of Visits, and ``index``, where each loop is, are addresses: arrays would be
    passed on the stack.
    """
    for at in range(begin, end):
        loop = table(Visit, behind(Visit, loops, at))
        here = load(index, at) + 1
        left = loop.extent - here
        if left > 0:
            store(index, at, here)
            s, t = s + loop.one, t + loop.two
            if left == 1:
                s, t = s - loop.clip_one, t - loop.clip_two
            break
        store(index, at, 0)
        s -= (loop.extent - 1) * loop.one - loop.clip_one
        t -= (loop.extent - 1) * loop.two - loop.clip_two
    return s, t
