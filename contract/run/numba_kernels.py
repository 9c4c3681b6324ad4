"""The compiled host kernels: the inner loops as Numba functions, and how they are prepared.

Threads are ours (nogil functions on parts of a loop), for Numba's own threading aborts the
process when two Python threads enter it at once.
"""

from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import Any, TypeVar, cast

import numba
import numpy as np

from contract.run.host_kernels import (
    PARALLEL_BYTES,
    CopyKernel,
    LoopRow,
    MatmulKernel,
    ProductKernel,
)
from contract.run.host_views import Array
from contract.run.numpy_kernels import NumpyKernels

__all__ = ["NumbaKernels"]

Function = TypeVar("Function", bound=Callable[..., Any])

STRIP = 64  # rows of a transposing tile along the source's fastest dimension
CHUNK = 1024  # elements of a strip along the target's fastest dimension
TILE = 64
MOST_SUMMED = 1 << 16  # entries of the offset tables of a direct product
AXPY_EXTENT = 16  # from here on vectors along d beat sums along k


def compiled(function: Function) -> Function:
    """``function`` compiled at its first call, kept on disk, run without the GIL."""
    try:
        return cast(Function, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # no folder to keep it in can be written: it is compiled every time
        return cast(Function, numba.njit(nogil=True)(function))


class NumbaKernels(NumpyKernels):
    """Compiled copies and products; types that Numba lacks, and reductions, stay with NumPy."""

    name = "numba"

    def copy(
        self,
        extents: Sequence[int],
        source_strides: Sequence[int],
        target_strides: Sequence[int],
        source_dtype: str,
        target_dtype: str,
    ) -> CopyKernel:
        types = _copy_types(source_dtype, target_dtype)
        if types is None:
            return super().copy(extents, source_strides, target_strides, source_dtype, target_dtype)
        moves = _Moves(extents, source_strides, target_strides)
        size = np.dtype(target_dtype).itemsize
        minimum = max(1, PARALLEL_BYTES // (max(moves.unit, 1) * size))
        read_type, write_type = types
        kernel = copy_rows if moves.rows else copy_tiles
        loops, units = moves.loops, moves.units

        def run(source: Array, source_offset: int, target: Array, target_offset: int) -> None:
            read, write = source.view(read_type), target.view(write_type)

            def part(begin: int, end: int) -> None:
                kernel(read, source_offset, write, target_offset, loops, begin, end)

            if units <= minimum:
                part(0, units)
            else:
                self.workers.map(part, self.workers.split(units, minimum))

        return run

    def matmul(self, dtype: str) -> MatmulKernel:
        kind = np.dtype(dtype).kind
        if kind in "iu":
            return lambda a, b, out: _stacked(multiply_integers, a, b, out)
        if kind == "b":
            return lambda a, b, out: _stacked(
                multiply_bits, a.view(np.uint8), b.view(np.uint8), out.view(np.uint8)
            )
        return super().matmul(dtype)

    def loops(self, dtype: str, table: Sequence[LoopRow]) -> ProductKernel:
        summed = [row for row in table if row[0] == "k"]
        if (
            np.dtype(dtype).kind not in "iufc"
            or dtype not in _COMPILED
            or (prod(row[1] for row in summed) > MOST_SUMMED)
        ):
            return super().loops(dtype, table)
        kept = sorted((row for row in table if row[0] != "k"), key=lambda row: abs(row[2][2]))
        kept = kept or [("m", 1, (0, 0, 1))]
        rows = np.array([(extent, *strides) for _, extent, strides in kept], np.int64)
        sums_a, sums_b = (_offsets(summed, operand) for operand in (0, 1))
        kernel = multiply_axpy if kept[0][1] >= AXPY_EXTENT else multiply_dot
        units = prod(row[1] for row in kept[1:])
        minimum = max(1, (1 << 16) // (kept[0][1] * len(sums_a)))

        def run(a: Array, a0: int, b: Array, b0: int, d: Array, d0: int) -> None:
            def part(begin: int, end: int) -> None:
                kernel(a, a0, b, b0, d, d0, rows, sums_a, sums_b, begin, end)

            self.workers.map(part, self.workers.split(units, minimum))

        return run


_COMPILED = frozenset(
    {
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *("float32", "float64", "complex64", "complex128"),
    }
)
_BY_SIZE: dict[int, str] = {
    1: "uint8",
    2: "uint16",
    4: "uint32",
    8: "uint64",
    16: "complex128",
}


def _copy_types(source: str, target: str) -> tuple[np.dtype[Any], np.dtype[Any]] | None:
    """The types a copy is compiled for: by size for equal types, so that few are compiled."""
    if source == target and source != "object":
        size = np.dtype(source).itemsize
        if size not in _BY_SIZE:
            return None
        plain = np.dtype(_BY_SIZE[size])
        return plain, plain
    if source in _COMPILED and target in _COMPILED:
        one, two = np.dtype(source), np.dtype(target)
        if one.kind != "c" or two.kind == "c":
            return one, two
    return None


def _offsets(rows: Sequence[LoopRow], operand: int) -> Array:
    """The offset of every combination of the summed loops."""
    offsets = np.zeros(1, np.int64)
    for row in rows:
        steps = np.arange(row[1], dtype=np.int64) * row[2][operand]
        offsets = (steps[:, None] + offsets).ravel()
    return offsets


class _Moves:
    """The loops of a copy in the order they run, as a table of extent, source and target stride.

    ``rows``: source and target share the fastest dimension; row 0 and 1 of the table are the
    innermost loops. Otherwise row 0 is the target's fastest dimension, row 1 the source's, and
    the two make a tile. ``units`` are the independent parts that threads share.
    """

    def __init__(
        self, extents: Sequence[int], source: Sequence[int], target: Sequence[int]
    ) -> None:
        dims = _fused(
            [(n, s, t) for n, s, t in zip(extents, source, target, strict=True) if n != 1]
        )
        dims = dims or [(1, 1, 1)]
        fastest_target = min(dims, key=lambda dim: abs(dim[2]))
        fastest_source = min(dims, key=lambda dim: abs(dim[1]) or 1 << 62)
        self.rows = fastest_source is fastest_target
        first = [fastest_target] if self.rows else [fastest_target, fastest_source]
        # The nearer a loop is in either memory, the further inside it runs.
        rest = sorted(
            (dim for dim in dims if not any(dim is one for one in first)),
            key=lambda dim: min(abs(dim[1]) or 1 << 62, abs(dim[2])),
        )
        ordered = [*first, *rest]
        if len(ordered) == 1:
            ordered.append((1, 0, 0))
        self.loops = np.array(ordered, np.int64)
        outer = prod(dim[0] for dim in ordered[2:])
        n0, n1 = ordered[0][0], ordered[1][0]
        if self.rows:
            self.units, self.unit = outer * n1, n0
        else:
            self.units = outer * ceil(n1 / STRIP) * ceil(n0 / CHUNK)
            self.unit = min(n0, CHUNK) * min(n1, STRIP)


def _fused(dims: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Dimensions contiguous in source and target made one, by increasing target stride."""
    result: list[tuple[int, int, int]] = []
    for extent, source, target in sorted(dims, key=lambda dim: abs(dim[2])):
        if result:
            n, s, t = result[-1]
            if source == s * n and target == t * n:
                result[-1] = (n * extent, s, t)
                continue
        result.append((extent, source, target))
    return result


# --- copies -----------------------------------------------------------------------------------


@compiled
def _start(loops: Array, first: int, unit: int, index: Array) -> tuple[int, int]:
    """Set ``index`` to the unit's place in the loops from ``first`` on; its two offsets."""
    s = t = 0
    for at in range(first, loops.shape[0]):
        index[at] = unit % loops[at, 0]
        unit //= loops[at, 0]
        s += index[at] * loops[at, 1]
        t += index[at] * loops[at, 2]
    return s, t


@compiled
def copy_rows(
    source: Array, s0: int, target: Array, t0: int, loops: Array, begin: int, end: int
) -> None:
    """target = source for units begin..end; a unit is one run of the innermost loop."""
    index = np.zeros(loops.shape[0], np.int64)
    n, ds, dt = loops[0, 0], loops[0, 1], loops[0, 2]
    n1, ds1, dt1 = loops[1, 0], loops[1, 1], loops[1, 2]
    s, t = _start(loops, 1, begin, index)
    s, t = s + s0, t + t0
    unit = begin
    while unit < end:
        stop = min(n1 - index[1], end - unit)
        for j in range(stop):
            sj, tj = s + j * ds1, t + j * dt1
            if ds == 1 and dt == 1:
                for i in range(n):
                    target[np.uint64(tj + i)] = source[np.uint64(sj + i)]
            else:
                for i in range(n):
                    target[np.uint64(tj + i * dt)] = source[np.uint64(sj + i * ds)]
        unit += stop
        s -= index[1] * ds1
        t -= index[1] * dt1
        index[1] = 0
        for at in range(2, loops.shape[0]):
            index[at] += 1
            s += loops[at, 1]
            t += loops[at, 2]
            if index[at] < loops[at, 0]:
                break
            s -= loops[at, 0] * loops[at, 1]
            t -= loops[at, 0] * loops[at, 2]
            index[at] = 0


@compiled
def copy_tiles(
    source: Array, s0: int, target: Array, t0: int, loops: Array, begin: int, end: int
) -> None:
    """target = source for units begin..end; a unit is a strip of STRIP rows by CHUNK elements."""
    index = np.zeros(loops.shape[0], np.int64)
    nq, sq, tq = loops[0, 0], loops[0, 1], loops[0, 2]
    np_, sp, tp = loops[1, 0], loops[1, 1], loops[1, 2]
    strips, chunks = (np_ + STRIP - 1) // STRIP, (nq + CHUNK - 1) // CHUNK
    inner = strips * chunks
    s, t = _start(loops, 2, begin // inner, index)
    s, t = s + s0, t + t0
    within = begin % inner
    for _ in range(begin, end):
        p0 = (within // chunks) * STRIP
        q0 = (within % chunks) * CHUNK
        p1, q1 = min(p0 + STRIP, np_), min(q0 + CHUNK, nq)
        for i0 in range(q0, q1, TILE):
            i1 = min(i0 + TILE, q1)
            for j in range(p0, p1):
                sj, tj = s + j * sp, t + j * tp
                if tq == 1:
                    for i in range(i0, i1):
                        target[np.uint64(tj + i)] = source[np.uint64(sj + i * sq)]
                else:
                    for i in range(i0, i1):
                        target[np.uint64(tj + i * tq)] = source[np.uint64(sj + i * sq)]
        within += 1
        if within == inner:
            within = 0
            for at in range(2, loops.shape[0]):
                index[at] += 1
                s += loops[at, 1]
                t += loops[at, 2]
                if index[at] < loops[at, 0]:
                    break
                s -= loops[at, 0] * loops[at, 1]
                t -= loops[at, 0] * loops[at, 2]
                index[at] = 0


# --- products ---------------------------------------------------------------------------------


def _stacked(kernel: Callable[..., None], a: Array, b: Array, out: Array) -> None:
    """Every matrix product of a stack, written along the output's rows."""
    if abs(out.strides[-2]) < abs(out.strides[-1]):
        a, b, out = b.swapaxes(-1, -2), a.swapaxes(-1, -2), out.swapaxes(-1, -2)
    batch = out.shape[:-2]
    a, b = np.broadcast_to(a, batch + a.shape[-2:]), np.broadcast_to(b, batch + b.shape[-2:])
    for where in np.ndindex(batch):
        kernel(a[where], np.ascontiguousarray(b[where]), out[where])


@compiled
def multiply_integers(a: Array, b: Array, out: Array) -> None:
    """out[m,n] = sum_k a[m,k] * b[k,n], wrapping around; b is row-major."""
    for m in range(out.shape[0]):
        out[m, :] = 0
        row = out[m]
        for k in range(b.shape[0]):
            factor = a[m, k]
            for n in range(b.shape[1]):
                row[n] += factor * b[k, n]


@compiled
def multiply_bits(a: Array, b: Array, out: Array) -> None:
    """out[m,n] = or over k of a[m,k] and b[k,n], as bytes 0 and 1."""
    for m in range(out.shape[0]):
        out[m, :] = 0
        row = out[m]
        for k in range(b.shape[0]):
            if a[m, k]:
                for n in range(b.shape[1]):
                    row[n] |= b[k, n]


@compiled
def _unit_offsets(rows: Array, unit: int) -> tuple[int, int, int]:
    """Offsets in a, b and d of one run of the innermost loop."""
    a = b = d = 0
    for at in range(1, rows.shape[0]):
        index = unit % rows[at, 0]
        unit //= rows[at, 0]
        a += index * rows[at, 1]
        b += index * rows[at, 2]
        d += index * rows[at, 3]
    return a, b, d


@compiled
def multiply_dot(
    a: Array,
    a0: int,
    b: Array,
    b0: int,
    d: Array,
    d0: int,
    rows: Array,
    sums_a: Array,
    sums_b: Array,
    begin: int,
    end: int,
) -> None:
    """d[i] = sum_k a[i + sums_a[k]] * b[i + sums_b[k]] for units begin..end of the outer loops."""
    n, ia, ib, id_ = rows[0, 0], rows[0, 1], rows[0, 2], rows[0, 3]
    for unit in range(begin, end):
        oa, ob, od = _unit_offsets(rows, unit)
        oa, ob, od = oa + a0, ob + b0, od + d0
        for i in range(n):
            total = a[np.uint64(oa + i * ia + sums_a[0])] * b[np.uint64(ob + i * ib + sums_b[0])]
            for k in range(1, sums_a.size):
                total += (
                    a[np.uint64(oa + i * ia + sums_a[k])] * b[np.uint64(ob + i * ib + sums_b[k])]
                )
            d[np.uint64(od + i * id_)] = total


@compiled
def multiply_axpy(
    a: Array,
    a0: int,
    b: Array,
    b0: int,
    d: Array,
    d0: int,
    rows: Array,
    sums_a: Array,
    sums_b: Array,
    begin: int,
    end: int,
) -> None:
    """The same, one vector along d for each k."""
    n, ia, ib, id_ = rows[0, 0], rows[0, 1], rows[0, 2], rows[0, 3]
    for unit in range(begin, end):
        oa, ob, od = _unit_offsets(rows, unit)
        oa, ob, od = oa + a0, ob + b0, od + d0
        for k in range(sums_a.size):
            ka, kb = oa + sums_a[k], ob + sums_b[k]
            if k == 0:
                for i in range(n):
                    d[np.uint64(od + i * id_)] = (
                        a[np.uint64(ka + i * ia)] * b[np.uint64(kb + i * ib)]
                    )
            else:
                for i in range(n):
                    d[np.uint64(od + i * id_)] += (
                        a[np.uint64(ka + i * ia)] * b[np.uint64(kb + i * ib)]
                    )
