"""Machine code in phases: what a warp does before its main loop, in a step of it, and after it.

Instructions are counted by class. A phase is a path through basic blocks: the longest before the
loop, where loops over modes are gone through once, and the shortest after it, to the stores of a
tile that lies inside of the tensor.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from bench.sass import Code, Instruction, stored_widely

__all__ = [
    "READS",
    "WAVEFRONTS",
    "WGMMA",
    "Counts",
    "Phases",
    "instructions",
    "phases",
    "reading",
    "straight",
]

Counts = Counter[str]
# A prefix of the opcode -> its class; the first that fits. Uniform ones begin with U.
CLASSES = {
    "control": (
        *("BRA", "BRX", "EXIT", "BAR", "BSSY", "BSYNC", "NOP", "DEPBAR", "LDGDEPBAR", "WARPSYNC"),
        *("CALL", "RET", "MEMBAR", "ERRBAR", "SYNCS", "WARPGROUP", "ELECT", "BREAK", "YIELD"),
    ),
    "tensor": ("HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "HGMMA", "IGMMA", "QGMMA"),
    "memory": ("LDGSTS", "LDG", "STG", "LDL", "STL", "ATOM", "RED", "UTMA", "UBLK"),
    "shared": ("LDSM", "LDS", "STSM", "STS"),
    "constant": ("LDC", "ULDC", "S2R", "S2UR", "CS2R", "R2UR"),
    "double": ("DFMA", "DADD", "DMUL", "DSETP"),
    "convert": ("F2FP",),
    "special": ("MUFU", "F2", "I2F", "POPC", "FLO", "BREV", "FRND"),
    "multiply": ("IMAD", "UIMAD", "IDP"),
    "float": ("FFMA", "FADD", "FMUL", "FMNMX", "FSET", "FSEL", "FCHK", "HFMA2", "HADD2", "HMUL2"),
    "uniform": ("U",),
}
OTHERS = "integer"
WAVEFRONTS = "wavefronts"  # of 128 bytes, to and from shared memory and L1
READS = "reads"  # those of them that read shared memory widely, but for ldmatrix
LOADS = ("LDGSTS", "LDG")
WGMMA = "HGMMA"


def class_of(opcode: str) -> str:
    """What kind of unit an instruction takes."""
    return next((name for name, known in CLASSES.items() if opcode.startswith(known)), OTHERS)


def wavefronts(each: Instruction) -> int:
    """Passes of a warp through shared memory or L1 that no address can make fewer."""
    kind = class_of(each.opcode)
    if kind not in ("shared", "memory"):
        return 0
    modifiers = each.modifiers
    if each.opcode == "LDSM":
        return next((count for count in (4, 2) if f".{count}" in modifiers), 1)
    return 4 if ".128" in modifiers else 2 if ".64" in modifiers else 1


def counts(lines: Iterable[Instruction]) -> Counts:
    """Instructions by class, and the wavefronts of all."""
    found: Counts = Counter()
    for each in lines:
        found[class_of(each.opcode)] += 1
        found[WAVEFRONTS] += wavefronts(each)
        found[READS] += wavefronts(each) if each.opcode == "LDS" else 0
    return found


@dataclass(frozen=True, slots=True)
class Phases:
    """What a warp executes for a tile: before its main loop, in each step, after it.

    ``seldom`` are those of a step that make tables, which most warps or steps leave out. ``stores``
    is the part of ``after`` from the first to the last store of a tile inside of the tensor.
    """

    before: Counts
    step: Counts
    seldom: Counts
    after: Counts
    stores: Counts


def instructions(found: Counts) -> float:
    """How many instructions there are of all classes."""
    return sum(number for name, number in found.items() if name not in (WAVEFRONTS, READS))


def phases(code: Code, unit: str, units: float, stored: float) -> Phases:
    """The phases of a kernel with a main loop of instructions ``unit``.

    A step has ``units`` of them: where the code has fewer, its inner loops go round more often. A
    thread stores ``stored`` bytes of a tile.
    """
    step = main_loop(code, unit)
    inner = inner_loops(code, step, unit)
    seldom = tables(code, step)
    once = [at for at in step if at not in seldom and not any(at in each for each in inner)]
    again = [at for each in inner for at in each]
    rounds = units / max(sum(code.lines[at].opcode == unit for at in again or once), 1)
    each_step = counts(code.lines[at] for at in once)
    for name, number in counts(code.lines[at] for at in again).items():
        each_step[name] += number * rounds
    tile = around(code, step)
    after, stores = ending(code, step.stop, tile.stop, stored)
    return Phases(
        counts(code.lines[at] for at in path(code, tile.start, step.start, max)),
        each_step,
        counts(code.lines[at] for at in seldom),
        after,
        stores,
    )


def straight(code: Code) -> Counts:
    """What a warp executes of a kernel without a main loop: its longest path."""
    return counts(code.lines[at] for at in path(code, 0, len(code.lines), max))


def reading(code: Code) -> tuple[Counts, int]:
    """The loop that loads most, and the bytes that a thread loads in a round of it."""
    loads = {each: loaded(code, each) for each in code.loops}
    most = max(loads, key=lambda each: (loads[each], -len(each)))
    return counts(code.lines[at] for at in most), loads[most]


def loaded(code: Code, where: range) -> int:
    """Bytes that a thread loads there."""
    found = (code.lines[at] for at in where)
    return sum(4 * wavefronts(each) for each in found if each.opcode == "LDG")


# --- loops ------------------------------------------------------------------------------------


def main_loop(code: Code, unit: str) -> range:
    """The smallest loop with ``unit`` and loads; of wgmma other warps load, in their own loop."""
    full = [each for each in code.loops if code.count(unit, each)]
    loads = () if unit == WGMMA else LOADS
    loading = [each for each in full if any(code.count(load, each) for load in loads)]
    found = min(loading or full, key=len, default=None)
    if found is None:
        raise ValueError(f"no loop with {unit}")
    return found


def inner_loops(code: Code, step: range, unit: str) -> list[range]:
    """The smallest loops inside of a step that have ``unit``."""
    inside = [each for each in code.loops if inside_of(each, step) and code.count(unit, each)]
    return [each for each in inside if not any(inside_of(other, each) for other in inside)]


def inside_of(inner: range, outer: range) -> bool:
    """Whether a loop is a smaller one in another."""
    return len(inner) < len(outer) and inner.start in outer and inner.stop - 1 in outer


def tables(code: Code, step: range) -> range:
    """The smallest part of a step with nearly all STS that a branch jumps over."""
    skipped = [range(at + 1, to) for at, to in code.jumps if step.start <= at < to < step.stop]
    most = max((code.count("STS", each) for each in skipped), default=0)
    full = [each for each in skipped if code.count("STS", each) > 0.9 * most > 0]
    return min(full, key=len, default=range(0))


def around(code: Code, step: range) -> range:
    """The loop over tiles around the main loop; all of the code where there is none."""
    outer = [each for each in code.loops if inside_of(step, each)]
    return min(outer, key=len, default=range(len(code.lines)))


# --- paths ------------------------------------------------------------------------------------


def path(code: Code, start: int, stop: int, best: Callable[[Iterable[int]], int]) -> Sequence[int]:
    """The longest or shortest way from an instruction to another, never backwards.

    It may end where the kernel does.
    """
    length, chosen = {stop: 0}, {}
    for at in range(stop - 1, start - 1, -1):
        ways = {length[to] + 1: to for to in code.next_of(at) if at < to <= stop and to in length}
        if code.ends(at):
            ways[1] = stop
        if ways:
            length[at] = best(ways)
            chosen[at] = ways[length[at]]
    found, at = [], start
    while at != stop and at in chosen:
        found.append(at)
        at = chosen[at]
    return found


def ending(code: Code, start: int, stop: int, stored: float) -> tuple[Counts, Counts]:
    """What follows the main loop, and of that what stores ``stored`` bytes of a thread."""
    first, last, written = stored_widely(code)
    if not start <= first < stop or not written:
        return counts(code.lines[at] for at in path(code, start, stop, max)), Counter()
    storing = counts(code.lines[first + 1 : last + 1])
    stores: Counts = Counter()
    for name, number in storing.items():
        stores[name] = number * stored / written
    to_and_from = chain(path(code, start, first, min), path(code, last + 1, stop, min))
    return counts(code.lines[at] for at in to_and_from) + stores, stores
