"""Measuring: interleaved medians, and what a row says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import exp, isfinite, log, nan
from statistics import median
from time import perf_counter, sleep

from bench.device import HOST, Ceilings, Device, Run, host_seconds
from bench.reference import Reference

Clock = Callable[[Run, int], float]

SETTLED = 0.12  # seconds: OpenBLAS's threads wait for work, taking a core each, for 2^28 clocks
AWAKE = 0.02  # seconds of work after which a processor that slept is as fast as it gets
FLOOR = "floor"  # its name among the contestants
BATCH_SECONDS = 0.02
BATCH_CALLS = 1 << 14


@dataclass(frozen=True, slots=True)
class Facts:
    """What a case is: its name, the least it costs, its extents.

    ``flops`` (real operations) and ``bytes`` (read + written) are the least an implementation
    does and moves; where both are 0 there is no bound.
    """

    name: str
    flops: float = 0.0
    bytes: float = 0.0
    note: str = ""
    extents: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a planner expects of a contestant: its seconds, which algorithm it is, and why."""

    seconds: float
    algo: str
    reason: str


@dataclass(frozen=True, slots=True)
class Case:
    """One piece of work: what each contestant runs, and the right answer.

    ``runs`` maps a contestant's name to its call, ours first. ``short`` calls are timed many at
    a time, until they return. With ``packed`` a result that is not column-major without gaps is
    wrong. ``predictions`` are of those contestants that come from a planner. ``floor`` is what no
    contestant does quicker: where there is one it is timed in turn with them, and is the bound.
    """

    facts: Facts
    runs: Mapping[str, Run]
    reference: Callable[[], Reference]
    packed: bool = False
    short: bool = False
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    floor: Run | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One contestant in one case: the cold first call, samples in seconds, its largest error.

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
    """The outcomes of a case, ours first, and the bound in seconds.

    ``floor`` has its samples, where it was timed in turn with the contestants.
    """

    facts: Facts
    outcomes: Mapping[str, Outcome]
    bound: float
    tolerance: float
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    floor: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """The case's name."""
        return self.facts.name

    @property
    def ours(self) -> float:
        """Our median seconds."""
        return next(iter(self.outcomes.values())).seconds

    @property
    def best_peer(self) -> str:
        """The name of the quickest right peer, empty where there is none."""
        peers = list(self.outcomes)[1:]
        timed = [name for name in peers if isfinite(self.outcomes[name].seconds)]
        return min(timed, key=lambda name: self.outcomes[name].seconds, default="")

    @property
    def best(self) -> float:
        """Its median seconds; NaN where there is none."""
        return self.outcomes[self.best_peer].seconds if self.best_peer else nan

    @property
    def ratios(self) -> Mapping[str, float]:
        """Peer's seconds / our seconds for each peer; above 1 we are faster."""
        peers = list(self.outcomes.items())[1:]
        return {name: outcome.seconds / self.ours for name, outcome in peers}

    @property
    def ratio(self) -> float:
        """How many times as fast as the best right peer we are; NaN where we are wrong."""
        return self.best / self.ours

    @property
    def fraction(self) -> float:
        """The part of the bound that is reached: bound / our seconds."""
        return self.bound / self.ours

    @property
    def failures(self) -> Mapping[str, str]:
        """Why, for each contestant whose result does not count."""
        return {name: each.failure for name, each in self.outcomes.items() if each.failure}


def measure(case: Case, ceilings: Ceilings | None, repeat: int, device: Device = HOST) -> Row:
    """First calls checked, ``repeat`` rounds of every right contestant (A B A B ...), last calls.

    The last calls are checked too, for those between may be answered from what the first left
    behind; they are not timed. With ``repeat`` 0 nothing is. Without ceilings there is no bound.
    """
    reference = case.reference()
    check = partial(checked_call, reference=reference, packed=case.packed, device=device)
    firsts = {name: check(run) for name, run in case.runs.items()}
    right = {name: case.runs[name] for name, each in firsts.items() if not each.failure}
    timed = right if case.floor is None else {**right, FLOOR: case.floor}
    samples, failed = interleaved(timed, repeat, case.short, device) if repeat else ({}, {})
    floor = tuple(samples.pop(FLOOR, ()))
    lasts = {name: failed.get(name) or check(run) for name, run in right.items()}
    outcomes = {
        name: whole(each, samples.get(name, ()), lasts[name]) if name in right else each
        for name, each in firsts.items()
    }
    bound = ceilings.bound(case.facts.flops, case.facts.bytes) if ceilings else nan
    bound = median(floor) if floor else bound
    return Row(case.facts, outcomes, bound, reference.tolerance, case.predictions, floor)


def whole(first: Outcome, samples: Sequence[float], last: Outcome) -> Outcome:
    """What the first call, the samples and the last call say together."""
    if last.failure:
        return replace(last, first=first.first, failure=f"{last.failure}, after right results")
    return Outcome(first.first, tuple(samples), max(first.error, last.error))


def checked_call(run: Run, reference: Reference, packed: bool, device: Device) -> Outcome:
    """One timed call; an exception is recorded as a failure, with its text."""
    results = []

    def call() -> None:
        results.append(run())
        device.wait()

    try:
        spent = host_seconds(call, 1)
        found = results.pop()
        distance = reference.error_of(device.wide(found))
    except Exception as error:
        return Outcome(nan, failure=described(error))
    failure = reference.verdict(distance)
    if not failure and packed and not device.is_packed(found):
        failure = "the result is not packed column-major"
    return Outcome(spent, error=distance, failure=failure)


def described(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}"


def interleaved(
    runs: Mapping[str, Run], repeat: int, short: bool, device: Device
) -> tuple[dict[str, list[float]], dict[str, Outcome]]:
    """``repeat`` samples of seconds per call for each run, taken in turn, and what failed.

    Before each, the threads of the one before go to sleep; where calls are quick, untimed ones
    wake the processor and their own threads. A run that fails is not called again.
    """
    clock = device.call_clock if short else device.clock
    batched = short or device.batched
    counts: dict[str, int] = {}
    samples: dict[str, list[float]] = {name: [] for name in runs}
    failed: dict[str, Outcome] = {}

    def sample(name: str, run: Run) -> None:
        if name not in counts:
            counts[name] = calls_for(run, clock) if batched else 1
        if not batched:
            sleep(SETTLED)
            if not samples[name] or samples[name][-1] < SETTLED:
                wake(run)
        samples[name].append(clock(run, counts[name]))

    for _ in range(repeat):
        for name, run in runs.items():
            if name in failed:
                continue
            try:
                sample(name, run)
            except Exception as error:
                failed[name] = Outcome(nan, failure=described(error))
    return samples, failed


def wake(run: Run) -> None:
    """Run until the processor is awake."""
    awake = perf_counter() + AWAKE
    while perf_counter() < awake:
        run()


def calls_for(run: Run, clock: Clock) -> int:
    """How many calls take BATCH_SECONDS; at most BATCH_CALLS."""
    count = 1
    while clock(run, count) * count < BATCH_SECONDS and count < BATCH_CALLS:
        count *= 2
    return count


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean(log x)); NaN of nothing."""
    return exp(sum(map(log, values)) / len(values)) if values else nan
