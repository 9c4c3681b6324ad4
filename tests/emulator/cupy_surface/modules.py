"""cupy.RawModule and RawKernel: sources are compiled as CuPy compiles them, then emulated."""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import nvrtc, ptx
from ..device import (
    DEFAULT_SHARED,
    MAX_PARAMETERS,
    Device,
    KernelFault,
    Kind,
    Module,
)
from . import status
from .arguments import argument_bytes
from .counters import Launch
from .driver import Driver
from .live import Live
from .status import CUDADriverError, refuse

MOST_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CompileException(Exception):
    """NVRTC refused a source."""

    def __init__(
        self, msg: str, source: str, name: str, options: tuple[str, ...], backend: str = "nvrtc"
    ) -> None:
        super().__init__(msg)
        self.source, self.name, self.options, self.backend = source, name, options, backend

    def get_message(self) -> str:
        """NVRTC's log."""
        return str(self)


CompileException.__module__ = "cupy.cuda.compiler"


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A loaded module, and what ptxas says of its kernels once it is asked."""

    module: Module
    source: str | None
    options: tuple[str, ...]
    arch: str

    def report(self, kernel: str, pattern: str) -> int:
        """A number of ptxas's report on a kernel."""
        if self.source is None:
            raise NotImplementedError("a report needs the source, not PTX")
        log = _report(self.source, self.options, self.arch)
        entry = re.search(rf"entry function '{kernel}'.*?(?=entry function|\Z)", log, re.DOTALL)
        found = re.search(pattern, entry[0]) if entry else None
        return int(found[1]) if found else 0


@functools.cache
def _device(arch: str) -> Device:
    """Where modules of an architecture are loaded; its memory is not used."""
    return Device(arch)


@functools.cache
def load_source(source: str, options: tuple[str, ...], arch: str) -> Image:
    """Compile a source once per process."""
    return Image(_device(arch).load(source, options), source, options, arch)


@functools.cache
def load_ptx(text: str, arch: str) -> Image:
    """Load PTX once per process."""
    return Image(_device(arch).load_ptx(text), None, (), arch)


@functools.cache
def _report(source: str, options: tuple[str, ...], arch: str) -> str:
    return nvrtc.compile_cubin(source, arch, options).log


class Function:
    """A kernel on one device, and the shared memory that it opted in to there."""

    _driver: Driver

    def __init__(self, module: "LoadedModule", funcname: str) -> None:
        self.module = module
        self._name = funcname
        if funcname not in module._image.module.kernels:
            raise refuse(CUDADriverError, status.NOT_FOUND, f"no kernel {funcname}")
        self._device = self._driver.device
        self.ptr = id(self)
        self._driver.classes.functions_by_pointer[self.ptr] = self

    @property
    def _static_shared(self) -> int:
        """Bytes of shared memory that it has without asking."""
        return self.module._image.module.static_shared(self._name)

    @property
    def _entry(self) -> ptx.Entry:
        """Its parameters and bounds."""
        return self.module._image.module.entry(self._name)

    @property
    def _shared_limit(self) -> int:
        """Bytes of dynamic shared memory that a launch may ask for."""
        return self.module._shared_limits.get(self._name, DEFAULT_SHARED - self._static_shared)

    @_shared_limit.setter
    def _shared_limit(self, nbytes: int) -> None:
        most = _device(self._driver.arch).opt_in_shared - self._static_shared
        if not 0 <= nbytes <= most:
            raise refuse(CUDADriverError, status.INVALID_VALUE, f"{nbytes} bytes, at most {most}")
        self.module._shared_limits[self._name] = nbytes

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Any,
        shared_mem: int = 0,
        stream: Any = None,
        enable_cooperative_groups: bool = False,
    ) -> None:
        """Queue a launch; extents below 1 count as 1, as in CuPy."""
        for name, extents in (("grid", grid), ("block", block)):
            if not isinstance(extents, tuple):
                raise TypeError(
                    f"Argument '{name}' has incorrect type "
                    f"(expected tuple, got {type(extents).__name__})"
                )
        if enable_cooperative_groups:
            raise NotImplementedError("the emulator runs no cooperative launches")
        chosen = self._driver.classes.get_current_stream() if stream is None else stream
        self._enqueue(_three(grid), _three(block), tuple(args), int(shared_mem), chosen.ptr)

    def _enqueue(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: tuple[Any, ...],
        shared: int,
        stream: int,
    ) -> None:
        module, driver, name = self.module._image.module, self._driver, self._name
        device = driver.queue(stream).device
        if not device == self._device == driver.device:
            raise refuse(
                CUDADriverError,
                status.INVALID_HANDLE,
                f"kernel of device {self._device}, stream of {device}, current is {driver.device}",
            )
        packed = pack(self._entry, args)
        try:
            module.check(name, grid, block, shared, self._shared_limit)
        except KernelFault as fault:
            raise refuse(CUDADriverError, status.INVALID_VALUE, str(fault)) from fault

        def launch(live: Live) -> None:
            module.run(name, grid, block, packed, shared, driver.options, live.devices[device])

        driver.enqueue(stream, launch)
        driver.counters.launches.append(Launch(name, stream, grid, block, shared, packed.nbytes))


def attribute_setter(driver: Driver) -> Callable[[int, int, int], None]:
    """cuFuncSetAttribute, of the one attribute there is."""

    def funcSetAttribute(f: int, attribute: int, value: int) -> None:
        found = driver.classes.functions_by_pointer.get(f)
        if found is None:
            raise refuse(CUDADriverError, status.INVALID_HANDLE, f"no function {f:#x}")
        if attribute != MOST_DYNAMIC_SHARED:
            raise NotImplementedError(f"attribute {attribute} of a function")
        found._shared_limit = value

    return funcSetAttribute


def pack(entry: ptx.Entry, args: Sequence[Any]) -> np.ndarray[Any, Any]:
    """The parameters of a launch, copied now; what CUDA would take unchecked is a fault."""
    if len(args) != len(entry.parameters):
        raise KernelFault(
            Kind.LAUNCH, f"{entry.name} takes {len(entry.parameters)} arguments, not {len(args)}"
        )
    packed, end = np.zeros(MAX_PARAMETERS, np.uint8), 0
    for index, (argument, parameter) in enumerate(zip(args, entry.parameters, strict=True)):
        data = argument_bytes(argument, parameter, f"{entry.name}: argument {index}")
        start = -(-end // parameter.align) * parameter.align
        end = start + parameter.size
        if end > MAX_PARAMETERS:
            raise KernelFault(Kind.LAUNCH, f"{entry.name}: parameters over {MAX_PARAMETERS} bytes")
        packed[start:end] = np.frombuffer(data, np.uint8)
    return packed[:end]


def _three(extents: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(1, int(extent)) for extent in (*extents, 1, 1)[:3])


class LoadedModule:
    """cupy.cuda.Module: PTX loaded on the current device."""

    _driver: Driver
    _image: Image

    def __init__(self) -> None:
        self._shared_limits: dict[str, int] = {}
        self._driver.classes.loaded_modules.add(self)

    def load(self, cubin: bytes) -> None:
        """Load PTX text; machine code cannot be emulated."""
        self._driver.refuse_unsafe_call()
        if cubin[:4] == b"\x7fELF":
            raise NotImplementedError("the emulator loads PTX, not machine code")
        self._image = load_ptx(cubin.rstrip(b"\0").decode(), self._driver.arch)

    def load_file(self, filename: str) -> None:
        """Load a file of PTX."""
        self.load(Path(filename).read_bytes())

    def get_function(self, name: str) -> Function:
        """A kernel by name."""
        made: Function = self._driver.classes.Function(self, name)
        return made


class RawKernel:
    """A kernel by name, loaded on each device where it is used."""

    _driver: Driver

    def __init__(
        self,
        code: str,
        name: str,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        *,
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        jitify: Any = None,
    ) -> None:
        self.code, self.name, self.options, self.backend = code, name, options, backend
        self.enable_cooperative_groups = enable_cooperative_groups
        self.file_path: str | None = None
        self._cache: dict[int, Function] = {}
        self._refuse(translate_cucomplex or jitify is not None or backend != "nvrtc")

    def __call__(self, grid: Any, block: Any, args: Any, **kwargs: Any) -> None:
        cooperative = self.enable_cooperative_groups
        self.kernel(grid, block, args, enable_cooperative_groups=cooperative, **kwargs)

    @property
    def kernel(self) -> Function:
        """The kernel on the current device."""
        return self._load()

    def _load(self) -> Function:
        device = self._driver.device
        if device not in self._cache:
            module = _load(self._driver, self.code, self.file_path, self.options)
            self._cache[device] = module.get_function(self.name)
        return self._cache[device]

    @property
    def max_threads_per_block(self) -> int:
        """The most threads of a block."""
        return self.kernel._entry.max_threads

    @property
    def shared_size_bytes(self) -> int:
        """Static shared memory."""
        return self.kernel._static_shared

    @property
    def num_regs(self) -> int:
        """Registers of a thread."""
        return self.kernel.module._image.report(self.name, r"Used (\d+) registers")

    @property
    def local_size_bytes(self) -> int:
        """Local memory of a thread: its stack, spills included."""
        return self.kernel.module._image.report(self.name, r"(\d+) bytes stack frame")

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """The most dynamic shared memory of a launch on the current device."""
        return self.kernel._shared_limit

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, bytes: int) -> None:
        self.kernel._shared_limit = bytes

    def compile(self, log_stream: Any = None) -> None:
        """Compile now."""
        self._cache.clear()
        self._load()

    @staticmethod
    def _refuse(condition: bool) -> None:
        if condition:
            raise NotImplementedError("the emulator compiles with NVRTC only, without Jitify")


class RawModule:
    """A source, or a file of PTX, with kernels."""

    _driver: Driver

    def __init__(
        self,
        *,
        code: str | None = None,
        path: str | None = None,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        name_expressions: Any = None,
        jitify: Any = None,
    ) -> None:
        if (code is None) == (path is None):
            raise TypeError("Exactly one of `code` and `path` keyword arguments must be given.")
        if not isinstance(options, tuple):
            raise TypeError(
                f"Argument 'options' has incorrect type (expected tuple, "
                f"got {type(options).__name__})"
            )
        if name_expressions is not None or translate_cucomplex or jitify or backend != "nvrtc":
            raise NotImplementedError("the emulator compiles plain sources, with NVRTC")
        self.code, self.file_path, self.options, self.backend = code, path, options, backend
        self.enable_cooperative_groups = enable_cooperative_groups

    @property
    def module(self) -> LoadedModule:
        """The module on the current device."""
        return _load(self._driver, self.code, self.file_path, self.options)

    def compile(self, log_stream: Any = None) -> None:
        """Compile now."""
        _load(self._driver, self.code, self.file_path, self.options)

    def get_function(self, name: str) -> RawKernel:
        """A kernel by name, compiled and loaded now."""
        kernel: RawKernel = self._driver.classes.RawKernel(
            self.code or "",
            name,
            self.options,
            self.backend,
            enable_cooperative_groups=self.enable_cooperative_groups,
        )
        kernel.file_path = self.file_path
        kernel._load()
        return kernel


def _load(
    driver: Driver, code: str | None, path: str | None, options: tuple[str, ...]
) -> LoadedModule:
    """Load on the current device, once; not beside a capture that forbids unsafe calls."""
    key = (driver.device, code, path, options)
    loaded = driver.classes.modules
    if key not in loaded:
        driver.refuse_unsafe_call()
        driver.counters.compilations += 1
        made = driver.classes.Module()
        if path is None:
            assert code is not None
            made._image = _compile(code, options, driver.arch)
        else:
            made.load_file(path)
        loaded[key] = made
    found: LoadedModule = loaded[key]
    return found


def _compile(code: str, options: tuple[str, ...], arch: str) -> Image:
    """Compile with the options that CuPy adds."""
    given = (*options, "-ftz=true")
    try:
        return load_source(code, given, arch)
    except nvrtc.CompileError as error:
        raise CompileException(str(error), code, "kern.cu", given) from error
