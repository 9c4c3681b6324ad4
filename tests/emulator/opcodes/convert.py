"""cvt and mov."""

from ..ptx import Instruction, Operand, Register, Vector, type_bytes
from .code import ALL, Code, c_type, result_type
from .table import handles

_INTEGERS = "u8,u16,u32,u64,s8,s16,s32,s64"
_FLOATS = "f16,bf16,f32,f64"
_ROUND = {"n": "NEAREST", "z": "ZERO", "m": "DOWN", "p": "UP"}


def _mode(instruction: Instruction) -> str:
    """The rounding an opcode names, nearest where it names none."""
    for modifier in instruction.modifiers[1:]:
        if modifier == "rna":
            return "Round::AWAY"
        if modifier in ("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi"):
            return f"Round::{_ROUND[modifier[1]]}"
    return "Round::NEAREST"


def _convert(instruction: Instruction, code: Code, result: str) -> str:
    """Assign, clamped where .sat says so."""
    target, kind = instruction.operands[0], instruction.modifiers[-2]
    if "sat" in instruction.modifiers and kind in _FLOATS.split(","):
        result = f"clamp_unit({result})"
    if kind in ("f16", "bf16"):
        return code.assign(target, "b16", f"to_{kind}({result}, {_mode(instruction)})")
    return code.assign(target, kind, result)


def _source(instruction: Instruction, code: Code) -> str:
    kind = result_type(instruction)
    source = code.value(instruction.operands[1], kind)
    return f"flush({source})" if "ftz" in instruction.modifiers and kind == "f32" else source


@handles(f"cvt{{,.sat}}.{{{_INTEGERS}}}.{{{_INTEGERS}}}")
def between_integers(instruction: Instruction, code: Code) -> str:
    """Truncated, or clamped with .sat."""
    target, kind = instruction.operands[0], instruction.modifiers[-2]
    source = _source(instruction, code)
    if "sat" in instruction.modifiers:
        source = f"saturate<{c_type(kind)}>({source})"
    return code.assign(target, kind, source)


@handles(f"cvt.{{rni,rzi,rmi,rpi}}{{,.ftz}}{{,.sat}}.{{{_INTEGERS}}}.{{{_FLOATS}}}")
def to_integer(instruction: Instruction, code: Code) -> str:
    """Clamped to the range; where 64 bits are involved, NaN gives the highest bit alone."""
    target, (kind, given) = instruction.operands[0], instruction.modifiers[-2:]
    marks = "true" if 8 in (type_bytes(kind), type_bytes(given)) else "false"
    arguments = f"{_source(instruction, code)}, {_mode(instruction)}, {marks}"
    result = f"to_integer<{c_type(kind)}>({arguments})"
    return code.assign(target, kind, result)


@handles(
    f"cvt.rn{{,.sat}}.{{{_FLOATS}}}.{{{_INTEGERS}}}",
    # Through double, which holds these exactly.
    "cvt.{rz,rm,rp}{,.sat}.{f16,bf16,f32,f64}.{u8,u16,u32,s8,s16,s32}",
)
def from_integer(instruction: Instruction, code: Code) -> str:
    """An integer as a floating-point number."""
    kind, source = instruction.modifiers[-2], _source(instruction, code)
    if kind == "f32" and _mode(instruction) != "Round::NEAREST":
        source = f"to_f32({source}, {_mode(instruction)})"
    exact = "double" if kind in ("f16", "bf16") else c_type(kind)
    return _convert(instruction, code, f"({exact}){source}")


@handles(
    f"cvt{{,.rn,.rz,.rm,.rp}}{{,.ftz}}{{,.sat}}.{{{_FLOATS}}}.{{{_FLOATS}}}",
    f"cvt.{{rni,rzi,rmi,rpi}}{{,.ftz}}{{,.sat}}.{{{_FLOATS}}}.{{{_FLOATS}}}",
)
def between_floats(instruction: Instruction, code: Code) -> str:
    """To another format, or to a whole number in the same one."""
    kind, source = instruction.modifiers[-2], _source(instruction, code)
    if any(m in ("rni", "rzi", "rmi", "rpi") for m in instruction.modifiers):
        source = f"round_integer({source}, {_mode(instruction)})"
    elif kind == "f32":
        source = f"to_f32({source}, {_mode(instruction)})"
    if "ftz" in instruction.modifiers and kind == "f32":
        source = f"flush({source})"
    return _convert(instruction, code, source)


@handles("cvt.{rna,rn,rz}.tf32.f32")
def to_tf32(instruction: Instruction, code: Code) -> str:
    """Rounded to ten bits of fraction, still 32 bits wide."""
    source = code.value(instruction.operands[1], "f32")
    result = f"to_tf32({source}, {_mode(instruction)})"
    return code.assign(instruction.operands[0], "b32", result)


@handles("cvt.{rn,rz}{,.relu}.{f16x2,bf16x2}.f32")
def to_pair(instruction: Instruction, code: Code) -> str:
    """Two floats in one register, the first in the upper half."""
    kind = instruction.modifiers[-2].removesuffix("x2")
    halves = []
    for operand in instruction.operands[1:]:
        source = code.value(operand, "f32")
        if "relu" in instruction.modifiers:
            source = f"maximum({source}, 0.f)"
        halves.append(f"(uint32_t)to_{kind}({source}, {_mode(instruction)})")
    return code.assign(instruction.operands[0], "b32", f"{halves[0]} << 16 | {halves[1]}")


@handles(f"mov.{{pred,{ALL}}}")
def move(instruction: Instruction, code: Code) -> str:
    """A copy; from or to a vector it packs or splits, the first item lowest."""
    kind = result_type(instruction)
    target, source = instruction.operands
    if isinstance(target, Vector):
        return _split(code, target.items, source, kind)
    if isinstance(source, Vector):
        return code.assign(target, kind, _pack(code, source.items, kind))
    return code.assign(target, kind, code.value(source, kind))


def _split(code: Code, targets: tuple[Operand, ...], source: Operand, kind: str) -> str:
    bits = type_bytes(kind) * 8 // len(targets)
    parts = [
        code.assign(target, f"b{bits}", f"whole >> {i * bits}") for i, target in enumerate(targets)
    ]
    return f"{c_type(kind)} whole = {code.value(source, kind)}; {' '.join(parts)}"


def _pack(code: Code, sources: tuple[Operand, ...], kind: str) -> str:
    bits, whole = type_bytes(kind) * 8 // len(sources), c_type(kind)
    parts = []
    for i, source in enumerate(sources):
        width = type_bytes(source.type) * 8 if isinstance(source, Register) else bits
        value = code.value(source, f"b{min(width, bits)}")
        parts.append(f"({whole}){value} << {i * bits}")
    return " | ".join(parts)
