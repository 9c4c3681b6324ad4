"""Every way to call us on small matrices as NumPy has them, beside what NumPy needs for it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

import contract
from bench.device import HOST, Array, Run
from bench.measure import Case, Facts, Row
from bench.peers import OURS
from bench.reference import Reference
from bench.report import Table, outcome_text, ratio_text, seconds_text, summary

__all__ = ["OVERHEADS", "small_calls"]

EXTENT = 4
ROUNDINGS = 64  # of the largest element
NUMPYS = ("numpy", "np.einsum", "np optimize")  # contestants of a row that are NumPy
PRODUCT, CHAIN = "ij,jk->ik", "ij,jk,kl->il"


@dataclass(frozen=True, slots=True)
class _Pair:
    """The same by us and by NumPy."""

    ours: Run
    numpy: Run


def small_calls(seed: int, dtype: str) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Ids, and the makers of the cases; operands and results of ours are NumPy's own arrays."""
    rng = np.random.default_rng(seed)
    operands = [rng.uniform(-1, 1, (EXTENT, EXTENT)).astype(dtype) for _ in range(3)]
    for name, pair in {**_contractions(*operands), **_others(*operands)}.items():
        yield name, partial(_case, name, pair, operands)


def _case(name: str, pair: _Pair, operands: Sequence[Array]) -> Case:
    runs = {OURS: pair.ours, "numpy": pair.numpy}
    return Case(Facts(name), runs, partial(_reference, pair.numpy, operands), short=True)


def _reference(run: Run, operands: Sequence[Array]) -> Reference:
    """NumPy's result, which a suite of calls does not doubt."""
    values = HOST.wide(np.array(run()))
    roundings = ROUNDINGS * float(np.finfo(operands[0].dtype).eps)
    return Reference(values, float(abs(values).max()), roundings)


def _contractions(a: Array, b: Array, c: Array) -> dict[str, _Pair]:
    """contract and expressions with their options."""
    product = contract.contract_expression(PRODUCT, a.shape, b.shape, dtype=a.dtype)
    chain = contract.contract_expression(CHAIN, a.shape, b.shape, c.shape, dtype=a.dtype)
    ours, out = partial(contract.contract, PRODUCT, a, b), np.empty_like(a)
    sign = {"operators": ("conj" if np.iscomplexobj(a) else "neg", None)}
    change = np.conjugate if np.iscomplexobj(a) else np.negative
    multiply = partial(np.einsum, PRODUCT, a, b)
    return {
        "row-major": _Pair(partial(product, a, b), multiply),
        "three": _Pair(partial(chain, a, b, c), partial(np.einsum, CHAIN, a, b, c)),
        "c": _Pair(partial(ours, c=c), lambda: a @ b + c),
        "operators": _Pair(partial(ours, **sign), lambda: change(a) @ b),
        "out": _Pair(partial(ours, out=out), lambda: np.matmul(a, b, out=out)),
    }


def _others(a: Array, b: Array, c: Array) -> dict[str, _Pair]:
    """The other verbs."""
    summed = partial(contract.elementwise_binary, "ij,ij->ij", a, b)
    return {
        "permute": _Pair(partial(contract.permute, "ij->ji", a), lambda: a.T.copy("F")),
        "reduce": _Pair(partial(contract.reduce, "ij->i", a), lambda: a.sum(1)),
        "binary": _Pair(summed, lambda: a + b),
        "tensordot": _Pair(
            partial(contract.tensordot, a, b, 1), partial(np.tensordot, a, b, axes=1)
        ),
        "view": _Pair(partial(contract.einsum, "ij->ji", a), partial(np.einsum, "ij->ji", a)),
    }


# --- the table ------------------------------------------------------------------------------------


def _header(title: str, contestants: Sequence[str]) -> str:
    return f"{title:<34}{OURS:>12}{'numpy':>12}{'beyond':>12}{'ratio':>9}  others"


def _line(row: Row) -> str:
    """Our median, NumPy's, the difference, the ratio to the best peer; the other contestants."""
    ours, numpys = row.outcomes[OURS], [row.outcomes[x] for x in NUMPYS if x in row.outcomes]
    best = min(numpys, key=lambda each: each.seconds, default=None)
    cells = [outcome_text(ours), "-" if best is None else outcome_text(best), "-"]
    if best is not None and ours.samples and best.samples:
        cells[2] = _difference(ours.seconds - best.seconds)
    rest = [name for name in row.outcomes if name != OURS and name not in NUMPYS]
    others = ", ".join(f"{name} {outcome_text(row.outcomes[name])}" for name in rest)
    text = "".join(f"{cell:>12}" for cell in cells)
    return f"{row.name[:33]:<34}{text}{ratio_text(row.ratio):>9}  {others}".rstrip()


def _difference(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{seconds_text(abs(seconds))}"


OVERHEADS = Table(_header, _line, summary)
