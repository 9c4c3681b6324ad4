"""ld, st, cvta, atom, red and fences."""

from ..ptx import Instruction, Operand, PtxError, Symbol, Vector, type_bytes
from .code import ALL, Code, c_type, result_type
from .table import handles

_SCOPE = ".{cta,cluster,gpu,sys}"
_ORDER = f"{{,.volatile,.weak,.relaxed{_SCOPE},.acquire{_SCOPE},.release{_SCOPE}}}"
_CACHE = "{,.ca,.cg,.cs,.lu,.cv,.wb,.wt}"
_EVICT = "L1::{evict_normal,evict_unchanged,evict_first,evict_last,no_allocate}"
_HINTS = f"{{,.{_EVICT}}}{{,.L2::64B,.L2::128B,.L2::256B}}"
_WIDTH = "{,.v2,.v4}"
_SPACES = ("global", "shared", "shared::cta", "local", "param", "const")


def space_of(instruction: Instruction) -> str:
    """The state space an opcode names; generic where it names none."""
    named = next((m for m in instruction.modifiers if m in _SPACES), "generic")
    return named.removesuffix("::cta")


def _lanes(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


@handles(
    f"ld{_ORDER}{{,.global,.shared,.shared::cta,.local,.param,.const}}"
    f"{_CACHE}{{,.nc}}{_HINTS}{_WIDTH}.{{{ALL}}}",
    checked=True,
)
def load(instruction: Instruction, code: Code) -> str:
    """Read one, two or four elements, after the checks of the space."""
    kind, (target, address) = result_type(instruction), instruction.operands
    lanes, size = _lanes(target), type_bytes(kind)
    read = code.buffer(address) or (
        f"{space_of(instruction)}_read<{size * len(lanes)}>({code.address(address)})"
    )
    parts = [
        code.assign(lane, kind, f"get<{c_type(kind)}>(from + {i * size})")
        for i, lane in enumerate(lanes)
    ]
    return f"const char *from = {read}; {' '.join(parts)}"


@handles(
    f"st{_ORDER}{{,.global,.shared,.shared::cta,.local,.param}}{_CACHE}{_HINTS}{_WIDTH}.{{{ALL}}}",
    checked=True,
)
def store(instruction: Instruction, code: Code) -> str:
    """Write one, two or four elements."""
    kind, (address, source) = result_type(instruction), instruction.operands
    lanes, size = _lanes(source), type_bytes(kind)
    write = code.buffer(address) or (
        f"{space_of(instruction)}_write<{size * len(lanes)}>({code.address(address)})"
    )
    parts = [
        f"put<{c_type(kind)}>(to + {i * size}, {code.value(lane, kind)});"
        for i, lane in enumerate(lanes)
    ]
    return f"char *to = {write}; {' '.join(parts)}"


_TAGS = {"shared": "SHARED", "local": "LOCAL", "param": "PARAM"}


@handles("cvta.{global,const,shared,shared::cta,local,param}.u64", checked=True)
def to_generic(instruction: Instruction, code: Code) -> str:
    """An address of a space as a generic one."""
    target, source = instruction.operands
    tag = _TAGS.get(space_of(instruction), "0")
    return code.assign(target, "u64", f"{code.value(source, 'u64')} | {tag}")


@handles("cvta.to.{global,const,shared,shared::cta,local,param}.u64", checked=True)
def from_generic(instruction: Instruction, code: Code) -> str:
    """A generic address as one of a space, which it must be in."""
    target, source = instruction.operands
    tag = _TAGS.get(space_of(instruction), "0")
    return code.assign(target, "u64", f"untag({code.value(source, 'u64')}, {tag})")


_ATOMIC = {
    "add": "old + by",
    "min": "least(old, by)",
    "max": "greatest(old, by)",
    "and": "old & by",
    "or": "old | by",
    "xor": "old ^ by",
    "exch": "by",
    "inc": "old >= by ? 0 : old + 1",
    "dec": "old == 0 || old > by ? by : old - 1",
    "cas": "old == by ? then : old",
}
_PLACE = f"{{,.relaxed,.acquire,.release,.acq_rel}}{{,{_SCOPE}}}{{,.global,.shared,.shared::cta}}"
_OPERATIONS = (
    "add.{u32,s32,u64,f32,f64}",
    "add.noftz.{f16,bf16}",
    "{min,max}.{u32,s32,u64,s64}",
    "{and,or,xor}.{b32,b64}",
    "{inc,dec}.u32",
)


@handles(
    *(f"{name}{_PLACE}.{operation}" for name in ("atom", "red") for operation in _OPERATIONS),
    f"atom{_PLACE}.exch.{{b32,b64}}",
    f"atom{_PLACE}.cas.{{b16,b32,b64}}",
    checked=True,
)
def atomic(instruction: Instruction, code: Code) -> str:
    """Read, change and write; threads run one at a time, so this is indivisible."""
    kind, modifiers = result_type(instruction), instruction.modifiers
    operation = next(m for m in modifiers if m in _ATOMIC)
    operands = list(instruction.operands)
    target = operands.pop(0) if modifiers[0] == "atom" else Symbol("_")
    address, by, *then = operands
    size, half = type_bytes(kind), kind in ("f16", "bf16")
    stored = "uint16_t" if half else c_type(kind)
    old = f"from_{kind}(get<uint16_t>(to))" if half else f"get<{stored}>(to)"
    new = f"to_{kind}({_ATOMIC[operation]})" if half else _ATOMIC[operation]
    lines = [
        f"char *to = {space_of(instruction)}_atomic<{size}>({code.address(address)});",
        f"{c_type(kind)} old = {old}, by = {code.value(by, kind)};",
        *(f"{c_type(kind)} then = {code.value(value, kind)};" for value in then),
        f"put<{stored}>(to, {new});",
        code.assign(target, kind, "old"),
    ]
    return " ".join(lines)


@handles(
    "membar.{cta,gl,sys}",
    f"fence{{,.sc,.acq_rel}}{_SCOPE}",
    "prefetch{,.global}.{L1,L2}",
    "prefetchu.L1",
    "nanosleep.u32",
)
def nothing(instruction: Instruction, code: Code) -> str:
    """Without weak memory order and caches there is nothing to do."""
    return ""


def narrowest_shared_access(instructions: list[Instruction]) -> int:
    """Bytes of the narrowest access that may be to shared memory, 4 at most."""
    sizes = [4]
    for instruction in instructions:
        name = instruction.modifiers[0]
        if name in ("ld", "st", "atom", "red") and space_of(instruction) in ("shared", "generic"):
            sizes.append(type_bytes(result_type(instruction)))
    if min(sizes) < 1:
        raise PtxError("an access of no bytes")
    return min(sizes)
