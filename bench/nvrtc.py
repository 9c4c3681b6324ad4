"""What a kernel takes of a multiprocessor, by NVRTC and the ptxas inside of it: no GPU needed."""

import ctypes
import ctypes.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

OPTIONS = ("--std=c++17", "-ftz=true", "--ptxas-options=-v")


class NvrtcError(RuntimeError):
    """There is no NVRTC, or it refused a source; the message says why."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Registers of a thread, bytes that it spills, bytes of static shared memory of a block."""

    registers: int
    spills: int
    shared: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel as machine code, and what ptxas reports of it."""

    code: bytes
    log: str


def usage(source: str, architecture: str) -> Usage:
    """The report of ptxas for a source with one kernel; ``architecture`` is "90" or "90a"."""
    return usage_in(compiled(source, architecture).log)


def usage_in(report: str) -> Usage:
    """What a report of ptxas says."""

    def number(pattern: str) -> int:
        found = re.search(pattern, report)
        return int(found[1]) if found else 0

    return Usage(
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes spill stores"),
        number(r"(\d+) bytes smem"),
    )


def compiled(source: str, architecture: str) -> Compiled:
    """The machine code of a source with one kernel, for "90" or "90a"."""
    nvrtc = library()
    options = (*OPTIONS, f"--gpu-architecture=sm_{architecture}")
    program = ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), None, 0, None, None))
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = nvrtc.nvrtcCompileProgram(program, len(options), given)
        log = _fetched(nvrtc, "ProgramLog", program).rstrip(b"\0").decode()
        if failed:
            raise NvrtcError(log)
        return Compiled(_fetched(nvrtc, "CUBIN", program), log)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _fetched(nvrtc: Any, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


@cache
def library() -> Any:
    """NVRTC of NVIDIA's wheels, else of the system; NvrtcError without it."""
    path = next(_candidates(), None)
    if path is None:
        raise NvrtcError("no NVRTC: pip install nvidia-cuda-nvrtc-cu12")
    return ctypes.CDLL(path)


def _candidates() -> Iterator[str]:
    spec = find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        # The wheels have libnvrtc.alt and libnvrtc-builtins beside it.
        yield from sorted(map(str, Path(root).glob("*/lib/libnvrtc.so*")), reverse=True)
    system = ctypes.util.find_library("nvrtc")
    if system:
        yield system


def _check(status: int) -> None:
    if status:
        raise NvrtcError(f"NVRTC returned {status}")
