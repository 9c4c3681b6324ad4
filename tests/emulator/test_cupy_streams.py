"""Streams and events of the emulator's CuPy: work is late, and only what waits comes after."""

import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from .cupy_surface import counters, make_cupy
from .device import KernelFault, Kind


def _stream(cupy: ModuleType, non_blocking: bool = True) -> Any:
    return cupy.cuda.Stream(non_blocking=non_blocking)


def test_work_waits_for_the_host(cupy: ModuleType) -> None:
    stream = _stream(cupy)
    done = []
    stream.launch_host_func(done.append, 1)
    assert not stream.done
    event = stream.record()
    stream.launch_host_func(done.append, 2)
    assert not event.done
    event.synchronize()
    assert (done, event.done, stream.done) == ([1], True, False)
    stream.synchronize()
    assert (done, stream.done) == ([1, 2], True)


def test_eager_work_is_done_at_once() -> None:
    stream = _stream(make_cupy(eager=True))
    done = []
    stream.launch_host_func(done.append, 1)
    assert (done, stream.done) == ([1], True)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_missing_wait_shows(cupy: ModuleType, ordered: bool) -> None:
    first, second = _stream(cupy), _stream(cupy)
    x, y = cupy.empty(4), cupy.empty(4)
    with first:
        x.fill(7)
    if ordered:
        second.wait_event(first.record())
    with second:
        cupy.copyto(y, x)
        got = y.get()
    assert (got == 7).all() == ordered


def test_a_missing_wait_of_a_writer_shows_when_the_device_is_waited_for(cupy: ModuleType) -> None:
    """The reader is queued first, and runs last."""
    reader, writer = _stream(cupy), _stream(cupy)
    x, y = cupy.zeros(4), cupy.zeros(4)
    cupy.cuda.Device().synchronize()
    with reader:
        cupy.copyto(y, x)
    with writer:
        x.fill(7)
    cupy.cuda.Device().synchronize()
    assert (y.get() == 7).all()


def test_an_event_stands_for_its_latest_record(cupy: ModuleType) -> None:
    first, second = _stream(cupy), _stream(cupy)
    done: list[int] = []
    event = cupy.cuda.Event()
    assert event.done
    first.record(event)
    first.launch_host_func(done.append, 1)
    first.record(event)
    second.wait_event(event)
    second.launch_host_func(done.append, 2)
    first.record(event)  # later than the wait, which keeps what it saw
    second.synchronize()
    assert done == [1, 2]


@pytest.mark.parametrize("non_blocking", [True, False])
def test_the_legacy_stream_and_blocking_streams_wait_for_each_other(
    cupy: ModuleType, non_blocking: bool
) -> None:
    stream, null = _stream(cupy, non_blocking), cupy.cuda.Stream.null
    done: list[int] = []
    stream.launch_host_func(done.append, 1)
    null.launch_host_func(done.append, 2)
    stream.launch_host_func(done.append, 3)
    null.synchronize()
    assert done == ([2] if non_blocking else [1, 2, 3])
    stream.synchronize()
    assert done == ([2, 1, 3] if non_blocking else [1, 2, 3])


def test_work_of_a_destroyed_stream_is_done(cupy: ModuleType) -> None:
    done: list[int] = []
    _stream(cupy).launch_host_func(done.append, 1)
    cupy.cuda.Device().synchronize()
    assert done == [1]


def test_the_current_stream_is_of_a_thread_and_a_device(cupy: ModuleType) -> None:
    current = cupy.cuda.get_current_stream
    stream = _stream(cupy)
    seen = []
    with stream:
        assert current() is stream
        worker = threading.Thread(target=lambda: seen.append(current().ptr))
        worker.start()
        worker.join()
        with cupy.cuda.Device(1):
            assert current().ptr == 0
            with pytest.raises(RuntimeError, match="does not match with the current device"):
                stream.use()
    assert seen == [0]
    assert current().ptr == 0
    assert current() == cupy.cuda.Stream(null=True)


def test_devices_are_current_per_thread(cupy: ModuleType) -> None:
    cupy.cuda.Device(1).use()
    seen = []
    worker = threading.Thread(target=lambda: seen.append(cupy.cuda.runtime.getDevice()))
    worker.start()
    worker.join()
    assert (seen, cupy.cuda.runtime.getDevice()) == ([0], 1)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="invalid device ordinal"):
        cupy.cuda.Device(2).use()


def test_times_need_finished_events_with_timing(cupy: ModuleType) -> None:
    stream, elapsed = _stream(cupy), cupy.cuda.get_elapsed_time
    start = stream.record()
    stream.launch_host_func(lambda _: sum(range(10000)), None)
    end = stream.record()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="NotReady"):
        elapsed(start, end)
    end.synchronize()
    assert elapsed(start, end) > 0
    for useless in (cupy.cuda.Event(), stream.record(cupy.cuda.Event(disable_timing=True))):
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="InvalidResourceHandle"):
            elapsed(start, useless)


def test_an_event_is_recorded_on_its_own_device(cupy: ModuleType) -> None:
    event = cupy.cuda.Event()
    with cupy.cuda.Device(1):
        stream = _stream(cupy)
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="InvalidResourceHandle"):
            stream.record(event)
        stream.wait_event(event)


def test_a_fault_is_reported_once_where_the_host_waits(cupy: ModuleType) -> None:
    x = cupy.ndarray((4,), float, cupy.empty(3).data)
    x.fill(1)
    x.fill(1)
    for _ in range(2):
        with pytest.raises(KernelFault) as raised:
            cupy.cuda.Device().synchronize()
        assert raised.value.kind is Kind.BOUNDS
    cupy.cuda.Device().synchronize()


def test_host_memory_is_read_when_the_copy_is_queued(cupy: ModuleType) -> None:
    host = np.ones(4)
    x = cupy.asarray(host)
    host[:] = 2
    assert (x.get() == 1).all()


def test_waits_are_counted(cupy: ModuleType) -> None:
    count, stream = counters(cupy), _stream(cupy)
    stream.record().done  # noqa: B018
    stream.done  # noqa: B018
    assert count.synchronisations == 0
    stream.synchronize()
    stream.record().synchronize()
    cupy.cuda.Device().synchronize()
    assert count.synchronisations == 3
