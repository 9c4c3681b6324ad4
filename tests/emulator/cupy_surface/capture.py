"""Work recorded between begin_capture and end_capture, and its replay."""

from __future__ import annotations

import enum
import itertools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import status
from .live import Live
from .status import CUDARuntimeError
from .work import Task, Work, finish

if TYPE_CHECKING:
    from .driver import Queue


_numbers = itertools.count(1)


class Mode(enum.IntEnum):
    """Which unsafe calls (cudaMalloc, say) break a capture: anyone's, this thread's, none."""

    GLOBAL = 0
    THREAD_LOCAL = 1
    RELAXED = 2


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A recorded task and the nodes before it."""

    task: Task
    waits: tuple[Node, ...]


@dataclass(slots=True, eq=False)
class Capture:
    """The recording of some streams; ``tails`` are the nodes that a stream's next waits for.

    No other has its ``number``.
    """

    origin: Queue
    mode: Mode
    thread: int = field(default_factory=threading.get_ident)
    nodes: list[Node] = field(default_factory=list)
    tails: dict[Queue, tuple[Node, ...]] = field(default_factory=dict)
    broken: bool = False
    number: int = field(default_factory=lambda: next(_numbers))

    def record(self, queue: Queue, task: Task) -> None:
        """Add a task to a capturing stream."""
        self.check()
        node = Node(task, self.tails[queue])
        self.nodes.append(node)
        self.tails[queue] = (node,)

    def join(self, queue: Queue, tails: tuple[Node, ...]) -> None:
        """Make a stream part of the capture; what follows in it waits for ``tails`` too."""
        self.check()
        before = self.tails.get(queue, ())
        self.tails[queue] = (*before, *(node for node in tails if node not in before))
        queue.capture = self

    def check(self) -> None:
        """Refuse to go on after an error."""
        if self.broken:
            raise CUDARuntimeError(status.CAPTURE_INVALIDATED)

    def unjoined(self) -> bool:
        """Whether some work is not before the end of the stream where the capture began."""
        reached: set[Node] = set()
        stack = list(self.tails[self.origin])
        while stack:
            node = stack.pop()
            if node not in reached:
                reached.add(node)
                stack.extend(node.waits)
        return len(reached) < len(self.nodes)

    def close(self) -> None:
        """End the recording in all its streams."""
        for queue in self.tails:
            queue.capture = None


@dataclass(slots=True, eq=False)
class Recording:
    """An executable graph; ``last`` is its latest launch, since a graph never overlaps itself."""

    device: int
    nodes: tuple[Node, ...]
    last: Work | None = None

    def replay(self, live: Live) -> None:
        """Do the recorded work; of tasks without an order, the one recorded last comes first."""
        made: dict[Node, Work] = {}
        for node in self.nodes:
            made[node] = Work(node.task, live, [made[each] for each in node.waits])
        for work in reversed(made.values()):
            finish(work)
