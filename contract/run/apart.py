"""Work in a thread of its own: a handler of signals that raises would leave it half done for good.

To import a library and to compile are of that kind, and take seconds. The main thread waits, which
handlers may break off.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["apart"]

Result = TypeVar("Result")


def apart(function: Callable[[], Result]) -> Result:
    """What the function returns or raises; the calling thread runs it unless it is the main one."""
    if threading.current_thread() is not threading.main_thread():
        return function()
    found = Future[Result]()

    def work() -> None:
        try:
            found.set_result(function())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=work, name="contract_apart", daemon=True).start()
    return found.result()
