"""python -m bench planning: what a call takes that has to be planned, beyond a later one.

Small random expressions, each of other extents than any before; compiled kernels are ready.
"""

import argparse
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import numpy as np
from opt_einsum import get_symbol

import contract
from bench.selection import names_in, selected
from contract.support.text import aligned, seconds

__all__ = ["GROUPS", "Group", "main"]

Operands = list[np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Asked:
    """An expression and arrays for it."""

    text: str
    operands: Operands


@dataclass(frozen=True, slots=True)
class Group:
    """Expressions of one kind; ``goal`` are the seconds that one may take to plan."""

    name: str
    goal: float
    make: Callable[[random.Random], list[Asked]]


def main(argv: Sequence[str]) -> int:
    """Print a line for each group of expressions and family of kernels."""
    asked = _parser().parse_args(argv)
    head = ("expressions", "kernels", "median", "10%", "90%", "goal")
    rows = [head]
    for group in selected(GROUPS, _name, names_in(asked.cases)):
        for kernels in ("numpy", "auto"):
            times = planning_times(group.make(random.Random(asked.seed)), kernels, asked.repeat)
            low, *_, high = quantiles(times, n=10) if len(times) > 1 else times * 2
            found = map(seconds, (median(times), low, high, group.goal))
            rows.append((group.name, kernels, *found))
    print("\n".join(aligned(rows)))
    return 0


def _name(group: Group) -> str:
    return group.name


def planning_times(cases: Sequence[Asked], kernels: str, repeat: int) -> list[float]:
    """The seconds of each case's first call beyond a later one, the shortest of several."""
    with contract.Handle(kernels=kernels) as handle:
        calls = [partial(contract.contract, x.text, *x.operands, handle=handle) for x in cases]
        for call in calls:
            call()  # kernels are compiled here
        return [min(_planning(call, handle) for _ in range(repeat)) for call in calls]


def _planning(call: Callable[[], Any], handle: contract.Handle) -> float:
    handle.plans.clear()
    first = _timed(call)
    return first - min(_timed(call) for _ in range(3))


def _timed(call: Callable[[], Any]) -> float:
    begin = perf_counter()
    call()
    return perf_counter() - begin


# --- expressions ----------------------------------------------------------------------------------


def tree(count: int, most: int, rank: int, cases: int, chosen: random.Random) -> list[Asked]:
    """Random trees of tensors, some with a loop, of up to ``rank`` modes of 2 to ``most``."""
    return [_tree(count, most, rank, chosen) for _ in range(cases)]


def _tree(count: int, most: int, rank: int, chosen: random.Random) -> Asked:
    labels = map(get_symbol, range(1000))
    terms: list[list[str]] = [[] for _ in range(count)]
    edges = [(at, chosen.randrange(at)) for at in range(1, count)]
    if chosen.random() < 0.6:
        edges.append((chosen.randrange(count - 1), count - 1))
    for edge in edges:
        label = next(labels)
        for at in edge:
            terms[at].append(label)
    output: list[str] = []
    for term in terms:
        while len(term) < rank and chosen.random() < 0.6:
            output.append(next(labels))
            term.append(output[-1])
        chosen.shuffle(term)
    chosen.shuffle(output)
    return _asked(terms, output, lambda label: chosen.randint(2, most))


def states(sites: int, bond: int, chosen: random.Random) -> list[Asked]:
    """The overlap of two states of matrix products."""
    terms = [
        [f"s{site}", *_bonds(f"{state}", site, sites)] for site in range(sites) for state in "ab"
    ]
    return [_asked(terms, [], lambda label: 2 if label[0] == "s" else bond)]


def _bonds(state: str, site: int, sites: int) -> Iterator[str]:
    if site > 0:
        yield f"{state}{site}"
    if site < sites - 1:
        yield f"{state}{site + 1}"


def ladder(nodes: int, chosen: random.Random) -> list[Asked]:
    """A chain with a bond across every few nodes."""
    edges = [(at, at + 1) for at in range(nodes - 1)]
    edges += [(at, at + chosen.randint(2, 5)) for at in range(0, nodes - 6, 3)]
    terms: list[list[str]] = [[] for _ in range(nodes)]
    for number, edge in enumerate(edges):
        for at in edge:
            terms[at].append(f"e{number}")
    return [_asked(terms, [], lambda label: 2)]


def _asked(
    terms: Sequence[Sequence[str]], output: Sequence[str], extent: Callable[[str], int]
) -> Asked:
    """The expression of labels of any length, and row-major arrays of ones."""
    names = dict.fromkeys(label for term in terms for label in term)
    symbols: Mapping[str, str] = {label: get_symbol(at) for at, label in enumerate(names)}
    extents = {label: extent(label) for label in names}
    left = ",".join("".join(map(symbols.__getitem__, term)) for term in terms)
    text = f"{left}->{''.join(map(symbols.__getitem__, output))}"
    return Asked(text, [np.ones([extents[label] for label in term]) for term in terms])


GROUPS = (
    Group("pairs", 0.15e-3, partial(tree, 2, 6, 4, 100)),
    Group("pairs-to-20", 1e-3, partial(tree, 2, 20, 4, 100)),
    Group("triples", 0.5e-3, partial(tree, 3, 6, 3, 60)),
    Group("fours", 1e-3, partial(tree, 4, 6, 3, 40)),
    Group("sixes", 2e-3, partial(tree, 6, 5, 3, 20)),
    Group("states-200", 0.2, partial(states, 100, 3)),
    Group("ladder-200", 0.2, partial(ladder, 200)),
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench planning", description=__doc__)
    parser.add_argument("--cases", default="", help=", ".join(map(_name, GROUPS)))
    parser.add_argument("--repeat", type=int, default=5, help="first calls of each expression")
    parser.add_argument("--seed", type=int, default=1)
    return parser
