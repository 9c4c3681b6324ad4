"""How functions are compiled with Numba: what every module of compiled kernels shares."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.extending import intrinsic

__all__ = ["compiled", "emitted"]

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """``function`` compiled at its first call, kept on disk, run without the GIL."""
    try:
        return cast(Function, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # no folder to keep it in can be written: it is compiled every time
        return cast(Function, numba.njit(nogil=True)(function))


def emitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as a writer of LLVM instructions for compiled code to call."""
    return cast(Callable[..., Any], intrinsic(prefer_literal=True)(function))
