"""python bench/compare.py OLD.json NEW.json: what became faster or slower between two runs.

Times of different runs say little; ratios to the same peer, measured side by side in each run, can
be compared. A case's change is its new ratio by its old one, against the best of the peers that
both runs have. The exit status is 1 where a case lost more than --tolerance, or failed.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

SAME = ("suite", "mode", "dtype", "compute", "device")  # what runs must agree on
DIFFERENT = ("machine", "versions")  # what is said where they do not


@dataclass(frozen=True, slots=True)
class Change:
    """One case in two runs: ratios to the best common peer; None where there is none."""

    case: str
    old: float | None
    new: float | None
    failed: str = ""

    @property
    def factor(self) -> float | None:
        """Above 1: it became faster."""
        return self.new / self.old if self.old and self.new else None

    def lost(self, tolerance: float) -> bool:
        """Whether it fails now, or became slower by more than that."""
        return bool(self.failed) or (self.factor is not None and self.factor < 1 - tolerance)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Every case of the new run that the old one has."""
    before = {row["case"]: row for row in old["rows"]}
    return [_change(before[row["case"]], row) for row in new["rows"] if row["case"] in before]


def _change(old: Mapping[str, Any], new: Mapping[str, Any]) -> Change:
    common = old["ratios"].keys() & new["ratios"].keys()

    def best(row: Mapping[str, Any]) -> float | None:
        ratios = (row["ratios"][peer] for peer in common)
        return min((x for x in ratios if x is not None), default=None)

    return Change(new["case"], best(old), best(new), "; ".join(new["failed"].values()))


def report(
    old: Mapping[str, Any], new: Mapping[str, Any], found: Sequence[Change], tolerance: float
) -> Iterator[str]:
    """A line for each difference of the surroundings, for each case, and for all together."""
    for name in DIFFERENT:
        for key in sorted(old[name].keys() | new[name].keys()):
            values = old[name].get(key), new[name].get(key)
            if values[0] != values[1]:
                yield f"{name}: {key}: {values[0]} -> {values[1]}"
    yield f"{'case':<34}{'old':>8}{'new':>8}{'change':>9}"
    for each in found:
        mark = f"  FAILED: {each.failed}" if each.failed else "  slower" * each.lost(tolerance)
        cells = _cell(each.old), _cell(each.new), _cell(each.factor)
        yield f"{each.case[:33]:<34}{cells[0]:>8}{cells[1]:>8}{cells[2]:>9}{mark}"
    factors = [each.factor for each in found if each.factor is not None]
    lost = sum(each.lost(tolerance) for each in found)
    mean = _cell(geometric_mean(factors)) if factors else "-"
    yield f"geometric mean of the changes {mean} over {len(factors)} cases, {lost} of them lost"
    missing = len(old["rows"]) - len(found)
    if missing:
        yield f"{missing} cases of the old run are not in the new one"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def read(path: Path) -> dict[str, Any]:
    """A file that python -m bench --json wrote; SystemExit for another."""
    try:
        run: dict[str, Any] = json.loads(path.read_text())
        for row in run["rows"]:
            _change(row, row)
        return run
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SystemExit(f"{path} is no result of python -m bench --json: {error!r}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Compare two files; 2 where they cannot be compared."""
    parser = argparse.ArgumentParser(prog="bench/compare.py", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "--tolerance", type=float, default=0.1, help="a loss that is noise (default: 0.1)"
    )
    asked = parser.parse_args(argv)
    old, new = read(asked.old), read(asked.new)
    for name in SAME:
        if old.get(name) != new.get(name):
            print(f"The runs have different {name}: {old.get(name)}, {new.get(name)}.")
            return 2
    found = changes(old, new)
    print("\n".join(report(old, new, found, asked.tolerance)))
    return 1 if any(each.lost(asked.tolerance) for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
