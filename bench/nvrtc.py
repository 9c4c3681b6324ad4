"""What a kernel takes of a multiprocessor, by NVRTC and the ptxas inside of it: no GPU needed."""

import ctypes
import ctypes.util
import re
from collections.abc import Iterator, Sequence
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


def usage(source: str, architecture: str) -> Usage:
    """The report of ptxas for a source with one kernel; ``architecture`` is "90" or "90a"."""
    report = compiled(source, (*OPTIONS, f"--gpu-architecture=sm_{architecture}"))

    def number(pattern: str) -> int:
        found = re.search(pattern, report)
        return int(found[1]) if found else 0

    return Usage(
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes spill stores"),
        number(r"(\d+) bytes smem"),
    )


def compiled(source: str, options: Sequence[str]) -> str:
    """The log of a compilation to machine code."""
    nvrtc = library()
    program = ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), None, 0, None, None))
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = nvrtc.nvrtcCompileProgram(program, len(options), given)
        size = ctypes.c_size_t()
        _check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetProgramLog(program, log))
        if failed:
            raise NvrtcError(log.value.decode())
        return log.value.decode()
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


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
