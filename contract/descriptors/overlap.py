"""Bounded integer solutions of one homogeneous linear equation, decided by lattice reduction.

The solutions of sum(d[i] * s[i]) = 0 are a lattice of rank n - 1. In the norm
sum((d[i] / r[i])^2) the solutions with |d[i]| <= r[i] are among its vectors of norm <= n; in a
reduced basis these are few, whatever the size of the numbers.
Sources: A. K. Lenstra, H. W. Lenstra, L. Lovasz, "Factoring polynomials with rational
coefficients" (1982); U. Fincke, M. Pohst, "Improved methods for calculating vectors of short
length in a lattice" (1985).
"""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor, sqrt

__all__ = ["has_bounded_solution"]

Vector = list[int]
SLACK = 1e-6  # of the norms in floating point; every vector found is tested exactly


def has_bounded_solution(factors: Sequence[int], bounds: Sequence[int]) -> bool:
    """Whether integers d, not all 0, with |d[i]| <= bounds[i] have sum(d[i] * factors[i]) = 0.

    Factors and bounds are positive.
    """
    weights = [Fraction(1, bound * bound) for bound in bounds]
    basis = _reduced(_kernel(factors), weights)
    return bool(basis) and _finds_short(basis, weights, bounds)


def _kernel(factors: Sequence[int]) -> list[Vector]:
    """A basis of the solutions: Euclid's algorithm on the factors, its steps recorded."""
    count = len(factors)
    rows = [[int(i == j) for j in range(count)] for i in range(count)]
    values = list(factors)
    while True:
        live = sorted((at for at in range(count) if values[at]), key=lambda at: values[at])
        if len(live) <= 1:
            return [rows[at] for at in range(count) if not values[at]]
        smallest = live[0]
        for at in live[1:]:
            times = values[at] // values[smallest]
            values[at] -= times * values[smallest]
            rows[at] = _minus(rows[at], rows[smallest], times)


def _minus(one: Vector, other: Vector, times: int) -> Vector:
    return [x - times * y for x, y in zip(one, other, strict=True)]


def _product(one: Sequence[int], other: Sequence[int], weights: Sequence[Fraction]) -> Fraction:
    return sum((w * x * y for w, x, y in zip(weights, one, other, strict=True)), Fraction(0))


def _orthogonal(
    basis: Sequence[Vector], weights: Sequence[Fraction]
) -> tuple[list[list[Fraction]], list[Fraction]]:
    """Gram-Schmidt coefficients and squared norms, from the inner products alone."""
    count = len(basis)
    inner = [[Fraction(0)] * count for _ in range(count)]
    mu = [[Fraction(0)] * count for _ in range(count)]
    for i in range(count):
        for j in range(i + 1):
            known = sum((mu[j][k] * inner[i][k] for k in range(j)), Fraction(0))
            inner[i][j] = _product(basis[i], basis[j], weights) - known
            if j < i:
                mu[i][j] = inner[i][j] / inner[j][j]
    return mu, [inner[i][i] for i in range(count)]


def _reduced(basis: list[Vector], weights: Sequence[Fraction]) -> list[Vector]:
    """The basis reduced as Lenstra, Lenstra and Lovasz do, in exact arithmetic."""
    at = 1
    mu, norms = _orthogonal(basis, weights)
    while at < len(basis):
        for other in range(at - 1, -1, -1):
            if times := round(mu[at][other]):
                basis[at] = _minus(basis[at], basis[other], times)
                mu[at] = [x - times * y for x, y in zip(mu[at], mu[other], strict=True)]
                mu[at][other] -= times
        if norms[at] >= (Fraction(3, 4) - mu[at][at - 1] ** 2) * norms[at - 1]:
            at += 1
        else:
            basis[at - 1], basis[at] = basis[at], basis[at - 1]
            mu, norms = _orthogonal(basis, weights)
            at = max(at - 1, 1)
    return basis


def _finds_short(
    basis: Sequence[Vector], weights: Sequence[Fraction], bounds: Sequence[int]
) -> bool:
    """Depth-first search for a combination of the basis within the bounds."""
    exact_mu, exact_norms = _orthogonal(basis, weights)
    mu = [[float(x) for x in row] for row in exact_mu]
    norms = [float(x) for x in exact_norms]
    count = len(basis)
    chosen = [0] * count

    def is_solution() -> bool:
        vector = [
            sum(times * row[i] for times, row in zip(chosen, basis, strict=True))
            for i in range(len(bounds))
        ]
        return any(vector) and all(abs(x) <= most for x, most in zip(vector, bounds, strict=True))

    def search(level: int, left: float) -> bool:
        if level < 0:
            return is_solution()
        centre = -sum(chosen[j] * mu[j][level] for j in range(level + 1, count))
        radius = sqrt(max(left, 0.0) / norms[level]) + SLACK
        for times in range(ceil(centre - radius), floor(centre + radius) + 1):
            chosen[level] = times
            if search(level - 1, left - (times - centre) ** 2 * norms[level]):
                return True
        chosen[level] = 0
        return False

    return search(count - 1, len(bounds) * (1 + SLACK))
