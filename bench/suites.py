"""The suites: what is measured, as cases made one at a time (their operands are large)."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import opt_einsum

import contract
from bench.measure import Array, Case
from bench.peers import OURS, Contestant

DATA = Path(__file__).parent / "data"
COPY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Choice:
    """What the command line chose for a suite."""

    contestants: Mapping[str, Contestant]
    dtype: str
    gflop: float
    wanted: frozenset[str]

    def takes(self, name: str) -> bool:
        """Whether a case is among those asked for; none asked for means all."""
        return not self.wanted or name in self.wanted


Suite = Callable[[Choice], Iterator[Case]]


def einsum_case(name: str, text: str, operands: Sequence[Array], choice: Choice) -> Case:
    """The same expression on the same arrays for every contestant, checked against opt_einsum.

    The reference is computed in float64 (complex128), which for float64 data makes it an
    independent evaluation, not a more precise one; the tolerance allows for both roundings.
    """
    wide = [x.astype("c16" if np.iscomplexobj(x) else "f8") for x in operands]
    path = opt_einsum.contract_path(text, *operands, optimize="auto")[1]
    result_size = prod(path.size_dict[label] for label in path.output_subscript)
    single = operands[0].dtype.itemsize <= 4 or operands[0].dtype == np.complex64
    return Case(
        name,
        {key: _bind(run, text, operands) for key, run in choice.contestants.items()},
        lambda: np.asarray(opt_einsum.contract(text, *wide)),
        flops=2.0 * prod(path.size_dict.values()) if len(operands) == 2 else float(path.opt_cost),
        bytes=float(sum(x.nbytes for x in operands) + result_size * operands[0].itemsize),
        tolerance=1e-3 if single else 1e-10,
    )


def _bind(run: Contestant, text: str, operands: Sequence[Array]) -> Callable[[], Any]:
    return lambda: run(text, *operands)


def column_major(rng: np.random.Generator, extents: Sequence[int], dtype: str) -> Array:
    """Random numbers, never zeros, packed column-major."""
    values = rng.random(tuple(extents)[::-1]).astype(dtype)
    return values.T


def scaled(extents: Mapping[str, int], gflop: float) -> dict[str, int]:
    """Extents shrunk alike, to multiples of 4, until 2 * their product is at most ``gflop``."""
    flops = 2e-9 * prod(extents.values())
    if flops <= gflop:
        return dict(extents)
    factor = (gflop / flops) ** (1 / len(extents))
    return {label: max(4, int(n * factor) // 4 * 4) for label, n in extents.items()}


# --- suites ---------------------------------------------------------------------------------------


def tccg(choice: Choice) -> Iterator[Case]:
    """The 48 contractions of the TCCG benchmark, column-major."""
    rng = np.random.default_rng(1)
    sizes = "f32" if choice.dtype in ("float32", "complex64") else "f64"
    for entry in json.loads((DATA / "tccg48.json").read_text())["cases"]:
        name = str(entry["id"])
        if choice.takes(name):
            extents = scaled(entry[sizes]["extents"], choice.gflop)
            terms = entry["einsum"].split("->")[0].split(",")
            operands = [column_major(rng, [extents[x] for x in t], choice.dtype) for t in terms]
            yield einsum_case(f"{name} {entry['einsum']}", entry["einsum"], operands, choice)


def permute(choice: Choice) -> Iterator[Case]:
    """The permutations of HPTT's list, column-major, 64 MiB each; the peer is numpy.copyto."""
    rng = np.random.default_rng(2)
    size = COPY_BYTES // np.dtype(choice.dtype).itemsize
    for at, entry in enumerate(json.loads((DATA / "permutations.json").read_text())["cases"]):
        if not choice.takes(str(at)):
            continue
        extents = entry["extents"]
        factor = (size / prod(extents.values())) ** (1 / len(extents))
        shrunk = {label: max(2, int(n * factor)) for label, n in extents.items()}
        source, target = entry["expr"].split("->")
        x = column_major(rng, [shrunk[label] for label in source], choice.dtype)
        axes = [source.index(label) for label in target]
        yield Case(
            f"{at} {entry['expr']}",
            {
                OURS: lambda x=x, text=entry["expr"]: contract.contract(text, x),
                "numpy": lambda x=x, axes=axes: _copied(x.transpose(axes)),
            },
            lambda x=x, axes=axes: x.transpose(axes),
            bytes=2.0 * x.nbytes,
            tolerance=0.0,
        )


def _copied(view: Array) -> Array:
    target = np.empty(view.shape, view.dtype, order="F")
    np.copyto(target, view)
    return target


def overhead(choice: Choice) -> Iterator[Case]:
    """Calls so small that only their overhead counts."""
    rng = np.random.default_rng(3)
    for text, shapes in (
        ("ij,jk->ik", ((4, 4), (4, 4))),
        ("abc,cd->abd", ((2, 3, 4), (4, 3))),
        ("abc,kb->ac", ((2, 3, 4), (5, 3))),
    ):
        x, y = (rng.random(shape) for shape in shapes)
        strides = [tuple(s // 8 for s in each.strides) for each in (x, y)]
        described = [contract.TensorDescriptor(n, s) for n, s in zip(shapes, strides, strict=True)]
        planned = contract.contract_expression(text, *described)
        theirs = opt_einsum.contract_expression(text, *shapes)
        yield Case(
            text,
            {
                OURS: lambda x=x, y=y, text=text: contract.contract(text, x, y),
                "numpy optimize": lambda x=x, y=y, t=text: np.einsum(t, x, y, optimize=True),
                "numpy": lambda x=x, y=y, text=text: np.einsum(text, x, y),
                "opt_einsum expression": lambda x=x, y=y, f=theirs: f(x, y),
                "our expression": lambda x=x, y=y, f=planned: f(x, y),
                "our einsum": lambda x=x, y=y, text=text: contract.einsum(text, x, y),
            },
            lambda x=x, y=y, text=text: np.einsum(text, x, y),
        )


PAIN: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = (
    ("ija,ijb,ijc->ijabc", ((500, 5000, 3),) * 3),  # reported with 50000: 5.4 GB of result
    ("uvP,up->pvP", ((1234, 1234, 23), (1234, 98))),
    ("i,i->i", ((10_000_000,),) * 2),
    ("ig,ij,jg->g", ((512, 16384), (512, 512), (512, 16384))),
    ("ab,cbe,ae->ac", ((100_000, 100), (20, 100, 100), (100_000, 100))),
    ("abcdefghijklmnopqrstuvwxyz,Azg->abcdefAhijklmnopqrstuvwxyg", ((2,) * 24, (2, 2, 2))),
)


def pain(choice: Choice) -> Iterator[Case]:
    """Expressions that users reported as slow elsewhere."""
    rng = np.random.default_rng(4)
    for at, (text, shapes) in enumerate(PAIN):
        if len(shapes[0]) == 24:
            text = "abcdefghijklmnopqrstuvwx,Axg->abcdefAhijklmnopqrstuvw"
        if choice.takes(str(at)):
            operands = [column_major(rng, shape, choice.dtype) for shape in shapes]
            yield einsum_case(f"{at} {text[:28]}", text, operands, choice)
    if choice.takes("view"):
        a, b = rng.random((1, 1 << 20)).astype(choice.dtype), rng.random((1 << 20, 8))
        operands = [np.broadcast_to(a, (64, 1 << 20)), b.astype(choice.dtype)]
        yield einsum_case("view ik,kj->ij", "ik,kj->ij", operands, choice)


def random(choice: Choice) -> Iterator[Case]:
    """Contractions with random modes, extents and orders; most are bound by memory."""
    rng = np.random.default_rng(5)
    for at in range(32):
        letters = iter("abcdefghijklmnop")
        m, n, k = ([next(letters) for _ in range(rng.integers(1, 4))] for _ in range(3))
        batch = [next(letters)] if rng.random() < 0.3 else []
        extents = {x: int(rng.choice((3, 4, 7, 12, 24, 40, 72))) for x in (*m, *n, *k, *batch)}
        terms = [rng.permutation([*batch, *m, *k]), rng.permutation([*batch, *k, *n])]
        output = rng.permutation([*batch, *m, *n])
        text = ",".join("".join(term) for term in terms) + "->" + "".join(output)
        while 2e-9 * prod(extents.values()) > choice.gflop or _largest(text, extents) > 1 << 25:
            longest = max(extents, key=lambda x: extents[x])
            extents[longest] = max(2, extents[longest] // 2)
        operands = [column_major(rng, [extents[x] for x in t], choice.dtype) for t in terms]
        if choice.takes(str(at)):
            yield einsum_case(f"{at} {text}", text, operands, choice)


def _largest(text: str, extents: Mapping[str, int]) -> int:
    return max(prod(extents[x] for x in t) for t in text.replace("->", ",").split(","))


def reduce(choice: Choice) -> Iterator[Case]:
    """Sums over first, middle and last modes, and of everything."""
    rng = np.random.default_rng(6)
    for text, shape in (
        ("abc->bc", (200, 200, 200)),
        ("abc->ac", (200, 200, 200)),
        ("abc->ab", (200, 200, 200)),
        ("abc->b", (200, 200, 200)),
        ("abcd->da", (40, 50, 60, 70)),
        ("ab->", (4000, 2000)),
    ):
        if choice.takes(text):
            yield einsum_case(text, text, [column_major(rng, shape, choice.dtype)], choice)


def elementwise(choice: Choice) -> Iterator[Case]:
    """Products without sums, the operands in different mode orders."""
    rng = np.random.default_rng(7)
    for text, shapes in (
        ("ab,ab->ab", ((3000, 2000), (3000, 2000))),
        ("ab,ba->ab", ((3000, 2000), (2000, 3000))),
        ("abc,b->abc", ((200, 200, 200), (200,))),
        ("abc,cab->bca", ((200, 200, 200), (200, 200, 200))),
        ("a,b->ab", ((3000,), (2000,))),
        ("ab,ba,a->ab", ((3000, 2000), (2000, 3000), (3000,))),
    ):
        if choice.takes(text):
            operands = [column_major(rng, shape, choice.dtype) for shape in shapes]
            yield einsum_case(text, text, operands, choice)


NETWORKS: tuple[tuple[str, str, int], ...] = (
    ("chain", "ab,bc,cd,de,ef->af", 400),
    ("ring", "ab,bc,cd,da->", 500),
    ("ladder", "abx,bcy,dxe,eyf->adcf", 28),
    ("lattice", "ab,acd,ce,bfg,dfhi,ehj,gk,ikl,jl->", 24),
    ("tree", "abx,cdy,xyz,zef->abcdef", 14),
    ("ccsd ladder", "abef,ei,fj->abij", 36),
    ("ccsd ring", "mnef,aeim,bfjn->abij", 16),
    ("circuit", "abcd,efgh,ae,bf,cg,dh->", 24),
)


def network(choice: Choice) -> Iterator[Case]:
    """Expressions with more than two operands."""
    rng = np.random.default_rng(8)
    for name, text, extent in NETWORKS:
        if choice.takes(name):
            terms = text.split("->")[0].split(",")
            operands = [column_major(rng, [extent] * len(t), choice.dtype) for t in terms]
            yield einsum_case(name, text, operands, choice)


SUITES: Mapping[str, Suite] = {
    "tccg": tccg,
    "permute": permute,
    "overhead": overhead,
    "pain": pain,
    "random": random,
    "reduce": reduce,
    "elementwise": elementwise,
    "network": network,
}
SHORT = frozenset({"overhead"})
