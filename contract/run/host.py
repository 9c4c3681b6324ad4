"""Runs a plan on NumPy arrays: each step is prepared once, then called with the slots' arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from math import prod
from typing import Any, assert_never

import ml_dtypes  # noqa: F401  (registers the name bfloat16)
import numpy as np

from contract.descriptors import TensorDescriptor
from contract.layout import offset_bounds, packed_strides, span
from contract.operators import BinaryOperator, Operator
from contract.plan import (
    Elementwise,
    Gemm,
    Gett,
    Kind,
    Loop,
    Permute,
    Plan,
    Reduce,
    Slot,
    Step,
    View,
)
from contract.run.blas_threads import blas_threads
from contract.run.host_kernels import HostKernels, flatten, strided_view
from contract.run.host_operators import apply_operator
from contract.run.host_panels import PanelProduct, panel_bytes
from contract.run.host_views import Array, Viewer, compact_strides, viewer
from contract.run.kernel_families import load_kernels
from contract.run.workers import Workers

__all__ = ["HostExecutor", "LoadedPlan"]

Run = Callable[[Sequence[Array], Any, Any], None]

# Below these sizes a NumPy call is done before a compiled kernel has unpacked its arguments.
SMALL_ELEMENTS = 1 << 13
SMALL_PRODUCT = 1 << 15
TILE_ELEMENTS = 1 << 16  # of an elementwise block: three float64 operands fit L2
BATCH_FLOPS = 1 << 24  # from here on a batch of products is spread over our threads,
BATCH_PARTS = 8  # if it has that many parts; fewer have BLAS's threads, whatever the number of ours
LINE_ELEMENTS = 64  # of a tile along the fastest dimension of every operand


@dataclass(frozen=True, slots=True)
class LoadedPlan:
    """A plan ready to run: one function for each step.

    ``product`` is there where the plan is one plain matrix product: BLAS then makes the result
    array itself, which for small matrices is half of the time.
    """

    plan: Plan
    runs: tuple[Run, ...]
    temporaries: tuple[Callable[[Array], Array], ...]
    scratch_bytes: int
    new_output: Callable[[], Array]
    product: Callable[[Sequence[Array]], Array] | None

    def __call__(
        self, inputs: Sequence[Array], output: Array, addend: Array | None, alpha: Any, beta: Any
    ) -> None:
        """output = alpha * (product of inputs) + beta * addend; alpha = 0 reads no input."""
        if alpha == 0:
            _scale_addend(output, addend, beta)
            return
        slots: list[Any] = [*inputs, output]
        if addend is not None:
            slots.append(addend)
        if self.temporaries:
            workspace = np.empty(self.plan.workspace, np.uint8)
            slots += [make(workspace) for make in self.temporaries]
        for run in self.runs:
            run(slots, alpha, beta)

    @property
    def workspace_bytes(self) -> int:
        """Bytes that a call allocates beside its output."""
        return self.plan.workspace + self.scratch_bytes


class HostExecutor:
    """Prepares plans for the CPU; owns the kernels and the threads they run on."""

    def __init__(self, kernels: str = "auto", threads: int = 0) -> None:
        self.workers = Workers(threads or None)
        self._numpy = load_kernels("numpy", self.workers)
        self._family = kernels
        self._chosen: HostKernels | None = None

    def close(self) -> None:
        """End the threads."""
        self.workers.close()

    @property
    def kernels(self) -> HostKernels:
        """The kernels for data that is not small; loading them may import numba."""
        if self._chosen is None:
            self._chosen = load_kernels(self._family, self.workers)
        return self._chosen

    def load(self, plan: Plan) -> LoadedPlan:
        """Prepare every step of ``plan``."""
        return LoadedPlan(
            plan,
            tuple(self._prepare(plan, step) for step in plan.steps),
            tuple(
                _temporary(slot, offset)
                for slot, offset in zip(plan.slots, plan.offsets, strict=True)
                if offset >= 0
            ),
            max((self._scratch_bytes(plan, step) for step in plan.steps), default=0),
            allocator(plan.slots[plan.output].tensor),
            _plain_product(plan),
        )

    def _prepare(self, plan: Plan, step: Step) -> Run:
        match step:
            case Gemm():
                return self._gemm(plan, step)
            case Gett(panels=None):
                small = step.extent(*Kind) <= SMALL_PRODUCT and _is_plain(plan, step)
                return _small_product(plan, step) if small else self._loops(plan, step)
            case Gett():
                family = self._family_for(step.extent(*Kind), SMALL_PRODUCT)
                return PanelProduct(plan, step, family, self.workers)
            case Permute():
                return self._permute(plan, step)
            case Elementwise():
                return self._elementwise(plan, step)
            case Reduce():
                return self._reduce(plan, step)
        assert_never(step)

    def _scratch_bytes(self, plan: Plan, step: Step) -> int:
        """Bytes that a step allocates at most while it runs."""
        match step:
            case Gemm():
                return 0
            case Gett(panels=None):
                return _converted_bytes(plan, step)
            case Gett():
                return panel_bytes(step, self.workers.threads)
            case Permute() | Elementwise():
                size = np.dtype(step.dtype).itemsize
                tile = min(TILE_ELEMENTS, prod(step.extents))
                return self.workers.threads * 4 * tile * size
            case Reduce():
                return _reduction_bytes(step)
        assert_never(step)

    def _family_for(self, size: int, small: int) -> HostKernels:
        return self._numpy if size <= small else self.kernels

    # --- products -------------------------------------------------------------------------

    def _gemm(self, plan: Plan, step: Gemm) -> Run:
        rows = {kind: [loop for loop in step.loops if loop.kind is kind] for kind in Kind}
        batch = rows[Kind.BATCH][::-1]  # the table has the outermost last
        m, n, k = rows[Kind.M], rows[Kind.N], rows[Kind.K]
        view_a = _matrix_view(plan, step.a, batch, m, k, "a")
        view_b = _matrix_view(plan, step.b, batch, k, n, "b")
        view_d = _matrix_view(plan, step.d, batch, m, n, "d")
        a, b, d, scaled, matmul = step.a, step.b, step.d, step.scaled, np.matmul

        def run(slots: Sequence[Array], alpha: Any, beta: Any) -> None:
            out = view_d(slots[d])
            matmul(view_a(slots[a]), view_b(slots[b]), out=out)
            if scaled and alpha != 1:
                np.multiply(out, alpha, out=out)

        def run_split(slots: Sequence[Array], alpha: Any, beta: Any) -> None:
            left, right, out = view_a(slots[a]), view_b(slots[b]), view_d(slots[d])

            def part(begin: int, end: int) -> None:
                one, two, three = (_slice_first(x, begin, end) for x in (left, right, out))
                matmul(one, two, out=three)
                if scaled and alpha != 1:
                    np.multiply(three, alpha, out=three)

            with blas_threads().single():
                self.workers.map(part, self.workers.split(out.shape[0], 1))

        flops = 2 * step.extent(*Kind)
        shared = batch and batch[0].extent >= BATCH_PARTS and flops > BATCH_FLOPS
        return run_split if shared else run

    def _loops(self, plan: Plan, step: Gett) -> Run:
        """Loop by loop on the operands where they lie; other types are converted first."""
        read_a, strides_a = _loop_reader(plan, step, "a")
        read_b, strides_b = _loop_reader(plan, step, "b")
        final = plan.slots[step.d].tensor.dtype == step.dtype and step.c is None
        of_d = [at for at, loop in enumerate(step.loops) if loop.kind is not Kind.K]
        extents = tuple(step.loops[at].extent for at in of_d)
        view_d = _loop_view(plan, step.d, step, of_d, "d")
        view_c = None if step.c is None else _loop_view(plan, step.c, step, of_d, "c")
        strides_d = tuple(loop.d for loop in step.loops)
        if not final:
            compact, _ = compact_strides(extents, range(len(extents)))
            strides_d = _spread(compact, of_d, len(step.loops))
        family = self._family_for(step.extent(*Kind), SMALL_PRODUCT)
        kernel = family.loops(
            step.dtype,
            [
                (loop.kind.value, loop.extent, (one, two, three))
                for loop, one, two, three in zip(
                    step.loops, strides_a, strides_b, strides_d, strict=True
                )
            ],
        )
        dtype = np.dtype(step.dtype)

        def run(slots: Sequence[Array], alpha: Any, beta: Any) -> None:
            a, b = flatten(read_a(slots[step.a])), flatten(read_b(slots[step.b]))
            if final:
                out = slots[step.d]
                kernel(_aligned(a[0]), a[1], _aligned(b[0]), b[1], *flatten(out))
                if step.scaled and alpha != 1:
                    np.multiply(out, alpha, out=out)
                return
            value = np.empty(extents, dtype, order="F")
            kernel(_aligned(a[0]), a[1], _aligned(b[0]), b[1], *flatten(value))
            addend = None if view_c is None or step.c is None else view_c(slots[step.c])
            _finish(value, view_d(slots[step.d]), step.scaled, alpha, addend, beta)

        return run

    # --- steps without a product ------------------------------------------------------------

    def _permute(self, plan: Plan, step: Permute) -> Run:
        source, target = step.source.view, step.target
        plain = step.source.operator is Operator.IDENTITY and step.addend is None
        general = self._elementwise(
            plan,
            Elementwise(
                (step.source,),
                target,
                step.extents,
                step.modes,
                step.dtype,
                step.scaled,
                step.addend,
            ),
        )
        if not plain:
            return general
        copy = self._copy(plan, source, target, step.extents)
        scaled = step.scaled

        def run(slots: Sequence[Array], alpha: Any, beta: Any) -> None:
            (general if scaled and alpha != 1 else copy)(slots, alpha, beta)

        return run

    def _copy(self, plan: Plan, source: View, target: View, extents: tuple[int, ...]) -> Run:
        tensors = [plan.slots[view.slot].tensor for view in (source, target)]
        if prod(extents) <= SMALL_ELEMENTS:
            read = viewer(tensors[0], extents, source.strides)
            write = viewer(tensors[1], extents, target.strides)
            return lambda slots, alpha, beta: np.copyto(
                write(slots[target.slot]), read(slots[source.slot]), casting="unsafe"
            )
        kernel = self.kernels.copy(
            extents, source.strides, target.strides, tensors[0].dtype, tensors[1].dtype
        )

        def run(slots: Sequence[Array], alpha: Any, beta: Any) -> None:
            flat, origin = flatten(slots[source.slot])
            kernel(_aligned(flat), origin, *flatten(slots[target.slot]))

        return run

    def _elementwise(self, plan: Plan, step: Elementwise) -> Run:
        """Block by block, so that every temporary stays in cache."""
        order = sorted(range(len(step.extents)), key=lambda at: -abs(step.target.strides[at]))
        extents = tuple(step.extents[at] for at in order)
        dtype = np.dtype(step.dtype)
        reads = [(_ordered(plan, s.view, extents, order), s) for s in step.sources]
        write = _ordered(plan, step.target, extents, order)
        plus = None if step.addend is None else _ordered(plan, step.addend, extents, order)
        tiles = _tiles(extents, _line_dimensions(step, order))

        def run(slots: Sequence[Array], alpha: Any, beta: Any) -> None:
            sources = [(read(slots[s.view.slot]), s.operator) for read, s in reads]
            out = write(slots[step.target.slot])
            addend = None if plus is None or step.addend is None else plus(slots[step.addend.slot])

            def part(begin: int, end: int) -> None:
                for tile in tiles[begin:end]:
                    values = [(_tile(x, tile), operator) for x, operator in sources]
                    more = None if addend is None else _tile(addend, tile)
                    _multiply_tile(
                        values, _tile(out, tile), dtype, alpha if step.scaled else 1, more, beta
                    )

            self.workers.map(part, self.workers.split(len(tiles), 4))

        return run

    def _reduce(self, plan: Plan, step: Reduce) -> Run:
        source, target = step.source.view, step.target
        kept = step.extents[: step.kept]
        read = viewer(plan.slots[source.slot].tensor, step.extents, source.strides)
        write = viewer(plan.slots[target.slot].tensor, kept, target.strides)
        kept_view = None
        if step.addend is not None:
            kept_view = viewer(plan.slots[step.addend.slot].tensor, kept, step.addend.strides)
        reduce = self._reduction(plan, step)

        def run(slots: Sequence[Array], alpha: Any, beta: Any) -> None:
            value = reduce(read(slots[source.slot]), slots[source.slot])
            addend = None
            if kept_view is not None and step.addend is not None:
                addend = kept_view(slots[step.addend.slot])
            _finish(value, write(slots[target.slot]), step.scaled, alpha, addend, beta)

        return run

    def _reduction(self, plan: Plan, step: Reduce) -> Callable[[Array, Array], Array]:
        """(view, whole array) -> the reduced values in the type of the sum."""
        kept, reduced = step.extents[: step.kept], step.extents[step.kept :]
        dtype, source = np.dtype(step.dtype), step.source
        ufunc = _UFUNCS[step.operator]
        axes = tuple(range(step.kept, len(step.extents)))
        operator = source.operator
        if prod(step.extents) <= SMALL_ELEMENTS or operator is not Operator.IDENTITY:

            def with_numpy(view: Array, whole: Array) -> Array:
                if operator is not Operator.IDENTITY:
                    view = apply_operator(operator, view.astype(dtype))
                whole = _broadcast(view, step.extents)
                return np.asarray(ufunc.reduce(whole, axis=axes, dtype=dtype))

            return with_numpy
        packed = packed_strides(kept)
        kernel = self.kernels.reduce(
            kept,
            source.view.strides[: step.kept],
            packed,
            reduced,
            source.view.strides[step.kept :],
            step.dtype,
            ufunc,
        )

        def with_kernel(view: Array, whole: Array) -> Array:
            value = np.empty(kept, dtype, order="F")
            flat, origin = flatten(whole)
            kernel(_aligned(flat), origin, *flatten(value))
            return value

        return with_kernel


_UFUNCS: dict[BinaryOperator, np.ufunc] = {
    BinaryOperator.ADD: np.add,
    BinaryOperator.MUL: np.multiply,
    BinaryOperator.MAX: np.maximum,
    BinaryOperator.MIN: np.minimum,
}


# --- allocation -----------------------------------------------------------------------------


def allocator(tensor: TensorDescriptor) -> Callable[[], Array]:
    """A function that makes an uninitialised array with the tensor's extents and strides."""
    extents, dtype = tensor.extents, np.dtype(tensor.dtype)
    empty = np.empty
    if tensor.steps == packed_strides(extents):
        return lambda: empty(extents, dtype, "F")
    if tensor.steps[::-1] == packed_strides(extents[::-1]):
        return lambda: empty(extents, dtype)
    low, _ = offset_bounds(extents, tensor.steps)
    size = max(span(extents, tensor.steps), 1)
    return lambda: strided_view(empty(size, dtype), -low, extents, tensor.steps)


def _temporary(slot: Slot, offset: int) -> Callable[[Array], Array]:
    """A function from the workspace to the slot's array in it."""
    tensor, dtype = slot.tensor, np.dtype(slot.tensor.dtype)
    if dtype.hasobject:
        make = allocator(tensor)
        return lambda workspace: make()
    strides = tuple(step * dtype.itemsize for step in tensor.steps)
    return lambda workspace: np.ndarray(tensor.extents, dtype, workspace, offset, strides)


def _plain_product(plan: Plan) -> Callable[[Sequence[Array]], Array] | None:
    """inputs -> their matrix product, if that is the whole plan and its result a packed matrix."""
    match plan.steps:
        case (Gemm(scaled=True) as step,) if len(plan.slots) == 3 and plan.inputs == 2:
            rows = [[loop for loop in step.loops if loop.kind is kind] for kind in Kind]
        case _:
            return None
    batch, m, n, k = rows
    output = plan.slots[plan.output].tensor
    if batch or not (m and n and k) or len(output.extents) != 2:
        return None
    a, b = step.a, step.b
    view_a, view_b = _matrix_view(plan, a, (), m, k, "a"), _matrix_view(plan, b, (), k, n, "b")
    transposed_a = _matrix_view(plan, a, (), k, m, "a")
    transposed_b = _matrix_view(plan, b, (), n, k, "b")
    match (m[0].d, n[0].d):
        case (rows_apart, 1) if rows_apart == n[0].extent:
            row_major = True
        case (1, columns_apart) if columns_apart == m[0].extent:
            row_major = False
        case _:
            return None
    if output.steps == (m[0].d, n[0].d):
        if row_major:
            return lambda inputs: view_a(inputs[a]).dot(view_b(inputs[b]))
        return lambda inputs: transposed_b(inputs[b]).dot(transposed_a(inputs[a])).T
    if row_major:
        return lambda inputs: view_a(inputs[a]).dot(view_b(inputs[b])).T
    return lambda inputs: transposed_b(inputs[b]).dot(transposed_a(inputs[a]))


def _is_plain(plan: Plan, step: Gett) -> bool:
    """Whether nothing is converted, transformed or added on the way."""
    types = {plan.slots[slot].tensor.dtype for slot in (step.a, step.b, step.d)}
    operators = {step.operator_a, step.operator_b}
    return types == {step.dtype} and operators == {Operator.IDENTITY} and step.c is None


def _small_product(plan: Plan, step: Gett) -> Run:
    """NumPy's own loops on views made the cheapest way: for small products calls are all."""
    a, b, d, scaled = step.a, step.b, step.d, step.scaled
    of_a, of_b, of_d = (
        [at for at, loop in enumerate(step.loops) if loop.kind is not lacks]
        for lacks in (Kind.N, Kind.M, Kind.K)
    )
    view_a = _loop_view(plan, a, step, of_a, "a")
    view_b = _loop_view(plan, b, step, of_b, "b")
    view_d = _loop_view(plan, d, step, of_d, "d")
    einsum, multiply = np.einsum, np.multiply

    def run(slots: Sequence[Array], alpha: Any, beta: Any) -> None:
        out = view_d(slots[d])
        einsum(view_a(slots[a]), of_a, view_b(slots[b]), of_b, of_d, out=out)
        if scaled and alpha != 1:
            multiply(out, alpha, out=out)

    return run


# --- views ----------------------------------------------------------------------------------


def _matrix_view(
    plan: Plan,
    slot: int,
    batch: Sequence[Loop],
    rows: Sequence[Loop],
    columns: Sequence[Loop],
    name: str,
) -> Viewer:
    """Batch dimensions, the rows, the columns; a missing row has extent 1."""
    dimensions = [(loop.extent, int(getattr(loop, name))) for loop in batch]
    for group in (rows, columns):
        assert len(group) <= 1, "a Gemm has at most one row of m, n and k each"
        dimensions += [(loop.extent, int(getattr(loop, name))) for loop in group] or [(1, 0)]
    extents, strides = zip(*dimensions, strict=True)
    return viewer(plan.slots[slot].tensor, extents, strides)


def _slice_first(x: Array, begin: int, end: int) -> Array:
    return x if x.shape[0] == 1 else x[begin:end]


def _loop_view(plan: Plan, slot: int, step: Gett, loops: Sequence[int], name: str) -> Viewer:
    return viewer(
        plan.slots[slot].tensor,
        [step.loops[at].extent for at in loops],
        [int(getattr(step.loops[at], name)) for at in loops],
    )


def _loop_reader(plan: Plan, step: Gett, name: str) -> tuple[Viewer, tuple[int, ...]]:
    """A function that gives the operand in the step's type, and its stride for each loop."""
    slot = step.a if name == "a" else step.b
    operator = step.operator_a if name == "a" else step.operator_b
    strides = tuple(int(getattr(loop, name)) for loop in step.loops)
    if plan.slots[slot].tensor.dtype == step.dtype and operator is Operator.IDENTITY:
        return (lambda x: x), strides
    own = [at for at, stride in enumerate(strides) if stride]
    extents = tuple(step.loops[at].extent for at in own)
    view = viewer(plan.slots[slot].tensor, extents, [strides[at] for at in own])
    compact, _ = compact_strides(extents, range(len(extents)))
    dtype = np.dtype(step.dtype)
    return (
        lambda x: apply_operator(operator, view(x).astype(dtype, order="F")),
        _spread(compact, own, len(strides)),
    )


def _spread(values: Sequence[int], at: Sequence[int], length: int) -> tuple[int, ...]:
    result = [0] * length
    for value, index in zip(values, at, strict=True):
        result[index] = value
    return tuple(result)


def _ordered(plan: Plan, view: View, extents: tuple[int, ...], order: Sequence[int]) -> Viewer:
    strides = [view.strides[at] for at in order]
    return viewer(plan.slots[view.slot].tensor, extents, strides)


def _broadcast(x: Array, shape: tuple[int, ...]) -> Array:
    return x if x.shape == shape else np.broadcast_to(x, shape)


def _aligned(flat: Array) -> Array:
    """Compiled kernels read aligned memory only."""
    return flat if flat.flags.aligned else flat.copy()


# --- what a call allocates -------------------------------------------------------------------


def _converted_bytes(plan: Plan, step: Gett) -> int:
    """Converted operands and a result that is not yet D, of a product loop by loop."""
    size = np.dtype(step.dtype).itemsize
    needed = 0
    for slot, operator, kinds in (
        (step.a, step.operator_a, (Kind.BATCH, Kind.M, Kind.K)),
        (step.b, step.operator_b, (Kind.BATCH, Kind.N, Kind.K)),
    ):
        if plan.slots[slot].tensor.dtype != step.dtype or operator is not Operator.IDENTITY:
            needed += step.extent(*kinds) * size
    if plan.slots[step.d].tensor.dtype != step.dtype or step.c is not None:
        needed += 3 * step.extent(Kind.BATCH, Kind.M, Kind.N) * size
    return needed


def _reduction_bytes(step: Reduce) -> int:
    """The reduced values, twice where C is added, and an operand its operator was applied to."""
    size = np.dtype(step.dtype).itemsize
    kept = prod(step.extents[: step.kept])
    needed = kept * (1 if step.addend is None else 3)
    if step.source.operator is not Operator.IDENTITY:
        strides = step.source.view.strides
        needed += prod(n for n, s in zip(step.extents, strides, strict=True) if s)
    return needed * size


# --- elements -------------------------------------------------------------------------------


def _line_dimensions(step: Elementwise, order: Sequence[int]) -> set[int]:
    """The places in ``order`` of each operand's fastest dimension."""
    views = [step.target, *(source.view for source in step.sources)]
    places = set()
    for view in views:
        moving = [at for at in order if view.strides[at] and step.extents[at] > 1]
        if moving:
            places.add(order.index(min(moving, key=lambda at: abs(view.strides[at]))))
    return places


def _tiles(extents: tuple[int, ...], lines: set[int]) -> list[tuple[slice, ...]]:
    """Slices that cover the extents in blocks that stay in cache, the last dimension fastest.

    Every operand's fastest dimension gets whole cache lines; then inner dimensions grow first.
    """
    blocks = [min(n, LINE_ELEMENTS) if at in lines else 1 for at, n in enumerate(extents)]
    for at in reversed(range(len(extents))):
        room = TILE_ELEMENTS // max(prod(blocks) // max(blocks[at], 1), 1)
        blocks[at] = max(blocks[at], min(extents[at], room))
    ranges = [
        [slice(start, start + block) for start in range(0, extent, max(block, 1))]
        for extent, block in zip(extents, blocks, strict=True)
    ]
    return list(combinations(*ranges))


def _tile(x: Array, tile: tuple[slice, ...]) -> Array:
    """The part of ``x`` that broadcasts over a tile of the result."""
    parts: list[Any] = [
        slice(None) if n == 1 else part for n, part in zip(x.shape, tile, strict=True)
    ]
    return x[(*parts, ...)]  # the Ellipsis keeps rank 0 an array


def _multiply_tile(
    sources: Sequence[tuple[Array, Operator]],
    out: Array,
    dtype: np.dtype[Any],
    alpha: Any,
    addend: Array | None,
    beta: Any,
) -> None:
    """out = alpha * prod op(source) + beta * addend."""
    values = [
        x if operator is Operator.IDENTITY else apply_operator(operator, x.astype(dtype))
        for x, operator in sources
    ]
    direct = addend is None and alpha == 1
    if direct and len(values) == 2 and out.dtype == dtype:
        np.multiply(values[0], values[1], out=out, dtype=dtype, casting="unsafe")
        return
    if not values:
        total = np.zeros(out.shape, dtype)
    else:
        total = np.broadcast_to(values[0], out.shape).astype(dtype)
        for value in values[1:]:
            np.multiply(total, value, out=total, dtype=dtype, casting="unsafe")
    _finish(total, out, True, alpha, addend, beta)


def _finish(
    value: Array, out: Array, scaled: bool, alpha: Any, addend: Array | None, beta: Any
) -> None:
    """out = [alpha *] value [+ beta * addend]; ``value`` is ours and is overwritten."""
    if scaled and alpha != 1:
        value = np.asarray(np.multiply(value, alpha, out=value if value.ndim else None))
    if addend is not None:
        value = value + beta * addend.astype(value.dtype)
    np.copyto(out, value, casting="unsafe")


def _scale_addend(output: Array, addend: Array | None, beta: Any) -> None:
    """D = beta * C, or zeros: what alpha = 0 leaves."""
    if addend is None or beta == 0:
        output[...] = 0
    else:
        np.multiply(addend, beta, out=output, casting="unsafe")
