"""Captures of the emulator's CuPy: what is recorded, what breaks a recording, and replays."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from .cupy_surface import counters
from .cupy_surface.capture import Mode
from .device import KernelFault

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2


def _stream(cupy: ModuleType, non_blocking: bool = True) -> Any:
    return cupy.cuda.Stream(non_blocking=non_blocking)


def test_a_graph_does_again_what_was_recorded(cupy: ModuleType) -> None:
    x, y, stream = cupy.zeros(4), cupy.zeros(4), _stream(cupy)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        assert stream.is_capturing()
        cupy.copyto(y, x)
        graph = stream.end_capture()
        assert not stream.is_capturing()
        stream.synchronize()
        assert counters(cupy).graph_launches == 0
        for value in (3, 4):
            x.fill(value)
            graph.launch()
            assert (y.get() == value).all()
    assert counters(cupy).graph_launches == 2


def test_arguments_are_those_of_the_recording(kernels: ModuleType) -> None:
    source = 'extern "C" __global__ void put(float *x, float v) { x[threadIdx.x] = v; }'
    put = kernels.RawModule(code=source).get_function("put")
    x, value, stream = kernels.zeros(8, "f4"), np.array(3, "f4"), _stream(kernels)
    stream.wait_event(kernels.cuda.Stream.null.record())
    with stream:
        stream.begin_capture()
        put((1,), (8,), (x, value))
        graph = stream.end_capture()
        value[...] = 5
        graph.launch()
        assert (x.get() == 3).all()


def _sync(cupy: ModuleType, stream: Any, x: Any) -> None:
    stream.synchronize()


def _sync_device(cupy: ModuleType, stream: Any, x: Any) -> None:
    cupy.cuda.Device().synchronize()


def _sync_event(cupy: ModuleType, stream: Any, x: Any) -> None:
    stream.record().synchronize()


def _wait_for_outside(cupy: ModuleType, stream: Any, x: Any) -> None:
    stream.wait_event(_stream(cupy).record())


def _merge(cupy: ModuleType, stream: Any, x: Any) -> None:
    other = _stream(cupy)
    other.begin_capture()
    other.wait_event(stream.record())


def _end_elsewhere(cupy: ModuleType, stream: Any, x: Any) -> None:
    other = _stream(cupy)
    other.wait_event(stream.record())
    other.end_capture()


MISUSE: dict[str, Callable[..., None]] = {
    "StreamCaptureUnsupported": _sync,
    "StreamCaptureUnsupported: operation": _sync_device,
    "CapturedEvent": _sync_event,
    "StreamCaptureIsolation": _wait_for_outside,
    "StreamCaptureMerge": _merge,
    "StreamCaptureUnmatched": _end_elsewhere,
}


@pytest.mark.parametrize("message", MISUSE)
def test_misuse_breaks_the_capture(cupy: ModuleType, message: str) -> None:
    error = cupy.cuda.runtime.CUDARuntimeError
    x, stream = cupy.zeros(4), _stream(cupy)
    with stream:
        stream.begin_capture()
        with pytest.raises(error, match=message):
            MISUSE[message](cupy, stream, x)
        with pytest.raises(RuntimeError, match="invalidated"):
            stream.is_capturing()
        with pytest.raises(error, match="StreamCaptureInvalidated"):
            x.fill(1)
        with pytest.raises(error, match="StreamCaptureInvalidated"):
            stream.end_capture()
        assert not stream.is_capturing()
        stream.synchronize()


def test_asking_whether_work_is_done_breaks_the_capture(cupy: ModuleType) -> None:
    stream = _stream(cupy)
    stream.begin_capture()
    assert not stream.done  # CuPy hides the status
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="Invalidated"):
        stream.end_capture()


def test_host_copies_and_cublas_are_refused_by_cupy(cupy: ModuleType) -> None:
    x, stream = cupy.zeros(4), _stream(cupy)
    with stream:
        stream.begin_capture()
        with pytest.raises(RuntimeError, match="D2H transfers are disallowed"):
            x.get()
        with pytest.raises(RuntimeError, match="H2D transfers are disallowed"):
            x.set(np.ones(4))
        with pytest.raises(NotImplementedError, match="cuBLAS API during stream capture"):
            cupy.cuda.cublas.setStream(cupy.cuda.get_cublas_handle(), stream.ptr)
        stream.end_capture()


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_a_capture_forbids_a_thread_depends_on_both_modes(
    cupy: ModuleType, mode: int, elsewhere: bool
) -> None:
    """cudaThreadExchangeStreamCaptureMode, as CUDA's manual has it."""
    driver = cupy._driver
    for chosen in Mode:
        stream = _stream(cupy)
        with ThreadPoolExecutor(1) as other:
            run = other.submit if elsewhere else lambda function, *given: function(*given)
            run(stream.begin_capture, mode)
            assert driver.exchange_mode(chosen) == GLOBAL
            forbidden = chosen != RELAXED and mode != RELAXED
            if elsewhere:
                forbidden = chosen == mode == GLOBAL
            try:
                with _refusal(cupy) if forbidden else nullcontext():
                    driver.refuse_unsafe_call()
            finally:
                assert driver.exchange_mode(Mode.GLOBAL) == chosen
            with _refusal(cupy) if forbidden else nullcontext():
                ended = run(stream.end_capture)
                assert not elsewhere or ended.result()


def _refusal(cupy: ModuleType) -> Any:
    return pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="StreamCapture")


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_allocation_in_a_capture_depends_on_its_mode(cupy: ModuleType, mode: int) -> None:
    error, stream = cupy.cuda.runtime.CUDARuntimeError, _stream(cupy)
    with stream:
        held = cupy.empty(1000)
        del held
        before = counters(cupy).driver_allocations
        stream.begin_capture(mode)
        small = cupy.empty(10)  # from the pool: no call of the driver
        assert counters(cupy).driver_allocations == before
        if mode == RELAXED:
            assert cupy.empty(10**6).size
            stream.end_capture()
            assert counters(cupy).driver_allocations == before + 1
            return
        with pytest.raises(error, match="StreamCaptureUnsupported"):
            cupy.empty(10**6)
        with pytest.raises(error, match="StreamCaptureInvalidated"):
            stream.end_capture()
        assert small.size


@pytest.mark.parametrize("non_blocking", [True, False])
def test_the_legacy_stream_beside_a_capture(cupy: ModuleType, non_blocking: bool) -> None:
    x, stream = cupy.zeros(4), _stream(cupy, non_blocking)
    stream.begin_capture()
    if non_blocking:
        x.fill(1)
        stream.end_capture()
        return
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="StreamCaptureImplicit"):
        x.fill(1)


def test_the_default_stream_cannot_capture(cupy: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="default"):
        cupy.cuda.Stream.null.begin_capture()
    stream = _stream(cupy)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="IllegalState"):
        stream.end_capture()
    stream.begin_capture()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="IllegalState"):
        stream.begin_capture()


@pytest.mark.parametrize("joined", [True, False])
def test_captures_fork_and_must_join(cupy: ModuleType, joined: bool) -> None:
    first, second = _stream(cupy), _stream(cupy)
    x, y = cupy.zeros(4), cupy.zeros(4)
    cupy.cuda.Device().synchronize()
    first.begin_capture()
    with first:
        x.fill(2)
    second.wait_event(first.record())
    assert second.is_capturing()
    with second:
        cupy.copyto(y, x)
    if not joined:
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="StreamCaptureUnjoined"):
            first.end_capture()
        assert not second.is_capturing()
        return
    first.wait_event(second.record())
    graph = first.end_capture()
    assert not second.is_capturing()
    graph.launch(first)
    first.synchronize()
    assert (y.get() == 2).all()


def test_a_replay_shows_a_missing_wait_inside_of_a_capture(cupy: ModuleType) -> None:
    first, second = _stream(cupy), _stream(cupy)
    x, y = cupy.zeros(4), cupy.zeros(4)
    cupy.cuda.Device().synchronize()
    first.begin_capture()
    second.wait_event(first.record())
    with first:
        x.fill(2)
    with second:
        cupy.copyto(y, x)  # x.fill is no part of what second waits for
    first.wait_event(second.record())
    graph = first.end_capture()
    graph.launch(first)
    first.synchronize()
    assert (y.get() == 0).all()


def test_a_replay_may_touch_only_what_is_still_allocated(cupy: ModuleType) -> None:
    stream = _stream(cupy)
    with stream:
        x = cupy.zeros(4)
        stream.begin_capture()
        x.fill(1)
        graph = stream.end_capture()
        graph.launch()
        del x
        stream.synchronize()
        graph.launch()
        with pytest.raises(KernelFault, match="outside live memory"):
            stream.synchronize()


def test_launches_of_a_graph_do_not_overlap(cupy: ModuleType) -> None:
    streams = [_stream(cupy) for _ in range(3)]
    done: list[int] = []
    streams[0].begin_capture()
    streams[0].launch_host_func(lambda _: done.append(len(done)), None)
    graph = streams[0].end_capture()
    graph.launch(streams[1])
    graph.launch(streams[2])
    streams[2].synchronize()
    assert done == [0, 1]
