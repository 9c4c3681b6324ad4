"""Where numpy.einsum leaves a result: its layout for ``order="K"``, and how ``out`` is written.

NumPy's loops walk through all operands at once and pack a new array in the order of that walk. With
``optimize`` two operands are a matrix product that is reshaped and transposed, or where nothing is
summed they are multiplied element by element.
Source: numpy/_core/src/multiarray/nditer_constr.c, numpy/_core/einsumfunc.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from contract.descriptors.expression import Expression
from contract.descriptors.layout import packed_strides

__all__ = ["Factor", "axes_of_loops", "axes_of_product", "factors_of", "is_assigned"]

Axes = tuple[int, ...]  # of a result, fastest first


@dataclass(frozen=True, slots=True)
class Factor:
    """An operand: its extents by mode, and the strides of those that are not 1."""

    extents: Mapping[int, int]
    strides: Mapping[int, int]

    @property
    def long(self) -> list[int]:
        """Modes of an extent that is not 1, as the operand has them."""
        return [mode for mode, extent in self.extents.items() if extent != 1]


def factors_of(
    expression: Expression, layouts: Iterable[tuple[Sequence[int], Sequence[int]]]
) -> list[Factor]:
    """The operands, from the shape and strides of each; a diagonal steps along all its axes."""
    factors = []
    for modes, (shape, strides) in zip(expression.inputs, layouts, strict=True):
        steps: dict[int, int] = {}
        for mode, extent, stride in zip(modes, shape, strides, strict=True):
            if extent != 1:
                steps[mode] = steps.get(mode, 0) + stride
        factors.append(Factor(dict(zip(modes, shape, strict=True)), steps))
    return factors


def axes_of_loops(expression: Expression, factors: Sequence[Factor]) -> Axes:
    """As numpy.einsum's loops over any number of operands pack a result."""
    return _walked(expression.output, factors, expression.labels)


def axes_of_product(expression: Expression, factors: Sequence[Factor]) -> Axes:
    """As numpy.einsum with ``optimize`` lays out the product of two operands."""
    output = expression.output
    produced = _produced(output, factors)
    if produced is None:
        arranged = [_arranged(output, each, expression.labels) for each in reversed(factors)]
        return _walked(output, arranged, expression.labels)
    return tuple(output.index(mode) for group in reversed(produced) for mode in reversed(group))


def is_assigned(expression: Expression, factors: Sequence[Factor]) -> bool:
    """Whether that product is made apart and assigned to ``out``, which may have any type."""
    produced = _produced(expression.output, factors)
    if produced is None:
        return False
    ones, batch, *kept = produced
    in_order = [mode for group in produced for mode in group] == list(expression.output)
    is_one_each = all(len(group) == 1 for group in (kept if not batch else [batch, *kept]))
    return bool(ones) or not (in_order and is_one_each)


def _produced(output: Axes, factors: Sequence[Factor]) -> tuple[list[int], ...] | None:
    """Modes of a matrix product: of extent 1, batch, rows, columns; None where nothing is summed.

    NumPy takes the second operand for the left factor.
    """
    right, left = (each.long for each in factors)
    shared = [mode for mode in left if mode in right]
    if set(shared) <= set(output):
        return None
    return (
        [mode for mode in output if mode not in left and mode not in right],
        [mode for mode in shared if mode in output],
        [mode for mode in left if mode in output and mode not in shared],
        [mode for mode in right if mode in output and mode not in shared],
    )


def _arranged(output: Axes, factor: Factor, labels: Sequence[str]) -> Factor:
    """The operand with modes of the output alone: a view, or a new array where it is summed."""
    kept = tuple(mode for mode in output if mode in factor.extents)
    if len(kept) == len(factor.extents):
        return factor
    extents = [factor.extents[mode] for mode in kept]
    packed = packed_strides(extents, _walked(kept, [factor], labels))
    strides = {mode: step for mode, n, step in zip(kept, extents, packed, strict=True) if n != 1}
    return Factor(dict(zip(kept, extents, strict=True)), strides)


def _walked(output: Axes, factors: Sequence[Factor], labels: Sequence[str]) -> Axes:
    """The output's axes from innermost to outermost, in the order NumPy's iterator finds.

    It sorts them by insertion, from the last one on: an axis goes inside of those along which
    every operand that has both makes longer steps.
    """
    every = {mode for factor in factors for mode in factor.extents}
    summed = sorted(every.difference(output), key=lambda mode: (len(labels[mode]), labels[mode]))
    order: list[int] = []
    for mode in reversed((*output, *summed)):
        order.insert(_place(mode, order, factors), mode)
    return tuple(output.index(mode) for mode in order if mode in output)


def _place(mode: int, order: Sequence[int], factors: Sequence[Factor]) -> int:
    """Where ``mode`` goes among those sorted so far, which are innermost first."""
    place = len(order)
    for at in range(len(order) - 1, -1, -1):
        inside = _goes_inside(mode, order[at], factors)
        if inside is False:
            break
        if inside:
            place = at
    return place


def _goes_inside(mode: int, other: int, factors: Sequence[Factor]) -> bool | None:
    """Whether all operands with both modes step less along ``mode``; None if there are none."""
    pairs = [(each.strides.get(mode), each.strides.get(other)) for each in factors]
    compared = [abs(own) < abs(others) for own, others in pairs if own and others]
    return all(compared) if compared else None
