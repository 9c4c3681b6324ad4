"""What this machine's processor is called, and the vectors it has."""

import platform
from functools import cache
from pathlib import Path

__all__ = ["has_wide_vectors", "processor_name"]


def processor_name() -> str:
    """The model that the system names, else its architecture."""
    return _facts().get("model name") or platform.processor() or platform.machine()


def has_wide_vectors() -> bool:
    """Whether the system says that vectors have 512 bits (AVX-512)."""
    return "avx512f" in _facts().get("flags", "").split()


@cache
def _facts() -> dict[str, str]:
    """What Linux says of the first core."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
