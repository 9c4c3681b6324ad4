"""ldmatrix and mma.sync."""

from ..ptx import Instruction, Operand, Vector
from .code import Code, c_type
from .table import handles


def _lanes(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


@handles("ldmatrix.sync.aligned.m8n8.{x1,x2,x4}{,.trans}.{shared,shared::cta}.b16", checked=True)
def load_matrices(instruction: Instruction, code: Code) -> str:
    """One, two or four 8 x 8 matrices of 16-bit elements."""
    target, address = instruction.operands
    transposed = "true" if "trans" in instruction.modifiers else "false"
    lanes = _lanes(target)
    parts = [code.assign(lane, "b32", f"loaded[{i}]") for i, lane in enumerate(lanes)]
    call = f"load_matrices({len(lanes)}, {transposed}, {code.address(address)}, loaded);"
    return f"uint32_t loaded[4]; {call} {' '.join(parts)}"


_ELEMENTS = {"tf32": "Tf32", "f16": "F16", "bf16": "Bf16", "s8": "S8", "u8": "U8", "f64": "F64"}


@handles(
    "mma.sync.aligned.{m16n8k4,m16n8k8}.row.col.f32.tf32.tf32.f32",
    "mma.sync.aligned.{m16n8k8,m16n8k16}.row.col.f32.f16.f16.f32",
    "mma.sync.aligned.{m16n8k8,m16n8k16}.row.col.f32.bf16.bf16.f32",
    "mma.sync.aligned.{m16n8k16,m16n8k32}.row.col.s32.{s8,u8}.{s8,u8}.s32",
    "mma.sync.aligned.{m8n8k4,m16n8k4,m16n8k8,m16n8k16}.row.col.f64.f64.f64.f64",
    checked=True,
)
def multiply(instruction: Instruction, code: Code) -> str:
    """D = A B + C; the shape follows from the numbers of registers."""
    result, left, right = instruction.modifiers[-4:-1]
    target, a, b, c = instruction.operands
    given = "f64" if left == "f64" else "b32"
    rows = [code.values(a, given), code.values(b, given), code.values(c, result)]
    kinds = f"{_ELEMENTS[left]}, {_ELEMENTS[right]}, {c_type(result)}"
    counts = ", ".join(str(len(row)) for row in rows)
    fields = ", ".join("{" + ", ".join(row) + "}" for row in rows)
    parts = [code.assign(lane, result, f"tile.c[{i}]") for i, lane in enumerate(_lanes(target))]
    declare = f"Fragments<{kinds}, {counts}> tile = {{{fields}}};"
    return f"{declare} mma(tile); {' '.join(parts)}"
