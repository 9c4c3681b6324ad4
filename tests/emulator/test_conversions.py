"""cvt between every two types, on hand-written PTX, against NumPy."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from .cases import DTYPES, Case, case, module_of, run, values
from .device import Device, Module

Array = np.ndarray[Any, Any]

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "bf16", "f32", "f64")


def wrap(kind: str) -> Callable[[Array], Array]:
    """The low bits."""
    return lambda x: x.astype(DTYPES[kind])


def saturate(kind: str) -> Callable[[Array], Array]:
    """To the nearest value of an integer type."""
    limits = np.iinfo(DTYPES[kind])
    return lambda x: np.array([min(max(int(v), limits.min), limits.max) for v in x], limits.dtype)


def truncate(kind: str, source: str) -> Callable[[Array], Array]:
    """Towards zero, clamped; NaN gives 0, or the highest bit alone where 64 bits are involved."""
    limits = np.iinfo(DTYPES[kind])
    wide = source == "f64" or limits.bits == 64
    nan = (limits.min or 1 << (limits.bits - 1)) if wide else 0

    def one(x: float) -> int:
        if np.isnan(x):
            return nan
        return int(min(max(x, limits.min), limits.max)) if abs(x) < 2.0**63 else _end(x, limits)

    return lambda x: np.array([one(float(v)) for v in x], limits.dtype)


def _end(x: float, limits: Any) -> int:
    return int(limits.max if x > 0 else limits.min)


def rounded(kind: str) -> Callable[[Array], Array]:
    """To the nearest value of a floating-point type, once: ml_dtypes goes through float32."""

    def to_bf16(x: Array) -> Array:
        fraction, exponent = np.frexp(x.astype("f8"))
        return np.ldexp(np.rint(fraction * 256), exponent - 8).astype("f4")

    return (lambda x: to_bf16(x).astype(ml_dtypes.bfloat16)) if kind == "bf16" else wrap(kind)


def clips(kind: str, source: str) -> bool:
    """Whether a value may be outside of the type; ptxas refuses .sat where none is."""
    target, given = np.iinfo(DTYPES[kind]), np.iinfo(DTYPES[source])
    return bool(given.min < target.min or given.max > target.max)


def assembles(one: str, other: str) -> bool:
    """ptxas of CUDA 13 converts no 8-bit integers to or from bf16."""
    return {one, other} not in ({"u8", "bf16"}, {"s8", "bf16"})


def _cases() -> Iterator[Case]:
    for source in INTEGERS:
        for kind in INTEGERS:
            yield case(f"cvt.{kind}.{source}", kind, source, wrap(kind))
            if clips(kind, source):
                yield case(f"cvt.sat.{kind}.{source}", kind, source, saturate(kind))
        for kind in filter(partial(assembles, source), FLOATS):
            yield case(f"cvt.rn.{kind}.{source}", kind, source, rounded(kind))
    for source in FLOATS:
        for kind in filter(partial(assembles, source), INTEGERS):
            yield case(f"cvt.rzi.{kind}.{source}", kind, source, truncate(kind, source))
    for kind, source in (("f16", "f32"), ("f16", "f64"), ("bf16", "f32"), ("f32", "f64")):
        yield case(f"cvt.rn.{kind}.{source}", kind, source, rounded(kind))
    for kind, source in (("f32", "f16"), ("f64", "f16"), ("f32", "bf16"), ("f64", "f32")):
        yield case(f"cvt.{kind}.{source}", kind, source, wrap(kind))


CASES = list(_cases())


@pytest.fixture(scope="module")
def module(device: Device) -> Module:
    """All cases, built together."""
    return module_of(device, CASES)


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda i: CASES[i].opcode)
def test_conversion(device: Device, module: Module, index: int, rng: np.random.Generator) -> None:
    each = CASES[index]
    inputs = values(each.sources[0], rng)
    got = run(device, module, index, each, [inputs])
    with np.errstate(all="ignore"):
        expected = each.expect(inputs)
    if got.dtype.kind in "ui":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_array_equal(got.astype("f8"), expected.astype("f8"))
