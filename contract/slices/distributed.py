"""Slices run by many workers: processes, threads, machines; whatever takes tasks and returns them.

Slices go out in batches, each a box of slices that takes seconds, with the parts of the operands
it reads. A worker adds its slices up; what it returns is added up here, in the order of batches
whatever the order of arrival. Batches depend on the plan alone: the same call gives the same bits
with one worker or a hundred, in threads, processes or a cluster. Without an executor slices are
added one by one, which may round otherwise.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError
from contextlib import closing
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from os import cpu_count
from time import sleep
from typing import Any, Protocol

import numpy as np

from contract.arrays.protocol import Array, Arrays
from contract.descriptors.expression import mode_extents
from contract.descriptors.operations import Contraction, Operand, PlanPreference, TensorDescriptor
from contract.errors import ContractError, ExecutionError, InvalidValueError
from contract.execution.bound_plan import Call, describe
from contract.execution.executor import Loaded, Scalars
from contract.host.resources.blas_threads import blas_threads
from contract.logging import Ranges
from contract.plan.steps import Plan
from contract.session.handle import Handle, handle_for
from contract.slices.fitted_plans import in_slices, sums_of
from contract.slices.search import Chunked, Region, number_of, regions
from contract.slices.sliced_plan import SlicedPlan, Sums, part
from contract.support.progress import counted, reporting
from contract.support.text import shown

__all__ = ["run_batch", "spread"]

TASK_SECONDS = 2.0  # sending a task costs milliseconds
FEWEST_TASKS = 64  # where there are so many slices: enough to share among workers
ATTEMPTS = 4  # of a batch whose operands went with a worker, and to send operands
PAUSE = 0.5  # seconds until a cluster knows who is gone


def spread(executor: Any, handle: Handle, call: Call) -> Call:
    """The same call by the workers of ``executor``; what is in one piece stays here."""
    workers = workers_of(executor)
    if not isinstance(call.loaded, SlicedPlan):
        return call
    by_workers = copy(call)
    by_workers.loaded = _distributed(call.loaded, workers, handle)
    return by_workers


# --- workers ------------------------------------------------------------------------------------


class Future(Protocol):
    """What a task will return."""

    def result(self) -> Any: ...
    def cancel(self) -> Any: ...


class SliceWorkers(Protocol):
    """Those who run tasks."""

    def count(self) -> int:
        """How many tasks they run at once, as far as is known."""

    def send(self, x: Array) -> Any:
        """What stands for an array among the arguments of a task."""

    def submit(self, task: Callable[..., Array], *arguments: Any) -> Future:
        """Run the task some time."""


@dataclass(frozen=True, slots=True)
class Pool:
    """An executor of concurrent.futures, or one like it: arrays travel with every task."""

    executor: Any

    def count(self) -> int:
        names = "num_workers", "_max_workers"  # mpi4py's, the standard library's
        found = (getattr(self.executor, name, None) for name in names)
        return next((n for n in found if isinstance(n, int)), cpu_count() or 1)

    def send(self, x: Array) -> Any:
        return x

    def submit(self, task: Callable[..., Array], *arguments: Any) -> Future:
        submitted: Future = self.executor.submit(task, *arguments)
        return submitted


@dataclass(frozen=True, slots=True)
class Cluster:
    """A client of dask.distributed: arrays lie in the memory of workers, which pass them on."""

    client: Any

    def count(self) -> int:
        return sum(self.client.nthreads().values())

    def send(self, x: Array) -> Any:
        for attempt in range(ATTEMPTS):
            try:
                return self.client.scatter(x, broadcast=False, hash=False)
            except OSError as error:  # the worker that was to keep it is gone
                lost = error
                sleep(PAUSE * attempt)
        raise ExecutionError(f"No worker takes the operands: {lost}") from lost

    def submit(self, task: Callable[..., Array], *arguments: Any) -> Future:
        submitted: Future = self.client.submit(task, *arguments, pure=False)
        return submitted


def workers_of(executor: Any) -> SliceWorkers:
    """The workers of an executor of concurrent.futures, or of dask.distributed's client."""
    client = getattr(executor, "_client", executor)
    if hasattr(client, "scatter") and hasattr(client, "nthreads"):
        return Cluster(client)
    if not callable(getattr(executor, "submit", None)):
        raise InvalidValueError(
            "executor is an executor of concurrent.futures or a dask.distributed.Client: "
            f"it is {shown(executor)}."
        )
    return Pool(executor)


# --- what a worker does -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    """What to do with parts of operands: cut the modes of ``sizes`` into chunks, add slices up."""

    operation: Contraction
    preference: PlanPreference
    sizes: tuple[tuple[int, int], ...]
    alpha: Any


def run_batch(batch: Batch, *operands: Array) -> Array:
    """alpha * the contraction of the operands, packed, in the type of sums; in a worker.

    Workers share the cores by batches, so BLAS has one thread in each: it does not matter how
    many it was given where a worker was started. Nor does it where bytes arrived: what lies at an
    odd address is copied.
    """
    handle = handle_for(None, operands)
    arrays = handle.arrays
    with arrays.on(None), reporting(False):
        inputs = [x if arrays.is_aligned(x) else arrays.native_copy(x) for x in operands]
        operation = _of_arrays(batch.operation, arrays, inputs)
        extents = _extents(operation.inputs, operation.labels)
        chunks = (Chunked(m, extents[m], min(size, extents[m])) for m, size in batch.sizes)
        plan = in_slices(handle, operation, batch.preference, tuple(chunks))
        result = plan.new_output()
        blas_threads().alone(lambda: plan(inputs, result, None, (batch.alpha, 0, 0)))
    return result


def _of_arrays(operation: Contraction, arrays: Arrays, operands: Sequence[Array]) -> Contraction:
    """The operation on these operands, which may be parts; its result packed, without C."""
    inputs = tuple(
        replace(operand, tensor=describe(arrays.layout(x)))
        for operand, x in zip(operation.inputs, operands, strict=True)
    )
    extents = _extents(inputs, operation.labels)
    modes = operation.output.modes
    shape = tuple(extents[mode] for mode in modes)
    dtype = operation.rule.accumulator
    alignment = arrays.new_alignment(np.dtype(dtype))
    output = Operand(TensorDescriptor(shape, None, dtype, alignment), modes)
    return replace(operation, inputs=inputs, output=output, addend=None, free_layout=False, same=())


def _extents(inputs: Sequence[Operand], labels: Sequence[str]) -> tuple[int, ...]:
    shapes = [each.tensor.extents for each in inputs]
    return mode_extents([each.modes for each in inputs], shapes, labels)


# --- what is done here --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class DistributedPlan(Loaded):
    """A sliced plan whose slices others run; ``sums`` adds their results up."""

    sliced: SlicedPlan
    workers: SliceWorkers
    sums: Sums
    arrays: Arrays
    plan: Plan
    new_output: Callable[[], Array]
    required_workspace: int
    tile_bytes: int
    own_bytes: int
    reads_addend: bool
    product: None = None
    measured: float | None = None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of slices."""
        return self.sliced.plans

    def __call__(
        self,
        inputs: Sequence[Array],
        output: Array,
        addend: Array | None,
        scalars: Scalars,
        workspace: Array | None = None,
    ) -> None:
        """Send batches out, some more than there are workers, and add up what comes back."""
        alpha, beta, gamma = scalars
        if alpha == 0:
            self.sliced(inputs, output, addend, scalars)
            return
        one = np.dtype(self.scalar_type).type(1)
        count = number_of(self.sums.chunks)
        with (
            closing(self._results(inputs, alpha)) as results,
            counted(results, count, "batch") as batches,
        ):
            self.sums(batches, output, addend, (one, beta, gamma), workspace)

    def trace(
        self, inputs: Sequence[Array], output: Array, addend: Array | None, scalars: Scalars
    ) -> Iterator[str]:
        """What is sliced, and how many batches others run."""
        count = number_of(self.sums.chunks)
        yield f"{self.sliced.slicing}, in {count} batches by {self.workers.count()} workers"

    def ranged(self, ranges: Ranges) -> "DistributedPlan":
        return replace(self, sums=self.sums.changed(lambda each: each.ranged(ranges)))

    def _results(self, inputs: Sequence[Array], alpha: Any) -> Generator[list[Array], None, None]:
        """The results of all batches in order; those not yet started end with the iteration."""
        tasks = _Tasks(self, inputs, alpha)
        chunks = self.sums.chunks
        todo, waiting = regions(chunks), deque[Future]()
        try:
            waiting.extend(map(tasks.submitted, islice(todo, 2 * self.workers.count())))
            for region in regions(chunks):
                yield [tasks.result(region, waiting.popleft())]
                waiting.extend(map(tasks.submitted, islice(todo, 1)))
        finally:
            for future in waiting:
                future.cancel()


class _Tasks:
    """The batches of one call: submitted with the parts of operands they read, and awaited."""

    def __init__(self, plan: DistributedPlan, inputs: Sequence[Array], alpha: Any) -> None:
        sliced = plan.sliced
        sizes = tuple((each.mode, each.size) for each in sliced.slicing.chunks)
        self._batch = Batch(sliced.sums.operation, sliced.preference, sizes, alpha)
        self._plan = plan
        self._inputs = inputs
        self._sent: dict[tuple[int, Region], Any] = {}

    def submitted(self, region: Region) -> Future:
        operands = [self._part(at, region) for at in range(len(self._inputs))]
        try:
            return self._plan.workers.submit(run_batch, self._batch, *operands)
        except Exception as error:  # it is closed, or its workers have ended
            raise ExecutionError(
                f"The executor takes no batch: {type(error).__name__}: {error}"
            ) from error

    def result(self, region: Region, future: Future) -> Array:
        """What the batch returned; once more if its operands were lost with a worker."""
        for _ in range(ATTEMPTS):
            try:
                return future.result()
            except CancelledError:
                self._sent.clear()
                future = self.submitted(region)
            except BrokenExecutor as error:
                raise ExecutionError(f"A worker ended during a batch: {error}") from error
            except ContractError:
                raise
            except Exception as error:
                raise ExecutionError(
                    f"A batch failed in a worker: {type(error).__name__}: {error}"
                ) from error
        raise ExecutionError(f"The operands of a batch were lost {ATTEMPTS} times.")

    def _part(self, at: int, region: Region) -> Any:
        """The part of an operand in a batch, packed; what several batches read is sent once."""
        operand, x = self._batch.operation.inputs[at], self._inputs[at]
        own = tuple(each for each in region if each[0] in operand.modes)
        if (at, own) not in self._sent:
            copied = self._plan.arrays.native_copy(part(x, operand.modes, own))
            self._sent[at, own] = self._plan.workers.send(copied)
        return self._sent[at, own]


def _distributed(sliced: SlicedPlan, workers: SliceWorkers, handle: Handle) -> DistributedPlan:
    operation = sliced.sums.operation
    chunks = batched(sliced.slicing.chunks, sliced.plans[0].seconds)
    sums = sums_of(handle, operation, sliced.preference, chunks, of_operands=False)
    plans = [each for piece in sums.pieces.values() for each in piece.plans]
    return DistributedPlan(
        sliced,
        workers,
        sums,
        sliced.arrays,
        sliced.plan,
        sliced.new_output,
        max(each.required_workspace for each in plans),
        max(each.tile_bytes for each in plans),
        max(each.own_bytes for each in plans),
        sliced.reads_addend,
    )


def batched(chunks: Sequence[Chunked], seconds: float) -> tuple[Chunked, ...]:
    """Chunks as large as so many slices that take TASK_SECONDS, each ``seconds``.

    Modes that are summed grow first: their slices become one result. A number of tasks remains.
    """
    most = min(TASK_SECONDS / max(seconds, 1e-9), max(number_of(chunks) / FEWEST_TASKS, 1))
    grown = []
    for each in reversed(chunks):
        taken = max(min(int(most), each.parts), 1)
        most /= taken
        grown.append(replace(each, size=min(each.size * taken, each.extent)))
    return tuple(reversed(grown))
