"""The compiled host kernels: the inner loops as Numba functions, and how they are prepared.

Threads are ours (nogil functions on parts of a loop), for Numba's own threading aborts the
process when two Python threads enter it at once.
Copies address bytes: only the width of an element is compiled, not its type.
"""

from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types

from contract.operators import BinaryOperator
from contract.run.host_kernels import (
    PARALLEL_BYTES,
    CopyKernel,
    LoopRow,
    MatmulKernel,
    ProductKernel,
)
from contract.run.host_views import Array
from contract.run.numba_reductions import is_reduced, reduction
from contract.run.numba_tools import compiled, emitted
from contract.run.numpy_kernels import NumpyKernels

__all__ = ["NumbaKernels"]

LINE = 64
# Blocks of a copy, bytes. Memory is read and written at full speed in runs of about a quarter of
# a page; shorter runs each wait for a line and, without huge pages, for a page's address.
# Measured on a Cascade Lake with 1 MiB of second-level cache, which holds a staged block.
SOURCE_RUN = 256
STAGED_BLOCK = 1 << 18
LONGEST_RUN = 1 << 12
TARGET_RUN = 1024
STAGED_BYTES = 1 << 22  # smaller targets stay in cache, where staging only adds work
LONGEST_ELEMENT = 256  # longer runs are copied one by one
AHEAD = 2  # tiles between asking for lines and reading them
ROW_BYTES = 1 << 13  # of a contiguous run copied as one
REGION_BYTES = 1 << 12  # of the two innermost loops of other copies
MOST_SUMMED = 1 << 16  # entries of the offset tables of a direct product
AXPY_EXTENT = 16  # from here on vectors along d beat sums along k


class NumbaKernels(NumpyKernels):
    """Compiled copies, reductions and products; types that Numba lacks stay with NumPy."""

    name = "numba"

    def copy(
        self,
        extents: Sequence[int],
        source_strides: Sequence[int],
        target_strides: Sequence[int],
        source_dtype: str,
        target_dtype: str,
    ) -> CopyKernel:
        one, two = np.dtype(source_dtype), np.dtype(target_dtype)
        if not _is_compiled(one, two) or 0 in extents:
            return super().copy(extents, source_strides, target_strides, source_dtype, target_dtype)
        sizes = one.itemsize, two.itemsize
        dims, shift_s, shift_t = _dims(extents, source_strides, target_strides, sizes)
        region = (
            _byte_region(dims, sizes[0]) if one == two else _element_region(dims, _kinds(one, two))
        )
        kernel, what, first, second, loops, units, unit_bytes = region
        minimum = max(1, PARALLEL_BYTES // unit_bytes)
        byte = np.dtype(np.uint8)

        def run(source: Array, source_offset: int, target: Array, target_offset: int) -> None:
            read, write = source.view(byte), target.view(byte)
            s, t = source_offset * sizes[0] + shift_s, target_offset * sizes[1] + shift_t
            if units < 2 * minimum:
                kernel(what, read, s, write, t, first, second, loops, 0, units)
                return

            def part(begin: int, end: int) -> None:
                kernel(what, read, s, write, t, first, second, loops, begin, end)

            self.workers.map(part, self.workers.split(units, minimum))

        return run

    def reduces(self, source_dtype: str, target_dtype: str) -> bool:
        return source_dtype == target_dtype or is_reduced(source_dtype, target_dtype)

    def reduce(
        self,
        extents: Sequence[int],
        source_strides: Sequence[int],
        target_strides: Sequence[int],
        reduced_extents: Sequence[int],
        reduced_strides: Sequence[int],
        source_dtype: str,
        target_dtype: str,
        operator: BinaryOperator,
    ) -> CopyKernel:
        kept = extents, source_strides, target_strides
        reduced = reduced_extents, reduced_strides
        types = source_dtype, target_dtype
        found = reduction(*kept, *reduced, *types, operator)
        return super().reduce(*kept, *reduced, *types, operator) if found is None else found

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
# A value of the type whose width is copied, and how many of them a row of a tile holds: a whole
# line where the registers suffice for a square of such rows.
_KINDS: dict[int, Any] = {
    1: np.uint8(0),
    2: np.uint16(0),
    4: np.uint32(0),
    8: np.uint64(0),
    16: np.complex128(0),
}
_LANES = {1: 16, 2: 16, 4: 16, 8: 8, 16: 4}


def _is_compiled(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether there is a compiled copy; conversions that NumPy warns about are NumPy's."""
    if source == target:
        return source.itemsize in _KINDS and not source.hasobject
    if source.name not in _COMPILED or target.name not in _COMPILED:
        return False
    return "iufc".index(source.kind.replace("u", "i")) <= "iufc".index(
        target.kind.replace("u", "i")
    )


def _kinds(source: np.dtype[Any], target: np.dtype[Any]) -> tuple[Any, Any]:
    return source.type(0), target.type(0)


def _offsets(rows: Sequence[LoopRow], operand: int) -> Array:
    """The offset of every combination of the summed loops."""
    offsets = np.zeros(1, np.int64)
    for row in rows:
        steps = np.arange(row[1], dtype=np.int64) * row[2][operand]
        offsets = (steps[:, None] + offsets).ravel()
    return offsets


# --- how a copy is blocked --------------------------------------------------------------------


class _Dim(NamedTuple):
    """One loop: extent and the bytes a step moves in source and target."""

    extent: int
    source: int
    target: int

    @property
    def nearness(self) -> int:
        """The nearer a loop is in either memory, the further inside it runs."""
        return min(abs(self.source) or 1 << 62, abs(self.target))


class _Blocks(NamedTuple):
    """Loops of ``pieces`` blocks of ``block`` steps; the last one starts ``clip`` steps early."""

    pieces: int
    block: int
    clip: int

    @classmethod
    def of(cls, extent: int, most: int, grain: int = 1) -> "_Blocks":
        """Blocks of about equal size, at most ``most`` long, multiples of ``grain``."""
        block = ceil(extent / ceil(extent / max(most, 1)))
        block = min(ceil(block / grain) * grain, extent)
        count = ceil(extent / block)
        return cls(count, block, count * block - extent)

    def loop(self, dim: _Dim) -> tuple[int, ...]:
        """The row of the table of outer loops."""
        step_s, step_t = self.block * dim.source, self.block * dim.target
        return self.pieces, step_s, step_t, self.clip * dim.source, self.clip * dim.target


class _Region(NamedTuple):
    """The innermost part of a copy and the loops around it."""

    kernel: Callable[..., None]
    what: Any  # the kind of an element, two kinds, or the bytes of a run
    first: Array  # where the kernel finds the elements of one place
    second: Array
    loops: Array  # where: extent, steps and clips of source and target
    units: int
    unit_bytes: int


def _dims(
    extents: Sequence[int], source: Sequence[int], target: Sequence[int], sizes: tuple[int, int]
) -> tuple[list[_Dim], int, int]:
    """Loops in bytes by increasing target stride, all positive there, and the two start shifts."""
    dims = []
    shift_s = shift_t = 0
    for n, s, t in zip(extents, source, target, strict=True):
        if n == 1:
            continue
        s, t = int(s) * sizes[0], int(t) * sizes[1]
        if t < 0:
            shift_s, shift_t = shift_s + s * (n - 1), shift_t + t * (n - 1)
            s, t = -s, -t
        dims.append(_Dim(n, s, t))
    return _fused(dims), shift_s, shift_t


def _fused(dims: list[_Dim]) -> list[_Dim]:
    """Dimensions contiguous in source and target made one, by increasing target stride."""
    result: list[_Dim] = []
    for dim in sorted(dims, key=lambda dim: (dim.target, abs(dim.source))):
        if result:
            n, s, t = result[-1]
            if dim.source == s * n and dim.target == t * n:
                result[-1] = _Dim(n * dim.extent, s, t)
                continue
        result.append(dim)
    return result


def _loop_table(rows: list[tuple[int, ...]]) -> tuple[Array, int]:
    """Outer loops, the innermost first, and how many places they visit."""
    rows = [row for row in rows if row[0] > 1] or [(1, 0, 0, 0, 0)]

    def nearness(row: tuple[int, ...]) -> int:
        return _Dim(*row[:3]).nearness

    return np.array(sorted(rows, key=nearness), np.int64), prod(row[0] for row in rows)


def _byte_region(dims: list[_Dim], width: int) -> _Region:
    """The best way to copy elements of ``width`` bytes."""
    if dims and dims[0].source == dims[0].target == width:
        first, dims = dims[0], dims[1:]
        blocks = _Blocks.of(first.extent, max(ROW_BYTES // width, 1))
        width *= blocks.block
        if blocks.pieces > 1 or width > LONGEST_ELEMENT:
            return _run_region(dims, width, [blocks.loop(first)])
    if (region := _rectangle_region(dims, width)) is not None:
        return region
    if width in _KINDS:
        return _element_region(dims, (_KINDS[width], _KINDS[width]))
    return _run_region(dims, width, [])


def _rectangle_region(dims: list[_Dim], width: int) -> _Region | None:
    """Rectangles of long runs on both sides, or None where there are no such runs."""
    p = next((dim for dim in dims if dim.source == width), None)
    q = next((dim for dim in dims if dim.target == width), None)
    if p is None or q is None or p is q:
        return None
    staged = width * prod(dim.extent for dim in dims) >= STAGED_BYTES
    most = min(STAGED_BLOCK // TARGET_RUN * width, LONGEST_RUN) if staged else SOURCE_RUN
    ps, qs = _runs(dims, p, q, most // width, TARGET_RUN // width)
    lanes = _LANES.get(width, 1)
    p_blocks = _last_blocks(ps, most // width, lanes)
    q_blocks = _last_blocks(qs, TARGET_RUN // width, lanes)
    to, at = _offsets_of(ps, p_blocks.block, 2), _offsets_of(qs, q_blocks.block, 1)
    if min(to.size, at.size) < lanes:
        return None
    rest = [_Blocks(dim.extent, 1, 0).loop(dim) for dim in dims if dim not in (*ps, *qs)]
    loops, units = _loop_table([p_blocks.loop(ps[-1]), q_blocks.loop(qs[-1]), *rest])
    # An odd number of lines between its rows spreads the buffer over the sets of the cache.
    pitch = (at.size * width // LINE + 1 | 1) * LINE if staged else 0
    kernel = transpose_tiles if width in _KINDS else transpose_runs
    what = (_KINDS.get(width, width), pitch)
    return _Region(kernel, what, at, to, loops, units, to.size * at.size * width)


def _runs(
    dims: list[_Dim], p: _Dim, q: _Dim, most_p: int, most_q: int
) -> tuple[list[_Dim], list[_Dim]]:
    """``p`` and ``q``, each with the dimensions that continue it in source or target memory.

    The run that is shorter for what it should be takes the next dimension both could have.
    """
    ps, qs = [p], [q]
    while True:
        size_p, size_q = prod(dim.extent for dim in ps), prod(dim.extent for dim in qs)
        rest = [dim for dim in dims if dim not in (*ps, *qs)]
        next_p = [dim for dim in rest if dim.source == p.source * size_p and size_p < most_p]
        next_q = [dim for dim in rest if dim.target == q.target * size_q and size_q < most_q]
        if next_p and (not next_q or size_p * most_q <= size_q * most_p):
            ps.append(next_p[0])
        elif next_q:
            qs.append(next_q[0])
        else:
            return ps, qs


def _last_blocks(chain: list[_Dim], most: int, lanes: int) -> _Blocks:
    """Blocks of the last dimension of a run, the others staying whole."""
    inner = prod(dim.extent for dim in chain[:-1])
    return _Blocks.of(chain[-1].extent, max(most // inner, 1), lanes if inner == 1 else 1)


def _offsets_of(chain: list[_Dim], block: int, side: int) -> Array:
    """Where each element of a run lies on the other side."""
    offsets = np.zeros(1, np.int64)
    for at, dim in enumerate(chain):
        extent = block if at == len(chain) - 1 else dim.extent
        offsets = (np.arange(extent, dtype=np.int64)[:, None] * dim[side] + offsets).ravel()
    return offsets


def _run_region(dims: list[_Dim], run: int, rows: list[tuple[int, ...]]) -> _Region:
    """Runs of ``run`` bytes, two loops of them at a time."""
    two, rest = _two_loops(dims, max(REGION_BYTES // run, 1))
    loops, units = _loop_table(rows + rest)
    return _Region(copy_runs, run, two, two[:0], loops, units, run * int(two[0, 0] * two[1, 0]))


def _element_region(dims: list[_Dim], kinds: tuple[Any, Any]) -> _Region:
    """Single elements, each loaded, converted and stored."""
    width: int = kinds[1].itemsize
    two, rest = _two_loops(dims, REGION_BYTES // width)
    loops, units = _loop_table(rest)
    size = width * int(two[0, 0] * two[1, 0])
    return _Region(copy_elements, kinds, two, two[:0], loops, units, size)


def _two_loops(dims: list[_Dim], most: int) -> tuple[Array, list[tuple[int, ...]]]:
    """The two innermost loops, blocked, the longer one first, and the loops around them.

    They are the fastest of the target and of the source, so that both use whole lines.
    """
    if not dims:
        return np.array([(1, 0, 0), (1, 0, 0)], np.int64), []
    q = dims[0]
    others = sorted(dims[1:], key=lambda dim: abs(dim.source) or 1 << 62)
    p = others[0] if others else _Dim(1, 0, 0)
    same = abs(q.source) <= abs(p.source) or not others
    side = most if same else max(int(most**0.5), most // p.extent)
    q_blocks = _Blocks.of(q.extent, side)
    p_blocks = _Blocks.of(p.extent, max(most // q_blocks.block, 1))
    two = [(q_blocks.block, q.source, q.target), (p_blocks.block, p.source, p.target)]
    if p_blocks.block > 4 * q_blocks.block:
        two.reverse()
    rest = [_Blocks(dim.extent, 1, 0).loop(dim) for dim in dims[1:] if dim is not p]
    return np.array(two, np.int64), [q_blocks.loop(q), p_blocks.loop(p), *rest]


# --- instructions ---------------------------------------------------------------------------


@emitted
def _convert(context: Any, kinds: Any, source: Any, target: Any) -> Any:
    """Load a value at one address, convert it, store it at another; aligned or not."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one, two = (codegen.get_value_type(kind) for kind in kinds)
        value = builder.load(builder.inttoptr(arguments[1], one.as_pointer()), align=1)
        value = codegen.cast(builder, value, kinds[0], kinds[1])
        builder.store(value, builder.inttoptr(arguments[2], two.as_pointer()), align=1)
        return codegen.get_dummy_value()

    return types.void(kinds, types.intp, types.intp), write


@emitted
def _move(context: Any, width: Any, source: Any, target: Any) -> Any:
    """Move a literal number of bytes through one register."""
    size = width.literal_value

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element: Any = ir.IntType(8 * size)
        if size > 8:
            element = ir.VectorType(ir.IntType(64), size // 8)
        origin = builder.inttoptr(arguments[1], element.as_pointer())
        place = builder.inttoptr(arguments[2], element.as_pointer())
        builder.store(builder.load(origin, align=1), place, align=1)
        return codegen.get_dummy_value()

    return types.void(width, types.intp, types.intp), write


@emitted
def _size(context: Any, kind: Any) -> Any:
    """Bytes of an element of type ``kind``."""
    return _constant(kind, kind.bitwidth // 8)


@emitted
def _lanes(context: Any, kind: Any) -> Any:
    """Rows of a tile of elements of type ``kind``."""
    return _constant(kind, _LANES[kind.bitwidth // 8])


def _constant(kind: Any, value: int) -> Any:
    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return codegen.get_constant(types.intp, value)

    return types.intp(kind), write


@emitted
def _transpose(context: Any, kind: Any, source: Any, at: Any, target: Any, to: Any) -> Any:
    """target[to[j] + i] = source[at[i] + j] on one tile; ``at`` and ``to`` are addresses.

    log2(lanes) rounds of interleaving row i with row i + lanes/2 transpose a square.
    """
    width = kind.bitwidth // 8
    lanes = _LANES[width]
    pieces = max(1, width // 8)  # LLVM shuffles elements of up to 8 bytes
    vector = ir.VectorType(ir.IntType(8 * width // pieces), lanes * pieces)

    def places(builder: Any, base: Any, offsets: Any) -> list[Any]:
        word = ir.IntType(64)
        table = builder.inttoptr(offsets, word.as_pointer())
        steps = [builder.gep(table, [ir.Constant(word, i)]) for i in range(lanes)]
        sums = [builder.add(base, builder.load(step)) for step in steps]
        return [builder.inttoptr(each, vector.as_pointer()) for each in sums]

    def interleaved(builder: Any, one: Any, two: Any, begin: int) -> Any:
        order = [
            (at // 2 + begin + (at % 2) * lanes) * pieces + piece
            for at in range(lanes)
            for piece in range(pieces)
        ]
        mask = ir.Constant(ir.VectorType(ir.IntType(32), lanes * pieces), order)
        return builder.shuffle_vector(one, two, mask)

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, s, at, t, to = arguments
        half = lanes // 2
        rows = [builder.load(place, align=1) for place in places(builder, s, at)]
        for _ in range(lanes.bit_length() - 1):
            pairs = list(zip(rows[:half], rows[half:], strict=True))
            rows = [interleaved(builder, *pair, begin) for pair in pairs for begin in (0, half)]
        for row, place in zip(rows, places(builder, t, to), strict=True):
            builder.store(row, place, align=1)
        return codegen.get_dummy_value()

    return types.void(kind, *[types.intp] * 4), write


@emitted
def _fetch_tile(context: Any, kind: Any, source: Any, at: Any) -> Any:
    """Ask for the lines a tile will read: its rows lie on pages the processor does not foresee."""
    lanes = _LANES[kind.bitwidth // 8]

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        table = builder.inttoptr(arguments[2], word.as_pointer())
        for i in range(lanes):
            step = builder.load(builder.gep(table, [ir.Constant(word, i)]))
            _prefetch(builder, builder.add(arguments[1], step), writes=0)
        return codegen.get_dummy_value()

    return types.void(kind, types.intp, types.intp), write


@emitted
def _fetch_line(context: Any, address: Any) -> Any:
    """Ask for a line that will be written."""

    def write(codegen: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _prefetch(builder, arguments[0], writes=1)
        return codegen.get_dummy_value()

    return types.void(types.intp), write


def _prefetch(builder: Any, address: Any, writes: int) -> None:
    byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    keep, data = 3, 1
    hints = (ir.Constant(flag, hint) for hint in (writes, keep, data))
    builder.call(fetch, [builder.inttoptr(address, byte), *hints])


# --- copies ---------------------------------------------------------------------------


@compiled
def _place(loops: Array, unit: int, index: Array) -> tuple[int, int]:
    """Set ``index`` to the unit's place in the loops; its two offsets."""
    s = t = 0
    for at in range(loops.shape[0]):
        index[at] = unit % loops[at, 0]
        unit //= loops[at, 0]
        last = 1 if index[at] == loops[at, 0] - 1 else 0
        s += index[at] * loops[at, 1] - last * loops[at, 3]
        t += index[at] * loops[at, 2] - last * loops[at, 4]
    return s, t


@compiled
def _advance(loops: Array, index: Array, s: int, t: int) -> tuple[int, int]:
    """The offsets of the next unit."""
    for at in range(loops.shape[0]):
        index[at] += 1
        left = loops[at, 0] - index[at]
        if left > 0:
            last = 1 if left == 1 else 0
            s += loops[at, 1] - last * loops[at, 3]
            t += loops[at, 2] - last * loops[at, 4]
            break
        index[at] = 0
        s -= (loops[at, 0] - 1) * loops[at, 1] - loops[at, 3]
        t -= (loops[at, 0] - 1) * loops[at, 2] - loops[at, 4]
    return s, t


@compiled
def _move_run(s: int, t: int, run: int) -> None:
    """``run`` bytes, the last piece overlapping the one before it."""
    if run >= 64:
        for at in range(0, run - 63, 64):
            _move(64, s + at, t + at)
        _move(64, s + run - 64, t + run - 64)
    elif run >= 32:
        _move(32, s, t)
        _move(32, s + run - 32, t + run - 32)
    elif run >= 16:
        _move(16, s, t)
        _move(16, s + run - 16, t + run - 16)
    elif run >= 8:
        _move(8, s, t)
        _move(8, s + run - 8, t + run - 8)
    elif run >= 4:
        _move(4, s, t)
        _move(4, s + run - 4, t + run - 4)
    else:
        for at in range(run):
            _move(1, s + at, t + at)


@compiled
def copy_runs(
    run: int,
    source: Array,
    s0: int,
    target: Array,
    t0: int,
    two: Array,
    _: Array,
    loops: Array,
    begin: int,
    end: int,
) -> None:
    """target = source for units begin..end; a unit is two loops of runs of bytes."""
    index = np.zeros(loops.shape[0], np.int64)
    s, t = _place(loops, begin, index)
    s, t = s + s0 + source.ctypes.data, t + t0 + target.ctypes.data
    n, si, ti = two[0, 0], two[0, 1], two[0, 2]
    for _unit in range(begin, end):
        for j in range(two[1, 0]):
            a, b = s + j * two[1, 1], t + j * two[1, 2]
            for i in range(n):
                _move_run(a + i * si, b + i * ti, run)
        s, t = _advance(loops, index, s, t)


@compiled
def copy_elements(
    kinds: Any,
    source: Array,
    s0: int,
    target: Array,
    t0: int,
    two: Array,
    _: Array,
    loops: Array,
    begin: int,
    end: int,
) -> None:
    """The same with single elements, converted."""
    index = np.zeros(loops.shape[0], np.int64)
    s, t = _place(loops, begin, index)
    s, t = s + s0 + source.ctypes.data, t + t0 + target.ctypes.data
    n, si, ti = two[0, 0], two[0, 1], two[0, 2]
    one, other = _size(kinds[0]), _size(kinds[1])
    for _unit in range(begin, end):
        for j in range(two[1, 0]):
            a, b = s + j * two[1, 1], t + j * two[1, 2]
            if si == one and ti == other:
                for i in range(n):
                    _convert(kinds, a + i * one, b + i * other)
            elif ti == other:
                for i in range(n):
                    _convert(kinds, a + i * si, b + i * other)
            else:
                for i in range(n):
                    _convert(kinds, a + i * si, b + i * ti)
        s, t = _advance(loops, index, s, t)


@compiled
def transpose_tiles(
    what: Any,
    source: Array,
    s0: int,
    target: Array,
    t0: int,
    at: Array,
    to: Array,
    loops: Array,
    begin: int,
    end: int,
) -> None:
    """The same where source and target have different fastest dimensions.

    A unit is a rectangle: ``at[i]`` bytes on in the source and i elements on in the target, j
    elements on in the source and ``to[j]`` bytes on in the target. With a pitch it is first
    transposed into a buffer of such rows, then written row by row: long runs, page by page.
    """
    kind, pitch = what
    index = np.zeros(loops.shape[0], np.int64)
    s, t = _place(loops, begin, index)
    s, t = s + s0 + source.ctypes.data, t + t0 + target.ctypes.data
    buffer = np.empty(to.size * pitch, np.uint8)
    rows = np.arange(to.size) * pitch
    for _ in range(begin, end):
        if pitch > 0:
            _rectangle(kind, s, at, buffer.ctypes.data, rows)
            _write_rows(buffer.ctypes.data, pitch, t, to, at.size * _size(kind))
        else:
            _rectangle(kind, s, at, t, to)
        s, t = _advance(loops, index, s, t)
    buffer[:1], rows[:1] = 0, 0  # Numba frees an array after its last use by name


@compiled
def transpose_runs(
    what: Any,
    source: Array,
    s0: int,
    target: Array,
    t0: int,
    at: Array,
    to: Array,
    loops: Array,
    begin: int,
    end: int,
) -> None:
    """The same with short runs of bytes for elements."""
    run, pitch = what
    index = np.zeros(loops.shape[0], np.int64)
    s, t = _place(loops, begin, index)
    s, t = s + s0 + source.ctypes.data, t + t0 + target.ctypes.data
    buffer = np.empty(to.size * pitch, np.uint8)
    for _ in range(begin, end):
        for i in range(at.size):
            if pitch > 0:
                _gather_runs(s + at[i], buffer.ctypes.data + i * run, pitch, to.size, run)
            else:
                for j in range(to.size):
                    _move_run(s + at[i] + j * run, t + i * run + to[j], run)
        if pitch > 0:
            _write_rows(buffer.ctypes.data, pitch, t, to, at.size * run)
        s, t = _advance(loops, index, s, t)
    buffer[:1] = 0  # Numba frees an array after its last use by name


@compiled
def _gather_runs(s: int, t: int, pitch: int, count: int, run: int) -> None:
    for j in range(count):
        _move_run(s + j * run, t + j * pitch, run)


@compiled
def _rectangle(kind: Any, s: int, at: Array, t: int, to: Array) -> None:
    """Tiles that cover a rectangle; the last ones overlap those before them."""
    lanes, width = _lanes(kind), _size(kind)
    last_i, last_j = at.size - lanes, to.size - lanes
    ats, tos = at.ctypes.data, to.ctypes.data
    for i in range(0, at.size, lanes):
        i0 = min(i, last_i)
        for j in range(0, to.size, lanes):
            next_i, next_j = i0, j + AHEAD * lanes
            if next_j >= to.size:
                next_i, next_j = min(i + lanes, last_i), min(next_j - to.size, last_j)
            _fetch_tile(kind, s + next_j * width, ats + 8 * next_i)
            j0 = min(j, last_j)
            _transpose(kind, s + j0 * width, ats + 8 * i0, t + i0 * width, tos + 8 * j0)


@compiled
def _write_rows(s: int, pitch: int, t: int, to: Array, run: int) -> None:
    """Rows of the buffer to memory, asking early for the lines of the next row."""
    for j in range(to.size):
        following = t + to[min(j + 1, to.size - 1)]
        for at in range(0, run, LINE):
            _fetch_line(following + at)
        _move_run(s + j * pitch, t + to[j], run)


# --- products ---------------------------------------------------------------------------


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
