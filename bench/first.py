"""python -m bench first: the first calls of fresh processes, against NumPy's.

Cold: no folder has anything compiled. Warm: everything is compiled, by another process. Unwritable:
there is no folder for it. Wait: cold, and calls wait for the compiler.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

__all__ = ["main"]

TYPES = ("float32", "float64", "complex64", "complex128", "int64")
CALLS: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = (
    ("ab,bc->ac", ((120, 130), (130, 140))),
    ("abc,cd->abd", ((40, 50, 60), (60, 30))),
    ("bij,bjk->bik", ((20, 40, 50), (20, 50, 30))),
    ("abc->b", ((60, 50, 40),)),
    ("abc->cab", ((60, 50, 40),)),
)
NOWHERE = "/dev/null/nowhere"
UNWRITABLE = {
    "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
    "NUMBA_CACHE_DIR": NOWHERE,
    "XDG_CACHE_HOME": NOWHERE,
}
STATES = ("cold", "warm", "unwritable", "wait")


class Seen(NamedTuple):
    """Seconds: to import the library, of each first call, until all is compiled, of calls then."""

    imported: float
    first: list[float]
    switched: float
    later: list[float]

    def __sub__(self, other: "Seen") -> float:  # type: ignore[override]
        """By how much the call is longer that is longer by most."""
        return max(ours - theirs for ours, theirs in zip(self.first, other.first, strict=True))


def main(arguments: Sequence[str]) -> int:
    """Print a row for each state."""
    parser = argparse.ArgumentParser(prog="python -m bench first", description=__doc__)
    parser.add_argument("states", nargs="*", metavar="STATE", help=", ".join(STATES))
    states = parser.parse_args(arguments).states or STATES
    if unknown := set(states) - set(STATES):
        parser.error(f"no such state: {', '.join(sorted(unknown))}")
    with TemporaryDirectory() as folder:
        numpy = _seen("numpy", {})
        print(f"{len(CALLS)} expressions in {len(TYPES)} types, seconds")
        print(f"{'':12}{'import':>8}{'calls':>8}{'over NumPy':>12}{'switched':>10}{'then':>8}")
        _print("numpy", numpy, numpy)
        for state in states:
            _print(state, _seen("contract", _environment(state, Path(folder))), numpy)
    return 0


def _print(state: str, seen: Seen, numpy: Seen) -> None:
    print(
        f"{state:12}{seen.imported:8.3f}{sum(seen.first):8.3f}{seen - numpy:12.3f}"
        f"{seen.switched:10.1f}{sum(seen.later):8.3f}",
        flush=True,
    )


def _environment(state: str, folder: Path) -> dict[str, str]:
    """Where compiled code is kept in a state, which is first brought about."""
    if state == "unwritable":
        return UNWRITABLE
    own = {"NUMBA_CACHE_DIR": str(folder / state), "XDG_CACHE_HOME": str(folder / state)}
    waits, goes_on = ({**own, "CONTRACT_COMPILE": mode} for mode in ("wait", "background"))
    if state == "warm":
        _seen("contract", waits)
    return waits if state == "wait" else goes_on


def _seen(library: str, environment: dict[str, str]) -> Seen:
    """What a fresh process sees."""
    command = [sys.executable, "-m", "bench.first", library]
    told = {**os.environ, **environment}
    done = subprocess.run(command, env=told, stdout=subprocess.PIPE, text=True, check=True)
    return Seen(*json.loads(done.stdout))


def _see(library: str) -> Seen:
    """The calls, in this process."""
    begin = perf_counter()
    einsum, switched = _library(library)
    imported = perf_counter() - begin
    cases = [(text, _operands(shapes, dtype)) for dtype in TYPES for text, shapes in CALLS]
    first = [_seconds(einsum, text, operands) for text, operands in cases]
    waited = switched()
    return Seen(imported, first, waited, [_seconds(einsum, *case) for case in cases])


def _library(name: str) -> tuple[Callable[..., Any], Callable[[], float]]:
    """What contracts, and what waits until everything is compiled."""
    if name == "numpy":
        return lambda text, operands: np.einsum(text, *operands, optimize=True), lambda: 0.0
    from contract import contract
    from contract.execution.compiled_code import compiled_code

    def switched() -> float:
        begin = perf_counter()
        compiled_code().wait()
        return perf_counter() - begin

    return lambda text, operands: contract(text, *operands), switched


def _operands(shapes: Sequence[tuple[int, ...]], dtype: str) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.integers(-9, 10, shape).astype(dtype) for shape in shapes]


def _seconds(einsum: Callable[..., Any], text: str, operands: list[Any]) -> float:
    begin = perf_counter()
    einsum(text, operands)
    return perf_counter() - begin


if __name__ == "__main__":
    print(json.dumps(_see(sys.argv[1])))
