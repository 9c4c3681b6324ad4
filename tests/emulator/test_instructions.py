"""Every family of instructions against NumPy, on hand-written PTX."""

import operator
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from .cases import Case, case, module_of, run, values
from .device import Device, Module

Array = np.ndarray[Any, Any]


def clamp(x: Array, kind: Any) -> Array:
    """To the range of an integer type; NaN to 0, or to the lowest where 64 bits are involved."""
    limits = np.iinfo(kind)
    whole = np.nan_to_num(x.astype(np.float64), posinf=2.0**80, neginf=-(2.0**80))
    inside = np.clip(whole, float(limits.min), np.nextafter(2.0**limits.bits, 0))
    high = whole >= float(limits.max)
    wide = 64 in (limits.bits, x.dtype.itemsize * 8)
    finite = np.where(high, limits.max, np.where(high, 0, inside).astype(kind)).astype(kind)
    return np.where(np.isnan(x) & wide, limits.min, finite).astype(kind)


def flush(x: Array) -> Array:
    """Subnormal f32 to zero."""
    return np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x).astype(np.float32)


def shift(x: Array, n: Array, left: bool) -> Array:
    """Shift counts beyond the width give 0 or the sign."""
    bits = x.dtype.itemsize * 8
    inside = np.minimum(n, bits - 1).astype(x.dtype)
    if left:
        return np.where(n < bits, x << inside, 0).astype(x.dtype)
    return np.where(n < bits, x >> inside, np.where(x < 0, -1, 0).astype(x.dtype))


def permute(x: Array, y: Array, selector: Array) -> Array:
    """prmt, byte by byte."""
    result = np.zeros_like(x)
    for i in range(len(x)):
        pool = [*int(x[i]).to_bytes(4, "little"), *int(y[i]).to_bytes(4, "little")]
        for j in range(4):
            choice = int(selector[i]) >> (4 * j) & 15
            byte = pool[choice & 7]
            byte = (255 if byte & 128 else 0) if choice & 8 else byte
            result[i] |= np.uint32(byte << 8 * j)
    return result


def halves(f: Any, kind: Any) -> Any:
    """Apply f to each pair of 16-bit lanes, in float."""

    def both(*columns: Array) -> Array:
        lanes = [column.view(kind).astype(np.float64) for column in columns]
        rounded: Array = f(*lanes).astype(kind)
        return rounded.view(np.uint32)

    return both


def extract(x: Array, position: Array, length: Array) -> Array:
    """bfe, in Python's integers, whose sign goes on for ever."""
    bits, signed, result = x.dtype.itemsize * 8, x.dtype.kind == "i", []
    for value, p, n in zip(x.tolist(), position & 255, length & 255, strict=True):
        field = value >> int(p) & ((1 << int(n)) - 1)
        negative = signed and n and value >> int(p + n - 1) & 1
        result.append((field - (1 << int(n)) * bool(negative)) % 2**bits)
    return np.array(result, f"u{bits // 8}").view(x.dtype)


def unit(x: Array) -> Array:
    """.sat: to [0, 1], NaN and -0 to +0."""
    clipped: Array = np.clip(np.nan_to_num(x, nan=0, posinf=1, neginf=0), 0, 1)
    clipped += x.dtype.type(0)
    return clipped


def pair(kind: Any) -> Any:
    """Two floats as the halves of a register, the first one high; NaN is 0x7fff."""

    def both(x: Array, y: Array) -> Array:
        high, low = (np.where(np.isnan(v), 0x7FFF, v.astype(kind).view("u2")) for v in (x, y))
        joined: Array = high.astype("u4") << np.uint32(16) | low.astype("u4")
        return joined

    return both


def high(x: Array, y: Array) -> Array:
    """The upper half of a product of 64-bit integers."""
    both = zip(x.tolist(), y.tolist(), strict=True)
    return np.array([a * b >> 64 for a, b in both], x.dtype)


def towards_zero(name: str) -> Any:
    """An operation whose result is cut: by exact fractions where it is finite."""
    exact = {"add": operator.add, "mul": operator.mul, "div": operator.truediv}[name]

    def each(x: float, y: float, rounded: float) -> float:
        if not np.isfinite([x, y, rounded]).all() or not rounded:
            return rounded
        over = abs(Fraction(rounded)) > abs(exact(Fraction(x), Fraction(y)))
        return float(np.nextafter(rounded, 0)) if over else rounded

    def cut(x: Array, y: Array) -> Array:
        columns = zip(x.tolist(), y.tolist(), exact(x, y).tolist(), strict=True)
        return np.array([each(*row) for row in columns])

    return cut


BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(0)

WHOLE = ("u16", "s16", "u32", "s32", "u64", "s64")
HALVES = ("f16", "bf16")

INTEGERS = [
    *(case(f"add.{t}", t, f"{t} {t}", lambda x, y: x + y) for t in ("u16", "s32", "u64")),
    *(case(f"sub.{t}", t, f"{t} {t}", lambda x, y: x - y) for t in ("s16", "u32", "s64")),
    *(case(f"mul.lo.{t}", t, f"{t} {t}", lambda x, y: x * y) for t in ("u16", "s32", "s64")),
    case("mul.wide.s32", "s64", "s32 s32", lambda x, y: x.astype("i8") * y),
    case("mul.wide.u16", "u32", "u16 u16", lambda x, y: x.astype("u4") * y),
    case("mul.hi.u32", "u32", "u32 u32", lambda x, y: x.astype("u8") * y >> np.uint64(32)),
    case("mul.hi.u64", "u64", "u64 u64", lambda x, y: high(x, y)),
    case("mul.hi.s64", "s64", "s64 s64", lambda x, y: high(x, y)),
    case("mad.wide.s32", "s64", "s32 s32 s64", lambda x, y, z: x.astype("i8") * y + z),
    case("sad.u32", "u32", "u32 u32 u32", lambda x, y, z: np.maximum(x, y) - np.minimum(x, y) + z),
    case("mul.hi.s32", "s32", "s32 s32", lambda x, y: x.astype("i8") * y >> 32),
    case("mad.lo.s32", "s32", "s32 s32 s32", lambda x, y, z: x * y + z),
    case("mad.wide.u32", "u64", "u32 u32 u64", lambda x, y, z: x.astype("u8") * y + z),
    case(
        "add.sat.s32",
        "s32",
        "s32 s32",
        lambda x, y: np.clip(x.astype("i8") + y, -(2**31), 2**31 - 1),
    ),
    *(case(f"min.{t}", t, f"{t} {t}", np.minimum) for t in WHOLE),
    *(case(f"max.{t}", t, f"{t} {t}", np.maximum) for t in WHOLE),
    case("neg.s32", "s32", "s32", lambda x: -x),
    case("abs.s64", "s64", "s64", np.abs),
    case("div.u32", "u32", "u32", lambda x: x // 7, ", 7"),
    case("rem.u64", "u64", "u64", lambda x: x % 10, ", 10"),
    case("div.s32", "s32", "s32", lambda x: np.trunc(x / 7.0), ", 7"),
    case("rem.s32", "s32", "s32", lambda x: np.fmod(x, 7), ", 7"),
    case(
        "dp4a.s32.s32",
        "s32",
        "s32 s32 s32",
        lambda x, y, z: (
            (x.view("i1").reshape(-1, 4).astype("i4") * y.view("i1").reshape(-1, 4)).sum(1) + z
        ),
    ),
]

LOGIC = [
    case("and.b32", "b32", "b32 b32", lambda x, y: x & y),
    case("or.b64", "b64", "b64 b64", lambda x, y: x | y),
    case("xor.b16", "b16", "b16 b16", lambda x, y: x ^ y),
    case("not.b32", "b32", "b32", lambda x: ~x),
    case("and.pred", "pred", "pred pred", lambda x, y: x & y),
    case("xor.pred", "pred", "pred pred", lambda x, y: x ^ y),
    case("not.pred", "pred", "pred", lambda x: 1 - x),
    case("shl.b32", "b32", "b32 u32", lambda x, n: shift(x, n, True)),
    case("shl.b64", "b64", "b64 u32", lambda x, n: shift(x, n, True)),
    case("shr.u32", "u32", "u32 u32", lambda x, n: shift(x, n, False)),
    case("shr.s64", "s64", "s64 u32", lambda x, n: shift(x, n, False)),
    case(
        "shf.l.wrap.b32",
        "b32",
        "b32 b32",
        lambda x, y: y << np.uint32(5) | x >> np.uint32(27),
        ", 37",
    ),
    case("shf.r.clamp.b32", "b32", "b32 b32", lambda x, y: y, ", 40"),
    case("popc.b64", "u32", "b64", np.bitwise_count),
    case("clz.b32", "u32", "b32", lambda x: [32 - int(v).bit_length() for v in x]),
    case("brev.b32", "b32", "b32", lambda x: [int(f"{v:032b}"[::-1], 2) for v in x]),
    case(
        "bfind.shiftamt.u32",
        "u32",
        "u32",
        lambda x: [32 - int(v).bit_length() if v else 2**32 - 1 for v in x],
    ),
    case("bfind.u32", "u32", "u32", lambda x: [(int(v).bit_length() - 1) % 2**32 for v in x]),
    case("bfe.u32", "u32", "u32 u32 u32", extract),
    case("bfe.s32", "s32", "s32 u32 u32", extract),
    case("bfe.u64", "u64", "u64 byte byte", extract),  # of more an H100 takes not the low bits
    case(
        "bfi.b32",
        "b32",
        "b32 b32",
        lambda x, y: y & ~np.uint32(0xFF0) | x << np.uint32(4) & np.uint32(0xFF0),
        ", 4, 8",
    ),
    case("prmt.b32", "b32", "b32 b32 b32", permute),
    case("lop3.b32", "b32", "b32 b32 b32", lambda x, y, z: x & y | ~x & z, ", 0xCA"),
    *(
        case(f"selp.{t}", t, f"{t} {t} pred", lambda x, y, p: np.where(p, x, y))
        for t in ("b16", "b32", "b64", "f32", "f64", *WHOLE)
    ),
    case("slct.f32.s32", "f32", "f32 f32 s32", lambda x, y, s: np.where(s >= 0, x, y)),
]

COMPARISONS = [
    *(
        case(f"setp.{name}.{t}", "pred", f"{t} {t}", compare)
        for t in (*WHOLE, *HALVES, "f64")
        for name, compare in (("lt", operator.lt), ("eq", operator.eq))
    ),
    case("setp.hi.u32", "pred", "u32 u32", lambda x, y: x > y),
    case("setp.ge.u64", "pred", "u64 u64", lambda x, y: x >= y),
    case("setp.ne.b16", "pred", "b16 b16", lambda x, y: x != y),
    case("setp.eq.and.s32", "pred", "s32 s32 pred", lambda x, y, p: (x == y) & (p == 1)),
    case("setp.lt.f32", "pred", "f32 f32", lambda x, y: x < y),
    case("setp.ne.f32", "pred", "f32 f32", lambda x, y: (x < y) | (x > y)),
    case("setp.neu.f32", "pred", "f32 f32", lambda x, y: x != y),
    case("setp.equ.f64", "pred", "f64 f64", lambda x, y: ~((x < y) | (x > y))),
    case("setp.gtu.f64", "pred", "f64 f64", lambda x, y: ~(x <= y)),
    case("setp.nan.f32", "pred", "f32 f32", lambda x, y: np.isnan(x) | np.isnan(y)),
    case("setp.num.f16", "pred", "f16 f16", lambda x, y: ~(np.isnan(x) | np.isnan(y))),
    case("testp.finite.f32", "pred", "f32", np.isfinite),
]

FLOATS = [
    *(case(f"add.{t}", t, f"{t} {t}", lambda x, y: x + y) for t in ("f32", "f64", "f16", "bf16")),
    *(case(f"mul.rn.{t}", t, f"{t} {t}", lambda x, y: x * y) for t in ("f32", "f64", "f16")),
    case("sub.ftz.f32", "f32", "f32 f32", lambda x, y: flush(flush(x) - flush(y))),
    case("mul.ftz.f32", "f32", "f32", lambda x: flush(x * np.float32(2.0**-125)), ", 0f01000000"),
    case("add.sat.f32", "f32", "f32 f32", lambda x, y: unit(x + y)),
    case(
        "add.rz.f32",
        "f32",
        "f32",
        lambda x: np.where(x.astype("f8") == 0, np.float32(2**-30), x),
        ", 0f30800000",
        1e-6,
    ),
    case("fma.rn.f64", "f64", "f64 f64 f64", lambda x, y, z: x * y + z, tolerance=1e-12),
    case(
        "fma.rn.f32", "f32", "f32 f32 f32", lambda x, y, z: x.astype("f8") * y + z, tolerance=1e-7
    ),
    case("div.rn.f32", "f32", "f32 f32", lambda x, y: x / y),
    case("div.rn.f64", "f64", "f64 f64", lambda x, y: x / y),
    case("rcp.rn.f32", "f32", "f32", lambda x: np.float32(1) / x),
    case("sqrt.rn.f64", "f64", "f64", np.sqrt),
    case("sqrt.approx.f32", "f32", "f32", np.sqrt, tolerance=1e-6),
    case("rsqrt.approx.f32", "f32", "f32", lambda x: 1 / np.sqrt(x), tolerance=1e-6),
    case("ex2.approx.ftz.f32", "f32", "f32", lambda x: flush(np.exp2(flush(x))), tolerance=1e-5),
    case("lg2.approx.f32", "f32", "f32", np.log2, tolerance=1e-5),
    case("sin.approx.f32", "f32", "f32", np.sin, tolerance=1e-4),  # of angles far beyond pi
    case("cos.approx.f32", "f32", "f32", np.cos, tolerance=1e-4),
    *(case(f"min.{t}", t, f"{t} {t}", np.fmin) for t in ("f32", "f64", *HALVES)),
    *(case(f"max.{t}", t, f"{t} {t}", np.fmax) for t in ("f32", "f64", *HALVES)),
    *(case(f"min.NaN.{t}", t, f"{t} {t}", np.minimum) for t in ("f32", *HALVES)),
    *(case(f"max.NaN.{t}", t, f"{t} {t}", np.maximum) for t in ("f32", *HALVES)),
    case("div.full.f32", "f32", "f32 f32", lambda x, y: x / y, tolerance=1e-6),
    case("div.approx.ftz.f32", "f32", "f32 f32", lambda x, y: flush(x / y), tolerance=1e-6),
    case("tanh.approx.f32", "f32", "f32", np.tanh, tolerance=2.0**-11),
    *(case(f"tanh.approx.{t}", t, t, np.tanh, tolerance=1e-2) for t in HALVES),
    case("ex2.approx.f16", "f16", "f16", np.exp2, tolerance=1e-3),
    case("ex2.approx.ftz.bf16", "bf16", "bf16", np.exp2, tolerance=1e-2),
    *(case(f"{op}.rz.f64", "f64", "f64 f64", towards_zero(op)) for op in ("add", "mul", "div")),
    case("neg.f32", "f32", "f32", lambda x: -x),
    case("abs.f64", "f64", "f64", np.abs),
    case("copysign.f32", "f32", "f32 f32", lambda x, y: np.copysign(y, x)),
    case("add.f16x2", "f16x2", "f16x2 f16x2", halves(lambda x, y: x + y, np.float16)),
    case(
        "fma.rn.f16x2", "f16x2", "f16x2 f16x2 f16x2", halves(lambda x, y, z: x * y + z, np.float16)
    ),
    case(
        "fma.rn.bf16x2", "bf16x2", "bf16x2 bf16x2 bf16x2", halves(lambda x, y, z: x * y + z, BF16)
    ),
    case("min.NaN.f16x2", "f16x2", "f16x2 f16x2", halves(np.minimum, np.float16)),
    case("max.bf16x2", "bf16x2", "bf16x2 bf16x2", halves(np.maximum, BF16)),
]

CONVERSIONS = [
    case("cvt.u64.u32", "u64", "u32", lambda x: x),
    case("cvt.s64.s32", "s64", "s32", lambda x: x),
    case("cvt.s32.s8", "s32", "s8", lambda x: x),
    case("cvt.u16.u32", "u16", "u32", lambda x: x.astype("u2")),
    case("cvt.sat.s16.s32", "s16", "s32", lambda x: np.clip(x, -(2**15), 2**15 - 1)),
    case("cvt.sat.u8.s32", "u8", "s32", lambda x: np.clip(x, 0, 255)),
    case("cvt.rn.f32.s32", "f32", "s32", lambda x: x.astype("f4")),
    case("cvt.rn.f32.u64", "f32", "u64", lambda x: x.astype("f4")),
    case("cvt.rn.f64.s64", "f64", "s64", lambda x: x.astype("f8")),
    case("cvt.rn.f16.s32", "f16", "s32", lambda x: x.astype("f8").astype("f2")),
    case("cvt.rzi.s32.f32", "s32", "f32", lambda x: clamp(np.trunc(x), np.int32)),
    case("cvt.rni.s32.f64", "s32", "f64", lambda x: clamp(np.rint(x), np.int32)),
    case("cvt.rmi.s64.f32", "s64", "f32", lambda x: clamp(np.floor(x), np.int64)),
    case("cvt.rzi.u32.f32", "u32", "f32", lambda x: clamp(np.trunc(x), np.uint32)),
    case("cvt.rni.f32.f32", "f32", "f32", np.rint),
    case("cvt.rpi.f64.f64", "f64", "f64", np.ceil),
    case("cvt.f64.f32", "f64", "f32", lambda x: x.astype("f8")),
    case("cvt.rn.f32.f64", "f32", "f64", lambda x: x.astype("f4")),
    case(
        "cvt.rz.f32.f64",
        "f32",
        "f64",
        lambda x: np.where(
            np.abs(x.astype("f4")) > np.abs(x),
            np.nextafter(x.astype("f4"), np.float32(0)),
            x.astype("f4"),
        ),
    ),
    case("cvt.f32.f16", "f32", "f16", lambda x: x.astype("f4")),
    case("cvt.rn.f16.f32", "f16", "f32", lambda x: x.astype("f2")),
    case("cvt.rn.f16.f64", "f16", "f64", lambda x: x.astype("f2")),
    case("cvt.rn.bf16.f32", "bf16", "f32", lambda x: x.astype(BF16)),
    case("cvt.f32.bf16", "f32", "bf16", lambda x: x.astype("f4")),
    case("cvt.sat.f32.f32", "f32", "f32", unit),
    case("cvt.rn.f16x2.f32", "f16x2", "f32 f32", pair(np.float16)),
    case("cvt.rn.bf16x2.f32", "bf16x2", "f32 f32", pair(BF16)),
    case("mov.b32", "b32", "f32", lambda x: x.view("u4")),
    case("mov.b64", "f64", "b64", lambda x: x.view("f8")),
]

CASES = [*INTEGERS, *LOGIC, *COMPARISONS, *FLOATS, *CONVERSIONS]


@pytest.fixture(scope="module")
def module(device: Device) -> Module:
    """All cases, built together."""
    return module_of(device, CASES)


def _same(got: Array, expected: Array, tolerance: float) -> Any:
    """Equal bits, any NaN being as good as another, or within a tolerance."""
    if got.dtype.kind in "ui":
        return got == expected
    got, expected = got.astype("f8"), expected.astype("f8")
    close = np.abs(got - expected) <= tolerance * np.maximum(np.abs(expected), 1)
    equal = (got == expected) & ((np.signbit(got) == np.signbit(expected)) | (tolerance > 0))
    return equal | close * (tolerance > 0) | (np.isnan(got) & np.isnan(expected))


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda i: CASES[i].opcode)
def test_instruction_agrees_with_numpy(
    device: Device, module: Module, index: int, rng: np.random.Generator
) -> None:
    each: Case = CASES[index]
    inputs = [values(kind, rng) for kind in each.sources]
    got = run(device, module, index, each, inputs)
    with np.errstate(all="ignore"):
        expected = np.asarray(each.expect(*inputs)).astype(got.dtype)
        same = _same(got, expected, each.tolerance)
    bad = np.flatnonzero(~np.asarray(same, bool))
    assert not bad.size, [(*(x[i] for x in inputs), got[i], expected[i]) for i in bad[:4]]
