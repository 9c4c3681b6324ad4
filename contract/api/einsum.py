"""einsum and einsum_path with NumPy's signature and behaviour.

What numpy.einsum accepts gives the same values, shape and type, what it refuses is refused with
the same exception class. Beyond it: labels without limit in number and any unicode letter. CuPy
arrays give what cupy.einsum gives.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from contract.api.evaluation import (
    Asked,
    arrays_of,
    bound_call,
    fitting,
    interleaved_arguments,
    recalled,
    remember,
    require_expression_first,
)
from contract.api.interop import evaluate
from contract.api.numpy_layout import (
    Factor,
    axes_of_loops,
    axes_of_product,
    factors_of,
    is_assigned,
)
from contract.api.request import Options, Written, call_for, common_type, repeated, resolve_notation
from contract.api.whole import whole
from contract.arrays.libraries import library_among, numpy_type
from contract.arrays.protocol import Array, Arrays, is_array, is_overridden
from contract.descriptors.expression import Expression, mode_extents
from contract.descriptors.layout import diagonal, overlaps
from contract.descriptors.operations import frozen
from contract.errors import InvalidPathError, InvalidValueError, UnsupportedTypeError
from contract.execution.bound_plan import UNSCALED, BoundCall, Call, check_output_type
from contract.execution.budget import LackingMemoryError
from contract.host.resources.numpy_products import einsum as numpy_einsum
from contract.logging import LOGGER, UNWATCHED
from contract.planner.paths import PATH_NAMES, Path, contraction_path, explicit_path, is_path_name
from contract.session.handle import Handle, handle_for
from contract.support.text import shown

__all__ = ["einsum", "einsum_path"]

NUMPY_LABELS = 52
_CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")


@whole
def einsum(
    *operands: Any,
    out: Any = None,
    optimize: Any = False,
    dtype: Any = None,
    order: str | None = "K",
    casting: Any = None,
    stream: Any = None,
) -> Any:
    """The sum over every label that the output has not, of the product of the operands.

    ``einsum("ij,jk->ik", a, b)``, with implicit outputs, ellipses and the interleaved form, as
    numpy.einsum: a new array (a scalar for rank 0, a writeable view where one operand is only
    transposed or its diagonal taken), or ``out``. Products of more than two operands are always
    ordered; ``optimize`` chooses how, as NumPy or opt_einsum take it. Types, the layout of a
    result and what ``out`` takes follow NumPy's rules, which differ with ``optimize``: ``casting``
    is "safe" if not given, "same_kind" for products of two operands with it. For CuPy arrays it
    is "unsafe", as CuPy has it, their results of rank 0 are arrays, and what is no array beside
    them is copied to their device. ``stream`` is ``contract``'s.

    What NumPy would hand on to the operands' class (dask, sparse), goes there.

    Raises ValueError for notation and shapes, TypeError for types and casts, as NumPy does.
    Source: numpy.einsum, cupy.einsum.
    """
    is_text = bool(operands) and isinstance(operands[0], str)
    given = operands[1:] if is_text else operands
    handle = handle_for(None, given)
    if is_text and stream is None and not LOGGER.active:
        if len(given) == 1 and optimize is False and order == "K":
            if dtype is casting is out is None and _is_view(*operands):
                return numpy_einsum(*operands)
        head = "einsum", optimize, dtype, order, casting
        found = recalled(handle, head, operands[0], given, out)
        if found is not None:
            return found if found.ndim or out is not None else found[()]
    with (
        LOGGER.call(
            "einsum",
            {
                "operands": operands,
                "out": out,
                "optimize": optimize,
                "dtype": dtype,
                "order": order,
                "casting": casting,
                "stream": stream,
            },
        )
        if LOGGER.active
        else UNWATCHED
    ):
        if any(map(is_overridden, (*operands, out))):
            return _einsum_elsewhere(operands, out, optimize, dtype, order, casting, stream)
        if library_among(operands) is not None:
            options = optimize, dtype, order, casting
            return _einsum_of_library(handle, operands, out, *options, stream)
        with handle.arrays.on(stream):
            return _einsum(handle, operands, out, optimize, dtype, order, casting)


def _einsum_elsewhere(operands: Sequence[Any], *asked: Any) -> Any:
    """What NumPy makes of operands of a class with functions of its own."""
    names = "out", "optimize", "dtype", "order", "casting", "stream"
    usual = None, False, None, "K", None, None
    given = {
        name: x for name, x, default in zip(names, asked, usual, strict=True) if x is not default
    }
    return numpy_einsum(*operands, **given)


def _einsum_of_library(
    handle: Handle,
    operands: Sequence[Any],
    out: Any,
    optimize: Any,
    dtype: Any,
    order: Any,
    casting: Any,
    stream: Any,
) -> Any:
    """A new array of the library, whatever is asked: rank 0 and transposes included."""
    written, given = _arguments(operands)
    _require_distinct_output(resolve_notation(written, [np.shape(x) for x in given]))
    options = Options(
        order=_order(order),
        optimize=frozen(_path(optimize, len(given))),
        dtype=None if dtype is None else np.dtype(numpy_type(dtype)),
        casting=_casting(casting) or "same_kind",
    )
    return evaluate(Asked(handle, written, options, stream=stream), given, out)


def _einsum(
    handle: Handle,
    operands: Sequence[Any],
    out: Any,
    optimize: Any,
    dtype: Any,
    order: Any,
    casting: Any,
) -> Any:
    kind = handle.arrays
    written, given = _arguments(operands)
    if out is not None and not is_array(out):
        raise UnsupportedTypeError("keyword parameter out must be an array for einsum")
    arrays = arrays_of(kind, [kind.from_host(x) for x in given], out)
    path, layout, rule = _path(optimize, len(arrays)), _order(order), _casting(casting)
    wanted = None if dtype is None else np.dtype(dtype)
    expression = resolve_notation(written, [x.shape for x in arrays])
    _require_distinct_output(expression)
    extents = mode_extents(expression.inputs, [x.shape for x in arrays], expression.labels)
    if len(arrays) == 1 and out is None:
        view = _view(kind, arrays[0], expression)
        if view is not None:
            return view if view.ndim else view[()]
    is_product = kind.device is None and _ends_in_product(optimize, expression)
    if rule is None:
        rule = "same_kind" if is_product else kind.default_casting
    computed = _computed_type(arrays, None if is_product else out, wanted, rule)
    options = Options(layout, optimize=path, dtype=computed, casting=rule, same=repeated(given))
    request = _Request(Asked(handle, written, options), arrays, expression, computed)
    if out is not None:
        target = kind.as_array(out)
        call = request.write(target, tuple(extents[mode] for mode in expression.output), is_product)
    else:
        bound = request.for_new(is_product)
        call, result = bound.call, request.run(bound)
    if call is not None and isinstance(operands[0], str):
        head = "einsum", optimize, dtype, order, casting
        remember(handle, call, head, operands[0], given, out)
    if out is not None:
        return out
    return result if result.ndim else result[()]


class _Request:
    """A call of einsum that is read and checked."""

    def __init__(
        self,
        asked: Asked,
        arrays: Sequence[Array],
        expression: Expression,
        computed: np.dtype[Any],
    ) -> None:
        self.asked = asked
        self.kind = asked.handle.arrays
        self.arrays = arrays
        self.expression = expression
        self.computed = computed

    def write(self, out: Array, shape: tuple[int, ...], is_product: bool) -> Call | None:
        """The result of this shape in ``out``, by a call that does it again.

        None where it cannot be computed there: it is assigned.
        """
        casting = self.asked.options.casting
        _check_out(self.kind, out, shape)
        if is_product and not self._is_assigned():
            check_output_type(self.computed, out.dtype, casting)
        fits = out.shape == shape and np.can_cast(self.computed, out.dtype, casting)
        if fits and not _overlaps_itself(out):
            bound = bound_call(self.asked, self.arrays, out)
            self.run(bound)
            return bound.call
        self.kind.copy_into(out, self.run(bound_call(self.asked, self.arrays)))
        return None

    def _is_assigned(self) -> bool:
        """Whether NumPy assigns a product to ``out``, of whatever type; so on most long paths."""
        return len(self.arrays) > 2 or is_assigned(self.expression, self._factors)

    def for_new(self, is_product: bool) -> BoundCall:
        """The call that makes a new array, laid out as NumPy has it."""
        asked = self.asked
        if asked.options.layout == "K":
            asked = replace(asked, options=replace(asked.options, axes=self._axes(is_product)))
        return bound_call(asked, self.arrays)

    def run(self, bound: BoundCall) -> Array:
        """The result, by the way that later calls take."""
        try:
            if bound.out is not None or LOGGER.active:
                return bound()
            return bound.call.again(bound.inputs, UNSCALED)
        except LackingMemoryError as error:
            return fitting(self.asked, bound, error)()

    def _axes(self, is_product: bool) -> tuple[int, ...] | None:
        """Those of a new result, fastest first; None, the cheapest, where paths decide."""
        on_path = is_product or self.kind.device is not None
        if on_path and len(self.arrays) > 2:
            return None
        find = axes_of_product if is_product else axes_of_loops
        return find(self.expression, self._factors)

    @property
    def _factors(self) -> list[Factor]:
        layouts = map(self.kind.layout, self.arrays)
        return factors_of(self.expression, [(x.shape, x.strides) for x in layouts])


def einsum_path(*operands: Any, optimize: Any = "greedy") -> tuple[list[Any], str]:
    """The order in which einsum contracts: (["einsum_path", (0, 1), ...], a printable plan).

    The first item of each tuple's positions are removed from the operands, their result is
    appended, as in numpy.einsum_path; the list can be given back as ``optimize``.
    """
    handle = handle_for(None, operands)
    with (
        LOGGER.call("einsum_path", {"operands": operands, "optimize": optimize})
        if LOGGER.active
        else UNWATCHED
    ):
        written, given = _arguments(operands)
        arrays = arrays_of(handle.arrays, given)
        path = _path(optimize, len(arrays), unordered=False)
        shapes = [x.shape for x in arrays]
        expression = resolve_notation(written, shapes)
        _require_distinct_output(expression)
        extents = mode_extents(expression.inputs, shapes, expression.labels)
        found = contraction_path(
            [frozenset(modes) for modes in expression.inputs],
            frozenset(expression.output),
            extents,
            path,
        )
        options = Options(order="K", optimize=found)
        call = call_for(handle, written, [handle.arrays.layout(x) for x in arrays], options)
        return ["einsum_path", *found], str(call.loaded.plan)


# --- arguments --------------------------------------------------------------------------------


def _arguments(operands: Sequence[Any]) -> tuple[Written, Sequence[Any]]:
    if not operands or (isinstance(operands[0], str | bytes) and len(operands) == 1):
        raise InvalidValueError(
            "einsum takes a string and at least one operand, or at least one operand and its "
            "list of labels."
        )
    first = operands[0]
    if isinstance(first, str | bytes):
        text = first.decode() if isinstance(first, bytes) else str.__str__(first)
        if any(character.isspace() and character != " " for character in text):
            raise InvalidValueError(f"einsum takes spaces and no other white space: {text!r}.")
        return text, operands[1:]
    require_expression_first(operands)
    if len(operands) == 1:
        raise InvalidValueError("Each operand is followed by its list of labels.")
    for sublist in (*operands[1::2], *(operands[-1:] if len(operands) % 2 else ())):
        _require_integers(sublist)
    return interleaved_arguments(operands)


def _require_integers(sublist: Any) -> None:
    is_sequence = isinstance(sublist, Sequence) and not isinstance(sublist, str | bytes)
    if not is_sequence and not (isinstance(sublist, np.ndarray) and sublist.ndim == 1):
        raise UnsupportedTypeError(
            f"Labels are a sequence of integers and Ellipsis: they are {shown(sublist)}."
        )
    for label in sublist:
        if label is not Ellipsis and not hasattr(label, "__index__"):
            raise UnsupportedTypeError(
                f"Each label is an integer or Ellipsis: {shown(label)} is neither."
            )
        if label is not Ellipsis and int(label) < 0:
            raise InvalidValueError(f"Labels are not negative: {label} is.")


def _path(optimize: Any, count: int, unordered: bool = True) -> Any:
    """NumPy's ``optimize`` as contraction_path takes it; the errors are NumPy's."""
    if optimize is None or optimize is False:
        return "auto" if unordered else False
    if optimize is True:
        return "auto"
    if isinstance(optimize, str):
        if count > 2 and not is_path_name(optimize):
            raise KeyError(f"Unknown optimizer {optimize!r}; known are {', '.join(PATH_NAMES)}.")
        return optimize if count > 2 else "auto"  # NumPy does not look at it either
    if callable(optimize):
        return optimize
    if _is_explicit(optimize):
        return _complete(optimize[1:], count)
    if len(optimize) == 2 and isinstance(optimize[0], str):
        return _path(optimize[0], count)  # the limit bounds an intermediate NumPy would make
    raise UnsupportedTypeError(f"Did not understand the path: {shown(optimize)}.")


def _ends_in_product(optimize: Any, expression: Expression) -> bool:
    """Whether NumPy's last step is a product of two operands, not its loops."""
    count = len(expression.inputs)
    if optimize is False or count < 2:
        return False
    if _is_explicit(optimize):
        return len(optimize[-1]) == 2
    is_summed = len(expression.output) < len(expression.labels)
    return count == 2 or (optimize is not None and is_summed)


def _is_explicit(optimize: Any) -> bool:
    """Whether it is a path as einsum_path gives it."""
    is_named = isinstance(optimize, Sequence) and len(optimize) and isinstance(optimize[0], str)
    return bool(is_named) and optimize[0] == "einsum_path"


def _complete(path: Sequence[Any], count: int) -> Path:
    """The path; InvalidPathError (a RuntimeError) unless it leaves one of ``count`` operands."""
    groups, left = explicit_path(path, count)
    if left != 1:
        raise InvalidPathError(
            f"A path contracts all operands: {groups} leaves {left} of {count} operands."
        )
    return groups


def _order(order: Any) -> str:
    if order is None:
        return "K"
    if not isinstance(order, str):
        raise UnsupportedTypeError(f"order must be a string: it is a {type(order).__name__}.")
    if order.upper() not in ("C", "F", "A", "K"):
        raise InvalidValueError(f"order must be one of 'C', 'F', 'A', 'K': it is {shown(order)}.")
    return order.upper()


def _casting(casting: Any) -> Any:
    if casting is not None and not isinstance(casting, str):
        raise UnsupportedTypeError(f"casting must be a string: it is a {type(casting).__name__}.")
    if casting not in (None, *_CASTINGS):
        raise InvalidValueError(f"casting must be one of {_CASTINGS}: it is {shown(casting)}.")
    return casting


def _require_distinct_output(expression: Expression) -> None:
    for at, mode in enumerate(expression.output):
        if mode in expression.output[:at]:
            raise InvalidValueError(
                f"The output has label {expression.labels[mode]!r} more than once."
            )


# --- types and results ----------------------------------------------------------------------


def _computed_type(
    arrays: Sequence[Array], out: Array | None, wanted: np.dtype[Any] | None, casting: Any
) -> np.dtype[Any]:
    """The type of products and sums: ``dtype``, or the common type of operands and out."""
    types = [x.dtype for x in arrays]
    computed = common_type(types) if wanted is None else wanted
    if wanted is None and out is not None:
        computed = common_type((computed, out.dtype))
    for at, dtype in enumerate(types):
        if not np.can_cast(dtype, computed, casting):
            raise UnsupportedTypeError(
                f"Operand {at} of type {dtype} cannot be cast to {computed} by rule {casting!r}."
            )
    if out is not None:
        _require_casts_both_ways(computed, out.dtype, casting)
    return computed.newbyteorder("=")


def _require_casts_both_ways(computed: np.dtype[Any], out: np.dtype[Any], casting: Any) -> None:
    """NumPy reads and writes ``out``, so it asks for casts in both directions."""
    if not (np.can_cast(computed, out, casting) and np.can_cast(out, computed, casting)):
        raise UnsupportedTypeError(
            f"out of type {out} and a result of type {computed} cannot be cast to each other by "
            f"rule {casting!r}."
        )


def _overlaps_itself(x: Array) -> bool:
    """Whether two elements share a byte."""
    return overlaps((*x.shape, x.itemsize), (*x.strides, 1))


def _check_out(kind: Arrays, out: Array, shape: tuple[int, ...]) -> None:
    if not kind.is_writeable(out):
        raise InvalidValueError("out is read-only.")
    fits = len(out.shape) == len(shape) and all(
        mine in (1, theirs) for mine, theirs in zip(shape, out.shape, strict=True)
    )
    if not fits:
        raise InvalidValueError(f"out has shape {out.shape}, the result has shape {shape}.")


def _is_view(text: str, x: Any) -> bool:
    """Whether the result is a view of the only operand."""
    return type(x) is np.ndarray and _selects(text, x.shape)


@lru_cache(maxsize=1024)  # a function of its arguments, which takes longer than the view
def _selects(text: str, shape: tuple[int, ...]) -> bool:
    """Whether dimensions of such an operand are transposed or merged, and none is summed."""
    if not text.isascii() or any(character.isspace() for character in text):
        return False
    expression = resolve_notation(text, [shape])
    _require_distinct_output(expression)
    mode_extents(expression.inputs, [shape], expression.labels)
    return not set(expression.inputs[0]) - set(expression.output)


def _view(kind: Arrays, x: Array, expression: Expression) -> Array | None:
    """The operand itself seen through other strides, where nothing is summed."""
    modes, output = expression.inputs[0], expression.output
    if set(modes) - set(output):
        return None
    if kind.device is None and len(modes) <= NUMPY_LABELS:
        return numpy_einsum(x, modes, output)  # a view whose base is x
    distinct, extents, strides = diagonal(modes, x.shape, x.strides)
    at = [distinct.index(mode) for mode in output]
    return kind.as_strided(x, [extents[each] for each in at], [strides[each] for each in at])
