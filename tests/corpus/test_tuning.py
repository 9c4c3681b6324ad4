"""Tuning on every device: right results from every candidate, then one plan that stays."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.api.request import Options, operation_for
from contract.execution.executor import Loaded
from contract.session.tuned_plan import TunedPlan
from tests.devices import Device, Gpu

INCREMENTAL = ct.PlanPreference(autotune=ct.AutotuneMode.INCREMENTAL, incremental_count=2)
TEXT = "kam,nka->mn"


def operands(rng: np.random.Generator) -> list[np.ndarray]:
    shapes = (9, 8, 5), (6, 9, 8)
    return [np.asfortranarray(rng.standard_normal(shape).astype("f4")) for shape in shapes]


def tuned_plan(
    handle: ct.Handle, arrays: Sequence[Any], preference: ct.PlanPreference = INCREMENTAL
) -> Any:
    """What the handle has, or makes, for the product of these arrays."""
    layouts = [handle.arrays.layout(x) for x in arrays]
    return handle.plan(operation_for(handle.arrays, TEXT, layouts, Options()), preference)


def close(found: np.ndarray, given: Sequence[np.ndarray], scale: float = 1) -> None:
    x, y = (each.astype("f8") for each in given)
    np.testing.assert_allclose(found, scale * np.einsum(TEXT, x, y), rtol=1e-4, atol=1e-4)


@pytest.fixture
def fresh(device: Device) -> Any:
    """A handle of its own: its cache is counted."""
    with ct.Handle(None if device.name == "host" else 0) as handle:
        yield handle


def finish(device: Device) -> None:
    """Let the work be done that a device still has to do."""
    if isinstance(device, Gpu):
        device.cupy.cuda.runtime.deviceSynchronize()


def test_calls_try_the_candidates_and_the_fastest_stays(
    device: Device, fresh: ct.Handle, rng: np.random.Generator
) -> None:
    given = operands(rng)
    arrays = [device.array(x) for x in given]
    tuned = tuned_plan(fresh, arrays)
    assert isinstance(tuned, TunedPlan)
    assert len({str(each.plan) for each in tuned.candidates}) == 2
    ran: list[Loaded] = []
    tuned.candidates = tuple(_noting(each, ran) for each in tuned.candidates)
    for _ in range(12):  # a call that compiles something is followed by one more
        close(device.numpy(ct.contract(TEXT, *arrays, handle=fresh, preference=INCREMENTAL)), given)
        finish(device)
        if tuned.settled:
            break
    assert set(ran) == set(tuned.candidates)
    chosen = tuned_plan(fresh, arrays)
    times = tuned.seconds
    fastest = min(range(2), key=lambda at: times[at] or 0)
    assert chosen.plan == tuned.candidates[fastest].plan
    assert chosen.measured == times[fastest]
    assert fresh.plans.statistics.misses == 1, "it was planned once"
    close(device.numpy(ct.contract(TEXT, *arrays, handle=fresh, preference=INCREMENTAL)), given)


class _Noting:
    """A plan that says that it ran."""

    def __init__(self, loaded: Loaded, ran: list[Any]) -> None:
        self.loaded, self.ran = loaded, ran

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loaded, name)

    def __call__(self, *arguments: Any) -> None:
        self.ran.append(self)
        self.loaded(*arguments)


def _noting(loaded: Loaded, ran: list[Any]) -> Any:
    return _Noting(loaded, ran)


def test_an_expression_takes_the_settled_plan(
    device: Device, fresh: ct.Handle, rng: np.random.Generator
) -> None:
    given = operands(rng)
    arrays = [device.array(x) for x in given]
    planned = ct.contract_expression(
        TEXT, *(x.shape for x in given), dtype="float32", preference=INCREMENTAL, handle=fresh
    )
    for _ in range(12):
        close(device.numpy(planned(*arrays, alpha=2)), given, 2)
        finish(device)
    assert planned._call.loaded.settled
    assert planned._known
    assert planned.plan == planned._call.loaded.plan


def test_a_scalar_of_zero_is_not_measured(
    device: Device, fresh: ct.Handle, rng: np.random.Generator
) -> None:
    arrays = [device.array(x) for x in operands(rng)]
    for _ in range(2):
        found = ct.contract(TEXT, *arrays, alpha=0, handle=fresh, preference=INCREMENTAL)
        np.testing.assert_array_equal(device.numpy(found), np.zeros((5, 6)))
    tuned = tuned_plan(fresh, arrays)
    assert isinstance(tuned, TunedPlan)
    assert tuned.seconds == (None, None)


def test_patient_planning_measures_every_candidate(
    device: Device, fresh: ct.Handle, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.name == "emulated":  # where the kernels of each candidate take seconds to build
        planning = fresh._planning
        every = planning.candidates
        monkeypatch.setattr(planning, "candidates", lambda *given: islice(every(*given), 2))
    given = operands(rng)
    preference = ct.PlanPreference(algo=ct.Algo.DEFAULT_PATIENT)
    arrays = [device.array(x) for x in given]
    found = ct.contract(TEXT, *arrays, handle=fresh, preference=preference)
    close(device.numpy(found), given)
    plan = tuned_plan(fresh, arrays, preference)
    assert plan.measured is not None
    assert plan.measured > 0
    assert fresh.plans.statistics.misses == 1


def test_patient_planning_of_bool(
    device: Device, fresh: ct.Handle, rng: np.random.Generator
) -> None:
    """Candidates are measured with scalars of the operation's type: integers are no bool."""
    x, c = rng.integers(0, 2, (9, 8)).astype(bool), rng.integers(0, 2, 9).astype(bool)
    preference = ct.PlanPreference(algo=ct.Algo.DEFAULT_PATIENT)
    a, addend = device.array(x), device.array(c)
    found = ct.contract("ab->a", a, c=addend, handle=fresh, preference=preference)
    np.testing.assert_array_equal(device.numpy(found), x.any(1) | c)


def test_results_keep_their_layout_while_tuning(rng: np.random.Generator) -> None:
    """A free layout is that of the first candidate for good."""
    x, y = rng.random((40, 30, 20)), rng.random((20, 30, 7))
    preference = replace(INCREMENTAL, incremental_count=8)
    with ct.Handle(threads=1) as handle:
        strides = {
            ct.contract(
                "abc,cbd->dab", x, y, order="K", preference=preference, handle=handle
            ).strides
            for _ in range(12)
        }
    assert len(strides) == 1


def test_what_is_not_kept_is_not_tuned(rng: np.random.Generator) -> None:
    x = rng.random((30, 30))
    uncached = replace(INCREMENTAL, cache_mode=ct.CacheMode.NONE)
    with ct.Handle(cache_lines=0) as none, ct.Handle() as handle:
        for preference, chosen in ((INCREMENTAL, none), (uncached, handle)):
            for _ in range(3):
                found = ct.contract("ab,bc->ac", x, x, preference=preference, handle=chosen)
                np.testing.assert_allclose(found, x @ x)
            assert len(chosen.plans) == 0


def test_a_candidate_that_fails_is_never_chosen(rng: np.random.Generator) -> None:
    x, y = rng.random((9, 8, 5)).astype("f4"), rng.random((6, 9, 8)).astype("f4")
    x, y = np.asfortranarray(x), np.asfortranarray(y)
    with ct.Handle() as handle:
        tuned = tuned_plan(handle, (x, y))
        assert isinstance(tuned, TunedPlan)

        class Failing(_Noting):
            def __call__(self, *arguments: Any) -> None:
                raise MemoryError("no room for this candidate")

        failing: Any = Failing(tuned.candidates[0], [])
        tuned.candidates = (failing, *tuned.candidates[1:])
        with pytest.raises(MemoryError, match="no room"):
            ct.contract(TEXT, x, y, handle=handle, preference=INCREMENTAL)
        for _ in range(12):
            close(ct.contract(TEXT, x, y, handle=handle, preference=INCREMENTAL), (x, y))
        assert tuned_plan(handle, (x, y)).plan != failing.plan


def test_while_capturing_the_best_known_plan_is_used(fake: Gpu, rng: np.random.Generator) -> None:
    given = operands(rng)
    arrays = [fake.array(x) for x in given]
    out = fake.array(np.zeros((5, 6), "f4", order="F"))
    with ct.Handle(0) as handle:
        tuned = tuned_plan(handle, arrays)
        assert isinstance(tuned, TunedPlan)
        stream = fake.cupy.cuda.Stream(non_blocking=True)
        handle.contract(tuned, 1, *arrays, 0, None, out, stream=stream)
        stream.synchronize()
        before = tuned.seconds
        best = [at for at, each in enumerate(tuned.candidates) if each.plan == tuned.best.plan]
        with stream:
            stream.begin_capture()
            handle.contract(tuned, 1, *arrays, 0, None, out)
            graph = stream.end_capture()
        assert tuned.seconds == before, "nothing was measured"
        assert best == [tuned.candidates.index(tuned.best)]
        graph.launch(stream)
        stream.synchronize()
        close(fake.numpy(out), given)


def test_threads_tune_one_plan(rng: np.random.Generator) -> None:
    x, y = (np.asfortranarray(each) for each in operands(rng))
    wrong: list[BaseException] = []
    with ct.Handle(cache_lines=2) as handle:

        def work() -> None:
            try:
                for _ in range(20):
                    close(ct.contract(TEXT, x, y, handle=handle, preference=INCREMENTAL), (x, y))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert tuned_plan(handle, (x, y)).settled
    assert not wrong, wrong[0]
