"""Matrix products and products loop by loop on the host: Gemm, and Gett without panels or tiles."""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from string import ascii_letters
from typing import Any, Literal, NamedTuple

import numpy as np

from contract.descriptors.compute_types import is_blas_type, item_size
from contract.descriptors.layout import is_packed, packed_strides
from contract.descriptors.operations import Contraction, TensorDescriptor
from contract.descriptors.operators import Operator
from contract.execution.quiet import QUIET
from contract.host.kernels.operators import spare_elements, transforming
from contract.host.kernels.protocol import SMALL_ELEMENTS, HostKernels, ProductKernel, flatten
from contract.host.resources.blas_threads import blas_threads
from contract.host.resources.matrix_slices import (
    SHARED_PRODUCTS,
    in_slices,
    longest_slice,
    share_product,
)
from contract.host.resources.memory import Cutter
from contract.host.resources.numpy_products import einsum, matmul
from contract.host.resources.prepared import Memory, Prepared, Scalars, share
from contract.host.resources.views import Array, Viewer, assign, compact_strides, slabs, viewer
from contract.host.resources.workers import Workers
from contract.host.steps.elementwise import TilePass
from contract.host.steps.epilogue import Blocks, Finish, Flat, filled, offset
from contract.plan.steps import (
    Elementwise,
    Gemm,
    Gett,
    Kind,
    Loop,
    Plan,
    Product,
    Source,
    View,
)
from contract.plan.workspace import rounded

__all__ = [
    "FewSums",
    "few_sums",
    "is_small",
    "plain_product",
    "prepare_gemm",
    "prepare_loops",
    "prepare_small",
    "scaling_bytes",
    "small_product_bytes",
]

# A NumPy call is done before a compiled kernel has begun: with so many multiply-adds, in so many
# runs of the longest loop.
SMALL_PRODUCT = 1 << 15
SMALL_RUNS = 1 << 6
# From here on BLAS may use its threads: products of two matrices, and of a matrix and a vector.
BLAS_SHARES, VECTOR_SHARES = 1 << 14, 1 << 12
SUMMED_BLOCK = 1 << 13  # elements of D summed in cache before they are finished
FEW_FLOPS = 1 << 12
KINDS = (Kind.BATCH, Kind.M, Kind.N, Kind.K)

Index = Any  # what NumPy takes a view by


def prepare_gemm(plan: Plan, step: Gemm, workers: Workers) -> Prepared:
    """BLAS on views of the operands.

    Its threads take a core each while they wait for more: for batches, and where the plan has steps
    of other kinds, our threads call it.
    """
    batch, m, n, k = _rows(step)
    batch.reverse()  # the table has the outermost last
    view_a = _matrix_view(plan, step.a, batch, m, k, "a")
    view_b = _matrix_view(plan, step.b, batch, k, n, "b")
    view_d = _matrix_view(plan, step.d, batch, m, n, "d")
    a, b, d, scaled = step.a, step.b, step.d, step.scaled
    products = prod([loop.extent for loop in step.loops])
    product_of = _for_forks(matmul, step)
    if products > longest_slice(step.dtype):
        alone = in_slices(product_of, step.dtype, workers)
    else:
        alone = _for_threads(matmul, step)

    def run(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        out = view_d(slots[d])
        alone(view_a(slots[a]), view_b(slots[b]), out)
        if scaled:
            _scale(out, scalars[0])

    def run_shared(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        def scaled_product(left: Array, right: Array, out: Array) -> None:
            product_of(left, right, out)
            if scaled:
                _scale(out, scalars[0])

        share_product(scaled_product, workers, view_a(slots[a]), view_b(slots[b]), view_d(slots[d]))

    is_mixed = any(not isinstance(each, Gemm) for each in plan.steps)
    is_ours = step.extent(Kind.BATCH) > 1 or is_mixed or blas_threads().exceeds
    chosen = run_shared if is_ours and products >= SHARED_PRODUCTS else run
    return Prepared(chosen, own=scaling_bytes(plan, step))


def _rows(step: Product) -> list[list[Loop]]:
    """The loops of each kind."""
    return [[loop for loop in step.loops if loop.kind is kind] for kind in KINDS]


def _for_threads(function: Callable[..., Any], step: Product) -> Callable[..., Any]:
    """A function that calls BLAS with as many threads as it has, if it has threads for this."""
    guarded = _for_forks(function, step)
    return guarded if guarded is function else blas_threads().shared(guarded)


def _for_forks(function: Callable[..., Any], step: Product) -> Callable[..., Any]:
    """A function that calls BLAS, while no process is forked if BLAS has threads for it."""
    m, n, k = (step.extent(kind) for kind in (Kind.M, Kind.N, Kind.K))
    least = VECTOR_SHARES if 1 in (m, n) else BLAS_SHARES
    return function if m * n * k < least else blas_threads().guarded(function)


def _scale(out: Array, alpha: Any) -> None:
    if alpha == 1:
        return
    if out.size <= SMALL_ELEMENTS and type(alpha) is out.dtype.type:
        np.multiply(out, alpha, out)
        return
    for (piece,) in slabs(out):
        np.multiply(piece, alpha, out=piece, dtype=out.dtype, casting="unsafe")


def scaling_bytes(plan: Plan, step: Product) -> int:
    """What NumPy may copy of a result with gaps, for it does not see that no elements overlap."""
    tensor = plan.slots[step.d].tensor
    return tensor.packed_bytes * (step.scaled and not is_packed(tensor.extents, tensor.steps))


def is_small(step: Product) -> bool:
    """Whether NumPy's own loops are the quickest."""
    longest = max((loop.extent for loop in step.loops), default=1)
    return prod([loop.extent for loop in step.loops]) <= min(SMALL_PRODUCT, SMALL_RUNS * longest)


def prepare_small(plan: Plan, step: Gett) -> Prepared:
    """NumPy's own loops on views made the cheapest way: for small products calls are all."""
    if not _is_in_place(plan, step):
        return _small_apart(plan, step)
    a, b, d, scaled = step.a, step.b, step.d, step.scaled
    of_a, of_b, of_d = _modes(step)
    view_a = _loop_view(plan, a, step, of_a, "a")
    view_b = _loop_view(plan, b, step, of_b, "b")
    view_d = _loop_view(plan, d, step, of_d, "d")

    def run(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        out = view_d(slots[d])
        einsum(view_a(slots[a]), of_a, view_b(slots[b]), of_b, of_d, out=out)
        if scaled:
            _scale(out, scalars[0])

    return Prepared(run, own=scaling_bytes(plan, step))


def small_product_bytes(plan: Plan, step: Gett) -> int:
    """What NumPy allocates for a small product."""
    if _is_in_place(plan, step):
        return scaling_bytes(plan, step)
    of_a, of_b, of_d = _modes(step)
    a, b, d = (prod([step.loops[at].extent for at in modes]) for modes in (of_a, of_b, of_d))
    elements = a * (_copies(plan, step, step.a, step.operator_a) + _is_copied(step, of_a, "a"))
    elements += b * (_copies(plan, step, step.b, step.operator_b) + _is_copied(step, of_b, "b"))
    elements += d * (1 + step.scaled)
    if step.c is not None:
        elements += d * (2 + _copies(plan, step, step.c, step.operator_c))  # scaled, and the sum
    return elements * item_size(step.dtype)


def _copies(plan: Plan, step: Gett, slot: int, operator: Operator) -> int:
    """Arrays of an operand's size that reading it takes."""
    if operator is Operator.IDENTITY:
        return int(plan.slots[slot].tensor.dtype != step.dtype)
    return 1 + spare_elements(operator, 1)


def _is_copied(step: Gett, modes: Sequence[int], name: Literal["a", "b"]) -> bool:
    """Whether numpy.dot copies an operand: matrices with gaps, and steps of 0 or backwards."""
    loops = [step.loops[at] for at in modes if step.loops[at].extent > 1]
    strides = [getattr(loop, name) for loop in loops]
    if not _is_dot(step) or not loops:
        return False
    has_gaps = len(loops) > 1 and not is_packed([loop.extent for loop in loops], strides)
    return has_gaps or min(strides) <= 0


def _is_dot(step: Gett) -> bool:
    """Whether the product is one of matrices and vectors, for BLAS."""
    batch, *rows, k = _rows(step)
    one_each = len(k) == 1 and max(map(len, rows)) <= 1
    return not batch and one_each and is_blas_type(step.dtype)


def _is_in_place(plan: Plan, step: Gett) -> bool:
    """Whether NumPy's loops write the product where it belongs: one type, no operators, no C."""
    types = {plan.slots[slot].tensor.dtype for slot in (step.a, step.b, step.d)}
    operators = {step.operator_a, step.operator_b}
    return types == {step.dtype} and operators == {Operator.IDENTITY} and step.c is None


def _modes(step: Product) -> tuple[list[int], list[int], list[int]]:
    """The loops that A, B and D have, as matrices of numpy.dot have them."""
    batch, m, n, k = (
        [at for at, loop in enumerate(step.loops) if loop.kind is kind] for kind in KINDS
    )
    return [*batch, *m, *k], [*batch, *k, *n], [*batch, *m, *n]


def _small_apart(plan: Plan, step: Gett) -> Prepared:
    """D = [alpha *] op(A) * op(B) [+ beta * op(C)], the product in an array of its own."""
    a, b, c, d, scaled = step.a, step.b, step.c, step.d, step.scaled
    dtype, (of_a, of_b, of_d) = np.dtype(step.dtype), _modes(step)
    read_a = _small_reader(plan, step, a, of_a, "a", step.operator_a)
    read_b = _small_reader(plan, step, b, of_b, "b", step.operator_b)
    read_c = read_a if c is None else _small_reader(plan, step, c, of_d, "c", step.operator_c)
    view_d, multiply = _loop_view(plan, d, step, of_d, "d"), _small_product(step)

    def run(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        value = multiply(read_a(slots[a]), read_b(slots[b]))
        if scaled:
            value = _scaled(value, scalars[0], dtype)
        if c is not None and scalars[1] != 0:
            value = np.add(value, _scaled(read_c(slots[c]), scalars[1], dtype))
        assign(view_d(slots[d]), value)

    return Prepared(run, own=small_product_bytes(plan, step))


def _scaled(x: Array, factor: Any, dtype: np.dtype[Any]) -> Any:
    return x if factor == 1 else np.multiply(x, factor, dtype=dtype, casting="unsafe")


def _small_product(step: Gett) -> Callable[[Array, Array], Any]:
    """(A, B) -> their product, where each has the modes of ``_modes``."""
    of_a, of_b, of_d = _modes(step)
    if _is_dot(step):
        return _for_threads(np.ndarray.dot, step)
    return lambda a, b: einsum(a, of_a, b, of_b, of_d)


def _small_reader(
    plan: Plan, step: Gett, slot: int, modes: Sequence[int], name: str, operator: Operator
) -> Viewer:
    """x -> op(view of x) in the product's type."""
    view, dtype = _loop_view(plan, slot, step, modes, name), np.dtype(step.dtype)
    if operator is not Operator.IDENTITY:
        transform = transforming(operator, dtype)
        return lambda x: transform(view(x))
    if plan.slots[slot].tensor.dtype == step.dtype:
        return view
    return lambda x: view(x).astype(dtype)


# --- loop by loop -----------------------------------------------------------------------------


class _ProductReader:
    """An operand in the product's type: where it lies, or converted and transformed apart."""

    def __init__(
        self, plan: Plan, step: Gett, name: str, kernels: HostKernels, workers: Workers
    ) -> None:
        self.slot = step.a if name == "a" else step.b
        self.workers = workers
        self.dtype = np.dtype(step.dtype)
        operator = step.operator_a if name == "a" else step.operator_b
        self.strides = tuple(int(getattr(loop, name)) for loop in step.loops)
        self.tiles: TilePass | None = None
        self.count = 0
        types = [slot.tensor.dtype for slot in plan.slots]
        if types[self.slot] == step.dtype and operator is Operator.IDENTITY:
            return
        own = [at for at, stride in enumerate(self.strides) if stride]
        extents = tuple(step.loops[at].extent for at in own)
        packed, self.count = compact_strides(extents, range(len(extents)))
        view = View(self.slot, tuple(self.strides[at] for at in own))
        convert = Elementwise(
            (Source(view, operator),), (), View(len(types), packed), extents, (), step.dtype
        )
        self.tiles = TilePass([*types, step.dtype], convert, kernels)
        self.strides = _spread(packed, own, len(self.strides))

    @property
    def bytes(self) -> int:
        """Workspace for the converted operand."""
        return rounded(self.count * self.dtype.itemsize)

    @property
    def tile_bytes(self) -> int:
        """Bytes of tiles while it is converted."""
        if self.tiles is None:
            return 0
        return self.workers.parts(self.tiles.count, 1) * self.tiles.bytes

    def read(self, slots: Sequence[Array], cutter: Cutter, tiles: Array) -> tuple[Array, int]:
        """Flat memory of the operand and where it starts."""
        if self.tiles is None:
            return flatten(slots[self.slot])
        converted = cutter.take(self.count, self.dtype)
        total, body = self.tiles.bound([*slots, converted], (1, 0, 0))
        share(self.workers, total, 1, tiles, self.tiles.bytes, body)
        return converted, 0


def prepare_loops(plan: Plan, step: Gett, kernels: HostKernels, workers: Workers) -> Prepared:
    """Loop by loop on the operands where they lie; other types are converted first."""
    a, b = (_ProductReader(plan, step, name, kernels, workers) for name in ("a", "b"))
    workspace, tiles = a.bytes + b.bytes, max(a.tile_bytes, b.tile_bytes)
    if plan.slots[step.d].tensor.dtype == step.dtype and step.c is None:
        return _direct_loops(plan, step, a, b, kernels, workspace, tiles)
    blocked = _BlockedLoops(plan, step, (a.strides, b.strides), kernels)
    tiles = max(tiles, workers.parts(blocked.blocks.count, 1) * blocked.lane)

    def run(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        cutter = Cutter(memory.workspace)
        operands = tuple(each.read(slots, cutter, memory.tiles) for each in (a, b))
        body = blocked.bound(operands, slots, scalars)
        share(workers, blocked.blocks.count, 1, memory.tiles, blocked.lane, body)

    return Prepared(run, workspace, tiles)


def _direct_loops(
    plan: Plan,
    step: Gett,
    a: _ProductReader,
    b: _ProductReader,
    kernels: HostKernels,
    workspace: int,
    tiles: int,
) -> Prepared:
    """The loops write D themselves."""
    kernel = kernels.loops(
        step.dtype,
        [
            (loop.kind.value, loop.extent, (one, two, loop.d))
            for loop, one, two in zip(step.loops, a.strides, b.strides, strict=True)
        ],
    )

    def run(slots: Sequence[Array], scalars: Scalars, memory: Memory) -> None:
        cutter = Cutter(memory.workspace)
        left, right = (each.read(slots, cutter, memory.tiles) for each in (a, b))
        out = slots[step.d]
        kernel(*left, *right, *flatten(out))
        if step.scaled:
            _scale(out, scalars[0])

    def direct(inputs: Sequence[Array], out: Array, memory: Array) -> None:
        kernel(*flatten(inputs[step.a]), *flatten(inputs[step.b]), *flatten(out))

    own = scaling_bytes(plan, step)
    if workspace or tiles:
        return Prepared(run, workspace, tiles, own)
    return Prepared(run, own=own, direct=direct)


class _BlockedLoops:
    """D = [alpha *] value [+ beta * op(C)] where D has another type or C is read.

    A block of D is summed in a buffer in the product's type, then finished.
    """

    def __init__(
        self,
        plan: Plan,
        step: Gett,
        strides: tuple[tuple[int, ...], tuple[int, ...]],
        kernels: HostKernels,
    ) -> None:
        self.step = step
        self.kernels = kernels
        self.dtype = np.dtype(step.dtype)
        self.a, self.b = strides
        free = [at for at, loop in enumerate(step.loops) if loop.kind is not Kind.K]
        self.free = sorted(free, key=lambda at: abs(step.loops[at].d))
        self.summed = [at for at, loop in enumerate(step.loops) if loop.kind is Kind.K]
        extents = tuple(step.loops[at].extent for at in self.free)
        self.blocks = Blocks(extents, filled(extents, SUMMED_BLOCK))
        slots = [step.d] if step.c is None else [step.d, step.c]
        steps = [[step.loops[at].d for at in self.free], [step.loops[at].c for at in self.free]]
        types = [plan.slots[slot].tensor.dtype for slot in slots]
        self.finish = Finish(kernels, step.dtype, types, steps[: len(slots)], step.operator_c)
        size = self.blocks.size
        self.lane = rounded(size * self.dtype.itemsize) + self.finish.bytes(size)
        self.kernel: Callable[[tuple[int, ...]], ProductKernel] = cache(self._kernel)

    def _kernel(self, extents: tuple[int, ...]) -> ProductKernel:
        """The product of one block, packed in the order of D's strides."""
        packed = packed_strides(extents)
        kinds = [step.kind.value for step in self.step.loops]
        table = [
            (kinds[at], n, (self.a[at], self.b[at], stride))
            for at, n, stride in zip(self.free, extents, packed, strict=True)
        ]
        loops = self.step.loops
        table += [(kinds[at], loops[at].extent, (self.a[at], self.b[at], 0)) for at in self.summed]
        return self.kernels.loops(self.step.dtype, table)

    def bound(
        self, operands: Sequence[Flat], slots: Sequence[Array], scalars: Scalars
    ) -> Callable[[int, int, Cutter], None]:
        """body(begin, end, memory): the blocks begin..end of these arrays."""
        step, size = self.step, self.blocks.size
        factors = (scalars[0] if step.scaled else 1), scalars[1]
        target = flatten(slots[step.d])
        addend = None if step.c is None or factors[1] == 0 else flatten(slots[step.c])
        (a, a0), (b, b0) = operands
        steps_a, steps_b = ([steps[at] for at in self.free] for steps in (self.a, self.b))

        def body(begin: int, end: int, cutter: Cutter) -> None:
            value = cutter.take(size, self.dtype)
            buffers = self.finish.buffers(size, cutter)
            with np.errstate(all="ignore"):
                for at in self.kernels.workers.going(range(begin, end)):
                    starts, extents = place = self.blocks.block(at)
                    shift_a, shift_b = offset(steps_a, starts), offset(steps_b, starts)
                    self.kernel(extents)(a, a0 + shift_a, b, b0 + shift_b, value, 0)
                    self.finish(value, place, target, addend, factors, buffers)

        return body


def _spread(values: Sequence[int], at: Sequence[int], length: int) -> tuple[int, ...]:
    result = [0] * length
    for value, index in zip(values, at, strict=True):
        result[index] = value
    return tuple(result)


# --- one plain product --------------------------------------------------------------------------


def plain_product(plan: Plan) -> Callable[[Sequence[Array]], Array] | None:
    """inputs -> a new array: the product of two matrices, if that is all and it is packed."""
    match plan.steps:
        case (Gemm(scaled=True) as step,) if len(plan.slots) == 3 and plan.inputs == 2:
            batch, m, n, k = _rows(step)
        case _:
            return None
    output = plan.slots[plan.output].tensor
    if batch or not (m and n and k):
        return None
    products = m[0].extent * n[0].extent * k[0].extent
    if products > longest_slice(step.dtype) or blas_threads().exceeds:
        return None
    a, b = step.a, step.b
    match (m[0].d, n[0].d):
        case (rows_apart, 1) if rows_apart == n[0].extent:
            one, view_one = a, _matrix_view(plan, a, (), m, k, "a")
            two, view_two = b, _matrix_view(plan, b, (), k, n, "b")
            shape: tuple[int, ...] = (m[0].extent, n[0].extent)
        case (1, columns_apart) if columns_apart == m[0].extent:
            one, view_one = b, _matrix_view(plan, b, (), n, k, "b")
            two, view_two = a, _matrix_view(plan, a, (), k, m, "a")
            shape = (n[0].extent, m[0].extent)
        case _:
            return None
    order = _packed_order(output)
    if order is None:
        return None
    packed = output.extents[::-1] if order == "F" else output.extents
    reshaped = None if shape == packed else packed
    dot = _for_threads(np.ndarray.dot, step)
    return _dot(dot, (one, view_one), (two, view_two), reshaped, turned=order == "F")


def _dot(
    dot: Callable[[Array, Array], Array],
    one: tuple[int, Viewer],
    two: tuple[int, Viewer],
    reshaped: tuple[int, ...] | None,
    turned: bool,
) -> Callable[[Sequence[Array]], Array]:
    """The product of matrices that operands are seen as; its shape is another one if that is given.

    Infinities and NaN are results that nothing warns of, as in every step.
    """
    (left, view_left), (right, view_right) = one, two
    quiet = QUIET.copy

    def run(inputs: Sequence[Array]) -> Array:
        return quiet().run(dot, view_left(inputs[left]), view_right(inputs[right]))

    def run_turned(inputs: Sequence[Array]) -> Array:
        return quiet().run(dot, view_left(inputs[left]), view_right(inputs[right])).T

    def run_reshaped(inputs: Sequence[Array]) -> Array:
        found = run(inputs).reshape(reshaped)
        return found.T if turned else found

    if reshaped is not None:
        return run_reshaped
    return run_turned if turned else run


class FewSums(NamedTuple):
    """A whole plan as one numpy.einsum, into a new array or into the plan's own result.

    Both walk through memory in ``order``, that of the result, so they give the same bits.
    """

    text: str
    order: Literal["F", "C"]
    inputs: int

    def fresh(self) -> Callable[[Sequence[Array]], Array]:
        """inputs -> the result in a new array."""
        text, order = self.text, self.order
        return lambda inputs: einsum(text, *inputs, order=order)

    def into(self, slots: Sequence[Array], alpha: Any) -> bool:
        """Write alpha times the sums; False, and nothing is done, if memory is shared."""
        inputs, output = slots[: self.inputs], slots[self.inputs]
        if any(np.may_share_memory(x, output) for x in inputs):
            return False  # einsum adds to what is zero at first
        einsum(self.text, *inputs, out=output, order=self.order)
        _scale(output, alpha)
        return True


def few_sums(plan: Plan) -> FewSums | None:
    """numpy.einsum, if it is done before the steps of the plan have begun."""
    operation, output = plan.operation, plan.slots[plan.output].tensor
    modes = operation.output.modes
    if (
        not isinstance(operation, Contraction)
        or plan.naive_flops > FEW_FLOPS
        or len(operation.inputs) < 2  # einsum would return a view
        or not modes  # or a number
        or 0 in output.extents  # it writes to results without elements
        or len(set(modes)) < len(modes)
        or len(operation.labels) > len(ascii_letters)
        or operation.addend is not None
        or not _is_plain(operation)
    ):
        return None
    order = _packed_order(output)
    if order is None:
        return None
    operands = (*operation.inputs, operation.output)
    *terms, result = ["".join([ascii_letters[mode] for mode in x.modes]) for x in operands]
    return FewSums(f"{','.join(terms)}->{result}", order, len(terms))


def _packed_order(tensor: TensorDescriptor) -> Literal["F", "C"] | None:
    """How a packed tensor lies: its first modes fastest, or its last ones.

    Strides of extent 1 mean nothing: the same path is taken whatever an array says of them.
    """
    long = [(n, step) for n, step in zip(tensor.extents, tensor.steps, strict=True) if n != 1]
    extents, steps = [n for n, _ in long], tuple(step for _, step in long)
    if steps == packed_strides(extents):
        return "F"
    if steps[::-1] == packed_strides(extents[::-1]):
        return "C"
    return None


def _is_plain(operation: Contraction) -> bool:
    """Whether NumPy sums in the type that is asked for, and everything has that type."""
    dtype = operation.rule.accumulator
    operands = (*operation.inputs, operation.output)
    return is_blas_type(dtype) and all(
        [x.operator is Operator.IDENTITY and x.tensor.dtype == dtype for x in operands]
    )


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


def _loop_view(plan: Plan, slot: int, step: Product, loops: Sequence[int], name: str) -> Viewer:
    return viewer(
        plan.slots[slot].tensor,
        [step.loops[at].extent for at in loops],
        [int(getattr(step.loops[at], name)) for at in loops],
    )
