"""Compile CUDA C++ with NVRTC, through ctypes: no GPU, no driver and no CuPy needed."""

import ctypes
import ctypes.util
import functools
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

STANDARD = "--std=c++17"


class NvrtcMissing(RuntimeError):
    """No libnvrtc on this machine."""


class CompileError(RuntimeError):
    """NVRTC refused the source; the message is its log."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one compilation gave: PTX, the log, and for a real architecture machine code."""

    ptx: bytes
    log: str
    code: bytes = b""

    @property
    def text(self) -> str:
        """The PTX, without the NUL that ends it."""
        return self.ptx.rstrip(b"\0").decode()


def compile_ptx(source: str, arch: str = "sm_90", options: Sequence[str] = ()) -> Compiled:
    """Return the PTX of ``source`` for ``arch`` ("sm_80", "sm_90a", ...), with line numbers."""
    architecture = f"--gpu-architecture={arch.replace('sm_', 'compute_')}"
    flags = (architecture, STANDARD, "--generate-line-info", *options)
    return _compile(source, flags, machine_code=False)


def compile_cubin(source: str, arch: str = "sm_90", options: Sequence[str] = ()) -> Compiled:
    """Return PTX and machine code of ``source``; the log holds ptxas's registers and spills."""
    flags = (f"--gpu-architecture={arch}", STANDARD, "--ptxas-options=-v", *options)
    return _compile(source, flags, machine_code=True)


def version() -> tuple[int, int]:
    """The version of the NVRTC found, (12, 9) say."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


@functools.cache
def architectures() -> tuple[int, ...]:
    """The capabilities that it makes machine code for."""
    count = ctypes.c_int()
    _check(library().nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    found = (ctypes.c_int * count.value)()
    _check(library().nvrtcGetSupportedArchs(found))
    return tuple(found)


@functools.cache
def library() -> ctypes.CDLL:
    """Load libnvrtc from the NVIDIA wheels, else from the system."""
    found = next(_candidates(), None)
    if found is None:
        raise NvrtcMissing("no libnvrtc: install nvidia-cuda-nvrtc-cu12")
    loaded = ctypes.CDLL(found)
    loaded.nvrtcGetErrorString.restype = ctypes.c_char_p
    return loaded


def _candidates() -> Iterator[str]:
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        # The wheels also carry libnvrtc.alt and libnvrtc-builtins, which this leaves out.
        yield from sorted(map(str, Path(root).glob("*/lib/libnvrtc.so*")), reverse=True)
    system = ctypes.util.find_library("nvrtc")
    if system:
        yield system


def _compile(source: str, flags: Sequence[str], machine_code: bool) -> Compiled:
    program = ctypes.c_void_p()
    text = source.encode()
    _check(library().nvrtcCreateProgram(ctypes.byref(program), text, b"kernel.cu", 0, None, None))
    try:
        given = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        status = library().nvrtcCompileProgram(program, len(flags), given)
        log = _fetch(program, "ProgramLog").rstrip(b"\0").decode()
        if status:
            raise CompileError(log or _reason(status))
        code = _fetch(program, "CUBIN") if machine_code else b""
        return Compiled(_fetch(program, "PTX"), log, code)
    finally:
        library().nvrtcDestroyProgram(ctypes.byref(program))


def _fetch(program: ctypes.c_void_p, kind: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(library(), f"nvrtcGet{kind}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(library(), f"nvrtcGet{kind}")(program, buffer))
    return buffer.raw


def _check(status: int) -> None:
    if status:
        raise CompileError(_reason(status))


def _reason(status: int) -> str:
    text: bytes = library().nvrtcGetErrorString(status)
    return text.decode()
