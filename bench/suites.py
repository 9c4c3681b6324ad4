"""The suites: what is measured, as entries that make their case when it is its turn."""

import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import opt_einsum

import contract
from bench.measure import Case, Run
from bench.networks import NETWORKS
from bench.peers import OURS, Contestant, Mode, contestants, copiers, peer_named
from bench.reference import Array, Path, distinct, exactly, reference_of, split

DATA = pathlib.Path(__file__).parent / "data"
COPY_BYTES = 64 << 20
MEMORY_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Choice:
    """What the command line chose for a suite."""

    peers: tuple[str, ...] = ()
    mode: Mode = "fixed"
    dtype: str = "float64"
    gflop: float = 8.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A case not made yet (its operands are large): the id that --cases takes, and its maker."""

    id: str
    make: Callable[[], Case]


Suite = Callable[[Choice], list[Entry]]


# --- expressions into cases -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Work:
    """An expression, its extents, and the seed of its operands."""

    name: str
    text: str
    extents: Mapping[str, int]
    seed: int
    note: str = ""
    ordered: bool = False


def case_of(work: Work, choice: Choice) -> Case:
    """Random column-major operands for the expression, the same arrays for everyone."""
    rng = np.random.default_rng(work.seed)
    terms, _ = split(work.text)
    shapes = [[work.extents[label] for label in term] for term in terms]
    operands = [column_major(rng, shape, choice.dtype) for shape in shapes]
    return case_on(work, operands, choice)


def case_on(work: Work, operands: Sequence[Array], choice: Choice) -> Case:
    """The case on given arrays. With ``work.ordered`` the peers get a path found beforehand."""
    path = opt_einsum.contract_path(work.text, *operands, optimize="auto")[1]
    order = path.path if work.ordered else None
    result = prod(path.size_dict[x] for x in path.output_subscript) * operands[0].itemsize
    each_flop = 4 if np.iscomplexobj(operands[0]) else 1
    return Case(
        work.name,
        {
            name: bind(run, work.text, operands, order)
            for name, run in contestants(choice.peers, choice.mode).items()
        },
        partial(reference_of, work.text, operands, work.seed),
        flops=float(path.opt_cost) * each_flop,
        bytes=float(sum(distinct(x).nbytes for x in operands) + result),
        packed=choice.mode == "fixed",
        note=work.note,
        extents=dict(path.size_dict),
    )


def bind(run: Contestant, text: str, operands: Sequence[Array], order: Path | None) -> Run:
    """A call without arguments."""
    return lambda: run(text, operands, order)


def column_major(rng: np.random.Generator, extents: Sequence[int], dtype: str) -> Array:
    """Uniform in [-1, 1) (both parts, for complex types), packed column-major."""
    shape = tuple(extents)[::-1]
    if np.dtype(dtype).kind == "c":
        values = rng.uniform(-1, 1, (*shape, 2)).view(np.complex128)[..., 0]
    else:
        values = rng.uniform(-1, 1, shape)
    return np.ascontiguousarray(values, dtype).reshape(shape).T


def flops_of(extents: Mapping[str, int]) -> float:
    """2 * product of all extents: the FLOPs of a product of two real operands."""
    return 2.0 * prod(extents.values())


def scaled(extents: Mapping[str, int], gflop: float) -> dict[str, int]:
    """Extents * f for the largest f <= 1 that keeps the FLOPs <= ``gflop`` * 1e9.

    Those shrunk are multiples of 4 and at least 4, never above what they were. Where even
    extents of 4 are too many, they stay 4.
    """

    def at(factor: float) -> dict[str, int]:
        return {x: min(n, max(4, int(n * factor) // 4 * 4)) for x, n in extents.items()}

    if flops_of(extents) <= gflop * 1e9:
        return dict(extents)
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        fits = flops_of(at(middle)) <= gflop * 1e9
        low, high = (middle, high) if fits else (low, middle)
    return at(low)


def fitted(text: str, extents: Mapping[str, int], itemsize: int) -> dict[str, int]:
    """Extents with the largest halved until operands and four results fit MEMORY_BYTES."""
    terms, output = split(text)
    fit = dict(extents)

    def size(labels: str) -> int:
        return prod(fit[label] for label in labels) * itemsize

    while sum(map(size, terms)) + 4 * size(output) > MEMORY_BYTES:
        largest = max(fit, key=lambda label: fit[label])
        fit[largest] //= 2
    return fit


def changes(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """What was scaled down, in words; empty for nothing."""
    parts = [f"{x} {n} -> {after[x]}" for x, n in before.items() if after[x] != n]
    return "scaled down: " + ", ".join(parts) if parts else ""


# --- suites ---------------------------------------------------------------------------------------


def tccg(choice: Choice) -> list[Entry]:
    """The 48 contractions of the TCCG benchmark, scaled to ``choice.gflop``."""
    sizes = "f32" if choice.dtype in ("float32", "complex64") else "f64"
    entries = []
    for each in json.loads((DATA / "tccg48.json").read_text())["cases"]:
        name, text, full = str(each["id"]), each["einsum"], each[sizes]["extents"]
        extents = scaled(full, choice.gflop)
        work = Work(f"{name} {text}", text, extents, 1000 + each["id"], changes(full, extents))
        entries.append(Entry(name, partial(case_of, work, choice)))
    return entries


def permute(choice: Choice) -> list[Entry]:
    """HPTT's permutations, each tensor 64 MiB; column-major copies in both modes."""
    cases = json.loads((DATA / "permutations.json").read_text())["cases"]
    size = COPY_BYTES // np.dtype(choice.dtype).itemsize
    return [
        Entry(
            str(at),
            partial(permutation, at, each["expr"], resized(each["extents"], size), choice),
        )
        for at, each in enumerate(cases)
    ]


def resized(extents: Mapping[str, int], size: int) -> dict[str, int]:
    """Extents * f for one f, so that their product is about ``size``."""
    factor = (size / prod(extents.values())) ** (1 / len(extents))
    return {label: max(2, round(n * factor)) for label, n in extents.items()}


def permutation(at: int, text: str, extents: Mapping[str, int], choice: Choice) -> Case:
    """One permutation into memory that is there; peers are numpy.copyto and, if named, torch."""
    (source,), target = split(text)
    x = column_major(np.random.default_rng(2000 + at), [extents[y] for y in source], choice.dtype)
    axes = [source.index(label) for label in target]
    view = x.transpose(axes)
    target = np.empty(view.shape, view.dtype, order="F")
    runs: dict[str, Run] = {OURS: lambda: contract.permute(text, x, out=target)}
    for name, copy in copiers(choice.peers).items():
        runs[name] = partial(copy, view, np.empty_like(target))
    return Case(
        f"{at} {text}",
        runs,
        lambda: exactly(view),
        bytes=2.0 * x.nbytes,
        packed=True,
        extents=extents,
    )


OVERHEAD: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = (
    ("ij,jk->ik", ((4, 4), (4, 4))),
    ("abc,cd->abd", ((2, 3, 4), (4, 3))),
    ("abc,kb->ac", ((2, 3, 4), (5, 3))),
)


def overhead(choice: Choice) -> list[Entry]:
    """Calls so small that only their overhead counts, as a user writes them.

    Each of our three ways to call is a row of its own beside the same peers; nobody's result is
    copied to another layout.
    """
    return [
        Entry(f"{way}{at}", partial(tiny, f"{way}{at}", text, shapes, way, 3000 + at, choice))
        for at, (text, shapes) in enumerate(OVERHEAD)
        for way in ("call", "expression", "einsum")
    ]


def tiny(
    id: str, text: str, shapes: Sequence[Sequence[int]], way: str, seed: int, choice: Choice
) -> Case:
    """One of our ways to call, beside every peer's."""
    rng = np.random.default_rng(seed)
    operands = [column_major(rng, shape, choice.dtype) for shape in shapes]
    ours: dict[str, Run] = {
        "call": lambda: contract.contract(text, *operands),
        "einsum": lambda: contract.einsum(text, *operands),
    }
    if way == "expression":
        planned = contract.contract_expression(text, *shapes, dtype=choice.dtype)
        ours[way] = partial(planned, *operands)
    return Case(
        f"{id} {text}",
        {OURS: ours[way], **dict(tiny_peers(text, operands, choice))},
        partial(reference_of, text, operands, seed),
        short=True,
    )


def tiny_peers(
    text: str, operands: Sequence[Array], choice: Choice
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """numpy.einsum both ways, opt_einsum's expression, the others as they are."""
    for name in choice.peers:
        if name == "numpy":
            yield "np optimize", lambda: np.einsum(text, *operands, optimize=True)
            yield "np.einsum", lambda: np.einsum(text, *operands)
        elif name == "opt_einsum":
            planned = opt_einsum.contract_expression(text, *(x.shape for x in operands))
            yield "oe expression", partial(planned, *operands)
        else:
            yield name, bind(peer_named(name), text, operands, None)


STATE = "abcdefghijklmnopqrstuvwxyz"
PAIN: tuple[tuple[str, Mapping[str, int]], ...] = (
    ("ija,ijb,ijc->ijabc", {"i": 500, "j": 50000, "a": 3, "b": 3, "c": 3}),
    ("uvP,up->pvP", {"u": 1234, "v": 1234, "P": 23, "p": 98}),
    ("i,i->i", {"i": 10_000_000}),
    ("ig,ij,jg->g", {"i": 512, "j": 512, "g": 16384}),
    ("ab,cbe,ae->ac", {"a": 100_000, "b": 100, "c": 20, "e": 100}),
    (f"{STATE},Azg->abcdefAhijklmnopqrstuvwxyg", dict.fromkeys(STATE + "A", 2)),
)


def pain(choice: Choice) -> list[Entry]:
    """Expressions that users reported as slow elsewhere."""
    entries = []
    for at, (text, full) in enumerate(PAIN):
        extents = fitted(text, full, np.dtype(choice.dtype).itemsize)
        name = f"{at} {text}" if len(text) < 31 else f"{at} 26 modes of 2, one gate"
        work = Work(name, text, extents, 4000 + at, changes(full, extents))
        entries.append(Entry(str(at), partial(case_of, work, choice)))
    return [
        *entries,
        Entry("view", partial(inserted_mode, choice)),
        Entry("repeat", partial(repeated_rows, choice)),
    ]


def inserted_mode(choice: Choice) -> Case:
    """ik,kj->ij with A = a[None, :]."""
    rng = np.random.default_rng(4100)
    a, b = (column_major(rng, shape, choice.dtype) for shape in ((4096,), (4096, 4096)))
    return case_on(Work("view a[None, :]", "ik,kj->ij", {}, 4100), [a[None, :], b], choice)


def repeated_rows(choice: Choice) -> Case:
    """ik,kj->ij with A = a[None, :] repeated 64 times by stride 0."""
    rng = np.random.default_rng(4101)
    a, b = (column_major(rng, shape, choice.dtype) for shape in ((1 << 20,), (1 << 20, 8)))
    rows = np.lib.stride_tricks.as_strided(a, (64, a.size), (0, a.strides[0]))
    return case_on(Work("repeat a[None, :]", "ik,kj->ij", {}, 4101), [rows, b], choice)


def random(choice: Choice) -> list[Entry]:
    """32 contractions with random modes, extents and orders; most are bound by memory."""
    entries = []
    for at in range(32):
        text, extents = random_product(np.random.default_rng(5000 + at), choice.gflop)
        work = Work(f"{at} {text}", text, extents, 5100 + at)
        entries.append(Entry(str(at), partial(case_of, work, choice)))
    return entries


def random_product(rng: np.random.Generator, gflop: float) -> tuple[str, dict[str, int]]:
    """1 to 3 modes of each kind, sometimes a batch; no tensor above 2^25 elements."""
    letters = iter("abcdefghijklmnop")
    m, n, k = ([next(letters) for _ in range(rng.integers(1, 4))] for _ in range(3))
    batch = [next(letters)] if rng.random() < 0.3 else []
    extents = {x: int(rng.choice((3, 4, 7, 12, 24, 40, 72))) for x in (*m, *n, *k, *batch)}
    groups = ([*batch, *m, *k], [*batch, *k, *n], [*batch, *m, *n])
    a, b, d = ("".join(rng.permutation(group)) for group in groups)
    while flops_of(extents) > gflop * 1e9 or max(
        prod(extents[x] for x in term) for term in (a, b, d)
    ) > (1 << 25):
        longest = max(extents, key=lambda x: extents[x])
        extents[longest] = max(2, extents[longest] // 2)
    return f"{a},{b}->{d}", extents


REDUCTIONS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("abc->bc", (200, 200, 200)),
    ("abc->ac", (200, 200, 200)),
    ("abc->ab", (200, 200, 200)),
    ("abc->a", (200, 200, 200)),
    ("abc->b", (200, 200, 200)),
    ("abc->c", (200, 200, 200)),
    ("abcd->da", (40, 50, 60, 70)),
    ("ab->", (4000, 2000)),
)

PRODUCTS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("ab,ab->ab", (3000, 2000)),
    ("ab,ba->ab", (3000, 2000)),
    ("abc,b->abc", (200, 200, 200)),
    ("abc,cab->bca", (200, 200, 200)),
    ("a,b->ab", (3000, 2000)),
    ("ab,ba,a->ab", (3000, 2000)),
    ("abc,cba,bac->cab", (200, 200, 200)),
)


def reduce(choice: Choice) -> list[Entry]:
    """Sums over first, middle and last modes, and of everything."""
    return list(listed(REDUCTIONS, 6000, choice))


def elementwise(choice: Choice) -> list[Entry]:
    """Products without sums of two and three operands, in different mode orders."""
    return list(listed(PRODUCTS, 7000, choice))


def listed(
    table: Sequence[tuple[str, tuple[int, ...]]], seed: int, choice: Choice
) -> Iterator[Entry]:
    """Entries for expressions whose labels, sorted, have the given extents."""
    for at, (text, shape) in enumerate(table):
        labels = sorted(set(text) - set(",->"))
        extents = dict(zip(labels, shape, strict=True))
        work = Work(f"{at} {text}", text, extents, seed + at)
        yield Entry(str(at), partial(case_of, work, choice))


def network(choice: Choice) -> list[Entry]:
    """More than two operands; a path is given to the peers, as our plan is cached."""
    return [
        Entry(name, partial(case_of, Work(name, text, extents, 8000 + at, ordered=True), choice))
        for at, (name, text, extents) in enumerate(NETWORKS)
    ]


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
