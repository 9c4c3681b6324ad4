"""What a child of os.fork makes anew: its parent's other threads do not come along.

A lock that one of them held would be held for ever, and threads that are counted on are not there.
"""

import os
import threading
from typing import Any, Protocol
from weakref import WeakSet

__all__ = ["Renewed", "reentrant_lock", "renew_in_children"]


class Renewed(Protocol):
    """Something that knows of threads."""

    def renew(self) -> None:
        """Forget all threads but the calling one, which is the only one."""


_locks: WeakSet[Any] = WeakSet()
_renewed: WeakSet[Renewed] = WeakSet()


def reentrant_lock() -> Any:
    """A lock that a handler of signals may take while its thread has it, free in children."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def renew_in_children(found: Renewed) -> None:
    """Call ``renew`` in every child, as long as there is such an object."""
    _renewed.add(found)


def _renew() -> None:
    for lock in _locks:
        if not lock._is_owned():  # whoever forks while it holds a lock will release it
            lock._at_fork_reinit()
    for each in _renewed:
        each.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
