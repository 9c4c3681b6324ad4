"""The logger: what is written where, by whom it is set, and what cannot break it."""

import logging
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract.descriptors.text import call_text
from contract.errors import InvalidValueError, NotSupportedError
from contract.logging import Level, Logger
from contract.support.config import LogSettings, Settings

LINE = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\]\[contract\]\[(\d+)\]\[(\w+)\]\[([\w.]+)\] (.*)"
)
TAGS = ("Error", "Trace", "Hint", "Info", "Api")


def no_ranges() -> Any:
    raise NotSupportedError("No CuPy.")


def applied(logger: Logger, **environment: str) -> None:
    """What a Handle does that was made in this environment."""
    values = {f"CUTENSOR_{name}": value for name, value in environment.items()}
    logger.apply(Settings.from_environment(values).logging, no_ranges)


def say_all(logger: Logger) -> None:
    for level in Level:
        logger.log(level, f"a line of {level.tag}")


@pytest.fixture
def logger() -> Logger:
    return Logger()


@pytest.fixture
def lines(logger: Logger, tmp_path: Path) -> Callable[[], list[tuple[str, ...]]]:
    """The lines in the logger's file, taken apart: process, tag, function, message."""
    path = tmp_path / "log.txt"
    logger.set_file(path)

    def read() -> list[tuple[str, ...]]:
        found = [LINE.fullmatch(line) for line in path.read_text().splitlines()]
        return [match.groups() for match in found if match is not None or pytest.fail("no line")]

    return read


@pytest.mark.parametrize(
    ("environment", "tags"),
    [
        ({}, ()),
        *[({"LOG_LEVEL": str(level)}, TAGS[:level]) for level in range(6)],
        *[({"LOG_MASK": str(1 << bit)}, TAGS[bit : bit + 1]) for bit in range(5)],
        ({"LOG_MASK": "17"}, ("Error", "Api")),
        ({"LOG_LEVEL": "2", "LOG_MASK": "16"}, ("Error", "Trace")),
        ({"LOG_LEVEL": "0", "LOG_MASK": "31"}, ()),
        ({"LOG_LEVEL": "", "LOG_MASK": "8"}, ("Info",)),
    ],
    ids=str,
)
def test_levels_and_masks(
    logger: Logger, capsys: pytest.CaptureFixture[str], environment: dict[str, str], tags: tuple
) -> None:
    applied(logger, **environment)
    say_all(logger)
    found = [LINE.fullmatch(line) for line in capsys.readouterr().out.splitlines()]
    assert [match and match.groups() for match in found] == [
        (str(os.getpid()), tag, "contract", f"a line of {tag}") for tag in tags
    ]
    assert logger.active == bool(tags)


@pytest.mark.parametrize(
    "environment",
    [
        {"LOG_LEVEL": "6"},
        {"LOG_LEVEL": "five"},
        {"LOG_LEVEL": "9" * 5000},
        {"LOG_MASK": "32"},
        {"LOG_MASK": "-1", "LOG_LEVEL": "5"},
        {"NVTX_LEVEL": "2", "LOG_LEVEL": "5"},
    ],
    ids=lambda each: str(each)[:40],
)
def test_an_invalid_value_turns_logging_off_with_one_warning(
    logger: Logger, environment: dict[str, str]
) -> None:
    with pytest.warns(RuntimeWarning, match=r"Nothing is logged\. CUTENSOR_\w+ takes") as warned:
        applied(logger, **environment)
    applied(logger, **environment)
    assert len(warned) == 1
    assert not logger.active


def test_a_file_has_every_process_in_its_name_and_is_emptied_once(
    logger: Logger, tmp_path: Path
) -> None:
    name, pid = str(tmp_path / "log-%i-%i.txt"), os.getpid()
    path = tmp_path / f"log-{pid}-{pid}.txt"
    path.write_text("what another process left\n")
    for _ in range(2):  # two handles
        applied(logger, LOG_LEVEL="1", LOG_FILE=name)
        logger.log(Level.ERROR, "once")
    other = tmp_path / "other.txt"
    applied(logger, LOG_LEVEL="1", LOG_FILE=str(other))
    logger.log(Level.ERROR, "elsewhere")
    applied(logger, LOG_LEVEL="1", LOG_FILE=name)
    logger.log(Level.ERROR, "back")
    assert [line.split()[-1] for line in path.read_text().splitlines()] == ["once", "once", "back"]
    assert other.read_text().endswith("elsewhere\n")


def test_a_file_that_cannot_be_opened_is_standard_output(
    logger: Logger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    applied(logger, LOG_LEVEL="1", LOG_FILE=str(tmp_path))
    with pytest.warns(RuntimeWarning, match="standard output, for its file cannot be") as warned:
        logger.log(Level.ERROR, "seen")
    logger.log(Level.ERROR, "seen")
    assert len(warned) == 1
    assert capsys.readouterr().out.count("seen") == 2


def test_lines_are_whole(logger: Logger, lines: Callable[[], list[tuple[str, ...]]]) -> None:
    """From many threads, for messages of several lines, and letters that a file cannot hold."""
    logger.set_level(1)

    def work(at: int) -> None:
        for _ in range(200):
            logger.log(Level.ERROR, f"{at}" * 300)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    wanted = [str(at) * 300 for at in range(8) for _ in range(200)]
    assert sorted(line[3] for line in lines()) == wanted
    logger.log(Level.ERROR, "one\ntwo\r\x0bthree \ud800")
    assert lines()[-1][3] == "one two  three \\ud800"


def test_a_callback_gets_messages_without_prefix(
    logger: Logger, lines: Callable[[], list[tuple[str, ...]]]
) -> None:
    heard: list[tuple[Any, ...]] = []
    logger.set_mask(Level.HINT.bit)
    logger.set_callback(lambda *record: heard.append(record))
    say_all(logger)
    logger.set_callback(None)
    say_all(logger)
    assert heard == [(3, "contract", "a line of Hint")]
    assert len(lines()) == 2


def test_a_callback_that_raises_is_a_warning(
    logger: Logger, lines: Callable[[], list[tuple[str, ...]]]
) -> None:
    def broken(*record: object) -> None:
        raise KeyError(record)

    logger.set_level(5)
    logger.set_callback(broken)
    with pytest.warns(RuntimeWarning, match="callback of the log raised KeyError") as warned:
        say_all(logger)
    assert len(warned) == 1
    assert len(lines()) == 5


def test_what_a_callback_says_is_not_logged(
    logger: Logger, lines: Callable[[], list[tuple[str, ...]]]
) -> None:
    logger.set_level(5)
    logger.set_callback(lambda *record: logger.log(Level.ERROR, "again"))
    logger.log(Level.ERROR, "once")
    assert [line[3] for line in lines()] == ["once"]


def test_what_the_program_sets_wins(
    logger: Logger, lines: Callable[[], list[tuple[str, ...]]], tmp_path: Path
) -> None:
    logger.set_level(1)
    applied(logger, LOG_LEVEL="5", LOG_FILE=str(tmp_path / "not.txt"))
    say_all(logger)
    assert [line[1] for line in lines()] == ["Error"]
    logger.disable()
    applied(logger, LOG_LEVEL="5")
    assert not logger.active
    assert not (tmp_path / "not.txt").exists()


@pytest.mark.parametrize(("name", "value"), [("level", 6), ("level", "5"), ("mask", 32)])
def test_a_program_is_told_the_range(logger: Logger, name: str, value: Any) -> None:
    with pytest.raises(InvalidValueError, match=f"A {name} is an integer from 0 to .*{value!r}"):
        getattr(logger, f"set_{name}")(value)


def test_records_of_pythons_logging(
    logger: Logger, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    logger.set_level(5)
    logger.to_python()
    with caplog.at_level(logging.DEBUG, "contract"):
        say_all(logger)
    names = ["ERROR", "DEBUG", "WARNING", "INFO", "DEBUG"]
    assert [record.levelname for record in caplog.records] == names
    assert caplog.messages[2] == "[Hint][contract] a line of Hint"
    assert not capsys.readouterr().out
    logger.set_file(None)
    logger.log(Level.ERROR, "a line again")
    assert capsys.readouterr().out.endswith("[Error][contract] a line again\n")


def test_a_call_is_logged_before_it_begins_and_when_it_fails(
    logger: Logger, lines: Callable[[], list[tuple[str, ...]]]
) -> None:
    """One that another makes is part of it."""
    logger.set_level(5)

    def outer() -> None:
        with logger.call("outer", {"x": 1, "handle": None}):
            with logger.call("inner", {"y": 2}):
                logger.log(Level.TRACE, "runs")
            raise ValueError("one\ntwo")

    with pytest.raises(ValueError, match="two"):
        outer()
    assert [line[1:] for line in lines()] == [
        ("Api", "outer", "x=1"),
        ("Trace", "outer", "runs"),
        ("Error", "outer", "ValueError: one two"),
    ]


def test_ranges_are_opened_and_closed(logger: Logger) -> None:
    seen: list[str] = []

    class Ranges:
        def push(self, name: str) -> None:
            seen.append(name)

        def pop(self) -> None:
            seen.append("end")

    logger.apply(LogSettings(nvtx=True), Ranges)
    assert logger.active
    with pytest.raises(ValueError, match="x"), logger.call("outer", {}), logger.call("inner", {}):
        raise ValueError("x")
    assert seen == ["outer", "inner", "end", "end"]
    with pytest.warns(RuntimeWarning, match="There are no NVTX ranges. No CuPy") as warned:
        applied(logger, NVTX_LEVEL="1")
    applied(logger, NVTX_LEVEL="1")
    assert len(warned) == 1
    assert not logger.active


def test_arguments_are_formatted_when_they_are_printed_only(logger: Logger) -> None:
    class Loud:
        def __repr__(self) -> str:
            raise AssertionError("was formatted")

    logger.set_mask(31 - Level.API.bit)
    with logger.call("verb", {"x": Loud()}):
        pass
    assert call_text({"x": Loud()}) == "x=<Loud>"


def test_no_argument_breaks_a_line() -> None:
    class Liar:
        shape = strides = None
        dtype = "f4"

    endless: list[Any] = []
    endless.append(endless)
    assert call_text({"x": Liar(), "y": endless}) == "x=<Liar> y=[[[[...]]]]"
    assert call_text({"x": "a\nb", "y": list(range(99))}).startswith("x='a\\nb' y=[0,1,")
    assert call_text({"operands": ()}) == ""
    assert call_text({"expression": None, "operands": [1, None]}) == "operands=[None,1,None]"
