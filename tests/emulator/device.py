"""A device in this process: memory, modules and launches, checked as CUDA would and more strictly.

device = Device()
x = device.upload(np.arange(64, dtype="f4"))
y = device.allocate(x.nbytes)
module = device.load(source)
module.launch("scale", (2,), (32,), [x, y, np.float32(2)])
print(y.download("f4"))
"""

import ctypes
import enum
import mmap
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import ptx
from .driver_library import LIBRARY
from .library import Source, library, to_ptx
from .tensor_map import TENSOR_MAP
from .translate import static_shared

GUARD = 256  # bytes around an allocation that no kernel may touch; also its alignment
POISON = 0xFF  # NaN in every floating-point format

MAX_PARAMETERS = 4096
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_THREADS = 1024
MAX_STATIC_SHARED = DEFAULT_SHARED = 48 << 10
OPT_IN_SHARED = {"sm_80": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10, "sm_120": 99 << 10}
LARGEST_SHARED = 227 << 10  # sm_90 and sm_100


class Kind(enum.IntEnum):
    """What went wrong; the order is that of Kind in runtime/fault.h."""

    NONE = 0
    LAUNCH = enum.auto()
    BOUNDS = enum.auto()
    MISALIGNED = enum.auto()
    RACE = enum.auto()
    UNINITIALISED = enum.auto()
    DIVERGENCE = enum.auto()
    LANES = enum.auto()
    DEADLOCK = enum.auto()
    UNFINISHED = enum.auto()
    TRAP = enum.auto()
    PROTOCOL = enum.auto()
    PROXY = enum.auto()


class Schedule(enum.IntEnum):
    """In which order threads that could all run do run."""

    IN_ORDER = 0
    REVERSED = 1
    RANDOM = 2


class KernelFault(RuntimeError):
    """A launch that a GPU would refuse, or that is wrong even where a GPU would not notice."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(f"{kind.name.lower()}: {message}")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a launch.

    ``late``: cp.async lands when it is waited for, not at once.  ``strict``: reading memory that
    was never written is an error, not just a NaN.
    """

    schedule: Schedule = Schedule.IN_ORDER
    late: bool = True
    strict: bool = True
    seed: int = 1


class _Range(ctypes.Structure):
    _fields_ = (
        ("begin", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("written", ctypes.c_void_p),
    )


class _Request(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_shared", ctypes.c_uint32),
        ("schedule", ctypes.c_int32),
        ("late", ctypes.c_int32),
        ("strict", ctypes.c_int32),
        ("seed", ctypes.c_uint32),
        ("parameters", ctypes.c_void_p),
        ("parameter_bytes", ctypes.c_uint32),
        ("ranges", ctypes.c_uint32),
        ("range", ctypes.POINTER(_Range)),
    )


class _Fault(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("line", ctypes.c_int32),
        ("block", ctypes.c_uint32 * 3),
        ("thread", ctypes.c_uint32 * 3),
        ("text", ctypes.c_char * 480),
    )


class Allocation:
    """Bytes of the device, with a mark for each that was written; poisoned until then."""

    def __init__(self, device: "Device", nbytes: int) -> None:
        self.nbytes = nbytes
        self._device = device
        self._store = np.full(nbytes + 3 * GUARD, POISON, np.uint8)
        start = GUARD + -self._store.ctypes.data % GUARD
        self.bytes = self._store[start : start + nbytes]
        self.written = np.zeros(nbytes, np.uint8)
        self.pointer = int(self._store.ctypes.data) + start

    def upload(self, array: np.ndarray[Any, Any], offset: int = 0) -> None:
        """Copy an array's bytes (in C order) here."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.bytes[offset : offset + data.size] = data
        self.written[offset : offset + data.size] = 1

    def download(self, dtype: Any = np.uint8, shape: Any = -1) -> np.ndarray[Any, Any]:
        """A copy of the contents."""
        copied: np.ndarray[Any, Any] = self.bytes.view(dtype).reshape(shape).copy()
        return copied

    def free(self) -> None:
        """Give the memory back; accesses from now on are out of bounds."""
        self._device.forget(self)


class SparseAllocation(Allocation):
    """More memory than there is: pages that are never touched take none, all others hold zeros."""

    def __init__(self, device: "Device", nbytes: int) -> None:
        self.nbytes = nbytes
        self._device = device
        self._store = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
        self.bytes = self._store
        self.written = np.zeros(0, np.uint8)
        self.pointer = int(self._store.ctypes.data)

    def upload(self, array: np.ndarray[Any, Any], offset: int = 0) -> None:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.bytes[offset : offset + data.size] = data


_ENGINE = threading.Lock()  # it runs one launch at a time
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


def tensor_map(
    memory: Allocation, array: np.ndarray[Any, Any], box: Sequence[int], swizzle: int = 0
) -> np.ndarray[Any, Any]:
    """What cuTensorMapEncodeTiled would make for memory laid out as an array; a kernel argument.

    ``box`` counts elements, the first mode (of stride 1, the array's last axis) first.
    """
    strides = array.strides[::-1]
    _require(strides[0] == array.itemsize, "a tensor map's first mode has stride 1")
    _require(all(stride % 16 == 0 for stride in strides[1:]), "strides of 16 bytes")
    _require(not swizzle or box[0] * array.itemsize <= swizzle, f"a row over {swizzle} bytes")
    made = np.zeros((), TENSOR_MAP)
    made["magic"], made["base"] = 0x50414D524F534E54, memory.pointer
    made["extent"][: array.ndim] = array.shape[::-1]
    made["stride"][: array.ndim - 1] = strides[1:]
    made["box"][: array.ndim] = box
    made["rank"], made["item"], made["swizzle"] = array.ndim, array.itemsize, _SWIZZLES[swizzle]
    return made


class Device:
    """Memory and modules of one imagined GPU."""

    def __init__(self, arch: str = "sm_90") -> None:
        self.arch = arch
        self.driver = LIBRARY
        self._allocations: dict[int, Allocation] = {}

    @property
    def opt_in_shared(self) -> int:
        """The most shared memory a block may have once it asked."""
        return OPT_IN_SHARED.get(self.arch.rstrip("a"), LARGEST_SHARED)

    def allocate(self, nbytes: int) -> Allocation:
        """Fresh memory, 256-byte aligned, that holds NaN."""
        made = Allocation(self, nbytes)
        self._allocations[made.pointer] = made
        return made

    def sparse(self, nbytes: int) -> Allocation:
        """Memory of which only the pages that are touched exist."""
        made = SparseAllocation(self, nbytes)
        self._allocations[made.pointer] = made
        return made

    def upload(self, array: np.ndarray[Any, Any]) -> Allocation:
        """Memory with a copy of an array."""
        made = self.allocate(array.nbytes)
        made.upload(array)
        return made

    def forget(self, allocation: Allocation) -> None:
        """Free an allocation, once."""
        if self._allocations.pop(allocation.pointer, None) is None:
            raise KernelFault(Kind.BOUNDS, "memory freed twice")

    def load(self, source: str, options: Sequence[str] = ()) -> "Module":
        """Compile CUDA C++ for this device's architecture."""
        return self.load_ptx(to_ptx(Source(source, self.arch, tuple(options))))

    def load_ptx(self, text: str) -> "Module":
        """Load PTX."""
        return Module(self, text)

    def run(
        self, library: ctypes.CDLL, request: _Request, memory: Sequence[Any] | None = None
    ) -> _Fault:
        """Launch with ``memory``, else with the live allocations; one launch at a time."""
        held = self._allocations.values() if memory is None else memory
        live = sorted(held, key=lambda made: made.pointer)
        ranges = (_Range * len(live))(
            *(_Range(a.pointer, a.pointer + a.nbytes, _marks(a.written)) for a in live)
        )
        request.ranges, request.range = len(live), ranges
        fault = _Fault()
        module = ctypes.byref(ctypes.c_char.in_dll(library, "emu_module"))
        with _ENGINE:
            # The engine's, which the module is linked to.
            library.emu_launch(ctypes.byref(request), module, ctypes.byref(fault))
        return fault


def _marks(written: np.ndarray[Any, Any]) -> int:
    """The address of the marks, 0 where every byte counts as written."""
    return int(written.ctypes.data) if written.size else 0


class Module:
    """The kernels of one PTX module, built for the CPU."""

    def __init__(self, device: Device, text: str) -> None:
        self.ptx = text
        self._device = device
        self._parsed = ptx.parse(text)
        self._static = {e.name: static_shared(e, self._parsed) for e in self._parsed.entries}
        self._library = ctypes.CDLL(str(library(text)))

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the entries."""
        return tuple(entry.name for entry in self._parsed.entries)

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Iterable[Any],
        shared: int = 0,
        options: Options | None = None,
        shared_limit: int = DEFAULT_SHARED,
    ) -> None:
        """Run a kernel to its end; KernelFault says what was wrong with it.

        ``shared`` is dynamic shared memory in bytes, ``shared_limit`` what the kernel opted in to
        (max_dynamic_shared_size_bytes).
        """
        packed = pack(self.entry(name), list(arguments))
        self.check(name, grid, block, shared, shared_limit)
        self.run(name, grid, block, packed, shared, options or Options())

    def entry(self, name: str) -> ptx.Entry:
        """The kernel of a name."""
        if name not in self.kernels:
            raise KernelFault(Kind.LAUNCH, f"no kernel {name}; there are {self.kernels}")
        return self._parsed.entries[self.kernels.index(name)]

    def static_shared(self, name: str) -> int:
        """Bytes of shared memory that a kernel has without asking."""
        return self._static[self.entry(name).name]

    def run(
        self,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        packed: np.ndarray[Any, Any],
        shared: int,
        options: Options,
        memory: Sequence[Any] | None = None,
    ) -> None:
        """Run a launch that was checked, with packed arguments.

        ``memory`` (objects with pointer, nbytes, written) stands for the device's allocations.
        """
        request = _Request(
            kernel=self.kernels.index(name),
            grid=_three(grid),
            block=_three(block),
            dynamic_shared=shared,
            schedule=options.schedule,
            late=options.late,
            strict=options.strict,
            seed=options.seed,
            parameters=packed.ctypes.data,
            parameter_bytes=packed.nbytes,
        )
        self._report(name, self._device.run(self._library, request, memory))

    def check(
        self,
        name: str,
        given_grid: Sequence[int],
        given_block: Sequence[int],
        shared: int,
        shared_limit: int,
    ) -> None:
        """Refuse a configuration that CUDA would refuse."""
        entry, grid, block = self.entry(name), _three(given_grid), _three(given_block)
        threads, static = int(np.prod(block)), self._static[name]
        most = self._device.opt_in_shared
        _require(_within(grid, MAX_GRID), f"{entry.name}: grid {grid}, at most {MAX_GRID}")
        _require(_within(block, MAX_BLOCK), f"{entry.name}: block {block}, at most {MAX_BLOCK}")
        _require(
            threads <= entry.max_threads,
            f"{entry.name}: {threads} threads, launch bounds {entry.max_threads}",
        )
        _require(
            static <= MAX_STATIC_SHARED,
            f"{entry.name}: {static} bytes of static shared memory, at most {MAX_STATIC_SHARED}",
        )
        _require(
            shared <= shared_limit,
            f"{entry.name}: {shared} bytes of dynamic shared memory, opted in to {shared_limit}",
        )
        _require(
            static + shared <= most and shared_limit <= most,
            f"{entry.name}: {static} + {shared} bytes of shared memory, {most} on the device",
        )

    def _report(self, name: str, fault: _Fault) -> None:
        if not fault.kind:
            return
        lines = self.ptx.splitlines()
        text = lines[fault.line - 1].strip() if 0 < fault.line <= len(lines) else "launch"
        source = self._source_line(fault.line)
        raise KernelFault(
            Kind(fault.kind),
            f"{fault.text.decode()}; kernel {name}, block {tuple(fault.block)}, "
            f"thread {tuple(fault.thread)}, source line {source}, PTX line {fault.line}: {text}",
        )

    def _source_line(self, line: int) -> int:
        instructions = (item for entry in self._parsed.entries for item in entry.body)
        found = (i for i in instructions if isinstance(i, ptx.Instruction) and i.line == line)
        return next((instruction.source for instruction in found), 0)


def pack(entry: ptx.Entry, arguments: Sequence[Any]) -> np.ndarray[Any, Any]:
    """The parameter buffer of a launch, each argument at its parameter's offset."""
    _require(
        len(arguments) == len(entry.parameters),
        f"{entry.name} takes {len(entry.parameters)} arguments, not {len(arguments)}",
    )
    packed, end = np.zeros(MAX_PARAMETERS, np.uint8), 0
    for index, (argument, parameter) in enumerate(zip(arguments, entry.parameters, strict=True)):
        data = argument_bytes(argument, parameter)
        _require(
            len(data) == parameter.size,
            f"{entry.name}: argument {index} has {len(data)} bytes, not {parameter.size}",
        )
        start = -(-end // parameter.align) * parameter.align
        end = start + parameter.size
        _require(end <= MAX_PARAMETERS, f"{entry.name}: parameters over {MAX_PARAMETERS} bytes")
        packed[start:end] = np.frombuffer(data, np.uint8)
    return packed[:end]


def argument_bytes(argument: Any, parameter: ptx.Variable) -> bytes:
    """An allocation is its pointer; Python numbers take the parameter's type."""
    match argument:
        case Allocation():
            return argument.pointer.to_bytes(8, "little")
        case np.generic() | np.ndarray():
            return argument.tobytes()
        case bool() | int() if parameter.type[0] != "f":
            sign = argument < 0
            return int(argument).to_bytes(parameter.size, "little", signed=sign)
        case int() | float():
            kind: Any = {"f32": np.float32, "f64": np.float64}.get(parameter.type)
            if kind is not None:
                return bytes(kind(argument).tobytes())
    raise TypeError(f"argument {argument!r} for a parameter of type {parameter.type}")


def _three(extents: Sequence[int]) -> tuple[int, ...]:
    return (*extents, 1, 1)[:3]


def _within(extents: tuple[int, ...], limits: tuple[int, ...]) -> bool:
    return all(0 < extent <= limit for extent, limit in zip(extents, limits, strict=True))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise KernelFault(Kind.LAUNCH, message)
