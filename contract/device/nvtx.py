"""NVTX ranges, which NVIDIA's profilers show beside kernels: through CuPy, and only when asked."""

from typing import Any

from contract.arrays.cupy_module import import_cupy
from contract.errors import NotSupportedError

__all__ = ["NvtxRanges", "nvtx_ranges"]


class NvtxRanges:
    """``push`` opens a range on the thread, ``pop`` closes the one opened last."""

    def __init__(self, nvtx: Any) -> None:
        self._push = nvtx.RangePush
        self._pop = nvtx.RangePop

    def push(self, name: str) -> None:
        self._push(name)

    def pop(self) -> None:
        self._pop()


def nvtx_ranges() -> NvtxRanges:
    """The ranges of CuPy's NVTX; NotSupportedError where there is none."""
    nvtx = import_cupy().cuda.nvtx
    if not nvtx.available:
        raise NotSupportedError("NVTX ranges need NVTX, which this CuPy was built without.")
    return NvtxRanges(nvtx)
