"""torch tensors: dense ones on the CPU as NumPy arrays, on a GPU as CuPy arrays.

Where torch only differentiates, a call is a torch.autograd.Function. Where it traces or
transforms, tensors are more than their elements, and the call is the operator
``torch.ops.contract.evaluate``: graphs hold it, and torch looks up there what it means in a batch,
without elements, or differentiated.
"""

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
# Tensors and threads with one of these are more than elements and gradients: torch traces or
# transforms.
SPECIAL_KEYS = (
    *("Python", "PreDispatch", "Tracer", "Functionalize", "ZeroTensor", "Batched"),
    *("FuncTorchBatched", "FuncTorchGradWrapper", "FuncTorchDynamicLayerFrontMode"),
)
SCHEMA = (
    "evaluate(Tensor[] operands, Tensor? c, str request, Scalar alpha, Scalar beta, Scalar gamma)"
    " -> Tensor"
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
        self._torch_types = {numpy: own for own, numpy in self._types.items()}
        self._forward_mode = torch.autograd.forward_ad
        self._keys = torch._C._dispatch_keys
        self._keys_of_thread = torch._C._dispatch_tls_local_include_set
        self._special = _key_set(torch, SPECIAL_KEYS).raw_repr()
        self._function = _function(torch)
        self._operator: Any = None

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
        if self.watches((x,)):
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

    def stream(self, stream: Any, device: int | None) -> Any:
        if device is None:
            return stream
        chosen = self._torch.cuda.current_stream(device) if stream is None else stream
        if not hasattr(chosen, "cuda_stream"):
            return chosen  # CuPy's
        return import_cupy().cuda.ExternalStream(chosen.cuda_stream, device)

    def watches(self, tensors: Sequence[Tensor]) -> bool:
        if self._is_special(tensors) or self._forward_mode._current_level >= 0:
            return True
        return self._torch.is_grad_enabled() and any(x.requires_grad for x in tensors)

    def apply(self, function: Any, tensors: Sequence[Tensor]) -> Tensor:
        if not self._is_special(tensors):
            return self._function.apply(function, *tensors)
        self.prepare(type(function))
        return self._operator.call(function, tensors)

    def prepare(self, kind: Any) -> None:
        if self._operator is None:
            self._operator = Operator(self, kind)

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


# --- derivatives --------------------------------------------------------------------------------


def _function(torch: Any) -> Any:
    """The torch.autograd.Function of the ``Transformable`` that is its first argument.

    It is made for one level of torch.func's transforms: torch itself stacks them.
    """
    members = {
        "forward": staticmethod(_forward),
        "setup_context": staticmethod(_setup),
        "backward": staticmethod(_backward),
        "jvp": staticmethod(_jvp),
    }
    return type("Contraction", (torch.autograd.function._SingleLevelFunction,), members)


def _forward(function: Any, *tensors: Tensor) -> Tensor:
    return function.value(tensors)


def _setup(context: Any, inputs: Sequence[Any], output: Tensor) -> None:
    context.function, *tensors = inputs
    context.save_for_backward(*tensors)
    context.save_for_forward(*tensors)
    context.set_materialize_grads(False)


def _backward(context: Any, cotangent: Tensor | None) -> tuple[Tensor | None, ...]:
    tensors = context.saved_tensors
    return None, *(
        context.function.gradient(at, cotangent, tensors)
        if needed and cotangent is not None
        else None
        for at, needed in enumerate(context.needs_input_grad[1:])
    )


def _jvp(context: Any, _: None, *tangents: Tensor | None) -> Tensor:
    return context.function.tangent(tangents, context.saved_tensors)


# --- graphs and transforms ----------------------------------------------------------------------


class Operator:
    """``contract::evaluate``: a call as torch's dispatcher knows it.

    Its request is a text, which ``kind.read`` makes a ``Transformable`` of. Torch calls one of the
    methods, by what its tensors are.
    """

    def __init__(self, library: TorchLibrary, kind: Any) -> None:
        torch = library._torch
        self._library, self._kind, self._torch = library, kind, torch
        name = "contract::evaluate"
        self._definitions = own = torch.library.Library("contract", "FRAGMENT")
        own.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            own.impl("evaluate", self._computed, key)
        own.impl("evaluate", self._differentiable, "Autograd", with_keyset=True)
        own.impl("evaluate", self._batched_by_level, "Batched")
        torch.library.register_fake(name, self._described, lib=own)
        torch.library.register_vmap(name, self._batched, lib=own)
        self._overload = torch.ops.contract.evaluate.default

    def call(self, function: Any, tensors: Sequence[Tensor]) -> Tensor:
        """The operator on a function's tensors."""
        return self._overload(*self._arguments(function, tensors))

    def _arguments(self, function: Any, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        operands, c = list(tensors[: function.count]), (*tensors[function.count :], None)[0]
        return operands, c, *function.stored(tensors)

    def _read(self, operands: Sequence[Tensor], c: Tensor | None, *stored: Any) -> Any:
        """The function, and all its tensors."""
        tensors = [*operands] if c is None else [*operands, c]
        return self._kind.read(self._library, stored, tensors, len(operands)), tensors

    def _computed(self, *arguments: Any) -> Tensor:
        """Tensors with elements."""
        function, tensors = self._read(*arguments)
        return function.value(tensors)

    def _described(self, *arguments: Any) -> Tensor:
        """Tensors without elements: shape, strides and type of the result."""
        function, tensors = self._read(*arguments)
        shape, dtype = function.result_form(tensors)
        own = self._library._torch_types[dtype]
        axes = tuple(range(len(shape)))
        order = axes[::-1] if function.options.order == "F" else axes
        return self._torch.empty_permuted(shape, order, dtype=own, device=tensors[0].device)

    def _differentiable(self, keys: Any, *arguments: Any) -> Tensor:
        """Tensors of which one may need a gradient or have a tangent."""
        function, tensors = self._read(*arguments)
        below = Below(self._torch, self._overload, keys, function, arguments)
        with self._torch._functorch.utils.enable_single_level_autograd_function():
            return self._library._function.apply(below, *tensors)

    def _batched(self, info: Any, axes: Any, *arguments: Any) -> tuple[Tensor, int]:
        """Tensors in a batch of torch.vmap."""
        function, tensors = self._read(*arguments)
        given = [*axes[0], *([] if arguments[1] is None else [axes[1]])]
        all_of_them, tensors, place = function.batched(tensors, given, info.batch_size)
        return self.call(all_of_them, tensors), place

    def _batched_by_level(self, *arguments: Any) -> Tensor:
        """Tensors in the batch in which torch computes several gradients at once."""
        torch = self._torch
        function, tensors = self._read(*arguments)
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
        whole = [torch._remove_batch_dim(x, level, 1, 0) for x in tensors]
        axes = [0] * len(whole)  # an extent of 1 where the tensor is not in the batch
        size = max(x.shape[0] for x in whole)
        if len(whole) > function.count:
            whole[-1] = whole[-1].expand(size, *whole[-1].shape[1:])
        all_of_them, whole, place = function.batched(whole, axes, size)
        return torch._add_batch_dim(self.call(all_of_them, whole), place, level)


class Below:
    """A function whose value is the operator's, without what is differentiated now."""

    def __init__(
        self, torch: Any, overload: Any, keys: Any, function: Any, arguments: Sequence[Any]
    ) -> None:
        self._torch, self._overload, self._arguments = torch, overload, arguments
        self._keys = keys & torch._C._after_autograd_keyset
        self._function = function
        self.gradient, self.tangent = function.gradient, function.tangent

    def value(self, tensors: Sequence[Tensor]) -> Tensor:
        """The value; transforms further out still differentiate it."""
        torch = self._torch
        count = self._function.count
        operands, c = list(tensors[:count]), (*tensors[count:], None)[0]
        with (
            torch.enable_grad(),
            torch.autograd.forward_ad._set_fwd_grad_enabled(True),
            torch._C._AutoDispatchBelowAutograd(),
        ):
            return self._overload.redispatch(self._keys, operands, c, *self._arguments[2:])
