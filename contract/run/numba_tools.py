"""How functions are compiled with Numba: what every module of compiled kernels shares."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from contract.run.host_views import Array

__all__ = [
    "address_for",
    "address_of",
    "advance",
    "compiled",
    "emitted",
    "prefetch",
    "specialisations",
]

Function = TypeVar("Function", bound=Callable[..., Any])


_dispatchers: list[Any] = []  # of every function that ``compiled`` has made
_addressed: list[Any] = []  # functions that are called by address, which have to stay


def compiled(function: Function) -> Function:
    """``function`` compiled at its first call, kept on disk, run without the GIL."""
    try:
        dispatcher = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder to keep it in can be written: it is compiled every time
        dispatcher = numba.njit(nogil=True)(function)
    _dispatchers.append(dispatcher)
    return cast(Function, dispatcher)


def address_of(function: Callable[..., None], arguments: int) -> int:
    """Where ``function`` of so many integers lies, compiled now and kept on disk."""
    return address_for(function, types.void(*[types.intp] * arguments))


def address_for(function: Callable[..., None], signature: Any) -> int:
    """Where ``function`` lies, compiled now for these types as C calls it, and kept on disk."""
    try:
        made = numba.cfunc(signature, cache=True)(function)
    except RuntimeError:
        made = numba.cfunc(signature)(function)
    _addressed.append(made)
    return cast(int, made.address)


def specialisations() -> int:
    """For how many argument types functions have been compiled, or read from disk, so far."""
    return sum(len(dispatcher.overloads) for dispatcher in _dispatchers) + len(_addressed)


def emitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as a writer of LLVM instructions for compiled code to call."""
    return cast(Callable[..., Any], intrinsic(prefer_literal=True)(function))


def prefetch(builder: Any, address: Any, writes: int, keep: int) -> None:
    """Ask for the line at an address, for the first cache (``keep`` is 3) or the second (2)."""
    byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    data = 1
    hints = (ir.Constant(flag, hint) for hint in (writes, keep, data))
    builder.call(fetch, [builder.inttoptr(address, byte), *hints])


@compiled
def advance(loops: Array, begin: int, end: int, index: Array, s: int, t: int) -> tuple[int, int]:
    """The offsets of the next visit of loops begin..end; after the last one the first ones."""
    for at in range(begin, end):
        index[at] += 1
        left = loops[at, 0] - index[at]
        if left > 0:
            last = 1 if left == 1 else 0
            s += loops[at, 1] - last * loops[at, 3]
            t += loops[at, 2] - last * loops[at, 4]
            break
        index[at] = 0
        s -= (loops[at, 0] - 1) * loops[at, 1] - loops[at, 3]
        t -= (loops[at, 0] - 1) * loops[at, 2] - loops[at, 4]
    return s, t
