"""Plans without arrays: descriptors in, frozen steps out."""

import pickle
from itertools import islice
from random import Random

import opt_einsum
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract import Algo, Contraction, Operand, Operator, PlanPreference, TensorDescriptor
from contract.errors import InvalidValueError, NotSupportedError, UnsupportedTypeError
from contract.execution.verification import verify
from contract.machines.cpu import COMPILED, HOST, NARROW_BLAS, Cpu
from contract.plan.steps import (
    Elementwise,
    Gemm,
    Gett,
    Kind,
    Panels,
    Permute,
    Plan,
    Reduce,
    Tiles,
)
from contract.plan.workspace import ALIGNMENT, Lifetime, place
from contract.planner.paths import pairs_of
from contract.planner.planner import make_plan, ranked_plans


def operation(
    terms: str,
    output: str,
    dtype: str = "float64",
    operator: Operator = Operator.IDENTITY,
    **extents: int,
) -> Contraction:
    """Packed column-major operands; modes are letters."""
    inputs = terms.split()
    labels = sorted(set("".join(inputs)))

    def operand(term: str) -> Operand:
        tensor = TensorDescriptor(tuple(extents[x] for x in term), None, dtype)
        return Operand(tensor, tuple(labels.index(x) for x in term), operator)

    return Contraction(tuple(map(operand, inputs)), operand(output), None, tuple(labels))


def plan_of(terms: str, output: str, **options: object) -> Plan:
    return make_plan(operation(terms, output, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("terms", "output", "kinds"),
    [
        ("ik kj", "ij", [Gemm]),
        ("ki kj", "ij", [Gemm]),
        ("ik kj", "ji", [Gemm]),
        ("abc cd", "abd", [Gemm]),
        ("ikb kjb", "ijb", [Gemm]),
        ("ij ij", "ij", [Elementwise]),
        ("ij", "ji", [Permute]),
        ("ij", "i", [Reduce]),
        ("ijx jk", "ik", [Reduce, Gemm]),
    ],
)
def test_the_cheapest_steps_are_chosen(terms: str, output: str, kinds: list[type]) -> None:
    extents = {x: 64 for x in "abcdijkx"}
    plan = plan_of(terms, output, **extents)
    assert [type(step) for step in plan.steps] == kinds


def test_memory_bound_products_are_packed_by_panels() -> None:
    plan = plan_of("dbea ec", "abcd", a=72, b=72, c=24, d=72, e=72)
    (step,) = plan.steps
    assert isinstance(step, Gett)
    assert isinstance(step.blocking, Panels)
    assert step.blocking.pack_d
    assert not step.blocking.pack_a
    assert plan.workspace == 0


def test_fused_loops_cover_the_iteration_space() -> None:
    plan = plan_of("abcd efcd", "abef", a=8, b=9, c=10, d=11, e=4, f=5)
    (step,) = plan.steps
    assert isinstance(step, Gemm)
    assert {loop.kind: loop.extent for loop in step.loops} == {
        Kind.M: 72,
        Kind.N: 20,
        Kind.K: 110,
    }
    assert plan.flops == 2 * 72 * 20 * 110


def test_plans_are_values() -> None:
    first, second = (plan_of("ik kj", "ij", i=40, j=50, k=60) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert pickle.loads(pickle.dumps(first)) == first
    assert first != plan_of("ik kj", "ij", i=40, j=50, k=61)
    with pytest.raises(AttributeError):
        first.workspace = 3  # type: ignore[misc]


def test_a_plan_prints_a_row_for_each_step() -> None:
    plan = plan_of("ij jk kl", "il", i=40, j=50, k=60, l=7)
    lines = str(plan).splitlines()
    assert len(lines) == 2 + len(plan.steps) + 2
    assert "FLOP" in lines[-2]
    assert "largest intermediate" in lines[-1]


def test_algorithms_and_ranks_can_be_asked_for() -> None:
    asked = operation("dca bd", "abc", a=40, b=24, c=30, d=40)
    for algo in (Algo.GEMM, Algo.GETT, Algo.TTGT):
        plan = make_plan(asked, PlanPreference(algo=algo))
        assert {each.chosen.algo for each in plan.considered} == {algo}
    with pytest.raises(NotSupportedError, match="ELEMENTWISE"):
        make_plan(asked, PlanPreference(algo=Algo.ELEMENTWISE))
    with pytest.raises(NotSupportedError, match="1000"):
        make_plan(asked, PlanPreference(kernel_rank=1000))
    first, second = (make_plan(asked, PlanPreference(kernel_rank=rank)) for rank in (0, 1))
    assert first.seconds <= second.seconds


@pytest.mark.parametrize("batch", ["", "l"])
def test_a_product_without_copies_is_one_candidate(batch: str) -> None:
    """A TTGT that permutes nothing is the Gemm, which is what asking for it gives."""
    asked = operation(f"ij{batch} jk{batch}", f"ik{batch}", i=40, j=50, k=60, l=7)
    (decision,) = make_plan(asked).considered
    assert [each.algo for each in decision.candidates].count(Algo.GEMM) == 1
    assert Algo.TTGT not in {each.algo for each in decision.candidates}
    gemm, ttgt = (make_plan(asked, PlanPreference(algo=x)) for x in (Algo.GEMM, Algo.TTGT))
    assert ttgt.steps == gemm.steps


def test_candidates_are_ordered_by_predicted_time() -> None:
    (decision,) = plan_of("dca bd", "abc", a=40, b=24, c=30, d=40).considered
    times = [candidate.seconds for candidate in decision.candidates]
    assert times == sorted(times)
    assert sum(candidate.chosen for candidate in decision.candidates) == 1


@pytest.mark.parametrize("cpu", [HOST, COMPILED, NARROW_BLAS])
@pytest.mark.parametrize("most", [4, 12, 40])
def test_what_is_certain_to_lose_is_left_out_and_the_choice_is_the_same(
    cpu: Cpu, most: int
) -> None:
    chosen, fewer = Random(most), 0
    for _ in range(60):
        asked = pair(chosen, most)
        whole = make_plan(asked, machine=cpu)
        winner = next(ranked_plans(asked, PlanPreference(), cpu, every=False))
        assert (winner.steps, winner.slots, winner.seconds) == (
            whole.steps,
            whole.slots,
            whole.seconds,
        )
        counts = [len(each.considered[-1].candidates) for each in (winner, whole)]
        assert counts[0] <= counts[1]
        fewer += counts[0] < counts[1]
    assert fewer


def test_ranks_are_planned_apart_where_the_first_copies_an_operand() -> None:
    asked = operation("abc bac", "cba", a=3000, b=900, c=4)
    plans = list(islice(ranked_plans(asked, PlanPreference(), COMPILED), 3))
    assert [type(step) for step in plans[0].steps] == [Permute, Elementwise]
    for plan in plans:
        verify(plan)


PAIRS = ("klm kln lmn", "akb kcd dabc", "ab cd bdac", "lka lkcb labc")


def pair(chosen: Random, most: int) -> Contraction:
    """A product with its modes in any order."""
    a, b, d = chosen.choice(PAIRS).split()
    extents = {mode: chosen.randint(2, most) for mode in a + b}
    terms = f"{shuffled(chosen, a)} {shuffled(chosen, b)}"
    return operation(terms, shuffled(chosen, d), **extents)


def shuffled(chosen: Random, modes: str) -> str:
    return "".join(chosen.sample(modes, len(modes)))


def test_intermediates_are_laid_out_for_their_reader() -> None:
    """(ab,bc),cd: whatever the order, no step has to permute."""
    plan = plan_of("ab bc cd", "ad", a=50, b=60, c=70, d=80)
    assert [type(step) for step in plan.steps] == [Gemm, Gemm]


@pytest.mark.parametrize("extent", [4, 300])
@pytest.mark.parametrize(
    ("terms", "output"), [("ba bc dc de fe fg", "ga"), ("a ba cb dc", "d"), ("ab bc cd da", "")]
)
def test_chains_and_rings_of_matrices_need_no_copies(terms: str, output: str, extent: int) -> None:
    plan = plan_of(terms, output, **dict.fromkeys("abcdefg", extent))
    assert {type(step) for step in plan.steps} == {Gemm}


def test_descriptors_refuse_what_is_no_tensor() -> None:
    with pytest.raises(InvalidValueError, match="negative"):
        TensorDescriptor((2, -1))
    with pytest.raises(InvalidValueError, match=r"2 extents.*1 strides"):
        TensorDescriptor((2, 3), (1,))
    with pytest.raises(UnsupportedTypeError, match="float32"):
        TensorDescriptor((2, 3), None, "string")
    with pytest.raises(InvalidValueError, match="2 dimensions, 1 modes"):
        Operand(TensorDescriptor((2, 3)), (0,))
    asked = operation("ik kj", "ij", i=2, j=3, k=4)
    labels = tuple("ijk")
    wrong = Operand(TensorDescriptor((2, 5)), asked.inputs[0].modes)
    with pytest.raises(InvalidValueError, match="mode 'k': operand 0 has 5, operand 1 has 4"):
        make_plan(Contraction((wrong, asked.inputs[1]), asked.output, None, labels, "float64"))
    wrong = Operand(TensorDescriptor((9, 3)), asked.output.modes)
    with pytest.raises(InvalidValueError, match="output has extent 9 for mode 'i'"):
        make_plan(Contraction(asked.inputs, wrong, None, labels, "float64"))
    assert str(TensorDescriptor((2, 3))) == "float64[2,3]:[1,2]"


# --- the order of pairs ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["auto", "greedy", "optimal", True, False, [(1, 2), (0, 1)]])
def test_pairs_contract_everything(path: object) -> None:
    inputs = [frozenset(x) for x in ((0, 1), (1, 2), (2, 3))]
    pairs = pairs_of(inputs, frozenset((0, 3)), (5, 6, 7, 8), path)
    assert len(pairs) == 2
    assert pairs[-1].modes == {0, 3}


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1)])
def test_three_operands_are_multiplied_as_is_cheapest(order: tuple[int, int, int]) -> None:
    """(ab bc) cd takes abc + acd = 1800 multiplications, ab (bc cd) bcd + abd = 2800."""
    terms = [frozenset(x) for x in ((0, 1), (1, 2), (2, 3))]
    inputs = [terms[at] for at in order]
    first, _ = pairs_of(inputs, frozenset((0, 3)), (10, 5, 4, 40), "auto")
    assert first.modes == {0, 2}


@pytest.mark.parametrize(("extent", "searched"), [(2, False), (16, False), (32, True)])
def test_no_path_is_searched_for_products_as_quick_as_their_calls(
    extent: int, searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring of six: about 4 n^3 multiply-adds in 5 products, against 2^12 in each."""
    asked = []
    monkeypatch.setattr(
        "opt_einsum.paths.get_path_fn",
        lambda name, find=opt_einsum.paths.get_path_fn: asked.append(name) or find(name),
    )
    ring = [frozenset((at, (at + 1) % 6)) for at in range(6)]
    assert len(pairs_of(ring, frozenset(), (extent,) * 6, "auto")) == 5
    assert asked == ["greedy", "auto"][: 1 + searched]


def test_modes_shared_by_three_operands_survive_until_the_last() -> None:
    inputs = [frozenset(x) for x in ((0, 1), (0, 2), (0, 3))]
    first, second = pairs_of(inputs, frozenset((1, 2, 3)), (5, 6, 7, 8), [(0, 1), (0, 1)])
    assert 0 in first.modes
    assert second.modes == {1, 2, 3}


@pytest.mark.parametrize("path", [[(0, 3)], [(0, 0)], [()]])
def test_bad_paths_are_refused(path: object) -> None:
    with pytest.raises(InvalidValueError, match="distinct positions"):
        pairs_of([frozenset((0,))] * 3, frozenset(), (5,), path)


# --- the workspace --------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 6), st.integers(0, 6)), max_size=8))
def test_buffers_alive_together_do_not_overlap(raw: list[tuple[int, int, int]]) -> None:
    lifetimes = [Lifetime(n, min(a, b), max(a, b)) for n, a, b in raw]
    offsets, size = place(lifetimes)
    for i, (one, here) in enumerate(zip(lifetimes, offsets, strict=True)):
        assert here % ALIGNMENT == 0
        assert here + one.bytes <= size
        for two, there in list(zip(lifetimes, offsets, strict=True))[:i]:
            together = one.first <= two.last and two.first <= one.last
            apart = here + one.bytes <= there or there + two.bytes <= here
            assert apart or not together
    peak = max(
        (sum(x.bytes for x in lifetimes if x.first <= at <= x.last) for at in range(7)), default=0
    )
    assert peak <= size or not lifetimes


def test_buffers_share_memory_when_their_lives_do_not_meet() -> None:
    _, size = place([Lifetime(1000, 0, 1), Lifetime(1000, 2, 3), Lifetime(500, 1, 2)])
    assert size < 2000


def test_an_alignment_is_a_power_of_two_and_part_of_the_descriptor() -> None:
    plain = TensorDescriptor((3,), dtype="float32")
    assert plain == TensorDescriptor((3,), dtype="float32", alignment=4)
    assert str(plain) == "float32[3]:[1]"
    wide = TensorDescriptor((3,), dtype="float32", alignment=16)
    assert wide != plain
    assert str(wide) == "float32[3]:[1]@16"
    for alignment in (3, -4, 2.0, None, "16"):
        with pytest.raises(InvalidValueError, match="power of two"):
            TensorDescriptor((3,), dtype="float32", alignment=alignment)  # type: ignore[arg-type]


def test_networks_of_matrices_use_the_quicker_kernels() -> None:
    """BLAS with kernels for narrow vectors leaves large products to tiles, and keeps small ones."""
    for extent, machine, used in (
        (400, NARROW_BLAS, True),
        (400, COMPILED, False),
        (400, HOST, False),
        (20, NARROW_BLAS, False),
    ):
        chain = operation("ab bc cd", "ad", a=extent, b=extent, c=extent, d=extent)
        steps = make_plan(chain, machine=machine).steps
        assert len(steps) == 2
        assert all(isinstance(x, Gett) and isinstance(x.blocking, Tiles) for x in steps) == used
        assert all(isinstance(step, Gemm) for step in steps) != used
