"""JAX arrays on the CPU as NumPy arrays that cannot be written; traced ones through a callback."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from contract.errors import NotSupportedError, UnsupportedTypeError

__all__ = ["JaxLibrary"]

Tensor = Any  # a jax.Array or a tracer of one


class JaxLibrary:
    """JAX's arrays on the CPU; the methods are those of ``ArrayLibrary``.

    Operands are read where they lie. JAX takes a result over where it lies on a line of 64 bytes,
    and copies it elsewhere. Its arrays have no visible strides, so results are row-major.
    """

    conjugates = False
    order = "C"

    def __init__(self, jax: Any) -> None:
        self._jax = jax
        self._function = jax.custom_vjp(self._value, nondiff_argnums=(0,))
        self._function.defvjp(self._forward, self._backward, symbolic_zeros=True)

    def owns(self, x: Any) -> bool:
        return isinstance(x, self._jax.Array)

    def kind_of(self, x: Tensor) -> str:
        return "traced JAX array" if self._is_traced(x) else "JAX array"

    def device(self, x: Tensor) -> int | None:
        return None

    def numpy_type(self, dtype: Any) -> Any:
        return np.dtype(dtype)

    def dtype(self, x: Tensor) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(x.dtype)
        return dtype

    def native(self, x: Tensor) -> Any:
        platforms = {each.platform for each in x.devices()}
        if platforms != {"cpu"}:
            raise UnsupportedTypeError(
                f"A JAX array is on the CPU: it is on {', '.join(sorted(platforms))}."
            )
        return np.asarray(x)

    def require_plain(self, x: Tensor) -> None:
        if self._is_traced(x):
            raise NotSupportedError(
                "A traced JAX array has no elements yet: call this outside of jax.jit and jax.grad."
            )

    def resolved(self, x: Tensor) -> tuple[Tensor, bool]:
        return x, False

    def wrapped(self, array: Any) -> Tensor:
        array = np.asarray(array)
        if array.dtype.isbuiltin != 1:
            return self._jax.numpy.asarray(array)  # DLPack has no name for ml_dtypes' types
        return self._jax.dlpack.from_dlpack(array)

    def stream(self, stream: Any, device: int | None) -> Any:
        return stream

    def watches(self, tensors: Sequence[Tensor]) -> bool:
        return any(self._is_traced(x) for x in tensors)

    def apply(self, function: Any, tensors: Sequence[Tensor]) -> Tensor:
        return self._function(function, *tensors)

    def ones(self, shape: Sequence[int], like: Tensor) -> Tensor:
        return self._jax.numpy.ones(shape, like.dtype)

    def transposed(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        return x.transpose(axes)

    def prepare(self, kind: Any) -> None:
        """Nothing is stored with a graph."""

    def repeated(self, x: Tensor, size: int) -> Tensor:
        return self._jax.numpy.broadcast_to(x, (size, *x.shape))

    def is_column_major(self, x: Tensor) -> bool:
        return len(x.shape) < 2

    def cast(self, x: Tensor, like: Tensor) -> Tensor:
        real = self._jax.numpy.iscomplexobj(x) and not self._jax.numpy.iscomplexobj(like)
        return (x.real if real else x).astype(like.dtype)

    def _is_traced(self, x: Any) -> bool:
        return isinstance(x, self._jax.core.Tracer)

    def _value(self, function: Any, *tensors: Tensor) -> Tensor:
        if not self.watches(tensors):
            return function.value(tensors)
        form = self._jax.ShapeDtypeStruct(*function.result_form(tensors))
        callback = partial(_computed, function)
        return self._jax.pure_callback(callback, form, *tensors, vmap_method="sequential")

    def _forward(self, function: Any, *primals: Any) -> tuple[Tensor, Any]:
        """The value; the tensors, and () for each that needs a gradient, None for the others.

        Tensors that are traced still are those of a second derivative.
        """
        tensors = tuple(each.value for each in primals)
        needed = tuple(() if each.perturbed else None for each in primals)
        value = self._function if self.watches(tensors) else self._value
        return value(function, *tensors), (tensors, needed)

    def _backward(self, function: Any, kept: Any, cotangent: Any) -> tuple[Tensor | None, ...]:
        tensors, needed = kept
        if isinstance(cotangent, self._jax.custom_derivatives.SymbolicZero):
            return (None,) * len(tensors)
        return tuple(
            None if each is None else function.gradient(at, cotangent, tensors)
            for at, each in enumerate(needed)
        )


def _computed(function: Any, *tensors: Tensor) -> Any:
    """The value in NumPy: a callback may wait for JAX for ever if it calls JAX."""
    return function.native_value(tensors)
