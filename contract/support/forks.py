"""What os.fork needs: a child has none of the other threads of its parent, but all of its memory.

A lock that another thread held would be held for ever, and what it was changing stays half changed.
Locks of our own guard nothing that may not be left so, and are made free in a child. What others
guard with locks, or change beside us, is kept still while a process is forked.
"""

import logging  # noqa: F401  (what is registered last is called first: its lock is taken after ours)
import os
import threading
from typing import Any, Protocol
from weakref import WeakSet

__all__ = ["LockLike", "Renewed", "hold_during_forks", "reentrant_lock", "renew_in_children"]


class Renewed(Protocol):
    """Something that knows of threads."""

    def renew(self) -> None:
        """Forget all threads but the calling one, which is the only one."""


class LockLike(Protocol):
    """A lock, or what is used like one."""

    def acquire(self) -> Any:
        """Wait until no other thread is in the midst of something, and let none begin."""

    def release(self) -> Any:
        """Let others begin again."""


_locks: WeakSet[Any] = WeakSet()
_renewed: WeakSet[Renewed] = WeakSet()
_held: list[LockLike] = []


def reentrant_lock() -> Any:
    """A lock that a handler of signals may take while its thread has it, free in children."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def renew_in_children(found: Renewed) -> None:
    """Call ``renew`` in every child, as long as there is such an object."""
    _renewed.add(found)


def hold_during_forks(found: LockLike) -> None:
    """Acquire it before every fork, and release it afterwards in both processes."""
    _held.append(found)


def _hold() -> None:
    for each in _held:
        each.acquire()


def _release() -> None:
    for each in reversed(_held):
        each.release()


def _renew() -> None:
    _release()
    for lock in _locks:
        if not lock._is_owned():  # whoever forks while it holds a lock will release it
            lock._at_fork_reinit()
    for each in _renewed:
        each.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_renew)
