"""Measuring: interleaved medians, the machine's two ceilings, and what a row says."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import exp, log
from statistics import median
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One piece of work: what each contestant runs, its cost, and the right answer.

    ``runs`` maps a contestant's name to its call, ours first. ``flops`` and ``bytes`` are the
    least any implementation does and moves; 0 where a bound says nothing.
    """

    name: str
    runs: Mapping[str, Run]
    reference: Callable[[], Array]
    flops: float = 0.0
    bytes: float = 0.0
    tolerance: float = 1e-10


@dataclass(frozen=True, slots=True)
class Ceilings:
    """FLOP/s of the library's matrix product, bytes/s (read + written) of a large copy."""

    flops: float
    bandwidth: float

    def bound(self, case: Case) -> float:
        """The least seconds: max(FLOPs / peak, bytes / bandwidth)."""
        return max(case.flops / self.flops, case.bytes / self.bandwidth)


@dataclass(frozen=True, slots=True)
class Row:
    """The outcome of a case: seconds per contestant (medians), the first call, and errors."""

    name: str
    seconds: Mapping[str, float]
    first: float
    bound: float
    flops: float
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def ours(self) -> float:
        """Our seconds: the first contestant's."""
        return next(iter(self.seconds.values()))

    @property
    def best_peer(self) -> float:
        """The seconds of the fastest peer that gave the right answer."""
        peers = [s for name, s in list(self.seconds.items())[1:] if name not in self.failed]
        return min(peers, default=float("nan"))

    @property
    def ratio(self) -> float:
        """How many times as fast as the best peer we are; NaN where we are wrong."""
        return (
            float("nan") if next(iter(self.seconds)) in self.failed else self.best_peer / self.ours
        )

    @property
    def fraction(self) -> float:
        """The part of the bound that is reached."""
        return self.bound / self.ours


def measure(case: Case, ceilings: Ceilings, repeat: int) -> Row:
    """Run every contestant in turn (A B A B ...); a wrong result is a failed contestant."""
    reference = case.reference()
    first: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name, run in case.runs.items():
        first[name], result = timed(run)
        error = relative_error(result, reference)
        if not error <= case.tolerance:
            failed[name] = f"relative error {error:.2e}"
        del result
    samples: dict[str, list[float]] = {name: [] for name in case.runs}
    for _ in range(repeat):
        for name, run in case.runs.items():
            samples[name].append(timed(run)[0])
    medians = {name: median(times) for name, times in samples.items()}
    ours = next(iter(case.runs))
    return Row(case.name, medians, first[ours], ceilings.bound(case), case.flops, failed)


def timed(run: Run) -> tuple[float, Any]:
    """(seconds, result) of one call."""
    begin = time.perf_counter()
    result = run()
    return time.perf_counter() - begin, result


def per_call(run: Run, seconds: float = 0.02) -> float:
    """Seconds of one call of something too short to time alone."""
    count = 1
    while True:
        begin = time.perf_counter()
        for _ in range(count):
            run()
        spent = time.perf_counter() - begin
        if spent >= seconds:
            return spent / count
        count *= 4


def measure_short(case: Case, repeat: int) -> Row:
    """As measure, for calls of microseconds: each sample is a mean over many calls."""
    reference = case.reference()
    first, _ = timed(next(iter(case.runs.values())))
    failed = {
        name: "wrong"
        for name, run in case.runs.items()
        if not relative_error(run(), reference) <= case.tolerance
    }
    samples: dict[str, list[float]] = {name: [] for name in case.runs}
    for _ in range(repeat):
        for name, run in case.runs.items():
            samples[name].append(per_call(run))
    medians = {name: median(times) for name, times in samples.items()}
    return Row(case.name, medians, first, float("nan"), case.flops, failed)


def relative_error(result: Any, reference: Array) -> float:
    """max |result - reference| / max |reference|; infinite for a wrong shape."""
    found = np.asarray(result)
    if found.shape != reference.shape:
        return float("inf")
    scale = float(np.max(np.abs(reference), initial=0.0)) or 1.0
    return float(np.max(np.abs(found - reference), initial=0.0)) / scale


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean(log x))."""
    return exp(sum(map(log, values)) / len(values)) if values else float("nan")


def ceilings(dtype: str, threads: int) -> Ceilings:
    """Both ceilings, measured now: the best of five of each."""
    n = 1536
    a, b = (np.random.default_rng(0).random((n, n)).astype(dtype) for _ in range(2))
    factor = 8 if np.iscomplexobj(a) else 2
    product = min(timed(lambda: np.matmul(a, b))[0] for _ in range(5))
    size = (128 << 20) // a.itemsize
    source, target = np.ones(size, dtype), np.empty(size, dtype)
    edges = [size * part // threads for part in range(threads + 1)]

    def copy(part: int) -> None:
        where = slice(edges[part], edges[part + 1])
        np.copyto(target[where], source[where])

    with ThreadPoolExecutor(threads) as pool:
        moved = min(timed(lambda: list(pool.map(copy, range(threads))))[0] for _ in range(5))
    return Ceilings(factor * n**3 / product, 2 * source.nbytes / moved)
