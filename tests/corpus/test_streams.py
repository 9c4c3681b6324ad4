"""What only a GPU has: streams, calls that do not wait, memory that nobody wrote."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import contract as ct
from tests.corpus.cases import Case, case
from tests.corpus.checks import assert_product, values
from tests.devices import Gpu
from tests.emulator.cupy_surface.counters import Counters
from tests.emulator.cupy_surface.surface import counters
from tests.emulator.device import Options, Schedule

MOST_PARAMETERS = 4096  # bytes
PRODUCT = case("mk,kn->mn", 33, 40, 21)
CALLS: dict[str, Callable[..., Any]] = {
    "blas": lambda a, b, **given: ct.contract("mk,kn->mn", a, b, **given),
    "gett": lambda a, b, **given: ct.contract("mk,kn->nm", a, b, operators=("tanh", None), **given),
    "expression": lambda a, b, **given: ct.contract("mk,kn,nj->jm", a, b, b.T, **given),
    "permute": lambda a, b, **given: ct.permute("ab->ba", a, alpha=2, **given),
    "reduce": lambda a, b, **given: ct.reduce("ab->b", a, **given),
    "binary": lambda a, b, **given: ct.elementwise_binary("ab,ba->ba", a, a.T, op="mul", **given),
}


def operands(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x, y = values(rng, (33, 40), "float32"), values(rng, (40, 21), "float32")
    return np.asfortranarray(x), np.asfortranarray(y)


def made(gpu: Gpu, rng: np.random.Generator) -> list[Any]:
    return [gpu.array(x) for x in operands(rng)]


@pytest.mark.parametrize("verb", CALLS)
def test_a_call_on_a_stream_and_one_that_waits_for_it(
    gpu: Gpu, verb: str, rng: np.random.Generator
) -> None:
    """The second stream sees what the first one did, by an event and nothing else."""
    a, b = made(gpu, rng)
    call = CALLS[verb]
    wanted = gpu.numpy(call(a, b, handle=gpu.handle))
    first, second = (gpu.cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    produced = call(a, b, handle=gpu.handle, stream=first)
    event = gpu.cupy.cuda.Event()
    event.record(first)
    second.wait_event(event)
    modes = "ab"[: produced.ndim]
    doubled = ct.permute(f"{modes}->{modes}", produced, alpha=2, handle=gpu.handle, stream=second)
    second.synchronize()
    np.testing.assert_array_equal(gpu.numpy(doubled), 2 * wanted)
    first.synchronize()
    np.testing.assert_array_equal(gpu.numpy(produced), wanted)


def test_calls_follow_the_current_stream(fake: Gpu, rng: np.random.Generator) -> None:
    a, b = made(fake, rng)
    stream, counted = fake.cupy.cuda.Stream(non_blocking=True), counters(fake.cupy)
    CALLS["gett"](a, b, handle=fake.handle)
    counted.reset()
    with stream:
        CALLS["gett"](a, b, handle=fake.handle)
    CALLS["permute"](a, b, handle=fake.handle, stream=stream)
    assert {each.stream for each in counted.launches} == {stream.ptr}
    assert fake.cupy.cuda.get_current_stream() != stream
    stream.synchronize()


def test_every_way_to_name_a_stream(fake: Gpu, rng: np.random.Generator) -> None:
    """Legacy, of the thread, owned, and owned by somebody else."""
    a, b = made(fake, rng)
    cuda, counted = fake.cupy.cuda, counters(fake.cupy)
    owned = cuda.Stream(non_blocking=True)
    streams = (cuda.Stream.null, cuda.Stream.ptds, owned, cuda.ExternalStream(owned.ptr, 0))
    wanted = fake.numpy(CALLS["gett"](a, b, handle=fake.handle))
    for stream in streams:
        counted.reset()
        found = CALLS["gett"](a, b, handle=fake.handle, stream=stream)
        assert {each.stream for each in counted.launches} == {stream.ptr}
        stream.synchronize()
        np.testing.assert_array_equal(fake.numpy(found), wanted)
    with pytest.raises(ct.InvalidValueError, match="stream is a CuPy stream of device 0"):
        CALLS["gett"](a, b, handle=fake.handle, stream=owned.ptr)


def test_a_plan_on_many_streams_at_once(fake: Gpu, rng: np.random.Generator) -> None:
    """Each stream has a cuBLAS handle, up to a number of them."""
    shapes = (33, 40), (40, 21), (33, 21)
    a, b, d = (
        ct.Operand(ct.TensorDescriptor(shape, dtype="float32"), modes)
        for shape, modes in zip(shapes, ("mk", "kn", "mn"), strict=True)
    )
    blas = fake.cupy._driver.classes.blas._handles
    before, calls = set(blas), []
    with ct.Handle(device=0) as handle:
        plan = handle.plan(ct.Contraction((a, b), d), ct.PlanPreference(algo=ct.Algo.GEMM))
        for _ in range(18):
            x, y = made(fake, rng)
            with fake.cupy.cuda.Stream(non_blocking=True) as stream:
                out = fake.cupy.empty((33, 21), "f4", order="F")
                handle.contract(plan, 1, x, y, 0, None, out)
            calls.append((stream, x, y, out))
        ours = set(blas) - before
        assert {blas[each].stream for each in ours} == {stream.ptr for stream, *_ in calls[2:]}
        assert len(ours) == 16
        for stream, x, y, out in reversed(calls):
            stream.synchronize()
            each = Case("mk,kn->mn", PRODUCT.extents, ("float32",) * 2)
            assert_product(fake.numpy(out), each, [fake.numpy(x), fake.numpy(y)])
    assert set(blas) == before


def quiet(counted: Counters) -> None:
    """Nothing but launches and products happened."""
    assert counted.launches or counted.products
    assert not counted.synchronisations
    assert not counted.to_device + counted.to_host + counted.device_copies
    assert not counted.elementwise
    assert not counted.compilations


@pytest.mark.parametrize("verb", CALLS)
def test_a_cached_call_only_launches(fake: Gpu, verb: str, rng: np.random.Generator) -> None:
    """No waiting, no copy, no kernel of CuPy's; no memory from the driver; parameters fit."""
    a, b = made(fake, rng)
    call, counted = CALLS[verb], counters(fake.cupy)
    for _ in range(2):
        call(a, b, handle=fake.handle)
    counted.reset()
    call(a, b, handle=fake.handle)
    quiet(counted)
    assert not counted.driver_allocations
    assert all(0 < each.parameter_bytes < MOST_PARAMETERS for each in counted.launches)
    fake.cupy.cuda.runtime.deviceSynchronize()


def test_parameters_of_many_modes_fit(fake: Gpu, rng: np.random.Generator) -> None:
    counted = counters(fake.cupy)
    counted.reset()
    letters = "abcdefghijklmnop"
    a = fake.array(values(rng, (2,) * 16, "float32"))
    shuffled = "pajbkcldmenfogih"
    ct.permute(f"{letters}->{shuffled}", a, handle=fake.handle)
    ct.contract(f"{letters},{shuffled}->acegikmo", a, a, handle=fake.handle)
    ct.reduce(f"{letters}->pnkaci", a, handle=fake.handle)
    assert len(counted.launches) >= 3
    assert all(0 < each.parameter_bytes < MOST_PARAMETERS for each in counted.launches)


@pytest.mark.parametrize("verb", CALLS)
def test_the_same_bits_whatever_the_order_of_threads(
    fake: Gpu, verb: str, rng: np.random.Generator
) -> None:
    a, b = made(fake, rng)
    bits = set()
    for seed, schedule in enumerate((*Schedule, Schedule.RANDOM)):
        fake.cupy._driver.options = Options(schedule=schedule, seed=seed, late=seed % 2 == 0)
        bits.add(fake.numpy(CALLS[verb](a, b, handle=fake.handle)).tobytes())
    assert len(bits) == 1


def test_long_sums_are_reproducible(fake: Gpu, rng: np.random.Generator) -> None:
    """Sums that several blocks share are added in a fixed order."""
    x = fake.array(values(rng, (100000,), "float32"))
    bits = set()
    for seed, schedule in enumerate(Schedule):
        fake.cupy._driver.options = Options(schedule=schedule, seed=seed)
        for found in (
            ct.reduce("a->", x, handle=fake.handle),
            ct.contract("a,a->", x, x, operators=("tanh", "tanh"), handle=fake.handle),
        ):
            bits.add(fake.numpy(found).tobytes())
    assert len(bits) == 2


@pytest.mark.parametrize("text", ["mk,kn->mn", "mk->m", "mk,mk->m", "mk,kn,nj->mj"])
def test_an_empty_sum_launches_what_writes_zeros(fake: Gpu, text: str) -> None:
    each = Case(text, {"m": 9, "k": 0, "n": 6, "j": 5}, ("float32",) * 3)
    arrays = [fake.array(np.zeros(shape, "f4")) for shape in each.shapes]
    counted = counters(fake.cupy)
    counted.reset()
    found = ct.contract(text, *arrays, handle=fake.handle)
    assert len(counted.launches) + len(counted.products) == 1
    assert (fake.numpy(found) == 0).all()


@pytest.mark.parametrize("text", ["mk,kn->mn", "mk->mk", "mk->m", "mk,mk->m"])
def test_an_empty_result_launches_nothing(fake: Gpu, text: str) -> None:
    each = Case(text, {"m": 0, "k": 7, "n": 6}, ("float32",) * 2)
    arrays = [fake.array(np.zeros(shape, "f4")) for shape in each.shapes]
    counted = counters(fake.cupy)
    counted.reset()
    assert ct.contract(text, *arrays, handle=fake.handle).size == 0
    assert not counted.launches
    assert not counted.products


def test_memory_that_nobody_wrote_is_not_read(gpu: Gpu, rng: np.random.Generator) -> None:
    """The emulator refuses to read such memory; on a GPU it holds whatever it holds."""
    a, b = made(gpu, rng)
    c = gpu.cupy.empty((33, 21), "f4", order="F")
    out = gpu.cupy.empty((33, 21), "f4", order="F")
    found = ct.contract("mk,kn->mn", a, b, c=c, beta=0, out=out, handle=gpu.handle)
    each = Case("mk,kn->mn", PRODUCT.extents, ("float32",) * 2)
    assert_product(gpu.numpy(found), each, [gpu.numpy(a), gpu.numpy(b)])
    found = ct.permute("ab->ba", c, alpha=0, handle=gpu.handle)
    assert (gpu.numpy(found) == 0).all()


def test_an_expression_takes_arrays_of_a_gpu(gpu: Gpu, rng: np.random.Generator) -> None:
    planned = ct.contract_expression("mk,kn->mn", (33, 40), (40, 21), dtype="float32")
    each = Case("mk,kn->mn", PRODUCT.extents, ("float32",) * 2)
    for _ in range(2):
        a, b = made(gpu, rng)
        assert_product(gpu.numpy(planned(a, b)), each, [gpu.numpy(a), gpu.numpy(b)])


def test_constants_stay_on_the_gpu(gpu: Gpu, rng: np.random.Generator) -> None:
    a, b = made(gpu, rng)
    planned = ct.contract_expression("mk,kn->mn", (33, 40), b, dtype="float32", constants=[1])
    each = Case("mk,kn->mn", PRODUCT.extents, ("float32",) * 2)
    assert_product(gpu.numpy(planned(a)), each, [gpu.numpy(a), gpu.numpy(b)])


def test_arrays_of_two_kinds_are_refused(gpu: Gpu) -> None:
    a, x = gpu.array(np.ones((3, 3), "f4")), np.ones((3, 3), "f4")
    for pair in ((a, x), (x, a)):
        with pytest.raises(ct.InvalidValueError, match="one kind"):
            ct.contract("ij,jk->ik", *pair)


def test_products_of_constants_are_computed_once_on_the_gpu(
    gpu: Gpu, rng: np.random.Generator
) -> None:
    """On one stream, before there are calls on others."""
    x, y, z = (rng.uniform(-1, 1, shape).astype("f4") for shape in ((33, 40), (40, 17), (17, 20)))
    a, b, c = map(gpu.array, (x, y, z))
    stream = gpu.cupy.cuda.Stream(non_blocking=True)
    planned = ct.contract_expression(
        "ab,bc,cd->ad", x.shape, b, c, dtype="float32", optimize=[(1, 2), (0, 1)]
    )
    assert len(planned.plan.steps) == 1
    result = planned(a, stream=stream)
    stream.synchronize()
    found = gpu.numpy(result)
    np.testing.assert_allclose(found, x @ y @ z, rtol=0, atol=1e-4)
