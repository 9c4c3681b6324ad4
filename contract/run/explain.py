"""Plan -> a table a person reads: steps, strides, costs, candidates and why one was chosen."""

from collections.abc import Iterator, Sequence

from contract.plan import Candidate, Gemm, Gett, Plan, modes_text
from contract.text import Row, aligned, numbers, seconds

__all__ = ["explain"]


def explain(plan: Plan) -> str:
    """The plan's table, the loops of every product, and the candidates of every operation."""
    parts = [str(plan)]
    for at, step in enumerate(plan.steps):
        if isinstance(step, Gemm | Gett):
            parts.append("\n".join((f"step {at}: loops", *aligned(_loop_rows(plan, step)))))
    for steps, decision in plan.decided():
        rows = aligned(_candidate_rows(decision.candidates))
        parts.append("\n".join((f"step {numbers(steps)}: candidates", *rows)))
    return "\n\n".join(parts)


def _loop_rows(plan: Plan, step: Gemm | Gett) -> Iterator[Row]:
    yield ("kind", "modes", "extent", "A", "B", "D", "block")
    blocks: Sequence[int] = [loop.extent for loop in step.loops]
    blocked = (step.panels or step.tiles) if isinstance(step, Gett) else None
    if blocked is not None:
        blocks = blocked.blocks
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
