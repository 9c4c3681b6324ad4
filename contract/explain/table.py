"""Plan -> a table a person reads: steps, strides, costs, candidates and why one was chosen."""

from collections.abc import Iterator, Sequence

from contract.descriptors.text import notation
from contract.explain.scaling import Scaling, scaling_of, step_modes
from contract.plan.steps import (
    Candidate,
    Decision,
    Gemm,
    Gett,
    Panels,
    Plan,
    Tiles,
    modes_text,
    step_flops,
)
from contract.support.text import Row, aligned, count, numbers, seconds

__all__ = ["explain"]

LEGEND = (
    "T0, T1, ... are the operands, C is added, D is the result, W0, W1, ... lie in between.",
    "[ab=576:1 k=24:576]: a and b are one loop of 576 elements that lie 1 element apart, k has 24",
    "that lie 576 apart. Bound: what limits a step, arithmetic (compute) or memory. Kinds of loops",
    "are l (all operands have it), m (A and D), n (B and D), k (A and B, summed). * is chosen.",
)


def explain(plan: Plan, measured: float | None = None) -> str:
    """What a plan costs and why it was chosen; ``measured`` are the seconds of a call.

    The scaling and time of every operation, the plan's table, the loops of every product, the
    candidates of every operation, and how to read all that.
    """
    scaling = scaling_of(plan)
    head = notation(plan.operation), str(scaling), *_costs(plan, scaling, measured)
    parts = ["\n".join(filter(None, head)), str(plan)]
    for at, step in enumerate(plan.steps):
        if isinstance(step, Gemm | Gett):
            parts.append("\n".join((f"step {at}: loops", *aligned(_loop_rows(plan, step)))))
    for steps, decision in plan.decided():
        rows = aligned(_candidate_rows(decision.candidates))
        parts.append("\n".join((f"step {numbers(steps)}: candidates", *rows)))
    return "\n\n".join((*parts, "\n".join(LEGEND)))


def _costs(plan: Plan, scaling: Scaling, measured: float | None) -> Iterator[str]:
    """A row for each operation, then the whole: scaling, FLOPs, time and rate."""
    rows = [_cost_row(plan, scaling, *each) for each in plan.decided()]
    if len(rows) > 1:
        rows.append(("all", "", *_work(plan.flops, plan.seconds), "predicted"))
    if measured is not None:
        rows.append(("all", "", *_work(plan.flops, measured), "measured"))
    whole = scaling.of(range(len(plan.labels)))
    rows.append(("one loop nest", whole, f"{count(plan.naive_flops)}FLOP", "", "", "not run"))
    yield from aligned((("steps", "scaling", "work", "time", "rate", ""), *rows))


def _cost_row(plan: Plan, scaling: Scaling, steps: range, decision: Decision) -> Row:
    work = [(step_flops(plan.steps[at]), step_modes(plan.steps[at])) for at in steps]
    flops = sum(each for each, _ in work)
    _, modes = max(work, key=lambda each: each[0])
    times = _work(flops, decision.chosen.seconds)
    return (numbers(steps), scaling.of(modes), *times, "predicted")


def _work(flops: int, duration: float) -> tuple[str, str, str]:
    """FLOPs, time, and FLOPs per second where there are any."""
    rate = f"{count(flops / duration)}FLOP/s" if flops and duration else ""
    return f"{count(flops)}FLOP", seconds(duration), rate


def _loop_rows(plan: Plan, step: Gemm | Gett) -> Iterator[Row]:
    yield ("kind", "modes", "extent", "A", "B", "D", "block")
    blocks: Sequence[int] = [loop.extent for loop in step.loops]
    if isinstance(step, Gett) and isinstance(step.blocking, Panels | Tiles):
        blocks = step.blocking.blocks
    for loop, block in zip(step.loops, blocks, strict=True):
        strides = (str(stride) if stride else "-" for stride in (loop.a, loop.b, loop.d))
        yield (
            loop.kind.value,
            modes_text(plan, loop.modes),
            str(loop.extent),
            *strides,
            str(block),
        )


def _candidate_rows(candidates: Sequence[Candidate], most: int = 12) -> Iterator[Row]:
    yield ("", "algorithm", "predicted", "why")
    for each in candidates[:most]:
        mark = "*" if each.chosen else ""
        yield (mark, each.algo.name, seconds(each.seconds), each.reason)
    if len(candidates) > most:
        yield ("", "...", "", f"{len(candidates) - most} more")
