"""The level of descriptors: every candidate of an operation, in a workspace of the caller's."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any

import numpy as np
import pytest

import contract as ct
from tests.corpus.cases import Case, case, rotated, tccg
from tests.corpus.checks import PLAIN, Scaling, assert_product, operands_of, values
from tests.devices import Device
from tests.reference import assert_bounded, roundoffs, wide

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
    """Every candidate, and one that needs no workspace, if there is."""
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
    each = rotated([case("mkl,knl->mnl", 9, 12, 5, 16)], ("complex64",))[0]
    operands = operands_of(each, rng)
    d = np.full(each.shape(each.output), np.nan, "c8", order="F")
    operation = contraction(each, operands, d, None)
    try:
        plan = device.handle.plan(operation, ct.PlanPreference(algo=algo))
    except ct.NotSupportedError:
        assert algo in (ct.Algo.ELEMENTWISE, ct.Algo.ONE_PASS)
        return
    out = device.array(d)
    device.handle.contract(plan, 1, *(device.array(x) for x in operands), 0, None, out)
    assert_product(device.numpy(out), each, operands)


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
