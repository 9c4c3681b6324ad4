"""Which instructions machine code consists of, as nvdisasm names them."""

import functools
import re
import shutil
import subprocess
import sysconfig
import tempfile
from itertools import pairwise
from pathlib import Path


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
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)([^;]*)")


def instructions(cubin: bytes) -> set[str]:
    """The opcodes of a module, modifiers left out."""
    return {opcode for opcode, _ in listed(cubin)}


def listed(cubin: bytes) -> list[tuple[str, str]]:
    """The opcodes of a module in order, each with what follows it."""
    return _parsed(cubin)[0]


def main_loop(cubin: bytes, unit: str, seldom: str) -> list[str]:
    """The opcodes of the smallest loop with nearly all instructions ``unit`` that any loop has.

    The smallest part with all instructions ``seldom`` that a branch jumps over is left out.
    """
    lines, labels = _parsed(cubin)
    jumps = _jumps(lines, labels)

    def most_of(opcode: str, ranges: list[tuple[int, int]]) -> range:
        found = [range(*each) for each in ranges]
        counts = [sum(lines[at][0] == opcode for at in each) for each in found]
        most = max(counts)
        return min((x for x, n in zip(found, counts, strict=True) if n > 0.9 * most), key=len)

    loop = most_of(unit, [(to, at + 1) for at, to in jumps if to <= at])
    inside = [(at + 1, to) for at, to in jumps if loop.start <= at < to < loop.stop]
    skipped = most_of(seldom, inside)
    return [lines[at][0] for at in loop if at not in skipped]


def loops(cubin: bytes) -> list[list[str]]:
    """The opcodes of every loop, the smallest loop first."""
    lines, labels = _parsed(cubin)
    opcodes = [opcode for opcode, _ in lines]
    found = [opcodes[to : at + 1] for at, to in _jumps(lines, labels) if to <= at]
    return sorted(found, key=len)


def wide_stores(cubin: bytes) -> tuple[int, int]:
    """From the first to the last store of 8 bytes or more, where most follow without a branch:
    instructions, and bytes.
    """
    lines, labels = _parsed(cubin)
    ends = [at + 1 for at, (opcode, _) in enumerate(lines) if opcode in ("BRA", "EXIT")]
    cuts = sorted({0, *ends, *labels.values(), len(lines)})
    blocks = [_stores(lines, start, end) for start, end in pairwise(cuts)]
    first, *others = most = max(blocks, key=len)
    return most[-1][0] - first[0], sum(size for _, size in others)


def narrow_stores(cubin: bytes) -> int:
    """How many instructions store less than 8 bytes of a thread to memory."""
    stores = (after.split()[0] for opcode, after in listed(cubin) if opcode == "STG")
    return sum(not each.endswith((".64", ".128")) for each in stores)


def _stores(lines: list[tuple[str, str]], start: int, end: int) -> list[tuple[int, int]]:
    """Where instructions store, and how many bytes: 8 or 16."""
    sizes = {".E.64": 8, ".E.128": 16}
    return [
        (at, sizes[modifiers])
        for at in range(start, end)
        if lines[at][0] == "STG" and (modifiers := lines[at][1].split()[0]) in sizes
    ]


def _jumps(lines: list[tuple[str, str]], labels: dict[str, int]) -> list[tuple[int, int]]:
    """Where branches are, and where they go."""
    targets = ((at, re.search(r"`\((\.L_x_\d+)\)", after)) for at, (_, after) in enumerate(lines))
    return [(at, labels[target[1]]) for at, target in targets if target and target[1] in labels]


def _parsed(cubin: bytes) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Opcodes with what follows them, and before which of them labels stand."""
    lines: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    for line in _listing(cubin).splitlines():
        label, instruction = _LABEL.match(line), _INSTRUCTION.search(line)
        if label:
            labels[label[1]] = len(lines)
        elif instruction:
            lines.append((instruction[1], instruction[2]))
    return lines, labels


def _listing(cubin: bytes) -> str:
    """What nvdisasm prints."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [disassembler(), "-c", file.name], capture_output=True, text=True, check=True
        )
    return done.stdout
