"""Work of a device as a graph, of which a part is done when something waits for it."""

import time
from collections.abc import Callable, Iterable

from .live import Live

Task = Callable[[Live], None]


def nothing(live: Live) -> None:
    """A task that only marks a place in a stream."""


class Work:
    """A task, the memory it may touch, and the work that has to be done before it."""

    __slots__ = ("done", "finished_at", "live", "task", "waits")

    def __init__(self, task: Task, live: Live, waits: Iterable["Work | None"]) -> None:
        self.task = task
        self.live = live
        self.waits = tuple(each for each in waits if each is not None and not each.done)
        self.done = False
        self.finished_at = 0.0

    def run(self) -> None:
        """Do it; work that faults counts as done, so that the fault is reported once."""
        task, live = self.task, self.live
        self.done, self.waits, self.task, self.live = True, (), nothing, Live(())
        task(live)
        self.finished_at = time.perf_counter()


def finish(work: Work | None) -> None:
    """Do work and all that it waits for, and nothing else."""
    stack = [] if work is None else [work]
    while stack:
        pending = [] if stack[-1].done else [each for each in stack[-1].waits if not each.done]
        if pending:
            stack.extend(pending)
        else:
            top = stack.pop()
            if not top.done:
                top.run()
