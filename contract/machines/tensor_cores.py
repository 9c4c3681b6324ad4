"""Which arithmetic of the tensor cores serves a compute type.

An arithmetic serves where what it does to an input and to a sum is within what the compute type
promises, for every input: float32 is never rounded to a type of fewer exponents.
"""

from collections.abc import Collection

from contract.descriptors.compute_types import ComputeType
from contract.descriptors.operators import Operator
from contract.machines.gpu import Architecture
from contract.machines.gpu_kernels import Arithmetic

__all__ = ["arithmetic", "uses_tf32"]

TF32 = Arithmetic("Tf32<1>", 8, 1, "tf32", "tf32 tensor cores")
# Machine code for 9.0 has 360 instructions a warp for a step of 128 x 128 x 16 by 8 warps, 486 for
# three parts of bfloat16; four are issued a clock.
TF32X3 = Arithmetic("Tf32<2>", 8, 3, "tf32", "tf32 tensor cores, operands in 2 parts", issued=364)
F16 = Arithmetic("F16", 16, 1, "half", "float16 tensor cores")
BF16 = Arithmetic("Bf16<1>", 16, 1, "half", "bfloat16 tensor cores")
BF16X6 = Arithmetic(
    "Bf16<3>", 16, 6, "half", "bfloat16 tensor cores, operands in 3 parts", issued=270
)
INT8 = Arithmetic("Int8<signed char>", 32, 1, "int8", "8-bit tensor cores")
UINT8 = Arithmetic("Int8<unsigned char>", 32, 1, "int8", "8-bit tensor cores")
F64 = Arithmetic("F64<4>", 4, 1, "f64", "float64 tensor cores")
F64_WIDE = Arithmetic("F64<8>", 8, 1, "f64", "float64 tensor cores")

# float16 has 11 bits, as tf32 has, but too few exponents for what a float32 may hold; two parts of
# it would need the same range twice. Three parts of bfloat16 have all of float32, and the six of
# their nine products that are not below its roundoff are enough for both split types.
_SINGLE = {
    ComputeType.TF32: TF32,
    ComputeType.F16: TF32,
    ComputeType.BF16: BF16,
    ComputeType.TF32X3: TF32X3,
    ComputeType.F16X4: BF16X6,
    ComputeType.BF16X9: BF16X6,
}
# By the type of both factors, which are multiplied as they are: the arithmetic, and types of sums.
# Sums of 8-bit integers wrap around as any of up to 32 bits does.
_EXACT = {
    "float16": (F16, {"float32"}),
    "bfloat16": (BF16, {"float32"}),
    "int8": (INT8, {"int8", "int16", "int32"}),
    "uint8": (UINT8, {"uint8", "uint16", "uint32", "int16", "int32"}),
}
# Operators whose results have no more bits than what they are applied to.
_SAME_BITS = {Operator.IDENTITY, Operator.NEG, Operator.ABS, Operator.RELU, Operator.CONJ}
WIDE_FROM = 90  # the capability from which on there are instructions for larger steps of float64


def uses_tf32(dtype: str, compute: ComputeType) -> bool:
    """Whether ``compute`` is served by tf32 where sums are of ``dtype``."""
    return dtype in ("float32", "complex64") and _SINGLE.get(compute) in (TF32, TF32X3)


def arithmetic(
    types: Collection[str],
    dtype: str,
    compute: ComputeType | None,
    operators: Collection[Operator],
    architecture: Architecture,
) -> tuple[Arithmetic, ...]:
    """What may multiply factors of ``types`` with ``operators`` beside the CUDA cores.

    ``dtype`` is the type of sums, ``compute`` what is promised; below 8.0 nothing.
    """
    found = _arithmetic(types, dtype, compute, operators, architecture.capability)
    return tuple(each for each in found if each.rate != "tf32" or architecture.tf32)


def _arithmetic(
    types: Collection[str],
    dtype: str,
    compute: ComputeType | None,
    operators: Collection[Operator],
    capability: int,
) -> tuple[Arithmetic, ...]:
    if capability < 80:
        return ()
    if dtype in ("float64", "complex128"):
        return (F64_WIDE if capability >= WIDE_FROM else F64,)
    if dtype in ("float32", "complex64") and compute in _SINGLE:
        if len(set(types)) > 1 or not set(types) & {"float16", "bfloat16"}:
            return (_SINGLE[compute],)
    (common, *others) = set(types)
    exact, sums = _EXACT.get(common, (None, set()))
    if others or exact is None or dtype not in sums or not _SAME_BITS.issuperset(operators):
        return ()
    return (exact,)
