"""Stride algebra on plain integers: extents and strides in elements, column-major by default.

The vocabulary is that of the cuDNN core-concepts page: packed, partially packed and overlapping
tensors, and the named layouts.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import prod

from contract.errors import InvalidValueError
from contract.support.text import shown

__all__ = [
    "NAMED_LAYOUTS",
    "diagonal",
    "fuse",
    "is_packed",
    "is_partially_packed",
    "is_spatially_packed",
    "matmul_layout",
    "named_layout",
    "offset_bounds",
    "overlaps",
    "packed_strides",
    "span",
    "vectorised_layout",
]

Ints = tuple[int, ...]


def packed_strides(extents: Sequence[int], order: Sequence[int] | None = None) -> Ints:
    """stride(order[0]) = 1, stride(order[i+1]) = stride(order[i]) * extent(order[i]).

    ``order`` lists the dimensions from fastest to slowest; None: as they stand, column-major.
    Dimensions that it leaves out have stride 0.
    """
    strides = [0] * len(extents)
    step = 1
    for at in range(len(extents)) if order is None else order:
        strides[at] = step
        step *= extents[at]
    return tuple(strides)


def diagonal(
    modes: Sequence[int], extents: Sequence[int], strides: Sequence[int]
) -> tuple[Ints, Ints, Ints]:
    """Distinct modes, their extents, and strides such that repeated modes step together.

    The stride of a merged mode is the sum of its strides. Extents of a repeated mode must agree.
    """
    merged: dict[int, tuple[int, int]] = {}
    for mode, extent, stride in zip(modes, extents, strides, strict=True):
        known, step = merged.get(mode, (extent, 0))
        if known != extent:
            raise InvalidValueError(
                f"A repeated mode has one extent: mode {mode} has {known} and {extent}."
            )
        merged[mode] = (extent, step + stride)
    return (
        tuple(merged),
        tuple(extent for extent, _ in merged.values()),
        tuple(stride for _, stride in merged.values()),
    )


def fuse(extents: Sequence[int], *operands: Sequence[int]) -> tuple[Ints, tuple[Ints, ...]]:
    """The same elements in the same order with fewer dimensions.

    Dimension i+1 joins dimension i where stride[i+1] = stride[i] * extent[i] in every operand;
    dimensions of extent 1 vanish. Returns the extents and the strides of each operand.
    """
    sizes: list[int] = []
    steps: list[list[int]] = []
    for at, extent in enumerate(extents):
        here = [strides[at] for strides in operands]
        if extent == 1:
            continue
        if sizes and all(s == last * sizes[-1] for s, last in zip(here, steps[-1], strict=True)):
            sizes[-1] *= extent
        else:
            sizes.append(extent)
            steps.append(here)
    by_operand = tuple(tuple(step[i] for step in steps) for i in range(len(operands)))
    return tuple(sizes), by_operand


def offset_bounds(extents: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """The smallest and the largest of sum(i * stride) over all indices; (0, 0) if there is none."""
    if 0 in extents:
        return 0, 0
    reaches = [stride * (n - 1) for n, stride in zip(extents, strides, strict=True)]
    return sum([r for r in reaches if r < 0]), sum([r for r in reaches if r > 0])


def span(extents: Sequence[int], strides: Sequence[int]) -> int:
    """Elements of memory between the first and the last address, both included."""
    if 0 in extents:
        return 0
    reaches = [abs(stride) * (n - 1) for n, stride in zip(extents, strides, strict=True)]
    return sum(reaches) + 1


# --- predicates ---------------------------------------------------------------------------------


def is_packed(extents: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill a block of memory without gaps or overlap, in any mode order."""
    if 0 in extents:
        return True
    step = 1
    for stride, extent in sorted(
        (abs(s), n) for n, s in zip(extents, strides, strict=True) if n > 1
    ):
        if stride != step:
            return False
        step *= extent
    return True


def is_partially_packed(
    extents: Sequence[int], strides: Sequence[int], inside: Iterable[int]
) -> bool:
    """Whether the tensor is packed in the dimensions ``inside``, outermost dimension first.

    stride[i] = extent[i+1] * stride[i+1] for i inside, >= for i outside; the last dimension has
    stride 1 if it is inside.
    """
    chosen = set(inside)
    last = len(extents) - 1
    for at in range(len(extents)):
        packed = 1 if at == last else extents[at + 1] * strides[at + 1]
        if at in chosen and strides[at] != packed:
            return False
        if at not in chosen and strides[at] < packed:
            return False
    return True


def is_spatially_packed(extents: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether an NC... tensor is packed in its spatial dimensions, those after the first two."""
    return is_packed(extents[2:], strides[2:])


def overlaps(extents: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two different indices have the same address; exact, without enumeration.

    Two indices meet where their difference d, not 0 with |d[i]| < extent[i], has
    sum(d * stride) = 0. Sorted by stride, no such d exists if every stride exceeds the reach of
    the smaller ones; one exists if there are more indices than addresses; else the lattice of
    all d decides.
    """
    if len(extents) != len(strides):
        raise InvalidValueError(
            f"One stride for each extent: {len(extents)} extents, {len(strides)} strides."
        )
    if 0 in extents:
        return False
    dims = sorted([(abs(s), n) for n, s in zip(extents, strides, strict=True) if n > 1])
    if dims and dims[0][0] == 0:
        return True
    reaches = list(accumulate([stride * (n - 1) for stride, n in dims], initial=0))
    while dims and dims[-1][0] > reaches[len(dims) - 1]:
        dims.pop()  # no sum of the smaller steps makes up for this one
    if not dims or prod(n for _, n in dims) > reaches[len(dims)] + 1:
        return bool(dims)
    from contract.descriptors.overlap import has_bounded_solution  # few layouts come so far

    return has_bounded_solution([stride for stride, _ in dims], [n - 1 for _, n in dims])


# --- named layouts --------------------------------------------------------------------------------

# Modes from slowest to fastest, as the names are read.
NAMED_LAYOUTS = ("NCHW", "NHWC", "CHWN", "NCDHW", "NDHWC", "CDHWN")


def named_layout(name: str, extents: Mapping[str, int]) -> dict[str, int]:
    """The stride of every mode of a named layout, e.g. NHWC: C has stride 1, W stride C."""
    if name not in NAMED_LAYOUTS:
        raise InvalidValueError(
            f"Unknown layout {shown(name)}; known are {', '.join(NAMED_LAYOUTS)}."
        )
    _check_modes(name, extents)
    fastest_first = name[::-1]
    strides = packed_strides([extents[mode] for mode in fastest_first])
    by_mode = dict(zip(fastest_first, strides, strict=True))
    return {mode: by_mode[mode] for mode in name}


def _check_modes(modes: str, extents: Mapping[str, int]) -> None:
    if set(extents) != set(modes):
        raise InvalidValueError(
            f"A layout of {', '.join(modes)} has one extent for each: it got {', '.join(extents)}."
        )


def vectorised_layout(extents: Mapping[str, int], group: int) -> tuple[tuple[str, ...], Ints, Ints]:
    """NC/xHWx: channels in groups of x, the group innermost; x=1 is NCHW, x=C is NHWC.

    Returns the modes (C is split into "C/x" and "x"), their extents and their strides.
    """
    _check_modes("NCDHW" if "D" in extents else "NCHW", extents)
    channels = extents["C"]
    if group < 1 or channels % group:
        raise InvalidValueError(
            f"Channels are a multiple of the group: {channels} channels, groups of {group}."
        )
    inner = [mode for mode in "DHW" if mode in extents]
    modes = ("N", "C/x", *inner, "x")
    sizes = (extents["N"], channels // group, *(extents[mode] for mode in inner), group)
    return modes, sizes, packed_strides(sizes[::-1])[::-1]


def matmul_layout(batch: int, rows: int, columns: int, row_major: bool = True) -> tuple[Ints, Ints]:
    """Extents (batch, M, N) and strides: [MN, N, 1] row-major, [MN, 1, M] column-major."""
    extents = (batch, rows, columns)
    order = (2, 1, 0) if row_major else (1, 2, 0)
    return extents, packed_strides(extents, order)
