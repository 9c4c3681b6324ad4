"""The module object ``cupy`` and its submodules, made of classes bound to one driver."""

import ctypes
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from .. import cublas_library, driver_library
from ..device import Options
from . import arrays, blas, memory, modules, nvtx, pool, programs, runtime, streams
from .capture import Mode
from .counters import Counters
from .creation import Functions
from .driver import Driver
from .status import CUBLASError, CUDADriverError, CUDARuntimeError

CUBLAS = "cupy_backends/cuda/libs/cublas.so"  # the file of CuPy's module, which needs libcublas
# The classes of each submodule of cupy.cuda, by their public names.
_CUDA: dict[str, dict[str, type]] = {
    "memory": {
        "BaseMemory": memory.BaseMemory,
        "Memory": memory.Memory,
        "UnownedMemory": memory.UnownedMemory,
        "MemoryPointer": memory.MemoryPointer,
        "PooledMemory": pool.PooledMemory,
        "MemoryPool": pool.MemoryPool,
        "OutOfMemoryError": memory.OutOfMemoryError,
    },
    "stream": {
        "Event": streams.Event,
        "Stream": streams.Stream,
        "ExternalStream": streams.ExternalStream,
    },
    "graph": {"Graph": streams.Graph},
    "device": {"Device": streams.Device},
    "function": {"Function": modules.Function, "Module": modules.LoadedModule},
    "compiler": {"CompileException": modules.CompileException},
}
_SCALARS = (
    *("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_NUMPY = ("dtype", "newaxis", "promote_types", "issubdtype", "finfo", "iinfo", "pi", *_SCALARS)


def make_cupy(
    arch: str = "sm_90",
    devices: int = 2,
    options: Options | None = None,
    memory: int = 4 << 30,
    eager: bool = False,
) -> ModuleType:
    """A module like CuPy on emulated devices of ``memory`` bytes each.

    ``eager`` does work when it is queued; else it is done as late as CUDA allows.
    """
    driver = Driver(arch, devices, options or Options(), memory, eager)
    _bind_classes(driver)
    found = _modules(driver)
    found["cupy"].__dict__["_modules"] = found
    found["cupy"].__dict__["_driver"] = driver
    return found["cupy"]


def counters(cupy: ModuleType) -> Counters:
    """What the devices of a module were asked to do."""
    driver: Driver = cupy._driver
    return driver.counters


@contextmanager
def installed(**settings: Any) -> Iterator[ModuleType]:
    """``import cupy`` finds the emulator's, made with make_cupy's settings, inside of this."""
    cupy = make_cupy(**settings)
    with importable(cupy):
        yield cupy


@contextmanager
def importable(cupy: ModuleType) -> Iterator[None]:
    """``import cupy`` finds a module that make_cupy made, ctypes its driver, inside of this."""
    names = [name for name in sys.modules if name.split(".")[0] in ("cupy", "cupy_backends")]
    before = {name: sys.modules.pop(name) for name in names}
    sys.modules.update(cupy._modules)
    try:
        with mock.patch("ctypes.CDLL", _opener(cupy._driver)):
            yield
    finally:
        for name in cupy._modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def _opener(driver: Driver) -> Callable[..., Any]:
    """ctypes.CDLL on a machine whose CUDA driver and cuBLAS are the emulator's."""
    opened, classes = ctypes.CDLL, driver.classes
    libcuda = driver_library.library(
        lambda mode: driver.exchange_mode(Mode(mode)), driver.capture_number
    )
    known = {"libcuda.so.1": libcuda, CUBLAS: cublas_library.library(classes.blas)}

    def open_library(name: Any, *args: Any, **kwargs: Any) -> Any:
        return known[name] if name in known else opened(name, *args, **kwargs)

    return open_library


def _bind_classes(driver: Driver) -> None:
    """Give each class the driver, and fill the names that they know one another by."""
    bound = {"_driver": driver, "_currents": streams.Currents()}
    classes = driver.classes
    for submodule, members in _CUDA.items():
        for name, each in members.items():
            setattr(classes, name, _bind(each, name, f"cupy.cuda.{submodule}", bound))
    classes.ndarray = _bind(arrays.ndarray, "ndarray", "cupy", bound)
    classes.RawKernel = _bind(modules.RawKernel, "RawKernel", "cupy._core.raw", bound)
    classes.RawModule = _bind(modules.RawModule, "RawModule", "cupy._core.raw", bound)
    classes.modules = {}
    classes.functions_by_pointer = WeakValueDictionary()
    classes.loaded_modules = WeakSet()
    classes.raw_malloc = lambda size: classes.MemoryPointer(classes.Memory(size), 0)
    classes.Stream.null = classes.Stream(null=True)
    classes.Stream.ptds = classes.Stream(ptds=True)
    classes.get_current_stream = streams.current_stream_reader(driver, bound["_currents"])
    classes.blas = blas.Blas(driver)
    classes.attributes = runtime.attributes(driver)
    classes.functions = Functions(driver)
    classes.default_pool = classes.MemoryPool()
    classes.allocator = pool.Allocator(driver)
    classes.allocator.set_allocator(classes.default_pool.malloc)
    classes.alloc = classes.allocator.alloc


def _bind(each: type, name: str, module: str, bound: Mapping[str, Any]) -> type:
    """A class of its own for a driver; exceptions need none."""
    if issubclass(each, BaseException):
        return each
    return type(name, (each,), {"__module__": module, "__doc__": each.__doc__, **bound})


def _modules(driver: Driver) -> dict[str, ModuleType]:
    """All modules by their names in sys.modules, each a member of the one above."""
    classes = driver.classes
    found = {
        "cupy": _module("cupy", _top(driver)),
        "cupy.lib": _module("cupy.lib", {}),
        "cupy.lib.stride_tricks": _module(
            "cupy.lib.stride_tricks", {"as_strided": classes.functions.as_strided}
        ),
        "cupy.cuda": _module("cupy.cuda", _cuda(driver)),
    }
    for submodule, members in _CUDA.items():
        names = {name: getattr(classes, name) for name in members}
        found[f"cupy.cuda.{submodule}"] = _module(f"cupy.cuda.{submodule}", names)
    found["cupy.cuda.device"].__dict__.update(_device_functions(driver))
    found["cupy.cuda.memory"].__dict__.update(_memory_functions(driver))
    found["cupy.cuda.stream"].__dict__.update(_stream_functions(driver))
    backends = _backends(driver)
    calls = vars(backends["cupy_backends.cuda.api.runtime"])
    found["cupy.cuda.runtime"] = _module("cupy.cuda.runtime", _public(calls))
    found |= backends
    for name, module in found.items():
        above, _, last = name.rpartition(".")
        if above:
            setattr(found[above], last, module)
    # As CuPy has them: the same modules under a second name, without an entry in sys.modules.
    found["cupy.cuda"].__dict__["cublas"] = found["cupy_backends.cuda.libs.cublas"]
    found["cupy.cuda"].__dict__["driver"] = found["cupy_backends.cuda.api.driver"]
    found["cupy.cuda"].__dict__["nvrtc"] = found["cupy_backends.cuda.libs.nvrtc"]
    found["cupy.cuda"].__dict__["nvtx"] = found["cupy_backends.cuda.libs.nvtx"]
    classes.functions.module = found["cupy"]
    return found


def _backends(driver: Driver) -> dict[str, ModuleType]:
    calls = runtime.functions(runtime.Runtime(driver))
    products = blas.functions(driver.classes.blas)
    names: dict[str, dict[str, Any]] = {
        "": {},
        ".cuda": {},
        ".cuda.api": {},
        ".cuda.api.runtime": {
            **runtime.CONSTANTS,
            **calls,
            "CUDARuntimeError": CUDARuntimeError,
            "is_hip": False,
        },
        ".cuda.api.driver": {
            "CUDADriverError": CUDADriverError,
            "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": modules.MOST_DYNAMIC_SHARED,
            "funcSetAttribute": modules.attribute_setter(driver),
        },
        ".cuda.libs": {},
        ".cuda.libs.cublas": {
            **blas.CONSTANTS,
            **products,
            "CUBLASError": CUBLASError,
            "__file__": CUBLAS,
        },
        ".cuda.libs.nvtx": nvtx.functions(driver.counters),
        ".cuda.libs.nvrtc": {
            **programs.functions(driver.counters),
            "NVRTCError": programs.NVRTCError,
        },
    }
    return {f"cupy_backends{name}": _module(f"cupy_backends{name}", v) for name, v in names.items()}


def _top(driver: Driver) -> dict[str, Any]:
    classes, numpy = driver.classes, {name: getattr(np, name) for name in _NUMPY}
    functions = {
        name: getattr(classes.functions, name)
        for name in vars(Functions)
        if not name.startswith("_") and name not in ("module", "as_strided")
    }
    return {
        **numpy,
        **functions,
        "__version__": "14.2.0",
        "ndarray": classes.ndarray,
        "RawKernel": classes.RawKernel,
        "RawModule": classes.RawModule,
        "get_default_memory_pool": lambda: classes.default_pool,
        "is_available": lambda: True,
    }


def _cuda(driver: Driver) -> dict[str, Any]:
    private = ("PooledMemory", "OutOfMemoryError", "CompileException")
    members = {name for each in _CUDA.values() for name in each if name not in private}
    allocator = _memory_functions(driver)
    return {
        **{name: getattr(driver.classes, name) for name in members},
        **{name: allocator[name] for name in ("alloc", "set_allocator", "get_allocator")},
        "using_allocator": driver.classes.allocator.using_allocator,
        **_stream_functions(driver),
        **_device_functions(driver),
        "is_available": lambda: True,
    }


def _memory_functions(driver: Driver) -> dict[str, Any]:
    allocator = driver.classes.allocator
    return {
        "alloc": allocator.alloc,
        "set_allocator": allocator.set_allocator,
        "get_allocator": allocator.get_allocator,
    }


def _stream_functions(driver: Driver) -> dict[str, Any]:
    return {
        "get_current_stream": driver.classes.get_current_stream,
        "get_elapsed_time": streams.elapsed_time_reader(driver),
    }


def _device_functions(driver: Driver) -> dict[str, Any]:
    return {
        "get_device_id": lambda: driver.device,
        "get_cublas_handle": lambda: driver.classes.blas.thread_handle(driver.device),
    }


def _public(names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in names.items() if not name.startswith("__")}


def _module(name: str, members: Mapping[str, Any]) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(members)
    return made
