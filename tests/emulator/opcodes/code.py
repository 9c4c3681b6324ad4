"""How PTX operands are written in C++: types, registers, literals, symbols and addresses."""

import functools
import re
from dataclasses import dataclass

from ..ptx import (
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    PtxError,
    Register,
    Special,
    Symbol,
    Vector,
    type_bytes,
)

INTS = "u16,u32,u64,s16,s32,s64"
BITS = "b16,b32,b64"
ALL = "b8,b16,b32,b64,u8,u16,u32,u64,s8,s16,s32,s64,f32,f64"

_SPECIAL = {
    "%tid": "tid({})",
    "%ctaid": "ctaid({})",
    "%ntid": "ntid({})",
    "%nctaid": "nctaid({})",
    "%laneid": "laneid()",
    "%warpid": "warpid()",
    "%nwarpid": "nwarpid()",
    "%lanemask_eq": "(1u << laneid())",
    "%lanemask_lt": "((1u << laneid()) - 1)",
    "%lanemask_le": "(((1u << laneid()) << 1) - 1)",
    "%lanemask_gt": "~(((1u << laneid()) << 1) - 1)",
    "%lanemask_ge": "~((1u << laneid()) - 1)",
    "%dynamic_smem_size": "dynamic_smem_size()",
    "%total_smem_size": "total_smem_size()",
}


@functools.cache
def c_type(name: str) -> str:
    """The C++ type that holds a value of a PTX type; halves are computed in float."""
    match name:
        case "pred":
            return "bool"
        case "f32" | "f16" | "bf16":
            return "float"
        case "f64":
            return "double"
    bits = type_bytes(name) * 8
    return f"int{bits}_t" if name[0] == "s" else f"uint{bits}_t"


@functools.cache
def register_type(name: str) -> str:
    """The C++ type of a register declared with a PTX type."""
    return c_type(name) if name in ("pred", "f32", "f64") else f"uint{type_bytes(name) * 8}_t"


@functools.cache
def register_name(register: Register) -> str:
    """A C++ name no runtime function has."""
    return "R_" + re.sub(r"\W", "_", register.name.lstrip("%"))


def label_name(name: str) -> str:
    """The C++ label of a PTX label."""
    return "L_" + re.sub(r"\W", "_", name)


def buffer_name(name: str) -> str:
    """The C++ array of a parameter or result of a call."""
    return "B_" + re.sub(r"\W", "_", name)


def function_name(name: str) -> str:
    """The C++ function of a kernel or a function."""
    return "F_" + re.sub(r"\W", "_", name)


@dataclass(frozen=True, slots=True)
class Code:
    """Writes the operands of one entry's instructions.

    ``symbols`` maps the names of variables and parameters to C++ expressions of their addresses,
    ``tables`` the names of branch tables to their labels.  ``buffers`` are the parameters and the
    results of calls, ``functions`` what can be called, ``accumulators`` what wgmma writes late.
    """

    symbols: dict[str, str]
    tables: dict[str, tuple[str, ...]]
    buffers: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()
    accumulators: tuple[Register, ...] = ()

    def value(self, operand: Operand, type_name: str) -> str:
        """An expression of ``c_type(type_name)``."""
        match operand:
            case Register():
                return self._register(operand, type_name)
            case Immediate(text):
                return _literal(text, type_name)
            case Special(name):
                return f"({c_type(type_name)}){_special(name)}"
            case Symbol(name):
                return f"({c_type(type_name)}){self.symbol(name)}"
            case Negated(inner):
                return f"!{self.value(inner, type_name)}"
        raise PtxError(f"operand {operand}")

    def values(self, operand: Operand, type_name: str) -> list[str]:
        """The values of a vector's items, or of the one operand."""
        items = operand.items if isinstance(operand, Vector) else (operand,)
        return [self.value(item, type_name) for item in items]

    def assign(self, target: Operand, type_name: str, expression: str) -> str:
        """A statement that sets ``target`` to an expression of ``c_type(type_name)``."""
        if isinstance(target, Symbol) and target.name == "_":
            return f"(void)({expression});"
        if not isinstance(target, Register):
            raise PtxError(f"result {target}")
        name, declared = register_name(target), register_type(target.type)
        if type_name in ("f16", "bf16"):
            return f"{name} = to_{type_name}({expression});"
        given = c_type(type_name)
        if declared != given and {declared, given} & {"float", "double"}:
            return f"{name} = as<{declared}>(({given})({expression}));"
        # Narrow integers fill a wider register with zeros or the sign.
        return f"{name} = ({given})({expression});"

    def address(self, operand: Operand) -> str:
        """The address of ``[base + offset]`` in its space, 64 bits wide."""
        if not isinstance(operand, Address):
            raise PtxError(f"address {operand}")
        base = self.value(operand.base, "u64")
        if isinstance(operand.base, Register) and type_bytes(operand.base.type) == 4:
            base = f"(uint64_t){self.value(operand.base, 'u32')}"
        return f"{base} + {operand.offset}" if operand.offset else base

    def buffer(self, operand: Operand) -> str | None:
        """A pointer into a call's parameter or result, if that is what the address is."""
        match operand:
            case Address(Symbol(name), offset) if name in self.buffers:
                return f"{buffer_name(name)} + {offset}"
        return None

    def symbol(self, name: str) -> str:
        """The address of a variable."""
        if name not in self.symbols:
            raise PtxError(f"unknown symbol {name}")
        return self.symbols[name]

    def _register(self, register: Register, type_name: str) -> str:
        name, declared = register_name(register), register_type(register.type)
        wanted = c_type(type_name)
        if type_name in ("f16", "bf16"):
            return f"from_{type_name}({name})"
        if wanted == declared:
            return name
        if "float" in (wanted, declared) or "double" in (wanted, declared):
            return f"as<{wanted}>({name})"
        return f"({wanted}){name}"


def result_type(instruction: Instruction) -> str:
    """The type an opcode ends with."""
    return instruction.modifiers[-1]


def _special(name: str) -> str:
    base, _, axis = name.partition(".")
    if base not in _SPECIAL:
        raise PtxError(f"special register {name}")
    return _SPECIAL[base].format("xyz".find(axis))


def _literal(text: str, type_name: str) -> str:
    if text[:2] in ("0f", "0F"):
        exact = f"__builtin_bit_cast(float, 0x{text[2:]}u)"
        return exact if c_type(type_name) == "float" else f"({c_type(type_name)})0x{text[2:]}u"
    if text[:2] in ("0d", "0D"):
        return f"__builtin_bit_cast(double, (uint64_t)0x{text[2:]}ull)"
    number = int(text.rstrip("U"), 0)
    if type_name == "pred":
        return "true" if number else "false"
    if type_name in ("f16", "bf16"):
        return f"from_{type_name}({number})"
    if type_name in ("f32", "f64"):
        return f"as<{c_type(type_name)}>(({register_type('b' + type_name[1:])}){number}ull)"
    return f"({c_type(type_name)}){number & 0xFFFFFFFFFFFFFFFF:#x}ull"
