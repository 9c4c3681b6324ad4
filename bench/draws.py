"""Contractions of two operands drawn at random: expressions and extents, no data.

Nothing is tuned on them, so that they say what an expression nobody thought of may expect.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from bench.expressions import flops_of
from bench.reference import split

SEED = 20_000
COUNT = 100
MODES = (3, 8)  # the fewest and the most of one contraction
EXTENTS = (2, 256)
FLOPS = (1e6, 1e9)
LARGEST = 12_500_000  # elements of a tensor: 100 MB of float64
KINDS = {"m": 0.3, "n": 0.3, "k": 0.25, "batch": 0.15}  # of a mode after the first three
TENSORS = (("m", "k", "batch"), ("k", "n", "batch"), ("m", "n", "batch"))  # A, B, D


@dataclass(frozen=True, slots=True)
class Drawn:
    """A contraction of two operands, and the extent of every label."""

    text: str
    extents: Mapping[str, int]

    @property
    def largest(self) -> int:
        """Elements of the largest tensor."""
        terms, output = split(self.text)
        return max(prod(self.extents[x] for x in term) for term in (*terms, output))


def contractions(count: int = COUNT) -> Iterator[Drawn]:
    """The first ``count`` of the contractions, the same every time."""
    return (drawn(np.random.default_rng((SEED, at))) for at in range(count))


def drawn(rng: np.random.Generator) -> Drawn:
    """Modes of every kind in random orders; extents drawn until they come near random FLOPs."""
    text = expression(rng)
    labels = sorted(set(text) - set(",->"))
    least, most = FLOPS
    most = min(most, 2.0 * (EXTENTS[1] // 2) ** len(labels))  # with few modes more are rare
    aim = least * (most / least) ** rng.random()
    while True:
        found = Drawn(text, dict(zip(labels, extents(rng, len(labels)), strict=True)))
        near = max(least, aim / 2) <= flops_of(found.extents) <= min(most, 2 * aim)
        if near and found.largest <= LARGEST:
            return found


def expression(rng: np.random.Generator) -> str:
    """Modes m, n and k, then more of any kind; each tensor has its own in any order."""
    more = rng.integers(MODES[0], MODES[1] + 1) - 3
    kinds = ["m", "n", "k", *rng.choice(list(KINDS), more, p=list(KINDS.values()))]
    modes = list(zip("abcdefgh", rng.permutation(kinds), strict=False))

    def labels(held: Sequence[str]) -> str:
        return "".join(rng.permutation([label for label, kind in modes if kind in held]))

    a, b, d = map(labels, TENSORS)
    return f"{a},{b}->{d}"


def extents(rng: np.random.Generator, count: int) -> list[int]:
    """Whole numbers whose logarithms are uniform."""
    low, high = np.log2(EXTENTS[0]), np.log2(EXTENTS[1] + 1)
    return [int(2**each) for each in rng.uniform(low, high, count)]
