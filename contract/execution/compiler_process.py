"""A process that compiles, which ends with the one that began it.

It has no part in what a terminal says to its parent, and nothing to say there.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from contract.errors import NotSupportedError
from contract.support.config import compiler_environment

__all__ = ["CompilerProcess"]

PATIENCE = 600.0  # seconds without a result after which it is taken to hang
PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.stdin.readline())
from contract.execution.compiling import main
main()
"""


class CompilerProcess:
    """Compiles functions one by one; ``problem`` says afterwards what went wrong, if anything.

    They are kept in ``folder``; None: where Numba keeps them.
    """

    def __init__(self, kernels: Sequence[tuple[Any, ...]], folder: str | None) -> None:
        self.problem = ""
        command = [_interpreter(), "-P", "-c", PROGRAM]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=compiler_environment(folder),
            start_new_session=True,  # Ctrl-C is not for it
        )
        self._say(sys.path)
        self._say(kernels)

    def compiled(self) -> Iterator[tuple[int, float | None]]:
        """Which one is on disk now, and the seconds that it took, as it comes.

        None: another process had compiled it meanwhile.
        """
        try:
            yield from self._results()
            if self._process.wait() != 0 and not self.problem:
                self.problem = f"the compiler ended with {self._process.returncode}"
        finally:
            self.end()

    def _results(self) -> Iterator[tuple[int, float | None]]:
        assert self._process.stdout is not None
        waiting = self._watched()
        for line in self._process.stdout:
            waiting.cancel()
            found = json.loads(line)
            if "problem" in found:
                self.problem = found["problem"]
            else:
                yield found["at"], found["seconds"]
            waiting = self._watched()
        waiting.cancel()

    def forget(self) -> None:
        """In a child of fork(): it is the parent's, and ends with that."""
        self._process.returncode = 0
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self) -> None:
        """End the process whatever it does."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()

    def _say(self, value: Any) -> None:
        """A line of JSON; its standard input stays open as long as this process lives."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it says itself how it ended
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()

    def _watched(self) -> threading.Timer:
        timer = threading.Timer(PATIENCE, self._give_up)
        timer.daemon = True
        timer.start()
        return timer

    def _give_up(self) -> None:
        self.problem = f"the compiler said nothing for {PATIENCE:.0f} s"
        self._process.kill()


def _interpreter() -> str:
    """Python; a program that has it inside would begin once more, and is not asked to."""
    name = Path(sys.executable or "").stem.lower()
    if getattr(sys, "frozen", False) or not name.startswith(("python", "pypy")):
        raise NotSupportedError(f"{sys.executable!r} is no Python that could compile.")
    return sys.executable
