"""The BLAS that NumPy calls: held to one thread while our own threads call it, and its kernels."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController

__all__ = ["BlasThreads", "blas_threads"]


class BlasThreads:
    """One thread per BLAS call inside ``single()``, the caller's setting outside.

    Concurrent entries are counted: the first lowers the setting, the last restores it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._libraries = ThreadpoolController().select(user_api="blas").lib_controllers
        self._saved: list[int] = []

    @contextmanager
    def single(self) -> Iterator[None]:
        """Inside, every BLAS call of this process runs on the thread that calls it."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @property
    def kernels(self) -> str:
        """The processors whose kernels it uses, as OpenBLAS and BLIS tell: "Haswell"; else ""."""
        found = (getattr(library, "architecture", None) for library in self._libraries)
        return " ".join(sorted({name for name in found if name}))

    def _enter(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._saved = [library.get_num_threads() for library in self._libraries]
                for library in self._libraries:
                    library.set_num_threads(1)

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                for library, threads in zip(self._libraries, self._saved, strict=True):
                    library.set_num_threads(threads)


@cache
def blas_threads() -> BlasThreads:
    """The one instance: the number of BLAS threads belongs to the process, not to a Handle."""
    return BlasThreads()
