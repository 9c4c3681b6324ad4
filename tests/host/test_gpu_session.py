"""A session on a lent machine: nothing stops it, and its table says what became of each part."""

import json
import sys
import time
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import gpu_session
from bench.gpu_session import Part, Result, result_of


def part(code: str, seconds: float = 60, **more: str | Path) -> Part:
    """A part that runs Python code."""
    return Part("part", (sys.executable, "-c", code), seconds, **more)  # type: ignore[arg-type]


def status(each: Part, out: Path, seconds: float = 60) -> str:
    """What becomes of a part in a session with that many seconds left."""
    return result_of(each, out, time.monotonic() + seconds).status


def test_a_part_is_logged_and_finds_the_checkout(tmp_path: Path) -> None:
    assert status(part("import bench, os; print(os.getcwd())"), tmp_path) == "ok"
    assert (tmp_path / "part.log").read_text().strip() == str(gpu_session.ROOT)


def test_failures_and_absence_are_named(tmp_path: Path) -> None:
    assert status(part("raise SystemExit(3)"), tmp_path) == "exit status 3"
    assert status(part("", absent="no tool"), tmp_path) == "no tool"
    assert status(part(""), tmp_path, seconds=-1) == "left out: no time"


def test_what_is_set_for_a_part_is_set_for_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONTRACT_HOPPER", raising=False)
    code = "import os; print(os.environ.get('CONTRACT_HOPPER'))"
    for environment, printed in (({"CONTRACT_HOPPER": "1"}, "1"), ({}, "None")):
        assert status(part(code, environment=environment), tmp_path) == "ok"  # type: ignore[arg-type]
        assert (tmp_path / "part.log").read_text().strip() == printed


def test_every_suite_takes_what_the_session_asks_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts' own commands, up to the first thing that needs a GPU."""

    def gpu(cutensor: Path | None) -> None:
        raise SystemExit("a GPU from here on")

    monkeypatch.setattr(command, "gpu", gpu)
    for each in gpu_session.suites(tmp_path, None, 1e-5):
        arguments = each.command[each.command.index("bench") + 1 :]
        with pytest.raises(SystemExit, match="a GPU from here on"):
            command.main(arguments)


def test_a_part_that_hangs_is_stopped_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    child = f"import time, pathlib; time.sleep(3); pathlib.Path({str(mark)!r}).touch()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert status(part(code, seconds=1), tmp_path) == "stopped after 1 s"
    time.sleep(3)
    assert not mark.exists()


def test_the_table_shows_what_a_stopped_suite_wrote(tmp_path: Path) -> None:
    numbers = tmp_path / "out.json"
    empty = Result(Part("tccg", (), 1, numbers), "stopped after 1 s")
    assert "0.80x" not in gpu_session.table([empty])
    rows = [{"failed": {}}, {"failed": {"contract": "wrong"}}, {"failed": {"cupy": "wrong"}}]
    means = {"geometric_mean": 1.25, "worst": 0.8, "fraction_geometric_mean": None}
    numbers.write_text(json.dumps({"rows": rows, **means}))
    head, row = gpu_session.table([empty]).splitlines()
    assert len(head.split("status")[0]) == len(row.split("stopped")[0])
    assert row.split() == [
        "tccg",
        "0",
        "3",
        "1",
        "1.25x",
        "0.80x",
        "-",
        *"stopped after 1 s".split(),
    ]


def test_old_numbers_are_not_taken_for_new(tmp_path: Path) -> None:
    numbers = tmp_path / "out.json"
    numbers.write_text("{}")
    assert status(part("", numbers=numbers), tmp_path) == "ok"
    assert not numbers.exists()


def test_parts_are_chosen_by_the_beginning_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def record(each: Part, out: Path, end: float) -> Result:
        ran.append(each.name)
        return Result(each, "ok")

    monkeypatch.setattr(gpu_session, "result_of", record)
    monkeypatch.setattr(sys, "argv", ["gpu_session.py", str(tmp_path), "tccg", "calls"])
    assert gpu_session.main() == 0
    kinds = ("float32", "float64", "float32-TF32", "bfloat16")
    by_hopper = ("float32-TF32", "bfloat16", "float16")
    suites = [*kinds, *(f"{kind}-hopper" for kind in by_hopper)]
    assert ran == ["calls", *(f"tccg-{suite}" for suite in suites)]
    assert "tccg-float64" in capsys.readouterr().out
