"""Plans for a GPU: the candidates there are, what the model predicts, what cuBLAS may round."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import permutations
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import contract as ct
from contract import Algo, ComputeType
from contract.device.kernels.lowering import lower
from contract.device.kernels.recordable import recordable
from contract.execution.verification import verify
from contract.explain.table import explain
from contract.machines.cublas_model import blas_compute
from contract.machines.gpu import ARCHITECTURES, Architecture, architecture_of
from contract.machines.gpu_kernels import CoreTile, TensorTile
from contract.machines.gpu_tiles import HopperShare, Share
from contract.plan.steps import Candidate, Elementwise, Gemm, Gett, Permute, Plan, step_bytes
from contract.planner.device.launch import BlasCall, KernelCall
from contract.planner.planner import make_plan

TCCG = Path(__file__).parents[2] / "bench" / "data" / "tccg48.json"
A100, H200 = architecture_of(80), architecture_of(90)
TF32 = ComputeType.TF32
# Of the data sheets: operations per second where products may be formed so, bytes per second.
PEAKS = {
    (80, "float32", None): 19.5e12,
    (80, "float64", None): 19.5e12,
    (80, "float32", TF32): 156e12,
    (80, "float16", None): 312e12,
    (90, "float32", None): 67e12,
    (90, "float64", None): 67e12,
    (90, "float32", TF32): 495e12,
    (90, "float16", None): 989e12,
}
BANDWIDTH = {80: 2.039e12, 90: 4.8e12}


def operation(
    text: str,
    extents: dict[str, int],
    dtype: str = "float32",
    compute: ComputeType | None = None,
    alignment: int = 16,
    adds: bool = False,
    types: Sequence[str] = (),
) -> ct.Contraction:
    """Packed column-major operands, C as D; ``types`` are those of the operands and D."""
    left, output = text.split("->")
    terms = (*left.split(","), output)
    *inputs, result = (
        ct.Operand(
            ct.TensorDescriptor(tuple(extents[x] for x in term), None, kind, alignment), term
        )
        for term, kind in zip(terms, types or [dtype] * len(terms), strict=True)
    )
    return ct.Contraction(tuple(inputs), result, result if adds else None, compute=compute)


def plan_of(
    text: str,
    extents: dict[str, int],
    gpu: Architecture = H200,
    algo: Algo = Algo.DEFAULT,
    rank: int = 0,
    **options: object,
) -> Plan:
    wanted = operation(text, extents, **options)  # type: ignore[arg-type]
    return make_plan(wanted, ct.PlanPreference(algo=algo, kernel_rank=rank), gpu)


def considered(plan: Plan) -> tuple[Candidate, ...]:
    (decision,) = plan.considered
    return decision.candidates


# --- the candidates there are ---------------------------------------------------------------------


@cache
def tccg() -> list[dict]:
    return json.loads(TCCG.read_text())["cases"]


@pytest.mark.parametrize(("capability", "dtype", "compute"), PEAKS, ids=str)
def test_tccg(capability: int, dtype: str, compute: ComputeType | None) -> None:
    """Every algorithm is there; none is predicted faster than the data sheet allows."""
    gpu = architecture_of(capability)
    for case in tccg():
        extents = case["f64" if dtype == "float64" else "f32"]["extents"]
        plan = plan_of(case["einsum"], extents, gpu, dtype=dtype, compute=compute)
        row = considered(plan)
        algorithms = {each.algo for each in row}
        assert Algo.GETT in algorithms, case["einsum"]
        assert (Algo.TTGT in algorithms) or (Algo.GEMM in algorithms), case["einsum"]
        assert (Algo.GEMM in algorithms) or (Algo.TGETT in algorithms), case["einsum"]
        computing = 2 * prod(extents.values()) / PEAKS[capability, dtype, compute]
        moving = sum(slot.bytes for slot in plan.slots[:3]) / BANDWIDTH[capability]
        assert all(each.seconds > max(computing, moving) for each in row), case["einsum"]
        assert row[0].seconds < 5 * max(computing, moving), case["einsum"]


def test_matrices_need_no_permutation() -> None:
    """A TTGT that permutes nothing is the Gemm: it is no candidate of its own."""
    extents = {"i": 512, "j": 512, "k": 512}
    row = considered(plan_of("ik,kj->ij", extents))
    assert {each.algo for each in row} == {Algo.GETT, Algo.GEMM}
    asked = plan_of("ik,kj->ij", extents, algo=Algo.TTGT)
    assert asked.steps == plan_of("ik,kj->ij", extents, algo=Algo.GEMM).steps


@pytest.mark.parametrize("compute", [None, TF32])
def test_ranks_are_configurations(compute: ComputeType | None) -> None:
    """Each rank of Gett has a tile of its own, which the launch then has."""
    extents = {"a": 96, "b": 80, "c": 64, "k": 200}
    shares, last = [], 0.0
    for rank in range(6):
        plan = plan_of("akb,kc->abc", extents, algo=Algo.GETT, rank=rank, compute=compute)
        (step,) = plan.steps
        assert isinstance(step, Gett)
        assert isinstance(step.blocking, Share | HopperShare)
        call, *_ = lower(plan, step, H200)
        assert isinstance(call, KernelCall)
        assert call.reason == step.blocking.reason
        assert call.block[0] == step.blocking.tile.threads
        assert last <= plan.seconds
        shares.append(step.blocking)
        last = plan.seconds
    assert len({share.tile for share in shares}) == 6
    tensor = [isinstance(share.tile, TensorTile) for share in shares]
    assert any(tensor) is (compute is TF32)
    with pytest.raises(ct.NotSupportedError, match="there are 6"):
        plan_of("akb,kc->abc", extents, algo=Algo.GETT, rank=6)


@pytest.mark.parametrize("compute", [ComputeType.TF32X3, ComputeType.BF16X9])
@pytest.mark.parametrize(
    ("capability", "kind"), [(80, TensorTile), (86, CoreTile), (90, TensorTile), (100, CoreTile)]
)
def test_operands_are_split_where_tensor_cores_gain(
    capability: int, kind: type, compute: ComputeType
) -> None:
    extents = {"a": 64, "b": 64, "c": 2048, "k": 2048}
    gpu = architecture_of(capability)
    (step,) = plan_of("akb,kc->abc", extents, gpu, Algo.GETT, compute=compute).steps
    assert isinstance(step, Gett)
    assert isinstance(step.blocking, Share | HopperShare)
    assert isinstance(step.blocking.tile, kind)


def test_explain_shows_configurations() -> None:
    text = explain(plan_of("akb,kc->abc", {"a": 96, "b": 80, "c": 64, "k": 200}, compute=TF32))
    assert "tf32 tensor cores: tiles of 64 x 64, k by 16" in text
    assert "CUDA cores: tiles of" in text
    assert "32F_FAST_TF32" in text


def test_tgett_copies_what_lies_badly() -> None:
    """A's rows have 4 elements in a row: D and B are left where they lie."""
    extents = {"a": 4, "b": 512, "c": 512, "d": 128}
    plan = plan_of("adb,dc->bac", extents, algo=Algo.TGETT)
    assert [type(step) for step in plan.steps] == [Permute, Gett]
    (copy, product) = plan.steps
    assert product.a == copy.target.slot
    assert product.d == plan.output
    assert plan.workspace == 4 * 4 * 512 * 128


def test_copies_keep_narrow_types_and_leave_operators_to_the_product() -> None:
    made = operation("adb,dc->bac", {"a": 4, "b": 96, "c": 64, "d": 32}, "float16")
    turned = replace(made.inputs[0], operator=ct.Operator.RELU)
    plan = make_plan(
        replace(made, inputs=(turned, made.inputs[1])), ct.PlanPreference(algo=Algo.TGETT), H200
    )
    copy = plan.steps[0]
    assert isinstance(copy, Permute)
    assert copy.source.operator is ct.Operator.IDENTITY
    assert plan.slots[copy.target.slot].tensor.dtype == "float16"
    product = next(step for step in plan.steps if isinstance(step, Gett))
    assert product.operator_a is ct.Operator.RELU


def test_permuted_bytes_are_counted() -> None:
    """The predicted time has room for every byte at the data sheet's bandwidth."""
    extents = {x: 24 for x in "abcdefg"}
    plan = plan_of("dega,gfbc->abcdef", extents, algo=Algo.TTGT)
    assert len(plan.steps) > 1
    assert plan.seconds > sum(step_bytes(plan, step) for step in plan.steps) / BANDWIDTH[90]


def test_tgett_costs_a_copy_more_than_gett_on_the_copy() -> None:
    extents = {"a": 4, "b": 4096, "c": 512, "d": 128}
    plan = plan_of("adb,dc->bac", extents, algo=Algo.TGETT)
    copy, product = plan.steps
    assert isinstance(product, Gett)
    best = min(seconds(f"{''.join(term)},dc->bac", extents, H200) for term in permutations("abd"))
    assert plan.seconds > best + step_bytes(plan, copy) / BANDWIDTH[90]


# --- what the model says --------------------------------------------------------------------------


four_sizes = st.tuples(*[st.integers(1, 700)] * 4)
layouts = st.sampled_from(["ik,kj->ij", "ki,kj->ji", "ikl,kjl->ijl", "lki,kjl->jli", "kli,jk->lij"])
architectures = st.sampled_from(ARCHITECTURES)
types = st.sampled_from(["float32", "float64", "complex64", "float16", "int8"])


def seconds(text: str, extents: dict[str, int], gpu: Architecture, **options: object) -> float:
    """Of the best Gett."""
    return plan_of(text, extents, gpu, algo=Algo.GETT, **options).seconds


@settings(max_examples=60, deadline=None, derandomize=True)
@given(layouts, four_sizes, architectures, types, st.sampled_from("ijkl"))
def test_twice_the_work_is_never_cheaper(
    text: str, sizes: tuple[int, ...], gpu: Architecture, dtype: str, mode: str
) -> None:
    """Twice, and not one more: an extent of another alignment may be read in wider accesses."""
    less = dict(zip("ijkl", (4 * n for n in sizes), strict=True))
    more = less | {mode: 2 * less[mode]}
    slack = 1 if mode == "k" else 1.02  # the last wave may be parted otherwise
    assert seconds(text, less, gpu, dtype=dtype) <= slack * seconds(text, more, gpu, dtype=dtype)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(layouts, four_sizes, architectures, types)
def test_what_can_only_help_never_costs(
    text: str, sizes: tuple[int, ...], gpu: Architecture, dtype: str
) -> None:
    """A wider alignment, a faster memory, no C, a compute type that promises less."""
    known = dict(zip("ijkl", sizes, strict=True))
    usual = seconds(text, known, gpu, dtype=dtype)
    assert usual <= seconds(text, known, gpu, dtype=dtype, alignment=8)
    assert usual < seconds(text, known, gpu, dtype=dtype, adds=True)
    assert seconds(text, known, replace(gpu, dram=2 * gpu.dram), dtype=dtype) <= usual
    if dtype in ("float32", "complex64"):
        assert seconds(text, known, gpu, dtype=dtype, compute=TF32) <= usual


def test_short_runs_cost_more() -> None:
    """The same product with A's columns 3 elements long, or turned into rows of one element."""
    extents = {"a": 3, "b": 400, "c": 256, "k": 4}
    near = seconds("bak,kc->bac", extents, H200)
    short = seconds("akb,kc->bac", extents, H200)
    assert short > near


def test_narrow_accesses_cost_more() -> None:
    """float16 at any even address is loaded without cp.async."""
    extents = {"i": 4096, "j": 4096, "k": 4096}
    wide = seconds("ik,kj->ij", extents, H200, dtype="float16")
    narrow = seconds("ik,kj->ij", extents, H200, dtype="float16", alignment=2)
    assert narrow > 1.2 * wide


def test_what_l2_does_not_hold_is_read_again() -> None:
    """A of 3 GB, in tiles of a few columns: B is small, and A comes as often as there are waves."""
    extents = {"i": 1 << 16, "j": 1 << 14, "k": 1 << 13}
    held = replace(H200, l2_bytes=1 << 40)
    assert seconds("ik,kj->ij", extents, H200, compute=ComputeType.BF16) > seconds(
        "ik,kj->ij", extents, held, compute=ComputeType.BF16
    )


# --- cuBLAS and the compute type ------------------------------------------------------------------

COMPUTE = [
    ("float32", "float32", None, "32F"),
    ("float32", "float32", ComputeType.F32, "32F"),
    ("float32", "float32", TF32, "32F_FAST_TF32"),
    ("float32", "float32", ComputeType.F16, "32F_FAST_TF32"),  # float16 could overflow
    ("float32", "float32", ComputeType.BF16, "32F_FAST_16BF"),
    ("float32", "float32", ComputeType.TF32X3, "32F"),
    ("float32", "float32", ComputeType.F16X4, "32F"),
    ("float32", "float32", ComputeType.BF16X9, "32F"),
    ("complex64", "complex64", TF32, "32F_FAST_TF32"),
    ("float16", "float32", ComputeType.F16, "32F"),
    ("bfloat16", "float32", ComputeType.F32, "32F"),
    ("float64", "float64", ComputeType.F32, "64F"),
    ("complex128", "complex128", ComputeType.INT8X8, "64F"),
]


@pytest.mark.parametrize(("factors", "dtype", "compute", "name"), COMPUTE, ids=str)
def test_cublas_is_never_less_than_what_is_promised(
    factors: str, dtype: str, compute: ComputeType | None, name: str
) -> None:
    assert blas_compute(factors, dtype, compute, H200) == name
    assert blas_compute(factors, dtype, compute, architecture_of(60)) in ("32F", "64F")
    without = blas_compute(factors, dtype, compute, H200.without_tf32())
    assert without == ("32F" if name == "32F_FAST_TF32" else name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("text", ["ik,kj->ij", "ika,kj->ija"])
def test_half_types_go_to_cublas_as_they_are(dtype: str, text: str) -> None:
    extents = {"i": 48, "j": 40, "k": 64, "a": 5}
    algo = Algo.GEMM if len(text) == 9 else Algo.TTGT
    plan = plan_of(text, extents, algo=algo, dtype=dtype)
    calls = [call for step in plan.steps for call in lower(plan, step, H200)]
    (call,) = (call for call in calls if isinstance(call, BlasCall))
    assert (call.a.dtype, call.b.dtype) == (dtype, dtype)
    assert (call.dtype, call.compute) == ("float32", "32F")
    assert call.d.dtype == (dtype if algo is Algo.GEMM else "float32")


def test_sums_of_half_types_stay_wide() -> None:
    """An intermediate is float32: cuBLAS writes it, and reads it beside a converted copy."""
    extents = {"i": 64, "j": 64, "k": 512, "l": 64}
    plan = plan_of("ik,kj,jl->il", extents, dtype="float16", algo=Algo.TTGT)
    calls = [call for step in plan.steps for call in lower(plan, step, H200)]
    first, second = (call for call in calls if isinstance(call, BlasCall))
    assert (first.a.dtype, first.b.dtype, first.d.dtype) == ("float16", "float16", "float32")
    assert (second.a.dtype, second.b.dtype, second.d.dtype) == ("float32", "float32", "float32")


def test_bfloat16_needs_tensor_cores() -> None:
    extents = {"i": 48, "j": 40, "k": 64}
    old = architecture_of(60)
    with pytest.raises(ct.NotSupportedError, match="GEMM"):
        plan_of("ik,kj->ij", extents, old, Algo.GEMM, dtype="bfloat16")
    plan = plan_of("ik,kj->ij", extents, old, Algo.TTGT, dtype="bfloat16")
    product = next(step for step in plan.steps if isinstance(step, Gemm))
    assert plan.slots[product.a].tensor.dtype == "float32"


@pytest.mark.parametrize("compute", [TF32, ComputeType.TF32X3, ComputeType.F16])
def test_tf32_can_be_forbidden(compute: ComputeType) -> None:
    extents = {"a": 256, "b": 64, "c": 256, "k": 256}
    free = plan_of("akb,kc->abc", extents, compute=compute)
    assert any("tf32" in each.reason for each in considered(free))
    forbidden = plan_of("akb,kc->abc", extents, H200.without_tf32(), compute=compute)
    for each in considered(forbidden):
        assert "tf32" not in each.reason
        assert "FAST" not in each.reason
        assert f"{compute.value} computes as 32F, for NVIDIA_TF32_OVERRIDE" in each.reason
    other = plan_of("akb,kc->abc", extents, H200.without_tf32(), compute=ComputeType.BF16)
    assert "bfloat16 tensor cores" in considered(other)[0].reason or "16BF" in str(other)


def test_nothing_summed_is_an_elementwise_step() -> None:
    plan = plan_of("ab,ba->ab", {"a": 300, "b": 200}, algo=Algo.ELEMENTWISE)
    assert isinstance(plan.steps[0], Elementwise)


# --- TMA and wgmma --------------------------------------------------------------------------------

LONG_SUM = "acd,dbc->ab", {"a": 384, "b": 376, "c": 376, "d": 384}


def by_hopper(plan: Plan) -> list[Candidate]:
    """The candidates that use TMA and wgmma."""
    return [each for each in considered(plan) if "TMA and wgmma" in each.reason]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_few_tiles_and_a_long_sum_go_to_wgmma(dtype: str) -> None:
    """In parts of k, in one pass over what lies where it is."""
    plan = plan_of(*LONG_SUM, dtype=dtype)
    (step,) = plan.steps
    assert isinstance(step, Gett)
    assert isinstance(step.blocking, HopperShare)
    assert step.blocking.parts > 1
    product, adding = lower(plan, step, H200)
    assert isinstance(product, KernelCall)
    assert product.reason == considered(plan)[0].reason
    assert product.grid[0] <= H200.multiprocessors
    assert product.scratch == adding.scratch > 0  # type: ignore[union-attr]
    verify(plan)
    text = explain(plan)
    assert "TMA and wgmma: tiles of 128 x 128, k by (64.1), 98% of them inside" in text
    assert f"k in {step.blocking.parts} parts to fill the machine" in text


@pytest.mark.parametrize(
    "gpu", [*ARCHITECTURES, H200.without_wgmma()], ids=lambda gpu: f"{gpu.capability} {gpu.wgmma}"
)
def test_only_9_0_has_wgmma(gpu: Architecture) -> None:
    plan = plan_of(*LONG_SUM, gpu, dtype="bfloat16")
    assert bool(by_hopper(plan)) is (gpu == H200)


def test_each_tile_is_a_rank() -> None:
    extents = dict.fromkeys("mnk", 4096)
    plan = plan_of("km,kn->mn", extents, dtype="bfloat16")
    tiles = {each.reason.split(",")[0] for each in by_hopper(plan)}
    assert tiles == {"large", "medium", "narrow", "small"}
    for rank, each in enumerate(considered(plan)):
        ranked = plan_of("km,kn->mn", extents, dtype="bfloat16", rank=rank)
        assert ranked.considered[0].chosen.reason == each.reason
        verify(ranked)


@pytest.mark.parametrize(
    ("dtype", "compute", "serves"),
    [
        ("float32", TF32, True),
        ("float32", None, False),
        ("float32", ComputeType.TF32X3, False),
        ("float64", None, False),
        ("complex64", TF32, False),
    ],
)
def test_types_of_wgmma(dtype: str, compute: ComputeType | None, serves: bool) -> None:
    """float32 along k, where tf32 is asked for and allowed."""
    extents = dict.fromkeys("mnk", 2048)
    plan = plan_of("km,kn->mn", extents, dtype=dtype, compute=compute)
    assert bool(by_hopper(plan)) is serves
    assert not by_hopper(plan_of("mk,kn->mn", extents, dtype="float32", compute=compute))
    without = plan_of("km,kn->mn", extents, H200.without_tf32(), dtype=dtype, compute=compute)
    assert not by_hopper(without)


def test_what_was_measured_is_what_is_predicted() -> None:
    """1.28 ms on an H100, where cuBLAS took 0.98."""
    plan = plan_of("mk,kn->mn", {"m": 7248, "k": 7248, "n": 7240}, dtype="bfloat16")
    large, *_ = by_hopper(plan)
    assert large.reason.startswith("large")
    assert large.seconds == pytest.approx(1.28e-3, rel=0.02)
    assert considered(plan)[0].algo is Algo.GEMM


def test_a_captured_product_goes_to_wgmma() -> None:
    """Where cuBLAS may not be called it is the quickest."""
    plan = plan_of("mk,kn->mn", dict.fromkeys("mkn", 4096), dtype="bfloat16", algo=Algo.GEMM)
    (step,) = recordable(plan, H200).steps
    assert isinstance(step, Gett)
    assert isinstance(step.blocking, HopperShare)
