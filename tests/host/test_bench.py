"""The benchmarks: a wrong result never counts, and what is printed and written is right."""

import json
from dataclasses import replace
from math import inf, isnan, nan, prod
from pathlib import Path

import numpy as np
import pytest

from bench import __main__ as command
from bench import peers, report
from bench.device import HOST, Ceilings, Host
from bench.library import Library
from bench.measure import Case, Facts, Outcome, Row, geometric_mean, measure
from bench.networks import NETWORKS
from bench.peers import contestants, find_peers
from bench.reference import exactly, reference_of, sampled_error, split
from bench.suites import (
    PAIN,
    SUITES,
    Choice,
    Work,
    case_of,
    changes,
    column_major,
    fitted,
    flops_of,
    in_turn,
    permutation,
    scaled,
    unwritten,
)

CEILINGS = Ceilings(flops=1e11, bandwidth=1e10)
NUMPY = Choice(find_peers(("numpy",), "host").found)
PRODUCT = Work("0 ij,jk->ik", "ij,jk->ik", {"i": 3, "j": 4, "k": 5}, seed=1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings without measuring them: a matter of seconds."""
    monkeypatch.setattr(Host, "ceilings", lambda self, dtype: CEILINGS)


def row_of(ours: float, *theirs: float, bound: float = 0.5) -> Row:
    """A row with these median seconds; NaN stands for a failed contestant."""
    outcomes = {
        f"contestant {at}": Outcome(1.0, (), failure="wrong")
        if isnan(seconds)
        else Outcome(1.0, (seconds,) * 5, error=0.0)
        for at, seconds in enumerate((ours, *theirs))
    }
    return Row(Facts("case"), outcomes, bound, 0.0)


# --- a suite, run as from the shell ---------------------------------------------------------------


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("mode", ["fixed", "free"])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_a_suite_prints_a_row_for_each_case(
    mode: str, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tccg", "--cases", "1,40", "--limit-gflop", "1e-4", "--mode", mode]
    assert command.main([*arguments, "--dtype", dtype]) == 0
    printed, progress = capsys.readouterr()
    assert "1 bda,dc->abc" in printed
    assert "40 gdab,efgc->abcdef" in printed
    assert "over 2 of 2 cases" in printed
    assert "FAILED" not in printed
    assert progress == ""


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("suite", "case"), [("overhead", "expression1"), ("network", "amplitude")])
def test_other_suites_run(suite: str, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([suite, "--cases", case]) == 0
    assert f"\n{case}" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_json_is_complete_and_strict(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    arguments = ["tccg", "--cases", "1", "--limit-gflop", "1e-4", "--json", str(target)]
    assert command.main(arguments) == 0
    found = json.loads(target.read_text(), parse_constant=pytest.fail)
    assert found["command"] == "python -m bench " + " ".join(arguments)
    assert found["date"].endswith("+00:00")
    assert found["machine"].keys() == {"cpu", "cores", "os"}
    assert found["versions"].keys() >= {"python", "contract", "numpy", "opt_einsum", "blas"}
    assert found["ceilings"] == {"flops": 1e11, "bandwidth": 1e10} == found["ceilings_after"]
    (row,) = found["rows"]
    names = {"contract", "numpy", "opt_einsum"}
    for part in ("seconds", "samples", "first_call", "error"):
        assert row[part].keys() == names
    assert all(len(samples) == 5 for samples in row["samples"].values())
    assert row["ratios"].keys() == names - {"contract"}
    assert row["ratio"] == min(row["ratios"].values()) == found["worst"]
    assert found["geometric_mean"] == pytest.approx(row["ratio"])
    assert row["failed"] == {}
    assert row["note"].startswith("scaled down: a 312 -> ")
    assert row["flops"] == 2 * prod(row["extents"].values()) <= 1e5


@pytest.mark.usefixtures("quick")
def test_a_run_without_right_rows_writes_null(tmp_path: Path) -> None:
    rows = (row_of(nan, 1.0, bound=nan),)
    run = report.Run("tccg", "fixed", "float64", 5, (), HOST, CEILINGS, rows=rows)
    report.write_json(tmp_path / "out.json", run)
    found = json.loads((tmp_path / "out.json").read_text(), parse_constant=pytest.fail)
    assert found["geometric_mean"] is None
    assert found["ceilings_after"] is None
    assert found["rows"][0]["ratio"] is None
    assert found["rows"][0]["failed"] == {"contestant 0": "wrong"}


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report.draw(tmp_path / "out.png", "title", [row_of(1.0, 2.0), row_of(nan, 1.0)])
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tccg", "--cases", "1,nowhere"], "Unknown cases nowhere"),
        (["tccg", "--cases", "1", "--peers", "nobody"], "Unknown peer 'nobody'"),
    ],
)
@pytest.mark.usefixtures("quick")
def test_unknown_names_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        command.main(arguments)


def test_fewer_than_five_samples_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["tccg", "--repeat", "4"])
    assert "at least 5 samples" in capsys.readouterr().err


# --- right and wrong ------------------------------------------------------------------------------


def test_a_wrong_peer_is_reported_and_does_not_count(
    monkeypatch: pytest.MonkeyPatch, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong() -> Library:
        def product(text, operands, path):
            return lambda: np.einsum(text, *operands) * (1 + 1e-9)

        return Library(product, np.asfortranarray)

    monkeypatch.setitem(peers.PEERS, "host", {**peers.PEERS["host"], "wrong": wrong})
    arguments = ["tccg", "--cases", "1", "--limit-gflop", "1e-4", "--peers", "numpy,wrong"]
    assert command.main(arguments) == 1
    printed = capsys.readouterr().out
    assert "FAILED 1 bda,dc->abc: wrong: wrong: relative error" in printed


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda d: d * (1 + 1e-9), "wrong: relative error"),
        (lambda d: d[:-1], "wrong: relative error inf"),
        (lambda d: np.where(d == d.max(), np.nan, d), "wrong: relative error nan"),
        (lambda d: np.ascontiguousarray(d), "not packed column-major"),
        (lambda d: d.missing, "AttributeError"),
    ],
)
def test_our_own_failure_leaves_no_ratio(spoil, why: str) -> None:
    right = case_of(PRODUCT, NUMPY)
    runs = {"ours": lambda: spoil(right.runs["contract"]()), "numpy": right.runs["numpy"]}
    row = measure(Case(Facts("spoilt"), runs, right.reference, packed=True), CEILINGS, 5)
    assert why in row.failures["ours"]
    assert row.outcomes["ours"].samples == ()
    assert row.failures.keys() == {"ours"}
    assert isnan(row.ratio)
    assert "FAILED" in report.line(row)


def test_one_wrong_entry_among_many_is_seen(rng: np.random.Generator) -> None:
    operands = [column_major(rng, shape, "float32") for shape in ((60, 50), (50, 70))]
    reference = reference_of("ij,jk->ik", operands)
    found = np.einsum("ij,jk->ik", *operands)
    assert reference.verdict(reference.error_of(found)) == ""
    found[17, 3] -= operands[0][17, 5] * operands[1][5, 3]  # one term left out of 50
    assert reference.verdict(reference.error_of(found)).startswith("wrong")


def test_a_doubtful_reference_judges_nobody() -> None:
    sure = case_of(PRODUCT, Choice()).reference()
    assert sure.verdict(0.0) == ""
    assert replace(sure, doubt=1e-3).verdict(0.0).startswith("no reference")
    assert replace(sure, doubt=nan).verdict(0.0).startswith("no reference")


def test_doubt_finds_a_wrong_reference(rng: np.random.Generator) -> None:
    operands = [column_major(rng, shape, "float64") for shape in ((3, 4), (4, 5))]
    right = np.einsum("ij,jk->ik", *operands)
    path = [(0, 1)]
    assert sampled_error("ij,jk->ik", operands, right, path, 0) <= 1e-14
    assert sampled_error("ij,jk->ik", operands, right + 1, path, 0) == pytest.approx(1)
    assert isnan(sampled_error("ij,jk->ik", operands, right * nan, path, 0))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("text", ["ab,bc->ca", "ab,ab->", "abc->b", "a,b->ab", "ab,bc,cd->ad"])
def test_references_agree_with_extended_precision(
    text: str, dtype: str, rng: np.random.Generator
) -> None:
    terms, _ = split(text)
    extents = dict(zip("abcd", (3, 4, 5, 6), strict=True))
    operands = [column_major(rng, [extents[x] for x in term], dtype) for term in terms]
    assert all(x.flags.f_contiguous and x.dtype == dtype for x in operands)
    reference = reference_of(text, operands)
    assert reference.doubt <= 1e-14
    assert 0 < reference.tolerance < 1e-4


def test_pure_movement_tolerates_nothing() -> None:
    values = np.arange(6.0).reshape(2, 3)
    assert exactly(values).verdict(exactly(values).error_of(values.copy())) == ""
    nearly = values.copy()
    nearly[1, 2] = np.nextafter(nearly[1, 2], 0)
    assert exactly(values).verdict(exactly(values).error_of(nearly)).startswith("wrong")


@pytest.mark.parametrize("name", ["numpy", "opt_einsum"])
def test_fixed_mode_packs_every_result_column_major(name: str, rng: np.random.Generator) -> None:
    operands = [column_major(rng, shape, "float64") for shape in ((3, 4), (4, 5))]
    fixed = contestants(find_peers((name,), "host").found, "fixed")
    assert list(fixed) == ["contract", name]
    for bind in fixed.values():
        found = bind("ij,jk->ki", operands, None)()
        assert found.flags.f_contiguous
        np.testing.assert_allclose(found, np.einsum("ij,jk->ki", *operands))


# --- arithmetic -----------------------------------------------------------------------------------


def test_the_geometric_mean() -> None:
    assert geometric_mean([1.0, 4.0, 16.0]) == pytest.approx(4.0)
    assert isnan(geometric_mean([]))


def test_the_ratio_is_to_the_best_right_peer() -> None:
    row = row_of(2.0, 8.0, nan, 6.0, bound=0.5)
    assert row.ratio == 3.0
    assert row.fraction == 0.25
    assert isnan(row_of(nan, 1.0).ratio)
    assert isnan(row_of(1.0).ratio)


def test_the_summary_names_mean_worst_and_failures() -> None:
    text = report.summary([row_of(1.0, 2.0), row_of(1.0, 8.0), row_of(nan, 1.0)])
    assert "geometric mean 4.00x over 2 of 3 cases, worst 2.00x" in text
    assert "FAILED case: contestant 0: wrong" in text


def test_the_bound_is_the_larger_of_the_two() -> None:
    assert CEILINGS.bound(1e11, 1e9) == 1.0
    assert Ceilings(1e12, 1e9).bound(1e11, 1e9) == 1.0
    assert isnan(CEILINGS.bound(0, 0))


def test_costs_count_real_operations_and_distinct_bytes() -> None:
    facts = case_of(PRODUCT, Choice(dtype="complex64")).facts
    assert facts.flops == 8 * 3 * 4 * 5
    assert facts.bytes == 8 * (12 + 20 + 15)


# --- work -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gflop", [1e-4, 0.01, 0.3, 8.0, inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scaled_extents_hold_their_bounds(gflop: float, dtype: str) -> None:
    cases = json.loads((Path(command.__file__).parent / "data/tccg48.json").read_text())["cases"]
    assert len(cases) == 48
    for each in cases:
        full = each["f32" if dtype == "float32" else "f64"]["extents"]
        extents = scaled(full, gflop)
        smallest = set(extents.values()) == {4}
        assert smallest or flops_of(extents) <= gflop * 1e9
        assert all(4 <= extents[x] <= full[x] and extents[x] % 4 == 0 for x in full)
        assert (extents == full) == (flops_of(full) <= gflop * 1e9) == (not changes(full, extents))


def test_scaling_takes_the_largest_factor() -> None:
    assert scaled({"a": 400, "b": 400, "c": 400}, 0.016) == {"a": 200, "b": 200, "c": 200}


def test_pain_fits_in_memory_and_says_what_was_scaled() -> None:
    text, full = PAIN[0]
    extents = fitted(text, full, 8, HOST.sizes.memory)
    assert changes(full, extents) == "scaled down: j 50000 -> 6250"
    assert all(fitted(text, full, 8, HOST.sizes.memory) == full for text, full in PAIN[1:])


def test_networks_are_closed_expressions_numpy_can_read() -> None:
    for name, text, extents in NETWORKS:
        terms, output = split(text)
        labels = "".join(terms)
        assert set(labels) == set(extents), name
        assert len(extents) <= 52
        assert all(labels.count(x) == (1 if x in output else 2) for x in extents), name


@pytest.mark.parametrize("suite", sorted(SUITES))
def test_ids_are_distinct_and_work_is_the_same_every_time(suite: str) -> None:
    entries = SUITES[suite](NUMPY)
    ids = [entry.id for entry in entries]
    assert len(set(ids)) == len(ids) > 0
    assert ids == [entry.id for entry in SUITES[suite](NUMPY)]
    assert not any("," in each or " " in each for each in ids)


def test_an_id_is_the_first_word_of_its_row() -> None:
    for suite in ("tccg", "overhead", "random", "reduce"):
        entry = SUITES[suite](replace(NUMPY, gflop=1e-4))[-1]
        assert entry.make().facts.name.split()[0] == entry.id


# --- entries that cannot be measured --------------------------------------------------------------


def test_an_entry_that_cannot_be_made_is_a_failed_row_and_the_rest_runs() -> None:
    entries = [
        command.Entry("0", lambda: 1 // 0),
        command.Entry("1", lambda: case_of(PRODUCT, NUMPY)),
    ]
    broken, right = command.measured(entries, HOST, CEILINGS, 5, "title")
    assert broken.failures == {"contract": "ZeroDivisionError: integer division or modulo by zero"}
    assert isnan(broken.ratio)
    assert right.failures == {}


def test_copies_are_used_in_turn() -> None:
    used: list[int] = []
    run = in_turn([lambda at=at: used.append(at) for at in range(3)])
    for _ in range(4):
        run()
    assert used == [0, 1, 2, 0]


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Library:
        raise ImportError("No module named 'jax'")

    monkeypatch.setitem(peers.PEERS, "host", {**peers.PEERS["host"], "jax": absent})
    found = find_peers(("numpy", "jax"), "host")
    assert list(found.found) == ["numpy"]
    assert found.missing == {"jax": "No module named 'jax'"}


def test_each_contestant_permutes_into_memory_of_its_own() -> None:
    case = permutation(0, "ab->ba", {"a": 3, "b": 4}, NUMPY)
    results = [run() for run in case.runs.values()]
    assert len(results) == 2
    assert not np.shares_memory(*results)
    values = case.reference().values
    assert all(np.array_equal(each, values) for each in results)
    assert np.isnan(unwritten(values)).all()
