"""torch tensors: dense ones on the CPU as NumPy arrays, on a GPU as CuPy arrays."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from contract.arrays.cupy_module import cupy_of, import_cupy
from contract.arrays.torch_calls import TorchOperator, differentiable
from contract.errors import NotSupportedError, UnsupportedTypeError

__all__ = ["TorchLibrary"]

Tensor = Any  # a torch.Tensor
TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
# Tensors and threads with one of these are more than elements and gradients: torch traces or
# transforms.
SPECIAL_KEYS = (
    *("Python", "PreDispatch", "Tracer", "Functionalize", "ZeroTensor", "Batched"),
    *("FuncTorchBatched", "FuncTorchGradWrapper", "FuncTorchDynamicLayerFrontMode"),
)


class TorchLibrary:
    """torch's tensors; the methods are those of ``ArrayLibrary``.

    Memory is shared in both directions. A lazily conjugated tensor is conjugated where it is
    loaded, a lazily negated one is copied.
    """

    conjugates = True
    converts = False
    order = None

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._types = {getattr(torch, name): np.dtype(name) for name in TYPES}
        self._torch_types = {numpy: own for own, numpy in self._types.items()}
        self._forward_mode = torch.autograd.forward_ad
        self._keys = torch._C._dispatch_keys
        self._keys_of_thread = torch._C._dispatch_tls_local_include_set
        self._special = _key_set(torch, SPECIAL_KEYS).raw_repr()
        self._function = differentiable(torch)
        self._operator: TorchOperator | None = None

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
        on = x.device.type
        if x.layout is not self._torch.strided or on not in ("cpu", "cuda"):
            raise UnsupportedTypeError(
                "A torch tensor is dense and on the CPU or a CUDA device: it has layout "
                f"{x.layout} on {x.device}."
            )
        x = x.detach() if x.requires_grad else x
        if x.dtype is self._torch.bfloat16:
            return _shared(x.view(self._torch.int16), on).view(bfloat16)
        self.dtype(x)
        return _shared(x, on)

    def require_plain(self, x: Tensor) -> None:
        if self._is_special((x,)):
            raise NotSupportedError(
                "Where torch transforms or traces, a tensor has no elements: call this outside."
            )
        if self._differentiates((x,)):
            raise NotSupportedError(
                "Here a gradient would be lost: detach the tensor, or forbid gradients."
            )
        if x.is_conj() or x.is_neg():
            raise NotSupportedError(
                "Tensors that are conjugated or negated lazily are operands of verbs, and never "
                "written: call resolve_conj() or resolve_neg()."
            )

    def resolved(self, x: Tensor) -> tuple[Tensor, bool]:
        x = x.resolve_neg() if x.is_neg() else x
        return (x.conj(), True) if x.is_conj() else (x, False)

    def wrapped(self, array: Any) -> Tensor:
        array = np.asarray(array) if isinstance(array, np.generic) else array
        if array.dtype not in self._torch_types:
            raise UnsupportedTypeError(f"torch has no data type {array.dtype.name}.")
        if array.dtype == bfloat16:
            return self._taken(array.view(np.int16)).view(self._torch.bfloat16)
        return self._taken(array)

    def converted(self, x: Any) -> Tensor:
        return self.wrapped(np.asarray(x))

    def stream(self, stream: Any, device: int | None) -> Any:
        if device is None:
            return stream
        chosen = self._torch.cuda.current_stream(device) if stream is None else stream
        if not hasattr(chosen, "cuda_stream"):
            return chosen  # CuPy's
        return import_cupy().cuda.ExternalStream(chosen.cuda_stream, device)

    def watching(self, tensors: Sequence[Tensor]) -> Callable[..., Tensor] | None:
        if self._is_special(tensors):
            return self._operate
        return self._apply if self._differentiates(tensors) else None

    def prepare(self, kind: Any) -> None:
        self._operator_for(kind)

    def ones(self, shape: Sequence[int], like: Tensor) -> Tensor:
        one = self._torch.ones((), dtype=like.dtype, device=like.device)
        return one.expand(tuple(shape))

    def transposed(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        return x.permute(axes)

    def cast(self, x: Tensor, like: Tensor) -> Tensor:
        return (x.real if x.is_complex() and not like.is_complex() else x).to(like.dtype)

    def repeated(self, x: Tensor, size: int) -> Tensor:
        return x.expand(size, *x.shape)

    def is_column_major(self, x: Tensor) -> bool:
        return bool(x.permute(*range(x.ndim)[::-1]).is_contiguous())

    def _operate(self, function: Any, tensors: Sequence[Tensor]) -> Tensor:
        return self._operator_for(type(function)).call(function, tensors)

    def _operator_for(self, kind: Any) -> TorchOperator:
        """The operator for functions of a class; torch has one."""
        if self._operator is None:
            self._operator = TorchOperator(self._torch, partial(kind.read, self), self._torch_types)
        return self._operator

    def _apply(self, function: Any, tensors: Sequence[Tensor]) -> Tensor:
        return self._function.apply(function, *tensors)

    def _differentiates(self, tensors: Sequence[Tensor]) -> bool:
        """Whether torch needs a derivative, of its backward or its forward mode."""
        if self._forward_mode._current_level >= 0:
            return True
        return self._torch.is_grad_enabled() and any([x.requires_grad for x in tensors])

    def _is_special(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a tensor, or what the thread is in, is more than elements and gradients."""
        keys = self._keys_of_thread()
        for x in tensors:
            keys = keys | self._keys(x)
        return bool(keys.raw_repr() & self._special)

    def _taken(self, array: Any) -> Tensor:
        torch = self._torch
        return torch.from_dlpack(array) if cupy_of(array) is not None else torch.from_numpy(array)


def _shared(x: Tensor, on: str) -> Any:
    return x.numpy() if on == "cpu" else import_cupy().from_dlpack(x)


def _key_set(torch: Any, names: Sequence[str]) -> Any:
    """The dispatch keys of these names, as one set."""
    found = torch._C.DispatchKeySet.from_raw_repr(0)
    for name in names:
        found = found.add(torch._C._parse_dispatch_key(name))
    return found
