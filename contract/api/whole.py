"""Verbs in the graphs of torch.compile: each whole, as one function.

torch.compile reads the Python code of what it compiles, and calls what it finds there symbolically;
caches and locks it cannot read. It puts functions into its graph unread that
``torch.compiler.allow_in_graph`` has named. That needs torch, which is the caller's to import, and
may come later than this library; so verbs carry what torch.compile shall read in their place: name
the function, then call it.
"""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["allowed", "read_as", "while_compiling", "whole"]

Verb = TypeVar("Verb", bound=Callable[..., Any])


def whole(verb: Verb) -> Verb:
    """``verb``, which torch.compile does not read."""

    def unread(*arguments: Any, **options: Any) -> Any:
        return verb(*arguments, **options)

    @while_compiling
    def allow() -> None:
        allowed(unread)

    def instead(*arguments: Any, **options: Any) -> Any:
        allow()
        return unread(*arguments, **options)

    return read_as(verb, instead)


def read_as(verb: Verb, instead: Callable[..., Any]) -> Verb:
    """``verb``, in whose place torch.compile reads ``instead``."""
    verb._torchdynamo_inline = instead  # type: ignore[attr-defined]
    return verb


def while_compiling(function: Callable[..., None]) -> Callable[..., None]:
    """A function that torch.compile calls as it meets it, as one whose result is constant."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def allowed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that torch.compile, at work, puts into graphs unread."""
    sys.modules["torch"].compiler.allow_in_graph(function)
    return function
