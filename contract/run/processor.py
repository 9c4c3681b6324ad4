"""What this machine's processor is called."""

import platform
from functools import cache
from pathlib import Path

__all__ = ["processor_name"]


@cache
def processor_name() -> str:
    """The model that the system names, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, model = line.partition(":")
        if name.strip() == "model name":
            return model.strip()
    return platform.processor() or platform.machine()
