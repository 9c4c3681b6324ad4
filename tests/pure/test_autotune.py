"""Tuning as such: candidates, times and the choice, without any plan."""

import threading
from math import inf

from contract.session.tuning import Tuning, fastest


def test_each_call_gets_the_next_candidate_then_the_fastest_stays() -> None:
    tuning = Tuning(3)
    assert tuning.best == 0
    for candidate, seconds in enumerate((3.0, 1.0, 2.0)):
        assert not tuning.settled
        assert tuning.next() == candidate
        assert tuning.record(candidate, seconds) is (candidate == 2)
    assert tuning.next() is None
    assert (tuning.settled, tuning.best, tuning.seconds) == (True, 1, (3.0, 1.0, 2.0))


def test_the_best_so_far_is_used_before_the_end() -> None:
    tuning = Tuning(3)
    tuning.next()
    assert tuning.next() == 1
    tuning.record(1, 5.0)
    assert tuning.best == 1
    tuning.record(0, 5.0)
    assert tuning.best == 0, "the model's choice wins among equals"


def test_a_time_that_does_not_count_gives_another_turn() -> None:
    tuning = Tuning(2)
    assert tuning.next() == 0
    tuning.again(0)
    assert [tuning.next(), tuning.next()] == [0, 1]


def test_a_call_that_is_broken_off_takes_no_candidate_away() -> None:
    tuning = Tuning(2)
    assert [tuning.next() for _ in range(5)] == [0, 1, 0, 1, 0], "no time was recorded"
    assert not tuning.record(0, 2.0)
    assert [tuning.next(), tuning.next()] == [1, 1]
    assert tuning.record(1, 1.0)
    assert not tuning.record(0, 0.0), "the choice is settled once"
    assert tuning.best == 1


def test_a_failure_is_never_the_best_unless_all_fail() -> None:
    tuning = Tuning(2)
    tuning.record(0, inf)
    tuning.record(1, 9.0)
    assert tuning.best == 1
    hopeless = Tuning(2)
    hopeless.record(0, inf)
    assert hopeless.record(1, inf)
    assert hopeless.best == 0


def test_threads_share_the_candidates() -> None:
    tuning, taken, settled = Tuning(50), [], []

    def work() -> None:
        while (candidate := tuning.next()) is not None:
            taken.append(candidate)
            if tuning.record(candidate, 100.0 - candidate):
                settled.append(tuning.best)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(taken) == set(range(50))
    assert settled == [49]


def test_the_fastest_of_all_by_the_least_of_several_times() -> None:
    times = {0: [0.0, 5.0, 5.0, 5.0], 1: [9.0, 9.0, 4.0, 9.0], 2: [1.0, 6.0, 6.0, 4.5]}
    given = {candidate: iter(each) for candidate, each in times.items()}
    best, seconds = fastest(3, lambda candidate: next(given[candidate]))
    assert (best, seconds) == (1, (5.0, 4.0, 4.5)), "the first time of each does not count"
