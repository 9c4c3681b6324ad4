"""Coupled-cluster doubles on generated integrals: the engine at work, checked and timed.

    R_abij = <ab||ij> + (e_a + e_b - e_i - e_j) t_abij + ladders + rings + terms through F and W

Spin orbitals (spinless fermions, canonical orbitals, real integrals), with t antisymmetric in ab
and in ij. R = 0 defines the amplitudes t; the correlation energy is 1/4 <ij||ab> t_abij.
Equations: Stanton, Gauss, Watts, Bartlett, J. Chem. Phys. 94, 4334 (1991) without singles; the
check uses the expanded form of Crawford and Schaefer, Rev. Comp. Chem. 14, 33 (2000).
Every array is column-major. Energies are in units of the one-electron energies (hartree).
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import Any, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

from contract import contract
from contract.cli.neighbours import Neighbours
from contract.errors import InsufficientWorkspaceError, InvalidValueError
from contract.execution.compiled_code import compiled_code

__all__ = [
    "SIZES",
    "DemoOptions",
    "Progress",
    "Report",
    "block",
    "converge",
    "denominators",
    "energy",
    "expanded_residual",
    "integral_factors",
    "integrals",
    "numpy_engine",
    "our_engine",
    "render",
    "residual",
    "run",
]

Array = NDArray[Any]
Tensors = Mapping[str, Array]

SIZES = {"small": (8, 24), "medium": (14, 52), "large": (20, 80)}
TOLERANCE = {"float64": 1e-9, "float32": 1e-5}  # of the largest component of the residual
MAX_ITERATIONS = 60
DIIS_VECTORS = 6
MP2_NORM = 0.15  # strength of correlation: |t| of second order as a matrix of pairs


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to run: numbers of spin orbitals, the type, timing repeats, the generator's seed."""

    occupied: int = 8
    virtual: int = 24
    dtype: str = "float64"
    repeats: int = 5
    seed: int = 2026

    def __post_init__(self) -> None:
        if min(self.occupied, self.virtual) < 2:
            raise InvalidValueError(
                f"Double excitations need 2 occupied and 2 virtual orbitals: there are "
                f"{self.occupied} and {self.virtual}."
            )
        if self.repeats < 1:
            raise InvalidValueError(f"Timing needs at least one repeat: there are {self.repeats}.")


# --- engines ---------------------------------------------------------------------------------


class Engine(Protocol):
    """D = alpha * A B + C for one expression; C is absent where it is None."""

    def __call__(
        self, expression: str, left: Array, right: Array, alpha: float = 1, c: Array | None = None
    ) -> Array: ...


def our_engine(
    expression: str, left: Array, right: Array, alpha: float = 1, c: Array | None = None
) -> Array:
    """D = alpha * A B + C in one call of ``contract``."""
    if c is None:
        return np.asarray(contract(expression, left, right, alpha=alpha))
    return np.asarray(contract(expression, left, right, alpha=alpha, c=c, beta=1))


def numpy_engine(
    expression: str, left: Array, right: Array, alpha: float = 1, c: Array | None = None
) -> Array:
    """D = alpha * A B + C with numpy.einsum and NumPy's own arithmetic."""
    product: Array = np.asarray(np.einsum(expression, left, right, optimize=True))
    product = np.asarray(product * alpha, order="F")  # asfortranarray makes scalars vectors
    return product if c is None else product + c


# --- generated integrals ---------------------------------------------------------------------


def integral_factors(orbitals: int, rng: np.random.Generator) -> Array:
    """L[p, q, Q] = L[q, p, Q], so that (pq|rs) = sum_Q L_pq^Q L_rs^Q is a repulsion: positive.

    Factors decay with Q, as those of a Cholesky decomposition do.
    """
    rank = 2 * orbitals
    half = rng.standard_normal((orbitals, orbitals, rank))
    decay = np.exp(-np.arange(rank) / (0.4 * rank))
    return np.asfortranarray((half + half.transpose(1, 0, 2)) * decay)


def orbital_energies(occupied: int, virtual: int) -> Array:
    """Occupied levels from -2.0 to -0.5, virtual ones from 0.5 to 4.0: a gap of one."""
    return np.concatenate([np.linspace(-2.0, -0.5, occupied), np.linspace(0.5, 4.0, virtual)])


def block(factors: Array, p: slice, q: slice, r: slice, s: slice) -> Array:
    """<pq||rs> = (pr|qs) - (ps|qr), antisymmetric in pq and in rs, symmetric in pq <-> rs."""
    direct = _repulsion(factors, p, r, q, s).transpose(0, 2, 1, 3)
    exchange = _repulsion(factors, p, s, q, r).transpose(0, 2, 3, 1)
    return np.asfortranarray(direct - exchange)


def _repulsion(factors: Array, p: slice, q: slice, r: slice, s: slice) -> Array:
    """(pq|rs) = sum_Q L_pq^Q L_rs^Q."""
    return np.asarray(np.tensordot(factors[p, q], factors[r, s], axes=(2, 2)))


def denominators(energies: Array, occupied: int) -> Array:
    """e_a + e_b - e_i - e_j, positive: never smaller than twice the gap."""
    e, v = energies[:occupied], energies[occupied:]
    pairs = v[:, None] + v[None, :]
    holes = e[:, None] + e[None, :]
    return np.asfortranarray(pairs[:, :, None, None] - holes[None, None, :, :])


def integrals(factors: Array, energies: Array, occupied: int) -> dict[str, Array]:
    """The blocks of <pq||rs> that CCD reads, and the energy denominators, by name."""
    o, v = slice(None, occupied), slice(occupied, None)
    blocks = {"vvvv": (v, v, v, v), "ovvo": (o, v, v, o), "oovv": (o, o, v, v)}
    blocks |= {"oooo": (o, o, o, o), "vvoo": (v, v, o, o)}
    tensors = {name: block(factors, *slices) for name, slices in blocks.items()}
    return tensors | {"gap": denominators(energies, occupied)}


def _scaled_factors(options: DemoOptions) -> Array:
    """Factors of such a strength that the second-order amplitudes have the norm MP2_NORM."""
    occupied = options.occupied
    orbitals = occupied + options.virtual
    factors = integral_factors(orbitals, np.random.default_rng(options.seed))
    o, v = slice(None, occupied), slice(occupied, None)
    gap = denominators(orbital_energies(occupied, options.virtual), occupied)
    first = block(factors, v, v, o, o) / gap
    rings = first.transpose(0, 2, 1, 3).reshape(occupied * options.virtual, -1)
    return np.asarray(factors * np.sqrt(MP2_NORM / np.linalg.norm(rings, 2)))


def workload(options: DemoOptions) -> dict[str, Array]:
    """The tensors of one run, column-major, in the type that was asked for."""
    energies = orbital_energies(options.occupied, options.virtual)
    exact = integrals(_scaled_factors(options), energies, options.occupied)
    return {name: np.asfortranarray(x, dtype=options.dtype) for name, x in exact.items()}


# --- the equations ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResidualTerm:
    """``name`` = plus + factor * P(swaps) (left * right); tensors are called by name.

    P(swaps) = product of (1 - exchange of two modes of the result).
    """

    name: str
    expression: str
    left: str
    right: str
    factor: float
    plus: str | None = None
    swaps: tuple[tuple[int, int], ...] = ()


AB, IJ = (0, 1), (2, 3)

INTERMEDIATES = (
    ResidualTerm("F_be", "mnef,bfmn->be", "oovv", "t", -0.5),
    ResidualTerm("F_mj", "mnef,efjn->mj", "oovv", "t", 0.5),
    ResidualTerm("W_mnij", "mnef,efij->mnij", "oovv", "t", 0.5, plus="oooo"),
    ResidualTerm("W_mbej", "mnef,fbjn->mbej", "oovv", "t", -0.5, plus="ovvo"),
)
CONTRIBUTIONS = (
    ResidualTerm("pp ladder", "abef,efij->abij", "vvvv", "t", 0.5),
    ResidualTerm("hh ladder", "abmn,mnij->abij", "t", "W_mnij", 0.5),
    ResidualTerm("ring", "aeim,mbej->abij", "t", "W_mbej", 1.0, swaps=(AB, IJ)),
    ResidualTerm("particle F", "aeij,be->abij", "t", "F_be", 1.0, swaps=(AB,)),
    ResidualTerm("hole F", "abim,mj->abij", "t", "F_mj", -1.0, swaps=(IJ,)),
)
ENERGY = ResidualTerm("energy", "mnef,efmn->", "oovv", "t", 0.25)


def with_intermediates(engine: Engine, tensors: Tensors, amplitudes: Array) -> dict[str, Array]:
    """The integrals, t, and the intermediates F and W of t, by name."""
    known = {**tensors, "t": amplitudes}
    for term in INTERMEDIATES:
        c = None if term.plus is None else known[term.plus]
        left, right = known[term.left], known[term.right]
        known[term.name] = engine(term.expression, left, right, term.factor, c)
    return known


def residual(engine: Engine, tensors: Tensors, amplitudes: Array) -> Array:
    """R_abij; zero where the amplitudes solve the CCD equations."""
    known = with_intermediates(engine, tensors, amplitudes)
    total: Array = known["vvoo"] + known["gap"] * amplitudes
    for term in CONTRIBUTIONS:
        left, right = known[term.left], known[term.right]
        if term.swaps:
            product = engine(term.expression, left, right, term.factor)
            total += _antisymmetrised(product, term.swaps)
        else:
            total = engine(term.expression, left, right, term.factor, total)
    return total


def _antisymmetrised(x: Array, swaps: tuple[tuple[int, int], ...]) -> Array:
    """P(swaps) x = (1 - swap_1) (1 - swap_2) ... x."""
    for first, second in swaps:
        x = x - x.swapaxes(first, second)
    return x


def energy(engine: Engine, tensors: Tensors, amplitudes: Array) -> float:
    """E = 1/4 sum <mn||ef> t_efmn."""
    value = engine(ENERGY.expression, tensors["oovv"], amplitudes, ENERGY.factor)
    return float(value[()])


def expanded_residual(tensors: Tensors, t: Array) -> Array:
    """R_abij from the expanded equations with numpy.einsum in float64: no F, no W, no engine."""
    x = {name: np.asarray(value, dtype=np.float64) for name, value in tensors.items()}
    t = np.asarray(t, dtype=np.float64)
    v = x["oovv"]
    total = x["vvoo"] + x["gap"] * t
    total += 0.5 * _sum("abef,efij->abij", x["vvvv"], t)
    total += 0.5 * _sum("mnij,abmn->abij", x["oooo"], t)
    total += _antisymmetrised(_sum("mbej,aeim->abij", x["ovvo"], t), (AB, IJ))
    total += 0.25 * _sum("mnef,efij,abmn->abij", v, t, t)
    total += 0.5 * _antisymmetrised(_sum("mnef,aeim,fbnj->abij", v, t, t), (AB, IJ))
    total -= 0.5 * _antisymmetrised(_sum("mnef,aeij,bfmn->abij", v, t, t), (AB,))
    total -= 0.5 * _antisymmetrised(_sum("mnef,abim,efjn->abij", v, t, t), (IJ,))
    return total


def _sum(expression: str, *operands: Array) -> Array:
    return np.asarray(np.einsum(expression, *operands, optimize=True))


# --- solving ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Amplitudes and their history: the energy of every iteration, the last residual."""

    amplitudes: Array
    energies: tuple[float, ...]
    largest_residual: float
    converged: bool
    seconds: float

    @property
    def iterations(self) -> int:
        return len(self.energies)


def converge(
    engine: Engine, tensors: Tensors, note: Callable[[str], None] = lambda text: None
) -> Solution:
    """Solve R(t) = 0 by t <- t - R / gap, accelerated by DIIS, from t = 0.

    Converged when max |R| is below TOLERANCE of the type.
    """
    begin = time.perf_counter()
    t: Array = np.zeros_like(tensors["vvoo"])
    trials: list[tuple[Array, Array]] = []
    energies: list[float] = []
    largest = float("inf")
    limit = TOLERANCE[t.dtype.name]
    while largest > limit and len(energies) < MAX_ITERATIONS:
        change = residual(engine, tensors, t)
        largest = float(np.abs(change).max())
        change /= -tensors["gap"]
        trials = [*trials, (t + change, change)][-DIIS_VECTORS:]
        t = _extrapolated(trials)
        energies.append(energy(engine, tensors, t))
        note(f"CCD iteration {len(energies)}: E = {energies[-1]:.10f}, max|R| = {largest:.1e}")
    return Solution(t, tuple(energies), largest, largest <= limit, time.perf_counter() - begin)


def _extrapolated(trials: list[tuple[Array, Array]]) -> Array:
    """DIIS: sum c_k t_k, where the c_k add up to 1 and minimise |sum c_k change_k|."""
    weights = _diis_weights([change for _, change in trials])
    total = np.zeros_like(trials[0][0])
    for weight, (amplitudes, _) in zip(weights, trials, strict=True):
        total += amplitudes * weight
    return total


def _diis_weights(changes: list[Array]) -> Array:
    """The c_k: B c = lambda 1 and 1 . c = 1, with B_kl = change_k . change_l.

    B is scaled to a unit diagonal: changes shrink by orders of magnitude, and its small
    eigenvalues shall mean dependence, not size.
    """
    flat = [change.ravel(order="K") for change in changes]
    overlaps = np.array([[float(np.vdot(x, y)) for y in flat] for x in flat])
    lengths = np.sqrt(overlaps.diagonal())
    weights = np.zeros(len(flat) + 1)
    if np.isfinite(overlaps).all() and lengths.all():
        inverse = lengths[-1] / lengths
        system = np.block([[overlaps / np.outer(lengths, lengths), inverse[:, None]], [inverse, 0]])
        target = np.eye(len(system))[-1]
        weights = np.linalg.lstsq(system, target, rcond=_cutoff(changes[0]))[0]
        weights[:-1] *= inverse
    else:  # diverged, or exactly solved: nothing to extrapolate
        weights[-2] = 1
    return np.asarray(weights[:-1] / weights[:-1].sum(), dtype=changes[0].dtype)


def _cutoff(change: Array) -> float:
    """Cosines are only as good as the type of the changes."""
    return 100 * float(np.finfo(change.dtype).eps)


# --- measuring -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One contraction: work, median seconds of both engines, error over its bound.

    ``spread`` is how far the middle half of the times lies apart, as a share of the median; of
    both engines the larger one.
    """

    name: str
    expression: str
    gflop: float
    ours: float
    numpy: float
    spread: float
    error: float

    @property
    def ratio(self) -> float:
        """How many times as fast as numpy.einsum; above 1 is faster."""
        return self.numpy / self.ours


@dataclass(frozen=True, slots=True)
class Report:
    """All that a run found out; ``others`` is what other processes took of the processor."""

    options: DemoOptions
    rows: tuple[Row, ...]
    first_calls: float
    residual_error: float
    solution: Solution
    seconds: float
    others: float | None

    @property
    def total(self) -> Row:
        """The sum of all rows; its spread and its error are the largest."""
        return Row(
            "total",
            "",
            sum(row.gflop for row in self.rows),
            sum(row.ours for row in self.rows),
            sum(row.numpy for row in self.rows),
            max(row.spread for row in self.rows),
            max(row.error for row in self.rows),
        )

    @property
    def good(self) -> bool:
        """Every product within its bound, both residuals equal, CCD converged."""
        return (
            all(row.error <= 1 for row in self.rows)
            and self.residual_error <= _residual_limit(self.options)
            and self.solution.converged
        )


def run(options: DemoOptions, note: Callable[[str], None] = lambda text: None) -> Report:
    """Converge CCD, then time and check every contraction at the converged amplitudes."""
    begin = time.perf_counter()
    _check_memory(options)
    note("generating integrals")
    tensors = workload(options)
    start = np.asfortranarray(-tensors["vvoo"] / tensors["gap"])
    first = time.perf_counter()
    ours = residual(our_engine, tensors, start)
    first = time.perf_counter() - first
    note("checking the residual")
    error = _relative_error(ours, expanded_residual(tensors, start))
    solution = converge(our_engine, tensors, note)
    known = with_intermediates(our_engine, tensors, solution.amplitudes)
    note("compiling what is timed")
    compiled_code().wait()
    neighbours = Neighbours()
    rows = tuple(_rows(known, options.repeats, note))
    others = neighbours.share()
    return Report(options, rows, first, error, solution, time.perf_counter() - begin, others)


def _check_memory(options: DemoOptions) -> None:
    """Refuse before allocating: about five tensors of the size of vvvv live at once, in float64."""
    needed = 5 * 8 * (options.virtual**4 + (options.virtual * options.occupied) ** 2)
    if not hasattr(os, "sysconf"):
        return
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise InsufficientWorkspaceError(
            f"{options.occupied} occupied and {options.virtual} virtual orbitals need about "
            f"{needed / 2**30:.1f} GiB; the machine has {there / 2**30:.1f} GiB."
        )


def _relative_error(value: Array, reference: Array) -> float:
    return float(np.abs(value - reference).max() / np.abs(reference).max())


def _residual_limit(options: DemoOptions) -> float:
    """virtual is the root of the number of products in the longest sum; signs are random."""
    return 2 * float(np.finfo(options.dtype).eps) * options.virtual


def _rows(known: Tensors, repeats: int, note: Callable[[str], None]) -> Iterator[Row]:
    for term in (*CONTRIBUTIONS, *INTERMEDIATES, ENERGY):
        note(f"timing {term.name}: {term.expression}")
        yield _measured(term, known[term.left], known[term.right], repeats)


def _measured(term: ResidualTerm, left: Array, right: Array, repeats: int) -> Row:
    """Both engines in turn, after one call each that is not timed."""
    error = _error_over_bound(term, left, right)
    compiled_code().wait()  # that call was another one's if it did not wait
    times = [
        (
            _seconds(lambda: contract(term.expression, left, right)),
            _seconds(lambda: np.einsum(term.expression, left, right, optimize=True)),
        )
        for _ in range(repeats + 1)
    ][1:]
    columns = list(zip(*times, strict=True))
    ours, numpy = map(median, columns)
    spread = max(map(_spread, columns))
    gflop = _flops(term, left, right) / 1e9
    return Row(term.name, term.expression, gflop, ours, numpy, spread, error)


def _spread(times: Sequence[float]) -> float:
    """The distance between the quartiles in medians."""
    low, high = np.percentile(times, (25, 75))
    return float(high - low) / median(times)


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _extents(term: ResidualTerm, left: Array, right: Array) -> dict[str, int]:
    """Extents by label; the output's labels come after the shapes have ended."""
    labels = filter(str.isalpha, term.expression)
    return dict(zip(labels, left.shape + right.shape, strict=False))


def _flops(term: ResidualTerm, left: Array, right: Array) -> int:
    """2 * product of all extents: a multiplication and an addition each."""
    return 2 * prod(_extents(term, left, right).values())


def _error_over_bound(term: ResidualTerm, left: Array, right: Array) -> float:
    """max |D - D64| / ((k + 2) (u + u64) sum |A||B|), k terms in a sum: at most 1 is promised.

    D64 is numpy.einsum in float64; u64 accounts for its own rounding.
    """
    value = np.asarray(contract(term.expression, left, right))
    wide = [np.asarray(x, dtype=np.float64) for x in (left, right)]
    reference = np.asarray(np.einsum(term.expression, *wide, optimize=True))
    scale = np.asarray(np.einsum(term.expression, *map(np.abs, wide), optimize=True))
    summed = prod(_extents(term, left, right).values()) // max(value.size, 1)
    roundoffs = (float(np.finfo(left.dtype).eps) + float(np.finfo(np.float64).eps)) / 2
    bound = (summed + 2) * roundoffs * scale + np.finfo(left.dtype).tiny
    return float((np.abs(value - reference) / bound).max())


# --- printing --------------------------------------------------------------------------------

HEADINGS = (
    *("term", "expression", "GFLOP", "contract", "GFLOP/s"),
    *("einsum", "ratio", "spread", "err/bound"),
)
LEFT_COLUMNS = 2


def render(report: Report, unicode: bool = True) -> str:
    """The report as a page of text; without ``unicode`` in ASCII."""
    page = "\n".join(
        [_title(report.options), "", _table(report), "", *_findings(report), "", verdict(report)]
    )
    return page if unicode else page.replace("─", "-")


def _title(options: DemoOptions) -> str:
    return (
        f"CCD in spin orbitals: {options.occupied} occupied, {options.virtual} virtual, "
        f"{options.dtype}, column-major, median of {options.repeats}"
    )


def _table(report: Report) -> str:
    cells = [HEADINGS, *map(_cells, report.rows), _cells(report.total)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [_line(row, widths) for row in cells]
    rule = "─" * len(lines[0])
    return "\n".join([rule, lines[0], rule, *lines[1:-1], rule, lines[-1], rule])


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        row.expression,
        f"{row.gflop:.3f}",
        _duration(row.ours),
        f"{row.gflop / row.ours:.1f}",
        _duration(row.numpy),
        f"{row.ratio:.2f}x",
        f"{row.spread:.0%}",
        f"{row.error:.1e}",
    )


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    pairs = list(zip(cells, widths, strict=True))
    texts = [text.ljust(width) for text, width in pairs[:LEFT_COLUMNS]]
    return "  ".join(texts + [text.rjust(width) for text, width in pairs[LEFT_COLUMNS:]])


def _duration(seconds: float) -> str:
    """Three digits or more, in the unit that suits."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _findings(report: Report) -> list[str]:
    solution = report.solution
    how = "converged in" if solution.converged else "NOT converged after"
    return [
        f"E(corr)   {solution.energies[-1]:.12f} hartree, {how} {solution.iterations} iterations "
        f"({_duration(solution.seconds)}), max|R| = {solution.largest_residual:.1e}",
        f"E(MP2)    {solution.energies[0]:.12f} hartree",
        f"residual  {report.residual_error:.1e} of its largest component away from the expanded "
        f"equations in float64 (limit {_residual_limit(report.options):.1e})",
        f"planning  the first residual, planning included, took {_duration(report.first_calls)}; "
        f"everything {_duration(report.seconds)}",
        f"times     medians after a call that does not count; spread: of their middle half; "
        f"{_others(report.others)}",
    ]


def _others(share: float | None) -> str:
    if share is None:
        return "what else the machine did is not known"
    return f"other processes took {share:.0%} of the processor meanwhile"


def verdict(report: Report) -> str:
    """One line: right or wrong, and how fast."""
    total = report.total
    if not report.good:
        return "WRONG: " + "; ".join(_faults(report))
    speed = (
        f"{total.ratio:.2f} times as fast as numpy.einsum(optimize=True)"
        if total.ratio >= 1
        else f"slower than numpy.einsum(optimize=True) by a factor of {1 / total.ratio:.2f}"
    )
    return f"All {len(report.rows)} products are within their bounds; contract is {speed}."


def _faults(report: Report) -> Iterator[str]:
    """What is wrong, each with its number."""
    for row in report.rows:
        if not row.error <= 1:
            yield f"{row.name} errs by {row.error:.1e} of its bound"
    if not report.residual_error <= _residual_limit(report.options):
        yield f"the residual errs by {report.residual_error:.1e}"
    if not report.solution.converged:
        yield f"CCD did not converge, max|R| = {report.solution.largest_residual:.1e}"


LINE = 78  # characters: a longer line would wrap and not be overwritten


class Progress:
    """A single line on a terminal, rewritten in place; silent everywhere else."""

    __slots__ = ("_active", "_stream")

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._active = stream.isatty()

    def __call__(self, text: str) -> None:
        if self._active:
            self._stream.write(f"\r\x1b[K{text[:LINE]}")
            self._stream.flush()

    def clear(self) -> None:
        """Leave an empty line for what is printed next."""
        self("")
