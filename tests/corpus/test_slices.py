"""Contractions in slices: values, types, scalars, layouts, and the same bits every time."""

from typing import Any

import numpy as np
import pytest

import contract as ct
from tests.corpus.cases import Case, case
from tests.corpus.checks import Scaling, assert_product, operands_of, result_type, stored, values
from tests.devices import Device

SLICED: list[tuple[Case, dict[str, int]]] = [
    (case("mk,kn->mn", 13, 21, 10), {"k": 4}),
    (case("mk,kn->nm", 13, 21, 10), {"n": 3, "k": 2, "m": 2}),
    (case("abc,cbd,dae->e", 5, 7, 6, 9, 4), {"d": 2, "b": 3}),
    (case("kkm,kn->mn", 11, 5, 6), {"k": 3}),  # a diagonal of the operand
    (case("ik,kj->iij", 4, 9, 5), {"k": 2, "j": 2}),  # a diagonal of the result
    (case("mK,kn->mn", 6, 12, 5), {"k": 4, "n": 2}),  # a broadcast extent
    (case("abc,kb->ac", 5, 6, 7, 8), {"k": 3, "b": 2}),  # a mode of one operand alone
    (case("ak,bk,ck->abc", 4, 9, 5, 6), {"k": 2, "b": 3}),  # a mode of three operands
    (case("lmk,lkn->lmn", 5, 9, 7, 4), {"l": 5}),
    (case("ab,ab->", 6, 7), {"a": 4}),
    (case("abk->ba", 5, 6, 9), {"k": 4, "a": 2}),
]
DTYPES = ("float32", "complex64", "float16", "int16", "float64", "bfloat16", "bool", "complex128")
MEMORY = ("C", "sliced", "reversed")


def typed(each: Case, dtype: str) -> Case:
    return Case(each.text, each.extents, (dtype,) * len(each.terms))


def run(device: Device, each: Case, operands: list[np.ndarray], **options: Any) -> Any:
    arrays = [device.array(x) for x in operands]
    return ct.contract(each.lower.text, *arrays, handle=device.handle, **options)


@pytest.mark.parametrize("at", range(len(SLICED)), ids=lambda at: SLICED[at][0].text)
def test_slices_of_every_kind(device: Device, at: int, rng: np.random.Generator) -> None:
    each, slices = SLICED[at]
    types = (DTYPES[at % len(DTYPES)], DTYPES[(at + 3) % len(DTYPES)])
    for dtype in types if device.name == "host" else ("float32",):
        each = typed(each, dtype)
        operands = operands_of(each, rng, MEMORY[: at % 4])
        found = run(device, each, operands, slices=slices)
        assert found.dtype == result_type(each.dtypes)
        assert_product(device.numpy(found), each, operands)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_alpha_beta_and_c(device: Device, dtype: str, rng: np.random.Generator) -> None:
    """beta * C is added once; a zero scalar leaves what it scales unread."""
    each = typed(case("mk,kn->mn", 9, 21, 10), dtype)
    operands = operands_of(each, rng)
    c = stored(values(rng, (9, 10), dtype), "C")
    slices = {"k": 3, "m": 2}
    for alpha, beta in ((3, 2), (0, 3), (2, 0)):
        read = [stored(np.full_like(x, 0), "F") if alpha == 0 else x for x in operands]
        given = [np.full_like(x, np.nan) if alpha == 0 and x.dtype.kind in "fc" else x
                 for x in operands]  # fmt: skip
        out = device.array(np.full((9, 10), 7).astype(dtype))
        found = run(
            device, each, given, slices=slices, alpha=alpha, beta=beta, c=device.array(c), out=out
        )
        assert found is out
        assert_product(device.numpy(out), each, read, Scaling(alpha, beta, c))


def test_in_place_and_over_an_operand(device: Device, rng: np.random.Generator) -> None:
    each = typed(case("mk,kn->mn", 8, 8, 8), "float32")
    operands = operands_of(each, rng)
    c = stored(values(rng, (8, 8), "float32"), "F")
    d = device.array(c.copy())
    slices = {"k": 3, "n": 2}
    run(device, each, operands, slices=slices, alpha=2, beta=-1, c=d, out=d)
    assert_product(device.numpy(d), each, operands, Scaling(2, -1, c))
    a, b = (device.array(x.copy()) for x in operands)
    ct.contract("mk,kn->mn", a, b, out=a, slices=slices, handle=device.handle)
    assert_product(device.numpy(a), each, operands)


@pytest.mark.parametrize("text", ["b,ab->b", "ab,b->b", "b,aab->b"])
def test_over_an_operand_that_every_slice_reads(
    device: Device, text: str, rng: np.random.Generator
) -> None:
    each = typed(case(text, 7, 6), "float64")
    operands = operands_of(each, rng)
    placed = [device.array(x.copy(order="F")) for x in operands]
    (over,) = (x for x in placed if x.ndim == 1)
    found = ct.contract(text, *placed, out=over, slices={"a": 3}, handle=device.handle)
    assert found is over
    assert_product(device.numpy(over), each, operands)


def test_the_same_bits_every_time(device: Device, rng: np.random.Generator) -> None:
    each = typed(case("mk,kn->mn", 9, 21, 10), "float16")
    operands, c = operands_of(each, rng), stored(values(rng, (9, 10), "float16"), "C")
    options = {"slices": {"k": 3, "m": 2}, "alpha": 3, "beta": 2, "c": device.array(c)}
    out = device.array(np.zeros((9, 10), "f2"))
    bits = {device.numpy(run(device, each, operands, out=out, **options)).tobytes()
            for _ in range(3)}  # fmt: skip
    assert len(bits) == 1


def test_operators_act_in_every_slice(device: Device, rng: np.random.Generator) -> None:
    each = typed(case("mk,kn->mn", 7, 12, 5), "complex64")
    operands = operands_of(each, rng)
    found = run(device, each, operands, slices="k", operators=("conj", None))
    assert_product(device.numpy(found), each, [operands[0].conj(), operands[1]])


def test_the_same_array_under_other_modes(device: Device, rng: np.random.Generator) -> None:
    """Slices of one array differ by its modes: nothing may be shared."""
    each = typed(case("ab,bc,cd,de->ae", 6, 6, 6, 6, 6), "float32")
    x = device.array(stored(values(rng, (6, 6), "float32"), "F"))
    found = ct.contract(each.text, x, x, x, x, slices={"b": 2}, handle=device.handle)
    assert_product(device.numpy(found), each, [device.numpy(x)] * 4)


def test_a_network_within_a_limit(device: Device, rng: np.random.Generator) -> None:
    """The whole needs 23 kB for intermediates: a plan in slices does with 6 kB."""
    each = typed(case("abi,bcj,cak,ijk->a", 4, 5, 6, 8, 9, 10), "float32")
    operands = operands_of(each, rng)
    found = run(device, each, operands, memory_limit=6000, optimize=((0, 1), (0, 1), (0, 1)))
    assert_product(device.numpy(found), each, operands)
