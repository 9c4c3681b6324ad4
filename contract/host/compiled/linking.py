"""Which compiled functions the kernels of a plan need, and how these find them."""

from collections.abc import Callable
from functools import cache
from typing import Any

from contract.execution.compiled_code import Kernel, compiled_code

__all__ = ["TEAM", "Linker"]

TEAM = Kernel("team", "team")  # what threads that share work are made of


class Linker:
    """Notes what is needed; nothing is loaded or compiled before a kernel runs.

    ``team`` shares work among ``threads``: its ``run`` is what a kernel calls.
    """

    def __init__(self, threads: int, team: Callable[[], Any]) -> None:
        self.threads = threads
        self.needs: set[Kernel] = set()
        self._team = team

    def functions(self, *kernels: Kernel) -> Callable[[], tuple[Any, ...]]:
        """A function that finds these, and waits for them the first time if it has to."""
        self.needs.update(kernels)
        return cache(lambda: tuple(map(compiled_code().get, kernels)))

    def shared(self, *kernels: Kernel) -> Callable[[], tuple[Any, ...]]:
        """The same, with what shares work among threads before them."""
        found = self.functions(TEAM, *kernels)
        return cache(lambda: (self._team().run, *found()[1:]))
