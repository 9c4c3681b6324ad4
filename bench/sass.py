"""Which instructions machine code consists of, as nvdisasm names them."""

import functools
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple


class DisassemblerMissing(RuntimeError):
    """No nvdisasm on this machine."""


@functools.cache
def disassembler() -> str:
    """The command: that of the wheel nvidia-cuda-nvdisasm, else that of a CUDA toolkit."""
    packages = Path(sysconfig.get_path("purelib")) / "nvidia"
    found = next(packages.glob("**/bin/nvdisasm"), None) or shutil.which("nvdisasm")
    if found is None:
        raise DisassemblerMissing("no nvdisasm: install the wheel nvidia-cuda-nvdisasm")
    return str(found)


_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)([^;]*)")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_CONDITION = re.compile(r"^\S*\s+!?U?P\d")


class Instruction(NamedTuple):
    """An opcode, what follows it, and whether it is done only where a predicate holds."""

    opcode: str
    after: str
    conditional: bool

    @property
    def modifiers(self) -> str:
        """What is joined to the opcode: .E.128, say."""
        return self.after.split()[0] if self.after[:1] == "." else ""


@dataclass(frozen=True)
class Code:
    """The instructions of a module in order, and its branches: (where, to what)."""

    lines: list[Instruction]
    labels: dict[str, int]

    @functools.cached_property
    def jumps(self) -> list[tuple[int, int]]:
        """Where branches are, and where they go."""
        targets = ((at, _TARGET.search(each.after)) for at, each in enumerate(self.lines))
        return [(at, self.labels[x[1]]) for at, x in targets if x and x[1] in self.labels]

    @functools.cached_property
    def loops(self) -> list[range]:
        """From where a branch goes back to, to that branch."""
        return [range(to, at + 1) for at, to in self.jumps if to <= at]

    @functools.cached_property
    def _branches(self) -> dict[int, int]:
        """Branches alone: what only marks where threads join again is left out."""
        return {at: to for at, to in self.jumps if self.lines[at].opcode == "BRA"}

    def count(self, opcode: str, where: Iterable[int]) -> int:
        """How many instructions there have an opcode."""
        return sum(self.lines[at].opcode == opcode for at in where)

    def next_of(self, at: int) -> list[int]:
        """The instructions that may follow one."""
        each = self.lines[at]
        goes_on = each.conditional or each.opcode not in ("BRA", "EXIT", "RET")
        target = self._branches.get(at)
        return [at + 1] * goes_on + ([] if target is None else [target])

    def ends(self, at: int) -> bool:
        """Whether the kernel ends there."""
        return self.lines[at].opcode == "EXIT"


def instructions(cubin: bytes) -> set[str]:
    """The opcodes of a module, modifiers left out."""
    return {each.opcode for each in listed(cubin)}


def listed(cubin: bytes) -> list[Instruction]:
    """The instructions of a module in order."""
    return parsed(cubin).lines


def main_loop(cubin: bytes, unit: str, seldom: str) -> list[str]:
    """The opcodes of the smallest loop with nearly all instructions ``unit`` that any loop has.

    The smallest part with all instructions ``seldom`` that a branch jumps over is left out.
    """
    code = parsed(cubin)

    def most_of(opcode: str, ranges: list[range]) -> range:
        most = max(code.count(opcode, each) for each in ranges)
        return min((x for x in ranges if code.count(opcode, x) > 0.9 * most), key=len)

    loop = most_of(unit, code.loops)
    inside = [range(at + 1, to) for at, to in code.jumps if loop.start <= at < to < loop.stop]
    skipped = most_of(seldom, inside)
    return [code.lines[at].opcode for at in loop if at not in skipped]


def loops(cubin: bytes) -> list[list[str]]:
    """The opcodes of every loop, the smallest loop first."""
    code = parsed(cubin)
    found = [[code.lines[at].opcode for at in each] for each in code.loops]
    return sorted(found, key=len)


def wide_stores(cubin: bytes) -> tuple[int, int]:
    """From the first to the last store of 8 bytes or more, where most follow without a branch:
    instructions, and bytes.
    """
    first, last, written = stored_widely(parsed(cubin))
    return last - first, written


def stored_widely(code: Code) -> tuple[int, int, int]:
    """The first and the last of those stores, and the bytes of all but the first of them."""
    ends = [at + 1 for at, each in enumerate(code.lines) if each.opcode in ("BRA", "EXIT")]
    cuts = sorted({0, *ends, *code.labels.values(), len(code.lines)})
    blocks = [_stores(code.lines, start, end) for start, end in pairwise(cuts)]
    most = max(blocks, key=len)
    if not most:
        return -1, -1, 0
    return most[0][0], most[-1][0], sum(size for _, size in most[1:])


def narrow_stores(cubin: bytes) -> int:
    """How many instructions store less than 8 bytes of a thread to memory."""
    stores = (each.modifiers for each in listed(cubin) if each.opcode == "STG")
    return sum(not each.endswith((".64", ".128")) for each in stores)


def _stores(lines: list[Instruction], start: int, end: int) -> list[tuple[int, int]]:
    """Where instructions store, and how many bytes: 8 or 16."""
    sizes = {".E.64": 8, ".E.128": 16}
    return [
        (at, sizes[lines[at].modifiers])
        for at in range(start, end)
        if lines[at].opcode == "STG" and lines[at].modifiers in sizes
    ]


def parsed(cubin: bytes) -> Code:
    """The code of a module, as nvdisasm lists it."""
    lines: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in _listing(cubin).splitlines():
        label, instruction = _LABEL.match(line), _INSTRUCTION.search(line)
        if label:
            labels[label[1]] = len(lines)
        elif instruction:
            guard, opcode, after = instruction.groups()
            lines.append(Instruction(opcode, after, bool(guard) or bool(_CONDITION.match(after))))
    return Code(lines, labels)


def _listing(cubin: bytes) -> str:
    """What nvdisasm prints."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [disassembler(), "-c", file.name], capture_output=True, text=True, check=True
        )
    return done.stdout
