"""The planner's candidates as contestants: what it predicts of each, and what each takes.

Ours is the plan that is chosen; the others are those of the ranks after it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from math import isfinite
from typing import Any

import numpy as np
import opt_einsum

from bench import report
from bench.device import Run
from bench.expressions import ALIGNMENT, packed_operands
from bench.measure import Case, Outcome, Prediction, Row
from bench.peers import OURS
from bench.reference import reference_of, split
from bench.report import Table, fraction_text, outcome_text, ratio_text, seconds_text
from bench.suites import (
    Choice,
    Entry,
    Work,
    copies,
    facts_of,
    in_turn,
    operand_bytes,
    operands_of,
    tccg_works,
)
from contract import Contraction, Handle, NotSupportedError, PlanPreference
from contract.execution.executor import Loaded
from contract.session.handle import default_handle

NEAR = 1.1  # of the best one's time is chosen well


def candidates(choice: Choice) -> list[Entry]:
    """TCCG's contractions, each by every candidate."""
    return [
        Entry(work.name.split()[0], partial(contest, work, choice)) for work in tccg_works(choice)
    ]


def contest(work: Work, choice: Choice) -> Case:
    """The candidates on the same arrays, each with a result of its own, NaN before it is written.

    The results are column-major, whatever the mode.
    """
    handle = choice.device.handle or default_handle()
    operands = operands_of(work, choice.dtype)
    plans = dict(zip(names(), ranked(handle, contraction(work, choice)), strict=False))
    placed = copies(operands, operand_bytes(operands), choice.device)
    shape = [work.extents[label] for label in split(work.text)[1]]
    runs = {
        name: in_turn([call(handle, plan, each, result) for each in placed])
        for name, plan in plans.items()
        for result in [choice.device.array(np.full(shape, np.nan, choice.dtype, order="F"))]
    }
    path = opt_einsum.contract_path(work.text, *operands)[1]
    return Case(
        facts_of(work, operands, path),
        runs,
        partial(
            *(reference_of, work.text, operands, work.seed, choice.compute),
            *(choice.device, placed[0]),
        ),
        packed=True,
        predictions={name: prediction(plan) for name, plan in plans.items()},
    )


def names() -> Iterator[str]:
    """The names of the contestants in the order of their ranks."""
    yield OURS
    yield from (f"rank {rank}" for rank in count(1))


def contraction(work: Work, choice: Choice) -> Contraction:
    """The operation on packed column-major tensors."""
    operands = packed_operands(work.text, work.extents, choice.dtype, ALIGNMENT)
    return Contraction(*operands, compute=choice.compute)


def ranked(handle: Handle, operation: Contraction) -> Iterator[Loaded]:
    """The plan of every rank there is, at least one."""
    yield handle.plan(operation)
    for rank in count(1):
        try:
            yield handle.plan(operation, PlanPreference(kernel_rank=rank))
        except NotSupportedError:
            return


def call(handle: Handle, plan: Loaded, operands: Sequence[Any], result: Any) -> Run:
    """The contraction into memory that is there."""
    a, b = operands

    def run() -> Any:
        handle.contract(plan, 1.0, a, b, 0.0, None, result)
        return result

    return run


def prediction(plan: Loaded) -> Prediction:
    """What the planner expects of a plan."""
    chosen = plan.plan.considered[0].chosen
    return Prediction(plan.plan.seconds, chosen.algo.name, chosen.reason)


# --- the table ------------------------------------------------------------------------------------


def header(title: str, contestants: Sequence[str]) -> str:
    """The column titles."""
    columns = f"{'chosen':>12}{'best':>12}{'ratio':>9}{'predicted':>11}{'bound':>7}{'count':>7}"
    return f"{title:<38}{columns}  chosen; best; by wgmma: time of what was predicted"


def line(row: Row) -> str:
    """The chosen candidate beside the best other one: ``ratio`` above 1 was chosen well.

    ``predicted`` is the part of the chosen one's time that was predicted. Those by TMA and wgmma
    follow.
    """
    right = {name: each for name, each in row.outcomes.items() if isfinite(each.seconds)}
    if OURS not in right:
        return f"{row.name[:37]:<38}{outcome_text(row.outcomes[OURS]):>12}"
    best = min(right, key=lambda name: right[name].seconds)
    expected = row.predictions[OURS].seconds / row.ours
    cells = (
        f"{seconds_text(row.ours):>12}{seconds_text(right[best].seconds):>12}"
        f"{ratio_text(row.ratio):>9}{expected:>10.2f}x{fraction_text(row.fraction):>7}"
        f"{_counted(row.outcomes):>7}"
    )
    by_wgmma = (name for name in right if "wgmma" in row.predictions[name].reason)
    picks = "; ".join(_pick(row, name) for name in dict.fromkeys((OURS, best, *by_wgmma)))
    return f"{row.name[:37]:<38}{cells}  {picks}"


def _counted(outcomes: Mapping[str, Outcome]) -> str:
    """How many candidates are right, of how many."""
    right = sum(not each.failure for each in outcomes.values())
    return f"{right}/{len(outcomes)}"


def _pick(row: Row, name: str) -> str:
    """A candidate with its time and what was predicted."""
    each = row.predictions[name]
    measured, predicted = seconds_text(row.outcomes[name].seconds), seconds_text(each.seconds)
    return f"{name}: {measured} of {predicted}, {each.algo} {each.reason}"


def summary(rows: Sequence[Row]) -> str:
    """As of other suites, and how often the planner chose well.

    Of cases with more than one candidate; a wrong one is not chosen well.
    """
    open_ones = [row for row in rows if len(row.predictions) > 1 and isfinite(row.best)]
    well = sum(row.ratio >= 1 / NEAR for row in open_ones)
    found = f"chosen within {NEAR - 1:.0%} of the best in {well} of {len(open_ones)} cases"
    return f"{report.summary(rows)}\n{found}"


PLANS = Table(header, line, summary)
