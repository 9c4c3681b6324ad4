"""How the work of a plan grows with its extents, as chemists write it: O(v^4 o^2)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from contract.plan.steps import Gemm, Gett, Plan, Step
from contract.planner.validation import operation_extents

__all__ = ["Scaling", "scaling_of", "step_modes"]


@dataclass(frozen=True, slots=True)
class Scaling:
    """Modes of equal extents share a symbol: the label of the first of them.

    ``classes`` has for each symbol its extent and all its labels, the largest extent first.
    """

    classes: Mapping[str, tuple[int, tuple[str, ...]]]
    symbols: Mapping[int, str]

    def of(self, modes: Iterable[int]) -> str:
        """``O(a^4 i^2)`` for loops over the modes; ``O(1)`` where all of them have extent 1."""
        counted = Counter(self.symbols[mode] for mode in modes if mode in self.symbols)
        ordered = [symbol for symbol in self.classes if counted[symbol]]
        powers = (_power(symbol, counted[symbol]) for symbol in ordered)
        return f"O({' '.join(powers) or '1'})"

    def __str__(self) -> str:
        """``a = b = 24, i = j = 8``: which extent each label has."""
        return ", ".join(
            f"{' = '.join(labels)} = {extent}" for extent, labels in self.classes.values()
        )


def scaling_of(plan: Plan) -> Scaling:
    """The symbols of a plan's modes."""
    extents, labels = operation_extents(plan.operation), plan.labels
    members: dict[int, list[int]] = {}
    for mode, extent in enumerate(extents):
        if extent != 1:
            members.setdefault(extent, []).append(mode)
    ordered = sorted(members.items(), reverse=True)
    named = [(labels[modes[0]], extent, modes) for extent, modes in ordered]
    return Scaling(
        {name: (extent, tuple(labels[each] for each in modes)) for name, extent, modes in named},
        {mode: name for name, _, modes in named for mode in modes},
    )


def step_modes(step: Step) -> Sequence[int]:
    """The modes that a step loops over."""
    if isinstance(step, Gemm | Gett):
        return [mode for loop in step.loops for mode in loop.modes]
    return step.modes


def _power(symbol: str, exponent: int) -> str:
    return symbol if exponent == 1 else f"{symbol}^{exponent}"
