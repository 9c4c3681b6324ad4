"""Jumps, returns and traps."""

from ..ptx import Instruction, Operand, PtxError, Symbol, Vector
from .code import Code, buffer_name, function_name, label_name
from .table import handles


def _target(operand: object) -> str:
    if not isinstance(operand, Symbol):
        raise PtxError(f"jump to {operand}")
    return operand.name


@handles("bra{,.uni}")
def branch(instruction: Instruction, code: Code) -> str:
    """Jump."""
    return f"goto {label_name(_target(instruction.operands[0]))};"


@handles("brx.idx{,.uni}")
def branch_table(instruction: Instruction, code: Code) -> str:
    """Jump to the label a table holds at an index."""
    index, table = instruction.operands
    labels = code.tables[_target(table)]
    cases = " ".join(f"case {i}: goto {label_name(name)};" for i, name in enumerate(labels))
    return f"switch ({code.value(index, 'u32')}) {{ {cases} }}"


@handles("ret{,.uni}")
def leave(instruction: Instruction, code: Code) -> str:
    """Back to the caller; a kernel's thread ends."""
    return "return;"


@handles("trap", "brkpt", checked=True)
def trap(instruction: Instruction, code: Code) -> str:
    """The kernel gives up."""
    return "trap();"


@handles("call{,.uni}")
def call(instruction: Instruction, code: Code) -> str:
    """A function NVRTC left out of line: results, its name, parameters."""
    results: tuple[Operand, ...] = ()
    parameters: tuple[Operand, ...] = ()
    first, *rest = instruction.operands
    if isinstance(first, Vector):
        results, (first, *rest) = first.items, rest
    if rest and isinstance(rest[0], Vector):
        parameters = rest[0].items
    name = _target(first)
    if name not in code.functions:
        raise PtxError(f"call of {name}, which the module does not define")
    buffers = ", ".join(buffer_name(_target(each)) for each in (*results, *parameters))
    return f"{function_name(name)}({buffers});"
