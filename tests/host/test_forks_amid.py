"""Forks before every line of what starts threads, waits for them and shares work with them."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from contract.errors import ExecutionError
from contract.host.resources import workers
from contract.support import apart, thread

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked")

CHILD_SECONDS, PART_SECONDS = 20, 1e-3


class Forks:
    """Forks before one line of these modules; ``child`` is what ``os.fork`` returned."""

    def __init__(self, modules: tuple[ModuleType, ...], line: int) -> None:
        self.child: int | None = None
        self._left = line
        self._files = {module.__file__ for module in modules}

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        if event == "line":
            self._left -= 1
            if self._left == -1:
                self.child = os.fork()
                signal.alarm(0 if self.child else CHILD_SECONDS)
        return self


def check_in_both(modules: tuple[ModuleType, ...], call: Callable[[], bool]) -> None:
    """With a fork before each line that a call runs in turn, it is right in both processes."""
    line, before = 0, sys.gettrace()
    while True:
        is_right = False
        forks = Forks(modules, line)
        sys.settrace(forks)
        try:
            is_right = call()
        finally:
            sys.settrace(before)
            if forks.child == 0:
                os._exit(0 if is_right else 1)
        assert is_right
        if forks.child is None:
            break
        assert os.waitpid(forks.child, 0)[1] == 0, f"the child forked at line {line}"
        line += 1
    assert line > 10


def test_work_apart() -> None:
    check_in_both((apart, thread, threading), lambda: apart.apart(lambda: 7) == 7)


def test_work_that_is_shared() -> None:
    """What a child cannot end says so, and nobody goes on with it."""
    main, parent = threading.get_ident(), os.getpid()

    def call() -> bool:
        done = list[tuple[int, int]]()
        team = workers.Workers(2)
        try:
            team.map(lambda part: done.append(took(part)), [(at,) for at in range(8)])
        except ExecutionError:
            time.sleep(2 * PART_SECONDS)
            return os.getpid() != parent and {who for child, who in done if child != parent} <= {
                main
            }
        finally:
            team.close()
        return len(done) == 8

    def took(part: int) -> tuple[int, int]:
        time.sleep(PART_SECONDS)
        return os.getpid(), threading.get_ident()

    check_in_both((workers, thread, threading), call)
