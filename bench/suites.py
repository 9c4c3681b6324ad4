"""The suites: what is measured, as entries that make their case when it is its turn."""

import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from math import inf, prod
from typing import Any

import numpy as np
import opt_einsum

import contract
from bench.device import HOST, Array, Device, Run
from bench.draws import Drawn, contractions
from bench.expressions import flops_of
from bench.library import Library, axes_of
from bench.measure import Case, Facts
from bench.networks import NETWORKS, Network
from bench.overheads import small_calls
from bench.peers import OURS, Mode, contestants
from bench.reference import distinct, exactly, reference_of, split
from contract.descriptors.compute_types import ComputeType

DATA = pathlib.Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Choice:
    """What the command line chose for a suite.

    ``compute`` None: the default of the type; ``gflop`` and ``memory`` None: the device's own
    limits.
    """

    peers: Mapping[str, Library] = field(default_factory=dict)
    mode: Mode = "fixed"
    dtype: str = "float64"
    compute: ComputeType | None = None
    gflop: float | None = None
    memory: int | None = None
    device: Device = HOST

    @property
    def limit(self) -> float:
        """Contractions are scaled down to this many 1e9 FLOPs."""
        return self.device.sizes.gflop if self.gflop is None else self.gflop

    @property
    def room(self) -> int:
        """Expressions are scaled down until operands and four results fit this many bytes."""
        return self.device.sizes.memory if self.memory is None else self.memory


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
    return case_on(work, operands_of(work, choice.dtype), choice)


def operands_of(work: Work, dtype: str) -> list[Array]:
    """Random column-major operands."""
    rng = np.random.default_rng(work.seed)
    terms, _ = split(work.text)
    return [column_major(rng, [work.extents[x] for x in term], dtype) for term in terms]


def case_on(work: Work, operands: Sequence[Array], choice: Choice) -> Case:
    """The case on given arrays. With ``work.ordered`` the peers get a path found beforehand."""
    path = opt_einsum.contract_path(work.text, *operands, optimize="auto")[1]
    order = path.path if work.ordered else None
    placed = copies(operands, operand_bytes(operands), choice.device)
    return Case(
        facts_of(work, operands, path),
        {
            name: in_turn([bind(work.text, each, order) for each in placed])
            for name, bind in contestants(choice.peers, choice.mode, choice.compute).items()
        },
        partial(
            *(reference_of, work.text, operands, work.seed, choice.compute),
            *(choice.device, placed[0]),
        ),
        packed=choice.mode == "fixed",
    )


def facts_of(work: Work, operands: Sequence[Array], path: Any) -> Facts:
    """What the expression costs at least, by opt_einsum's ``path``."""
    result = prod(path.size_dict[x] for x in path.output_subscript) * operands[0].itemsize
    each_flop = 4 if np.iscomplexobj(operands[0]) else 1
    return Facts(
        work.name,
        flops=float(path.opt_cost) * each_flop,
        bytes=float(operand_bytes(operands) + result),
        note=work.note,
        extents=dict(path.size_dict),
    )


def operand_bytes(operands: Sequence[Array]) -> int:
    """Bytes of the numbers in memory."""
    return sum(distinct(x).nbytes for x in operands)


def copies(operands: Sequence[Array], size: int, device: Device) -> list[list[Any]]:
    """The operands, of ``size`` bytes together, on the device as often as it asks for."""
    return [[device.array(x) for x in operands] for _ in range(device.copies(size))]


def in_turn(runs: Sequence[Run]) -> Run:
    """One of the calls after the other, over and over."""
    if len(runs) == 1:
        return runs[0]
    turns = cycle(runs)
    return lambda: next(turns)()


def column_major(rng: np.random.Generator, extents: Sequence[int], dtype: str) -> Array:
    """Uniform in [-1, 1) (both parts, for complex types), packed column-major."""
    shape = tuple(extents)[::-1]
    values: Array = rng.uniform(-1, 1, (*shape, 2) if np.dtype(dtype).kind == "c" else shape)
    if np.dtype(dtype).kind == "c":
        values = values.view(np.complex128)[..., 0]
    return np.ascontiguousarray(values, dtype).reshape(shape).T


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


def fitted(text: str, extents: Mapping[str, int], itemsize: int, memory: int) -> dict[str, int]:
    """Extents with the largest halved until operands and four results fit ``memory`` bytes."""
    terms, output = split(text)
    fit = dict(extents)

    def size(labels: str) -> int:
        return prod(fit[label] for label in labels) * itemsize

    while sum(map(size, terms)) + 4 * size(output) > memory:
        largest = max(fit, key=lambda label: fit[label])
        fit[largest] //= 2
    return fit


def changes(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """What was scaled down, in words; empty for nothing."""
    parts = [f"{x} {n} -> {after[x]}" for x, n in before.items() if after[x] != n]
    return "scaled down: " + ", ".join(parts) if parts else ""


# --- suites ---------------------------------------------------------------------------------------


def tccg(choice: Choice) -> list[Entry]:
    """The 48 contractions of the TCCG benchmark."""
    return [
        Entry(work.name.split()[0], partial(case_of, work, choice)) for work in tccg_works(choice)
    ]


def tccg_works(choice: Choice) -> Iterator[Work]:
    """The contractions, scaled to ``choice.limit``; 16-bit types have the sizes of float32."""
    sizes = "f64" if choice.dtype in ("float64", "complex128") else "f32"
    for each in json.loads((DATA / "tccg48.json").read_text())["cases"]:
        text, full = each["einsum"], each[sizes]["extents"]
        extents = scaled(full, choice.limit)
        name = f"{each['id']} {text}"
        yield Work(name, text, extents, 1000 + each["id"], changes(full, extents))


def permute(choice: Choice) -> list[Entry]:
    """HPTT's permutations; column-major copies in both modes."""
    cases = json.loads((DATA / "permutations.json").read_text())["cases"]
    return [
        Entry(
            str(at), partial(permutation, at, each["expr"], copied(each["extents"], choice), choice)
        )
        for at, each in enumerate(cases)
    ]


def copied(extents: Mapping[str, int], choice: Choice) -> Mapping[str, int]:
    """Extents of a tensor of the size that the device asks for."""
    size = choice.device.sizes.permuted
    return extents if size is None else resized(extents, size // np.dtype(choice.dtype).itemsize)


def resized(extents: Mapping[str, int], size: int) -> dict[str, int]:
    """Extents * f for one f, so that their product is about ``size``."""
    factor = (size / prod(extents.values())) ** (1 / len(extents))
    return {label: max(2, round(n * factor)) for label, n in extents.items()}


def permutation(at: int, text: str, extents: Mapping[str, int], choice: Choice) -> Case:
    """One permutation into memory that is there; peers are those libraries that copy.

    None can be quicker than a copy in the order of memory.
    """
    (source,), _ = split(text)
    x = column_major(np.random.default_rng(2000 + at), [extents[y] for y in source], choice.dtype)
    view = x.transpose(axes_of(text))
    sources = copies([x], 2 * x.nbytes, choice.device)
    makers = {name: each.copy for name, each in choice.peers.items() if each.copy}
    runs = {
        name: in_turn(
            [copy(text, each, choice.device.array(unwritten(view))) for (each,) in sources]
        )
        for name, copy in {OURS: permute_into, **makers}.items()
    }
    floor = in_turn(
        [
            choice.device.copier(flat(each), choice.device.array(np.empty_like(flat(x))))
            for (each,) in sources
        ]
    )
    facts = Facts(f"{at} {text}", bytes=2.0 * x.nbytes, extents=extents)
    moved, wide = sources[0][0].transpose(axes_of(text)), choice.device.wide
    return Case(facts, runs, lambda: exactly(wide(moved)), packed=True, floor=floor)


def flat(x: Any) -> Any:
    """The memory of a packed column-major array."""
    return x.T.reshape(-1)


def unwritten(x: Array) -> Array:
    """New memory for a column-major copy of ``x``: NaN until it is written."""
    return np.full(x.shape, np.nan, x.dtype, order="F")


def permute_into(text: str, source: Any, target: Any) -> Run:
    """Our permutation."""
    return partial(contract.permute, text, source, out=target)


OVERHEAD: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = (
    ("ij,jk->ik", ((4, 4), (4, 4))),
    ("abc,cd->abd", ((2, 3, 4), (4, 3))),
    ("abc,kb->ac", ((2, 3, 4), (5, 3))),
)


def overhead(choice: Choice) -> list[Entry]:
    """Calls so small that only their overhead counts, as a user writes them.

    Each of our ways to call is a row of its own beside the same peers; nobody's result is copied
    to another layout. A replay is a CUDA graph on a GPU, and a repeated call on the host. On the
    host every verb follows, on NumPy's own arrays.
    """
    is_numpys = choice.device is HOST and choice.dtype != "bfloat16"
    verbs = small_calls(3100, choice.dtype) if is_numpys else ()
    return [
        Entry(f"{way}{at}", partial(tiny, f"{way}{at}", text, shapes, way, 3000 + at, choice))
        for at, (text, shapes) in enumerate(OVERHEAD)
        for way in ("call", "expression", "einsum", "replay")
    ] + [Entry(name, make) for name, make in verbs]


def tiny(
    id: str, text: str, shapes: Sequence[Sequence[int]], way: str, seed: int, choice: Choice
) -> Case:
    """One of our ways to call, beside every peer's."""
    rng = np.random.default_rng(seed)
    operands = [column_major(rng, shape, choice.dtype) for shape in shapes]
    placed = [choice.device.array(x) for x in operands]
    planned = contract.contract_expression(
        text, *shapes, dtype=choice.dtype, handle=choice.device.handle
    )
    ours: Mapping[str, Callable[[], Run]] = {
        "call": lambda: partial(contract.contract, text, *placed),
        "einsum": lambda: partial(contract.einsum, text, *placed),
        "expression": lambda: partial(planned, *placed),
        "replay": lambda: planned.capture(*placed).replay,
    }
    return Case(
        Facts(f"{id} {text}"),
        {OURS: ours[way](), **dict(tiny_peers(text, placed, choice))},
        partial(reference_of, text, operands, seed, None, choice.device, placed),
        short=True,
    )


def tiny_peers(text: str, operands: Sequence[Any], choice: Choice) -> Iterator[tuple[str, Run]]:
    """Each library's quickest ways to be called."""
    for name, library in choice.peers.items():
        if library.small:
            yield from library.small(text, operands).items()
        else:
            yield name, library.product(text, operands, None)


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
    """Expressions that users reported as slow elsewhere, in full where memory allows it.

    Only a limit of FLOPs that is asked for makes them smaller.
    """
    entries = []
    limit = inf if choice.gflop is None else choice.gflop
    for at, (text, full) in enumerate(PAIN):
        extents = scaled(fitted(text, full, np.dtype(choice.dtype).itemsize, choice.room), limit)
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
    work = product_of_views("view a[None, :]", {"i": 1, "k": 4096, "j": 4096}, 4100, choice)
    a, b = vector_and_matrix(work, choice)
    return case_on(work, [a[None, :], b], choice)


def repeated_rows(choice: Choice) -> Case:
    """ik,kj->ij with A = a[None, :] repeated 64 times by stride 0."""
    work = product_of_views("repeat a[None, :]", {"i": 64, "k": 1 << 20, "j": 8}, 4101, choice)
    a, b = vector_and_matrix(work, choice)
    rows = np.lib.stride_tricks.as_strided(a, (work.extents["i"], a.size), (0, a.strides[0]))
    return case_on(work, [rows, b], choice)


def product_of_views(name: str, full: Mapping[str, int], seed: int, choice: Choice) -> Work:
    """ik,kj->ij in the memory there is."""
    text = "ik,kj->ij"
    extents = fitted(text, full, np.dtype(choice.dtype).itemsize, choice.room)
    return Work(name, text, extents, seed, changes(full, extents))


def vector_and_matrix(work: Work, choice: Choice) -> list[Array]:
    """Random numbers for k and for kj."""
    rng = np.random.default_rng(work.seed)
    return [
        column_major(rng, [work.extents[x] for x in term], choice.dtype) for term in ("k", "kj")
    ]


def random(choice: Choice) -> list[Entry]:
    """100 contractions with random modes, extents and orders."""
    return [
        Entry(str(at), partial(case_of, random_work(at, each, choice.limit), choice))
        for at, each in enumerate(contractions())
    ]


def random_work(at: int, each: Drawn, gflop: float) -> Work:
    """One of them, scaled to ``gflop``."""
    extents = scaled(each.extents, gflop)
    name, note = f"{at} {each.text}", changes(each.extents, extents)
    return Work(name, each.text, extents, 5000 + at, note)


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
    """Entries for expressions whose labels, sorted, have the given extents times a factor."""
    for at, (text, shape) in enumerate(table):
        labels = sorted(set(text) - set(",->"))
        grown = (max(2, round(n * choice.device.sizes.growth)) for n in shape)
        extents = dict(zip(labels, grown, strict=True))
        work = Work(f"{at} {text}", text, extents, seed + at)
        yield Entry(str(at), partial(case_of, work, choice))


def network(choice: Choice) -> list[Entry]:
    """More than two operands; a path is given to the peers, as our plan is cached."""
    return [
        Entry(each.name, partial(case_of, network_work(at), network_choice(each, choice)))
        for at, each in enumerate(NETWORKS)
    ]


def network_work(at: int) -> Work:
    """The ``at``-th network."""
    each = NETWORKS[at]
    return Work(each.name, each.text, each.extents, 8000 + at, ordered=True)


def network_choice(network: Network, choice: Choice) -> Choice:
    """Complex data of the same precision for complex networks, where there is such a type."""
    complex_type = {"float64": "complex128", "float32": "complex64"}.get(choice.dtype)
    return replace(choice, dtype=complex_type) if network.complex and complex_type else choice


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
