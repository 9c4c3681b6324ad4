"""N operands -> a sequence of pairwise operations. The only importer of opt_einsum."""

from collections.abc import Hashable, Iterable, Sequence
from functools import reduce
from itertools import chain
from math import prod
from typing import Any, NamedTuple

from contract.errors import InvalidPathError, InvalidValueError
from contract.support.text import shown

__all__ = [
    "PATH_NAMES",
    "Pair",
    "Path",
    "contraction_path",
    "counted",
    "explicit_path",
    "is_path_name",
    "is_searched",
    "is_slight",
    "pairs_along",
    "pairs_of",
]

CALL_WORK = 1 << 12  # multiply-adds that take as long as calling a step: some microseconds
TRIED_AT_ONCE = 4  # operands; "auto" tries all orders of so many in less time than greedily one
MOST_BITS = 256  # of the elements of a result: what they cost is a number that floats have
PATH_NAMES = (  # of opt_einsum's optimizers; it takes random-greedy with any number as well
    *("auto", "auto-hq", "greedy", "eager", "opportunistic", "dp", "dynamic-programming"),
    *("optimal", "branch-all", "branch-2", "branch-1", "random-greedy", "random-greedy-128"),
)
MOST_SEARCHED = 14  # operands; of more "auto" is the greedy path

Modes = frozenset[int]
Path = tuple[tuple[int, ...], ...]


class Pair(NamedTuple):
    """Operand ``left`` times operand ``right`` leaves ``modes``.

    Operands are numbered 0..N-1; the result of the i-th pair is operand N+i.
    """

    left: int
    right: int
    modes: Modes


def pairs_of(
    inputs: Sequence[Modes], output: Modes, extents: Sequence[int], path: Hashable | Any
) -> tuple[Pair, ...]:
    """N-1 pairs that contract ``inputs`` to ``output``; ``path`` as opt_einsum's ``optimize``."""
    return pairs_along(inputs, output, extents, contraction_path(inputs, output, extents, path))


def pairs_along(
    inputs: Sequence[Modes], output: Modes, extents: Sequence[int], path: Path
) -> tuple[Pair, ...]:
    """The pairs of a path that ``contraction_path`` found.

    InvalidValueError for a result that no slices make small enough.
    """
    pairs = _pairs(inputs, output, path)
    sizes = [prod([extents[mode] for mode in pair.modes]) for pair in pairs]
    bits = max(sizes, default=0).bit_length()
    if bits > MOST_BITS:
        raise InvalidValueError(
            f"A result on the path has fewer than 2^{MOST_BITS} elements: one has 2^{bits - 1} "
            "or more."
        )
    return pairs


def _pairs(inputs: Sequence[Modes], output: Modes, path: Path) -> tuple[Pair, ...]:
    if len(inputs) == 2 and len(path) == 1:
        left, right = path[0]
        return (Pair(left, right, output & (inputs[left] | inputs[right])),)
    alive = list(range(len(inputs)))
    modes = list(inputs)
    holders = counted(chain(output, *inputs))  # of each mode, the output included
    pairs: list[Pair] = []
    for group in path:
        taken = [alive[position] for position in group]
        alive = [each for position, each in enumerate(alive) if position not in group]
        result = taken[0]
        for right in taken[1:]:
            pair = Pair(result, right, _left_over(modes[result], modes[right], holders))
            pairs.append(pair)
            modes.append(pair.modes)
            result = len(modes) - 1
        alive.append(result)
    return tuple(pairs)


def counted(modes: Iterable[int]) -> dict[int, int]:
    """How often there is each mode; for a few of them quicker than a Counter."""
    found: dict[int, int] = {}
    for mode in modes:
        found[mode] = found.get(mode, 0) + 1
    return found


def _left_over(one: Modes, other: Modes, holders: dict[int, int]) -> Modes:
    """The modes of a product that are needed still; it takes its factors' place as a holder."""
    for mode in one & other:
        holders[mode] -= 1
    return frozenset([mode for mode in one | other if holders[mode] > 1])


# --- what looking for a better plan is worth ------------------------------------------------------


def is_slight(inputs: Sequence[Modes], pairs: Sequence[Pair], extents: Sequence[int]) -> bool:
    """Whether all products of a network take less time than calling them.

    Every plan has as many products: what a better one saves is arithmetic and copies. Here that
    is next to nothing, while to look for it takes milliseconds, once for every shape.
    """
    modes = [*inputs, *(pair.modes for pair in pairs)]
    products = (modes[pair.left] | modes[pair.right] for pair in pairs)
    work = sum(prod([extents[mode] for mode in each]) for each in products)
    return work <= len(pairs) * CALL_WORK


# --- paths ----------------------------------------------------------------------------------------


def contraction_path(
    inputs: Sequence[Modes], output: Modes, extents: Sequence[int], path: Hashable | Any
) -> Path:
    """Positions contracted at each stage, as in numpy.einsum_path and opt_einsum."""
    if not isinstance(path, (str, bool)) and isinstance(path, Sequence):
        groups, left = explicit_path(path, len(inputs))
        return groups if left == 1 else (*groups, tuple(range(left)))
    _require_path(path)
    if len(inputs) <= 2 or path is False:
        return (tuple(range(len(inputs))),)
    if path is True or path == "auto":
        return _searched(inputs, output, extents)
    if isinstance(path, str):
        return _named(path, inputs, output, extents)
    return _by_function(path, inputs, output, extents)


def is_searched(count: int, path: Hashable | Any) -> bool:
    """Whether to look for a path of ``count`` operands takes longer than a plan by a given one."""
    return count > TRIED_AT_ONCE and (path is True or isinstance(path, str))


def is_path_name(name: str) -> bool:
    """Whether opt_einsum has an optimizer of this name."""
    import opt_einsum

    try:
        opt_einsum.paths.get_path_fn(name)
    except KeyError:
        return False
    return True


def _searched(inputs: Sequence[Modes], output: Modes, extents: Sequence[int]) -> Path:
    """The path of "auto"; the greedy one where the search costs more than it could save."""
    if len(inputs) == 3:
        return _of_three(inputs, output, extents)
    if not TRIED_AT_ONCE < len(inputs) <= MOST_SEARCHED:
        return _named("auto", inputs, output, extents)
    greedy = _named("greedy", inputs, output, extents)
    slight = is_slight(inputs, _pairs(inputs, output, greedy), extents)
    return greedy if slight else _named("auto", inputs, output, extents)


def _of_three(inputs: Sequence[Modes], output: Modes, extents: Sequence[int]) -> Path:
    """The order of two products with the fewest operations: there are only three."""

    def operations(first: tuple[int, int]) -> int:
        a, b, c = (*(inputs[at] for at in first), inputs[3 - sum(first)])
        between = (a | b) & (c | output)
        return _operations(a, b, between, extents) + _operations(between, c, output, extents)

    return min(((0, 1), (0, 2), (1, 2)), key=operations), (0, 1)


def _operations(one: Modes, other: Modes, kept: Modes, extents: Sequence[int]) -> int:
    """Multiplications, and as many additions where modes of both are summed."""
    return prod([extents[mode] for mode in one | other]) * (1 if one & other <= kept else 2)


def _named(name: str, inputs: Sequence[Modes], output: Modes, extents: Sequence[int]) -> Path:
    """What the optimizer of this name finds; it takes numbers for modes."""
    import opt_einsum

    find = opt_einsum.paths.get_path_fn(name)
    found = find(list(inputs), output, dict(enumerate(_sizes(extents))), None)
    return tuple(tuple(group) for group in found)


def _by_function(find: Any, inputs: Sequence[Modes], output: Modes, extents: Sequence[int]) -> Path:
    """What a caller's optimizer finds; modes are characters to it."""
    import opt_einsum

    names = [opt_einsum.get_symbol(mode) for mode in range(len(extents))]
    terms = [frozenset(names[mode] for mode in modes) for modes in inputs]
    kept = frozenset(names[mode] for mode in output)
    found = find(terms, kept, dict(zip(names, _sizes(extents), strict=True)), None)
    return tuple(tuple(group) for group in found)


def _sizes(extents: Sequence[int]) -> list[int]:
    """Extents as optimizers take them: "dp" finds no order where nothing is multiplied."""
    return [max(extent, 1) for extent in extents]


def _require_path(path: Any) -> None:
    known = path == "auto" or isinstance(path, bool) or callable(path)
    if not known and not (isinstance(path, str) and is_path_name(path)):
        raise InvalidValueError(
            "optimize must be a bool, a path, an optimizer or a name, one of "
            f"{', '.join(PATH_NAMES)}: it is {shown(path)}."
        )


def explicit_path(path: Sequence[Any], count: int) -> tuple[Path, int]:
    """The path of a caller as tuples, and how many of ``count`` operands it leaves."""
    try:
        groups = tuple(tuple(int(position) for position in group) for group in path)
    except (TypeError, ValueError):
        raise InvalidValueError(
            f"A path is a sequence of groups of positions: it is {shown(path)}."
        ) from None
    return groups, reduce(_contract_group, groups, count)


def _contract_group(left: int, group: tuple[int, ...]) -> int:
    if not group or len(set(group)) != len(group) or not all(0 <= at < left for at in group):
        raise InvalidPathError(
            f"A path contracts distinct positions among the operands that are left: "
            f"{left} are left, the group is {group}."
        )
    return left - len(group) + 1
