"""Random calls of every verb, a fixed number of them; and the fuzzer finds what it is there for."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.fuzz import campaign
from tests.fuzz.campaign import FINDINGS, Finding, judgements, shrunk
from tests.fuzz.cases import Case, Tensor, Verb
from tests.fuzz.draw import Wishes, drawn
from tests.fuzz.expected import Estimate
from tests.fuzz.guard import GuardedMemory, GuardedPool, NumpyMemory
from tests.fuzz.perform import Bench, Wrong

CASES = int(os.environ.get("FUZZ_CASES", "200"))  # for each of four kinds
PRODUCT = Case(
    Verb.CONTRACT,
    ("ab", "bc"),
    "ac",
    (Tensor((3, 4), (32, 8), "float64", seed=1), Tensor((4, 5), (8, 32), "float64", seed=2)),
)


def assert_no_findings(numbers: range, seed: int, wishes: Wishes) -> None:
    found = [x for x in judgements(numbers, seed, wishes) if x.verdict in FINDINGS]
    assert not found, "\n".join(
        f"{x.verdict}: {x.message}\n  seed {seed} case {x.item}: {x.case(seed, wishes)}"
        for x in found
    )


@pytest.mark.parametrize("kernels", ["numba", "numpy"])
@pytest.mark.parametrize("limits", [True, False])
def test_random_calls(limits: bool, kernels: str) -> None:
    assert_no_findings(range(CASES), 1, Wishes(limits, (kernels,)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("limits", [True, False])
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_random_calls(limits: bool, seed: int) -> None:
    assert_no_findings(range(10_000), seed, Wishes(limits))


# --- what it finds --------------------------------------------------------------------------------


def test_a_case_depends_on_its_seed_and_number_only() -> None:
    wishes = Wishes()
    assert drawn(3, 8, wishes) == drawn(3, 8, wishes) != drawn(3, 9, wishes)


@pytest.fixture
def memory() -> GuardedMemory:
    return GuardedMemory()


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("beside", [-1, 100])
def test_what_is_written_beside_a_block_is_seen(
    memory: GuardedMemory, at_end: bool, beside: int
) -> None:
    memory.at_end = at_end
    block = memory.array(100, alignment=1, slack=8)
    address = block.ctypes.data
    ctypes.memset(address, 1, 100)
    del block
    assert memory.damaged == 0
    block = memory.array(100, alignment=1, slack=8)
    ctypes.memset(block.ctypes.data + beside, 1, 1)
    del block
    assert memory.damaged == 1


def test_numpy_and_pools_take_guarded_memory(memory: GuardedMemory) -> None:
    numpy_memory, pool = NumpyMemory(memory), GuardedPool(memory)
    with numpy_memory.guarded():
        x = np.empty(5)
        y = np.zeros((2, 3)) + 1
    z = pool.take(100)
    assert np.isnan(x).all()
    assert (y == 1).all()
    assert z.ctypes.data % 64 == 0
    assert all(memory.size(each.ctypes.data) == each.nbytes for each in (x, y, z))


TOUCH = """
from tests.fuzz.guard import GuardedMemory
memory = GuardedMemory()
memory.at_end = {at_end}
block = memory.array(100)
block.ctypes.data_as(__import__("ctypes").POINTER(__import__("ctypes").c_ubyte))[{place}]
"""


@pytest.mark.parametrize(("at_end", "place", "dies"), [(1, 99, 0), (1, 100, 1), (0, -1, 1)])
def test_the_pages_around_a_block_are_forbidden(at_end: int, place: int, dies: int) -> None:
    code = TOUCH.format(at_end=bool(at_end), place=place)
    done = subprocess.run([sys.executable, "-c", code], timeout=60, stderr=subprocess.PIPE)
    assert (done.returncode < 0) == bool(dies)


def test_a_wrong_element_is_seen() -> None:
    exact = Estimate(np.full((3, 4), 2.0), np.full((3, 4), 1e-15))
    found = np.full((3, 4), 2.0)
    assert exact.difference(found) == 0
    found[1, 2] += 1e-14
    assert exact.difference(found) > 5
    found[1, 2] = np.nan
    assert exact.difference(found) == np.inf


def spoiling(change: Callable[[np.ndarray, tuple[np.ndarray, ...]], None]) -> object:
    """contract, and then ``change`` to its result and operands."""
    import contract as ct

    original = ct.contract

    def spoiled(text: str, *operands: np.ndarray, **options: object) -> np.ndarray:
        result = original(text, *operands, **options)
        change(result, operands)
        return result

    return spoiled


def _result(result: np.ndarray, operands: tuple[np.ndarray, ...]) -> None:
    result[0, 0] += 1e-13


def _operand(result: np.ndarray, operands: tuple[np.ndarray, ...]) -> None:
    operands[0][0, 0] += 1e-13


@pytest.mark.parametrize(
    ("change", "said"), [(_result, "the error is"), (_operand, "operand 0 was changed")]
)
def test_a_spoiled_call_is_wrong(
    change: Callable[..., None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Bench().run(PRODUCT)
    monkeypatch.setattr("contract.contract", spoiling(change))
    with pytest.raises(Wrong, match=said):
        Bench().run(PRODUCT)


DYING = "import json; print(json.dumps(['begin', 0]), flush=True); import os; {end}"


@pytest.mark.parametrize(
    ("end", "verdict", "said", "patience"),
    [
        ("os.kill(os.getpid(), 11)", "crash", "SIGSEGV", 60),
        ("input(); input()", "hang", "1 seconds", 1),
    ],
)
def test_a_child_that_dies_or_hangs_is_a_finding(
    end: str, verdict: str, said: str, patience: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(errors: object) -> "subprocess.Popen[bytes]":
        code = [sys.executable, "-c", DYING.format(end=end)]
        return subprocess.Popen(
            code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0
        )

    monkeypatch.setattr(campaign, "_started", started)
    monkeypatch.setattr(campaign, "PATIENCE", patience)
    (found,) = judgements([PRODUCT])
    assert found.verdict == verdict
    assert said in found.message


def test_a_finding_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has the mode b of extent 3 or more is said to be wrong."""

    def judged(work: list[Case]) -> Iterator[Finding]:
        for case in work:
            wrong = case.extents.get("b", 0) > 2
            yield Finding(case, "wrong" if wrong else "right", "")

    monkeypatch.setattr(campaign, "judgements", judged)
    small = shrunk(PRODUCT).item
    assert isinstance(small, Case)
    assert (small.terms, small.extents) == (("b",), {"b": 3})
