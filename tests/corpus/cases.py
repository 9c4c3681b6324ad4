"""The corpus as data: expressions with extents, types, and what is legal for them."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from math import prod
from pathlib import Path
from string import ascii_lowercase

TCCG = Path(__file__).parents[2] / "bench" / "data" / "tccg48.json"

FLOATS = ("float32", "float64", "complex64", "complex128", "float16", "bfloat16")
INTEGERS = ("int32", "int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64", "bool")
TYPES = (*FLOATS, *INTEGERS)


@dataclass(frozen=True)
class Case:
    """An expression with the extents of its labels, and the types of its operands."""

    text: str
    extents: Mapping[str, int]
    dtypes: tuple[str, ...] = ()

    @property
    def terms(self) -> tuple[str, ...]:
        return tuple(self.text.split("->")[0].split(","))

    @property
    def output(self) -> str:
        return self.text.split("->")[1]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the operands."""
        return [self.shape(term) for term in self.terms]

    def shape(self, term: str) -> tuple[int, ...]:
        """The extents of a term; an upper-case label has extent 1 and broadcasts."""
        return tuple(1 if x.isupper() else self.extents[x] for x in term)

    @property
    def lower(self) -> "Case":
        """The same with labels as the library takes them."""
        return Case(self.text.lower(), self.extents, self.dtypes)

    @property
    def summed(self) -> int:
        """How many terms each sum has."""
        return prod(n for x, n in self.extents.items() if x not in self.output)

    def __str__(self) -> str:
        sizes = ",".join(map(str, self.extents.values()))
        return f"{self.text}[{sizes}]" + "".join(f"-{each}" for each in dict.fromkeys(self.dtypes))


def case(text: str, *extents: int) -> Case:
    """Extents belong to the labels in order of appearance."""
    labels = dict.fromkeys(x for x in text.lower() if x.isalpha())
    return Case(text, dict(zip(labels, extents, strict=True)))


def rotated(cases: Sequence[Case], types: Sequence[str], start: int = 0) -> list[Case]:
    """Each case with the next type for all of its operands."""
    kinds = cycle((*types[start:], *types[:start]))
    return [
        Case(each.text, each.extents, (dtype,) * len(each.terms))
        for each, dtype in zip(cases, kinds, strict=False)
    ]


MATRICES = [
    case(f"{a},{b}->{d}", *(19, 23, 37))
    for a, b, d in product(("mk", "km"), ("kn", "nk"), ("mn", "nm"))
]
EXPRESSIONS = [
    case("abc,kb->ac", 5, 6, 7, 8),  # a mode in one operand only
    case("lmk,lkn->lmn", 5, 9, 7, 11),  # batched
    case("mlk,knl->nml", 6, 17, 9, 5),
    case("mkl,knl->mnl", 20, 18, 3, 17),
    case("lpmk,plkn->mlnp", 3, 2, 8, 5, 9),
    case("lmk,kn->lmn", 4, 9, 8, 7),  # one operand has no batch
    case("mk,lkn->mnl", 9, 8, 4, 7),
    case("Lmk,lkn->lmn", 4, 9, 8, 7),  # extent 1 broadcasts
    case("amK,kb->amb", 3, 5, 9, 4),
    case("ab,cb,db->acd", 6, 17, 5, 4),  # hyper-edges
    case("ab,ac,ad->bcd", 30, 4, 5, 3),
    case("a,b->ab", 33, 47),  # outer
    case("ab,cd->dacb", 3, 5, 7, 4),
    case("a,a->", 5000),  # dot
    case("abc,cab->", 11, 13, 17),
    case("mk,k->m", 300, 70),  # gemv
    case("km,k->m", 300, 70),
    case("k,kn->n", 65, 130),
    case("lmk,lk->lm", 40, 6, 5),
    case("lk,lk->l", 70, 40),
    case("ab,ab->ab", 31, 20),  # nothing summed
    case("ab,b->ba", 31, 20),
    case("ii->", 77),  # traces
    case("iij,j->i", 9, 12),
    case("iaib->ab", 6, 5, 7),
    case("iji,jk->ki", 7, 8, 6),  # diagonals
    case("ii,jj->ij", 9, 8),
    case("ii,ij,jj->", 9, 8),
    case("i->ii", 7),  # repeated in the output
    case("ij,j->iji", 5, 6),
    case("ik,kj->iij", 5, 6, 4),
    case("abcd->db", 4, 5, 6, 7),  # one operand
    case("abcd->bdca", 4, 5, 6, 7),
    case("ab,cd->", 5, 6, 7, 8),  # modes in one operand only
    case("ab,c->a", 5, 6, 7),
    case("xab,yb->a", 3, 9, 8, 4),
    case(",->"),  # rank 0
    case(",ab->ba", 5, 6),
    case("->"),
    case("ab,bc->ac", 5, 0, 6),  # extents 0 and 1
    case("ab,bc->ac", 0, 7, 6),
    case("ab->a", 6, 0),
    case("abc,bcd->ad", 5, 1, 8, 1),
    case("ab,bc->ac", 1, 1, 1),
    case("ab,bc,cd->ad", 9, 10, 11, 12),  # three and four operands
    case("ab,bc,ca->", 9, 10, 11),
    case("abx,bcy,caz->xyz", 4, 5, 3, 6, 4, 2),
    case("ab,bc,cd,de->ae", 5, 17, 6, 18, 4),
    case("abij,ik,jl,abkl->ab", 3, 4, 5, 6, 4, 5),
    case("efij,abef,mj->abim", 3, 4, 5, 6, 4, 3, 5),
]
LONG = "acegikmoqsuwybdf"
MANY_MODES = [  # of extent 2
    case(f"{ascii_lowercase[:13]},{ascii_lowercase[6:20]}->abcdefnopqrst", *(2,) * 20),
    case(f"{LONG},{LONG[::-1]}->", *(2,) * 16),
    case("abcdefghijkl,mnopqrstuvwxyz->" + "azbycxdwevfu", *(2,) * 26),
    case(f"{LONG}->{LONG[::-1]}", *(2,) * 16),
]
TILES = (16, 32, 64, 128)
EDGES = [
    *((n - 1, n + 1, 2 * n + 3) for n in TILES),
    *((2 * n + 3, n, n - 1) for n in TILES),
    *((n, 2 * n + 3, n + 1) for n in TILES),
    *((n + 1, n - 1, n) for n in TILES),
    (1, 64, 65),
    (33, 1, 32),
    (13, 31, 61),
    (61, 127, 13),
    (127, 61, 31),
    (16, 16, 997),
    (3, 5, 4001),
]
AT_EDGES = [Case("mk,kn->mn", {"m": m, "n": n, "k": k}) for m, n, k in EDGES]


def tccg() -> list[Case]:
    """The 48 contractions of TCCG with small extents."""
    sizes = cycle((5, 7))
    found = []
    for each in json.loads(TCCG.read_text())["cases"]:
        labels = each["f64"]["extents"]
        found.append(Case(each["einsum"], {x: next(sizes) for x in labels}))
    return found


def random_products(seed: int, count: int) -> Iterator[Case]:
    """Two operands with up to two modes of each kind, in any order, some repeated."""
    draw = random.Random(seed)
    for _ in range(count):
        letters = iter(ascii_lowercase)
        kinds = {
            kind: [next(letters) for _ in range(draw.randint(0, most))]
            for kind, most in {"l": 1, "m": 2, "n": 2, "k": 2, "a": 1, "b": 1}.items()
        }
        a = kinds["l"] + kinds["m"] + kinds["k"] + kinds["a"]
        b = kinds["l"] + kinds["n"] + kinds["k"] + kinds["b"]
        for term in (a, b):
            if term and draw.randrange(5) == 0:
                term.append(draw.choice(term))
        output = kinds["l"] + kinds["m"] + kinds["n"]
        for labels in (a, b, output):
            draw.shuffle(labels)
        if output and draw.randrange(9) == 0:
            output.append(draw.choice(output))
        extents = {x: draw.choice((1, 3, 5, 7)) for x in dict.fromkeys(a + b)}
        yield Case(f"{''.join(a)},{''.join(b)}->{''.join(output)}", extents)


# Compute types by the type the operands have in common, the default first.
PASSES = {
    "float16": ("32F", "16F"),
    "bfloat16": ("32F", "16BF"),
    "float32": ("32F",),
    "float64": ("64F",),
    "complex64": ("32F",),
    "complex128": ("64F",),
}
CONTRACTIONS = {
    "float16": ("32F", "16F"),
    "bfloat16": ("32F", "16BF"),
    "float32": ("32F", "TF32", "3XTF32", "16BF", "16F", "9X16BF", "4X16F"),
    "float64": ("64F", "32F", "8XINT8"),
    "complex64": ("32F", "TF32", "3XTF32", "9X16BF", "4X16F"),
    "complex128": ("64F", "32F", "8XINT8"),
}
MIXED = [
    ("float64", "complex128"),
    ("complex64", "float32"),
    ("float16", "float32"),
    ("bfloat16", "float64"),
    ("int8", "int32"),
    ("uint64", "uint8"),
    ("int32", "float32"),
]
MIXED_ELEMENTWISE = [
    ("complex128", "float64"),
    ("float32", "bfloat16"),
    ("complex64", "float64"),
    ("uint8", "int8"),
    ("int32", "uint32"),
    ("int64", "uint64"),
    ("bool", "int16"),
    ("bool", "float64"),
]
CONVERSIONS = [
    ("float16", "float32", "32F"),
    ("float32", "float16", "32F"),
    ("bfloat16", "float32", "32F"),
    ("float32", "bfloat16", "32F"),
    ("float32", "float64", "64F"),
    ("float64", "float32", "64F"),
    ("complex64", "complex128", "64F"),
    ("complex128", "complex64", "64F"),
]
