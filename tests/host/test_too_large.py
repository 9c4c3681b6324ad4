"""What no memory holds is refused with both numbers, before anything is prepared for it."""

import string
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract.cli.commands import main
from contract.host.executor import HostExecutor
from contract.support.memory_size import ADDRESSABLE_BYTES

# Arrays of any extents that take 8 bytes.
LONG, SQUARE = np.broadcast_to(1.0, (1 << 40,)), np.broadcast_to(1.0, (1 << 24, 1 << 24))
FOREIGN = np.broadcast_to(np.array(1, ">f8"), (1 << 24, 1 << 24))
MILLION, BILLION = 10**6, 10**12

UNADDRESSABLE: list[Callable[[], Any]] = [
    lambda: ct.contract("i,j->ij", LONG, LONG),
    lambda: ct.contract("i,j->ij", LONG, LONG, order="K", memory_limit=1000),
    lambda: ct.contract("i,j,k->ijk", LONG, LONG, LONG),
    lambda: ct.einsum("i,j->ij", LONG, LONG),
    lambda: ct.tensordot(SQUARE, SQUARE, 0),
    lambda: ct.elementwise_binary("i,j->ij", LONG, LONG),
    lambda: ct.permute("i->i", LONG, padding=((1 << 60, 1 << 60),)),
    lambda: ct.contract_expression("ij,jk->ik", (BILLION, BILLION), (BILLION, BILLION)),
    lambda: ct.contract_expression("i,j->ij", (BILLION,), (BILLION,)),
]
SCARCE: list[Callable[[], Any]] = [
    lambda: ct.contract("ij,ij->ij", SQUARE, SQUARE),
    lambda: ct.contract("ij,jk->ik", SQUARE, SQUARE),
    lambda: ct.contract("ij->", FOREIGN),
    lambda: ct.contract("ij,jk,kl->il", SQUARE, SQUARE, SQUARE, memory_limit="80%"),
    lambda: ct.einsum("ij,jk", SQUARE, SQUARE),
    lambda: ct.permute("ij->ji", SQUARE),
    lambda: ct.permute("i->i", np.ones(3), padding=((1 << 50, 0),)),
    lambda: ct.reduce("ijk->ij", np.broadcast_to(1.0, (1 << 22, 1 << 22, 2))),
    lambda: ct.elementwise_binary("ij,ij->ij", SQUARE, SQUARE),
    lambda: ct.elementwise_trinary("ij,ij,ij->ij", SQUARE, SQUARE, SQUARE),
]


@pytest.mark.parametrize("case", range(len(UNADDRESSABLE)))
def test_no_array_has_so_many_elements(case: int) -> None:
    with pytest.raises(ct.InvalidValueError, match=rf"at most {ADDRESSABLE_BYTES} bytes: .* has"):
        UNADDRESSABLE[case]()


@pytest.mark.parametrize("case", range(len(SCARCE)))
def test_memory_is_looked_at_before_anything_is_prepared(
    case: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(HostExecutor, "load")
    with pytest.raises(ct.InsufficientWorkspaceError, match=r"needs \d{10,} bytes .*; \d+ bytes"):
        SCARCE[case]()


@pytest.mark.parametrize("dtype", ["float64", "float16", "complex64", "int64", "bool", "object"])
def test_plans_of_any_size_are_quickly_prepared(handle: ct.Handle, dtype: str) -> None:
    """Nothing is listed block by block before it is run: these would take hours, or all memory."""
    options: dict[str, Any] = {"dtype": dtype, "handle": handle}
    plain, deep = [(MILLION, MILLION)] * 2, [(100, 10**15), (10**15, 100)]
    for text, shapes in (
        ("ij,jk->ik", plain),
        ("ij,jk->ik", deep),
        ("ij,ij->ij", plain),
        ("ij,jk->i", plain),
        ("bij,bjk->bik", [(10**10, 3, 3)] * 2),
        ("ijk->kji", [(10**5, 10**5, 10**4)]),
        ("ij,jk,kl,lm->im", plain * 2),
    ):
        assert ct.contract_expression(text, *shapes, **options).plan.steps


def test_intermediates_beyond_all_addresses_are_cut() -> None:
    """The path multiplies what shares no mode: 10^24 elements, in slices of a few."""
    shapes, path = [(MILLION, MILLION)] * 4, ((0, 2), (0, 1), (0, 1))
    cut = ct.contract_expression("ij,jk,kl,lm->", *shapes, optimize=path)
    assert "sliced" in str(cut)
    with ct.Handle() as handle, pytest.raises(ct.InsufficientWorkspaceError, match="addresses"):
        handle.plan(cut.plan.operation, ct.PlanPreference(path=path))


def test_a_path_without_bounds() -> None:
    """From left to right twenty vectors make a result of 10^240 elements before they are summed."""
    letters = string.ascii_letters[:20]
    text = ",".join(letters * 2) + "->"
    with pytest.raises(ct.InvalidValueError, match=r"fewer than 2\^256 elements: one has 2\^797"):
        ct.contract_expression(text, *[(BILLION,)] * 40, optimize=False)
    assert "FLOP" in str(ct.contract_expression(text, *[(BILLION,)] * 40))


def test_candidates_are_measured_where_memory_allows() -> None:
    patient = ct.PlanPreference(algo=ct.Algo.DEFAULT_PATIENT)
    with pytest.raises(ct.InsufficientWorkspaceError, match=r"needs \d+ bytes for operands of"):
        ct.contract("ij,j->i", SQUARE, SQUARE[0], preference=patient)


def test_what_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may give less than it says: the error is still one of the tree."""
    with ct.Handle(kernels="numpy") as handle:
        monkeypatch.setattr(type(handle.arrays), "available_bytes", lambda self: None)
        with pytest.raises(ct.InsufficientWorkspaceError, match="refuses 2251799813685248 bytes"):
            ct.contract("ij,ij->ij", SQUARE, SQUARE, handle=handle)


def test_explain_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "i,j->ij", f"i={BILLION},j={BILLION}"]) == 2
    assert "contract: error: A tensor has at most" in capsys.readouterr().err
    letters = string.ascii_letters[:34]
    extents = ",".join(f"{letter}={BILLION}" for letter in letters)
    assert main(["explain", f"{','.join(letters)}->", extents]) == 0
    assert "naive 3.40e+391 EFLOP" in capsys.readouterr().out
