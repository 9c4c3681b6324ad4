"""The contestants: ours and the peers, each a function of an expression and arrays.

Peers other than NumPy and opt_einsum are imported only when they are named.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import opt_einsum

import contract

Contestant = Callable[..., Any]

DEFAULT = ("numpy", "opt_einsum")
OURS = "contract"


def contestants(names: tuple[str, ...], mode: str) -> dict[str, Contestant]:
    """Ours first, then the peers; in mode "fixed" every result is packed column-major."""
    makers = {"numpy": _numpy, "opt_einsum": _opt_einsum, "torch": _torch, "jax": _jax}
    unknown = set(names) - set(makers) - {"tblis"}
    if unknown:
        raise SystemExit(f"unknown peers {sorted(unknown)}; known are {[*makers, 'tblis']}")
    makers["tblis"] = _tblis
    chosen: dict[str, Contestant] = {OURS: _ours("F" if mode == "fixed" else "K")}
    for name in names:
        peer = makers[name]()
        chosen[name] = _column_major(peer) if mode == "fixed" else peer
    return chosen


def _column_major(peer: Contestant) -> Contestant:
    return lambda text, *operands: np.asarray(peer(text, *operands), order="F")


def _ours(order: str) -> Contestant:
    return lambda text, *operands: contract.contract(text, *operands, order=order)


def _numpy() -> Contestant:
    return lambda text, *operands: np.einsum(text, *operands, optimize=True)


def _opt_einsum() -> Contestant:
    return lambda text, *operands: opt_einsum.contract(text, *operands)


def _torch() -> Contestant:
    torch = import_module("torch")
    return lambda text, *operands: torch.einsum(text, *map(torch.from_numpy, operands)).numpy()


def _jax() -> Contestant:
    jax = import_module("jax")
    jax.config.update("jax_enable_x64", True)
    return lambda text, *operands: np.asarray(jax.numpy.einsum(text, *operands))


def _tblis() -> Contestant:
    tblis = import_module("tblis")
    return lambda text, *operands: tblis.einsum(text, *operands)
