"""What NVRTC makes of plain CUDA C++: casts, mathematical functions, vectors, large arguments."""

from typing import Any

import numpy as np
import pytest

from .device import Device, Module

Array = np.ndarray[Any, Any]
THREADS = 64

C_TYPES = {
    "i1": "signed char",
    "u1": "unsigned char",
    "i2": "short",
    "u2": "unsigned short",
    "i4": "int",
    "u4": "unsigned",
    "i8": "long long",
    "u8": "unsigned long long",
    "f4": "float",
    "f8": "double",
}


def run(
    device: Device, module: Module, name: str, inputs: list[Array], like: Array, shared: int = 0
) -> Array:
    """What a kernel ``name(inputs..., result)`` makes with one block of 64 threads."""
    result, sources = device.allocate(like.nbytes), [device.upload(x) for x in inputs]
    module.launch(name, (1,), (THREADS,), [*sources, result], shared)
    for each in (result, *sources):
        each.free()
    return result.download(like.dtype, like.shape)


def column(code: str, rng: np.random.Generator) -> Array:
    """Values every type can hold, after the extremes of the integer types."""
    dtype = np.dtype(code)
    small = rng.random(THREADS) * 100 if dtype.kind == "f" else rng.integers(0, 100, THREADS)
    x = small.astype(dtype)
    if dtype.kind != "f":
        x[:3] = np.iinfo(dtype).min, np.iinfo(dtype).max, np.iinfo(dtype).max // 3
    return x


CASTS = "".join(
    f'extern "C" __global__ void {a}_{b}(const {A} *x, {B} *y)'
    f" {{ y[threadIdx.x] = ({B})x[threadIdx.x]; }}\n"
    for a, A in C_TYPES.items()
    for b, B in C_TYPES.items()
)


@pytest.fixture(scope="module")
def casts(device: Device) -> Module:
    """A kernel for every two types."""
    return device.load(CASTS)


@pytest.mark.parametrize("source", C_TYPES)
def test_casts(device: Device, casts: Module, source: str, rng: np.random.Generator) -> None:
    x = column(source, rng)
    for to in C_TYPES:
        expected = x.astype(to)
        got = run(device, casts, f"{source}_{to}", [x], expected)
        np.testing.assert_array_equal(got, expected, err_msg=to)


# Name: NumPy's function, and the range of the arguments.
FUNCTIONS: dict[str, tuple[Any, float, float]] = {
    "exp": (np.exp, -80, 80),
    "expm1": (np.expm1, -2, 40),
    "log": (np.log, 1e-6, 1e6),
    "log1p": (np.log1p, -0.9, 10),
    "sin": (np.sin, -1e7, 1e7),
    "cos": (np.cos, -1e7, 1e7),
    "tan": (np.tan, -100, 100),
    "asin": (np.arcsin, -1, 1),
    "acos": (np.arccos, -1, 1),
    "atan": (np.arctan, -50, 50),
    "sinh": (np.sinh, -20, 20),
    "cosh": (np.cosh, -20, 20),
    "tanh": (np.tanh, -5, 5),
    "asinh": (np.arcsinh, -1e3, 1e3),
    "acosh": (np.arccosh, 1, 1e3),
    "atanh": (np.arctanh, -0.99, 0.99),
    "sqrt": (np.sqrt, 0, 1e6),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1e-3, 1e6),
    "ceil": (np.ceil, -1e3, 1e3),
    "floor": (np.floor, -1e3, 1e3),
    "rint": (np.rint, -1e3, 1e3),
    "round": (lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), -1e3, 1e3),
    "cbrt": (np.cbrt, -1e3, 1e3),
    "exp2": (np.exp2, -80, 80),
    "log2": (np.log2, 1e-6, 1e6),
    "log10": (np.log10, 1e-6, 1e6),
    "fabs": (np.abs, -1, 1),
}
MATHEMATICS = "".join(
    f'extern "C" __global__ void {name}_{code}(const {C_TYPES[code]} *x, {C_TYPES[code]} *y)'
    f" {{ y[threadIdx.x] = {name}(x[threadIdx.x]); }}\n"
    for name in FUNCTIONS
    for code in ("f4", "f8")
)


@pytest.fixture(scope="module", params=["true", "false"])
def mathematics(device: Device, request: pytest.FixtureRequest) -> Module:
    """A kernel for every function, with subnormal numbers flushed to zero and without."""
    return device.load(MATHEMATICS, [f"-ftz={request.param}"])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("code", ["f4", "f8"])
def test_mathematical_functions(
    device: Device, mathematics: Module, name: str, code: str, rng: np.random.Generator
) -> None:
    function, low, high = FUNCTIONS[name]
    x = rng.uniform(low, high, THREADS).astype(code)
    x[:2] = low, high
    got = run(device, mathematics, f"{name}_{code}", [x], x)
    exact = function(x.astype(np.longdouble))
    ulp = np.spacing(np.abs(exact).astype(code)).astype(np.longdouble)
    np.testing.assert_array_less(np.abs(got - exact), 5 * ulp)


def test_flushing_is_asked_for(device: Device) -> None:
    source = 'extern "C" __global__ void k(const float *x, float *y) { *y = *x * 0.5f; }'
    for flush, expected in (("true", 0.0), ("false", 2.0**-127)):
        to = device.allocate(4)
        x = device.upload(np.array([2.0**-126], "f4"))
        device.load(source, [f"-ftz={flush}"]).launch("k", (1,), (1,), [x, to])
        assert to.download("f4")[0] == expected


BINARY = "".join(
    f'extern "C" __global__ void k_{code}(const {kind} *x, const {kind} *y, {kind} *z) {{\n'
    f"  const int i = threadIdx.x; const {kind} a = x[i], b = y[i];\n"
    f"  z[i] = a / b; z[64 + i] = {'fmod(a, b)' if code[0] == 'f' else 'a % b'};\n"
    "  z[128 + i] = a < b ? a : b; z[192 + i] = max(a, b);\n"
    "  z[256 + i] = a == b ? b : a * b + a;\n}\n"
    for code, kind in C_TYPES.items()
)


@pytest.fixture(scope="module")
def arithmetic(device: Device) -> Module:
    """A kernel for every type."""
    return device.load(BINARY)


@pytest.mark.parametrize("code", C_TYPES)
def test_arithmetic_of_every_type(
    device: Device, arithmetic: Module, code: str, rng: np.random.Generator
) -> None:
    x, y = column(code, rng), np.maximum(column(code, rng)[::-1], 1)
    z = run(device, arithmetic, f"k_{code}", [x, y], np.zeros((5, THREADS), code))
    with np.errstate(over="ignore"):
        quotient = x / y if code[0] == "f" else (x - np.fmod(x, y)) // y
        product = x.astype("f8") * y + x if code == "f4" else x * y + x
    np.testing.assert_array_equal(z[0], quotient)
    np.testing.assert_array_equal(z[1], np.fmod(x, y))
    np.testing.assert_array_equal(z[2:4], [np.minimum(x, y), np.maximum(x, y)])
    expected = np.where(x == y, y, product).astype(code)
    np.testing.assert_allclose(z[4], expected, rtol=1e-15 if code == "f8" else 0)


VECTORS = {
    "uchar2": "u1",
    "uchar4": "u1",
    "ushort2": "u2",
    "ushort4": "u2",
    "uint2": "u4",
    "uint4": "u4",
    "float2": "f4",
    "float4": "f4",
    "ulonglong2": "u8",
    "double2": "f8",
}
VECTOR = """
extern "C" __global__ void k(const V *__restrict__ x, V *__restrict__ y) {
  extern __shared__ V buffer[];
  V item = x[threadIdx.x];
  item.x += item.y;
  buffer[threadIdx.x] = item;
  __syncthreads();
  item = buffer[63 - threadIdx.x];
  item.y -= item.x;
  y[threadIdx.x] = item;
}
"""


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_through_dynamic_shared_memory(
    device: Device, name: str, rng: np.random.Generator
) -> None:
    module, lanes = device.load(VECTOR.replace("V", name)), int(name[-1])
    x = rng.integers(0, 100, (THREADS, lanes)).astype(VECTORS[name])
    got = run(device, module, "k", [x], x, x.nbytes)
    x[:, 0] += x[:, 1]
    x[:, 1] -= x[:, 0]
    np.testing.assert_array_equal(got, x[::-1])
    for opcode in ("ld.global.nc", "st.shared", "ld.shared", "st.global"):
        assert f"{opcode}.v{lanes}." in module.ptx


LARGE = """
struct Large { long long values[509]; int count; };
extern "C" __global__ void __launch_bounds__(64) pick(Large p, const int *k, long long *y) {
  p.values[k[0]] = -1;
  y[threadIdx.x] = p.values[threadIdx.x * k[1] % p.count];
}
extern "C" __global__ void exchange(const long long *x, const double *u, long long *y, double *v) {
  y[threadIdx.x] = __shfl_xor_sync(~0u, x[threadIdx.x], 1);
  v[threadIdx.x] = __shfl_down_sync(~0u, u[threadIdx.x], 3);
}
"""


def test_struct_argument_of_four_kilobytes_changed_in_place(device: Device) -> None:
    argument = np.zeros((), np.dtype([("values", "i8", 509), ("count", "i4"), ("pad", "i4")]))
    argument["values"], argument["count"] = np.arange(509), 509
    to, k = device.allocate(8 * THREADS), device.upload(np.array([14, 7], "i4"))
    device.load(LARGE).launch("pick", (1,), (THREADS,), [argument, k, to])
    expected = np.arange(THREADS) * 7 % 509
    np.testing.assert_array_equal(to.download("i8"), np.where(expected == 14, -1, expected))


def test_shuffles_of_64_bits(device: Device, rng: np.random.Generator) -> None:
    x, u = rng.integers(-(2**62), 2**62, 32), rng.standard_normal(32)
    y, v = device.allocate(256), device.allocate(256)
    arguments = [device.upload(x), device.upload(u), y, v]
    device.load(LARGE).launch("exchange", (1,), (32,), arguments)
    lane = np.arange(32)
    np.testing.assert_array_equal(y.download("i8"), x[lane ^ 1])
    np.testing.assert_array_equal(v.download("f8"), u[np.where(lane < 29, lane + 3, lane)])
