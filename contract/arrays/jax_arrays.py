"""JAX arrays on the CPU as NumPy arrays that cannot be written; traced ones by a primitive."""

from collections.abc import Callable, Sequence
from importlib import import_module
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
    converts = True
    order = "C"

    def __init__(self, jax: Any) -> None:
        self._jax = jax
        self._primitive = _primitive(jax)

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

    def converted(self, x: Any) -> Tensor:
        return self._jax.numpy.asarray(x)

    def stream(self, stream: Any, device: int | None) -> Any:
        return stream

    def watching(self, tensors: Sequence[Tensor]) -> Callable[..., Tensor] | None:
        return self._bind if any(self._is_traced(x) for x in tensors) else None

    def prepare(self, kind: Any) -> None:
        """Graphs of JAX are not stored."""

    def ones(self, shape: Sequence[int], like: Tensor) -> Tensor:
        return self._jax.numpy.ones(shape, like.dtype)

    def transposed(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        return x.transpose(axes)

    def repeated(self, x: Tensor, size: int) -> Tensor:
        return self._jax.numpy.broadcast_to(x, (size, *x.shape))

    def is_column_major(self, x: Tensor) -> bool:
        return len(x.shape) < 2

    def cast(self, x: Tensor, like: Tensor) -> Tensor:
        real = self._jax.numpy.iscomplexobj(x) and not self._jax.numpy.iscomplexobj(like)
        return (x.real if real else x).astype(like.dtype)

    def _bind(self, function: Any, tensors: Sequence[Tensor]) -> Tensor:
        return self._primitive.bind(*tensors, function=function)

    def _is_traced(self, x: Any) -> bool:
        return isinstance(x, self._jax.core.Tracer)


def _primitive(jax: Any) -> Any:
    """The primitive whose parameter ``function`` is a ``Transformable`` of its operands.

    Its derivatives are sums of such primitives, each linear in one tangent; gradients are their
    transposes. Compiled, it calls back.
    """
    ad, batching, mlir = (jax.interpreters.__dict__[name] for name in ("ad", "batching", "mlir"))
    primitive = import_module(f"{jax.__name__}.extend.core").Primitive("contract")

    def described(*avals: Any, function: Any) -> Any:
        return jax.core.ShapedArray(*function.result_form(avals))

    def called_back(*tensors: Tensor, function: Any) -> Tensor:
        form = jax.ShapeDtypeStruct(*function.result_form(tensors))

        def computed(*arrays: Tensor) -> Any:
            """In NumPy: a callback may wait for JAX for ever if it calls JAX."""
            return function.native_value(arrays)

        return jax.pure_callback(computed, form, *tensors, vmap_method="sequential")

    def is_constant(tangent: Any) -> bool:
        """Integers have tangents of a type of their own."""
        return isinstance(tangent, ad.Zero) or tangent.dtype == jax.dtypes.float0

    def changed(
        tensors: Sequence[Tensor], tangents: Sequence[Any], function: Any
    ) -> tuple[Tensor, Any]:
        value = primitive.bind(*tensors, function=function)
        given = [None if is_constant(each) else each for each in tangents]
        if given.count(None) == len(given):
            return value, ad.Zero.from_primal_value(value)
        return value, function.tangent(given, tensors)

    def transposed(cotangent: Any, *tensors: Any, function: Any) -> list[Any]:
        """What is asked for has a form and no elements: the function is linear in it."""
        asked = [ad.is_undefined_primal(x) for x in tensors]
        known = [x.aval if each else x for x, each in zip(tensors, asked, strict=True)]
        if isinstance(cotangent, ad.Zero):
            return [ad.Zero(x) if each else None for x, each in zip(known, asked, strict=True)]
        return [
            function.gradient(at, cotangent, known) if each else None
            for at, each in enumerate(asked)
        ]

    def batched(
        tensors: Sequence[Tensor], axes: Sequence[int | None], function: Any
    ) -> tuple[Tensor, int]:
        pairs = zip(tensors, axes, strict=True)
        size = next(x.shape[axis] for x, axis in pairs if axis is not None)
        whole, tensors, place = function.batched(tensors, axes, size)
        return primitive.bind(*tensors, function=whole), place

    primitive.def_impl(lambda *tensors, function: function.value(tensors))
    primitive.def_abstract_eval(described)
    mlir.register_lowering(primitive, mlir.lower_fun(called_back, multiple_results=False))
    ad.primitive_jvps[primitive] = changed
    ad.primitive_transposes[primitive] = transposed
    batching.primitive_batchers[primitive] = batched
    return primitive
