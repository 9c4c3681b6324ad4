"""CuPy, imported when something on a GPU is asked for and never else."""

import sys
from typing import Any

from contract.errors import NotSupportedError

__all__ = ["cupy_of", "import_cupy"]


def import_cupy() -> Any:
    """The module cupy; NotSupportedError that says how to install it."""
    try:
        import cupy
    except ImportError as error:
        raise NotSupportedError(
            "Arrays on a GPU need CuPy: pip install cupy-cuda12x for CUDA 12, cupy-cuda13x for "
            f"CUDA 13. Importing it failed: {error}"
        ) from error
    return cupy


def cupy_of(x: Any) -> Any:
    """The module cupy where ``x`` is one of its arrays, else None; imports nothing."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, getattr(cupy, "ndarray", ())):
        return cupy
    return None
