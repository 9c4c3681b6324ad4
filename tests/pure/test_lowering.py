"""Steps -> launches, as data: no array, no compiler and no device is needed."""

import struct
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import contract as ct
from contract.device import executor as device_executor
from contract.device.kernels.lowering import lower
from contract.machines.gpu import architecture_of
from contract.machines.gpu_kernels import ELEMENTWISE, REDUCE
from contract.plan.steps import Plan, Scalar
from contract.planner.device.launch import (
    BlasCall,
    Fields,
    KernelCall,
    Pointer,
    PointerKind,
    packed,
)
from contract.planner.device.loops import Dimension, capacity, divisor, fused
from contract.planner.planner import make_plan

HOPPER = architecture_of(90)


def planned(
    text: str,
    extents: dict[str, int],
    dtype: str = "float32",
    algo: ct.Algo = ct.Algo.DEFAULT,
    strides: dict[str, Sequence[int]] | None = None,
) -> Plan:
    """The plan of a contraction of packed operands, or of those with the strides given by term."""
    left, output = text.split("->")
    *terms, result = (
        ct.Operand(
            ct.TensorDescriptor(
                tuple(extents[mode] for mode in term), (strides or {}).get(term), dtype, 16
            ),
            term,
        )
        for term in (*left.split(","), output)
    )
    preference = ct.PlanPreference(algo=algo)
    return make_plan(ct.Contraction(tuple(terms), result), preference, architecture_of(90))


def calls(plan: Plan) -> list[KernelCall | BlasCall]:
    return [call for step in plan.steps for call in lower(plan, step, HOPPER)]


def test_a_matrix_product_is_one_call_of_cublas() -> None:
    (call,) = calls(planned("ik,kj->ij", {"i": 30, "j": 40, "k": 50}, algo=ct.Algo.GEMM))
    assert isinstance(call, BlasCall)
    assert (call.m, call.n, call.k, call.batch) == (30, 40, 50, 1)
    assert (call.a.leading, call.b.leading, call.d.leading) == (30, 50, 30)
    assert (call.a.transposed, call.b.transposed) == (False, False)
    assert call.compute == "32F"


def test_a_row_major_result_exchanges_the_factors() -> None:
    extents = {"i": 30, "j": 40, "k": 50}
    (call,) = calls(planned("ik,kj->ji", extents, algo=ct.Algo.GEMM))
    assert isinstance(call, BlasCall)
    assert (call.m, call.n, call.d.leading) == (40, 30, 40)
    assert call.a.transposed
    assert call.b.transposed


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_the_compute_type_is_never_less_than_the_data(dtype: str) -> None:
    extents = {"i": 30, "j": 40, "k": 50, "b": 6}
    (call,) = calls(planned("ikb,kjb->ijb", extents, dtype, ct.Algo.GEMM))
    assert isinstance(call, BlasCall)
    assert call.batch == 6
    assert call.compute == ("64F" if dtype in ("float64", "complex128") else "32F")


def test_cublas_adds_to_a_copy_of_c_or_to_c_itself() -> None:
    d, a, b = (
        ct.Operand(ct.TensorDescriptor(extents, None, "float64", 16), modes)
        for extents, modes in (((30, 40), "ij"), ((30, 50), "ik"), ((50, 40), "kj"))
    )
    preference = ct.PlanPreference(algo=ct.Algo.GEMM)
    plan = make_plan(ct.Contraction((a, b), d, d), preference, architecture_of(90))
    copy, product = calls(plan)
    assert isinstance(copy, KernelCall)
    assert isinstance(product, BlasCall)
    assert copy.unless_same == (plan.addend, plan.output)
    assert (product.alpha, product.beta) == (Scalar.ALPHA, Scalar.BETA)
    turned = ct.Operand(ct.TensorDescriptor((40, 30), None, "float64", 16), "ji")
    with pytest.raises(ct.NotSupportedError, match="GEMM"):
        make_plan(ct.Contraction((a, b), d, turned), preference, architecture_of(90))


def test_strides_beyond_32_bits_go_to_our_kernel() -> None:
    extents, far = {"i": 3, "j": 4, "k": 5}, {"ik": (1, 1 << 31)}
    with pytest.raises(ct.NotSupportedError, match="GEMM"):
        planned("ik,kj->ij", extents, algo=ct.Algo.GEMM, strides=far)
    (call,) = calls(planned("ik,kj->ij", extents, algo=ct.Algo.GETT, strides=far))
    assert isinstance(call, KernelCall)
    assert call.entry == "multiply"
    assert "long long" in call.stub


def test_many_loops_of_products_are_not_left_to_cublas() -> None:
    """One call enumerates one loop; a few calls are made for a second one, not hundreds."""
    extents = {"a": 20, "b": 30, "i": 8, "j": 8, "k": 8, "x": 3}
    strides = {"ikba": (1, 8, 64, 64 * 40), "ikbx": (1, 8, 64, 64 * 40)}
    with pytest.raises(ct.NotSupportedError, match="GEMM"):
        planned("ikba,kjab->ijab", extents, algo=ct.Algo.GEMM, strides=strides)
    few = planned("ikbx,kjxb->ijxb", extents, algo=ct.Algo.GEMM, strides=strides)
    found = calls(few)
    assert len(found) == 3
    assert all(isinstance(call, BlasCall) for call in found)


def test_lowering_is_a_function_of_plan_and_architecture() -> None:
    plan = planned("abk,kc->acb", {"a": 16, "b": 9, "c": 20, "k": 33})
    assert calls(plan) == calls(plan)
    for algo in (ct.Algo.GETT, ct.Algo.TTGT):
        assert calls(planned("abk,kc->acb", {"a": 16, "b": 9, "c": 20, "k": 33}, algo=algo))


@pytest.mark.parametrize(
    ("capability", "table"),
    [(60, 60), (75, 60), (80, 80), (86, 80), (89, 80), (90, 90), (100, 100), (120, 100)],
)
def test_every_card_from_6_0_on_has_a_table(capability: int, table: int) -> None:
    assert architecture_of(capability).table == table
    assert all(table in rows for rows in (ELEMENTWISE, REDUCE))


def test_older_cards_are_refused() -> None:
    with pytest.raises(ct.NotSupportedError, match=r"6\.0 or more .* 5\.2"):
        architecture_of(52)


def test_types_a_gpu_has_not_are_refused() -> None:
    plan = planned("ij,jk->ik", {"i": 2, "j": 3, "k": 4}, "float128")
    with pytest.raises(ct.UnsupportedTypeError, match="float128 is not supported on a GPU"):
        calls(plan)


def test_arguments_fit_the_4096_bytes_of_a_launch() -> None:
    """40 modes of extent 2 in an order that lets none fuse."""
    modes = [chr(0x4E00 + at) for at in range(40)]
    output = modes[::2] + modes[1::2][::-1]
    extents = dict.fromkeys(modes, 2)
    plan = planned(f"{''.join(modes)}->{''.join(output)}", extents, "int8")
    (call,) = calls(plan)
    assert isinstance(call, KernelCall)
    assert len(call.arguments.data) <= 4096
    assert "long long" in call.stub
    assert call.stub.strip().count("\n") < 15


# --- loops and structs ----------------------------------------------------------------------------


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**31 - 1))
@example(2**31 - 1, 2**31 - 1)
@example(3, 2**31 - 1)
@example(2**30 + 1, 2**31 - 1)
def test_division_by_multiplication(extent: int, n: int) -> None:
    magic, shift = divisor(extent)
    assert magic < 2**32
    assert (n * magic >> 32 + shift if magic else n) == (n // extent if extent > 1 else n)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-9, 9), st.integers(-9, 9)), max_size=4))
def test_fused_dimensions_have_the_same_offsets(rows: list[tuple[int, int, int]]) -> None:
    dimensions = [Dimension(n, (one, two)) for n, one, two in rows]
    assert offsets(fused(dimensions)) == offsets(dimensions)


def offsets(dimensions: Sequence[Dimension]) -> list[tuple[int, ...]]:
    """The offsets of all indices in both tensors, sorted."""
    found = [(0, 0)]
    for each in dimensions:
        found = [
            (one + i * each.strides[0], two + i * each.strides[1])
            for one, two in found
            for i in range(each.extent)
        ]
    return sorted(found)


def test_more_loops_than_the_arguments_hold_are_refused() -> None:
    assert capacity(56) == 56
    with pytest.raises(ct.NotSupportedError, match=r"at most 56 loops .* needs 57"):
        capacity(57)


def test_a_struct_is_laid_out_as_in_c() -> None:
    fields = Fields()
    fields.pointer(Pointer(PointerKind.SLOT, 2, 16))
    fields.value("int8", -1)
    fields.scalar(Scalar.BETA, "float32")
    fields.unsigned(7)
    fields.integers((1 << 40, -1))
    fields.value("bool", 1)
    made = fields.arguments()
    assert made.pointers == ((0, Pointer(PointerKind.SLOT, 2, 16)),)
    assert [(field.offset, field.scalar) for field in made.scalars] == [(12, Scalar.BETA)]
    assert made.data[8:12] == b"\xff\0\0\0"
    assert made.data[16:24] == b"\7\0\0\0\0\0\0\0"
    assert made.data[24:40] == (1 << 40).to_bytes(8, "little") + b"\xff" * 8
    assert len(made.data) == 48


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.0, 0x3F80), (1 + 2.0**-8, 0x3F80), (1 + 3 * 2.0**-8, 0x3F82), (float("nan"), 0x7FC0)],
)
def test_bfloat16_rounds_to_nearest_even(value: float, bits: int) -> None:
    assert packed("bfloat16", value) == bits.to_bytes(2, "little")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_too_large_for_a_type_is_infinite(dtype: str, sign: int) -> None:
    assert packed(dtype, sign * 1e300) == packed(dtype, sign * float("inf"))


def test_pointers_are_packed_at_once_unless_something_stands_between_them() -> None:
    slots = [Pointer(PointerKind.SLOT, at) for at in range(3)]
    places, addresses = [(0, slots[0]), (16, slots[1]), (32, slots[2])], (7, 8, 9)
    for template, count in ((bytes(40), 1), (bytes(8) + b"\1" + bytes(31), 2)):
        data, runs = bytearray(template), device_executor._runs(template, places)
        assert len(runs) == count
        for pack, at, pick in runs:
            pack(data, at, *pick(addresses))
        words = struct.unpack("<5Q", data)
        assert words == (7, template[8], 8, 0, 9)
