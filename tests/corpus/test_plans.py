"""The level of descriptors: every candidate of an operation, in a workspace of the caller's."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.machines.constants import with_constants
from contract.plan.steps import Gett
from contract.storage.calibration import calibration_path, write_calibration
from tests.corpus.cases import CONTRACTIONS, Case, case, rotated, tccg
from tests.corpus.checks import PLAIN, Scaling, assert_product, operands_of, values
from tests.devices import Device
from tests.reference import assert_bounded, roundoffs, wide

MODELLED = [algo for algo in ct.Algo if algo is not ct.Algo.DEFAULT_PATIENT]
LINE = 64  # bytes, at a multiple of which a plan's workspace begins
PRODUCTS = [
    *rotated(
        [
            case("mk,kn->mn", 13, 21, 35),
            case("km,nk->nm", 17, 35, 5),
            case("lmk,lkn->lmn", 5, 9, 7, 11),
            case("m,n->nm", 33, 9),
            case("k,k->", 5000),
            case("ab,ab->ba", 31, 21),
            case("ab,bc,cd->da", 9, 11, 13, 15),
            *tccg()[::12],
        ],
        ("float32",),
    ),
    *rotated([case("mkl,lnk->nml", 9, 11, 3, 21)] * 3, ("float64", "complex64", "float16")),
]
BATCHED = rotated([case("mkl,knl->mnl", 9, 12, 5, 16)], ("complex64",))[0]
RANKED = PRODUCTS[-1]  # all its candidates are built: by every test that builds them


def operand(x: np.ndarray, modes: str) -> ct.Operand:
    strides = tuple(step // x.itemsize for step in x.strides)
    return ct.Operand(ct.TensorDescriptor(x.shape, strides, x.dtype.name), modes)


def contraction(
    each: Case, operands: Sequence[np.ndarray], d: np.ndarray, c: Any
) -> ct.Contraction:
    inputs = tuple(operand(x, term) for x, term in zip(operands, each.terms, strict=True))
    addend = None if c is None else operand(c, each.output)
    return ct.Contraction(inputs, operand(d, each.output), addend)


def plans(device: Device, operation: Any) -> Iterator[Any]:
    """Every candidate, and one that needs no workspace, if there is.

    Building an emulated kernel takes a second or two: there, one candidate of each algorithm.
    """
    if device.name == "emulated":
        for algo in MODELLED:
            with suppress(ct.NotSupportedError):
                yield device.handle.plan(operation, ct.PlanPreference(algo=algo))
    else:
        yield from device.handle.candidates(operation, ct.PlanPreference())
    with suppress(ct.InsufficientWorkspaceError):
        yield device.handle.plan(operation, ct.PlanPreference(workspace_limit=0))


def poisoned(device: Device, required: int) -> Any:
    """A workspace with room behind that is not the plan's."""
    return device.array(np.full(required + 2 * LINE, 0xFF, np.uint8))


@pytest.mark.parametrize(
    ("each", "with_c"), [*zip(PRODUCTS, cycle((True, False)), strict=False)], ids=str
)
def test_every_candidate_of_a_contraction(
    device: Device, each: Case, with_c: bool, rng: np.random.Generator
) -> None:
    operands = operands_of(each, rng)
    shape, dtype = each.shape(each.output), each.dtypes[0]
    c = np.asfortranarray(values(rng, shape, dtype)).reshape(shape) if with_c else None
    d = np.full(shape, np.nan, dtype, order="F")
    scaling = Scaling(-1.5, 0.5, c) if with_c else PLAIN
    arrays = [device.array(x) for x in operands]
    addend = None if c is None else device.array(c)
    run = device.handle.contract if len(arrays) == 2 else device.handle.contract_trinary
    for plan in plans(device, contraction(each, operands, d, c)):
        workspace, out = poisoned(device, plan.required_workspace), device.array(d)
        run(plan, scaling.alpha, *arrays, scaling.beta, addend, out, workspace)
        assert_product(device.numpy(out), each, operands, scaling)
        assert (device.numpy(workspace)[-LINE:] == 0xFF).all(), str(plan)


@pytest.mark.parametrize("algo", ct.Algo)
def test_algorithms(device: Device, algo: ct.Algo, rng: np.random.Generator) -> None:
    """Each gives the same, where it exists."""
    each = RANKED if algo is ct.Algo.DEFAULT_PATIENT else BATCHED
    operands = operands_of(each, rng)
    d = np.full(each.shape(each.output), np.nan, each.dtypes[0], order="F")
    operation = contraction(each, operands, d, None)
    try:
        plan = device.handle.plan(operation, ct.PlanPreference(algo=algo))
    except ct.NotSupportedError:
        assert algo in (ct.Algo.ELEMENTWISE, ct.Algo.ONE_PASS, ct.Algo.TGETT)
        return
    out = device.array(d)
    device.handle.contract(plan, 1, *(device.array(x) for x in operands), 0, None, out)
    assert_product(device.numpy(out), each, operands)


def test_every_rank_on_a_gpu(gpu: Device, rng: np.random.Generator) -> None:
    """Configurations of one kernel among them: all within the bound, each the same bits twice."""
    each = RANKED
    operands = operands_of(each, rng)
    d = np.full(each.shape(each.output), np.nan, each.dtypes[0], order="F")
    wanted = contraction(each, operands, d, None)
    arrays = [gpu.array(x) for x in operands]
    algorithms, configurations = set(), set()
    for plan in gpu.handle.candidates(wanted, ct.PlanPreference()):
        first, second = gpu.array(d), gpu.array(d)
        for out in (first, second):
            gpu.handle.contract(plan, 1, *arrays, 0, None, out)
        assert_product(gpu.numpy(first), each, operands)
        assert gpu.numpy(first).tobytes() == gpu.numpy(second).tobytes()
        (chosen,) = {each.chosen.algo for each in plan.plan.considered}
        algorithms.add(chosen)
        configurations |= {s.blocking for s in plan.plan.steps if isinstance(s, Gett)}
    assert algorithms >= {ct.Algo.GETT, ct.Algo.TTGT, ct.Algo.TGETT}
    assert len(configurations) >= 6


@pytest.mark.parametrize(
    ("dtype", "compute"), [(dtype, kind) for dtype, kinds in CONTRACTIONS.items() for kind in kinds]
)
def test_cublas_keeps_what_is_promised(
    gpu: Device, dtype: str, compute: str, rng: np.random.Generator
) -> None:
    """Sizes of 10^30, beyond the range of float16, among them."""
    each = rotated([case("km,nk->mn", 41, 13, 21)], (dtype,))[0]
    operands, shape = operands_of(each, rng), each.shape(each.output)
    if dtype == "float32":
        operands[0] *= np.float32(1e30)
    c = np.asfortranarray(values(rng, shape, dtype))
    d = np.full(shape, np.nan, dtype, order="F")
    made = contraction(each, operands, d, c)
    wanted = replace(made, compute=ct.ComputeType(compute))
    plan = gpu.handle.plan(wanted, ct.PlanPreference(algo=ct.Algo.GEMM))
    out = gpu.array(d)
    gpu.handle.contract(plan, -1.5, *map(gpu.array, operands), 0.5, gpu.array(c), out)
    assert_product(gpu.numpy(out), each, operands, Scaling(-1.5, 0.5, c), compute)


@pytest.mark.parametrize("algo", [ct.Algo.GEMM, ct.Algo.GETT])
def test_parts_of_sums_are_not_rounded(gpu: Device, algo: ct.Algo) -> None:
    """2048 + 1 is 2048 in float16; cuBLAS may add parts of k in the type of D if it is let."""
    x, y = np.zeros((8, 256), "f2", order="F"), np.ones((256, 8), "f2", order="F")
    x[:, 0], x[:, 1], x[:, 255] = 2048, 0.75, 1
    d = np.empty((8, 8), "f2", order="F")
    wanted = ct.Contraction((operand(x, "ik"), operand(y, "kj")), operand(d, "ij"))
    plan, out = gpu.handle.plan(wanted, ct.PlanPreference(algo=algo)), gpu.array(d)
    gpu.handle.contract(plan, 1, gpu.array(x), gpu.array(y), 0, None, out)
    assert (gpu.numpy(out) == 2050).all()


def test_the_model_fitted_to_a_card_is_used(
    gpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read from its file; plans made by it are not those of the built-in one."""
    built_in, card = gpu.handle.executor.machine, gpu.handle.executor.card
    fitted = with_constants(built_in, {"costs.launch": 4 * built_in.costs.launch})
    write_calibration(calibration_path(tmp_path, card), fitted, card)
    monkeypatch.setenv("CONTRACT_CALIBRATION", str(tmp_path))
    x = np.ones((4, 4), "f4", order="F")
    operation = contraction(case("mk,kn->mn", 4, 4, 4), (x, x), x, None)
    with ct.Handle(device=0) as handle:
        assert handle.executor.machine == fitted
        assert handle.executor.identity != gpu.handle.executor.identity
        assert handle.plan(operation).plan.seconds > gpu.handle.plan(operation).plan.seconds
    calibration_path(tmp_path, card).write_text("{}")
    with pytest.warns(RuntimeWarning, match=r"built-in model is used.*fields"):
        assert ct.Handle(device=0).executor.machine == built_in


@pytest.mark.parametrize("compute", ["TF32", "3XTF32", "16F"])
@pytest.mark.parametrize("algo", [ct.Algo.GEMM, ct.Algo.GETT])
def test_tf32_can_be_forbidden(
    gpu: Device, compute: str, algo: ct.Algo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 + 2^-12 and its like are rounded by tf32, and are not where it is forbidden."""
    x = np.full((8, 16), 1 + 2.0**-12, "f4", order="F")
    y, d = np.ones((16, 8), "f4", order="F"), np.empty((8, 8), "f4", order="F")
    wanted = ct.Contraction(
        (operand(x, "ik"), operand(y, "kj")), operand(d, "ij"), compute=ct.ComputeType(compute)
    )
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    with ct.Handle(device=0) as handle:
        plan = handle.plan(wanted, ct.PlanPreference(algo=algo))
        out = gpu.array(d)
        handle.contract(plan, 1, gpu.array(x), gpu.array(y), 0, None, out)
        assert (gpu.numpy(out) == 16 * (1 + 2.0**-12)).all()
        assert "forbids TF32" in str(plan)


def test_reductions_in_a_workspace(device: Device, rng: np.random.Generator) -> None:
    x, c = values(rng, (5, 40000), "float32"), values(rng, (5,), "float32")
    d = np.full(5, np.nan, "f4")
    operation = ct.Reduction((operand(x, "ab"),), operand(d, "a"), operand(c, "a"))
    a, addend = device.array(x), device.array(c)
    for plan in plans(device, operation):
        workspace, out = poisoned(device, plan.required_workspace), device.array(d)
        device.handle.reduce(plan, 2, a, -1, addend, out, workspace)
        size = 2 * np.abs(wide(x)).sum(1) + np.abs(wide(c))
        wanted = 2 * wide(x).sum(1) - wide(c)
        assert_bounded(device.numpy(out), wanted, size, 40000, roundoffs("float32"))
        assert (device.numpy(workspace)[-LINE:] == 0xFF).all()


def test_elementwise_plans(device: Device, rng: np.random.Generator) -> None:
    x, y = values(rng, (33, 9), "float32"), values(rng, (9, 33), "float32")
    d = np.full((33, 9), np.nan, "f4", order="F")
    a, b, handle = device.array(x), device.array(y), device.handle
    inputs = operand(x, "ab"), operand(y, "ba")
    operation = ct.ElementwiseOperation(inputs, operand(d, "ab"), (ct.BinaryOperator.MAX,))
    for plan in plans(device, operation):
        out = device.array(d)
        handle.elementwise_binary(plan, 2, a, -1, b, out)
        np.testing.assert_array_equal(device.numpy(out), np.maximum(2 * x, -y.T))
    for plan in plans(device, ct.ElementwiseOperation(inputs[1:], operand(d, "ab"))):
        out = device.array(d)
        handle.permute(plan, 2, b, out)
        np.testing.assert_array_equal(device.numpy(out), 2 * y.T)


def test_raw_memory_and_gaps(device: Device, rng: np.random.Generator) -> None:
    """A and D are flat memory seen through descriptors whose columns are 3 elements apart."""
    memory, y = values(rng, (200,), "float32"), values(rng, (8, 7), "float32")
    seen = ct.Operand(ct.TensorDescriptor((9, 8), (1, 12), "float32"), "mk")
    result = ct.Operand(ct.TensorDescriptor((9, 7), (1, 12), "float32"), "mn")
    plan = device.handle.plan(ct.Contraction((seen, operand(y, "kn")), result))
    d = device.array(np.full(100, 77, "f4"))
    device.handle.contract(plan, 1, device.array(memory), device.array(y), 0, None, d)
    found = device.numpy(d)
    view = np.lib.stride_tricks.as_strided(found, (9, 7), (4, 48))
    x = np.lib.stride_tricks.as_strided(memory, (9, 8), (4, 48))
    assert_product(view, Case("mk,kn->mn", {"m": 9, "k": 8, "n": 7}), [x, y])
    view[...] = 77
    assert (found == 77).all()


def test_an_alignment_is_a_promise(device: Device, rng: np.random.Generator) -> None:
    """The same plan with wide accesses and without."""
    x = np.asfortranarray(values(rng, (64, 33), "float32"))
    d = np.full((64,), np.nan, "f4")
    for alignment in (4, 8, 16):
        tensor = ct.TensorDescriptor(x.shape, None, "float32", alignment)
        operation = ct.Reduction((ct.Operand(tensor, "ab"),), operand(d, "a"))
        out = device.array(d)
        device.handle.reduce(device.handle.plan(operation), 1, device.array(x), 0, None, out)
        size = np.abs(wide(x)).sum(1)
        assert_bounded(device.numpy(out), wide(x).sum(1), size, 33, roundoffs("float32"))
