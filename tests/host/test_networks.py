"""Networks of many operands: values, mode orders, what is shared, and what is computed once."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import opt_einsum
import pytest

import contract as ct
from bench.copies import copied_bytes, path_of, plan_of, tensordot_bytes
from bench.networks import NETWORKS
from contract.execution.verification import verify
from contract.machines.cpu import HOST
from contract.plan.steps import Elementwise, Gemm, Gett, Kind, Permute, Plan, Product
from contract.planner import emission, network
from contract.planner import mode_orders as orders_of
from contract.planner.mode_orders import MemoryOrder, mode_orders
from contract.planner.pairs import scheduled, twins
from contract.planner.paths import Pair, pairs_of
from contract.planner.planner import make_plan, ranked_plans

Terms = list[list[int]]
Rng = np.random.Generator


def ring(rng: Rng) -> Terms:
    count = int(rng.integers(3, 8))
    return [[at, (at + 1) % count, count + at] for at in range(count)]


def tree(rng: Rng) -> Terms:
    count = int(rng.integers(3, 9))
    terms: Terms = [[] for _ in range(count)]
    for at in range(1, count):
        terms[at].append(at)
        terms[int(rng.integers(at))].append(at)
    return terms


def lattice(rng: Rng) -> Terms:
    rows, columns = int(rng.integers(2, 4)), int(rng.integers(2, 4))
    across = [[at * columns + x for x in range(columns)] for at in range(rows)]
    size = rows * columns
    return [
        [across[r][c]] * (c + 1 < columns)
        + [across[r][c - 1]] * (c > 0)
        + [size + across[r][c]] * (r + 1 < rows)
        + [size + across[r - 1][c]] * (r > 0)
        for r in range(rows)
        for c in range(columns)
    ]


def regular(rng: Rng) -> Terms:
    """Three bonds at each node; two bonds between the same nodes, or a loop, may occur."""
    ends = rng.permutation(np.repeat(np.arange(6), 3)).reshape(-1, 2)
    return [[at for at, pair in enumerate(ends) for end in pair if end == n] for n in range(6)]


def hyper(rng: Rng) -> Terms:
    """Modes in any number of operands, some in one alone."""
    return [rng.choice(6, int(rng.integers(1, 4)), replace=False).tolist() for _ in range(6)]


def repeated(rng: Rng) -> Terms:
    """Diagonals and traces."""
    return [rng.integers(0, 4, int(rng.integers(1, 4))).tolist() for _ in range(5)]


def apart(rng: Rng) -> Terms:
    """Disconnected parts, and scalars among them."""
    return [[0, 1], [], [1, 0], [2], [2, 3], []]


def circuit(rng: Rng) -> Terms:
    wires = list(range(4))
    terms = [[mode] for mode in wires]
    for gate in range(6):
        at, new = int(rng.integers(3)), 4 + 2 * gate
        terms.append([new, new + 1, *wires[at : at + 2]])
        wires[at : at + 2] = [new, new + 1]
    return terms


KINDS: Sequence[Callable[[Rng], Terms]] = (
    *(ring, tree, lattice, regular, hyper, repeated, apart, circuit),
)
OPTIMIZERS = (
    *("auto", "greedy", "dp", "optimal", "branch-1", "branch-2", "branch-all"),
    *("random-greedy", "auto-hq", "eager", "opportunistic"),
)


def interleaved(rng: Rng, terms: Terms, dtype: str) -> list[Any]:
    """Operands of small integers with their labels, then a random output: sums are exact."""
    modes = sorted({mode for term in terms for mode in term})
    extents = {mode: int(n) for mode, n in zip(modes, rng.integers(1, 4, len(modes)), strict=True)}
    output = [mode for mode in modes if rng.random() < 0.25][:4]
    arguments: list[Any] = []
    for term in terms:
        shape = [extents[mode] for mode in term]
        x = rng.integers(-1, 3, shape).astype(dtype)
        if dtype == "complex128":
            x = x + 1j * rng.integers(-1, 2, shape)
        arguments += [x if rng.random() < 0.5 else np.array(x, order="F"), term]
    return [*arguments, rng.permutation(output).tolist()]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_gives_the_value(optimizer: str) -> None:
    """Twenty networks each: all kinds, real and complex."""
    rng = np.random.default_rng(OPTIMIZERS.index(optimizer))
    slow = optimizer in ("optimal", "branch-all")
    for at in range(20):
        kind = KINDS[at % len(KINDS)]
        if slow and kind in (lattice, circuit):
            kind = tree
        arguments = interleaved(rng, kind(rng), ("float64", "complex128")[at % 2])
        expected = opt_einsum.contract(*arguments)
        found = ct.contract(*arguments, optimize=optimizer)
        assert np.array_equal(found, expected), (kind.__name__, arguments[1::2], arguments[-1])


def test_an_optimizer_of_ones_own_sees_characters() -> None:
    seen = []

    def last_two(inputs: Any, output: Any, sizes: Any, memory_limit: Any = None) -> Any:
        seen.append((inputs, output, sizes))
        return [(at - 1, at) for at in range(len(inputs) - 1, 0, -1)]

    x = np.arange(6.0).reshape(2, 3)
    found = ct.contract("ij,jk,kl->il", x, x.T, x, optimize=last_two)
    assert np.array_equal(found, x @ x.T @ x)
    ((inputs, output, sizes),) = seen
    assert [sorted(each) for each in inputs] == [["a", "b"], ["b", "c"], ["c", "d"]]
    assert output == {"a", "d"}
    assert sizes == {"a": 2, "b": 3, "c": 2, "d": 3}


def test_circuits_have_no_limit_of_labels_or_dimensions() -> None:
    """30 modes of extent 2 and 100 gates, written with the symbols of opt_einsum."""
    network = next(each for each in NETWORKS if each.name == "amplitude-30")
    rng = np.random.default_rng(1)
    terms = network.text.removesuffix("->").split(",")
    assert len(set(network.extents)) > 200
    # Gates are permutations of the basis: the amplitude of a state is 0 or 1.
    gates = [np.eye(4)[rng.permutation(4)].reshape(2, 2, 2, 2) for _ in range(100)]
    start = [np.eye(2)[at % 2] for at in range(30)]
    outcome = follow(terms, gates)
    operands = [*start, *gates, *(np.eye(2)[bit] for bit in outcome)]
    assert ct.contract(network.text, *operands) == 1
    operands[-1] = operands[-1][::-1]
    assert ct.contract(network.text, *operands) == 0


def follow(terms: list[str], gates: list[np.ndarray[Any, Any]]) -> list[int]:
    """The bits that the gates make of 0101..., one by one."""
    bits = {label: at % 2 for at, label in enumerate(terms[:30])}
    for term, gate in zip(terms[30:130], gates, strict=True):
        first, second = np.argwhere(gate[:, :, bits[term[2]], bits[term[3]]])[0]
        bits |= {term[0]: int(first), term[1]: int(second)}
    return [bits[label] for label in terms[130:]]


# --- mode orders ----------------------------------------------------------------------------------

# Bytes that are copied at most; what is left is where two readers of a tensor disagree.
COPIED = {
    **dict.fromkeys(("ring", "star", "tree", "tebd", "ccsd-ladder", "ccsd-holes"), 0),
    **dict.fromkeys(("ccsd-singles", "amplitude-30"), 0),
    "factors": 1.2e6,
    "lattice": 16e6,
    "mps": 0.27e6,
    "regular": 1.6e6,
    "fitting": 1.5e6,
    "regular-40": 0.36e6,
}


@pytest.mark.parametrize("name", COPIED)
def test_fewer_bytes_are_copied_than_tensordot_copies(name: str) -> None:
    network = next(each for each in NETWORKS if each.name == name)
    path = path_of(network)
    ours, theirs = copied_bytes(plan_of(network, path)), tensordot_bytes(network, path)
    assert ours < theirs
    assert ours <= COPIED[name]


def test_an_order_is_chosen_for_the_reader_of_the_reader() -> None:
    """((ab,bcd),de),ce: c and e have to lie side by side, two products later."""
    leaves = [MemoryOrder(tuple(map(ord, x))) for x in ("ab", "bcd", "de", "ce")]
    modes = [frozenset(map(ord, x)) for x in ("acd", "ace", "a")]
    pairs = [Pair(0, 1, modes[0]), Pair(4, 2, modes[1]), Pair(5, 3, modes[2])]
    first, second, last = mode_orders(leaves, pairs, [8] * 128, None, {})
    assert "ce" in "".join(map(chr, second))
    assert "".join(map(chr, first)) in ("acd", "cda")
    assert last == (ord("a"),)


def test_orders_have_the_modes_of_their_results_alone(rng: Rng) -> None:
    """A mode of one leaf that the result has not is in no order: the first product sums it."""
    for _ in range(200):
        leaves = [tuple(rng.permutation(6)[: rng.integers(1, 5)].tolist()) for _ in range(4)]
        kept = frozenset(mode for leaf in leaves for mode in leaf if rng.random() < 0.4)
        pairs = pairs_of([frozenset(leaf) for leaf in leaves], kept, [4] * 6, False)
        orders = mode_orders([MemoryOrder(leaf) for leaf in leaves], pairs, [4] * 6, None, {})
        for order, pair in zip(orders, pairs, strict=True):
            assert sorted(order) == sorted(pair.modes)


def test_few_orders_are_tried_where_calls_take_longer_than_arithmetic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same lattice with modes of extent 2, and of extent 24."""
    tried: list[int] = []
    orders = orders_of._Costs.orders

    def counted(*arguments: Any) -> dict[tuple[int, ...], None]:
        found = orders(*arguments)
        tried.append(len(found))
        return found

    monkeypatch.setattr(orders_of._Costs, "orders", counted)
    of_extent = {}
    for extent in (2, 24):
        tried.clear()
        plan("abc,ade,bfg,dfhi,ceh->gi", [(0, 1), (0, 1), (0, 1), (0, 1)], extent=extent)
        of_extent[extent] = sum(tried)
    assert of_extent[2] < of_extent[24]


def test_plans_of_all_ranks_have_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sought again for the second-best plan."""
    found: list[Any] = []

    def once(*arguments: Any) -> Any:
        found.append(mode_orders(*arguments))
        return found[-1]

    monkeypatch.setattr(network, "mode_orders", once)
    wanted = operation("ab,bc,cd->ad", 64)
    plans = list(ranked_plans(wanted, ct.PlanPreference(), HOST))
    assert len(plans) > 1
    assert len(found) == 1


# --- what is shared, freed, and computed once -----------------------------------------------------


def operation(text: str, extent: int, same: tuple[int, ...] = ()) -> ct.Contraction:
    terms, output = text.split("->")
    operands = [
        ct.Operand(ct.TensorDescriptor((extent,) * len(term)), tuple(term))
        for term in (*terms.split(","), output)
    ]
    return ct.Contraction(tuple(operands[:-1]), operands[-1], same=same)


def plan(text: str, path: Any, same: tuple[int, ...] = (), extent: int = 8) -> Plan:
    return make_plan(operation(text, extent, same), ct.PlanPreference(path=tuple(path)))


def test_equal_products_are_formed_once() -> None:
    """(AB)(AB)' of the same A and B, under other names of the modes."""
    path = [(0, 1), (0, 1), (0, 1)]
    apart, shared = plan("ab,bc,db,be->acde", path), plan("ab,bc,db,be->acde", path, (0, 1, 0, 1))
    verify(shared)
    assert len(apart.steps) == 3
    assert len(shared.steps) == 2
    other = plan("ab,bc,bd,be->acde", path, (0, 1, 0, 1))  # wired otherwise
    assert len(other.steps) == 3


@pytest.mark.parametrize(
    ("text", "extent", "steps"),
    [
        ("ija,ijb,ijc->ijabc", 3, [3]),
        ("ija,ijb,ijc->ijabc", 8, [2, 2]),  # ijab is an eighth of the result
        ("ab,ba,a->ab", 8, [3]),
        ("a,b,c,d->abcd", 8, [2, 2, 2]),
        ("ab,b,b,a->ab", 8, [3, 2]),
        ("a,a,ab->ab", 8, [2, 2]),
        (",ab,ba->ab", 8, [3]),
    ],
)
def test_three_factors_without_sums_are_one_step(
    text: str, extent: int, steps: list[int], rng: np.random.Generator
) -> None:
    path = [(0, 1)] * text.count(",")
    made = plan(text, path, extent=extent)
    verify(made)
    factors = [len(step.sources) for step in made.steps if isinstance(step, Elementwise)]
    assert sorted(factors, reverse=True) == steps
    assert len(made.steps) == len(steps)
    shapes = [(extent,) * len(term) for term in text.split("->")[0].split(",")]
    operands = [rng.standard_normal(shape) for shape in shapes]
    found = ct.contract(text, *operands, alpha=3, optimize=path)
    np.testing.assert_allclose(found, 3 * np.einsum(text, *operands), rtol=1e-14)


def test_large_factors_lie_across_a_result_in_one_way_at_most(rng: np.random.Generator) -> None:
    """abc lies across bca as cab does, but otherwise: one of them is copied first."""
    a, b = rng.standard_normal((110, 103, 97)), rng.standard_normal((97, 110, 103))
    expression = ct.contract_expression("abc,cab->bca", a.shape, b.shape)
    assert [type(step) for step in expression.plan.steps] == [Permute, Elementwise]
    np.testing.assert_allclose(expression(a, b), np.einsum("abc,cab->bca", a, b), rtol=1e-14)
    for text, steps in (("abc,bca->bca", 1), ("abc,acb->bca", 1), ("ab,bca->bca", 1)):
        shapes = [
            tuple({"a": 110, "b": 103, "c": 97}[x] for x in each) for each in text[:-5].split(",")
        ]
        assert len(ct.contract_expression(text, *shapes).plan.steps) == steps
    small = ct.contract_expression("abc,cab->bca", (9, 8, 7), (7, 9, 8))
    assert len(small.plan.steps) == 1


def test_an_intermediate_has_memory_of_its_own_beside_a_copied_factor() -> None:
    """Three factors that lie in three ways, one of them copied, then a sum over c."""
    made = plan("bac,ca,abc,ck->abk", [(0, 1), (0, 2), (0, 1)], extent=1100)
    assert [type(step) for step in made.steps] == [Permute, Elementwise, Gemm]
    copied, product, _ = made.steps
    assert isinstance(copied, Permute)
    assert isinstance(product, Elementwise)
    assert copied.target.slot != product.target.slot
    verify(made)


def test_a_dimension_that_every_factor_repeats_is_written_whole(rng: np.random.Generator) -> None:
    a = np.broadcast_to(rng.standard_normal((150, 1)), (150, 120))
    b = rng.standard_normal((150,))
    expected = np.einsum("ab,a->ab", a, b)
    np.testing.assert_allclose(ct.contract("ab,a->ab", a, b), expected, rtol=1e-14)
    np.testing.assert_allclose(ct.contract("ab,a->ba", a, b), expected.T, rtol=1e-14)


def test_what_is_added_to_or_asked_for_has_two_factors(rng: np.random.Generator) -> None:
    text = "ija,ijb,ijc->ijabc"
    a, b, c = (rng.standard_normal((5, 4, 3)) for _ in range(3))
    d = rng.standard_normal((5, 4, 3, 3, 3))
    expected = np.einsum(text, a, b, c)
    made = ct.contract(text, a, b, c, beta=2, c=d, out=np.empty_like(d))
    np.testing.assert_allclose(made, expected + 2 * d, rtol=1e-13)
    chosen = ct.PlanPreference(algo=ct.Algo.GETT)
    for step in make_plan(operation(text, 8), chosen).steps:
        assert isinstance(step, Gett)
    np.testing.assert_allclose(ct.contract(text, a, b, c, preference=chosen), expected, rtol=1e-13)


def test_factors_of_other_types_and_conjugate_ones_are_one_step(rng: np.random.Generator) -> None:
    a = rng.standard_normal((30, 40, 3)) + 1j * rng.standard_normal((30, 40, 3))
    b, c = rng.standard_normal((40, 30, 4)).astype("f4"), rng.standard_normal((30, 5))
    expected = np.einsum("ija,jib,ic->jabic", a.conj(), b, c)
    found = ct.contract("ija,jib,ic->jabic", a, b, c, operators=(ct.Operator.CONJ, None, None))
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_the_same_array_twice_is_noticed() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.random((2, 5, 5))
    handle = ct.Handle()
    for operands in ((a, b, *np.array((a, b))), (a, b, a, b), (a, b, b, a), (a, b, a.copy(), b)):
        expected = np.einsum("ij,jk,kl,lm->im", *operands)
        for _ in range(2):
            found = ct.contract("ij,jk,kl,lm->im", *operands, handle=handle)
            np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert len(handle.plans) == 4


def test_an_operand_is_the_same_as_an_earlier_one_of_its_layout() -> None:
    with pytest.raises(ct.InvalidValueError, match="3 inputs, 1 numbers"):
        operation("ab,bc,cd->ad", 4, (0,))
    with pytest.raises(ct.InvalidValueError, match="input 1 is not the same as input 2"):
        operation("ab,bc,cd->ad", 4, (0, 2, 2))
    with pytest.raises(ct.InvalidValueError, match="input 2 is not the same as input 0"):
        operation("ab,bc,c->a", 4, (0, 1, 0))


def test_results_with_equal_factors_are_twins_however_they_are_ordered() -> None:
    pairs = [Pair(0, 1, frozenset({0, 2})), Pair(3, 2, frozenset({3, 5}))]
    leaves = [("A", (0, 1)), ("B", (1, 2)), ("A", (3, 4)), ("B", (4, 5))]
    (node, twin), *others = twins(pairs, leaves).items()
    assert (node, twin.source, dict(twin.modes)) == (5, 4, {0: 3, 2: 5})
    assert not others


def test_little_is_alive_at_once() -> None:
    """Two large branches that end small: one is finished before the other is begun."""
    large, small = frozenset({0, 1}), frozenset({0})
    pairs = [
        *(Pair(0, 1, large), Pair(2, 3, large)),
        *(Pair(6, 4, small), Pair(7, 5, small), Pair(8, 9, frozenset())),
    ]
    found = scheduled(pairs, 6, lambda modes: 10 ** len(modes))
    assert [len(pair.modes) for pair in found] == [2, 1, 2, 1, 0]
    assert [(pair.left, pair.right) for pair in found] == [(0, 1), (6, 4), (2, 3), (8, 5), (7, 9)]


def test_memory_is_used_again() -> None:
    chain = plan("ab,bc,cd,de,ef,fg->ag", [(0, 1), (0, 4), (0, 3), (0, 2), (0, 1)], extent=64)
    assert chain.peak_bytes == 2 * 64 * 64 * 8
    assert chain.workspace == chain.peak_bytes
    assert all(isinstance(step, Gemm) for step in chain.steps)
    assert plan("ab,bc->ac", [(0, 1)]).peak_bytes == 0


def test_products_of_constants_are_computed_once() -> None:
    rng = np.random.default_rng(3)
    a, b, c, d = rng.random((4, 6, 6))
    path = [(0, 1), (0, 2), (0, 1)]
    product = ct.contract_expression("ab,bc,cd,de->ae", a, b, (6, 6), d, optimize=path)
    assert len(product.plan.steps) == 2
    np.testing.assert_allclose(product(c), a @ b @ c @ d, rtol=1e-12)
    np.testing.assert_allclose(product(c, c=c, alpha=2), 2 * a @ b @ c @ d + c, rtol=1e-12)
    with pytest.raises(ct.InvalidValueError, match=r"Operand 2 was planned.*\(6, 6\).*\(5, 6\)"):
        product(c[:5])
    b[...] = 0  # the value of ab was formed when the expression was made
    np.testing.assert_allclose(product(c[::-1])[:, 0], product(np.ascontiguousarray(c[::-1]))[:, 0])
    assert product(c).any()


def test_operators_of_constants_act_once() -> None:
    rng = np.random.default_rng(4)
    a, b, c = rng.random((3, 4, 4)) + 1j * rng.random((3, 4, 4))
    product = ct.contract_expression(
        "ab,bc,cd->ad",
        *(a, b, ct.TensorDescriptor((4, 4), dtype="complex128")),
        operators=("conj", None, "conj"),
        optimize=[(0, 1), (0, 1)],
    )
    products = [step for step in product.plan.steps if isinstance(step, Product)]
    assert len(products) == 1
    np.testing.assert_allclose(product(c), a.conj() @ b @ c.conj(), rtol=1e-12)


def test_constants_that_would_be_rounded_again_are_not_multiplied() -> None:
    a, b, c = np.full((3, 4, 4), 0.3, "float16")
    shape = ct.TensorDescriptor((4, 4), dtype="float16")
    product = ct.contract_expression("ab,bc,cd->ad", a, b, shape, optimize=[(0, 1), (0, 1)])
    assert len(product.plan.steps) == 2
    assert np.array_equal(product(c), ct.contract("ab,bc,cd->ad", a, b, c))


def test_like_products_are_planned_once_under_their_own_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for the first product, of two operands, and the last, which alpha scales."""
    planned = []

    def counted(problem: Any, *arguments: Any, **options: Any) -> Any:
        planned.append(problem)
        return ways(problem, *arguments, **options)

    ways = emission.options
    monkeypatch.setattr(emission, "options", counted)
    path = [(0, 1), (0, 4), (0, 3), (0, 2), (0, 1)]
    chain = plan("ab,bc,cd,de,ef,fg->ag", path, extent=64)
    steps = [step for step in chain.steps if isinstance(step, Gemm)]
    summed = [loop.modes for step in steps for loop in step.loops if loop.kind is Kind.K]
    assert [chain.labels[mode] for (mode,) in summed] == list("bcdef")
    assert len(planned) == 3


@pytest.mark.parametrize("optimize", ["greedy", "dp", "optimal", "branch-2", "random-greedy"])
def test_every_optimizer_orders_empty_products(optimize: str) -> None:
    operands = [np.ones(shape) for shape in ((21, 4), (4, 4), (0,))]
    found = ct.contract("fc,cb,e->be", *operands, optimize=optimize, slices={"f": 2})
    assert found.shape == (4, 0)
