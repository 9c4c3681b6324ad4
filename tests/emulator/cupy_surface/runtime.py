"""cupy.cuda.runtime: the functions and constants of the CUDA runtime, and what a device says."""

from collections.abc import Callable
from typing import Any

from ..device import DEFAULT_SHARED, MAX_BLOCK, MAX_GRID, MAX_THREADS
from .driver import Driver
from .status import CUDARuntimeError

CONSTANTS = {
    "streamDefault": 0,
    "streamNonBlocking": 1,
    "streamLegacy": 1,
    "streamPerThread": 2,
    "streamCaptureModeGlobal": 0,
    "streamCaptureModeThreadLocal": 1,
    "streamCaptureModeRelaxed": 2,
    "eventDefault": 0,
    "eventBlockingSync": 1,
    "eventDisableTiming": 2,
    "eventInterprocess": 4,
    "memcpyHostToHost": 0,
    "memcpyHostToDevice": 1,
    "memcpyDeviceToHost": 2,
    "memcpyDeviceToDevice": 3,
    "memcpyDefault": 4,
    "CUDA_R_32F": 0,
    "CUDA_R_64F": 1,
    "CUDA_R_16F": 2,
    "CUDA_R_8I": 3,
    "CUDA_C_32F": 4,
    "CUDA_C_64F": 5,
    "CUDA_C_16F": 6,
    "CUDA_C_8I": 7,
    "CUDA_R_8U": 8,
    "CUDA_C_8U": 9,
    "CUDA_R_16BF": 14,
    "cudaDevAttrMaxThreadsPerBlock": 1,
    "cudaDevAttrMaxBlockDimX": 2,
    "cudaDevAttrMaxBlockDimY": 3,
    "cudaDevAttrMaxBlockDimZ": 4,
    "cudaDevAttrMaxGridDimX": 5,
    "cudaDevAttrMaxGridDimY": 6,
    "cudaDevAttrMaxGridDimZ": 7,
    "cudaDevAttrMaxSharedMemoryPerBlock": 8,
    "cudaDevAttrWarpSize": 10,
    "cudaDevAttrMaxRegistersPerBlock": 12,
    "cudaDevAttrClockRate": 13,
    "cudaDevAttrMultiProcessorCount": 16,
    "cudaDevAttrMemoryClockRate": 36,
    "cudaDevAttrGlobalMemoryBusWidth": 37,
    "cudaDevAttrL2CacheSize": 38,
    "cudaDevAttrMaxThreadsPerMultiProcessor": 39,
    "cudaDevAttrMaxSharedMemoryPerMultiprocessor": 81,
    "cudaDevAttrMaxSharedMemoryPerBlockOptin": 97,
    "cudaDevAttrMaxBlocksPerMultiprocessor": 106,
    "cudaDevAttrReservedSharedMemoryPerBlock": 111,
}


def attributes(driver: Driver) -> dict[str, int]:
    """What a device says of itself: the limits of its architecture, the figures of an H200."""
    optin = driver.cards[0].memory.device.opt_in_shared
    block = dict(zip(("MaxBlockDimX", "MaxBlockDimY", "MaxBlockDimZ"), MAX_BLOCK, strict=True))
    grid = dict(zip(("MaxGridDimX", "MaxGridDimY", "MaxGridDimZ"), MAX_GRID, strict=True))
    return {
        "MaxThreadsPerBlock": MAX_THREADS,
        **block,
        **grid,
        "MaxSharedMemoryPerBlock": DEFAULT_SHARED,
        "WarpSize": 32,
        "MaxRegistersPerBlock": 65536,
        "ClockRate": 1980000,
        "MultiProcessorCount": 132,
        "MemoryClockRate": 3201000,
        "GlobalMemoryBusWidth": 6144,
        "L2CacheSize": 60 << 20,
        "MaxThreadsPerMultiProcessor": 2048,
        "MaxSharedMemoryPerMultiprocessor": optin + 1024,
        "MaxSharedMemoryPerBlockOptin": optin,
        "MaxBlocksPerMultiprocessor": 32,
        "ReservedSharedMemoryPerBlock": 1024,
    }


class Runtime:
    """The functions of the module."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._attributes = attributes(driver)

    def driverGetVersion(self) -> int:
        """The driver's version."""
        return 12090

    def runtimeGetVersion(self) -> int:
        """The runtime's version."""
        return 12090

    def getDevice(self) -> int:
        """The current device."""
        return self._driver.device

    def setDevice(self, device: int) -> None:
        """Make a device current."""
        self._driver.device = device

    def getDeviceCount(self) -> int:
        """The number of devices."""
        return len(self._driver.cards)

    def deviceGetAttribute(self, attrib: int, device: int) -> int:
        """An attribute by number."""
        names = {CONSTANTS[f"cudaDevAttr{name}"]: name for name in self._attributes}
        if attrib not in names:
            raise CUDARuntimeError(1)
        return self._attributes[names[attrib]]

    def getDeviceProperties(self, device: int) -> dict[str, Any]:
        """The properties that CuPy lists, of those that the emulator has."""
        found, memory = self._attributes, self._driver.cards[device].memory
        major, minor = divmod(int(self._driver.arch.removeprefix("sm_").rstrip("a")), 10)
        return {
            "name": f"Emulated {self._driver.arch}".encode(),
            "major": major,
            "minor": minor,
            "totalGlobalMem": memory.total,
            "sharedMemPerBlock": DEFAULT_SHARED,
            "sharedMemPerBlockOptin": found["MaxSharedMemoryPerBlockOptin"],
            "sharedMemPerMultiprocessor": found["MaxSharedMemoryPerMultiprocessor"],
            "reservedSharedMemPerBlock": found["ReservedSharedMemoryPerBlock"],
            "regsPerBlock": found["MaxRegistersPerBlock"],
            "regsPerMultiprocessor": found["MaxRegistersPerBlock"],
            "warpSize": 32,
            "maxThreadsPerBlock": MAX_THREADS,
            "maxThreadsDim": MAX_BLOCK,
            "maxGridSize": MAX_GRID,
            "clockRate": found["ClockRate"],
            "memoryClockRate": found["MemoryClockRate"],
            "memoryBusWidth": found["GlobalMemoryBusWidth"],
            "l2CacheSize": found["L2CacheSize"],
            "multiProcessorCount": found["MultiProcessorCount"],
            "maxThreadsPerMultiProcessor": found["MaxThreadsPerMultiProcessor"],
            "maxBlocksPerMultiProcessor": found["MaxBlocksPerMultiprocessor"],
            "uuid": bytes(15) + bytes([device]),
        }

    def memGetInfo(self) -> tuple[int, int]:
        """Free and total bytes of the current device."""
        memory = self._driver.card.memory
        return memory.total - memory.used, memory.total

    def deviceSynchronize(self) -> None:
        """Wait for the current device."""
        self._driver.synchronize_device()

    def streamSynchronize(self, stream: int) -> None:
        """Wait for a stream."""
        self._driver.synchronize_stream(stream)

    def streamIsCapturing(self, stream: int) -> bool:
        """Whether a stream records."""
        return self._driver.is_capturing(stream)

    def streamQuery(self, stream: int) -> int:
        """The status of a stream, returned and not raised."""
        return self._driver.query_stream(stream)

    def streamGetFlags(self, stream: int) -> int:
        """Whether a stream is independent of the legacy stream."""
        return 0 if self._driver.queue(stream).blocking else CONSTANTS["streamNonBlocking"]

    def eventRecord(self, event: int, stream: int) -> None:
        """Let an event stand for the work now in a stream."""
        self._driver.record_event(event, stream)

    def streamWaitEvent(self, stream: int, event: int, flags: int = 0) -> None:
        """Let what follows in a stream wait for an event."""
        self._driver.wait_event(stream, event)

    def eventSynchronize(self, event: int) -> None:
        """Wait for an event."""
        self._driver.synchronize_event(event)

    def eventQuery(self, event: int) -> int:
        """The status of an event, returned and not raised."""
        return self._driver.query_event(event)


def functions(runtime: Runtime) -> dict[str, Callable[..., Any]]:
    """The functions by their names in the module."""
    names = [name for name in vars(Runtime) if not name.startswith("_")]
    return {name: getattr(runtime, name) for name in names}
