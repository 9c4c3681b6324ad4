"""The memory orders of intermediates.

They are free, and the order that is cheapest to write may be the wrong one to read:
``mode_orders`` weighs both over the whole tree of pairs.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, product
from math import inf, prod
from operator import attrgetter
from typing import NamedTuple

from contract.planner.pairs import Twin
from contract.planner.paths import Pair, is_slight

__all__ = ["MemoryOrder", "mode_orders"]

Order = tuple[int, ...]  # modes, the fastest first
Modes = frozenset[int]

# Costs are in elements that are copied once: a call takes as long as copying CALL elements, one
# more product in a batch as long as PRODUCT, and BLAS brings the matrix that all products of the
# batch share into its own order again, REPACKING elements as one.
CALL = 1000
PRODUCT = 300
REPACKING = 4
KEPT_ORDERS = 5  # of an intermediate; those that are read alike count once
KEPT_SLIGHT = 2  # in a network of which calls take more time than arithmetic


@dataclass(frozen=True, slots=True)
class MemoryOrder:
    """A tensor in memory: its modes, fastest first; after those in ``gaps`` memory is left out."""

    order: Order
    gaps: Modes = frozenset()
    after: Mapping[int, int] = field(init=False, compare=False)  # continues where a mode ends

    def __post_init__(self) -> None:
        joined = {x: y for x, y in pairwise(self.order) if x not in self.gaps}
        object.__setattr__(self, "after", joined)


class _Candidate(NamedTuple):
    """A layout of a result, what it takes to have it, and which layouts of the factors."""

    layout: MemoryOrder
    cost: float = 0.0
    a: int = 0
    b: int = 0


_COST: Callable[[_Candidate], float] = attrgetter("cost")


class _Reader(NamedTuple):
    """What the next product does with the modes of a result: kept, summed, shared by all.

    ``partner`` is the other factor's layout where that is known.
    """

    kept: Modes = frozenset()
    summed: Modes = frozenset()
    partner: MemoryOrder | None = None


def mode_orders(
    leaves: Sequence[MemoryOrder],
    pairs: Sequence[Pair],
    extents: Sequence[int],
    target: MemoryOrder | None,
    same: Mapping[int, Twin],
) -> tuple[Order, ...]:
    """A memory order for the result of each pair, fastest mode first; ``target`` is the last's.

    Found by a dynamic program over the tree: for every result a few orders, each with the least
    elements that have to be copied on the way to it. What repeats an earlier result (``same``)
    lies as that does.
    """
    count = len(leaves)
    modes = [*[frozenset(leaf.order) for leaf in leaves], *[pair.modes for pair in pairs]]
    if _are_matrices(modes, pairs):
        return _matrices(leaves, pairs, target)
    readers = _readers(leaves, pairs, modes)
    death = _deaths(pairs, count, target)
    slight = is_slight(modes[:count], pairs, extents)
    kept = KEPT_SLIGHT if slight else KEPT_ORDERS
    found = [[_Candidate(layout)] for layout in leaves]
    for node, pair in enumerate(pairs, count):
        if node in same:
            found.append([each._replace(cost=0.0) for each in _renamed(found, same[node])])
            continue
        costs = _Costs(pair, found[pair.left], found[pair.right], extents)
        if target is not None and node == count + len(pairs) - 1:
            orders = [target]
        else:
            orders = [MemoryOrder(order) for order in costs.orders(readers[node], death, slight)]
        found.append(_pruned([*map(costs.cheapest, orders)], readers[node], kept))
    return _chosen(found, pairs, count, same)


def _are_matrices(modes: Sequence[Modes], pairs: Sequence[Pair]) -> bool:
    """Whether each product is one of matrices or vectors: to BLAS all their orders are alike."""
    factors = ((modes[pair.left], modes[pair.right], pair.modes) for pair in pairs)
    return max(map(len, modes)) <= 2 and all(
        len(a & b) == 1 and a ^ b == left_over for a, b, left_over in factors
    )


def _matrices(
    leaves: Sequence[MemoryOrder], pairs: Sequence[Pair], target: MemoryOrder | None
) -> tuple[Order, ...]:
    """Each result as its left factor, with the right one's free mode where the summed one was."""
    orders = [leaf.order for leaf in leaves]
    for pair in pairs:
        free = _only(orders[pair.right], pair.modes)
        replaced = ((mode,) if mode in pair.modes else free for mode in orders[pair.left])
        orders.append(tuple(chain.from_iterable(replaced)))
    made = orders[len(leaves) :]
    return tuple(made if target is None else [*made[:-1], target.order])


def _renamed(found: Sequence[Sequence[_Candidate]], twin: Twin) -> Iterator[_Candidate]:
    for each in found[twin.source]:
        yield _Candidate(MemoryOrder(tuple(twin.modes[mode] for mode in each.layout.order)))


def _readers(
    leaves: Sequence[MemoryOrder], pairs: Sequence[Pair], modes: Sequence[Modes]
) -> dict[int, _Reader]:
    """What becomes of each result; operands lie as they lie."""
    readers = {len(modes) - 1: _Reader()}
    for pair in pairs:
        for own, other in ((pair.left, pair.right), (pair.right, pair.left)):
            if own >= len(leaves):
                readers[own] = _Reader(
                    (modes[own] & pair.modes) - modes[other],
                    modes[own] - pair.modes,
                    leaves[other] if other < len(leaves) else None,
                )
    return readers


def _deaths(pairs: Sequence[Pair], count: int, target: MemoryOrder | None) -> Mapping[int, int]:
    """A rank for each mode: those summed late have high ones, those of the result the highest."""
    modes = {node: pair.modes for node, pair in enumerate(pairs, count)}
    ranks: dict[int, int] = {}
    for at, pair in enumerate(pairs):
        before = modes.get(pair.left, frozenset()) | modes.get(pair.right, frozenset())
        ranks |= dict.fromkeys(before - pair.modes, at)
    last = target.order if target is not None else tuple(sorted(pairs[-1].modes))
    return ranks | {mode: len(pairs) + at for at, mode in enumerate(reversed(last))}


def _pruned(candidates: Sequence[_Candidate], reader: _Reader, kept: int) -> list[_Candidate]:
    """The cheapest of those that the next product reads alike, and of these ``kept``."""
    if not reader.summed:  # it reads each order in a way of its own
        return sorted(candidates, key=_COST)[:kept]
    best: dict[Hashable, _Candidate] = {}
    for each in candidates:
        order = each.layout.order
        summed = _only(order, reader.summed)
        fused = sum(each.layout.after.get(x) == y for x, y in pairwise(summed))
        first = order[:1] and order[0] in reader.kept
        look = summed, fused, first
        if look not in best or each.cost < best[look].cost:
            best[look] = each
    return sorted(best.values(), key=_COST)[:kept]


def _chosen(
    found: Sequence[Sequence[_Candidate]],
    pairs: Sequence[Pair],
    count: int,
    same: Mapping[int, Twin],
) -> tuple[Order, ...]:
    """From the last result back: the layouts that led to the cheapest."""
    wanted = {count + len(pairs) - 1: 0}
    for node in reversed(range(count, count + len(pairs))):
        if node in same:
            continue
        best = found[node][wanted.get(node, 0)]
        wanted[pairs[node - count].left], wanted[pairs[node - count].right] = best.a, best.b
    orders: dict[int, Order] = {}
    for node in range(count, count + len(pairs)):
        if node in same:
            orders[node] = tuple(same[node].modes[mode] for mode in orders[same[node].source])
        else:
            orders[node] = found[node][wanted.get(node, 0)].layout.order
    return tuple(orders.values())


class _Free(NamedTuple):
    """The modes of one factor that the result has and the other factor has not.

    Each product more, in a batch over a part of them, takes ``again``.
    """

    modes: Modes
    size: int
    again: float


class _Costs:
    """One product: the orders worth trying for its result, and what each of them takes."""

    def __init__(
        self,
        pair: Pair,
        left: Sequence[_Candidate],
        right: Sequence[_Candidate],
        extents: Sequence[int],
    ) -> None:
        self.left, self.right, self.extents = left, right, extents
        in_a, in_b = (frozenset(each[0].layout.order) for each in (left, right))
        self.m, self.n = (in_a & pair.modes) - in_b, (in_b & pair.modes) - in_a
        self.k, self.batch = (in_a & in_b) - pair.modes, in_a & in_b & pair.modes
        size_m, size_n, self.size_k = map(self._size, (self.m, self.n, self.k))
        self.free_m = _Free(self.m, size_m, PRODUCT + self.size_k * size_n / REPACKING)
        self.free_n = _Free(self.n, size_n, PRODUCT + self.size_k * size_m / REPACKING)
        self.copies = tuple(CALL + self._size(modes) for modes in (in_a, in_b, pair.modes))
        self.factors = [
            (a, b, one.cost + two.cost, *self._regardless(one.layout, two.layout))
            for (a, one), (b, two) in product(enumerate(left), enumerate(right))
        ]

    def _size(self, modes: Iterable[int]) -> int:
        return prod([self.extents[mode] for mode in modes])

    # --- what a layout takes ------------------------------------------------------------------

    def cheapest(self, d: MemoryOrder) -> _Candidate:
        """The result as ``d``, from the factors in those of their layouts that make it cheapest.

        Where layouts disagree operands are copied, or products are small; the copy of an operand
        settles what it has with both others.
        """
        copy_a, copy_b, _ = self.copies
        of_m = [self._apart(each.layout, d, self.free_m) for each in self.left]
        of_n = [self._apart(each.layout, d, self.free_n) for each in self.right]
        least, best = inf, (0, 0)
        for a, b, cost, alike, copied in self.factors:
            if cost < least:
                m, n = of_m[a], of_n[b]
                cost += min(alike + m + n, copy_a + n, copy_b + m, copied)
                if cost < least:
                    least, best = cost, (a, b)
        return _Candidate(d, least, *best)

    def _regardless(self, one: MemoryOrder, two: MemoryOrder) -> tuple[float, float]:
        """What two factors take whatever the result is like: read together, and copied with it."""
        a, b, d = self.copies
        alike = self._summed_alike(one, two)
        return alike, min(d + alike, a + b, a + d, b + d)

    def _summed_alike(self, a: MemoryOrder, b: MemoryOrder) -> float:
        """0 where the summed modes are one loop for both factors and each is a matrix."""
        if not self.k:
            return 0.0
        if a.order[0] in self.batch or b.order[0] in self.batch:
            return inf
        start = next(mode for mode in a.order if mode in self.k)
        return 0.0 if self._run(a, b, start, self.k) == self.size_k else inf

    def _apart(self, factor: MemoryOrder, d: MemoryOrder, free: _Free) -> float:
        """What it takes to step through the free modes of a factor and of the result alike.

        The modes that do not make one loop with the first are left to a batch of products.
        """
        modes = free.modes
        if not self.k:
            own, other = set(factor.order), set(d.order)
            alike = _only(factor.order, other) == _only(d.order, own)
            return 0.0 if alike else self.copies[2] / 2
        if not modes:
            return 0.0
        first, start = factor.order[0], d.order[0]
        if start in self.batch or (start in modes and first in modes and start != first):
            return inf
        if first in modes:
            start = first
        elif start not in modes:
            start = next(mode for mode in d.order if mode in modes)
        return (free.size / self._run(factor, d, start, modes) - 1) * free.again

    def _run(self, one: MemoryOrder, other: MemoryOrder, start: int, members: Modes) -> int:
        """The extent of the loop that begins at ``start`` in both layouts."""
        extents, after, as_well = self.extents, one.after, other.after
        size, at = extents[start], after.get(start)
        while at is not None and at in members and as_well.get(start) == at:
            size *= extents[at]
            start, at = at, after.get(at)
        return size

    # --- which layouts are worth trying -----------------------------------------------------------

    def orders(self, reader: _Reader, death: Mapping[int, int], few: bool) -> dict[Order, None]:
        """Orders that are cheap to write, cheap to read, or both; a ``few`` of them do as well."""
        found: dict[Order, None] = {}
        whole: dict[Order, None] = {}
        if not (self.k or reader.summed):
            whole = dict.fromkeys(self._side_by_side(death))
        for a, b in product(self.left[:2], self.right[:2]):
            self._in_place(a.layout, b.layout, found)
            if not few:
                found |= dict.fromkeys(self._arranged(a.layout.order, b.layout.order, reader))
        late = sorted((*self.m, *self.n), key=lambda mode: (-death[mode], mode))
        found |= dict.fromkeys(self._arranged(late, late, reader))
        if reader.partner is not None and not few:
            like = _only(reader.partner.order, reader.summed)
            rest = [mode for mode in late if mode not in reader.summed]
            near = (*rest, *like)
            found |= dict.fromkeys(self._arranged(near, near, reader))
        batch = tuple(sorted(self.batch, key=lambda mode: (-death[mode], mode)))
        return whole | dict.fromkeys((*order, *batch) for order in found)

    def _side_by_side(self, death: Mapping[int, int]) -> Iterator[Order]:
        """Nothing is summed here and next: as the result wants it, or as a factor has it."""
        late = sorted(self.m | self.n | self.batch, key=lambda mode: (-death[mode], mode))
        yield tuple(late)
        for each in (*self.left[:2], *self.right[:2]):
            order = _only(each.layout.order, late)  # a mode of one factor alone may be summed
            yield (*order, *(mode for mode in late if mode not in order))

    def _in_place(self, a: MemoryOrder, b: MemoryOrder, found: dict[Order, None]) -> None:
        """The free modes of a factor where the summed ones of the other are."""
        for own, other, kept, new in ((a, b, self.m, self.n), (b, a, self.n, self.m)):
            first = next((at for at, mode in enumerate(own.order) if mode in self.k), None)
            if first is not None:
                before, after = own.order[:first], own.order[first:]
                order = *_only(before, kept), *_only(other.order, new), *_only(after, kept)
                found[order] = None

    def _arranged(self, a: Iterable[int], b: Iterable[int], reader: _Reader) -> Iterator[Order]:
        """The free modes in these orders, both groups in a row; what the reader sums at an end."""
        m, n = _only(a, self.m), _only(b, self.n)
        if not self.k and m and n and self.extents[n[0]] > self.extents[m[0]]:
            m, n = n, m  # element by element, long rows are quicker
        yield (*m, *n)
        yield (*n, *m)
        m_next, m_kept = _split(m, reader.summed)
        n_next, n_kept = _split(n, reader.summed)
        if m_next or n_next:
            yield (*m_kept, *n_kept, *m_next, *n_next)
            yield (*m_next, *n_next, *m_kept, *n_kept)
            yield (*m_kept, *m_next, *n_next, *n_kept)
            yield (*n_kept, *n_next, *m_next, *m_kept)
        if m_next and n_next:
            yield (*n_next, *m_next, *n_kept, *m_kept)
            yield (*n_kept, *m_kept, *n_next, *m_next)
        elif m_next or n_next:
            yield (*n_kept, *m_kept, *m_next, *n_next)
            yield (*m_next, *n_next, *n_kept, *m_kept)


def _only(order: Iterable[int], modes: Collection[int]) -> Order:
    return tuple([mode for mode in order if mode in modes])


def _split(order: Order, chosen: Modes) -> tuple[Order, Order]:
    """The chosen modes, and the others."""
    return _only(order, chosen), tuple(mode for mode in order if mode not in chosen)
