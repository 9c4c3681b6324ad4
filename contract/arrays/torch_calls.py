"""What torch makes of a call that it differentiates, transforms or traces.

Where torch only differentiates, a call is a torch.autograd.Function. Where it traces or
transforms, tensors are more than their elements, and the call is the operator
``torch.ops.contract.evaluate``: graphs hold it, and torch looks up there what it means in a batch,
without elements, or differentiated.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["TorchOperator", "differentiable"]

Tensor = Any  # a torch.Tensor
SCHEMA = (
    "evaluate(Tensor[] operands, Tensor? c, str request, Scalar alpha, Scalar beta, Scalar gamma)"
    " -> Tensor"
)


class TorchOperator:
    """``contract::evaluate``: a call as torch's dispatcher knows it.

    ``read`` makes a ``Transformable`` of its request and scalars. Torch calls one of the methods,
    by what the tensors are; ``types`` are its data types under NumPy's.
    """

    def __init__(
        self, torch: Any, read: Callable[..., Any], types: Mapping[np.dtype[Any], Any]
    ) -> None:
        self._torch, self._function_of, self._types = torch, read, types
        self._function = differentiable(torch)
        self._library = own = torch.library.Library("contract", "FRAGMENT")  # while it lives
        own.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            own.impl("evaluate", self._with_elements, key)
        own.impl("evaluate", self._with_derivatives, "Autograd", with_keyset=True)
        own.impl("evaluate", self._in_gradients, "Batched")
        torch.library.register_fake("contract::evaluate", self._without_elements, lib=own)
        torch.library.register_vmap("contract::evaluate", self._in_a_batch, lib=own)
        self.overload = torch.ops.contract.evaluate.default

    def call(self, function: Any, tensors: Sequence[Tensor]) -> Tensor:
        """The operator for a function of tensors."""
        return self.overload(*split(function, tensors), *function.stored(tensors))

    def _with_elements(self, *arguments: Any) -> Tensor:
        function, tensors = self._read(*arguments)
        return function.value(tensors)

    def _without_elements(self, *arguments: Any) -> Tensor:
        """An empty tensor like the result."""
        function, tensors = self._read(*arguments)
        shape, dtype = function.result_form(tensors)
        order = range(len(shape))[::-1] if function.options.layout == "F" else range(len(shape))
        own, device = self._types[dtype], tensors[0].device
        return self._torch.empty_permuted(shape, tuple(order), dtype=own, device=device)

    def _with_derivatives(self, keys: Any, *arguments: Any) -> Tensor:
        function, tensors = self._read(*arguments)
        below = Below(self, keys, function, arguments[2:])
        with self._torch._functorch.utils.enable_single_level_autograd_function():
            return self._function.apply(below, *tensors)

    def _in_a_batch(self, info: Any, axes: Any, *arguments: Any) -> tuple[Tensor, int]:
        """Of torch.vmap: the result, and the axis of the batch in it."""
        function, tensors = self._read(*arguments)
        given = axes[0] if arguments[1] is None else [*axes[0], axes[1]]
        whole, tensors, place = function.batched(tensors, given, info.batch_size)
        return self.call(whole, tensors), place

    def _in_gradients(self, *arguments: Any) -> Tensor:
        """In the batch in which torch's engine computes many gradients at once."""
        torch = self._torch
        function, tensors = self._read(*arguments)
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
        tensors = [torch._remove_batch_dim(x, level, 1, 0) for x in tensors]  # 1: not in the batch
        size = max(x.shape[0] for x in tensors)
        if len(tensors) > function.count:
            tensors[-1] = tensors[-1].expand(size, *tensors[-1].shape[1:])
        whole, tensors, place = function.batched(tensors, [0] * len(tensors), size)
        return torch._add_batch_dim(self.call(whole, tensors), place, level)

    def _read(self, operands: Sequence[Tensor], c: Tensor | None, *stored: Any) -> Any:
        """The function, and all its tensors."""
        tensors = [*operands] if c is None else [*operands, c]
        return self._function_of(stored, tensors, len(operands)), tensors


def split(function: Any, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Tensor | None]:
    """The operands, and C."""
    count = function.count
    return list(tensors[:count]), tensors[count] if len(tensors) > count else None


class Below:
    """A function whose value is the operator's, one level of derivatives further down."""

    def __init__(self, operator: TorchOperator, keys: Any, function: Any, stored: Any) -> None:
        self._operator, self._function, self._stored = operator, function, stored
        self._keys = keys & operator._torch._C._after_autograd_keyset
        self.gradient, self.tangent = function.gradient, function.tangent

    def value(self, tensors: Sequence[Tensor]) -> Tensor:
        """The value; levels below this one still see how it is made."""
        torch, overload = self._operator._torch, self._operator.overload
        with (
            torch.enable_grad(),
            torch.autograd.forward_ad._set_fwd_grad_enabled(True),
            torch._C._AutoDispatchBelowAutograd(),
        ):
            return overload.redispatch(self._keys, *split(self._function, tensors), *self._stored)


# --- derivatives --------------------------------------------------------------------------------


def differentiable(torch: Any) -> Any:
    """The torch.autograd.Function of the ``Transformable`` that is its first argument.

    It is made for one level of torch.func's transforms: torch itself stacks them.
    """
    forward_mode = torch.autograd.forward_ad

    def setup(context: Any, inputs: Sequence[Any], output: Tensor) -> None:
        context.function, *tensors = inputs
        context.save_for_backward(*tensors)
        context.set_materialize_grads(False)
        if forward_mode._current_level >= 0 or isinstance(context.function, Below):
            context.save_for_forward(*tensors)  # which keeps them after a backward pass

    members = {
        "forward": staticmethod(_forward),
        "setup_context": staticmethod(setup),
        "backward": staticmethod(_backward),
        "jvp": staticmethod(_jvp),
    }
    return type("Contraction", (torch.autograd.function._SingleLevelFunction,), members)


def _forward(function: Any, *tensors: Tensor) -> Tensor:
    return function.value(tensors)


def _backward(context: Any, cotangent: Tensor | None) -> tuple[Tensor | None, ...]:
    tensors = context.saved_tensors
    needed = context.needs_input_grad[1:] if cotangent is not None else [False] * len(tensors)
    return None, *(
        context.function.gradient(at, cotangent, tensors) if each else None
        for at, each in enumerate(needed)
    )


def _jvp(context: Any, _: None, *tangents: Tensor | None) -> Tensor:
    return context.function.tangent(tangents, context.saved_tensors)
