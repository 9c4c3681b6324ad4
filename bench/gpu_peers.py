"""The peers on a GPU: CuPy, PyTorch, cuTENSOR and cuTensorNet, on the same CuPy arrays."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from bench.cutensor import Cutensor
from bench.device import Run
from bench.gpu import tensor_of
from bench.library import Library, along, axes_of, packed
from bench.reference import Path
from contract.descriptors.compute_types import ComputeType

# Compute types that let inputs be rounded to tf32, or to less.
ROUNDING = (ComputeType.TF32, ComputeType.F16, ComputeType.BF16)


def _cupy() -> Library:
    """CuPy as it is: it has no compute types."""
    cupy = import_module("cupy")

    def product(text: str, operands: Sequence[Any], path: Path | None) -> Run:
        several = path is None and len(operands) > 2
        return along(partial(cupy.einsum, optimize=several), text, operands, path)

    def copy(text: str, source: Any, target: Any) -> Run:
        view = source.transpose(axes_of(text))

        def run() -> Any:
            cupy.copyto(target, view)
            return target

        return run

    dtypes = ("float16", "float32", "float64", "complex64", "complex128")
    return Library(product, packed, copy, dtypes=dtypes)


def _torch() -> Library:
    """PyTorch on the arrays' memory, as quick as it can be at the accuracy that is asked for."""
    torch = import_module("torch")
    if not torch.cuda.is_available():
        raise ImportError("this PyTorch finds no GPU")

    def allow(compute: ComputeType | None) -> None:
        products = torch.backends.cuda.matmul
        products.allow_tf32 = compute in ROUNDING
        products.allow_fp16_reduced_precision_reduction = compute is ComputeType.F16
        products.allow_bf16_reduced_precision_reduction = compute is ComputeType.BF16

    tensor = partial(tensor_of, torch)

    def product(text: str, operands: Sequence[Any], path: Path | None) -> Run:
        return along(torch.einsum, text, [tensor(x) for x in operands], path)

    def pack(x: Any) -> Any:
        backwards = list(range(x.ndim))[::-1]
        return x.permute(backwards).contiguous().permute(backwards)

    def copy(text: str, source: Any, target: Any) -> Run:
        return partial(tensor(target).copy_, tensor(source).permute(axes_of(text)))

    version = f"{torch.__version__}, CUDA {torch.version.cuda}"
    return Library(product, pack, copy, allow=allow, version=version)


def _cutensor() -> Library:
    """cuTENSOR writes every result column-major, as it is told to."""
    cutensor = Cutensor()
    return Library(
        cutensor.product,
        lambda x: x,
        cutensor.copy,
        allow=cutensor.allow,
        version=cutensor.version,
    )


def _cuquantum() -> Library:
    """cuTensorNet: a network planned once, its operands bound to it."""
    tensornet = import_module("cuquantum.tensornet")

    def product(text: str, operands: Sequence[Any], path: Path | None) -> Run:
        network = tensornet.Network(text, *operands)
        network.contract_path({"path": list(path)} if path else None)
        run: Run = network.contract
        return run

    dtypes = ("float32", "float64", "complex64", "complex128")
    return Library(product, packed, dtypes=dtypes)


PEERS: Mapping[str, Callable[[], Library]] = {
    "cupy": _cupy,
    "torch": _torch,
    "cutensor": _cutensor,
    "cuquantum": _cuquantum,
}
