"""Tensor networks: trees, rings, lattices, random graphs, states of matrix products, chemistry,
circuits, modes that more than two operands share. Extents from 2 to 900."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from opt_einsum import get_symbol


@dataclass(frozen=True, slots=True)
class Network:
    """An expression and the extent of every label; with ``complex`` its data are complex."""

    name: str
    text: str
    extents: Mapping[str, int]
    complex: bool = False


def even(name: str, text: str, extent: int, complex: bool = False) -> Network:
    """Every mode with the same extent."""
    return Network(name, text, dict.fromkeys(sorted(set(text) - set(",->")), extent), complex)


def sized(name: str, text: str, complex: bool = False, **groups: int) -> Network:
    """``ab=8``: a and b have extent 8."""
    extents = {label: extent for labels, extent in groups.items() for label in labels}
    return Network(name, text, extents, complex)


def symbols() -> Iterator[str]:
    """Labels without end: letters, then whatever else is a character."""
    return map(get_symbol, count())


def regular(name: str, nodes: int, extent: int, seed: int) -> Network:
    """A random graph with three bonds at each node, summed to a scalar."""
    rng = np.random.default_rng(seed)
    while True:
        ends = rng.permutation(np.repeat(np.arange(nodes), 3)).reshape(-1, 2)
        distinct = {tuple(sorted(pair)) for pair in ends.tolist()}
        if len(distinct) == len(ends) and all(a != b for a, b in distinct):
            break
    terms = [
        "".join(get_symbol(at) for at, pair in enumerate(ends) if node in pair)
        for node in range(nodes)
    ]
    return even(name, ",".join(terms) + "->", extent)


def lattice(name: str, rows: int, columns: int, bond: int, complex: bool = False) -> Network:
    """A square lattice with open edges, summed to a scalar."""
    letters = symbols()
    terms = {(row, column): "" for row in range(rows) for column in range(columns)}
    for row, column in terms:
        for other in ((row, column + 1), (row + 1, column)):
            if other in terms:
                label = next(letters)
                terms[row, column] += label
                terms[other] += label
    return even(name, ",".join(terms.values()) + "->", bond, complex)


def layers(
    name: str, sites: Sequence[str], bond: int, physical: int, complex: bool = False
) -> Network:
    """The norm of a state: every site twice, with bonds of its own, joined by physical modes.

    A site is written as its bonds.
    """
    bonds = sorted(set("".join(sites)))
    letters = symbols()
    above, below = ({x: next(letters) for x in bonds} for _ in range(2))
    terms, extents = [], dict.fromkeys((*above.values(), *below.values()), bond)
    for site in sites:
        shared = next(letters)
        extents[shared] = physical
        terms += ["".join(each[x] for x in site) + shared for each in (above, below)]
    return Network(name, ",".join(terms) + "->", extents, complex)


def chain(length: int) -> list[str]:
    """The sites of a chain."""
    bonds = [get_symbol(at) for at in range(length - 1)]
    return ["".join(bonds[max(at - 1, 0) : at + 1]) for at in range(length)]


def gates(wires: list[str], pairs: Sequence[int], letters: Iterator[str]) -> Iterator[str]:
    """Two-mode gates on wires (at, at + 1), in order; ``wires`` ends as the open labels."""
    for at in pairs:
        before = wires[at : at + 2]
        wires[at : at + 2] = [next(letters), next(letters)]
        yield "".join((*wires[at : at + 2], *before))


def bricks(width: int, layers: int) -> list[int]:
    """Where the gates of a brick circuit begin, layer by layer."""
    return [at for layer in range(layers) for at in range(layer % 2, width - 1, 2)]


def amplitude(name: str, width: int, pairs: Sequence[int], complex: bool = False) -> Network:
    """One amplitude of a circuit on modes of extent 2: <bits| gates |bits>."""
    letters = symbols()
    wires = [next(letters) for _ in range(width)]
    start = list(wires)
    each = list(gates(wires, pairs, letters))
    return even(name, ",".join((*start, *each, *wires)) + "->", 2, complex)


def state(name: str, width: int, pairs: Sequence[int], complex: bool = False) -> Network:
    """Gates on a state of extent-2 modes, every mode left open."""
    letters = symbols()
    wires = [next(letters) for _ in range(width)]
    start = "".join(wires)
    each = list(gates(wires, pairs, letters))
    return even(name, ",".join((start, *each)) + "->" + "".join(wires), 2, complex)


NETWORKS: tuple[Network, ...] = (
    sized("chain", "ab,bc,cd,de,ef->af", a=800, b=200, c=900, d=100, e=700, f=400),
    even("ring", "ab,bc,cd,da->", 500),
    even("ring-small", "ab,bc,cd,de,ef,fg,gh,ha->", 8),
    even("ladder", "abx,bcy,dxe,eyf->adcf", 28),
    even("tree", "abx,cdy,xyz,zef->abcdef", 14),
    sized("tree-ttn", "abx,cdy,xye,cfv,agu,uve->bdfg", complex=True, abcdfg=16, xyuve=24),
    even("star", "abcd,ae,bf,cg,dh->efgh", 30),
    lattice("lattice", 3, 3, 24),
    lattice("lattice-wide", 3, 8, 5, complex=True),
    lattice("lattice-5", 5, 5, 4),
    layers("peps", ["ab", "acd", "ce", "bfg", "dfhi", "ehj", "gk", "ikl", "jl"], 4, 2),
    layers("peps-strip", ["ab", "acd", "cef", "eg", "bh", "dhi", "fij", "gj"], 5, 2, True),
    layers("mps", chain(20), 32, 2),
    layers("mps-complex", chain(12), 64, 3, complex=True),
    sized("dmrg", "awx,astb,wsuv,vtyz,bzc->xuyc", abxc=64, wvz=6, stuy=4),
    sized("tebd", "asb,btc,stuv,a,b,c->aucv", complex=True, abc=64, stuv=4),
    regular("regular", 10, 32, 9000),
    regular("regular-20", 20, 8, 9001),
    regular("regular-40", 40, 3, 9002),
    sized("ccsd-ladder", "abef,ei,fj->abij", abef=40, ij=12),
    sized("ccsd-ring", "mnef,aeim,bfjn->abij", mnij=12, abef=40),
    sized("ccsd-holes", "mnef,efij,abmn->abij", mnij=12, abef=40),
    sized("ccsd-singles", "mnef,ei,am,fj,bn->abij", mnij=12, abef=40),
    sized("fitting", "Qia,Qjb,Rij,Rab->", complex=True, QR=60, ij=16, ab=48),
    sized("hypercontraction", "ip,ap,pq,jq,bq->iajb", ij=16, ab=48, pq=300),
    sized("factors", "ar,br,cr,abcd->dr", abcd=48, r=32),
    sized("attention", "hid,hjd,hje->hie", hij=64, de=32),
    amplitude("amplitude", 10, bricks(10, 4)),
    amplitude("amplitude-30", 30, bricks(30, 7)[:100], complex=True),
    state("state", 22, (0, 9, 20, 15)),
    state("state-60", 16, bricks(16, 8), complex=True),
)
