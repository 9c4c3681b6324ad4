"""Many cases in child processes, one after the other; a child that dies or hangs is a finding."""

import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from tests.fuzz.cases import Case
from tests.fuzz.draw import Wishes, drawn
from tests.fuzz.shrink import smaller

__all__ = ["FINDINGS", "Finding", "judgements", "shrunk"]

SAME_WORDS = 12  # characters
PATIENCE = 300  # seconds for one case; the first may compile kernels on a busy machine
FINDINGS = frozenset({"wrong", "raw", "crash", "hang"})


@dataclass(frozen=True)
class Finding:
    """What became of one item of the work: "right", "refused", or one of FINDINGS."""

    item: int | Case
    verdict: str
    message: str

    def case(self, seed: int, wishes: Wishes) -> Case:
        return self.item if isinstance(self.item, Case) else drawn(seed, self.item, wishes)


def judgements(
    work: Sequence[int | Case], seed: int = 0, wishes: Wishes | None = None, batch: int = 2000
) -> Iterator[Finding]:
    """The verdict on every item, in order; each child takes a batch of them."""
    wishes = wishes or Wishes()
    at = 0
    while at < len(work):
        for found in _of_child(work[at : at + batch], seed, wishes):
            at += 1
            yield found


def _of_child(work: Sequence[int | Case], seed: int, wishes: Wishes) -> Iterator[Finding]:
    """Verdicts until the child has no more work, or dies of one."""
    with tempfile.TemporaryFile() as errors:
        child = _started(errors)
        try:
            assert child.stdin is not None
            child.stdin.write(pickle.dumps((seed, wishes, list(work))).hex().encode() + b"\n")
            child.stdin.flush()
            yield from _verdicts(child, work, errors)
        finally:
            child.kill()
            child.communicate()


def _started(errors: IO[bytes]) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "CONTRACT_CALIBRATION": "0"}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.fuzz.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=environment,
        bufsize=0,
    )


def _verdicts(
    child: "subprocess.Popen[bytes]", work: Sequence[int | Case], errors: IO[bytes]
) -> Iterator[Finding]:
    done = 0
    for line in _lines(child):
        match line:
            case ["end", at, verdict, message]:
                done = at + 1
                yield Finding(work[at], verdict, message)
            case None:
                yield Finding(work[done], "hang", f"no answer in {PATIENCE} seconds")
                return
    if done < len(work):
        code = child.wait()
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        errors.seek(0)
        yield Finding(work[done], "crash", f"{name}: {_last_words(errors.read())}")


def _last_words(text: bytes) -> str:
    """The innermost frames of the thread that died, or the last line."""
    lines = text.decode(errors="replace").splitlines()
    at = next((at for at, x in enumerate(lines) if x.startswith("Current thread")), None)
    if at is None:
        return lines[-1] if lines else ""
    frames = [x.strip() for x in lines[at + 1 : at + 4] if x.strip().startswith("File")]
    return "; ".join(frames)


def _lines(child: "subprocess.Popen[bytes]") -> Iterator[list[object] | None]:
    """What the child says; None where it says nothing for too long."""
    assert child.stdout is not None
    rest, end = b"", time.monotonic() + PATIENCE
    while True:
        ready, _, _ = select.select([child.stdout], [], [], max(end - time.monotonic(), 0))
        if not ready:
            yield None
            return
        heard = os.read(child.stdout.fileno(), 1 << 16)
        if not heard:
            return
        end = time.monotonic() + PATIENCE
        *lines, rest = (rest + heard).split(b"\n")
        yield from map(json.loads, lines)


def shrunk(case: Case, attempts: int = 300) -> Finding:
    """A smaller case of the same kind: the first one found, again and again."""
    (best,) = judgements([case])
    while attempts > 0:
        candidates = list(smaller(best.case(0, Wishes())))[:attempts]
        found = next((x for x in judgements(candidates) if _is_like(x, best)), None)
        if found is None:
            return best
        attempts -= [x is found.item for x in candidates].index(True) + 1
        best = found
    return best


def _is_like(one: Finding, other: Finding) -> bool:
    """Whether both have the same verdict and begin to say the same."""
    start = slice(SAME_WORDS)
    return one.verdict == other.verdict and one.message[start] == other.message[start]
