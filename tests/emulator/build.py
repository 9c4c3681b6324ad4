"""Build a translated module into a shared library, cached by the hash of all that goes into it.

The hash is in the library's file name, because dlopen takes a path it has seen for the same
library.  The runtime's headers are compiled once, into a precompiled header.
"""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

RUNTIME = Path(__file__).parent / "runtime"
# Multiplications and additions stay apart, as in the PTX; integers wrap around.
FLAGS = (
    *("-std=c++17", "-O1", "-march=native", "-fPIC", "-w"),
    *("-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing"),
)
_COMPILERS = (("g++",), ("clang++",), (sys.executable, "-m", "ziglang", "c++"))


class CompilerMissing(RuntimeError):
    """No C++ compiler on this machine."""


class BuildError(RuntimeError):
    """The compiler refused what the translator wrote."""


@functools.cache
def compiler() -> tuple[str, ...]:
    """The command of the first compiler that is there."""
    for command in _COMPILERS:
        if shutil.which(command[0]) and _run([*command, "--version"]).returncode == 0:
            return command
    raise CompilerMissing("no C++ compiler: install g++, clang++ or the ziglang wheel")


@functools.cache
def cache_directory() -> Path:
    """Where libraries are kept, one folder per user."""
    given = os.environ.get("XDG_CACHE_HOME")
    root = Path(given) if given else Path(tempfile.gettempdir())
    path = root / f"kernel-emulator-{os.getuid()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def build(source: str, cell: int = 4) -> Path:
    """The shared library of C++ text that uses shadow cells of ``cell`` bytes."""
    library = cache_directory() / f"{_digest(_base_key(), str(cell), source)}.so"
    if not library.exists():
        text = library.with_suffix(f".{os.getpid()}.cpp")
        text.write_text(source)
        _compile(["-shared", *_prelude(cell), str(text)], library)
        text.unlink()
    return library


def _prelude(cell: int) -> list[str]:
    """Options that include the runtime, precompiled where the compiler is g++."""
    define = f"-DEMU_CELL={cell}"
    header = cache_directory() / f"emu-{_digest(_base_key(), str(cell))}.h"
    if not header.exists():
        temporary = header.with_suffix(f".{os.getpid()}.h")
        temporary.write_text(f'#include "{RUNTIME / "emu.h"}"\n')
        if compiler()[0] == "g++":
            options = [define, "-x", "c++-header", str(temporary)]
            _compile(options, header.with_suffix(".h.gch"))
        os.replace(temporary, header)
    return [define, "-include", str(header)]


def _compile(options: Sequence[str], target: Path) -> None:
    """Run the compiler; the target appears whole or not at all."""
    temporary = target.with_suffix(f".{os.getpid()}{target.suffix}")
    done = _run([*compiler(), *FLAGS, *options, "-o", str(temporary)])
    if done.returncode:
        raise BuildError(done.stderr[:4000])
    os.replace(temporary, target)


@functools.cache
def _base_key() -> str:
    """Everything but the source that decides a library: runtime, compiler, flags, processor."""
    headers = [path.read_text() for path in sorted(RUNTIME.glob("*.h"))]
    version = _run([*compiler(), "--version"]).stdout
    return _digest(*headers, version, *FLAGS, _processor(), str(RUNTIME))


def _processor() -> str:
    """What -march=native depends on."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
