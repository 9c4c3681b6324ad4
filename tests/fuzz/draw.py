"""Seed and number -> a case: every rule of what may be asked for, drawn at random."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tests.fuzz.cases import NETWORKS, Case, Memory, Tensor, Verb, name_of, result_type

__all__ = ["Wishes", "drawn"]

VERBS = {
    Verb.CONTRACT: 40,
    Verb.EINSUM: 9,
    Verb.EXPRESSION: 9,
    Verb.PLAN: 12,
    Verb.REDUCE: 8,
    Verb.REDUCE_PLAN: 3,
    Verb.PERMUTE: 7,
    Verb.BINARY: 5,
    Verb.TRINARY: 4,
    Verb.ELEMENTWISE_PLAN: 3,
}
SCALED = (Verb.CONTRACT, Verb.EXPRESSION, Verb.PLAN, Verb.REDUCE, Verb.REDUCE_PLAN)
PLANS = (Verb.PLAN, Verb.REDUCE_PLAN, Verb.ELEMENTWISE_PLAN)
CONVERTING = (Verb.PERMUTE, Verb.BINARY, Verb.TRINARY)
PLAIN = ("float64", "float32", "complex128", "complex64", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
EXTENTS = (
    1,
    2,
    2,
    2,
    3,
    3,
    3,
    4,
    4,
    5,
    5,
    6,
    7,
    8,
    9,
    11,
    13,
    16,
    17,
    20,
    25,
    31,
    32,
    33,
    40,
    65,
    130,
)
VOLUMES = {30: 18, 400: 36, 4000: 32, 40_000: 11, 300_000: 2.5, 2_000_000: 0.5}
LARGER_VOLUMES = {30: 5, 400: 25, 4000: 50, 40_000: 17, 300_000: 2.5, 2_000_000: 0.5}
UNARY = (
    *("sqrt", "relu", "rcp", "sigmoid", "tanh", "exp", "log", "abs", "neg", "sin", "cos", "tan"),
    *("sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "ceil", "floor", "mish"),
    *("swish", "soft_plus", "soft_sign"),
)
MOST_SLICES = 2000  # about: each of them takes a while between guard pages
ALGORITHMS = ("DEFAULT", "GEMM", "GETT", "TTGT", "TGETT", "ELEMENTWISE", "ONE_PASS")


@dataclass(frozen=True)
class Wishes:
    """What to draw from: with limits or without, and which kernels."""

    limits: bool = True
    kernels: tuple[str, ...] = ("numba", "numpy")


def drawn(seed: int, number: int, wishes: Wishes) -> Case:
    """The case; it depends on nothing else."""
    return _Draw(np.random.default_rng((seed, number)), wishes).case()


class _Draw:
    """Random choices, in the order in which they depend on each other."""

    def __init__(self, rng: np.random.Generator, wishes: Wishes) -> None:
        self.rng = rng
        self.wishes = wishes

    # --- choices ----------------------------------------------------------------------------

    def chance(self, percent: float) -> bool:
        return bool(self.rng.random() * 100 < percent)

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def one(self, choices: Sequence[Any]) -> Any:
        return choices[self.number(0, len(choices) - 1)]

    def weighted(self, weights: dict[Any, float]) -> Any:
        point = self.rng.random() * sum(weights.values())
        for choice, weight in weights.items():
            point -= weight
            if point < 0:
                return choice
        return choice

    def shuffled(self, items: Sequence[Any]) -> list[Any]:
        return [items[at] for at in self.rng.permutation(len(items))]

    # --- the whole --------------------------------------------------------------------------

    def case(self) -> Case:
        verb = self.weighted(VERBS)
        terms, output, ellipsis, implicit = self.expression(verb)
        shapes = self.shapes(terms, output)
        operands = self.operands(verb, shapes)
        if verb in NETWORKS and self.chance(25):
            operands = self.repeated(operands)
        case = Case(verb, tuple(terms), output, operands, ellipsis, implicit)
        case = replace(case, **self.machine())
        case = self.with_options(case)
        return self.with_memory(case)

    def machine(self) -> dict[str, Any]:
        return {
            "kernels": self.one(self.wishes.kernels),
            "threads": self.weighted({1: 4, 2: 3, 3: 1, 4: 2}),
            "checked": self.chance(50),
            "at_end": self.chance(65),
            "calls": 2 if self.chance(30) else 1,
        }

    # --- expressions ------------------------------------------------------------------------

    def expression(self, verb: Verb) -> tuple[list[str], str, str, bool]:
        """Terms, output, the labels of the ellipsis, and whether the output is implied."""
        match verb:
            case Verb.REDUCE | Verb.REDUCE_PLAN:
                return (*self.reduction(), "", False)
            case Verb.PERMUTE | Verb.BINARY | Verb.TRINARY | Verb.ELEMENTWISE_PLAN:
                return (*self.combination(verb), "", False)
        counts = {2: 60, 3: 40} if verb is Verb.PLAN else {1: 12, 2: 48, 3: 20, 4: 12, 5: 8}
        count = self.weighted(counts)
        terms, output = self.network(count)
        if verb is Verb.CONTRACT and output and self.chance(4):
            output += self.one(output)
            return terms, output, "", False
        if verb is not Verb.PLAN and self.chance(12):
            return (*self.with_ellipsis(terms, output), False)
        if verb is not Verb.PLAN and self.chance(8):
            labels = "".join(terms)
            return terms, "".join(sorted(x for x in labels if labels.count(x) == 1)), "", True
        return terms, output, "", False

    def network(self, count: int) -> tuple[list[str], str]:
        """Labels in one operand, in two, or in more; free or summed."""
        terms: list[list[str]] = [[] for _ in range(count)]
        output = []
        for label in "abcdefgh"[: self.number(0 if self.chance(5) else 1, 3 + min(count, 4))]:
            width = min(count, self.weighted({1: 5, 2: 9, 3: 2, 4: 1}))
            for at in self.shuffled(range(count))[:width]:
                terms[at].append(label)
            if self.chance(55 if width == 1 else 35):
                output.append(label)
        for term in terms:
            if term and self.chance(6):
                term.append(self.one(term))
        return ["".join(self.shuffled(term)) for term in terms], "".join(self.shuffled(output))

    def with_ellipsis(self, terms: list[str], output: str) -> tuple[list[str], str, str]:
        """Each operand has an end of the ellipsis' labels, somewhere; the output has them all."""
        ellipsis = "XYZ"[-self.number(1, 2) :]
        whole = self.number(0, len(terms) - 1)
        found = []
        for at, term in enumerate(terms):
            end = ellipsis if at == whole else ellipsis[self.number(0, len(ellipsis)) :]
            cut = self.number(0, len(term))
            found.append(term[:cut] + end + term[cut:])
        cut = self.number(0, len(output))
        return found, output[:cut] + ellipsis + output[cut:], ellipsis

    def reduction(self) -> tuple[list[str], str]:
        labels = "abcdef"[: self.number(0 if self.chance(10) else 1, 5)]
        term = list(labels)
        if term and self.chance(10):
            term.append(self.one(term))
        output = [label for label in labels if self.chance(45)]
        return ["".join(self.shuffled(term))], "".join(self.shuffled(output))

    def combination(self, verb: Verb) -> tuple[list[str], str]:
        counts = {Verb.PERMUTE: 1, Verb.BINARY: 2, Verb.TRINARY: 3}
        labels = "abcde"[: self.number(0 if self.chance(10) else 1, 5)]
        terms = []
        for _ in range(counts.get(verb) or self.number(1, 3)):
            term = self.shuffled(labels)
            if term and self.chance(35):
                term = term[: self.number(0, len(term))]
            if term and self.chance(6):
                term.append(self.one(term))
            terms.append("".join(term))
        present = [label for label in labels if label in "".join(terms)]
        return terms, "".join(self.shuffled(present))

    # --- extents ----------------------------------------------------------------------------

    def shapes(self, terms: list[str], output: str) -> list[tuple[int, ...]]:
        labels = list(dict.fromkeys("".join(terms)))
        extents = {label: self.one(EXTENTS) for label in labels}
        if self.chance(15):  # so that one array fits several terms
            extents = dict.fromkeys(labels, self.number(2, 9))
        most = self.weighted(LARGER_VOLUMES if self.wishes.limits else VOLUMES)
        while prod(extents.values()) * prod(extents[x] for x in output[len(set(output)) :]) > most:
            longest = self.one([label for label in labels if extents[label] > 1])
            extents[longest] = max(1, extents[longest] * 2 // 3)
        if labels and self.chance(4):
            extents[self.one(labels)] = 0
        return [self.shape(term, extents) for term in terms]

    def shape(self, term: str, extents: dict[str, int]) -> tuple[int, ...]:
        """Some extents are 1 and broadcast, not on a diagonal."""
        return tuple(1 if term.count(x) == 1 and self.chance(4) else extents[x] for x in term)

    # --- operands ---------------------------------------------------------------------------

    def operands(self, verb: Verb, shapes: list[tuple[int, ...]]) -> tuple[Tensor, ...]:
        kinds = self.kinds(verb, len(shapes))
        exact = result_type(map(np.dtype, kinds)).kind in "biu"
        values = "normal" if exact else "small"
        return tuple(
            self.tensor(shape, kind, values if np.dtype(kind).kind in "iu" else "normal", verb)
            for shape, kind in zip(shapes, kinds, strict=True)
        )

    def repeated(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One array in the place of others of its shape and type."""
        found = list(operands)
        for at, tensor in enumerate(found):
            like = [x for x in found[:at] if (x.shape, x.dtype) == (tensor.shape, tensor.dtype)]
            found[at] = self.one([*like, tensor]) if like else tensor
        return tuple(found)

    def kinds(self, verb: Verb, count: int) -> list[str]:
        if verb in PLANS:
            if verb is Verb.PLAN and count == 2 and self.chance(8):
                return list(self.one((("float64", "complex128"), ("complex64", "float32"))))
            weights = dict.fromkeys(PLAIN, 5) | dict.fromkeys((*INTEGERS, "bool"), 1)
            return [self.weighted(weights)] * count
        match self.weighted({"one": 62, "integers": 10, "mixed": 20, "odd": 3, "objects": 1}):
            case "one":
                return [self.weighted(dict(zip(PLAIN, (8, 5, 3, 2, 2, 2), strict=True)))] * count
            case "integers":
                return [self.one((*INTEGERS, "bool"))] * count
            case "odd" if verb is not Verb.EXPRESSION:  # no descriptor has the foreign byte order
                return [self.one(("float128", "complex256", ">f8", ">c8", ">i4", ">f2"))] * count
            case "objects":
                return ["object"] * count
        return self.mixed(count)

    def mixed(self, count: int) -> list[str]:
        """Types that have a common one."""
        while True:
            kinds = [self.one((*PLAIN, *PLAIN, *INTEGERS, "bool")) for _ in range(count)]
            try:
                result_type(map(np.dtype, kinds))
            except TypeError:
                continue
            return kinds

    def tensor(self, shape: tuple[int, ...], dtype: str, values: str, verb: Verb) -> Tensor:
        kind = Tensor((), (), dtype).kind
        name, size = ">" * (dtype[0] == ">") + kind.name, kind.itemsize
        strides = self.strides(shape, size, verb in PLANS)
        seed = self.number(0, 2**31)
        slack = 0
        if verb not in PLANS and size > 1 and self.chance(6):
            slack = self.number(1, size - 1)
        return Tensor(shape, strides, name, values, seed, slack)

    def strides(self, shape: tuple[int, ...], size: int, whole: bool) -> tuple[int, ...]:
        """Any strides an operand may have; ``whole``: multiples of the item size."""
        match self.weighted({"C": 25, "F": 25, "spaced": 35, "window": 8, "odd": 3}):
            case "C":
                return self.spaced(shape, size, range(len(shape))[::-1], 0)
            case "F":
                return self.spaced(shape, size, range(len(shape)), 0)
            case "window":
                return tuple(size * self.number(-2, 3) for _ in shape)
            case "odd" if not whole:
                return self.spaced(shape, size + self.number(1, 3), self.order(shape), 20)
        found = self.spaced(shape, size, self.order(shape), 25)
        return tuple(0 if self.chance(12) else self.one((1, 1, 1, 1, -1)) * x for x in found)

    def order(self, shape: tuple[int, ...]) -> list[int]:
        return self.shuffled(range(len(shape)))

    def spaced(
        self, shape: tuple[int, ...], size: int, order: Sequence[int], gaps: float
    ) -> tuple[int, ...]:
        """Strides that do not overlap, fastest first as in ``order``, with gaps now and then."""
        found, step = [0] * len(shape), size
        for at in order:
            if self.chance(gaps):
                step *= self.number(2, 3)
            found[at] = step
            step *= max(shape[at], 1)
            if self.chance(gaps / 2):
                step += size * self.number(1, 3)
        return tuple(found)

    # --- options ----------------------------------------------------------------------------

    def with_options(self, case: Case) -> Case:
        verb = case.verb
        case = self.with_form(case)
        if case.common.hasobject:
            return self.finished(replace(case, order=self.order_of_result()))
        if self.chance(25) and "mul" not in case.binary:
            case = self.with_operators(case)
        if verb in SCALED and (verb in PLANS or self.chance(35)):
            case = self.with_addend(case)
        case = self.with_scalars(case)
        case = self.with_output(case)
        case = replace(case, order=self.order_of_result())
        return self.finished(case)

    def order_of_result(self) -> str:
        return self.weighted({"F": 45, "C": 15, "K": 30, "A": 10})

    def finished(self, case: Case) -> Case:
        """How it is planned, and how it is written."""
        if case.verb in NETWORKS:
            case = replace(case, preference=self.preference(case), optimize=self.optimize(case))
            if ("autotune", "INCREMENTAL") in case.preference:
                case = replace(case, calls=5)
        if case.verb is Verb.EXPRESSION:
            constants = [at for at in range(len(case.operands)) if self.chance(15)]
            case = replace(case, constants=tuple(constants))
        if case.verb in (Verb.CONTRACT, Verb.EXPRESSION) and self.chance(8):
            case = replace(case, compute_type=self.compute_type(case.common))
        if not case.ellipsis and case.verb not in PLANS and case.verb is not Verb.EINSUM:
            case = replace(case, interleaved=not case.implicit and self.chance(6))
        return case

    def compute_type(self, common: np.dtype[Any]) -> str | None:
        """What the type may compute in; real times complex has the default alone."""
        names = {
            "float16": ("32F", "16F"),
            "bfloat16": ("32F", "16BF"),
            "float32": ("32F", "TF32", "3XTF32", "16BF", "16F", "9X16BF", "4X16F"),
            "float64": ("64F", "32F", "8XINT8"),
        }
        legal = names.get(name_of(common))
        return None if legal is None else self.one(legal)

    def with_operators(self, case: Case) -> Case:
        """Operators that the types have, on numbers where these are well conditioned."""
        if case.verb is Verb.EINSUM:
            return case
        operands, names = [], []
        for tensor in case.operands:
            name = self.operator(tensor, case.common)
            names.append(name)
            operands.append(replace(tensor, values=_domain(name, tensor)))
        return replace(case, operands=tuple(operands), operators=tuple(names))

    def operator(self, tensor: Tensor, common: np.dtype[Any]) -> str | None:
        if self.chance(40):
            return None
        if tensor.kind.kind == "c":
            return "conj"
        if tensor.kind.kind in "iu":
            return self.one((None, "relu"))
        if tensor.kind.kind == "b" or tensor.kind.itemsize > 8:
            return None
        return self.one(UNARY)

    def with_form(self, case: Case) -> Case:
        """The operators between operands, padding and the type of the result."""
        if case.verb in (Verb.REDUCE, Verb.REDUCE_PLAN):
            return self.with_reduction(case)
        if case.verb in CONVERTING and self.chance(25) and not case.common.hasobject:
            case = replace(case, dtype=self.converted(case))
        if case.verb in (Verb.BINARY, Verb.TRINARY, Verb.ELEMENTWISE_PLAN):
            names = _binary_operators(case.result)
            case = replace(case, binary=tuple(self.one(names) for _ in case.operands[1:]))
        if case.verb is Verb.PERMUTE and self.chance(20):
            pairs = tuple((self.number(0, 3), self.number(0, 3)) for _ in case.output)
            case = replace(case, padding=pairs, padding_value=self.one((0, 1, 0)))
        return case

    def with_reduction(self, case: Case) -> Case:
        kind = case.common.kind
        name = self.one(_binary_operators(case.common))
        reduced = [n for x, n in case.extents.items() if x not in case.output]
        if name in ("max", "min") and 0 in reduced:
            name = "add"
        if name == "mul" and kind in "fcV":
            operands = tuple(replace(x, values="near one") for x in case.operands)
            case = replace(case, operands=operands)
        return replace(case, binary=(name,))

    def converted(self, case: Case) -> str:
        """A type that the result may be stored in."""
        legal = [name for name in (*PLAIN, *INTEGERS) if _may_become(case, np.dtype(name))]
        return self.one(legal) if legal else name_of(case.common)

    def with_addend(self, case: Case) -> Case:
        if case.verb is Verb.EINSUM:
            return case
        name = name_of(case.common)
        if case.verb not in PLANS and self.chance(12) and case.common.kind in "fV":
            kinds = ("float64", "float32", "float16")
            name = self.one([x for x in kinds if _may_store(np.dtype(x), case.common)])
        c = self.tensor(case.shape, name, "normal", case.verb)
        if self.chance(20):
            c = replace(c, strides=tuple(0 if self.chance(40) else x for x in c.strides))
        operators = case.operators
        if case.verb is Verb.EXPRESSION:  # it is planned without C
            operators = None
        if operators is not None and name == name_of(case.common) and self.chance(60):
            operator = self.operator(c, case.common)
            operators = (*operators, operator)
            c = replace(c, values=_domain(operator, c))
        return replace(case, c=c, operators=operators or case.operators)

    # --- scalars ----------------------------------------------------------------------------

    def with_scalars(self, case: Case) -> Case:
        if case.verb is Verb.EINSUM:
            return case
        alpha, gamma = self.scalar(case, 1), 1
        if case.verb in (Verb.BINARY, Verb.TRINARY, Verb.ELEMENTWISE_PLAN):
            gamma = self.scalar(case, 1)
        beta: complex | None = None
        if case.c is not None:
            beta = self.scalar(case, None)
            if case.verb in PLANS and beta is None:
                beta = 1
        elif case.verb is Verb.TRINARY or len(case.operands) == 3:
            beta = self.scalar(case, None) if case.verb not in NETWORKS else None
        case = replace(case, scalars=(alpha, beta, gamma))
        return self.with_unread(case)

    def scalar(self, case: Case, default: Any) -> Any:
        if self.chance(60):
            return default
        kind = case.common
        if case.dtype is not None and kind.kind not in "iu":
            kind = result_type((kind, np.dtype(case.dtype)))
        match kind.kind:
            case "b":
                return self.one((0, 1))
            case "u":
                return self.one((0, 1, 2, 3))
            case "i":
                return self.one((0, 1, 2, -1, -3))
            case "c":
                return self.one((0, 0.0, 1, 2, -0.5, 1j, 0.5 - 2j))
        return self.one((0, 0.0, 1, 2, -0.5, 1.5, -1))

    def with_unread(self, case: Case) -> Case:
        """NaN where a zero scalar says that nothing is read."""
        alpha, beta, gamma = case.scalars
        operands, c = list(case.operands), case.c
        if case.verb in NETWORKS or case.verb in (Verb.REDUCE, Verb.REDUCE_PLAN):
            unread = range(len(operands)) if alpha == 0 else ()
            if c is not None and beta == 0 and self.chance(70):
                c = replace(c, values="nan")
        else:
            scalars = {1: (alpha,), 2: (alpha, gamma), 3: (alpha, beta, gamma)}[len(operands)]
            unread = [at for at, x in enumerate(scalars) if x is not None and x == 0]
        for at in unread:
            if operands[at].kind.kind in "fcV" and self.chance(70):
                operands[at] = replace(operands[at], values="nan")
        return replace(case, operands=tuple(operands), c=c)

    # --- the output -------------------------------------------------------------------------

    def with_output(self, case: Case) -> Case:
        if case.verb in PLANS:
            return replace(case, out=self.target(case, name_of(case.common)))
        if not self.chance(30):
            return case
        if case.c is not None and self.chance(40) and _may_be_written(case.c):
            if case.c.kind == case.common:
                return replace(case, out="c")
        shape, result = case.shape, case.result
        if self.chance(25):
            for at, tensor in enumerate(case.operands):
                if tensor.shape == shape and tensor.kind == result and _may_be_written(tensor):
                    return replace(case, out=at, calls=1)
        name = name_of(result)
        if self.chance(20) and case.dtype is None and case.verb is not Verb.EINSUM:
            name = self.converted(case)
        return replace(case, out=self.target(case, name))

    def target(self, case: Case, name: str) -> Tensor:
        size = np.dtype(name).itemsize
        free = case.verb not in PLANS
        odd = free and self.chance(4)
        strides = self.spaced(case.shape, size + odd, self.order(case.shape), self.one((0, 25)))
        strides = tuple(self.one((1, 1, 1, -1)) * x for x in strides)
        slack = self.number(1, size - 1) if free and size > 1 and self.chance(6) else 0
        return Tensor(case.shape, strides, name, "fresh", 0, slack)

    # --- planning and limits ----------------------------------------------------------------

    def preference(self, case: Case) -> tuple[tuple[str, Any], ...]:
        if case.verb is Verb.EINSUM:
            return ()
        found: dict[str, Any] = {}
        if self.chance(12):
            found["algo"] = self.one(ALGORITHMS)
        elif self.chance(2.5):
            found["algo"] = "DEFAULT_PATIENT"
        if self.chance(10) and found.get("algo") != "DEFAULT_PATIENT":
            found["kernel_rank"] = self.weighted({1: 4, 2: 2, 3: 1, 5: 1})
        if self.chance(5):
            found["autotune"] = "INCREMENTAL"
        if self.chance(4):
            found["cache_mode"] = "NONE"
        return tuple(found.items())

    def optimize(self, case: Case) -> Any:
        if len(case.operands) < 3 or case.verb is Verb.PLAN or self.chance(60):
            return "auto"
        return self.one(("greedy", "dp", "optimal", False, True))

    def with_memory(self, case: Case) -> Case:
        given = case.verb in (Verb.PLAN, Verb.REDUCE_PLAN) and self.chance(60)
        if not self.wishes.limits or case.verb is Verb.EINSUM or self.chance(8):
            return replace(case, memory=Memory(given=given))
        limit, workspace = None, None
        item = case.result.itemsize
        least = 0 if case.out is not None or self.chance(10) else 1
        within = int(max(prod(case.shape), 1) * item * self.rng.uniform(least, 4))
        if self.chance(8):
            within = self.one((0, 1, 64, 100, 1000))
        within = max(within, prod(case.extents.values()) * item // MOST_SLICES)
        if case.verb in PLANS or (case.verb in NETWORKS and self.chance(35)):
            workspace = within if self.chance(80) else 0
        else:
            limit = within + (self.number(0, 4096) if self.chance(75) else 0)
        case = replace(case, memory=Memory(limit, workspace, given))
        if case.verb in (Verb.CONTRACT, Verb.EXPRESSION) and self.chance(8):
            case = replace(case, slices=self.slices(case))
        return case

    def slices(self, case: Case) -> tuple[tuple[str, int], ...] | None:
        labels = [x for x, n in case.extents.items() if n > 1 and x.islower()]
        labels = [x for x in labels if case.output.count(x) < 2]
        chosen = self.shuffled(labels)[: self.number(1, 2)]
        pairs = tuple((x, self.number(1, min(case.extents[x], 5))) for x in chosen)
        return pairs or None


def _domain(name: str | None, tensor: Tensor) -> str:
    """Numbers where the operator is no worse conditioned than some units."""
    if tensor.kind.kind not in "fV" or name in (None, "conj"):
        return tensor.values
    return "above" if name == "acosh" else "inside"


def _may_store(common: np.dtype[Any], into: np.dtype[Any]) -> bool:
    """Whether "same_kind" allows it; bfloat16 is cast as float16 is."""
    half = np.dtype("float16")
    one, other = (half if x.name == "bfloat16" else x for x in (common, into))
    return bool(np.can_cast(one, other, "same_kind"))


def _may_become(case: Case, into: np.dtype[Any]) -> bool:
    """Whether a result may have the type, and there is one to combine elements in."""
    if case.verb in CONVERTING:
        if into.kind == "c" and case.common.kind != "c" and {"max", "min"} & set(case.binary):
            return False
        try:
            result_type((*(x.kind for x in case.operands), into))
        except TypeError:
            return False
    return _may_store(case.common, into)


def _binary_operators(dtype: np.dtype[Any]) -> tuple[str, ...]:
    return ("add", "mul") if dtype.kind == "c" else ("add", "mul", "max", "min")


def _may_be_written(tensor: Tensor) -> bool:
    """Whether no two elements share memory: strides nested in some order."""
    pairs = sorted((abs(s), n) for s, n in zip(tensor.strides, tensor.shape, strict=True) if n > 1)
    reach = tensor.kind.itemsize
    for stride, extent in pairs:
        if stride < reach:
            return False
        reach = stride * (extent - 1) + reach
    return tensor.dtype[0] != ">"
