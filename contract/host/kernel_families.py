"""The families of host kernels: compiled with Numba where that is installed, and NumPy."""

from importlib.util import find_spec

from contract.errors import NotSupportedError
from contract.host.kernels.numpy_kernels import NumpyKernels
from contract.host.kernels.protocol import HostKernels
from contract.host.resources.workers import Workers

__all__ = ["family_name", "load_kernels"]


def family_name(family: str) -> str:
    """ "numba" or "numpy"; "auto" is numba where it is installed."""
    if family != "auto":
        return family
    return "numpy" if find_spec("numba") is None else "numba"


def load_kernels(family: str, workers: Workers, waits: bool = True) -> HostKernels:
    """The kernels of a family by name; without ``waits`` nobody waits for a compiler."""
    if family_name(family) == "numpy":
        return NumpyKernels(workers)
    if find_spec("numba") is None:
        raise NotSupportedError("The compiled host kernels need Numba: pip install numba.")
    from contract.host.compiled_kernels import CompiledKernels  # when there is something to run

    return CompiledKernels(workers, waits)
