"""Arrays of other libraries in the verbs: computed where they lie, differentiated and batched.

A call on torch tensors or JAX arrays is the call on the NumPy or CuPy arrays that share their
memory. Where the library asks for more, the call is a function that it can differentiate, batch
and keep in a graph: what comes of that is again such a call, planned and cached like any other.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import add
from typing import Any

import numpy as np

from contract.api import evaluation
from contract.api.evaluation import Asked
from contract.api.request import (
    Combination,
    Options,
    Reducing,
    Written,
    common_type,
    operation_for,
    repeated,
    resolve_notation,
)
from contract.arrays.gradients import GIVEN, Derivative, gradient, tangent
from contract.arrays.libraries import ArrayLibrary, library_among, loaded_libraries
from contract.arrays.protocol import Array, Layout, is_array
from contract.descriptors.expression import Expression, mode_extents
from contract.descriptors.layout import packed_strides
from contract.descriptors.operators import BinaryOperator, Operator, conjugated, unary
from contract.errors import NotSupportedError
from contract.session.handle import handle_for
from contract.slices.fitting import Cuts

__all__ = ["evaluate", "joined", "prepare_libraries"]

Tensor = Any  # an array of a library
Shapes = tuple[tuple[int, ...], ...]


def prepare_libraries() -> None:
    """Let the libraries that are loaded know what their graphs may hold."""
    for library in loaded_libraries():
        library.prepare(Request)


def evaluate(asked: Asked, operands: Sequence[Any], out: Any = None, c: Any = None) -> Any:
    """The result of a call on arrays of any kind.

    What comes in decides what goes out. Results in ``out`` have no gradients.
    """
    given = operands if c is None else (*operands, c)
    library = library_among(given)
    if library is None:
        return evaluation.evaluate(asked, operands, out, c)
    kind = asked.handle.arrays
    tensors = [_tensor(library, x) for x in given]
    owned = all(library.owns(x) and library.device(x) == kind.device for x in tensors)
    if out is not None or not owned:
        evaluation.require_kind(kind, tensors[: len(operands)], out, *tensors[len(operands) :])
    options = asked.options
    if library.order is not None and out is None:
        options = replace(options, order=library.order)
    request = Request(library, replace(asked, options=options, head=None), len(operands))
    apply = library.watching(tensors)
    if apply is None:
        return request.value(tensors, out)
    if out is not None:
        raise NotSupportedError(
            "out and gradients, transforms or graphs exclude each other: out is given."
        )
    return apply(request, tensors)


def joined(arrays: Sequence[Any]) -> list[Any]:
    """The arrays with what a library takes beside its own as arrays of that library."""
    library = library_among(arrays)
    return list(arrays) if library is None else [_tensor(library, x) for x in arrays]


def _tensor(library: ArrayLibrary, x: Any) -> Any:
    """Numbers and nested sequences become tensors, NumPy arrays where the library converts them."""
    if library.owns(x) or (is_array(x) and not (library.converts and type(x) is np.ndarray)):
        return x
    return library.converted(x)


@dataclass(frozen=True, eq=False, slots=True)
class Request:
    """A verb as a function of ``count`` operands, and of C after them where there is one.

    The methods are those of ``Transformable``. Contractions, sums and permutations that pad
    nothing have derivatives.
    """

    library: ArrayLibrary
    asked: Asked
    count: int

    @property
    def options(self) -> Options:
        """What is asked beyond the expression."""
        return self.asked.options

    # --- values -----------------------------------------------------------------------------

    def value(self, tensors: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """The result in ``out`` or a new array."""
        if out is not None:
            self.library.require_plain(out)
        result = self.native_value(tensors, out)
        return self.library.wrapped(result) if out is None else out

    def native_value(self, tensors: Sequence[Tensor], out: Tensor | None = None) -> Array:
        """The same as an array of NumPy's or CuPy's."""
        library = self.library
        resolved, lazily = zip(*map(library.resolved, tensors), strict=True)
        arrays = [library.native(x) for x in resolved]
        asked = self.asked
        return evaluation.evaluate(
            replace(
                asked,
                options=self._conjugating(lazily) if any(lazily) else self.options,
                stream=library.stream(asked.stream, asked.handle.arrays.device),
            ),
            arrays[: self.count],
            None if out is None else library.native(out),
            arrays[self.count] if len(arrays) > self.count else None,
        )

    def result_form(self, tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and type of the result; a request that breaks a rule is refused."""
        if _is_symbolic(_shapes(tensors)):
            return self._symbolic_shape(tensors), self._result_type(tensors)
        layouts = [self._packed(x) for x in tensors]
        c = layouts[self.count] if len(layouts) > self.count else None
        operation = operation_for(
            self.asked.handle.arrays,
            self.asked.written,
            layouts[: self.count],
            self.options,
            None,
            c,
        )
        return operation.output.tensor.extents, np.dtype(operation.output.tensor.dtype)

    # --- derivatives --------------------------------------------------------------------------

    def gradient(self, at: int, cotangent: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """A call of its own, in the type and shape of the tensor."""
        term, at, terms = self._term(at, tensors)
        shapes, operators = _shapes(terms), tuple(term._operators(len(terms)))
        cached = _gradient.__wrapped__ if _is_symbolic(shapes) else _gradient
        found = cached(term.asked.written, shapes, operators, at, self.library.conjugates)
        return self.library.cast(term._product(found, cotangent, terms, "C", None), terms[at])

    def tangent(self, tangents: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> Tensor:
        """The sum of a call for each tangent, in the type of the result."""
        dtype = self._result_type(tensors)
        parts = []
        for place, given in enumerate(tangents):
            if given is not None:
                term, at, terms = self._term(place, tensors)
                operators = tuple(term._operators(len(terms)))
                found = _tangent(term.asked.written, tuple(map(len, _shapes(terms))), operators, at)
                parts.append(term._product(found, given, terms, self.options.order, dtype))
        return reduce(add, parts)

    def _term(self, at: int, tensors: Sequence[Tensor]) -> "tuple[Request, int, Sequence[Tensor]]":
        """The term that the tensor ``at`` is in, its place there, and the term's tensors.

        C is a term of its own, scaled by beta.
        """
        _require_sum_of_products(self.options.form)
        if at < self.count:
            return self, at, tensors[: self.count]
        axes = tuple(range(len(tensors[at].shape)))
        operators = None if self.options.operators is None else self.options.operators[at:]
        options = replace(self.options, operators=operators)
        scalars = self.asked.scalars[1], 0, 0
        written = (axes,), axes
        addend = replace(self.asked, written=written, options=options, scalars=scalars)
        return replace(self, asked=addend), 0, tensors[at:]

    def _product(
        self,
        found: Derivative,
        given: Tensor,
        terms: Sequence[Tensor],
        order: str,
        dtype: np.dtype[Any] | None,
    ) -> Tensor:
        factors = [given if f.tensor == GIVEN else terms[f.tensor] for f in found.factors]
        modes = [f.modes for f in found.factors]
        operators: list[Operator | None] = [f.operator for f in found.factors]
        if found.ones:
            factors.append(self.library.ones(found.extents, given))
            modes.append(found.ones)
            operators.append(None)
        options = Options(
            order=order,
            compute_type=self.options.compute_type,
            operators=tuple(operators),
            optimize=self.options.optimize if isinstance(self.options.optimize, str) else "auto",
            memory_limit=self.options.memory_limit,
            dtype=dtype,
        )
        alpha, *_ = self.asked.scalars
        if found.conjugates_alpha:
            alpha = alpha.conjugate()
        written = tuple(modes), found.output
        scalars = found.scale * alpha, 0, 0
        return evaluate(Asked(self.asked.handle, written, options, scalars), factors)

    # --- batches ------------------------------------------------------------------------------

    def batched(
        self, tensors: Sequence[Tensor], axes: Sequence[int | None], size: int
    ) -> "tuple[Request, list[Tensor], int]":
        """The call for all of a batch: a new mode in the expression.

        ``axes`` are those of the batch in the tensors. Returns what to call, its tensors, and the
        axis of the batch in the result, where a result for one lies as it would alone.
        """
        tensors, axes = list(tensors), list(axes)
        if all(axis is None for axis in axes[: self.count]):  # C alone has it
            tensors[0], axes[0] = self.library.repeated(tensors[0], size), 0
        shapes = [_without(x.shape, axis) for x, axis in zip(tensors, axes, strict=True)]
        expression, slices = self._numbered(shapes[: self.count])
        mode = len(expression.labels)
        inputs = tuple(_with(*each, mode) for each in zip(expression.inputs, axes, strict=False))
        place = len(expression.output) if self.options.layout == "F" else 0
        if len(tensors) > self.count:
            tensors[-1] = self._batched_addend(tensors[-1], axes[-1], size, place)
        form = self.options.form
        if isinstance(form, Combination) and form.padding is not None:
            form = replace(form, padding=_with(form.padding, place, (0, 0)))
        options = replace(self.options, form=form, slices=slices, same=())
        written = inputs, _with(expression.output, place, mode)
        asked = replace(self.asked, written=written, options=options)
        return replace(self, asked=asked), tensors, place

    def _batched_addend(self, c: Tensor, axis: int | None, size: int, place: int) -> Tensor:
        """C with the batch at an axis."""
        if axis is None:
            c, axis = self.library.repeated(c, size), 0
        others = (at for at in range(len(c.shape)) if at != axis)
        return self.library.transposed(c, _with(tuple(others), place, axis))

    # --- graphs -------------------------------------------------------------------------------

    def stored(self, tensors: Sequence[Tensor]) -> tuple[str, Any, Any, Any]:
        """A text and the scalars, from which ``read`` makes the request again.

        A graph knows the layout of its results: orders that planning chooses are row-major.
        NotSupportedError for what only this process knows.
        """
        shared = handle_for(None, tensors)
        for name, given in (
            ("handle", None if self.asked.handle is shared else self.asked.handle),
            ("executor", self.asked.by),
            ("stream", self.asked.stream),
        ):
            if given is not None:
                raise NotSupportedError(
                    f"A transformed call, or one in a graph, has no {name} of its own."
                )
        from contract.api.request_text import text_of  # few programs keep graphs

        written, slices = self.asked.written, self.options.slices
        if not isinstance(written, str):
            expression, slices = self._numbered(_shapes(tensors)[: self.count])
            written = expression.inputs, expression.output
        order = self._settled_order(tensors)
        options = replace(self.options, order=order, slices=slices, same=())
        alpha, beta, gamma = map(_number, self.asked.scalars)
        return text_of(written, options), alpha, beta, gamma

    @classmethod
    def read(
        cls,
        library: ArrayLibrary,
        stored: tuple[str, Any, Any, Any],
        tensors: Sequence[Tensor],
        count: int,
    ) -> "Request":
        """The request for ``count`` operands that was stored."""
        from contract.api.request_text import request_of  # few programs load graphs

        text, *scalars = stored
        written, options = request_of(text)
        options = replace(options, same=repeated(tensors[:count]))
        handle = handle_for(None, tensors)
        alpha, beta, gamma = scalars
        return cls(library, Asked(handle, written, options, (alpha, beta, gamma)), count)

    def _settled_order(self, tensors: Sequence[Tensor]) -> str:
        if self.options.layout == "A":
            return "F" if all(map(self.library.is_column_major, tensors[: self.count])) else "C"
        return "F" if self.options.layout == "F" else "C"

    def _numbered(self, shapes: Sequence[tuple[int, ...]]) -> tuple[Expression, Cuts | None]:
        """The expression, and what slices there shall be, with the numbers of modes for labels."""
        expression = resolve_notation(self.asked.written, shapes)
        numbers: dict[str, Hashable] = {x: mode for mode, x in enumerate(expression.labels)}
        cuts = self.options.slices
        if cuts is not None:
            cuts = tuple((numbers.get(str(label), label), parts) for label, parts in cuts)
        return expression, cuts

    # --- tensors ------------------------------------------------------------------------------

    def _operators(self, count: int) -> list[Operator]:
        """One for each tensor."""
        given = self.options.operators or ()
        return [unary(each) for each in (*given, *[None] * (count - len(given)))][:count]

    def _conjugating(self, lazily: Sequence[bool]) -> Options:
        """The options with the conjugations that the library has put off."""
        pairs = zip(self._operators(len(lazily)), lazily, strict=True)
        operators = tuple(conjugated(each) if late else each for each, late in pairs)
        return replace(self.options, operators=operators)

    def _result_type(self, tensors: Sequence[Tensor]) -> np.dtype[Any]:
        if self.options.dtype is not None:
            return self.options.dtype
        return common_type(self.library.dtype(x) for x in tensors[: self.count])

    def _symbolic_shape(self, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        """The shape of the result where extents may be symbols."""
        shapes = _shapes(tensors)[: self.count]
        expression = resolve_notation(self.asked.written, shapes)
        extents = mode_extents(expression.inputs, shapes, expression.labels)
        shape = tuple(extents[mode] for mode in expression.output)
        padding = getattr(self.options.form, "padding", None) or [(0, 0)] * len(shape)
        return tuple(left + n + right for n, (left, right) in zip(shape, padding, strict=True))

    def _packed(self, x: Tensor) -> Layout:
        """The layout of a row-major array of such a shape and type."""
        dtype, shape = self.library.dtype(x), tuple(x.shape)
        steps = packed_strides(shape[::-1])[::-1]
        return Layout(shape, tuple(n * dtype.itemsize for n in steps), dtype, dtype.itemsize)


def _shapes(tensors: Sequence[Tensor]) -> Shapes:
    return tuple(tuple(x.shape) for x in tensors)


def _is_symbolic(shapes: Shapes) -> bool:
    """Whether extents are symbols of a graph for many shapes, which no dictionary takes."""
    return not all(type(n) is int for shape in shapes for n in shape)


def _without(shape: Sequence[int], axis: int | None) -> tuple[int, ...]:
    return tuple(n for at, n in enumerate(shape) if at != axis)


def _with(items: tuple[Any, ...], place: int | None, item: Any) -> tuple[Any, ...]:
    return items if place is None else (*items[:place], item, *items[place:])


def _number(scalar: Any) -> Any:
    """A number of Python's for NumPy's."""
    return scalar.item() if isinstance(scalar, np.generic | np.ndarray) else scalar


@lru_cache(maxsize=1024)  # a function of its arguments alone, needed in every backward pass
def _gradient(
    written: Written,
    shapes: Shapes,
    operators: tuple[Operator, ...],
    at: int,
    conjugates: bool,
) -> Derivative:
    return gradient(resolve_notation(written, shapes), shapes, operators, at, conjugates)


@lru_cache(maxsize=1024)
def _tangent(
    written: Written, ranks: tuple[int, ...], operators: tuple[Operator, ...], at: int
) -> Derivative:
    return tangent(resolve_notation(written, [(1,) * rank for rank in ranks]), operators, at)


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
        "Contractions, sums and permutations without padding have derivatives: one is required of "
        f"{asked}."
    )
