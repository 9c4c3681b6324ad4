"""Bars: on a terminal only, where somebody asked or the work takes a while."""

import io
import sys

import numpy as np
import pytest

import contract as ct

X = np.ones((20, 30))
CHAIN = ",".join(f"{chr(97 + at)}{chr(98 + at)}" for at in range(20)) + "->au"
MATRICES = [np.eye(4)] * 20


class Terminal(io.StringIO):
    """What shows what is written to it at once."""

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace stderr within a test: between its phases pytest puts its own there."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    return made


def test_a_bar_for_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    found = ct.contract("ij,kj->ik", X, X, slices={"j": 5, "i": 2}, progress=True)
    assert (found == 30).all()
    assert "/10" in terminal.getvalue()
    assert "slice" in terminal.getvalue()


def test_a_bar_for_a_long_path(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    expression = ct.contract_expression(CHAIN, *[(4, 4)] * 20, progress=True, optimize="greedy")
    np.testing.assert_array_equal(expression(*MATRICES), np.eye(4))
    assert f"/{len(expression.plan.steps)}" in terminal.getvalue()
    assert "step" in terminal.getvalue()


@pytest.mark.parametrize("progress", [None, False])
def test_nothing_for_quick_work(monkeypatch: pytest.MonkeyPatch, progress: bool | None) -> None:
    terminal = on_terminal(monkeypatch)
    ct.contract("ij,kj->ik", X, X, slices={"j": 5}, progress=progress)
    ct.contract(CHAIN, *MATRICES, progress=progress)
    assert terminal.getvalue() == ""


def test_nothing_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    ct.contract("ij,kj->ik", X, X, slices={"j": 5}, progress=True)
    assert capsys.readouterr().err == ""


def test_a_bar_that_was_asked_for_needs_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ct.NotSupportedError, match="needs tqdm"):
        ct.contract("ij,kj->ik", X, X, slices={"j": 5}, progress=True)
    ct.contract("ij,kj->ik", X, X, slices={"j": 5})
