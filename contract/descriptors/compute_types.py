"""Compute types: which combinations of data types are legal, and what each promises.

A compute type is the minimum accuracy of a whole computation. The tables follow the data-type
tables of the cuTENSOR user guide. Integers, bool and NumPy's extended types are beyond them:
they compute in themselves and have no compute type.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from numbers import Number, Real
from typing import Any, NamedTuple

from contract.errors import UnsupportedTypeError
from contract.support.choices import Choice
from contract.support.text import shown

__all__ = [
    "COMPUTE_TYPES",
    "DATA_TYPES",
    "ComputeType",
    "Family",
    "Rule",
    "accumulator",
    "has_compute_type",
    "holds",
    "is_blas_type",
    "is_complex",
    "is_real_floating",
    "item_size",
    "promoted",
    "real_of",
    "rule",
    "unit_roundoff",
]


class ComputeType(Choice):
    """Minimum accuracy of a computation; the values are cuTENSOR's names."""

    F16 = "16F"
    BF16 = "16BF"
    TF32 = "TF32"
    TF32X3 = "3XTF32"
    BF16X9 = "9X16BF"
    F16X4 = "4X16F"
    F32 = "32F"
    F64 = "64F"
    INT8X8 = "8XINT8"


class Family(Choice):
    """Operations that share a table of legal types."""

    CONTRACTION = "contraction"
    REDUCTION = "reduction"
    ELEMENTWISE = "elementwise operation"
    PERMUTATION = "permutation"


_DOUBLE = (ComputeType.F64, ComputeType.F32, ComputeType.INT8X8)
_PASS: Mapping[str, tuple[ComputeType, ...]] = {
    "float16": (ComputeType.F32, ComputeType.F16),
    "bfloat16": (ComputeType.F32, ComputeType.BF16),
    "float32": (ComputeType.F32,),
    "float64": (ComputeType.F64,),
    "complex64": (ComputeType.F32,),
    "complex128": (ComputeType.F64,),
}

# Compute types by the type the operands have in common; the first of a row is the default. A
# real operand beside a complex one, and an operand beside a wider one, take the common type's
# row: that covers cuTENSOR's mixed rows. Real times complex has the default alone.
COMPUTE_TYPES: Mapping[Family, Mapping[str, tuple[ComputeType, ...]]] = {
    Family.CONTRACTION: {
        "float16": (ComputeType.F32, ComputeType.F16),
        "bfloat16": (ComputeType.F32, ComputeType.BF16),
        "float32": (
            ComputeType.F32,
            ComputeType.TF32,
            ComputeType.TF32X3,
            ComputeType.BF16,
            ComputeType.F16,
            ComputeType.BF16X9,
            ComputeType.F16X4,
        ),
        "float64": _DOUBLE,
        "complex64": (
            ComputeType.F32,
            ComputeType.TF32,
            ComputeType.TF32X3,
            ComputeType.BF16X9,
            ComputeType.F16X4,
        ),
        "complex128": _DOUBLE,
    },
    Family.REDUCTION: _PASS,
    Family.ELEMENTWISE: _PASS,
    Family.PERMUTATION: _PASS,
}

_SIGNIFICAND_BITS = {
    "float16": 11,
    "bfloat16": 8,
    "float32": 24,
    "float64": 53,
    "complex64": 24,
    "complex128": 53,
}
# The unit roundoff to which a compute type may round an input. Split types keep the leading
# parts of it: two of tf32 lose their product of low parts, two of float16 and three of bfloat16
# only what no part holds.
_INPUT_ROUNDOFF = {
    ComputeType.F16: 2.0**-11,
    ComputeType.BF16: 2.0**-8,
    ComputeType.TF32: 2.0**-11,
    ComputeType.TF32X3: 2.0**-21,
    ComputeType.F16X4: 2.0**-22,
    ComputeType.BF16X9: 2.0**-24,
    ComputeType.F32: 2.0**-24,
    ComputeType.F64: 2.0**-53,
    ComputeType.INT8X8: 2.0**-53,
}
_COMPUTED_IN_HALF = {ComputeType.F16: "float16", ComputeType.BF16: "bfloat16"}

_ITEM_SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float96": 12,
    "float128": 16,
    "complex64": 8,
    "complex128": 16,
    "complex192": 24,
    "complex256": 32,
    "object": 8,
}
DATA_TYPES = frozenset(_ITEM_SIZES)
_BLAS_TYPES = frozenset({"float32", "float64", "complex64", "complex128"})
_REAL_OF = {
    "complex64": "float32",
    "complex128": "float64",
    "complex192": "float96",
    "complex256": "float128",
}
_REAL_FLOATING_TYPES = frozenset(
    {"float16", "bfloat16", "float32", "float64", "float96", "float128"}
)


def item_size(dtype: str) -> int:
    """Bytes of one element; UnsupportedTypeError names the supported types otherwise."""
    try:
        return _ITEM_SIZES[dtype]
    except (KeyError, TypeError):  # a NumPy type may have no hash
        raise UnsupportedTypeError(
            f"Data type {shown(dtype)} is not supported; supported are {', '.join(_ITEM_SIZES)}."
        ) from None


def is_complex(dtype: str) -> bool:
    """Whether elements of the type have an imaginary part."""
    return dtype in _REAL_OF


def real_of(dtype: str) -> str:
    """The type of the parts of complex numbers; any other type is its own."""
    return _REAL_OF.get(dtype, dtype)


def is_real_floating(dtype: str) -> bool:
    """Whether the type is a real floating-point type."""
    return dtype in _REAL_FLOATING_TYPES


def is_blas_type(dtype: str) -> bool:
    """Whether BLAS multiplies matrices of the type."""
    return dtype in _BLAS_TYPES


def holds(dtype: str, value: Any) -> bool:
    """Whether a number can be stored as ``dtype`` without losing more than precision."""
    if not isinstance(value, Number):
        return False
    number: Any = value
    if is_complex(dtype) or dtype == "object":
        return True
    if not isinstance(value, Real):
        return bool(number.imag == 0) and holds(dtype, number.real)
    if is_real_floating(dtype):
        return True
    bits = 8 * item_size(dtype)
    signed = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    low, high = {"b": (0, 1), "u": (0, 2**bits - 1)}.get(dtype[0], signed)
    return bool(low <= number <= high) and bool(number == int(number))


def has_compute_type(dtype: str) -> bool:
    """Whether results of the type are governed by a compute type."""
    return dtype in _SIGNIFICAND_BITS


def unit_roundoff(dtype: str) -> float:
    """u = 2^-p of a floating-point type with p significant bits."""
    return 2.0 ** -_SIGNIFICAND_BITS[dtype]


def accumulator(dtype: str) -> str:
    """The type in which the host computes what ends in ``dtype``.

    16-bit floating-point types are computed in float32 and rounded once; every other type in
    itself.
    """
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def promoted(types: Iterable[str]) -> str | None:
    """The smallest of the tables' types that holds all of ``types``, None if there is none.

    Types beyond the tables have none but themselves.
    """
    distinct = sorted(set(types))
    if len(distinct) == 1:
        return distinct[0]
    if not all(has_compute_type(dtype) for dtype in distinct):
        return None
    double = any(_SIGNIFICAND_BITS[dtype] == 53 for dtype in distinct)
    if any(is_complex(dtype) for dtype in distinct):
        return "complex128" if double else "complex64"
    return "float64" if double else "float32"


class Rule(NamedTuple):
    """One legal row: what a computation promises, and in which types the host keeps it.

    ``accumulator`` holds products and sums, ``scalar`` alpha, beta and gamma. The promise:
    an input may be rounded to ``input_roundoff`` (0: not below its own), a sum of k terms adds
    (k + 2) ``sum_roundoff``. Both are None where the type computes in itself.
    """

    compute: ComputeType | None
    accumulator: str
    scalar: str
    input_roundoff: float | None = None
    sum_roundoff: float | None = None


@lru_cache(maxsize=256)  # a function of its arguments alone
def rule(family: Family, types: tuple[str, ...], dtype: str, requested: ComputeType | None) -> Rule:
    """The row for operands of ``types`` computed in ``dtype``; ``requested=None``: its default.

    A row the tables do not have raises UnsupportedTypeError with the compute types that are
    supported.
    """
    legal = COMPUTE_TYPES[family].get(dtype, ())
    if len({is_complex(each) for each in (*types, dtype)}) == 2:
        legal = legal[:1]
    if requested is not None and requested not in legal:
        supported = ", ".join(kind.value for kind in legal) or "none (the type computes in itself)"
        raise UnsupportedTypeError(
            f"Compute type {requested.value} is not supported for {' x '.join(types)} "
            f"({family.value} in {dtype}); supported: {supported}."
        )
    if not legal:
        return Rule(None, dtype, dtype)
    return _promise(family, dtype, legal[0] if requested is None else requested)


def _promise(family: Family, dtype: str, compute: ComputeType) -> Rule:
    """What a legal row promises.

    The host computes in the type itself, 16-bit types in float32: at least what any row asks.
    """
    own = accumulator(dtype)
    half = _COMPUTED_IN_HALF.get(compute)
    scalar = own
    if half is not None and family in (Family.ELEMENTWISE, Family.PERMUTATION):
        scalar = half
    promised = unit_roundoff(dtype if half == dtype else own)
    if compute is ComputeType.F32:
        promised = unit_roundoff("float32")
    rounded = _INPUT_ROUNDOFF[compute]
    return Rule(compute, own, scalar, rounded if rounded > unit_roundoff(dtype) else 0.0, promised)
