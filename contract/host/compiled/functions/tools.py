"""How functions are compiled with Numba: what every module of compiled kernels shares."""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import numba
from numba.core import types
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.sigutils import normalize_signature

from contract.host.compiled.functions.code_folder import chosen_folder, kept_code, remove_folder
from contract.support.forks import hold_during_forks

__all__ = [
    "Code",
    "FromPython",
    "NotKeptError",
    "by_c",
    "by_integers",
    "called",
    "chosen_folder",
    "compiled",
    "from_python",
    "kept",
    "made",
    "remove_folder",
]

hold_during_forks(global_compiler_lock)

Function = TypeVar("Function", bound=Callable[..., Any])


_OPTIONS: dict[str, Any] = {"error_model": "numpy"}  # nobody would hear of an exception


class ByC(NamedTuple):
    """A function that compiled code calls by its address, as C would."""

    function: Callable[..., None]
    signature: Any


class FromPython(NamedTuple):
    """Functions that Python calls, each with the types of its arguments."""

    functions: tuple[tuple[Any, tuple[Any, ...]], ...]


Code = ByC | FromPython
_kept_alive: list[Any] = []  # functions that are called by address


class NotKeptError(Exception):
    """Nothing on disk has what was asked for."""


def compiled(function: Function) -> Function:
    """``function`` as compiled code calls it, compiled again in every process that compiles."""
    alone: dict[str, Any] = {
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }  # a fifth of the time
    return cast(Function, numba.njit(**_OPTIONS, **alone)(function))


def called(function: Function) -> Function:
    """``function`` as Python calls it, without the GIL; it is kept on disk."""
    dispatcher = numba.njit(**_OPTIONS, nogil=True)(function)
    dispatcher._cache = kept_code(function)
    return cast(Function, dispatcher)


def by_integers(function: Callable[..., None], arguments: int) -> Code:
    """A function of so many integers, by its address."""
    return by_c(function, types.void(*[types.intp] * arguments))


def by_c(function: Callable[..., None], signature: Any) -> Code:
    """A function as C calls it, by its address."""
    return ByC(getattr(function, "py_func", function), signature)


def from_python(function: Callable[..., Any], *kinds: Any) -> Code:
    """A function that is ``called``, for such arguments."""
    return FromPython(((function, kinds),))


def kept(code: Code) -> Any:
    """An address, or functions, as they lie on disk; NotKeptError if they do not."""
    match code:
        case ByC():
            return _address(_KeptFunction, code)
        case FromPython():
            for function, kinds in code.functions:
                if kinds not in function.overloads and not _is_kept(function, kinds):
                    raise NotKeptError
            return made(code)


def made(code: Code) -> Any:
    """The same, compiled now if it has to be, and kept on disk from then on."""
    match code:
        case ByC():
            return _address(CFunc, code)
        case FromPython():
            for function, kinds in code.functions:
                function.compile(kinds)
            return code.functions[0][0]


class _KeptFunction(CFunc):
    """A function that is read from disk and never compiled."""

    def _compile_uncached(self) -> NoReturn:
        raise NotKeptError


def _address(kind: Callable[..., Any], code: ByC) -> int:
    signature = normalize_signature(code.signature)  # type: ignore[no-untyped-call]
    function = kind(code.function, signature, locals={}, options=_OPTIONS)
    function._cache = kept_code(code.function)
    function.compile()
    _kept_alive.append(function)
    return cast(int, function.address)


def _is_kept(function: Any, kinds: tuple[Any, ...]) -> bool:
    return function._cache.load_overload(kinds, function.targetctx) is not None
