"""BLAS's number of threads, whatever a handler of signals does while it is changed."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from contract.host.resources import blas_threads
from contract.host.resources.blas_threads import BlasThreads

SETTING = [3, 5]
MOMENTS, RESTORING = 12, 8  # of a call: in all, and those at which it has ended
LIMIT = 20  # seconds that a thread waits at most

Act = Callable[[], None]


class Library:
    """A BLAS whose settings have moments before and after, in which signals are handled."""

    internal_api, threading_layer = "mkl", "intel"

    def __init__(self, threads: int, moment: Act) -> None:
        self.threads, self.moment = threads, moment

    def get_num_threads(self) -> int:
        self.moment()
        found = self.threads
        self.moment()
        return found

    def set_num_threads(self, threads: int) -> None:
        self.moment()
        self.threads = threads
        self.moment()


class Scene:
    """Two libraries, and an act that happens at one moment of a call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.libraries = [Library(threads, self._moment) for threads in SETTING]
        self._act, self._left = self.nothing, 0
        monkeypatch.setattr(blas_threads, "ThreadpoolController", lambda: self)
        self.blas = BlasThreads()
        self.blas.exceeds = False

    def select(self, user_api: str) -> "Scene":
        return self

    @property
    def lib_controllers(self) -> list[Library]:
        return self.libraries

    @property
    def setting(self) -> list[int]:
        return [each.threads for each in self.libraries]

    def acts(self, moment: int, act: Act, call: Act) -> bool:
        """Make the call, with the act at this moment; whether the call has so many."""
        self._act, self._left = act, moment
        call()
        return self._left < 0

    def _moment(self) -> None:
        self._left -= 1
        if self._left == -1:
            self._act()

    def nothing(self) -> None:
        """Nothing happens."""

    def alone(self) -> None:
        self.blas.alone(self.check_lowered)

    def begin_another(self) -> threading.Thread:
        """A thread that wants BLAS alone, and has said so."""
        thread, before = threading.Thread(target=self.alone, daemon=True), len(self.blas._callers)
        thread.start()
        while len(self.blas._callers) == before:
            time.sleep(1e-3)
        return thread

    def check_lowered(self) -> None:
        assert self.setting == [1, 1]

    def check_restored(self) -> None:
        """Outside of every call; whoever wants threads has them."""
        assert self.setting == SETTING
        assert self.blas.threads == max(SETTING)
        assert self.blas.shared(lambda: self.setting)() == SETTING


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


moments = pytest.mark.parametrize("moment", range(MOMENTS))


def test_every_moment_of_a_call_is_tried(scene: Scene) -> None:
    assert scene.acts(MOMENTS - 1, scene.nothing, scene.alone)
    assert not scene.acts(MOMENTS, scene.nothing, scene.alone)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked")
@moments
def test_a_fork_amid_a_change(moment: int, scene: Scene) -> None:
    """The child has the threads that its parent had before."""
    children = list[int]()
    scene.acts(moment, lambda: children.append(os.fork()), scene.alone)
    if children == [0]:
        try:
            scene.check_restored()
            os._exit(0)
        finally:
            os._exit(1)
    scene.check_restored()
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)


@moments
def test_a_handler_that_calls_amid_a_change(moment: int, scene: Scene) -> None:
    scene.acts(moment, scene.alone, scene.alone)
    scene.check_restored()


@moments
def test_a_call_that_is_broken_off_amid_a_change(moment: int, scene: Scene) -> None:
    """The next one that needs threads restores what was lowered."""
    with suppress(KeyboardInterrupt):
        scene.acts(moment, _interrupt, scene.alone)
    assert scene.blas.shared(lambda: scene.setting)() == SETTING
    scene.check_restored()


@moments
def test_a_handler_that_calls_while_another_thread_begins(moment: int, scene: Scene) -> None:
    """The other thread waits for the end of the change."""
    others = list[threading.Thread]()

    def act() -> None:
        others.append(scene.begin_another())
        scene.alone()

    scene.acts(moment, act, scene.alone)
    for each in others:
        each.join(LIMIT)
        assert not each.is_alive()
    scene.check_restored()


@pytest.mark.parametrize("moment", range(4))
def test_a_handler_that_wants_threads_while_another_thread_begins(
    moment: int, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Amid a change it would wait for the other thread, which waits for the change."""
    pauses = iter(range(2000))

    def pause(seconds: float) -> None:
        time.sleep(seconds)
        if threading.current_thread() is threading.main_thread():
            next(pauses)

    monkeypatch.setattr(blas_threads, "sleep", pause)
    others = list[threading.Thread]()
    shared = scene.blas.shared(scene.nothing)

    def act() -> None:
        others.append(scene.begin_another())
        shared()

    with pytest.raises(KeyboardInterrupt):
        scene.acts(RESTORING, _interrupt, scene.alone)
    assert scene.acts(moment, act, shared)
    others[0].join(LIMIT)
    scene.check_restored()


def test_a_fork_does_not_wait_for_a_call_that_restores_the_setting(scene: Scene) -> None:
    """Where BLAS has more threads than cores, each of its calls is alone."""
    begun = threading.Event()

    def work() -> None:
        begun.set()
        while not scene.blas._forking:
            time.sleep(1e-3)

    def fork() -> None:
        scene.blas.acquire()
        scene.blas.release()

    scene.blas.exceeds = True
    threads = [
        threading.Thread(target=each, daemon=True) for each in (scene.blas.guarded(work), fork)
    ]
    threads[0].start()
    assert begun.wait(LIMIT)
    threads[1].start()
    for each in threads:
        each.join(LIMIT)
        assert not each.is_alive()
    assert scene.setting == SETTING


def _interrupt() -> None:
    raise KeyboardInterrupt
