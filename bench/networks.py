"""Tensor networks as (name, expression, extents): chains, rings, lattices, chemistry, circuits.

At most 52 labels each, the letters that numpy.einsum knows.
"""

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_letters

import numpy as np

Network = tuple[str, str, Mapping[str, int]]


def even(name: str, text: str, extent: int) -> Network:
    """Every mode with the same extent."""
    return name, text, dict.fromkeys(sorted(set(text) - set(",->")), extent)


def chemistry(name: str, text: str, occupied: int, virtual: int) -> Network:
    """i to n are occupied orbitals, a to f virtual ones."""
    labels = sorted(set(text) - set(",->"))
    return name, text, {x: occupied if x in "ijklmn" else virtual for x in labels}


def regular(name: str, nodes: int, extent: int, seed: int) -> Network:
    """A random graph with three bonds at each node, summed to a scalar."""
    rng = np.random.default_rng(seed)
    while True:
        ends = rng.permutation(np.repeat(np.arange(nodes), 3)).reshape(-1, 2)
        distinct = {tuple(sorted(pair)) for pair in ends.tolist()}
        if len(distinct) == len(ends) and all(a != b for a, b in distinct):
            break
    terms = [
        "".join(ascii_letters[at] for at, pair in enumerate(ends) if node in pair)
        for node in range(nodes)
    ]
    return even(name, ",".join(terms) + "->", extent)


def gates(wires: list[str], pairs: Sequence[int], letters: Iterator[str]) -> Iterator[str]:
    """Two-mode gates on wires (at, at + 1), in order; ``wires`` ends as the open labels."""
    for at in pairs:
        before = wires[at : at + 2]
        wires[at : at + 2] = [next(letters), next(letters)]
        yield "".join((*wires[at : at + 2], *before))


def amplitude(name: str, width: int, layers: int) -> Network:
    """One amplitude of a brick circuit of extent-2 modes: <bits| gates |bits>."""
    letters = iter(ascii_letters)
    wires = [next(letters) for _ in range(width)]
    start = list(wires)
    pairs = [at for layer in range(layers) for at in range(layer % 2, width - 1, 2)]
    bricks = list(gates(wires, pairs, letters))
    return even(name, ",".join((*start, *bricks, *wires)) + "->", 2)


def state(name: str, width: int, pairs: Sequence[int]) -> Network:
    """Gates on a state of extent-2 modes, every mode left open."""
    letters = iter(ascii_letters)
    wires = [next(letters) for _ in range(width)]
    start = "".join(wires)
    bricks = list(gates(wires, pairs, letters))
    return even(name, ",".join((start, *bricks)) + "->" + "".join(wires), 2)


NETWORKS: tuple[Network, ...] = (
    ("chain", "ab,bc,cd,de,ef->af", {"a": 800, "b": 200, "c": 900, "d": 100, "e": 700, "f": 400}),
    even("ring", "ab,bc,cd,da->", 500),
    even("ladder", "abx,bcy,dxe,eyf->adcf", 28),
    even("lattice", "ab,acd,ce,bfg,dfhi,ehj,gk,ikl,jl->", 24),
    even("tree", "abx,cdy,xyz,zef->abcdef", 14),
    regular("regular", 10, 32, 9000),
    chemistry("ccsd-ladder", "abef,ei,fj->abij", 12, 40),
    chemistry("ccsd-ring", "mnef,aeim,bfjn->abij", 12, 40),
    chemistry("ccsd-holes", "mnef,efij,abmn->abij", 12, 40),
    chemistry("ccsd-singles", "mnef,ei,am,fj,bn->abij", 12, 40),
    amplitude("amplitude", 10, 4),
    state("state", 22, (0, 9, 20, 15)),
)
