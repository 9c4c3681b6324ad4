"""mbarrier, TMA loads and wgmma of sm_90a."""

import re

from ..ptx import Address, Instruction, Label, PtxError, Register, Symbol, Vector
from .code import Code, register_name
from .table import handles

_SHARED = "{,.shared,.shared::cta}"
_ORDER = "{,.release,.acquire}{,.cta}"


@handles(f"mbarrier.init{_SHARED}.b64", checked=True)
def init(instruction: Instruction, code: Code) -> str:
    """A barrier for a number of arrivals."""
    address, count = instruction.operands
    return f"mbarrier_init({code.address(address)}, {code.value(count, 'u32')});"


@handles(f"mbarrier.inval{_SHARED}.b64", checked=True)
def invalidate(instruction: Instruction, code: Code) -> str:
    """Nothing can go wrong after it that is not found otherwise."""
    return f"mbarrier_check({code.address(instruction.operands[0])});"


@handles(f"mbarrier.arrive{{,.expect_tx}}{_ORDER}{_SHARED}.b64", checked=True)
def arrive(instruction: Instruction, code: Code) -> str:
    """Count an arrival, and perhaps announce bytes."""
    target, address, *rest = instruction.operands
    given = code.value(rest[0], "u32") if rest else "1"
    count, size = ("1", given) if "expect_tx" in instruction.modifiers else (given, "0")
    return code.assign(target, "b64", f"mbarrier_arrive({code.address(address)}, {count}, {size})")


@handles(f"mbarrier.expect_tx{{,.relaxed}}{{,.cta}}{_SHARED}.b64", checked=True)
def expect(instruction: Instruction, code: Code) -> str:
    """Announce bytes."""
    address, size = instruction.operands
    return f"mbarrier_expect({code.address(address)}, {code.value(size, 'u32')});"


@handles(f"mbarrier.{{try_wait,test_wait}}{{,.parity}}{_ORDER}{_SHARED}.b64", checked=True)
def wait(instruction: Instruction, code: Code) -> str:
    """Wait for a phase, named by its parity or by the state an arrival returned."""
    target, address, phase, *_ = instruction.operands
    kind = "u32" if "parity" in instruction.modifiers else "u64"
    call = f"mbarrier_wait({code.address(address)}, {code.value(phase, kind)} & 1)"
    return code.assign(target, "pred", call)


@handles(
    "fence.mbarrier_init.release.cluster",
    "fence.proxy.async{,.shared::cta,.global}",
    checked=True,
)
def fence(instruction: Instruction, code: Code) -> str:
    """Show earlier writes to wgmma and TMA; of global memory they see everything."""
    return "" if "global" in instruction.modifiers else "fence_proxy();"


@handles(
    "cp.async.bulk.tensor.{1d,2d,3d,4d,5d}.{shared::cluster,shared::cta}.global{,.tile}"
    ".mbarrier::complete_tx::bytes{,.L2::cache_hint}",
    checked=True,
)
def tma_load(instruction: Instruction, code: Code) -> str:
    """Copy a box of a tensor, counted in bytes by an mbarrier."""
    target, source, barrier, *_ = instruction.operands
    if not isinstance(source, Address):
        raise PtxError(f"tensor {source}")
    at = ", ".join(code.value(each, "s32") for each in source.coordinates)
    rank = len(source.coordinates)
    places = f"{code.address(target)}, {code.address(source)}"
    return f"int at[] = {{{at}}}; tma_load({places}, at, {rank}, {code.address(barrier)});"


_TYPES = {"f16": "F16", "bf16": "Bf16", "tf32": "Tf32"}
_SIZES = ",".join(str(n) for n in range(8, 257, 8))


@handles(
    f"wgmma.mma_async.sync.aligned.m64n{{{_SIZES}}}k16.f32.f16.f16",
    f"wgmma.mma_async.sync.aligned.m64n{{{_SIZES}}}k16.f32.bf16.bf16",
    f"wgmma.mma_async.sync.aligned.m64n{{{_SIZES}}}k8.f32.tf32.tf32",
    checked=True,
)
def multiply(instruction: Instruction, code: Code) -> str:
    """Start D = A B (+ D), A in shared memory or registers, B in shared memory."""
    target, left, right, keep, *scales = instruction.operands
    transposed = [code.value(each, "s32") for each in scales[2:]]
    columns = int(re.findall(r"n(\d+)k", instruction.opcode)[0])
    kind = _TYPES[instruction.modifiers[-1]]
    values = ", ".join(code.values(target, "f32"))
    declare = f"float d[] = {{{values}}};"
    first, rows = "{}", "nullptr"
    if isinstance(left, Vector):
        declare += f" uint32_t rows[] = {{{', '.join(code.values(left, 'b32'))}}};"
        rows = "rows"
    else:
        first = f"{{{code.value(left, 'u64')}, {transposed[0] if transposed else 0} != 0}}"
    second = f"{{{code.value(right, 'u64')}, {transposed[-1] if transposed else 0} != 0}}"
    scale = " * ".join(code.value(each, "s32") for each in scales[:2])
    arguments = f"d, {columns}, {rows}, {first}, {second}, {code.value(keep, 'pred')}"
    lanes = target.items if isinstance(target, Vector) else ()
    parts = [code.assign(lane, "f32", f"d[{i}]") for i, lane in enumerate(lanes)]
    return f"{declare} wgmma<{kind}>({arguments}, {scale}); {' '.join(parts)}"


@handles("wgmma.fence.sync.aligned", checked=True)
def order(instruction: Instruction, code: Code) -> str:
    """Registers used before may now be accumulators."""
    return "wgmma_fence();"


@handles("wgmma.commit_group.sync.aligned", checked=True)
def commit(instruction: Instruction, code: Code) -> str:
    """Close a group of products."""
    return "wgmma_commit();"


@handles("wgmma.wait_group.sync.aligned", checked=True)
def wait_group(instruction: Instruction, code: Code) -> str:
    """Finish all groups but the youngest few: their results reach the registers."""
    settle = []
    for register in code.accumulators:
        value = code.value(register, "f32")
        settle.append(code.assign(register, "f32", f"settled({value})"))
    return f"wgmma_wait({code.value(instruction.operands[0], 'u32')}); {' '.join(settle)}"


@handles("setmaxnreg.{inc,dec}.sync.aligned.u32", checked=True)
def change_registers(instruction: Instruction, code: Code) -> str:
    """More or fewer registers for the threads of a warpgroup."""
    return f"change_registers({code.value(instruction.operands[0], 'u32')});"


def accumulators(body: tuple[Instruction | Label, ...]) -> tuple[Register, ...]:
    """The registers that can hold a wgmma's result: its operands and all copies of them."""
    found: set[Register] = set()
    copies = []
    for item in body:
        if not isinstance(item, Instruction):
            continue
        target = item.operands[0] if item.operands else Symbol("_")
        if item.opcode.startswith("wgmma.mma_async") and isinstance(target, Vector):
            found |= {each for each in target.items if isinstance(each, Register)}
        elif item.opcode in ("mov.f32", "mov.b32", "mov.u32"):
            copies.append({each for each in item.operands if isinstance(each, Register)})
    while any(pair & found and pair - found for pair in copies):
        found |= set().union(*(pair for pair in copies if pair & found))
    return tuple(sorted(found, key=register_name))
