"""Slices run by others: threads, processes, a cluster that loses a worker."""

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.slices.distributed import TASK_SECONDS, batched
from contract.slices.search import Chunked
from tests.reference import assert_within_bound

TERMS, OUTPUT = ("abc", "cbd", "dae"), "ea"
TEXT = f"{','.join(TERMS)}->{OUTPUT}"
SLICES = {"d": 5, "b": 3, "a": 2}  # a is a mode of the result


def operands(rng: np.random.Generator, dtype: str) -> list[np.ndarray]:
    shapes = (8, 9, 10), (10, 9, 20), (20, 8, 7)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def answer(arrays: list[np.ndarray], executor: Any) -> np.ndarray:
    c = np.ones((7, 8), arrays[0].dtype)
    return ct.contract(TEXT, *arrays, slices=SLICES, executor=executor, c=c, alpha=2, beta=-3)


def assert_right(found: np.ndarray, arrays: list[np.ndarray]) -> None:
    assert_within_bound(found, TERMS, OUTPUT, arrays, 2, -3, np.ones((7, 8)))


class Counting(ThreadPoolExecutor):
    """Threads that know how many tasks were given to them and not yet asked for."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.tasks = self.waiting = self.most = 0

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        self.tasks += 1
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        future = super().submit(task, *arguments, **more)
        result = future.result

        def counted(timeout: float | None = None) -> Any:
            self.waiting -= 1
            return result(timeout)

        future.result = counted  # type: ignore[method-assign]
        return future


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_the_same_bits_by_threads_and_processes(dtype: str, rng: np.random.Generator) -> None:
    arrays = operands(rng, dtype)
    found = []
    for workers in (1, 3):
        with Counting(workers) as executor:
            found.append(answer(arrays, executor))
            assert executor.tasks == 30
            assert executor.most == 2 * workers
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawned) as executor:
        found.append(answer(arrays, executor))
    assert_right(found[0], arrays)
    assert len({x.tobytes() for x in found}) == 1


class Failing(Executor):
    """Fails at one task; the others are never done."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.at, self.error = at, error
        self.futures: list[Future[Any]] = []

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if len(self.futures) == self.at:
            future.set_exception(self.error)
        self.futures.append(future)
        return future


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("odd"), ct.ExecutionError),
        (ct.InsufficientWorkspaceError("much"), ct.InsufficientWorkspaceError),
        (KeyboardInterrupt("stop"), KeyboardInterrupt),
    ],
)
def test_an_error_ends_the_rest(
    error: BaseException, raised: type[BaseException], rng: np.random.Generator
) -> None:
    executor = Failing(0, error)
    with pytest.raises(raised, match=str(error)):
        answer(operands(rng, "float64"), executor)
    assert len(executor.futures) > 1
    assert all(future.cancelled() for future in executor.futures[1:])


class Leaving(ProcessPoolExecutor):
    """Its third task ends the process that runs it."""

    tasks = 0

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        self.tasks += 1
        if self.tasks == 3:
            return super().submit(os._exit, 1)
        return super().submit(task, *arguments, **more)


def test_a_worker_that_ends(rng: np.random.Generator) -> None:
    with (
        Leaving(1, mp_context=multiprocessing.get_context("spawn")) as executor,
        pytest.raises(ct.ExecutionError, match="worker ended"),
    ):
        answer(operands(rng, "float64"), executor)


def test_workers_that_ended_before(rng: np.random.Generator) -> None:
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned) as executor:
        with pytest.raises(BrokenExecutor):
            executor.submit(os._exit, 1).result()
        with pytest.raises(ct.ExecutionError, match="takes no batch: BrokenProcessPool"):
            answer(operands(rng, "float64"), executor)


def test_an_executor_that_is_closed(rng: np.random.Generator) -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(ct.ExecutionError, match=r"takes no batch: .*after shutdown"):
        answer(operands(rng, "float64"), executor)


class Closing(Failing):
    """Takes so many tasks and no more."""

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        if len(self.futures) > self.at:
            raise self.error
        self.futures.append(Future())
        return self.futures[-1]


def test_what_was_submitted_ends_with_an_executor(rng: np.random.Generator) -> None:
    executor = Closing(1, RuntimeError("closed"))
    with pytest.raises(ct.ExecutionError, match="takes no batch: RuntimeError: closed"):
        answer(operands(rng, "float64"), executor)
    assert [future.cancelled() for future in executor.futures] == [True, True]


def test_what_is_no_executor(rng: np.random.Generator) -> None:
    with pytest.raises(ct.InvalidValueError, match=r"executor of concurrent.*'two'"):
        answer(operands(rng, "float64"), "two")


def test_what_is_not_sliced_stays_here(rng: np.random.Generator) -> None:
    executor = Failing(0, ValueError())
    x = rng.random((4, 4))
    np.testing.assert_allclose(ct.contract("ij,jk->ik", x, x, executor=executor), x @ x)
    assert executor.futures == []


class Killing:
    """A client of a cluster that kills a worker when it has submitted so many tasks."""

    def __init__(self, client: Any, after: int) -> None:
        self.client, self.after = client, after
        self.scatter, self.nthreads = client.scatter, client.nthreads

    def submit(self, *arguments: Any, **options: Any) -> Any:
        self.after -= 1
        if self.after == 0:
            os.kill(next(iter(self.client.run(os.getpid).values())), signal.SIGKILL)
        return self.client.submit(*arguments, **options)


def test_a_cluster_that_loses_a_worker(rng: np.random.Generator) -> None:
    distributed = pytest.importorskip("distributed")
    arrays = operands(rng, "float64")
    with Counting(1) as executor:
        wanted = answer(arrays, executor)
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        killing = Killing(client, 12)
        found = answer(arrays, killing)
        assert killing.after < 0
    np.testing.assert_array_equal(found, wanted)


def test_batches_take_seconds_and_sums_grow_first() -> None:
    kept, summed = Chunked(0, 100, 1), Chunked(1, 100, 1)
    assert batched((kept, summed), TASK_SECONDS) == (kept, summed)
    assert batched((kept, summed), TASK_SECONDS / 10) == (kept, Chunked(1, 100, 10))
    assert batched((kept, summed), 0.0) == (Chunked(0, 100, 1), Chunked(1, 100, 100))
    assert batched((Chunked(0, 10, 1), Chunked(1, 3, 2)), 0.0) == (
        Chunked(0, 10, 1),
        Chunked(1, 3, 2),
    )
