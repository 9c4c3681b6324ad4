"""Compute types: which combinations of data types are legal, and what each promises.

A compute type is the minimum accuracy of a whole computation. The tables follow the
data-type tables of the cuTENSOR user guide; integers, bool and NumPy's extended types compute
in themselves and have no compute type.
"""

from enum import Enum

from contract.errors import UnsupportedTypeError

__all__ = [
    "ComputeType",
    "accumulator",
    "has_compute_type",
    "is_blas_type",
    "is_complex",
    "is_real_floating",
    "item_size",
    "resolve",
    "scalar_type",
    "unit_roundoff",
]


class ComputeType(Enum):
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


_SINGLE = (
    ComputeType.F32,
    ComputeType.TF32,
    ComputeType.TF32X3,
    ComputeType.BF16,
    ComputeType.F16,
    ComputeType.BF16X9,
    ComputeType.F16X4,
)
_COMPLEX_SINGLE = (
    ComputeType.F32,
    ComputeType.TF32,
    ComputeType.TF32X3,
    ComputeType.BF16X9,
    ComputeType.F16X4,
)
_DOUBLE = (ComputeType.F64, ComputeType.F32, ComputeType.INT8X8)

# Contractions: the first compute type of a row is the default.
CONTRACTION_TYPES: dict[str, tuple[ComputeType, ...]] = {
    "float16": (ComputeType.F32, ComputeType.F16),
    "bfloat16": (ComputeType.F32, ComputeType.BF16),
    "float32": _SINGLE,
    "float64": _DOUBLE,
    "complex64": _COMPLEX_SINGLE,
    "complex128": _DOUBLE,
}
MIXED_DOUBLE_TYPES = (ComputeType.F64,)  # float64 x complex128

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
_UNIT_ROUNDOFFS = {
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float32": 2.0**-24,
    "float64": 2.0**-53,
    "complex64": 2.0**-24,
    "complex128": 2.0**-53,
}
_BLAS_TYPES = frozenset({"float32", "float64", "complex64", "complex128"})
_COMPLEX_TYPES = frozenset({"complex64", "complex128", "complex192", "complex256"})
_REAL_FLOATING_TYPES = frozenset(
    {"float16", "bfloat16", "float32", "float64", "float96", "float128"}
)


def item_size(dtype: str) -> int:
    """Bytes of one element; UnsupportedTypeError names the supported types otherwise."""
    if dtype not in _ITEM_SIZES:
        raise UnsupportedTypeError(
            f"Data type {dtype!r} is not supported; supported are {', '.join(_ITEM_SIZES)}."
        )
    return _ITEM_SIZES[dtype]


def is_complex(dtype: str) -> bool:
    """Whether elements of the type have an imaginary part."""
    return dtype in _COMPLEX_TYPES


def is_real_floating(dtype: str) -> bool:
    """Whether the type is a real floating-point type."""
    return dtype in _REAL_FLOATING_TYPES


def is_blas_type(dtype: str) -> bool:
    """Whether BLAS multiplies matrices of the type."""
    return dtype in _BLAS_TYPES


def has_compute_type(dtype: str) -> bool:
    """Whether results of the type are governed by a compute type."""
    return dtype in CONTRACTION_TYPES


def unit_roundoff(dtype: str) -> float:
    """u = 2^-p of a floating-point type with p significant bits."""
    return _UNIT_ROUNDOFFS[dtype]


def accumulator(dtype: str) -> str:
    """The type in which sums that end in ``dtype`` are kept on the host.

    16-bit floating-point types accumulate in float32 and round once; every other type
    accumulates in itself, which no compute type of its row exceeds in accuracy.
    """
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def resolve(inputs: tuple[str, ...], output: str, requested: ComputeType | None) -> str | None:
    """The compute type's name for these types, or None where types compute in themselves.

    ``requested=None`` takes the default of the row. A row the tables do not have raises
    UnsupportedTypeError with the compute types that are supported.
    """
    legal = CONTRACTION_TYPES.get(output, ())
    if output == "complex128" and "float64" in inputs:
        legal = MIXED_DOUBLE_TYPES
    if requested is None:
        return legal[0].value if legal else None
    if requested not in legal:
        supported = ", ".join(kind.value for kind in legal) or "none (it computes in itself)"
        raise UnsupportedTypeError(
            f"Compute type {requested.value} is not supported for {' x '.join(inputs)} -> "
            f"{output}; supported: {supported}."
        )
    return requested.value


def scalar_type(output: str) -> str:
    """The type of alpha and beta of a contraction into ``output``."""
    return accumulator(output)
