"""Barriers and the operations of a warp."""

from ..ptx import Instruction, Operand, Pair, Symbol
from .code import Code, c_type, result_type
from .table import handles

_MODES = {"up": "UP", "down": "DOWN", "bfly": "BUTTERFLY", "idx": "INDEX"}


def _pair(target: Operand) -> tuple[Operand, Operand]:
    """The result and its predicate; ``_`` where there is none."""
    if isinstance(target, Pair):
        return target.first, target.second
    return target, Symbol("_")


def _aligned(instruction: Instruction) -> str:
    """bar is short for barrier.aligned."""
    short = instruction.modifiers[0] == "bar"
    return "true" if short or "aligned" in instruction.modifiers else "false"


@handles("bar{,.cta}.sync", "barrier{,.cta}.sync{,.aligned}", checked=True)
def barrier_sync(instruction: Instruction, code: Code) -> str:
    """Wait for the block, or for the given number of threads."""
    barrier, *count = [code.value(operand, "u32") for operand in instruction.operands]
    return f"barrier_sync({barrier}, {count[0] if count else 0}, {_aligned(instruction)});"


@handles("bar{,.cta}.arrive", "barrier{,.cta}.arrive{,.aligned}", checked=True)
def barrier_arrive(instruction: Instruction, code: Code) -> str:
    """Count without waiting."""
    barrier, count = (code.value(operand, "u32") for operand in instruction.operands)
    return f"barrier_arrive({barrier}, {count});"


@handles(
    "bar{,.cta}.red.{and,or}.pred",
    "barrier{,.cta}.red{,.aligned}.{and,or}.pred",
    "bar{,.cta}.red.popc.u32",
    "barrier{,.cta}.red{,.aligned}.popc.u32",
    checked=True,
)
def barrier_reduce(instruction: Instruction, code: Code) -> str:
    """Wait, and learn how all the others voted."""
    target, barrier, *count, vote = instruction.operands
    kind = {"and": "VOTE_AND", "or": "VOTE_OR", "popc": "VOTE_COUNT"}[instruction.modifiers[-2]]
    threads = code.value(count[0], "u32") if count else "0"
    call = (
        f"barrier_sync({code.value(barrier, 'u32')}, {threads}, {_aligned(instruction)}, "
        f"{code.value(vote, 'pred')}, {kind})"
    )
    return code.assign(target, result_type(instruction), call)


@handles("bar.warp.sync", checked=True)
def warp_sync(instruction: Instruction, code: Code) -> str:
    """__syncwarp."""
    return f"sync_warp({code.value(instruction.operands[0], 'u32')});"


@handles("shfl.sync.{up,down,bfly,idx}.b32", checked=True)
def shuffle(instruction: Instruction, code: Code) -> str:
    """Another lane's value, and whether that lane was inside the segment."""
    target, predicate = _pair(instruction.operands[0])
    sources = ", ".join(code.value(operand, "u32") for operand in instruction.operands[1:])
    mode = _MODES[instruction.modifiers[2]]
    call = f"bool inside; uint32_t got = shuffle(Shuffle::{mode}, {sources}, inside);"
    return f"{call} {code.assign(target, 'b32', 'got')} {code.assign(predicate, 'pred', 'inside')}"


@handles("vote.sync.ballot.b32", "vote.sync.{any,all,uni}.pred", checked=True)
def vote(instruction: Instruction, code: Code) -> str:
    """All lanes' predicates at once."""
    target, predicate, mask = instruction.operands
    lanes = code.value(mask, "u32")
    results = {
        "ballot": "votes",
        "any": "votes != 0",
        "all": f"votes == {lanes}",
        "uni": f"votes == 0 || votes == {lanes}",
    }
    call = f"uint32_t votes = ballot({code.value(predicate, 'pred')}, {lanes});"
    return (
        f"{call} {code.assign(target, result_type(instruction), results[instruction.modifiers[2]])}"
    )


@handles("match.{any,all}.sync.{b32,b64}", checked=True)
def match_lanes(instruction: Instruction, code: Code) -> str:
    """The lanes that hold the same value."""
    target, predicate = _pair(instruction.operands[0])
    value = code.value(instruction.operands[1], result_type(instruction))
    mask = code.value(instruction.operands[2], "u32")
    every = "true" if "all" in instruction.modifiers else "false"
    call = f"uint32_t same = match({value}, {mask}, {every});"
    return (
        f"{call} {code.assign(target, 'b32', 'same')} {code.assign(predicate, 'pred', 'same != 0')}"
    )


@handles("activemask.b32", checked=True)
def active(instruction: Instruction, code: Code) -> str:
    """All lanes the warp was launched with: which ones run together here is chance."""
    lanes = "launched_lanes()"
    return code.assign(instruction.operands[0], "b32", lanes)


_FOLDS = {
    "add": "x + y",
    "min": "least(x, y)",
    "max": "greatest(x, y)",
    "and": "x & y",
    "or": "x | y",
    "xor": "x ^ y",
}


@handles("redux.sync.{add,min,max}.{u32,s32}", "redux.sync.{and,or,xor}.b32", checked=True)
def reduce_lanes(instruction: Instruction, code: Code) -> str:
    """One value from all lanes."""
    kind = result_type(instruction)
    target, source, mask = instruction.operands
    fold = f"[](auto x, auto y) {{ return {_FOLDS[instruction.modifiers[2]]}; }}"
    sources = f"{code.value(source, kind)}, {code.value(mask, 'u32')}"
    call = f"reduce_warp<{c_type(kind)}>({sources}, {fold})"
    return code.assign(target, kind, call)


@handles("elect.sync", checked=True)
def elect(instruction: Instruction, code: Code) -> str:
    """The lowest lane of the mask."""
    target, predicate = _pair(instruction.operands[0])
    mask = code.value(instruction.operands[1], "u32")
    call = f"uint32_t chosen = __builtin_ctz(ballot(true, {mask}));"
    first = code.assign(target, "b32", "chosen")
    return f"{call} {first} {code.assign(predicate, 'pred', 'laneid() == chosen')}"
