"""One pairwise product -> its candidates on a GPU: steps, each with a predicted cost.

Gett with the tiles that the model finds best, those of TMA and wgmma where they serve; Gemm by
cuBLAS where operands are matrices, TTGT, TGETT (permutations of what lies badly, then Gett), and
element by element where nothing is summed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations
from math import prod

from contract.descriptors.compute_types import item_size
from contract.descriptors.operations import Algo
from contract.machines.cublas_model import blas_compute, blas_seconds
from contract.machines.gpu import Architecture
from contract.machines.tensor_cores import uses_tf32
from contract.plan.products import (
    STRIDE_A,
    STRIDE_B,
    STRIDE_D,
    Option,
    ProductProblem,
    Stride,
    Term,
    elementwise_step,
    has_lone_sum,
    loop_table,
    product_step,
)
from contract.plan.steps import Gemm, Gett, Kind, Loop, step_slots
from contract.planner.device.cublas import blas_takes
from contract.planner.device.hopper_model import best_ways
from contract.planner.device.problem import Held
from contract.planner.matrices.gemm import Blas, gemms, transposed, ways, why_gemm, why_transposed
from contract.planner.matrices.ttgt import Orders, Permuted, is_flat_matrix, orders_of, permuted
from contract.support.config import TF32_OVERRIDE

__all__ = ["device_options"]

# On the 48 contractions of bench/data/tccg48.json, as float32, tf32, float64 and float16 on 8.0 and
# 9.0, never more than 6 of the 12 to 20 tiles that serve are predicted to take less than 1.5 times
# the best's time: the model is not trusted to tell these apart.
MOST_TILES = 6
MOST_PERMUTED = 2  # choices of operands to copy


def device_options(problem: ProductProblem, gpu: Architecture) -> list[Option]:
    """Every way to solve ``problem`` that is worth trying on a GPU, unordered, at least one."""
    loops = loop_table(problem)
    found = list(_gett_options(problem, gpu, MOST_TILES))
    if has_lone_sum(loops):
        return _noting_what_is_forbidden(found, problem, gpu)
    if not any(loop.kind is Kind.K for loop in loops):
        found.append(_elementwise_option(problem, gpu))
    blas = Blas(adds=True, halves=gpu.rates.half > 0)
    found += _gemm_options(problem, loops, blas, gpu)
    found += _transposed_options(problem, loops, blas, gpu)
    found += _permuted_options(problem, loops, gpu)
    return _noting_what_is_forbidden(found, problem, gpu)


def _noting_what_is_forbidden(
    found: list[Option], problem: ProductProblem, gpu: Architecture
) -> list[Option]:
    """The same, saying so where tf32 would have served and may not."""
    compute = problem.compute
    if gpu.allows_tf32 or compute is None or not uses_tf32(problem.dtype, compute):
        return found
    note = f"{compute.value} computes as 32F, for {TF32_OVERRIDE.name} forbids TF32"
    return [option._replace(reason=f"{option.reason}; {note}") for option in found]


def _elementwise_option(problem: ProductProblem, gpu: Architecture) -> Option:
    """Nothing is summed: d = a * b with broadcast strides."""
    step = elementwise_step(problem)
    seconds = gpu.pass_seconds(sum(_bytes(problem, term) for term in _terms(problem)))
    reason = "element by element, nothing summed"
    return Option(Algo.ELEMENTWISE, seconds, reason, (step,), problem.d)


def _terms(problem: ProductProblem) -> Iterator[Term]:
    yield from (problem.a, problem.b, problem.d)
    if problem.c is not None:
        yield problem.c


def _bytes(problem: ProductProblem, term: Term) -> int:
    return prod(problem.extents[mode] for mode in term.modes) * item_size(term.dtype)


# --- Gett -------------------------------------------------------------------------------------


def _gett_options(problem: ProductProblem, gpu: Architecture, most: int) -> Iterator[Option]:
    """The best tiles, each with its best number of parts, the quickest first."""
    step = product_step(Gett, problem, loop_table(problem))
    held = {term.slot: Held(term.dtype, term.alignment) for term in _terms(problem)}
    for way in best_ways(step, held, gpu, most):
        yield Option(
            Algo.GETT, way.seconds, way.reason, (replace(step, blocking=way.share),), problem.d
        )


def _permuted_options(
    problem: ProductProblem, loops: tuple[Loop, ...], gpu: Architecture
) -> list[Option]:
    """TGETT: the best choices of operands to copy, of those that are not matrices already."""
    found: list[Option] = []
    for copied in _choices(loops):
        packing = permuted(problem, _orders(loops, copied), copied)
        copying = _copy_seconds(problem, packing, gpu)
        if found and copying >= min(option.seconds for option in found):
            continue
        best = next(_gett_options(packing.inner, gpu, 1))
        reason = f"{why_transposed(packing)}, {best.reason}"
        steps = (*packing.before, *best.steps, *packing.after)
        seconds = copying + best.seconds
        temporaries = packing.temporaries
        found.append(Option(Algo.TGETT, seconds, reason, steps, problem.d, temporaries, copying))
    return sorted(found, key=lambda option: option.seconds)[:MOST_PERMUTED]


def _choices(loops: tuple[Loop, ...]) -> Iterator[tuple[Stride, ...]]:
    """Some of the operands that are not one matrix with rows and columns in a row."""
    m, n, k = ([x for x in loops if x.kind is kind] for kind in (Kind.M, Kind.N, Kind.K))
    scattered = [
        stride
        for stride, rows, columns in ((STRIDE_A, m, k), (STRIDE_B, k, n), (STRIDE_D, m, n))
        if not is_flat_matrix(stride, _along(rows, stride), _along(columns, stride))
    ]
    return chain.from_iterable(combinations(scattered, count) for count in (1, 2, 3))


def _along(loops: Sequence[Loop], stride: Stride) -> tuple[Loop, ...]:
    return tuple(sorted(loops, key=lambda loop: abs(stride(loop))))


def _orders(loops: tuple[Loop, ...], copied: tuple[Stride, ...]) -> Orders:
    """Copies have their loops as the operand that stays where it lies."""
    m = STRIDE_A if STRIDE_D in copied and STRIDE_A not in copied else STRIDE_D
    n = STRIDE_B if STRIDE_D in copied and STRIDE_B not in copied else STRIDE_D
    return orders_of(loops, m, n, STRIDE_B if STRIDE_A in copied else STRIDE_A)


def _copy_seconds(problem: ProductProblem, packing: Permuted, gpu: Architecture) -> float:
    """One launch for each permutation, every element read and written once."""
    known = {term.slot: term for term in (*_terms(problem), *_terms(packing.inner))}
    each_copy = (
        gpu.pass_seconds(sum(_bytes(problem, known[slot]) for slot in step_slots(step)))
        for step in (*packing.before, *packing.after)
    )
    return sum(each_copy, 0.0)


# --- cuBLAS -----------------------------------------------------------------------------------


def _gemm_options(
    problem: ProductProblem, loops: tuple[Loop, ...], blas: Blas, gpu: Architecture
) -> Iterator[Option]:
    for step in filter(blas_takes, gemms(problem, loops, blas)):
        seconds, unit = _gemm_cost(problem, step, gpu)
        reason = f"{why_gemm(step)}, {unit}"
        yield Option(Algo.GEMM, seconds, reason, (step,), problem.d)


def _transposed_options(
    problem: ProductProblem, loops: tuple[Loop, ...], blas: Blas, gpu: Architecture
) -> Iterator[Option]:
    """The quickest TTGT."""
    found = []
    for way in ways(problem, loops, blas):
        each = transposed(problem, loops, way)
        if not blas_takes(each.gemm):
            continue
        packing = each.packing
        seconds, unit = _gemm_cost(packing.inner, each.gemm, gpu)
        copying = _copy_seconds(problem, packing, gpu)
        seconds += copying
        reason = f"{why_transposed(packing)}, one Gemm, {unit}"
        temporaries = packing.temporaries
        found.append(
            Option(Algo.TTGT, seconds, reason, each.steps, problem.d, temporaries, copying)
        )
    if found:
        yield min(found, key=lambda option: (option.seconds, option.temporary_bytes))


def _gemm_cost(problem: ProductProblem, step: Gemm, gpu: Architecture) -> tuple[float, str]:
    """Seconds, and cuBLAS's name of the arithmetic; one call enumerates one loop of products."""
    m, n, k, count = (step.extent(x) for x in (Kind.M, Kind.N, Kind.K, Kind.BATCH))
    longest = max((x.extent for x in step.loops if x.kind is Kind.BATCH), default=1)
    compute = blas_compute(problem.a.dtype, step.dtype, step.compute, gpu)
    types = problem.a.dtype, problem.d.dtype
    seconds = blas_seconds((count, m, n, k), types, compute, step.dtype, gpu)
    seconds += (count // longest - 1) * gpu.costs.launch
    if problem.c is not None:
        seconds += gpu.pass_seconds(2 * _bytes(problem, problem.c))
    return seconds, compute
