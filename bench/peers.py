"""The contestants: ours and the peers, each a way to bind an expression to arrays.

Binding does what a library needs once for given arrays (converting them, say); what it returns
is measured. Libraries are imported only when they are named.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, Literal

import numpy as np
import opt_einsum

import contract
from bench import gpu_peers
from bench.device import Run
from bench.library import Library, along, axes_of, packed
from bench.measure import described
from bench.reference import Path, split
from contract.descriptors.compute_types import ComputeType
from contract.host.resources.limits import usable_cores

Mode = Literal["fixed", "free"]
Binder = Callable[[str, Sequence[Any], Path | None], Run]

OURS = "contract"
DEFAULT: Mapping[str, tuple[str, ...]] = {
    "host": ("numpy", "opt_einsum", "torch", "jax", "pytblis", "cotengra"),
    "gpu": ("cupy", "torch", "cutensor"),
}
# Of suites with fewer, or others: what is usual there.
OF_SUITE: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("host", "network"): ("numpy", "opt_einsum", "torch", "cotengra"),
    ("host", "overhead"): ("numpy", "opt_einsum", "torch", "jax"),
    ("gpu", "network"): ("cupy", "opt_einsum", "torch", "cotengra", "cutensor", "cuquantum"),
}


@dataclass(frozen=True, slots=True)
class Peers:
    """The libraries that were found by name, and why others are missing."""

    found: Mapping[str, Library]
    missing: Mapping[str, str]

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions that only the libraries themselves know."""
        return {name: each.version for name, each in self.found.items() if each.version}


def default_peers(device: str, suite: str) -> tuple[str, ...]:
    """The peers of a suite where none is named."""
    return OF_SUITE.get((device, suite), DEFAULT[device])


def find_peers(
    names: Sequence[str], device: str, compute: ComputeType | None = None, dtype: str = "float64"
) -> Peers:
    """The peers with these names, imported now and told the compute type.

    One that cannot be had for whatever reason is missing: it ends nothing. SystemExit for a name
    that is not known.
    """
    known = PEERS[device]
    found, missing = {}, {}
    for name in names:
        if name not in known:
            raise SystemExit(f"Unknown peer {name!r}: known are {', '.join(known)}.")
        try:
            library = known[name]()
            if library.dtypes and dtype not in library.dtypes:
                raise ImportError(f"it has no {dtype}")
            if library.allow:
                library.allow(compute)
            found[name] = replace(library, product=deferred(library.product))
        except ImportError as error:
            missing[name] = str(error).partition("\n")[0]
        except Exception as error:
            missing[name] = described(error)
    return Peers(found, missing)


def deferred(bind: Binder) -> Binder:
    """The same; a call that it refuses to bind is bound to the error, which counts as its own."""

    def bound(text: str, operands: Sequence[Any], path: Path | None) -> Run:
        try:
            return bind(text, operands, path)
        except Exception as error:
            return partial(fail, error)

    return bound


def fail(error: Exception) -> None:
    raise error


def contestants(
    peers: Mapping[str, Library], mode: Mode, compute: ComputeType | None = None
) -> dict[str, Binder]:
    """Ours first, then the peers; in mode "fixed" every result is packed column-major."""
    order = "F" if mode == "fixed" else "K"
    chosen: dict[str, Binder] = {OURS: partial(_ours, order, compute)}
    for name, library in peers.items():
        chosen[name] = partial(_fixed, library) if mode == "fixed" else library.product
    return chosen


def _ours(
    order: str,
    compute: ComputeType | None,
    text: str,
    operands: Sequence[Any],
    path: Path | None,
) -> Run:
    return partial(contract.contract, text, *operands, order=order, compute_type=compute)


def _fixed(library: Library, text: str, operands: Sequence[Any], path: Path | None) -> Run:
    run, pack = library.product(text, operands, path), library.pack
    return lambda: pack(run())


def _numpy() -> Library:
    def product(text: str, operands: Sequence[Any], path: Path | None) -> Run:
        return along(partial(np.einsum, optimize=True), text, operands, path)

    def copy(text: str, source: Any, target: Any) -> Run:
        view = source.transpose(axes_of(text))

        def run() -> Any:
            np.copyto(target, view)
            return target

        return run

    def small(text: str, operands: Sequence[Any]) -> Mapping[str, Run]:
        return {
            "np optimize": partial(np.einsum, text, *operands, optimize=True),
            "np.einsum": partial(np.einsum, text, *operands),
        }

    return Library(product, packed, copy, small)


def _opt_einsum() -> Library:
    def product(text: str, operands: Sequence[Any], path: Path | None) -> Run:
        if path is None:
            return partial(opt_einsum.contract, text, *operands, optimize="auto")
        shapes = (x.shape for x in operands)
        return partial(opt_einsum.contract_expression(text, *shapes, optimize=path), *operands)

    def small(text: str, operands: Sequence[Any]) -> Mapping[str, Run]:
        planned = opt_einsum.contract_expression(text, *(x.shape for x in operands))
        return {"oe expression": partial(planned, *operands)}

    return Library(product, packed, small=small)


def _cotengra() -> Library:
    cotengra = import_module("cotengra")

    def product(text: str, operands: Sequence[Any], path: Path | None) -> Run:
        shapes = (x.shape for x in operands)
        planned = cotengra.einsum_expression(text, *shapes, optimize=path or "auto")
        return partial(planned, *operands)

    return Library(product, packed)


def _torch() -> Library:
    torch = import_module("torch")
    torch.set_num_threads(usable_cores())

    def tensor(x: Any) -> Any:
        """The array's memory; bfloat16, which PyTorch takes from no array, as integers."""
        if x.dtype == "bfloat16":
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(x)

    def array(x: Any) -> Any:
        if x.dtype == torch.bfloat16:
            return x.view(torch.int16).numpy().view("bfloat16")
        return x.numpy()

    def product(text: str, operands: Sequence[Any], path: Path | None) -> Run:
        run = along(torch.einsum, text, [tensor(x) for x in operands], path)
        return lambda: array(run())

    def pack(x: Any) -> Any:
        return array(tensor(x.T).contiguous()).T

    def copy(text: str, source: Any, target: Any) -> Run:
        view = tensor(source.transpose(axes_of(text)).T)
        result = tensor(target.T)

        def run() -> Any:
            result.copy_(view)
            return target

        return run

    return Library(product, pack, copy)


def _jax() -> Library:
    """JAX's arrays are row-major: it gets every array, and returns every result, transposed."""
    jax = import_module("jax")
    jax.config.update("jax_enable_x64", True)

    def bound(call: Callable[..., Any], operands: Sequence[Any]) -> Run:
        arrays = [jax.numpy.asarray(x.T) for x in operands]
        return lambda: np.asarray(call(*arrays).block_until_ready()).T

    def product(text: str, operands: Sequence[Any], path: Path | None) -> Run:
        order = path or "optimal"
        return bound(partial(jax.numpy.einsum, transposed(text), optimize=order), operands)

    def small(text: str, operands: Sequence[Any]) -> Mapping[str, Run]:
        compiled = jax.jit(partial(jax.numpy.einsum, transposed(text)))
        return {"jax.jit": bound(compiled, operands)}

    return Library(product, packed, small=small)


def transposed(text: str) -> str:
    """The expression of the operands and of the result with their modes in the opposite order."""
    terms, output = split(text)
    return f"{','.join(term[::-1] for term in terms)}->{output[::-1]}"


def _pytblis() -> Library:
    """TBLIS writes results column-major itself, where it writes them."""
    pytblis = import_module("pytblis")
    pytblis.set_num_threads(usable_cores())

    def product(text: str, operands: Sequence[Any], path: Path | None) -> Run:
        return along(partial(pytblis.einsum, order="F"), text, operands, path)

    dtypes = ("float32", "float64", "complex64", "complex128")
    return Library(product, packed, dtypes=dtypes)


PEERS: Mapping[str, Mapping[str, Callable[[], Library]]] = {
    "host": {
        "numpy": _numpy,
        "opt_einsum": _opt_einsum,
        "torch": _torch,
        "jax": _jax,
        "pytblis": _pytblis,
        "cotengra": _cotengra,
    },
    "gpu": {**gpu_peers.PEERS, "opt_einsum": _opt_einsum, "cotengra": _cotengra},
}
