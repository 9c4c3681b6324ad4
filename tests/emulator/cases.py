"""One instruction per kernel, written by hand, with the NumPy function it must agree with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from .device import Device, Module

Array = np.ndarray[Any, Any]
THREADS = 64

DTYPES = {
    "u8": np.uint8,
    "s8": np.int8,
    "u16": np.uint16,
    "s16": np.int16,
    "u32": np.uint32,
    "s32": np.int32,
    "u64": np.uint64,
    "s64": np.int64,
    "b16": np.uint16,
    "b32": np.uint32,
    "b64": np.uint64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "f16x2": np.uint32,
    "bf16x2": np.uint32,
    "byte": np.uint32,  # of which the low eight bits are used
    "pred": np.uint32,
}


@dataclass(frozen=True, slots=True)
class Case:
    """``opcode d, sources`` on columns of values; ``tail`` holds operands that are literals."""

    opcode: str
    result: str
    sources: tuple[str, ...]
    expect: Callable[..., Any]
    tail: str = ""
    tolerance: float = 0.0


def case(
    opcode: str,
    result: str,
    sources: str,
    expect: Callable[..., Any],
    tail: str = "",
    tolerance: float = 0.0,
) -> Case:
    """A case, its source types separated by spaces."""
    return Case(opcode, result, tuple(sources.split()), expect, tail, tolerance)


def module_of(device: Device, cases: Sequence[Case]) -> Module:
    """All cases as the kernels case0, case1, ... of one module."""
    header = ".version 8.0\n.target sm_90\n.address_size 64\n"
    return device.load_ptx(header + "\n".join(_entry(i, each) for i, each in enumerate(cases)))


def run(device: Device, module: Module, index: int, case: Case, inputs: Sequence[Array]) -> Array:
    """What kernel ``index`` makes of the inputs."""
    result = device.allocate(THREADS * np.dtype(DTYPES[case.result]).itemsize)
    sources = [device.upload(array) for array in inputs]
    module.launch(f"case{index}", (1,), (THREADS,), [result, *sources])
    for each in (result, *sources):
        each.free()
    return result.download(DTYPES[case.result])


def values(kind: str, rng: np.random.Generator) -> Array:
    """A column of values of a PTX type, with the awkward ones first."""
    dtype = np.dtype(DTYPES[kind])
    if kind == "pred":
        return rng.integers(0, 2, THREADS).astype(dtype)
    if kind == "byte":
        return rng.permutation(np.r_[np.arange(THREADS - 6), 63, 64, 65, 127, 128, 255]).astype(
            "u4"
        )
    if kind in ("f16x2", "bf16x2"):
        halves = rng.standard_normal(2 * THREADS).astype(DTYPES[kind.removesuffix("x2")])
        return halves.view(np.uint32)
    if dtype.kind in "ui":
        return _integers(dtype, rng)
    column = (rng.standard_normal(THREADS) * 10.0 ** rng.integers(-3, 4, THREADS)).astype(dtype)
    column[:10] = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 1.5, -2.5, 1e-7, 3.0]
    return rng.permutation(column)


def _integers(dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
    limits = np.iinfo(dtype)
    column = rng.integers(limits.min, limits.max, THREADS, dtype=dtype, endpoint=True)
    column[:5] = [0, 1, limits.max, limits.min, 7]
    column[5:20] = rng.integers(0, 40, 15)
    return rng.permutation(column)


def _bits(kind: str) -> str:
    """The type that loads, stores and declares a value of a type."""
    if kind in ("f32", "f64"):
        return kind
    return f"b{np.dtype(DTYPES[kind]).itemsize * 8}"


def _entry(index: int, each: Case) -> str:
    columns = [each.result, *each.sources]
    parameters = ", ".join(f".param .u64 p{i}" for i in range(len(columns)))
    lines = [f".visible .entry case{index}({parameters})", "{", ".reg .b32 %thread;"]
    lines += [".reg .b64 %a<4>;", "mov.u32 %thread, %tid.x;"]
    for i, kind in enumerate(columns):
        # PTX has no 8-bit registers: b16 holds them.
        bits, size = _bits(kind), np.dtype(DTYPES[kind]).itemsize
        lines.append(f".reg .{'b16' if bits == 'b8' else bits} %v{i};")
        lines.append(f"ld.param.u64 %a{i}, [p{i}]; mad.wide.u32 %a{i}, %thread, {size}, %a{i};")
        if i:
            lines.append(f"ld.global.{bits} %v{i}, [%a{i}];")
        if kind == "pred":
            lines.append(f".reg .pred %p{i};" + (f" setp.ne.u32 %p{i}, %v{i}, 0;" if i else ""))
    lines += _instruction(each)
    return "\n".join([*lines, f"st.global.{_bits(each.result)} [%a0], %v0;", "ret;", "}"])


def _instruction(each: Case) -> list[str]:
    names = [
        f"%{'p' if kind == 'pred' else 'v'}{i}"
        for i, kind in enumerate((each.result, *each.sources))
    ]
    text = f"{each.opcode} {', '.join(names)}{each.tail};"
    return [text, "selp.u32 %v0, 1, 0, %p0;"] if each.result == "pred" else [text]
