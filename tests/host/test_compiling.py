"""Calls while kernels are compiled: at once, right, and by the compiled ones afterwards."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract import NotSupportedError, logging
from contract.execution import compiled_code as store
from contract.execution import compiler_process
from contract.execution.compiled_code import CompiledCode, Kernel
from contract.session import switching_plan as switching

pytest.importorskip("numba")

# A program begins with these lines. ``family`` says what runs a call, ``waits`` until all is there.
BEGIN = """
import json, os, sys, time
import numpy as np
import contract as ct
from contract import NotSupportedError, logging
from contract.execution.compiled_code import compiled_code
logging.set_file(os.devnull)
logging.set_level(4)
x = np.random.default_rng(1).random((30, 40, 50))
lines = []
logging.set_callback(lambda level, function, line: lines.append(line))

def family(call):
    lines.clear()
    assert np.array_equal(call(), x.transpose(2, 0, 1)), "wrong"
    return " ".join(name for name in ("numpy", "numba") if f"kernels={name}" in str(lines))

def turn(**options):
    return ct.permute("abc->cab", x, **options)

waits = compiled_code().wait
"""
UNWRITABLE = {
    "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
    "NUMBA_CACHE_DIR": "/dev/null/nowhere",
    "XDG_CACHE_HOME": "/dev/null/nowhere",
}


def environment(folder: Path | None) -> dict[str, str]:
    """A user's, with this folder for what is compiled; None: none can be written."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CONTRACT_")}
    if folder is None:
        return {**kept, **UNWRITABLE}
    return {**kept, "NUMBA_CACHE_DIR": str(folder), "XDG_CACHE_HOME": str(folder)}


def started(program: str, folder: Path | None, **more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", BEGIN + textwrap.dedent(program)],
        env={**environment(folder), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ran(program: str, folder: Path | None, **more: str) -> list[str]:
    """The lines that it prints; it ends well, and prints nothing else."""
    process = started(program, folder, **more)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, "")
    return out.splitlines()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that ``turn`` needs."""
    folder = tmp_path_factory.mktemp("compiled")
    assert ran("print(family(turn))", folder, CONTRACT_COMPILE="wait") == ["numba"]
    return folder


# --- a fresh process --------------------------------------------------------------------------


def test_calls_do_not_wait_and_switch(tmp_path: Path) -> None:
    """A call, an expression, a plan and a recording begin with NumPy's kernels and leave them."""
    program = """
    handle = ct.Handle()
    expression = ct.contract_expression("abc->cab", x.shape)
    a, b = ct.TensorDescriptor(x.shape, (2000, 50, 1)), ct.TensorDescriptor((50, 30, 40))
    plan = handle.plan(ct.ElementwiseOperation((ct.Operand(a, "abc"),), ct.Operand(b, "cab")))
    recorded = ct.contract_expression("abc->cab", x.shape).capture(x)

    def planned():
        out = np.empty((50, 30, 40), order="F")
        handle.permute(plan, 1, x, out)
        return out

    calls = turn, lambda: expression(x), planned, recorded.replay
    print(*map(family, calls), "numba" in sys.modules)
    waits()
    print(*map(family, calls), "numba" in sys.modules)
    """
    assert ran(program, tmp_path) == ["numpy " * 4 + "False", "numba " * 4 + "True"]


def test_what_is_on_disk_is_loaded(warm: Path) -> None:
    program = """
    print(family(turn), family(turn))
    waits()
    print(family(turn), any("compiled" in line for line in lines))
    """
    assert ran(program, warm) == ["numpy numpy", "numba False"]


def test_plans_are_found_again_after_the_switch(warm: Path) -> None:
    """A cached call after it runs the compiled plan itself."""
    program = """
    from contract.session.handle import default_handle
    def kinds():
        return {type(plan).__name__ for _, plan in default_handle().plans.items()}
    turn()
    print(*kinds())
    waits()
    turn()
    print(*kinds())
    """
    assert ran(program, warm) == ["SwitchingPlan", "LoadedPlan"]


def test_compiled_without_a_folder(tmp_path: Path) -> None:
    """The compiler's work goes through a temporary folder, which is gone afterwards."""
    program = """
    print(family(turn))
    waits()
    print(family(turn), len(os.listdir(os.environ["TMPDIR"])))
    """
    assert ran(program, None, TMPDIR=str(tmp_path)) == ["numpy", "numba 1"]
    assert not list(tmp_path.iterdir())


def test_what_is_compiled_is_logged_with_its_seconds(tmp_path: Path) -> None:
    program = """
    turn()
    waits()
    print(*[line for line in lines if line.startswith("compiled")][:1])
    """
    (line,) = ran(program, tmp_path)
    assert line.startswith("compiled ")
    assert line.endswith(" s")


def test_what_is_found_on_disk(tmp_path: Path) -> None:
    """A function for its own types, made of the same sources, and nothing else."""
    program = """
    from contract.host.compiled.functions import code_folder
    from contract.host.compiled.functions import integers as numba_integers
    from contract.host.compiled.functions import tools as numba_tools

    def is_kept(width):
        try:
            numba_tools.kept(numba_integers.wrapping(width))
        except numba_tools.NotKeptError:
            return False
        return True

    if sys.argv[1:]:
        code_folder._fingerprint = lambda: sys.argv[1]
    print(is_kept(1), is_kept(8), end=" ")
    numba_tools.made(numba_integers.wrapping(1))
    print(is_kept(1), is_kept(8))
    """
    assert ran(program, tmp_path) == ["False False True False"]
    assert ran(program, tmp_path) == ["True False True False"]
    other = "sys.argv.append('another version')\n" + textwrap.dedent(program)
    assert ran(other, tmp_path) == ["False False True False"]


def test_processes_compile_nothing_twice(tmp_path: Path) -> None:
    program = """
    turn()
    waits()
    print(sum(line.startswith("compiled") for line in lines), len(compiled_code()))
    """
    processes = [started(program, tmp_path) for _ in range(3)]
    counts = [[*map(int, each.communicate(timeout=200)[0].split())] for each in processes]
    assert sum(compiled for compiled, _ in counts) == counts[0][1]


# --- how processes end ------------------------------------------------------------------------


def test_a_process_ends_while_it_compiles(tmp_path: Path) -> None:
    """At once, without a word, and the compiler with it."""
    program = """
    turn()
    while compiled_code()._process is None:
        time.sleep(0.01)
    time.sleep({seconds})
    print(compiled_code()._process._process.pid)
    """
    for seconds in (0, 0.7, 1.5):
        begin = time.monotonic()
        (compiler,) = ran(program.format(seconds=seconds), tmp_path / str(seconds))
        assert time.monotonic() - begin < 20
        assert has_ended(int(compiler))


def test_the_compiler_ends_with_its_parent_whatever_it_does() -> None:
    program = """
    from contract.execution import compiling
    compiling._result = lambda *given: time.sleep(1000)
    compiling.main()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN + textwrap.dedent(program)], stdin=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    print('[["module", "name", []]]', file=process.stdin, flush=True)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=2)
    process.stdin.close()
    assert process.wait(timeout=60) == 1


@pytest.mark.parametrize("seconds", [0, 0.1, 0.25, 0.3, 0.4, 0.5, 0.6])
def test_a_process_ends_while_it_loads(warm: Path, seconds: float) -> None:
    assert ran(f"turn()\ntime.sleep({seconds})", warm) == []


def test_children_of_fork(warm: Path, tmp_path: Path) -> None:
    """They compute right, whatever the parent's threads do at that moment, and end well."""
    program = """
    turn()
    for delay in (0, 0.15, 0.1, 0.1, 0.1):
        time.sleep(delay)
        child = os.fork()
        if child == 0:
            family(turn)
            waits()
            print(family(turn), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    waits()
    print(family(turn))
    """
    assert ran(program, warm) == ["numba"] * 6
    assert ran(program, tmp_path) == ["numba"] * 6


def test_ctrl_c_is_not_for_the_compiler(tmp_path: Path) -> None:
    program = """
    signal.signal(2, signal.default_int_handler)  # whoever began the tests may ignore it
    turn()
    while compiled_code()._process is None:
        time.sleep(0.01)
    try:
        os.killpg(0, 2)
        time.sleep(10)
    except KeyboardInterrupt:
        print("interrupted")
    waits()
    print(family(turn))
    """
    assert ran("import signal\nos.setpgid(0, 0)\n" + textwrap.dedent(program), tmp_path) == [
        "interrupted",
        "numba",
    ]


def has_ended(process: int) -> bool:
    """Whether there is no such process any more, now or soon."""
    for _ in range(100):
        try:
            os.kill(process, 0)
            stat = Path(f"/proc/{process}/stat")
            if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True  # it has ended, and nobody has asked
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


# --- a compiler that fails ----------------------------------------------------------------------

KERNELS = frozenset({Kernel("module", "name"), Kernel("module", "other", ("float64", 3))})
FAILURES = {
    "import sys; sys.exit(3)": "the compiler ended with 3",
    "import os; os.kill(os.getpid(), 9)": "the compiler ended with -9",
    "import time; time.sleep(100)": "the compiler said nothing for 0 s",
    'print(\'{"problem": "no disk"}\')': "no disk",
    "print('nonsense')": "JSONDecodeError",
}


class Tools:
    """Nothing is on disk."""

    class NotKeptError(Exception):
        """Always."""

    def kept(self, code: Any) -> Any:
        raise self.NotKeptError

    def chosen_folder(self) -> None:
        return None

    def remove_folder(self) -> None:
        """There is none."""


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompiledCode]:
    """A process's compiled code, which begins at once, without Numba."""
    monkeypatch.setattr(store, "DELAY", 0.0)
    monkeypatch.setattr(store, "_tools", Tools)
    monkeypatch.setattr(store, "_code", lambda kernel: kernel)
    monkeypatch.setattr(compiler_process, "PATIENCE", 0.4)
    found = CompiledCode()
    yield found
    found.close()


class Told:
    """Somebody who waits."""

    def __init__(self, heard: list[bool]) -> None:
        self.told = heard.append


@pytest.mark.parametrize("program", FAILURES)
def test_a_compiler_that_fails_is_logged_and_not_tried_again(
    program: str, code: CompiledCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, told, lines = [], list[bool](), list[str]()

    class Counted(compiler_process.CompilerProcess):
        def __init__(self, *given: Any) -> None:
            began.append(given)
            super().__init__(*given)

    monkeypatch.setattr(compiler_process, "CompilerProcess", Counted)
    monkeypatch.setattr(compiler_process, "PROGRAM", program)
    waiting = [Told(told) for _ in range(2)]
    logging.set_file(os.devnull)
    logging.set_level(1)
    logging.set_callback(lambda level, function, line: lines.append(line))
    try:
        for each in waiting:
            told.clear()
            code.wish(KERNELS, each)
            code.wait()
            assert told == [False]
    finally:
        logging.set_callback(None)
        logging.disable()
    assert len(began) == 1
    assert len(lines) == 1
    assert FAILURES[program] in lines[0]
    assert all(str(kernel) in lines[0] for kernel in KERNELS)


@pytest.mark.parametrize("executable", ["", "/opt/app/editor", None])
def test_a_program_with_python_inside_is_not_begun_again(
    executable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(NotSupportedError, match="no Python"):
        compiler_process.CompilerProcess(sorted(KERNELS), None)


def test_nobody_is_kept_by_a_wish(code: CompiledCode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that no cache keeps are many, and gone before anything is compiled."""
    monkeypatch.setattr(store, "DELAY", 0.2)
    monkeypatch.setattr(compiler_process, "PROGRAM", "import sys; sys.exit(3)")
    told = list[bool]()
    for _ in range(3):
        code.wish(KERNELS, Told(told))
    code.wait()
    assert not told
    assert code.lacks(KERNELS)


class Steps:
    """A plan that only says that it ran."""

    required_workspace, tile_bytes, own_bytes = 100, 20, 3
    plan = arrays = reads_addend = new_output = measured = None

    def __init__(self, name: str, ran: list[str]) -> None:
        self.name, self.ran = name, ran

    def __call__(self, *given: Any) -> None:
        self.ran.append(self.name)


@pytest.mark.parametrize("is_there", [True, False])
def test_one_of_two_plans_stays(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which, is said once; nothing is wished for before the first call, nor afterwards."""
    wishes: list[Any] = []

    class Wishes:
        def wish(self, kernels: frozenset[Kernel], waiting: Any) -> None:
            wishes.append(waiting)

    monkeypatch.setattr(switching, "compiled_code", Wishes)
    ran, settled = list[str](), list[tuple[Any, Any]]()
    own, stand_in = Steps("own", ran), Steps("stand-in", ran)
    plan = switching.SwitchingPlan(
        own,
        stand_in,
        KERNELS,
        lambda *given: settled.append(given),  # type: ignore[arg-type]
    )
    assert (wishes, plan.settled, plan.decided) == ([], False, True)
    plan([], np.empty(0), None, (1, 0, 0))
    assert (len(wishes), ran) == (1, ["stand-in"])
    wishes[0].told(is_there)
    plan([], np.empty(0), None, (1, 0, 0))
    left = own if is_there else stand_in
    assert (len(wishes), ran[1:], settled) == (1, [left.name], [(plan, left)])
    assert plan.settled


# --- waiting ----------------------------------------------------------------------------------


def test_calls_wait_where_they_are_told_to(warm: Path) -> None:
    assert ran("print(family(turn))", warm, CONTRACT_COMPILE="wait") == ["numba"]
    assert ran("print(family(lambda: turn(handle=ct.Handle(compile='wait'))))", warm) == ["numba"]


def test_who_waits_at_a_terminal_hears_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Slow(Tools):
        def made(self, code: Any) -> int:
            time.sleep(0.3)
            return 7

    monkeypatch.setattr(store, "_tools", Slow)
    monkeypatch.setattr(store, "_code", lambda kernel: kernel)
    monkeypatch.setattr(store, "SILENCE", 0.05)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    code = CompiledCode()
    assert [code.get(Kernel("module", "name", ("float64",))) for _ in range(2)] == [7, 7]
    said = capsys.readouterr().err.splitlines()
    assert said == ["contract: compiling module.name(float64), once on this machine ..."]


# --- the command --------------------------------------------------------------------------------


def test_warmup_compiles_what_calls_need(tmp_path: Path) -> None:
    told = {**environment(tmp_path), "CONTRACT_COMPILE": "background"}
    command = [sys.executable, "-m", "contract", "warmup", "float32"]

    def warmed() -> str:
        done = subprocess.run(command, env=told, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[-1]

    assert not warmed().startswith("compiled 0 ")
    assert warmed().startswith("compiled 0 functions in 0 s, ")
    program = """
    x = x.astype("float32")
    family(turn), waits()
    print(family(turn), any("compiled" in line for line in lines))
    """
    assert ran(program, tmp_path) == ["numba False"]


def test_warmup_refuses_what_is_no_type() -> None:
    command = [sys.executable, "-m", "contract", "warmup", "float63"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "float63" in done.stderr
