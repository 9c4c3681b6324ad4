"""Compiled work shared by threads that watch for it: each part once, by whoever is there."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from contract.host.compiled.functions.tables import load, store
from contract.host.compiled.functions.team import PART_ARGUMENTS, Team, _counted
from contract.host.compiled.functions.tools import by_integers, made
from contract.host.resources.workers import Workers


def _visit(table: int, begin: int, end: int, lane: int) -> None:
    """Counts visits of begin..end, and writes by which lane, after so many steps of waiting."""
    counts, lanes, patience = load(table, 0), load(table, 1), load(table, 2)
    for at in range(begin, end):
        _counted(counts, at)
        store(lanes, at, lane)
    for _ in range(patience):
        _counted(table, 3)


@cache
def visit() -> int:
    return made(by_integers(_visit, PART_ARGUMENTS))


class Visits:
    """What was done: how often each unit, and by whom."""

    def __init__(self, total: int, patience: int = 0) -> None:
        self.counts, self.lanes = np.zeros(total, np.int64), np.full(total, -1, np.int64)
        self.total, self.patience = total, patience

    def run(self, team: Team, parts: int, wakes: bool = True) -> None:
        given = self.counts.ctypes.data, self.lanes.ctypes.data, self.patience, 0
        team.run(visit(), given, self.total, parts, wakes)

    def check(self, lanes: int) -> set[int]:
        np.testing.assert_array_equal(self.counts, 1)
        seen = set(self.lanes.tolist())
        assert seen <= set(range(lanes))
        return seen


@pytest.fixture(params=[1, 2, 5])
def workers(request: Any) -> Iterator[Workers]:
    found = Workers(request.param)
    yield found
    found.close()


@pytest.mark.parametrize("wakes", [True, False])
def test_every_unit_once(workers: Workers, wakes: bool) -> None:
    team = Team(workers)
    for total in (1, 2, 3, 7, 64, 1000):
        for parts in {1, min(2, total), min(5, total), total}:
            visits = Visits(total)
            visits.run(team, parts, wakes)
            visits.check(min(workers.threads, parts))


PATIENT = 200_000  # steps, some milliseconds


def _shared(team: Team, wakes: bool) -> bool:
    """Whether another thread had one of two long parts."""
    visits = Visits(2, PATIENT)
    visits.run(team, 2, wakes)
    return len(visits.check(2)) == 2


def until(found: Callable[[], bool]) -> None:
    """Wait for what depends on when the system runs a thread."""
    end = time.monotonic() + 60
    while not found():
        assert time.monotonic() < end


def test_threads_that_sleep_are_woken_and_then_watch() -> None:
    workers = Workers(2)
    team = Team(workers)
    assert not _shared(team, wakes=False)  # nobody is there yet
    until(lambda: _shared(team, wakes=True))
    until(lambda: _shared(team, wakes=True) and _shared(team, wakes=False))
    time.sleep(0.05)
    until(lambda: not _shared(team, wakes=False))  # it has left, and nobody woke it
    workers.close()


def test_threads_leave_their_seats_for_other_work() -> None:
    """Python's work is not kept waiting by a thread that watches, however long it would."""
    workers = Workers(2)
    team = Team(workers)
    team._looks = 1 << 40
    until(lambda: _shared(team, wakes=True))
    meeting = threading.Barrier(2, timeout=60)
    workers.map(lambda number: meeting.wait(), [(0,), (1,)])
    until(lambda: _shared(team, wakes=True))
    team._dismiss()
    workers.close()


def test_callers_have_threads_of_their_own() -> None:
    """Two callers and two other threads: each caller gets one, with the lane after its own."""
    workers = Workers(3)
    team = Team(workers)
    meeting = threading.Barrier(2, timeout=60)

    def shared() -> bool:
        meeting.wait()
        return _shared(team, wakes=True)

    def both() -> bool:
        found: list[bool] = []
        other = threading.Thread(target=lambda: found.append(shared()))
        other.start()
        found.append(shared())
        other.join(timeout=60)
        return found == [True, True]

    until(both)
    workers.close()


def test_many_callers_at_once() -> None:
    workers = Workers(3)
    team, errors = Team(workers), list[BaseException]()

    def call(number: int) -> None:
        rng = np.random.default_rng(number)
        try:
            for _ in range(300):
                visits = Visits(int(rng.integers(1, 40)), int(rng.integers(0, 300)))
                visits.run(team, int(rng.integers(1, visits.total + 1)), bool(rng.integers(2)))
                visits.check(3)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a caller waits for ever"
    assert not errors
    workers.close()


def test_inside_a_part_a_caller_does_everything() -> None:
    workers = Workers(3)
    team = Team(workers)
    found: list[set[int]] = []

    def part(number: int) -> None:
        visits = Visits(20, 1000)
        visits.run(team, 10)
        found.append(visits.check(1))

    workers.map(part, [(number,) for number in range(6)])
    assert found == [{0}] * 6
    workers.close()


def test_threads_that_are_ended_start_again() -> None:
    workers = Workers(2)
    team = Team(workers)
    for _ in range(3):
        until(lambda: _shared(team, wakes=True))
        workers.close()


def test_nobody_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads cannot be started, then they can: no seat is lost."""
    workers = Workers(4)
    team = Team(workers)
    with monkeypatch.context() as patch:
        patch.setattr(workers, "start", lambda work: None)
        for _ in range(3):
            visits = Visits(50)
            visits.run(team, 8)
            assert visits.check(4) == {0}
            assert not team._seats[:, :2].any()
    until(lambda: _shared(team, wakes=True))
    workers.close()


def test_an_interrupt_waits_for_what_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads use the memory of the caller, who must not leave before them."""
    workers = Workers(2)
    team = Team(workers)
    start = workers.start

    def interrupted(work: Callable[[], None]) -> bool:
        start(work)
        time.sleep(0.01)  # it begins
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "start", interrupted)
    for patience in (0, PATIENT):
        visits = Visits(50, patience)
        with pytest.raises(KeyboardInterrupt):
            visits.run(team, 50)
        done = visits.counts.copy()
        time.sleep(0.01)
        np.testing.assert_array_equal(visits.counts, done)
        assert done.max() <= 1
        assert done.sum() < 50 or patience == 0, "parts were begun after the interrupt"
        team._dismiss()
        time.sleep(0.01)
    workers.close()


def test_a_thread_leaves_though_there_is_always_work() -> None:
    """Whoever closes waits for threads that others keep busy; later calls do without them."""
    workers, done = Workers(2), threading.Event()
    team = Team(workers)
    team._looks = 1 << 40

    def offer() -> None:
        while not done.is_set():
            visits = Visits(4, 20_000)
            visits.run(team, 4)
            visits.check(2)

    offering = threading.Thread(target=offer, daemon=True)
    offering.start()
    until(lambda: _shared(team, wakes=True))
    for _ in range(3):
        closing = threading.Thread(target=workers.close, daemon=True)
        closing.start()
        closing.join(timeout=30)
        assert not closing.is_alive(), "a thread never leaves"
    done.set()
    offering.join(timeout=30)
    assert not offering.is_alive()
    team._looks = 0  # of a thread that is still on its way to its seat
    workers.close()
