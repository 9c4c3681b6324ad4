"""One pairwise product -> its candidates: ways to run it, as steps, each with a predicted cost.

The ways are those of the literature: Gemm (operands used where they lie), Gett by panels or
loop by loop, TTGT (permute, multiply, permute), and element by element where nothing is summed.
"""

from collections.abc import Iterator
from math import prod

from contract.compute import is_blas_type
from contract.descriptors import Algo
from contract.heuristics import Machine
from contract.matrix_options import gemm_options, transposed_options
from contract.operators import BinaryOperator
from contract.panel_options import panel_options
from contract.plan import Elementwise, Gett, Kind, Loop, Scalar
from contract.products import (
    STRIDE_A,
    STRIDE_B,
    STRIDE_D,
    Option,
    ProductProblem,
    Stride,
    extent_of,
    loop_table,
    product_step,
    run_length,
)

__all__ = ["options"]


def options(problem: ProductProblem, machine: Machine) -> list[Option]:
    """Every way to solve ``problem`` that the machine has, unordered, at least one.

    A mode summed over that one operand has not is left to the loops.
    """
    loops = loop_table(problem)
    found = [loop_option(problem, loops, machine)]
    if any(loop.kind is Kind.K and not (loop.a and loop.b) for loop in loops):
        return found
    found += elementwise_options(problem, loops, machine)
    found += gemm_options(problem, loops, machine)
    if prod(loop.extent for loop in loops) > machine.loop_product:
        found += panel_options(problem, loops, machine)
    if is_blas_type(problem.dtype):
        found += transposed_options(problem, loops, machine)
    return found


def loop_option(problem: ProductProblem, loops: tuple[Loop, ...], machine: Machine) -> Option:
    """No packing at all: right for any strides, and the quickest way for small products."""
    step = product_step(Gett, problem, loops)
    work = 2 * prod(loop.extent for loop in loops)
    seconds = 2 * machine.call + work / machine.loop_flops.of(problem.dtype)
    for stride in (STRIDE_A, STRIDE_B, STRIDE_D):
        own = [loop for loop in loops if stride(loop)]
        seconds += machine.stream_seconds(extent_of(own), run_length(own, stride), step.dtype)
    return Option(Algo.GETT, seconds, "loop by loop, nothing packed", (step,), problem.d)


def elementwise_options(
    problem: ProductProblem, loops: tuple[Loop, ...], machine: Machine
) -> Iterator[Option]:
    """Nothing is summed: d = a * b with broadcast strides."""
    if any(loop.kind is Kind.K for loop in loops):
        return
    d, modes = problem.d, problem.d.modes
    extents = tuple(problem.extents[mode] for mode in modes)
    alpha = Scalar.ALPHA if problem.scaled else None
    sources = [problem.a.source(modes, alpha), problem.b.source(modes)]
    if problem.c is not None:
        sources.append(problem.c.source(modes, Scalar.BETA))
    step = Elementwise(
        tuple(sources),
        (BinaryOperator.MUL, BinaryOperator.ADD)[: len(sources) - 1],
        d.view(modes),
        extents,
        modes,
        problem.dtype,
    )
    seconds = machine.call + prod(extents) / (2 * machine.transpose_rate)
    along = _fastest(loops, STRIDE_D)
    for stride in (STRIDE_A, STRIDE_B, STRIDE_D):
        own = [loop for loop in loops if stride(loop)]
        seconds += machine.stream_seconds(extent_of(own), machine.line, problem.dtype)
        if along is not None and stride(along) and _fastest(loops, stride) is not along:
            seconds += prod(extents) / machine.transpose_rate
    yield Option(Algo.ELEMENTWISE, seconds, "element by element, nothing summed", (step,), d)


def _fastest(loops: tuple[Loop, ...], stride: Stride) -> Loop | None:
    """The loop that runs nearest in memory, None for a scalar."""
    own = [loop for loop in loops if stride(loop)]
    return min(own, key=lambda loop: abs(stride(loop)), default=None)
