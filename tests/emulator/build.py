"""Build translated modules into shared libraries, and keep what was built in a folder.

    engine.so   runtime/engine.cpp: fibers, memory, checks; compiled once
    module.so   the code of one module's kernels, linked to the engine

Files of the cache are named by the hash of all that goes into them: dlopen takes a path it has seen
for the same library.  Each is made once, however many threads and processes ask, and appears whole.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

RUNTIME = Path(__file__).parent / "runtime"
# Multiplications and additions stay apart, as in the PTX; integers wrap around.
FLAGS = (
    *("-std=c++17", "-march=native", "-fPIC", "-w", "-fno-semantic-interposition", "-fno-plt"),
    *("-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-fno-math-errno"),
)
# The engine runs more often than it is compiled; of a module both count.
ENGINE_LEVEL, MODULE_LEVEL = "-O2", "-Og"
_COMPILERS = (("g++",), ("clang++",), (sys.executable, "-m", "ziglang", "c++"))
_LOCKS = 64  # files; each stands for the targets whose hashes end alike


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
    """Where files are kept, one folder per user."""
    given = os.environ.get("XDG_CACHE_HOME")
    root = Path(given) if given else Path(tempfile.gettempdir())
    path = root / f"kernel-emulator-{os.getuid()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The file of that name, which ``make`` writes if no one has."""
    target = cache_directory() / name
    if not target.exists():
        with _lock(target):
            if not target.exists():
                _make(target, make)
    return target


def _make(target: Path, make: Callable[[Path], None]) -> None:
    temporary = target.with_suffix(f".{os.getpid()}-{threading.get_ident()}{target.suffix}")
    try:
        make(temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _lock(target: Path) -> Iterator[None]:
    """Hold a target's lock against other threads and processes."""
    number = int(digest(target.name)[-4:], 16) % _LOCKS
    with (cache_directory() / f"lock-{number}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build_module(source: str, library: Path) -> None:
    """Write the shared library of a module's C++ text."""
    # Nothing of the standard library is needed to link: half the time of a small module.
    header = str(RUNTIME / "kernel.h")
    options = ["-shared", "-nostdlib", "-include", header, "-x", "c++", "-"]
    _compile([MODULE_LEVEL, *options, "-x", "none", str(engine())], library, source)


@functools.cache
def engine() -> Path:
    """The shared library that all modules are linked to."""

    def make(library: Path) -> None:
        _compile([ENGINE_LEVEL, "-shared", str(RUNTIME / "engine.cpp"), "-lm"], library)

    return cached(f"engine-{engine_key()}.so", make)


def _compile(options: Sequence[str], target: Path, text: str = "") -> None:
    done = _run([*compiler(), *FLAGS, *options, "-o", str(target)], text)
    if done.returncode:
        raise BuildError(done.stderr[:4000])


@functools.cache
def engine_key() -> str:
    """All that decides a library but the module: runtime, compiler, flags, processor."""
    files = [path.read_text() for path in sorted(RUNTIME.iterdir())]
    version = _run([*compiler(), "--version"]).stdout
    return digest(*files, version, *FLAGS, ENGINE_LEVEL, MODULE_LEVEL, _processor(), str(RUNTIME))


def _processor() -> str:
    """What -march=native depends on."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def digest(*parts: str) -> str:
    """A name for the parts together."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _run(command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)
