"""einsum: what NumPy and CuPy accept, with their types; references are NumPy's, wider."""

from typing import Any

import numpy as np
import pytest

import contract as ct
from tests.corpus.checks import values
from tests.devices import Device, Host
from tests.reference import assert_bounded, roundoffs, wide

TEXTS = [
    ("ij,jk", (5, 4), (4, 3)),
    ("ij,jk->ki", (5, 4), (4, 3)),
    ("ij,jk,kl->il", (5, 4), (4, 3), (3, 6)),
    ("i,i", (70,), (70,)),
    ("i,j", (7,), (9,)),
    ("ii", (6, 6)),
    ("ij->j", (5, 4)),
    ("ij->", (5, 4)),
    ("...ij,...jk->...ik", (3, 5, 4), (3, 4, 6)),
    ("...ij,...jk", (3, 1, 5, 4), (2, 4, 6)),
    ("i...,i...->...", (5, 3, 2), (5, 3, 2)),
    ("...,...", (4, 3), ()),
    ("a...b->b...a", (2, 3, 4)),
    (" i j , j k -> i k ", (5, 4), (4, 3)),
    ("ij,jk->ik", (3, 1), (5, 4)),
    ("ij,jk->ik", (0, 3), (3, 4)),
    ("ij,jk->ik", (2, 0), (0, 3)),
    ("ijk,ijk,ijk->k", (3, 4, 5), (3, 4, 5), (3, 4, 5)),
    ("iij,jk->ik", (4, 4, 3), (3, 5)),
    ("ba,ac,cb->", (2, 3), (3, 4), (4, 2)),
]
TYPES = [  # pairs and extents whose kernels test_types has
    ("int32", "float32"),
    ("int8", "int32"),
    ("float16", "float16"),
    ("complex64", "float32"),
    ("bool", "bool"),
]


def assert_einsum(
    device: Device, arguments: tuple[Any, ...], found: Any, dtype: Any = None
) -> None:
    """Shape, type and values are those of numpy.einsum on the same arguments."""
    arrays = [x for x in arguments if isinstance(x, np.ndarray)]
    kind = np.result_type(*arrays) if dtype is None else np.dtype(dtype)
    assert found.dtype == kind
    values_ = device.numpy(found)
    if kind.kind in "iub":
        wanted = np.einsum(*(x.astype(kind) if isinstance(x, np.ndarray) else x for x in arguments))
        np.testing.assert_array_equal(values_, wanted)
        return
    exact = [wide(x) if isinstance(x, np.ndarray) else x for x in arguments]
    sizes = [np.abs(x) if isinstance(x, np.ndarray) else x for x in exact]
    terms = max((x.size for x in arrays), default=1) + 4
    wanted, size = np.asarray(np.einsum(*exact)), np.asarray(np.einsum(*sizes))
    assert_bounded(values_, wanted, size, terms, roundoffs(kind.name))


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("call", TEXTS, ids=str)
def test_texts(device: Device, call: Any, optimize: bool, rng: np.random.Generator) -> None:
    text, *shapes = call
    operands = [values(rng, shape, "float32") for shape in shapes]
    arrays = [device.array(x) for x in operands]
    for _ in range(2):  # planned, then cached
        found = ct.einsum(text, *arrays, optimize=optimize)
        assert_einsum(device, (text, *operands), found)


@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_result_types(device: Device, types: tuple[str, str], rng: np.random.Generator) -> None:
    x, y = (
        np.asfortranarray(values(rng, shape, dtype))
        for shape, dtype in zip(((13, 300), (300, 21)), types, strict=True)
    )
    found = ct.einsum("ij,jk->ki", device.array(x), device.array(y), order="F")
    assert_einsum(device, ("ij,jk->ki", x, y), found)


@pytest.mark.parametrize("dtype", ["float64"])
def test_dtype(device: Device, dtype: str, rng: np.random.Generator) -> None:
    x, y = values(rng, (5, 9), "float32"), values(rng, (9, 7), "float32")
    found = ct.einsum("ij,jk->ik", device.array(x), device.array(y), dtype=dtype)
    assert_einsum(device, ("ij,jk->ik", x, y), found, dtype)


def test_casting(device: Device, rng: np.random.Generator) -> None:
    """NumPy's default is safe casting of operands; CuPy converts whatever it is given."""
    x = values(rng, (5, 9), "float64")
    a = device.array(x)
    if isinstance(device, Host):
        with pytest.raises(TypeError):
            ct.einsum("ij->i", a, dtype="float32")
    else:
        assert_einsum(device, ("ij->i", x.astype("f4")), ct.einsum("ij->i", a, dtype="float32"))
    found = ct.einsum("ij->i", a, dtype="float32", casting="unsafe")
    assert_einsum(device, ("ij->i", x.astype("f4")), found)


def test_lists_of_labels(device: Device, rng: np.random.Generator) -> None:
    x, y, z = (values(rng, shape, "float32") for shape in ((5, 4), (4, 3), (2, 5, 4)))
    a, b, c = map(device.array, (x, y, z))
    calls = [
        ((x, [0, 1], y, [1, 2], [2, 0]), (a, [0, 1], b, [1, 2], [2, 0])),
        ((x, [7, 3], y, [3, 5]), (a, [7, 3], b, [3, 5])),
        ((z, [..., 1, 2], [..., 2]), (c, [..., 1, 2], [..., 2])),
    ]
    for wanted, given in calls:
        assert_einsum(device, wanted, ct.einsum(*given))


def test_views(device: Device, rng: np.random.Generator) -> None:
    """A transposed operand or a diagonal is the operand's memory."""
    x = values(rng, (5, 5, 4), "float32")
    a = device.array(x.copy())
    for text in ("abc->cab", "aac->ca", "abc"):
        found = ct.einsum(text, a)
        np.testing.assert_array_equal(device.numpy(found), np.einsum(text, x))
    ct.einsum("aac->ac", a)[...] = 0
    np.einsum("aac->ac", x)[...] = 0
    np.testing.assert_array_equal(device.numpy(a), x)


def test_out(device: Device, rng: np.random.Generator) -> None:
    x, y = values(rng, (6, 6), "float32"), values(rng, (6, 6), "float32")
    a, b, out = device.array(x.copy()), device.array(y), device.array(np.full((6, 6), np.nan, "f4"))
    assert ct.einsum("ij,jk->ki", a, b, out=out) is out
    assert_einsum(device, ("ij,jk->ki", x, y), out)
    ct.einsum("ij,jk->ik", a, b, out=a)
    assert_einsum(device, ("ij,jk->ik", x, y), a)


def test_rank_0_results(gpu: Device) -> None:
    """CuPy gives arrays, where NumPy gives scalars: reading one would wait for the device."""
    a = gpu.array(np.ones(5, "f4"))
    found = ct.einsum("i,i->", a, a)
    assert type(found) is type(a)
    assert found.shape == ()
    assert gpu.numpy(found) == 5
    assert type(ct.einsum("i,i->", a, a)) is type(a)


def test_paths(device: Device, rng: np.random.Generator) -> None:
    operands = [values(rng, shape, "float32") for shape in ((5, 4), (4, 3), (3, 6))]
    arrays = [device.array(x) for x in operands]
    path, _ = ct.einsum_path("ij,jk,kl->il", *arrays)
    for optimize in (path, "greedy", "optimal", ["einsum_path", (1, 2), (0, 1)], ("greedy", 1e6)):
        found = ct.einsum("ij,jk,kl->il", *arrays, optimize=optimize)
        assert_einsum(device, ("ij,jk,kl->il", *operands), found)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("ij,jk->ik", [(5, 4), (3, 6)]),
        ("ij->ii", [(5, 4)]),
        ("ij->k", [(5, 4)]),
        ("ij,jk", [(5, 4)]),
        ("i", [(5, 4)]),
        ("i..j", [(5, 4)]),
    ],
)
def test_refusals(device: Device, text: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [device.array(np.ones(shape, "f4")) for shape in shapes]
    with pytest.raises(ValueError, match=r"\w"):
        ct.einsum(text, *arrays)
