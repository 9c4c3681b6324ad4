"""A launch with extents and strides as constants of its kernel: JitMode.DEFAULT.

Divisions become multiplications and shifts, loops over modes straight code, offsets sums; such a
kernel serves one descriptor only and is compiled for it.
"""

import struct
from dataclasses import replace

from contract.descriptors.compute_types import item_size
from contract.planner.device.launch import KernelCall

__all__ = ["baked"]

WORD = 8  # bytes


def baked(call: KernelCall) -> KernelCall:
    """The same launch by a kernel that knows all arguments but pointers and scalars.

    TMA reads tensor maps where the arguments are, so that a launch with maps stays as it is.
    """
    if call.arguments.maps:
        return call
    given = {at // WORD for at, _ in call.arguments.pointers}
    for field in call.arguments.scalars:
        last = field.offset + item_size(field.dtype) - 1
        given |= set(range(field.offset // WORD, last // WORD + 1))
    data = call.arguments.data
    words = enumerate(struct.unpack_from(f"<{len(data) // WORD}Q", data))
    return replace(call, constants=tuple((at, value) for at, value in words if at not in given))
