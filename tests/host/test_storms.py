"""Interrupts, handlers that call back, forks and exits amid work, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

ROOT = Path(__file__).parents[2]
LIMIT = 120  # seconds, of which a test takes few


def storm(program: str, count: int, seed: int, limit: int = LIMIT) -> None:
    """A program of tests.storms, which must end in time and find everything right."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.storms", program, str(count)]
    environment = os.environ | {"CONTRACT_CALIBRATION": "0"}
    done = subprocess.run(
        [*command, "--seed", str(seed)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("right:")
    assert done.stderr == ""


posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no such signals")


@posix
@pytest.mark.parametrize(
    ("program", "count"),
    [
        ("interrupts", 300),
        ("beginnings", 12),
        ("long_calls", 1),
        ("callbacks", 300),
        ("forks", 20),
        ("forks_amid", 20),
        ("exits", 0),
    ],
)
def test_a_storm(program: str, count: int) -> None:
    storm(program, count, seed=1)


@posix
def test_a_handle_closes_while_threads_work() -> None:
    storm("exits", 5, seed=2)


@posix
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("program", "count", "runs"),
    [("interrupts", 1000, 10), ("callbacks", 500, 4), ("forks", 100, 10), ("exits", 0, 200)],
)
def test_long_storms(program: str, count: int, runs: int) -> None:
    for seed in range(runs):
        storm(program, count, seed, limit=1200)
