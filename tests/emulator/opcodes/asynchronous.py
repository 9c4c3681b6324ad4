"""cp.async: copies to shared memory that a thread waits for later."""

from ..ptx import Immediate, Instruction, PtxError
from .code import Code
from .table import handles

_PREFETCH = "{,.L2::64B,.L2::128B,.L2::256B}"


@handles(
    f"cp.async.{{ca,cg}}.{{shared,shared::cta}}.global{{,.L2::cache_hint}}{_PREFETCH}",
    checked=True,
)
def copy(instruction: Instruction, code: Code) -> str:
    """Copy 4, 8 or 16 bytes, of which the last ones may be zeros."""
    target, source, size, *read = instruction.operands
    if "L2::cache_hint" in instruction.modifiers:
        read = read[:-1]
    allowed = ("16",) if "cg" in instruction.modifiers else ("4", "8", "16")
    if not isinstance(size, Immediate) or size.text not in allowed:
        raise PtxError(f"{instruction.opcode} of {size} bytes")
    taken = code.value(read[0], "u32") if read else size.text
    places = f"{code.address(target)}, {code.address(source)}"
    return f"copy_async<{size.text}>({places}, {taken});"


@handles("cp.async.commit_group", checked=True)
def commit(instruction: Instruction, code: Code) -> str:
    """Close the group of the copies since the last commit."""
    return "commit_copies();"


@handles("cp.async.wait_group", checked=True)
def wait(instruction: Instruction, code: Code) -> str:
    """Finish all groups but the youngest few."""
    return f"wait_copies({code.value(instruction.operands[0], 'u32')});"


@handles("cp.async.wait_all", checked=True)
def wait_all(instruction: Instruction, code: Code) -> str:
    """Finish every copy."""
    return "wait_all_copies();"
