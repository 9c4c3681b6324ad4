"""Runs a plan on a GPU through CuPy: every launch is built once, then repeated with new addresses.

A call does what cannot be done before: it fills addresses and scalars into the argument structs
and launches on the current stream. It never waits for the device.
"""

import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from operator import itemgetter
from typing import Any, assert_never

import ml_dtypes  # noqa: F401  (registers the name bfloat16)
import numpy as np

from contract.arrays.protocol import Array
from contract.descriptors.layout import offset_bounds, packed_strides, span
from contract.descriptors.operations import TensorDescriptor
from contract.device.arrays import DeviceArrays
from contract.device.cublas_library import CublasLibrary, GraphHandle, StreamHandles
from contract.device.driver import driver_library, unhindered
from contract.device.kernels.lowering import lower
from contract.device.kernels.recordable import recordable
from contract.device.modules import load_kernel
from contract.device.tensor_maps import MAP_BYTES, encoded, why_refused
from contract.errors import NotSupportedError
from contract.execution.compiled_code import Kernel
from contract.execution.executor import Footprint, Loaded, Scalars, inside_range
from contract.execution.verification import check_plan
from contract.logging import LOGGER, Level, Ranges
from contract.machines.gpu import Architecture, architecture_of
from contract.machines.machine import Identity
from contract.plan.steps import Gett, Plan, Scalar, Step
from contract.plan.workspace import rounded
from contract.planner.device.launch import (
    BlasCall,
    DeviceCall,
    KernelCall,
    Pointer,
    PointerKind,
    TensorMap,
    packed,
)
from contract.storage.files import hashed

__all__ = ["DeviceExecutor", "DevicePlan"]

KEPT_MAPS = 64  # by address, for each map of a launch: a program reuses few arrays
Addresses = Sequence[int]  # of the plan's slots, then of what a step needs for itself
Launch = Callable[[Addresses, Scalars], None]


@dataclass(frozen=True, slots=True, repr=False)
class DevicePlan(Loaded):
    """A plan ready to run on one GPU: its launches, and the workspace they need.

    ``required_workspace`` (bytes) holds temporaries, then what a step needs for itself, each at
    its place in ``offsets``; it comes from CuPy's memory pool, on the current stream, unless the
    caller gives it. ``calls`` are what the launches were built of. ``for_graphs`` is the same plan
    as a capture takes it; None: this one.
    """

    plan: Plan
    arrays: DeviceArrays
    launches: tuple[Launch, ...]
    addend_only: Callable[[], tuple[Launch, ...]] | None
    offsets: tuple[int, ...]
    required_workspace: int
    reads_addend: bool
    new_output: Callable[[], Array]
    allocate: Callable[[int], Any]
    calls: tuple[DeviceCall, ...]
    addend_calls: Callable[[], tuple[DeviceCall, ...]] | None
    for_graphs: "Callable[[], DevicePlan] | None" = None
    tile_bytes: int = 0
    own_bytes: int = 0
    product: None = None
    measured: float | None = None

    def recordable(self) -> "DevicePlan":
        return self if self.for_graphs is None else self.for_graphs()

    def __call__(
        self,
        inputs: Sequence[Array],
        output: Array,
        addend: Array | None,
        scalars: Scalars,
        workspace: Array | None = None,
    ) -> None:
        addresses = [x.data.ptr for x in inputs]
        addresses.append(output.data.ptr)
        if self.reads_addend:
            addresses.append((output if addend is None else addend).data.ptr)
        if self.required_workspace:
            memory = self.allocate(self.required_workspace) if workspace is None else workspace.data
            addresses += [memory.ptr + offset for offset in self.offsets]
        launches = self.launches
        if self.addend_only is not None and scalars[0] == 0:
            launches = self.addend_only()
        for launch in launches:
            launch(addresses, scalars)

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(call.reason for call in self.calls if isinstance(call, KernelCall))

    def trace(
        self, inputs: Sequence[Array], output: Array, addend: Array | None, scalars: Scalars
    ) -> Iterator[str]:
        slots = [*inputs, output, output if addend is None else addend]
        stream = self.arrays.stream_pointer()
        calls = self.calls
        if self.addend_calls is not None and scalars[0] == 0:
            calls = self.addend_calls()
        for call in calls:
            same = call.unless_same if isinstance(call, KernelCall) else None
            if same is None or slots[same[0]].data.ptr != slots[same[1]].data.ptr:
                yield f"{call} workspace={self.required_workspace} stream={stream:#x}"

    def ranged(self, ranges: Ranges) -> "DevicePlan":
        alone, alone_calls = self.addend_only, self.addend_calls

        def addend_only() -> tuple[Launch, ...]:
            assert alone is not None
            assert alone_calls is not None
            return _ranged(ranges, alone_calls(), alone())

        return replace(
            self,
            launches=_ranged(ranges, self.calls, self.launches),
            addend_only=None if alone is None else addend_only,
        )


def _ranged(
    ranges: Ranges, calls: Sequence[DeviceCall], launches: Sequence[Launch]
) -> tuple[Launch, ...]:
    return tuple(
        inside_range(ranges, call.name, launch)
        for call, launch in zip(calls, launches, strict=True)
    )


@dataclass(frozen=True, slots=True)
class EventPair:
    """The time between two events of a stream."""

    cuda: Any
    begin: Any
    end: Any

    def seconds(self) -> float | None:
        return self.wait() if self.end.done else None

    def wait(self) -> float:
        self.end.synchronize()
        return float(self.cuda.get_elapsed_time(self.begin, self.end)) * 1e-3


class DeviceExecutor:
    """Prepares plans for one GPU; owns its kernels and cuBLAS handles. Safe for many threads.

    ``wgmma``: products may be formed by TMA and wgmma where there are. ``tf32``: they may be
    formed in tf32 where their compute type allows it. ``fitted`` gives the model of this card, of
    the one that is built in.
    """

    stand_in = None

    def __init__(
        self,
        cupy: Any,
        device: int,
        *,
        wgmma: bool = True,
        tf32: bool = True,
        fitted: Callable[[Architecture, Identity], Architecture] = lambda built_in, _: built_in,
        check: bool = False,
    ) -> None:
        self.device = device
        self.arrays = DeviceArrays(cupy, device)
        capability = int(cupy.cuda.Device(device).compute_capability)
        known = architecture_of(capability)
        known = known if tf32 else known.without_tf32()
        self._cupy = cupy
        self._forbidden = "" if tf32 else " without TF32"
        self._forbidden += "" if wgmma else " without wgmma"
        self._built_in = known if wgmma else known.without_wgmma()
        self.machine = self.architecture = fitted(self._built_in, self.card)
        self._check = check
        self._lock = threading.Lock()
        self._kernels: dict[str, Any] = {}  # by source, which has one entry
        self._blas: _Blas | None = None
        self._graph_blas: _Blas | None = None
        self._unbound = ""  # why there is none

    @property
    def identity(self) -> Identity:
        """The card, and a digest of its model's constants where they were fitted."""
        if self.machine == self._built_in:
            return self.card
        found = hashed(repr(self.machine))[:8]
        return replace(self.card, capability=f"{self.card.capability}, fitted {found}")

    @property
    def card(self) -> Identity:
        """The card; what plans may hold for it, and how many multiprocessors share the work."""
        card = self._cupy.cuda.runtime.getDeviceProperties(self.device)
        capability = f"{card['major']}.{card['minor']}{self._forbidden}"
        return Identity(card["name"].decode(), capability, card["multiProcessorCount"])

    def missing(self, loaded: Loaded) -> frozenset[Kernel]:
        """Nothing: kernels are built when a plan is loaded."""
        return frozenset()

    def close(self) -> None:
        """Forget the kernels, unload those of no plan, and give the cuBLAS handles back."""
        with self._lock, self.arrays.on(None), unhindered():
            self._kernels.clear()
            products = self._blas, self._graph_blas
            self._blas = self._graph_blas = None
            for blas in products:
                if blas is not None:
                    blas.close()

    def load(self, plan: Plan, measured: float | None = None) -> DevicePlan:
        """Lower every step of ``plan`` and build its kernels."""
        if self._check:
            check_plan(plan)
        calls = self._lowered(plan)
        instead = plan.addend_only
        alone = None if instead is None else partial(self._build_step, plan, instead)
        loaded = DevicePlan(
            plan=plan,
            arrays=self.arrays,
            launches=self._built(calls),
            addend_only=None if alone is None else cache(alone),  # most calls never ask
            offsets=(*(offset for offset in plan.offsets if offset >= 0), rounded(plan.workspace)),
            required_workspace=_required(plan, calls),
            reads_addend=plan.addend is not None,
            new_output=allocator(self._cupy, plan.slots[plan.output].tensor),
            allocate=self._cupy.cuda.alloc,
            calls=tuple(calls),
            addend_calls=None if instead is None else partial(self._lower, plan, instead),
            measured=measured,
        )
        if not any(map(_is_blas, calls)):
            return loaded
        return replace(loaded, for_graphs=cache(partial(self._load_for_graphs, loaded)))

    def _load_for_graphs(self, loaded: DevicePlan) -> DevicePlan:
        """The same launches, with a cuBLAS that a capture takes; else one by our own kernels."""
        blas = self._cublas_for_graphs()
        if blas is None:
            return self.load(recordable(loaded.plan, self.architecture))
        launches = (
            blas.launch(call) if isinstance(call, BlasCall) else launch
            for call, launch in zip(loaded.calls, loaded.launches, strict=True)
        )
        return replace(loaded, launches=tuple(launches))

    def footprint(self, plan: Plan) -> Footprint:
        """The bytes of ``plan``, all of them workspace; no kernel is built."""
        required = _required(plan, self._lowered(plan))
        return Footprint(required, required)

    def allocate(self, tensor: TensorDescriptor) -> Array:
        """An uninitialised array with the tensor's extents and strides."""
        return allocator(self._cupy, tensor)()

    def timed(self, work: Callable[[], None]) -> EventPair:
        """Do the work between two events of the current stream."""
        cuda = self._cupy.cuda
        begin, end = cuda.Event(), cuda.Event()
        begin.record()
        work()
        end.record()
        return EventPair(cuda, begin, end)

    def preparations(self) -> int:
        """How many kernels have been built, and products first given to cuBLAS, so far."""
        return len(self._kernels) + (0 if self._blas is None else self._blas.first_calls)

    def _lowered(self, plan: Plan) -> list[DeviceCall]:
        return [call for step in plan.steps for call in self._lower(plan, step)]

    def _lower(self, plan: Plan, step: Step) -> tuple[DeviceCall, ...]:
        calls = lower(plan, step, self.architecture)
        refusal = self._refusal(calls)
        if not refusal:
            return calls
        assert isinstance(step, Gett)
        LOGGER.log(Level.HINT, f"no TMA, mma.sync instead: {refusal}")
        return lower(plan, replace(step, blocking=None), self.architecture)

    def _refusal(self, calls: Sequence[DeviceCall]) -> str:
        """Why the driver refuses a tensor map of the calls; empty where it does not."""
        kernels = (call for call in calls if isinstance(call, KernelCall))
        maps = [each for call in kernels for _, each in call.arguments.maps]
        if not maps:
            return ""
        with self.arrays.on(None), unhindered():
            memory = self._cupy.cuda.alloc(MAP_BYTES)  # a map says where a tensor begins, no more
            return why_refused(driver_library(), maps, memory.ptr)

    def _build_step(self, plan: Plan, step: Step) -> tuple[Launch, ...]:
        return self._built(self._lower(plan, step))

    def _built(self, calls: Sequence[DeviceCall]) -> tuple[Launch, ...]:
        with self.arrays.on(None), unhindered():
            return tuple(self._build(call) for call in calls)

    def _build(self, call: DeviceCall) -> Launch:
        match call:
            case KernelCall():
                return _kernel_launch(call, self._kernel(call))
            case BlasCall():
                return self._cublas().launch(call)
        assert_never(call)

    def _kernel(self, call: KernelCall) -> Any:
        """The compiled kernel; the same source is compiled once."""
        source = call.source
        with self._lock:
            found = self._kernels.get(source)
            if found is None:
                found = self._kernels[source] = load_kernel(self._cupy, call)
        return found

    def _cublas(self) -> "_Blas":
        with self._lock:
            if self._blas is None:
                cublas = _cupys_cublas()
                self._blas = _Blas(self._cupy, cublas, StreamHandles(self._cupy, cublas))
            return self._blas

    def _cublas_for_graphs(self) -> "_Blas | None":
        """None: ctypes does not find the library, which is said once."""
        with self._lock:
            if self._graph_blas is not None or self._unbound:
                return self._graph_blas
            try:
                found = self._graph_blas = self._open_for_graphs()
            except NotSupportedError as error:
                found, self._unbound = None, str(error)
        if found is None:
            LOGGER.log(Level.HINT, f"no cuBLAS in graphs, our own kernels instead: {self._unbound}")
        return found

    def _open_for_graphs(self) -> "_Blas":
        library = CublasLibrary(_cupys_cublas())
        with self.arrays.on(None):
            handle = GraphHandle(self._cupy, library, self.architecture.blas_workspace)
        return _Blas(self._cupy, library, handle)


def _is_blas(call: DeviceCall) -> bool:
    return isinstance(call, BlasCall)


def _required(plan: Plan, calls: Sequence[DeviceCall]) -> int:
    """Temporaries, then the largest scratch memory of a step."""
    scratch = max((call.scratch for call in calls if isinstance(call, KernelCall)), default=0)
    return rounded(plan.workspace) + scratch if scratch else plan.workspace


# --- one kernel ---------------------------------------------------------------------------------


def _kernel_launch(call: KernelCall, kernel: Any) -> Launch:
    """A function that fills in what a call brings and launches."""
    arguments, grid, block, shared = call.arguments, call.grid, call.block, call.shared
    template, kind = _with_ones(call), np.dtype(f"V{len(arguments.data)}")
    runs, ndarray = _runs(template, arguments.pointers), np.ndarray
    fields = [(each.scalar.value, each.offset, each.dtype) for each in arguments.scalars]
    maps = [(at, _picker([each.pointer]), _encoder(each)) for at, each in arguments.maps]
    same = call.unless_same

    def launch(addresses: Addresses, scalars: Scalars) -> None:
        if same is not None and addresses[same[0]] == addresses[same[1]]:
            return
        data = bytearray(template)
        for pack, at, pick in runs:
            pack(data, at, *pick(addresses))
        for at, pick, encode in maps:
            encoded_map = encode(*pick(addresses))
            data[at : at + len(encoded_map)] = encoded_map
        for which, at, dtype in fields:
            value = scalars[which]
            if type(value) is not int or value != 1:
                bytes_ = packed(dtype, value)
                data[at : at + len(bytes_)] = bytes_
        kernel(grid, block, (ndarray((), kind, data),), shared)

    return launch


Pick = Callable[[Addresses], Sequence[int]]


def _runs(
    template: bytes, pointers: Sequence[tuple[int, Pointer]]
) -> list[tuple[Callable[..., None], int, Pick]]:
    """For pointers with nothing but zeros between them: how to pack them, where, and which."""
    runs: list[tuple[int, str, list[Pointer]]] = []
    for at, pointer in pointers:
        if runs:
            first, form, side = runs[-1]
            gap = template[first + struct.calcsize(form) : at]
            if not any(gap):
                side.append(pointer)
                runs[-1] = first, f"{form}{len(gap)}xQ", side
                continue
        runs.append((at, "<Q", [pointer]))
    return [(struct.Struct(form).pack_into, at, _picker(side)) for at, form, side in runs]


def _picker(pointers: Sequence[Pointer]) -> Pick:
    if len(pointers) > 1 and not any(pointer.bytes for pointer in pointers):
        return itemgetter(*map(_place, pointers))
    places = [(_place(pointer), pointer.bytes) for pointer in pointers]
    return lambda addresses: [addresses[at] + shift for at, shift in places]


def _encoder(tensor_map: TensorMap) -> Callable[[int], bytes]:
    """A function of the tensor's address; the driver takes microseconds, so maps are kept."""
    return lru_cache(KEPT_MAPS)(partial(encoded, driver_library(), tensor_map))


def _place(pointer: Pointer) -> int:
    """Where an address stands: slots in order, a step's own memory last."""
    return pointer.slot if pointer.memory is PointerKind.SLOT else -1


def _with_ones(call: KernelCall) -> bytes:
    """The struct with every scalar 1, the most usual value."""
    data = bytearray(call.arguments.data)
    for field in call.arguments.scalars:
        one = packed(field.dtype, 1)
        data[field.offset : field.offset + len(one)] = one
    return bytes(data)


# --- cuBLAS -----------------------------------------------------------------------------------


def _cupys_cublas() -> Any:
    from cupy_backends.cuda.libs import cublas

    return cublas


class _Blas:
    """The products of cuBLAS: by the functions of ``library``, with the handles that it made."""

    def __init__(self, cupy: Any, library: Any, handles: StreamHandles | GraphHandle) -> None:
        cublas = _cupys_cublas()
        self._library = library
        self._handles = handles
        self._operations = {False: cublas.CUBLAS_OP_N, True: cublas.CUBLAS_OP_T}
        self._algorithm = cublas.CUBLAS_GEMM_DEFAULT
        self._lock = threading.Lock()  # a handle's stream is set by every call
        self._called: set[BlasCall] = set()
        runtime = cupy.cuda.runtime
        self._types = {
            "float16": runtime.CUDA_R_16F,
            "bfloat16": runtime.CUDA_R_16BF,
            "float32": runtime.CUDA_R_32F,
            "float64": runtime.CUDA_R_64F,
            "complex64": runtime.CUDA_C_32F,
            "complex128": runtime.CUDA_C_64F,
        }
        self._compute = {
            "32F": cublas.CUBLAS_COMPUTE_32F,
            "32F_FAST_TF32": cublas.CUBLAS_COMPUTE_32F_FAST_TF32,
            "32F_FAST_16BF": cublas.CUBLAS_COMPUTE_32F_FAST_16BF,
            "64F": cublas.CUBLAS_COMPUTE_64F,
        }

    def close(self) -> None:
        self._handles.close()

    @property
    def first_calls(self) -> int:
        """Products of different shapes so far: cuBLAS loads its kernels at the first of each."""
        return len(self._called)

    def launch(self, call: BlasCall) -> Launch:
        """A function that calls cuBLAS with the call's addresses and alpha."""
        library, compute, operation = self._library, self._compute[call.compute], self._operations
        a, b, d = call.a, call.b, call.d
        kind_a, kind_b, kind_d = (self._types[each.dtype] for each in (a, b, d))
        sizes = operation[a.transposed], operation[b.transposed], call.m, call.n, call.k
        alpha_of = _factor(call.alpha, call.dtype, 1)
        beta_of = _factor(call.beta, call.dtype, 0)
        pick = _picker([each.pointer for each in (a, b, d)])
        handles, algorithm, lock = self._handles, self._algorithm, self._lock
        known = False

        def launch(addresses: Addresses, scalars: Scalars) -> None:
            alpha, beta = alpha_of(scalars), beta_of(scalars)
            x, y, z = pick(addresses)
            nonlocal known
            with lock:
                if not known:
                    self._called.add(call)
                    known = True
                handle = handles.current()
                if call.batch == 1:
                    library.gemmEx(
                        *(handle, *sizes, alpha[0], x, kind_a, a.leading, y, kind_b, b.leading),
                        *(beta[0], z, kind_d, d.leading, compute, algorithm),
                    )
                else:
                    library.gemmStridedBatchedEx(
                        *(handle, *sizes, alpha[0]),
                        *(x, kind_a, a.leading, a.batch_stride),
                        *(y, kind_b, b.leading, b.batch_stride),
                        *(beta[0], z, kind_d, d.leading, d.batch_stride),
                        *(call.batch, compute, algorithm),
                    )

        return launch


def _factor(
    scalar: Scalar | None, dtype: str, default: int
) -> Callable[[Scalars], tuple[int, Array]]:
    """A function that says where a scalar lies, and what keeps it there.

    To ask NumPy for an address takes longer than a launch: that of the usual value is known.
    """
    usual = np.array([default if scalar is None else 1], dtype)
    known = int(usual.ctypes.data), usual
    if scalar is None:
        return lambda scalars: known

    def found(scalars: Scalars) -> tuple[int, Array]:
        value = scalars[scalar.value]
        if type(value) is int and value == 1:
            return known
        own = np.array([value], dtype)
        return int(own.ctypes.data), own

    return found


# --- allocation -----------------------------------------------------------------------------


def allocator(cupy: Any, tensor: TensorDescriptor) -> Callable[[], Array]:
    """A function that makes an uninitialised array with the tensor's extents and strides."""
    extents, dtype, ndarray = tensor.extents, np.dtype(tensor.dtype), cupy.ndarray
    if tensor.steps == packed_strides(extents):
        return lambda: ndarray(extents, dtype, order="F")
    if tensor.steps[::-1] == packed_strides(extents[::-1]):
        return lambda: ndarray(extents, dtype)
    low, _ = offset_bounds(extents, tensor.steps)
    size = max(span(extents, tensor.steps), 1) * dtype.itemsize
    strides = tuple(step * dtype.itemsize for step in tensor.steps)

    def strided() -> Array:
        memory = cupy.cuda.alloc(size) + -low * dtype.itemsize
        return ndarray(extents, dtype, memptr=memory, strides=strides)

    return strided
