"""Devices, streams, events and captures of the CUDA runtime, without any hardware.

Work is queued in its stream and done when the host waits for it, no sooner (or, with ``eager``, at
once).  So a stream that should wait for another one and does not finds the other's work undone.
"""

import itertools
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn

from ..device import Device, Options
from . import status
from .capture import Capture, Mode, Node, Recording
from .counters import Counters
from .live import DeviceMemory, Live
from .status import CUDARuntimeError
from .work import Task, Work, finish, nothing

NULL, LEGACY, PER_THREAD = 0, 1, 2


@dataclass(slots=True, eq=False)
class Queue:
    """A stream: where its work ends, and the capture it takes part in."""

    pointer: int
    device: int
    blocking: bool
    priority: int = 0
    last: Work | None = None
    capture: Capture | None = None


@dataclass(slots=True, eq=False)
class Mark:
    """An event: the work, or the nodes of a capture, that it stands for since its last record."""

    device: int
    timed: bool
    work: Work | None = None
    capture: Capture | None = None
    nodes: tuple[Node, ...] = ()


@dataclass(slots=True)
class Card:
    """One device: memory, the legacy stream, and all other streams with work."""

    memory: DeviceMemory
    legacy: Queue
    queues: list[Queue] = field(default_factory=list)


class Driver:
    """All devices of a process."""

    def __init__(self, arch: str, devices: int, options: Options, memory: int, eager: bool) -> None:
        self.arch = arch
        self.options = options
        self.eager = eager
        self.counters = Counters()
        self.classes = SimpleNamespace()
        self.lock = threading.RLock()
        self.cards = [
            Card(DeviceMemory(Device(arch), memory), Queue(NULL, index, True))
            for index in range(devices)
        ]
        self._streams: dict[int, Queue] = {}
        self._events: dict[int, Mark] = {}
        self._captures: list[Capture] = []
        self._handles = itertools.count(0x7F0000001000, 0x40)
        self._local = threading.local()

    # Devices.

    @property
    def device(self) -> int:
        """The number of this thread's current device."""
        return getattr(self._local, "device", 0)

    @device.setter
    def device(self, number: int) -> None:
        if not 0 <= number < len(self.cards):
            raise CUDARuntimeError(status.INVALID_DEVICE)
        self._local.device = number

    @property
    def card(self) -> Card:
        """The current device."""
        return self.cards[self.device]

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Make a device current for a while."""
        before = self.device
        self.device = device
        try:
            yield
        finally:
            self.device = before

    # Memory.

    def allocate(self, nbytes: int) -> int:
        """cudaMalloc."""
        with self.lock:
            self.refuse_unsafe_call()
            self.counters.driver_allocations += 1
            return self.card.memory.allocate(nbytes)

    def free(self, device: int, pointer: int) -> None:
        """cudaFree, from a destructor: a capture that it breaks hears of it when it goes on."""
        with self.lock:
            self._break(self._unsafe_captures())
            self.counters.driver_frees += 1
            self.cards[device].memory.free(pointer)

    def live(self) -> Live:
        """The memory that may be touched now."""
        return Live(tuple(card.memory.live() for card in self.cards))

    # Streams.

    def exchange_mode(self, mode: Mode) -> Mode:
        """Choose what captures forbid this thread; returns the choice before."""
        before = self._mode
        self._local.mode = mode
        return before

    def create_stream(self, blocking: bool, priority: int) -> int:
        """A new stream of the current device."""
        made = Queue(next(self._handles), self.device, blocking, priority)
        self._streams[made.pointer] = made
        self.card.queues.append(made)
        return made.pointer

    def destroy_stream(self, pointer: int) -> None:
        """Forget a stream; its work is still done."""
        gone = self.queue(pointer)
        del self._streams[pointer]
        if gone.capture is not None:
            self._break([gone.capture])

    def queue(self, pointer: int) -> Queue:
        """The stream of a handle."""
        if pointer in (NULL, LEGACY):
            return self.card.legacy
        if pointer == PER_THREAD:
            return self._per_thread()
        if pointer not in self._streams:
            raise CUDARuntimeError(status.INVALID_HANDLE)
        return self._streams[pointer]

    def enqueue(self, pointer: int, task: Task) -> None:
        """Put a task at the end of a stream, or record it."""
        with self.lock:
            queue = self.queue(pointer)
            self._refuse_implicit(queue)
            if queue.capture is not None:
                queue.capture.record(queue, task)
            else:
                self._append(queue, task)

    def enqueue_copy(self, pointer: int, task: Task, other: int) -> None:
        """Queue a copy between devices: in the legacy stream, in the order of both devices."""
        with self.lock:
            queue, peer = self.queue(pointer), self.cards[other].legacy
            if queue is not self.cards[queue.device].legacy or peer is queue:
                self.enqueue(pointer, task)
            else:
                self._refuse_implicit(queue)
                self._refuse_implicit(peer)
                peer.last = self._append(queue, task, self._before(peer))

    def synchronize_stream(self, pointer: int) -> None:
        """Wait for all work of a stream."""
        with self.lock:
            self.counters.synchronisations += 1
            self.drain(pointer)

    def drain(self, pointer: int) -> None:
        """Do all work of a stream."""
        with self.lock:
            queue = self.queue(pointer)
            self._refuse_capturing(queue)
            finish(self._append(queue, nothing))

    def query_stream(self, pointer: int) -> int:
        """The status of a stream: 0 when its work is done."""
        with self.lock:
            queue = self.queue(pointer)
            try:
                self._refuse_capturing(queue)
            except CUDARuntimeError as error:
                return error.status
            pending = any(not each.done for each in self._before(queue))
            return status.NOT_READY if pending else 0

    def synchronize_device(self) -> None:
        """Wait for all work of the current device, the newest stream's first."""
        with self.lock:
            captures = [each for each in self._captures if each.origin.device == self.device]
            if captures:
                self._fail(captures, status.CAPTURE_UNSUPPORTED)
            self.counters.synchronisations += 1
            for queue in (*reversed(self.card.queues), self.card.legacy):
                finish(queue.last)
            self.card.queues[:] = [
                each for each in self.card.queues if each.pointer in self._streams
            ]

    # Events.

    def create_event(self, timed: bool) -> int:
        """A new event of the current device."""
        pointer = next(self._handles)
        self._events[pointer] = Mark(self.device, timed)
        return pointer

    def destroy_event(self, pointer: int) -> None:
        """Forget an event."""
        del self._events[pointer]

    def mark(self, pointer: int) -> Mark:
        """The event of a handle."""
        if pointer not in self._events:
            raise CUDARuntimeError(status.INVALID_HANDLE)
        return self._events[pointer]

    def record_event(self, event: int, stream: int) -> None:
        """Let an event stand for the work now in a stream."""
        with self.lock:
            mark, queue = self.mark(event), self.queue(stream)
            if mark.device != queue.device:
                raise CUDARuntimeError(status.INVALID_HANDLE)
            self._refuse_implicit(queue)
            if queue.capture is not None:
                queue.capture.check()
                mark.work, mark.capture = None, queue.capture
                mark.nodes = queue.capture.tails[queue]
            else:
                mark.work, mark.capture, mark.nodes = self._append(queue, nothing), None, ()

    def wait_event(self, stream: int, event: int) -> None:
        """Let what follows in a stream wait for an event."""
        with self.lock:
            mark, queue = self.mark(event), self.queue(stream)
            if mark.capture is not None and mark.capture in self._captures:
                self._join(queue, mark)
            elif queue.capture is not None:
                if mark.work is not None:
                    self._fail([queue.capture], status.CAPTURE_ISOLATION)
            else:
                self._refuse_implicit(queue)
                self._append(queue, nothing, [mark.work])

    def synchronize_event(self, event: int) -> None:
        """Wait for the work that an event stands for."""
        with self.lock:
            mark = self.mark(event)
            self._refuse_captured(mark)
            self.counters.synchronisations += 1
            finish(mark.work)

    def query_event(self, event: int) -> int:
        """The status of an event: 0 when its work is done."""
        with self.lock:
            mark = self.mark(event)
            try:
                self._refuse_captured(mark)
                self.refuse_unsafe_call()
            except CUDARuntimeError as error:
                return error.status
            return 0 if mark.work is None or mark.work.done else status.NOT_READY

    def elapsed(self, start: int, end: int) -> float:
        """Milliseconds between two events."""
        marks = self.mark(start), self.mark(end)
        times = []
        for mark in marks:
            if mark.work is None or not mark.timed:
                raise CUDARuntimeError(status.INVALID_HANDLE)
            if not mark.work.done:
                raise CUDARuntimeError(status.NOT_READY)
            times.append(mark.work.finished_at)
        return 1e3 * (times[1] - times[0])

    # Captures.

    def begin_capture(self, stream: int, mode: int) -> None:
        """Record from now on what is put into a stream."""
        with self.lock:
            queue = self.queue(stream)
            if queue is self.card.legacy:
                raise CUDARuntimeError(status.CAPTURE_UNSUPPORTED)
            if queue.capture is not None:
                raise CUDARuntimeError(status.ILLEGAL_STATE)
            capture = Capture(queue, Mode(mode))
            capture.join(queue, ())
            self._captures.append(capture)

    def end_capture(self, stream: int) -> Recording:
        """Return what was recorded since begin_capture."""
        with self.lock:
            queue = self.queue(stream)
            capture = queue.capture
            if capture is None:
                raise CUDARuntimeError(status.ILLEGAL_STATE)
            if queue is not capture.origin:
                self._fail([capture], status.CAPTURE_UNMATCHED)
            if capture.mode is not Mode.RELAXED and capture.thread != threading.get_ident():
                raise CUDARuntimeError(status.CAPTURE_WRONG_THREAD)
            capture.close()
            self._captures.remove(capture)
            capture.check()
            if capture.unjoined():
                raise CUDARuntimeError(status.CAPTURE_UNJOINED)
            return Recording(queue.device, tuple(capture.nodes))

    def is_capturing(self, stream: int) -> bool:
        """Whether a stream records; an error where the recording is broken."""
        with self.lock:
            queue = self.queue(stream)
            self._refuse_implicit(queue)
            if queue.capture is not None and queue.capture.broken:
                raise RuntimeError(
                    "the stream was capturing, but an error has invalidated the capture sequence"
                )
            return queue.capture is not None

    def capture_number(self, stream: int) -> int:
        """The number of the capture that a stream takes part in, 0 where it does not."""
        with self.lock:
            capture = self.queue(stream).capture
            return 0 if capture is None else capture.number

    def launch_recording(self, recording: Recording, stream: int) -> None:
        """Put a graph into a stream."""
        with self.lock:
            queue = self.queue(stream)
            self.counters.graph_launches += 1
            if queue.capture is not None:
                queue.capture.record(queue, recording.replay)
            else:
                self._refuse_implicit(queue)
                recording.last = self._append(queue, recording.replay, [recording.last])

    # What an operation waits for, and what it may not do.

    def _append(self, queue: Queue, task: Task, waits: Iterable[Work | None] = ()) -> Work:
        work = Work(task, self.live(), (*self._before(queue), *waits))
        queue.last = work
        if self.eager:
            finish(work)
        return work

    def _before(self, queue: Queue) -> list[Work]:
        """The legacy stream and the blocking streams wait for each other."""
        card, found = self.cards[queue.device], [queue]
        if queue is card.legacy:
            found += [each for each in card.queues if each.blocking]
        elif queue.blocking:
            found.append(card.legacy)
        return [each.last for each in found if each.last is not None]

    def _per_thread(self) -> Queue:
        """This thread's default stream on the current device."""
        queues = self._local.__dict__.setdefault("queues", {})
        if self.device not in queues:
            queues[self.device] = Queue(PER_THREAD, self.device, True)
            self.card.queues.append(queues[self.device])
        found: Queue = queues[self.device]
        return found

    def _join(self, queue: Queue, mark: Mark) -> None:
        assert mark.capture is not None
        if queue.capture not in (None, mark.capture):
            self._fail([queue.capture, mark.capture], status.CAPTURE_MERGE)
        if queue is self.cards[queue.device].legacy:
            self._fail([mark.capture], status.CAPTURE_IMPLICIT)
        mark.capture.join(queue, mark.nodes)

    def _refuse_implicit(self, queue: Queue) -> None:
        """The legacy stream would wait for every blocking stream, of which none may capture."""
        if queue is not self.cards[queue.device].legacy:
            return
        found = {
            each.capture
            for each in self.cards[queue.device].queues
            if each.blocking and each.capture is not None
        }
        if found:
            self._fail(found, status.CAPTURE_IMPLICIT)

    def _refuse_capturing(self, queue: Queue) -> None:
        self._refuse_implicit(queue)
        if queue.capture is not None:
            self._fail([queue.capture], status.CAPTURE_UNSUPPORTED)

    def _refuse_captured(self, mark: Mark) -> None:
        if mark.capture is not None:
            self._fail([mark.capture], status.CAPTURED_EVENT)

    def _unsafe_captures(self) -> list[Capture]:
        """By the mode of a capture, and by that of the thread which calls."""
        here, mode = threading.get_ident(), self._mode
        own = [each for each in self._captures if each.thread == here]
        others = [each for each in self._captures if each.thread != here]
        found = [each for each in own if each.mode is not Mode.RELAXED]
        found += [each for each in others if each.mode is mode is Mode.GLOBAL]
        return [] if mode is Mode.RELAXED else found

    @property
    def _mode(self) -> Mode:
        """How this thread's calls and captures meet, global unless it was changed."""
        return getattr(self._local, "mode", Mode.GLOBAL)

    def refuse_unsafe_call(self) -> None:
        """Calls that may synchronise are forbidden beside captures that are not relaxed."""
        found = self._unsafe_captures()
        if found:
            self._fail(found, status.CAPTURE_UNSUPPORTED)

    def _break(self, captures: Iterable[Any]) -> None:
        for capture in captures:
            capture.broken = True

    def _fail(self, captures: Iterable[Any], code: int) -> NoReturn:
        self._break(captures)
        raise CUDARuntimeError(code)
