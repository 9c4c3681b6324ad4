"""Extended arithmetic: instructions joined by the carry flag, a variable of each function."""

from ..ptx import Instruction, type_bytes
from .code import Code, result_type
from .table import handles

_TYPES = "{u32,s32,u64,s64}"


@handles(f"add.cc.{_TYPES}", f"addc{{,.cc}}.{_TYPES}")
def add(instruction: Instruction, code: Code) -> str:
    """``d = a + b (+ carry)``."""
    left, right = _unsigned(instruction, code)
    return _write(instruction, code, f"(unsigned __int128){left} + {right}")


@handles(f"sub.cc.{_TYPES}", f"subc{{,.cc}}.{_TYPES}")
def subtract(instruction: Instruction, code: Code) -> str:
    """``d = a - b (- carry)``: the flag is the borrow."""
    left, right = _unsigned(instruction, code)
    return _write(instruction, code, f"(unsigned __int128){left} - {right}")


@handles(f"mad.{{lo,hi}}.cc.{_TYPES}", f"madc.{{lo,hi}}{{,.cc}}.{_TYPES}")
def multiply_add(instruction: Instruction, code: Code) -> str:
    """``d = half of a b, + c (+ carry)``."""
    kind = result_type(instruction)
    signed = [code.value(operand, kind) for operand in instruction.operands[1:3]]
    left, right, addend = _unsigned(instruction, code)
    low = f"({_c(kind)})({left} * {right})"
    product = f"({_c(kind)})mul_hi({', '.join(signed)})" if "hi" in instruction.modifiers else low
    return _write(instruction, code, f"(unsigned __int128){product} + {addend}")


def _c(kind: str) -> str:
    return f"uint{type_bytes(kind) * 8}_t"


def _unsigned(instruction: Instruction, code: Code) -> list[str]:
    kind = f"u{result_type(instruction)[1:]}"
    return [f"({code.value(operand, kind)})" for operand in instruction.operands[1:]]


def _write(instruction: Instruction, code: Code, formula: str) -> str:
    """The low bits into the result, the bit above them into the flag."""
    kind, name = result_type(instruction), instruction.modifiers[0]
    sign = "-" if name.startswith("sub") else "+"
    taken = f" {sign} carry" if name in ("addc", "subc", "madc") else ""
    keep = f"carry = wide >> {type_bytes(kind) * 8} & 1; " if "cc" in instruction.modifiers else ""
    result = code.assign(instruction.operands[0], f"u{kind[1:]}", f"({_c(kind)})wide")
    return f"unsigned __int128 wide = {formula}{taken}; {keep}{result}"
