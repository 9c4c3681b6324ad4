"""The runner of other libraries' tests: it runs them all, as a program without settings would."""

from pathlib import Path

import pytest

from tests.libraries import replaced

ASKS = """
import os

def test_that_nothing_is_set():
    assert not [name for name in os.environ if name.startswith("CONTRACT_")]
"""


def test_tests_that_cannot_be_collected_are_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(replaced.LIBRARIES, "missing", ("tests.pure.test_sizes", "no.such.tests"))
    with pytest.raises(RuntimeError, match="pytest ended with"):
        replaced.main(["missing"])


def test_other_libraries_do_not_run_with_the_settings_of_these_tests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("CALIBRATION", "CHECK", "COMPILE"):
        monkeypatch.delenv(f"CONTRACT_{name}")
    (tmp_path / "asks.py").write_text(ASKS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(replaced.LIBRARIES, "asking", ("asks",))
    assert replaced.main(["asking"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["asking", "1"]
