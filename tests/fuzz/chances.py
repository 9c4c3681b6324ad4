"""Random choices."""

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["Chances"]


class Chances:
    """Choices by a generator of random numbers."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def chance(self, percent: float) -> bool:
        """Yes, so often in a hundred times."""
        return bool(self.rng.random() * 100 < percent)

    def number(self, low: int, high: int) -> int:
        """Both ends included."""
        return int(self.rng.integers(low, high + 1))

    def one(self, choices: Sequence[Any]) -> Any:
        """Each as often as the others."""
        return choices[self.number(0, len(choices) - 1)]

    def weighted(self, weights: dict[Any, float]) -> Any:
        """Each as often as its weight says."""
        point = self.rng.random() * sum(weights.values())
        for choice, weight in weights.items():
            point -= weight
            if point < 0:
                return choice
        return choice

    def shuffled(self, items: Sequence[Any]) -> list[Any]:
        """All of them, in any order."""
        return [items[at] for at in self.rng.permutation(len(items))]
