"""The contestants: ours and the peers, each a function of an expression, arrays and a path.

Peers other than NumPy and opt_einsum are imported only when they are named.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal

import numpy as np
import opt_einsum

import contract
from bench.reference import Array, Path

Mode = Literal["fixed", "free"]
Contestant = Callable[[str, Sequence[Array], Path | None], Any]
Copier = Callable[[Array, Array], Any]

OURS = "contract"
DEFAULT = ("numpy", "opt_einsum")


def contestants(names: Sequence[str], mode: Mode) -> dict[str, Contestant]:
    """Ours first, then the peers; in mode "fixed" every result is packed column-major."""
    chosen: dict[str, Contestant] = {OURS: _ours("F" if mode == "fixed" else "K")}
    for name in names:
        peer = peer_named(name)
        chosen[name] = _column_major(peer) if mode == "fixed" else peer
    return chosen


def peer_named(name: str) -> Contestant:
    """The peer, imported now; SystemExit says which are known, or what is missing."""
    if name not in PEERS:
        raise SystemExit(f"Unknown peer {name!r}: known are {', '.join(PEERS)}.")
    try:
        return PEERS[name]()
    except ImportError as error:
        raise SystemExit(f"Peer {name!r} cannot be imported: {error}.") from error


def copiers(names: Sequence[str]) -> dict[str, Copier]:
    """(transposed view, target) -> the target with the view's elements, by each peer's copy."""
    makers: Mapping[str, Callable[[], Copier]] = {"numpy": _numpy_copy, "torch": _torch_copy}
    for name in names:
        peer_named(name)
    return {name: makers[name]() for name in names if name in makers}


def _column_major(peer: Contestant) -> Contestant:
    return lambda text, operands, path: np.asarray(peer(text, operands, path), order="F")


def _ours(order: str) -> Contestant:
    def run(text: str, operands: Sequence[Array], path: Path | None) -> Any:
        return contract.contract(text, *operands, order=order)

    return run


def _numpy() -> Contestant:
    def run(text: str, operands: Sequence[Array], path: Path | None) -> Any:
        return np.einsum(text, *operands, optimize=["einsum_path", *path] if path else True)

    return run


def _opt_einsum() -> Contestant:
    def run(text: str, operands: Sequence[Array], path: Path | None) -> Any:
        return opt_einsum.contract(text, *operands, optimize=path or "auto")

    return run


def _torch() -> Contestant:
    torch = import_module("torch")

    def run(text: str, operands: Sequence[Array], path: Path | None) -> Any:
        return torch.einsum(text, *map(torch.from_numpy, operands)).numpy()

    return run


def _jax() -> Contestant:
    jax = import_module("jax")
    jax.config.update("jax_enable_x64", True)

    def run(text: str, operands: Sequence[Array], path: Path | None) -> Any:
        return np.asarray(jax.numpy.einsum(text, *operands, optimize=path or "optimal"))

    return run


def _pytblis() -> Contestant:
    pytblis = import_module("pytblis")

    def run(text: str, operands: Sequence[Array], path: Path | None) -> Any:
        return pytblis.einsum(text, *operands)

    return run


def _numpy_copy() -> Copier:
    def copy(view: Array, target: Array) -> Array:
        np.copyto(target, view)
        return target

    return copy


def _torch_copy() -> Copier:
    torch = import_module("torch")

    def copy(view: Array, target: Array) -> Array:
        torch.from_numpy(target.T).copy_(torch.from_numpy(view.T))
        return target

    return copy


PEERS: Mapping[str, Callable[[], Contestant]] = {
    "numpy": _numpy,
    "opt_einsum": _opt_einsum,
    "torch": _torch,
    "jax": _jax,
    "pytblis": _pytblis,
}
