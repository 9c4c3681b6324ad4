"""Runs a KernelCall on the emulated device: patches addresses and scalars into its arguments."""

from collections.abc import Sequence

import numpy as np

from contract.kernels.call import KernelCall, Memory, packed

from .device import DEFAULT_SHARED, Allocation, Device, Module, Options

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
    data = np.frombuffer(call.arguments.data, np.uint8).copy()
    for at, pointer in call.arguments.pointers:
        memory = slots[pointer.slot] if pointer.memory is Memory.SLOT else scratch
        assert memory is not None
        moved = offsets[pointer.slot] if offsets and pointer.memory is Memory.SLOT else 0
        data[at : at + 8] = np.array([memory.pointer + moved + pointer.bytes]).view(np.uint8)
    for field in call.arguments.scalars:
        bytes_ = packed(field.dtype, scalars[field.scalar.value])
        data[field.offset : field.offset + len(bytes_)] = np.frombuffer(bytes_, np.uint8)
    module = _loaded(device, call.source)
    limit = max(call.shared, DEFAULT_SHARED)
    module.launch(call.entry, call.grid, call.block, [data], call.shared, options, limit)


def _loaded(device: Device, source: str) -> Module:
    key = id(device), source
    if key not in _modules:
        _modules[key] = device.load(source, FLAGS)
    return _modules[key]
