"""Stride algebra against enumeration of every offset."""

import itertools
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract import layout
from contract.errors import InvalidValueError

dims = st.lists(st.tuples(st.integers(0, 5), st.integers(-9, 9)), max_size=4)
common = settings(max_examples=300, deadline=None, derandomize=True)


def offsets(extents: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    """Every address in index order, the first dimension fastest."""
    ranges = [range(extent) for extent in reversed(extents)]
    return [
        sum(i * s for i, s in zip(reversed(index), strides, strict=True))
        for index in itertools.product(*ranges)
    ]


def split(pairs: list[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(n for n, _ in pairs), tuple(s for _, s in pairs)


@common
@given(dims)
def test_bounds_and_span(pairs: list[tuple[int, int]]) -> None:
    extents, strides = split(pairs)
    found = offsets(extents, strides)
    low, high = (min(found), max(found)) if found else (0, 0)
    assert layout.offset_bounds(extents, strides) == (low, high)
    assert layout.span(extents, strides) == (high - low + 1 if found else 0)


@common
@given(dims)
def test_overlap_is_exact(pairs: list[tuple[int, int]]) -> None:
    extents, strides = split(pairs)
    found = offsets(extents, strides)
    assert layout.overlaps(extents, strides) == (len(set(found)) < len(found))


@common
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 60)), min_size=3, max_size=3))
def test_overlap_is_exact_for_three_strides(pairs: list[tuple[int, int]]) -> None:
    extents, strides = split(pairs)
    found = offsets(extents, strides)
    assert layout.overlaps(extents, strides) == (len(set(found)) < len(found))


@common
@given(st.lists(st.tuples(st.integers(2, 3), st.integers(1, 400)), min_size=5, max_size=7))
def test_overlap_is_exact_for_many_strides(pairs: list[tuple[int, int]]) -> None:
    extents, strides = split(pairs)
    found = offsets(extents, strides)
    assert layout.overlaps(extents, strides) == (len(set(found)) < len(found))


def test_overlap_of_huge_tensors() -> None:
    n = 1 << 40
    assert not layout.overlaps((n, n), (1, n))
    assert layout.overlaps((n, n), (1, n - 1))
    assert layout.overlaps((n, n), (3, 5))
    assert not layout.overlaps((3, n), (1, 3))
    assert not layout.overlaps((2, 2, n), (1, 5, 10))
    assert not layout.overlaps((5, 2), (2, 5))
    assert layout.overlaps((6, 3), (2, 5))
    # Three strides that no gap separates: 3 a - 7 b + 2 c = 0 has small solutions for these,
    # a multiple of a large prime has none.
    p = (1 << 61) - 1
    assert layout.overlaps((1 << 40, 1 << 40, 1 << 40), (p, p + 2, p + 6))
    assert not layout.overlaps((1 << 20, 1 << 20, 1 << 19), (p, p + 1, p + (1 << 20)))


def test_the_order_of_entangled_strides_does_not_matter() -> None:
    extents, strides = (1000, 1000, 1000, 1000), (999_999_937, 10**9 - 1, 10**9 + 7, 10**9 + 9)
    assert layout.overlaps(extents, strides) == any(
        layout.overlaps(extents, permuted) for permuted in itertools.permutations(strides)
    )


@common
@given(dims, st.integers(1, 3))
def test_fusing_keeps_every_address(pairs: list[tuple[int, int]], factor: int) -> None:
    extents, strides = split(pairs)
    doubled = tuple(stride * factor for stride in strides)
    sizes, (first, second) = layout.fuse(extents, strides, doubled)
    assert offsets(sizes, first) == offsets(extents, strides)
    assert offsets(sizes, second) == offsets(extents, doubled)
    assert len(sizes) <= len(extents)


def test_fusing_makes_packed_tensors_one_dimension() -> None:
    assert layout.fuse((2, 1, 3, 4), (1, 9, 2, 6)) == ((24,), ((1,),))


@common
@given(dims)
def test_packed_means_a_block_of_memory(pairs: list[tuple[int, int]]) -> None:
    extents, strides = split(pairs)
    found = offsets(extents, strides)
    dense = not found or sorted(found) == list(range(min(found), min(found) + len(found)))
    assert layout.is_packed(extents, strides) == dense


@common
@given(st.lists(st.integers(1, 5), max_size=4).flatmap(
    lambda n: st.tuples(st.just(n), st.permutations(range(len(n))))
))  # fmt: skip
def test_packed_strides_in_any_order(case: tuple[list[int], list[int]]) -> None:
    extents, order = case
    strides = layout.packed_strides(extents, order)
    assert layout.is_packed(extents, strides)
    for inner, outer in itertools.pairwise(order):
        assert strides[outer] == strides[inner] * extents[inner]
    assert sorted(offsets(tuple(extents), strides)) == list(range(prod(extents)))


def test_packed_strides_of_some_dimensions() -> None:
    assert layout.packed_strides((4, 3, 5), (2, 0)) == (5, 0, 1)


def test_diagonals_step_together() -> None:
    assert layout.diagonal((0, 1, 0), (4, 3, 4), (1, 4, 12)) == ((0, 1), (4, 3), (13, 4))
    with pytest.raises(InvalidValueError, match="4 and 5"):
        layout.diagonal((0, 0), (4, 5), (1, 4))


def test_named_layouts() -> None:
    extents = {"N": 1, "C": 64, "H": 5, "W": 4}
    assert layout.named_layout("NCHW", extents) == {"N": 1280, "C": 20, "H": 4, "W": 1}
    assert layout.named_layout("NHWC", extents) == {"N": 1280, "H": 256, "W": 64, "C": 1}
    assert layout.named_layout("CHWN", extents) == {"C": 20, "H": 4, "W": 1, "N": 1}
    modes, sizes, strides = layout.vectorised_layout(extents, 32)
    assert modes == ("N", "C/x", "H", "W", "x")
    assert sizes == (1, 2, 5, 4, 32)
    assert strides == (1280, 640, 128, 32, 1)
    assert layout.matmul_layout(7, 3, 5) == ((7, 3, 5), (15, 5, 1))
    assert layout.matmul_layout(7, 3, 5, row_major=False) == ((7, 3, 5), (15, 1, 3))
    for refused in (
        lambda: layout.named_layout("NCWH", extents),
        lambda: layout.named_layout("NCHW", {"N": 1}),
        lambda: layout.vectorised_layout(extents, 3),
    ):
        with pytest.raises(InvalidValueError):
            refused()


def test_the_worked_example_of_the_cudnn_documentation() -> None:
    """N=1, C=64, H=5, W=4 with elements numbered in sequence: what lies where in memory."""
    n, c, h, w = 1, 64, 5, 4
    extents = {"N": n, "C": c, "H": h, "W": w}

    def in_memory(strides: dict[str, int]) -> list[int]:
        memory = {}
        for at, index in enumerate(itertools.product(*map(range, extents.values()))):
            memory[sum(i * strides[mode] for i, mode in zip(index, extents, strict=True))] = at
        return [memory[address] for address in range(n * c * h * w)]

    assert in_memory(layout.named_layout("NCHW", extents)) == list(range(1280))
    nhwc = in_memory(layout.named_layout("NHWC", extents))
    assert nhwc[:4] == [0, 20, 40, 60]  # c0..c3 of the first pixel
    assert nhwc[63:66] == [1260, 1, 21]  # c63, then the next pixel
    modes, sizes, strides = layout.vectorised_layout(extents, 32)
    assert (modes, sizes) == (("N", "C/x", "H", "W", "x"), (1, 2, 5, 4, 32))
    by_address = {
        hh * strides[2] + ww * strides[3] + outer * strides[1] + inner * strides[4]:
        (32 * outer + inner) * 20 + hh * 4 + ww
        for outer, hh, ww, inner in itertools.product(range(2), range(5), range(4), range(32))
    }  # fmt: skip
    order = [by_address[address] for address in range(1280)]
    assert order[:2] == [0, 20]
    assert order[31:33] == [620, 1]  # c31, then c0 of the next pixel
    assert order[639:642] == [639, 640, 660]  # the second half of the channels starts at c32


def test_partially_packed() -> None:
    """XYZ-packed, dimensions listed from the outermost, as the cuDNN documentation words it."""
    extents = (1, 64, 5, 4)
    packed = layout.is_partially_packed
    assert packed(extents, (1280, 20, 4, 1), range(4))
    assert packed(extents, (3000, 40, 8, 1), {3})
    assert not packed(extents, (3000, 40, 8, 2), {3})
    assert packed(extents, (3000, 30, 4, 1), {2, 3})  # HW-packed NCHW
    assert not packed(extents, (3000, 30, 5, 1), {2, 3})
    assert layout.is_spatially_packed(extents, (3000, 30, 4, 1))
    assert not layout.is_spatially_packed(extents, (3000, 40, 8, 1))
    nhwc = (1, 5, 4, 64)
    assert packed(nhwc, (2000, 300, 64, 1), {2, 3})  # WC-packed NHWC
    assert not packed(nhwc, (2000, 300, 70, 1), {2, 3})
    cnhw = (64, 1, 5, 4)
    assert packed(cnhw, (30, 25, 4, 1), {2, 3})  # HW-packed CNHW
    assert not packed(cnhw, (30, 25, 4, 2), {2, 3})
