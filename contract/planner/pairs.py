"""The pairs of a network: which comes first, which repeat an earlier one, which are not formed.

Everything here is arithmetic on modes.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from contract.planner.paths import Pair

__all__ = ["Twin", "scheduled", "twins", "unformed"]

Order = tuple[int, ...]  # modes, the fastest first
Modes = frozenset[int]


# --- the order of products --------------------------------------------------------------------


def scheduled(pairs: Sequence[Pair], count: int, size: Callable[[Modes], int]) -> tuple[Pair, ...]:
    """The same pairs of ``count`` operands such that little memory is alive at once.

    Of two factors the one comes first that needs more memory beyond its result than the other.
    """
    if len(pairs) < 3:
        return tuple(pairs)  # the second needs the first
    sizes = [0] * count + [size(pair.modes) for pair in pairs]
    peaks = [0] * count
    for at, pair in enumerate(pairs):
        first, second = _frugal(pair, sizes, peaks)
        whole = sizes[first] + sizes[second] + sizes[count + at]
        peaks.append(max(peaks[first], sizes[first] + peaks[second], whole))
    number = {leaf: leaf for leaf in range(count)}
    found: list[Pair] = []
    for node in _factors_first(pairs, count, lambda pair: _frugal(pair, sizes, peaks)):
        pair = pairs[node - count]
        number[node] = count + len(found)
        found.append(Pair(number[pair.left], number[pair.right], pair.modes))
    return tuple(found)


def _frugal(pair: Pair, sizes: Sequence[int], peaks: Sequence[int]) -> tuple[int, int]:
    left, right = pair.left, pair.right
    if peaks[left] - sizes[left] >= peaks[right] - sizes[right]:
        return left, right
    return right, left


def _factors_first(
    pairs: Sequence[Pair], count: int, factors: Callable[[Pair], tuple[int, int]]
) -> Iterator[int]:
    """The results of all pairs, each after its factors, in their order."""
    waiting = [(count + len(pairs) - 1, False)]
    while waiting:
        node, ready = waiting.pop()
        if node < count:
            continue
        if ready:
            yield node
            continue
        first, second = factors(pairs[node - count])
        waiting += [(node, True), (second, False), (first, False)]


# --- what is computed once --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Twin:
    """A result that equals result ``source``; ``modes`` maps the modes there to those here."""

    source: int
    modes: Mapping[int, int]


def twins(
    pairs: Sequence[Pair], leaves: Sequence[tuple[Hashable, Sequence[int]]]
) -> dict[int, Twin]:
    """The results that repeat an earlier one under other names of modes.

    A leaf is what it is (leaves that are equal hold the same elements) and its modes, one for
    each dimension. Two results are the same if they have the same factors, wired alike.
    """
    numbers: dict[Hashable, int] = {}
    identities = [(numbers.setdefault(what, len(numbers)), tuple(modes)) for what, modes in leaves]
    known: dict[int, int] = {}
    found: dict[int, Twin] = {}
    for node, pair in enumerate(pairs, len(leaves)):
        key, modes = _wiring(pair, *sorted((identities[pair.left], identities[pair.right])))
        identity = numbers.setdefault(key, len(numbers))
        identities.append((identity, modes))
        source = known.setdefault(identity, node)
        if source != node:
            found[node] = Twin(source, dict(zip(identities[source][1], modes, strict=True)))
    return found


def _wiring(pair: Pair, one: tuple[int, Order], other: tuple[int, Order]) -> tuple[Hashable, Order]:
    """What a product is, whatever its modes are called; and its modes in an order of their own."""
    numbers: dict[int, int] = {}
    wires = tuple(numbers.setdefault(mode, len(numbers)) for mode in (*one[1], *other[1]))
    kept = tuple(mode for mode in numbers if mode in pair.modes)
    return (one[0], other[0], wires, tuple(numbers[mode] for mode in kept)), kept


# --- what is not formed -----------------------------------------------------------------------

LARGE = 4  # a result of that part of its reader's is worth a pass over memory


def unformed(
    pairs: Sequence[Pair], leaves: Sequence[Modes], size: Callable[[Modes], int]
) -> frozenset[int]:
    """Results without sums that are read by a product without sums, which then has three factors.

    One that is much smaller than what is made of it is formed all the same: it saves work.
    """
    modes = [*leaves, *(pair.modes for pair in pairs)]
    count = len(leaves)
    plain = {
        node
        for node, pair in enumerate(pairs, count)
        if modes[pair.left] | modes[pair.right] == pair.modes
    }
    found: set[int] = set()
    for node in sorted(plain, reverse=True):
        pair = pairs[node - count]
        factors = [each for each in (pair.left, pair.right) if each in plain]
        if node not in found and factors:
            largest = max(factors, key=lambda each: size(modes[each]))
            if LARGE * size(modes[largest]) >= size(pair.modes):
                found.add(largest)
    return frozenset(found)
