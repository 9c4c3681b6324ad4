"""The peers on a GPU: CuPy, PyTorch and cuTENSOR, on the same CuPy arrays."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from bench.cutensor import Cutensor
from bench.device import Run
from bench.library import Library, axes_of
from bench.reference import Path


def _cupy() -> Library:
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
    """PyTorch on the arrays' memory; float32 is multiplied in float32, not in TF32."""
    torch = import_module("torch")
    torch.set_float32_matmul_precision("highest")
    if not torch.cuda.is_available():
        raise ImportError("this PyTorch finds no GPU")

    def product(text: str, operands: Sequence[Any], path: Path | None) -> Run:
        return partial(torch.einsum, text, *map(torch.from_dlpack, operands))

    def pack(x: Any) -> Any:
        backwards = list(range(x.ndim))[::-1]
        return x.permute(backwards).contiguous().permute(backwards)

    def copy(text: str, source: Any, target: Any) -> Run:
        view = torch.from_dlpack(source).permute(axes_of(text))
        return partial(torch.from_dlpack(target).copy_, view)

    return Library(product, pack, copy, version=f"{torch.__version__}, CUDA {torch.version.cuda}")


def _cutensor() -> Library:
    """cuTENSOR writes every result column-major, as it is told to."""
    cutensor = Cutensor()
    return Library(cutensor.product, lambda x: x, cutensor.copy, version=cutensor.version)


PEERS: Mapping[str, Callable[[], Library]] = {
    "cupy": _cupy,
    "torch": _torch,
    "cutensor": _cutensor,
}
