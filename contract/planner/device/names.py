"""How data types and operators are called in the kernels' C++."""

from contract.descriptors.operators import BinaryOperator, Operator
from contract.errors import UnsupportedTypeError

__all__ = ["binary_name", "operator_name", "type_name"]

_TYPES = {
    "bool": "Bool",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned",
    "uint64": "unsigned long long",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "float",
    "float64": "double",
    "complex64": "Complex<float>",
    "complex128": "Complex<double>",
}


def type_name(dtype: str) -> str:
    """The C++ type of elements; UnsupportedTypeError for types a GPU has not."""
    if dtype not in _TYPES:
        raise UnsupportedTypeError(
            f"Data type {dtype} is not supported on a GPU; supported are {', '.join(_TYPES)}."
        )
    return _TYPES[dtype]


def operator_name(operator: Operator) -> str:
    return f"Operator::{operator.name}"


def binary_name(operator: BinaryOperator) -> str:
    return f"BinaryOperator::{operator.name}"
