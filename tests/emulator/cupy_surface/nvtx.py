"""NVTX ranges, which are counted and shown to nobody."""

from typing import Any

from .counters import Counters


def functions(counters: Counters) -> dict[str, Any]:
    """The names of the module that are imitated."""

    def range_push(message: str, id_color: int = -1) -> None:
        counters.open_ranges.append(message)
        counters.ranges.append("/".join(counters.open_ranges))

    def range_pop() -> None:
        counters.open_ranges.pop()

    return {"available": True, "RangePush": range_push, "RangePop": range_pop}
