"""What the process that compiles does: one function after the other, kept on disk.

Of many processes one compiles at a time, and what another has compiled is not compiled again.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from contract.execution.compiled_code import Kernel, compiled_code
from contract.support.config import user_cache_directory

__all__ = ["main"]


def main() -> None:
    """Read what is wanted from standard input, and say what is done."""
    asked = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for at, (module, name, types) in enumerate(asked):
        _say(_result(at, Kernel(module, name, tuple(types))))


def _result(at: int, kernel: Kernel) -> dict[str, Any]:
    try:
        with _alone():
            return {"at": at, "seconds": compiled_code().compile(kernel)}
    except Exception as error:  # whatever it is, the parent has to know
        return {"problem": f"{type(error).__name__}: {error}"}


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    """Standard input ends when the parent does."""
    while sys.stdin.readline():
        pass
    os._exit(1)


@contextmanager
def _alone() -> Iterator[None]:
    """The time in which no other process of this user compiles, where the system can tell."""
    with ExitStack() as stack:
        with suppress(ImportError, OSError):  # several may compile the same, which does no harm
            import fcntl

            folder = user_cache_directory()
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder / "compiling.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
