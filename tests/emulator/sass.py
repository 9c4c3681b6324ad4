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


def instructions(cubin: bytes) -> set[str]:
    """The opcodes of a module, modifiers left out."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [disassembler(), "-c", file.name], capture_output=True, text=True, check=True
        )
    lines = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)", done.stdout)
    return set(lines)
