"""A Call: a loaded plan bound to the layouts of the arrays it takes, ready to be repeated.

Arrays that a descriptor cannot express (foreign byte order, strides that are no multiple of
the item size, on a device also such an address) are copied on the way in; an output that cannot
be written in place (it overlaps an input, or is not describable) is computed apart and copied on
the way out.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from contract.arrays.protocol import (
    LARGE_BYTES,
    Array,
    Layout,
    is_describable,
    require_host_scalar,
    type_name,
)
from contract.descriptors.compute_types import is_complex, item_size
from contract.descriptors.operations import (
    ElementwiseOperation,
    TensorDescriptor,
)
from contract.errors import InvalidValueError, UnsupportedTypeError
from contract.execution.budget import Budget, LackingMemoryError, copied_bytes, spanned_bytes
from contract.execution.executor import Loaded, Scalars, observed
from contract.execution.quiet import quietly
from contract.logging import LOGGER, Level
from contract.support.text import shown

__all__ = [
    "UNSCALED",
    "BoundCall",
    "Call",
    "check_output_type",
    "describe",
    "is_castable",
    "scalar_in",
]


UNSCALED: Scalars = (1, 0, 0)  # alpha, beta and gamma of a call that has none of them
Product = Callable[[Sequence[Array]], Array]  # inputs -> a new array
UNBOUND = Budget()
SMALL, LARGE = 2.0**-24, 2.0**24  # between them a number fits every type with a point


def describe(layout: Layout) -> TensorDescriptor:
    """The descriptor of an array; one that must be copied first is described as the copy."""
    shape, strides, dtype, alignment = layout
    name = type_name(dtype)
    size = item_size(name)
    if not is_describable(layout):
        return TensorDescriptor(shape, None, name)
    return TensorDescriptor(shape, tuple([step // size for step in strides]), name, alignment)


class Call:
    """One operation on arrays of fixed layouts.

    ``copied`` are the inputs that are copied into column-major order first, as C is where
    ``copies_addend``; ``apart``: the output cannot be written in place, whatever the operands.
    ``needed_bytes`` is all that a call allocates, ``fresh_bytes`` of it the result. Copies of
    operands that are not aligned come on top: a layout does not tell.
    """

    __slots__ = (
        "apart",
        "arrays",
        "budget",
        "copied",
        "copies_addend",
        "fresh_bytes",
        "has_units",
        "in_place",
        "loaded",
        "needed_bytes",
        "new_output",
        "reads_addend",
        "scalar",
        "straight",
        "unscaled",
    )

    def __init__(
        self,
        loaded: Loaded,
        copied: tuple[int, ...] = (),
        budget: Budget = UNBOUND,
        out: Layout | None = None,
        addend: Layout | None = None,
    ) -> None:
        self.loaded = loaded
        self.budget = budget
        self.arrays = loaded.arrays
        self.copied = copied
        self.apart = out is not None and not is_describable(out)
        self.copies_addend = addend is not None and not is_describable(addend)
        self.scalar = np.dtype(loaded.scalar_type)
        self.has_units = self.scalar.kind != "b"  # which 0 and 1 would promote to integers
        self.new_output = loaded.new_output
        operation = loaded.plan.operation
        self.fresh_bytes = spanned_bytes(operation.output.tensor)
        self.needed_bytes = self.fresh_bytes + copied_bytes(operation, copied, addend)
        self.needed_bytes += loaded.own_bytes + loaded.required_workspace + loaded.tile_bytes
        self.in_place = loaded.in_place
        self.reads_addend = loaded.reads_addend
        is_direct = budget.limit is None and not (copied or self.apart or self.copies_addend)
        is_small = self.needed_bytes <= LARGE_BYTES
        self.straight = loaded.straight() if is_small and is_direct else None
        has_gamma = isinstance(operation, ElementwiseOperation) and len(operation.inputs) > 1
        self.unscaled = self._unscaled() if is_small and not (copied or has_gamma) else None

    def again(
        self,
        inputs: Sequence[Array],
        scalars: Scalars,
        out: Array | None = None,
        c: Array | None = None,
    ) -> Array:
        """The result of one more call on such arrays, where no log is kept."""
        if out is None and c is None and self.unscaled is not None:
            if type(scalars[0]) is int and scalars[0] == 1:
                return self.unscaled(inputs)
        elif out is not None and not self.arrays.is_writeable(out):
            raise InvalidValueError("out is read-only.")
        addend = c if self.reads_addend else None
        if self.straight is None or (out is not None and self._must_be_apart(out, inputs, addend)):
            return self.into(inputs, out, addend, scalars)
        scalars = self._in_scalar_type(scalars)
        output = self.new_output() if out is None else out
        self.straight([*inputs, output, addend], scalars)
        return output

    def into(
        self,
        inputs: Sequence[Array],
        out: Array | None,
        addend: Array | None,
        scalars: Scalars,
        workspace: Array | None = None,
    ) -> Array:
        """The result in ``out`` where that is given and safe to write, else computed apart."""
        if self.arrays.capturing():
            return self._captured(inputs, out, addend, scalars, workspace)
        return self.perform(inputs, out, addend, scalars, workspace)

    def recordable(self) -> "Call":
        """The same call in launches that a graph can hold, each."""
        loaded = self.loaded.recordable()
        if loaded is self.loaded:
            return self
        found = copy(self)
        found.loaded = loaded
        found.needed_bytes += loaded.required_workspace - self.loaded.required_workspace
        self.budget.require(found.needed_bytes - self.fresh_bytes)
        return found

    def _captured(
        self,
        inputs: Sequence[Array],
        out: Array | None,
        addend: Array | None,
        scalars: Scalars,
        workspace: Array | None = None,
    ) -> Array:
        """The call as part of a graph: what it allocates is kept, the result too."""
        with self.arrays.keeping():
            call = self.recordable()
            if workspace is not None and workspace.nbytes < call.loaded.required_workspace:
                workspace = None
            return call.perform(inputs, out, addend, scalars, workspace)

    def require_memory(self) -> None:
        """LackingMemoryError if fewer bytes are free than the call takes."""
        free = self.arrays.available_bytes()
        if free is not None and self.needed_bytes > free:
            raise LackingMemoryError.of(self.needed_bytes, free)

    def perform(
        self,
        inputs: Sequence[Array],
        out: Array | None,
        addend: Array | None,
        scalars: Scalars,
        workspace: Array | None = None,
    ) -> Array:
        """``into``, whether or not a graph is being captured.

        LackingMemoryError, before anything is done, if fewer bytes are free than it takes.
        """
        if self.needed_bytes > LARGE_BYTES:
            self.require_memory()
        scalars = self._in_scalar_type(scalars)
        if self.budget.limit is not None:
            self._check_unaligned(inputs, self.fresh_bytes if out is None else 0)
        if self.copied:
            inputs = self._described(inputs)
        if addend is not None and self.copies_addend:
            addend = self.arrays.native_copy(addend)
        if out is not None and not self._must_be_apart(out, inputs, addend):
            self._run(inputs, out, addend, scalars, workspace)
            return out
        self.budget.require(self.needed_bytes)
        output = self.new_output()
        self._run(inputs, output, addend, scalars, workspace)
        if out is None:
            return output
        self.arrays.copy_into(out, output)
        return out

    def _run(
        self,
        inputs: Sequence[Array],
        output: Array,
        addend: Array | None,
        scalars: Scalars,
        workspace: Array | None,
    ) -> None:
        loaded = self.loaded
        if LOGGER.active:
            for at in self.copied:
                LOGGER.log(Level.TRACE, f"operand {at} copied into column-major order")
            loaded = observed(loaded, inputs, output, addend, scalars)
        loaded(inputs, output, addend, scalars, workspace)

    def _in_scalar_type(self, scalars: Scalars) -> Scalars:
        """The scalars as the steps take them; InvalidValueError if one does not fit."""
        alpha, beta, gamma = scalars
        if self.has_units and type(alpha) is type(beta) is type(gamma) is int:
            if 0 <= alpha <= 1 and 0 <= beta <= 1 and 0 <= gamma <= 1:
                return scalars
        return (
            self._scalar("alpha", alpha),
            self._scalar("beta", beta),
            self._scalar("gamma", gamma),
        )

    def _scalar(self, name: str, value: Any) -> Any:
        if self.has_units and type(value) is int and 0 <= value <= 1:
            return value
        if type(value) in (int, float) and self.scalar.kind in "fc" and SMALL < abs(value) < LARGE:
            return self.scalar.type(value)
        return scalar_in(self.scalar, name, value)

    def _described(self, inputs: Sequence[Array]) -> Sequence[Array]:
        copy = self.arrays.native_copy
        return [copy(x) if at in self.copied else x for at, x in enumerate(inputs)]

    def _must_be_apart(self, out: Array, inputs: Sequence[Array], addend: Array | None) -> bool:
        """Whether writing ``out`` piece by piece could change an operand that is still read."""
        arrays = self.arrays
        if self.apart or not arrays.is_aligned(out):
            return True
        for at, x in enumerate(inputs):
            if arrays.may_share(out, x) and not (at in self.in_place and self._is_same(out, x)):
                return True
        if addend is None or not arrays.may_share(out, addend):
            return False
        return not self._is_same(out, addend)

    def _is_same(self, one: Array, other: Array) -> bool:
        address = self.arrays.address
        return (address(one), one.strides, one.shape, one.dtype) == (
            address(other),
            other.strides,
            other.shape,
            other.dtype,
        )

    def _unscaled(self) -> Product | None:
        """inputs -> the result in a new array with alpha = 1, without C; None for the usual way."""
        if self.loaded.product is not None:
            return self._within_limit(self.loaded.product)
        ones, straight, new_output = self._in_scalar_type(UNSCALED), self.straight, self.new_output
        if straight is None:
            return None

        def unscaled(inputs: Sequence[Array]) -> Array:
            output = new_output()
            straight([*inputs, output, None], ones)
            return output

        return unscaled

    def _within_limit(self, product: Product) -> Product:
        """``product``; where there is a limit, after a look at the operands."""
        if self.budget.limit is None:
            return product

        def checked(inputs: Sequence[Array]) -> Array:
            self._check_unaligned(inputs, self.fresh_bytes)
            return product(inputs)

        return checked

    def _check_unaligned(self, inputs: Sequence[Array], fresh: int) -> None:
        """Refuse what takes too much beside a new result with copies of operands."""
        copied = sum(x.nbytes for x in inputs if not self.arrays.is_aligned(x))
        if copied:
            self.budget.require(copied + self.needed_bytes - self.fresh_bytes + fresh)


class BoundCall(NamedTuple):
    """A call with its arrays and scalars: alpha, beta, gamma."""

    call: Call
    inputs: Sequence[Array]
    out: Array | None
    addend: Array | None
    scalars: Scalars

    def __call__(self) -> Array:
        return self.call.into(self.inputs, self.out, self.addend, self.scalars)

    def recordable(self) -> "BoundCall":
        """The same in launches that a graph can hold, each."""
        return self._replace(call=self.call.recordable())

    def new_output(self) -> Array:
        """An array for the result."""
        return self.call.new_output()

    def perform(self, out: Array | None = None) -> Array:
        """The result in ``out``, else where the call has it."""
        out = self.out if out is None else out
        return self.call.perform(self.inputs, out, self.addend, self.scalars)


def scalar_in(dtype: np.dtype[Any], name: str, value: Any) -> Any:
    """The scalar ``value`` as ``dtype``; errors name the rule and the value."""
    require_host_scalar(name, value)
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "biufcO" or value is None:
        raise InvalidValueError(f"{name} must be a scalar number: it is {shown(value)}.")
    if array.dtype.kind == "c" and not is_complex(dtype.name) and dtype.kind != "O":
        if array.imag != 0:
            raise InvalidValueError(
                f"{name} must be real for a result that computes in {dtype.name}: it is "
                f"{shown(value)}."
            )
        array = array.real
    try:
        result = quietly(array.astype, dtype)[()]
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidValueError(f"{name} must be a value of {dtype.name}: {error}.") from None
    if dtype.kind in "biu" and result != array[()]:
        raise InvalidValueError(f"{name} must be a value of {dtype.name}: it is {shown(value)}.")
    return result


def check_output_type(result: np.dtype[Any], out: np.dtype[Any], casting: Any) -> None:
    """UnsupportedTypeError unless a result of one type may be stored in the other."""
    if not is_castable(result, out, casting):
        raise UnsupportedTypeError(
            f"out of type {out.name} cannot hold a result of type {result.name} by rule "
            f"{casting!r}."
        )


def is_castable(one: np.dtype[Any], other: np.dtype[Any], casting: Any) -> bool:
    """numpy.can_cast; bfloat16 has no kind to NumPy: here it has that of float16."""
    if casting == "same_kind":
        one, other = _as_half(one), _as_half(other)
    return np.can_cast(one, other, casting)


def _as_half(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float16) if dtype.name == "bfloat16" else dtype
