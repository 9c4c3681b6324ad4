"""mma.sync and ldmatrix: the fragment layouts of the PTX manual, shape by shape."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from .device import Device, Module, Options

Array = np.ndarray[Any, Any]

LANES = [(lane // 4, lane % 4) for lane in range(32)]


@dataclass(frozen=True, slots=True)
class Shape:
    """One mma.sync: its opcode, extents, element types, and where each lane's elements lie."""

    opcode: str
    m: int
    n: int
    k: int
    kind: Any
    sum: Any
    a: Callable[[int, int, int], tuple[int, int]]
    b: Callable[[int, int, int], tuple[int, int]]


def _c(g: int, t: int, i: int) -> tuple[int, int]:
    return g + 8 * (i // 2), 2 * t + i % 2


def _a_tf32(g: int, t: int, i: int) -> tuple[int, int]:
    return g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4


def _a_half(g: int, t: int, i: int) -> tuple[int, int]:
    return g if i in (0, 1, 4, 5) else g + 8, 2 * t + (i & 1) + (8 if i >= 4 else 0)


def _b_half(g: int, t: int, i: int) -> tuple[int, int]:
    return 2 * t + (i & 1) + (8 if i >= 2 else 0), g


def _a_byte(g: int, t: int, i: int) -> tuple[int, int]:
    row = g if i < 4 or 8 <= i < 12 else g + 8
    return row, 4 * t + (i & 3) + (16 if i >= 8 else 0)


def _b_byte(g: int, t: int, i: int) -> tuple[int, int]:
    return 4 * t + (i & 3) + (16 if i >= 4 else 0), g


def _b_single(g: int, t: int, i: int) -> tuple[int, int]:
    return t + 4 * i, g


def _a_f64(g: int, t: int, i: int) -> tuple[int, int]:
    return g + 8 * (i % 2), t + 4 * (i // 2)


F32, F64, F16, BF16 = np.float32, np.float64, np.float16, ml_dtypes.bfloat16
SHAPES = [
    Shape("m16n8k4.row.col.f32.tf32.tf32.f32", 16, 8, 4, F32, F32, _a_tf32, _b_single),
    Shape("m16n8k8.row.col.f32.tf32.tf32.f32", 16, 8, 8, F32, F32, _a_tf32, _b_single),
    Shape("m16n8k8.row.col.f32.f16.f16.f32", 16, 8, 8, F16, F32, _a_half, _b_half),
    Shape("m16n8k16.row.col.f32.f16.f16.f32", 16, 8, 16, F16, F32, _a_half, _b_half),
    Shape("m16n8k16.row.col.f32.bf16.bf16.f32", 16, 8, 16, BF16, F32, _a_half, _b_half),
    Shape("m16n8k16.row.col.s32.s8.s8.s32", 16, 8, 16, np.int8, np.int32, _a_byte, _b_byte),
    Shape("m16n8k32.row.col.s32.s8.s8.s32", 16, 8, 32, np.int8, np.int32, _a_byte, _b_byte),
    Shape("m16n8k32.row.col.s32.u8.u8.s32", 16, 8, 32, np.uint8, np.int32, _a_byte, _b_byte),
    Shape("m8n8k4.row.col.f64.f64.f64.f64", 8, 8, 4, F64, F64, lambda g, t, i: (g, t), _b_single),
    Shape("m16n8k4.row.col.f64.f64.f64.f64", 16, 8, 4, F64, F64, _a_f64, _b_single),
    Shape("m16n8k8.row.col.f64.f64.f64.f64", 16, 8, 8, F64, F64, _a_f64, _b_single),
    Shape("m16n8k16.row.col.f64.f64.f64.f64", 16, 8, 16, F64, F64, _a_f64, _b_single),
]


def scatter(matrix: Array, place: Any, elements: int) -> Array:
    """Each lane's elements, one row a lane."""
    rows = [[matrix[place(g, t, i)] for i in range(elements)] for g, t in LANES]
    return np.array(rows, matrix.dtype)


def gather(fragments: Array, place: Any, shape: tuple[int, int]) -> Array:
    """The matrix whose elements the lanes hold."""
    matrix = np.zeros(shape, fragments.dtype)
    for (g, t), row in zip(LANES, fragments, strict=True):
        for i, value in enumerate(row):
            matrix[place(g, t, i)] = value
    return matrix


def _registers(shape: Shape) -> tuple[int, int, int, int]:
    """Bytes of a register, and registers of A, B and C in a lane."""
    width = 8 if shape.kind is F64 else 4
    size = np.dtype(shape.kind).itemsize
    a, b = (shape.m * shape.k * size // (32 * width), shape.k * shape.n * size // (32 * width))
    return width, a, b, shape.m * shape.n // 32


def _entry(index: int, shape: Shape) -> str:
    width, *counts = _registers(shape)
    given, result = ("f64", "f64") if width == 8 else ("b32", "f32")
    if shape.sum is np.int32:
        result = "b32"
    lines = [f".visible .entry mma{index}(.param .u64 a, .param .u64 b, .param .u64 c) {{"]
    lines += [".reg .b32 %t; .reg .b64 %at<3>; mov.u32 %t, %laneid;"]
    for i, (name, kind) in enumerate((("a", given), ("b", given), ("c", result))):
        lines.append(f".reg .{kind} %{name}<{counts[i]}>;")
        lines.append(f"ld.param.u64 %at{i}, [{name}];")
        lines.append(f"mad.wide.u32 %at{i}, %t, {counts[i] * width}, %at{i};")
        for r in range(counts[i]):
            lines.append(f"ld.global.{kind} %{name}{r}, [%at{i}+{r * width}];")
    names = [
        "{" + ", ".join(f"%{n}{r}" for r in range(counts[i])) + "}" for i, n in enumerate("abc")
    ]
    a, b, c = names
    lines.append(f"mma.sync.aligned.{shape.opcode} {c}, {a}, {b}, {c};")
    lines += [f"st.global.{result} [%at2+{r * width}], %c{r};" for r in range(counts[2])]
    return "\n".join([*lines, "ret; }"])


@pytest.fixture(scope="module")
def module(device: Device) -> Module:
    """A kernel for each shape."""
    header = ".version 8.0\n.target sm_90\n.address_size 64\n"
    return device.load_ptx(header + "\n".join(_entry(i, shape) for i, shape in enumerate(SHAPES)))


def _random(shape: tuple[int, int], kind: Any, rng: np.random.Generator) -> Array:
    if np.dtype(kind).kind in "ui":
        return rng.integers(0 if np.dtype(kind).kind == "u" else -100, 100, shape).astype(kind)
    quarters: Array = rng.integers(-8, 9, shape).astype(kind) / kind(4)  # exact in every format
    return quarters


@pytest.mark.parametrize("index", range(len(SHAPES)), ids=lambda i: SHAPES[i].opcode)
def test_mma_multiplies(
    device: Device, module: Module, index: int, rng: np.random.Generator
) -> None:
    shape = SHAPES[index]
    a = _random((shape.m, shape.k), shape.kind, rng)
    b = _random((shape.k, shape.n), shape.kind, rng)
    c = _random((shape.m, shape.n), shape.sum, rng)
    lanes = [
        scatter(a, shape.a, a.size // 32),
        scatter(b, shape.b, b.size // 32),
        scatter(c, _c, c.size // 32),
    ]
    held = [device.upload(fragment) for fragment in lanes]
    module.launch(f"mma{index}", (1,), (32,), held)
    got = gather(held[2].download(shape.sum, (32, -1)), _c, c.shape)
    np.testing.assert_array_equal(got, a.astype(shape.sum) @ b.astype(shape.sum) + c)


LDMATRIX = """
extern "C" __global__ void load(const unsigned short *from, unsigned *to) {
  __shared__ __align__(16) unsigned short rows[32][8];
  const int lane = threadIdx.x;
  for (int i = 0; i < 8; ++i) rows[lane][i] = from[8 * lane + i];
  __syncthreads();
  const unsigned at = (unsigned)__cvta_generic_to_shared(rows[lane]);
  unsigned r[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.SHAPE.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
  for (int i = 0; i < 4; ++i) to[4 * lane + i] = r[i];
}
"""


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_spreads_rows(device: Device, transposed: bool) -> None:
    source = LDMATRIX.replace("SHAPE", "trans.shared" if transposed else "shared")
    matrices = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    result = device.allocate(512)
    device.load(source).launch("load", (1,), (32,), [device.upload(matrices), result])
    got = result.download(np.uint16, (32, 4, 2))
    for lane, (g, t) in enumerate(LANES):
        for i in range(4):
            matrix = matrices[i].T if transposed else matrices[i]
            assert got[lane, i].tolist() == matrix[g, 2 * t : 2 * t + 2].tolist()


def test_tensor_pipeline_multiplies(
    device: Device, sample: Any, options: Options, rng: np.random.Generator
) -> None:
    m, n, k = 50, 70, 44
    a, b = rng.standard_normal((m, k), "f4"), rng.standard_normal((n, k), "f4")
    c = device.allocate(4 * m * n)
    arguments = [device.upload(a), device.upload(b), c, m, n, k]
    sample("tensor.cu").launch("right", (3, 2), (128,), arguments, 10240, options)
    np.testing.assert_allclose(c.download("f4", (m, n)), a @ b.T, atol=0.02)
