"""The families of host kernels: compiled with Numba where that is installed, and NumPy."""

from importlib.util import find_spec

from contract.errors import NotSupportedError
from contract.run.host_kernels import HostKernels
from contract.run.numpy_kernels import NumpyKernels
from contract.run.workers import Workers

__all__ = ["load_kernels"]


def load_kernels(family: str, workers: Workers) -> HostKernels:
    """The kernels called "numba" or "numpy"; "auto" is numba where it is installed."""
    if family == "numpy" or (family == "auto" and find_spec("numba") is None):
        return NumpyKernels(workers)
    if find_spec("numba") is None:
        raise NotSupportedError(
            "The compiled host kernels need Numba: pip install 'contract[host]'."
        )
    from contract.run.numba_kernels import NumbaKernels

    return NumbaKernels(workers)
