"""One pairwise product -> its candidates on the host: steps, each with a predicted cost.

The ways are those of the literature: Gemm (operands used where they lie), Gett by tiles, by
panels or loop by loop, TTGT (permute, multiply, permute), and element by element where nothing is
summed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, prod
from operator import attrgetter

from contract.descriptors.compute_types import is_complex, item_size
from contract.descriptors.operations import Algo
from contract.machines.cpu import Cpu
from contract.plan.products import (
    STRIDE_A,
    STRIDE_B,
    STRIDE_D,
    Option,
    ProductProblem,
    Search,
    Stride,
    elementwise_step,
    extent_of,
    extents_of,
    has_lone_sum,
    loop_table,
    product_step,
    run_length,
)
from contract.plan.steps import Gett, Kind, Loop, Product
from contract.planner.host.panels import least_by_panels, panel_options
from contract.planner.host.tiles import least_by_tiles, packs_as_it_lies, tile_options
from contract.planner.host.vector_loops import VECTOR_BYTES, along_vectors
from contract.planner.matrices.gemm import (
    Blas,
    Transposed,
    gemms,
    transposed,
    ways,
    why_gemm,
    why_transposed,
)

__all__ = ["host_options"]

MATRICES = Kind.BATCH, Kind.M, Kind.N, Kind.K  # how many, and their extents
# The operands, by their strides, and the kind of loops that each lacks.
LACKING = ((STRIDE_A, Kind.N), (STRIDE_B, Kind.M), (STRIDE_D, Kind.K))
ONE_BY_ONE = frozenset({Kind.BATCH})  # loops that no matrix product runs over
BLAS = Blas(adds=False, halves=False)  # NumPy's matmul


def host_options(problem: ProductProblem, cpu: Cpu, search: Search = Search.ALL) -> list[Option]:
    """The ways to solve ``problem`` on the host, unordered, at least one.

    A mode summed over that one operand has not is left to the loops. Small products are tried
    without tiles and panels, those whose tiles pack operands as they lie without panels. In a
    brief search no loops and no copies are looked for where one matrix product on the operands as
    they lie does it all; tiles are, where they may be quicker than BLAS.
    """
    loops = loop_table(problem)
    if has_lone_sum(loops):
        return [_loop_option(problem, loops, cpu)]
    found = _elementwise_options(problem, loops, cpu)
    products = list(gemms(problem, loops, BLAS))
    for step in products:
        seconds, reason = _gemm_seconds(step, cpu), why_gemm(step)
        found.append(Option(Algo.GEMM, seconds, reason, (step,), problem.d))
    is_matrix_product = any([extents_of(step.loops)[Kind.BATCH] == 1 for step in products])
    if search is Search.BRIEF and is_matrix_product:
        return found + (tile_options(problem, cpu) if _tiles_may_gain(found, cpu) else [])
    multiplied = extent_of(loops)
    if _may_win(2 * cpu.call + 2 * multiplied / cpu.loop_flops.of(problem.dtype), found, search):
        found.append(_loop_option(problem, loops, cpu))
    if multiplied > cpu.loop_product:
        found += _blocked_options(problem, loops, cpu, found, search)
    if not is_matrix_product:
        found += _transposed_options(problem, loops, cpu, found, search)
    return found


def _may_win(least: float, found: Iterable[Option], search: Search) -> bool:
    """Whether ways are looked for that take ``least`` seconds or more."""
    return search is Search.ALL or min([x.seconds for x in found], default=inf) > least


def _blocked_options(
    problem: ProductProblem,
    loops: tuple[Loop, ...],
    cpu: Cpu,
    found: Sequence[Option],
    search: Search,
) -> list[Option]:
    """The product by tiles, and by panels where these may be quicker."""
    products, dtype = extent_of(loops), problem.dtype
    panels = _may_win(least_by_panels(products, dtype, cpu), found, search)
    if not panels and not _may_win(least_by_tiles(products, dtype, cpu), found, search):
        return []
    tiles = tile_options(problem, cpu)
    settled = not panels or any(map(_is_settled, tiles))
    return tiles if settled else [*tiles, *panel_options(problem, loops, cpu)]


def _tiles_may_gain(found: Iterable[Option], cpu: Cpu) -> bool:
    """Whether tiles multiply faster than BLAS, and what is found takes longer than to begin."""
    if cpu.tiling is None or cpu.tiling.flops.double <= cpu.blas_flops.double:
        return False
    return min(option.seconds for option in found) > 2 * cpu.tiling.call


def _is_settled(tiles: Option) -> bool:
    """Whether panels cannot be quicker than tiles: these pack operands as they lie."""
    step = tiles.steps[0]
    return isinstance(step, Gett) and packs_as_it_lies(step)


def _stream_seconds(
    loops: tuple[Loop, ...], dtype: str, cpu: Cpu, apart: frozenset[Kind] = frozenset()
) -> float:
    """Reading A and B and writing D where they lie, loops of kinds ``apart`` one by one."""
    seconds = 0.0
    for stride in (STRIDE_A, STRIDE_B, STRIDE_D):
        own = [*filter(stride, loops)]
        row = [loop for loop in own if loop.kind not in apart] if apart else own
        run = run_length(row, stride)
        seconds += cpu.stream_seconds(extent_of(own), run, dtype, stride is STRIDE_D)
    return seconds


def _loop_option(problem: ProductProblem, loops: tuple[Loop, ...], cpu: Cpu) -> Option:
    """No packing at all: right for any strides, and the quickest way for small products."""
    step, dtype = product_step(Gett, problem, loops), problem.dtype
    multiplying = 2 * extent_of(loops) / cpu.loop_flops.of(dtype)
    seconds = 2 * cpu.call + _stream_seconds(loops, dtype, cpu)
    if cpu.vector_loops and loops:
        rows = ((loop.extent, loop.a, loop.b, loop.kind is Kind.K) for loop in loops)
        each, at = along_vectors(rows, dtype)
        real = item_size(dtype) // (2 if is_complex(dtype) else 1)
        multiplying *= each * VECTOR_BYTES / real
        along = loops[at]
        if along.kind is not Kind.K and along.d != 1:  # elements of D are written one by one
            seconds += extent_of([loop for loop in loops if loop.d]) / cpu.permute_rate
    seconds += multiplying
    return Option(Algo.GETT, seconds, "loop by loop, nothing packed", (step,), problem.d)


def _elementwise_options(
    problem: ProductProblem, loops: tuple[Loop, ...], cpu: Cpu
) -> list[Option]:
    """Nothing is summed: d = a * b with broadcast strides."""
    if any(loop.kind is Kind.K for loop in loops):
        return []
    step = elementwise_step(problem)
    elements = prod(step.extents)
    seconds = cpu.call + elements / (2 * cpu.transpose_rate)
    along = _fastest(loops, STRIDE_D)
    for stride in (STRIDE_A, STRIDE_B, STRIDE_D):
        own = [*filter(stride, loops)]
        seconds += cpu.stream_seconds(extent_of(own), cpu.line, problem.dtype)
        if along is not None and stride(along) and _fastest(loops, stride) is not along:
            seconds += elements / cpu.transpose_rate
    reason = "element by element, nothing summed"
    return [Option(Algo.ELEMENTWISE, seconds, reason, (step,), problem.d)]


def _fastest(loops: Iterable[Loop], stride: Stride) -> Loop | None:
    """The loop that runs nearest in memory, None for a scalar."""
    own = filter(stride, loops)
    return min(own, key=lambda loop: abs(stride(loop)), default=None)


def _transposed_options(
    problem: ProductProblem,
    loops: tuple[Loop, ...],
    cpu: Cpu,
    others: Sequence[Option],
    search: Search,
) -> Iterator[Option]:
    """The whole-tensor way with the fewest bytes permuted."""
    extents = extents_of(loops)
    whole = prod(extents.values())
    sizes = {stride: whole // extents[lacks] for stride, lacks in LACKING}
    copies = {stride: cpu.permute_seconds(n, problem.dtype) for stride, n in sizes.items()}
    gemm = _least_of_gemm(loops, extents, problem.dtype, cpu)
    if not _may_win(gemm + min(copies.values()), others, search):
        return
    every = ways(problem, loops, BLAS)
    copied = [sum([sizes[stride] for stride in way.copied]) for way in every]
    found = []
    for way, size in zip(every, copied, strict=True):
        least = gemm + sum([copies[stride] for stride in way.copied])
        if size == min(copied) and _may_win(least, others, search):
            found.append(_transposed_option(transposed(problem, loops, way), problem, cpu))
    if found:
        yield min(found, key=attrgetter("seconds"))


def _least_of_gemm(
    loops: tuple[Loop, ...], extents: Mapping[Kind, int], dtype: str, cpu: Cpu
) -> float:
    """What matrix products take at least, each operand read or written in one run."""
    count, m, n, k = map(extents.__getitem__, MATRICES)
    products = cpu.product_seconds(count, m, n, k, dtype)
    sizes = [extent_of([*filter(stride, loops)]) for stride, _ in LACKING]
    return cpu.call + products + sum([cpu.stream_seconds(n, n, dtype, True) for n in sizes])


def _transposed_option(each: Transposed, problem: ProductProblem, cpu: Cpu) -> Option:
    temporaries = each.packing.temporaries
    copying = sum((cpu.permute_seconds(prod(t.extents), t.dtype) for t in temporaries), 0.0)
    reason = f"{why_transposed(each.packing)}, one Gemm"
    seconds = copying + _gemm_seconds(each.gemm, cpu)
    return Option(Algo.TTGT, seconds, reason, each.steps, problem.d, temporaries, copying)


def _gemm_seconds(step: Product, cpu: Cpu) -> float:
    """Products of matrices in cache, one after another, and their operands' ways there.

    BLAS packs the factor with the slower mode of D whole, whatever the other one's extent.
    """
    count, m, n, k = map(extents_of(step.loops).__getitem__, MATRICES)
    products = cpu.product_seconds(count, m, n, k, step.dtype)
    fastest = _fastest([loop for loop in step.loops if loop.kind is not Kind.BATCH], STRIDE_D)
    slower = m if fastest is not None and fastest.kind is Kind.N else n
    packing = count * slower * k / cpu.far_packing
    streams = _stream_seconds(step.loops, step.dtype, cpu, ONE_BY_ONE)
    return cpu.call + products + packing + streams
