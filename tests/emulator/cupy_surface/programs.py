"""cupy_backends.cuda.libs.nvrtc: programs compiled for an architecture that the caller names.

What stands for machine code is PTX, which the emulator's modules load.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import nvrtc
from ..library import Source, to_ptx
from .counters import Counters

_ARCHITECTURE = "-arch="
COMPILATION = 6  # NVRTC_ERROR_COMPILATION


class NVRTCError(RuntimeError):
    """NVRTC refused something."""

    def __init__(self, status: int) -> None:
        super().__init__(f"NVRTC_ERROR_COMPILATION ({status})")
        self.status = status


NVRTCError.__module__ = "cupy_backends.cuda.libs.nvrtc"


@dataclass(slots=True)
class Program:
    """A source, and what became of it."""

    source: str
    code: bytes = b""
    log: str = ""


def functions(counters: Counters) -> dict[str, Callable[..., Any]]:
    """The functions of the module; a program is known by its handle."""
    programs: dict[int, Program] = {}
    handles = itertools.count(1)

    def createProgram(src: str, name: str, headers: Any, include_names: Any) -> int:
        handle = next(handles)
        programs[handle] = Program(src)
        return handle

    def compileProgram(prog: int, options: Sequence[str]) -> None:
        program = programs[prog]
        (arch,) = (each for each in options if each.startswith(_ARCHITECTURE))
        others = tuple(each for each in options if each not in (arch, nvrtc.STANDARD))
        source = Source(program.source, arch.removeprefix(_ARCHITECTURE), others)
        counters.compilations += 1
        try:
            program.code = to_ptx(source).encode()
        except nvrtc.CompileError as error:
            program.log = str(error)
            raise NVRTCError(COMPILATION) from error

    def getCUBIN(prog: int) -> bytes:
        return programs[prog].code

    def getPTX(prog: int) -> bytes:
        return programs[prog].code

    def getVersion() -> tuple[int, int]:
        return nvrtc.version()

    def getSupportedArchs() -> tuple[int, ...]:
        return nvrtc.architectures()

    def getProgramLog(prog: int) -> str:
        return programs[prog].log

    def destroyProgram(prog: int) -> None:
        del programs[prog]

    made = (
        *(createProgram, compileProgram, getCUBIN, getPTX, getProgramLog, destroyProgram),
        *(getVersion, getSupportedArchs),
    )
    return {each.__name__: each for each in made}
