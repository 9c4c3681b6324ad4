"""The right answer of an expression, how sure it is, and how far from it is wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from math import inf, prod, sqrt
from typing import Any

import numpy as np
import opt_einsum

from bench.device import HOST, Array, Device
from contract.descriptors.compute_types import ComputeType, Family, is_complex, rule, unit_roundoff

Path = Sequence[tuple[int, ...]]
Wide = Any  # an array in double precision, of NumPy or as Device.wide makes it

SAMPLED_ENTRIES = 16
GROSS = 16
# The spacing of the smallest numbers of a type; a GPU has none below those of 32 bits.
SMALLEST = {"float16": 2.0**-24}
HALVES = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Reference:
    """error(D) = max(|D - values| / scale); D is right where error <= tolerance.

    ``scale`` is max |values|, or the size a random result would have where that is larger (a
    single sum may cancel); or it is what each element may differ by, and the tolerance 1.
    ``doubt`` is the error of ``values`` themselves at the entries that were computed once more in
    extended precision: above the tolerance nothing can be judged.
    """

    values: Wide
    scale: float | Wide
    tolerance: float
    doubt: float = 0.0

    def error_of(self, found: Wide) -> float:
        """The error of a result in double precision; infinite for a wrong shape."""
        if tuple(found.shape) != tuple(self.values.shape):
            return inf
        if not prod(found.shape):
            return 0.0
        return float((abs(found - self.values) / self.scale).max())

    def verdict(self, error: float) -> str:
        """Why a result with this error does not count; empty for a right one."""
        if not self.doubt <= self.tolerance:
            return f"no reference: it differs from extended precision by {self.doubt:.1e}"
        if not error <= self.tolerance:
            return f"wrong: relative error {error:.1e} > {self.tolerance:.1e}"
        return ""


def exactly(values: Wide) -> Reference:
    """The reference of pure data movement: not a bit may differ."""
    return Reference(values, scale=1.0, tolerance=0.0)


def reference_of(
    text: str,
    operands: Sequence[Array],
    seed: int = 0,
    compute: ComputeType | None = None,
    device: Device = HOST,
    placed: Sequence[Any] = (),
) -> Reference:
    """The expression by opt_einsum in double precision, checked in extended precision.

    ``placed`` are the operands on ``device``, which computes the values.

    Narrower data is held to double precision everywhere. Double-precision data is held to an
    evaluation that shares no code with ours, itself held to extended precision at SAMPLED_ENTRIES
    random entries, which also judges opt_einsum where it is a peer.

    Where a compute type is asked for, and for 16-bit data, the error is in units of the bound that
    is promised for each element, which must not be more than the size of the result / GROSS: for
    long sums in 16 bits nothing is promised. Else it is relative to the size of the result.
    """
    wide = [device.wide(x) for x in placed or operands]
    path = opt_einsum.contract_path(text, *operands, optimize="auto")[1]
    values = device.wide(opt_einsum.contract(text, *wide, optimize=path.path))
    summed = [prod(path.size_dict[x] for x in step[1]) for step in path.contraction_list]
    largest = float(abs(values).max()) if prod(values.shape) else 0.0
    size = max(largest, expected_size(text, wide)) or 1.0
    scale: float | Wide
    if compute is None and operands[0].dtype.name not in HALVES:
        scale, tolerance = size, tolerance_for(operands[0].dtype, summed)
    else:
        sizes = opt_einsum.contract(text, *map(abs, wide), optimize=path.path)
        types = [x.dtype.name for x in operands]
        bound = promised(types, values, device.wide(sizes), prod(summed), compute)
        scale, tolerance = bound.clip(max=size / GROSS), 1.0
    doubt = sampled_error(text, operands, values, path.path, seed, scale)
    return Reference(values, scale, tolerance, doubt)


def promised(
    types: Sequence[str], values: Wide, sizes: Wide, terms: int, compute: ComputeType | None
) -> Wide:
    """The bound of the reference, Compute types, for each element of an expression of ``types``.

    With ``terms`` in a sum, and ``sizes`` for sum|A||B|. Every product after the first adds its
    own roundings of inputs and of a sum; below the smallest numbers there is no relative error.
    """
    kept = rule(Family.CONTRACTION, tuple(types), types[0], compute)
    assert kept.input_roundoff is not None
    assert kept.sum_roundoff is not None
    products = max(len(types) - 1, 1)
    each = 2 * products * kept.input_roundoff + (terms + 2 * products) * kept.sum_roundoff
    bound = each * sizes + 2 * unit_roundoff(types[0]) * abs(values)
    factor = 4 if any(map(is_complex, types)) else 1
    return factor * bound + SMALLEST.get(types[0], 2.0**-126)


def tolerance_for(dtype: np.dtype[Any], summed: Sequence[int]) -> float:
    """eps * (16 + 4 * sum over the products of sqrt(terms summed)), of the data's type.

    Operands have random signs, so n roundings of partial sums grow as sqrt(n) beside the
    result; one term left out of n would show as 1 / sqrt(n).
    """
    return float(np.finfo(dtype).eps) * (16 + 4 * sum(map(sqrt, summed)))


def expected_size(text: str, operands: Sequence[Wide]) -> float:
    """sqrt(terms of one sum) * product of the operands' root mean squares."""
    terms, output = split(text)
    extents = extents_of(terms, operands)
    summed = prod(n for label, n in extents.items() if label not in output)
    return sqrt(summed) * prod(map(root_mean_square, operands))


def root_mean_square(x: Wide) -> float:
    """sqrt(mean |x|^2)."""
    return sqrt(float((abs(x) ** 2).mean())) if prod(x.shape) else 0.0


def distinct(x: Array) -> Array:
    """The numbers in memory: modes of stride 0 taken once."""
    return x[tuple(0 if step == 0 else slice(None) for step in x.strides)]


def sampled_error(
    text: str,
    operands: Sequence[Array],
    values: Wide,
    path: Path,
    seed: int,
    scale: float | Wide = 1.0,
) -> float:
    """max(|values - exact| / scale) over random entries, exact in extended precision."""
    if not prod(values.shape):
        return 0.0
    rng = np.random.default_rng(seed)
    count = min(SAMPLED_ENTRIES, prod(values.shape))
    entries = [tuple(int(rng.integers(n)) for n in values.shape) for _ in range(count)]
    errors = [
        abs(entry(text, operands, path, at) - values[at].item())
        / (scale if isinstance(scale, float) else scale[at].item())
        for at in entries
    ]
    return float(np.max(errors))


def entry(text: str, operands: Sequence[Array], path: Path, at: Sequence[int]) -> Any:
    """One entry of the result by NumPy's products in extended precision (80 bits on x86)."""
    terms, output = split(text)
    index = dict(zip(output, at, strict=True))
    wide = np.clongdouble if any(np.iscomplexobj(x) for x in operands) else np.longdouble
    rest = ["".join(compress(term, [x not in index for x in term])) for term in terms]
    sliced = [
        np.asarray(x[tuple(index.get(label, slice(None)) for label in term)]).astype(wide)
        for term, x in zip(terms, operands, strict=True)
    ]
    return opt_einsum.contract(",".join(rest) + "->", *sliced, optimize=path)


def split(text: str) -> tuple[list[str], str]:
    """The terms and the output of an explicit expression."""
    inputs, _, output = text.partition("->")
    return inputs.split(","), output


def extents_of(terms: Sequence[str], operands: Sequence[Wide]) -> Mapping[str, int]:
    """The extent of each label."""
    return {
        label: n
        for term, x in zip(terms, operands, strict=True)
        for label, n in zip(term, x.shape, strict=True)
    }
