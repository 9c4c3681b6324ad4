"""Operators on elements: which exist, and which data types each accepts."""

from contract.descriptors.compute_types import has_compute_type, is_complex, is_real_floating
from contract.errors import InvalidValueError, UnsupportedTypeError
from contract.support.choices import Choice
from contract.support.text import shown

__all__ = [
    "BinaryOperator",
    "Operator",
    "accepts",
    "binary",
    "conjugated",
    "require",
    "require_binary",
    "unary",
]


class Operator(Choice):
    """Unary operators y = op(x), with cuTENSOR's names in lower case as values."""

    IDENTITY = "identity"
    SQRT = "sqrt"
    RELU = "relu"
    CONJ = "conj"
    RCP = "rcp"
    SIGMOID = "sigmoid"
    TANH = "tanh"
    EXP = "exp"
    LOG = "log"
    ABS = "abs"
    NEG = "neg"
    SIN = "sin"
    COS = "cos"
    TAN = "tan"
    SINH = "sinh"
    COSH = "cosh"
    ASIN = "asin"
    ACOS = "acos"
    ATAN = "atan"
    ASINH = "asinh"
    ACOSH = "acosh"
    ATANH = "atanh"
    CEIL = "ceil"
    FLOOR = "floor"
    MISH = "mish"
    SWISH = "swish"
    SOFT_PLUS = "soft_plus"
    SOFT_SIGN = "soft_sign"


class BinaryOperator(Choice):
    """Binary operators z = op(x, y); MAX and MIN propagate NaN."""

    ADD = "add"
    MUL = "mul"
    MAX = "max"
    MIN = "min"


_COMPLEX_BINARY = frozenset({BinaryOperator.ADD, BinaryOperator.MUL})
_EVERY_TYPE = frozenset({Operator.IDENTITY, Operator.CONJ})  # CONJ of a real type is IDENTITY
_INTEGER = _EVERY_TYPE | {Operator.RELU}


def accepts(operator: Operator, dtype: str) -> bool:
    """Whether ``operator`` is defined for elements of ``dtype``."""
    if is_real_floating(dtype):
        return has_compute_type(dtype) or operator in _EVERY_TYPE
    return operator in (_EVERY_TYPE if is_complex(dtype) or dtype == "bool" else _INTEGER)


def require(operator: Operator, dtype: str, operand: str) -> None:
    """Raise UnsupportedTypeError unless ``operator`` accepts ``dtype``; names the operand."""
    if not accepts(operator, dtype):
        supported = ", ".join(each.name for each in Operator if accepts(each, dtype))
        raise UnsupportedTypeError(
            f"Operator {operator.name} is not defined for {operand} of type {dtype}; "
            f"defined are {supported}."
        )


def require_binary(operator: BinaryOperator, dtype: str) -> None:
    """Raise UnsupportedTypeError unless elements of ``dtype`` can be combined by ``operator``."""
    if is_complex(dtype) and operator not in _COMPLEX_BINARY:
        raise UnsupportedTypeError(
            f"Operator {operator.name} is not defined for type {dtype}: complex numbers have no "
            f"order; defined are ADD, MUL."
        )


def conjugated(operator: Operator) -> Operator:
    """conj after the operator; operators other than these two give real numbers."""
    swapped = {Operator.IDENTITY: Operator.CONJ, Operator.CONJ: Operator.IDENTITY}
    return swapped.get(operator, operator)


def unary(name: "Operator | str | None") -> Operator:
    """The operator called ``name``; None is IDENTITY; InvalidValueError lists the names."""
    if name is None:
        return Operator.IDENTITY
    try:
        return Operator(name)
    except ValueError:
        names = ", ".join(each.value for each in Operator)
        raise InvalidValueError(f"Unknown operator {shown(name)}; known are {names}.") from None


def binary(name: "BinaryOperator | str") -> BinaryOperator:
    """The operator called ``name``; InvalidValueError lists the names."""
    try:
        return BinaryOperator(name)
    except ValueError:
        names = ", ".join(each.value for each in BinaryOperator)
        raise InvalidValueError(f"Unknown operator {shown(name)}; known are {names}.") from None
