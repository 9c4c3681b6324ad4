"""The kernel of permutations and elementwise operations, launch by launch, against NumPy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  (the name bfloat16)
import numpy as np
import pytest

import contract as ct
from contract.device.kernels.elementwise import elementwise_calls
from contract.machines.gpu import architecture_of
from contract.planner.device.launch import Arguments, KernelCall
from contract.planner.planner import make_plan
from tests.reference import UNARY

from .device import Allocation, Device, Options, Schedule
from .launching import run_call

Array = np.ndarray[Any, Any]
SHUFFLED = Options(Schedule.RANDOM, seed=3)


@dataclass(frozen=True)
class Placed:
    """An array as memory of the device: where it begins in its allocation, and its strides."""

    memory: Allocation
    offset: int
    tensor: ct.TensorDescriptor

    def read(self) -> Array:
        """What the device has now."""
        whole, dtype = self.memory.download(), np.dtype(self.tensor.dtype)
        steps = [step * dtype.itemsize for step in self.tensor.steps]
        return np.ndarray(self.tensor.extents, dtype, whole, self.offset, steps).copy()


def place(device: Device, x: Array, filled: bool = True) -> Placed:
    """The memory around ``x`` (an array or a view of one), with its alignment up to 16 bytes."""
    base = x
    while isinstance(base.base, np.ndarray):
        base = base.base
    memory = device.upload(base.ravel("K")) if filled else device.allocate(base.nbytes)
    offset = x.ctypes.data - base.ctypes.data
    alignment = (offset | 16) & -(offset | 16)
    strides = tuple(step // x.itemsize for step in x.strides)
    return Placed(memory, offset, ct.TensorDescriptor(x.shape, strides, x.dtype.name, alignment))


def run(
    device: Device,
    operation: ct.ElementwiseOperation,
    placed: Sequence[Placed],
    scalars: Sequence[complex] = (1, 1, 1),
    options: Options | None = None,
) -> Any:
    """Plan, lower and launch; the call is returned."""
    plan = make_plan(operation)
    (call,) = elementwise_calls(plan, plan.steps[0], architecture_of(90))
    memories, offsets = [each.memory for each in placed], [each.offset for each in placed]
    run_call(device, call, memories, scalars, options=options, offsets=offsets)
    return call


def numbers(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    values = rng.standard_normal(shape) * 8
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    if np.dtype(dtype).kind in "bu":
        values = np.abs(values)
    return np.array(values, dtype, order="F")


def permuted(
    device: Device,
    x: Array,
    text: str,
    out: Array | None = None,
    alpha: complex = 1,
    options: Options | None = None,
    operator: ct.Operator = ct.Operator.IDENTITY,
    padding: ct.Padding | None = None,
) -> Array:
    """B = alpha op(A) on the device; without ``out``, packed and of the same type."""
    modes, wanted = text.split("->")
    if out is None:
        shape = [x.shape[modes.index(mode)] for mode in wanted]
        if padding is not None:
            sides = zip(padding.left, shape, padding.right, strict=True)
            shape = [left + n + right for left, n, right in sides]
        out = np.empty(shape, x.dtype, order="F")
    source, target = place(device, x), place(device, out, filled=False)
    operation = ct.ElementwiseOperation(
        (ct.Operand(source.tensor, modes, operator),),
        ct.Operand(target.tensor, wanted),
        padding=padding,
        dtype=np.result_type(x.dtype, out.dtype).name if x.dtype.kind == "i" else "",
    )
    run(device, operation, [source, target], (alpha, 0, 0), options)
    return target.read()


EDGES = (1, 3, 31, 32, 33, 63, 64, 65, 67, 131)


@pytest.mark.parametrize("m", EDGES)
def test_turned_at_the_edges_of_tiles(device: Device, rng: np.random.Generator, m: int) -> None:
    for n in (1, 2, 31, 33, 64, 67):
        x = numbers(rng, (m, n), "f4")
        found = permuted(device, x, "ab->ba", alpha=2, options=SHUFFLED)
        np.testing.assert_array_equal(found, 2 * x.T)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((64, 128), "ab->ba"),
        ((68, 60), "ab->ba"),
        ((4, 4, 100), "abc->bac"),  # small dimensions merged on both sides
        ((8, 4, 20, 12), "abcd->dbca"),
        ((100, 36, 8), "abc->cab"),
    ],
)
def test_turned_by_vectors(
    device: Device, rng: np.random.Generator, shape: tuple[int, ...], text: str
) -> None:
    x = numbers(rng, shape, "f4")
    for options in (SHUFFLED, Options(Schedule.REVERSED)):
        found = permuted(device, x, text, options=options)
        np.testing.assert_array_equal(found, np.einsum(text, x))


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((5, 3, 7, 11), "abcd->dcba"),
        ((2,) * 12, "abcdefghijkl->lgbakfcejdih"),
        ((3, 1, 65, 2), "abcd->cbda"),
        ((33, 5, 7, 6), "abcd->bdac"),
        ((13, 17), "ab->ab"),
        ((2, 3, 4, 5), "abcd->abdc"),
        ((37,), "a->a"),
        ((), "->"),
    ],
)
def test_any_number_of_modes(
    device: Device, rng: np.random.Generator, shape: tuple[int, ...], text: str
) -> None:
    x = numbers(rng, shape, "f4")
    np.testing.assert_array_equal(permuted(device, x, text), np.einsum(text, x))


@pytest.mark.parametrize("unit", [2, 4])
def test_elements_that_stay_together_move_together(
    device: Device, rng: np.random.Generator, unit: int
) -> None:
    for m, n in ((40, 33), (31, 64), (1, 5)):
        x = numbers(rng, (unit, m, n), "f4")
        found = permuted(device, x, "xab->xba", options=SHUFFLED)
        np.testing.assert_array_equal(found, x.transpose(0, 2, 1))


@pytest.mark.parametrize("vectors", [True, False])
def test_copies_of_every_layout(device: Device, rng: np.random.Generator, vectors: bool) -> None:
    """Gaps, negative strides, diagonals, addresses that are no multiple of a vector."""
    base = numbers(rng, (44, 40, 6), "f4")
    shift = 4 if vectors else 1
    views = [
        base[shift : shift + 36],
        base[shift : shift + 36, ::-1, ::2],
        base[:36, 4:20].transpose(0, 2, 1),
        base[40::-1][:36],
        base[:36:3],
        np.broadcast_to(base[:36, :1, 0], (36, 12)),
        np.ndarray((36, 6), "f4", base.T, 0, (4 + 4 * 44, 4 * 44 * 40)),
    ]
    for x in views:
        modes = "abc"[: x.ndim]
        np.testing.assert_array_equal(permuted(device, x, f"{modes}->{modes}"), x)
        out = np.full((x.shape[0] + 4, *x.shape[1:]), 7, "f4", order="F")[: x.shape[0]]
        found = permuted(device, x, f"{modes}->{modes}", out)
        np.testing.assert_array_equal(found, x)


def test_nothing_beside_the_result_is_written(device: Device, rng: np.random.Generator) -> None:
    x, out = numbers(rng, (40, 70), "f4"), np.zeros((80, 50), "f4", order="F")
    source, target = place(device, x), place(device, out[5:75, 6:46])
    operation = ct.ElementwiseOperation(
        (ct.Operand(source.tensor, "ab"),), ct.Operand(target.tensor, "ba")
    )
    run(device, operation, [source, target])
    out[5:75, 6:46] = x.T
    np.testing.assert_array_equal(target.memory.download("f4", (80, 50)[::-1]).T, out)


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "int64",
        "uint16",
        "float16",
        "bfloat16",
        "float64",
        "complex64",
        "complex128",
    ],
)
def test_every_size_of_element(device: Device, rng: np.random.Generator, dtype: str) -> None:
    for m, n in ((80, 48), (128, 144)):
        x = numbers(rng, (m, n), dtype)
        np.testing.assert_array_equal(permuted(device, x, "ab->ba", options=SHUFFLED), x.T)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float16", "float32"),
        ("float32", "bfloat16"),
        ("float64", "float32"),
        ("complex128", "complex64"),
        ("int32", "float64"),
        ("int8", "float64"),  # sixteen elements in one access, and large cells
        ("float64", "float16"),
    ],
)
def test_conversions(device: Device, rng: np.random.Generator, source: str, target: str) -> None:
    x = numbers(rng, (40, 52), source)
    out = np.empty((52, 40), target, order="F")
    found = permuted(device, x, "ab->ba", out, alpha=3)
    wide = x.astype("c16" if np.iscomplexobj(x) else "f8") * 3
    tolerance = {"bfloat16": 2**-8, "float16": 2**-11}.get(target, 2**-24)
    np.testing.assert_allclose(
        found.astype(wide.dtype), wide.T, rtol=tolerance if target != "float64" else 1e-15
    )


def test_rounding_to_sixteen_bits_is_to_nearest_even(device: Device) -> None:
    tie = np.array(
        [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20, np.inf, np.nan, -0.0], "f4"
    )
    for dtype in ("bfloat16", "float16"):
        x = tie if dtype == "bfloat16" else ((tie - 1) / 8 + 1).astype("f4")
        found = permuted(device, x, "a->a", np.empty(x.shape, dtype))
        np.testing.assert_array_equal(found.astype("f4"), x.astype(dtype).astype("f4"))
        assert np.signbit(found.astype("f4")[-1]) == np.signbit(x[-1])


# --- two and three sources ----------------------------------------------------------------------


def elementwise(
    device: Device,
    text: str,
    inputs: Sequence[Array],
    operators: Sequence[ct.BinaryOperator],
    scalars: Sequence[complex],
    unary: Sequence[ct.Operator] = (ct.Operator.IDENTITY,) * 3,
) -> Array:
    left, wanted = text.split("->")
    terms = left.split(",")
    extents = {
        m: n
        for term, x in zip(terms, inputs, strict=True)
        for m, n in zip(term, x.shape, strict=True)
    }
    out = np.empty([extents[mode] for mode in wanted], inputs[0].dtype, order="F")
    placed = [*(place(device, x) for x in inputs), place(device, out, filled=False)]
    operands = tuple(
        ct.Operand(each.tensor, term, op)
        for each, term, op in zip(placed, terms, unary, strict=False)
    )
    operation = ct.ElementwiseOperation(
        operands, ct.Operand(placed[-1].tensor, wanted), tuple(operators)
    )
    run(device, operation, placed, scalars, SHUFFLED)
    return placed[-1].read()


def test_sources_in_different_orders(device: Device, rng: np.random.Generator) -> None:
    op = ct.BinaryOperator
    for m, n in ((64, 68), (36, 132)):
        a, b, c = numbers(rng, (m, n), "f4"), numbers(rng, (n, m), "f4"), numbers(rng, (m,), "f4")
        found = elementwise(device, "ab,ba->ab", (a, b), [op.MAX], (2, 0, 3))
        np.testing.assert_array_equal(found, np.maximum(2 * a, 3 * b.T))
        found = elementwise(device, "ab,ba,a->ab", (a, b, c), [op.MUL, op.ADD], (2, 3, 4))
        np.testing.assert_allclose(found, 6 * a * b.T + 4 * c[:, None], rtol=1e-5, atol=1e-3)
        found = elementwise(device, "b,ba,ba->ab", (b[:, 0], b, 2 * b), [op.ADD, op.MIN], (1, 1, 1))
        np.testing.assert_array_equal(found, np.minimum(b[:, 0] + b.T, 2 * b.T))


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_a_factor_of_zero_reads_nothing(
    device: Device, rng: np.random.Generator, zero: int
) -> None:
    a, b, c = numbers(rng, (64, 68), "f4"), numbers(rng, (68, 64), "f4"), numbers(rng, (64,), "f4")
    scalars, op = [2, 3, 4], ct.BinaryOperator
    scalars[zero] = 0
    wanted = np.maximum(scalars[0] * a, scalars[1] * b.T) + scalars[2] * c[:, None]
    (a, b, c)[zero][...] = np.nan
    found = elementwise(device, "ab,ba,a->ab", (a, b, c), [op.MAX, op.ADD], scalars)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_not_a_number_wins_in_max_and_min(device: Device) -> None:
    x = np.array([1, np.nan, 3, np.nan, -0.0], "f4")
    y = np.array([2, 5, np.nan, np.nan, 0.0], "f4")
    for op, function in ((ct.BinaryOperator.MAX, np.maximum), (ct.BinaryOperator.MIN, np.minimum)):
        found = elementwise(device, "a,a->a", (x, y), [op], (1, 0, 1))
        np.testing.assert_array_equal(found, function(x, y))


def test_a_complex_factor_of_one_keeps_infinite_parts(device: Device) -> None:
    x = np.array([complex(np.inf, 1), complex(0, -np.inf), 1 + 2j], "c8")
    found = permuted(device, x, "a->a", operator=ct.Operator.CONJ)
    np.testing.assert_array_equal(found.view("f4"), x.conj().view("f4"))


# --- padding, fills, far offsets ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right"), [((1, 0, 2), (0, 3, 1)), ((4, 0, 0), (8, 0, 4)), ((0, 0, 0), (0, 0, 0))]
)
@pytest.mark.parametrize("text", ["abc->abc", "abc->cba"])
def test_padding(
    device: Device,
    rng: np.random.Generator,
    text: str,
    left: tuple[int, ...],
    right: tuple[int, ...],
) -> None:
    x = numbers(rng, (36, 5, 40), "f4")
    found = permuted(device, x, text, padding=ct.Padding(left, right, 9.5), options=SHUFFLED)
    pairs = list(zip(left, right, strict=True))
    np.testing.assert_array_equal(found, np.pad(np.einsum(text, x), pairs, constant_values=9.5))


def test_padding_around_nothing(device: Device) -> None:
    found = permuted(
        device, np.empty((0, 3), "i8"), "ab->ab", padding=ct.Padding((1, 0), (2, 0), -(2**62) - 1)
    )
    np.testing.assert_array_equal(found, np.full((3, 3), -(2**62) - 1))


def test_zeros(device: Device) -> None:
    """What is left of a contraction where a summed mode has extent 0."""
    out = np.empty((67, 5), "c16", order="F")
    empty = ct.TensorDescriptor((67, 0), None, "complex128")
    other = ct.TensorDescriptor((0, 5), None, "complex128")
    target = place(device, out, filled=False)
    operation = ct.Contraction(
        (ct.Operand(empty, "ak"), ct.Operand(other, "kb")), ct.Operand(target.tensor, "ab")
    )
    plan = make_plan(operation)
    (call,) = elementwise_calls(plan, plan.steps[0], architecture_of(90))
    run_call(device, call, [target.memory] * 3)
    np.testing.assert_array_equal(target.read(), 0)


def test_a_result_without_elements_launches_nothing() -> None:
    tensor = ct.TensorDescriptor((0, 3), None, "float32")
    operand = ct.Operand(tensor, "ab")
    plan = make_plan(ct.ElementwiseOperation((operand,), operand))
    assert all(not elementwise_calls(plan, step, architecture_of(90)) for step in plan.steps)


def test_offsets_beyond_31_bits(device: Device, rng: np.random.Generator) -> None:
    """Rows lie 2^31 elements apart and more; only the pages that are touched exist."""
    stride = 2**31 + 64
    memory = device.sparse(2 * stride)
    source = ct.TensorDescriptor((40, 2), (1, stride), "int8", 16)
    target = ct.TensorDescriptor((2, 40), (stride, 1), "int8", 16)
    x = numbers(rng, (40, 2), "int8")
    for column in range(2):
        memory.upload(x[:, column], column * stride)
    operation = ct.ElementwiseOperation((ct.Operand(source, "ab"),), ct.Operand(target, "ba"))
    placed = [Placed(memory, 0, source), Placed(memory, 4096, target)]
    call = run(device, operation, placed, (2, 0, 0))
    assert "long long" in call.stub
    for column in range(2):
        begin = column * stride + 4096
        found = memory.bytes[begin : begin + 40].view("i1")
        np.testing.assert_array_equal(found, 2 * x[:, column])
    memory.free()


def test_more_elements_than_31_bits_are_counted_in_64() -> None:
    tensor = ct.TensorDescriptor((2**33 + 8,), None, "int8", 16)
    operation = ct.ElementwiseOperation((ct.Operand(tensor, "a"),), ct.Operand(tensor, "a"))
    plan = make_plan(operation)
    (call,) = elementwise_calls(plan, plan.steps[0], architecture_of(90))
    assert "long long" in call.stub
    assert call.grid[0] == -(-(2**33 + 8) // (256 * 8 * 4))


# --- every unary operator -------------------------------------------------------------------------


NOWHERE = ((1, 1, 1), (1, 1, 1), Arguments(b"", (), ()), "")
OPERATORS = """
using namespace contract;
template <int OP> __device__ void all(const REAL *x, REAL *y, int n) {
  if constexpr (OP < 28) {
    const int i = threadIdx.x;
    if (blockIdx.x == OP && i < n) y[OP * n + i] = apply<(Operator)OP>(x[i]);
    all<OP + 1>(x, y, n);
  }
}
template <> __device__ void all<3>(const REAL *x, REAL *y, int n) { all<4>(x, y, n); }  // CONJ
extern "C" __global__ void operators(const REAL *x, REAL *y, int n) { all<0>(x, y, n); }
"""


@pytest.mark.parametrize(("real", "dtype"), [("float", "f4"), ("double", "f8")])
def test_operators(device: Device, real: str, dtype: str) -> None:
    headers = KernelCall(("types", "operators"), "", "", *NOWHERE).source
    module = device.load(headers + OPERATORS.replace("REAL", real), ["-ftz=true"])
    edge = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 88, -88, 700, -700, 1, -1]
    x = np.concatenate([edge, np.linspace(-9, 9, 200), np.linspace(-1, 1, 40)]).astype(dtype)
    given, found = device.upload(x), device.upload(np.zeros((28, x.size), dtype))
    module.launch("operators", (28,), (256,), [given, found, x.size])
    limits = np.finfo(dtype)
    for result, operator in zip(found.download(dtype, (28, x.size)), ct.Operator, strict=True):
        if operator is ct.Operator.CONJ:
            continue
        with np.errstate(all="ignore"):
            wanted = UNARY[operator.value](x.astype("g"))
            rounded = wanted.astype(dtype)
        known = np.isfinite(rounded)
        np.testing.assert_array_equal(result[~known], rounded[~known], operator.name)
        error = np.abs(result[known].astype("g") - wanted[known])
        allowed = 6 * limits.eps * np.abs(wanted[known]) + limits.smallest_normal
        worst = np.argmax(error / allowed)
        assert error[worst] <= allowed[worst], f"{operator.name}({x[known][worst]})"
