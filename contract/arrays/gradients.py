"""The derivatives of a product in one of its operands: products with the other operands.

D = alpha * op_0(T_0) * ... * op_n(T_n), summed over modes, has in T_i the gradient
G * alpha * prod_{j != i} op_j(T_j) * op_i'(T_i), with the modes of T_i, G the cotangent of D.
Repeated modes change sides: what takes a diagonal of T_i writes it in the gradient.
Where T_i has the tangent t_i, D has alpha * prod_{j != i} op_j(T_j) * op_i'(T_i) * t_i.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contract.descriptors.expression import Expression, mode_extents
from contract.descriptors.operators import Operator, conjugated
from contract.errors import NotSupportedError

__all__ = ["GIVEN", "Derivative", "DerivativeFactor", "gradient", "tangent"]

GIVEN = -1  # stands for G or t_i among the numbers of operands
Modes = tuple[int, ...]

# op'(x) = factor * product of operators on x
DERIVATIVES: Mapping[Operator, tuple[int, tuple[Operator, ...]]] = {
    Operator.IDENTITY: (1, ()),
    Operator.CONJ: (1, ()),
    Operator.NEG: (-1, ()),
    Operator.EXP: (1, (Operator.EXP,)),
    Operator.LOG: (1, (Operator.RCP,)),
    Operator.RCP: (-1, (Operator.RCP, Operator.RCP)),
    Operator.SIN: (1, (Operator.COS,)),
    Operator.COS: (-1, (Operator.SIN,)),
    Operator.SINH: (1, (Operator.COSH,)),
    Operator.COSH: (1, (Operator.SINH,)),
}


@dataclass(frozen=True, slots=True)
class DerivativeFactor:
    """One operand of a derivative: the number of a tensor, or GIVEN."""

    tensor: int
    modes: Modes
    operator: Operator


@dataclass(frozen=True, slots=True)
class Derivative:
    """A product with the modes ``output``, times alpha (its conjugate) and ``scale``.

    ``ones`` are modes and ``extents`` their extents: those that no factor has in full, along
    which the derivative is constant.
    """

    factors: tuple[DerivativeFactor, ...]
    output: Modes
    ones: Modes
    extents: tuple[int, ...]
    scale: int
    conjugates_alpha: bool


def gradient(
    expression: Expression,
    shapes: Sequence[tuple[int, ...]],
    operators: Sequence[Operator],
    at: int,
    conjugates: bool,
) -> Derivative:
    """The gradient in operand ``at``: by the derivative, or where asked by its conjugate.

    NotSupportedError for operators whose derivative is no product of operators.
    """
    operator = operators[at]
    scale, derivative = _derivative(operator, at)
    turned = operator is Operator.CONJ
    flipped = conjugates is not turned
    others = [j for j in range(len(shapes)) if j != at]
    own = _own_modes(expression, shapes)
    output = own[at]
    factors = (
        DerivativeFactor(GIVEN, expression.output, Operator.CONJ if turned else Operator.IDENTITY),
        *(
            DerivativeFactor(
                j, expression.inputs[j], conjugated(operators[j]) if flipped else operators[j]
            )
            for j in others
        ),
        *(DerivativeFactor(at, output, each) for each in derivative),
    )
    full = set(expression.output).union(*(set(expression.inputs[j]) & set(own[j]) for j in others))
    full.update(output if derivative else ())
    extents = {m: n for m, n in zip(output, shapes[at], strict=True) if m not in full}
    return Derivative(factors, output, tuple(extents), tuple(extents.values()), scale, flipped)


def tangent(expression: Expression, operators: Sequence[Operator], at: int) -> Derivative:
    """What a tangent of operand ``at`` contributes to that of the product.

    NotSupportedError for operators whose derivative is no product of operators.
    """
    operator = operators[at]
    scale, derivative = _derivative(operator, at)
    turned = operator is Operator.CONJ
    modes = expression.inputs
    factors = (
        *(DerivativeFactor(j, modes[j], operators[j]) for j in range(len(modes)) if j != at),
        DerivativeFactor(GIVEN, modes[at], Operator.CONJ if turned else Operator.IDENTITY),
        *(DerivativeFactor(at, modes[at], each) for each in derivative),
    )
    return Derivative(factors, expression.output, (), (), scale, False)


def _derivative(operator: Operator, at: int) -> tuple[int, tuple[Operator, ...]]:
    if operator not in DERIVATIVES:
        raise NotSupportedError(
            f"Operators with a gradient are {', '.join(each.name for each in DERIVATIVES)}: "
            f"operand {at} has {operator.name}. Apply the library's own function to it first."
        )
    return DERIVATIVES[operator]


def _own_modes(expression: Expression, shapes: Sequence[tuple[int, ...]]) -> list[Modes]:
    """The modes of each operand, with a new one where its extent 1 broadcasts."""
    extents = mode_extents(expression.inputs, shapes, expression.labels)
    new = len(extents)
    return [
        tuple(m if n == extents[m] else new + m for m, n in zip(modes, shape, strict=True))
        for modes, shape in zip(expression.inputs, shapes, strict=True)
    ]
