"""Every environment variable the library reads, in one table; Settings hold what they said."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from contract.errors import InvalidValueError

__all__ = [
    "VARIABLES",
    "LogSettings",
    "Settings",
    "Variable",
    "compiler_environment",
    "kernel_directory",
    "user_cache_directory",
]

MOST_DIGITS = 9  # of an integer
MOST_LINES = 10**MOST_DIGITS - 1  # of a plan cache


class Variable(NamedTuple):
    """One environment variable: its name, what it means, and the value when it is unset."""

    name: str
    meaning: str
    default: str


DISABLE_PLAN_CACHE = Variable(
    "CUTENSOR_DISABLE_PLAN_CACHE", "1: plan every call anew, keep no plan cache", "0"
)
CACHE_LINES = Variable(
    "CONTRACT_CACHE_LINES", "plans that a handle keeps at most, within 64 MiB", "4096"
)
NUM_THREADS = Variable(
    "CONTRACT_NUM_THREADS", "threads of the host kernels; 0: one for each usable core", "0"
)
OPENBLAS_THREADS = Variable(
    "OPENBLAS_NUM_THREADS",
    "threads of the host kernels, and of BLAS, at most; CONTRACT_NUM_THREADS wins over it",
    "",
)
OMP_THREADS = Variable(
    "OMP_NUM_THREADS", "the same, where OPENBLAS_NUM_THREADS is unset; of a list the first", ""
)
HOST_KERNELS = Variable(
    "CONTRACT_HOST_KERNELS",
    "auto, numba or numpy: which host kernels move, reduce and multiply data",
    "auto",
)
COMPILE = Variable(
    "CONTRACT_COMPILE",
    "background: calls run on NumPy's kernels while others are compiled; wait: they wait",
    "background",
)
HOPPER = Variable(
    "CONTRACT_HOPPER",
    "0: no product by TMA and wgmma on a GPU of 9.0; 1: where they are predicted to be fastest",
    "1",
)
TF32_OVERRIDE = Variable("NVIDIA_TF32_OVERRIDE", "0: never TF32 on a GPU, whatever is asked", "1")
CACHE = Variable(
    "CONTRACT_CACHE",
    "0: plans are not kept on disk; 1: in the user's cache directory; else: in that directory",
    "0",
)
CALIBRATION = Variable(
    "CONTRACT_CALIBRATION",
    "0: the built-in models of host and GPU; 1: what `python -m contract calibrate` (the host) or "
    "`python -m bench fit` (a GPU) found, in the user's cache directory; else: in that directory",
    "1",
)
CHECK = Variable(
    "CONTRACT_CHECK",
    "1: check every plan, and the arrays of every step on the host, before it runs: for tests",
    "0",
)
LOG_LEVEL = Variable(
    "CUTENSOR_LOG_LEVEL",
    "0 nothing, 1 Error, 2 Trace, 3 Hint, 4 Info, 5 Api, each with those before; it wins over the "
    "mask",
    "0",
)
LOG_MASK = Variable(
    "CUTENSOR_LOG_MASK",
    "what is logged, exactly: the sum of 1 Error, 2 Trace, 4 Hint, 8 Info, 16 Api",
    "0",
)
LOG_FILE = Variable(
    "CUTENSOR_LOG_FILE",
    "the file of the log, emptied first; every %i is the process id; unset: standard output",
    "",
)
NVTX_LEVEL = Variable("CUTENSOR_NVTX_LEVEL", "1: NVTX ranges around calls and steps, by CuPy", "0")

VARIABLES = (
    DISABLE_PLAN_CACHE,
    CACHE_LINES,
    NUM_THREADS,
    OPENBLAS_THREADS,
    OMP_THREADS,
    HOST_KERNELS,
    COMPILE,
    HOPPER,
    TF32_OVERRIDE,
    CACHE,
    CALIBRATION,
    CHECK,
    LOG_LEVEL,
    LOG_MASK,
    LOG_FILE,
    NVTX_LEVEL,
)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What is logged: a mask of levels, where lines go ("": standard output), NVTX ranges.

    ``refused`` is what is wrong with a value: then nothing is logged.
    """

    mask: int = 0
    file: str = ""
    nvtx: bool = False
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a Handle obeys; read from the environment once, when the Handle is made."""

    plan_cache: bool = True
    cache_lines: int = 4096
    threads: int = 0
    most_threads: int = 0
    kernels: str = "auto"
    compile: str = "background"
    hopper: bool = True
    tf32: bool = True
    cache_directory: Path | None = None
    calibration: str = "1"
    check: bool = False
    logging: LogSettings = LogSettings()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Settings":
        """Read every variable of VARIABLES.

        An invalid value raises InvalidValueError, one of logging turns that off.
        """
        values = os.environ if environment is None else environment
        return cls(
            plan_cache=not _integer(values, DISABLE_PLAN_CACHE, maximum=1),
            cache_lines=_integer(values, CACHE_LINES, maximum=MOST_LINES),
            threads=_integer(values, NUM_THREADS, maximum=4096),
            most_threads=_count(values, OPENBLAS_THREADS) or _count(values, OMP_THREADS),
            kernels=_choice(values, HOST_KERNELS, ("auto", "numba", "numpy")),
            compile=_choice(values, COMPILE, ("background", "wait")),
            hopper=bool(_integer(values, HOPPER, maximum=1)),
            tf32=values.get(TF32_OVERRIDE.name, TF32_OVERRIDE.default) != "0",
            cache_directory=_cache_directory(values.get(CACHE.name) or CACHE.default),
            calibration=values.get(CALIBRATION.name) or CALIBRATION.default,
            check=bool(_integer(values, CHECK, maximum=1)),
            logging=_log_settings(values),
        )

    def calibration_directory(self) -> Path | None:
        """Where fitted models are; asked for when something is planned."""
        return _cache_directory(self.calibration)


def user_cache_directory() -> Path:
    """Where this system keeps what the library may keep for the user."""
    from platformdirs import user_cache_path  # few programs ask

    return user_cache_path("contract")


def kernel_directory() -> Path | None:
    """Where CuPy keeps compiled kernels, by its own variables; None: on no disk."""
    if os.environ.get("CUPY_CACHE_IN_MEMORY") == "1":
        return None
    return Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")


def compiler_environment(folder: str | None) -> dict[str, str]:
    """What a process that compiles is told; Numba keeps what it compiles in ``folder`` if given."""
    told = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    if folder is not None:
        told["NUMBA_CACHE_DIR"] = folder
    return {**os.environ, **told}


def _cache_directory(text: str) -> Path | None:
    match text:
        case "0":
            return None
        case "1":
            return user_cache_directory()
    return Path(text)


def _log_settings(values: Mapping[str, str]) -> LogSettings:
    try:
        level = _integer(values, LOG_LEVEL, maximum=5)
        mask = _integer(values, LOG_MASK, maximum=31)
        nvtx = bool(_integer(values, NVTX_LEVEL, maximum=1))
    except InvalidValueError as error:
        return LogSettings(refused=str(error))
    if values.get(LOG_LEVEL.name):
        mask = (1 << level) - 1
    return LogSettings(mask, values.get(LOG_FILE.name, LOG_FILE.default), nvtx)


def _integer(values: Mapping[str, str], variable: Variable, maximum: int) -> int:
    text = values.get(variable.name) or variable.default
    if not text.isdecimal() or len(text) > MOST_DIGITS or int(text) > maximum:
        raise InvalidValueError(
            f"{variable.name} takes an integer from 0 to {maximum}: it is {text!r}."
        )
    return int(text)


def _count(values: Mapping[str, str], variable: Variable) -> int:
    """The first of a list of numbers; 0 for what says nothing, as it does to other libraries."""
    first = values.get(variable.name, variable.default).split(",")[0].strip()
    return int(first) if first.isdecimal() and len(first) <= MOST_DIGITS else 0


def _choice(values: Mapping[str, str], variable: Variable, choices: tuple[str, ...]) -> str:
    text = values.get(variable.name) or variable.default
    if text not in choices:
        raise InvalidValueError(f"{variable.name} takes one of {choices}: it is {text!r}.")
    return text
