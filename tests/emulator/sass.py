"""Which instructions machine code consists of, as nvdisasm names them."""

import functools
import re
import shutil
import subprocess
import sysconfig
import tempfile
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
    return {opcode for opcode, _ in _parsed(cubin)[0]}


def main_loop(cubin: bytes, unit: str, seldom: str) -> list[str]:
    """The opcodes of the smallest loop with nearly all instructions ``unit`` that any loop has.

    The smallest part with all instructions ``seldom`` that a branch jumps over is left out.
    """
    lines, labels = _parsed(cubin)
    jumps = [(at, labels[target]) for at, (_, target) in enumerate(lines) if target in labels]

    def most_of(opcode: str, ranges: list[tuple[int, int]]) -> range:
        found = [range(*each) for each in ranges]
        counts = [sum(lines[at][0] == opcode for at in each) for each in found]
        most = max(counts)
        return min((x for x, n in zip(found, counts, strict=True) if n > 0.9 * most), key=len)

    loop = most_of(unit, [(to, at + 1) for at, to in jumps if to <= at])
    inside = [(at + 1, to) for at, to in jumps if loop.start <= at < to < loop.stop]
    skipped = most_of(seldom, inside)
    return [lines[at][0] for at in loop if at not in skipped]


def _parsed(cubin: bytes) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Opcodes with the labels that they name, and before which of them labels stand."""
    lines: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    for line in _listing(cubin).splitlines():
        label, instruction = _LABEL.match(line), _INSTRUCTION.search(line)
        if label:
            labels[label[1]] = len(lines)
        elif instruction:
            target = re.search(r"`\((\.L_x_\d+)\)", instruction[2])
            lines.append((instruction[1], target[1] if target else ""))
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
