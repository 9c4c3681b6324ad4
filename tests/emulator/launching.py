"""Runs a KernelCall on the emulated device: patches addresses and scalars into its arguments."""

from collections.abc import Sequence

import numpy as np

from contract.device.tensor_maps import encoded
from contract.planner.device.launch import KernelCall, Pointer, PointerKind, packed

from .device import DEFAULT_SHARED, Allocation, Device, Module, Options
from .library import Source, to_ptx

FLAGS = ("-ftz=true",)
_modules: dict[tuple[int, str], Module] = {}


def run_call(
    device: Device,
    call: KernelCall,
    slots: Sequence[Allocation],
    scalars: Sequence[complex] = (1, 0, 0),
    scratch: Allocation | None = None,
    options: Options | None = None,
    offsets: Sequence[int] = (),
) -> None:
    """Launch; ``offsets`` are the bytes from each allocation's start to its tensor's origin."""

    def address(pointer: Pointer) -> int:
        memory = slots[pointer.slot] if pointer.memory is PointerKind.SLOT else scratch
        assert memory is not None
        moved = offsets[pointer.slot] if offsets and pointer.memory is PointerKind.SLOT else 0
        return memory.pointer + moved + pointer.bytes

    data = np.frombuffer(call.arguments.data, np.uint8).copy()
    for at, pointer in call.arguments.pointers:
        data[at : at + 8] = np.array([address(pointer)]).view(np.uint8)
    for at, tensor_map in call.arguments.maps:
        bytes_ = encoded(device.driver, tensor_map, address(tensor_map.pointer))
        data[at : at + len(bytes_)] = np.frombuffer(bytes_, np.uint8)
    for field in call.arguments.scalars:
        bytes_ = packed(field.dtype, scalars[field.scalar.value])
        data[field.offset : field.offset + len(bytes_)] = np.frombuffer(bytes_, np.uint8)
    module = _loaded(device, call)
    limit = max(call.shared, DEFAULT_SHARED)
    module.launch(call.entry, call.grid, call.block, [data], call.shared, options, limit)


def _loaded(device: Device, call: KernelCall) -> Module:
    key = id(device), call.source
    if key not in _modules:
        arch = f"sm_{call.architecture}" if call.architecture else device.arch
        _modules[key] = device.load_ptx(to_ptx(Source(call.source, arch, FLAGS)))
    return _modules[key]
