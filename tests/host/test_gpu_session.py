"""A session on a lent machine: nothing stops it, nothing that was done is lost."""

import json
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import gpu_session
from bench.gpu_session import Result, Session, Task, result_of


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """One whose folders are there."""
    for name in ("folder", "out"):
        (tmp_path / name).mkdir()
    return Session(tmp_path / "folder", tmp_path / "out", 1e-5, "cupy,torch", time.monotonic() + 60)


def task(code: str, seconds: float = 60, **more: str | Path) -> Task:
    """A task that runs Python code."""
    return Task("task", (sys.executable, "-c", code), seconds, **more)  # type: ignore[arg-type]


def archived(session: Session) -> dict[str, str]:
    """The files of the archive, where there is one."""
    if not (session.out / gpu_session.ARCHIVE).exists():
        return {}
    with tarfile.open(session.out / gpu_session.ARCHIVE) as archive:
        members = archive.getmembers()
        return {each.name: archive.extractfile(each).read().decode() for each in members}  # type: ignore[union-attr]


def test_a_task_is_logged_and_finds_the_checkout(session: Session) -> None:
    done = result_of(task("import bench, os; print(os.getcwd())"), session)
    assert done.status == "ok"
    assert (session.folder / "task.log").read_text().strip() == str(gpu_session.ROOT)


def test_failures_and_absence_are_named(session: Session) -> None:
    assert result_of(task("raise SystemExit(3)"), session).status == "exit status 3"
    assert result_of(task("", absent="no tool"), session).status == "no tool"
    late = Session(session.folder, session.out, end=time.monotonic() - 1)
    assert result_of(task(""), late).status == "left out: no time"


def test_what_is_set_for_a_task_is_set_for_it_alone(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONTRACT_HOPPER", raising=False)
    code = "import os; print(os.environ.get('CONTRACT_HOPPER'))"
    for environment, printed in (({"CONTRACT_HOPPER": "1"}, "1"), ({}, "None")):
        result_of(task(code, environment=environment), session)  # type: ignore[arg-type]
        assert (session.folder / "task.log").read_text().strip() == printed


def test_every_suite_takes_what_the_session_asks_of_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks' own commands, up to the first thing that needs a GPU."""

    def gpu(cutensor: Path | None) -> None:
        raise SystemExit("a GPU from here on")

    monkeypatch.setattr(command, "gpu", gpu)
    tasks = [each for part in gpu_session.PARTS.values() for each in part(session)]
    suites = [each for each in tasks if each.numbers]
    assert len(suites) == len({each.name for each in suites}) == 22
    for each in suites:
        arguments = each.command[each.command.index("bench") + 1 :]
        with pytest.raises(SystemExit, match="a GPU from here on"):
            command.main(arguments)


def test_every_tool_is_asked_for(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    tools = {
        each.name.split("-")[0]: each
        for part in gpu_session.PARTS.values()
        for each in part(session)
        if not each.numbers
    }
    parts = {"machine", "calls", "probes", "kernels", "corpus", "ncu"}
    checkers = {"memcheck", "racecheck", "synccheck", "initcheck"}
    assert tools.keys() == parts | checkers
    assert not any(each.absent for each in tools.values())
    paths = [Path(word) for word in tools["probes"].command if word.endswith(".py")]
    assert {path.stem for path in paths} == set(gpu_session.PROBES)


def test_a_task_that_hangs_is_stopped_with_its_children(session: Session, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    child = f"import time, pathlib; time.sleep(3); pathlib.Path({str(mark)!r}).touch()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert result_of(task(code, seconds=1), session).status == "stopped after 1 s"
    time.sleep(3)
    assert not mark.exists()


def test_what_a_running_task_wrote_is_in_the_archive(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_session, "REFRESHED", 0.2)
    code = "import time; print('begun', flush=True); time.sleep(60)"
    (session.folder / "earlier.json").write_text("{}")
    result_of(task(code, seconds=2), session)
    assert archived(session) == {"earlier.json": "{}", "task.log": "begun\n"}


@pytest.mark.parametrize("part", sorted(gpu_session.PARTS))
def test_a_session_killed_in_the_middle_loses_nothing(tmp_path: Path, part: int) -> None:
    """The part's own tasks, each of which prints its name; the third one hangs."""
    out, folder = tmp_path / "out", tmp_path / "folder"
    code = f"""
import sys
from dataclasses import replace
from bench import gpu_session
part = gpu_session.PARTS[{part}]
def harmless(session):
    for at, each in enumerate(part(session)):
        code = f"import time; print({{each.name!r}}, flush=True); time.sleep({{20 * (at == 2)}})"
        yield replace(each, command=(sys.executable, "-c", code), absent="", numbers=None)
gpu_session.PARTS = {{{part}: harmless}}
gpu_session.REFRESHED = 0.2
gpu_session.main()
"""
    arguments = [sys.executable, "-c", code, str(out), "--folder", str(folder), "--part", str(part)]
    session, end = Session(folder, out), time.monotonic() + 60
    with subprocess.Popen(
        arguments, cwd=gpu_session.ROOT, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        done = [running.stdout.readline().split(":") for _ in range(2)]
        while len(archived(session)) < 3 and time.monotonic() < end:
            time.sleep(0.1)
        running.send_signal(signal.SIGKILL)
    names = [name for name, _ in done]
    assert [status.strip() for _, status in done] == ["ok", "ok"]
    found = archived(session)
    assert len(found) == 3
    assert all(found[f"{name}.log"] == f"{name}\n" for name in names)


def test_the_table_shows_what_a_stopped_suite_wrote(tmp_path: Path) -> None:
    numbers = tmp_path / "out.json"
    empty = Result(Task("tccg", (), 1, numbers), "stopped after 1 s")
    assert "0.80x" not in gpu_session.table([empty])
    rows = [{"failed": {}, "seconds": {}} for _ in range(3)]
    rows[0] |= {"predictions": {"contract": {"seconds": 2.0}}, "seconds": {"contract": 1.0}}
    rows[1]["failed"] = {"contract": "wrong"}
    means = {"geometric_mean": 1.25, "worst": 0.8, "fraction_geometric_mean": None}
    numbers.write_text(json.dumps({"rows": rows, **means}))
    head, row = gpu_session.table([empty]).splitlines()
    assert len(head.split("status")[0]) == len(row.split("stopped")[0])
    wanted = "tccg 0 3 1 1.25x 0.80x - 2.00x stopped after 1 s"
    assert row.split() == wanted.split()


def test_old_numbers_are_not_taken_for_new(session: Session) -> None:
    numbers = session.folder / "out.json"
    numbers.write_text("{}")
    assert result_of(task("", numbers=numbers), session).status == "ok"
    assert not numbers.exists()


def test_tasks_are_chosen_by_part_and_by_the_beginning_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def record(each: Task, session: Session) -> Result:
        ran.append(each.name)
        return Result(each, "ok")

    monkeypatch.setattr(gpu_session, "result_of", record)
    where = [str(tmp_path / "out"), "--folder", str(tmp_path / "folder")]
    monkeypatch.setattr(sys, "argv", ["gpu_session.py", *where, "calls", "tccg", "--part", "4"])
    assert gpu_session.main() == 0
    kinds = ("float32", "float64", "float32-TF32", "bfloat16")
    dozens = [f"{each}-12-cases" for each in kinds]
    without = ("float32-TF32-without-wgmma", "bfloat16-without-wgmma")
    assert ran == [f"tccg-{each}" for each in (*dozens, *kinds, *without)]
    assert "tccg-float64" in capsys.readouterr().out


def test_cutensor_comes_in_pieces(session: Session, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "wheel", "w") as wheel:
        wheel.writestr("cutensor/lib/libcutensor.so.2", "a library")
    data = (tmp_path / "wheel").read_bytes()
    third = len(data) // 3
    parts = (data[:third], data[third : 2 * third], data[2 * third :])
    for at in (2, 1, 3):
        assert "--cutensor" not in next(gpu_session.products(session)).command
        piece = tmp_path / f"cutensor.{at}-of-3"
        piece.write_bytes(parts[at - 1])
        said = gpu_session.add_piece(piece, session.folder)
    assert said == "cuTENSOR is here, of 3 pieces"
    library = session.folder / "cutensor" / "lib" / "libcutensor.so.2"
    assert library.read_text() == "a library"
    assert "--cutensor" in next(gpu_session.products(session)).command
