"""CUDA C++ to PTX to a shared library, both cached; one source or many at once.

prebuild([Source(text) for text in corpus])  # on all cores
Device().load(corpus[0])                     # finds it built
"""

import functools
import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import nvrtc, ptx
from .build import build_module, cache_directory, cached, digest, engine, engine_key
from .translate import translate


@dataclass(frozen=True, slots=True)
class Source:
    """CUDA C++, the architecture it is for, and further options of NVRTC."""

    text: str
    arch: str = "sm_90"
    options: tuple[str, ...] = ()


def to_ptx(source: Source) -> str:
    """The PTX of a source."""

    def make(target: Path) -> None:
        target.write_text(nvrtc.compile_ptx(source.text, source.arch, source.options).text)

    return cached(_ptx_file(source), make).read_text()


def library(text: str) -> Path:
    """The shared library of a PTX module."""

    def make(target: Path) -> None:
        build_module(translate(ptx.parse(text)), target)

    engine()  # before the module's lock is held, which may be the engine's too
    return cached(_library_file(text), make)


def prebuild(sources: Iterable[Source]) -> None:
    """Build what is missing of the sources, in as many processes as there are cores.

    Processes, because NVRTC and the translator run one at a time in each.  A source that fails
    raises here, once the others are done.
    """
    missing = [source for source in dict.fromkeys(sources) if not _is_built(source)]
    if not missing:
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), context) as pool:
        # Modules are linked to the engine; meanwhile the other processes compile to PTX.
        pool.submit(engine)
        compiled = [pool.submit(to_ptx, source) for source in missing]
        built = [pool.submit(_build, source) for source in missing]
    for done in (*compiled, *built):
        done.result()


def _build(source: Source) -> None:
    library(to_ptx(source))


def _is_built(source: Source) -> bool:
    text = cache_directory() / _ptx_file(source)
    return text.exists() and (cache_directory() / _library_file(text.read_text())).exists()


def _ptx_file(source: Source) -> str:
    version = ".".join(map(str, nvrtc.version()))
    parts = (_tools_key(), version, source.arch, *source.options, source.text)
    return f"{digest(*parts)}.ptx"


def _library_file(text: str) -> str:
    return f"{digest(_tools_key(), engine_key(), text)}.so"


@functools.cache
def _tools_key() -> str:
    """The compiler's flags and the translator."""
    here = Path(__file__).parent
    files = ["nvrtc.py", "ptx.py", "translate.py", *sorted(here.glob("opcodes/*.py"))]
    return digest(*((here / file).read_text() for file in files))
