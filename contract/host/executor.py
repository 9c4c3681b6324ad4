"""Runs a plan on NumPy arrays: each step is prepared once, then called with the slots' arrays."""

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from time import perf_counter
from typing import NamedTuple, assert_never

import numpy as np

from contract.arrays.protocol import Arrays
from contract.descriptors.layout import offset_bounds, packed_strides, span
from contract.descriptors.operations import TensorDescriptor
from contract.execution.compiled_code import Kernel, compiled_code
from contract.execution.executor import Footprint, Loaded, Straight, inside_range
from contract.execution.quiet import QUIET, quietly
from contract.host.kernel_families import family_name, load_kernels
from contract.host.kernels.protocol import SMALL_ELEMENTS, HostKernels, strided_view
from contract.host.resources.arrays import HostArrays
from contract.host.resources.blas_threads import blas_threads
from contract.host.resources.memory import NOTHING, MemoryPool
from contract.host.resources.prepared import Memory, Prepared, Run, Scalars, later
from contract.host.resources.processor import has_wide_vectors, processor_name
from contract.host.resources.views import Array
from contract.host.resources.workers import Workers
from contract.host.steps.elementwise import (
    prepare_elementwise,
    prepare_permute,
    small_pass_bytes,
)
from contract.host.steps.panels import prepare_panels
from contract.host.steps.products import (
    FewSums,
    few_sums,
    is_small,
    plain_product,
    prepare_gemm,
    prepare_loops,
    prepare_small,
    scaling_bytes,
    small_product_bytes,
)
from contract.host.steps.reductions import prepare_reduce
from contract.host.steps.tiles import prepare_tiles
from contract.logging import Ranges
from contract.machines.cpu import COMPILED, HOST, NARROW_BLAS, Cpu
from contract.machines.machine import Identity
from contract.plan.steps import (
    Elementwise,
    Gemm,
    Gett,
    Kind,
    Panels,
    Permute,
    Plan,
    Reduce,
    Scalar,
    Slot,
    Source,
    Step,
    Tiles,
    View,
    step_text,
)
from contract.plan.workspace import rounded
from contract.support.progress import counted

__all__ = ["HostExecutor", "LoadedPlan"]

NARROW_KERNELS = frozenset({"Haswell", "Zen"})  # OpenBLAS's for vectors of 256 bits
# Of a result: the C library gives as much back to the system and asks for it anew, always or where
# others use as much too, and a page fault for every 4 KiB of it takes longer than to write them.
LENT_BYTES = 1 << 22
NO_MEMORY = Memory(NOTHING, NOTHING)
LONG_PATH = 16  # steps; only so many are worth a look at whether somebody waits for them


class _Part(NamedTuple):
    """A step of a plan, prepared with the kernels of ``family``."""

    step: Step
    family: str
    prepared: Prepared

    @property
    def name(self) -> str:
        return type(self.step).__name__


@dataclass(frozen=True, slots=True, repr=False)
class LoadedPlan(Loaded):
    """A plan ready to run on the host: one function for each step, and the memory they need.

    ``required_workspace`` (bytes) holds temporaries and packed panels; a caller may give it.
    Tiles of elementwise steps, ``tile_bytes``, are the handle's; small steps and NumPy's loops
    allocate ``own_bytes`` themselves. ``product`` is there where the plan is one plain product:
    one call then makes the result, which for small operands is half of the time. ``sums`` do the
    same into an array that is there, so that every call gives the same bits. ``parts`` are what
    the functions were made of, and ``needs`` what of them is compiled.
    """

    plan: Plan
    arrays: Arrays
    runs: tuple[Run, ...]
    addend_only: Run | None
    temporaries: tuple[Callable[[Array], Array], ...]
    required_workspace: int
    tile_bytes: int
    own_bytes: int
    reads_addend: bool
    pool: MemoryPool
    new_output: Callable[[], Array]
    product: Callable[[Sequence[Array]], Array] | None
    sums: FewSums | None
    measured: float | None
    parts: tuple[_Part, ...]
    addend_part: _Part | None
    needs: frozenset[Kernel]

    def __call__(
        self,
        inputs: Sequence[Array],
        output: Array,
        addend: Array | None,
        scalars: Scalars,
        workspace: Array | None = None,
    ) -> None:
        slots = [*inputs, output]
        if self.reads_addend:
            slots.append(output if addend is None else addend)
        at = rounded(self.required_workspace) if workspace is None else 0
        if at + self.tile_bytes == 0:
            given = NOTHING if workspace is None else workspace
            self._run(slots, scalars, Memory(given, NOTHING))
            return
        taken = self.pool.take(at + self.tile_bytes)
        given = taken if workspace is None else workspace
        self._run(slots, scalars, Memory(given, taken[at:]))
        self.pool.give(taken)

    def _run(self, slots: list[Array], scalars: Scalars, memory: Memory) -> None:
        if self.addend_only is not None and scalars[0] == 0:
            quietly(self.addend_only, slots, scalars, memory)
            return
        if self.temporaries:
            slots += [make(memory.workspace) for make in self.temporaries]
            memory = Memory(memory.workspace[rounded(self.plan.workspace) :], memory.tiles)
        if self.sums is not None and quietly(self.sums.into, slots, scalars[0]):
            return
        if len(self.runs) < LONG_PATH:
            quietly(_run_each, self.runs, slots, scalars, memory)
            return
        with counted(self.runs, len(self.runs), "step") as runs:
            quietly(_run_each, runs, slots, scalars, memory)

    def straight(self) -> Straight | None:
        needed = self.required_workspace + self.tile_bytes
        if len(self.runs) != 1 or needed or self.temporaries or self.sums is not None:
            return None
        (run,), alone, quiet = self.runs, self.addend_only, QUIET.copy

        def straight(slots: Sequence[Array], scalars: Scalars) -> None:
            if alone is not None and scalars[0] == 0:
                quiet().run(alone, slots, scalars, NO_MEMORY)
            else:
                quiet().run(run, slots, scalars, NO_MEMORY)

        return straight

    def trace(
        self, inputs: Sequence[Array], output: Array, addend: Array | None, scalars: Scalars
    ) -> Iterator[str]:
        for part in self._parts_of(scalars):
            needed = part.prepared.workspace + part.prepared.tiles
            step = step_text(self.plan, part.step)
            yield f"{step} kernels={part.family} workspace={needed}"

    def _parts_of(self, scalars: Scalars) -> tuple[_Part, ...]:
        alone = self.addend_part
        return self.parts if alone is None or scalars[0] != 0 else (alone,)

    def ranged(self, ranges: Ranges) -> "LoadedPlan":
        alone = self.addend_part
        return replace(
            self,
            runs=tuple(
                inside_range(ranges, part.name, run)
                for part, run in zip(self.parts, self.runs, strict=True)
            ),
            addend_only=None
            if alone is None or self.addend_only is None
            else inside_range(ranges, alone.name, self.addend_only),
            sums=None,
        )

    def checked(self) -> "LoadedPlan":
        """The same in steps, with a look at the arrays of each before it runs."""
        from contract.host.checking import checked_product, checked_step  # for tests

        plan, alone = self.plan, self.addend_part
        product = self.product if self.sums is None else None
        return replace(
            self,
            runs=tuple(checked_step(plan, part.step, part.prepared.run) for part in self.parts),
            addend_only=None
            if alone is None
            else checked_step(plan, alone.step, alone.prepared.run),
            product=None if product is None else checked_product(plan, product),
            sums=None,
        )


def _run_each(runs: Iterable[Run], slots: list[Array], scalars: Scalars, memory: Memory) -> None:
    for run in runs:
        run(slots, scalars, memory)


@dataclass(frozen=True, slots=True)
class Elapsed:
    """The seconds of work that is done."""

    elapsed: float

    def seconds(self) -> float:
        return self.elapsed

    wait = seconds


class HostExecutor:
    """Prepares plans for the CPU; owns the kernels, the threads and the memory they use.

    ``pool`` may be replaced before anything is loaded: the fuzzer's puts guard pages around.
    ``fitted`` gives the model of this processor, of the one that is built in.
    Without ``waits`` plans that lack compiled functions are run by those of ``stand_in`` meanwhile.
    """

    arrays = HostArrays()

    def __init__(
        self,
        kernels: str = "auto",
        threads: int = 0,
        fitted: Callable[[Cpu, Identity], Cpu] = lambda built_in, _: built_in,
        check: bool = False,
        waits: bool = True,
        most_threads: int = 0,
    ) -> None:
        self.workers = Workers(threads or None, most_threads)
        self.pool = MemoryPool()
        self._numpy = load_kernels("numpy", self.workers)
        self._family = kernels
        self._fitted = fitted
        self._check = check
        self._waits = waits

    @cached_property
    def stand_in(self) -> "HostExecutor | None":
        """The same without compiled kernels; None where nobody needs it."""
        if self._waits or family_name(self._family) == "numpy":
            return None
        found = HostExecutor("numpy", check=self._check)
        found.workers, found.pool = self.workers, self.pool
        found._numpy = self._numpy
        return found

    def missing(self, loaded: Loaded) -> frozenset[Kernel]:
        """What the plan needs, if some of that is not there yet."""
        needs = loaded.needs if isinstance(loaded, LoadedPlan) else frozenset()
        return frozenset() if self._waits or compiled_code().has(needs) else needs

    @cached_property
    def machine(self) -> Cpu:
        """What the planner knows: built in, or fitted to this machine where that was done."""
        return self._fitted(self.built_in, self.processor)

    @cached_property
    def built_in(self) -> Cpu:
        """The model of the processor as the library has it."""
        if family_name(self._family) == "numpy":
            return HOST
        is_narrow = blas_threads().kernels in NARROW_KERNELS and has_wide_vectors()
        return NARROW_BLAS if is_narrow else COMPILED

    @property
    def processor(self) -> Identity:
        """The processor, its architecture with the families of kernels, and the threads."""
        blas = f"BLAS {blas_threads().kernels}".strip()
        kind = f"{platform.machine()}, {family_name(self._family)}, {blas}"
        return Identity(processor_name(), kind, self.workers.threads)

    @property
    def identity(self) -> Identity:
        """The processor, and a digest of its model's constants where they were fitted."""
        if self.machine == self.built_in:
            return self.processor
        from contract.storage.files import dumped, hashed  # few machines are fitted

        found = hashed(dumped(self.machine, Cpu))[:8]
        return replace(self.processor, capability=f"{self.processor.capability}, fitted {found}")

    def close(self) -> None:
        """End the threads and give memory back."""
        self.workers.close()
        self.pool.clear()

    @cached_property
    def kernels(self) -> HostKernels:
        """The kernels for data that is not small."""
        return load_kernels(self._family, self.workers, self._waits)

    def load(self, plan: Plan, measured: float | None = None) -> LoadedPlan:
        """Prepare every step of ``plan``."""
        if not self._check:
            return self._loaded(plan, measured)
        from contract.execution.verification import check_plan  # for tests

        check_plan(plan)
        return self._loaded(plan, measured).checked()

    def _loaded(self, plan: Plan, measured: float | None) -> LoadedPlan:
        product = plain_product(plan)
        sums = few_sums(plan) if product is None else None
        kernels, alone = self.kernels.for_plan(), None
        prepare = self._prepare if product is None and sums is None else self._prepare_later
        parts = tuple([prepare(plan, step, kernels) for step in plan.steps])
        if plan.addend_only is not None:
            alone = self._prepare_later(plan, plan.addend_only, kernels)
        every = [part.prepared for part in (parts if alone is None else (*parts, alone))]
        new_output = allocator(plan.slots[plan.output].tensor, self.pool)
        if len(parts) == 1 and parts[0].prepared.direct is not None:
            product, sums = self._direct(parts[0].prepared, new_output), None
        panels = max([each.workspace for each in every], default=0)
        return LoadedPlan(
            plan,
            self.arrays,
            tuple([part.prepared.run for part in parts]),
            None if alone is None else alone.prepared.run,
            tuple(
                [
                    _temporary(slot, offset)
                    for slot, offset in zip(plan.slots, plan.offsets, strict=True)
                    if offset >= 0
                ]
            ),
            rounded(plan.workspace) + panels if panels else plan.workspace,
            max([each.tiles for each in every], default=0),
            max([each.own for each in every], default=0),
            plan.addend is not None,
            self.pool,
            new_output,
            product if sums is None else sums.fresh(),
            sums,
            measured,
            parts,
            alone,
            kernels.needs(),
        )

    def _direct(
        self, prepared: Prepared, new_output: Callable[[], Array]
    ) -> Callable[[Sequence[Array]], Array]:
        """inputs -> the result of the plan's only step."""
        run, needed, pool = prepared.direct, prepared.direct_bytes, self.pool
        assert run is not None

        def product(inputs: Sequence[Array]) -> Array:
            out, memory = new_output(), pool.take(needed)
            run(inputs, out, memory)
            pool.give(memory)
            return out

        return product

    def footprint(self, plan: Plan) -> Footprint:
        """The bytes of ``plan``; preparing it to know them is cheap."""
        loaded = self.load(plan)
        workspace = loaded.required_workspace
        return Footprint(workspace, workspace + loaded.tile_bytes + loaded.own_bytes)

    def allocate(self, tensor: TensorDescriptor) -> Array:
        """An uninitialised array with the tensor's extents and strides."""
        return allocator(tensor, self.pool)()

    def timed(self, work: Callable[[], None]) -> Elapsed:
        """Do the work and measure it by the clock on the wall."""
        begin = perf_counter()
        work()
        return Elapsed(perf_counter() - begin)

    def preparations(self) -> int:
        """How many functions Numba has compiled or read from its cache."""
        return len(compiled_code())

    def _prepare(self, plan: Plan, step: Step, kernels: HostKernels) -> _Part:
        match step:
            case Gemm():
                return _Part(step, "BLAS", prepare_gemm(plan, step, self.workers))
            case Gett() if is_small(step) and not isinstance(step.blocking, Panels):
                return _Part(step, "numpy", prepare_small(plan, step))
            case Gett():
                return self._prepare_gett(plan, step, kernels)
            case Permute():
                family = self._family_of(step, kernels)
                return _Part(step, family.name, prepare_permute(plan, step, family, self.workers))
            case Elementwise():
                family = self._family_of(step, kernels)
                prepared = prepare_elementwise(plan, step, family, self.workers)
                return _Part(step, family.name, prepared)
            case Reduce():
                family = self._family_of(step, kernels)
                return _Part(step, family.name, prepare_reduce(plan, step, family, self.workers))
        assert_never(step)

    def _prepare_later(self, plan: Plan, step: Step, kernels: HostKernels) -> _Part:
        """A step that few calls run, prepared then where what it allocates is known at once."""
        match step:
            case Elementwise() if prod(step.extents) <= SMALL_ELEMENTS:
                own, family = small_pass_bytes(plan, step), self._numpy.name
            case Gemm():
                own, family = scaling_bytes(plan, step), "BLAS"
            case Gett() if is_small(step) and not isinstance(step.blocking, Panels):
                own, family = small_product_bytes(plan, step), "numpy"
            case _:
                return self._prepare(plan, step, kernels)
        run = later(lambda: self._prepare(plan, step, kernels).prepared.run)
        return _Part(step, family, Prepared(run, own=own))

    def _prepare_gett(self, plan: Plan, step: Gett, kernels: HostKernels) -> _Part:
        """By panels or tiles, or loop by loop: that is always right."""
        family = self._numpy if is_small(step) else kernels
        if isinstance(step.blocking, Tiles):
            fill = self._filling(plan, step, kernels)
            prepared = prepare_tiles(plan, step, kernels, self.workers, fill)
            if prepared is not None:
                return _Part(step, kernels.name, prepared)
        if isinstance(step.blocking, Panels):
            prepared = prepare_panels(plan, step, family, self.workers)
            return _Part(step, f"{family.name}+BLAS", prepared)
        return _Part(step, family.name, prepare_loops(plan, step, family, self.workers))

    def _filling(self, plan: Plan, step: Gett, kernels: HostKernels) -> Prepared | None:
        """D = beta * op(C), for a product that is added to it."""
        if step.c is None:
            return None
        loops = [loop for loop in step.loops if loop.kind is not Kind.K]
        source = Source(View(step.c, tuple(loop.c for loop in loops)), step.operator_c, Scalar.BETA)
        target = View(step.d, tuple(loop.d for loop in loops))
        extents = tuple(loop.extent for loop in loops)
        fill = Elementwise((source,), (), target, extents, (), step.dtype)
        return prepare_elementwise(plan, fill, self._family_of(fill, kernels), self.workers)

    def _family_of(self, step: Permute | Elementwise | Reduce, kernels: HostKernels) -> HostKernels:
        return self._numpy if prod(step.extents) <= SMALL_ELEMENTS else kernels


# --- allocation -----------------------------------------------------------------------------


def allocator(tensor: TensorDescriptor, pool: MemoryPool) -> Callable[[], Array]:
    """A function that makes an uninitialised array with the tensor's extents and strides.

    Large ones lie in memory of the pool, to which it goes back when nothing refers to them.
    """
    dtype, extents = np.dtype(tensor.dtype), tensor.extents
    size = span(extents, tensor.steps) * dtype.itemsize
    if size < LENT_BYTES or dtype.hasobject:
        return _new_array(tensor)
    lowest, _ = offset_bounds(extents, tensor.steps)
    first, steps = -lowest * dtype.itemsize, [step * dtype.itemsize for step in tensor.steps]
    return lambda: np.ndarray(extents, dtype, pool.lend(size), first, steps)


def _new_array(tensor: TensorDescriptor) -> Callable[[], Array]:
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
        make = _new_array(tensor)
        return lambda workspace: make()
    strides = tuple(step * dtype.itemsize for step in tensor.steps)
    return lambda workspace: np.ndarray(tensor.extents, dtype, workspace, offset, strides)
