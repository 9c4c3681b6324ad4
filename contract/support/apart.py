"""Work in a thread of its own: a handler of signals that raises would leave it half done for good.

To import a library and to compile are of that kind, and take seconds. The main thread waits, which
handlers may break off; a fork waits too. In a child of a fork that came before the thread began
another one does the work.
"""

from collections.abc import Callable
from concurrent.futures import Future
from threading import RLock, get_ident, main_thread
from typing import TypeVar

from contract.support.forks import hold_during_forks
from contract.support.thread import Thread

__all__ = ["apart"]

Result = TypeVar("Result")

_lock = RLock()
hold_during_forks(_lock)


def apart(function: Callable[[], Result]) -> Result:
    """What the function returns or raises; the calling thread runs it unless it is the main one."""
    if get_ident() != main_thread().ident:
        with _lock:
            return function()
    found = Future[Result]()

    def work() -> None:
        with _lock:
            try:
                found.set_result(function())
            except BaseException as error:
                found.set_exception(error)

    while not found.done():
        Thread(work).join()
    return found.result()
