"""A module object that stands for CuPy on the kernel emulator, so that code for CuPy runs here.

    status     errors, named and numbered as CUDA's
    live       memory of devices, and what of it may be touched
    work       queued work, done when something waits for it
    capture    work recorded for graphs
    driver     devices, streams, events and captures together
    counters   what was asked, for tests
    elements   strided elements in device memory, checked
    memory, pool, streams, arrays, creation, arguments, modules, programs, runtime, products, blas
               the parts of CuPy that code sees
    surface    the module objects

Where CuPy or CUDA refuse, this refuses; where they would silently read wrong memory, this raises
KernelFault.
"""

from .counters import Counters, Launch
from .surface import counters, installed, make_cupy

__all__ = ["Counters", "Launch", "counters", "installed", "make_cupy"]
