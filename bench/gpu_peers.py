"""The peers on a GPU: CuPy, PyTorch and cuTENSOR, on the same CuPy arrays."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from bench.cutensor import Cutensor
from bench.device import Run
from bench.library import Library, axes_of
from bench.reference import Path
from contract.compute import ComputeType

# Compute types that let inputs be rounded to tf32, or to less.
ROUNDING = (ComputeType.TF32, ComputeType.F16, ComputeType.BF16)


def _cupy() -> Library:
    """CuPy as it is: it has no compute types."""
    cupy = import_module("cupy")

    def product(text: str, operands: Sequence[Any], path: Path | None) -> Run:
        order = ["einsum_path", *path] if path else len(operands) > 2
        return partial(cupy.einsum, text, *operands, optimize=order)

    def pack(x: Any) -> Any:
        return x.astype(x.dtype, order="F", copy=False)

    def copy(text: str, source: Any, target: Any) -> Run:
        view = source.transpose(axes_of(text))

        def run() -> Any:
            cupy.copyto(target, view)
            return target

        return run

    return Library(product, pack, copy)


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

    def tensor(x: Any) -> Any:
        """The array's memory; bfloat16 as integers, for DLPack may not know it."""
        if x.dtype == "bfloat16":
            return torch.from_dlpack(x.view("int16")).view(torch.bfloat16)
        return torch.from_dlpack(x)

    def product(text: str, operands: Sequence[Any], path: Path | None) -> Run:
        return partial(torch.einsum, text, *map(tensor, operands))

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


PEERS: Mapping[str, Callable[[], Library]] = {
    "cupy": _cupy,
    "torch": _torch,
    "cutensor": _cutensor,
}
