"""What a command line chooses by name."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Case = TypeVar("Case")


def names_in(text: str) -> tuple[str, ...]:
    """The names between commas."""
    return tuple(name for name in text.split(",") if name)


def selected(
    cases: Sequence[Case], name_of: Callable[[Case], str], names: Sequence[str]
) -> list[Case]:
    """The cases with these names, all where none is given; SystemExit for an unknown name."""
    known = list(map(name_of, cases))
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise SystemExit(f"Unknown cases {', '.join(unknown)}: known are {', '.join(known)}.")
    return [case for case in cases if not names or name_of(case) in names]
