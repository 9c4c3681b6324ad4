"""Work in a thread of its own: a handler of signals that raises would leave it half done for good.

To import a library and to compile are of that kind, and take seconds. The main thread waits, which
handlers may break off; a fork waits too.
"""

from collections.abc import Callable
from concurrent.futures import Future
from threading import RLock, Thread, current_thread, main_thread
from typing import TypeVar

from contract.support.forks import hold_during_forks

__all__ = ["apart"]

Result = TypeVar("Result")

_lock = RLock()
hold_during_forks(_lock)


def apart(function: Callable[[], Result]) -> Result:
    """What the function returns or raises; the calling thread runs it unless it is the main one."""
    if current_thread() is not main_thread():
        with _lock:
            return function()
    found = Future[Result]()

    def work() -> None:
        try:
            with _lock:
                found.set_result(function())
        except BaseException as error:
            found.set_exception(error)

    Thread(target=work, name="contract_apart", daemon=True).start()
    return found.result()
