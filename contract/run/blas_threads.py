"""The BLAS that NumPy calls: held to one thread while our own threads call it, and its kernels."""

from collections.abc import Callable
from functools import cache

from threadpoolctl import ThreadpoolController

from contract.forks import reentrant_lock, renew_in_children

__all__ = ["BlasThreads", "blas_threads"]


class BlasThreads:
    """One thread per BLAS call inside ``alone``, the caller's setting outside.

    The first of concurrent callers lowers the setting, the last restores it.
    """

    def __init__(self) -> None:
        self._lock = reentrant_lock()
        self._libraries = ThreadpoolController().select(user_api="blas").lib_controllers
        self._callers: set[object] = set()
        self._saved: list[int] = []  # what is to be restored, if anything
        renew_in_children(self)

    def alone(self, work: Callable[[], None]) -> None:
        """``work()``, in which every BLAS call of this process runs on the thread that calls it."""
        caller = object()
        try:
            self._callers.add(caller)
            self._settle()
            work()
        finally:
            self._callers.discard(caller)
            self._settle()

    def renew(self) -> None:
        """Of the callers one is left at most, which is in its call for good or discards itself."""
        self._callers.clear()
        self._settle()

    @property
    def kernels(self) -> str:
        """The processors whose kernels it uses, as OpenBLAS and BLIS tell: "Haswell"; else ""."""
        found = (getattr(library, "architecture", None) for library in self._libraries)
        return " ".join(sorted({name for name in found if name}))

    def _settle(self) -> None:
        """Make the setting what it is to be. A handler may break this off: the next call mends it.

        What is saved stays so until all of it is restored.
        """
        with self._lock:
            if self._callers:
                self._saved = self._saved or [each.get_num_threads() for each in self._libraries]
                for library in self._libraries:
                    library.set_num_threads(1)
            elif self._saved:
                for library, threads in zip(self._libraries, self._saved, strict=True):
                    library.set_num_threads(threads)
                self._saved = []


@cache
def blas_threads() -> BlasThreads:
    """The one instance: the number of BLAS threads belongs to the process, not to a Handle."""
    return BlasThreads()
