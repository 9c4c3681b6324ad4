"""cupy.cuda.Stream, Event, Graph and Device: handles of the driver's, and what is current."""

import threading
from typing import Any, ClassVar, Self

from .capture import Mode, Recording
from .driver import NULL, PER_THREAD, Driver


class Currents(threading.local):
    """The current stream of each device and the stacks of ``with``, for one thread."""

    def __init__(self) -> None:
        self.streams: dict[int, Any] = {}
        self.stream_stack: list[tuple[int, Any]] = []
        self.device_stack: list[int] = []


class Event:
    """A point in a stream."""

    _driver: Driver

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        self.ptr = 0
        if interprocess and not disable_timing:
            raise ValueError("Timing must be disabled for interprocess events")
        self.ptr = self._driver.create_event(timed=not disable_timing)

    def __del__(self) -> None:
        if self.ptr:
            self._driver.destroy_event(self.ptr)

    @property
    def done(self) -> bool:
        """Whether the work before it is done."""
        return self._driver.query_event(self.ptr) == 0

    def record(self, stream: Any = None) -> None:
        """Stand for the work now in a stream."""
        chosen = self._driver.classes.get_current_stream() if stream is None else stream
        self._driver.record_event(self.ptr, chosen.ptr)

    def synchronize(self) -> None:
        """Wait for the work before it."""
        self._driver.synchronize_event(self.ptr)


class BaseStream:
    """A stream, owned or not."""

    _driver: Driver
    _currents: Currents

    def __init__(self, ptr: int, device_id: int) -> None:
        self.ptr = ptr
        self.device_id = device_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BaseStream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ptr} (device {self.device_id})>"

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.ptr)

    def __enter__(self) -> Self:
        device = self._device()
        self._currents.stream_stack.append(
            (device, self._driver.classes.get_current_stream(device))
        )
        self._currents.streams[device] = self
        return self

    def __exit__(self, *args: object) -> None:
        device, before = self._currents.stream_stack.pop()
        self._currents.streams[device] = before

    def use(self) -> Self:
        """Make this the current stream."""
        self._currents.streams[self._device()] = self
        return self

    @property
    def done(self) -> bool:
        """Whether all its work is done."""
        return self._driver.query_stream(self.ptr) == 0

    def synchronize(self) -> None:
        """Wait for all its work."""
        self._driver.synchronize_stream(self.ptr)

    def launch_host_func(self, callback: Any, arg: Any) -> None:
        """Call a function when the work before it is done."""
        self._driver.enqueue(self.ptr, lambda live: callback(arg))

    def record(self, event: Event | None = None) -> Event:
        """Let an event stand for the work now in it."""
        made: Event = self._driver.classes.Event() if event is None else event
        self._driver.record_event(made.ptr, self.ptr)
        return made

    def wait_event(self, event: Event) -> None:
        """Let what follows wait for an event."""
        self._driver.wait_event(self.ptr, event.ptr)

    def begin_capture(self, mode: int | None = None) -> None:
        """Record from now on."""
        if self.ptr in (0, 1):
            raise RuntimeError("cannot capture on the default (legacy) stream")
        self._driver.begin_capture(self.ptr, Mode.RELAXED if mode is None else mode)

    def end_capture(self) -> "Graph":
        """Return what was recorded."""
        made: Graph = self._driver.classes.Graph.__new__(self._driver.classes.Graph)
        made._recording = self._driver.end_capture(self.ptr)
        return made

    def is_capturing(self) -> bool:
        """Whether it records."""
        return self._driver.is_capturing(self.ptr)

    @property
    def is_non_blocking(self) -> bool:
        """Whether it is independent of the legacy stream."""
        return not self._driver.queue(self.ptr).blocking

    @property
    def priority(self) -> int:
        """Its priority; lower is more urgent."""
        return self._driver.queue(self.ptr).priority

    def _device(self) -> int:
        current = self._driver.device
        if self.device_id not in (-1, current):
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id}) "
                f"does not match with the current device ({current})"
            )
        return current


class Stream(BaseStream):
    """A stream of the current device, or one of its default streams."""

    null: ClassVar[Any] = None
    ptds: ClassVar[Any] = None

    def __init__(
        self,
        null: bool = False,
        non_blocking: bool = False,
        ptds: bool = False,
        priority: int | None = None,
    ) -> None:
        super().__init__(NULL if null else PER_THREAD, -1)
        if not null and not ptds:
            self.ptr = self._driver.create_stream(not non_blocking, priority or 0)
            self.device_id = self._driver.device

    def __del__(self) -> None:
        if self.ptr not in (0, 1, 2):
            self._driver.destroy_stream(self.ptr)


class ExternalStream(BaseStream):
    """A stream that somebody else owns."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        super().__init__(ptr, device_id)


class Graph:
    """Recorded work, made by Stream.end_capture only."""

    _driver: Driver
    _recording: Recording

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "currently this class cannot be initiated by the user and must "
            "be created via stream capture"
        )

    def launch(self, stream: Any = None) -> None:
        """Put the work into a stream."""
        chosen = self._driver.classes.get_current_stream() if stream is None else stream
        self._driver.launch_recording(self._recording, chosen.ptr)

    def upload(self, stream: Any = None) -> None:
        """Prepare a launch; nothing is to be done for it here."""
        chosen = self._driver.classes.get_current_stream() if stream is None else stream
        self._driver.queue(chosen.ptr)


class Device:
    """A device by number."""

    _driver: Driver
    _currents: Currents

    def __init__(self, device: Any = None) -> None:
        self.id = self._driver.device if device is None else int(device)

    def __int__(self) -> int:
        return self.id

    def __enter__(self) -> Self:
        self._currents.device_stack.append(self._driver.device)
        self._driver.device = self.id
        return self

    def __exit__(self, *args: object) -> None:
        self._driver.device = self._currents.device_stack.pop()

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    __hash__ = None  # as in CuPy, which defines comparison only

    def use(self) -> Self:
        """Make it current."""
        self._driver.device = self.id
        return self

    def synchronize(self) -> None:
        """Wait for all its work."""
        with self._driver.on(self.id):
            self._driver.synchronize_device()

    @property
    def compute_capability(self) -> str:
        """Major and minor number, as "90"."""
        return self._driver.arch.removeprefix("sm_").rstrip("a")

    @property
    def attributes(self) -> dict[str, int]:
        """The attributes by name."""
        return dict(self._driver.classes.attributes)

    @property
    def mem_info(self) -> tuple[int, int]:
        """Free and total bytes."""
        memory = self._driver.cards[self.id].memory
        return memory.total - memory.used, memory.total

    @property
    def cublas_handle(self) -> int:
        """The cuBLAS handle of this thread on this device."""
        handle: int = self._driver.classes.blas.thread_handle(self.id)
        return handle


def current_stream_reader(driver: Driver, currents: Currents) -> Any:
    """cupy.cuda.get_current_stream of a driver."""

    def get_current_stream(device_id: int = -1) -> Any:
        """The current stream of a device."""
        number = driver.device if device_id == -1 else device_id
        return currents.streams.get(number, driver.classes.Stream.null)

    return get_current_stream


def elapsed_time_reader(driver: Driver) -> Any:
    """cupy.cuda.get_elapsed_time of a driver."""

    def get_elapsed_time(start_event: Event, end_event: Event) -> float:
        """Milliseconds between two events."""
        return driver.elapsed(start_event.ptr, end_event.ptr)

    return get_elapsed_time
