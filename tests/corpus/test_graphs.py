"""Calls in CUDA graphs: captured by the user, and recorded by an expression; on the host too."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.device.driver import unhindered
from tests.corpus.checks import values
from tests.corpus.test_streams import CALLS, made, quiet
from tests.devices import Device, Gpu
from tests.documents import blocks, run
from tests.emulator.cupy_surface.surface import counters, installed

MODES = range(3)  # global, of the thread, relaxed
CHAIN = "mk,kn,nj->mj"  # with a temporary in between
SHAPES = (9, 40), (40, 21), (21, 6)


def matrices(rng: np.random.Generator, shapes: Sequence[Sequence[int]] = SHAPES) -> list[Any]:
    return [np.asfortranarray(values(rng, shape, "float32")) for shape in shapes]


def chain(handle: ct.Handle) -> ct.ContractExpression:
    return ct.contract_expression(CHAIN, *SHAPES, dtype="float32", handle=handle)


def assert_chain(found: np.ndarray, factors: Sequence[np.ndarray], factor: float = 1) -> None:
    wanted = np.linalg.multi_dot([x.astype("f8") for x in factors])
    np.testing.assert_allclose(found, factor * wanted, rtol=1e-4, atol=1e-3)


def write(device: Device, target: Any, x: np.ndarray) -> None:
    """Change what an array holds."""
    if isinstance(device, Gpu):
        target.set(x)
        device.cupy.cuda.runtime.deviceSynchronize()
    else:
        target[...] = x


@contextmanager
def captured(stream: Any, mode: int | None = None) -> Iterator[list[Any]]:
    """The graph of what is done inside, in the list afterwards."""
    graphs: list[Any] = []
    with stream:
        stream.begin_capture(mode)
        try:
            yield graphs
        finally:
            graphs.append(stream.end_capture())


# --- captures by the user -------------------------------------------------------------------------


@pytest.mark.parametrize("verb", CALLS)
def test_a_replay_reads_what_operands_hold_now(
    gpu: Gpu, verb: str, rng: np.random.Generator
) -> None:
    call, (a, b), stream = CALLS[verb], made(gpu, rng), gpu.cupy.cuda.Stream(non_blocking=True)
    with captured(stream) as graphs:
        found = call(a, b, handle=gpu.handle)
    for factor in (1, 4):
        write(gpu, a, factor * gpu.numpy(a))
        graphs[0].launch(stream)
        stream.synchronize()
        wanted = gpu.numpy(call(a, b, handle=gpu.handle))
        np.testing.assert_allclose(gpu.numpy(found), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("alpha", [0, 1])
def test_the_first_call_may_be_a_captured_one(
    mode: int, alpha: int, rng: np.random.Generator
) -> None:
    """In no mode do the building of kernels and allocation break a capture."""
    x, y, z = matrices(rng)
    with installed() as cupy, ct.Handle(device=0) as handle:
        a, b, c = (cupy.asarray(each, order="F") for each in (x, y, z))
        cupy.cuda.Device().synchronize()
        stream = cupy.cuda.Stream(non_blocking=True)
        with captured(stream, mode) as graphs:
            found = ct.contract(CHAIN, a, b, c, alpha=alpha, handle=handle)
        graphs[0].launch(stream)
        stream.synchronize()
        assert_chain(found.get(), (x, y, z), alpha)
        assert handle.captured_bytes > 0
    assert handle.captured_bytes == 0


def test_plans_are_loaded_beside_the_capture_of_another_thread() -> None:
    """A capture in global mode forbids that to every thread, and a new handle of cuBLAS too."""
    with installed() as cupy, ct.Handle(device=0) as handle, ThreadPoolExecutor(1) as other:
        a, b, d = (cupy.ones(shape, "f4", order="F") for shape in ((33, 40), (40, 21), (33, 21)))
        stream = cupy.cuda.Stream(non_blocking=True)
        other.submit(stream.begin_capture, 0).result()
        chain(handle)
        handle.contract(gemm(handle), 1, a, b, 0, None, d)
        other.submit(stream.end_capture).result()
        assert (d.get() == 40).all()


def test_a_driver_that_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(cuThreadExchangeStreamCaptureMode=lambda mode: 1)
    monkeypatch.setattr("contract.device.driver.driver_library", lambda: library)
    with pytest.raises(ct.ExecutionError, match=r"refuses \(error 1\)"), unhindered():
        pytest.fail("nothing is done then")


def gemm(handle: ct.Handle, m: int = 33, n: int = 21, k: int = 40) -> Any:
    """D = alpha A B + beta C by cuBLAS, where it is asked for."""
    a, b, d = (ct.TensorDescriptor(each, dtype="float32") for each in ((m, k), (k, n), (m, n)))
    operation = ct.Contraction(
        (ct.Operand(a, "mk"), ct.Operand(b, "kn")), ct.Operand(d, "mn"), ct.Operand(d, "mn")
    )
    return handle.plan(operation, ct.PlanPreference(algo=ct.Algo.GEMM))


def test_memory_of_captured_calls_is_not_used_again(fake: Gpu, rng: np.random.Generator) -> None:
    """Not the workspace, nor a copy of an operand, nor a result that nobody holds."""
    x, y, z = matrices(rng)
    a, b, c = map(fake.array, (unaligned(x), y, z))
    stream, before = fake.cupy.cuda.Stream(non_blocking=True), fake.handle.captured_bytes

    with stream:
        ct.contract(CHAIN, a, b, c, handle=fake.handle)
    with captured(stream) as graphs:
        twice = ct.permute("mj->jm", ct.contract(CHAIN, a, b, c, handle=fake.handle), alpha=2)
    assert fake.handle.captured_bytes > before + x.nbytes
    with stream:
        held = [fake.cupy.full(size, 7, np.uint8) for size in (1, 500, 800, 900, 3400, 9000)]
        graphs[0].launch(stream)
    stream.synchronize()
    assert_chain(fake.numpy(twice).T, (x, y, z), 2)
    assert all((fake.numpy(each) == 7).all() for each in held)
    fake.handle.release_captured()
    assert fake.handle.captured_bytes == 0


def test_a_captured_call_only_launches(fake: Gpu, rng: np.random.Generator) -> None:
    """Once the same call has run: no waiting, no memory from the driver, nothing built."""
    a, b, c = map(fake.array, matrices(rng))
    stream, counted = fake.cupy.cuda.Stream(non_blocking=True), counters(fake.cupy)
    with captured(stream):
        ct.contract(CHAIN, a, b, c, handle=fake.handle)
    fake.handle.release_captured()
    counted.reset()
    with captured(stream, 0) as graphs:
        ct.contract(CHAIN, a, b, c, handle=fake.handle)
    assert len(counted.launches) == 2  # counted when they are recorded
    graphs[0].launch(stream)
    quiet(counted)
    assert not counted.driver_allocations
    stream.synchronize()


def test_the_example_of_the_readme(fake: Gpu, rng: np.random.Generator) -> None:
    (block,) = (each for each in blocks() if "begin_capture" in each.code)
    u, v = rng.random((4, 5, 6)), rng.random((7, 5))
    names = {"cupy": fake.cupy, "ct": ct, "U": fake.array(u), "V": fake.array(v)}
    run(block, names)
    assert names["handle"].captured_bytes == 0
    wanted = np.einsum("abc,kb->ca", u, v)
    np.testing.assert_allclose(fake.numpy(names["P"]), 2 * wanted)


# --- recorded by an expression --------------------------------------------------------------------


def test_a_recorded_call_is_repeated(device: Device, rng: np.random.Generator) -> None:
    factors = matrices(rng)
    a, b, c = arrays = [device.array(x.copy(order="F")) for x in factors]
    with chain(device.handle).capture(*arrays, alpha=2) as call:
        for factor in (1, 3):
            changed = [factor * factors[0], *factors[1:]]
            write(device, a, changed[0])
            found = call.replay()
            assert found is call.output
            assert_chain(device.numpy(found), changed, 2)
        assert call.operands == (a, b, c)
        assert call.bytes >= found.nbytes
        assert f"Recorded call of 2 steps, {call.bytes} bytes of its own" in str(call)
        assert str(call.plan) in str(call)
    with pytest.raises(ct.InvalidValueError, match="closed"):
        call.replay()
    assert call.bytes == 0
    assert_chain(device.numpy(found), changed, 2)


def test_nothing_runs_before_the_replay(device: Device, rng: np.random.Generator) -> None:
    """D = A B + beta D: every replay adds once more; with alpha = 0 it only scales."""
    x, y, z = matrices(rng, [(33, 40), (40, 21), (33, 21)])
    a, b, d = map(device.array, (x, y, z.copy()))
    planned = ct.contract_expression(
        "mk,kn->mn", x.shape, y.shape, dtype="float32", handle=device.handle
    )
    adds = planned.capture(a, b, c=d, out=d)
    scales = planned.capture(a, b, c=d, out=d, alpha=0, beta=0.5)
    np.testing.assert_array_equal(device.numpy(d), z)
    wanted = z.astype("f8")
    for _ in range(2):
        assert adds.replay() is d
        wanted = wanted + x.astype("f8") @ y
        np.testing.assert_allclose(device.numpy(d), wanted, rtol=1e-4, atol=1e-4)
    scales.replay()
    np.testing.assert_allclose(device.numpy(d), wanted / 2, rtol=1e-4, atol=1e-4)


def unaligned(x: np.ndarray) -> np.ndarray:
    """The same values, a byte behind an address that could be."""
    shifted = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape, order="F")
    shifted[...] = x
    return shifted


def test_a_result_computed_apart_and_an_operand_that_is_copied(
    device: Device, rng: np.random.Generator
) -> None:
    """B = A B, with an A that no descriptor can express."""
    x, y = matrices(rng, [(20, 20), (20, 20)])
    a, b = map(device.array, (unaligned(x), y.copy(order="F")))
    planned = ct.contract_expression(
        "mk,kn->mn", x.shape, y.shape, dtype="float32", handle=device.handle
    )
    call, wanted = planned.capture(a, b, out=b), y.astype("f8")
    for _ in range(2):
        assert call.replay() is b
        wanted = x.astype("f8") @ wanted
        np.testing.assert_allclose(device.numpy(b), wanted, rtol=1e-4, atol=1e-3)


def test_recordings_on_two_streams_keep_apart(fake: Gpu, rng: np.random.Generator) -> None:
    planned, counted = chain(fake.handle), counters(fake.cupy)
    pool = fake.cupy.get_default_memory_pool()
    factors = [matrices(rng) for _ in range(2)]
    arrays = [list(map(fake.array, each)) for each in factors]
    planned(*arrays[0])
    before = pool.used_bytes()
    calls = [planned.capture(*each) for each in arrays]
    assert pool.used_bytes() - before == calls[0].bytes + calls[1].bytes
    streams = [fake.cupy.cuda.Stream(non_blocking=True) for _ in calls]
    counted.reset()
    for _ in range(2):
        for call, stream in zip(calls, streams, strict=True):
            call.replay(stream)
    assert counted.graph_launches == 4
    assert counted.driver_allocations + counted.synchronisations + counted.compilations == 0
    for call, stream, each in reversed(list(zip(calls, streams, factors, strict=True))):
        stream.synchronize()
        assert_chain(fake.numpy(call.output), each)
    for call in calls:
        call.close()
    del call, calls
    assert pool.used_bytes() == before
    counted.reset()
    planned.capture(*arrays[0])
    assert not counted.driver_allocations


def test_a_replay_waits_for_those_who_had_its_memory(fake: Gpu, rng: np.random.Generator) -> None:
    """What is pending on the stream of the recording is done before a replay on another."""
    planned, factors = chain(fake.handle), matrices(rng)
    a, b, c = map(fake.array, factors)
    home, other = (fake.cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with home:
        for _ in range(2):
            planned(a, b, c)
        call = planned.capture(a, b, c)
    call.replay(other)
    other.synchronize()
    home.synchronize()
    assert_chain(fake.numpy(call.output), factors)


def test_memory_outlives_a_replay_that_nobody_waited_for(
    fake: Gpu, rng: np.random.Generator
) -> None:
    planned, factors = chain(fake.handle), matrices(rng)
    out = fake.cupy.empty((9, 6), "f4", order="F")
    call = planned.capture(*map(fake.array, factors), out=out)
    other = fake.cupy.cuda.Stream(non_blocking=True)
    call.replay(other)
    del call
    held = [fake.cupy.full(size, 7, np.uint8) for size in (1, 700, 960, 1600)]
    fake.cupy.cuda.Stream.null.synchronize()
    other.synchronize()
    assert_chain(fake.numpy(out), factors)
    assert all((fake.numpy(each) == 7).all() for each in held)


def test_what_cannot_be_recorded_or_replayed(fake: Gpu, rng: np.random.Generator) -> None:
    planned = chain(fake.handle)
    arrays = list(map(fake.array, matrices(rng)))
    call, stream = planned.capture(*arrays), fake.cupy.cuda.Stream(non_blocking=True)
    with pytest.raises(ct.InvalidValueError, match="takes 3 operands: 2"):
        planned.capture(*arrays[:2])
    with pytest.raises(ct.InvalidValueError, match="planned with shape"):
        planned.capture(*arrays[::-1])
    with pytest.raises(ct.InvalidValueError, match="out has shape"):
        planned.capture(*arrays, out=arrays[0])
    with captured(stream), pytest.raises(ct.InvalidValueError, match="is capturing"):
        planned.capture(*arrays)
    with captured(stream), pytest.raises(ct.InvalidValueError, match="is capturing"):
        call.replay()
    call.replay(stream)
    stream.synchronize()


def test_an_error_ends_the_recording(fake: Gpu, rng: np.random.Generator) -> None:
    """The stream in which it failed is not left capturing, nor memory kept."""
    planned, arrays = chain(fake.handle), list(map(fake.array, matrices(rng)))
    pool = fake.cupy.get_default_memory_pool()
    planned(*arrays)
    before = pool.used_bytes()
    with pytest.raises(ct.InvalidValueError, match="alpha must be real"):
        planned.capture(*arrays, alpha=1j)
    assert pool.used_bytes() == before
    fake.cupy.cuda.runtime.deviceSynchronize()


def test_a_recorded_call_is_not_tuned(rng: np.random.Generator) -> None:
    """It keeps the plan that is the best known when it is recorded."""
    tuned, factors = ct.PlanPreference(autotune=ct.AutotuneMode.INCREMENTAL), matrices(rng)
    with ct.Handle(preference=tuned) as handle:
        call = chain(handle).capture(*factors)
        assert len({call.replay().tobytes() for _ in range(6)}) == 1
        ((_, line),) = handle.plans.items()
        assert call.plan in line.plans
        assert len(line.plans) > 1
        assert not line.settled


def test_the_host_has_no_streams_to_record() -> None:
    factors = [np.ones(shape, "f4") for shape in SHAPES]
    call = ct.contract_expression(CHAIN, *SHAPES, dtype="float32").capture(*factors)
    with pytest.raises(ct.InvalidValueError, match="no streams"):
        call.replay(stream=1)
    assert (call.replay() == 40 * 21).all()
