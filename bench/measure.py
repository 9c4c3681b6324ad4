"""Measuring: interleaved medians, and what a row says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, nan
from statistics import median

from bench.device import HOST, Ceilings, Device, Run, host_seconds
from bench.reference import Reference

Clock = Callable[[Run, int], float]

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
    wrong. ``predictions`` are of those contestants that come from a planner.
    """

    facts: Facts
    runs: Mapping[str, Run]
    reference: Callable[[], Reference]
    packed: bool = False
    short: bool = False
    predictions: Mapping[str, Prediction] = field(default_factory=dict)


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

    facts: Facts
    outcomes: Mapping[str, Outcome]
    bound: float
    tolerance: float
    predictions: Mapping[str, Prediction] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The case's name."""
        return self.facts.name

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


def measure(case: Case, ceilings: Ceilings, repeat: int, device: Device = HOST) -> Row:
    """First calls checked, then ``repeat`` rounds of every right contestant (A B A B ...)."""
    outcomes, tolerance = first_calls(case, device)
    right = {name: case.runs[name] for name, each in outcomes.items() if not each.failure}
    samples = interleaved(right, repeat, case.short, device)
    rows = {
        name: Outcome(each.first, tuple(samples.get(name, ())), each.error, each.failure)
        for name, each in outcomes.items()
    }
    bound = ceilings.bound(case.facts.flops, case.facts.bytes)
    return Row(case.facts, rows, bound, tolerance, case.predictions)


def first_calls(case: Case, device: Device) -> tuple[dict[str, Outcome], float]:
    """The cold first call of each contestant, held to the reference; and the tolerance."""
    reference = case.reference()
    outcomes = {
        name: first_call(run, reference, case.packed, device) for name, run in case.runs.items()
    }
    return outcomes, reference.tolerance


def first_call(run: Run, reference: Reference, packed: bool, device: Device) -> Outcome:
    """One timed call; an exception is recorded as a failure, with its text."""
    results = []

    def call() -> None:
        results.append(run())
        device.wait()

    try:
        spent = host_seconds(call, 1)
        found = device.numpy(results.pop())
    except Exception as error:
        return Outcome(nan, failure=described(error))
    distance = reference.error_of(found)
    failure = reference.verdict(distance)
    if not failure and packed and not found.flags.f_contiguous:
        failure = "the result is not packed column-major"
    return Outcome(spent, error=distance, failure=failure)


def described(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}"


def interleaved(
    runs: Mapping[str, Run], repeat: int, short: bool, device: Device
) -> dict[str, list[float]]:
    """``repeat`` samples of seconds per call for each run, taken in turn."""
    clock = device.call_clock if short else device.clock
    batched = short or device.batched
    counts = {name: calls_for(run, clock) if batched else 1 for name, run in runs.items()}
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeat):
        for name, run in runs.items():
            samples[name].append(clock(run, counts[name]))
    return samples


def calls_for(run: Run, clock: Clock) -> int:
    """How many calls take BATCH_SECONDS; at most BATCH_CALLS."""
    count = 1
    while clock(run, count) * count < BATCH_SECONDS and count < BATCH_CALLS:
        count *= 2
    return count


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean(log x)); NaN of nothing."""
    return exp(sum(map(log, values)) / len(values)) if values else nan
