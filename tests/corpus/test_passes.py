"""Permutations, reductions and elementwise operations: orders, padding, broadcasting, memory."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

import contract as ct
from tests.corpus.checks import MEMORY, stored, values
from tests.devices import Device
from tests.reference import assert_bounded, roundoffs, wide

SHAPES = [(3, 4, 5), (33, 2, 65), (1, 130, 7), (128, 64, 3)]
ORDERS = ["".join(each) for each in itertools.permutations("abc")]


def ordered(x: np.ndarray, term: str, output: str) -> np.ndarray:
    """``x`` with the output's dimensions in its order, 1 where it has none."""
    distinct = "".join(dict.fromkeys(term))
    x = np.einsum(f"{term}->{''.join(each for each in output if each in distinct)}", x)
    return x[tuple(slice(None) if label in distinct else None for label in output)]


@pytest.mark.parametrize("output", ORDERS)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_permutations(device: Device, output: str, dtype: str, rng: np.random.Generator) -> None:
    for shape in SHAPES:
        x = stored(values(rng, shape, dtype), "F")
        found = ct.permute(f"abc->{output}", device.array(x), handle=device.handle)
        np.testing.assert_array_equal(device.numpy(found), ordered(x, "abc", output))


def test_permutations_of_high_rank(device: Device, rng: np.random.Generator) -> None:
    x = stored(values(rng, (3, 2, 4, 1, 5, 2, 3), "float32"), "F")
    for output in ("gfedcba", "badcfeg", "cgabefd"):
        found = ct.permute(f"abcdefg->{output}", device.array(x), handle=device.handle)
        np.testing.assert_array_equal(device.numpy(found), ordered(x, "abcdefg", output))


@pytest.mark.parametrize(
    ("output", "pairs"), [("ab", ((1, 2), (0, 3))), ("ba", ((0, 0), (5, 1))), ("ba", ((8, 4),) * 2)]
)
def test_padding(
    device: Device,
    output: str,
    pairs: Sequence[tuple[int, int]],
    rng: np.random.Generator,
) -> None:
    for shape in ((9, 14), (1, 3), (0, 4), (70, 65)):
        x = values(rng, shape, "float32")
        found = ct.permute(
            f"ab->{output}",
            device.array(x),
            alpha=2,
            padding=pairs,
            padding_value=-3,
            handle=device.handle,
        )
        wanted = np.pad(ordered(2 * x, "ab", output), pairs, constant_values=-3)
        np.testing.assert_array_equal(device.numpy(found), wanted)


@pytest.mark.parametrize("memory", MEMORY)
def test_permutations_of_any_memory(device: Device, memory: str, rng: np.random.Generator) -> None:
    x = stored(values(rng, (9, 4, 34), "float32"), memory)
    for output in ("abc", "cab"):
        found = ct.permute(f"abc->{output}", device.array(x), handle=device.handle)
        np.testing.assert_array_equal(device.numpy(found), ordered(x, "abc", output))


@pytest.mark.parametrize(
    ("output", "op"),
    [*((each, "add") for each in ("", "a", "b", "c", "ab", "ca", "bc")), ("b", "max")],
)
def test_reductions(device: Device, output: str, op: str, rng: np.random.Generator) -> None:
    """Over first, middle and last modes, few and many."""
    function = {"add": np.add, "max": np.maximum}[op]
    for shape in ((5, 6, 3), (40, 3, 70), (2, 3000, 3), (1, 1, 1)):
        x = stored(values(rng, shape, "float32"), "F")
        found = ct.reduce(f"abc->{output}", device.array(x), op=op, handle=device.handle)
        axes = tuple(at for at, label in enumerate("abc") if label not in output)
        wanted, size = (function.reduce(each, axis=axes) for each in (wide(x), np.abs(wide(x))))
        if op == "max":
            size = np.abs(wanted)
        terms = x.size / max(np.size(wanted), 1) if op == "add" else 0
        kept = "".join(sorted(output))
        wanted, size = (ordered(np.asarray(each), kept, output) for each in (wanted, size))
        assert_bounded(device.numpy(found), wanted, size, terms, roundoffs("float32"))


@pytest.mark.parametrize("op", ["add", "mul", "max", "min"])
def test_reductions_of_nothing(device: Device, op: str) -> None:
    a = device.array(np.zeros((4, 0, 3), "f4"))
    if op in ("max", "min"):
        with pytest.raises(ct.InvalidValueError):
            ct.reduce("abc->ac", a, op=op, handle=device.handle)
        return
    found = device.numpy(ct.reduce("abc->ac", a, op=op, handle=device.handle))
    np.testing.assert_array_equal(found, np.full((4, 3), op == "mul"))
    assert ct.reduce("abc->bc", a, op=op, handle=device.handle).shape == (0, 3)


@pytest.mark.parametrize("memory", MEMORY)
def test_reductions_of_any_memory(device: Device, memory: str, rng: np.random.Generator) -> None:
    x = stored(values(rng, (9, 40, 7), "float32"), memory)
    c = values(rng, (7,), "float32")
    a, addend = device.array(x), device.array(c)
    found = ct.reduce("abc->c", a, c=addend, alpha=2, beta=-0.5, handle=device.handle)
    wanted = 2 * wide(x).sum((0, 1)) - 0.5 * wide(c)
    size = 2 * np.abs(wide(x)).sum((0, 1))
    u = roundoffs("float32")
    assert_bounded(device.numpy(found), wanted, size, 360, u, 0.5 * np.abs(wide(c)))
    found = ct.reduce("abb->a", device.array(x[:, :7, :]), handle=device.handle)
    wanted = np.einsum("abb->a", wide(x)[:, :7, :])
    assert_bounded(device.numpy(found), wanted, np.full(9, 7.0), 7, u)


@pytest.mark.parametrize(
    "text",
    [
        "abc,abc->abc",
        "cba,abc->abc",
        "bca,acb->abc",
        "c,ab->abc",
        ",cab->abc",
        "aab,ba->ab",
        "b,a->ab",
    ],
)
def test_elementwise_binary(device: Device, text: str, rng: np.random.Generator) -> None:
    inputs, output = text.split("->")
    terms = inputs.split(",")
    for extents in ({"a": 5, "b": 4, "c": 3}, {"a": 66, "b": 7, "c": 35}):
        x, y = (values(rng, [extents[label] for label in term], "float32") for term in terms)
        arrays = [device.array(stored(each, "F")) for each in (x, y)]
        found = ct.elementwise_binary(text, *arrays, op="mul", gamma=-2, handle=device.handle)
        wanted = -2 * ordered(wide(x), terms[0], output) * ordered(wide(y), terms[1], output)
        assert_bounded(device.numpy(found), wanted, np.abs(wanted), 2, roundoffs("float32"))


@pytest.mark.parametrize(
    ("text", "dtypes"),
    [
        ("ab,ba,ab->ab", ("float64",) * 3),
        ("ab,ba,a->ba", ("float32",) * 3),
        ("abc,cba,bca->acb", ("int32",) * 3),
        (",b,ca->abc", ("complex64",) * 3),
    ],
)
def test_elementwise_trinary(
    device: Device, text: str, dtypes: tuple[str, ...], rng: np.random.Generator
) -> None:
    inputs, output = text.split("->")
    terms, extents = inputs.split(","), {"a": 19, "b": 34, "c": 3}
    x, y, z = (
        values(rng, [extents[label] for label in term], dtype)
        for term, dtype in zip(terms, dtypes, strict=True)
    )
    arrays = [device.array(stored(each, "F")) for each in (x, y, z)]
    found = ct.elementwise_trinary(
        text, *arrays, op_ab="mul", alpha=2, beta=3, gamma=-1, handle=device.handle
    )
    f, g, h = (ordered(each, term, output) for each, term in zip((x, y, z), terms, strict=True))
    if dtypes[0] == "int32":
        wanted = np.int32(6) * f * g - h
        np.testing.assert_array_equal(device.numpy(found), wanted)
        return
    f, g, h = wide(f), wide(g), wide(h)
    size = 6 * np.abs(f * g) + np.abs(h)
    assert_bounded(device.numpy(found), 6 * f * g - h, size, 3, roundoffs(dtypes[0]))


def test_elementwise_in_place(device: Device, rng: np.random.Generator) -> None:
    x, y = (stored(values(rng, (33, 40), "float32"), "F") for _ in range(2))
    a, b = device.array(x.copy(order="F")), device.array(y)
    ct.elementwise_binary("ab,ab->ab", a, b, out=a, gamma=2, handle=device.handle)
    size = np.abs(wide(x)) + 2 * np.abs(wide(y))
    found = device.numpy(a)
    assert_bounded(found, wide(x) + 2 * wide(y), size, 1, roundoffs("float32"))
    ct.permute("ab->ab", a, alpha=2, out=a, handle=device.handle)
    np.testing.assert_array_equal(device.numpy(a), 2 * found)


def test_an_out_that_overlaps_an_operand(device: Device, rng: np.random.Generator) -> None:
    x = stored(values(rng, (30, 30), "float32"), "F")
    a = device.array(x.copy(order="F"))
    ct.permute("ab->ba", a, out=a, handle=device.handle)
    np.testing.assert_array_equal(device.numpy(a), x.T)
    a = device.array(x.copy(order="F"))
    ct.elementwise_binary("ab,ba->ab", a, a, op="max", out=a, handle=device.handle)
    np.testing.assert_array_equal(device.numpy(a), np.maximum(x, x.T))
