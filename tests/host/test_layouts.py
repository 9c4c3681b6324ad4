"""Arrays between named layouts, against NumPy's transpositions and reshapes."""

import itertools

import numpy as np
import pytest

import contract as ct

IMAGES = ("NCHW", "NHWC", "CHWN", "NC/1HW1", "NC/4HW4", "NC/6HW6", "NC/32HW32", "NC/192HW192")
VOLUMES = ("NCDHW", "NDHWC", "CDHWN", "NC/4DHW4")


def reference(x: np.ndarray, layout: str) -> np.ndarray:
    """``x`` in NC(D)HW order as an array of the layout, by NumPy."""
    plain = "NCDHW" if x.ndim == 5 else "NCHW"
    if "/" not in layout:
        return np.ascontiguousarray(x.transpose([plain.index(mode) for mode in layout]))
    group = int(layout.split("W")[1])
    split = x.reshape(x.shape[0], x.shape[1] // group, group, *x.shape[2:])
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))


@pytest.mark.parametrize(
    ("source", "target"),
    [*itertools.product(IMAGES, repeat=2), *itertools.product(VOLUMES, repeat=2)],
)
def test_any_layout_becomes_any_other(source: str, target: str) -> None:
    shape = (2, 192, 3, 5) if source in IMAGES else (2, 8, 3, 5, 4)
    x = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    found = ct.convert_layout(reference(x, source), source, target)
    wanted = reference(x, target)
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, wanted)
    strided = np.stack([reference(x, source)] * 2)[0][..., ::-1][..., ::-1]
    np.testing.assert_array_equal(ct.convert_layout(strided, source, target), wanted)


def test_the_documented_example() -> None:
    x = np.arange(1280).reshape(1, 64, 5, 4)
    assert ct.convert_layout(x, "NCHW", "NHWC").ravel()[:3].tolist() == [0, 20, 40]
    vectorised = ct.convert_layout(x, "NCHW", "NC/32HW32")
    assert vectorised.shape == (1, 2, 5, 4, 32)
    assert vectorised.ravel()[[0, 1, 31, 32, 640]].tolist() == [0, 20, 620, 1, 640]


def test_descriptors_of_named_layouts() -> None:
    extents = {"N": 2, "C": 64, "H": 5, "W": 4}
    named = ct.TensorDescriptor.named
    assert named("NHWC", extents).strides == (1280, 1, 256, 64)
    assert named("CHWN", extents, "float32").strides == (1, 40, 8, 2)
    vectorised = named("NC/32HW32", extents)
    assert vectorised.extents == (2, 2, 5, 4, 32)
    assert vectorised.strides == (1280, 640, 128, 32, 1)
    assert named("NC/1HW1", extents).strides[:4] == named("NCHW", extents).strides
    volume = named("NC/4DHW4", {"N": 2, "C": 8, "D": 3, "H": 5, "W": 4})
    assert volume.extents == (2, 2, 3, 5, 4, 4)
    assert volume.strides == (480, 240, 80, 16, 4, 1)
    whole = named("NC/64HW64", extents)
    by_nhwc = named("NHWC", extents).strides
    assert (whole.strides[0], *whole.strides[2:]) == (by_nhwc[0], *by_nhwc[2:], by_nhwc[1])


@pytest.mark.parametrize(
    ("shape", "source", "target", "message"),
    [
        ((1, 4, 2, 2), "NCHW", "NCWH", "NCWH"),
        ((1, 4, 2, 2), "NCHW", "NDHWC", "different modes"),
        ((1, 4, 2), "NCHW", "NHWC", "4 dimensions"),
        ((1, 6, 2, 2), "NCHW", "NC/4HW4", "6 channels, groups of 4"),
        ((1, 6, 2, 2), "NCHW", "NC/4HW2", "NC/4HW2"),
        ((1, 6, 2, 2), "NCHW", "NC/0HW0", "NC/0HW0"),
    ],
)
def test_refusals(shape: tuple[int, ...], source: str, target: str, message: str) -> None:
    with pytest.raises(ct.InvalidValueError, match=message):
        ct.convert_layout(np.zeros(shape), source, target)


@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("abc,cd->abd", [(2, 3, 4), (4, 5)]),
        ("abc,cd->dab", [(2, 3, 4), (4, 5)]),
        ("cab,dc->bad", [(4, 2, 3), (5, 4)]),
        ("abc,kb->ac", [(2, 3, 4), (2, 3)]),
        ("ab,ab,b->a", [(3, 4), (3, 4), (4,)]),
        ("aab,b->a", [(3, 3, 4), (4,)]),
        ("ab,b->ab", [(3, 1), (4,)]),
        ("ab,->ba", [(3, 4), ()]),
        ("ab,cb->ac", [(3, 0), (4, 0)]),
    ],
)
def test_small_results_are_new_packed_arrays(
    text: str, shapes: list[tuple[int, ...]], dtype: str, order: str, rng: np.random.Generator
) -> None:
    """The short ways of small calls; with alpha the general one."""
    for layout in ("C", "F"):
        operands = [np.array(rng.integers(-9, 10, shape), dtype, order=layout) for shape in shapes]
        if dtype[0] == "c":
            operands[0] += 1j
        whole = [np.broadcast_to(x, (3, 4)) if x.shape == (3, 1) else x for x in operands]
        expected = np.einsum(text, *whole)
        for alpha in (1, 2):
            found = ct.contract(text, *operands, alpha=alpha, order=order)
            np.testing.assert_array_equal(found, alpha * expected)
            assert found.dtype == dtype
            assert found.flags[f"{order}_CONTIGUOUS"]
            assert found.flags.writeable
            assert not any(np.may_share_memory(found, x) for x in operands)
