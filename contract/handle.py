"""Handle: one device, here the host; its executor, plan cache and settings."""

from functools import cache
from types import TracebackType

from contract.cache import PlanCache
from contract.config import Settings
from contract.descriptors import Contraction, PlanPreference
from contract.errors import InvalidValueError
from contract.plan import Plan
from contract.planner import make_plan
from contract.run.call import Call
from contract.run.host import HostExecutor

__all__ = ["Handle", "default_handle"]


class Handle:
    """Plans and runs operations on the host; usable from many threads at once.

    ``kernels`` ("auto", "numba" or "numpy") and ``threads`` override the environment, which is
    read once, here. ``cache_lines`` bounds the plan cache.
    """

    def __init__(
        self, kernels: str | None = None, threads: int | None = None, cache_lines: int = 64
    ) -> None:
        self.settings = Settings.from_environment()
        family = self.settings.kernels if kernels is None else kernels
        if family not in ("auto", "numba", "numpy"):
            raise InvalidValueError(f"kernels is 'auto', 'numba' or 'numpy': it is {family!r}.")
        count = self.settings.threads if threads is None else threads
        if count < 0:
            raise InvalidValueError(f"threads must not be negative: it is {count}.")
        self.executor = HostExecutor(family, count)
        self.plans: PlanCache[Call] = PlanCache(cache_lines if self.settings.plan_cache else 0)

    def plan(self, operation: Contraction, preference: PlanPreference | None = None) -> Plan:
        """The plan for ``operation``; nothing is allocated or run."""
        return make_plan(operation, preference)

    def close(self) -> None:
        """Stop the threads and forget every plan; the handle must not be used afterwards."""
        self.plans.clear()
        self.executor.close()

    def __enter__(self) -> "Handle":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@cache
def default_handle() -> Handle:
    """The handle of calls that name none; made at the first such call."""
    return Handle()
