"""torch tensors: dense ones on the CPU as NumPy arrays, on a GPU as CuPy arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from contract.errors import NotSupportedError, UnsupportedTypeError
from contract.run.cupy_module import cupy_of, import_cupy

__all__ = ["TorchLibrary"]

Tensor = Any  # a torch.Tensor
TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


class TorchLibrary:
    """torch's tensors; the methods are those of ``ArrayLibrary``.

    Memory is shared in both directions. A lazily conjugated tensor is conjugated where it is
    loaded, a lazily negated one is copied.
    """

    conjugates = True
    order = None

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._types = {getattr(torch, name): np.dtype(name) for name in TYPES}
        self._numpy_types = frozenset(self._types.values())
        methods = {"forward": staticmethod(_forward), "backward": staticmethod(_backward)}
        self._function: Any = type("Contraction", (torch.autograd.Function,), methods)

    def owns(self, x: Any) -> bool:
        return isinstance(x, self._torch.Tensor)

    def kind_of(self, x: Tensor) -> str:
        return f"torch tensor on {x.device}"

    def device(self, x: Tensor) -> int | None:
        return x.device.index if x.device.type == "cuda" else None

    def numpy_type(self, dtype: Any) -> Any:
        return self._types.get(dtype, dtype)

    def dtype(self, x: Tensor) -> np.dtype[Any]:
        found = self._types.get(x.dtype)
        if found is None:
            raise UnsupportedTypeError(
                f"Data type {x.dtype} of a torch tensor is not supported; supported are "
                f"{', '.join(TYPES)}."
            )
        return found

    def native(self, x: Tensor) -> Any:
        self._require_elements(x)
        if x.requires_grad:
            if self._torch.is_grad_enabled():
                raise NotSupportedError(
                    "Here a gradient would be lost: detach the tensor, or forbid gradients."
                )
            x = x.detach()
        if x.dtype is self._torch.bfloat16:
            return _shared(x.view(self._torch.int16)).view(bfloat16)
        self.dtype(x)
        return _shared(x)

    def resolved(self, x: Tensor) -> tuple[Tensor, bool]:
        x = x.resolve_neg() if x.is_neg() else x
        return (x.conj(), True) if x.is_conj() else (x, False)

    def wrapped(self, array: Any) -> Tensor:
        array = np.asarray(array) if isinstance(array, np.generic) else array
        if array.dtype not in self._numpy_types:
            raise UnsupportedTypeError(f"torch has no data type {array.dtype.name}.")
        if array.dtype == bfloat16:
            return self._taken(array.view(np.int16)).view(self._torch.bfloat16)
        return self._taken(array)

    def stream(self, stream: Any, device: int | None) -> Any:
        if device is None:
            return stream
        chosen = self._torch.cuda.current_stream(device) if stream is None else stream
        if not hasattr(chosen, "cuda_stream"):
            return chosen  # CuPy's
        return import_cupy().cuda.ExternalStream(chosen.cuda_stream, device)

    def differentiates(self, tensors: Sequence[Any]) -> bool:
        return self._torch.is_grad_enabled() and any(
            self.owns(x) and x.requires_grad for x in tensors
        )

    def apply(self, function: Any, tensors: Sequence[Tensor]) -> Tensor:
        return self._function.apply(function, *tensors)

    def ones(self, shape: Sequence[int], like: Tensor) -> Tensor:
        one = self._torch.ones((), dtype=like.dtype, device=like.device)
        return one.expand(tuple(shape))

    def transposed(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        return x.permute(axes)

    def cast(self, x: Tensor, like: Tensor) -> Tensor:
        return (x.real if x.is_complex() and not like.is_complex() else x).to(like.dtype)

    def _require_elements(self, x: Tensor) -> None:
        if x.layout is not self._torch.strided or x.device.type not in ("cpu", "cuda"):
            raise UnsupportedTypeError(
                "A torch tensor is dense and on the CPU or a CUDA device: it has layout "
                f"{x.layout} on {x.device}."
            )
        if self._torch.autograd.forward_ad.unpack_dual(x).tangent is not None:
            raise NotSupportedError(
                "Gradients are those of backward mode: the tensor carries a forward-mode tangent."
            )
        if x.is_conj() or x.is_neg():
            raise NotSupportedError(
                "Tensors that are conjugated or negated lazily are operands of verbs, and never "
                "written: call resolve_conj() or resolve_neg()."
            )

    def _taken(self, array: Any) -> Tensor:
        torch = self._torch
        return torch.from_dlpack(array) if cupy_of(array) is not None else torch.from_numpy(array)


def _shared(x: Tensor) -> Any:
    return x.numpy() if x.device.type == "cpu" else import_cupy().from_dlpack(x)


def _forward(context: Any, function: Any, *tensors: Tensor) -> Tensor:
    context.function = function
    context.save_for_backward(*tensors)
    return function.value(tensors)


def _backward(context: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
    tensors = context.saved_tensors
    return None, *(
        context.function.gradient(at, cotangent, tensors) if needed else None
        for at, needed in enumerate(context.needs_input_grad[1:])
    )
