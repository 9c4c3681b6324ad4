"""Products of cuBLAS in CUDA graphs: by the library itself, else by our own kernels."""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest import mock

import ml_dtypes  # noqa: F401  (registers the name bfloat16)
import numpy as np
import pytest

import contract as ct
from contract import logging
from contract.logging import Level
from tests.corpus.checks import values
from tests.corpus.test_graphs import MODES, captured, gemm, matrices, write
from tests.devices import Gpu
from tests.emulator.cupy_surface.counters import Launch
from tests.emulator.cupy_surface.surface import counters, installed
from tests.emulator.device import KernelFault

MIB = 1 << 20
SHAPES = (33, 40), (40, 21)
BLAS_ONLY = ct.PlanPreference(algo=ct.Algo.GEMM)
ROUNDOFF = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-6, "complex64": 1e-6}


@pytest.fixture
def own() -> Iterator[ct.Handle]:
    """A handle that has not called cuBLAS yet."""
    with ct.Handle(device=0) as handle:
        yield handle


def expression(handle: ct.Handle, shapes: Sequence[Sequence[int]] = SHAPES) -> Any:
    return ct.contract_expression(
        "mk,kn->mn", *shapes, dtype="float32", handle=handle, preference=BLAS_ONLY
    )


def products(gpu: Gpu) -> list[Launch]:
    """What the emulated cuBLAS was asked for."""
    return counters(gpu.cupy).products


def assert_product(found: np.ndarray, x: np.ndarray, y: np.ndarray, factor: float = 1) -> None:
    np.testing.assert_allclose(found, factor * (x.astype("f8") @ y), rtol=1e-4, atol=1e-4)


# --- captured -------------------------------------------------------------------------------------


@pytest.mark.parametrize("non_blocking", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_a_first_call_may_be_a_captured_one_by_cublas(
    gpu: Gpu, own: ct.Handle, mode: int, non_blocking: bool, rng: np.random.Generator
) -> None:
    """C is D: every replay adds once more, by the scalars of the recording."""
    plan, (x, y, z) = gemm(own), matrices(rng, [*SHAPES, (33, 21)])
    a, b, d = map(gpu.array, (x, y, z))
    stream = gpu.cupy.cuda.Stream(non_blocking=non_blocking)
    with captured(stream, mode) as graphs:
        own.contract(plan, 2, a, b, 0.5, d, d)
    wanted = z.astype("f8")
    for factor in (1, 3):
        write(gpu, a, factor * x)
        graphs[0].launch(stream)
        stream.synchronize()
        wanted = 2 * factor * (x.astype("f8") @ y) + 0.5 * wanted
    np.testing.assert_allclose(gpu.numpy(d), wanted, rtol=1e-4, atol=1e-4)


def test_a_captured_call_has_the_bits_of_one_outside(gpu: Gpu, rng: np.random.Generator) -> None:
    """cuBLAS is asked for the same, with the memory that it has outside."""
    x, y = matrices(rng, [(300, 1000), (1000, 200)])
    a, b = map(gpu.array, (x, y))
    planned = expression(gpu.handle, (x.shape, y.shape))
    with planned.capture(a, b) as call:
        np.testing.assert_array_equal(gpu.numpy(call.replay()), gpu.numpy(planned(a, b)))


@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128", *list(ROUNDOFF)[:2]])
@pytest.mark.parametrize("text", ["mk,kn->mn", "mkb,nkb->nmb"])
def test_every_type_and_batches(gpu: Gpu, text: str, dtype: str, rng: np.random.Generator) -> None:
    terms, _ = text.split("->")
    extents = {"m": 24, "k": 16, "n": 8, "b": 5}
    shapes = [[extents[mode] for mode in term] for term in terms.split(",")]
    x, y = (np.asfortranarray(values(rng, shape, dtype)) for shape in shapes)
    planned = ct.contract_expression(
        text, *shapes, dtype=dtype, handle=gpu.handle, preference=BLAS_ONLY
    )
    wide = "c16" if dtype.startswith("complex") else "f8"
    with planned.capture(gpu.array(x), gpu.array(y)) as call:
        found = gpu.numpy(call.replay())
        assert "Gemm" in str(call)
    wanted = np.einsum(text, x.astype(wide), y.astype(wide))
    size = np.einsum(text, abs(x.astype(wide)), abs(y.astype(wide)))
    assert (abs(found.astype(wide) - wanted) <= ROUNDOFF.get(dtype, 1e-14) * size).all()


def test_what_cublas_is_asked_for(fake: Gpu, rng: np.random.Generator) -> None:
    """The capturing stream, sums that are not narrow, the workspace that NVIDIA recommends."""
    a, b = map(fake.array, matrices(rng, SHAPES))
    stream = fake.cupy.cuda.Stream(non_blocking=True)
    products(fake).clear()
    with captured(stream):
        ct.contract("mk,kn->mn", a, b, handle=fake.handle, preference=BLAS_ONLY)
    (found,) = products(fake)
    assert (found.name, found.stream, found.math_mode) == ("cublasGemmEx", stream.ptr, 16)
    assert found.workspace[1] == 32 * MIB
    fake.handle.release_captured()


def test_cards_before_hopper_have_a_smaller_workspace() -> None:
    with installed(arch="sm_80") as cupy, ct.Handle(device=0) as handle:
        a, b = (cupy.ones(shape, "f4", order="F") for shape in SHAPES)
        with expression(handle).capture(a, b) as call:
            (found,) = counters(cupy).products
            assert found.workspace[1] == 4 * MIB
            assert 4 * MIB < call.bytes < 5 * MIB
            assert (call.replay().get() == 40).all()


# --- whose the workspace is -----------------------------------------------------------------------


def test_calls_of_a_capture_share_a_workspace_and_captures_do_not(
    fake: Gpu, own: ct.Handle, rng: np.random.Generator
) -> None:
    a, b = map(fake.array, matrices(rng, SHAPES))
    planned, stream = expression(own), fake.cupy.cuda.Stream(non_blocking=True)
    products(fake).clear()
    for _ in range(2):
        with captured(stream):
            planned(a, b)
            planned(a, b)
    addresses = [each.workspace[0] for each in products(fake)]
    assert addresses[0] == addresses[1] != addresses[2] == addresses[3]
    assert 64 * MIB < own.captured_bytes < 65 * MIB


def test_branches_of_a_graph_have_workspaces_of_their_own(
    fake: Gpu, own: ct.Handle, rng: np.random.Generator
) -> None:
    """A graph may run at once what two of its streams captured."""
    a, b = map(fake.array, matrices(rng, SHAPES))
    planned = expression(own)
    first, second = (fake.cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    products(fake).clear()
    with captured(first):
        second.wait_event(first.record())
        planned(a, b)
        with second:
            planned(a, b)
        first.wait_event(second.record())
    one, other = (each.workspace[0] for each in products(fake))
    assert one != other


def test_recordings_have_workspaces_of_their_own(
    fake: Gpu, own: ct.Handle, rng: np.random.Generator
) -> None:
    """Closing one leaves the other what it needs, and gives its own memory back."""
    x, y = matrices(rng, SHAPES)
    arrays = [(fake.array(x), fake.array(y)) for _ in range(2)]
    planned, pool = expression(own), fake.cupy.get_default_memory_pool()
    before = pool.used_bytes()
    products(fake).clear()
    calls = [planned.capture(*each) for each in arrays]
    one, other = (each.workspace[0] for each in products(fake))
    assert one != other
    assert pool.used_bytes() - before == sum(call.bytes for call in calls) > 64 * MIB
    calls[0].close()
    held = fake.cupy.full(32 * MIB, 7, np.uint8)
    assert_product(fake.numpy(calls[1].replay()), x, y)
    assert (fake.numpy(held) == 7).all()
    calls[1].close()
    del calls, held
    assert pool.used_bytes() == before


def test_released_workspaces_are_free(fake: Gpu, own: ct.Handle, rng: np.random.Generator) -> None:
    """And so a graph that is launched still would write to what is not its own."""
    a, b = map(fake.array, matrices(rng, SHAPES))
    out, stream = fake.cupy.empty((33, 21), "f4", order="F"), fake.cupy.cuda.Stream()
    with captured(stream) as graphs:
        expression(own)(a, b, out=out)
    assert own.captured_bytes == 32 * MIB
    own.release_captured()
    assert own.captured_bytes == 0
    graphs[0].launch(stream)
    with pytest.raises(KernelFault, match="gemm workspace"):
        stream.synchronize()


@pytest.mark.parametrize("kind", ["streams", "default streams of threads"])
def test_threads_capture_at_once(kind: str, rng: np.random.Generator) -> None:
    """Turn by turn; cudaStreamPerThread is one name for a stream of each thread."""
    factors = [matrices(rng, SHAPES) for _ in range(2)]
    barrier = threading.Barrier(2, timeout=60)
    with installed() as cupy, ct.Handle(device=0) as handle, ThreadPoolExecutor(2) as threads:
        planned, cuda = expression(handle), cupy.cuda

        def work(x: np.ndarray, y: np.ndarray) -> list[Any]:
            a, b = (cupy.asarray(each, order="F") for each in (x, y))
            cuda.Device().synchronize()
            stream = cuda.Stream(non_blocking=True) if kind == "streams" else cuda.Stream.ptds
            barrier.wait()
            with captured(stream, 1) as graphs:
                found = []
                for _ in range(2):
                    barrier.wait()
                    found.append(planned(a, b))
                barrier.wait()
            barrier.wait()  # the legacy stream waits for those of threads: none captures by now
            graphs[0].launch(stream)
            stream.synchronize()
            return found

        results = list(threads.map(work, *zip(*factors, strict=True)))
        assert len({each.workspace[0] for each in counters(cupy).products}) == 2
        for (x, y), found in zip(factors, results, strict=True):
            for each in found:
                assert_product(each.get(), x, y)


def test_a_recording_beside_the_capture_of_another_thread() -> None:
    """A capture in global mode forbids every thread to allocate, a handle of cuBLAS too."""
    with installed() as cupy, ct.Handle(device=0) as handle, ThreadPoolExecutor(1) as other:
        a, b = (cupy.ones(shape, "f4", order="F") for shape in SHAPES)
        stream = cupy.cuda.Stream(non_blocking=True)
        other.submit(stream.begin_capture, 0).result()
        call = expression(handle).capture(a, b)
        other.submit(stream.end_capture).result()
        assert (call.replay().get() == 40).all()
        call.close()


def test_the_handle_of_cublas_is_given_back(fake: Gpu, rng: np.random.Generator) -> None:
    """One for all captures; what was recorded needs it no more, and what is, gets another."""
    x, y = matrices(rng, SHAPES)
    a, b = map(fake.array, (x, y))
    known = fake.cupy._driver.classes.blas._handles
    before = set(known)
    with ct.Handle(device=0) as handle:
        planned = expression(handle)
        calls = [planned.capture(a, b) for _ in range(3)]
        assert len(set(known) - before) == 1
    assert set(known) == before
    for call in (calls[0], planned.capture(a, b)):
        assert_product(fake.numpy(call.replay()), x, y)


# --- where the library is not to be had -----------------------------------------------------------


Functions = dict[str, Any]  # of cuBLAS, by name


def of_another_version(known: Functions) -> Any:
    def version(handle: Any, target: Any) -> int:
        target._obj.value = 11
        return 0

    return SimpleNamespace(**{**known, "cublasGetVersion_v2": version})


def too_old(known: Functions) -> Any:
    return SimpleNamespace(**{k: v for k, v in known.items() if k != "cublasSetWorkspace_v2"})


def not_loaded(known: Functions) -> Any:
    raise OSError("cannot allocate memory in static TLS block")


REFUSED = {of_another_version: "finds cuBLAS 11", too_old: "SetWorkspace", not_loaded: "static TLS"}


@pytest.fixture(params=REFUSED)
def hints(request: pytest.FixtureRequest, fake: Gpu) -> Iterator[list[str]]:
    """The hints of a process in which CuPy's cuBLAS is not to be had by ctypes."""
    opened, file = ctypes.CDLL, fake.cupy.cuda.cublas.__file__
    known = vars(opened(file))

    def open_library(name: Any) -> Any:
        return request.param(known) if name == file else opened(name)

    found: list[str] = []
    logging.to_python(logging.logging.getLogger("nobody"))
    logging.set_mask(Level.HINT.bit)
    logging.set_callback(lambda level, function, message: found.append(message))
    with mock.patch("ctypes.CDLL", open_library):
        yield found
    logging.set_callback(None)
    logging.set_file(None)
    logging.disable()
    (said,) = [each for each in found if "no cuBLAS in graphs" in each]
    assert REFUSED[request.param] in said


def test_our_own_kernels_stand_in(
    fake: Gpu, own: ct.Handle, hints: list[str], rng: np.random.Generator
) -> None:
    x, y = matrices(rng, SHAPES)
    a, b = map(fake.array, (x, y))
    planned = expression(own)
    assert_product(fake.numpy(planned(a, b)), x, y)
    products(fake).clear()
    for _ in range(2):
        with planned.capture(a, b) as call:
            assert_product(fake.numpy(call.replay()), x, y)
            assert "Gemm" in str(planned)
            assert "Gemm" not in str(call)
            assert "for no cuBLAS is captured" in str(call)
    with expression(own, ((9, 40), (40, 21))).capture(a[:9], b):
        assert not products(fake)


def test_a_workspace_that_is_too_small_for_them(
    fake: Gpu, own: ct.Handle, hints: list[str], rng: np.random.Generator
) -> None:
    """Our kernel sums parts of k apart where cuBLAS needs no workspace of the caller's."""
    plan, (x, y) = gemm(own, 8, 8, 4000), matrices(rng, [(8, 4000), (4000, 8)])
    a, b = fake.array(x), fake.array(y)
    d, given = fake.cupy.empty((8, 8), "f4", order="F"), fake.cupy.full(256, 7, np.uint8)
    fake.cupy.cuda.runtime.deviceSynchronize()
    stream = fake.cupy.cuda.Stream(non_blocking=True)
    with captured(stream) as graphs:
        own.contract(plan, 1, a, b, 0, None, d, given)
    assert plan.required_workspace < given.nbytes < own.captured_bytes < MIB
    graphs[0].launch(stream)
    stream.synchronize()
    np.testing.assert_allclose(fake.numpy(d), x.astype("f8") @ y, rtol=1e-3, atol=1e-2)
    assert (fake.numpy(given) == 7).all()
