"""Seed and number -> a case: every rule of what may be asked for, drawn at random."""

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tests.fuzz.cases import NETWORKS, PLANS, Case, Memory, Tensor, Verb, name_of, result_type
from tests.fuzz.chances import Chances
from tests.fuzz.expressions import expression, shapes
from tests.fuzz.tensors import INTEGERS, PLAIN, operands, repeated, target, tensor

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
CONVERTING = (Verb.PERMUTE, Verb.BINARY, Verb.TRINARY)
SMALLER = {30: 18, 400: 36, 4000: 32, 40_000: 11, 300_000: 2.5, 2_000_000: 0.5}
LARGEST = {40_000: 50, 300_000: 40, 2_000_000: 10}
LARGER = {30: 5, 400: 25, 4000: 50, 40_000: 17, 300_000: 2.5, 2_000_000: 0.5}
UNARY = (
    *("sqrt", "relu", "rcp", "sigmoid", "tanh", "exp", "log", "abs", "neg", "sin", "cos", "tan"),
    *("sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "ceil", "floor", "mish"),
    *("swish", "soft_plus", "soft_sign"),
)
MOST_SLICES = 2000  # about: each of them takes a while between guard pages
ALGORITHMS = ("DEFAULT", "GEMM", "GETT", "TTGT", "TGETT", "ELEMENTWISE", "ONE_PASS")


@dataclass(frozen=True)
class Wishes:
    """What to draw from: with limits or without, which kernels, and whether all is large.

    Few elements are NumPy's, whatever the kernels.
    """

    limits: bool = True
    kernels: tuple[str, ...] = ("numba", "numpy")
    large: bool = False

    @property
    def volumes(self) -> dict[int, float]:
        """How many combinations of all modes there are at most, and how often."""
        if self.large:
            return LARGEST
        return LARGER if self.limits else SMALLER


def drawn(seed: int, number: int, wishes: Wishes) -> Case:
    """The case; it depends on nothing else."""
    return _Draw(np.random.default_rng((seed, number)), wishes).case()


class _Draw(Chances):
    """The parts of a case, in the order in which they depend on each other."""

    def __init__(self, rng: np.random.Generator, wishes: Wishes) -> None:
        super().__init__(rng)
        self.wishes = wishes

    def case(self) -> Case:
        verb = self.weighted(VERBS)
        terms, output, ellipsis, implicit = expression(self, verb)
        found = shapes(self, terms, output, self.wishes.volumes)
        given = operands(self, verb, found)
        if verb in NETWORKS and self.chance(25):
            given = repeated(self, given)
        case = Case(verb, tuple(terms), output, given, ellipsis, implicit)
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
        names = tuple(self.operator(x) for x in case.operands)
        pairs = zip(names, case.operands, strict=True)
        operands = tuple(replace(x, values=_domain(name, x)) for name, x in pairs)
        return replace(case, operands=operands, operators=names)

    def operator(self, operand: Tensor) -> str | None:
        """One that the type has; most real ones on numbers of float64 at most."""
        if self.chance(40):
            return None
        if operand.kind.kind == "c":
            return "conj"
        if operand.kind.kind in "iu":
            return self.one((None, "relu"))
        if operand.kind.kind == "b" or operand.kind.itemsize > 8:
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
        c = tensor(self, case.shape, name, "normal", case.verb)
        if self.chance(20):
            c = replace(c, strides=tuple(0 if self.chance(40) else x for x in c.strides))
        operators = case.operators
        if case.verb is Verb.EXPRESSION:  # it is planned without C
            operators = None
        if operators is not None and name == name_of(case.common) and self.chance(60):
            operator = self.operator(c)
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
            return replace(case, out=target(self, case, name_of(case.common)))
        if not self.chance(30):
            return case
        if case.c is not None and self.chance(40) and _may_be_written(case.c):
            if case.c.kind == case.common:
                return replace(case, out="c")
        shape, result = case.shape, case.result
        if self.chance(25):
            for at, x in enumerate(case.operands):
                if x.shape == shape and x.kind == result and _may_be_written(x):
                    return replace(case, out=at, calls=1)
        name = name_of(result)
        if self.chance(20) and case.dtype is None and case.verb is not Verb.EINSUM:
            name = self.converted(case)
        return replace(case, out=target(self, case, name))

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
