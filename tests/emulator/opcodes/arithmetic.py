"""Integer and floating-point arithmetic."""

from ..ptx import Instruction, type_bytes
from .code import INTS, Code, c_type, result_type
from .table import Writer, handles

_ROUNDING = {"rz": "ZERO", "rm": "DOWN", "rp": "UP"}
_WIDE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}


def expression(template: str) -> Writer:
    """A writer of ``d = template``, where {0}, {1}, ... are the sources and {T} their C++ type.

    Modifiers every floating-point instruction may have are applied around it: .ftz flushes the
    operands and the result, .sat clamps to [0, 1], .rz, .rm and .rp change how it is rounded.
    """

    def write(instruction: Instruction, code: Code) -> str:
        kind, modifiers = result_type(instruction), instruction.modifiers
        sources = [code.value(operand, kind) for operand in instruction.operands[1:]]
        if "ftz" in modifiers:
            sources = [f"flush({source})" for source in sources]
        directed = next((_ROUNDING[m] for m in modifiers if m in _ROUNDING), None)
        if directed:
            sources = [*sources, "0", "0"][:3]
            function = f"[](auto x, auto y, auto z) {{ return {template.format('x', 'y', 'z')}; }}"
            arguments = f"Round::{directed}, {', '.join(sources)}, {function}"
            result = f"directed<{c_type(kind)}>({arguments})"
        else:
            result = template.format(*(f"({source})" for source in sources))
        return code.assign(instruction.operands[0], kind, _finish(result, modifiers))

    return write


def _finish(result: str, modifiers: tuple[str, ...]) -> str:
    if "ftz" in modifiers:
        result = f"flush({result})"
    return f"clamp_unit({result})" if "sat" in modifiers else result


def _enter(template: str, *patterns: str) -> None:
    handles(*patterns)(expression(template))


def _binary(name: str, template: str) -> None:
    """add, sub and mul of floating-point numbers."""
    rounding = "{,.rn,.rz,.rm,.rp}"
    _enter(template, f"{name}{rounding}{{,.ftz}}{{,.sat}}.f32", f"{name}{rounding}.f64")
    _enter(template, f"{name}{{,.rn}}{{,.sat}}.{{f16,bf16}}")


_binary("add", "{0} + {1}")
_binary("sub", "{0} - {1}")
_binary("mul", "{0} * {1}")
_enter("{0} + {1}", f"add.{{{INTS}}}")
_enter("{0} - {1}", f"sub.{{{INTS}}}")
_enter("{0} * {1}", f"mul.lo.{{{INTS}}}")
_enter("{0} * {1} + {2}", f"mad.lo.{{{INTS}}}")
_enter("mul_hi({0}, {1})", f"mul.hi.{{{INTS}}}")
_enter("mul_hi({0}, {1}) + {2}", f"mad.hi.{{{INTS}}}")
_enter("divide({0}, {1})", f"div.{{{INTS}}}")
_enter("remainder({0}, {1})", f"rem.{{{INTS}}}")
_enter("greatest({0}, {1}) - least({0}, {1}) + {2}", f"sad.{{{INTS}}}")
_enter("0 - {0}", "neg.{s16,s32,s64}")
_enter("{0} < 0 ? 0 - {0} : {0}", "abs.{s16,s32,s64}")
_enter("least({0}, {1})", f"min.{{{INTS}}}")
_enter("greatest({0}, {1})", f"max.{{{INTS}}}")

# One rounding: exact in the wider type where the narrower has no fused form here.
_FMA = "fma({0}, {1}, {2})"
_enter(_FMA, "fma{.rn,.rz,.rm,.rp}{,.ftz}{,.sat}.f32", "fma.{rn,rz,rm,rp}.f64")
_enter("fma((double){0}, (double){1}, (double){2})", "fma.rn{,.sat}.{f16,bf16}")
_enter("{0} / {1}", "div.{rn,rz,rm,rp,approx,full}{,.ftz}.f32", "div.{rn,rz,rm,rp}.f64")
_enter("1 / {0}", "rcp.{rn,rz,rm,rp,approx}{,.ftz}.f32", "rcp.{rn,rz,rm,rp,approx.ftz}.f64")
_enter("sqrt({0})", "sqrt.{rn,rz,rm,rp,approx}{,.ftz}.f32", "sqrt.{rn,rz,rm,rp}.f64")
_enter("1 / sqrt({0})", "rsqrt.approx{,.ftz}.{f32,f64}")
_enter("exp2({0})", "ex2.approx{,.ftz}.f32", "ex2.approx.f16", "ex2.approx.ftz.bf16")
_enter("log2({0})", "lg2.approx{,.ftz}.f32")
_enter("sin({0})", "sin.approx{,.ftz}.f32")
_enter("cos({0})", "cos.approx{,.ftz}.f32")
_enter("tanh({0})", "tanh.approx.{f32,f16,bf16}")
_enter("-{0}", "neg{,.ftz}.f32", "neg.{f64,f16,bf16}")
_enter("fabs({0})", "abs{,.ftz}.f32", "abs.{f64,f16,bf16}")
_enter("copysign({1}, {0})", "copysign.{f32,f64}")
for _name in ("minimum", "maximum"):
    _short = _name[:3]
    _enter(f"{_name}({{0}}, {{1}})", f"{_short}{{,.ftz}}.f32", f"{_short}.{{f64,f16,bf16}}")
    _enter(f"{_name}_nan({{0}}, {{1}})", f"{_short}{{,.ftz}}.NaN.f32")
    _enter(f"{_name}_nan({{0}}, {{1}})", f"{_short}.NaN.{{f16,bf16}}")


@handles("mul.wide.{u16,u32,s16,s32}", "mad.wide.{u16,u32,s16,s32}")
def wide(instruction: Instruction, code: Code) -> str:
    """The whole product, in twice the width."""
    kind = result_type(instruction)
    target, left, right, *rest = instruction.operands
    width = f"{'' if kind[0] == 's' else 'u'}int{type_bytes(kind) * 16}_t"
    result = f"({width}){code.value(left, kind)} * ({width}){code.value(right, kind)}"
    if rest:
        result += f" + {code.value(rest[0], _WIDE[kind])}"
    return code.assign(target, _WIDE[kind], result)


@handles("add.sat.s32", "sub.sat.s32")
def saturating(instruction: Instruction, code: Code) -> str:
    """Clamped to the range of s32."""
    sign = "+" if instruction.modifiers[0] == "add" else "-"
    left, right = (code.value(operand, "s32") for operand in instruction.operands[1:])
    result = f"saturate_s32((int64_t){left} {sign} {right})"
    return code.assign(instruction.operands[0], "s32", result)


_PACKED = {
    "add": "x + y",
    "sub": "x - y",
    "mul": "x * y",
    "fma": "fma((double)x, (double)y, (double)z)",
    "min": "minimum(x, y)",
    "max": "maximum(x, y)",
    "min.NaN": "minimum_nan(x, y)",
    "max.NaN": "maximum_nan(x, y)",
    "neg": "-x",
    "abs": "fabs(x)",
}


@handles(
    *(f"{name}{{,.rn}}.{{f16x2,bf16x2}}" for name in _PACKED),
)
def packed(instruction: Instruction, code: Code) -> str:
    """Two halves at once."""
    kind = result_type(instruction).removesuffix("x2")
    sources = [code.value(operand, "b32") for operand in instruction.operands[1:]]
    sources += ["0u"] * (3 - len(sources))
    name = instruction.modifiers[0] + (".NaN" if "NaN" in instruction.modifiers else "")
    formula = _PACKED[name]
    function = f"[](float x, float y, float z) {{ return (double)({formula}); }}"
    result = f"each_{kind}({', '.join(sources)}, {function})"
    return code.assign(instruction.operands[0], "b32", result)


@handles("dp4a.{s32,u32}.{s32,u32}")
def dot(instruction: Instruction, code: Code) -> str:
    """Four products of bytes, added to the third source."""
    types = ", ".join({"s": "int8_t", "u": "uint8_t"}[m[0]] for m in instruction.modifiers[1:])
    sources = ", ".join(code.value(operand, "u32") for operand in instruction.operands[1:])
    return code.assign(instruction.operands[0], "u32", f"dot_bytes<{types}>({sources})")
