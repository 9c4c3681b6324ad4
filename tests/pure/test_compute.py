"""The tables of legal types, written down a second time, and what their rows promise."""

import pytest

from contract import ComputeType
from contract.descriptors import compute_types as compute
from contract.descriptors.compute_types import COMPUTE_TYPES, Family, rule
from contract.errors import UnsupportedTypeError

# (types){compute types}, the default first, as the documentation lists them.
PASSES = {
    "float16": "32F 16F",
    "bfloat16": "32F 16BF",
    "float32": "32F",
    "float64": "64F",
    "complex64": "32F",
    "complex128": "64F",
}
TABLES = {
    Family.CONTRACTION: {
        "float16": "32F 16F",
        "bfloat16": "32F 16BF",
        "float32": "32F TF32 3XTF32 16BF 16F 9X16BF 4X16F",
        "float64": "64F 32F 8XINT8",
        "complex64": "32F TF32 3XTF32 9X16BF 4X16F",
        "complex128": "64F 32F 8XINT8",
    },
    Family.REDUCTION: PASSES,
    Family.ELEMENTWISE: PASSES,
    Family.PERMUTATION: PASSES,
}
OTHER_TYPES = ("int8", "uint64", "bool", "float128", "object")


@pytest.mark.parametrize("family", Family)
def test_every_row_and_no_other_is_legal(family: Family) -> None:
    assert set(COMPUTE_TYPES[family]) == set(TABLES[family])
    for dtype, names in TABLES[family].items():
        legal = [ComputeType(name) for name in names.split()]
        assert rule(family, (dtype, dtype), dtype, None).compute is legal[0]
        for kind in ComputeType:
            if kind in legal:
                assert rule(family, (dtype, dtype), dtype, kind).compute is kind
                continue
            with pytest.raises(UnsupportedTypeError) as caught:
                rule(family, (dtype, dtype), dtype, kind)
            assert str(caught.value).endswith(f"supported: {', '.join(names.split())}.")


@pytest.mark.parametrize("dtype", OTHER_TYPES)
def test_other_types_compute_in_themselves(dtype: str) -> None:
    found = rule(Family.CONTRACTION, (dtype,), dtype, None)
    assert (found.compute, found.accumulator, found.scalar) == (None, dtype, dtype)
    with pytest.raises(UnsupportedTypeError, match="none"):
        rule(Family.CONTRACTION, (dtype,), dtype, ComputeType.F32)


@pytest.mark.parametrize(("real", "other"), [("float64", "complex128"), ("float32", "complex64")])
def test_real_times_complex_has_its_default_alone(real: str, other: str) -> None:
    default = {"complex128": ComputeType.F64, "complex64": ComputeType.F32}[other]
    for types in ((real, other), (other, real)):
        assert rule(Family.CONTRACTION, types, other, None).compute is default
        with pytest.raises(UnsupportedTypeError, match=f"supported: {default.value}"):
            rule(Family.CONTRACTION, types, other, ComputeType.TF32)


# dtype, compute type, family -> accumulator on the host, scalars, promised roundoffs.
PROMISES = [
    ("float16", "32F", Family.CONTRACTION, "float32", "float32", 0.0, 2.0**-24),
    ("float16", "16F", Family.CONTRACTION, "float32", "float32", 0.0, 2.0**-11),
    ("float16", "16F", Family.ELEMENTWISE, "float32", "float16", 0.0, 2.0**-11),
    ("float16", "16F", Family.PERMUTATION, "float32", "float16", 0.0, 2.0**-11),
    ("bfloat16", "16BF", Family.ELEMENTWISE, "float32", "bfloat16", 0.0, 2.0**-8),
    ("bfloat16", "16BF", Family.REDUCTION, "float32", "float32", 0.0, 2.0**-8),
    ("float32", "32F", Family.CONTRACTION, "float32", "float32", 0.0, 2.0**-24),
    ("float32", "TF32", Family.CONTRACTION, "float32", "float32", 2.0**-11, 2.0**-24),
    ("float32", "3XTF32", Family.CONTRACTION, "float32", "float32", 2.0**-21, 2.0**-24),
    ("float32", "4X16F", Family.CONTRACTION, "float32", "float32", 2.0**-22, 2.0**-24),
    ("float32", "16F", Family.CONTRACTION, "float32", "float32", 2.0**-11, 2.0**-24),
    ("float32", "16BF", Family.CONTRACTION, "float32", "float32", 2.0**-8, 2.0**-24),
    ("float32", "9X16BF", Family.CONTRACTION, "float32", "float32", 0.0, 2.0**-24),
    ("float64", "64F", Family.CONTRACTION, "float64", "float64", 0.0, 2.0**-53),
    ("float64", "32F", Family.CONTRACTION, "float64", "float64", 2.0**-24, 2.0**-24),
    ("float64", "8XINT8", Family.CONTRACTION, "float64", "float64", 0.0, 2.0**-53),
    ("complex64", "TF32", Family.CONTRACTION, "complex64", "complex64", 2.0**-11, 2.0**-24),
    ("complex128", "32F", Family.CONTRACTION, "complex128", "complex128", 2.0**-24, 2.0**-24),
]


@pytest.mark.parametrize("promise", PROMISES)
def test_promises(promise: tuple[str, str, Family, str, str, float, float]) -> None:
    dtype, kind, family, accumulator, scalar, input_roundoff, sum_roundoff = promise
    found = rule(family, (dtype,), dtype, ComputeType(kind))
    assert (found.accumulator, found.scalar) == (accumulator, scalar)
    assert (found.input_roundoff, found.sum_roundoff) == (input_roundoff, sum_roundoff)


@pytest.mark.parametrize(
    ("types", "wanted"),
    [
        (("float16", "float16"), "float16"),
        (("float16", "bfloat16"), "float32"),
        (("float16", "float32"), "float32"),
        (("float32", "float64"), "float64"),
        (("float16", "complex64"), "complex64"),
        (("float64", "complex64"), "complex128"),
        (("int32", "int32"), "int32"),
        (("int32", "float64"), None),
    ],
)
def test_common_types(types: tuple[str, ...], wanted: str | None) -> None:
    assert compute.promoted(types) == wanted
    assert compute.promoted(types[::-1]) == wanted
