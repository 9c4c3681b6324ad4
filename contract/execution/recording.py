"""CapturedContraction: a call recorded with its arrays, to be repeated at the cost of a launch."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from contract.arrays.protocol import Array, Recording
from contract.errors import InvalidValueError
from contract.execution.bound_plan import BoundCall
from contract.logging import LOGGER, UNWATCHED
from contract.plan.steps import Plan

__all__ = ["CapturedContraction"]


class CapturedContraction:
    """A call with fixed arrays and scalars: ``replay`` writes its result to ``output`` again.

    On a device it is a CUDA graph, which reads what ``operands`` and C hold at the time and has
    its temporaries to itself; on the host the call is repeated. ``output`` holds no result before
    the first replay, unless the array was given and had one. The arrays live as long as this.
    """

    def __init__(self, call: BoundCall) -> None:
        self._call = call.recordable()
        self._arrays = call.call.arrays
        self._recording: Recording | None = self._arrays.record(self._call)
        self.output = self._recording.output

    @property
    def operands(self) -> Sequence[Array]:
        """The arrays that a replay reads, constants included."""
        return tuple(self._call.inputs)

    @property
    def plan(self) -> Plan:
        """What is repeated."""
        return self._call.call.loaded.plan

    @property
    def bytes(self) -> int:
        """Memory that only this object uses, the output included where it was made here."""
        return 0 if self._recording is None else self._recording.bytes

    def replay(self, stream: Any = None) -> Array:
        """``output``, written anew: on ``stream``, or on CuPy's current stream, without waiting.

        Replays follow one another in whatever streams they are. InvalidValueError in a capture
        and after ``close``.
        """
        recording = self._recording
        if recording is None:
            raise InvalidValueError("A captured contraction that is closed cannot be replayed.")
        asked = {"output": self.output, "stream": stream} if LOGGER.active else {}
        with LOGGER.call("replay", asked) if LOGGER.active else UNWATCHED, self._arrays.on(stream):
            recording.replay()
        return self.output

    def close(self) -> None:
        """Give the temporaries back; waits for the last replay."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.close()

    def __enter__(self) -> "CapturedContraction":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __str__(self) -> str:
        steps = len(self.plan.steps)
        state = "closed" if self._recording is None else f"{self.bytes} bytes of its own"
        return f"Recorded call of {steps} steps, {state}\n{self.plan}"
