"""The command line: results on files, refusals in one line, files that survive refusals."""

import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import ml_dtypes
import numpy as np
import pytest

import contract
from contract import Handle
from contract.cli import array_files as files
from contract.cli import demo
from contract.cli.array_files import ArrayFile, read
from contract.cli.commands import main
from contract.errors import InvalidValueError
from contract.host.executor import HostExecutor
from contract.machines.constants import constants, with_constants
from contract.machines.cpu import HOST
from contract.session import calibrating
from contract.session.calibrating import Calibration, Choices
from contract.session.model_fit import CHECKS
from contract.storage import plans as plan_files

ROOT = Path(contract.__file__).parents[1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with A.npy (row-major), B.npy (column-major), both.npz."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((4, 5, 6)), np.asfortranarray(rng.standard_normal((7, 5)))
    np.save("A.npy", a)
    np.save("B.npy", b)
    np.savez_compressed("both.npz", A=a, B=b)
    return tmp_path


def expected():
    return np.einsum("abc,kb->ac", np.load("A.npy"), np.load("B.npy"))


def refused(capsys, *arguments):
    """The message of a refusal: exit code 2, one line on stderr, nothing on stdout."""
    assert main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("contract: error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def run_module(*arguments, cwd, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} | options.pop("env", {})
    return subprocess.run(
        [sys.executable, "-m", "contract", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        timeout=120,
        check=False,
        **options,
    )


# --- results ---------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["F", "C", "K"])
@pytest.mark.parametrize("sources", [("A.npy", "B.npy"), ("both.npz:A", "both.npz:B")])
def test_result_is_written(folder, capsys, order, sources):
    assert main(["abc,kb->ac", *sources, "-o", "C.npy", "--order", order]) == 0
    assert capsys.readouterr() == ("", "")
    result = np.load("C.npy")
    np.testing.assert_allclose(result, expected(), rtol=1e-12)
    if order != "K":
        assert result.flags[f"{order}_CONTIGUOUS"]


def test_options_may_stand_between_the_files(folder):
    assert main(["-o", "C.npy", "abc , kb -> ac", "A.npy", "--optimize", "greedy", "B.npy"]) == 0
    np.testing.assert_allclose(np.load("C.npy"), expected(), rtol=1e-12)


def test_an_expression_may_begin_with_its_arrow(folder):
    np.save("s.npy", np.float64(2.5))
    assert main(["->", "s.npy", "-o", "t.npy"]) == 0
    assert np.load("t.npy")[()] == 2.5


def test_archives_are_made_and_joined(folder):
    before = np.load("both.npz")["A"]
    assert main(["abc,kb->ac", "both.npz:A", "B.npy", "-o", "both.npz:C"]) == 0
    assert main(["abc->cab", "both.npz:A", "-o", "both.npz:B"]) == 0
    with np.load("both.npz") as archive:
        assert sorted(archive.files) == ["A", "B", "C"]
        np.testing.assert_array_equal(archive["A"], before)
        np.testing.assert_array_equal(archive["B"], before.transpose(2, 0, 1))
    assert main(["abc->abc", "both.npz:A", "-o", "one.npz"]) == 0
    assert main(["abc->abc", "one.npz", "-o", "same.npy"]) == 0
    np.testing.assert_array_equal(np.load("same.npy"), before)


def test_input_may_be_the_output(folder, monkeypatch):
    monkeypatch.setattr(files, "MAP_ABOVE", 0)
    before = np.load("A.npy")
    assert main(["abc->cba", "A.npy", "-o", "A.npy"]) == 0
    np.testing.assert_array_equal(np.load("A.npy"), before.T)


@pytest.mark.parametrize("above", [0, 1 << 30])
@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<c16", "<i4", "|b1", "<f2"])
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (5,), ()])
def test_read_gives_the_array_mapped_or_not(tmp_path, monkeypatch, above, dtype, shape):
    monkeypatch.setattr(files, "MAP_ABOVE", above)
    array = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5, dtype, order="F")
    np.save(tmp_path / "x.npy", array)
    got = files.read(ArrayFile(tmp_path / "x.npy"))
    np.testing.assert_array_equal(got, array)
    assert type(got) is np.ndarray
    assert got.dtype == array.dtype.newbyteorder("=")
    assert got.dtype.isnative
    assert got.flags.f_contiguous


def test_small_result_is_printed_whole(folder, capsys):
    assert main(["abc,kb->ac", "A.npy", "B.npy"]) == 0
    out = capsys.readouterr().out
    assert "4 x 6 (column-major)" in out
    assert f"{np.linalg.norm(expected()):.12g}" in out
    printed = out[out.index("[[") :].replace("[", " ").replace("]", " ")
    np.testing.assert_allclose(np.fromstring(printed, sep=" "), expected().ravel(), rtol=1e-5)


def test_large_result_is_summed_up(folder, capsys):
    assert main(["abc->abc", "A.npy"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 4
    values = out.splitlines()[-1].split()[1:4]
    np.testing.assert_allclose([float(x) for x in values], np.load("A.npy")[:3, 0, 0], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int64", "bool", "complex64", "float16"])
def test_every_kind_of_number_is_printed(folder, capsys, dtype):
    np.save("x.npy", np.ones((9, 8), dtype))
    assert main(["ab->ba", "x.npy"]) == 0
    out = capsys.readouterr().out
    assert f"dtype   {dtype}" in out
    assert "8.48528137424" in out


def test_norm_of_float16_does_not_overflow(folder, capsys):
    np.save("x.npy", np.full((2, 2), 6e4, "float16"))
    assert main(["ab->ba", "x.npy"]) == 0
    assert "120000" in capsys.readouterr().out.replace("1.2e+05", "120000")


def test_bfloat16_is_explained_and_read_on_demand(folder, capsys):
    np.save("x.npy", np.arange(6.0).reshape(2, 3).astype(ml_dtypes.bfloat16))
    assert "--bfloat16" in refused(capsys, "ab->ba", "x.npy", "-o", "y.npy")
    assert main(["ab->ba", "x.npy", "-o", "y.npy", "--bfloat16"]) == 0
    assert "raw 2-byte items" in capsys.readouterr().err
    result = np.load("y.npy").view(ml_dtypes.bfloat16).astype(float)
    np.testing.assert_array_equal(result, np.arange(6.0).reshape(2, 3).T)


def test_plan_is_printed_for_files_and_for_extents(folder, capsys):
    assert main(["abc,kb->ac", "A.npy", "B.npy", "-o", "C.npy", "--explain"]) == 0
    with_times = capsys.readouterr().out
    assert " measured\n" in with_times
    assert Path("C.npy").exists()
    assert main(["explain", "abc,kb->ac", "a=64, b=32", "c=8,k=16", "--dtype", "float32"]) == 0
    without = capsys.readouterr().out
    assert without.startswith("abc,kb->ac\na = 64, b = 32, k = 16, c = 8\n")
    assert " measured" not in without


def test_demo_prints_its_table(capsys):
    assert main(["demo", "--occupied", "3", "--virtual", "4", "--repeat", "1"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "pp ladder" in out
    assert "abef,efij->abij" in out


def test_demo_that_finds_an_error_exits_with_1(capsys, monkeypatch):
    monkeypatch.setattr(demo, "MAX_ITERATIONS", 1)
    assert main(["demo", "--occupied", "3", "--virtual", "4", "--repeat", "1"]) == 1
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["explain", "--help"], ["demo", "--help"]])
def test_help_exits_with_0(capsys, arguments):
    assert main(arguments) == 0
    assert "usage: contract" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("contract ")


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "expression"),
        (["abc,kb->ac"], ""),
        (["abc,kb->ac", "A.npy"], ""),
        (["ab->ba", "A.npy"], ""),
        (["abc,kc->ab", "A.npy", "B.npy"], ""),
        (["abc->abz", "A.npy"], ""),
        (["abc->", "missing.npy"], "missing.npy: No such file"),
        (["abc->", "."], "directory"),
        (["abc->", "both.npz"], "both.npz:NAME; it has A, B"),
        (["abc->", "both.npz:Q"], "'Q'; it has A, B"),
        (["abc->", "both.npz:"], "name of an array is missing"),
        (["abc->abc", "A.npy", "-o", "no/C.npy"], "does not exist"),
        (["abc->abc", "A.npy", "-o", "C.txt"], ".npy or .npz"),
        (["abc->abc", "A.npy", "-o", "/dev/null"], ".npy or .npz"),
        (["abc->abc", "A.npy", "--order", "X"], "--order"),
        (["abc->abc", "A.npy", "--compute-type", "33F"], "3XTF32"),
        (["abc,kb->ac", "A.npy", "B.npy", "--compute-type", "16F"], "64F"),
        (["abc,kb,kb->ac", "A.npy", "B.npy", "B.npy", "--optimize", "nonsense"], "nonsense"),
        (["abc->abc", "A.npy", "--memory-limit", "-5"], ""),
        (["abc->abc", "A.npy", "--memory-limit", "1.5XiB"], "1.5XiB"),
        (["abc->abc", "A.npy", "--explode"], "--explode"),
        (["explain"], "expression"),
        (["explain", "abc,kb->ac", "a=3"], "b, c, k"),
        (["explain", "ab", "a=3,b=4,q=1"], "q"),
        (["explain", "ab", "a=3,b=4", "a=3"], "two extents: 3 and 3"),
        (["explain", "ab", "a=3,b=-4"], "b=-4"),
        (["explain", "ab", "a=3,b=4.5"], "b=4.5"),
        (["explain", "ab", "a=3,b"], "'b'"),
        (["explain", "ab", "ab=3"], "ab=3"),
        (["explain", "a...", "a=3"], "ellipsis"),
        (["explain", "ab->az", "a=3,b=3"], "z"),
        (["explain", "a", "a=3", "--dtype", "object"], "object"),
        (["demo", "--size", "huge"], "huge"),
        (["demo", "--virtual", "1"], "2 virtual orbitals"),
        (["demo", "--occupied", "0"], "above 0"),
        (["demo", "--repeat", "x"], "x"),
        (["demo", "--virtual", "5000"], "the machine has"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_calls_are_refused_in_one_line(folder, capsys, arguments, reason):
    assert reason in refused(capsys, *arguments)


class Trap:
    """A pickle of this creates the file when it is loaded."""

    def __reduce__(self):
        return Path.touch, (Path("loaded"),)


def object_npy():
    np.save("bad.npy", np.array([Trap()], object), allow_pickle=True)


def plain_pickle():
    Path("bad.npy").write_bytes(pickle.dumps(Trap(), protocol=2))


def text_file():
    Path("bad.npy").write_text("1 2 3\n")


def empty_file():
    Path("bad.npy").write_bytes(b"")


def truncated_data():
    Path("bad.npy").write_bytes(Path("A.npy").read_bytes()[:-1])


def truncated_header():
    Path("bad.npy").write_bytes(Path("A.npy").read_bytes()[:40])


def huge_extents():
    good = Path("A.npy").read_bytes()
    Path("bad.npy").write_bytes(
        good.replace(b"(4, 5, 6), }         ", b"(9999999999, 99999999), }")
    )


def negative_extents():
    Path("bad.npy").write_bytes(Path("A.npy").read_bytes().replace(b"(4, 5, 6)", b"(-4,5,-6)"))


def unclosed_bracket():
    good = Path("A.npy").read_bytes()
    Path("bad.npy").write_bytes(good.replace(b"(4, 5, 6), }", b"(4, 5, 6, } "))


def unknown_type():
    good = Path("A.npy").read_bytes()
    Path("bad.npy").write_bytes(good.replace(b"'<f8'", b"[{}] "))


def unknown_version():
    Path("bad.npy").write_bytes(b"\x93NUMPY\x09\x00" + bytes(100))


def strings():
    np.save("bad.npy", np.array(["a", "b"]))


def records():
    np.save("bad.npy", np.zeros(3, [("x", "f8"), ("y", "i4")]))


def truncated_archive():
    Path("bad.npy").write_bytes(Path("both.npz").read_bytes()[:-30])


def damaged_archive():
    with zipfile.ZipFile("both.npz") as archive:
        start = archive.getinfo("A.npy").header_offset
    data = bytearray(Path("both.npz").read_bytes())
    data[start + 150 : start + 170] = bytes(20)
    Path("bad.npy").write_bytes(data)


def test_a_header_with_any_byte_changed_is_read_or_refused(folder):
    good = Path("A.npy").read_bytes()
    for at in range(128):
        for byte in b"\0([{'\"\\\n9-x#\xff":
            Path("bad.npy").write_bytes(good[:at] + bytes([byte]) + good[at + 1 :])
            with suppress(InvalidValueError), catch_warnings():
                simplefilter("ignore")  # of syntax that is legal and odd
                assert read(ArrayFile(Path("bad.npy"))).nbytes <= len(good)


def archive_of_text():
    with zipfile.ZipFile("bad.npy", "w") as archive:
        archive.writestr("A.npy", "no array")


def archive_without_arrays():
    with zipfile.ZipFile("bad.npy", "w") as archive:
        archive.writestr("readme.txt", "no array")


def archive_of_objects():
    np.savez("bad", A=np.array([Trap()], object))
    Path("bad.npz").rename("bad.npy")


@pytest.mark.parametrize(
    "damage",
    [
        *(object_npy, plain_pickle, text_file, empty_file, truncated_data, truncated_header),
        *(huge_extents, negative_extents, unknown_version, strings, records),
        *(unclosed_bracket, unknown_type),
        *(truncated_archive, damaged_archive, archive_of_text, archive_without_arrays),
        archive_of_objects,
    ],
    ids=lambda damage: damage.__name__,
)
@pytest.mark.parametrize("above", [0, 1 << 30])
def test_bad_files_are_refused_and_nothing_is_unpickled(folder, capsys, monkeypatch, damage, above):
    monkeypatch.setattr(files, "MAP_ABOVE", above)
    damage()
    address = "bad.npy" if damage is not damaged_archive else "bad.npz:A"
    if damage is damaged_archive:
        Path("bad.npy").rename("bad.npz")
    assert "bad.np" in refused(capsys, "...->...", address)
    assert not Path("loaded").exists()


# --- files survive ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["ab->ba", "A.npy", "-o", "both.npz"],
        ["abc,kc->ab", "A.npy", "B.npy", "-o", "both.npz:A"],
        ["abc->abc", "missing.npy", "-o", "both.npz"],
    ],
)
def test_a_refused_call_leaves_the_old_output(folder, capsys, arguments):
    before = Path("both.npz").read_bytes()
    refused(capsys, *arguments)
    assert Path("both.npz").read_bytes() == before
    assert sorted(os.listdir()) == ["A.npy", "B.npy", "both.npz"]


@pytest.mark.parametrize("output", ["A.npy", "both.npz", "both.npz:A"])
@pytest.mark.parametrize(
    ("failure", "code"), [(OSError(28, "No space left on device"), 2), (KeyboardInterrupt(), 130)]
)
def test_a_failed_write_leaves_the_old_output(folder, capsys, monkeypatch, output, failure, code):
    def fail(stream, array, allow_pickle):
        stream.write(b"half of it")
        raise failure

    before = {name: Path(name).read_bytes() for name in os.listdir()}
    monkeypatch.setattr(files.np.lib.format, "write_array", fail)
    assert main(["abc->cba", "A.npy", "-o", output]) == code
    assert capsys.readouterr().err.count("\n") == 1
    assert {name: Path(name).read_bytes() for name in os.listdir()} == before


def test_a_damaged_archive_is_not_written_into(folder, capsys):
    Path("both.npz").write_bytes(b"PK but no archive")
    assert "damaged" in refused(capsys, "abc->abc", "A.npy", "-o", "both.npz:C")
    assert Path("both.npz").read_bytes() == b"PK but no archive"


def test_protected_outputs_are_refused(folder, capsys, monkeypatch):
    monkeypatch.setattr(files.os, "access", lambda path, mode: False)  # root may do everything
    assert "may not be written" in refused(capsys, "abc->abc", "A.npy", "-o", "C.npy")
    assert "write-protected" in refused(capsys, "abc->abc", "A.npy", "-o", "B.npy")


def test_irregular_outputs_are_refused(folder, capsys):
    os.mkfifo("pipe.npy")
    Path("folder.npy").mkdir()
    assert "not a regular file" in refused(capsys, "abc->abc", "A.npy", "-o", "pipe.npy")
    assert "not a regular file" in refused(capsys, "abc->abc", "A.npy", "-o", "folder.npy")


def test_links_are_followed_and_permissions_kept(folder):
    Path("B.npy").chmod(0o640)
    Path("link.npy").symlink_to("B.npy")
    assert main(["abc->cba", "A.npy", "-o", "link.npy"]) == 0
    assert Path("link.npy").is_symlink()
    assert np.load("B.npy").shape == (6, 5, 4)
    assert Path("B.npy").stat().st_mode & 0o777 == 0o640


# --- processes -------------------------------------------------------------------------------


def test_module_runs_as_a_program(folder):
    done = run_module("abc,kb->ac", "A.npy", "B.npy", "-o", "C.npy", cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    np.testing.assert_allclose(np.load("C.npy"), expected(), rtol=1e-12)
    done = run_module("abc,kb->ac", "A.npy", cwd=folder)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.startswith(b"contract: error: ")
    assert done.stderr.count(b"\n") == 1


def test_output_nobody_reads_is_no_error(folder):
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "contract", "abc->abc", "A.npy"]
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, env=environment, timeout=120, check=False
    )
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_stdout_is_one_line(folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "contract", "abc->abc", "A.npy"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env=environment, timeout=120, check=False
        )
    assert done.returncode == 2
    assert done.stderr == b"contract: error: No space left on device\n"


def test_demo_in_a_terminal_without_unicode(folder):
    done = run_module(
        *("demo", "--occupied", "2", "--virtual", "3", "--repeat", "1"),
        cwd=folder,
        env={"PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0
    assert done.stderr == b""
    assert b"-----" in done.stdout


# --- plans on disk ---------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A cache directory with two plans for one device, which the environment names."""
    monkeypatch.setenv("CONTRACT_CACHE", str(tmp_path / "plans"))
    identity = plan_files.Identity("Xeon", "AVX-512", 2)
    store = plan_files.PlanStore(plan_files.store_path(tmp_path / "plans", identity), identity)
    for text, shapes, seconds in (
        ("ab,bc,cd->ad", ((4, 5), (5, 6), (6, 7)), None),
        ("ab->b", ((4, 5),), 2e-6),
    ):
        plan = contract.contract_expression(text, *shapes).plan
        assert store.add(plan_files.Record.of(contract.PlanPreference(), plan, seconds))
    store.save()
    return tmp_path / "plans"


def test_kept_plans_are_shown(kept, capsys):
    assert main(["cache", "path"]) == 0
    assert capsys.readouterr().out == f"{kept}\n"
    assert main(["cache", "show"]) == 0
    title, head, first, second = capsys.readouterr().out.splitlines()
    assert title.startswith("Xeon (AVX-512, 2 units): 2 plans, ")
    assert "0:00:0" in title
    assert head.split() == ["operation", "extents", "type", "decided", "measured"]
    assert first.split(maxsplit=3) == [
        *("ab,bc,cd->ad", "a=4,b=5,c=6,d=7", "float64"),
        "candidate 0, path ((0, 1), (0, 1))",
    ]
    assert second.split() == ["ab->b", "a=4,b=5", "float64", "candidate", "0", "2", "us"]


def test_a_file_that_is_refused_is_shown_with_its_reason(kept, capsys):
    (path,) = kept.glob("plans-*.json")
    path.write_text(path.read_text().replace('"schema":1', '"schema":7'))
    assert main(["cache", "show"]) == 0
    assert capsys.readouterr().out == (
        f"refused: {path}: a file of another schema: 7, this is 1.\n"
    )


def test_only_plans_are_removed(kept, capsys):
    (kept / "other.json").write_text("of somebody else")
    (kept / ".contract-0.tmp").write_text("of a writer that was killed")
    assert main(["cache", "clear", "--directory", str(kept)]) == 0
    assert capsys.readouterr().out == f"2 files removed from {kept}\n"
    assert sorted(each.name for each in kept.iterdir()) == [".lock", "other.json"]
    assert main(["cache", "show"]) == 0
    assert capsys.readouterr().out == f"no plans in {kept}\n"


def test_the_users_directory_is_meant_where_none_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("CONTRACT_CACHE", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / name)
    assert main(["cache", "path"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'contract'}\n"
    assert "invalid choice: 'list'" in refused(capsys, "cache", "list")


def test_calibration_is_kept_where_it_chooses_better_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faster = with_constants(HOST, {"memory_bandwidth": 2 * HOST.memory_bandwidth})
    found = [Calibration(faster, Choices((1.5, 1.0)), Choices((1.5, 1.2)))]
    monkeypatch.setattr("contract.cli.commands.calibrated", lambda *_: found[0])
    monkeypatch.setenv("CONTRACT_HOST_KERNELS", "numpy")
    monkeypatch.setenv("CONTRACT_CALIBRATION", str(tmp_path))
    assert main(["calibrate", "--directory", str(tmp_path)]) == 0
    assert "not kept: the built-in model chooses better" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    with Handle() as handle:
        identity = handle.executor.identity
        assert handle.executor.machine == HOST

    found[0] = Calibration(faster, Choices((1.5, 1.2)), Choices((1.5, 1.0)))
    assert main(["calibrate", "--directory", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "memory_bandwidth  " in printed
    assert "24 G/s" in printed
    assert "fitted model: within 10 % of the best candidate in 1 of 2 checks, 22.5% of" in printed
    with Handle() as handle:
        assert handle.executor.machine == faster
        assert handle.executor.identity != identity
    monkeypatch.setenv("CONTRACT_CALIBRATION", "0")
    with Handle() as handle:
        assert handle.executor.machine == HOST

    monkeypatch.setenv("CONTRACT_CALIBRATION", str(tmp_path))
    next(tmp_path.iterdir()).write_text("{}")
    with Handle() as handle, pytest.warns(RuntimeWarning, match="built-in model is used.*fields"):
        assert handle.executor.machine == HOST
    assert main(["calibrate", "--directory", str(tmp_path), "--remove"]) == 0
    assert not list(tmp_path.iterdir())


def test_a_model_that_any_check_finds_slower_is_not_better() -> None:
    assert Calibration(HOST, Choices((1.5, 1.2)), Choices((1.4, 1.2))).is_better
    assert not Calibration(HOST, Choices((1.5, 1.2)), Choices((1.0, 1.3))).is_better


def test_a_busy_machine_is_not_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second measurement takes twice as long."""
    turns = count()

    def disturbed(plans: Sequence[Any], executor: Any) -> tuple[Any, tuple[float, ...]]:
        return plans[0], (plans[0].plan.seconds * (1 + next(turns) % 2),)

    monkeypatch.setattr(calibrating, "sleep", lambda seconds: None)
    monkeypatch.setattr(calibrating, "AWAKE", 0)
    monkeypatch.setattr(calibrating, "measured_fastest", disturbed)
    executor = HostExecutor("numpy", 1)
    with pytest.raises(contract.ExecutionError, match=r"busy.*takes 2\.00 times as long"):
        calibrating.calibrated(executor, lambda text: None)
    executor.close()


def test_calibration_measures_each_candidate_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock and the least squares, on a machine without noise: what the model predicts."""
    measured = []

    def least(plans: Sequence[Any], executor: Any) -> tuple[Any, tuple[float, ...]]:
        measured.append(plans[0].plan)
        return plans[0], (plans[0].plan.seconds,)

    monkeypatch.setattr(calibrating, "sleep", lambda seconds: None)
    monkeypatch.setattr(calibrating, "AWAKE", 0)
    monkeypatch.setattr(calibrating, "measured_fastest", least)
    executor = HostExecutor("numpy", 1)
    found = calibrating.calibrated(executor, lambda text: None)
    executor.close()
    # The same steps may be two candidates, of which the model predicts slightly different times.
    assert constants(found.cpu) == pytest.approx(constants(HOST), rel=1e-2)
    assert found.before.ratios == pytest.approx((1.0,) * len(CHECKS), rel=1e-2)
    assert len(measured) == calibrating.REPETITIONS * len(
        {(plan.operation, plan.steps) for plan in measured}
    )
