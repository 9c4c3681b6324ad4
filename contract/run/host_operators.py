"""y = op(x) on NumPy arrays, in place, without overflow where the result is finite."""

from collections.abc import Callable
from typing import Any

import numpy as np

from contract.operators import Operator

__all__ = ["apply_operator"]

Array = np.ndarray[Any, Any]


def apply_operator(operator: Operator, x: Array) -> Array:
    """x = op(x), written into ``x`` and returned."""
    if operator is not Operator.IDENTITY:
        with np.errstate(all="ignore"):  # NaN and inf are results here, as on a GPU
            _FUNCTIONS[operator](x)
    return x


def _in_place(function: Any) -> Callable[[Array], None]:
    return lambda x: function(x, out=x)


def _rcp(x: Array) -> None:
    np.divide(1, x, out=x)


def _relu(x: Array) -> None:
    np.maximum(x, 0, out=x)  # propagates NaN


def _sigmoid_of(x: Array) -> Array:
    """1 / (1 + exp(-x)) as (1 + tanh(x / 2)) / 2 near 0 and exp(x) far below it."""
    small = np.exp(np.minimum(x, 0))
    return np.asarray(np.where(x < 0, small / (1 + small), 1 / (1 + np.exp(-np.maximum(x, 0)))))


def _softplus_of(x: Array) -> Array:
    return np.asarray(np.logaddexp(x, np.zeros((), x.dtype)))


def _sigmoid(x: Array) -> None:
    x[...] = _sigmoid_of(x)


def _swish(x: Array) -> None:
    """x * sigmoid(x); the limit at -inf is 0, not -inf * 0."""
    result = x * _sigmoid_of(x)
    x[...] = np.where(np.isneginf(x), 0, result)


def _softplus(x: Array) -> None:
    x[...] = _softplus_of(x)


def _mish(x: Array) -> None:
    """x * tanh(softplus(x)); the limit at -inf is 0."""
    result = x * np.tanh(_softplus_of(x))
    x[...] = np.where(np.isneginf(x), 0, result)


def _softsign(x: Array) -> None:
    """x / (1 + |x|), written x/|x| - x/|x|/(1+|x|) at infinity: the limit is +-1."""
    result = x / (1 + np.abs(x))
    x[...] = np.where(np.isinf(x), np.sign(x), result)


_FUNCTIONS: dict[Operator, Callable[[Array], None]] = {
    Operator.SQRT: _in_place(np.sqrt),
    Operator.RELU: _relu,
    Operator.CONJ: _in_place(np.conjugate),
    Operator.RCP: _rcp,
    Operator.SIGMOID: _sigmoid,
    Operator.TANH: _in_place(np.tanh),
    Operator.EXP: _in_place(np.exp),
    Operator.LOG: _in_place(np.log),
    Operator.ABS: _in_place(np.abs),
    Operator.NEG: _in_place(np.negative),
    Operator.SIN: _in_place(np.sin),
    Operator.COS: _in_place(np.cos),
    Operator.TAN: _in_place(np.tan),
    Operator.SINH: _in_place(np.sinh),
    Operator.COSH: _in_place(np.cosh),
    Operator.ASIN: _in_place(np.arcsin),
    Operator.ACOS: _in_place(np.arccos),
    Operator.ATAN: _in_place(np.arctan),
    Operator.ASINH: _in_place(np.arcsinh),
    Operator.ACOSH: _in_place(np.arccosh),
    Operator.ATANH: _in_place(np.arctanh),
    Operator.CEIL: _in_place(np.ceil),
    Operator.FLOOR: _in_place(np.floor),
    Operator.MISH: _mish,
    Operator.SWISH: _swish,
    Operator.SOFT_PLUS: _softplus,
    Operator.SOFT_SIGN: _softsign,
}
