"""The host's model fitted to this machine, and whether it chooses better than the built-in one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import exp, inf, log
from statistics import median
from time import perf_counter, sleep

from contract.descriptors.operations import OperationDescriptor, PlanPreference
from contract.errors import ExecutionError
from contract.execution.executor import Loaded
from contract.host.executor import HostExecutor
from contract.machines.cpu import Cpu
from contract.plan.steps import Plan, Step
from contract.planner.planner import ranked_plans
from contract.session.model_fit import CHECKS, fitted
from contract.session.tuned_plan import measured_fastest

__all__ = ["Calibration", "Choices", "calibrated"]

SETTLED = 0.12  # seconds after which the threads of a BLAS wait for nothing any more
AWAKE = 0.03  # seconds of work after which a processor that slept is as fast as it gets
CANDIDATES = 6  # of each check: those that are predicted to take least
REPETITIONS = 3
SPREADS = 8  # products measured before the machine is called busy
MOST_SPREAD = 1.2  # of the slowest repetition over the fastest, in the median of products
NEAR = 1.1  # of the best candidate's time is chosen well


@dataclass(frozen=True, slots=True)
class Choices:
    """The time of the chosen candidate in that of the best one, for each check."""

    ratios: tuple[float, ...]

    @property
    def good(self) -> int:
        """How many are within 10 % of the best."""
        return sum(each <= NEAR for each in self.ratios)

    @property
    def lost(self) -> float:
        """The geometric mean, less 1."""
        return exp(sum(map(log, self.ratios)) / len(self.ratios)) - 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """The model fitted to the machine, and what both models choose."""

    cpu: Cpu
    before: Choices
    after: Choices

    @property
    def is_better(self) -> bool:
        """Whether the fitted model chooses better on the whole, and nowhere worse."""
        pairs = zip(self.before.ratios, self.after.ratios, strict=True)
        return self.after.lost <= self.before.lost and all(new <= old for old, new in pairs)


def calibrated(executor: HostExecutor, progress: Callable[[str], None]) -> Calibration:
    """Measure the probes, fit the model, and measure what it chooses; one or two minutes.

    ExecutionError where the machine has other work: times that do not repeat say nothing.
    """
    clock = _Clock(executor, progress)
    cpu = fitted(executor.built_in, clock.seconds)
    every = [plan for each in (executor.built_in, cpu) for plan in _leading(each)]
    for plan in every:
        clock.seconds(plan)
    return Calibration(cpu, clock.choices(executor.built_in), clock.choices(cpu))


def _leading(cpu: Cpu) -> Iterator[Plan]:
    """The candidates of all checks that a model predicts to take least."""
    for operation in CHECKS:
        yield from islice(ranked_plans(operation, PlanPreference(), cpu), CANDIDATES)


class _Clock:
    """What plans take, each measured several times in a row."""

    def __init__(self, executor: HostExecutor, progress: Callable[[str], None]) -> None:
        self._executor = executor
        self._progress = progress
        self._known: dict[tuple[OperationDescriptor, tuple[Step, ...]], float] = {}
        self._spreads: list[float] = []

    def seconds(self, plan: Plan) -> float:
        """The least of several calls."""
        key = plan.operation, plan.steps
        if key not in self._known:
            self._progress(f"{len(self._known)} products measured")
            loaded = self._executor.load(plan)
            times = [self._least(loaded) for _ in range(REPETITIONS)]
            self._require_quiet(max(times) / min(times))
            self._known[key] = min(times)
        return self._known[key]

    def _require_quiet(self, spread: float) -> None:
        """ExecutionError where every other product's times lie too far apart."""
        self._spreads.append(spread)
        usual = median(self._spreads)
        if len(self._spreads) >= SPREADS and usual > MOST_SPREAD:
            raise ExecutionError(
                f"The machine is busy: measured again, a product takes {usual:.2f} times as long. "
                "Nothing is kept; calibrate when nothing else runs."
            )

    def _least(self, loaded: Loaded) -> float:
        """The least of calls in a row: what else the machine does may last longer than they."""
        sleep(SETTLED)
        awake, least = perf_counter() + AWAKE, inf
        while least == inf or perf_counter() < awake:
            _, (seconds,) = measured_fastest([loaded], self._executor)
            least = min(least, seconds)
        return least

    def choices(self, cpu: Cpu) -> Choices:
        """What the model chooses for the checks, against everything that was measured of them."""
        ratios = []
        for operation in CHECKS:
            chosen = self.seconds(next(ranked_plans(operation, PlanPreference(), cpu)))
            best = min(time for (each, _), time in self._known.items() if each == operation)
            ratios.append(chosen / best)
        return Choices(tuple(ratios))
