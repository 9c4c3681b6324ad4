"""Slices by the model: what is chosen, what it costs, and what a slice is. Nothing is computed."""

import random
from itertools import product
from math import prod

import pytest

import contract as ct
from contract.planner.paths import pairs_of
from contract.slices.fitting import fitting_plan
from contract.slices.search import (
    Chunked,
    Network,
    given_chunks,
    network_of,
    regions,
    restricted,
    slice_of,
    sliced_within,
    slicing_of,
)


def contraction(text: str, extents: dict[str, int], dtype: str = "float64") -> ct.Contraction:
    inputs, output = text.split("->")
    terms = [*inputs.split(","), output]
    operands = [
        ct.Operand(ct.TensorDescriptor(tuple(extents[x] for x in term), dtype=dtype), tuple(term))
        for term in terms
    ]
    return ct.Contraction(tuple(operands[:-1]), operands[-1])


def regular(count: int, degree: int, extent: int, seed: int) -> ct.Contraction:
    """A random graph: an operand for each vertex, a mode for each edge."""
    ends = [at for at in range(count) for _ in range(degree)]
    generator = random.Random(seed)
    while any(one == other for one, other in zip(ends[::2], ends[1::2], strict=True)):
        generator.shuffle(ends)
    terms: list[list[int]] = [[] for _ in range(count)]
    for edge, pair in enumerate(zip(ends[::2], ends[1::2], strict=True)):
        for end in pair:
            terms[end].append(edge)
    tensors = [ct.TensorDescriptor((extent,) * len(term)) for term in terms]
    inputs = [ct.Operand(x, tuple(term)) for x, term in zip(tensors, terms, strict=True)]
    return ct.Contraction(tuple(inputs), ct.Operand(ct.TensorDescriptor(()), ()))


def peak_by_replay(network: Network, sizes: dict[int, int]) -> int:
    """Elements of the temporaries alive at once, by walking through the products."""
    leaves = len(network.modes) - len(network.pairs)
    extent = {mode: sizes.get(mode, n) for mode, n in enumerate(network.extents)}
    alive: dict[int, int] = {}
    peak = 0
    for at, pair in enumerate(network.pairs, leaves):
        if pair is not network.pairs[-1]:
            alive[at] = prod(extent[mode] for mode in network.modes[at])
        peak = max(peak, sum(alive.values()))
        alive.pop(pair.left, None)
        alive.pop(pair.right, None)
    return peak


@pytest.mark.parametrize("seed", range(4))
def test_a_slicing_is_what_it_says(seed: int) -> None:
    """Within the limit; FLOPs of all slices, remainders too, counted one by one."""
    network, _ = network_of(regular(12, 3, 5, seed), "greedy")
    whole = slicing_of(network, (), ())
    assert whole.count == 1
    assert whole.bytes == whole.whole_bytes == 8 * peak_by_replay(network, {})
    chunks = sliced_within(network, whole.bytes // 20)
    assert not isinstance(chunks, int)
    found = slicing_of(network, chunks, ())
    assert found.bytes == 8 * peak_by_replay(network, {x.mode: x.size for x in chunks})
    assert found.bytes <= whole.bytes // 20
    flops = 0
    for region in regions(chunks):
        extents = {mode: n for mode, _, n in region}
        for pair in network.pairs:
            modes = network.modes[pair.left] | network.modes[pair.right]
            flops += 2 * prod(extents.get(mode, network.extents[mode]) for mode in modes)
    assert found.flops == flops


def least_by_trying(network: Network, limit: int) -> float:
    """The least overhead of all ways to cut modes whole or not at all."""
    modes = range(len(network.extents))
    found = []
    for cut in product((False, True), repeat=len(modes)):
        chunks = tuple(Chunked(mode, network.extents[mode], 1) for mode in modes if cut[mode])
        slicing = slicing_of(network, chunks, ())
        if slicing.bytes <= limit:
            found.append(slicing.overhead)
    return min(found)


@pytest.mark.parametrize("seed", range(3))
def test_slices_repeat_little(seed: int) -> None:
    """Close to the best of all choices, where these can be counted."""
    network, _ = network_of(regular(6, 4, 2, seed), "greedy")
    limit = slicing_of(network, (), ()).bytes // 4
    chunks = sliced_within(network, limit)
    assert not isinstance(chunks, int)
    assert slicing_of(network, chunks, ()).overhead <= 1.25 * least_by_trying(network, limit)


def test_modes_of_the_result_come_first_and_repeated_ones_stay_whole() -> None:
    network, _ = network_of(contraction("iaxk,axj,jk->iia", dict.fromkeys("iaxjk", 6)), "greedy")
    chunks = sliced_within(network, 60)
    assert not isinstance(chunks, int)
    kept = [network.extents[x.mode] and x.mode in network.output for x in chunks]
    assert kept == sorted(kept, reverse=True)
    assert not {x.mode for x in chunks} & network.whole
    with pytest.raises(ct.InvalidValueError, match=r"repeated in the result.*'i'"):
        given_chunks(network, [("i", 2)], "iaxkj")


@pytest.mark.parametrize(
    ("cuts", "message"),
    [([("z", 2)], "which has a, k, b: 'z'"), ([("k", 6)], "extent 5, and 6"), ([("k", 0)], "0")],
)
def test_cuts_that_cannot_be(cuts: list[tuple[str, int]], message: str) -> None:
    network, _ = network_of(contraction("ak,kb->ab", {"a": 3, "b": 4, "k": 5}), "auto")
    with pytest.raises(ct.InvalidValueError, match=message):
        given_chunks(network, cuts, ("a", "k", "b"))


def test_cuts_as_given() -> None:
    network, _ = network_of(contraction("ak,kb->ab", {"a": 3, "b": 4, "k": 5}), "auto")
    labels = ("a", "k", "b")
    chunks = given_chunks(network, [("k", 2), ("b", None)], labels)
    assert chunks == (Chunked(2, 4, 1), Chunked(1, 5, 3))
    text = str(slicing_of(network, chunks, labels))
    assert "b into 4 x 1, k into 2 x 3 (last 2): 8 slices, 1x the FLOPs" in text
    starts = [[first for _, first, _ in region] for region in regions(chunks)]
    assert starts == [[b, k] for b in range(4) for k in (0, 3)]


def test_an_operand_of_a_slice() -> None:
    """Its alignment holds wherever a slice starts; what is broadcast stays."""
    tensor = ct.TensorDescriptor((6, 1, 8), (1, 6, 6), "float32", alignment=16)
    operand = ct.Operand(tensor, (0, 1, 2))
    cut = restricted(operand, {2: 4, 1: 3}, {2: 4, 1: 3}).tensor
    assert cut == ct.TensorDescriptor((6, 1, 4), (1, 6, 6), "float32", alignment=16)
    assert restricted(operand, {0: 3}, {0: 3}).tensor.alignment == 4
    assert restricted(operand, {0: 3}, {}).tensor.alignment == 16


def test_what_is_the_same_and_cut_is_no_longer() -> None:
    whole = contraction("ab,bc,cd,de->ae", dict.fromkeys("abcde", 6))
    operation = ct.Contraction(whole.inputs, whole.output, labels=whole.labels, same=(0, 0, 0, 0))
    assert slice_of(operation, {1: 3}, {1: 3}, None, False).same == (0, 1, 2, 3)
    assert slice_of(operation, {4: 3}, {4: 3}, None, False).same == (0, 0, 0, 3)


@pytest.mark.parametrize("path", ["greedy", ((0, 1), (0, 1))])
def test_a_path_and_a_limit_that_nothing_meets(path: object) -> None:
    operation = contraction("ab,bc,cd->ad", dict.fromkeys("abcd", 50))
    preference = ct.PlanPreference(path=path, memory_limit=4)
    with ct.Handle() as handle, pytest.raises(ct.InsufficientWorkspaceError) as caught:
        fitting_plan(handle, operation, preference)
    assert caught.value.needed is not None
    assert caught.value.needed >= 50 * 50 * 8
    assert caught.value.sliced == 8
    for number in (caught.value.needed, 8, 4):
        assert f"{number} bytes" in str(caught.value)


def test_the_network_is_the_plans() -> None:
    """The peak by the model is that of a plan without copies."""
    for seed in range(3):
        operation = regular(10, 3, 4, seed)
        network, path = network_of(operation, "greedy")
        leaves = [frozenset(each.modes) for each in operation.inputs]
        assert len(network.pairs) == len(pairs_of(leaves, frozenset(), network.extents, path))
        with ct.Handle() as handle:
            plan = handle.plan(operation, ct.PlanPreference(path=path)).plan
        assert slicing_of(network, (), ()).bytes <= plan.peak_bytes
