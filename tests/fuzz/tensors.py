"""Random tensors: types, strides, and where they lie."""

from collections.abc import Sequence
from math import prod

import numpy as np

from tests.fuzz.arrays import bounds
from tests.fuzz.cases import PLANS, Case, Tensor, Verb, result_type
from tests.fuzz.chances import Chances

__all__ = ["INTEGERS", "PLAIN", "operands", "repeated", "target", "tensor"]

PLAIN = ("float64", "float32", "complex128", "complex64", "float16", "bfloat16")
MOST_BYTES = 1 << 26  # between the elements of a tensor
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def operands(draw: Chances, verb: Verb, shapes: list[tuple[int, ...]]) -> tuple[Tensor, ...]:
    kinds = _kinds(draw, verb, len(shapes))
    exact = result_type(map(np.dtype, kinds)).kind in "biu"
    values = "normal" if exact else "small"
    return tuple(
        tensor(draw, shape, kind, values if np.dtype(kind).kind in "iu" else "normal", verb)
        for shape, kind in zip(shapes, kinds, strict=True)
    )


def repeated(draw: Chances, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One array in the place of others of its shape and type."""
    found = list(operands)
    for at, tensor in enumerate(found):
        like = [x for x in found[:at] if (x.shape, x.dtype) == (tensor.shape, tensor.dtype)]
        found[at] = draw.one([*like, tensor]) if like else tensor
    return tuple(found)


def _kinds(draw: Chances, verb: Verb, count: int) -> list[str]:
    if verb in PLANS:
        if verb is Verb.PLAN and count == 2 and draw.chance(8):
            return list(draw.one((("float64", "complex128"), ("complex64", "float32"))))
        weights = dict.fromkeys(PLAIN, 5) | dict.fromkeys((*INTEGERS, "bool"), 1)
        return [draw.weighted(weights)] * count
    match draw.weighted({"one": 62, "integers": 10, "mixed": 20, "odd": 3, "objects": 1}):
        case "one":
            return [draw.weighted(dict(zip(PLAIN, (8, 5, 3, 2, 2, 2), strict=True)))] * count
        case "integers":
            return [draw.one((*INTEGERS, "bool"))] * count
        case "odd" if verb is not Verb.EXPRESSION:  # no descriptor has the foreign byte order
            return [draw.one(("float128", "complex256", ">f8", ">c8", ">i4", ">f2"))] * count
        case "objects":
            return ["object"] * count
    return _mixed(draw, count)


def _mixed(draw: Chances, count: int) -> list[str]:
    """Types that have a common one."""
    while True:
        kinds = [draw.one((*PLAIN, *PLAIN, *INTEGERS, "bool")) for _ in range(count)]
        try:
            result_type(map(np.dtype, kinds))
        except TypeError:
            continue
        return kinds


def tensor(draw: Chances, shape: tuple[int, ...], dtype: str, values: str, verb: Verb) -> Tensor:
    kind = Tensor((), (), dtype).kind
    name, size = ">" * (dtype[0] == ">") + kind.name, kind.itemsize
    strides = _strides(draw, shape, size, verb in PLANS)
    if prod(shape) and max(map(abs, bounds(shape, strides))) > MOST_BYTES:
        strides = _spaced(draw, shape, size, range(len(shape)), 0)
    seed = draw.number(0, 2**31)
    slack = 0
    if verb not in PLANS and size > 1 and draw.chance(6):
        slack = draw.number(1, size - 1)
    return Tensor(shape, strides, name, values, seed, slack)


def _strides(draw: Chances, shape: tuple[int, ...], size: int, whole: bool) -> tuple[int, ...]:
    """Any strides an operand may have; ``whole``: multiples of the item size."""
    axes = range(len(shape))
    match draw.weighted({"C": 25, "F": 25, "spaced": 35, "window": 8, "odd": 3}):
        case "C":
            return _spaced(draw, shape, size, axes[::-1], 0)
        case "F":
            return _spaced(draw, shape, size, axes, 0)
        case "window":
            return tuple(size * draw.number(-2, 3) for _ in shape)
        case "odd" if not whole:
            return _spaced(
                draw, shape, size + draw.number(1, 3), draw.shuffled(range(len(shape))), 20
            )
    found = _spaced(draw, shape, size, draw.shuffled(range(len(shape))), 25)
    return tuple(0 if draw.chance(12) else draw.one((1, 1, 1, 1, -1)) * x for x in found)


def _spaced(
    draw: Chances, shape: tuple[int, ...], size: int, order: Sequence[int], gaps: float
) -> tuple[int, ...]:
    """Strides that do not overlap, fastest first as in ``order``, with gaps now and then."""
    found, step = [0] * len(shape), size
    for at in order:
        if draw.chance(gaps):
            step *= draw.number(2, 3)
        found[at] = step
        step *= max(shape[at], 1)
        if draw.chance(gaps / 2):
            step += size * draw.number(1, 3)
    return tuple(found)


def target(draw: Chances, case: Case, name: str) -> Tensor:
    """An array to be written: no two elements share memory."""
    size = np.dtype(name).itemsize
    free = case.verb not in PLANS
    odd = free and draw.chance(4)
    strides = _spaced(
        draw, case.shape, size + odd, draw.shuffled(range(len(case.shape))), draw.one((0, 25))
    )
    strides = tuple(draw.one((1, 1, 1, -1)) * x for x in strides)
    slack = draw.number(1, size - 1) if free and size > 1 and draw.chance(6) else 0
    return Tensor(case.shape, strides, name, "fresh", 0, slack)
