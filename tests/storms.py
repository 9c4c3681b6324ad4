"""Programs for child processes: interrupts, handlers that call back, forks and exits, amid work.

``python -m tests.storms interrupts 300 --seed 1`` ends with "right" and counts, or fails.
"""

import argparse
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_info

import contract as ct

LATE = 2e-3  # seconds in which a thread that was left behind would write
CHILD_SECONDS = 60.0


# --- the work -----------------------------------------------------------------------------------


@dataclass
class Work:
    """A call and its result; ``into`` is the same call into an array that is used again."""

    call: Callable[..., np.ndarray]
    wanted: np.ndarray = field(init=False)
    out: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.wanted = np.array(self.call())
        self.out = np.empty_like(self.wanted)

    def check(self, found: np.ndarray) -> None:
        assert_array_equal(found, self.wanted)

    def into(self) -> np.ndarray:
        return self.call(out=self.out)


def work_of(handle: ct.Handle) -> list[Work]:
    """Every kind of step, all of them shared by threads: products, copies, sums, networks."""
    rng = np.random.default_rng(3)
    p, q = rng.standard_normal((600, 500)), rng.standard_normal((500, 600))
    x, y = rng.standard_normal((60, 70, 80)), rng.standard_normal((80, 70, 50))
    small = rng.standard_normal((40, 40))
    whole = rng.integers(-9, 9, (300, 300))
    ttgt = ct.PlanPreference(algo=ct.Algo.TTGT)
    panels = ct.PlanPreference(algo=ct.Algo.GETT)
    limited = ct.PlanPreference(workspace_limit=1 << 16)

    def of(text: str, *arrays: Any, **options: Any) -> Work:
        return Work(lambda **more: ct.contract(text, *arrays, handle=handle, **options, **more))

    def verb(call: Any, text: str, *arrays: Any, **options: Any) -> Work:
        return Work(lambda **more: call(text, *arrays, handle=handle, **options, **more))

    return [
        of("ij,jk->ik", p, q),
        of("abc,cbd->da", x, y),
        of("abc,cbd->ad", x, y, preference=ttgt),
        of("abc,cbd->da", x.astype("f4"), y, preference=panels),
        of("abc,cbd->da", x, y, preference=limited),
        of("ij,jk->ik", whole, whole),
        of("ij,jk,kl->li", p, q, p),
        of("ij,ij->i", p, q.T),
        of("ij,jk->ki", small, small),
        verb(ct.reduce, "abc->b", x, operators=("tanh",)),
        verb(ct.reduce, "abc->", x),
        verb(ct.permute, "abc->cab", x, alpha=2),
        verb(ct.permute, "ij->ji", p),
        verb(ct.elementwise_binary, "ij,ji->ij", p, q),
    ]


def misses(handle: ct.Handle, chosen: random.Random) -> None:
    """A call of another shape than those before, which has to be planned."""
    rows, columns = chosen.randrange(3, 400), chosen.randrange(3, 400)
    x = np.ones((rows, columns))
    found = ct.contract("ij,kj->ik", x, x[:3], handle=handle)
    assert_array_equal(found, np.full((rows, 3), columns))


@contextmanager
def handles() -> Iterator[list[ct.Handle]]:
    made = [
        ct.Handle(kernels=kernels, threads=threads, cache_lines=30, compile="wait")
        for kernels in ("numba", "numpy")
        for threads in (2, 3)
    ]
    yield made
    for each in made:
        each.close()


# --- interrupts ---------------------------------------------------------------------------------


class Interrupt(BaseException):
    """What the handler raises."""


class Storm:
    """A thread that sends signals at random moments; ``armed`` is how many may be raised."""

    def __init__(self, seed: int) -> None:
        self.armed = self.raised = 0
        self._ended = False
        self._chosen = random.Random(seed)
        self._main = threading.get_ident()
        signal.signal(signal.SIGUSR1, self._handle)
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _handle(self, number: int, frame: Any) -> None:
        if self.armed > 0:
            self.armed -= 1
            self.raised += 1
            raise Interrupt

    def _send(self) -> None:
        while not self._ended:
            time.sleep(self._chosen.choice((1e-5, 1e-4, 1e-3, 4e-3)) * self._chosen.random())
            for _ in range(self._chosen.choice((1, 1, 1, 2, 5)) if self.armed else 0):
                signal.pthread_kill(self._main, signal.SIGUSR1)

    def end(self) -> None:
        self._ended = True
        self._thread.join()


def interrupted(storm: Storm, most: int, call: Callable[[], Any]) -> Any:
    """What the call returns; None if it was interrupted, up to ``most`` times."""
    try:
        storm.armed = most
        found = call()
        storm.armed = 0
        return found
    except Interrupt:
        storm.armed = 0
        return None


def interrupts(count: int, seed: int) -> str:
    """Calls that are interrupted; whatever comes next is right, and nobody writes late."""
    chosen, calls = random.Random(seed), 0
    blas, warnings = [each["num_threads"] for each in threadpool_info()], np.geterr()
    with handles() as made:
        every = [(handle, work) for handle in made for work in work_of(handle)]
        storm = Storm(seed)
        while storm.raised < count:
            _one_call(storm, chosen, every)
            calls += 1
        storm.end()
        for _, work in every:
            work.check(work.call())
        _check_threads(made)
    assert [each["num_threads"] for each in threadpool_info()] == blas
    assert np.geterr() == warnings
    return f"{storm.raised} interrupts of {calls} calls"


def _one_call(storm: Storm, chosen: random.Random, every: Sequence[tuple[ct.Handle, Work]]) -> None:
    """A call amid the storm, and if it was interrupted another one without."""
    (handle, work), into = chosen.choice(every), chosen.random() < 0.5
    before = storm.raised
    found = interrupted(storm, chosen.choice((1, 1, 3)), work.into if into else work.call)
    if storm.raised == before:
        work.check(found)
        return
    if into:
        _check_left_alone(work.out)
    _, following = chosen.choice(every)
    following.check(chosen.choice((following.into, following.call))())
    if chosen.random() < 0.05:
        interrupted(storm, 1, partial(misses, handle, chosen))
        misses(handle, chosen)


def _check_left_alone(out: np.ndarray) -> None:
    """What a call that was interrupted wrote to is not written to any more."""
    out[...] = 7
    end = time.perf_counter() + LATE
    while time.perf_counter() < end:
        assert (out == 7).all(), "a thread wrote late"


def _check_threads(made: Sequence[ct.Handle]) -> None:
    """Other threads still take part, and nobody believes to be inside of a part."""
    for handle in made:
        workers = handle.executor.workers  # type: ignore[attr-defined]
        assert not workers.is_inside()
        meeting = threading.Barrier(2, timeout=20)
        workers.map(lambda number, meeting=meeting: meeting.wait(), [(0,), (1,)])


def beginnings(count: int, seed: int) -> str:
    """The first calls of a process, which import and compile; then one that is not interrupted."""
    chosen, ended = random.Random(seed), 0
    x = np.random.default_rng(seed).random((300, 400))
    signal.signal(signal.SIGALRM, _raise)
    with ct.Handle(kernels="numba", threads=2) as handle:
        for _ in range(count):
            ended += _after(0.4 * chosen.random(), lambda: ct.permute("ij->ji", x, handle=handle))
        assert_array_equal(ct.permute("ij->ji", x, handle=handle), x.T)
    return f"{count - ended} interrupts of {count} calls"


def long_calls(count: int, seed: int) -> str:
    """Calls that take minutes, each interrupted after a moment."""
    rng = np.random.default_rng(seed)
    virtual = np.broadcast_to(0.5, (10**5, 10**6))
    whole = rng.integers(-9, 9, (3000, 3000))
    signal.signal(signal.SIGALRM, _raise)
    for kernels in ("numba", "numpy"):
        with ct.Handle(kernels=kernels, threads=2) as handle:
            calls = [
                partial(ct.reduce, "ij->j", virtual, operators=("tanh",), handle=handle),
                partial(ct.reduce, "ij->i", virtual, handle=handle),
                partial(ct.reduce, "ij->", virtual, handle=handle),
                partial(ct.contract, "ij,ij->i", virtual, virtual, handle=handle),
                partial(ct.contract, "ij,jk->ik", *[whole] * 2, handle=handle),
            ]
            for call in calls * count:
                assert not _after(0.5, call)
            x = rng.standard_normal((60, 50))
            assert_allclose(ct.contract("ij,ij->i", x, x, handle=handle), (x * x).sum(1))
    return f"{2 * count * len(calls)} long calls"


def _raise(number: int, frame: Any) -> None:
    raise Interrupt


def _after(seconds: float, call: Callable[[], Any]) -> bool:
    """Interrupt a call after so many seconds; whether it ended before."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        call()
        signal.setitimer(signal.ITIMER_REAL, 0)
        return True
    except Interrupt:
        return False


# --- handlers that call back --------------------------------------------------------------------


def callbacks(count: int, seed: int) -> str:
    """Calls amid which a handler of signals makes calls itself, with the same handles."""
    chosen, called = random.Random(seed), [0]
    with handles() as made:
        every = [(handle, work) for handle in made for work in work_of(handle)]
        copies = [work for _, work in every if work.wanted.nbytes >= 1 << 20]

        def handle_signal(number: int, frame: Any) -> None:
            handle, work = chosen.choice(every)
            if chosen.random() < 0.1:
                work.check(work.call())
            misses(handle, chosen)
            called[0] += 1

        signal.signal(signal.SIGALRM, handle_signal)
        while called[0] < count:
            signal.setitimer(signal.ITIMER_REAL, 1e-6 + 1e-3 * chosen.random())
            handle, _ = chosen.choice(every)
            misses(handle, chosen)
            if chosen.random() < 0.2:
                work = chosen.choice(copies)
                work.check(work.call())
        signal.setitimer(signal.ITIMER_REAL, 0)
    return f"{called[0]} handlers that called"


# --- forks --------------------------------------------------------------------------------------


def forks(count: int, seed: int) -> str:
    """Children of a process whose other threads are at work; each makes every kind of call."""
    chosen = random.Random(seed)
    with handles() as made:
        every = [(handle, work) for handle in made for work in work_of(handle)]
        done = threading.Event()

        def busy(number: int) -> None:
            own = random.Random(number)
            while not done.is_set():
                handle, work = own.choice(every)
                work.check(work.call())
                misses(handle, own)

        threads = [threading.Thread(target=busy, args=(seed + at,)) for at in range(3)]
        for each in threads:
            each.start()
        for at in range(count):
            time.sleep(0.01 * chosen.random())
            _fork(every, random.Random(f"{seed} {at}"))
        done.set()
        for each in threads:
            each.join(timeout=CHILD_SECONDS)
            assert not each.is_alive()
    return f"{count} forks"


def _fork(every: Sequence[tuple[ct.Handle, Work]], chosen: random.Random) -> None:
    child = os.fork()
    if child == 0:
        misses(every[0][0], chosen)
        _end_as_child(chosen.sample(every, 4))
    _await(child)


def _await(child: int) -> None:
    """A child ends well, and in time."""
    end = time.monotonic() + CHILD_SECONDS
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found == child:
            assert status == 0, f"a child ended with {status}"
            return
        time.sleep(1e-3)
    os.kill(child, signal.SIGABRT)
    raise AssertionError("a child hangs")


def forks_amid(count: int, seed: int) -> str:
    """Handlers that fork amid a call, which goes on in both processes.

    In the child it is right or says that its threads are missing; whatever comes next is right.
    """
    chosen, children = random.Random(seed), list[int]()
    is_child, is_armed = [False], [False]

    def fork(number: int, frame: Any) -> None:
        if is_armed[0]:  # a signal may come late: amid another fork, or while a child is awaited
            is_armed[0] = False
            child = os.fork()
            is_child[0] = child == 0
            children.append(child)

    signal.signal(signal.SIGALRM, fork)
    with handles() as made:
        every = [(handle, work) for handle in made for work in work_of(handle)]
        while len(children) < count:
            _, work = chosen.choice(every)
            is_armed[0] = True
            signal.setitimer(signal.ITIMER_REAL, 1e-6 + 4e-3 * chosen.random())
            try:
                work.check(work.call())
            except ct.ExecutionError:
                if not is_child[0]:
                    raise
            is_armed[0] = False
            if is_child[0]:
                _end_as_child(chosen.sample(every, 3))
            while children and children[-1]:
                _await(children[-1])
                children[-1] = 0
    return f"{count} forks in handlers"


def _end_as_child(every: Sequence[tuple[ct.Handle, Work]]) -> None:
    status = 1
    try:
        for handle, work in every:
            work.check(work.call())
            _check_threads([handle])
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


# --- exits --------------------------------------------------------------------------------------


def exits(count: int, seed: int) -> str:
    """One exit, or ``count`` times Handle.close(), while a daemon thread works without a pause."""
    chosen = random.Random(seed)
    x = np.random.default_rng(seed).random((300, chosen.choice((300, 700))))
    out, handle = np.empty(x.shape[::-1]), ct.Handle(kernels="numba", threads=2)

    def busy() -> None:
        while True:
            ct.permute("ij->ji", x, out=out, handle=handle)

    threading.Thread(target=busy, daemon=True).start()
    time.sleep(0.5 + 0.1 * chosen.random())
    for _ in range(count):
        handle.close()
        time.sleep(0.05 * chosen.random())
    return f"{count} closes"


def main() -> None:
    every = interrupts, beginnings, long_calls, callbacks, forks, forks_amid, exits
    programs = {each.__name__: each for each in every}
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=programs)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print("right:", programs[given.program](given.count, given.seed))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
