"""Modes cut into chunks, so that a network of products fits into memory; a slice has one of each.

A slice is the same network with shorter modes. What a product costs is divided by the chunks of
the modes it has; it is repeated for those that it has not, and that is what slicing costs. The
search is arithmetic on the products' modes: it cuts, chunk by chunk, the mode that saves most
bytes where most are needed for the FLOPs it repeats, then takes back every cut it can.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from contract.descriptors.compute_types import item_size
from contract.descriptors.expression import mode_extents
from contract.descriptors.operations import Contraction, Operand, TensorDescriptor
from contract.errors import InvalidValueError
from contract.planner.pairs import scheduled
from contract.planner.paths import Pair, Path, contraction_path, pairs_along
from contract.support.text import count

__all__ = [
    "Chunked",
    "Network",
    "Region",
    "Slicing",
    "given_chunks",
    "network_of",
    "number_of",
    "of_results",
    "packed_result",
    "regions",
    "restricted",
    "slice_of",
    "sliced_within",
    "slicing_of",
]

Modes = frozenset[int]
Region = tuple[tuple[int, int, int], ...]  # (mode, first element, elements), one for each cut mode


@dataclass(frozen=True, slots=True)
class Chunked:
    """A mode of ``extent`` elements, cut into chunks of ``size``; the last may be shorter."""

    mode: int
    extent: int
    size: int

    @property
    def parts(self) -> int:
        """How many chunks there are."""
        return -(-self.extent // self.size)


@dataclass(frozen=True, slots=True)
class Slicing:
    """The modes that are cut, and what that changes.

    ``flops`` and ``bytes`` (of temporaries, at their peak) are those of all slices together and
    of one slice; ``whole_flops`` and ``whole_bytes`` those without slices.
    """

    chunks: tuple[Chunked, ...]
    flops: int
    whole_flops: int
    bytes: int
    whole_bytes: int
    labels: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of slices."""
        return number_of(self.chunks)

    @property
    def overhead(self) -> float:
        """FLOPs of all slices over those without."""
        return self.flops / max(self.whole_flops, 1)

    def __str__(self) -> str:
        cut = ", ".join(f"{self._name(each)} into {_parts(each)}" for each in self.chunks)
        return (
            f"sliced: {cut or 'nothing'}: {self.count} slices, {self.overhead:.3g}x the FLOPs, "
            f"{count(self.bytes)}B of intermediates instead of {count(self.whole_bytes)}B"
        )

    def _name(self, each: Chunked) -> str:
        return self.labels[each.mode] if self.labels else str(each.mode)


def _parts(each: Chunked) -> str:
    last = each.extent - (each.parts - 1) * each.size
    return f"{each.parts} x {each.size}" + (f" (last {last})" if last < each.size else "")


# --- the network --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Network:
    """The products of a contraction by the modes of their factors and results.

    Tensors are numbered: the factors, then the results of ``pairs``. ``live`` has, for each
    product, the temporaries in memory while it runs, ``item`` bytes an element. ``summed_apart``
    are the bytes of an element of the result where its slices cannot be added in place, else 0.
    """

    modes: tuple[Modes, ...]
    output: Modes
    pairs: tuple[Pair, ...]
    live: tuple[tuple[int, ...], ...]
    extents: tuple[int, ...]
    item: int
    summed_apart: int
    whole: Modes  # modes that no slicing cuts

    @property
    def peak_bytes(self) -> int:
        """Bytes of the temporaries that are alive together, where they are most."""
        sizes = [prod(self.extents[mode] for mode in modes) for modes in self.modes]
        return self.item * max((sum(sizes[at] for at in live) for live in self.live), default=0)


def network_of(operation: Contraction, path: object) -> tuple[Network, Path]:
    """The products of ``operation`` in the order of ``path``, and that path written out.

    A mode that one factor alone has is summed first, as a plan does; a mode repeated in the
    result stays whole, for a slice of a diagonal leaves zeros elsewhere.
    """
    inputs, output = operation.inputs, operation.output
    extents = mode_extents(
        [each.modes for each in inputs],
        [each.tensor.extents for each in inputs],
        operation.labels,
    )
    kept = frozenset(output.modes)
    leaves, reduced = _factors(operation, kept)
    found = contraction_path(leaves, kept, extents, path)
    pairs = scheduled(
        pairs_along(leaves, kept, extents, found),
        len(leaves),
        lambda modes: prod(extents[mode] for mode in modes),
    )
    accumulator = operation.rule.accumulator
    apart = output.tensor.dtype != accumulator
    network = Network(
        (*leaves, *(pair.modes for pair in pairs)),
        kept,
        pairs,
        tuple(_live(pairs, len(leaves), reduced)),
        extents,
        item_size(accumulator),
        item_size(accumulator) if apart else 0,
        frozenset(mode for mode in kept if output.modes.count(mode) > 1),
    )
    return network, found


def _factors(operation: Contraction, kept: Modes) -> tuple[list[Modes], set[int]]:
    """The modes of every operand once it is multiplied, and which are temporaries by then."""
    own = [_own_modes(operand) for operand in operation.inputs]
    factors, reduced = [], set[int]()
    for at, modes in enumerate(own):
        others = kept.union(*own[:at], *own[at + 1 :])
        factors.append(modes & others if len(own) > 1 else modes)
        if factors[at] != modes:
            reduced.add(at)
    return factors, reduced


def _own_modes(operand: Operand) -> Modes:
    tensor = operand.tensor
    return frozenset(
        mode for mode, extent in zip(operand.modes, tensor.extents, strict=True) if extent != 1
    )


def _live(pairs: Sequence[Pair], factors: int, reduced: set[int]) -> Iterator[tuple[int, ...]]:
    """The temporaries in memory during each product; the last result is the caller's."""
    alive = set(reduced)
    for at, pair in enumerate(pairs):
        if at < len(pairs) - 1:
            alive.add(factors + at)
        yield tuple(sorted(alive))
        alive -= {pair.left, pair.right}


# --- what is chosen -----------------------------------------------------------------------------


class _Cuts:
    """Chunks while they are sought, and what a slice with them takes.

    ``elements`` of every tensor, ``alive`` of all temporaries during each product, ``work`` of
    each product in multiplications; all in one full slice, of which there are ``count``.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.sizes: dict[int, int] = {}
        self.count = 1
        extents = network.extents
        touched = [network.modes[p.left] | network.modes[p.right] for p in network.pairs]
        self.elements = [prod(extents[mode] for mode in modes) for modes in network.modes]
        self.alive = [sum(self.elements[i] for i in live) for live in network.live]
        self.work = [prod(extents[mode] for mode in modes) for modes in touched]
        self.all_work = sum(self.work)
        self.tensors = _holders(network.modes)
        self.products = _holders(touched)
        self.steps = _holders([frozenset(live) for live in network.live])

    def copy(self) -> "_Cuts":
        other = copy(self)
        other.sizes, other.elements = dict(self.sizes), list(self.elements)
        other.alive, other.work = list(self.alive), list(self.work)
        return other

    def size(self, mode: int) -> int:
        return self.sizes.get(mode, self.network.extents[mode])

    def parts(self, mode: int) -> int:
        return -(-self.network.extents[mode] // self.size(mode))

    def cut(self, mode: int, size: int) -> None:
        """Make ``size`` the chunk of the mode; its extent takes the cut back."""
        before, parts = self.size(mode), self.parts(mode)
        self.sizes[mode] = size
        self.count = self.count // parts * self.parts(mode)
        for tensor in self.tensors.get(mode, ()):
            change = self.elements[tensor] // before * (size - before)
            self.elements[tensor] += change
            for at in self.steps.get(tensor, ()):
                self.alive[at] += change
        for at in self.products.get(mode, ()):
            change = self.work[at] // before * (size - before)
            self.work[at] += change
            self.all_work += change

    @property
    def total(self) -> int:
        """Multiplications of all slices."""
        return self.count * self.all_work

    def peak(self) -> int:
        """The product during which most elements are in temporaries."""
        return self.alive.index(max(self.alive))

    def bytes(self) -> int:
        """Bytes of temporaries at the peak, and of what slices are summed in apart."""
        network = self.network
        summed = any(self.parts(mode) > 1 for mode in self.sizes.keys() - network.output)
        result = prod(self.size(mode) for mode in network.output) if summed else 0
        return max(self.alive, default=0) * network.item + result * network.summed_apart

    def repeated(self, mode: int) -> int:
        """Work that one more cut of the mode in two would add: of products without it."""
        holding = self.products.get(mode, ())
        return self.count * (self.all_work - sum(self.work[at] for at in holding))

    def saved(self, mode: int, at: int) -> int:
        """Elements that it would save during a product."""
        live = self.network.live[at]
        return sum(self.elements[i] for i in live if mode in self.network.modes[i]) // 2

    def frozen(self) -> dict[int, int]:
        """The chunk of every mode that is cut."""
        return {mode: size for mode, size in sorted(self.sizes.items()) if self.parts(mode) > 1}


def _holders(sets: Sequence[Modes]) -> dict[int, list[int]]:
    """For each mode the numbers of the sets that have it."""
    found: dict[int, list[int]] = {}
    for at, modes in enumerate(sets):
        for mode in modes:
            found.setdefault(mode, []).append(at)
    return found


def sliced_within(network: Network, limit: int) -> tuple[Chunked, ...] | int:
    """The cuts found by which ``limit`` bytes are enough; else the least bytes that were found.

    The bytes are those of the model: intermediates, and the result where it is summed apart.
    """
    cuts, least = _greedy(network, limit)
    if cuts.bytes() > limit:
        return least
    _coarsen(cuts, limit)
    return _chunked(network, _exchanged(cuts, limit).frozen())


def slicing_of(network: Network, chunks: Sequence[Chunked], labels: Sequence[str]) -> Slicing:
    """What such cuts change."""
    whole = _Cuts(network)
    cuts = _cut_by(network, chunks)
    flops = [2 * work for work in whole.work]
    repeated = [
        each * prod(cut.parts for cut in chunks if at not in whole.products.get(cut.mode, ()))
        for at, each in enumerate(flops)
    ]
    bytes_ = cuts.bytes(), whole.bytes()
    return Slicing(tuple(chunks), sum(repeated), sum(flops), *bytes_, tuple(labels))


def _cut_by(network: Network, chunks: Sequence[Chunked]) -> _Cuts:
    cuts = _Cuts(network)
    for each in chunks:
        cuts.cut(each.mode, each.size)
    return cuts


def _chunked(network: Network, sizes: Mapping[int, int]) -> tuple[Chunked, ...]:
    """The cut modes, those of the result first: slices that are summed follow each other."""
    chunks = (Chunked(mode, network.extents[mode], size) for mode, size in sizes.items())
    return tuple(sorted(chunks, key=lambda each: (each.mode not in network.output, each.mode)))


def _greedy(network: Network, limit: int) -> tuple[_Cuts, int]:
    """Cut in two what repeats the least FLOPs for a byte saved at the peak, until it fits."""
    cuts = _Cuts(network)
    least = cuts.bytes()
    while least > limit:
        at = cuts.peak()
        choices = [
            (cuts.repeated(mode) / cuts.saved(mode, at), -cuts.saved(mode, at), mode)
            for mode in _cuttable_at(cuts, at)
        ]
        if not choices:
            break
        mode = min(choices)[2]
        cuts.cut(mode, -(-cuts.size(mode) // 2))
        least = min(least, cuts.bytes())
    return cuts, least


def _cuttable_at(cuts: _Cuts, at: int) -> Modes:
    """The modes of more than one element that the temporaries of a product have."""
    network = cuts.network
    found: Modes = frozenset().union(*(network.modes[i] for i in network.live[at]))
    return frozenset(
        mode for mode in found - network.whole if cuts.size(mode) > 1 and cuts.saved(mode, at)
    )


def _coarsen(cuts: _Cuts, limit: int) -> None:
    """Give every mode the fewest chunks that still fit, those that repeat most first."""
    for mode in sorted(cuts.frozen(), key=cuts.repeated, reverse=True):
        extent, few, many = cuts.network.extents[mode], 1, cuts.parts(mode)
        while few < many:
            middle = (few + many) // 2
            cuts.cut(mode, -(-extent // middle))
            few, many = (few, middle) if cuts.bytes() <= limit else (middle + 1, many)
        cuts.cut(mode, -(-extent // many))


def _exchanged(cuts: _Cuts, limit: int) -> _Cuts:
    """The cuts with one mode's replaced by another's wherever that fits and repeats less."""
    best = cuts
    for mode in cuts.frozen():
        if mode not in best.frozen():
            continue
        for other in _alternatives(best, mode):
            trial = best.copy()
            parts = min(trial.parts(mode), best.network.extents[other])
            trial.cut(mode, best.network.extents[mode])
            trial.cut(other, -(-best.network.extents[other] // parts))
            if trial.bytes() <= limit and trial.total < best.total:
                best = trial
                break
    return best


def _alternatives(cuts: _Cuts, mode: int, most: int = 8) -> list[int]:
    """Modes that are not cut, of the tensors at the peak without the mode's cut; cheapest first."""
    trial = cuts.copy()
    trial.cut(mode, cuts.network.extents[mode])
    found = _cuttable_at(trial, trial.peak()) - {mode} - cuts.frozen().keys()
    return sorted(found, key=lambda each: (trial.repeated(each), each))[:most]


# --- what is given ------------------------------------------------------------------------------


def given_chunks(
    network: Network, wanted: Collection[tuple[object, int | None]], labels: Sequence[str]
) -> tuple[Chunked, ...]:
    """The cuts a caller asks for: (label, number of chunks; None: one for each element)."""
    sizes: dict[int, int] = {}
    for label, parts in wanted:
        mode = _named(label, labels)
        extent = network.extents[mode]
        if mode in network.whole:
            raise InvalidValueError(
                f"A mode that is repeated in the result cannot be sliced: {label!r} is."
            )
        if parts is not None and not 1 <= parts <= max(extent, 1):
            raise InvalidValueError(
                f"A mode has at least one chunk and at most one for each element: {label!r} has "
                f"extent {extent}, and {parts} chunks are asked for."
            )
        sizes[mode] = 1 if parts is None else -(-extent // parts)
    return _chunked(network, {m: size for m, size in sizes.items() if size < network.extents[m]})


def _named(label: object, labels: Sequence[str]) -> int:
    for mode, name in enumerate(labels):
        if name == str(label):
            return mode
    raise InvalidValueError(
        f"slices name modes of the expression, which has {', '.join(labels)}: {label!r} is none."
    )


# --- slices -------------------------------------------------------------------------------------


def number_of(chunks: Sequence[Chunked]) -> int:
    """How many slices there are."""
    return prod(each.parts for each in chunks)


def regions(chunks: Sequence[Chunked]) -> Iterator[Region]:
    """Every slice, the last mode's chunks following each other."""
    yield from product(*([*_chunks(each)] for each in chunks))


def _chunks(each: Chunked) -> Iterator[tuple[int, int, int]]:
    for first in range(0, each.extent, each.size):
        yield each.mode, first, min(each.size, each.extent - first)


def restricted(operand: Operand, lengths: Mapping[int, int], sizes: Mapping[int, int]) -> Operand:
    """The operand of a slice: so many elements of the cut modes, strides as they are.

    Slices start at multiples of ``sizes``, which bounds their alignment; without any, at 0.
    """
    tensor = operand.tensor
    extents, alignment = [], tensor.alignment
    for mode, extent, step in zip(operand.modes, tensor.extents, tensor.steps, strict=True):
        cut = mode in lengths and extent != 1
        extents.append(lengths[mode] if cut else extent)
        if cut:
            alignment |= sizes.get(mode, 0) * step * item_size(tensor.dtype)
    fitting = replace(tensor, extents=tuple(extents), alignment=alignment & -alignment)
    return replace(operand, tensor=fitting)


def slice_of(
    operation: Contraction,
    lengths: Mapping[int, int],
    sizes: Mapping[int, int],
    result: TensorDescriptor | None,
    further: bool,
) -> Contraction:
    """The operation on one slice; into ``result`` (a slice's, packed), else into the output's.

    A ``further`` slice is added to what is there: its C is its own result.
    """
    output = (
        restricted(operation.output, lengths, sizes)
        if result is None
        else restricted(replace(operation.output, tensor=result), lengths, {})
    )
    addend = operation.addend
    if further:
        addend = output
    elif addend is not None:
        addend = restricted(addend, lengths, sizes)
    inputs = tuple(restricted(each, lengths, sizes) for each in operation.inputs)
    return replace(
        operation,
        inputs=inputs,
        output=output,
        addend=addend,
        free_layout=False,
        same=_same_in_slices(operation, lengths),
    )


def _same_in_slices(operation: Contraction, lengths: Collection[int]) -> tuple[int, ...]:
    """Which inputs hold the same elements in every slice: of what is cut, each takes its part."""
    cut = [any(mode in lengths for mode in each.modes) for each in operation.inputs]
    return tuple(at if cut[at] or cut[first] else first for at, first in enumerate(operation.same))


def of_results(operation: Contraction) -> Contraction:
    """D = alpha * R + beta * op(C) for a result R of the operation, packed, in the type of sums."""
    output = operation.output
    result = TensorDescriptor(output.tensor.extents, None, operation.rule.accumulator)
    return replace(operation, inputs=(Operand(result, output.modes),), same=())


def packed_result(operation: Contraction, chunks: Sequence[Chunked]) -> TensorDescriptor:
    """A tensor for one slice of the result in the type of sums."""
    sizes = {each.mode: each.size for each in chunks}
    output = operation.output
    extents = (
        sizes.get(mode, extent)
        for mode, extent in zip(output.modes, output.tensor.extents, strict=True)
    )
    return TensorDescriptor(tuple(extents), None, operation.rule.accumulator)
