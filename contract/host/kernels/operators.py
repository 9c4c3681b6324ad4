"""y = op(x) on NumPy arrays, in place, without overflow where the result is finite."""

from collections.abc import Callable
from typing import Any

import numpy as np

from contract.descriptors.operators import BinaryOperator, Operator
from contract.host.resources.views import Array

__all__ = ["UFUNCS", "add_scaled", "apply_operator", "spare_elements", "transforming"]

UFUNCS: dict[BinaryOperator, np.ufunc] = {
    BinaryOperator.ADD: np.add,
    BinaryOperator.MUL: np.multiply,
    BinaryOperator.MAX: np.maximum,  # propagates NaN, as np.minimum does
    BinaryOperator.MIN: np.minimum,
}


def spare_elements(operator: Operator, count: int) -> int:
    """How many elements ``apply_operator`` needs beside the ``count`` it changes."""
    return _SPARES.get(operator, 0) * count


def apply_operator(operator: Operator, x: Array, spare: Array) -> None:
    """x = op(x); ``x`` and ``spare`` (of the same type) are contiguous and one-dimensional."""
    if operator is Operator.IDENTITY or not x.size:
        return
    with np.errstate(all="ignore"):  # NaN and inf are results here, as on a GPU
        if operator in _SPARES:
            count = x.size
            pieces = [spare[at : at + count] for at in range(0, spare.size - count + 1, count)]
            _COMPOSED[operator](x, *pieces[: _SPARES[operator]])
        else:
            _DIRECT[operator](x)


def transforming(operator: Operator, dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    """x -> op(x) in a new array of ``dtype``; x itself where the operator is IDENTITY.

    To be called where NumPy warns of nothing.
    """
    if operator is Operator.IDENTITY:
        return lambda x: x
    direct = _DIRECT.get(operator)

    def transformed(x: Array) -> Array:
        result = np.array(x, dtype, order="C")
        if direct is not None:
            direct(result)
        else:
            spare = np.empty(spare_elements(operator, result.size), dtype)
            apply_operator(operator, result.reshape(-1), spare)
        return result

    return transformed


def _in_place(function: Any) -> Callable[[Array], None]:
    return lambda x: function(x, out=x)


def _rcp(x: Array) -> None:
    np.divide(1, x, out=x)


def _relu(x: Array) -> None:
    np.maximum(x, 0, out=x)  # propagates NaN


_DIRECT: dict[Operator, Callable[[Array], None]] = {
    Operator.SQRT: _in_place(np.sqrt),
    Operator.RELU: _relu,
    Operator.CONJ: _in_place(np.conjugate),
    Operator.RCP: _rcp,
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
}


# --- operators of several steps; t = exp(-|x|) never overflows ------------------------------------


def _decay(x: Array, t: Array) -> None:
    """t = exp(-|x|)."""
    np.abs(x, out=t)
    np.negative(t, out=t)
    np.exp(t, out=t)


def _sigmoid(x: Array, t: Array, mask: Array) -> None:
    """1 / (1 + t) for x >= 0, t / (1 + t) below."""
    _decay(x, t)
    negative = np.less(x, 0, out=mask.view(np.bool_)[: x.size])
    np.copyto(x, 1)
    np.copyto(x, t, where=negative)
    np.add(t, 1, out=t)
    np.divide(x, t, out=x)  # NaN stays in t


def _swish(x: Array, h: Array, mask: Array, t: Array) -> None:
    """x / (1 + t) for x >= 0, x h * h / (1 + t) below."""
    _halfway(x, h, mask, t)
    np.add(t, 1, out=t)
    np.divide(h, t, out=t)
    np.multiply(x, t, out=x)


def _halfway(x: Array, h: Array, mask: Array, t: Array) -> Array:
    """t = exp(-|x|), x = x h and h = exp(-|x| / 2) where x < 0, h = 1 elsewhere, which it returns.

    t may be too small to have all of its digits where x t has them. The limits at -inf are 0.
    """
    np.maximum(x, np.finfo(x.dtype).min, out=x)
    np.multiply(x, 0.5, out=h)
    _decay(h, h)
    np.multiply(h, h, out=t)
    above = np.greater_equal(x, 0, out=mask.view(np.bool_)[: x.size])
    np.copyto(h, 1, where=above)
    np.multiply(x, h, out=x)
    return above


def _softplus(x: Array, t: Array) -> None:
    """log(1 + e^x) = max(x, 0) + log(1 + t)."""
    _decay(x, t)
    np.log1p(t, out=t)
    np.maximum(x, 0, out=x)
    np.add(x, t, out=x)


def _mish(x: Array, h: Array, mask: Array, t: Array, n: Array) -> None:
    """x * tanh(log(1 + e^x)), where nothing cancels:

    x * n / (n + 2 t^2) with n = 1 + 2 t for x >= 0, x h * h n / (t n + 2) with n = t + 2 below.
    """
    above = _halfway(x, h, mask, t)
    np.add(t, 2, out=n)
    np.multiply(t, 2, out=n, where=above)
    np.add(n, 1, out=n, where=above)
    # The denominator is t n + 2 below; above it is 2 t t + n.
    np.multiply(x, n, out=x)
    np.multiply(t, t, out=t, where=above)
    np.multiply(t, 2, out=t, where=above)
    np.add(t, n, out=t, where=above)
    below = np.logical_not(above, out=above)
    np.multiply(t, n, out=t, where=below)
    np.add(t, 2, out=t, where=below)
    np.divide(h, t, out=t)
    np.multiply(x, t, out=x)


def _softsign(x: Array, t: Array, mask: Array) -> None:
    """x / (1 + |x|); the limit at infinity is its sign."""
    finite = np.isinf(x, out=mask.view(np.bool_)[: x.size])
    np.logical_not(finite, out=finite)
    np.abs(x, out=t)
    np.add(t, 1, out=t)
    np.divide(x, t, out=t)
    np.sign(x, out=x)
    np.copyto(x, t, where=finite)


_COMPOSED: dict[Operator, Callable[..., None]] = {
    Operator.SIGMOID: _sigmoid,
    Operator.SWISH: _swish,
    Operator.SOFT_PLUS: _softplus,
    Operator.MISH: _mish,
    Operator.SOFT_SIGN: _softsign,
}
# How many arrays as large as x each needs; a mask takes one.
_SPARES = {
    Operator.SIGMOID: 2,
    Operator.SWISH: 3,
    Operator.SOFT_PLUS: 1,
    Operator.MISH: 4,
    Operator.SOFT_SIGN: 2,
}


def add_scaled(
    value: Array, alpha: Any, plus: Array | None, beta: Any, operator: Operator, spare: Array
) -> None:
    """value = alpha * value [+ beta * op(plus)]; all are flat, ``plus`` is overwritten."""
    if alpha != 1:
        np.multiply(value, alpha, out=value, dtype=value.dtype, casting="unsafe")
    if plus is None:
        return
    apply_operator(operator, plus, spare)
    if beta != 1:
        np.multiply(plus, beta, out=plus, dtype=value.dtype, casting="unsafe")
    np.add(value, plus, out=value)
