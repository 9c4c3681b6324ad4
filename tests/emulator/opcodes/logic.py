"""Bits, comparisons and selection."""

from ..ptx import Instruction, Pair
from .arithmetic import expression
from .code import BITS, INTS, Code, result_type
from .table import handles


def _enter(template: str, *patterns: str) -> None:
    handles(*patterns)(expression(template))


for _name, _sign in (("and", "&"), ("or", "|"), ("xor", "^")):
    _enter(f"{{0}} {_sign} {{1}}", f"{_name}.{{pred,{BITS}}}")
_enter("~{0}", f"not.{{{BITS}}}")
_enter("!{0}", "not.pred")
_enter("{0} == 0", f"cnot.{{{BITS}}}")
_enter("logic3({0}, {1}, {2}, {3})", "lop3.b32")
_enter("permute_bytes({0}, {1}, {2})", "prmt.b32")
_enter("reverse_bits({0})", "brev.{b32,b64}")
_enter("funnel_left({0}, {1}, {2} & 31)", "shf.l.wrap.b32")
_enter("funnel_left({0}, {1}, {2} < 32 ? {2} : 32)", "shf.l.clamp.b32")
_enter("funnel_right({0}, {1}, {2} & 31)", "shf.r.wrap.b32")
_enter("funnel_right({0}, {1}, {2})", "shf.r.clamp.b32")


def _shifts(name: str, function: str, types: str) -> None:
    @handles(f"{name}.{{{types}}}")
    def shift(instruction: Instruction, code: Code) -> str:
        kind = result_type(instruction)
        target, source, count = instruction.operands
        result = f"{function}({code.value(source, kind)}, {code.value(count, 'u32')})"
        return code.assign(target, kind, result)


_shifts("shl", "shift_left", BITS)
_shifts("shr", "shift_right", f"{BITS},{INTS}")


def _counts(name: str, function: str, types: str) -> None:
    @handles(f"{name}.{{{types}}}")
    def count(instruction: Instruction, code: Code) -> str:
        source = code.value(instruction.operands[1], result_type(instruction))
        return code.assign(instruction.operands[0], "u32", f"{function}({source})")


_counts("popc", "__builtin_popcountll", "b32,b64")
_counts("clz", "leading_zeros", "b32,b64")
_counts("bfind", "highest_bit", "u32,s32,u64,s64")
_counts("bfind.shiftamt", "highest_bit_shift", "u32,s32,u64,s64")


@handles("bfe.{u32,s32,u64,s64}")
def extract(instruction: Instruction, code: Code) -> str:
    """A field of bits, moved to the bottom."""
    kind = result_type(instruction)
    target, source, *field = instruction.operands
    rest = ", ".join(code.value(operand, "u32") for operand in field)
    return code.assign(target, kind, f"bit_field_extract({code.value(source, kind)}, {rest})")


@handles("bfi.{b32,b64}")
def insert(instruction: Instruction, code: Code) -> str:
    """Bits put into a field."""
    kind = result_type(instruction)
    target, source, into, *field = instruction.operands
    rest = ", ".join(code.value(operand, "u32") for operand in field)
    values = f"{code.value(source, kind)}, {code.value(into, kind)}"
    return code.assign(target, kind, f"bit_field_insert({values}, {rest})")


_ORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
# The unordered comparison is true where its ordered opposite is false.
_OPPOSITE = {"equ": "!=", "neu": "==", "ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}


def _compare(name: str, left: str, right: str, floating: bool) -> str:
    if name == "num":
        return f"({left} == {left} && {right} == {right})"
    if name == "nan":
        return f"({left} != {left} || {right} != {right})"
    if name == "neu":
        return f"!({left} == {right})"
    if name == "ne" and floating:  # ordered: false for a NaN
        return f"({left} < {right} || {left} > {right})"
    if name in _OPPOSITE:
        opposite = f"{left} < {right} || {left} > {right}"
        return f"!({opposite if name == 'equ' else f'{left} {_OPPOSITE[name]} {right}'})"
    return f"({left} {(_ORDERED | _UNSIGNED)[name]} {right})"


_COMPARISONS = ",".join(_ORDERED | _UNSIGNED)
_FLOATING = ",".join([*_ORDERED, *_OPPOSITE, "num", "nan"])


@handles(
    f"setp.{{{_COMPARISONS}}}{{,.and,.or,.xor}}.{{{INTS},{BITS}}}",
    f"setp.{{{_FLOATING}}}{{,.and,.or,.xor}}{{,.ftz}}.{{f32,f64,f16,bf16}}",
)
def set_predicate(instruction: Instruction, code: Code) -> str:
    """``p|q = (a compared to b) op c``; q takes the opposite comparison."""
    kind, modifiers = result_type(instruction), instruction.modifiers
    target, left, right, *extra = instruction.operands
    sides = [code.value(left, kind), code.value(right, kind)]
    if "ftz" in modifiers:
        sides = [f"flush({side})" for side in sides]
    test = _compare(modifiers[1], sides[0], sides[1], floating="f" in kind)
    sign = {"and": "&", "or": "|", "xor": "^"}.get(modifiers[2])
    combine = f" {sign} {code.value(extra[0], 'pred')}" if sign else ""
    if isinstance(target, Pair):
        first = code.assign(target.first, "pred", f"test{combine}")
        return f"bool test = {test}; {first} " + code.assign(
            target.second, "pred", f"!test{combine}"
        )
    return code.assign(target, "pred", f"{test}{combine}")


@handles(f"selp.{{{INTS},{BITS},f32,f64}}")
def select(instruction: Instruction, code: Code) -> str:
    """``d = c ? a : b``."""
    kind = result_type(instruction)
    target, yes, no, predicate = instruction.operands
    choice = f"{code.value(yes, kind)} : {code.value(no, kind)}"
    return code.assign(target, kind, f"{code.value(predicate, 'pred')} ? {choice}")


@handles("slct.{b32,u32,s32,f32,b64,f64}.s32")
def select_sign(instruction: Instruction, code: Code) -> str:
    """``d = c >= 0 ? a : b``."""
    kind = instruction.modifiers[1]
    target, yes, no, sign = instruction.operands
    choice = f"{code.value(yes, kind)} : {code.value(no, kind)}"
    return code.assign(target, kind, f"{code.value(sign, 's32')} >= 0 ? {choice}")


@handles("testp.{finite,infinite,number,notanumber,normal,subnormal}.{f32,f64}")
def classify(instruction: Instruction, code: Code) -> str:
    """What sort of number it is."""
    tests = {
        "finite": "is_finite({})",
        "infinite": "is_infinite({})",
        "number": "!is_nan({})",
        "notanumber": "is_nan({})",
        "normal": "is_normal({})",
        "subnormal": "is_subnormal({})",
    }
    source = code.value(instruction.operands[1], result_type(instruction))
    test = tests[instruction.modifiers[1]].format(source)
    return code.assign(instruction.operands[0], "pred", test)
