"""Measuring: interleaved medians, the machine's two ceilings, and what a row says."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import exp, log, nan
from statistics import median
from typing import Any

import numpy as np

from bench.reference import Reference

Run = Callable[[], Any]

SHORT_SAMPLE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Case:
    """One piece of work: what each contestant runs, the right answer, the least it costs.

    ``runs`` maps a contestant's name to its call, ours first. ``flops`` (real operations) and
    ``bytes`` (read + written) are the least an implementation does and moves; where both are 0
    there is no bound. ``short`` calls are timed many at a time. With ``packed`` a result that
    is not column-major without gaps is wrong.
    """

    name: str
    runs: Mapping[str, Run]
    reference: Callable[[], Reference]
    flops: float = 0.0
    bytes: float = 0.0
    packed: bool = False
    short: bool = False
    note: str = ""
    extents: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """FLOP/s of the library's matrix product, bytes/s (read + written) of a large copy."""

    flops: float
    bandwidth: float

    def bound(self, case: Case) -> float:
        """The least seconds: max(FLOPs / peak, bytes / bandwidth); NaN where nothing is known."""
        return max(case.flops / self.flops, case.bytes / self.bandwidth) or nan


@dataclass(frozen=True, slots=True)
class Outcome:
    """One contestant in one case: the cold first call, samples in seconds, its error.

    ``failure`` says why the result does not count; a failed contestant has no samples.
    """

    first: float
    samples: tuple[float, ...] = ()
    error: float = nan
    failure: str = ""

    @property
    def seconds(self) -> float:
        """The median sample; NaN for a failed contestant."""
        return median(self.samples) if self.samples and not self.failure else nan


@dataclass(frozen=True, slots=True)
class Row:
    """The outcomes of a case, ours first, and the bound in seconds."""

    case: Case
    outcomes: Mapping[str, Outcome]
    bound: float
    tolerance: float

    @property
    def name(self) -> str:
        """The case's name."""
        return self.case.name

    @property
    def ours(self) -> float:
        """Our median seconds."""
        return next(iter(self.outcomes.values())).seconds

    @property
    def ratios(self) -> Mapping[str, float]:
        """Peer's seconds / our seconds for each peer; above 1 we are faster."""
        peers = list(self.outcomes.items())[1:]
        return {name: outcome.seconds / self.ours for name, outcome in peers}

    @property
    def ratio(self) -> float:
        """How many times as fast as the best right peer we are; NaN where we are wrong."""
        return min((ratio for ratio in self.ratios.values() if ratio == ratio), default=nan)

    @property
    def fraction(self) -> float:
        """The part of the bound that is reached: bound / our seconds."""
        return self.bound / self.ours

    @property
    def failures(self) -> Mapping[str, str]:
        """Why, for each contestant whose result does not count."""
        return {name: each.failure for name, each in self.outcomes.items() if each.failure}


def measure(case: Case, ceilings: Ceilings, repeat: int) -> Row:
    """First calls checked, then ``repeat`` rounds of every right contestant (A B A B ...)."""
    outcomes, tolerance = first_calls(case)
    right = {name: case.runs[name] for name, each in outcomes.items() if not each.failure}
    samples = interleaved(right, repeat, case.short)
    rows = {
        name: Outcome(each.first, tuple(samples.get(name, ())), each.error, each.failure)
        for name, each in outcomes.items()
    }
    return Row(case, rows, ceilings.bound(case), tolerance)


def first_calls(case: Case) -> tuple[dict[str, Outcome], float]:
    """The cold first call of each contestant, held to the reference; and the tolerance."""
    reference = case.reference()
    return {name: first_call(case, run, reference) for name, run in case.runs.items()}, (
        reference.tolerance
    )


def first_call(case: Case, run: Run, reference: Reference) -> Outcome:
    """One timed call; an exception is recorded as a failure, with its text."""
    begin = time.perf_counter()
    try:
        result = run()
    except Exception as error:
        spent = time.perf_counter() - begin
        return Outcome(spent, failure=f"{type(error).__name__}: {error}")
    spent = time.perf_counter() - begin
    found = np.asarray(result)
    error = reference.error_of(found)
    failure = reference.verdict(error)
    if not failure and case.packed and not found.flags.f_contiguous:
        failure = "the result is not packed column-major"
    return Outcome(spent, error=error, failure=failure)


def interleaved(runs: Mapping[str, Run], repeat: int, short: bool) -> dict[str, list[float]]:
    """``repeat`` samples of seconds per call for each run, taken in turn."""
    counts = {name: calls_for(run) if short else 1 for name, run in runs.items()}
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeat):
        for name, run in runs.items():
            samples[name].append(sample(run, counts[name]))
    return samples


def sample(run: Run, count: int) -> float:
    """Seconds of one call: the mean over ``count`` calls in a row."""
    each = range(count)
    begin = time.perf_counter()
    for _ in each:
        run()
    return (time.perf_counter() - begin) / count


def calls_for(run: Run) -> int:
    """How many calls take SHORT_SAMPLE_SECONDS."""
    count = 1
    while sample(run, count) * count < SHORT_SAMPLE_SECONDS:
        count *= 2
    return count


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean(log x)); NaN of nothing."""
    return exp(sum(map(log, values)) / len(values)) if values else nan


def ceilings(dtype: str, threads: int) -> Ceilings:
    """Both ceilings, measured now: the best of five of each."""
    return Ceilings(product_rate(dtype, 1536), copy_rate(threads, 128 << 20))


def product_rate(dtype: str, n: int) -> float:
    """Real FLOP/s of the library's n x n matrix product."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, (n, n)).astype(dtype) for _ in range(2))
    operations = 8 if np.iscomplexobj(a) else 2
    return operations * n**3 / min(sample(lambda: np.matmul(a, b), 1) for _ in range(5))


def copy_rate(threads: int, size: int) -> float:
    """Bytes/s (read + written) of a copy of ``size`` bytes shared by ``threads``."""
    source, target = np.ones(size // 8), np.zeros(size // 8)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))

    with ThreadPoolExecutor(threads) as pool:

        def copy() -> None:
            for each in [pool.submit(np.copyto, theirs, mine) for mine, theirs in parts]:
                each.result()

        return 2 * source.nbytes / min(sample(copy, 1) for _ in range(5))
