"""A contraction -> a plan that fits into memory: whole, or in slices where it must or shall be."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import inf

from contract.descriptors.operations import (
    AutotuneMode,
    CacheMode,
    Contraction,
    PlanPreference,
    TensorDescriptor,
)
from contract.errors import InsufficientWorkspaceError
from contract.execution.binding import aligned
from contract.execution.executor import Loaded, footprint
from contract.plan.workspace import ALIGNMENT
from contract.planner.planner import make_plan
from contract.session.handle import Handle
from contract.slices.search import (
    Chunked,
    Network,
    given_chunks,
    network_of,
    of_results,
    packed_result,
    restricted,
    slice_of,
    sliced_within,
    slicing_of,
)
from contract.slices.sliced_plan import Piece, SlicedPlan, Sums

__all__ = ["fitted_plan", "in_slices", "sums_of"]

ATTEMPTS = 8  # each for half of the memory of the one before
NEAR = 8  # a limit of so many times the intermediates keeps no plan from being fast
SLOWED = 1.5
FIXED = 0.8


def fitted_plan(
    handle: Handle,
    operation: Contraction,
    preference: PlanPreference,
    cuts: Collection[tuple[object, int | None]] | None,
) -> Loaded:
    """The plan within the preference's limit of memory, or in the slices of ``cuts``."""
    network, path = network_of(operation, preference.path)
    ordered = replace(preference, path=path)
    if cuts is not None:
        chunks = given_chunks(network, cuts, operation.labels)
        return in_slices(handle, operation, ordered, chunks)
    if not network.peak_bytes:
        return handle.plan(operation, preference)  # there is nothing to make smaller
    return _whole_or_sliced(handle, operation, preference, ordered, network)


def _whole_or_sliced(
    handle: Handle,
    operation: Contraction,
    preference: PlanPreference,
    ordered: PlanPreference,
    network: Network,
) -> Loaded:
    """Slices where the whole does not fit, or would be slowed by a limit that is near."""
    limit, needed = preference.memory_limit, network.peak_bytes
    assert limit is not None
    whole = None
    if needed <= limit:
        try:
            whole = handle.plan(operation, preference)
        except InsufficientWorkspaceError as error:
            needed = error.needed or needed
    if whole is not None and not _is_slowed(handle, whole, preference, network):
        return whole
    search = _search(handle, operation, ordered, network)
    if search.found is not None and (whole is None or search.found.seconds < whole.plan.seconds):
        return search.found
    if whole is not None:
        return whole
    least = min(needed, search.least)
    raise InsufficientWorkspaceError(
        f"The operation needs {needed} bytes beside operands and result, {least} bytes in the "
        f"smallest slices found; memory_limit is {limit} bytes.",
        needed,
        least,
    )


def _is_slowed(handle: Handle, whole: Loaded, preference: PlanPreference, network: Network) -> bool:
    """Whether the limit costs the plan more time than slices may."""
    limit = preference.memory_limit
    if limit is None or limit > NEAR * network.peak_bytes:
        return False
    best = make_plan(whole.plan.operation, _unlimited(preference), handle.executor.machine)
    return whole.plan.seconds > SLOWED * best.seconds


@dataclass(frozen=True, slots=True)
class _Found:
    """Slices that fit, if any do; and the least bytes that any slices need."""

    found: SlicedPlan | None
    least: int


def _search(
    handle: Handle, operation: Contraction, preference: PlanPreference, network: Network
) -> _Found:
    """The fewest slices whose best plan fits; where there are none, the fewest with any plan."""
    limit = preference.memory_limit
    assert limit is not None
    choices, least = _choices(network, limit)
    for chunks in (*_with_best_plans(handle, operation, preference, choices), *choices):
        try:
            return _Found(in_slices(handle, operation, preference, chunks), least)
        except InsufficientWorkspaceError as error:
            least = min(least, error.needed or least)
    return _Found(None, least)


def _choices(network: Network, limit: int) -> tuple[list[tuple[Chunked, ...]], int]:
    """Slices by the model for the limit, half of it, and so on: plans take more than that.

    And the bytes of the smallest intermediates there can be, if that was met.
    """
    found: list[tuple[Chunked, ...]] = []
    least = network.peak_bytes
    for halvings in range(ATTEMPTS):
        chunks = sliced_within(network, limit >> halvings)
        if isinstance(chunks, int):
            return found, min(least, chunks)
        if chunks and chunks not in found:
            found.append(chunks)
    return found, least


def _with_best_plans(
    handle: Handle,
    operation: Contraction,
    preference: PlanPreference,
    choices: list[tuple[Chunked, ...]],
) -> list[tuple[Chunked, ...]]:
    """The first choice for which no plan has to be sought that needs less than the best one."""
    limit, before = preference.memory_limit or 0, inf
    for chunks in choices:
        needed = _bytes_of_best(handle, operation, preference, chunks)
        if needed <= limit:
            return [chunks]
        if needed > FIXED * before:
            break  # what plans take beside their intermediates stays
        before = needed
    return []


def _bytes_of_best(
    handle: Handle,
    operation: Contraction,
    preference: PlanPreference,
    chunks: tuple[Chunked, ...],
) -> int:
    """What a full slice takes beside operands and result, planned as if there were no limit."""
    sizes = {each.mode: each.size for each in chunks}
    apart = packed_result(operation, chunks) if _apart_bytes(operation, chunks) else None
    full = slice_of(operation, sizes, sizes, apart, further=False)
    plan = make_plan(full, _unlimited(preference), handle.executor.machine)
    needed = footprint(handle.executor, plan).total
    return needed + _apart_bytes(operation, chunks) + ALIGNMENT


def _unlimited(preference: PlanPreference) -> PlanPreference:
    return replace(preference, memory_limit=None)


def in_slices(
    handle: Handle,
    operation: Contraction,
    preference: PlanPreference,
    chunks: tuple[Chunked, ...],
) -> SlicedPlan:
    """The plan that runs such slices, each planned by the preference; kept in the handle's cache.

    InsufficientWorkspaceError if a slice does not fit into ``memory_limit``.
    """
    if preference.cache_mode is CacheMode.NONE:
        return _in_slices(handle, operation, preference, chunks)
    key = operation, (preference, chunks)
    found = handle.plans.get(key)
    if found is None:
        found = handle.plans.put(key, _in_slices(handle, operation, preference, chunks))
    assert isinstance(found, SlicedPlan)  # its key has chunks
    return found


def _in_slices(
    handle: Handle,
    operation: Contraction,
    preference: PlanPreference,
    chunks: tuple[Chunked, ...],
) -> SlicedPlan:
    preference = replace(preference, autotune=AutotuneMode.NONE)
    whole = make_plan(operation, _unlimited(preference), handle.executor.machine)
    tensor = whole.slots[whole.output].tensor
    output = replace(operation.output, tensor=tensor)
    operation = replace(operation, output=output, free_layout=False)
    sums = sums_of(handle, operation, preference, chunks)
    plans = [each for piece in sums.pieces.values() for each in piece.plans]
    network, _ = network_of(operation, preference.path)
    workspace = max(each.required_workspace for each in plans)
    bytes_ = TensorDescriptor((workspace + ALIGNMENT,), None, "uint8")
    own = max(each.own_bytes for each in plans) + _apart_bytes(operation, chunks) + ALIGNMENT
    tiles = max(each.tile_bytes for each in plans)
    _require_within(workspace + tiles + own, preference)
    return SlicedPlan(
        plan=replace(whole, operation=operation),
        slicing=slicing_of(network, chunks, operation.labels),
        sums=sums,
        preference=preference,
        arrays=handle.arrays,
        new_output=partial(handle.executor.allocate, tensor),
        new_workspace=lambda: aligned(handle.arrays, handle.executor.allocate(bytes_)),
        required_workspace=workspace,
        tile_bytes=tiles,
        own_bytes=own,
        reads_addend=operation.addend is not None,
    )


def _require_within(needed: int, preference: PlanPreference) -> None:
    """InsufficientWorkspaceError where slices of several kinds together take too much."""
    limit = preference.memory_limit
    if limit is not None and needed > limit:
        raise InsufficientWorkspaceError(
            f"Slices need {needed} bytes, memory_limit is {limit} bytes.", needed
        )


def bytes_beside(loaded: Loaded) -> int:
    """What a plan takes beside operands and result."""
    return loaded.required_workspace + loaded.tile_bytes + loaded.own_bytes


# --- the plans of slices ------------------------------------------------------------------------


def sums_of(
    handle: Handle,
    operation: Contraction,
    preference: PlanPreference,
    chunks: tuple[Chunked, ...],
    of_operands: bool = True,
) -> Sums:
    """What adds up the slices of an operation, from operands or from results of the slices."""
    apart = packed_result(operation, chunks) if _apart_bytes(operation, chunks) else None
    limited = _left(preference, _apart_bytes(operation, chunks) + ALIGNMENT)
    slices = _Slices(handle, operation, limited, chunks, apart, of_operands)
    return Sums(
        operation,
        chunks,
        {lengths: slices.piece(lengths) for lengths in product(*map(_lengths, chunks))},
        None if apart is None else partial(handle.executor.allocate, apart),
    )


def _apart_bytes(operation: Contraction, chunks: tuple[Chunked, ...]) -> int:
    """Bytes in which a slice of the result is summed where it has not the type of sums."""
    summed = any(each.mode not in operation.output.modes for each in chunks)
    if not summed or operation.output.tensor.dtype == operation.rule.accumulator:
        return 0
    return packed_result(operation, chunks).packed_bytes


def _left(preference: PlanPreference, beside: int) -> PlanPreference:
    """What a limit leaves for slices beside what they are summed in."""
    limit = preference.memory_limit
    if limit is not None and beside > limit:
        raise InsufficientWorkspaceError(
            f"Slices are summed in {beside} bytes, memory_limit is {limit} bytes.", beside
        )
    return preference if limit is None else replace(preference, memory_limit=limit - beside)


def _lengths(each: Chunked) -> tuple[int, ...]:
    """The elements of the mode in a full slice, and in the last one if it has fewer."""
    last = each.extent - (each.parts - 1) * each.size
    return (each.size,) if last == each.size else (each.size, last)


@dataclass(frozen=True, slots=True)
class _Slices:
    """Plans the slices of an operation, each kind of them once."""

    handle: Handle
    operation: Contraction
    preference: PlanPreference
    chunks: tuple[Chunked, ...]
    apart: TensorDescriptor | None
    of_operands: bool

    def piece(self, lengths: tuple[int, ...]) -> Piece:
        by_mode = {each.mode: n for each, n in zip(self.chunks, lengths, strict=True)}
        summed = any(each.mode not in self.operation.output.modes for each in self.chunks)
        return Piece(
            self._plan(by_mode, False),
            self._plan(by_mode, True) if summed else None,
            None if self.apart is None else self._move(by_mode, self.apart),
        )

    def _plan(self, lengths: Mapping[int, int], further: bool) -> Loaded:
        operation = slice_of(self.operation, lengths, self._sizes, self.apart, further)
        return self._best(operation if self.of_operands else of_results(operation))

    def _move(self, lengths: Mapping[int, int], apart: TensorDescriptor) -> Loaded:
        """From where it was summed to its place in the result, rounded once.

        Every dimension is a mode of its own: what lies beside a diagonal moves as well.
        """
        target = restricted(self.operation.output, lengths, self._sizes)
        source = restricted(replace(target, tensor=apart), lengths, {})
        modes = tuple(range(len(target.modes)))
        moved = replace(
            self.operation,
            inputs=(replace(source, modes=modes),),
            output=replace(target, modes=modes),
            addend=None,
            labels=tuple(self.operation.labels[mode] for mode in target.modes),
            same=(),
        )
        return self._best(moved)

    def _best(self, operation: Contraction) -> Loaded:
        """The best plan if it fits, which is found sooner than the best one that fits."""
        limit = self.preference.memory_limit
        best = self.handle.plan(operation, _unlimited(self.preference))
        if limit is None or bytes_beside(best) <= limit:
            return best
        return self.handle.plan(operation, self.preference)

    @property
    def _sizes(self) -> Mapping[int, int]:
        return {each.mode: each.size for each in self.chunks}
