"""Numbers and tables as people read them."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

__all__ = ["Row", "aligned", "count", "numbers", "ratio", "seconds", "shown"]

MOST_FLOAT = 1e300
MOST_LETTERS = 80  # of a value in a message
MOST_ITEMS = 6
Row = tuple[str, ...]


def aligned(rows: Iterable[Row]) -> list[str]:
    """The rows as lines, each column as wide as its widest cell."""
    lines: Sequence[Row] = list(rows)
    widths = [max(len(row[at]) for row in lines) for at in range(len(lines[0]))]
    return [
        "  "
        + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in lines
    ]


def count(value: float) -> str:
    """1234567 -> '1.23 M': three digits and a prefix, ready for a unit."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < 1000:
            return f"{value:.3g} {prefix}"
        value = value / 1000 if value < MOST_FLOAT else int(value) // 1000
    return f"{_three_digits(value)} E"


def ratio(one: int, two: int) -> str:
    """How often ``two`` goes into ``one``, in three digits."""
    return _three_digits(one / two if one < MOST_FLOAT else one // two)


def _three_digits(value: float) -> str:
    """Of an integer, too, that no float can hold: networks have so many operations."""
    return f"{value:.3g}" if value < MOST_FLOAT else f"{Decimal(value):.3g}"


def numbers(steps: range) -> str:
    """range(2, 5) -> '2-4': one number stands alone."""
    return str(steps[0]) if len(steps) == 1 else f"{steps[0]}-{steps[-1]}"


def seconds(value: float) -> str:
    """0.00123 -> '1.23 ms'."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def shown(value: Any) -> str:
    """A caller's value in a message: of an array kind and shape, never elements; long ones cut."""
    match value:
        case list() | tuple():
            items = [shown(each) for each in islice(value, MOST_ITEMS)]
            items += ["..."] * (len(value) > MOST_ITEMS)
            text = ", ".join(items)
            return f"[{text}]" if isinstance(value, list) else f"({text}{',' * (len(value) == 1)})"
        case str() | int() | float() | complex() | None | type():
            text = repr(value)
        case _:
            shape = getattr(value, "shape", ())
            text = f"{type(value).__name__} of shape {shape}" if shape else _represented(value)
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}..."


def _represented(value: Any) -> str:
    """The first line; the name of the class where its representation fails."""
    try:
        return repr(value).partition("\n")[0]
    except Exception:  # whatever a foreign object raises: the message is about something else
        return type(value).__name__
