"""The benchmarks: a wrong result never counts, and what is printed and written is right."""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from math import inf, isnan, nan, prod
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest

import contract
from bench import __main__ as command
from bench import busy, candidates, peers, planning, programs, report
from bench import measure as bench_measure
from bench.device import HOST, Array, Ceilings, Host, Run, Sizes
from bench.draws import EXTENTS, FLOPS, LARGEST, MODES, Drawn, contractions
from bench.expressions import flops_of
from bench.library import Library, along, in_letters
from bench.measure import Case, Facts, Outcome, Row, geometric_mean, measure
from bench.networks import NETWORKS
from bench.peers import contestants, find_peers
from bench.reference import exactly, promised, reference_of, sampled_error, split
from bench.suites import (
    PAIN,
    SUITES,
    Choice,
    Entry,
    Work,
    case_of,
    changes,
    column_major,
    fitted,
    in_turn,
    permutation,
    scaled,
    unwritten,
)
from contract import ComputeType
from contract.errors import UnsupportedTypeError
from contract.host.kernels import numpy_kernels
from contract.host.steps import products as host_products
from contract.session.handle import default_handle
from tests.reference import SMALLEST, UNIT_ROUNDOFF, roundoffs

CEILINGS = Ceilings(flops=1e11, bandwidth=1e10)
NUMPY = Choice(find_peers(("numpy",), "host").found)
PRODUCT = Work("0 ij,jk->ik", "ij,jk->ik", {"i": 3, "j": 4, "k": 5}, seed=1)


def few_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default those that are quickly imported."""
    monkeypatch.setattr(peers, "DEFAULT", {"host": ("numpy", "opt_einsum")})
    monkeypatch.setattr(peers, "OF_SUITE", {})


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads a clock, so none waits for threads to sleep or for a processor to wake."""
    monkeypatch.setattr(bench_measure, "sleep", lambda seconds: None)
    monkeypatch.setattr(bench_measure, "AWAKE", 0)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings without measuring them, peers that are quickly imported."""
    monkeypatch.setattr(Host, "ceilings", lambda self, dtype, compute: CEILINGS)
    few_peers(monkeypatch)


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
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_every_way_to_call_stands_beside_what_numpy_needs(
    dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = "row-major,three,c,operators,out,permute,reduce,binary,tensordot,view"
    assert command.main(["overhead", "--cases", ways, "--dtype", dtype]) == 0
    header, *rows = capsys.readouterr().out.splitlines()[1:-3]
    assert header.split()[-5:] == ["contract", "numpy", "beyond", "ratio", "others"]
    assert [row.split()[0] for row in rows] == ways.split(",")
    assert all(len(re.findall(r"[+-]?[\d.]+ [mun]?s", row)) == 3 for row in rows)


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
    for part in ("seconds", "spread", "first_call", "error"):
        assert row[part].keys() == names
    for name, (least, most) in row["spread"].items():
        assert 0 < least <= row["seconds"][name] <= most
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


@pytest.mark.parametrize("flops", [0.0, 1e9])
def test_the_picture_has_a_roofline_where_there_are_flops(flops: float, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    facts = Facts("case", flops=flops, bytes=1e8)
    rows = [replace(row_of(*each), facts=facts) for each in ((1.0, 2.0), (nan, 1.0), (1.0, nan))]
    report.draw(tmp_path / "out.svg", "title", rows, CEILINGS)
    drawn = (tmp_path / "out.svg").read_text()
    assert "times as fast as the best peer" in drawn
    assert ("100.0 GFLOP/s product, 10.0 GB/s copy" in drawn) == bool(flops)


# --- results without a clock ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suite", "case"),
    [
        ("tccg", "33"),
        ("random", "0"),
        ("permute", "1"),
        ("elementwise", "5"),
        ("reduce", "4"),
        ("network", "ring-small"),
        ("overhead", "replay1"),
        ("pain", "5"),
        ("pain", "0"),
        ("pain", "view"),
        ("pain", "repeat"),
        ("candidates", "17"),
    ],
)
def test_a_check_times_nothing(
    suite: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(Host, "sizes", Sizes(1e-4, memory=1 << 16, permuted=1 << 14, growth=0.05))
    monkeypatch.setattr(Host, "ceilings", None)
    monkeypatch.setattr(Host, "clock", None)
    monkeypatch.setattr(Host, "call_clock", None)
    few_peers(monkeypatch)
    target = tmp_path / "out.json"
    assert command.main([suite, "--cases", case, "--check", "--json", str(target)]) == 0
    printed = capsys.readouterr().out
    assert "every result is right in 1 of 1 cases" in printed
    assert " right" in printed.splitlines()[1]
    assert "FAILED" not in printed
    found = json.loads(target.read_text(), parse_constant=pytest.fail)
    assert found["repeat"] == 0
    assert found["ceilings"] is found["ceilings_after"] is found["geometric_mean"] is None
    (row,) = found["rows"]
    assert len(row["error"]) >= 2
    assert all(error is not None for error in row["error"].values())
    assert not any(row["spread"].values())


@pytest.fixture
def wrong_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A handle that plans anew, for BLAS, which is wrong in one entry of every product.

    Peers and references multiply with numpy.dot.
    """
    monkeypatch.setenv("CONTRACT_HOST_KERNELS", "numpy")
    right = np.matmul

    def wrong(*arguments, **options):
        product = right(*arguments, **options)
        product.flat[0] *= 1 + 1e-9
        return product

    for module in (host_products, numpy_kernels):
        monkeypatch.setattr(module, "matmul", wrong)
    default_handle.cache_clear()
    yield
    default_handle.cache_clear()


@pytest.mark.usefixtures("quick", "wrong_products")
@pytest.mark.parametrize("suite", ["tccg", "candidates"])
@pytest.mark.parametrize("more", [[], ["--check"]])
def test_a_wrong_kernel_fails_its_row(suite: str, more: list[str], tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    arguments = [suite, "--cases", "12", "--limit-gflop", "1e-3", "--json", str(target), *more]
    assert command.main(arguments) == 1
    (row,) = json.loads(target.read_text())["rows"]
    assert row["failed"]["contract"].startswith("wrong: relative error")
    assert row["seconds"]["contract"] is row["ratio"] is None


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


# --- compute types --------------------------------------------------------------------------------


def rounding(bits: int) -> Library:
    """A library that keeps this many bits of its inputs."""

    def kept(x: np.ndarray) -> np.ndarray:
        fraction, exponent = np.frexp(x.astype(np.float64))
        return np.ldexp(np.round(fraction * 2**bits) / 2**bits, exponent)

    def product(text, operands, path):
        return lambda: np.einsum(text, *map(kept, operands)).astype(operands[0].dtype)

    return Library(product, np.asfortranarray)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("dtype", "compute", "bits", "wrong"),
    [
        ("float32", "", 24, False),
        ("float32", "", 11, True),
        ("float32", "TF32", 11, False),
        ("float32", "TF32", 8, True),
        ("float32", "3XTF32", 11, True),
        ("float32", "16BF", 8, False),
        ("float16", "", 11, False),
        ("float16", "32F", 8, True),
        ("bfloat16", "", 5, True),
        ("complex64", "9X16BF", 24, False),
    ],
)
def test_results_are_held_to_the_compute_type(
    dtype: str, compute: str, bits: int, wrong: bool, tmp_path: Path, monkeypatch, capsys
) -> None:
    known = {**peers.PEERS["host"], "rounding": lambda: rounding(bits)}
    if dtype == "complex64":  # rounding one part after the other
        known["rounding"] = peers.PEERS["host"]["numpy"]
    monkeypatch.setitem(peers.PEERS, "host", known)
    target = tmp_path / "out.json"
    arguments = ["tccg", "--cases", "1", "--limit-gflop", "1e-3", "--peers", "rounding"]
    arguments += ["--dtype", dtype, "--json", str(target)]
    assert command.main([*arguments, *(["--compute", compute] if compute else [])]) == wrong
    assert f"tccg {dtype} {compute}".rstrip() + " fixed" in capsys.readouterr().out
    found = json.loads(target.read_text())
    assert found["compute"] == (compute or None)
    assert list(found["rows"][0]["failed"]) == ["rounding"] * wrong


@pytest.mark.parametrize(
    ("dtype", "compute"),
    [("float32", "TF32"), ("float16", "32F"), ("complex64", "3XTF32"), ("float64", "8XINT8")],
)
def test_the_promise_is_the_documented_one(dtype: str, compute: str) -> None:
    values, sizes = np.array([0.0, 1.0, -3.0], dtype), np.array([2.0, 1.0, 40.0])
    u_in, u_sum = roundoffs(dtype, compute)
    found = promised([dtype, dtype], values, sizes, 50, ComputeType(compute))
    wanted = (2 * u_in + (50 + 2) * u_sum) * sizes + 2 * UNIT_ROUNDOFF[dtype] * np.abs(values)
    np.testing.assert_allclose(
        found, wanted * (4 if dtype == "complex64" else 1) + SMALLEST.get(dtype, 0)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tccg", "--dtype", "float64", "--compute", "TF32"], "supported: 64F, 32F, 8XINT8"),
        (["tccg", "--dtype", "bfloat16", "--compute", "16F"], "supported: 32F, 16BF"),
        (["permute", "--dtype", "float32", "--compute", "TF32"], "permute has none"),
    ],
)
def test_compute_types_that_there_are_not_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        command.main(arguments)


def test_zeros_are_wrong_where_nothing_is_promised(rng: np.random.Generator) -> None:
    operands = [column_major(rng, shape, "float16") for shape in ((4, 3000), (3000, 4))]
    reference = reference_of("ij,jk->ik", operands, 0, ComputeType.F16)
    exact = np.einsum("ij,jk->ik", *(x.astype(np.float64) for x in operands))
    assert reference.verdict(reference.error_of(exact.astype(np.float16))) == ""
    assert reference.verdict(reference.error_of(0 * exact)).startswith("wrong")


def test_the_smallest_numbers_are_as_exact_as_can_be(rng: np.random.Generator) -> None:
    """Products below the normal numbers of float16, rounded to the spacing of the others."""
    operands = [column_major(rng, (30, 40), "float16") for _ in range(3)]
    text = "ab,ab,ab->ab"
    exact = np.einsum(text, *(x.astype(np.float64) for x in operands))
    reference = reference_of(text, operands)
    found = exact.astype(np.float16)
    assert reference.verdict(reference.error_of(found)) == ""
    found.flat[np.argmin(np.abs(exact))] += 4 * SMALLEST["float16"]
    assert reference.verdict(reference.error_of(found)).startswith("wrong")


def test_our_call_gets_the_compute_type(rng: np.random.Generator) -> None:
    operands = [column_major(rng, (3, 3), "float64") for _ in range(2)]
    ours = contestants({}, "fixed", ComputeType.TF32)["contract"]("ij,jk->ik", operands, None)
    with pytest.raises(UnsupportedTypeError, match="TF32"):
        ours()


def test_a_library_is_told_the_compute_type_or_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[ComputeType | None] = []

    def refuse(compute: ComputeType | None) -> None:
        raise ImportError("no such compute type")

    def library(allow) -> Library:
        return Library(lambda text, operands, path: lambda: None, lambda x: x, allow=allow)

    known = {"told": lambda: library(told.append), "refusing": lambda: library(refuse)}
    monkeypatch.setitem(peers.PEERS, "host", known)
    found = find_peers(("told", "refusing"), "host", ComputeType.TF32)
    assert told == [ComputeType.TF32]
    assert list(found.found) == ["told"]
    assert found.missing == {"refusing": "no such compute type"}


# --- candidates -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_every_candidate_is_predicted_checked_and_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.json"
    arguments = ["candidates", "--cases", "1", "--limit-gflop", "1e-4", "--dtype", "float32"]
    assert command.main([*arguments, "--compute", "TF32", "--json", str(target)]) == 0
    (row,) = json.loads(target.read_text())["rows"]
    names = list(row["predictions"])
    assert names == ["contract", *(f"rank {rank}" for rank in range(1, len(names)))]
    assert len(names) > 2
    assert row["seconds"].keys() == row["error"].keys() == set(names)
    predicted = [each["seconds"] for each in row["predictions"].values()]
    assert predicted == sorted(predicted)
    assert len({each["reason"] for each in row["predictions"].values()}) > 1
    assert f"{len(names)}/{len(names)}" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("spoilt", "name"), [(0, "contract"), (2, "rank 2")])
def test_a_wrong_candidate_fails_its_row(
    spoilt: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = []
    right = candidates.call

    def call(handle, plan, operands, result):
        bound.append(plan)
        run = right(handle, plan, operands, result)
        return (lambda: result) if len(bound) - 1 == spoilt else run  # nothing is written

    monkeypatch.setattr(candidates, "call", call)
    target = tmp_path / "out.json"
    arguments = ["candidates", "--cases", "1", "--limit-gflop", "1e-4", "--json", str(target)]
    assert command.main(arguments) == 1
    (row,) = json.loads(target.read_text())["rows"]
    assert row["failed"].keys() == {name}
    assert "nan" in row["failed"][name]


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


@pytest.mark.parametrize("wrong_at", [0, 3, 6])
def test_a_result_that_becomes_wrong_does_not_count(wrong_at: int) -> None:
    """The first call, five samples, and the last call."""
    right = case_of(PRODUCT, NUMPY)
    results = iter(range(7))

    def run():
        return right.runs["contract"]() + (next(results) >= wrong_at)

    row = measure(Case(Facts("cached"), {"ours": run}, right.reference), CEILINGS, 5)
    assert row.failures["ours"].startswith("wrong: relative error")
    assert row.failures["ours"].endswith("after right results") == (wrong_at > 0)
    assert row.outcomes["ours"].samples == ()


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


@pytest.mark.filterwarnings("default")  # of libraries that are imported
@pytest.mark.parametrize("name", peers.PEERS["host"])
@pytest.mark.parametrize("path", [None, [(1, 2), (0, 1)]])
def test_fixed_mode_packs_every_result_column_major(
    name: str, path: list[tuple[int, int]] | None, rng: np.random.Generator
) -> None:
    """With labels that are no letters where there is a path, as networks have them."""
    pytest.importorskip(name)
    label = "\u00e9" if path else "l"
    text = f"ij,jk{label},{label}->ki"
    operands = [column_major(rng, shape, "float64") for shape in ((3, 4), (4, 5, 6), (6,))]
    fixed = contestants(find_peers((name,), "host").found, "fixed")
    assert list(fixed) == ["contract", name]
    for bind in fixed.values():
        found = bind(text, operands, path)()
        assert found.flags.f_contiguous
        np.testing.assert_allclose(found, np.einsum("ij,jkl,l->ki", *operands))


def test_a_path_is_followed_in_letters(rng: np.random.Generator) -> None:
    seen: list[str] = []

    def call(text, *operands):
        seen.append(text)
        return np.einsum(text, *operands)

    operands = [rng.random(shape) for shape in ((3, 4), (4, 5), (5, 6))]
    found = along(call, "\u0101x,xy,yz->\u0101z", operands, [(1, 2), (0, 1)])()
    np.testing.assert_allclose(found, operands[0] @ operands[1] @ operands[2])
    assert len(seen) == 2
    assert all(map(str.isascii, seen))
    assert in_letters("zy,y->z") == "ab,b->a"


@pytest.mark.parametrize("device", ["host", "gpu"])
@pytest.mark.parametrize("suite", sorted(SUITES))
def test_default_peers_are_known(device: str, suite: str) -> None:
    names = peers.default_peers(device, suite)
    assert len(names) > 2
    assert set(names) <= peers.PEERS[device].keys()


def test_a_library_without_the_type_is_missing() -> None:
    library = Library(lambda text, operands, path: lambda: None, lambda x: x, dtypes=("float32",))
    known = {"narrow": lambda: library}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(peers.PEERS, "host", known)
        assert find_peers(("narrow",), "host", dtype="float16").missing == {
            "narrow": "it has no float16"
        }
        assert list(find_peers(("narrow",), "host", dtype="float32").found) == ["narrow"]


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


def test_the_worst_cases_of_a_long_suite_are_listed() -> None:
    facts = Facts("case", extents={"a": 3, "b": 4})
    rows = [replace(row_of(1.0, 9.0, 1.0 + at), facts=facts) for at in range(21)]
    text = report.summary(rows[::-1])
    assert "the worst 10:" in text
    (_, listed) = text.split("the worst 10:\n")
    assert listed.splitlines()[1] == "  2.00x case: 1 s, contestant 2 2 s; a=3 b=4"
    assert [line.split()[0] for line in listed.splitlines()[:10]] == [
        *(f"{1.0 + at:.2f}x" for at in range(9)),
        "9.00x",
    ]
    assert "the worst" not in report.summary(rows[:20])


def test_how_often_the_planner_chose_well_is_counted() -> None:
    rows = [row_of(1.0, 2.0), row_of(1.09, 1.0, 3.0), row_of(1.2, 1.0), row_of(nan, 1.0)]
    planned = [replace(row, predictions=dict.fromkeys(row.outcomes)) for row in rows]  # type: ignore[arg-type]
    alone = replace(row_of(1.0), predictions={"contestant 0": None})  # type: ignore[dict-item]
    text = candidates.summary([*planned, alone])
    assert "chosen within 10% of the best in 2 of 4 cases" in text


def test_the_bound_is_the_larger_of_the_two() -> None:
    assert CEILINGS.bound(1e11, 1e9) == 1.0
    assert Ceilings(1e12, 1e9).bound(1e11, 1e9) == 1.0
    assert isnan(CEILINGS.bound(0, 0))


def test_a_floor_is_timed_in_turn_and_is_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its median seconds, whatever the ceilings say; without it they do."""
    calls: list[str] = []
    spent = {"contract": [4.0, 5.0, 6.0], "floor": [1.0, 3.0, 2.0]}

    def run(name: str) -> Array:
        calls.append(name)
        return np.ones(2)

    def clock(_: Host, run: Run, count: int) -> float:
        run()
        return spent[calls[-1]].pop(0)

    monkeypatch.setattr(bench_measure, "wake", lambda run: None)
    monkeypatch.setattr(bench_measure, "SETTLED", 0.0)
    monkeypatch.setattr(Host, "clock", clock)
    case = Case(
        Facts("copy", bytes=1e10),
        {"contract": partial(run, "contract")},
        lambda: exactly(np.ones(2)),
        floor=partial(run, "floor"),
    )
    row = measure(case, CEILINGS, 3)
    assert calls == ["contract", *["contract", "floor"] * 3, "contract"]
    assert list(row.outcomes) == ["contract"]
    assert row.floor == (1.0, 3.0, 2.0)
    assert row.bound == 2.0
    assert row.fraction == 0.4
    spent["contract"] = [4.0] * 3
    assert measure(replace(case, floor=None), CEILINGS, 3).bound == 1.0


def test_the_floor_of_permutations_copies_all_memory() -> None:
    case = permutation(0, "abc->cab", {"a": 3, "b": 4, "c": 5}, NUMPY)
    assert case.floor is not None
    copied, right = case.floor(), case.reference().values
    assert np.array_equal(np.sort(copied), np.sort(right.ravel()))
    assert not np.array_equal(copied, right.ravel(order="F"))


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


def terms_of(each: Drawn) -> list[str]:
    """The labels of both operands, and of the result."""
    terms, output = split(each.text)
    return [*terms, output]


def test_random_contractions_are_within_their_bounds() -> None:
    drawn = list(contractions())
    assert len(drawn) == 100
    assert drawn == list(contractions())
    for each in drawn:
        assert FLOPS[0] <= flops_of(each.extents) <= FLOPS[1]
        assert each.largest <= LARGEST
        assert MODES[0] <= len(each.extents) <= MODES[1]
        assert EXTENTS[0] <= min(each.extents.values()) <= max(each.extents.values()) <= EXTENTS[1]
        a, b, d = terms_of(each)
        m, n, k = set(a) - set(b), set(b) - set(a), set(a) - set(d)
        assert m
        assert n
        assert m | n <= set(d)
        assert k == set(b) - set(d) != set()
    batched = [each for each in drawn if set.intersection(*map(set, terms_of(each)))]
    assert 10 < len(batched) < 50
    assert {len(each.extents) for each in drawn} == set(range(3, 9))


def test_pain_fits_in_memory_and_says_what_was_scaled() -> None:
    text, full = PAIN[0]
    extents = fitted(text, full, 8, HOST.sizes.memory)
    assert changes(full, extents) == "scaled down: j 50000 -> 6250"
    assert all(fitted(text, full, 8, HOST.sizes.memory) == full for text, full in PAIN[1:])


def test_networks_are_closed_expressions_of_every_size() -> None:
    assert len(NETWORKS) >= 30
    for each in NETWORKS:
        terms, output = split(each.text)
        labels = "".join(terms)
        assert set(labels) == set(each.extents), each.name
        assert all(x in output or labels.count(x) > 1 for x in each.extents), each.name
        assert min(each.extents.values()) >= 2
    assert {2, 64} <= {n for each in NETWORKS for n in each.extents.values()}
    assert {each.complex for each in NETWORKS} == {True, False}
    assert max(len(each.extents) for each in NETWORKS) > 200


@pytest.mark.parametrize("suite", sorted(SUITES))
def test_ids_are_distinct_and_work_is_the_same_every_time(suite: str) -> None:
    entries = SUITES[suite](NUMPY)
    ids = [entry.id for entry in entries]
    assert len(set(ids)) == len(ids) > 0
    assert ids == [entry.id for entry in SUITES[suite](NUMPY)]
    assert not any("," in each or " " in each for each in ids)


@pytest.mark.parametrize("count", [1, 11, 12, 13, 48, 57])
def test_quick_takes_few_entries_from_everywhere(count: int) -> None:
    entries = [Entry(str(at), lambda: None) for at in range(count)]  # type: ignore[arg-type]
    few = command.thinned(entries)
    assert min(count, 6) <= len(few) <= 12
    assert few[0] is entries[0]
    assert int(few[-1].id) >= count * 3 // 4 - 1


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


@pytest.mark.parametrize("group", planning.GROUPS)
def test_what_is_planned_is_a_call_that_is_right(group: planning.Group) -> None:
    for each in group.make(Random(1))[:3]:
        if len(each.operands) < 7:
            wanted = np.einsum(each.text, *each.operands)
            np.testing.assert_allclose(contract.contract(each.text, *each.operands), wanted)
        assert len(each.operands) == 1 + each.text.count(",")


def test_planning_prints_a_row_for_each_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(("planning", "--cases", "pairs", "--repeat", "1")) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in printed[1:]] == [["pairs", "numpy"], ["pairs", "auto"]]


def test_programs_are_run_by_both_and_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    holder = SimpleNamespace(einsum=np.einsum)
    x = np.arange(6.0).reshape(2, 3)
    calls: list[object] = []

    def ours(*given: object) -> object:
        calls.append(given)
        return contract.einsum(*given)

    def made() -> tuple[Callable[[], object], Callable[[], AbstractContextManager[object]]]:
        run = partial(lambda: holder.einsum("ij,kj->ik", x, x))
        return run, lambda: programs.replaced([holder], {"einsum": ours})

    def missing() -> NoReturn:
        raise ImportError("no such library")

    known = programs.Program("here", made), programs.Program("not", missing)
    monkeypatch.setattr(programs, "PROGRAMS", known)
    assert command.main(("programs", "--repeat", "2")) == 0
    missed, _, row = capsys.readouterr().out.splitlines()
    assert missed == "missing: not: no such library"
    assert row.split()[0] == "here"
    assert row.split()[-4:-2] == ["1", "0"]
    assert len(calls) == 5
    assert holder.einsum is np.einsum


def test_a_program_whose_results_differ_is_refused() -> None:
    results = iter((1.0, 2.0))
    with pytest.raises(ValueError, match=r"2\.0 where NumPy finds 1\.0"):
        programs.measured("x", lambda: next(results), nullcontext, 1)


# --- beside busy processes ------------------------------------------------------------------------


def test_busy_prints_a_row_for_each_case(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(busy, "ROUND_SECONDS", 0)
    monkeypatch.setattr(busy, "SETTLED", 0)
    asked = ["busy", "--suites", "random", "--few", "2", "--limit-gflop", "0.001", "--busy", "1"]
    assert command.main([*asked, "--rounds", "1"]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("random 0 ")
    assert second.startswith("random 50 ")
    assert last.endswith("of 2")


def test_busy_processes_run_when_they_are_told_and_then_end() -> None:
    with busy.processes(2) as others:
        with busy.running(others[:1]):
            os.kill(others[0], 0)
    for each in others:
        with pytest.raises(ProcessLookupError):
            os.kill(each, 0)


def test_who_is_hurt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "usable_cores", lambda: 2)

    def slowed(ours: float, numpy: float) -> busy.Slowed:
        quiet = {peers.OURS: 1.0, "numpy": 1.0}
        return busy.Slowed("case", {0: quiet, 2: {peers.OURS: ours, "numpy": numpy}})

    assert not slowed(2.4, 1.0).is_hurt(2)  # half the time of two cores
    assert slowed(2.6, 1.0).is_hurt(2)
    assert not slowed(4.0, 4.0).is_hurt(2)
    assert slowed(10.0, 4.0).is_hurt(2)
