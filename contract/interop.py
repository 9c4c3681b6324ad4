"""Arrays of other libraries in the verbs: computed where they lie, with gradients.

A call on torch tensors or JAX arrays is the call on the NumPy or CuPy arrays that share their
memory. Where the library asks for gradients, the call is a function that it can differentiate:
each gradient is again such a call, planned and cached like any other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from contract import evaluation
from contract.errors import NotSupportedError
from contract.evaluation import Asked
from contract.gradients import COTANGENT, Gradient, gradient
from contract.handle import Handle
from contract.layout import packed_strides
from contract.operators import BinaryOperator, Operator, conjugated, unary
from contract.request import (
    Combination,
    Options,
    Reducing,
    Written,
    operation_for,
    resolve_notation,
)
from contract.run.arrays import Array, Layout
from contract.run.call import Call
from contract.run.executor import Scalars
from contract.run.libraries import ArrayLibrary, library_among

__all__ = ["evaluate"]

Tensor = Any  # an array of a library


def evaluate(
    handle: Handle,
    written: Written,
    operands: Sequence[Any],
    options: Options,
    out: Any = None,
    c: Any = None,
    scalars: Scalars = (1, 0, 0),
    stream: Any = None,
    by: Callable[[Call], Call] | None = None,
    asked: Asked = None,
) -> Any:
    """A verb with its options checked and frozen, on arrays of any kind.

    What comes in decides what goes out. Results in ``out`` have no gradients.
    """
    is_native = bool(operands) and type(operands[0]) is np.ndarray
    library = None if is_native else library_among(operands)
    if library is None:
        return evaluation.evaluate(
            handle, written, operands, options, out, c, scalars, stream, by, asked
        )
    device = handle.arrays.device
    given = operands if c is None else (*operands, c)
    if out is not None or not all(library.owns(x) and library.device(x) == device for x in given):
        evaluation.require_kind(handle.arrays, operands, out, c)
    if library.order is not None and out is None:
        options = replace(options, order=library.order)
    stream = library.stream(stream, device)
    request = Request(library, handle, written, options, scalars, stream, by, len(operands))
    tensors = [_tensor(library, x) for x in given]
    if library.differentiates(tensors):
        if out is not None:
            raise NotSupportedError("out and gradients exclude each other: out is given.")
        return library.apply(request, tensors)
    return request.value(tensors, out)


def _tensor(library: ArrayLibrary, x: Any) -> Tensor:
    """Numbers and nested sequences beside the library's arrays become such arrays."""
    return x if library.owns(x) else library.wrapped(np.asarray(x))


@dataclass(frozen=True, eq=False, slots=True)
class Request:
    """A verb as a function of ``count`` operands, and of C after them where there is one.

    The methods are those of ``Differentiable``. Contractions, sums and permutations that pad
    nothing have gradients.
    """

    library: ArrayLibrary
    handle: Handle
    written: Written
    options: Options
    scalars: Scalars
    stream: Any
    by: Callable[[Call], Call] | None
    count: int

    def value(self, tensors: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """The result in ``out`` or a new array."""
        result = self.native_value(tensors, out)
        return self.library.wrapped(result) if out is None else out

    def native_value(self, tensors: Sequence[Tensor], out: Tensor | None = None) -> Array:
        """The same as an array of NumPy's or CuPy's."""
        library = self.library
        resolved, lazily = zip(*map(library.resolved, tensors), strict=True)
        arrays = [library.native(x) for x in resolved]
        return evaluation.evaluate(
            self.handle,
            self.written,
            arrays[: self.count],
            self._conjugating(lazily) if any(lazily) else self.options,
            None if out is None else library.native(out),
            arrays[self.count] if len(arrays) > self.count else None,
            self.scalars,
            self.stream,
            self.by,
        )

    def result_form(self, tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and type of the result, as planning has them."""
        layouts = [self._packed(x) for x in tensors]
        c = layouts[self.count] if len(layouts) > self.count else None
        operation = operation_for(
            self.handle.arrays, self.written, layouts[: self.count], self.options, None, c
        )
        return operation.output.tensor.extents, np.dtype(operation.output.tensor.dtype)

    def gradient(self, at: int, cotangent: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """A call of its own, in the type and shape of the tensor."""
        _require_sum_of_products(self.options.form)
        alpha, beta, _ = self.scalars
        operators = self._operators(len(tensors))
        written, terms, scalar = self.written, tensors[: self.count], alpha
        if at == self.count:  # C: a term of its own, scaled by beta
            axes = tuple(range(len(cotangent.shape)))
            written, terms, scalar = ((axes,), axes), tensors[at:], beta
            at, operators = 0, operators[at:]
        shapes = tuple(tuple(x.shape) for x in terms)
        found = _gradient(written, shapes, tuple(operators), at, self.library.conjugates)
        return self.library.cast(self._product(found, scalar, cotangent, terms), terms[at])

    def _product(
        self, found: Gradient, scalar: Any, cotangent: Tensor, terms: Sequence[Tensor]
    ) -> Tensor:
        factors = [cotangent if f.tensor == COTANGENT else terms[f.tensor] for f in found.factors]
        modes = [f.modes for f in found.factors]
        operators: list[Operator | None] = [f.operator for f in found.factors]
        if found.ones:
            factors.append(self.library.ones(found.extents, cotangent))
            modes.append(found.ones)
            operators.append(None)
        options = Options(
            order="C",
            compute_type=self.options.compute_type,
            operators=tuple(operators),
            optimize=self.options.optimize if isinstance(self.options.optimize, str) else "auto",
            memory_limit=self.options.memory_limit,
        )
        scale = found.scale * (np.conj(scalar) if found.conjugates_alpha else scalar)
        written = tuple(modes), found.output
        return evaluate(self.handle, written, factors, options, scalars=(scale, 0, 0))

    def _operators(self, count: int) -> list[Operator]:
        """One for each tensor."""
        given = self.options.operators or ()
        return [unary(each) for each in (*given, *[None] * (count - len(given)))]

    def _conjugating(self, lazily: Sequence[bool]) -> Options:
        """The options with the conjugations that the library has put off."""
        pairs = zip(self._operators(len(lazily)), lazily, strict=True)
        operators = tuple(conjugated(each) if late else each for each, late in pairs)
        return replace(self.options, operators=operators)

    def _packed(self, x: Tensor) -> Layout:
        """The layout of a row-major array of such a shape and type."""
        dtype, shape = self.library.dtype(x), tuple(x.shape)
        steps = packed_strides(shape[::-1])[::-1]
        return Layout(shape, tuple(n * dtype.itemsize for n in steps), dtype, dtype.itemsize)


@lru_cache(maxsize=1024)  # a function of its arguments alone, needed in every backward pass
def _gradient(
    written: Written,
    shapes: tuple[tuple[int, ...], ...],
    operators: tuple[Operator, ...],
    at: int,
    conjugates: bool,
) -> Gradient:
    return gradient(resolve_notation(written, shapes), shapes, operators, at, conjugates)


def _require_sum_of_products(form: Reducing | Combination | None) -> None:
    """NotSupportedError, naming what is asked instead."""
    match form:
        case None | Reducing(BinaryOperator.ADD) | Combination((), None):
            return
        case Reducing(operator):
            asked = f"a reduction by {operator.name}"
        case Combination((), _):
            asked = "a padded permutation"
        case _:
            asked = "an elementwise operation"
    raise NotSupportedError(
        "Contractions, sums and permutations without padding have gradients: one is required of "
        f"{asked}."
    )
