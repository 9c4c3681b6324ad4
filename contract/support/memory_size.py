"""Amounts of memory as people write them: bytes, "500MiB", "80%" of what is available."""

import re
from collections.abc import Callable
from decimal import Decimal
from numbers import Integral
from typing import Any

from contract.errors import InvalidValueError
from contract.support.text import shown

__all__ = ["ADDRESSABLE_BYTES", "Amount", "memory_amount", "memory_bytes"]

ADDRESSABLE_BYTES = (1 << 63) - 1  # that an address, or an offset of an array, can count
Amount = int | str

UNITS = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, letters in enumerate(("kK", "M", "G", "T"), start=1)
    for prefix in letters
    for suffix, base in (("B", 1000), ("", 1000), ("iB", 1024))
}


def memory_amount(name: str, value: Any) -> Amount:
    """``value`` in bytes; a percentage as it is written. InvalidValueError for anything else."""
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0:
        return int(value)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *(%|[A-Za-z]*)", _text(value))
    if match is None or not _is_amount(match[1], match[2]):
        raise InvalidValueError(
            f"{name} is a number of bytes, a size such as '1.5GiB' or a share such as '80%': "
            f"it is {shown(value)}."
        )
    return str(value) if match[2] == "%" else int(Decimal(match[1]) * UNITS[match[2]])


def memory_bytes(name: str, value: Any, available: Callable[[], int | None]) -> int | None:
    """``value`` in bytes, percentages of what is ``available`` then; None stays None."""
    amount = None if value is None else memory_amount(name, value)
    if not isinstance(amount, str):
        return amount
    whole = available()
    if whole is None:
        raise InvalidValueError(
            f"{name} is {amount!r}, and the system does not say how much memory is available."
        )
    return int(Decimal(amount.rstrip("% ")) / 100 * whole)


def _is_amount(number: str, unit: str) -> bool:
    return unit in UNITS or (unit == "%" and Decimal(number) <= 100)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
